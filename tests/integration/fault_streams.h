/*
 * fault_streams.h - rounds with streams, the stream-ordered allocator and fences of other processes; for
 * fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_STREAMS_H
#define GPOOL_TESTS_FAULT_STREAMS_H

#include "client/core/pool.h"
#include "client/core/stream.h"
#include "cuda/gpu.h"
#include "tests/integration/fault_adapters.h"
#include "tests/integration/fault_base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int is_second(void *checks)
{
	return ++*(int *)checks == 2;
}

/* Between the two checks, the thread sleeps at least once. Return: -EINTR if the fence is not signaled. */
static int wait_until_checked_twice(struct gpool *pool, struct gpool_fence fence)
{
	int checks = 0, error;

	gpool_wait_check(is_second, &checks);
	error = gpool_fence_wait(pool, fence, WAIT_MS);
	gpool_wait_check(NULL, NULL);
	return error;
}

/* Use a stream of the program, and the default stream of this thread. */
static int streams_adopt(struct gpool *pool)
{
	struct gpu_stream *native;
	uint32_t stream;
	int error = gpu_stream_create(pool->gpu, &native);

	if (error)
		return error;
	error = gpool_stream_open(pool, native, 0, &stream);
	if (!error)
		gpool_stream_close(pool, stream);
	gpu_stream_destroy(pool->gpu, native);
	if (!error)
		error = gpool_stream_open(pool, GPU_STREAM_PER_THREAD, 0, &stream);
	if (!error)
		gpool_stream_close(pool, stream);
	return error;
}

/*
 * Record the fence after which memory is free, as the end of a loan does. If the driver refuses to write it, as during
 * a capture, another thread writes it later.
 */
static int fence_owed(struct gpool *pool)
{
	struct gpool_fence fence;
	uint32_t stream;
	int error = gpool_stream_open(pool, NULL, 0, &stream);

	if (error)
		return error;
	causes_begin();
	error = release_fence(pool, stream, &fence);
	if (!error && gpool_fence_wait(pool, fence, LATE_MS))
		error = -EBADMSG;
	causes_end();
	gpool_stream_close(pool, stream);
	return error;
}

static int never(void *nothing)
{
	(void)nothing;
	return 0;
}

/* End a range in a thread with a check function, which waits for the streams by fences. */
static int range_with_check(struct gpool *pool)
{
	struct gpool_range *range;
	int error = gpool_range_reserve(pool, 1, NULL, &range);

	if (error)
		return error;
	gpool_wait_check(never, NULL);
	error = gpool_range_destroy(range);
	gpool_wait_check(NULL, NULL);
	return error;
}

static int round_of_streams(struct gpool *pool, const struct gpool_options *session)
{
	uint64_t bytes = gpool_page_bytes(pool), from, to;
	struct gpool_fence fence = GPOOL_FENCE_NONE, gate;
	uint32_t stream, second, of_host;
	struct gpool_block block;
	int error = gpool_stream_open(pool, NULL, 0, &stream), signaled;

	(void)session;
	if (!error)
		error = gpool_stream_open(pool, NULL, 0, &second);
	if (!error)
		error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &of_host);
	if (!error)
		error = gpool_fence_record(pool, of_host, &gate);
	if (error)
		return error;
	error = gpool_alloc(pool, 2, NULL, &block);
	if (!error)
		error = gpool_address(pool, &block, &from);
	to = from + bytes;
	if (!error)
		error = gpool_stream_wait(pool, stream, gate);
	if (!error)
		error = gpool_fill(pool, stream, from, 5, bytes);
	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	if (!error)
		error = error_of(gpool_fence_done(pool, fence));
	if (!error && wait_until_checked_twice(pool, fence) != -EINTR)
		error = -EBADMSG;
	signaled = gpool_fence_signal(pool, gate);
	error = error ? error : signaled;
	if (!error)
		error = gpool_stream_wait(pool, second, fence);
	if (!error)
		error = gpool_copy(pool, second, to, from, bytes);
	if (!error)
		error = gpool_fence_record(pool, second, &fence);
	if (!error)
		error = gpool_fence_wait(pool, fence, WAIT_MS);
	if (!error && *(volatile uint32_t *)(uintptr_t)to != 5)
		error = -EBADMSG;
	if (!error)
		error = gpool_free_after(pool, &block, fence);
	if (!error)
		error = range_with_check(pool);
	gpool_stream_close(pool, second);
	gpool_stream_close(pool, stream);
	if (!error)
		error = streams_adopt(pool);
	return error ? error : fence_owed(pool);
}

/* Whole pages and a small allocation, which the allocator records in a file. */
static int round_of_malloc(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	uint64_t large, small;
	uint32_t stream;
	char path[160];
	int error;

	snprintf(path, sizeof(path), "%s/../record", session->directory);
	options.record_path = path;
	error = gpool_stream_open(pool, NULL, 0, &stream);
	if (!error)
		error = gpool_vm_configure(pool, &options);
	if (!error)
		error = gpool_malloc_async(pool, 3 * gpool_page_bytes(pool), stream, &large);
	if (!error)
		error = gpool_malloc_async(pool, 1000, stream, &small);
	if (!error)
		error = gpool_free_async(pool, small, stream);
	if (!error)
		error = gpool_free_async(pool, large, stream);
	return error;
}

struct exported {
	int error;
	struct gpool_fence_handle handle;
};

/*
 * Export two fences as events of the driver, signal them when the parent has written to `order`, and end when the
 * parent has closed it.
 */
