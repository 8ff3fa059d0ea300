/*
 * lora_engine.c - an engine that serves requests with adapters, in simulated time: see lora.h.
 *
 * The engine computes in steps. Before each step, the scheduler selects the requests that start. A step takes the time
 * to read the model, the prompts of starting requests, the keys and values of running requests, and each different
 * adapter once. At its end, starting requests have their first token, and running requests one more. Loads proceed at
 * the same time: the disk, and the bus in each direction, each serve a queue in order.
 */
#include "tools/replay/lora.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX

struct job {
	uint64_t done_us;
	struct residency_decision decision;
};

struct running {
	uint32_t number;  /* of the scheduler */
	uint32_t request; /* index in the workload */
	uint32_t left;    /* tokens still to be generated */
};

struct service {
	const struct lora_plan *plan;
	struct lora_result *result;
	struct lora_scheduler *scheduler;
	struct residency *residency;
	uint64_t now_us, busy_us, disk_us, bus_us, save_us; /* current time, and ends of the current operations */
	uint32_t arrived, finished;
	uint32_t *requests;           /* [count] by the scheduler's number */
	bool *held;                   /* [adapter_count] pinned for a request until it runs */
	uint64_t *first_us, *ends_us; /* [count] */
	struct job *jobs;             /* [adapter_count * 2] */
	uint32_t job_count;
	struct running running[LORA_BATCH_REQUESTS_MAX];
	uint32_t running_count;
	uint32_t *batch_of; /* [adapter_count] the last step in which the adapter was counted */
	double adapter_steps;
};

static uint64_t arrival_us(const struct lora_plan *plan, uint32_t request)
{
	return (uint64_t)((double)plan->workload->requests[request].arrival_us / plan->speed);
}

/* ---- loads and evictions in progress ---- */

/* Begin a job on its channel, which executes one job at a time. */
static void job_begin(struct service *service, const struct residency_decision *decision)
{
	const struct lora_costs *costs = &service->plan->costs;
	const struct lora_adapter *adapter = &service->plan->workload->adapters[decision->adapter];
	bool disk = decision->action == RESIDENCY_LOAD_COLD ||
		(decision->action != RESIDENCY_LOAD_WARM && costs->save == 0);
	uint64_t *channel_us = disk                       ? &service->disk_us
		: decision->action == RESIDENCY_LOAD_WARM ? &service->bus_us
							  : &service->save_us;
	double bytes = (double)(decision->action == RESIDENCY_LOAD_WARM ? adapter->warm_bytes : adapter->bytes);
	double rate = disk ? costs->disk : decision->action == RESIDENCY_LOAD_WARM ? costs->bus : costs->save;

	*channel_us = (*channel_us > service->now_us ? *channel_us : service->now_us) +
		(uint64_t)(costs->load_us + bytes / rate / 1e3);
	service->jobs[service->job_count++] = (struct job){.done_us = *channel_us, .decision = *decision};
}

static void decisions_take(struct service *service)
{
	struct residency_decision decision;

	while (residency_next(service->residency, &decision))
		if (decision.action != RESIDENCY_EVICT && decision.action != RESIDENCY_DROP)
			job_begin(service, &decision);
}

static uint64_t next_job_us(const struct service *service, uint32_t *place)
{
	uint64_t first_us = NEVER;

	for (uint32_t i = 0; i < service->job_count; i++) {
		if (service->jobs[i].done_us < first_us) {
			first_us = service->jobs[i].done_us;
			*place = i;
		}
	}
	return first_us;
}

static void job_end(struct service *service, uint32_t place)
{
	const struct residency_decision decision = service->jobs[place].decision;

	service->jobs[place] = service->jobs[--service->job_count];
	if (residency_done(service->residency, &decision, true, service->now_us) != 0)
		assert(!"residency asked for it");
	decisions_take(service);
}

/* ---- time ---- */

static uint64_t next_arrival_us(const struct service *service)
{
	return service->arrived < service->plan->workload->count ? arrival_us(service->plan, service->arrived) : NEVER;
}

