/*
 * test_client_kv_prefix.c - find the blocks of a paged KV cache again by their tokens, in one process.
 *
 * Goal: a sequence begins with the blocks that others have published for the same tokens, model, adapter and salt, and
 * with no other blocks. This needs no copy. Unreferenced blocks are kept until their memory is needed. They are evicted
 * children first and least recently used first, and no more of them than needed. A refused call changes nothing.
 *
 * Method: a cache whose tokens have distinct contents, its counters and tables, and prefix_check() after each step.
 *
 * Requirements: K7.
 */
#include "tests/integration/kv_view.h"
#include "tests/lib/scale.h"

#include <pthread.h>

enum { T = BLOCK_TOKENS, THREADS = 4 };

static const char *const spilling[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};

/* Return token ids, each of which begins a distinct text. */
static const uint32_t *text(uint32_t first)
{
	static uint32_t ids[8][1024];
	static uint32_t next;
	uint32_t *made = ids[next++ % 8];

	for (uint32_t i = 0; i < 1024; i++)
		made[i] = first * 10000 + i;
	return made;
}

static struct gpool_kv_options prefix_options(uint32_t blocks)
{
	struct gpool_kv_options options = small_options(blocks);

	options.flags = GPOOL_KV_PREFIXES;
	options.model[0] = 1;
	return options;
}

static void prefix_start(uint32_t blocks, uint32_t cached_blocks)
{
	struct gpool_kv_options options;

	worker_open(calm);
	options = prefix_options(blocks);
	options.cached_blocks = cached_blocks;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
}

/* Create a sequence from the cached part of the text, write the rest, and publish its full blocks. */
static uint64_t published(const uint32_t *ids, uint32_t tokens)
{
	struct gpool_kv_prefix prefix = prefix_of(ids, tokens);
	uint64_t sequence = 0;
	uint32_t found = UINT32_MAX;

	assert_int_equal(try_allocate_prefix(tokens, &prefix, &sequence, &found), 0);
	for (uint32_t i = found; i < tokens; i++)
		*token_at(sequence, i) = ids[i];
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), tokens / T);
	return sequence;
}

static void freed(uint64_t sequence)
{
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
}

static void text_check(uint64_t sequence, const uint32_t *ids, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++)
		assert_int_equal(*token_at(sequence, i), ids[i]);
}

/* Return the number of cached blocks of the text. */
static uint32_t there(const uint32_t *ids, uint32_t tokens)
{
	struct gpool_kv_prefix prefix = prefix_of(ids, tokens);

	return found_of(&prefix).blocks;
}

/* ---- sharing ---- */

