/*
 * offline.c - compute the replies of status, pages, pins, clients, objects, roles, transfers, regions and check from
 * pieces.
 */
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/pieces.h"

#include "proto/codec.h"
#include "proto/view.h"
#include "shm/page_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LEAKED_AFTER_MS = 30000 }; /* default of pins.max_duration; the configured value is not in shared memory */

struct offline_pool {
	char name[64]; /* clean text */
	struct pool_segment pool;
	uint32_t count; /* number of sessions */
	struct pool_check_session *sessions;
	struct session_segment *segments;                   /* [count], referenced by sessions[] */
	const struct session_segment *by_id[POOL_SESSIONS]; /* NULL: none */
};

struct offline {
	struct pieces pieces;
	uint32_t pool_count;
	struct offline_pool pools[PIECE_POOLS_MAX];
};

/* Copy a name from shared memory, which may lack its NUL and might not be text. */
static void text_copy(char *to, size_t size, const char *from, size_t bytes)
{
	char raw[POOL_NAME_BYTES + 1] = "";

	memcpy(raw, from, bytes < POOL_NAME_BYTES ? bytes : POOL_NAME_BYTES);
	msg_text_copy(to, size, raw);
}

/* Open a session. A read-only session has a segment of zero pages. */
static int session_open(const struct piece *piece, uint32_t page_count, struct session_segment *segment)
{
	struct stat stat;

	if (fstat(piece->fd, &stat) < 0)
		return -errno;
	if ((uint64_t)stat.st_size == session_layout_of(0).bytes)
		page_count = 0;
	return session_segment_open(piece->fd, page_count, false, segment);
}

static void offline_add_session(struct offline_pool *pool, const struct piece *piece)
{
	struct session_segment *segment = &pool->segments[pool->count];
	int error = session_open(piece, pool->pool.header->page_count, segment);

	if (error) {
		complain("skipping session %u of pool '%s': its table is invalid: %s", piece->session, pool->name,
			strerror(-error));
		return;
	}
	pool->by_id[piece->session] = segment;
	pool->sessions[pool->count++] = (struct pool_check_session){piece->session, segment};
}

static int offline_add_pool(struct offline *offline, const struct piece *piece)
{
	struct offline_pool *pool = &offline->pools[offline->pool_count];
	int error = pool_segment_open(piece->fd, &pool->pool);

	if (error) {
		complain("cannot read the table of pool %u: %s", piece->pool,
			error == -EPROTO ? "this poolctl does not know its layout; use the poolctl that was installed "
					   "with the agent"
				: error == -EBADMSG ? "it is damaged"
						    : strerror(-error));
		return CODE_FAILED;
	}
	text_copy(pool->name, sizeof(pool->name), pool->pool.header->name, sizeof(pool->pool.header->name));
	pool->sessions = memory_or_exit(calloc(POOL_SESSIONS, sizeof(*pool->sessions)));
	pool->segments = memory_or_exit(calloc(POOL_SESSIONS, sizeof(*pool->segments)));
	offline->pool_count++;
	return CODE_OK;
}

static int offline_assemble(struct offline *offline)
{
	const struct piece *pool = NULL;
	int code;

	for (uint32_t i = 0; i < offline->pieces.count; i++) {
		const struct piece *piece = &offline->pieces.list[i];

		if (piece->kind == PIECE_POOL) {
			code = offline_add_pool(offline, piece);
			if (code)
				return code;
			pool = piece;
		} else if (pool && piece->pool == pool->pool) {
			offline_add_session(&offline->pools[offline->pool_count - 1], piece);
		} else {
			complain("skipping session %u: its pool %u is missing", piece->session, piece->pool);
		}
	}
	return CODE_OK;
}

int offline_open(const struct command *command, struct offline **offline)
{
	struct offline *opened = memory_or_exit(calloc(1, sizeof(*opened)));
	int code = command->snapshot ? snapshot_read(command->snapshot, &opened->pieces)
		: command->offline   ? pieces_from_keeper(command, &opened->pieces)
				     : pieces_gather(command, &opened->pieces);

	if (!code)
		code = offline_assemble(opened);
	if (code) {
		offline_close(opened);
		return code;
	}
	*offline = opened;
	return CODE_OK;
}

