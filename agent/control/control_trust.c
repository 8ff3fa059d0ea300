/*
 * control_trust.c - requests of tools about trust domains, and about pages in transfer between them.
 */
#include "agent/control/exchange.h"
#include "agent/session/session.h"
#include "agent/trust/trust_transfer.h"

#include <stdio.h>
#include <string.h>

static void entry_fill(const struct pool *pool, const struct trust_run *run, struct msg_transfer_entry *entry)
{
	const struct session *session = pool->sessions[run->session];

	snprintf(entry->pool, sizeof(entry->pool), "%s", pool->segment.header->name);
	snprintf(entry->domain, sizeof(entry->domain), "%s", trust_domain_name(pool, run->domain));
	entry->page = run->first;
	entry->page_count = run->count;
	entry->state = run->scrubs ? 2 : run->retired ? 1 : 0;
	entry->age_ms = run->age_ms;
	entry->holders = run->holders;
	if (!session)
		return;
	entry->session = run->session;
	entry->pid = (uint32_t)session->pid;
	snprintf(entry->name, sizeof(entry->name), "%s", session->name);
}

int answer_transfers(struct exchange *x)
{
	static struct msg_transfers_reply reply;
	struct msg_transfers_request request;
	const struct pool *only = NULL;
	struct trust_run run;

	if (DECODE(x, transfers_request, &request))
		return exchange_malformed(x);
	if (request.pool[0] && !(only = exchange_pool(x, request.pool)))
		return exchange_no_pool(x, request.pool);
	memset(&reply, 0, sizeof(reply));
	for (uint32_t p = request.first_pool; p < x->agent->pool_count; p++) {
		const struct pool *pool = x->agent->pools[p];
		uint32_t page = p == request.first_pool ? request.first_page : 0;

		for (; (!only || pool == only) && page < pool->page_count && trust_run_next(pool, page, &run);
			page = run.first + run.count) {
			if (reply.transfers_count == sizeof(reply.transfers) / sizeof(*reply.transfers)) {
				reply.more = 1;
				reply.next_pool = p;
				reply.next_page = run.first;
				return ENCODE(x, transfers_reply, &reply);
			}
			entry_fill(pool, &run, &reply.transfers[reply.transfers_count++]);
		}
	}
	return ENCODE(x, transfers_reply, &reply);
}

int answer_domains(struct exchange *x)
{
	static struct msg_domains_reply reply;
	struct msg_domains_request request;
	const struct pool *pool;

	if (DECODE(x, domains_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	memset(&reply, 0, sizeof(reply));
	for (uint32_t domain = 1; domain <= LEDGER_DOMAINS && trust_domain_name(pool, domain)[0]; domain++)
		snprintf(reply.domains[reply.domains_count++].name, sizeof(reply.domains[0].name), "%s",
			trust_domain_name(pool, domain));
	return ENCODE(x, domains_reply, &reply);
}
