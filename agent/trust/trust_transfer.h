/*
 * trust_transfer.h - transfer handles between trust domains (agent/pages/trust.h). After the last holder has unmapped a
 * handle, the mover clears its pages, which are then free for all domains.
 */
#ifndef GPOOL_AGENT_TRUST_TRANSFER_H
#define GPOOL_AGENT_TRUST_TRANSFER_H

#include "agent/pages/trust.h"

struct job_user;

/* The functions to be passed to trust_open(). */
extern const struct trust_transfers trust_transfers;
/* Jobs that clear pages. */
extern const struct job_user trust_job_user;
/* trust_tick() - retire the pages of silent holders, and transfer some pages in advance; called periodically. */
void trust_tick(struct pool *pool);
/* trust_recover() - continue the transfers of a dead agent. Call it after sessions and page words were restored. */
void trust_recover(struct pool *pool);

/* trust_check() - check the invariants against page words, rows and views. `found` is called for each violation. */
void trust_check(const struct pool *pool,
	void (*found)(void *context, uint32_t session, uint32_t page, const char *text), void *context);

/* Adjacent handles in the same step of a transfer, for inspection. */
struct trust_run {
	uint32_t first, count;
	/* of the first handle: number of sessions that may have it, and one of these sessions */
	uint32_t domain, holders, session;
	uint32_t age_ms;
	bool retired, scrubs;
};
/* trust_run_next() - find the first run at or after page `from`. Return: false if none is left. */
bool trust_run_next(const struct pool *pool, uint32_t from, struct trust_run *run);

enum trust_scrub { SCRUB_NONE, SCRUB_BEGUN, SCRUB_DONE };

#endif
