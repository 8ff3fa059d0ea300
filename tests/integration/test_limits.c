/*
 * test_limits.c - limits: quotas, tenants, reserved pages, the number of sessions, and waiting for pages.
 *
 * Each test starts a gpoold with a small pool and the limit to test. It uses memory up to the limit, exceeds the limit,
 * and returns below it.
 */
#include "client/gpool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"
#include "shm/monotonic.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, RESERVED = 8, PAGE_BYTES = 512 << 10, STUCK_SECONDS = 1000, OTHER_USER = 65534 };

static struct harness harness;

static const char *const plain[] = {"--pool", "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0", NULL};

static void start(const char *const *arguments)
{
	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
}

static int stop(void **state)
{
	uint32_t findings = harness.pid > 0 ? harness_check(&harness) : 0;

	(void)state;
	alarm(0);
	/* A skipped test has not started a gpoold. */
	if (harness.pid <= 0)
		return 0;
	return harness_stop(&harness) || findings ? -1 : 0;
}

static struct gpool *open_with(const struct gpool_options *options)
{
	struct gpool *pool = NULL;

	assert_int_equal(gpool_open(options, &pool), 0);
	return pool;
}

static int alloc(struct gpool *pool, uint32_t page_count, uint32_t flags, struct gpool_block *block)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.flags = flags;
	return gpool_alloc(pool, page_count, &options, block);
}

static struct gpool_block alloc_well(struct gpool *pool, uint32_t page_count)
{
	struct gpool_block block = {0};

	assert_int_equal(alloc(pool, page_count, 0, &block), 0);
	return block;
}

/* Allocate pages one by one, pinned or not, until a call fails; *error is the result of that call. */
static uint32_t alloc_most(struct gpool *pool, bool pinned, struct gpool_block *blocks, int *error)
{
	uint32_t count = 0;

	while (count < PAGES && !(*error = alloc(pool, 1, 0, &blocks[count]))) {
		if (!pinned)
			assert_int_equal(gpool_unpin(pool, &blocks[count]), 0);
		count++;
	}
	return count;
}

/* Return the number of these unpinned blocks that were not evicted. */
static uint32_t count_alive(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	uint32_t alive = 0;

	for (uint32_t i = 0; i < count; i++) {
		int error = gpool_pin(pool, &blocks[i]);

		if (error) {
			assert_int_equal(error, -ESTALE);
			continue;
		}
		alive++;
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
	return alive;
}

/* ---- quota of a process ---- */

static void test_quota_is_edquot(void **state)
{
	struct gpool_options options;
	struct gpool_block blocks[PAGES], more;
	struct gpool *pool;
	uint32_t count;
	int error;

	(void)state;
	start(plain);
	options = harness_options(&harness);
	options.quota_bytes = 8 * PAGE_BYTES;
	pool = open_with(&options);
	count = alloc_most(pool, true, blocks, &error);
	assert_int_equal(error, -EDQUOT);
	assert_int_equal(count, 8);
	assert_int_equal(alloc(pool, 9, 0, &more), -EDQUOT);
	/* Freed pages can be allocated again. */
	assert_int_equal(gpool_free(pool, &blocks[0]), 0);
	more = alloc_well(pool, 1);
	/* The unpinned blocks of the session itself are evicted. */
	for (uint32_t i = 1; i < count; i++)
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	assert_int_equal(gpool_free(pool, &more), 0);
	alloc_well(pool, 8);
	assert_int_equal(count_alive(pool, blocks + 1, count - 1), 0);
	gpool_close(pool);
}

/* ---- sessions ---- */

/* Requirements: S12. */
static void test_sessions_are_eusers(void **state)
{
	static const char *const arguments[] = {"--pool", "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0",
		"--set", "limits.sessions=3", NULL};
	struct gpool_options options;
	struct gpool *pools[3], *one_more = NULL;
	int error;

	(void)state;
	start(arguments);
	options = harness_options(&harness);
	for (int i = 0; i < 3; i++)
		pools[i] = open_with(&options);
	assert_int_equal(gpool_open(&options, &one_more), -EUSERS);
	assert_null(one_more);
	gpool_close(pools[0]);
	/* gpool_close() waits two seconds for the agent. A busy agent frees the session later. */
	AWAIT((error = gpool_open(&options, &pools[0])) != -EUSERS);
	assert_int_equal(error, 0);
	for (int i = 0; i < 3; i++)
		gpool_close(pools[i]);
}

/* ---- reserved pages ---- */

static const char *const with_reserved[] = {
	"--pool", "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=8 pages", "--set", "group=", NULL};

/* Requirements: U11. */
static void test_reserved_pages_are_for_critical_work(void **state)
{
	struct gpool_block blocks[PAGES], critical, more;
	const struct pool_header *header;
	struct gpool *pool;
	uint32_t count;
	int error;

	(void)state;
	start(with_reserved);
	pool = harness_open(&harness);
	header = pool_view(pool)->header;
	assert_int_equal(atomic_load(&header->state_pages[PAGE_RESERVED]), RESERVED);
	count = alloc_most(pool, true, blocks, &error);
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(count, PAGES - RESERVED);
	assert_int_equal(atomic_load(&header->state_pages[PAGE_RESERVED]), RESERVED);
	assert_int_equal(alloc(pool, RESERVED, GPOOL_ALLOC_CRITICAL, &critical), 0);
	assert_true(critical.page >= PAGES - RESERVED);
	assert_int_equal(alloc(pool, 1, GPOOL_ALLOC_CRITICAL, &more), -ENOSPC);
	/* After the free, the pages are reserved again, and not available to ordinary allocations. */
	assert_int_equal(gpool_free(pool, &critical), 0);
	assert_int_equal(alloc(pool, 1, 0, &more), -ENOSPC);
	assert_int_equal(alloc(pool, RESERVED, GPOOL_ALLOC_CRITICAL, &critical), 0);
	gpool_close(pool);
	assert_int_equal(harness_free_pages(&harness), PAGES - RESERVED);
}

/* Run in a child as an unprivileged user. Return the exit status: 0 if the request was refused as expected. */
static int critical_as_other_user(void)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block block;
	struct gpool *pool;

	if (setgid(OTHER_USER) < 0 || setuid(OTHER_USER) < 0)
		return 2;
	if (gpool_open(&options, &pool))
		return 3;
	if (alloc(pool, 1, 0, &block))
		return 4;
	/* The request exceeds the pages that the lease may keep idle, so it is sent to the agent. */
	if (alloc(pool, PAGES - RESERVED, GPOOL_ALLOC_CRITICAL, &block) != -EPERM)
		return 5;
	gpool_close(pool);
	return 0;
}

