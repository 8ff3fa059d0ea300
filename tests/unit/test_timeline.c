/*
 * test_timeline.c - joint fences of any number of members are signaled when all members are, and their entries are used
 * again.
 *
 * Method: a session segment in private memory, whose timeline the test writes as streams would.
 */
#include "shm/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct session_segment session;
static void *memory;
static uint32_t cursor;

static int setup(void **state)
{
	size_t bytes = session_layout_of(64).bytes;

	(void)state;
	memory = aligned_alloc(4096, bytes);
	assert_non_null(memory);
	memset(memory, 0, bytes);
	session_segment_over(memory, 64, &session);
	cursor = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(memory);
	return 0;
}

static void reach(uint32_t slot, uint64_t value)
{
	atomic_store(&session.timeline[slot], value);
}

static void test_reached_with_the_last_member(void **state)
{
	uint64_t joint = fence_join(&session, fence_make(1, 5), fence_make(2, 7), &cursor);

	(void)state;
	assert_int_equal(fence_slot(joint), FENCE_JOINT);
	assert_false(fence_signaled(&session, joint));
	assert_int_equal(fence_pending_part(&session, joint), fence_make(1, 5));
	reach(1, 5);
	assert_false(fence_signaled(&session, joint));
	assert_int_equal(fence_pending_part(&session, joint), fence_make(2, 7));
	reach(2, 6);
	assert_false(fence_signaled(&session, joint));
	reach(2, 7);
	assert_true(fence_signaled(&session, joint));
	assert_int_equal(fence_pending_part(&session, joint), 0);
}

static void test_the_same_streams_share_an_entry(void **state)
{
	uint64_t joint = fence_join(&session, fence_make(1, 5), fence_make(2, 7), &cursor);

	(void)state;
	for (int i = 0; i < 2 * SESSION_JOINS; i++)
		assert_int_equal(fence_join(&session, fence_make(1, 5), fence_make(2, 7), &cursor), joint);
}

/* Join more streams than an entry has room for, so that entries are members of entries. */
static void test_all_streams(void **state)
{
	uint64_t joint = fence_make(1, 1);

	(void)state;
	for (uint32_t slot = 2; slot < SESSION_TIMELINES; slot++)
		joint = fence_join(&session, joint, fence_make(slot, slot), &cursor);
	for (uint32_t slot = SESSION_TIMELINES - 1; slot > 0; slot--) {
		assert_false(fence_signaled(&session, joint));
		reach(slot, slot);
	}
	assert_true(fence_signaled(&session, joint));
}

/* One stream is stalled while others record fence after fence, which may be signaled at once, later or never. */
static void test_a_stalled_stream_keeps_a_fence_unsignaled(void **state)
{
	enum { STREAMS = 8, ROUNDS = 300 };

	(void)state;
	for (uint64_t lag = 0; lag <= ROUNDS; lag += ROUNDS / 2) {
		uint64_t base = lag * ROUNDS, joint = fence_make(1, base + 1);

		for (uint64_t round = 1; round <= ROUNDS; round++)
			for (uint32_t slot = 2; slot <= 1 + STREAMS; slot++) {
				joint = fence_join(&session, joint, fence_make(slot, base + round), &cursor);
				assert_int_not_equal(joint, 0);
				assert_false(fence_signaled(&session, joint));
				if (round > lag)
					reach(slot, base + round - lag);
			}
		for (uint32_t slot = 2; slot <= 1 + STREAMS; slot++)
			reach(slot, base + ROUNDS);
		assert_int_equal(fence_pending_part(&session, joint), fence_make(1, base + 1));
		reach(1, base + 1);
		assert_true(fence_signaled(&session, joint));
	}
}

static void test_a_later_fence_of_a_stream_takes_the_place_of_the_earlier(void **state)
{
	uint64_t joint = fence_join(&session, fence_make(1, 5), fence_make(2, 7), &cursor);
	uint64_t later = fence_join(&session, joint, fence_make(1, 6), &cursor);

	(void)state;
	reach(1, 5);
	reach(2, 7);
	assert_true(fence_signaled(&session, joint));
	assert_false(fence_signaled(&session, later));
	reach(1, 6);
	assert_true(fence_signaled(&session, later));
}

/* An entry is used again only after its members are signaled. The old fence then stays signaled. */
static void test_entries_are_used_again(void **state)
{
	uint64_t first = fence_join(&session, fence_make(1, 1), fence_make(2, 1), &cursor), joint = first;
	uint32_t made = 1;

	(void)state;
	while (joint) {
		joint = fence_join(&session, fence_make(3, made + 1), fence_make(4, made + 1), &cursor);
		made += joint != 0;
		assert_true(made <= SESSION_JOINS);
	}
	assert_int_equal(made, SESSION_JOINS);
	assert_false(fence_signaled(&session, first));
	reach(1, 1);
	reach(2, 1);
	joint = fence_join(&session, fence_make(3, made + 1), fence_make(4, made + 1), &cursor);
	assert_int_equal(fence_joint_index(joint), fence_joint_index(first));
	assert_int_not_equal(joint, first);
	assert_true(fence_signaled(&session, first));
	assert_false(fence_signaled(&session, joint));
}

/* A hostile worker writes members that refer to each other, and entries and slots that do not exist. */
static void test_hostile_entries(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < SESSION_JOINS; i++)
		for (uint32_t j = 0; j < JOIN_MEMBERS; j++)
			atomic_store(&session.joins[i].members[j], fence_joint_make((i + j) % SESSION_JOINS, 0));
	assert_true(fence_signaled(&session, fence_joint_make(0, 0)));
	assert_true(fence_signaled(&session, fence_joint_make(UINT16_MAX, 0)));
	assert_true(fence_signaled(&session, fence_make(FENCE_JOINT + 1, 1)));
	session.joins = NULL;
	assert_true(fence_signaled(&session, fence_joint_make(0, 0)));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_reached_with_the_last_member, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_same_streams_share_an_entry, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_streams, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_stalled_stream_keeps_a_fence_unsignaled, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_later_fence_of_a_stream_takes_the_place_of_the_earlier, setup, teardown),
		cmocka_unit_test_setup_teardown(test_entries_are_used_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_entries, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
