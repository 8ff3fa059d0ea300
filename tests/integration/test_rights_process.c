/*
 * test_rights_process.c - access of other processes of the same user to gpoold's processes.
 *
 * Goal: if gpoold does not run as root, no process of the same user can open the memory or the descriptors of its
 * processes: keeper, agent, front and mover. This also holds after a restart of the agent. core_dumps = "yes" permits
 * the access. Method: as root, a child becomes another user, runs a copy of gpoold that this user can access, and tries
 * to open them.
 */
#include "tests/integration/keeper.h"
#include "tests/lib/temporary.h"

#include "client/gpool.h"

#include <errno.h>
#include <sys/stat.h>

enum { USER = 1001 };

static char folder[64];

static void copy(const char *name)
{
	char path[128];
	size_t bytes;
	char *content = file_read(beside(name), &bytes);

	snprintf(path, sizeof(path), "%s%s", folder, strrchr(name, '/'));
	file_write(path, content, bytes);
	assert_int_equal(chmod(path, 0755), 0);
	free(content);
}

/* Return true if this process can open the file. An error other than a refusal fails the test. */
static bool opens(pid_t pid, const char *what)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno != EACCES && errno != EPERM)
		fail_msg("cannot open %s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static void all_are(bool readable)
{
	static const char *const names[] = {"gpoold-agent", "gpoold-front", "gpoold-mover"};

	for (size_t i = 0; i <= sizeof(names) / sizeof(*names); i++) {
		pid_t pid = i ? child_awaited(harness.pid, names[i - 1]) : harness.pid;

		if (opens(pid, "fd") != readable)
			fail_msg("%s: its descriptors can%s be opened", i ? names[i - 1] : "the keeper",
				readable ? "not" : "");
		/* If Yama restricts ptrace(2), the memory may be inaccessible even with core dumps permitted. */
		if (!readable && opens(pid, "mem"))
			fail_msg("%s: its memory can be opened", i ? names[i - 1] : "the keeper");
	}
}

/* Check that allocations and frees work as this user, so gpoold does not need the closed descriptors. */
static void works(void)
{
	struct gpool *pool = harness_open(&harness);
	struct gpool_block block;

	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
}

static void run_with(const char *setting, bool readable)
{
	alarm(STUCK_SECONDS);
	harness_start(&harness, (const char *const[]){"--pool", POOL, "--set", setting, NULL});
	works();
	all_are(readable);
	kill_and_await(child_named(harness.pid, "gpoold-agent"), SIGKILL);
	works();
	all_are(readable);
	assert_int_equal(harness_stop(&harness), 0);
}

static void test_memory_is_closed_to_the_same_user(void **state)
{
	(void)state;
	run_with("core_dumps=no", false);
}

static void test_core_dumps_open_it(void **state)
{
	(void)state;
	run_with("core_dumps=yes", true);
}

/* Become an unprivileged user. Programs that this user cannot access are copied first. */
static void become_user(void)
{
	char program[128];

	snprintf(folder, sizeof(folder), "%s/gpool-rights-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(folder));
	assert_int_equal(chmod(folder, 0755), 0);
	copy("../gpoold");
	copy("../gpoold-agent.so");
	snprintf(program, sizeof(program), "%s/gpoold", folder);
	assert_int_equal(setenv("GPOOLD", program, 1), 0);
	assert_int_equal(chown(folder, USER, USER), 0);
	assert_int_equal(setgroups(0, NULL) || setgid(USER) || setuid(USER), 0);
	unsetenv("TMPDIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_closed_to_the_same_user),
		cmocka_unit_test(test_core_dumps_open_it),
	};
	static const char *const names[] = {"gpoold", "gpoold-agent.so"};
	char path[128];
	int failed;

	if (geteuid() == 0)
		become_user();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	for (size_t i = 0; folder[0] && i < sizeof(names) / sizeof(*names); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
	}
	rmdir(folder);
	return failed;
}
