/*
 * test_client_kv_share.c - share blocks of KV caches between processes: engines of one model on one pool.
 *
 * Goal: an engine uses the blocks that another engine has shared, in the same memory, without a copy, and read-only.
 * The tokens, model and salt must be the same, and so must the trust domain. The first publisher wins. If either engine
 * or the agent dies at any time, no content that another engine uses is affected. Unused blocks are evicted when memory
 * is needed, the end of a text before its beginning. Objects with false names do no harm.
 *
 * Method: engines are processes that execute orders, call prefix_check() each time, and are killed. Every token has
 * distinct content, also across engines.
 *
 * Requirements: K7.
 */
#include "client/object/object.h"
#include "tests/integration/kv_engine.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"
#include "tests/lib/temporary.h"

/* Start an engine that shares a plain text of three and a half chunks. */
static struct engine *sharer(uint64_t *sequence)
{
	struct engine *made = engine();

	assert_int_equal(begun(made, 1, TEXT_MAX, 3 * C + 5, sequence), 0);
	assert_int_equal(shared(made, *sequence), 3 * CHUNK_BLOCKS);
	return made;
}

/*
 * Return true if these chunks form a chain of one text in which each chunk is evicted before the one that it follows.
 */
static bool is_chain(uint32_t count)
{
	uint64_t before = 0;

	for (uint32_t number = 1; number <= count; number++) {
		const struct object_record *record = &admin->segment.objects[number];

		if (record->follows != number - 1 || record->follows_version != before)
			return false;
		before = record->version;
	}
	return true;
}

/* Return true if a session can allocate that number of pinned pages. The pages are freed again. */
static bool to_be_had(struct gpool *pool, uint32_t pages)
{
	struct gpool_block blocks[PAGES];
	uint32_t got = 0;

	while (got < pages && gpool_alloc(pool, 1, NULL, &blocks[got]) == 0)
		got++;
	for (uint32_t i = 0; i < got; i++)
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
	return got == pages;
}

/* ---- sharing ---- */

static void test_found_by_another(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other, third;
	uint32_t before, readers;

	(void)state;
	start(calm);
	first = sharer(&sequence);
	assert_int_equal(last.statistics.pool_shared, 3 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.pool_blocks, 3 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.used_blocks, 2);
	look(first, sequence);
	assert_int_equal(free_pages(), PAGES - 4 - 1); /* one page is used by the tables */
	second = engine();
	before = free_pages();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C + 5, &other), 3 * C);
	assert_int_equal(last.statistics.pool_found, 3 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.used_blocks, 2);
	assert_int_equal(last.statistics.block_copies, 0);
	/* The engine needs memory only for its own blocks. */
	assert_int_equal(free_pages(), before - 1);
	look(second, other);
	look(first, sequence);
	assert_int_equal(objects(&readers), 3);
	assert_int_equal(readers, 6);
	/* Find a part of the text that ends within a chunk, then the same part again, without a request. */
	assert_int_equal(begun(second, 2, C + 2 * T + 1, 2 * C, &third), C + 2 * T);
	look(second, third);
	assert_int_equal(last.statistics.pool_found, 3 * CHUNK_BLOCKS);
	freed(second, third);
	engine_ended(first);
	look(second, other);
	engine_ended(second);
}

static void test_different_content_is_not_shared(void **state)
{
	struct engine *first, *second;
	uint64_t sequence;

	(void)state;
	start(calm);
	first = sharer(&sequence);
	second = engine();
	assert_int_equal(ask(second, (struct order){.verb = BEGIN, .same = TEXT_MAX, .tokens = 3 * C, .salt = 1}), 0);
	assert_int_equal(last.found, 0);
	assert_int_equal(begun(second, 3, 0, 3 * C, &sequence), 0);
	assert_int_equal(begun(second, 3, T - 1, C, &sequence), 0);
	assert_int_equal(begun(second, 4, T, C, &sequence), T);
	engine_ended(first);
}

/* The other engine reads what the writer writes through its old mapping: it is the same memory. */
static void test_same_memory(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;

	(void)state;
	start(calm);
	first = sharer(&sequence);
	second = engine();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C + 5, &other), 3 * C);
	assert_int_equal(ask(first, (struct order){.verb = POKE_OLD, .salt = 4711}), 0);
	assert_int_equal(ask(second, (struct order){.verb = LOOK, .sequence = other}), 0);
	assert_false(last.right);
	assert_int_equal(ask(first, (struct order){.verb = POKE_OLD, .salt = PLAIN * 10000}), 0);
	look(second, other);
}

