#include "client/lora/serve/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NO_REQUEST UINT32_MAX

enum { UNUSED, WAITING, RUNNING, GIVEN_UP };

struct request {
	uint32_t adapter; /* index in adapters[] */
	uint32_t tokens;
	uint32_t previous, next; /* neighbors in the queue; next: also links free numbers */
	uint64_t turn;           /* order of arrival */
	uint64_t added_us, bypassed_us;
	uint8_t state;
	bool cold;
};

struct adapter {
	uint32_t waiting, running;
	/* seen_in: round in which `place` was read; listed_in, chosen_in: in which it became a candidate, was chosen */
	uint64_t seen_in, listed_in, chosen_in;
	enum lora_place place;
};

/* The sizes that scheduler.h and gpool/lora.h state. */
static_assert(
	sizeof(struct request) == 48 && sizeof(struct adapter) + sizeof(uint32_t) == 44, "memory of the scheduler");

struct lora_scheduler {
	struct lora_options options;
	struct request *requests; /* [request_count] */
	struct adapter *adapters; /* [adapter_count + 1]; the first one represents requests without an adapter */
	uint32_t *candidates;     /* [adapter_count] */
	uint32_t request_count, adapter_count;
	uint32_t first, last, unused;
	uint32_t fresh; /* the first request in the queue that was not bypassed, or NO_REQUEST */
	uint32_t running_adapters;
	uint64_t turns, round;
	struct lora_scheduler_stats stats;
};

/* The remaining room in a batch. */
struct room {
	uint32_t requests, tokens, adapters;
	bool prompted; /* the batch has a prompt */
};

/* ---- create and destroy ---- */

int lora_scheduler_create(
	const struct lora_options *options, uint32_t requests, uint32_t adapters, struct lora_scheduler **out)
{
	struct lora_scheduler *scheduler;

	if (!requests || requests == NO_REQUEST || !adapters || adapters == LORA_NO_ADAPTER || !options->batch_tokens ||
		!options->batch_requests || options->batch_requests > LORA_BATCH_REQUESTS_MAX ||
		options->look_ahead > LORA_LOOK_AHEAD_MAX || (unsigned)options->order > LORA_RESIDENT_FIRST)
		return -EINVAL;
	scheduler = calloc(1, sizeof(*scheduler));
	if (!scheduler)
		return -ENOMEM;
	scheduler->options = *options;
	scheduler->request_count = requests;
	scheduler->adapter_count = adapters;
	scheduler->first = scheduler->last = scheduler->fresh = NO_REQUEST;
	scheduler->requests = calloc(requests, sizeof(*scheduler->requests));
	scheduler->adapters = calloc((size_t)adapters + 1, sizeof(*scheduler->adapters));
	scheduler->candidates = calloc(adapters, sizeof(*scheduler->candidates));
	if (!scheduler->requests || !scheduler->adapters || !scheduler->candidates) {
		lora_scheduler_destroy(scheduler);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < requests; i++)
		scheduler->requests[i].next = i + 1 < requests ? i + 1 : NO_REQUEST;
	*out = scheduler;
	return 0;
}

void lora_scheduler_destroy(struct lora_scheduler *scheduler)
{
	if (!scheduler)
		return;
	free(scheduler->requests);
	free(scheduler->adapters);
	free(scheduler->candidates);
	free(scheduler);
}

/* ---- requests ---- */

static struct adapter *adapter_of(const struct lora_scheduler *scheduler, const struct request *request)
{
	return &scheduler->adapters[request->adapter];
}

/* Return the caller's number of an adapter, which is the index - 1. Index 0 is LORA_NO_ADAPTER. */
static uint32_t number_of(const struct request *request)
{
	return request->adapter - 1;
}

static bool has_adapter(const struct request *request)
{
	return request->adapter != 0;
}

int lora_scheduler_add(
	struct lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint64_t now_us, uint32_t *out)
{
	uint32_t number = scheduler->unused;
	struct request *request = &scheduler->requests[number];

