/* serve_requests.c - see serve_engine.h: admission, growth and preemption of requests. */
#include "tools/replay/serve_engine.h"

#include <stdlib.h>
#include <string.h>

enum { STOPS_MAX = 1000 /* a request with this number of preemptions makes no progress */ };

static int verify(struct serve_engine *engine, const struct serve_job *job, uint32_t *others)
{
	int error = serve_job_verify(job, &engine->memory, engine->answer.counts, others, engine->answer.text);

	if (!error && *count_of(engine, SERVE_wrong_blocks))
		error = -EBADMSG;
	return error ? engine_fail(engine, error, "verify blocks", job->request) : 0;
}

/* ---- preemption ---- */

static struct serve_job *job_of(struct serve_engine *engine, uint64_t sequence)
{
	for (uint32_t i = 0; i < engine->job_count; i++)
		if (engine->jobs[i].sequence == sequence)
			return &engine->jobs[i];
	return NULL;
}

static uint64_t bytes_of(const struct serve_engine *engine, const struct serve_job *job)
{
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};

	gpool_kv_sequence_info(engine->kv, job->sequence, &info);
	return info.blocks * engine->memory.block_bytes;
}

/* Preempt a sequence (0: the one that the cache selects). Its content is saved to host memory if there is room. */
static int stop(struct serve_engine *engine, uint64_t sequence, struct serve_job **stopped)
{
	int freed = engine->setup->host_bytes ? gpool_kv_offload(engine->kv, sequence, 0, &sequence) : -EOPNOTSUPP;
	struct serve_job *job;
	bool saved = freed >= 0;

	if (freed == -ENOSPC || freed == -EOPNOTSUPP)
		freed = gpool_kv_preempt(engine->kv, sequence, &sequence);
	job = freed < 0 ? NULL : job_of(engine, sequence);
	if (!job)
		return freed < 0 ? freed : -ESTALE;
	*stopped = job;
	job->waits = true;
	job->saved = saved;
	if (saved) {
		*count_of(engine, SERVE_saved_bytes) += bytes_of(engine, job);
		engine->moved += job->computed;
	} else {
		*count_of(engine, SERVE_recomputed_tokens) += job->computed;
		serve_job_restart(job);
	}
	return 0;
}

int requests_preempt(struct serve_engine *engine)
{
	struct serve_job *job;
	int error = stop(engine, 0, &job);

	if (error)
		return error;
	++*count_of(engine, job->saved ? SERVE_offloaded : SERVE_preempted);
	return ++job->stops > STOPS_MAX ? engine_fail(engine, -ENOSPC, "continue", job->request) : 0;
}

/*
 * Make room for one more token, which the next step computes. Preempt other requests if necessary, and finally this
 * request itself, which then waits.
 */
static int job_grow(struct serve_engine *engine, struct serve_job *job)
{
	int error;

	do {
		error = gpool_kv_append(engine->kv, job->sequence, 1, NULL);
		if (!is_shortage(error))
			break;
		error = requests_preempt(engine);
	} while (!error && !job->waits);
	job->tokens += !error && !job->waits;
	return error ? engine_fail(engine, error, "append a token", job->request) : 0;
}

/* Record that the content in host memory was copied back to blocks. */
static int job_load(struct serve_engine *engine, struct serve_job *job)
{
	uint32_t others;
	int error = engine_settle(engine);

	*count_of(engine, SERVE_loaded_bytes) += bytes_of(engine, job);
	engine->moved += job->computed;
	return error ? engine_fail(engine, error, "restore its KV", job->request) : verify(engine, job, &others);
}

/* Resume a sequence, with room for the token for which it was preempted. Return: 1: it runs; 0: it waits. */
static int job_resume(struct serve_engine *engine, struct serve_job *job)
{
	bool saved = job->saved;
	int error = gpool_kv_resume(engine->kv, job->sequence);

	if (is_shortage(error))
		return 0;
	if (error)
		return engine_fail(engine, error, "resume", job->request);
	job->waits = job->saved = false;
	error = saved ? job_load(engine, job) : 0;
	if (error)
		return error;
	if (job->answered && job->tokens < job->total) {
		error = gpool_kv_append(engine->kv, job->sequence, 1, NULL);
		job->tokens += !error;
	}
	if (is_shortage(error))
		return stop(engine, job->sequence, &job);
	*count_of(engine, SERVE_resumed) += !error;
	return error ? engine_fail(engine, error, "append a token", job->request) : 1;
}

