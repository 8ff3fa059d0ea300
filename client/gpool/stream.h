/* stream.h - streams, fences, and fences of other processes. */
#ifndef GPOOL_STREAM_H
#define GPOOL_STREAM_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A point in the order of a stream; signaled when all earlier work of the stream is done. A fence of a host-signaled
 * timeline is signaled by gpool_fence_signal(). A value that may be copied freely.
 */
struct gpool_fence {
	uint64_t value; /* 0: GPOOL_FENCE_NONE, which is always signaled */
};

#ifdef __cplusplus
#define GPOOL_FENCE_NONE (gpool_fence{0})
#else
#define GPOOL_FENCE_NONE ((struct gpool_fence){0})
#endif

/* ---- streams ---- */

enum {
	/*
	 * a host-signaled timeline, without a GPU stream; the program calls gpool_fence_signal() to signal its fences
	 */
	GPOOL_STREAM_HOST_SIGNALED = 1u << 0,
};

/*
 * gpool_stream_open() - open a stream whose progress the agent and other processes can read.
 *
 * @native: a CUstream of this process, created in the primary context of the pool's device. Fences are recorded after
 *          its work. The program owns it and must not destroy it before gpool_stream_close(). NULL: the library creates
 *          a stream. With the back end `host`, the result of gpool_stream_native() of the same handle, or
 *          CU_STREAM_PER_THREAD. Must be NULL with GPOOL_STREAM_HOST_SIGNALED
 * @flags:  GPOOL_STREAM_*
 * @stream: receives the stream's number, never 0
 *
 * CU_STREAM_PER_THREAD is another stream in each thread, so each thread gets its own number for it, and the same number
 * again when it repeats the call. With the back end `host`, the library creates a stream for the thread. Calls of other
 * threads with this number use CU_STREAM_LEGACY, which waits for the default streams of all threads, and for which they
 * wait. After the thread has ended, the next gpool_stream_open() of the process waits for its work and closes the
 * number.
 *
 * Return: 0, or
 *   -EINVAL      an unknown flag; native with GPOOL_STREAM_HOST_SIGNALED; native of another device or context
 *   -EUSERS      255 streams, own and imported, are in use
 *   -EOPNOTSUPP  the session is an observer or admin; or the device cannot write fences, and
 *                GPOOL_STREAM_HOST_SIGNALED is not set
 *   -EIO, -ENODEV  the GPU driver failed
 *   -EINTR       gpool_wait_check() ended the wait for the default stream of a thread that has ended
 *   -ENOMEM, -ECHILD
 *
 * Cost: one driver call, and one more for the first stream of the session; none for a host-signaled timeline.
 */
GPOOL_API int gpool_stream_open(struct gpool *pool, void *native, uint32_t flags, uint32_t *stream);

/*
 * gpool_stream_native() - return the CUstream of a stream, for kernels that the program queues itself. It is valid
 * until gpool_stream_close(). For the default stream of another thread, it is CU_STREAM_LEGACY. With the back end
 * `host`, the result is only valid as `native` of gpool_stream_open().
 *
 * Return: 0, -EINVAL (not open, or host-signaled), -ECHILD. Cost: a lock of the stream.
 */
GPOOL_API int gpool_stream_native(struct gpool *pool, uint32_t stream, void **native);

/*
 * gpool_stream_close() - wait for a stream's work and close the stream. All of its fences are then signaled, except
 * after a GPU failure. While a graph is being captured from the stream, the call cannot wait: fences that were recorded
 * before are signaled later, calls for the stream return -EBUSY, and memory that was freed in the stream since then
 * stays allocated until gpool_close(). A host-signaled timeline is closed without a wait. A number that is not open is
 * ignored. Cost: the wait for the work.
 */
GPOOL_API void gpool_stream_close(struct gpool *pool, uint32_t stream);

/*
 * gpool_copy() - queue a copy of device memory on a stream.
 *
 * @to, @from: device addresses. Their blocks must be pinned, or protected by a fence, until the work is done
 * @bytes:     length of the copy
 *
 * An address may also be registered host memory. A copy from or to an address that is not mapped fails when the stream
 * executes it. With `cuda`, such a fault ends the context of the process, and all later calls of the driver fail.
 *
 * Return: 0, -EINVAL (not open, or host-signaled; with `host`, also an address that is neither reserved nor
 * registered), -EIO (the GPU or its driver failed), -ENODEV (the GPU driver failed), -ENOMEM, -ECHILD.
 * Cost: one driver call.
 */
GPOOL_API int gpool_copy(struct gpool *pool, uint32_t stream, uint64_t to, uint64_t from, uint64_t bytes);

/*
 * gpool_fill() - queue a fill of device memory with a 32-bit value.
 *
 * @to:    as in gpool_copy(), but registered host memory only by its device address; a multiple of 4
 * @bytes: a multiple of 4
 *
 * Return: as gpool_copy(); -EINVAL also: `to` or `bytes` is not a multiple of 4. Cost: one driver call.
 */