/* Neither engine can write to shared blocks by mistake. */
static void test_only_to_be_read(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;

	(void)state;
	start(calm);
	first = sharer(&sequence);
	second = engine();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C, &other), 3 * C);
	tell(second, (struct order){.verb = POKE, .sequence = other});
	assert_int_equal(WTERMSIG(status_of(second->pid)), SIGSEGV);
	second->pid = 0;
	look(first, sequence);
	tell(first, (struct order){.verb = POKE, .sequence = sequence});
	assert_int_equal(WTERMSIG(status_of(first->pid)), SIGSEGV);
	first->pid = 0;
}

static void test_first_writer_wins(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t before, readers;

	(void)state;
	start(calm);
	first = engine();
	second = engine();
	assert_int_equal(begun(first, 1, TEXT_MAX, 3 * C + 5, &sequence), 0);
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C + 5, &other), 0);
	look(first, sequence);
	look(second, other);
	assert_int_equal(shared(first, sequence), 3 * CHUNK_BLOCKS);
	before = free_pages();
	assert_int_equal(shared(second, other), 3 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.pool_shared, 0);
	swept(second);
	assert_int_equal(last.statistics.used_blocks, 2);
	assert_int_equal(last.statistics.committed_chunks, 1);
	/* The engine's own memory is idle now, and available to all sessions. */
	AWAIT(free_pages() >= before);
	look(first, sequence);
	look(second, other);
	assert_int_equal(objects(&readers), 3);
	/* Sharing again has no effect. */
	assert_int_equal(shared(second, other), 3 * CHUNK_BLOCKS);
	engine_ended(second);
	engine_ended(first);
}

/* Both engines share at the same time. Each chunk is published by one of them, and both continue with it. */
static void test_both_at_once(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t readers, shared_first, shared_second;

	(void)state;
	start(calm);
	worker = open_worker();
	for (int round = 0; round < 20; round++) {
		first = engine();
		second = engine();
		assert_int_equal(begun(first, 1, TEXT_MAX, 8 * C, &sequence), 0);
		assert_int_equal(begun(second, 1, TEXT_MAX, 8 * C, &other), 0);
		tell(first, (struct order){.verb = SHARE, .sequence = sequence});
		tell(second, (struct order){.verb = SHARE, .sequence = other});
		assert_int_equal(heard(first), 8 * CHUNK_BLOCKS);
		shared_first = (uint32_t)last.statistics.pool_shared;
		assert_int_equal(heard(second), 8 * CHUNK_BLOCKS);
		shared_second = (uint32_t)last.statistics.pool_shared;
		assert_int_equal(shared_first + shared_second, 8 * CHUNK_BLOCKS);
		assert_int_equal(objects(&readers), 8);
		look(first, sequence);
		look(second, other);
		engine_ended(first);
		engine_ended(second);
		AWAIT(to_be_had(worker, PAGES));
	}
}

/* Texts continue differently in each engine after a shared prefix, and the new blocks are shared too. */
static void test_sequences_continue(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other, third;

	(void)state;
	start(calm);
	first = sharer(&sequence);
	second = engine();
	assert_int_equal(begun(second, 5, 3 * C, 5 * C, &other), 3 * C);
	assert_int_equal(shared(second, other), 5 * CHUNK_BLOCKS);
	assert_int_equal(last.statistics.pool_shared, 2 * CHUNK_BLOCKS);
	assert_true(is_chain(5));
	assert_int_equal(begun(first, 5, 3 * C, 5 * C + 1, &third), 5 * C);
	look(first, third);
	freed(second, other);
	engine_killed(second);
	look(first, third);
	freed(first, third);
	look(first, sequence);
}

/* Use chunks of another size: share and find a text of four chunks and a part of a fifth. */
static void chunks_of(uint32_t chunk_blocks)
{
	uint32_t tokens = 4 * chunk_blocks * T, readers, before;
	struct engine *first, *second;
	uint64_t sequence, other;

	first = engine();
	second = engine();
	assert_int_equal(begun(first, 1, TEXT_MAX, tokens + 1, &sequence), 0);
	assert_int_equal(shared(first, sequence), 4 * chunk_blocks);
	assert_int_equal(objects(&readers), 4);
	before = free_pages();
	assert_int_equal(begun(second, 1, TEXT_MAX, tokens, &other), tokens);
	assert_int_equal(free_pages(), before);
	look(second, other);
	look(first, sequence);
	engine_ended(first);
	look(second, other);
	freed(second, other);
	swept(second);
	assert_int_equal(begun(second, 2, tokens / 2 + T, tokens, &other), tokens / 2 + T);
	look(second, other);
	engine_ended(second);
	AWAIT(to_be_had(worker, PAGES));
}

