/*
 * test_trace.c - the parser of request traces, the arithmetic of its model shapes, and the pattern that represents KV
 * contents.
 *
 * Goal: a text that is not exactly a trace is refused with file and line. Bytes per token and tokens per page are
 * correct for shapes whose figures are known. A pattern with a change at any byte position is detected. Method: the
 * files of tools/demo are compiled into this program, and traces are written to a temporary folder.
 */
#include "tools/demo/model.c"
#include "tools/demo/pattern.c"
#include "tools/lib/request_trace.h"
#include "tests/lib/temporary.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD "TIMESTAMP,ContextTokens,GeneratedTokens\n"

static char folder[TEMPORARY_PATH_BYTES];
static char path[64];

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(temporary_path(folder, "test_trace.XXXXXX")))
		return -1;
	snprintf(path, sizeof path, "%s/azure_some.csv", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(folder);
}

static int load_bytes(const char *bytes, size_t length, struct trace *trace, char *error)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, length, file), length);
	assert_int_equal(fclose(file), 0);
	return trace_load(path, trace, error);
}

static int load(const char *text, struct trace *trace, char *error)
{
	return load_bytes(text, strlen(text), trace, error);
}

/* Check that the text is refused, at that line, with these words. */
static void refuse(const char *text, int line, const char *words)
{
	struct trace trace = {.name = "untouched"};
	char error[TRACE_ERROR_BYTES] = "", place[128];

	assert_int_equal(load(text, &trace, error), -EINVAL);
	snprintf(place, sizeof place, "%s:%d: ", path, line);
	if (strncmp(error, place, strlen(place)) != 0 || !strstr(error, words))
		fail_msg("'%s' is not '%s...%s'", error, place, words);
	assert_string_equal(trace.name, "untouched");
}

