/*
 * test_replay.c - gpool-replay as people run it, on traces that it makes itself and on one that the library records.
 *
 * Goal: every event is played, by as many threads and streams as the trace has, on each allocator; what finds no memory is counted; what
 * the library records can be replayed; the picture is one whole file; wrong options and traces are refused with the place; an interrupt
 * leaves neither a process nor a file. Method: the real program with the real agent, as children of this process, which is the reaper of
 * all their descendants. $TMPDIR is a folder of this test's own, which must be empty afterwards.
 */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/harness.h"

enum { STUCK_SECONDS = 200, ARGUMENTS_MAX = 24, TEXT_MAX = 4 << 20 };

static char replay[4096 + 32];
static char folder[] = "/tmp/test_replay.XXXXXX";
static char temporary[64], picture[64], out_path[64], error_path[64], trace_path[64];

/* ---- running it ---- */

/* Start gpool-replay with arguments up to NULL. Its output goes to out_path; its messages to error_fd or error_path. */
static pid_t replay_start(const char *const *arguments, int error_fd)
{
	const char *all[ARGUMENTS_MAX] = {replay};
	pid_t child;

	for (size_t i = 0; arguments[i]; i++) {
		assert_true(i + 2 < ARGUMENTS_MAX);
		all[i + 1] = arguments[i];
	}
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		int error = error_fd >= 0 ? error_fd : open(error_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		if (dup2(out, 1) < 0 || dup2(error, 2) < 0)
			_exit(99);
		execv(replay, (char *const *)(uintptr_t)all);
		_exit(98);
	}
	return child;
}

static int wait_for(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int replay_run(const char *const *arguments)
{
	return wait_for(replay_start(arguments, -1));
}
#define RUN(...) replay_run((const char *const[]){__VA_ARGS__, NULL})

static const char *read_text(const char *path)
{
	static char text[TEXT_MAX];
	FILE *file = fopen(path, "r");
	size_t length;

	if (!file)
		fail_msg("cannot open '%s'", path);
	length = fread(text, 1, sizeof text - 1, file);
	text[length] = '\0';
	fclose(file);
	return text;
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static cJSON *read_result(void)
{
	cJSON *result = cJSON_Parse(read_text(out_path));

	if (!result)
		fail_msg("no JSON in '%s'; it said: %s", out_path, read_text(error_path));
	return result;
}

static const cJSON *member(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!item)
		fail_msg("no member '%s'", name);
	return item;
}

static double number(const cJSON *object, const char *name)
{
	const cJSON *item = member(object, name);

	assert_true(cJSON_IsNumber(item));
	return item->valuedouble;
}

/* Nothing in $TMPDIR and no descendant, alive or dead. */
static void assert_nothing_left(void)
{
	DIR *directory = opendir(temporary);
	const struct dirent *entry;

	assert_non_null(directory);
	while ((entry = readdir(directory)) != NULL)
		if (entry->d_name[0] != '.')
			fail_msg("'%s' was left in the temporary folder", entry->d_name);
	closedir(directory);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* ---- what must hold ---- */

/* A run in which everything was served. */
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
	assert_true(number(mallocs, "count") == number(run, "mallocs") && number(frees, "count") == number(run, "frees"));
	assert_true(number(mallocs, "p50") > 0 && number(mallocs, "p50") <= number(mallocs, "p99"));
	assert_true(number(mallocs, "p99") <= number(mallocs, "max") && number(mallocs, "mean") <= number(mallocs, "max"));
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

/* One file that needs nothing else, with a panel for each allocator. */
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
	assert_int_equal(occurrences(text, "http"), 1); /* the name space */
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
	assert_int_equal(
		RUN("malloc", trace_path, "-a", "gpool,best-fit", "-o", "json", "--picture", picture, "--pool-size", "8GiB"), 0);
	result = read_result();
	assert_true(number(result, "version") == 1);
	assert_string_equal(member(result, "kind")->valuestring, "replay-malloc");
	assert_true(number(member(result, "trace"), "threads") == 1);
	assert_int_equal(cJSON_GetArraySize(member(result, "runs")), 2);
	assert_served(result, 0, "gpool");
	assert_served(result, 1, "best-fit");
	/* One thread: the peak is the trace's own. */
	for (int i = 0; i < 2; i++)
		assert_true(number(cJSON_GetArrayItem(member(result, "runs"), i), "peak_live_bytes") ==
			number(member(result, "trace"), "peak_bytes"));
	assert_picture(2);
	assert_null(strstr(read_text(error_path), "gpool-replay:"));
	cJSON_Delete(result);
	assert_nothing_left();
}

/* Allocated by one thread, freed by another, on streams that have work to do; then one event after the other. */
static void test_replays_threads_and_streams(void **state)
{
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("make", "--allocations", "4000", "--up-to", "8MiB", "--cap", "512MiB", "--threads", "5", "--streams", "4",
				 "--seed", "7", trace_path),
		0);
	for (int in_order = 0; in_order < 2; in_order++) {
		assert_int_equal(RUN("malloc", trace_path, "-a", "best-fit,gpool", "-o", "json", "--quiet", "--pool-size", "4GiB", "--fill",
					 "4KiB", in_order ? "--in-order" : "--quiet"),
			0);
		result = read_result();
		assert_true(number(member(result, "trace"), "threads") == 5);
		assert_true(number(member(result, "trace"), "streams") == 4);
		assert_served(result, 0, "best-fit");
		assert_served(result, 1, "gpool");
		assert_true(number(member(cJSON_GetArrayItem(member(result, "runs"), 1), "driver_calls_by_kind"), "fill") == 4000);
		if (in_order)
			assert_true(number(cJSON_GetArrayItem(member(result, "runs"), 1), "peak_live_bytes") ==
				number(member(result, "trace"), "peak_bytes"));
		cJSON_Delete(result);
	}
	assert_nothing_left();
}

