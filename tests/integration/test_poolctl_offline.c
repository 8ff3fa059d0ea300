/*
 * test_poolctl_offline.c - poolctl without an agent: the tables of a stopped agent, and snapshots.
 *
 * Goal: status, pages, pins, clients and check report the content of the tables. No content crashes poolctl. A snapshot
 * yields the same reports as the tables from which it was taken.
 *
 * Method: this process acts as gpoold's keeper. It creates segments with known content, holds their descriptors and
 * writes a pid file. Then it writes wrong values into a worker's segment, the pool's segment and the file.
 *
 * Requirements: O1.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/temporary.h"

#include "shm/object_names.h"
#include "shm/session_segment.h"

#include <signal.h>
#include <sys/stat.h>

/* ---- a keeper without an agent ---- */

enum { PAGES = 200, RESERVED = 10, WORKER = 3, GONE = 5, OBSERVER = 7 };
#define WORKER_TEXT "3"

struct keeper {
	char directory[64];
	char pid_file[96];
	char snapshot[96];
	struct pool_segment pool;
	struct session_segment sessions[3];
	int fds[4];
};

static void page_set(struct keeper *keeper, uint32_t first, uint32_t count, enum page_state state, uint32_t owner)
{
	for (uint32_t page = first; page < first + count; page++) {
		atomic_fetch_sub(&keeper->pool.header->state_pages[page_word_state(keeper->pool.pages[page])], 1);
		atomic_store(&keeper->pool.pages[page], page_word_make(state, owner, 2));
		atomic_fetch_add(&keeper->pool.header->state_pages[state], 1);
	}
}

static void block_set(struct session_segment *session, uint32_t page, uint32_t count, uint64_t tag, uint32_t next)
{
	session->blocks[page].tag = tag;
	session->blocks[page].page_count = count;
	session->blocks[page].next = next;
	session->blocks[page].owner_id = 1000 + page;
}

static void record_set(
	struct keeper *keeper, uint32_t session, enum session_record_state state, uint32_t kind, const char *name)
{
	struct session_record *record = &keeper->pool.sessions[session];

	record->pid = 4000 + session;
	record->uid = 1000;
	record->kind = kind;
	record->attached_ms = 1;
	snprintf(record->name, sizeof(record->name), "%s", name);
	snprintf(record->tenant, sizeof(record->tenant), "default");
	atomic_store(&record->state, state);
}

/*
 * Fill the worker's segment with two pinned blocks, one unpinned block, idle pages, a magazine, a scattered block, and
 * pages in transit.
 */
static void worker_fill(struct session_segment *session)
{
	block_set(session, 0, 4, block_tag_make(1, 0), 0); /* KV_CACHE */
	session->pins[0] = 2;
	session->touch[0] = 99000;
	block_set(session, 4, 4, block_tag_make(2, 0), 0);
	session->pins[4] = 1;
	session->touch[4] = 10000;
	block_set(session, 8, 2, block_tag_make(3, 2), 0); /* TEMP_BUFFER */
	session->touch[8] = 98000;
	session->free_bits[0] = UINT64_C(0x3ff) << 10; /* pages 10 to 19 */
	block_set(session, 20, 4, BLOCK_TAG_CACHED, 0);
	block_set(session, 30, 2, block_tag_make(4, 1 | BLOCK_SCATTERED), 40 + 1); /* LORA_WEIGHT */
	block_set(session, 40, 3, block_tag_make(4, 1 | BLOCK_EXTENT), 0);
	session->stats->threads[0].allocations = 11;
	session->stats->threads[1].allocations = 4;
	session->stats->threads[0].pins = 100;
}

