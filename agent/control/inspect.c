/*
 * inspect.c - read-only requests about a pool and its users.
 */
#include "agent/control/exchange.h"
#include "agent/control/page_facts.h"
#include "agent/base/layout.h"
#include "agent/base/module.h"
#include "shm/plural.h"

#include "agent/object/objects.h"
#include "agent/pages/reservation.h"
#include "agent/session/session.h"
#include "agent/spill/spill.h"
#include "agent/trust/trust_transfer.h"
#include "proto/view.h"
#include "shm/page_map.h"
#include "shm/session_totals.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Large structs are static: the agent has one thread and answers one request at a time. */
static union {
	struct msg_status_reply status;
	struct msg_clients_reply clients;
	struct msg_tenants_reply tenants;
	struct msg_totals_reply totals;
	struct msg_tenant_totals_reply tenant_totals;
	struct msg_check_reply check;
} big;

static int by_value(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

static void refill_percentiles(const struct pool *pool, uint64_t *p50, uint64_t *p99)
{
	static uint64_t sorted[REFILL_SAMPLES];
	size_t count = pool->refill_count < REFILL_SAMPLES ? pool->refill_count : REFILL_SAMPLES;

	*p50 = *p99 = 0;
	if (!count)
		return;
	memcpy(sorted, pool->refill_ns, count * sizeof(*sorted));
	qsort(sorted, count, sizeof(*sorted), by_value);
	*p50 = sorted[count / 2];
	*p99 = sorted[count * 99 / 100];
}

static void spill_status_fill(const struct pool *pool, struct msg_pool_status *status)
{
	const struct pool_header *header = pool->segment.header;
	const struct spill *spill = pool->spill;

	status->spill_memory_bytes = spill_used(pool, MOVER_TIER_MEMORY);
	status->spill_memory_limit = spill->slots.tiers[MOVER_TIER_MEMORY].count * header->page_bytes;
	status->spill_file_bytes = spill_used(pool, MOVER_TIER_FILE);
	status->spill_file_limit = spill->slots.tiers[MOVER_TIER_FILE].count * header->page_bytes;
	status->spill_lost_blocks = spill->lost_blocks;
	if (!jobs_possible(pool->jobs))
		return;
	status->mover_pid = jobs_mover(pool->jobs);
	status->mover_file_way = atomic_load_explicit(&pool->jobs->queue.ring->uring, memory_order_relaxed);
	status->mover_file_error = atomic_load_explicit(&pool->jobs->queue.ring->uring_error, memory_order_relaxed);
	if (!pool->jobs->gone)
		return;
	status->mover_gone_ms = clock_ms() - pool->jobs->since_ms;
	snprintf(status->mover_why, sizeof(status->mover_why), "%s", pool->jobs->why);
}

static int pool_status_fill(struct pool *pool, struct msg_pool_status *status)
{
	const struct pool_header *header = pool->segment.header;
	const struct page_uses *all = uses_of(pool, false); /* the sum over all sessions comes first */
	uint32_t states[PAGE_STATES];

	if (!all)
		return -ENOMEM;
	/* Like the other values, the pressure must be current and not that of the last tick. */
	pool_update_pressure(pool);
	memset(status, 0, sizeof(*status));
	snprintf(status->name, sizeof(status->name), "%s", header->name);
	snprintf(status->backend, sizeof(status->backend), "%s", header->backend);
	snprintf(status->device, sizeof(status->device), "%s", header->device);
	snprintf(status->policy, sizeof(status->policy), "%s", pool->evict.policy->name);
	for (int state = 0; state < PAGE_STATES; state++)
		states[state] = header->state_pages[state];
	view_pool(header, states, status);
	status->needed_pages = all->needed;
	VIEW_USES(status, all);
	status->largest_free_run = free_runs_longest(&pool->free);
	status->sessions = pool->session_count;
	status->waiters = pool->waiter_count;
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id]) {
			struct session_totals totals = {0};

			session_add_totals(pool->sessions[id], &totals);
			status->contended_pins += totals.contended_pins;
			status->pins += totals.pins;
			status->allocations += totals.allocations;
		}
	refill_percentiles(pool, &status->refill_p50_ns, &status->refill_p99_ns);
	spill_status_fill(pool, status);
	status->cleaning_pages = trust_cleaning(pool->trust);
	status->reservation_pages = reservation_pages(pool, false)[0];
	return 0;
}

