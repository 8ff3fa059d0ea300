/* elastic.c - the slots of elastic ranges: their states, and decommit, offer and reclaim. See elastic.h. */
#include "client/vm/elastic.h"

#include "client/core/last_error.h"
#include "client/core/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- slot states ---- */

void elastic_set(struct elastic *elastic, uint32_t slot, enum elastic_state state)
{
	static const uint8_t next[ELASTIC_STATES] = {
		[ELASTIC_HOLE] = 1 << ELASTIC_MOVING,
		[ELASTIC_RECLAIMABLE] = 1 << ELASTIC_MOVING | 1 << ELASTIC_TAKEN | 1 << ELASTIC_HOLE,
		[ELASTIC_RELEASED] =
			1 << ELASTIC_MOVING | 1 << ELASTIC_TAKEN | 1 << ELASTIC_RECLAIMABLE | 1 << ELASTIC_HOLE,
		[ELASTIC_OFFERED] = 1 << ELASTIC_HELD | 1 << ELASTIC_RECLAIMABLE,
		[ELASTIC_HELD] =
			1 << ELASTIC_RECLAIMABLE | 1 << ELASTIC_RELEASED | 1 << ELASTIC_OFFERED | 1 << ELASTIC_TAKEN,
		[ELASTIC_MOVING] =
			1 << ELASTIC_TAKEN | 1 << ELASTIC_RECLAIMABLE | 1 << ELASTIC_HOLE | 1 << ELASTIC_SHARED,
		[ELASTIC_TAKEN] =
			1 << ELASTIC_HELD | 1 << ELASTIC_RELEASED | 1 << ELASTIC_RECLAIMABLE | 1 << ELASTIC_SHARED,
		[ELASTIC_SHARED] = 1 << ELASTIC_HOLE,
	};
	uint32_t was = elastic->slots[slot].state;

	assert(next[was] >> state & 1);
	elastic->count[was]--;
	elastic->count[state]++;
	elastic->slots[slot].state = state;
	elastic->used[slot / ELASTIC_GROUP / 64] |= UINT64_C(1) << (slot / ELASTIC_GROUP % 64);
}

/* Return the first set bit in [bit, end), or `end` if none is set. */
static uint32_t bit_next(const uint64_t *bits, uint32_t bit, uint32_t end)
{
	while (bit < end) {
		uint64_t word = bits[bit / 64] >> (bit % 64);

		if (word) {
			bit += (uint32_t)__builtin_ctzll(word);
			return bit < end ? bit : end;
		}
		bit = bit / 64 * 64 + 64;
	}
	return end;
}

uint32_t elastic_used(const struct elastic *elastic, uint32_t *slot)
{
	uint32_t groups = (elastic->space.slot_count - 1) / ELASTIC_GROUP + 1,
		 first = *slot / ELASTIC_GROUP + (*slot % ELASTIC_GROUP != 0), end;

	first = bit_next(elastic->used, first, groups);
	for (end = first; end < groups && elastic_bit(elastic->used, end);)
		end++;
	*slot = first * ELASTIC_GROUP;
	end = end < groups ? end * ELASTIC_GROUP : elastic->space.slot_count;
	return end > *slot ? end - *slot : 0;
}

static void slots_park(struct elastic *elastic, uint32_t slot, uint32_t count)
{
	if (!count)
		return;
	for (uint32_t i = slot; i < slot + count; i++)
		elastic_set(elastic, i, ELASTIC_RECLAIMABLE);
	vm_park(&elastic->space, slot, count);
}

static uint32_t page_of(const struct elastic *elastic, uint32_t slot)
{
	return elastic->space.pages[slot] - 1;
}

/* If GPU work uses the slot's handle, release it and return true. */
static bool slot_release(struct elastic *elastic, uint32_t slot)
{
	struct gpool *pool = elastic->space.pool;

	if (likely(!handle_pending(pool, page_of(elastic, slot))))
		return false;
	elastic->slots[slot].tag = handle_release(pool, page_of(elastic, slot));
	elastic_set(elastic, slot, ELASTIC_RELEASED);
	return true;
}