static void test_shared(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_stats found;
	uint64_t first, second;

	(void)state;
	prefix_start(64, 0);
	assert_int_equal(there(ids, 100), 0);
	first = published(ids, 3 * T + 2);
	assert_int_equal(there(ids, 100), 3);
	second = published(ids, 4 * T + 1);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(block_at(first, i), block_at(second, i));
	/* A block that is not full is not shared. */
	assert_int_not_equal(block_at(first, 3), block_at(second, 3));
	text_check(first, ids, 0, 3 * T + 2);
	text_check(second, ids, 0, 4 * T + 1);
	found = statistics();
	assert_int_equal(found.used_blocks, 4 + 2);
	assert_int_equal(found.shared_blocks, 3);
	assert_int_equal(found.prefix_hits, 3);
	assert_int_equal(found.prefix_misses, 3 + 1);
	assert_int_equal(totals()->prefix_hits, 3);
	assert_int_equal(totals()->prefix_misses, 3 + 1);
	assert_int_equal(found.prefix_published, 4);
	assert_int_equal(found.block_copies, 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	assert_true(device_agrees(first) && device_agrees(second));
	/* Each sequence continues alone, and publishes its new blocks. */
	assert_int_equal(gpool_kv_append(kv, first, T - 2, NULL), 0);
	*token_at(first, 3 * T + 2) = *token_at(first, 3 * T + 3) = 77;
	text_check(second, ids, 0, 4 * T + 1);
	freed(first);
	text_check(second, ids, 0, 4 * T + 1);
}

static void test_exact_prefix_only(void **state)
{
	uint32_t ids[10 * T];
	struct gpool_kv_prefix prefix = prefix_of(ids, 10 * T);
	struct gpool_kv_prefix_found found;
	uint64_t sequence;

	(void)state;
	prefix_start(64, 0);
	memcpy(ids, text(1), sizeof(ids));
	sequence = published(ids, 10 * T);
	for (uint32_t i = 0; i <= 10 * T; i++)
		assert_int_equal(there(ids, i), i / T);
	for (uint32_t i = 0; i < 10 * T; i++) {
		ids[i] ^= 1;
		assert_int_equal(there(ids, 10 * T), i / T);
		ids[i] ^= 1;
	}
	prefix.salt[0] = 1;
	assert_int_equal(found_of(&prefix).blocks, 0);
	prefix.salt[0] = 0;
	prefix.salt[1] = 1;
	assert_int_equal(found_of(&prefix).blocks, 0);
	prefix.salt[1] = 0;
	prefix.adapter_id = 1;
	assert_int_equal(found_of(&prefix).blocks, 0);
	prefix.adapter_id = 0;
	found = found_of(&prefix);
	assert_int_equal(found.blocks, 10);
	assert_int_equal(found.cached_blocks, 0);
	freed(sequence);
	assert_int_equal(found_of(&prefix).cached_blocks, 10);
}

/* Sharing is limited to the tokens and the ids of the request. */
static void test_request_limits(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_prefix prefix = prefix_of(ids, 100);
	uint64_t sequence;
	uint32_t tokens;

	(void)state;
	prefix_start(64, 0);
	published(ids, 8 * T);
	assert_int_equal(try_allocate_prefix(2 * T + 1, &prefix, &sequence, &tokens), 0);
	assert_int_equal(tokens, 2 * T);
	assert_int_equal(info_of(sequence).blocks, 3);
	/* The last token must be computed, so its block is not shared. */
	prefix.count = 8 * T - 1;
	assert_int_equal(try_allocate_prefix(8 * T, &prefix, &sequence, &tokens), 0);
	assert_int_equal(tokens, 7 * T);
	assert_int_equal(info_of(sequence).shared_blocks, 7);
	prefix.count = 0;
	assert_int_equal(try_allocate_prefix(8 * T, &prefix, &sequence, NULL), 0);
	assert_int_equal(info_of(sequence).shared_blocks, 0);
}

/*
 * Two sequences compute the same tokens at the same time. The blocks published first are kept; the second sequence and
 * its fork switch to them.
 */
static void test_first_writer_wins(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_prefix prefix = prefix_of(ids, 3 * T + 1);
	uint64_t first = 0, second = 0, fork;
	int32_t kept;

	(void)state;
	prefix_start(64, 0);
	assert_int_equal(try_allocate_prefix(3 * T + 1, &prefix, &first, NULL), 0);
	assert_int_equal(try_allocate_prefix(3 * T + 1, &prefix, &second, NULL), 0);
	for (uint32_t i = 0; i < 3 * T + 1; i++)
		*token_at(first, i) = *token_at(second, i) = ids[i];
	fork = forked(second);
	assert_int_equal(statistics().used_blocks, 8);
	kept = block_at(first, 1);
	assert_int_equal(gpool_kv_prefix_publish(kv, first, &prefix), 3);
	assert_int_equal(gpool_kv_prefix_publish(kv, second, &prefix), 3);
	assert_int_equal(block_at(first, 1), kept);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(block_at(second, i), block_at(first, i));
		assert_int_equal(block_at(fork, i), block_at(first, i));
	}
	assert_int_equal(statistics().used_blocks, 5);
	assert_int_equal(statistics().shared_blocks, 4);
	assert_int_equal(statistics().prefix_switched, 3);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	assert_true(device_agrees(second) && device_agrees(fork));
	/* The last block of the fork is shared with the second sequence, and is copied as usual. */
	assert_int_equal(gpool_kv_append(kv, fork, 1, NULL), 0);
	settle();
	assert_int_not_equal(block_at(fork, 3), block_at(second, 3));
	text_check(fork, ids, 0, 3 * T + 1);
	freed(first);
	freed(second);
	text_check(fork, ids, 0, 3 * T + 1);
	assert_int_equal(statistics().cached_blocks, 0);
	freed(fork);
	assert_int_equal(statistics().cached_blocks, 3);
}

