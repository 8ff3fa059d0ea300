/*
 * alloc.c - allocate blocks. The sources, in order: with options.stream, blocks whose frees wait in that stream; the
 * thread's caches, but not for FIRST_FIT; the process's lease; the agent.
 *
 * Pages are in transit when a thread has claimed them but has not recorded them in an entry yet. They have no free bit
 * and no tag, so no other thread can take them. Each path below must therefore turn them into a block or set their free
 * bits again, and mark the time in between (transit_begin()). Pages that the agent grants need no mark: the agent has
 * recorded their owner.
 */
#include "client/core/alloc.h"

#include "client/core/deferred.h"
#include "client/core/flight.h"
#include "client/core/last_error.h"
#include "client/core/refill.h"
#include "client/core/stitch.h"
#include "client/core/stream.h"
#include "client/core/window.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"
#include "shm/plural.h"

#include <sched.h>

enum {
	PRIORITY_MAX = 3,
	/* chosen: about a millisecond of retries, much longer than any thread keeps pages in transit */
	ALLOC_TRIES = 8,
};

/* ---- options ---- */

static COLD int options_refuse(const struct gpool_alloc_options *read, uint32_t known)
{
	if (read->flags & ~known)
		return fail(-EINVAL, "flags are 0x%x, of which 0x%x are unknown", read->flags, read->flags & ~known);
	if (read->usage >= GPOOL_USAGE_COUNT)
		return fail(-EINVAL, "usage is %u; the maximum is %d", read->usage, GPOOL_USAGE_COUNT - 1);
	if (read->priority > PRIORITY_MAX)
		return fail(-EINVAL, "priority is %u; the maximum is %d", read->priority, PRIORITY_MAX);
	return fail_timeout(read->timeout_ms);
}

int alloc_request_read(const struct gpool *pool, const struct gpool_alloc_options *options, uint32_t more,
	struct alloc_request *request)
{
	const uint32_t known = GPOOL_ALLOC_FIRST_FIT | GPOOL_ALLOC_CRITICAL | GPOOL_ALLOC_CONTIGUOUS |
		GPOOL_ALLOC_NO_EVICT | GPOOL_ALLOC_SPILL;
	struct gpool_alloc_options read = GPOOL_ALLOC_OPTIONS_INIT;

	if (options) {
		int error = options_read(&read, sizeof(read), options);

		if (error)
			return error;
		if (read.flags & ~known || read.usage >= GPOOL_USAGE_COUNT || read.priority > PRIORITY_MAX ||
			read.timeout_ms < -1)
			return options_refuse(&read, known);
		if (read.flags & GPOOL_ALLOC_SPILL) {
			more |= BLOCK_SPILL;
			if (!atomic_load_explicit(&pool->header->spill_slots, memory_order_relaxed))
				return fail(-EOPNOTSUPP,
					"this pool cannot save spilled content: gpoold is configured without "
					"spill_memory and spill_directory");
		}
	}
	*request = (struct alloc_request){
		.attributes.flags = read.usage | read.priority << BLOCK_PRIORITY_SHIFT | more,
		.attributes.owner_id = read.owner_id,
		.flags = read.flags,
		.timeout_ms = read.timeout_ms,
		.stream = read.stream,
	};
	return 0;
}

/* ---- convert a run to a block ---- */

/* Convert an idle run that this thread has claimed to a block. If this fails, set the free bits again. */
static int run_to_block(struct gpool *pool, struct thread_cache *cache, uint32_t page, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	uint64_t word;
	int error = window_map(pool, page, page_count);

	if (!error)
		error = run_pin(pool, page, &word);
	if (error) {
		pool_put(pool, page, page_count);
		return error;
	}
	block_from_run(cache, page, page_count, word, &request->attributes, block);
	return 0;
}

/* ---- allocate from the lease ---- */

/* Move pages [page, page + count) from the free bits to the magazine. Pages that cannot be added become idle again. */
static int magazine_add(struct gpool *pool, struct thread_cache *cache, uint32_t page, uint32_t count)
{
	int error = window_map(pool, page, count);

	if (error) {
		pool_put(pool, page, count);
		return error;
	}
	/* Push the lowest page last, so that low pages are used first. */
	for (uint32_t i = page + count; i-- > page;) {
		uint64_t word = atomic_load_explicit(&pool->pages[i], memory_order_acquire);
		uint64_t leased = page_word_make(PAGE_LEASED, pool->id, page_word_generation(word));
		struct block_entry *entry = block_entry(pool, i);

		if (!block_word_same(word, leased)) {
			pool_put(pool, i, 1);
			error = -ESTALE;
			continue;
		}
		atomic_store_explicit(&entry->page_count, 1, memory_order_relaxed);
		atomic_store_explicit(&entry->next, 0, memory_order_relaxed);
		atomic_store_explicit(&entry->fence, 0, memory_order_relaxed);
		atomic_store_explicit(&entry->tag, BLOCK_TAG_CACHED, memory_order_release);
		thread_cache_push(cache, i, 1, leased);
	}
	return error;
}

