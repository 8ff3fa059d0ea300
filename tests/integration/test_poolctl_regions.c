/*
 * test_poolctl_regions.c - poolctl regions: the use of workers' addresses.
 *
 * Goal: a request to the agent, an offline read and a snapshot report the same, true content. If a worker hangs during
 * a change or changes its table continuously, poolctl reports that and does not wait for it. False entries are marked.
 * A client that does not exist or is ambiguous is refused with its name.
 *
 * Method: this process is a worker of a real agent and writes its table of regions itself, so the expected output is
 * known.
 *
 * Requirements: M7.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include "client/core/pool.h"
#include "shm/timeline.h"

#include <pthread.h>
#include <signal.h>

#define PAGE_BYTES (UINT64_C(2) << 20)
#define BASE UINT64_C(0x7f0000000000)

enum { ROWS = REGION_TABLE_ENTRIES + 10 };

/* One agent for all tests. This process opens a new session of p0 for each test. */
struct world {
	struct harness harness;
	struct gpool *worker;
	struct region_writer *writer;
	char session[16], pid[16];
	uint32_t rows;
	uint16_t numbers[ROWS];
	struct region_totals totals;
	uint64_t next; /* address */
};

static struct world world;

static int agent_setup(void **state)
{
	static const char *const arguments[] = {
		"--pool",
		"name=p0,backend=host,size=16MiB,page_size=512KB,reserved=0",
		"--pool",
		"name=p1,backend=host,size=16MiB,page_size=512KB,reserved=0",
		NULL,
	};

	(void)state;
	harness_start(&world.harness, arguments);
	return 0;
}

static int agent_teardown(void **state)
{
	(void)state;
	return harness_stop(&world.harness);
}

static struct gpool *worker_open(const char *pool, const char *name)
{
	struct gpool_options options = harness_options(&world.harness);
	struct gpool *worker;

	options.pool = pool;
	options.name = name;
	assert_int_equal(gpool_open(&options, &worker), 0);
	return worker;
}

/*
 * Wait until gpoold's keeper has received the new session's table from the agent, which happens after the worker has
 * it. --offline shows the keeper's tables.
 */
static void keeper_wait(const char *name)
{
	struct result result;
	bool missing;

	do {
		result = poolctl("-d", world.harness.directory, "regions", name, "--offline", NULL);
		missing = result.code == FAILED && strstr(result.err, "is missing");
		if (!missing)
			expect(&result, OK);
		result_free(&result);
	} while (missing);
}

static int worker_setup(void **state)
{
	(void)state;
	world.worker = worker_open("p0", "engine");
	keeper_wait("engine");
	world.writer = malloc(sizeof(*world.writer));
	assert_non_null(world.writer);
	world.rows = 0;
	world.next = BASE;
	memset(&world.totals, 0, sizeof(world.totals));
	snprintf(world.session, sizeof(world.session), "%u", gpool_session(world.worker));
	snprintf(world.pid, sizeof(world.pid), "%d", (int)getpid());
	return 0;
}

static int worker_teardown(void **state)
{
	(void)state;
	kill(-world.harness.pid, SIGCONT); /* after any failure, continue the agent for the other tests */
	free(world.writer);
	gpool_close(world.worker);
	return 0;
}

static void writer_start(void)
{
	region_writer_init(world.writer, world.worker->session.regions, &world.worker->header->clock_ms, PAGE_BYTES);
}

