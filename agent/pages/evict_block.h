/*
 * evict_block.h - take one block from its session by the protocol of shm/pins.h. All fields of a block are untrusted,
 * because they are read from a segment that its worker may write.
 */
#ifndef GPOOL_AGENT_EVICT_BLOCK_H
#define GPOOL_AGENT_EVICT_BLOCK_H

#include "agent/pages/session_state.h"

/*
 * Return true for a run in a thread's magazine, and for a freed block that its process has not collected yet. Neither
 * has content.
 */
static inline bool evict_tag_is_free(uint64_t tag)
{
	return tag == BLOCK_TAG_CACHED || tag & BLOCK_DYING;
}

static inline bool evict_tag_evictable(uint64_t tag)
{
	return tag == BLOCK_TAG_CACHED || (block_tag_is_block(tag) && !(tag & (BLOCK_EXTENT | BLOCK_PREPARED)));
}

/* Return true if the content of the block is saved when it is evicted. */
static inline bool evict_tag_spills(uint64_t tag)
{
	return !evict_tag_is_free(tag) && tag & BLOCK_SPILL;
}

/*
 * evict_mark() - mark the page, so that no pin succeeds until evict_unmark(). A pin that has succeeded is in the pin
 * count. Return: the page word, for evict_unmark(); 0: the session does not lease the page.
 */
uint64_t evict_mark(struct session *session, uint32_t page);
void evict_unmark(struct session *session, uint32_t page, uint64_t word);
/* evict_block_idle() - return true if the block at this page is unpinned and its fence is signaled. */
bool evict_block_idle(const struct session *session, uint32_t page);
/*
 * evict_block_walk() - return the number of pages of a block, extents included; 0: not a valid block.
 * @budget:     number of pages that may still be visited; limits the cost of a session with overlapping blocks
 * @run_count:  not NULL: store the extents in pool->runs, and check that they do not overlap
 */
uint32_t evict_block_walk(struct pool *pool, const struct session *session, uint32_t head, uint64_t tag,
	uint32_t *budget, uint32_t *run_count);
/*
 * evict_block() - evict a block. Return: the number of pages taken or being spilled; 0: the block was pinned or has
 * changed.
 */
uint32_t evict_block(struct pool *pool, const struct evict_candidate *candidate);

#endif
