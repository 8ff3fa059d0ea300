/*
 * descriptors.h - whether another session's descriptors can be had. The agent and the keeper, which holds duplicates, have the same
 * limit, RLIMIT_NOFILE; whoever comes too much is told so, instead of meeting odd failures later.
 */
#ifndef GPOOL_AGENT_DESCRIPTORS_H
#define GPOOL_AGENT_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

struct agent;

enum {
	DESCRIPTORS_OWN = 64,       /* of the processes themselves, 9 to 20, and room for connections that have not spoken yet */
	DESCRIPTORS_OF_POOL = 6,    /* segment, ledger, bells, tiers */
	DESCRIPTORS_OF_SESSION = 4, /* segment, connection, pidfd, doorbell */
};

/* descriptors_left() - whether `wanted` more can be had, beside what gpoold needs to go on: to accept, to refuse, to restart. */
bool descriptors_left(const struct agent *agent, uint32_t wanted);
uint32_t descriptors_most(void); /* RLIMIT_NOFILE */

#endif
