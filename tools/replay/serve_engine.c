/*
 * serve_engine.c - one engine: a process with its own session and KV cache, which serves its share of the requests in
 * steps, with continuous batching.
 *
 * A step resumes preempted sequences, admits requests in order while there is memory, adds one token to each running
 * sequence whose prompt is computed, and computes parts of prompts. If no block is available for a sequence, a sequence
 * that the cache selects is preempted.
 */
#include "tools/replay/serve_engine.h"

#include "client/core/request.h"
#include "cuda/gpu.h"
#include "shm/pool_segment.h"
#include "tools/replay/replay.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	BLOCKS_MAX = 1 << 24, /* the maximum for a cache */
	ATTACH_MS = 30000,
	WORK_MS = 60000,                        /* longest wait for the copies of a step */
	SEQUENCE_TOKENS_MAX = (1 << 24) - 1024, /* the maximum for a cache, with room for rounding up */
};

int engine_fail(struct serve_engine *engine, int error, const char *what, uint32_t request)
{
	if (!*engine->answer.text)
		snprintf(engine->answer.text, SERVE_TEXT_BYTES, "cannot %s for request %" PRIu32 ": %s", what,
			request + 1, gpool_strerror(error));
	return error;
}

/* Report an error that occurs before the first request. */
static int open_fail(struct serve_engine *engine, int error, const char *what)
{
	snprintf(engine->answer.text, SERVE_TEXT_BYTES, "cannot %s: %s", what, gpool_strerror(error));
	return error;
}

int engine_settle(struct serve_engine *engine)
{
	struct gpool_fence fence;
	int error = gpool_fence_record(engine->pool, engine->stream, &fence);

	return error ? error : gpool_fence_wait(engine->pool, fence, WORK_MS);
}

/* ---- computation ---- */

static int publish(struct serve_engine *engine, struct serve_job *job)
{
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	int blocks, shared;

	if (job->computed / engine->memory.block_tokens == job->published)
		return 0;
	prefix.ids = job->ids;
	prefix.count = job->computed;
	blocks = gpool_kv_prefix_publish(engine->kv, job->sequence, &prefix);
	if (blocks < 0)
		return engine_fail(engine, blocks, "publish blocks", job->request);
	job->published = (uint32_t)blocks;
	/*
	 * Publish the blocks of the prompt when all are computed. If the pool has no room for them, they are not
	 * shared.
	 */
	if (job->shared || engine->setup->apart || engine->setup->engines == 1 || job->computed < job->prompt)
		return 0;
	job->shared = true;
	shared = gpool_kv_prefix_share(engine->kv, job->sequence, WORK_MS);
	*count_of(engine, SERVE_failed_shares) += shared < 0;
	if (shared == -EINVAL || shared == -EIO || shared == -EPIPE)
		return engine_fail(engine, shared, "share blocks", job->request);
	return 0;
}

static int job_compute(struct serve_engine *engine, struct serve_job *job, uint32_t tokens)
{
	int error = serve_job_compute(job, &engine->memory, tokens);

	if (error)
		return engine_fail(engine, error, "write", job->request);
	engine->answer.went = true;
	return publish(engine, job);
}

/* Copy the tables to the device. This needs pages, too, for which sequences may have to be preempted. */
static int sync_tables(struct serve_engine *engine)
{
	int error;

	while (is_shortage(error = gpool_kv_sync(engine->kv)) && requests_preempt(engine) == 0)
		;
	/* If there are not enough pages even now, no sequence is running, and the tables can be copied later. */
	if (!error || is_shortage(error))
		error = engine_settle(engine);
	return error ? engine_fail(engine, error, "copy tables", engine->next) : 0;
}

static int compute_all(struct serve_engine *engine)
{
	int error = 0;

	for (uint32_t i = 0; i < engine->job_count && !error; i++) {
		struct serve_job *job = &engine->jobs[i];
		uint32_t tokens = job->tokens - job->computed, left = SERVE_PREFILL_TOKENS - engine->prefilled;

		if (job->waits)
			continue;
		/* A single token is a step of decoding, which does not count against the budget of prompt tokens. */
		if (tokens > 1) {
			tokens = tokens < left ? tokens : left;
			engine->prefilled += tokens;
		}
		if (tokens)
			error = job_compute(engine, job, tokens);
	}
	return error;
}

