/* pins.c - list pinned blocks and objects, and the sessions that hold the pins. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(pins)

static void pins_table(const struct command *command, const struct pins_view *view)
{
	struct table *table =
		table_create("POOL|>PAGE|>PAGES|>SIZE|CONTENT|>PINS|>AGE| |>SESSION|>PID|NAME|>OWNER ID|OBJECT");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_pin_entry *pin = &view->pins[i].pin;

		table_cell(table, "%s", view->pins[i].pool);
		table_cell(table, "%" PRIu32, pin->page);
		table_cell(table, "%" PRIu32, pin->page_count);
		table_cell(table, "%s", bytes_text(pin->page_count * view->pins[i].page_bytes).text);
		table_cell(table, "%s", pin->object ? "object" : usage_name(pin->usage));
		table_cell(table, "%" PRIu32, pin->pins);
		table_cell(table, "%s", age_text(pin->age_ms).text);
		table_cell_color(table, COLOR_RED, "%s", pin->leaked ? "leaked" : "");
		table_cell(table, "%" PRIu32, pin->session);
		table_cell(table, "%" PRIu32, pin->pid);
		table_cell(table, "%s", pin->name);
		table_cell(table, "%" PRIu64, pin->owner_id);
		table_cell(table, "%s", pin->object ? pin->object_name : "-");
	}
	table_print(command, table);
	table_destroy(table);
}

static void pins_json(const struct command *command, const struct pins_view *view)
{
	cJSON *document = json_document("pins"), *list;

	json_bool(document, "offline", command->offline);
	list = json_array(document, "pins");
	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_pin_entry *pin = &view->pins[i].pin;
		cJSON *to = json_item(list);

		json_text(to, "pool", view->pins[i].pool);
		json_number(to, "page_bytes", view->pins[i].page_bytes);
		json_number(to, "page", pin->page);
		json_number(to, "page_count", pin->page_count);
		json_text(to, "usage", pin->object ? "object" : usage_name(pin->usage));
		json_number(to, "pins", pin->pins);
		json_number(to, "age_ms", pin->age_ms);
		json_bool(to, "leaked", pin->leaked);
		json_number(to, "session", pin->session);
		json_number(to, "pid", pin->pid);
		json_text(to, "name", pin->name);
		json_number(to, "owner_id", pin->owner_id);
		json_text(to, "object", pin->object_name);
	}
	json_print(command, document, false);
}

int pins_ask_pool(
	const struct command *command, struct gpool *pool, const struct msg_pool_status *status, struct pins_view *view)
{
	static struct msg_pins_reply reply;
	struct msg_pins_request request = {.leaked_only = command->values[OPTION_LEAKED] != NULL};
	int code;

	strcpy(request.pool, status->name);
	do {
		code = agent_get_pins(command, pool, &request, &reply);
		if (code)
			return code;
		for (uint32_t i = 0; i < reply.pins_count; i++)
			pins_add(view, status->name, status->page_size, &reply.pins[i]);
		/* each part must begin after the previous part; otherwise the loop might not end */
		if (reply.next_session &&
			(reply.next < request.first ||
				(reply.next == request.first && reply.next_session <= request.first_session)))
			return agent_bad_answer(command);
		request.first = reply.next;
		request.first_session = reply.next_session;
	} while (reply.next_session);
	return CODE_OK;
}

static int pins_ask(const struct command *command, struct gpool *pool, struct pins_view *view)
{
	static struct msg_status_reply status;
	int code = agent_status(command, pool, &status);

	for (uint32_t i = 0; !code && i < status.pools_count; i++)
		code = pins_ask_pool(command, pool, &status.pools[i], view);
	return code;
}

VIEW_FUNCTION(pins_run, pins, pins_ask)