void elastic_drop(struct elastic *elastic, uint32_t slot)
{
	if (!slot_release(elastic, slot))
		slots_park(elastic, slot, 1);
}

/*
 * Return true if the handle of a mapped slot still belongs to this session, as shown by its free bits and page words.
 * The result may be outdated immediately.
 */
static bool still_ours(const struct elastic *elastic, uint32_t slot)
{
	const struct gpool *pool = elastic->space.pool;

	switch (elastic->slots[slot].state) {
	case ELASTIC_RECLAIMABLE:
		return atomic_load_explicit(
			       &pool->session.free_bits[page_of(elastic, slot) / 64], memory_order_acquire) >>
			(page_of(elastic, slot) % 64) &
			1;
	case ELASTIC_RELEASED:
	case ELASTIC_OFFERED: return handle_is_here(pool, page_of(elastic, slot), elastic->slots[slot].tag);
	case ELASTIC_HELD:
	case ELASTIC_TAKEN: return true;
	default: return false;
	}
}

struct vm_take_options elastic_options(const struct elastic *elastic)
{
	const struct block_attributes *attributes = &elastic->range->attributes;

	return (struct vm_take_options){.usage = attributes->flags & BLOCK_TYPE_MASK, .owner_id = attributes->owner_id};
}

bool elastic_pages_check(const struct elastic *elastic, const struct elastic_pages *pages)
{
	return pages->count && pages->times && (pages->times == 1 || pages->stride >= pages->count) &&
		pages->first + (uint64_t)(pages->times - 1) * pages->stride + pages->count <=
		elastic->range->page_count;
}

/* ---- unmap for other trust domains ---- */

/* Unmap the slots that other trust domains need, unless another thread holds the lock. */
static bool elastic_let_go(struct vm_space *space)
{
	struct elastic *elastic = space->owner;
	bool all = true;

	if (pthread_mutex_trylock(&elastic->lock))
		return false;
	FOR_USED(elastic, slot)
	{
		/* If an offered handle is needed elsewhere, the agent has taken it. */
		if (elastic->slots[slot].state == ELASTIC_OFFERED && !still_ours(elastic, slot))
			elastic_hold_offered(elastic, slot);
		if (elastic->slots[slot].state != ELASTIC_RECLAIMABLE && elastic->slots[slot].state != ELASTIC_RELEASED)
			continue;
		all &= vm_let_go(space, slot, 1);
		if (!space->pages[slot])
			elastic_set(elastic, slot, ELASTIC_HOLE);
	}
	elastic_unlock(elastic);
	return all;
}

/* ---- open and close ---- */

