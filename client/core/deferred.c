#include "client/core/deferred.h"

#include "shm/timeline.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
	REUSE_LOOKS = 16, /* chosen: number of blocks of a stream that an allocation checks for reuse */
	/*
	 * consecutive inspections by the agent, each shorter than a microsecond; if there are more, the agent has ended
	 */
	CLAIM_TRIES = 1000,
	/*
	 * maximum number of blocks of this list that a sweep checks: freed or unpinned blocks that other threads have
	 * pinned. This is only a safeguard, since the last unpin also checks its block
	 */
	PIN_LOOKS = 8,
};

/*
 * A freed block that waits only for a fence has no pin. Its tag has BLOCK_DYING and its entry has the fence, so the
 * agent may take it once the fence is signaled, even if this process has died by then. This process must therefore
 * claim the block before it ends it.
 */
enum deferred_kind { DEFERRED_NONE, DEFERRED_FREE, DEFERRED_UNPIN };

TAILQ_HEAD(deferred_list, deferred);

struct deferred_lists {
	pthread_mutex_t lock;
	struct deferred_list behind[SESSION_TIMELINES]; /* [slot of the stream]; [0]: entries that wait for pins */
	uint64_t busy[SESSION_TIMELINES / 64];          /* a bit for each stream whose list is not empty */
	/*
	 * One entry for each page at which a block may start. A free therefore cannot fail for lack of memory, and an
	 * unpin finds its block without a search. The kernel allocates the memory on first use.
	 */
	struct deferred *blocks;
	size_t bytes;
};

/* ---- lists; the caller holds the lock ---- */

static void list_add(struct gpool *pool, struct deferred *entry)
{
	struct deferred_lists *lists = pool->deferred;
	uint32_t slot = fence_slot(entry->fence);
	struct deferred_list *list = &lists->behind[slot];
	struct deferred *before = TAILQ_LAST(list, deferred_list);

	while (slot && before && before->fence > entry->fence)
		before = TAILQ_PREV(before, deferred_list, link);
	if (before)
		TAILQ_INSERT_AFTER(list, before, entry, link);
	else
		TAILQ_INSERT_HEAD(list, entry, link);
	if (slot)
		lists->busy[slot / 64] |= UINT64_C(1) << (slot % 64);
	atomic_fetch_add_explicit(&pool->deferred_count, 1, memory_order_seq_cst);
}

static void list_remove(struct gpool *pool, struct deferred *entry)
{
	struct deferred_lists *lists = pool->deferred;
	uint32_t slot = fence_slot(entry->fence);

	TAILQ_REMOVE(&lists->behind[slot], entry, link);
	if (slot && TAILQ_EMPTY(&lists->behind[slot]))
		lists->busy[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
	atomic_fetch_sub_explicit(&pool->deferred_count, 1, memory_order_relaxed);
}

/* Return the unsignaled fence for which a block still waits, or 0. */
static uint64_t block_fence(const struct gpool *pool, const struct gpool_block *block)
{
	return fence_pending_part(
		&pool->session, atomic_load_explicit(&block_entry(pool, block->page)->fence, memory_order_acquire));
}

/* Return true if a freed block has more pins than the `own` pins of its entry. */
static bool is_pinned(const struct gpool *pool, const struct gpool_block *block, uint32_t own)
{
	return pin_count(&pool->session, block->page) > own;
}

/* Pin a freed block in order to end it. Return -ESTALE if the agent has taken it. */
static int free_claim(struct gpool *pool, const struct gpool_block *block)
{
	for (int tries = 0; tries < CLAIM_TRIES; tries++) {
		int error =
			pin_try(&pool->session, pool->pages, block->page, block->generation, block->tag | BLOCK_DYING);

		if (error != -EAGAIN)
			return error;
		word_settle(pool, block->page);
	}
	return -EAGAIN;
}

/* Drop the entry's own pin. The agent may then take the block. */
static void own_unpin(struct gpool *pool, struct deferred *entry)
{
	if (entry->own_pins)
		pin_drop(&pool->session, entry->block.page);
	entry->own_pins = 0;
}

/*
 * End a block that is in no list, if possible. The pins are read before the fence, because a thread that unpins with a
 * fence stores the fence first.
 */
static bool free_look(struct gpool *pool, struct deferred *entry)
{
	bool alone = !is_pinned(pool, &entry->block, entry->own_pins);
	int error;

	entry->fence = block_fence(pool, &entry->block);
	if (!alone)
		return false;
	if (entry->fence) {
		own_unpin(pool, entry);
		return false;
	}
	error = free_claim(pool, &entry->block);
	own_unpin(pool, entry);
	if (error)
		return error == -ESTALE && entry->finish(pool, &entry->block, true) == 0;
	entry->own_pins = 1;
	/*
	 * No further pin can succeed, so a count above 1 includes only pins that are about to fail. The fence is read
	 * again under the pin, as in the model.
	 */
	entry->fence = block_fence(pool, &entry->block);
	if (!entry->fence && entry->finish(pool, &entry->block, false) == 0)
		return true;
	own_unpin(pool, entry);
	return false;
}

/*
 * End the block. If this is not possible yet, insert it into the list of its fence, or the list for pins. Return true
 * if it ended.
 */
static bool free_try(struct gpool *pool, struct deferred *entry)
{
	if (free_look(pool, entry))
		return true;
	list_add(pool, entry);
	if (entry->fence || is_pinned(pool, &entry->block, entry->own_pins))
		return false;
	/* A thread that unpinned before the entry was in a list did not check this block, so check again. */
	list_remove(pool, entry);
	if (free_look(pool, entry))
		return true;
	list_add(pool, entry);
	return false;
}

/*
 * Drop a deferred pin. The agent may have ended the pin as leaked and then taken the block; in this case the pin no
 * longer exists.
 */
static void unpin_now(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t tag = atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire);

	if ((tag & ~(uint64_t)BLOCK_DYING) == block->tag && pin_count(&pool->session, block->page))
		pin_drop(&pool->session, block->page);
	pool_wake_waiters(pool);
}

