/*
 * test_client_kv_offer.c - other processes can take the memory of cached prefixes while the engine makes no call.
 *
 * Goal: another process gets unused blocks with one allocation, even from a stopped engine, but not before the GPU work
 * that reads them is done. Blocks that were not taken are found again with their content. Taken blocks and the blocks
 * that follow them are not found, and a prefix in use is not evicted. Counts are exact after each call. An engine
 * evicts its own cached blocks before the content of other sessions only if its blocks are older.
 *
 * Method: engines are processes that are stopped and killed. An engine runs in this process where the time of a use or
 * a fence matters.
 */
#include "client/kv/pooled.h"
#include "client/object/object.h"
#include "tests/integration/kv_engine.h"

enum { PLENTY = PAGES - 1 }; /* all pages except the one for the engine's tables */

static const char *const spilling[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};

/* ---- a stopped engine ---- */

/*
 * Start an engine that has published texts of that number of tokens each, numbered from 1, and has freed their
 * sequences.
 */
static struct engine *idle_engine(uint32_t texts_begun, uint32_t tokens)
{
	struct engine *made = engine();
	uint64_t sequence;

	for (uint32_t text = 1; text <= texts_begun; text++) {
		assert_int_equal(begun(made, text, 0, tokens, &sequence), 0);
		look(made, sequence);
		freed(made, sequence);
	}
	assert_int_equal(last.statistics.cached_blocks, texts_begun * tokens / T);
	assert_int_equal(last.statistics.offered_chunks, last.statistics.committed_chunks);
	return made;
}

static void test_all_of_it(void **state)
{
	struct engine *idle;
	struct gpool_block block;
	uint64_t sequence;

	(void)state;
	start(calm);
	worker = open_worker();
	idle = idle_engine(2, 3 * C);
	engine_stopped(idle);
	block = alloc(worker, PLENTY);
	engine_continued(idle);
	assert_int_equal(found_by(idle, 1, 0, 3 * C), 0);
	assert_int_equal(found_by(idle, 2, 0, 3 * C), 0);
	assert_int_equal(last.statistics.cached_blocks, 0);
	assert_int_equal(last.statistics.committed_chunks, 0);
	assert_int_equal(last.statistics.available_blocks, 0);
	assert_int_equal(last.statistics.prefix_lost, 6 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.prefix_evicted, 0);
	assert_int_equal(gpool_free(worker, &block), 0);
	assert_int_equal(begun(idle, 1, 0, 3 * C, &sequence), 0);
	look(idle, sequence);
	engine_ended(idle);
}

/* The end of a text is evicted first. */
static void test_part_of_it(void **state)
{
	struct engine *idle;
	struct gpool_block block;
	uint64_t sequence;

	(void)state;
	start(calm);
	worker = open_worker();
	idle = idle_engine(1, 6 * C);
	engine_stopped(idle);
	block = alloc(worker, PLENTY - 4);
	engine_continued(idle);
	assert_int_equal(found_by(idle, 1, 0, 6 * C), 4 * C);
	assert_int_equal(begun(idle, 1, 0, 4 * C, &sequence), 4 * C);
	look(idle, sequence);
	assert_int_equal(last.statistics.prefix_lost, 2 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.cached_blocks, 0);
	assert_int_equal(gpool_free(worker, &block), 0);
	engine_ended(idle);
}

/* A hit reclaims the block: no other session gets a block that a sequence uses. */
static void test_in_use_again(void **state)
{
	struct engine *idle;
	struct gpool_block block;
	uint64_t sequence;

	(void)state;
	start(calm);
	worker = open_worker();
	idle = idle_engine(1, 3 * C);
	assert_int_equal(begun(idle, 1, 0, 2 * C, &sequence), 2 * C);
	assert_int_equal(last.statistics.offered_chunks, 1);
	engine_stopped(idle);
	assert_int_equal(gpool_alloc(worker, PLENTY, NULL, &block), -ENOSPC);
	block = alloc(worker, PLENTY - 2);
	engine_continued(idle);
	look(idle, sequence);
	assert_int_equal(found_by(idle, 1, 0, 3 * C), 2 * C);
	freed(idle, sequence);
	engine_stopped(idle);
	assert_int_equal(gpool_free(worker, &block), 0);
	block = alloc(worker, PLENTY);
	engine_continued(idle);
	assert_int_equal(found_by(idle, 1, 0, 3 * C), 0);
	engine_ended(idle);
}

