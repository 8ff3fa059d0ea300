/*
 * test_crash_points.c - the agent dies after each of its stores in turn, and the next agent recovers.
 *
 * Goal: the next agent recovers each intermediate state of each protocol. No page is lost or has two owners, contents
 * are right, and the worker's call ends as if no death had happened.
 *
 * Method: gpoold runs an agent module built with GPOOL_CRASH_POINTS, in which the agent dies at the n-th store after it
 * was armed. Each scenario runs for n = 1, 2, 3, ... until it ends before the n-th store. The invariants of the pool
 * are checked in between and at the end. $GPOOL_CRASH_STRIDE=n tries only every n-th point.
 *
 * Requirements: S2.
 */
#include "client/core/pool.h"
#include "shm/doorbell.h"
#include "shm/pool_segment.h"
#include "shm/timeline.h"
#include "tests/integration/crash_points.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

enum { BLOCKS = 24, WORDS = 64, HIGH = 200 };

static uint32_t page_bytes;

/* ---- contents ---- */

static uint64_t word_of(uint64_t name, uint32_t i)
{
	return (name + 1) * UINT64_C(0x9e3779b97f4a7c15) + i;
}

static void put(struct gpool *pool, const struct gpool_block *block, uint64_t name)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	for (uint32_t page = 0; page < block->page_count; page++)
		for (uint32_t i = 0; i < WORDS; i++)
			((uint64_t *)(uintptr_t)(address + page * (uint64_t)page_bytes))[i] =
				word_of(name * 1000 + page, i);
}

/* The caller has pinned the block. */
static void is(struct gpool *pool, const struct gpool_block *block, uint64_t name)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	for (uint32_t page = 0; page < block->page_count; page++)
		for (uint32_t i = 0; i < WORDS; i++)
			assert_int_equal(((uint64_t *)(uintptr_t)(address + page * (uint64_t)page_bytes))[i],
				word_of(name * 1000 + page, i));
}

/* ---- workers ---- */

struct worker {
	struct gpool *pool;
	struct gpool_block blocks[BLOCKS];
	bool pinned[BLOCKS];
	uint32_t count;
};

static struct worker first, second;

static void worker_open(struct worker *worker, const char *name)
{
	struct gpool_options options = harness_options(&harness);

	options.name = name;
	options.timeout_ms = ANSWER_MS;
	memset(worker, 0, sizeof(*worker));
	assert_int_equal(gpool_open(&options, &worker->pool), 0);
	page_bytes = (uint32_t)gpool_page_bytes(worker->pool);
}

static void take(struct worker *worker, uint32_t pages, uint32_t flags)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t i = worker->count;

	options.flags = flags;
	options.timeout_ms = ANSWER_MS;
	assert_in_range(i, 0, BLOCKS - 1);
	assert_int_equal(gpool_alloc(worker->pool, pages, &options, &worker->blocks[i]), 0);
	put(worker->pool, &worker->blocks[i], i + 100 * (worker == &second));
	worker->pinned[i] = true;
	worker->count++;
}

static void let_go(struct worker *worker)
{
	for (uint32_t i = 0; i < worker->count; i++)
		if (worker->pinned[i]) {
			assert_int_equal(gpool_unpin(worker->pool, &worker->blocks[i]), 0);
			worker->pinned[i] = false;
		}
}

/* Check that pinned blocks have the right content, and that unpinned blocks have it or were evicted. */
static void worker_verify(struct worker *worker)
{
	for (uint32_t i = 0; worker->pool && i < worker->count; i++) {
		int error = 0;

		if (!worker->pinned[i])
			error = gpool_pin(worker->pool, &worker->blocks[i]);
		if (error) {
			assert_int_equal(error, -ESTALE);
			continue;
		}
		is(worker->pool, &worker->blocks[i], i + 100 * (worker == &second));
		if (!worker->pinned[i])
			assert_int_equal(gpool_unpin(worker->pool, &worker->blocks[i]), 0);
	}
}