void offline_close(struct offline *offline)
{
	if (!offline)
		return;
	for (uint32_t i = 0; i < offline->pool_count; i++) {
		struct offline_pool *pool = &offline->pools[i];

		for (uint32_t j = 0; j < pool->count; j++)
			session_segment_close(&pool->segments[j]);
		pool_segment_close(&pool->pool);
		free(pool->sessions);
		free(pool->segments);
	}
	pieces_close(&offline->pieces);
	free(offline);
}

const struct pool_segment *offline_pool(const struct offline *offline, uint32_t index)
{
	return &offline->pools[index].pool;
}

const char *offline_pool_name(const struct offline *offline, uint32_t index)
{
	return offline->pools[index].name;
}

const struct session_segment *offline_session(const struct offline *offline, uint32_t index, uint32_t session)
{
	return offline->pools[index].by_id[session];
}

bool offline_session_name(const struct offline *offline, uint32_t index, uint32_t session, char name[64], uint32_t *pid)
{
	const struct session_record *record = &offline->pools[index].pool.sessions[session];

	if (atomic_load_explicit(&record->state, memory_order_acquire) == SESSION_RECORD_NONE)
		return false;
	text_copy(name, 64, record->name, sizeof(record->name));
	*pid = record->pid;
	return true;
}

uint64_t offline_time_ms(const struct offline *offline)
{
	return offline->pieces.time_ms;
}

void offline_print_source(const struct command *command, const struct offline *offline)
{
	if (offline->pieces.keeper)
		print(command, "offline: read through the descriptors of gpoold, process %d\n",
			(int)offline->pieces.keeper);
	else
		print(command, "offline: the snapshot '%s' of %s\n", command->snapshot,
			time_text(offline->pieces.time_ms).text);
}

/* ---- the state of each page ---- */

/* The page words, copied once so that counts are consistent, and the sessions' claims about their pages. */
struct look {
	const struct offline_pool *pool;
	uint64_t *words;         /* [page_count] */
	struct page_fact *facts; /* [page_count] */
	uint32_t state_pages[PAGE_STATES];
	uint32_t largest_free_run;
	uint32_t leased[POOL_SESSIONS];       /* number of pages per session, according to the page words */
	struct page_uses uses[POOL_SESSIONS]; /* as counted by page_map_count() */
};

static struct look *look_create(const struct offline_pool *pool)
{
	struct look *look = memory_or_exit(calloc(1, sizeof(*look)));
	uint32_t page_count = pool->pool.header->page_count, run = 0;

	look->pool = pool;
	look->words = memory_or_exit(calloc(page_count, sizeof(*look->words)));
	look->facts = memory_or_exit(calloc(page_count, sizeof(*look->facts)));
	page_map_fill(&pool->pool, pool->sessions, pool->count, look->facts);
	page_map_count(look->facts, page_count, look->uses);
	for (uint32_t page = 0; page < page_count; page++) {
		uint64_t word = atomic_load_explicit(&pool->pool.pages[page], memory_order_acquire);
		enum page_state state = page_word_state(word);

		look->words[page] = word;
		if ((unsigned)state < PAGE_STATES)
			look->state_pages[state]++;
		run = state == PAGE_FREE ? run + 1 : 0;
		if (run > look->largest_free_run)
			look->largest_free_run = run;
		look->leased[page_word_session(word)]++;
	}
	return look;
}

static void look_destroy(struct look *look)
{
	if (!look)
		return;
	free(look->words);
	free(look->facts);
	free(look);
}

/* Use the agent's coarse clock, which stops while no agent runs. */
static void page_entry_fill(const struct look *look, uint32_t page, struct msg_page_entry *entry)
{
	const struct page_fact *fact = &look->facts[page];
	uint32_t now_ms = atomic_load_explicit(&look->pool->pool.header->clock_ms, memory_order_relaxed);

	view_page(page, look->words[page], fact, look->pool->by_id[fact->session], now_ms, entry);
}

/* ---- the verbs ---- */

