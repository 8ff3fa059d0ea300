/*
 * later.h - a control request whose answer comes later: what it takes to give it.
 */
#ifndef GPOOL_AGENT_LATER_H
#define GPOOL_AGENT_LATER_H

#include <stdint.h>

struct exchange_later {
	uint64_t id; /* the front's; 0: nobody waits */
	uint64_t sequence;
	uint8_t token[16];
};

#endif
