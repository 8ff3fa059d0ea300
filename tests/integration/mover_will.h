/*
 * mover_will.h - run movers whose behavior the test controls (tests/modules/unwilling.c); shared by the tests of pools
 * without a mover.
 *
 * Based on spill_view.h. will_begin() and will_end() are the set-up and teardown of a group.
 */
#ifndef GPOOL_TESTS_MOVER_WILL_H
#define GPOOL_TESTS_MOVER_WILL_H

#include "tests/integration/spill_view.h"
#include "tests/lib/temporary.h"

static char mover_file[TEMPORARY_PATH_BYTES];

/* Set the behavior of hanging movers and of movers that are started from now on. */
static inline void will(char what)
{
	int fd = open(mover_file, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &what, 1, 0), 1);
	close(fd);
}

static inline void mover_works(void)
{
	will('w');
	AWAIT(status()->pools[0].mover_pid != 0);
}

/* Return true if a thread of the process is still running. */
static inline bool runs(pid_t process)
{
	char path[300], text[512];
	struct dirent *entry;
	bool found = false;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
	tasks = opendir(path);
	assert_non_null(tasks);
	while ((entry = readdir(tasks)) && !found) {
		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)process, entry->d_name);
		file_read(path, text, sizeof(text));
		found = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && strrchr(text, ')') &&
			strncmp(strrchr(text, ')'), ") T", 3);
	}
	closedir(tasks);
	return found;
}

/* Stop the mover. The agent still considers it serving, but it executes nothing. */
static inline pid_t mover_stop(void)
{
	pid_t mover = (pid_t)status()->pools[0].mover_pid;

	assert_true(mover > 0);
	assert_int_equal(kill(mover, SIGSTOP), 0);
	AWAIT(!runs(mover));
	return mover;
}

static inline int will_begin(void **state)
{
	int fd = mkstemp(temporary_path(mover_file, "gpool-mover-XXXXXX"));

	(void)state;
	if (fd < 0)
		return -1;
	close(fd);
	return setenv("GPOOL_TEST_MOVER", mover_file, 1);
}

static inline int will_end(void **state)
{
	(void)state;
	return unlink(mover_file);
}

#endif