/* A publication continues after the blocks that were published last. The same holds for a fork. */
static void test_growing(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_prefix prefix = prefix_of(ids, 2 * T);
	uint32_t other[5 * T];
	uint64_t sequence, fork;

	(void)state;
	prefix_start(64, 0);
	sequence = published(ids, 2 * T);
	fork = forked(sequence);
	assert_int_equal(gpool_kv_append(kv, sequence, 2 * T + 1, NULL), 0);
	assert_int_equal(gpool_kv_append(kv, fork, 2 * T, NULL), 0);
	prefix.count = 4 * T;
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 4);
	memcpy(other, ids, sizeof(other));
	other[3 * T] ^= 1;
	prefix.ids = other;
	assert_int_equal(gpool_kv_prefix_publish(kv, fork, &prefix), 4);
	assert_int_equal(there(ids, 5 * T), 4);
	assert_int_equal(there(other, 5 * T), 4);
	assert_int_equal(block_at(fork, 2), block_at(sequence, 2));
	assert_int_not_equal(block_at(fork, 3), block_at(sequence, 3));
	assert_int_equal(statistics().prefix_published, 5);
	assert_int_equal(statistics().prefix_switched, 1);
	assert_int_equal(gpool_kv_prefix_publish(kv, fork, &prefix), 4);
	assert_int_equal(statistics().prefix_published, 5);
}

/* ---- cached blocks ---- */

static void test_found_after_its_end(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_stats found;
	uint64_t sequence;
	int32_t block;

	(void)state;
	prefix_start(64, 0);
	sequence = published(ids, 5 * T + 3);
	block = block_at(sequence, 4);
	freed(sequence);
	found = statistics();
	assert_int_equal(found.used_blocks, 0);
	assert_int_equal(found.cached_blocks, 5);
	assert_int_equal(found.free_blocks, 64);
	assert_int_equal(found.committed_chunks, 1);
	sequence = published(ids, 6 * T);
	assert_int_equal(block_at(sequence, 4), block);
	text_check(sequence, ids, 0, 6 * T);
	assert_int_equal(statistics().cached_blocks, 0);
	freed(sequence);
	assert_int_equal(statistics().cached_blocks, 6);
	assert_int_equal(gpool_kv_prefix_evict(kv, 2), 2);
	assert_int_equal(there(ids, 100), 4);
	assert_int_equal(gpool_kv_prefix_evict(kv, UINT32_MAX), 4);
	assert_int_equal(statistics().committed_chunks, 0);
	assert_int_equal(there(ids, 100), 0);
	assert_int_equal(gpool_kv_prefix_evict(kv, UINT32_MAX), 0);
}

/* The oldest text is evicted from its end, as far as needed. A text that is used again is no longer the oldest. */
static void test_evicted_in_order(void **state)
{
	const uint32_t *first = text(1), *second = text(2);
	uint64_t sequence;

	(void)state;
	prefix_start(16, 0);
	freed(published(first, 5 * T));
	freed(published(second, 5 * T));
	sequence = allocated(7 * T, 0, 0);
	assert_int_equal(there(first, 100), 4);
	assert_int_equal(there(second, 100), 5);
	freed(sequence);
	freed(published(first, 2 * T));
	sequence = allocated(12 * T, 0, 0);
	assert_int_equal(statistics().cached_blocks, 4);
	/*
	 * The first eviction removed the end of the first text, which was older than the second; later ones removed the
	 * end of the second.
	 */
	assert_int_equal(there(first, 100), 2);
	assert_int_equal(there(second, 100), 2);
	freed(sequence);
	assert_int_equal(statistics().prefix_evicted, 1 + 5);
	freed(allocated(16 * T, 0, 0));
	assert_int_equal(statistics().cached_blocks, 0);
}

