/*
 * test_replay.c - gpool-replay as users run it, on generated traces and on one that the library records.
 *
 * Goal: every event is replayed, by as many threads and streams as the trace has, on each allocator. Allocations
 * without memory are counted. A trace that the library records can be replayed. The chart is one complete file. Wrong
 * options and traces are refused with the position. An interrupt leaves neither a process nor a file behind.
 *
 * Method: the real program and agent run as children of this process, which is the reaper of all their descendants.
 * $TMPDIR is a folder of this test, which must be empty afterwards.
 *
 * Requirements: O5.
 */
#include "tests/integration/tool_process.h"
#include "tests/lib/harness.h"

#include <pthread.h>
#include <stdbool.h>

static char picture[64], trace_path[64];

/* ---- invariants ---- */

/* Check a run in which all allocations succeeded. */
static void assert_served(const cJSON *result, int index, const char *allocator)
{
	const cJSON *trace = member(result, "trace"), *run = cJSON_GetArrayItem(member(result, "runs"), index);
	const cJSON *mallocs, *frees;
	double peak;

	assert_non_null(run);
	assert_string_equal(member(run, "allocator")->valuestring, allocator);
	assert_true(number(run, "failed") == 0);
	assert_true(number(run, "mallocs") == number(trace, "allocations"));
	assert_true(number(run, "frees") == number(trace, "events") - number(trace, "allocations"));
	mallocs = member(run, "malloc_ns");
	frees = member(run, "free_ns");
	assert_true(
		number(mallocs, "count") == number(run, "mallocs") && number(frees, "count") == number(run, "frees"));
	assert_true(number(mallocs, "p50") > 0 && number(mallocs, "p50") <= number(mallocs, "p99"));
	assert_true(
		number(mallocs, "p99") <= number(mallocs, "max") && number(mallocs, "mean") <= number(mallocs, "max"));
	peak = number(run, "peak_live_bytes");
	assert_true(peak > 0 && number(run, "peak_mapped_bytes") >= peak);
	assert_true(number(run, "peak_mapped_bytes") <= number(result, "pool_bytes"));
	assert_true(number(run, "driver_calls") > 0);
	assert_true(number(run, "end_largest_free_bytes") <= number(run, "end_free_bytes"));
}

static int occurrences(const char *text, const char *word)
{
	int count = 0;

	for (; (text = strstr(text, word)) != NULL; text += strlen(word))
		count++;
	return count;
}

/* Check that the chart is one self-contained file, with a panel for each allocator. */
static void assert_picture(int panels)
{
	const char *text = read_text(picture);

	assert_int_equal(strncmp(text, "<svg xmlns=", 11), 0);
	assert_int_equal(strcmp(text + strlen(text) - 7, "</svg>\n"), 0);
	assert_int_equal(occurrences(text, "<svg "), 1 + 2 * panels);
	assert_int_equal(occurrences(text, "</svg>"), 1 + 2 * panels);
	assert_int_equal(occurrences(text, "<path class=\"allocated\""), panels);
	assert_int_equal(occurrences(text, "<path class=\"free\""), panels);
	assert_int_equal(occurrences(text, "class=\"area live\""), panels);
	assert_int_equal(occurrences(text, "http"), 1); /* the XML namespace */
	assert_null(strstr(text, "nan"));
	assert_null(strstr(text, "inf"));
	assert_null(strstr(text, "url("));
	assert_null(strstr(text, "href"));
	assert_non_null(strstr(text, "prefers-color-scheme:dark"));
}

/* ---- tests ---- */

static void test_replays_on_both_and_draws(void **state)
{
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("make", "--allocations", "3000", "--up-to", "32MiB", "--cap", "2GiB", trace_path), 0);
	assert_int_equal(RUN("malloc", trace_path, "-a", "gpool,best-fit", "-o", "json", "--picture", picture,
				 "--pool-size", "8GiB"),
		0);
	result = read_result();
	assert_true(number(result, "version") == 1);
	assert_string_equal(member(result, "kind")->valuestring, "replay-malloc");
	assert_true(number(member(result, "trace"), "threads") == 1);
	assert_int_equal(cJSON_GetArraySize(member(result, "runs")), 2);
	assert_served(result, 0, "gpool");
	assert_served(result, 1, "best-fit");
	/* With one thread, the peak is that of the trace. */
	for (int i = 0; i < 2; i++)
		assert_true(number(cJSON_GetArrayItem(member(result, "runs"), i), "peak_live_bytes") ==
			number(member(result, "trace"), "peak_bytes"));
	assert_picture(2);
	assert_null(strstr(read_text(tool.error), "gpool-replay:"));
	cJSON_Delete(result);
	assert_nothing_left();
}