static int request_arrive(struct service *service)
{
	const struct lora_request *request = &service->plan->workload->requests[service->arrived];
	uint32_t number;
	int near = lora_scheduler_add(
		service->scheduler, request->adapter, request->context_tokens, service->now_us, &number);

	if (near < 0)
		return near;
	service->requests[number] = service->arrived++;
	if (near && service->residency) {
		residency_prefetch(service->residency, request->adapter, service->now_us);
		decisions_take(service);
	}
	return 0;
}

/* Process the events up to this time, in order. With `once`, process only the first event, even if it is later. */
static int time_pass(struct service *service, uint64_t until_us, bool once)
{
	int error = 0;

	do {
		uint32_t place = 0;
		uint64_t job_us = next_job_us(service, &place), arrives_us = next_arrival_us(service);
		uint64_t next_us = job_us < arrives_us ? job_us : arrives_us;

		if (next_us > until_us)
			break;
		if (next_us == NEVER)
			return -EDEADLK; /* requests wait, but none is running or will arrive */
		service->now_us = next_us > service->now_us ? next_us : service->now_us;
		if (job_us <= arrives_us)
			job_end(service, place);
		else
			error = request_arrive(service);
	} while (!error && !once);
	if (until_us != NEVER)
		service->now_us = until_us;
	return error;
}

/* ---- steps ---- */

static enum lora_place place_of(void *context, uint32_t adapter)
{
	const struct service *service = context;
	enum residency_hot hot = service->residency ? residency_hot(service->residency, adapter) : RESIDENCY_RESIDENT;

	return hot == RESIDENCY_RESIDENT ? LORA_RESIDENT : hot == RESIDENCY_ABSENT ? LORA_ABSENT : LORA_LOADING;
}

static void requests_start(struct service *service, const struct lora_schedule *batch)
{
	for (uint32_t i = 0; i < batch->start_count; i++) {
		uint32_t request = service->requests[batch->starts[i]];
		const struct lora_request *its = &service->plan->workload->requests[request];

		service->running[service->running_count++] =
			(struct running){.number = batch->starts[i], .request = request, .left = its->generated_tokens};
		if (!service->residency)
			continue;
		if (residency_acquire(service->residency, its->adapter, service->now_us) != 1)
			assert(!"the scheduler starts what is resident");
		if (service->held[its->adapter])
			residency_unpin(service->residency, its->adapter, service->now_us);
		service->held[its->adapter] = false;
	}
}

/* Unpin the adapters that are kept for later requests: the oldest request needs the memory. */
static void kept_let_go(struct service *service)
{
	for (uint32_t adapter = 0; adapter < service->plan->workload->adapter_count; adapter++) {
		if (!service->held[adapter] || residency_hot(service->residency, adapter) != RESIDENCY_RESIDENT)
			continue;
		residency_unpin(service->residency, adapter, service->now_us);
		service->held[adapter] = false;
	}
}

/*
 * Request the adapters of waiting requests, and keep them until those run. If there is no memory, unpin adapters that
 * are kept for later requests. If that is not sufficient, this request and the ones after it are handled again before
 * the next step.
 */
static void adapters_ask(struct service *service, const struct lora_schedule *batch)
{
	for (uint32_t i = 0; i < batch->wanted_count; i++) {
		uint32_t adapter = batch->wanted[i];
		int result = service->held[adapter] ? 0 : residency_pin(service->residency, adapter, service->now_us);

		if (result == -ENOSPC) {
			kept_let_go(service);
			result = residency_pin(service->residency, adapter, service->now_us);
		}
		if (result < 0)
			break;
		service->held[adapter] = true;
	}
	for (uint32_t i = 0; i < batch->ahead_count; i++)
		residency_prefetch(service->residency, batch->ahead[i], service->now_us);
	residency_tick(service->residency, service->now_us);
	decisions_take(service);
}

