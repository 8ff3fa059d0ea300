#include "agent/mover/mover_memory.h"

#include "agent/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Locking a piece takes about 10 ms, once. A single used page locks at most this amount. */
enum { PIECE_BYTES = 64 << 20 };

enum piece_state { PIECE_UNTOUCHED, PIECE_LOCKED, PIECE_REFUSED };

int mover_memory_open(struct mover_memory *memory, struct gpu *gpu, const struct held *held, uint64_t page_bytes)
{
	uint64_t slots;
	struct stat stat;
	void *base;

	memset(memory, 0, sizeof(*memory));
	if (fstat(held->fds[0], &stat) < 0)
		return -errno;
	slots = (uint64_t)stat.st_size / page_bytes;
	if (held->value && held->value < slots)
		slots = held->value;
	if (!slots || slots > UINT32_MAX)
		return -EINVAL;
	memory->gpu = gpu;
	memory->page_bytes = page_bytes;
	memory->slots = (uint32_t)slots;
	memory->piece_slots = page_bytes < PIECE_BYTES ? (uint32_t)(PIECE_BYTES / page_bytes) : 1;
	memory->pieces = calloc(memory->slots / memory->piece_slots + 1, 1);
	if (!memory->pieces)
		return -ENOMEM;
	base = mmap(NULL, slots * page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, held->fds[0], 0);
	if (base == MAP_FAILED) {
		int error = -errno;

		free(memory->pieces);
		memset(memory, 0, sizeof(*memory));
		return error;
	}
	memory->base = base;
	pthread_mutex_init(&memory->lock, NULL);
	return 0;
}

void mover_memory_close(struct mover_memory *memory)
{
	if (!memory->base)
		return;
	munmap(memory->base, memory->slots * memory->page_bytes);
	pthread_mutex_destroy(&memory->lock);
	free(memory->pieces);
	memset(memory, 0, sizeof(*memory));
}

/* Lock a piece of memory. The caller holds the lock: other threads would need the same piece, or the driver's lock. */
static void piece_lock(struct mover_memory *memory, uint32_t piece)
{
	uint32_t first = piece * memory->piece_slots;
	uint32_t count = memory->slots - first < memory->piece_slots ? memory->slots - first : memory->piece_slots;
	int error =
		gpu_host_register(memory->gpu, memory->base + first * memory->page_bytes, count * memory->page_bytes);

	memory->pieces[piece] = error ? PIECE_REFUSED : PIECE_LOCKED;
	if (error)
		log_warning("cannot lock slots %u to %u of the memory tier: %s; copies use a buffer, which is slower",
			first, first + count - 1, gpu_error_text());
}

int mover_memory_slot(struct mover_memory *memory, uint32_t slot, uint8_t **address, bool *locked)
{
	uint32_t piece;

	if (slot >= memory->slots)
		return -EINVAL;
	piece = slot / memory->piece_slots;
	pthread_mutex_lock(&memory->lock);
	if (memory->pieces[piece] == PIECE_UNTOUCHED)
		piece_lock(memory, piece);
	*locked = memory->pieces[piece] == PIECE_LOCKED;
	pthread_mutex_unlock(&memory->lock);
	*address = memory->base + slot * memory->page_bytes;
	return 0;
}
