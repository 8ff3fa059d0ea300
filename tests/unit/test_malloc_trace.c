/*
 * test_malloc_trace.c - traces of allocations as text, random traces, and the percentiles of latencies.
 *
 * Goal: a text that is not exactly a trace is refused with name, line and field. A written trace can be read back
 * unchanged. A generated trace conforms to its parameters and is the same each time. A percentile is correct within
 * 1/32. Method: texts are read from memory.
 */
#include "tools/lib/malloc_make.h"
#include "tools/lib/malloc_trace.h"
#include "tools/replay/latencies.c"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD MALLOC_TRACE_HEADER "\n"
#define MIB (UINT64_C(1) << 20)

static int read_bytes(const char *bytes, size_t length, struct malloc_trace *trace, char *error)
{
	FILE *file = fmemopen((void *)(uintptr_t)bytes, length ? length : 1, "r");
	int result;

	assert_non_null(file);
	if (!length)
		assert_int_equal(fgetc(file), bytes[0]); /* fmemopen() does not support an empty file */
	result = malloc_trace_read(file, "t.csv", false, trace, error);
	fclose(file);
	return result;
}

static int read_text(const char *text, struct malloc_trace *trace, char *error)
{
	return read_bytes(text, strlen(text), trace, error);
}

/* Check that the text is refused, at that line, with these words. */
static void must_refuse_bytes(const char *text, size_t length, int line, const char *words)
{
	struct malloc_trace trace = {.count = 77};
	char error[MALLOC_TRACE_ERROR_BYTES] = "", place[32];

	assert_int_equal(read_bytes(text, length, &trace, error), -EINVAL);
	snprintf(place, sizeof(place), "t.csv:%d: ", line);
	if (strncmp(error, place, strlen(place)) != 0 || !strstr(error, words))
		fail_msg("'%s' is not '%s...%s'", error, place, words);
	assert_int_equal(trace.count, 77);
}

static void must_refuse(const char *text, int line, const char *words)
{
	must_refuse_bytes(text, strlen(text), line, words);
}

/* ---- reading ---- */

