/* stream.h - streams, fences, and fences of other processes. */
#ifndef GPOOL_STREAM_H
#define GPOOL_STREAM_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A point in a stream: reached when all work queued before it is done. Zero: always reached. */
struct gpool_fence {
	uint64_t value;
};

/* The fence "none": signaled at all times. */
#ifdef __cplusplus
#define GPOOL_FENCE_NONE (gpool_fence{0})
#else
#define GPOOL_FENCE_NONE ((struct gpool_fence){0})
#endif

/* ---- streams and fences ---- */

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

/* ---- fences of other processes ---- */

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
	uint32_t handle_type; /* enum gpool_fence_handle_type */
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

#ifdef __cplusplus
}
#endif

#endif
