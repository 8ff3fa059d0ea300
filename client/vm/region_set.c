#include "client/vm/region_set.h"

#include "shm/invariant.h"
#include "shm/plural.h"
#include "shm/timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { SLAB_REGIONS = 64 };

struct region_slab {
	struct region_slab *next;
	struct vm_region regions[SLAB_REGIONS];
};

/* ---- order ---- */

static int place_compare(const struct vm_region *a, const struct vm_region *b)
{
	if (a->chunk != b->chunk)
		return a->chunk->base < b->chunk->base ? -1 : 1;
	return a->first < b->first ? -1 : a->first > b->first;
}

static int size_compare(const struct vm_region *a, const struct vm_region *b)
{
	if (a->count != b->count)
		return a->count < b->count ? -1 : 1;
	return place_compare(a, b);
}

static int fence_compare(const struct vm_region *a, const struct vm_region *b)
{
	if (a->fence != b->fence)
		return a->fence < b->fence ? -1 : 1;
	return place_compare(a, b);
}

static int chunk_compare(const struct region_chunk *a, const struct region_chunk *b)
{
	return a->base < b->base ? -1 : a->base > b->base;
}

/* RB_GENERATE_STATIC would mark unused functions with a macro that only BSD has. */
#define TREE_FUNCTION static __attribute__((unused))
RB_GENERATE_INTERNAL(region_sizes, vm_region, by_size, size_compare, TREE_FUNCTION)
RB_GENERATE_INTERNAL(region_readies, vm_region, by_ready, size_compare, TREE_FUNCTION)
RB_GENERATE_INTERNAL(region_fences, vm_region, by_ready, fence_compare, TREE_FUNCTION)
RB_GENERATE_INTERNAL(region_chunks, region_chunk, by_base, chunk_compare, TREE_FUNCTION)

/*
 * Insert into a list that is ordered by id. New regions have the highest id, so they are appended. Regions that are put
 * back belong near the head, so the search starts there.
 */
#define LIST_INSERT_BY_ID(list, region, link) \
	do { \
		struct vm_region *last = TAILQ_LAST(list, region_list), *next_one; \
		if (!last || last->id < (region)->id) { \
			TAILQ_INSERT_TAIL(list, region, link); \
			break; \
		} \
		TAILQ_FOREACH(next_one, list, link) \
		if (next_one->id > (region)->id) \
			break; \
		if (next_one) \
			TAILQ_INSERT_BEFORE(next_one, region, link); \
		else \
			TAILQ_INSERT_TAIL(list, region, link); \
	} while (0)

/* ---- open and close ---- */

void region_set_open(struct region_set *set, const struct session_segment *session, uint64_t page_bytes,
	struct region_writer *writer)
{
	*set = (struct region_set){.session = session, .page_bytes = page_bytes, .writer = writer};
	RB_INIT(&set->chunks);
	RB_INIT(&set->holes);
	RB_INIT(&set->readies);
	TAILQ_INIT(&set->ready_ages);
	TAILQ_INIT(&set->ripe);
	TAILQ_INIT(&set->spares);
	for (int slot = 0; slot < VM_SLOTS; slot++) {
		RB_INIT(&set->streams[slot].sizes);
		RB_INIT(&set->streams[slot].fences);
		TAILQ_INIT(&set->streams[slot].ages);
		TAILQ_INIT(&set->streams[slot].unfenced);
	}
}

void region_set_close(struct region_set *set)
{
	const struct region_chunk *chunk = NULL;
	struct region_slab *slab;

	while (set->writer && (chunk = region_chunk_next(set, chunk)))
		for (struct vm_region *region = chunk->lowest; region; region = region->after)
			region_table_clear(set->writer, &region->row);
	while ((slab = set->slabs)) {
		set->slabs = slab->next;
		free(slab);
	}
}

/* ---- memory ---- */

int region_spare(struct region_set *set, uint32_t steps)
{
	while (set->spare_count < steps) {
		struct region_slab *slab = calloc(1, sizeof(*slab));

		if (!slab)
			return -ENOMEM;
		slab->next = set->slabs;
		set->slabs = slab;
		for (int i = 0; i < SLAB_REGIONS; i++)
			TAILQ_INSERT_TAIL(&set->spares, &slab->regions[i], by_age);
		set->spare_count += SLAB_REGIONS;
	}
	return 0;
}