	if (adapter != LORA_NO_ADAPTER && adapter >= scheduler->adapter_count)
		return -EINVAL;
	if (number == NO_REQUEST)
		return -ENOSPC;
	scheduler->unused = request->next;
	*request = (struct request){
		.adapter = adapter + 1,
		.tokens = tokens,
		.previous = scheduler->last,
		.next = NO_REQUEST,
		.turn = scheduler->turns++,
		.added_us = now_us,
		.state = WAITING,
	};
	if (scheduler->last == NO_REQUEST)
		scheduler->first = number;
	else
		scheduler->requests[scheduler->last].next = number;
	scheduler->last = number;
	if (scheduler->fresh == NO_REQUEST)
		scheduler->fresh = number;
	adapter_of(scheduler, request)->waiting++;
	scheduler->stats.waiting++;
	scheduler->stats.added++;
	*out = number;
	return adapter != LORA_NO_ADAPTER && scheduler->stats.waiting <= scheduler->options.look_ahead;
}

static void leave_queue(struct lora_scheduler *scheduler, uint32_t number)
{
	const struct request *request = &scheduler->requests[number];

	if (scheduler->fresh == number)
		scheduler->fresh = request->next;
	if (request->previous == NO_REQUEST)
		scheduler->first = request->next;
	else
		scheduler->requests[request->previous].next = request->next;
	if (request->next == NO_REQUEST)
		scheduler->last = request->previous;
	else
		scheduler->requests[request->next].previous = request->previous;
	adapter_of(scheduler, request)->waiting--;
	scheduler->stats.waiting--;
}

static void give_back(struct lora_scheduler *scheduler, uint32_t number)
{
	scheduler->requests[number].state = UNUSED;
	scheduler->requests[number].next = scheduler->unused;
	scheduler->unused = number;
}

int lora_scheduler_remove(struct lora_scheduler *scheduler, uint32_t number)
{
	if (number >= scheduler->request_count)
		return -ENOENT;
	if (scheduler->requests[number].state == WAITING)
		leave_queue(scheduler, number);
	else if (scheduler->requests[number].state != GIVEN_UP)
		return -ENOENT;
	give_back(scheduler, number);
	scheduler->stats.removed++;
	return 0;
}

int lora_scheduler_give_up(struct lora_scheduler *scheduler, uint32_t number)
{
	if (number >= scheduler->request_count || scheduler->requests[number].state != WAITING)
		return -ENOENT;
	leave_queue(scheduler, number);
	scheduler->requests[number].state = GIVEN_UP;
	return 0;
}

int lora_scheduler_finish(struct lora_scheduler *scheduler, uint32_t number)
{
	const struct request *request = &scheduler->requests[number];

	if (number >= scheduler->request_count || request->state != RUNNING)
		return -ENOENT;
	if (--adapter_of(scheduler, request)->running == 0 && has_adapter(request))
		scheduler->running_adapters--;
	scheduler->stats.running--;
	scheduler->stats.finished++;
	give_back(scheduler, number);
	return 0;
}

int lora_scheduler_grow(struct lora_scheduler *scheduler, uint32_t count)
{
	struct adapter *adapters;
	uint32_t *candidates;

	if (count <= scheduler->adapter_count)
		return 0;
	if (count == LORA_NO_ADAPTER)
		return -EINVAL;
	candidates = realloc(scheduler->candidates, count * sizeof(*candidates));
	if (!candidates)
		return -ENOMEM;
	scheduler->candidates = candidates;
	adapters = realloc(scheduler->adapters, ((size_t)count + 1) * sizeof(*adapters));
	if (!adapters)
		return -ENOMEM;
	memset(adapters + scheduler->adapter_count + 1, 0, (count - scheduler->adapter_count) * sizeof(*adapters));
	scheduler->adapters = adapters;
	scheduler->adapter_count = count;
	return 0;
}

uint32_t lora_scheduler_waiting(const struct lora_scheduler *scheduler, uint32_t adapter, uint32_t *request)
{
	uint32_t number = scheduler->first,
		 count = adapter < scheduler->adapter_count ? scheduler->adapters[adapter + 1].waiting : 0;

	if (!count || !request)
		return count;
	while (number_of(&scheduler->requests[number]) != adapter)
		number = scheduler->requests[number].next;
	*request = number;
	return count;
}

uint32_t lora_scheduler_adapter(const struct lora_scheduler *scheduler, uint32_t number)
{
	return number < scheduler->request_count ? number_of(&scheduler->requests[number]) : LORA_NO_ADAPTER;
}

