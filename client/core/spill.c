/* spill.c - see spill.h; the requests stand in shm/session_segment.h. */
#include "client/core/spill.h"

#include "client/core/flight.h"
#include "client/core/last_error.h"
#include "client/core/stitch.h"

#include <poll.h>
#include <search.h>
#include <stdlib.h>

enum { ON_ITS_WAY_MS = 1 }; /* between two looks at a block that is being moved: about as long as a page takes */

/* Where a block is that has moved. */
struct moved {
	uint64_t sequence;
	struct gpool_block place; /* last known: it may have left there again */
	bool known;
	bool coming; /* a thread brings it back */
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

/* ---- the table; the caller holds the lock ---- */

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

/* What is known, when no thread is changing it. */
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
	if (moved && moved->known && !moved->coming) {
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

/* ---- bringing back ---- */

/*
 * Is it spilled, can it be brought back, and how many pages is it? Others' blocks shall not go for one that nobody can
 * bring.
 */
static int saved_ask(struct gpool *pool, uint64_t tag, uint32_t *page_count)
{
	struct lease_request ask = {
		.kind = LEASE_RESTORE, .flags = LEASE_SOON, .tag = tag & ~(uint64_t)BLOCK_SCATTERED};
	int error = lease_ask(pool, &ask);

	*page_count = ask.extra_granted;
	return error;
}

/* Pages for it, pinned and seen by nobody. They may come a little later, when others have to be spilled for them. */
static int target_alloc(struct gpool *pool, uint64_t tag, uint32_t page_count, uint32_t flags, int32_t timeout_ms,
	struct gpool_block *target)
{
	struct alloc_request request = {
		.attributes.flags = (tag & (BLOCK_TYPE_MASK | BLOCK_PRIORITY_MASK)) | BLOCK_PREPARED,
		.flags = flags,
		.timeout_ms = timeout_ms,
	};

	return alloc_block(pool, page_count, &request, target);
}

/* The pages have the content: from now on they are the block. */
static void target_adopt(struct gpool *pool, struct gpool_block *target, uint64_t tag)
{
	tag = (tag & ~(uint64_t)BLOCK_SCATTERED) | (target->tag & BLOCK_SCATTERED);
	if (tag & BLOCK_SCATTERED)
		stitch_rename(pool, target->page, tag);
	else
		atomic_store_explicit(&block_entry(pool, target->page)->tag, tag, memory_order_release);
	target->tag = tag;
}

/* What came of it. */
static void target_settle(struct gpool *pool, struct gpool_block *target, uint64_t tag, int error)
{
	if (!error)
		target_adopt(pool, target, tag);
	else if (error != -EPIPE) /* the mover may still be writing to the pages: they must not be reused */
		block_free(pool, target, 0);
}

/* Whether the agent still has the content distinguishes the two failures. */
static int restore_fail(struct gpool *pool, uint64_t tag)
{
	uint32_t page_count;

	if (saved_ask(pool, tag, &page_count) == -ESTALE)
		return fail(-EIO, "the block's spilled content is lost: its checksum differs from when it was written");
	return fail(-EIO,
		"the block's spilled content cannot be read back now; it is kept, and the agent's log has the cause");
}

static int bring_back(struct gpool *pool, uint64_t tag, struct gpool_block *target)
{
	struct lease_request ask = {.kind = LEASE_RESTORE, .tag = tag & ~(uint64_t)BLOCK_SCATTERED};
	int32_t timeout_ms = (int32_t)atomic_load_explicit(&pool->header->pin_timeout_ms, memory_order_relaxed);
	uint32_t page_count;
	int error;

	/* A restore that was given up before still writes to its pages. */
	while ((error = saved_ask(pool, tag, &page_count)) == -EBUSY && !pool_gone(pool))
		poll(NULL, 0, ON_ITS_WAY_MS);
	if (!error)
		error = target_alloc(pool, tag, page_count, 0, timeout_ms, target);
	if (error)
		return error;
	ask.need = page_count;
	ask.first_page = target->page;
	error = lease_ask(pool, &ask);
	target_settle(pool, target, tag, error);
	return error == -EIO ? restore_fail(pool, tag) : error;
}

/*
 * This thread brings it back: false: there is no memory to note that. `moved` is what the table has of it, or NULL; the
 * caller holds the lock.
 */
static bool coming_begin(struct spills *spills, struct moved *moved, uint64_t tag)
{
	if (!moved)
		moved = moved_add(spills, tag);
	if (moved)
		moved->coming = true;
	return moved;
}

static void coming_end(struct spills *spills, uint64_t tag, const struct gpool_block *place, int error)
{
	struct moved *moved;

	pthread_mutex_lock(&spills->lock);
	moved = moved_find(spills, tag);
	moved->coming = false;
	moved->known = !error;
	moved->place = *place;
	if (error)
		moved_remove(spills, moved);
	pthread_cond_broadcast(&spills->came);
	pthread_mutex_unlock(&spills->lock);
}

/*
 * While the block is being spilled the only choice is to wait, without a limit, as for a block that is being restored.
 * The agent ends it, with or without a mover (mover.patience).
 */
static int pin_patiently(struct gpool *pool, const struct gpool_block *block, int error)
{
	while (error == -ETIMEDOUT && !pool_gone(pool))
		error = pin_at(pool, block);
	return error;
}

/* The block was freed while others pin it: they keep it until they unpin it, and no new pin succeeds. */
static bool dying_at(const struct gpool *pool, const struct gpool_block *place)
{
	return atomic_load_explicit(&block_entry(pool, place->page)->tag, memory_order_acquire) ==
		(place->tag | BLOCK_DYING);
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
	while ((moved = moved_settled(spills, block->tag)) && moved->known) {
		*place = moved->place;
		pthread_mutex_unlock(&spills->lock);
		error = pin_patiently(pool, place, pin_at(pool, place));
		if (error != -ESTALE || dying_at(pool, place))
			return error;
		pthread_mutex_lock(&spills->lock);
		/* No other thread has moved it meanwhile: this thread does. */
		moved = moved_settled(spills, block->tag);
		if (moved && moved->known && moved->place.page == place->page &&
			moved->place.generation == place->generation)
			moved->known = false;
	}
	if (!coming_begin(spills, moved, block->tag)) {
		pthread_mutex_unlock(&spills->lock);
		return -ENOMEM;
	}
	pthread_mutex_unlock(&spills->lock);
	begun_ns = monotonic_ns();
	error = bring_back(pool, block->tag, place);
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

/* ---- bringing back ahead of need ---- */

/* 0: it is there, and counts as used now. Else as pin_try(). */
static int look_at(struct gpool *pool, const struct gpool_block *place)
{
	int error = pin_try(&pool->session, pool->pages, place->page, place->generation, place->tag);

	if (error)
		return error;
	atomic_store_explicit(&pool->session.touch[place->page], pool_clock(pool), memory_order_relaxed);
	gpool_unpin(pool, place);
	return 0;
}

/* The same, wherever that may be. */
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

/* 0: it is nowhere in the pool, and from now on coming. */
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
	/* Somebody else has brought it meanwhile, or is about to. */
	if (moved && (moved->coming || moved->place.page != place.page || moved->place.generation != place.generation))
		error = -EAGAIN;
	else
		error = coming_begin(spills, moved, block->tag) ? 0 : -ENOMEM;
	pthread_mutex_unlock(&spills->lock);
	return error;
}

int spill_fetch_begin(struct gpool *pool, const struct gpool_block *block, struct spill_fetch *fetch)
{
	struct lease_request ask = {
		.kind = LEASE_RESTORE, .tag = block->tag & ~(uint64_t)BLOCK_SCATTERED, .need = block->page_count};
	int error = fetch_enter(pool, block);

	if (error)
		return error;
	fetch->tag = block->tag;
	error = target_alloc(pool, block->tag, block->page_count, GPOOL_ALLOC_NO_EVICT, 0, &fetch->target);
	if (!error) {
		ask.first_page = fetch->target.page;
		error = lease_begin(pool, &ask, &fetch->ticket);
		if (error)
			block_free(pool, &fetch->target, 0);
	}
	if (error)
		coming_end(pool->spills, block->tag, block, error);
	return error;
}

int spill_fetch_end(struct gpool *pool, struct spill_fetch *fetch, bool wait)
{
	struct lease_request ask = {0};
	int error = lease_end(pool, &fetch->ticket, wait, &ask);

	if (error == -EAGAIN)
		return error;
	target_settle(pool, &fetch->target, fetch->tag, error);
	coming_end(pool->spills, fetch->tag, &fetch->target, error);
	if (!error)
		gpool_unpin(pool, &fetch->target);
	return error;
}

/* ---- the end ---- */

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
	/* Another free was faster: the pin is still ours. */
	if (error)
		gpool_unpin(pool, &place);
	return error;
}

/* -EBUSY: it is being moved, which ends by itself; this process gets no notification. */
int spill_drop(struct gpool *pool, const struct gpool_block *block)
{
	int error;

	while ((error = drop_once(pool, block)) == -EBUSY && !pool_gone(pool))
		poll(NULL, 0, ON_ITS_WAY_MS);
	return error == -EBUSY ? -EPIPE : error;
}

int spill_now(struct gpool *pool, const struct gpool_block *block)
{
	struct lease_request ask = {.kind = LEASE_SPILL};
	struct gpool_block place = *block;

	if (atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire) != block->tag)
		spill_where(pool, block, &place);
	ask.tag = place.tag;
	ask.first_page = place.page;
	return lease_ask(pool, &ask);
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
	return -ESTALE;
}
