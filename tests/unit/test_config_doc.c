/*
 * test_config_doc.c - agent/config/gpoold.conf and docs/man/gpoold.conf.5 agree with the table of keys.
 *
 * Method: print both files again into memory and compare them byte by byte. Run the test from the root of the source
 * tree.
 *
 * Requirements: U15.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <sys/mman.h>

#define CONFGEN_NO_MAIN
#include "docs/man/gen/confgen.c"

/* Return the content of a file with a NUL at its end. The caller frees it. */
static char *file_text(FILE *file, const char *path)
{
	char *text = NULL;
	size_t bytes = 0;

	if (!file)
		fail_msg("cannot open '%s'; run this test from the root of the source tree", path);
	rewind(file);
	if (getdelim(&text, &bytes, '\0', file) < 0)
		fail_msg("cannot read '%s'", path);
	fclose(file);
	return text;
}

static void assert_up_to_date(const char *path, int printed)
{
	char *wanted = file_text(fdopen(printed, "r"), "memory"), *found = file_text(fopen(path, "r"), path);

	if (strcmp(wanted, found) != 0)
		fail_msg("'%s' is out of date; run `make docs`", path);
	free(wanted);
	free(found);
}

static void test_example_is_up_to_date(void **state)
{
	int fd = memfd_create("example", MFD_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(config_print(NULL, CONFIG_PRINT_EXAMPLE, fd), 0);
	assert_up_to_date("agent/config/gpoold.conf", fd);
}

static void test_manual_is_up_to_date(void **state)
{
	static const char path[] = "docs/man/gpoold.conf.5.in";
	int fd = memfd_create("manual", MFD_CLOEXEC);
	FILE *frame = fopen(path, "r");

	(void)state;
	assert_true(fd >= 0);
	if (!frame)
		fail_msg("cannot open '%s'; run this test from the root of the source tree", path);
	assert_int_equal(print_man(frame, fd), 0);
	fclose(frame);
	assert_up_to_date("docs/man/gpoold.conf.5", fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_example_is_up_to_date),
		cmocka_unit_test(test_manual_is_up_to_date),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
