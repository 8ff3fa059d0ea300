/*
 * test_region_set.c - the sets of regions, without agent and driver.
 *
 * Each step is followed by region_check(), which checks all invariants. A timeline that the test writes determines
 * which fences are signaled. Hand-written cases check the placement. A long random run checks that the sets stay
 * consistent.
 *
 * Requirements: M3, M4.
 */
#include "client/vm/region_set.h"
#include "shm/timeline.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 4096, CHUNK_PAGES = 100 };
static const uint64_t base = UINT64_C(1) << 40;

static _Atomic uint64_t timeline[SESSION_TIMELINES];
static struct session_segment session = {.timeline = timeline};
static struct region_set set;
static struct region_chunk chunk;

static void check(void)
{
	char text[256] = "";

	if (region_check(&set, text, sizeof(text)))
		fail_msg("%s", text);
}

static int set_up(void **state)
{
	(void)state;
	for (int i = 0; i < SESSION_TIMELINES; i++)
		timeline[i] = 0;
	region_set_open(&set, &session, PAGE, NULL);
	assert_int_equal(region_chunk_open(&chunk, base, CHUNK_PAGES), 0);
	assert_int_equal(region_spare(&set, 64), 0);
	region_chunk_add(&set, &chunk);
	check();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	check();
	region_set_close(&set);
	region_chunk_close(&chunk);
	return 0;
}

static uint64_t fence(uint32_t slot, uint64_t value)
{
	return fence_make(slot, value);
}

/* Take `count` pages from the hole. They become free in a slot, with a fence. */
static struct vm_region *add(uint32_t count, uint32_t slot, uint64_t behind)
{
	struct vm_region *region = region_carve(&set, region_best_hole(&set, count), count);

	region = region_put_free(&set, region, slot, behind);
	check();
	return region;
}

static struct vm_region *take(struct vm_region *from, uint32_t count, uint32_t slot)
{
	struct vm_region *region;

	assert_non_null(from);
	region = region_carve(&set, from, count);
	region_put_allocated(&set, region, slot, count * PAGE);
	check();
	return region;
}

static struct vm_region *give(struct vm_region *region, uint32_t slot, uint64_t behind)
{
	struct vm_region *result = region_put_free(&set, region_carve(&set, region, region->count), slot, behind);

	check();
	return result;
}

/*
 * Return the regions in the notation of gpool_vm_dump(), with the slot of free regions and the mark of moving ones. A
 * hole is [.X], so that it differs from a pending unmap.
 */
static const char *picture(void)
{
	static char text[1024];
	int length = 0;

	for (const struct vm_region *region = chunk.lowest; region; region = region->after)
		length += snprintf(text + length, sizeof(text) - (size_t)length,
			region->kind == VM_FREE ? "[%s%u/%u%s]" : "[%s%u]", &".\0-\0\0\0*"[2 * region->kind],
			region -> count, region -> slot, region -> moving ? "m" : "");
	return text;
}

/* ---- cases ---- */

static void test_best_fit(void **state)
{
	struct vm_region *a, *b, *c, *d;

	(void)state;
	add(20, 1, fence(1, 0));
	a = take(region_best(&set, 1, 5), 5, 1);
	b = take(region_best(&set, 1, 3), 3, 1);
	c = take(region_best(&set, 1, 5), 5, 1);
	d = take(region_best(&set, 1, 1), 1, 1);
	assert_string_equal(picture(), "[5][3][5][1][-6/1][.80]");
	give(a, 1, 0);
	give(c, 1, 0);
	assert_string_equal(picture(), "[-5/1][3][-5/1][1][-6/1][.80]");
	/* The smallest sufficient region is used; of several such regions, the lowest one. */
	assert_int_equal(region_best(&set, 1, 4)->first, 0);
	assert_int_equal(region_best(&set, 1, 6)->first, 14);
	assert_null(region_best(&set, 1, 7));
	assert_null(region_best(&set, 2, 1));
	assert_null(region_best_hole(&set, 81));
	a = take(region_best(&set, 1, 5), 5, 1);
	assert_int_equal(region_best(&set, 1, 4)->first, 8);
	give(b, 1, 0);
	assert_string_equal(picture(), "[5][-8/1][1][-6/1][.80]");
	give(d, 1, 0);
	assert_string_equal(picture(), "[5][-15/1][.80]");
	give(a, 1, 0);
	assert_string_equal(picture(), "[-20/1][.80]");
}

