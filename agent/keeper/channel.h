/*
 * channel.h - what keeper and agent say to each other: a private SOCK_SEQPACKET pair, one struct a packet, at most one descriptor.
 */
#ifndef GPOOL_AGENT_KEEPER_CHANNEL_H
#define GPOOL_AGENT_KEEPER_CHANNEL_H

#include <stdint.h>

enum keep_what {
	KEEP_READY = 1, /* agent -> keeper: serving */
	KEEP_HOLD,      /* agent -> keeper, with a descriptor: keep it until DROP; outlives the agent */
	KEEP_DROP,      /* agent -> keeper */
	KEEP_FRONT,     /* keeper -> agent, with a descriptor: a new front; id is its pid, pool the number of restarts */
};

enum keep_kind { KEEP_HANDLE = 1, KEEP_SESSION };

struct keep_message {
	uint32_t what; /* enum keep_what */
	uint32_t kind; /* enum keep_kind */
	uint32_t pool;
	uint32_t id;   /* handle or session */
};

#endif
