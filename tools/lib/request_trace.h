/*
 * request_trace.h - a trace of requests to one service: their arrivals, and their context and generated tokens.
 *
 * The format is the one of the Azure LLM inference trace 2023: a header line, then
 * TIMESTAMP,ContextTokens,GeneratedTokens, in order of time. A file with another format is rejected; the error has its
 * name and line.
 */
#ifndef GPOOL_TOOLS_LIB_REQUEST_TRACE_H
#define GPOOL_TOOLS_LIB_REQUEST_TRACE_H

#include <stddef.h>
#include <stdint.h>

enum {
	TRACE_NAME_BYTES = 32,
	TRACE_ERROR_BYTES = 512,
	TRACE_REQUESTS_MAX = 10 * 1000 * 1000, /* 160 MB in memory */
	/* per request and direction; far above the context of current models */
	TRACE_TOKENS_MAX = 1 << 20,
};

struct trace_request {
	int64_t arrival_us; /* since 1970, UTC */
	uint32_t context_tokens;
	uint32_t generated_tokens;
};

struct trace {
	char name[TRACE_NAME_BYTES];    /* name of the file without "azure_" and ".csv" */
	struct trace_request *requests; /* [count], in order of arrival */
	uint32_t count;
};

/*
 * trace_load() - read one file.
 *
 * @error: [TRACE_ERROR_BYTES] receives "FILE:LINE: description" on failure
 *
 * Return: 0, -EINVAL (not a trace), -ENOMEM, or the errno of open and read. *trace changes only on success; free it
 * with trace_free().
 */
int trace_load(const char *path, struct trace *trace, char *error);
void trace_free(struct trace *trace);

/*
 * trace_name() - return the name that trace_load() gives to `path`. Return: 0, or -EINVAL if the name is empty, too
 * long or not [a-z0-9_-].
 */
int trace_name(const char *path, char name[TRACE_NAME_BYTES]);

/*
 * trace_cut() - truncate up to 8 traces together: keep the requests within duration_us of the first request, and of
 * these the first `limit` in order of arrival. A duration or a limit of 0 means no limit.
 */
void trace_cut(struct trace *traces, size_t count, uint64_t duration_us, uint64_t limit);

/* trace_span() - return the first and the last arrival of several traces; 0 and 0 if they are empty. */
void trace_span(const struct trace *traces, size_t count, int64_t *first_us, int64_t *last_us);

/* trace_tokens() - return the total of context and generated tokens. */
uint64_t trace_tokens(const struct trace *trace);

#endif