/* No memory is a result. */
static void test_counts_what_finds_no_memory(void **state)
{
	const cJSON *run;
	cJSON *result;

	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,50331648,1\n1,1,1,malloc,50331648,2\n2,1,1,free,0,2\n"
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
	assert_non_null(strstr(read_text(out_path), "allocations failed"));
	assert_nothing_left();
}

static void test_keeps_the_times_of_the_trace(void **state)
{
	cJSON *result;

	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n1000000000,1,0,malloc,4096,1\n1080000000,2,0,free,0,1\n");
	assert_int_equal(RUN("malloc", trace_path, "-o", "json", "--speed", "2", "--pool-size", "64MiB"), 0);
	result = read_result();
	assert_true(number(cJSON_GetArrayItem(member(result, "runs"), 0), "duration_ns") >= 40e6);
	cJSON_Delete(result);
	assert_nothing_left();
}

/* ---- what the library records ---- */

struct recording {
	struct gpool *pool;
	uint64_t given[200];
	uint32_t stream;
};

/* Frees what another thread has allocated. */
static void *free_all(void *context)
{
	struct recording *recording = context;

	for (int i = 0; i < 200; i++)
		if (gpool_mfree(recording->pool, recording->given[i], recording->stream))
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
	options.timeout_ms = 10000; /* calls without a stream may wait for the GPU */
	assert_int_equal(gpool_vm_configure(recording.pool, &options), 0);
	assert_int_equal(gpool_stream_open(recording.pool, NULL, 0, &recording.stream), 0);
	for (uint64_t i = 0; i < 200; i++) {
		/* Small ones, too; each is known by its number also when its place is used again. */
		assert_int_equal(gpool_malloc(recording.pool, 1000 + i % 5 * (700 << 10), recording.stream, &recording.given[i]), 0);
		if (i % 3 == 0) {
			assert_int_equal(gpool_mfree(recording.pool, recording.given[i], recording.stream), 0);
			assert_int_equal(gpool_malloc(recording.pool, 2 << 20, 0, &recording.given[i]), 0);
		}
	}
	assert_int_equal(pthread_create(&thread, NULL, free_all, &recording), 0);
	pthread_join(thread, &failed);
	assert_null(failed);
	/* Without this one thread would be over when the other begins, and the two replayed by one. */
	assert_int_equal(gpool_malloc(recording.pool, 1, 0, &recording.given[0]), 0);
	assert_int_equal(gpool_mfree(recording.pool, recording.given[0], 0), 0);
	gpool_close(recording.pool);
}