/* Add a row that begins where the last one ended. */
static void row_add(enum region_row_state state, uint32_t pages, uint32_t stream, uint64_t fence, uint32_t flags)
{
	struct region_row row = {.address = world.next,
		.id = world.rows + 1,
		.fence = fence,
		.pages = pages,
		.stream = stream,
		.state = state,
		.flags = flags};
	uint64_t bytes = pages * PAGE_BYTES;

	assert_true(world.rows < ROWS);
	world.numbers[world.rows] = REGION_ROW_NEW;
	region_table_set(world.writer, &world.numbers[world.rows++], &row);
	world.next += bytes;
	world.totals.reserved += bytes;
	world.totals.mapped += state != REGION_ROW_HOLE ? bytes : 0;
	world.totals.live += state == REGION_ROW_ALLOCATED ? bytes : 0;
	world.totals.reusable += state == REGION_ROW_FREE ? bytes : 0;
	world.totals.reclaimable += flags & REGION_ROW_RECLAIMABLE ? bytes : 0;
	world.totals.pending_unmap += state == REGION_ROW_PENDING_UNMAP ? bytes : 0;
	world.totals.holes += state == REGION_ROW_HOLE ? bytes : 0;
	world.totals.live_regions += state == REGION_ROW_ALLOCATED;
	world.totals.reusable_regions += state == REGION_ROW_FREE;
	world.totals.pending_unmap_regions += state == REGION_ROW_PENDING_UNMAP;
	world.totals.hole_regions += state == REGION_ROW_HOLE;
}

/* Set the rows "[-3][+10][1][-5][*4][#6][*100] [2]", in order of address. Each pair of flags and fences occurs once. */
static void rows_example(void)
{
	atomic_store(&world.worker->session.timeline[1], 100);
	region_table_begin(world.writer);
	row_add(REGION_ROW_FREE, 3, 0, 0, REGION_ROW_RECLAIMABLE);
	world.totals.last_id = world.rows + 1;
	row_add(REGION_ROW_ALLOCATED, 10, 1, 0, 0);
	row_add(REGION_ROW_ALLOCATED, 1, 2, 0, REGION_ROW_CAPTURED);
	row_add(REGION_ROW_FREE, 5, 1, fence_make(1, 100), REGION_ROW_MOVING);
	row_add(REGION_ROW_PENDING_UNMAP, 4, 1, fence_make(1, 101), 0);
	row_add(REGION_ROW_HOLE, 6, 0, 0, REGION_ROW_MOVING);
	row_add(REGION_ROW_HOLE, 100, 0, 0, 0);
	world.next += PAGE_BYTES;
	row_add(REGION_ROW_ALLOCATED, 2, 2, 0, 0);
	region_table_totals(world.writer, &world.totals);
	region_table_end(world.writer);
}
#define EXAMPLE "[-3][+10][1][-5][*4][#6][*100] [2]"

#define AGENT(...) poolctl("-d", world.harness.directory, "regions", __VA_ARGS__, NULL)
#define AGENT_JSON(...) poolctl("-d", world.harness.directory, "-o", "json", "regions", __VA_ARGS__, NULL)

static bool is_true(const cJSON *object, const char *name)
{
	const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);

	assert_true(cJSON_IsBool(value));
	return cJSON_IsTrue(value);
}

static void expect_example(const struct result *result)
{
	const cJSON *totals = cJSON_GetObjectItem(result->json, "totals"), *row;

	expect_document(result, "regions");
	assert_string_equal(string(result->json, "notation"), EXAMPLE);
	assert_string_equal(string(result->json, "pool"), "p0");
	assert_string_equal(string(result->json, "name"), "engine");
	assert_int_equal(number(result->json, "pid"), getpid());
	assert_int_equal(number(result->json, "page_bytes"), PAGE_BYTES);
	assert_true(is_true(result->json, "whole"));
	assert_true(is_true(result->json, "totals_fit"));
	assert_false(is_true(result->json, "damaged"));
	assert_int_equal(number(totals, "reserved_bytes"), 131 * PAGE_BYTES);
	assert_int_equal(number(totals, "mapped_bytes"), 25 * PAGE_BYTES);
	assert_int_equal(number(totals, "live_bytes"), 13 * PAGE_BYTES);
	assert_int_equal(number(totals, "reusable_bytes"), 8 * PAGE_BYTES);
	assert_int_equal(number(totals, "reclaimable_bytes"), 3 * PAGE_BYTES);
	assert_int_equal(number(totals, "pending_unmap_bytes"), 4 * PAGE_BYTES);
	assert_int_equal(number(totals, "hole_bytes"), 106 * PAGE_BYTES);
	assert_int_equal(number(totals, "largest_free_bytes"), 5 * PAGE_BYTES);
	assert_int_equal(number(totals, "largest_hole_bytes"), 100 * PAGE_BYTES);
	assert_int_equal(cJSON_GetArraySize(list(result, "regions")), 8);
	row = list(result, "regions")->child;
	assert_true(number(row, "address") == (double)BASE);
	assert_string_equal(string(row, "state"), "free");
	assert_true(is_true(row, "reclaimable"));
	row = row->next;
	assert_true(is_true(row, "last"));
	assert_int_equal(number(row, "pages"), 10);
	assert_int_equal(number(row, "stream"), 1);
	row = row->next;
	assert_true(is_true(row, "captured"));
	assert_false(is_true(row, "last"));
	row = row->next;
	assert_true(is_true(row, "moving"));
	assert_true(is_true(row, "fence_signaled"));
	row = row->next;
	assert_string_equal(string(row, "state"), "pending_unmap");
	assert_false(is_true(row, "fence_signaled"));
	row = row->next;
	assert_string_equal(string(row, "state"), "hole");
	assert_true(is_true(row, "moving"));
	row = row->next;
	assert_string_equal(string(row, "state"), "hole");
	assert_false(is_true(row, "moving"));
}

