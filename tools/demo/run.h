/*
 * run.h - one run of both traces: what it was to do, and what came of it.
 */
#ifndef GPOOL_DEMO_RUN_H
#define GPOOL_DEMO_RUN_H

#include "tools/demo/board.h"
#include "tools/demo/model.h"
#include "tools/lib/request_trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What both runs, on the shared and on the split pool, have in common. */
struct plan {
	const char *program; /* this program's path, to start engines */
	const char *gpoold;
	struct trace traces[BOARD_ENGINES];
	char trace_source[256];
	struct model model;
	uint64_t page_bytes;
	uint32_t page_count; /* of the shared pool; each half of the split one has half of them */
	uint32_t tokens_per_page;
	double speed;        /* factor by which arrivals are faster than in the trace */
	double load;         /* and steps are so much slower against them */
	double kill_every_s; /* mean; 0: no kills */
	uint64_t seed;
	uint64_t corrupt_at;
	uint32_t step_us;
	/* in time of the run: engine 0 has no requests for idle_us, then engine 1; 0: neither */
	uint64_t idle_from_us, idle_us;
	bool keep;  /* leave the agent running */
	bool quiet; /* no progress */
};

/*
 * plan_arrival_us() - time of the run at which a request arrives that comes at `trace_us` in the trace, from its first
 * request on. The requests of the two idle times together arrive in the half in which their engine is not idle, twice
 * as fast.
 */
uint64_t plan_arrival_us(const struct plan *plan, uint32_t engine, uint64_t trace_us);
/* plan_idle_from_us() - time of the run from which on an engine has no requests for idle_us. */
uint64_t plan_idle_from_us(const struct plan *plan, uint32_t engine);

enum {
	PLAN_STEP_US = 30 * 1000,   /* at the trace's pace; a token every 30 ms is common for a served model */
	PLAN_PREFILL_TOKENS = 4096, /* of context a step; chosen, as engines chunk it */
	PLAN_REUSE_EVERY = 4,       /* every fourth request continues an earlier one; chosen */
	PLAN_CACHE_S = 60,          /* at the trace's pace; chosen */
	/* the first part as in the trace, then engine 0 idle, engine 1 idle, as in the trace; chosen */
	PLAN_IDLE_PARTS = 4,
};

/* The pages of both engines at one moment, as the agent counts them, and their queues. */
struct run_sample {
	uint64_t time_us;
	struct {
		uint32_t needed_pages;  /* of running requests */
		uint32_t offered_pages; /* unpinned KV of finished requests, kept until the page is needed */
		uint32_t idle_pages;    /* no content */
		uint32_t running, waiting;
	} engines[BOARD_ENGINES];
};

struct run_kill {
	uint64_t time_us;
	uint32_t engine;
};

/* Sums over the requests of one engine, or of both. */
struct run_score {
	uint64_t requests, finished, failed;
	uint64_t tokens;    /* of finished requests */
	uint64_t restarted; /* times that a request held pages when its process was killed */
	uint64_t waits, wait_us;
	uint64_t wait_p99_us;
	/* mean and 99th percentile of the time from arrival to the first token */
	uint64_t first_token_us, first_token_p99_us;
	uint64_t preemptions, recomputed_tokens;
	uint64_t prefix_hits, prefix_hit_tokens, prefix_losses;
	uint64_t bytes_written, bytes_verified;
	uint64_t errors;
};

/* What the agent counted, over all its pools. */
struct run_agent {
	uint64_t evictions, evicted_pages;
	uint64_t grants, reclaims, refusals, deaths;
	uint64_t left_pages;              /* still lent after both engines had ended */
	uint64_t pages_checked, findings; /* of the check of all invariants at the end */
	char finding[256];
};

struct run {
	bool split;
	bool complete;       /* every request finished */
	bool interrupted;    /* by a signal */
	double seconds;      /* in time of the run, which is counted in steps */
	double wall_seconds; /* as the clock on the wall says; longer where the machine could not keep the pace */
	struct run_score engines[BOARD_ENGINES], total;
	struct run_agent agent;
	uint32_t peak_pages, peak_needed_pages; /* highest sample of both engines together */
	double mean_pages, mean_needed_pages;
	/* of its half, that the other engine leased at once while this one was idle, at most */
	uint32_t gave_pages[BOARD_ENGINES];
	struct run_sample *samples; /* [sample_count] */
	uint32_t sample_count, sample_capacity;
	struct run_kill *kills; /* [kill_count] */
	uint32_t kill_count, kill_capacity;
	uint64_t missed_samples; /* the agent did not answer */
	uint64_t errors;         /* all kinds; 0 is what the exit status asks for */
	char error_text[512];    /* the first */
};

/* run_error() - count an error and keep the first one's text. */
void run_error(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append; an element that finds no memory is an error of the run. */
void run_add_sample(struct run *run, const struct run_sample *sample);
void run_add_kill(struct run *run, const struct run_kill *kill);

/* run_add_up() - compute scores, peaks and means from the board and the samples. */
void run_add_up(struct run *run, const struct plan *plan, const struct board *board);

void run_destroy(struct run *run);

#endif
