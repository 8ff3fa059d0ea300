/*
 * test_eviction_adaptive.c - `eviction.policy = "adaptive"` with a real agent.
 *
 * Goal: in a loop larger than the pool, some blocks and ephemeral objects are found again, where `lru_size_aware` finds
 * none. An object is never evicted before one that follows it, whatever the policy, the order of release and the deaths
 * of the agent. A session can protect only objects that it has open. A reload changes the policy without moving
 * content.
 *
 * Method: a pool of 64 pages from which only requests evict. The test sets the time stamps of the use of blocks,
 * because the agent's clock is coarse.
 *
 * Requirements: U7.
 */
#include "client/gpool.h"
#include "client/object/object.h"
#include "client/core/pool.h"
#include "proto/codec.h"
#include "client/core/request.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, STUCK_SECONDS = 1000, ANSWER_MS = AWAIT_MS };

#define CONFIG(policy) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"eviction = { policy = \"" policy "\"; start = 100; stop = 99; };\n" \
	"lease = { initial_pages = 0; batch_pages = 1; batch_most = 1; };\n"
static const char lru[] = CONFIG("lru_size_aware"), adaptive[] = CONFIG("adaptive");

static struct harness harness;
static struct gpool *pool;
static char config_path[TEMPORARY_PATH_BYTES];

static void start(const char *config)
{
	const char *const arguments[] = {"--config", config_path, NULL};
	struct gpool_options options;

	alarm(STUCK_SECONDS);
	harness_config_write(config_path, config);
	harness_start(&harness, arguments);
	options = harness_options(&harness);
	options.magazine = 1;
	assert_int_equal(gpool_open(&options, &pool), 0);
}

static int stop(void **state)
{
	uint32_t findings = pool ? harness_check(&harness) : 0;

	(void)state;
	gpool_close(pool);
	pool = NULL;
	alarm(0);
	return harness_stop(&harness) || findings ? -1 : 0;
}

/* Reload as an operator does. The change is in effect when the call returns. */
static void reload(const char *config)
{
	const struct msg_reload_request request = {0};
	struct gpool_options options = harness_options(&harness);
	uint8_t message[MSG_LARGEST_reload_request], answer[MSG_LARGEST_done_reply];
	struct gpool *admin;
	int length = msg_encode_reload_request(&request, 0, NULL, message, sizeof(message));

	harness_config_write(config_path, config);
	options.flags = GPOOL_OPEN_ADMIN;
	assert_int_equal(gpool_open(&options, &admin), 0);
	assert_true(pool_request(admin, message, (size_t)length, answer, sizeof(answer), ANSWER_MS, NULL) > 0);
	gpool_close(admin);
}

/* ---- blocks ---- */

enum { LOOP = PAGES * 3 / 2, LOOPS = 200 };

static struct gpool_block blocks[LOOP];

/* Use a block of one page with this name at that time. Return true if it was still resident. */
static bool use(uint32_t name, uint32_t when)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	bool hit = blocks[name].tag && gpool_pin(pool, &blocks[name]) == 0;

	options.owner_id = 1000 + name;
	options.usage = GPOOL_USAGE_KV_CACHE;
	if (!hit)
		assert_int_equal(gpool_alloc(pool, 1, &options, &blocks[name]), 0);
	atomic_store(&pool->session.touch[blocks[name].page], when);
	assert_int_equal(gpool_unpin(pool, &blocks[name]), 0);
	return hit;
}

/* The time of the last use. Each use is 1 ms later than the one before, in the past, however long the calls take. */
static uint32_t last_use;

static void loop_begin(uint32_t loops)
{
	memset(blocks, 0, sizeof(blocks));
	last_use = atomic_load(&pool->header->clock_ms) - loops * LOOP;
}

static uint32_t loop_hits(uint32_t loops)
{
	uint32_t hits = 0;

	for (uint32_t i = 0; i < loops * LOOP; i++)
		hits += use(i % LOOP, ++last_use);
	return hits;
}

static void test_blocks_of_a_loop(void **state)
{
	uint32_t hits;

	(void)state;
	start(adaptive);
	loop_begin(LOOPS);
	hits = loop_hits(LOOPS);
	print_message("%u of %u\n", hits, LOOPS * LOOP);
	assert_true(hits > LOOPS * LOOP / 4);
}

