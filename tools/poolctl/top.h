/*
 * top.h - the data of `poolctl top` at one time, and drawing it.
 */
#ifndef GPOOL_TOOLS_POOLCTL_TOP_H
#define GPOOL_TOOLS_POOLCTL_TOP_H

#include "tools/poolctl/view.h"

#include <stdint.h>

enum top_order { TOP_LEASED, TOP_NEEDED, TOP_OFFERED, TOP_NAME, TOP_ORDERS };

/* Events per second, from two consecutive samples. */
struct top_rates {
	double allocations, grants, evicted_pages, refusals;
};

struct top {
	struct msg_status_reply status;
	uint32_t chosen; /* index of the selected pool in status.pools */
	struct msg_tenants_reply tenants;
	struct clients_view clients; /* sorted */
	uint8_t *kinds;              /* [kind_count] enum map_kind of the pool's pages */
	uint32_t kind_count;
	struct top_rates rates;
	enum top_order order;
	uint32_t scrolled; /* number of clients above the first visible one */
	bool help;
	char trouble[512]; /* the reason why the data is not current; "": it is current */
};

extern const char *const top_order_names[TOP_ORDERS];

/* top_draw() - draw on a screen of any size. */
void top_draw(const struct top *top);

#endif
