/*
 * descriptors.h - the number of descriptors that gpoold needs. The agent and the keeper, which holds duplicates, have
 * the same limit, RLIMIT_NOFILE; a session for which no descriptors are left is refused with that reason.
 */
#ifndef GPOOL_AGENT_DESCRIPTORS_H
#define GPOOL_AGENT_DESCRIPTORS_H

#include <stdint.h>

enum {
	/* of the processes themselves, 9 to 20, and room for connections that have not sent their first message */
	DESCRIPTORS_OWN = 64,
	DESCRIPTORS_OF_POOL = 6,    /* segment, ledger, bells, tiers */
	DESCRIPTORS_OF_SESSION = 4, /* segment, connection, pidfd, doorbell */
};

/* descriptors_most() - return RLIMIT_NOFILE. */
uint32_t descriptors_most(void);

#endif
