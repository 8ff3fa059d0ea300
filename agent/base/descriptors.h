/*
 * descriptors.h - the number of descriptors that gpoold needs. The agent and the keeper, which holds duplicates, have
 * the same limit, RLIMIT_NOFILE. If no descriptors are left for a session, its attach is refused with that reason.
 */
#ifndef GPOOL_AGENT_DESCRIPTORS_H
#define GPOOL_AGENT_DESCRIPTORS_H

#include <stdint.h>

enum {
	/* 9 to 20 of the processes themselves, and some for connections without a first message */
	DESCRIPTORS_OWN = 64,
	DESCRIPTORS_OF_POOL = 6,    /* segment, ledger, bells, tiers */
	DESCRIPTORS_OF_SESSION = 4, /* segment, connection, pidfd, doorbell */
	/* free descriptors that the agent keeps, whatever uses the others: a driver may open some */
	DESCRIPTORS_SPARE = 32,
};

/* descriptors_most() - return the limit of open descriptors, RLIMIT_NOFILE. */
uint32_t descriptors_most(void);

#endif
