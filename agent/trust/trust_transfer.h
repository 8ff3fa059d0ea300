/*
 * trust_transfer.h - transfer handles between trust domains (agent/pages/trust.h): after the last holder has unmapped a
 * handle, the mover clears its pages, and they are free for all domains.
 */
#ifndef GPOOL_AGENT_TRUST_TRANSFER_H
#define GPOOL_AGENT_TRUST_TRANSFER_H

#include "agent/pages/trust.h"

struct job_user;

/* What trust_open() gets. */
extern const struct trust_transfers trust_transfers;
/* Jobs that clear pages. */
extern const struct job_user trust_job_user;
/* trust_tick() - by the clock: retire pages of silent holders, clear some pages ahead of requests. */
void trust_tick(struct pool *pool);
/* trust_recover() - after an agent's death, when sessions and page words stand. */
void trust_recover(struct pool *pool);

/* trust_check() - the invariants, against page words, rows and views; `found` hears of each that is broken. */
void trust_check(const struct pool *pool,
	void (*found)(void *context, uint32_t session, uint32_t page, const char *text), void *context);

/* Neighbours on their way that are alike, for those who look. */
struct trust_run {
	uint32_t first, count;
	uint32_t domain, holders, session; /* of the first: how many sessions may have it, and one of them */
	uint32_t age_ms;
	bool retired, scrubs;
};
/* trust_run_next() - the first such run from page `from` on. False: there is none. */
bool trust_run_next(const struct pool *pool, uint32_t from, struct trust_run *run);

enum trust_scrub { SCRUB_NONE, SCRUB_BEGUN, SCRUB_DONE };

#endif
