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

/* Return what happens to an adapter: the same words as in enum gpool_lora_activity. */
static const char *activity_of(const struct object_view *object)
{
	switch (object->state) {
	case OBJECT_PUBLISHING: return "loading";
	case OBJECT_CURRENT: return object->pins ? "active" : "idle";
	default: return "evicting";
	}
}

/* ---- totals of the tiers ---- */

enum { TIERS = 2 };

struct tier_view {
	const char *pool, *tier;
	uint32_t adapters, active;
	uint64_t bytes, pool_bytes, evictions;
};

/* Add up the adapters of a tier in a pool. */
static struct tier_view tier_add_up(const struct objects_view *view, const struct adapter_pool *pool, bool hot)
{
	struct tier_view tier = {.pool = pool->name,
		.tier = hot ? "hot" : "warm",
		.pool_bytes = pool->bytes,
		.evictions = hot ? pool->adapter_evictions : pool->copy_evictions};

	for (uint32_t i = 0; i < view->count; i++) {
		const struct object_view *object = &view->objects[i];
		const char *key, *name = tier_of(object, &key);

		if (!name || strcmp(name, tier.tier) != 0 || strcmp(object->pool, pool->name) != 0)
			continue;
		tier.adapters++;
		tier.active += object->pins > 0;
		tier.bytes += object->pages * object->page_bytes;
	}
	return tier;
}

/* Call `show` for each tier of a pool that has, or had, adapters. */
static void tiers_each(
	const struct objects_view *view, void (*show)(void *context, const struct tier_view *tier), void *context)
{
	for (uint32_t i = 0; i < TIERS * view->pool_count; i++) {
		struct tier_view tier = tier_add_up(view, &view->pools[i / TIERS], i % TIERS == 0);

		if (tier.adapters || tier.evictions)
			show(context, &tier);
	}
}

static double share_of(const struct tier_view *tier)
{
	return tier->pool_bytes ? (double)tier->bytes / (double)tier->pool_bytes : 0;
}

static void tier_row(void *context, const struct tier_view *tier)
{
	struct table *table = context;

	table_cell(table, "%s", tier->pool);
	table_cell(table, "%s", tier->tier);
	table_cell(table, "%" PRIu32, tier->adapters);
	table_cell(table, "%" PRIu32, tier->active);
	table_cell(table, "%s", bytes_text(tier->bytes).text);
	table_cell(table, "%s", percent_text(tier->bytes, tier->pool_bytes).text);
	table_cell(table, "%" PRIu64, tier->evictions);
}

static void tier_json(void *context, const struct tier_view *tier)
{
	cJSON *to = json_item(context);

	json_text(to, "pool", tier->pool);
	json_text(to, "tier", tier->tier);
	json_number(to, "adapters", tier->adapters);
	json_number(to, "active", tier->active);
	json_number(to, "bytes", tier->bytes);
	json_number(to, "pool_bytes", tier->pool_bytes);
	json_number(to, "evictions", tier->evictions);
	JSON_FIELDS(to, {"utilization", share_of(tier)});
}

/* ---- adapters ---- */

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
		table_cell_color(
			table, object->state == OBJECT_CURRENT ? COLOR_GREEN : COLOR_DIM, "%s", activity_of(object));
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
	table = table_create("POOL|TIER|>ADAPTERS|>ACTIVE|>SIZE|>OF THE POOL|>EVICTIONS");
	tiers_each(view, tier_row, table);
	print(command, "\n");
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
		json_text(to, "activity", activity_of(object));
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
	tiers_each(view, tier_json, json_array(document, "tiers"));
	json_print(command, document, false);
}

int adapters_run(const struct command *command)
{
	return objects_show(command, adapters_table, adapters_json);
}
