/* roles.c - list leadership roles with their holders and standbys; remove a role. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(roles)
AGENT_DOER(role_remove)

static const char *state_name(const struct msg_role_entry *role)
{
	return !role->session ? "free" : role->state ? "closed" : "held";
}

static void roles_table(const struct command *command, const struct roles_view *view)
{
	struct table *table =
		table_create("POOL|ROLE|DOMAIN|TENANT|STATE|>SESSION|>PID|HOLDER|>TOKEN|>STANDBYS|>TAKEOVERS|>SINCE");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_role_entry *role = &view->roles[i];

		table_cell(table, "%s", role->pool);
		table_cell(table, "%s", role->name);
		domain_cell(table, role->domain, role->domain_name);
		table_cell(table, "%s", role->tenant);
		table_cell_color(table,
			!role->session        ? COLOR_DIM
				: role->state ? COLOR_YELLOW
					      : COLOR_GREEN,
			"%s", state_name(role));
		if (role->session) {
			table_cell(table, "%" PRIu32, role->session);
			table_cell(table, "%" PRIu32, role->pid);
			table_cell(table, "%s", role->holder);
		} else {
			for (int column = 0; column < 3; column++)
				table_cell(table, "-");
		}
		table_cell(table, "%" PRIu64, role->token);
		table_cell(table, "%" PRIu32, role->standbys);
		table_cell(table, "%" PRIu64, role->takeovers);
		table_cell(table, "%s", age_text(role->age_ms).text);
	}
	table_print(command, table);
	table_destroy(table);
}

static void roles_json(const struct command *command, const struct roles_view *view)
{
	cJSON *document = json_document("roles"), *list;

	json_bool(document, "offline", command->offline);
	list = json_array(document, "roles");
	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_role_entry *role = &view->roles[i];
		cJSON *to = json_item(list);

		json_text(to, "pool", role->pool);
		json_text(to, "name", role->name);
		json_domain(to, role->domain, role->domain_name);
		json_text(to, "tenant", role->tenant);
		json_text(to, "state", state_name(role));
		json_text(to, "holder", role->holder);
#define NUMBER(field) json_number(to, #field, role->field)
		NUMBER(session);
		NUMBER(pid);
		NUMBER(token);
		NUMBER(standbys);
		NUMBER(takeovers);
		NUMBER(age_ms);
#undef NUMBER
	}
	json_print(command, document, false);
}

static int roles_ask(const struct command *command, struct gpool *pool, struct roles_view *view)
{
	static struct msg_roles_reply reply;
	struct msg_roles_request request = {.first = 0};

	if (command->pool)
		agent_pool_name(pool, request.pool);
	do {
		int code = agent_get_roles(command, pool, &request, &reply);

		if (code)
			return code;
		for (uint32_t i = 0; i < reply.roles_count; i++) {
			view->roles = list_grow(view->roles, view->count, &view->capacity, sizeof(*view->roles));
			view->roles[view->count++] = reply.roles[i];
		}
		/* each part must begin after the previous part; otherwise the loop might not end */
		if (reply.next && reply.next <= request.first)
			return agent_bad_answer(command);
		request.first = reply.next;
	} while (reply.next);
	return CODE_OK;
}

static void remove_print(const struct command *command, const struct msg_role_remove_request *request,
	const struct msg_done_reply *reply)
{
	cJSON *document;

	if (command->json) {
		document = json_document("role_remove");
		json_text(document, "pool", request->pool);
		json_text(document, "name", request->name);
		json_number(document, "token", reply->value);
		json_text(document, "text", reply->text);
		json_print(command, document, false);
		return;
	}
	print(command, "pool '%s', role '%s': %s\n", request->pool, request->name, reply->text);
}

static int role_remove_run(const struct command *command)
{
	const char *domain = command->values[OPTION_DOMAIN];
	struct msg_role_remove_request request = {.pool = ""};
	struct msg_done_reply reply;
	struct gpool *pool;
	int code;

	if (command->offline)
		return complain_usage(
			command->verb, "'roles remove' requires an agent and does not work with --offline");
	if (!command->arguments[1][0] || strlen(command->arguments[1]) >= sizeof(request.name))
		return complain_usage(command->verb, "there is no role '%s'", command->arguments[1]);
	strcpy(request.name, command->arguments[1]);
	if (domain && (!*domain || strlen(domain) >= sizeof(request.domain)))
		return complain_usage(command->verb, "there is no trust domain '%s'", domain);
	strcpy(request.domain, domain ? domain : "");
	code = agent_open(command, GPOOL_OPEN_ADMIN, &pool);
	if (code)
		return code;
	agent_pool_name(pool, request.pool);
	code = agent_do_role_remove(command, pool, &request, &reply);
	gpool_close(pool);
	if (!code)
		remove_print(command, &request, &reply);
	return code;
}

static int roles_show(const struct command *command);
VIEW_FUNCTION(roles_show, roles, roles_ask)

int roles_run(const struct command *command)
{
	if (!command->argument_count && command->values[OPTION_DOMAIN])
		return complain_usage(command->verb, "--domain requires 'remove' and the name of a role");
	if (!command->argument_count)
		return roles_show(command);
	if (command->argument_count != 2 || strcmp(command->arguments[0], "remove"))
		return complain_usage(
			command->verb, "'roles' takes either no argument or 'remove' and the name of a role");
	return role_remove_run(command);
}