static void worker_close(struct worker *worker)
{
	if (worker->pool)
		gpool_close(worker->pool);
	worker->pool = NULL;
}

/* ---- a scenario, with a death at each point ---- */

struct scenario {
	void (*prepare)(void);
	void (*act)(void);
};

static void books_balance(void)
{
	/* Pages that the last agent left in doubt are decided at the next ticks. */
	AWAIT(harness_check(&harness) == 0);
}

static void play(const struct scenario *scenario)
{
	const char *stride_text = getenv("GPOOL_CRASH_STRIDE");
	int stride = stride_text ? atoi(stride_text) : 1;
	int64_t left = 0, at;
	uint32_t deaths = 0;

	for (at = 1; left == 0; at += stride > 0 ? stride : 1) {
		alarm(STUCK_SECONDS);
		crash_another(deaths);
		scenario->prepare();
		atomic_store(countdown, at);
		scenario->act();
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		worker_verify(&first);
		worker_verify(&second);
		books_balance();
		worker_close(&first);
		worker_close(&second);
		AWAIT(harness_free_pages(&harness) == PAGES);
		books_balance();
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

static void nothing(void)
{
}

/* ---- scenarios ---- */

static void come_and_go(void)
{
	worker_open(&first, "first");
	take(&first, 1, 0);
	take(&first, 3, 0);
	worker_verify(&first);
	assert_int_equal(gpool_free(first.pool, &first.blocks[0]), 0);
	assert_int_equal(gpool_free(first.pool, &first.blocks[1]), 0);
	first.count = 0;
	worker_close(&first);
}

static void test_attach_and_detach(void **state)
{
	(void)state;
	play(&(struct scenario){nothing, come_and_go});
}

static void one_worker(void)
{
	worker_open(&first, "first");
}

static void ask_for_pages(void)
{
	take(&first, 7, 0);
	take(&first, 11, GPOOL_ALLOC_FIRST_FIT);
	for (int i = 0; i < 12; i++)
		take(&first, 1, 0);
	take(&first, 9, GPOOL_ALLOC_CONTIGUOUS);
}

static void test_grant(void **state)
{
	(void)state;
	play(&(struct scenario){one_worker, ask_for_pages});
}

/* Let the first worker pin every second page of the pool, so that the second worker's block must be scattered. */
static void holes(void)
{
	struct gpool_block blocks[PAGES];
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	worker_open(&first, "first");
	worker_open(&second, "second");
	options.timeout_ms = ANSWER_MS;
	for (int i = 0; i < PAGES; i++)
		assert_int_equal(gpool_alloc(first.pool, 1, &options, &blocks[i]), 0);
	for (int i = 0; i < PAGES; i++) {
		if (blocks[i].page % 2 || first.count == BLOCKS) {
			assert_int_equal(gpool_free(first.pool, &blocks[i]), 0);
			continue;
		}
		first.blocks[first.count] = blocks[i];
		first.pinned[first.count] = true;
		put(first.pool, &blocks[i], first.count++);
	}
}

static void ask_for_many(void)
{
	take(&second, 20, 0);
	take(&second, 6, 0);
}

static void test_scattered_grant(void **state)
{
	(void)state;
	play(&(struct scenario){holes, ask_for_many});
}

/*
 * Let the first worker have the whole pool. Its blocks, one of them scattered, are evictable; its other pages are idle
 * or in magazines.
 */
static void may_go(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block *scattered;

	holes();
	worker_close(&second);
	for (int i = 0; i < 4; i++)
		assert_int_equal(gpool_free(first.pool, &first.blocks[--first.count]), 0);
	scattered = &first.blocks[first.count];
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_alloc(first.pool, 12, &options, scattered), 0);
	put(first.pool, scattered, first.count);
	first.pinned[first.count++] = true;
	let_go(&first);
	worker_open(&second, "second");
}

static void take_all(void)
{
	take(&second, 30, 0);
	take(&second, 20, 0);
}

static void test_eviction_and_reclaim(void **state)
{
	(void)state;
	play(&(struct scenario){may_go, take_all});
}

static void operator_evicts(void)
{
	assert_in_range(harness_evict(&harness, 0, 16), 0, PAGES);
}

static void test_operators_eviction(void **state)
{
	(void)state;
	play(&(struct scenario){may_go, operator_evicts});
}

/* ---- blocks freed with fences, and offered pages ---- */

enum { OFFERED = 12 };

static struct gpool_range *offered;

static uint64_t *offered_words(uint32_t page)
{
	uint64_t address;

	assert_int_equal(gpool_range_address(offered, &address), 0);
	return (uint64_t *)(uintptr_t)(address + page * (uint64_t)page_bytes);
}

/*
 * Let the first worker have the whole pool: a scattered block and others, freed with signaled fences of two streams,
 * and offered pages.
 */
static void may_be_had(void)
{
	struct gpool_fence fences[2];
	uint32_t streams[2];

	may_go();
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(gpool_stream_open(first.pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[i]), 0);
		assert_int_equal(gpool_fence_record(first.pool, streams[i], &fences[i]), 0);
	}
	for (uint32_t i = 0; i < 6; i++) {
		struct gpool_block *block = &first.blocks[first.count - 1];

		assert_int_equal(gpool_pin(first.pool, block), 0);
		assert_int_equal(gpool_pin(first.pool, block), 0);
		assert_int_equal(gpool_unpin_after(first.pool, block, fences[0]), 0);
		assert_int_equal(gpool_free_after(first.pool, block, fences[1]), 0);
		first.count--;
	}
	assert_int_equal(gpool_range_reserve(first.pool, OFFERED, NULL, &offered), 0);
	assert_int_equal(gpool_range_commit(offered, 0, OFFERED, ANSWER_MS), 0);
	for (uint32_t page = 0; page < OFFERED; page++)
		for (uint32_t i = 0; i < WORDS; i++)
			offered_words(page)[i] = word_of(7000 + page, i);
	assert_int_equal(gpool_range_offer(offered, 0, OFFERED, fences[0]), 0);
	/* Set the timeline only, without a call that would complete the deferred frees. */
	for (uint32_t i = 0; i < 2; i++)
		atomic_store(
			&first.pool->session.timeline[fence_slot(fences[i].value)], fences[i].value & FENCE_VALUE_MASK);
}

