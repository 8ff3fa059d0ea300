/*
 * test_shortage.c - a refused allocation names the sessions that hold the pages, and how the pages are used.
 *
 * Goal: gpool_oom_info() and the agent's replies to tools count needed, offered and idle pages of each session and
 * tenant, including stopped processes.
 *
 * Method: a real gpoold, and engines in separate processes that allocate pages, report that, and are stopped. Counts
 * are exact: idle pages are not reclaimed during the test, and an allocation of more than one page leases no additional
 * pages.
 *
 * Requirements: U4.
 */
#include "tests/integration/life.h"

#include <errno.h>

enum { ENGINES = 5 };

static const char *const exact[] = {"--pool", POOL, QUIET, "--set", "lease.idle=1h", NULL};

struct engine {
	const char *name;
	uint32_t content;
	uint32_t pinned, unpinned, freed; /* numbers of pages */
	pid_t pid;
	uint32_t session;
};

static struct gpool *open_named(const char *name)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = NULL;

	options.name = name;
	assert_int_equal(gpool_open(&options, &pool), 0);
	return pool;
}

static struct gpool_block engine_alloc(struct gpool *pool, const struct engine *engine, uint32_t pages)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {0};

	options.usage = engine->content;
	if (pages && gpool_alloc(pool, pages, &options, &block))
		_exit(1);
	return block;
}

/* Run in a separate process: allocate pages, report the session, and wait for the end. */
static void engine_run(const struct engine *engine, int said)
{
	struct gpool *pool = open_named(engine->name);
	struct gpool_block unpinned, freed;
	uint32_t session = gpool_session(pool);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	engine_alloc(pool, engine, engine->pinned);
	unpinned = engine_alloc(pool, engine, engine->unpinned);
	freed = engine_alloc(pool, engine, engine->freed);
	if (engine->unpinned && gpool_unpin(pool, &unpinned))
		_exit(1);
	if (engine->freed && gpool_free(pool, &freed))
		_exit(1);
	if (write(said, &session, sizeof(session)) != sizeof(session))
		_exit(1);
	for (;;)
		pause();
}

static void engine_start(struct engine *engine)
{
	int said[2];

	assert_int_equal(pipe(said), 0);
	fflush(stdout);
	engine->pid = fork();
	assert_true(engine->pid >= 0);
	if (!engine->pid)
		engine_run(engine, said[1]);
	close(said[1]);
	assert_int_equal(read(said[0], &engine->session, sizeof(engine->session)), sizeof(engine->session));
	close(said[0]);
	assert_int_equal(kill(engine->pid, SIGSTOP), 0);
}

static void engine_end(const struct engine *engine)
{
	assert_int_equal(kill(engine->pid, SIGKILL), 0);
	status_of(engine->pid);
}

static int refused(struct gpool *pool, uint32_t pages)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	return gpool_alloc(pool, pages, &options, &block);
}

static void expect_holder(const struct gpool_holder *holder, const struct engine *engine)
{
	assert_int_equal(holder->session, engine->session);
	assert_string_equal(holder->name, engine->name);
	assert_int_equal(holder->needed_pages, engine->pinned);
	assert_int_equal(holder->offered_pages, engine->unpinned);
	assert_int_equal(holder->idle_pages, engine->freed);
	assert_int_equal(holder->usage, engine->pinned + engine->unpinned ? engine->content : GPOOL_USAGE_COUNT);
}

