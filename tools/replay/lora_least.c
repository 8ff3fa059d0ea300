/*
 * lora_least.c - a lower bound on the number of loads: see lora.h.
 *
 * Two consecutive requests for an adapter are separated by a gap if the later one arrived after all earlier ones had to
 * end. In a gap, the adapter either stays resident, or must be loaded again. In addition, each adapter is loaded once
 * at first. The number of loads is therefore the number of different adapters plus the number of gaps, minus the gaps
 * in which an adapter stays.
 *
 * At each arrival, the adapters that stay in a gap must fit into memory together. Summed over all arrivals, their bytes
 * times the arrivals in their gaps are at most the memory times the number of arrivals. The cheapest gaps maximize the
 * number of gaps within that sum.
 *
 * The result is a bound, not a plan: it counts no memory for running requests, and gaps that fit on average need not
 * fit at every time.
 */
#include "tools/replay/lora.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct last {
	uint64_t over_us; /* time by which all earlier requests for the adapter have ended */
	bool seen;
};

static int cost_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static uint64_t arrival_us(const struct lora_plan *plan, uint32_t request)
{
	return (uint64_t)((double)plan->workload->requests[request].arrival_us / plan->speed);
}

static uint32_t first_after(const struct lora_plan *plan, uint64_t time_us)
{
	uint32_t low = 0, high = plan->workload->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (arrival_us(plan, middle) <= time_us)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Find the gaps. costs: receives the cost of each. Return: the number of gaps. */
static uint32_t gaps_find(const struct lora_plan *plan, const uint64_t *ends_us, struct last *lasts, double *costs)
{
	uint32_t gaps = 0;

	for (uint32_t i = 0; i < plan->workload->count; i++) {
		uint32_t adapter = plan->workload->requests[i].adapter;
		uint64_t arrival = arrival_us(plan, i), over = arrival + plan->options.max_bypass_us;
		struct last *last = &lasts[adapter];

		if (last->seen && last->over_us < arrival) {
			uint32_t behind = first_after(plan, last->over_us), before = first_after(plan, arrival - 1);

			costs[gaps++] = (double)plan->workload->adapters[adapter].bytes *
				(before > behind ? before - behind : 0);
		}
		over = over > ends_us[i] ? over : ends_us[i];
		last->over_us = over > last->over_us ? over : last->over_us;
		last->seen = true;
	}
	return gaps;
}

int lora_least_loads(const struct lora_plan *plan, const uint64_t *ends_us, uint64_t *loads)
{
	const struct lora_workload *workload = plan->workload;
	struct last *lasts = calloc(workload->adapter_count, sizeof(*lasts));
	double *costs = calloc(workload->count, sizeof(*costs));
	double room = (double)plan->limits.hot_bytes * workload->count;
	uint32_t gaps, kept = 0;

	if (!lasts || !costs) {
		free(lasts);
		free(costs);
		return -ENOMEM;
	}
	gaps = gaps_find(plan, ends_us, lasts, costs);
	qsort(costs, gaps, sizeof(*costs), cost_compare);
	while (kept < gaps && costs[kept] <= room)
		room -= costs[kept++];
	*loads = workload->used_adapters + gaps - kept;
	free(lasts);
	free(costs);
	return 0;
}

/* ---- the optimum without knowledge of the future ---- */

struct popular {
	uint32_t requests;
	double worth; /* loads saved per byte */
};

static int worth_compare(const void *a, const void *b)
{
	double x = ((const struct popular *)a)->worth, y = ((const struct popular *)b)->worth;

	return (x < y) - (x > y);
}

int lora_fixed_loads(const struct lora_plan *plan, uint64_t *loads)
{
	const struct lora_workload *workload = plan->workload;
	struct popular *popular = calloc(workload->adapter_count, sizeof(*popular));
	double room = (double)plan->limits.hot_bytes;

	if (!popular)
		return -ENOMEM;
	for (uint32_t i = 0; i < workload->count; i++)
		popular[workload->requests[i].adapter].requests++;
	for (uint32_t i = 0; i < workload->adapter_count; i++)
		popular[i].worth = (popular[i].requests - 1.0) / (double)workload->adapters[i].bytes;
	qsort(popular, workload->adapter_count, sizeof(*popular), worth_compare);
	*loads = 0;
	for (uint32_t i = 0; i < workload->adapter_count; i++) {
		double bytes = (popular[i].requests - 1.0) / popular[i].worth;

		if (popular[i].worth > 0 && bytes <= room) {
			room -= bytes;
			*loads += 1;
		} else {
			*loads += popular[i].requests;
		}
	}
	free(popular);
	return 0;
}