/* The first blocks of a sequence are not evicted to make room for its other blocks. */
static void test_own_prefix_stays(void **state)
{
	const uint32_t *first = text(1), *second = text(2);
	uint64_t sequence;

	(void)state;
	prefix_start(16, 0);
	freed(published(first, 8 * T));
	freed(published(second, 8 * T));
	sequence = published(first, 12 * T);
	text_check(sequence, first, 0, 12 * T);
	assert_int_equal(there(second, 100), 4);
	assert_int_equal(statistics().used_blocks, 12);
}

/* Admission counts cached blocks as free, except those with which the sequence begins. Requirements: K10. */
static void test_admission(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_prefix prefix = prefix_of(ids, 16 * T);
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint64_t first, sequence;

	(void)state;
	prefix_start(16, 0);
	first = published(ids, 10 * T);
	assert_int_equal(try_allocate_prefix(16 * T, &prefix, &sequence, NULL), 0);
	freed(sequence);
	/* Without the cached blocks the sequence is too large. */
	assert_int_equal(try_allocate(16 * T, 0, 0, &sequence), -ENOSPC);
	prefix.count = 9 * T;
	assert_int_equal(try_allocate_prefix(16 * T, &prefix, &sequence, NULL), -ENOSPC);
	assert_int_equal(shortage().needed_blocks, 7);
	assert_int_equal(shortage().free_blocks, 6);
	freed(first);
	assert_int_equal(gpool_kv_can_allocate(kv, 16 * T, &need), GPOOL_KV_OK);
	assert_int_equal(need.available_blocks, 16);
	assert_int_equal(try_allocate_prefix(16 * T, &prefix, &sequence, NULL), 0);
}

static void test_limit(void **state)
{
	const uint32_t *ids = text(1), *second = text(2);

	(void)state;
	prefix_start(64, 3);
	freed(published(ids, 5 * T));
	assert_int_equal(statistics().cached_blocks, 3);
	assert_int_equal(there(ids, 100), 3);
	freed(published(second, 2 * T));
	assert_int_equal(statistics().cached_blocks, 3);
	assert_int_equal(there(ids, 100), 1);
	assert_int_equal(there(second, 100), 2);
}

/*
 * If the pool is short of pages, its free pages are used first, then cached blocks. A refused request evicts no block.
 */
static void test_pool_is_short(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_block block;
	struct gpool *other;
	uint64_t sequence, second;

	(void)state;
	prefix_start(0, 0);
	other = open_worker();
	block = alloc(other, PAGES - 4);
	freed(published(ids, 10 * T));
	assert_int_equal(statistics().available_blocks, 4 * CHUNK_BLOCKS);
	assert_int_equal(try_allocate(4 * CHUNK_BLOCKS * T + 1, 0, 0, &sequence), -ENOSPC);
	assert_int_equal(statistics().cached_blocks, 10);
	sequence = allocated(3 * CHUNK_BLOCKS * T, 0, 0);
	assert_int_equal(statistics().cached_blocks, CHUNK_BLOCKS);
	second = allocated((CHUNK_BLOCKS - 1) * T, 0, 0);
	assert_int_equal(there(ids, 100), 1);
	assert_int_equal(gpool_kv_append(kv, second, 1, NULL), 0);
	assert_int_equal(there(ids, 100), 0);
	assert_int_equal(gpool_kv_append(kv, second, T, NULL), -ENOSPC);
	freed(sequence);
	assert_int_equal(gpool_free(other, &block), 0);
	gpool_close(other);
}

/* ---- preemption, sleep and wake ---- */

/* Lookups find the blocks of a preempted sequence. A resumed sequence has other blocks until it publishes again. */
static void test_preempted(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_prefix prefix = prefix_of(ids, 4 * T);
	uint64_t sequence;
	int32_t block;

	(void)state;
	prefix_start(64, 0);
	sequence = published(ids, 4 * T + 1);
	block = block_at(sequence, 3);
	assert_int_equal(gpool_kv_preempt(kv, sequence, NULL), 5);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), -EAGAIN);
	assert_int_equal(statistics().cached_blocks, 4);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	assert_int_not_equal(block_at(sequence, 3), block);
	assert_int_equal(statistics().used_blocks, 5);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 4);
	assert_int_equal(block_at(sequence, 3), block);
	assert_int_equal(statistics().used_blocks, 5);
	assert_int_equal(statistics().cached_blocks, 0);
	text_check(sequence, ids, 0, 4 * T);
}