bool lora_scheduler_runs(const struct lora_scheduler *scheduler, uint32_t number)
{
	return number < scheduler->request_count && scheduler->requests[number].state == RUNNING;
}

/* ---- room ---- */

static struct room room_now(const struct lora_scheduler *scheduler)
{
	const struct lora_options *options = &scheduler->options;
	uint32_t running = scheduler->stats.running, adapters = scheduler->running_adapters;
	uint32_t adapters_most = options->batch_adapters ? options->batch_adapters : UINT32_MAX;

	return (struct room){
		.requests = options->batch_requests > running ? options->batch_requests - running : 0,
		.tokens = options->batch_tokens > running ? options->batch_tokens - running : 0,
		.adapters = adapters_most > adapters ? adapters_most - adapters : 0,
	};
}

/* Take room for a request. another: the adapter of the request is not in the batch yet. */
static bool room_take(struct room *room, const struct request *request, bool another)
{
	if (room->requests == 0 || (another && room->adapters == 0) ||
		(request->tokens > room->tokens && room->prompted))
		return false;
	room->requests--;
	room->adapters -= another;
	room->tokens -= request->tokens < room->tokens ? request->tokens : room->tokens;
	room->prompted = true;
	return true;
}

static enum lora_place place_of(
	struct lora_scheduler *scheduler, const struct lora_view *view, const struct request *request)
{
	struct adapter *adapter = adapter_of(scheduler, request);

	if (!has_adapter(request))
		return LORA_RESIDENT;
	if (adapter->seen_in != scheduler->round) {
		adapter->seen_in = scheduler->round;
		adapter->place = view->place(view->context, number_of(request));
	}
	return adapter->place;
}

/* ---- requests that are due ---- */

static void list_add(uint32_t *list, uint32_t *count, uint32_t adapter)
{
	for (uint32_t i = 0; i < *count; i++)
		if (list[i] == adapter)
			return;
	list[(*count)++] = adapter;
}

/*
 * Find the requests that are due. List the adapters to load for them, and those to prefetch for later requests. Return:
 * the first request that is not due.
 */
static uint32_t find_turns(struct lora_scheduler *scheduler, const struct lora_view *view, struct lora_schedule *batch)
{
	struct room room = room_now(scheduler);
	uint32_t number = scheduler->first, behind;

	for (; number != NO_REQUEST; number = scheduler->requests[number].next) {
		struct request *request = &scheduler->requests[number];
		struct adapter *adapter = adapter_of(scheduler, request);
		bool another = has_adapter(request) && !adapter->running && adapter->chosen_in != scheduler->round;

		if (!room_take(&room, request, another))
			break;
		adapter->chosen_in = scheduler->round;
		if (place_of(scheduler, view, request) == LORA_RESIDENT)
			continue;
		scheduler->stats.cold_starts += !request->cold;
		request->cold = true;
		list_add(batch->wanted, &batch->wanted_count, number_of(request));
	}
	behind = number;
	for (uint32_t i = 0; i < scheduler->options.look_ahead && behind != NO_REQUEST;
		i++, behind = scheduler->requests[behind].next)
		if (has_adapter(&scheduler->requests[behind]))
			list_add(batch->ahead, &batch->ahead_count, number_of(&scheduler->requests[behind]));
	scheduler->round++; /* choices of this function are not final, so begin another round */
	return number;
}

/* ---- requests that start ---- */

struct forming {
	struct lora_scheduler *scheduler;
	const struct lora_view *view;
	struct lora_schedule *batch;
	struct room room;
	uint64_t now_us, latest; /* latest: the highest turn of a started request, plus 1 */
};

static bool is_overdue(const struct lora_scheduler *scheduler, uint32_t number, uint64_t now_us)
{
	const struct request *requests = scheduler->requests;

	if (scheduler->fresh != NO_REQUEST && requests[number].turn >= requests[scheduler->fresh].turn)
		return false; /* the request was not bypassed */
	return now_us - requests[number].bypassed_us >= scheduler->options.max_bypass_us;
}

