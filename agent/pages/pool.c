#include "agent/pages/pool.h"

#include "agent/pages/event.h"
#include "agent/pages/lease.h"
#include "agent/pages/session_state.h"
#include "agent/pages/trust.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t pool_idle_owned(const struct pool *pool)
{
	uint32_t idle = 0;

	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = pool_word(pool, page);
		const struct session *session = pool->sessions[page_word_session(word)];

		idle += session && session->kind == SESSION_WORKER && session->state == SESSION_LIVE &&
			page_word_state(word) == PAGE_LEASED &&
			atomic_load_explicit(&session->segment.free_bits[page / 64], memory_order_relaxed) >>
					(page % 64) &
				1;
	}
	return idle;
}

/* Return the sum of a number over the workers of a pool. */
static uint32_t sum_of_workers(const struct pool *pool, uint32_t (*number)(const struct session *session))
{
	uint32_t sum = 0;

	for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS; id++) {
		const struct session *session = pool->sessions[id];

		if (!session)
			continue;
		left--;
		if (session->kind == SESSION_WORKER && session->state == SESSION_LIVE)
			sum += number(session);
	}
	return sum;
}

uint32_t pool_idle(const struct pool *pool)
{
	/*
	 * If there are many sessions with few pages each, it is cheaper to read each page once than each word of each
	 * session.
	 */
	if ((uint64_t)pool->session_count * ((pool->page_count + 63) / 64) > pool->page_count)
		return pool_idle_owned(pool);
	return sum_of_workers(pool, lease_idle);
}

/*
 * Return the number of a session's offered pages, as counted by its worker, but at most the number of its leased pages,
 * because the agent may have taken some.
 */
static uint32_t session_offered(const struct session *session)
{
	uint32_t offered = atomic_load_explicit(&session->segment.header->offered_pages, memory_order_relaxed);

	return offered < session->leased ? offered : session->leased;
}

/*
 * Return the number of pages that the agent may take without an effect on their owners' work: offered or released pages
 * of ranges, and prefixes that no sequence uses.
 */
static uint32_t pool_offered(const struct pool *pool)
{
	return (pool->evict.source ? pool->evict.source->offered(pool) : 0) + sum_of_workers(pool, session_offered);
}

uint32_t pool_utilization(const struct pool *pool)
{
	uint32_t normal = pool->segment.header->reserved_first, away = normal - pool->free.total;
	uint64_t idle = (uint64_t)pool_idle(pool) + pool_offered(pool);

	/* Both numbers are reported by workers, so they are limited before use. */
	if (!normal)
		return 100;
	return (uint32_t)((idle < away ? away - idle : 0) * 100 / normal);
}

void pool_update_pressure(struct pool *pool)
{
	const struct config *config = &pool->agent->config;
	uint32_t percent = pool_utilization(pool), now;
	uint32_t was = atomic_load_explicit(&pool->segment.header->pressure, memory_order_relaxed);

	now = percent >= config->pressure.critical_percent   ? POOL_PRESSURE_CRITICAL
		: percent >= config->pressure.high_percent   ? POOL_PRESSURE_HIGH
		: percent >= config->pressure.medium_percent ? POOL_PRESSURE_MEDIUM
							     : POOL_PRESSURE_LOW;
	if (pool->short_waiters)
		now = POOL_PRESSURE_CRITICAL;
	if (now == was)
		return;
	atomic_store_explicit(&pool->segment.header->pressure, now, memory_order_relaxed);
	event_publish(pool->agent, EVENT_PRESSURE, pool, 0, now, "pressure is %s at %u %% utilization",
		pool_pressure_name((enum pool_pressure)now), percent);
}

struct tenant *pool_tenant(struct pool *pool, const char *name)
{
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		if (!strcmp(pool->tenants[i].config->name, name))
			return &pool->tenants[i];
	return NULL;
}

/* Restore the limits that poolctl has set. They apply until the next reload, even after a restart of the agent. */
static void limits_restore(struct pool *pool)
{
	for (uint32_t i = 0; i < pool->tenant_count && i < LEDGER_TENANTS; i++) {
		const struct ledger_tenant *note = &pool->ledger.header->tenants[i];

		if (!atomic_load_explicit(&note->changed, memory_order_acquire))
			continue;
		pool->tenants[i].minimum = atomic_load_explicit(&note->minimum, memory_order_relaxed);
		pool->tenants[i].limit = atomic_load_explicit(&note->limit, memory_order_relaxed);
	}
}

static void sampling_publish(struct pool *pool, uint32_t sampling)
{
	uint32_t power = sampling && pool->segment.flight.count ? FLIGHT_SAMPLING_LEAST : 0;

	while (power && power < sampling)
		power *= 2;
	atomic_store_explicit(&pool->segment.header->flight_sampling, power, memory_order_relaxed);
}

