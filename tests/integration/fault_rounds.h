/*
 * fault_rounds.h - what a worker does while system calls and driver calls fail; for test_faults.c.
 *
 * A round makes the public calls of a scenario, and returns the first error. It makes no assertions: a round in which a
 * call fails may end with any documented error.
 *
 *   base, store   all parts from `attach` to `objects` in parts[], one after the other
 *   a part        this part of parts[] alone
 *   adapters      loads of an adapter from its files, from the copy in host memory, and from the copy on disk
 *   domains       pages that move between trust domains, and back
 *   upgrade       the agent continues with the module's file
 */
#ifndef GPOOL_TESTS_FAULT_ROUNDS_H
#define GPOOL_TESTS_FAULT_ROUNDS_H

#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/faults/fault_file.h"
#include "tests/lib/await.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES = 64, WAIT_MS = AWAIT_MS, SPILLED = 3, SPILLED_PAGES = 4 };

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

static int round_of_fences(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence, imported;
	struct gpool *other;
	uint32_t stream;
	int error = gpool_open(options, &other);

	if (error)
		return error;
	error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream);
	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	if (!error)
		error = gpool_fence_export(pool, fence, 0, &handle);
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

static struct gpool_options options_of(const char *where, int timeout_ms)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;

	options.directory = where;
	options.timeout_ms = timeout_ms;
	return options;
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

/* ---- adapters ---- */

/* Return the file that tests/faults/sites writes; NULL: no call site fails. */
static struct fault_file *fault_file(void)
{
	static struct fault_file *file;
	const char *path = getenv("GPOOL_FAULT_FILE");
	int fd = path && !file ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *base = fd < 0 ? MAP_FAILED : mmap(NULL, FAULT_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base != MAP_FAILED)
		file = base;
	if (fd >= 0)
		close(fd);
	return file;
}

/* Return true if the call site of the current trial has failed. */
static bool fault_has_happened(void)
{
	struct fault_file *file = fault_file();

	return file && atomic_load(&file->trial_of[atomic_load(&file->trial) % FAULT_TRIALS_MAX].failed);
}

/* The front sends a beat at each interval. Wait until the call has failed, or for some beats without a fault. */
static int round_of_beats(struct gpool *pool, const struct gpool_options *session)
{
	const struct fault_file *file = fault_file();

	(void)pool;
	(void)session;
	if (!file || !file->trials)
		poll(NULL, 0, 3 * MSG_BEAT_MS);
	else
		for (int i = 0; i < AWAIT_TRIES && !fault_has_happened(); i++)
			poll(NULL, 0, AWAIT_STEP_MS);
	return 0;
}

/* Wait for both copies of the adapter. After a fault they may not be made, and the wait is short. */
static void copies_await(struct gpool_lora *lora)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	for (int i = 0; i < AWAIT_TRIES; i++) {
		if (gpool_lora_stats(lora, &stats) || (stats.warm_bytes && stats.cold_bytes))
			return;
		if (i * AWAIT_STEP_MS > 300 && fault_has_happened())
			return;
		poll(NULL, 0, AWAIT_STEP_MS);
	}
}

static int adapter_use(struct gpool_lora *lora, uint32_t id, int timeout_ms)
{
	int error = gpool_lora_acquire(lora, id, timeout_ms);

	return error ? error : gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
}

/* The folder of an adapter, seen from the folder of this program or of a copy of it in a folder below. */
static void adapter_folder(char *path, size_t bytes)
{
	char program[512] = "";
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

	if (length < 0 || !strstr(program, "/build/"))
		return;
	*strstr(program, "/build/") = '\0';
	snprintf(path, bytes, "%s/tests/fixtures/adapters/plain", program);
}

