/*
 * gpool.h - GPU memory lent in pages by the one agent of this machine.
 *
 * A worker attaches, allocates blocks of pages, pins them while it or its GPU work uses them, unpins them so that the
 * agent may evict them under pressure, and frees them. All of that is a few atomics on shared memory; the agent is
 * asked only when this process's lease runs dry. gpool(7) tells the model, gpool(3) the calls.
 *
 *	struct gpool *pool;
 *	struct gpool_block block;
 *	uint64_t address;
 *
 *	gpool_open(NULL, &pool);                      attach to /run/gpool, the first pool
 *	gpool_alloc(pool, 4, NULL, &block);           four pages, pinned
 *	gpool_address(pool, &block, &address);        contiguous device address
 *	gpool_unpin(pool, &block);                    may be evicted from now on
 *	if (gpool_pin(pool, &block) == 0)             -ESTALE: it was
 *		gpool_free(pool, &block);
 *	gpool_close(pool);
 *
 * Functions return 0 or a count, else negative errno; gpool_strerror() says what a code means here. Out-parameters
 * change only on success. Unless a call says otherwise any thread may make it, and none may be made from a signal
 * handler. After fork() the child owns nothing of this: every call answers -ECHILD there, and the parent is not
 * disturbed.
 *
 * "Cost:" states what a call does. Times depend on the machine and are not promised: [alloc1] names the figure of
 * gpool-bench(1) that measures the call on this one, `gpool-bench alloc1`.
 */
#ifndef GPOOL_H
#define GPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define GPOOL_ASSERT_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), "append only")
#else
#include <assert.h>
#define GPOOL_ASSERT_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), "append only")
#endif

#define GPOOL_API __attribute__((visibility("default")))

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

struct gpool;        /* an attached pool */
struct gpool_object; /* a named object: one that is being built, or a version that is open */

/*
 * What a block holds. It weighs in, beside the time of the last use and the size, when the agent chooses what to evict:
 * TEMP_BUFFER is the cheapest to lose, then ACTIVATION, GRADIENT, LORA_WEIGHT, KV_CACHE.
 */
enum gpool_usage {
	GPOOL_USAGE_KV_CACHE = 0,    /* pinned for its request */
	GPOOL_USAGE_LORA_WEIGHT = 1, /* pinned by hand while in an active batch */
	GPOOL_USAGE_TEMP_BUFFER = 2, /* pinned for its kernel */
	GPOOL_USAGE_ACTIVATION = 3,  /* pinned for its layer's pass */
	GPOOL_USAGE_GRADIENT = 4,    /* pinned for the backward pass */
	GPOOL_USAGE_COUNT = 5
};

enum gpool_pressure { GPOOL_PRESSURE_LOW, GPOOL_PRESSURE_MEDIUM, GPOOL_PRESSURE_HIGH, GPOOL_PRESSURE_CRITICAL };

/*
 * A block of pages. A value: copy it freely. It names the content, not the place: after a free or an eviction it is
 * stale, and every call with it says so, also when the pages were taken for something else meanwhile.
 */
struct gpool_block {
	uint64_t generation; /* of the first page */
	uint64_t tag;        /* of the content; never repeated by this process */
	uint32_t page;       /* first page in the pool */
	uint32_t page_count;
};
GPOOL_ASSERT_SIZE(gpool_block, 24);

/* A point in a stream: reached when all work queued before it is done. Zero: always reached. */
struct gpool_fence {
	uint64_t value;
};

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

enum {
	GPOOL_ALLOC_FIRST_FIT = 1u << 0, /* lowest pages first instead of best fit */
	GPOOL_ALLOC_CRITICAL = 1u << 1,  /* may use the reserved pages; admins and the system tenant only */
	/* neighbouring pages of the pool, or -ENOSPC; without it a block may be scattered */
	GPOOL_ALLOC_CONTIGUOUS = 1u << 2,
	GPOOL_ALLOC_NO_EVICT = 1u << 3, /* rather -ENOSPC than another block's eviction */
	/* on eviction keep the content outside of the pool, and bring it back when it is pinned */
	GPOOL_ALLOC_SPILL = 1u << 4,
};

struct gpool_alloc_options {
	uint32_t size;     /* sizeof(struct gpool_alloc_options); GPOOL_ALLOC_OPTIONS_INIT sets it */
	uint32_t flags;    /* GPOOL_ALLOC_*; an unknown bit is -EINVAL */
	uint32_t content;  /* enum gpool_usage */
	uint32_t priority; /* 0..3, higher stays longer */
	/* what tools show: request, adapter; free to choose. Evicted content is known again by it (`adaptive`) */
	uint64_t owner_id;
	int32_t timeout_ms; /* longest wait for pages; 0: none, -1: no limit (49 days) */
	uint32_t stream;    /* where it will be used first (gpool_stream_open); 0: anywhere */
};
GPOOL_ASSERT_SIZE(gpool_alloc_options, 32);
#define GPOOL_ALLOC_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_alloc_options), 0, 0, 0, 0, 0, 0 \
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

/* ---- work: blocks ---- */

/*
 * gpool_alloc() - allocate `page_count` pages, pinned once.
 *
 * Looks into the thread's magazine, then the process's lease, then asks the agent, which takes free pages, idle pages
 * of others, unpinned blocks by its eviction policy. A request never fails while so many pages are free: when they do
 * not lie in a row, the block is scattered, and its address is contiguous all the same.
 *
 * Return: 0, or
 *   -EINVAL     page_count 0 or above the pool's, an unknown flag, content or priority
 *   -ENOSPC     not so many pages to be had (in time); gpool_oom_info() says needed, free, pinned and by whom
 *   -EDQUOT     the tenant's limit or this process's quota
 *   -EPERM      GPOOL_ALLOC_CRITICAL without the right to it, or a session that only reads
 *   -ENOMEM     pages could not be mapped into this process
 *   -EPIPE      the agent is gone, and the lease is dry; what is allocated stays usable
 *   -ECHILD     after fork()
 *
 * Cost: a few atomics from the magazine [alloc1_free1]; a search of the lease's bitmap [alloc1, alloc100]; otherwise a
 * request to the agent [refill_p50, refill_p99]. The first use of a page maps it.
 */
GPOOL_API int gpool_alloc(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block);

/*
 * gpool_free() - end a block that the caller has pinned (an allocation is); the pin ends with it.
 * When other threads still pin it, the pages come back with their last unpin, and no new pin succeeds.
 * Return: 0, -ESTALE (freed already: of two frees one wins), -EINVAL (nobody has it pinned: use gpool_discard(); or not
 * a handle that gpool_alloc() returned), -ECHILD. Cost: a few atomics [free1, free100].
 */