/* Return the pool that --pool names, or the first one; NULL after an error message. */
static const struct offline_pool *pool_pick(const struct command *command, const struct offline *offline)
{
	if (!command->pool)
		return &offline->pools[0];
	for (uint32_t i = 0; i < offline->pool_count; i++)
		if (!strcmp(offline->pools[i].name, command->pool))
			return &offline->pools[i];
	complain("there is no pool '%s'; 'poolctl status --offline' lists the pools", command->pool);
	return NULL;
}

static bool pool_shown(const struct command *command, const struct offline_pool *pool)
{
	return !command->pool || !strcmp(command->pool, pool->name);
}

/*
 * Subtract; return 0 if the result would be negative. Counts may be inconsistent: a session without a table has no
 * known offered or idle pages, and a running agent may have changed page words after the tables were read.
 */
static uint32_t minus(uint32_t from, uint32_t what)
{
	return from > what ? from - what : 0;
}

/* Return the total of one field of struct thread_stats over a session's threads. */
static uint64_t stats_sum(const struct session_segment *segment, size_t field)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < SESSION_STAT_SLOTS; i++)
		sum += atomic_load_explicit(
			(const _Atomic uint64_t *)((const char *)&segment->stats->threads[i] + field),
			memory_order_relaxed);
	return sum;
}
#define STATS_SUM(segment, field) stats_sum((segment), offsetof(struct thread_stats, field))

static void pool_status(const struct offline_pool *from, struct msg_pool_status *to)
{
	const struct pool_header *header = from->pool.header;
	struct look *look = look_create(from);

	strcpy(to->name, from->name);
	text_copy(to->backend, sizeof(to->backend), header->backend, sizeof(header->backend));
	text_copy(to->device, sizeof(to->device), header->device, sizeof(header->device));
	view_pool(header, look->state_pages, to);
	to->largest_free_run = look->largest_free_run;
	to->needed_pages = minus(to->leased_pages, look->uses[0].offered + look->uses[0].idle);
	VIEW_USES(to, &look->uses[0]);
	for (uint32_t i = 0; i < from->count; i++) {
		to->contended_pins += STATS_SUM(&from->segments[i], contended_pins);
		to->pins += STATS_SUM(&from->segments[i], pins);
		to->allocations += STATS_SUM(&from->segments[i], allocations);
	}
	to->sessions = atomic_load(&header->sessions);
	to->waiters = atomic_load(&header->waiters);
	look_destroy(look);
}

int offline_status(const struct command *command, const struct offline *offline, struct msg_status_reply *reply)
{
	memset(reply, 0, sizeof(*reply));
	if (!pool_pick(command, offline))
		return CODE_USAGE;
	reply->incarnation = atomic_load(&offline->pools[0].pool.header->incarnation);
	for (uint32_t i = 0; i < offline->pool_count; i++)
		if (pool_shown(command, &offline->pools[i]))
			pool_status(&offline->pools[i], &reply->pools[reply->pools_count++]);
	return CODE_OK;
}

int offline_pages(const struct command *command, const struct offline *offline, struct pages_view *view)
{
	const struct offline_pool *pool = pool_pick(command, offline);
	struct look *look;

	if (!pool)
		return CODE_USAGE;
	strcpy(view->pool, pool->name);
	view->page_bytes = pool->pool.header->page_bytes;
	view->page_count = pool->pool.header->page_count;
	if (view->first > view->page_count)
		view->first = view->page_count;
	if (view->count > view->page_count - view->first)
		view->count = view->page_count - view->first;
	view->pages = memory_or_exit(calloc(view->count + 1, sizeof(*view->pages)));
	look = look_create(pool);
	for (uint32_t i = 0; i < view->count; i++)
		page_entry_fill(look, view->first + i, &view->pages[i]);
	look_destroy(look);
	return CODE_OK;
}

static void pin_entry(const struct offline_pool *pool, const struct msg_page_entry *page, struct msg_pin_entry *pin)
{
	const struct session_record *record = &pool->pool.sessions[page->owner];

	memset(pin, 0, sizeof(*pin));
	pin->page = page->page;
	pin->page_count = page->block_pages;
	pin->pins = page->pins;
	pin->age_ms = page->idle_ms;
	pin->leaked = page->idle_ms > LEAKED_AFTER_MS && !view_is_of_library(pool->by_id[page->owner], page->page);
	pin->usage = page->usage;
	pin->session = page->owner;
	pin->pid = record->pid;
	pin->owner_id = page->owner_id;
	text_copy(pin->name, sizeof(pin->name), record->name, sizeof(record->name));
}

