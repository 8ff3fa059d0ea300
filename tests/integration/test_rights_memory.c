/*
 * test_rights_memory.c - workers cannot resize the memory files that gpoold gives them.
 *
 * Goal: a worker cannot allocate host memory beyond the pool. It can neither grow nor shrink any memory file that it
 * has from gpoold, even after a restart of the agent. This holds for a pool in one arena and for a pool with a file for
 * each handle. Method: this process attaches, allocates, and tries both on each memfd named gpool-* that it has open.
 */
#include "tests/integration/keeper.h"
#include "tests/lib/temporary.h"

#include "client/gpool.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define TWO_DOMAINS \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"tenants = ( { name = \"red\"; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; domain = \"blue\"; " \
	"} );\n"

static void cannot_be_resized(int fd, const char *name)
{
	struct stat before, after;

	assert_int_equal(fstat(fd, &before), 0);
	if (ftruncate(fd, before.st_size + (1 << 20)) != -1 || errno != EPERM)
		fail_msg("%s can be grown by ftruncate()", name);
	if (fallocate(fd, 0, before.st_size, 1 << 20) != -1 || errno != EPERM)
		fail_msg("%s can be grown by fallocate()", name);
	if (ftruncate(fd, 0) != -1 || errno != EPERM)
		fail_msg("%s can be shrunk", name);
	assert_int_equal(fstat(fd, &after), 0);
	assert_int_equal(after.st_size, before.st_size);
}

/* Try to resize each memory file of this process. Return the number of files with memory of a pool. */
static uint32_t memfds_try(void)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;
	uint32_t memories = 0;

	assert_non_null(fds);
	while ((entry = readdir(fds))) {
		char path[300], target[300];
		ssize_t length;
		int fd;

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		if (!strstr(target, "memfd:gpool"))
			continue;
		/*
		 * Open the file for writing, even if gpoold's descriptor is read-only: the seal must prevent the resize
		 * there too.
		 */
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		cannot_be_resized(fd, target);
		close(fd);
		memories += strstr(target, "gpool-arena") || strstr(target, "gpool-handle");
	}
	closedir(fds);
	return memories;
}

/* Try with a worker that has allocated, now and after it was attached to the next agent. */
static void worker_tries(uint32_t least)
{
	for (int restarts = 0; restarts <= 1; restarts++) {
		struct gpool *pool = harness_open(&harness);
		struct gpool_block block;

		assert_int_equal(gpool_alloc(pool, 4, NULL, &block), 0);
		/* The library keeps no descriptors of the driver's memory. */
		assert_true(memfds_try() >= (strcmp(harness_backend(), "host") ? 0 : least));
		gpool_close(pool);
		kill_and_await(child_named(harness.pid, "gpoold-agent"), SIGKILL);
		agent_seen();
	}
}

static void test_the_arena_cannot_be_grown(void **state)
{
	(void)state;
	alarm(STUCK_SECONDS);
	harness_start(&harness, (const char *const[]){"--pool", POOL, NULL});
	worker_tries(1);
}

static void test_no_handle_can_be_grown(void **state)
{
	char path[64];

	(void)state;
	alarm(STUCK_SECONDS);
	snprintf(path, sizeof(path), "%s/gpool-rights-%d.conf", temporary_folder(), (int)getpid());
	file_write(path, TWO_DOMAINS, strlen(TWO_DOMAINS));
	harness_start(&harness, (const char *const[]){"--config", path, NULL});
	unlink(path);
	worker_tries(4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_the_arena_cannot_be_grown, stop),
		cmocka_unit_test_teardown(test_no_handle_can_be_grown, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
