/*
 * scope.c - scopes: blocks that are unpinned or freed together, such as those of a kernel, of a layer's pass, or of a
 * request.
 */
#include "client/core/last_error.h"
#include "client/core/pool.h"

#include <stdlib.h>

enum { SCOPE_FIRST = 16 };

int gpool_scope_begin(struct gpool *pool, uint32_t usage, uint32_t flags, struct gpool_scope *scope)
{
	if (!pool->alive)
		return -ECHILD;
	if (scope->size < sizeof(*scope))
		return fail_size(scope->size);
	if (usage >= GPOOL_USAGE_COUNT || flags & ~(uint32_t)GPOOL_SCOPE_FREE)
		return fail(-EINVAL,
			"usage is %u and flags are 0x%x; the maximum usage is %d, and the only known flag is "
			"GPOOL_SCOPE_FREE",
			usage, flags, GPOOL_USAGE_COUNT - 1);
	*scope = (struct gpool_scope){.size = scope->size, .pool = pool, .usage = usage, .flags = flags};
	return 0;
}

/* Reserve a place for one more block before it is allocated, so that recording the block cannot fail. */
static int scope_grow(struct gpool_scope *scope)
{
	uint32_t capacity = scope->capacity ? scope->capacity * 2 : SCOPE_FIRST;
	struct gpool_block *blocks;

	if (scope->count < scope->capacity)
		return 0;
	blocks = realloc(scope->blocks, capacity * sizeof(*blocks));
	if (!blocks)
		return -ENOMEM;
	scope->blocks = blocks;
	scope->capacity = capacity;
	return 0;
}

int gpool_scope_alloc(struct gpool_scope *scope, uint32_t page_count, const struct gpool_alloc_options *options,
	struct gpool_block *block)
{
	struct gpool_alloc_options with_usage = GPOOL_ALLOC_OPTIONS_INIT;
	int error;

	if (!scope->pool)
		return fail(-EINVAL, "the scope has ended or was not begun");
	error = scope_grow(scope);
	if (error)
		return error;
	if (options) {
		error = options_read(&with_usage, sizeof(with_usage), options);
		if (error)
			return error;
		with_usage.size = sizeof(with_usage);
	}
	with_usage.usage = scope->usage;
	error = gpool_alloc(scope->pool, page_count, &with_usage, block);
	if (!error)
		scope->blocks[scope->count++] = *block;
	return error;
}

static int block_release(const struct gpool_scope *scope, const struct gpool_block *block, struct gpool_fence fence)
{
	if (scope->flags & GPOOL_SCOPE_FREE)
		return gpool_free_after(scope->pool, block, fence);
	return gpool_unpin_after(scope->pool, block, fence);
}

int gpool_scope_end(struct gpool_scope *scope, struct gpool_fence fence)
{
	int first = 0;

	if (!scope->pool)
		return 0;
	/* Free the last block first, as in a stack, so that the thread's caches return the lowest pages next. */
	while (scope->count) {
		int error = block_release(scope, &scope->blocks[--scope->count], fence);

		if (error && !first)
			first = error;
	}
	free(scope->blocks);
	*scope = (struct gpool_scope){.size = scope->size};
	return first;
}

void gpool_scope_cleanup(struct gpool_scope *scope)
{
	gpool_scope_end(scope, GPOOL_FENCE_NONE);
}