/*
 * Add the pins of an object. Only the agent knows which sessions have it open, so the pins of its first page are used.
 */
static void object_pins(
	const struct command *command, const struct offline_pool *pool, uint32_t number, struct pins_view *view)
{
	const struct object_record *record = &pool->pool.objects[number];
	uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire), page = record->first_page;
	uint32_t clock_ms = atomic_load(&pool->pool.header->clock_ms);

	if (record->class != OBJECT_PINNABLE || state < OBJECT_CURRENT || state > OBJECT_LEAVING ||
		page >= pool->pool.header->page_count)
		return;
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		const struct session_segment *segment = pool->by_id[id];
		struct msg_pin_entry pin = {.page = page, .page_count = record->pages, .session = id, .object = number};

		if (!segment || page >= segment->page_count)
			continue;
		pin.pins = atomic_load_explicit(&segment->pins[page], memory_order_relaxed);
		pin.age_ms = view_age_ms(clock_ms, atomic_load_explicit(&segment->touch[page], memory_order_relaxed));
		pin.leaked = pin.age_ms > LEAKED_AFTER_MS && record->class == OBJECT_PINNABLE &&
			!view_is_of_library(segment, page);
		pin.pid = pool->pool.sessions[id].pid;
		text_copy(
			pin.name, sizeof(pin.name), pool->pool.sessions[id].name, sizeof(pool->pool.sessions[id].name));
		text_copy(pin.object_name, sizeof(pin.object_name), record->name, sizeof(record->name));
		if (pin.pins && (!command->values[OPTION_LEAKED] || pin.leaked))
			pins_add(view, pool->name, pool->pool.header->page_bytes, &pin);
	}
}

static void pool_pins(const struct command *command, const struct offline_pool *pool, struct pins_view *view)
{
	struct look *look = look_create(pool);

	for (uint32_t page = 0; page < pool->pool.header->page_count; page++) {
		struct msg_page_entry entry;
		struct msg_pin_entry pin;

		if (look->facts[page].use != PAGE_USE_HEAD)
			continue;
		page_entry_fill(look, page, &entry);
		pin_entry(pool, &entry, &pin);
		if (pin.pins && (!command->values[OPTION_LEAKED] || pin.leaked))
			pins_add(view, pool->name, pool->pool.header->page_bytes, &pin);
	}
	for (uint32_t number = 1; number < pool_object_end(&pool->pool); number++)
		object_pins(command, pool, number, view);
	look_destroy(look);
}

int offline_pins(const struct command *command, const struct offline *offline, struct pins_view *view)
{
	if (!pool_pick(command, offline))
		return CODE_USAGE;
	for (uint32_t i = 0; i < offline->pool_count; i++)
		if (pool_shown(command, &offline->pools[i]))
			pool_pins(command, &offline->pools[i], view);
	return CODE_OK;
}

int offline_objects(const struct command *command, const struct offline *offline, struct objects_view *view)
{
	if (!pool_pick(command, offline))
		return CODE_USAGE;
	for (uint32_t i = 0; i < offline->pool_count; i++)
		if (pool_shown(command, &offline->pools[i]))
			objects_add(view, offline->pools[i].name, &offline->pools[i].pool);
	return CODE_OK;
}

