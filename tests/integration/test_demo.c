/*
 * test_demo.c - gpool-demo as users run it, on a small part of the traces shipped with it.
 *
 * Goal: every request finishes and verifies while engines are killed. The report has the curves of both engines. One
 * wrong byte makes the demo fail. Wrong options and traces are refused. An interrupt leaves neither a process nor a
 * file behind.
 *
 * Method: the real program and agent run as children of this process, which is the reaper of all their descendants and
 * therefore detects processes left behind. $TMPDIR is a folder of this test, which must be empty afterwards.
 *
 * Requirements: O5.
 */
#include "tests/integration/tool_process.h"
#include "tests/lib/harness.h"

#include "client/gpool.h"

enum { REQUESTS = 40 };

static char report[64], trace_path[64];

/* ---- invariants ---- */

/* Check that all requests of a run completed, whatever happened during the run. */
static void assert_complete(const cJSON *result, const cJSON *run)
{
	const cJSON *agent = cJSON_GetObjectItemCaseSensitive(run, "agent");
	const cJSON *pool = cJSON_GetObjectItemCaseSensitive(result, "pool");
	double token_bytes = number(cJSON_GetObjectItemCaseSensitive(result, "model"), "token_bytes");

	assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(run, "complete")));
	assert_true(number(run, "requests") == REQUESTS);
	assert_true(number(run, "finished") == REQUESTS);
	assert_true(number(run, "tokens") > 0);
	/* A follow-up verifies its prefix, but does not write it. */
	assert_true(number(run, "bytes_verified") >= number(run, "tokens") * token_bytes);
	assert_true(number(run, "bytes_written") >=
		(number(run, "tokens") - number(run, "prefix_hit_tokens")) * token_bytes);
	assert_true(number(run, "peak_pages") > 0);
	assert_true(number(run, "peak_pages") <= number(pool, "page_count"));
	assert_true(number(agent, "pages_left") == 0);
	assert_true(number(agent, "findings") == 0);
	assert_true(number(agent, "pages_checked") == number(pool, "page_count"));
}

/* Return the number of points of the first curve with these classes after `from`, or -1 if no curve has them. */
static long curve_points(const char *from, const char *css_class)
{
	char wanted[96];
	const char *at;

	snprintf(wanted, sizeof wanted, "class=\"%s\" data-points=\"", css_class);
	at = strstr(from, wanted);
	return at ? strtol(at + strlen(wanted), NULL, 10) : -1;
}

static int occurrences(const char *text, const char *word)
{
	int count = 0;

	for (; (text = strstr(text, word)) != NULL; text += strlen(word))
		count++;
	return count;
}

/* Check that the report is one self-contained file with the six layers of both engines, `charts` times. */
static void assert_report(int charts, double least_points)
{
	static const char *const curves[] = {"area e0 needed", "area e0 offered", "area e0 idle", "area e1 needed",
		"area e1 offered", "area e1 idle"};
	const char *text = read_text(report), *figures;

	assert_non_null(strstr(text, "<!DOCTYPE html>"));
	assert_non_null(strstr(text, "</html>"));
	for (size_t i = 0; i < sizeof curves / sizeof curves[0]; i++) {
		char wanted[64];

		snprintf(wanted, sizeof wanted, "class=\"%s\"", curves[i]);
		assert_int_equal(occurrences(text, wanted), charts);
		for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
			assert_true((double)curve_points(at, curves[i]) >= least_points);
	}
	assert_true((double)curve_points(text, "line shared") >= least_points);
	assert_null(strstr(text, "http:"));
	assert_null(strstr(text, "https:"));
	assert_null(strstr(text, "src="));
	assert_null(strstr(text, "url("));
	/* In the drawings, which precede the figures, every coordinate must be a valid number. */
	figures = strstr(text, "<h2>Figures</h2>");
	assert_non_null(figures);
	assert_null(memmem(text, (size_t)(figures - text), "nan", 3));
	assert_non_null(strstr(text, "prefers-color-scheme:dark"));
}

