/*
 * offload_host.c - see offload_host.h.
 *
 * Copies go both ways on the cache's stream, so a slot may be given to another sequence at once: what is queued for it later comes behind what
 * was queued before. Nothing is waited for.
 */
#include "client/kv/offload_host.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- slots ---- */

static void slots_put(struct kv_host *host, const uint32_t *slots, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		bitmap_add(&host->free, slots[i]);
}

/* Slots in a row from the index-th on are one part. */
static struct kv_extent part_at(const struct gpool_kv *kv, const struct kv_saved *saved, uint32_t index, uint32_t *slots)
{
	uint32_t run = 1;

	while (index + run < saved->count && saved->slots[index + run] == saved->slots[index] + run)
		run++;
	*slots = run;
	return (struct kv_extent){
		.address = (uint64_t)(uintptr_t)kv->host->memory + saved->slots[index] * kv->block_bytes,
		.bytes = run * kv->block_bytes,
	};
}

static int copy(struct gpool_kv *kv, const struct kv_sequence *sequence, const struct kv_saved *saved, bool out)
{
	int64_t offset = 0;

	for (uint32_t i = 0, run; i < saved->count && offset >= 0; i += run) {
		struct kv_extent part = part_at(kv, saved, i, &run);

		offset = extent_copy(kv, sequence, saved, (uint64_t)offset, &part, out);
	}
	return offset < 0 ? (int)offset : 0;
}

int host_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved)
{
	struct kv_host *host = kv->host;
	uint64_t room = extent_room(kv, saved->flags, kv->block_bytes), count = (saved->bytes + room - 1) / room;
	int error;

	if (count > host->free.count)
		return -ENOSPC;
	saved->slots = calloc(count + 1, sizeof(*saved->slots)); /* also for a sequence without a token */
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

/* ---- life ---- */

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
	/* A child that is forked would have this process write to a copy, and the GPU read the original. */
	madvise(memory, host->bytes, MADV_DONTFORK);
	error = gpu_host_register(kv->pool->gpu, memory, host->bytes);
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

int gpool_kv_host_open(struct gpool_kv *kv, uint64_t bytes)
{
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	if (bytes < kv->block_bytes || bytes / kv->block_bytes > BITMAP_BITS_MAX)
		return -EINVAL;
	pthread_mutex_lock(&kv->lock);
	error = kv->host ? -EBUSY : host_make(kv, bytes, &kv->host);
	pthread_mutex_unlock(&kv->lock);
	return error;
}