/* Allocate the slots and the bitmaps. The kernel provides the memory on first use. */
static int memory_open(struct elastic *elastic, uint32_t page_count)
{
	size_t slots = elastic->space.slot_count * sizeof(*elastic->slots),
	       bits = (page_count / 64 + 1) * sizeof(uint64_t);
	char *memory;

	elastic->bytes = slots + 2 * bits + (elastic->space.slot_count / ELASTIC_GROUP / 64 + 1) * sizeof(uint64_t);
	memory = mmap(NULL, elastic->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	elastic->slots = (struct elastic_slot *)(void *)memory;
	elastic->committed = (uint64_t *)(void *)(memory + slots);
	elastic->captured = (uint64_t *)(void *)(memory + slots + bits);
	elastic->used = (uint64_t *)(void *)(memory + slots + 2 * bits);
	return 0;
}

int elastic_open(struct gpool_range *range)
{
	struct elastic *elastic = calloc(1, sizeof(*elastic));

	if (!elastic)
		return -ENOMEM;
	pthread_mutex_init(&elastic->lock, NULL);
	elastic->range = range;
	elastic->space.owner = elastic;
	elastic->space.let_go = elastic_let_go;
	/* Hold the lock until the range is complete, so that elastic_let_go() skips it. */
	pthread_mutex_lock(&elastic->lock);
	if (vm_space_open(range->pool, range->page_count * range->pool->page_bytes, &elastic->space))
		goto free_elastic;
	if (memory_open(elastic, range->page_count))
		goto close_space;
	elastic_unlock(elastic);
	range->elastic = elastic;
	range->address = range->va = elastic->space.base;
	range->bytes = elastic->space.bytes;
	range->mapped = true;
	return 0;
close_space:
	vm_space_close(&elastic->space);
free_elastic:
	elastic_unlock(elastic);
	pthread_mutex_destroy(&elastic->lock);
	free(elastic);
	return -ENOMEM;
}

void elastic_close(struct elastic *elastic)
{
	handles_offered(elastic->space.pool, -elastic->offered_told);
	elastic_shared_close(elastic);
	if (elastic->zeroing)
		gpu_stream_destroy(elastic->space.pool->gpu, elastic->zeroing);
	vm_space_close(&elastic->space);
	munmap(elastic->slots, elastic->bytes);
	pthread_mutex_destroy(&elastic->lock);
	free(elastic);
}

/* ---- uses drop to 0; the callers hold the lock ---- */

/* A run of slots whose uses have dropped to 0, so that adjacent slots become reclaimable with one call. */
struct dropping {
	struct elastic *elastic;
	uint32_t slot, count;
};

static void drop_one(struct dropping *dropping, uint32_t page)
{
	struct elastic *elastic = dropping->elastic;
	uint32_t slot = elastic_slot_of(elastic, page);

	if (--elastic->slots[slot].uses || slot_release(elastic, slot))
		return;
	if (slot != dropping->slot + dropping->count) {
		slots_park(elastic, dropping->slot, dropping->count);
		dropping->slot = slot;
		dropping->count = 0;
	}
	dropping->count++;
}

static void drop_end(struct dropping *dropping)
{
	slots_park(dropping->elastic, dropping->slot, dropping->count);
}

/* Iterate over the pages in [first, end) whose bit is set. The loop may clear the bit. */
#define FOR_BITS(bits, page, first, end) \
	for (uint32_t page = bit_next(bits, first, end); page < (end); page = bit_next(bits, page + 1, end))

/* FOR_BITS() for all pieces of a struct elastic_pages. */
#define FOR_BACKED(elastic, pages, page) \
	for (uint32_t piece_ = 0; piece_ < (pages)->times; piece_++) \
	FOR_BITS((elastic)->committed, page, (pages)->first + piece_ * (pages)->stride, \
		(pages)->first + piece_ * (pages)->stride + (pages)->count)

static void page_decommit(struct elastic *elastic, uint32_t page)
{
	elastic->committed[page / 64] &= ~(UINT64_C(1) << (page % 64));
	elastic->committed_pages--;
}

/* ---- offer and reclaim ---- */

bool elastic_hold_offered(struct elastic *elastic, uint32_t slot)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = slot * per_handle;
	struct elastic_slot *at = &elastic->slots[slot];

	if (likely(handle_reclaim(elastic->space.pool, page_of(elastic, slot), at->tag))) {
		elastic_set(elastic, slot, ELASTIC_HELD);
		return true;
	}
	FOR_BITS(elastic->committed, page, first, first + per_handle)
	page_decommit(elastic, page);
	at->uses = 0;
	elastic_set(elastic, slot, ELASTIC_RECLAIMABLE);
	return false;
}

void elastic_discard(struct elastic *elastic, uint32_t slot)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = slot * per_handle;
	struct dropping dropping = {.elastic = elastic};

	FOR_BITS(elastic->committed, page, first, first + per_handle)
	{
		page_decommit(elastic, page);
		drop_one(&dropping, page);
	}
	drop_end(&dropping);
}

bool elastic_is_pending(const struct elastic *elastic, uint32_t slot)
{
	const struct elastic_slot *at = &elastic->slots[slot];

	return (at->state == ELASTIC_RELEASED || at->state == ELASTIC_OFFERED) &&
		handle_is_here(elastic->space.pool, page_of(elastic, slot), at->tag) &&
		handle_pending(elastic->space.pool, page_of(elastic, slot));
}

/* Hold the offered slots of these pages again. */
static void offered_hold(struct elastic *elastic, const struct elastic_pages *pages)
{
	if (!elastic->count[ELASTIC_OFFERED])
		return;
	FOR_BACKED(elastic, pages, page)
	if (elastic->slots[elastic_slot_of(elastic, page)].state == ELASTIC_OFFERED)
		elastic_hold_offered(elastic, elastic_slot_of(elastic, page));
}