/*
 * Return the number of pages to take at once. Other threads cannot use the pages while they are being mapped. All
 * threads together therefore hold at most about a quarter of the pool in this state.
 */
static uint32_t magazine_share(const struct gpool *pool)
{
	uint32_t share =
		pool->unreserved / 4 / (atomic_load_explicit(&pool->cache_count, memory_order_relaxed) + 1) + 1;

	return share < pool->magazine ? share : pool->magazine;
}

/*
 * Fill the empty magazine with single pages; adjacent pages are mapped with one call. Return 0 if it has at least one
 * page.
 */
static int magazine_fill(struct gpool *pool, struct thread_cache *cache)
{
	uint32_t pages[MAGAZINE_MAX], first = 0, got, most = magazine_share(pool);
	int error = 0;

	got = lease_take_some(pool->session.free_bits, pool->unreserved, &cache->take_hint, pages, most);
	/*
	 * Add the highest run first, so that low pages are used first. pages[] ascends, except where the search wrapped
	 * around.
	 */
	for (uint32_t end = got; end > 0; end = first) {
		int result;

		for (first = end - 1; first > 0 && pages[first - 1] + 1 == pages[first];)
			first--;
		if (unlikely(pages[end - 1] >= pool->unreserved)) {
			/* reserved pages that share a bitmap word with unreserved ones */
			pool_put(pool, pages[first], end - first);
			continue;
		}
		result = magazine_add(pool, cache, pages[first], end - first);
		if (result)
			error = result;
	}
	if (cache->magazine_count)
		return 0;
	return error ? error : -ENOSPC;
}

static int lease_search(struct gpool *pool, struct thread_cache *cache, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	bool first_fit = request->flags & GPOOL_ALLOC_FIRST_FIT;
	uint32_t limit = request->flags & GPOOL_ALLOC_CRITICAL ? pool->page_count : pool->unreserved, first;
	struct cached_run run;

	if (page_count == 1 && !first_fit) {
		int error = cache->magazine_count == 0 ? magazine_fill(pool, cache) : 0;

		if (error && error != -ENOSPC)
			return error;
		if (!error && magazine_pop(cache, &run)) {
			block_from_run(cache, run.page, 1, run.word, &request->attributes, block);
			return 0;
		}
	}
	if (page_count > 1 && !first_fit && runs_pop(cache, page_count, &run)) {
		block_from_run(cache, run.page, page_count, run.word, &request->attributes, block);
		return 0;
	}
	first_fit |= atomic_load_explicit(&pool->header->first_fit, memory_order_relaxed) != 0;
	if (!lease_take_run(pool->session.free_bits, pool->summary, limit, page_count, first_fit, &first))
		return -ENOSPC;
	if (unlikely(first + page_count > limit)) {
		pool_put(pool, first, page_count);
		return -ENOSPC;
	}
	return run_to_block(pool, cache, first, page_count, request, block);
}

/* Allocate from the process's lease. Return -ENOSPC if no run is long enough. */
static int alloc_leased(struct gpool *pool, struct thread_cache *cache, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	struct thread_stats *transit = transit_begin(pool);
	int error = lease_search(pool, cache, page_count, request, block);

	transit_end(pool, transit);
	return error;
}

/* ---- allocate from the agent ---- */

static uint32_t refill_flags(const struct alloc_request *request)
{
	uint32_t flags = (request->attributes.flags & BLOCK_TYPE_MASK) << LEASE_USAGE_SHIFT;

	if (request->flags & GPOOL_ALLOC_FIRST_FIT)
		flags |= LEASE_FIRST_FIT;
	if (request->flags & GPOOL_ALLOC_CRITICAL)
		flags |= LEASE_CRITICAL;
	if (request->flags & GPOOL_ALLOC_CONTIGUOUS)
		flags |= LEASE_CONTIGUOUS;
	if (request->flags & GPOOL_ALLOC_NO_EVICT)
		flags |= LEASE_NO_EVICT;
	return flags;
}

static int alloc_asked(struct gpool *pool, struct thread_cache *cache, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	uint32_t first;
	int error = refill_take(pool, cache, page_count, refill_flags(request), request->timeout_ms, &first);

	if (error)
		return error;
	if (atomic_load_explicit(&block_entry(pool, first)->page_count, memory_order_relaxed) == page_count)
		return run_to_block(pool, cache, first, page_count, request, block);
	return stitch_create(pool, cache, first, page_count, request, block);
}

/*
 * Return true if a refusal may be temporary. Other threads of this process may hold pages in transit, which not even
 * the agent can find. A call that must not wait should not fail because of them, so it retries a few times.
 */
