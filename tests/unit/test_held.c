/*
 * test_held.c - the keeper's table of descriptors, and the pauses before it restarts a child.
 *
 * Goal: the table finds, replaces and drops its entries, leaks no descriptor, and refuses impossible numbers. A child
 * that dies repeatedly is always restarted, with growing pauses. Method: many random steps compared with a plain array.
 */
#include "agent/keeper/child.h"
#include "tests/unit/held_find.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { POOLS = 2, IDS = 100, STEPS = 20000 };

static int new_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void test_a_long_walk(void **state)
{
	static const uint32_t kinds[] = {KEEP_HANDLE, KEEP_SESSION, KEEP_OBJECT};
	static uint64_t values[3][POOLS][IDS]; /* 0: not held */
	struct held_table table = {0};
	uint32_t held = 0, counted;
	int before = new_fd(), after;

	(void)state;
	close(before);
	srand(7);
	for (uint64_t step = 1; step <= STEPS; step++) {
		uint32_t kind = (uint32_t)rand() % 3, pool = (uint32_t)rand() % POOLS, id = (uint32_t)rand() % IDS;
		uint64_t *value = &values[kind][pool][id];

		if (rand() % 3) {
			struct held item = {kinds[kind], pool, id, 1, {new_fd()}, step, 0};

			held += !*value;
			*value = step;
			assert_int_equal(held_add(&table, &item), 0);
		} else {
			held -= *value != 0;
			*value = 0;
			held_drop(&table, kinds[kind], pool, id);
		}
		assert_int_equal(table.count, held);
	}
	counted = 0;
	for (uint32_t kind = 0; kind < 3; kind++)
		for (uint32_t pool = 0; pool < POOLS; pool++)
			for (uint32_t id = 0; id < IDS; id++) {
				const struct held *item = held_find(&table, kinds[kind], pool, id);

				assert_int_equal(item != NULL, values[kind][pool][id] != 0);
				if (!item)
					continue;
				counted++;
				assert_true(item->value == values[kind][pool][id]);
				assert_true(is_open(item->fds[0]));
			}
	assert_int_equal(counted, table.count);
	held_clear(&table);
	after = new_fd();
	assert_int_equal(after, before); /* the lowest free one is the same: all later ones were closed */
	close(after);
}

static void test_impossible_messages_are_refused(void **state)
{
	static const struct held wrong[] = {
		{.kind = 0},
		{.kind = HELD_KINDS},
		{.kind = UINT32_MAX},
		{.kind = KEEP_HANDLE, .pool = MODULE_POOLS_MAX},
		{.kind = KEEP_HANDLE, .id = POOL_PAGES_MAX},
		{.kind = KEEP_SESSION, .id = POOL_SESSIONS},
		{.kind = KEEP_SESSION, .id = UINT32_MAX},
		{.kind = KEEP_CONFIG, .id = 1},
		{.kind = KEEP_HANDLE, .fd_count = KEEP_FDS_MAX + 1},
	};
	struct held_table table = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(held_add(&table, &wrong[i]), -EINVAL);
		held_drop(&table, wrong[i].kind, wrong[i].pool, wrong[i].id);
	}
	assert_int_equal(table.count, 0);
	held_clear(&table);
}

static void test_pauses_grow_and_end(void **state)
{
	static const uint32_t pauses[] = {100, 200, 400, 800, 1600, 1600, 1600};
	struct child child = {0};

	(void)state;
	for (uint32_t i = 1; i <= CHILD_QUICK_DEATHS; i++) {
		child_born(&child, 1000);
		assert_int_equal(child_died(&child, true), 0);
		assert_true(child_due(&child));
		assert_int_equal(child.restarts, i);
	}
	for (size_t i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
		child_born(&child, 1000);
		assert_int_equal(child_died(&child, true), pauses[i]);
	}
	/* A replaced process is not counted as a death, and one that ran long enough resets the count. */
	child_born(&child, 1000);
	child_replaced(&child);
	assert_true(child_due(&child));
	child_born(&child, 1000);
	child.born_ms -= 2 * CHILD_YOUNG_MS;
	assert_int_equal(child_died(&child, false), 0);
	assert_int_equal(child.quick_deaths, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_long_walk),
		cmocka_unit_test(test_impossible_messages_are_refused),
		cmocka_unit_test(test_pauses_grow_and_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
