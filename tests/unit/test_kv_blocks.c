/*
 * test_kv_blocks.c - the block numbers of a KV cache: sets with a lowest member, and blocks in chunks.
 *
 * Goal: the lowest member and the next one are correct at all sizes and at word boundaries. Blocks are in use, cached,
 * free or in a hole; chunks are held, offered or holes; and the counts agree.
 *
 * Method: edge cases, and random steps compared with plain arrays.
 *
 * Requirements: K5.
 */
#include "client/kv/block_pool.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t steps(void)
{
	seed_begin();
	return test_scaled(100000);
}

/* ---- sets ---- */

static void test_one_member(void **state)
{
	static const uint32_t sizes[] = {1, 2, 63, 64, 65, 4095, 4096, 4097, 262144, 262145, BITMAP_BITS_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		const uint32_t members[] = {0, sizes[i] / 2, sizes[i] - 1};
		struct bitmap bitmap;

		assert_int_equal(bitmap_init(&bitmap, sizes[i]), 0);
		assert_int_equal(bitmap_lowest(&bitmap), BITMAP_NONE);
		assert_int_equal(bitmap_next(&bitmap, sizes[i]), BITMAP_NONE);
		for (int j = 0; j < 3; j++) {
			bitmap_add(&bitmap, members[j]);
			assert_int_equal(bitmap_lowest(&bitmap), members[j]);
			assert_int_equal(bitmap_next(&bitmap, 0), members[j]);
			assert_int_equal(bitmap_next(&bitmap, members[j]), members[j]);
			assert_int_equal(bitmap_next(&bitmap, members[j] + 1), BITMAP_NONE);
			bitmap_remove(&bitmap, members[j]);
			assert_int_equal(bitmap.count, 0);
		}
		bitmap_fini(&bitmap);
	}
}

static void test_random_members(void **state)
{
	enum { BITS = 5000 };
	static bool has[BITS + 1];
	struct bitmap bitmap;
	uint32_t count = steps();

	(void)state;
	memset(has, 0, sizeof(has));
	assert_int_equal(bitmap_init(&bitmap, BITS), 0);
	for (uint32_t step = 0; step < count; step++) {
		/* Alternate between dense and sparse sets. */
		uint32_t bit = any(step / 4096 % 2 ? BITS : 70), from = any(BITS + 1), next = from;

		if (has[bit])
			bitmap_remove(&bitmap, bit);
		else
			bitmap_add(&bitmap, bit);
		has[bit] = !has[bit];
		while (next < BITS && !has[next])
			next++;
		assert_int_equal(bitmap_next(&bitmap, from), next < BITS ? next : BITMAP_NONE);
		for (next = 0; next < BITS && !has[next];)
			next++;
		assert_int_equal(bitmap_lowest(&bitmap), next < BITS ? next : BITMAP_NONE);
	}
	bitmap_fini(&bitmap);
}

/* ---- blocks ---- */

enum { CHUNKS = 9, PER_CHUNK = 7, BLOCKS = CHUNKS * PER_CHUNK };

struct model {
	uint32_t refs[BLOCKS];
	bool cached[BLOCKS], committed[CHUNKS], withheld[CHUNKS], offered[CHUNKS];
};

static bool is_free(const struct model *model, uint32_t block)
{
	return model->committed[block / PER_CHUNK] && !model->refs[block] && !model->cached[block];
}

static void check(const struct block_pool *pool, const struct model *model)
{
	uint32_t used = 0, shared = 0, held_free = 0, offered_free = 0, holes = 0, empty = 0, cached = 0;

	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
		bool committed = model->committed[chunk], offered = model->offered[chunk];
		uint32_t in_use = 0, kept = 0;

		for (uint32_t i = chunk * PER_CHUNK; i < (chunk + 1) * PER_CHUNK; i++) {
			assert_int_equal(pool->refs[i], model->refs[i]);
			assert_int_equal(bitmap_has(&pool->free, i), is_free(model, i) && !offered);
			assert_int_equal(bitmap_has(&pool->offered_free, i), is_free(model, i) && offered);
			in_use += model->refs[i] != 0;
			kept += model->refs[i] || model->cached[i];
			cached += model->cached[i];
			shared += model->refs[i] > 1;
		}
		used += in_use;
		*(offered ? &offered_free : &held_free) += committed ? PER_CHUNK - kept : 0;
		holes += !committed && !model->withheld[chunk];
		empty += committed && !kept && !offered;
		assert_int_equal(bitmap_has(&pool->holes, chunk), !committed && !model->withheld[chunk]);
		assert_int_equal(bitmap_has(&pool->empty, chunk), committed && !kept && !offered);
		assert_int_equal(bitmap_has(&pool->unused, chunk), committed && kept && !in_use && !offered);
		assert_int_equal(bitmap_has(&pool->offered, chunk), offered);
		assert_int_equal(bitmap_has(&pool->spent, chunk), offered && !kept);
		assert_int_equal(bitmap_has(&pool->room, chunk), offered && kept && kept < PER_CHUNK);
	}
	assert_int_equal(pool->used_blocks, used);
	assert_int_equal(pool->shared_blocks, shared);
	assert_int_equal(pool->cached_blocks, cached);
	assert_int_equal(pool->free.count, held_free);
	assert_int_equal(pool->offered_free.count, offered_free);
	assert_int_equal(pool->holes.count, holes);
	assert_int_equal(pool->empty.count, empty);
}

