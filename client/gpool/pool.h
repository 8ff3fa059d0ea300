/* pool.h - attach to a pool; versions, errors and inspection. */
#ifndef GPOOL_POOL_H
#define GPOOL_POOL_H

#include <stddef.h>
#include <stdint.h>

#ifndef __cplusplus
#include <assert.h>
#endif
#define GPOOL_ASSERT_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), "append only")
#define GPOOL_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */

#define GPOOL_VERSION_MAJOR 0
#define GPOOL_VERSION_MINOR 2
#define GPOOL_VERSION_PATCH 0

/* gpool_version() - return the version of the loaded library, for example "0.2.0". Never NULL; not to be freed. */
GPOOL_API const char *gpool_version(void);

/* ---- errors ---- */

/*
 * gpool_strerror() - describe a code that a call of this library returns.
 *
 * @error: the code, of either sign
 *
 * Return: a text, never NULL, never translated, not to be freed.
 */
GPOOL_API const char *gpool_strerror(int error);

/*
 * gpool_last_error() - describe the last failed call of this thread: the rejected value and its limit, or the cause.
 *
 * @error: the code that the call returned, of either sign
 *
 * Call it directly after the failed call. Each text is returned only once. If no text is stored, or the stored text
 * belongs to another code, the result is the text of gpool_strerror().
 *
 * Return: a text, never NULL, never translated; valid until this thread's next call that fails.
 * Threads: any; each thread has its own texts.
 * Cost: a read of thread-local memory. Calls store texts only when they fail.
 */
GPOOL_API const char *gpool_last_error(int error);

/*
 * gpool_wait_check() - set a function that is called about every 50 ms while a call of this thread waits.
 *
 * @check:    returns 0 to continue the wait. Any other value ends the waiting call with -EINTR, or with its result if
 *            that is available. NULL: no check
 * @argument: passed to check
 *
 * A signal alone does not end a wait. Programs that handle signals outside the signal handler, such as interpreters,
 * can set a check instead. Calls whose list of errors contains -EINTR run the check while they wait: for an agent, for
 * pages or spilled content, for a role, an event, a fence, the work of streams or an adapter. A call that returns
 * -EINTR leaves the same state as a call whose timeout has expired.
 *
 * The check runs within the waiting call and must not make calls for the same pool. It must not wait for another thread
 * that makes such calls either, since some calls hold a lock while they wait: gpool_wake() and gpool_range_create() for
 * pages, and gpool_kv_resume() for spilled content. While a check is set, a loader thread starts the loads of adapters
 * instead of this thread.
 *
 * Threads: any; each thread has its own check. Cost: without a check, one load each time a call sleeps.
 */
GPOOL_API void gpool_wait_check(int (*check)(void *argument), void *argument);

/* ---- attaching ---- */

struct gpool; /* an attached pool: one session */

enum {
	GPOOL_OPEN_OBSERVER = 1u << 0, /* session kind observer: reads only, leases no pages */
	GPOOL_OPEN_ADMIN = 1u << 1,    /* session kind admin: may control the agent, leases no pages */
};

struct gpool_options {
	uint32_t size;  /* sizeof(struct gpool_options); GPOOL_OPTIONS_INIT sets it */
	uint32_t flags; /* GPOOL_OPEN_*; 0: a worker. An unknown bit is -EINVAL */
	/* directory of the agent's sockets; NULL: $GPOOL_DIR, or /run/gpool if that is not set */
	const char *directory;
	const char *pool;     /* name of the pool; NULL: the first */
	const char *name;     /* name of this process in tools, truncated to 63 bytes; NULL: the program's name */
	const char *tenant;   /* NULL: the first tenant that names this user, else the first without users */
	int32_t timeout_ms;   /* longest wait for an agent that is not running yet; -1: no limit, 0: do not wait */
	uint32_t magazine;    /* single free pages that each thread keeps, 1..64; 0: lease.thread_cache_size, 16 */
	uint64_t quota_bytes; /* maximum lease, at least a page, rounded down to pages; 0: the tenant's limit */
	void (*log)(void *context, int level, const char *text); /* NULL: no log. level: 0 error .. 3 debug */
	void *log_context;                                       /* passed to log */
};
GPOOL_ASSERT_SIZE(gpool_options, 72);
#define GPOOL_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_open() - attach to a pool.
 *
 * @options: NULL: the defaults
 * @pool:    receives the handle; release it with gpool_close()
 *
 * Each call creates a new session; a process can have 16 at a time. The strings of the options are copied. Once the
 * agent has accepted the connection, the call waits for its answer for another timeout_ms, or for 10 seconds if
 * timeout_ms is 0. A quota set with poolctl(1) replaces quota_bytes until the configuration is reloaded.
 *
 * Return: 0, or
 *   -EINVAL     an unknown flag, a field out of range, a pool or tenant whose name is too long, or a directory whose
 *               path has more than 100 bytes
 *   -E2BIG      options of a newer library, with a field set that this library does not have
 *   -ENOENT     no agent listens in the directory when timeout_ms has passed
 *   -ETIMEDOUT  the agent did not answer in time, or ended while it handled the request
 *   -EACCES     this user may not attach to the pool, to this tenant, or with this session kind
 *   -ENXIO      no pool or tenant of that name
 *   -EUSERS     a limit on the number of sessions is reached (gpoold.conf(5), limits); the log states which
 *   -ESHUTDOWN  the pool is out of service ("poolctl drain"); observers and admins may still attach
 *   -EPROTO     agent and library use different layouts of the shared memory
 *   -ENODEV     the pool's device or back end cannot be opened in this process
 *   -EMFILE     no more file descriptors in this process or in the agent, or 16 pools are open
 *   -EINTR      gpool_wait_check() ended the wait
 *   -ENOMEM     no memory or address space
 *
 * Cost: a few system calls and one round trip to the agent. A worker opens the device and reserves address space of the
 * pool's size; pages are mapped at their first use. Source: docs/internals/messages.md.
 */
