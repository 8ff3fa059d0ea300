/*
 * acquire.c - acquire adapters, completely or layer by layer, and release them.
 */
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/lora/load/limits.h"
#include "client/lora/load/load.h"
#include "client/core/thread_cache.h"
#include "shm/plural.h"

#include <errno.h>
#include <time.h>

/* ---- acquire; under the lock ---- */

void entry_queue(struct gpool_lora *lora, struct lora_entry *entry)
{
	entry->error = 0;
	if (lora->residency)
		limits_want(lora, entry);
	else
		load_set_state(lora, entry, LOAD_QUEUED);
}

/* Record that a caller asks for an adapter whose load rebalance.c may have begun. */
static void entry_asked(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (entry->load_state == LOAD_QUEUED_UNASKED)
		load_set_state(lora, entry, LOAD_QUEUED);
	else if (entry->load_state == LOAD_BEGUN_UNASKED)
		load_set_state(lora, entry, LOAD_BEGUN);
}

/* Unpin the object that was pinned for waiting callers. */
static void held_end(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (entry->load_state == LOAD_HELD)
		load_set_state(lora, entry, LOAD_RESIDENT);
}

/* Pin a resident adapter. Return: -ESTALE if it was evicted; its state is then COLD. */
static int pin_here(struct gpool_lora *lora, struct lora_entry *entry)
{
	int error;

	if (unlikely(entry->load != NULL)) {
		draft_use(entry);
		return 0;
	}
	error = entry_pin(lora, entry);
	if (!error) {
		entry->acquired++;
		return 0;
	}
	if (error != -ESTALE)
		return error;
	/*
	 * Another process has unloaded the adapter. While it is acquired here, it stays open until its last release.
	 * Otherwise it is closed, and the threads that wait for it load it again.
	 */
	if (entry->acquired)
		return fail(-EBUSY, "adapter '%s' was unloaded by another engine; release it here first",
			entry->adapter->name);
	held_end(lora, entry);
	if (entry_close(lora, entry))
		return fail(-EBUSY, "queued GPU work uses the former addresses of adapter '%s'", entry->adapter->name);
	entry->counts.lost++;
	return -ESTALE;
}

/* Record that a caller has stopped waiting. */
static void wait_end(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (!--entry->waiting)
		held_end(lora, entry);
}

/* The event for which a caller waits: the adapter is complete (WHOLE), or it has an address (PLACE). */
enum goal { WHOLE, PLACE };

static bool is_coming(const struct lora_entry *entry, enum goal goal)
{
	if (entry->state != GPOOL_LORA_LOADING || is_draft(entry))
		return false;
	return goal == WHOLE || !is_placed(entry);
}

/* Return true if this thread has a check function (gpool_wait_check()). */
static bool is_checked(void)
{
	return wait_slice_ms(-1) >= 0;
}

static struct timespec limit_of(int timeout_ms)
{
	struct timespec limit;

	clock_gettime(CLOCK_MONOTONIC, &limit);
	if (timeout_ms > 0) {
		limit.tv_sec += timeout_ms / 1000;
		limit.tv_nsec += timeout_ms % 1000 * 1000000;
		limit.tv_sec += limit.tv_nsec / 1000000000;
		limit.tv_nsec %= 1000000000;
	}
	return limit;
}

static bool is_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

/*
 * Wait for a change. The lock is released while the program's check for interrupts runs. Return: 0: check the condition
 * again; ETIMEDOUT, EINTR.
 */
static int wait_some(struct gpool_lora *lora, int timeout_ms, const struct timespec *limit)
{
	bool interrupted;
	struct timespec look;
	int error;

	if (!is_checked())
		return timeout_ms < 0 ? pthread_cond_wait(&lora->loaded, &lora->lock)
				      : pthread_cond_timedwait(&lora->loaded, &lora->lock, limit);
	look = limit_of(wait_slice_ms(-1));
	if (timeout_ms >= 0 && is_before(limit, &look))
		return pthread_cond_timedwait(&lora->loaded, &lora->lock, limit);
	error = pthread_cond_timedwait(&lora->loaded, &lora->lock, &look);
	pthread_mutex_unlock(&lora->lock);
	interrupted = wait_interrupted();
	pthread_mutex_lock(&lora->lock);
	return interrupted ? EINTR : error == ETIMEDOUT ? 0 : error;
}

