/* adapters.c - list LoRA adapters, the named objects that client/lora creates for them. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include "shm/object_names.h"
#include "shm/pool_segment.h"

#include <inttypes.h>
#include <string.h>

/* Return "hot" or "warm", and the adapter's key, derived from the name. NULL: not an adapter. */
static const char *tier_of(const struct object_view *object, const char **key)
{
	static const struct {
		const char *prefix, *tier;
	} tiers[] = {{LORA_PREFIX, "hot"}, {LORA_WARM_PREFIX, "warm"}};

	for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]) && object->memory_class == OBJECT_PINNABLE; i++) {
		size_t length = strlen(tiers[i].prefix);

		*key = object->name + length;
		if (!strncmp(object->name, tiers[i].prefix, length) && **key)
			return tiers[i].tier;
	}
	return NULL;
}

static void adapters_table(const struct command *command, const struct objects_view *view)
{
	struct table *table =
		table_create("POOL|TIER|NAME|KEY|STATE|>PAGES|>SIZE|>READERS|>PINS|>USES|LAST USE|ACCESS|TENANT");

	for (uint32_t i = 0; i < view->count; i++) {
		const struct object_view *object = &view->objects[i];
		const char *key, *tier = tier_of(object, &key);

		if (!tier)
			continue;
		table_cell(table, "%s", object->pool);
		table_cell(table, "%s", tier);
		table_cell(table, "%s", object->label);
		table_cell(table, "%s", key);
		table_cell_color(table, object->state == OBJECT_CURRENT ? COLOR_GREEN : COLOR_DIM, "%s",
			object_state_name(object->state));
		table_cell(table, "%" PRIu32, object->pages);
		table_cell(table, "%s", bytes_text(object->pages * object->page_bytes).text);
		table_cell(table, "%" PRIu32, object->readers);
		table_cell_color(table, object->pins ? COLOR_RED : COLOR_NONE, "%" PRIu32, object->pins);
		table_cell(table, "%" PRIu64, object->uses);
		table_cell(table, "%s", time_text(object->used_ms).text);
		table_cell(table, "%s", object->flags & OBJECT_PRIVATE ? "tenant" : "all");
		table_cell(table, "%s", object->tenant);
	}
	table_print(command, table);
	table_destroy(table);
}

static void adapters_json(const struct command *command, const struct objects_view *view)
{
	cJSON *document = json_document("adapters"), *list;

	json_bool(document, "offline", command->offline);
	list = json_array(document, "adapters");
	for (uint32_t i = 0; i < view->count; i++) {
		const struct object_view *object = &view->objects[i];
		const char *key, *tier = tier_of(object, &key);
		cJSON *to;

		if (!tier)
			continue;
		to = json_item(list);
		json_text(to, "pool", object->pool);
		json_text(to, "tier", tier);
		json_text(to, "name", object->label);
		json_text(to, "key", key);
		json_text(to, "object", object->name);
		json_number(to, "version", object->version);
		json_text(to, "state", object_state_name(object->state));
		json_number(to, "pages", object->pages);
		json_number(to, "page_bytes", object->page_bytes);
		json_number(to, "readers", object->readers);
		json_number(to, "pins", object->pins);
		json_number(to, "uses", object->uses);
		json_number(to, "used_ms", object->used_ms);
		json_number(to, "cost_us", object->cost_us);
		json_bool(to, "private", object->flags & OBJECT_PRIVATE);
		json_text(to, "tenant", object->tenant);
	}
	json_print(command, document, false);
}

int adapters_run(const struct command *command)
{
	return objects_show(command, adapters_table, adapters_json);
}
