/*
 * scheduler.h - decide which waiting requests an engine starts next. It works only on numbers: the caller passes
 * requests, the places of adapters and the time, and gets batches and the adapters to load.
 *
 * A batch is formed before each step of the engine. It contains the running requests and those that start with it: at
 * most batch_requests requests, batch_adapters different adapters, and batch_tokens tokens. The tokens are the prompts
 * of started requests, and one token for each running request. A longer prompt starts in a batch without other prompts.
 *
 * The queue is in order of arrival. The requests that would start in this order if every adapter were resident are due.
 * A request that is due, but whose adapter is not resident, is blocked, and is counted once as a cold start.
 *
 *   LORA_IN_ORDER        requests start in order of arrival: a blocked request blocks all later requests
 *   LORA_AROUND          other requests that are due start before a blocked one
 *   LORA_RESIDENT_FIRST  requests whose adapter is resident start, due or not, in order of arrival. If there are too
 *                        many adapters, those with the most waiting requests are chosen
 *
 * Bound: a request is bypassed when a later request starts. max_bypass_us after it was first bypassed, the request is
 * overdue. From then on, no request bypasses it: it waits only for earlier requests, its adapter and room in the batch.
 * This holds because overdue requests start in order of arrival, before all others.
 *
 * Threads: the scheduler has no threads and no lock; its owner has one.
 * Memory:  48 bytes for each request and 44 for each adapter, up to their maximum numbers.
 */
#ifndef GPOOL_CLIENT_LORA_SCHEDULER_H
#define GPOOL_CLIENT_LORA_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#define LORA_NO_ADAPTER UINT32_MAX /* the model without an adapter */

enum {
	LORA_BATCH_REQUESTS_MAX = 256,
	LORA_LOOK_AHEAD_MAX = 64,
};

enum lora_order {
	LORA_IN_ORDER,
	LORA_AROUND,
	LORA_RESIDENT_FIRST,
};

enum lora_place {
	LORA_RESIDENT,
	LORA_LOADING,
	LORA_ABSENT,
};

struct lora_options {
	enum lora_order order;
	uint32_t batch_requests; /* 1..LORA_BATCH_REQUESTS_MAX */
	uint32_t batch_adapters; /* 0: no limit */
	uint32_t batch_tokens;
	/* number of requests, after those that are due, whose adapters are prefetched; 0..LORA_LOOK_AHEAD_MAX */
	uint32_t look_ahead;
	uint64_t max_bypass_us;
};

/*
 * The limits of requests and adapters are requirements of the project. batch_tokens was chosen for a step of a model
 * with 8 billion parameters, and max_bypass_us as a wait that users accept.
 */
#define LORA_OPTIONS_INIT \
	{ \
		.order = LORA_RESIDENT_FIRST, .batch_requests = LORA_BATCH_REQUESTS_MAX, .batch_adapters = 32, \
		.batch_tokens = 8192, .look_ahead = 10, .max_bypass_us = 2000000, \
	}

/* The places of adapters, as the caller reports them. */
struct lora_view {
	enum lora_place (*place)(void *context, uint32_t adapter);
	void *context;
};

/*
 * wanted: adapters of blocked requests, in order of arrival. The caller loads them, and keeps them until their requests
 * have run. If there is no room for one of them, the caller releases adapters that are kept for later requests, and
 * loads no further adapter now; otherwise the first request could wait forever.
 */
struct lora_schedule {
	uint32_t starts[LORA_BATCH_REQUESTS_MAX]; /* requests that are running now */
	uint32_t wanted[LORA_BATCH_REQUESTS_MAX];
	uint32_t ahead[LORA_LOOK_AHEAD_MAX]; /* adapters of the next requests, resident or not, for prefetch */
	uint32_t start_count, wanted_count, ahead_count;
	uint32_t adapters; /* number of different adapters in the batch, including those of running requests */
};

