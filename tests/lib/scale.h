/* scale.h - the length of random and repeated tests. */
#ifndef GPOOL_TESTS_SCALE_H
#define GPOOL_TESTS_SCALE_H

#include <stdint.h>
#include <stdlib.h>

/* Return `count` times GPOOL_TEST_SCALE, which is 1 by default, but at least 1. */
static inline uint32_t test_scaled(uint32_t count)
{
	const char *text = getenv("GPOOL_TEST_SCALE");
	double scale = text ? atof(text) : 1, scaled = count * (scale > 0 ? scale : 1);

	return scaled < 1 ? 1 : (uint32_t)scaled;
}

#endif
