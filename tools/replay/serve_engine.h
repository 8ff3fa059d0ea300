/*
 * serve_engine.h - the internals of an engine: serve_engine.c computes in steps, serve_requests.c allocates memory to
 * requests.
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
	uint32_t next;      /* next request of the trace to be admitted */
	uint32_t waiting;   /* requests before this one that are not admitted have waited for memory */
	uint64_t *waits_us; /* [request_count] start of the wait; 0: none */
	struct serve_job jobs[SERVE_SEQUENCES];
	uint32_t job_count;
	uint32_t prefilled, moved; /* tokens in this step */
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

/* engine_fail() - set the answer's text to the failed operation, for the first error. Return: the error. */
int engine_fail(struct serve_engine *engine, int error, const char *what, uint32_t request);
/* engine_settle() - wait until all queued work has finished, as a real engine's next step would on its stream. */
int engine_settle(struct serve_engine *engine);

/*
 * arrival_us(), has_come() - return the arrival of a request of the trace, or whether it has arrived. It may be after
 * the last one.
 */
uint64_t arrival_us(const struct serve_engine *engine, uint32_t request);
bool has_come(const struct serve_engine *engine, uint32_t request);

/*
 * Allocation of memory to requests. All return 0 or an error after engine_fail():
 *
 *   requests_admit()    resume preempted ones, then admit new ones in order, while there is memory
 *   requests_grow()     add a token to each request whose tokens are computed; one that gets no block is preempted
 *   requests_preempt()  preempt one, selected by the cache; -ENOENT: none is running
 *   requests_finish()   after a step: handle first and last tokens
 *   requests_give_up()  refuse the first waiting request, which will never get memory
 */
int requests_admit(struct serve_engine *engine);
int requests_grow(struct serve_engine *engine);
int requests_preempt(struct serve_engine *engine);
int requests_finish(struct serve_engine *engine);
int requests_give_up(struct serve_engine *engine);

#endif