static void test_reload_changes_the_policy(void **state)
{
	uint32_t hits;

	(void)state;
	start(lru);
	loop_begin(LOOPS + 12);
	hits = loop_hits(5);
	assert_true(hits < 5 * LOOP / 20);
	reload(adaptive);
	hits = loop_hits(LOOPS);
	print_message("%u of %u\n", hits, LOOPS * LOOP);
	assert_true(hits > LOOPS * LOOP / 4);
	reload(lru);
	loop_hits(2);
	hits = loop_hits(5);
	assert_true(hits < 5 * LOOP / 20);
}

/* ---- objects ---- */

static struct gpool_object *published(const char *name, uint32_t pages, const struct gpool_object *follows)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	assert_int_equal(gpool_object_create(pool, name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, pages, NULL, &index), 0);
	object->follows = follows;
	assert_int_equal(gpool_object_publish(object, &version), 0);
	return object;
}

static bool is_there(const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		if (!strcmp(info.name, name) && info.state == GPOOL_OBJECT_CURRENT)
			return true;
	return false;
}

static uint32_t object_loop_hits(void)
{
	struct gpool_object *object;
	uint32_t hits = 0;
	char name[16];

	for (uint32_t i = 0; i < 40 * 12; i++) {
		snprintf(name, sizeof(name), "loop-%u", i % 12);
		if (gpool_object_open(pool, name, NULL, &object) == 0)
			hits++;
		else
			object = published(name, PAGES / 8, NULL);
		assert_int_equal(gpool_object_close(object), 0);
	}
	return hits;
}

/* Use twelve objects in turn, of which seven or eight fit. */
static void test_objects_of_a_loop(void **state)
{
	uint32_t hits;

	(void)state;
	start(lru);
	assert_int_equal(object_loop_hits(), 0);
	reload(adaptive);
	hits = object_loop_hits();
	print_message("%u of %u\n", hits, 40 * 12);
	assert_true(hits > 40 * 12 / 4);
}

/* Allocate that number of pages. Return as bits which objects remain of the chain a-b-c, and of d, which follows a. */
static uint32_t left_after(uint32_t pages)
{
	struct gpool_block block;
	uint32_t left;

	assert_int_equal(gpool_alloc(pool, pages, NULL, &block), 0);
	left = (uint32_t)is_there("a") | (uint32_t)is_there("b") << 1 | (uint32_t)is_there("c") << 2 |
		(uint32_t)is_there("d") << 3;
	assert_int_equal(gpool_free(pool, &block), 0);
	return left;
}

/* Publish objects of eight pages each. They are released in the worst order: a, which all others follow, first. */
static void chain(void)
{
	struct gpool_object *a = published("a", 8, NULL), *b = published("b", 8, a), *c = published("c", 8, b),
			    *d = published("d", 8, a);

	assert_int_equal(gpool_object_close(a), 0);
	assert_int_equal(gpool_object_close(b), 0);
	assert_int_equal(gpool_object_close(d), 0);
	assert_int_equal(gpool_object_close(c), 0);
}

static void agent_killed(void)
{
	uint64_t before = atomic_load(&pool->header->incarnation);
	FILE *list;
	char line[256];
	long pid = 0;

	snprintf(line, sizeof(line), "/proc/%d/task/%d/children", (int)harness.pid, (int)harness.pid);
	list = fopen(line, "re");
	assert_non_null(list);
	while (fscanf(list, "%ld", &pid) == 1) {
		FILE *comm;

		snprintf(line, sizeof(line), "/proc/%ld/comm", pid);
		comm = fopen(line, "re");
		if (comm && fgets(line, sizeof(line), comm) && !strcmp(line, "gpoold-agent\n")) {
			fclose(comm);
			break;
		}
		if (comm)
			fclose(comm);
		pid = 0;
	}
	fclose(list);
	assert_true(pid > 0);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	for (int tries = 0; atomic_load(&pool->header->incarnation) == before; tries++) {
		assert_true(tries < AWAIT_TRIES);
		poll(NULL, 0, AWAIT_STEP_MS);
	}
}

static void order_holds(const char *config, bool kill_first)
{
	static const char *const names[] = {"a", "b", "c", "d"};
	uint32_t left, lefts[4];

	start(config);
	chain();
	if (kill_first)
		agent_killed();
	for (uint32_t i = 0; i < 4; i++) {
		left = lefts[i] = left_after(PAGES - 31 + 8 * i);
		/* One object is evicted at a time: b not before c, and a last. */
		assert_int_equal(__builtin_popcount(left), 3 - (int)i);
		assert_true(!(left & 4) || left & 2);
		assert_true(!(left & 14) || left & 1);
	}
	for (uint32_t i = 0; i < 4; i++)
		assert_false(is_there(names[i]));
	stop(NULL);
}

