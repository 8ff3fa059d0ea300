/*
 * test_sharing_blocks.c - the sharing matrix (sharing.h) for blocks, spans, scopes and two-phase allocations.
 *
 * Goal: pages that are unpinned or freed are available to another process as soon as the GPU work that uses them has
 * ended, whatever the state of their owner. Pinned pages are available only after its death. Content that was not taken
 * is kept byte for byte, and content that was taken is reported as stale. Method: see sharing.h.
 *
 * Requirements: U9, U17.
 */
#include "tests/integration/sharing.h"

static const char *const arguments[] = {"--pool", POOL, CALM, NULL};

/* ---- blocks ---- */

static uint64_t block_address(struct owner *owner, uint32_t i)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(owner->pool, &owner->blocks[i], &address), 0);
	return address;
}

static void blocks_alloc(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		owner->blocks[i] = alloc(owner->pool, 1);
		page_write(block_address(owner, i), i);
	}
}

static void blocks_pin(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_pin(owner->pool, &owner->blocks[i]), 0);
}

/* Allocate blocks with two pins: one for each of two streams. */
static void blocks_alloc_for_two(struct owner *owner)
{
	blocks_alloc(owner);
	blocks_pin(owner);
}

/* Allocate one block of all pages. */
static void block_alloc_whole(struct owner *owner)
{
	owner->blocks[0] = alloc(owner->pool, UNITS);
	for (uint32_t i = 0; i < UNITS; i++)
		page_write(block_address(owner, 0) + (uint64_t)i * PAGE_BYTES, i);
}

static void blocks_unpin(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_unpin(owner->pool, &owner->blocks[i]), 0);
}

static void blocks_unpin_after(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_unpin_after(owner->pool, &owner->blocks[i], owner->fence), 0);
}

static void block_unpin_whole_after(struct owner *owner)
{
	assert_int_equal(gpool_unpin_after(owner->pool, &owner->blocks[0], owner->fence), 0);
}

static void blocks_unpin_after_two(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		for (int stream = 0; stream < 2; stream++)
			assert_int_equal(gpool_unpin_after(owner->pool, &owner->blocks[i], owner->fences[stream]), 0);
}

static void blocks_free(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_free(owner->pool, &owner->blocks[i]), 0);
}

static void blocks_free_after(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_free_after(owner->pool, &owner->blocks[i], owner->fence), 0);
}

static void block_free_whole_after(struct owner *owner)
{
	assert_int_equal(gpool_free_after(owner->pool, &owner->blocks[0], owner->fence), 0);
}

static void blocks_free_after_two(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		assert_int_equal(gpool_unpin_after(owner->pool, &owner->blocks[i], owner->fences[1]), 0);
		assert_int_equal(gpool_free_after(owner->pool, &owner->blocks[i], owner->fences[0]), 0);
	}
}

/* Pages without content are taken first: taking a quarter of the pages evicts none of the half with content. */
static void blocks_free_half_after(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		int error = i % 2 ? gpool_free_after(owner->pool, &owner->blocks[i], owner->fence)
				  : gpool_unpin_after(owner->pool, &owner->blocks[i], owner->fence);

		assert_int_equal(error, 0);
	}
}

static bool pinned_again(struct owner *owner, uint32_t i)
{
	int error = gpool_pin(owner->pool, &owner->blocks[i]);

	assert_true(error == 0 || error == -ESTALE);
	return error == 0;
}

static void blocks_look(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		bool there = pinned_again(owner, i);

		found_page(found, there, there ? block_address(owner, i) : 0, i);
	}
}

static void block_look_whole(struct owner *owner, struct found *found)
{
	bool there = pinned_again(owner, 0);

	for (uint32_t i = 0; i < UNITS; i++)
		found_page(found, there, there ? block_address(owner, 0) + (uint64_t)i * PAGE_BYTES : 0, i);
}

/* ---- spans: two in each page ---- */

static void spans_alloc(struct owner *owner)
{
	struct gpool_span *spans = calloc(2 * UNITS, sizeof(*spans));

	assert_non_null(spans);
	owner->own = spans;
	for (uint32_t i = 0; i < 2 * UNITS; i++) {
		assert_int_equal(gpool_span_alloc(owner->pool, PAGE_BYTES / 2, GPOOL_USAGE_TEMP_BUFFER, &spans[i]), 0);
		*(volatile uint64_t *)(uintptr_t)spans[i].address = i;
	}
}

static void spans_free(struct owner *owner)
{
	struct gpool_span *spans = owner->own;

	for (uint32_t i = 0; i < 2 * UNITS; i++)
		assert_int_equal(gpool_span_free(owner->pool, &spans[i]), 0);
}