/* Requirements: M5. */
static void test_joins_only_within_a_stream(void **state)
{
	struct vm_region *regions[6];

	(void)state;
	add(12, 1, fence(1, 0));
	for (int i = 0; i < 6; i++)
		regions[i] = take(region_best(&set, 1, 2), 2, 1);
	give(regions[0], 1, 0);
	give(regions[1], 2, 0);
	give(regions[2], 2, 0);
	give(regions[4], 1, 0);
	assert_string_equal(picture(), "[-2/1][-4/2][2][-2/1][2][.88]");
	/* A region without a stream is next to a region of a stream. */
	give(regions[3], VM_NONE, 0);
	assert_string_equal(picture(), "[-2/1][-4/2][-2/0][-2/1][2][.88]");
	/* When a stream ends, its regions no longer have a stream, and join. */
	region_stream_end(&set, 2);
	check();
	assert_string_equal(picture(), "[-2/1][-6/0][-2/1][2][.88]");
	region_stream_end(&set, 1);
	check();
	assert_string_equal(picture(), "[-10/0][2][.88]");
}

/* Requirements: M5. */
static void test_the_later_fence_counts(void **state)
{
	struct vm_region *low = add(3, 1, fence(1, 0)), *middle, *joined;

	(void)state;
	low = take(low, 1, 1);
	middle = take(region_best(&set, 1, 1), 1, 1);
	give(middle, 1, fence(1, 7));
	assert_string_equal(picture(), "[1][-2/1][.97]");
	joined = give(low, 1, fence(1, 5));
	assert_int_equal(joined->fence, fence(1, 7));
	assert_int_equal(joined->ready, VM_PENDING);
	assert_null(region_best_ready(&set, 1));
	timeline[1] = 6;
	region_sweep(&set);
	assert_null(region_best_ready(&set, 1));
	timeline[1] = 7;
	region_sweep(&set);
	check();
	assert_ptr_equal(region_best_ready(&set, 3), joined);
	/* A part without a fence makes the whole region unfenced, until a fence is recorded that covers it. */
	low = take(joined, 1, 1);
	joined = give(low, 1, 0);
	assert_int_equal(joined->ready, VM_UNFENCED);
	assert_int_equal(joined->fence, 0);
	assert_null(region_best_ready(&set, 1));
	region_fence(&set, 1, fence(1, 9), joined->id - 1);
	assert_int_equal(joined->ready, VM_UNFENCED);
	region_fence(&set, 1, fence(1, 9), joined->id);
	check();
	assert_int_equal(joined->ready, VM_PENDING);
	timeline[1] = 9;
	region_sweep(&set);
	assert_non_null(region_best_ready(&set, 3));
}

static void test_the_rest_keeps_stream_fence_and_age(void **state)
{
	struct vm_region *region = add(10, 3, fence(3, 4)), *piece;
	uint64_t id = region->id;

	(void)state;
	piece = take(region, 4, 5);
	assert_int_equal(piece->first, 0);
	assert_int_equal(region->first, 4);
	assert_int_equal(region->id, id);
	assert_int_equal(region->slot, 3);
	assert_int_equal(region->fence, fence(3, 4));
	assert_int_equal(region->ready, VM_PENDING);
}

