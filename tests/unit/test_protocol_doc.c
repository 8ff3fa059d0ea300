/*
 * test_protocol_doc.c - docs/internals/messages.md agrees with the table of messages, and the fuzz dictionary can be
 * read.
 *
 * Method: print the document again into memory and compare it byte by byte. Run the test from the root of the source
 * tree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define PROTOGEN_NO_MAIN
#include "proto/gen/protogen.c"

static const char path[] = "docs/internals/messages.md";

static void test_protocol_md_is_up_to_date(void **state)
{
	char *wanted = NULL;
	char *found;
	size_t wanted_bytes = 0;
	size_t found_bytes;
	FILE *memory = open_memstream(&wanted, &wanted_bytes);
	FILE *file = fopen(path, "r");

	(void)state;
	if (!file)
		fail_msg("cannot open '%s'; run this test from the root of the source tree", path);
	assert_non_null(memory);
	print_markdown(memory);
	assert_int_equal(fclose(memory), 0);
	found = malloc(wanted_bytes + 1);
	assert_non_null(found);
	found_bytes = fread(found, 1, wanted_bytes + 1, file);
	if (found_bytes != wanted_bytes || memcmp(found, wanted, wanted_bytes) != 0)
		fail_msg("'%s' is out of date; print it again with `protogen --markdown`", path);
	fclose(file);
	free(found);
	free(wanted);
}

/* libFuzzer refuses a whole dictionary for one line that is not name="bytes". */
static void test_dictionary_lines_are_words(void **state)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *memory = open_memstream(&text, &bytes);
	unsigned words = 0;

	(void)state;
	assert_non_null(memory);
	print_dictionary(memory);
	assert_int_equal(fclose(memory), 0);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz_0123456789");
		size_t rest = strlen(line + name);

		if (line[0] == '#')
			continue;
		words++;
		assert_true(name > 0);
		assert_true(rest >= 7 && (rest - 3) % 4 == 0);
		assert_memory_equal(line + name, "=\"\\x", 4);
		assert_int_equal(line[name + rest - 1], '"');
	}
	assert_true(words > 50);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_protocol_md_is_up_to_date),
		cmocka_unit_test(test_dictionary_lines_are_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
