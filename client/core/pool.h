/*
 * pool.h - the state of an attached pool in its process. Internal to libgpool.
 *
 * struct gpool is stored in a separate mapping that the kernel clears in a forked child (MADV_WIPEONFORK), so `alive`
 * is 0 there. Public calls load it first, and so detect a child before they access a shared segment. Calls that only
 * return a field return 0 in a child.
 *
 * Locks, in the order in which they may nest:
 *   ranges->lock     ranges; held during sleep and wake
 *   spills->lock     places of blocks that have moved; no lock is acquired under it
 *   deferred->lock   blocks that wait for fences or for other threads' pins
 *   spaces->lock     spaces of addresses; a thread that waits for pages acquires it only by trylock
 *   window->lock     imported handles and mappings
 *   stitches->lock   ranges of scattered blocks; no lock is acquired under it
 *   objects_lock     handles of objects; not held during requests to the agent
 *   exports->lock, imports->turn  exports and imports of fences, one at a time; held during requests to the agent
 *   attach_lock      the turn to send a request to the agent; not held during requests
 *   roles_lock       names of roles; no lock is acquired under it
 *   streams->lock    opening of streams
 *   streams[].lock   one stream
 *   imports->lock    imported fences; their thread holds it while it polls
 *   sources.lock     sources of imported fences; no lock is acquired under it
 *   elastic->lock    one elastic range; not held while handles are requested or mapped
 *   vpmm->lock       regions of gpool_malloc_async(); not held during calls that may wait
 *   small->lock      small allocations of gpool_malloc_async(); not held together with vpmm->lock
 *   background->lock tasks; no lock is acquired under it, and no task runs under it
 *   streams->joins_lock  joint fences; no lock is acquired under it
 *   thread cache registry (thread_cache.c) - caches of all threads; no lock is acquired under it; held across fork()
 *   kvs_lock         the list of KV caches; no lock is acquired under it
 * spans->lock is acquired before all of these: a page of spans is allocated and freed under it. The same holds for the
 * locks of a KV cache (kv/kv.h).
 */
#ifndef GPOOL_CLIENT_POOL_H
#define GPOOL_CLIENT_POOL_H

#include "client/core/idle.h"
#include "client/core/internal.h"
#include "client/gpool.h"
#include "cuda/gpu.h"
#include "proto/messages.h"
#include "shm/lease_bitmap.h"
#include "shm/monotonic.h"
#include "shm/session_segment.h"

#include <errno.h>
#include <pthread.h>

#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)
/* Mark a function of a slow path. It is kept out of line, so that the hot path stays short. */
#define COLD __attribute__((noinline, cold))

#if defined(__x86_64__) || defined(__i386__)
#define cpu_relax() __builtin_ia32_pause()
#else
#define cpu_relax() __asm__ volatile("" ::: "memory")
#endif

struct background;
struct channel;
struct deferred_lists;
struct exports;
struct gpool_kv;
struct gpool_object;
struct imports;
struct ranges;
struct role_claim;
struct spans;
struct spills;
struct stitches;
struct streams;
struct thread_cache;
struct vm_spaces;
struct vpmm;
struct window;
struct window_user;

enum {
	POOLS_MAX = 16, /* chosen: pools that one process may attach, one for each GPU of the largest nodes */
	WINDOW_USERS_MAX = 4,
	MAGAZINE_DEFAULT = 16,
	MAGAZINE_MAX = 64,
};

enum pool_log_level { POOL_LOG_ERROR, POOL_LOG_WARNING, POOL_LOG_INFO, POOL_LOG_DEBUG };

struct gpool {
	/* Read by every call, written only by gpool_open(). */
	uint32_t alive;      /* 0 in a forked child */
	uint32_t page_count; /* 0 for observers and admins, so that every handle is out of bounds */
	uint64_t epoch;      /* identifies this gpool_open(); unique in the process */
	uint32_t slot;       /* index in each thread's table of caches */
	uint32_t id;         /* session number */
	struct pool_header *header;
	_Atomic uint64_t *pages;
	struct session_segment session;
	uint64_t window_base;
	uint64_t page_bytes;
	_Atomic uint64_t *summary; /* summary of session.free_bits */
	uint32_t unreserved;       /* pages [0, unreserved) are for all requests, the others only for critical ones */
	uint32_t alignment;        /* of spans */
	uint32_t magazine;         /* number of single pages that a thread keeps */
	uint32_t run_pages;        /* number of pages in the runs that a thread keeps */
	uint32_t session_kind;     /* session kind in the attach request: 0 worker, 1 observer, 2 admin */
	/* number of open scopes with GPOOL_SCOPE_THREAD. Changes rarely */
	_Atomic uint32_t thread_scopes;
	struct pool_segment segment;

	struct window *window;
	struct deferred_lists *deferred;
	struct stitches *stitches;
	struct streams *streams;
	struct exports *exports; /* exported fences; NULL for observers and admins */
	struct imports *imports; /* imported fences; NULL for observers and admins */
	struct spans *spans;
	pthread_mutex_t objects_lock;
	pthread_cond_t objects_answered; /* signaled when a request about an object has ended */
	struct gpool_object *objects;    /* list of this process's object handles */
	struct spills *spills;
	struct ranges *ranges;
	struct vm_spaces *spaces;
	struct background *background;
	struct vpmm *vpmm;
	pthread_mutex_t kvs_lock;
	struct gpool_kv *kvs; /* list of this handle's KV caches */
	struct gpu *gpu;      /* NULL for observers and admins */
	uint32_t capabilities;
	uint32_t device; /* index of the GPU; GPOOL_DEVICE_NONE without one */
	char device_uuid[GPU_UUID_MAX];
	uint64_t calls_at_open;

