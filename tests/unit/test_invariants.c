/*
 * test_invariants.c - the assertions of debug builds.
 *
 * Goal: in a debug build, GPOOL_INVARIANT() ends a process whose data structure is damaged, with a message. In other
 * builds it evaluates nothing.
 *
 * Method: a forked child damages the structure or takes a step that is not allowed, and the test reads its message and
 * its status. Only a debug build has these cases: `tests/run debug/test_invariants`.
 */
#include "agent/pages/pool.h"
#include "client/core/thread_cache.h"
#include "client/core/window.c"
#include "client/vm/region_set.h"
#include "shm/invariant.h"
#include "shm/timeline.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

static void test_evaluated_in_debug_builds_only(void **state)
{
	int evaluated = 0;

	(void)state;
	GPOOL_INVARIANT(++evaluated, "%d", evaluated);
	assert_int_equal(evaluated, INVARIANTS);
}

/* Each permitted transition of a page word, and some that are not permitted. */
static void test_steps_of_page_words(void **state)
{
	const struct {
		enum page_step step;
		enum page_state from, to;
		uint32_t owner_from, owner_to;
		int more; /* increase of the generation */
		bool allowed;
	} cases[] = {
		{STEP_LEND, PAGE_FREE, PAGE_LEASED, 0, 7, 1, true},
		{STEP_LEND, PAGE_RESERVED, PAGE_LEASED, 0, 7, 1, true},
		{STEP_LEND, PAGE_FREE, PAGE_LEASED, 0, 0, 1, false},    /* to no session */
		{STEP_LEND, PAGE_FREE, PAGE_LEASED, 0, 7, 0, false},    /* the old generation */
		{STEP_LEND, PAGE_LEASED, PAGE_LEASED, 7, 8, 1, false},  /* lent twice */
		{STEP_LEND, PAGE_RETIRED, PAGE_LEASED, 0, 7, 1, false}, /* not in use */
		{STEP_LEND, PAGE_FREE, PAGE_LEASED, 0, 4096, 1, false}, /* an impossible session */
		{STEP_MARK, PAGE_LEASED, PAGE_EVICTING, 7, 7, 0, true},
		{STEP_MARK, PAGE_SHARED, PAGE_EVICTING, 7, 7, 0, false}, /* an object's page */
		{STEP_UNMARK, PAGE_EVICTING, PAGE_LEASED, 7, 7, 0, true},
		{STEP_UNMARK, PAGE_LEASED, PAGE_LEASED, 7, 7, 0, false}, /* it was not marked */
		{STEP_UNMARK, PAGE_EVICTING, PAGE_LEASED, 7, 8, 0, false},
		{STEP_MOVE, PAGE_EVICTING, PAGE_MOVING, 7, 7, 0, true},
		{STEP_MOVE, PAGE_LEASED, PAGE_MOVING, 7, 7, 0, true},
		{STEP_MOVE, PAGE_LEASED, PAGE_MOVING, 7, 7, 1, false}, /* pins would fail instead of waiting */
		{STEP_UNMOVE, PAGE_MOVING, PAGE_LEASED, 7, 7, 0, true},
		{STEP_UNMOVE, PAGE_QUARANTINED, PAGE_LEASED, 7, 7, 0, false},
		{STEP_SHARE, PAGE_LEASED, PAGE_SHARED, 7, 9, 1, true},
		{STEP_SHARE, PAGE_MOVING, PAGE_SHARED, 7, 9, 1, false},
		{STEP_UNSHARE, PAGE_SHARED, PAGE_LEASED, 9, 7, 1, true},
		{STEP_QUARANTINE, PAGE_MOVING, PAGE_QUARANTINED, 7, 7, 1, true},
		{STEP_QUARANTINE, PAGE_QUARANTINED, PAGE_QUARANTINED, 7, 7, 1, true},
		{STEP_QUARANTINE, PAGE_LEASED, PAGE_QUARANTINED, 7, 0, 1, false},
		{STEP_SET_ASIDE, PAGE_MOVING, PAGE_RETIRED, 7, 0, 1, true},
		{STEP_SET_ASIDE, PAGE_FREE, PAGE_RETIRED, 0, 0, 1, false},
		{STEP_PUT_ASIDE, PAGE_FREE, PAGE_QUARANTINED, 0, 0, 1, true},
		{STEP_PUT_ASIDE, PAGE_QUARANTINED, PAGE_RETIRED, 0, 0, 1, true},
		{STEP_PUT_ASIDE, PAGE_QUARANTINED, PAGE_RETIRED, 7, 0, 1, false}, /* a session's page */
		{STEP_PUT_ASIDE, PAGE_RETIRED, PAGE_RETIRED, 0, 0, 1, false},
		{STEP_TAKE_BACK, PAGE_SHARED, PAGE_FREE, 9, 0, 1, true},
		{STEP_TAKE_BACK, PAGE_EVICTING, PAGE_RESERVED, 7, 0, 1, true},
		{STEP_TAKE_BACK, PAGE_RETIRED, PAGE_FREE, 0, 0, 1, true},
		{STEP_TAKE_BACK, PAGE_FREE, PAGE_FREE, 0, 0, 1, false}, /* freed twice */
		{STEP_TAKE_BACK, PAGE_RESERVED, PAGE_FREE, 0, 0, 1, false},
		{STEP_TAKE_BACK, PAGE_LEASED, PAGE_FREE, 7, 7, 1, false}, /* free, and owned */
		{STEP_PASS, PAGE_LEASED, PAGE_LEASED, 7, 8, 1, true},
		{STEP_PASS, PAGE_LEASED, PAGE_LEASED, 7, 8, 0, false},   /* the old generation */
		{STEP_PASS, PAGE_EVICTING, PAGE_LEASED, 7, 8, 1, false}, /* it may be taken */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint64_t from = page_word_make(cases[i].from, cases[i].owner_from, 5);
		uint64_t to = page_word_make(cases[i].to, cases[i].owner_to, (uint64_t)(5 + cases[i].more));

		if (page_step_allowed(cases[i].step, from, to) != cases[i].allowed)
			fail_msg("case %zu: step '%s' is%s allowed", i, page_steps[cases[i].step].name,
				cases[i].allowed ? " not" : "");
	}
	/* The generation wraps. */
	assert_true(page_step_allowed(
		STEP_LEND, page_word_make(PAGE_FREE, 0, PAGE_GENERATION_MASK), page_word_make(PAGE_LEASED, 1, 0)));
}