GPOOL_API int gpool_free(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_discard() - pin and free in one: ends a block that the caller has not pinned, a spilled one too. -ESTALE: freed
 * or evicted already.
 */
GPOOL_API int gpool_discard(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_pin() - keep a block's content and place until gpool_unpin(). Pins count.
 *
 * Return: 0, or
 *   -ESTALE     freed or evicted
 *   -EIO        of a block with GPOOL_ALLOC_SPILL: it cannot be read back. When its checksum is wrong its content is
 *               lost, and from now on it is stale; else it is still kept, and another try may do: a disk failed, or the
 *               pool is without its mover (gpoold.conf(5), mover.patience)
 *   -ENOSPC, -EDQUOT  likewise: no pages to bring it back to now. It is still kept
 *   -ENOMEM     likewise: this process cannot note or map where it comes back to
 *   -EPIPE      likewise: it is spilled, and the agent is gone
 *   -EINVAL     not the handle of a block, or of one that is prepared and not committed
 *   -ETIMEDOUT  it was on the move for longer than the pool's pin_timeout (100 ms by default)
 *   -ECHILD     after fork()
 *
 * A block with GPOOL_ALLOC_SPILL that has left the pool comes back for this, into other pages: the wait is as long as
 * that takes, and the handle stays good. pin_timeout does not count then, but where nobody comes to bring it the wait
 * ends after mover.patience (5 s by default). Other blocks' pages may be evicted for it.
 *
 * Cost: one atomic, two loads [pin]; no system call unless the block is on the move. By the handle of a block that has
 * moved a lock and a look into a table more, until gpool_refresh().
 */
GPOOL_API int gpool_pin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_unpin() - end one pin. -EINVAL: it is not pinned. -ESTALE: not this block's place any more.
 * Cost: one atomic, some loads [unpin].
 */
GPOOL_API int gpool_unpin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_refresh() - after a block that was spilled has come back elsewhere: make *block say where it is, so that calls
 * with it find it at once again. The old handle stays good. 0, also when it has not moved; -ESTALE (spilled, or gone),
 * -EINVAL, -ECHILD.
 */
GPOOL_API int gpool_refresh(struct gpool *pool, struct gpool_block *block);

/*
 * gpool_touch() - say that a block is in use: refreshes a long pin (max_pin_duration) and the eviction policy's clock.
 */
GPOOL_API int gpool_touch(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_address() - the block's device address, page_count * gpool_page_bytes() contiguous bytes; valid while it is
 * pinned.
 */
GPOOL_API int gpool_address(struct gpool *pool, const struct gpool_block *block, uint64_t *address);

/*
 * A session and the pages that it leases. Needed: pinned, or in a thread's hands. Offered: content without a pin, kept
 * until the page is needed elsewhere. Idle: no content; evicted first.
 */
struct gpool_holder {
	uint32_t session;
	uint32_t content; /* enum gpool_usage of most of its pages in blocks; GPOOL_USAGE_COUNT: it has no blocks */
	uint32_t needed_pages, offered_pages, idle_pages;
	char name[64];
};
GPOOL_ASSERT_SIZE(gpool_holder, 84);

enum { GPOOL_HOLDERS_MAX = 4 };

/* The fields before holder_count are as of the refusal. */
struct gpool_oom_info {
	uint32_t size;         /* sizeof(struct gpool_oom_info), set by the caller */
	uint32_t needed;       /* pages that the allocation needed */
	uint32_t free, pinned; /* pages in the pool */
	uint32_t holder;       /* session with the most pinned pages; 0: none */
	uint32_t holder_pages; /* pinned by it */
	char holder_name[64];
	uint32_t holder_count; /* 0: no session leases pages, or the agent did not answer within a second */
	struct gpool_holder holders[GPOOL_HOLDERS_MAX]; /* the sessions that lease the most pages, most first */
};
GPOOL_ASSERT_SIZE(gpool_oom_info, 428);

/*
 * gpool_oom_info() - report why the calling thread's last allocation was refused for lack of pages, and which sessions
 * hold the pages now.
 *
 * Return: 0, also when no allocation was refused (needed is 0 then); -EINVAL (its size), -ECHILD.
 * Cost: one request to the agent, which looks at all pages. None if size is offsetof(struct gpool_oom_info,
 * holder_count): then only the fields before it are filled. Threads: any.
 */
GPOOL_API int gpool_oom_info(struct gpool *pool, struct gpool_oom_info *shortage);

/* Of the objects that were pinned at the refusal, the one with the most pages. */
struct gpool_oom_object {
	uint32_t size; /* sizeof(struct gpool_oom_object), set by the caller */
	uint32_t pages;
	uint32_t session; /* that pins it most often */
	uint32_t pins;    /* of that session; 0: its GPU work is not over */
	char name[128];
	char session_name[64];
};
GPOOL_ASSERT_SIZE(gpool_oom_object, 208);
/*
 * gpool_oom_object() - report the largest object that was pinned. Return: 0; -ENOENT: no object was pinned;
 * -EINVAL (its size), -ECHILD.
 */
GPOOL_API int gpool_oom_object(struct gpool *pool, struct gpool_oom_object *object);

/*
 * gpool_release_unused() - unmap what the agent wants back for tenants of another trust domain: pages that this process
 * uses no more and still has mapped. Calls that allocate, wait or free while others wait do so by themselves, and
 * gpool_sleep() with all that is not in use; a process that is idle for long without sleeping calls this now and then
 * (it is one load where nothing is wanted), lest its former pages are retired. Return: handles let go, -ECHILD.
 */
GPOOL_API int gpool_release_unused(struct gpool *pool);

/* ---- work: smaller than a page ---- */

/* Part of a page, aligned to 256 bytes. */
struct gpool_span {
	struct gpool_block block; /* the page it lies in; pinned while a span in it lives */
	uint64_t address;
	uint32_t offset;
	uint32_t bytes; /* as rounded up */
};

/*
 * gpool_span_alloc() - 1 byte to half a page, from pages that this process shares among spans of one size class and
 * content.
 * Return: as gpool_alloc(). Cost: a lock within the process [span_alloc, span_free]; the first and the last span of a
 * page also allocate and free the page.
 */
GPOOL_API int gpool_span_alloc(struct gpool *pool, uint64_t bytes, uint32_t content, struct gpool_span *span);
GPOOL_API int gpool_span_free(struct gpool *pool, const struct gpool_span *span);

/* ---- work: streams and fences ---- */

enum {
	/* no GPU stream behind it: the program reaches its fences with gpool_fence_signal() */
	GPOOL_STREAM_HOST_SIGNALED = 1u << 0,
};

/*
 * gpool_stream_open() - a stream whose progress everybody can see. `native`: a CUstream of this process to put fences
 * on, which stays the program's and must outlive gpool_stream_close(), or NULL for one of gpool's own. At most 255 at a
 * time.
 * Return: 0, -EINVAL, -EUSERS (too many), -ENOMEM, -EIO, -EOPNOTSUPP.
 */
GPOOL_API int gpool_stream_open(struct gpool *pool, void *native, uint32_t flags, uint32_t *stream);
/*
 * gpool_stream_native() - the CUstream behind a stream, to queue the program's own work on. It ends with the stream.
 * Return: 0, -EINVAL (not open, or manual), -ECHILD.
 */
GPOOL_API int gpool_stream_native(struct gpool *pool, uint32_t stream, void **native);
/* gpool_stream_close() - waits for its work. */
GPOOL_API void gpool_stream_close(struct gpool *pool, uint32_t stream);

/* gpool_copy(), gpool_fill() - queue on a stream that is not manual. bytes of fill: a multiple of 4. */
GPOOL_API int gpool_copy(struct gpool *pool, uint32_t stream, uint64_t to, uint64_t from, uint64_t bytes);
GPOOL_API int gpool_fill(struct gpool *pool, uint32_t stream, uint64_t to, uint32_t value, uint64_t bytes);

/* gpool_fence_record() - a fence behind all that was queued on `stream` so far. One driver call. */
GPOOL_API int gpool_fence_record(struct gpool *pool, uint32_t stream, struct gpool_fence *fence);
/* gpool_fence_done() - 1 reached, 0 not yet. One load. */
GPOOL_API int gpool_fence_done(struct gpool *pool, struct gpool_fence fence);
/* gpool_fence_wait() - wait on the host: 0, -ETIMEDOUT. gpool_stream_wait() - make a stream wait. */
GPOOL_API int gpool_fence_wait(struct gpool *pool, struct gpool_fence fence, int timeout_ms);
GPOOL_API int gpool_stream_wait(struct gpool *pool, uint32_t stream, struct gpool_fence fence);
/* gpool_fence_signal() - reach a fence of a GPOOL_STREAM_HOST_SIGNALED stream. */
GPOOL_API int gpool_fence_signal(struct gpool *pool, struct gpool_fence fence);

/*
 * gpool_fence_done(), gpool_fence_wait() and gpool_stream_wait() also say, of a fence that was imported:
 *   -ESRCH  its process has died, or detached, before it was reached: what it stands for may not have happened
 *   -EPIPE  the agent is gone, so that nobody would tell of that
 */

/*
 * gpool_free_after() - free a block that the caller has pinned, when a fence is reached. The call does not wait.
 *
 * From this call on the handle is stale and no new pin succeeds. The pages are reused when `fence`, all fences behind
 * which the block was unpinned before, and all other pins are past: by a later call of this process that allocates,
 * frees or waits, or by the agent when it needs pages. The agent also does so while this process sleeps or is stopped.
 * Allocations with this stream in their options may reuse them earlier, in the order of the stream.
 *
 * @fence: behind the last GPU work that uses the block (gpool_fence_record()), or an imported fence; zero, and a fence
 *         that is reached: as gpool_free(). If the process of an imported fence dies, the fence counts as reached here
 *
 * Return: 0, or, and then nothing has changed:
 *   -EINVAL  the block has no pin (use gpool_discard()); not a handle that gpool_alloc() returned; not a fence of this
 *            session
 *   -ESTALE  the block was freed before: of two frees one succeeds
 *   -ECHILD  after fork()
 *
 * Cost: as gpool_free() if the fence is reached; otherwise a lock within the process. No driver call and no request.
 * Threads: any.
 */
GPOOL_API int gpool_free_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);
/*
 * gpool_unpin_after() - end one pin of a block, and protect the block from eviction until a fence is reached. The call
 * does not wait.
 *
 * The pin ends at once, and the block stays allocated: gpool_pin() succeeds as long as it was not evicted. After
 * several such calls with fences of different streams the agent respects all of these fences, also if this process is
 * stopped meanwhile.
 *
 * @fence: as in gpool_free_after(); zero, and a fence that is reached: as gpool_unpin()
 *
 * Return: 0, or, and then the pin remains:
 *   -EINVAL  the block has no pin; not a handle that gpool_alloc() returned; not a fence of this session
 *   -ESTALE  the block was freed or evicted
 *   -ENOMEM  no host memory to note the pin. That is necessary only where the sets of unfinished streams that blocks
 *            wait for use up the session's table of them; the pin then ends in a later call of this process, after the
 *            fence
 *   -ECHILD  after fork()
 *
 * Cost: as gpool_unpin(), with a few atomics more; a lock within the process where the block waits for another stream
 * too. No driver call and no request.
 * Threads: any.
 */
GPOOL_API int gpool_unpin_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);

/* ---- work: fences of other processes ---- */

/*
 * A fence that another process shall wait for is exported here, sent there by whatever way the two have, and imported
 * there, where it is a fence like any other: to be asked, to be waited for, to make a stream wait, to free a block
 * behind it. So an engine may publish pages while a copy to them is still queued, and its readers' streams wait for
 * that copy.
 *
 *	gpool_copy(pool, stream, to, from, bytes);                    an engine ...
 *	gpool_fence_record(pool, stream, &fence);
 *	gpool_fence_export(pool, fence, 0, &handle);                  ... sends the handle
 *
 *	gpool_fence_import(pool, &handle, &fence);                    another one
 *	gpool_stream_wait(pool, stream, fence);
 *	...                                                           it reads; when its stream is done:
 *	gpool_fence_done(pool, fence);                                1, or -ESRCH: the other one died, and what was
 *	read is not to be gpool_fence_close(pool, fence);                               believed
 */
enum gpool_fence_handle_type {
	GPOOL_FENCE_HANDLE_SIGNALED = 1, /* it was reached when it was exported: there is nothing to wait for */
	GPOOL_FENCE_HANDLE_TIMELINE = 2, /* a number in shared memory, for sessions of this pool and trust domain */
	/* an event of the driver: also for sessions of other pools, as far as the driver lets them */
	GPOOL_FENCE_HANDLE_EVENT = 3
};

/* It means nothing any more when the process that made it has ended. */
struct gpool_fence_handle {
	uint32_t way; /* enum gpool_fence_handle_type */
	uint8_t bytes[124];
};
GPOOL_ASSERT_SIZE(gpool_fence_handle, 128);

enum {
	/* by an event, although the timeline can do it: a GPU then waits for it without a processor's help */
	GPOOL_FENCE_EXPORT_EVENT = 1u << 0,
};

/*
 * gpool_fence_export() - a handle of a fence of ours for other processes. By timeline where that can be, else by event.
 *
 * Return: 0, or
 *   -EINVAL      no fence of ours, an imported one, an unknown flag; GPOOL_FENCE_EXPORT_EVENT and a manual stream
 *   -EOPNOTSUPP  GPOOL_FENCE_EXPORT_EVENT, and the device has no events between processes
 *   -EBUSY       256 fences are exported by events and not reached
 *   -EPERM       a session that only reads
 *   -EPIPE       the agent is gone, or does not answer
 *   -EMFILE, -ENOMEM, -EIO, -EPROTO, -ECHILD
 *
 * Cost: one driver call; the first one of a process a question to the agent too.
 */
GPOOL_API int gpool_fence_export(
	struct gpool *pool, struct gpool_fence fence, uint32_t flags, struct gpool_fence_handle *handle);

/*
 * gpool_fence_import() - a fence of another process, as one of ours, until gpool_fence_close(). While such a fence is
 * open and not reached, a thread of the library polls it with exponential backoff (20 us to 1 ms, an eighth of the time
 * waited), which bounds the latency that is added to streams that wait for it.
 *
 * @handle: may come from an untrusted peer: a malformed handle is rejected, a forged one affects only its waiters
 *
 * Return: 0, or
 *   -EINVAL      not the bytes of a handle; one of ours; an event of a handle of this same process
 *   -ESRCH       its process has died, or detached; or by timeline it is of another pool
 *   -EACCES      it is of another trust domain, or its event of a user whose processes ours may not look into
 *   -EUSERS      255 streams, ours and theirs, are in use, or 256 events
 *   -EOPNOTSUPP  an event, and the device has none between processes
 *   -EPERM       a session that only reads
 *   -EPIPE       the agent is gone, or does not answer
 *   -EMFILE, -ENOMEM, -EIO, -EPROTO, -ECHILD
 *
 * Cost: by timeline a lock, and the first time for each process a question to the agent; by event a driver call, and
 * one to open it the first time.
 */
GPOOL_API int gpool_fence_import(
	struct gpool *pool, const struct gpool_fence_handle *handle, struct gpool_fence *fence);

/*
 * gpool_fence_close() - end one import. Streams and blocks that wait behind the fence go on waiting; it is not to be
 * asked about any more. Return: 0, -EINVAL (not an open one), -ECHILD. Of one that was reached when it was imported: 0,
 * and nothing to be done.
 */
GPOOL_API int gpool_fence_close(struct gpool *pool, struct gpool_fence fence);

/* ---- work: scopes ---- */

enum {
	GPOOL_SCOPE_FREE = 1u << 0, /* free at the end instead of unpin */
};

/*
 * A scope pins what is allocated in it and unpins (or frees) all of it at its end: a kernel, a layer's pass, a request.
 * Used by one thread at a time. gpool_scope_end() with a fence lets go when the fence is reached.
 */
struct gpool_scope {
	struct gpool *pool;
	struct gpool_block *blocks;
	uint32_t count, capacity;
	uint32_t content, flags;
};
GPOOL_API int gpool_scope_begin(struct gpool *pool, uint32_t content, uint32_t flags, struct gpool_scope *scope);
GPOOL_API int gpool_scope_alloc(struct gpool_scope *scope, uint32_t page_count,
	const struct gpool_alloc_options *options, struct gpool_block *block);
/*
 * gpool_scope_end() - a second call does nothing. fence NULL: at once. Return: 0, or the first error met; all blocks
 * are let go.
 */
GPOOL_API int gpool_scope_end(struct gpool_scope *scope, const struct gpool_fence *fence);
GPOOL_API void gpool_scope_cleanup(struct gpool_scope *scope);
/* GPOOL_SCOPE(scope); gpool_scope_begin(pool, ..., &scope); ... - ends by itself when the C block does. */
#define GPOOL_SCOPE(variable) \
	struct gpool_scope variable __attribute__((cleanup(gpool_scope_cleanup))) = {0, 0, 0, 0, 0, 0}

/* ---- work: two phases ---- */

/*
 * gpool_prepare() - take pages that nobody sees yet. gpool_commit() - make them a block and store its device address to
 * *entry (an entry of a table that kernels read; may be NULL) in one 8-byte release store; *block becomes the committed
 * block, pinned once. gpool_rollback() - give them back. A process that dies between the two rolls back by dying.
 * Only these two calls take a prepared block; others answer -EINVAL. Return: as gpool_alloc(); -ESTALE: committed or
 * rolled back.
 */
GPOOL_API int gpool_prepare(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block);
GPOOL_API int gpool_commit(struct gpool *pool, struct gpool_block *block, uint64_t *entry);
GPOOL_API int gpool_rollback(struct gpool *pool, const struct gpool_block *block);

/* ---- work: named objects ---- */

/*
 * A named object outlives its writer: allocations and metadata under a name, published in one step and read by any
 * worker of the pool that is of the same trust domain; other domains may use the same name for objects of their own
 * (docs/rights.md). Each publication is a version of its own; who has an older one open keeps it, unchanged, until it
 * closes it.
 *
 * What may become of the pages is declared when the object is made, and all access follows from it:
 */
enum gpool_object_class {
	GPOOL_OBJECT_IMMUTABLE = 0, /* read only for everybody from its publication on, its writer included */
	GPOOL_OBJECT_MUTABLE = 1,   /* its one writer goes on writing; readers read, and see it at once */
	GPOOL_OBJECT_EPHEMERAL = 2, /* as immutable, and may be evicted as a whole while nobody has it open */
	/*
	 * as immutable, and may be evicted as a whole while no session pins it, open or not: gpool_object_pin().
	 * The one with the lowest (uses x cost_us / bytes) is evicted first; uses are pins
	 */
	GPOOL_OBJECT_PINNABLE = 3
};

enum {
	/* GPOOL_OBJECT_PINNABLE: its publisher has it pinned from the first moment on, until gpool_object_unpin() */
	GPOOL_OBJECT_PINNED = 1u << 0,
	/* sessions of other tenants cannot open it; those of its trust domain see its name */
	GPOOL_OBJECT_PRIVATE = 1u << 1,
	/* all tenants of the trust domain may replace and delete it; not with PRIVATE */
	GPOOL_OBJECT_DOMAIN_WRITE = 1u << 2,
};

#define GPOOL_OBJECT_NONE UINT64_MAX /* expect_version: there must be no such object */

struct gpool_object_options {
	uint32_t size;         /* sizeof(struct gpool_object_options); GPOOL_OBJECT_OPTIONS_INIT sets it */
	uint32_t flags;        /* GPOOL_OBJECT_PINNED, _PRIVATE, _DOMAIN_WRITE; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	/* GPOOL_OBJECT_PINNABLE: what it takes to have it again, microseconds, at most a minute; 0: not known */
	uint32_t cost_us;
	/* that this process holds: looked at when it publishes; its holder may adopt the object. NULL: none */
	const char *role;
	uint64_t role_token;     /* fencing token of the role */
	uint64_t expect_version; /* publish only over this version; 0: over whatever is there; GPOOL_OBJECT_NONE */
};
GPOOL_ASSERT_SIZE(gpool_object_options, 40);
#define GPOOL_OBJECT_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_object_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_object_create() - begin an object of this name, at most 127 bytes. All until gpool_object_publish() is this
 * process's own: nobody sees it, and it goes when the process ends. One thread at a time until then; afterwards any.
 * Return: 0, -EINVAL (name, flag, PRIVATE with DOMAIN_WRITE, class), -E2BIG, -EPERM (a session that only reads),
 * -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_object_create(
	struct gpool *pool, const char *name, const struct gpool_object_options *options, struct gpool_object **object);

/*
 * gpool_object_alloc() - a further allocation, as gpool_alloc() with these options; *index counts from 0. It is a block
 * of this process, pinned until it is published. (As any pin it needs to be in use: every call for the object refreshes
 * them all.)
 * Return: as gpool_alloc(); -EINVAL: it is published, or GPOOL_ALLOC_SPILL is asked for.
 */
GPOOL_API int gpool_object_alloc(
	struct gpool_object *object, uint32_t page_count, const struct gpool_alloc_options *options, uint32_t *index);

/*
 * gpool_object_set() - metadata: any bytes under a key, a text of 1 to 1,023 bytes. A second value for a key replaces
 * the first. All metadata of an object may have 64 MiB. Return: 0, -EINVAL, -ENOMEM, -EFBIG.
 */
GPOOL_API int gpool_object_set(struct gpool_object *object, const char *key, const void *value, size_t bytes);

/*
 * gpool_object_publish() - one step: from now on the name means this, whole. The object stays open, so that its
 * addresses stay valid, but only a mutable one can be written any more; GPU work that writes to it must be done before.
 *
 * Return: 0, or, and then it is as before and may be published again or aborted:
 *   -ESTALE  another version is current than expected; the role's token is not good any more; a pin was lost to
 *            pins.leaked
 *   -EPERM   the name belongs to another tenant, or is one of the library's own, such as lora/... (docs/rights.md)
 *   -EBUSY   queued GPU work still uses it and could write to it
 *   -EINVAL  published already, or without an allocation
 *   -EUSERS  as many versions of objects are there as the pool may have (`objects` of its configuration)
 *   -ENOSPC  the metadata of all objects together is too large (1 GiB)
 *   -EFBIG   the metadata of this one is too large
 *   -ENOMEM, -EMFILE
 *   -EPIPE   the session is over
 *   -ECHILD  after fork()
 *
 * Cost: one question to the agent, whatever the number of allocations.
 */
GPOOL_API int gpool_object_publish(struct gpool_object *object, uint64_t *version);

/* gpool_object_abort() - end one that is not published; its pages are idle again. NULL is fine. */
GPOOL_API void gpool_object_abort(struct gpool_object *object);

enum {
	/* become the writer of a mutable object whose writer is gone; takes the object's role */
	GPOOL_OBJECT_ADOPT = 1u << 0,
};

struct gpool_object_open_options {
	uint32_t size;        /* sizeof(struct gpool_object_open_options); GPOOL_OBJECT_OPEN_OPTIONS_INIT sets it */
	uint32_t flags;       /* GPOOL_OBJECT_ADOPT; an unknown bit is -EINVAL */
	uint64_t version;     /* 0: the current one */
	uint64_t layout_hash; /* that it must have; 0: any */
	const char *role;     /* that this process holds; NULL: none */
	uint64_t role_token;
};
GPOOL_ASSERT_SIZE(gpool_object_open_options, 40);
#define GPOOL_OBJECT_OPEN_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_object_open_options), 0, 0, 0, 0, 0 \
	}

/*
 * gpool_object_open() - map a version, read only unless this process is its writer. It stays as it is until
 * gpool_object_close(), whatever is published or deleted meanwhile; one of class GPOOL_OBJECT_PINNABLE while it is
 * pinned.
 *
 * Return: 0, or
 *   -EINVAL  name, flag, ADOPT without a role or of an object that is not mutable
 *   -ENOENT  no object of this name, or not this version
 *   -EPROTO  another layout hash
 *   -ESTALE  the role's token is not good (any more)
 *   -EBUSY   ADOPT, and another process is its writer
 *   -EACCES  of another tenant alone
 *   -EPERM   ADOPT with another role than the object's; or a session that only reads
 *   -ENOMEM, -EMFILE, -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one question to the agent, whatever the number of allocations, and one mapping for each page.
 */
GPOOL_API int gpool_object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_object **object);

/*
 * gpool_object_close() - its addresses end. Closing the last handle of a mutable object ends this process's right to
 * write it; one that is not published is aborted. NULL is fine. Return: 0, -EBUSY (queued GPU work still uses it: it
 * stays open), -ECHILD.
 */
GPOOL_API int gpool_object_close(struct gpool_object *object);

/*
 * gpool_object_pin() - an open version of class GPOOL_OBJECT_PINNABLE stays, with its content at its addresses, until
 * gpool_object_unpin() was called as often. For what is used now and then and can be had again, like adapters: it stays
 * mapped between two uses, costs nothing to use again, and makes room for others meanwhile. The publisher pins, too.
 *
 * gpool_object_unpin_after() - lets go when the fence is reached, without waiting; then its work may still read.
 *
 * Return: 0, or
 *   -ESTALE     it was evicted, or its name means another version by now: close it, and open the name or publish it
 *               again
 *   -EINVAL     of another class, not published, not pinned, or no such fence
 *   -ETIMEDOUT  pin: being looked at for longer than pin_timeout; try again
 *   -ENOMEM     unpin_after: it stays pinned
 *   -ECHILD
 *
 * Threads: any. Cost: one atomic operation and no system call. Source: shm/pins.h.
 */
GPOOL_API int gpool_object_pin(struct gpool_object *object);
GPOOL_API int gpool_object_unpin(struct gpool_object *object);
GPOOL_API int gpool_object_unpin_after(struct gpool_object *object, struct gpool_fence fence);

/*
 * gpool_object_address() - of an allocation, and its size: contiguous bytes, valid until the object is closed. -EINVAL:
 * no such one.
 */
GPOOL_API int gpool_object_address(struct gpool_object *object, uint32_t index, uint64_t *address, uint64_t *bytes);

/*
 * gpool_object_get() - a value of a published object, aligned to 8 and valid until it is closed. -ENOENT: no such key.
 */
GPOOL_API int gpool_object_get(struct gpool_object *object, const char *key, const void **value, size_t *bytes);

/*
 * gpool_object_entry() - the index-th entry in order of the keys, each of which ends with a NUL. -ENOENT: there are not
 * so many.
 */
GPOOL_API int gpool_object_entry(
	struct gpool_object *object, uint32_t index, const char **key, const void **value, size_t *bytes);

