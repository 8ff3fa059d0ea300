/*
 * test_client_threads.c - many threads of one worker use the same blocks while an admin session lets the agent evict
 * them.
 *
 * Half of the freed blocks remain listed for other threads, which free them too: exactly one of the two frees must
 * succeed. Each allocation stamps the pages of its block, and a pin checks the stamp. A page in two blocks, an eviction
 * of a pinned block, or a free that succeeds twice causes a wrong stamp or a wrong result. At the end the agent checks
 * the invariants of the pool, and one block of all pages is allocated.
 */
#include "client/core/thread_cache.h"
#include "tests/integration/calm_pool.h"
#include "tests/lib/scale.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 4, PLACES = 96, LONGEST = 12, SOON_MS = AWAIT_MS };
enum { ROUNDS = 60000, EVICT_ROUNDS = 200 }; /* a run ends when both are reached */

static uint64_t seed;
static uint32_t scale = 1;

/* A block that all threads use. The handle is changed under the lock and used without it. */
struct place {
	pthread_mutex_t lock;
	bool used;
	struct gpool_block block;
	uint64_t stamp;
};
static struct place places[PLACES];
static _Atomic uint64_t stamps, wrong, allocations, frees, pins, stale;
static _Atomic bool stop;
static _Atomic uint32_t evict_rounds, evict_rounds_least;
static uint32_t manual;
static pthread_mutex_t signal_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 20;
}

static void complain(const char *what, int error, const struct gpool_block *block)
{
	if (atomic_fetch_add(&wrong, 1) < 20)
		print_error("%s: %d at page %u, %u pages\n", what, error, block->page, block->page_count);
}

/* Return the first or last word of a page. It is atomic, so that ThreadSanitizer reports only races of the library. */
static _Atomic uint64_t *word_of(uint64_t address, uint32_t page, bool last)
{
	return (_Atomic uint64_t *)(uintptr_t)(address + (uint64_t)page * PAGE_BYTES + (last ? PAGE_BYTES - 8 : 0));
}

static void stamp_pages(const struct gpool_block *block, uint64_t stamp)
{
	uint64_t address = 0;
	int error = gpool_address(pool, block, &address);

	if (error) {
		complain("address of a new block", error, block);
		return;
	}
	for (uint32_t page = 0; page < block->page_count; page++) {
		atomic_store_explicit(word_of(address, page, false), stamp + page, memory_order_relaxed);
		atomic_store_explicit(word_of(address, page, true), stamp + page, memory_order_relaxed);
	}
}

static void check_pages(const struct gpool_block *block, uint64_t stamp)
{
	uint64_t address = 0;
	int error = gpool_address(pool, block, &address);

	if (error) {
		complain("address of a pinned block", error, block);
		return;
	}
	for (uint32_t page = 0; page < block->page_count; page++)
		if (atomic_load_explicit(word_of(address, page, false), memory_order_relaxed) != stamp + page ||
			atomic_load_explicit(word_of(address, page, true), memory_order_relaxed) != stamp + page)
			complain("content under a pin", (int)page, block);
}

/*
 * Record a fence of the only host-signaled timeline. It is signaled soon after its use, because the subject is the time
 * in between.
 */
static struct gpool_fence fence_record(void)
{
	struct gpool_fence fence = {0};

	gpool_fence_record(pool, manual, &fence);
	return fence;
}

static void fence_signal(struct gpool_fence fence)
{
	pthread_mutex_lock(&signal_lock);
	gpool_fence_signal(pool, fence);
	pthread_mutex_unlock(&signal_lock);
}

/* The caller holds the place's lock. */
static void place_fill(struct place *place, uint64_t *random)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t page_count = random_next(random) % 4 ? 1 : 1 + (uint32_t)random_next(random) % LONGEST;
	struct gpool_fence fence;
	int error;

	options.usage = (uint32_t)random_next(random) % GPOOL_USAGE_COUNT;
	options.flags = random_next(random) % 8 ? 0 : GPOOL_ALLOC_FIRST_FIT;
	options.stream = random_next(random) % 4 ? 0 : manual;
	options.timeout_ms = SOON_MS;
	error = gpool_alloc(pool, page_count, &options, &place->block);
	if (error) {
		complain("alloc", error, &(struct gpool_block){.page_count = page_count});
		return;
	}
	atomic_fetch_add(&allocations, 1);
	place->stamp = atomic_fetch_add(&stamps, 1) << 16;
	place->used = true;
	stamp_pages(&place->block, place->stamp);
	if (random_next(random) % 8) {
		error = gpool_unpin(pool, &place->block);
	} else {
		fence = fence_record();
		error = gpool_unpin_after(pool, &place->block, fence);
		fence_signal(fence);
	}
	if (error)
		complain("unpin of a new block", error, &place->block);
}

