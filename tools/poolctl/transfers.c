/* transfers.c - pages on their way from one trust domain to another, and those that are retired on that way. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(transfers)

struct transfers {
	struct msg_transfer_entry *entries;
	uint32_t count, capacity;
};

static const char *state_name(const struct msg_transfer_entry *entry)
{
	static const char *const names[] = { "waits", "retired", "cleared" };

	return entry->state < sizeof(names) / sizeof(names[0]) ? names[entry->state] : "?";
}

static void transfers_table(const struct command *command, const struct transfers *all)
{
	struct table *table = table_create("POOL|PAGES|STATE|DOMAIN|>SINCE|>HOLDERS|>SESSION|>PID|NAME");

	for (uint32_t i = 0; i < all->count; i++) {
		const struct msg_transfer_entry *entry = &all->entries[i];

		table_cell(table, "%s", entry->pool);
		if (entry->page_count == 1)
			table_cell(table, "%" PRIu32, entry->page);
		else
			table_cell(table, "%" PRIu32 "-%" PRIu32, entry->page, entry->page + entry->page_count - 1);
		table_cell_color(table, entry->state == 1 ? COLOR_RED : COLOR_DIM, "%s", state_name(entry));
		table_cell(table, "%s", entry->domain);
		table_cell(table, "%s", age_text(entry->age_ms).text);
		table_cell(table, "%" PRIu32, entry->holders);
		if (entry->session) {
			table_cell(table, "%" PRIu32, entry->session);
			table_cell(table, "%" PRIu32, entry->pid);
			table_cell(table, "%s", entry->name);
		} else {
			for (int column = 0; column < 3; column++)
				table_cell(table, "-");
		}
	}
	table_print(command, table);
	table_destroy(table);
}

static void transfers_json(const struct command *command, const struct transfers *all)
{
	cJSON *document = json_document("transfers"), *list = json_array(document, "transfers");

	for (uint32_t i = 0; i < all->count; i++) {
		const struct msg_transfer_entry *entry = &all->entries[i];
		cJSON *to = json_item(list);

		json_text(to, "pool", entry->pool);
		json_text(to, "state", state_name(entry));
		json_text(to, "domain", entry->domain);
		json_text(to, "name", entry->name);
#define NUMBER(field) json_number(to, #field, entry->field)
		NUMBER(page);
		NUMBER(page_count);
		NUMBER(age_ms);
		NUMBER(holders);
		NUMBER(session);
		NUMBER(pid);
#undef NUMBER
	}
	json_print(command, document, false);
}

static int transfers_ask(const struct command *command, struct transfers *all)
{
	static struct msg_transfers_reply reply;
	struct msg_transfers_request request = { .first_pool = 0 };
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	if (command->pool)
		agent_pool_name(pool, request.pool);
	do {
		code = agent_get_transfers(command, pool, &request, &reply);
		if (code)
			break;
		for (uint32_t i = 0; i < reply.transfers_count; i++) {
			all->entries = list_grow(all->entries, all->count, &all->capacity, sizeof(*all->entries));
			all->entries[all->count++] = reply.transfers[i];
		}
		/* each part goes on behind the last one, or it would never end */
		if (reply.more && (reply.next_pool < request.first_pool ||
			(reply.next_pool == request.first_pool && reply.next_page <= request.first_page)))
			code = agent_bad_answer(command);
		request.first_pool = reply.next_pool;
		request.first_page = reply.next_page;
	} while (!code && reply.more);
	gpool_close(pool);
	return code;
}

int transfers_run(const struct command *command)
{
	struct transfers all = { .entries = NULL };
	int code = transfers_ask(command, &all);

	if (!code && command->output == OUTPUT_JSON)
		transfers_json(command, &all);
	else if (!code)
		transfers_table(command, &all);
	free(all.entries);
	return code;
}
