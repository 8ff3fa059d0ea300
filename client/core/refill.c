/*
 * refill.c - see refill.h. The states of a request (shm/session_segment.h), and the process that changes each:
 *
 *   IDLE -> REQUESTED (worker) -> DONE (agent)       -> IDLE (worker)
 *                              -> CANCELLED (worker) -> IDLE (agent)
 *
 * Each request has a serial number, which is stored in the word with its state. A cancelled slot is reused only after
 * the agent has returned it, so that a late answer cannot be taken for the answer to a new request. An answer must fit
 * the request; otherwise its pages become idle, and the request is sent again, at most twice.
 */
#include "client/core/refill.h"

#include "client/core/flight.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/patience.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"
#include "shm/plural.h"

#include <time.h>
#include <string.h>

enum {
	LOOK_MS = 1000,     /* interval of checks that the agent exists */
	IDLE_SLICE_MS = 10, /* interval of the idle callbacks while they have no work left */
	SLOT_LOOK_NS = 10000000,
	BATCH_FIRST = 64, /* initial number of pages in one request */
	BATCH_MAX = 1024,
	BATCH_BUSY_MS = 10,   /* a shorter pause between refills doubles the batch, up to BATCH_MAX */
	BATCH_QUIET_MS = 1000 /* a longer pause halves the batch */
};

/* ---- size of a request ---- */

/*
 * Return the number of pages to request in addition to `need`: more after frequent refills, none when pages are short.
 */
static uint32_t refill_extra(const struct gpool *pool, struct thread_cache *cache, uint32_t need)
{
	uint64_t now = monotonic_ns(), pause_ms = (now - cache->last_refill_ns) / 1000000;
	uint32_t batch = cache->batch ? cache->batch : BATCH_FIRST;

	if (cache->last_refill_ns && pause_ms < BATCH_BUSY_MS && batch < BATCH_MAX)
		batch *= 2;
	else if (pause_ms > BATCH_QUIET_MS && batch > BATCH_FIRST)
		batch /= 2;
	cache->batch = batch;
	cache->last_refill_ns = now;
	if (pool_is_short(pool))
		return 0;
	/* One process must not keep many pages that other processes could use. */
	if (batch > pool->page_count / 16)
		batch = pool->page_count / 16;
	if (need == 1)
		return batch ? batch - 1 : 0;
	/* For blocks of several pages, request more only after frequent requests, and only whole blocks. */
	return cache->batch > BATCH_FIRST && batch >= 2 * need ? (batch / need - 1) * need : 0;
}

/* ---- request slots ---- */

/*
 * Wait longer than the agent's time limit: the agent may be restarting, or waiting for pages that are being spilled.
 */
static struct patience wait_patience(const struct gpool *pool, int32_t timeout_ms)
{
	return patience_of(timeout_ms < 0 ? -1 : (int64_t)timeout_ms + pool->answer_ms);
}

/* Return a free slot, or -1 if none is free. A cancelled slot belongs to the agent until the agent has returned it. */
static int slot_find(struct gpool *pool)
{
	static_assert(SESSION_REQUESTS == 64, "one bit each");
	for (uint32_t i = 0; i < SESSION_REQUESTS; i++) {
		uint32_t slot = pool->request_next++ % SESSION_REQUESTS;

		if (!(pool->requests_used >> slot & 1) &&
			lease_state_of(atomic_load_explicit(
				&pool->session.requests[slot].state, memory_order_acquire)) == LEASE_IDLE) {
			pool->requests_used |= UINT64_C(1) << slot;
			return (int)slot;
		}
	}
	return -1;
}

/* Take a slot. Return -EPIPE if the agent answered no request within the time limit, or -EINTR. */
static int slot_acquire(struct gpool *pool, int32_t timeout_ms)
{
	struct patience patience = wait_patience(pool, timeout_ms);
	bool interrupted;
	int slot;

	pthread_mutex_lock(&pool->request_lock);
	while ((slot = slot_find(pool)) < 0) {
		struct timespec until;

		if (!patience_ms(&patience, LOOK_MS) || pool_gone(pool)) {
			slot = fail_silent(pool, timeout_ms < 0 ? -1 : (int64_t)timeout_ms + pool->answer_ms);
			break;
		}
		pthread_mutex_unlock(&pool->request_lock);
		interrupted = wait_interrupted();
		pthread_mutex_lock(&pool->request_lock);
		if (interrupted) {
			slot = -EINTR;
			break;
		}
		/*
		 * A thread of this process that releases a slot wakes this thread. Slots that the agent returns after a
		 * cancellation are found by polling.
		 */
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += SLOT_LOOK_NS;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		pthread_cond_timedwait(&pool->request_free, &pool->request_lock, &until);
	}
	pthread_mutex_unlock(&pool->request_lock);
	return slot;
}

