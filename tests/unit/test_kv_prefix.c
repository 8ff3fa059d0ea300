/*
 * test_kv_prefix.c - keys of blocks, the table from keys to blocks, and the order in which cached blocks are evicted.
 *
 * Goal: a key depends on everything that determines keys and values, including the order of tokens, and on nothing
 * else. The table finds exactly its entries, even if their keys collide.
 *
 * Method: keys that differ in one property, and random steps compared with plain arrays, with keys that use a few
 * places of the table.
 *
 * Requirements: K7.
 */
#include "client/kv/block_lru.h"
#include "client/kv/prefix_table.h"
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
	return test_scaled(50000);
}

/* ---- keys ---- */

enum { TOKENS = 16 };

static const struct prefix_identity plain = {.model = {1, 2, 3},
	.layers = 4,
	.kv_heads = 2,
	.head_size = 64,
	.dtype_bytes = 2,
	.block_tokens = TOKENS,
	.salt = {7, 8}};

static void test_same_parts_same_key(void **state)
{
	const uint32_t ids[TOKENS] = {5, 6, 7};
	struct prefix_identity copy = plain;
	uint32_t moved[TOKENS + 1];

	(void)state;
	memcpy(moved + 1, ids, sizeof(ids));
	assert_true(prefix_key_same(prefix_key_root(&plain), prefix_key_root(&copy)));
	assert_true(prefix_key_same(prefix_key_next(prefix_key_root(&plain), ids, TOKENS),
		prefix_key_next(prefix_key_root(&copy), moved + 1, TOKENS)));
}

/* Every byte of the identity changes the root, and with it the keys. */
static void test_each_part_of_identity_counts(void **state)
{
	const uint32_t ids[TOKENS] = {0};
	struct prefix_key root = prefix_key_root(&plain), first = prefix_key_next(root, ids, TOKENS);

	(void)state;
	for (size_t i = 0; i < sizeof(plain); i++) {
		struct prefix_identity other = plain;

		((uint8_t *)&other)[i] ^= 1;
		assert_false(prefix_key_same(prefix_key_root(&other), root));
		assert_false(prefix_key_same(prefix_key_next(prefix_key_root(&other), ids, TOKENS), first));
	}
}

static void test_each_token_and_its_place_count(void **state)
{
	struct prefix_key root = prefix_key_root(&plain), key;
	uint32_t ids[TOKENS], other[TOKENS];

	(void)state;
	for (uint32_t i = 0; i < TOKENS; i++)
		ids[i] = 100 + i;
	key = prefix_key_next(root, ids, TOKENS);
	for (uint32_t i = 0; i < TOKENS; i++) {
		memcpy(other, ids, sizeof(ids));
		other[i]++;
		assert_false(prefix_key_same(prefix_key_next(root, other, TOKENS), key));
		memcpy(other, ids, sizeof(ids));
		other[i] = ids[(i + 1) % TOKENS];
		other[(i + 1) % TOKENS] = ids[i];
		assert_false(prefix_key_same(prefix_key_next(root, other, TOKENS), key));
	}
}

/* The same block elsewhere in a text has another key, and so has a block that follows two exchanged blocks. */
static void test_order_of_blocks_counts(void **state)
{
	const uint32_t a[TOKENS] = {1}, b[TOKENS] = {2};
	struct prefix_key root = prefix_key_root(&plain), first = prefix_key_next(root, a, TOKENS);
	struct prefix_key a_b = prefix_key_next(first, b, TOKENS),
			  b_a = prefix_key_next(prefix_key_next(root, b, TOKENS), a, TOKENS);

	(void)state;
	assert_false(prefix_key_same(prefix_key_next(first, a, TOKENS), first));
	assert_false(prefix_key_same(a_b, b_a));
	assert_false(prefix_key_same(b_a, first));
	assert_false(prefix_key_same(prefix_key_next(root, b, TOKENS), a_b));
}

static void test_longest_block(void **state)
{
	static uint32_t ids[PREFIX_BLOCK_TOKENS_MAX];
	struct prefix_key root = prefix_key_root(&plain), key = prefix_key_next(root, ids, PREFIX_BLOCK_TOKENS_MAX);

	(void)state;
	ids[PREFIX_BLOCK_TOKENS_MAX - 1] = 1;
	assert_false(prefix_key_same(prefix_key_next(root, ids, PREFIX_BLOCK_TOKENS_MAX), key));
}

/* ---- the table ---- */

enum { BLOCKS = 40, KEYS = 120 };

struct model {
	struct prefix_key keys[KEYS];
	uint32_t block[KEYS];    /* the block with the key, or PREFIX_NONE */
	uint32_t parent[BLOCKS]; /* PREFIX_NO_KEY: the block has no key */
};

static uint32_t children(const struct model *model, uint32_t block)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < BLOCKS; i++)
		count += model->parent[i] == block;
	return count;
}

static void table_check(const struct prefix_table *table, const struct model *model)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < KEYS; i++)
		assert_int_equal(prefix_table_find(table, model->keys[i]), model->block[i]);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(prefix_table_has(table, i), model->parent[i] != PREFIX_NO_KEY);
		count += model->parent[i] != PREFIX_NO_KEY;
		if (model->parent[i] == PREFIX_NO_KEY)
			continue;
		assert_int_equal(table->entries[i].parent, model->parent[i]);
		assert_int_equal(table->entries[i].children, children(model, i));
	}
	assert_int_equal(table->count, count);
	assert_true(prefix_table_check(table));
}

