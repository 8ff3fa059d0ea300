/*
 * status.c - the status of the pools.
 */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/shares.h"

#include "shm/pool_segment.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BAR_CELLS = 64 };

static void bar_print(const struct command *command, const struct msg_pool_status *pool, const struct share *shares)
{
	print(command, "  [");
	for (uint32_t cell = 0; cell < BAR_CELLS; cell++) {
		const struct share *share = shares_at(shares, pool->page_count, cell, BAR_CELLS);

		print(command, "%s%c%s", color_code(command, share->color), share->mark,
			color_code(command, COLOR_NONE));
	}
	print(command, "] %s leased\n", percent_text(pool->leased_pages, pool->page_count).text);
}

static void shares_print(const struct command *command, const struct msg_pool_status *pool, const struct share *shares)
{
	struct table *table = table_create(" |>PAGES|>SIZE|>SHARE|KIND");

	for (int i = 0; i < SHARES; i++) {
		if (!shares[i].pages && i != SHARE_NEEDED && i != SHARE_OFFERED && i != SHARE_IDLE && i != SHARE_FREE)
			continue;
		table_cell(table, "  %c", shares[i].mark);
		table_cell(table, "%" PRIu32, shares[i].pages);
		table_cell(table, "%s", bytes_text(shares[i].pages * pool->page_size).text);
		table_cell(table, "%s", percent_text(shares[i].pages, pool->page_count).text);
		table_cell(table, "%s", shares[i].name);
	}
	table_print(command, table);
	table_destroy(table);
}

static void mover_print(const struct command *command, const struct msg_pool_status *pool)
{
	if (pool->mover_gone_ms)
		print(command,
			"  %sno mover has served%s for %s: %s; meanwhile nothing is spilled, restored or cleared\n",
			color_code(command, COLOR_RED), color_code(command, COLOR_NONE),
			age_text(pool->mover_gone_ms).text, pool->mover_why);
}

/* Print nothing if the pool cannot spill and never has. */
static void spill_print(const struct command *command, const struct msg_pool_status *pool)
{
	if (!command->offline && pool->spill_memory_limit + pool->spill_file_limit)
		print(command, "  spilled: memory %s of %s, file %s of %s; %" PRIu32 " page%s moving\n",
			bytes_text(pool->spill_memory_bytes).text, bytes_text(pool->spill_memory_limit).text,
			bytes_text(pool->spill_file_bytes).text, bytes_text(pool->spill_file_limit).text,
			pool->moving_pages, plural(pool->moving_pages));
	if (pool->spilled_pages || pool->spill_errors)
		print(command, "  pages spilled %" PRIu64 ", restored %" PRIu64 ", %serrors %" PRIu64 "%s\n",
			pool->spilled_pages, pool->restored_pages,
			color_code(command, pool->spill_errors ? COLOR_RED : COLOR_NONE), pool->spill_errors,
			color_code(command, COLOR_NONE));
	if (pool->spill_lost_blocks)
		print(command, "  %s%" PRIu32 " block%s could not be restored%s\n", color_code(command, COLOR_RED),
			pool->spill_lost_blocks, plural(pool->spill_lost_blocks), color_code(command, COLOR_NONE));
}

static void pool_print(const struct command *command, const struct msg_pool_status *pool)
{
	struct share shares[SHARES];

	shares_fill(pool, shares);
	print(command, "\npool '%s': %" PRIu32 " page%s of %s, %s, %s back end%s%s, pressure %s%s%s\n", pool->name,
		pool->page_count, plural(pool->page_count), bytes_text(pool->page_size).text,
		bytes_text(pool->page_count * pool->page_size).text, pool->backend, pool->policy[0] ? ", policy " : "",
		pool->policy, color_code(command, pressure_color(pool->pressure)), pool_pressure_name(pool->pressure),
		color_code(command, COLOR_NONE));
	if (pool->draining)
		print(command, "  %sout of service%s: no worker can attach until 'poolctl drain --off'\n",
			color_code(command, COLOR_YELLOW), color_code(command, COLOR_NONE));
	bar_print(command, pool, shares);
	shares_print(command, pool, shares);
	print(command,
		"  largest free run %" PRIu32 " page%s (%s of the free pages), sessions %" PRIu32
		", requests waiting %" PRIu32 "\n",
		pool->largest_free_run, plural(pool->largest_free_run),
		percent_text(pool->largest_free_run, pool->free_pages).text, pool->sessions, pool->waiters);
	print(command,
		"  pages lent %" PRIu64 ", idle pages reclaimed %" PRIu64 ", evicted %" PRIu64 " in %" PRIu64
		" block%s; refusals %" PRIu64 ", deaths %" PRIu64 ", leaked pins %" PRIu64 "\n",
		pool->grants, pool->reclaims, pool->evicted_pages, pool->evictions, plural(pool->evictions),
		pool->refusals, pool->deaths, pool->leaked_pins);
	if (pool->reservation_pages)
		print(command, "  pages in reservations %" PRIu32 "\n", pool->reservation_pages);
	spill_print(command, pool);
	mover_print(command, pool);
	print(command, "  allocations %" PRIu64 ", pins %" PRIu64 ", contended pins %s", pool->allocations, pool->pins,
		percent_text(pool->contended_pins, pool->pins).text);
	if (!command->offline)
		print(command, "; refill median %s, 99th percentile %s", nanoseconds_text(pool->refill_p50_ns).text,
			nanoseconds_text(pool->refill_p99_ns).text);
	print(command, "\n");
}

