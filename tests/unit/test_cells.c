/*
 * test_cells.c - rates of groups of nodes, and the hits of an order by rate.
 *
 * Goal: rates follow the counts, a cell without counts has the rate of a similar one, old counts lose their weight, and
 * only fresh counts are compared.
 *
 * Method: counts whose rates are known.
 */
#include "shm/policy/cells.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct cells cells;

static void count(uint32_t cell, float time, float touches)
{
	cells.fresh_time[cell] += time;
	cells.fresh_touches[cell] += touches;
}

static void assert_near(float a, float b)
{
	assert_true(a > b * 0.99f && a < b * 1.01f);
}

static void test_rates_follow_counts(void **state)
{
	(void)state;
	cells_init(&cells, 3);
	cells_learn(&cells, 0.001f, 0.5f);
	for (uint32_t cell = 0; cell < 3; cell++)
		assert_near(cells.rates[cell], 0.001f);
	count(0, 1e6f, 20000);
	count(1, 1e6f, 10000);
	count(2, 1e6f, 30000);
	cells_learn(&cells, 0.001f, 0.5f);
	assert_near(cells.rates[0], 0.02f);
	assert_near(cells.rates[1], 0.01f);
	assert_near(cells.rates[2], 0.03f);
	assert_int_equal(cells.order[0], 1);
	assert_int_equal(cells.order[1], 0);
	assert_int_equal(cells.order[2], 2);
	for (int i = 0; i < 5; i++) {
		count(0, 1e6f, 40000);
		cells_learn(&cells, 0.001f, 0.5f);
	}
	assert_true(cells.rates[0] > 0.039f);
	assert_int_equal(cells.order[2], 0);
}

/* The rate of a cell without counts is that of the cell before it, or else the average. */
static void test_cell_without_counts(void **state)
{
	(void)state;
	cells_init(&cells, 4);
	cells.before[2] = 1;
	cells.before[3] = 2;
	count(1, 1e6f, 90000);
	count(0, 1e6f, 10000);
	cells_learn(&cells, 0.001f, 0.5f);
	assert_near(cells.rates[3], 0.09f);
	cells_init(&cells, 3);
	count(0, 1e6f, 10000);
	count(1, 1e6f, 90000);
	cells_learn(&cells, 0.001f, 0.5f);
	assert_near(cells.rates[2], 0.05f);
}

static void test_hits_of_the_highest_rates(void **state)
{
	(void)state;
	cells_init(&cells, 3);
	count(0, 1000, 100);
	count(1, 1000, 300);
	count(2, 1000, 200);
	cells_learn(&cells, 0.001f, 1);
	assert_true(cells_hits(&cells, 1e9f) == 0);
	count(0, 1000, 10);
	count(1, 1000, 20);
	count(2, 1000, 40);
	assert_true(cells_hits(&cells, 0) == 0);
	assert_near(cells_hits(&cells, 1000), 20);
	assert_near(cells_hits(&cells, 1500), 40);
	assert_near(cells_hits(&cells, 2000), 60);
	assert_near(cells_hits(&cells, 5000), 70);
}

/* After a long time without counts, the rates are those of the beginning. */
static void test_counts_are_forgotten(void **state)
{
	(void)state;
	cells_init(&cells, 2);
	count(0, 1e6f, 90000);
	for (int i = 0; i < 500; i++)
		cells_learn(&cells, 0.001f, 0.5f);
	assert_near(cells.rates[0], 0.001f);
	assert_true(cells.time[0] == 0 && cells.touches[0] == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rates_follow_counts),
		cmocka_unit_test(test_cell_without_counts),
		cmocka_unit_test(test_hits_of_the_highest_rates),
		cmocka_unit_test(test_counts_are_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