/* Evicted blocks are free without a further call. */
static void test_evicted_at_once(void **state)
{
	struct engine *idle;

	(void)state;
	start(calm);
	worker = open_worker();
	idle = idle_engine(1, 3 * C);
	assert_int_equal(ask(idle, (struct order){.verb = EVICT}), 3 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.committed_chunks, 0);
	engine_stopped(idle);
	alloc(worker, PLENTY);
	assert_int_equal(atomic_load(&pool_view(admin)->header->counters[POOL_COUNT_EVICTIONS]), 0);
	engine_continued(idle);
	engine_ended(idle);
}

/* ---- chunks that engines share ---- */

/*
 * Start an engine that has published a text of three shared chunks followed by two unshared blocks, and has freed
 * its sequence.
 */
static struct engine *idle_sharer(uint32_t text)
{
	struct engine *made = engine();
	uint64_t sequence;

	assert_int_equal(begun(made, text, 0, 3 * C + 2 * T, &sequence), 0);
	assert_int_equal(shared(made, sequence), 3 * CHUNK_BLOCKS);
	look(made, sequence);
	freed(made, sequence);
	assert_int_equal(last.statistics.cached_blocks, 2);
	assert_int_equal(last.statistics.pool_blocks, 3 * CHUNK_BLOCKS);
	return made;
}

/*
 * An idle engine has the shared chunks open, because its own blocks follow them. It does not protect them from
 * eviction.
 */
static void test_shared_give_way(void **state)
{
	struct engine *idle;
	struct gpool_block block;
	uint32_t readers;
	uint64_t sequence;

	(void)state;
	start(calm);
	worker = open_worker();
	idle = idle_sharer(1);
	engine_stopped(idle);
	assert_int_equal(objects(&readers), 3);
	assert_int_equal(readers, 3);
	block = alloc(worker, PLENTY);
	assert_int_equal(objects(&readers), 0);
	engine_continued(idle);
	assert_int_equal(found_by(idle, 1, 0, 4 * C), 0);
	assert_int_equal(last.statistics.cached_blocks, 0);
	assert_int_equal(last.statistics.prefix_lost, 3 * CHUNK_BLOCKS + 2);
	assert_int_equal(gpool_free(worker, &block), 0);
	assert_int_equal(begun(idle, 1, 0, 3 * C, &sequence), 0);
	look(idle, sequence);
	assert_int_equal(shared(idle, sequence), 3 * CHUNK_BLOCKS);
	look(idle, sequence);
	engine_ended(idle);
}

/* Blocks that a sequence of any engine uses are not evicted. Unused blocks that follow them are evicted. */
static void test_shared_in_use(void **state)
{
	struct engine *idle, *user;
	struct gpool_block block;
	uint32_t readers;
	uint64_t sequence;

	(void)state;
	start(calm);
	worker = open_worker();
	idle = idle_sharer(1);
	user = engine();
	assert_int_equal(begun(user, 1, 0, 2 * C, &sequence), 2 * C);
	look(user, sequence);
	engine_stopped(idle);
	engine_stopped(user);
	assert_int_equal(gpool_alloc(worker, PLENTY - 2, NULL, &block), -ENOSPC);
	block = alloc(worker, PLENTY - 1 - 2);
	assert_int_equal(objects(&readers), 2);
	engine_continued(idle);
	engine_continued(user);
	look(user, sequence);
	/* No block follows the remaining chunks, so the engine does not keep them, and finds them in the pool. */
	assert_int_equal(found_by(idle, 1, 0, 3 * C), 0);
	assert_int_equal(last.statistics.cached_blocks, 0);
	assert_int_equal(begun(idle, 1, 0, 2 * C, &sequence), 2 * C);
	look(idle, sequence);
	engine_killed(user);
	look(idle, sequence);
	engine_stopped(idle);
	assert_int_equal(gpool_free(worker, &block), 0);
	assert_int_equal(gpool_alloc(worker, PLENTY - 1, NULL, &block), -ENOSPC);
	engine_continued(idle);
	look(idle, sequence);
	engine_ended(idle);
}

/* ---- deaths ---- */

