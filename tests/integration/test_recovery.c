/*
 * test_recovery.c - the agent is killed and restarted, and workers notice only a pause.
 *
 * Goal: the state before a death is kept: sessions, leases, pins, contents, waiting requests, limits, quarantines and
 * tokens. The pages of a session that ended while no agent was running are freed.
 *
 * Method: the agent of a real gpoold gets SIGKILL at a time that the test chooses. test_crash_points.c tests the
 * recovery of each intermediate state.
 *
 * Requirements: S2.
 */
#include "tests/integration/life.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

enum { DEATHS = 6, WORKER_PAGES = 3 };

static int start_quiet(void **state)
{
	(void)state;
	start(quiet);
	return 0;
}

/* Kill the agent. Return when it is dead and its successor is being started. */
static void agent_kill(void)
{
	uint32_t pid = status()->agent_pid;
	int pidfd;

	assert_true(pid > 1);
	pidfd = pidfd_of((pid_t)pid);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	await_end(pidfd);
}

static void fill(struct gpool *pool, const struct gpool_block *block, uint8_t value)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	memset((void *)(uintptr_t)address, value, block->page_count * (size_t)gpool_page_bytes(pool));
}

static bool holds(struct gpool *pool, const struct gpool_block *block, uint8_t value)
{
	size_t bytes = block->page_count * (size_t)gpool_page_bytes(pool);
	const uint8_t *at;
	uint64_t address;

	if (gpool_address(pool, block, &address))
		return false;
	at = (const uint8_t *)(uintptr_t)address;
	return at[0] == value && !memcmp(at, at + 1, bytes - 1);
}

/* ---- a worker that continues ---- */

struct busy {
	struct gpool *pool;
	_Atomic bool stop;
	_Atomic int error;
	_Atomic uint64_t rounds;
};

/*
 * Allocate, fill, pin and free, from the lease and with requests to the agent. Any error other than a shortage fails
 * the test.
 */
static void *busy_run(void *context)
{
	struct busy *busy = context;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.timeout_ms = ANSWER_MS;
	for (uint64_t round = 0; !atomic_load(&busy->stop); round++) {
		uint32_t pages = 1 + (uint32_t)(round % 20);
		struct gpool_block block;
		int error = gpool_alloc(busy->pool, pages, &options, &block);

		if (!error) {
			fill(busy->pool, &block, (uint8_t)round);
			error = gpool_unpin(busy->pool, &block);
		}
		if (!error)
			error = gpool_pin(busy->pool, &block);
		if (!error && !holds(busy->pool, &block, (uint8_t)round))
			error = -EILSEQ;
		if (!error)
			error = gpool_free(busy->pool, &block);
		if (error) {
			atomic_store(&busy->error, error);
			break;
		}
		atomic_fetch_add(&busy->rounds, 1);
	}
	return NULL;
}

static void test_workers_notice_a_pause(void **state)
{
	struct busy busy = {.pool = open_worker()};
	struct gpool *other = open_worker();
	struct gpool_block kept = alloc(other, WORKER_PAGES), unpinned = alloc(other, 1);
	pthread_t thread;

	(void)state;
	fill(other, &kept, 77);
	fill(other, &unpinned, 78);
	assert_int_equal(gpool_unpin(other, &unpinned), 0);
	assert_int_equal(pthread_create(&thread, NULL, busy_run, &busy), 0);
	for (int death = 0; death < DEATHS; death++) {
		uint64_t rounds = atomic_load(&busy.rounds);

		agent_kill();
		AWAIT(atomic_load(&busy.rounds) > rounds + 40 || atomic_load(&busy.error));
		assert_int_equal(atomic_load(&busy.error), 0);
		assert_true(holds(other, &kept, 77));
	}
	atomic_store(&busy.stop, true);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&busy.error), 0);
	assert_int_equal(gpool_pin(other, &unpinned), 0);
	assert_true(holds(other, &unpinned, 78));
	gpool_close(busy.pool);
	gpool_close(other);
	AWAIT(harness_free_pages(&harness) == PAGES);
}

/* ---- requests that wait ---- */

struct waiting {
	struct gpool *pool;
	struct gpool_block block;
	_Atomic int result; /* 1: not finished */
};

static void *wait_run(void *context)
{
	struct waiting *waiting = context;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.timeout_ms = -1;
	atomic_store(&waiting->result, gpool_alloc(waiting->pool, PAGES / 2, &options, &waiting->block));
	return NULL;
}

