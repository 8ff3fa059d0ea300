/* live.c - the event streams of viewers: each message contains the changes since the viewer's last message. */
#include "tools/exporter/live.h"

#include "shm/monotonic.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TICK_NS (1000000000 / LIVE_HZ)

enum { STATE_TICKS = LIVE_HZ / 2, BEAT_TICKS = 2 * LIVE_HZ };

struct viewer {
	struct live *live;
	char pool[64];
	uint64_t ticks, next_ns, sent; /* sent: number of the last notice */
	uint32_t count;                /* pages in `has`; 0: nothing sent yet */
	struct msg_page_kind *has;
	char *text;
	size_t bytes, given;
};

/* ---- pages ---- */

static bool same(struct msg_page_kind a, struct msg_page_kind b)
{
	return a.kind == b.kind && a.tenant == b.tenant;
}

/* Print the runs of equal pages that differ from the viewer's data: first, count, kind, tenant. */
static void runs_print(FILE *to, struct viewer *viewer, const struct page_kinds *kinds)
{
	const char *comma = "";

	for (uint32_t page = 0; page < kinds->count;) {
		uint32_t end = page + 1;

		if (viewer->count && same(viewer->has[page], kinds->pages[page])) {
			page++;
			continue;
		}
		/* An unchanged page does not end a run: a further run costs more than the page. */
		while (end < kinds->count && same(kinds->pages[end], kinds->pages[page]))
			end++;
		fprintf(to, "%s%" PRIu32 ",%" PRIu32 ",%u,%u", comma, page, end - page, kinds->pages[page].kind,
			kinds->pages[page].tenant);
		comma = ",";
		page = end;
	}
}

static void pages_print(FILE *to, struct viewer *viewer, const struct page_kinds *kinds)
{
	size_t bytes = kinds->count * sizeof(*viewer->has);

	if (viewer->count != kinds->count) {
		struct msg_page_kind *has = realloc(viewer->has, bytes);

		if (!has)
			return;
		viewer->has = has;
		viewer->count = 0;
	} else if (!memcmp(viewer->has, kinds->pages, bytes)) {
		return;
	}
	fprintf(to, "event: pages\ndata: {\"count\":%" PRIu32 ",\"runs\":[", kinds->count);
	runs_print(to, viewer, kinds);
	fputs("]}\n\n", to);
	memcpy(viewer->has, kinds->pages, bytes);
	viewer->count = kinds->count;
}

/* ---- numbers ---- */

static void number(cJSON *object, const char *name, double value)
{
	cJSON_AddNumberToObject(object, name, value);
}

static void objects_add(cJSON *pool, const struct pool_sample *sample)
{
	static const char *const names[OBJECT_CLASSES] = {
		[OBJECT_IMMUTABLE] = "immutable objects",
		[OBJECT_MUTABLE] = "mutable objects",
		[OBJECT_EPHEMERAL] = "ephemeral objects",
		[OBJECT_PINNABLE] = "other pinnable objects",
	};
	cJSON *list = cJSON_AddArrayToObject(pool, "objects"), *entry;

	for (int i = -1; i < OBJECT_CLASSES; i++) {
		struct object_sample of = i < 0 ? sample->adapters : sample->objects[i];

		if (i == OBJECT_PINNABLE) {
			of.versions -= sample->adapters.versions;
			of.pages -= sample->adapters.pages;
		}
		entry = cJSON_CreateObject();
		cJSON_AddStringToObject(entry, "name", i < 0 ? "LoRA adapters" : names[i]);
		number(entry, "versions", of.versions);
		number(entry, "pages", of.pages);
		cJSON_AddItemToArray(list, entry);
	}
}

static void tenants_add(cJSON *pool, const struct sample *sample, const char *name)
{
	cJSON *list = cJSON_AddArrayToObject(pool, "tenants"), *entry;

	for (uint32_t i = 0; i < sample->tenants.tenants_count; i++) {
		const struct msg_tenant_entry *tenant = &sample->tenants.tenants[i];

		if (strcmp(tenant->pool, name))
			continue;
		entry = cJSON_CreateObject();
		cJSON_AddStringToObject(entry, "name", tenant->name);
		number(entry, "minimum", tenant->minimum_pages);
		number(entry, "limit", tenant->limit_pages);
		number(entry, "leased", tenant->leased_pages);
		number(entry, "needed", tenant->needed_pages);
		number(entry, "offered", tenant->offered_pages);
		number(entry, "idle", tenant->idle_pages);
		number(entry, "sessions", tenant->sessions);
		number(entry, "refusals", (double)tenant->refusals);
		number(entry, "evicted", (double)tenant->evicted_pages);
		cJSON_AddItemToArray(list, entry);
	}
}

