/* pages.c - list the page table, as runs of equal pages. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/map.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include "shm/page_map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(pages)

enum { PAGES_PER_REQUEST = 1024 };

/* The pages that --state and --owner select. */
struct filter {
	int state;  /* enum page_state; -1: any */
	int pinned; /* 1 pinned, 0 unpinned blocks; -1: any */
	uint32_t owner;
	bool by_owner;
};

/* A line of the table: adjacent equal pages. */
struct run {
	const struct msg_page_entry *first;
	uint32_t count;
	uint32_t blocks;
	uint32_t pins;    /* of the block with the most pins */
	uint32_t idle_ms; /* of the most recently used block */
};

static bool in_block(const struct msg_page_entry *page)
{
	return page->use == PAGE_USE_HEAD || page->use == PAGE_USE_INSIDE;
}

static const char *use_name(const struct msg_page_entry *page)
{
	static const char *const names[] = {
		[PAGE_USE_NONE] = "-",
		[PAGE_USE_IDLE] = "idle",
		[PAGE_USE_CACHED] = "cached",
		[PAGE_USE_HEAD] = "block",
		[PAGE_USE_INSIDE] = "block",
		[PAGE_USE_RESERVATION] = "reservation",
	};

	return page->use < sizeof(names) / sizeof(names[0]) ? names[page->use] : "?";
}

/* Return the status for output: PINNED or UNPINNED for a page in a block, otherwise the agent's name of the state. */
static const char *status_name(const struct msg_page_entry *page)
{
	if (page->state == PAGE_LEASED)
		return page->pins ? "PINNED" : "UNPINNED";
	return page_state_name(page->state);
}

static int filter_parse(const struct command *command, struct filter *filter)
{
	const char *state = command->values[OPTION_STATE];
	uint64_t owner;

	*filter = (struct filter){.state = -1, .pinned = -1, .by_owner = command->values[OPTION_OWNER] != NULL};
	if (!command_number(command, OPTION_OWNER, 0, PAGE_SESSION_MAX, 0, &owner))
		return CODE_USAGE;
	filter->owner = (uint32_t)owner;
	if (!state)
		return CODE_OK;
	if (!strcasecmp(state, "PINNED") || !strcasecmp(state, "UNPINNED")) {
		filter->pinned = !strcasecmp(state, "PINNED");
		return CODE_OK;
	}
	for (int i = 0; i < PAGE_STATES; i++)
		if (!strcasecmp(state, page_state_name(i)))
			filter->state = i;
	if (filter->state < 0)
		return complain_usage(command->verb, "unknown state '%s'", state);
	return CODE_OK;
}

static bool filter_passes(const struct filter *filter, const struct msg_page_entry *page)
{
	return (filter->state < 0 || page->state == filter->state) &&
		(!filter->by_owner || (page->owner == filter->owner && page->state != PAGE_SHARED)) &&
		(filter->pinned < 0 || (in_block(page) && (page->pins != 0) == filter->pinned));
}

static bool alike(const struct msg_page_entry *a, const struct msg_page_entry *b)
{
	return a->page + 1 == b->page && a->state == b->state && a->owner == b->owner && in_block(a) == in_block(b) &&
		(in_block(a) ? a->usage == b->usage && !a->pins == !b->pins : a->use == b->use);
}

static void run_add(struct run *run, const struct msg_page_entry *page)
{
	run->count++;
	run->blocks += page->use == PAGE_USE_HEAD;
	if (page->pins > run->pins)
		run->pins = page->pins;
	if (page->idle_ms < run->idle_ms)
		run->idle_ms = page->idle_ms;
}

