/*
 * test_replay_engines.c - `gpool-replay kv --engines` as users run it, on the excerpts of public traces that are
 * shipped.
 *
 * Goal: engines begin with blocks that other engines wrote, and every block that is used has the content of its tokens;
 * a wrong one is detected. Two engines, one of which is idle at times, are compared with one engine. When memory is
 * short, sequences are preempted, and all requests finish, computed again or restored from host memory. The figures add
 * up. One engine finds the same blocks as the model of a cache. A killed engine is reported, the others continue, and
 * nothing is left behind. Wrong options and traces are refused.
 *
 * Method: the real program and agent run as children of this process. Run it from the root of the source tree.
 *
 * Requirements: O5.
 */
#include "tests/integration/tool_process.h"

#include <stdbool.h>

static const char chat[] = "tools/replay/traces/mooncake_conversation.jsonl",
		  lengths[] = "tools/demo/traces/azure_conv.csv";
static char trace_path[64], chart_path[64];

/* ---- invariants of any run ---- */

static const char *const sums[] = {"requests", "finished", "refused", "steps", "prompt_tokens", "found_tokens",
	"recomputed_tokens", "generated_tokens", "hit_blocks", "hit_blocks_of_others", "missed_blocks",
	"evicted_blocks", "lost_blocks", "shared_blocks", "idle_us", "preempted", "offloaded", "resumed", "waits",
	"wait_us", "saved_bytes", "loaded_bytes", "table_bytes", "driver_calls", "verified_blocks", "wrong_blocks"};

static const cJSON *run_of(const cJSON *result, int index)
{
	const cJSON *run = cJSON_GetArrayItem(member(result, "runs"), index);

	assert_non_null(run);
	return run;
}

static void assert_adds_up(const cJSON *run, int engines)
{
	double blocks = number(run, "hit_blocks") + number(run, "missed_blocks");

	assert_int_equal(cJSON_GetArraySize(member(run, "engines")), engines);
	for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
		const cJSON *engine;
		double sum = 0;

		cJSON_ArrayForEach(engine, member(run, "engines")) sum += number(engine, sums[i]);
		if (sum != number(run, sums[i]))
			fail_msg(
				"'%s' of all engines is %.0f, and of the run %.0f", sums[i], sum, number(run, sums[i]));
	}
	assert_true(number(run, "found_tokens") == number(run, "hit_blocks") * number(run, "block_tokens"));
	assert_true(number(run, "hit_blocks_of_others") <= number(run, "hit_blocks"));
	assert_float_equal(number(run, "hit_rate"), blocks > 0 ? number(run, "hit_blocks") / blocks : 0, 1e-9);
	assert_true(number(run, "mean_pages") <= number(run, "peak_pages"));
	assert_true(number(run, "steps") > 0 && number(run, "driver_calls") > 0);
}

/* Check a run in which all requests finished. */
static void assert_complete(const cJSON *run, int engines)
{
	const cJSON *engine;

	assert_adds_up(run, engines);
	assert_true(number(run, "finished") == number(run, "requests"));
	assert_true(number(run, "first_tokens") == number(run, "finished"));
	assert_true(number(run, "resumed") == number(run, "preempted") + number(run, "offloaded"));
	assert_true(number(run, "verified_blocks") > 0);
	assert_true(number(run, "wrong_blocks") == 0);
	cJSON_ArrayForEach(engine, member(run, "engines")) assert_null(cJSON_GetObjectItem(engine, "failed"));
}

/* ---- tests ---- */

static void test_engines_share_blocks(void **state)
{
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("kv", chat, "--engines", "2", "--limit", "40", "-o", "json", "-q"), 0);
	assert_string_equal(read_text(tool.error), "");
	result = read_result();
	assert_string_equal(member(result, "kind")->valuestring, "replay-kv-engines");
	assert_complete(run_of(result, 0), 2);
	assert_true(number(run_of(result, 0), "requests") == 40);
	assert_true(number(run_of(result, 0), "shared_blocks") > 0);
	assert_true(number(run_of(result, 0), "hit_blocks_of_others") > 0);
	cJSON_Delete(result);
	assert_int_equal(RUN("kv", chat, "--engines", "2", "--limit", "40", "-o", "json", "-q", "--apart"), 0);
	result = read_result();
	assert_complete(run_of(result, 0), 2);
	assert_true(number(run_of(result, 0), "hit_blocks") > 0);
	assert_true(number(run_of(result, 0), "shared_blocks") == 0);
	assert_true(number(run_of(result, 0), "hit_blocks_of_others") == 0);
	cJSON_Delete(result);
	assert_nothing_left();
}

/*
 * Return how many of the first `requests` requests the last of two engines receives. It receives every second request
 * in every second window.
 */
