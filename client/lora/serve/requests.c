/*
 * requests.c - the requests of an engine and their adapters: scheduler.h, applied to the adapters of lora.h.
 *
 * For a scheduler, an adapter has one of these states:
 *   held     It is acquired: requests of it are running, or it was claimed for a waiting request (`kept`). Otherwise it
 *            is released when a batch is formed.
 *   claimed  A request that is due waits for its load. It is held when it is loaded.
 *   none
 *
 * The lock of a scheduler is acquired before the lock of its adapters, and is not held during waits.
 */
#include "client/lora/load/lora.h"
#include "client/core/last_error.h"
#include "client/lora/serve/scheduler.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>

enum {
	REQUESTS_DEFAULT = 4096,
	REQUESTS_MAX = 1 << 20,
	CLAIMS_MAX = 2 * LORA_BATCH_REQUESTS_MAX,
	AGAIN_US = 10000, /* chosen: time before an adapter for which there was no room is loaded or prefetched again */
};

static_assert((int)GPOOL_LORA_BATCH_REQUESTS_MAX == (int)LORA_BATCH_REQUESTS_MAX && GPOOL_LORA_NONE == LORA_NO_ADAPTER,
	"the same");

/* The state of an adapter in this scheduler. */
struct client {
	uint32_t requests, running;
	bool held, kept, claimed, looked_at;
	int error;         /* the adapter cannot be loaded, and waiting requests must still be given up; 0: none */
	uint64_t again_us; /* again_us, ahead_us: earliest times of the next claim and of the next prefetch */
	uint64_t ahead_us;
};

/* gpool/lora.h states 80 bytes for each adapter: these 36 and the 44 of scheduler.h. */
static_assert(sizeof(struct client) + sizeof(uint32_t) == 36, "memory of an adapter");

struct gpool_lora_scheduler {
	struct gpool_lora *lora;
	pthread_mutex_t lock;
	struct lora_scheduler *core;
	struct client *clients; /* [client_count], by adapter number */
	uint32_t client_count, requests_max;
	uint32_t claims[CLAIMS_MAX], claim_count;
	uint32_t *looked_at, looked_count; /* [client_count] held only for this batch, to check residency */
	bool short_of;                     /* an adapter could not be loaded, because there was no room */
	bool again;                        /* a change was reported since the last batch */
	uint64_t failed;
	struct lora_schedule batch;
};

/* ---- create and destroy ---- */

static int options_get(const struct gpool_lora_scheduler_options *read, struct lora_options *options)
{
	*options = (struct lora_options)LORA_OPTIONS_INIT;
	if (read->batch_requests)
		options->batch_requests = read->batch_requests;
	if (read->batch_adapters)
		options->batch_adapters = read->batch_adapters;
	if (read->batch_tokens)
		options->batch_tokens = read->batch_tokens;
	if (read->look_ahead)
		options->look_ahead = read->look_ahead;
	if (read->max_bypass_ms)
		options->max_bypass_us = read->max_bypass_ms * UINT64_C(1000);
	if (read->flags)
		return fail(-EINVAL, "flags are 0x%x; they must be 0", read->flags);
	if (read->requests > REQUESTS_MAX)
		return fail(-EINVAL, "requests is %u; the maximum is %d", read->requests, REQUESTS_MAX);
	if (options->batch_requests > LORA_BATCH_REQUESTS_MAX)
		return fail(-EINVAL, "batch_requests is %u; the maximum is %d", options->batch_requests,
			LORA_BATCH_REQUESTS_MAX);
	return options->look_ahead <= LORA_LOOK_AHEAD_MAX
		? 0
		: fail(-EINVAL, "look_ahead is %u; the maximum is %d", options->look_ahead, LORA_LOOK_AHEAD_MAX);
}

int gpool_lora_scheduler_create(struct gpool_lora *lora, const struct gpool_lora_scheduler_options *options,
	struct gpool_lora_scheduler **scheduler)
{
	struct gpool_lora_scheduler_options read = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	struct gpool_lora_scheduler *made;
	struct lora_options core;
	int error = 0;

