/* result.c - see result.h. */
#include "tools/replay/result.h"

#include "tools/lib/machine.h"
#include "tools/lib/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double shares[] = {0.5, 0.9, 0.99, 0.999};
static const char *const share_names[] = {"p50", "p90", "p99", "p99.9"};
enum { SHARES = sizeof(shares) / sizeof(shares[0]), NAME_COLUMNS = 34, VALUE_COLUMNS = 16 };

/* ---- for people ---- */

/* One line of the table: a name, and a text for each result. */
static void row(const char *name, const struct result *results, int count,
	const char *(*value)(char text[TEXT_BYTES], const struct play_result *play))
{
	char text[TEXT_BYTES];

	printf("%-*s", NAME_COLUMNS, name);
	for (int i = 0; i < count; i++)
		printf(" %*s", VALUE_COLUMNS, value(text, &results[i].play));
	putchar('\n');
}

static const char *nanoseconds(char text[TEXT_BYTES], uint64_t ns)
{
	if (ns < 10000)
		snprintf(text, TEXT_BYTES, "%" PRIu64 " ns", ns);
	else if (ns < 10000000)
		snprintf(text, TEXT_BYTES, "%.1f us", (double)ns / 1e3);
	else
		text_seconds(text, ns / 1000);
	return text;
}

static const char *duration(char text[TEXT_BYTES], const struct play_result *play)
{
	return nanoseconds(text, play->duration_ns);
}

static const char *rate(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_rate(text, (double)(play->mallocs + play->frees) * 1e9 / (double)play->duration_ns);
}

static const char *mallocs(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_count(text, play->mallocs);
}

static uint64_t failures(const struct play_result *play)
{
	return play->no_space + play->over_quota + play->no_memory;
}

static const char *failed(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_count(text, failures(play));
}

static const char *peak_live(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_bytes(text, play->peak_live);
}

static const char *peak_mapped(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_bytes(text, play->peak_mapped);
}

static double overhead(const struct play_result *play)
{
	return play->peak_mapped ? 1 - (double)play->peak_live / (double)play->peak_mapped : 0;
}

static const char *unused(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_percent(text, overhead(play));
}

static double fragmentation(const struct play_result *play)
{
	return play->end.free ? 1 - (double)play->end.largest_free / (double)play->end.free : 0;
}

static const char *fragments(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_percent(text, fragmentation(play));
}

static const char *calls_total(char text[TEXT_BYTES], const struct play_result *play)
{
	return text_count(text, play->calls_total);
}

static void latency_rows(const char *what, const struct result *results, int count, size_t member)
{
	for (int s = 0; s <= SHARES; s++) {
		char name[48], text[TEXT_BYTES];

		snprintf(name, sizeof(name), "%s, %s", what, s < SHARES ? share_names[s] : "longest");
		printf("%-*s", NAME_COLUMNS, name);
		for (int i = 0; i < count; i++) {
			const struct latencies *times = (const void *)((const char *)&results[i].play + member);

			printf(" %*s", VALUE_COLUMNS,
				nanoseconds(text, s < SHARES ? latencies_percentile(times, shares[s]) : times->most));
		}
		putchar('\n');
	}
}

static void call_rows(const struct result *results, int count)
{
	for (int kind = 0; kind < GPU_CALL_KINDS; kind++) {
		char name[48], text[TEXT_BYTES];
		bool any = false;

		for (int i = 0; i < count; i++)
			any |= results[i].play.calls[kind] > 0;
		if (!any)
			continue;
		snprintf(name, sizeof(name), "  %s", gpu_call_name((enum gpu_call)kind));
		printf("%-*s", NAME_COLUMNS, name);
		for (int i = 0; i < count; i++)
			printf(" %*s", VALUE_COLUMNS, text_count(text, results[i].play.calls[kind]));
		putchar('\n');
	}
}

void result_print(const struct result_frame *frame, const struct result *results, int count)
{
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES];

	printf("trace  %s: %s allocations, %s events, %" PRIu32 " thread%s, %" PRIu32 " stream%s, %s at most at once\n",
		frame->trace_name, text_count(a, frame->trace->mallocs), text_count(b, frame->trace->count),
		frame->trace->threads, frame->trace->threads == 1 ? "" : "s", frame->trace->streams,
		frame->trace->streams == 1 ? "" : "s", text_bytes(c, frame->trace->peak_bytes));
	if (frame->trace->dropped)
		printf("       %" PRIu32 " events are left out: it lacks calls\n", frame->trace->dropped);
	printf("pool   %s in pages of %s\n\n", text_bytes(a, frame->pool_bytes), text_bytes(b, frame->page_bytes));
	printf("%-*s", NAME_COLUMNS, "");
	for (int i = 0; i < count; i++)
		printf(" %*s", VALUE_COLUMNS, results[i].allocator->name);
	putchar('\n');
	row("time", results, count, duration);
	row("calls a second", results, count, rate);
	row("allocations served", results, count, mallocs);
	row("allocations failed", results, count, failed);
	latency_rows("malloc", results, count, offsetof(struct play_result, malloc_ns));
	latency_rows("free", results, count, offsetof(struct play_result, free_ns));
	row("live, peak", results, count, peak_live);
	row("mapped, peak", results, count, peak_mapped);
	row("not live of the mapped, at the peaks", results, count, unused);
	row("free in pieces, at the end", results, count, fragments);
	row("driver calls", results, count, calls_total);
	call_rows(results, count);
	if (frame->absent)
		printf("\n%s (%s) is not on this device: it needs a GPU\n", frame->absent->name, frame->absent->text);
}