static void test_deaths(void **state)
{
	struct engine *idle, *other;
	uint64_t sequence;

	(void)state;
	start(calm);
	idle = idle_engine(1, 3 * C);
	other = idle_engine(1, 3 * C);
	/* A new agent knows the offered pages, and engines know that they may have missed evictions. */
	assert_int_equal(ask(other, (struct order){.verb = QUIET_DOWN}), 0);
	engine_stopped(idle);
	agent_kill();
	worker = open_worker();
	alloc(worker, PAGES - 2 - 2);
	engine_continued(idle);
	assert_in_range(found_by(idle, 1, 0, 3 * C) + found_by(other, 1, 0, 3 * C), 0, 2 * C);
	engine_killed(other);
	alloc(worker, 1);
	/* When the process that took the pages dies, the pages are free, and the remaining blocks are still cached. */
	gpool_close(worker);
	worker = NULL;
	assert_true(begun(idle, 1, 0, 3 * C, &sequence) < 3 * C);
	look(idle, sequence);
	engine_ended(idle);
}

/* ---- an engine in this process ---- */

static bool is_adaptive(void)
{
	return getenv(ADAPTIVE);
}

static void offer_start(uint32_t blocks, uint32_t flags)
{
	struct gpool_kv_options options;

	worker_open(spilling);
	options = engine_options(0, heads);
	options.max_blocks = blocks;
	options.pool_blocks = 0;
	options.flags |= flags;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
}

static uint64_t here_begun(uint32_t text, uint32_t same, uint32_t tokens, uint32_t *found)
{
	const struct order order = {.verb = BEGIN, .text = text, .same = same, .tokens = tokens};
	struct report report = {.error = 0};

	assert_int_equal(engine_begin(&order, &report), 0);
	if (found)
		*found = report.found;
	return report.sequence;
}

static void here_ended(uint64_t sequence)
{
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
}

static uint32_t here_found(uint32_t text, uint32_t same, uint32_t tokens)
{
	const struct order order = {.text = text, .same = same, .tokens = tokens};
	struct report report = {.error = 0};

	assert_int_equal(engine_find(&order, &report), 0);
	return report.found;
}

/* Return the page of a chunk in the pool. */
static uint32_t chunk_page(uint32_t chunk)
{
	struct gpool_range_page page = {.size = sizeof(page)};

	assert_int_equal(gpool_range_resolve(kv->range, chunk, &page), 0);
	assert_int_equal(page.state, GPOOL_PAGE_COMMITTED);
	return page.page;
}

/* Set the time of the chunk's last use to `ms` milliseconds ago. */
static void chunk_age(uint32_t chunk, uint32_t ms)
{
	atomic_store(&worker->session.touch[chunk_page(chunk)], pool_clock(worker) - ms);
}

/* Allocate all free pages as *rest, then one page more, which evicts a page. */
static struct gpool_block taken_from_all(struct gpool *other, struct gpool_block *rest)
{
	*rest = alloc(other, free_pages());
	return alloc(other, 1);
}

/*
 * Two texts begin with the same chunk, which is evicted. No block of either text remains, and no memory without content
 * is kept.
 */
static void test_followers_go(void **state)
{
	struct gpool *other;
	struct gpool_block rest;
	uint64_t first, second;
	uint32_t found;

	(void)state;
	offer_start(0, 0);
	other = open_worker();
	first = here_begun(1, C, 3 * C, NULL);
	second = here_begun(2, C, 2 * C, &found);
	assert_int_equal(found, C);
	here_ended(first);
	here_ended(second);
	settle();
	assert_int_equal(statistics().offered_chunks, 4);
	chunk_age(0, 100000);
	taken_from_all(other, &rest);
	assert_int_equal(here_found(1, C, 3 * C), 0);
	assert_int_equal(here_found(2, C, 2 * C), 0);
	assert_int_equal(statistics().cached_blocks, 0);
	assert_int_equal(statistics().prefix_lost, 4 * CHUNK_BLOCKS);
	assert_int_equal(statistics().committed_chunks, 0);
	gpool_close(other);
}

/*
 * A second text spans chunks of the first one, and a block that follows the first text is in a chunk that stays in use.
 */
