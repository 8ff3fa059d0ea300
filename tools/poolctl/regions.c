/* regions.c - list the regions of a worker's gpool_malloc_async(). */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include "shm/region_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(regions)

enum { REGION_LOOKS = 8 }; /* attempts to read the regions while the worker is idle; each is at least a round trip */

/* Totals of the regions with one state */
struct sum {
	uint64_t regions, pages, largest;
};

struct summary {
	struct sum states[REGION_ROW_STATES];
	uint32_t overlapping, changing;
	bool totals_fit; /* true also if the totals cannot be compared */
};

/* ---- reading ---- */

static int region_compare(const void *a, const void *b)
{
	const struct msg_region_entry *one = a, *two = b;

	if (one->address != two->address)
		return one->address < two->address ? -1 : 1;
	return one->id < two->id ? -1 : one->id > two->id;
}

static bool region_known(const struct msg_region_entry *region)
{
	return region->state != REGION_ROW_NONE && region->state < REGION_ROW_STATES;
}

/* Request all parts of the table once. */
static int regions_ask_once(const struct command *command, struct gpool *pool, struct regions_view *view)
{
	static struct msg_regions_reply reply;
	struct msg_regions_request request = {.session = view->client.session};
	int code;

	strcpy(request.pool, view->client.pool);
	view->count = view->damaged = 0;
	do {
		code = agent_get_regions(command, pool, &request, &reply);
		if (code)
			return code;
		if (!request.first)
			view->whole = !(reply.changes & 1);
		else if (reply.changes != view->head.changes)
			view->whole = false;
		for (uint32_t i = 0; i < reply.regions_count; i++) {
			if (!region_known(&reply.regions[i]))
				return agent_bad_answer(command);
			view->regions = list_grow(view->regions, view->count, &view->capacity, sizeof(*view->regions));
			view->regions[view->count++] = reply.regions[i];
		}
		view->damaged += reply.damaged;
		view->head = reply;
		/* each part must begin after the previous part; otherwise the loop might not end */
		if (reply.next && reply.next <= request.first)
			return agent_bad_answer(command);
		request.first = reply.next;
	} while (reply.next);
	return CODE_OK;
}

static int regions_of_agent(const struct command *command, struct clients_view *clients, struct regions_view *view)
{
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	code = agent_clients(command, pool, clients);
	if (!code)
		code = client_pick(command, clients, command->arguments[0], &view->client);
	for (int i = 0; i < REGION_LOOKS && !code && !view->whole; i++)
		code = regions_ask_once(command, pool, view);
	gpool_close(pool);
	return code;
}

static int regions_of_offline(const struct command *command, const struct offline *offline,
	struct clients_view *clients, struct regions_view *view)
{
	int code = offline_clients(command, offline, clients);

	if (!code)
		code = client_pick(command, clients, command->arguments[0], &view->client);
	return code ? code : offline_regions(command, offline, view);
}

/* ---- totals ---- */

static uint64_t bytes_of(const struct regions_view *view, uint64_t pages)
{
	return pages * view->head.page_size;
}

static bool is_last(const struct regions_view *view, const struct msg_region_entry *region)
{
	return region->state == REGION_ROW_ALLOCATED && region->id && region->id == view->head.last_id;
}

/* Return true if a region begins before the end of the regions before it; *end is that end. */
static bool region_overlaps(const struct regions_view *view, const struct msg_region_entry *region, uint64_t *end)
{
	bool overlaps = region->address < *end;

	if (region->address + bytes_of(view, region->page_count) > *end)
		*end = region->address + bytes_of(view, region->page_count);
	return overlaps;
}

static bool totals_fit(const struct regions_view *view, const struct sum *states)
{
	const struct msg_regions_reply *head = &view->head;
	uint64_t mapped = states[REGION_ROW_ALLOCATED].pages + states[REGION_ROW_FREE].pages +
		states[REGION_ROW_PENDING_UNMAP].pages;
	const uint64_t fits[][2] = {
		{bytes_of(view, states[REGION_ROW_ALLOCATED].pages), head->live_bytes},
		{bytes_of(view, states[REGION_ROW_FREE].pages), head->reusable_bytes},
		{bytes_of(view, states[REGION_ROW_PENDING_UNMAP].pages), head->pending_unmap_bytes},
		{bytes_of(view, states[REGION_ROW_HOLE].pages), head->hole_bytes},
		{bytes_of(view, mapped), head->mapped_bytes},
		{bytes_of(view, mapped + states[REGION_ROW_HOLE].pages), head->reserved_bytes},
		{states[REGION_ROW_ALLOCATED].regions, head->live_regions},
		{states[REGION_ROW_FREE].regions, head->reusable_regions},
		{states[REGION_ROW_PENDING_UNMAP].regions, head->pending_unmap_regions},
		{states[REGION_ROW_HOLE].regions, head->hole_regions},
	};
	bool all = true;

	for (size_t i = 0; i < sizeof(fits) / sizeof(fits[0]); i++)
		all &= fits[i][0] == fits[i][1];
	return all;
}

