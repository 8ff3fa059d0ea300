/* alloc.h - allocate and free blocks, for the rest of the library. Internal to libgpool. */
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
 * alloc_request_read() - read the public options (NULL: the defaults), and add the attributes `more`. Return: 0,
 * -EINVAL, -E2BIG, -EOPNOTSUPP.
 */
int alloc_request_read(const struct gpool *pool, const struct gpool_alloc_options *options, uint32_t more,
	struct alloc_request *request);

/* alloc_block() - gpool_alloc() after the fork check, with options that were already read. */
int alloc_block(
	struct gpool *pool, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block);

/*
 * alloc_own() - gpool_alloc() for a block of the library, which does not belong to a scope of the program. attributes:
 * BLOCK_RANGE, if the library pins the block for as long as it exists, so that its pin never counts as leaked; or 0.
 */
int alloc_own(struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, uint32_t attributes,
	struct gpool_block *block) GPOOL_INTERNAL(alloc_own);

/*
 * scope_alloc() - alloc_block(), and add the block to the calling thread's scope for its usage, if there is one. If a
 * block of this usage should have one, log its absence once. In scope.c.
 */
int scope_alloc(
	struct gpool *pool, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block) COLD;
/* scope_usual() - return true if blocks of this usage are pinned by scopes as a rule. */
static inline bool scope_usual(uint32_t flags)
{
	const uint32_t usages =
		1u << GPOOL_USAGE_TEMP_BUFFER | 1u << GPOOL_USAGE_ACTIVATION | 1u << GPOOL_USAGE_GRADIENT;

	return usages >> (flags & BLOCK_TYPE_MASK) & 1;
}

/*
 * block_free() - gpool_free() after the fork check and the handle check; also accepts prepared blocks. The block is
 * freed when `fence` is signaled.
 */
int block_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

#endif