/* ---- tests ---- */

/* Requirements: C7. */
static void test_demo_verifies_while_engines_are_killed(void **state)
{
	const char *const arguments[] = {"--limit", "40", "--kill-every", "0.5", "-o", "json", "--no-split", "--seed",
		"3", "--backend", harness_backend(), "--report", report, NULL};
	const cJSON *run;
	cJSON *result;

	(void)state;
	assert_int_equal(tool_run(arguments), 0);
	result = read_result();
	assert_true(number(result, "version") == 1);
	assert_string_equal(cJSON_GetObjectItemCaseSensitive(result, "kind")->valuestring, "demo");
	assert_true(number(result, "errors") == 0);
	assert_string_equal(cJSON_GetObjectItemCaseSensitive(result, "seed")->valuestring, "3");
	assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(result, "runs")), 1);
	run = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(result, "runs"), 0);
	assert_complete(result, run);
	assert_true(number(run, "failed") == 0);
	assert_true(number(run, "kills") >= 1);
	assert_report(1, 5);
	cJSON_Delete(result);
	assert_nothing_left();
}

/* In a small pool, requests wait, release their pages and lose their prefixes. Test it shared, then split. */
static void test_demo_verifies_under_pressure(void **state)
{
	const char *const arguments[] = {"--limit", "40", "--kill-every", "0", "-o", "json", "--seed", "4",
		"--pool-size", "256MiB", "--load", "4", "--speed", "40", "--report", report, "--quiet", NULL};
	cJSON *result;

	(void)state;
	assert_int_equal(tool_run(arguments), 0);
	result = read_result();
	assert_true(number(result, "errors") == 0);
	assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(result, "runs")), 2);
	for (int i = 0; i < 2; i++) {
		const cJSON *run = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(result, "runs"), i);

		assert_string_equal(cJSON_GetObjectItemCaseSensitive(run, "mode")->valuestring, i ? "split" : "shared");
		assert_complete(result, run);
		assert_true(number(run, "failed") == 0);
		assert_true(number(run, "kills") == 0);
		assert_true(number(run, "waits") > 0);
		assert_true(number(run, "wait_us") > 0);
		assert_true(number(cJSON_GetObjectItemCaseSensitive(run, "agent"), "evictions") > 0);
	}
	assert_report(2, 5);
	assert_true(curve_points(read_text(report), "line split") >= 5);
	assert_int_equal(strlen(read_text(tool.error)), 0);
	cJSON_Delete(result);
	assert_nothing_left();
}

static double gave_pages(const cJSON *run, int engine)
{
	return number(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(run, "engines"), engine), "gave_pages");
}

/* While one engine has no requests, the other leases more than half of the pool. */
static void test_demo_idle_engine_loses_pages(void **state)
{
	const char *const arguments[] = {"--duration", "12", "--load", "1", "--kill-every", "0", "-o", "json",
		"--no-split", "--seed", "1", "--pool-size", "512MiB", "--report", report, "--quiet", NULL};
	const char *const steady[] = {"--limit", "10", "--steady", "--model", "tiny", "--kill-every", "0", "-o", "json",
		"--no-split", "--report", report, "--quiet", NULL};
	const cJSON *run;
	cJSON *result;

	(void)state;
	assert_int_equal(tool_run(arguments), 0);
	result = read_result();
	run = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(result, "runs"), 0);
	assert_true(number(result, "errors") == 0);
	assert_true(number(result, "idle_s") > 0);
	assert_true(gave_pages(run, 0) > 0);
	assert_true(gave_pages(run, 0) <= number(cJSON_GetObjectItemCaseSensitive(result, "pool"), "page_count") / 2);
	assert_non_null(strstr(read_text(report), "no requests arrive for code"));
	cJSON_Delete(result);
	assert_int_equal(tool_run(steady), 0);
	result = read_result();
	assert_true(number(result, "idle_s") == 0);
	assert_null(strstr(read_text(report), "no requests arrive for"));
	cJSON_Delete(result);
	assert_nothing_left();
}