int answer_status(struct exchange *x)
{
	struct msg_status_reply *reply = &big.status;

	memset(reply, 0, sizeof(*reply));
	reply->uptime_ms = clock_ms() - x->agent->start_ms;
	reply->incarnation = x->agent->incarnation;
	reply->front_restarts = x->agent->front_restarts;
	reply->agent_pid = (uint32_t)getpid();
	reply->front_pid = (uint32_t)x->agent->front_pid;
	for (uint32_t i = 0; i < x->agent->pool_count; i++)
		if (pool_status_fill(x->agent->pools[i], &reply->pools[reply->pools_count++]))
			return exchange_fail(x, -ENOMEM, "the agent is out of memory");
	return ENCODE(x, status_reply, reply);
}

int answer_version(struct exchange *x)
{
	struct msg_version_reply reply = {
		.layout_version = POOL_LAYOUT_VERSION,
		.pid = (uint32_t)getpid(),
		.incarnation = x->agent->incarnation,
		.version = GPOOL_VERSION,
	};

	return ENCODE(x, version_reply, &reply);
}

int answer_layout(struct exchange *x)
{
	struct msg_layout_reply reply;

	static_assert(sizeof(reply.layout) == LAYOUT_TEXT_BYTES && sizeof(reply.interface) == LAYOUT_TEXT_BYTES, "");
	layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), reply.layout);
	layout_text(MODULE_ABI, layout_sum(&layout_own, LAYOUT_INTERFACE), reply.interface);
	return ENCODE(x, layout_reply, &reply);
}

static void client_entry_fill(
	const struct session *session, const struct page_uses *uses, uint32_t reserved, struct msg_client_entry *entry)
{
	const struct pool *pool = session->pool;
	struct session_totals totals = {0};

	session_add_totals(session, &totals);
	memset(entry, 0, sizeof(*entry));
	snprintf(entry->pool, sizeof(entry->pool), "%s", pool->segment.header->name);
	snprintf(entry->name, sizeof(entry->name), "%s", session->name);
	snprintf(entry->tenant, sizeof(entry->tenant), "%s", session->tenant->config->name);
	entry->session = session->id;
	entry->pid = (uint32_t)session->pid;
	entry->uid = session->uid;
	entry->kind = session->kind;
	entry->state = session->state != SESSION_LIVE;
	entry->age_ms = clock_ms() - session->attached_ms;
	entry->leased_pages = session->leased;
	entry->limit_pages = session->limit;
	entry->needed_pages = uses->needed;
	VIEW_USES(entry, uses);
	entry->allocations = totals.allocations;
	entry->frees = totals.frees;
	entry->pins = totals.pins;
	entry->contended_pins = totals.contended_pins;
	entry->stale_pins = totals.stale_pins;
	entry->refills = session->refills;
	entry->refusals = session->refusals;
	entry->evicted_pages = session->evicted_pages;
	entry->reclaimed_pages = session->reclaimed_pages;
	entry->damage = session->damage;
	entry->spilled_pages = session->spilled_pages;
	entry->reservation_pages = reserved;
}

static struct listing clients_listing(const struct pool *pool, uint32_t first)
{
	return (struct listing){.pool = pool->index + 1, .type = MSG_TYPE_clients_request, .first = first};
}

