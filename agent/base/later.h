/*
 * later.h - the identity of a control request that is answered later.
 */
#ifndef GPOOL_AGENT_LATER_H
#define GPOOL_AGENT_LATER_H

#include <stdint.h>

struct exchange_later {
	uint64_t id; /* id assigned by the front; 0: no request waits */
	uint64_t sequence;
	uint8_t token[16];
};

#endif
