/* scale.h - the length of random and repeated tests. */
#ifndef GPOOL_TESTS_SCALE_H
#define GPOOL_TESTS_SCALE_H

#include <stdint.h>
#include <stdlib.h>

/* Return the factor for a test's length: GPOOL_TEST_SCALE, 1 by default. */
static inline double test_scale(void)
{
	const char *text = getenv("GPOOL_TEST_SCALE");
	double scale = text ? atof(text) : 1;

	return scale > 0 ? scale : 1;
}

/* Return `count`, scaled, but at least 1. */
static inline uint32_t test_scaled(uint32_t count)
{
	double scaled = count * test_scale();

	return scaled < 1 ? 1 : (uint32_t)scaled;
}

#endif