/* Use handles of several pages, and chunks of several handles. */
static void test_other_chunks(void **state)
{
	const char *const large[] = {"--pool", POOL ",handle_size=2MB", CALM, NULL};

	(void)state;
	start(large);
	worker = open_worker();
	chunks_of(4 * CHUNK_BLOCKS);
	gpool_close(worker);
	worker = NULL;
	assert_int_equal(stop(NULL), 0);
	start(calm);
	worker = open_worker();
	/* 768 KiB: two blocks in three pages. */
	heads = 96;
	chunks_of(2);
	/* 1.5 MiB: one block in three pages. */
	heads = 192;
	chunks_of(1);
}

/* ---- release and eviction ---- */

static void test_unused_chunks_are_released(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other, third;
	uint32_t readers;

	(void)state;
	start(calm);
	first = sharer(&sequence);
	second = engine();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C, &other), 3 * C);
	assert_int_equal(begun(second, 6, 2 * C, 2 * C + T, &third), 2 * C);
	freed(second, other);
	swept(second);
	/* No engine has the third chunk open. */
	assert_int_equal(last.statistics.pool_blocks, 2 * CHUNK_BLOCKS);
	look(second, third);
	/* A cached block follows the second chunk. */
	freed(second, third);
	assert_int_equal(last.statistics.cached_blocks, 1);
	objects(&readers);
	assert_int_equal(readers, 3 + 2);
	swept(second);
	assert_int_equal(last.statistics.pool_blocks, 0);
	objects(&readers);
	assert_int_equal(readers, 3);
	/* Both engines find the second chunk again. */
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C, &other), 3 * C);
	freed(first, sequence);
	swept(first);
	assert_int_equal(last.statistics.pool_blocks, 0);
	assert_int_equal(begun(first, 1, TEXT_MAX, 3 * C, &sequence), 3 * C);
	look(first, sequence);
	look(second, other);
}

/*
 * A prefix is not shared before the GPU work that writes it is done, and not released before the GPU work that reads it
 * is done. Until then a lookup finds it.
 */
static void test_behind_work(void **state)
{
	struct order order = {.verb = BEGIN, .same = TEXT_MAX, .tokens = 2 * C};
	struct gpool_kv_options options;
	struct report report = {.error = 0};
	struct gpool_fence gate;
	uint32_t manual, readers;

	(void)state;
	worker_open(calm);
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	options = engine_options(0, heads);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(engine_obey(&order, &report), 0);
	gate = gate_make(manual);
	assert_int_equal(gpool_kv_prefix_share(kv, report.sequence, 0), -ETIMEDOUT);
	assert_int_equal(objects(&readers), 0);
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	assert_int_equal(gpool_kv_prefix_share(kv, report.sequence, ANSWER_MS), 2 * CHUNK_BLOCKS);
	gate = gate_make(manual);
	assert_int_equal(gpool_kv_free(kv, report.sequence), 0);
	assert_int_equal(gpool_kv_prefix_evict(kv, UINT32_MAX), 0);
	assert_int_equal(statistics().pool_blocks, 2 * CHUNK_BLOCKS);
	objects(&readers);
	assert_int_equal(readers, 2);
	assert_int_equal(engine_obey(&order, &report), 0);
	assert_int_equal(report.found, 2 * C);
	assert_int_equal(statistics().pool_blocks, 2 * CHUNK_BLOCKS);
	assert_true(prefix_check(kv));
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	assert_int_equal(engine_sweep(), 0);
	assert_int_equal(statistics().pool_blocks, 2 * CHUNK_BLOCKS);
	assert_true(engine_right(report.sequence));
	assert_int_equal(gpool_kv_free(kv, report.sequence), 0);
	assert_int_equal(engine_sweep(), 0);
	assert_int_equal(statistics().pool_blocks, 0);
	assert_int_equal(objects(&readers), 2);
	assert_int_equal(readers, 0);
}