static void test_reads_events(void **state)
{
	struct malloc_trace trace;
	char error[MALLOC_TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(read_text(HEAD "5000,900,7,malloc,2097152,18446744073709551600\r\n"
					"5100,33,0,malloc,1,4\n"
					"5200,33,7,free,2097152,18446744073709551600\n"
					"5050,900,9,malloc,3,18446744073709551600\n"
					"5300,900,0,free,0,4\n",
				 &trace, error),
		0);
	assert_int_equal(trace.count, 5);
	assert_int_equal(trace.mallocs, 3);
	assert_int_equal(trace.threads, 2);
	assert_int_equal(trace.streams, 2);
	assert_int_equal(trace.span_ns, 300);
	assert_int_equal(trace.peak_bytes, 2097153);
	assert_int_equal(trace.events[0].time_ns, 0);
	assert_int_equal(trace.events[3].time_ns, 50);
	assert_int_equal(trace.events[1].thread, 1);
	assert_int_equal(trace.events[1].stream, 0);
	assert_int_equal(trace.events[2].stream, 1);
	assert_int_equal(trace.events[3].stream, 2);
	/* A reused id is another allocation. */
	assert_int_equal(trace.events[2].twin, 0);
	assert_int_equal(trace.events[0].twin, 2);
	assert_int_equal(trace.events[3].twin, MALLOC_TRACE_NONE);
	assert_int_equal(trace.events[4].twin, 1);
	assert_int_equal(trace.events[4].bytes, 1);
	malloc_trace_free(&trace);
}

static void test_refuses_with_line_and_field(void **state)
{
	(void)state;
	must_refuse("", 1, "the file is empty");
	must_refuse("time,thread\n", 1, "the first line is not " MALLOC_TRACE_HEADER);
	must_refuse(HEAD, 2, "no events");
	must_refuse(HEAD "\n", 2, "the field 'thread' is missing");
	must_refuse(HEAD "0,1,1,malloc,5\n", 2, "the field 'id' is missing");
	must_refuse(HEAD "0,1,1,malloc,5,1\n1,1,1,free,0,1,\n", 3, "more fields than");
	must_refuse(HEAD "x,1,1,malloc,5,1\n", 2, "time_ns: 'x' is not a number from 0");
	must_refuse(HEAD "9223372036854775808,1,1,malloc,5,1\n", 2, "time_ns: '9223372036854775808' is not");
	must_refuse(HEAD "0,-1,1,malloc,5,1\n", 2, "thread: '-1' is not a number");
	must_refuse(HEAD "0,1, 1,malloc,5,1\n", 2, "stream: ' 1' is not a number");
	must_refuse(HEAD "0,1,99999999999999999999,malloc,5,1\n", 2, "stream: '99999999999999999999' is not a number");
	must_refuse(HEAD "0,1,1,calloc,5,1\n", 2, "op: 'calloc' is neither malloc nor free");
	must_refuse(HEAD "0,1,1,\033[31m,5,1\n", 2, "op: '?[31m' is neither");
	must_refuse(HEAD "0,1,1,malloc,0,1\n", 2, "size: '0' is not a number from 1 to 1099511627776");
	must_refuse(HEAD "0,1,1,malloc,1099511627777,1\n", 2, "size: '1099511627777' is not");
	must_refuse(HEAD "0,1,1,malloc,1e6,1\n", 2, "size: '1e6' is not");
	must_refuse(HEAD "0,1,1,malloc,5,\n", 2, "id: '' is not a number");
	must_refuse(HEAD "10,1,1,malloc,5,1\n9,1,1,free,0,1\n", 3, "time_ns: it decreases within thread 1");
	must_refuse(HEAD "0,1,1,free,0,1\n", 2, "id: id 1 is not allocated");
	must_refuse(HEAD "0,1,1,malloc,5,1\n1,1,1,free,0,1\n2,1,1,free,0,1\n", 4, "id: id 1 is not allocated");
	must_refuse(HEAD "0,1,1,malloc,5,1\n1,1,1,malloc,5,1\n", 3, "id: id 1 is already allocated");
	must_refuse(HEAD "0,1,1,malloc,5,1\n1,1,1,free,6,1\n", 3, "size: id 1 was allocated with a different size");
	/* The first of several errors is reported. */
	must_refuse(HEAD "0,1,1,malloc,5,9\n1,1,1,free,6,9\n2,1,1,free,0,2\n", 3, "size: id 9");
}

static void test_non_text_input_is_refused(void **state)
{
	static const char nul[] = HEAD "0,1,1,mal\0loc,5,1\n";
	char line[512] = HEAD;

	(void)state;
	must_refuse_bytes(nul, sizeof(nul) - 1, 2, "a NUL byte");
	memset(line + strlen(HEAD), '0', 400);
	must_refuse_bytes(line, strlen(HEAD) + 400, 2, "the line is longer");
}

static void test_refuses_more_threads_than_can_be(void **state)
{
	char *text = NULL;
	size_t length;

	(void)state;
	for (int streams = 0; streams < 2; streams++) {
		FILE *file = open_memstream(&text, &length);
		int most = streams ? MALLOC_TRACE_STREAMS_MAX : MALLOC_TRACE_THREADS_MAX;

		fputs(HEAD, file);
		for (int i = 1; i <= most + 1; i++)
			fprintf(file, "0,%d,%d,malloc,1,%d\n", streams ? 1 : i, streams ? i : 1, i);
		for (int i = 1; i <= most + 1; i++)
			fprintf(file, "0,%d,%d,free,0,%d\n", streams ? 1 : i, streams ? i : 1, i);
		fclose(file);
		must_refuse(text, most + 2,
			streams ? "stream: more than 250 in use at a time" : "thread: more than 256 in use at a time");
		free(text);
	}
}

/* Threads and streams that do not overlap in time share one place. */
static void test_places_are_used_again(void **state)
{
	struct malloc_trace trace;
	char error[MALLOC_TRACE_ERROR_BYTES], *text = NULL;
	size_t length;
	FILE *file = open_memstream(&text, &length);

	(void)state;
	fputs(HEAD "0,1000000,1000000,malloc,1,0\n", file);
	for (int i = 1; i <= 1000; i++)
		fprintf(file, "%d,%d,%d,malloc,1,%d\n%d,%d,%d,free,0,%d\n", i, i, i, i, i, i, i, i);
	fputs("2000,1000000,1000000,free,1,0\n", file);
	fclose(file);
	assert_int_equal(read_text(text, &trace, error), 0);
	assert_int_equal(trace.threads, 2);
	assert_int_equal(trace.streams, 2);
	for (uint32_t i = 0; i < trace.count; i++) {
		bool outer = i == 0 || i + 1 == trace.count;

		assert_int_equal(trace.events[i].thread, outer ? 0 : 1);
		assert_int_equal(trace.events[i].stream, outer ? 1 : 2);
	}
	malloc_trace_free(&trace);
	free(text);
}

/* A thread that started, by the clock, before the other one ended gets its own place. */
static void test_time_does_not_run_backwards_in_a_place(void **state)
{
	struct malloc_trace trace;
	char error[MALLOC_TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(read_text(HEAD "8,1,1,malloc,5,1\n3,2,0,free,0,1\n9,3,0,malloc,5,1\n", &trace, error), 0);
	assert_int_equal(trace.events[0].thread, 0);
	assert_int_equal(trace.events[1].thread, 1);
	assert_int_equal(trace.events[2].thread, 0);
	malloc_trace_free(&trace);
}

/* The record of a killed program ends within a line, and lacks calls that were not recorded in time. */
static void test_incomplete_if_asked_for(void **state)
{
	static const char text[] =
		HEAD "0,1,1,free,0,5\n1,1,1,malloc,8,6\n2,1,1,free,8,7\n3,1,1,malloc,9,6\n4,1,1,free,9,6\n5,1,1,fr";
	FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
	struct malloc_trace trace;
	char error[MALLOC_TRACE_ERROR_BYTES];

	(void)state;
	must_refuse(text, 7, "the field 'size' is missing");
	must_refuse(HEAD "0,1,1,malloc,5,12", 2, "the line has no newline");
	assert_int_equal(malloc_trace_read(file, "t.csv", true, &trace, error), 0);
	fclose(file);
	assert_int_equal(trace.count, 3);
	assert_int_equal(trace.dropped, 3);
	assert_int_equal(trace.events[0].twin, MALLOC_TRACE_NONE);
	assert_int_equal(trace.events[1].twin, 2);
	assert_int_equal(trace.events[2].twin, 1);
	malloc_trace_free(&trace);
	/* A trace of which all calls are dropped is refused, and so is an invalid line. */
	for (int i = 0; i < 2; i++) {
		const char *bad = i ? HEAD "0,1,1,malloc,x,1\n" : HEAD "0,1,1,free,0,1\n";

		file = fmemopen((void *)(uintptr_t)bad, strlen(bad), "r");
		assert_int_equal(malloc_trace_read(file, "t.csv", true, &trace, error), -EINVAL);
		fclose(file);
	}
}

static void test_names_a_file_that_is_not_there(void **state)
{
	struct malloc_trace trace;
	char error[MALLOC_TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(malloc_trace_load("/nonexistent/t.csv", false, &trace, error), -ENOENT);
	assert_non_null(strstr(error, "cannot open trace '/nonexistent/t.csv'"));
}

/* ---- random ---- */

static const struct malloc_recipe recipe = {.allocations = 2000,
	.least = 1,
	.most = 4 * MIB,
	.cap = 100 * MIB,
	.chance = 73,
	.threads = 3,
	.streams = 4,
	.seed = 5};

static void test_made_trace_keeps_to_its_recipe(void **state)
{
	struct malloc_trace trace = {0}, again = {0};
	uint64_t live = 0;
	uint32_t frees = 0;

	(void)state;
	assert_int_equal(malloc_make(&recipe, &trace), 0);
	assert_int_equal(trace.mallocs, recipe.allocations);
	assert_true(trace.peak_bytes <= recipe.cap && trace.peak_bytes > recipe.cap * 9 / 10);
	for (uint32_t i = 0; i < trace.count; i++) {
		const struct malloc_event *event = &trace.events[i];

		assert_true(event->bytes >= recipe.least && event->bytes <= recipe.most);
		assert_true(event->thread < recipe.threads && event->stream >= 1 && event->stream <= recipe.streams);
		live += event->op == MALLOC_OP_MALLOC ? event->bytes : -event->bytes;
		assert_true(live <= recipe.cap);
		if (event->op == MALLOC_OP_MALLOC)
			continue;
		frees++;
		assert_true(event->twin < i && trace.events[event->twin].twin == i);
		assert_int_equal(event->stream, trace.events[event->twin].stream);
	}
	assert_true(frees > 0);
	assert_int_equal(malloc_make(&recipe, &again), 0);
	assert_int_equal(trace.count, again.count);
	assert_memory_equal(trace.events, again.events, trace.count * sizeof(*trace.events));
	malloc_trace_free(&trace);
	malloc_trace_free(&again);
}

static void test_made_trace_ends_when_enough_went_through(void **state)
{
	struct malloc_recipe churn = recipe;
	struct malloc_trace trace;
	uint64_t through = 0;

	(void)state;
	churn.allocations = 0;
	churn.through = 1000 * MIB;
	assert_int_equal(malloc_make(&churn, &trace), 0);
	for (uint32_t i = 0; i < trace.count; i++)
		through += trace.events[i].op == MALLOC_OP_MALLOC ? trace.events[i].bytes : 0;
	assert_true(through >= churn.through && through < churn.through + churn.most);
	malloc_trace_free(&trace);
}

static void test_recipes_that_cannot_be(void **state)
{
	struct malloc_recipe bad[8];
	struct malloc_trace trace;

	(void)state;
	for (int i = 0; i < 8; i++)
		bad[i] = recipe;
	bad[0].allocations = 0;
	bad[1].least = 0;
	bad[2].least = bad[2].most + 1;
	bad[3].cap = bad[3].most - 1;
	bad[4].chance = 0;
	bad[5].chance = 101;
	bad[6].threads = 0;
	bad[7].streams = MALLOC_TRACE_STREAMS_MAX + 1;
	for (int i = 0; i < 8; i++)
		assert_int_equal(malloc_make(&bad[i], &trace), -EINVAL);
}

static void test_written_trace_reads_back(void **state)
{
	struct malloc_recipe one = recipe;
	struct malloc_trace trace, back;
	char error[MALLOC_TRACE_ERROR_BYTES], *text = NULL;
	size_t length;
	FILE *file = open_memstream(&text, &length);

	(void)state;
	one.threads = one.streams = 1; /* more threads and streams would be renumbered, in order of appearance */
	assert_int_equal(malloc_make(&one, &trace), 0);
	assert_int_equal(malloc_trace_write(&trace, file), 0);
	fclose(file);
	assert_int_equal(read_text(text, &back, error), 0);
	assert_int_equal(back.count, trace.count);
	assert_memory_equal(back.events, trace.events, trace.count * sizeof(*trace.events));
	assert_int_equal(back.peak_bytes, trace.peak_bytes);
	malloc_trace_free(&trace);
	malloc_trace_free(&back);
	free(text);
}

static void test_writing_to_a_full_disk_is_reported(void **state)
{
	struct malloc_trace trace;
	FILE *file = fopen("/dev/full", "w");

	(void)state;
	if (!file) {
		print_message("there is no /dev/full here\n");
		skip();
	}
	assert_int_equal(malloc_make(&recipe, &trace), 0);
	assert_true(malloc_trace_write(&trace, file) < 0);
	fclose(file);
	malloc_trace_free(&trace);
}

/* ---- latencies ---- */

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void test_percentiles_are_close(void **state)
{
	static const double shares[] = {0.01, 0.5, 0.9, 0.99, 0.999, 1};
	static struct latencies all, parts[2];
	static uint64_t values[20000];
	uint64_t random = 9;
	double sum = 0;

	(void)state;
	for (size_t i = 0; i < 20000; i++) {
		values[i] = random_step(&random) >> (random_step(&random) % 64); /* all magnitudes */
		latencies_add(&parts[i % 2], values[i] >> 12);
		values[i] >>= 12;
		sum += (double)values[i] / 20000;
	}
	latencies_merge(&all, &parts[0]);
	latencies_merge(&all, &parts[1]);
	qsort(values, 20000, sizeof(*values), compare);
	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		uint64_t exact = values[(size_t)(shares[i] * 20000 + 0.5) - 1],
			 reported = latencies_percentile(&all, shares[i]);

		assert_true(reported >= exact && reported <= exact + exact / 32 + 1);
	}
	assert_int_equal(all.count, 20000);
	assert_int_equal(all.most, values[19999]);
	assert_true(latencies_mean(&all) > sum * 0.999 && latencies_mean(&all) < sum * 1.001);
	memset(&all, 0, sizeof(all));
	assert_int_equal(latencies_percentile(&all, 0.5), 0);
	latencies_add(&all, UINT64_MAX);
	assert_true(latencies_percentile(&all, 0.5) == UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads_events),
		cmocka_unit_test(test_refuses_with_line_and_field),
		cmocka_unit_test(test_non_text_input_is_refused),
		cmocka_unit_test(test_refuses_more_threads_than_can_be),
		cmocka_unit_test(test_places_are_used_again),
		cmocka_unit_test(test_time_does_not_run_backwards_in_a_place),
		cmocka_unit_test(test_incomplete_if_asked_for),
		cmocka_unit_test(test_names_a_file_that_is_not_there),
		cmocka_unit_test(test_made_trace_keeps_to_its_recipe),
		cmocka_unit_test(test_made_trace_ends_when_enough_went_through),
		cmocka_unit_test(test_recipes_that_cannot_be),
		cmocka_unit_test(test_written_trace_reads_back),
		cmocka_unit_test(test_writing_to_a_full_disk_is_reported),
		cmocka_unit_test(test_percentiles_are_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