/* Load the adapter and use it, until it is unloaded. The set is destroyed in any case. */
static int adapters_load(struct gpool_lora *lora, bool copies, int timeout_ms)
{
	char folder[600] = "";
	uint32_t id;
	int error, destroyed;

	adapter_folder(folder, sizeof(folder));
	error = gpool_lora_register(lora, "adapter", folder, &id, NULL);
	if (!error)
		error = adapter_use(lora, id, timeout_ms);
	if (!error && copies)
		copies_await(lora);
	if (!error)
		error = gpool_lora_unload(lora, id);
	if (!error && copies)
		error = adapter_use(lora, id, timeout_ms);
	if (!error && copies)
		error = gpool_lora_unload(lora, id);
	for (int i = 0; (destroyed = gpool_lora_destroy(lora)) == -EBUSY && i < AWAIT_TRIES; i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	return error == -EBUSY ? -ETIMEDOUT : error ? error : destroyed;
}

static int round_of_adapters(const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool_lora_options adapters = GPOOL_LORA_OPTIONS_INIT;
	struct gpool *pool, *warm;
	struct gpool_lora *lora;
	char cache[160];
	int error;

	/* The copies on disk of another round are not used. */
	snprintf(cache, sizeof(cache), "%s/../cache-%d", where, (int)getpid());
	mkdir(cache, 0700);
	options.pool = "p0";
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	options.pool = "warm";
	error = gpool_open(&options, &warm);
	if (error) {
		gpool_close(pool);
		return error;
	}
	adapters.element = GPOOL_LORA_BF16;
	adapters.cache_dir = cache;
	adapters.rebalance_ms = UINT32_MAX;
	adapters.warm = warm;
	error = gpool_lora_create(pool, &adapters, &lora);
	if (!error)
		error = adapters_load(lora, true, WAIT_MS);
	/* Without the copy in host memory, the one on disk is read. */
	adapters.warm = NULL;
	if (!error)
		error = gpool_lora_create(pool, &adapters, &lora);
	if (!error)
		error = adapters_load(lora, false, WAIT_MS);
	gpool_close(warm);
	gpool_close(pool);
	return error;
}

/* ---- streams, ranges, caches ---- */

/* Some calls return a number on success. */
static int error_of(int result)
{
	return result < 0 ? result : 0;
}

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

static int round_of_ranges(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_object *object, *mapped;
	struct gpool_range *range;
	uint8_t kept[8];
	int error = gpool_object_delete(pool, "pages", 0), destroyed;

	if (error && error != -ENOENT)
		return error;
	options.flags = GPOOL_RANGE_ZERO;
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	error = gpool_range_reserve(pool, 8, &options, &range);
	if (error)
		return error;
	error = gpool_range_commit(range, 0, 4, session->timeout_ms);
	if (!error)
		error = gpool_range_offer(range, 0, 2, GPOOL_FENCE_NONE);
	if (!error)
		error = error_of(gpool_range_reclaim(range, 0, 2, kept));
	if (!error)
		error = gpool_range_publish(range, 2, 2, "pages", NULL, &object);
	if (!error) {
		error = gpool_range_map(range, 6, "pages", NULL, &mapped);
		if (!error)
			error = gpool_object_unpin(mapped);
		if (!error)
			error = gpool_range_unmap(range, mapped);
		if (!error)
			error = gpool_object_unpin(object);
		if (!error)
			error = gpool_range_unmap(range, object);
	}
	if (!error)
		error = gpool_range_decommit(range, 0, 2, GPOOL_FENCE_NONE);
	destroyed = gpool_range_destroy(range);
	if (!error)
		error = gpool_object_delete(pool, "pages", 0);
	return error == -ENOENT ? 0 : error ? error : destroyed;
}

/* A range that sleeps and wakes must have its content again. */
static int round_of_sleep(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_range *range;
	volatile uint64_t *words;
	uint64_t address;
	int error = gpool_range_create(pool, 2, NULL, &range), destroyed;

	if (error)
		return error;
	error = gpool_range_address(range, &address);
	words = (volatile uint64_t *)(uintptr_t)address;
	*words = 77;
	if (!error)
		error = error_of(gpool_sleep(pool, 0));
	if (!error)
		error = error_of(gpool_wake(pool, session->timeout_ms));
	if (!error && *words != 77)
		error = -EBADMSG;
	destroyed = gpool_range_destroy(range);
	return error ? error : destroyed;
}

/* A sequence is offloaded to host memory, as it is and in int8, and resumed. */
static int round_of_cache(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence;
	struct gpool_kv *kv;
	int error = gpool_stream_open(pool, NULL, 0, &options.stream), destroyed;

	(void)session;
	if (error)
		return error;
	options.shape = (struct gpool_kv_shape){
		.layers = 2, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2, .block_tokens = 16};
	options.max_blocks = 64;
	options.flags = GPOOL_KV_ZERO;
	options.max_sequence_tokens = 512;
	error = gpool_kv_create(pool, &options, &kv);
	if (error)
		return error;
	error = error_of(gpool_kv_host_reserve(kv, 1 << 20));
	request.tokens = 40;
	if (!error)
		error = error_of(gpool_kv_allocate(kv, &request, &sequence));
	for (uint32_t flags = 0; flags <= GPOOL_KV_OFFLOAD_INT8 && !error; flags += GPOOL_KV_OFFLOAD_INT8) {
		error = error_of(gpool_kv_offload(kv, sequence, flags, NULL));
		if (!error)
			error = error_of(gpool_kv_resume(kv, sequence));
	}
	if (!error)
		error = error_of(gpool_kv_sync(kv));
	if (!error)
		error = error_of(gpool_kv_free(kv, sequence));
	destroyed = gpool_kv_destroy(kv);
	return error ? error : destroyed;
}

/* ---- trust domains ---- */

static inline void domains_write(const char *path)
{
	FILE *file = fopen(path, "we");
	char folder[128];

	snprintf(folder, sizeof(folder), "%s.d", path);
	if (!file || mkdir(folder, 0755))
		abort();
	fputs("pools = ( { name = \"p0\"; backend = \"host\"; size = \"64 pages\"; page_size = \"512KB\"; "
	      "reserved = \"0 pages\"; } );\n"
	      "tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; "
	      "domain = \"blue\"; } );\n"
	      "lease: { initial_pages = 0; batch_pages = 1; };\n",
		file);
	fclose(file);
}

/* Allocate three quarters of the pool, whose pages must contain no word of the other tenant, fill and free them. */
static int domain_use(struct gpool *pool, uint64_t word, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	size_t page_words = gpool_page_bytes(pool) / 8;
	struct gpool_block block;
	uint64_t address, *words;
	int error, freed;

	options.timeout_ms = timeout_ms;
	error = gpool_alloc(pool, PAGES * 3 / 4, &options, &block);
	if (error)
		return error;
	error = gpool_address(pool, &block, &address);
	words = (uint64_t *)(uintptr_t)address;
	for (size_t i = 0; !error && i < PAGES * 3 / 4; i++) {
		if (words[i * page_words] && words[i * page_words] != word)
			error = -EBADMSG;
		words[i * page_words] = word;
	}
	freed = gpool_free(pool, &block);
	return error ? error : freed;
}

/* Let both tenants use three quarters of the pool in turn, so that pages move in each direction. */
static int round_of_domains(const char *where, int timeout_ms)
{
	static const char *const names[] = {"red", "blue"};
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool *pools[2] = {NULL, NULL};
	int error = 0;

	for (int i = 0; i < 2 && !error; i++) {
		options.tenant = names[i];
		error = gpool_open(&options, &pools[i]);
	}
	for (int turn = 0; turn < 4 && !error; turn++) {
		struct gpool *pool = pools[turn % 2], *other = pools[(turn + 1) % 2];

		/* The agent clears the pages of the other tenant after its session has unmapped them. */
		error = domain_use(pool, 1 + (uint64_t)turn % 2, turn ? 20 : timeout_ms);
		for (int i = 0; error == -ENOSPC && i < AWAIT_TRIES / 20; i++) {
			gpool_release_unused(other);
			error = domain_use(pool, 1 + (uint64_t)turn % 2, 20);
			if (error && fault_has_happened() && i > 20)
				break;
		}
	}
	for (int i = 0; i < 2; i++)
		if (pools[i])
			gpool_close(pools[i]);
	return error;
}

/* ---- upgrade ---- */

/* Return: 0, -EIO if the agent has refused to continue with the module's file. */
static int upgrade(const struct gpool_options *options)
{
	static uint8_t reply[MSG_BYTES_MAX];
	const struct msg_upgrade_request request = {0};
	struct gpool_options admin_options = *options;
	struct msg_done_reply done;
	uint8_t message[256];
	struct gpool *admin;
	int error, length;

	admin_options.flags = GPOOL_OPEN_ADMIN;
	error = gpool_open(&admin_options, &admin);
	if (error)
		return error;
	length = msg_encode_upgrade_request(&request, 0, NULL, message, sizeof(message));
	length = pool_request(admin, message, (size_t)length, reply, sizeof(reply), options->timeout_ms, NULL);
	error = length > 0 && !msg_decode_done_reply(&done, reply, (size_t)length) ? 0 : -EIO;
	gpool_close(admin);
	return error;
}

/* The previous agent answers before it exits, and serves until then. */
static int successor_await(const struct gpool *pool, uint64_t incarnation, int timeout_ms)
{
	for (int waited = 0; waited < timeout_ms; waited += AWAIT_STEP_MS) {
		if (atomic_load(&pool->segment.header->incarnation) != incarnation)
			return 0;
		poll(NULL, 0, AWAIT_STEP_MS);
	}
	return -ETIMEDOUT;
}

static int round_of_upgrade(const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool_block block, more;
	uint64_t incarnation;
	struct gpool *pool;
	int error;

	error = gpool_open(&options, &pool);
	if (error)
		return error;
	incarnation = atomic_load(&pool->segment.header->incarnation);
	error = gpool_alloc(pool, PAGES / 4, NULL, &block);
	if (!error)
		error = fill_and_verify(pool, &block, 7);
	if (!error)
		error = upgrade(&options);
	if (!error)
		error = successor_await(pool, incarnation, timeout_ms);
	if (!error)
		error = verify(pool, &block, 7);
	if (!error)
		error = gpool_alloc(pool, PAGES / 2, NULL, &more);
	if (!error)
		error = fill_and_verify(pool, &more, 8);
	gpool_close(pool);
	return error;
}

/* The parts of a session's work. */
static const struct {
	const char *name;
	int (*run)(struct gpool *pool, const struct gpool_options *session);
	bool in_base;
} parts[] = {
	{"attach", round_of_attach, true},
	{"blocks", round_of_blocks, true},
	{"growth", round_of_growth, true},
	{"spill", round_of_spilling, true},
	{"roles", round_of_roles, true},
	{"fences", round_of_fences, true},
	{"objects", round_of_objects, true},
	{"streams", round_of_streams, false},
	{"malloc", round_of_malloc, false},
	{"ranges", round_of_ranges, false},
	{"cache", round_of_cache, false},
	{"sleep", round_of_sleep, false},
	{"beats", round_of_beats, false},
};

static int round_of_parts(const char *scenario, const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	bool base = !strcmp(scenario, "base") || !strcmp(scenario, "store");
	bool found = false;
	struct gpool *pool;
	int error = gpool_open(&options, &pool);

	if (error)
		return error;
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts) && !error; i++)
		if (base ? parts[i].in_base : !strcmp(parts[i].name, scenario)) {
			error = parts[i].run(pool, &options);
			found = true;
		}
	gpool_close(pool);
	return found ? error : -EINVAL;
}

static int round_of(const char *scenario, const char *where, int timeout_ms)
{
	if (!strcmp(scenario, "adapters"))
		return round_of_adapters(where, timeout_ms);
	if (!strcmp(scenario, "domains"))
		return round_of_domains(where, timeout_ms);
	if (!strcmp(scenario, "upgrade"))
		return round_of_upgrade(where, timeout_ms);
	return round_of_parts(scenario, where, timeout_ms);
}

#endif