static void slot_release(struct gpool *pool, int slot)
{
	pthread_mutex_lock(&pool->request_lock);
	pool->requests_used &= ~(UINT64_C(1) << slot);
	pthread_cond_signal(&pool->request_free);
	pthread_mutex_unlock(&pool->request_lock);
}

/* ---- send and wait ---- */

static void request_announce(struct gpool *pool, int slot)
{
	atomic_fetch_or_explicit(&pool->session.header->requests_pending, UINT64_C(1) << slot, memory_order_seq_cst);
	doorbell_ring(pool->doorbell);
}

/*
 * Cancel a request that was not answered, and notify the agent, so that it returns the slot. Return -EPIPE, or 0 if the
 * answer has arrived just now.
 */
static int request_cancel(struct gpool *pool, int slot, uint32_t word)
{
	if (!atomic_compare_exchange_strong_explicit(&pool->session.requests[slot].state, &word,
		    lease_state_to(word, LEASE_CANCELLED), memory_order_acq_rel, memory_order_acquire))
		return 0;
	request_announce(pool, slot);
	return -EPIPE;
}

/* Wait for the answer. may_interrupt: gpool_wait_check() may cancel a request for pages or a restore, but no other. */
static int request_wait(struct gpool *pool, int slot, uint32_t word, int32_t timeout_ms, bool may_interrupt)
{
	const _Atomic uint32_t *state = &pool->session.requests[slot].state;
	struct patience patience = wait_patience(pool, timeout_ms);
	uint64_t looked = patience.looked_ns;
	int64_t slice_ms = 1;

	while (atomic_load_explicit(state, memory_order_acquire) == word) {
		if (!patience_ms(&patience, LOOK_MS))
			return request_cancel(pool, slot, word)
				? fail_silent(pool, (int64_t)timeout_ms + pool->answer_ms)
				: 0;
		if (patience.looked_ns - looked >= LOOK_MS * UINT64_C(1000000)) {
			looked = patience.looked_ns;
			if (pool_gone(pool))
				return request_cancel(pool, slot, word) ? fail_gone(pool) : 0;
		}
		if (may_interrupt && wait_interrupted())
			return request_cancel(pool, slot, word) ? -EINTR : 0;
		futex_wait(state, word, slice_ms * 1000000);
		slice_ms = idle_run(pool, IDLE_WAIT) ? 1 : IDLE_SLICE_MS;
	}
	/*
	 * Another thread may just have unmapped the granted pages; this fence pairs with the one in handles_let_go().
	 */
	atomic_thread_fence(memory_order_seq_cst);
	return 0;
}

/* ---- the answer ---- */

/*
 * Check a chain of runs. If give_back is true, also make its pages idle. Return the number of pages, or 0 if the chain
 * is invalid.
 */
static uint32_t chain_walk(const struct gpool *pool, uint32_t first, uint32_t most, bool give_back)
{
	uint32_t total = 0, run = first;

	for (;;) {
		uint32_t count, next;

		if (run >= pool->page_count)
			return 0;
		count = atomic_load_explicit(&block_entry(pool, run)->page_count, memory_order_relaxed);
		next = atomic_load_explicit(&block_entry(pool, run)->next, memory_order_relaxed);
		if (count == 0 || count > pool->page_count - run || count > most - total)
			return 0;
		if (give_back)
			pool_put(pool, run, count);
		total += count;
		if (!next)
			return total;
		run = next - 1;
	}
}

/* Make pages beyond the need idle. */
static void extra_put(const struct gpool *pool, uint32_t first, uint32_t count)
{
	if (count && first < pool->page_count && count <= pool->page_count - first)
		pool_put(pool, first, count);
}

