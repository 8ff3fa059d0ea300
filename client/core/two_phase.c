/*
 * two_phase.c - prepare blocks, which become visible by a commit.
 *
 * A prepared block is an allocated block whose tag is marked; all functions except commit and rollback reject its
 * handle. A commit is a compare-and-swap of the tag, so only one of several commits and rollbacks succeeds. No rollback
 * is needed if the process dies: all its pages are returned.
 */
#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "shm/plural.h"

int gpool_prepare(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block)
{
	struct alloc_request request;
	int error;

	if (!pool->alive)
		return -ECHILD;
	error = alloc_request_read(pool, options, BLOCK_PREPARED, &request);
	return error ? error : alloc_block(pool, page_count, &request, block);
}

static COLD int fail_settled(const struct gpool_block *block)
{
	return fail(-ESTALE, "the block of %u page%s at page %u was already committed or rolled back",
		block->page_count, plural(block->page_count), block->page);
}

/* Return 0 if the handle names a prepared block. The block may have ended. */
static int prepared_check(const struct gpool *pool, const struct gpool_block *block)
{
	if (!pool->alive)
		return -ECHILD;
	if (block->page >= pool->page_count || block->tag & (BLOCK_EXTENT | BLOCK_DYING) ||
		!block_tag_is_block(block->tag))
		return fail_handle(pool, block);
	return block->tag & BLOCK_PREPARED ? 0 : fail_settled(block); /* a tag without PREPARED: it was committed */
}

int gpool_commit(struct gpool *pool, struct gpool_block *block, uint64_t *entry)
{
	struct gpool_block committed = *block;
	uint64_t tag = block->tag, address;
	int error = prepared_check(pool, block);

	if (error)
		return error;
	committed.tag &= ~(uint64_t)BLOCK_PREPARED;
	if (!block_word_same(atomic_load_explicit(&pool->pages[block->page], memory_order_acquire), block->generation))
		return fail_settled(block);
	/*
	 * A commit counts as a use that refreshes the pin. The time is stored before the tag, because the pin of a
	 * visible block could count as leaked.
	 */
	atomic_store_explicit(&pool->session.touch[block->page], pool_clock(pool), memory_order_relaxed);
	if (!atomic_compare_exchange_strong_explicit(&block_entry(pool, block->page)->tag, &tag, committed.tag,
		    memory_order_seq_cst, memory_order_relaxed))
		return fail_settled(block);
	error = gpool_address(pool, &committed, &address);
	if (error)
		return error;
	*block = committed;
	if (entry)
		__atomic_store_n(entry, address, __ATOMIC_RELEASE);
	return 0;
}

int gpool_rollback(struct gpool *pool, const struct gpool_block *block)
{
	int error = prepared_check(pool, block);

	if (!error)
		error = block_free(pool, block, 0);
	return error == -ESTALE ? fail_settled(block) : error;
}