/* Start a request if its adapter is resident and the batch has room. Return: true if it was started. */
static bool start(struct forming *forming, uint32_t number)
{
	struct lora_scheduler *scheduler = forming->scheduler;
	struct request *request = &scheduler->requests[number];
	struct adapter *adapter = adapter_of(scheduler, request);
	bool another = has_adapter(request) && !adapter->running;
	uint64_t waited_us = forming->now_us - request->added_us;

	if (place_of(scheduler, forming->view, request) != LORA_RESIDENT ||
		!room_take(&forming->room, request, another))
		return false;
	scheduler->stats.overdue += is_overdue(scheduler, number, forming->now_us);
	leave_queue(scheduler, number);
	request->state = RUNNING;
	scheduler->running_adapters += another;
	adapter->running++;
	scheduler->stats.running++;
	scheduler->stats.started++;
	if (waited_us > scheduler->stats.longest_wait_us)
		scheduler->stats.longest_wait_us = waited_us;
	if (request->turn >= forming->latest)
		forming->latest = request->turn + 1;
	forming->batch->starts[forming->batch->start_count++] = number;
	return true;
}

/*
 * Start the overdue requests at the head of the queue. Return: false if one of them must wait; no other request may
 * then start, because it would bypass this request.
 */
static bool start_overdue(struct forming *forming)
{
	struct lora_scheduler *scheduler = forming->scheduler;

	while (scheduler->first != NO_REQUEST && is_overdue(scheduler, scheduler->first, forming->now_us))
		if (!start(forming, scheduler->first))
			return false;
	return true;
}

static void start_in_order(struct forming *forming)
{
	while (forming->scheduler->first != NO_REQUEST && start(forming, forming->scheduler->first))
		continue;
}

/* Start the requests that are due and whose adapter is resident. The others keep their room in the batch. */
static void start_around(struct forming *forming, uint32_t behind)
{
	struct lora_scheduler *scheduler = forming->scheduler;

	for (uint32_t number = scheduler->first, next; number != NO_REQUEST && number != behind; number = next) {
		next = scheduler->requests[number].next;
		start(forming, number);
	}
}

/*
 * Collect, in order of arrival, the resident adapters of the requests that would fit if the number of adapters were not
 * limited. Also collect the adapter of the first request that would not fit, so that no smaller request takes the room
 * of that request. Return: the number of collected adapters.
 */
static uint32_t find_candidates(struct forming *forming)
{
	struct lora_scheduler *scheduler = forming->scheduler;
	struct room room = forming->room;
	bool fits = true;
	uint32_t count = 0;

	for (uint32_t number = scheduler->first; number != NO_REQUEST && fits;
		number = scheduler->requests[number].next) {
		const struct request *request = &scheduler->requests[number];
		struct adapter *adapter = adapter_of(scheduler, request);

		if (place_of(scheduler, forming->view, request) != LORA_RESIDENT)
			continue;
		fits = room_take(&room, request, false);
		if (adapter->listed_in == scheduler->round)
			continue;
		adapter->listed_in = scheduler->round;
		if (has_adapter(request) && !adapter->running)
			scheduler->candidates[count++] = request->adapter;
		else
			adapter->chosen_in = scheduler->round; /* the adapter is already in the batch */
	}
	return count;
}

/*
 * Choose the adapters with the most waiting requests; of adapters with equal numbers, choose the one with the earliest
 * request.
 */
static void choose_adapters(struct forming *forming)
{
	struct lora_scheduler *scheduler = forming->scheduler;
	uint32_t count = find_candidates(forming), *candidates = scheduler->candidates;
	bool too_many = count > forming->room.adapters;

	for (uint32_t i = 0; i < (too_many ? forming->room.adapters : count); i++) {
		uint32_t best = i, chosen;

		for (uint32_t j = i + 1; too_many && j < count; j++)
			if (scheduler->adapters[candidates[j]].waiting > scheduler->adapters[candidates[best]].waiting)
				best = j;
		chosen = candidates[best];
		memmove(&candidates[i + 1], &candidates[i], (best - i) * sizeof(*candidates));
		candidates[i] = chosen;
		scheduler->adapters[chosen].chosen_in = scheduler->round;
	}
}

static void start_resident(struct forming *forming)
{
	struct lora_scheduler *scheduler = forming->scheduler;
	uint32_t next;

	choose_adapters(forming);
	for (uint32_t number = scheduler->first; number != NO_REQUEST; number = next) {
		next = scheduler->requests[number].next;
		if (adapter_of(scheduler, &scheduler->requests[number])->chosen_in == scheduler->round &&
			!start(forming, number))
			return; /* the batch is full; end here, so that these requests do not bypass each other */
	}
}

