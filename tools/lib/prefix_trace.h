/*
 * prefix_trace.h - a trace of requests to a language model, by the prefixes that their prompts share.
 *
 * As text, it has one JSON object per line:
 *
 * 	{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
 *
 *   timestamp      milliseconds, on any clock; it never decreases
 *   input_length   tokens of the prompt
 *   output_length  tokens of the answer
 *   hash_ids       a number for each block of the prompt; equal numbers after equal prefixes denote the same block
 *
 * Numbers are integers from 0 to 2^53, lengths up to 2^31. Other members and empty lines are ignored. In memory, a
 * request is a path in a tree, whose nodes are the different blocks after each prefix. An invalid trace is rejected;
 * the error message contains its name and the line.
 */
#ifndef GPOOL_TOOLS_LIB_PREFIX_TRACE_H
#define GPOOL_TOOLS_LIB_PREFIX_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	PREFIX_TRACE_BLOCKS_MAX = 1 << 24, /* total of all requests; if all blocks differ, reading them needs 1 GiB */
	PREFIX_TRACE_REQUESTS_MAX = 1 << 24,
	PREFIX_TRACE_LINE_MAX = 4 << 20, /* bytes; a prompt of 400,000 blocks */
	PREFIX_TRACE_ERROR_BYTES = 512,
};

#define PREFIX_TRACE_NONE UINT32_MAX

struct prefix_request {
	uint64_t time_ms;      /* since the first request */
	uint32_t first, count; /* its blocks: blocks[first] on */
	uint32_t input_tokens, output_tokens;
};

struct prefix_trace {
	struct prefix_request *requests;
	uint32_t *blocks; /* [block_count] nodes; those of each request in the order of its prompt */
	uint32_t request_count, block_count;
	uint32_t node_count;
	uint32_t longest; /* number of blocks of the longest request */
	uint32_t request_room, block_room;
};

/*
 * prefix_trace_read() - read a trace from text.
 * prefix_trace_load() - read it from a file; "-": standard input.
 *
 * @name:  name of the text in error messages
 * @limit: maximum number of requests to read; 0: all
 * @error: [PREFIX_TRACE_ERROR_BYTES] receives the error, with name and line
 *
 * Return: 0, -EINVAL (not a trace), -ENOMEM, or the errno of opening and reading.
 */
int prefix_trace_read(FILE *file, const char *name, uint64_t limit, struct prefix_trace *trace, char *error);
int prefix_trace_load(const char *path, uint64_t limit, struct prefix_trace *trace, char *error);

/* prefix_trace_free() - free a trace; an all-zero struct is permitted. */
void prefix_trace_free(struct prefix_trace *trace);

#endif