static void block_end(const struct gpool_block *block, uint64_t *random)
{
	struct gpool_fence fence;
	int error;

	if (random_next(random) % 4) {
		error = gpool_discard(pool, block);
	} else {
		error = gpool_pin(pool, block);
		if (!error) {
			fence = fence_record();
			error = gpool_free_after(pool, block, fence);
			fence_signal(fence);
			/* Another thread freed the block first. This thread still has its pin. */
			if (error && gpool_unpin(pool, block))
				complain("unpin after a free that lost", error, block);
		}
	}
	if (!error)
		atomic_fetch_add(&frees, 1);
	else if (error != -ESTALE && error != -ETIMEDOUT)
		complain("drop", error, block);
}

/* Called without the place's lock: other threads may free the block, and the agent may evict it. */
static bool block_use(const struct gpool_block *block, uint64_t stamp)
{
	int error = gpool_pin(pool, block);

	if (error == -ESTALE)
		atomic_fetch_add(&stale, 1);
	else if (error && error != -ETIMEDOUT)
		complain("pin", error, block);
	if (error)
		return error != -ESTALE;
	atomic_fetch_add(&pins, 1);
	check_pages(block, stamp);
	error = gpool_unpin(pool, block);
	if (error)
		complain("unpin", error, block);
	return true;
}

static void *worker(void *argument)
{
	uint64_t random = seed + (uintptr_t)argument * 7919;

	for (uint32_t round = 0; round < ROUNDS * scale || evict_rounds < evict_rounds_least; round++) {
		struct place *place = &places[random_next(&random) % PLACES];
		uint32_t what = (uint32_t)random_next(&random) % 16;
		struct gpool_block block;
		uint64_t stamp;
		bool used;

		pthread_mutex_lock(&place->lock);
		used = place->used;
		block = place->block;
		stamp = place->stamp;
		if (!used)
			place_fill(place, &random);
		else if (what == 12 || what == 13)
			place->used = false;
		pthread_mutex_unlock(&place->lock);
		if (!used)
			continue;
		if (what >= 12) {
			block_end(&block, &random);
		} else if (!block_use(&block, stamp)) {
			pthread_mutex_lock(&place->lock);
			if (place->block.tag == block.tag)
				place->used = false;
			pthread_mutex_unlock(&place->lock);
		}
	}
	return NULL;
}

static void *evictor(void *unused)
{
	while (!atomic_load(&stop)) {
		harness_evict(&harness, gpool_session(pool), 7);
		harness_evict(&harness, gpool_session(pool), 1000000);
		atomic_fetch_add(&evict_rounds, 1);
	}
	return unused;
}

static void hammer(bool with_evictions)
{
	pthread_t threads[THREADS], evicting;
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	struct gpool_block all;

	wrong = allocations = frees = pins = stale = 0;
	atomic_store(&stop, false);
	atomic_store(&evict_rounds, 0);
	atomic_store(&evict_rounds_least, with_evictions ? EVICT_ROUNDS * scale : 0);
	for (int i = 0; i < PLACES; i++)
		places[i] = (struct place){.lock = PTHREAD_MUTEX_INITIALIZER};
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, worker, (void *)(i + 1)), 0);
	if (with_evictions)
		assert_int_equal(pthread_create(&evicting, NULL, evictor, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&stop, true);
	if (with_evictions)
		pthread_join(evicting, NULL);
	gpool_stream_close(pool, manual);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	print_message(
		"%llu allocations, %llu frees, %llu pins, %llu stale, %llu contended, %llu scattered, %llu refills\n",
		(unsigned long long)allocations, (unsigned long long)frees, (unsigned long long)pins,
		(unsigned long long)stale, (unsigned long long)statistics.contended_pins,
		(unsigned long long)statistics.scattered, (unsigned long long)statistics.refills);
	assert_int_equal(wrong, 0);
	assert_true(with_evictions ? stale > 0 : true);
	/* Each successful free must be counted once, and no operation may still be deferred. */
	for (int i = 0; i < PLACES; i++)
		if (places[i].used && gpool_discard(pool, &places[i].block) == 0)
			atomic_fetch_add(&frees, 1);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.allocations, allocations);
	assert_int_equal(statistics.frees, frees);
	assert_int_equal(statistics.deferred_blocks, 0);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &all), 0);
	assert_int_equal(gpool_free(pool, &all), 0);
}

static void test_threads_share_blocks(void **state)
{
	(void)state;
	hammer(false);
}

static void test_threads_share_blocks_under_eviction(void **state)
{
	(void)state;
	hammer(true);
}

