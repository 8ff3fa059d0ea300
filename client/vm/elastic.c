/* elastic.c - the slots of elastic ranges: their states, and the ways out of use. See elastic.h. */
#include "client/vm/elastic.h"

#include "client/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- states ---- */

void elastic_set(struct elastic *elastic, uint32_t slot, enum elastic_state state)
{
	static const uint8_t next[ELASTIC_STATES] = {
		[ELASTIC_HOLE] = 1 << ELASTIC_MOVING,
		[ELASTIC_PARKED] = 1 << ELASTIC_MOVING | 1 << ELASTIC_TAKEN | 1 << ELASTIC_HOLE,
		[ELASTIC_AT_HAND] = 1 << ELASTIC_MOVING | 1 << ELASTIC_TAKEN | 1 << ELASTIC_PARKED | 1 << ELASTIC_HOLE,
		[ELASTIC_HELD] = 1 << ELASTIC_PARKED,
		[ELASTIC_MOVING] = 1 << ELASTIC_TAKEN | 1 << ELASTIC_PARKED | 1 << ELASTIC_HOLE,
		[ELASTIC_TAKEN] = 1 << ELASTIC_HELD | 1 << ELASTIC_AT_HAND | 1 << ELASTIC_PARKED,
	};
	uint32_t was = elastic->slots[slot].state;

	assert(next[was] >> state & 1);
	elastic->count[was]--;
	elastic->count[state]++;
	elastic->slots[slot].state = state;
	elastic->used[slot / ELASTIC_GROUP / 64] |= UINT64_C(1) << (slot / ELASTIC_GROUP % 64);
}

/* The next bit from `bit` on that is set; `end`: none below it. */
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
	uint32_t groups = (elastic->space.slot_count - 1) / ELASTIC_GROUP + 1, first = *slot / ELASTIC_GROUP + (*slot % ELASTIC_GROUP != 0), end;

	first = bit_next(elastic->used, first, groups);
	for (end = first; end < groups && elastic_bit(elastic->used, end);)
		end++;
	*slot = first * ELASTIC_GROUP;
	end = end < groups ? end * ELASTIC_GROUP : elastic->space.slot_count;
	return end > *slot ? end - *slot : 0;
}

void elastic_park(struct elastic *elastic, uint32_t slot, uint32_t count)
{
	if (!count)
		return;
	for (uint32_t i = slot; i < slot + count; i++)
		elastic_set(elastic, i, ELASTIC_PARKED);
	vm_park(&elastic->space, slot, count);
}

struct vm_take_options elastic_options(const struct elastic *elastic)
{
	const struct block_attributes *attributes = &elastic->range->attributes;

	return (struct vm_take_options){ .content = attributes->flags & BLOCK_TYPE_MASK, .owner_id = attributes->owner_id };
}

bool elastic_pages_check(const struct elastic *elastic, const struct elastic_pages *pages)
{
	return pages->count && pages->times && (pages->times == 1 || pages->stride >= pages->count) &&
		pages->first + (uint64_t)(pages->times - 1) * pages->stride + pages->count <= elastic->range->page_count;
}

/* ---- letting go ---- */

/* What is wanted elsewhere is not mapped any more, if nobody is at the range just now. */
static bool elastic_let_go(struct vm_space *space)
{
	struct elastic *elastic = space->owner;
	bool all = true;

	if (pthread_mutex_trylock(&elastic->lock))
		return false;
	FOR_USED(elastic, slot) {
		uint32_t state = elastic->slots[slot].state;

		if (state != ELASTIC_PARKED && state != ELASTIC_AT_HAND)
			continue;
		all &= vm_let_go(space, slot, 1);
		if (!space->pages[slot])
			elastic_set(elastic, slot, ELASTIC_HOLE);
	}
	pthread_mutex_unlock(&elastic->lock);
	return all;
}

/* ---- life ---- */

