/*
 * timeline.c - joint fences; see timeline.h.
 */
#include "shm/timeline.h"

enum {
	JOIN_LOOKS = 64, /* entries read for one fence; fence_join() makes no fence that refers to more of them */
};
/* Each entry has a place for the next one. A new fence may need another entry. */
static_assert(SESSION_TIMELINES / (JOIN_MEMBERS - 1) + 2 < JOIN_LOOKS, "a joint fence can combine all streams");

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

/* Return the joint fence of these members, in the last entry or in one that is not in use; 0: all are in use. */
static uint64_t join_make(struct session_segment *session, const uint64_t *members, int count, uint32_t *cursor)
{
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

/*
 * Return the number of entries that a fence refers to. Each has at most one joint member. If `latest` is not NULL,
 * store the latest unsignaled fence of each stream in latest[SESSION_TIMELINES].
 */
static uint32_t chain_read(const struct session_segment *session, uint64_t fence, uint64_t *latest)
{
	uint64_t members[JOIN_MEMBERS];
	uint32_t entries = 0;

	while (fence_slot(fence) == FENCE_JOINT && entries < JOIN_LOOKS) {
		int count = members_read(session, fence, members);

		fence = 0;
		entries++;
		for (int i = 0; i < count; i++) {
			uint32_t slot = fence_slot(members[i]);

			if (slot == FENCE_JOINT)
				fence = members[i];
			else if (latest && !fence_signaled(session, members[i]) && latest[slot] < members[i])
				latest[slot] = members[i];
		}
	}
	return entries;
}

/* Combine `fence` and the unsignaled fences of `old`, one for each stream, in new entries. */
static uint64_t join_anew(struct session_segment *session, uint64_t old, uint64_t fence, uint32_t *cursor)
{
	uint64_t latest[SESSION_TIMELINES] = {0}, members[JOIN_MEMBERS];
	int count = 0;

	chain_read(session, old, latest);
	if (latest[fence_slot(fence)] < fence)
		latest[fence_slot(fence)] = fence;
	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++) {
		if (!latest[slot] || list_add(members, &count, latest[slot]))
			continue;
		members[0] = join_make(session, members, count, cursor);
		if (!members[0])
			return 0;
		members[1] = latest[slot];
		count = 2;
	}
	return join_make(session, members, count, cursor);
}

uint64_t fence_join(struct session_segment *session, uint64_t old, uint64_t fence, uint32_t *cursor)
{
	uint64_t members[JOIN_MEMBERS];

	if (!session->joins)
		return 0;
	/* While a fence is unsignaled, streams that record fence after fence can add any number of entries to it. */
	if (chain_read(session, old, NULL) == JOIN_LOOKS)
		return join_anew(session, old, fence, cursor);
	return join_make(session, members, join_list(session, old, fence, members), cursor);
}