static void test_mixed_chunks(void **state)
{
	struct gpool *other;
	struct gpool_block rest;
	uint64_t first, second, user;
	uint32_t found;

	(void)state;
	offer_start(0, 0);
	other = open_worker();
	/*
	 * Chunk 0 contains the first text's 6 blocks and 2 blocks of the second text. Chunk 1 contains the next 6 of
	 * the second text, and 2 blocks that a sequence uses.
	 */
	first = here_begun(1, 6 * T, 6 * T, NULL);
	second = here_begun(2, 0, 8 * T, NULL);
	user = here_begun(3, 0, 2 * T, NULL);
	here_ended(first);
	here_ended(second);
	assert_true(engine_right(user));
	settle();
	assert_int_equal(statistics().offered_chunks, 1);
	taken_from_all(other, &rest);
	assert_int_equal(here_found(1, 6 * T, 6 * T), 0);
	assert_int_equal(here_found(2, 0, 8 * T), 0);
	assert_int_equal(statistics().cached_blocks, 0);
	assert_int_equal(statistics().used_blocks, 2);
	assert_int_equal(statistics().committed_chunks, 1);
	assert_true(engine_right(user));
	here_ended(user);
	assert_int_equal(gpool_free(other, &rest), 0);
	user = here_begun(3, 0, 3 * T, &found);
	assert_int_equal(found, 2 * T);
	assert_true(engine_right(user));
	gpool_close(other);
}

/*
 * A block is not taken before the GPU work that uses it is done. It is then taken at once, without a call of this
 * process.
 */
static void test_behind_work(void **state)
{
	struct gpool_fence gate;
	struct gpool_block block, rest;
	struct gpool *other;
	uint32_t manual, found;
	uint64_t sequence;

	(void)state;
	offer_start(0, 0);
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	other = open_worker();
	here_ended(here_begun(1, 0, C, NULL));
	settle();
	gate = gate_make(manual);
	sequence = here_begun(1, 0, C, &found);
	assert_int_equal(found, C);
	here_ended(sequence);
	assert_int_equal(statistics().offered_chunks, 1);
	rest = alloc(other, free_pages());
	assert_int_equal(gpool_alloc(other, 1, NULL, &block), -ENOSPC);
	/* The block is reclaimed and offered again while the work continues. */
	sequence = here_begun(1, 0, C, &found);
	assert_int_equal(found, C);
	here_ended(sequence);
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	AWAIT(gpool_alloc(other, 1, NULL, &block) == 0);
	assert_int_equal(here_found(1, 0, C), 0);
	assert_int_equal(gpool_free(other, &rest), 0);
	gpool_close(other);
}

/* Free blocks of an offered chunk are used before new memory. After that, the chunk is held. */
static void test_room(void **state)
{
	uint64_t sequence;

	(void)state;
	offer_start(0, 0);
	here_ended(here_begun(1, 0, 3 * T, NULL));
	assert_int_equal(statistics().offered_chunks, 1);
	sequence = allocated(5 * T, 0, 0);
	assert_int_equal(statistics().offered_chunks, 0);
	assert_int_equal(statistics().committed_chunks, 1);
	assert_int_equal(here_found(1, 0, 3 * T), 3 * T);
	here_ended(sequence);
	assert_int_equal(statistics().offered_chunks, 1);
	assert_int_equal(here_found(1, 0, 3 * T), 3 * T);
}

/*
 * The cache evicts its own content block by block before content of other sessions that is due for eviction later.
 * Content that is due earlier is evicted first, one page at a time.
 */
static void test_own_and_others(void **state)
{
	struct gpool_block rest, theirs;
	struct gpool *other;
	uint64_t sequence;

	(void)state;
	offer_start(0, 0);
	other = open_worker();
	here_ended(here_begun(1, 0, 2 * C, NULL));
	settle();
	theirs = alloc(other, 1);
	assert_int_equal(gpool_unpin(other, &theirs), 0);
	rest = alloc(other, free_pages());
	chunk_age(0, 50000);
	chunk_age(1, 60000);
	sequence = allocated(3 * T, 0, 0);
	assert_int_equal(count_there(other, &theirs, 1), 1);
	assert_int_equal(statistics().prefix_evicted, 3);
	assert_int_equal(here_found(1, 0, 2 * C), 2 * C - 3 * T);
	here_ended(sequence);
	sequence = allocated(3 * T, 0, 0);
	assert_int_equal(statistics().prefix_evicted, 3);
	here_ended(sequence);
	settle();
	atomic_store(&other->session.touch[theirs.page], pool_clock(worker) - 200000);
	sequence = allocated(4 * T, 0, 0);
	assert_int_equal(count_there(other, &theirs, 1), 0);
	assert_int_equal(statistics().prefix_evicted, 3);
	assert_int_equal(statistics().prefix_lost, 0);
	here_ended(sequence);
	assert_int_equal(gpool_free(other, &rest), 0);
	gpool_close(other);
}

