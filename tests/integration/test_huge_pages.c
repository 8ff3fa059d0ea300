/*
 * test_huge_pages.c - pools of host memory in huge pages of the kernel.
 *
 * Goal: all memory is allocated with the pool, cleared, and mapped as huge pages by workers, even after it was
 * published. Without the key it is allocated on use. A pool larger than the machine's memory is refused.
 *
 * Method: the test starts a gpoold and inspects its memory through its open files, and through the maps of this
 * process. If the kernel has no huge page left, which the log reports, page sizes in the maps are not checked.
 */
#include "tests/integration/life.h"
#include "tests/integration/spill_view.h"
#include "tests/lib/temporary.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define PLACE "name=p0,backend=host,page_size=2MiB,reserved=0"
static char config_path[64];

enum { POOL_PAGES = 16, HUGE = 2 << 20 };

static bool log_says(const char *text)
{
	FILE *log = fopen(harness.log, "re");
	char line[512];
	bool found = false;

	assert_non_null(log);
	while (!found && fgets(line, sizeof(line), log))
		found = strstr(line, text) != NULL;
	fclose(log);
	return found;
}

static const char *const huge[] = {"--pool", PLACE ",size=32MiB,huge_pages=yes", NULL};
static const char *const small[] = {"--pool", PLACE ",size=32MiB", NULL};

/* Return the number of bytes of the pool for which the kernel has allocated pages. */
static uint64_t present_bytes(void)
{
	struct stat stat_of;
	int fd = tier_open("gpool-arena", POOL_PAGES * (off_t)HUGE);

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &stat_of), 0);
	close(fd);
	return (uint64_t)stat_of.st_blocks * 512;
}

/* Return the number of bytes of the mapping with that address that are mapped as huge pages. */
static uint64_t mapped_huge_bytes(uint64_t address)
{
	FILE *maps = fopen("/proc/self/smaps", "re");
	unsigned long begin, end, kib;
	bool here = false;
	uint64_t found = 0;
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			here = address >= begin && address < end;
		else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
			found = kib * 1024;
	}
	fclose(maps);
	return found;
}