/* A fork also has the shared blocks of its parent. */
static void test_fork(void **state)
{
	struct order order = {.verb = BEGIN, .same = TEXT_MAX, .tokens = 2 * C + 1};
	struct gpool_kv_options options;
	struct report report = {.error = 0};
	uint64_t fork;

	(void)state;
	worker_open(calm);
	options = engine_options(0, heads);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(engine_obey(&order, &report), 0);
	assert_int_equal(gpool_kv_prefix_share(kv, report.sequence, ANSWER_MS), 2 * CHUNK_BLOCKS);
	fork = forked(report.sequence);
	assert_int_equal(info_of(fork).shared_blocks, 2 * CHUNK_BLOCKS + 1);
	assert_int_equal(gpool_kv_free(kv, report.sequence), 0);
	texts[(uint32_t)fork] = order;
	assert_true(engine_right(fork));
	assert_int_equal(engine_sweep(), 0);
	assert_int_equal(statistics().pool_blocks, 2 * CHUNK_BLOCKS);
	assert_int_equal(gpool_kv_free(kv, fork), 0);
	assert_int_equal(engine_sweep(), 0);
	assert_int_equal(statistics().pool_blocks, 0);
	/* A cache that is destroyed together with its sequences leaves no pins. */
	assert_int_equal(engine_obey(&order, &report), 0);
	assert_int_equal(report.found, 2 * C);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	for (uint32_t page = 0; page < worker->page_count; page++)
		assert_int_equal(atomic_load(&worker->session.pins[page]), 0);
}

/* Blocks in use are not evicted. Unused blocks are evicted, the end of the text first. */
static void test_evicted(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t readers, taken;

	(void)state;
	start(calm);
	worker = open_worker();
	first = sharer(&sequence);
	freed(first, sequence);
	swept(first);
	engine_ended(first);
	AWAIT(free_pages() == PAGES - 3);
	assert_int_equal(objects(&readers), 3);
	assert_int_equal(readers, 0);
	assert_int_equal(try_evict(admin, "p0", 1, &taken), 0);
	assert_int_equal(taken, 1);
	second = engine();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C, &other), 2 * C);
	freed(second, other);
	assert_int_equal(begun(second, 1, TEXT_MAX, 2 * C, &other), 2 * C);
	swept(second);
	/* Two pages are held, and one contains the tables. */
	look(second, other);
	assert_true(to_be_had(worker, PAGES - 3));
	assert_false(to_be_had(worker, PAGES - 2));
	look(second, other);
	freed(second, other);
	swept(second);
	assert_true(to_be_had(worker, PAGES - 1));
	assert_int_equal(objects(&readers), 0);
	assert_int_equal(begun(second, 1, TEXT_MAX, C, &other), 0);
}

/* ---- deaths ---- */

static void test_writer_dies(void **state)
{
	struct engine *first, *second, *third;
	uint64_t sequence, other;

	(void)state;
	start(calm);
	/* Kill the engine before it has shared: it leaves nothing behind. */
	first = engine();
	assert_int_equal(begun(first, 1, TEXT_MAX, 3 * C, &sequence), 0);
	engine_killed(first);
	AWAIT(free_pages() == PAGES);
	/* Kill the engine before the first lookup, and during a read. */
	first = sharer(&sequence);
	engine_killed(first);
	second = engine();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C, &other), 3 * C);
	look(second, other);
	first = engine();
	assert_int_equal(begun(first, 7, 3 * C, 4 * C, &sequence), 3 * C);
	assert_int_equal(shared(first, sequence), 4 * CHUNK_BLOCKS);
	third = engine();
	assert_int_equal(begun(third, 7, 3 * C, 4 * C, &sequence), 4 * C);
	engine_killed(first);
	look(second, other);
	look(third, sequence);
	AWAIT(harness_check(&harness) == 0);
}

static void test_reader_dies(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t readers;

	(void)state;
	start(calm);
	worker = open_worker();
	first = sharer(&sequence);
	for (int i = 0; i < 3; i++) {
		second = engine();
		assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C + 1, &other), 3 * C);
		if (i == 1)
			freed(second, other);
		if (i == 2)
			swept(second);
		engine_killed(second);
		look(first, sequence);
	}
	/* The references of the engine ended with it. */
	AWAIT((objects(&readers), readers == 3));
	freed(first, sequence);
	swept(first);
	engine_killed(first);
	AWAIT((objects(&readers), readers == 0));
	AWAIT(to_be_had(worker, PAGES));
}

