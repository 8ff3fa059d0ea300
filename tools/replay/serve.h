/*
 * serve.h - requests of a trace served by engine processes on a real agent: parameters, counters, and the messages
 * between the processes of a run.
 *
 *   serve_run      one run: the agent, the engines, their turns           serve_engine   one engine: queue, steps,
 *                  preemption
 *   serve_job      one request: token ids, contents of its blocks         serve_report   table, JSON, chart
 *   serve_routing  the engine that serves a request
 *
 * Time is simulated. An engine computes in steps, each of which takes SERVE_STEP_US, SERVE_PREFILL_US more for each
 * token of a prompt, and SERVE_MOVE_US for each token copied to host memory or back; the engine with the earliest clock
 * continues. The operations of pool and caches are real, and no process sleeps.
 */
#ifndef GPOOL_REPLAY_SERVE_H
#define GPOOL_REPLAY_SERVE_H

#include "tools/lib/prefix_trace.h"

#include <stdbool.h>
#include <stdint.h>

/* Values of the order of a model with 8e9 parameters on a current GPU. */
enum {
	SERVE_STEP_US = 20000,
	SERVE_PREFILL_US = 100,
	SERVE_MOVE_US = 5,
	SERVE_PREFILL_TOKENS = 2048, /* of prompts, per step */
	SERVE_SEQUENCES = 64,        /* of one engine, concurrently */
};

/* Keys and values of a token: so small that a machine without a GPU has memory for long prompts. */
enum { SERVE_LAYERS = 4, SERVE_KV_HEADS = 2, SERVE_HEAD_SIZE = 64, SERVE_DTYPE_BYTES = 2 };
enum { SERVE_TOKEN_BYTES = 2 * SERVE_LAYERS * SERVE_KV_HEADS * SERVE_HEAD_SIZE * SERVE_DTYPE_BYTES };

enum { SERVE_ENGINES_MAX = 16, SERVE_TEXT_BYTES = 256, SERVE_CURVE_POINTS = 400 };

/* The allocation of a request's blocks: as it grows, or at once for its expected size. */
enum serve_growth {
	SERVE_INCREMENTAL,
	SERVE_MEAN,   /* prompt, and the average length of the answers so far */
	SERVE_ORACLE, /* prompt and answer, as stated in the trace */
};
extern const char *const serve_growths[];  /* by name; ended by NULL */
extern const char *const serve_policies[]; /* lru, adaptive; ended by NULL */

/* One run. */
struct serve_setup {
	const struct prefix_trace *trace;
	uint64_t pool_bytes, page_bytes;
	uint64_t host_bytes; /* of each engine, for preempted sequences; 0: they are computed again */
	uint32_t engines;    /* 1..SERVE_ENGINES_MAX */
	/* of trace time: in every second window the last engine receives no request; 0: no windows */
	uint64_t idle_ms;
	uint32_t block_tokens;
	uint32_t watermark_percent; /* of the pool's blocks */
	double speed;               /* factor by which requests arrive faster */
	enum serve_growth growth;
	bool adaptive;
	bool apart; /* engines share no blocks */
	bool progress;
	uint64_t corrupt; /* serve_job.h */
};