static int keeper_setup(void **state)
{
	const struct pool_geometry geometry = {
		.name = "gpu0",
		.backend = "host",
		.device = "HOST-0",
		.page_bytes = 2 << 20,
		.page_count = PAGES,
		.pages_per_handle = 1,
		.reserved_pages = RESERVED,
	};
	struct keeper *keeper = calloc(1, sizeof(*keeper));
	char text[32];

	assert_non_null(keeper);
	snprintf(keeper->directory, sizeof(keeper->directory), "%s/poolctl.XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(keeper->directory));
	snprintf(keeper->pid_file, sizeof(keeper->pid_file), "%s/gpoold.pid", keeper->directory);
	snprintf(keeper->snapshot, sizeof(keeper->snapshot), "%s/snapshot", keeper->directory);
	file_write(keeper->pid_file, text, (size_t)snprintf(text, sizeof(text), "%d\n", (int)getpid()));
	assert_int_equal(pool_segment_create(&geometry, &keeper->pool, &keeper->fds[0]), 0);
	assert_int_equal(session_segment_create(PAGES, 0, WORKER, 1, &keeper->sessions[0], &keeper->fds[1]), 0);
	assert_int_equal(session_segment_create(PAGES, 0, GONE, 1, &keeper->sessions[1], &keeper->fds[2]), 0);
	assert_int_equal(session_segment_create(0, 0, OBSERVER, 1, &keeper->sessions[2], &keeper->fds[3]), 0);
	keeper->pool.header->clock_ms = 100000;
	keeper->pool.header->pressure = POOL_PRESSURE_HIGH;
	keeper->pool.header->counters[POOL_COUNT_GRANTS] = UINT64_C(9007199254740993); /* 2^53 + 1 */
	page_set(keeper, 0, 64, PAGE_LEASED, WORKER);
	page_set(keeper, 64, 8, PAGE_QUARANTINED, GONE);
	record_set(keeper, WORKER, SESSION_RECORD_LIVE, 0, "engine");
	record_set(keeper, GONE, SESSION_RECORD_CLOSED, 0, "gone");
	record_set(keeper, OBSERVER, SESSION_RECORD_LIVE, 1, "watcher");
	worker_fill(&keeper->sessions[0]);
	*state = keeper;
	return 0;
}

static int keeper_teardown(void **state)
{
	struct keeper *keeper = *state;

	for (int i = 0; i < 3; i++)
		session_segment_close(&keeper->sessions[i]);
	pool_segment_close(&keeper->pool);
	for (int i = 0; i < 4; i++)
		close(keeper->fds[i]);
	unlink(keeper->snapshot);
	unlink(keeper->pid_file);
	rmdir(keeper->directory);
	free(keeper);
	return 0;
}

/* run poolctl VERB --offline on the keeper's folder, with JSON as output */
#define OFFLINE(...) poolctl("-d", keeper->directory, "-o", "json", "--offline", __VA_ARGS__, NULL)

static void test_offline_status(void **state)
{
	struct keeper *keeper = *state;
	struct result result = OFFLINE("status");
	const cJSON *pool;

	expect(&result, OK);
	expect_document(&result, "status");
	assert_int_equal(cJSON_GetArraySize(list(&result, "pools")), 1);
	pool = list(&result, "pools")->child;
	assert_string_equal(string(pool, "name"), "gpu0");
	assert_string_equal(string(pool, "backend"), "host");
	assert_string_equal(string(pool, "pressure"), "high");
	assert_int_equal(number(pool, "page_bytes"), 2 << 20);
	assert_int_equal(number(pool, "page_count"), PAGES);
	assert_int_equal(number(pool, "leased_pages"), 64);
	assert_int_equal(number(pool, "quarantined_pages"), 8);
	assert_int_equal(number(pool, "reserved_pages"), RESERVED);
	assert_int_equal(number(pool, "free_pages"), PAGES - RESERVED - 64 - 8);
	assert_int_equal(number(pool, "largest_free_run"), PAGES - RESERVED - 64 - 8);
	assert_int_equal(number(pool, "idle_pages"), 10 + 4);
	assert_int_equal(number(pool, "offered_pages"), 2 + 5);
	assert_int_equal(number(pool, "needed_pages"), 64 - 10 - 4 - 2 - 5); /* pinned, or in transit */
	assert_int_equal(number(pool, "used_pages"), 4 + 4 + 2 + 5);
	assert_int_equal(number(pool, "pinned_pages"), 8);
	assert_int_equal(number(pool, "allocations"), 15);
	assert_int_equal(number(pool, "pins"), 100);
	/* a number that a double cannot represent is exact in the text */
	expect_text(result.out, "9007199254740993");
	result_free(&result);

	result = poolctl("status", "-d", keeper->directory, "--offline", NULL);
	expect(&result, OK);
	expect_text(result.out, "pool 'gpu0': 200 pages of 2 MiB, 400 MiB, host back end, pressure high");
	expect_text(result.out, "[##");          /* the bar begins with the pinned pages */
	assert_null(strchr(result.out, '\033')); /* no color in a pipe */
	result_free(&result);
}

static void test_offline_pages(void **state)
{
	struct keeper *keeper = *state;
	struct result result = OFFLINE("pages");
	const cJSON *run;

	expect(&result, OK);
	expect_document(&result, "pages");
	run = list(&result, "runs")->child;
	assert_int_equal(number(run, "first"), 0);
	assert_int_equal(number(run, "count"), 8); /* two blocks with equal attributes share a run */
	assert_int_equal(number(run, "blocks"), 2);
	assert_int_equal(number(run, "pins"), 2);
	assert_int_equal(number(run, "owner"), WORKER);
	assert_int_equal(number(run, "idle_ms"), 1000);
	assert_string_equal(string(run, "state"), "LEASED");
	assert_string_equal(string(run, "status"), "PINNED");
	assert_string_equal(string(run, "usage"), "KV_CACHE");
	run = run->next;
	assert_int_equal(number(run, "first"), 8);
	assert_int_equal(number(run, "count"), 2);
	assert_string_equal(string(run, "usage"), "TEMP_BUFFER");
	assert_string_equal(string(run, "status"), "UNPINNED");
	run = run->next;
	assert_int_equal(number(run, "count"), 10);
	assert_string_equal(string(run, "use"), "idle");
	run = run->next;
	assert_int_equal(number(run, "count"), 4);
	assert_string_equal(string(run, "use"), "cached");
	run = run->next;
	assert_int_equal(number(run, "count"), 6); /* in transit */
	assert_string_equal(string(run, "use"), "none");
	run = run->next;
	assert_int_equal(number(run, "first"), 30);
	assert_string_equal(string(run, "usage"), "LORA_WEIGHT");
	result_free(&result);

	result = OFFLINE("pages", "--each", "--first", "41", "--count", "1");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pages")), 1);
	run = list(&result, "pages")->child;
	assert_int_equal(number(run, "page"), 41);
	assert_int_equal(number(run, "block_first"), 30); /* an extent belongs to the head of its block */
	assert_int_equal(number(run, "block_pages"), 5);
	assert_int_equal(number(run, "owner_id"), 1030);
	assert_int_equal(number(run, "generation"), 2);
	result_free(&result);

	result = poolctl("pages", "-d", keeper->directory, "--offline", NULL);
	expect(&result, OK);
	expect_text(result.out, "0-7 ");
	expect_text(result.out, "x2");
	expect_text(result.out, "pinned 2");
	result_free(&result);
}

static int pages_of_runs(const struct result *result)
{
	const cJSON *run;
	int pages = 0;

	cJSON_ArrayForEach(run, list(result, "runs")) pages += (int)number(run, "count");
	return pages;
}

static void test_offline_pages_filters(void **state)
{
	static const struct {
		const char *option, *value;
		int pages;
	} cases[] = {
		{"--state", "FREE", PAGES - RESERVED - 72},
		{"--state", "leased", 64},
		{"--state", "QUARANTINED", 8},
		{"--state", "RESERVED", RESERVED},
		{"--state", "MOVING", 0},
		{"--state", "PINNED", 8},
		{"--state", "UNPINNED", 7},
		{"--owner", "3", 64},
		{"--owner", "5", 8},
		{"--owner", "6", 0},
		{"--first", "190", 10},
		{"--count", "3", 3},
	};
	struct keeper *keeper = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct result result = OFFLINE("pages", cases[i].option, cases[i].value);

		expect(&result, OK);
		if (pages_of_runs(&result) != cases[i].pages)
			fail_msg("%s %s: %d pages instead of %d", cases[i].option, cases[i].value,
				pages_of_runs(&result), cases[i].pages);
		result_free(&result);
	}
}

