/*
 * fuzz_trace.c - arbitrary bytes as a trace of allocations.
 *
 * Goal: a rejection names a line. Every event of an accepted trace is consistent. A written trace can be read back
 * unchanged.
 *
 * Method: the input is read alone, and after a valid header line. In the second case, it is also read as an incomplete
 * trace.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lib/malloc_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
	if (!condition)
		abort();
}

static void check_events(const struct malloc_trace *trace)
{
	uint64_t live = 0, peak = 0;
	uint32_t mallocs = 0;

	demand(trace->count > 0 && trace->threads > 0 && trace->threads <= MALLOC_TRACE_THREADS_MAX);
	demand(trace->streams <= MALLOC_TRACE_STREAMS_MAX);
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct malloc_event *event = &trace->events[i];

		demand(event->bytes > 0 && event->bytes <= MALLOC_TRACE_BYTES_MAX && event->time_ns <= trace->span_ns);
		demand(event->thread < trace->threads && event->stream <= trace->streams);
		if (event->op == MALLOC_OP_MALLOC) {
			mallocs++;
			live += event->bytes;
			peak = live > peak ? live : peak;
			demand(event->twin == MALLOC_TRACE_NONE || (event->twin > i && event->twin < trace->count));
		} else {
			demand(event->op == MALLOC_OP_FREE && event->twin < i && trace->events[event->twin].twin == i);
			demand(trace->events[event->twin].bytes == event->bytes);
			live -= event->bytes;
		}
	}
	demand(mallocs == trace->mallocs && peak == trace->peak_bytes);
}

static void check_again(const struct malloc_trace *trace)
{
	struct malloc_trace again;
	char error[MALLOC_TRACE_ERROR_BYTES], *text = NULL;
	size_t length;
	FILE *file = open_memstream(&text, &length);

	demand(file != NULL);
	demand(malloc_trace_write(trace, file) == 0);
	demand(fclose(file) == 0);
	file = fmemopen(text, length, "r");
	demand(file && malloc_trace_read(file, "again", false, &again, error) == 0);
	/* The numbers of threads whose events were all dropped are unused. */
	demand(again.count == trace->count && again.peak_bytes == trace->peak_bytes);
	demand(trace->dropped || !memcmp(again.events, trace->events, trace->count * sizeof(*trace->events)));
	fclose(file);
	free(text);
	malloc_trace_free(&again);
}

static void check(const char *head, bool incomplete, const uint8_t *data, size_t size)
{
	size_t head_bytes = strlen(head);
	char *bytes = malloc(head_bytes + size), error[MALLOC_TRACE_ERROR_BYTES] = "";
	struct malloc_trace trace;
	FILE *file;
	int result;

	demand(bytes != NULL);
	memcpy(bytes, head, head_bytes);
	memcpy(bytes + head_bytes, data, size);
	file = fmemopen(bytes, head_bytes + size, "r");
	demand(file != NULL);
	result = malloc_trace_read(file, "fuzz", incomplete, &trace, error);
	fclose(file);
	free(bytes);
	if (result) {
		demand(result == -EINVAL && strncmp(error, "fuzz:", 5) == 0 && strtoul(error + 5, NULL, 10) > 0);
		return;
	}
	check_events(&trace);
	check_again(&trace);
	malloc_trace_free(&trace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size)
		check("", false, data, size);
	check(MALLOC_TRACE_HEADER "\n", false, data, size);
	check(MALLOC_TRACE_HEADER "\n", true, data, size);
	return 0;
}