/* The verification must be able to fail. */
static void test_demo_finds_one_flipped_bit(void **state)
{
	const char *const arguments[] = {"--limit", "40", "--kill-every", "0", "-o", "json", "--no-split", "--seed",
		"5", "--corrupt", "7", "--model", "tiny", "--backend", harness_backend(), "--report", report, NULL};
	const cJSON *run;
	cJSON *result;

	(void)state;
	assert_int_equal(tool_run(arguments), 1);
	result = read_result();
	assert_true(number(result, "errors") == 1);
	run = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(result, "runs"), 0);
	assert_true(number(run, "failed") == 1);
	assert_true(number(run, "finished") == REQUESTS);
	assert_non_null(strstr(cJSON_GetObjectItemCaseSensitive(run, "error")->valuestring, "wrote"));
	assert_non_null(strstr(read_text(tool.error), "1 error on the shared pool"));
	assert_non_null(strstr(read_text(report), "1 error on the shared pool"));
	cJSON_Delete(result);
	assert_nothing_left();
}

static void interrupted_leaves_nothing(int signal_number)
{
	const char *const arguments[] = {
		"--no-split", "--kill-every", "1", "--model", "tiny", "--report", report, NULL};
	int ends[2];
	char said[4096];
	size_t length = 0;
	ssize_t more;
	pid_t child;

	unlink(report);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = tool_start(arguments, ends[1]);
	close(ends[1]);
	/* The first line of progress shows that agent and engines are running. */
	while (length < sizeof said - 1 && (more = read(ends[0], said + length, sizeof said - 1 - length)) > 0) {
		length += (size_t)more;
		said[length] = '\0';
		if (strstr(said, " requests ")) {
			kill(child, signal_number);
			break;
		}
	}
	while (read(ends[0], said, sizeof said) > 0)
		;
	close(ends[0]);
	assert_int_equal(tool_wait(child), 130);
	assert_int_equal(access(report, F_OK), -1);
	assert_nothing_left();
}

static void test_demo_interrupted_leaves_nothing(void **state)
{
	(void)state;
	interrupted_leaves_nothing(SIGINT);
	interrupted_leaves_nothing(SIGQUIT);
	interrupted_leaves_nothing(SIGALRM);
	interrupted_leaves_nothing(SIGPIPE);
}

/* The agent that --keep has left running. */
static int kept_agent;

static void test_demo_keep_leaves_a_working_agent(void **state)
{
	const char *const arguments[] = {"--limit", "10", "--no-split", "--kill-every", "0", "--model", "tiny",
		"--quiet", "--keep", "--report", report, NULL};
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool *pool;
	char directory[128] = "", root[128] = "", log[160];
	const char *said;
	int status = tool_run(arguments);

	(void)state;
	said = read_text(tool.error);
	assert_non_null(strstr(said, "as process "));
	assert_int_equal(sscanf(strstr(said, "as process "), "as process %d.", &kept_agent), 1);
	assert_int_equal(sscanf(strstr(said, "--dir "), "--dir %127s", directory), 1);
	assert_int_equal(sscanf(strstr(said, "remove "), "remove %127s", root), 1);
	assert_int_equal(status, 0);
	options.directory = directory;
	options.flags = GPOOL_OPEN_OBSERVER;
	options.timeout_ms = AWAIT_MS;
	assert_int_equal(gpool_open(&options, &pool), 0);
	assert_true(gpool_page_count(pool) > 0);
	gpool_close(pool);
	kill(kept_agent, SIGTERM);
	assert_int_equal(tool_wait(kept_agent), 0);
	kept_agent = 0;
	snprintf(log, sizeof log, "%s/log", root);
	assert_int_equal(unlink(log), 0);
	rmdir(directory);
	assert_int_equal(rmdir(root), 0);
	assert_nothing_left();
}