/*
 * Kill an engine at some point while it shares or looks up. Published blocks must be complete, and all other blocks
 * free.
 */
static void test_dies_at_any_time(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t readers;

	(void)state;
	start(calm);
	worker = open_worker();
	for (int round = 0; round < 40; round++) {
		uint32_t count, found;

		first = engine();
		second = engine();
		assert_int_equal(begun(first, 1, TEXT_MAX, 3 * C, &sequence), 0);
		tell(first, (struct order){.verb = SHARE, .sequence = sequence});
		/* This round waits for that number of objects. */
		AWAIT(objects(&readers) >= (uint32_t)round % 4);
		engine_killed(first);
		if (round % 2) {
			tell(second, (struct order){.verb = BEGIN, .same = TEXT_MAX, .tokens = 3 * C});
			engine_killed(second);
			second = engine();
		}
		AWAIT(harness_check(&harness) == 0);
		count = objects(&readers);
		found = begun(second, 1, TEXT_MAX, 3 * C, &other);
		assert_int_equal(found, count * C);
		look(second, other);
		engine_ended(second);
		AWAIT(to_be_had(worker, PAGES));
	}
}

/*
 * The agent dies while the directory is full, while objects have readers, and during a release. Its successor has the
 * same objects.
 */
static void test_agent_dies(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t readers;

	(void)state;
	start(calm);
	worker = open_worker();
	first = sharer(&sequence);
	agent_kill();
	second = engine();
	assert_int_equal(begun(second, 1, TEXT_MAX, 3 * C + 1, &other), 3 * C);
	look(second, other);
	agent_kill();
	look(second, other);
	look(first, sequence);
	AWAIT(harness_check(&harness) == 0);
	assert_int_equal(objects(&readers), 3);
	assert_int_equal(readers, 6);
	agent_kill();
	freed(second, other);
	swept(second);
	AWAIT((objects(&readers), readers == 3));
	agent_kill();
	assert_int_equal(begun(second, 8, 3 * C, 4 * C, &other), 3 * C);
	agent_kill();
	assert_int_equal(shared(second, other), 4 * CHUNK_BLOCKS);
	engine_killed(first);
	look(second, other);
	engine_ended(second);
	AWAIT(to_be_had(worker, PAGES));
	AWAIT(harness_check(&harness) == 0);
}

static void test_agent_dies_during_sharing(void **state)
{
	struct engine *first, *second;
	uint64_t sequence, other;

	(void)state;
	start(calm);
	worker = open_worker();
	for (int round = 0; round < 8; round++) {
		uint32_t agent = status()->agent_pid;

		first = engine();
		second = engine();
		assert_int_equal(begun(first, 1, TEXT_MAX, 6 * C, &sequence), 0);
		tell(first, (struct order){.verb = SHARE, .sequence = sequence});
		assert_int_equal(kill((pid_t)agent, SIGKILL), 0);
		assert_int_equal(heard(first), 6 * CHUNK_BLOCKS);
		assert_int_equal(begun(second, 1, TEXT_MAX, 6 * C, &other), 6 * C);
		look(second, other);
		look(first, sequence);
		engine_ended(first);
		engine_ended(second);
		AWAIT(to_be_had(worker, PAGES));
		AWAIT(harness_check(&harness) == 0);
	}
}

/* ---- random steps ---- */

enum { RUNNING_MOST = 6 };

struct running {
	uint64_t sequences[RUNNING_MOST];
	uint32_t count;
};

static void random_step(struct engine *engine, struct running *running, uint64_t *found, uint64_t *given)
{
	uint32_t which = any(12), chosen = running->count ? any(running->count) : 0, chunks = any(4);
	struct order order = {
		.verb = BEGIN, .text = any(3), .same = chunks * C + any(2) * any(C), .tokens = 1 + any(4 * C)};
	int error;

	if (which < 4 && running->count < RUNNING_MOST) {
		error = ask(engine, order);
		assert_true(error == 0 || error == -ENOSPC);
		if (!error)
			running->sequences[running->count++] = last.sequence;
		*found += last.statistics.pool_found != 0;
	} else if (which < 7 && running->count) {
		error = shared(engine, running->sequences[chosen]);
		assert_true(error >= 0 || error == -ENOSPC);
		*given += last.statistics.pool_shared != 0;
	} else if (which < 10 && running->count) {
		look(engine, running->sequences[chosen]);
		freed(engine, running->sequences[chosen]);
		running->sequences[chosen] = running->sequences[--running->count];
	} else if (which == 10) {
		swept(engine);
	}
	for (uint32_t i = 0; i < running->count; i++)
		look(engine, running->sequences[i]);
}