/* Return the next run of equal pages, from page *at of the view on. Return false if there is none. */
static bool run_next(
	const struct pages_view *view, const struct filter *filter, bool each, uint32_t *at, struct run *run)
{
	while (*at < view->count && !filter_passes(filter, &view->pages[*at]))
		(*at)++;
	if (*at == view->count)
		return false;
	*run = (struct run){.first = &view->pages[*at], .idle_ms = UINT32_MAX};
	do
		run_add(run, &view->pages[*at]);
	while (++*at < view->count && !each && alike(&view->pages[*at - 1], &view->pages[*at]) &&
		filter_passes(filter, &view->pages[*at]));
	return true;
}

static void run_row(struct table *table, const struct pages_view *view, const struct run *run, bool each)
{
	const struct msg_page_entry *page = run->first;

	if (run->count == 1)
		table_cell(table, "%" PRIu32, page->page);
	else
		table_cell(table, "%" PRIu32 "-%" PRIu32, page->page, page->page + run->count - 1);
	table_cell(table, "%s", bytes_text(run->count * view->page_bytes).text);
	table_cell(table, "%s", page_state_name(page->state));
	if (page->state == PAGE_SHARED)
		table_cell(table, "object %u", page->owner);
	else if (page->owner)
		table_cell(table, "%u", page->owner);
	else
		table_cell(table, "-");
	table_cell(table, "%s", use_name(page));
	if (!in_block(page)) {
		for (int i = 0; i < 4; i++)
			table_cell(table, "-");
	} else {
		table_cell(table, "%s", usage_name(page->usage));
		if (each)
			table_cell(table, "%" PRIu32 "+%" PRIu32, page->block_first, page->block_pages);
		else
			table_cell(table, "x%" PRIu32, run->blocks);
		if (run->pins)
			table_cell_color(table, COLOR_RED, "pinned %" PRIu32, run->pins);
		else
			table_cell(table, "unpinned");
		table_cell(table, "%s", age_text(run->idle_ms).text);
	}
	if (each)
		table_cell(table, "%" PRIu64, page->generation);
}

static void pages_table(const struct command *command, const struct pages_view *view, const struct filter *filter)
{
	bool each = command->values[OPTION_EACH] != NULL;
	struct table *table = table_create(each ? "PAGE|>SIZE|STATE|>OWNER|USE|CONTENT|BLOCK|PINS|>UNUSED|>GENERATION"
						: "PAGES|>SIZE|STATE|>OWNER|USE|CONTENT|BLOCKS|PINS|>UNUSED");
	uint32_t at = 0;
	struct run run;

	while (run_next(view, filter, each, &at, &run))
		run_row(table, view, &run, each);
	table_print(command, table);
	table_destroy(table);
}

static void run_json(cJSON *to, const struct run *run, bool each)
{
	const struct msg_page_entry *page = run->first;

	if (each) {
		json_number(to, "page", page->page);
		json_number(to, "generation", page->generation);
	} else {
		json_number(to, "first", page->page);
		json_number(to, "count", run->count);
	}
	json_text(to, "state", page_state_name(page->state));
	json_text(to, "status", status_name(page));
	json_number(to, "owner", page->state == PAGE_SHARED ? 0 : page->owner);
	json_number(to, "object", page->state == PAGE_SHARED ? page->owner : 0);
	json_text(to, "use", page->use == PAGE_USE_NONE ? "none" : use_name(page));
	if (!in_block(page))
		return;
	json_text(to, "usage", usage_name(page->usage));
	json_number(to, "pins", run->pins);
	json_number(to, "idle_ms", run->idle_ms);
	if (each) {
		json_number(to, "block_first", page->block_first);
		json_number(to, "block_pages", page->block_pages);
		json_number(to, "owner_id", page->owner_id);
	} else {
		json_number(to, "blocks", run->blocks);
	}
}

static void pages_json(const struct command *command, const struct pages_view *view, const struct filter *filter)
{
	bool each = command->values[OPTION_EACH] != NULL;
	cJSON *document = json_document("pages"), *list;
	uint32_t at = 0;
	struct run run;

	json_bool(document, "offline", command->offline);
	json_text(document, "pool", view->pool);
	json_number(document, "page_bytes", view->page_bytes);
	json_number(document, "page_count", view->page_count);
	list = json_array(document, each ? "pages" : "runs");
	while (run_next(view, filter, each, &at, &run))
		run_json(json_item(list), &run, each);
	json_print(command, document, false);
}

