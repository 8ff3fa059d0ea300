/*
 * thread_cache.h - the caches of each thread for each pool: a magazine of single pages, a few longer runs, a chunk of
 * tag sequences, and a slot of counters. Internal to libgpool.
 *
 * A cached page is leased, unpinned and tagged BLOCK_TAG_CACHED. The agent may take it at any time, so that a stopped
 * thread does not keep pages from others. The cache therefore stores the whole page word. It takes a page only under a
 * pin and only if the word is unchanged, because then no other thread can have changed the entry.
 *
 * The pool's list owns the caches. A thread finds its cache through a thread-local table, whose entries are valid only
 * if their epoch is the pool's. The cache is freed when the thread ends or the pool is closed.
 */
#ifndef GPOOL_CLIENT_THREAD_CACHE_H
#define GPOOL_CLIENT_THREAD_CACHE_H

#include "client/core/internal.h"
#include "client/core/block.h"
#include "shm/invariant.h"
#include "shm/plural.h"

enum {
	CACHE_RUNS = 8, /* chosen: runs of several pages that a thread keeps; small, since they are searched linearly */
	SEQUENCE_CHUNK = 65536,      /* number of tags that a thread takes at once */
	TIMED_ALLOCATIONS_MASK = 255 /* one allocation in 256 is timed */
};

struct cached_run {
	uint32_t page;
	uint32_t page_count;
	uint64_t word; /* LEASED to this session, with the generation when the run was cached */
};

struct thread_cache {
	struct thread_stats *stats;
	bool stats_shared; /* no own slot was left: the shared last slot needs atomic adds */
	uint32_t magazine_count;
	uint32_t run_count;
	uint32_t run_pages;
	uint64_t sequence, sequence_end;
	struct gpool *pool;
	uint32_t take_hint; /* word of free_bits at which the last search stopped */
	uint32_t batch;     /* pages to request from the agent at a time */
	uint64_t last_refill_ns;
	uint64_t reservation;                    /* pages are requested from this reservation; 0: none */
	struct gpool_oom_info shortage;          /* without size and holders */
	struct gpool_oom_object shortage_object; /* pages 0: none */
	struct thread_cache *next, **link;       /* in the list pool->caches */
	/* the last scope with GPOOL_SCOPE_THREAD that this thread has begun for a usage */
	struct gpool_scope *scopes[GPOOL_USAGE_COUNT];
	uint32_t scope_count;
	struct cached_run runs[CACHE_RUNS];
	struct cached_run magazine[MAGAZINE_MAX];
};

struct thread_slot {
	uint64_t epoch;
	struct thread_cache *cache;
};

/*
 * Initial-exec: one load relative to the thread pointer instead of a call. The 256 bytes fit into the space that the
 * dynamic linker reserves for dlopen().
 */
extern _Thread_local struct thread_slot thread_slots[POOLS_MAX] GPOOL_INTERNAL(thread_slots)
	__attribute__((tls_model("initial-exec")));

/*
 * thread_cache_create() - create the calling thread's cache for this pool. Return NULL if there is no memory; then
 * allocations of this thread, and gpool_sleep() and gpool_wake() with pages, fail.
 */
struct thread_cache *thread_cache_create(struct gpool *pool) GPOOL_INTERNAL(thread_cache_create) COLD;

static inline struct thread_cache *thread_cache_of(struct gpool *pool)
{
	const struct thread_slot *slot = &thread_slots[pool->slot];

	if (likely(slot->epoch == pool->epoch))
		return slot->cache;
	return thread_cache_create(pool);
}

/*
 * thread_cache_pool_open() - assign a slot and an epoch to a new pool. Return: 0, -EMFILE (POOLS_MAX are attached),
 * -ENOMEM.
 * thread_cache_pool_close() - free all caches of the pool.
 */
int thread_cache_pool_open(struct gpool *pool);
void thread_cache_pool_close(struct gpool *pool);

/* thread_cache_flush() - make all pages in the calling thread's cache idle. */
void thread_cache_flush(struct thread_cache *cache);