/*
 * gpool_object_delete() - the name is gone at once, the pages with their last reader. Whoever may publish over it may
 * delete it, and so may admins, who name the version where several trust domains have such a name. version 0: the
 * current one. Return: 0, -ENOENT, -ESTALE (another version is current), -EPERM, -EINVAL (name; an admin's name of
 * several trust domains without a version), -ETIMEDOUT (no answer within 10 s; it may be deleted all the same), -EPIPE,
 * -ECHILD.
 */
GPOOL_API int gpool_object_delete(struct gpool *pool, const char *name, uint64_t version);

enum gpool_object_state { GPOOL_OBJECT_CURRENT = 2, GPOOL_OBJECT_OLD = 3, GPOOL_OBJECT_DELETED = 4 };

struct gpool_object_info {
	uint32_t size;         /* sizeof(struct gpool_object_info), set by the caller */
	uint32_t number;       /* owner in the page table */
	uint32_t state;        /* enum gpool_object_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t pages, allocations;
	uint32_t readers; /* sessions that have it open */
	uint32_t writer;  /* session that may write it; 0: none */
	uint64_t version;
	uint64_t layout_hash; /* of allocation sizes and metadata; contents do not enter */
	uint64_t metadata_bytes;
	uint64_t published_ms; /* wall clock */
	uint32_t uid, pid;     /* of who published it */
	char name[128];
	char tenant[64];
	char role[64];
};
GPOOL_ASSERT_SIZE(gpool_object_info, 328);

/*
 * gpool_object_info() - of one that is published. -EINVAL: it is not; or its size. -ESTALE: GPOOL_OBJECT_PINNABLE, and
 * it was evicted.
 */
GPOOL_API int gpool_object_info(struct gpool_object *object, struct gpool_object_info *info);

/*
 * gpool_object_next() - the next version of any object of this session's trust domain, of all domains for an observer
 * or admin; *cursor is 0 at first. Out of the shared table, without a question to the agent.
 * Return: 0, -ENOENT (that was all), -EINVAL, -ECHILD.
 */
GPOOL_API int gpool_object_next(struct gpool *pool, uint32_t *cursor, struct gpool_object_info *info);

/* ---- work: loans ---- */

/*
 * A pin for code that knows nothing of gpool and ends it with one argument: whoever gives it memory as a tensor
 * (DLPack) also gives it a function to call when it is done, and the address of the tensor's description to call it
 * with. The loan lies right in front of that.
 *
 *	struct { struct gpool_loan loan; struct DLManagedTensorVersioned tensor; } *lent = ...;
 *	lent->loan = (struct gpool_loan){ pool, NULL, block, 0, 0 };      a block that is pinned once more for it
 *	lent->tensor.deleter = (void (*)(struct DLManagedTensorVersioned *))gpool_loan_end;
 *
 * The memory of both stays the lender's, who frees it when `ended` is not 0 any more, and closes neither pool nor
 * object before.
 */
struct gpool_loan {
	struct gpool *pool;
	struct gpool_object *object; /* of class GPOOL_OBJECT_PINNABLE, pinned once for this; or NULL */
	struct gpool_block block;    /* pinned once for this; page_count 0: none */
	uint32_t stream;             /* the pin ends behind what is queued there by then; 0: at once */
	uint32_t ended;              /* 0; gpool_loan_end() makes it 1, last of all */
};
GPOOL_ASSERT_SIZE(gpool_loan, 48);

/*
 * gpool_loan_end() - end the pin of the loan that ends where `behind` begins. Once. Where the fence for it cannot be
 * made, memory being short, it waits for the stream. Threads: any. Cost: gpool_unpin(), with a stream a driver call
 * more.
 */
GPOOL_API void gpool_loan_end(void *behind);

/* ---- work: ranges ---- */

/*
 * A range has addresses of its own, in a row, which it keeps from its creation to its end; the pages behind it may lie
 * anywhere in the pool. An engine that has nothing to do puts itself to sleep: all ranges of the handle give their
 * pages back, and have them again, at the same addresses, when it wakes. What becomes of the content the class says:
 *
 *   GPOOL_OBJECT_IMMUTABLE  it is published as a named object by the first sleep, and read only from then on; waking
 *                           opens that version
 *   GPOOL_OBJECT_MUTABLE    it is spilled (gpoold.conf(5), spill_memory), and comes back
 *   GPOOL_OBJECT_EPHEMERAL  it is dropped, and undefined after waking
 *
 * Blocks, scopes and spans are not ranges: what is pinned stays pinned and in the pool while the process sleeps.
 */
struct gpool_range;

struct gpool_range_options {
	uint32_t size;         /* sizeof(struct gpool_range_options); GPOOL_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* none yet; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t content;      /* enum gpool_usage */
	const char *name;      /* immutable: of the object as which it is kept, at most 127 bytes; others: NULL */
	uint64_t owner_id;     /* what tools show; free to choose */
	int32_t timeout_ms;    /* longest wait for pages; 0: none, -1: no limit (49 days) */
	uint32_t reserved;     /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_range_options, 40);
#define GPOOL_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_range_options), 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_range_create() - addresses for `page_count` pages, and the pages, with one request for all. options NULL:
 * mutable, KV_CACHE. No pin of a range is ever called leaked (pins.max_duration).
 *
 * Return: 0, or
 *   -EINVAL  page_count, an unknown flag, class or content; a name that an immutable range lacks or another has
 *   -EBUSY   this handle sleeps
 *   -ENOSPC, -EDQUOT, -EPERM, -ENOMEM, -EPIPE, -ECHILD  as gpool_alloc()
 *   -E2BIG
 *
 * Cost: one request to the agent, a mapping for each handle (a page, unless handles hold several) and one access call.
 */
GPOOL_API int gpool_range_create(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_open() - a range over the pages of an immutable object, its allocations one behind the other, read only.
 * Asleep the object is closed, and waking opens the same version. options: as gpool_object_open(), without flags and
 * role.
 * Return: as gpool_object_open(); -EINVAL: it is not immutable; -EBUSY: this handle sleeps; -EOPNOTSUPP: handles hold
 * several pages, and the object's do not fill them, so that they cannot be put in a row.
 */
GPOOL_API int gpool_range_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_range **range);

/*
 * gpool_range_destroy() - its addresses end, awake or asleep; waits for work queued on this handle's streams. What was
 * published stays. NULL is fine. Return: 0, -EBUSY (GPU work that the program queued elsewhere still uses it: it
 * stays), -EIO, -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_range_destroy(struct gpool_range *range);

/* gpool_range_address() - of its first byte: the same for its whole life. */
GPOOL_API int gpool_range_address(const struct gpool_range *range, uint64_t *address);

enum gpool_range_state { GPOOL_RANGE_AWAKE = 1, GPOOL_RANGE_ASLEEP = 2 };

struct gpool_range_info {
	uint32_t size;         /* sizeof(struct gpool_range_info), set by the caller */
	uint32_t state;        /* enum gpool_range_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t page_count;
	uint64_t address, bytes;
	uint64_t version;         /* of the object as which it is kept; 0: it is not */
	uint64_t layout_hash;     /* of that */
	char name[128];           /* likewise */
	uint32_t committed_pages; /* all of them, but for an elastic range */
	/* mapped and used by no GPU work any more; those that the agent has taken meanwhile included */
	uint32_t reclaimable_pages;
	uint32_t captured_pages;
	uint32_t handle_pages;  /* pages that are mapped together: 1, unless they are smaller than what the GPU maps */
	uint32_t offered_pages; /* of the backed ones; those that the agent has taken meanwhile included */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_range_info, 200);

/* gpool_range_info() - waits while the handle goes to sleep or wakes. Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_range_info(struct gpool_range *range, struct gpool_range_info *info);

/* ---- work: elastic ranges ---- */

/*
 * gpool_range_reserve() - addresses for `page_count` pages, and no page. Single pages are backed and unbacked while the
 * addresses stay, so that a tensor keeps its base address while its memory grows and shrinks. page_count may be larger
 * than the pool. Class and content of the options count, as in gpool_range_create(), but an immutable range cannot be
 * elastic; timeout_ms is 0. options NULL: mutable, KV_CACHE.
 *
 * Asleep what is backed at that time is spilled or dropped, by class, and backed again by waking. Calls of this section
 * answer -EBUSY then.
 *
 * Return: 0, -EINVAL, -EBUSY (this handle sleeps), -ENOMEM (no such addresses), -EPERM (a session that only reads),
 * -E2BIG, -ECHILD.
 */