static double step_us(struct service *service, uint32_t started)
{
	const struct lora_plan *plan = service->plan;
	double us = plan->costs.step_us, adapters = 0;

	for (uint32_t i = 0; i < service->running_count; i++) {
		const struct lora_request *request = &plan->workload->requests[service->running[i].request];

		us += i < service->running_count - started ? plan->costs.decode_us
							   : plan->costs.prefill_us * request->context_tokens;
		if (service->batch_of[request->adapter] == (uint32_t)service->result->steps + 1)
			continue;
		service->batch_of[request->adapter] = (uint32_t)service->result->steps + 1;
		us += plan->costs.adapter_us * (double)plan->workload->adapters[request->adapter].bytes / (1 << 20);
		adapters++;
	}
	service->adapter_steps += adapters;
	return us;
}

static void request_end(struct service *service, const struct running *running)
{
	uint32_t adapter = service->plan->workload->requests[running->request].adapter;

	service->ends_us[running->request] = service->now_us;
	service->finished++;
	if (lora_scheduler_finish(service->scheduler, running->number) != 0)
		assert(!"it ran");
	if (service->residency)
		residency_release(service->residency, adapter, service->now_us);
}

/* Count one more token for all running requests; for those that have just started, the first one. */
static void tokens_come(struct service *service, uint32_t started)
{
	uint32_t left = 0, old = service->running_count - started;

	for (uint32_t i = 0; i < service->running_count; i++) {
		struct running running = service->running[i];

		if (i >= old)
			service->first_us[running.request] =
				service->now_us - arrival_us(service->plan, running.request);
		if (--running.left)
			service->running[left++] = running;
		else
			request_end(service, &running);
	}
	service->result->tokens += service->running_count;
	service->running_count = left;
	if (service->residency)
		decisions_take(service);
}

static int step(struct service *service)
{
	const struct lora_view view = {.place = place_of, .context = service};
	struct lora_schedule batch;
	uint64_t us;
	int error;

	lora_scheduler_schedule(service->scheduler, &view, service->now_us, &batch);
	requests_start(service, &batch);
	if (service->residency)
		adapters_ask(service, &batch);
	if (!service->running_count)
		return time_pass(service, NEVER, true);
	us = (uint64_t)step_us(service, batch.start_count);
	service->busy_us += us;
	error = time_pass(service, service->now_us + us, false);
	tokens_come(service, batch.start_count);
	service->result->steps++;
	return error;
}

/* ---- results ---- */

static int time_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double percentile(uint64_t *times_us, uint32_t count, double share)
{
	uint32_t place = (uint32_t)ceil(share * count);

	qsort(times_us, count, sizeof(*times_us), time_compare);
	return count ? (double)times_us[place ? place - 1 : 0] / 1e6 : 0;
}

static double tenants_worst(const struct service *service, uint64_t *scratch)
{
	const struct lora_workload *workload = service->plan->workload;
	double worst = 0;

	for (uint32_t tenant = 0; tenant < workload->tenant_count; tenant++) {
		uint32_t count = 0;
		double p99;

		for (uint32_t i = 0; i < workload->count; i++)
			if (workload->adapters[workload->requests[i].adapter].tenant == tenant)
				scratch[count++] = service->first_us[i];
		p99 = percentile(scratch, count, 0.99);
		worst = p99 > worst ? p99 : worst;
	}
	return worst;
}

static void windows_fill(const struct service *service)
{
	const struct lora_plan *plan = service->plan;
	double sums[LORA_WINDOWS] = {0};
	uint32_t counts[LORA_WINDOWS] = {0};
	uint64_t last_us = arrival_us(plan, plan->workload->count - 1) + 1;

	for (uint32_t i = 0; i < plan->workload->count; i++) {
		uint32_t window = (uint32_t)((double)arrival_us(plan, i) * LORA_WINDOWS / (double)last_us);

		sums[window] += (double)service->first_us[i] / 1e6;
		counts[window]++;
	}
	for (int i = 0; i < LORA_WINDOWS; i++)
		service->result->window_first[i] = counts[i] ? (float)(sums[i] / counts[i]) : -1;
}

