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
	pool->session.stats->allocation_ns[0][9] = UINT64_MAX;
	assert_int_equal(totals()->pins, 0);
	gpool_close(pool);
	assert_int_equal(totals()->pins, 0);
	assert_int_equal(totals()->latencies[9].allocations, 0);
}

/* ---- by tenant and usage ---- */

static const struct msg_tenant_totals_reply *by_usage(uint32_t usage)
{
	static struct msg_tenant_totals_reply reply;
	const struct msg_tenant_totals_request request = {.pool = "p0", .tenant = "default", .usage = usage};

	ASK(tenant_totals_request, &request, tenant_totals_reply, &reply);
	return &reply;
}

static uint64_t measured(uint32_t usage)
{
	const struct msg_tenant_totals_reply *reply = by_usage(usage);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < reply->latencies_count; i++)
		sum += reply->latencies[i].allocations;
	return sum;
}

static void allocate_as(struct gpool *pool, uint32_t usage, uint32_t pages, int wanted, struct gpool_block *block)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.usage = usage;
	assert_int_equal(gpool_alloc(pool, pages, &options, block), wanted);
}

/* Requirements: U23. */
static void test_usages(void **state)
{
	struct msg_tenant_totals_request unknown = {.pool = "p0", .tenant = "x"};
	struct msg_tenant_totals_reply reply;
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_worker();
	for (int i = 0; i < 2 * CALLS; i++) {
		allocate_as(pool, GPOOL_USAGE_LORA_WEIGHT, 1, 0, &block);
		assert_int_equal(gpool_free(pool, &block), 0);
	}
	assert_in_range(measured(GPOOL_USAGE_LORA_WEIGHT), 2 * CALLS / 256, 2 * CALLS / 256 + 1);
	assert_int_equal(measured(GPOOL_USAGE_KV_CACHE), 0);

	allocate_as(pool, GPOOL_USAGE_GRADIENT, PAGES, 0, &block);
	allocate_as(pool, GPOOL_USAGE_ACTIVATION, 1, -ENOSPC, &(struct gpool_block){.page = 0});
	assert_int_equal(by_usage(GPOOL_USAGE_ACTIVATION)->refusals, 1);
	assert_int_equal(by_usage(GPOOL_USAGE_GRADIENT)->refusals, 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	allocate_as(pool, GPOOL_USAGE_KV_CACHE, 1, 0, &block);
	assert_int_equal(by_usage(GPOOL_USAGE_GRADIENT)->evicted_pages, PAGES);
	assert_int_equal(by_usage(GPOOL_USAGE_KV_CACHE)->evicted_pages, 0);

	/* test_client_lora.c and test_client_kv_prefix.c count real hits. */
	pool->session.stats->threads[0].adapter_hits = 30;
	pool->session.stats->threads[1].adapter_misses = 4;
	pool->session.stats->threads[0].prefix_hits = 7;
	assert_int_equal(by_usage(GPOOL_USAGE_LORA_WEIGHT)->hits, 30);
	assert_int_equal(by_usage(GPOOL_USAGE_LORA_WEIGHT)->misses, 4);
	assert_int_equal(by_usage(GPOOL_USAGE_KV_CACHE)->hits, 7);
	assert_int_equal(by_usage(GPOOL_USAGE_TEMP_BUFFER)->hits, 0);

	/* The next agent counts from its start, and counts a session after its end. */
	agent_dies();
	assert_int_equal(by_usage(GPOOL_USAGE_LORA_WEIGHT)->hits, 0);
	assert_int_equal(measured(GPOOL_USAGE_LORA_WEIGHT), 0);
	pool->session.stats->threads[0].adapter_hits += 5;
	assert_int_equal(by_usage(GPOOL_USAGE_LORA_WEIGHT)->hits, 5);
	gpool_close(pool);
	assert_int_equal(by_usage(GPOOL_USAGE_LORA_WEIGHT)->hits, 5);

	/* A worker that reduces its counters does not make the sums huge. */
	pool = open_worker();
	pool->session.stats->threads[0].adapter_hits = UINT64_MAX;
	pool->session.stats->threads[0].prefix_hits = 9;
	agent_dies();
	pool->session.stats->threads[0].adapter_hits = 0;
	pool->session.stats->threads[0].prefix_hits = 0;
	assert_int_equal(by_usage(GPOOL_USAGE_LORA_WEIGHT)->hits, 0);
	assert_int_equal(by_usage(GPOOL_USAGE_KV_CACHE)->hits, 0);
	gpool_close(pool);
	assert_int_equal(ASK_FROM(admin, tenant_totals_request, &unknown, tenant_totals_reply, &reply), -ENOENT);
	assert_string_equal(error_text, "there is no tenant 'x'");
	unknown = (struct msg_tenant_totals_request){.tenant = "default", .usage = GPOOL_USAGE_COUNT};
	assert_int_equal(ASK_FROM(admin, tenant_totals_request, &unknown, tenant_totals_reply, &reply), -EINVAL);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_ended_sessions_count_on, stop),
		cmocka_unit_test_teardown(test_false_counts_are_ignored, stop),
		cmocka_unit_test_teardown(test_usages, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
