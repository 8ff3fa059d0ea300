/* shares.h - the pages of a pool by use, as shown in a bar. */
#ifndef GPOOL_TOOLS_POOLCTL_SHARES_H
#define GPOOL_TOOLS_POOLCTL_SHARES_H

#include "tools/poolctl/output.h"

#include "proto/messages.h"

/* The number of pages of one kind, in the order of the bar. */
struct share {
	char mark;
	const char *name;
	enum color color;
	uint32_t pages;
};
enum {
	SHARE_NEEDED,
	SHARE_OFFERED,
	SHARE_IDLE,
	SHARE_QUARANTINED,
	SHARE_RETIRED,
	SHARE_OTHER,
	SHARE_FREE,
	SHARE_RESERVED,
	SHARES
};

void shares_fill(const struct msg_pool_status *pool, struct share shares[SHARES]);
/* shares_at() - return the share that a cell shows, in a bar of `cells` cells. */
const struct share *shares_at(const struct share *shares, uint32_t page_count, uint32_t cell, uint32_t cells);
enum color pressure_color(uint32_t pressure);

#endif