	if (!lora->pool->alive)
		return -ECHILD;
	if (options)
		error = options_read(&read, sizeof(read), options);
	if (!error)
		error = options_get(&read, &core);
	if (error)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->lora = lora;
	made->requests_max = read.requests ? read.requests : REQUESTS_DEFAULT;
	error = lora_scheduler_create(&core, made->requests_max, 1, &made->core);
	if (error) {
		free(made);
		return error;
	}
	pthread_mutex_init(&made->lock, NULL);
	lora_user_add(lora, 1);
	*scheduler = made;
	return 0;
}

int gpool_lora_scheduler_destroy(struct gpool_lora_scheduler *scheduler)
{
	if (!scheduler)
		return 0;
	if (!scheduler->lora->pool->alive)
		return -ECHILD;
	for (uint32_t i = 0; i < scheduler->claim_count; i++)
		lora_claim_end(scheduler->lora, scheduler->claims[i]);
	for (uint32_t id = 0; id < scheduler->client_count; id++) {
		const struct client *client = &scheduler->clients[id];

		if (client->held)
			gpool_lora_release(scheduler->lora, id, GPOOL_FENCE_NONE);
		if (client->requests)
			lora_requests_add(scheduler->lora, id, -(int32_t)client->requests);
	}
	lora_user_add(scheduler->lora, -1);
	lora_scheduler_destroy(scheduler->core);
	pthread_mutex_destroy(&scheduler->lock);
	free(scheduler->clients);
	free(scheduler->looked_at);
	free(scheduler);
	return 0;
}

/* ---- adapters; under the lock ---- */

static int clients_have(struct gpool_lora_scheduler *scheduler, uint32_t id)
{
	uint32_t count = scheduler->client_count ? scheduler->client_count : 64, *looked_at;
	struct client *clients;

	if (id < scheduler->client_count)
		return 0;
	while (count <= id)
		count *= 2;
	looked_at = realloc(scheduler->looked_at, count * sizeof(*looked_at));
	if (!looked_at)
		return -ENOMEM;
	scheduler->looked_at = looked_at;
	clients = realloc(scheduler->clients, count * sizeof(*clients));
	if (!clients)
		return -ENOMEM;
	memset(clients + scheduler->client_count, 0, (count - scheduler->client_count) * sizeof(*clients));
	scheduler->clients = clients;
	scheduler->client_count = count;
	return lora_scheduler_grow(scheduler->core, count);
}

/* Release an adapter if it is not needed. Return: 0, or the error because of which it is still held. */
static int settle(struct gpool_lora_scheduler *scheduler, uint32_t id, struct gpool_fence fence)
{
	struct client *client = &scheduler->clients[id];
	int error;

	if (!client->held || client->running || (client->kept && lora_scheduler_waiting(scheduler->core, id, NULL)))
		return 0;
	error = gpool_lora_release(scheduler->lora, id, fence);
	if (error)
		return error;
	client->held = client->kept = false;
	return 0;
}

/*
 * Return true if the error is temporary, such as a lack of room or a restart of the agent. Other errors are caused by
 * the adapter.
 */
static bool is_passing(int error)
{
	return error == -ENOSPC || error == -EDQUOT || error == -EAGAIN || error == -EBUSY || error == -EPIPE ||
		error == -ENOMEM || error == -ETIMEDOUT;
}

/* Give up the requests that wait for an adapter, as long as the list of failed requests has room. */
static void requests_fail(
	struct gpool_lora_scheduler *scheduler, uint32_t id, int error, struct gpool_lora_schedule *schedule)
{
	struct client *client = &scheduler->clients[id];
	uint32_t request;

	client->error = error;
	while (schedule->failed_count < GPOOL_LORA_BATCH_REQUESTS_MAX &&
		lora_scheduler_waiting(scheduler->core, id, &request)) {
		lora_scheduler_give_up(scheduler->core, request);
		schedule->failed[schedule->failed_count] = request;
		schedule->errors[schedule->failed_count++] = error;
		scheduler->failed++;
	}
	if (!lora_scheduler_waiting(scheduler->core, id, NULL))
		client->error = 0;
	else
		scheduler->again = true;
}