/*
 * Add the fence to the handles of the committed pages. Return: 0, -ENOMEM. If this fails, some handles already have the
 * fence, which is harmless.
 */
static int fence_all(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence)
{
	uint32_t last = UINT32_MAX;

	FOR_BACKED(elastic, pages, page)
	{
		uint32_t slot = elastic_slot_of(elastic, page);

		if (slot != last && !handle_fence(elastic->space.pool, page_of(elastic, slot), fence))
			return fail(-ENOMEM,
				"page %u: all %d joint fences are used by unfinished work; wait for a fence", page,
				SESSION_JOINS);
		last = slot;
	}
	return 0;
}

/* Report which page of this page's handle prevents the offer. */
static COLD int offer_refuse(const struct elastic *elastic, uint32_t page)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = page / per_handle * per_handle;

	for (page = first; page + 1 < first + per_handle; page++)
		if (!elastic_bit(elastic->committed, page) || elastic_bit(elastic->captured, page))
			break;
	return fail(
		-EINVAL, "page %u is %s", page, elastic_bit(elastic->committed, page) ? "captured" : "not committed");
}

/* Check that the call covers only whole handles that are committed and not captured. */
static int offer_check(const struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool);

	if (pages->first % per_handle || pages->count % per_handle || (pages->times > 1 && pages->stride % per_handle))
		return fail(-EINVAL, "first is %u and count is %u; both must be multiples of %u, the pages of a handle",
			pages->first, pages->count, per_handle);
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride;

		for (uint32_t page = first; page < first + pages->count; page++) {
			const struct elastic_slot *at = &elastic->slots[elastic_slot_of(elastic, page)];

			if (!elastic_bit(elastic->committed, page) || at->uses != per_handle ||
				(at->state != ELASTIC_HELD && at->state != ELASTIC_OFFERED))
				return offer_refuse(elastic, page);
		}
	}
	return 0;
}

int elastic_offer(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence, uint64_t owner_id)
{
	struct gpool *pool = elastic->space.pool;
	int error;

	if (!owner_id)
		owner_id = elastic->range->attributes.owner_id;
	pthread_mutex_lock(&elastic->lock);
	error = elastic->range->mapped ? offer_check(elastic, pages) : fail_asleep();
	if (!error)
		offered_hold(elastic, pages);
	if (!error && fence_pending(pool, (struct gpool_fence){fence}))
		error = fence_all(elastic, pages, fence);
	FOR_BACKED(elastic, pages, page)
	{
		uint32_t slot = elastic_slot_of(elastic, page);

		if (error || elastic->slots[slot].state != ELASTIC_HELD)
			continue;
		elastic_set(elastic, slot, ELASTIC_OFFERED);
		elastic->slots[slot].tag = handle_offer(pool, page_of(elastic, slot), owner_id);
	}
	elastic_unlock(elastic);
	pool_wake_waiters(pool);
	return error;
}

int elastic_reclaim(struct elastic *elastic, const struct elastic_pages *pages, uint8_t *kept)
{
	uint32_t at = 0;
	int lost = 0;

	pthread_mutex_lock(&elastic->lock);
	if (unlikely(!elastic->range->mapped)) {
		elastic_unlock(elastic);
		return fail_asleep();
	}
	offered_hold(elastic, pages);
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride;

		for (uint32_t page = first; page < first + pages->count; page++) {
			bool is_kept = elastic_bit(elastic->committed, page);

			lost += !is_kept;
			if (kept)
				kept[at++] = is_kept;
		}
	}
	elastic_unlock(elastic);
	return lost;
}

bool elastic_is_here(struct elastic *elastic, const struct elastic_pages *pages)
{
	bool all = true;

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride;

		for (uint32_t page = first; page < first + pages->count && all; page++)
			all = elastic_bit(elastic->committed, page) &&
				still_ours(elastic, elastic_slot_of(elastic, page));
	}
	elastic_unlock(elastic);
	return all;
}

