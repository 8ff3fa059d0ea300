/*
 * test_poolctl.c - poolctl as users run it, with a real agent.
 *
 * Goal: every verb works in both formats. Invalid requests are refused with the right exit status. Help, man page and
 * completion agree. --offline reads a stopped agent.
 *
 * Method: run the program of this build against a gpoold, with this process as its worker, and parse the JSON.
 *
 * Requirements: C6, O1.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include "client/object/object.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* ---- the command line ---- */

static void test_usage_errors(void **state)
{
	static const char *const lines[][6] = {
		{"frobnicate"},
		{""},
		{"-x", "status"},
		{"--frobnicate", "status"},
		{"status", "--frobnicate"},
		{"status", "extra"},
		{"status", "-o", "xml"},
		{"status", "-o"},
		{"status", "--quiet=yes"},
		{"status", "--timeout", "soon"},
		{"status", "--timeout", "-1"},
		{"status", "--timeout", "nan"},
		{"status", "-p", ""},
		{"status", "--first", "3"}, /* an option of another verb */
		{"pages", "--first", "-1"},
		{"pages", "--count", "0"},
		{"pages", "--count", "12x"},
		{"pages", "--owner", "4096"},
		{"pages", "--state", "LENT"},
		{"events", "--kind", "party"},
		{"events", "--count", "18446744073709551616"},
		{"evict"},
		{"evict", "1", "2"},
		{"evict", "1", "--usage", "KV_CACHE,SOUP"},
		{"evict", "1", "--session", "0"},
		{"limit"},
		{"object"},
		{"object", "delete"},
		{"object", "paint", "a"},
		{"regions"},
		{"regions", "a", "b"},
		{"limit", "a"},
		{"limit", "a", "--session", "3", "--limit", "1"},
		{"limit", "--session", "3"},
		{"limit", "--session", "3", "--minimum", "1"},
		{"check", "--quiescent"},
		{"dump"},
		{"help", "frobnicate"},
		{"roles", "main"},
		{"roles", "remove"},
		{"roles", "remove", ""},
		{"roles", "remove", "main", "--offline"},
		{"roles", "--domain", "red"},
		{"roles", "remove", "main", "--domain", ""},
		{"tenants", "--offline"},
		{"events", "--since", "5"},
		{"events", "--since", "0s"},
		{"events", "--since", ""},
		{"trace", "--since", "soon"},
		{"trace", "--session", "4096"},
		{"trace", "--offline", "--since", "5 m"},
		{"evict", "1", "--offline"},
		{"doctor", "--offline"},
		{"dump", "x", "--offline"},
		{"doctor", "-p", "p0"},
		{"drain", "--off", "--evict"},
		{"drain", "--off", "--no-wait"},
		{"drain", "p0"},
		{"pages", "--map", "--each"},
		{"top", "--interval", "0.01"},
		{"top", "--interval", "soon"},
		{"top", "-o", "json"},
		{"top", "--offline"},
		{"adapters", "a"},
		{"prefixes", "a"},
		{"help", "--completion", "fish"},
		{"bench", "--offline"},
		{"drain", "--offline"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		const char *const *line = lines[i];
		struct result result = poolctl(line[0], line[1], line[2], line[3], line[4], line[5], NULL);

		if (result.code != USAGE)
			fail_msg("line %zu, %s %s: exit status %d", i, lines[i][0], lines[i][1] ? lines[i][1] : "",
				result.code);
		expect(&result, USAGE);
		assert_string_equal(result.out, "");
		expect_text(result.err, "--help");
		result_free(&result);
	}
	struct result result = poolctl(NULL);

	expect(&result, USAGE);
	result_free(&result);
}

static void test_every_verb_has_help(void **state)
{
	char names[32][16];
	int count = verb_names(names);

	(void)state;
	assert_true(count >= 14);
	for (int i = 0; i < count; i++) {
		char usage[96];
		struct result option = poolctl(names[i], "--help", NULL);
		struct result verb = poolctl("help", names[i], NULL);

		snprintf(usage, sizeof(usage), "Usage: poolctl [OPTION]... %.15s", names[i]);
		expect(&option, OK);
		assert_int_equal(strncmp(option.out, usage, strlen(usage)), 0);
		assert_string_equal(option.out, verb.out);
		result_free(&option);
		result_free(&verb);
	}
	struct result result = poolctl("--version", NULL);

	expect(&result, OK);
	assert_int_equal(strncmp(result.out, "poolctl ", 8), 0);
	result_free(&result);
}

/* The man page contains the parts that the program prints, word for word. */
static void test_man_page_is_current(void **state)
{
	static const char end[] = ".\\\" End of what poolctl help --man writes.\n";
	struct result result = poolctl("help", "--man", NULL);
	char *page = source_read("docs/man/poolctl.1"), *part = result.out;
	int parts = 0;

	(void)state;
	expect(&result, OK);
	while (*part) {
		char *stop = strstr(part, end), after;

		assert_non_null(stop);
		stop += strlen(end);
		after = *stop;
		*stop = '\0';
		if (!strstr(page, part))
			fail_msg("docs/man/poolctl.1 is not what 'poolctl help --man' writes:\n%s", part);
		*stop = after;
		part = stop;
		parts++;
	}
	assert_int_equal(parts, 2);
	free(page);
	result_free(&result);
}

/* Check bash's completions of `words`, the last of which is incomplete. */
static void expect_completion(const char *words, const char *wanted)
{
	char command[512], line[512] = "";
	FILE *bash;

	snprintf(command, sizeof(command),
		"bash -c 'source <(%s help --completion bash); COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
		"_poolctl; echo ${COMPREPLY[*]}'",
		poolctl_path(), words);
	bash = popen(command, "re");
	assert_non_null(bash);
	assert_non_null(fgets(line, sizeof(line), bash));
	assert_int_equal(pclose(bash), 0);
	assert_string_equal(line, wanted);
}

static void test_completion(void **state)
{
	static const char *const names[] = {"'evict:", "--usage=[", ":(table json)", "#compdef poolctl"};
	struct result result;

	(void)state;
	expect_completion("poolctl ev", "events evict\n");
	expect_completion("poolctl evict --us", "--usage\n");
	expect_completion("poolctl -o js", "json\n");
	expect_completion("poolctl pages --state RE", "RESERVED RETIRED\n");
	result = poolctl("help", "--completion", "zsh", NULL);
	expect(&result, OK);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		expect_text(result.out, names[i]);
	result_free(&result);
}

static void test_no_agent(void **state)
{
	static const char *const lines[][4] = {
		{"status"},
		{"pages"},
		{"pins"},
		{"clients"},
		{"tenants"},
		{"events", "--count", "1"},
		{"evict", "1"},
		{"limit", "a", "--limit", "1"},
		{"reload"},
		{"check"},
		{"roles"},
		{"roles", "remove", "a"},
		{"regions", "a"},
		{"drain"},
		{"top"},
		{"adapters"},
		{"prefixes"},
	};
	char directory[TEMPORARY_PATH_BYTES];
	struct result result;

	(void)state;
	assert_non_null(mkdtemp(temporary_path(directory, "poolctl.XXXXXX")));
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		result = poolctl("-d", directory, lines[i][0], lines[i][1], lines[i][2], lines[i][3], NULL);
		expect(&result, NO_AGENT);
		expect_text(result.err, "is gpoold running?");
		expect_text(result.err, directory);
		assert_string_equal(result.out, "");
		result_free(&result);
	}
	/* GPOOL_DIR sets the directory, --dir overrides it */
	setenv("GPOOL_DIR", "/nonexistent/a", 1);
	result = poolctl("status", NULL);
	expect(&result, NO_AGENT);
	expect_text(result.err, "/nonexistent/a");
	result_free(&result);
	result = poolctl("status", "-d", "/nonexistent/b", NULL);
	expect(&result, NO_AGENT);
	expect_text(result.err, "/nonexistent/b");
	result_free(&result);
	unsetenv("GPOOL_DIR");
	/* without an agent, poolctl still reports its own version */
	result = poolctl("version", "-d", directory, "-o", "json", NULL);
	expect(&result, NO_AGENT);
	expect_document(&result, "version");
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(result.json, "agent")));
	result_free(&result);
	rmdir(directory);
}

