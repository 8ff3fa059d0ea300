#include "agent/base/clock.h"

#include "shm/monotonic.h"

#include <time.h>

uint64_t clock_ns(void)
{
	return monotonic_ns();
}

uint64_t clock_ms(void)
{
	return clock_ns() / 1000000;
}

uint64_t wall_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