int answer_clients(struct exchange *x)
{
	struct msg_clients_reply *reply = &big.clients;
	struct msg_clients_request request;
	struct listing next = {.pool = 0};
	const struct pool *only = NULL;

	if (DECODE(x, clients_request, &request))
		return exchange_malformed(x);
	if (request.pool[0] && !(only = exchange_pool(x, request.pool)))
		return exchange_no_pool(x, request.pool);
	memset(reply, 0, sizeof(*reply));
	for (uint32_t p = request.first >> 12; p < x->agent->pool_count && !reply->next; p++) {
		const struct pool *pool = x->agent->pools[p];
		const struct page_uses *uses;
		const uint32_t *reserved;
		bool continues;

		if (only && pool != only)
			continue;
		continues = listing_continues(x->session, clients_listing(pool, request.first));
		uses = uses_of(pool, continues);
		if (!uses)
			return exchange_fail(x, -ENOMEM, "the agent is out of memory");
		reserved = reservation_pages(pool, continues);
		for (uint32_t id = p == request.first >> 12 ? request.first & 0xfff : 0; id < POOL_SESSIONS; id++) {
			if (!pool->sessions[id])
				continue;
			if (reply->clients_count == sizeof(reply->clients) / sizeof(*reply->clients)) {
				reply->next = p << 12 | id;
				next = clients_listing(pool, reply->next);
				break;
			}
			client_entry_fill(
				pool->sessions[id], &uses[id], reserved[id], &reply->clients[reply->clients_count++]);
		}
	}
	listing_set(x->session, next);
	return ENCODE(x, clients_reply, reply);
}

/* Add up a tenant's pages. Objects are leased to a tenant and not to a session; evictable objects count as offered. */
static void tenant_uses_fill(const struct pool *pool, const struct tenant *tenant, const struct page_uses *uses,
	struct msg_tenant_entry *entry)
{
	uint32_t by_usage[PAGE_MAP_USAGES] = {0};

	entry->offered_pages = tenant->idle_pages;
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		if (!pool->sessions[id] || pool->sessions[id]->tenant != tenant)
			continue;
		entry->offered_pages += uses[id].offered;
		entry->idle_pages += uses[id].idle;
		for (int usage = 0; usage < PAGE_MAP_USAGES; usage++)
			by_usage[usage] += uses[id].usages[usage];
	}
	entry->needed_pages = tenant->leased - entry->offered_pages - entry->idle_pages;
	entry->by_usage_0 = by_usage[0];
	entry->by_usage_1 = by_usage[1];
	entry->by_usage_2 = by_usage[2];
	entry->by_usage_3 = by_usage[3];
	entry->by_usage_4 = by_usage[4];
}

static void tenant_entry_fill(const struct pool *pool, const struct tenant *tenant, struct msg_tenant_entry *entry)
{
	memset(entry, 0, sizeof(*entry));
	snprintf(entry->pool, sizeof(entry->pool), "%s", pool->segment.header->name);
	snprintf(entry->name, sizeof(entry->name), "%s", tenant->config->name);
	entry->minimum_pages = tenant->minimum;
	entry->limit_pages = tenant->limit;
	entry->weight = tenant->config->weight;
	entry->priority = tenant->config->priority;
	entry->leased_pages = tenant->leased;
	entry->borrowed_pages = tenant->leased > tenant->minimum ? tenant->leased - tenant->minimum : 0;
	entry->sessions = tenant->sessions;
	entry->refusals = tenant->refusals;
	entry->evicted_pages = tenant->evicted_pages;
}

int answer_tenants(struct exchange *x)
{
	struct msg_tenants_reply *reply = &big.tenants;
	struct msg_tenants_request request;
	const struct pool *only = NULL;

	if (DECODE(x, tenants_request, &request))
		return exchange_malformed(x);
	if (request.pool[0] && !(only = exchange_pool(x, request.pool)))
		return exchange_no_pool(x, request.pool);
	memset(reply, 0, sizeof(*reply));
	for (uint32_t p = 0; p < x->agent->pool_count; p++) {
		const struct pool *pool = x->agent->pools[p];
		const struct page_uses *uses;

		if (only && pool != only)
			continue;
		uses = uses_of(pool, false);
		if (!uses)
			return exchange_fail(x, -ENOMEM, "the agent is out of memory");
		for (uint32_t i = 0; i < pool->tenant_count; i++) {
			if (reply->tenants_count == sizeof(reply->tenants) / sizeof(*reply->tenants))
				break;
			tenant_entry_fill(pool, &pool->tenants[i], &reply->tenants[reply->tenants_count]);
			tenant_uses_fill(pool, &pool->tenants[i], uses, &reply->tenants[reply->tenants_count++]);
		}
	}
	return ENCODE(x, tenants_reply, reply);
}

