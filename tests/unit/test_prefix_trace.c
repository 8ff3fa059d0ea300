/*
 * test_prefix_trace.c - traces of prefixes as text.
 *
 * Goal: requests become paths of a tree. Equal numbers after equal prefixes are the same node; after different prefixes
 * they are different nodes. A text that is not a trace is refused with its line and the error, and leaves nothing
 * allocated. Method: texts in memory.
 */
#include "tools/lib/prefix_trace.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char error[PREFIX_TRACE_ERROR_BYTES];

static int read_bytes(const void *bytes, size_t length, uint64_t limit, struct prefix_trace *trace)
{
	FILE *file = fmemopen((void *)(uintptr_t)bytes, length, "r");
	int result;

	assert_non_null(file);
	strcpy(error, "");
	result = prefix_trace_read(file, "text", limit, trace, error);
	fclose(file);
	return result;
}

static int read_text(const char *text, struct prefix_trace *trace)
{
	return read_bytes(text, strlen(text), 0, trace);
}

#define REQUEST(TIME, IDS) "{\"timestamp\":" TIME ",\"input_length\":600,\"output_length\":7,\"hash_ids\":" IDS "}\n"

static void test_paths(void **state)
{
	static const uint32_t blocks[] = {0, 1, 0, 1, 2, 3, 4, 0, 5};
	struct prefix_trace trace;

	(void)state;
	assert_int_equal(read_text(REQUEST("1000", "[7, 8]") "\r\n \n" REQUEST("1000", "[7, 8, 7]") REQUEST(
					   "1500", "[8, 7]") REQUEST("1501",
					   "[]") "{\"x\":{\"hash_ids\":[]},\"hash_ids\":[7,9007199254740992],\"output_"
						 "length\":0,\"input_length\":2147483648,\"timestamp\":2000}",
				 &trace),
		0);
	assert_int_equal(trace.request_count, 5);
	assert_int_equal(trace.block_count, 9);
	assert_memory_equal(trace.blocks, blocks, sizeof(blocks));
	assert_int_equal(trace.node_count, 6);
	assert_int_equal(trace.longest, 3);
	assert_int_equal(trace.requests[0].time_ms, 0);
	assert_int_equal(trace.requests[2].time_ms, 500);
	assert_int_equal(trace.requests[2].first, 5);
	assert_int_equal(trace.requests[3].count, 0);
	assert_int_equal(trace.requests[4].input_tokens, 2147483648);
	assert_int_equal(trace.requests[0].output_tokens, 7);
	prefix_trace_free(&trace);
}

static void test_limit(void **state)
{
	static const char text[] = REQUEST("0", "[1]") REQUEST("0", "[2]") "garbage\n";
	struct prefix_trace trace;

	(void)state;
	assert_int_equal(read_bytes(text, sizeof(text) - 1, 2, &trace), 0);
	assert_int_equal(trace.request_count, 2);
	prefix_trace_free(&trace);
	assert_int_equal(read_bytes(text, sizeof(text) - 1, 3, &trace), -EINVAL);
}

/* Use more nodes than the initial size of the table of edges. */
static void test_many(void **state)
{
	enum { COUNT = 20000 };
	struct prefix_trace trace;
	char *text = NULL;
	size_t length;
	FILE *file = open_memstream(&text, &length);

	(void)state;
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < COUNT; i++)
			fprintf(file, "{\"timestamp\":0,\"input_length\":0,\"output_length\":0,\"hash_ids\":[%d,5]}\n",
				i);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(read_bytes(text, length, 0, &trace), 0);
	assert_int_equal(trace.node_count, 2 * COUNT);
	for (uint32_t i = 0; i < 2 * COUNT; i++)
		assert_int_equal(trace.blocks[i], trace.blocks[i + 2 * COUNT]);
	prefix_trace_free(&trace);
	free(text);
}

static void test_refuses(void **state)
{
	static const struct {
		const char *text, *words;
	} bad[] = {
		{"\n", "text:2: the trace has no request with a block"},
		{REQUEST("0", "[]"), "no request with a block"},
		{"{\"timestamp\":0", "text:1: the line is not JSON: error at byte 15"},
		{REQUEST("0", "[1]") REQUEST("0", "[1]]"), "text:2: the line is not JSON"},
		{"[1]\n", "text:1: the line is not a JSON object"},
		{"17\n", "text:1: the line is not a JSON object"},
		{"{}\n", "text:1: the member 'timestamp' is missing"},
		{"{\"timestamp\":0}\n", "the member 'input_length' is missing"},
		{"{\"timestamp\":0,\"input_length\":1}\n", "the member 'output_length' is missing"},
		{"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n", "the member 'hash_ids' is missing"},
		{REQUEST("\"now\"", "[1]"), "timestamp: not an integer"},
		{REQUEST("-1", "[1]"), "timestamp: not an integer"},
		{REQUEST("0.5", "[1]"), "timestamp: not an integer"},
		{REQUEST("1e300", "[1]"), "timestamp: not an integer from 0 to 9007199254740992"},
		{REQUEST("5", "[1]") REQUEST("4", "[1]"),
			"text:2: timestamp: it is lower than that of the previous request"},
		{"{\"timestamp\":0,\"input_length\":1e10,\"output_length\":1,\"hash_ids\":[]}\n",
			"input_length: not an integer"},
		{REQUEST("0", "7"), "hash_ids: not an array"},
		{REQUEST("0", "[1,-2]"), "hash_ids: element 2 is not an integer"},
		{REQUEST("0", "[1,null]"), "hash_ids: element 2 is not"},
		{REQUEST("0", "[[1]]"), "hash_ids: element 1 is not"},
		{REQUEST("0", "[18014398509481984]"), "hash_ids: element 1 is not"},
	};
	struct prefix_trace trace;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (read_text(bad[i].text, &trace) != -EINVAL || !strstr(error, bad[i].words))
			fail_msg("case %zu: not refused with '%s' but: %s", i, bad[i].words, error);
		assert_null(trace.requests);
		assert_null(trace.blocks);
	}
	assert_int_equal(read_bytes("{\0}", 3, 0, &trace), -EINVAL);
	assert_string_equal(error, "text:1: the line contains a NUL byte");
}

static void test_line_too_long(void **state)
{
	struct prefix_trace trace;
	char *text = malloc(PREFIX_TRACE_LINE_MAX);

	(void)state;
	assert_non_null(text);
	memset(text, ' ', PREFIX_TRACE_LINE_MAX);
	assert_int_equal(read_bytes(text, PREFIX_TRACE_LINE_MAX, 0, &trace), -EINVAL);
	assert_non_null(strstr(error, "text:1: the line is longer than"));
	memset(text, '[', PREFIX_TRACE_LINE_MAX - 1);
	assert_int_equal(read_bytes(text, PREFIX_TRACE_LINE_MAX - 1, 0, &trace), -EINVAL);
	assert_non_null(strstr(error, "text:1: the line is not JSON"));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_line_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
