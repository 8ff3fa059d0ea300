/*
 * board.h - the score board: a memfd that the conductor creates and both engines map. The entries of a killed engine
 * remain.
 *
 *   struct board_header | requests[] | marks[]
 *
 * Writers: the conductor fills the header and the requests before an engine runs. After that, each engine writes its
 * own struct board_engine, the marks of its own requests, and `finishing`. The conductor only reads, except that it
 * resets `active`, `running` and the states of running requests when an engine has ended. There are no locks, so an
 * engine may be killed at any instruction. The last store for a request marks it as finished.
 *
 * Time: each engine counts the time of the run in steps, and no engine is more than BOARD_SLACK_STEPS ahead of the
 * other, while that one runs. A machine that is too slow therefore slows down the whole run, and favors neither an
 * engine nor one of two runs.
 */
#ifndef GPOOL_DEMO_BOARD_H
#define GPOOL_DEMO_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

enum { BOARD_ENGINES = 2, BOARD_TEXT_BYTES = 256, BOARD_SLACK_STEPS = 4 };

struct board_request {
	uint64_t arrival_us; /* time of the run, like all times in this file */
	uint32_t context_tokens;
	uint32_t generated_tokens;
};

/*
 * In state RUNNING, the request holds pages. If the process is killed, the conductor sets the state to OPEN. DONE and
 * FAILED are final.
 */
enum board_state { BOARD_OPEN, BOARD_RUNNING, BOARD_DONE, BOARD_FAILED };

/* The result of a request. */
struct board_mark {
	_Atomic uint32_t state; /* enum board_state; the last store for a finished request */
	/* number of starts: 1, plus one for each preemption and each kill of the running request */
	_Atomic uint32_t lives;
	_Atomic uint64_t wait_us;        /* time in the queue for lack of pages, over all lives */
	_Atomic uint64_t first_token_us; /* in the process that served the request last */
	_Atomic uint64_t finished_us;
};

/* The part of one engine. When the engine is killed and restarted, counters are kept and gauges are reset. */
struct board_engine {
	char name[32];
	char pool[32];
	uint32_t first_request; /* index into requests[] and marks[] */
	uint32_t request_count;

	_Alignas(64) _Atomic uint64_t clock_us; /* time of this engine; it never decreases */
	/* 1: the other engine waits for this engine. The conductor clears the field when the process has ended */
	_Atomic uint32_t active;

	_Atomic uint64_t bytes_written;
	_Atomic uint64_t bytes_verified;
	_Atomic uint64_t waits;       /* requests that had to wait for pages */
	_Atomic uint64_t preemptions; /* requests that lost their pages to an older request and were started again */
	_Atomic uint64_t recomputed_tokens; /* written again after a preemption or a kill */
	_Atomic uint64_t prefix_hits;       /* follow-ups that found their prefix in the cache */
	_Atomic uint64_t prefix_hit_tokens;
	/* prefixes that were evicted before they were used or had expired */
	_Atomic uint64_t prefix_losses;
	_Atomic uint64_t errors;        /* verification failures and unexpected refusals */
	_Atomic uint32_t running;       /* gauge: requests that hold pages */
	_Atomic uint32_t waiting;       /* gauge: requests that have arrived and hold no pages */
	_Atomic uint32_t error_claimed; /* 1: error_text is being written or complete */
	_Atomic uint32_t error_ready;
	char error_text[BOARD_TEXT_BYTES]; /* the first error */
};

struct board_header {
	uint64_t bytes; /* of the whole board */
	uint32_t request_count;
	uint32_t conductor; /* process id */

	/* Parameters of the run; see conductor.h. */
	char directory[108];
	uint32_t page_bytes;
	uint32_t token_bytes;
	uint32_t tokens_per_page;
	uint32_t step_us;        /* duration of a step, which generates one token of each running request */
	uint32_t prefill_tokens; /* tokens of context per step */
	uint32_t reuse_every;    /* every n-th request continues an earlier one; 0: none */
	uint64_t cache_us;       /* time for which the KV of a finished request is kept for continuations */
	uint64_t seed;
	uint64_t corrupt_at; /* flip one bit of the n-th request to finish before it is verified; 0: never */

	_Atomic uint64_t finishing; /* requests that have reached verification */
	struct board_engine engines[BOARD_ENGINES];
};

struct board {
	struct board_header *header;
	struct board_request *requests; /* [request_count] */
	struct board_mark *marks;       /* [request_count] */
	int fd;
};

/*
 * board_create() - create a zeroed board with a close-on-exec descriptor. Return: 0, or the errno of memfd_create,
 * ftruncate or mmap.
 */
int board_create(uint32_t request_count, struct board *board);
/* board_open() - map an inherited board. Return: 0, -EINVAL (not a board), or the errno of fstat or mmap. */
int board_open(int fd, struct board *board);
/* board_close() - unmap a board; also close the descriptor of a created board. */
void board_close(struct board *board);

/*
 * board_now_us() - return the time of the run: that of the slower engine, or of the other one if an engine has ended.
 */
uint64_t board_now_us(const struct board *board);

/* board_error() - count an error of an engine; the text of the first one is kept. */
void board_error(struct board_engine *engine, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline void board_add(_Atomic uint64_t *counter, uint64_t value)
{
	/* Each counter has one writer. */
	atomic_store_explicit(
		counter, atomic_load_explicit(counter, memory_order_relaxed) + value, memory_order_relaxed);
}

#endif