/* Slots, then the bitmaps; touched as needed. */
static int memory_open(struct elastic *elastic, uint32_t page_count)
{
	size_t slots = elastic->space.slot_count * sizeof(*elastic->slots), bits = (page_count / 64 + 1) * sizeof(uint64_t);
	char *memory;

	elastic->bytes = slots + 2 * bits + (elastic->space.slot_count / ELASTIC_GROUP / 64 + 1) * sizeof(uint64_t);
	memory = mmap(NULL, elastic->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	elastic->slots = (struct elastic_slot *)(void *)memory;
	elastic->backed = (uint64_t *)(void *)(memory + slots);
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
	LIST_INIT(&elastic->leaving);
	elastic->range = range;
	elastic->space.owner = elastic;
	elastic->space.let_go = elastic_let_go;
	/* Whoever lets go finds the lock taken until all of it is there. */
	pthread_mutex_lock(&elastic->lock);
	if (vm_space_open(range->pool, range->page_count * range->pool->page_bytes, &elastic->space))
		goto free_elastic;
	if (memory_open(elastic, range->page_count))
		goto close_space;
	pthread_mutex_unlock(&elastic->lock);
	range->elastic = elastic;
	range->address = range->va = elastic->space.base;
	range->bytes = elastic->space.bytes;
	range->mapped = true;
	return 0;
close_space:
	vm_space_close(&elastic->space);
free_elastic:
	pthread_mutex_unlock(&elastic->lock);
	pthread_mutex_destroy(&elastic->lock);
	free(elastic);
	return -ENOMEM;
}

void elastic_close(struct elastic *elastic)
{
	struct elastic_leaving *leaving;

	while ((leaving = LIST_FIRST(&elastic->leaving))) {
		LIST_REMOVE(leaving, link);
		deferred_cancel(elastic->space.pool, &leaving->call);
		page_list_reset(&leaving->pages);
		free(leaving);
	}
	vm_space_close(&elastic->space);
	munmap(elastic->slots, elastic->bytes);
	pthread_mutex_destroy(&elastic->lock);
	free(elastic);
}

/* ---- out of use; the callers hold the lock ---- */

/* Slots that drop out of use, one after the other: neighbours are parked together. */
struct dropping {
	struct elastic *elastic;
	uint32_t slot, count;
};

static void drop_one(struct dropping *dropping, uint32_t page)
{
	struct elastic *elastic = dropping->elastic;
	uint32_t slot = elastic_slot_of(elastic, page);

	if (--elastic->slots[slot].uses)
		return;
	if (slot != dropping->slot + dropping->count) {
		elastic_park(elastic, dropping->slot, dropping->count);
		dropping->slot = slot;
		dropping->count = 0;
	}
	dropping->count++;
}

static void drop_end(struct dropping *dropping)
{
	elastic_park(dropping->elastic, dropping->slot, dropping->count);
}

/* All pages from `first` on, below `end`, whose bit is set; the loop may clear it. */
#define FOR_BITS(bits, page, first, end) \
	for (uint32_t page = bit_next(bits, first, end); page < (end); page = bit_next(bits, page + 1, end))

/* ---- unbacking ---- */

static void leaving_reached(struct gpool *pool, struct deferred_call *call)
{
	struct elastic_leaving *leaving = (struct elastic_leaving *)call;
	struct elastic *elastic = leaving->elastic;
	struct dropping dropping = { .elastic = elastic };

	(void)pool;
	pthread_mutex_lock(&elastic->lock);
	for (uint32_t i = 0; i < leaving->pages.count; i++)
		for (uint32_t j = 0; j < leaving->pages.spans[i].count; j++)
			drop_one(&dropping, leaving->pages.spans[i].first + j);
	drop_end(&dropping);
	LIST_REMOVE(leaving, link);
	pthread_mutex_unlock(&elastic->lock);
	page_list_reset(&leaving->pages);
	free(leaving);
}

/* Those of the pages that are backed: 0, -ENOMEM. */
static int backed_list(const struct elastic *elastic, const struct elastic_pages *pages, struct page_list *list)
{
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride;

		FOR_BITS(elastic->backed, page, first, first + pages->count)
			if (page_list_add(list, page, 1)) {
				page_list_reset(list);
				return -ENOMEM;
			}
	}
	return 0;
}

/* What uses they had the record has now. NULL: out of memory. */
static struct elastic_leaving *leaving_make(struct elastic *elastic, const struct elastic_pages *pages)
{
	struct elastic_leaving *leaving = calloc(1, sizeof(*leaving));

	static_assert(offsetof(struct elastic_leaving, call) == 0, "leaving_reached() finds the record by the call");
	if (!leaving || backed_list(elastic, pages, &leaving->pages)) {
		free(leaving);
		return NULL;
	}
	leaving->elastic = elastic;
	leaving->call.reached = leaving_reached;
	LIST_INSERT_HEAD(&elastic->leaving, leaving, link);
	return leaving;
}

int elastic_unback(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence)
{
	struct gpool *pool = elastic->space.pool;
	bool now = !fence_pending(pool, (struct gpool_fence){ fence });
	struct dropping dropping = { .elastic = elastic };
	struct elastic_leaving *leaving = NULL;

	pthread_mutex_lock(&elastic->lock);
	if (!now)
		leaving = leaving_make(elastic, pages);
	if (!now && !leaving) {
		pthread_mutex_unlock(&elastic->lock);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride;

		FOR_BITS(elastic->backed, page, first, first + pages->count) {
			elastic->backed[page / 64] &= ~(UINT64_C(1) << (page % 64));
			elastic->backed_pages--;
			if (now)
				drop_one(&dropping, page);
		}
	}
	drop_end(&dropping);
	pthread_mutex_unlock(&elastic->lock);
	/* Without the lock, which is taken under that of the list of calls. */
	if (leaving)
		deferred_call(pool, &leaving->call, fence);
	return 0;
}