	int socket;
	int doorbell;
	uint8_t token[MSG_TOKEN_BYTES];
	pthread_mutex_t attach_lock;
	pthread_cond_t attach_free;
	bool attach_busy;         /* a request is in progress; its thread owns the socket and attach_sequence */
	uint64_t attach_sequence; /* number of the last request */
	int answer_ms;            /* longest wait for the reply of a running agent */
	pthread_mutex_t roles_lock;
	struct role_claim *roles; /* roles that this process holds or waits for */

	/* Requests for pages that are in progress. */
	pthread_mutex_t request_lock;
	pthread_cond_t request_free;
	uint64_t requests_used; /* a bit for each request slot of the session segment */
	uint32_t request_next;

	pthread_mutex_t control_lock;
	struct channel *control; /* opened by the first request */
	pthread_mutex_t events_lock;
	struct channel *events; /* opened by the first gpool_event_next() */
	char control_url[128];
	char events_url[128];

	struct thread_cache *caches; /* protected by the registry's lock */
	_Atomic uint32_t unscoped;   /* bit i: a block of usage i without a scope was logged */
	_Atomic uint32_t cache_count;
	uint64_t stat_slots_used; /* protected by the registry's lock */

	struct idle_callbacks idle;
	void (*stream_closed)(struct gpool *pool, uint32_t stream); /* stream_on_close() */
	const struct window_user *window_users[WINDOW_USERS_MAX];
	uint32_t window_user_count;
	void (*log)(void *context, int level, const char *text);
	void *log_context;

	/* Written by all threads, and therefore in a separate cache line. */
	_Alignas(64) _Atomic uint32_t deferred_count; /* deferred frees and unpins; read without the lock */
	_Atomic uint32_t release_seen;                /* the last release_serial for which all work is done */
	_Atomic bool gpu_failed;                      /* pool_gpu_failed() */
};

void __attribute__((format(printf, 3, 4)))
pool_log(const struct gpool *pool, enum pool_log_level level, const char *format, ...) GPOOL_INTERNAL(pool_log);

/* pool_gpu_failed() - return true after a device failure; see stream.h. */
static inline bool pool_gpu_failed(const struct gpool *pool)
{
	return unlikely(atomic_load_explicit(&pool->gpu_failed, memory_order_acquire));
}

/* pool_gone() - return true if the agent has ended this session or closed its connection. */
bool pool_gone(const struct gpool *pool);

/*
 * options_read() - copy options of any library version into to[known]. Fields that the caller's version lacks become
 * zero; fields that this version does not know must be zero.
 * Return: 0, -EINVAL (smaller than its own size field), -E2BIG.
 */
int options_read(void *to, size_t known, const void *from) GPOOL_INTERNAL(options_read);

/*
 * struct_answer() - copy a filled structure of `known` bytes to a caller's structure of `size` bytes. A program built
 * against an older header gets the fields that it knows; a program built against a newer one gets zeros in the fields
 * that this library lacks.
 */
void struct_answer(void *to, uint32_t size, const void *filled, size_t known);

static inline uint32_t pool_clock(const struct gpool *pool)
{
	return atomic_load_explicit(&pool->header->clock_ms, memory_order_relaxed);
}

/* Return true if other sessions need pages, so that this process should not keep idle pages. */
static inline bool pool_is_short(const struct gpool *pool)
{
	return atomic_load_explicit(&pool->header->waiters, memory_order_relaxed) != 0 ||
		atomic_load_explicit(&pool->header->pressure, memory_order_relaxed) >= POOL_PRESSURE_HIGH;
}

/* Return true if the agent needs handles unmapped; see window_let_go(). An idle callback checks this. */
static inline bool pool_release_due(const struct gpool *pool)
{
	return pool->header &&
		atomic_load_explicit(&pool->header->release_serial, memory_order_relaxed) !=
		atomic_load_explicit(&pool->release_seen, memory_order_relaxed);
}

/* pool_put() - make pages of this session idle. */
static inline void pool_put(const struct gpool *pool, uint32_t first, uint32_t count)
{
	lease_put_summed(pool->session.free_bits, pool->summary, first, count);
}

/* pool_pages_freed() - run the idle callbacks and wake the waiters; called after pages became idle or evictable. */
void pool_pages_freed(struct gpool *pool) COLD;

/*
 * pool_domain() - return the trust domain of this session, to which its names belong; 0: the pool has no trust domains.
 */
static inline uint32_t pool_domain(const struct gpool *pool)
{
	return pool->segment.sessions[pool->id].domain;
}

static inline const char *pool_tenant_name(const struct gpool *pool)
{
	return pool->segment.sessions[pool->id].tenant;
}

static inline void pool_wake_waiters(struct gpool *pool)
{
	if (unlikely(atomic_load_explicit(&pool->header->waiters, memory_order_relaxed)))
		pool_pages_freed(pool);
}

/* pool_sweep() - run the idle callbacks if frees or unpins of this process are deferred. */
static inline void pool_sweep(struct gpool *pool)
{
	if (unlikely(atomic_load_explicit(&pool->deferred_count, memory_order_relaxed)))
		idle_run(pool, IDLE_WAIT);
}

#endif
