#include "tools/demo/engine.h"

#include "client/gpool.h"
#include "shm/monotonic.h"
#include "tools/demo/board.h"
#include "tools/demo/kv.h"
#include "tools/demo/model.h"
#include "tools/demo/pattern.h"
#include "tools/demo/prefix_cache.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	TOUCH_US = 5 * 1000 * 1000, /* well below the 30 s after which a pin counts as leaked */
	OPEN_TIMEOUT_MS = 30 * 1000,
	LAG_PAUSE_NS = 200 * 1000, /* polling interval of an engine that is ahead of the other one */
	/* no admission for these steps after a preemption; otherwise the same request would be preempted next */
	PAUSE_STEPS = 8,
};

/* A request that has arrived and is not finished. */
struct sequence {
	struct sequence *next; /* next in the queue, or in the order of admission */
	uint32_t request;      /* index within this engine's part of the board */
	uint32_t generated;    /* number of generated tokens; it is kept when the KV is lost */
	uint32_t prefill;      /* tokens whose KV must be written before the next one is generated */
	struct pattern_owner owner;
	struct kv kv;
	uint64_t queued_us;
	/* engine->refusals when the request was queued; any later refusal has delayed this request, too */
	uint64_t refusals_seen;
	bool failed; /* verification found wrong bytes */
};

struct sequence_list {
	struct sequence *first;
	uint32_t count;
};

struct engine {
	struct board board;
	struct kv_context context;
	uint32_t index;
	struct sequence_list queue;   /* by request, oldest first */
	struct sequence_list running; /* also by request, oldest first */
	struct sequence *following;   /* during a step: the next one to be processed */
	uint64_t now_us;              /* time of the run */
	uint64_t due_ns;              /* real time at which this step ends */
	uint32_t next_arrival;        /* index of the first request that has not been queued */
	uint32_t open_requests;
	uint64_t refusals;
	uint64_t pause_steps;
	uint64_t touched_us;
	bool blocked;  /* the head of the queue was refused pages */
	bool released; /* pages have been freed or unpinned since the refusal */
	struct prefix_cache cache;
};

static const struct board_request *request_of(const struct engine *engine, const struct sequence *sequence)
{
	return &engine->board.requests[engine->context.score->first_request + sequence->request];
}

static struct board_mark *mark_of(const struct engine *engine, uint32_t request)
{
	return &engine->board.marks[engine->context.score->first_request + request];
}

/* Insert in order of request. Preempted requests are older than all waiting ones and are inserted near the head. */
static void list_insert(struct sequence_list *list, struct sequence *sequence)
{
	struct sequence **at = &list->first;

	while (*at && (*at)->request < sequence->request)
		at = &(*at)->next;
	sequence->next = *at;
	*at = sequence;
	list->count++;
}

static void list_remove(struct sequence_list *list, struct sequence *sequence)
{
	struct sequence **at = &list->first;

	while (*at != sequence)
		at = &(*at)->next;
	*at = sequence->next;
	list->count--;
}

static void queue_insert(struct engine *engine, struct sequence *sequence)
{
	sequence->queued_us = engine->now_us;
	sequence->refusals_seen = engine->refusals;
	list_insert(&engine->queue, sequence);
	/* The queue has a new head, which has not been refused pages. */
	if (engine->queue.first == sequence)
		engine->blocked = false;
}

/* Queue the requests that have arrived, except those finished by an earlier process of this engine. */
static int engine_receive(struct engine *engine)
{
	struct board_engine *score = engine->context.score;

	for (; engine->next_arrival < score->request_count; engine->next_arrival++) {
		const struct board_request *request =
			&engine->board.requests[score->first_request + engine->next_arrival];
		struct sequence *sequence;

		if (request->arrival_us > engine->now_us)
			break;
		if (atomic_load(&mark_of(engine, engine->next_arrival)->state) >= BOARD_DONE)
			continue;
		sequence = calloc(1, sizeof *sequence);
		if (!sequence)
			return -ENOMEM;
		sequence->request = engine->next_arrival;
		sequence->prefill = request->context_tokens;
		queue_insert(engine, sequence);
	}
	return 0;
}

/* Let every n-th request continue the conversation of an earlier one: look for a prefix in the cache. */
static void sequence_find_prefix(struct engine *engine, struct sequence *sequence)
{
	const struct board_header *header = engine->board.header;
	uint32_t most_pages = sequence->prefill / engine->context.tokens_per_page;
	struct pattern_owner random = {
		.engine = ~engine->index, .request = sequence->request, .life = sequence->owner.life};
	struct kv_part part;

	if (header->reuse_every == 0 || sequence->request % header->reuse_every != header->reuse_every - 1)
		return;
	if (prefix_cache_get(
		    &engine->cache, &engine->context, most_pages, header->seed ^ pattern_seed(&random, 0), &part) != 0)
		return;
	if (kv_set_prefix(&engine->context, &sequence->kv, &part) != 0)
		gpool_free(engine->context.pool, &part.block);
}

