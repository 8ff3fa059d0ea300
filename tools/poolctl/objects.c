/* objects.c - list named objects, and delete an object. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include "client/core/request.h"
#include "shm/pool_segment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name_and_version(const void *left, const void *right)
{
	const struct object_view *a = left, *b = right;
	int order = strcmp(a->pool, b->pool);

	if (!order)
		order = strcmp(a->name, b->name);
	if (!order && a->domain != b->domain)
		order = a->domain < b->domain ? -1 : 1;
	return order ? order : a->version < b->version ? -1 : a->version > b->version;
}

static void pinnable_cells(struct table *table, const struct object_view *object)
{
	if (object->memory_class != OBJECT_PINNABLE) {
		for (int i = 0; i < 4; i++)
			table_cell(table, "-");
		return;
	}
	table_cell(table, "%" PRIu32, object->pins);
	table_cell(table, "%" PRIu64, object->uses);
	table_cell(table, "%s", time_text(object->used_ms).text);
	if (object->cost_us)
		table_cell(table, "%.1f ms", object->cost_us / 1000.0);
	else
		table_cell(table, "-");
}

static void objects_table(const struct command *command, const struct objects_view *view)
{
	struct table *table =
		table_create("POOL|NAME|DOMAIN|>VERSION|STATE|CLASS|>PAGES|>SIZE|>ALLOCATIONS|>METADATA|>READERS|"
			     ">PINS|>USES|LAST USE|>COST|ACCESS|>FOLLOWS|>WRITER|ROLE|"
			     "TENANT|>PID|PUBLISHED|LAYOUT|>NUMBER");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct object_view *object = &view->objects[i];

		table_cell(table, "%s", object->pool);
		table_cell(table, "%s", object->name);
		domain_cell(table, object->domain, object->domain_name);
		table_cell(table, "%" PRIu64, object->version);
		table_cell_color(table, object->state == OBJECT_CURRENT ? COLOR_GREEN : COLOR_DIM, "%s",
			object_state_name(object->state));
		table_cell(table, "%s", object_class_name(object->memory_class));
		table_cell(table, "%" PRIu32, object->pages);
		table_cell(table, "%s", bytes_text(object->pages * object->page_bytes).text);
		table_cell(table, "%" PRIu32, object->allocations);
		table_cell(table, "%s", bytes_text(object->metadata_bytes).text);
		table_cell(table, "%" PRIu32, object->readers);
		pinnable_cells(table, object);
		table_cell(table, "%s",
			object->flags & OBJECT_PRIVATE                ? "tenant"
				: object->flags & OBJECT_DOMAIN_WRITE ? "write"
								      : "all");
		if (object->follows)
			table_cell(table, "%" PRIu32, object->follows);
		else
			table_cell(table, "-");
		if (object->writer)
			table_cell(table, "%" PRIu32, object->writer);
		else
			table_cell(table, "-");
		table_cell(table, "%s", object->role[0] ? object->role : "-");
		table_cell(table, "%s", object->tenant);
		table_cell(table, "%" PRIu32, object->pid);
		table_cell(table, "%s", time_text(object->published_ms).text);
		table_cell(table, "%016" PRIx64, object->layout_hash);
		table_cell(table, "%" PRIu32, object->number);
	}
	table_print(command, table);
	table_destroy(table);
}

static void objects_json(const struct command *command, const struct objects_view *view)
{
	cJSON *document = json_document("objects"), *list;
	char hash[20];

	json_bool(document, "offline", command->offline);
	list = json_array(document, "objects");
	for (uint32_t i = 0; i < view->count; i++) {
		const struct object_view *object = &view->objects[i];
		cJSON *to = json_item(list);

		snprintf(hash, sizeof(hash), "%016" PRIx64, object->layout_hash);
		json_text(to, "pool", object->pool);
		json_text(to, "name", object->name);
		json_domain(to, object->domain, object->domain_name);
		json_number(to, "version", object->version);
		json_text(to, "state", object_state_name(object->state));
		json_text(to, "class", object_class_name(object->memory_class));
		json_number(to, "page_bytes", object->page_bytes);
		json_number(to, "pages", object->pages);
		json_number(to, "allocations", object->allocations);
		json_number(to, "metadata_bytes", object->metadata_bytes);
		json_number(to, "readers", object->readers);
		json_number(to, "pins", object->pins);
		json_number(to, "uses", object->uses);
		json_number(to, "used_ms", object->used_ms);
		json_number(to, "cost_us", object->cost_us);
		json_bool(to, "private", object->flags & OBJECT_PRIVATE);
		json_bool(to, "domain_write", object->flags & OBJECT_DOMAIN_WRITE);
		json_number(to, "follows", object->follows);
		json_number(to, "writer", object->writer);
		json_text(to, "role", object->role);
		json_text(to, "tenant", object->tenant);
		json_number(to, "uid", object->uid);
		json_number(to, "pid", object->pid);
		json_number(to, "published_ms", object->published_ms);
		json_text(to, "layout_hash", hash);
		json_number(to, "number", object->number);
	}
	json_print(command, document, false);
}

AGENT_GETTER(domains)

/* Request the names of the trust domains of a pool, if it separates them, for its objects from the first on. */
static int domains_ask(const struct command *command, struct gpool *pool, struct objects_view *view, uint32_t first)
{
	static struct msg_domains_reply reply;
	struct msg_domains_request request = {.pool = ""};
	bool asked = false;

	for (uint32_t i = first; i < view->count; i++) {
		struct object_view *object = &view->objects[i];
		int code;

		if (!object->domain)
			continue;
		if (!asked) {
			strcpy(request.pool, object->pool);
			code = agent_get_domains(command, pool, &request, &reply);
			if (code)
				return code;
			asked = true;
		}
		if (object->domain <= reply.domains_count)
			strcpy(object->domain_name, reply.domains[object->domain - 1].name);
	}
	return CODE_OK;
}

