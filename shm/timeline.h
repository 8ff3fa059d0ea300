/*
 * timeline.h - completion of GPU work as a number in shared memory.
 *
 * Each stream slot of a session holds the last sequence number its stream has finished, written by the GPU (or by the host back
 * end's stream) behind the work. A fence names a slot and a number: reached when the slot holds at least that number. Anybody who
 * maps the segment can tell with a plain load and without a GPU context.
 */
#ifndef GPOOL_SHM_TIMELINE_H
#define GPOOL_SHM_TIMELINE_H

#include "shm/session_segment.h"

#define FENCE_VALUE_MASK ((UINT64_C(1) << 48) - 1)

static inline uint64_t fence_make(uint32_t slot, uint64_t value)
{
	return (uint64_t)slot << 48 | (value & FENCE_VALUE_MASK);
}

static inline uint32_t fence_slot(uint64_t fence)
{
	return (uint32_t)(fence >> 48);
}

/* A slot out of range counts as reached: a worker that lies about its fences harms its own blocks alone. */
static inline bool fence_reached(const struct session_segment *session, uint64_t fence)
{
	uint32_t slot = fence_slot(fence);

	if (slot == 0 || slot >= SESSION_TIMELINES)
		return true;
	return atomic_load_explicit(&session->timeline[slot], memory_order_acquire) >= (fence & FENCE_VALUE_MASK);
}

#endif
