/*
 * scheduler.h - which of the waiting requests an engine starts next, when adapters come and go. Numbers only: requests
 * go in, batches come out; where an adapter is, the caller says, and what should be loaded, it is told. The time is an
 * argument.
 *
 * A batch is formed before each step of the engine. It has what runs already and what is started with it, together at
 * most batch_requests requests, batch_adapters different adapters, and batch_tokens tokens: the prompts of those
 * started, and one for each that runs. A prompt that is longer than that is started when no other one is.
 *
 * The queue is in order of arrival. It is the turn of those who would be started if they were taken in that order and
 * every adapter were there. Whose turn it is and whose adapter is not there is held up by it, and counted as a cold
 * start, once.
 *
 *   LORA_IN_ORDER        nobody starts before one who came earlier: who is held up holds up all behind it
 *   LORA_AROUND          whose turn it is starts, others do not wait for who is held up
 *   LORA_RESIDENT_FIRST  whose adapter is there start first, in order of arrival; then those whose adapter is being
 *                        loaded; then the rest. Where there are too many adapters, those with the most waiting requests
 *                        are taken
 *
 * Bound: a request is passed over when one starts that came after it. From patience_us after it was first passed over
 * nobody passes it any more: then it waits for nothing but those before it, its adapter and room in the batch. The
 * bound holds without condition, since who is overdue is started in order of arrival, and nobody behind it before it.
 *
 * Threads: none of its own and no lock; its owner has one.
 * Memory:  48 bytes for each request and 44 for each adapter that there may be.
 */
#ifndef GPOOL_CLIENT_LORA_SCHEDULER_H
#define GPOOL_CLIENT_LORA_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#define LORA_NO_ADAPTER UINT32_MAX /* the model as it is */

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
	uint32_t batch_adapters; /* 0: as many as there are */
	uint32_t batch_tokens;
	/* requests behind those whose turn it is whose adapters are asked for; 0..LORA_LOOK_AHEAD_MAX */
	uint32_t look_ahead;
	uint64_t patience_us;
};

/*
 * As specified; tokens and patience chosen: what a step of an 8B model should take, and a wait that a person just
 * bears.
 */
#define LORA_OPTIONS_INIT \
	{ \
		.order = LORA_RESIDENT_FIRST, .batch_requests = LORA_BATCH_REQUESTS_MAX, .batch_adapters = 32, \
		.batch_tokens = 8192, .look_ahead = 10, .patience_us = 2000000, \
	}

/* Where adapters are. */
struct lora_view {
	enum lora_place (*place)(void *context, uint32_t adapter);
	void *context;
};

/*
 * wanted: adapters that hold up whose turn it is, of who came first first: load them, and keep them until they ran.
 * Where there is no room for one, let go of what is kept for others, and want no more this time: otherwise who came
 * first may wait for ever.
 */
struct lora_schedule {
	uint32_t starts[LORA_BATCH_REQUESTS_MAX]; /* requests: they run from now on */
	uint32_t wanted[LORA_BATCH_REQUESTS_MAX];
	uint32_t ahead[LORA_LOOK_AHEAD_MAX]; /* adapters of those who are next, resident or not: prefetch them */
	uint32_t start_count, wanted_count, ahead_count;
	uint32_t adapters; /* different ones in the batch, with those that ran before */
};

struct lora_scheduler_stats {
	uint32_t waiting, running;
	uint64_t batches; /* that started something */
	uint64_t added, started, finished, removed;
	uint64_t cold_starts; /* requests */
	uint64_t bypassed;    /* requests */
	uint64_t overdue;     /* requests that were started as such */
	uint64_t longest_bypass_us;
	uint64_t longest_wait_us; /* until started */
};

struct lora_scheduler;

/*
 * lora_scheduler_create() - without a request.
 * @requests: most that wait and run at once; @adapters: their numbers are below it
 * Return: 0, -EINVAL, -ENOMEM. lora_scheduler_destroy() takes NULL, too.
 */
int lora_scheduler_create(
	const struct lora_options *options, uint32_t requests, uint32_t adapters, struct lora_scheduler **out);
void lora_scheduler_destroy(struct lora_scheduler *scheduler);

/*
 * lora_scheduler_add() - a request with a prompt of so many tokens, at the end of the queue.
 * @request: receives its number, below `requests`, its own until it is finished or removed
 * Return: 0; 1: it is so near the front that its adapter should be prefetched now (look_ahead); -EINVAL (no such
 * adapter), -ENOSPC.
 */
int lora_scheduler_add(
	struct lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint64_t now_us, uint32_t *request);

/*
 * lora_scheduler_remove() - one that waits, or was given up, is gone. lora_scheduler_finish() - one that runs has
 * ended. lora_scheduler_give_up() - one that waits waits no more, and has its number until it is removed. Return: 0,
 * -ENOENT.
 */
int lora_scheduler_give_up(struct lora_scheduler *scheduler, uint32_t request);
int lora_scheduler_remove(struct lora_scheduler *scheduler, uint32_t request);
int lora_scheduler_finish(struct lora_scheduler *scheduler, uint32_t request);

/* lora_scheduler_form() - the next batch. Cost: a look at each waiting request; in order, at those whose turn it is. */
void lora_scheduler_form(
	struct lora_scheduler *scheduler, const struct lora_view *view, uint64_t now_us, struct lora_schedule *batch);

/*
 * lora_scheduler_queue() - for engines that form their batches themselves: those who wait, overdue ones first, then by
 * where their adapters are, each in order of arrival; up to `most` of them. Return: how many. Cost: four looks at each
 * waiting request.
 */
uint32_t lora_scheduler_queue(struct lora_scheduler *scheduler, const struct lora_view *view, uint64_t now_us,
	uint32_t *requests, uint32_t most);

/*
 * lora_scheduler_grow() - from now on the numbers of adapters are below `adapters`: 0, also if they were already;
 * -EINVAL, -ENOMEM.
 */
int lora_scheduler_grow(struct lora_scheduler *scheduler, uint32_t adapters);

/*
 * lora_scheduler_waiting() - how many wait for an adapter; *request, if not NULL, is the first of them. Cost: for that
 * a look at those before it.
 */
uint32_t lora_scheduler_waiting(const struct lora_scheduler *scheduler, uint32_t adapter, uint32_t *request);

bool lora_scheduler_runs(const struct lora_scheduler *scheduler, uint32_t request);

/* Of a request that waits or runs, or was given up. */
uint32_t lora_scheduler_adapter(const struct lora_scheduler *scheduler, uint32_t request);
bool lora_scheduler_was_cold(const struct lora_scheduler *scheduler, uint32_t request);

void lora_scheduler_get_stats(const struct lora_scheduler *scheduler, struct lora_scheduler_stats *stats);

/* lora_scheduler_check() - its lists and counts: NULL, or the words for what does not hold. Cost: a look at each
 * request and adapter. */
const char *lora_scheduler_check(const struct lora_scheduler *scheduler);

#endif