static void test_regions(void **state)
{
	struct result result;

	(void)state;
	writer_start();
	rows_example();
	/* by session, by process, by name */
	result = AGENT_JSON(world.session);
	expect(&result, OK);
	expect_example(&result);
	result_free(&result);
	result = AGENT_JSON(world.pid);
	expect(&result, OK);
	expect_example(&result);
	result_free(&result);
	result = AGENT_JSON("engine", "-p", "p0");
	expect(&result, OK);
	expect_example(&result);
	result_free(&result);

	result = AGENT("engine");
	expect(&result, OK);
	expect_text(result.out, "\n" EXAMPLE "\n");
	expect_text(result.out, "pages of 2 MiB");
	expect_text(result.out, "reserved              8    131  262 MiB");
	expect_text(result.out, "holes                 2    106  212 MiB  200 MiB");
	expect_text(result.out, "0x7f0000600000     10   20 MiB  allocated");
	expect_text(result.out, "last");
	expect_text(result.out, "reclaimable");
	expect_text(result.out, "pending");
	assert_null(strstr(result.out, "changed"));
	assert_null(strstr(result.out, "totals differ"));
	result_free(&result);
}

static void test_never_used(void **state)
{
	struct result result = AGENT("engine");

	(void)state;
	expect(&result, OK);
	expect_text(result.out, "has not used gpool_malloc_async()");
	result_free(&result);
	result = AGENT_JSON("engine");
	expect(&result, OK);
	expect_document(&result, "regions");
	assert_int_equal(number(result.json, "page_bytes"), 0);
	assert_int_equal(cJSON_GetArraySize(list(&result, "regions")), 0);
	result_free(&result);
}

static void expect_usage(struct result result, const char *text)
{
	expect(&result, USAGE);
	assert_string_equal(result.out, "");
	expect_text(result.err, text);
	result_free(&result);
}

static void test_unknown_clients(void **state)
{
	struct gpool *same = worker_open("p0", "engine"), *other = worker_open("p1", "other"), *watcher;
	struct gpool_options options = harness_options(&world.harness);
	char both[64], one[64];

	(void)state;
	expect_usage(AGENT("missing"), "no client 'missing'");
	expect_usage(AGENT("4095"), "no client '4095'");
	expect_usage(AGENT("0"), "no client '0'");
	expect_usage(AGENT("-1"), "--help");
	expect_usage(AGENT("engine", "-p", "p7"), "no pool 'p7'");
	expect_usage(AGENT("other", "-p", "p0"), "no client 'other'");
	expect_usage(poolctl("-d", world.harness.directory, "regions", NULL), "needs CLIENT");
	expect_usage(AGENT("engine", "other"), "does not take the argument 'other'");
	/* three sessions of this process, two of this name */
	snprintf(both, sizeof(both), "and session %u of pool 'p0', process %s", gpool_session(same), world.pid);
	expect_usage(AGENT("engine"), both);
	expect_usage(AGENT(world.pid), "of pool 'p1'");
	expect_usage(AGENT("engine", "--offline"), both);
	snprintf(one, sizeof(one), "%u", gpool_session(same));
	struct result result = AGENT(one, "-p", "p0");

	expect(&result, OK);
	result_free(&result);
	gpool_close(same);
	gpool_close(other);
	options.flags = GPOOL_OPEN_OBSERVER;
	options.name = "watcher";
	assert_int_equal(gpool_open(&options, &watcher), 0);
	expect_usage(AGENT("watcher"), "is an observer or admin session");
	expect_usage(AGENT("watcher", "--offline"), "is an observer or admin session");
	gpool_close(watcher);
}

