#include "agent/control/housekeeping.h"

#include "agent/pages/event.h"
#include "agent/pages/evict_block.h"
#include "agent/spill/jobs.h"
#include "agent/pages/lease.h"
#include "agent/pages/reservation.h"
#include "agent/base/crash_point.h"
#include "agent/base/log.h"
#include "agent/object/objects.h"
#include "agent/control/page_facts.h"
#include "agent/control/recover.h"
#include "agent/pages/requests.h"
#include "agent/session/session.h"
#include "agent/spill/spill.h"
#include "agent/trust/trust_transfer.h"
#include "proto/view.h"
#include "shm/pins.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	WATERMARK_REST_MS = 1000,
	/* maximum number of leaked pins that a scan reports individually */
	LEAKS_TOLD = 16,
	/* after this time without a tick, the agent was stopped or no session was attached */
	ASLEEP_MS = 500,
};

/*
 * When utilization reaches the start watermark, evict until it is down to the stop watermark. Offered pages of ranges
 * and KV caches do not count as used and are not evicted here.
 */
static void watermark_eviction(struct pool *pool, uint64_t now)
{
	const struct config *config = &pool->agent->config;
	uint32_t percent = pool_utilization(pool), pages = pool->segment.header->reserved_first;
	struct evict_request request = {.spare_offered = true};
	uint32_t taken = 0;

	if (percent >= config->eviction.start_percent)
		pool->evicting = true;
	if (percent <= config->eviction.stop_percent)
		pool->evicting = false;
	if (!pool->evicting || now < pool->evict_rest_ms)
		return;
	request.pages = (uint32_t)((uint64_t)pages * (percent - config->eviction.stop_percent) / 100);
	if (pool->saving_pages >= request.pages && pool->saving_pages)
		return;
	request.pages -= pool->saving_pages;
	/* In a small pool, the difference may be less than a page. */
	if (!request.pages)
		pool->evicting = false;
	/* If all other pages are pinned, pause, so that not every tick scans the pool. */
	if (request.pages) {
		/* Reclaim idle pages of tenants above their minimum first, so that less content is evicted. */
		lease_reclaim_guaranteed(pool);
		taken = evict_pages(pool, &request);
	}
	if (request.pages && !taken)
		pool->evict_rest_ms = now + WATERMARK_REST_MS;
}

/* Take back idle reserved pages immediately, because non-critical requests may not use them. */
static void reserved_return(struct session *session)
{
	struct pool *pool = session->pool;
	uint32_t first = pool->segment.header->reserved_first;

	if (first < pool->page_count && pool->reserved.total < pool->page_count - first)
		lease_reclaim_range(session, first, pool->page_count - first);
}

/*
 * Stages of a suspected leak. The scan that first detects a leak only records it, because an unpin may be in progress.
 */
enum leak { LEAK_NONE, LEAK_SEEN, LEAK_REPORTED };

/* Return the time since the last use of the page. */
static uint32_t leak_age(const struct session *session, uint32_t page, uint32_t now_ms)
{
	uint32_t age = now_ms - atomic_load_explicit(&session->segment.touch[page], memory_order_acquire),
		 awake = now_ms - (uint32_t)session->pool->awake_ms;

	if (age > INT32_MAX)
		age = 0;
	/* Do not count the time in which the agent slept, because the clock of touches then stops. */
	return age < awake ? age : awake;
}

static bool tag_can_leak(uint64_t tag)
{
	return block_tag_is_block(tag) && !(tag & (BLOCK_PREPARED | BLOCK_EXTENT));
}

/*
 * Remove the pins of a block or an object, with three exceptions. A prepared block keeps its pins until its worker
 * commits it or rolls it back. A block that is being freed keeps the pin of the freeing thread, which still writes to
 * the entry. A page that was used since the scan keeps its pins.
 *
 * The page or object is marked, so no pin succeeds during the call, and each pin that has succeeded is in the count. A
 * worker stores the time before it adds a pin, and before the tag of a block. The time that is read after the count and
 * the tag is therefore the time of the last of these pins, or later.
 */
static void leak_unpin_marked(const struct session *session, uint32_t page, uint32_t object, uint32_t now_ms)
{
	uint32_t pins = pin_count(&session->segment, page);
	uint64_t tag = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);

	/* If the page is an object's, the session has no block there, unless the object has just been evicted. */
	if (object ? tag != 0 : !tag_can_leak(tag))
		return;
	if (leak_age(session, page, now_ms) > session->pool->agent->config.pins.max_duration_ms)
		atomic_compare_exchange_strong_explicit(&session->segment.pins[page], &pins, tag & BLOCK_DYING ? 1 : 0,
			memory_order_seq_cst, memory_order_relaxed);
}

static void leak_unpin(struct session *session, uint32_t page, uint32_t now_ms)
{
	uint64_t word = 0;

	/* The worker that prepares a block must not find its page marked. */
	if (tag_can_leak(atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire)))
		word = evict_mark(session, page);
	if (!word)
		return;
	leak_unpin_marked(session, page, 0, now_ms);
	evict_unmark(session, page, word);
}

static void leak_unpin_object(struct session *session, uint32_t page, uint32_t object, uint32_t now_ms)
{
	bool current = object_state(session->pool, object) == OBJECT_CURRENT;

	/* No pin of an earlier version succeeds. */
	if (current)
		object_mark(session->pool, object);
	leak_unpin_marked(session, page, object, now_ms);
	if (current)
		object_unmark(session->pool, object);
}

