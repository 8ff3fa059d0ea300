/*
 * test_patience.c - a wait for another process ends at its time limit, of which a pause of this process uses little.
 *
 * Method: instead of waiting, the test moves the time of the last poll into the past.
 */
#include "client/core/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { WAIT_MS = 10000, MOST_MS = 200, HOUR_MS = 3600000 };

static void pass(struct patience *patience, uint64_t ms)
{
	patience->looked_ns -= ms * 1000000;
}

static void test_time_passes(void **state)
{
	struct patience patience = patience_of(WAIT_MS);
	int looks = 0;

	(void)state;
	for (; patience_ms(&patience, MOST_MS); looks++)
		pass(&patience, MOST_MS);
	assert_in_range(looks, 2, WAIT_MS / MOST_MS);
	assert_int_equal(patience_ms(&patience, MOST_MS), 0);
}

static void test_a_pause_uses_little(void **state)
{
	struct patience patience = patience_of(WAIT_MS);

	(void)state;
	pass(&patience, HOUR_MS);
	assert_true(patience_ms(&patience, MOST_MS));
	assert_int_equal(patience.left_ns, (WAIT_MS - PATIENCE_LOOK_MS) * UINT64_C(1000000));
}

static void test_limits(void **state)
{
	struct patience none = patience_of(0), endless = patience_of(-1), some = patience_of(MOST_MS / 2);

	(void)state;
	assert_int_equal(patience_ms(&none, MOST_MS), 0);
	pass(&endless, HOUR_MS);
	assert_int_equal(patience_ms(&endless, MOST_MS), MOST_MS);
	assert_in_range(patience_ms(&some, MOST_MS), 0, MOST_MS / 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_time_passes),
		cmocka_unit_test(test_a_pause_uses_little),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
