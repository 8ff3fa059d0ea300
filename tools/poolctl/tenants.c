/* tenants.c - list the tenants of the pools, their limits and their use. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include <inttypes.h>

AGENT_GETTER(tenants)

static void tenant_usages(const struct msg_tenant_entry *tenant, uint64_t usages[GPOOL_USAGE_COUNT])
{
	usages[GPOOL_USAGE_KV_CACHE] = tenant->by_usage_0;
	usages[GPOOL_USAGE_LORA_WEIGHT] = tenant->by_usage_1;
	usages[GPOOL_USAGE_TEMP_BUFFER] = tenant->by_usage_2;
	usages[GPOOL_USAGE_ACTIVATION] = tenant->by_usage_3;
	usages[GPOOL_USAGE_GRADIENT] = tenant->by_usage_4;
}

static void tenants_table(const struct command *command, const struct msg_tenants_reply *reply)
{
	struct table *table = table_create("POOL|TENANT|>MINIMUM|>LIMIT|>LEASED|>NEEDED|>OFFERED|>IDLE|>OF "
					   "LIMIT|>BORROWED|>WEIGHT|>PRIORITY|>SESSIONS|>REFUSALS|>EVICTED|"
					   ">KV|>LORA|>TEMP|>ACTIVATION|>GRADIENT");
	uint64_t usages[GPOOL_USAGE_COUNT];

	for (uint32_t i = 0; i < reply->tenants_count; i++) {
		const struct msg_tenant_entry *tenant = &reply->tenants[i];

		table_cell(table, "%s", tenant->pool);
		table_cell(table, "%s", tenant->name);
		table_cell(table, "%" PRIu32, tenant->minimum_pages);
		table_cell(table, "%" PRIu32, tenant->limit_pages);
		table_cell(table, "%" PRIu32, tenant->leased_pages);
		table_cell(table, "%" PRIu32, tenant->needed_pages);
		table_cell(table, "%" PRIu32, tenant->offered_pages);
		table_cell(table, "%" PRIu32, tenant->idle_pages);
		table_cell_color(table, tenant->leased_pages >= tenant->limit_pages ? COLOR_RED : COLOR_NONE, "%s",
			percent_text(tenant->leased_pages, tenant->limit_pages).text);
		table_cell(table, "%" PRIu32, tenant->borrowed_pages);
		table_cell(table, "%" PRIu32, tenant->weight);
		table_cell(table, "%" PRIu32, tenant->priority);
		table_cell(table, "%" PRIu32, tenant->sessions);
		table_cell(table, "%" PRIu64, tenant->refusals);
		table_cell(table, "%" PRIu64, tenant->evicted_pages);
		tenant_usages(tenant, usages);
		for (int usage = 0; usage < GPOOL_USAGE_COUNT; usage++)
			table_cell(table, "%" PRIu64, usages[usage]);
	}
	table_print(command, table);
	table_destroy(table);
}

static void tenants_json(const struct command *command, const struct msg_tenants_reply *reply)
{
	cJSON *document = json_document("tenants"), *list = json_array(document, "tenants");
	uint64_t usages[GPOOL_USAGE_COUNT];

	for (uint32_t i = 0; i < reply->tenants_count; i++) {
		const struct msg_tenant_entry *tenant = &reply->tenants[i];
		cJSON *to = json_item(list), *used;

		json_text(to, "pool", tenant->pool);
		json_text(to, "name", tenant->name);
#define NUMBER(field) json_number(to, #field, tenant->field)
		NUMBER(minimum_pages);
		NUMBER(limit_pages);
		NUMBER(weight);
		NUMBER(priority);
		NUMBER(leased_pages);
		NUMBER(needed_pages);
		NUMBER(offered_pages);
		NUMBER(idle_pages);
		NUMBER(borrowed_pages);
		NUMBER(sessions);
		NUMBER(refusals);
		NUMBER(evicted_pages);
#undef NUMBER
		used = json_object(to, "used_pages");
		tenant_usages(tenant, usages);
		for (uint32_t usage = 0; usage < GPOOL_USAGE_COUNT; usage++)
			json_number(used, usage_name(usage), usages[usage]);
	}
	json_print(command, document, false);
}

int tenants_run(const struct command *command)
{
	static struct msg_tenants_reply reply;
	struct msg_tenants_request request = {.pool = ""};
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	if (command->pool)
		agent_pool_name(pool, request.pool);
	code = agent_get_tenants(command, pool, &request, &reply);
	gpool_close(pool);
	if (!code && command->json)
		tenants_json(command, &reply);
	else if (!code)
		tenants_table(command, &reply);
	return code;
}
