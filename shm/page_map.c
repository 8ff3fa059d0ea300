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

static void sessions_index(const struct pool_check_session *sessions, uint32_t session_count, uint32_t page_count,
	const struct pool_check_session **by_id)
{
	for (uint32_t i = 0; i < session_count; i++)
		if (sessions[i].segment->page_count == page_count)
			by_id[sessions[i].id] = &sessions[i];
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

	sessions_index(sessions, session_count, page_count, by_id);
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

/* ---- counts without facts ---- */

struct counting {
	const struct pool_segment *pool;
	const struct pool_check_session *by_id[POOL_SESSIONS];
	uint64_t *seen; /* idle pages and pages of blocks that were counted */
	struct page_uses *uses;
	uint32_t page_count;
};

static bool is_idle(const struct pool_check_session *s, uint32_t page)
{
	return atomic_load_explicit(&s->segment->free_bits[page / 64], memory_order_relaxed) >> (page % 64) & 1;
}

/* Mark a page as seen, so that it counts once even if its session changes. Return false if it was seen already. */
static bool see(struct counting *counting, uint32_t page)
{
	uint64_t *seen = &counting->seen[page / 64], before = *seen;

	*seen |= UINT64_C(1) << (page % 64);
	return *seen != before;
}

static void idle_add(struct counting *counting, const struct pool_check_session *s, bool quarantined)
{
	counting->uses[s->id].idle += !quarantined;
	counting->uses[0].idle += !quarantined;
}

/* The pages of a block that are not idle. */
struct block_pages {
	uint32_t normal, quarantined;
};

/*
 * Count the pages of an extent. Stop at pages of other sessions and at pages that were seen already. Return false if
 * stopped.
 */
static bool extent_count(struct counting *counting, const struct pool_check_session *s, uint32_t extent, uint32_t count,
	struct block_pages *pages)
{
	for (uint32_t page = extent; page < extent + count; page++) {
		uint64_t word = atomic_load_explicit(&counting->pool->pages[page], memory_order_acquire);
		bool quarantined = page_word_state(word) == PAGE_QUARANTINED;

		if (page_word_session(word) != s->id || !see(counting, page))
			return false;
		if (is_idle(s, page))
			idle_add(counting, s, quarantined);
		else if (quarantined)
			pages->quarantined++;
		else
			pages->normal++;
	}
	return true;
}

static struct block_pages block_count(
	struct counting *counting, const struct pool_check_session *s, uint32_t head, uint64_t tag)
{
	struct block_pages pages = {0, 0};
	uint32_t extent = head, next;

	do {
		const struct block_entry *entry = &s->segment->blocks[extent];
		uint32_t count = atomic_load_explicit(&entry->page_count, memory_order_relaxed);

		if (count < 1 || count > counting->page_count - extent ||
			!extent_count(counting, s, extent, count, &pages))
			break;
		next = tag & BLOCK_SCATTERED ? atomic_load_explicit(&entry->next, memory_order_relaxed) : 0;
		extent = next - 1;
	} while (next && next <= counting->page_count);
	return pages;
}

/* Add `pages` pages to the counts, except `needed`, which is computed at the end. Quarantined pages are needed. */
static void uses_add_pages(struct page_uses *uses, const struct page_fact *fact, uint32_t pages, uint32_t quarantined)
{
	bool used = fact->use == PAGE_USE_INSIDE;

	uses->offered += fact->demand == PAGE_DEMAND_OFFERED ? pages : 0;
	uses->idle += fact->demand == PAGE_DEMAND_IDLE ? pages : 0;
	uses->used += used ? pages + quarantined : 0;
	uses->pinned += used && fact->pinned ? pages + quarantined : 0;
	if (used && fact->usage < PAGE_MAP_USAGES)
		uses->usages[fact->usage] += pages + quarantined;
}

static void page_add(struct counting *counting, const struct pool_check_session *s, uint32_t page, bool quarantined)
{
	struct page_uses *own = &counting->uses[s->id], *all = &counting->uses[0];
	struct block_pages pages;
	struct page_fact fact;
	uint64_t tag;

	own->needed++;
	all->needed += !quarantined;
	if (counting->seen[page / 64] >> (page % 64) & 1)
		return;
	if (is_idle(s, page)) {
		see(counting, page);
		idle_add(counting, s, quarantined);
		return;
	}
	tag = atomic_load_explicit(&s->segment->blocks[page].tag, memory_order_acquire);
	if (!tag || tag & BLOCK_EXTENT)
		return;
	fact = block_fact(s, page, tag);
	pages = block_count(counting, s, page, tag);
	uses_add_pages(own, &fact, pages.normal, pages.quarantined);
	uses_add_pages(all, &fact, pages.normal, 0);
}

void page_map_uses(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	uint64_t *seen, struct page_uses *uses)
{
	struct counting counting = {.pool = pool, .seen = seen, .uses = uses, .page_count = pool->header->page_count};

	memset(uses, 0, POOL_SESSIONS * sizeof(*uses));
	sessions_index(sessions, session_count, counting.page_count, counting.by_id);
	for (uint32_t page = 0; page < counting.page_count; page++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_acquire);
		const struct pool_check_session *s = counting.by_id[page_word_session(word)];

		if (s)
			page_add(&counting, s, page, page_word_state(word) == PAGE_QUARANTINED);
	}
	for (uint32_t id = 0; id < POOL_SESSIONS; id++)
		uses[id].needed -= uses[id].offered + uses[id].idle;
}
