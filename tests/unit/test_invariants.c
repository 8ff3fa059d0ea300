/*
 * test_invariants.c - the assertions of debug builds.
 *
 * Goal: GPOOL_INVARIANT() ends a process whose data structure is damaged, with a message, in a debug build; in other
 * builds it evaluates nothing. Method: a forked child damages the structure or takes a step that is not allowed; the
 * test reads its message and its status. Only a debug build has these cases: `tests/run debug/test_invariants`.
 */
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

#ifdef GPOOL_DEBUG

/* In a child: `step` ends it by SIGABRT, with a message that contains `text`. */
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
		/* The runner takes a violation for a failure, and cmocka catches some signals. */
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
	expect_abort(push_with_wrong_sum, "5 pages in 1 runs, which have 2");
	expect_abort(pop_damaged_word, "run at page 3: word 0x0");
	push_fits();
}

/* ---- window ---- */

enum { HANDLES = 4, PER_HANDLE = 2 };

static struct pool_header header = {.pages_per_handle = PER_HANDLE};

/* A window over a device of the host back end, with all handles imported. */
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
	assert_int_equal(window_protect(&worker, 1, 1, true), 0);
	assert_int_equal(window_protect(&worker, 1, 1, false), 0);
}

static void map_with_a_readonly_page(void)
{
	worker.window->readonly[0] |= UINT64_C(1) << 5;
	window_map(&worker, 4, 2);
}

static void protect_without_a_handle(void)
{
	atomic_store(&worker.window->handles[1], 0);
	window_protect(&worker, 2, 1, true);
}

static void restore_without_a_mapping(void)
{
	worker.window->readonly[0] |= UINT64_C(1) << 4;
	restore(&worker, 5, 6);
}

static void write_without_a_mapping(void)
{
	worker.window->there[0] &= ~UINT64_C(2);
	restore(&worker, 2, 3);
}

static void test_window(void **state)
{
	(void)state;
	window_begin();
	expect_abort(map_with_a_readonly_page, "handle 2 is writable and has read-only pages");
	expect_abort(protect_without_a_handle, "handle 1 is mapped and not imported");
	expect_abort(restore_without_a_mapping, "handle 2 has read-only pages and is not mapped");
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
	/* As if it were in the sets without region_put(), which would have joined it. */
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
	expect_abort(put_with_a_gap, "the next one begins at page 11");
	expect_abort(carve_unlinked, "nothing leads to it");
	expect_abort(holes_side_by_side, "the next one is a hole too");
	expect_abort(put_ready_too_early, "ready, and its fence is not reached");
	expect_abort(split_all, "10 pages of a region that has 0 left at page 10");
	region_set_close(&set);
	region_chunk_close(&chunk);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evaluated_in_debug_builds_only),
#ifdef GPOOL_DEBUG
		cmocka_unit_test(test_message_has_place_condition_and_values),
		cmocka_unit_test(test_thread_cache),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_region_set),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