static void take_what_may_be_had(void)
{
	uint8_t kept[OFFERED];

	take(&second, 12, 0);
	take(&second, 20, 0);
	take(&second, 4, 0);
	assert_in_range(gpool_range_reclaim(offered, 0, OFFERED, kept), 0, OFFERED);
	for (uint32_t page = 0; page < OFFERED; page++)
		for (uint32_t i = 0; kept[page] && i < WORDS; i++)
			assert_int_equal(offered_words(page)[i], word_of(7000 + page, i));
}

static void test_freed_behind_fences_and_offered(void **state)
{
	(void)state;
	play(&(struct scenario){may_be_had, take_what_may_be_had});
}

/* Let the second worker request more than is available, so that the request fails. */
static void all_pinned(void)
{
	holes();
	for (uint32_t i = 0; i < first.count; i++)
		assert_true(first.pinned[i]);
}

static void ask_in_vain(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.timeout_ms = 20;
	assert_int_equal(gpool_alloc(second.pool, PAGES - 4, &options, &block), -ENOSPC);
	take(&second, 2, 0);
}

static void test_refusal(void **state)
{
	(void)state;
	play(&(struct scenario){all_pinned, ask_in_vain});
}

/* ---- reservations ---- */

static uint64_t reserve(struct worker *worker, uint32_t pages, uint32_t duration_ms)
{
	uint64_t reservation = 0;

	assert_int_equal(gpool_reservation_create(worker->pool, pages, ANSWER_MS, duration_ms, &reservation), 0);
	return reservation;
}

