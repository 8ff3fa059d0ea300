/*
 * offload_host.c - see offload_host.h.
 *
 * Copies in both directions use the cache's stream. A slot can therefore be reused for another sequence without a wait:
 * copies that are queued later are executed after those that were queued before.
 */
#include "client/kv/offload_host.h"

#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART_BYTES (UINT64_C(4) << 20) /* chosen: bytes that are converted at a time, enough to occupy a GPU */

/* ---- slots ---- */

static void slots_put(struct kv_host *host, const uint32_t *slots, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		bitmap_add(&host->free, slots[i]);
}

/* Return the part that begins with slot `index`: adjacent slots, at most `most`. */
static struct kv_extent part_at(
	const struct gpool_kv *kv, const struct kv_saved *saved, uint32_t index, uint32_t most, uint32_t *slots)
{
	uint32_t run = 1;

	while (run < most && index + run < saved->count && saved->slots[index + run] == saved->slots[index] + run)
		run++;
	*slots = run;
	return (struct kv_extent){
		.address = (uint64_t)(uintptr_t)kv->host->memory + saved->slots[index] * kv->block_bytes,
		.bytes = run * kv->block_bytes,
	};
}

static int copy_as_is(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved, bool out)
{
	int64_t offset = 0;

	for (uint32_t i = 0, run; i < saved->count && offset >= 0; i += run) {
		struct kv_extent part = part_at(kv, saved, i, UINT32_MAX, &run);

		offset = extent_copy(kv, sequence, saved, (uint64_t)offset, &part, out);
	}
	return offset < 0 ? (int)offset : 0;
}

/*
 * Convert one part through the pages at `stage`, or directly at the address for kernels if `stage` is 0. Return the
 * offset of the next part.
 */
static int64_t part_convert(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved,
	uint64_t offset, const struct kv_extent *part, uint64_t stage, bool out)
{
	uint64_t direct = kv->host->address + (part->address - (uint64_t)(uintptr_t)kv->host->memory);
	struct kv_extent staged = {.address = stage ? stage : direct, .bytes = part->bytes};
	int64_t next;
	int error = 0;

	if (stage && !out)
		error = gpool_copy(kv->pool, kv->stream, stage, part->address, part->bytes);
	if (error)
		return error;
	next = extent_copy(kv, sequence, saved, offset, &staged, out);
	if (next >= 0 && stage && out)
		error = gpool_copy(kv->pool, kv->stream, part->address, stage, part->bytes);
	return error ? error : next;
}

/*
 * Allocate pages for the conversion. Return their address; 0: none are available, or they are host memory themselves.
 */
static uint64_t stage_alloc(struct gpool_kv *kv, uint64_t bytes, struct gpool_block *block)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint64_t pages = (bytes + kv->pool->page_bytes - 1) / kv->pool->page_bytes, address;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	options.stream = kv->stream;
	/* The address of a block that is pinned is known. */
	if (kv->pool->capabilities & GPU_CAP_HOST_POINTER || alloc_own(kv->pool, (uint32_t)pages, &options, 0, block) ||
		gpool_address(kv->pool, block, &address))
		return 0;
	return address;
}

/*
 * Convert through pages of the pool, because kernels write slowly to host memory, in particular the sums. The same
 * pages serve all parts, because the stream executes the work in order. If no pages are available, convert directly.
 */
static int convert(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved, bool out)
{
	uint32_t slots = kv->block_bytes < PART_BYTES ? (uint32_t)(PART_BYTES / kv->block_bytes) : 1;
	struct gpool_block block;
	uint64_t stage = stage_alloc(kv, slots * kv->block_bytes, &block);
	int64_t offset = 0;

	for (uint32_t i = 0, run; i < saved->count && offset >= 0; i += run) {
		struct kv_extent part = part_at(kv, saved, i, slots, &run);

		offset = part_convert(kv, sequence, saved, (uint64_t)offset, &part, stage, out);
	}
	if (stage)
		gpool_free_after(kv->pool, &block, offload_behind(kv));
	return offset < 0 ? (int)offset : 0;
}

