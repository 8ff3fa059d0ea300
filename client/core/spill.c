/* spill.c - see spill.h; the requests are defined in shm/session_segment.h. */
#include "client/core/spill.h"

#include "client/core/flight.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/stitch.h"
#include "client/core/window.h"
#include "shm/plural.h"

#include <poll.h>
#include <search.h>
#include <stdlib.h>

enum { ON_ITS_WAY_MS = 1 }; /* interval of checks of a block that is being moved: about the time to move one page */

struct moved {
	uint64_t sequence;
	struct gpool_block place; /* last known place; the block may have been spilled again */
	bool known, mapped;
	bool coming; /* a thread is restoring it */
};

struct spills {
	pthread_mutex_t lock;
	pthread_cond_t came;
	void *moved; /* tsearch(3), by sequence */
};

static int by_sequence(const void *left, const void *right)
{
	const struct moved *a = left, *b = right;

	return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

int spills_open(struct gpool *pool)
{
	struct spills *spills = calloc(1, sizeof(*spills));

	if (!spills)
		return -ENOMEM;
	pthread_mutex_init(&spills->lock, NULL);
	pthread_cond_init(&spills->came, NULL);
	pool->spills = spills;
	return 0;
}

void spills_close(struct gpool *pool)
{
	struct spills *spills = pool->spills;

	if (!spills)
		return;
	tdestroy(spills->moved, free);
	pthread_cond_destroy(&spills->came);
	pthread_mutex_destroy(&spills->lock);
	free(spills);
	pool->spills = NULL;
}

/* ---- the table of moved blocks; the caller holds the lock ---- */

static struct moved *moved_find(const struct spills *spills, uint64_t tag)
{
	struct moved key = {.sequence = tag >> BLOCK_SEQUENCE_SHIFT};
	void *found = tfind(&key, &spills->moved, by_sequence);

	return found ? *(struct moved **)found : NULL;
}

static struct moved *moved_add(struct spills *spills, uint64_t tag)
{
	struct moved *moved = calloc(1, sizeof(*moved));

	if (!moved)
		return NULL;
	moved->sequence = tag >> BLOCK_SEQUENCE_SHIFT;
	if (tsearch(moved, &spills->moved, by_sequence))
		return moved;
	free(moved);
	return NULL;
}

static void moved_remove(struct spills *spills, struct moved *moved)
{
	tdelete(moved, &spills->moved, by_sequence);
	free(moved);
}

/* Return the entry of a block, after any restore by another thread has ended. */
static struct moved *moved_settled(struct spills *spills, uint64_t tag)
{
	struct moved *moved;

	while ((moved = moved_find(spills, tag)) && moved->coming)
		pthread_cond_wait(&spills->came, &spills->lock);
	return moved;
}

int spill_where(struct gpool *pool, const struct gpool_block *block, struct gpool_block *place)
{
	struct spills *spills = pool->spills;
	const struct moved *moved;
	int error = -ESTALE;

	if (!(block->tag & BLOCK_SPILL))
		return error;
	pthread_mutex_lock(&spills->lock);
	moved = moved_find(spills, block->tag);
	if (moved && moved->known && moved->mapped && !moved->coming) {
		*place = moved->place;
		error = 0;
	}
	pthread_mutex_unlock(&spills->lock);
	return error;
}

void spill_forget(struct gpool *pool, uint64_t tag)
{
	struct spills *spills = pool->spills;
	struct moved *moved;

	pthread_mutex_lock(&spills->lock);
	moved = moved_find(spills, tag);
	if (moved && !moved->coming)
		moved_remove(spills, moved);
	pthread_mutex_unlock(&spills->lock);
}

/* ---- restore ---- */

/* Convert the granted pages, which have the content, to the block, pinned once. */
static int place_stand(struct gpool *pool, const struct gpool_block *block, uint32_t first, struct gpool_block *place)
{
	const struct block_entry *entry = block_entry(pool, first);
	const struct block_attributes attributes = {
		.flags = block->tag & BLOCK_ATTRIBUTES & ~BLOCK_SCATTERED,
		.owner_id = atomic_load_explicit(&entry->owner_id, memory_order_relaxed),
	};
	uint64_t word;
	int error;

	if (atomic_load_explicit(&entry->page_count, memory_order_relaxed) != block->page_count)
		return chain_stand_as(
			pool, block->tag >> BLOCK_SEQUENCE_SHIFT, first, block->page_count, &attributes, place);
	error = run_pin(pool, first, &word);
	if (error)
		return error;
	*place = (struct gpool_block){
		.generation = word,
		.tag = block->tag & ~(uint64_t)BLOCK_SCATTERED,
		.page = first,
		.page_count = block->page_count,
	};
	block_write(pool, first, block->page_count, place->tag, &attributes);
	return 0;
}

/* Map the pinned block. If this fails, drop the pin; the block remains in the pool, and the next pin tries again. */
static int place_map(struct gpool *pool, const struct gpool_block *place)
{
	int error = place->tag & BLOCK_SCATTERED ? stitch_map(pool, place)
						 : window_map(pool, place->page, place->page_count);

	if (error)
		gpool_unpin(pool, place);
	return error;
}

static int restore_begin(struct gpool *pool, const struct gpool_block *block, uint32_t flags, uint32_t timeout_ms,
	struct lease_ticket *ticket)
{
	const struct lease_request ask = {
		.kind = LEASE_RESTORE,
		.need = block->page_count,
		.flags = flags,
		.timeout_ms = timeout_ms,
		.tag = block->tag & ~(uint64_t)BLOCK_SCATTERED,
	};

	pool_sweep(pool);
	return lease_begin(pool, &ask, ticket);
}

/* End a restore. *place: on success the place of the block, pinned; page_count 0: the block is not in the pool. */
static int restore_end(struct gpool *pool, const struct gpool_block *block, const struct lease_ticket *ticket,
	bool wait, struct gpool_block *place)
{
	struct lease_request answer = {0};
	int error = lease_end(pool, ticket, wait, &answer);

	*place = (struct gpool_block){0};
	if (error == -EBADMSG)
		return fail(error,
			"the spilled content of the block of %u page%s is lost: its checksum has changed; allocate "
			"a block and create its content again",
			block->page_count, plural(block->page_count));
	if (error == -EIO)
		return fail(error,
			"the spilled content of the block of %u page%s cannot be read now, but is kept; try again "
			"later. The log of the agent contains the cause",
			block->page_count, plural(block->page_count));
	if (!error)
		error = place_stand(pool, block, answer.first_page, place);
	return error ? error : place_map(pool, place);
}

/* Restore the block. Set *place and return a result as restore_end() does. */
static int bring_back(struct gpool *pool, const struct gpool_block *block, struct gpool_block *place)
{
	uint32_t timeout_ms = atomic_load_explicit(&pool->header->pin_timeout_ms, memory_order_relaxed);
	struct lease_ticket ticket;
	int error;

	for (;;) {
		/* A timeout of 0 would fail because of pages that other threads of this process hold in transit. */
		error = restore_begin(pool, block, 0, timeout_ms ? timeout_ms : 1, &ticket);
		if (!error)
			error = restore_end(pool, block, &ticket, true, place);
		/* A restore was cancelled, but the mover still writes to its pages. */
		if (error != -EBUSY || pool_gone(pool))
			return error;
		if (wait_interrupted())
			return -EINTR;
		poll(NULL, 0, ON_ITS_WAY_MS);
	}
}

/*
 * Record that this thread restores the block. `moved` is its entry in the table, or NULL. Return NULL if no memory is
 * available. The caller holds the lock.
 */
static struct moved *coming_begin(struct spills *spills, struct moved *moved, uint64_t tag)
{
	if (!moved)
		moved = moved_add(spills, tag);
	if (moved)
		moved->coming = true;
	return moved;
}

/* Record the end of a restore, with the *place and the error that restore_end() has set and returned. */
static void coming_end(struct spills *spills, uint64_t tag, const struct gpool_block *place, int error)
{
	struct moved *moved;

	pthread_mutex_lock(&spills->lock);
	moved = moved_find(spills, tag);
	moved->coming = false;
	moved->known = place->page_count;
	moved->mapped = !error;
	moved->place = *place;
	if (!moved->known)
		moved_remove(spills, moved);
	pthread_cond_broadcast(&spills->came);
	pthread_mutex_unlock(&spills->lock);
}

/*
 * Wait without a limit while the block is being spilled, as for a block that is being restored. The agent ends the
 * wait, with or without a mover (mover.patience).
 */
static int pin_patiently(struct gpool *pool, const struct gpool_block *block, int error)
{
	while (error == -ETIMEDOUT && !pool_gone(pool))
		error = pin_at(pool, block);
	return error;
}

/*
 * Return true if the block at this place was freed while other threads had it pinned. They can use it until they unpin
 * it, but no new pin succeeds.
 */
static bool dying_at(const struct gpool *pool, const struct gpool_block *place)
{
	return atomic_load_explicit(&block_entry(pool, place->page)->tag, memory_order_acquire) ==
		(place->tag | BLOCK_DYING);
}

/*
 * Restore the block, or map it if an earlier restore could not. The block is at *place, unless it has been evicted
 * since; page_count 0: it has no place in the pool.
 */
static int place_take(struct gpool *pool, const struct gpool_block *block, struct gpool_block *place)
{
	int error = place->page_count ? pin_patiently(pool, place, pin_at(pool, place)) : -ESTALE;

	if (error == -ESTALE)
		return bring_back(pool, block, place);
	return error ? error : place_map(pool, place);
}

int spill_pin(struct gpool *pool, const struct gpool_block *block, int error, struct gpool_block *place)
{
	struct spills *spills = pool->spills;
	struct moved *moved;
	uint64_t begun_ns;

	*place = *block;
	error = pin_patiently(pool, block, error);
	if (error != -ESTALE || dying_at(pool, block))
		return error;
	pthread_mutex_lock(&spills->lock);
	while ((moved = moved_settled(spills, block->tag)) && moved->known && moved->mapped) {
		*place = moved->place;
		pthread_mutex_unlock(&spills->lock);
		error = pin_patiently(pool, place, pin_at(pool, place));
		if (error != -ESTALE || dying_at(pool, place))
			return error;
		pthread_mutex_lock(&spills->lock);
		/* No other thread has moved the block in the meantime, so this thread restores it. */
		moved = moved_settled(spills, block->tag);
		if (moved && moved->known && moved->place.page == place->page &&
			moved->place.generation == place->generation)
			moved->known = false;
	}
	moved = coming_begin(spills, moved, block->tag);
	*place = moved && moved->known ? moved->place : (struct gpool_block){0};
	pthread_mutex_unlock(&spills->lock);
	if (!moved)
		return -ENOMEM;
	begun_ns = monotonic_ns();
	error = place_take(pool, block, place);
	coming_end(spills, block->tag, place, error);
	flight_tell(pool,
		&(struct flight_entry){
			.kind = FLIGHT_RESTORE,
			.page = error ? 0 : place->page,
			.pages = block->page_count,
			.tag = block->tag,
			.value = (uint64_t)-error,
		},
		begun_ns);
	return error;
}

/* ---- restore ahead of need ---- */

/* Record a use of the block at this place. Return: 0, or the error of block_pin(). */
static int look_at(struct gpool *pool, const struct gpool_block *place)
{
	int error = block_pin(pool, place);

	if (!error)
		gpool_unpin(pool, place);
	return error;
}

/* Record a use of the block at its handle's place or at its known place. Return: 0, or the error of block_pin(). */
static int look_for(struct gpool *pool, const struct gpool_block *block, struct gpool_block *place)
{
	int error = look_at(pool, block);

	*place = *block;
	if (error == -ESTALE && !dying_at(pool, block) && !spill_where(pool, block, place))
		error = look_at(pool, place);
	return error;
}

bool spill_here(struct gpool *pool, const struct gpool_block *block)
{
	struct gpool_block place;

	return look_for(pool, block, &place) == 0;
}

/* Record that this thread restores a block that is not in the pool. Return 0 on success. */
static int fetch_enter(struct gpool *pool, const struct gpool_block *block)
{
	struct spills *spills = pool->spills;
	struct gpool_block place;
	struct moved *moved;
	int error = look_for(pool, block, &place);

	if (error != -ESTALE || dying_at(pool, &place))
		return error ? error : -EALREADY;
	pthread_mutex_lock(&spills->lock);
	moved = moved_find(spills, block->tag);
	/* Another thread has already restored the block, or is restoring it. */
	if (moved && moved->known && !moved->mapped && !moved->coming)
		error = -ENOMEM;
	else if (moved &&
		(moved->coming || moved->place.page != place.page || moved->place.generation != place.generation))
		error = -EAGAIN;
	else
		error = coming_begin(spills, moved, block->tag) ? 0 : -ENOMEM;
	pthread_mutex_unlock(&spills->lock);
	return error;
}

int spill_fetch_begin(struct gpool *pool, const struct gpool_block *block, struct spill_fetch *fetch)
{
	int error = fetch_enter(pool, block);

	if (error)
		return error;
	fetch->block = *block;
	error = restore_begin(pool, block, LEASE_NO_EVICT, 0, &fetch->ticket);
	if (error)
		coming_end(pool->spills, block->tag, &(struct gpool_block){0}, error);
	return error;
}

int spill_fetch_end(struct gpool *pool, struct spill_fetch *fetch, bool wait)
{
	struct gpool_block place;
	int error = restore_end(pool, &fetch->block, &fetch->ticket, wait, &place);

	if (error == -EAGAIN)
		return error;
	coming_end(pool->spills, fetch->block.tag, &place, error);
	if (!error)
		gpool_unpin(pool, &place);
	return error;
}

/* ---- discard and free ---- */

static int discard(struct gpool *pool, uint64_t tag)
{
	struct lease_request ask = {.kind = LEASE_DISCARD, .tag = tag & ~(uint64_t)BLOCK_SCATTERED};

	return lease_ask(pool, &ask);
}

static int drop_once(struct gpool *pool, const struct gpool_block *block)
{
	struct spills *spills = pool->spills;
	struct gpool_block place = *block;
	int error = pin_patiently(pool, block, pin_at(pool, block));

	if (error == -ESTALE) {
		const struct moved *moved;
		bool known;

		pthread_mutex_lock(&spills->lock);
		moved = moved_settled(spills, block->tag);
		known = moved && moved->known;
		if (known)
			place = moved->place;
		pthread_mutex_unlock(&spills->lock);
		if (known)
			error = pin_patiently(pool, &place, pin_at(pool, &place));
	}
	if (error == -ESTALE && !dying_at(pool, &place)) {
		error = discard(pool, block->tag);
		if (!error)
			spill_forget(pool, block->tag);
		return error;
	}
	if (error)
		return error;
	error = block_free(pool, &place, 0);
	/* Another thread has freed the block first. Drop the pin of this thread. */
	if (error)
		gpool_unpin(pool, &place);
	return error;
}

/* -EBUSY: the block is being moved. This process is not notified when the move ends. */
int spill_drop(struct gpool *pool, const struct gpool_block *block)
{
	int error;

	while ((error = drop_once(pool, block)) == -EBUSY && !pool_gone(pool)) {
		if (wait_interrupted())
			return -EINTR;
		poll(NULL, 0, ON_ITS_WAY_MS);
	}
	return error == -EBUSY ? -EPIPE : error;
}

int gpool_refresh(struct gpool *pool, struct gpool_block *block)
{
	struct gpool_block place = *block;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(block_handle_bad(pool, block)))
		return fail_handle(pool, block);
	for (int look = 0; look < 2; look++) {
		uint64_t word = atomic_load_explicit(&pool->pages[place.page], memory_order_acquire);

		if (block_word_same(word, place.generation) &&
			atomic_load_explicit(&block_entry(pool, place.page)->tag, memory_order_acquire) == place.tag) {
			*block = place;
			return 0;
		}
		if (look || spill_where(pool, block, &place))
			break;
	}
	return fail_stale(pool, block);
}