/* Take over most pages of a scattered reservation, and release the others. */
static void reserve_and_take_over(void)
{
	uint64_t reservation = reserve(&first, 20, 0);

	assert_int_equal(gpool_reservation_use(second.pool, reservation), 0);
	take(&second, 5, 0);
	take(&second, 1, 0);
	take(&second, 9, 0);
	assert_int_equal(gpool_reservation_use(second.pool, 0), 0);
	assert_in_range(gpool_reservation_release(second.pool, reservation), 0, 5);
	reservation = reserve(&first, 2, 0);
	assert_int_equal(gpool_reservation_use(second.pool, reservation), 0);
	take(&second, 2, 0);
	assert_int_equal(gpool_reservation_use(second.pool, 0), 0);
	assert_int_equal(gpool_reservation_release(second.pool, reservation), 0);
}

/* Requirements: E11. */
static void test_reservation(void **state)
{
	(void)state;
	play(&(struct scenario){holes, reserve_and_take_over});
}

static void two_workers(void)
{
	worker_open(&first, "first");
	worker_open(&second, "second");
}

/* End one reservation by its deadline, and another by the detach of its maker. */
static void reservations_end(void)
{
	uint64_t reservation;

	reserve(&first, 6, 1);
	reservation = reserve(&second, 6, 0);
	assert_int_equal(gpool_reservation_use(first.pool, reservation), 0);
	take(&first, 6, 0);
	assert_int_equal(gpool_reservation_use(first.pool, 0), 0);
	reserve(&second, 6, 0);
	worker_close(&second);
	AWAIT(tenant("default")->leased_pages <= first.blocks[0].page_count + 2 * 4); /* and initial pages */
}

/* Requirements: E11. */
static void test_end_of_reservations(void **state)
{
	(void)state;
	play(&(struct scenario){two_workers, reservations_end});
}

/* ---- spilled blocks ---- */

static void may_be_spilled(void)
{
	worker_open(&first, "first");
	take(&first, 1, GPOOL_ALLOC_SPILL);
	take(&first, 3, GPOOL_ALLOC_SPILL);
	take(&first, 2, GPOOL_ALLOC_SPILL);
	let_go(&first);
}

static void spill_out(void)
{
	AWAIT((harness_evict(&harness, gpool_session(first.pool), PAGES),
		status()->pools[0].spill_memory_bytes == 6 * page_bytes && status()->pools[0].moving_pages == 0));
}

static void test_spill(void **state)
{
	(void)state;
	play(&(struct scenario){may_be_spilled, spill_out});
}

static void are_spilled(void)
{
	may_be_spilled();
	spill_out();
}

static void bring_back(void)
{
	for (uint32_t i = 0; i < first.count; i++) {
		assert_int_equal(gpool_pin(first.pool, &first.blocks[i]), 0);
		is(first.pool, &first.blocks[i], i);
		assert_int_equal(gpool_unpin(first.pool, &first.blocks[i]), 0);
	}
}

static void test_restore(void **state)
{
	(void)state;
	play(&(struct scenario){are_spilled, bring_back});
}

static int interrupted(void *argument)
{
	(void)argument;
	return 1;
}

static void are_spilled_and_mover_stops(void)
{
	are_spilled();
	assert_int_equal(kill((pid_t)status()->pools[0].mover_pid, SIGSTOP), 0);
}

/* Cancel the request while the mover writes to the pages. They are freed when the mover has finished. */
static void withdraw(void)
{
	gpool_wait_check(interrupted, NULL);
	assert_int_equal(gpool_pin(first.pool, &first.blocks[1]), -EINTR);
	gpool_wait_check(NULL, NULL);
	assert_int_equal(kill(process_of("gpoold-mover"), SIGCONT), 0);
	AWAIT(status()->pools[0].moving_pages == 0);
	assert_int_equal(status()->pools[0].spill_memory_bytes, 6 * page_bytes);
}

static void test_withdrawn_restore(void **state)
{
	(void)state;
	play(&(struct scenario){are_spilled_and_mover_stops, withdraw});
}

