/* thread_cache.c - create and destroy thread caches, and the registry of the pools that they belong to. */
#include "client/core/thread_cache.h"

#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "shm/lease_bitmap.h"

#include <stdlib.h>

_Thread_local struct thread_slot thread_slots[POOLS_MAX] __attribute__((tls_model("initial-exec")));

/* The pools that are attached in this process: the epoch of the pool in each slot; 0: none. */
static struct {
	pthread_mutex_t lock;
	uint64_t epochs[POOLS_MAX];
	uint64_t last_epoch;
	pthread_key_t key; /* its destructor ends the caches of a thread */
	bool key_made;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic uint64_t sequences = 1; /* next tag sequence of the process */

/* ---- tag sequences ---- */

uint64_t sequence_chunk(struct thread_cache *cache)
{
	_Atomic uint64_t *published = &cache->pool->session.header->sequences;
	uint64_t first = atomic_fetch_add_explicit(&sequences, SEQUENCE_CHUNK, memory_order_relaxed);
	uint64_t seen = atomic_load_explicit(published, memory_order_relaxed);

	cache->sequence = first + 1;
	cache->sequence_end = first + SEQUENCE_CHUNK;
	while (seen < cache->sequence_end &&
		!atomic_compare_exchange_weak_explicit(
			published, &seen, cache->sequence_end, memory_order_relaxed, memory_order_relaxed))
		;
	return first;
}

/* ---- counters ---- */

void histogram_add(_Atomic uint64_t *histogram, uint64_t nanoseconds)
{
	uint32_t bucket = nanoseconds ? 63 - (uint32_t)__builtin_clzll(nanoseconds) : 0;

	if (bucket >= SESSION_HISTOGRAM)
		bucket = SESSION_HISTOGRAM - 1;
	atomic_fetch_add_explicit(&histogram[bucket], 1, memory_order_relaxed);
}

/* The caller holds the registry's lock. */
static void stats_acquire(struct thread_cache *cache)
{
	struct gpool *pool = cache->pool;
	uint32_t slot = pool->stat_slots_used == UINT64_MAX ? 63 : (uint32_t)__builtin_ctzll(~pool->stat_slots_used);

	static_assert(SESSION_STAT_SLOTS == 64, "one bit each");
	if (slot < SESSION_STAT_SLOTS - 1)
		pool->stat_slots_used |= UINT64_C(1) << slot;
	cache->stats_shared = slot == SESSION_STAT_SLOTS - 1;
	cache->stats = &pool->session.stats->threads[slot];
}

static void stats_release(struct thread_cache *cache)
{
	if (!cache->stats_shared)
		cache->pool->stat_slots_used &= ~(UINT64_C(1) << (cache->stats - cache->pool->session.stats->threads));
}

/* ---- return pages ---- */

static void run_flush(const struct gpool *pool, const struct cached_run *run)
{
	/*
	 * An inspection by the agent lasts less than a microsecond. If a run is in motion for longer, the agent is
	 * taking it: its tag stays CACHED.
	 */
	for (int tries = 0; tries < 1000; tries++) {
		int claimed = cached_run_claim(pool, run);

		if (claimed == -EAGAIN)
			continue;
		if (claimed < 0)
			return;
		atomic_store_explicit(&block_entry(pool, run->page)->tag, 0, memory_order_release);
		pin_drop(&pool->session, run->page);
		pool_put(pool, run->page, run->page_count);
		return;
	}
}

void thread_cache_flush(struct thread_cache *cache)
{
	struct thread_stats *transit;

	if (!cache->magazine_count && !cache->run_count)
		return;
	thread_cache_check(cache);
	/* Find the counters through the cache itself: when a thread ends, its slot of the table may no longer exist. */
	transit = cache->stats;
	transit_begin_in(cache->pool, transit);
	while (cache->magazine_count)
		run_flush(cache->pool, &cache->magazine[--cache->magazine_count]);
	while (cache->run_count)
		run_flush(cache->pool, &cache->runs[--cache->run_count]);
	cache->run_pages = 0;
	transit_end(cache->pool, transit);
	pool_wake_waiters(cache->pool);
}

/* ---- create and destroy ---- */

/* The caller holds the registry's lock. */
static void cache_destroy(struct thread_cache *cache)
{
	stream_thread_ends(cache->pool, cache);
	atomic_fetch_sub(&cache->pool->thread_scopes, cache->scope_count);
	stats_release(cache);
	*cache->link = cache->next;
	if (cache->next)
		cache->next->link = cache->link;
	atomic_fetch_sub_explicit(&cache->pool->cache_count, 1, memory_order_relaxed);
	free(cache);
}

/*
 * Free the caches of the calling thread, which ends. In a forked child no epoch is valid, so the parent's caches are
 * not touched.
 */
static void thread_ends(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&registry.lock);
	for (uint32_t i = 0; i < POOLS_MAX; i++) {
		struct thread_slot *slot = &thread_slots[i];

		if (slot->epoch && slot->epoch == registry.epochs[i]) {
			thread_cache_flush(slot->cache);
			cache_destroy(slot->cache);
		}
		slot->epoch = 0;
		slot->cache = NULL;
	}
	pthread_mutex_unlock(&registry.lock);
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&registry.lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&registry.lock);
}

