/*
 * fuzz_prefix_trace.c - arbitrary bytes as a trace of prefixes.
 *
 * Method: the input is read alone, and after a valid request. Checked: a rejection names a line. In an accepted trace,
 * requests are paths in one tree, whose nodes are numbered in order of appearance.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lib/prefix_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
	if (!condition)
		abort();
}

/* parents: [node_count], set for nodes below *known */
static void check_path(
	const struct prefix_trace *trace, const struct prefix_request *request, uint32_t *parents, uint32_t *known)
{
	uint32_t parent = PREFIX_TRACE_NONE;

	for (uint32_t i = request->first; i < request->first + request->count; i++) {
		uint32_t node = trace->blocks[i];

		demand(node <= *known && node < trace->node_count);
		if (node == *known)
			parents[(*known)++] = parent;
		demand(parents[node] == parent);
		parent = node;
	}
}

static void check_trace(const struct prefix_trace *trace)
{
	uint32_t *parents = malloc(trace->node_count * sizeof(*parents)), known = 0, blocks = 0;
	uint64_t time_ms = 0;

	demand(parents && trace->block_count && trace->node_count <= trace->block_count);
	for (uint32_t r = 0; r < trace->request_count; r++) {
		const struct prefix_request *request = &trace->requests[r];

		demand(request->first == blocks && request->count <= trace->longest && request->time_ms >= time_ms);
		blocks += request->count;
		time_ms = request->time_ms;
		check_path(trace, request, parents, &known);
	}
	demand(blocks == trace->block_count && known == trace->node_count);
	free(parents);
}

static void check(const char *head, const uint8_t *data, size_t size)
{
	size_t head_bytes = strlen(head);
	char *bytes = malloc(head_bytes + size + 1), error[PREFIX_TRACE_ERROR_BYTES] = "";
	struct prefix_trace trace;
	FILE *file;
	int result;

	demand(bytes != NULL);
	memcpy(bytes, head, head_bytes);
	if (size)
		memcpy(bytes + head_bytes, data, size);
	file = fmemopen(bytes, head_bytes + size, "r");
	demand(file != NULL);
	result = prefix_trace_read(file, "fuzz", 0, &trace, error);
	fclose(file);
	free(bytes);
	if (result) {
		demand(result == -EINVAL && strncmp(error, "fuzz:", 5) == 0 && strtoul(error + 5, NULL, 10) > 0);
		demand(!trace.requests && !trace.blocks);
		return;
	}
	check_trace(&trace);
	prefix_trace_free(&trace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size)
		check("", data, size);
	check("{\"timestamp\":5,\"input_length\":600,\"output_length\":7,\"hash_ids\":[1,2]}\n", data, size);
	return 0;
}
