/*
 * lora_workload.c - the adapters and arrivals of requests: see lora.h.
 */
#include "tools/replay/lora.h"

#include "tools/lib/malloc_make.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	RANK_BYTES = 5 << 20,  /* of all linear layers of Llama 3 8B in 16 bits: 81,920 numbers in each of 32 layers */
	MADE_TOKENS_LEAST = 8, /* without a trace, prompts and answers are as in S-LoRA */
	MADE_TOKENS_MOST = 512,
};

static double uniform(uint64_t *random)
{
	return ((double)(random_step(random) >> 11) + 0.5) / (double)(UINT64_C(1) << 53);
}

static double normal(uint64_t *random)
{
	return sqrt(-2 * log(uniform(random))) * cos(2 * acos(-1) * uniform(random));
}

/*
 * Return a gamma-distributed number with mean 1, by the method of Marsaglia and Tsang. A shape below 1 is derived from
 * a shape above 1.
 */
static double gamma_made(uint64_t *random, double shape)
{
	double boosted = shape < 1 ? shape + 1 : shape, d = boosted - 1 / 3.0, c = 1 / sqrt(9 * d), x, v;

	do {
		x = normal(random);
		v = 1 + c * x;
		v = v * v * v;
	} while (v <= 0 || log(uniform(random)) >= 0.5 * x * x + d - d * v + d * log(v));
	return d * v * (shape < 1 ? pow(uniform(random), 1 / shape) : 1) / shape;
}

/* ---- adapters ---- */

/* Assign ranks and tenants; they are independent of an adapter's popularity. */
static void adapters_make(const struct lora_recipe *recipe, uint64_t *random, struct lora_workload *workload)
{
	for (uint32_t i = 0; i < workload->adapter_count; i++) {
		struct lora_adapter *adapter = &workload->adapters[i];

		adapter->bytes =
			(uint64_t)recipe->ranks[random_step(random) % (uint32_t)recipe->rank_count] * RANK_BYTES;
		adapter->warm_bytes = adapter->bytes / 2;
		adapter->tenant = (uint32_t)(random_step(random) % recipe->tenants);
		workload->adapter_bytes += adapter->bytes;
		if (adapter->bytes > workload->largest_bytes)
			workload->largest_bytes = adapter->bytes;
	}
}

/* Compute the cumulative share of requests of the n most popular adapters. */
static void shares_make(const struct lora_recipe *recipe, double *shares)
{
	double sum = 0;

	for (uint32_t i = 0; i < recipe->adapters; i++) {
		sum += pow(i + 1, -recipe->exponent);
		shares[i] = recipe->zipf ? sum : pow((i + 1.0) / recipe->adapters, recipe->exponent);
	}
	for (uint32_t i = 0; i < recipe->adapters && recipe->zipf; i++)
		shares[i] /= sum;
}

static uint32_t adapter_drawn(const double *shares, uint32_t count, double at)
{
	uint32_t low = 0, high = count - 1;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (shares[middle] < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* ---- requests ---- */

static void request_make(const struct lora_recipe *recipe, const struct trace *trace, uint32_t i, uint64_t *random,
	struct lora_workload *workload)
{
	struct lora_request *request = &workload->requests[i];
	uint32_t spread = MADE_TOKENS_MOST - MADE_TOKENS_LEAST + 1;
	double mean_us = recipe->gamma_rate > 0 ? 1e6 / recipe->gamma_rate : 0;

	if (recipe->gamma_rate > 0 && i > 0)
		request->arrival_us = workload->requests[i - 1].arrival_us +
			(uint64_t)(mean_us * gamma_made(random, 1 / (recipe->gamma_cv * recipe->gamma_cv)));
	else if (trace->count)
		request->arrival_us = (uint64_t)(trace->requests[i].arrival_us - trace->requests[0].arrival_us);
	if (trace->count) {
		request->context_tokens = trace->requests[i].context_tokens;
		request->generated_tokens = trace->requests[i].generated_tokens;
	} else {
		request->context_tokens = MADE_TOKENS_LEAST + (uint32_t)(random_step(random) % spread);
		request->generated_tokens = MADE_TOKENS_LEAST + (uint32_t)(random_step(random) % spread);
	}
	request->generated_tokens += request->generated_tokens == 0; /* every request has a first token */
	workload->tokens += request->context_tokens + request->generated_tokens;
}

static void count_used(struct lora_workload *workload, bool *used)
{
	for (uint32_t i = 0; i < workload->count; i++) {
		workload->used_adapters += !used[workload->requests[i].adapter];
		used[workload->requests[i].adapter] = true;
	}
}

int lora_workload_make(const struct lora_recipe *recipe, const struct trace *trace, struct lora_workload *workload)
{
	/* Use a separate random sequence, so that a change of other parameters does not change the adapters. */
	uint64_t random = recipe->seed ^ UINT64_C(0x9e3779b97f4a7c15),
		 popularity = recipe->seed ^ UINT64_C(0xd1b54a32d192ed03);
	double *shares = calloc(recipe->adapters, sizeof(*shares));
	bool *used = calloc(recipe->adapters, sizeof(*used));
	int error = 0;

	*workload = (struct lora_workload){.count = trace->count ? trace->count : recipe->requests,
		.adapter_count = recipe->adapters,
		.tenant_count = recipe->tenants};
	workload->requests = calloc(workload->count, sizeof(*workload->requests));
	workload->adapters = calloc(workload->adapter_count, sizeof(*workload->adapters));
	if (!shares || !used || !workload->requests || !workload->adapters) {
		lora_workload_fini(workload);
		error = -ENOMEM;
		goto free_shares;
	}
	adapters_make(recipe, &popularity, workload);
	shares_make(recipe, shares);
	for (uint32_t i = 0; i < workload->count; i++) {
		request_make(recipe, trace, i, &random, workload);
		workload->requests[i].adapter = adapter_drawn(shares, recipe->adapters, uniform(&popularity));
	}
	count_used(workload, used);
free_shares:
	free(shares);
	free(used);
	return error;
}

void lora_workload_fini(struct lora_workload *workload)
{
	free(workload->requests);
	free(workload->adapters);
	memset(workload, 0, sizeof(*workload));
}