static void test_offline_pins(void **state)
{
	struct keeper *keeper = *state;
	struct result result = OFFLINE("pins");
	const cJSON *pin;

	expect(&result, OK);
	expect_document(&result, "pins");
	assert_int_equal(cJSON_GetArraySize(list(&result, "pins")), 2);
	pin = list(&result, "pins")->child;
	assert_int_equal(number(pin, "page"), 0);
	assert_int_equal(number(pin, "pins"), 2);
	assert_int_equal(number(pin, "age_ms"), 1000);
	assert_false(cJSON_IsTrue(cJSON_GetObjectItem(pin, "leaked")));
	assert_string_equal(string(pin, "name"), "engine");
	assert_int_equal(number(pin, "pid"), 4000 + WORKER);
	result_free(&result);

	result = OFFLINE("pins", "--leaked");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pins")), 1);
	assert_int_equal(number(list(&result, "pins")->child, "page"), 4);
	result_free(&result);

	result = poolctl("pins", "-d", keeper->directory, "--offline", NULL);
	expect(&result, OK);
	expect_text(result.out, "leaked");
	result_free(&result);
}

static void test_offline_objects(void **state)
{
	struct keeper *keeper = *state;
	struct object_record *record = &keeper->pool.objects[7];
	struct result result;
	const cJSON *entry;

	page_set(keeper, 80, 5, PAGE_SHARED, 7);
	record->class = OBJECT_EPHEMERAL;
	record->version = 12;
	record->pages = 5;
	strcpy(record->name, "cache");
	strcpy(record->tenant, "default");
	atomic_store(&keeper->pool.header->object_end, 9);
	object_names_add(&keeper->pool, 7);
	atomic_store(&record->state, OBJECT_OLD);
	result = OFFLINE("objects");
	expect(&result, OK);
	expect_document(&result, "objects");
	assert_int_equal(cJSON_GetArraySize(list(&result, "objects")), 1);
	entry = list(&result, "objects")->child;
	assert_string_equal(string(entry, "name"), "cache");
	assert_string_equal(string(entry, "state"), "old");
	assert_string_equal(string(entry, "class"), "ephemeral");
	assert_int_equal(number(entry, "version"), 12);
	assert_int_equal(number(entry, "number"), 7);
	result_free(&result);
	result = OFFLINE("check");
	expect(&result, OK);
	result_free(&result);
	/* Some pages are missing in their object's record, and some belong to an object that does not exist. */
	page_set(keeper, 85, 1, PAGE_SHARED, 7);
	page_set(keeper, 86, 1, PAGE_SHARED, 8);
	result = OFFLINE("check");
	expect(&result, FOUND);
	assert_int_equal(number(result.json, "found"), 2);
	result_free(&result);
	/* The object cannot be found by its name. */
	object_names_clear(&keeper->pool);
	atomic_store(&record->state, OBJECT_CURRENT);
	result = OFFLINE("check");
	expect(&result, FOUND);
	assert_int_equal(number(result.json, "found"), 3);
	result_free(&result);
}