/*
 * The host memory copy of a preempted sequence is restored into its own blocks, whatever happened to the published
 * ones.
 */
static void test_offloaded(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_prefix prefix = prefix_of(ids, 4 * T);

	(void)state;
	prefix_start(64, 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 16 * BLOCK_BYTES), 0);
	for (uint32_t evict = 0; evict < 2; evict++) {
		uint64_t sequence = published(ids, 4 * T + 1);

		assert_int_equal(gpool_kv_offload(kv, sequence, 0, NULL), 5);
		assert_int_equal(statistics().cached_blocks, 4);
		settle();
		if (evict)
			assert_int_equal(gpool_kv_prefix_evict(kv, UINT32_MAX), 4);
		assert_int_equal(gpool_kv_resume(kv, sequence), 0);
		settle();
		text_check(sequence, ids, 0, 4 * T + 1);
		assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 4);
		assert_int_equal(statistics().cached_blocks, 0);
		assert_int_equal(statistics().used_blocks, 5);
		text_check(sequence, ids, 0, 4 * T + 1);
		freed(sequence);
	}
}

/* Discarded content is not found; kept content is found. */
static void test_sleep(void **state)
{
	const uint32_t *ids = text(1);
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(spilling);
	for (uint32_t keep = 0; keep < 2; keep++) {
		options = prefix_options(64);
		options.flags |= keep ? GPOOL_KV_KEEP : 0;
		assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
		freed(published(ids, 3 * T));
		sequence = published(ids, 2 * T);
		assert_int_equal(gpool_sleep(worker, 0), 0);
		assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
		assert_int_equal(there(ids, 100), keep ? 3 : 0);
		assert_int_equal(statistics().cached_blocks, keep);
		if (keep)
			text_check(sequence, ids, 0, 2 * T);
		/*
		 * Discarded content that was computed again is published again, from the first block. Kept blocks are
		 * still published.
		 */
		assert_int_equal(gpool_kv_prefix_publish(kv, sequence,
					 &(struct gpool_kv_prefix){.size = 48, .ids = ids, .count = 2 * T}),
			2);
		assert_int_equal(there(ids, 100), keep ? 3 : 2);
		freed(sequence);
		assert_int_equal(gpool_kv_destroy(kv), 0);
	}
}

/* ---- threads ---- */

struct hand {
	pthread_t thread;
	uint32_t index, rounds, errors, found;
};