static void test_replays_what_the_library_records(void **state)
{
	const char *const arguments[] = {"--pool", "name=p0,backend=host,size=1GiB,page_size=512KB,reserved=0", NULL};
	struct harness harness;
	cJSON *result;

	(void)state;
	harness_start(&harness, arguments);
	record_some(&harness);
	/* On that agent, too, of which nothing is kept. */
	assert_int_equal(RUN("malloc", trace_path, "-o", "json", "--dir", harness.directory), 0);
	result = read_result();
	assert_true(number(member(result, "trace"), "threads") == 2);
	assert_true(number(member(result, "trace"), "streams") == 1);
	assert_true(number(member(result, "trace"), "allocations") == 268);
	assert_true(number(member(result, "trace"), "events") == 2 * 268);
	assert_true(number(result, "page_bytes") == 512 << 10);
	assert_served(result, 0, "gpool");
	cJSON_Delete(result);
	assert_int_equal(RUN("malloc", trace_path, "--dir", harness.directory, "--pool", "nobody"), 1);
	assert_non_null(strstr(read_text(error_path), "no pool or tenant of that name"));
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(harness_stop(&harness), 0);
	assert_nothing_left();
}

/* ---- what must not be ---- */

static void test_refuses(void **state)
{
	static const struct {
		const char *arguments[6];
		const char *words;
	} bad[] = {
		{{"play"}, "unknown verb 'play'"},
		{{"--frobnicate"}, "unknown option '--frobnicate'"},
		{{"malloc"}, "'malloc' needs TRACE"},
		{{"malloc", "a", "b"}, "'malloc' does not take 'b'"},
		{{"malloc", "--speed", "0", "-"}, "--speed '0' is not a number from 0.001"},
		{{"malloc", "--speed", "nan", "-"}, "--speed 'nan' is not"},
		{{"malloc", "--speed", "1..2", "-"}, "--speed '1..2' is not"},
		{{"malloc", "--allocator", "slab", "-"}, "names an allocator that is not there"},
		{{"malloc", "--allocator", "gpool,gpool", "-"}, "names one twice"},
		{{"malloc", "--output", "xml", "-"}, "--output 'xml' is neither table nor json"},
		{{"malloc", "--pool-size", "80", "-"}, "--pool-size '80' is not a size"},
		{{"malloc", "--page-size", "3MiB", "-"}, "none of 512KiB"},
		{{"malloc", "--pool", "p0", "-"}, "--pool 'p0' is for an agent that serves"},
		{{"malloc", "--dir", "/tmp", "--pool-size", "1GiB", "-"}, "not for one that serves"},
		{{"malloc", "/nonexistent"}, "cannot open trace '/nonexistent'"},
		{{"malloc", trace_path}, "trace.csv:3: size: '-5' is not a number from 1"},
		{{"make", "--chance", "0"}, "--chance '0' is not a number from 1 to 100"},
		{{"make", "--allocations", ""}, "--allocations '' is not"},
		{{"make", "--up-to", "2GiB", "--cap", "1GiB"}, "--up-to is more than --cap"},
		{{"make", "--threads", "257"}, "--threads '257' is not a number from 1 to 256"},
		{{"make", "--seed"}, "option '--seed' needs a value"},
		{{"make", "--through", "16TiB", "--up-to", "1KiB"}, "more events than a trace can have"},
	};

	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n0,1,1,malloc,-5,2\n");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *arguments[8] = {NULL};

		memcpy(arguments, bad[i].arguments, sizeof bad[i].arguments);
		if (replay_run(arguments) != 2 || !strstr(read_text(error_path), bad[i].words))
			fail_msg("'%s %s': not refused with '%s' but: %s", arguments[0], arguments[1] ? arguments[1] : "", bad[i].words,
				read_text(error_path));
		assert_nothing_left();
	}
	assert_int_equal(RUN("malloc", trace_path, "--dir", "/nonexistent"), 2); /* the trace comes first */
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n");
	assert_int_equal(RUN("malloc", trace_path, "--dir", "/nonexistent"), 1);
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB", "--picture", "/nonexistent/p.svg"), 1);
	assert_non_null(strstr(read_text(error_path), "cannot draw '/nonexistent/p.svg'"));
	assert_int_equal(RUN("make", "/dev/full"), 1);
	assert_non_null(strstr(read_text(error_path), "cannot write '/dev/full'"));
}