/* Process the head of a stream's list, whose fence is signaled. */
static void entry_ready(struct gpool *pool, struct deferred *entry)
{
	list_remove(pool, entry);
	if (entry->kind == DEFERRED_UNPIN) {
		struct deferred *waits = &pool->deferred->blocks[entry->block.page];

		unpin_now(pool, &entry->block);
		free(entry);
		/* This may have been the last pin for which a freed block waited. */
		if (waits->kind == DEFERRED_FREE && !is_pinned(pool, &waits->block, waits->own_pins))
			entry_ready(pool, waits);
	} else if (free_try(pool, entry)) {
		entry->kind = DEFERRED_NONE;
	}
}

/* ---- calls ---- */

void deferred_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence, deferred_finish finish)
{
	struct deferred_lists *lists = pool->deferred;
	struct deferred *entry = &lists->blocks[block->page];

	pthread_mutex_lock(&lists->lock);
	/* The entry belongs to an earlier block at this page, which the agent has taken. */
	if (entry->kind == DEFERRED_FREE) {
		list_remove(pool, entry);
		entry->finish(pool, &entry->block, true);
	}
	*entry = (struct deferred){
		.block = *block, .finish = finish, .kind = DEFERRED_FREE, .own_pins = 1, .fence = fence};
	if (fence && !entry_fence_raise(pool, block_entry(pool, block->page), fence))
		list_add(pool, entry);
	else if (free_try(pool, entry))
		entry->kind = DEFERRED_NONE;
	pthread_mutex_unlock(&lists->lock);
}

int deferred_unpin(struct gpool *pool, const struct gpool_block *block, uint64_t fence)
{
	struct deferred *entry = malloc(sizeof(*entry));

	if (!entry)
		return -ENOMEM;
	*entry = (struct deferred){.block = *block, .fence = fence, .kind = DEFERRED_UNPIN};
	pthread_mutex_lock(&pool->deferred->lock);
	list_add(pool, entry);
	pthread_mutex_unlock(&pool->deferred->lock);
	return 0;
}

void deferred_unpinned(struct gpool *pool, uint32_t page)
{
	struct deferred *entry = &pool->deferred->blocks[page];

	pthread_mutex_lock(&pool->deferred->lock);
	if (entry->kind == DEFERRED_FREE && !is_pinned(pool, &entry->block, entry->own_pins))
		entry_ready(pool, entry);
	pthread_mutex_unlock(&pool->deferred->lock);
}

