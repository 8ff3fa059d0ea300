#include "agent/housekeeping.h"

#include "agent/event.h"
#include "agent/lease.h"
#include "agent/log.h"
#include "shm/pins.h"
#include "agent/requests.h"

#include <errno.h>
#include <stdlib.h>

enum {
	WATERMARK_REST_MS = 1000,
	ASLEEP_MS = 500, /* no tick for so long: the agent was stopped, or nobody was attached */
};

/* Starts at the start watermark, goes on to the stop watermark, and rests until the start watermark is met again. */
static void watermark_eviction(struct pool *pool, uint64_t now)
{
	const struct config *config = &pool->agent->config;
	uint32_t percent = pool_utilization(pool), pages = pool->segment.header->reserved_first;
	struct evict_request request = { 0 };

	if (percent >= config->eviction.start_percent)
		pool->evicting = true;
	if (percent <= config->eviction.stop_percent)
		pool->evicting = false;
	if (!pool->evicting || now < pool->evict_rest_ms)
		return;
	request.pages = (uint32_t)((uint64_t)pages * (percent - config->eviction.stop_percent) / 100);
	/* A percent of a small pool may be less than a page: there is nothing to do, so this is the stop. */
	if (!request.pages)
		pool->evicting = false;
	/* Everything else is pinned: rest, or this would be a scan of the pool at every tick. */
	if (request.pages && !evict_pages(pool, &request))
		pool->evict_rest_ms = now + WATERMARK_REST_MS;
}

/* Reserved pages that critical work has freed go back at once: nobody else may use them. */
static void reserved_return(struct session *session)
{
	struct pool *pool = session->pool;
	uint32_t first = pool->segment.header->reserved_first;

	if (first < pool->page_count && pool->reserved.total < pool->page_count - first)
		lease_reclaim_range(session, first, pool->page_count - first);
}

static bool leak_is_new(struct session *session, uint32_t page)
{
	uint64_t bit = UINT64_C(1) << (page % 64);

	if (!session->leak_reported)
		session->leak_reported = calloc((session->segment.page_count + 63) / 64, sizeof(uint64_t));
	if (!session->leak_reported || session->leak_reported[page / 64] & bit)
		return false;
	session->leak_reported[page / 64] |= bit;
	return true;
}

/*
 * Take a leaked pin away. Only from a block that stands: one that is being freed keeps the pin of its free, which ends it, and one
 * that is prepared is its worker's to commit or to roll back. Not what was pinned since we looked.
 */
static void leak_unpin(struct session *session, uint32_t page, uint32_t pins)
{
	uint64_t tag = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);

	if (!block_tag_is_block(tag) || tag & (BLOCK_PREPARED | BLOCK_EXTENT))
		return;
	atomic_compare_exchange_strong_explicit(&session->segment.pins[page], &pins, tag & BLOCK_DYING ? 1 : 0, memory_order_seq_cst,
		memory_order_relaxed);
}

/* A pin that was neither dropped nor refreshed for too long. */
static void leak_found(struct session *session, uint32_t page, uint32_t pins, uint32_t age_ms)
{
	struct pool *pool = session->pool;
	enum config_leak_action action = pool->agent->config.pins.leaked;
	bool is_new = leak_is_new(session, page);

	if (is_new) {
		pool_count(pool, POOL_COUNT_LEAKED_PINS, 1);
		log_warning("pool '%s': page %u is pinned by session %u ('%s', pid %d) for %u ms without a refresh", pool->config->name, page,
			session->id, session->name, session->pid, age_ms);
		event_publish(pool->agent, EVENT_LEAKED_PIN, pool, session->id, page, "page %u pinned by '%s' (pid %d) for %u ms", page,
			session->name, session->pid, age_ms);
	}
	/* At the second look: a pin made during the first one has left its mark by then. */
	if (action == CONFIG_LEAK_UNPIN && !is_new)
		leak_unpin(session, page, pins);
	else if (action == CONFIG_LEAK_DISCONNECT)
		session_disconnect(session, -ETIMEDOUT, "it held a pin longer than pins.max_duration");
}

static void leak_scan(struct session *session, uint32_t now_ms)
{
	struct pool *pool = session->pool;
	uint32_t longest = pool->agent->config.pins.max_duration_ms;

	for (uint32_t page = 0; page < session->segment.page_count && session->state == SESSION_LIVE; page++) {
		uint32_t pins = pin_count(&session->segment, page), age;

		if (!pins) {
			if (session->leak_reported)
				session->leak_reported[page / 64] &= ~(UINT64_C(1) << (page % 64));
			continue;
		}
		age = now_ms - atomic_load_explicit(&session->segment.touch[page], memory_order_relaxed);
		/* While the agent slept the clock that touches carry stood still: that time is nobody's. */
		if (age <= INT32_MAX && age > now_ms - (uint32_t)pool->awake_ms)
			age = now_ms - (uint32_t)pool->awake_ms;
		if (age <= longest || age > INT32_MAX || page_word_owner(pool_word(pool, page)) != session->id)
			continue;
		leak_found(session, page, pins, age);
	}
}

static void announce(struct pool *pool)
{
	if (pool->evicted_unannounced)
		event_publish(pool->agent, EVENT_EVICTION, pool, 0, pool->evicted_unannounced, "%u pages evicted",
			pool->evicted_unannounced);
	if (pool->reclaimed_unannounced)
		event_publish(pool->agent, EVENT_RECLAIM, pool, 0, pool->reclaimed_unannounced, "%u idle pages taken back",
			pool->reclaimed_unannounced);
	pool->evicted_unannounced = pool->reclaimed_unannounced = 0;
}

void housekeeping(struct pool *pool)
{
	uint64_t now = clock_ms();
	uint32_t longest = pool->agent->config.pins.max_duration_ms;
	bool scan_leaks = now - pool->leak_scan_ms >= longest / 8 + 1;

	if (now - pool->tick_ms > ASLEEP_MS)
		pool->awake_ms = now;
	pool->tick_ms = now;

	atomic_store_explicit(&pool->segment.header->clock_ms, (uint32_t)now, memory_order_relaxed);
	for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS; id++) {
		struct session *session = pool->sessions[id];

		if (!session)
			continue;
		left--;
		session_tick(session);
		if (session->state != SESSION_LIVE || session->role != SESSION_WORKER)
			continue;
		lease_shrink_idle(session, now);
		reserved_return(session);
		if (scan_leaks)
			leak_scan(session, (uint32_t)now);
	}
	if (scan_leaks)
		pool->leak_scan_ms = now;
	if (!pool->session_count)
		return;
	watermark_eviction(pool, now);
	if (pool->waiter_count)
		requests_serve_waiters(pool);
	pool_update_pressure(pool);
	announce(pool);
}
