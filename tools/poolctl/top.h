/*
 * top.h - what `poolctl top` knows at a moment, and drawing it.
 */
#ifndef GPOOL_TOOLS_POOLCTL_TOP_H
#define GPOOL_TOOLS_POOLCTL_TOP_H

#include "tools/poolctl/view.h"

#include <stdint.h>

enum top_order { TOP_LEASED, TOP_NEEDED, TOP_OFFERED, TOP_NAME, TOP_ORDERS };

/* What happened in a second, from one look to the next. */
struct top_rates {
	double allocations, grants, evicted_pages, refusals;
};

struct top {
	struct msg_status_reply status;
	uint32_t chosen; /* of status.pools */
	struct msg_tenants_reply tenants;
	struct clients_view clients; /* in order */
	uint8_t *kinds;              /* [kind_count] enum map_kind of its pages */
	uint32_t kind_count;
	struct top_rates rates;
	enum top_order order;
	uint32_t scrolled; /* clients above the first one that is shown */
	bool help;
	char trouble[512]; /* why nothing new is shown; "": all is well */
};

extern const char *const top_order_names[TOP_ORDERS];

/* top_draw() - on the screen, whatever its size. */
void top_draw(const struct top *top);

#endif