static int result_fill(struct service *service)
{
	struct lora_result *result = service->result;
	uint32_t count = service->plan->workload->count;
	uint64_t *scratch = calloc(count, sizeof(*scratch));
	double sum = 0;

	if (!scratch)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++)
		sum += (double)service->first_us[i] / 1e6;
	result->seconds = (double)service->now_us / 1e6;
	result->busy = service->now_us ? (double)service->busy_us / (double)service->now_us : 0;
	result->first_mean = sum / count;
	result->adapters_mean = service->adapter_steps / (double)result->steps;
	memcpy(scratch, service->first_us, count * sizeof(*scratch));
	result->first_p50 = percentile(scratch, count, 0.5);
	result->first_p99 = percentile(scratch, count, 0.99);
	result->first_p99_worst = tenants_worst(service, scratch);
	windows_fill(service);
	lora_scheduler_get_stats(service->scheduler, &result->scheduler);
	free(scratch);
	if (!service->residency)
		return 0;
	residency_get_stats(service->residency, &result->residency);
	return lora_least_loads(service->plan, service->ends_us, &result->least_loads);
}

/* ---- set-up and clean-up ---- */

static void service_fini(struct service *service)
{
	lora_scheduler_destroy(service->scheduler);
	residency_destroy(service->residency);
	free(service->requests);
	free(service->held);
	free(service->first_us);
	free(service->ends_us);
	free(service->jobs);
	free(service->batch_of);
}

static int residency_init(struct service *service)
{
	const struct lora_workload *workload = service->plan->workload;
	struct residency_limits limits = service->plan->limits;
	int error;

	if (service->plan->strategy->lru) {
		limits.worth.half_life_us = 1000;
		limits.worth.promote_uses = UINT32_MAX;
		limits.rebalance_us = 0;
	}
	error = residency_create(&limits, workload->adapter_count, &service->residency);
	for (uint32_t i = 0; i < workload->adapter_count && !error; i++)
		error = residency_register(
			service->residency, i, workload->adapters[i].bytes, workload->adapters[i].warm_bytes, 0);
	return error;
}

static int service_init(struct service *service)
{
	const struct lora_strategy *strategy = service->plan->strategy;
	const struct lora_workload *workload = service->plan->workload;
	struct lora_options options = service->plan->options;
	int error;

	options.order = strategy ? strategy->order : LORA_IN_ORDER;
	options.look_ahead = strategy && strategy->look_ahead ? options.look_ahead : 0;
	options.batch_adapters = strategy && strategy->single ? 1
		: strategy && strategy->limit                 ? options.batch_adapters
							      : 0;
	error = lora_scheduler_create(&options, workload->count, workload->adapter_count, &service->scheduler);
	if (!error && strategy)
		error = residency_init(service);
	service->requests = calloc(workload->count, sizeof(*service->requests));
	service->held = calloc(workload->adapter_count, sizeof(*service->held));
	service->first_us = calloc(workload->count, sizeof(*service->first_us));
	service->ends_us = calloc(workload->count, sizeof(*service->ends_us));
	service->jobs = calloc(workload->adapter_count, 2 * sizeof(*service->jobs));
	service->batch_of = calloc(workload->adapter_count, sizeof(*service->batch_of));
	if (!error &&
		(!service->requests || !service->held || !service->first_us || !service->ends_us || !service->jobs ||
			!service->batch_of))
		error = -ENOMEM;
	return error;
}

int lora_serve(const struct lora_plan *plan, struct lora_result *result)
{
	struct service service = {.plan = plan, .result = result};
	int error;

	*result = (struct lora_result){.strategy = plan->strategy};
	error = service_init(&service);
	while (!error && service.finished < plan->workload->count) {
		error = *plan->interrupted ? -EINTR : step(&service);
		if (plan->progress)
			plan->progress(plan->context, service.finished);
	}
	if (!error)
		error = result_fill(&service);
	service_fini(&service);
	return error;
}