/* Requirements: U11. */
static void test_critical_is_eperm_for_others(void **state)
{
	static const char *const arguments[] = {"--pool",
		"name=p0,backend=host,size=32MiB,page_size=512KB,reserved=8 pages", "--set", "group=65534", NULL};
	int status = -1;
	pid_t pid;

	(void)state;
	/* The user that runs gpoold may use the reserved pages, so the test needs a second user. */
	if (geteuid() != 0) {
		print_message("only root can become another user\n");
		skip();
	}
	start(arguments);
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(critical_as_other_user());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* ---- tenants ---- */

static char config_path[64];

/* Joined with the list of tenants. The users are listed so that a worker that names no tenant joins the last one. */
static const char config_text[] = "pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = "
				  "\"512KB\"; reserved = \"0 pages\"; } );\n"
				  "tenants = (\n"
				  "	{ name = \"small\"; users = [ \"1\" ]; limit = \"12 pages\"; },\n"
				  "	{ name = \"sure\"; users = [ \"2\" ]; minimum = \"16 pages\"; },\n"
				  "	{ name = \"rest\"; }\n"
				  ");\n";

static void start_tenants_with(const char *setting1, const char *setting2)
{
	const char *arguments[] = {"--config", config_path, setting1 ? "--set" : NULL, setting1,
		setting2 ? "--set" : NULL, setting2, NULL};
	FILE *file;

	snprintf(config_path, sizeof(config_path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(config_path, "we");
	assert_non_null(file);
	assert_true(fputs(config_text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	unlink(config_path);
}

static void start_tenants(void)
{
	start_tenants_with(NULL, NULL);
}

static struct gpool *open_tenant(const char *tenant)
{
	struct gpool_options options = harness_options(&harness);

	options.tenant = tenant;
	return open_with(&options);
}

/* Requirements: U12. */
static void test_tenant_limit_holds_for_all_its_sessions(void **state)
{
	struct gpool_block blocks[PAGES], others[PAGES];
	struct gpool *one, *two;
	uint32_t count, more;
	int error;

	(void)state;
	start_tenants();
	one = open_tenant("small");
	two = open_tenant("small");
	count = alloc_most(one, true, blocks, &error);
	assert_int_equal(error, -EDQUOT);
	assert_int_equal(count, 12);
	assert_int_equal(alloc(two, 1, 0, &others[0]), -EDQUOT);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(gpool_free(one, &blocks[i]), 0);
	/* Idle pages of the first session belong to the tenant's share, and move to the second session. */
	more = alloc_most(two, true, others, &error);
	assert_int_equal(error, -EDQUOT);
	assert_int_equal(more, 5);
	gpool_close(one);
	gpool_close(two);
}

static void test_an_unknown_tenant_is_enxio(void **state)
{
	struct gpool_options options;
	struct gpool *pool = NULL;

	(void)state;
	start_tenants();
	options = harness_options(&harness);
	options.tenant = "nowhere";
	assert_int_equal(gpool_open(&options, &pool), -ENXIO);
	assert_null(pool);
}

/* Requirements: U12. */
static void test_guaranteed_pages_are_returned_by_a_borrower(void **state)
{
	struct gpool_block blocks[PAGES], sure[PAGES];
	struct gpool *borrower, *owner;
	uint32_t borrowed, alive;
	int error = 0;

	(void)state;
	start_tenants();
	borrower = open_tenant("rest");
	/* The minimum is unused, so it is lent. The borrowed blocks are not pinned. */
	borrowed = alloc_most(borrower, false, blocks, &error);
	assert_int_equal(borrowed, PAGES);
	owner = open_tenant("sure");
	for (uint32_t i = 0; i < 16; i++)
		sure[i] = alloc_well(owner, 1);
	alive = count_alive(borrower, blocks, borrowed);
	assert_true(alive <= PAGES - 16);
	/* At most one batch was evicted for the owner. */
	assert_true(alive > 0);
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(gpool_unpin(owner, &sure[i]), 0);
	gpool_close(borrower);
	gpool_close(owner);
}

/* Requirements: U12, E2. */
static void test_guaranteed_pages_are_not_evicted(void **state)
{
	struct gpool_block sure[PAGES], blocks[PAGES];
	struct gpool *owner, *greedy;
	uint32_t count;
	int error;

	(void)state;
	start_tenants();
	owner = open_tenant("sure");
	for (uint32_t i = 0; i < 16; i++) {
		sure[i] = alloc_well(owner, 1);
		assert_int_equal(gpool_unpin(owner, &sure[i]), 0);
	}
	greedy = open_tenant("rest");
	count = alloc_most(greedy, true, blocks, &error);
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(count, PAGES - 16);
	assert_int_equal(count_alive(owner, sure, 16), 16);
	gpool_close(owner);
	gpool_close(greedy);
}

/*
 * The watermarks evict pages that a tenant has above its minimum. They do not evict content within a guaranteed
 * minimum, even if the tenant leases additional idle pages.
 */
static void test_watermarks_keep_guaranteed_pages(void **state)
{
	struct gpool_block sure[16], blocks[30], unpinned[4];
	struct gpool *owner, *other;

	(void)state;
	start_tenants_with("eviction.start=70", "eviction.stop=1");
	/* The first session leases all pages, and keeps the unused ones. */
	owner = open_tenant("sure");
	for (uint32_t i = 0; i < 16; i++)
		sure[i] = alloc_well(owner, 1);
	other = open_tenant("rest");
	for (uint32_t i = 0; i < 30; i++)
		blocks[i] = alloc_well(other, 1);
	for (uint32_t i = 0; i < 4; i++)
		unpinned[i] = alloc_well(other, 1);
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(gpool_unpin(owner, &sure[i]), 0);
	/*
	 * 50 of 64 pages are in use, which is 78 %. The four blocks of `other` are unpinned after the owner's blocks,
	 * so an eviction that takes them could have taken the owner's blocks too.
	 */
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(gpool_unpin(other, &unpinned[i]), 0);
	AWAIT(!count_alive(other, unpinned, 4));
	assert_int_equal(count_alive(owner, sure, 16), 16);
	for (uint32_t i = 0; i < 30; i++)
		assert_int_equal(gpool_free(other, &blocks[i]), 0);
	gpool_close(owner);
	gpool_close(other);
}

/* ---- out of memory ---- */

static void test_the_first_refusal_reports_the_reason(void **state)
{
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	struct gpool *large, *small;
	struct gpool_block block;

	(void)state;
	start(plain);
	large = harness_open(&harness);
	small = harness_open(&harness);
	alloc_well(large, 40);
	alloc_well(small, 16);
	assert_int_equal(alloc(small, 20, 0, &block), -ENOSPC);
	gpool_oom_info(small, &shortage);
	assert_int_equal(shortage.needed, 20);
	assert_int_equal(shortage.free, PAGES - 40 - 16);
	assert_int_equal(shortage.pinned, 40 + 16);
	assert_int_equal(shortage.holder, gpool_session(large));
	assert_int_equal(shortage.holder_pages, 40);
	alloc_well(small, PAGES - 40 - 16);
	gpool_close(large);
	gpool_close(small);
}

/* ---- waiting ---- */

struct waiter {
	struct gpool *pool;
	int32_t timeout_ms;
	struct gpool_block block;
	int error;
	uint64_t took_ms;
	pthread_t thread;
};

static void *wait_for_pages(void *argument)
{
	struct waiter *waiter = argument;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint64_t begin = monotonic_ms();

	options.timeout_ms = waiter->timeout_ms;
	waiter->error = gpool_alloc(waiter->pool, 4, &options, &waiter->block);
	waiter->took_ms = monotonic_ms() - begin;
	return NULL;
}

static void waiter_start(struct waiter *waiter, int32_t timeout_ms)
{
	waiter->pool = harness_open(&harness);
	waiter->timeout_ms = timeout_ms;
	assert_int_equal(pthread_create(&waiter->thread, NULL, wait_for_pages, waiter), 0);
}

/* Wait until the agent reports `count` waiting requests. */
static void await_waiters(struct gpool *pool, uint32_t count)
{
	const struct pool_header *header = pool_view(pool)->header;

	AWAIT(atomic_load(&header->waiters) == count);
}

static void test_a_waiting_allocation_is_served_by_a_free(void **state)
{
	struct waiter waiter = {0};
	struct gpool_block most, four;
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = harness_open(&harness);
	most = alloc_well(pool, PAGES - 4);
	four = alloc_well(pool, 4);
	waiter_start(&waiter, -1);
	await_waiters(pool, 1);
	assert_int_equal(gpool_free(pool, &four), 0);
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.error, 0);
	await_waiters(pool, 0);
	assert_int_equal(gpool_free(pool, &most), 0);
	gpool_close(waiter.pool);
	gpool_close(pool);
}

static void test_a_waiting_allocation_is_served_by_an_unpin(void **state)
{
	struct waiter waiter = {0};
	struct gpool_block all;
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = harness_open(&harness);
	all = alloc_well(pool, PAGES);
	waiter_start(&waiter, -1);
	await_waiters(pool, 1);
	assert_int_equal(gpool_unpin(pool, &all), 0);
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.error, 0);
	assert_int_equal(gpool_pin(pool, &all), -ESTALE);
	gpool_close(waiter.pool);
	gpool_close(pool);
}

static void test_a_waiting_allocation_is_served_by_a_death(void **state)
{
	struct waiter waiter = {0};
	struct gpool *observer;
	int ends[2];
	pid_t pid;
	char ready;

	(void)state;
	start(plain);
	assert_int_equal(pipe(ends), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		struct gpool *pool = harness_open(&harness);
		struct gpool_block all;

		if (alloc(pool, PAGES, 0, &all) == 0 && write(ends[1], "r", 1) == 1)
			for (;;)
				pause();
		_exit(1);
	}
	assert_int_equal(read(ends[0], &ready, 1), 1);
	observer = harness_open(&harness);
	waiter_start(&waiter, -1);
	await_waiters(observer, 1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.error, 0);
	close(ends[0]);
	close(ends[1]);
	gpool_close(waiter.pool);
	gpool_close(observer);
}

/* Requirements: U8. */
static void test_a_wait_ends_at_its_timeout(void **state)
{
	struct waiter waiter = {0};
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = harness_open(&harness);
	alloc_well(pool, PAGES);
	waiter_start(&waiter, 50);
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.error, -ENOSPC);
	assert_true(waiter.took_ms >= 49);
	gpool_close(waiter.pool);
	gpool_close(pool);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_quota_is_edquot, stop),
		cmocka_unit_test_teardown(test_sessions_are_eusers, stop),
		cmocka_unit_test_teardown(test_reserved_pages_are_for_critical_work, stop),
		cmocka_unit_test_teardown(test_critical_is_eperm_for_others, stop),
		cmocka_unit_test_teardown(test_tenant_limit_holds_for_all_its_sessions, stop),
		cmocka_unit_test_teardown(test_an_unknown_tenant_is_enxio, stop),
		cmocka_unit_test_teardown(test_guaranteed_pages_are_returned_by_a_borrower, stop),
		cmocka_unit_test_teardown(test_guaranteed_pages_are_not_evicted, stop),
		cmocka_unit_test_teardown(test_watermarks_keep_guaranteed_pages, stop),
		cmocka_unit_test_teardown(test_the_first_refusal_reports_the_reason, stop),
		cmocka_unit_test_teardown(test_a_waiting_allocation_is_served_by_a_free, stop),
		cmocka_unit_test_teardown(test_a_waiting_allocation_is_served_by_an_unpin, stop),
		cmocka_unit_test_teardown(test_a_waiting_allocation_is_served_by_a_death, stop),
		cmocka_unit_test_teardown(test_a_wait_ends_at_its_timeout, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