static int exporter_run(const struct gpool_options *session, int order, int answer)
{
	struct exported exported = {0};
	struct gpool_fence_handle second;
	struct gpool_fence gate;
	uint32_t stream;
	struct gpool *pool;
	char byte;
	int error = gpool_open(session, &pool);

	if (error)
		return error;
	error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream);
	if (!error)
		error = gpool_fence_record(pool, stream, &gate);
	if (!error)
		error = work_export(pool, gate, GPOOL_FENCE_EXPORT_EVENT, &exported.handle);
	causes_begin();
	if (!error)
		error = work_export(pool, gate, GPOOL_FENCE_EXPORT_EVENT, &second);
	causes_end();
	exported.error = error;
	if (write(answer, &exported, sizeof(exported)) != (ssize_t)sizeof(exported) || read(order, &byte, 1) < 0)
		error = -EPIPE;
	gpool_fence_signal(pool, gate);
	while (read(order, &byte, 1) > 0)
		;
	gpool_close(pool);
	return error;
}

/* Wait for a fence of another process, on the CPU and in a stream. */
static int importer_run(struct gpool *pool, const struct gpool_fence_handle *handle, int order)
{
	struct gpool_fence imported, fence;
	uint32_t stream;
	int error = gpool_fence_import(pool, handle, &imported);

	if (error)
		return error;
	error = error_of(gpool_fence_done(pool, imported));
	if (!error)
		error = gpool_stream_open(pool, NULL, 0, &stream);
	if (!error)
		error = gpool_stream_wait(pool, stream, imported);
	if (write(order, "", 1) != 1)
		error = -EPIPE;
	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	if (!error)
		error = gpool_fence_wait(pool, fence, WAIT_MS);
	if (!error)
		error = gpool_fence_wait(pool, imported, WAIT_MS);
	if (!error)
		error = gpool_fence_close(pool, imported);
	return error;
}

static int round_of_exports(const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	int order[2], answer[2], error, status = 0;
	struct exported exported;
	struct gpool *pool;
	pid_t child;

	if (pipe(order) || pipe(answer))
		return -EMFILE;
	child = fork();
	if (child == 0) {
		close(order[1]);
		close(answer[0]);
		_exit(exporter_run(&options, order[0], answer[1]) ? 1 : 0);
	}
	close(order[0]);
	close(answer[1]);
	if (child < 0 || read(answer[0], &exported, sizeof(exported)) != (ssize_t)sizeof(exported))
		exported.error = -EPIPE;
	error = exported.error;
	if (!error)
		error = gpool_open(&options, &pool);
	if (!error) {
		error = importer_run(pool, &exported.handle, order[1]);
		gpool_close(pool);
	}
	close(order[1]);
	close(answer[0]);
	if (child > 0 && (waitpid(child, &status, 0) != child || status))
		error = error ? error : -EPIPE;
	return error;
}

struct threads_stream {
	struct gpool *pool;
	uint32_t stream;
	int error;
};

static void *threads_stream_open(void *context)
{
	struct threads_stream *opened = context;

	opened->error = gpool_stream_open(opened->pool, GPU_STREAM_PER_THREAD, 0, &opened->stream);
	return NULL;
}

/* Close the default stream of another thread, whose work is waited for by the legacy default stream. */
static int other_thread_use(struct gpool *pool)
{
	struct threads_stream opened = {.pool = pool};
	pthread_t thread;

	if (pthread_create(&thread, NULL, threads_stream_open, &opened))
		return -ENOMEM;
	pthread_join(thread, NULL);
	if (!opened.error)
		gpool_stream_close(pool, opened.stream);
	return opened.error;
}

/* Use buffers of the driver's pool. One remains until the session ends. */
static int driver_pool_use(struct gpool *pool)
{
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	uint32_t stream, of_host;
	struct gpool_fence gate;
	uint64_t addresses[4];
	int error = gpool_stream_open(pool, NULL, 0, &stream);

	options.small = GPOOL_VM_SMALL_DRIVER;
	if (!error)
		error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &of_host);
	if (!error)
		error = gpool_vm_configure(pool, &options);
	for (int i = 0; i < 4 && !error; i++)
		error = gpool_malloc_async(pool, 1000, stream, &addresses[i]);
	if (!error)
		error = gpool_free_async(pool, addresses[0], stream);
	if (!error)
		error = gpool_fence_record(pool, of_host, &gate);
	if (!error)
		error = gpool_free_async(pool, addresses[1], of_host);
	if (!error)
		error = gpool_fence_signal(pool, gate);
	return error ? error : gpool_free_async(pool, addresses[2], 0);
}

/* Load an adapter from its copy on disk in int8, which the GPU converts. */
static int converted_load(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *lora;
	char cache[160];
	int error;

	snprintf(cache, sizeof(cache), "%s/../cache-%d", session->directory, (int)getpid());
	mkdir(cache, 0700);
	options.flags = GPOOL_LORA_INT8;
	options.element = GPOOL_LORA_BF16;
	options.rebalance_ms = UINT32_MAX;
	options.cache_dir = cache;
	error = gpool_lora_create(pool, &options, &lora);
	return error ? error : adapters_load(lora, "plain", 1, WAIT_MS);
}

static int round_of_driver(struct gpool *pool, const struct gpool_options *session)
{
	int error = round_of_batches(pool, session);

	if (!error)
		error = converted_load(pool, session);
	if (!error)
		error = other_thread_use(pool);
	return error ? error : driver_pool_use(pool);
}

#endif
