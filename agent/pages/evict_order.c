/* evict_order.c - the value of content, and the order of candidates with equal scores. Used by all policies. */
#include "agent/pages/evict.h"

enum { LORA_COLD_MS = 60000 };

double evict_usage_value(const struct evict_candidate *candidate)
{
	/* indexed by enum gpool_usage: KV_CACHE, LORA_WEIGHT, TEMP_BUFFER, ACTIVATION, GRADIENT */
	static const double values[] = {5, 4, 0, 1, 2};
	double value = candidate->usage < sizeof(values) / sizeof(*values) ? values[candidate->usage] : 0;

	if (candidate->usage == EVICT_LORA_WEIGHT && candidate->idle_ms >= LORA_COLD_MS)
		value = 3;
	return (value + candidate->priority / 4.0) / 6.0;
}

int evict_order(const struct evict_candidate *a, const struct evict_candidate *b)
{
	if (a->cached != b->cached)
		return a->cached ? -1 : 1;
	if (a->score != b->score)
		return a->score < b->score ? -1 : 1;
	if (a->priority != b->priority)
		return a->priority < b->priority ? -1 : 1;
	if (a->idle_ms != b->idle_ms)
		return a->idle_ms > b->idle_ms ? -1 : 1;
	return a->page < b->page ? -1 : 1;
}
