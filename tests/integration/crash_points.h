/*
 * crash_points.h - run a gpoold whose agent dies at a store that the test chooses; shared by the tests of crash points.
 *
 * gpoold runs an agent module built with GPOOL_CRASH_POINTS (agent/base/crash_point.h). *countdown is the number of
 * stores until the agent dies; 0 disables the crash. *crash can name another signal, such as SIGSTOP, and one function.
 * Each test program includes this header once. crash_start() and crash_stop() are the set-up and teardown of a test.
 */
#ifndef GPOOL_TESTS_CRASH_POINTS_H
#define GPOOL_TESTS_CRASH_POINTS_H

#include "agent/base/crash_point.h"
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { DEATHS_OF_ONE = 16 }; /* the keeper delays restarts after more deaths than this in succession */

static const char *crash_setting = "lease.initial_pages=4"; /* an additional setting that the program may change */
static const char *crash_more[8];                           /* additional arguments of gpoold; NULL: the end */
static const char *crash_pool = POOL;
static struct crash_file *crash;
static _Atomic int64_t *countdown; /* of *crash */
static char crash_file[TEMPORARY_PATH_BYTES];

/* Return the path of .../tests/crash/gpoold-agent.so, which is built in the folder of the test program. */
static inline const char *crash_module(void)
{
	static char path[512];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);

	assert_true(length > 0);
	path[length] = '\0';
	strcpy(strrchr(path, '/'), "/crash/gpoold-agent.so");
	return path;
}

static inline int crash_start(void **state)
{
	const char *arguments[24] = {"--module", crash_module(), "--pool", crash_pool, QUIET, "--set",
		"lease.initial_pages=4", "--set", "lease.batch_pages=4", "--set", crash_setting};

	(void)state;
	if (!countdown) {
		int fd = mkstemp(temporary_path(crash_file, "gpool-crash-XXXXXX"));

		assert_true(fd >= 0 && ftruncate(fd, sizeof(*crash)) == 0);
		crash = mmap(NULL, sizeof(*crash), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(crash, MAP_FAILED);
		countdown = &crash->countdown;
		close(fd);
		setenv("GPOOL_CRASH_FILE", crash_file, 1);
	}
	memcpy(&arguments[14], crash_more, sizeof(crash_more));
	start(arguments);
	return 0;
}

static inline int crash_stop(void **state)
{
	atomic_store(countdown, 0);
	return stop(state);
}

/*
 * Prepare the next death. If the agent of the current gpoold has died DEATHS_OF_ONE times, start another gpoold with an
 * empty pool and return true.
 */
static inline bool crash_another(uint32_t deaths)
{
	if (deaths % DEATHS_OF_ONE != DEATHS_OF_ONE - 1)
		return false;
	assert_int_equal(crash_stop(NULL), 0);
	crash_start(NULL);
	return true;
}

/* Stop gpoold at the end of the program. */
static inline int crash_end(void **state)
{
	(void)state;
	unlink(crash_file);
	return 0;
}

#endif
