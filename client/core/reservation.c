/* reservation.c - reservations of pages for sessions of the same tenant; see agent/pages/reservation.h. */
#include "client/core/last_error.h"
#include "client/core/refill.h"

#include <inttypes.h>

/* Return a number that no session with this id has used: it increases with the time since boot. */
static uint64_t number_next(const struct gpool *pool)
{
	const uint64_t mask = (UINT64_C(1) << RESERVATION_SESSION_SHIFT) - 1;
	static _Atomic uint64_t last;
	uint64_t before = atomic_load_explicit(&last, memory_order_relaxed), next;

	do {
		next = monotonic_us();
		if (next <= before)
			next = before + 1;
	} while (!atomic_compare_exchange_weak_explicit(
		&last, &before, next, memory_order_relaxed, memory_order_relaxed));
	return (uint64_t)pool->id << RESERVATION_SESSION_SHIFT | (next & mask);
}

/* Describe the limit of reservations that is reached; struct session_header.refusal has its numbers. */
static COLD int fail_share(const struct gpool *pool)
{
	const struct session_record *own = &pool->segment.sessions[pool->id];
	uint32_t most, used;

	switch (lease_limit_of(
		atomic_load_explicit(&pool->session.header->refusal, memory_order_relaxed), &most, &used)) {
	case LEASE_LIMIT_TENANT_RESERVATIONS:
		return fail(-EUSERS,
			"tenant '%.*s' has %u of the %d reservations of a pool, and the others are kept for other "
			"tenants by limits.tenant_sessions (%u percent); release one with gpool_reservation_release(), "
			"or lower this key",
			(int)sizeof(own->tenant) - 1, own->tenant, used, POOL_RESERVATIONS - 1, most);
	case LEASE_LIMIT_USER_RESERVATIONS:
		return fail(-EUSERS,
			"user %u has %u of the %d reservations of a pool, its share by limits.user_sessions (%u "
			"percent); "
			"release one with gpool_reservation_release(), or raise this key",
			own->uid, used, POOL_RESERVATIONS - 1, most);
	default:
		return fail(-EUSERS,
			"the pool has %d reservations, the limit; release one with gpool_reservation_release()",
			POOL_RESERVATIONS - 1);
	}
}

int gpool_reservation_create(
	struct gpool *pool, uint32_t page_count, int timeout_ms, uint32_t duration_ms, uint64_t *reservation)
{
	uint32_t per_handle = pool->header->pages_per_handle;
	struct thread_cache *cache;
	struct lease_request ask = {
		.kind = LEASE_RESERVE,
		.extra = duration_ms,
		.flags = LEASE_SCATTERED | LEASE_ALIGNED,
		.timeout_ms = timeout_ms < 0 ? UINT32_MAX : (uint32_t)timeout_ms,
	};
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	if (page_count == 0 || page_count > pool->page_count)
		return fail(-EINVAL, "page_count is %" PRIu32 "; it must be 1 to %" PRIu32 ", the pages of the pool",
			page_count, pool->page_count);
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	cache = thread_cache_of(pool);
	if (!cache)
		return -ENOMEM;
	/* The agent counts the pages of the caches as idle pages of this session. */
	thread_cache_flush(cache);
	/* Ranges can take over whole handles only. */
	ask.need = (page_count + per_handle - 1) / per_handle * per_handle;
	ask.tag = number_next(pool);
	error = lease_ask(pool, &ask);
	if (error == -EUSERS)
		return fail_share(pool);
	if (!error)
		*reservation = ask.tag;
	return error;
}

int gpool_reservation_use(struct gpool *pool, uint64_t reservation)
{
	struct thread_cache *cache;

	if (!pool->alive)
		return -ECHILD;
	cache = thread_cache_of(pool);
	if (!cache)
		return -ENOMEM;
	cache->reservation = reservation;
	return 0;
}

int gpool_reservation_release(struct gpool *pool, uint64_t reservation)
{
	struct lease_request ask = {.kind = LEASE_UNRESERVE, .tag = reservation};
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	error = lease_ask(pool, &ask);
	if (error == -EPERM)
		return fail(error, "reservation %#" PRIx64 " belongs to another tenant", reservation);
	return error ? error : (int)ask.first_page;
}