static bool shortage_may_pass(const struct gpool *pool, const struct thread_cache *cache, uint32_t page_count,
	const struct alloc_request *request)
{
	return request->timeout_ms == 0 && !(request->flags & GPOOL_ALLOC_NO_EVICT) &&
		atomic_load_explicit(&pool->cache_count, memory_order_relaxed) > 1 &&
		cache->shortage.pinned + (uint64_t)page_count <= pool->unreserved;
}

static COLD int alloc_slow(struct gpool *pool, struct thread_cache *cache, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	int error;

	if (pool->session_kind)
		return fail_kind(pool);
	if (page_count == 0 || page_count > pool->page_count)
		return fail(-EINVAL, "page_count is %u; it must be 1 to %u, the pages of the pool", page_count,
			pool->page_count);
	if (request->stream) {
		uint32_t slot;

		if (stream_slot_of(pool, request->stream, &slot))
			return fail_stream(request->stream);
		if (deferred_reuse(pool, cache, slot, page_count, &request->attributes, block))
			return 0;
	}
	pool_sweep(pool);
	for (int tries = 0; tries < ALLOC_TRIES; tries++) {
		error = alloc_leased(pool, cache, page_count, request, block);
		if (error == -ENOSPC && (cache->magazine_count || cache->run_count)) {
			/* The pages in this thread's caches may suffice. */
			thread_cache_flush(cache);
			error = alloc_leased(pool, cache, page_count, request, block);
		}
		if (error == -ENOSPC)
			error = alloc_asked(pool, cache, page_count, request, block);
		if (error == -EPIPE) {
			/*
			 * The agent has ended. Check every bitmap word again, including those that the summary marks as
			 * empty.
			 */
			lease_summary_all(pool->summary, pool->page_count);
			if (!alloc_leased(pool, cache, page_count, request, block))
				return 0;
		}
		if (error == -ENOSPC && shortage_may_pass(pool, cache, page_count, request))
			sched_yield();
		else if (error != -ESTALE)
			return error;
	}
	if (error == -ENOSPC)
		return error;
	/* A free bit on a page of another session indicates corruption, which further retries cannot resolve. */
	pool_log(pool, POOL_LOG_ERROR,
		"cannot allocate %u page%s: free bits on pages that are not leased to session %u", page_count,
		plural(page_count), pool->id);
	return -EPIPE;
}

/* ---- the fast path ---- */

static inline __attribute__((always_inline)) int alloc_in(struct gpool *pool, struct thread_cache *cache,
	uint32_t page_count, const struct alloc_request *request, struct gpool_block *block)
{
	struct cached_run run;
	bool found;

	if (unlikely(request->stream || request->flags & GPOOL_ALLOC_FIRST_FIT))
		return alloc_slow(pool, cache, page_count, request, block);
	found = page_count == 1 ? magazine_pop(cache, &run) : runs_pop(cache, page_count, &run);
	if (unlikely(!found))
		return alloc_slow(pool, cache, page_count, request, block);
	stat_add(cache, &cache->stats->magazine_hits);
	block_from_run(cache, run.page, page_count, run.word, &request->attributes, block);
	return 0;
}

static COLD int alloc_timed(struct gpool *pool, struct thread_cache *cache, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	uint64_t start = monotonic_ns();
	int error = alloc_in(pool, cache, page_count, request, block);

	if (error)
		return error;
	histogram_add(pool->session.stats->allocation_ns[block->tag & BLOCK_TYPE_MASK], monotonic_ns() - start);
	if (flight_may_tell(block->tag))
		flight_tell_block(pool, FLIGHT_ALLOCATE, block, start);
	return 0;
}

static inline __attribute__((always_inline)) int alloc_fast(
	struct gpool *pool, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block)
{
	struct thread_cache *cache = thread_cache_of(pool);

	if (unlikely(!cache))
		return -ENOMEM;
	/* Pass the tag that the block will get: the flight recorder recognizes timed blocks by their tags. */
	if (unlikely((cache->sequence & TIMED_ALLOCATIONS_MASK) == 0))
		return alloc_timed(pool, cache, page_count, request, block);
	return alloc_in(pool, cache, page_count, request, block);
}

int alloc_block(struct gpool *pool, uint32_t page_count, const struct alloc_request *request, struct gpool_block *block)
{
	return alloc_fast(pool, page_count, request, block);
}

int alloc_own(struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, uint32_t attributes,
	struct gpool_block *block)
{
	struct alloc_request request;
	int error = pool->alive ? alloc_request_read(pool, options, attributes, &request) : -ECHILD;

	return error ? error : alloc_fast(pool, page_count, &request, block);
}

int gpool_alloc(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block)
{
	struct alloc_request request = {0};

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (options) {
		int error = alloc_request_read(pool, options, 0, &request);

		if (error)
			return error;
	}
	if (unlikely(scope_usual(request.attributes.flags) ||
		    atomic_load_explicit(&pool->thread_scopes, memory_order_relaxed)))
		return scope_alloc(pool, page_count, &request, block);
	return alloc_fast(pool, page_count, &request, block);
}