static int copy(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved, bool out)
{
	return saved->flags & GPOOL_KV_OFFLOAD_INT8 ? convert(kv, sequence, saved, out)
						    : copy_as_is(kv, sequence, saved, out);
}

int host_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved)
{
	struct kv_host *host = kv->host;
	uint64_t room = extent_room(kv, saved->flags, kv->block_bytes), count = (saved->bytes + room - 1) / room;
	int error;

	if (count > host->free.count)
		return fail(-ENOSPC, "the content needs %llu block%s of host memory, of which %u are free",
			(unsigned long long)count, plural(count), host->free.count);
	saved->slots = calloc(count + 1, sizeof(*saved->slots)); /* count is 0 for a sequence without tokens */
	if (!saved->slots)
		return -ENOMEM;
	for (saved->count = 0; saved->count < count; saved->count++) {
		saved->slots[saved->count] = bitmap_lowest(&host->free);
		bitmap_remove(&host->free, saved->slots[saved->count]);
	}
	error = copy(kv, sequence, saved, true);
	if (error)
		host_forget(kv, saved);
	return error;
}

int host_load(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return copy(kv, sequence, sequence->saved, false);
}

void host_forget(struct gpool_kv *kv, struct kv_saved *saved)
{
	slots_put(kv->host, saved->slots, saved->count);
	free(saved->slots);
}

/* ---- create and destroy ---- */

static void host_free(struct kv_host *host)
{
	bitmap_fini(&host->free);
	if (host->memory)
		munmap(host->memory, host->bytes);
	free(host);
}

void host_close(struct gpool_kv *kv)
{
	if (!kv->host)
		return;
	gpu_host_unregister(kv->pool->gpu, kv->host->memory);
	host_free(kv->host);
	kv->host = NULL;
}

static int memory_open(struct gpool_kv *kv, struct kv_host *host)
{
	void *memory = mmap(NULL, host->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error;

	if (memory == MAP_FAILED)
		return -ENOMEM;
	host->memory = memory;
	/*
	 * Exclude the memory from forked children: otherwise, after a fork(), this process would write to a copy while
	 * the GPU reads the original.
	 */
	madvise(memory, host->bytes, MADV_DONTFORK);
	error = gpu_host_register(kv->pool->gpu, memory, host->bytes);
	if (!error)
		error = gpu_host_address(kv->pool->gpu, memory, &host->address);
	return error && error != -ENOMEM ? -EIO : error;
}

static int host_make(struct gpool_kv *kv, uint64_t bytes, struct kv_host **host)
{
	struct kv_host *made = calloc(1, sizeof(*made));
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int error = -ENOMEM;

	if (!made)
		return -ENOMEM;
	made->slots = (uint32_t)(bytes / kv->block_bytes);
	made->bytes = (made->slots * kv->block_bytes + page - 1) / page * page;
	if (!bitmap_init(&made->free, made->slots))
		error = memory_open(kv, made);
	if (error) {
		host_free(made);
		return error;
	}
	for (uint32_t slot = 0; slot < made->slots; slot++)
		bitmap_add(&made->free, slot);
	*host = made;
	return 0;
}

int gpool_kv_host_reserve(struct gpool_kv *kv, uint64_t bytes)
{
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	if (bytes < kv->block_bytes || bytes / kv->block_bytes > BITMAP_BITS_MAX)
		return fail(-EINVAL, "bytes is %llu; it must be at least %llu, one block, and at most %d blocks",
			(unsigned long long)bytes, (unsigned long long)kv->block_bytes, BITMAP_BITS_MAX);
	pthread_mutex_lock(&kv->lock);
	error = kv->host ? fail(-EALREADY, "the cache already has host memory") : host_make(kv, bytes, &kv->host);
	pthread_mutex_unlock(&kv->lock);
	return error;
}
