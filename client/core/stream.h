/*
 * stream.h - streams whose progress is stored in the session's timeline. Internal to libgpool.
 *
 * The number of a stream is slot | opens << 8, where `opens` counts how often the slot was opened. The number of a
 * closed stream is therefore rejected. A new stream continues the values of the previous stream in its slot, so that
 * the fences of a closed stream stay signaled.
 *
 * After a device failure (gpu.h), pool->gpu_failed is set, and waits for unsignaled fences of GPU streams return -EIO.
 * Work that was running may still use memory. The timeline words of these streams therefore keep their values, and
 * memory that waits for such a fence is not used again until the process has ended. If a stream is closed after the
 * failure, its slot is not reused, and the number of the stream stays valid for stream_slot_of(). The same applies to a
 * stream that is closed while a graph is captured from it.
 */
#ifndef GPOOL_CLIENT_STREAM_H
#define GPOOL_CLIENT_STREAM_H

#include "client/core/internal.h"
#include "client/core/pool.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"
#include "shm/timeline_page.h"

int stream_open_all(struct gpool *pool);
/* stream_close_all() - wait for all queued work, and close all streams. */
void stream_close_all(struct gpool *pool);

/*
 * stream_sync_all() - wait for all work queued so far on streams that are not host-signaled. Return: 0, or the error of
 * the back end.
 */
int stream_sync_all(struct gpool *pool) GPOOL_INTERNAL(stream_sync_all);

/*
 * stream_await_all() - the same, with a limit. most_ms: longest wait; -1: no limit. The check function of the thread
 * may end the wait, so the caller must hold no lock, or pause the checks. With a limit or a check function, the
 * function waits for a fence of each stream. Return: as stream_sync_all(), -EINTR, -ETIMEDOUT.
 */
int stream_await_all(struct gpool *pool, int most_ms);

/*
 * stream_is_threads() - return true if the stream is a thread's default stream. Takes no lock.
 * stream_thread_ends() - record that a thread ends. The next gpool_stream_open() closes its default stream, since a
 * thread that ends might not be able to call the driver. Takes no lock.
 */
bool stream_is_threads(const struct gpool *pool, uint32_t stream);
void stream_thread_ends(struct gpool *pool, const struct thread_cache *thread);

/* stream_on_close() - set the function to call after a stream was closed and its work is done. */
void stream_on_close(struct gpool *pool, void (*callback)(struct gpool *pool, uint32_t stream));

/* stream_slot_of() - get the slot of an open stream. Return: 0, -EINVAL. Cost: one load. */
int stream_slot_of(struct gpool *pool, uint32_t stream, uint32_t *slot);

/*
 * stream_was() - check that the stream is or was open. Return: 0, -EINVAL. stream_can_wait() - return true if it is
 * open and not host-signaled. stream_check() - return 0 if it is, or -EINVAL, with the reason. Takes no lock.
 */
int stream_was(struct gpool *pool, uint32_t stream);
bool stream_can_wait(struct gpool *pool, uint32_t stream);
int stream_check(struct gpool *pool, uint32_t stream) GPOOL_INTERNAL(stream_check);

/*
 * stream_pool_alloc(), stream_pool_free() - call gpu_pool_alloc(), gpu_pool_free() on a stream. Return: as these, or
 * -EINVAL (not open), -EOPNOTSUPP (host-signaled).
 */
int stream_pool_alloc(struct gpool *pool, uint32_t stream, uint64_t bytes, uint64_t *address);
int stream_pool_free(struct gpool *pool, uint32_t stream, uint64_t address);

/*
 * stream_launch() - call `queue`, which queues a kernel, on a stream. Return: as `queue`, or -EINVAL (not open, or
 * host-signaled).
 */
int stream_launch(struct gpool *pool, uint32_t stream,
	int (*queue)(struct gpu *gpu, const void *args, struct gpu_stream *stream), const void *args);

/*
 * stream_kernel() - launch kernels on a stream. STREAM_LORA: lora_shrink_queue() and lora_expand_queue(), with struct
 * lora_args; if one of them fails, neither changes the output. STREAM_DEQUANTISE: dequantise_queue(), with struct
 * quantise_args. Return: as these, or -EINVAL (not open, or host-signaled).
 */
enum stream_kernel { STREAM_LORA, STREAM_DEQUANTISE };
int stream_kernel(struct gpool *pool, uint32_t stream, enum stream_kernel kernel, const void *args)
	GPOOL_INTERNAL(stream_kernel);