GPOOL_API int gpool_range_reserve(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_commit() - pages [first, first + count) of an elastic range have memory when this returns; those that had
 * any keep it, and its content. What the others contain is undefined. All or nothing.
 *
 * What was unbacked is reclaimable: idle, so that anybody may take it, and mapped all the same. What nobody has taken
 * is backed again without any call. Where pages are smaller than what the GPU maps (gpool_range_info, handle_pages), a
 * page brings along its neighbours' memory.
 *
 * Return: 0, or
 *   -EINVAL  not an elastic range, or not so many pages; timeout_ms below -1
 *   -EBUSY   another thread backs a page there at the same time; GPU work is queued at addresses that were unbacked
 *            without its fence, and whose memory went elsewhere; this handle sleeps
 *   -ENOSPC, -EDQUOT  not so many pages to be had (in time); gpool_oom_info() says more
 *   -ENOMEM  the driver could not map them
 *   -EPIPE, -ECHILD
 *
 * Threads: any. Cost: no driver call for reclaimable pages [range_commit_reclaimable]. For the rest one request to the
 * agent (none where this process has idle pages that are mapped nowhere), a mapping for each handle and one access call
 * for
 * each
 * run of them [range_commit_new].
 */
GPOOL_API int gpool_range_commit(struct gpool_range *range, uint32_t first, uint32_t count, int timeout_ms);

/*
 * gpool_range_decommit() - those of pages [first, first + count) that are backed are not any more, and their content is
 * gone. fence: behind the last GPU work that uses them (gpool_fence_record()); zero: there is none left. Until it is
 * reached the memory stays: nothing is ever unmapped under queued work. Nobody waits: backed again at once, they are
 * the same memory, in the order that the program gives its own work.
 *
 * Return: 0, -EINVAL (as gpool_range_commit(), or a fence that no stream has recorded), -EBUSY (this handle sleeps),
 * -ENOMEM (nothing has changed), -ECHILD. Cost: no driver call [range_decommit].
 */
GPOOL_API int gpool_range_decommit(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_capture() - captured 1: the addresses of these backed pages stand in a captured graph, or anywhere else
 * where they are used without anybody asking; 0: not any more. From the one to the other they stay mapped to the same
 * memory, backed or not, unless the handle sleeps; after waking they are mapped again. Return: 0, -EINVAL (a page is
 * not backed; as above), -EBUSY (sleeps), -ECHILD.
 */
GPOOL_API int gpool_range_capture(struct gpool_range *range, uint32_t first, uint32_t count, int captured);

/*
 * gpool_range_offer() - let the agent have backed pages [first, first + count) of an elastic range when it needs them,
 * and keep their content until then. They stay backed and mapped. Use gpool_range_reclaim() before anything reads or
 * writes them again: the agent may take an offered page at any time, without asking, in the order of eviction, as it
 * does with unpinned blocks.
 *
 * fence: behind the last GPU work that uses the pages (gpool_fence_record()); zero: there is none left. The agent does
 * not take a page before its fence is reached, and may do so from then on, whatever this process does. Offered pages
 * may be offered again: then all fences have to be reached. gpool_range_commit() also ends an offer, and brings other
 * memory for a page that was taken, without reporting the loss: call gpool_range_reclaim() first where content matters.
 * Sleep (gpool_sleep()) drops the content of offered pages.
 *
 * Return: 0, or
 *   -EINVAL  not an elastic range, or not so many pages; a page is not backed, or captured; pages are smaller than what
 *            the GPU maps (gpool_range_info, handle_pages) and the call does not cover whole handles; a fence that no
 *            stream has recorded
 *   -EBUSY   this handle sleeps
 *   -ENOMEM  more than 4,096 different sets of unfinished streams use pages; none of the pages is offered
 *   -ECHILD
 *
 * Threads: any. Cost: no driver call and no request [range_offer, range_offer_one].
 */
GPOOL_API int gpool_range_offer(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_reclaim() - have offered pages [first, first + count) back, and learn which of them have kept their
 * content.
 *
 * kept: [count] 1: page first + i is backed, has its content and is not taken any more; 0: it is not backed, since the
 * agent has taken it or it never was; gpool_range_commit() brings another page. NULL: not wanted. A page that is backed
 * and was not offered counts as kept.
 *
 * Return: how many pages are not kept, or -EINVAL (as gpool_range_commit()), -EBUSY (this handle sleeps), -ECHILD.
 * Threads: any. Cost: as gpool_range_offer() [range_reclaim, range_reclaim_one]. Waits while the agent examines a page
 * for eviction, which is a part of the eviction of one page [evict].
 */
GPOOL_API int gpool_range_reclaim(struct gpool_range *range, uint32_t first, uint32_t count, uint8_t *kept);

enum gpool_page_state {
	GPOOL_PAGE_HOLE = 0,        /* no memory, or memory that is somebody else's by now */
	GPOOL_PAGE_RECLAIMABLE = 1, /* not backed, and its memory is still there */
	GPOOL_PAGE_COMMITTED = 2,
};

enum {
	GPOOL_PAGE_CAPTURED = 1u << 0,
	GPOOL_PAGE_OFFERED = 1u << 1,
};

struct gpool_range_page {
	uint32_t size;       /* sizeof(struct gpool_range_page), set by the caller */
	uint32_t state;      /* enum gpool_page_state */
	uint32_t page;       /* in the pool; UINT32_MAX: a hole */
	uint32_t flags;      /* GPOOL_PAGE_* */
	uint64_t generation; /* of that page: another one means that it was somebody else's meanwhile */
	uint64_t address;    /* of its first byte */
};
GPOOL_ASSERT_SIZE(gpool_range_page, 32);

/*
 * gpool_range_resolve() - what lies behind a page of an elastic range. Return: 0, -EINVAL (likewise; its size), -EBUSY
 * (sleeps), -ECHILD.
 */
GPOOL_API int gpool_range_resolve(struct gpool_range *range, uint32_t index, struct gpool_range_page *page);

/* ---- work: elastic tensors ---- */

/*
 * An elastic range cut into equal slices, one for each layer and for K and V, say. Block i of every slice is backed
 * together, so one call grows all of them and one shrinks all of them. Block i of slice s lies at address + s *
 * slice_bytes + i * block_bytes, always.
 */
struct gpool_sliced_range;

struct gpool_sliced_range_options {
	uint32_t size;         /* sizeof(struct gpool_sliced_range_options); GPOOL_SLICED_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* none yet; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class: mutable or ephemeral */
	uint32_t content;      /* enum gpool_usage */
	uint64_t owner_id;     /* what tools show; free to choose */
	/* blocks beyond those that are backed which a thread of this library brings to hand; 0: none, and no thread */
	uint32_t read_ahead;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_options, 32);
#define GPOOL_SLICED_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_sliced_range_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_sliced_range_create() - addresses for `slices` slices of `blocks` blocks of `block_pages` pages, and no page.
 * options
 * NULL: mutable, KV_CACHE, without reading ahead. What is at hand is mapped, and others may have it whenever they need
 * pages, without asking.
 * Return: as gpool_range_reserve(); -EINVAL: also a shape of no or of more than 2^32 pages; -ENOMEM: also no thread.
 */
GPOOL_API int gpool_sliced_range_create(struct gpool *pool, uint32_t slices, uint32_t blocks, uint32_t block_pages,
	const struct gpool_sliced_range_options *options, struct gpool_sliced_range **tensor);

/* gpool_sliced_range_destroy() - as gpool_range_destroy(). NULL is fine. */
GPOOL_API int gpool_sliced_range_destroy(struct gpool_sliced_range *tensor);

/*
 * gpool_sliced_range_grow() - the first `blocks` blocks of every slice are backed when this returns, or as many as
 * before, when it fails. Those that were keep their content. So many already: 0. Return: as gpool_range_commit();
 * -EINVAL: the slices have not so many blocks.
 *
 * Threads: any; one call at a time grows or shrinks a tensor. Cost: no driver call within what is at hand
 * [tensor_grow_ahead]; beyond that one request to the agent, a mapping for each handle and an access call for each
 * slice [tensor_grow].
 */
GPOOL_API int gpool_sliced_range_grow(struct gpool_sliced_range *tensor, uint32_t blocks, int timeout_ms);

/*
 * gpool_sliced_range_shrink() - no more than the first `blocks` blocks are backed: as gpool_range_decommit() for the
 * others. So few already: 0.
 */
GPOOL_API int gpool_sliced_range_shrink(struct gpool_sliced_range *tensor, uint32_t blocks, struct gpool_fence fence);

struct gpool_sliced_range_info {
	uint32_t size; /* sizeof(struct gpool_sliced_range_info), set by the caller */
	uint32_t slices, blocks, block_pages;
	uint32_t backed; /* blocks */
	uint32_t ready;  /* those at hand behind them included, as far as is known */
	uint64_t address;
	uint64_t slice_bytes; /* from one slice to the next */
	uint64_t block_bytes;
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_info, 48);

/* gpool_sliced_range_info() - Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_sliced_range_info(struct gpool_sliced_range *tensor, struct gpool_sliced_range_info *info);

/* ---- work: sleep and wake ---- */

/*
 * gpool_sleep() - all ranges of this handle give their pages back. All or nothing: on failure all of them are mapped
 * and whole as before; only what was published for it stays published, and read only. Asleep already: 0.
 *
 * It waits for the work on this handle's streams; what else the program has queued on a GPU must be done, and no thread
 * may use an address of a range until gpool_wake(). A manual stream is not waited for, and a stream that waits for one
 * must be able to go on. When the process ends asleep, what was spilled is freed; objects live on.
 *
 * Return: 0, or
 *   -EINVAL      flags other than 0
 *   -EBUSY       queued GPU work uses a range; a thread waits for pages of an elastic one
 *   -ENOSPC      no room to spill all mutable ranges, or a table of objects is full
 *   -EOPNOTSUPP  mutable ranges, and the pool keeps no spilled content
 *   -EIO         spilling failed (a full disk, or no mover serves the pool: gpoold.conf(5), mover.patience); the GPU
 *                driver
 *   -EUSERS, -EMFILE  as gpool_object_publish()
 *   -ENOMEM      out of memory; if a range could then not be mapped again, gpool_asleep() says 1, and gpool_wake()
 *                tries again
 *   -EPERM       a session that only reads
 *   -EPIPE       the agent is gone; what is spilled is unknown
 *   -ECHILD
 *
 * Cost: an unmap call for each range, one request to the agent; for immutable and mutable ranges their publication and
 * their copying. Where the pool tells trust domains apart, also an unmapping of each handle that is not used any more,
 * and its import on waking.
 */
GPOOL_API int gpool_sleep(struct gpool *pool, uint32_t flags);

/*
 * gpool_wake() - all ranges have pages again, at the same addresses, with their contents. All pages are granted in one
 * step, so it cannot run out half-way, and processes that wake at the same time do not wait for each other's. On
 * failure all is as before: asleep, nothing lost, no page held. Awake already: 0. timeout_ms: longest wait for pages;
 * 0: none, -1: no limit.
 *
 * Return: 0, or
 *   -ENOSPC  not so many pages to be had (in time); gpool_oom_info() says more
 *   -EDQUOT  the tenant's limit or this process's quota
 *   -ESTALE  an object is not there any more in the version that went to sleep
 *   -EIO     spilled content cannot be read back (no mover serves the pool, for one). It is kept, and may be tried
 *            again; when all mutable ranges are destroyed, the others wake
 *   -ENOMEM  pages could not be mapped
 *   -EINVAL, -EPERM, -EMFILE, -EPIPE, -ECHILD
 *
 * Cost: one request to the agent for pages and two for content, a mapping for each handle, one access call for each
 * range.
 */
GPOOL_API int gpool_wake(struct gpool *pool, int timeout_ms);

/* gpool_asleep() - 1 after gpool_sleep(), 0 after gpool_wake(), -ECHILD. */
GPOOL_API int gpool_asleep(struct gpool *pool);

/* ---- work: stream-ordered memory ---- */

/*
 * gpool_malloc_async() and gpool_free_async() are for memory that lives from one point of a stream to another: what one
 * frees in a stream, the same stream may have again at once, without anybody waiting for the GPU. Addresses are this
 * process's
 * own, in ranges that are reserved once; pages come from the pool. When no free place is long enough, pages that are
 * free in several places are mapped side by side in a new one: nothing is copied, and free memory can always be had in
 * one piece. gpool(7) tells how.
 *
 * Sizes are rounded up to pages of this allocator ("VPMM pages": a handle of the pool, or a multiple); what is at most
 * half a page of the pool shares pages (enum gpool_vm_small).
 */

enum gpool_vm_small {
	/* parts of pages of the pool, kept in the order of streams; a whole page when there is no other */
	GPOOL_VM_SMALL_SPANS = 0,
	GPOOL_VM_SMALL_DRIVER = 1, /* the driver's own stream-ordered pool, where it has one */
	GPOOL_VM_SMALL_PAGES = 2   /* whole pages, as for larger ones */
};

struct gpool_vm_options {
	uint32_t size;  /* sizeof(struct gpool_vm_options); GPOOL_VM_OPTIONS_INIT sets it */
	uint32_t flags; /* none yet; an unknown bit is -EINVAL */
	/* of a VPMM page: a multiple of the pool's handle; 0: $GPOOL_VM_PAGE_SIZE, else one handle */
	uint64_t page_bytes;
	/* to begin with, free in the stream of the first call; 0: $GPOOL_VM_PAGES pages, else none */
	uint64_t initial_bytes;
	/* to reserve at a time; 0: $GPOOL_VM_VA_SIZE, else 8 TB, or less where a process cannot have so many */
	uint64_t address_bytes;
	uint32_t small;   /* enum gpool_vm_small */
	uint32_t content; /* enum gpool_usage, as tools show it */
	/* longest wait for pages, and of calls without a stream for the GPU; 0: none, -1: no limit */
	int32_t timeout_ms;
	/*
	 * through options.log of gpool_open(), level 3. 1: steps that call the driver or the agent, 2: all, 3: and the
	 * regions after each call; 0: $GPOOL_VM_TRACE, else none
	 */
	uint32_t trace;
	/* a new file, to which all calls are recorded (gpool-replay(1)); NULL: $GPOOL_VM_RECORD, else none */
	const char *record_path;
	/* what lies unused for so long the agent may take; 0: 1000, -1: it may not, but under pressure */
	int32_t idle_ms;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_vm_options, 64);
#define GPOOL_VM_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_vm_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_vm_configure() - before this handle's first gpool_malloc_async(). Without it the defaults hold. Sizes in the
 * environment are bytes, or have a suffix: K, M, G or T, each with or without "B" or "iB" (all powers of two).
 * Return: 0, -EINVAL (a field out of range, a variable that is no size), -EBUSY (too late), -E2BIG, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_configure(struct gpool *pool, const struct gpool_vm_options *options);

/*
 * gpool_malloc_async() - `bytes` of memory for work that is queued on a stream from now on.
 *
 * @stream:  from gpool_stream_open(). 0: for work that the caller starts by itself after this call returns, wherever;
 *           then only memory that the GPU has done with is given, and for lack of that the call waits on the host
 * @address: receives the device address: where the GPU's smallest mapping can begin, of a small one a multiple of 256
 * bytes
 *
 * Looks in this order: the best fit among what was freed in this stream, whether the GPU has done with it or not; the
 * best fit among what it has done with, in any stream; a new place, to which free pages are mapped, this stream's
 * first, then what the GPU has done with, oldest first, and new ones from the agent. When that has none, or is short of
 * them, also what other streams have freed and are not done with, for which this stream is made to wait on the GPU. On
 * failure all is as it was, to the region.
 *
 * Return: 0, or
 *   -EINVAL  bytes is 0; no open stream has that number; the first call: a variable of the environment that is no size
 *   -ENOSPC  the pool has no pages (in time); gpool_oom_info() says more
 *   -EDQUOT  the tenant's limit or this process's quota
 *   -ENOMEM  host memory, or addresses, or pages could not be mapped
 *   -EIO     the driver failed, or the record file cannot be made (first call)
 *   -EPIPE   the agent is gone, and what is free here is not enough
 *   -EPERM   a session that only reads
 *   -EOPNOTSUPP  GPOOL_VM_SMALL_DRIVER, and the device has no such pool (first call)
 *   -ECHILD
 *
 * Threads: any; calls in different streams do not wait for each other's driver calls.
 * Cost:    no driver call where a free place fits, as it does in the steady state [vpmm_steady_pair]. Else a map call
 *          for each handle and one access call.
 */
GPOOL_API int gpool_malloc_async(struct gpool *pool, uint64_t bytes, uint32_t stream, uint64_t *address);

/*
 * gpool_free_async() - an allocation ends behind all work that is queued on `stream` by now. The caller sees to it that
 * work on other streams that uses it is done, or that `stream` waits for it.
 *
 * @stream: 0, or one that is closed: all work is done
 *
 * Return: 0, or
 *   -EINVAL  not an address that gpool_malloc_async() gives, or a stream that never was
 *   -ESTALE  no allocation begins there: it was freed already
 *   -ENOMEM  host memory for what a stream that is new here frees; a small one is still allocated
 *   -EPERM, -ECHILD
 *
 * Cost: no driver call while one stream is in use [vpmm_steady_pair]. With several: one fence, recorded before any lock
 * is taken [vpmm_steady_two_streams].
 */
GPOOL_API int gpool_free_async(struct gpool *pool, uint64_t address, uint32_t stream);

/*
 * gpool_trim_to() - what is free and done with goes back to the agent, the longest free first, but for so many bytes.
 * It stays mapped, and is had again without a driver call unless somebody else has got the pages. Return: the bytes
 * given back, -EPERM, -ECHILD. The library does the same under pressure and with what lies unused (idle_ms).
 */
GPOOL_API int64_t gpool_trim_to(struct gpool *pool, uint64_t keep_bytes);

/*
 * gpool_vm_capture() - 1: the addresses of this allocation stay mapped to the same pages until 0, as a captured graph
 * needs it: when it is freed meanwhile, it is only free when that ends. 0: that ends. Whole pages only.
 * Return: 0, -EINVAL (not an address of whole pages, captured neither 0 nor 1), -ESTALE, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_capture(struct gpool *pool, uint64_t address, int captured);

struct gpool_vm_stats {
	uint32_t size; /* sizeof(struct gpool_vm_stats), set by the caller */
	uint32_t reserved;
	uint64_t page_bytes;     /* of a VPMM page; 0: gpool_malloc_async() was not called yet */
	uint64_t reserved_bytes; /* addresses: live, reusable, holes and pending unmaps */
	uint64_t mapped_bytes;   /* of those: with pages behind them; all but holes */
	uint64_t live_bytes;     /* allocated */
	uint64_t reusable_bytes; /* free. live and reusable together are the pages that this allocator has */
	uint64_t hole_bytes;     /* nothing is mapped */
	/* old places of pages that are mapped elsewhere, until the GPU has done with them */
	uint64_t pending_unmap_bytes;
	uint64_t reclaimable_bytes; /* of the reusable ones: those that the agent may take */
	uint64_t small_bytes;       /* allocated as parts of pages; in none of the above */
	uint64_t live_regions, reusable_regions, hole_regions, pending_unmap_regions;
	uint64_t allocations, frees; /* calls that succeeded, small ones too */
	uint64_t remaps;             /* allocations for which free pages were mapped to a new place ... */
	uint64_t remapped_bytes;     /* ... and how much of them */
	uint64_t taken_bytes;        /* from the agent */
	uint64_t waits;              /* how often a stream was made to wait for another */
	uint64_t records_lost;       /* calls that could not be recorded (record_path) */
};
GPOOL_ASSERT_SIZE(gpool_vm_stats, 168);

/* gpool_vm_stats() - Return: 0, -EINVAL (its size), -EPERM, -ECHILD. */
GPOOL_API int gpool_vm_stats(struct gpool *pool, struct gpool_vm_stats *totals);

/*
 * gpool_vm_dump() - every region in ascending order. First in short, a line for each reservation, by pages:
 *   [+10][1][-5][*4][#100]   allocated by the last call, allocated, free, pending unmap, hole
 * then a line for each region with its address, pages, kind, stream, age and fence. `line` is called without a lock
 * held.
 * Return: the number of regions, -ENOMEM, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_dump(struct gpool *pool, void (*line)(void *context, const char *text), void *context);

/* ---- work: paged KV caches ---- */

/*
 * A paged KV cache keeps the keys and values of tokens in blocks of one size, and for each sequence a table of its
 * blocks. It has one range of addresses for its whole life, in which block i always has the same address:
 *
 *   address + i / chunk_blocks * chunk_bytes + i % chunk_blocks * block_bytes        (struct gpool_kv_layout)
 *
 * so kernels take that and the tables, and nothing else. A chunk is what it takes from the pool and gives back at once:
 * one handle with several blocks, or several with one block. It has memory from its first block in use to its last;
 * then that is reclaimable, for anybody to take. Blocks with the lowest numbers come first: of those whose chunk has
 * memory, then of chunks that get some.
 *
 * All GPU work with a cache is in the order of its one stream, or made to wait for it by the program
 * (gpool_stream_wait()): a block that is freed may be another sequence's at once, copies are queued there, and memory
 * is given back behind what is queued there by then.
 *
 * Sequences are numbers, good for this cache only. Calls may be made by any thread; but the tokens of one sequence are
 * in the order of the calls that append them, so who appends to it from several threads does not know whose slots are
 * whose neighbours.
 */
struct gpool_kv;

/*
 * What a block holds: keys and values of block_tokens tokens, 2 * layers * kv_heads * head_size * dtype_bytes bytes for
 * each.
 */
struct gpool_kv_shape {
	uint32_t layers, kv_heads, head_size;
	uint32_t dtype_bytes;  /* of an element: 1, 2, 4 or 8 */
	uint32_t block_tokens; /* a power of two up to 1,024; 0: 16 */
};
GPOOL_ASSERT_SIZE(gpool_kv_shape, 20);

enum {
	/* gpool_sleep() spills what sequences have, and waking brings it back; without it it is dropped */
	GPOOL_KV_KEEP = 1u << 0,
	/* blocks can be published, and found again by their tokens: gpool_kv_prefix_publish() */
	GPOOL_KV_PREFIXES = 1u << 1,
	/* with it: evict by what was learned of the texts; at most 256 bytes for each block */
	GPOOL_KV_ADAPTIVE = 1u << 2,
	GPOOL_KV_BF16 = 1u << 3, /* elements of 2 bytes are bfloat16, not IEEE half: for GPOOL_KV_OFFLOAD_INT8 */
};

#define GPOOL_KV_NO_WATERMARK UINT32_MAX

struct gpool_kv_options {
	uint32_t size;  /* sizeof(struct gpool_kv_options); GPOOL_KV_OPTIONS_INIT sets it */
	uint32_t flags; /* GPOOL_KV_KEEP, _PREFIXES, _ADAPTIVE, _BF16; an unknown bit is -EINVAL */
	struct gpool_kv_shape shape;
	uint32_t stream;              /* in whose order all work with the cache is; open, and not a manual one */
	uint32_t max_blocks;          /* up to 2^24, rounded up to whole chunks; 0: as many as the pool could hold */
	uint32_t max_sequences;       /* at a time, preempted ones too, up to 65,536; 0: 256 */
	uint32_t max_sequence_tokens; /* below 2^24, rounded up to whole blocks; 0: 131,072 */
	uint32_t watermark_blocks;    /* that admission leaves free; 0: 1 % of max_blocks; or GPOOL_KV_NO_WATERMARK */
	uint64_t owner_id;            /* what tools show; free to choose */
	/*
	 * GPOOL_KV_PREFIXES: hash of everything that affects the contents of keys and values (weights, quantization,
	 * ...)
	 */
	uint8_t model[32];
	uint32_t cached_blocks; /* GPOOL_KV_PREFIXES: most that stay when no sequence has them; 0: no limit */
	/* GPOOL_KV_PREFIXES: addresses for so many that other processes have too; 0: gpool_kv_prefix_share() is off */
	uint32_t pool_blocks;
	/* most that gpool_kv_compact() moves, and no more than a second's worth, or a chunk, at once; 0: no bound */
	uint64_t compact_bytes_per_s;
};
GPOOL_ASSERT_SIZE(gpool_kv_options, 104);
#define GPOOL_KV_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_kv_options), 0, {0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0 \
	}

/*
 * gpool_kv_create() - a cache without a block in use: addresses, and no page. It ends with gpool_kv_destroy(), or with
 * the pool handle.
 *
 * Return: 0, or
 *   -EINVAL  an unknown flag; a shape without bytes, or with a block above 2^40 bytes; a number out of range, or a
 *            watermark of all blocks; no such stream, or a manual one
 *   -EBUSY   this handle sleeps
 *   -ENOMEM  host memory, or no such addresses
 *   -EPERM   a session that only reads
 *   -EIO, -E2BIG, -ECHILD
 */
GPOOL_API int gpool_kv_create(struct gpool *pool, const struct gpool_kv_options *options, struct gpool_kv **kv);

/*
 * gpool_kv_destroy() - waits for the work on this handle's streams; sequences and addresses end. No other thread is in
 * a call for it. NULL is fine. Return: 0, -EBUSY (GPU work that the program queued elsewhere still uses it: call
 * again), -EIO, -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_kv_destroy(struct gpool_kv *kv);

struct gpool_kv_layout {
	uint32_t size; /* sizeof(struct gpool_kv_layout), set by the caller */
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint64_t chunk_bytes;
	uint32_t chunk_blocks;
	uint32_t max_blocks;
	uint64_t address;       /* of block 0 */
	uint64_t table_address; /* of the device's tables: int32_t [max_sequences][table_columns]; gpool_kv_sync() */
	uint32_t table_columns;
	uint32_t max_sequences;
	uint32_t pool_blocks; /* numbers from max_blocks on: blocks that are the pool's, to be read only */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_layout, 64);

