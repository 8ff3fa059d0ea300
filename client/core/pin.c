/* pin.c - pin, unpin and touch blocks, and return their addresses. */
#include "client/core/alloc.h"
#include "client/core/deferred.h"
#include "client/core/flight.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/spill.h"
#include "client/core/stitch.h"
#include "client/core/stream.h"
#include "shm/doorbell.h"

enum {
	PIN_SPINS = 64,         /* about the duration of a failing eviction, less than a microsecond */
	PIN_SLICE_NS = 1000000, /* the agent wakes waiters; this limits the wait if the agent has died */
};

static void tell(
	const struct gpool *pool, enum flight_kind kind, const struct gpool_block *block, int error, uint64_t begun_ns)
{
	flight_tell(pool,
		&(struct flight_entry){
			.kind = kind,
			.page = block->page,
			.pages = block->page_count,
			.tag = block->tag,
			.value = (uint64_t)-error,
		},
		begun_ns);
}

/* Wait while the block is in motion, as block_pin() has reported. */
static COLD int pin_wait(const struct gpool *pool, const struct gpool_block *block)
{
	struct session_header *header = pool->session.header;
	uint64_t limit = (uint64_t)atomic_load_explicit(&pool->header->pin_timeout_ms, memory_order_relaxed) * 1000000,
		 start;
	int error = -EAGAIN;

	for (int spins = 0; spins < PIN_SPINS && error == -EAGAIN; spins++) {
		cpu_relax();
		error = block_pin(pool, block);
	}
	if (error != -EAGAIN)
		return error;
	start = monotonic_ns();
	atomic_fetch_add_explicit(&header->pin_waiters, 1, memory_order_seq_cst);
	for (;;) {
		uint64_t word = atomic_load_explicit(&pool->pages[block->page], memory_order_seq_cst);

		if (page_word_in_motion(word))
			futex_wait(page_word_high(pool, block->page), (uint32_t)(word >> 32), PIN_SLICE_NS);
		error = block_pin(pool, block);
		if (error != -EAGAIN)
			break;
		if (monotonic_ns() - start >= limit) {
			error = -ETIMEDOUT;
			break;
		}
		if (wait_interrupted()) {
			error = -EINTR;
			break;
		}
	}
	atomic_fetch_sub_explicit(&header->pin_waiters, 1, memory_order_relaxed);
	tell(pool, FLIGHT_PIN_WAIT, block, error, start);
	return error;
}

int pin_at(struct gpool *pool, const struct gpool_block *block)
{
	int error = block_pin(pool, block);

	return error == -EAGAIN ? pin_wait(pool, block) : error;
}

/* Describe a failed pin, unless its text was set where it failed. */
static COLD int fail_pin(const struct gpool *pool, const struct gpool_block *block, int error)
{
	return error == -ESTALE ? fail_stale(pool, block) : error == -ETIMEDOUT ? fail_examined(pool, block) : error;
}

/*
 * Handle a failed pin, which was visible for a moment. If a dying block waited for the pin to disappear, this thread
 * must complete the free. *place: the place where the block was finally pinned.
 */
static COLD int pin_failed(struct gpool *pool, const struct gpool_block *block, int error, struct gpool_block *place)
{
	const struct thread_cache *cache = thread_cache_of(pool);

	*place = *block;

	if (error == -EAGAIN) {
		if (cache)
			stat_add(cache, &cache->stats->contended_pins);
		error = pin_wait(pool, block);
		if (!error)
			return 0;
	}
	if (block->tag & BLOCK_SPILL) {
		error = spill_pin(pool, block, error, place);
		if (!error)
			return 0;
	}
	if (error == -ESTALE) {
		if (cache)
			stat_add(cache, &cache->stats->stale_pins);
		tell(pool, FLIGHT_PIN_STALE, block, 0, 0);
	}
	pool_sweep(pool);
	return fail_pin(pool, block, error);
}

int gpool_pin(struct gpool *pool, const struct gpool_block *block)
{
	const struct thread_cache *cache;
	struct gpool_block place;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(block_handle_bad(pool, block)))
		return fail_handle(pool, block);
	error = block_pin(pool, block);
	if (unlikely(error)) {
		error = pin_failed(pool, block, error, &place);
		if (error)
			return error;
		block = &place;
	}
	cache = thread_cache_of(pool);
	if (likely(cache))
		stat_add(cache, &cache->stats->pins);
	return 0;
}

