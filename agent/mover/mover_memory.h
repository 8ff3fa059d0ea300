/*
 * mover_memory.h - the memory tier: a memfd of slots of one page each, mapped as a whole. A piece of it is page-locked
 * at the first use of a slot in it, so that only used memory is locked and a mover starts without delay. Threads: any.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_MEMORY_H
#define GPOOL_AGENT_MOVER_MOVER_MEMORY_H

#include "agent/keeper/channel.h"
#include "cuda/gpu.h"

#include <pthread.h>
#include <stdbool.h>

struct mover_memory {
	struct gpu *gpu;
	uint8_t *base; /* NULL: the pool has no memory tier */
	uint64_t page_bytes;
	uint32_t slots;
	uint32_t piece_slots;
	pthread_mutex_t lock;
	uint8_t *pieces; /* enum piece_state, per piece */
};

/*
 * mover_memory_open() - map the memory that the keeper holds. Return: 0, -EINVAL (less than one page), -ENOMEM, or the
 * errno of fstat and mmap.
 */
int mover_memory_open(struct mover_memory *memory, struct gpu *gpu, const struct held *held, uint64_t page_bytes);
/* mover_memory_close() - unmap the memory. Call it after gpu_close(), which unlocks the pages. */
void mover_memory_close(struct mover_memory *memory);

/*
 * mover_memory_slot() - return the address of a slot, and whether the GPU may access it. If the system refuses to lock
 * the pages, copies must use a buffer. Return: 0, or -EINVAL: no such slot.
 */
int mover_memory_slot(struct mover_memory *memory, uint32_t slot, uint8_t **address, bool *locked);

#endif