static void test_followers_are_evicted_first(void **state)
{
	(void)state;
	order_holds(lru, false);
	order_holds(lru, true);
	order_holds(adaptive, false);
	order_holds(adaptive, true);
}

/*
 * A run of adjacent pages includes pages of a. The objects that follow a are evicted with it, wherever their pages are.
 * An open object prevents that.
 */
static void test_a_run_of_pages_evicts_followers(void **state)
{
	struct gpool_alloc_options row = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_object *a, *walls[2], *open;
	struct gpool_block block;

	(void)state;
	start(adaptive);
	row.flags = GPOOL_ALLOC_CONTIGUOUS;
	a = published("a", 24, NULL);
	walls[0] = published("wall", 8, NULL);
	assert_int_equal(gpool_object_close(published("b", 8, a)), 0);
	walls[1] = published("other-wall", 24, NULL);
	assert_int_equal(gpool_object_open(pool, "b", NULL, &open), 0);
	assert_int_equal(gpool_object_close(a), 0);
	assert_int_equal(gpool_alloc(pool, 20, &row, &block), -ENOSPC);
	assert_true(is_there("a") && is_there("b"));
	assert_int_equal(gpool_object_close(open), 0);
	assert_int_equal(gpool_alloc(pool, 20, &row, &block), 0);
	assert_false(is_there("a") || is_there("b"));
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_object_close(walls[0]), 0);
	assert_int_equal(gpool_object_close(walls[1]), 0);
}

/*
 * The last object of the chain is open, so no object of it is evicted, even after an object in its middle is deleted. A
 * request that needs more than the free pages, and could be satisfied only by the chain, is refused and evicts nothing.
 */
static void test_predecessors_of_open_objects_are_kept(void **state)
{
	struct gpool_object *open;
	struct gpool_block block;

	(void)state;
	start(lru);
	chain();
	assert_int_equal(gpool_object_close(published("other", 8, NULL)), 0);
	assert_int_equal(gpool_object_open(pool, "c", NULL, &open), 0);
	/* 24 pages are free; `other` and d would provide 16 more. */
	assert_int_equal(gpool_alloc(pool, PAGES - 23, NULL, &block), -ENOSPC);
	assert_true(is_there("other") && is_there("d"));
	assert_int_equal(gpool_object_delete(pool, "b", 0), 0);
	assert_int_equal(gpool_alloc(pool, PAGES - 15, NULL, &block), -ENOSPC);
	assert_true(is_there("other") && is_there("d"));
	assert_int_equal(gpool_object_close(open), 0);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_false(is_there("a"));
}

/* A statement that an object follows one that the session does not have open, or that does not exist, has no effect. */
static void test_a_session_keeps_only_open_objects(void **state)
{
	struct gpool_object *a, *liar, lie = {.number = 1};

	(void)state;
	start(lru);
	a = published("a", 8, NULL);
	lie.number = a->number;
	lie.version = a->version;
	assert_int_equal(gpool_object_close(a), 0);
	liar = published("liar", 8, &lie);
	lie.number = UINT32_MAX;
	assert_int_equal(gpool_object_close(published("other", 8, &lie)), 0);
	assert_int_equal(left_after(PAGES - 16), 0);
	assert_true(is_there("liar"));
	assert_int_equal(gpool_object_close(liar), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_blocks_of_a_loop, stop),
		cmocka_unit_test_teardown(test_reload_changes_the_policy, stop),
		cmocka_unit_test_teardown(test_objects_of_a_loop, stop),
		cmocka_unit_test(test_followers_are_evicted_first),
		cmocka_unit_test_teardown(test_a_run_of_pages_evicts_followers, stop),
		cmocka_unit_test_teardown(test_predecessors_of_open_objects_are_kept, stop),
		cmocka_unit_test_teardown(test_a_session_keeps_only_open_objects, stop),
	};
	int failed, fd = mkstemp(temporary_path(config_path, "gpool-adaptive-XXXXXX"));

	if (fd < 0)
		return 1;
	close(fd);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(config_path);
	return failed;
}
