/*
 * test_start_refused.c - starts of gpoold that cannot succeed.
 *
 * Goal: each is refused at once, with a message that names the value, the limit and what to do; --check-config refuses what the start refuses.
 * Method: the real program, with a configuration that cannot be used.
 */
#include "tests/integration/tool_process.h"

static char directory[96];

/* ---- sizes ---- */

static void test_check_and_start_agree(void **state)
{
	static const struct {
		const char *pool, *text;
		int checked; /* exit status of --check-config */
	} cases[] = {
		{ "name=a,backend=host,page_size=512KB,size=4194305 pages", "'4194305 pages' is not allowed; a pool has at most 4194304 pages", 2 },
		{ "name=a,backend=host,page_size=512KB,size=4294967295 pages", "'4294967295 pages' is not allowed; a pool has at most 4194304 pages", 2 },
		{ "name=a,backend=host,page_size=512KB,size=4TiB", "size gives 8388608 pages of 524288 bytes", 2 },
		{ "name=a,backend=host,page_size=512KB,size=100KiB", "expected 1 to 4194304 pages", 2 },
		{ "name=a,backend=host,page_size=512KB,size=3 pages,handle_size=2MiB", "size gives 0 pages of 524288 bytes in handles of 2097152", 2 },
		{ "name=a,backend=host,page_size=512KB,size=5 pages,handle_size=2MiB,reserved=4 pages", "reserved of 4 pages leaves nothing of 4 pages", 2 },
		{ "name=a,backend=host,page_size=512KB,size=8 pages", NULL, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *checked;

		assert_int_equal(RUN("--check-config", "--pool", cases[i].pool), cases[i].checked);
		if (!cases[i].text)
			continue;
		checked = strdup(read_text(tool.error));
		assert_non_null(checked);
		if (!strstr(checked, cases[i].text))
			fail_msg("expected '%s', not '%s'", cases[i].text, checked);
		assert_int_equal(RUN("--dir", directory, "--pool", cases[i].pool), cases[i].checked);
		assert_string_equal(read_text(tool.error), checked);
		free(checked);
	}
}

static int setup(void **state)
{
	(void)state;
	if (tool_prepare("gpoold", "GPOOLD"))
		return -1;
	snprintf(directory, sizeof(directory), "%s/run", tool.folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return tool_clean_up();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_check_and_start_agree),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