static void holder_fill(const struct session *session, const struct page_uses *uses, struct msg_holder_entry *entry)
{
	uint32_t most = 0;

	*entry = (struct msg_holder_entry){
		.session = session->id,
		.needed_pages = uses->needed,
		.offered_pages = uses->offered,
		.idle_pages = uses->idle,
		.usage = PAGE_MAP_USAGES,
	};
	for (uint32_t usage = 0; usage < PAGE_MAP_USAGES; usage++)
		if (uses->usages[usage] > most) {
			most = uses->usages[usage];
			entry->usage = usage;
		}
	snprintf(entry->name, sizeof(entry->name), "%s", session->name);
}

/* Insert a session into the list of sessions with the most pages, if it belongs there. */
static void holder_add(
	const struct pool *pool, uint32_t id, const struct page_uses *uses, struct msg_shortage_reply *reply)
{
	enum { MOST = sizeof(reply->holders) / sizeof(*reply->holders) };
	uint32_t at = reply->holders_count;

	while (at && pool->sessions[reply->holders[at - 1].session]->leased < pool->sessions[id]->leased)
		at--;
	if (at == MOST)
		return;
	if (reply->holders_count < MOST)
		reply->holders_count++;
	memmove(&reply->holders[at + 1], &reply->holders[at],
		(reply->holders_count - at - 1) * sizeof(*reply->holders));
	holder_fill(pool->sessions[id], uses, &reply->holders[at]);
}

int answer_shortage(struct exchange *x)
{
	struct msg_shortage_request request;
	struct msg_shortage_reply reply = {.holders_count = 0};
	const struct pool *pool = x->session->pool;
	const struct page_uses *uses;

	if (DECODE(x, shortage_request, &request))
		return exchange_malformed(x);
	uses = uses_of(pool, false);
	if (!uses)
		return exchange_fail(x, -ENOMEM, "the agent is out of memory");
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id] && pool->sessions[id]->leased)
			holder_add(pool, id, &uses[id], &reply);
	return ENCODE(x, shortage_reply, &reply);
}

static void mover_totals_fill(const struct pool *pool, struct msg_totals_reply *reply)
{
	const struct mover_queue *queue;

	if (!jobs_possible(pool->jobs))
		return;
	queue = &pool->jobs->queue;
	reply->mover_jobs = atomic_load_explicit(&queue->ring->jobs_done, memory_order_relaxed);
	reply->mover_bytes = atomic_load_explicit(&queue->ring->bytes_moved, memory_order_relaxed);
	reply->mover_queue = queue->in_flight;
}

int answer_totals(struct exchange *x)
{
	struct msg_totals_reply *reply = &big.totals;
	struct msg_totals_request request;
	struct session_totals totals;
	const struct pool *pool;

	if (DECODE(x, totals_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	memset(reply, 0, sizeof(*reply));
	session_totals_copy(&totals, &pool->segment.header->ended);
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id])
			session_add_totals(pool->sessions[id], &totals);
#define COUNTER(name) reply->name = totals.name;
	SESSION_COUNTERS(COUNTER)
#undef COUNTER
	reply->latencies_count = SESSION_HISTOGRAM;
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		reply->latencies[i].allocations = totals.allocation_ns[i];
		reply->latencies[i].refills = totals.refill_ns[i];
	}
	mover_totals_fill(pool, reply);
	return ENCODE(x, totals_reply, reply);
}

static const struct tenant *tenant_find(const struct pool *pool, const char *name)
{
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		if (!strcmp(pool->tenants[i].config->name, name))
			return &pool->tenants[i];
	return NULL;
}

/* Return a counter. It is negative if a worker has reduced its own counter in the meantime. */
static uint64_t counted(uint64_t count)
{
	return (int64_t)count < 0 ? 0 : count;
}

