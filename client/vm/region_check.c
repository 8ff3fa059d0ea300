/* region_check.c - check the invariants of region_set.h, for tests and for debugging. */
#include "client/vm/region_set.h"
#include "shm/plural.h"

#include "shm/timeline.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct check {
	const struct region_set *set;
	uint32_t findings;
	char *text;
	size_t text_bytes;
	/* counted during the check */
	uint64_t pages[VM_KINDS], counts[VM_KINDS];
	/* expected totals, without moving regions */
	uint64_t holes, free_there, available, guarded, reclaimable, unfenced, ready, ready_pages, ripe, pending;
};

static void __attribute__((format(printf, 4, 5)))
expect(struct check *check, bool holds, const struct vm_region *region, const char *format, ...)
{
	va_list arguments;
	int length = 0;

	if (holds || check->findings++)
		return;
	if (region)
		length = snprintf(check->text, check->text_bytes,
			"region %llu of %u page%s at page %u: ", (unsigned long long)region->id, region->count,
			plural(region->count), region->first);
	va_start(arguments, format);
	vsnprintf(check->text + length, check->text_bytes - (size_t)length, format, arguments);
	va_end(arguments);
}

/* ---- one region ---- */

static void neighbors_check(struct check *check, const struct vm_region *region)
{
	const struct vm_region *after = region->after;

	expect(check, region->count > 0, region, "it has no pages");
	expect(check, region->kind < VM_KINDS && region->slot < VM_SLOTS, region, "kind %u, slot %u", region->kind,
		region->slot);
	expect(check,
		region->before ? region->before->after == region : region->chunk->lowest == region && !region->first,
		region, "its neighbor or chunk does not refer to it");
	if (!after) {
		expect(check, region->first + region->count == region->chunk->pages, region,
			"it has no next region, but is not at the end of its chunk");
		return;
	}
	expect(check,
		after->before == region && after->chunk == region->chunk &&
			after->first == region->first + region->count,
		region, "the next region begins at page %u", after->first);
	if (region->moving || after->moving || region->guarded || after->guarded || region->kind != after->kind)
		return;
	expect(check, region->kind != VM_HOLE, region, "the next region is also a hole");
	expect(check, region->kind != VM_FREE || region->slot != after->slot, region,
		"the next region is also free in slot %u", after->slot);
}

static void readiness_check(struct check *check, const struct vm_region *region)
{
	bool of_stream = is_stream_slot(region->slot);

	expect(check, !region->guarded || (region->kind == VM_FREE && of_stream && region->ready != VM_READY), region,
		"guarded, but not free or not waiting in a stream");
	switch (region->ready) {
	case VM_READY:
		expect(check, fence_signaled(check->set->session, region->fence), region,
			"ready, but its fence is not signaled");
		break;
	case VM_PENDING:
		expect(check, region->fence != 0, region, "pending without a fence");
		expect(check, region->kind == VM_PENDING_UNMAP || fence_slot(region->fence) == region->slot, region,
			"its fence belongs to another slot");
		break;
	default:
		expect(check, region->kind == VM_FREE && !region->fence, region,
			"unfenced, but it has a fence or is not free");
	}
	expect(check, of_stream || region->kind != VM_FREE || (region->ready == VM_READY && !region->fence), region,
		"it is free and belongs to no stream, but is not ready");
}

static void place_check(struct check *check, const struct vm_region *region)
{
	const struct vm_region *at = region->chunk->at[region->first];

	expect(check, at == (region->kind == VM_ALLOCATED && !region->moving ? region : NULL), region,
		"the entry of its address refers to another region");
}

static void region_add(struct check *check, const struct vm_region *region)
{
	check->pages[region->kind] += region->count;
	check->counts[region->kind]++;
	if (region->moving)
		return;
	check->holes += region->kind == VM_HOLE;
	if (region->kind == VM_PENDING_UNMAP) {
		check->ripe += region->ready == VM_READY;
		check->pending += region->ready == VM_PENDING;
	}
	if (region->kind != VM_FREE)
		return;
	if (region->guarded) {
		check->guarded += region->count;
		check->unfenced += region->ready == VM_UNFENCED;
		check->pending += region->ready == VM_PENDING;
		return;
	}
	check->free_there++;
	check->available += region->count;
	if (region->slot == VM_RECLAIMABLE)
		check->reclaimable += region->count;
	else if (region->slot != VM_NONE) {
		check->unfenced += region->ready == VM_UNFENCED;
		check->pending += region->ready == VM_PENDING;
		check->ready += region->ready == VM_READY;
		check->ready_pages += region->ready == VM_READY ? region->count : 0;
	}
}