static void leak_name(const struct pool *pool, uint32_t page, uint32_t object, char *text, size_t bytes)
{
	if (object)
		snprintf(text, bytes, "object '%.100s'", object_record(pool, object)->name);
	else
		snprintf(text, bytes, "page %u", page);
}

/* Report a pin that was neither released nor refreshed for too long, and apply the configured action. */
static void leak_found(struct session *session, uint32_t page, uint32_t object, uint32_t age_ms, uint32_t now_ms)
{
	struct pool *pool = session->pool;
	enum config_leak_action action = pool->agent->config.pins.leaked;
	char what[128];

	leak_name(pool, page, object, what, sizeof(what));
	if (session->leaks[page] != LEAK_REPORTED) {
		session->leaks[page] = LEAK_REPORTED;
		pool_count(pool, POOL_COUNT_LEAKED_PINS, 1);
		crash_point();
		/*
		 * Only the first leaked pins of a scan are logged, because a worker can leak one for each of its pages.
		 * poolctl pins lists all of them.
		 */
		if (pool->leaks_told++ < LEAKS_TOLD) {
			log_warning("pool '%s': %s is pinned by session %u ('%s', pid %d) for %u ms without a refresh",
				pool->config->name, what, session->id, session->name, session->pid, age_ms);
			event_publish(pool->agent, EVENT_LEAKED_PIN, pool, session->id, page,
				"%s pinned by '%s' (pid %d) for %u ms", what, session->name, session->pid, age_ms);
		}
	}
	if (action == CONFIG_LEAK_UNPIN && object)
		leak_unpin_object(session, page, object, now_ms);
	else if (action == CONFIG_LEAK_UNPIN)
		leak_unpin(session, page, now_ms);
	else if (action == CONFIG_LEAK_DISCONNECT)
		session_disconnect(session, -ETIMEDOUT, "the session held a pin for longer than pins.max_duration");
}

/* Check the pin of a block or an object. `object`: the object whose first page this is; 0: a block. */
static void leak_look(struct session *session, uint32_t page, uint32_t object, uint32_t now_ms)
{
	bool pinned = pin_count(&session->segment, page) && !view_is_of_library(&session->segment, page);
	uint32_t age_ms = pinned ? leak_age(session, page, now_ms) : 0;

	if (age_ms <= session->pool->agent->config.pins.max_duration_ms) {
		if (session->leaks)
			session->leaks[page] = LEAK_NONE;
		return;
	}
	if (!session->leaks)
		session->leaks = calloc(session->segment.page_count, sizeof(*session->leaks));
	if (!session->leaks)
		return;
	if (session->leaks[page] == LEAK_NONE)
		session->leaks[page] = LEAK_SEEN;
	else
		leak_found(session, page, object, age_ms, now_ms);
}

/*
 * Check a pinned object. Only pinnable objects are checked: a chunk of a KV cache stays pinned while a sequence uses
 * it, like the pages of a range.
 */
static void leak_look_at_object(void *context, uint32_t number, struct session *session, uint32_t pins)
{
	(void)pins;
	if (session->state == SESSION_LIVE && object_record(session->pool, number)->class == OBJECT_PINNABLE)
		leak_look(session, object_page(session->pool, number), number, *(const uint32_t *)context);
}

/* Check each page only in its owner's segment, so that the memory of unused pin counts is not touched. */
static void leak_scan(struct pool *pool, uint32_t now_ms)
{
	pool->leaks_told = 0;
	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = pool_word(pool, page);
		struct session *session = pool->sessions[page_word_session(word)];

		if (session && page_word_state(word) == PAGE_LEASED && session->state == SESSION_LIVE &&
			session->kind == SESSION_WORKER)
			leak_look(session, page, 0, now_ms);
	}
	objects_holders(pool, leak_look_at_object, &now_ms);
	if (pool->leaks_told > LEAKS_TOLD)
		log_warning("pool '%s': %u more leaked pins; poolctl pins --leaked lists them", pool->config->name,
			pool->leaks_told - LEAKS_TOLD);
}

static void announce(struct pool *pool)
{
	if (pool->evicted_unannounced)
		event_publish(pool->agent, EVENT_EVICTION, pool, 0, pool->evicted_unannounced, "%u page%s evicted",
			pool->evicted_unannounced, plural(pool->evicted_unannounced));
	if (pool->reclaimed_unannounced)
		event_publish(pool->agent, EVENT_RECLAIM, pool, 0, pool->reclaimed_unannounced,
			"%u idle page%s reclaimed", pool->reclaimed_unannounced, plural(pool->reclaimed_unannounced));
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
		if (session->state != SESSION_LIVE || session->kind != SESSION_WORKER)
			continue;
		if (session->doubts)
			recover_doubts(session);
		lease_shrink_idle(session, now);
		reserved_return(session);
	}
	facts_expire(pool, now);
	if (scan_leaks) {
		pool->leak_scan_ms = now;
		leak_scan(pool, (uint32_t)now);
	}
	reservations_tick(pool);
	jobs_tick(pool);
	spill_tick(pool);
	objects_tick(pool);
	trust_tick(pool);
	if (pool->session_count)
		watermark_eviction(pool, now);
	pool_mark_freed(pool);
	requests_pass(pool);
	pool_update_pressure(pool);
	announce(pool);
}
