/*
 * timeline.c - joint fences; see timeline.h.
 */
#include "shm/timeline.h"

enum {
	JOIN_LOOKS = 64, /* entries read for one fence; 64 * 7 members exceed the number of streams */
};

/*
 * Read the nonzero members of a joint fence and return their number. Return -1 if the entry belongs to another fence;
 * this fence is then signaled.
 */
static int members_read(const struct session_segment *session, uint64_t fence, uint64_t *members)
{
	uint32_t index = fence_joint_index(fence), serial = fence_joint_serial(fence);
	const struct fence_join *join;
	int count = 0;

	if (!session->joins || index >= SESSION_JOINS)
		return -1;
	join = &session->joins[index];
	if (atomic_load_explicit(&join->serial, memory_order_acquire) != serial)
		return -1;
	for (int i = 0; i < JOIN_MEMBERS; i++) {
		members[count] = atomic_load_explicit(&join->members[i], memory_order_relaxed);
		count += members[count] != 0;
	}
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&join->serial, memory_order_relaxed) == serial ? count : -1;
}

static uint64_t pending_within(const struct session_segment *session, uint64_t fence, uint32_t *looks)
{
	uint64_t members[JOIN_MEMBERS];
	int count = *looks ? members_read(session, fence, members) : -1;

	*looks -= *looks != 0;
	for (int i = 0; i < count; i++) {
		uint64_t pending = 0;

		if (fence_slot(members[i]) == FENCE_JOINT)
			pending = pending_within(session, members[i], looks);
		else if (!fence_signaled(session, members[i]))
			pending = members[i];
		if (pending)
			return pending;
	}
	return 0;
}

uint64_t fence_joint_pending(const struct session_segment *session, uint64_t fence)
{
	uint32_t looks = JOIN_LOOKS;

	return pending_within(session, fence, &looks);
}

/* Add a fence to a list, or merge it with the member of the same stream. Return false if the list is full. */
static bool list_add(uint64_t *members, int *count, uint64_t fence)
{
	for (int i = 0; i < *count; i++) {
		if (fence_slot(members[i]) != fence_slot(fence) || fence_slot(fence) == FENCE_JOINT)
			continue;
		members[i] = members[i] > fence ? members[i] : fence;
		return true;
	}
	if (*count == JOIN_MEMBERS)
		return false;
	members[(*count)++] = fence;
	return true;
}

/* Collect the unsignaled members of `old`, and `fence`. If `old` has too many, use `old` itself as one member. */
static int join_list(const struct session_segment *session, uint64_t old, uint64_t fence, uint64_t *members)
{
	uint64_t parts[JOIN_MEMBERS];
	int count = 0, part_count = fence_slot(old) == FENCE_JOINT ? members_read(session, old, parts) : -1;
	bool all = part_count >= 0;

	for (int i = 0; i < part_count && all; i++)
		if (!fence_signaled(session, parts[i]))
			all = list_add(members, &count, parts[i]);
	if (all && list_add(members, &count, fence))
		return count;
	count = 0;
	list_add(members, &count, old);
	list_add(members, &count, fence);
	return count;
}

/*
 * Return true if the entry contains this list. This is common, because often the same two streams free many blocks in
 * succession.
 */
static bool is_same(const struct session_segment *session, uint32_t index, const uint64_t *members, int count)
{
	const struct fence_join *join = &session->joins[index];

	for (int i = 0; i < JOIN_MEMBERS; i++)
		if (atomic_load_explicit(&join->members[i], memory_order_relaxed) != (i < count ? members[i] : 0))
			return false;
	return true;
}

static uint64_t join_write(struct session_segment *session, uint32_t index, const uint64_t *members, int count)
{
	struct fence_join *join = &session->joins[index];
	/* The serial number becomes odd and then even, even if the segment is damaged. */
	uint32_t serial = atomic_load_explicit(&join->serial, memory_order_relaxed) | 1;

	atomic_store_explicit(&join->serial, serial, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	for (int i = 0; i < JOIN_MEMBERS; i++)
		atomic_store_explicit(&join->members[i], i < count ? members[i] : 0, memory_order_relaxed);
	atomic_store_explicit(&join->serial, serial + 1, memory_order_release);
	return fence_joint_make(index, serial + 1);
}

uint64_t fence_join(struct session_segment *session, uint64_t old, uint64_t fence, uint32_t *cursor)
{
	uint64_t members[JOIN_MEMBERS];
	int count = join_list(session, old, fence, members);

	if (!session->joins)
		return 0;
	if (is_same(session, *cursor, members, count))
		return fence_joint_make(
			*cursor, atomic_load_explicit(&session->joins[*cursor].serial, memory_order_relaxed));
	for (uint32_t looks = 0; looks < SESSION_JOINS; looks++) {
		uint32_t index = *cursor = (*cursor + 1) % SESSION_JOINS;
		uint32_t serial = atomic_load_explicit(&session->joins[index].serial, memory_order_relaxed);

		if (!fence_joint_pending(session, fence_joint_make(index, serial)))
			return join_write(session, index, members, count);
	}
	return 0;
}