/* gpool_kv_layout() - all that kernels need; never changes. Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_kv_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout);

/* gpool_kv_address() - of a block, in use or not: 0, -EINVAL (no such block), -ECHILD. */
GPOOL_API int gpool_kv_address(const struct gpool_kv *kv, uint32_t block, uint64_t *address);

/* What a request costs, and what there is for it. */
struct gpool_kv_need {
	uint32_t size; /* sizeof(struct gpool_kv_need), set by the caller */
	uint32_t needed_blocks;
	/*
	 * free ones, as far as their memory is here, or free in the pool: no content elsewhere is lost; and cached ones
	 */
	uint32_t available_blocks;
	/* all that are not in use, whether memory is to be had for them or not; cached ones too */
	uint32_t free_blocks;
	uint32_t watermark_blocks; /* of those admission leaves so many */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_need, 24);

enum gpool_kv_admission {
	GPOOL_KV_OK = 0,
	/* not enough blocks now, or not without evicting what others have unpinned: gpool_kv_allocate() may try that */
	GPOOL_KV_LATER = 1,
	GPOOL_KV_NEVER = 2 /* more than a sequence may have, or than the cache or the pool has */
};

/*
 * gpool_kv_can_allocate() - whether a sequence of so many tokens can be admitted. need: may be NULL; its size is set by
 * the caller. Limits of tenants and quotas are the agent's, and not looked at. Return: enum gpool_kv_admission,
 * -EINVAL, -ECHILD. No system call.
 */
GPOOL_API int gpool_kv_can_allocate(struct gpool_kv *kv, uint32_t tokens, struct gpool_kv_need *need);

struct gpool_kv_batch {
	uint32_t size;          /* sizeof(struct gpool_kv_batch); GPOOL_KV_BATCH_INIT sets it */
	uint32_t max_sequences; /* that run, with those that are admitted; 0: as many as the cache has room for */
	uint64_t max_tokens;    /* of those that are admitted, together: what one step computes; 0: no limit */
};
GPOOL_ASSERT_SIZE(gpool_kv_batch, 16);
#define GPOOL_KV_BATCH_INIT \
	{ \
		sizeof(struct gpool_kv_batch), 0, 0 \
	}

/*
 * gpool_kv_can_batch() - how many of these requests, from the first one on, can be admitted together, within memory and
 * limits. None is passed over: the first that does not fit ends it. One that could never be admitted, as
 * gpool_kv_can_allocate() says, ends it too.
 *
 * @tokens: [count] of each request, in the order in which they are to be admitted
 * @limits: NULL: none
 * @need:   of those that fit, together; may be NULL; its size is set by the caller
 *
 * Return: how many, -EINVAL (a size), -E2BIG, -ECHILD. Limits of tenants and quotas are the agent's, and not looked at.
 * Threads: any; what another thread admits meanwhile is not there any more. No system call.
 */
GPOOL_API int gpool_kv_can_batch(struct gpool_kv *kv, const uint32_t *tokens, uint32_t count,
	const struct gpool_kv_batch *limits, struct gpool_kv_need *need);

/*
 * gpool_kv_oom_info() - of this cache's last call that answered -ENOSPC, -EDQUOT or -EFBIG. Return: 0, -EINVAL (its
 * size), -ECHILD.
 */
GPOOL_API int gpool_kv_oom_info(struct gpool_kv *kv, struct gpool_kv_need *need);

enum {
	GPOOL_KV_CONTINUES = 1u << 0, /* it goes on with what runs already, so the watermark is for it too */
};

struct gpool_kv_request {
	uint32_t size;   /* sizeof(struct gpool_kv_request); GPOOL_KV_REQUEST_INIT sets it */
	uint32_t flags;  /* GPOOL_KV_CONTINUES; an unknown bit is -EINVAL */
	uint32_t tokens; /* that it begins with: the prompt's */
	/* that it is likely to have in the end: blocks for all of them now. 0: blocks as it grows */
	uint32_t estimated_tokens;
	uint32_t priority; /* higher stays longer */
	uint32_t reserved; /* 0 */
	uint64_t owner_id; /* gpool_kv_sequence_info(); free to choose */
};
GPOOL_ASSERT_SIZE(gpool_kv_request, 32);
#define GPOOL_KV_REQUEST_INIT \
	{ \
		sizeof(struct gpool_kv_request), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_kv_allocate() - a sequence, with blocks for its tokens, or for the estimated ones if these are more. It leaves
 * the watermark free.
 *
 * Return: 0, or, and then nothing has changed:
 *   -EINVAL  an unknown flag
 *   -EFBIG   GPOOL_KV_NEVER
 *   -ENOSPC, -EDQUOT  not so many blocks, or pages for them (now); gpool_kv_oom_info() says needed and available
 *   -EUSERS  max_sequences
 *   -EBUSY   this handle sleeps; GPU work is queued at addresses that the cache has given back, and whose memory went
 *            elsewhere
 *   -ENOMEM  the driver could not map pages
 *   -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one lock and a few stores a block where its chunk has memory [kv_alloc_128k: 8,192 blocks]; for others as
 * gpool_range_commit(), in one call for each run of chunks [kv_alloc_128k_cold].
 */
GPOOL_API int gpool_kv_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_append() - `tokens` more, all or none. A last block that is not full and that other sequences have too is
 * copied first, on the cache's stream. *slot, which may be NULL, is the place of the first: block * block_tokens +
 * place in the block. The others follow there up to the end of the block, and then as the table says.
 *
 * Return: 0, or, and then nothing has changed:
 *   -EINVAL  tokens is 0, or no such sequence could be
 *   -ESTALE  the sequence has ended, or is another cache's
 *   -EAGAIN  it is preempted: gpool_kv_resume()
 *   -EFBIG   more than max_sequence_tokens
 *   -ENOSPC, -EDQUOT, -EBUSY, -ENOMEM, -EPIPE  as gpool_kv_allocate(), without the watermark
 *   -EIO     the copy could not be queued; -EINVAL also: the cache's stream is closed
 *   -ECHILD
 *
 * Cost: a compare-and-swap where there is room in the blocks that it has [kv_append_bulk]; otherwise one lock, and for
 * each block as gpool_kv_allocate() [kv_append].
 */
GPOOL_API int gpool_kv_append(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens, uint64_t *slot);

/*
 * gpool_kv_fork() - another sequence with the same tokens, in the same blocks; each of both copies the last one, if it
 * is not full, when it appends and the other still has it. Blocks ahead of need stay with the first. Priority, arrival
 * and owner_id are the first one's.
 * Return: 0, -EINVAL, -ESTALE, -EAGAIN (it is preempted), -EUSERS (max_sequences), -ECHILD. Cost: a few
 * instructions a block [kv_fork: 125 blocks].
 */
GPOOL_API int gpool_kv_fork(struct gpool_kv *kv, uint64_t sequence, uint64_t *child);

/*
 * gpool_kv_free() - it ends, running or preempted; blocks that no other has are free at once, or cached if they were
 * published. Return: 0, -EINVAL, -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_free(struct gpool_kv *kv, uint64_t sequence);

/*
 * gpool_kv_preempt() - a running sequence gives its blocks back at once, and waits; its tokens are counted on, for the
 * program to compute their keys and values again after gpool_kv_resume().
 *
 * @sequence: 0: the running one of lowest priority, of those the one that arrived last
 * @victim:   receives which one; may be NULL
 *
 * Return: the number of blocks that are free or cached by that (those that another sequence shares are not), or
 *   -ENOENT  sequence is 0, and none runs
 *   -EAGAIN  it is preempted already
 *   -EINVAL, -ESTALE, -ECHILD
 */
GPOOL_API int gpool_kv_preempt(struct gpool_kv *kv, uint64_t sequence, uint64_t *victim);

/*
 * gpool_kv_waiting() - the preempted one to resume first: of highest priority, of those that arrived first. 0, -ENOENT
 * (none), -ECHILD.
 */
GPOOL_API int gpool_kv_waiting(struct gpool_kv *kv, uint64_t *sequence);

/*
 * gpool_kv_resume() - a preempted sequence has as many blocks again as it had, none of them shared, and as many tokens;
 * what the blocks contain is undefined, unless it was gpool_kv_offload() that preempted it. Admission: it leaves the
 * watermark free, unless no other sequence runs.
 * Return: as gpool_kv_allocate(), but for -EFBIG and -EUSERS; -EALREADY (it runs), -EINVAL, -ESTALE.
 */
GPOOL_API int gpool_kv_resume(struct gpool_kv *kv, uint64_t sequence);

/*
 * gpool_kv_host_reserve() - so much host memory for what preempted sequences contain, in blocks; it ends with the
 * cache. It is all taken and page-locked now, once for a cache. Return: 0, -EINVAL (less than a block, more than 2^24),
 * -EBUSY (it has some), -ENOMEM, -EIO, -ECHILD.
 */
GPOOL_API int gpool_kv_host_reserve(struct gpool_kv *kv, uint64_t bytes);

enum {
	/* into blocks of the pool, which leave it under pressure: to the agent's host memory, then to its file */
	GPOOL_KV_OFFLOAD_POOL = 1u << 0,
	/* as int8, in about half the room of fp16; gpool_kv_quant_error() says what that lost */
	GPOOL_KV_OFFLOAD_INT8 = 1u << 1,
};

/*
 * gpool_kv_offload() - gpool_kv_preempt(), but what the sequence's blocks contain is copied elsewhere, on the cache's
 * stream, and back by gpool_kv_resume(): it goes on where it was, and nothing is to be computed again. gpool_kv_free()
 * gives up what was copied.
 *
 * @flags: GPOOL_KV_OFFLOAD_*. 0: to the cache's own host memory (gpool_kv_host_reserve()), at the speed of a copy both
 * ways. With
 *         GPOOL_KV_OFFLOAD_POOL to blocks of the pool with GPOOL_ALLOC_SPILL, with the sequence's owner_id, up to 8
 *         pages each, unpinned: they take free pages, or those of what others have unpinned, and leave in their turn
 *         when pages are wanted, so that the bounds are the agent's (spill_memory, spill_file). The mover saves what
 *         leaves, and brings it back when the sequence is resumed or prefetched
 *
 * With GPOOL_KV_OFFLOAD_INT8 each vector of head_size elements that follow each other in a block (where head_size is
 * the innermost dimension: of each token and head, of K and of V) becomes int8 codes -127..127 and one bf16 scale, so 2
 * / head_size more than the codes; conversions are work on the stream. Elements of 4 bytes are fp32, those of 2 bytes
 * fp16, or bf16 with GPOOL_KV_BF16; those of 1 byte are kept as they are. What comes back is off by no more than 1 /
 * 252 of the largest magnitude in its vector, and the rounding to its type; zeros come back as zeros. A sequence with
 * an infinity or a NaN in it has no such form: its loss is infinite, and gpool_kv_resume() says -ENODATA.
 *
 * Return: as gpool_kv_preempt(), or, and then it runs as before:
 *   -EOPNOTSUPP  no gpool_kv_host_reserve(); with GPOOL_KV_OFFLOAD_POOL: a pool without spill_memory and spill_file;
 *                with
 *                GPOOL_KV_OFFLOAD_INT8: elements of 8 bytes, blocks below 50 bytes, or a back end without kernels
 *                (built without nvcc)
 *   -ENOSPC      the host memory has not so many free blocks; no pages are to be had to copy to, since there are two
 *                copies for a moment. Then the host memory may do
 *   -EDQUOT, -EPIPE  as gpool_alloc()
 *   -EBUSY       this handle sleeps
 *   -ENOMEM, -EIO, -EINVAL (an unknown flag; the cache's stream is closed)
 *
 * gpool_kv_resume() of such a one may also say the following, and then it is preempted as before:
 *   -EIO      its content is still kept, but the copies could not be queued, or the mover cannot bring it back now
 *             (gpool_pin())
 *   -ENODATA  its content is lost: its checksum was wrong when it came back, or it has no int8 form. From now on it is
 *             as one that gpool_kv_preempt() preempted
 *   -ENOSPC, -EDQUOT also: no page to bring it back to
 *
 * Cost: a copy for each run of blocks that are neighbours; nothing is waited for, unless pages have to be evicted. Of
 * what has left the pool and was not prefetched, gpool_kv_resume() waits for the mover, and so do other threads' calls
 * for this cache, but for gpool_kv_append() in blocks that the sequence has. gpool_kv_free() waits for what is just on
 * its way. As int8 resuming waits until the stream has come to the conversion.
 */
GPOOL_API int gpool_kv_offload(struct gpool_kv *kv, uint64_t sequence, uint32_t flags, uint64_t *victim);

/*
 * gpool_kv_prefetch() - begin to bring back into the pool what a preempted sequence will need and what has left it
 * (GPOOL_KV_OFFLOAD_POOL), so that gpool_kv_resume() need not wait. Call it again until it says 0: some pages are on
 * their way at a time, and each call takes what has come and asks for the next. Into free pages only, and those that
 * the sequence's blocks will take stay free; nothing is evicted for it. What has come may leave again when pages are
 * wanted, like all that nobody pins.
 *
 * Return: how many pages are not in the pool yet, 0: resuming it will not wait, also when nothing is kept or all is in
 * the cache's host memory; or
 *   -ENOSPC    no free pages for any of the rest
 *   -EALREADY  it runs
 *   -EIO       one cannot be brought back now; gpool_kv_resume() tries again
 *   -ENODATA   what is kept is lost, as gpool_kv_resume() will say
 *   -EDQUOT, -ENOMEM, -EPIPE, -EINVAL, -ESTALE, -ECHILD
 *
 * Cost: a look at each piece of 8 pages, and a message to the agent for each that it begins to bring; no wait.
 */
GPOOL_API int gpool_kv_prefetch(struct gpool_kv *kv, uint64_t sequence);

/*
 * What int8 has lost of a sequence's content, over all elements x of its blocks with tokens, which became x': those of
 * the last block behind them too.
 */
struct gpool_kv_quant_error {
	uint32_t size; /* sizeof(struct gpool_kv_quant_error), set by the caller */
	uint32_t reserved;
	double max_error; /* max |x - x'|; infinity: there is no int8 form */
	/* sqrt(sum (x - x')^2 / sum x^2), without the rounding to the element's type; 0 where all x are 0 */
	double relative_error;
};
GPOOL_ASSERT_SIZE(gpool_kv_quant_error, 24);

/*
 * gpool_kv_quant_error() - of the last gpool_kv_offload(), whether it has been resumed or not.
 * Return: 0, -ENODATA (that was not as int8), -EAGAIN (the stream has not come to it), -EINVAL (its size, no such
 * sequence could be), -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_quant_error(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_quant_error *loss);

/* What is kept of preempted sequences, and where. */
struct gpool_kv_offload_info {
	uint32_t size;        /* sizeof(struct gpool_kv_offload_info), set by the caller */
	uint32_t host_blocks; /* of the cache's own host memory; 0: there is none */
	uint32_t host_free_blocks;
	uint32_t sequences; /* of which content is kept now */
	uint64_t host_bytes;
	uint64_t content_bytes; /* of theirs, as it was in their blocks */
	/* of the blocks that have some of it: in the pool, in the agent's host memory, or in its file */
	uint64_t pool_pages;
	uint64_t saves, loads; /* sequences that were copied away, and back */
};
GPOOL_ASSERT_SIZE(gpool_kv_offload_info, 56);

/* gpool_kv_offload_info() - Return: 0, -EINVAL (its size), -ECHILD. Cost: a look at each preempted sequence. */
GPOOL_API int gpool_kv_offload_info(struct gpool_kv *kv, struct gpool_kv_offload_info *offloaded);

/*
 * gpool_kv_table() - the blocks of a sequence, in order: host memory, valid until gpool_kv_destroy(). It is the
 * program's to see to it that no other thread changes the sequence while it looks. count 0: it is preempted, or has no
 * token. Return: 0, -EINVAL, -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_table(struct gpool_kv *kv, uint64_t sequence, const int32_t **blocks, uint32_t *count);

/*
 * gpool_kv_sync() - what has changed in the tables is copied to the device, on the cache's stream: work that is queued
 * there after this call finds them as they are now, and work before it as they were. Rows of the device's table: struct
 * gpool_kv_sequence_info. Where the content was dropped in sleep (GPOOL_KV_KEEP), so were these tables: sequences that
 * are preempted and resumed are in them again.
 *
 * Return: 0, or, and then all that is not copied is by the next call:
 *   -ENOSPC, -EDQUOT, -ENOMEM, -EBUSY, -EPIPE  pages for the tables, as gpool_range_commit()
 *   -EIO, -ECHILD
 *
 * Cost: a copy for each sequence that changed, of the entries from the first to the last that did; one fence for 64 KiB
 * of them.
 */
GPOOL_API int gpool_kv_sync(struct gpool_kv *kv);

/* A block and the one that gets its content. */
struct gpool_kv_pair {
	int32_t from, to;
};

/*
 * gpool_kv_copy_blocks() - copies, in this order, on the cache's stream; neighbours in one. All blocks must be in use,
 * and one that is written be no more than one sequence's, and not published. Return: 0, -EINVAL (a block that is not
 * so, and nothing is queued), -ENOMEM, -EIO, -ECHILD.
 */
GPOOL_API int gpool_kv_copy_blocks(struct gpool_kv *kv, const struct gpool_kv_pair *pairs, size_t count);

/*
 * gpool_kv_compact() - moves blocks out of chunks that are nearly empty into holes of others, whole chunks at a time
 * and up to so many blocks, so that the memory of these chunks goes back to the pool; with compact_bytes_per_s no more
 * than that allows by now. Tables change (gpool_kv_table(), gpool_kv_sync()); copies are queued on the cache's stream.
 * For between two steps: not while a place that gpool_kv_append() told is still to be written by work that is not
 * queued
 * yet.
 *
 * Return: how many blocks have moved, or -EBUSY (this handle sleeps), -ENOMEM, -EIO, -EINVAL (the cache's stream is
 * closed), -ECHILD.
 * Cost: for each chunk a look at all chunks and at all tables, and a copy for each block.
 */
GPOOL_API int gpool_kv_compact(struct gpool_kv *kv, uint32_t blocks);

/*
 * gpool_kv_validate() - whether a block is a sequence's, of this shape (block_tokens 0 means 16 here too). For what
 * comes from elsewhere.
 * Return: 0, -EINVAL (no such block, or no such sequence could be), -ESTALE (the sequence has ended, or is another
 * cache's; the block is free), -EACCES (it is another sequence's), -EPROTO (the shape is not the cache's), -ECHILD.
 * Cost: a look at each block of the sequence.
 */
GPOOL_API int gpool_kv_validate(
	struct gpool_kv *kv, uint64_t sequence, int32_t block, const struct gpool_kv_shape *shape);

/*
 * What sequences begin with is often the same: a system prompt, the turns of a conversation. In a cache with
 * GPOOL_KV_PREFIXES a sequence's full blocks can be published, with the ids of its tokens; later sequences with the
 * same ids begin with these blocks, as forks do, and do not compute them again. A block is known by all tokens up to
 * its end, by the cache's model and shape, and by adapter and salt. When no sequence has it any more it is cached: it
 * stays until its memory is wanted (least recently used first, or with GPOOL_KV_ADAPTIVE what is least likely to be
 * found again; what follows a block before the block), until gpool_kv_prefix_evict(), or until the content is dropped
 * in sleep. Cached blocks count as free.
 *
 * Chunks without a block in use are offered, as by gpool_range_offer(), behind the work that is queued by then: when
 * memory is wanted elsewhere the agent takes such a chunk in the order of eviction, while this process calls nothing.
 * Its cached blocks, and all that follow one of them, are then found no more. A sequence that begins with cached blocks
 * has them for good. Counts are right when the call that tells them looks; what is taken after that counts until the
 * next call. In sleep what is offered is dropped, with GPOOL_KV_KEEP as well.
 */
struct gpool_kv_prefix {
	uint32_t size;       /* sizeof(struct gpool_kv_prefix); GPOOL_KV_PREFIX_INIT sets it */
	uint32_t flags;      /* none yet; an unknown bit is -EINVAL */
	const uint32_t *ids; /* [count] of the tokens, from a sequence's first one on */
	uint32_t count;
	uint32_t reserved;   /* 0 */
	uint64_t adapter_id; /* with which they are computed; 0: none */
	uint64_t salt[2];    /* only who gives the same finds the blocks; a tenant's secret keeps its own apart */
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix, 48);
#define GPOOL_KV_PREFIX_INIT \
	{ \
		sizeof(struct gpool_kv_prefix), 0, 0, 0, 0, 0, \
		{ \
			0, 0 \
		} \
	}

struct gpool_kv_prefix_found {
	uint32_t size;          /* sizeof(struct gpool_kv_prefix_found), set by the caller */
	uint32_t blocks;        /* from the first on, without a gap */
	uint32_t tokens;        /* that these are */
	uint32_t cached_blocks; /* of those: nobody has them, so that using them leaves fewer free ones */
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix_found, 16);

/*
 * gpool_kv_prefix_find() - the longest prefix of the ids that is there, in full blocks. Nothing changes, and nothing is
 * promised for later.
 * Return: 0, -EINVAL (a size, flag; count without ids), -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -E2BIG, -ECHILD.
 * Cost: one lock, a hash over each block's ids and two loads for each block found, and for one more.
 */
GPOOL_API int gpool_kv_prefix_find(
	struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, struct gpool_kv_prefix_found *found);

/*
 * gpool_kv_prefix_allocate() - gpool_kv_allocate() of a sequence whose first tokens have these ids: it begins with the
 * blocks that are there, and *tokens, which may be NULL, is how many tokens of it need not be computed. Tokens beyond
 * those of the request are not looked at. Who needs the last token computed in any case gives one id less, so that its
 * block is not shared.
 * Return: as gpool_kv_allocate() and gpool_kv_prefix_find(). In gpool_kv_oom_info() needed blocks are without those
 * that others have.
 */
GPOOL_API int gpool_kv_prefix_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request,
	const struct gpool_kv_prefix *prefix, uint64_t *sequence, uint32_t *tokens);

