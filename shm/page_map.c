#include "shm/page_map.h"

#include <stdbool.h>
#include <string.h>

/* Describe the block or cached run whose first page has this tag. */
static struct page_fact block_fact(const struct pool_check_session *s, uint32_t head, uint64_t tag)
{
	bool pinned = atomic_load_explicit(&s->segment->pins[head], memory_order_relaxed) != 0;
	bool empty = tag == BLOCK_TAG_CACHED || (block_tag_is_block(tag) && tag & BLOCK_DYING && !pinned);
	bool held = pinned || tag & BLOCK_PREPARED || !block_tag_is_block(tag);

	return (struct page_fact){
		.use = empty ? PAGE_USE_CACHED : PAGE_USE_INSIDE,
		.demand = empty ? PAGE_DEMAND_IDLE
			: held  ? PAGE_DEMAND_NEEDED
				: PAGE_DEMAND_OFFERED,
		.pinned = pinned && !empty,
		.usage = (uint8_t)(tag & BLOCK_TYPE_MASK),
		.session = (uint16_t)s->id,
		.head = head,
	};
}

/* Store a claim about a page. Quarantined pages count as needed. */
static void fact_set(struct page_fact *fact, struct page_fact said)
{
	said.state = fact->state;
	if (said.state == PAGE_QUARANTINED)
		said.demand = PAGE_DEMAND_NEEDED;
	*fact = said;
}

/*
 * Fill in the block that starts at `head`, with its extents. Each page is counted once, so overlapping or circular
 * blocks of a damaged session cost no more than valid ones.
 */
static void block_fill(
	const struct pool_check_session *s, uint32_t head, uint32_t page_count, uint64_t tag, struct page_fact *facts)
{
	struct page_fact inside = block_fact(s, head, tag);
	uint32_t total = 0, extent = head, next;

	do {
		uint32_t count = atomic_load_explicit(&s->segment->blocks[extent].page_count, memory_order_relaxed),
			 page;

		if (count < 1 || count > page_count - extent)
			break;
		for (page = extent;
			page < extent + count && facts[page].session == s->id && facts[page].use == PAGE_USE_NONE;
			page++)
			fact_set(&facts[page], inside);
		total += page - extent;
		if (page < extent + count)
			break;
		next = tag & BLOCK_SCATTERED
			? atomic_load_explicit(&s->segment->blocks[extent].next, memory_order_relaxed)
			: 0;
		extent = next - 1;
	} while (next && next <= page_count);
	if (total && inside.use == PAGE_USE_INSIDE)
		facts[head].use = PAGE_USE_HEAD;
	facts[head].pages = total;
}

static void page_fill(const struct pool_check_session *s, uint32_t page, uint32_t page_count, struct page_fact *facts)
{
	struct page_fact idle = {
		.use = PAGE_USE_IDLE, .demand = PAGE_DEMAND_IDLE, .session = (uint16_t)s->id, .head = page};
	uint64_t tag;

	if (atomic_load_explicit(&s->segment->free_bits[page / 64], memory_order_relaxed) >> (page % 64) & 1) {
		fact_set(&facts[page], idle);
		return;
	}
	tag = atomic_load_explicit(&s->segment->blocks[page].tag, memory_order_acquire);
	if (tag && !(tag & BLOCK_EXTENT) && facts[page].use == PAGE_USE_NONE)
		block_fill(s, page, page_count, tag, facts);
}

/*
 * Each page word is read once, so that a page belongs to only one session even if the agent changes the word during the
 * scan.
 */
void page_map_fill(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct page_fact *facts)
{
	const struct pool_check_session *by_id[POOL_SESSIONS] = {NULL};
	uint32_t page_count = pool->header->page_count;

	for (uint32_t i = 0; i < session_count; i++)
		if (sessions[i].segment->page_count == page_count)
			by_id[sessions[i].id] = &sessions[i];
	for (uint32_t page = 0; page < page_count; page++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_acquire);
		uint32_t session = page_word_session(word);

		facts[page] = (struct page_fact){
			.state = (uint8_t)page_word_state(word), .session = by_id[session] ? (uint16_t)session : 0};
	}
	for (uint32_t page = 0; page < page_count; page++)
		if (facts[page].session)
			page_fill(by_id[facts[page].session], page, page_count, facts);
	for (uint32_t page = 0; page < page_count; page++)
		if (facts[page].use >= PAGE_USE_CACHED)
			facts[page].pages = facts[facts[page].head].pages;
}

static void uses_add(struct page_uses *uses, const struct page_fact *fact)
{
	bool used = fact->use == PAGE_USE_HEAD || fact->use == PAGE_USE_INSIDE;

	uses->needed += fact->demand == PAGE_DEMAND_NEEDED;
	uses->offered += fact->demand == PAGE_DEMAND_OFFERED;
	uses->idle += fact->demand == PAGE_DEMAND_IDLE;
	uses->used += used;
	uses->pinned += used && fact->pinned;
	if (used && fact->usage < PAGE_MAP_USAGES)
		uses->usages[fact->usage]++;
}

void page_map_count(const struct page_fact *facts, uint32_t page_count, struct page_uses *uses)
{
	memset(uses, 0, POOL_SESSIONS * sizeof(*uses));
	for (uint32_t page = 0; page < page_count; page++) {
		if (!facts[page].session)
			continue;
		uses_add(&uses[facts[page].session], &facts[page]);
		if (facts[page].state != PAGE_QUARANTINED)
			uses_add(&uses[0], &facts[page]);
	}
}
