/* clients.c - list the sessions and their pages; select a session. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void clients_table(const struct command *command, const struct clients_view *view)
{
	struct table *table = table_create("POOL|>SESSION|KIND|STATE|NAME|TENANT|>PID|>UID|>AGE|>LEASED|>NEEDED|>"
					   "OFFERED|>IDLE|>LIMIT|>ALLOCATIONS|"
					   ">REFUSALS|>EVICTED|>SPILLED|>DAMAGE");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_client_entry *client = &view->clients[i];

		table_cell(table, "%s", client->pool);
		table_cell(table, "%" PRIu32, client->session);
		table_cell(table, "%s", session_kind_name(client->kind));
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
		table_cell(table, "%" PRIu32, client->needed_pages);
		table_cell(table, "%" PRIu32, client->offered_pages);
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

static void client_json(cJSON *to, const struct msg_client_entry *client, bool offline)
{
	json_text(to, "pool", client->pool);
	json_number(to, "session", client->session);
	json_text(to, "kind", session_kind_name(client->kind));
	json_text(to, "state", client->state ? "closed" : "live");
	json_text(to, "name", client->name);
	json_text(to, "tenant", client->tenant);
#define NUMBER(field) json_number(to, #field, client->field)
	NUMBER(pid);
	NUMBER(uid);
	NUMBER(age_ms);
	NUMBER(leased_pages);
	NUMBER(needed_pages);
	NUMBER(offered_pages);
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
	if (offline) /* only the agent knows it */
		json_null(to, "reservation_pages");
	else
		NUMBER(reservation_pages);
#undef NUMBER
}

static void clients_json(const struct command *command, const struct clients_view *view)
{
	cJSON *document = json_document("clients"), *list;

	json_bool(document, "offline", command->offline);
	list = json_array(document, "clients");
	for (uint32_t i = 0; i < view->count; i++)
		client_json(json_item(list), &view->clients[i], command->offline);
	json_print(command, document, false);
}

/* ---- selecting a client ---- */

enum client_by { BY_SESSION, BY_PID, BY_NAME, BY_COUNT };

static bool client_is(const struct msg_client_entry *client, enum client_by by, const char *text)
{
	uint64_t value;

	if (by == BY_NAME)
		return !strcmp(client->name, text);
	return number_parse(text, 1, UINT32_MAX, &value) && value == (by == BY_SESSION ? client->session : client->pid);
}

/* Return the number of workers that match, and the last of them. *looker is set if an observer or admin matches. */
static uint32_t clients_count(const struct clients_view *view, enum client_by by, const char *text,
	const struct msg_client_entry **last, bool *looker)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < view->count; i++) {
		if (!client_is(&view->clients[i], by, text))
			continue;
		if (view->clients[i].kind) {
			*looker = true;
			continue;
		}
		*last = &view->clients[i];
		count++;
	}
	return count;
}

/* Print "session 3 of pool 'p0', process 4242, and session 5 of ...", truncated to the size of the text. */
static void clients_text(const struct clients_view *view, enum client_by by, const char *text, char *to, size_t size)
{
	size_t at = 0;

	for (uint32_t i = 0; i < view->count && at < size; i++) {
		const struct msg_client_entry *client = &view->clients[i];

		if (client->kind || !client_is(client, by, text))
			continue;
		at += (size_t)snprintf(to + at, size - at, "%ssession %" PRIu32 " of pool '%s', process %" PRIu32,
			at ? ", and " : "", client->session, client->pool, client->pid);
	}
}

int client_pick(const struct command *command, const struct clients_view *view, const char *text,
	struct msg_client_entry *client)
{
	const struct msg_client_entry *last;
	bool looker = false;
	char several[400];

	for (enum client_by by = BY_SESSION; by < BY_COUNT; by++) {
		uint32_t count = clients_count(view, by, text, &last, &looker);

		if (count == 1) {
			*client = *last;
			return CODE_OK;
		}
		if (count) {
			clients_text(view, by, text, several, sizeof(several));
			complain("client '%s' is ambiguous: %s; specify one by its session number, and its pool with "
				 "--pool",
				text, several);
			return CODE_USAGE;
		}
	}
	if (looker)
		complain("client '%s' is an observer or admin session; '%s' needs a worker", text, command->verb->name);
	else
		complain("there is no client '%s': no session number, process ID or name matches; 'poolctl clients%s' "
			 "lists the clients",
			text, command->offline ? " --offline" : "");
	return CODE_USAGE;
}

VIEW_FUNCTION(clients_run, clients, agent_clients)
