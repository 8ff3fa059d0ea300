/*
 * inspect_pages.c - read-only requests about pages: the page table, the use of each page, pins.
 */
#include "agent/control/exchange.h"
#include "agent/object/objects.h"
#include "agent/control/page_facts.h"
#include "agent/pages/reservation.h"
#include "proto/view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Large structs are static: the agent has one thread and answers one request at a time. */
static union {
	struct msg_pages_reply pages;
	struct msg_page_kinds_reply kinds;
	struct msg_pins_reply pins;
} big;

static void page_entry_fill(
	const struct pool *pool, uint32_t page, const struct page_fact *fact, struct msg_page_entry *entry)
{
	const struct session *session = session_of_fact(pool, fact);

	view_page(page, pool_word(pool, page), fact, session ? &session->segment : NULL, (uint32_t)clock_ms(), entry);
	if (entry->state == PAGE_LEASED && fact->use == PAGE_USE_NONE && reservation_has(pool, page))
		entry->use = PAGE_USE_RESERVATION;
}

/* The request of this type that lists pages from `first` on. */
static struct listing listing_at(const struct pool *pool, uint32_t type, uint32_t first)
{
	return (struct listing){.pool = pool->index + 1, .type = type, .first = first};
}

/* Finish a reply. If it is full and more pages follow, the session is expected to continue the list. */
static void pages_listed(struct exchange *x, const struct pool *pool, uint32_t type, uint32_t next, bool full)
{
	listing_set(x->session,
		full && next < pool->page_count ? listing_at(pool, type, next) : (struct listing){.pool = 0});
	facts_done(pool);
}