/* The sockets of a gpoold that was killed. */
static void test_a_killed_gpoold(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char directory[TEMPORARY_PATH_BYTES], pid_path[64];
	struct result result;
	int status, attach = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	pid_t gone = fork();
	FILE *file;

	(void)state;
	if (gone == 0)
		_exit(0);
	assert_int_equal(waitpid(gone, &status, 0), gone);
	assert_non_null(mkdtemp(temporary_path(directory, "poolctl.XXXXXX")));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/attach", directory);
	assert_int_equal(bind(attach, (struct sockaddr *)&address, sizeof(address)), 0);
	close(attach);
	snprintf(pid_path, sizeof(pid_path), "%s/gpoold.pid", directory);
	file = fopen(pid_path, "we");
	assert_non_null(file);
	fprintf(file, "%d\n", (int)gone);
	fclose(file);
	result = poolctl("-d", directory, "status", NULL);
	expect(&result, NO_AGENT);
	expect_text(result.err, "the gpoold that created the sockets has ended");
	result_free(&result);
	unlink(pid_path);
	unlink(address.sun_path);
	rmdir(directory);
}

/* ---- doctor ---- */

static const cJSON *doctor_line(const struct result *result, const char *thing)
{
	const cJSON *line;

	cJSON_ArrayForEach(line, list(result, "lines")) if (!strcmp(string(line, "thing"), thing)) return line;
	fail_msg("doctor says nothing about %s: %s", thing, result->out);
	return NULL;
}

static void test_doctor(void **state)
{
	static const char *const things[] = {"kernel", "sealed memory", "pidfd", "peer pidfd", "io_uring",
		"wipe on fork", "NVIDIA driver", "host back end", "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_NPROC",
		"vm.max_map_count", "memory", "/dev/shm", "cgroup memory limit", "socket directory", "agent",
		"clock source", "CPUs"};
	char directory[TEMPORARY_PATH_BYTES];
	struct result result;
	int fails;

	(void)state;
	assert_non_null(mkdtemp(temporary_path(directory, "poolctl.XXXXXX")));
	result = poolctl("doctor", "-d", directory, "-o", "json", NULL);
	expect_document(&result, "doctor");
	for (size_t i = 0; i < sizeof(things) / sizeof(things[0]); i++)
		doctor_line(&result, things[i]);
	fails = (int)number(result.json, "fail");
	assert_int_equal(result.code, fails ? FOUND : OK);
	/* this test has just used gpool's segments, so they work on this machine */
	assert_string_equal(string(doctor_line(&result, "sealed memory"), "verdict"), "ok");
	assert_string_equal(string(doctor_line(&result, "socket directory"), "verdict"), "ok");
	result_free(&result);

	/* gpoold refuses a world-writable folder */
	assert_int_equal(chmod(directory, 0777), 0);
	result = poolctl("doctor", "-d", directory, "-o", "json", NULL);
	assert_int_equal(result.code, FOUND);
	assert_int_equal(number(result.json, "fail"), fails + 1);
	assert_string_equal(string(doctor_line(&result, "socket directory"), "verdict"), "fail");
	expect_text(string(doctor_line(&result, "socket directory"), "advice"), "chmod");
	result_free(&result);

	result = poolctl("doctor", "-d", directory, NULL);
	assert_int_equal(result.code, FOUND);
	expect_text(result.out, "host back end");
	expect_text(result.out, "-> chmod");
	result_free(&result);

	result = poolctl("doctor", "-q", "-d", directory, NULL);
	assert_int_equal(result.code, FOUND);
	assert_string_equal(result.out, "");
	result_free(&result);
	rmdir(directory);
}

/* ---- with an agent ---- */

enum { P0_PAGES = 2048, P0_PAGE_BYTES = 512 << 10, P1_PAGES = 32 };

/* One agent for all tests. This process is a worker of the first pool. */
struct world {
	struct harness harness;
	struct gpool *worker;
	uint32_t session;
};

static struct world world;

static struct gpool_block block_make(uint32_t pages, uint32_t content, uint64_t owner_id)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.usage = content;
	options.owner_id = owner_id;
	assert_int_equal(gpool_alloc(world.worker, pages, &options, &block), 0);
	return block;
}

/*
 * Allocate as pinned blocks 4 pages of KV_CACHE and 1 of ACTIVATION, and as unpinned ones three blocks of TEMP_BUFFER
 * with 2 pages each.
 */
static int world_setup(void **state)
{
	/* more pages than one reply holds; pins leak soon; the user nobody is an observer, and only root is an admin */
	static const char *const arguments[] = {
		"--pool",
		"name=p0,backend=host,size=1GiB,page_size=512KB,reserved=0",
		"--pool",
		"name=p1,backend=host,size=64MiB,page_size=2MB,reserved=0",
		"--set",
		"pins.max_duration=10ms",
		"--set",
		"access.observers.users=nobody",
		"--set",
		"group=nogroup",
		NULL,
	};

	(void)state;
	harness_start(&world.harness, arguments);
	world.worker = harness_open(&world.harness);
	world.session = gpool_session(world.worker);
	block_make(4, GPOOL_USAGE_KV_CACHE, 77);
	block_make(1, GPOOL_USAGE_ACTIVATION, 78);
	for (int i = 0; i < 3; i++) {
		struct gpool_block block = block_make(2, GPOOL_USAGE_TEMP_BUFFER, 100);

		assert_int_equal(gpool_unpin(world.worker, &block), 0);
	}
	return 0;
}

static int world_teardown(void **state)
{
	(void)state;
	gpool_close(world.worker);
	return harness_stop(&world.harness);
}

#define AGENT(...) poolctl("-d", world.harness.directory, __VA_ARGS__, NULL)
#define AGENT_JSON(...) poolctl("-d", world.harness.directory, "-o", "json", __VA_ARGS__, NULL)

static const cJSON *find(const cJSON *in, const char *name, double value)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, in) if (number(item, name) == value) return item;
	fail_msg("no item with %s %g in %s", name, value, cJSON_PrintUnformatted(in));
	return NULL;
}