static void test_offline_clients(void **state)
{
	struct keeper *keeper = *state;
	struct result result = OFFLINE("clients");
	const cJSON *client;

	expect(&result, OK);
	expect_document(&result, "clients");
	assert_int_equal(cJSON_GetArraySize(list(&result, "clients")), 3);
	client = list(&result, "clients")->child;
	assert_int_equal(number(client, "session"), WORKER);
	assert_string_equal(string(client, "kind"), "worker");
	assert_int_equal(number(client, "leased_pages"), 64);
	assert_int_equal(number(client, "used_pages"), 15);
	assert_int_equal(number(client, "pinned_pages"), 8);
	assert_int_equal(number(client, "idle_pages"), 14);
	assert_int_equal(number(client, "offered_pages"), 7);
	assert_int_equal(number(client, "needed_pages"), 43);
	assert_int_equal(number(client, "allocations"), 15);
	client = client->next;
	assert_string_equal(string(client, "state"), "closed");
	assert_int_equal(number(client, "leased_pages"), 8);
	assert_int_equal(number(client, "needed_pages"), 8);
	client = client->next;
	assert_string_equal(string(client, "kind"), "observer");
	assert_string_equal(string(client, "name"), "watcher");
	result_free(&result);
}

static void role_set(struct keeper *keeper, uint32_t index, uint32_t holder, const char *name)
{
	struct role_record *record = &keeper->pool.roles[index];

	atomic_store(&record->holder, holder);
	atomic_store(&record->token, 40 + index);
	atomic_store(&record->waiters, index);
	snprintf(record->name, sizeof(record->name), "%s", name);
	snprintf(record->tenant, sizeof(record->tenant), "default");
	record->domain = index;
	atomic_store(&record->state, ROLE_NAMED);
}

static void test_offline_roles(void **state)
{
	struct keeper *keeper = *state;
	struct result result;
	const cJSON *role;

	role_set(keeper, 0, WORKER, "main");
	role_set(keeper, 3, 0, "unheld");
	role_set(keeper, 9, GONE, "late");
	role_set(keeper, 12, 0xfffffff0, "damaged");
	memset(keeper->pool.roles[12].name, 0xff, sizeof(keeper->pool.roles[12].name));
	result = OFFLINE("roles");
	expect(&result, OK);
	expect_document(&result, "roles");
	assert_int_equal(cJSON_GetArraySize(list(&result, "roles")), 4);
	role = list(&result, "roles")->child;
	assert_string_equal(string(role, "name"), "main");
	assert_string_equal(string(role, "state"), "held");
	assert_string_equal(string(role, "holder"), "engine");
	assert_int_equal(number(role, "pid"), 4000 + WORKER);
	assert_int_equal(number(role, "token"), 40);
	role = role->next;
	assert_string_equal(string(role, "state"), "free");
	assert_int_equal(number(role, "standbys"), 3);
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(role, "domain")));
	assert_int_equal(number(role, "domain_number"), 3);
	role = role->next;
	assert_string_equal(string(role, "state"), "closed");
	result_free(&result);
	result = poolctl("roles", "-d", keeper->directory, "--offline", NULL);
	expect(&result, OK);
	expect_text(result.out, "main");
	expect_text(result.out, "#12");
	result_free(&result);
}