/*
 * Read each pool's table, which attached processes have mapped. The list of pools, the names of domains and the
 * sessions that hold pins are requested from the agent.
 */
static int objects_ask(const struct command *command, struct objects_view *view)
{
	static struct msg_status_reply status;
	struct pins_view pins = {.pins = NULL};
	struct command of_pool = *command;
	struct gpool *pool;
	uint32_t first;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	code = agent_status(command, pool, &status);
	gpool_close(pool);
	for (uint32_t i = 0; !code && i < status.pools_count; i++) {
		of_pool.pool = status.pools[i].name;
		code = agent_open(&of_pool, GPOOL_OPEN_OBSERVER, &pool);
		if (code)
			break;
		first = view->count;
		objects_add(view, status.pools[i].name, pool_view(pool));
		code = domains_ask(command, pool, view, first);
		if (!code)
			code = pins_ask_pool(&of_pool, pool, &status.pools[i], &pins);
		gpool_close(pool);
	}
	objects_pins(view, &pins);
	free(pins.pins);
	return code;
}

int objects_look(const struct command *command, struct objects_view *view)
{
	struct pins_view pins = {.pins = NULL};
	struct offline *offline = NULL;
	int code = command->offline ? offline_open(command, &offline) : objects_ask(command, view);

	if (!code && offline)
		code = offline_objects(command, offline, view);
	if (!code && offline)
		code = offline_pins(command, offline, &pins);
	objects_pins(view, &pins);
	free(pins.pins);
	offline_close(offline);
	if (!code && view->count)
		qsort(view->objects, view->count, sizeof(*view->objects), by_name_and_version);
	return code;
}

int objects_show(const struct command *command, objects_printer *table, objects_printer *json)
{
	struct objects_view view = {.objects = NULL};
	int code = objects_look(command, &view);

	if (!code)
		(command->json ? json : table)(command, &view);
	free(view.objects);
	free(view.pools);
	return code;
}

int objects_run(const struct command *command)
{
	return objects_show(command, objects_table, objects_json);
}

/* ---- object delete ---- */

static int delete_complain(const char *name, int error, uint64_t version)
{
	switch (error) {
	case -ENOENT: complain("there is no object '%s'; 'poolctl objects' lists the objects", name); return CODE_USAGE;
	case -EINVAL: complain("cannot delete '%s': %s", name, gpool_last_error(error)); return CODE_USAGE;
	case -ESTALE:
		complain("version %" PRIu64 " of object '%s' is not current; 'poolctl objects' lists the versions",
			version, name);
		return CODE_FAILED;
	case -ETIMEDOUT:
		complain("the agent did not answer in time: object '%s' may still be deleted", name);
		return CODE_NO_AGENT;
	case -EPIPE: complain("the agent ended the session: it may be restarting; try again"); return CODE_NO_AGENT;
	default: complain("cannot delete '%s': %s", name, gpool_last_error(error)); return CODE_FAILED;
	}
}

int object_run(const struct command *command)
{
	const char *name = command->arguments[1];
	cJSON *document;
	struct gpool *pool;
	uint64_t version;
	char pool_name[64];
	int code, error;

	if (strcmp(command->arguments[0], "delete"))
		return complain_usage(
			command->verb, "unknown action '%s'; the only action is delete", command->arguments[0]);
	if (!command_number(command, OPTION_OBJECT_VERSION, 1, UINT64_MAX, 0, &version))
		return CODE_USAGE;
	code = agent_open(command, GPOOL_OPEN_ADMIN, &pool);
	if (code)
		return code;
	agent_pool_name(pool, pool_name);
	error = gpool_object_delete(pool, name, version);
	gpool_close(pool);
	if (error)
		return delete_complain(name, error, version);
	if (command->json) {
		document = json_document("object");
		json_text(document, "pool", pool_name);
		json_text(document, "name", name);
		json_text(document, "action", "delete");
		json_print(command, document, false);
	} else {
		print(command, "pool '%s': object '%s' deleted\n", pool_name, name);
	}
	return CODE_OK;
}