/* The owner id of a text is the same in all engines, and the agent knows the time of its last use. */
static void test_names(void **state)
{
	struct gpool *other;
	uint64_t names[2], sequence;
	uint32_t touched;

	(void)state;
	offer_start(0, 0);
	other = open_worker();
	for (int i = 0; i < 2; i++) {
		struct gpool_kv *mine = kv;

		here_ended(here_begun(1 + (uint32_t)i, C, 2 * C, NULL));
		settle();
		names[i] = atomic_load(&worker->session.blocks[chunk_page(0)].owner_id);
		assert_int_not_equal(names[i], atomic_load(&worker->session.blocks[chunk_page(1)].owner_id));
		chunk_age(0, 100000);
		touched = atomic_load(&worker->session.touch[chunk_page(0)]);
		sequence = here_begun(1 + (uint32_t)i, C, 2 * C, NULL);
		assert_int_not_equal(touched, atomic_load(&worker->session.touch[chunk_page(0)]));
		touched = atomic_load(&worker->session.touch[chunk_page(0)]);
		if (is_adaptive()) {
			chunk_age(0, 100);
			touched = atomic_load(&worker->session.touch[chunk_page(0)]);
		}
		here_ended(sequence);
		/* With the adaptive policy only lookups count as uses. The release of a block does not. */
		if (is_adaptive())
			assert_int_equal(touched, atomic_load(&worker->session.touch[chunk_page(0)]));
		assert_int_equal(names[i], atomic_load(&worker->session.blocks[chunk_page(0)].owner_id));
		assert_int_equal(gpool_kv_destroy(mine), 0);
		if (i == 0) {
			struct gpool_kv_options options = engine_options(0, heads);
			struct gpool *first = worker;

			worker = other;
			other = first;
			assert_int_equal(gpool_stream_open(worker, NULL, 0, &stream), 0);
			options.pool_blocks = 0;
			options.stream = stream;
			assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
		}
	}
	assert_int_equal(names[0], names[1]);
	gpool_close(other);
}

/* An evicted chunk is unmapped when another trust domain needs its pages, before the cache detects the eviction. */
static void test_shared_unmapped(void **state)
{
	struct gpool_kv_options options;
	struct gpool_block rest;
	struct gpool *other;
	uint64_t sequence;
	uint32_t found;

	(void)state;
	worker_open(calm);
	other = open_worker();
	options = engine_options(0, heads);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = here_begun(1, 0, C + T, NULL);
	assert_int_equal(gpool_kv_prefix_share(kv, sequence, ANSWER_MS), CHUNK_BLOCKS);
	here_ended(sequence);
	settle();
	assert_int_not_equal(kv->pooled->places[0].object->mapping_bytes, 0);
	assert_true(objects_sweep(worker));
	assert_int_not_equal(kv->pooled->places[0].object->mapping_bytes, 0);
	rest = alloc(other, free_pages() + 2);
	assert_true(objects_sweep(worker));
	assert_int_equal(kv->pooled->places[0].object->mapping_bytes, 0);
	assert_int_equal(gpool_free(other, &rest), 0);
	sequence = here_begun(1, 0, C + T, &found);
	assert_int_equal(found, 0);
	assert_int_equal(statistics().prefix_lost, CHUNK_BLOCKS + 1);
	assert_int_equal(gpool_kv_prefix_share(kv, sequence, ANSWER_MS), CHUNK_BLOCKS);
	assert_true(engine_right(sequence));
	gpool_close(other);
}

