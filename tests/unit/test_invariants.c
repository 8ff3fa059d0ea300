/*
 * test_invariants.c - the assertions of debug builds.
 *
 * Goal: GPOOL_INVARIANT() ends a process whose data structure is damaged, with a message, in a debug build; in other
 * builds it evaluates nothing. Method: a forked child damages the structure or takes a step that is not allowed; the
 * test reads its message and its status. Only a debug build has these cases: `tests/run debug/test_invariants`.
 */
#include "shm/invariant.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_evaluated_in_debug_builds_only(void **state)
{
	int evaluated = 0;

	(void)state;
	GPOOL_INVARIANT(++evaluated, "%d", evaluated);
	assert_int_equal(evaluated, INVARIANTS);
}

#ifdef GPOOL_DEBUG

/* In a child: `step` ends it by SIGABRT, with a message that contains `text`. */
static void expect_abort(void (*step)(void), const char *text)
{
	char message[2048] = "";
	size_t length = 0;
	ssize_t got;
	int ends[2], status;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		/* The runner takes a violation for a failure, and cmocka catches some signals. */
		unsetenv("GPOOL_INVARIANT_LOG");
		signal(SIGABRT, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		step();
		_exit(0);
	}
	assert_true(child > 0);
	close(ends[1]);
	while (length < sizeof(message) - 1 &&
		(got = read(ends[0], message + length, sizeof(message) - 1 - length)) > 0)
		length += (size_t)got;
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(message, text))
		fail_msg("status 0x%x, not SIGABRT with '%s': %s", status, text, message);
}

/* ---- the message ---- */

static void three_is_even(void)
{
	int number = 3;

	GPOOL_INVARIANT(number % 2 == 0, "number %d of '%s'", number, "test");
}

static void test_message_has_place_condition_and_values(void **state)
{
	(void)state;
	expect_abort(three_is_even, "test_invariants.c:");
	expect_abort(three_is_even, "invariant violated: number % 2 == 0: number 3 of 'test'\n");
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evaluated_in_debug_builds_only),
#ifdef GPOOL_DEBUG
		cmocka_unit_test(test_message_has_place_condition_and_values),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