/* The caller holds the lock. */
static void lists_sweep(struct gpool *pool)
{
	struct deferred_lists *lists = pool->deferred;
	struct deferred *entry;

	for (uint32_t word = 0; word < SESSION_TIMELINES / 64; word++) {
		for (uint64_t busy = lists->busy[word]; busy; busy &= busy - 1) {
			struct deferred_list *list = &lists->behind[word * 64 + (uint32_t)__builtin_ctzll(busy)];

			while ((entry = TAILQ_FIRST(list)) && fence_signaled(&pool->session, entry->fence))
				entry_ready(pool, entry);
		}
	}
	for (int looks = 0; looks < PIN_LOOKS && (entry = TAILQ_FIRST(&lists->behind[0])); looks++)
		entry_ready(pool, entry); /* moves to the end of the list if it cannot end yet */
}

/* Idle callback: end the frees and unpins whose conditions are met. */
static bool deferred_sweep(struct gpool *pool)
{
	/* If another thread holds the lock, that thread does the work. */
	if (atomic_load_explicit(&pool->deferred_count, memory_order_relaxed) &&
		!pthread_mutex_trylock(&pool->deferred->lock)) {
		lists_sweep(pool);
		pthread_mutex_unlock(&pool->deferred->lock);
	}
	return atomic_load_explicit(&pool->deferred_count, memory_order_relaxed) != 0;
}

bool deferred_reuse(struct gpool *pool, struct thread_cache *cache, uint32_t slot, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block)
{
	struct deferred_lists *lists = pool->deferred;
	struct block_attributes again = *attributes;
	struct deferred *entry;
	uint64_t fence = 0;
	int looks = 0;

	if (!atomic_load_explicit(&pool->deferred_count, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&lists->lock);
	/* Try the latest block first: its content is most likely still in the GPU's caches. */
	TAILQ_FOREACH_REVERSE(entry, &lists->behind[slot], deferred_list, link)
	{
		if (entry->block.page + entry->block.page_count > pool->unreserved)
			continue; /* reserved, for critical requests only */
		if (++looks > REUSE_LOOKS) {
			entry = NULL;
			break;
		}
		if (entry->kind != DEFERRED_FREE || entry->block.page_count != page_count ||
			entry->block.tag & BLOCK_SCATTERED || entry->own_pins || is_pinned(pool, &entry->block, 0))
			continue;
		if (free_claim(pool, &entry->block))
			continue;
		/* Other streams may have used the block too. The order of this stream does not cover their work. */
		fence = atomic_load_explicit(&block_entry(pool, entry->block.page)->fence, memory_order_acquire);
		if (!is_pinned(pool, &entry->block, 1) &&
			(fence_slot(fence) == slot || fence_signaled(&pool->session, fence)))
			break;
		pin_drop(&pool->session, entry->block.page);
	}
	if (entry) {
		list_remove(pool, entry);
		entry->kind = DEFERRED_NONE;
		entry->finish(pool, &entry->block, true);
		/*
		 * The new block inherits the fence, so that the agent does not take it before the earlier work has
		 * finished.
		 */
		again.fence = fence;
		block_from_run(cache, entry->block.page, page_count, entry->block.generation, &again, block);
	}
	pthread_mutex_unlock(&lists->lock);
	return entry != NULL;
}

/* ---- open and close ---- */

int deferred_open(struct gpool *pool)
{
	struct deferred_lists *lists = calloc(1, sizeof(*lists));

	if (!lists)
		return -ENOMEM;
	lists->bytes = (pool->page_count ? pool->page_count : 1) * sizeof(*lists->blocks);
	lists->blocks =
		mmap(NULL, lists->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (lists->blocks == MAP_FAILED) {
		free(lists);
		return -ENOMEM;
	}
	pthread_mutex_init(&lists->lock, NULL);
	for (int i = 0; i < SESSION_TIMELINES; i++)
		TAILQ_INIT(&lists->behind[i]);
	pool->deferred = lists;
	idle_register(pool, IDLE_WAIT, deferred_sweep);
	return 0;
}

void deferred_close(struct gpool *pool)
{
	struct deferred_lists *lists = pool->deferred;

	if (!lists)
		return;
	for (int i = 1; i < SESSION_TIMELINES; i++) {
		struct deferred *entry, *next;

		for (entry = TAILQ_FIRST(&lists->behind[i]); entry; entry = next) {
			next = TAILQ_NEXT(entry, link);
			if (entry->kind == DEFERRED_UNPIN)
				free(entry);
		}
	}
	munmap(lists->blocks, lists->bytes);
	pthread_mutex_destroy(&lists->lock);
	free(lists);
	pool->deferred = NULL;
	atomic_store_explicit(&pool->deferred_count, 0, memory_order_relaxed);
}
