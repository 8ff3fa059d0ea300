/*
 * test_replay_lora.c - `gpool-replay lora` on the excerpt of a public trace that is shipped.
 *
 * Goal: the figures add up. No request is bypassed beyond the limit. No strategy needs fewer loads than the minimum.
 * Figures that can be computed by hand are correct. The same seed gives the same result. Wrong options and traces are
 * refused.
 *
 * Method: the real program runs as a child process. Run it from the root of the source tree.
 *
 * Requirements: O5.
 */
#include "tests/integration/tool_process.h"

#include <math.h>
#include <stdbool.h>

static const char excerpt[] = "tools/demo/traces/azure_code.csv";
static char trace_path[64], chart_path[64];

static const cJSON *strategy_of(const cJSON *load, const char *name)
{
	const cJSON *result;

	cJSON_ArrayForEach(result, member(load, "results"))
	{
		if (!strcmp(member(result, "strategy")->valuestring, name))
			return result;
	}
	fail_msg("no result of %s", name);
	return NULL;
}

/* Count the requests and generated tokens of the excerpt, line by line. */
static void count_trace(double *requests, double *tokens)
{
	char *text = strdup(read_text(excerpt)), *rest = text, *line = strsep(&rest, "\n");

	*requests = *tokens = 0;
	while ((line = strsep(&rest, "\n")) && *line) {
		int context, generated;

		assert_int_equal(sscanf(strchr(line, ',') + 1, "%d,%d", &context, &generated), 2);
		*tokens += generated ? generated : 1;
		*requests += 1;
	}
	free(text);
}

static void assert_adds_up(const cJSON *all, const cJSON *alone, const cJSON *result)
{
	double requests, tokens, used = number(member(all, "workload"), "adapters_used");

	count_trace(&requests, &tokens);
	assert_true(number(result, "requests") == requests);
	assert_true(number(result, "generated_tokens") == tokens);
	assert_float_equal(number(result, "hit_rate"), 1 - number(result, "cold_starts") / requests, 1e-9);
	assert_true(number(result, "loads") == number(result, "loads_warm") + number(result, "loads_cold"));
	assert_true(number(result, "loads") ==
		number(result, "evictions") + number(result, "resident") + number(result, "loading"));
	assert_true(number(result, "loads") >= number(result, "least_loads"));
	assert_true(number(result, "least_loads") >= used);
	assert_true(number(result, "loads_cold") >= used);
	assert_true(number(result, "prefetches") <= number(result, "loads"));
	assert_true(number(result, "ttft_p50_s") <= number(result, "ttft_p99_s"));
	assert_true(number(result, "ttft_p99_s") <= number(result, "ttft_p99_worst_tenant_s"));
	assert_true(number(result, "longest_bypass_s") < number(member(all, "model"), "max_bypass_s"));
	assert_float_equal(number(result, "requests_per_s"), requests / number(result, "duration_s"), 1e-6);
	assert_true(number(result, "busy") > 0 && number(result, "busy") <= 1);
	/* If every adapter is resident, the whole trace takes no longer. */
	assert_true(number(alone, "duration_s") <= number(result, "duration_s") * 1.01);
}

static void test_adds_up(void **state)
{
	const cJSON *load, *result, *fifo;
	cJSON *all;

	(void)state;
	assert_int_equal(
		RUN("lora", excerpt, "--adapters", "300", "--hot", "20", "--warm", "60", "-o", "json", "-q"), 0);
	assert_string_equal(read_text(tool.error), "");
	all = read_result();
	assert_string_equal(member(all, "kind")->valuestring, "replay-lora");
	assert_int_equal(cJSON_GetArraySize(member(all, "loads")), 3);
	cJSON_ArrayForEach(load, member(all, "loads"))
	{
		const cJSON *alone = member(load, "alone");

		assert_true(fabs(100 * number(alone, "busy") - number(load, "busy_percent")) < 3);
		assert_true(number(alone, "cold_starts") == 0 && number(alone, "loads") == 0);
		assert_int_equal(cJSON_GetArraySize(member(load, "results")), 5);
		cJSON_ArrayForEach(result, member(load, "results"))
		{
			assert_adds_up(all, alone, result);
		}
		fifo = strategy_of(load, "fifo");
		assert_true(
			number(fifo, "bypassed") == 0 && number(fifo, "prefetches") == 0 && number(fifo, "moves") == 0);
		assert_true(number(strategy_of(load, "resident"), "prefetches") == 0);
		assert_true(number(strategy_of(load, "prefetch"), "cold_starts") < number(fifo, "cold_starts") / 2);
		assert_true(number(strategy_of(load, "prefetch"), "ttft_p99_s") < number(fifo, "ttft_p99_s"));
		assert_true(number(strategy_of(load, "limit"), "adapters_per_step") <= 32);
	}
	cJSON_Delete(all);
}

