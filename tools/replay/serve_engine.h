/*
 * serve_engine.h - the inside of an engine: serve_engine.c computes in steps, serve_requests.c decides which requests
 * have memory.
 */
#ifndef GPOOL_REPLAY_SERVE_ENGINE_H
#define GPOOL_REPLAY_SERVE_ENGINE_H

#include "tools/replay/serve_job.h"

#include <errno.h>

struct serve_engine {
	const struct serve_setup *setup;
	uint32_t index;
	struct gpool *pool;
	uint32_t stream;
	struct gpool_kv *kv;
	struct serve_memory memory;
	uint32_t next;      /* request of the trace to be admitted */
	uint32_t waiting;   /* requests before this one have waited for memory, if they are not admitted */
	uint64_t *waits_us; /* [request_count] since when; 0: it does not */
	struct serve_job jobs[SERVE_SEQUENCES];
	uint32_t job_count;
	uint32_t prefilled, moved; /* tokens, in this step */
	struct serve_answer answer;
};

static inline uint64_t *count_of(struct serve_engine *engine, enum serve_count count)
{
	return &engine->answer.counts[count];
}

static inline bool is_shortage(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

/* engine_fail() - the error, after the answer's text says what could not be done; the first one counts. */
int engine_fail(struct serve_engine *engine, int error, const char *what, uint32_t request);
/* engine_settle() - all that is queued is done; a real engine's next step would be behind it on the stream. */
int engine_settle(struct serve_engine *engine);

/* arrival_us(), has_come() - of a request of the trace, which may be behind the last one. */
uint64_t arrival_us(const struct serve_engine *engine, uint32_t request);
bool has_come(const struct serve_engine *engine, uint32_t request);

/*
 * Which requests have memory, all of them 0 or an error after engine_fail():
 *   requests_admit()    resumes what was preempted, and then admits new ones in their order, while there is memory
 *   requests_grow()     a token more for each whose tokens are computed; what finds no block preempts
 *   requests_preempt()  one gives way, of the cache's choice; -ENOENT: none runs
 *   requests_finish()   behind a step: what has its first token now, or its last one
 *   requests_give_up()  the first that waits never gets memory
 */
int requests_admit(struct serve_engine *engine);
int requests_grow(struct serve_engine *engine);
int requests_preempt(struct serve_engine *engine);
int requests_finish(struct serve_engine *engine);
int requests_give_up(struct serve_engine *engine);

#endif
