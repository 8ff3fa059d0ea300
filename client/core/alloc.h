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

/*
 * block_free() - gpool_free() after fork and handle checks, also for prepared blocks; `fence`: not before it is
 * reached.
 */
int block_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

#endif