GPOOL_API int gpool_fill(struct gpool *pool, uint32_t stream, uint64_t to, uint32_t value, uint64_t bytes);

/* ---- fences ---- */

/*
 * GPU failures. A fault of work on the GPU, such as an access to an address without a mapping, ends all GPU work of the
 * process: queued work is no longer executed. Waits for fences that are not signaled then return -EIO, and so do
 * calls that queue work. Memory that waits for such a fence is not used again until the process has ended, even after
 * gpool_close(). A process cannot use the GPU after a failure and should end.
 */

/*
 * Captures. While the program captures a graph from a stream, calls that record a fence on the stream, let it wait, or
 * wait for its work return -EBUSY. Otherwise each launch of the graph would signal an old fence again. Record fences
 * before or after the capture. Copies, fills and the program's own kernels become a part of the graph.
 */

/*
 * Host-signaled fences. While a GPU stream waits for a fence that the program has not signaled yet, the thread that
 * will signal it may only call gpool_copy(), gpool_fill(), gpool_stream_wait() and gpool_fence_record(), _done(),
 * _wait() and _signal(). Other functions may map or unmap memory, or wait for another thread that does. The CUDA driver
 * may then wait until all queued work of the process has been executed, which would be a deadlock. For the same reason,
 * these functions do not complete frees that wait for fences while such a fence is not signaled.
 */

/*
 * gpool_fence_record() - record a fence after all work that is queued on a stream. The fence of a host-signaled
 * timeline is signaled by gpool_fence_signal() for it or a later fence, or by gpool_stream_close().
 *
 * Return: 0, -EINVAL (not open), -EBUSY (a graph is being captured from the stream), -EIO (the GPU or its driver
 * failed), -ENODEV (the GPU driver failed), -ENOMEM, -ECHILD. Cost: one driver call, and one more while several GPU
 * streams are open; none for a host-signaled timeline.
 */
GPOOL_API int gpool_fence_record(struct gpool *pool, uint32_t stream, struct gpool_fence *fence);

/*
 * gpool_fence_done() - check whether a fence is signaled.
 *
 * Return: 1: signaled; 0: not signaled; or
 *   -EINVAL  not a fence of this session
 *   -EIO     the GPU of the process that recorded the fence (for an imported event, or of this process) failed before
 *            the fence was signaled: the work before the fence might not have been done
 *   -ESRCH   an imported fence whose process died or detached before the fence was signaled: the work before the fence
 *            might not have been done
 *   -EPIPE   an imported fence that was not signaled when the agent, which reports the death of the fence's process,
 *            was found not running; also later, until the fence is closed
 *   -ECHILD  after fork()
 *
 * Cost: one load; if the fence is signaled, also the frees that wait for fences. For a fence that is not signaled, also
 * a driver call, at most once per millisecond and stream; if it is imported, a lock, and with an event one driver call.
 */
GPOOL_API int gpool_fence_done(struct gpool *pool, struct gpool_fence fence);

/*
 * gpool_fence_wait() - wait on the host until a fence is signaled.
 *
 * @timeout_ms: longest wait, milliseconds; 0: do not wait, -1: no limit
 *
 * Return: 0, -ETIMEDOUT, -EINTR (gpool_wait_check() ended the wait), -EINVAL (timeout_ms below -1), or the errors of
 * gpool_fence_done(). Cost: polls at intervals that grow from 20 us to 1 ms, because the GPU wakes no thread.
 */
GPOOL_API int gpool_fence_wait(struct gpool *pool, struct gpool_fence fence, int timeout_ms);

/*
 * gpool_stream_wait() - make later work of a stream wait for a fence. The call itself does not wait.
 *
 * Return: 0, -EINVAL (the stream is not open, or host-signaled), -EBUSY (a graph is being captured from the stream),
 * -EIO, -ENODEV (as gpool_copy()), -ENOMEM, or the errors of gpool_fence_done(). Cost: one or two driver calls; none
 * if the fence is signaled.
 */
GPOOL_API int gpool_stream_wait(struct gpool *pool, uint32_t stream, struct gpool_fence fence);

/*
 * gpool_fence_signal() - signal a fence of a host-signaled timeline, and all its earlier fences.
 *
 * Return: 0, -EINVAL (not a fence of an open host-signaled timeline of this session), -ECHILD. Cost: a lock and a
 * system call; if no other host-signaled fence is pending, also the frees that wait for fences.
 */
GPOOL_API int gpool_fence_signal(struct gpool *pool, struct gpool_fence fence);

/* ---- fences of other processes ---- */

