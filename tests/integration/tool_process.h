/*
 * tool_process.h - run one of the tools as users do, and return its exit status, both outputs and its JSON.
 *
 * The tool is a child of this process, which is the reaper of all its descendants and therefore detects processes that
 * the tool leaves behind. $TMPDIR is a folder of this test, which must be empty afterwards. Each test program includes
 * this header once, after its own headers.
 */
#ifndef GPOOL_TESTS_TOOL_PROCESS_H
#define GPOOL_TESTS_TOOL_PROCESS_H

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/temporary.h"

enum { TOOL_STUCK_SECONDS = 1000, TOOL_ARGUMENTS_MAX = 32, TOOL_TEXT_MAX = 4 << 20 };

static struct {
	char program[4096 + 32];
	char folder[TEMPORARY_PATH_BYTES];
	char temporary[64], out[64], error[64];
} tool;

/* ---- running the tool ---- */

/*
 * Start the tool with arguments up to NULL. Its output is written to out_fd or, if that is -1, to tool.out. Its
 * messages are written to error_fd or, if that is -1, to tool.error.
 */
static inline pid_t tool_start_to(const char *const *arguments, int out_fd, int error_fd)
{
	const char *all[TOOL_ARGUMENTS_MAX] = {tool.program};
	pid_t child;

	for (size_t i = 0; arguments[i]; i++) {
		assert_true(i + 2 < TOOL_ARGUMENTS_MAX);
		all[i + 1] = arguments[i];
	}
	alarm(TOOL_STUCK_SECONDS); /* for each run of the program, not for all of them */
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int out = out_fd >= 0 ? out_fd : open(tool.out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		int error = error_fd >= 0 ? error_fd : open(tool.error, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		if (dup2(out, 1) < 0 || dup2(error, 2) < 0)
			_exit(99);
		/* A shell starts background processes with some of these signals ignored. */
		signal(SIGHUP, SIG_DFL);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGPIPE, SIG_DFL);
		execv(tool.program, (char *const *)(uintptr_t)all);
		_exit(98);
	}
	return child;
}

static inline pid_t tool_start(const char *const *arguments, int error_fd)
{
	return tool_start_to(arguments, -1, error_fd);
}

/* Wait for the tool. Return its exit status. */
static inline int tool_wait(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static inline int tool_run(const char *const *arguments)
{
	return tool_wait(tool_start(arguments, -1));
}
#define RUN(...) tool_run((const char *const[]){__VA_ARGS__, NULL})

/* ---- results ---- */

/* Return the content of a file, valid until the next call. */
static inline const char *read_text(const char *path)
{
	static char text[TOOL_TEXT_MAX];
	FILE *file = fopen(path, "r");
	size_t length;

	if (!file)
		fail_msg("cannot open '%s'; run this test from the root of the source tree", path);
	length = fread(text, 1, sizeof text - 1, file);
	text[length] = '\0';
	fclose(file);
	return text;
}

static inline void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* Parse the tool's output, which is one JSON document. */
static inline cJSON *read_result(void)
{
	cJSON *result = cJSON_Parse(read_text(tool.out));

	if (!result)
		fail_msg("no JSON in '%s'; it said: %s", tool.out, read_text(tool.error));
	return result;
}

static inline const cJSON *member(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!item)
		fail_msg("no member '%s'", name);
	return item;
}

static inline double number(const cJSON *object, const char *name)
{
	const cJSON *item = member(object, name);

	assert_true(cJSON_IsNumber(item));
	return item->valuedouble;
}

/* Check that $TMPDIR is empty and that no descendant exists, alive or dead. */
static inline void assert_nothing_left(void)
{
	DIR *directory = opendir(tool.temporary);
	const struct dirent *entry;

	assert_non_null(directory);
	while ((entry = readdir(directory)) != NULL)
		if (entry->d_name[0] != '.')
			fail_msg("'%s' was left in the temporary folder", entry->d_name);
	closedir(directory);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* ---- set-up and teardown ---- */

/* Return the path of a file of the test. All these files are removed at the end. */
static inline const char *tool_path(char path[static 64], const char *name)
{
	snprintf(path, 64, "%s/%s", tool.folder, name);
	return path;
}

/*
 * Find the program: $variable, or else build/CONFIG/NAME if this program is build/CONFIG/tests/TEST. Return 0 or -1, as
 * a cmocka fixture does.
 */
static inline int tool_prepare(const char *name, const char *variable)
{
	ssize_t length = readlink("/proc/self/exe", tool.program, sizeof tool.program - 32);

	if (length < 0)
		return -1;
	tool.program[length] = '\0';
	sprintf(strrchr(tool.program, '/'), "/../%.20s", name);
	if (getenv(variable))
		snprintf(tool.program, sizeof tool.program, "%s", getenv(variable));
	snprintf(tool.folder, sizeof(tool.folder), "%s/test_tool.XXXXXX", temporary_folder());
	/* The agent's front may run as another user, which must have access to its sockets. */
	if (!mkdtemp(tool.folder) || chmod(tool.folder, 0711) != 0)
		return -1;
	tool_path(tool.temporary, "tmp");
	tool_path(tool.out, "out");
	tool_path(tool.error, "error");
	setenv("TMPDIR", tool.temporary, 1);
	return mkdir(tool.temporary, 0711) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ? -1 : 0;
}

static inline int tool_clean_up(void)
{
	DIR *directory = opendir(tool.folder);
	const struct dirent *entry;

	rmdir(tool.temporary);
	while (directory && (entry = readdir(directory)) != NULL)
		unlinkat(dirfd(directory), entry->d_name, 0);
	if (directory)
		closedir(directory);
	return rmdir(tool.folder);
}

#endif