static cJSON *pool_json(const struct sample *sample, const struct pool_sample *of)
{
	const struct msg_pool_status *status = of->status;
	cJSON *pool = cJSON_CreateObject();

	cJSON_AddStringToObject(pool, "name", status->name);
	cJSON_AddStringToObject(pool, "backend", status->backend);
	number(pool, "page_size", (double)status->page_size);
	number(pool, "count", status->page_count);
	number(pool, "free", status->free_pages);
	number(pool, "leased", status->leased_pages);
	number(pool, "needed", status->needed_pages);
	number(pool, "offered", status->offered_pages);
	number(pool, "idle", status->idle_pages);
	number(pool, "pinned", status->pinned_pages);
	number(pool, "shared", of->state_pages[PAGE_SHARED]);
	number(pool, "pressure", status->pressure);
	number(pool, "waiters", status->waiters);
	number(pool, "sessions", status->sessions);
	number(pool, "evicted_pages", (double)status->evicted_pages);
	number(pool, "refusals", (double)status->refusals);
	number(pool, "leaked_pins", (double)status->leaked_pins);
	number(pool, "spill_memory", (double)status->spill_memory_bytes);
	number(pool, "spill_file", (double)status->spill_file_bytes);
	objects_add(pool, of);
	tenants_add(pool, sample, status->name);
	return pool;
}

static void json_print(FILE *to, const char *event, cJSON *json)
{
	char *text = cJSON_PrintUnformatted(json);

	if (text)
		fprintf(to, "event: %s\ndata: %s\n\n", event, text);
	free(text);
	cJSON_Delete(json);
}

static void state_print(FILE *to, const struct sample *sample)
{
	cJSON *state = cJSON_CreateObject(), *pools = cJSON_AddArrayToObject(state, "pools");

	cJSON_AddBoolToObject(state, "up", sample->up);
	for (uint32_t i = 0; sample->up && i < sample->status.pools_count; i++)
		cJSON_AddItemToArray(pools, pool_json(sample, &sample->pools[i]));
	json_print(to, "state", state);
}

static void notices_print(FILE *to, struct viewer *viewer)
{
	struct notice notice;

	while (notices_next(viewer->live->notices, viewer->sent, &notice)) {
		cJSON *json = cJSON_CreateObject();

		number(json, "time_ms", (double)notice.time_ms);
		cJSON_AddStringToObject(json, "pool", notice.pool);
		cJSON_AddStringToObject(json, "text", notice.text);
		json_print(to, "notice", json);
		viewer->sent = notice.number;
	}
}

/* ---- a viewer ---- */

/* Print the data of a tick. If the viewer has not named a pool, use the first one. */
static void tick_print(FILE *to, struct viewer *viewer)
{
	const struct sample *sample;
	const struct page_kinds *kinds;

	if (viewer->ticks % STATE_TICKS == 0) {
		sample = sampler_look(viewer->live->sampler);
		if (!viewer->pool[0] && sample->up)
			snprintf(viewer->pool, sizeof(viewer->pool), "%s", sample->status.pools[0].name);
		state_print(to, sample);
	} else {
		sampler_hold(viewer->live->sampler);
	}
	kinds = sampler_kinds(viewer->live->sampler, viewer->pool);
	if (kinds)
		pages_print(to, viewer, kinds);
	sampler_done(viewer->live->sampler);
	notices_print(to, viewer);
	/* Send something, to detect a closed connection. */
	if (viewer->ticks % BEAT_TICKS == 0)
		fputs(":\n\n", to);
}

static bool tick(struct viewer *viewer)
{
	FILE *to;

	free(viewer->text);
	viewer->text = NULL;
	viewer->bytes = viewer->given = 0;
	to = open_memstream(&viewer->text, &viewer->bytes);
	if (!to)
		return false;
	tick_print(to, viewer);
	viewer->ticks++;
	return !fclose(to);
}

