/*
 * test_pins_crash.c - pins of blocks that the agent is evicting when it stops.
 *
 * Goal: such a pin waits for pins.timeout and then returns -ETIMEDOUT. It leaves no pin behind, so the agent completes
 * the eviction when it continues.
 *
 * Method: the module of test_crash_points.c, in which the agent stops (SIGSTOP) at its n-th store instead of dying. For
 * n = 1, 2, 3, ... a thread evicts everything, until the agent stops between the mark and the decision. Other stores of
 * the agent, which also count, may skip this one, so n then begins again.
 *
 * Requirements: U6.
 */
#include "client/core/pool.h"
#include "shm/monotonic.h"
#include "shm/pins.h"
#include "tests/integration/crash_points.h"

#include <errno.h>
#include <pthread.h>

enum { TIMEOUT_MS = 200, TRIES_MAX = 2000 };

static struct gpool *pool;
static pid_t agent;
static _Atomic bool evicted;
static pthread_t evictor;

static int begin(void **state)
{
	crash_setting = "pins.timeout=200ms";
	if (crash_start(state))
		return -1;
	atomic_store(&countdown[1], SIGSTOP);
	agent = (pid_t)status()->agent_pid;
	assert_true(agent > 1);
	pool = open_worker();
	return 0;
}

static int end(void **state)
{
	atomic_store(countdown, 0);
	if (agent > 1)
		kill(agent, SIGCONT);
	gpool_close(pool);
	pool = NULL;
	return crash_stop(state);
}

static void *evict_all(void *unused)
{
	(void)unused;
	try_evict(admin, "", PAGES, NULL);
	atomic_store(&evicted, true);
	return NULL;
}

static bool agent_is_stopped(void)
{
	char path[64], text[512], *name_end;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)agent);
	file_read(path, text, sizeof(text));
	name_end = strrchr(text, ')');
	return name_end && name_end[2] == 'T';
}

/* Begin an eviction during which the agent stops at its n-th store. Return false if it ended before. */
static bool evict_until(int64_t n)
{
	atomic_store(&evicted, false);
	atomic_store(countdown, n);
	assert_int_equal(pthread_create(&evictor, NULL, evict_all, NULL), 0);
	AWAIT(atomic_load(&evicted) || agent_is_stopped());
	atomic_store(countdown, 0);
	return !atomic_load(&evicted);
}

/* Let the agent continue, also if it has stopped at a later store, just before the countdown was ended. */
static void eviction_completes(void)
{
	const struct pool_header *header = pool_view(pool)->header;
	uint32_t was;

	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(pthread_join(evictor, NULL), 0);
	was = atomic_load(&header->clock_ms);
	AWAIT(kill(agent, SIGCONT) == 0 && atomic_load(&header->clock_ms) != was);
}

static void test_block(void **state)
{
	uint64_t begun_ms;
	bool found = false, stopped;
	int64_t n = 1;

	(void)state;
	for (int tries = 0; tries < TRIES_MAX && !found; tries++) {
		struct gpool_block block = alloc(pool, 2);

		assert_int_equal(gpool_unpin(pool, &block), 0);
		stopped = evict_until(n);
		n = stopped ? n + 1 : 1;
		if (stopped && page_word_state(atomic_load(&pool->pages[block.page])) == PAGE_EVICTING) {
			found = true;
			begun_ms = monotonic_ms();
			assert_int_equal(gpool_pin(pool, &block), -ETIMEDOUT);
			assert_true(monotonic_ms() - begun_ms >= TIMEOUT_MS);
			assert_int_equal(gpool_touch(pool, &block), -ETIMEDOUT);
			assert_int_equal(pin_count(&pool->session, block.page), 0);
		}
		eviction_completes();
		assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	}
	assert_true(found);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_block, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, crash_end);
}