/*
 * Prepare a fence for other processes. Return: 0, 1 (it is signaled, so no export is needed), -EINVAL (no stream of
 * this session has recorded it), or the error of the back end.
 *   stream_share()  when the fence is signaled, its number or a higher one of the same stream is stored in the
 *                   published page
 *   stream_event()  record the event after the work that is queued on its stream now; -EINVAL also for a host-signaled
 *                   stream
 */
int stream_share(struct gpool *pool, struct gpool_fence fence);
int stream_event(struct gpool *pool, struct gpool_fence fence, struct gpu_event *event);
/*
 * stream_watch() - query whether the device has failed, if an exported fence is not signaled, and queue the writes of
 * fences that were recorded during captures. Return true if the call must be repeated later.
 */
bool stream_watch(struct gpool *pool);
/* stream_publish() - set the page for stream_share(), once. The page must stay valid until all streams are closed. */
void stream_publish(struct gpool *pool, struct timeline_page *page);

/*
 * A mirror is a slot for the fences of a stream of another process. Streams, waiting blocks and the agent can therefore
 * wait on a word of this session's own segment. A mirror has no stream; import.c signals its fences, in order.
 *   stream_mirror_open()   open a slot: 0, -EUSERS
 *   stream_mirror_next()   return the next fence of the slot
 *   stream_mirror_reach()  signal its fences up to `value`; UINT64_MAX: all
 *   stream_mirror_release()  end the waits of GPU streams, although the fences are not signaled
 *   stream_mirror_close()  signal all its fences, and free the slot
 *
 * GPU streams wait for another word of the mirror, in the second half of the timeline. It differs from the mirror's
 * number only after stream_mirror_release().
 */
int stream_mirror_open(struct gpool *pool, uint32_t *slot);
struct gpool_fence stream_mirror_next(struct gpool *pool, uint32_t slot);
void stream_mirror_reach(struct gpool *pool, uint32_t slot, uint64_t value);
void stream_mirror_release(struct gpool *pool, uint32_t slot);
void stream_mirror_close(struct gpool *pool, uint32_t slot);
bool stream_is_mirror(const struct gpool *pool, uint32_t slot);

/* Functions that the owner of the mirrors provides, for calls that get a fence of a mirror. */
struct stream_mirrors {
	/* return the state of a fence: 1 signaled, 0 not yet, -ESRCH, -EIO, -EPIPE */
	int (*look)(struct gpool *pool, struct gpool_fence fence);
	/* record that a block of this process waits for the fence, even after the fence is closed */
	void (*hold)(struct gpool *pool, struct gpool_fence fence);
	/* make a stream wait for the fence; the caller holds the stream's lock */
	int (*stream_wait)(struct gpool *pool, struct gpu_stream *stream, struct gpool_fence fence);
	/* call stream_watch() in the background until it returns false. Return: 0, -ENOMEM */
	int (*watch)(struct gpool *pool);
};

/* stream_mirrors_register() - set these functions, before the first mirror is opened. */
void stream_mirrors_register(struct gpool *pool, const struct stream_mirrors *mirrors);

/* stream_wait_word() - make a stream wait for a fence by a timeline word in this segment. */
int stream_wait_word(struct gpool *pool, struct gpu_stream *stream, struct gpool_fence fence);

/*
 * release_fence() - record a fence after which memory is released. After a device failure, the fence is never signaled,
 * so the memory is not used again. While a graph is captured from the stream, the fence is signaled some time after the
 * capture has ended. Return: as gpool_fence_record(), except -EIO after a device failure and -EBUSY.
 */
int release_fence(struct gpool *pool, uint32_t stream, struct gpool_fence *fence);
/*
 * release_fence_or_wait() - the same, except that it waits for the work on all streams if no fence can be recorded.
 * Return: the fence; GPOOL_FENCE_NONE: the work is done.
 */
struct gpool_fence release_fence_or_wait(struct gpool *pool, uint32_t stream);

/*
 * fence_joined() - combine two fences into one, for block entries only; `old` may be a joint fence. Return 0 if no
 * joint fence is free.
 */
uint64_t fence_joined(struct gpool *pool, uint64_t old, uint64_t fence);

/* fence_check() - check that a stream has recorded the fence. Return: 0, -EINVAL. */
int fence_check(struct gpool *pool, struct gpool_fence fence) GPOOL_INTERNAL(fence_check);
/* fence_pending() - return true if the fence is not signaled yet; the caller then defers its operation until it is. */
bool fence_pending(struct gpool *pool, struct gpool_fence fence);

#endif