static void client_entry(
	const struct offline *offline, const struct look *look, uint32_t id, struct msg_client_entry *to)
{
	const struct offline_pool *pool = look->pool;
	const struct session_record *record = &pool->pool.sessions[id];
	const struct page_uses *uses = &look->uses[id];
	const struct session_segment *segment = pool->by_id[id];

	memset(to, 0, sizeof(*to));
	strcpy(to->pool, pool->name);
	to->session = id;
	to->pid = record->pid;
	to->uid = record->uid;
	to->kind = record->kind;
	to->state = atomic_load_explicit(&record->state, memory_order_acquire) == SESSION_RECORD_CLOSED;
	text_copy(to->name, sizeof(to->name), record->name, sizeof(record->name));
	text_copy(to->tenant, sizeof(to->tenant), record->tenant, sizeof(record->tenant));
	to->age_ms = offline->pieces.time_ms > record->attached_ms ? offline->pieces.time_ms - record->attached_ms : 0;
	to->leased_pages = look->leased[id];
	to->needed_pages = minus(look->leased[id], uses->offered + uses->idle);
	VIEW_USES(to, uses);
	if (!segment)
		return;
	to->allocations = STATS_SUM(segment, allocations);
	to->frees = STATS_SUM(segment, frees);
	to->pins = STATS_SUM(segment, pins);
	to->contended_pins = STATS_SUM(segment, contended_pins);
	to->stale_pins = STATS_SUM(segment, stale_pins);
	to->refills = STATS_SUM(segment, refills);
	to->refusals = STATS_SUM(segment, refusals);
}

int offline_clients(const struct command *command, const struct offline *offline, struct clients_view *view)
{
	if (!pool_pick(command, offline))
		return CODE_USAGE;
	for (uint32_t i = 0; i < offline->pool_count; i++) {
		const struct offline_pool *pool = &offline->pools[i];
		struct look *look;

		if (!pool_shown(command, pool))
			continue;
		look = look_create(pool);
		for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
			if (atomic_load(&pool->pool.sessions[id].state) == SESSION_RECORD_NONE)
				continue;
			view->clients = list_grow(view->clients, view->count, &view->capacity, sizeof(*view->clients));
			client_entry(offline, look, id, &view->clients[view->count++]);
		}
		look_destroy(look);
	}
	return CODE_OK;
}

static void role_entry(const struct offline *offline, const struct offline_pool *pool, const struct role_record *record,
	struct msg_role_entry *entry)
{
	const struct session_record *holder;

	memset(entry, 0, sizeof(*entry));
	strcpy(entry->pool, pool->name);
	text_copy(entry->name, sizeof(entry->name), record->name, sizeof(record->name));
	text_copy(entry->tenant, sizeof(entry->tenant), record->tenant, sizeof(record->tenant));
	view_role(record, offline_time_ms(offline), entry);
	if (!entry->session || entry->session >= POOL_SESSIONS)
		return;
	holder = &pool->pool.sessions[entry->session];
	entry->state = atomic_load(&holder->state) != SESSION_RECORD_LIVE;
	entry->pid = holder->pid;
	text_copy(entry->holder, sizeof(entry->holder), holder->name, sizeof(holder->name));
}

int offline_roles(const struct command *command, const struct offline *offline, struct roles_view *view)
{
	if (!pool_pick(command, offline))
		return CODE_USAGE;
	for (uint32_t i = 0; i < offline->pool_count; i++) {
		const struct offline_pool *pool = &offline->pools[i];

		if (!pool_shown(command, pool))
			continue;
		for (uint32_t index = 0; index < POOL_ROLES; index++) {
			const struct role_record *record = &pool->pool.roles[index];

			if (atomic_load(&record->state) != ROLE_NAMED)
				continue;
			view->roles = list_grow(view->roles, view->count, &view->capacity, sizeof(*view->roles));
			role_entry(offline, pool, record, &view->roles[view->count++]);
		}
	}
	return CODE_OK;
}

/* ---- regions ---- */

enum { REGION_LOOKS = 16 }; /* attempts to read the regions while the worker changes nothing */

static void region_add(const struct offline_pool *pool, const struct session_segment *segment,
	const struct region_row *region, bool changing, struct regions_view *view)
{
	uint32_t now_ms = atomic_load_explicit(&pool->pool.header->clock_ms, memory_order_relaxed);

	view->regions = list_grow(view->regions, view->count, &view->capacity, sizeof(*view->regions));
	view_region(segment, region, changing, now_ms, &view->regions[view->count++]);
}

static void regions_look(
	const struct offline_pool *pool, const struct session_segment *segment, struct regions_view *view)
{
	struct region_look look;
	struct region_row region;

	view->count = view->damaged = 0;
	region_table_look(segment->regions, &look);
	view->head = (struct msg_regions_reply){0};
	view_region_head(&look, &view->head);
	for (uint32_t number = 0; number < look.used; number++) {
		enum region_read read = region_table_read(segment->regions, &look, number, &region);

		view->damaged += read == REGION_READ_DAMAGED;
		if (read == REGION_READ_WHOLE || read == REGION_READ_CHANGING)
			region_add(pool, segment, &region, read == REGION_READ_CHANGING, view);
	}
	view->whole = region_table_stands(segment->regions, &look);
}