/* ---- for programs ---- */

static cJSON *latency_json(const struct latencies *times)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "count", (double)times->count);
	cJSON_AddNumberToObject(object, "mean", latencies_mean(times));
	for (int s = 0; s < SHARES; s++)
		cJSON_AddNumberToObject(object, share_names[s], (double)latencies_percentile(times, shares[s]));
	cJSON_AddNumberToObject(object, "max", (double)times->most);
	return object;
}

static cJSON *failures_json(const struct play_result *play)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "no_space", (double)play->no_space);
	cJSON_AddNumberToObject(object, "over_quota", (double)play->over_quota);
	cJSON_AddNumberToObject(object, "no_memory", (double)play->no_memory);
	return object;
}

static cJSON *calls_json(const struct play_result *play)
{
	cJSON *object = cJSON_CreateObject();

	for (int kind = 0; kind < GPU_CALL_KINDS; kind++)
		if (play->calls[kind])
			cJSON_AddNumberToObject(object, gpu_call_name((enum gpu_call)kind), (double)play->calls[kind]);
	return object;
}

static cJSON *run_json(const struct result *result)
{
	const struct play_result *play = &result->play;
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "allocator", result->allocator->name);
	cJSON_AddNumberToObject(object, "duration_ns", (double)play->duration_ns);
	cJSON_AddNumberToObject(object, "mallocs", (double)play->mallocs);
	cJSON_AddNumberToObject(object, "frees", (double)play->frees);
	cJSON_AddNumberToObject(object, "failed", (double)failures(play));
	cJSON_AddItemToObject(object, "failures", failures_json(play));
	cJSON_AddItemToObject(object, "malloc_ns", latency_json(&play->malloc_ns));
	cJSON_AddItemToObject(object, "free_ns", latency_json(&play->free_ns));
	cJSON_AddNumberToObject(object, "peak_live_bytes", (double)play->peak_live);
	cJSON_AddNumberToObject(object, "peak_mapped_bytes", (double)play->peak_mapped);
	cJSON_AddNumberToObject(object, "unused_at_peak", overhead(play));
	cJSON_AddNumberToObject(object, "end_free_bytes", (double)play->end.free);
	cJSON_AddNumberToObject(object, "end_largest_free_bytes", (double)play->end.largest_free);
	cJSON_AddNumberToObject(object, "fragmentation", fragmentation(play));
	cJSON_AddNumberToObject(object, "driver_calls", (double)play->calls_total);
	cJSON_AddItemToObject(object, "driver_calls_by_kind", calls_json(play));
	return object;
}

static cJSON *trace_json(const struct result_frame *frame)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "name", frame->trace_name);
	cJSON_AddNumberToObject(object, "events", frame->trace->count);
	cJSON_AddNumberToObject(object, "allocations", frame->trace->mallocs);
	cJSON_AddNumberToObject(object, "dropped", frame->trace->dropped);
	cJSON_AddNumberToObject(object, "threads", frame->trace->threads);
	cJSON_AddNumberToObject(object, "streams", frame->trace->streams);
	cJSON_AddNumberToObject(object, "span_ns", (double)frame->trace->span_ns);
	cJSON_AddNumberToObject(object, "peak_bytes", (double)frame->trace->peak_bytes);
	return object;
}

int result_json(const struct result_frame *frame, const struct result *results, int count)
{
	cJSON *document = cJSON_CreateObject(), *runs;
	char machine[256], *text;

	machine_describe(machine, sizeof(machine));
	cJSON_AddNumberToObject(document, "version", 1);
	cJSON_AddStringToObject(document, "kind", "replay-malloc");
	cJSON_AddStringToObject(document, "machine", machine);
	cJSON_AddItemToObject(document, "trace", trace_json(frame));
	cJSON_AddNumberToObject(document, "pool_bytes", (double)frame->pool_bytes);
	cJSON_AddNumberToObject(document, "page_bytes", (double)frame->page_bytes);
	cJSON_AddBoolToObject(document, "in_order", frame->in_order);
	cJSON_AddNumberToObject(document, "speed", frame->speed);
	cJSON_AddNumberToObject(document, "fill_bytes", (double)frame->fill_bytes);
	runs = cJSON_AddArrayToObject(document, "runs");
	for (int i = 0; i < count; i++)
		cJSON_AddItemToArray(runs, run_json(&results[i]));
	if (frame->absent)
		cJSON_AddStringToObject(document, "absent", frame->absent->name);
	text = cJSON_Print(document);
	cJSON_Delete(document);
	if (!text)
		return -ENOMEM;
	puts(text);
	free(text);
	return 0;
}