static void region_look(struct check *check, const struct vm_region *region)
{
	neighbors_check(check, region);
	place_check(check, region);
	if (!region->moving && (region->kind == VM_FREE || region->kind == VM_PENDING_UNMAP))
		readiness_check(check, region);
}

/* ---- trees and lists: walked here, since RB_NEXT() trusts the pointers that are being checked ---- */

enum { TREE_DEPTH_MAX = 64 };
enum tree { TREE_SIZES, TREE_READIES, TREE_FENCES, TREE_HOLES };

static bool tree_holds(enum tree tree, const struct vm_region *region, uint32_t slot)
{
	if (region->moving)
		return false;
	switch (tree) {
	case TREE_HOLES: return region->kind == VM_HOLE;
	case TREE_SIZES: return region->kind == VM_FREE && region->slot == slot && !region->guarded;
	case TREE_READIES:
		return region->kind == VM_FREE && region->ready == VM_READY && is_stream_slot(region->slot) &&
			!region->guarded;
	default:
		return (region->kind == VM_FREE || region->kind == VM_PENDING_UNMAP) && region->ready == VM_PENDING &&
			fence_slot(region->fence) == slot;
	}
}

static bool in_order(enum tree tree, const struct vm_region *low, const struct vm_region *high)
{
	if (tree == TREE_FENCES && low->fence != high->fence)
		return low->fence < high->fence;
	if (tree != TREE_FENCES && low->count != high->count)
		return low->count < high->count;
	return low->chunk == high->chunk ? low->first < high->first : low->chunk->base < high->chunk->base;
}

/* Count the regions of a tree. Check that each belongs to it, and that they are in order. */
static uint64_t tree_check(struct check *check, enum tree tree, const struct vm_region *root, uint32_t slot)
{
	const struct vm_region *stack[TREE_DEPTH_MAX], *region = root, *last = NULL;
	bool second = tree == TREE_READIES || tree == TREE_FENCES;
	uint64_t count = 0;
	int depth = 0;

	while (region || depth) {
		for (; region && depth < TREE_DEPTH_MAX;
			region = second ? RB_LEFT(region, by_ready) : RB_LEFT(region, by_size))
			stack[depth++] = region;
		expect(check, !region, region, "a tree is too deep");
		region = stack[--depth];
		expect(check, tree_holds(tree, region, slot), region, "it does not belong in tree %d of slot %u", tree,
			slot);
		expect(check, !last || in_order(tree, last, region), region, "it is out of order in tree %d of slot %u",
			tree, slot);
		last = region;
		count++;
		region = second ? RB_RIGHT(region, by_ready) : RB_RIGHT(region, by_size);
	}
	return count;
}

static void slot_check(struct check *check, uint32_t slot, uint64_t *sized, uint64_t *unfenced, uint64_t *fenced)
{
	const struct region_set *set = check->set;
	const struct region_stream *stream = &set->streams[slot];
	const struct vm_region *region, *last = NULL;
	uint64_t count = tree_check(check, TREE_SIZES, RB_ROOT(&stream->sizes), slot), aged = 0, pages = 0, waiting;

	TAILQ_FOREACH(region, &stream->ages, by_age)
	{
		expect(check, !last || last->id <= region->id, region, "it is out of order by age");
		last = region;
		aged++;
		pages += region->count;
	}
	expect(check, pages == stream->pages, NULL, "slot %u: %llu free page%s, not %llu", slot,
		(unsigned long long)pages, plural(pages), (unsigned long long)stream->pages);
	expect(check, aged == count, NULL, "slot %u: %llu region%s by age, %llu by size", slot,
		(unsigned long long)aged, plural(aged), (unsigned long long)count);
	*sized += count;
	TAILQ_FOREACH(region, &stream->unfenced, queue)
	{
		expect(check, region->ready == VM_UNFENCED && !region->moving && region->slot == slot, region,
			"in the list of unfenced regions, but not unfenced");
		++*unfenced;
	}
	waiting = tree_check(check, TREE_FENCES, RB_ROOT(&stream->fences), slot);
	*fenced += waiting;
	if (slot == VM_RECLAIMABLE)
		return;
	expect(check, (set->fenced[slot / 64] >> (slot % 64) & 1) == (waiting != 0), NULL,
		"slot %u: wrong bit for fences", slot);
	expect(check, (set->used[slot / 64] >> (slot % 64) & 1) == (aged != 0), NULL, "slot %u: wrong bit for regions",
		slot);
	expect(check, (set->loose[slot / 64] >> (slot % 64) & 1) == !TAILQ_EMPTY(&stream->unfenced), NULL,
		"slot %u: wrong bit for unfenced regions", slot);
}

