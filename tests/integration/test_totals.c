/*
 * test_totals.c - counters of sessions, added up by the agent.
 *
 * Goal: the sums contain the counts of attached sessions and of sessions that ended, by a detach or a death, and
 * survive the agent's death. False counts of a worker affect only its own contribution. Method: workers whose calls the
 * test counts.
 */
#include "client/core/pool.h"
#include "tests/integration/life.h"

enum { CALLS = 600 }; /* one allocation in 256 is measured */

static void calls_make(struct gpool *pool)
{
	for (int i = 0; i < CALLS; i++) {
		/* the first allocation sends a request to the agent */
		struct gpool_block block = alloc(pool, i ? 1 : PAGES);

		assert_int_equal(gpool_free(pool, &block), 0);
	}
}

static void samples(uint64_t *allocations, uint64_t *refills)
{
	const struct msg_totals_reply *reply = totals();

	*allocations = *refills = 0;
	for (uint32_t i = 0; i < reply->latencies_count; i++) {
		*allocations += reply->latencies[i].allocations;
		*refills += reply->latencies[i].refills;
	}
}

static void worker_dies(void)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child) {
		calls_make(open_worker());
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	AWAIT(status()->pools[0].deaths == 1);
}

static void agent_dies(void)
{
	uint64_t incarnation = status()->incarnation;
	pid_t agent = (pid_t)status()->agent_pid;

	assert_true(agent > 1);
	assert_int_equal(kill(agent, SIGKILL), 0);
	AWAIT(status()->incarnation != incarnation);
}

static void test_ended_sessions_count_on(void **state)
{
	uint64_t allocations, refills;
	struct gpool *pool;

	(void)state;
	start(quiet);
	assert_int_equal(totals()->allocations, 0);
	pool = open_worker();
	calls_make(pool);
	assert_int_equal(totals()->allocations, CALLS);
	gpool_close(pool);
	assert_int_equal(totals()->allocations, CALLS);
	worker_dies();
	pool = open_worker();
	calls_make(pool);
	agent_dies();
	assert_int_equal(totals()->allocations, 3 * CALLS);
	assert_int_equal(totals()->frees, 3 * CALLS);
	samples(&allocations, &refills);
	assert_in_range(allocations, 3 * (CALLS / 256), 3 * (CALLS / 256 + 1));
	assert_in_range(refills, 3, totals()->refills);
	gpool_close(pool);
}

static void test_false_counts_are_ignored(void **state)
{
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_worker();
	pool->session.stats->threads[7].pins = UINT64_MAX / 2;
	pool->session.stats->allocation_ns[9] = UINT64_MAX;
	assert_int_equal(totals()->pins, 0);
	gpool_close(pool);
	assert_int_equal(totals()->pins, 0);
	assert_int_equal(totals()->latencies[9].allocations, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_ended_sessions_count_on, stop),
		cmocka_unit_test_teardown(test_false_counts_are_ignored, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
