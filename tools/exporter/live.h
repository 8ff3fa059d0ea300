/*
 * live.h - the live page and its data.
 *
 *   /                             the HTML file page.html, which requests only the paths below
 *   /api/live?pool=NAME           server-sent events: `pages`, the changed pages, at most LIVE_HZ times per second;
 *                                 `state`, the status of all pools, twice per second; `notice`, the agent's notices
 *   /api/page?pool=NAME&page=N    all data about one page, as JSON
 */
#ifndef GPOOL_TOOLS_EXPORTER_LIVE_H
#define GPOOL_TOOLS_EXPORTER_LIVE_H

#include "tools/exporter/http.h"
#include "tools/exporter/notices.h"
#include "tools/exporter/sampler.h"

#include <stdatomic.h>

enum { LIVE_HZ = 10, LIVE_VIEWERS = 16 }; /* limited because each viewer has a thread and a table of pages */

struct live {
	struct sampler *sampler;
	struct notices *notices;
	_Atomic int viewers;
};

/* Handlers of these paths; context: struct live. */
void live_page(void *context, const struct http_request *request, struct http_answer *answer);
void live_stream(void *context, const struct http_request *request, struct http_answer *answer);
void live_detail(void *context, const struct http_request *request, struct http_answer *answer);

#endif