/*
 * Release the pages of a sequence: free its own parts, except `keep` (NULL: none), which is added to the cache, and
 * return a prefix to the cache.
 */
static void sequence_release(struct engine *engine, struct sequence *sequence, const struct kv_part *keep)
{
	bool has_prefix = sequence->kv.has_prefix;
	struct kv_part prefix, kept;

	if (has_prefix)
		prefix = sequence->kv.parts[0];
	if (keep)
		kept = *keep;
	kv_release(&engine->context, &sequence->kv, keep);
	if (has_prefix)
		prefix_cache_put(&engine->cache, &engine->context, &prefix, engine->now_us);
	if (keep)
		prefix_cache_put(&engine->cache, &engine->context, &kept, engine->now_us);
	engine->released = true;
}

static void engine_admitted(struct engine *engine, struct sequence *sequence)
{
	struct board_engine *score = engine->context.score;
	struct board_mark *mark = mark_of(engine, sequence->request);

	list_remove(&engine->queue, sequence);
	list_insert(&engine->running, sequence);
	engine->blocked = false;
	if (engine->refusals != sequence->refusals_seen) {
		board_add(&score->waits, 1);
		board_add(&mark->wait_us, engine->now_us - sequence->queued_us);
	}
	if (sequence->owner.life > 1)
		board_add(&score->recomputed_tokens, sequence->prefill - sequence->kv.tokens);
	if (sequence->kv.has_prefix) {
		board_add(&score->prefix_hits, 1);
		board_add(&score->prefix_hit_tokens, sequence->kv.tokens);
		/*
		 * Check the prefix before it is used, not only at the end: the cache must return the content that was
		 * put into it.
		 */
		if (kv_part_check(&engine->context, &sequence->kv.parts[0]) != 0)
			sequence->failed = true;
	}
}

/*
 * Try to start the oldest waiting request. Return: 0, -ENOSPC (no pages), -ENOENT (no request waits), or an error that
 * ends the engine.
 */
static int engine_admit_one(struct engine *engine, int timeout_ms)
{
	struct sequence *sequence = engine->queue.first;
	struct board_mark *mark;
	uint32_t pages;
	int error = 0;

	if (!sequence)
		return -ENOENT;
	mark = mark_of(engine, sequence->request);
	sequence->owner = (struct pattern_owner){engine->index, sequence->request, atomic_load(&mark->lives) + 1};
	/*
	 * Use a prefix only if there is no wait, or another request is running. Otherwise two engines that wait with a
	 * pinned prefix each could withhold the last pages from each other forever.
	 */
	if (timeout_ms == 0 || engine->running.first)
		sequence_find_prefix(engine, sequence);
	pages = model_pages(sequence->prefill, engine->context.tokens_per_page) - sequence->kv.pages;
	if (pages > 0)
		error = kv_take(&engine->context, &sequence->kv, &sequence->owner, pages, timeout_ms);
	if (error) {
		/* A waiting request holds nothing, not even a pin. */
		sequence_release(engine, sequence, NULL);
		engine->released = false;
		engine->blocked = true;
		engine->refusals++;
		return error;
	}
	/* Store the new life first: its pattern must differ from those of killed lives. */
	atomic_store(&mark->lives, sequence->owner.life);
	atomic_store(&mark->state, BOARD_RUNNING);
	engine_admitted(engine, sequence);
	return 0;
}

static int engine_admit(struct engine *engine)
{
	int error = 0;

	if (engine->pause_steps > 0) {
		engine->pause_steps--;
		return 0;
	}
	/* After a refusal, retry only if this engine has freed pages; engine_rest() waits for pages of others. */
	if (engine->blocked && !engine->released)
		return 0;
	while (!error)
		error = engine_admit_one(engine, 0);
	return error == -ENOENT || error == -ENOSPC ? 0 : error;
}

static struct sequence *youngest(const struct engine *engine)
{
	struct sequence *sequence = engine->running.first;

	while (sequence->next)
		sequence = sequence->next;
	return sequence;
}

/* Free the pages of a running request. It starts again when there is room, and writes its tokens again. */
static void engine_preempt(struct engine *engine, struct sequence *sequence)
{
	list_remove(&engine->running, sequence);
	if (engine->following == sequence)
		engine->following = sequence->next;
	/* Also verify the KV that the request has written. */
	if (kv_check(&engine->context, &sequence->kv) != 0)
		sequence->failed = true;
	sequence_release(engine, sequence, NULL);
	sequence->prefill = request_of(engine, sequence)->context_tokens + sequence->generated;
	atomic_store(&mark_of(engine, sequence->request)->state, BOARD_OPEN);
	queue_insert(engine, sequence);
	/* The request is queued because pages were refused, so its time in the queue counts as a wait. */
	engine->refusals++;
	engine->pause_steps = PAUSE_STEPS;
	board_add(&engine->context.score->preemptions, 1);
}