/* Use texts that begin like those of other threads and end with tokens of this thread only. */
static void *hand_run(void *argument)
{
	struct hand *hand = argument;
	uint32_t ids[10 * T], state = hand->index;

	for (uint32_t round = 0; round < hand->rounds; round++) {
		uint32_t same = (state = state * 1103515245 + 12345) >> 16 & 31, found;
		struct gpool_kv_prefix prefix;
		uint64_t sequence, fork;

		for (uint32_t i = 0; i < 10 * T; i++)
			ids[i] = i < same ? i : hand->index << 16 | i;
		prefix = prefix_of(ids, 8 * T);
		if (try_allocate_prefix(8 * T, &prefix, &sequence, &found)) {
			hand->errors++;
			break;
		}
		hand->found += found;
		for (uint32_t i = 0; i < found; i++)
			hand->errors += *token_at(sequence, i) != ids[i];
		for (uint32_t i = found; i < 8 * T; i++)
			*token_at(sequence, i) = ids[i];
		hand->errors += gpool_kv_prefix_publish(kv, sequence, &prefix) != 8;
		hand->errors += gpool_kv_fork(kv, sequence, &fork) || gpool_kv_append(kv, fork, 2 * T, NULL);
		for (uint32_t i = 8 * T; i < 10 * T; i++)
			*token_at(fork, i) = ids[i];
		hand->errors += gpool_kv_free(kv, sequence) != 0;
		prefix.count = 10 * T;
		hand->errors += gpool_kv_prefix_publish(kv, fork, &prefix) != 10;
		for (uint32_t i = 0; i < 10 * T; i++)
			hand->errors += *token_at(fork, i) != ids[i];
		hand->errors += round % 8 == 0 && gpool_kv_sync(kv);
		hand->errors += gpool_kv_free(kv, fork) || (round % 16 == 0 && gpool_kv_prefix_evict(kv, 8) < 0);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct hand hands[THREADS] = {{0}};
	uint32_t found = 0;

	(void)state;
	prefix_start(96, 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		hands[i] = (struct hand){.index = i + 1, .rounds = test_scaled(2000)};
		assert_int_equal(pthread_create(&hands[i].thread, NULL, hand_run, &hands[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(hands[i].thread, NULL);
		assert_int_equal(hands[i].errors, 0);
		found += hands[i].found;
	}
	assert_true(found);
	assert_int_equal(statistics().used_blocks, 0);
	assert_true(statistics().prefix_evicted);
}

/* ---- invalid arguments ---- */

static void test_wrong(void **state)
{
	const uint32_t *ids = text(1), *other = text(2);
	struct gpool_kv_prefix prefix = prefix_of(ids, 2 * T), good = prefix;
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence, second;

	(void)state;
	prefix_start(64, 0);
	sequence = published(ids, 2 * T);
	for (int i = 0; i < 4; i++) {
		prefix = good;
		prefix.flags = i == 0;
		prefix.reserved = i == 1;
		prefix.ids = i == 2 ? NULL : ids;
		prefix.size = i == 3 ? 2 : sizeof(prefix);
		assert_int_equal(gpool_kv_prefix_find(kv, &prefix, &found), -EINVAL);
		assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), -EINVAL);
		assert_int_equal(gpool_kv_prefix_allocate(kv, &request, &prefix, &second, NULL), -EINVAL);
	}
	request.flags = 1u << 31;
	assert_int_equal(gpool_kv_prefix_allocate(kv, &request, &good, &second, NULL), -EINVAL);
	/*
	 * Each of these is refused: more ids than the sequence has tokens; for a fork, ids that differ from those that
	 * its parent published; a different salt.
	 */
	prefix = prefix_of(ids, 2 * T + 1);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), -EINVAL);
	assert_int_equal(gpool_kv_append(kv, sequence, T, NULL), 0);
	second = forked(sequence);
	prefix = prefix_of(ids, 3 * T);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 3);
	prefix.ids = other;
	assert_int_equal(gpool_kv_prefix_publish(kv, second, &prefix), -EINVAL);
	prefix.ids = ids;
	prefix.salt[0] = 1;
	assert_int_equal(gpool_kv_prefix_publish(kv, second, &prefix), -EINVAL);
	prefix.salt[0] = 0;
	assert_int_equal(gpool_kv_prefix_publish(kv, second, &prefix), 3);
	assert_int_equal(gpool_kv_prefix_publish(kv, 0, &good), -EINVAL);
	freed(second);
	assert_int_equal(gpool_kv_prefix_publish(kv, second, &good), -ESTALE);
	assert_true(prefix_check(kv));
}

/* A published block cannot be written, whether it is in use or cached. A cached block cannot be read. */
static void test_published_are_not_written(void **state)
{
	struct gpool_kv_shape shape = SMALL;
	const uint32_t *ids = text(1);
	struct gpool_kv_pair pair;
	uint64_t first, second;

	(void)state;
	prefix_start(64, 0);
	first = published(ids, T);
	second = allocated(T, 0, 0);
	pair = (struct gpool_kv_pair){block_at(second, 0), block_at(first, 0)};
	assert_int_equal(gpool_kv_copy_blocks(kv, &pair, 1), -EINVAL);
	freed(first);
	assert_int_equal(gpool_kv_copy_blocks(kv, &pair, 1), -EINVAL);
	assert_int_equal(gpool_kv_validate(kv, second, pair.to, &shape), -ESTALE);
	pair = (struct gpool_kv_pair){pair.to, pair.from};
	assert_int_equal(gpool_kv_copy_blocks(kv, &pair, 1), -EINVAL);
}

