/*
 * serve_job.h - one request in an engine: the ids of its tokens, which the trace decides, and what its blocks contain.
 *
 * A block begins with a mark, which says what all ids up to its last token come to and who wrote it; one that is full
 * ends with the same mark. So a block that is not the right one for these tokens, or was copied in part, is found. On
 * the host back end the CPU writes and reads device addresses.
 */
#ifndef GPOOL_REPLAY_SERVE_JOB_H
#define GPOOL_REPLAY_SERVE_JOB_H

#include "client/gpool.h"
#include "tools/replay/serve.h"

struct serve_job {
	uint32_t request; /* of the trace */
	uint32_t prompt;  /* tokens */
	uint32_t total;   /* prompt and answer */
	uint64_t sequence;
	uint32_t *ids;      /* [total] */
	uint32_t tokens;    /* that the sequence has */
	uint32_t computed;  /* of those: their keys and values are there */
	uint32_t published; /* blocks */
	uint32_t stops;     /* how often it was preempted */
	uint64_t chain;     /* what ids[0..computed) come to */
	uint64_t came_us;
	bool waits;    /* it is preempted */
	bool saved;    /* and what it had computed is in host memory */
	bool shared;   /* its prompt's blocks were given to the pool */
	bool answered; /* it has its first token */
};

/* serve_job_begin() - ids and lengths of a request; serve_job_end() frees them. 0, -ENOMEM. */
int serve_job_begin(struct serve_job *job, const struct prefix_trace *trace, uint32_t request);
void serve_job_end(struct serve_job *job);

/* serve_prompt(), serve_total() - tokens of a request, at least 1 each way. */
uint32_t serve_prompt(const struct prefix_request *request);
uint64_t serve_total(const struct prefix_request *request);

/* Where blocks are, and who writes. */
struct serve_memory {
	struct gpool_kv *kv;
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint32_t writer;
	/* full blocks until one gets a wrong mark, which a test expects to be found; 0: none */
	uint64_t corrupt;
};

/* serve_job_found() - its first `tokens` tokens are cached. serve_job_restart() - none is any more. */
void serve_job_found(struct serve_job *job, const struct serve_memory *memory, uint32_t tokens);
void serve_job_restart(struct serve_job *job);

/*
 * serve_job_compute() - compute `tokens` more tokens: write the marks of their blocks. 0, or what gpool_kv_table() and
 * gpool_kv_address()
 * say.
 */
int serve_job_compute(struct serve_job *job, struct serve_memory *memory, uint32_t tokens);

/*
 * serve_job_verify() - the blocks of what is computed.
 * @counts: of an engine; verified_blocks and wrong_blocks grow
 * @others: receives how many another engine wrote
 * @wrong:  [SERVE_TEXT_BYTES] receives the first wrong one in words; else it is not touched
 */
int serve_job_verify(const struct serve_job *job, const struct serve_memory *memory, uint64_t *counts, uint32_t *others,
	char *wrong);

#endif
