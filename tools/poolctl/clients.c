/* clients.c - the sessions and what they hold. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(clients)

static void clients_table(const struct command *command, const struct clients_view *view)
{
	struct table *table = table_create(
		"POOL|>SESSION|ROLE|STATE|NAME|TENANT|>PID|>UID|>AGE|>LEASED|>USED|>PINNED|>IDLE|>LIMIT|>ALLOCATIONS|"
		">REFUSALS|>EVICTED|>SPILLED|>DAMAGE");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_client_entry *client = &view->clients[i];

		table_cell(table, "%s", client->pool);
		table_cell(table, "%" PRIu32, client->session);
		table_cell(table, "%s", role_name(client->role));
		if (client->state)
			table_cell_color(table, COLOR_YELLOW, "closed");
		else
			table_cell(table, "live");
		table_cell(table, "%s", client->name);
		table_cell(table, "%s", client->tenant[0] ? client->tenant : "-");
		table_cell(table, "%" PRIu32, client->pid);
		table_cell(table, "%" PRIu32, client->uid);
		table_cell(table, "%s", age_text(client->age_ms).text);
		table_cell(table, "%" PRIu32, client->leased_pages);
		table_cell(table, "%" PRIu32, client->used_pages);
		table_cell(table, "%" PRIu32, client->pinned_pages);
		table_cell(table, "%" PRIu32, client->idle_pages);
		if (client->limit_pages)
			table_cell(table, "%" PRIu32, client->limit_pages);
		else
			table_cell(table, "-");
		table_cell(table, "%" PRIu64, client->allocations);
		table_cell(table, "%" PRIu64, client->refusals);
		table_cell(table, "%" PRIu64, client->evicted_pages);
		table_cell(table, "%" PRIu32, client->spilled_pages);
		table_cell_color(table, client->damage ? COLOR_RED : COLOR_NONE, "%" PRIu64, client->damage);
	}
	table_print(command, table);
	table_destroy(table);
}

static void client_json(cJSON *to, const struct msg_client_entry *client)
{
	json_text(to, "pool", client->pool);
	json_number(to, "session", client->session);
	json_text(to, "role", role_name(client->role));
	json_text(to, "state", client->state ? "closed" : "live");
	json_text(to, "name", client->name);
	json_text(to, "tenant", client->tenant);
#define NUMBER(field) json_number(to, #field, client->field)
	NUMBER(pid);
	NUMBER(uid);
	NUMBER(age_ms);
	NUMBER(leased_pages);
	NUMBER(idle_pages);
	NUMBER(used_pages);
	NUMBER(pinned_pages);
	NUMBER(limit_pages);
	NUMBER(allocations);
	NUMBER(frees);
	NUMBER(pins);
	NUMBER(contended_pins);
	NUMBER(stale_pins);
	NUMBER(refills);
	NUMBER(refusals);
	NUMBER(evicted_pages);
	NUMBER(reclaimed_pages);
	NUMBER(damage);
	NUMBER(spilled_pages);
#undef NUMBER
}

static void clients_json(const struct command *command, const struct clients_view *view)
{
	cJSON *document = json_document("clients"), *list;

	json_bool(document, "offline", command->offline);
	list = json_array(document, "clients");
	for (uint32_t i = 0; i < view->count; i++)
		client_json(json_item(list), &view->clients[i]);
	json_print(command, document, false);
}

static int clients_ask(const struct command *command, struct clients_view *view)
{
	static struct msg_clients_reply reply;
	struct msg_clients_request request = { .first = 0 };
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	if (command->pool)
		agent_pool_name(pool, request.pool);
	do {
		code = agent_get_clients(command, pool, &request, &reply);
		if (code)
			break;
		for (uint32_t i = 0; i < reply.clients_count; i++) {
			view->clients = list_grow(view->clients, view->count, &view->capacity, sizeof(*view->clients));
			view->clients[view->count++] = reply.clients[i];
		}
		/* each part goes on behind the last one, or it would never end */
		if (reply.next && reply.next <= request.first)
			code = agent_bad_answer(command);
		request.first = reply.next;
	} while (!code && reply.next);
	gpool_close(pool);
	return code;
}

int clients_run(const struct command *command)
{
	struct clients_view view = { .clients = NULL };
	struct offline *offline = NULL;
	int code = command->offline ? offline_open(command, &offline) : clients_ask(command, &view);

	if (!code && offline)
		code = offline_clients(command, offline, &view);
	if (!code && command->output == OUTPUT_JSON)
		clients_json(command, &view);
	else if (!code)
		clients_table(command, &view);
	free(view.clients);
	offline_close(offline);
	return code;
}
