/*
 * test_namespaces.c - workers in containers.
 *
 * Goal: a worker that shares only the folder of the sockets with gpoold can allocate and compute like any worker, and
 * its pages are freed at its end. Method: a worker in its own pid, mount, network and ipc namespaces, with and without
 * a user namespace, is killed while its content is pinned.
 */
#include "tests/lib/harness.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 8, LEFT_MS = 60000 };

static const char *const arguments[] = {"--pool", HARNESS_POOL, NULL};

/* Run as the first process of the pid namespace: report progress, and wait for the end with pinned blocks. */
static void worker(const struct harness *harness, int said)
{
	struct gpool_options options = harness_options(harness);
	struct gpool_block block;
	struct gpool *pool;
	uint64_t address;
	int error = getpid() == 1 ? gpool_open(&options, &pool) : -ESRCH;

	if (!error)
		error = gpool_alloc(pool, PAGES, NULL, &block);
	if (!error)
		error = gpool_address(pool, &block, &address);
	if (!error)
		memset((void *)(uintptr_t)address, 0x5c, PAGES * gpool_page_bytes(pool));
	if (write(said, &error, sizeof(error)) != sizeof(error))
		_exit(1);
	for (;;)
		pause();
}

/*
 * Start a process that ends when its child does; *worker_pid is the child's pid in this namespace. Return 0, or the
 * reason why the namespaces are not available.
 */
static pid_t start(const struct harness *harness, int namespaces, int *refused, int *error)
{
	int said[2];
	pid_t pid;

	assert_int_equal(pipe(said), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int why = unshare(namespaces) ? -errno : 0;
		pid_t child;

		if (write(said[1], &why, sizeof(why)) != sizeof(why) || why)
			_exit(0);
		child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			worker(harness, said[1]);
		}
		waitpid(child, NULL, 0);
		_exit(0);
	}
	close(said[1]);
	assert_int_equal(read(said[0], refused, sizeof(*refused)), sizeof(*refused));
	if (!*refused)
		assert_int_equal(read(said[0], error, sizeof(*error)), sizeof(*error));
	close(said[0]);
	return pid;
}

static void try_namespaces(int namespaces)
{
	struct harness harness;
	uint32_t before;
	int refused, error = 0;
	pid_t pid;

	harness_start(&harness, arguments);
	before = harness_free_pages(&harness);
	pid = start(&harness, namespaces, &refused, &error);
	if (!refused) {
		assert_int_equal(error, 0);
		assert_true(harness_free_pages(&harness) <= before - PAGES);
		assert_int_equal(harness_check(&harness), 0);
		/* The namespace ends with its first process, and so do all processes in it. */
		assert_int_equal(kill(pid, SIGKILL), 0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	for (int ms = 0; harness_free_pages(&harness) != before; ms += 5) {
		assert_true(ms < LEFT_MS);
		poll(NULL, 0, 5);
	}
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(harness_stop(&harness), 0);
	if (refused) {
		print_message("no such namespaces here: %s\n", strerror(-refused));
		skip();
	}
}

static void test_a_container(void **state)
{
	(void)state;
	try_namespaces(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
}

static void test_a_container_without_root(void **state)
{
	(void)state;
	try_namespaces(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_container),
		cmocka_unit_test(test_a_container_without_root),
	};

	return cmocka_run_group_tests_name("namespaces", tests, NULL, NULL);
}