static void status_table(const struct command *command, const struct msg_status_reply *reply)
{
	if (!command->offline)
		print(command,
			"agent %" PRIu32 ", up %s, incarnation %" PRIu64 "; front %" PRIu32 ", restarted %" PRIu32
			" time%s\n",
			reply->agent_pid, age_text(reply->uptime_ms).text, reply->incarnation, reply->front_pid,
			reply->front_restarts, plural(reply->front_restarts));
	for (uint32_t i = 0; i < reply->pools_count; i++)
		pool_print(command, &reply->pools[i]);
}

/* Add a ratio from 0 to 1, or null if the divisor is 0. */
static void json_share(cJSON *to, const char *name, uint64_t part, uint64_t whole)
{
	if (whole)
		cJSON_AddNumberToObject(to, name, (double)part / (double)whole);
	else
		json_null(to, name);
}

/* Values that only the agent knows. */
static const char *const spill_names[] = {"spill_memory_bytes", "spill_memory_limit", "spill_file_bytes",
	"spill_file_limit", "spill_lost_blocks", "mover_pid", "cleaning_pages", "reservation_pages", "mover_gone_ms",
	"mover_why"};

static void pool_json(cJSON *to, const struct msg_pool_status *pool, bool offline)
{
	json_text(to, "name", pool->name);
	json_text(to, "backend", pool->backend);
	json_text(to, "device", pool->device);
	json_number(to, "page_bytes", pool->page_size);
	json_text(to, "pressure", pool_pressure_name(pool->pressure));
	json_bool(to, "draining", pool->draining);
#define NUMBER(field) json_number(to, #field, pool->field)
	NUMBER(page_count);
	NUMBER(free_pages);
	NUMBER(leased_pages);
	NUMBER(needed_pages);
	NUMBER(offered_pages);
	NUMBER(idle_pages);
	NUMBER(used_pages);
	NUMBER(pinned_pages);
	NUMBER(quarantined_pages);
	NUMBER(reserved_pages);
	NUMBER(retired_pages);
	NUMBER(largest_free_run);
	NUMBER(sessions);
	NUMBER(waiters);
	NUMBER(grants);
	NUMBER(reclaims);
	NUMBER(evictions);
	NUMBER(evicted_pages);
	NUMBER(refusals);
	NUMBER(deaths);
	NUMBER(leaked_pins);
	NUMBER(contended_pins);
	NUMBER(pins);
	NUMBER(allocations);
	NUMBER(moving_pages);
	NUMBER(spilled_pages);
	NUMBER(restored_pages);
	NUMBER(spill_errors);
	NUMBER(scrubbed_pages);
	NUMBER(retirements);
	/* ratios with the names of the metrics, so that callers need not compute them */
	json_share(to, "pool_utilization", pool->used_pages, pool->page_count);
	json_share(to, "fragmentation_ratio", pool->largest_free_run, pool->free_pages);
	json_share(to, "pin_contention", pool->contended_pins, pool->pins);
	if (offline) {
		json_null(to, "refill_p50_ns");
		json_null(to, "refill_p99_ns");
		json_null(to, "policy");
		for (size_t i = 0; i < sizeof(spill_names) / sizeof(*spill_names); i++)
			json_null(to, spill_names[i]);
		return;
	}
	NUMBER(refill_p50_ns);
	NUMBER(refill_p99_ns);
	NUMBER(spill_memory_bytes);
	NUMBER(spill_memory_limit);
	NUMBER(spill_file_bytes);
	NUMBER(spill_file_limit);
	NUMBER(spill_lost_blocks);
	NUMBER(mover_pid);
	NUMBER(cleaning_pages);
	NUMBER(reservation_pages);
	NUMBER(mover_gone_ms);
#undef NUMBER
	json_text(to, "mover_why", pool->mover_why);
	json_text(to, "policy", pool->policy);
}

static void status_json(
	const struct command *command, const struct msg_status_reply *reply, const struct offline *offline)
{
	cJSON *document = json_document("status"), *pools;

	json_bool(document, "offline", command->offline);
	json_number(document, "incarnation", reply->incarnation);
	if (offline) {
		json_number(document, "time_ms", offline_time_ms(offline));
		json_null(document, "agent_pid");
	} else {
		json_number(document, "uptime_ms", reply->uptime_ms);
		json_number(document, "agent_pid", reply->agent_pid);
		json_number(document, "front_pid", reply->front_pid);
		json_number(document, "front_restarts", reply->front_restarts);
	}
	pools = json_array(document, "pools");
	for (uint32_t i = 0; i < reply->pools_count; i++)
		pool_json(json_item(pools), &reply->pools[i], offline != NULL);
	json_print(command, document, false);
}

static int status_ask(const struct command *command, struct msg_status_reply *reply)
{
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	code = agent_status(command, pool, reply);
	gpool_close(pool);
	return code;
}

int status_run(const struct command *command)
{
	static struct msg_status_reply reply;
	struct offline *offline = NULL;
	int code = command->offline ? offline_open(command, &offline) : status_ask(command, &reply);

	if (!code && offline)
		code = offline_status(command, offline, &reply);
	if (!code && command->json) {
		status_json(command, &reply, offline);
	} else if (!code) {
		if (offline)
			offline_print_source(command, offline);
		status_table(command, &reply);
	}
	offline_close(offline);
	return code;
}
