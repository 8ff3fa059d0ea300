/*
 * test_trust_crash.c - the agent dies after each of its stores while a page moves from one trust domain to another.
 *
 * Goal: wherever the agent dies, no byte of the old domain is visible in the new one, no page is lost, and the request
 * is served. Method: as in test_crash_points.c, with an agent module in which the agent dies at the n-th store, for n =
 * 1, 2, 3, ... until a scenario ends before the n-th store.
 *
 * Requirements: S8.
 */
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { RED_BYTE = 0xad, SOME = 6, DEATHS_OF_ONE = 16 };

static _Atomic int64_t *countdown;
static char config_path[64], crash_path[TEMPORARY_PATH_BYTES];
static struct gpool *red, *blue;

static const char configuration[] =
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"4MiB\"; page_size = \"512KB\"; reserved = \"0 "
	"pages\"; } );\n"
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; domain = \"blue\"; } "
	");\n";
enum { ALL = 8 };

/* Return the path of .../tests/crash/gpoold-agent.so, which is built beside the test program. */
static const char *module_path(void)
{
	static char path[512];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);

	assert_true(length > 0);
	path[length] = '\0';
	strcpy(strrchr(path, '/'), "/crash/gpoold-agent.so");
	return path;
}

static int crash_start(void **state)
{
	const char *arguments[] = {"--module", module_path(), "--config", config_path, NULL};

	(void)state;
	if (!countdown) {
		int fd = mkstemp(temporary_path(crash_path, "gpool-crash-XXXXXX"));
		FILE *file;

		assert_true(fd >= 0 && ftruncate(fd, sizeof(*countdown)) == 0);
		countdown = mmap(NULL, sizeof(*countdown), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(countdown, MAP_FAILED);
		close(fd);
		setenv("GPOOL_CRASH_FILE", crash_path, 1);
		snprintf(config_path, sizeof(config_path), "%s/gpool-trust-%d.conf", temporary_folder(), (int)getpid());
		file = fopen(config_path, "we");
		assert_true(file && fputs(configuration, file) >= 0 && fclose(file) == 0);
	}
	start(arguments);
	return 0;
}

static int crash_stop(void **state)
{
	atomic_store(countdown, 0);
	unlink(crash_path);
	unlink(config_path);
	return stop(state);
}

/* ---- workers ---- */

static struct gpool *worker_open(const char *tenant_name)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool;

	options.tenant = tenant_name;
	options.magazine = 1;
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_open(&options, &pool), 0);
	return pool;
}

static uint8_t *bytes_of(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (uint8_t *)(uintptr_t)address;
}

static void take(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.timeout_ms = ANSWER_MS;
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(gpool_alloc(pool, 1, &options, &blocks[i]), 0);
}

/* Red unmaps pages, as a running process does. */
static pthread_t busy_thread;
static _Atomic bool busy_stop;

static void *busy_run(void *argument)
{
	(void)argument;
	while (!atomic_load(&busy_stop)) {
		gpool_release_unused(red);
		poll(NULL, 0, 1);
	}
	return NULL;
}

/* ---- a scenario, with a death at each point ---- */

static void prepare(void)
{
	struct gpool_block blocks[ALL];

	red = worker_open("red");
	take(red, blocks, ALL);
	for (uint32_t i = 0; i < ALL; i++)
		memset(bytes_of(red, &blocks[i]), RED_BYTE, gpool_page_bytes(red));
	for (uint32_t i = 0; i < ALL; i++)
		assert_int_equal(gpool_free(red, &blocks[i]), 0);
	blue = worker_open("blue");
}

static struct gpool_block got[SOME];

static void act_with_red(void)
{
	atomic_store(&busy_stop, false);
	assert_int_equal(pthread_create(&busy_thread, NULL, busy_run, NULL), 0);
	take(blue, got, SOME);
	atomic_store(&busy_stop, true);
	pthread_join(busy_thread, NULL);
}

static void act_without_red(void)
{
	gpool_close(red);
	red = NULL;
	take(blue, got, SOME);
}

/* Red does not reply. Afterwards its own domain gets the retired pages. */
static void act_against_red(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, all[ALL];
	struct gpool *rose;
	int error;

	error = gpool_alloc(blue, SOME, &options, &block);
	assert_int_equal(error, -ENOSPC);
	rose = worker_open("red");
	take(rose, all, ALL);
	for (uint32_t i = 0; i < ALL; i++)
		assert_int_equal(bytes_of(rose, &all[i])[i], RED_BYTE);
	gpool_close(rose);
	act_without_red();
}

/* Try every n-th point, where n is `usual` unless the environment sets it. */
static void play(void (*act)(void), int usual)
{
	const char *stride_text = getenv("GPOOL_CRASH_STRIDE");
	int stride = stride_text ? atoi(stride_text) : usual;
	int64_t left = 0, at;
	uint32_t deaths = 0;

	for (at = 1; left == 0; at += stride > 0 ? stride : 1) {
		alarm(STUCK_SECONDS);
		if (deaths % DEATHS_OF_ONE == DEATHS_OF_ONE - 1) {
			/* The keeper delays the restart of an agent that dies too often. */
			assert_int_equal(stop(NULL), 0);
			crash_start(NULL);
		}
		prepare();
		atomic_store(countdown, at);
		act();
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		for (uint32_t i = 0; i < SOME; i++) {
			const uint8_t *bytes = bytes_of(blue, &got[i]);

			if (bytes[0] || memcmp(bytes, bytes + 1, gpool_page_bytes(blue) - 1))
				fail_msg("after a death at point %lld page %u is not zero", (long long)at, got[i].page);
		}
		AWAIT(harness_check(&harness) == 0);
		gpool_close(blue);
		if (red)
			gpool_close(red);
		red = blue = NULL;
		AWAIT(harness_free_pages(&harness) == ALL);
		AWAIT(harness_check(&harness) == 0);
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

static void test_transfer(void **state)
{
	(void)state;
	play(act_with_red, 1);
}

static void test_transfer_from_an_ended_session(void **state)
{
	(void)state;
	play(act_without_red, 1);
}

static void test_retirement(void **state)
{
	(void)state;
	/* Each point takes as long as the grace period, which is more than a second. */
	play(act_against_red, 11);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transfer),
		cmocka_unit_test(test_transfer_from_an_ended_session),
		cmocka_unit_test(test_retirement),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, crash_start, crash_stop);
}