/* Use more regions than one reply holds, and finally more than the table holds. */
static void test_many_regions(void **state)
{
	struct result result;
	const cJSON *row;
	double last = 0;

	(void)state;
	writer_start();
	for (uint32_t count = 3000; count <= ROWS; count += ROWS - 3000) {
		uint32_t listed = count < REGION_TABLE_ENTRIES ? count : REGION_TABLE_ENTRIES;

		region_table_begin(world.writer);
		while (world.rows < count)
			row_add(world.rows % 2 ? REGION_ROW_HOLE : REGION_ROW_ALLOCATED, 1 + world.rows % 3, 1, 0, 0);
		region_table_totals(world.writer, &world.totals);
		region_table_end(world.writer);
		result = AGENT_JSON("engine");
		expect(&result, OK);
		assert_true(is_true(result.json, "whole"));
		assert_true(is_true(result.json, "totals_fit"));
		assert_int_equal(number(result.json, "unlisted"), count - listed);
		assert_int_equal(cJSON_GetArraySize(list(&result, "regions")), listed);
		last = 0;
		cJSON_ArrayForEach(row, list(&result, "regions"))
		{
			assert_true(number(row, "address") > last);
			last = number(row, "address");
		}
		result_free(&result);
	}
	result = AGENT("engine");
	expect(&result, OK);
	expect_text(result.out, "10 regions, for which the table has no room, are missing below");
	result_free(&result);
}

/* ---- workers that hang, die, or change their tables continuously ---- */

/* Start a process with its own session that stops itself during a change. */
static pid_t hanging_start(void)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		struct region_row row = {.id = 9, .pages = 7, .state = REGION_ROW_FREE};

		world.worker = worker_open("p0", "hanging");
		writer_start();
		rows_example();
		row.address = world.next;
		region_table_begin(world.writer);
		region_table_set(world.writer, &world.numbers[2], &row);
		region_serial_begin(&world.worker->session.regions->entries[world.numbers[4]].serial);
		raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(WIFSTOPPED(status));
	keeper_wait("hanging");
	return child;
}

static void expect_hanging(struct result result)
{
	expect(&result, OK);
	expect_text(result.out, "the table was being changed");
	expect_text(result.out, "the totals were being changed");
	expect_text(result.out, "1 region is being changed");
	expect_text(result.out, "[-3][+10] [-5][*4][#6][*100] [2][-7]");
	expect_text(result.out, "was being changed\n");
	result_free(&result);
}

static void test_hanging_worker(void **state)
{
	pid_t child = hanging_start();
	struct result result;

	(void)state;
	expect_hanging(AGENT("hanging"));
	expect_hanging(AGENT("hanging", "--offline"));
	result = AGENT_JSON("hanging");
	expect(&result, OK);
	assert_false(is_true(result.json, "whole"));
	assert_true(is_true(result.json, "totals_changing"));
	result_free(&result);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	/* the agent handles this worker's end with a delay; until then poolctl shows the worker as before */
	do {
		result = AGENT("hanging");
		if (result.code == OK)
			result_free(&result);
	} while (result.code == OK);
	expect_usage(result, "hanging");
}

static _Atomic bool stop;

