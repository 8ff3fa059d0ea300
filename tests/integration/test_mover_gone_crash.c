/*
 * test_mover_gone_crash.c - the agent dies after each of its stores while it takes back jobs that no mover will
 * execute.
 *
 * Goal: the next agent recovers each intermediate state, after another wait for a mover. A block that was to be saved
 * is in the pool, and a block that was to be restored is still saved. The pages of a dead worker are free. No page is
 * lost or has two owners.
 *
 * Method: as in test_crash_points.c. The mover is stopped while the jobs are queued, and killed afterwards. Its
 * successors hang before they serve (tests/modules/unwilling.c).
 */
#include "tests/integration/crash_points.h"
#include "tests/integration/mover_will.h"

#include "client/core/spill.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

enum { BLOCKS = 2, BLOCK_PAGES = 2, PAGE_BYTES = 512 << 10, WORDS = PAGE_BYTES / 8, STEP = 509 };

static struct gpool *pool;
static struct gpool_block blocks[BLOCKS];

/* ---- the mover ---- */

/* End the mover permanently, and arm the death of the agent. */
static void mover_ends(pid_t mover, int64_t at)
{
	will('h');
	atomic_store(countdown, at);
	assert_true(mover > 0);
	kill(mover, SIGKILL);
}

/* ---- the worker ---- */

static uint64_t *words_of(const struct gpool_block *block)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (uint64_t *)(uintptr_t)address;
}

static void blocks_make(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	pool = open_worker();
	options.flags = GPOOL_ALLOC_SPILL;
	for (uint64_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(gpool_alloc(pool, BLOCK_PAGES, &options, &blocks[i]), 0);
		for (uint64_t at = 0; at < BLOCK_PAGES * WORDS; at += STEP)
			words_of(&blocks[i])[at] = i << 32 | at;
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
}

static void blocks_spill(void)
{
	AWAIT((harness_evict(&harness, gpool_session(pool), PAGES),
		kept_bytes() == BLOCKS * BLOCK_PAGES * PAGE_BYTES && moving() == 0));
}

static void blocks_are_whole(void)
{
	for (uint64_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(gpool_pin(pool, &blocks[i]), 0);
		for (uint64_t at = 0; at < BLOCK_PAGES * WORDS; at += STEP)
			assert_int_equal(words_of(&blocks[i])[at], i << 32 | at);
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
}

static void books_balance(void)
{
	AWAIT(harness_check(&harness) == 0);
}

/* ---- a death at each point ---- */

static void saving(int64_t at)
{
	pid_t mover;

	blocks_make();
	mover = mover_stop();
	harness_evict(&harness, gpool_session(pool), PAGES);
	assert_int_equal(moving(), BLOCKS * BLOCK_PAGES);
	mover_ends(mover, at);
	AWAIT(moving() == 0 && status()->pools[0].mover_gone_ms);
}

static void saved_not(void)
{
	blocks_are_whole();
	assert_int_equal(moving() + kept_bytes(), 0);
}

static void *pin_one(void *argument)
{
	*(int *)argument = gpool_pin(pool, &blocks[0]);
	return NULL;
}

static void loading(int64_t at)
{
	pthread_t thread;
	pid_t mover;
	int error = 0;

	blocks_make();
	blocks_spill();
	mover = mover_stop();
	assert_int_equal(pthread_create(&thread, NULL, pin_one, &error), 0);
	AWAIT(moving() == BLOCK_PAGES);
	mover_ends(mover, at);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(error, -EIO);
}

static void loaded_not(void)
{
	assert_int_equal(moving(), 0);
	assert_int_equal(kept_bytes(), BLOCKS * BLOCK_PAGES * PAGE_BYTES);
	mover_works();
	blocks_are_whole();
}

static void child_run(int says)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	blocks_make();
	while (spill_now(pool, &blocks[0]))
		;
	if (write(says, "", 1) == 1 && read(says, &(char){0}, 1) == 1)
		gpool_pin(pool, &blocks[0]);
	_exit(0);
}

static void dying(int64_t at)
{
	int ends[2];
	pid_t child, mover;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		child_run(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	mover = mover_stop();
	assert_int_equal(write(ends[0], "", 1), 1);
	AWAIT(moving() == BLOCK_PAGES);
	kill(child, SIGKILL);
	status_of(child);
	AWAIT(status()->pools[0].retired_pages == BLOCK_PAGES);
	mover_ends(mover, at);
	AWAIT(harness_free_pages(&harness) == PAGES && kept_bytes() == 0);
	close(ends[0]);
	close(ends[1]);
}

static void is_all_free(void)
{
	assert_int_equal(status()->pools[0].retired_pages, 0);
}

static void play(void (*act)(int64_t at), void (*is_right)(void))
{
	const char *stride_text = getenv("GPOOL_CRASH_STRIDE");
	int stride = stride_text ? atoi(stride_text) : 1;
	int64_t left = 0, at;
	uint32_t deaths = 0;

	for (at = 1; left == 0; at += stride > 0 ? stride : 1) {
		alarm(STUCK_SECONDS);
		crash_another(deaths);
		mover_works();
		act(at);
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		is_right();
		books_balance();
		if (pool)
			gpool_close(pool);
		pool = NULL;
		AWAIT(harness_free_pages(&harness) == PAGES && kept_bytes() == 0);
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

static void test_blocks_to_be_saved(void **state)
{
	(void)state;
	play(saving, saved_not);
}

static void test_blocks_to_be_restored(void **state)
{
	(void)state;
	play(loading, loaded_not);
}

static void test_blocks_of_a_dead_worker(void **state)
{
	(void)state;
	play(dying, is_all_free);
}

/* ---- fixture ---- */

static int begin(void **state)
{
	if (will_begin(state))
		return -1;
	crash_setting = "mover.patience=10ms";
	return crash_start(state);
}

static int end(void **state)
{
	crash_stop(NULL);
	will_end(state);
	return crash_end(state);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_to_be_saved),
		cmocka_unit_test(test_blocks_to_be_restored),
		cmocka_unit_test(test_blocks_of_a_dead_worker),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, begin, end);
}