/*
 * gpool_kv_prefix_publish() - from now on the sequence's full blocks among these tokens can be found. Their keys and
 * values are written, or the work that writes them is queued on the cache's stream, or that stream waits for it: from
 * now on nobody writes to these blocks. Where the same content is there already, the sequence and its forks change over
 * to that block and give up their own (gpool_kv_table(), gpool_kv_sync()). Ids of what was published before are not
 * looked at again, so publishing as a sequence grows costs what is new. Of a group's sequences only the parts in the
 * first cache can be published: the ids of others are not those of the whole text's first tokens.
 *
 * Return: how many of the sequence's first blocks are published by now, or
 *   -EINVAL      a size, a flag, count without ids; more ids than the sequence has tokens; a block that was published
 *                with other ids, adapter or salt; no such sequence could be
 *   -EAGAIN      it is preempted
 *   -EOPNOTSUPP  no GPOOL_KV_PREFIXES
 *   -ESTALE, -E2BIG, -ECHILD
 *
 * Cost: one lock, and for each new block a hash over its ids and an entry [kv_publish].
 */
GPOOL_API int gpool_kv_prefix_publish(struct gpool_kv *kv, uint64_t sequence, const struct gpool_kv_prefix *prefix);

/*
 * gpool_kv_prefix_share() - what the sequence has published can be found by other processes with caches of the same
 * model and shape, in the same trust domain, without a copy: their gpool_kv_prefix_allocate() maps the same memory, to
 * be read. Waits for the work on the cache's stream, so that the content is there.
 *
 * Whole chunks are shared, in which there are only full blocks of this sequence in their order; a cache with
 * pool_blocks therefore lays the blocks of new sequences into whole chunks. Each becomes a named object
 * (kv-prefix/KEY), ephemeral: it outlives this process, is evicted as a whole when its memory is wanted and no sequence
 * of any process has a block of it, and counts for the tenant that shared it. Here its blocks have other numbers from
 * now on (gpool_kv_table(), gpool_kv_sync()), for all sequences that have them, and the same memory. Where another
 * process was first, the sequences change over to its blocks, and their own memory is free.
 *
 * Blocks of the pool are not cached: when no sequence has them, the agent may evict them behind the work that is queued
 * by then, with the cached blocks that follow one. Where none follows, they are unmapped at one of the next calls that
 * free or allocate, and found in the pool again as long as that has them.
 *
 * @timeout_ms: longest wait for the work, milliseconds; 0: do not wait, -1: no limit
 *
 * Return: how many of the sequence's first blocks are the pool's by now, or
 *   -EOPNOTSUPP  a cache without pool_blocks
 *   -ETIMEDOUT   the work is not done
 *   -EAGAIN      the sequence is preempted
 *   -ENOSPC      pool_blocks are in use, or the pool's metadata are
 *   -EUSERS      as many versions of objects are there as the pool may have (`objects` of its configuration)
 *   -ESTALE      an object of that name is there, and is none that can be used; the sequence has ended
 *   -EBUSY       this handle sleeps, or queued GPU work could write to the blocks
 *   -EINVAL, -ENOMEM, -EMFILE, -EIO, -EPIPE, -ECHILD
 * After an error what was shared before it stays shared.
 *
 * Cost: a wait for the stream; for each chunk one question to the agent, and one mapping for each handle.
 */
GPOOL_API int gpool_kv_prefix_share(struct gpool_kv *kv, uint64_t sequence, int timeout_ms);

/*
 * gpool_kv_prefix_evict() - up to so many cached blocks are free, those that would go next; memory of chunks that get
 * empty by that is available to others behind the work that is queued by then, as after gpool_kv_free(), without a
 * further call. UINT32_MAX: all. Others get the memory of cached blocks without it.
 * Return: how many, -EOPNOTSUPP, -ECHILD.
 */
GPOOL_API int gpool_kv_prefix_evict(struct gpool_kv *kv, uint32_t blocks);

enum gpool_kv_state { GPOOL_KV_RUNNING = 1, GPOOL_KV_PREEMPTED = 2 };

struct gpool_kv_sequence_info {
	uint32_t size;  /* sizeof(struct gpool_kv_sequence_info), set by the caller */
	uint32_t state; /* enum gpool_kv_state */
	uint32_t tokens;
	uint32_t blocks;        /* that it has; preempted: that it had, and gets when it is resumed */
	uint32_t shared_blocks; /* of those: other sequences have them too */
	uint32_t room;          /* tokens for which it needs no further block, and no copy */
	uint32_t row;           /* in the device's tables */
	uint32_t priority;
	uint64_t arrival; /* lower came earlier */
	uint64_t owner_id;
};
GPOOL_ASSERT_SIZE(gpool_kv_sequence_info, 48);

/* gpool_kv_sequence_info() - Return: 0, -EINVAL (its size), -ESTALE, -ECHILD. */
GPOOL_API int gpool_kv_sequence_info(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_sequence_info *info);

struct gpool_kv_stats {
	uint32_t size; /* sizeof(struct gpool_kv_stats), set by the caller */
	uint32_t used_blocks;
	uint32_t free_blocks;      /* these two are max_blocks; cached ones are free */
	uint32_t available_blocks; /* struct gpool_kv_need */
	uint32_t watermark_blocks;
	uint32_t reclaimable_blocks; /* that the preemption of gpool_kv_preempt()'s next victim would free */
	uint32_t step_blocks;        /* that one further token of every running sequence needs */
	uint32_t shared_blocks;      /* in use by more than one sequence */
	uint32_t running, preempted; /* sequences */
	uint32_t committed_chunks;   /* with memory */
	uint32_t cached_blocks;      /* that no sequence has, and that are kept because they may be found again */
	uint64_t committed_bytes;    /* of those */
	uint64_t allocations, forks, frees, preemptions, resumes; /* calls that succeeded */
	uint64_t refusals;                                        /* for want of blocks, sequences or pages */
	uint64_t block_copies;     /* of shared last blocks, and by gpool_kv_copy_blocks() */
	uint64_t table_bytes;      /* copied to the device */
	uint64_t prefix_hits;      /* blocks that gpool_kv_prefix_allocate() found ... */
	uint64_t prefix_misses;    /* ... and those that it did not: full ones of the ids */
	uint64_t prefix_published; /* blocks */
	/* blocks that were given up at their publication, for others with the same content */
	uint64_t prefix_switched;
	uint64_t prefix_evicted; /* cached blocks that this cache evicted itself */
	uint64_t pool_shared;    /* blocks that gpool_kv_prefix_share() gave to the pool */
	uint64_t pool_found;     /* blocks that came from there */
	uint32_t pool_blocks;    /* of the pool, mapped here now: in use, or about to leave */
	uint32_t offered_chunks; /* of committed_chunks: no sequence uses them, and the agent may take them */
	uint64_t prefix_lost;    /* cached blocks that are no more because the agent took them, or one before them */
};
GPOOL_ASSERT_SIZE(gpool_kv_stats, 192);

/* gpool_kv_stats() - Return: 0, -EINVAL (its size), -ECHILD. Cost: a look at each running sequence. */
GPOOL_API int gpool_kv_stats(struct gpool_kv *kv, struct gpool_kv_stats *statistics);

/*
 * A group of caches, each on a GPU of its own as a rule, has sequences that are longer than one of them could hold (KV
 * parallelism): the first range_tokens tokens are in the first cache, the next in the second, and the last cache has
 * all that remain. What a call for a group does it does in all of its caches, or in none.
 *
 * A sequence of a group has the number of the part of it in the first cache; gpool_kv_group_span() tells those of the
 * others, for their tables. The caches may have sequences besides. Parts of a group's are changed by the group's calls
 * alone, and gpool_kv_group_preempt() takes the place of gpool_kv_preempt() for the first cache. A group ends before
 * its caches. Calls may be made by any thread.
 */
struct gpool_kv_group;

#define GPOOL_KV_GROUP_CACHES_MAX 16

/*
 * gpool_kv_group_create() - of 1 to 16 caches, of one pool handle or of several.
 * Return: 0, -EINVAL (their number, one of them twice, a range that is 0, no multiple of a cache's block_tokens, or
 * longer than what a sequence may have in one that is not the last), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_kv_group_create(
	struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group);

/* gpool_kv_group_destroy() - and its sequences. No other thread is in a call for it. NULL is fine. */
GPOOL_API void gpool_kv_group_destroy(struct gpool_kv_group *group);

/*
 * gpool_kv_group_can_allocate() - the worst answer of its caches, which one gave it, and what that one lacks; both may
 * be NULL. Return: as gpool_kv_can_allocate().
 */