/* Chosen: a thread with at least this timeout makes parts itself. A part takes much less than a millisecond. */
enum { HELP_MS = 10 };

static bool help(struct lora_entry *entry, uint32_t pages, int timeout_ms, bool finish)
{
	return entry->load && (timeout_ms < 0 || timeout_ms >= HELP_MS) && turns_help(entry->load, pages, finish);
}

/* Wait for the load. Return: 0, -ETIMEDOUT, -EINTR, or the error of the load. */
static int load_wait(
	struct gpool_lora *lora, struct lora_entry *entry, enum goal goal, int timeout_ms, const struct timespec *limit)
{
	/* The agent may take a long time to publish the object. */
	bool finish = timeout_ms < 0 && !is_checked();
	int error = 0;

	while (is_coming(entry, goal) && !error)
		if (!help(entry, UINT32_MAX, timeout_ms, finish))
			error = wait_some(lora, timeout_ms, limit);
	return !is_coming(entry, goal) ? entry->error : error == EINTR ? -EINTR : -ETIMEDOUT;
}

/* Count an acquire in the session's statistics, which other processes can read, unlike entry->counts. */
static inline void count_acquire(struct gpool *pool, bool hit)
{
	const struct thread_cache *cache = thread_cache_of(pool);

	if (likely(cache != NULL))
		stat_add(cache, hit ? &cache->stats->adapter_hits : &cache->stats->adapter_misses);
}

/*
 * Return true if the load acquired the adapter for this caller when it set the address, even if the load has ended
 * since.
 */
static bool place_taken(struct lora_entry *entry)
{
	if (!entry->granted) {
		entry->beginning--;
		return false;
	}
	entry->granted--;
	return true;
}

static int acquire_once(
	struct gpool_lora *lora, struct lora_entry *entry, enum goal goal, int timeout_ms, const struct timespec *limit)
{
	bool place = goal == PLACE && !is_placed(entry);
	int error;

	entry->waiting++;
	entry->beginning += place;
	if (entry->state == GPOOL_LORA_COLD) {
		/*
		 * The agent may take a long time to grant pages, so a thread with a timeout leaves the allocation to a
		 * loader thread.
		 */
		if (timeout_ms < 0 && !is_checked())
			load_here(lora, entry);
		else
			entry_queue(lora, entry);
	}
	limits_update(lora, entry);
	error = load_wait(lora, entry, goal, timeout_ms, limit);
	if (place && place_taken(entry))
		error = 0;
	else if (!error)
		error = is_placed(entry) || entry->state == GPOOL_LORA_RESIDENT ? pin_here(lora, entry) : -ESTALE;
	wait_end(lora, entry);
	return error;
}

static COLD int fail_late(const struct lora_entry *entry, int timeout_ms)
{
	return fail(-ETIMEDOUT, "adapter '%s' was not loaded within %d ms", entry->adapter->name, timeout_ms);
}

static COLD int acquire_slowly(struct gpool_lora *lora, struct lora_entry *entry, enum goal goal, int timeout_ms)
{
	struct timespec limit = limit_of(timeout_ms);
	int error;

	if (entry->state == GPOOL_LORA_COLD)
		count_acquire(lora->pool, false);
	entry_asked(lora, entry);
	do {
		if (timeout_ms == 0 && entry->state == GPOOL_LORA_COLD)
			entry_queue(lora, entry);
		if (timeout_ms == 0 && is_coming(entry, goal))
			return fail(-EAGAIN, "adapter '%s' is being loaded, and timeout_ms is 0", entry->adapter->name);
		error = acquire_once(lora, entry, goal, timeout_ms, &limit);
	} while (error == -ESTALE);
	return error == -ETIMEDOUT ? fail_late(entry, timeout_ms) : error;
}

/* Count a use of an adapter by a caller. */
static inline void count_use(struct gpool_lora *lora, struct lora_entry *entry)
{
	entry->acquires++;
	entry->used_ms = pool_clock(lora->pool);
	if (unlikely(lora->residency != NULL))
		limits_count(lora, entry);
}