#ifdef GPOOL_DEBUG

/* In a child: check that `step` ends the child by SIGABRT, with a message that contains `text`. */
static void expect_abort(void (*step)(void), const char *text)
{
	char message[2048] = "";
	size_t length = 0;
	ssize_t got;
	int ends[2], status;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		/* The test runner counts a violation as a failure, and cmocka catches some signals. */
		unsetenv("GPOOL_INVARIANT_LOG");
		signal(SIGABRT, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		step();
		_exit(0);
	}
	assert_true(child > 0);
	close(ends[1]);
	while (length < sizeof(message) - 1 &&
		(got = read(ends[0], message + length, sizeof(message) - 1 - length)) > 0)
		length += (size_t)got;
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(message, text))
		fail_msg("status 0x%x, not SIGABRT with '%s': %s", status, text, message);
}

/* ---- the message ---- */

static void three_is_even(void)
{
	int number = 3;

	GPOOL_INVARIANT(number % 2 == 0, "number %d of '%s'", number, "test");
}

static void test_message_has_place_condition_and_values(void **state)
{
	(void)state;
	expect_abort(three_is_even, "test_invariants.c:");
	expect_abort(three_is_even, "invariant violated: number % 2 == 0: number 3 of 'test'\n");
}

/* ---- thread cache ---- */

static struct gpool worker = {.page_count = 100, .id = 7, .magazine = 4, .run_pages = 10};
static struct thread_cache cache = {.pool = &worker};

static uint64_t leased(uint32_t owner)
{
	return page_word_make(PAGE_LEASED, owner, 5);
}

static void push_fits(void)
{
	for (uint32_t page = 0; page < 4; page++)
		thread_cache_push(&cache, page, 1, leased(7));
	thread_cache_push(&cache, 10, 5, leased(7));
	thread_cache_push(&cache, 95, 5, leased(7));
}

static void push_another_session(void)
{
	thread_cache_push(&cache, 0, 1, leased(8));
}

static void push_free_page(void)
{
	thread_cache_push(&cache, 0, 1, page_word_make(PAGE_FREE, 0, 5));
}

static void push_beyond_the_pool(void)
{
	thread_cache_push(&cache, 98, 3, leased(7));
}

static void push_over_the_magazine(void)
{
	push_fits();
	thread_cache_push(&cache, 20, 1, leased(7));
}

static void push_over_the_runs(void)
{
	push_fits();
	thread_cache_push(&cache, 20, 2, leased(7));
}

static void push_with_wrong_sum(void)
{
	cache.run_pages = 3;
	thread_cache_push(&cache, 20, 2, leased(7));
}

static void pop_damaged_word(void)
{
	struct cached_run run;

	push_fits();
	cache.magazine[3].word = 0;
	magazine_pop(&cache, &run);
}

