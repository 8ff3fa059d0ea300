/*
 * test_dependent.c - dependent_fork(): a child never outlives the process that started it.
 *
 * Goal: the child ends when its parent ends, also if this happens before the child first runs. Method: the test is the
 * subreaper and collects the status of the grandchild. A handler of fork() delays the grandchild until its parent has
 * ended and the grandchild has another parent. A pidfd reports this; the end of a pipe would report it too early.
 */
#include "tools/lib/dependent.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int parent_fd = -1; /* pidfd of the process whose children are delayed; -1: none is */

static void delay(void)
{
	struct pollfd parent = {.fd = parent_fd, .events = POLLIN};

	while (parent_fd >= 0 && poll(&parent, 1, -1) < 1)
		;
}

/* Start a parent that starts a child and ends; return the status of the child. */
static int status_of_child(bool delayed)
{
	int status, ready[2];
	pid_t parent;
	char byte;

	assert_int_equal(pipe(ready), 0);
	parent = fork();
	if (parent == 0) {
		alarm(60);
		parent_fd = delayed ? (int)syscall(SYS_pidfd_open, getpid(), 0) : -1;
		if (dependent_fork(SIGTERM) == 0) {
			alarm(60); /* ends it with another signal if it does not receive SIGTERM */
			(void)!write(ready[1], "", 1);
			for (;;)
				pause();
		}
		if (!delayed)
			(void)!read(ready[0], &byte, 1);
		_exit(0);
	}
	assert_true(parent > 0);
	close(ready[0]);
	close(ready[1]);
	assert_int_equal(waitpid(parent, &status, 0), parent);
	assert_int_equal(status, 0);
	assert_true(waitpid(-1, &status, 0) > 0);
	return status;
}

static void test_a_child_ends_with_its_parent(void **state)
{
	(void)state;
	assert_int_equal(WTERMSIG(status_of_child(false)), SIGTERM);
}

static void test_a_child_whose_parent_has_ended_ends(void **state)
{
	(void)state;
	assert_int_equal(WEXITSTATUS(status_of_child(true)), 127);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_child_ends_with_its_parent),
		cmocka_unit_test(test_a_child_whose_parent_has_ended_ends),
	};

	if (prctl(PR_SET_CHILD_SUBREAPER, 1) || pthread_atfork(NULL, NULL, delay))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
