/*
 * lora.h - requests with LoRA adapters, served in simulated time: by the real scheduler of client/lora and the real
 * residency of shm/policy/, on a simulated engine, disk and bus.
 */
#ifndef GPOOL_REPLAY_LORA_H
#define GPOOL_REPLAY_LORA_H

#include "client/lora/serve/scheduler.h"
#include "shm/policy/residency.h"
#include "tools/lib/request_trace.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	LORA_RANKS_MAX = 16,
	LORA_STRATEGIES = 5,
	LORA_WINDOWS = 60, /* intervals of the chart */
	LORA_ADAPTERS_MAX = 100000,
	LORA_TENANTS_MAX = 1000,
};

/* ---- workload ---- */

struct lora_request {
	uint64_t arrival_us; /* since the first one */
	uint32_t adapter, context_tokens, generated_tokens;
};

struct lora_adapter {
	uint64_t bytes, warm_bytes;
	uint32_t tenant;
};

/* The parameters of a workload, from a trace or random. */
struct lora_recipe {
	uint32_t adapters, tenants;
	uint32_t ranks[LORA_RANKS_MAX];
	int rank_count;
	/*
	 * the n-th adapter has 1/n^exponent of the first one's requests; else the first fraction x has x^exponent of
	 * the
	 * requests
	 */
	bool zipf;
	double exponent;
	double gamma_rate, gamma_cv; /* random arrivals, requests per second; 0: those of the trace */
	uint32_t requests;           /* without a trace */
	uint64_t seed;
};

struct lora_workload {
	struct lora_request *requests; /* [count], in order of arrival */
	struct lora_adapter *adapters; /* [adapter_count] */
	uint32_t count, adapter_count, tenant_count;
	uint32_t used_adapters; /* number of different adapters in the requests */
	uint64_t tokens, adapter_bytes, largest_bytes;
};

/*
 * lora_workload_make() - make a workload from a trace, or without one (count 0). 0, -ENOMEM. lora_workload_fini() -
 * free it; an all-zero struct is permitted.
 */
int lora_workload_make(const struct lora_recipe *recipe, const struct trace *trace, struct lora_workload *workload);
void lora_workload_fini(struct lora_workload *workload);

/* ---- engine ---- */

/* Durations of the simulated operations. */
struct lora_costs {
	double step_us;         /* a step of the engine: reading the model once */
	double prefill_us;      /* per token of a prompt */
	double decode_us;       /* per running request: reading its keys and values */
	double adapter_us;      /* per MiB of each different adapter in a batch: reading it */
	double load_us;         /* per load, in addition to its transfer */
	double disk, bus, save; /* GB/s: disk to GPU; warm copies to the GPU; GPU to warm copies */
};

struct lora_strategy {
	const char *name, *text;
	enum lora_order order;
	bool look_ahead, limit; /* with --look-ahead, with --batch-adapters */
	bool lru;               /* evict the least recently used adapter, regardless of its worth */
};

struct lora_plan {
	const struct lora_workload *workload;
	const struct lora_strategy *strategy; /* NULL: every adapter is always resident */
	struct lora_costs costs;
	struct residency_limits limits;
	struct lora_options options;
	double speed; /* factor by which requests arrive faster */
	const volatile sig_atomic_t *interrupted;
	void (*progress)(void *context, uint32_t finished); /* before each step; NULL: none */
	void *context;
};

struct lora_result {
	const struct lora_strategy *strategy;
	double seconds, busy; /* from the first arrival to the last end; the share in which the engine computes */
	double first_mean, first_p50, first_p99; /* seconds to the first token */
	double first_p99_worst;                  /* of the tenant with the highest value */
	uint64_t steps, tokens;                  /* tokens: generated */
	double adapters_mean;                    /* per step */
	struct residency_stats residency;
	struct lora_scheduler_stats scheduler;
	uint64_t least_loads;
	/* mean time to the first token of the requests that arrived in it, in seconds; below 0: none */
	float window_first[LORA_WINDOWS];
};

/* lora_serve() - serve all requests. 0, -EINTR, -ENOMEM, -EDEADLK (a request that never has room). */
int lora_serve(const struct lora_plan *plan, struct lora_result *result);

/*
 * lora_least_loads() - compute a lower bound of loads, for a scheduler that knows the whole trace and serves requests
 * in any order, if each ends by ends_us[], or max_bypass_us after its arrival, whichever is later. Return: 0 and
 * *loads, -ENOMEM.
 */
int lora_least_loads(const struct lora_plan *plan, const uint64_t *ends_us, uint64_t *loads);

/*
 * lora_fixed_loads() - compute, for comparison, the loads if the adapters with the most requests per byte stayed
 * resident once loaded, and every other request needed a load. Requests are drawn independently, so this is the
 * expected optimum of a scheduler that does not know the future, except for requests that wait together. Return: 0 and
 * *loads, -ENOMEM.
 */
int lora_fixed_loads(const struct lora_plan *plan, uint64_t *loads);

#endif