/* ---- decommit ---- */

int elastic_decommit(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence)
{
	struct gpool *pool = elastic->space.pool;
	struct dropping dropping = {.elastic = elastic};
	int error = 0;

	pthread_mutex_lock(&elastic->lock);
	offered_hold(elastic, pages);
	if (fence_pending(pool, (struct gpool_fence){fence}))
		error = fence_all(elastic, pages, fence);
	if (!error) {
		FOR_BACKED(elastic, pages, page)
		{
			page_decommit(elastic, page);
			drop_one(&dropping, page);
		}
		drop_end(&dropping);
	}
	elastic_unlock(elastic);
	/* Other sessions can use the released pages. */
	if (fence)
		pool_wake_waiters(pool);
	return error;
}

/* ---- pass handles to another owner ---- */

void elastic_blocks(const struct elastic *elastic, const struct elastic_pages *pages, struct gpool_block *blocks,
	uint32_t *first_pages)
{
	const struct gpool *pool = elastic->space.pool;
	uint32_t first = elastic_slot_of(elastic, pages->first);

	for (uint32_t i = 0; i < pages->count / handle_pages(pool); i++) {
		uint32_t page = page_of(elastic, first + i);
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_acquire);

		first_pages[i] = page;
		blocks[i] = (struct gpool_block){
			.page = page,
			.page_count = handle_pages(pool),
			.tag = atomic_load_explicit(&block_entry(pool, page)->tag, memory_order_acquire),
			/*
			 * While the agent inspects the page, its word has another state. The block is pinned, so this
			 * session owns it.
			 */
			.generation = page_word_make(PAGE_LEASED, pool->id, page_word_generation(word)),
		};
	}
}

int elastic_can_give(
	struct elastic *elastic, const struct elastic_pages *pages, struct gpool_block *blocks, uint32_t *first_pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = elastic_slot_of(elastic, pages->first),
		 error = 0;

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t slot = first; slot < first + pages->count / per_handle; slot++)
		error |= elastic->slots[slot].state != ELASTIC_HELD || elastic->slots[slot].uses != per_handle;
	for (uint32_t page = pages->first; page < pages->first + pages->count; page++)
		error |= !elastic_bit(elastic->committed, page);
	if (!error)
		elastic_blocks(elastic, pages, blocks, first_pages);
	elastic_unlock(elastic);
	return error ? -EBUSY : 0;
}

void elastic_uncommit(struct elastic *elastic, const struct elastic_pages *pages)
{
	for (uint32_t page = pages->first; page < pages->first + pages->count; page++) {
		elastic->committed[page / 64] &= ~(UINT64_C(1) << (page % 64));
		elastic->slots[elastic_slot_of(elastic, page)].uses = 0;
	}
	elastic->committed_pages -= pages->count;
}

void elastic_give(struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = elastic_slot_of(elastic, pages->first);

	pthread_mutex_lock(&elastic->lock);
	elastic_uncommit(elastic, pages);
	for (uint32_t slot = first; slot < first + pages->count / per_handle; slot++)
		elastic_set(elastic, slot, ELASTIC_RECLAIMABLE);
	elastic_unlock(elastic);
}

/* ---- capture and settle ---- */

static int captured_set(struct elastic *elastic, uint32_t first, uint32_t end)
{
	for (uint32_t page = first; page < end; page++)
		if (!elastic_bit(elastic->committed, page) ||
			elastic->slots[elastic_slot_of(elastic, page)].state != ELASTIC_HELD)
			return fail(-EINVAL, "page %u is %s", page,
				elastic_bit(elastic->committed, page) ? "offered" : "not committed");
	for (uint32_t page = first; page < end; page++) {
		if (elastic_bit(elastic->captured, page))
			continue;
		elastic->captured[page / 64] |= UINT64_C(1) << (page % 64);
		elastic->captured_pages++;
		elastic->slots[elastic_slot_of(elastic, page)].uses++;
	}
	return 0;
}