static void trees_check(struct check *check)
{
	const struct region_set *set = check->set;
	const struct vm_region *region;
	uint64_t sized = 0, unfenced = 0, fenced = 0, ripe = 0, ready = 0;

	expect(check, tree_check(check, TREE_HOLES, RB_ROOT(&set->holes), 0) == check->holes, NULL,
		"not all holes are in the tree");
	for (uint32_t slot = 0; slot < VM_SLOTS; slot++)
		slot_check(check, slot, &sized, &unfenced, &fenced);
	TAILQ_FOREACH(region, &set->ripe, by_age)
	ripe++;
	TAILQ_FOREACH(region, &set->ready_ages, queue)
	ready++;
	expect(check, sized == check->free_there, NULL, "%llu free region%s in trees, %llu in chunks",
		(unsigned long long)sized, plural(sized), (unsigned long long)check->free_there);
	expect(check, unfenced == check->unfenced && set->unfenced == unfenced, NULL,
		"%llu unfenced region%s in lists, %llu in chunks", (unsigned long long)unfenced, plural(unfenced),
		(unsigned long long)check->unfenced);
	expect(check, fenced == check->pending, NULL, "%llu pending region%s in trees, %llu in chunks",
		(unsigned long long)fenced, plural(fenced), (unsigned long long)check->pending);
	expect(check, ripe == check->ripe, NULL, "%llu ripe pending unmap%s in the list, %llu in chunks",
		(unsigned long long)ripe, plural(ripe), (unsigned long long)check->ripe);
	expect(check, ready == check->ready && tree_check(check, TREE_READIES, RB_ROOT(&set->readies), 0) == ready,
		NULL, "%llu ready region%s in the list, %llu in chunks", (unsigned long long)ready, plural(ready),
		(unsigned long long)check->ready);
}

static void totals_check(struct check *check)
{
	const struct region_set *set = check->set;

	for (int kind = 0; kind < VM_KINDS; kind++)
		expect(check, set->pages[kind] == check->pages[kind] && set->counts[kind] == check->counts[kind], NULL,
			"kind %d: %llu page%s in %llu region%s, but %llu in %llu in chunks", kind,
			(unsigned long long)set->pages[kind], plural(set->pages[kind]),
			(unsigned long long)set->counts[kind], plural(set->counts[kind]),
			(unsigned long long)check->pages[kind], (unsigned long long)check->counts[kind]);
	expect(check, set->guarded == check->guarded, NULL, "%llu page%s guarded, %llu in chunks",
		(unsigned long long)set->guarded, plural(set->guarded), (unsigned long long)check->guarded);
	expect(check,
		set->available == check->available && set->reclaimable == check->reclaimable &&
			set->ready == check->ready_pages,
		NULL, "%llu page%s available, %llu reclaimable, %llu ready; in chunks %llu, %llu, %llu",
		(unsigned long long)set->available, plural(set->available), (unsigned long long)set->reclaimable,
		(unsigned long long)set->ready, (unsigned long long)check->available,
		(unsigned long long)check->reclaimable, (unsigned long long)check->ready_pages);
}

/* ---- the whole set ---- */

uint32_t region_check(const struct region_set *set, char *text, size_t text_bytes)
{
	struct check check = {.set = set, .text = text, .text_bytes = text_bytes};

	for (const struct region_chunk *chunk = region_chunk_next(set, NULL); chunk;
		chunk = region_chunk_next(set, chunk)) {
		for (const struct vm_region *region = chunk->lowest; region; region = region->after) {
			region_look(&check, region);
			region_add(&check, region);
		}
	}
	totals_check(&check);
	trees_check(&check);
	return check.findings;
}

uint32_t region_check_near(const struct region_set *set, const struct vm_region *region, char *text, size_t text_bytes)
{
	struct check check = {.set = set, .text = text, .text_bytes = text_bytes};

	if (region->before)
		region_look(&check, region->before);
	region_look(&check, region);
	if (region->after)
		region_look(&check, region->after);
	return check.findings;
}