/*
 * Claim a run of the calling thread's cache. Return: 0 (claimed and pinned), -EAGAIN (in motion), -ESTALE (the agent
 * has taken it; the caller removes it from the cache).
 */
static inline int cached_run_claim(const struct gpool *pool, const struct cached_run *run)
{
	uint64_t now = pin_raise(&pool->session, pool->pages, run->page);

	if (likely(now == run->word) &&
		likely(atomic_load_explicit(&block_entry(pool, run->page)->tag, memory_order_relaxed) ==
			BLOCK_TAG_CACHED))
		return 0;
	pin_drop(&pool->session, run->page);
	return now != run->word && block_word_same(now, run->word) ? -EAGAIN : -ESTALE;
}

static inline uint32_t runs_sum(const struct thread_cache *cache)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < cache->run_count; i++)
		sum += cache->runs[i].page_count;
	return sum;
}

/* Check that the counts are within their bounds, and that `run_pages` is the sum over the runs. */
static inline void thread_cache_check(const struct thread_cache *cache)
{
	GPOOL_INVARIANT(cache->magazine_count <= cache->pool->magazine && cache->pool->magazine <= MAGAZINE_MAX,
		"%u page%s in a magazine of %u", cache->magazine_count, plural(cache->magazine_count),
		cache->pool->magazine);
	GPOOL_INVARIANT(cache->run_count <= CACHE_RUNS, "%u run%s", cache->run_count, plural(cache->run_count));
	GPOOL_INVARIANT(cache->run_pages <= cache->pool->run_pages, "%u page%s in runs, at most %u", cache->run_pages,
		plural(cache->run_pages), cache->pool->run_pages);
	GPOOL_INVARIANT(cache->run_pages == runs_sum(cache), "%u page%s in %u run%s, which have %u", cache->run_pages,
		plural(cache->run_pages), cache->run_count, plural(cache->run_count), runs_sum(cache));
}

/* Check that a cached run is inside the pool and was leased when it was cached. The agent may have taken it since. */
static inline void cached_run_check(const struct gpool *pool, const struct cached_run *run)
{
	GPOOL_INVARIANT(
		run->page_count >= 1 && run->page < pool->page_count && run->page_count <= pool->page_count - run->page,
		"run of %u page%s at page %u in a pool of %u", run->page_count, plural(run->page_count), run->page,
		pool->page_count);
	GPOOL_INVARIANT(page_word_state(run->word) == PAGE_LEASED && page_word_owner(run->word) == pool->id,
		"run at page %u: word 0x%llx, session %u", run->page, (unsigned long long)run->word, pool->id);
}

/* magazine_pop() - claim a single page and store it in *run. Return false if none can be claimed. */
static inline bool magazine_pop(struct thread_cache *cache, struct cached_run *run)
{
	for (uint32_t i = cache->magazine_count; i-- > 0;) {
		int claimed;

		*run = cache->magazine[i];
		cached_run_check(cache->pool, run);
		claimed = cached_run_claim(cache->pool, run);
		if (unlikely(claimed == -EAGAIN))
			continue; /* the agent is inspecting this page: try the next one */
		cache->magazine[i] = cache->magazine[--cache->magazine_count];
		if (likely(claimed == 0))
			return true;
	}
	return false;
}

/* runs_pop() - like magazine_pop(), for a run of exactly `page_count` pages. */
static inline bool runs_pop(struct thread_cache *cache, uint32_t page_count, struct cached_run *run)
{
	for (uint32_t i = cache->run_count; i-- > 0;) {
		int claimed;

		if (cache->runs[i].page_count != page_count)
			continue;
		*run = cache->runs[i];
		cached_run_check(cache->pool, run);
		claimed = cached_run_claim(cache->pool, run);
		if (unlikely(claimed == -EAGAIN))
			continue;
		cache->runs[i] = cache->runs[--cache->run_count];
		cache->run_pages -= page_count;
		thread_cache_check(cache);
		if (likely(claimed == 0))
			return true;
	}
	return false;
}