/* Release other adapters that are kept for waiting requests; they can be loaded again. Return: their number. */
static uint32_t kept_let_go(struct gpool_lora_scheduler *scheduler)
{
	uint32_t count = 0;

	for (uint32_t id = 0; id < scheduler->client_count; id++) {
		struct client *client = &scheduler->clients[id];

		if (!client->kept || client->running)
			continue;
		client->kept = false;
		count += !settle(scheduler, id, GPOOL_FENCE_NONE);
	}
	return count;
}

static void claim_failed(struct gpool_lora_scheduler *scheduler, uint32_t id, int error, uint64_t now,
	struct gpool_lora_schedule *schedule)
{
	if (!is_passing(error)) {
		requests_fail(scheduler, id, error, schedule);
		return;
	}
	/*
	 * Retry at once, because the release of kept adapters has made room. Adapters are then claimed in order of
	 * arrival, beginning with the one for the first request.
	 */
	if ((error == -ENOSPC || error == -EDQUOT) && kept_let_go(scheduler))
		return;
	scheduler->clients[id].again_us = now + AGAIN_US;
}

/* Handle the claims that have ended. */
static void claims_look(struct gpool_lora_scheduler *scheduler, uint64_t now, struct gpool_lora_schedule *schedule)
{
	uint32_t count = scheduler->claim_count;

	scheduler->claim_count = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t id = scheduler->claims[i];
		struct client *client = &scheduler->clients[id];
		int error = lora_claim_look(scheduler->lora, id);

		if (error == -EAGAIN) {
			scheduler->claims[scheduler->claim_count++] = id;
			continue;
		}
		client->claimed = false;
		client->held = client->kept = !error;
		if (error)
			claim_failed(scheduler, id, error, now, schedule);
		else
			/* the requests that waited for the adapter may have been removed */
			settle(scheduler, id, GPOOL_FENCE_NONE);
	}
}

/* Claim the adapters of blocked requests, in order of arrival. */
static void wanted_claim(struct gpool_lora_scheduler *scheduler, uint64_t now, struct gpool_lora_schedule *schedule)
{
	for (uint32_t i = 0; i < scheduler->batch.wanted_count && scheduler->claim_count < CLAIMS_MAX; i++) {
		uint32_t id = scheduler->batch.wanted[i];
		struct client *client = &scheduler->clients[id];
		int error = client->error;

		if (client->held || client->claimed)
			continue;
		if (client->again_us > now) {
			scheduler->short_of = true;
			return;
		}
		if (!error)
			error = lora_claim(scheduler->lora, id);
		if (error == -EAGAIN) {
			client->claimed = true;
			scheduler->claims[scheduler->claim_count++] = id;
		} else if (error) {
			claim_failed(scheduler, id, error, now, schedule);
			scheduler->short_of = is_passing(error);
			if (scheduler->short_of)
				return;
		} else {
			client->held = client->kept = scheduler->again = true;
		}
	}
}

static void ahead_prefetch(struct gpool_lora_scheduler *scheduler, uint64_t now)
{
	for (uint32_t i = 0; i < scheduler->batch.ahead_count; i++) {
		struct client *client = &scheduler->clients[scheduler->batch.ahead[i]];

		if (client->held || client->claimed || client->ahead_us > now)
			continue;
		client->ahead_us = now + AGAIN_US;
		gpool_lora_prefetch(scheduler->lora, scheduler->batch.ahead[i]);
	}
}

/* ---- places of adapters ---- */

/*
 * Return the place of an adapter. A resident adapter is held until the batch is formed, so that it is still resident
 * when its requests start.
 */
static enum lora_place place(void *context, uint32_t id)
{
	struct gpool_lora_scheduler *scheduler = context;
	struct client *client = &scheduler->clients[id];
	int error;