static void session_name_read(const struct gpool *pool, uint32_t session, char name[64])
{
	static_assert(sizeof(pool->segment.sessions[0].name) == 64, "same text");
	memset(name, 0, 64);
	if (session && session < POOL_SESSIONS)
		memcpy(name, pool->segment.sessions[session].name, 63);
}

static void shortage_read(
	const struct gpool *pool, const struct lease_request *request, uint32_t need, struct gpool_oom_info *shortage)
{
	*shortage = (struct gpool_oom_info){
		.needed = need,
		.free = request->free_pages,
		.pinned = request->pinned_pages,
		.holder = request->holder,
		.holder_pages = request->holder_pages,
	};
	session_name_read(pool, shortage->holder, shortage->holder_name);
}

/*
 * Read the object's record now. The object may have changed since the refusal, but it is still the one that prevented
 * the allocation.
 */
static void shortage_object_read(
	const struct gpool *pool, const struct lease_request *request, struct gpool_oom_object *object)
{
	const struct object_record *record = &pool->segment.objects[request->object];

	*object = (struct gpool_oom_object){.size = sizeof(*object)};
	if (!request->object || request->object >= pool->header->object_count)
		return;
	object->pages = record->pages;
	object->session = request->object_holder;
	object->pins = request->object_pins;
	memcpy(object->name, record->name, sizeof(object->name) - 1);
	session_name_read(pool, object->session, object->session_name);
}

/* Read a refusal. No pages were granted; the cause is stored in the thread's `shortage`. */
static int refusal_read(
	struct gpool *pool, struct thread_cache *cache, const struct lease_request *request, uint32_t need)
{
	shortage_read(pool, request, need, &cache->shortage);
	shortage_object_read(pool, request, &cache->shortage_object);
	stat_add(cache, &cache->stats->refusals);
	return fail_shortage(pool, request->error, &cache->shortage);
}

static int answer_read(struct gpool *pool, struct thread_cache *cache, const struct lease_request *request,
	uint32_t need, uint32_t *first)
{
	uint32_t total;

	if (request->kind == LEASE_TAKE_OVER && (request->error == -ENOENT || request->error == -EPERM))
		return fail_reservation(pool, request->error, request->tag, need);
	switch (request->error) {
	case 0: extra_put(pool, request->extra_first, request->extra_granted); break;
	case -ENOSPC:
	case -EDQUOT:
	case -EPERM: return refusal_read(pool, cache, request, need);
	default: return -EPIPE;
	}
	*first = request->first_page;
	total = chain_walk(pool, *first, pool->page_count, false);
	if (total == need)
		return 0;
	if (total)
		chain_walk(pool, *first, pool->page_count, true);
	pool_log(pool, POOL_LOG_WARNING,
		"the reply to a request for %u page%s contains %u page%s; repeating the request", need, plural(need),
		total, plural(total));
	return -EAGAIN;
}

static int refill_once(struct gpool *pool, struct thread_cache *cache, uint32_t need, uint32_t flags,
	int32_t timeout_ms, uint32_t *first)
{
	int error, slot = slot_acquire(pool, timeout_ms);
	struct lease_request *request;
	uint32_t word;

	if (slot < 0)
		return slot;
	request = &pool->session.requests[slot];
	word = lease_state_to(
		atomic_load_explicit(&request->state, memory_order_relaxed) + LEASE_SERIAL_ONE, LEASE_REQUESTED);
	request->kind = cache->reservation ? LEASE_TAKE_OVER : LEASE_TAKE;
	request->need = need;
	request->extra = cache->reservation ? 0 : refill_extra(pool, cache, need);
	request->tag = cache->reservation;
	request->flags = flags;
	request->timeout_ms = timeout_ms < 0 ? UINT32_MAX : (uint32_t)timeout_ms;
	request->error = 0;
	request->first_page = 0;
	request->extra_granted = 0;
	atomic_store_explicit(&request->state, word, memory_order_release);
	request_announce(pool, slot);
	error = request_wait(pool, slot, word, timeout_ms, true);
	if (!error) {
		error = answer_read(pool, cache, request, need, first);
		atomic_store_explicit(&request->state, lease_state_to(word, LEASE_IDLE), memory_order_release);
	}
	slot_release(pool, slot);
	return error;
}