static void summarize(const struct regions_view *view, struct summary *summary)
{
	bool complete = view->whole && !view->head.unlisted && !view->damaged && !view->head.head_damaged;
	uint64_t end = 0;

	memset(summary, 0, sizeof(*summary));
	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_region_entry *region = &view->regions[i];
		struct sum *sum = &summary->states[region->state];

		sum->regions++;
		sum->pages += region->page_count;
		if (region->page_count > sum->largest)
			sum->largest = region->page_count;
		summary->changing += region->changing;
		summary->overlapping += region_overlaps(view, region, &end);
	}
	summary->totals_fit = !complete || totals_fit(view, summary->states);
}

/* Return the sign of a region in the notation of gpool_vm_dump(). */
static const char *sign(const struct regions_view *view, const struct msg_region_entry *region)
{
	if (is_last(view, region))
		return "+";
	switch (region->state) {
	case REGION_ROW_FREE: return "-";
	case REGION_ROW_HOLE: return region->flags & REGION_ROW_MOVING ? "#" : "*";
	case REGION_ROW_PENDING_UNMAP: return "*";
	default: return "";
	}
}

/* Return a text such as "[+10][1][-5][*4]", with a blank where addresses are not contiguous. The caller frees it. */
static char *notation(const struct regions_view *view)
{
	uint64_t end = view->count ? view->regions[0].address : 0;
	char *text;
	size_t bytes;
	FILE *to = memory_or_exit(open_memstream(&text, &bytes));

	for (uint32_t i = 0; i < view->count; i++) {
		const struct msg_region_entry *region = &view->regions[i];

		fprintf(to, "%s[%s%" PRIu32 "]", region->address == end ? "" : " ", sign(view, region),
			region->page_count);
		end = region->address + bytes_of(view, region->page_count);
	}
	if (fclose(to))
		memory_or_exit(NULL);
	return text;
}

/* ---- tables ---- */

static void sum_row(struct table *table, const struct regions_view *view, const char *name, uint64_t regions,
	uint64_t bytes, const struct sum *sum)
{
	table_cell(table, "%s", name);
	table_cell(table, "%" PRIu64, regions);
	table_cell(table, "%" PRIu64, bytes / view->head.page_size);
	table_cell(table, "%s", bytes_text(bytes).text);
	if (sum && sum->regions)
		table_cell(table, "%s", bytes_text(bytes_of(view, sum->largest)).text);
	else
		table_cell(table, "-");
}

static void totals_table(const struct command *command, const struct regions_view *view, const struct summary *summary)
{
	struct table *table = table_create("|>REGIONS|>PAGES|>SIZE|>LARGEST");
	const struct msg_regions_reply *head = &view->head;

	sum_row(table, view, "allocated", head->live_regions, head->live_bytes, &summary->states[REGION_ROW_ALLOCATED]);
	sum_row(table, view, "free", head->reusable_regions, head->reusable_bytes, &summary->states[REGION_ROW_FREE]);
	sum_row(table, view, "pending unmaps", head->pending_unmap_regions, head->pending_unmap_bytes,
		&summary->states[REGION_ROW_PENDING_UNMAP]);
	sum_row(table, view, "mapped", head->live_regions + head->reusable_regions + head->pending_unmap_regions,
		head->mapped_bytes, NULL);
	sum_row(table, view, "holes", head->hole_regions, head->hole_bytes, &summary->states[REGION_ROW_HOLE]);
	sum_row(table, view, "reserved",
		head->live_regions + head->reusable_regions + head->pending_unmap_regions + head->hole_regions,
		head->reserved_bytes, NULL);
	table_print(command, table);
	table_destroy(table);
}