static void test_trace_reads_rows(void **state)
{
	struct trace trace;
	char error[TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(load(HEAD "2023-11-16 18:17:03.9799600,4808,10\n"
				   "2023-11-16 18:17:03.9799609,1,1048576\n"
				   "2023-11-16 18:17:04,1048576,1",
				 &trace, error),
		0);
	assert_string_equal(trace.name, "some");
	assert_int_equal(trace.count, 3);
	/* date -u -d '2023-11-16 18:17:03' +%s */
	assert_int_equal(trace.requests[0].arrival_us, INT64_C(1700158623979960));
	assert_int_equal(trace.requests[1].arrival_us, INT64_C(1700158623979960));
	assert_int_equal(trace.requests[2].arrival_us, INT64_C(1700158624000000));
	assert_int_equal(trace.requests[0].context_tokens, 4808);
	assert_int_equal(trace.requests[0].generated_tokens, 10);
	assert_int_equal(trace.requests[1].generated_tokens, 1048576);
	assert_int_equal(trace_tokens(&trace), 4808 + 10 + 1 + 1048576 + 1048576 + 1);
	trace_free(&trace);
	assert_int_equal(trace.count, 0);
}

/* The published files have CR LF line ends. */
static void test_trace_takes_carriage_returns(void **state)
{
	struct trace trace;
	char error[TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(
		load("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.5,7,8\r\n", &trace, error), 0);
	assert_int_equal(trace.count, 1);
	assert_int_equal(trace.requests[0].arrival_us % 1000000, 500000);
	trace_free(&trace);
}

static void test_malformed_rows_are_refused(void **state)
{
	static const struct {
		const char *row, *words;
	} bad[] = {
		{"", "timestamp"},
		{"2023-11-16,1,1", "timestamp"},
		{"2023-11-16T18:17:03,1,1", "timestamp"},
		{" 2023-11-16 18:17:03,1,1", "timestamp"},
		{"2023-02-30 18:17:03,1,1", "timestamp"},
		{"2023-00-10 18:17:03,1,1", "timestamp"},
		{"2023-13-10 18:17:03,1,1", "timestamp"},
		{"2023-11-16 24:17:03,1,1", "timestamp"},
		{"2023-11-16 18:60:03,1,1", "timestamp"},
		{"2023-11-16 18:17:60,1,1", "timestamp"},
		{"1969-11-16 18:17:03,1,1", "timestamp"},
		{"2023-11-16 18:17:03.,1,1", "timestamp"},
		{"2023-11-16 18:17:03.1234567890,1,1", "timestamp"},
		{"2023-11-16 18:17:03.-1,1,1", "timestamp"},
		{"2023-11-16 18:17:03", "comma after the timestamp"},
		{"2023-11-16 18:17:03;1;1", "comma after the timestamp"},
		{"2023-11-16 18:17:03Z,1,1", "comma after the timestamp"},
		{"2023-11-16 18:17:03,,1", "context"},
		{"2023-11-16 18:17:03,0,1", "context"},
		{"2023-11-16 18:17:03,-1,1", "context"},
		{"2023-11-16 18:17:03,+1,1", "context"},
		{"2023-11-16 18:17:03, 1,1", "context"},
		{"2023-11-16 18:17:03,1048577,1", "context"},
		{"2023-11-16 18:17:03,99999999999999999999,1", "context"},
		{"2023-11-16 18:17:03,1.5,1", "comma after the context"},
		{"2023-11-16 18:17:03,1", "comma after the context"},
		{"2023-11-16 18:17:03,1,", "generated"},
		{"2023-11-16 18:17:03,1,0", "generated"},
		{"2023-11-16 18:17:03,1,4294967297", "generated"},
		{"2023-11-16 18:17:03,1,1,1", "unexpected text"},
		{"2023-11-16 18:17:03,1,1 ", "unexpected text"},
		{"2023-11-16 18:17:03,1,0x1", "generated"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		char text[256];

		snprintf(text, sizeof text, HEAD "2023-11-16 18:17:03,1,1\n%s\n2023-11-16 18:17:05,1,1\n", bad[i].row);
		refuse(text, 3, bad[i].words);
	}
}

static void test_trace_refuses_wrong_files(void **state)
{
	(void)state;
	refuse("", 1, "empty");
	refuse("2023-11-16 18:17:03,1,1\n", 1, "first line");
	refuse("timestamp,contexttokens,generatedtokens\n", 1, "first line");
	refuse(HEAD, 2, "no requests");
	refuse(HEAD "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02.9999999,1,1\n", 3, "the timestamp is earlier");
	refuse(HEAD "2023-11-16 18:17:03,1,1\n\n", 3, "timestamp");
}

static void test_trace_refuses_nul_bytes(void **state)
{
	static const char bytes[] = HEAD "2023-11-16 18:17:03,1,1\0garbage\n";
	struct trace trace;
	char error[TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(load_bytes(bytes, sizeof bytes - 1, &trace, error), -EINVAL);
	assert_non_null(strstr(error, ":2: a NUL byte"));
}

static void test_trace_reports_the_open_error(void **state)
{
	struct trace trace;
	char error[TRACE_ERROR_BYTES];

	(void)state;
	assert_int_equal(trace_load("/nonexistent/azure_code.csv", &trace, error), -ENOENT);
	assert_non_null(strstr(error, "/nonexistent/azure_code.csv"));
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(trace_load(path, &trace, error), -EISDIR);
	assert_non_null(strstr(error, "cannot read trace"));
	assert_int_equal(rmdir(path), 0);
}

static void test_trace_names_engines(void **state)
{
	char name[TRACE_NAME_BYTES];

	(void)state;
	assert_int_equal(trace_name("azure_code.csv", name), 0);
	assert_string_equal(name, "code");
	assert_int_equal(trace_name("/a/b.d/my-trace_2.csv", name), 0);
	assert_string_equal(name, "my-trace_2");
	assert_int_equal(trace_name("plain", name), 0);
	assert_string_equal(name, "plain");
	assert_int_equal(trace_name("azure_.csv", name), -EINVAL);
	assert_int_equal(trace_name("/a/", name), -EINVAL);
	assert_int_equal(trace_name("Big.csv", name), -EINVAL);
	assert_int_equal(trace_name("a b.csv", name), -EINVAL);
	assert_int_equal(trace_name("_a.csv", name), -EINVAL);
	assert_int_equal(trace_name("-a.csv", name), -EINVAL);
	assert_int_equal(trace_name("0123456789012345678901234567890.csv", name), 0); /* 31 characters */
	assert_int_equal(trace_name("01234567890123456789012345678901.csv", name), -EINVAL);
}

/* Make two traces with a request every second, the second trace half a second later. */
static void make_two(struct trace traces[2], struct trace_request requests[2][4])
{
	for (int t = 0; t < 2; t++) {
		traces[t] = (struct trace){.requests = requests[t], .count = 4};
		for (int i = 0; i < 4; i++)
			requests[t][i] = (struct trace_request){INT64_C(1000000) * i + 500000 * t, 1, 1};
	}
}

static void test_trace_cut_by_limit_takes_the_earliest(void **state)
{
	struct trace_request requests[2][4];
	struct trace traces[2];

	(void)state;
	make_two(traces, requests);
	trace_cut(traces, 2, 0, 3);
	assert_int_equal(traces[0].count, 2);
	assert_int_equal(traces[1].count, 1);
	make_two(traces, requests);
	trace_cut(traces, 2, 0, 100);
	assert_int_equal(traces[0].count + traces[1].count, 8);
	trace_cut(traces, 2, 0, 0);
	assert_int_equal(traces[0].count + traces[1].count, 8);
}

static void test_trace_cut_by_duration_counts_from_the_first(void **state)
{
	struct trace_request requests[2][4];
	struct trace traces[2];
	int64_t first_us, last_us;

	(void)state;
	make_two(traces, requests);
	trace_cut(traces, 2, 1500000, 0);
	assert_int_equal(traces[0].count, 2);
	assert_int_equal(traces[1].count, 2);
	trace_span(traces, 2, &first_us, &last_us);
	assert_int_equal(first_us, 0);
	assert_int_equal(last_us, 1500000);
	trace_cut(traces, 2, 1499999, 0);
	assert_int_equal(traces[1].count, 1);
}

/* ---- model ---- */

static void test_model_bytes_of_known_shapes(void **state)
{
	static const struct {
		const char *text;
		uint64_t token_bytes;
	} known[] = {
		{"tiny", 1024},
		{"qwen2.5-0.5b", 12288},
		{"llama-8b", 128 << 10},
		{"llama-8b,dtype=int8", 64 << 10},
		{"llama-8b,dtype=fp32", 256 << 10},
		{"llama-70b", 320 << 10},
		{"llama-70b-tp8", 40 << 10},
		{"layers=32,kv_heads=8,head_dim=128,dtype=fp16", 128 << 10},
		{"layers=1,kv_heads=1,head_dim=4,dtype=int8", 8},
		{"layers=1024,kv_heads=1024,head_dim=4096,dtype=fp32", UINT64_C(1) << 35},
		{"tiny,layers=4", 2048},
	};

	(void)state;
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
		struct model model;
		char error[MODEL_ERROR_BYTES] = "";

		if (model_parse(known[i].text, &model, error) != 0)
			fail_msg("%s: %s", known[i].text, error);
		assert_int_equal(model.token_bytes, known[i].token_bytes);
	}
}

static void test_model_table_agrees_with_the_formula(void **state)
{
	(void)state;
	for (size_t i = 0; model_list(i); i++) {
		struct model model;
		char error[MODEL_ERROR_BYTES];

		assert_int_equal(model_parse(model_list(i)->name, &model, error), 0);
		assert_int_equal(model.token_bytes, model_list(i)->token_bytes);
	}
	assert_int_equal(model_parse(MODEL_DEFAULT, &(struct model){.layers = 0}, (char[MODEL_ERROR_BYTES]){""}), 0);
}

static void test_model_refuses(void **state)
{
	static const struct {
		const char *text, *words;
	} bad[] = {
		{"", "neither"},
		{"gpt", "neither"},
		{"llama-8b,llama-8b", "neither"},
		{"layers=2", "needs layers"},
		{"layers=2,kv_heads=2", "needs layers"},
		{"layers=0,kv_heads=2,head_dim=64", "layers must be"},
		{"layers=1025,kv_heads=2,head_dim=64", "layers must be"},
		{"layers=-1,kv_heads=2,head_dim=64", "layers must be"},
		{"layers=2x,kv_heads=2,head_dim=64", "layers must be"},
		{"layers=,kv_heads=2,head_dim=64", "layers must be"},
		{"llama-8b,dtype=int4", "unknown dtype"},
		{"llama-8b,heads=2", "unknown key"},
		{"llama-8b,", "neither"},
		{"layers=1,kv_heads=1,head_dim=1,dtype=int8", "multiple of 8"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct model model = {.name = "untouched"};
		char error[MODEL_ERROR_BYTES] = "";

		assert_int_equal(model_parse(bad[i].text, &model, error), -EINVAL);
		if (!strstr(error, bad[i].words))
			fail_msg("'%s': '%s' does not say '%s'", bad[i].text, error, bad[i].words);
		assert_string_equal(model.name, "untouched");
	}
}

static void test_model_pages(void **state)
{
	struct model model;
	char error[MODEL_ERROR_BYTES];

	(void)state;
	assert_int_equal(model_parse("qwen2.5-0.5b", &model, error), 0);
	assert_int_equal(model_tokens_per_page(&model, 512 << 10), 42); /* and 8 KiB remain */
	assert_int_equal(model_tokens_per_page(&model, 4 << 20), 341);
	assert_int_equal(model_parse("llama-70b,dtype=fp32", &model, error), 0);
	assert_int_equal(model_tokens_per_page(&model, 512 << 10), 0);
	assert_int_equal(model_pages(0, 42), 0);
	assert_int_equal(model_pages(1, 42), 1);
	assert_int_equal(model_pages(42, 42), 1);
	assert_int_equal(model_pages(43, 42), 2);
	assert_int_equal(model_pages(UINT64_C(2) * TRACE_TOKENS_MAX, 1), 2u * TRACE_TOKENS_MAX);
}

/* ---- pattern ---- */

enum { WORDS = 1000 }; /* neither a multiple of the batch nor below it */

static void test_pattern_equals_that_written_in_pieces(void **state)
{
	static uint64_t page[WORDS];
	struct pattern_owner owner = {1, 2, 3};
	uint64_t seed = pattern_seed(&owner, 4);

	(void)state;
	for (uint64_t first = 0, count = 1; first < WORDS; first += count, count = count * 2 + 1)
		pattern_write(page, seed, first, first + count < WORDS ? count : WORDS - first);
	for (uint64_t i = 0; i < WORDS; i++)
		assert_int_equal(page[i], pattern_word(seed, i));
	assert_int_equal(pattern_check(page, seed, 0, WORDS), -1);
	assert_int_equal(pattern_check(page, seed, 77, 500), -1);
}

static void test_pattern_check_finds_any_flipped_bit(void **state)
{
	static uint64_t page[WORDS];
	struct pattern_owner owner = {0, 0, 1};
	uint64_t seed = pattern_seed(&owner, 0);

	(void)state;
	pattern_write(page, seed, 0, WORDS);
	for (uint64_t bit = 0; bit < WORDS * 64; bit++) {
		page[bit / 64] ^= UINT64_C(1) << bit % 64;
		assert_int_equal(pattern_check(page, seed, 0, WORDS), bit / 64);
		page[bit / 64] ^= UINT64_C(1) << bit % 64;
	}
	assert_int_equal(pattern_check(page, seed, 0, WORDS), -1);
}

/* Words outside the given range are neither read nor written. */
static void test_pattern_keeps_to_its_words(void **state)
{
	static uint64_t page[WORDS];
	struct pattern_owner owner = {0, 0, 1};
	uint64_t seed = pattern_seed(&owner, 0);

	(void)state;
	memset(page, 0x5a, sizeof page);
	pattern_write(page, seed, 100, 300);
	assert_int_equal(page[99], UINT64_C(0x5a5a5a5a5a5a5a5a));
	assert_int_equal(page[400], UINT64_C(0x5a5a5a5a5a5a5a5a));
	assert_int_equal(pattern_check(page, seed, 100, 300), -1);
	assert_int_equal(pattern_check(page, seed, 99, 301), 99);
	assert_int_equal(pattern_check(page, seed, 100, 301), 400);
}

static int compare_seeds(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* A page of another engine, request, life or position is not accepted, even if several of them differ. */
static void test_pattern_seeds_differ(void **state)
{
	enum { SIDE = 12, ALL = SIDE * SIDE * SIDE * SIDE };
	static uint64_t seeds[ALL];
	size_t n = 0;

	(void)state;
	for (uint32_t e = 0; e < SIDE; e++)
		for (uint32_t r = 0; r < SIDE; r++)
			for (uint32_t l = 0; l < SIDE; l++)
				for (uint32_t p = 0; p < SIDE; p++)
					seeds[n++] = pattern_seed(&(struct pattern_owner){e, r, l}, p);
	qsort(seeds, ALL, sizeof seeds[0], compare_seeds);
	for (size_t i = 1; i < ALL; i++)
		assert_true(seeds[i - 1] != seeds[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_trace_reads_rows),
		cmocka_unit_test(test_trace_takes_carriage_returns),
		cmocka_unit_test(test_malformed_rows_are_refused),
		cmocka_unit_test(test_trace_refuses_wrong_files),
		cmocka_unit_test(test_trace_refuses_nul_bytes),
		cmocka_unit_test(test_trace_reports_the_open_error),
		cmocka_unit_test(test_trace_names_engines),
		cmocka_unit_test(test_trace_cut_by_limit_takes_the_earliest),
		cmocka_unit_test(test_trace_cut_by_duration_counts_from_the_first),
		cmocka_unit_test(test_model_bytes_of_known_shapes),
		cmocka_unit_test(test_model_table_agrees_with_the_formula),
		cmocka_unit_test(test_model_refuses),
		cmocka_unit_test(test_model_pages),
		cmocka_unit_test(test_pattern_equals_that_written_in_pieces),
		cmocka_unit_test(test_pattern_check_finds_any_flipped_bit),
		cmocka_unit_test(test_pattern_keeps_to_its_words),
		cmocka_unit_test(test_pattern_seeds_differ),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