static void test_not_asked_for(void **state)
{
	const uint32_t ids[T] = {0};
	struct gpool_kv_prefix prefix = prefix_of(ids, T);
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	uint64_t sequence;

	(void)state;
	kv_start(calm, 64);
	sequence = allocated(T, 0, 0);
	assert_int_equal(gpool_kv_prefix_find(kv, &prefix, &found), -EOPNOTSUPP);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), -EOPNOTSUPP);
	assert_int_equal(try_allocate_prefix(T, &prefix, &sequence, NULL), -EOPNOTSUPP);
	assert_int_equal(gpool_kv_prefix_evict(kv, 1), -EOPNOTSUPP);
}

/* ---- the radix tree ---- */

enum { NODES = 16, NODE_BLOCKS = 64 };

static struct gpool_kv_prefix_node nodes[NODES];
static uint32_t node_of[NODE_BLOCKS], node_count;

static void tree_read(void)
{
	int count = gpool_kv_prefix_tree(kv, nodes, NODES, node_of);
	uint32_t blocks = 0, listed = 0;

	assert_true(count >= 0 && count <= NODES);
	node_count = (uint32_t)count;
	assert_int_equal(gpool_kv_prefix_tree(kv, NULL, 0, NULL), count);
	for (uint32_t block = 0; block < NODE_BLOCKS; block++) {
		assert_true(node_of[block] == UINT32_MAX || node_of[block] < node_count);
		listed += node_of[block] != UINT32_MAX;
	}
	for (uint32_t i = 0; i < node_count; i++) {
		uint32_t children = 0;

		blocks += nodes[i].blocks;
		assert_int_equal(node_of[nodes[i].last_block], i);
		assert_true(nodes[i].parent == UINT32_MAX || nodes[i].parent < i);
		if (nodes[i].parent != UINT32_MAX)
			assert_int_equal(nodes[i].first_token,
				nodes[nodes[i].parent].first_token + nodes[nodes[i].parent].blocks * T);
		else
			assert_int_equal(nodes[i].first_token, 0);
		for (uint32_t other = 0; other < node_count; other++)
			children += nodes[other].parent == i;
		assert_int_equal(nodes[i].children, children);
	}
	assert_int_equal(blocks, listed);
}

/* Find the node of the longest published beginning of a text. */
static const struct gpool_kv_prefix_node *node_of_text(const uint32_t *ids, uint32_t tokens)
{
	struct gpool_kv_prefix prefix = prefix_of(ids, tokens);
	struct gpool_kv_prefix_found found = found_of(&prefix);

	if (!found.blocks) {
		assert_int_equal(found.last_block, -1);
		return NULL;
	}
	return &nodes[node_of[found.last_block]];
}