/* Make room for one more token. Return: 0; -EAGAIN if this sequence was preempted; or an error that ends the engine. */
static int sequence_grow(struct engine *engine, struct sequence *sequence)
{
	while (kv_room(&engine->context, &sequence->kv) == 0) {
		int error = kv_take(&engine->context, &sequence->kv, &sequence->owner, 1, 0);
		struct sequence *victim;

		if (!error)
			break;
		if (error != -ENOSPC)
			return error;
		victim = youngest(engine);
		engine_preempt(engine, victim);
		if (victim == sequence)
			return -EAGAIN;
	}
	return 0;
}

/* Flip one bit of a request before its verification, to test the verification. */
static void sequence_corrupt(struct engine *engine, struct sequence *sequence)
{
	const struct board_header *header = engine->board.header;
	const struct kv_part *part = &sequence->kv.parts[sequence->kv.count - 1];
	uint64_t tokens = part->tokens;

	if (tokens > engine->context.tokens_per_page)
		tokens = engine->context.tokens_per_page;
	if (tokens > 0)
		kv_part_flip(&engine->context, part, header->seed % (tokens * engine->context.token_bytes));
}

static void engine_finish(struct engine *engine, struct sequence *sequence)
{
	struct board_header *header = engine->board.header;
	struct board_mark *mark = mark_of(engine, sequence->request);
	const struct kv_part *keep = NULL;
	bool failed;

	if (atomic_fetch_add(&header->finishing, 1) + 1 == header->corrupt_at)
		sequence_corrupt(engine, sequence);
	failed = kv_check(&engine->context, &sequence->kv) != 0 || sequence->failed;
	/*
	 * A later request may share the context, which is the first block of its own. A context with wrong bytes must
	 * not be shared.
	 */
	if (header->reuse_every > 0 && !failed && sequence->kv.count > sequence->kv.has_prefix) {
		keep = &sequence->kv.parts[sequence->kv.has_prefix];
		if (kv_part_full_pages(&engine->context, keep) == 0)
			keep = NULL;
	}
	list_remove(&engine->running, sequence);
	sequence_release(engine, sequence, keep);
	atomic_store(&mark->finished_us, engine->now_us);
	atomic_store(&mark->state, failed ? BOARD_FAILED : BOARD_DONE);
	engine->open_requests--;
	kv_destroy(&sequence->kv);
	free(sequence);
}

/* Execute one step of one running request. Return: 0, -EAGAIN (preempted), or an error that ends the engine. */
static int sequence_step(struct engine *engine, struct sequence *sequence, uint32_t *budget)
{
	const struct board_request *request = request_of(engine, sequence);
	struct board_mark *mark = mark_of(engine, sequence->request);
	uint32_t missing = sequence->prefill > sequence->kv.tokens ? sequence->prefill - sequence->kv.tokens : 0;
	int error;

	if (missing > 0) {
		uint32_t chunk = missing < *budget ? missing : *budget;

		kv_write(&engine->context, &sequence->kv, chunk);
		*budget -= chunk;
		return 0;
	}
	error = sequence_grow(engine, sequence);
	if (error)
		return error;
	kv_write(&engine->context, &sequence->kv, 1);
	if (sequence->generated++ == 0)
		atomic_store(&mark->first_token_us, engine->now_us);
	if (sequence->generated == request->generated_tokens)
		engine_finish(engine, sequence);
	return 0;
}

static int engine_step(struct engine *engine)
{
	uint32_t budget = engine->board.header->prefill_tokens;
	struct sequence *sequence;

	/* Oldest first; the youngest may be preempted during the loop. */
	for (sequence = engine->running.first; sequence; sequence = engine->following) {
		int error;

		engine->following = sequence->next;
		error = sequence_step(engine, sequence, &budget);
		if (error && error != -EAGAIN)
			return error;
	}
	return 0;
}

/* Do the work of a step that does not concern a single request. */
static void engine_keep_house(struct engine *engine)
{
	struct board_engine *score = engine->context.score;
	uint64_t now_us = monotonic_us();

	atomic_store_explicit(&score->running, engine->running.count, memory_order_relaxed);
	atomic_store_explicit(&score->waiting, engine->queue.count, memory_order_relaxed);
	prefix_cache_expire(&engine->cache, &engine->context, engine->now_us);
	if (now_us - engine->touched_us < TOUCH_US)
		return;
	engine->touched_us = now_us;
	for (struct sequence *sequence = engine->running.first; sequence; sequence = sequence->next)
		kv_touch(&engine->context, &sequence->kv);
}