static void pages_map(const struct command *command, const struct pages_view *view, const struct filter *filter)
{
	uint8_t *kinds = memory_or_exit(calloc(view->count + 1, 1));

	for (uint32_t i = 0; i < view->count; i++)
		kinds[i] =
			(uint8_t)(filter_passes(filter, &view->pages[i]) ? map_kind_of(&view->pages[i]) : MAP_HIDDEN);
	if (command->json)
		map_json(command, view, kinds);
	else
		map_print(command, view, kinds);
	free(kinds);
}

/* Request up to 1,024 pages from view->first + *have on. An answer about other pages is rejected. */
static int pages_ask_some(const struct command *command, struct gpool *pool, struct pages_view *view, uint32_t *have)
{
	static struct msg_pages_reply reply;
	struct msg_pages_request request = {.first = view->first + *have, .count = view->count - *have};
	int code;

	if (request.count > PAGES_PER_REQUEST)
		request.count = PAGES_PER_REQUEST;
	strcpy(request.pool, view->pool);
	code = agent_get_pages(command, pool, &request, &reply);
	if (code)
		return code;
	if (reply.pages_count < 1 || reply.pages_count > request.count)
		return agent_bad_answer(command);
	for (uint32_t i = 0; i < reply.pages_count; i++)
		if (reply.pages[i].page != request.first + i)
			return agent_bad_answer(command);
	memcpy(&view->pages[*have], reply.pages, reply.pages_count * sizeof(reply.pages[0]));
	*have += reply.pages_count;
	return CODE_OK;
}

static int pages_ask(const struct command *command, struct pages_view *view)
{
	struct gpool *pool;
	uint32_t have = 0;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	agent_pool_name(pool, view->pool);
	view->page_bytes = gpool_page_bytes(pool);
	view->page_count = gpool_page_count(pool);
	if (view->first > view->page_count)
		view->first = view->page_count;
	if (view->count > view->page_count - view->first)
		view->count = view->page_count - view->first;
	view->pages = memory_or_exit(calloc(view->count + 1, sizeof(*view->pages)));
	while (!code && have < view->count)
		code = pages_ask_some(command, pool, view, &have);
	gpool_close(pool);
	return code;
}

int pages_run(const struct command *command)
{
	struct pages_view view = {.pages = NULL};
	struct offline *offline = NULL;
	struct filter filter;
	uint64_t first, count;
	int code = filter_parse(command, &filter);

	if (code)
		return code;
	if (command->values[OPTION_MAP] && command->values[OPTION_EACH])
		return complain_usage(command->verb, "--map cannot be combined with --each");
	if (!command_number(command, OPTION_FIRST, 0, UINT32_MAX, 0, &first) ||
		!command_number(command, OPTION_COUNT, 1, UINT32_MAX, UINT32_MAX, &count))
		return CODE_USAGE;
	view.first = (uint32_t)first;
	view.count = (uint32_t)count;
	code = command->offline ? offline_open(command, &offline) : pages_ask(command, &view);
	if (!code && offline)
		code = offline_pages(command, offline, &view);
	if (!code && view.first == view.page_count) {
		complain("pool '%s' has no page %" PRIu64 "; its last page is %" PRIu32, view.pool, first,
			view.page_count - 1);
		code = CODE_USAGE;
	}
	if (!code && command->values[OPTION_MAP])
		pages_map(command, &view, &filter);
	else if (!code && command->json)
		pages_json(command, &view, &filter);
	else if (!code)
		pages_table(command, &view, &filter);
	free(view.pages);
	offline_close(offline);
	return code;
}