/* ---- threads that start and end ---- */

static void *alloc_free_and_end(void *unused)
{
	struct gpool_block blocks[20], run;
	int wrong_here = 0;

	for (int i = 0; i < 20; i++)
		wrong_here |= gpool_alloc(pool, 1, NULL, &blocks[i]);
	wrong_here |= gpool_alloc(pool, 6, NULL, &run);
	for (int i = 0; i < 20; i++)
		wrong_here |= gpool_free(pool, &blocks[i]);
	wrong_here |= gpool_free(pool, &run);
	(void)unused;
	return wrong_here ? &pool : NULL;
}

/*
 * When a thread has ended, the pages in its magazine are idle, and the next thread continues to use its slot of
 * counters.
 */
static void test_caches_end_with_their_thread(void **state)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	pthread_t thread;
	void *result;

	(void)state;
	for (int i = 0; i < 10; i++) {
		assert_int_equal(pthread_create(&thread, NULL, alloc_free_and_end, NULL), 0);
		pthread_join(thread, &result);
		assert_null(result);
	}
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.idle_pages, statistics.leased_pages);
	assert_int_equal(statistics.allocations, 210);
	assert_int_equal(statistics.frees, 210);
}

static pthread_barrier_t barrier;

static void *count_exactly(void *unused)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	int error;

	pthread_barrier_wait(&barrier); /* all threads run at once, so that they exceed the number of slots */
	/* The caches of the other threads may hold all pages for a moment. */
	options.timeout_ms = 60 * 1000;
	error = gpool_alloc(pool, 1, &options, &block);
	for (int i = 0; i < 200 && !error; i++) {
		error = gpool_pin(pool, &block);
		if (!error)
			error = gpool_unpin(pool, &block);
	}
	if (!error)
		error = gpool_free(pool, &block);
	pthread_barrier_wait(&barrier);
	(void)unused;
	return (void *)(intptr_t)error;
}

static void test_more_threads_than_counters(void **state)
{
	enum { MANY = SESSION_STAT_SLOTS + 20 };
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	pthread_t threads[MANY];
	void *result;

	(void)state;
	assert_int_equal(pthread_barrier_init(&barrier, NULL, MANY), 0);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_exactly, NULL), 0);
	for (int i = 0; i < MANY; i++) {
		pthread_join(threads[i], &result);
		assert_int_equal((intptr_t)result, 0);
	}
	pthread_barrier_destroy(&barrier);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.allocations, MANY);
	assert_int_equal(statistics.frees, MANY);
	assert_int_equal(statistics.pins, 200 * MANY);
	assert_int_equal(statistics.unpins, 200 * MANY);
}

static void *close_under_a_thread(void *argument)
{
	struct gpool **other = argument;
	struct gpool_block block;
	int wrong_here = gpool_alloc(*other, 1, NULL, &block) | gpool_free(*other, &block);

	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier); /* the pool is closed, and another one is opened at its address */
	wrong_here |= gpool_alloc(*other, 1, NULL, &block) | gpool_free(*other, &block);
	return wrong_here ? &pool : NULL;
}

/* A thread with pages in its magazine outlives the pool, and uses the next one. */
static void test_thread_outlives_a_pool(void **state)
{
	struct gpool *other = harness_open(&harness);
	pthread_t thread;
	void *result;

	(void)state;
	assert_int_equal(pthread_barrier_init(&barrier, NULL, 2), 0);
	assert_int_equal(pthread_create(&thread, NULL, close_under_a_thread, &other), 0);
	pthread_barrier_wait(&barrier);
	gpool_close(other);
	other = harness_open(&harness);
	pthread_barrier_wait(&barrier);
	pthread_join(thread, &result);
	assert_null(result);
	pthread_barrier_destroy(&barrier);
	gpool_close(other);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, attach, detach)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_threads_share_blocks),
		TEST(test_threads_share_blocks_under_eviction),
		TEST(test_caches_end_with_their_thread),
		TEST(test_more_threads_than_counters),
		TEST(test_thread_outlives_a_pool),
	};
	const char *given_seed = getenv("GPOOL_TEST_SEED");
	int failed;

	seed = given_seed ? strtoull(given_seed, NULL, 0) : (uint64_t)time(NULL);
	if (test_scale() > 1)
		scale = (uint32_t)test_scale();
	print_message("seed %llu\n", (unsigned long long)seed);
	/* The limit on requests is high enough for the evicting thread, which sends requests as fast as it can. */
	harness_start(&harness,
		(const char *const[]){"--pool", HARNESS_POOL, "--set", "limits.requests_per_second=10000000", NULL});
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed;
}