struct lora_scheduler_stats {
	uint32_t waiting, running;
	uint64_t batches; /* number of batches in which a request has started */
	uint64_t added, started, finished, removed;
	uint64_t cold_starts; /* number of requests */
	uint64_t bypassed;    /* number of requests */
	uint64_t overdue;     /* number of requests that were overdue when they started */
	uint64_t longest_bypass_us;
	uint64_t longest_wait_us; /* from the arrival to the start */
};

struct lora_scheduler;

/*
 * lora_scheduler_create() - create a scheduler without requests.
 * lora_scheduler_destroy() - free it; may be NULL.
 * @requests: maximum number of waiting and running requests; @adapters: upper limit of adapter numbers, exclusive
 * Return: 0, -EINVAL, -ENOMEM.
 */
int lora_scheduler_create(
	const struct lora_options *options, uint32_t requests, uint32_t adapters, struct lora_scheduler **out);
void lora_scheduler_destroy(struct lora_scheduler *scheduler);

/*
 * lora_scheduler_add() - add a request with a prompt of `tokens` tokens to the end of the queue.
 * @request: receives its number, below `requests`, which is valid until it is finished or removed
 * Return: 0; 1: its adapter should be prefetched now (look_ahead); -EINVAL (no such adapter), -ENOSPC.
 */
int lora_scheduler_add(
	struct lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint64_t now_us, uint32_t *request);

/*
 * lora_scheduler_remove() - remove a request that waits or was given up.
 * lora_scheduler_finish() - end a running request.
 * lora_scheduler_give_up() - take a waiting request out of the queue; it keeps its number until it is removed.
 * Return: 0, -ENOENT.
 */
int lora_scheduler_give_up(struct lora_scheduler *scheduler, uint32_t request);
int lora_scheduler_remove(struct lora_scheduler *scheduler, uint32_t request);
int lora_scheduler_finish(struct lora_scheduler *scheduler, uint32_t request);

/*
 * lora_scheduler_schedule() - form the next batch. Cost: linear in the number of waiting requests; with LORA_IN_ORDER
 * and LORA_AROUND, in the number of those that are due. With LORA_RESIDENT_FIRST and too many adapters, also in
 * batch_adapters times their number.
 */
void lora_scheduler_schedule(
	struct lora_scheduler *scheduler, const struct lora_view *view, uint64_t now_us, struct lora_schedule *batch);

/*
 * lora_scheduler_queue() - list at most `most` waiting requests, for engines that form their batches themselves:
 * overdue ones first, then by the place of their adapter, each in order of arrival. Return: their number. Cost: four
 * passes over the waiting requests.
 */
uint32_t lora_scheduler_queue(struct lora_scheduler *scheduler, const struct lora_view *view, uint64_t now_us,
	uint32_t *requests, uint32_t most);

/*
 * lora_scheduler_grow() - raise the upper limit of adapter numbers to `adapters`, if it is lower. Return: 0, -EINVAL,
 * -ENOMEM.
 */
int lora_scheduler_grow(struct lora_scheduler *scheduler, uint32_t adapters);

/*
 * lora_scheduler_waiting() - return the number of requests that wait for an adapter. request: receives the first of
 * them, at the cost of a pass over earlier requests; may be NULL.
 */
uint32_t lora_scheduler_waiting(const struct lora_scheduler *scheduler, uint32_t adapter, uint32_t *request);

bool lora_scheduler_runs(const struct lora_scheduler *scheduler, uint32_t request);

/* lora_scheduler_adapter() - return the adapter of a request that waits, runs, or was given up. */
uint32_t lora_scheduler_adapter(const struct lora_scheduler *scheduler, uint32_t request);

void lora_scheduler_get_stats(const struct lora_scheduler *scheduler, struct lora_scheduler_stats *stats);

/*
 * lora_scheduler_check() - check lists and counts. Return: NULL, or the text of an error. Cost: linear in the number of
 * requests and adapters.
 */
const char *lora_scheduler_check(const struct lora_scheduler *scheduler);

#endif