static void drop_all(void)
{
	for (; first.count; first.count--)
		assert_int_equal(gpool_discard(first.pool, &first.blocks[first.count - 1]), 0);
	assert_int_equal(status()->pools[0].spill_memory_bytes, 0);
}

static void test_discard(void **state)
{
	(void)state;
	play(&(struct scenario){are_spilled, drop_all});
}

static bool sunk(void)
{
	const struct msg_pool_status *pool = &status()->pools[0];

	return pool->moving_pages == 0 && pool->spill_memory_bytes < 8 * page_bytes && pool->spill_file_bytes > 0 &&
		pool->spill_memory_bytes + pool->spill_file_bytes == 8 * page_bytes;
}

/* The memory tier is full after that, so the first of the blocks moves to the file. */
static void spill_and_sink(void)
{
	AWAIT((harness_evict(&harness, gpool_session(first.pool), PAGES), sunk()));
}

/* Discard all blocks, one of which is moving to the file. */
static void spill_and_drop(void)
{
	AWAIT((harness_evict(&harness, gpool_session(first.pool), PAGES),
		status()->pools[0].spill_memory_bytes + status()->pools[0].spill_file_bytes >= 8 * page_bytes &&
			status()->pools[0].moving_pages == 0));
	for (; first.count; first.count--)
		assert_int_equal(gpool_discard(first.pool, &first.blocks[first.count - 1]), 0);
	AWAIT(status()->pools[0].spill_memory_bytes + status()->pools[0].spill_file_bytes == 0);
}

static void eight_may_be_spilled(void)
{
	may_be_spilled();
	take(&first, 2, GPOOL_ALLOC_SPILL);
	let_go(&first);
}

/* Run with eight slots of host memory, one of which is kept free, and with a file. */
static void sink_play(void (*act)(void))
{
	char text[256];

	snprintf(text, sizeof(text), POOL ",spill_memory=4MiB,spill_directory=%s,spill_file=16MiB", temporary_folder());
	assert_int_equal(crash_stop(NULL), 0);
	crash_pool = text;
	crash_start(NULL);
	play(&(struct scenario){eight_may_be_spilled, act});
	assert_int_equal(crash_stop(NULL), 0);
	crash_pool = POOL;
	crash_start(NULL);
}

static void test_sink(void **state)
{
	(void)state;
	sink_play(spill_and_sink);
}

static void test_a_sinking_block_is_dropped(void **state)
{
	(void)state;
	sink_play(spill_and_drop);
}

/* ---- ranges ---- */

static struct gpool_range *kept, *moved, *dropped;

static uint64_t *words_of(const struct gpool_range *range)
{
	uint64_t address;

	assert_int_equal(gpool_range_address(range, &address), 0);
	return (uint64_t *)(uintptr_t)address;
}

static void have_ranges(void)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;

	holes();
	options.timeout_ms = ANSWER_MS;
	options.name = "kept";
	assert_int_equal(gpool_range_create(second.pool, 3, &options, &kept), 0);
	options.name = NULL;
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	assert_int_equal(gpool_range_create(second.pool, 5, &options, &moved), 0);
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	assert_int_equal(gpool_range_create(second.pool, 4, &options, &dropped), 0);
	for (uint32_t page = 0; page < 5; page++)
		for (uint32_t i = 0; i < WORDS; i++) {
			words_of(moved)[page * (page_bytes / 8) + i] = word_of(page, i);
			words_of(kept)[page % 3 * (page_bytes / 8) + i] = word_of(7, i);
		}
}

static void sleep_and_wake(void)
{
	assert_int_equal(gpool_sleep(second.pool, 0), 0);
	assert_int_equal(gpool_wake(second.pool, ANSWER_MS), 0);
	for (uint32_t page = 0; page < 5; page++)
		for (uint32_t i = 0; i < WORDS; i++) {
			assert_int_equal(words_of(moved)[page * (page_bytes / 8) + i], word_of(page, i));
			assert_int_equal(words_of(kept)[page % 3 * (page_bytes / 8) + i], word_of(7, i));
		}
	memset(words_of(dropped), 1, 4 * (size_t)page_bytes);
	assert_int_equal(gpool_range_destroy(kept), 0);
	assert_int_equal(gpool_object_delete(second.pool, "kept", 0), 0);
}