static void test_a_waiting_request_is_served_once(void **state)
{
	struct gpool *holder = open_worker();
	struct waiting waiting = {.pool = open_worker(), .result = 1};
	struct gpool_block all = alloc(holder, PAGES - 8);
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, wait_run, &waiting), 0);
	AWAIT(status()->pools[0].waiters == 1);
	agent_kill();
	AWAIT(status()->pools[0].waiters == 1);
	agent_kill();
	assert_int_equal(atomic_load(&waiting.result), 1);
	assert_int_equal(gpool_free(holder, &all), 0);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&waiting.result), 0);
	assert_int_equal(harness_check(&harness), 0);
	gpool_close(waiting.pool);
	gpool_close(holder);
	AWAIT(harness_free_pages(&harness) == PAGES);
}

/* ---- sessions that end while no agent runs ---- */

/*
 * A worker dies while no agent runs. The next agent detects the death by the pidfd of the worker, and frees its pages.
 */
static void test_deaths_while_there_is_no_agent(void **state)
{
	uint32_t agent = status()->agent_pid;
	int says[2], status_word;
	pid_t child;
	char byte;

	(void)state;
	assert_int_equal(pipe(says), 0);
	child = fork();
	if (child == 0) {
		struct gpool_options options = harness_options(&harness);
		struct gpool_block block;
		struct gpool *pool;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (gpool_open(&options, &pool) || gpool_alloc(pool, 7, NULL, &block) || write(says[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_true(child > 0);
	assert_int_equal(read(says[0], &byte, 1), 1);
	close(says[0]);
	close(says[1]);
	assert_true(agent > 1);
	kill((pid_t)agent, SIGKILL);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status_word, 0), child);
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_int_equal(harness_check(&harness), 0);
}

static void test_a_detach_without_an_agent(void **state)
{
	struct gpool *pool = open_worker();
	uint32_t agent = status()->agent_pid;

	(void)state;
	alloc(pool, 9);
	assert_true(agent > 1);
	kill((pid_t)agent, SIGKILL);
	gpool_close(pool);
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_int_equal(harness_check(&harness), 0);
}

static void test_attaching_without_an_agent(void **state)
{
	(void)state;
	for (int death = 0; death < DEATHS; death++) {
		uint32_t agent = status()->agent_pid;
		struct gpool_options options = harness_options(&harness);
		struct gpool_block block;
		struct gpool *pool;

		assert_true(agent > 1);
		kill((pid_t)agent, SIGKILL);
		options.timeout_ms = ANSWER_MS;
		assert_int_equal(gpool_open(&options, &pool), 0);
		assert_int_equal(gpool_alloc(pool, 5, NULL, &block), 0);
		gpool_close(pool);
	}
	AWAIT(harness_free_pages(&harness) == PAGES);
}

/* ---- settings ---- */

static void test_limits_stay_until_a_reload(void **state)
{
	struct msg_limit_request request = {.tenant = "default", .limit_pages = 20, .minimum_pages = 4};
	struct msg_reload_request reload = {0};
	struct msg_done_reply done;
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	ASK(limit_request, &request, done_reply, &done);
	agent_kill();
	assert_int_equal(tenant("default")->limit_pages, 20);
	assert_int_equal(tenant("default")->minimum_pages, 4);
	pool = open_worker();
	assert_int_equal(gpool_alloc(pool, 21, NULL, &block), -EDQUOT);
	ASK(reload_request, &reload, done_reply, &done);
	assert_int_equal(tenant("default")->limit_pages, PAGES);
	agent_kill();
	assert_int_equal(tenant("default")->limit_pages, PAGES);
	gpool_close(pool);
}

static void test_incarnations_and_counters_continue(void **state)
{
	uint64_t incarnation = status()->incarnation, grants;
	struct gpool *pool = open_worker();

	(void)state;
	alloc(pool, 30);
	grants = status()->pools[0].grants;
	assert_true(grants >= 30);
	agent_kill();
	assert_true(status()->incarnation > incarnation);
	assert_true(status()->pools[0].grants >= grants);
	gpool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_workers_notice_a_pause, start_quiet, stop),
		cmocka_unit_test_setup_teardown(test_a_waiting_request_is_served_once, start_quiet, stop),
		cmocka_unit_test_setup_teardown(test_deaths_while_there_is_no_agent, start_quiet, stop),
		cmocka_unit_test_setup_teardown(test_a_detach_without_an_agent, start_quiet, stop),
		cmocka_unit_test_setup_teardown(test_attaching_without_an_agent, start_quiet, stop),
		cmocka_unit_test_setup_teardown(test_limits_stay_until_a_reload, start_quiet, stop),
		cmocka_unit_test_setup_teardown(test_incarnations_and_counters_continue, start_quiet, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