/* Two texts with a common beginning, one of which another sequence continues. Requirements: K17. */
static void test_tree(void **state)
{
	uint32_t left[12 * T], right[12 * T];
	struct gpool_kv_prefix_node part[1];
	const struct gpool_kv_prefix_node *node;
	uint64_t first, second, third, key;

	(void)state;
	prefix_start(64, 0);
	tree_read();
	assert_int_equal(node_count, 0);
	memcpy(left, text(1), sizeof(left));
	memcpy(right, left, sizeof(right));
	memcpy(right + 4 * T, text(2), 8 * T * sizeof(*right));
	first = published(left, 8 * T);
	tree_read();
	assert_int_equal(node_count, 1);
	assert_int_equal(nodes[0].blocks, 8);
	assert_int_equal(nodes[0].sequences, 1);
	assert_int_equal(nodes[0].pooled, 0);
	assert_int_equal(nodes[0].last_block, block_at(first, 7));
	/* The second text splits the node: 4 common blocks, then 4 and 6. */
	second = published(right, 10 * T + 1);
	tree_read();
	assert_int_equal(node_count, 3);
	assert_int_equal(nodes[0].blocks, 4);
	assert_int_equal(nodes[0].children, 2);
	assert_int_equal(nodes[0].sequences, 2);
	assert_int_equal(nodes[0].first_token, 0);
	key = nodes[0].key[0];
	node = node_of_text(left, 12 * T);
	assert_int_equal(node->blocks, 4);
	assert_int_equal(node->parent, 0);
	assert_int_equal(node->sequences, 1);
	assert_int_equal(node->last_block, block_at(first, 7));
	node = node_of_text(right, 12 * T);
	assert_int_equal(node->blocks, 6);
	assert_int_equal(node->first_token, 4 * T);
	assert_ptr_equal(node_of_text(left, 3 * T), &nodes[0]);
	assert_null(node_of_text(text(3), 4 * T));
	/* All blocks of a sequence's table are in the nodes that lead to its last one. */
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(node_of[block_at(second, i)], i < 4 ? 0 : node - nodes);
	assert_int_equal(node_of[block_at(second, 10)], UINT32_MAX);
	/* A sequence that repeats a part of the first text splits its node, since more sequences use that part. */
	third = published(left, 6 * T);
	tree_read();
	assert_int_equal(node_count, 4);
	node = node_of_text(left, 12 * T);
	assert_int_equal(node->blocks, 2);
	assert_int_equal(node->sequences, 1);
	assert_int_equal(nodes[node->parent].blocks, 2);
	assert_int_equal(nodes[node->parent].sequences, 2);
	assert_int_equal(nodes[0].sequences, 3);
	/* Only as many nodes as fit are written. */
	part[0].blocks = 77;
	assert_int_equal(gpool_kv_prefix_tree(kv, part, 1, node_of), 4);
	assert_int_equal(part[0].blocks, 4);
	assert_int_equal(part[0].children, 0); /* those that are not written are not counted */
	/* Cached blocks have no sequence. */
	assert_int_equal(gpool_kv_free(kv, third), 0);
	assert_int_equal(gpool_kv_free(kv, first), 0);
	tree_read();
	assert_int_equal(node_count, 3);
	node = node_of_text(left, 12 * T);
	assert_int_equal(node->blocks, 4);
	assert_int_equal(node->sequences, 0);
	assert_int_equal(nodes[0].sequences, 1);
	assert_true(nodes[0].key[0] == key);
	/* The common beginning and the end that is left are one node again, when the other end is evicted. */
	assert_int_equal(gpool_kv_prefix_evict(kv, 4), 4);
	tree_read();
	assert_int_equal(node_count, 1);
	assert_int_equal(nodes[0].blocks, 10);
	assert_int_equal(gpool_kv_free(kv, second), 0);
	assert_int_equal(gpool_kv_prefix_evict(kv, UINT32_MAX), 10);
	tree_read();
	assert_int_equal(node_count, 0);
	assert_int_equal(gpool_kv_prefix_tree(kv, NULL, 1, NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_tree, kv_stop),
		cmocka_unit_test_teardown(test_shared, kv_stop),
		cmocka_unit_test_teardown(test_exact_prefix_only, kv_stop),
		cmocka_unit_test_teardown(test_request_limits, kv_stop),
		cmocka_unit_test_teardown(test_first_writer_wins, kv_stop),
		cmocka_unit_test_teardown(test_growing, kv_stop),
		cmocka_unit_test_teardown(test_found_after_its_end, kv_stop),
		cmocka_unit_test_teardown(test_evicted_in_order, kv_stop),
		cmocka_unit_test_teardown(test_own_prefix_stays, kv_stop),
		cmocka_unit_test_teardown(test_admission, kv_stop),
		cmocka_unit_test_teardown(test_limit, kv_stop),
		cmocka_unit_test_teardown(test_pool_is_short, kv_stop),
		cmocka_unit_test_teardown(test_preempted, kv_stop),
		cmocka_unit_test_teardown(test_offloaded, kv_stop),
		cmocka_unit_test_teardown(test_sleep, kv_stop),
		cmocka_unit_test_teardown(test_threads, kv_stop),
		cmocka_unit_test_teardown(test_wrong, kv_stop),
		cmocka_unit_test_teardown(test_published_are_not_written, kv_stop),
		cmocka_unit_test_teardown(test_not_asked_for, kv_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
