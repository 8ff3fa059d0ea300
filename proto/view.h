/*
 * view.h - fill entries of messages from the tables in shared memory. Used by the agent to answer tools, and by poolctl
 * --offline.
 */
#ifndef GPOOL_PROTO_VIEW_H
#define GPOOL_PROTO_VIEW_H

#include "proto/messages.h"
#include "shm/page_map.h"
#include "shm/region_table.h"
#include "shm/timeline.h"

/*
 * view_age_ms() - return the time from a reading of the coarse clock until `now_ms`; 0 if the reading is slightly
 * later.
 */
static inline uint32_t view_age_ms(uint32_t now_ms, uint32_t then_ms)
{
	return now_ms - then_ms > INT32_MAX ? 0 : now_ms - then_ms;
}

/*
 * view_pool() - fill in the parts of a pool's status that its header contains, and the number of pages in each state.
 */
static inline void view_pool(
	const struct pool_header *header, const uint32_t states[PAGE_STATES], struct msg_pool_status *to)
{
#define VIEW_COUNTER(which) atomic_load_explicit(&header->counters[POOL_COUNT_##which], memory_order_relaxed)
	to->page_size = header->page_bytes;
	to->page_count = header->page_count;
	to->free_pages = states[PAGE_FREE];
	to->leased_pages = states[PAGE_LEASED] + states[PAGE_MOVING];
	to->moving_pages = states[PAGE_MOVING];
	to->quarantined_pages = states[PAGE_QUARANTINED];
	to->reserved_pages = states[PAGE_RESERVED];
	to->retired_pages = states[PAGE_RETIRED];
	to->pressure = atomic_load(&header->pressure);
	to->draining = atomic_load(&header->draining) != 0;
	to->grants = VIEW_COUNTER(GRANTS);
	to->reclaims = VIEW_COUNTER(RECLAIMS);
	to->evictions = VIEW_COUNTER(EVICTIONS);
	to->evicted_pages = VIEW_COUNTER(EVICTED_PAGES);
	to->refusals = VIEW_COUNTER(REFUSALS);
	to->deaths = VIEW_COUNTER(DEATHS);
	to->leaked_pins = VIEW_COUNTER(LEAKED_PINS);
	to->spilled_pages = VIEW_COUNTER(SPILLED_PAGES);
	to->restored_pages = VIEW_COUNTER(RESTORED_PAGES);
	to->spill_errors = VIEW_COUNTER(SPILL_ERRORS);
	to->scrubbed_pages = VIEW_COUNTER(SCRUBBED_PAGES);
	to->retirements = VIEW_COUNTER(RETIREMENTS);
#undef VIEW_COUNTER
}

/* view_is_of_library() - return true if the library pins this page of the session, so that the pin is never leaked. */
static inline bool view_is_of_library(const struct session_segment *segment, uint32_t page)
{
	return atomic_load_explicit(&segment->blocks[page].tag, memory_order_relaxed) & BLOCK_RANGE;
}

/*
 * VIEW_USES() - set the page counts of a pool or a client. The caller sets needed_pages, because a session's table may
 * be missing.
 */
#define VIEW_USES(entry, uses) \
	((entry)->offered_pages = (uses)->offered, (entry)->idle_pages = (uses)->idle, \
		(entry)->used_pages = (uses)->used, (entry)->pinned_pages = (uses)->pinned)

/* view_page() - fill in a page. `segment` is the segment of the session that leases it, or NULL. */
static inline void view_page(uint32_t page, uint64_t word, const struct page_fact *fact,
	const struct session_segment *segment, uint32_t now_ms, struct msg_page_entry *to)
{
	*to = (struct msg_page_entry){
		.page = page,
		.state = (uint8_t)page_word_state(word),
		.use = fact->use,
		.usage = fact->usage,
		.owner = (uint16_t)page_word_owner(word),
		.generation = page_word_generation(word),
		.block_first = fact->head,
		.block_pages = fact->pages,
	};
	if (!segment || fact->use < PAGE_USE_HEAD)
		return;
	to->pins = atomic_load_explicit(&segment->pins[fact->head], memory_order_relaxed);
	to->idle_ms = view_age_ms(now_ms, atomic_load_explicit(&segment->touch[fact->head], memory_order_relaxed));
	to->owner_id = atomic_load_explicit(&segment->blocks[fact->head].owner_id, memory_order_relaxed);
}

static inline void view_region_head(const struct region_look *look, struct msg_regions_reply *to)
{
	to->changes = look->changes;
	to->page_size = look->page_bytes;
	to->unlisted = look->unlisted;
	to->head_damaged = look->damaged;
	to->totals_changing = look->totals_changing;
	to->reserved_bytes = look->totals.reserved;
	to->mapped_bytes = look->totals.mapped;
	to->live_bytes = look->totals.live;
	to->reusable_bytes = look->totals.reusable;
	to->reclaimable_bytes = look->totals.reclaimable;
	to->pending_unmap_bytes = look->totals.pending_unmap;
	to->hole_bytes = look->totals.holes;
	to->live_regions = look->totals.live_regions;
	to->reusable_regions = look->totals.reusable_regions;
	to->pending_unmap_regions = look->totals.pending_unmap_regions;
	to->hole_regions = look->totals.hole_regions;
	to->last_id = look->totals.last_id;
}

static inline void view_region(const struct session_segment *segment, const struct region_row *region, bool changing,
	uint32_t now_ms, struct msg_region_entry *to)
{
	*to = (struct msg_region_entry){
		.address = region->address,
		.page_count = region->pages,
		.state = (uint8_t)region->state,
		.flags = (uint8_t)region->flags,
		.changing = changing,
		.fence_signaled = fence_signaled(segment, region->fence),
		.stream = region->stream,
		.age_ms = view_age_ms(now_ms, region->changed_ms),
		.id = region->id,
		.fence = region->fence,
	};
}

/* view_role() - fill in the numbers of a role. The caller sets the names, which are untrusted text with --offline. */
static inline void view_role(const struct role_record *record, uint64_t now_ms, struct msg_role_entry *to)
{
	uint64_t changed_ms = atomic_load_explicit(&record->changed_ms, memory_order_relaxed);

	to->domain = record->domain;
	to->session = atomic_load_explicit(&record->holder, memory_order_relaxed);
	to->standbys = atomic_load_explicit(&record->waiters, memory_order_relaxed);
	to->token = atomic_load_explicit(&record->token, memory_order_relaxed);
	to->takeovers = atomic_load_explicit(&record->takeovers, memory_order_relaxed);
	to->age_ms = now_ms > changed_ms ? now_ms - changed_ms : 0;
}

#endif