static void fork_child(void)
{
	for (uint32_t i = 0; i < POOLS_MAX; i++)
		registry.epochs[i] = 0;
	pthread_mutex_unlock(&registry.lock);
}

/* Prepare this process for its first pool. After an error, the next call tries again. The caller holds the lock. */
static int registry_start(void)
{
	if (registry.key_made)
		return 0;
	if (pthread_key_create(&registry.key, thread_ends))
		return fail(-ENOMEM, "this process has no free key of pthread_key_create()");
	if (pthread_atfork(fork_prepare, fork_parent, fork_child)) {
		pthread_key_delete(registry.key);
		return -ENOMEM;
	}
	registry.key_made = true;
	return 0;
}

/* Remove the key at dlclose(): running threads must not call a destructor that is no longer loaded. */
static void __attribute__((destructor)) registry_stop(void)
{
	if (registry.key_made)
		pthread_key_delete(registry.key);
}

/* The caller holds the lock. */
static int slot_take(struct gpool *pool)
{
	for (uint32_t i = 0; i < POOLS_MAX; i++) {
		if (registry.epochs[i])
			continue;
		pool->slot = i;
		pool->epoch = registry.epochs[i] = ++registry.last_epoch;
		return 0;
	}
	return fail(-EMFILE, "this process has %d open pools, the limit; close one with gpool_close()", POOLS_MAX);
}

int thread_cache_pool_open(struct gpool *pool)
{
	int error;

	pthread_mutex_lock(&registry.lock);
	error = registry_start();
	if (!error)
		error = slot_take(pool);
	pthread_mutex_unlock(&registry.lock);
	return error;
}

void thread_cache_pool_close(struct gpool *pool)
{
	pthread_mutex_lock(&registry.lock);
	registry.epochs[pool->slot] = 0;
	/* The session ends, and with it the lease of all cached pages. */
	while (pool->caches)
		cache_destroy(pool->caches);
	pthread_mutex_unlock(&registry.lock);
}

struct thread_cache *thread_cache_create(struct gpool *pool)
{
	struct thread_cache *cache = aligned_alloc(64, (sizeof(*cache) + 63) / 64 * 64);

	if (!cache)
		return NULL;
	*cache = (struct thread_cache){.pool = pool};
	pthread_mutex_lock(&registry.lock);
	if (pthread_setspecific(registry.key, cache)) { /* any value but NULL makes the destructor run */
		pthread_mutex_unlock(&registry.lock);
		free(cache);
		return NULL;
	}
	stats_acquire(cache);
	cache->next = pool->caches;
	cache->link = &pool->caches;
	if (cache->next)
		cache->next->link = &cache->next;
	pool->caches = cache;
	atomic_fetch_add_explicit(&pool->cache_count, 1, memory_order_relaxed);
	thread_slots[pool->slot] = (struct thread_slot){.epoch = pool->epoch, .cache = cache};
	pthread_mutex_unlock(&registry.lock);
	return cache;
}
