/*
 * scope.c - scopes: blocks that are unpinned or freed together, such as those of a kernel, of a layer's pass, or of a
 * request.
 */
#include "client/core/alloc.h"
#include "client/core/last_error.h"

#include <stdlib.h>

enum { SCOPE_FIRST = 16 };

int gpool_scope_begin(struct gpool *pool, uint32_t usage, uint32_t flags, struct gpool_scope *scope)
{
	struct thread_cache *cache = NULL;

	if (!pool->alive)
		return -ECHILD;
	if (scope->size < sizeof(*scope))
		return fail_size(scope->size);
	if (usage >= GPOOL_USAGE_COUNT || flags & ~(uint32_t)(GPOOL_SCOPE_FREE | GPOOL_SCOPE_THREAD))
		return fail(-EINVAL,
			"usage is %u and flags are 0x%x; the maximum usage is %d, and the known flags are "
			"GPOOL_SCOPE_FREE and GPOOL_SCOPE_THREAD",
			usage, flags, GPOOL_USAGE_COUNT - 1);
	if (flags & GPOOL_SCOPE_THREAD) {
		cache = thread_cache_of(pool);
		if (!cache)
			return -ENOMEM;
	}
	*scope = (struct gpool_scope){.size = scope->size, .pool = pool, .usage = usage, .flags = flags};
	if (cache) {
		scope->outer = cache->scopes[usage];
		cache->scopes[usage] = scope;
		cache->scope_count++;
		atomic_fetch_add(&pool->thread_scopes, 1);
	}
	return 0;
}

/* Remove a scope from those of the calling thread. Return: 0, -EINVAL (it is not one of them). */
static int thread_scope_remove(struct gpool_scope *scope)
{
	struct thread_cache *cache = thread_cache_of(scope->pool);
	struct gpool_scope **link = cache ? &cache->scopes[scope->usage] : NULL;

	while (link && *link && *link != scope)
		link = &(*link)->outer;
	if (!link || !*link)
		return fail(-EINVAL, "the scope was begun by another thread, which must end it");
	*link = scope->outer;
	cache->scope_count--;
	atomic_fetch_sub(&scope->pool->thread_scopes, 1);
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

static int alloc_into(
	struct gpool_scope *scope, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block)
{
	int error = scope_grow(scope);

	if (!error)
		error = alloc_block(scope->pool, page_count, request, block);
	if (!error)
		scope->blocks[scope->count++] = *block;
	return error;
}

int scope_alloc(struct gpool *pool, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block)
{
	struct thread_cache *cache = thread_cache_of(pool);
	uint32_t usage = request->attributes.flags & BLOCK_TYPE_MASK, bit = 1u << usage;

	if (!cache)
		return -ENOMEM;
	if (cache->scopes[usage])
		return alloc_into(cache->scopes[usage], page_count, request, block);
	if (scope_usual(usage) && !(atomic_load_explicit(&pool->unscoped, memory_order_relaxed) & bit) &&
		!(atomic_fetch_or(&pool->unscoped, bit) & bit))
		pool_log(pool, POOL_LOG_INFO,
			"a block of usage %u was allocated outside of a scope (gpool_scope_begin()): it stays pinned "
			"until the program unpins it",
			usage);
	return alloc_block(pool, page_count, request, block);
}

int gpool_scope_alloc(struct gpool_scope *scope, uint32_t page_count, const struct gpool_alloc_options *options,
	struct gpool_block *block)
{
	struct gpool_alloc_options with_usage = GPOOL_ALLOC_OPTIONS_INIT;
	struct alloc_request request;
	int error;

	if (!scope->pool)
		return fail(-EINVAL, "the scope has ended or was not begun");
	if (!scope->pool->alive)
		return -ECHILD;
	if (options) {
		error = options_read(&with_usage, sizeof(with_usage), options);
		if (error)
			return error;
		with_usage.size = sizeof(with_usage);
	}
	with_usage.usage = scope->usage;
	error = alloc_request_read(scope->pool, &with_usage, 0, &request);
	return error ? error : alloc_into(scope, page_count, &request, block);
}

static int block_release(const struct gpool_scope *scope, const struct gpool_block *block, struct gpool_fence fence)
{
	if (scope->flags & GPOOL_SCOPE_FREE)
		return gpool_free_after(scope->pool, block, fence);
	return gpool_unpin_after(scope->pool, block, fence);
}

int gpool_scope_end(struct gpool_scope *scope, struct gpool_fence fence)
{
	bool of_thread = scope->flags & GPOOL_SCOPE_THREAD;
	int first = 0;

	if (!scope->pool)
		return 0;
	if (of_thread && scope->pool->alive)
		first = thread_scope_remove(scope);
	if (first)
		return first;
	/* Free the last block first, as in a stack, so that the thread's caches return the lowest pages next. */
	while (scope->count) {
		int error = block_release(scope, &scope->blocks[--scope->count], fence);

		if (error && !first && !(of_thread && error == -ESTALE))
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