static void test_the_largest_holders(void **state)
{
	struct engine engines[ENGINES] = {
		{"first", GPOOL_USAGE_KV_CACHE, 16, 2, 0, 0, 0},
		{"second", GPOOL_USAGE_LORA_WEIGHT, 2, 12, 0, 0, 0},
		{"third", GPOOL_USAGE_TEMP_BUFFER, 0, 0, 8, 0, 0},
		{"fourth", GPOOL_USAGE_GRADIENT, 6, 0, 0, 0, 0},
		{"fifth", GPOOL_USAGE_ACTIVATION, 4, 0, 0, 0, 0},
	};
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	struct gpool *pool;

	(void)state;
	start(exact);
	for (int i = ENGINES - 1; i >= 0; i--)
		engine_start(&engines[i]);
	pool = open_worker();
	assert_int_equal(refused(pool, 40), -ENOSPC);
	assert_int_equal(gpool_oom_info(pool, &shortage), 0);
	assert_int_equal(shortage.needed, 40);
	assert_int_equal(shortage.pinned, 16 + 2 + 6 + 4);
	assert_int_equal(shortage.holder, engines[0].session);
	assert_int_equal(shortage.holder_pages, 16);
	assert_string_equal(shortage.holder_name, "first");
	assert_int_equal(shortage.holder_count, GPOOL_HOLDERS_MAX);
	for (int i = 0; i < GPOOL_HOLDERS_MAX; i++)
		expect_holder(&shortage.holders[i], &engines[i]);
	for (int i = 0; i < ENGINES; i++)
		engine_end(&engines[i]);
	gpool_close(pool);
}

static void test_sizes(void **state)
{
	struct {
		struct gpool_oom_info shortage;
		uint8_t more[16];
	} longer = {.shortage = {.size = sizeof(longer)}, .more = {1}};
	struct gpool_oom_info shortage = {.size = offsetof(struct gpool_oom_info, holder_count), .holder_count = 77};
	struct gpool *pool;

	(void)state;
	start(exact);
	pool = open_worker();
	alloc(pool, 10);
	assert_int_equal(refused(pool, 60), -ENOSPC);
	assert_int_equal(gpool_oom_info(pool, &shortage), 0);
	assert_int_equal(shortage.needed, 60);
	assert_int_equal(shortage.holder_pages, 10);
	assert_int_equal(shortage.holder_count, 77);
	assert_int_equal(gpool_oom_info(pool, &longer.shortage), 0);
	assert_int_equal(longer.shortage.size, sizeof(longer));
	assert_int_equal(longer.shortage.holder_count, 1);
	assert_int_equal(longer.more[0], 0);
	shortage.size = 3;
	assert_int_equal(gpool_oom_info(pool, &shortage), -EINVAL);
	gpool_close(pool);
}

/* If the agent does not reply, the refused request is still known; the holders are not. */
static void test_a_silent_agent(void **state)
{
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	struct gpool *pool;
	pid_t agent;

	(void)state;
	start(exact);
	pool = open_worker();
	alloc(pool, 10);
	assert_int_equal(refused(pool, 60), -ENOSPC);
	agent = process_of("gpoold-agent");
	assert_true(agent > 0);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	assert_int_equal(gpool_oom_info(pool, &shortage), 0);
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(shortage.needed, 60);
	assert_int_equal(shortage.holder_count, 0);
	gpool_close(pool);
}

/* The pages of an object count for its tenant: as offered if the object is not pinned. */
static void test_objects_of_a_tenant(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	struct gpool *pool;
	uint64_t version;
	uint32_t index;

	(void)state;
	start(exact);
	pool = open_worker();
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(pool, "adapter", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 6, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_pin(object), 0);
	alloc(pool, 5);
	AWAIT(tenant("default")->needed_pages == 6 + 5);
	assert_int_equal(tenant("default")->offered_pages, 0);
	assert_int_equal(gpool_object_unpin(object), 0);
	AWAIT(tenant("default")->offered_pages == 6);
	assert_int_equal(tenant("default")->needed_pages, 5);
	assert_int_equal(tenant("default")->leased_pages, 6 + 5 + tenant("default")->idle_pages);
	assert_int_equal(gpool_object_close(object), 0);
	gpool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_the_largest_holders, stop),
		cmocka_unit_test_teardown(test_sizes, stop),
		cmocka_unit_test_teardown(test_a_silent_agent, stop),
		cmocka_unit_test_teardown(test_objects_of_a_tenant, stop),
	};

	return cmocka_run_group_tests_name("shortage", tests, NULL, NULL);
}