int refill_take(struct gpool *pool, struct thread_cache *cache, uint32_t need, uint32_t flags, int32_t timeout_ms,
	uint32_t *first)
{
	uint64_t start = monotonic_ns();
	int error = -EAGAIN;

	if (atomic_load_explicit(&pool->session.header->closed, memory_order_acquire))
		return fail_gone(pool);
	for (int tries = 0; tries < 3 && error == -EAGAIN; tries++)
		error = refill_once(pool, cache, need, flags, timeout_ms, first);
	stat_add(cache, &cache->stats->refills);
	histogram_add(pool->session.stats->refill_ns, monotonic_ns() - start);
	error = error == -EAGAIN ? -EPIPE : error;
	flight_tell(pool,
		&(struct flight_entry){
			.kind = FLIGHT_REFILL, .page = error ? 0 : *first, .pages = need, .value = (uint64_t)-error},
		start);
	return error;
}

int lease_begin(struct gpool *pool, const struct lease_request *ask, struct lease_ticket *ticket)
{
	struct lease_request *request;
	int slot;

	if (atomic_load_explicit(&pool->session.header->closed, memory_order_acquire))
		return fail_gone(pool);
	slot = slot_acquire(pool, -1);
	if (slot < 0)
		return slot;
	request = &pool->session.requests[slot];
	ticket->slot = slot;
	ticket->word = lease_state_to(
		atomic_load_explicit(&request->state, memory_order_relaxed) + LEASE_SERIAL_ONE, LEASE_REQUESTED);
	request->kind = ask->kind;
	request->need = ask->need;
	request->extra = ask->extra;
	request->flags = ask->flags;
	request->timeout_ms = ask->timeout_ms;
	request->error = 0;
	request->first_page = ask->first_page;
	request->extra_granted = 0;
	request->tag = ask->tag;
	atomic_store_explicit(&request->state, ticket->word, memory_order_release);
	request_announce(pool, slot);
	return 0;
}

/* Return 0 if the request has been answered, -EAGAIN if not, or -EPIPE if the agent has ended. */
static int request_look(struct gpool *pool, const struct lease_ticket *ticket)
{
	if (atomic_load_explicit(&pool->session.requests[ticket->slot].state, memory_order_seq_cst) != ticket->word)
		return 0;
	if (!pool_gone(pool))
		return -EAGAIN;
	return request_cancel(pool, ticket->slot, ticket->word) ? fail_gone(pool) : 0;
}

/* Read the answer to LEASE_RESTORE, which is a chain of runs, or to LEASE_RESERVE, or a refusal. */
static int provided_read(struct gpool *pool, const struct lease_request *request, struct lease_request *ask)
{
	struct thread_cache *cache = thread_cache_of(pool);

	ask->first_page = request->first_page;
	switch (request->error) {
	case 0:
		if (request->kind == LEASE_RESERVE)
			return 0;
		return chain_walk(pool, ask->first_page, request->need, false) == request->need ? 0 : -EPIPE;
	case -ENOSPC:
	case -EDQUOT:
	case -EPERM: return cache ? refusal_read(pool, cache, request, request->need) : request->error;
	default: return request->error;
	}
}

int lease_end(struct gpool *pool, const struct lease_ticket *ticket, bool wait, struct lease_request *ask)
{
	struct lease_request *request = &pool->session.requests[ticket->slot];
	bool provides = request->kind == LEASE_RESTORE || request->kind == LEASE_RESERVE;
	int error = wait ? request_wait(pool, ticket->slot, ticket->word, -1, provides) : request_look(pool, ticket);

	if (error == -EAGAIN)
		return error;
	if (!error) {
		error = provides ? provided_read(pool, request, ask) : request->error;
		if (request->kind == LEASE_UNRESERVE)
			ask->first_page = request->first_page;
		atomic_store_explicit(&request->state, lease_state_to(ticket->word, LEASE_IDLE), memory_order_release);
	}
	slot_release(pool, ticket->slot);
	return error;
}

int lease_ask(struct gpool *pool, struct lease_request *ask)
{
	struct lease_ticket ticket;
	int error = lease_begin(pool, ask, &ticket);

	return error ? error : lease_end(pool, &ticket, true, ask);
}