static void test_offline_transfers(void **state)
{
	struct keeper *keeper = *state;
	struct result result;
	const cJSON *entry;

	/* Pages of a closed session are quarantined too, and attributed to that session. */
	result = OFFLINE("transfers");
	expect(&result, OK);
	expect_document(&result, "transfers");
	assert_int_equal(cJSON_GetArraySize(list(&result, "transfers")), 0);
	result_free(&result);
	page_set(keeper, 100, 3, PAGE_QUARANTINED, 0);
	page_set(keeper, 103, 2, PAGE_RETIRED, 0);
	page_set(keeper, 106, 1, PAGE_RETIRED, 0);
	result = OFFLINE("transfers");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "transfers")), 3);
	entry = list(&result, "transfers")->child;
	assert_string_equal(string(entry, "state"), "under way");
	assert_string_equal(string(entry, "pool"), "gpu0");
	assert_int_equal(number(entry, "page"), 100);
	assert_int_equal(number(entry, "page_count"), 3);
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(entry, "domain")));
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(entry, "holders")));
	entry = entry->next;
	assert_string_equal(string(entry, "state"), "retired");
	assert_int_equal(number(entry, "page_count"), 2);
	assert_int_equal(number(entry->next, "page"), 106);
	result_free(&result);

	result = poolctl("transfers", "-d", keeper->directory, "--offline", NULL);
	expect(&result, OK);
	expect_text(result.out, "100-102");
	expect_text(result.out, "103-104  retired");
	result_free(&result);
	result = OFFLINE("transfers", "-p", "elsewhere");
	expect(&result, USAGE);
	result_free(&result);
}

static void test_offline_check(void **state)
{
	struct keeper *keeper = *state;
	struct result result = OFFLINE("check");
	const cJSON *finding;

	expect(&result, OK);
	expect_document(&result, "check");
	assert_int_equal(number(result.json, "found"), 0);
	assert_int_equal(number(list(&result, "pools")->child, "in_transit"), 64 - 15 - 14 + 8);
	result_free(&result);

	/* without a running process, pages without an owner are lost */
	result = OFFLINE("check", "--quiescent");
	expect(&result, FOUND);
	assert_int_equal(number(result.json, "found"), 64 - 15 - 14 + 8);
	result_free(&result);

	keeper->sessions[1].free_bits[0] |= 1; /* page 0 belongs to the other session */
	result = OFFLINE("check");
	expect(&result, FOUND);
	assert_int_equal(number(result.json, "found"), 1);
	finding = cJSON_GetObjectItem(list(&result, "pools")->child, "findings")->child;
	assert_int_equal(number(finding, "session"), GONE);
	assert_int_equal(number(finding, "page"), 0);
	result_free(&result);

	result = poolctl("check", "-d", keeper->directory, "--offline", NULL);
	expect(&result, FOUND);
	expect_text(result.out, "1 finding");
	expect_text(result.out, "not leased to the session");
	result_free(&result);
}

/* Names in shared memory may contain any bytes, and need not be terminated. */
static void test_offline_hostile_names(void **state)
{
	struct keeper *keeper = *state;
	struct result result;

	memset(keeper->pool.sessions[WORKER].name, 0xff, sizeof(keeper->pool.sessions[WORKER].name));
	memcpy(keeper->pool.sessions[GONE].name, "a\033[31mb\n", 8);
	memset(keeper->pool.header->device, 'd', sizeof(keeper->pool.header->device));
	result = OFFLINE("clients");
	expect(&result, OK);
	assert_string_equal(string(list(&result, "clients")->child->next, "name"), "a?[31mb?");
	result_free(&result);
	result = OFFLINE("status");
	expect(&result, OK);
	result_free(&result);
	result = OFFLINE("pins");
	expect(&result, OK);
	result_free(&result);
}

static uint64_t random_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void verbs_survive(struct keeper *keeper, const char *snapshot)
{
	static const char *const names[] = {
		"status", "pages", "pins", "clients", "objects", "roles", "transfers", "check", "regions", "prefixes"};
	const char *offline = snapshot ? snapshot : "--offline";

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		bool regions = !strcmp(names[i], "regions");
		struct result result = poolctl("-d", keeper->directory, "-o", "json", names[i], offline,
			regions ? "--" : NULL, WORKER_TEXT, NULL);

		/*
		 * a crash has already failed the test at this point; USAGE is valid if the worker does not exist any
		 * more or its name is ambiguous
		 */
		if (result.code != OK && result.code != FOUND && result.code != FAILED &&
			!(regions && result.code == USAGE))
			fail_msg("%s: exit status %d: %s", names[i], result.code, result.err);
		if (result.code == OK || result.code == FOUND)
			expect_document(&result, names[i]);
		result_free(&result);
	}
}

/* A worker may write any values into its own segment. */
static void test_offline_hostile_sessions(void **state)
{
	struct keeper *keeper = *state;
	struct session_segment *session = &keeper->sessions[0];
	uint64_t seed = 0x5eed;

	/* chains that form a cycle, refer to themselves, or lead out of the pool */
	block_set(session, 30, 2, block_tag_make(4, 1 | BLOCK_SCATTERED), 40 + 1);
	block_set(session, 40, 3, block_tag_make(4, 1 | BLOCK_EXTENT), 30 + 1);
	verbs_survive(keeper, NULL);
	session->blocks[30].next = 30 + 1;
	session->blocks[40].next = UINT32_MAX;
	verbs_survive(keeper, NULL);
	session->blocks[0].page_count = UINT32_MAX;
	session->blocks[4].page_count = 0;
	session->free_bits[(PAGES - 1) / 64] = ~UINT64_C(0);
	verbs_survive(keeper, NULL);
	for (int round = 0; round < 8; round++) {
		uint64_t *words = (uint64_t *)session->header;

		for (size_t i = 0; i < session->bytes / sizeof(*words); i++)
			words[i] = round % 2 ? random_next(&seed) : random_next(&seed) & 0xff000000ff;
		verbs_survive(keeper, NULL);
	}
}