/*
 * Copies are made from the disk, as in the library: no eviction waits for one, and adapters are loaded from the copies.
 * Requirements: L17.
 */
static void test_copies_from_the_disk(void **state)
{
	const cJSON *load, *result;
	cJSON *all;

	(void)state;
	assert_int_equal(RUN("lora", excerpt, "--adapters", "300", "--hot", "20", "--warm", "60", "--cost", "save=0",
				 "-o", "json", "-q"),
		0);
	all = read_result();
	cJSON_ArrayForEach(load, member(all, "loads"))
	{
		cJSON_ArrayForEach(result, member(load, "results"))
		{
			assert_adds_up(all, member(load, "alone"), result);
			assert_true(number(result, "loads_warm") > 0);
		}
	}
	cJSON_Delete(all);
}

/* All adapters fit. Each is loaded once, which is the minimum. */
static void test_room_for_all(void **state)
{
	const cJSON *load, *result;
	cJSON *all;
	double used;

	(void)state;
	assert_int_equal(RUN("lora", excerpt, "--hot", "1000", "--busy", "80", "-o", "json", "-q"), 0);
	all = read_result();
	used = number(member(all, "workload"), "adapters_used");
	assert_true(number(member(all, "workload"), "fixed_loads") == used);
	load = cJSON_GetArrayItem(member(all, "loads"), 0);
	cJSON_ArrayForEach(result, member(load, "results"))
	{
		assert_true(number(result, "loads") == used && number(result, "least_loads") == used);
		assert_true(number(result, "evictions") == 0);
	}
	cJSON_Delete(all);
}

/*
 * Three requests for one adapter arrive far apart, with prompts of 100 tokens and answers of 3. All times are computed
 * by hand.
 */
static void test_by_hand(void **state)
{
	const cJSON *load, *result;
	cJSON *all;

	(void)state;
	write_text(trace_path,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0000000,100,3\n"
		"2023-11-16 18:01:00.0000000,100,3\n2023-11-16 18:02:00.0000000,100,3\n");
	assert_int_equal(
		RUN("lora", trace_path, "--adapters", "1", "--ranks", "16", "--hot", "1", "--tenants", "1", "--busy",
			"0", "--strategy", "fifo,prefetch", "--cost",
			"step=1000,prefill=10,decode=500,adapter=100,load=0,disk=0.08388608", "-o", "json", "-q"),
		0);
	all = read_result();
	load = cJSON_GetArrayItem(member(all, "loads"), 0);
	assert_true(number(load, "speed") == 1);
	/* A first step takes 1000 + 100 * 10 + 80 MiB * 100 us, and two more take 1000 + 500 + 8000. */
	assert_float_equal(number(member(load, "alone"), "ttft_mean_s"), 0.010, 1e-9);
	assert_float_equal(number(member(load, "alone"), "duration_s"), 120.029, 1e-9);
	assert_float_equal(number(member(load, "alone"), "busy"), 3 * 0.029 / 120.029, 1e-9);
	cJSON_ArrayForEach(result, member(load, "results"))
	{
		/* The first request waits one second for 80 MiB from disk. */
		assert_float_equal(number(result, "ttft_mean_s"), 0.010 + 1.0 / 3, 1e-6);
		assert_float_equal(number(result, "longest_wait_s"), 1, 1e-6);
		assert_true(number(result, "cold_starts") == 1 && number(result, "loads") == 1 &&
			number(result, "least_loads") == 1);
		assert_true(number(result, "steps") == 9 && number(result, "adapters_per_step") == 1);
	}
	cJSON_Delete(all);
}

