/*
 * cases.c - what all cases of cmocka's tests have in common: the function that starts a group of them is replaced.
 *
 * The cases of a program that GPOOL_TEST_OMIT names, separated by spaces, are omitted: tests/run sets it for cases that
 * cannot run on a back end, and holds the reasons. If a case fails, the logs of the gpoolds that it used are printed
 * before its teardown ends them.
 */
#include "tests/lib/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The cases of the group that is running. cmocka calls setup, case and teardown of each, in this order. */
static const struct CMUnitTest *cases;
static size_t next;
static bool is_open; /* the current case has begun and has not returned */

static bool is_omitted(const char *name)
{
	const char *word = getenv("GPOOL_TEST_OMIT");
	size_t length = strlen(name);

	for (; word && *word; word += strcspn(word, " ") + (word[strcspn(word, " ")] == ' '))
		if (strcspn(word, " ") == length && !strncmp(word, name, length))
			return true;
	return false;
}

static int case_setup(void **state)
{
	const struct CMUnitTest *test = &cases[next++];

	return test->setup_func ? test->setup_func(state) : 0;
}

static void case_run(void **state)
{
	is_open = true;
	cases[next - 1].test_func(state); /* a failed assertion does not return */
	is_open = false;
}

static int case_teardown(void **state)
{
	const struct CMUnitTest *test = &cases[next - 1];

	if (is_open)
		harness_logs_print();
	is_open = false;
	return test->teardown_func ? test->teardown_func(state) : 0;
}

int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *const tests, const size_t count,
	CMFixtureFunction setup, CMFixtureFunction teardown)
{
	static int (*run)(const char *, const struct CMUnitTest *, size_t, CMFixtureFunction, CMFixtureFunction);
	struct CMUnitTest *kept = calloc(count + 1, sizeof(*kept)), *watched = calloc(count + 1, sizeof(*watched));
	size_t number = 0;
	int failed;

	if (!run)
		*(void **)&run = dlsym(RTLD_NEXT, __func__);
	if (!run || !kept || !watched)
		abort();
	for (size_t i = 0; i < count; i++) {
		if (is_omitted(tests[i].name))
			continue;
		watched[number] =
			(struct CMUnitTest){tests[i].name, case_run, case_setup, case_teardown, tests[i].initial_state};
		kept[number++] = tests[i];
	}
	cases = kept;
	next = 0;
	failed = run(name, watched, number, setup, teardown);
	free(kept);
	free(watched);
	return failed;
}