static void test_status(void **state)
{
	struct result result = AGENT_JSON("status");
	const cJSON *pool;
	char title[128];

	(void)state;
	expect(&result, OK);
	expect_document(&result, "status");
	assert_int_equal(cJSON_GetArraySize(list(&result, "pools")), 2);
	assert_int_equal(kill((pid_t)number(result.json, "agent_pid"), 0), 0);
	assert_int_equal(kill((pid_t)number(result.json, "front_pid"), 0), 0);
	pool = list(&result, "pools")->child;
	assert_string_equal(string(pool, "name"), "p0");
	assert_string_equal(string(pool, "backend"), harness_backend());
	assert_string_equal(string(pool, "policy"), "lru_size_aware");
	assert_int_equal(number(pool, "page_bytes"), P0_PAGE_BYTES);
	assert_int_equal(number(pool, "page_count"), P0_PAGES);
	assert_int_equal(number(pool, "pinned_pages"), 5);
	assert_int_equal(number(pool, "used_pages"), 11);
	assert_int_equal(number(pool, "needed_pages"), 5);
	assert_int_equal(number(pool, "offered_pages"), 6);
	assert_int_equal(number(pool, "idle_pages"), number(pool, "leased_pages") - 11);
	assert_true(number(pool, "pool_utilization") == 11 / number(pool, "page_count"));
	assert_true(
		number(pool, "fragmentation_ratio") == number(pool, "largest_free_run") / number(pool, "free_pages"));
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(pool, "pin_contention"))); /* no pin was taken */
	assert_int_equal(number(pool, "leased_pages") + number(pool, "free_pages"), P0_PAGES);
	assert_string_equal(string(pool, "pressure"), "low");
	assert_int_equal(number(pool, "allocations"), 5);
	result_free(&result);

	result = AGENT_JSON("status", "-p", "p1");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pools")), 1);
	assert_int_equal(number(list(&result, "pools")->child, "page_count"), P1_PAGES);
	result_free(&result);

	result = AGENT("status");
	expect(&result, OK);
	snprintf(title, sizeof(title),
		"pool 'p0': 2048 pages of 512 KiB, 1 GiB, %s back end, policy lru_size_aware, pressure low",
		harness_backend());
	expect_text(result.out, title);
	expect_text(result.out, "pool 'p1': 32 pages of 2 MiB");
	expect_text(result.out, "needed\n");
	expect_text(result.out, "offered\n");
	expect_text(result.out, "idle\n");
	result_free(&result);
}

/* Requirements: U2. */
static void test_pages(void **state)
{
	struct result result = AGENT_JSON("pages");
	const cJSON *item;
	int pages = 0, pinned = 0, blocks = 0;

	(void)state;
	expect(&result, OK);
	expect_document(&result, "pages");
	assert_int_equal(number(result.json, "page_count"), P0_PAGES);
	cJSON_ArrayForEach(item, list(&result, "runs"))
	{
		assert_int_equal(number(item, "first"), pages); /* no page is missing or listed twice */
		pages += (int)number(item, "count");
		if (!strcmp(string(item, "use"), "block")) {
			blocks += (int)number(item, "blocks");
			pinned += number(item, "pins") ? (int)number(item, "count") : 0;
			assert_int_equal(number(item, "owner"), world.session);
		}
	}
	assert_int_equal(pages, P0_PAGES);
	assert_int_equal(pinned, 5);
	assert_int_equal(blocks, 5);
	result_free(&result);

	result = AGENT_JSON("pages", "--each");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pages")), P0_PAGES);
	item = cJSON_GetArrayItem(list(&result, "pages"), P0_PAGES - 1);
	assert_int_equal(number(item, "page"), P0_PAGES - 1);
	item = find(list(&result, "pages"), "owner", world.session);
	result_free(&result);

	result = AGENT_JSON("pages", "--map");
	expect(&result, OK);
	expect_document(&result, "map");
	assert_int_equal(number(result.json, "pages_per_cell"), 1);
	assert_int_equal(strlen(string(result.json, "cells")), P0_PAGES);
	expect_text(string(result.json, "cells"), "KKKK");
	expect_text(string(result.json, "cells"), "tttttt");
	pages = 0;
	cJSON_ArrayForEach(item, list(&result, "legend")) pages += (int)number(item, "pages");
	assert_int_equal(pages, P0_PAGES);
	assert_int_equal(number(find(list(&result, "legend"), "pages", 4), "pages"), 4);
	result_free(&result);
	result = AGENT("pages", "--map", "--state", "PINNED");
	expect(&result, OK);
	expect_text(result.out, "a letter represents 1 page");
	expect_text(result.out, "KKKK");
	expect_text(result.out, "KV_CACHE, pinned");
	assert_null(strstr(result.out, "TEMP_BUFFER"));
	result_free(&result);

	result = AGENT_JSON("pages", "--each", "--state", "PINNED");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pages")), 5);
	cJSON_ArrayForEach(item, list(&result, "pages"))
	{
		assert_string_equal(string(item, "status"), "PINNED");
		assert_int_equal(number(item, "owner_id"), !strcmp(string(item, "usage"), "KV_CACHE") ? 77 : 78);
	}
	result_free(&result);

	result = AGENT("pages", "-p", "p1");
	expect(&result, OK);
	expect_text(result.out, "0-31   64 MiB  FREE");
	result_free(&result);

	result = AGENT("pages", "--first", "2048");
	expect(&result, USAGE);
	expect_text(result.err, "its last page is 2047");
	result_free(&result);
}

/* Requirements: E11. */
static void test_reserved_pages(void **state)
{
	uint64_t reservation;
	struct result result;
	const cJSON *item;
	int pages = 0;

	(void)state;
	assert_int_equal(gpool_reservation_create(world.worker, 40, 0, 0, &reservation), 0);
	result = AGENT_JSON("pages");
	expect(&result, OK);
	cJSON_ArrayForEach(item, list(&result, "runs"))
	{
		if (strcmp(string(item, "use"), "reservation") != 0)
			continue;
		assert_int_equal(number(item, "owner"), world.session);
		pages += (int)number(item, "count");
	}
	assert_int_equal(pages, 40);
	result_free(&result);
	result = AGENT("pages", "--map");
	expect(&result, OK);
	expect_text(result.out, "++++++++");
	expect_text(result.out, "in reservations");
	assert_null(strstr(result.out, "in transit"));
	result_free(&result);
	assert_int_equal(gpool_reservation_release(world.worker, reservation), 40);
}

/* Requirements: U6. */
static void test_pins(void **state)
{
	struct result result = AGENT_JSON("pins");
	const cJSON *pin;
	int leaked = 0;

	(void)state;
	expect(&result, OK);
	expect_document(&result, "pins");
	assert_int_equal(cJSON_GetArraySize(list(&result, "pins")), 2);
	pin = find(list(&result, "pins"), "owner_id", 77);
	assert_string_equal(string(pin, "pool"), "p0");
	assert_string_equal(string(pin, "usage"), "KV_CACHE");
	assert_int_equal(number(pin, "page_count"), 4);
	assert_int_equal(number(pin, "pins"), 1);
	assert_int_equal(number(pin, "session"), world.session);
	assert_int_equal(number(pin, "pid"), getpid());
	result_free(&result);

	/* the pins are held for longer than pins.max_duration, by a clock with coarse steps */
	for (int tries = 0; leaked < 2 && tries < 12000; tries++) {
		result = AGENT_JSON("pins", "--leaked");
		expect(&result, OK);
		leaked = cJSON_GetArraySize(list(&result, "pins"));
		result_free(&result);
	}
	assert_int_equal(leaked, 2);
	result = AGENT("pins", "-p", "p0");
	expect(&result, OK);
	expect_text(result.out, "leaked");
	result_free(&result);
	result = AGENT_JSON("pins", "-p", "p1");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pins")), 0);
	result_free(&result);
}