static void test_same_seed_same_result(void **state)
{
	static const char *const arguments[] = {
		"lora", "--gamma", "20,3", "--requests", "2000", "--popularity", "0.3", "--seed", "7", NULL};
	const char *other[sizeof arguments / sizeof arguments[0]];
	char *first;

	(void)state;
	memcpy(other, arguments, sizeof arguments);
	other[8] = "8";
	assert_int_equal(tool_run(arguments), 0);
	first = strdup(read_text(tool.out));
	assert_non_null(strstr(first, "random: 2,000"));
	assert_int_equal(tool_run(arguments), 0);
	assert_string_equal(read_text(tool.out), first);
	assert_int_equal(tool_run(other), 0);
	assert_string_not_equal(read_text(tool.out), first);
	free(first);
}

/* Alpha 1 is uniform. Alpha 0.1 gives half of the requests to the first of a thousand adapters. */
static void test_popularity(void **state)
{
	static const struct {
		const char *law;
		double least, most; /* limits for the number of adapters, of 1000, that 100 requests use */
	} laws[] = {{"1", 85, 100}, {"zipf:0", 85, 100}, {"0.1", 20, 50}, {"zipf:1.0", 50, 80}};

	(void)state;
	for (size_t i = 0; i < sizeof laws / sizeof laws[0]; i++) {
		double used;
		cJSON *all;

		assert_int_equal(RUN("lora", "--gamma", "10,1", "--requests", "100", "--popularity", laws[i].law,
					 "--strategy", "fifo", "-o", "json", "-q"),
			0);
		all = read_result();
		used = number(member(all, "workload"), "adapters_used");
		if (used < laws[i].least || used > laws[i].most)
			fail_msg("%s: %g adapters", laws[i].law, used);
		cJSON_Delete(all);
	}
}

/* The times of loads were measured; their sizes are those of the files of six layers with rank 16. */
static void assert_load_times(const cJSON *times)
{
	static const char *const sources[] = {"files", "disk", "memory"};
	double bytes = number(times, "adapter_bytes");

	assert_true(bytes == 16 << 20);
	for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
		const cJSON *source = member(times, sources[i]);

		assert_true(number(source, "paged_least_ms") > 0 && number(source, "one_piece_ms") > 0);
		assert_true(number(source, "paged_least_ms") <= number(source, "paged_ms"));
		assert_true(number(source, "paged_ms") <= number(source, "paged_most_ms"));
	}
	assert_true(number(member(times, "memory"), "bytes") == bytes);
	assert_true(number(member(times, "files"), "bytes") > 1.5 * bytes);
	assert_true(number(member(times, "disk"), "bytes") > 0 && number(member(times, "disk"), "bytes") < 1.1 * bytes);
}

