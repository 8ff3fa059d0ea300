/*
 * requests.c - serve request slots; see requests.h. A slot is untrusted input: it is read once, checked, and answered
 * once.
 */
#include "agent/pages/requests.h"

#include "agent/pages/event.h"
#include "agent/pages/flight.h"
#include "agent/base/journal.h"
#include "agent/pages/lease.h"
#include "agent/pages/object_records.h"
#include "agent/pages/reservation.h"
#include "agent/pages/trust.h"
#include "shm/doorbell.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdlib.h>

enum {
	/* interval between attempts to serve waiting requests; a worker that frees pages rings earlier */
	WAITER_TICK_MS = 5,
	PUT_OFF_TICK_MS = 1, /* the same for requests that wait for a scan; a scan seldom takes longer */
	/* a request that may fail only because pages are being spilled or cleared waits for this time */
	LEAVING_PATIENCE_MS = 1500,
	/* maximum age of the figures in a refusal, plus the time to compute them */
	SHORTAGE_NS = 1000000,
	AT_LIMIT_TICK_MS = 50, /* interval of attempts for requests at a limit of their own */
};

struct waiter {
	TAILQ_ENTRY(waiter) link;
	struct session *session;
	uint32_t slot;
	uint32_t word; /* state word of the slot; it contains the serial number of this request */
	struct lease_want want;
	uint32_t kind; /* enum lease_request_kind: one that provides pages */
	uint64_t tag;  /* LEASE_RESTORE: the pages are for this spilled block */
	bool claims;   /* has claimed pages that are being spilled or cleared */
	bool at_limit; /* waits because of a limit of its tenant or session, not for pages of the pool */
	bool put_off;  /* waits only for the scan after which it is refused, unless the scan finds pages */
	uint64_t deadline_ms;
	uint64_t started_ns;
};

/* Return the number of pages of the pinned block at `head`, as reported by its session, but at most its budget. */
static uint32_t pinned_pages(const struct pool *pool, const struct session *session, uint32_t head, uint32_t *budget)
{
	const struct block_entry *blocks = session->segment.blocks;
	uint64_t tag = atomic_load_explicit(&blocks[head].tag, memory_order_acquire);
	uint32_t total = 0, extent = head;

	/* One budget suffices for all blocks of a session, because valid blocks do not overlap. */
	for (;;) {
		uint32_t count = atomic_load_explicit(&blocks[extent].page_count, memory_order_relaxed), next;

		if (count < 1 || count > pool->page_count - extent || count > *budget)
			break;
		*budget -= count;
		total += count;
		next = tag & BLOCK_SCATTERED ? atomic_load_explicit(&blocks[extent].next, memory_order_relaxed) : 0;
		if (!next || next > pool->page_count)
			break;
		extent = next - 1;
	}
	return total;
}

struct shortage {
	struct pool *pool;
	uint32_t pinned_by[POOL_SESSIONS], budget[POOL_SESSIONS];
	uint32_t last; /* object that was reported last */
};

static void blocks_pinned(struct shortage *shortage)
{
	struct pool *pool = shortage->pool;

	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = pool_word(pool, page);
		const struct session *session = pool->sessions[page_word_session(word)];
		uint32_t count;

		if (!session || page_word_state(word) != PAGE_LEASED ||
			!atomic_load_explicit(&session->segment.pins[page], memory_order_relaxed))
			continue;
		count = pinned_pages(pool, session, page, &shortage->budget[session->id]);
		shortage->pinned_by[session->id] += count;
		pool->shortage_pinned += count;
	}
}

/* Count the pages of a pinned object once for the pool, and once for each session that pins it. */
static void object_is_pinned(void *context, uint32_t number, struct session *session, uint32_t pins)
{
	struct shortage *shortage = context;
	struct pool *pool = shortage->pool;
	uint32_t pages = object_record(pool, number)->pages, best = pool->shortage_object;

	shortage->pinned_by[session->id] += pages;
	if (shortage->last != number)
		pool->shortage_pinned += pages;
	shortage->last = number;
	if (best && best != number && pages <= object_record(pool, best)->pages)
		return;
	if (best == number && pins <= pool->shortage_object_pins)
		return;
	pool->shortage_object = number;
	pool->shortage_object_holder = session->id;
	pool->shortage_object_pins = pins;
}