/*
 * A fence can be exported as a handle of 128 bytes, which the program sends to another process by any means. The
 * imported fence is valid in all calls except gpool_fence_signal() and gpool_fence_export(). An engine can thus publish
 * pages while a copy to them is still queued, and the streams of its readers wait for that copy.
 *
 *	gpool_copy(pool, stream, to, from, bytes);                    in the engine that writes
 *	gpool_fence_record(pool, stream, &fence);
 *	gpool_fence_export(pool, fence, 0, &handle);                  send the handle
 *
 *	gpool_fence_import(pool, &handle, &fence);                    in the engine that reads
 *	gpool_stream_wait(pool, stream, fence);
 *	...                                                           queue reads; when the stream is done:
 *	gpool_fence_done(pool, fence);                                1, or -ESRCH: discard what was read
 *	gpool_fence_close(pool, fence);
 *
 * If the exporting process dies before the fence is signaled, all waits for the fence end, and gpool_fence_done()
 * returns -ESRCH until the fence is closed. If its GPU fails, the same applies with -EIO, but memory that waits for the
 * fence is not used again until the process has died. A reader must therefore check the fence again when its own stream
 * is done. Whether a GPU's wait for an event ends after a failure of the other process's GPU depends on the driver.
 */
enum gpool_fence_handle_type {
	GPOOL_FENCE_HANDLE_SIGNALED = 1, /* the fence was signaled at the export; the import returns GPOOL_FENCE_NONE */
	GPOOL_FENCE_HANDLE_TIMELINE = 2, /* a number in shared memory, for sessions of this pool and trust domain */
	/* an event of the driver; also for sessions of other pools, if the driver permits it */
	GPOOL_FENCE_HANDLE_EVENT = 3
};

/* A fence for other processes. It is valid while the exporting process is running. */
struct gpool_fence_handle {
	uint32_t handle_type; /* enum gpool_fence_handle_type */
	uint8_t bytes[124];
};
GPOOL_ASSERT_SIZE(gpool_fence_handle, 128);

enum {
	/* export an event even if a timeline is possible: the GPU then waits without a CPU thread */
	GPOOL_FENCE_EXPORT_EVENT = 1u << 0,
};

/*
 * gpool_fence_export() - create a handle of a fence for other processes.
 *
 * @flags: 0: a timeline where possible, otherwise an event; or GPOOL_FENCE_EXPORT_EVENT
 *
 * An event is recorded after all work that is queued on the stream at the export. A session has at most 256 events.
 * After that, an export reuses an event whose work is done. A process that imports an older handle of this event, or
 * waits for it, then also waits for the newer work.
 *
 * Return: 0, or
 *   -EINVAL      not a fence of this session, or an imported one; an unknown flag; GPOOL_FENCE_EXPORT_EVENT with a
 *                host-signaled timeline
 *   -EOPNOTSUPP  GPOOL_FENCE_EXPORT_EVENT, but the device has no events that processes can share
 *   -EBUSY       a graph is being captured from the stream
 *   -EUSERS      256 exported events are not signaled
 *   -EPERM       the session is an observer or admin
 *   -EPIPE       the agent is not running, or does not answer within 10 s, and no event is possible
 *   -EIO         the GPU driver failed
 *   -EMFILE, -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: nothing is queued for a signaled fence. For a timeline, at most one driver call; the first export of a session
 * also sends a request to the agent. For an event, a few driver calls.
 */
GPOOL_API int gpool_fence_export(
	struct gpool *pool, struct gpool_fence fence, uint32_t flags, struct gpool_fence_handle *handle);

/*
 * gpool_fence_import() - import a fence of another process, until gpool_fence_close().
 *
 * @handle: may be received from an untrusted peer. A malformed handle is rejected; a forged one affects only its
 *          waiters
 * @fence:  receives the fence
 *
 * While an imported fence is not signaled, a thread of the library polls it. The interval is an eighth of the time
 * since the last import or progress, but at least 20 us and at most 1 ms. It limits the latency that is added to
 * blocks, and to streams that wait for a timeline. Streams wait for an event directly.
 *
 * Return: 0, or
 *   -EINVAL      a malformed handle; a fence of this session; an event of this process
 *   -ESRCH       the exporting process has died or detached; or a timeline of another pool
 *   -EACCES      a fence of another trust domain, or an event of a user whose processes the driver may not access
 *   -EUSERS      255 streams, own and imported, or 256 events are in use
 *   -EOPNOTSUPP  an event, but the device has no events that processes can share
 *   -EPERM       the session is an observer or admin
 *   -EPIPE       a timeline, and the agent is not running, or does not answer within 10 s
 *   -EIO         the GPU of the exporting process or of this process, or its driver, failed
 *   -EMFILE, -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: for a timeline, a lock, and one request to the agent for the first fence of each process. For an event, also
 * one driver call, and for the first import of an event a second one.
 */
GPOOL_API int gpool_fence_import(
	struct gpool *pool, const struct gpool_fence_handle *handle, struct gpool_fence *fence);

/*
 * gpool_fence_close() - end an import.
 *
 * Streams and blocks that wait for the fence continue to wait. The fence must not be used in further calls. For a fence
 * that was signaled at its import the call does nothing.
 *
 * Return: 0, -EINVAL (not an open import), -ECHILD. Cost: a lock.
 */
GPOOL_API int gpool_fence_close(struct gpool *pool, struct gpool_fence fence);

#ifdef __cplusplus
}
#endif

#endif