static void test_clients(void **state)
{
	struct result result = AGENT_JSON("clients");
	const cJSON *client, *item;
	bool self = false;

	(void)state;
	expect(&result, OK);
	expect_document(&result, "clients");
	client = find(list(&result, "clients"), "pid", getpid());
	assert_int_equal(number(client, "session"), world.session);
	assert_string_equal(string(client, "pool"), "p0");
	assert_string_equal(string(client, "kind"), "worker");
	assert_string_equal(string(client, "tenant"), "default");
	assert_string_equal(string(client, "state"), "live");
	assert_int_equal(number(client, "used_pages"), 11);
	assert_int_equal(number(client, "pinned_pages"), 5);
	assert_int_equal(number(client, "needed_pages"), 5);
	assert_int_equal(number(client, "offered_pages"), 6);
	assert_int_equal(number(client, "idle_pages"), number(client, "leased_pages") - 11);
	assert_int_equal(number(client, "allocations"), 5);
	cJSON_ArrayForEach(item, list(&result, "clients")) self = self || !strcmp(string(item, "name"), "poolctl");
	assert_true(self);
	result_free(&result);

	result = AGENT_JSON("clients", "-p", "p1");
	expect(&result, OK);
	cJSON_ArrayForEach(item, list(&result, "clients")) assert_string_equal(string(item, "pool"), "p1");
	result_free(&result);

	result = AGENT("clients");
	expect(&result, OK);
	expect_text(result.out, "LEASED  NEEDED  OFFERED  IDLE");
	expect_text(result.out, "worker");
	expect_text(result.out, "observer");
	result_free(&result);
}

static void test_tenants(void **state)
{
	struct result result = AGENT_JSON("tenants");
	const cJSON *tenant;

	(void)state;
	expect(&result, OK);
	expect_document(&result, "tenants");
	assert_int_equal(cJSON_GetArraySize(list(&result, "tenants")), 2);
	tenant = list(&result, "tenants")->child;
	assert_string_equal(string(tenant, "name"), "default");
	assert_int_equal(number(tenant, "limit_pages"), P0_PAGES);
	assert_int_equal(number(tenant, "needed_pages"), 5);
	assert_int_equal(number(tenant, "offered_pages"), 6);
	assert_int_equal(number(tenant, "idle_pages"), number(tenant, "leased_pages") - 11);
	assert_int_equal(number(cJSON_GetObjectItem(tenant, "used_pages"), "KV_CACHE"), 4);
	assert_int_equal(number(cJSON_GetObjectItem(tenant, "used_pages"), "TEMP_BUFFER"), 6);
	assert_int_equal(number(cJSON_GetObjectItem(tenant, "used_pages"), "ACTIVATION"), 1);
	result_free(&result);

	result = AGENT("tenants", "-p", "p1");
	expect(&result, OK);
	expect_text(result.out, "p1    default");
	assert_null(strstr(result.out, "p0"));
	result_free(&result);
}

static void test_held_roles(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT, other = GPOOL_ROLE_INIT;
	struct result result;
	const cJSON *item;

	(void)state;
	assert_int_equal(gpool_role_acquire(world.worker, "main", 0, &role), 0);
	assert_int_equal(gpool_role_acquire(world.worker, "other", 0, &other), 0);
	result = AGENT_JSON("roles");
	expect(&result, OK);
	expect_document(&result, "roles");
	assert_int_equal(cJSON_GetArraySize(list(&result, "roles")), 2);
	item = find(list(&result, "roles"), "token", (double)role.token);
	assert_string_equal(string(item, "name"), "main");
	assert_string_equal(string(item, "pool"), "p0");
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(item, "domain")));
	assert_int_equal(number(item, "domain_number"), 0);
	assert_string_equal(string(item, "tenant"), "default");
	assert_string_equal(string(item, "state"), "held");
	assert_int_equal(number(item, "session"), world.session);
	assert_int_equal(number(item, "pid"), getpid());
	assert_int_equal(number(item, "standbys"), 0);
	result_free(&result);
	result = AGENT("roles", "-p", "p0");
	expect(&result, OK);
	expect_text(result.out, "held");
	result_free(&result);
	result = AGENT_JSON("roles", "-p", "p1");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "roles")), 0);
	result_free(&result);

	result = AGENT("roles", "remove", "main");
	expect(&result, FAILED);
	expect_text(result.err, "is held");
	result_free(&result);
	assert_int_equal(gpool_role_release(world.worker, &role), 0);
	result = AGENT_JSON("roles", "remove", "main");
	expect(&result, OK);
	assert_int_equal(number(result.json, "token"), (double)role.token);
	result_free(&result);
	result = AGENT("roles", "remove", "main");
	expect(&result, USAGE);
	expect_text(result.err, "no role 'main'");
	result_free(&result);
	assert_int_equal(gpool_role_release(world.worker, &other), 0);
}

static void test_version(void **state)
{
	struct result result = AGENT_JSON("version");
	const cJSON *agent;

	(void)state;
	expect(&result, OK);
	expect_document(&result, "version");
	assert_string_equal(string(result.json, "library"), gpool_version());
	agent = cJSON_GetObjectItem(result.json, "agent");
	assert_string_equal(string(agent, "version"), string(result.json, "poolctl"));
	assert_int_equal(number(agent, "layout_version"), number(result.json, "layout_version"));
	assert_int_equal(strtol(string(agent, "layout"), NULL, 10), number(agent, "layout_version"));
	assert_non_null(strchr(string(agent, "layout"), '.'));
	assert_non_null(strchr(string(agent, "interface"), '.'));
	assert_int_equal(kill((pid_t)number(agent, "pid"), 0), 0);
	result_free(&result);
	result = AGENT("version");
	expect(&result, OK);
	expect_text(result.out, "agent ");
	result_free(&result);
}

static void test_unknown_names(void **state)
{
	static const char *const lines[][4] = {
		{"status"},
		{"pages"},
		{"pins"},
		{"clients"},
		{"tenants"},
		{"check"},
		{"evict", "1"},
		{"limit", "default", "--limit", "1"},
		{"objects"},
		{"object", "delete", "a"},
		{"roles"},
		{"roles", "remove", "main"},
		{"regions", "a"},
		{"drain"},
		{"bench"},
		{"adapters"},
		{"prefixes"},
		{"top"},
	};
	struct result result;

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		result = AGENT("-p", "nope", lines[i][0], lines[i][1], lines[i][2], lines[i][3]);
		expect(&result, USAGE);
		expect_text(result.err, "no pool 'nope'");
		result_free(&result);
	}
	result = AGENT("evict", "1", "--session", "4000");
	expect(&result, USAGE);
	expect_text(result.err, "no session 4000");
	result_free(&result);
	result = AGENT("limit", "--session", "4000", "--limit", "1");
	expect(&result, USAGE);
	result_free(&result);
	result = AGENT("limit", "nobody", "--limit", "1");
	expect(&result, USAGE);
	expect_text(result.err, "no tenant 'nobody'");
	result_free(&result);
}

static double tenant_number(const char *name)
{
	struct result result = AGENT_JSON("tenants", "-p", "p0");
	double value;

	expect(&result, OK);
	value = number(list(&result, "tenants")->child, name);
	result_free(&result);
	return value;
}

