/*
 * fault_streams.h - rounds with streams and the stream-ordered allocator; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_STREAMS_H
#define GPOOL_TESTS_FAULT_STREAMS_H

#include "tests/integration/fault_trial.h"

#include <errno.h>
#include <stdio.h>

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
	gpool_stream_close(pool, second);
	gpool_stream_close(pool, stream);
	return error;
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

#endif