static void take(struct block_pool *pool, struct model *model)
{
	uint32_t lowest = 0, most = 1 + any(2 * PER_CHUNK), count, run = 1;

	while (lowest < BLOCKS && (!is_free(model, lowest) || model->offered[lowest / PER_CHUNK]))
		lowest++;
	assert_int_equal(block_pool_short(pool, 1), lowest == BLOCKS);
	assert_int_equal(block_pool_short(pool, pool->free.count + 1), 1);
	assert_int_equal(block_pool_short(pool, pool->free.count + PER_CHUNK), 1);
	assert_int_equal(block_pool_short(pool, pool->free.count + PER_CHUNK + 1), 2);
	if (lowest == BLOCKS)
		return;
	while (run < most && (lowest + run) % PER_CHUNK && is_free(model, lowest + run))
		run++;
	assert_int_equal(block_pool_take(pool, most, &count), lowest);
	assert_int_equal(count, run);
	for (uint32_t i = 0; i < run; i++)
		model->refs[lowest + i] = 1;
}

static void reclaim(struct block_pool *pool, struct model *model, uint32_t chunk)
{
	if (!model->offered[chunk])
		return;
	block_pool_reclaim(pool, chunk);
	model->offered[chunk] = false;
}

static void random_block(struct block_pool *pool, struct model *model)
{
	uint32_t block = any(BLOCKS);
	bool keep = any(2);

	if (!model->refs[block] && !model->cached[block])
		return;
	if (any(3) == 0) {
		reclaim(pool, model, block / PER_CHUNK);
		assert_int_equal(block_pool_ref(pool, block), model->cached[block]);
		model->refs[block]++;
		model->cached[block] = false;
	} else if (model->cached[block]) {
		block_pool_drop(pool, block);
		model->cached[block] = false;
	} else {
		model->refs[block]--;
		model->cached[block] = keep && !model->refs[block];
		assert_int_equal(block_pool_unref(pool, block, keep), model->refs[block] == 0);
	}
}

static void random_chunk(struct block_pool *pool, struct model *model)
{
	uint32_t chunk = any(CHUNKS);

	if (model->withheld[chunk]) {
		block_pool_return(pool, chunk);
		model->withheld[chunk] = false;
	} else if (bitmap_has(&pool->unused, chunk)) {
		block_pool_offer(pool, chunk);
		model->offered[chunk] = true;
	} else if (bitmap_has(&pool->spent, chunk) && any(2)) {
		block_pool_lose(pool, chunk);
		model->committed[chunk] = model->offered[chunk] = false;
	} else if (model->offered[chunk]) {
		reclaim(pool, model, chunk);
	} else if (!model->committed[chunk]) {
		block_pool_fill(pool, chunk);
		model->committed[chunk] = true;
	} else if (bitmap_has(&pool->empty, chunk) && any(2)) {
		block_pool_drain(pool, chunk);
		model->committed[chunk] = false;
	} else if (bitmap_has(&pool->empty, chunk)) {
		block_pool_withhold(pool, chunk);
		model->committed[chunk] = false;
		model->withheld[chunk] = true;
	}
}

/* Take all blocks of the lowest empty chunk. */
static void take_chunk(struct block_pool *pool, struct model *model)
{
	uint32_t chunk = 0;

	while (chunk < CHUNKS && !bitmap_has(&pool->empty, chunk))
		chunk++;
	if (chunk == CHUNKS)
		return;
	assert_int_equal(block_pool_take_chunk(pool), chunk * PER_CHUNK);
	for (uint32_t i = 0; i < PER_CHUNK; i++)
		model->refs[chunk * PER_CHUNK + i] = 1;
}

static void test_random_blocks(void **state)
{
	struct model model = {{0}, {0}, {0}, {0}, {0}};
	struct block_pool pool;
	uint32_t count = steps();

	(void)state;
	assert_int_equal(block_pool_init(&pool, CHUNKS, PER_CHUNK), 0);
	for (uint32_t step = 0; step < count; step++) {
		uint32_t which = any(40);

		/* Alternate between mostly full and mostly offered chunks. */
		if (which < (step / 1000 % 2 ? 15 : 5))
			take(&pool, &model);
		else if (which < 32)
			random_block(&pool, &model);
		else if (which < 39)
			random_chunk(&pool, &model);
		else
			take_chunk(&pool, &model);
		check(&pool, &model);
	}
	block_pool_fini(&pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_member),
		cmocka_unit_test(test_random_members),
		cmocka_unit_test(test_random_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