static inline int acquire(struct gpool_lora *lora, uint32_t id, enum goal goal, int timeout_ms)
{
	struct lora_entry *entry;
	int error = -ESTALE;

	if (unlikely(!lora->pool->alive))
		return -ECHILD;
	if (unlikely(timeout_ms < -1))
		return fail_timeout(timeout_ms);
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (likely(entry != NULL)) {
		if (likely(entry->state == GPOOL_LORA_RESIDENT))
			error = pin_here(lora, entry);
		if (likely(!error)) {
			entry->counts.hits++;
			count_acquire(lora->pool, true);
		} else if (error == -ESTALE) {
			error = acquire_slowly(lora, entry, goal, timeout_ms);
			if (error && error == entry->error)
				fail(error, "%s", entry->reason.text);
		}
		if (likely(!error)) {
			count_use(lora, entry);
			entry->served++;
		}
		limits_update(lora, entry);
	} else {
		error = fail_adapter(id);
	}
	pthread_mutex_unlock(&lora->lock);
	return error;
}

int gpool_lora_acquire(struct gpool_lora *lora, uint32_t id, int timeout_ms)
{
	return acquire(lora, id, WHOLE, timeout_ms);
}

/* ---- layer by layer ---- */

int gpool_lora_acquire_async(struct gpool_lora *lora, uint32_t id, int timeout_ms)
{
	return acquire(lora, id, PLACE, timeout_ms);
}

int fail_adapter(uint32_t id)
{
	return fail(-ENOENT, "no adapter %u is registered", id);
}

static COLD int fail_unacquired(const struct lora_entry *entry)
{
	return fail(-EINVAL, "adapter '%s' is not acquired", entry->adapter->name);
}

int fail_used(const struct lora_entry *entry)
{
	const char *name = entry->adapter->name;

	if (entry->acquired)
		return fail(-EBUSY,
			"adapter '%s' is acquired (%u time%s, by calls, batches and requests); release it first", name,
			entry->acquired, plural(entry->acquired));
	if (entry->requests)
		return fail(-EBUSY, "adapter '%s' is used by %u request%s of a scheduler; finish or remove them first",
			name, entry->requests, plural(entry->requests));
	if (entry->waiting)
		return fail(-EBUSY, "adapter '%s' is being loaded for %u waiting caller%s; call again after the load",
			name, entry->waiting, plural(entry->waiting));
	return fail(-EBUSY, "adapter '%s' is being loaded; call again after the load", name);
}

static COLD int fail_layer(const struct lora_entry *entry, int32_t layer)
{
	return fail(-EAGAIN, "layer %d of adapter '%s' is being loaded; call gpool_lora_wait_layer()", layer,
		entry->adapter->name);
}

int gpool_lora_wait_layer(struct gpool_lora *lora, uint32_t id, int32_t layer, int timeout_ms)
{
	struct timespec limit = limit_of(timeout_ms);
	struct lora_entry *entry;
	int error = 0;

	if (unlikely(!lora->pool->alive))
		return -ECHILD;
	if (unlikely(timeout_ms < -1))
		return fail_timeout(timeout_ms);
	if (unlikely(layer < -1))
		return fail(-EINVAL, "layer is %d; the minimum is -1 (the whole adapter)", layer);
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (!entry)
		error = fail_adapter(id);
	else if (!entry->acquired)
		error = fail_unacquired(entry);
	while (!error && !layer_is_here(entry, layer)) {
		if (is_draft(entry))
			error = fail(entry->error, "%s", entry->reason.text);
		else if (!help(entry, layer_pages(&entry->adapter->layout, layer), timeout_ms, false))
			error = timeout_ms ? -wait_some(lora, timeout_ms, &limit) : fail_layer(entry, layer);
	}
	/* The layer may have been completed just as the timeout expired. */
	if (error == -ETIMEDOUT)
		error = layer_is_here(entry, layer) ? 0 : fail_late(entry, timeout_ms);
	pthread_mutex_unlock(&lora->lock);
	return error;
}

int gpool_lora_weights(
	struct gpool_lora *lora, uint32_t id, int32_t layer, const char *target, struct gpool_lora_weights *part)
{
	const struct adapter_module *module = NULL;
	const struct lora_entry *entry;
	int error;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (!entry)
		error = fail_adapter(id);
	else if (!entry->acquired)
		error = fail_unacquired(entry);
	else
		error = layer_is_here(entry, layer) ? 0 : fail_layer(entry, layer);
	if (!error)
		module = module_find(&entry->adapter->layout, layer < 0 ? ADAPTER_NO_LAYER : (uint32_t)layer,
			target_find(&entry->adapter->layout, target));
	if (module)
		*part = part_of(entry, module);
	else if (!error)
		error = fail(
			-ENOENT, "adapter '%s' has no part for '%s' of layer %d", entry->adapter->name, target, layer);
	pthread_mutex_unlock(&lora->lock);
	return error;
}