static void test_harvest_order(void **state)
{
	struct vm_region *regions[8];
	struct region_harvest harvest;
	struct vm_region *region;
	uint32_t firsts[8], count = 0;
	uint64_t id;

	(void)state;
	add(16, 1, fence(1, 0));
	for (int i = 0; i < 8; i++)
		regions[i] = take(region_best(&set, 1, 2), 2, 1);
	id = give(regions[0], 2, fence(2, 5))->id; /* unfinished, the oldest */
	give(regions[2], 3, fence(3, 0));          /* ready */
	give(regions[4], 1, 0);                    /* of the caller's own stream */
	give(regions[6], VM_NONE, 0);              /* ready */
	give(regions[7], 1, 0);                    /* of the caller's own stream, younger */
	assert_string_equal(picture(), "[-2/2][2][-2/3][2][-2/1][2][-2/0][-2/1][.84]");
	assert_int_equal(region_at_once(&set, 1), 8);
	assert_int_equal(region_at_once(&set, 2), 6);
	assert_int_equal(region_at_once(&set, VM_NONE), 4);
	region_harvest(&set, 1, 9, &harvest);
	check();
	TAILQ_FOREACH(region, &harvest.regions, by_age)
	firsts[count++] = region->first;
	assert_int_equal(count, 5);
	assert_int_equal(firsts[0], 8);
	assert_int_equal(firsts[1], 14);
	assert_int_equal(firsts[2], 4);
	assert_int_equal(firsts[3], 12);
	assert_int_equal(firsts[4], 0);
	assert_int_equal(harvest.pages, 9);
	/* The undo restores all regions exactly, including the region that was split. */
	region_harvest_undo(&set, &harvest);
	check();
	assert_string_equal(picture(), "[-2/2][2][-2/3][2][-2/1][2][-2/0][-2/1][.84]");
	assert_int_equal(chunk.lowest->id, id);
	/* The rest keeps its stream and fence, and is younger than all other regions. */
	region_harvest(&set, 1, 9, &harvest);
	region = chunk.lowest->after;
	assert_int_equal(region->first, 1);
	assert_int_equal(region->count, 1);
	assert_int_equal(region->fence, fence(2, 5));
	assert_int_equal(region->id, set.last_id);
	while ((region = TAILQ_FIRST(&harvest.regions))) {
		TAILQ_REMOVE(&harvest.regions, region, by_age);
		region_put_pending_unmap(&set, region, region->fence);
		check();
	}
	assert_string_equal(picture(), "[*1][-1/2][2][*2][2][*2][2][*2][*2][.84]");
}

/* Take the window for `count` pages, and check its first page and its mapped pages. */
static void window_take(uint32_t slot, uint32_t count, uint32_t first, uint32_t mapped, struct region_list *parts)
{
	struct region_window window;

	TAILQ_INIT(parts);
	assert_true(region_window(&set, slot, count, &window));
	assert_int_equal(window.first, first);
	assert_int_equal(window.mapped, mapped);
	region_window_take(&set, &window, count, parts);
	check();
}

static void parts_put(struct region_list *parts)
{
	struct vm_region *part;

	while ((part = TAILQ_FIRST(parts))) {
		TAILQ_REMOVE(parts, part, by_age);
		region_put(&set, part);
	}
	check();
}