	if (client->held || client->claimed)
		return client->held ? LORA_RESIDENT : LORA_LOADING;
	error = lora_try(scheduler->lora, id);
	if (error)
		return error == -EAGAIN ? LORA_LOADING : LORA_ABSENT;
	client->held = true;
	if (!client->looked_at)
		scheduler->looked_at[scheduler->looked_count++] = id;
	client->looked_at = true;
	return LORA_RESIDENT;
}

static void looks_end(struct gpool_lora_scheduler *scheduler)
{
	while (scheduler->looked_count) {
		uint32_t id = scheduler->looked_at[--scheduler->looked_count];

		scheduler->clients[id].looked_at = false;
		settle(scheduler, id, GPOOL_FENCE_NONE);
	}
}

/* ---- requests ---- */

int gpool_lora_scheduler_add(
	struct gpool_lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint32_t *request)
{
	struct gpool_lora *lora = scheduler->lora;
	bool has = adapter != GPOOL_LORA_NONE;
	int result;

	if (!lora->pool->alive)
		return -ECHILD;
	if (has && lora_requests_add(lora, adapter, 1))
		return fail_adapter(adapter);
	pthread_mutex_lock(&scheduler->lock);
	result = has ? clients_have(scheduler, adapter) : 0;
	if (!result)
		result = lora_scheduler_add(scheduler->core, adapter, tokens, monotonic_us(), request);
	if (has && result >= 0)
		scheduler->clients[adapter].requests++;
	pthread_mutex_unlock(&scheduler->lock);
	if (result == -ENOSPC)
		fail(result, "the scheduler has %u request%s, the limit (option requests); finish or remove one",
			scheduler->requests_max, plural(scheduler->requests_max));
	if (has && result < 0)
		lora_requests_add(lora, adapter, -1);
	if (result == 1)
		gpool_lora_prefetch(lora, adapter);
	lora_change(lora);
	return result < 0 ? result : 0;
}

/* End a request; under the lock. If its adapter cannot be released with the fence, nothing changes. */
static int request_end(struct gpool_lora_scheduler *scheduler, uint32_t id, bool running, struct gpool_fence fence)
{
	struct client *client = id == LORA_NO_ADAPTER ? NULL : &scheduler->clients[id];
	int error;

	if (!client)
		return 0;
	client->running -= running;
	error = settle(scheduler, id, fence);
	if (error) {
		client->running += running;
		return error;
	}
	client->requests--;
	if (running)
		lora_served(scheduler->lora, id);
	lora_requests_add(scheduler->lora, id, -1);
	return 0;
}

int gpool_lora_scheduler_remove(struct gpool_lora_scheduler *scheduler, uint32_t request)
{
	uint32_t id;
	int error;

	if (!scheduler->lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&scheduler->lock);
	id = lora_scheduler_adapter(scheduler->core, request);
	error = lora_scheduler_remove(scheduler->core, request) ? fail(-ENOENT, "request %u is not waiting", request)
								: 0;
	if (!error)
		request_end(scheduler, id, false, GPOOL_FENCE_NONE);
	pthread_mutex_unlock(&scheduler->lock);
	return error;
}

int gpool_lora_scheduler_finish(struct gpool_lora_scheduler *scheduler, uint32_t request, struct gpool_fence fence)
{
	int error;

	if (!scheduler->lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&scheduler->lock);
	if (lora_scheduler_runs(scheduler->core, request))
		error = request_end(scheduler, lora_scheduler_adapter(scheduler->core, request), true, fence);
	else
		error = fail(-ENOENT, "request %u is not running", request);
	if (!error)
		lora_scheduler_finish(scheduler->core, request);
	pthread_mutex_unlock(&scheduler->lock);
	lora_change(scheduler->lora);
	return error;
}

/* ---- batches ---- */

