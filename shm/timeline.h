/*
 * timeline.h - completion of GPU work as a number in shared memory.
 *
 * Each stream slot of a session contains the sequence number of the last finished work of its stream. The GPU, or the
 * stream of the back end `host`, writes it after the work; the process itself writes the slots of host-signaled
 * timelines and imported fences. A fence consists of a slot and a number; it is signaled when the slot contains at
 * least that number. A joint fence (struct fence_join) is signaled when all its members are. Any process that maps the
 * segment can check a fence with a plain load, without a GPU context.
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

enum { FENCE_JOINT = SESSION_TIMELINES }; /* the slot of joint fences */

static inline uint64_t fence_joint_make(uint32_t index, uint32_t serial)
{
	return fence_make(FENCE_JOINT, (uint64_t)serial << 16 | index);
}

static inline uint32_t fence_joint_index(uint64_t fence)
{
	return (uint32_t)fence & UINT16_MAX;
}

static inline uint32_t fence_joint_serial(uint64_t fence)
{
	return (uint32_t)(fence >> 16);
}

/*
 * fence_joint_pending() - return an unsignaled fence of one stream among the members of a joint fence; 0: the joint
 * fence is signaled. The memory is untrusted, so the number of entries read is bounded.
 */
uint64_t fence_joint_pending(const struct session_segment *session, uint64_t fence);

/*
 * fence_signaled() - return true if a fence, which may be joint, is signaled. A fence with an invalid slot counts as
 * signaled; a worker with such fences affects only its own blocks.
 */
static inline bool fence_signaled(const struct session_segment *session, uint64_t fence)
{
	uint32_t slot = fence_slot(fence);

	if (slot == 0 || slot > FENCE_JOINT)
		return true;
	if (__builtin_expect(slot == FENCE_JOINT, 0))
		return fence_joint_pending(session, fence) == 0;
	return atomic_load_explicit(&session->timeline[slot], memory_order_acquire) >= (fence & FENCE_VALUE_MASK);
}

/* fence_pending_part() - return an unsignaled fence of one stream that is part of `fence`; 0: `fence` is signaled. */
static inline uint64_t fence_pending_part(const struct session_segment *session, uint64_t fence)
{
	if (fence_slot(fence) == FENCE_JOINT)
		return fence_joint_pending(session, fence);
	return fence_signaled(session, fence) ? 0 : fence;
}

/*
 * fence_join() - return a fence that is signaled when both fences are. `old` may be a joint fence; `fence` is a fence
 * of one stream. Return 0 if all entries are in use. Only the session's worker may call it, with its lock of joint
 * fences held.
 * Cost: 100 ns, and a check of the entries in use.
 */
uint64_t fence_join(struct session_segment *session, uint64_t old, uint64_t fence, uint32_t *cursor);

#endif