GPOOL_API int gpool_open(const struct gpool_options *options, struct gpool **pool);

/*
 * gpool_close() - detach from a pool and free all blocks of the session.
 *
 * @pool: NULL is permitted
 *
 * Waits for the work on the streams of this handle, unmaps all memory and notifies the agent. Published objects remain.
 * Host-signaled timelines and imported fences end first: work that waits for their fences is executed at once. A
 * program that needs the order waits for these fences before the call.
 *
 * Threads: no other thread may be in a call with this handle. Cost: the wait for the work, and one round trip to the
 * agent, of at most 2 seconds.
 */
GPOOL_API void gpool_close(struct gpool *pool);

/* ---- inspection ---- */

enum gpool_pressure { GPOOL_PRESSURE_LOW, GPOOL_PRESSURE_MEDIUM, GPOOL_PRESSURE_HIGH, GPOOL_PRESSURE_CRITICAL };

/* gpool_page_bytes() - return the size of a page, in bytes. Cost: one load. */
GPOOL_API uint64_t gpool_page_bytes(const struct gpool *pool);
/* gpool_page_count() - return the number of pages in the pool. Cost: one load. */
GPOOL_API uint32_t gpool_page_count(const struct gpool *pool);
/* gpool_session() - return the session number that tools display. Cost: one load. */
GPOOL_API uint32_t gpool_session(const struct gpool *pool);
/* gpool_pressure() - return the memory pressure of the pool, an enum gpool_pressure, or -ECHILD. Cost: one load. */
GPOOL_API int gpool_pressure(const struct gpool *pool);

enum {
	GPOOL_DEVICE_HOST_POINTER = 1u << 0, /* the CPU can also use the pool's addresses (back end `host`) */
};

#define GPOOL_DEVICE_NONE UINT32_MAX /* ordinal in an observer or admin session, which opens no device */

/* A pool and the device that holds its memory. */
struct gpool_device_info {
	uint32_t size;  /* sizeof(struct gpool_device_info), set by the caller */
	uint32_t flags; /* GPOOL_DEVICE_* */
	/* number of the device in this process, as for cuDeviceGet() and the CUDA runtime; or GPOOL_DEVICE_NONE */
	uint32_t ordinal;
	uint32_t reserved;
	char pool[64];    /* name of the pool */
	char backend[16]; /* "cuda" or "host" */
	char uuid[48];    /* of the device; empty for GPOOL_DEVICE_NONE */
};
GPOOL_ASSERT_SIZE(gpool_device_info, 144);

/*
 * gpool_device_info() - describe the pool and the device that holds its memory.
 *
 * Return: 0, -EINVAL (size), -ECHILD. Cost: no system call.
 */
GPOOL_API int gpool_device_info(const struct gpool *pool, struct gpool_device_info *device);

/* Counters of this session since gpool_open(). */
struct gpool_stats {
	uint32_t size;            /* sizeof(struct gpool_stats), set by the caller */
	uint32_t leased_pages;    /* current lease of this session */
	uint32_t idle_pages;      /* leased pages without content, except those that threads keep */
	uint32_t deferred_blocks; /* freed, but a fence is not signaled or another thread has a pin; deferred unpins */
	uint64_t allocations, frees, pins, unpins;
	uint64_t stale_pins;        /* pins of blocks that were freed or evicted */
	uint64_t contended_pins;    /* pins of a page that was being moved or evicted */
	uint64_t magazine_hits;     /* allocations from pages that the calling thread kept */
	uint64_t scattered;         /* allocations whose pages are not adjacent */
	uint64_t refills, refusals; /* requests to the agent for pages; requests that it refused */
	uint64_t driver_calls;      /* calls to the back end by this handle */
	/* histogram, bucket i: [2^i, 2^(i+1)) ns; one in 256 successful allocations of each thread is measured */
	uint64_t allocation_ns[32];
	uint64_t refill_ns[32]; /* histogram of all refills */
};

/* gpool_stats() - read the session's counters. Return: 0, -EINVAL (size), -ECHILD. Cost: a pass over the page table. */
GPOOL_API int gpool_stats(struct gpool *pool, struct gpool_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