static int requests_of_last(int requests, double window_ms)
{
	const char *line = read_text(chat);
	int count = 0;

	for (int i = 0; i < requests; i++, line = strchr(line, '\n') + 1) {
		const char *time = strstr(line, "\"timestamp\":");

		assert_non_null(time);
		count += (long)(atof(time + 12) / window_ms) % 2 == 0 && i % 2 == 1;
	}
	return count;
}

static void test_compares_with_one_engine(void **state)
{
	const cJSON *run, *one;
	int of_last = requests_of_last(150, 5000);
	double rate;
	cJSON *result;

	(void)state;
	assert_true(of_last > 10 && of_last < 65);
	assert_int_equal(RUN("kv", chat, "--engines", "2", "--limit", "150", "--idle", "5", "--speed", "0.2", "-o",
				 "json", "-q"),
		0);
	assert_string_equal(read_text(tool.error), "");
	result = read_result();
	assert_true(number(result, "idle_s") == 5);
	run = run_of(result, 0);
	one = member(run, "one_engine");
	assert_complete(run, 2);
	assert_complete(one, 1);
	assert_true(number(run, "requests") == 150 && number(one, "requests") == 150);
	assert_true(number(cJSON_GetArrayItem(member(run, "engines"), 1), "requests") == of_last);
	assert_true(number(run, "hit_blocks_of_others") > 0 && number(one, "hit_rate") > 0);
	rate = number(run, "hit_rate") / number(one, "hit_rate");
	assert_float_equal(number(run, "rate_ratio"), rate, 1e-9);
	assert_true(number(run, "goal_ratio") == 0.98);
	assert_true(number(run, "idle_share") > 0 && number(run, "idle_share") < 1);
	cJSON_Delete(result);
	assert_int_equal(RUN("kv", chat, "--engines", "2", "--idle", "10", "--limit", "20", "-q"), 0);
	assert_non_null(strstr(read_text(tool.out), "2 engines / one engine = "));
	assert_non_null(strstr(read_text(tool.out), "20 of 20 requests finished"));
	assert_nothing_left();
}

/*
 * If requests run one after the other and memory suffices for all, an engine finds the same blocks as an unlimited
 * cache.
 */
static void test_hits_equal_those_of_the_model(void **state)
{
	double rate, found;
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("make-kv", "chats", trace_path, "--requests", "100", "--blocks", "100"), 0);
	assert_int_equal(RUN("kv", trace_path, "--engines", "1", "-o", "json", "-q", "--policy", "adaptive", "--tokens",
				 "8,32", "--speed", "0.01"),
		0);
	result = read_result();
	rate = number(member(result, "model"), "optimum");
	for (int i = 0; i < 2; i++) {
		assert_complete(run_of(result, i), 1);
		assert_true(number(run_of(result, i), "preempted") == 0);
		assert_string_equal(member(run_of(result, i), "policy")->valuestring, "adaptive");
		found = number(run_of(result, i), "found_tokens") / number(member(result, "trace"), "prompt_tokens");
		assert_true(rate > 0.3 && found <= rate && found > rate - 0.01);
	}
	cJSON_Delete(result);
	assert_nothing_left();
}

static void test_preempts_and_finishes(void **state)
{
	const cJSON *run;
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("kv", lengths, "--engines", "1", "--pool-size", "32MiB", "--page-size", "512KiB",
				 "--watermark", "0,1", "--growth", "incremental,mean,oracle", "-o", "json", "-q"),
		0);
	result = read_result();
	assert_null(cJSON_GetObjectItem(result, "model"));
	assert_int_equal(cJSON_GetArraySize(member(result, "runs")), 6);
	for (int i = 0; i < 6; i++) {
		run = run_of(result, i);
		assert_complete(run, 1);
		assert_true(number(run, "requests") == 448);
		assert_true(number(run, "hit_blocks") == 0);
		assert_true(number(run, "waits") > 0 && number(run, "wait_us") > 0);
		assert_true(number(run, "offloaded") == 0 && number(run, "saved_bytes") == 0);
		/* An engine that has all blocks from the beginning never waits for one. */
		assert_true((number(run, "preempted") > 0) == (i < 4));
		assert_true((number(run, "recomputed_tokens") > 0) == (i < 4));
	}
	/* Runs that estimate the lengths of the answers make fewer preemptions. */
	assert_true(number(run_of(result, 2), "preempted") < number(run_of(result, 0), "preempted"));
	assert_true(number(run_of(result, 3), "preempted") < number(run_of(result, 1), "preempted"));
	cJSON_Delete(result);
	assert_nothing_left();
}