/* Three engines use a pool that is too small for them. From time to time one of them, or the agent, dies. */
static void test_random(void **state)
{
	uint32_t steps = test_scaled(1500);
	struct running running[3] = {{{0}, 0}};
	uint64_t found = 0, given = 0;

	(void)state;
	seed_begin();
	start(calm);
	worker = open_worker();
	for (int i = 0; i < 3; i++)
		engine_start("", i == 2 ? 3 * CHUNK_BLOCKS : 0);
	for (uint32_t step = 0; step < steps; step++) {
		uint32_t which = any(3);

		alarm(STUCK_SECONDS);
		random_step(&engines[which], &running[which], &found, &given);
		if (step % 64 == 0)
			AWAIT(harness_check(&harness) == 0);
		if (any(150) == 0) {
			engine_killed(&engines[which]);
			assert_ptr_equal(engine(), &engines[which]);
			running[which].count = 0;
		}
		if (any(300) == 0)
			agent_kill();
	}
	printf("%llu times with blocks of the pool, %llu with blocks given to it\n", (unsigned long long)found,
		(unsigned long long)given);
	if (steps > 1000)
		assert_true(found && given);
	for (int i = 0; i < 3; i++)
		engine_killed(&engines[i]);
	AWAIT(to_be_had(worker, PAGES));
}

/* ---- invalid objects and refused calls ---- */

struct fake {
	uint64_t magic, block_bytes, chunk_bytes;
	uint32_t block_tokens, chunk_blocks;
	struct prefix_key keys[CHUNK_BLOCKS];
};

static struct prefix_key key_at(uint32_t block)
{
	const struct order plain = {.same = TEXT_MAX};
	struct prefix_identity identity = {.model = {9},
		.layers = 8,
		.kv_heads = 8,
		.head_size = 64,
		.dtype_bytes = 2,
		.block_tokens = BLOCK_TOKENS};
	struct prefix_key key = prefix_key_root(&identity);

	for (uint32_t i = 0; i <= block; i++)
		key = prefix_key_next(key, ids_of(&plain) + i * T, T);
	return key;
}

/* Publish an object like that of an engine, except for the error `wrong`. */
static struct gpool_object *fake_publish(int wrong)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct fake fake = {UINT64_C(0x31786966657270), BLOCK_BYTES, CHUNK_BLOCKS * BLOCK_BYTES, BLOCK_TOKENS,
		CHUNK_BLOCKS, {{0, 0}}};
	struct gpool_object *object = NULL;
	uint64_t version, address, bytes;
	char name[64];
	uint32_t index;

	for (uint32_t i = 0; i < CHUNK_BLOCKS; i++)
		fake.keys[i] = key_at(i);
	snprintf(name, sizeof(name), wrong == 8 ? "kv-prefix/%016llX%016llX" : "kv-prefix/%016llx%016llx",
		(unsigned long long)fake.keys[0].high, (unsigned long long)fake.keys[0].low);
	options.memory_class = wrong == 0 ? GPOOL_OBJECT_IMMUTABLE : GPOOL_OBJECT_EPHEMERAL;
	fake.magic += wrong == 1;
	fake.block_bytes += wrong == 2;
	fake.block_tokens += wrong == 3;
	fake.chunk_blocks += wrong == 4;
	fake.keys[0].high += wrong == 5;
	fake.keys[3].low += wrong == 9;
	fake.keys[4] = wrong == 9 ? fake.keys[0] : fake.keys[4];
	options.flags |= OBJECT_CREATE_OWN;
	assert_int_equal(gpool_object_create(worker, name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, wrong == 6 ? 2 : 1, NULL, &index), 0);
	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	for (uint32_t i = 0; i < C; i++)
		*(uint64_t *)(uintptr_t)(address + i * TOKEN_BYTES) = PLAIN * 10000 + i;
	assert_int_equal(gpool_object_set(object, "kv-prefix", &fake, wrong == 7 ? sizeof(fake) - 1 : sizeof(fake)), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	return object;
}