int answer_tenant_totals(struct exchange *x)
{
	struct msg_tenant_totals_reply *reply = &big.tenant_totals;
	struct msg_tenant_totals_request request;
	const struct tenant *tenant;
	struct usage_totals totals;
	const struct pool *pool;
	uint32_t usage;

	if (DECODE(x, tenant_totals_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	tenant = tenant_find(pool, request.tenant);
	if (!tenant)
		return exchange_fail(x, -ENOENT, "there is no tenant '%s'", request.tenant);
	usage = request.usage;
	if (usage >= BLOCK_USAGES)
		return exchange_fail(x, -EINVAL, "there is no usage %u", usage);
	memset(reply, 0, sizeof(*reply));
	totals = tenant_usage_totals(pool, tenant);
	reply->refusals = tenant->usages[usage].refusals;
	reply->evicted_pages = tenant->usages[usage].evicted_pages;
	reply->hits = counted(totals.hits[usage]);
	reply->misses = counted(totals.misses[usage]);
	reply->latencies_count = SESSION_HISTOGRAM;
	for (int i = 0; i < SESSION_HISTOGRAM; i++)
		reply->latencies[i].allocations = counted(totals.allocation_ns[usage][i]);
	return ENCODE(x, tenant_totals_reply, reply);
}

static void note_finding(void *context, const struct pool_finding *finding)
{
	struct msg_check_reply *reply = context;
	struct msg_finding *entry;

	if (reply->findings_count == sizeof(reply->findings) / sizeof(*reply->findings))
		return;
	entry = &reply->findings[reply->findings_count++];
	entry->session = finding->session;
	entry->page = finding->page;
	snprintf(entry->text, sizeof(entry->text), "%s", finding->text);
}

static void note_fault(void *context, uint32_t session, uint32_t page, const char *text)
{
	struct msg_check_reply *reply = context;
	struct pool_finding finding = {.session = session, .page = page};

	snprintf(finding.text, sizeof(finding.text), "%s", text);
	note_finding(reply, &finding);
	reply->found++;
}

static void check_books(const struct pool *pool, struct msg_check_reply *reply)
{
	uint32_t free_pages = 0, leased = 0, *by_owner = calloc(POOL_SESSIONS, sizeof(*by_owner));
	struct pool_finding finding = {0};

	if (!by_owner)
		return;
	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = pool_word(pool, page);

		free_pages += page_word_state(word) == PAGE_FREE;
		if (page_word_state(word) == PAGE_SHARED)
			continue;
		leased += page_word_owner(word) != 0;
		by_owner[page_word_session(word)]++;
	}
	if (free_pages != pool->free.total) {
		snprintf(finding.text, sizeof(finding.text),
			"%u page%s %s FREE, but the index of free pages contains %u", free_pages, plural(free_pages),
			be(free_pages), pool->free.total);
		note_finding(reply, &finding);
		reply->found++;
	}
	if (leased != pool->leased) {
		snprintf(finding.text, sizeof(finding.text), "%u page%s %s owned, but the agent counts %u as leased",
			leased, plural(leased), be(leased), pool->leased);
		note_finding(reply, &finding);
		reply->found++;
	}
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id] && pool->sessions[id]->leased != by_owner[id]) {
			finding.session = id;
			snprintf(finding.text, sizeof(finding.text),
				"%u page%s %s leased to the session, but the agent counts %u", by_owner[id],
				plural(by_owner[id]), be(by_owner[id]), pool->sessions[id]->leased);
			note_finding(reply, &finding);
			reply->found++;
		}
	free(by_owner);
	trust_check(pool, note_fault, reply);
	objects_check(pool, note_fault, reply);
}

int answer_check(struct exchange *x)
{
	struct msg_check_reply *reply = &big.check;
	struct msg_check_request request;
	struct pool_check check = {.found = note_finding, .context = reply};
	struct pool_check_session *sessions;
	struct pool *pool;
	int count;

	if (DECODE(x, check_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	memset(reply, 0, sizeof(*reply));
	count = pool_check_sessions(pool, &sessions);
	if (count < 0 || pool_check(&pool->segment, sessions, (uint32_t)count, &check) < 0) {
		if (count >= 0)
			free(sessions);
		return exchange_fail(x, -ENOMEM, "the agent is out of memory");
	}
	free(sessions);
	reply->pages = pool->page_count;
	reply->sessions = (uint32_t)count;
	reply->in_transit = check.in_transit;
	reply->found = check.findings;
	check_books(pool, reply);
	return ENCODE(x, check_reply, reply);
}
