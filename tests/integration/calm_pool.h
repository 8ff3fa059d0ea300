/* calm_pool.h - a worker on a pool of 512 pages, attached for each test at low pressure. */
#ifndef GPOOL_TESTS_CALM_POOL_H
#define GPOOL_TESTS_CALM_POOL_H

#include "tests/lib/harness.h"

enum { PAGES = 512, PAGE_BYTES = TEST_PAGE_BYTES };

static struct harness harness;
static struct gpool *pool;

static inline int attach(void **state)
{
	(void)state;
	pool = harness_open_calm(&harness);
	return 0;
}

/* Check the pool, and that all of its pages are free. */
static inline int detach(void **state)
{
	(void)state;
	return harness_detach(&harness, &pool, PAGES);
}

#endif
