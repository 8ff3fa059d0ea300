/*
 * trust_transfer.h - transfer handles between trust domains (agent/pages/trust.h). After the last holder has unmapped a
 * handle or ended, the mover clears the pages, which are then free for all domains.
 */
#ifndef GPOOL_AGENT_TRUST_TRANSFER_H
#define GPOOL_AGENT_TRUST_TRANSFER_H

#include "agent/pages/trust.h"

struct job_user;

/* Passed to trust_open(). */
extern const struct trust_transfers trust_transfers;
/* The handlers of the jobs that clear pages. */
extern const struct job_user trust_job_user;
/*
 * trust_tick() - retire pages that their former holders have not released in time, and transfer some pages in advance.
 * Called periodically.
 */
void trust_tick(struct pool *pool);
/* trust_recover() - continue the transfers of the previous agent, after sessions and page words have been restored. */
void trust_recover(struct pool *pool);

/* trust_check() - check that page words, rows and views satisfy the invariants. Call `found` for each violation. */
void trust_check(const struct pool *pool,
	void (*found)(void *context, uint32_t session, uint32_t page, const char *text), void *context);

/* Adjacent handles in the same step of a transfer, for inspection. */
struct trust_run {
	uint32_t first, count;
	uint32_t domain, holders; /* domain of the first handle; number of sessions that may have it mapped */
	uint32_t session;         /* one of these sessions */
	uint32_t age_ms;
	bool retired, scrubs;
};
/* trust_run_next() - find the first run that begins at or after page `from`. Return false if none is left. */
bool trust_run_next(const struct pool *pool, uint32_t from, struct trust_run *run);

enum trust_scrub { SCRUB_NONE, SCRUB_BEGUN, SCRUB_DONE };

#endif
