#ifndef GPOOL_AGENT_CLOCK_H
#define GPOOL_AGENT_CLOCK_H

#include <stdint.h>

uint64_t clock_ms(void); /* CLOCK_MONOTONIC in milliseconds */
uint64_t clock_ns(void);
uint64_t wall_ms(void);

#endif