static void test_offline_hostile_pool(void **state)
{
	struct keeper *keeper = *state;
	uint64_t seed = 0x9001;

	for (int round = 0; round < 4; round++) {
		for (uint32_t page = 0; page < PAGES; page++)
			atomic_store(&keeper->pool.pages[page], random_next(&seed));
		for (size_t i = 0; i < sizeof(struct session_record) * 16; i++)
			((uint8_t *)keeper->pool.sessions)[i] = (uint8_t)random_next(&seed);
		for (size_t i = 0; i < sizeof(struct object_record) * 16; i++)
			((uint8_t *)keeper->pool.objects)[i] =
				round % 2 ? (uint8_t)random_next(&seed) : (uint8_t)(random_next(&seed) % 6);
		verbs_survive(keeper, NULL);
	}
	keeper->pool.header->page_count = 3;
	verbs_survive(keeper, NULL);
}

static void test_offline_unknown_names(void **state)
{
	struct keeper *keeper = *state;
	static const char *const names[] = {"status", "pages", "pins", "clients", "check"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct result result = OFFLINE(names[i], "-p", "nope");

		expect(&result, USAGE);
		expect_text(result.err, "no pool 'nope'");
		result_free(&result);
		result = OFFLINE(names[i], "-p", "gpu0");
		expect(&result, OK);
		result_free(&result);
	}
}

/* Start a process without gpool's memory: it executes another program. It ends when *input is closed. */
static pid_t stranger_start(int *input)
{
	int stdin_pipe[2], started[2];
	char byte;
	pid_t child;

	assert_int_equal(pipe2(stdin_pipe, O_CLOEXEC), 0);
	assert_int_equal(pipe2(started, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		dup2(stdin_pipe[0], STDIN_FILENO);
		execlp("cat", "cat", NULL);
		_exit(127);
	}
	close(stdin_pipe[0]);
	close(started[1]);
	assert_int_equal(read(started[0], &byte, 1), 0); /* the exec closes the pipe */
	close(started[0]);
	*input = stdin_pipe[1];
	return child;
}

static void test_offline_without_keeper(void **state)
{
	struct keeper *keeper = *state;
	struct result result;
	pid_t child = fork();
	char text[32];
	int status, input;

	if (child == 0)
		_exit(0);
	assert_int_equal(waitpid(child, &status, 0), child);
	file_write(keeper->pid_file, text, (size_t)snprintf(text, sizeof(text), "%d\n", (int)child));
	result = OFFLINE("status");
	expect(&result, NO_AGENT);
	expect_text(result.err, "has ended");
	result_free(&result);
	/* a running process that is not the keeper */
	child = stranger_start(&input);
	file_write(keeper->pid_file, text, (size_t)snprintf(text, sizeof(text), "%d\n", (int)child));
	result = OFFLINE("status");
	close(input);
	assert_int_equal(waitpid(child, &status, 0), child);
	expect(&result, NO_AGENT);
	expect_text(result.err, "has no pool");
	result_free(&result);
	file_write(keeper->pid_file, "12x4\n", 5);
	result = OFFLINE("status");
	expect(&result, FAILED);
	result_free(&result);
	unlink(keeper->pid_file);
	result = OFFLINE("status");
	expect(&result, NO_AGENT);
	expect_text(result.err, "gpoold.pid");
	result_free(&result);
}

/* ---- snapshots ---- */

static void snapshot_take(struct keeper *keeper)
{
	struct result result = poolctl("dump", keeper->snapshot, "-d", keeper->directory, "-o", "json", NULL);
	struct stat stat_now;

	expect(&result, OK);
	expect_document(&result, "dump");
	assert_int_equal(number(result.json, "pools"), 1);
	assert_int_equal(number(result.json, "sessions"), 3);
	assert_int_equal(stat(keeper->snapshot, &stat_now), 0);
	assert_int_equal(stat_now.st_mode & 0777, 0600);
	assert_int_equal(number(result.json, "bytes"), stat_now.st_size);
	result_free(&result);
}

static void test_snapshot_reports_the_same(void **state)
{
	static const char *const names[] = {"pages", "pins", "transfers", "check"};
	struct keeper *keeper = *state;

	snapshot_take(keeper);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct result live = OFFLINE(names[i]);
		struct result kept = poolctl(names[i], "-o", "json", "--offline", keeper->snapshot, NULL);

		expect(&kept, OK);
		assert_string_equal(live.out, kept.out);
		result_free(&live);
		result_free(&kept);
	}
	/* the snapshot is unchanged when the tables have changed, or no process exists */
	page_set(keeper, 0, 64, PAGE_FREE, 0);
	unlink(keeper->pid_file);
	struct result kept = poolctl("--offline", keeper->snapshot, "clients", "-o", "json", NULL);

	expect(&kept, OK);
	assert_int_equal(cJSON_GetArraySize(list(&kept, "clients")), 3);
	assert_int_equal(number(list(&kept, "clients")->child, "leased_pages"), 64);
	result_free(&kept);
	kept = poolctl("status", "--offline", keeper->snapshot, NULL);
	expect(&kept, OK);
	expect_text(kept.out, "the snapshot '");
	result_free(&kept);
}