static void spans_look(struct owner *owner, struct found *found)
{
	struct gpool_span *spans = owner->own;

	for (uint32_t i = 0; i < UNITS; i++) {
		bool right = true;

		for (uint32_t j = 2 * i; j < 2 * i + 2; j++)
			right &= *(volatile uint64_t *)(uintptr_t)spans[j].address == j;
		found->kept += right;
		found->wrong += !right;
	}
}

/* ---- scopes ---- */

static void scope_open(struct owner *owner, uint32_t flags)
{
	struct gpool_scope *scope = calloc(1, sizeof(*scope));

	assert_non_null(scope);
	owner->own = scope;
	scope->size = sizeof(*scope);
	assert_int_equal(gpool_scope_begin(owner->pool, GPOOL_USAGE_ACTIVATION, flags, scope), 0);
	for (uint32_t i = 0; i < UNITS; i++) {
		assert_int_equal(gpool_scope_alloc(scope, 1, NULL, &owner->blocks[i]), 0);
		page_write(block_address(owner, i), i);
	}
}

static void scope_alloc(struct owner *owner)
{
	scope_open(owner, 0);
}

static void scope_alloc_to_free(struct owner *owner)
{
	scope_open(owner, GPOOL_SCOPE_FREE);
}

static void scope_end(struct owner *owner)
{
	assert_int_equal(gpool_scope_end(owner->own, GPOOL_FENCE_NONE), 0);
}

static void scope_end_after(struct owner *owner)
{
	assert_int_equal(gpool_scope_end(owner->own, owner->fence), 0);
}

/* ---- two phases ---- */

static void blocks_prepare(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_prepare(owner->pool, 1, NULL, &owner->blocks[i]), 0);
}

static void blocks_roll_back(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_rollback(owner->pool, &owner->blocks[i]), 0);
}

static void blocks_look_prepared(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		found->kept += gpool_commit(owner->pool, &owner->blocks[i], NULL) == 0;
		found->wrong += block_address(owner, i) == 0;
	}
}

/* ---- the table ---- */

static const struct kind kinds[] = {
	{.name = "blocks, pinned", .gets = HELD, .content = NEEDED, .prepare = blocks_alloc, .look = blocks_look},
	{.name = "blocks, unpinned",
		.gets = AT_ONCE,
		.content = KEPT,
		.prepare = blocks_alloc,
		.let_go = blocks_unpin,
		.look = blocks_look},
	{.name = "blocks, unpinned behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.prepare = blocks_alloc,
		.let_go = blocks_unpin_after,
		.look = blocks_look},
	{.name = "blocks, unpinned behind fences of two streams",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.gates = 2,
		.prepare = blocks_alloc_for_two,
		.let_go = blocks_unpin_after_two,
		.look = blocks_look},
	{.name = "a block of several pages, unpinned behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.whole = true,
		.prepare = block_alloc_whole,
		.let_go = block_unpin_whole_after,
		.look = block_look_whole},
	{.name = "blocks, freed", .gets = AT_ONCE, .content = GONE, .prepare = blocks_alloc, .let_go = blocks_free},
	{.name = "blocks, freed behind a fence",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = blocks_alloc,
		.let_go = blocks_free_after},
	{.name = "blocks, freed behind fences of two streams",
		.gets = BEHIND_WORK,
		.content = GONE,
		.gates = 2,
		.prepare = blocks_alloc_for_two,
		.let_go = blocks_free_after_two},
	{.name = "a block of several pages, freed behind a fence",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = block_alloc_whole,
		.let_go = block_free_whole_after},
	{.name = "blocks, one half unpinned and one half freed behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.prepare = blocks_alloc,
		.let_go = blocks_free_half_after,
		.look = blocks_look},
	{.name = "spans, in use", .gets = HELD, .content = NEEDED, .prepare = spans_alloc, .look = spans_look},
	{.name = "spans, all of a page freed",
		.gets = AT_ONCE,
		.content = GONE,
		.prepare = spans_alloc,
		.let_go = spans_free},
	{.name = "scopes, open", .gets = HELD, .content = NEEDED, .prepare = scope_alloc, .look = blocks_look},
	{.name = "scopes, ended",
		.gets = AT_ONCE,
		.content = KEPT,
		.prepare = scope_alloc,
		.let_go = scope_end,
		.look = blocks_look},
	{.name = "scopes, ended behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.prepare = scope_alloc,
		.let_go = scope_end_after,
		.look = blocks_look},
	{.name = "scopes that free, ended behind a fence",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = scope_alloc_to_free,
		.let_go = scope_end_after},
	{.name = "blocks, prepared",
		.gets = HELD,
		.content = NEEDED,
		.prepare = blocks_prepare,
		.look = blocks_look_prepared},
	{.name = "blocks, rolled back",
		.gets = AT_ONCE,
		.content = GONE,
		.prepare = blocks_prepare,
		.let_go = blocks_roll_back},
};

int main(int argc, char **argv)
{
	return sharing_main(argc, argv, arguments, kinds, sizeof(kinds) / sizeof(*kinds));
}