static void test_hostile_objects(void **state)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint64_t sequence, other;

	(void)state;
	start(calm);
	worker = open_worker();
	for (int wrong = 0; wrong <= 10; wrong++) {
		struct gpool_object *object = fake_publish(wrong);
		struct engine *first = engine();

		/*
		 * A correct object is used (10). If an object has wrong keys after correct ones, only the correct ones
		 * are used (9).
		 */
		assert_int_equal(begun(first, 1, TEXT_MAX, 2 * C, &sequence), wrong == 10 ? C : wrong == 9 ? 3 * T : 0);
		look(first, sequence);
		/* A name in use is not published again. An object with a wrong name is ignored. */
		if (wrong < 8)
			assert_int_equal(shared(first, sequence), -ESTALE);
		if (wrong == 8)
			assert_int_equal(shared(first, sequence), 2 * CHUNK_BLOCKS);
		look(first, sequence);
		assert_int_equal(begun(first, 1, TEXT_MAX, 2 * C, &other), 2 * C);
		freed(first, sequence);
		look(first, other);
		engine_ended(first);
		info.size = sizeof(info);
		assert_int_equal(gpool_object_info(object, &info), 0);
		assert_int_equal(gpool_object_delete(worker, info.name, 0), 0);
		assert_int_equal(gpool_object_close(object), 0);
		AWAIT(to_be_had(worker, PAGES));
	}
}

static void test_refused(void **state)
{
	const struct order fourth = {.verb = BEGIN, .same = TEXT_MAX, .tokens = 3 * C};
	struct engine *small, *first;
	uint64_t sequence, other;

	(void)state;
	start(calm);
	/*
	 * The cache has room for one shared chunk, so sharing the second one fails. Blocks that are already shared stay
	 * shared.
	 */
	small = engine_start("", CHUNK_BLOCKS);
	assert_int_equal(begun(small, 1, TEXT_MAX, 3 * C, &sequence), 0);
	assert_int_equal(shared(small, sequence), -ENOSPC);
	assert_int_equal(last.statistics.pool_shared, CHUNK_BLOCKS);
	look(small, sequence);
	/* A lookup finds no more than the cache has places for. */
	first = engine();
	assert_int_equal(begun(first, 1, TEXT_MAX, 3 * C, &other), C);
	assert_int_equal(shared(first, other), 3 * CHUNK_BLOCKS);
	freed(small, sequence);
	swept(small);
	assert_int_equal(ask(small, fourth), 0);
	assert_int_equal(last.found, C);
	look(small, last.sequence);
	/* Texts shorter than a chunk are not shared, nor are sequences that have ended. */
	assert_int_equal(begun(first, 9, 0, C - 1, &sequence), 0);
	assert_int_equal(shared(first, sequence), 0);
	freed(first, sequence);
	assert_int_equal(shared(first, sequence), -ESTALE);
	/* During sleep no block can be shared. Shared chunks stay mapped. */
	assert_int_equal(begun(first, 10, 0, C, &sequence), 0);
	assert_int_equal(ask(first, (struct order){.verb = SLEEP}), 0);
	assert_int_equal(shared(first, sequence), -EHOSTDOWN);
	assert_int_equal(ask(first, (struct order){.verb = WAKE}), 0);
	freed(first, sequence);
	look(first, other);
	assert_int_equal(ask(first, (struct order){.verb = DESTROY}), 0);
	engine_killed(first);
}

/* Make driver calls fail at each point. A failed call must change nothing, and the next call must succeed. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call calls[] = {GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_TIMELINE_WRITE};
	struct engine *first, *second;
	uint64_t sequence, other;
	uint32_t failed = 0, less = 0;

	(void)state;
	start(calm);
	worker = open_worker();
	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t at = 1; at <= 3; at++) {
			struct order order = {.verb = SHARE, .fault = calls[i], .fault_at = at};
			int error;

			first = engine();
			second = engine();
			assert_int_equal(begun(first, 1, TEXT_MAX, 2 * C + 1, &order.sequence), 0);
			error = ask(first, order);
			failed += error < 0;
			assert_true(error == -ENOMEM || error == -EIO || error == 2 * CHUNK_BLOCKS);
			look(first, order.sequence);
			assert_int_equal(shared(first, order.sequence), 2 * CHUNK_BLOCKS);
			look(first, order.sequence);
			sequence = order.sequence;
			/* An engine that cannot map all shared blocks begins with fewer of them. */
			order = (struct order){
				.verb = BEGIN, .same = TEXT_MAX, .tokens = 2 * C, .fault = calls[i], .fault_at = at};
			assert_int_equal(ask(second, order), 0);
			less += last.found < 2 * C;
			other = last.sequence;
			look(second, other);
			order = (struct order){.verb = FREE,
				.sequence = other,
				.fault = at == 1 ? GPU_CALL_UNMAP : calls[2],
				.fault_at = 1};
			assert_int_equal(ask(second, order), 0);
			order = (struct order){.verb = SWEEP, .fault = GPU_CALL_UNMAP, .fault_at = at};
			assert_int_equal(ask(second, order), 0);
			swept(second);
			assert_int_equal(last.statistics.pool_blocks, 0);
			assert_int_equal(begun(second, 1, TEXT_MAX, 2 * C, &other), 2 * C);
			look(second, other);
			look(first, sequence);
			engine_ended(first);
			engine_ended(second);
			AWAIT(to_be_had(worker, PAGES));
		}
	assert_true(failed >= 4 && less >= 2);
}