static void test_snapshot_cut_short(void **state)
{
	struct keeper *keeper = *state;
	struct result result;
	size_t bytes;
	char *content;

	snapshot_take(keeper);
	content = file_read(keeper->snapshot, &bytes);
	for (size_t cut = 0; cut < bytes; cut += cut < 128 ? 1 : bytes / 37) {
		file_write(keeper->snapshot, content, cut);
		result = poolctl("status", "--offline", keeper->snapshot, NULL);
		expect(&result, FAILED);
		result_free(&result);
	}
	content = realloc(content, bytes + 1);
	content[bytes] = 0;
	file_write(keeper->snapshot, content, bytes + 1);
	result = poolctl("status", "--offline", keeper->snapshot, NULL);
	expect(&result, FAILED);
	expect_text(result.err, "damaged");
	result_free(&result);
	free(content);
}

static void test_snapshot_hostile(void **state)
{
	struct keeper *keeper = *state;
	uint64_t seed = 0xbad;
	char argument[128];
	size_t bytes;
	char *content;

	snapshot_take(keeper);
	content = file_read(keeper->snapshot, &bytes);
	snprintf(argument, sizeof(argument), "--offline=%s", keeper->snapshot);
	for (int round = 0; round < 40; round++) {
		/* the first rounds change the headers, the others any byte */
		size_t at = random_next(&seed) % (round < 20 ? 96 : bytes);
		char old = content[at];

		content[at] = (char)random_next(&seed);
		file_write(keeper->snapshot, content, bytes);
		verbs_survive(keeper, argument);
		content[at] = old;
	}
	/* a segment of 2^60 bytes in a small file */
	memset(content + 24 + 16 + 6, 0x10, 2);
	file_write(keeper->snapshot, content, bytes);
	struct result result = poolctl("status", "--offline", keeper->snapshot, NULL);

	expect(&result, FAILED);
	expect_text(result.err, "larger than the memory");
	result_free(&result);
	free(content);
}

/* Runs overlap or exceed the segment, in a file whose lengths are otherwise correct. */
static void test_snapshot_runs(void **state)
{
	static const uint64_t runs[][2] = {{8, 8}, {4090, 8}, {UINT64_MAX - 3, 8}};
	struct keeper *keeper = *state;

	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		uint64_t file[16] = {0};
		struct result result;

		memcpy(&file[0], "GPOOLSN1", 8);
		file[1] = 1 | UINT64_C(1) << 32; /* version, segments */
		file[3] = 1;                     /* a pool, number 0 */
		file[5] = 4096;                  /* bytes */
		file[6] = 16;                    /* the first run: 8 bytes at 16 */
		file[7] = 8;
		file[9] = runs[i][0];
		file[10] = runs[i][1];
		/* with the run of length 0 that ends the segment */
		file_write(keeper->snapshot, file, 14 * sizeof(*file));
		result = poolctl("status", "--offline", keeper->snapshot, NULL);
		expect(&result, FAILED);
		expect_text(result.err, "is damaged: a field is invalid");
		result_free(&result);
	}
}

static void test_dump_cannot_write(void **state)
{
	struct keeper *keeper = *state;
	struct result result = poolctl("dump", "/nonexistent/x", "-d", keeper->directory, NULL);

	expect(&result, FAILED);
	expect_text(result.err, "/nonexistent/x");
	result_free(&result);
	result = poolctl("dump", "-", "-d", keeper->directory, NULL);
	expect(&result, FAILED);
	expect_text(result.err, "cannot write to '-'");
	result_free(&result);
}

/* Check that the tool has refused to replace `path`, and that the FIFO still exists. */
static void expect_kept(struct result result, const char *path, const char *fifo)
{
	char text[200];
	struct stat stat;

	expect(&result, FAILED);
	snprintf(text, sizeof(text), "cannot replace '%s': it exists and is not a regular file", path);
	expect_text(result.err, text);
	result_free(&result);
	assert_int_equal(lstat(fifo, &stat), 0);
	assert_true(S_ISFIFO(stat.st_mode));
}

