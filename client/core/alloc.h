/*
 * alloc.h - allocating and freeing blocks, as the rest of the library asks for it. Internal to libgpool.
 */
#ifndef GPOOL_CLIENT_ALLOC_H
#define GPOOL_CLIENT_ALLOC_H

#include "client/core/thread_cache.h"

struct alloc_request {
	struct block_attributes attributes;
	uint32_t flags; /* GPOOL_ALLOC_* */
	int32_t timeout_ms;
	uint32_t stream;
};

/*
 * alloc_request_read() - from the public options, NULL for none; `more` attributes are added. 0, -EINVAL, -E2BIG,
 * -EOPNOTSUPP.
 */
int alloc_request_read(const struct gpool *pool, const struct gpool_alloc_options *options, uint32_t more,
	struct alloc_request *request);

/* alloc_block() - gpool_alloc() after fork check and options. */
int alloc_block(
	struct gpool *pool, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block);

/* block_from_run() - a claimed run, pinned at `page`, becomes a block; `word` is the page word that the pin saw. */
void block_from_run(struct thread_cache *cache, uint32_t page, uint32_t page_count, uint64_t word,
	const struct block_attributes *attributes, struct gpool_block *block);

/*
 * run_pin() - pin the first page of a run that is ours and in no block; waits while the agent looks at it. 0 or
 * -ESTALE.
 */
int run_pin(const struct gpool *pool, uint32_t page, uint64_t *word);

/*
 * block_free() - gpool_free() after fork and handle checks, also for prepared blocks; `fence`: not before it is
 * reached.
 */
int block_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

/*
 * block_finish() - a block that was claimed for freeing (BLOCK_DYING) and has one pin left, ours: its pages become
 * idle.
 * Return: 0, or -EBUSY: GPU work still uses the address of a scattered block.
 */
int block_finish(struct gpool *pool, const struct gpool_block *block);

/*
 * word_settle() - wait while the page is in motion. The agent's look lasts less than a microsecond, unless it dies over
 * it: then until the next one has put things right.
 */
void word_settle(const struct gpool *pool, uint32_t page) COLD;

/*
 * entry_fence_raise() - the agent does not take what starts here before this fence is reached, beside those that it
 * has. False: there is no room for a joint fence.
 */
bool entry_fence_raise(struct gpool *pool, struct block_entry *entry, uint64_t fence);

#endif
