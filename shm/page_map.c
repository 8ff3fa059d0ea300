#include "shm/page_map.h"

#include <string.h>

static bool owns(const struct pool_segment *pool, uint32_t page, uint32_t session)
{
	uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_acquire);

	return page_word_owner(word) == session && page_word_state(word) != PAGE_SHARED;
}

/*
 * The block that starts at `head`, its extents included. Each page counts once, so that blocks that a damaged session lays over
 * each other, or chains in a circle, cost no more than honest ones.
 */
static void block_fill(const struct pool_segment *pool, const struct pool_check_session *s, uint32_t head, uint64_t tag,
	struct page_fact *facts)
{
	uint32_t page_count = pool->header->page_count, total = 0, extent = head, next;

	do {
		uint32_t count = atomic_load_explicit(&s->segment->blocks[extent].page_count, memory_order_relaxed), page;

		if (count < 1 || count > page_count - extent)
			break;
		for (page = extent; page < extent + count && facts[page].use == PAGE_USE_NONE && owns(pool, page, s->id); page++)
			facts[page] = (struct page_fact){
				.use = tag == BLOCK_TAG_CACHED ? PAGE_USE_CACHED : page == head ? PAGE_USE_HEAD : PAGE_USE_INSIDE,
				.content = (uint8_t)(tag & BLOCK_TYPE_MASK),
				.session = (uint16_t)s->id,
				.head = head,
			};
		total += page - extent;
		if (page < extent + count)
			break;
		next = tag & BLOCK_STITCHED ? atomic_load_explicit(&s->segment->blocks[extent].next, memory_order_relaxed) : 0;
		extent = next - 1;
	} while (next && next <= page_count);
	facts[head].pages = total;
}

static void session_fill(const struct pool_segment *pool, const struct pool_check_session *s, struct page_fact *facts)
{
	uint32_t page_count = pool->header->page_count;

	for (uint32_t page = 0; page < page_count; page++) {
		uint64_t tag;

		if (!owns(pool, page, s->id))
			continue;
		if (atomic_load_explicit(&s->segment->free_bits[page / 64], memory_order_relaxed) >> (page % 64) & 1) {
			facts[page] = (struct page_fact){ .use = PAGE_USE_IDLE, .session = (uint16_t)s->id, .head = page };
			continue;
		}
		tag = atomic_load_explicit(&s->segment->blocks[page].tag, memory_order_acquire);
		if (tag && !(tag & BLOCK_EXTENT) && facts[page].use == PAGE_USE_NONE)
			block_fill(pool, s, page, tag, facts);
	}
	for (uint32_t page = 0; page < page_count; page++)
		if (facts[page].session == s->id && facts[page].use >= PAGE_USE_CACHED)
			facts[page].pages = facts[facts[page].head].pages;
}

void page_map_fill(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct page_fact *facts)
{
	memset(facts, 0, pool->header->page_count * sizeof(*facts));
	for (uint32_t i = 0; i < session_count; i++)
		if (sessions[i].segment->page_count == pool->header->page_count)
			session_fill(pool, &sessions[i], facts);
}