/* The pins are shown for the object and for its sessions. */
static void test_pinnable_object(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	struct result result;
	const cJSON *entry;
	uint64_t version;
	uint32_t index;

	(void)state;
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.flags = GPOOL_OBJECT_PRIVATE;
	options.cost_us = 2500;
	assert_int_equal(gpool_object_create(world.worker, "adapter", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 2, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_pin(object), 0);
	result = AGENT_JSON("objects");
	expect(&result, OK);
	entry = list(&result, "objects")->child;
	assert_string_equal(string(entry, "class"), "pinnable");
	assert_int_equal(number(entry, "pins"), 2);
	assert_int_equal(number(entry, "cost_us"), 2500);
	assert_int_equal(number(entry, "follows"), 0);
	assert_true(number(entry, "used_ms") > 0);
	assert_true(cJSON_IsTrue(cJSON_GetObjectItem(entry, "private")));
	result_free(&result);
	result = AGENT("objects");
	expect(&result, OK);
	expect_text(result.out, "2.5 ms");
	result_free(&result);
	result = AGENT_JSON("pins", "-p", "p0");
	expect(&result, OK);
	for (entry = list(&result, "pins")->child; entry && strcmp(string(entry, "object"), "adapter") != 0;
		entry = entry->next)
		;
	assert_non_null(entry);
	assert_string_equal(string(entry, "usage"), "object");
	assert_int_equal(number(entry, "pins"), 2);
	assert_int_equal(number(entry, "pid"), getpid());
	result_free(&result);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_delete(world.worker, "adapter", 0), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

/* The benchmark runs in parallel with a worker, takes no pages from it, and leaves nothing behind. */
static void test_bench(void **state)
{
	static const char *const numbers[] = {"used_pages", "pinned_pages", "evicted_pages", "sessions"};
	struct result before, result, after;

	(void)state;
	before = AGENT_JSON("status", "-p", "p0");
	result = AGENT_JSON("bench", "-p", "p0");
	after = AGENT_JSON("status", "-p", "p0");
	expect(&before, OK);
	expect(&result, OK);
	expect(&after, OK);
	expect_document(&result, "bench");
	assert_int_equal(cJSON_GetArraySize(list(&result, "figures")), 6);
	for (const cJSON *figure = list(&result, "figures")->child; figure; figure = figure->next) {
		assert_true(number(figure, "samples") > 0);
		assert_true(number(figure, "median") > 0);
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		assert_true(number(list(&before, "pools")->child, numbers[i]) ==
			number(list(&after, "pools")->child, numbers[i]));
	result_free(&before);
	result_free(&result);
	result_free(&after);
	result = AGENT("bench");
	expect(&result, OK);
	expect_text(result.out, "GOAL");
	result_free(&result);
	/* an ordinary request may use only these few pages */
	result = AGENT("bench", "-p", "p1");
	expect(&result, FAILED);
	expect_text(result.err, "free pages and a pressure below high are required");
	result_free(&result);
}

static struct gpool_object *object_publish(
	struct gpool *pool, const char *name, uint32_t memory_class, uint32_t flags, uint32_t pages)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	options.memory_class = memory_class;
	options.flags = flags;
	options.flags |= OBJECT_CREATE_OWN;
	assert_int_equal(gpool_object_create(pool, name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, pages, NULL, &index), 0);
	/* No byte of the name may affect a terminal. */
	assert_int_equal(gpool_object_set(object, "name", "of \"2026\"\033[1m", 13), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	return object;
}

/* Adapters are objects with the names that engines give them. Other objects are not shown. */
static void test_adapters(void **state)
{
	struct gpool_options options = harness_options(&world.harness);
	static const char *const names[] = {"lora/0123abcd", "lora/weights", "table", "warm/0123abcd"};
	struct gpool_object *objects[4];
	struct gpool *second;
	struct result result;
	const cJSON *entry;

	(void)state;
	options.pool = "p1";
	assert_int_equal(gpool_open(&options, &second), 0);
	objects[0] = object_publish(world.worker, names[0], GPOOL_OBJECT_PINNABLE, 0, 3);
	objects[1] = object_publish(world.worker, names[1], GPOOL_OBJECT_IMMUTABLE, 0, 1);
	objects[2] = object_publish(world.worker, names[2], GPOOL_OBJECT_PINNABLE, 0, 1);
	objects[3] = object_publish(second, names[3], GPOOL_OBJECT_PINNABLE, GPOOL_OBJECT_PRIVATE, 2);
	assert_int_equal(gpool_object_pin(objects[0]), 0);
	result = AGENT_JSON("adapters");
	expect(&result, OK);
	expect_document(&result, "adapters");
	assert_int_equal(cJSON_GetArraySize(list(&result, "adapters")), 2);
	entry = list(&result, "adapters")->child;
	assert_string_equal(string(entry, "pool"), "p0");
	assert_string_equal(string(entry, "tier"), "hot");
	assert_string_equal(string(entry, "name"), "of \"2026\"?[1m");
	assert_string_equal(string(entry, "key"), "0123abcd");
	assert_string_equal(string(entry, "object"), "lora/0123abcd");
	assert_string_equal(string(entry, "tenant"), "default");
	assert_int_equal(number(entry, "pages"), 3);
	assert_int_equal(number(entry, "readers"), 1);
	assert_int_equal(number(entry, "pins"), 1);
	assert_true(number(entry, "used_ms") > 0);
	assert_string_equal(string(entry, "activity"), "active");
	entry = entry->next;
	assert_string_equal(string(entry, "activity"), "idle");
	assert_string_equal(string(entry, "pool"), "p1");
	assert_string_equal(string(entry, "tier"), "warm");
	assert_string_equal(string(entry, "name"), ""); /* the name is private */
	assert_string_equal(string(entry, "key"), "0123abcd");
	assert_int_equal(number(entry, "pins"), 0);
	assert_int_equal(cJSON_GetArraySize(list(&result, "tiers")), 2);
	entry = list(&result, "tiers")->child;
	assert_string_equal(string(entry, "pool"), "p0");
	assert_string_equal(string(entry, "tier"), "hot");
	assert_int_equal(number(entry, "adapters"), 1);
	assert_int_equal(number(entry, "active"), 1);
	assert_true(number(entry, "bytes") == 3 * (double)gpool_page_bytes(world.worker));
	assert_float_equal(number(entry, "utilization"), number(entry, "bytes") / number(entry, "pool_bytes"), 1e-6);
	assert_int_equal(number(entry, "evictions"), 0);
	entry = entry->next;
	assert_string_equal(string(entry, "tier"), "warm");
	assert_int_equal(number(entry, "active"), 0);
	result_free(&result);
	result = AGENT("adapters", "-p", "p1");
	expect(&result, OK);
	expect_text(result.out, "warm");
	assert_null(strstr(result.out, "hot"));
	result_free(&result);
	assert_int_equal(gpool_object_unpin(objects[0]), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(gpool_object_delete(i < 3 ? world.worker : second, names[i], 0), 0);
		assert_int_equal(gpool_object_close(objects[i]), 0);
	}
	gpool_close(second);
}

/*
 * Shared prefixes are shown as a tree. Other objects are not shown, even if they follow one another.
 * Requirements: K17.
 */
static void test_prefixes(void **state)
{
	enum { COUNT = 7 };
	static const struct {
		const char *name;
		int follows, depth, followers, shown; /* shown: position; -1: not shown */
	} made[COUNT] = {
		{"kv-prefix/00aa", -1, 0, 2, 0},
		{"kv-prefix/01bb", 0, 1, 1, 1},
		{"vllm-kv/4e5f/0/02cc", -1, 0, 0, 4},
		{"kv-prefix/03dd", 0, 1, 0, 3},
		{"kv-prefix/04ee", 1, 2, 0, 2},
		{"other", 0, 0, 0, -1},
		{"kv-prefix/05ff", 5, 0, 0, 5},
	};
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *objects[COUNT];
	uint64_t numbers[COUNT] = {0}, version;
	struct result result;
	const cJSON *entry;
	uint32_t index, count = 0;

	(void)state;
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	for (int i = 0; i < COUNT; i++) {
		options.flags |= OBJECT_CREATE_OWN;
		assert_int_equal(gpool_object_create(world.worker, made[i].name, &options, &objects[i]), 0);
		assert_int_equal(gpool_object_alloc(objects[i], 1, NULL, &index), 0);
		objects[i]->follows = made[i].follows < 0 ? NULL : objects[made[i].follows];
		objects[i]->of_library = !strncmp(made[i].name, "kv-", 3);
		assert_int_equal(gpool_object_publish(objects[i], &version), 0);
	}
	assert_int_equal(gpool_object_pin(objects[3]), 0);
	result = AGENT_JSON("prefixes");
	expect(&result, OK);
	expect_document(&result, "prefixes");
	cJSON_ArrayForEach(entry, list(&result, "prefixes"))
	{
		for (int i = 0; i < COUNT; i++) {
			if (made[i].shown != (int)count)
				continue;
			numbers[i] = number(entry, "number");
			assert_string_equal(string(entry, "object"), made[i].name);
			assert_string_equal(string(entry, "pool"), "p0");
			assert_string_equal(string(entry, "state"), "current");
			assert_int_equal(number(entry, "depth"), made[i].depth);
			assert_int_equal(number(entry, "followers"), made[i].followers);
			assert_int_equal(number(entry, "follows"), made[i].depth ? numbers[made[i].follows] : 0);
			assert_int_equal(number(entry, "pages"), 1);
			assert_int_equal(number(entry, "readers"), 1);
			assert_int_equal(number(entry, "pins"), i == 3);
		}
		count++;
	}
	assert_int_equal(count, COUNT - 1);
	result_free(&result);
	result = AGENT("prefixes");
	expect(&result, OK);
	expect_text(result.out, "    04ee");
	assert_null(strstr(result.out, "other"));
	result_free(&result);
	assert_int_equal(gpool_object_unpin(objects[3]), 0);
	for (int i = COUNT; i-- > 0;) {
		assert_int_equal(gpool_object_delete(world.worker, made[i].name, 0), 0);
		assert_int_equal(gpool_object_close(objects[i]), 0);
	}
	result = AGENT_JSON("prefixes");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "prefixes")), 0);
	result_free(&result);
}