static void form(struct gpool_lora_scheduler *scheduler, struct gpool_lora_schedule *schedule)
{
	const struct lora_view view = {.place = place, .context = scheduler};
	struct lora_schedule *batch = &scheduler->batch;
	uint64_t now = monotonic_us();

	scheduler->short_of = scheduler->again = false;
	claims_look(scheduler, now, schedule);
	lora_scheduler_schedule(scheduler->core, &view, now, batch);
	for (uint32_t i = 0; i < batch->start_count; i++) {
		uint32_t id = lora_scheduler_adapter(scheduler->core, batch->starts[i]);

		schedule->starts[i] = batch->starts[i];
		if (id == LORA_NO_ADAPTER)
			continue;
		if (!scheduler->clients[id].running++ && !scheduler->clients[id].kept)
			lora_hit(scheduler->lora, id);
		scheduler->clients[id].kept = false;
	}
	schedule->start_count = batch->start_count;
	wanted_claim(scheduler, now, schedule);
	looks_end(scheduler);
	ahead_prefetch(scheduler, now);
	schedule->adapters = batch->adapters;
	schedule->awaited = scheduler->claim_count;
}

int gpool_lora_scheduler_schedule(
	struct gpool_lora_scheduler *scheduler, int timeout_ms, struct gpool_lora_schedule *schedule)
{
	uint64_t limit = timeout_ms < 0 ? UINT64_MAX : monotonic_us() + (uint64_t)timeout_ms * 1000, now;

	if (!scheduler->lora->pool->alive)
		return -ECHILD;
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	if (schedule->size < sizeof(*schedule))
		return fail_size(schedule->size);
	schedule->start_count = schedule->failed_count = 0;
	for (;;) {
		uint64_t seen = lora_changes(scheduler->lora), left;
		bool again, short_of;

		pthread_mutex_lock(&scheduler->lock);
		form(scheduler, schedule);
		again = scheduler->again;
		short_of = scheduler->short_of;
		pthread_mutex_unlock(&scheduler->lock);
		now = monotonic_us();
		if (schedule->start_count || schedule->failed_count || now >= limit)
			return (int)schedule->start_count;
		if (again)
			continue;
		left = limit - now;
		if (short_of && left > AGAIN_US)
			left = AGAIN_US;
		lora_change_wait(
			scheduler->lora, seen, left > INT32_MAX * UINT64_C(1000) ? -1 : (int)((left + 999) / 1000));
	}
}

int gpool_lora_scheduler_queue(struct gpool_lora_scheduler *scheduler, uint32_t *requests, uint32_t most)
{
	const struct lora_view view = {.place = place, .context = scheduler};
	uint32_t count;

	if (!scheduler->lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&scheduler->lock);
	count = lora_scheduler_queue(
		scheduler->core, &view, monotonic_us(), requests, most < REQUESTS_MAX ? most : REQUESTS_MAX);
	looks_end(scheduler);
	pthread_mutex_unlock(&scheduler->lock);
	return (int)count;
}

/* ---- inspect ---- */

int gpool_lora_scheduler_stats(struct gpool_lora_scheduler *scheduler, struct gpool_lora_scheduler_stats *statistics)
{
	struct gpool_lora_scheduler_stats filled = {.size = statistics->size};
	struct lora_scheduler_stats stats;

	if (!scheduler->lora->pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	pthread_mutex_lock(&scheduler->lock);
	lora_scheduler_get_stats(scheduler->core, &stats);
	filled.awaited = scheduler->claim_count;
	filled.failed = scheduler->failed;
	pthread_mutex_unlock(&scheduler->lock);
	filled.waiting = stats.waiting;
	filled.running = stats.running;
	filled.batches = stats.batches;
	filled.added = stats.added;
	filled.started = stats.started;
	filled.finished = stats.finished;
	filled.removed = stats.removed;
	filled.cold_starts = stats.cold_starts;
	filled.bypassed = stats.bypassed;
	filled.overdue = stats.overdue;
	filled.longest_bypass_us = stats.longest_bypass_us;
	filled.longest_wait_us = stats.longest_wait_us;
	if (filled.size > sizeof(filled))
		memset((char *)statistics + sizeof(filled), 0, filled.size - sizeof(filled));
	memcpy(statistics, &filled, filled.size < sizeof(filled) ? filled.size : sizeof(filled));
	return 0;
}