GPOOL_API int gpool_kv_group_can_allocate(
	struct gpool_kv_group *group, uint32_t tokens, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_oom_info() - the cache for which the group's last call failed, and gpool_kv_oom_info() of it. */
GPOOL_API int gpool_kv_group_oom_info(struct gpool_kv_group *group, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_allocate() - Return: as gpool_kv_allocate(), of the cache that could not. */
GPOOL_API int gpool_kv_group_allocate(
	struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_group_append() - tokens that come into a further cache begin a part there. *member and *slot, which may be
 * NULL, are the place of the first one. Return: as gpool_kv_append(), and gpool_kv_allocate() for a part that begins.
 * Cost: one lock more than gpool_kv_append().
 */
GPOOL_API int gpool_kv_group_append(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot);

/* Return: as gpool_kv_fork(), gpool_kv_free(). */
GPOOL_API int gpool_kv_group_fork(struct gpool_kv_group *group, uint64_t sequence, uint64_t *child);
GPOOL_API int gpool_kv_group_free(struct gpool_kv_group *group, uint64_t sequence);

/*
 * gpool_kv_group_preempt() - sequence 0: the first cache's choice, which may be one that is not the group's;
 * gpool_kv_waiting() of the first cache says whom to resume. gpool_kv_group_resume() - in all caches or in none.
 * Return: as gpool_kv_preempt(), the blocks of all caches together, and gpool_kv_resume().
 */
GPOOL_API int gpool_kv_group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim);
GPOOL_API int gpool_kv_group_resume(struct gpool_kv_group *group, uint64_t sequence);

/* What a sequence of a group has in one cache. */
struct gpool_kv_span {
	uint32_t size;        /* sizeof(struct gpool_kv_span), set by the caller */
	uint32_t first_token; /* of the sequence, that is the first one here */
	uint32_t tokens;
	uint32_t blocks;
	uint64_t sequence; /* number in this cache; 0: nothing yet */
};
GPOOL_ASSERT_SIZE(gpool_kv_span, 24);

/* gpool_kv_group_span() - Return: 0, -EINVAL (its size, no such cache, no such sequence could be), -ESTALE, -ECHILD. */
GPOOL_API int gpool_kv_group_span(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t member, struct gpool_kv_span *span);

/* ---- work: LoRA adapters ---- */

/*
 * Adapters as PEFT writes them, packed into pages that all engines of a trust domain share: the first engine that needs
 * one loads it and publishes it as an object of class GPOOL_OBJECT_PINNABLE, the others map it. It stays in the pool
 * while an engine has acquired it, and after that until its pages are needed; acquiring it again meanwhile is a lookup
 * and a pin. Ranks are not padded to a common one; the rest of an adapter's last page is unused.
 *
 * Files of adapters are read by this process, with its own rights, and checked to the letter; the agent never sees
 * them.
 */
struct gpool_lora; /* the adapters of a process on one pool */

enum gpool_lora_element {
	GPOOL_LORA_AS_FILE = 0, /* fp16 where the file has nothing else, else bf16 */
	GPOOL_LORA_F16 = 1,
	GPOOL_LORA_BF16 = 2
};

enum {
	/*
	 * In cache_dir and warm, one of which has to be there, adapters are kept in int8 if that costs their outputs
	 * no more than 1.5 % (one scale for 128 columns): half the disk, half the host memory, half the time to read.
	 * What is in the pool is
	 * what int8 makes of the weights then, from the first load on, so that it is the same bits wherever it comes
	 * from; the first load of an adapter measures what it would cost. Without the flag, and for adapters that would
	 * lose more, weights are those of the files, bit by bit.
	 */
	GPOOL_LORA_INT8 = 1u << 0,
	/* Adapters are shared among engines of one tenant alone; else among those of a trust domain. */
	GPOOL_LORA_PRIVATE = 1u << 1,
};

struct gpool_lora_options {
	uint32_t size;    /* sizeof(struct gpool_lora_options); GPOOL_LORA_OPTIONS_INIT sets it */
	uint32_t flags;   /* GPOOL_LORA_INT8, GPOOL_LORA_PRIVATE; an unknown bit is -EINVAL */
	uint32_t element; /* enum gpool_lora_element: what weights become */
	/* threads that load adapters, several of them one where they are idle; 0: 4, at most 64 */
	uint32_t load_threads;
	const char *cache_dir; /* where loaded adapters are kept, ready to be loaded again; exists. NULL: nowhere */
	uint64_t salt[2];      /* who does not know it does not find them; engines that share have the same */
	/*
	 * A pool of the back end `host`, in which copies of loaded adapters are shared by all engines that have it:
	 * named objects, which leave as others do (gpool_object_pin()). The caller's, and open until
	 * gpool_lora_destroy(). NULL: no such copies.
	 */
	struct gpool *warm;
	/*
	 * What was acquired twice in the last minute, and has left the pool for others, is loaded again before somebody
	 * asks for it, when no loader has anything else to do: if that displaces nothing, an eighth of the pool stays
	 * free, and the pressure is low. The most used one comes first; at most one in so many milliseconds. One that
	 * has come back like that, or was unloaded, is not brought back again before it was acquired anew. 0: 10,000;
	 * UINT32_MAX: never.
	 */
	uint32_t rebalance_ms;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_lora_options, 56);
#define GPOOL_LORA_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_options), 0, 0, 0, 0, {0, 0}, 0, 0, 0 \
	}

enum { GPOOL_LORA_REASON_BYTES = 256 };

/*
 * gpool_lora_create() - no adapter yet. It ends with gpool_lora_destroy(), before the pool's handle.
 * Return: 0, -EINVAL (also GPOOL_LORA_INT8 without cache_dir and warm; warm that the CPU cannot read, or an
 * observer's), -E2BIG, -ENOENT or what else cache_dir says, -EPERM (an observer), -EUSERS (streams), -ENOMEM, -EIO,
 * -ECHILD.
 */
GPOOL_API int gpool_lora_create(struct gpool *pool, const struct gpool_lora_options *options, struct gpool_lora **lora);
/*
 * gpool_lora_destroy() - gives up loads that are under way, and copies. No other thread is in a call for it. NULL is
 * fine. -EBUSY: an adapter is acquired, or was released behind a fence that is not reached; a batch or a scheduler is
 * open; -ECHILD.
 */
GPOOL_API int gpool_lora_destroy(struct gpool_lora *lora);

/*
 * gpool_lora_register() - make an adapter known by a name of the program's own. Headers are read, no weights.
 *
 * @name:   1 to 127 bytes
 * @folder: PEFT's, with adapter_config.json and adapter_model.safetensors, which stay as they are while it is
 * registered
 * @id:     receives its number, from 0 on; numbers of adapters that were unregistered are given again
 * @why:    [GPOOL_LORA_REASON_BYTES] receives why it is refused, as a line; may be NULL
 *
 * Return: 0, or
 *   -EINVAL  the files are not what they have to be, as *why says; name
 *   -EEXIST  the name is taken
 *   -ENOENT, -EACCES, -EIO, -ENOMEM, -EMFILE, -ECHILD
 *
 * Threads: any. Cost: reads and parses the two headers, so the time grows with the number of modules
 * [adapter_register_10000, adapter_register_32_layers: 42 and 224 modules].
 */
GPOOL_API int gpool_lora_register(
	struct gpool_lora *lora, const char *name, const char *folder, uint32_t *id, char *why);
/* gpool_lora_find() - the number of a name: 0, -ENOENT, -ECHILD. */
GPOOL_API int gpool_lora_find(struct gpool_lora *lora, const char *name, uint32_t *id);
/*
 * gpool_lora_unregister() - 0, -EBUSY (acquired, being loaded, requested of a scheduler, or queued work uses its
 * addresses), -ENOENT, -ECHILD. Its pages, and copies of it, stay until their room is needed.
 */
GPOOL_API int gpool_lora_unregister(struct gpool_lora *lora, uint32_t id);

/*
 * gpool_lora_acquire() - make the adapter resident and pin it. Calls nest: release it once per acquisition.
 *
 * @timeout_ms: longest wait for its load, milliseconds; 0: begin it and do not wait, -1: no limit
 *
 * Return: 0, or
 *   -EAGAIN     timeout_ms was 0, and it is being loaded
 *   -ETIMEDOUT  it is still being loaded
 *   -ENOSPC, -EDQUOT  no room: what is in the pool is in use; gpool_lora_last_error() says what it needs. Release one
 *                     and try again
 *   -EINVAL     its files are not any more what they were, or a weight is no number; gpool_lora_last_error()
 *   -EBUSY      it is acquired here, and somebody has unloaded it: release it first. Or queued work uses addresses that
 *               it had
 *   -ENOENT     no such adapter, or its files are gone
 *   -EIO, -ENOMEM, -EPIPE, -ECHILD
 *
 * Threads: any. Cost: where it is in the pool and mapped here, a lock and a pin [adapter_acquire]; where another engine
 * has it in the pool, one question to the agent and its mapping [adapter_shared_16mb]; else its load
 * [adapter_warm_acquire_16mb, adapter_cold_16mb, adapter_peft_16mb]. On the back end `host` this thread takes part in a
 * load from host memory: it begins it, if timeout_ms is -1, and makes parts of it, if it has 10 ms or more.
 */
GPOOL_API int gpool_lora_acquire(struct gpool_lora *lora, uint32_t id, int timeout_ms);

/*
 * gpool_lora_acquire_async() - as gpool_lora_acquire(), and does not wait for the weights: the adapter has its place,
 * and layers come there one after the other, while the first ones are used. gpool_lora_release() ends it as it ends any
 * acquire, also before all has come.
 *
 *	error = gpool_lora_acquire_async(lora, id, -1);
 *	for (layer = 0; !error && layer < layers; layer++) {
 *		error = gpool_lora_wait_layer(lora, id, layer, -1);
 *		...                                 queue the work of this layer, with gpool_lora_weights() of it
 *	}
 *	gpool_lora_release(lora, id, &fence);       behind all of that work, whatever came of it
 *
 * It is shared with other engines when all who have begun it here have released it, and the work behind their fences is
 * done. Until then others load one of their own; of two the first that is shared stays.
 *
 * @timeout_ms: longest wait for its place, milliseconds; 0: do not wait, -1: no limit
 *
 * Return: as gpool_lora_acquire(). Where a load has failed in the middle of it: why, until all who have begun it have
 * released it.
 * Threads: any. Cost: as gpool_lora_acquire(), without the load.
 */
GPOOL_API int gpool_lora_acquire_async(struct gpool_lora *lora, uint32_t id, int timeout_ms);
/*
 * gpool_lora_wait_layer() - until that layer of an adapter that is begun or acquired is there; with it are all before
 * it. @layer: its number, also of one in which it has nothing; -1: all of it, with the modules outside of all layers,
 * which come last This thread takes part in the load as in gpool_lora_acquire().
 * Return: 0, -EAGAIN (timeout_ms was 0), -ETIMEDOUT, -EINVAL (not acquired), -ENOENT, -ECHILD, or why its load has
 * failed: gpool_lora_last_error(). Threads: any.
 */
GPOOL_API int gpool_lora_wait_layer(struct gpool_lora *lora, uint32_t id, int32_t layer, int timeout_ms);
/*
 * gpool_lora_prefetch() - begin to load it, if need be: 0, -ENOENT, -ECHILD. It may leave again before it is acquired.
 */
GPOOL_API int gpool_lora_prefetch(struct gpool_lora *lora, uint32_t id);
/*
 * gpool_lora_release() - fence NULL: at once; else when it is reached, without waiting. Return: 0, -EINVAL (not
 * acquired, no such fence), -ENOENT, -ENOMEM (it stays acquired), -ECHILD.
 */
GPOOL_API int gpool_lora_release(struct gpool_lora *lora, uint32_t id, const struct gpool_fence *fence);
/*
 * gpool_lora_unload() - out of the pool, for all engines; copies stay: 0; -EBUSY: acquired here, or coming, or just
 * released after gpool_lora_acquire_async(), or elsewhere, where it goes with its last use; -ENOENT, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_lora_unload(struct gpool_lora *lora, uint32_t id);
/*
 * gpool_lora_last_error() - why its last load failed, as a line: why[GPOOL_LORA_REASON_BYTES]; empty if it did not. 0,
 * -ENOENT, -ECHILD.
 */
GPOOL_API int gpool_lora_last_error(struct gpool_lora *lora, uint32_t id, char *why);

/*
 * Where the tiles of a matrix lie: what kernels take (cuda/kernels/lora.h). A tile is 128 columns of all ranks,
 * [rank][128], 256 bytes a row.
 */
struct gpool_lora_matrix {
	uint64_t first; /* device address of the first tiles, side by side */
	/* device address of uint64_t[]: where each further run of tiles begins; 0: there is none */
	uint64_t more;
	uint32_t head_tiles; /* how many lie at `first` */
	uint32_t run_tiles;  /* how many in each further run; the last may have fewer */
};

/* An adapter's part in one layer and target. */
struct gpool_lora_weights {
	struct gpool_lora_matrix a; /* rank x in */
	struct gpool_lora_matrix b; /* its transpose: rank x out */
	uint32_t rank;
	float scale;
	uint64_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_weights, 64);

/*
 * gpool_lora_weights() - of an acquired adapter. Addresses are good until it is released.
 * @layer:  its number; -1: of modules outside of all layers
 * @target: "model.layers.*.self_attn.q_proj": the module's path with a star for the layer
 * Return: 0; -ENOENT: it has none there, or there is no such adapter; -EAGAIN: the layer is not there yet,
 * gpool_lora_wait_layer(); -EINVAL: not acquired; -ECHILD. Cost: two binary searches.
 */
GPOOL_API int gpool_lora_weights(
	struct gpool_lora *lora, uint32_t id, int32_t layer, const char *target, struct gpool_lora_weights *part);

enum gpool_lora_state { GPOOL_LORA_COLD = 0, GPOOL_LORA_LOADING = 1, GPOOL_LORA_RESIDENT = 2 };

struct gpool_lora_info {
	uint32_t size;     /* sizeof(struct gpool_lora_info), set by the caller */
	uint32_t state;    /* enum gpool_lora_state: HERE: it was in the pool when it was last looked at */
	uint32_t acquired; /* times, here */
	uint32_t rank_max;
	uint32_t modules, layers;
	uint32_t pages;
	uint32_t element; /* enum gpool_lora_element */
	uint64_t hits;    /* acquired without a load */
	uint64_t loads;   /* brought into the pool and published */
	uint64_t shared;  /* found in the pool, loaded by another engine */
	uint64_t lost;    /* found to have left the pool since its last use */
	char name[128];
	uint64_t from_warm;  /* of the loads: from a copy in host memory */
	uint64_t from_cold;  /* from one in cache_dir; the others are from PEFT's files */
	uint64_t rebalanced; /* of the loads: brought back before somebody asked for it */
};
GPOOL_ASSERT_SIZE(gpool_lora_info, 216);

/* gpool_lora_info() - 0, -ENOENT, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_lora_info(struct gpool_lora *lora, uint32_t id, struct gpool_lora_info *info);

/* Of all adapters of this process together; counts include those that were unregistered. */
struct gpool_lora_stats {
	uint32_t size;       /* sizeof(struct gpool_lora_stats), set by the caller */
	uint32_t registered; /* adapters */
	uint32_t resident;   /* in the pool when they were last looked at */
	uint32_t active;     /* acquired */
	uint64_t hits, loads, shared, lost, from_warm, from_cold; /* as in struct gpool_lora_info */
	uint64_t hot_bytes;                                       /* pages of those that are resident */
	uint64_t warm_bytes; /* of all copies in the warm pool, whoever has made them */
	uint64_t cold_bytes; /* of all in cache_dir, likewise */
	uint64_t warm_made;  /* copies that were put into the warm pool */
	uint64_t warm_full;  /* that were not, since there was no room */
	uint64_t refused;    /* copies that were not what they should be, and were not taken */
	uint64_t rebalanced; /* as in struct gpool_lora_info */
};
GPOOL_ASSERT_SIZE(gpool_lora_stats, 120);

/*
 * gpool_lora_stats() - 0, -EINVAL (its size), -ECHILD. Cost: looks at each adapter, at each object of the warm pool and
 * at each file in cache_dir.
 */
GPOOL_API int gpool_lora_stats(struct gpool_lora *lora, struct gpool_lora_stats *stats);

/* ---- work: LoRA adapters in a batch ---- */

/*
 * What a step of an engine adds to the outputs of its layers, for tokens with different adapters of different ranks:
 *
 *	y[token] += scale * (x[token] A^T) B^T        A, B, scale: of the token's own adapter, in this layer and target
 *
 *	gpool_lora_batch_set(batch, adapters, tokens, why);              once for a step
 *	gpool_lora_batch_apply(batch, layer, target, x, ..., stream);    after each projection: two kernels, for all
 *	adapters
 *
 * Everything lies at addresses that stay. So apply may be captured into a graph, which is launched again after each
 * set: it adds what the tokens of that have, none if there are none. Results of a token do not depend on who else is in
 * the batch, to the bit.
 *
 * Threads: one at a time, for each batch. Streams: its work is in the order of options.stream. Who applies, or launches
 * graphs, on another one makes that wait for this one behind set, and this one for that before the next set: nothing
 * else protects what is being read.
 */
struct gpool_lora_batch;

#define GPOOL_LORA_NONE UINT32_MAX /* the adapter of tokens that have none */

/* A projection of the model. */
struct gpool_lora_target {
	/* "model.layers.*.self_attn.q_proj": with a star for the layer it is in all of them, without one outside */
	const char *name;
	uint32_t in, out; /* features of x and y */
};

struct gpool_lora_batch_options {
	uint32_t size;         /* sizeof(struct gpool_lora_batch_options); GPOOL_LORA_BATCH_OPTIONS_INIT sets it */
	uint32_t flags;        /* 0 */
	uint32_t stream;       /* in whose order all of it is; open, and not a manual one */
	uint32_t element;      /* enum gpool_lora_element, fp16 or bf16: of x, y and the weights */
	uint32_t tokens_max;   /* of a step, 1..2^20. Above 1,024 kernels need more room, and are made for prefill */
	uint32_t adapters_max; /* different ones in a step, at most 1,024; 0: 32 */
	uint32_t rank_max;     /* of any module, at most 128; 0: 128. Kernels are faster with 64, 32 or 16 */
	uint32_t layers;       /* of the model, at most 4,096 */
	const struct gpool_lora_target *targets; /* [target_count], each name once; copied */
	uint32_t target_count;                   /* 65,536 places at most: for each target its layers */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_batch_options, 48);
#define GPOOL_LORA_BATCH_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_batch_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_lora_batch_create() - a batch without a token. It ends with gpool_lora_batch_destroy(), before `lora`.
 *
 * Return: 0, or
 *   -EINVAL      a number out of range; a target without name, features or layers, or twice; an unknown flag; no such
 *                stream, or a manual one
 *   -EOPNOTSUPP  gpool was built without kernels for this GPU
 *   -ENOSPC, -EDQUOT  as gpool_alloc()
 *   -E2BIG, -ENOMEM, -EIO, -ECHILD
 *
 * Cost: pages of the pool, pinned: 20 bytes for a token, 64 for a place of each of adapters_max, and the sums between
 * the kernels, 64 bytes a rank for each of up to 1,024 tokens and 4 for all; host memory for the first two, twice. The
 * kernels are loaded here and not in a capture.
 */
GPOOL_API int gpool_lora_batch_create(
	struct gpool_lora *lora, const struct gpool_lora_batch_options *options, struct gpool_lora_batch **batch);

/*
 * gpool_lora_batch_destroy() - waits for the work on its stream, and lets go of its adapters. NULL is fine. 0, -EIO,
 * -ECHILD.
 */
GPOOL_API int gpool_lora_batch_destroy(struct gpool_lora_batch *batch);

/*
 * gpool_lora_batch_set() - which adapter each token of the next step has, behind all that is queued on the batch's
 * stream.
 *
 * @adapters: [tokens] numbers of acquired adapters, in any order, or GPOOL_LORA_NONE
 * @tokens:   up to tokens_max; 0: none, which lets go of what the batch has
 * @why:      [GPOOL_LORA_REASON_BYTES] receives why it is refused, as a line; may be NULL
 *
 * The batch acquires its adapters once more, until the next set, and lets go of them behind what was queued on its
 * stream before that: they may be released at once after this call. Every module of an adapter must have its place in
 * the batch, in the same shape: one that was left out would make it another adapter. On failure, but for -EIO, all is
 * as it was, and the batch before is still the batch.
 *
 * Return: 0, or
 *   -EINVAL  more tokens, adapters or ranks than the batch takes; an adapter that is not acquired, has modules of
 *            another shape or without a place here, or weights of another type
 *   -ENOENT  no adapter of that number
 *   -EBUSY   somebody has unloaded an adapter
 *   -EIO     what is on the device may be of two batches: no graph may run, and apply refuses, until a set has
 *            succeeded
 *   -ENOMEM, -ECHILD
 *
 * Cost: sorts the tokens; two driver calls, a copy of 20 bytes for each of tokens_max and a fence. For an adapter that
 * is new in the batch, or has come to another place since, a table for all layers and targets is made, and those that
 * lie side by side are one copy
 * more: not one for each module [lora_batch_set_32, lora_batch_new_32]. While it stays in the pool an adapter that left
 * the batch and comes back costs a pin. Waits, where the copies of the set before the last are not done.
 */
GPOOL_API int gpool_lora_batch_set(
	struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, char *why);

/*
 * gpool_lora_batch_apply() - y += what the tokens' adapters add, in one layer and target; those without a module there
 * add nothing.
 *
 * @layer:    0 .. layers - 1; -1: of a target without a star
 * @target:   index in options.targets
 * @x, @y:    device addresses of [tokens] rows, multiples of 16 bytes, that do not overlap
 * @x_stride, @y_stride: elements from one row to the next, multiples of 8, at least the target's in, out
 * @stream:   the batch's, or what its order is kept with
 *
 * Return: 0, or
 *   -EINVAL  no such layer, target, stream, or a manual one; an address or a stride that is not as above, as the log
 *            says
 *   -EIO     the last set has failed so, or the back end
 *   -ENOMEM, -ECHILD
 *
 * Cost: two launches, nothing else [lora_batch_apply]: no allocation, copy, fence or wait. What the batch has is read
 * when they run.
 */
GPOOL_API int gpool_lora_batch_apply(struct gpool_lora_batch *batch, int32_t layer, uint32_t target, uint64_t x,
	uint32_t x_stride, uint64_t y, uint32_t y_stride, uint32_t stream);

/* ---- work: LoRA adapters, who starts next ---- */

/*
 * The waiting requests of an engine. Before each step it asks which of them start: those whose adapter is in the pool
 * first, in order of arrival, so that steps do not wait for adapters; adapters of those whose turn it is are loaded
 * meanwhile, and of those behind prefetched. What started has its adapter acquired until it is finished.
 *
 *	gpool_lora_scheduler_add(scheduler, adapter, tokens, &request);         as they arrive, by any thread
 *
 *	gpool_lora_scheduler_schedule(scheduler, running ? 0 : -1, &schedule);      before each step
 *	gpool_lora_batch_set(batch, adapters_of_those_that_run, tokens, why);
 *	...                                                                      the step
 *	gpool_lora_scheduler_finish(scheduler, request, NULL);                   for each that has ended: the batch
 *	still has its adapter
 *
 * A batch is what runs and what is started with it: at most batch_requests requests, batch_adapters adapters, and
 * batch_tokens tokens, which are the prompts of those started and one for each that runs. A longer prompt is started
 * when no other one is.
 *
 * Bound: a request is passed over when one starts that came after it. From max_bypass_ms after the first time nobody
 * passes it any more; then it waits for nothing but those before it, its adapter and room in the batch. Where there is
 * no room for its adapter, that is until somebody lets go of what is in use.
 *
 * Threads: any. Memory: 48 bytes for each of `requests`, 80 for each adapter up to the highest number, rounded up to a
 * power of two.
 */
struct gpool_lora_scheduler;

enum { GPOOL_LORA_BATCH_REQUESTS_MAX = 256 };

struct gpool_lora_scheduler_options {
	/* sizeof(struct gpool_lora_scheduler_options); GPOOL_LORA_SCHEDULER_OPTIONS_INIT sets it */
	uint32_t size;
	uint32_t flags;          /* 0 */
	uint32_t requests;       /* most that wait and run at a time, at most 2^20; 0: 4096 */
	uint32_t batch_requests; /* at most 256; 0: 256 */
	uint32_t batch_adapters; /* different ones; 0: 32 */
	uint32_t batch_tokens;   /* 0: 8192 */
	/* requests behind those whose turn it is whose adapters are prefetched, at most 64; 0: 10 */
	uint32_t look_ahead;
	uint32_t max_bypass_ms; /* 0: 2000 */
};
GPOOL_ASSERT_SIZE(gpool_lora_scheduler_options, 32);
#define GPOOL_LORA_SCHEDULER_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_scheduler_options), 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_lora_scheduler_create() - without a request; options may be NULL. It ends before `lora`. Return: 0, -EINVAL,
 * -E2BIG, -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_create(struct gpool_lora *lora, const struct gpool_lora_scheduler_options *options,
	struct gpool_lora_scheduler **scheduler);
/*
 * gpool_lora_scheduler_destroy() - the work of requests that run is done, and no other thread is in a call for it. NULL
 * is fine. 0, -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_destroy(struct gpool_lora_scheduler *scheduler);

/*
 * gpool_lora_scheduler_add() - a request comes, at the end of the queue.
 * @adapter: its number, which is not unregistered before the request has ended; or GPOOL_LORA_NONE
 * @tokens:  of its prompt
 * @request: receives its number, below options.requests, its own until it is finished or removed
 * Return: 0, -ENOENT (no such adapter), -ENOSPC (as many as there may be wait and run), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_add(
	struct gpool_lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint32_t *request);
/*
 * gpool_lora_scheduler_remove() - one that waits, or has failed, is given up: 0, -ENOENT (there is none, or it runs),
 * -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_remove(struct gpool_lora_scheduler *scheduler, uint32_t request);
/*
 * gpool_lora_scheduler_finish() - one that runs has ended; with the last of its adapter's that is released, at once
 * (fence NULL), or when the fence is reached. A batch (gpool_lora_batch_set()) has its adapters by itself. Return: 0,
 * -ENOENT, -EINVAL (no such fence), -ENOMEM (it still runs), -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_finish(
	struct gpool_lora_scheduler *scheduler, uint32_t request, const struct gpool_fence *fence);

struct gpool_lora_schedule {
	uint32_t size; /* sizeof(struct gpool_lora_schedule), set by the caller */
	uint32_t start_count, failed_count;
	uint32_t adapters;                              /* different ones in the batch, with what runs already */
	uint32_t awaited;                               /* adapters that are being loaded for those whose turn it is */
	uint32_t starts[GPOOL_LORA_BATCH_REQUESTS_MAX]; /* they run from now on */
	uint32_t failed[GPOOL_LORA_BATCH_REQUESTS_MAX]; /* their adapter cannot be loaded: to be removed */
	/* of those failed, as gpool_lora_acquire() says; gpool_lora_last_error() has words */
	int32_t errors[GPOOL_LORA_BATCH_REQUESTS_MAX];
};
GPOOL_ASSERT_SIZE(gpool_lora_schedule, 3092);