/* A region that a stream freed without a fence is available only to that stream. */
static const char *fence_text(const struct msg_region_entry *region)
{
	if (region->fence)
		return region->fence_signaled ? "signaled" : "pending";
	return region->stream && (region->state == REGION_ROW_FREE || region->state == REGION_ROW_PENDING_UNMAP)
		? "none yet"
		: "-";
}

static void notes_cell(
	struct table *table, const struct regions_view *view, const struct msg_region_entry *region, bool overlaps)
{
	const struct {
		const char *text;
		bool holds;
	} notes[] = {
		{"last", is_last(view, region)},
		{"reclaimable", region->flags & REGION_ROW_RECLAIMABLE},
		{"captured", region->flags & REGION_ROW_CAPTURED},
		{"moving", region->flags & REGION_ROW_MOVING},
		{"was being changed", region->changing},
		{"overlaps", overlaps},
	};
	char text[80] = "";
	size_t at = 0;

	for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
		if (notes[i].holds)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", at ? ", " : "", notes[i].text);
	table_cell_color(table, region->changing || overlaps ? COLOR_RED : COLOR_NONE, "%s", text);
}

static void region_line(
	struct table *table, const struct regions_view *view, const struct msg_region_entry *region, bool overlaps)
{
	static const enum color colors[REGION_ROW_STATES] = {
		[REGION_ROW_ALLOCATED] = COLOR_GREEN,
		[REGION_ROW_PENDING_UNMAP] = COLOR_YELLOW,
		[REGION_ROW_HOLE] = COLOR_DIM,
	};

	table_cell(table, "%#" PRIx64, region->address);
	table_cell(table, "%" PRIu32, region->page_count);
	table_cell(table, "%s", bytes_text(bytes_of(view, region->page_count)).text);
	table_cell_color(table, colors[region->state], "%s", region_row_state_name(region->state));
	if (region->stream)
		table_cell(table, "%" PRIu32, region->stream);
	else
		table_cell(table, "-");
	table_cell(table, "%s", fence_text(region));
	table_cell(table, "%" PRIu64, region->id);
	table_cell(table, "%s", age_text(region->age_ms).text);
	notes_cell(table, view, region, overlaps);
}

static void regions_table(const struct command *command, const struct regions_view *view)
{
	struct table *table = table_create("ADDRESS|>PAGES|>SIZE|STATE|>STREAM|FENCE|>ID|>AGE|NOTES");
	uint64_t end = 0;

	for (uint32_t i = 0; i < view->count; i++)
		region_line(table, view, &view->regions[i], region_overlaps(view, &view->regions[i], &end));
	table_print(command, table);
	table_destroy(table);
}

/* Print anything that makes the list incomplete or inconsistent. */
static void reserves_print(
	const struct command *command, const struct regions_view *view, const struct summary *summary)
{
	const char *red = color_code(command, COLOR_RED), *none = color_code(command, COLOR_NONE);

	if (!view->whole)
		print(command,
			"%sthe table was being changed: each line is correct, but the lines may be from different "
			"times%s\n",
			red, none);
	if (view->head.totals_changing)
		print(command, "%sthe totals were being changed and may be inconsistent%s\n", red, none);
	if (summary->changing)
		print(command, "%s%" PRIu32 " region%s %s being changed: the fields may be inconsistent%s\n", red,
			summary->changing, plural(summary->changing), be(summary->changing), none);
	if (view->damaged)
		print(command, "%sdamaged: invalid entries of the table, skipped: %" PRIu32 "%s\n", red, view->damaged,
			none);
	if (summary->overlapping)
		print(command, "%soverlapping regions: %" PRIu32 "%s\n", red, summary->overlapping, none);
	if (!summary->totals_fit)
		print(command, "%sthe totals differ from the sums of the regions below%s\n", red, none);
	if (view->head.unlisted)
		print(command,
			"%" PRIu32
			" region%s, for which the table has no room, %s missing below; the totals include all\n",
			view->head.unlisted, plural(view->head.unlisted), be(view->head.unlisted));
}