/* ---- hold and release ---- */

int lora_hold(struct gpool_lora *lora, uint32_t id, struct lora_entry **entry, struct reason *reason)
{
	struct lora_entry *found;
	int error;

	pthread_mutex_lock(&lora->lock);
	found = entry_of(lora, id);
	if (!found) {
		refuse(reason, "no adapter %u is registered", id);
		error = -ENOENT;
	} else if (!found->acquired) {
		error = refuse(
			reason, "adapter '%s' is not acquired; call gpool_lora_acquire() first", found->adapter->name);
	} else if (found->state != GPOOL_LORA_RESIDENT) {
		error = refuse(reason, "adapter '%s' is not completely loaded; call gpool_lora_wait_layer() first",
			found->adapter->name);
	} else {
		error = pin_here(lora, found);
		if (error)
			refuse(reason, "adapter '%s' was unloaded by another process; release it, and acquire it again",
				found->adapter->name);
	}
	if (!error) {
		*entry = found;
		limits_update(lora, found);
	}
	pthread_mutex_unlock(&lora->lock);
	return error;
}

void lora_user_add(struct gpool_lora *lora, int32_t more)
{
	pthread_mutex_lock(&lora->lock);
	lora->users += (uint32_t)more;
	pthread_mutex_unlock(&lora->lock);
}

int gpool_lora_prefetch(struct gpool_lora *lora, uint32_t id)
{
	struct lora_entry *entry;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	/* Pin the adapter to check that it is resident, and to count a use. */
	if (entry && entry->state == GPOOL_LORA_RESIDENT && !entry->load && !pin_here(lora, entry)) {
		entry->acquired--;
		entry_unpin(lora, entry, GPOOL_FENCE_NONE);
	}
	if (entry)
		entry_asked(lora, entry);
	if (entry && lora->residency)
		limits_prefetch(lora, entry);
	else if (entry && entry->state == GPOOL_LORA_COLD)
		entry_queue(lora, entry);
	pthread_mutex_unlock(&lora->lock);
	return entry ? 0 : fail_adapter(id);
}

/* End one use. The object of a load in progress, or of a draft, is pinned by the load itself. */
static int let_go(struct gpool_lora *lora, struct lora_entry *entry, struct gpool_fence fence)
{
	int error = fence.value ? entry_use(lora, entry, fence) : 0;

	if (error || entry->load)
		return error;
	return entry_unpin(lora, entry, fence);
}

int gpool_lora_release(struct gpool_lora *lora, uint32_t id, struct gpool_fence fence)
{
	struct lora_entry *entry;
	int error;

	if (unlikely(!lora->pool->alive))
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (unlikely(!entry))
		error = fail_adapter(id);
	else if (unlikely(!entry->acquired))
		error = fail_unacquired(entry);
	else
		error = let_go(lora, entry, fence);
	if (likely(!error)) {
		if (!--entry->acquired && unlikely(entry->load != NULL))
			draft_leave(entry);
		limits_update(lora, entry);
	}
	pthread_mutex_unlock(&lora->lock);
	return error;
}

int gpool_lora_unload(struct gpool_lora *lora, uint32_t id)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct lora_entry *entry;
	int error;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (!entry) {
		error = fail_adapter(id);
	} else if (entry->acquired || entry->waiting || entry->load || entry->state == GPOOL_LORA_LOADING) {
		error = fail_used(entry);
	} else {
		bool there = entry->state == GPOOL_LORA_RESIDENT && entry->object &&
			!gpool_object_info(entry->object, &info);

		error = entry->state == GPOOL_LORA_RESIDENT ? entry_close(lora, entry) : 0;
		if (!error && there)
			error = gpool_object_delete(lora->pool, info.name, info.version);
		/* Another process has already deleted or replaced the object, which is the requested result. */
		if (error == -ENOENT || error == -ESTALE)
			error = 0;
		if (!error)
			entry->acquires_spent = entry->acquires;
	}
	pthread_mutex_unlock(&lora->lock);
	return error;
}