/* ---- trust domains ---- */

static char config_path[64];

static int apart_stop(void **state)
{
	int result = engines_stop(state);

	unlink(config_path);
	return result;
}

static void test_trust_domains(void **state)
{
	const char *arguments[] = {"--config", config_path, NULL};
	struct engine *red, *blue, *rose;
	uint64_t sequence;
	FILE *file;

	(void)state;
	snprintf(config_path, sizeof(config_path), "%s/gpool-share-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(config_path, "we");
	assert_non_null(file);
	fputs("pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 "
	      "pages\"; } );\n"
	      "eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
	      "tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ "
	      "\"2\" ]; domain = \"blue\"; },\n"
	      "            { name = \"rose\"; domain = \"red\"; } );\n",
		file);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	red = engine_start("red", 0);
	assert_int_equal(begun(red, 1, TEXT_MAX, 2 * C, &sequence), 0);
	assert_int_equal(shared(red, sequence), 2 * CHUNK_BLOCKS);
	blue = engine_start("blue", 0);
	assert_int_equal(begun(blue, 1, TEXT_MAX, 2 * C, &sequence), 0);
	look(blue, sequence);
	assert_int_equal(last.statistics.pool_found, 0);
	rose = engine_start("rose", 0);
	assert_int_equal(begun(rose, 1, TEXT_MAX, 2 * C, &sequence), 2 * C);
	look(rose, sequence);
}

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_found_by_another, engines_stop),
		cmocka_unit_test_teardown(test_different_content_is_not_shared, engines_stop),
		cmocka_unit_test_teardown(test_same_memory, engines_stop),
		cmocka_unit_test_teardown(test_only_to_be_read, engines_stop),
		cmocka_unit_test_teardown(test_first_writer_wins, engines_stop),
		cmocka_unit_test_teardown(test_both_at_once, engines_stop),
		cmocka_unit_test_teardown(test_sequences_continue, engines_stop),
		cmocka_unit_test_teardown(test_other_chunks, engines_stop),
		cmocka_unit_test_teardown(test_unused_chunks_are_released, engines_stop),
		cmocka_unit_test_teardown(test_behind_work, engines_stop),
		cmocka_unit_test_teardown(test_fork, engines_stop),
		cmocka_unit_test_teardown(test_evicted, engines_stop),
		cmocka_unit_test_teardown(test_writer_dies, engines_stop),
		cmocka_unit_test_teardown(test_reader_dies, engines_stop),
		cmocka_unit_test_teardown(test_dies_at_any_time, engines_stop),
		cmocka_unit_test_teardown(test_agent_dies, engines_stop),
		cmocka_unit_test_teardown(test_agent_dies_during_sharing, engines_stop),
		cmocka_unit_test_teardown(test_random, engines_stop),
		cmocka_unit_test_teardown(test_hostile_objects, engines_stop),
		cmocka_unit_test_teardown(test_refused, engines_stop),
		cmocka_unit_test_teardown(test_driver_faults, engines_stop),
		cmocka_unit_test_teardown(test_trust_domains, apart_stop),
	};

	int failed;

	if (count == 7 && !strcmp(arguments[1], "engine"))
		return engine_main(arguments);
	failed = cmocka_run_group_tests_name("by use", tests, NULL, NULL);
	setenv(ADAPTIVE, "1", 1);
	return failed + cmocka_run_group_tests_name("adaptive", tests, NULL, NULL);
}