/* Mark the requests before the last started request as bypassed, if they are not marked yet. */
static void note_passed(struct forming *forming)
{
	struct lora_scheduler *scheduler = forming->scheduler;
	const struct request *first;

	for (; scheduler->fresh != NO_REQUEST && scheduler->requests[scheduler->fresh].turn < forming->latest;
		scheduler->fresh = scheduler->requests[scheduler->fresh].next) {
		scheduler->requests[scheduler->fresh].bypassed_us = forming->now_us;
		scheduler->stats.bypassed++;
	}
	if (scheduler->first == NO_REQUEST)
		return;
	first = &scheduler->requests[scheduler->first];
	if (first->turn < forming->latest && forming->now_us - first->bypassed_us > scheduler->stats.longest_bypass_us)
		scheduler->stats.longest_bypass_us = forming->now_us - first->bypassed_us;
}

void lora_scheduler_schedule(
	struct lora_scheduler *scheduler, const struct lora_view *view, uint64_t now_us, struct lora_schedule *batch)
{
	struct forming forming = {.scheduler = scheduler, .view = view, .batch = batch, .now_us = now_us};
	uint32_t behind;

	batch->start_count = batch->wanted_count = batch->ahead_count = 0;
	scheduler->round++;
	behind = find_turns(scheduler, view, batch);
	forming.room = room_now(scheduler);
	if (start_overdue(&forming)) {
		if (scheduler->options.order == LORA_IN_ORDER)
			start_in_order(&forming);
		else if (scheduler->options.order == LORA_AROUND)
			start_around(&forming, behind);
		else
			start_resident(&forming);
	}
	note_passed(&forming);
	scheduler->stats.batches += batch->start_count > 0;
	batch->adapters = scheduler->running_adapters;
}

/* ---- the queue, for engines that form batches themselves ---- */

uint32_t lora_scheduler_queue(struct lora_scheduler *scheduler, const struct lora_view *view, uint64_t now_us,
	uint32_t *requests, uint32_t most)
{
	uint32_t count = 0, number, front;

	scheduler->round++;
	for (front = scheduler->first; front != NO_REQUEST && is_overdue(scheduler, front, now_us) && count < most;
		front = scheduler->requests[front].next)
		requests[count++] = front;
	for (enum lora_place place = LORA_RESIDENT; place <= LORA_ABSENT; place++)
		for (number = front; number != NO_REQUEST && count < most; number = scheduler->requests[number].next)
			if (place_of(scheduler, view, &scheduler->requests[number]) == place)
				requests[count++] = number;
	return count;
}

/* ---- inspect ---- */

void lora_scheduler_get_stats(const struct lora_scheduler *scheduler, struct lora_scheduler_stats *stats)
{
	*stats = scheduler->stats;
}

static uint32_t count_state(const struct lora_scheduler *scheduler, int state)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < scheduler->request_count; i++)
		count += scheduler->requests[i].state == state;
	return count;
}

const char *lora_scheduler_check(const struct lora_scheduler *scheduler)
{
	uint32_t previous = NO_REQUEST, count = 0, running = 0, waiting_of = 0, running_of = 0;

	for (uint32_t number = scheduler->first; number != NO_REQUEST; number = scheduler->requests[number].next) {
		const struct request *request = &scheduler->requests[number];

		if (request->state != WAITING || request->previous != previous || ++count > scheduler->stats.waiting)
			return "the links of the queue are inconsistent";
		if (previous != NO_REQUEST && scheduler->requests[previous].turn >= request->turn)
			return "the queue is not in order of arrival";
		previous = number;
	}
	if (scheduler->last != previous || count != scheduler->stats.waiting ||
		count != count_state(scheduler, WAITING) || scheduler->stats.running != count_state(scheduler, RUNNING))
		return "the counts of requests are wrong";
	for (uint32_t adapter = 0; adapter <= scheduler->adapter_count; adapter++) {
		waiting_of += scheduler->adapters[adapter].waiting;
		running_of += scheduler->adapters[adapter].running;
		running += adapter && scheduler->adapters[adapter].running;
	}
	if (waiting_of != scheduler->stats.waiting || running_of != scheduler->stats.running ||
		running != scheduler->running_adapters)
		return "the counts of adapters are wrong";
	return NULL;
}