static void test_windows(void **state)
{
	struct region_window window;
	struct region_list parts;
	struct vm_region *region, *holes[2], *rest;

	(void)state;
	add(16, 1, fence(1, 0));
	rest = region_carve(&set, region_best(&set, 1, 3), 3);
	holes[0] = region_carve(&set, region_best(&set, 1, 4), 4);
	region = region_carve(&set, region_best(&set, 1, 6), 6);
	take(region_best(&set, 1, 2), 2, 1);
	holes[1] = region_carve(&set, region_best(&set, 1, 1), 1);
	for (int i = 0; i < 2; i++) {
		region_turn(&set, holes[i], VM_HOLE);
		region_put(&set, holes[i]);
	}
	region_put_free(&set, rest, 1, 0);
	region_put_free(&set, region, 2, fence(2, 5));
	assert_string_equal(picture(), "[-3/1][.4][-6/2][2][.85]");
	/* The work of the other stream is not finished. */
	window_take(1, 6, 0, 3, &parts);
	assert_string_equal(picture(), "[-3/1m][.3][.1][-6/2][2][.85]");
	parts_put(&parts);
	assert_string_equal(picture(), "[-3/1][.4][-6/2][2][.85]");
	assert_false(region_window(&set, 1, 8, &window));
	/* The other stream itself can use it. The window ends with a free region. */
	window_take(2, 9, 4, 6, &parts);
	assert_string_equal(picture(), "[-3/1][.1][.3][-6/2m][2][.85]");
	parts_put(&parts);
	timeline[2] = 5;
	region_sweep(&set);
	/* The lower of two windows with as many mapped pages; it ends within a region, whose rest stays. */
	window_take(1, 10, 0, 6, &parts);
	assert_string_equal(picture(), "[-3/1m][.4][-3/2m][-3/2][2][.85]");
	parts_put(&parts);
	assert_string_equal(picture(), "[-3/1][.4][-6/2][2][.85]");
	window_take(1, 12, 0, 8, &parts);
	region = region_unite(&set, &parts, 1);
	assert_true(TAILQ_EMPTY(&parts));
	assert_int_equal(region->ready, VM_UNFENCED); /* the part of the own stream */
	region_put_allocated(&set, region, 1, 1);
	check();
	assert_string_equal(picture(), "[12][-1/2][2][.85]");
	/* Regions of two streams without a hole. */
	give(region, 1, 0);
	window_take(1, 13, 0, 13, &parts);
	parts_put(&parts);
	assert_string_equal(picture(), "[-12/1][-1/2][2][.85]");
}

static void test_zombies_become_holes(void **state)
{
	struct vm_region *a = add(10, 1, fence(1, 0)), *b, *c;

	(void)state;
	a = region_carve(&set, a, 2);
	b = region_carve(&set, region_best(&set, 1, 3), 3);
	c = region_carve(&set, region_best(&set, 1, 1), 1);
	region_put_pending_unmap(&set, a, fence(1, 2));
	region_put_pending_unmap(&set, b, fence(2, 3));
	region_put_pending_unmap(&set, c, 0);
	check();
	/* The regions are not joined. Only the one without a fence is ripe. */
	assert_string_equal(picture(), "[*2][*3][*1][-4/1][.90]");
	region_sweep(&set);
	assert_ptr_equal(region_ripe(&set), c);
	assert_null(region_ripe(&set));
	region_turn(&set, c, VM_HOLE);
	region_put(&set, c);
	timeline[2] = 3;
	region_sweep(&set);
	assert_ptr_equal(region_ripe(&set), b);
	region_turn(&set, b, VM_HOLE);
	region_put(&set, b);
	check();
	assert_string_equal(picture(), "[*2][.4][-4/1][.90]");
	/* The end of a stream has waited for its work. */
	region_stream_end(&set, 1);
	assert_ptr_equal(region_ripe(&set), a);
	region_turn(&set, a, VM_HOLE);
	region_put(&set, a);
	check();
	assert_string_equal(picture(), "[.6][-4/0][.90]");
}