/* Move the boundary between two adjacent regions of 20 pages in total. */
static void *border_moves(void *argument)
{
	struct region_row low = {.address = BASE, .state = REGION_ROW_ALLOCATED}, high = {.state = REGION_ROW_FREE};
	uint16_t numbers[2] = {REGION_ROW_NEW, REGION_ROW_NEW};

	(void)argument;
	for (uint32_t i = 0; !atomic_load(&stop); i++) {
		low.pages = 1 + i % 19;
		low.id = low.fence = low.pages;
		high.pages = 20 - low.pages;
		high.id = high.fence = high.pages;
		high.address = BASE + low.pages * PAGE_BYTES;
		region_table_begin(world.writer);
		region_table_set(world.writer, &numbers[0], &low);
		region_table_set(world.writer, &numbers[1], &high);
		region_table_end(world.writer);
	}
	return NULL;
}

static void test_restless_worker(void **state)
{
	const char *const ways[] = {NULL, "--offline"};
	pthread_t thread;

	(void)state;
	writer_start();
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, border_moves, NULL), 0);
	for (int i = 0; i < 20; i++) {
		struct result result = AGENT_JSON("engine", ways[i % 2]);
		const cJSON *row;
		double pages = 0;

		expect(&result, OK);
		cJSON_ArrayForEach(row, list(&result, "regions"))
		{
			pages += number(row, "pages");
			if (is_true(row, "changing"))
				continue;
			assert_int_equal(number(row, "id"), number(row, "pages"));
			assert_int_equal(number(row, "fence"), number(row, "pages"));
			assert_true(!strcmp(string(row, "state"), "free") || number(row, "address") == (double)BASE);
		}
		if (is_true(result.json, "whole") && pages != 0)
			assert_int_equal(pages, 20);
		result_free(&result);
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
}

/* ---- false entries ---- */

static void test_false_entries(void **state)
{
	const char *const ways[] = {NULL, "--offline"};
	struct region_table *table = world.worker->session.regions;
	struct result result;

	(void)state;
	writer_start();
	rows_example();
	atomic_store(&table->entries[0].what, 77);
	atomic_store(&table->entries[1].pages, UINT32_MAX);
	atomic_fetch_add(&table->totals[0], 1);
	for (int i = 0; i < 2; i++) {
		result = AGENT("engine", ways[i]);
		expect(&result, OK);
		expect_text(result.out, "damaged: invalid entries of the table, skipped: 1");
		expect_text(result.out, "overlapping regions: 6");
		expect_text(result.out, " [2]"); /* the undamaged rows are shown */
		result_free(&result);
	}
	atomic_store(&table->entries[0].what, REGION_ROW_FREE);
	atomic_store(&table->entries[1].pages, 10);
	result = AGENT("engine");
	expect(&result, OK);
	expect_text(result.out, "the totals differ from the sums of the regions below");
	result_free(&result);
	atomic_store(&table->used, REGION_TABLE_ENTRIES + 1);
	for (int i = 0; i < 2; i++) {
		result = AGENT("engine", ways[i]);
		expect(&result, OK);
		expect_text(result.out, "its table of regions is damaged");
		result_free(&result);
	}
}

static void test_random_bytes(void **state)
{
	const char *const ways[] = {NULL, "--offline"};
	struct region_table *table = world.worker->session.regions;
	uint64_t *words = (uint64_t *)(void *)table, random = 7;

	(void)state;
	for (int round = 0; round < 10; round++) {
		for (size_t i = 0; i < sizeof(*table) / sizeof(*words); i++) {
			random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
			words[i] = random >> 60 & 1 ? random >> (random >> 56 & 63) : 0;
		}
		if (round > 1) {
			atomic_store(&table->used, round % 3 ? REGION_TABLE_ENTRIES : (uint32_t)round * 100);
			atomic_store(&table->page_bytes, round % 2 ? PAGE_BYTES : UINT64_C(1) << 40);
		}
		for (int i = 0; i < 2; i++) {
			struct result result = AGENT_JSON("engine", ways[i]);

			expect(&result, OK);
			expect_document(&result, "regions");
			result_free(&result);
			result = AGENT("engine", ways[i]);
			expect(&result, OK);
			result_free(&result);
		}
	}
	/* the agent is not affected */
	struct result result = poolctl("-d", world.harness.directory, "check", NULL);

	expect(&result, OK);
	result_free(&result);
}

/* ---- without the agent ---- */

