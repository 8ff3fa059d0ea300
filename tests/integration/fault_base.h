/*
 * fault_base.h - the rounds of which `base` consists; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_BASE_H
#define GPOOL_TESTS_FAULT_BASE_H

#include "client/core/pool.h"
#include "tests/integration/fault_trial.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

enum { SPILLED = 3, SPILLED_PAGES = 4 };

enum { WORDS_APART = 8192 }; /* distance of the words that are written and verified */

static int verify(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	uint64_t address;
	const uint64_t *words;
	size_t count = block->page_count * gpool_page_bytes(pool) / sizeof(*words);
	int error = gpool_address(pool, block, &address);

	if (error)
		return error;
	words = (const uint64_t *)(uintptr_t)address;
	for (size_t i = 0; i < count; i += WORDS_APART)
		if (words[i] != seed + i)
			return -EBADMSG;
	return 0;
}

static int fill_and_verify(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	uint64_t address, *words;
	size_t count = block->page_count * gpool_page_bytes(pool) / sizeof(*words);
	int error = gpool_address(pool, block, &address);

	if (error)
		return error;
	words = (uint64_t *)(uintptr_t)address;
	for (size_t i = 0; i < count; i += WORDS_APART)
		words[i] = seed + i;
	return verify(pool, block, seed);
}

/*
 * Allocate blocks that may be spilled, and evict them by allocating the whole pool. Restored blocks must have their
 * content.
 */
static int round_of_spilling(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[SPILLED], pressing[PAGES];
	uint32_t count = 0, made = 0;
	int error = 0;

	options.flags = GPOOL_ALLOC_SPILL;
	while (made < SPILLED && !error)
		error = gpool_alloc(pool, SPILLED_PAGES, &options, &blocks[made++]);
	for (uint32_t i = 0; i < SPILLED && !error; i++) {
		error = fill_and_verify(pool, &blocks[i], 100 * i);
		if (!error)
			error = gpool_unpin(pool, &blocks[i]);
	}
	if (error)
		return error;
	options.flags = 0;
	options.timeout_ms = (uint32_t)session->timeout_ms;
	while (count < PAGES && !error) {
		error = gpool_alloc(pool, 1, &options, &pressing[count]);
		count += !error;
		options.timeout_ms = count < PAGES - SPILLED * SPILLED_PAGES ? (uint32_t)session->timeout_ms : 100;
	}
	/* If a tier fails, its blocks stay resident, so the pool may have been too small. */
	error = error == -ENOSPC ? 0 : error;
	while (count && !error)
		error = gpool_free(pool, &pressing[--count]);
	for (uint32_t i = 0; i < SPILLED && !error; i++) {
		error = gpool_pin(pool, &blocks[i]);
		if (!error)
			error = verify(pool, &blocks[i], 100 * i);
		if (!error)
			error = gpool_free(pool, &blocks[i]);
		/* Content that could not be restored is reported as lost. */
		error = error == -EIO ? 0 : error;
	}
	return error;
}

/* Grow a sliced range while its background thread works, and shrink it. Its committed pages must keep their content. */
static int round_of_growth(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range_info info = {.size = sizeof(info)};
	struct gpool_sliced_range *sliced;
	volatile uint64_t *words;
	int error;

	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	options.read_ahead = 2;
	error = gpool_sliced_range_create(pool, 3, 8, 1, &options, &sliced);
	if (error)
		return error;
	error = gpool_sliced_range_info(sliced, &info);
	words = (volatile uint64_t *)(uintptr_t)info.address;
	for (uint32_t blocks = 1; blocks <= 5 && !error; blocks += 2) {
		error = gpool_sliced_range_grow(sliced, blocks, session->timeout_ms);
		if (!error)
			words[0] = blocks;
	}
	if (!error && words[0] != 5)
		error = -EBADMSG;
	if (!error)
		error = gpool_sliced_range_shrink(sliced, 2, GPOOL_FENCE_NONE);
	if (!error)
		error = gpool_sliced_range_grow(sliced, 8, session->timeout_ms);
	if (!error && words[0] != 5)
		error = -EBADMSG;
	return error ? error : gpool_sliced_range_destroy(sliced);
}

