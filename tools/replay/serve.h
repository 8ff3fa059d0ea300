/*
 * serve.h - requests of a trace, served by engine processes on a real agent: parameters, counters, and the messages
 * between the processes of a run.
 *
 *   serve_run       one run: the agent, the engines, their turns
 *   serve_engine    one engine: its steps
 *   serve_requests  admission, growth and preemption of its requests
 *   serve_job       one request: its token ids, the content of its blocks
 *   serve_routing   the engine that serves a request
 *   serve_report    table, JSON, chart
 *
 * Time is simulated. An engine computes in steps. A step takes SERVE_STEP_US, plus SERVE_PREFILL_US for each token of a
 * prompt, plus SERVE_MOVE_US for each token copied to or from host memory. The engine with the earliest clock runs
 * next. The operations of pool and caches are real, and no process sleeps to let simulated time pass.
 */
#ifndef GPOOL_REPLAY_SERVE_H
#define GPOOL_REPLAY_SERVE_H

#include "tools/lib/prefix_trace.h"

#include <stdbool.h>
#include <stdint.h>

/* Values typical of a model with 8e9 parameters on a current GPU. */
enum {
	SERVE_STEP_US = 20000,
	SERVE_PREFILL_US = 100,
	SERVE_MOVE_US = 5,
	SERVE_PREFILL_TOKENS = 2048, /* prompt tokens per step */
	SERVE_SEQUENCES = 64,        /* concurrent sequences of one engine */
};

/* Keys and values of a token: small, so that a machine without a GPU has enough memory for long prompts. */
enum { SERVE_LAYERS = 4, SERVE_KV_HEADS = 2, SERVE_HEAD_SIZE = 64, SERVE_DTYPE_BYTES = 2 };
enum { SERVE_TOKEN_BYTES = 2 * SERVE_LAYERS * SERVE_KV_HEADS * SERVE_HEAD_SIZE * SERVE_DTYPE_BYTES };

enum { SERVE_ENGINES_MAX = 16, SERVE_TEXT_BYTES = 256, SERVE_CURVE_POINTS = 400 };

/* When the blocks of a request are allocated: as the request grows, or at admission for its expected size. */
enum serve_growth {
	SERVE_INCREMENTAL,
	SERVE_MEAN,   /* prompt plus the average length of the finished answers */
	SERVE_ORACLE, /* prompt plus answer, as stated in the trace */
};
extern const char *const serve_growths[];  /* their names, terminated by NULL */
extern const char *const serve_policies[]; /* "lru" and "adaptive", terminated by NULL */

/* The parameters of one run. */
struct serve_setup {
	const struct prefix_trace *trace;
	uint64_t pool_bytes, page_bytes;
	uint64_t host_bytes; /* of each engine, for preempted sequences; 0: preempted sequences are computed again */
	uint32_t engines;    /* 1..SERVE_ENGINES_MAX */
	/*
	 * length of a window of trace time: in every second window, the last engine receives no requests; 0: no windows
	 */
	uint64_t idle_ms;
	uint32_t block_tokens;
	uint32_t watermark_percent; /* percentage of the pool's blocks */
	double speed;               /* speed of the replay; 1: at the recorded arrival times */
	enum serve_growth growth;
	bool adaptive;
	bool apart; /* engines do not share blocks */
	bool progress;
	uint64_t corrupt; /* see serve_job.h */
};

/* The counters of an engine. */
#define SERVE_COUNTS(X) \
	X(requests) /* total of this engine */ \
	X(idle_us)  /* time without a request, in which the engine does not call gpool */ \
	X(finished) \
	X(refused) /* requests that do not fit into the pool */ \
	X(steps) \
	X(prompt_tokens)     /* of admitted requests */ \
	X(found_tokens)      /* of these, found in the cache */ \
	X(recomputed_tokens) /* computed again after preemptions */ \
	X(generated_tokens)  /* of finished requests */ \
	X(hit_blocks) \
	X(hit_blocks_of_others) /* of these, written by another engine */ \
	X(missed_blocks) \
	X(evicted_blocks) /* evicted by the cache to make room */ \
	X(lost_blocks)    /* lost because the agent evicted them, or a block before them */ \
	X(shared_blocks)  /* published in the pool */ \
	X(failed_shares)  /* not shared, because the pool had no room for more objects or no memory */ \
	X(preempted)      /* to be computed again */ \
	X(offloaded)      /* saved to host memory */ \
	X(resumed) \
	X(waits)          /* requests that arrived when there was no memory */ \
	X(wait_us)        /* total time of these until their admission */ \
	X(first_token_us) /* total from arrival to the first token, of all requests with a first token */ \
	X(first_tokens) \
	X(copied_bytes) /* by copy on write, and by packing */ \
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
	SERVE_GIVE_UP /* refuse this engine's first request: no engine computes, and the request still finds no
		       * memory */
};
struct serve_order {
	enum serve_verb verb;
};

enum serve_state {
	SERVE_GOES,  /* the engine has computed, or waits for arrivals */
	SERVE_WAITS, /* the engine waits for memory */
	SERVE_DONE,  /* all requests of the engine have ended */
	SERVE_FAILED /* the engine ends; `text` is the reason */
};

/* An engine's answer. The first one is sent before any order. */
struct serve_answer {
	enum serve_state state;
	bool went;           /* the engine has computed, or its time has advanced to the next request */
	uint32_t used_pages; /* filled by blocks of its sequences */
	uint32_t lent_pages; /* leased to any session, including cached and shared blocks */
	uint64_t clock_us;
	uint64_t counts[SERVE_COUNT_END];
	char text[SERVE_TEXT_BYTES];
};

/* Pages in use over time. */
struct serve_curve {
	double x[SERVE_CURVE_POINTS], y[SERVE_CURVE_POINTS]; /* seconds, pages */
	uint32_t count;
	double step; /* seconds between two points; it grows, so that the number of points is bounded */
};

struct serve_engine_result {
	int pid;
	uint64_t clock_us;
	uint32_t peak_pages;
	double page_us; /* integral of the pages in use over time */
	uint64_t counts[SERVE_COUNT_END];
	struct serve_curve curve;
	bool failed;
	char text[SERVE_TEXT_BYTES]; /* the reason of a failure */
};

struct serve_result {
	uint64_t duration_us; /* simulated time */
	uint64_t real_ns;
	uint32_t pool_pages;
	uint32_t peak_pages; /* maximum in use by all engines together */
	double mean_pages;
	uint32_t peak_lent_pages;
	uint64_t counts[SERVE_COUNT_END]; /* totals of all engines */
	struct serve_engine_result engines[SERVE_ENGINES_MAX];
};

/*
 * serve_engine_of() - return the engine that serves a request. Engines take turns; while the last one is idle, the
 * others take turns.
 * serve_next() - return the first request of an engine from `request` on; request_count: none.
 */
uint32_t serve_engine_of(const struct serve_setup *setup, uint32_t request);
uint32_t serve_next(const struct serve_setup *setup, uint32_t engine, uint32_t request);

/*
 * serve_run() - execute one run, with its own agent.
 *
 * Return: 0, even if engines have failed, which the result states; -EINTR; or negative errno after printing the error.
 */
int serve_run(const struct serve_setup *setup, struct serve_result *result);

/*
 * serve_engine() - run an engine's process. directory: the agent's sockets; channel: to the run. Return: the exit
 * status.
 */
int serve_engine(const struct serve_setup *setup, uint32_t index, const char *directory, int channel);

#endif