/*
 * Wait until the end of the step. If a request was refused pages, it waits for them in the agent's queue during this
 * time.
 */
static int engine_rest(struct engine *engine)
{
	uint64_t now_ns = monotonic_ns();
	struct timespec due = {
		.tv_sec = (time_t)(engine->due_ns / 1000000000), .tv_nsec = (long)(engine->due_ns % 1000000000)};
	int error = 0;

	if (engine->blocked && engine->pause_steps == 0)
		error = engine_admit_one(
			engine, engine->due_ns > now_ns ? (int)((engine->due_ns - now_ns) / 1000000) : 0);
	if (engine->due_ns > now_ns)
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
			;
	return error == -ENOSPC || error == -ENOENT ? 0 : error;
}

static void engine_wait_for_other(const struct engine *engine)
{
	const struct board_engine *other = &engine->board.header->engines[!engine->index];
	const struct timespec pause = {.tv_nsec = LAG_PAUSE_NS};
	uint64_t slack_us = BOARD_SLACK_STEPS * (uint64_t)engine->board.header->step_us;

	while (atomic_load(&other->active) && atomic_load(&other->clock_us) + slack_us < engine->now_us)
		nanosleep(&pause, NULL);
}

/* Advance the time of the run by one step. An engine that is late does not catch up. */
static void engine_tick(struct engine *engine)
{
	uint64_t step_us = engine->board.header->step_us, now_ns;

	engine->now_us += step_us;
	atomic_store(&engine->context.score->clock_us, engine->now_us);
	engine_wait_for_other(engine);
	now_ns = monotonic_ns();
	engine->due_ns = (engine->due_ns > now_ns ? engine->due_ns : now_ns) + step_us * 1000;
}

/* Start at the current time of the run, some of which a killed engine has missed. */
static void engine_join(struct engine *engine)
{
	const struct board_engine *other = &engine->board.header->engines[!engine->index];
	struct board_engine *score = engine->context.score;
	uint64_t others_us = atomic_load(&other->clock_us);

	engine->now_us = atomic_load(&score->clock_us);
	if (atomic_load(&other->active) && others_us > engine->now_us)
		engine->now_us = others_us;
	atomic_store(&score->clock_us, engine->now_us);
	atomic_store(&score->active, 1);
	engine->due_ns = monotonic_ns();
}

static int engine_serve(struct engine *engine)
{
	int error = 0;

	engine_join(engine);
	while (engine->open_requests > 0 && !error) {
		engine_tick(engine);
		error = engine_receive(engine);
		if (!error)
			error = engine_admit(engine);
		if (!error)
			error = engine_step(engine);
		engine_keep_house(engine);
		if (!error && engine->open_requests > 0)
			error = engine_rest(engine);
	}
	return error;
}

static void gpool_said(void *context, int level, const char *text)
{
	if (level <= 1)
		fprintf(stderr, "gpool-demo: engine '%s': %s\n", (const char *)context, text);
}

static int engine_open(struct engine *engine)
{
	const struct board_header *header = engine->board.header;
	struct board_engine *score = engine->context.score;
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	int error;

	options.directory = header->directory;
	options.pool = score->pool;
	options.name = score->name;
	options.timeout_ms = OPEN_TIMEOUT_MS;
	options.log = gpool_said;
	options.log_context = score->name;
	error = gpool_open(&options, &engine->context.pool);
	return error ? error : kv_context_open(&engine->context);
}

int engine_main(int fd, uint32_t index)
{
	static struct engine engine;
	int error = index < BOARD_ENGINES ? board_open(fd, &engine.board) : -EINVAL;

	if (error) {
		fprintf(stderr, "gpool-demo: cannot open the board: %s\n", strerror(-error));
		return 2;
	}
	engine.index = index;
	engine.context.score = &engine.board.header->engines[index];
	engine.context.page_bytes = engine.board.header->page_bytes;
	engine.context.token_bytes = engine.board.header->token_bytes;
	engine.context.tokens_per_page = engine.board.header->tokens_per_page;
	engine.cache.keep_us = engine.board.header->cache_us;
	for (uint32_t i = 0; i < engine.context.score->request_count; i++)
		engine.open_requests += atomic_load(&mark_of(&engine, i)->state) < BOARD_DONE;
	error = engine_open(&engine);
	if (error) {
		board_error(engine.context.score, "cannot open pool '%s': %s", engine.context.score->pool,
			gpool_strerror(error));
		return 1;
	}
	error = engine_serve(&engine);
	if (error)
		board_error(engine.context.score, "cannot continue: %s", gpool_strerror(error));
	prefix_cache_destroy(&engine.cache, &engine.context);
	kv_context_close(&engine.context);
	gpool_close(engine.context.pool);
	board_close(&engine.board);
	return error ? 1 : 0;
}