/* The counters of an engine. */
#define SERVE_COUNTS(X) \
	X(requests) /* all of this engine */ \
	X(idle_us)  /* time without a request, in which the engine makes no gpool call */ \
	X(finished) \
	X(refused) /* they do not fit into the pool */ \
	X(steps) \
	X(prompt_tokens)     /* of admitted requests */ \
	X(found_tokens)      /* of those: found in the cache */ \
	X(recomputed_tokens) /* after preemptions */ \
	X(generated_tokens)  /* of finished requests */ \
	X(hit_blocks) \
	X(hit_blocks_of_others) /* of those: another engine wrote them */ \
	X(missed_blocks) \
	X(evicted_blocks) /* by the cache itself, to make room */ \
	X(lost_blocks)    /* the agent evicted them, or a block before them */ \
	X(shared_blocks)  /* published in the pool */ \
	X(failed_shares)  /* the pool had no room for more objects, or no memory */ \
	X(preempted)      /* to be computed again */ \
	X(offloaded)      /* to host memory */ \
	X(resumed) \
	X(waits)          /* requests that arrived when there was no memory */ \
	X(wait_us)        /* their sum, up to their admission */ \
	X(first_token_us) /* from arrival to the first token, of all that had one */ \
	X(first_tokens) \
	X(copied_bytes) /* on write, and by packing */ \
	X(saved_bytes)  /* to host memory */ \
	X(loaded_bytes) /* from host memory */ \
	X(table_bytes)  /* to the device */ \
	X(driver_calls) \
	X(verified_blocks) \
	X(wrong_blocks)

#define SERVE_COUNT_ENUM(name) SERVE_##name,
enum serve_count { SERVE_COUNTS(SERVE_COUNT_ENUM) SERVE_COUNT_END };
#undef SERVE_COUNT_ENUM
extern const char *const serve_count_names[SERVE_COUNT_END];

/* A message from the run to an engine. The run ends an engine by closing the channel. */
enum serve_verb {
	SERVE_STEP,
	SERVE_GIVE_UP /* no engine computes, and this engine's first request still finds no memory: refuse it */
};
struct serve_order {
	enum serve_verb verb;
};

enum serve_state {
	SERVE_GOES,  /* it has computed, or waits for arrivals */
	SERVE_WAITS, /* for memory */
	SERVE_DONE,  /* all its requests have ended */
	SERVE_FAILED /* `text` is the reason; it ends */
};

/* Its answer; the first one precedes any order. */
struct serve_answer {
	enum serve_state state;
	bool went;           /* it has computed, or the time advanced to the next request */
	uint32_t used_pages; /* filled by blocks of its sequences */
	uint32_t lent_pages; /* leased to any session; with cached and shared blocks */
	uint64_t clock_us;
	uint64_t counts[SERVE_COUNT_END];
	char text[SERVE_TEXT_BYTES];
};

/* Pages in use over time. */
struct serve_curve {
	double x[SERVE_CURVE_POINTS], y[SERVE_CURVE_POINTS]; /* seconds, pages */
	uint32_t count;
	double step; /* seconds between two points; grows with their number */
};

struct serve_engine_result {
	int pid;
	uint64_t clock_us;
	uint32_t peak_pages;
	double page_us; /* pages in use, summed over time */
	uint64_t counts[SERVE_COUNT_END];
	struct serve_curve curve;
	bool failed;
	char text[SERVE_TEXT_BYTES]; /* failed: the reason */
};

struct serve_result {
	uint64_t duration_us; /* simulated */
	uint64_t real_ns;
	uint32_t pool_pages;
	uint32_t peak_pages; /* in use by all engines at once */
	double mean_pages;
	uint32_t peak_lent_pages;
	uint64_t counts[SERVE_COUNT_END]; /* of all engines */
	struct serve_engine_result engines[SERVE_ENGINES_MAX];
};

/*
 * serve_engine_of() - return the engine that serves a request: all take turns; while the last one is idle, the others
 * do. serve_next() - return the first request of an engine, from `request` on; request_count: none.
 */
uint32_t serve_engine_of(const struct serve_setup *setup, uint32_t request);
uint32_t serve_next(const struct serve_setup *setup, uint32_t engine, uint32_t request);

/*
 * serve_run() - execute one run, with an agent of its own.
 *
 * Return: 0, also if engines have failed (the result contains that); -EINTR; or an error after a complaint.
 */
int serve_run(const struct serve_setup *setup, struct serve_result *result);

/*
 * serve_engine() - run an engine's process. Return: its exit status. `directory`: of the agent; `channel`: to the run.
 */
int serve_engine(const struct serve_setup *setup, uint32_t index, const char *directory, int channel);

#endif