static pid_t agent_pid(void)
{
	struct result result = poolctl("-d", world.harness.directory, "-o", "json", "--timeout", "20", "status", NULL);
	pid_t pid;

	expect(&result, OK);
	pid = (pid_t)number(result.json, "agent_pid");
	result_free(&result);
	return pid;
}

/* Poolctl reads a stopped agent's tables without the agent. Once a successor runs, it sends requests again. */
static void test_without_agent(void **state)
{
	char folder[TEMPORARY_PATH_BYTES], snapshot[64];
	pid_t agent = agent_pid();
	struct result result;

	(void)state;
	writer_start();
	rows_example();
	kill(agent, SIGSTOP);
	result = AGENT_JSON("engine", "--offline");
	expect(&result, OK);
	expect_example(&result);
	assert_true(is_true(result.json, "offline"));
	result_free(&result);
	result = AGENT("engine", "--timeout", "0.3");
	expect(&result, NO_AGENT);
	expect_text(result.err, "--offline");
	result_free(&result);
	assert_non_null(mkdtemp(temporary_path(folder, "poolctl.XXXXXX")));
	snprintf(snapshot, sizeof(snapshot), "%s/snapshot", folder);
	result = poolctl("-d", world.harness.directory, "dump", snapshot, NULL);
	expect(&result, OK);
	result_free(&result);
	kill(agent, SIGKILL);

	result = AGENT_JSON("engine", "--timeout", "20");
	expect(&result, OK);
	expect_example(&result);
	result_free(&result);
	assert_true(agent_pid() != agent);

	/* the table that the keeper has is outdated by now */
	region_table_begin(world.writer);
	region_table_clear(world.writer, &world.numbers[1]);
	region_table_end(world.writer);
	result = poolctl("regions", "engine", "--offline", snapshot, "-o", "json", NULL);
	expect(&result, OK);
	expect_example(&result);
	result_free(&result);
	expect_usage(poolctl("regions", "missing", "--offline", snapshot, NULL), "poolctl clients --offline");
	unlink(snapshot);
	rmdir(folder);
}

/* A snapshot by a user that may not read session tables contains none of them. */
static void test_snapshot_without_sessions(void **state)
{
	static const uint64_t nothing[6] = {0};
	char folder[TEMPORARY_PATH_BYTES], snapshot[64];
	struct result result;
	size_t bytes, at;
	uint64_t *content;

	(void)state;
	assert_non_null(mkdtemp(temporary_path(folder, "poolctl.XXXXXX")));
	snprintf(snapshot, sizeof(snapshot), "%s/snapshot", folder);
	result = poolctl("-d", world.harness.directory, "dump", snapshot, NULL);
	expect(&result, OK);
	result_free(&result);
	/* the first segment is p0; cut off the others */
	content = (uint64_t *)(void *)file_read(snapshot, &bytes);
	((uint32_t *)content)[3] = 1;
	for (at = 6; content[at + 1]; at += 2 + content[at + 1] / 8)
		;
	assert_true((at + 2) * 8 < bytes);
	assert_memory_equal(nothing, &content[at], 2 * sizeof(*content));
	file_write(snapshot, content, (at + 2) * 8);
	free(content);
	result = poolctl("regions", "engine", "--offline", snapshot, NULL);
	expect(&result, FAILED);
	expect_text(result.err, "without root privileges");
	result_free(&result);
	unlink(snapshot);
	rmdir(folder);
}

#define WITH_WORKER(test) cmocka_unit_test_setup_teardown(test, worker_setup, worker_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_WORKER(test_regions),
		WITH_WORKER(test_never_used),
		WITH_WORKER(test_unknown_clients),
		WITH_WORKER(test_many_regions),
		WITH_WORKER(test_hanging_worker),
		WITH_WORKER(test_restless_worker),
		WITH_WORKER(test_false_entries),
		WITH_WORKER(test_random_bytes),
		WITH_WORKER(test_without_agent),
		WITH_WORKER(test_snapshot_without_sessions),
	};

	unsetenv("NO_COLOR");
	unsetenv("GPOOL_DIR");
	return cmocka_run_group_tests(tests, agent_setup, agent_teardown);
}