static inline bool thread_cache_has_room(const struct thread_cache *cache, uint32_t page_count)
{
	if (page_count == 1)
		return cache->magazine_count < cache->pool->magazine;
	return cache->run_count < CACHE_RUNS && page_count <= cache->pool->run_pages - cache->run_pages;
}

/* thread_cache_push() - add a run that was tagged BLOCK_TAG_CACHED. The cache must have room for it. */
static inline void thread_cache_push(struct thread_cache *cache, uint32_t page, uint32_t page_count, uint64_t word)
{
	struct cached_run run = {.page = page, .page_count = page_count, .word = word};

	cached_run_check(cache->pool, &run);
	if (page_count == 1) {
		cache->magazine[cache->magazine_count++] = run;
	} else {
		cache->runs[cache->run_count++] = run;
		cache->run_pages += page_count;
	}
	thread_cache_check(cache);
}

uint64_t sequence_chunk(struct thread_cache *cache) COLD;

static inline uint64_t sequence_next(struct thread_cache *cache)
{
	if (unlikely(cache->sequence == cache->sequence_end))
		return sequence_chunk(cache);
	return cache->sequence++;
}

/* Increase a counter of the calling thread, which must have a cache. */
static inline void stat_add_many(const struct thread_cache *cache, _Atomic uint64_t *counter, uint64_t count)
{
	if (likely(!cache->stats_shared))
		atomic_store_explicit(
			counter, atomic_load_explicit(counter, memory_order_relaxed) + count, memory_order_relaxed);
	else
		atomic_fetch_add_explicit(counter, count, memory_order_relaxed);
}

static inline void stat_add(const struct thread_cache *cache, _Atomic uint64_t *counter)
{
	stat_add_many(cache, counter, 1);
}

/* block_from_run() - convert a claimed run, pinned at `page`, to a block. `word` is the page word that the pin read. */
static inline void block_from_run(struct thread_cache *cache, uint32_t page, uint32_t page_count, uint64_t word,
	const struct block_attributes *attributes, struct gpool_block *block)
{
	uint64_t tag = block_tag_make(sequence_next(cache), attributes->flags);

	block_write(cache->pool, page, page_count, tag, attributes);
	stat_add(cache, &cache->stats->allocations);
	*block = (struct gpool_block){.generation = word, .tag = tag, .page = page, .page_count = page_count};
}

/*
 * transit_begin(), transit_end() - enclose the time in which a thread holds pages that are neither in the free bits nor
 * in an entry; see struct thread_stats. Calls nest. Cached pages always have an entry, so they need no mark. A thread
 * without a cache uses the last slot. Order: transit_begin() precedes the removal of the first page, which is an atomic
 * instruction; transit_end() follows the return of the last page.
 */
static inline void transit_begin_in(struct gpool *pool, struct thread_stats *stats)
{
	if (likely(stats != &pool->session.stats->threads[SESSION_STAT_SLOTS - 1]))
		atomic_store_explicit(&stats->transits_begun,
			atomic_load_explicit(&stats->transits_begun, memory_order_relaxed) + 1, memory_order_relaxed);
	else
		atomic_fetch_add_explicit(&stats->transits_begun, 1, memory_order_relaxed);
}

static inline struct thread_stats *transit_begin(struct gpool *pool)
{
	struct thread_cache *cache = thread_cache_of(pool);
	struct thread_stats *stats = cache ? cache->stats : &pool->session.stats->threads[SESSION_STAT_SLOTS - 1];

	transit_begin_in(pool, stats);
	return stats;
}

static inline void transit_end(struct gpool *pool, struct thread_stats *stats)
{
	if (likely(stats != &pool->session.stats->threads[SESSION_STAT_SLOTS - 1]))
		atomic_store_explicit(&stats->transits_ended,
			atomic_load_explicit(&stats->transits_ended, memory_order_relaxed) + 1, memory_order_release);
	else
		atomic_fetch_add_explicit(&stats->transits_ended, 1, memory_order_release);
}

/* histogram_add() - count one measurement in a histogram whose buckets are powers of two. */
void histogram_add(_Atomic uint64_t *histogram, uint64_t nanoseconds);

#endif
