#include "tools/poolctl/shares.h"

#include "shm/pool_segment.h"

#include <string.h>

static uint32_t minus(uint32_t from, uint32_t what)
{
	return from > what ? from - what : 0;
}

/* Workers continue while the agent counts, so the difference may be negative; 0 is used then. */
void shares_fill(const struct msg_pool_status *pool, struct share shares[SHARES])
{
	static const struct share kinds[SHARES] = {
		[SHARE_NEEDED] = {'#', "needed", COLOR_RED, 0},
		[SHARE_OFFERED] = {'=', "offered", COLOR_YELLOW, 0},
		[SHARE_IDLE] = {'-', "idle", COLOR_GREEN, 0},
		[SHARE_QUARANTINED] = {'q', "quarantined", COLOR_RED, 0},
		[SHARE_RETIRED] = {'x', "retired", COLOR_DIM, 0},
		[SHARE_OTHER] = {'s', "shared or moving", COLOR_YELLOW, 0},
		[SHARE_FREE] = {'.', "free", COLOR_NONE, 0},
		[SHARE_RESERVED] = {'R', "reserved", COLOR_DIM, 0},
	};
	uint32_t sum = 0;

	memcpy(shares, kinds, sizeof(kinds));
	shares[SHARE_NEEDED].pages = pool->needed_pages;
	shares[SHARE_OFFERED].pages = pool->offered_pages;
	shares[SHARE_IDLE].pages = pool->idle_pages;
	shares[SHARE_QUARANTINED].pages = pool->quarantined_pages;
	shares[SHARE_RETIRED].pages = pool->retired_pages;
	shares[SHARE_FREE].pages = pool->free_pages;
	shares[SHARE_RESERVED].pages = pool->reserved_pages;
	for (int i = 0; i < SHARES; i++)
		sum += shares[i].pages;
	shares[SHARE_OTHER].pages = minus(pool->page_count, sum);
}

const struct share *shares_at(const struct share *shares, uint32_t page_count, uint32_t cell, uint32_t cells)
{
	/* take the page in the middle of the cell, in an array of all pages sorted by kind */
	uint64_t page = ((uint64_t)cell * 2 + 1) * page_count / (2 * (uint64_t)cells), before = 0;
	int kind = 0;

	while (kind + 1 < SHARES && page >= before + shares[kind].pages)
		before += shares[kind++].pages;
	return &shares[kind];
}

enum color pressure_color(uint32_t pressure)
{
	static const enum color colors[POOL_PRESSURES] = {COLOR_GREEN, COLOR_NONE, COLOR_YELLOW, COLOR_RED};

	return pressure < POOL_PRESSURES ? colors[pressure] : COLOR_RED;
}
