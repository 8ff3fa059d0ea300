#include "tools/replay/serve_job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TRACE_BLOCK_TOKENS = 512 /* tokens per block in the trace's hash_ids */ };

struct mark {
	uint64_t chain;
	uint32_t writer, check; /* check: distinguishes a mark from memory that was never written */
};

#define CHAIN_BEGIN UINT64_C(0x67706f6f6c6b7673)

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
	return value ^ value >> 31;
}

static uint64_t chain_add(uint64_t chain, uint32_t id)
{
	chain = (chain ^ id) * UINT64_C(0x9e3779b97f4a7c15);
	return chain ^ chain >> 32;
}

/* Return the number of tokens of a request's prompt, at least 1. */
static uint32_t serve_prompt(const struct prefix_request *request)
{
	return request->input_tokens ? request->input_tokens : 1;
}

uint64_t serve_total(const struct prefix_request *request)
{
	return (uint64_t)serve_prompt(request) + (request->output_tokens ? request->output_tokens : 1);
}

/* ---- ids ---- */

/* Return the id of a token: the same in equal blocks of the trace, and otherwise unique to this request. */
static uint32_t id_of(const struct prefix_trace *trace, uint32_t request, uint32_t token)
{
	const struct prefix_request *lengths = &trace->requests[request];
	uint32_t block = token / TRACE_BLOCK_TOKENS;
	uint64_t text = UINT64_C(1) << 32 | request;

	if (token < lengths->input_tokens && block < lengths->count)
		text = trace->blocks[lengths->first + block];
	return (uint32_t)mix(mix(text) + token);
}

int serve_job_begin(struct serve_job *job, const struct prefix_trace *trace, uint32_t request)
{
	*job = (struct serve_job){
		.request = request,
		.prompt = serve_prompt(&trace->requests[request]),
		.total = (uint32_t)serve_total(&trace->requests[request]),
		.chain = CHAIN_BEGIN,
	};
	job->ids = malloc(job->total * sizeof(*job->ids));
	if (!job->ids)
		return -ENOMEM;
	for (uint32_t i = 0; i < job->total; i++)
		job->ids[i] = id_of(trace, request, i);
	return 0;
}

void serve_job_end(struct serve_job *job)
{
	free(job->ids);
	job->ids = NULL;
}

/* ---- contents ---- */

static uint32_t mark_check(const struct mark *mark)
{
	return (uint32_t)mix(mark->chain + mark->writer);
}

/* Compute the marks at both ends of a block of the job. */
static int marks_of(
	const struct serve_job *job, const struct serve_memory *memory, uint32_t block, volatile struct mark *ends[2])
{
	const int32_t *blocks = NULL;
	uint64_t address = 0;
	uint32_t count = 0;
	int error = gpool_kv_table(memory->kv, job->sequence, &blocks, &count);

	if (!error && block >= count)
		error = -ERANGE;
	if (!error)
		error = gpool_kv_address(memory->kv, (uint32_t)blocks[block], &address);
	if (error)
		return error;
	ends[0] = (volatile struct mark *)(uintptr_t)address;
	ends[1] = (volatile struct mark *)(uintptr_t)(address + memory->block_bytes - sizeof(struct mark));
	return 0;
}

void serve_job_found(struct serve_job *job, const struct serve_memory *memory, uint32_t tokens)
{
	serve_job_restart(job);
	for (; job->computed < tokens; job->computed++)
		job->chain = chain_add(job->chain, job->ids[job->computed]);
	job->published = tokens / memory->block_tokens;
}

void serve_job_restart(struct serve_job *job)
{
	job->computed = job->published = 0;
	job->chain = CHAIN_BEGIN;
}

static void mark_write(volatile struct mark *at, const struct mark *mark)
{
	at->chain = mark->chain;
	at->writer = mark->writer;
	at->check = mark->check;
}

int serve_job_compute(struct serve_job *job, struct serve_memory *memory, uint32_t tokens)
{
	uint32_t end = job->computed + tokens;

	while (job->computed < end) {
		uint32_t block = job->computed / memory->block_tokens, full = (block + 1) * memory->block_tokens;
		volatile struct mark *ends[2];
		struct mark mark;
		int error = marks_of(job, memory, block, ends);

		if (error)
			return error;
		while (job->computed < end && job->computed < full)
			job->chain = chain_add(job->chain, job->ids[job->computed++]);
		mark = (struct mark){.chain = job->chain, .writer = memory->writer};
		mark.check = mark_check(&mark);
		mark_write(ends[0], &mark);
		if (job->computed < full)
			continue;
		mark.writer += memory->corrupt && --memory->corrupt == 0;
		mark_write(ends[1], &mark);
	}
	return 0;
}

static bool mark_right(volatile struct mark *at, uint64_t chain, uint32_t *writer)
{
	struct mark mark = {.chain = at->chain, .writer = at->writer, .check = at->check};

	*writer = mark.writer;
	return mark.chain == chain && mark.check == mark_check(&mark);
}

int serve_job_verify(
	const struct serve_job *job, const struct serve_memory *memory, uint64_t *counts, uint32_t *others, char *wrong)
{
	uint64_t chain = CHAIN_BEGIN;

	*others = 0;
	for (uint32_t token = 0, block = 0; token < job->computed; block++) {
		uint32_t full = (block + 1) * memory->block_tokens, writer, writer_end;
		volatile struct mark *ends[2];
		int error = marks_of(job, memory, block, ends);

		if (error)
			return error;
		while (token < job->computed && token < full)
			chain = chain_add(chain, job->ids[token++]);
		counts[SERVE_verified_blocks]++;
		if (mark_right(ends[0], chain, &writer) && (token < full || mark_right(ends[1], chain, &writer_end))) {
			*others += writer != memory->writer;
			continue;
		}
		if (counts[SERVE_wrong_blocks]++ == 0)
			snprintf(wrong, SERVE_TEXT_BYTES,
				"block %" PRIu32 " of request %" PRIu32 " does not contain the mark of its tokens",
				block, job->request + 1);
	}
	return 0;
}