/*
 * Memory is allocated by one thread and freed by another, on streams with queued work. The second run replays one event
 * after the other.
 */
static void test_replays_threads_and_streams(void **state)
{
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("make", "--allocations", "4000", "--up-to", "8MiB", "--cap", "512MiB", "--threads", "5",
				 "--streams", "4", "--seed", "7", trace_path),
		0);
	for (int in_order = 0; in_order < 2; in_order++) {
		assert_int_equal(RUN("malloc", trace_path, "-a", "best-fit,gpool", "-o", "json", "--quiet",
					 "--pool-size", "4GiB", "--fill", "4KiB", in_order ? "--in-order" : "--quiet"),
			0);
		result = read_result();
		assert_true(number(member(result, "trace"), "threads") == 5);
		assert_true(number(member(result, "trace"), "streams") == 4);
		assert_served(result, 0, "best-fit");
		assert_served(result, 1, "gpool");
		assert_true(number(member(cJSON_GetArrayItem(member(result, "runs"), 1), "driver_calls_by_kind"),
				    "fill") == 4000);
		if (in_order)
			assert_true(number(cJSON_GetArrayItem(member(result, "runs"), 1), "peak_live_bytes") ==
				number(member(result, "trace"), "peak_bytes"));
		cJSON_Delete(result);
	}
	assert_nothing_left();
}

/* A lack of memory is a result, not an error. */
static void test_failed_allocations_are_counted(void **state)
{
	const cJSON *run;
	cJSON *result;

	(void)state;
	write_text(trace_path,
		"time_ns,thread,stream,op,size,id\n0,1,1,malloc,50331648,1\n1,1,1,malloc,50331648,2\n2,1,1,free,0,2\n"
		"3,1,1,free,0,1\n4,1,1,malloc,50331648,3\n");
	assert_int_equal(RUN("malloc", trace_path, "-a", "all", "-o", "json", "--pool-size", "64MiB"), 0);
	result = read_result();
	for (int i = 0; i < 2; i++) {
		run = cJSON_GetArrayItem(member(result, "runs"), i);
		assert_true(number(run, "mallocs") == 2);
		assert_true(number(run, "frees") == 1);
		assert_true(number(run, "failed") == 1);
		assert_true(number(member(run, "failures"), "no_space") == 1);
	}
	cJSON_Delete(result);
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "64MiB"), 0);
	assert_non_null(strstr(read_text(tool.out), "allocations failed"));
	assert_nothing_left();
}

static void test_keeps_the_times_of_the_trace(void **state)
{
	cJSON *result;

	(void)state;
	write_text(trace_path,
		"time_ns,thread,stream,op,size,id\n1000000000,1,0,malloc,4096,1\n1080000000,2,0,free,0,1\n");
	assert_int_equal(RUN("malloc", trace_path, "-o", "json", "--speed", "2", "--pool-size", "64MiB"), 0);
	result = read_result();
	assert_true(number(cJSON_GetArrayItem(member(result, "runs"), 0), "duration_ns") >= 40e6);
	cJSON_Delete(result);
	assert_nothing_left();
}

/* ---- traces that the library records ---- */

struct recording {
	struct gpool *pool;
	uint64_t given[200];
	uint32_t stream;
};

/* Free the allocations of another thread. */
static void *free_all(void *context)
{
	struct recording *recording = context;

	for (int i = 0; i < 200; i++)
		if (gpool_free_async(recording->pool, recording->given[i], recording->stream))
			return context;
	return NULL;
}

static void record_some(struct harness *harness)
{
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	struct recording recording = {.pool = harness_open(harness)};
	pthread_t thread;
	void *failed;

	options.record_path = trace_path;
	options.timeout_ms = AWAIT_MS; /* calls without a stream may wait for the GPU */
	assert_int_equal(gpool_vm_configure(recording.pool, &options), 0);
	assert_int_equal(gpool_stream_open(recording.pool, NULL, 0, &recording.stream), 0);
	for (uint64_t i = 0; i < 200; i++) {
		/* Some allocations are small. Each is identified by its number, even if its address is reused. */
		assert_int_equal(gpool_malloc_async(recording.pool, 1000 + i % 5 * (700 << 10), recording.stream,
					 &recording.given[i]),
			0);
		if (i % 3 == 0) {
			assert_int_equal(gpool_free_async(recording.pool, recording.given[i], recording.stream), 0);
			assert_int_equal(gpool_malloc_async(recording.pool, 2 << 20, 0, &recording.given[i]), 0);
		}
	}
	assert_int_equal(pthread_create(&thread, NULL, free_all, &recording), 0);
	pthread_join(thread, &failed);
	assert_null(failed);
	/* Without this, one thread could end before the other begins, and the replay would use one thread for both. */
	assert_int_equal(gpool_malloc_async(recording.pool, 1, 0, &recording.given[0]), 0);
	assert_int_equal(gpool_free_async(recording.pool, recording.given[0], 0), 0);
	gpool_close(recording.pool);
}

