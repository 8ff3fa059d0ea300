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

/* gpool_version() - "0.2.0", of the library at run time. */
GPOOL_API const char *gpool_version(void);

/* ---- errors ---- */

/*
 * gpool_strerror() - what a code of this library means here; never NULL, never translated. `error` may have either
 * sign.
 */
GPOOL_API const char *gpool_strerror(int error);

/*
 * gpool_last_error() - describe this thread's last failure with this code: the value that was refused and its limit, or
 * the cause.
 *
 * @error: what the call returned, of either sign
 *
 * Meant to be called right after a call that failed. A text is returned once; without one, and for other codes, the
 * answer is that of gpool_strerror().
 *
 * Return: a text, never NULL, never translated; valid until this thread's next call that fails.
 * Cost: a look at memory of this thread. Calls note texts only where they fail.
 * Threads: any; each has its own.
 */
GPOOL_API const char *gpool_last_error(int error);

/*
 * gpool_wait_check() - have this thread's waiting calls ask every 50 ms whether to go on.
 *
 * @check:    returns 0 to go on; anything else ends the call that waits with -EINTR, or with its result where that was
 *            just there. NULL: none any more
 * @argument: passed to check
 *
 * For programs that react to a signal outside of its handler, such as interpreters. A signal alone ends no wait. Asked
 * are gpool_open(), calls that wait for pages, gpool_role_acquire(), gpool_event_next(), gpool_fence_wait(),
 * gpool_lora_acquire(), gpool_lora_acquire_async() and gpool_lora_wait_layer(), each as long as its timeout_ms lets it
 * wait. After -EINTR all is as after -ETIMEDOUT.
 *
 * check runs inside of the call, and may not call into the same pool. A load of an adapter is then begun by another
 * thread. Cost: without a check one load where a call sleeps.
 * Threads: any; each has its own.
 */
GPOOL_API void gpool_wait_check(int (*check)(void *argument), void *argument);

/* ---- types ---- */

struct gpool; /* an attached pool */

enum gpool_pressure { GPOOL_PRESSURE_LOW, GPOOL_PRESSURE_MEDIUM, GPOOL_PRESSURE_HIGH, GPOOL_PRESSURE_CRITICAL };

/* ---- options ---- */

enum {
	GPOOL_OPEN_OBSERVER = 1u << 0, /* read only: no pages, no blocks */
	GPOOL_OPEN_ADMIN = 1u << 1,    /* may steer the agent; no pages either */
};

struct gpool_options {
	uint32_t size;         /* sizeof(struct gpool_options); GPOOL_OPTIONS_INIT sets it */
	uint32_t flags;        /* GPOOL_OPEN_*; an unknown bit is -EINVAL */
	const char *directory; /* of the agent's sockets; NULL: $GPOOL_DIR, else /run/gpool */
	const char *pool;      /* name of the pool; NULL: the first */
	const char *name;      /* how tools show this process; NULL: the program's name */
	const char *tenant;    /* NULL: the first that this user may join */
	int32_t timeout_ms;    /* longest wait for an agent that is not up yet; -1: no limit, 0: none */
	uint32_t magazine;     /* single pages that each thread keeps at hand, 1..64; 0: 16 */
	uint64_t quota_bytes;  /* most that this process may lease; 0: the tenant's limit */
	void (*log)(void *context, int level, const char *text); /* NULL: silent. level: 0 error .. 3 debug */
	void *log_context;
};
GPOOL_ASSERT_SIZE(gpool_options, 72);
#define GPOOL_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/* ---- life cycle ---- */

/*
 * gpool_open() - attach to a pool.
 *
 * @options: NULL for the defaults. Smaller size than the library's: missing fields are zero. Larger: the unknown tail
 * must be
 *           zero, else -E2BIG.
 * @pool:    receives the handle; gpool_close() it
 *
 * Return: 0, or
 *   -EINVAL     an unknown flag or a field out of range
 *   -E2BIG      options of a newer library with a field set that this one lacks
 *   -ENOENT     no agent's socket there, and timeout_ms is over
 *   -ETIMEDOUT  the agent did not answer in time
 *   -EACCES     this user may not attach, or not to this tenant or in this role
 *   -ENXIO      no pool, tenant of that name
 *   -EUSERS     the agent's limit on sessions
 *   -EBUSY      the pool is out of service ("poolctl drain"); sessions that do not allocate are let in
 *   -EPROTO     agent and library disagree on the shared memory's layout
 *   -ENODEV     the pool's device or back end cannot be opened in this process
 *   -EMFILE, -ENOMEM  this process's limits
 *
 * Cost: some system calls and one round trip to the agent. Source: proto/PROTOCOL.md.
 */
GPOOL_API int gpool_open(const struct gpool_options *options, struct gpool **pool);

/*
 * gpool_close() - detach. All blocks end; waits for GPU work queued through this handle. NULL is fine. No other thread
 * may be inside a call with this handle.
 */
GPOOL_API void gpool_close(struct gpool *pool);

/* ---- inspection ---- */

GPOOL_API uint64_t gpool_page_bytes(const struct gpool *pool);
GPOOL_API uint32_t gpool_page_count(const struct gpool *pool);
GPOOL_API uint32_t gpool_session(const struct gpool *pool);
/* gpool_pressure() - enum gpool_pressure, one load. */
GPOOL_API int gpool_pressure(const struct gpool *pool);

enum {
	GPOOL_DEVICE_HOST_POINTER = 1u << 0, /* the pool's addresses may also be read and written by the CPU (`host`) */
};

#define GPOOL_DEVICE_NONE UINT32_MAX /* ordinal: a session that reads only opens no device */

/* Where a pool's memory is, for what must be told of a device beside an address. */
struct gpool_device_info {
	uint32_t size;  /* sizeof(struct gpool_device_info), set by the caller */
	uint32_t flags; /* GPOOL_DEVICE_* */
	/* of the device in this process, as cuDeviceGet() and the CUDA runtime count; or GPOOL_DEVICE_NONE */
	uint32_t ordinal;
	uint32_t reserved;
	char pool[64];
	char backend[16]; /* "cuda", "host" */
	char uuid[48];    /* empty: GPOOL_DEVICE_NONE */
};
GPOOL_ASSERT_SIZE(gpool_device_info, 144);

/* gpool_device_info() - Return: 0, -EINVAL (its size), -ECHILD. No system call. */
GPOOL_API int gpool_device_info(const struct gpool *pool, struct gpool_device_info *device);

struct gpool_stats {
	uint32_t size; /* sizeof(struct gpool_stats), set by the caller */
	uint32_t leased_pages, idle_pages, deferred_blocks;
	uint64_t allocations, frees, pins, unpins;
	uint64_t stale_pins, contended_pins;
	uint64_t magazine_hits, scattered, refills, refusals;
	uint64_t driver_calls;      /* of the back end, by this handle, since gpool_open() */
	uint64_t allocation_ns[32]; /* histogram, bucket i: [2^i, 2^(i+1)) ns; one allocation in 256 */
	uint64_t refill_ns[32];     /* every refill */
};
GPOOL_API int gpool_stats(struct gpool *pool, struct gpool_stats *statistics);

#ifdef __cplusplus
}
#endif

#endif