/* Resume preempted sequences. Return: 1 if none is waiting, 0 if one must wait, or negative errno. */
static int resume_all(struct serve_engine *engine)
{
	uint64_t sequence;

	while (gpool_kv_waiting(engine->kv, &sequence) == 0) {
		struct serve_job *job = job_of(engine, sequence);
		int goes = job ? job_resume(engine, job) : -ESTALE;

		if (goes <= 0)
			return goes;
	}
	return 1;
}

/* ---- requests ---- */

static const struct prefix_request *request_of(const struct serve_engine *engine, uint32_t request)
{
	return &engine->setup->trace->requests[request];
}

uint64_t arrival_us(const struct serve_engine *engine, uint32_t request)
{
	return (uint64_t)((double)request_of(engine, request)->time_ms * 1e3 / engine->setup->speed);
}

bool has_come(const struct serve_engine *engine, uint32_t request)
{
	return request < engine->setup->trace->request_count && arrival_us(engine, request) <= engine->answer.clock_us;
}

/* Record that all requests that have arrived are waiting for memory, because the first of them is waiting. */
static void mark_waiting(struct serve_engine *engine)
{
	if (engine->waiting < engine->next)
		engine->waiting = engine->next;
	while (has_come(engine, engine->waiting)) {
		engine->waits_us[engine->waiting] = engine->answer.clock_us + 1;
		engine->waiting = serve_next(engine->setup, engine->index, engine->waiting + 1);
	}
}

static uint32_t estimate(const struct serve_engine *engine, const struct serve_job *job)
{
	uint64_t finished = engine->answer.counts[SERVE_finished];

	if (engine->setup->growth == SERVE_ORACLE)
		return job->total;
	if (engine->setup->growth == SERVE_MEAN && finished)
		return job->prompt + (uint32_t)(engine->answer.counts[SERVE_generated_tokens] / finished);
	return 0;
}

/*
 * Check the watermark before allocating. gpool_kv_allocate() reserves block numbers for it, but the pages of these
 * blocks may be used elsewhere; gpool_kv_can_allocate() considers that.
 *
 * With several engines there is no check: memory that the other engines do not use is available, too, but
 * gpool_kv_can_allocate() does not report it.
 */
static bool leaves_watermark(struct serve_engine *engine, uint32_t tokens, const struct gpool_kv_prefix *prefix)
{
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv_need need = {.size = sizeof(need)};

	if (!engine->job_count || engine->setup->engines > 1 || gpool_kv_can_allocate(engine->kv, tokens, &need) < 0 ||
		gpool_kv_prefix_find(engine->kv, prefix, &found) < 0)
		return true;
	need.needed_blocks -= found.blocks - found.cached_blocks;
	return (uint64_t)need.needed_blocks + need.watermark_blocks <= need.available_blocks;
}

static int job_allocate(struct serve_engine *engine, struct serve_job *job, uint32_t *found)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	int error;

	request.tokens = job->prompt;
	request.estimated_tokens = estimate(engine, job);
	request.owner_id = job->request;
	prefix.ids = job->ids;
	prefix.count = job->prompt - 1; /* the last token is computed in any case */
	if (!leaves_watermark(
		    engine, request.estimated_tokens > job->prompt ? request.estimated_tokens : job->prompt, &prefix))
		return -ENOSPC;
	error = gpool_kv_prefix_allocate(engine->kv, &request, &prefix, &job->sequence, found);
	if (error == -EFBIG && request.estimated_tokens) {
		request.estimated_tokens = 0;
		error = gpool_kv_prefix_allocate(engine->kv, &request, &prefix, &job->sequence, found);
	}
	return error;
}

