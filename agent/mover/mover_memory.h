/*
 * mover_memory.h - the memory tier: a memfd of slots of one page each, mapped whole and page-locked piece by piece,
 * when a slot of the piece is first used; so a tier costs what has been in it, and a mover starts at once. Threads:
 * any.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_MEMORY_H
#define GPOOL_AGENT_MOVER_MOVER_MEMORY_H

#include "agent/keeper/channel.h"
#include "cuda/gpu.h"

#include <pthread.h>
#include <stdbool.h>

struct mover_memory {
	struct gpu *gpu;
	uint8_t *base; /* NULL: there is no such tier */
	uint64_t page_bytes;
	uint32_t slots;
	uint32_t piece_slots;
	pthread_mutex_t lock;
	uint8_t *pieces; /* enum, of each piece */
};

/*
 * mover_memory_open() - map what the keeper holds. 0, -EINVAL (not one page in it), -ENOMEM, or what fstat and mmap
 * said.
 */
int mover_memory_open(struct mover_memory *memory, struct gpu *gpu, const struct held *held, uint64_t page_bytes);
/* mover_memory_close() - after gpu_close(), which unlocks the pages. */
void mover_memory_close(struct mover_memory *memory);

/*
 * mover_memory_slot() - where a slot is, and whether the GPU may copy to and from there; where the system refuses to
 * lock the pages, it goes by a buffer. 0, or -EINVAL: no such slot.
 */
int mover_memory_slot(struct mover_memory *memory, uint32_t slot, uint8_t **address, bool *locked);

#endif