static void test_objects(void **state)
{
	struct gpool_object *object;
	struct result result;
	const cJSON *entry, *run;
	uint64_t version;
	uint32_t index, pages = 0;

	(void)state;
	assert_int_equal(gpool_object_create(world.worker, "weights", NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 3, NULL, &index), 0);
	assert_int_equal(gpool_object_set(object, "key", "value", 5), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	result = AGENT_JSON("objects");
	expect(&result, OK);
	expect_document(&result, "objects");
	assert_int_equal(cJSON_GetArraySize(list(&result, "objects")), 1);
	entry = list(&result, "objects")->child;
	assert_string_equal(string(entry, "pool"), "p0");
	assert_string_equal(string(entry, "name"), "weights");
	assert_string_equal(string(entry, "state"), "current");
	assert_string_equal(string(entry, "class"), "immutable");
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(entry, "domain")));
	assert_int_equal(number(entry, "domain_number"), 0);
	assert_string_equal(string(entry, "tenant"), "default");
	assert_int_equal(number(entry, "version"), version);
	assert_int_equal(number(entry, "pages"), 3);
	assert_int_equal(number(entry, "allocations"), 1);
	assert_int_equal(number(entry, "readers"), 1);
	assert_int_equal(number(entry, "pid"), getpid());
	index = (uint32_t)number(entry, "number");
	result_free(&result);
	result = AGENT_JSON("pages", "--state", "SHARED");
	expect(&result, OK);
	cJSON_ArrayForEach(run, list(&result, "runs"))
	{
		assert_int_equal(number(run, "object"), index);
		assert_int_equal(number(run, "owner"), 0);
		pages += (uint32_t)number(run, "count");
	}
	assert_int_equal(pages, 3);
	result_free(&result);
	result = AGENT("objects");
	expect(&result, OK);
	expect_text(result.out, "weights");
	result_free(&result);
	result = AGENT("-p", "p1", "objects");
	expect(&result, OK);
	assert_null(strstr(result.out, "weights"));
	result_free(&result);
	result = AGENT("object", "delete", "nothing");
	expect(&result, USAGE);
	expect_text(result.err, "no object 'nothing'");
	result_free(&result);
	result = AGENT("object", "delete", "");
	expect(&result, USAGE);
	expect_text(result.err, "cannot delete '': the name of the object is empty");
	result_free(&result);
	result = AGENT("object", "delete", "weights", "--object-version", "999");
	expect(&result, FAILED);
	expect_text(result.err, "is not current");
	result_free(&result);
	result = AGENT("object", "delete", "weights");
	expect(&result, OK);
	result_free(&result);
	/* The object is still open in this process. */
	result = AGENT_JSON("objects");
	expect(&result, OK);
	assert_string_equal(string(list(&result, "objects")->child, "state"), "deleted");
	result_free(&result);
	assert_int_equal(gpool_object_close(object), 0);
	result = AGENT_JSON("objects");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "objects")), 0);
	result_free(&result);
}

static void test_limit(void **state)
{
	struct result result = AGENT_JSON("limit", "default", "--limit", "50%", "--minimum", "8000KiB");

	(void)state;
	expect(&result, OK);
	expect_document(&result, "limit");
	assert_int_equal(number(result.json, "limit_pages"), P0_PAGES / 2);
	assert_int_equal(number(result.json, "minimum_pages"), 16); /* rounded up */
	result_free(&result);
	assert_int_equal(tenant_number("limit_pages"), P0_PAGES / 2);
	assert_int_equal(tenant_number("minimum_pages"), 16);

	/* one of the two options leaves the other value unchanged */
	result = AGENT("limit", "default", "--limit", "2000");
	expect(&result, OK);
	expect_text(result.out, "limit 2000 pages");
	result_free(&result);
	assert_int_equal(tenant_number("limit_pages"), 2000);
	assert_int_equal(tenant_number("minimum_pages"), 16);

	result = AGENT("limit", "default", "--minimum", "2001");
	expect(&result, FAILED);
	result_free(&result);
	result = AGENT("limit", "default", "--limit", "2049");
	expect(&result, USAGE);
	expect_text(result.err, "2048 pages");
	result_free(&result);

	char session[16];

	snprintf(session, sizeof(session), "%u", world.session);
	result = AGENT("limit", "--session", session, "--limit", "1GiB");
	expect(&result, OK);
	result_free(&result);
	result = AGENT_JSON("clients");
	assert_int_equal(number(find(list(&result, "clients"), "pid", getpid()), "limit_pages"), P0_PAGES);
	result_free(&result);
}

