/*
 * block.h - check block handles, and write block entries. Internal to libgpool.
 *
 * A handle comes from the program and may be stale or invalid. Its page number is checked against the size of the pool
 * first, then its tag against the tags that blocks can have. Its other values are used only if the page word and the
 * entry match them.
 */
#ifndef GPOOL_CLIENT_BLOCK_H
#define GPOOL_CLIENT_BLOCK_H

#include "client/core/pool.h"
#include "shm/pins.h"

/* Attributes that the public handle of a usable block never has. */
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
 * Return true if two page words are equal, ignoring the change that an inspection by the agent causes. During an
 * inspection, the state of a pinned page is EVICTING instead of LEASED.
 */
static inline bool block_word_same(uint64_t now, uint64_t word)
{
	return now == word ||
		(page_word_in_motion(now) && page_word_owner(now) == page_word_owner(word) &&
			page_word_generation(now) == page_word_generation(word));
}

/*
 * Return the half of a page word that contains the state, as the address of a futex wait. The mapping is read-only,
 * which FUTEX_WAIT allows.
 */
static inline const _Atomic uint32_t *page_word_high(const struct gpool *pool, uint32_t page)
{
	return (const _Atomic uint32_t *)(const void *)&pool->pages[page] + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
}

/* The attributes that gpool_alloc() assigns to a block. */
struct block_attributes {
	uint32_t flags; /* BLOCK_* without the sequence */
	uint64_t owner_id;
	uint64_t fence;
};

/*
 * block_write() - write the entry of a new block with this tag, for the run that starts at `page`. The caller has the
 * run pinned, and the run is not part of a block.
 */
static inline void block_write(const struct gpool *pool, uint32_t page, uint32_t page_count, uint64_t tag,
	const struct block_attributes *attributes)
{
	struct block_entry *entry = block_entry(pool, page);

	atomic_store_explicit(&entry->page_count, page_count, memory_order_relaxed);
	atomic_store_explicit(&entry->next, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->owner_id, attributes->owner_id, memory_order_relaxed);
	atomic_store_explicit(&entry->fence, attributes->fence, memory_order_relaxed);
	atomic_store_explicit(&pool->session.touch[page], pool_clock(pool), memory_order_relaxed);
	/* The tag is stored last, with release order: a thread that reads the tag also sees the other fields. */
	atomic_store_explicit(&entry->tag, tag, memory_order_release);
}

/*
 * block_pin() - pin a block at the handle's place and record its use. Return: 0, or an error of pin_try().
 *
 * The time is stored before the pin is visible, because the agent removes pins with an old time. The time of another
 * block, which may be at the place of a stale handle, is not changed. If the tag is stored after this check, its thread
 * has stored the time before.
 */
static inline int block_pin(const struct gpool *pool, const struct gpool_block *block)
{
	if (likely(atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_relaxed) == block->tag))
		atomic_store_explicit(&pool->session.touch[block->page], pool_clock(pool), memory_order_relaxed);
	return pin_try(&pool->session, pool->pages, block->page, block->generation, block->tag);
}

/*
 * run_pin() - pin the first page of a run that belongs to this session and is not part of a block. Waits while the
 * agent inspects the page. Return: 0 or -ESTALE.
 */
int run_pin(const struct gpool *pool, uint32_t page, uint64_t *word);

/*
 * word_settle() - wait while the page is in motion. An inspection by the agent lasts less than a microsecond; if the
 * agent dies during it, the wait lasts until its successor has restored the page word.
 */
void word_settle(const struct gpool *pool, uint32_t page) COLD;

/*
 * entry_fence_raise() - add a fence to those of an entry. The agent does not take the block before all of them are
 * signaled. Return false if a joint fence is needed and none is free.
 */
bool entry_fence_raise(struct gpool *pool, struct block_entry *entry, uint64_t fence);

#endif