/*
 * gpool_lora_scheduler_schedule() - the next batch.
 *
 * @timeout_ms: longest wait, milliseconds, until something starts or fails; 0: none, which is for engines of which
 * something runs; -1: no limit
 *
 * Return: how many start, or -EINVAL (timeout_ms, or its size), -ECHILD. What is for lack of room, or of the agent, is
 * tried again at each call, not more often than each 10 ms. Cost: a look at each waiting request, a lock and a pin for
 * each of their adapters.
 */
GPOOL_API int gpool_lora_scheduler_schedule(
	struct gpool_lora_scheduler *scheduler, int timeout_ms, struct gpool_lora_schedule *schedule);

/*
 * gpool_lora_scheduler_queue() - for engines that form their batches themselves, and acquire, start and remove by
 * themselves: those who wait, up to `most`; overdue ones first, then by where their adapters are (there, being loaded,
 * the rest), each in order of arrival.
 * Return: how many, -ECHILD. Cost: as _form(), four times.
 */
GPOOL_API int gpool_lora_scheduler_queue(struct gpool_lora_scheduler *scheduler, uint32_t *requests, uint32_t most);

struct gpool_lora_scheduler_stats {
	uint32_t size; /* sizeof(struct gpool_lora_scheduler_stats), set by the caller */
	uint32_t waiting, running, awaited;
	uint64_t batches; /* that started something */
	uint64_t added, started, finished, removed, failed;
	uint64_t cold_starts; /* requests whose turn it was before their adapter was there */
	uint64_t bypassed;    /* requests */
	uint64_t overdue;     /* requests that were started as such */
	uint64_t longest_bypass_us, longest_wait_us;
};
GPOOL_ASSERT_SIZE(gpool_lora_scheduler_stats, 104);

/* gpool_lora_scheduler_stats() - 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_lora_scheduler_stats(
	struct gpool_lora_scheduler *scheduler, struct gpool_lora_scheduler_stats *statistics);

/* ---- roles ---- */

/*
 * A role is a name that one session of a pool holds at a time: the engine that serves, while others stand by. The agent
 * grants it; the kernel tells the agent of the holder's death, and nothing less than that, a release or a close takes a
 * role away: no time-out, no missed heartbeat. So a holder that is stopped, or has lost its connection, keeps the role
 * until its process has ended, and when a standby has it, nothing of the old holder runs any more, on this machine or
 * its GPUs.
 *
 * What the holder does elsewhere (a request to a server, a file) may arrive late all the same: send the token along,
 * and let the other side refuse one that is lower than it has seen.
 */
struct gpool_role {
	uint64_t token;   /* fencing token: each grant has a higher one than all before in this pool */
	uint32_t index;   /* the role's place in the pool's table */
	uint32_t session; /* holder: gpool_session() */
};
GPOOL_ASSERT_SIZE(gpool_role, 16);

/*
 * gpool_role_acquire() - hold a role; wait for it while another session does, in order of arrival.
 *
 * A role exists from its first acquisition on and belongs to the tenant of who made that. It keeps its place, one of 64
 * in each pool, when nobody holds it ('poolctl roles remove NAME' frees the place).
 *
 * @name:       1 to 63 bytes of printable UTF-8
 * @timeout_ms: longest wait, milliseconds; 0: do not wait, -1: no limit
 * @role:       receives the token
 *
 * Return: 0, or
 *   -ETIMEDOUT  another session holds it, and the time is over; this one waits no longer
 *   -EALREADY   this process has the role, or another thread of it waits for it
 *   -EACCES     the role is another tenant's
 *   -EPERM      a session that only reads
 *   -ENOSPC     64 roles have names
 *   -EINVAL     a name that cannot be, timeout_ms below -1
 *   -EPIPE      the agent has ended this session, or does not answer within 10 s: then this process neither waits for
 *               the role nor gets it, once the agent is back
 *   -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: a round trip to the agent; while waiting a sleep in the kernel. An agent that restarts meanwhile keeps who
 * waits, in order.
 */
GPOOL_API int gpool_role_acquire(struct gpool *pool, const char *name, int timeout_ms, struct gpool_role *role);

/*
 * gpool_role_check() - whether this process holds the role by this token. 0, -ESTALE (given back, or taken over),
 * -EINVAL, -ECHILD. Two loads. What it says was true when it looked; a role does not go away from a process that
 * neither releases nor closes.
 */
GPOOL_API int gpool_role_check(const struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_release() - give it back; the first standby has it when this returns. gpool_close() does the same. What
 * GPU work of the holder still runs is the holder's to wait for. Return: 0, -ESTALE (not ours), -EPIPE (no answer
 * within 10 s: it is given back once the agent is there), -EPROTO, -ECHILD.
 */
GPOOL_API int gpool_role_release(struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_info() - who holds a role: any session may look. *session 0: nobody, and *token is the last holder's.
 * Either may be NULL.
 * Return: 0, -ENOENT (no role of that name), -EINVAL, -ECHILD. No system call.
 */
GPOOL_API int gpool_role_info(const struct gpool *pool, const char *name, uint32_t *session, uint64_t *token);

/* ---- events ---- */

enum gpool_event_kind {
	GPOOL_EVENT_PRESSURE = 1,
	GPOOL_EVENT_EVICTION = 2,
	GPOOL_EVENT_RECLAIM = 3,
	GPOOL_EVENT_TENANT_LIMIT = 4,
	GPOOL_EVENT_AGENT_START = 5,
	GPOOL_EVENT_SESSION_START = 6,
	GPOOL_EVENT_SESSION_END = 7,
	GPOOL_EVENT_LEAKED_PIN = 8,
	GPOOL_EVENT_RELOAD = 9,
	GPOOL_EVENT_FRONT_RESTART = 10,
	GPOOL_EVENT_DAMAGE = 11,
	GPOOL_EVENT_OBJECT_PUBLISHED = 12, /* value: version */
	GPOOL_EVENT_OBJECT_DELETED = 13,
	GPOOL_EVENT_OBJECT_EVICTED = 14,
	GPOOL_EVENT_ROLE_GRANTED = 15, /* value: token */
	GPOOL_EVENT_ROLE_FREED = 16,   /* value: token */
	GPOOL_EVENT_TAKEOVER = 17,     /* a standby has the role of a dead session; value: token */
	/* pages are out of use: a session of another trust domain may still map them; value: its pid */
	GPOOL_EVENT_RETIRED = 18,
	GPOOL_EVENT_SPILL_ERROR = 20, /* content could not be spilled, and stayed, or not be read back, and is lost */
	/* nothing can be spilled, brought back or cleared (value 0), or again it can (1) */
	GPOOL_EVENT_MOVER = 21,
	/* the pool is out of service: end soon, a new session is refused (value 1), or in service again (0) */
	GPOOL_EVENT_DRAIN = 22
};

struct gpool_event {
	uint32_t kind;    /* enum gpool_event_kind */
	uint32_t session; /* whom it concerns; 0: all */
	uint64_t time_ms; /* wall clock */
	uint64_t value;   /* level, pages or number, as the kind says */
	char pool[64];
	char text[192];
};

/*
 * gpool_event_next() - the agent's next event: 0, -ETIMEDOUT. The first call subscribes; earlier events are not seen.
 * One thread.
 */
GPOOL_API int gpool_event_next(struct gpool *pool, int timeout_ms, struct gpool_event *event);

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