static void test_reload(void **state)
{
	struct result result = AGENT_JSON("reload");

	(void)state;
	expect(&result, OK);
	expect_document(&result, "reload");
	expect_text(string(result.json, "text"), "changed");
	result_free(&result);
	result = AGENT("reload");
	expect(&result, OK);
	expect_text(result.out, "changed");
	result_free(&result);
}

static void test_check(void **state)
{
	_Atomic uint64_t *word = &world.worker->session.free_bits[P0_PAGES / 64 - 1];
	struct result result = AGENT_JSON("check");
	const cJSON *pool;

	(void)state;
	expect(&result, OK);
	expect_document(&result, "check");
	assert_int_equal(cJSON_GetArraySize(list(&result, "pools")), 2);
	assert_int_equal(number(result.json, "found"), 0);
	result_free(&result);

	/* the last page is free */
	atomic_fetch_or(word, UINT64_C(1) << 63);
	result = AGENT_JSON("check", "-p", "p0");
	atomic_fetch_and(word, ~(UINT64_C(1) << 63));
	expect(&result, FOUND);
	pool = list(&result, "pools")->child;
	assert_int_equal(number(pool, "found"), 1);
	assert_int_equal(number(cJSON_GetObjectItem(pool, "findings")->child, "session"), world.session);
	assert_int_equal(number(cJSON_GetObjectItem(pool, "findings")->child, "page"), P0_PAGES - 1);
	result_free(&result);

	result = AGENT("check");
	expect(&result, OK);
	expect_text(result.out, "pool 'p1': 32 pages");
	expect_text(result.out, "0 findings");
	result_free(&result);
}

/* Return the number of pages in evictable blocks. */
static int unpinned_pages(void)
{
	struct result result = AGENT_JSON("pages", "--state", "UNPINNED", "--each");
	int pages = cJSON_GetArraySize(list(&result, "pages"));

	result_free(&result);
	return pages;
}

static void test_evict(void **state)
{
	char session[16];
	struct result result;

	(void)state;
	/* content of other usages is not evicted, regardless of the number of requested pages */
	result = AGENT_JSON("evict", "100%", "--usage", "KV_CACHE,GRADIENT");
	expect(&result, FAILED);
	expect_document(&result, "evict");
	assert_int_equal(number(result.json, "asked_pages"), P0_PAGES);
	expect_text(result.err, "of 2048 pages");
	result_free(&result);
	assert_int_equal(unpinned_pages(), 6);

	snprintf(session, sizeof(session), "%u", world.session);
	result = AGENT_JSON("evict", "6", "--session", session, "--usage", "TEMP_BUFFER");
	expect(&result, OK);
	assert_true(number(result.json, "evicted_pages") >= 6);
	assert_int_equal(number(result.json, "asked_pages"), 6);
	result_free(&result);
	assert_int_equal(unpinned_pages(), 0);

	/* pinned blocks are not evicted, regardless of the number of requested pages */
	result = AGENT("evict", "100%");
	expect(&result, FAILED);
	expect_text(result.out, "pages evicted");
	result_free(&result);
	result = AGENT_JSON("pages", "--state", "PINNED", "--each");
	assert_int_equal(cJSON_GetArraySize(list(&result, "pages")), 5);
	result_free(&result);
}

static void test_quiet(void **state)
{
	static const char *const names[] = {
		"status", "pages", "pins", "clients", "tenants", "roles", "transfers", "check", "version"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct result result = AGENT("-q", names[i]);

		expect(&result, OK);
		assert_string_equal(result.out, "");
		result_free(&result);
	}
}

static void test_doctor_with_agent(void **state)
{
	struct result result = AGENT_JSON("doctor");

	(void)state;
	expect_document(&result, "doctor");
	assert_string_equal(string(doctor_line(&result, "agent"), "verdict"), "ok");
	assert_string_equal(string(doctor_line(&result, "front"), "verdict"), "ok");
	expect_text(string(doctor_line(&result, "agent"), "found"), "2 pools");
	if (!strcmp(harness_backend(), "host")) {
		expect_text(string(doctor_line(&result, "memory"), "found"), "size of the host pools: 1.1 GiB");
		expect_text(string(doctor_line(&result, "vm.max_map_count"), "found"), "needed 4096");
	}
	result_free(&result);
}

/* ---- events ---- */

/*
 * Begin and end sessions until the process has written an event. The time at which its subscription takes effect is
 * unknown.
 */
static void events_make_until_heard(struct running running)
{
	struct pollfd wait = {.fd = running.out, .events = POLLIN};

	do
		gpool_close(harness_open(&world.harness));
	while (poll(&wait, 1, 20) == 0);
}

static struct running events_start(const char *format, const char *option, const char *value)
{
	const char *arguments[] = {
		"poolctl", "events", "-d", world.harness.directory, "-o", format, option, value, NULL};

	return poolctl_start((char *const *)(uintptr_t)arguments);
}

static void test_events_count(void **state)
{
	struct running running = events_start("json", "--count", "1");
	struct result result;

	(void)state;
	events_make_until_heard(running);
	result = poolctl_finish(running);
	expect(&result, OK);
	expect_document(&result, "event");
	/* On a slow machine the pins of this test may already count as leaked. */
	assert_true(!strncmp(string(result.json, "event"), "session-", 8) ||
		!strcmp(string(result.json, "event"), "leaked-pin"));
	assert_string_equal(string(result.json, "pool"), "p0");
	assert_true(number(result.json, "time_ms") > 1e12);
	assert_ptr_equal(strchr(result.out, '\n'), result.out + strlen(result.out) - 1); /* one line */
	result_free(&result);
}

/* With a closed standard output, the connection to the agent must not become descriptor 1 and receive the output. */
static void test_events_without_output(void **state)
{
	const char *const arguments[] = {
		"poolctl", "events", "-d", world.harness.directory, "--since", "1h", "--count", "1", NULL};
	struct running running = {.out = open("/dev/null", O_RDONLY | O_CLOEXEC)};
	struct result result;
	int err[2];

	(void)state;
	assert_true(running.out >= 0);
	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	fflush(NULL);
	running.pid = fork();
	assert_true(running.pid >= 0);
	if (running.pid == 0) {
		dup2(err[1], STDERR_FILENO);
		close(STDOUT_FILENO);
		execv(poolctl_path(), (char *const *)(uintptr_t)arguments);
		_exit(127);
	}
	close(err[1]);
	running.err = err[0];
	result = poolctl_finish(running);
	expect(&result, FAILED);
	expect_text(result.err, "poolctl: cannot write to standard output: Bad file descriptor");
	result_free(&result);
}

static void test_events_kind_and_interrupt(void **state)
{
	struct running running = events_start("table", "--kind", "session-end");
	struct result result;

	(void)state;
	events_make_until_heard(running);
	assert_int_equal(kill(running.pid, SIGINT), 0);
	result = poolctl_finish(running);
	expect(&result, OK);
	expect_text(result.out, "session-end");
	assert_null(strstr(result.out, "session-start"));
	result_free(&result);
}

/* ---- rights ---- */

/* Run poolctl as an unprivileged user that the configuration makes an observer. */
static struct result as_observer(const char *first, ...)
{
	char *arguments[ARGUMENTS_MAX];
	struct running running;
	va_list rest;

	va_start(rest, first);
	arguments_fill(arguments, first, rest);
	va_end(rest);
	running = poolctl_start_as(arguments, 65534);
	return poolctl_finish(running);
}