static void test_sleep_and_wake(void **state)
{
	(void)state;
	play(&(struct scenario){have_ranges, sleep_and_wake});
}

/* ---- deaths of workers ---- */

static pid_t child;
static int child_says, child_hears;

static void child_run(bool shuts)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block block;
	struct gpool *pool;
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.name = "child";
	options.timeout_ms = ANSWER_MS;
	if (gpool_open(&options, &pool) || gpool_alloc(pool, 5, NULL, &block) || gpool_alloc(pool, 1, NULL, &block) ||
		write(child_says, &byte, 1) != 1)
		_exit(1);
	while (read(child_hears, &byte, 1) == 1)
		if (shuts) {
			/* Close all descriptors of the process, which continues to run. */
			close_range(3, HIGH - 1, 0);
			if (write(child_says, &byte, 1) != 1)
				break;
		}
	_exit(0);
}

static void child_start_as(bool shuts)
{
	int to[2], from[2];
	char byte;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	child = fork();
	if (child == 0) {
		child_says = fcntl(from[1], F_DUPFD, HIGH);
		child_hears = fcntl(to[0], F_DUPFD, HIGH);
		close(to[1]);
		close(from[0]);
		child_run(shuts);
	}
	close(to[0]);
	close(from[1]);
	child_says = from[0]; /* the end from which this process reads its messages */
	child_hears = to[1];
	assert_int_equal(read(child_says, &byte, 1), 1);
}

static void child_start(void)
{
	child_start_as(false);
}

static void child_start_to_shut(void)
{
	child_start_as(true);
}

static void child_dies(void)
{
	int status;

	assert_true(child > 0);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	close(child_says);
	close(child_hears);
	AWAIT(harness_free_pages(&harness) == PAGES);
}

static void test_death_of_a_worker(void **state)
{
	(void)state;
	play(&(struct scenario){child_start, child_dies});
}

static void child_shuts_and_dies(void)
{
	char byte = 1;

	assert_int_equal(write(child_hears, &byte, 1), 1);
	assert_int_equal(read(child_says, &byte, 1), 1);
	AWAIT(status()->pools[0].quarantined_pages > 0);
	child_dies();
}

static void test_quarantine(void **state)
{
	(void)state;
	play(&(struct scenario){child_start_to_shut, child_shuts_and_dies});
}

/* Disconnect on request, and continue to run. */
static void *shut_when_told(void *argument)
{
	const struct gpool *pool = argument;
	char byte;

	if (read(child_hears, &byte, 1) == 1)
		shutdown(pool->socket, SHUT_RDWR);
	return NULL;
}

/* Spill the block, then pin it and wait for a mover that does not run. */
static void spiller_run(void)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_alloc_options with = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	struct gpool *pool;
	pthread_t thread;
	uint32_t session;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.name = "spiller";
	options.timeout_ms = ANSWER_MS;
	with.flags = GPOOL_ALLOC_SPILL;
	if (gpool_open(&options, &pool) || gpool_alloc(pool, 3, &with, &block) || gpool_unpin(pool, &block))
		_exit(1);
	session = gpool_session(pool);
	if (write(child_says, &session, sizeof(session)) != sizeof(session) || read(child_hears, &byte, 1) != 1 ||
		pthread_create(&thread, NULL, shut_when_told, pool))
		_exit(1);
	gpool_pin(pool, &block);
	pause();
	_exit(1);
}

