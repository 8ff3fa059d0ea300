/*
 * omit.c - omit the cases of a program that GPOOL_TEST_OMIT names, separated by spaces: tests/run sets it for cases
 * that cannot run on a back end, and holds the reasons. All groups of cmocka's tests start in the function that this
 * file replaces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_omitted(const char *name)
{
	const char *word = getenv("GPOOL_TEST_OMIT");
	size_t length = strlen(name);

	for (; word && *word; word += strcspn(word, " ") + (word[strcspn(word, " ")] == ' '))
		if (strcspn(word, " ") == length && !strncmp(word, name, length))
			return true;
	return false;
}

int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *const tests, const size_t count,
	CMFixtureFunction setup, CMFixtureFunction teardown)
{
	static int (*run)(const char *, const struct CMUnitTest *, size_t, CMFixtureFunction, CMFixtureFunction);
	struct CMUnitTest *kept = malloc((count + 1) * sizeof(*kept));
	size_t number = 0;
	int failed;

	if (!run)
		*(void **)&run = dlsym(RTLD_NEXT, __func__);
	if (!run || !kept)
		abort();
	for (size_t i = 0; i < count; i++)
		if (!is_omitted(tests[i].name))
			kept[number++] = tests[i];
	failed = run(name, kept, number, setup, teardown);
	free(kept);
	return failed;
}