static void test_all_memory_is_allocated_at_the_start(void **state)
{
	struct gpool_block block;
	struct gpool *pool;
	uint64_t address;

	(void)state;
	start(huge);
	assert_int_equal(present_bytes(), POOL_PAGES * (uint64_t)HUGE);
	pool = open_worker();
	assert_int_equal(gpool_alloc(pool, POOL_PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	for (uint64_t at = 0; at < POOL_PAGES * (uint64_t)HUGE; at += sizeof(uint64_t))
		assert_int_equal(*(const uint64_t *)(uintptr_t)(address + at), 0);
	memset((void *)(uintptr_t)address, 1, POOL_PAGES * (size_t)HUGE);
	if (log_says("32 MiB in huge pages"))
		assert_int_equal(mapped_huge_bytes(address), POOL_PAGES * (uint64_t)HUGE);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
}

/* Removing and restoring write access to some huge pages splits none of them. */
static void test_published_pages_stay_huge(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t address, bytes, version;
	struct gpool *writer, *reader;
	struct gpool_object *object;
	uint32_t index;

	(void)state;
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	start(huge);
	writer = open_worker();
	reader = open_worker();
	for (int i = 0; i < 3; i++) {
		assert_int_equal(gpool_object_create(writer, "object", &options, &object), 0);
		assert_int_equal(gpool_object_alloc(object, 3, NULL, &index), 0);
		assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
		memset((void *)(uintptr_t)address, 'a' + i, bytes);
		assert_int_equal(gpool_object_publish(object, &version), 0);
		if (log_says("32 MiB in huge pages"))
			assert_true(mapped_huge_bytes(address) >= bytes); /* may include adjacent read-only pages */
		gpool_object_close(object);
		assert_int_equal(gpool_object_open(reader, "object", NULL, &object), 0);
		assert_int_equal(gpool_object_pin(object), 0);
		assert_int_equal(gpool_object_address(object, 0, &address, &bytes), 0);
		for (uint64_t at = 0; at < bytes; at += 4096)
			assert_int_equal(((const char *)(uintptr_t)address)[at], 'a' + i);
		if (log_says("32 MiB in huge pages"))
			assert_true(mapped_huge_bytes(address) >= bytes);
		gpool_object_unpin(object);
		gpool_object_close(object);
		assert_int_equal(gpool_object_delete(writer, "object", version), 0);
	}
	gpool_close(reader);
	gpool_close(writer);
}

static void test_each_handle_of_its_own_is_huge_too(void **state)
{
	static const char text[] = "pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = "
				   "\"2MiB\"; reserved = \"0 pages\"; huge_pages = \"yes\"; } );\n"
				   "tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = "
				   "\"blue\"; domain = \"blue\"; } );\n";
	const char *arguments[] = {"--config", config_path, NULL};
	struct gpool_block block;
	struct gpool *pool;
	uint64_t address;
	FILE *file;

	(void)state;
	snprintf(config_path, sizeof(config_path), "%s/gpool-huge-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(config_path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	unlink(config_path);
	pool = open_worker();
	block = alloc(pool, POOL_PAGES / 2);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	memset((void *)(uintptr_t)address, 1, POOL_PAGES / 2 * (size_t)HUGE);
	if (log_says("32 MiB in huge pages"))
		/* each block has its own file, and therefore its own mapping */
		assert_int_equal(mapped_huge_bytes(address), HUGE);
	gpool_close(pool);
}

static void test_without_the_key_memory_is_allocated_on_use(void **state)
{
	struct gpool_block block;
	struct gpool *pool;
	uint64_t address;

	(void)state;
	start(small);
	assert_int_equal(present_bytes(), 0);
	pool = open_worker();
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	memset((void *)(uintptr_t)address, 1, HUGE);
	assert_int_equal(present_bytes(), HUGE);
	gpool_close(pool);
}

/*
 * In the child: become a gpoold whose control group has a limit, through a changed view of its files. Exit with 77 if
 * that is not permitted.
 */
static _Noreturn void limited_become(int said, const char *most)
{
	char program[512];
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 16);
	FILE *file;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (unshare(CLONE_NEWNS | CLONE_NEWCGROUP) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL))
		_exit(77);
	file = fopen("/sys/fs/cgroup/memory.max", "we");
	if (!file || fputs(most, file) < 0 || fclose(file))
		_exit(77);
	file = fopen("/sys/fs/cgroup/memory.current", "we");
	if (!file || fputs("1048576\n", file) < 0 || fclose(file))
		_exit(77);
	program[length > 0 ? length : 0] = '\0';
	for (int up = 0; up < 2 && strrchr(program, '/'); up++)
		*strrchr(program, '/') = '\0';
	strcat(program, "/gpoold");
	dup2(said, STDOUT_FILENO);
	dup2(said, STDERR_FILENO);
	execl(getenv("GPOOLD") ? getenv("GPOOLD") : program, "gpoold", "--foreground", "--dir", config_path, huge[0],
		huge[1], NULL);
	_exit(77);
}

/*
 * gpoold refuses memory beyond the container's limit before it allocates it, because the kernel would kill the process.
 */
static void test_more_than_the_group_may_have(void **state)
{
	int said = memfd_create("said", MFD_CLOEXEC), status;
	char text[4096] = "";
	pid_t pid;

	(void)state;
	assert_true(said >= 0);
	file_read("/proc/self/cgroup", text, sizeof(text));
	if (strncmp(text, "0::/", 4) && !strstr(text, "\n0::/")) {
		print_message("this kernel has no control groups of version 2\n");
		skip();
	}
	snprintf(config_path, sizeof(config_path), "%s/gpool-huge-%d", temporary_folder(), (int)getpid());
	alarm(STUCK_SECONDS);
	pid = fork();
	if (pid == 0)
		limited_become(said, "17825792\n");
	assert_int_equal(waitpid(pid, &status, 0), pid);
	alarm(0);
	rmdir(config_path);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("needs root, to mount files over those of the control group\n");
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	memset(text, 0, sizeof(text));
	assert_true(pread(said, text, sizeof(text) - 1, 0) > 0);
	close(said);
	assert_non_null(strstr(text,
		"pool 'p0' needs 32 MiB of memory with huge_pages, but only 16 MiB are available; choose a smaller "
		"size"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_all_memory_is_allocated_at_the_start, stop),
		cmocka_unit_test_teardown(test_published_pages_stay_huge, stop),
		cmocka_unit_test_teardown(test_each_handle_of_its_own_is_huge_too, stop),
		cmocka_unit_test_teardown(test_without_the_key_memory_is_allocated_on_use, stop),
		cmocka_unit_test(test_more_than_the_group_may_have),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
