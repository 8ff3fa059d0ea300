/*
 * offload.c - host memory for what preempted sequences contain.
 *
 * It is cut into slots of a block each. Copies go both ways on the cache's stream, so a slot may be given to another sequence at once: what
 * is queued for it later comes behind what was queued before. Nothing is waited for.
 */
#include "client/kv/offload.h"

#include "client/kv/preempt.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct kv_offload {
	char *memory; /* registered; slots of block_bytes */
	size_t bytes;
	uint32_t slots;
	struct bitmap free;
	uint32_t **saved; /* [max_sequences] the slots of its blocks, in order; NULL: none */
	uint32_t *counts; /* [max_sequences] of those */
	uint64_t saves, loads; /* sequences */
};

static uint64_t slot_address(const struct gpool_kv *kv, uint32_t slot)
{
	return (uint64_t)(uintptr_t)kv->offload->memory + slot * kv->block_bytes;
}

static void slots_put(struct kv_offload *offload, const uint32_t *slots, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		bitmap_add(&offload->free, slots[i]);
}

/* How many blocks from the index-th on lie in a row on both sides. */
static uint32_t run_of(const struct gpool_kv *kv, const struct kv_sequence *sequence, const uint32_t *slots, uint32_t index, uint32_t count)
{
	uint64_t address = memory_address(kv, kv_entry(kv, sequence, index));
	uint32_t run = 1;

	while (index + run < count && slots[index + run] == slots[index] + run &&
		memory_address(kv, kv_entry(kv, sequence, index + run)) == address + run * kv->block_bytes)
		run++;
	return run;
}

static int copy(struct gpool_kv *kv, const struct kv_sequence *sequence, const uint32_t *slots, uint32_t count, bool out)
{
	int error = 0;

	for (uint32_t i = 0, run; i < count && !error; i += run) {
		uint64_t block = memory_address(kv, kv_entry(kv, sequence, i)), slot = slot_address(kv, slots[i]);

		run = run_of(kv, sequence, slots, i, count);
		error = gpool_copy(kv->pool, kv->stream, out ? slot : block, out ? block : slot, run * kv->block_bytes);
	}
	return error;
}

bool offload_has(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return kv->offload && kv->offload->saved[kv_row(kv, sequence)];
}

int offload_save(struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t tokens)
{
	struct kv_offload *offload = kv->offload;
	uint32_t count = kv_blocks_for(kv, tokens), row = kv_row(kv, sequence), *slots;
	int error;

	if (count > offload->free.count)
		return -ENOSPC;
	slots = calloc(count + 1, sizeof(*slots)); /* also for a sequence without a token */
	if (!slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		slots[i] = bitmap_lowest(&offload->free);
		bitmap_remove(&offload->free, slots[i]);
	}
	error = copy(kv, sequence, slots, count, true);
	if (error) {
		slots_put(offload, slots, count);
		free(slots);
		return error;
	}
	offload->saved[row] = slots;
	offload->counts[row] = count;
	offload->saves++;
	return 0;
}

int offload_load(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	uint32_t row = kv_row(kv, sequence);
	int error = copy(kv, sequence, kv->offload->saved[row], kv->offload->counts[row], false);

	if (error)
		return error;
	kv->offload->loads++;
	offload_forget(kv, sequence);
	return 0;
}

void offload_forget(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	uint32_t row = kv_row(kv, sequence);

	if (!offload_has(kv, sequence))
		return;
	slots_put(kv->offload, kv->offload->saved[row], kv->offload->counts[row]);
	free(kv->offload->saved[row]);
	kv->offload->saved[row] = NULL;
}

/* ---- life ---- */

static void offload_free(struct gpool_kv *kv, struct kv_offload *offload)
{
	for (uint32_t row = 0; offload->saved && row < kv->max_sequences; row++)
		free(offload->saved[row]);
	free(offload->saved);
	free(offload->counts);
	bitmap_fini(&offload->free);
	if (offload->memory)
		munmap(offload->memory, offload->bytes);
	free(offload);
}

void offload_close(struct gpool_kv *kv)
{
	if (!kv->offload)
		return;
	gpu_host_unregister(kv->pool->gpu, kv->offload->memory);
	offload_free(kv, kv->offload);
	kv->offload = NULL;
}

static int memory_open(struct gpool_kv *kv, struct kv_offload *offload)
{
	void *memory = mmap(NULL, offload->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error;

	if (memory == MAP_FAILED)
		return -ENOMEM;
	offload->memory = memory;
	/* A child that is forked would have this process write to a copy, and the GPU read the original. */
	madvise(memory, offload->bytes, MADV_DONTFORK);
	error = gpu_host_register(kv->pool->gpu, memory, offload->bytes);
	return error && error != -ENOMEM ? -EIO : error;
}

static int offload_make(struct gpool_kv *kv, uint64_t bytes, struct kv_offload **offload)
{
	struct kv_offload *made = calloc(1, sizeof(*made));
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int error = -ENOMEM;

	if (!made)
		return -ENOMEM;
	made->slots = (uint32_t)(bytes / kv->block_bytes);
	made->bytes = (made->slots * kv->block_bytes + page - 1) / page * page;
	made->saved = calloc(kv->max_sequences, sizeof(*made->saved));
	made->counts = calloc(kv->max_sequences, sizeof(*made->counts));
	if (made->saved && made->counts && !bitmap_init(&made->free, made->slots))
		error = memory_open(kv, made);
	if (error) {
		offload_free(kv, made);
		return error;
	}
	for (uint32_t slot = 0; slot < made->slots; slot++)
		bitmap_add(&made->free, slot);
	*offload = made;
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
	error = kv->offload ? -EBUSY : offload_make(kv, bytes, &kv->offload);
	pthread_mutex_unlock(&kv->lock);
	return error;
}

int gpool_kv_host(struct gpool_kv *kv, struct gpool_kv_host *host)
{
	struct gpool_kv_host found = { .size = sizeof(found) };

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	if (kv->offload) {
		found.blocks = kv->offload->slots;
		found.free_blocks = kv->offload->free.count;
		found.bytes = kv->offload->bytes;
		found.saves = kv->offload->saves;
		found.loads = kv->offload->loads;
	}
	pthread_mutex_unlock(&kv->lock);
	return copy_struct(host, &found, sizeof(found));
}

/* ---- preemption ---- */

int gpool_kv_offload(struct gpool_kv *kv, uint64_t sequence, uint64_t *victim)
{
	struct kv_sequence *found;
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	result = kv->offload ? kv_victim(kv, sequence, &found) : -EOPNOTSUPP;
	if (!result) {
		uint32_t tokens = cursor_stop(found);

		result = offload_save(kv, found, tokens);
		if (result)
			cursor_go(kv, found, tokens);
		else
			result = kv_preempt(kv, found);
		if (result >= 0 && victim)
			*victim = kv_number(kv, found);
	}
	pthread_mutex_unlock(&kv->lock);
	return result;
}