static void test_reclaimable_are_found_last(void **state)
{
	struct vm_region *region;

	(void)state;
	add(5, VM_NONE, 0);
	region = region_idle(&set, 3);
	assert_int_equal(region->count, 3);
	region_put_free(&set, region, VM_RECLAIMABLE, 0);
	check();
	assert_int_equal(set.reclaimable, 3);
	assert_int_equal(set.available, 5);
	assert_int_equal(region_at_once(&set, 1), 2);
	assert_string_equal(picture(), "[-3/256][-2/0][.95]");
	assert_int_equal(region_best_ready(&set, 3)->first, 0);
	assert_int_equal(region_best_ready(&set, 2)->first, 3);
	region = region_idle(&set, UINT64_MAX);
	region_put_free(&set, region, VM_RECLAIMABLE, 0);
	check();
	assert_null(region_idle(&set, 1));
	assert_string_equal(picture(), "[-5/256][.95]");
	region = region_reclaimable(&set, &chunk, 1);
	assert_int_equal(region->count, 1);
	region_put_free(&set, region, VM_NONE, 0);
	check();
	assert_string_equal(picture(), "[-1/0][-4/256][.95]");
}

static void test_addresses(void **state)
{
	struct vm_region *region = take(add(4, 1, 0), 2, 1), *found = NULL;

	(void)state;
	assert_int_equal(region_find(&set, base, &found), 0);
	assert_ptr_equal(found, region);
	assert_int_equal(region_find(&set, base + PAGE, &found), -ESTALE);
	assert_int_equal(region_find(&set, base + 2 * PAGE, &found), -ESTALE);
	assert_int_equal(region_find(&set, base + 1, &found), -EINVAL);
	assert_int_equal(region_find(&set, base - PAGE, &found), -EINVAL);
	assert_int_equal(region_find(&set, base + CHUNK_PAGES * PAGE, &found), -EINVAL);
	assert_int_equal(region_find(&set, 0, &found), -EINVAL);
	assert_int_equal(region_find(&set, UINT64_MAX, &found), -EINVAL);
	give(region, 1, 0);
	assert_int_equal(region_find(&set, base, &found), -ESTALE);
}

static void test_chunks_do_not_join(void **state)
{
	struct region_chunk more;

	(void)state;
	assert_int_equal(region_chunk_open(&more, base + CHUNK_PAGES * PAGE, 10), 0);
	region_chunk_add(&set, &more);
	check();
	assert_int_equal(set.counts[VM_HOLE], 2);
	assert_ptr_equal(region_best_hole(&set, 5)->chunk, &more);
	assert_ptr_equal(region_best_hole(&set, 11)->chunk, &chunk);
	check();
	region_chunk_close(&more);
	/* tear_down() checks all chunks. */
	region_set_close(&set);
	region_chunk_close(&chunk);
	set_up(NULL);
}

/* ---- random ---- */

enum { LIVE_MAX = 40, STREAMS = 5 };

static uint64_t recorded[STREAMS];

static uint64_t any_fence(uint32_t slot)
{
	if (slot == VM_NONE || any(3) == 0)
		return 0;
	return fence(slot, ++recorded[slot]);
}

static void random_remap(uint32_t slot)
{
	uint32_t pages = 1 + any(20);
	struct vm_region *hole = region_best_hole(&set, pages), *region;
	struct region_harvest harvest;

	if (!hole || set.available - set.reclaimable < pages)
		return;
	hole = region_carve(&set, hole, pages);
	region_harvest(&set, slot, pages, &harvest);
	assert_int_equal(harvest.pages, pages);
	if (any(4) == 0) {
		region_harvest_undo(&set, &harvest);
		region_put(&set, hole);
		return;
	}
	while ((region = TAILQ_FIRST(&harvest.regions))) {
		TAILQ_REMOVE(&harvest.regions, region, by_age);
		region_put_pending_unmap(&set, region,
			region->ready == VM_UNFENCED ? fence(region->slot, ++recorded[region->slot]) : region->fence);
	}
	region_put_free(&set, hole, slot, any_fence(slot));
}