/* ---- steps ---- */

static void statistics_take(struct serve_engine *engine)
{
	struct gpool_kv_stats now = {.size = sizeof(now)};
	uint64_t page_bytes = gpool_page_bytes(engine->pool);
	struct serve_answer *answer = &engine->answer;

	gpool_kv_stats(engine->kv, &now);
	answer->used_pages = (uint32_t)(((uint64_t)(now.used_blocks + now.pool_blocks) * engine->memory.block_bytes +
						page_bytes - 1) /
		page_bytes);
	answer->lent_pages = gpool_page_count(engine->pool) -
		atomic_load_explicit(&pool_view(engine->pool)->header->state_pages[PAGE_FREE], memory_order_relaxed);
	answer->counts[SERVE_hit_blocks] = now.prefix_hits;
	answer->counts[SERVE_missed_blocks] = now.prefix_misses;
	answer->counts[SERVE_evicted_blocks] = now.prefix_evicted;
	answer->counts[SERVE_lost_blocks] = now.prefix_lost;
	answer->counts[SERVE_shared_blocks] = now.pool_shared;
	answer->counts[SERVE_copied_bytes] = now.block_copies * engine->memory.block_bytes;
	answer->counts[SERVE_table_bytes] = now.table_bytes;
	answer->counts[SERVE_driver_calls] = gpu_calls_total(pool_gpu(engine->pool));
}

/* Set the answer. If no sequence is running, advance the clock to the next arrival. */
static void state_set(struct serve_engine *engine)
{
	struct serve_answer *answer = &engine->answer;
	bool idle = !engine->job_count && !has_come(engine, engine->next);

	answer->state = SERVE_GOES;
	if (engine->answer.went)
		return;
	if (idle && engine->next >= engine->setup->trace->request_count) {
		answer->state = SERVE_DONE;
	} else if (idle) {
		*count_of(engine, SERVE_idle_us) += arrival_us(engine, engine->next) - answer->clock_us;
		answer->clock_us = arrival_us(engine, engine->next);
		answer->went = true;
	} else {
		answer->state = SERVE_WAITS;
	}
}

static int step(struct serve_engine *engine)
{
	int error;

	engine->prefilled = engine->moved = 0;
	error = requests_admit(engine);
	if (!error)
		error = requests_grow(engine);
	if (!error)
		error = sync_tables(engine);
	if (!error)
		error = compute_all(engine);
	if (error)
		return error;
	*count_of(engine, SERVE_steps) += engine->answer.went;
	if (engine->job_count || engine->answer.went)
		engine->answer.clock_us += SERVE_STEP_US + (uint64_t)engine->prefilled * SERVE_PREFILL_US +
			(uint64_t)engine->moved * SERVE_MOVE_US;
	else if (has_come(engine, engine->next))
		engine->answer.clock_us += SERVE_STEP_US;
	error = requests_finish(engine);
	state_set(engine);
	return error;
}

/* ---- set-up and clean-up ---- */

static uint32_t requests_of(const struct serve_engine *engine)
{
	uint32_t all = engine->setup->trace->request_count, count = 0;

	for (uint32_t i = serve_next(engine->setup, engine->index, 0); i < all;
		i = serve_next(engine->setup, engine->index, i + 1))
		count++;
	return count;
}

static struct gpool_kv_options options_of(const struct serve_engine *engine)
{
	const struct serve_setup *setup = engine->setup;
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	uint64_t blocks, longest = 1;

	options.shape = (struct gpool_kv_shape){
		SERVE_LAYERS, SERVE_KV_HEADS, SERVE_HEAD_SIZE, SERVE_DTYPE_BYTES, setup->block_tokens};
	blocks = setup->pool_bytes / ((uint64_t)SERVE_TOKEN_BYTES * setup->block_tokens);
	blocks = blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
	for (uint32_t i = 0; i < setup->trace->request_count; i++)
		if (serve_total(&setup->trace->requests[i]) > longest)
			longest = serve_total(&setup->trace->requests[i]);
	options.flags = GPOOL_KV_PREFIXES | (setup->adaptive ? GPOOL_KV_ADAPTIVE : 0);
	options.stream = engine->stream;
	options.max_sequences = SERVE_SEQUENCES;
	if (longest > blocks * setup->block_tokens)
		longest = blocks * setup->block_tokens;
	options.max_sequence_tokens = longest < SEQUENCE_TOKENS_MAX ? (uint32_t)longest : SEQUENCE_TOKENS_MAX;
	options.watermark_blocks = (uint32_t)(blocks * setup->watermark_percent / 100);
	if (!options.watermark_blocks)
		options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	options.owner_id = engine->index;
	options.model[0] = 1;
	options.pool_blocks = setup->engines > 1 && !setup->apart ? (uint32_t)blocks : 0;
	return options;
}

