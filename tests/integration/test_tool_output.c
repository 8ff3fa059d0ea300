/*
 * test_tool_output.c - programs whose standard output is closed or full.
 *
 * Goal: every program reports that and fails, including --help, --version and lists. Method: run the real programs with
 * standard output closed, and with /dev/full. The status of findings must not hide that they could not be written.
 */
#include "tests/integration/tool_process.h"

#include <stdbool.h>

static const struct {
	const char *program, *arguments[4];
	int status;
} cases[] = {
#if !defined(__SANITIZE_ADDRESS__) && \
	!defined(__SANITIZE_THREAD__) /* linked with jemalloc, which does not run under a sanitizer */
	{"gpool-bench", {"--help"}, 0},
	{"gpool-bench", {"--version"}, 0},
	{"gpool-bench", {"--list"}, 0},
#endif
	{"gpool-replay", {"--help"}, 0},
	{"gpool-replay", {"kv", "--help"}, 0},
	{"gpool-replay", {"--version"}, 0},
	{"gpool-replay", {"make", "--allocations=10"}, 0},
	{"gpool-replay", {"make"}, 0},
	{"gpool-replay", {"make-kv", "loop"}, 0},
	{"gpool-demo", {"--help"}, 0},
	{"gpool-demo", {"--version"}, 0},
	{"gpool-exporter", {"--help"}, 0},
	{"gpool-exporter", {"--version"}, 0},
	{"gpool-exporter", {"--metrics"}, 0},
	{"poolctl", {"--help"}, 0},
	{"poolctl", {"--version"}, 0},
	{"poolctl", {"--dir=/dev/null", "doctor"}, 4}, /* a failure: it is not a directory */
	{"poolctl", {"--dir=/dev/null", "--output=json", "doctor"}, 4},
	{"gpoold", {"--help"}, 0},
	{"gpoold", {"--version"}, 0},
	{"gpoold", {"--print-config"}, 0},
	{"gpoold", {"--check-config=file", "--pool=name=a,backend=host,size=8MiB"}, 0},
};

/* Run a program with this descriptor as standard output; -1 closes it. Return the exit status. */
static int run_at(size_t i, int out)
{
	char path[sizeof(tool.program) + 32];
	const char *arguments[5] = {path};
	int status;
	pid_t child;

	snprintf(path, sizeof(path), "%.*s%s", (int)(strrchr(tool.program, '/') - tool.program + 1), tool.program,
		cases[i].program);
	memcpy(arguments + 1, cases[i].arguments, sizeof(cases[i].arguments));
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int error = open(tool.error, O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(error, STDERR_FILENO);
		close(STDOUT_FILENO);
		if (out >= 0)
			dup2(out, STDOUT_FILENO);
		execv(path, (char *const *)(uintptr_t)arguments);
		_exit(98);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Check that the program reports the error once, and gpool-replay with its cause. */
static bool is_reported(size_t i, const char *cause)
{
	const char *text = read_text(tool.error), *first = strstr(text, "cannot write");

	return first && !strstr(first + 1, "cannot write") &&
		(strcmp(cases[i].program, "gpool-replay") || strstr(first, cause));
}

static void test_lost_output_is_a_failure(void **state)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC), null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	(void)state;
	assert_true(full >= 0 && null >= 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int written = run_at(i, null), filled = run_at(i, full);

		/* If the output exceeds a buffer, the errno of the first failed write is not available at the end. */
		if (written != cases[i].status || filled != 1 || !is_reported(i, strerror(ENOSPC)))
			fail_msg("'%s %s' ended with %d, and with %d where nothing could be written: %s",
				cases[i].program, cases[i].arguments[0], written, filled, read_text(tool.error));
		if (run_at(i, -1) != 1 || !is_reported(i, strerror(EBADF)))
			fail_msg("'%s %s' with a closed output: %s", cases[i].program, cases[i].arguments[0],
				read_text(tool.error));
	}
	close(full);
	close(null);
}

static int prepare(void **state)
{
	(void)state;
	return tool_prepare("poolctl", "POOLCTL");
}

static int clean_up(void **state)
{
	(void)state;
	return tool_clean_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lost_output_is_a_failure),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