static void sleep_until(uint64_t ns)
{
	struct timespec until = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR && !http_stopping())
		;
}

static ssize_t viewer_next(void *stream, char *to, size_t room)
{
	struct viewer *viewer = stream;
	size_t bytes;

	while (viewer->given == viewer->bytes) {
		uint64_t now = monotonic_ns();

		if (http_stopping())
			return -1;
		if (now < viewer->next_ns)
			sleep_until(viewer->next_ns);
		else if (now > viewer->next_ns + TICK_NS)
			viewer->next_ns = now; /* a slow viewer skips ticks */
		viewer->next_ns += TICK_NS;
		if (!tick(viewer))
			return -1;
	}
	bytes = viewer->bytes - viewer->given < room ? viewer->bytes - viewer->given : room;
	memcpy(to, viewer->text + viewer->given, bytes);
	viewer->given += bytes;
	return (ssize_t)bytes;
}

static void viewer_end(void *stream)
{
	struct viewer *viewer = stream;

	atomic_fetch_sub(&viewer->live->viewers, 1);
	free(viewer->text);
	free(viewer->has);
	free(viewer);
}

void live_stream(void *context, const struct http_request *request, struct http_answer *answer)
{
	const char *pool = http_argument(request, "pool");
	struct live *live = context;
	struct viewer *viewer;

	if (atomic_fetch_add(&live->viewers, 1) >= LIVE_VIEWERS) {
		atomic_fetch_sub(&live->viewers, 1);
		http_text(answer, 503, "the limit of %d viewers is reached; close another page\n", LIVE_VIEWERS);
		return;
	}
	viewer = calloc(1, sizeof(*viewer));
	if (!viewer) {
		atomic_fetch_sub(&live->viewers, 1);
		http_text(answer, 503, "out of memory\n");
		return;
	}
	viewer->live = live;
	viewer->next_ns = monotonic_ns();
	snprintf(viewer->pool, sizeof(viewer->pool), "%s", pool ? pool : "");
	answer->type = "text/event-stream";
	answer->next = viewer_next;
	answer->end = viewer_end;
	answer->stream = viewer;
}

/* ---- one page ---- */

static void entry_print(struct http_answer *answer, const struct msg_page_entry *entry)
{
	cJSON *json = cJSON_CreateObject();
	char id[24];

	number(json, "page", entry->page);
	number(json, "owner", entry->owner);
	cJSON_AddBoolToObject(json, "object", entry->state == PAGE_SHARED);
	number(json, "block_first", entry->block_first);
	number(json, "block_pages", entry->use >= 3 ? entry->block_pages : 0);
	number(json, "pins", entry->pins);
	number(json, "idle_ms", entry->idle_ms);
	/* The id is a string, because most JSON readers store numbers as doubles. */
	snprintf(id, sizeof(id), "%" PRIu64, entry->owner_id);
	cJSON_AddStringToObject(json, "owner_id", id);
	answer->body = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	if (!answer->body) {
		http_text(answer, 503, "out of memory\n");
		return;
	}
	answer->bytes = strlen(answer->body);
	answer->type = "application/json";
}

void live_detail(void *context, const struct http_request *request, struct http_answer *answer)
{
	const char *pool = http_argument(request, "pool"), *page = http_argument(request, "page");
	struct live *live = context;
	struct msg_page_entry entry;
	char *end;
	unsigned long number;
	int error;

	number = page ? strtoul(page, &end, 10) : 0;
	if (!pool || !page || !page[0] || *end || number > UINT32_MAX) {
		http_text(answer, 400, "specify a pool and a page, as in /api/page?pool=gpu0&page=12\n");
		return;
	}
	sampler_look(live->sampler);
	error = sampler_page(live->sampler, pool, (uint32_t)number, &entry);
	sampler_done(live->sampler);
	if (!error)
		entry_print(answer, &entry);
	else
		http_text(answer, error == -ENOENT || error == -EINVAL ? 404 : 503, "%s\n",
			error == -ENOENT           ? "no such pool"
				: error == -EINVAL ? "no such page"
						   : "the agent does not answer");
}