/* Compute the figures in one pass over the pins of all leased pages and over the readers of pinnable objects. */
static void shortage_look(struct pool *pool)
{
	static struct shortage shortage;
	uint32_t holder = 0;

	shortage = (struct shortage){.pool = pool};
	for (uint32_t id = 0; id < POOL_SESSIONS; id++)
		shortage.budget[id] = pool->sessions[id] ? pool->sessions[id]->leased : 0;
	pool->shortage_pinned = pool->shortage_object = 0;
	blocks_pinned(&shortage);
	pool->evict.source->holders(pool, object_is_pinned, &shortage);
	for (uint32_t id = 0; id < POOL_SESSIONS; id++)
		if (shortage.pinned_by[id] > shortage.pinned_by[holder])
			holder = id;
	pool->shortage_holder = holder;
	pool->shortage_holder_pages = shortage.pinned_by[holder];
}

/* Fill in the figures of a refusal, such as the session with the most pinned pages. */
static void shortage(const struct session *asker, struct lease_request *slot)
{
	struct pool *pool = asker->pool;
	uint64_t now = clock_ns();

	/* Reuse recent figures, so that not each of many refusals causes a pass. */
	if (now - pool->shortage_ns > pool->shortage_took_ns + SHORTAGE_NS) {
		shortage_look(pool);
		pool->shortage_ns = clock_ns();
		pool->shortage_took_ns = pool->shortage_ns - now;
	}
	/* With several trust domains, count only the pages that may be leased to the session's domain. */
	slot->free_pages = pool->trust ? pool->trust->views[asker->domain].normal.total : pool->free.total;
	slot->pinned_pages = pool->shortage_pinned;
	slot->holder = pool->shortage_holder;
	slot->holder_pages = pool->shortage_holder_pages;
	slot->object = pool->shortage_object;
	slot->object_holder = pool->shortage_object_holder;
	slot->object_pins = pool->shortage_object_pins;
}

static void note_refill(struct session *session, uint64_t started_ns)
{
	struct pool *pool = session->pool;

	session->refills++;
	pool->refill_ns[pool->refill_count++ % REFILL_SAMPLES] = clock_ns() - started_ns;
	pool_count(pool, POOL_COUNT_REFILLS, 1);
}

bool requests_answer(struct session *session, uint32_t slot_index, uint32_t asked)
{
	struct lease_request *slot = &session->segment.requests[slot_index];
	uint32_t word = asked;

	if (atomic_compare_exchange_strong_explicit(&slot->state, &word, lease_state_to(word, LEASE_DONE),
		    memory_order_acq_rel, memory_order_acquire)) {
		crash_point();
		futex_wake(&slot->state, 1);
		return true;
	}
	return false;
}

void requests_give_back(struct session *session, uint32_t slot_index)
{
	struct lease_request *slot = &session->segment.requests[slot_index];
	uint32_t word = atomic_load_explicit(&slot->state, memory_order_acquire);

	if (lease_state_of(word) == LEASE_CANCELLED)
		atomic_store_explicit(&slot->state, lease_state_to(word, LEASE_IDLE), memory_order_release);
}

static void refuse(struct session *session, const struct waiter *waiter, int error)
{
	session->segment.requests[waiter->slot].error = error;
	if (!requests_answer(session, waiter->slot, waiter->word))
		requests_give_back(session, waiter->slot);
}

/*
 * Publish an event about a limit, at most once per second and session, so that a worker cannot flood the subscribers.
 */
static void announce_limit(struct session *session, uint32_t need)
{
	uint64_t now = clock_ms();

	if (session->quota_event_ms && now - session->quota_event_ms < 1000)
		return;
	session->quota_event_ms = now;
	event_publish(session->pool->agent, EVENT_TENANT_LIMIT, session->pool, session->id, need,
		"'%s' requested %u page%s beyond its limit", session->name, need, plural(need));
}

/* Return true if the request may have failed only because pages are still being freed; it is then tried again. */
static bool leaving(const struct session *session, const struct waiter *waiter, int error)
{
	const struct pool *pool = session->pool;

	if (clock_ns() - waiter->started_ns >= LEAVING_PATIENCE_MS * UINT64_C(1000000))
		return false;
	return (pool->saving_pages && !(waiter->want.flags & LEASE_NO_EVICT)) ||
		(trust_coming(pool) && error == -ENOSPC);
}

