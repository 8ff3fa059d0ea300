/*
 * block.h - check handles of blocks, and write their entries. Internal to libgpool.
 *
 * A handle is input: it may be stale or invalid. Its page is checked against the bounds first, its tag must be one that
 * blocks have, and its other values are trusted only if page word and entry agree with them.
 */
#ifndef GPOOL_CLIENT_BLOCK_H
#define GPOOL_CLIENT_BLOCK_H

#include "client/core/pool.h"
#include "shm/pins.h"

/* Attributes that no public handle of a usable block carries. */
enum { BLOCK_UNUSABLE = BLOCK_EXTENT | BLOCK_PREPARED | BLOCK_DYING };

/* block_handle_bad() - return true if the handle is invalid for all calls except commit and rollback. */
static inline bool block_handle_bad(const struct gpool *pool, const struct gpool_block *block)
{
	return block->page >= pool->page_count || (block->tag & BLOCK_UNUSABLE) || !block_tag_is_block(block->tag);
}

static inline struct block_entry *block_entry(const struct gpool *pool, uint32_t page)
{
	return &pool->session.blocks[page];
}

/*
 * Compare page words, ignoring the change that an inspection by the agent causes: a pinned page changes from LEASED to
 * EVICTING and back.
 */
static inline bool block_word_same(uint64_t now, uint64_t word)
{
	return now == word ||
		(page_word_in_motion(now) && page_word_owner(now) == page_word_owner(word) &&
			page_word_generation(now) == page_word_generation(word));
}

/*
 * Return the half of a page word that contains the state, for waiting on it. The mapping is read-only, which FUTEX_WAIT
 * allows.
 */
static inline const _Atomic uint32_t *page_word_high(const struct gpool *pool, uint32_t page)
{
	return (const _Atomic uint32_t *)(const void *)&pool->pages[page] + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
}

/* The attributes that gpool_alloc() gives a block. */
struct block_attributes {
	uint32_t flags; /* BLOCK_* without the sequence */
	uint64_t owner_id;
	uint64_t fence;
};

/* block_write() - make the run that starts at `page`, pinned by the caller and in no block, a block with this tag. */
static inline void block_write(const struct gpool *pool, uint32_t page, uint32_t page_count, uint64_t tag,
	const struct block_attributes *attributes)
{
	struct block_entry *entry = block_entry(pool, page);

	atomic_store_explicit(&entry->page_count, page_count, memory_order_relaxed);
	atomic_store_explicit(&entry->next, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->owner_id, attributes->owner_id, memory_order_relaxed);
	atomic_store_explicit(&entry->fence, attributes->fence, memory_order_relaxed);
	/* The tag is stored last, with release: a thread that sees it sees the other fields. */
	atomic_store_explicit(&entry->tag, tag, memory_order_release);
	atomic_store_explicit(&pool->session.touch[page], pool_clock(pool), memory_order_relaxed);
}

/*
 * run_pin() - pin the first page of a run that belongs to this session and is in no block; waits while the agent
 * inspects it. Return: 0 or -ESTALE.
 */
int run_pin(const struct gpool *pool, uint32_t page, uint64_t *word);

/*
 * word_settle() - wait while the page is in motion. An inspection by the agent lasts less than a microsecond, unless
 * the agent dies during it: then until its successor has restored the word.
 */
void word_settle(const struct gpool *pool, uint32_t page) COLD;

/*
 * entry_fence_raise() - add a fence to an entry, besides those that it has: the agent does not take the block before
 * all are signaled. Return false if no joint fence is free.
 */
bool entry_fence_raise(struct gpool *pool, struct block_entry *entry, uint64_t fence);

#endif