/* Return the most mapped pages of all windows. */
static uint32_t most_mapped(uint32_t slot, uint32_t pages)
{
	bool usable[CHUNK_PAGES] = {false}, mapped[CHUNK_PAGES] = {false};
	uint32_t most = 0;

	for (const struct vm_region *region = chunk.lowest; region; region = region->after)
		for (uint32_t page = region->first; page < region->first + region->count; page++) {
			mapped[page] = region->kind == VM_FREE;
			usable[page] = region->kind == VM_HOLE ||
				(region->kind == VM_FREE && region->slot != VM_RECLAIMABLE && !region->guarded &&
					(region->slot == slot || region->ready == VM_READY));
		}
	for (uint32_t first = 0; first + pages <= CHUNK_PAGES; first++) {
		uint32_t count = 0, sum = 0;

		while (count < pages && usable[first + count])
			sum += mapped[first + count++];
		if (count == pages && sum > most)
			most = sum;
	}
	return most;
}

static void random_grow(uint32_t slot)
{
	uint32_t pages = 1 + any(20);
	struct region_list parts = TAILQ_HEAD_INITIALIZER(parts);
	struct region_window window;

	region_window(&set, slot, pages, &window);
	assert_int_equal(window.mapped, most_mapped(slot, pages));
	if (!window.mapped)
		return;
	region_window_take(&set, &window, pages, &parts);
	check();
	if (any(3) == 0)
		parts_put(&parts);
	else
		region_put_free(&set, region_unite(&set, &parts, slot), slot, any_fence(slot));
}

static void random_step(struct vm_region **live, uint32_t *live_count)
{
	uint32_t slot = any(STREAMS), pages = 1 + any(9), which;
	struct vm_region *region;

	switch (any(10)) {
	case 0:
	case 1:
	case 2:
		region = *live_count < LIVE_MAX ? region_best(&set, slot, pages) : NULL;
		if (!region && *live_count < LIVE_MAX)
			region = any(2) ? region_best_ready(&set, pages) : region_best_hole(&set, pages);
		if (region) {
			region = region_carve(&set, region, pages);
			region_put_allocated(&set, region, slot, pages);
			live[(*live_count)++] = region;
		}
		break;
	case 3:
	case 4:
	case 5:
		if (!*live_count)
			break;
		which = any(*live_count);
		region = live[which];
		live[which] = live[--*live_count];
		region_put_free(&set, region_carve(&set, region, region->count), slot, any_fence(slot));
		break;
	case 6: random_remap(slot); break;
	case 7: random_grow(slot); break;
	case 8:
		if (slot && recorded[slot] > timeline[slot])
			timeline[slot] += 1 + any((uint32_t)(recorded[slot] - timeline[slot]));
		region_sweep(&set);
		while (any(2) && (region = region_ripe(&set))) {
			region_turn(&set, region, VM_HOLE);
			region_put(&set, region);
		}
		break;
	default:
		which = any(8);
		if (which == 0 && slot) {
			timeline[slot] = recorded[slot];
			region_stream_end(&set, slot);
		} else if (which == 1) {
			region_fence(&set, slot, fence(slot, ++recorded[slot]), set.last_id - any(3));
		} else if (which < 5 && (region = region_idle(&set, 1 + any(10)))) {
			region_put_free(&set, region, VM_RECLAIMABLE, 0);
		} else if (which > 6 && (region = region_reclaimable(&set, NULL, 1 + any(5)))) {
			if (any(2))
				region_put_pending_unmap(&set, region, 0);
			else
				region_put_free(&set, region, VM_NONE, 0);
		}
	}
}

static void test_random(void **state)
{
	uint32_t steps = test_scaled(100000), live_count = 0;
	struct vm_region *live[LIVE_MAX];

	(void)state;
	seed_begin();
	memset(recorded, 0, sizeof(recorded));
	for (uint32_t step = 0; step < steps; step++) {
		assert_int_equal(region_spare(&set, 4), 0);
		random_step(live, &live_count);
		check();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_best_fit, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_joins_only_within_a_stream, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_later_fence_counts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_rest_keeps_stream_fence_and_age, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_harvest_order, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_windows, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_zombies_become_holes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_reclaimable_are_found_last, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_addresses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_chunks_do_not_join, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_random, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