/* A rename replaces anything, so root would replace a device node. This test uses a FIFO as the node. */
static void test_only_regular_files_are_replaced(void **state)
{
	struct keeper *keeper = *state;
	const char *directory = keeper->directory;
	char fifo[120], link[120];

	snprintf(fifo, sizeof(fifo), "%s.fifo", keeper->snapshot);
	snprintf(link, sizeof(link), "%s.link", keeper->snapshot);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	expect_kept(poolctl("dump", fifo, "-d", directory, NULL), fifo, fifo);
	assert_int_equal(symlink(fifo, link), 0);
	expect_kept(poolctl("dump", link, "-d", directory, NULL), link, fifo);
	assert_int_equal(unlink(link), 0);
	/* /dev/stdout is such a link. It leads to a regular file if the output is redirected to one. */
	assert_int_equal(symlink("/proc/self/exe", link), 0);
	expect_kept(poolctl("dump", link, "-d", directory, NULL), link, fifo);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(unlink(fifo), 0);
}

static void test_dump_of_one_pool(void **state)
{
	struct keeper *keeper = *state;
	struct result result = poolctl("dump", keeper->snapshot, "-d", keeper->directory, "--pool=nope", NULL);

	expect(&result, USAGE);
	expect_text(result.err, "has no pool 'nope'");
	assert_int_equal(access(keeper->snapshot, F_OK), -1);
	result_free(&result);
	result = poolctl("dump", keeper->snapshot, "-d", keeper->directory, "--pool=gpu0", "-o", "json", NULL);
	expect(&result, OK);
	assert_int_equal(number(result.json, "pools"), 1);
	assert_int_equal(number(result.json, "sessions"), 3);
	result_free(&result);
}

/* ---- destinations of the output ---- */

static struct result on_terminal(struct keeper *keeper, const char *option)
{
	const char *arguments[] = {"poolctl", "status", "--offline", "-d", keeper->directory, option, NULL};
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;

	assert_true(master >= 0);
	assert_int_equal(grantpt(master), 0);
	assert_int_equal(unlockpt(master), 0);
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	return poolctl_finish(poolctl_start_at((char *const *)(uintptr_t)arguments, slave, master));
}

static void test_color(void **state)
{
	struct result result = on_terminal(*state, NULL);

	expect(&result, OK);
	assert_non_null(strchr(result.out, '\033'));
	result_free(&result);
	result = on_terminal(*state, "--no-color");
	expect(&result, OK);
	assert_null(strchr(result.out, '\033'));
	result_free(&result);
	setenv("NO_COLOR", "1", 1);
	result = on_terminal(*state, NULL);
	unsetenv("NO_COLOR");
	expect(&result, OK);
	assert_null(strchr(result.out, '\033'));
	result_free(&result);
}

/* A snapshot that could not be written completely leaves no file. */
static void test_full_output(void **state)
{
	struct keeper *keeper = *state;
	const char *arguments[] = {"poolctl", "status", "--offline", "-d", keeper->directory, NULL};
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC), nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct result result;

	assert_true(full >= 0 && nothing >= 0);
	result = poolctl_finish(poolctl_start_at((char *const *)(uintptr_t)arguments, full, nothing));
	expect(&result, FAILED);
	expect_text(result.err, "cannot write to standard output");
	result_free(&result);
}

#define WITH_KEEPER(test) cmocka_unit_test_setup_teardown(test, keeper_setup, keeper_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_KEEPER(test_offline_status),
		WITH_KEEPER(test_offline_pages),
		WITH_KEEPER(test_offline_pages_filters),
		WITH_KEEPER(test_offline_pins),
		WITH_KEEPER(test_offline_objects),
		WITH_KEEPER(test_offline_clients),
		WITH_KEEPER(test_offline_roles),
		WITH_KEEPER(test_offline_transfers),
		WITH_KEEPER(test_offline_check),
		WITH_KEEPER(test_offline_hostile_names),
		WITH_KEEPER(test_offline_hostile_sessions),
		WITH_KEEPER(test_offline_hostile_pool),
		WITH_KEEPER(test_offline_unknown_names),
		WITH_KEEPER(test_offline_without_keeper),
		WITH_KEEPER(test_snapshot_reports_the_same),
		WITH_KEEPER(test_snapshot_cut_short),
		WITH_KEEPER(test_snapshot_hostile),
		WITH_KEEPER(test_snapshot_runs),
		WITH_KEEPER(test_dump_cannot_write),
		WITH_KEEPER(test_only_regular_files_are_replaced),
		WITH_KEEPER(test_dump_of_one_pool),
		WITH_KEEPER(test_color),
		WITH_KEEPER(test_full_output),
	};

	unsetenv("NO_COLOR");
	unsetenv("GPOOL_DIR");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
