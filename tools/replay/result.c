#include "tools/replay/result.h"

#include "shm/plural.h"
#include "tools/lib/json.h"
#include "tools/lib/machine.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double shares[] = {0.5, 0.9, 0.99, 0.999};
static const char *const share_names[] = {"p50", "p90", "p99", "p99.9"};
enum { SHARES = sizeof(shares) / sizeof(shares[0]), NAME_COLUMNS = 34, VALUE_COLUMNS = 16 };

/* ---- table ---- */

/* Print one line of the table: a name, and for each `play`, `value` as text. */
#define ROW(name, text_of, value) \
	do { \
		char text[TEXT_BYTES]; \
\
		printf("%-*s", NAME_COLUMNS, name); \
		for (int i = 0; i < count; i++) { \
			const struct play_result *play = &results[i].play; \
\
			printf(" %*s", VALUE_COLUMNS, text_of(text, value)); \
		} \
		putchar('\n'); \
	} while (0)

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

static uint64_t failures(const struct play_result *play)
{
	return play->no_space + play->over_quota + play->no_memory;
}

static double overhead(const struct play_result *play)
{
	return play->peak_mapped ? 1 - (double)play->peak_live / (double)play->peak_mapped : 0;
}

static double fragmentation(const struct play_result *play)
{
	return play->end.free ? 1 - (double)play->end.largest_free / (double)play->end.free : 0;
}

static void latency_rows(const char *what, const struct result *results, int count, size_t member)
{
	for (int s = 0; s <= SHARES; s++) {
		char name[48];

		snprintf(name, sizeof(name), "%s, %s", what, s < SHARES ? share_names[s] : "maximum");
#define TIMES ((const struct latencies *)(const void *)((const char *)play + member))
		ROW(name, nanoseconds, s < SHARES ? latencies_percentile(TIMES, shares[s]) : TIMES->most);
#undef TIMES
	}
}

static void call_rows(const struct result *results, int count)
{
	for (int kind = 0; kind < GPU_CALL_KINDS; kind++) {
		char name[48];
		bool any = false;

		for (int i = 0; i < count; i++)
			any |= results[i].play.calls[kind] > 0;
		if (!any)
			continue;
		snprintf(name, sizeof(name), "  %s", gpu_call_name((enum gpu_call)kind));
		ROW(name, text_count, play->calls[kind]);
	}
}

void result_print(const struct result_frame *frame, const struct result *results, int count)
{
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES];

	printf("trace  %s: %s allocations, %s events, %" PRIu32 " thread%s, %" PRIu32 " stream%s, at most %s live\n",
		frame->trace_name, text_count(a, frame->trace->mallocs), text_count(b, frame->trace->count),
		frame->trace->threads, plural(frame->trace->threads), frame->trace->streams,
		plural(frame->trace->streams), text_bytes(c, frame->trace->peak_bytes));
	if (frame->trace->dropped)
		printf("       %" PRIu32 " event%s skipped: the trace is incomplete\n", frame->trace->dropped,
			frame->trace->dropped == 1 ? " was" : "s were");
	printf("pool   %s in pages of %s\n\n", text_bytes(a, frame->pool_bytes), text_bytes(b, frame->page_bytes));
	printf("%-*s", NAME_COLUMNS, "");
	for (int i = 0; i < count; i++)
		printf(" %*s", VALUE_COLUMNS, results[i].allocator->name);
	putchar('\n');
	ROW("time", nanoseconds, play->duration_ns);
	ROW("calls per second", text_rate, (double)(play->mallocs + play->frees) * 1e9 / (double)play->duration_ns);
	ROW("allocations served", text_count, play->mallocs);
	ROW("allocations failed", text_count, failures(play));
	latency_rows("malloc", results, count, offsetof(struct play_result, malloc_ns));
	latency_rows("free", results, count, offsetof(struct play_result, free_ns));
	ROW("live, peak", text_bytes, play->peak_live);
	ROW("mapped, peak", text_bytes, play->peak_mapped);
	ROW("mapped but not live, at the peaks", text_percent, overhead(play));
	ROW("fragmentation, at the end", text_percent, fragmentation(play));
	ROW("driver calls", text_count, play->calls_total);
	call_rows(results, count);
	if (frame->absent)
		printf("\n%s (%s) is not available: it requires a GPU\n", frame->absent->name, frame->absent->text);
}

/* ---- JSON ---- */

static void latency_json(cJSON *object, const struct latencies *times)
{
	JSON_FIELDS(object, {"count", times->count}, {"mean", latencies_mean(times)});
	for (int s = 0; s < SHARES; s++)
		json_real(object, share_names[s], (double)latencies_percentile(times, shares[s]));
	json_real(object, "max", (double)times->most);
}

static void failures_json(cJSON *object, const struct play_result *play)
{
	JSON_FIELDS(
		object, {"no_space", play->no_space}, {"over_quota", play->over_quota}, {"no_memory", play->no_memory});
}

static void calls_json(cJSON *object, const struct play_result *play)
{
	for (int kind = 0; kind < GPU_CALL_KINDS; kind++)
		if (play->calls[kind])
			json_real(object, gpu_call_name((enum gpu_call)kind), (double)play->calls[kind]);
}

static void run_json(cJSON *object, const struct result *result)
{
	const struct play_result *play = &result->play;
	json_text(object, "allocator", result->allocator->name);
	JSON_FIELDS(object, {"duration_ns", play->duration_ns}, {"mallocs", play->mallocs}, {"frees", play->frees},
		{"failed", (double)failures(play)});
	failures_json(json_object(object, "failures"), play);
	latency_json(json_object(object, "malloc_ns"), &play->malloc_ns);
	latency_json(json_object(object, "free_ns"), &play->free_ns);
	JSON_FIELDS(object, {"peak_live_bytes", play->peak_live}, {"peak_mapped_bytes", play->peak_mapped},
		{"unused_at_peak", overhead(play)}, {"end_free_bytes", play->end.free},
		{"end_largest_free_bytes", play->end.largest_free}, {"fragmentation", fragmentation(play)},
		{"driver_calls", play->calls_total});
	calls_json(json_object(object, "driver_calls_by_kind"), play);
}

static void trace_json(cJSON *object, const struct result_frame *frame)
{
	json_text(object, "name", frame->trace_name);
	JSON_FIELDS(object, {"events", frame->trace->count}, {"allocations", frame->trace->mallocs},
		{"dropped", frame->trace->dropped}, {"threads", frame->trace->threads},
		{"streams", frame->trace->streams}, {"span_ns", frame->trace->span_ns},
		{"peak_bytes", frame->trace->peak_bytes});
}

void result_json(const struct result_frame *frame, const struct result *results, int count)
{
	cJSON *document = json_document("replay-malloc"), *runs;
	char machine[256];

	machine_describe(machine, sizeof(machine));
	json_text(document, "machine", machine);
	trace_json(json_object(document, "trace"), frame);
	JSON_FIELDS(document, {"pool_bytes", frame->pool_bytes}, {"page_bytes", frame->page_bytes});
	json_bool(document, "in_order", frame->in_order);
	JSON_FIELDS(document, {"speed", frame->speed}, {"fill_bytes", frame->fill_bytes});
	runs = json_array(document, "runs");
	for (int i = 0; i < count; i++)
		run_json(json_item(runs), &results[i]);
	if (frame->absent)
		json_text(document, "absent", frame->absent->name);
	json_write(stdout, document, false);
}
