/*
 * evict_block.h - take one block from its session: mark its page word, look at its pins, take its pages or restore the
 * word (the protocol of shm/pins.h). All fields of a block are read from a segment that its worker may write.
 */
#ifndef GPOOL_AGENT_EVICT_BLOCK_H
#define GPOOL_AGENT_EVICT_BLOCK_H

#include "agent/pages/session_state.h"

/* Return true for a run in a thread's magazine, or a freed block that waits for a fence: neither has content. */
static inline bool evict_tag_is_free(uint64_t tag)
{
	return tag == BLOCK_TAG_CACHED || tag & BLOCK_DYING;
}

static inline bool evict_tag_evictable(uint64_t tag)
{
	return tag == BLOCK_TAG_CACHED || (block_tag_is_block(tag) && !(tag & (BLOCK_EXTENT | BLOCK_PREPARED)));
}

/* Return true if the block is spilled instead of dropped. */
static inline bool evict_tag_spills(uint64_t tag)
{
	return !evict_tag_is_free(tag) && tag & BLOCK_SPILL;
}

/* evict_block_idle() - Return whether the block at a page is unpinned and its fence signaled. */
bool evict_block_idle(const struct session *session, uint32_t page);
/*
 * evict_block_walk() - Return the pages of a block, extents included; 0: it is not a valid block.
 * @budget:     pages that may still be examined, which bounds the cost of a session whose blocks overlap
 * @run_count:  not NULL: the extents are in pool->runs afterwards, and no page is in two of them
 */
uint32_t evict_block_walk(struct pool *pool, const struct session *session, uint32_t head, uint64_t tag,
	uint32_t *budget, uint32_t *run_count);
/* evict_block() - Return the pages that were taken, or that are being saved; 0: it was pinned, or has changed. */
uint32_t evict_block(struct pool *pool, const struct evict_candidate *candidate);

#endif
