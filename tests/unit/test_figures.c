/*
 * test_figures.c - documents refer only to existing figures of gpool-bench, and the public headers state costs by these
 * names instead of times.
 *
 * Method: read README, guides, manual and headers, and compare the names with tools/bench/figures.def. Run the test
 * from the root of the source tree.
 */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const figures[] = {
#define FIGURE(group, name, unit, goal, text) #name,
#include "tools/bench/figures.def"
};

static const char *const groups[] = {
#define GROUP(name, runs, text) #name,
#include "tools/bench/figures.def"
};

enum { FIGURES = sizeof(figures) / sizeof(*figures), GROUPS = sizeof(groups) / sizeof(*groups) };

static char text[1 << 18];
static const char name_bytes[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

static const char *file_read(const char *path)
{
	FILE *file = fopen(path, "r");
	size_t length;

	if (!file)
		fail_msg("cannot open '%s'; run this test from the root of the source tree", path);
	length = fread(text, 1, sizeof(text) - 1, file);
	assert_true(length < sizeof(text) - 1);
	fclose(file);
	text[length] = '\0';
	return text;
}

static bool is_figure(const char *name, size_t length)
{
	for (int i = 0; i < FIGURES; i++)
		if (strlen(figures[i]) == length && !strncmp(figures[i], name, length))
			return true;
	return false;
}

/*
 * Accept the names that gpool-bench accepts: a figure, a group, or the beginning of a group's name up to an underscore.
 */
static bool is_name(const char *name, size_t length)
{
	for (int i = 0; i < GROUPS; i++)
		if (!strncmp(groups[i], name, length) && (groups[i][length] == '\0' || groups[i][length] == '_'))
			return true;
	return is_figure(name, length);
}

/* ---- the public headers ---- */

/* Check "[alloc1, alloc100: explanation]", which has names up to a colon. */
static const char *bracket_check(const char *at, const char *end, int *found)
{
	const char *names = at, *close = memchr(at, ']', (size_t)(end - at));

	assert_non_null(close);
	for (; at < close && *at != ':'; at += strspn(at, ", *\n")) {
		size_t length = strspn(at, name_bytes);

		if (!is_figure(at, length))
			fail_msg("client/gpool/: not a figure of gpool-bench in [%.*s]", (int)(close - names), names);
		at += length;
		(*found)++;
	}
	return close;
}

static void header_check(const char *path, int *found)
{
	static const char *const times[] = {" ns", "nanosecond", "microsecond"};
	const char *end;

	for (const char *at = strstr(file_read(path), "Cost:"); at; at = strstr(end, "Cost:")) {
		end = strstr(at, "*/");
		assert_non_null(end);
		for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++) {
			const char *time = strstr(at, times[i]);

			if (time && time < end)
				fail_msg("%s states a time, not a figure: %.*s", path, (int)(end - at), at);
		}
		for (at = memchr(at, '[', (size_t)(end - at)); at; at = memchr(at, '[', (size_t)(end - at)))
			at = bracket_check(at + 1, end, found);
	}
}

static void test_costs_name_figures(void **state)
{
	glob_t headers;
	int found = 0;

	(void)state;
	assert_int_equal(glob("client/gpool/*.h", 0, NULL, &headers), 0);
	for (size_t i = 0; i < headers.gl_pathc; i++)
		header_check(headers.gl_pathv[i], &found);
	globfree(&headers);
	assert_true(found > 20);
}

/* ---- Markdown ---- */

/*
 * Check "gpool-bench NAME NAME" in a command, which is in backticks or in an indented line. Options and numbers are
 * skipped.
 */
static void command_check(const char *path, const char *at, int *found)
{
	while (*at == ' ') {
		size_t length = strspn(++at, name_bytes);

		if (*at == '-' || (length && strspn(at, "0123456789") == length)) {
			at += strcspn(at, " `\n");
			continue;
		}
		if (!length || (at[length] != ' ' && at[length] != '`' && at[length] != '\n'))
			return;
		if (!is_name(at, length))
			fail_msg("%s: '%.*s' is no name that gpool-bench knows", path, (int)length, at);
		at += length;
		(*found)++;
	}
}

/* Check the names in the first cell of each row of a table. */
static void table_check(const char *path, const char *row, int *found)
{
	for (; *row == '|'; row = strchr(row, '\n') + 1) {
		const char *end = strchr(row + 1, '|');

		for (const char *at = strchr(row, '`'); at && at < end; at = strchr(strchr(at + 1, '`') + 1, '`')) {
			size_t length = strspn(at + 1, name_bytes);

			if (!is_figure(at + 1, length) || at[1 + length] != '`')
				fail_msg("%s: not a figure of gpool-bench: %.*s", path, (int)(end - row), row);
			(*found)++;
		}
	}
}

static void document_check(const char *path, int *commands, int *rows)
{
	static const char program[] = "gpool-bench", head[] = "\n| figure |";
	const char *document = file_read(path);

	for (const char *at = strstr(document, program); at; at = strstr(at, program)) {
		bool command = at > document && (at[-1] == '`' || at[-1] == '/');

		at += sizeof(program) - 1;
		if (command)
			command_check(path, at, commands);
	}
	for (const char *at = strstr(document, head); at; at = strstr(at, head)) {
		at += sizeof(head) - 1;
		table_check(path, strchr(at, '\n') + 1, rows);
	}
}

static void test_documents_name_figures(void **state)
{
	static const char *const patterns[] = {"*.md", "[!b]*/*.md", "[!b]*/*/*.md"};
	int commands = 0, rows = 0;
	glob_t found = {.gl_pathc = 0};

	(void)state;
	for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
		assert_int_equal(glob(patterns[i], i ? GLOB_APPEND : 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++)
		document_check(found.gl_pathv[i], &commands, &rows);
	globfree(&found);
	assert_true(commands >= 15);
	assert_true(rows >= 30);
}

/* ---- gpool-bench(1) ---- */

/* Return true for names that the manual composes of parts, for sizes and numbers. */
static bool is_composed(const char *figure)
{
	return !strncmp(figure, "malloc_async_random_", 20) || !strncmp(figure, "peer_fit_", 9) ||
		!strncmp(figure, "threads_", 8);
}

static bool is_in_manual(const char *manual, const char *figure)
{
	size_t length = strlen(figure);

	for (const char *line = strstr(manual, "\n.It Cm "); line; line = strstr(line + 1, "\n.It Cm ")) {
		const char *end = strchr(line + 1, '\n');

		for (const char *at = strstr(line, figure); at && at < end; at = strstr(at + 1, figure))
			if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n'))
				return true;
	}
	return false;
}

static void test_manual_has_all(void **state)
{
	const char *manual = file_read("docs/man/gpool-bench.1");

	(void)state;
	for (int i = 0; i < FIGURES; i++)
		if (!is_composed(figures[i]) && !is_in_manual(manual, figures[i]))
			fail_msg("docs/man/gpool-bench.1 has no item '%s'", figures[i]);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_costs_name_figures),
		cmocka_unit_test(test_documents_name_figures),
		cmocka_unit_test(test_manual_has_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
