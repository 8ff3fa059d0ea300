/*
 * board.h - the score board: one memfd that the conductor makes and both engines map; what a killed engine has written
 * stays.
 *
 *   struct board_header | requests[] | marks[]
 *
 * Writers: the conductor fills header and requests before an engine runs. After that each engine writes its own struct
 * board_engine and the marks of its own requests, and the conductor only reads, but for `active`. There are no locks,
 * so an engine may be killed at any instruction: a request counts as finished by one store, the last thing that is done
 * for it.
 *
 * Time in a run is counted in steps, by each engine for itself; no engine is more than BOARD_SLACK_STEPS ahead of the
 * other. So a machine that cannot keep the pace slows down the run as a whole, and does not favour one engine, or one
 * of two runs.
 */
#ifndef GPOOL_DEMO_BOARD_H
#define GPOOL_DEMO_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

enum { BOARD_ENGINES = 2, BOARD_TEXT_BYTES = 256, BOARD_SLACK_STEPS = 4 };

struct board_request {
	uint64_t arrival_us; /* in time of the run, as all times here */
	uint32_t context_tokens;
	uint32_t generated_tokens;
};

/* RUNNING: it holds pages. The conductor turns it back to OPEN when the process was killed. Finished from DONE on. */
enum board_state { BOARD_OPEN, BOARD_RUNNING, BOARD_DONE, BOARD_FAILED };

/* What became of a request. */
struct board_mark {
	_Atomic uint32_t state; /* enum board_state; of a finished request stored last */
	/* times it was started: 1, and one more for each preemption and each kill in the midst of it */
	_Atomic uint32_t lives;
	_Atomic uint64_t wait_us;        /* in the queue because there were no pages; all lives together */
	_Atomic uint64_t first_token_us; /* of the last process that served it */
	_Atomic uint64_t finished_us;
};

/* One engine's part. Counters are kept when the engine is killed and restarted; gauges are reset. */
struct board_engine {
	char name[32];
	char pool[32];
	uint32_t first_request; /* index into requests[] and marks[] */
	uint32_t request_count;

	_Alignas(64) _Atomic uint64_t clock_us; /* how far this engine is; never goes back */
	/* 1: the other engine waits for this one. The conductor clears it when the process ended */
	_Atomic uint32_t active;

	_Atomic uint64_t bytes_written;
	_Atomic uint64_t bytes_verified;
	_Atomic uint64_t waits;             /* times that a request had to wait for pages */
	_Atomic uint64_t preemptions;       /* requests whose pages were taken for an older one; they start over */
	_Atomic uint64_t recomputed_tokens; /* written again after a preemption or a kill */
	_Atomic uint64_t prefix_hits;       /* follow-ups that found their prefix in the cache */
	_Atomic uint64_t prefix_hit_tokens;
	/* prefixes that had been evicted when they were wanted or when their time was over */
	_Atomic uint64_t prefix_losses;
	_Atomic uint64_t errors;        /* verification failures and refusals that must not be */
	_Atomic uint32_t running;       /* gauge: requests that hold pages */
	_Atomic uint32_t waiting;       /* gauge: requests that came and hold none */
	_Atomic uint32_t error_claimed; /* 1: error_text is being written or there */
	_Atomic uint32_t error_ready;
	char error_text[BOARD_TEXT_BYTES]; /* the first error */
};

struct board_header {
	uint64_t bytes; /* of the whole board */
	uint32_t request_count;
	uint32_t conductor; /* process */

	/* How to run; see conductor.h. */
	char directory[108];
	uint32_t page_bytes;
	uint32_t token_bytes;
	uint32_t tokens_per_page;
	uint32_t step_us;        /* one generated token for each running request */
	uint32_t prefill_tokens; /* of context a step */
	uint32_t reuse_every;    /* every so-manyth request continues an earlier one; 0: none */
	uint64_t cache_us;       /* how long the KV of a finished request stays for that */
	uint64_t seed;
	uint64_t corrupt_at; /* flip a byte of the n-th request to finish before it is verified; 0: never */

	_Atomic uint64_t finishing; /* requests that came to verification */
	struct board_engine engines[BOARD_ENGINES];
};

struct board {
	struct board_header *header;
	struct board_request *requests; /* [request_count] */
	struct board_mark *marks;       /* [request_count] */
	int fd;
};

/*
 * board_create() - a new one, zeroed; the descriptor is close-on-exec. Return: 0, or what memfd_create, ftruncate, mmap
 * said.
 */
int board_create(uint32_t request_count, struct board *board);
/* board_open() - map an inherited one. Return: 0, -EINVAL (not a board), or what fstat and mmap said. */
int board_open(int fd, struct board *board);
/* board_close() - unmap; of a created one also close the descriptor. */
void board_close(struct board *board);

/* board_now_us() - time of the run: of the engine that is behind; of the other one when that has ended. */
uint64_t board_now_us(const struct board *board);

/* board_error() - count an error of an engine; the first one's text is kept. */
void board_error(struct board_engine *engine, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline void board_add(_Atomic uint64_t *counter, uint64_t value)
{
	/* Each counter has one writer. */
	atomic_store_explicit(
		counter, atomic_load_explicit(counter, memory_order_relaxed) + value, memory_order_relaxed);
}

#endif