static void step_add(struct prefix_table *table, struct model *model)
{
	uint32_t key = any(KEYS), block = any(BLOCKS), parent = any(BLOCKS);

	if (model->block[key] != PREFIX_NONE || model->parent[block] != PREFIX_NO_KEY)
		return;
	if (model->parent[parent] == PREFIX_NO_KEY)
		parent = PREFIX_NONE;
	prefix_table_add(table, block, model->keys[key], parent);
	model->block[key] = block;
	model->parent[block] = parent;
}

static void step_remove(struct prefix_table *table, struct model *model)
{
	uint32_t key = any(KEYS), block = model->block[key];

	if (block == PREFIX_NONE || children(model, block))
		return;
	prefix_table_remove(table, block);
	model->block[key] = PREFIX_NONE;
	model->parent[block] = PREFIX_NO_KEY;
}

/* Move a block to any block without a key. The hint is a child, or not. */
static void step_move(struct prefix_table *table, struct model *model)
{
	uint32_t key = any(KEYS), from = model->block[key], to = any(BLOCKS), child = any(2 * BLOCKS);

	if (from == PREFIX_NONE || model->parent[to] != PREFIX_NO_KEY)
		return;
	prefix_table_move(table, from, to, child);
	model->block[key] = to;
	model->parent[to] = model->parent[from];
	model->parent[from] = PREFIX_NO_KEY;
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (model->parent[i] == from)
			model->parent[i] = to;
}

static void model_clear(struct model *model)
{
	for (uint32_t i = 0; i < KEYS; i++)
		model->block[i] = PREFIX_NONE;
	for (uint32_t i = 0; i < BLOCKS; i++)
		model->parent[i] = PREFIX_NO_KEY;
}

/*
 * Make keys of which many begin at one place, around the end of the table, and some differ only in bits that slots do
 * not store.
 */
static void crowd(struct model *model)
{
	for (uint32_t i = 0; i < KEYS; i++)
		model->keys[i] = (struct prefix_key){.low = (uint64_t)(i % 7) << 40 | (0u - i % 5), .high = i / 3};
}

static void test_random_table(void **state)
{
	static struct model model;
	struct prefix_table table;
	uint32_t count = steps();

	(void)state;
	crowd(&model);
	model_clear(&model);
	assert_int_equal(prefix_table_init(&table, BLOCKS), 0);
	for (uint32_t step = 0; step < count; step++) {
		uint32_t which = any(7);

		if (which < 3)
			step_add(&table, &model);
		else if (which < 6)
			step_remove(&table, &model);
		else
			step_move(&table, &model);
		if (step % 5000 == 4999) {
			prefix_table_clear(&table);
			model_clear(&model);
		}
		table_check(&table, &model);
	}
	prefix_table_fini(&table);
}

static void test_table_of_none(void **state)
{
	struct prefix_table table = {NULL};

	(void)state;
	assert_false(prefix_table_has(&table, 0));
	prefix_table_fini(&table);
}

static void test_check_finds_damage(void **state)
{
	struct prefix_table table;

	(void)state;
	assert_int_equal(prefix_table_init(&table, BLOCKS), 0);
	prefix_table_add(&table, 3, (struct prefix_key){1, 1}, PREFIX_NONE);
	prefix_table_add(&table, 4, (struct prefix_key){2, 1}, 3);
	assert_true(prefix_table_check(&table));
	table.entries[3].children = 2;
	assert_false(prefix_table_check(&table));
	table.entries[3].children = 1;
	table.entries[4].key.high = 2;
	assert_true(prefix_table_check(&table)); /* slots do not store these bits: the block has another key */
	table.entries[4].key.low = 9;
	assert_false(prefix_table_check(&table));
	prefix_table_fini(&table);
}

/* ---- the order of cached blocks ---- */

static void test_random_order(void **state)
{
	uint32_t order[BLOCKS], in_it = 0, count = steps();
	struct block_lru lru;

	(void)state;
	assert_int_equal(block_lru_init(&lru, BLOCKS), 0);
	for (uint32_t step = 0; step < count; step++) {
		uint32_t block = any(BLOCKS), at = 0;

		while (at < in_it && order[at] != block)
			at++;
		if (at < in_it) {
			block_lru_remove(&lru, block);
			memmove(&order[at], &order[at + 1], (--in_it - at) * sizeof(*order));
		} else {
			block_lru_add(&lru, block);
			order[in_it++] = block;
		}
		assert_int_equal(block_lru_first(&lru), in_it ? order[0] : BLOCK_LRU_NONE);
	}
	while (in_it) {
		assert_int_equal(block_lru_first(&lru), order[0]);
		block_lru_remove(&lru, order[0]);
		memmove(&order[0], &order[1], --in_it * sizeof(*order));
	}
	assert_int_equal(block_lru_first(&lru), BLOCK_LRU_NONE);
	block_lru_fini(&lru);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_parts_same_key),
		cmocka_unit_test(test_each_part_of_identity_counts),
		cmocka_unit_test(test_each_token_and_its_place_count),
		cmocka_unit_test(test_order_of_blocks_counts),
		cmocka_unit_test(test_longest_block),
		cmocka_unit_test(test_random_table),
		cmocka_unit_test(test_table_of_none),
		cmocka_unit_test(test_check_finds_damage),
		cmocka_unit_test(test_random_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