/*
 * Before serving, allocate the pages for all rows of the device's tables, as engines do, so that later steps need none.
 */
static int tables_warm(struct serve_engine *engine)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequences[SERVE_SEQUENCES];
	uint32_t count = 0;
	int error = 0;

	request.tokens = 1;
	while (count < SERVE_SEQUENCES && !error) {
		error = gpool_kv_allocate(engine->kv, &request, &sequences[count]);
		count += !error;
	}
	/* A pool with fewer blocks allocates rows only for the sequences that exist. */
	if (!error || is_shortage(error))
		error = gpool_kv_sync(engine->kv);
	while (count > 0)
		gpool_kv_free(engine->kv, sequences[--count]);
	return is_shortage(error) ? 0 : error;
}

static int engine_open(struct serve_engine *engine, const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_kv_options kv_options;
	char name[32];
	int error;

	snprintf(name, sizeof(name), "engine %" PRIu32, engine->index);
	options.directory = directory;
	options.name = name;
	options.timeout_ms = ATTACH_MS;
	error = gpool_open(&options, &engine->pool);
	if (!error)
		error = gpool_stream_open(engine->pool, NULL, 0, &engine->stream);
	if (error)
		return open_fail(engine, error, "attach to the agent");
	kv_options = options_of(engine);
	error = gpool_kv_create(engine->pool, &kv_options, &engine->kv);
	if (!error)
		error = tables_warm(engine);
	if (!error && engine->setup->host_bytes)
		error = gpool_kv_host_reserve(engine->kv, engine->setup->host_bytes);
	if (error)
		return open_fail(engine, error, "create a cache or its host memory");
	engine->memory = (struct serve_memory){
		.kv = engine->kv,
		.block_tokens = engine->setup->block_tokens,
		.block_bytes = (uint64_t)SERVE_TOKEN_BYTES * engine->setup->block_tokens,
		.writer = engine->index,
		.corrupt = engine->index == 0 ? engine->setup->corrupt : 0,
	};
	return 0;
}

/* Execute orders until the run closes the channel. Return: 0, or the error that prevents it. */
static int engine_serve(struct serve_engine *engine, int channel)
{
	struct serve_order order;
	int error = 0;

	while (!error) {
		statistics_take(engine);
		if (send(channel, &engine->answer, sizeof(engine->answer), MSG_NOSIGNAL) != sizeof(engine->answer) ||
			recv(channel, &order, sizeof(order), 0) != sizeof(order))
			return 0;
		engine->answer.went = false;
		error = order.verb == SERVE_STEP ? step(engine) : requests_give_up(engine);
	}
	return error;
}

int serve_engine(const struct serve_setup *setup, uint32_t index, const char *directory, int channel)
{
	static struct serve_engine engine;
	int error;

	/* A terminal sends signals to all processes of the group. The run handles them and ends the engines. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	engine = (struct serve_engine){.setup = setup, .index = index, .next = serve_next(setup, index, 0)};
	*count_of(&engine, SERVE_requests) = requests_of(&engine);
	engine.waits_us = calloc(setup->trace->request_count, sizeof(*engine.waits_us));
	error = engine.waits_us ? engine_open(&engine, directory) : open_fail(&engine, -ENOMEM, "start");
	if (!error)
		error = engine_serve(&engine, channel);
	if (error) {
		engine.answer.state = SERVE_FAILED;
		send(channel, &engine.answer, sizeof(engine.answer), MSG_NOSIGNAL);
	}
	for (uint32_t i = 0; i < engine.job_count; i++)
		serve_job_end(&engine.jobs[i]);
	free(engine.waits_us);
	gpool_kv_destroy(engine.kv);
	gpool_close(engine.pool);
	return error ? CODE_FAILED : CODE_OK;
}
