/*
 * test_folder.c - a folder that is removed while another process creates and removes its entries.
 *
 * Goal: nothing is left, whatever other processes do meanwhile, and nothing outside of the folder is removed. Method:
 * the code under test is compiled into this program with another unlinkat(), which makes these changes just before a
 * call of the real one.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int changed_unlinkat(int above, const char *name, int flags);
#define unlinkat changed_unlinkat
#include "tools/lib/folder.c"
#include "tests/lib/temporary.h"
#undef unlinkat

static char base[TEMPORARY_PATH_BYTES], folder[64];
static int arrivals;   /* remaining calls before which a file appears in the folder that is being removed */
static bool vanishing; /* each file is removed by another process first */

static void file_make(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	close(fd);
}

static int changed_unlinkat(int above, const char *name, int flags)
{
	char path[80];

	if (flags == AT_REMOVEDIR && arrivals > 0) {
		snprintf(path, sizeof(path), "%s/late%d", folder, arrivals--);
		file_make(path);
	}
	if (!flags && vanishing)
		unlinkat(above, name, 0);
	return unlinkat(above, name, flags);
}

static void path_make(const char *name, bool is_file)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (is_file)
		file_make(path);
	else
		assert_int_equal(mkdir(path, 0700), 0);
}

static int setup(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "%s/folder", base);
	arrivals = 0;
	vanishing = false;
	assert_int_equal(mkdir(folder, 0700), 0);
	path_make("log", true);
	path_make("run", false);
	path_make("run/nn", false);
	path_make("run/nn/control", true);
	return 0;
}

static void test_everything_is_removed(void **state)
{
	char outside[64], path[80];

	(void)state;
	snprintf(outside, sizeof(outside), "%s/outside", base);
	file_make(outside);
	snprintf(path, sizeof(path), "%s/link", folder);
	assert_int_equal(symlink(base, path), 0);
	assert_int_equal(folder_remove(folder), 0);
	assert_int_equal(access(folder, F_OK), -1);
	assert_int_equal(unlink(outside), 0); /* the link was not followed */
	assert_int_equal(folder_remove(folder), 0);
}

static void test_files_appear_meanwhile(void **state)
{
	(void)state;
	arrivals = 7;
	assert_int_equal(folder_remove(folder), 0);
	assert_int_equal(arrivals, 0);
	assert_int_equal(access(folder, F_OK), -1);
}

static void test_files_disappear_meanwhile(void **state)
{
	(void)state;
	vanishing = true;
	assert_int_equal(folder_remove(folder), 0);
	assert_int_equal(access(folder, F_OK), -1);
}

static void test_files_never_stop_to_appear(void **state)
{
	(void)state;
	arrivals = 1 << 20;
	assert_int_equal(folder_remove(folder), -ENOTEMPTY);
	arrivals = 0;
	assert_int_equal(folder_remove(folder), 0);
}

static void test_not_a_folder(void **state)
{
	char path[80];

	(void)state;
	snprintf(path, sizeof(path), "%s/log", folder);
	assert_int_equal(folder_remove(path), -ENOTDIR);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(folder_remove(folder), 0);
}

static int base_make(void **state)
{
	(void)state;
	return mkdtemp(temporary_path(base, "test_folder.XXXXXX")) ? 0 : -1;
}

static int base_remove(void **state)
{
	(void)state;
	return rmdir(base);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_everything_is_removed, setup),
		cmocka_unit_test_setup(test_files_appear_meanwhile, setup),
		cmocka_unit_test_setup(test_files_disappear_meanwhile, setup),
		cmocka_unit_test_setup(test_files_never_stop_to_appear, setup),
		cmocka_unit_test_setup(test_not_a_folder, setup),
	};

	return cmocka_run_group_tests(tests, base_make, base_remove);
}