static void test_roles(void **state)
{
	char file[TEMPORARY_PATH_BYTES], snapshot[64];
	struct result result;

	(void)state;
	if (geteuid() != 0) {
		print_message("only root can become another user\n");
		skip();
	}
	result = as_observer("status", "-d", world.harness.directory, "-o", "json", NULL);
	expect(&result, OK);
	result_free(&result);
	result = as_observer("evict", "1", "-d", world.harness.directory, NULL);
	expect(&result, FAILED);
	expect_text(result.err, "access.admins");
	result_free(&result);
	result = as_observer("status", "--offline", "-d", world.harness.directory, NULL);
	expect(&result, FAILED);
	expect_text(result.err, "try as root");
	result_free(&result);

	/* an observer's snapshot contains the data that it may see: both pools, no session */
	assert_non_null(mkdtemp(temporary_path(file, "poolctl.XXXXXX")));
	assert_int_equal(chmod(file, 0777), 0);
	snprintf(snapshot, sizeof(snapshot), "%s/snapshot", file);
	result = as_observer("dump", snapshot, "-d", world.harness.directory, "-o", "json", NULL);
	expect(&result, OK);
	assert_int_equal(number(result.json, "pools"), 2);
	assert_int_equal(number(result.json, "sessions"), 0);
	result_free(&result);
	result = poolctl("pages", "--offline", snapshot, "-p", "p1", "-o", "json", NULL);
	expect(&result, OK);
	assert_int_equal(number(result.json, "page_count"), P1_PAGES);
	result_free(&result);
	unlink(snapshot);
	rmdir(file);
}

/* ---- an agent that does not reply ---- */

/* Compare the reports of the running agent with those read from its tables while it is stopped. */
static void compare_pages(pid_t agent)
{
	struct result online = AGENT_JSON("pages", "--each"), offline;
	const cJSON *a, *b;

	kill(agent, SIGSTOP);
	offline = AGENT_JSON("pages", "--each", "--offline");
	expect(&offline, OK);
	b = list(&offline, "pages")->child;
	cJSON_ArrayForEach(a, list(&online, "pages"))
	{
		assert_non_null(b);
		assert_string_equal(string(a, "state"), string(b, "state"));
		assert_string_equal(string(a, "status"), string(b, "status"));
		assert_string_equal(string(a, "use"), string(b, "use"));
		assert_int_equal(number(a, "owner"), number(b, "owner"));
		assert_int_equal(number(a, "generation"), number(b, "generation"));
		b = b->next;
	}
	assert_null(b);
	result_free(&online);
	result_free(&offline);
}

static void test_stopped_agent(void **state)
{
	struct result result = AGENT_JSON("status");
	pid_t agent = (pid_t)number(result.json, "agent_pid");
	char folder[TEMPORARY_PATH_BYTES], snapshot[64];
	double pinned = number(list(&result, "pools")->child, "pinned_pages");
	double leased = number(list(&result, "pools")->child, "leased_pages");

	(void)state;
	result_free(&result);
	compare_pages(agent);
	result = AGENT("status", "--timeout", "0.5");
	expect(&result, NO_AGENT);
	expect_text(result.err, "--offline");
	result_free(&result);

	result = AGENT_JSON("status", "--offline");
	expect(&result, OK);
	assert_int_equal(number(list(&result, "pools")->child, "pinned_pages"), pinned);
	assert_int_equal(number(list(&result, "pools")->child, "leased_pages"), leased);
	result_free(&result);
	result = AGENT_JSON("pins", "--offline");
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pins")), 2);
	assert_int_equal(number(list(&result, "pins")->child, "pid"), getpid());
	result_free(&result);
	result = AGENT_JSON("clients", "--offline");
	expect(&result, OK);
	assert_int_equal(number(find(list(&result, "clients"), "pid", getpid()), "pinned_pages"), pinned);
	result_free(&result);
	result = AGENT_JSON("check", "--offline");
	expect(&result, OK);
	result_free(&result);

	assert_non_null(mkdtemp(temporary_path(folder, "poolctl.XXXXXX")));
	snprintf(snapshot, sizeof(snapshot), "%s/snapshot", folder);
	result = AGENT_JSON("dump", snapshot);
	expect(&result, OK);
	assert_int_equal(number(result.json, "pools"), 2);
	assert_true(number(result.json, "sessions") >= 1);
	result_free(&result);
	kill(agent, SIGCONT);

	result = poolctl("pins", "--offline", snapshot, "-o", "json", NULL);
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "pins")), 2);
	result_free(&result);
	unlink(snapshot);
	rmdir(folder);
	result = AGENT("check");
	expect(&result, OK);
	result_free(&result);
}

/* After any failure, continue the agent for the other tests. */
static int agent_continue(void **state)
{
	(void)state;
	return kill(-world.harness.pid, SIGCONT);
}

/* ---- end of the agent ---- */

static void test_events_end_with_gpoold(void **state)
{
	static const char *const arguments[] = {"--pool", HARNESS_POOL, NULL};
	struct harness harness;
	struct running running;
	struct result result;

	(void)state;
	harness_start(&harness, arguments);
	const char *line[] = {"poolctl", "events", "-d", harness.directory, NULL};

	running = poolctl_start((char *const *)(uintptr_t)line);
	/* its first output shows that it has attached */
	struct pollfd wait = {.fd = running.out, .events = POLLIN};

	do
		gpool_close(harness_open(&harness));
	while (poll(&wait, 1, 20) == 0);
	assert_int_equal(harness_stop(&harness), 0);
	result = poolctl_finish(running);
	expect(&result, NO_AGENT);
	expect_text(result.err, "no more events");
	result_free(&result);
}

int main(void)
{
	const struct CMUnitTest alone[] = {
		cmocka_unit_test(test_usage_errors),
		cmocka_unit_test(test_a_killed_gpoold),
		cmocka_unit_test(test_every_verb_has_help),
		cmocka_unit_test(test_man_page_is_current),
		cmocka_unit_test(test_completion),
		cmocka_unit_test(test_no_agent),
		cmocka_unit_test(test_doctor),
		cmocka_unit_test(test_events_end_with_gpoold),
	};
	const struct CMUnitTest with_agent[] = {
		cmocka_unit_test(test_status),
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_reserved_pages),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_clients),
		cmocka_unit_test(test_tenants),
		cmocka_unit_test(test_held_roles),
		cmocka_unit_test(test_version),
		cmocka_unit_test(test_bench),
		cmocka_unit_test(test_unknown_names),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_quiet),
		cmocka_unit_test(test_doctor_with_agent),
		cmocka_unit_test(test_events_count),
		cmocka_unit_test(test_events_without_output),
		cmocka_unit_test(test_events_kind_and_interrupt),
		cmocka_unit_test(test_roles),
		cmocka_unit_test_teardown(test_stopped_agent, agent_continue),
		/* these change the state that the others examine */
		cmocka_unit_test(test_pinnable_object),
		cmocka_unit_test(test_adapters),
		cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_objects),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_reload),
		cmocka_unit_test(test_evict),
	};
	int failed;

	unsetenv("NO_COLOR");
	unsetenv("GPOOL_DIR");
	failed = cmocka_run_group_tests(alone, NULL, NULL);
	return failed + cmocka_run_group_tests(with_agent, world_setup, world_teardown);
}