/* Copied content is verified when it is restored. */
static void test_offloads(void **state)
{
	const cJSON *run;
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("kv", lengths, "--engines", "1", "--pool-size", "32MiB", "--page-size", "512KiB",
				 "--watermark", "0", "--offload", "64MiB", "-o", "json", "-q"),
		0);
	result = read_result();
	run = run_of(result, 0);
	assert_complete(run, 1);
	assert_true(number(run, "offloaded") > 0 && number(run, "preempted") == 0);
	assert_true(number(run, "recomputed_tokens") == 0);
	assert_true(number(run, "saved_bytes") > 0 && number(run, "loaded_bytes") == number(run, "saved_bytes"));
	cJSON_Delete(result);
	assert_nothing_left();
}

static void test_too_large_requests_are_refused(void **state)
{
	cJSON *result;

	(void)state;
	assert_int_equal(
		RUN("kv", chat, "--engines", "2", "--limit", "30", "--pool-size", "8MiB", "-o", "json", "-q"), 0);
	result = read_result();
	assert_adds_up(run_of(result, 0), 2);
	assert_true(number(run_of(result, 0), "refused") > 0 && number(run_of(result, 0), "finished") > 0);
	assert_true(number(run_of(result, 0), "refused") + number(run_of(result, 0), "finished") == 30);
	cJSON_Delete(result);
	assert_nothing_left();
}

static int occurrences(const char *text, const char *word)
{
	int count = 0;

	for (; (text = strstr(text, word)) != NULL; text += strlen(word))
		count++;
	return count;
}

static void test_table_and_chart(void **state)
{
	const char *text;

	(void)state;
	assert_int_equal(RUN("kv", chat, "--engines", "2", "--limit", "20", "-q", "--growth", "incremental,oracle",
				 "--tokens", "8,16,32", "--watermark", "0,1", "--chart", chart_path),
		0);
	text = read_text(tool.out);
	assert_int_equal(occurrences(text, "\nincremental "), 6);
	assert_int_equal(occurrences(text, "\noracle "), 6);
	assert_non_null(strstr(text, "optimum"));
	assert_non_null(strstr(text, "240 of 240 requests finished"));
	assert_non_null(strstr(text, ", 0 wrong.\n"));
	text = read_text(chart_path);
	assert_int_equal(strncmp(text, "<svg ", 5), 0);
	assert_string_equal(text + strlen(text) - 7, "</svg>\n");
	assert_int_equal(occurrences(text, "<path class=\"line engine0\""), 12);
	assert_int_equal(occurrences(text, "<path class=\"line engine1\""), 12);
	assert_null(strstr(text, "nan"));
	assert_nothing_left();
}

static void test_finds_a_wrong_block(void **state)
{
	const cJSON *engines;
	cJSON *result;

	(void)state;
	assert_int_equal(RUN("kv", chat, "--engines", "2", "--limit", "20", "-o", "json", "-q", "--corrupt", "200"), 1);
	assert_non_null(strstr(read_text(tool.error), "engine 0 (process "));
	assert_non_null(strstr(read_text(tool.error), "block 199 of request 1 does not contain"));
	result = read_result();
	assert_adds_up(run_of(result, 0), 2);
	assert_true(number(run_of(result, 0), "wrong_blocks") == 1);
	engines = member(run_of(result, 0), "engines");
	assert_non_null(strstr(member(cJSON_GetArrayItem(engines, 0), "failed")->valuestring, "does not contain"));
	assert_null(cJSON_GetObjectItem(cJSON_GetArrayItem(engines, 1), "failed"));
	cJSON_Delete(result);
	assert_nothing_left();
}

/* ---- engines that die ---- */

/* Read up to the line that names the process of the last engine. Return that process. */
static pid_t last_engine(int from)
{
	char said[4096];
	size_t length = 0;
	ssize_t more;
	int pid = 0;

	while (!pid && length < sizeof said - 1 && (more = read(from, said + length, sizeof said - 1 - length)) > 0) {
		const char *line;

		length += (size_t)more;
		said[length] = '\0';
		line = strstr(said, "engine 1 is process ");
		if (line && strchr(line, '\n'))
			pid = atoi(line + 20);
	}
	assert_true(pid > 0);
	return pid;
}

static pid_t engines_start(int ends[2])
{
	const char *const arguments[] = {"kv", chat, "--engines", "2", "-o", "json", NULL};
	pid_t child;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = tool_start(arguments, ends[1]);
	close(ends[1]);
	return child;
}

static const char *rest_of(int from)
{
	static char said[1 << 16];
	size_t length = 0;
	ssize_t more;

	while ((more = read(from, said + length, sizeof said - 1 - length)) > 0)
		length += (size_t)more;
	said[length] = '\0';
	close(from);
	return said;
}