static void test_traces_of_the_library_are_replayed(void **state)
{
	const char *const arguments[] = {"--pool", "name=p0,backend=host,size=1GiB,page_size=512KB,reserved=0", NULL};
	struct harness harness;
	cJSON *result;

	(void)state;
	harness_start(&harness, arguments);
	record_some(&harness);
	/* Replay on the same agent. */
	assert_int_equal(RUN("malloc", trace_path, "-o", "json", "--dir", harness.directory), 0);
	result = read_result();
	assert_true(number(member(result, "trace"), "threads") == 2);
	assert_true(number(member(result, "trace"), "streams") == 1);
	assert_true(number(member(result, "trace"), "allocations") == 268);
	assert_true(number(member(result, "trace"), "events") == 2 * 268);
	assert_true(number(result, "page_bytes") == 512 << 10);
	assert_served(result, 0, "gpool");
	cJSON_Delete(result);
	assert_int_equal(RUN("malloc", trace_path, "--dir", harness.directory, "--pool", "missing"), 1);
	assert_non_null(strstr(read_text(tool.error), "no pool or tenant of this name"));
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(harness_stop(&harness), 0);
	assert_nothing_left();
}

/* ---- refusals and interrupts ---- */

static void test_refuses(void **state)
{
	static const struct {
		const char *arguments[6];
		const char *words;
	} bad[] = {
		{{"play"}, "unknown verb 'play'"},
		{{"--frobnicate"}, "unknown option '--frobnicate'"},
		{{"malloc"}, "'malloc' needs TRACE"},
		{{"malloc", "a", "b"}, "'malloc' does not take the argument 'b'"},
		{{"malloc", "--speed", "0", "-"}, "--speed '0' is not a number from 0.001"},
		{{"malloc", "--speed", "nan", "-"}, "--speed 'nan' is not"},
		{{"malloc", "--speed", "1..2", "-"}, "--speed '1..2' is not"},
		{{"malloc", "--allocator", "slab", "-"}, "contains an unknown allocator"},
		{{"malloc", "--allocator", "gpool,gpool", "-"}, "contains an allocator twice"},
		{{"malloc", "--output", "xml", "-"}, "--output 'xml' is neither table nor json"},
		{{"malloc", "--pool-size", "80", "-"}, "--pool-size '80' is not a size"},
		{{"malloc", "--page-size", "3MiB", "-"}, "not one of 512KiB"},
		{{"malloc", "--pool", "p0", "-"}, "--pool 'p0' requires --dir"},
		{{"malloc", "--dir", "/tmp", "--pool-size", "1GiB", "-"}, "cannot be used with --dir"},
		{{"malloc", "/nonexistent"}, "cannot open trace '/nonexistent'"},
		{{"malloc", trace_path}, "trace.csv:3: size: '-5' is not a number from 1"},
		{{"make", "--chance", "0"}, "--chance '0' is not a number from 1 to 100"},
		{{"make", "--allocations", ""}, "--allocations '' is not"},
		{{"make", "--up-to", "2GiB", "--cap", "1GiB"}, "--up-to must not exceed --cap"},
		{{"make", "--threads", "257"}, "--threads '257' is not a number from 1 to 256"},
		{{"make", "--seed"}, "option '--seed' needs a value"},
		{{"make", "--through", "16TiB", "--up-to", "1KiB"}, "maximum number of events of a trace"},
	};

	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n0,1,1,malloc,-5,2\n");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *arguments[8] = {NULL};

		memcpy(arguments, bad[i].arguments, sizeof bad[i].arguments);
		if (tool_run(arguments) != 2 || !strstr(read_text(tool.error), bad[i].words))
			fail_msg("'%s %s': not refused with '%s' but: %s", arguments[0],
				arguments[1] ? arguments[1] : "", bad[i].words, read_text(tool.error));
		assert_nothing_left();
	}
	assert_int_equal(RUN("malloc", trace_path, "--dir", "/nonexistent"), 2); /* the trace is checked first */
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n");
	assert_int_equal(RUN("malloc", trace_path, "--dir", "/nonexistent"), 1);
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB", "--picture", "/nonexistent/p.svg"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot draw '/nonexistent/p.svg'"));
	assert_int_equal(RUN("make", "/dev/full"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot write '/dev/full'"));
}

static void test_takes_incomplete_traces_if_asked(void **state)
{
	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,free,0,9\n0,1,1,malloc,5,1\n1,1,1,mal");
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB"), 2);
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB", "--incomplete"), 0);
	assert_non_null(strstr(read_text(tool.out), "2 events were skipped"));
}

static void interrupted_leaves_nothing(int signal_number)
{
	const char *const arguments[] = {"malloc", trace_path, "--speed", "0.001", "--pool-size", "64MiB", NULL};
	int ends[2];
	char said[4096];
	size_t length = 0;
	ssize_t more;
	pid_t child;

	/* One thread waits for its time, and another thread for an allocation of the first. */
	write_text(trace_path,
		"time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n1000000000,1,1,malloc,5,2\n1000000000,2,1,free,0,"
		"2\n");
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = tool_start(arguments, ends[1]);
	close(ends[1]);
	/* The first line of progress shows that the replay is running. */
	while (length < sizeof said - 1 && (more = read(ends[0], said + length, sizeof said - 1 - length)) > 0) {
		length += (size_t)more;
		said[length] = '\0';
		if (strstr(said, " events, ")) {
			kill(child, signal_number);
			break;
		}
	}
	while (read(ends[0], said, sizeof said) > 0)
		;
	close(ends[0]);
	assert_int_equal(tool_wait(child), 128 + signal_number);
	assert_nothing_left();
}

static void test_interrupted_leaves_nothing(void **state)
{
	(void)state;
	interrupted_leaves_nothing(SIGINT);
	interrupted_leaves_nothing(SIGQUIT);
	interrupted_leaves_nothing(SIGALRM);
	interrupted_leaves_nothing(SIGPIPE);
}

/* SIGTERM arrives while gpoold creates its files, and ends it before it can remove them. */
static void test_interrupted_with_the_files_of_gpoold(void **state)
{
	char program[64];

	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n");
	write_text(tool_path(program, "gpoold"),
		"#!/bin/sh\nmkdir -p \"$3/nn\" && : >\"$3/nn/control\" && : >\"$3/gpoold.pid\"\n"
		"kill -TERM $PPID && kill -KILL $$\n");
	assert_int_equal(chmod(program, 0700), 0);
	setenv("GPOOLD", program, 1);
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB"), 128 + SIGTERM);
	unsetenv("GPOOLD");
	assert_nothing_left();
}

static void test_helps(void **state)
{
	(void)state;
	assert_int_equal(RUN("--help"), 0);
	assert_non_null(strstr(read_text(tool.out), "replay stream-ordered allocations"));
	assert_int_equal(RUN("malloc", "--help"), 0);
	assert_non_null(strstr(read_text(tool.out), "--picture FILE"));
	assert_int_equal(RUN("make", "--help"), 0);
	assert_non_null(strstr(read_text(tool.out), "--chance PERCENT"));
	assert_int_equal(RUN("--version"), 0);
	assert_int_equal(strncmp(read_text(tool.out), "gpool-replay ", 13), 0);
}

/* ---- set-up and teardown ---- */

static int prepare(void **state)
{
	(void)state;
	if (tool_prepare("gpool-replay", "GPOOL_REPLAY"))
		return -1;
	tool_path(picture, "picture.svg");
	tool_path(trace_path, "trace.csv");
	return 0;
}

static int clean_up(void **state)
{
	(void)state;
	return tool_clean_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_helps),
		cmocka_unit_test(test_takes_incomplete_traces_if_asked),
		cmocka_unit_test(test_replays_on_both_and_draws),
		cmocka_unit_test(test_replays_threads_and_streams),
		cmocka_unit_test(test_failed_allocations_are_counted),
		cmocka_unit_test(test_keeps_the_times_of_the_trace),
		cmocka_unit_test(test_traces_of_the_library_are_replayed),
		cmocka_unit_test(test_interrupted_leaves_nothing),
		cmocka_unit_test(test_interrupted_with_the_files_of_gpoold),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