static struct vm_region *region_make(struct region_set *set)
{
	struct vm_region *region = TAILQ_FIRST(&set->spares);

	TAILQ_REMOVE(&set->spares, region, by_age);
	set->spare_count--;
	return region;
}

static void region_drop(struct region_set *set, struct vm_region *region)
{
	if (set->writer)
		region_table_clear(set->writer, &region->row);
	TAILQ_INSERT_HEAD(&set->spares, region, by_age);
	set->spare_count++;
}

int region_chunk_open(struct region_chunk *chunk, uint64_t base, uint32_t pages)
{
	*chunk = (struct region_chunk){.base = base, .pages = pages};
	chunk->at = mmap(NULL, pages * sizeof(*chunk->at), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return chunk->at == MAP_FAILED ? -ENOMEM : 0;
}

void region_chunk_close(struct region_chunk *chunk)
{
	munmap(chunk->at, chunk->pages * sizeof(*chunk->at));
}

void region_chunk_add(struct region_set *set, struct region_chunk *chunk)
{
	struct vm_region *region = region_make(set);

	*region = (struct vm_region){
		.chunk = chunk, .count = chunk->pages, .kind = VM_HOLE, .moving = true, .row = REGION_ROW_NEW};
	chunk->lowest = region;
	RB_INSERT(region_chunks, &set->chunks, chunk);
	set->pages[VM_HOLE] += region->count;
	set->counts[VM_HOLE]++;
	region_put(set, region);
}

const struct region_chunk *region_chunk_next(const struct region_set *set, const struct region_chunk *chunk)
{
	struct region_chunk key = {.base = chunk ? chunk->base + 1 : 0};

	/* The tree's functions do not declare their constant arguments as const. */
	return RB_NFIND(region_chunks, (struct region_chunks *)&set->chunks, &key);
}

int region_find(const struct region_set *set, uint64_t address, struct vm_region **region)
{
	const struct region_chunk *chunk = RB_ROOT(&set->chunks), *below = NULL;
	uint64_t page;

	while (chunk) {
		if (chunk->base <= address)
			below = chunk;
		chunk = chunk->base <= address ? RB_RIGHT(chunk, by_base) : RB_LEFT(chunk, by_base);
	}
	if (!below)
		return -EINVAL;
	page = (address - below->base) / set->page_bytes;
	if (page >= below->pages || (address - below->base) % set->page_bytes)
		return -EINVAL;
	*region = below->at[page];
	return *region ? 0 : -ESTALE;
}

/* ---- insert into and remove from the trees ---- */

static void slot_mark(uint64_t *words, uint32_t slot, bool on)
{
	if (on)
		words[slot / 64] |= UINT64_C(1) << (slot % 64);
	else
		words[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
}

static void pending_in(struct region_set *set, struct vm_region *region)
{
	uint32_t slot = fence_slot(region->fence);

	RB_INSERT(region_fences, &set->streams[slot].fences, region);
	slot_mark(set->fenced, slot, true);
}

static void pending_out(struct region_set *set, struct vm_region *region)
{
	uint32_t slot = fence_slot(region->fence);

	RB_REMOVE(region_fences, &set->streams[slot].fences, region);
	if (RB_EMPTY(&set->streams[slot].fences))
		slot_mark(set->fenced, slot, false);
}

/* Insert into the trees that are ordered by size. */
static void sizes_in(struct region_set *set, struct vm_region *region)
{
	if (region->kind == VM_HOLE) {
		RB_INSERT(region_sizes, &set->holes, region);
		return;
	}
	RB_INSERT(region_sizes, &set->streams[region->slot].sizes, region);
	if (region->ready == VM_READY && is_stream_slot(region->slot))
		RB_INSERT(region_readies, &set->readies, region);
}

static void sizes_out(struct region_set *set, struct vm_region *region)
{
	if (region->kind == VM_HOLE) {
		RB_REMOVE(region_sizes, &set->holes, region);
		return;
	}
	RB_REMOVE(region_sizes, &set->streams[region->slot].sizes, region);
	if (region->ready == VM_READY && is_stream_slot(region->slot))
		RB_REMOVE(region_readies, &set->readies, region);
}

/*
 * Add to the sums of available free pages for a region's slot and readiness. Negative numbers wrap around as uint64_t.
 */
static void free_sum(struct region_set *set, const struct vm_region *region, uint64_t pages)
{
	struct region_stream *stream = &set->streams[region->slot];

	set->available += pages;
	stream->pages += pages;
	if (region->slot == VM_RECLAIMABLE) {
		set->reclaimable += pages;
	} else if (region->ready == VM_READY && is_stream_slot(region->slot)) {
		set->ready += pages;
		stream->ready += pages;
	}
}

/* Insert a stream's region into the tree or list for its readiness. */
static void wait_in(struct region_set *set, struct vm_region *region)
{
	switch (region->ready) {
	case VM_READY: TAILQ_INSERT_TAIL(&set->ready_ages, region, queue); break;
	case VM_PENDING: pending_in(set, region); break;
	default:
		LIST_INSERT_BY_ID(&set->streams[region->slot].unfenced, region, queue);
		slot_mark(set->loose, region->slot, true);
		set->unfenced++;
	}
}

static void wait_out(struct region_set *set, struct vm_region *region)
{
	switch (region->ready) {
	case VM_READY: TAILQ_REMOVE(&set->ready_ages, region, queue); break;
	case VM_PENDING: pending_out(set, region); break;
	default:
		TAILQ_REMOVE(&set->streams[region->slot].unfenced, region, queue);
		if (TAILQ_EMPTY(&set->streams[region->slot].unfenced))
			slot_mark(set->loose, region->slot, false);
		set->unfenced--;
	}
}

static void free_in(struct region_set *set, struct vm_region *region)
{
	if (region->guarded) {
		wait_in(set, region);
		set->guarded += region->count;
		return;
	}
	sizes_in(set, region);
	LIST_INSERT_BY_ID(&set->streams[region->slot].ages, region, by_age);
	if (is_stream_slot(region->slot))
		wait_in(set, region);
	if (region->slot != VM_RECLAIMABLE)
		slot_mark(set->used, region->slot, true);
	free_sum(set, region, region->count);
}

static void free_out(struct region_set *set, struct vm_region *region)
{
	struct region_stream *stream = &set->streams[region->slot];

	if (region->guarded) {
		wait_out(set, region);
		set->guarded -= region->count;
		return;
	}
	sizes_out(set, region);
	TAILQ_REMOVE(&stream->ages, region, by_age);
	if (is_stream_slot(region->slot))
		wait_out(set, region);
	if (region->slot != VM_RECLAIMABLE && TAILQ_EMPTY(&stream->ages))
		slot_mark(set->used, region->slot, false);
	free_sum(set, region, 0 - (uint64_t)region->count);
}

static void region_in(struct region_set *set, struct vm_region *region)
{
	region->moving = false;
	switch (region->kind) {
	case VM_HOLE: sizes_in(set, region); break;
	case VM_FREE: free_in(set, region); break;
	case VM_ALLOCATED: region->chunk->at[region->first] = region; break;
	default:
		if (region->ready == VM_PENDING)
			pending_in(set, region);
		else
			TAILQ_INSERT_TAIL(&set->ripe, region, by_age);
	}
	region_show(set, region);
}

static void region_out(struct region_set *set, struct vm_region *region)
{
	switch (region->kind) {
	case VM_HOLE: sizes_out(set, region); break;
	case VM_FREE: free_out(set, region); break;
	case VM_ALLOCATED: region->chunk->at[region->first] = NULL; break;
	default:
		if (region->ready == VM_PENDING)
			pending_out(set, region);
		else
			TAILQ_REMOVE(&set->ripe, region, by_age);
	}
	region->moving = true;
}

/* ---- find ---- */

/*
 * Find the first region with at least `count` pages in a tree that is ordered by size: RB_NFIND() without a region to
 * compare with.
 */
#define FIRST_OF(tree, link, count) \
	({ \
		struct vm_region *at_ = RB_ROOT(tree), *first_ = NULL; \
		while (at_) { \
			if (at_->count >= (count)) { \
				first_ = at_; \
				at_ = RB_LEFT(at_, link); \
			} else { \
				at_ = RB_RIGHT(at_, link); \
			} \
		} \
		first_; \
	})

struct vm_region *region_best(struct region_set *set, uint32_t slot, uint32_t count)
{
	return FIRST_OF(&set->streams[slot].sizes, by_size, count);
}

struct vm_region *region_best_hole(struct region_set *set, uint32_t count)
{
	return FIRST_OF(&set->holes, by_size, count);
}

struct vm_region *region_best_ready(struct region_set *set, uint32_t count)
{
	struct vm_region *found[] =
		{
			FIRST_OF(&set->readies, by_ready, count),
			region_best(set, VM_NONE, count),
			region_best(set, VM_RECLAIMABLE, count),
		},
			 *best = NULL;

	for (int i = 0; i < 3; i++)
		if (found[i] && (!best || found[i]->count < best->count))
			best = found[i];
	return best;
}

/* ---- take and put ---- */

/* Check that the region and its neighbors are in order and could not be joined; see region_check_near(). */
static void near_check(const struct region_set *set, const struct vm_region *region)
{
	char text[256] = "";

	GPOOL_INVARIANT(region_check_near(set, region, text, sizeof(text)) == 0, "%s", text);
}

/* Split off the first `count` pages of a region that is in no set. The rest keeps all other fields. */
struct vm_region *region_split(struct region_set *set, struct vm_region *region, uint32_t count)
{
	struct vm_region *piece = region_make(set);

	*piece = *region;
	piece->row = REGION_ROW_NEW;
	piece->count = count;
	piece->after = region;
	if (piece->before)
		piece->before->after = piece;
	else
		piece->chunk->lowest = piece;
	region->before = piece;
	region->first += count;
	region->count -= count;
	set->counts[region->kind]++;
	GPOOL_INVARIANT(count >= 1 && region->count >= 1 && region->first == piece->first + count,
		"%u page%s of a region that has %u left at page %u", count, plural(count), region->count,
		region->first);
	return piece;
}

struct vm_region *region_carve(struct region_set *set, struct vm_region *region, uint32_t count)
{
	struct vm_region *piece;

	if (region->count == count) {
		region_out(set, region);
		near_check(set, region);
		return region;
	}
	/*
	 * The rest keeps its place in all orders except those by size. Among equal fences the address decides, and the
	 * order of addresses does not change.
	 */
	sizes_out(set, region);
	piece = region_split(set, region, count);
	piece->moving = true;
	sizes_in(set, region);
	if (region->kind == VM_FREE)
		free_sum(set, region, 0 - (uint64_t)count);
	region_show(set, region);
	near_check(set, piece);
	return piece;
}

void region_turn(struct region_set *set, struct vm_region *region, enum vm_region_kind kind)
{
	set->pages[region->kind] -= region->count;
	set->counts[region->kind]--;
	set->pages[kind] += region->count;
	set->counts[kind]++;
	region->kind = kind;
	if (kind == VM_HOLE || kind == VM_PENDING_UNMAP)
		region->held = region->offered = false;
	if (kind == VM_HOLE) {
		region->ready = VM_READY;
		region->slot = VM_NONE;
		region->fence = region->id = 0;
	}
}

static bool can_join(const struct vm_region *a, const struct vm_region *b)
{
	if (a->kind != b->kind || b->moving)
		return false;
	return a->kind == VM_HOLE || (a->kind == VM_FREE && a->slot == b->slot && !a->guarded && !b->guarded);
}

/*
 * Merge a moving region with its upper neighbor, which moves too. The lower one gets all pages, and the later of the
 * two fences.
 */
static void merge_above(struct region_set *set, struct vm_region *region)
{
	struct vm_region *above = region->after;

	region->count += above->count;
	region->after = above->after;
	if (region->after)
		region->after->before = region;
	if (above->ready > region->ready)
		region->ready = above->ready;
	if (above->fence > region->fence)
		region->fence = above->fence;
	if (region->ready == VM_UNFENCED)
		region->fence = 0;
	if (above->id > region->id)
		region->id = above->id;
	region->held |= above->held;
	region->offered |= above->offered;
	set->counts[region->kind]--;
	region_drop(set, above);
}

struct vm_region *region_put(struct region_set *set, struct vm_region *region)
{
	if (region->after && can_join(region, region->after)) {
		region_out(set, region->after);
		merge_above(set, region);
	}
	if (region->before && can_join(region, region->before)) {
		region = region->before;
		region_out(set, region);
		merge_above(set, region);
	}
	region_in(set, region);
	near_check(set, region);
	return region;
}

static void ready_set(const struct region_set *set, struct vm_region *region, uint64_t fence)
{
	region->fence = fence;
	region->ready = fence_signaled(set->session, fence) ? VM_READY : VM_PENDING;
}

struct vm_region *region_put_free(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence)
{
	region_turn(set, region, VM_FREE);
	region->slot = (uint16_t)slot;
	region->id = ++set->last_id;
	if (is_stream_slot(region->slot) && !fence) {
		region->fence = 0;
		region->ready = VM_UNFENCED;
	} else {
		ready_set(set, region, fence);
	}
	return region_put(set, region);
}

struct vm_region *region_put_released(
	struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence, bool guard)
{
	if (region->ready == VM_READY || slot == region->slot || !guard ||
		(region->ready == VM_PENDING && fence_signaled(set->session, region->fence)))
		return region_put_free(set, region, slot, fence);
	/* An UNFENCED guard has no fence. */
	if (slot == VM_NONE)
		return region_put_free(set, region, region->slot, region->fence);
	region_turn(set, region, VM_FREE);
	region->id = ++set->last_id;
	region->guarded = true;
	region->next_slot = (uint16_t)slot;
	region->next_fence = fence;
	region_in(set, region);
	near_check(set, region);
	return region;
}

void region_put_pending_unmap(struct region_set *set, struct vm_region *region, uint64_t fence)
{
	region_turn(set, region, VM_PENDING_UNMAP);
	ready_set(set, region, fence);
	region_in(set, region);
	near_check(set, region);
}

void region_put_allocated(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t bytes)
{
	region_turn(set, region, VM_ALLOCATED);
	region->slot = (uint16_t)slot;
	if (region->ready == VM_READY)
		region->fence = 0;
	region->captured = region->released = false;
	region->held = true;
	region->id = ++set->last_id;
	region->bytes = bytes;
	region_in(set, region);
	near_check(set, region);
}

/* ---- readiness ---- */

/* Change the readiness of a region that stays in the sets. */
static void ready_change(struct region_set *set, struct vm_region *region, uint64_t fence)
{
	if (region->kind == VM_PENDING_UNMAP) {
		pending_out(set, region);
		ready_set(set, region, fence);
		TAILQ_INSERT_TAIL(&set->ripe, region, by_age);
		return;
	}
	if (region->guarded) {
		region_out(set, region);
		ready_set(set, region, fence);
		region->guarded = region->ready != VM_READY;
		if (region->guarded)
			region_in(set, region);
		else
			region_put_free(set, region, region->next_slot, region->next_fence);
		return;
	}
	sizes_out(set, region);
	wait_out(set, region);
	free_sum(set, region, 0 - (uint64_t)region->count);
	ready_set(set, region, fence);
	sizes_in(set, region);
	wait_in(set, region);
	free_sum(set, region, region->count);
	region_show(set, region);
}

void region_sweep(struct region_set *set)
{
	for (uint32_t word = 0; word < VM_WORDS; word++) {
		for (uint64_t busy = set->fenced[word]; busy; busy &= busy - 1) {
			struct region_fences *fences =
				&set->streams[word * 64 + (uint32_t)__builtin_ctzll(busy)].fences;
			struct vm_region *region;

			while ((region = RB_MIN(region_fences, fences)) && fence_signaled(set->session, region->fence))
				ready_change(set, region, region->fence);
		}
	}
}

struct vm_region *region_ripe(struct region_set *set)
{
	struct vm_region *region = TAILQ_FIRST(&set->ripe);

	if (region)
		region_out(set, region);
	return region;
}

void region_fence(struct region_set *set, uint32_t slot, uint64_t fence, uint64_t last_id)
{
	struct vm_region *region;

	while ((region = TAILQ_FIRST(&set->streams[slot].unfenced)) && region->id <= last_id)
		ready_change(set, region, fence);
}

void region_stream_end(struct region_set *set, uint32_t slot)
{
	struct region_stream *stream = &set->streams[slot];
	struct vm_region *region;

	while ((region = TAILQ_FIRST(&stream->ages))) {
		region_out(set, region);
		region_put_free(set, region, VM_NONE, 0);
	}
	while ((region = TAILQ_FIRST(&stream->unfenced)))
		ready_change(set, region, 0);
	while ((region = RB_MIN(region_fences, &stream->fences)))
		ready_change(set, region, 0);
}

/* ---- choose regions for other uses ---- */

/* Harvest a region, or the part of it that is still needed. */
static void harvest_take(
	struct region_set *set, struct vm_region *region, uint32_t pages, struct region_harvest *harvest)
{
	uint32_t wanted = pages - harvest->pages;
	struct vm_region *piece;

	region_out(set, region);
	if (region->count <= wanted) {
		piece = region;
	} else {
		piece = region_split(set, region, wanted);
		harvest->rest_id = region->id = ++set->last_id;
		region_in(set, region);
	}
	harvest->pages += piece->count;
	TAILQ_INSERT_TAIL(&harvest->regions, piece, by_age);
}

/* Return the oldest region that is available to every stream. */
static struct vm_region *oldest_ready(struct region_set *set)
{
	struct vm_region *ready = TAILQ_FIRST(&set->ready_ages), *none = TAILQ_FIRST(&set->streams[VM_NONE].ages);

	return !none || (ready && ready->id < none->id) ? ready : none;
}

/* Return the oldest free region of any stream. */
static struct vm_region *oldest_used(struct region_set *set)
{
	struct vm_region *oldest = NULL;

	for (uint32_t word = 0; word < VM_WORDS; word++) {
		for (uint64_t used = set->used[word]; used; used &= used - 1) {
			struct vm_region *region =
				TAILQ_FIRST(&set->streams[word * 64 + (uint32_t)__builtin_ctzll(used)].ages);

			if (!oldest || region->id < oldest->id)
				oldest = region;
		}
	}
	return oldest;
}

void region_harvest(struct region_set *set, uint32_t slot, uint32_t pages, struct region_harvest *harvest)
{
	struct vm_region *region;

	*harvest = (struct region_harvest){.pages = 0};
	TAILQ_INIT(&harvest->regions);
	while (harvest->pages < pages && (region = TAILQ_FIRST(&set->streams[slot].ages)))
		harvest_take(set, region, pages, harvest);
	while (harvest->pages < pages && (region = oldest_ready(set)))
		harvest_take(set, region, pages, harvest);
	while (harvest->pages < pages && (region = oldest_used(set)))
		harvest_take(set, region, pages, harvest);
}

void region_harvest_undo(struct region_set *set, struct region_harvest *harvest)
{
	struct vm_region *last = TAILQ_LAST(&harvest->regions, region_list), *region;

	/* Join the part that was split off, so that the region is as before: the join keeps the older id. */
	if (last && harvest->rest_id && last->after && last->after->id == harvest->rest_id &&
		can_join(last, last->after)) {
		uint64_t id = last->id;

		region_out(set, last->after);
		merge_above(set, last);
		last->id = id;
	}
	while ((region = TAILQ_FIRST(&harvest->regions))) {
		TAILQ_REMOVE(&harvest->regions, region, by_age);
		region_put(set, region);
	}
}

/* ---- windows ---- */

/* Return true if a stream can use the region for a new place at once. */
static bool is_usable(const struct vm_region *region, uint32_t slot)
{
	if (region->moving)
		return false;
	return region->kind == VM_HOLE ||
		(region->kind == VM_FREE && !region->guarded && region->slot != VM_RECLAIMABLE &&
			(region->slot == slot || region->ready == VM_READY));
}

/* An edge of windows, which moves upwards through a run of usable regions. */
struct edge {
	struct vm_region *region;
	uint32_t mapped; /* number of mapped pages of the run below the region */
};

/* Move an edge up to a page. Return the number of mapped pages below the page. */
static uint32_t edge_move(struct edge *edge, uint32_t page)
{
	for (; edge->region->first + edge->region->count < page; edge->region = edge->region->after)
		if (edge->region->kind == VM_FREE)
			edge->mapped += edge->region->count;
	return edge->mapped + (edge->region->kind == VM_FREE ? page - edge->region->first : 0);
}

/* The two edges of a window, which moves upwards. */
struct edges {
	struct edge low, high;
};

static void window_look(struct edges *edges, uint32_t first, uint32_t count, struct region_window *best)
{
	uint32_t below = edge_move(&edges->low, first), mapped = edge_move(&edges->high, first + count) - below;

	if (mapped > best->mapped)
		*best = (struct region_window){edges->low.region, first, mapped};
}

/*
 * Look at the windows in a run of usable regions. The best one begins or ends with a free region, as far as the run
 * permits it. Return the region after the run.
 */
static struct vm_region *run_look(struct vm_region *run, uint32_t slot, uint32_t count, struct region_window *best)
{
	struct edges begins = {{run, 0}, {run, 0}}, ends = begins;
	struct vm_region *at, *after = run;
	uint32_t pages = 0;

	for (; after && is_usable(after, slot); after = after->after)
		pages += after->count;
	if (pages < count)
		return after;
	for (at = run; at != after; at = at->after) {
		uint32_t last = run->first + pages - count, above = at->first + at->count;

		if (at->kind != VM_FREE)
			continue;
		window_look(&begins, at->first < last ? at->first : last, count, best);
		window_look(&ends, above > run->first + count ? above - count : run->first, count, best);
	}
	return after;
}

bool region_window(const struct region_set *set, uint32_t slot, uint32_t count, struct region_window *window)
{
	const struct region_chunk *chunk = NULL;

	*window = (struct region_window){NULL, 0, 0};
	while ((chunk = region_chunk_next(set, chunk)))
		for (struct vm_region *region = chunk->lowest; region;)
			region = is_usable(region, slot) ? run_look(region, slot, count, window) : region->after;
	return window->mapped != 0;
}

void region_window_take(
	struct region_set *set, const struct region_window *window, uint32_t count, struct region_list *parts)
{
	struct vm_region *region = window->region;

	/* The lower edge may be the end of the region. */
	while (region->first + region->count <= window->first)
		region = region->after;
	for (; count; region = region->after) {
		struct vm_region *part = region;

		region_out(set, region);
		if (region->first < window->first)
			region_in(set, region_split(set, region, window->first - region->first));
		if (region->count > count) {
			part = region_split(set, region, count);
			region_in(set, region);
		}
		count -= part->count;
		region_show(set, part);
		TAILQ_INSERT_TAIL(parts, part, by_age);
		near_check(set, part);
		region = part;
	}
}

struct vm_region *region_unite(struct region_set *set, struct region_list *parts, uint32_t slot)
{
	struct vm_region *first = TAILQ_FIRST(parts), *part;

	TAILQ_FOREACH(part, parts, by_age)
	{
		if (part->kind == VM_HOLE)
			region_turn(set, part, VM_FREE);
		/* The fence of another slot is signaled. */
		if (part->ready == VM_READY)
			part->fence = 0;
		part->slot = (uint16_t)slot;
	}
	while ((part = TAILQ_NEXT(first, by_age))) {
		TAILQ_REMOVE(parts, part, by_age);
		merge_above(set, first);
	}
	TAILQ_REMOVE(parts, first, by_age);
	return first;
}

struct vm_region *region_idle(struct region_set *set, uint64_t pages)
{
	struct vm_region *region = oldest_ready(set);

	if (!region)
		return NULL;
	return region_carve(set, region, region->count < pages ? region->count : (uint32_t)pages);
}

struct vm_region *region_reclaimable(struct region_set *set, const struct region_chunk *chunk, uint64_t pages)
{
	struct vm_region *region;

	TAILQ_FOREACH(region, &set->streams[VM_RECLAIMABLE].ages, by_age)
	if (!chunk || region->chunk == chunk)
		return region_carve(set, region, region->count < pages ? region->count : (uint32_t)pages);
	return NULL;
}
