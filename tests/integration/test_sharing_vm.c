/*
 * test_sharing_vm.c - the sharing matrix (sharing.h) for gpool_malloc_async(), elastic ranges and sliced ranges.
 *
 * Goal: memory that was freed on a stream, decommitted, offered or shrunk is available to another process once the GPU
 * work that uses it has ended. This needs neither a call nor a background thread of the owner. A reclaim reports which
 * offered pages were kept. Method: see sharing.h.
 *
 * Requirements: U17, M9.
 */
#include "tests/integration/sharing.h"

static const char *const arguments[] = {"--pool", POOL, CALM, NULL};

static uint64_t bytes_of(uint32_t pages)
{
	return (uint64_t)pages * PAGE_BYTES;
}

/* ---- gpool_malloc_async() ---- */

static void malloc_each(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++) {
		assert_int_equal(
			gpool_malloc_async(owner->pool, PAGE_BYTES, owner->gates[0].stream, &owner->addresses[i]), 0);
		page_write(owner->addresses[i], i);
	}
}

static uint32_t pins_count(struct owner *owner)
{
	uint32_t count = 0;

	for (uint32_t page = 0; page < PAGES; page++)
		count += atomic_load(&owner->pool->session.pins[page]) != 0;
	return count;
}

/* Allocate two buffers in each page. */
static void malloc_small(struct owner *owner)
{
	for (uint32_t i = 0; i < 2 * UNITS; i++)
		assert_int_equal(
			gpool_malloc_async(owner->pool, PAGE_BYTES / 2, owner->gates[0].stream, &owner->addresses[i]),
			0);
}

/*
 * A thread of the library releases free regions some milliseconds after the last call, each with its fence. A process
 * that is stopped before that keeps them (docs/sharing.md, limits).
 */
static void release_await(struct owner *owner)
{
	AWAIT(pins_count(owner) == 0);
}

static void mfree_each(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_free_async(owner->pool, owner->addresses[i], owner->gates[0].stream), 0);
	release_await(owner);
}

static void mfree_small(struct owner *owner)
{
	for (uint32_t i = 0; i < 2 * UNITS; i++)
		assert_int_equal(gpool_free_async(owner->pool, owner->addresses[i], owner->gates[0].stream), 0);
}

static void mfree_without_stream(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_free_async(owner->pool, owner->addresses[i], 0), 0);
	release_await(owner);
}

/* Free half of the memory on each of two streams. */
static void mfree_on_two(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		assert_int_equal(gpool_free_async(owner->pool, owner->addresses[i], owner->gates[i % 2].stream), 0);
	release_await(owner);
}

static void malloc_look(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < UNITS; i++)
		found_page(found, true, owner->addresses[i], i);
}

/* ---- ranges ---- */

static uint64_t range_address(struct owner *owner)
{
	uint64_t address = 0;

	assert_int_equal(gpool_range_address(owner->range, &address), 0);
	return address;
}

static void range_write(struct owner *owner)
{
	for (uint32_t i = 0; i < UNITS; i++)
		page_write(range_address(owner) + bytes_of(i), i);
}

static void range_create(struct owner *owner)
{
	assert_int_equal(gpool_range_create(owner->pool, UNITS, NULL, &owner->range), 0);
	range_write(owner);
}

static void range_commit(struct owner *owner)
{
	assert_int_equal(gpool_range_reserve(owner->pool, 4 * UNITS, NULL, &owner->range), 0);
	assert_int_equal(gpool_range_commit(owner->range, 0, UNITS, 0), 0);
	range_write(owner);
}

static void range_decommit(struct owner *owner)
{
	assert_int_equal(gpool_range_decommit(owner->range, 0, UNITS, GPOOL_FENCE_NONE), 0);
}

static void range_decommit_after(struct owner *owner)
{
	assert_int_equal(gpool_range_decommit(owner->range, 0, UNITS, owner->fence), 0);
}

static void range_look(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < UNITS; i++)
		found_page(found, true, range_address(owner) + bytes_of(i), i);
}

static void range_offer(struct owner *owner)
{
	assert_int_equal(gpool_range_offer(owner->range, 0, UNITS, GPOOL_FENCE_NONE), 0);
}

static void range_offer_after(struct owner *owner)
{
	assert_int_equal(gpool_range_offer(owner->range, 0, UNITS, owner->fence), 0);
}

/* Offer the pages again, because another stream uses them too. */
static void range_offer_after_two(struct owner *owner)
{
	for (int stream = 0; stream < 2; stream++)
		assert_int_equal(gpool_range_offer(owner->range, 0, UNITS, owner->fences[stream]), 0);
}