/* Export a fence of queued GPU work, which waits for `gate`. */
static int work_export(struct gpool *pool, struct gpool_fence gate, uint32_t flags, struct gpool_fence_handle *handle)
{
	struct gpool_fence fence;
	uint32_t stream;
	int error = gpool_stream_open(pool, NULL, 0, &stream);

	if (!error)
		error = gpool_stream_wait(pool, stream, gate);
	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	return error ? error : gpool_fence_export(pool, fence, flags, handle);
}

static int round_of_fences(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_fence_handle handle, of_work;
	struct gpool_fence fence, imported;
	struct gpool *other;
	uint32_t stream;
	int error = gpool_open(options, &other);

	if (error)
		return error;
	error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream);
	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	causes_begin();
	if (!error)
		error = gpool_fence_export(pool, fence, 0, &handle);
	causes_end();
	if (!error)
		error = work_export(pool, fence, 0, &of_work);
	if (!error)
		error = gpool_fence_import(other, &handle, &imported);
	if (!error && gpool_fence_done(other, imported) != 0)
		error = -EBADMSG;
	if (!error)
		error = gpool_fence_signal(pool, fence);
	if (!error)
		error = gpool_fence_wait(other, imported, WAIT_MS);
	if (!error)
		error = gpool_fence_close(other, imported);
	gpool_close(other);
	return error;
}

static int object_publish(struct gpool *pool, struct gpool_object **object)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t address, bytes, version;
	uint32_t index;
	int error;

	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	error = gpool_object_create(pool, "weights", &options, object);
	if (error)
		return error;
	error = gpool_object_alloc(*object, 3, NULL, &index);
	if (!error)
		error = gpool_object_address(*object, index, &address, &bytes);
	if (!error)
		*(volatile uint64_t *)(uintptr_t)address = bytes;
	if (!error)
		error = gpool_object_set(*object, "shape", "3", 1);
	if (!error)
		error = gpool_object_publish(*object, &version);
	if (error)
		gpool_object_abort(*object);
	return error;
}

/*
 * Publish an object in one session of this process, read it in another, and delete it. Objects of earlier rounds are
 * deleted first.
 */
static int round_of_objects(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_object *written, *read;
	uint64_t address, bytes;
	struct gpool *reader;
	int error = gpool_object_delete(pool, "weights", 0);

	if (error == 0 || error == -ENOENT)
		error = gpool_open(options, &reader);
	if (error)
		return error;
	error = object_publish(pool, &written);
	if (!error) {
		error = gpool_object_open(reader, "weights", NULL, &read);
		if (!error) {
			error = gpool_object_address(read, 0, &address, &bytes);
			if (!error && *(volatile const uint64_t *)(uintptr_t)address != bytes)
				error = -EBADMSG;
			gpool_object_close(read);
		}
		gpool_object_close(written);
	}
	if (!error)
		error = gpool_object_delete(pool, "weights", 0);
	gpool_close(reader);
	return error;
}

static int round_of_attach(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_block block;
	int error = gpool_alloc(pool, 1, NULL, &block);

	(void)options;
	return error ? error : gpool_free(pool, &block);
}

/* Allocate with requests to the agent, including a scattered block; pin, unpin, free. */
static int round_of_blocks(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_block blocks[PAGES], large;
	uint32_t count = 0;
	int error = 0;

	(void)options;
	while (count < PAGES && !(error = gpool_alloc(pool, 1, NULL, &blocks[count])))
		count++;
	for (uint32_t i = 0; i < count && !error; i++)
		error = fill_and_verify(pool, &blocks[i], i);
	/* Free every second page, so that a long block must be scattered. */
	for (uint32_t i = 0; i < count && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	if (!error)
		error = gpool_alloc(pool, PAGES / 4, NULL, &large);
	if (!error)
		error = fill_and_verify(pool, &large, 1000);
	if (!error)
		error = gpool_unpin(pool, &large);
	if (!error)
		error = gpool_pin(pool, &large);
	if (!error)
		error = gpool_free(pool, &large);
	for (uint32_t i = 1; i < count && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	return error;
}

static int round_of_roles(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	int error = gpool_role_acquire(pool, "main", options->timeout_ms, &role);

	return error ? error : gpool_role_release(pool, &role);
}

#endif