/* Publish the settings that the library applies. */
static void defaults_publish(
	const struct pool_segment *segment, const struct config_pool *pool, const struct config *config)
{
	struct pool_header *header = segment->header;

	atomic_store_explicit(&header->pin_timeout_ms, config->pins.timeout_ms, memory_order_relaxed);
	atomic_store_explicit(&header->first_fit, config->lease.strategy == CONFIG_FIRST_FIT, memory_order_relaxed);
	atomic_store_explicit(&header->thread_cache_pages, config->lease.thread_cache_pages, memory_order_relaxed);
	atomic_store_explicit(&header->alignment, (uint32_t)pool->alignment, memory_order_relaxed);
	atomic_store_explicit(&header->promotion_uses, config->adapters.promotion_uses, memory_order_relaxed);
	atomic_store_explicit(&header->compression_ms, config->adapters.compression_ms, memory_order_relaxed);
}

void pool_configure(struct pool *pool)
{
	const struct config *config = &pool->agent->config;

	/* While the agent runs, tenants are only added at the end, so indexes do not change. */
	pool->tenant_count = config->tenant_count;
	for (uint32_t i = 0; i < pool->tenant_count; i++) {
		struct tenant *tenant = &pool->tenants[i];

		tenant->config = &config->tenants[i];
		tenant->domain = trust_domain(pool, tenant->config->domain);
		tenant->minimum =
			config_amount_pages(&tenant->config->minimum, pool->config->page_bytes, pool->page_count);
		tenant->limit = config_amount_pages(&tenant->config->limit, pool->config->page_bytes, pool->page_count);
		if (tenant->limit > pool->page_count)
			tenant->limit = pool->page_count;
	}
	limits_restore(pool);
	sampling_publish(pool, config->flight.sampling);
	defaults_publish(&pool->segment, pool->config, config);
	evict_configure(pool);
}

void pool_limits_note(struct pool *pool, const struct tenant *tenant)
{
	struct ledger_tenant *note = &pool->ledger.header->tenants[tenant - pool->tenants];

	static_assert((int)LEDGER_TENANTS >= (int)CONFIG_TENANTS_MAX, "one for each");
	atomic_store_explicit(&note->minimum, tenant->minimum, memory_order_relaxed);
	atomic_store_explicit(&note->limit, tenant->limit, memory_order_relaxed);
	atomic_store_explicit(&note->changed, 1, memory_order_release);
}

void pool_limits_forget(struct pool *pool)
{
	for (uint32_t i = 0; i < LEDGER_TENANTS; i++)
		atomic_store_explicit(&pool->ledger.header->tenants[i].changed, 0, memory_order_release);
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id]) {
			pool->sessions[id]->limit = pool->sessions[id]->quota;
			atomic_store_explicit(
				&pool->ledger.sessions[id].limit, pool->sessions[id]->quota, memory_order_relaxed);
		}
}

int pools_minima_fit(const struct agent *agent, const struct config *next, char *text, size_t text_bytes)
{
	for (uint32_t p = 0; p < agent->pool_count; p++) {
		const struct pool *pool = agent->pools[p];
		uint64_t sum = 0;

		for (uint32_t i = 0; i < next->tenant_count; i++) {
			const struct config_tenant *tenant = &next->tenants[i];
			uint32_t minimum = config_amount_pages(
				&tenant->minimum, pool->segment.header->page_bytes, pool->page_count);
			uint32_t limit =
				config_amount_pages(&tenant->limit, pool->segment.header->page_bytes, pool->page_count);

			sum += minimum;
			if (minimum <= limit)
				continue;
			snprintf(text, text_bytes,
				"the minimum of tenant '%s' in pool '%s', %u page%s, exceeds its limit of %u page%s",
				tenant->name, pool->segment.header->name, minimum, plural(minimum), limit,
				plural(limit));
			return -ERANGE;
		}
		if (sum <= pool->segment.header->reserved_first)
			continue;
		snprintf(text, text_bytes,
			"the sum of the minima of all tenants is %llu page%s, but pool '%s' can lease %u; lower the "
			"minima",
			(unsigned long long)sum, plural(sum), pool->segment.header->name,
			pool->segment.header->reserved_first);
		return -ERANGE;
	}
	return 0;
}

int pool_check_sessions(const struct pool *pool, struct pool_check_session **sessions)
{
	int count = 0;

	*sessions = calloc(pool->session_count + 1, sizeof(**sessions));
	if (!*sessions)
		return -ENOMEM;
	for (uint32_t id = 1; id < POOL_SESSIONS && (uint32_t)count < pool->session_count; id++)
		if (pool->sessions[id])
			(*sessions)[count++] = (struct pool_check_session){id, &pool->sessions[id]->segment};
	return count;
}
