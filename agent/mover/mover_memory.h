/*
 * mover_memory.h - the memory tier: a memfd of slots of one page each, mapped as a whole. A piece of it is page-locked
 * when a slot in it is first used, so that only used memory is locked and a mover starts at once. Threads: any.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_MEMORY_H
#define GPOOL_AGENT_MOVER_MOVER_MEMORY_H

#include "agent/keeper/channel.h"
#include "cuda/gpu.h"

#include <pthread.h>
#include <stdbool.h>

struct mover_memory {
	struct gpu *gpu;
	uint8_t *base; /* NULL: no such tier */
	uint64_t page_bytes;
	uint32_t slots;
	uint32_t piece_slots;
	pthread_mutex_t lock;
	uint8_t *pieces; /* enum piece_state of each piece */
};

/*
 * mover_memory_open() - map the memory that the keeper holds. 0, -EINVAL (less than one page), -ENOMEM, or the errno of
 * fstat and mmap.
 */
int mover_memory_open(struct mover_memory *memory, struct gpu *gpu, const struct held *held, uint64_t page_bytes);
/* mover_memory_close() - unmap it, after gpu_close(), which unlocks the pages. */
void mover_memory_close(struct mover_memory *memory);

/*
 * mover_memory_slot() - return the address of a slot, and whether the GPU may copy to and from it. If the system
 * refuses to lock the pages, copies use a buffer. 0, or -EINVAL: no such slot.
 */
int mover_memory_slot(struct mover_memory *memory, uint32_t slot, uint8_t **address, bool *locked);

#endif
