/* control_regions.c - requests of tools about the regions of a worker, which are stored in its untrusted segment. */
#include "agent/control/exchange.h"

#include "agent/session/session.h"
#include "proto/view.h"

#include <errno.h>
#include <string.h>

enum { TRIES = 4 }; /* attempts, of about 10 us each, to read a part without a concurrent change by the worker */

/* Fill in the entries, beginning with `first`. Return true if the worker did not change them at the same time. */
static bool part_fill(const struct session *session, uint32_t first, struct msg_regions_reply *reply)
{
	const struct region_table *table = session->segment.regions;
	struct region_look look;

	memset(reply, 0, sizeof(*reply));
	region_table_look(table, &look);
	view_region_head(&look, reply);
	for (uint32_t number = first; number < look.used; number++) {
		struct region_row region;
		enum region_read read;

		if (reply->regions_count == sizeof(reply->regions) / sizeof(*reply->regions)) {
			reply->next = number;
			break;
		}
		read = region_table_read(table, &look, number, &region);
		reply->damaged += read == REGION_READ_DAMAGED;
		if (read == REGION_READ_WHOLE || read == REGION_READ_CHANGING)
			view_region(&session->segment, &region, read == REGION_READ_CHANGING, (uint32_t)clock_ms(),
				&reply->regions[reply->regions_count++]);
	}
	return region_table_stands(table, &look);
}

int answer_regions(struct exchange *x)
{
	static struct msg_regions_reply reply;
	struct msg_regions_request request;
	const struct session *session;
	const struct pool *pool;
	bool stands = false;

	if (DECODE(x, regions_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	session = request.session < POOL_SESSIONS ? pool->sessions[request.session] : NULL;
	if (!session)
		return exchange_fail(x, -ENXIO, "no session %u in pool '%s'; poolctl clients lists the sessions",
			request.session, pool->segment.header->name);
	if (!session->segment.regions)
		return exchange_fail(x, -ENXIO, "session %u of pool '%s' is not a worker and has no regions",
			request.session, pool->segment.header->name);
	for (int i = 0; i < TRIES && !stands; i++)
		stands = part_fill(session, request.first, &reply);
	if (!stands)
		reply.changes |= 1;
	return ENCODE(x, regions_reply, &reply);
}
