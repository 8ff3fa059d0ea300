/*
 * lora.h - requests with LoRA adapters, served in simulated time. The scheduler and the residency policy are those of
 * client/lora; engine, disk and bus are simulated.
 */
#ifndef GPOOL_REPLAY_LORA_H
#define GPOOL_REPLAY_LORA_H

#include "client/lora/serve/scheduler.h"
#include "client/lora/residency/residency.h"
#include "tools/lib/request_trace.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	LORA_RANKS_MAX = 16,
	LORA_STRATEGIES = 6,
	LORA_WINDOWS = 60, /* intervals of the chart */
	LORA_ADAPTERS_MAX = 100000,
	LORA_TENANTS_MAX = 1000,
};

/* ---- workload ---- */

struct lora_request {
	uint64_t arrival_us; /* since the first request */
	uint32_t adapter, context_tokens, generated_tokens;
};

struct lora_adapter {
	uint64_t bytes, warm_bytes;
	uint32_t tenant;
};

/* The parameters of a workload, which is random or based on a trace. */
struct lora_recipe {
	uint32_t adapters, tenants;
	uint32_t ranks[LORA_RANKS_MAX];
	int rank_count;
	/*
	 * Popularity of adapters. true: the n-th adapter has 1/n^exponent of the requests of the first one; false: the
	 * fraction x of the most popular adapters has x^exponent of the requests
	 */
	bool zipf;
	double exponent;
	double gamma_rate, gamma_cv; /* random arrivals, requests per second; 0: the arrivals of the trace */
	uint32_t requests;           /* number of requests if there is no trace */
	uint64_t seed;
};

struct lora_workload {
	struct lora_request *requests; /* [count], in order of arrival */
	struct lora_adapter *adapters; /* [adapter_count] */
	uint32_t count, adapter_count, tenant_count;
	uint32_t used_adapters; /* number of different adapters that the requests use */
	uint64_t tokens, adapter_bytes, largest_bytes;
};

/*
 * lora_workload_make() - make a workload from a trace, or a random one (count 0). Return: 0 or -ENOMEM.
 * lora_workload_fini() - free it; an all-zero struct is permitted.
 */
int lora_workload_make(const struct lora_recipe *recipe, const struct trace *trace, struct lora_workload *workload);
void lora_workload_fini(struct lora_workload *workload);

/* ---- engine ---- */

/* Durations of the simulated operations. */
struct lora_costs {
	double step_us;    /* step of the engine, which reads the model once */
	double prefill_us; /* per prompt token */
	double decode_us;  /* per running request, for reading its keys and values */
	double adapter_us; /* per MiB of each different adapter in a batch, for reading it */
	double load_us;    /* per load, in addition to the transfer */
	/* GB/s: disk to GPU; warm copies to GPU; GPU to warm copies, or 0: warm copies are made from the disk */
	double disk, bus, save;
};

struct lora_strategy {
	const char *name, *text;
	enum lora_order order;
	bool look_ahead, limit; /* --look-ahead, --batch-adapters */
	bool lru;               /* evict the least recently used adapter; its worth is ignored */
	bool single;            /* all running requests have the same adapter */
};

struct lora_plan {
	const struct lora_workload *workload;
	const struct lora_strategy *strategy; /* NULL: every adapter is always resident */
	struct lora_costs costs;
	struct residency_limits limits;
	struct lora_options options;
	double speed; /* factor by which arrivals are faster */
	const volatile sig_atomic_t *interrupted;
	void (*progress)(void *context, uint32_t finished); /* called before each step; NULL: none */
	void *context;
};

struct lora_result {
	const struct lora_strategy *strategy;
	double seconds, busy; /* seconds from the first arrival to the last end; share of this time in which the
			       * engine computes */
	double first_mean, first_p50, first_p99; /* time to the first token, in seconds */
	double first_p99_worst;                  /* highest value of any tenant */
	uint64_t steps, tokens;                  /* tokens: generated tokens */
	double adapters_mean;                    /* different adapters per step */
	struct residency_stats residency;
	struct lora_scheduler_stats scheduler;
	uint64_t least_loads;
	/*
	 * mean time to the first token, in seconds, of the requests that arrived in the window; negative: no requests
	 */
	float window_first[LORA_WINDOWS];
};

/* lora_serve() - serve all requests. Return: 0, -EINTR, -ENOMEM, -EDEADLK (there can never be room for a request). */
int lora_serve(const struct lora_plan *plan, struct lora_result *result);

/*
 * lora_least_loads() - compute a lower bound on the number of loads. Each request must end by the later of ends_us[]
 * and max_bypass_us after its arrival. Under this condition, the bound is valid for any scheduler, even one that knows
 * the whole trace and serves requests in any order. Return: 0 and *loads, or -ENOMEM.
 */
int lora_least_loads(const struct lora_plan *plan, const uint64_t *ends_us, uint64_t *loads);

/*
 * lora_fixed_loads() - compute, for comparison, the loads of a fixed choice. The adapters for which most loads per byte
 * are avoided stay resident after their first load; each request for another adapter needs a load. For requests that
 * are drawn independently, this is the expected optimum without knowledge of the future, except for requests that wait
 * together. Return: 0 and *loads, or -ENOMEM.
 */
int lora_fixed_loads(const struct lora_plan *plan, uint64_t *loads);

/* The adapters in a cache of limits.hot_bytes. */
struct lora_held {
	double adapters; /* held at once, on average since the memory was first full */
	double idle;     /* share of the memory that contains no weights, likewise */
	uint64_t loads;
};

/*
 * lora_held_count() - compute the adapters that a cache holds in pages of 2 MiB, and in one contiguous piece each, if
 * it serves the requests in order and evicts the least recently used adapter. Return: 0, -EINVAL (an adapter is larger
 * than the cache), -ENOMEM.
 */
int lora_held_count(const struct lora_plan *plan, struct lora_held *paged, struct lora_held *contiguous);

#endif