/* ---- given away ---- */

int elastic_can_give(struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = elastic_slot_of(elastic, pages->first), error = 0;

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t slot = first; slot < first + pages->count / per_handle; slot++)
		error |= elastic->slots[slot].state != ELASTIC_HELD || elastic->slots[slot].uses != per_handle;
	for (uint32_t page = pages->first; page < pages->first + pages->count; page++)
		error |= !elastic_bit(elastic->backed, page);
	pthread_mutex_unlock(&elastic->lock);
	return error ? -EBUSY : 0;
}

void elastic_give(struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool), first = elastic_slot_of(elastic, pages->first);

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t page = pages->first; page < pages->first + pages->count; page++)
		elastic->backed[page / 64] &= ~(UINT64_C(1) << (page % 64));
	elastic->backed_pages -= pages->count;
	for (uint32_t slot = first; slot < first + pages->count / per_handle; slot++) {
		elastic->slots[slot].uses = 0;
		elastic_set(elastic, slot, ELASTIC_PARKED);
	}
	pthread_mutex_unlock(&elastic->lock);
}

/* ---- captured, at hand ---- */

static int captured_set(struct elastic *elastic, uint32_t first, uint32_t end)
{
	for (uint32_t page = first; page < end; page++)
		if (!elastic_bit(elastic->backed, page))
			return -EINVAL;
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
	struct dropping dropping = { .elastic = elastic };

	FOR_BITS(elastic->captured, page, first, end) {
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
	pthread_mutex_unlock(&elastic->lock);
	return error;
}

void elastic_release_slot(struct elastic *elastic, uint32_t slot)
{
	const struct vm_take_options options = elastic_options(elastic);

	if (elastic->slots[slot].state != ELASTIC_AT_HAND)
		return;
	/* One that is gone is parked as well as any other. */
	if (handle_claim(elastic->space.pool, elastic->space.pages[slot] - 1, elastic->slots[slot].word, &options))
		vm_park(&elastic->space, slot, 1);
	elastic_set(elastic, slot, ELASTIC_PARKED);
}

void elastic_release(struct elastic *elastic, const struct elastic_pages *pages)
{
	pthread_mutex_lock(&elastic->lock);
	for (uint32_t i = 0; i < pages->times; i++) {
		uint32_t first = pages->first + i * pages->stride, end = elastic_slot_of(elastic, first + pages->count - 1) + 1;

		for (uint32_t slot = elastic_slot_of(elastic, first); slot < end; slot++)
			elastic_release_slot(elastic, slot);
	}
	pthread_mutex_unlock(&elastic->lock);
}

/* ---- looking ---- */

void elastic_counts(struct elastic *elastic, struct gpool_range_info *info)
{
	pthread_mutex_lock(&elastic->lock);
	info->backed_pages = elastic->backed_pages;
	info->parked_pages = (elastic->count[ELASTIC_PARKED] + elastic->count[ELASTIC_AT_HAND]) * handle_pages(elastic->space.pool);
	info->captured_pages = elastic->captured_pages;
	pthread_mutex_unlock(&elastic->lock);
}

/* Whether the handle of a slot that is mapped is still this session's to use there: by bits and words, which may change at any time. */
static bool still_ours(const struct elastic *elastic, uint32_t slot)
{
	const struct gpool *pool = elastic->space.pool;
	uint32_t page = elastic->space.pages[slot] - 1;

	switch (elastic->slots[slot].state) {
	case ELASTIC_PARKED:
		return atomic_load_explicit(&pool->session.free_bits[page / 64], memory_order_acquire) >> (page % 64) & 1;
	case ELASTIC_AT_HAND:
		return atomic_load_explicit(&block_entry(pool, page)->tag, memory_order_acquire) == BLOCK_TAG_CACHED &&
			block_word_same(atomic_load_explicit(&pool->pages[page], memory_order_acquire), elastic->slots[slot].word);
	case ELASTIC_HELD:
	case ELASTIC_TAKEN:
		return true;
	default:
		return false;
	}
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
		page->state = elastic_bit(elastic->backed, index) ? GPOOL_PAGE_BACKED : GPOOL_PAGE_PARKED;
		page->page = elastic->space.pages[slot] - 1 + index % handle_pages(pool);
		page->generation = page_word_generation(atomic_load_explicit(&pool->pages[page->page], memory_order_acquire));
	}
	pthread_mutex_unlock(&elastic->lock);
}