/* ---- for schedulers ---- */

int lora_requests_add(struct gpool_lora *lora, uint32_t id, int32_t more)
{
	struct lora_entry *entry;

	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (entry)
		entry->requests += (uint32_t)more;
	pthread_mutex_unlock(&lora->lock);
	return entry ? 0 : -ENOENT;
}

void lora_served(struct gpool_lora *lora, uint32_t id)
{
	pthread_mutex_lock(&lora->lock);
	lora->entries[id]->served++;
	pthread_mutex_unlock(&lora->lock);
}

/*
 * Acquire an adapter without waiting; under the lock. A failed draft cannot be acquired, and prevents a new load until
 * its last release.
 */
static int acquire_now(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (is_coming(entry, WHOLE))
		return -EAGAIN;
	if (entry->error)
		return is_draft(entry) ? entry->error : -ESTALE;
	return entry->state == GPOOL_LORA_RESIDENT ? pin_here(lora, entry) : -ESTALE;
}

int lora_try(struct gpool_lora *lora, uint32_t id)
{
	struct lora_entry *entry;
	int error;

	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	error = entry ? acquire_now(lora, entry) : -ENOENT;
	if (entry)
		limits_update(lora, entry);
	pthread_mutex_unlock(&lora->lock);
	return error;
}

void lora_hit(struct gpool_lora *lora, uint32_t id)
{
	pthread_mutex_lock(&lora->lock);
	lora->entries[id]->counts.hits++;
	count_use(lora, lora->entries[id]);
	pthread_mutex_unlock(&lora->lock);
	count_acquire(lora->pool, true);
}

/* Acquire the adapter or queue its load; under the lock. */
static int claim(struct gpool_lora *lora, struct lora_entry *entry)
{
	int error = acquire_now(lora, entry);

	if (error == -ESTALE) {
		count_acquire(lora->pool, false);
		entry_queue(lora, entry);
		error = -EAGAIN;
	}
	entry_asked(lora, entry);
	entry->waiting += error == -EAGAIN;
	limits_update(lora, entry);
	return error;
}

int lora_claim(struct gpool_lora *lora, uint32_t id)
{
	struct lora_entry *entry;
	int error;

	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	error = entry ? claim(lora, entry) : -ENOENT;
	pthread_mutex_unlock(&lora->lock);
	return error;
}

int lora_claim_look(struct gpool_lora *lora, uint32_t id)
{
	struct lora_entry *entry;
	int error = -EAGAIN;

	pthread_mutex_lock(&lora->lock);
	entry = lora->entries[id];
	if (!is_coming(entry, WHOLE)) {
		error = entry->error ? entry->error : acquire_now(lora, entry);
		wait_end(lora, entry);
		if (!error)
			count_use(lora, entry);
		/* The adapter was evicted, or another thread is loading it, so claim it again. */
		if (error == -ESTALE || error == -EAGAIN)
			error = claim(lora, entry);
		limits_update(lora, entry);
	}
	pthread_mutex_unlock(&lora->lock);
	return error;
}

void lora_claim_end(struct gpool_lora *lora, uint32_t id)
{
	pthread_mutex_lock(&lora->lock);
	wait_end(lora, lora->entries[id]);
	limits_update(lora, lora->entries[id]);
	pthread_mutex_unlock(&lora->lock);
}

uint64_t lora_changes(struct gpool_lora *lora)
{
	uint64_t changes;

	pthread_mutex_lock(&lora->lock);
	changes = lora->changes;
	pthread_mutex_unlock(&lora->lock);
	return changes;
}

void lora_change(struct gpool_lora *lora)
{
	pthread_mutex_lock(&lora->lock);
	lora->changes++;
	pthread_cond_broadcast(&lora->loaded);
	pthread_mutex_unlock(&lora->lock);
}

int lora_change_wait(struct gpool_lora *lora, uint64_t seen, int timeout_ms)
{
	struct timespec limit = limit_of(timeout_ms);
	int error = 0;

	pthread_mutex_lock(&lora->lock);
	while (lora->changes == seen && !error)
		error = wait_some(lora, timeout_ms, &limit);
	pthread_mutex_unlock(&lora->lock);
	return error ? -ETIMEDOUT : 0;
}
