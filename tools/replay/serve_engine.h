/*
 * serve_engine.h - internals of an engine, shared by serve_engine.c, which computes steps, and serve_requests.c, which
 * allocates memory to requests.
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
	uint32_t next;      /* the next request of the trace to be admitted */
	uint32_t waiting;   /* requests below this number that are not admitted have waited for memory */
	uint64_t *waits_us; /* [request_count] start of each request's wait; 0: no wait */
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

/* engine_fail() - describe the failed operation in the answer's text, for the first error only. Return: the error. */
int engine_fail(struct serve_engine *engine, int error, const char *what, uint32_t request);
/*
 * engine_settle() - wait until all queued work has finished. A real engine does not need this wait: its next step is
 * queued on the same stream.
 */
int engine_settle(struct serve_engine *engine);

/*
 * arrival_us() - return the arrival of a request.
 * has_come() - return true if it has arrived. `request` may be past the last one.
 */
uint64_t arrival_us(const struct serve_engine *engine, uint32_t request);
bool has_come(const struct serve_engine *engine, uint32_t request);

/*
 * Allocation of memory to requests. All functions return 0, or an error after engine_fail():
 *
 *   requests_admit()    resume preempted requests, then admit new ones in order, while there is memory
 *   requests_grow()     add a token to each request whose tokens are computed; preempt a request if there is no block
 *   requests_preempt()  preempt the request that the cache selects; -ENOENT: none is running
 *   requests_finish()   after a step, handle first and last tokens
 *   requests_give_up()  refuse the first waiting request, which can never get memory
 */
int requests_admit(struct serve_engine *engine);
int requests_grow(struct serve_engine *engine);
int requests_preempt(struct serve_engine *engine);
int requests_finish(struct serve_engine *engine);
int requests_give_up(struct serve_engine *engine);

#endif