int answer_pages(struct exchange *x)
{
	struct msg_pages_reply *reply = &big.pages;
	const uint32_t type = MSG_TYPE_pages_request, most = sizeof(reply->pages) / sizeof(*reply->pages);
	struct msg_pages_request request;
	const struct page_fact *facts;
	const struct pool *pool;

	if (DECODE(x, pages_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	if (request.first >= pool->page_count || request.count < 1)
		return exchange_fail(x, -EINVAL,
			"pages from %u, count %u: pool '%s' has pages 0 to %u, and the count must be at least 1",
			request.first, request.count, pool->segment.header->name, pool->page_count - 1);
	if (request.count > most)
		request.count = most;
	facts = facts_of(pool, listing_continues(x->session, listing_at(pool, type, request.first)));
	if (!facts)
		return exchange_fail(x, -ENOMEM, "the agent is out of memory");
	memset(reply, 0, sizeof(*reply));
	reply->page_count = pool->page_count;
	for (uint32_t page = request.first; page < pool->page_count && page - request.first < request.count; page++) {
		struct page_fact fact = fact_of(pool, facts, page);

		page_entry_fill(pool, page, &fact, &reply->pages[reply->pages_count++]);
	}
	pages_listed(x, pool, type, request.first + reply->pages_count, reply->pages_count == most);
	return ENCODE(x, pages_reply, reply);
}

enum { KIND_OBJECT = 6, KIND_PINNABLE = 7, KIND_RESERVATION = 8, KIND_BLOCK = 16, KIND_NOBODY = 255 };

/* Return the kind of a page according to the state in its page word. */
static uint8_t kind_of_state(enum page_state state)
{
	static const uint8_t kinds[PAGE_STATES] = {
		[PAGE_FREE] = 0,
		[PAGE_RESERVED] = 1,
		[PAGE_LEASED] = 2,
		[PAGE_QUARANTINED] = 3,
		[PAGE_EVICTING] = 4,
		[PAGE_MOVING] = 4,
		[PAGE_RETIRED] = 5,
		[PAGE_SHARED] = KIND_OBJECT,
	};

	return kinds[state < PAGE_STATES ? state : PAGE_FREE];
}

static uint8_t tenant_number(const struct pool *pool, const struct tenant *tenant)
{
	return tenant ? (uint8_t)(tenant - pool->tenants) : KIND_NOBODY;
}

static struct msg_page_kind page_kind_of(const struct pool *pool, uint32_t page, const struct page_fact *fact)
{
	uint64_t word = pool_word(pool, page);
	enum page_state state = page_word_state(word);
	uint32_t owner = page_word_owner(word);
	struct msg_page_kind kind = {kind_of_state(state), KIND_NOBODY};

	if (state == PAGE_SHARED && owner < pool->objects->count) {
		kind.kind = object_record(pool, owner)->class == OBJECT_PINNABLE ? KIND_PINNABLE : KIND_OBJECT;
		kind.tenant = tenant_number(pool, pool->objects->of[owner].tenant);
	} else if (page_word_session(word) && pool->sessions[page_word_session(word)]) {
		kind.tenant = tenant_number(pool, pool->sessions[page_word_session(word)]->tenant);
	}
	if (state == PAGE_LEASED && fact->use >= PAGE_USE_HEAD)
		kind.kind = (uint8_t)(KIND_BLOCK + 2 * fact->usage + (pins_of_fact(pool, fact) != 0));
	else if (state == PAGE_LEASED && fact->use == PAGE_USE_NONE && reservation_has(pool, page))
		kind.kind = KIND_RESERVATION;
	return kind;
}

int answer_page_kinds(struct exchange *x)
{
	struct msg_page_kinds_reply *reply = &big.kinds;
	struct msg_page_kinds_request request;
	const struct page_fact *facts;
	const struct pool *pool;
	const uint32_t type = MSG_TYPE_page_kinds_request, most = sizeof(reply->pages) / sizeof(*reply->pages);

	if (DECODE(x, page_kinds_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	if (request.first >= pool->page_count)
		return exchange_fail(x, -EINVAL, "no page %u: pool '%s' has pages 0 to %u", request.first,
			pool->segment.header->name, pool->page_count - 1);
	facts = facts_of(pool, listing_continues(x->session, listing_at(pool, type, request.first)));
	if (!facts)
		return exchange_fail(x, -ENOMEM, "the agent is out of memory");
	reply->page_count = pool->page_count;
	reply->pages_count = 0;
	for (uint32_t page = request.first; page < pool->page_count && reply->pages_count < most; page++) {
		struct page_fact fact = fact_of(pool, facts, page);

		reply->pages[reply->pages_count++] = page_kind_of(pool, page, &fact);
	}
	pages_listed(x, pool, type, request.first + reply->pages_count, reply->pages_count == most);
	return ENCODE(x, page_kinds_reply, reply);
}

/* The position in the list of pins, and the reply that is being filled. */
struct pins_look {
	const struct pool *pool;
	const struct msg_pins_request *request;
	struct msg_pins_reply *reply;
	uint32_t page, page_count;
};

/*
 * Add an entry. If the reply is full, the next reply begins with this entry. may_leak: false for pins that the library
 * holds for as long as they are needed.
 */
static struct msg_pin_entry *pin_add(
	struct pins_look *look, const struct session *session, uint32_t pins, bool may_leak)
{
	struct msg_pins_reply *reply = look->reply;
	uint32_t age = idle_ms_of(session, look->page), longest = look->pool->agent->config.pins.max_duration_ms;
	bool leaked = may_leak && age > longest && !view_is_of_library(&session->segment, look->page);

	if (reply->next_session || (look->request->leaked_only && !leaked))
		return NULL;
	if (reply->pins_count == sizeof(reply->pins) / sizeof(*reply->pins)) {
		reply->next = look->page;
		reply->next_session = session->id;
		return NULL;
	}
	reply->pins[reply->pins_count] = (struct msg_pin_entry){
		.page = look->page,
		.page_count = look->page_count,
		.pins = pins,
		.age_ms = age,
		.leaked = leaked,
		.session = session->id,
		.pid = (uint32_t)session->pid,
	};
	snprintf(reply->pins[reply->pins_count].name, sizeof(reply->pins[0].name), "%s", session->name);
	return &reply->pins[reply->pins_count++];
}

static void block_pins(struct pins_look *look, const struct page_fact *fact)
{
	const struct session *session = session_of_fact(look->pool, fact);
	uint32_t pins = pins_of_fact(look->pool, fact);
	struct msg_pin_entry *entry;

	look->page_count = fact->pages;
	entry = pins ? pin_add(look, session, pins, true) : NULL;
	if (!entry)
		return;
	entry->usage = fact->usage;
	entry->owner_id = atomic_load_explicit(&session->segment.blocks[look->page].owner_id, memory_order_relaxed);
}

static void object_pin_found(void *context, uint32_t number, struct session *session, uint32_t pins)
{
	struct pins_look *look = context;
	struct msg_pin_entry *entry;

	if (look->page == look->request->first && session->id < look->request->first_session)
		return;
	entry = pin_add(look, session, pins, object_record(look->pool, number)->class == OBJECT_PINNABLE);
	if (!entry)
		return;
	entry->object = number;
	snprintf(entry->object_name, sizeof(entry->object_name), "%s", object_record(look->pool, number)->name);
}

/* If the page is the first page of an object that only its pins protect from eviction, add these pins. */
static void object_pins(struct pins_look *look)
{
	uint64_t word = pool_word(look->pool, look->page);
	uint32_t number = page_word_owner(word);

	if (page_word_state(word) != PAGE_SHARED || number >= look->pool->objects->count ||
		!object_kept_by_pins(object_record(look->pool, number)) || !object_stands(look->pool, number) ||
		look->pool->objects->of[number].fd <= 0 || object_page(look->pool, number) != look->page)
		return;
	look->page_count = object_record(look->pool, number)->pages;
	object_holders(look->pool, number, object_pin_found, look);
}

int answer_pins(struct exchange *x)
{
	struct msg_pins_request request;
	struct pins_look look = {.request = &request, .reply = &big.pins};
	struct listing asked, next = {.pool = 0};
	const struct page_fact *facts;

	if (DECODE(x, pins_request, &request))
		return exchange_malformed(x);
	look.pool = exchange_pool(x, request.pool);
	if (!look.pool)
		return exchange_no_pool(x, request.pool);
	asked = listing_at(look.pool, MSG_TYPE_pins_request, request.first);
	asked.first_session = request.first_session;
	facts = facts_of(look.pool, listing_continues(x->session, asked));
	if (!facts)
		return exchange_fail(x, -ENOMEM, "the agent is out of memory");
	memset(look.reply, 0, sizeof(*look.reply));
	for (look.page = request.first; look.page < look.pool->page_count && !look.reply->next_session; look.page++) {
		struct page_fact fact = fact_of(look.pool, facts, look.page);

		if (fact.use == PAGE_USE_HEAD)
			block_pins(&look, &fact);
		else
			object_pins(&look);
	}
	if (look.reply->next_session) {
		next = listing_at(look.pool, MSG_TYPE_pins_request, look.reply->next);
		next.first_session = look.reply->next_session;
	}
	listing_set(x->session, next);
	facts_done(look.pool);
	return ENCODE(x, pins_reply, look.reply);
}
