/*
 * serve_routing.c - see serve.h.
 *
 * Requests are assigned in turn; the contents of the engines' caches are ignored. With idle windows, the last engine
 * receives requests only in windows 0, 2, 4... of trace time; the other engines receive all requests of windows 1, 3,
 * 5...
 */
#include "tools/replay/serve.h"

static bool is_idle_window(const struct serve_setup *setup, uint32_t request)
{
	return setup->idle_ms && setup->engines > 1 &&
		setup->trace->requests[request].time_ms / setup->idle_ms % 2 == 1;
}

uint32_t serve_engine_of(const struct serve_setup *setup, uint32_t request)
{
	return request % (is_idle_window(setup, request) ? setup->engines - 1 : setup->engines);
}

uint32_t serve_next(const struct serve_setup *setup, uint32_t engine, uint32_t request)
{
	while (request < setup->trace->request_count && serve_engine_of(setup, request) != engine)
		request++;
	return request;
}