static void spiller_start(void)
{
	int to[2], from[2];
	uint32_t session;
	pid_t mover;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	child = fork();
	if (child == 0) {
		child_says = from[1];
		child_hears = to[0];
		spiller_run();
	}
	close(to[0]);
	close(from[1]);
	child_says = from[0];
	child_hears = to[1];
	assert_int_equal(read(child_says, &session, sizeof(session)), sizeof(session));
	AWAIT((harness_evict(&harness, session, PAGES),
		status()->pools[0].spill_memory_bytes && status()->pools[0].moving_pages == 0));
	mover = (pid_t)status()->pools[0].mover_pid;
	assert_true(mover > 0);
	kill(mover, SIGSTOP);
	assert_int_equal(write(child_hears, "", 1), 1);
	AWAIT(status()->pools[0].moving_pages == 3);
}

/* Worker and agent die. Pages that the mover may still write to are not lent before it has finished. */
static void test_death_of_a_worker_while_it_is_read_back(void **state)
{
	int64_t left = 0, at;
	uint32_t deaths = 0;

	(void)state;
	for (at = 1; left == 0; at++) {
		pid_t mover;
		int status_of;

		alarm(STUCK_SECONDS);
		crash_another(deaths);
		spiller_start();
		mover = (pid_t)status()->pools[0].mover_pid;
		atomic_store(countdown, at);
		assert_true(child > 0);
		kill(child, SIGKILL);
		waitpid(child, &status_of, 0);
		close(child_says);
		close(child_hears);
		AWAIT(status()->pools[0].free_pages + status()->pools[0].retired_pages == PAGES);
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		assert_int_equal(status()->pools[0].retired_pages, 3);
		kill(mover, SIGCONT);
		AWAIT(harness_free_pages(&harness) == PAGES && status()->pools[0].spill_memory_bytes == 0);
		books_balance();
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

/*
 * Run the same test with a connection that was closed earlier. The pages of the session are quarantined, and the next
 * agent knows that.
 */
static void test_death_in_quarantine_while_it_is_read_back(void **state)
{
	struct gpool *pool;
	pid_t mover;
	int status_of;

	(void)state;
	alarm(STUCK_SECONDS);
	spiller_start();
	mover = (pid_t)status()->pools[0].mover_pid;
	assert_int_equal(write(child_hears, "", 1), 1);
	AWAIT(status()->pools[0].quarantined_pages >= 3);
	atomic_store(countdown, 1);
	pool = open_worker();
	gpool_close(pool);
	assert_int_equal(atomic_load(countdown), 0);
	assert_in_range(status()->pools[0].quarantined_pages, 3, PAGES);
	assert_true(child > 0);
	kill(child, SIGKILL);
	waitpid(child, &status_of, 0);
	close(child_says);
	close(child_hears);
	AWAIT(status()->pools[0].free_pages + status()->pools[0].retired_pages == PAGES);
	assert_int_equal(status()->pools[0].retired_pages, 3);
	kill(mover, SIGCONT);
	AWAIT(harness_free_pages(&harness) == PAGES && status()->pools[0].spill_memory_bytes == 0);
	books_balance();
}

/* ---- fixture ---- */

static int end(void **state)
{
	crash_stop(NULL);
	return crash_end(state);
}

/* ---- granted pages that their worker has not received yet ---- */

enum { RESERVED = 8, SLOT = SESSION_REQUESTS - 1 };

static void start_reserved(void)
{
	const char *arguments[] = {"--module", crash_module(), "--pool",
		"name=p0,backend=host,size=32MiB,page_size=512KB,reserved=8 pages", QUIET, "--set",
		"lease.initial_pages=0", NULL};

	start(arguments);
}

static enum page_state state_of(const struct gpool *pool, uint32_t page)
{
	return page_word_state(atomic_load(&pool->pages[page]));
}

/* Request a reserved page like a thread that is stopped when the reply arrives. */
static uint32_t ask_and_stand_still(const struct gpool *pool)
{
	struct lease_request *request = &pool->session.requests[SLOT];
	uint32_t word = lease_state_to(atomic_load(&request->state) + LEASE_SERIAL_ONE, LEASE_REQUESTED);

	*request = (struct lease_request){.state = word - 1, .kind = LEASE_TAKE, .need = 1, .flags = LEASE_CRITICAL};
	atomic_store(&request->state, word);
	atomic_fetch_or(&pool->session.header->requests_pending, UINT64_C(1) << SLOT);
	doorbell_ring(pool->doorbell);
	AWAIT(lease_state_of(atomic_load(&request->state)) == LEASE_DONE);
	assert_int_equal(request->error, 0);
	assert_in_range(request->first_page, PAGES - RESERVED, PAGES - 1);
	return request->first_page;
}

/*
 * The agent dies while it takes idle pages out of a word of the free bits. The granted page's bit in this word is clear
 * as well, because the page never was idle. The page has no bit and no entry, and no thread holds it, but it still
 * belongs to the worker.
 */
static void test_a_page_on_its_way_to_its_worker_is_not_in_doubt(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block freed[3];
	int64_t left = 0;
	uint32_t deaths = 0;

	(void)state;
	assert_int_equal(crash_stop(NULL), 0);
	start_reserved();
	for (int64_t at = 1; left == 0; at++) {
		uint32_t handed;
		uint64_t word;

		alarm(STUCK_SECONDS);
		if (deaths % DEATHS_OF_ONE == DEATHS_OF_ONE - 1) {
			assert_int_equal(crash_stop(NULL), 0);
			start_reserved();
		}
		worker_open(&first, "first");
		take(&first, PAGES - RESERVED, 0);
		options.flags = GPOOL_ALLOC_CRITICAL;
		for (int i = 0; i < 3; i++)
			assert_int_equal(gpool_alloc(first.pool, 1, &options, &freed[i]), 0);
		handed = ask_and_stand_still(first.pool);
		word = atomic_load(&first.pool->pages[handed]);
		atomic_store(countdown, at);
		for (int i = 0; i < 3; i++)
			assert_int_equal(gpool_free(first.pool, &freed[i]), 0);
		/*
		 * The freed pages are returned immediately. Pages in doubt are returned when the next agent has checked
		 * them.
		 */
		for (int i = 0; i < 3; i++)
			AWAIT(state_of(first.pool, freed[i].page) == PAGE_RESERVED);
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		books_balance();
		assert_int_equal(atomic_load(&first.pool->pages[handed]), word);
		worker_verify(&first);
		pool_put(first.pool, handed, 1);
		atomic_store(&first.pool->session.requests[SLOT].state, LEASE_IDLE);
		worker_close(&first);
		AWAIT(harness_free_pages(&harness) == PAGES - RESERVED);
	}
	print_message("%u deaths\n", deaths);
	assert_true(deaths > 0);
	assert_int_equal(crash_stop(NULL), 0);
	crash_start(NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attach_and_detach),
		cmocka_unit_test(test_grant),
		cmocka_unit_test(test_scattered_grant),
		cmocka_unit_test(test_eviction_and_reclaim),
		cmocka_unit_test(test_operators_eviction),
		cmocka_unit_test(test_freed_behind_fences_and_offered),
		cmocka_unit_test(test_refusal),
		cmocka_unit_test(test_reservation),
		cmocka_unit_test(test_end_of_reservations),
		cmocka_unit_test(test_spill),
		cmocka_unit_test(test_restore),
		cmocka_unit_test(test_withdrawn_restore),
		cmocka_unit_test(test_discard),
		cmocka_unit_test(test_sink),
		cmocka_unit_test(test_a_sinking_block_is_dropped),
		cmocka_unit_test(test_sleep_and_wake),
		cmocka_unit_test(test_death_of_a_worker),
		cmocka_unit_test(test_quarantine),
		cmocka_unit_test(test_death_of_a_worker_while_it_is_read_back),
		cmocka_unit_test(test_death_in_quarantine_while_it_is_read_back),
		cmocka_unit_test(test_a_page_on_its_way_to_its_worker_is_not_in_doubt),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, crash_start, end);
}