/* The pins of a long-lived sequence do not count as leaked. */
static void test_long_sequence(void **state)
{
	static const char *const arguments[] = {
		"--pool", POOL, CALM, "--set", "pins.max_duration=200ms", "--set", "pins.leaked=unpin", NULL};
	struct gpool_kv_options options;
	struct gpool_block forgotten;
	struct gpool *other;
	uint64_t sequence;

	(void)state;
	worker_open(arguments);
	other = open_worker();
	options = engine_options(0, heads);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = here_begun(1, 0, C + T, NULL);
	assert_int_equal(gpool_kv_prefix_share(kv, sequence, ANSWER_MS), CHUNK_BLOCKS);
	forgotten = alloc(other, 1);
	AWAIT(status()->pools[0].leaked_pins == 1);
	AWAIT(atomic_load(&other->session.pins[forgotten.page]) == 0);
	assert_int_equal(gpool_alloc(other, PAGES - 1, NULL, &forgotten), -ENOSPC);
	assert_true(engine_right(sequence));
	gpool_close(other);
}

/* Sleep drops offered chunks, even of a cache whose content is kept. The counts are correct at once. */
static void test_sleep(void **state)
{
	uint64_t user;

	(void)state;
	offer_start(0, GPOOL_KV_KEEP);
	here_ended(here_begun(1, 0, 2 * C, NULL));
	user = here_begun(2, 0, C, NULL);
	assert_int_equal(statistics().offered_chunks, 2);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	/* Sleep has dropped the offered chunks. None of them can be reclaimed, so lookups do not find their blocks. */
	assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
	assert_int_equal(statistics().cached_blocks, 0);
	assert_int_equal(statistics().prefix_lost, 2 * CHUNK_BLOCKS);
	assert_int_equal(statistics().committed_chunks, 1);
	assert_int_equal(here_found(1, 0, 2 * C), 0);
	assert_true(engine_right(user));
	here_ended(user);
}

/* Compaction also moves blocks of offered chunks. */
static void test_pack(void **state)
{
	uint64_t sequences[3];
	uint32_t found;

	(void)state;
	offer_start(0, 0);
	for (uint32_t i = 0; i < 3; i++) {
		sequences[i] = here_begun(i, 0, 2 * T, NULL);
		allocated(6 * T, 0, 0);
	}
	for (uint64_t filler = 0; filler < 3; filler++)
		here_ended(kv_number(kv, &kv->sequences[2 * filler + 1]));
	for (uint32_t i = 0; i < 3; i++)
		here_ended(sequences[i]);
	assert_int_equal(statistics().offered_chunks, 3);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 4);
	settle();
	assert_int_equal(statistics().offered_chunks, 1);
	assert_int_equal(statistics().committed_chunks, 1);
	for (uint32_t i = 0; i < 3; i++) {
		sequences[i] = here_begun(i, 0, 2 * T, &found);
		assert_int_equal(found, 2 * T);
		assert_true(engine_right(sequences[i]));
	}
}

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_all_of_it, engines_stop),
		cmocka_unit_test_teardown(test_part_of_it, engines_stop),
		cmocka_unit_test_teardown(test_in_use_again, engines_stop),
		cmocka_unit_test_teardown(test_evicted_at_once, engines_stop),
		cmocka_unit_test_teardown(test_shared_give_way, engines_stop),
		cmocka_unit_test_teardown(test_shared_in_use, engines_stop),
		cmocka_unit_test_teardown(test_deaths, engines_stop),
		cmocka_unit_test_teardown(test_followers_go, engines_stop),
		cmocka_unit_test_teardown(test_mixed_chunks, engines_stop),
		cmocka_unit_test_teardown(test_behind_work, engines_stop),
		cmocka_unit_test_teardown(test_room, engines_stop),
		cmocka_unit_test_teardown(test_own_and_others, engines_stop),
		cmocka_unit_test_teardown(test_names, engines_stop),
		cmocka_unit_test_teardown(test_shared_unmapped, engines_stop),
		cmocka_unit_test_teardown(test_long_sequence, engines_stop),
		cmocka_unit_test_teardown(test_sleep, engines_stop),
		cmocka_unit_test_teardown(test_pack, engines_stop),
	};
	int failed;

	if (count == 7 && !strcmp(arguments[1], "engine"))
		return engine_main(arguments);
	failed = cmocka_run_group_tests_name("by use", tests, NULL, NULL);
	setenv(ADAPTIVE, "1", 1);
	return failed + cmocka_run_group_tests_name("adaptive", tests, NULL, NULL);
}