static void test_takes_incomplete_traces_if_asked(void **state)
{
	(void)state;
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,free,0,9\n0,1,1,malloc,5,1\n1,1,1,mal");
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB"), 2);
	assert_int_equal(RUN("malloc", trace_path, "--pool-size", "8MiB", "--incomplete"), 0);
	assert_non_null(strstr(read_text(out_path), "2 events are left out"));
}

static void test_interrupted_leaves_nothing(void **state)
{
	const char *const arguments[] = {"malloc", trace_path, "--speed", "0.001", "--pool-size", "64MiB", NULL};
	int ends[2];
	char said[4096];
	size_t length = 0;
	ssize_t more;
	pid_t child;

	(void)state;
	/* A thread waits for its time, another for the first one's malloc. */
	write_text(trace_path, "time_ns,thread,stream,op,size,id\n0,1,1,malloc,5,1\n1000000000,1,1,malloc,5,2\n1000000000,2,1,free,0,2\n");
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = replay_start(arguments, ends[1]);
	close(ends[1]);
	/* The first line of progress: it plays. */
	while (length < sizeof said - 1 && (more = read(ends[0], said + length, sizeof said - 1 - length)) > 0) {
		length += (size_t)more;
		said[length] = '\0';
		if (strstr(said, " events, ")) {
			kill(child, SIGINT);
			break;
		}
	}
	while (read(ends[0], said, sizeof said) > 0)
		;
	close(ends[0]);
	assert_int_equal(wait_for(child), 130);
	assert_nothing_left();
}

static void test_helps(void **state)
{
	(void)state;
	assert_int_equal(RUN("--help"), 0);
	assert_non_null(strstr(read_text(out_path), "replay stream-ordered allocations"));
	assert_int_equal(RUN("malloc", "--help"), 0);
	assert_non_null(strstr(read_text(out_path), "--picture FILE"));
	assert_int_equal(RUN("make", "--help"), 0);
	assert_non_null(strstr(read_text(out_path), "--chance PERCENT"));
	assert_int_equal(RUN("--version"), 0);
	assert_int_equal(strncmp(read_text(out_path), "gpool-replay ", 13), 0);
}

/* ---- around them ---- */

static int prepare(void **state)
{
	char *slash;
	ssize_t length = readlink("/proc/self/exe", replay, sizeof replay - 32);

	(void)state;
	if (length < 0)
		return -1;
	/* This is build/CONFIG/tests/test_replay, and the program build/CONFIG/gpool-replay. */
	replay[length] = '\0';
	slash = strrchr(replay, '/');
	strcpy(slash, "/../gpool-replay");
	/* The agent's front may run as another user, who must be able to reach its sockets. */
	if (!mkdtemp(folder) || chmod(folder, 0711) != 0)
		return -1;
	snprintf(temporary, sizeof temporary, "%s/tmp", folder);
	snprintf(picture, sizeof picture, "%s/picture.svg", folder);
	snprintf(out_path, sizeof out_path, "%s/out", folder);
	snprintf(error_path, sizeof error_path, "%s/error", folder);
	snprintf(trace_path, sizeof trace_path, "%s/trace.csv", folder);
	setenv("TMPDIR", temporary, 1);
	alarm(STUCK_SECONDS);
	return mkdir(temporary, 0711) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ? -1 : 0;
}

static int clean_up(void **state)
{
	const char *const paths[] = {picture, out_path, error_path, trace_path};

	(void)state;
	for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
		unlink(paths[i]);
	rmdir(temporary);
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_helps),
		cmocka_unit_test(test_takes_incomplete_traces_if_asked),
		cmocka_unit_test(test_replays_on_both_and_draws),
		cmocka_unit_test(test_replays_threads_and_streams),
		cmocka_unit_test(test_counts_what_finds_no_memory),
		cmocka_unit_test(test_keeps_the_times_of_the_trace),
		cmocka_unit_test(test_replays_what_the_library_records),
		cmocka_unit_test(test_interrupted_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