static void regions_print(const struct command *command, const struct regions_view *view, const struct summary *summary)
{
	const struct msg_client_entry *client = &view->client;
	char *line;

	print(command, "pool '%s': session %" PRIu32 " '%s', process %" PRIu32, client->pool, client->session,
		client->name, client->pid);
	if (view->head.head_damaged || !view->head.page_size) {
		print(command, ": %s\n",
			view->head.head_damaged ? "its table of regions is damaged"
						: "has not used gpool_malloc_async()");
		return;
	}
	print(command, ", pages of %s\n\n", bytes_text(view->head.page_size).text);
	totals_table(command, view, summary);
	print(command, "\n");
	reserves_print(command, view, summary);
	line = notation(view);
	print(command, "%s\n\n", line);
	free(line);
	regions_table(command, view);
}

/* ---- JSON ---- */

static void region_json(
	cJSON *to, const struct regions_view *view, const struct msg_region_entry *region, bool overlaps)
{
	json_number(to, "address", region->address);
	json_number(to, "pages", region->page_count);
	json_number(to, "bytes", bytes_of(view, region->page_count));
	json_text(to, "state", region_row_state_name(region->state));
	json_bool(to, "last", is_last(view, region));
	json_bool(to, "reclaimable", region->flags & REGION_ROW_RECLAIMABLE);
	json_bool(to, "captured", region->flags & REGION_ROW_CAPTURED);
	json_bool(to, "moving", region->flags & REGION_ROW_MOVING);
	json_bool(to, "changing", region->changing);
	json_bool(to, "overlaps", overlaps);
	json_number(to, "stream", region->stream);
	json_number(to, "fence", region->fence);
	json_bool(to, "fence_signaled", region->fence_signaled);
	json_number(to, "id", region->id);
	json_number(to, "age_ms", region->age_ms);
}

static void totals_json(cJSON *to, const struct regions_view *view, const struct summary *summary)
{
#define NUMBER(field) json_number(to, #field, view->head.field)
	NUMBER(reserved_bytes);
	NUMBER(mapped_bytes);
	NUMBER(live_bytes);
	NUMBER(reusable_bytes);
	NUMBER(reclaimable_bytes);
	NUMBER(pending_unmap_bytes);
	NUMBER(hole_bytes);
	NUMBER(live_regions);
	NUMBER(reusable_regions);
	NUMBER(pending_unmap_regions);
	NUMBER(hole_regions);
#undef NUMBER
	json_number(to, "largest_free_bytes", bytes_of(view, summary->states[REGION_ROW_FREE].largest));
	json_number(to, "largest_hole_bytes", bytes_of(view, summary->states[REGION_ROW_HOLE].largest));
}

static void regions_json(const struct command *command, const struct regions_view *view, const struct summary *summary)
{
	cJSON *document = json_document("regions"), *list;
	char *line = notation(view);
	uint64_t end = 0;

	json_bool(document, "offline", command->offline);
	json_text(document, "pool", view->client.pool);
	json_number(document, "session", view->client.session);
	json_number(document, "pid", view->client.pid);
	json_text(document, "name", view->client.name);
	json_number(document, "page_bytes", view->head.page_size);
	json_bool(document, "whole", view->whole);
	json_bool(document, "totals_changing", view->head.totals_changing);
	json_bool(document, "totals_fit", summary->totals_fit);
	json_bool(document, "damaged", view->head.head_damaged);
	json_number(document, "damaged_entries", view->damaged);
	json_number(document, "overlapping", summary->overlapping);
	json_number(document, "unlisted", view->head.unlisted);
	totals_json(json_object(document, "totals"), view, summary);
	json_text(document, "notation", line);
	list = json_array(document, "regions");
	for (uint32_t i = 0; i < view->count; i++)
		region_json(json_item(list), view, &view->regions[i], region_overlaps(view, &view->regions[i], &end));
	json_print(command, document, false);
	free(line);
}

int regions_run(const struct command *command)
{
	static struct regions_view view;
	struct clients_view clients = {.clients = NULL};
	struct offline *offline = NULL;
	struct summary summary;
	int code = command->offline ? offline_open(command, &offline) : regions_of_agent(command, &clients, &view);

	if (!code && offline)
		code = regions_of_offline(command, offline, &clients, &view);
	if (!code) {
		if (view.count)
			qsort(view.regions, view.count, sizeof(*view.regions), region_compare);
		summarize(&view, &summary);
		if (command->json)
			regions_json(command, &view, &summary);
		else
			regions_print(command, &view, &summary);
	}
	free(view.regions);
	free(clients.clients);
	offline_close(offline);
	return code;
}