/* The tables of several popularities, with bounds that no figure exceeds. Requirements: L19. */
static void test_tables(void **state)
{
	static const char *const laws[] = {"zipf:1.0", "0.1"};
	const cJSON *law, *result, *bound, *held, *rates;
	cJSON *all;
	int at = 0;

	(void)state;
	assert_int_equal(RUN("lora", excerpt, "--tables", "--popularity", "zipf:1.0,0.1", "--adapters", "300", "--hot",
				 "20", "-o", "json", "-q"),
		0);
	all = read_result();
	assert_string_equal(member(all, "kind")->valuestring, "replay-lora-tables");
	assert_int_equal(cJSON_GetArraySize(member(all, "popularities")), 2);
	cJSON_ArrayForEach(law, member(all, "popularities"))
	{
		assert_string_equal(member(law, "popularity")->valuestring, laws[at++]);
		bound = member(law, "bound");
		assert_int_equal(cJSON_GetArraySize(member(law, "strategies")), 4);
		cJSON_ArrayForEach(result, member(law, "strategies"))
		{
			assert_true(number(result, "loads") >= number(result, "least_loads"));
			assert_true(number(result, "requests_per_s") <= number(bound, "requests_per_s") * 1.01);
			assert_true(number(result, "ttft_p99_s") >= number(bound, "ttft_p99_s") * 0.9);
			assert_true(number(result, "cold_starts_per_s") > 0);
		}
		rates = member(law, "throughput");
		assert_true(number(rates, "single") < number(rates, "batch") / 1.5);
		assert_true(number(rates, "batch") <= number(rates, "bound") * 1.01);
		held = member(law, "held");
		assert_true(
			number(member(held, "contiguous"), "adapters") <= number(member(held, "paged"), "adapters"));
		assert_true(
			number(member(held, "contiguous"), "loads") >= number(member(held, "paged"), "loads") * 0.95);
		assert_true(number(member(held, "contiguous"), "idle") > number(member(held, "paged"), "idle"));
	}
	assert_load_times(member(all, "load_times"));
	cJSON_Delete(all);
	assert_int_equal(RUN("lora", excerpt, "--tables", "--limit", "200", "-q"), 0);
	assert_non_null(strstr(read_text(tool.out), "Throughput if all requests wait from the beginning"));
	assert_non_null(strstr(read_text(tool.out), "zipf:1.0   (bound)"));
	assert_non_null(strstr(read_text(tool.out), "Adapters held at once in"));
	assert_non_null(strstr(read_text(tool.out), "measured in this run"));
}

/* Three adapters of 40 MiB, with room for two: in one piece each, as many fit as in pages. */
static void test_held_by_hand(void **state)
{
	const cJSON *held;
	cJSON *all;

	(void)state;
	assert_int_equal(RUN("lora", "--gamma", "10,1", "--requests", "300", "--tables", "--popularity", "1",
				 "--adapters", "3", "--ranks", "8", "--hot", "2", "-o", "json", "-q"),
		0);
	all = read_result();
	held = member(member(all, "popularities")->child, "held");
	assert_true(number(member(held, "paged"), "adapters") == 2);
	assert_true(number(member(held, "contiguous"), "adapters") == 2);
	assert_true(number(member(held, "contiguous"), "loads") == number(member(held, "paged"), "loads"));
	assert_true(number(member(held, "paged"), "idle") == 0);
	assert_float_equal(number(held, "bound"), 2, 1e-9);
	cJSON_Delete(all);
}

static void test_table_and_chart(void **state)
{
	const char *text;
	int lines = 0;

	(void)state;
	assert_int_equal(RUN("lora", excerpt, "--limit", "100", "--busy", "60,80", "--strategy", "prefetch,fifo",
				 "--chart", chart_path),
		0);
	text = read_text(tool.out);
	assert_non_null(strstr(text, ": 100, "));
	assert_non_null(strstr(text, "fifo against prefetch: cold starts"));
	assert_non_null(strstr(text, "bound     no request is bypassed for more than 2 s"));
	assert_null(strstr(text, "limit "));
	text = read_text(chart_path);
	assert_int_equal(strncmp(text, "<svg ", 5), 0);
	assert_string_equal(text + strlen(text) - 7, "</svg>\n");
	while ((text = strstr(text, "<path class=\"line "))) {
		text++;
		lines++;
	}
	assert_int_equal(lines, 4);
}

/* Interrupt the program after its first line of progress, which shows that the simulation is running. */
static void test_interrupt(void **state)
{
	static const char *const arguments[] = {
		"lora", "--gamma", "100,1", "--requests", "1000000", "--busy", "90", NULL};
	char said[256];
	int ends[2];
	pid_t child;

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = tool_start(arguments, ends[1]);
	close(ends[1]);
	assert_true(read(ends[0], said, sizeof said) > 0);
	kill(child, SIGINT);
	while (read(ends[0], said, sizeof said) > 0)
		;
	close(ends[0]);
	assert_int_equal(tool_wait(child), 130);
}