/* With an invalid command line no process is started. */
static void test_demo_refuses(void **state)
{
	static const struct {
		const char *arguments[6];
		const char *words;
	} bad[] = {
		{{"--speed", "fast"}, "--speed 'fast' is not a number from"},
		{{"--speed", "0"}, "is not a number from"},
		{{"--limit", "0"}, "is not a number from 1"},
		{{"--limit", "-4"}, "is not a number from"},
		{{"--seed", "x"}, "is not a number from"},
		{{"--page-size", "3MiB"}, "512KiB, 1MiB, 2MiB, 4MiB"},
		{{"--page-size", "768KiB"}, "512KiB, 1MiB, 2MiB, 4MiB"},
		{{"--pool-size", "2"}, "a size such as"},
		{{"--pool-size", "1MiB"}, "too small"},
		{{"--backend", "gpu"}, "'gpu' is not host or cuda"},
		{{"--model", "gpt"}, "neither a model nor"},
		{{"--model", "llama-70b", "--pool-size", "64MiB"}, "larger --pool-size"},
		{{"--model", "llama-70b,dtype=fp32"}, "more than a page"},
		{{"--report", "."}, "cannot replace '.': it exists and is not a regular file"},
		{{"--report", "-"}, "cannot write to '-'"},
		{{"-o", "xml"}, "neither table nor json"},
		{{"--frobnicate"}, "unknown option"},
		{{"again"}, "does not take the argument 'again'"},
		{{"--trace", "/nonexistent"}, "cannot open trace"},
		{{"--trace", trace_path, "--trace", trace_path}, "bad.csv:2: "},
		{{"--trace", "a", "--trace", "b", "--trace", "c"}, "more than twice"},
	};
	FILE *file = fopen(trace_path, "w");

	(void)state;
	assert_non_null(file);
	fputs("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,many,1\n", file);
	fclose(file);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *arguments[8] = {NULL};

		memcpy(arguments, bad[i].arguments, sizeof bad[i].arguments);
		if (tool_run(arguments) != 2 || !strstr(read_text(tool.error), bad[i].words))
			fail_msg("'%s %s': not refused with '%s' but: %s", arguments[0],
				arguments[1] ? arguments[1] : "", bad[i].words, read_text(tool.error));
		assert_nothing_left();
	}
}

static void test_demo_helps(void **state)
{
	const char *const help[] = {"--help", NULL};
	const char *text;

	(void)state;
	assert_int_equal(tool_run(help), 0);
	text = read_text(tool.out);
	assert_non_null(strstr(text, "--kill-every SECONDS"));
	assert_non_null(strstr(text, "llama-70b-tp8 (40960 bytes per token)"));
	assert_null(strstr(text, "--corrupt"));
}

/* ---- set-up and teardown ---- */

static int prepare(void **state)
{
	(void)state;
	if (tool_prepare("gpool-demo", "GPOOL_DEMO"))
		return -1;
	tool_path(report, "report.html");
	tool_path(trace_path, "bad.csv");
	return 0;
}

static int clean_up(void **state)
{
	(void)state;
	if (kept_agent > 0) {
		kill(kept_agent, SIGTERM);
		waitpid(kept_agent, NULL, 0);
	}
	return tool_clean_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_demo_refuses),
		cmocka_unit_test(test_demo_helps),
		cmocka_unit_test(test_demo_verifies_while_engines_are_killed),
		cmocka_unit_test(test_demo_verifies_under_pressure),
		cmocka_unit_test(test_demo_idle_engine_loses_pages),
		cmocka_unit_test(test_demo_finds_one_flipped_bit),
		cmocka_unit_test(test_demo_interrupted_leaves_nothing),
		cmocka_unit_test(test_demo_keep_leaves_a_working_agent),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