/* Check before an unpin that the block, which may be dying, still exists here and is pinned. */
static inline int unpin_check(const struct gpool *pool, const struct gpool_block *block)
{
	uint64_t tag;

	if (unlikely(block_handle_bad(pool, block)))
		return fail_handle(pool, block);
	tag = atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_relaxed);
	if (unlikely((tag & ~(uint64_t)BLOCK_DYING) != block->tag))
		return -ESTALE;
	/* The last pin of a dying block belongs to its free. */
	if (unlikely(atomic_load_explicit(&pool->session.pins[block->page], memory_order_relaxed) <=
		    (tag != block->tag)))
		return fail_unpinned(block);
	return 0;
}

/* Find the place of a block that has moved. Return 0 if it is pinned there, otherwise `error`. */
static COLD int unpin_check_moved(
	struct gpool *pool, const struct gpool_block *block, int error, struct gpool_block *place)
{
	if (error != -ESTALE || spill_where(pool, block, place))
		return error;
	return unpin_check(pool, place);
}

static inline void pin_end(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t tag;

	pin_drop(&pool->session, block->page);
	/*
	 * Read the tag after the pin is dropped. A free adds BLOCK_DYING first and then reads the pins, so at least one
	 * of the two threads sees the other's change. (Where a load may pass an atomic add, both may miss it; then the
	 * next sweep ends the block.)
	 */
	tag = atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_seq_cst);
	if (unlikely(tag == (block->tag | BLOCK_DYING)))
		deferred_unpinned(pool, block->page);
}

static inline void unpin_checked(struct gpool *pool, const struct gpool_block *block)
{
	struct thread_cache *cache = thread_cache_of(pool);

	pin_end(pool, block);
	if (likely(cache))
		stat_add(cache, &cache->stats->unpins);
	pool_wake_waiters(pool);
}

int gpool_unpin(struct gpool *pool, const struct gpool_block *block)
{
	struct gpool_block place;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	error = unpin_check(pool, block);
	if (unlikely(error)) {
		error = unpin_check_moved(pool, block, error, &place);
		if (error)
			return error == -ESTALE ? fail_stale(pool, block) : error;
		block = &place;
	}
	unpin_checked(pool, block);
	return 0;
}

/* Record a use of a block that is not at the handle's place, without restoring it. */
static COLD int touch_failed(struct gpool *pool, const struct gpool_block *block, int error, struct gpool_block *place)
{
	const struct thread_cache *cache = thread_cache_of(pool);

	*place = *block;
	if (error == -EAGAIN)
		error = pin_wait(pool, block);
	if (error == -ESTALE && !spill_where(pool, block, place))
		error = pin_at(pool, place);
	if (error == -ESTALE && cache)
		stat_add(cache, &cache->stats->stale_pins);
	if (!error)
		return 0;
	pool_sweep(pool);
	return fail_pin(pool, block, error);
}

int gpool_touch(struct gpool *pool, const struct gpool_block *block)
{
	struct gpool_block place;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(block_handle_bad(pool, block)))
		return fail_handle(pool, block);
	error = block_pin(pool, block);
	if (unlikely(error)) {
		error = touch_failed(pool, block, error, &place);
		if (error)
			return error;
		block = &place;
	}
	pin_end(pool, block);
	return 0;
}

int gpool_address(struct gpool *pool, const struct gpool_block *block, uint64_t *address)
{
	struct gpool_block place;
	uint64_t tag;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(block_handle_bad(pool, block)))
		return fail_handle(pool, block);
	tag = atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire);
	if (unlikely((tag & ~(uint64_t)BLOCK_DYING) != block->tag)) {
		if (spill_where(pool, block, &place))
			return fail_stale(pool, block);
		block = &place;
		tag = atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire);
		if ((tag & ~(uint64_t)BLOCK_DYING) != block->tag)
			return fail_stale(pool, block);
	}
	if (unlikely(tag & BLOCK_SCATTERED))
		return stitch_address(pool, block, address) ? fail_stale(pool, block) : 0;
	*address = pool->window_base + block->page * pool->page_bytes;
	return 0;
}

/* ---- deferred by fences ---- */

int gpool_unpin_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence)
{
	struct gpool_block place;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	error = unpin_check(pool, block);
	if (unlikely(error)) {
		error = unpin_check_moved(pool, block, error, &place);
		if (error == -ESTALE)
			return fail_stale(pool, block);
		block = &place;
	}
	if (!error)
		error = fence_check(pool, fence);
	if (error)
		return error;
	if (fence_pending(pool, fence) && !entry_fence_raise(pool, block_entry(pool, block->page), fence.value))
		return deferred_unpin(pool, block, fence.value);
	unpin_checked(pool, block);
	return 0;
}
