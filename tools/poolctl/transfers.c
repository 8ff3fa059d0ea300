/*
 * transfers.c - list the pages that are being transferred to another trust domain, and the pages that were retired in a
 * transfer.
 */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(transfers)

static const char *state_name(const struct msg_transfer_entry *entry)
{
	static const char *const names[] = {
		[TRANSFER_WAITS] = "waits",
		[TRANSFER_RETIRED] = "retired",
		[TRANSFER_CLEARED] = "cleared",
		[TRANSFER_UNDER_WAY] = "under way",
	};

	return entry->state < sizeof(names) / sizeof(names[0]) ? names[entry->state] : "?";
}

static void cells_unknown(struct table *table, int count)
{
	while (count--)
		table_cell(table, "-");
}

static void transfers_table(const struct command *command, const struct transfers_view *view)
{
	struct table *table = table_create("POOL|PAGES|STATE|DOMAIN|>SINCE|>HOLDERS|>SESSION|>PID|NAME");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_transfer_entry *entry = &view->transfers[i];

		table_cell(table, "%s", entry->pool);
		if (entry->page_count == 1)
			table_cell(table, "%" PRIu32, entry->page);
		else
			table_cell(table, "%" PRIu32 "-%" PRIu32, entry->page, entry->page + entry->page_count - 1);
		table_cell_color(
			table, entry->state == TRANSFER_RETIRED ? COLOR_RED : COLOR_DIM, "%s", state_name(entry));
		if (command->offline) {
			cells_unknown(table, 6);
			continue;
		}
		table_cell(table, "%s", entry->domain);
		table_cell(table, "%s", age_text(entry->age_ms).text);
		table_cell(table, "%" PRIu32, entry->holders);
		if (entry->session) {
			table_cell(table, "%" PRIu32, entry->session);
			table_cell(table, "%" PRIu32, entry->pid);
			table_cell(table, "%s", entry->name);
		} else {
			cells_unknown(table, 3);
		}
	}
	table_print(command, table);
	table_destroy(table);
}

/*
 * Add the former owners of the pages and the processes that have them mapped. No table that other processes can read
 * has them.
 */
static void entry_details(cJSON *to, const struct msg_transfer_entry *entry, bool known)
{
#define TEXT(field) known ? json_text(to, #field, entry->field) : json_null(to, #field)
#define NUMBER(field) known ? json_number(to, #field, entry->field) : json_null(to, #field)
	TEXT(domain);
	TEXT(name);
	NUMBER(age_ms);
	NUMBER(holders);
	NUMBER(session);
	NUMBER(pid);
#undef NUMBER
#undef TEXT
}

static void transfers_json(const struct command *command, const struct transfers_view *view)
{
	cJSON *document = json_document("transfers"), *list;

	json_bool(document, "offline", command->offline);
	list = json_array(document, "transfers");
	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_transfer_entry *entry = &view->transfers[i];
		cJSON *to = json_item(list);

		json_text(to, "pool", entry->pool);
		json_text(to, "state", state_name(entry));
		json_number(to, "page", entry->page);
		json_number(to, "page_count", entry->page_count);
		entry_details(to, entry, !command->offline);
	}
	json_print(command, document, false);
}

static int transfers_ask(const struct command *command, struct gpool *pool, struct transfers_view *view)
{
	static struct msg_transfers_reply reply;
	struct msg_transfers_request request = {.first_pool = 0};

	if (command->pool)
		agent_pool_name(pool, request.pool);
	do {
		int code = agent_get_transfers(command, pool, &request, &reply);

		if (code)
			return code;
		for (uint32_t i = 0; i < reply.transfers_count; i++) {
			view->transfers =
				list_grow(view->transfers, view->count, &view->capacity, sizeof(*view->transfers));
			view->transfers[view->count++] = reply.transfers[i];
		}
		/* each part must begin after the previous part; otherwise the loop might not end */
		if (reply.more &&
			(reply.next_pool < request.first_pool ||
				(reply.next_pool == request.first_pool && reply.next_page <= request.first_page)))
			return agent_bad_answer(command);
		request.first_pool = reply.next_pool;
		request.first_page = reply.next_page;
	} while (reply.more);
	return CODE_OK;
}

VIEW_FUNCTION(transfers_run, transfers, transfers_ask)