int offline_regions(const struct command *command, const struct offline *offline, struct regions_view *view)
{
	const struct offline_pool *pool = offline->pools;
	const struct session_segment *segment;

	/* always terminates: the client, with its pool's name, is from offline_clients() */
	while (strcmp(pool->name, view->client.pool))
		pool++;
	segment = pool->by_id[view->client.session];
	if (!segment || !segment->regions) {
		complain("the table of session %u of pool '%s' is missing%s", view->client.session, pool->name,
			command->snapshot ? ": the snapshot may have been written without root privileges"
					  : ": the session may have just started or ended; try again");
		return CODE_FAILED;
	}
	view->whole = false;
	for (int i = 0; i < REGION_LOOKS && !view->whole; i++)
		regions_look(pool, segment, view);
	return CODE_OK;
}

/* Return the state of an ownerless page that is being transferred to another trust domain; -1: not such a page. */
static int transfer_state(uint64_t word)
{
	if (page_word_owner(word))
		return -1;
	switch (page_word_state(word)) {
	case PAGE_QUARANTINED: return TRANSFER_UNDER_WAY;
	case PAGE_RETIRED: return TRANSFER_RETIRED;
	default: return -1;
	}
}

static void pool_transfers(const struct offline_pool *pool, struct transfers_view *view)
{
	struct msg_transfer_entry *last = NULL;

	for (uint32_t page = 0; page < pool->pool.header->page_count; page++) {
		int state = transfer_state(atomic_load_explicit(&pool->pool.pages[page], memory_order_acquire));

		if (state < 0) {
			last = NULL;
		} else if (last && last->state == (uint32_t)state) {
			last->page_count++;
		} else {
			view->transfers =
				list_grow(view->transfers, view->count, &view->capacity, sizeof(*view->transfers));
			last = &view->transfers[view->count++];
			*last = (struct msg_transfer_entry){.page = page, .page_count = 1, .state = (uint32_t)state};
			strcpy(last->pool, pool->name);
		}
	}
}

int offline_transfers(const struct command *command, const struct offline *offline, struct transfers_view *view)
{
	if (!pool_pick(command, offline))
		return CODE_USAGE;
	for (uint32_t i = 0; i < offline->pool_count; i++)
		if (pool_shown(command, &offline->pools[i]))
			pool_transfers(&offline->pools[i], view);
	return CODE_OK;
}

static void finding_keep(void *context, const struct pool_finding *finding)
{
	struct check_view *view = context;
	struct msg_finding *kept;

	if (view->count == sizeof(view->findings) / sizeof(view->findings[0]))
		return;
	kept = &view->findings[view->count++];
	kept->session = finding->session;
	kept->page = finding->page;
	msg_text_copy(kept->text, sizeof(kept->text), finding->text);
}

int offline_check(const struct offline *offline, uint32_t index, bool quiescent, struct check_view *view)
{
	const struct offline_pool *pool = &offline->pools[index];
	struct pool_check check = {.quiescent = quiescent, .found = finding_keep, .context = view};
	int error;

	memset(view, 0, sizeof(*view));
	strcpy(view->pool, pool->name);
	error = pool_check(&pool->pool, pool->sessions, pool->count, &check);
	if (error < 0) {
		complain("cannot check pool '%s': %s", pool->name, strerror(-error));
		return CODE_FAILED;
	}
	view->pages = pool->pool.header->page_count;
	view->sessions = pool->count;
	view->in_transit = check.in_transit;
	view->found = check.findings;
	return CODE_OK;
}

int offline_pools(const struct command *command, const struct offline *offline, uint32_t *first, uint32_t *count)
{
	const struct offline_pool *pool = pool_pick(command, offline);

	if (!pool)
		return CODE_USAGE;
	*first = (uint32_t)(pool - offline->pools);
	*count = command->pool ? 1 : offline->pool_count;
	return CODE_OK;
}
