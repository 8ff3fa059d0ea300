/*
 * monotonic.h - CLOCK_MONOTONIC in nanoseconds. It is the same for all processes of a time namespace.
 */
#ifndef GPOOL_SHM_MONOTONIC_H
#define GPOOL_SHM_MONOTONIC_H

#include <stdint.h>
#include <time.h>

static inline uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t monotonic_us(void)
{
	return monotonic_ns() / 1000;
}

static inline uint64_t monotonic_ms(void)
{
	return monotonic_ns() / 1000000;
}

#endif