/* Return true if a later attempt may succeed. */
static bool may_wait(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

/* Grant a request. Pages that other requests have claimed are not available to it. */
static int grant(struct session *session, struct waiter *waiter, struct lease_grant *granted)
{
	struct pool *pool = session->pool;
	int error;

	if (waiter->claims)
		pool->claimed_pages -= waiter->want.need;
	waiter->claims = pool->evict.put_off = false;
	waiter->want.slot = waiter->slot;
	waiter->want.word = waiter->word;
	if (waiter->kind == LEASE_TAKE_OVER)
		return reservation_take(session, &waiter->want, granted);
	error = waiter->kind == LEASE_RESERVE ? reservation_make(session, &waiter->want, granted)
					      : lease_grant(session, &waiter->want, granted);
	if (may_wait(error) && leaving(session, waiter, error)) {
		waiter->claims = true;
		pool->claimed_pages += waiter->want.need;
	}
	return error;
}

static void grant_undo(struct session *session, const struct waiter *waiter, const struct lease_grant *granted)
{
	if (waiter->kind == LEASE_TAKE_OVER)
		reservation_untake(session);
	else if (waiter->kind == LEASE_RESERVE)
		reservation_unmake(session, &waiter->want, granted);
	else
		lease_grant_undo(session, granted);
	journal_end(&session->pool->ledger);
}

/*
 * Restore a spilled block into the granted pages. The pages belong to the agent until they have the content; then the
 * saver answers the request.
 */
static void restore(struct session *session, const struct waiter *waiter, const struct lease_grant *granted,
	const struct flight_entry *note)
{
	int error = session->pool->saver->restore(session, &waiter->want, waiter->tag, granted);

	if (error) {
		grant_undo(session, waiter, granted);
		refuse(session, waiter, error);
	} else {
		flight_note(session->pool, note, 0);
	}
}

/* Return the usage of the requested pages, as claimed by the worker. */
static uint32_t usage_of(const struct waiter *waiter)
{
	return waiter->kind == LEASE_RESTORE ? (uint32_t)waiter->tag & BLOCK_TYPE_MASK
					     : (waiter->want.flags & LEASE_USAGE_MASK) >> LEASE_USAGE_SHIFT;
}

/*
 * Return true if grant() has failed without a scan, and no scan since the arrival of the request has found nothing to
 * evict. Pages may have become evictable since the last scan.
 */
static bool scan_is_due(const struct session *session, const struct waiter *waiter)
{
	return session->pool->evict.put_off && session->tenant->barren_ns < waiter->started_ns;
}

/* Try to serve a request. Return true if it is finished, with or without pages, or if the saver will finish it. */
static bool serve(struct session *session, struct waiter *waiter, bool last_try)
{
	struct lease_request *slot = &session->segment.requests[waiter->slot];
	struct flight_entry note = {.kind = FLIGHT_GRANT, .session = (uint16_t)session->id};
	struct lease_grant granted;
	int error = 0;

	/* Check this before each attempt, so that no other session loses pages for a block that cannot be restored. */
	if (waiter->kind == LEASE_RESTORE)
		error = session->pool->saver->restorable(session, waiter->tag, waiter->want.need);
	if (!error) {
		error = grant(session, waiter, &granted);
		waiter->at_limit = error == -EDQUOT;
		waiter->put_off = last_try && may_wait(error) && scan_is_due(session, waiter);
	}
	if (error && error != -EPERM && !may_wait(error)) {
		refuse(session, waiter, error);
		return true;
	}
	if (may_wait(error) && (!last_try || waiter->claims || waiter->put_off))
		return false;
	if (error) {
		session->refusals++;
		session->tenant->refusals++;
		if (usage_of(waiter) < BLOCK_USAGES)
			session->tenant->usages[usage_of(waiter)].refusals++;
		pool_count(session->pool, POOL_COUNT_REFUSALS, 1);
		flight_note(session->pool,
			&(struct flight_entry){.kind = FLIGHT_REFUSAL,
				.session = (uint16_t)session->id,
				.pages = waiter->want.need,
				.value = (uint64_t)-error},
			waiter->started_ns);
		shortage(session, slot);
		lease_note_refusal(session, waiter->want.need, error);
		if (error == -EDQUOT)
			announce_limit(session, waiter->want.need);
		refuse(session, waiter, error);
		return true;
	}
	note.page = session->pool->runs[0].first;
	note.pages = waiter->want.need + granted.extra_count;
	/* Record the time before the answer, after which the worker continues. */
	flight_stamp(&note, waiter->started_ns);
	note_refill(session, waiter->started_ns);
	if (waiter->kind == LEASE_RESTORE) {
		restore(session, waiter, &granted, &note);
		return true;
	}
	slot->error = 0;
	slot->first_page = note.page;
	slot->extra_first = granted.extra_first;
	slot->extra_granted = granted.extra_count;
	crash_point();
	if (requests_answer(session, waiter->slot, waiter->word)) {
		if (waiter->kind == LEASE_TAKE_OVER)
			reservation_taken(session->pool);
		journal_end(&session->pool->ledger);
		flight_note(session->pool, &note, 0);
	} else {
		grant_undo(session, waiter, &granted);
		requests_give_back(session, waiter->slot);
	}
	return true;
}

/*
 * Publish the number of requests that wait for pages of the pool, so that workers that free pages ring the doorbell.
 * Requests that wait because of a limit, or for a scan, are tried periodically instead.
 */
static void waiters_publish(struct pool *pool)
{
	uint32_t tick_ms = WAITER_TICK_MS;
	const struct waiter *waiter;

	pool->short_waiters = 0;
	TAILQ_FOREACH(waiter, &pool->waiters, link)
	{
		pool->short_waiters += !waiter->at_limit && !waiter->put_off;
		tick_ms = waiter->put_off ? PUT_OFF_TICK_MS : tick_ms;
	}
	atomic_store_explicit(&pool->segment.header->waiters, pool->short_waiters, memory_order_relaxed);
	if (pool->waiter_count)
		agent_need_tick(pool->agent, tick_ms);
}

static void waiter_remove(struct pool *pool, struct waiter *waiter)
{
	if (waiter->claims)
		pool->claimed_pages -= waiter->want.need;
	TAILQ_REMOVE(&pool->waiters, waiter, link);
	pool->waiter_count--;
	free(waiter);
}

/* Insert a request by its tenant's priority, then by arrival. */
static void waiter_insert(struct pool *pool, struct waiter *waiter)
{
	uint32_t priority = waiter->session->tenant->config->priority;
	struct waiter *at;

	TAILQ_FOREACH(at, &pool->waiters, link)
	if (at->session->tenant->config->priority < priority)
		break;
	if (at)
		TAILQ_INSERT_BEFORE(at, waiter, link);
	else
		TAILQ_INSERT_TAIL(&pool->waiters, waiter, link);
	pool->waiter_count++;
}

/*
 * Return true if a request should be tried now. A request that waits because of a limit needs pages that its own tenant
 * frees, so the rings of other tenants are ignored. One such request per session is tried at intervals, because each
 * attempt may cost a scan.
 */
static bool worth_a_try(const struct waiter *waiter, const struct session *ringer, uint64_t now)
{
	if (!waiter->at_limit || waiter->claims || now >= waiter->deadline_ms)
		return true;
	if (now - waiter->session->at_limit_ms < AT_LIMIT_TICK_MS)
		return false;
	waiter->session->at_limit_ms = now;
	return !ringer || ringer->tenant == waiter->session->tenant;
}

void requests_serve_waiters(struct pool *pool, const struct session *ringer)
{
	uint64_t now = clock_ms();
	struct waiter *waiter, *next;

	for (waiter = TAILQ_FIRST(&pool->waiters); waiter; waiter = next) {
		struct lease_request *slot = &waiter->session->segment.requests[waiter->slot];

		next = TAILQ_NEXT(waiter, link);
		if (atomic_load_explicit(&slot->state, memory_order_acquire) != waiter->word) {
			requests_give_back(waiter->session, waiter->slot);
			waiter_remove(pool, waiter);
		} else if (worth_a_try(waiter, ringer, now) &&
			serve(waiter->session, waiter, now >= waiter->deadline_ms)) {
			waiter_remove(pool, waiter);
		}
	}
	waiters_publish(pool);
}

void requests_pass(struct pool *pool)
{
	if (!pool->pages_freed)
		return;
	pool->pages_freed = false;
	if (pool->waiter_count)
		requests_serve_waiters(pool, NULL);
}

void requests_forget(struct session *session)
{
	struct pool *pool = session->pool;
	struct waiter *waiter, *next;

	for (waiter = TAILQ_FIRST(&pool->waiters); waiter; waiter = next) {
		next = TAILQ_NEXT(waiter, link);
		if (waiter->session == session)
			waiter_remove(pool, waiter);
	}
	waiters_publish(pool);
}

static bool is_waiting(const struct session *session, uint32_t slot)
{
	const struct waiter *waiter;

	TAILQ_FOREACH(waiter, &session->pool->waiters, link)
	if (waiter->session == session && waiter->slot == slot)
		return true;
	return false;
}

static void release(struct session *session, const struct waiter *asked)
{
	struct lease_request *slot = &session->segment.requests[asked->slot];
	uint32_t pages;

	slot->error = reservation_release(session, asked->tag, &pages);
	slot->first_page = pages;
	if (!requests_answer(session, asked->slot, asked->word))
		requests_give_back(session, asked->slot);
}

static bool provides_pages(uint32_t kind)
{
	return kind == LEASE_TAKE || kind == LEASE_RESTORE || kind == LEASE_RESERVE || kind == LEASE_TAKE_OVER;
}

/* Serve a request. Return 0, or -EPROTO if the slot is malformed. */
static int request_serve(struct session *session, uint32_t slot_index)
{
	struct lease_request *slot = &session->segment.requests[slot_index];
	struct pool *pool = session->pool;
	struct waiter asked = {.session = session, .slot = slot_index, .started_ns = clock_ns()}, *waiter;
	uint32_t kind, extra, timeout_ms;

	asked.word = atomic_load_explicit(&slot->state, memory_order_acquire);
	/* The mover is executing it. */
	if (session->spill_requests >> slot_index & 1)
		return 0;
	if (lease_state_of(asked.word) == LEASE_CANCELLED && !is_waiting(session, slot_index))
		requests_give_back(session, slot_index);
	if (lease_state_of(asked.word) != LEASE_REQUESTED || is_waiting(session, slot_index))
		return 0;
	/* Read each field once, because the worker may change it at any time. */
	kind = *(volatile uint32_t *)&slot->kind;
	asked.want.need = *(volatile uint32_t *)&slot->need;
	extra = *(volatile uint32_t *)&slot->extra;
	asked.want.flags = *(volatile uint32_t *)&slot->flags;
	timeout_ms = *(volatile uint32_t *)&slot->timeout_ms;
	asked.tag = *(volatile uint64_t *)&slot->tag;
	asked.kind = kind;
	if (kind == LEASE_TAKE)
		asked.want.extra = extra;
	else if (kind == LEASE_RESERVE)
		asked.want.duration_ms = extra;
	asked.want.reservation = asked.tag;
	if (kind == LEASE_QUERY || kind == LEASE_RESTORE_INTO || kind == LEASE_DISCARD || kind == LEASE_SPILL) {
		pool->saver->request(session, slot_index,
			&(struct lease_request){.state = asked.word,
				.kind = kind,
				.need = asked.want.need,
				.first_page = *(volatile uint32_t *)&slot->first_page,
				.tag = asked.tag});
		return 0;
	}
	if (kind == LEASE_UNRESERVE) {
		release(session, &asked);
		return 0;
	}
	if (!provides_pages(kind) || asked.want.flags & ~(uint32_t)LEASE_FLAGS) {
		refuse(session, &asked, -EINVAL);
		return -EPROTO;
	}
	if (asked.want.need < 1 || asked.want.need > pool->page_count) {
		refuse(session, &asked, -EINVAL);
		return 0;
	}
	if (serve(session, &asked, timeout_ms == 0))
		return 0;
	waiter = malloc(sizeof(*waiter));
	if (!waiter) {
		pool->claimed_pages -= asked.claims ? asked.want.need : 0;
		refuse(session, &asked, -ENOMEM);
		return 0;
	}
	*waiter = asked;
	waiter->deadline_ms = clock_ms() + timeout_ms;
	waiter_insert(pool, waiter);
	waiters_publish(pool);
	pool_update_pressure(pool);
	return 0;
}

uint32_t requests_restart(struct session *session)
{
	uint32_t malformed = 0;

	for (uint32_t slot = 0; slot < SESSION_REQUESTS; slot++)
		malformed += request_serve(session, slot) != 0;
	return malformed;
}

uint32_t requests_doorbell(struct session *session)
{
	uint32_t malformed = 0;
	uint64_t pending;

	if (session->state != SESSION_LIVE || session->kind != SESSION_WORKER)
		return 0;
	pending = atomic_exchange_explicit(&session->segment.header->requests_pending, 0, memory_order_acq_rel);
	for (; pending; pending &= pending - 1)
		malformed += request_serve(session, (uint32_t)__builtin_ctzll(pending)) != 0;
	if (session->pool->waiter_count)
		requests_serve_waiters(session->pool, session);
	return malformed;
}