/* A lost page is a hole, in which another page can be committed. */
static void range_look_reclaimed(struct owner *owner, struct found *found)
{
	uint8_t kept[UNITS];
	int lost = gpool_range_reclaim(owner->range, 0, UNITS, kept);

	assert_in_range(lost, 0, UNITS);
	for (uint32_t i = 0; i < UNITS; i++) {
		struct gpool_range_page page = {.size = sizeof(page)};

		assert_int_equal(gpool_range_resolve(owner->range, i, &page), 0);
		assert_true(kept[i] ? page.state == GPOOL_PAGE_COMMITTED : page.state != GPOOL_PAGE_COMMITTED);
		found_page(found, kept[i], range_address(owner) + bytes_of(i), i);
	}
	assert_int_equal(found->lost, (uint32_t)lost);
}

/* ---- sliced ranges: four slices ---- */

enum { SLICES = 4, BLOCKS = UNITS / SLICES };

static struct gpool_sliced_range_info sliced_info(struct owner *owner)
{
	struct gpool_sliced_range_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_sliced_range_info(owner->sliced, &info), 0);
	return info;
}

static uint64_t sliced_address(struct owner *owner, uint32_t page)
{
	struct gpool_sliced_range_info info = sliced_info(owner);

	return info.address + page / BLOCKS * info.slice_bytes + page % BLOCKS * info.block_bytes;
}

static void sliced_grow(struct owner *owner)
{
	assert_int_equal(gpool_sliced_range_create(owner->pool, SLICES, 4 * BLOCKS, 1, NULL, &owner->sliced), 0);
	assert_int_equal(gpool_sliced_range_grow(owner->sliced, BLOCKS, 0), 0);
	for (uint32_t i = 0; i < UNITS; i++)
		page_write(sliced_address(owner, i), i);
}

static void sliced_shrink(struct owner *owner)
{
	assert_int_equal(gpool_sliced_range_shrink(owner->sliced, 0, GPOOL_FENCE_NONE), 0);
}

static void sliced_shrink_after(struct owner *owner)
{
	assert_int_equal(gpool_sliced_range_shrink(owner->sliced, 0, owner->fence), 0);
}

static void sliced_look(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < UNITS; i++)
		found_page(found, true, sliced_address(owner, i), i);
}

/* ---- the table ---- */

static const struct kind kinds[] = {
	{.name = "`gpool_malloc_async()`, in use",
		.gets = HELD,
		.content = NEEDED,
		.prepare = malloc_each,
		.look = malloc_look},
	{.name = "`gpool_malloc_async()`, freed",
		.gets = AT_ONCE,
		.content = GONE,
		.prepare = malloc_each,
		.let_go = mfree_without_stream},
	{.name = "`gpool_malloc_async()`, freed on a stream",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = malloc_each,
		.let_go = mfree_each},
	{.name = "`gpool_malloc_async()`, freed on two streams",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = malloc_each,
		.let_go = mfree_on_two},
	{.name = "`gpool_malloc_async()` of less than a page, freed on a stream",
		.gets = {ALL, NONE, WHEN_DONE, NONE, ALL},
		.content = GONE,
		.prepare = malloc_small,
		.let_go = mfree_small},
	{.name = "ranges", .gets = HELD, .content = NEEDED, .prepare = range_create, .look = range_look},
	{.name = "elastic ranges, committed",
		.gets = HELD,
		.content = NEEDED,
		.prepare = range_commit,
		.look = range_look},
	{.name = "elastic ranges, decommitted",
		.gets = AT_ONCE,
		.content = GONE,
		.prepare = range_commit,
		.let_go = range_decommit},
	{.name = "elastic ranges, decommitted behind a fence",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = range_commit,
		.let_go = range_decommit_after},
	{.name = "elastic ranges, offered",
		.gets = AT_ONCE,
		.content = KEPT,
		.prepare = range_commit,
		.let_go = range_offer,
		.look = range_look_reclaimed},
	{.name = "elastic ranges, offered behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.prepare = range_commit,
		.let_go = range_offer_after,
		.look = range_look_reclaimed},
	{.name = "elastic ranges, offered behind fences of two streams",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.gates = 2,
		.prepare = range_commit,
		.let_go = range_offer_after_two,
		.look = range_look_reclaimed},
	{.name = "sliced ranges, grown", .gets = HELD, .content = NEEDED, .prepare = sliced_grow, .look = sliced_look},
	{.name = "sliced ranges, shrunk",
		.gets = AT_ONCE,
		.content = GONE,
		.prepare = sliced_grow,
		.let_go = sliced_shrink},
	{.name = "sliced ranges, shrunk behind a fence",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = sliced_grow,
		.let_go = sliced_shrink_after},
};

int main(int argc, char **argv)
{
	return sharing_main(argc, argv, arguments, kinds, sizeof(kinds) / sizeof(*kinds));
}