static void test_thread_cache(void **state)
{
	(void)state;
	expect_abort(push_another_session, "page_word_owner(run->word) == pool->id");
	expect_abort(push_free_page, "page_word_state(run->word) == PAGE_LEASED");
	expect_abort(push_beyond_the_pool, "run of 3 pages at page 98 in a pool of 100");
	expect_abort(push_over_the_magazine, "5 pages in a magazine of 4");
	expect_abort(push_over_the_runs, "12 pages in runs, at most 10");
	expect_abort(push_with_wrong_sum, "5 pages in 1 run, which have 2");
	expect_abort(pop_damaged_word, "run at page 3: word 0x0");
	push_fits();
}

/* ---- window ---- */

enum { HANDLES = 4, PER_HANDLE = 2 };

static struct pool_header header = {.pages_per_handle = PER_HANDLE};

/* Make a window over a device of the back end `host`, with all handles imported. */
static void window_begin(void)
{
	uint64_t handle_bytes;

	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &worker.gpu), 0);
	assert_int_equal(gpu_granularity(worker.gpu, &worker.page_bytes), 0);
	worker.header = &header;
	worker.page_count = HANDLES * PER_HANDLE;
	handle_bytes = worker.page_bytes * PER_HANDLE;
	assert_int_equal(window_open(&worker), 0);
	for (uint32_t handle = 0; handle < HANDLES; handle++) {
		uint64_t made;

		assert_int_equal(gpu_create(worker.gpu, handle_bytes, &made), 0);
		atomic_store(&worker.window->handles[handle], made);
	}
	assert_int_equal(window_map(&worker, 0, 2 * PER_HANDLE), 0);
	assert_int_equal(window_protect(&worker, 0, PER_HANDLE, true), 0);
	assert_int_equal(window_protect(&worker, 0, PER_HANDLE, false), 0);
}

static void map_a_readonly_handle(void)
{
	worker.window->readonly[0] |= UINT64_C(1) << 2;
	window_map(&worker, 4, 2);
}

static void protect_without_a_handle(void)
{
	atomic_store(&worker.window->handles[1], 0);
	window_protect(&worker, 2, PER_HANDLE, true);
}

static void restore_without_a_mapping(void)
{
	worker.window->readonly[0] |= UINT64_C(1) << 2;
	restore(&worker, 2, 3);
}

static void write_without_a_mapping(void)
{
	worker.window->there[0] &= ~UINT64_C(2);
	restore(&worker, 1, 2);
}

static void test_window(void **state)
{
	(void)state;
	window_begin();
	expect_abort(map_a_readonly_handle, "handle 2 is writable and read-only");
	expect_abort(protect_without_a_handle, "handle 1 is mapped and not imported");
	expect_abort(restore_without_a_mapping, "handle 2 is read-only and not mapped");
	expect_abort(write_without_a_mapping, "handle 1 is writable and not mapped");
	window_close(&worker);
	gpu_close(worker.gpu);
}

/* ---- region set ---- */

static _Atomic uint64_t timeline[SESSION_TIMELINES];
static struct session_segment session = {.timeline = timeline};
static struct region_set set;
static struct region_chunk chunk;
static struct vm_region *taken; /* pages [0, 10), allocated */

static void regions_begin(void)
{
	region_set_open(&set, &session, 4096, NULL);
	assert_int_equal(region_chunk_open(&chunk, UINT64_C(1) << 40, 100), 0);
	assert_int_equal(region_spare(&set, 8), 0);
	region_chunk_add(&set, &chunk);
	taken = region_carve(&set, region_best_hole(&set, 10), 10);
	region_put_allocated(&set, taken, VM_NONE, 4096);
}

static void put_with_a_gap(void)
{
	taken->after->first++;
	region_put_free(&set, taken, VM_NONE, 0);
}

static void carve_unlinked(void)
{
	taken->after->before = NULL;
	region_carve(&set, taken->after, 5);
}

static void holes_side_by_side(void)
{
	/* Insert the hole into the sets without region_put(), which would have joined it. */
	region_carve(&set, taken->after, 5)->moving = false;
	region_carve(&set, taken, 10);
}

static void put_ready_too_early(void)
{
	struct vm_region *hole = region_carve(&set, taken->after, 5);

	region_put_free(&set, hole, 1, fence_make(1, 3));
	hole->ready = VM_READY;
	region_put(&set, taken);
}

static void split_all(void)
{
	region_split(&set, taken, 10);
}

static void test_region_set(void **state)
{
	(void)state;
	regions_begin();
	expect_abort(put_with_a_gap, "the next region begins at page 11");
	expect_abort(carve_unlinked, "its neighbor or chunk does not refer to it");
	expect_abort(holes_side_by_side, "the next region is also a hole");
	expect_abort(put_ready_too_early, "ready, but its fence is not signaled");
	expect_abort(split_all, "10 pages of a region that has 0 left at page 10");
	region_set_close(&set);
	region_chunk_close(&chunk);
}

/* ---- free runs ---- */