static void captured_end(struct elastic *elastic, uint32_t first, uint32_t end)
{
	struct dropping dropping = {.elastic = elastic};

	FOR_BITS(elastic->captured, page, first, end)
	{
		elastic->captured[page / 64] &= ~(UINT64_C(1) << (page % 64));
		elastic->captured_pages--;
		drop_one(&dropping, page);
	}
	drop_end(&dropping);
}

int elastic_capture(struct elastic *elastic, const struct elastic_pages *pages, bool captured)
{
	uint32_t end = pages->first + pages->count;
	int error = 0;

	pthread_mutex_lock(&elastic->lock);
	if (captured)
		error = captured_set(elastic, pages->first, end);
	else
		captured_end(elastic, pages->first, end);
	elastic_unlock(elastic);
	return error;
}

void elastic_settle_slot(struct elastic *elastic, uint32_t slot)
{
	const struct vm_take_options options = elastic_options(elastic);

	if (elastic->slots[slot].state != ELASTIC_RELEASED || elastic_is_pending(elastic, slot))
		return;
	/* If the agent has taken the handle, the slot becomes reclaimable as well. */
	if (handle_claim(elastic->space.pool, page_of(elastic, slot), elastic->slots[slot].tag, &options))
		vm_park(&elastic->space, slot, 1);
	elastic_set(elastic, slot, ELASTIC_RECLAIMABLE);
}

void elastic_settle(struct elastic *elastic, const struct elastic_pages *pages)
{
	pthread_mutex_lock(&elastic->lock);
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride,
			 end = elastic_slot_of(elastic, first + pages->count - 1) + 1;

		for (uint32_t slot = elastic_slot_of(elastic, first); slot < end; slot++)
			elastic_settle_slot(elastic, slot);
	}
	elastic_unlock(elastic);
}

void elastic_settle_all(struct elastic *elastic)
{
	pthread_mutex_lock(&elastic->lock);
	if (elastic->count[ELASTIC_RELEASED])
		FOR_USED(elastic, slot)
	elastic_settle_slot(elastic, slot);
	elastic_unlock(elastic);
}

/* ---- inspect ---- */

void elastic_counts(struct elastic *elastic, struct gpool_range_info *info)
{
	uint32_t reclaimable;

	pthread_mutex_lock(&elastic->lock);
	reclaimable = elastic->count[ELASTIC_RECLAIMABLE] + elastic->count[ELASTIC_RELEASED];
	if (elastic->count[ELASTIC_RELEASED])
		FOR_USED(elastic, slot)
	reclaimable -= elastic->slots[slot].state == ELASTIC_RELEASED && elastic_is_pending(elastic, slot);
	info->committed_pages = elastic->committed_pages;
	info->reclaimable_pages = reclaimable * handle_pages(elastic->space.pool);
	info->captured_pages = elastic->captured_pages;
	info->offered_pages = elastic->count[ELASTIC_OFFERED] * handle_pages(elastic->space.pool);
	elastic_unlock(elastic);
}

void elastic_resolve(struct elastic *elastic, uint32_t index, struct gpool_range_page *page)
{
	const struct gpool *pool = elastic->space.pool;
	uint32_t slot = elastic_slot_of(elastic, index);

	pthread_mutex_lock(&elastic->lock);
	page->address = elastic->range->address + index * pool->page_bytes;
	page->flags = elastic_bit(elastic->captured, index) ? GPOOL_PAGE_CAPTURED : 0;
	page->page = UINT32_MAX;
	page->state = GPOOL_PAGE_HOLE;
	if (still_ours(elastic, slot)) {
		page->state = elastic_bit(elastic->committed, index) ? GPOOL_PAGE_COMMITTED : GPOOL_PAGE_RECLAIMABLE;
		page->flags |= elastic->slots[slot].state == ELASTIC_OFFERED ? GPOOL_PAGE_OFFERED : 0;
		page->page = elastic->space.pages[slot] - 1 + index % handle_pages(pool);
		page->generation =
			page_word_generation(atomic_load_explicit(&pool->pages[page->page], memory_order_acquire));
	} else if (elastic->slots[slot].state == ELASTIC_SHARED) {
		page->state = GPOOL_PAGE_SHARED;
	}
	elastic_unlock(elastic);
}