/* Start a request whose memory has been allocated, with the cached part of its prompt. */
static int job_admitted(struct serve_engine *engine, struct serve_job *job, uint32_t found)
{
	uint64_t since = engine->waits_us[job->request];
	uint32_t others;
	int error;

	job->tokens = job->prompt;
	job->came_us = arrival_us(engine, job->request);
	serve_job_found(job, &engine->memory, found);
	*count_of(engine, SERVE_prompt_tokens) += job->prompt;
	*count_of(engine, SERVE_found_tokens) += found;
	if (since) {
		++*count_of(engine, SERVE_waits);
		*count_of(engine, SERVE_wait_us) += engine->answer.clock_us + 1 - since;
	}
	error = verify(engine, job, &others);
	*count_of(engine, SERVE_hit_blocks_of_others) += others;
	return error;
}

static void next_take(struct serve_engine *engine)
{
	engine->next = serve_next(engine->setup, engine->index, engine->next + 1);
}

static void next_refuse(struct serve_engine *engine)
{
	++*count_of(engine, SERVE_refused);
	next_take(engine);
}

/* Admit the next request. Return: 1 if it runs or is refused, 0 if it waits. */
static int admit(struct serve_engine *engine)
{
	const struct prefix_request *request = request_of(engine, engine->next);
	struct serve_job *job = &engine->jobs[engine->job_count];
	uint32_t found = 0;
	int error;

	if (serve_total(request) > UINT32_MAX ||
		gpool_kv_can_allocate(engine->kv, (uint32_t)serve_total(request), NULL) == GPOOL_KV_NEVER) {
		next_refuse(engine);
		return 1;
	}
	error = serve_job_begin(job, engine->setup->trace, engine->next);
	if (!error)
		error = job_allocate(engine, job, &found);
	if (error)
		serve_job_end(job);
	if (is_shortage(error)) {
		mark_waiting(engine);
		return 0;
	}
	if (error)
		return engine_fail(engine, error, "allocate", engine->next);
	engine->job_count++;
	next_take(engine);
	error = job_admitted(engine, job, found);
	return error ? error : 1;
}

int requests_admit(struct serve_engine *engine)
{
	int goes = resume_all(engine);

	/* Preempted requests are resumed before new ones are admitted. */
	while (goes > 0 && engine->job_count < SERVE_SEQUENCES && has_come(engine, engine->next))
		goes = admit(engine);
	return goes < 0 ? goes : 0;
}

static int job_end(struct serve_engine *engine, struct serve_job *job)
{
	int error = gpool_kv_free(engine->kv, job->sequence);

	if (error)
		return engine_fail(engine, error, "end the sequence", job->request);
	serve_job_end(job);
	/* The other jobs keep their order. */
	memmove(job, job + 1, (size_t)(engine->jobs + --engine->job_count - job) * sizeof(*job));
	return 0;
}

static int job_finish(struct serve_engine *engine, struct serve_job *job)
{
	uint32_t others;
	int error = verify(engine, job, &others);

	if (error)
		return error;
	++*count_of(engine, SERVE_finished);
	*count_of(engine, SERVE_generated_tokens) += job->total - job->prompt;
	return job_end(engine, job);
}

/* ---- all requests ---- */

/* Add a token to each sequence with a computed prompt, in order of arrival. */
int requests_grow(struct serve_engine *engine)
{
	int error = 0;

	for (uint32_t i = 0; i < engine->job_count && !error; i++) {
		struct serve_job *job = &engine->jobs[i];

		if (!job->waits && job->computed == job->tokens && job->tokens < job->total)
			error = job_grow(engine, job);
	}
	return error;
}

int requests_finish(struct serve_engine *engine)
{
	int error = 0;

	for (uint32_t i = 0; i < engine->job_count && !error;) {
		struct serve_job *job = &engine->jobs[i];

		if (job->waits || job->computed < job->tokens) {
			i++;
			continue;
		}
		if (!job->answered) {
			job->answered = true;
			++*count_of(engine, SERVE_first_tokens);
			*count_of(engine, SERVE_first_token_us) += engine->answer.clock_us - job->came_us;
		}
		if (job->computed == job->total)
			error = job_finish(engine, job);
		else
			i++;
	}
	return error;
}

int requests_give_up(struct serve_engine *engine)
{
	uint64_t sequence;
	struct serve_job *job = gpool_kv_waiting(engine->kv, &sequence) == 0 ? job_of(engine, sequence) : NULL;

	if (job) {
		++*count_of(engine, SERVE_refused);
		return job_end(engine, job);
	}
	if (has_come(engine, engine->next))
		next_refuse(engine);
	return 0;
}