static void test_other_engines_continue_when_one_is_killed(void **state)
{
	const cJSON *engines;
	char words[64];
	cJSON *result;
	int ends[2];
	pid_t child = engines_start(ends), engine = last_engine(ends[0]);

	(void)state;
	assert_int_equal(kill(engine, SIGKILL), 0);
	snprintf(words, sizeof words, "engine 1 (process %d) was killed by signal 9, with ", engine);
	assert_non_null(strstr(rest_of(ends[0]), words));
	assert_int_equal(tool_wait(child), 1);
	result = read_result();
	engines = member(run_of(result, 0), "engines");
	assert_adds_up(run_of(result, 0), 2);
	assert_true(number(cJSON_GetArrayItem(engines, 0), "finished") == 150);
	assert_true(number(cJSON_GetArrayItem(engines, 1), "finished") < 150);
	assert_string_equal(member(cJSON_GetArrayItem(engines, 1), "failed")->valuestring, "was killed by signal 9");
	assert_true(number(run_of(result, 0), "wrong_blocks") == 0);
	cJSON_Delete(result);
	assert_nothing_left();
}

static void test_interrupted_leaves_nothing(void **state)
{
	int ends[2];
	pid_t child = engines_start(ends);

	(void)state;
	last_engine(ends[0]);
	assert_int_equal(kill(child, SIGINT), 0);
	rest_of(ends[0]);
	assert_int_equal(tool_wait(child), 130);
	assert_nothing_left();
}

/* ---- refusals ---- */

static void test_refuses(void **state)
{
	static const struct {
		const char *arguments[7];
		const char *words;
	} bad[] = {
		{{"kv", chat, "--engines", "0"}, "--engines '0' is not a number from 1 to 16"},
		{{"kv", chat, "--engines", "17"}, "--engines '17' is not"},
		{{"kv", chat, "--engines", "1", "--tokens", "12"}, "--tokens '12' is not a list of powers of two"},
		{{"kv", chat, "--engines", "1", "--growth", "bulk"}, "--growth 'bulk' contains the unknown name"},
		{{"kv", chat, "--engines", "1", "--policy", "optimum"},
			"--policy 'optimum' contains the unknown name 'optimum'"},
		{{"kv", chat, "--engines", "1", "--watermark", "51"},
			"--watermark '51' is not a list of numbers from 0 to 50"},
		{{"kv", chat, "--engines", "1", "--page-size", "3MiB"}, "not one of 512KiB"},
		{{"kv", chat, "--engines", "1", "--blocks", "10"}, "--blocks '10' cannot be used with --engines"},
		{{"kv", chat, "--tokens", "16"}, "--tokens '16' requires --engines"},
		{{"kv", chat, "--apart"}, "--apart requires --engines"},
		{{"kv", chat, "--idle", "10"}, "--idle '10' requires --engines"},
		{{"kv", chat, "--engines", "1", "--idle", "10"}, "--idle '10' needs --engines 2 or more"},
		{{"kv", chat, "--engines", "2", "--idle", "0"}, "--idle '0' is not a number from 1 to 1000000"},
		{{"kv", "--engines", "1", "/nonexistent"}, "cannot open trace '/nonexistent'"},
		{{"kv", "--engines", "1", "/nonexistent.csv"}, "/nonexistent.csv"},
		{{"kv", "--engines", "1", "/dev/null"}, "no request with a block"},
		{{"kv", "--engines", "1", trace_path}, "trace.jsonl:2: the member 'hash_ids' is missing"},
	};

	(void)state;
	write_text(trace_path,
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[0]}\n"
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *arguments[8] = {NULL};

		memcpy(arguments, bad[i].arguments, sizeof bad[i].arguments);
		if (tool_run(arguments) != 2 || !strstr(read_text(tool.error), bad[i].words))
			fail_msg("case %zu: not refused with '%s' but: %s", i, bad[i].words, read_text(tool.error));
		assert_nothing_left();
	}
	assert_int_equal(RUN("kv", chat, "--engines", "1", "--limit", "1", "--chart", "/nonexistent/c.svg"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot draw '/nonexistent/c.svg'"));
	setenv("GPOOLD", "/nonexistent", 1);
	assert_int_equal(RUN("kv", chat, "--engines", "1"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot find gpoold"));
	unsetenv("GPOOLD");
	assert_nothing_left();
}

static int prepare(void **state)
{
	(void)state;
	if (tool_prepare("gpool-replay", "GPOOL_REPLAY"))
		return -1;
	tool_path(trace_path, "trace.jsonl");
	tool_path(chart_path, "chart.svg");
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
		cmocka_unit_test(test_engines_share_blocks),
		cmocka_unit_test(test_compares_with_one_engine),
		cmocka_unit_test(test_hits_equal_those_of_the_model),
		cmocka_unit_test(test_preempts_and_finishes),
		cmocka_unit_test(test_offloads),
		cmocka_unit_test(test_too_large_requests_are_refused),
		cmocka_unit_test(test_table_and_chart),
		cmocka_unit_test(test_finds_a_wrong_block),
		cmocka_unit_test(test_other_engines_continue_when_one_is_killed),
		cmocka_unit_test(test_interrupted_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
