/*
 * run.h - one run of both traces: its parameters and its results.
 */
#ifndef GPOOL_DEMO_RUN_H
#define GPOOL_DEMO_RUN_H

#include "tools/demo/board.h"
#include "tools/demo/model.h"
#include "tools/lib/request_trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The parameters of both runs: on the shared pool, and on the split pool. */
struct plan {
	const char *program; /* path of this program, which is also executed as an engine */
	const char *gpoold;
	struct trace traces[BOARD_ENGINES];
	char trace_source[256];
	struct model model;
	const char *backend;
	uint64_t page_bytes;
	uint32_t page_count; /* pages of the shared pool; each half of the split pool has half as many */
	uint32_t tokens_per_page;
	double speed;        /* requests arrive this number of times as fast as in the trace */
	double load;         /* each step takes this number of times as long as at load 1 */
	double kill_every_s; /* mean interval; 0: no kills */
	uint64_t seed;
	uint64_t corrupt_at;
	uint32_t step_us;
	/* time of the run: engine 0 has no requests for idle_us, then engine 1; 0: never */
	uint64_t idle_from_us, idle_us;
	bool keep;  /* do not stop the agent */
	bool quiet; /* do not print the progress */
};

/*
 * plan_arrival_us() - return the time of the run at which a request arrives. trace_us: its arrival in the trace, since
 * the first request. The requests of the two idle times arrive, twice as fast, in the half in which their engine is not
 * idle.
 */
uint64_t plan_arrival_us(const struct plan *plan, uint32_t engine, uint64_t trace_us);
/* plan_idle_from_us() - return the time of the run at which an engine's idle time begins; it lasts idle_us. */
uint64_t plan_idle_from_us(const struct plan *plan, uint32_t engine);

enum {
	PLAN_STEP_US = 30 * 1000,   /* at the pace of the trace; served models typically generate a token every 30 ms */
	PLAN_PREFILL_TOKENS = 4096, /* tokens of context per step, as engines process it in chunks */
	PLAN_REUSE_EVERY = 4,       /* every fourth request continues an earlier one */
	PLAN_CACHE_S = 60,          /* at the pace of the trace */
	/*
	 * number of parts of the run: engine 0 is idle in the second and engine 1 in the third; in the other parts,
	 * both receive requests as in the trace
	 */
	PLAN_IDLE_PARTS = 4,
};

/* Both engines at one time: their pages, as counted by the agent, and their queues. */
struct run_sample {
	uint64_t time_us;
	struct {
		uint32_t needed_pages;  /* of running requests */
		uint32_t offered_pages; /* unpinned KV of finished requests, kept until the pages are needed */
		uint32_t idle_pages;    /* without content */
		uint32_t running, waiting;
	} engines[BOARD_ENGINES];
};

struct run_kill {
	uint64_t time_us;
	uint32_t engine;
};

/* Totals over the requests of one engine, or of both. */
struct run_score {
	uint64_t requests, finished, failed;
	uint64_t tokens;    /* of finished requests */
	uint64_t restarted; /* requests that held pages when their process was killed */
	uint64_t waits, wait_us;
	uint64_t wait_p99_us;
	/* mean and 99th percentile of the time from arrival to the first token */
	uint64_t first_token_us, first_token_p99_us;
	uint64_t preemptions, recomputed_tokens;
	uint64_t prefix_hits, prefix_hit_tokens, prefix_losses;
	uint64_t bytes_written, bytes_verified;
	uint64_t errors;
};

/* The agent's counters, over all its pools. */
struct run_agent {
	uint64_t evictions, evicted_pages;
	uint64_t grants, reclaims, refusals, deaths;
	uint64_t left_pages;              /* still leased after both engines have ended */
	uint64_t pages_checked, findings; /* of the final check of all invariants */
	char finding[256];
};

struct run {
	bool split;
	bool complete;       /* every request finished */
	bool interrupted;    /* by a signal */
	double seconds;      /* time of the run, which is counted in steps */
	double wall_seconds; /* real time; longer if the machine was too slow */
	struct run_score engines[BOARD_ENGINES], total;
	struct run_agent agent;
	uint32_t peak_pages, peak_needed_pages; /* maximum over the samples, both engines together */
	double mean_pages, mean_needed_pages;
	/* maximum number of pages of this engine's half that the other engine leased while this one was idle */
	uint32_t gave_pages[BOARD_ENGINES];
	struct run_sample *samples; /* [sample_count] */
	uint32_t sample_count, sample_capacity;
	struct run_kill *kills; /* [kill_count] */
	uint32_t kill_count, kill_capacity;
	uint64_t missed_samples; /* samples for which the agent did not answer */
	uint64_t errors;         /* errors of all kinds; the exit status is 0 only if there are no errors */
	char error_text[512];    /* the first one */
};

/* run_error() - count an error and keep the text of the first one. */
void run_error(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* run_add_sample(), run_add_kill() - append an element; running out of memory is an error of the run. */
void run_add_sample(struct run *run, const struct run_sample *sample);
void run_add_kill(struct run *run, const struct run_kill *kill);

/* run_add_up() - compute scores, peaks and means from the board and the samples. */
void run_add_up(struct run *run, const struct plan *plan, const struct board *board);

void run_destroy(struct run *run);

#endif
