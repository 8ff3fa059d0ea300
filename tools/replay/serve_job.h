/*
 * serve_job.h - one request in an engine: the ids of its tokens, which depend on the trace, and the content of its
 * blocks.
 *
 * A block begins with a mark, which contains the writer and a hash of all ids up to the block's last token. A full
 * block also ends with this mark. A block with the content of other tokens, or one that was copied in part, is
 * therefore detected. On the host back end the CPU reads and writes device addresses.
 */
#ifndef GPOOL_REPLAY_SERVE_JOB_H
#define GPOOL_REPLAY_SERVE_JOB_H

#include "client/gpool.h"
#include "tools/replay/serve.h"

struct serve_job {
	uint32_t request; /* index in the trace */
	uint32_t prompt;  /* tokens */
	uint32_t total;   /* prompt and answer */
	uint64_t sequence;
	uint32_t *ids;      /* [total] */
	uint32_t tokens;    /* in the sequence */
	uint32_t computed;  /* tokens whose keys and values have been written */
	uint32_t published; /* blocks */
	uint32_t stops;     /* number of preemptions */
	uint64_t chain;     /* hash of ids[0..computed) */
	uint64_t came_us;
	bool waits;    /* the request is preempted */
	bool saved;    /* the request is preempted, and its computed tokens are in host memory */
	bool shared;   /* the blocks of its prompt were published in the pool */
	bool answered; /* the request has its first token */
};

/*
 * serve_job_begin() - create the ids and lengths of a request. Return: 0 or -ENOMEM.
 * serve_job_end() - free them.
 */
int serve_job_begin(struct serve_job *job, const struct prefix_trace *trace, uint32_t request);
void serve_job_end(struct serve_job *job);

/* serve_total() - return the number of tokens of a request's prompt and answer, at least 1 each. */
uint64_t serve_total(const struct prefix_request *request);

/* The memory of the blocks, and their writer. */
struct serve_memory {
	struct gpool_kv *kv;
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint32_t writer;
	/* full blocks until one gets a wrong mark, to test the verification; 0: none */
	uint64_t corrupt;
};

/*
 * serve_job_found() - record that the first `tokens` tokens are cached.
 * serve_job_restart() - record that no token is.
 */
void serve_job_found(struct serve_job *job, const struct serve_memory *memory, uint32_t tokens);
void serve_job_restart(struct serve_job *job);

/*
 * serve_job_compute() - compute `tokens` more tokens: write the marks of their blocks. Return: 0, or an error of
 * gpool_kv_table() or gpool_kv_address().
 */
int serve_job_compute(struct serve_job *job, struct serve_memory *memory, uint32_t tokens);

/*
 * serve_job_verify() - verify the blocks of computed tokens.
 *
 * @counts: of an engine; verified_blocks and wrong_blocks are increased
 * @others: receives the number of blocks written by another engine
 * @wrong:  [SERVE_TEXT_BYTES] receives a description of the first wrong block; unchanged if there is none
 */
int serve_job_verify(const struct serve_job *job, const struct serve_memory *memory, uint64_t *counts, uint32_t *others,
	char *wrong);

#endif