static struct free_runs runs;

static void put_free_pages(void)
{
	free_runs_put(&runs, 1005, 2);
}

static void put_around_free_pages(void)
{
	free_runs_put(&runs, 1019, 12);
}

static void put_beside_a_damaged_length(void)
{
	runs.length[20] = 4;
	free_runs_put(&runs, 1030, 1);
}

static void take_from_a_damaged_list(void)
{
	uint32_t first;

	runs.next[0] = 0;
	runs.previous[0] = 51;
	free_runs_take(&runs, 10, true, &first);
}

static void take_beside_an_unmerged_run(void)
{
	uint32_t first;

	/* Make pages [10, 20) a separate run, which free_runs_put() would have joined. */
	runs.starts[0] |= UINT64_C(1) << 10;
	free_runs_take(&runs, 10, true, &first);
}

static void take_more_than_there_are(void)
{
	uint32_t first;

	runs.total = 5;
	free_runs_take_longest(&runs, 10, &first);
}

static void test_free_runs(void **state)
{
	(void)state;
	assert_int_equal(free_runs_init(&runs, 1000, 100), 0);
	free_runs_put(&runs, 1000, 10);
	free_runs_put(&runs, 1020, 10);
	free_runs_put(&runs, 1050, 10);
	expect_abort(put_free_pages, "2 pages at page 1005: one is free already");
	expect_abort(put_around_free_pages, "12 pages at page 1019: one is free already");
	expect_abort(put_beside_a_damaged_length, "run of 4 pages at page 20: 0 at its last page");
	expect_abort(take_from_a_damaged_list, "is_linked(runs, at)");
	expect_abort(take_beside_an_unmerged_run, "run of 10 pages at page 0 before another");
	expect_abort(take_more_than_there_are, "run of 10 pages; 5 of 100 free");
	free_runs_fini(&runs);
}

/* ---- page words ---- */

static struct pool *pool;

/* The words are shared with the children, so each case has its own page. */

static void lend_twice(void)
{
	pool_lend(pool, 10, 1, 7);
	pool_lend(pool, 10, 1, 8);
}

static void share_free_page(void)
{
	pool_share(pool, 11, 1, 3);
}

static void unshare_leased_page(void)
{
	pool_lend(pool, 12, 1, 7);
	pool_unshare(pool, 12, 1, 7);
}

static void move_twice(void)
{
	pool_lend(pool, 13, 1, 7);
	pool_move(pool, 13, PAGE_MOVING);
	pool_move(pool, 13, PAGE_MOVING);
}

static void take_back_twice(void)
{
	pool_lend(pool, 14, 1, 7);
	pool_take_back(pool, 14, 1);
	pool_take_back(pool, 14, 1);
}

static void lend_beyond_the_pool(void)
{
	pool_word_set(pool, pool->page_count, STEP_LEND, leased(7));
}

static void test_page_words(void **state)
{
	struct pool_geometry geometry = {.name = "p",
		.backend = "host",
		.device = "host-0",
		.page_bytes = 524288,
		.page_count = 64,
		.pages_per_handle = 1};
	uint32_t first;
	int fd, ledger_fd;

	(void)state;
	pool = calloc(1, sizeof(*pool));
	assert_non_null(pool);
	pool->page_count = geometry.page_count;
	assert_int_equal(pool_segment_create(&geometry, &pool->segment, &fd), 0);
	assert_int_equal(ledger_create(64, POOL_OBJECTS_LEAST, 0, 0, &pool->ledger, &ledger_fd), 0);
	assert_int_equal(free_runs_init(&pool->free, 0, 64), 0);
	pool_count_words(pool);
	assert_true(free_runs_take(&pool->free, 64, true, &first));
	expect_abort(lend_twice, "page 10: step 'lend' from 0x1000700000000002 (LEASED)");
	expect_abort(share_free_page, "page 11: step 'share' from 0x0000000000000001 (FREE)");
	expect_abort(unshare_leased_page, "page 12: step 'unshare'");
	expect_abort(move_twice, "page 13: step 'move'");
	expect_abort(take_back_twice, "page 14: step 'take back' from 0x0000000000000003 (FREE)");
	expect_abort(lend_beyond_the_pool, "page < pool->page_count");
	free_runs_fini(&pool->free);
	pool_segment_close(&pool->segment);
	ledger_close(&pool->ledger);
	close(fd);
	close(ledger_fd);
	free(pool);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evaluated_in_debug_builds_only),
		cmocka_unit_test(test_steps_of_page_words),
#ifdef GPOOL_DEBUG
		cmocka_unit_test(test_message_has_place_condition_and_values),
		cmocka_unit_test(test_thread_cache),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_region_set),
		cmocka_unit_test(test_free_runs),
		cmocka_unit_test(test_page_words),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