static void test_refuses(void **state)
{
	static const struct {
		const char *arguments[6];
		const char *words;
	} bad[] = {
		{{"lora"}, "needs TRACE or --gamma"},
		{{"lora", excerpt, excerpt}, "does not take"},
		{{"lora", "/nonexistent.csv"}, "/nonexistent.csv"},
		{{"lora", trace_path}, "trace.csv:2"},
		{{"lora", "--busy", "100", excerpt}, "--busy '100' is not a list of numbers from 0 to 99"},
		{{"lora", "--strategy", "lifo", excerpt}, "contains the unknown name"},
		{{"lora", "--strategy", "fifo,fifo", excerpt}, "twice"},
		{{"lora", "--adapters", "0", excerpt}, "--adapters '0' is not"},
		{{"lora", "--adapters", "100001", excerpt}, "--adapters '100001' is not"},
		{{"lora", "--tenants", "0", excerpt}, "--tenants '0' is not"},
		{{"lora", "--ranks", "8,", excerpt}, "--ranks '8,' is not"},
		{{"lora", "--popularity", "0", excerpt}, "--popularity '0' is neither"},
		{{"lora", "--popularity", "zipf", excerpt}, "--popularity 'zipf' is neither"},
		{{"lora", "--popularity", "zipf:nan", excerpt}, "is neither"},
		{{"lora", "--popularity", "zipf:11", excerpt}, "is neither"},
		{{"lora", "--popularity", "1,2", excerpt}, "--popularity '1,2' is neither"},
		{{"lora", "--tables", "--popularity", "1,", excerpt}, "--popularity '1,' is neither"},
		{{"lora", "--tables", "--chart", "c.svg", excerpt}, "cannot be combined with --tables"},
		{{"lora", "--gamma", "5"}, "--gamma '5' is not RATE,CV"},
		{{"lora", "--gamma", "0,1"}, "--gamma '0,1' is not"},
		{{"lora", "--gamma", "1,1x"}, "--gamma '1,1x' is not"},
		{{"lora", "--cost", "step", excerpt}, "--cost 'step' is not"},
		{{"lora", "--cost", "steps=1", excerpt}, "is not a list of NAME=NUMBER"},
		{{"lora", "--cost", "disk=1,bus=-1", excerpt}, "is not a list of NAME=NUMBER"},
		{{"lora", "--cost", "disk=0", excerpt}, "below 0.001"},
		{{"lora", "--max-bypass", "0", excerpt}, "--max-bypass '0' is not"},
		{{"lora", "--look-ahead", "65", excerpt}, "--look-ahead '65' is not"},
		{{"lora", "--batch-adapters", "0", excerpt}, "--batch-adapters '0' is not"},
		{{"lora", "--hot", "1", excerpt}, "does not hold the largest one"},
		{{"lora", "-o", "xml", excerpt}, "is neither table nor json"},
	};

	(void)state;
	write_text(trace_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808\n");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *arguments[7] = {NULL};

		memcpy(arguments, bad[i].arguments, sizeof bad[i].arguments);
		if (tool_run(arguments) != 2 || !strstr(read_text(tool.error), bad[i].words))
			fail_msg("case %zu: not refused with '%s' but: %s", i, bad[i].words, read_text(tool.error));
	}
	assert_int_equal(RUN("lora", excerpt, "--busy", "0", "--chart", "/nonexistent/c.svg"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot draw '/nonexistent/c.svg'"));
}

static int prepare(void **state)
{
	(void)state;
	if (tool_prepare("gpool-replay", "GPOOL_REPLAY"))
		return -1;
	tool_path(trace_path, "trace.csv");
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
		cmocka_unit_test(test_adds_up),
		cmocka_unit_test(test_copies_from_the_disk),
		cmocka_unit_test(test_room_for_all),
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_same_seed_same_result),
		cmocka_unit_test(test_popularity),
		cmocka_unit_test(test_tables),
		cmocka_unit_test(test_held_by_hand),
		cmocka_unit_test(test_table_and_chart),
		cmocka_unit_test(test_interrupt),
		cmocka_unit_test(test_refuses),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
