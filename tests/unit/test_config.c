/*
 * test_config.c - the configuration: accepted and refused files, and the texts of the errors.
 *
 * Goal: every value is read. Every mistake is reported with file, line, key, and the given and the allowed value.
 * Method: write files into a temporary folder, load them, and compare errors as whole texts. The last tests print a
 * configuration and load it again.
 *
 * Requirements: C4, U15.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/config/config.h"
#include "agent/config/config_value.h"
#include "agent/config/recipe.h"
#include "tests/lib/temporary.h"

static char folder[64], conf[80], conf_d[80];
static struct config config;
static struct config_error error;

/* ---- helpers ---- */

static void file_write(const char *path, const char *text, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, bytes), bytes);
	close(fd);
}

static int load(const char *text)
{
	file_write(conf, text, strlen(text));
	memset(&error, 0, sizeof(error));
	return config_load(conf, &config, &error);
}

static int load_finish(const char *text)
{
	int rc = load(text);

	return rc ? rc : config_finish(&config, &error);
}

static void conf_d_write(const char *name, const char *text)
{
	char path[160];

	mkdir(conf_d, 0755);
	snprintf(path, sizeof(path), "%s/%s", conf_d, name);
	file_write(path, text, strlen(text));
}

/* Check that the error is "CONF:" and `rest`. */
static void assert_complaint(const char *rest)
{
	char want[600];

	snprintf(want, sizeof(want), "%s:%s", conf, rest);
	assert_string_equal(error.text, want);
}

static int folder_make(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "%s/gpool-config-XXXXXX", temporary_folder());
	if (!mkdtemp(folder))
		return -1;
	snprintf(conf, sizeof(conf), "%s/gpoold.conf", folder);
	snprintf(conf_d, sizeof(conf_d), "%s/gpoold.conf.d", folder);
	return 0;
}

static int folder_remove(void **state)
{
	char command[96];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

/* Return the output of config_print() as one string, which the caller frees. */
static char *print(const struct config *from, enum config_print_form form)
{
	char path[96], *text;
	struct stat status;
	int fd;

	snprintf(path, sizeof(path), "%s/printed", folder);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(config_print(from, form, fd), 0);
	assert_int_equal(fstat(fd, &status), 0);
	text = calloc(1, (size_t)status.st_size + 1);
	assert_non_null(text);
	assert_int_equal(pread(fd, text, (size_t)status.st_size, 0), status.st_size);
	close(fd);
	return text;
}

/* Return the differences between two configurations, both kinds in one text. */
static const char *difference(const struct config *a, const struct config *b)
{
	static char text[2100];
	char applies[1000], restart[1000];

	config_difference(a, b, applies, sizeof(applies), restart, sizeof(restart));
	snprintf(text, sizeof(text), "%s|%s", applies, restart);
	return text;
}

/* ---- values ---- */

static void test_empty_file_has_the_defaults(void **state)
{
	static struct config defaults;

	(void)state;
	assert_int_equal(load(""), 0);
	config_defaults(&defaults);
	assert_string_equal(difference(&config, &defaults), "|");
	assert_string_equal(config.runtime_dir, "/run/gpool");
	assert_string_equal(config.front_user, "nobody");
	assert_int_equal(config.log_level, 2);
	assert_int_equal(config.log_target, CONFIG_LOG_STDERR);
	assert_int_equal(config.pool_count, 0);
	assert_int_equal(config.tenant_count, 0);
	assert_int_equal(config.limits.sessions, 256);
	assert_int_equal(config.limits.message_bytes, 65536);
	assert_int_equal(config.lease.initial_pages, 64);
	assert_int_equal(config.lease.batch_pages, 64);
	assert_int_equal(config.lease.batch_most, 1024);
	assert_int_equal(config.lease.idle_ms, 2000);
	assert_int_equal(config.lease.keep_pages, 64);
	assert_string_equal(config.eviction.policy, "lru_size_aware");
	assert_int_equal(config.eviction.start_percent, 90);
	assert_int_equal(config.eviction.stop_percent, 80);
	assert_true(config.eviction.recency == 0.6 && config.eviction.size == 0.2 && config.eviction.priority == 0.2);
	assert_int_equal(config.pressure.medium_percent, 75);
	assert_int_equal(config.pressure.high_percent, 90);
	assert_int_equal(config.pressure.critical_percent, 97);
	assert_int_equal(config.pins.timeout_ms, 100);
	assert_int_equal(config.pins.max_duration_ms, 30000);
	assert_int_equal(config.pins.leaked, CONFIG_LEAK_REPORT);
}

/* The default group depends on the machine: the group itself if it exists, or else the agent's own group. */
static void test_default_group_falls_back(void **state)
{
	const struct group *entry = getgrnam("gpool");

	(void)state;
	config_defaults(&config);
	assert_string_equal(config.group, entry ? "gpool" : "");
	assert_int_equal(config.group_id, entry ? entry->gr_gid : getegid());
}

/* Requirements: U1. */
static void test_every_key_arrives(void **state)
{
	const struct passwd *nobody = getpwnam("nobody");

	(void)state;
	assert_non_null(nobody);
	assert_int_equal(
		load("runtime_dir = \"/tmp/r\"; group = \"root\"; front_user = \"1234567\";\n"
		     "log = { level = \"debug\"; target = \"journal\"; };\n"
		     "pools = ({ name = \"a\"; backend = \"host\"; device = \"GPU-1\"; size = \"4096 pages\";\n"
		     "  page_size = \"512KB\"; handle_size = \"4MB\"; reserved = \"5%\"; }, { name = \"b\"; size = "
		     "\"2GiB\"; "
		     "});\n"
		     "tenants = ({ name = \"t\"; users = [ \"root\", \"nobody\", \"4000000000\", \"nobody\" ];\n"
		     "  groups = ( \"root\", \"77\" ); minimum = \"10%\"; limit = \"1GB\"; weight = 7; priority = 0; "
		     "});\n"
		     "access = { workers = { users = [ \"5\" ]; groups = [ \"6\" ]; };\n"
		     "  observers = { users = [ \"7\" ]; groups = [ \"8\" ]; }; admins = { users = [ \"9\" ]; groups = "
		     "[ \"10\" "
		     "]; }; };\n"
		     "limits = { sessions = 4000; message_size = \"64KiB\"; requests_per_second = 1; };\n"
		     "lease = { initial_pages = 0; batch_pages = 1; batch_most = 2; idle = \"1min\"; keep_pages = 3; "
		     "};\n"
		     "eviction = { policy = \"lru_size_aware\"; start = 70; stop = 0; recency = 1; size = 0.0; "
		     "priority = 0; };\n"
		     "pressure = { medium = 1; high = 2; critical = 100; };\n"
		     "pins = { timeout = \"0ms\"; max_duration = \"1h\"; leaked = \"disconnect\"; };\n"),
		0);
	assert_string_equal(config.runtime_dir, "/tmp/r");
	assert_string_equal(config.group, "root");
	assert_int_equal(config.group_id, 0);
	assert_int_equal(config.front_uid, 1234567);
	assert_int_equal(config.front_gid, 1234567);
	assert_int_equal(config.log_level, 3);
	assert_int_equal(config.log_target, CONFIG_LOG_JOURNAL);

	assert_int_equal(config.pool_count, 2);
	assert_string_equal(config.pools[0].name, "a");
	assert_string_equal(config.pools[0].backend, "host");
	assert_string_equal(config.pools[0].device, "GPU-1");
	assert_int_equal(config.pools[0].size.unit, CONFIG_AMOUNT_PAGES);
	assert_int_equal(config.pools[0].size.value, 4096);
	assert_int_equal(config.pools[0].page_bytes, 512 << 10);
	assert_int_equal(config.pools[0].handle_bytes, 4 << 20);
	assert_int_equal(config.pools[0].reserved.unit, CONFIG_AMOUNT_PERCENT);
	assert_int_equal(config.pools[0].reserved.value, 5);
	assert_string_equal(config.pools[1].backend, "cuda");
	assert_int_equal(config.pools[1].size.unit, CONFIG_AMOUNT_BYTES);
	assert_int_equal(config.pools[1].size.value, 2ull << 30);
	assert_int_equal(config.pools[1].page_bytes, 2 << 20);
	assert_int_equal(config.pools[1].handle_bytes, 0);
	assert_int_equal(config.pools[1].reserved.value, 96);

	assert_int_equal(config.tenant_count, 1);
	assert_int_equal(config.tenants[0].users.count, 3);
	assert_int_equal(config.tenants[0].users.ids[0], 0);
	assert_int_equal(config.tenants[0].users.ids[1], nobody->pw_uid);
	assert_int_equal(config.tenants[0].users.ids[2], 4000000000u);
	assert_int_equal(config.tenants[0].groups.count, 2);
	assert_int_equal(config.tenants[0].groups.ids[1], 77);
	assert_int_equal(config.tenants[0].minimum.unit, CONFIG_AMOUNT_PERCENT);
	assert_int_equal(config.tenants[0].limit.value, 1000000000);
	assert_int_equal(config.tenants[0].weight, 7);
	assert_int_equal(config.tenants[0].priority, 0);

	assert_int_equal(config.access.worker_users.ids[0], 5);
	assert_int_equal(config.access.worker_groups.ids[0], 6);
	assert_int_equal(config.access.observer_users.ids[0], 7);
	assert_int_equal(config.access.observer_groups.ids[0], 8);
	assert_int_equal(config.access.admin_users.ids[0], 9);
	assert_int_equal(config.access.admin_groups.ids[0], 10);
	assert_int_equal(config.limits.sessions, 4000);
	assert_int_equal(config.limits.message_bytes, 64 << 10);
	assert_int_equal(config.limits.requests_per_second, 1);
	assert_int_equal(config.lease.initial_pages, 0);
	assert_int_equal(config.lease.batch_pages, 1);
	assert_int_equal(config.lease.batch_most, 2);
	assert_int_equal(config.lease.idle_ms, 60000);
	assert_int_equal(config.lease.keep_pages, 3);
	assert_int_equal(config.eviction.start_percent, 70);
	assert_int_equal(config.eviction.stop_percent, 0);
	assert_true(config.eviction.recency == 1 && config.eviction.size == 0 && config.eviction.priority == 0);
	assert_int_equal(config.pressure.medium_percent, 1);
	assert_int_equal(config.pressure.high_percent, 2);
	assert_int_equal(config.pressure.critical_percent, 100);
	assert_int_equal(config.pins.timeout_ms, 0);
	assert_int_equal(config.pins.max_duration_ms, 3600000);
	assert_int_equal(config.pins.leaked, CONFIG_LEAK_DISCONNECT);
}

static void test_sizes_in_powers_of_1000_and_1024(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} sizes[] = {
		{"5000B", 5000},
		{"64KB", 64000},
		{"64KiB", 65536},
		{"20KB", 20000},
		{"20 KiB", 20480},
	};
	char assignment[80];

	(void)state;
	config_defaults(&config);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		snprintf(assignment, sizeof(assignment), "limits.message_size=%s", sizes[i].text);
		assert_int_equal(config_set(&config, assignment, &error), 0);
		assert_int_equal(config.limits.message_bytes, sizes[i].bytes);
	}
}

/* Requirements: U1. */
static void test_page_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes; /* 0: refused */
	} sizes[] = {
		{"512KB", 512 << 10},
		{"512KiB", 512 << 10},
		{"1MB", 1 << 20},
		{"1MiB", 1 << 20},
		{"2MB", 2 << 20},
		{"2048KiB", 2 << 20},
		{"4MB", 4 << 20},
		{"4MiB", 4 << 20},
		{"256KiB", 0},
		{"8MiB", 0},
		{"3MiB", 0},
		{"4KiB", 0},
		{"auto", 0},
		{"2", 0},
		{"2M", 0},
		{"-2MiB", 0},
		{" 2MiB", 0},
		{"18014398509481984KiB", 0},
		{"", 0},
	};
	char text[80];

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		config_defaults(&config);
		snprintf(text, sizeof(text), "name=a,size=64MiB,page_size=%s", sizes[i].text);
		assert_int_equal(config_add_pool(&config, text, &error), sizes[i].bytes ? 0 : -EINVAL);
		assert_int_equal(config.pool_count, sizes[i].bytes ? 1 : 0);
		if (sizes[i].bytes)
			assert_int_equal(config.pools[0].page_bytes, sizes[i].bytes);
	}
}

/* Requirements: U1. */
static void test_amount_pages(void **state)
{
	const struct config_amount bytes = {CONFIG_AMOUNT_BYTES, (5u << 20) + 1}, pages = {CONFIG_AMOUNT_PAGES, 17},
				   percent = {CONFIG_AMOUNT_PERCENT, 90}, huge = {CONFIG_AMOUNT_BYTES, 1ull << 60};

	(void)state;
	assert_int_equal(config_amount_pages(&bytes, 2 << 20, 100), 2);
	assert_int_equal(config_amount_pages(&pages, 2 << 20, 100), 17);
	assert_int_equal(config_amount_pages(&percent, 2 << 20, 40960), 36864);
	assert_int_equal(config_amount_pages(&percent, 2 << 20, UINT32_MAX), 3865470565u);
	assert_int_equal(config_amount_pages(&huge, 512 << 10, 100), UINT32_MAX);
}

/* ---- errors of one key ---- */

struct complaint {
	const char *text, *want; /* want: the expected text after "FILE:" */
};

static void assert_complaints(const struct complaint *cases, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		memset(&config, 0x5a, sizeof(config));
		assert_int_equal(load(cases[i].text), -EINVAL);
		assert_complaint(cases[i].want);
		assert_int_equal(config.pool_count, 0x5a5a5a5a); /* unchanged */
	}
}
#define ASSERT_COMPLAINTS(cases) assert_complaints(cases, sizeof(cases) / sizeof((cases)[0]))

static void test_unknown_keys(void **state)
{
	static const struct complaint cases[] = {
		{"\nevicton = { };", "2: unknown key 'evicton'; did you mean 'eviction'?"},
		{"poolz = ( );", "1: unknown key 'poolz'; did you mean 'pools'?"},
		{"eviction = { start = 80;\n\n strat = 80; };",
			"3: unknown key 'eviction.strat'; did you mean 'start'?"},
		{"access = { worker = { }; };", "1: unknown key 'access.worker'; did you mean 'workers'?"},
		{"access = { workers = { usres = [ ]; }; };",
			"1: unknown key 'access.workers.usres'; did you mean 'users'?"},
		{"something_else = 1;", "1: unknown key 'something_else'"},
		{"pools = ( { name = \"a\";\n pagesize = \"2MiB\"; } );",
			"2: unknown key 'pools.a.pagesize'; did you mean 'page_size'?"},
		{"\neviction = { hihg_watermark = 3; };",
			"2: unknown key 'eviction.hihg_watermark'; did you mean 'high_watermark'?"},
		{"tenants = ( { name = \"t\"; wieght = 3; } );",
			"1: unknown key 'tenants.t.wieght'; did you mean 'weight'?"},
	};

	(void)state;
	ASSERT_COMPLAINTS(cases);
}

/* Each word for a key sets the same field, in a file and on the command line. Requirements: U20. */
static void test_synonyms(void **state)
{
	static const struct complaint cases[] = {
		{"eviction = { start = 91;\nhigh_watermark = 92; };",
			"2: eviction.high_watermark and start are the same key; set one of them"},
		{"eviction = { low_watermark = 100; };",
			"1: eviction.low_watermark: invalid value '100'; expected an integer from 0 to 99 percent"},
		{"eviction = { low_watermark = \"5\"; };",
			"1: eviction.low_watermark is a string; expected an integer from 0 to 99 percent"},
		{"pools = ( { name = \"a\"; total_pages = \"64\"; } );",
			"1: pools.a.total_pages is a string; expected an integer, without quotes"},
		{"pools = ( { name = \"a\"; size = \"1GiB\"; total_pages = 64; } );",
			"1: pools.a.total_pages and size are the same key; set one of them"},
		{"pools = ( { name = \"a\"; total_pages = 0; } );",
			"1: pools.a.total_pages: invalid value '0 pages'; expected an amount above 0 in quotes, such "
			"as \"2GiB\", \"4096 pages\" or \"90%\""},
	};

	(void)state;
	assert_int_equal(load("pools = ( { name = \"a\"; total_pages = 64; alignment = \"512B\"; } );\n"
			      "eviction = { high_watermark = 70; low_watermark = 60; hysteresis = 0.25; };\n"
			      "pins = { max_pin_duration = \"7s\"; pin_timeout = \"8ms\"; leaked = \"unpin\"; };\n"
			      "lease = { allocation_strategy = \"first_fit\"; thread_cache_size = 32; };\n"
			      "adapters = { hot_budget = 100; warm_budget = 1000; compression_threshold = \"60s\";\n"
			      "promotion_threshold = 10; };"),
		0);
	assert_int_equal(config.pools[0].size.unit, CONFIG_AMOUNT_PAGES);
	assert_int_equal(config.pools[0].size.value, 64);
	assert_int_equal(config.pools[0].alignment, 512);
	assert_int_equal(config.eviction.start_percent, 70);
	assert_int_equal(config.eviction.stop_percent, 60);
	assert_true(config.eviction.hysteresis == 0.25);
	assert_int_equal(config.pins.max_duration_ms, 7000);
	assert_int_equal(config.pins.timeout_ms, 8);
	assert_int_equal(config.lease.strategy, CONFIG_FIRST_FIT);
	assert_int_equal(config.lease.thread_cache_pages, 32);
	assert_int_equal(config.adapters.hot_budget, 100);
	assert_int_equal(config.adapters.warm_budget, 1000);
	assert_int_equal(config.adapters.promotion_uses, 10);
	assert_int_equal(config.adapters.compression_ms, 60000);
	assert_int_equal(config_set(&config, "eviction.high_watermark=95", &error), 0);
	assert_int_equal(config.eviction.start_percent, 95);
	assert_int_equal(config_set(&config, "adapters.compression_threshold=2min", &error), 0);
	assert_int_equal(config.adapters.compression_ms, 120000);
	assert_int_equal(config_set(&config, "adapters.compression_threshold=60", &error), -EINVAL);
	assert_string_equal(error.text,
		"--set adapters.compression_threshold: invalid value '60'; expected a duration in quotes, in ms, s, "
		"min or h, from \"0ms\" to \"24h\"");
	assert_int_equal(config_add_pool(&config, "name=b,backend=host,total_pages=32", &error), 0);
	assert_int_equal(config.pools[1].size.value, 32);
	/* A check across keys names the place of a synonym. */
	assert_int_equal(load_finish("pools = ( { name = \"a\"; } );\neviction = { high_watermark = 60; };"), -EINVAL);
	assert_complaint("2: eviction.stop (80) must be below eviction.start (60)");
	ASSERT_COMPLAINTS(cases);
}

static void test_wrong_types(void **state)
{
	static const struct complaint cases[] = {
		{"\n\nlease = { idle = 5; };",
			"3: lease.idle is an integer; expected a duration in quotes, in ms, s, min or h, from \"10ms\" "
			"to \"1h\""},
		{"lease = {\nkeep_pages = \"5\"; };",
			"2: lease.keep_pages is a string; expected an integer from 0 to 1048576 pages"},
		{"lease = { keep_pages = 5.0; };",
			"1: lease.keep_pages is a floating-point number; expected an integer from 0 to 1048576 pages"},
		{"eviction = { recency = true; };", "1: eviction.recency is a boolean; expected a number from 0 to 1"},
		{"limits = { message_size = 65536; };",
			"1: limits.message_size is an integer; expected a size in quotes, with a unit, from \"4KiB\" "
			"to \"64KiB\""},
		{"pools = ( { name = \"a\";\nsize = 1073741824; } );",
			"2: pools.a.size is an integer; expected an amount above 0 in quotes, such as \"2GiB\", \"4096 "
			"pages\" or \"90%\""},
		{"pools = ( { name = \"a\"; device = 0; } );",
			"1: pools.a.device is an integer; expected a string in quotes, 1 to 63 bytes"},
		{"eviction = 3;", "1: eviction is an integer; expected a group, eviction = { ... };"},
		{"pools = { };", "1: pools is a group; expected a list of groups, pools = ( { ... } );"},
		{"pools = ( 1 );", "1: an element of pools is an integer; expected a group, { name = \"...\"; ... }"},
		{"pools = (\n{ size = \"1GiB\"; } );", "2: an element of pools has no name; add name = \"...\";"},
		{"tenants = ( { } );", "1: an element of tenants has no name; add name = \"...\";"},
		{"access = { admins = { users = \"root\"; }; };",
			"1: access.admins.users is a string; expected a list of at most 64 users, such as [ \"alice\", "
			"\"1000\" ]"},
		{"access = { admins = { groups = [ 1 ]; }; };",
			"1: an element of access.admins.groups is an integer; expected a list of at most 64 groups, "
			"such as [ \"llm\", \"1000\" ]"},
		{"access = { admins = { users = { }; }; };",
			"1: access.admins.users is a group; expected a list of at most 64 users, such as [ \"alice\", "
			"\"1000\" ]"},
	};

	(void)state;
	ASSERT_COMPLAINTS(cases);
}

static void test_wrong_units_and_ranges(void **state)
{
	static const struct complaint cases[] = {
		{"limits = {\n sessions = 4001; };",
			"2: limits.sessions: invalid value '4001'; expected an integer from 1 to 4000"},
		{"limits = { sessions = 0; };",
			"1: limits.sessions: invalid value '0'; expected an integer from 1 to 4000"},
		{"limits = { sessions = -1; };",
			"1: limits.sessions: invalid value '-1'; expected an integer from 1 to 4000"},
		{"limits = { sessions = 4294967297L; };",
			"1: limits.sessions: invalid value '4294967297'; expected an integer from 1 to 4000"},
		{"lease = { idle = \"2\"; };",
			"1: lease.idle: invalid value '2'; expected a duration in quotes, in ms, s, min or h, from "
			"\"10ms\" to \"1h\""},
		{"lease = { idle = \"2us\"; };",
			"1: lease.idle: invalid value '2us'; expected a duration in quotes, in ms, s, min or h, from "
			"\"10ms\" to \"1h\""},
		{"lease = { idle = \"61min\"; };",
			"1: lease.idle: invalid value '61min'; expected a duration in quotes, in ms, s, min or h, "
			"from \"10ms\" to \"1h\""},
		{"lease = { idle = \"1.5s\"; };",
			"1: lease.idle: invalid value '1.5s'; expected a duration in quotes, in ms, s, min or h, from "
			"\"10ms\" to \"1h\""},
		{"eviction = { size = 1.01; };",
			"1: eviction.size: invalid value '1.01'; expected a number from 0 to 1"},
		{"eviction = { policy = \"fifo\"; };",
			"1: eviction.policy: invalid value 'fifo'; expected one of \"lru_size_aware\", \"adaptive\""},
		{"pins = { leaked = \"kill\"; };",
			"1: pins.leaked: invalid value 'kill'; expected one of \"report\", \"unpin\", \"disconnect\""},
		{"runtime_dir = \"run\";",
			"1: runtime_dir: invalid value 'run'; expected an absolute path in quotes, at most 95 bytes"},
		{"pools = ( { name = \"a/b\"; } );",
			"1: pools.a/b.name: invalid value 'a/b'; expected a name in quotes, 1 to 63 letters, digits, "
			"'.', '_' and '-'"},
		{"pools = ( { name = \"\"; } );",
			"1: pools..name: invalid value ''; expected a name in quotes, 1 to 63 letters, digits, '.', "
			"'_' and '-'"},
		{"pools = ( { name = \"a\"; size = \"101%\"; } );",
			"1: pools.a.size: invalid value '101%'; expected an amount above 0 in quotes, such as "
			"\"2GiB\", \"4096 pages\" or \"90%\""},
		{"pools = ( { name = \"a\"; size = \"4194305 pages\"; } );",
			"1: pools.a.size: invalid value '4194305 pages'; a pool has at most 4194304 pages"},
		{"pools = ( { name = \"a\"; size = \"4294967295 pages\"; } );",
			"1: pools.a.size: invalid value '4294967295 pages'; a pool has at most 4194304 pages"},
		{"pools = ( { name = \"a\"; size = \"2000PiB\"; } );",
			"1: pools.a.size: invalid value '2000PiB'; a pool has at most 4194304 pages"},
		{"pools = ( { name = \"a\"; size = \"99999999999999999999B\"; } );",
			"1: pools.a.size: invalid value '99999999999999999999B'; a pool has at most 4194304 pages"},
		{"pools = ( { name = \"a\"; size = \"0 pages\"; } );",
			"1: pools.a.size: invalid value '0 pages'; expected an amount above 0 in quotes, such as "
			"\"2GiB\", \"4096 pages\" or \"90%\""},
		{"pools = ( { name = \"a\"; backend = \"hip\"; } );",
			"1: pools.a.backend: invalid value 'hip'; expected one of \"cuda\", \"host\""},
		{"pools = ( { name = \"a\"; page_size = \"64KiB\"; } );",
			"1: pools.a.page_size: invalid value '64KiB'; expected a power of two in quotes, with a unit, "
			"from \"512KiB\" to \"4MiB\""},
		{"pools = ( { name = \"a\"; handle_size = \"3MiB\"; } );",
			"1: pools.a.handle_size: invalid value '3MiB'; expected a power of two in quotes, with a "
			"unit, from \"512KiB\" to \"1GiB\", or \"auto\""},
	};

	(void)state;
	ASSERT_COMPLAINTS(cases);
}

static void test_unknown_users_and_groups(void **state)
{
	static const struct complaint cases[] = {
		{"\ngroup = \"no-such-group\";", "2: group: group 'no-such-group' does not exist"},
		{"front_user = \"no-such-user\";", "1: front_user: user 'no-such-user' does not exist"},
		{"front_user = \"\";", "1: front_user: invalid value ''; expected the name or id of a user in quotes"},
		{"access = { workers = { users = [ \"root\",\n \"no-such-user\" ]; }; };",
			"2: access.workers.users: user 'no-such-user' does not exist"},
		{"access = { workers = { groups = [ \"no-such-group\" ]; }; };",
			"1: access.workers.groups: group 'no-such-group' does not exist"},
		{"tenants = ( { name = \"t\"; users = [ \"4294967295\" ]; } );",
			"1: tenants.t.users: user '4294967295' does not exist"},
	};

	(void)state;
	ASSERT_COMPLAINTS(cases);
}

static void test_text_that_libconfig_would_get_wrong(void **state)
{
	static const struct complaint cases[] = {
		{"log = { };\n @include \"/etc\"\n",
			"2: @include is not supported; put the file into the directory that has the name of the "
			"configuration file followed by .d"},
		{"/*\n@include \"/etc/passwd\"\n*/\n",
			"2: @include is not supported; put the file into the directory that has the name of the "
			"configuration file followed by .d"},
		{"\nlimits = { sessions = 4294967552; };",
			"2: 4294967552 is out of range for an integer (at most 2147483647); write a size as a string "
			"with a unit, such as \"16GiB\""},
		{"pools = ( { name = \"a\"; size = 17179869184; } );",
			"1: 17179869184 is out of range for an integer (at most 2147483647); write a size as a string "
			"with a unit, such as \"16GiB\""},
		{"limits = { sessions = 0x100000100; };",
			"1: 0x100000100 is out of range for an integer (at most 2147483647); write a size as a string "
			"with a unit, such as \"16GiB\""},
		{"limits = { sessions = 99999999999999999999L; };",
			"1: 99999999999999999999L is out of range for an integer (at most 2147483647); write a size as "
			"a string with a unit, such as \"16GiB\""},
		{"log = { };\n/* no end", "2: unterminated comment"},
		{"log = { level = \"info; };\n", "1: unterminated string"},
		{"\nruntime_dir = \"/tmp\\x00/etc\";", "2: a string cannot contain \\x00"},
		{"runtime_dir = \"/tmp\",\n\"/etc\";", "2: unexpected string"},
		{"\"/tmp\"", "1: unexpected string"},
		{"pools = ( { name = \"a\" } \"b\" );", "1: unexpected string"},
		{"log = (((((((((((((((((", "1: brackets are nested too deeply"},
		{"log = { };\nlog = { };", "2: duplicate setting name"},
		{"log = {\n", "2: syntax error"},
	};

	(void)state;
	ASSERT_COMPLAINTS(cases);
}

static void test_comments_and_numbers_in_strings_are_let_be(void **state)
{
	(void)state;
	assert_int_equal(load("runtime_dir: \"/tmp\" /* one */ \"/x\"\n\"y\", log: { level: \"error\" }"), 0);
	assert_string_equal(config.runtime_dir, "/tmp/xy");
	assert_int_equal(config.log_level, 0);
	assert_int_equal(load("# 17179869184 \"\n// '/*' \"\n/* \" 99999999999 */\nruntime_dir = "
			      "\"/17179869184/#/*@include\"; # end"),
		0);
	assert_string_equal(config.runtime_dir, "/17179869184/#/*@include");
}

static void test_too_long_texts(void **state)
{
	char text[300], long_path[200];

	(void)state;
	memset(long_path, 'x', sizeof(long_path));
	long_path[0] = '/';
	long_path[95] = '\0';
	snprintf(text, sizeof(text), "runtime_dir = \"%s\";", long_path);
	assert_int_equal(load(text), 0);
	assert_string_equal(config.runtime_dir, long_path);
	long_path[95] = 'x';
	long_path[96] = '\0';
	snprintf(text, sizeof(text), "runtime_dir = \"%s\";", long_path);
	assert_int_equal(load(text), -EINVAL);
	assert_non_null(strstr(error.text, ":1: runtime_dir: invalid value '/xxx"));
	assert_non_null(strstr(error.text, "at most 95 bytes"));
}

/* Test each of the four limits with the largest permitted number, and with one more. */
static void test_too_many(void **state)
{
	static const struct {
		const char *start, *one, *end, *want;
		int most;
	} cases[] = {
		{"pools = (", "%s{ name = \"p%d\"; }", ");", "1: too many pools; the limit is 32", CONFIG_POOLS_MAX},
		{"tenants = (", "%s{ name = \"t%d\"; }", ");", "1: too many tenants; the limit is 64",
			CONFIG_TENANTS_MAX},
		{"access = { admins = { users = [", "%s\"%d\"", "]; }; };",
			"1: access.admins.users: too many users; the limit is 64", CONFIG_NAMES_MAX},
		{"access = { admins = { groups = [", "%s\"%d\"", "]; }; };",
			"1: access.admins.groups: too many groups; the limit is 64", CONFIG_NAMES_MAX},
	};
	char text[8192];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (int over = 0; over < 2; over++) {
			int used = snprintf(text, sizeof(text), "%s", cases[i].start);

			for (int n = 0; n < cases[i].most + over; n++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
				used += snprintf(
					text + used, sizeof(text) - (size_t)used, cases[i].one, n ? ", " : "", n);
#pragma GCC diagnostic pop
			}
			snprintf(text + used, sizeof(text) - (size_t)used, "%s", cases[i].end);
			assert_int_equal(load(text), over ? -EINVAL : 0);
		}
		assert_complaint(cases[i].want);
	}
}

/* ---- errors of files ---- */

static void test_files_that_are_refused(void **state)
{
	char want[600];
	char *big = malloc((1 << 20) + 1);

	(void)state;
	assert_non_null(big);
	assert_int_equal(config_load("/nonexistent/gpoold.conf", &config, &error), -ENOENT);
	assert_string_equal(
		error.text, "cannot open configuration file '/nonexistent/gpoold.conf': No such file or directory");

	assert_int_equal(config_load(folder, &config, &error), -EINVAL);
	snprintf(want, sizeof(want), "configuration file '%s' is not a regular file", folder);
	assert_string_equal(error.text, want);

	assert_int_equal(mkfifo(conf, 0600), 0);
	assert_int_equal(config_load(conf, &config, &error), -EINVAL);
	snprintf(want, sizeof(want), "configuration file '%s' is not a regular file", conf);
	assert_string_equal(error.text, want);
	unlink(conf);

	assert_int_equal(load(""), 0);
	assert_int_equal(chmod(conf, 0666), 0);
	assert_int_equal(config_load(conf, &config, &error), -EACCES);
	snprintf(want, sizeof(want), "configuration file '%s' is writable by all users; run chmod o-w on it", conf);
	assert_string_equal(error.text, want);
	assert_int_equal(chmod(conf, 0644), 0);

	memset(big, '\n', (1 << 20) + 1);
	file_write(conf, big, (1 << 20) + 1);
	assert_int_equal(config_load(conf, &config, &error), -EINVAL);
	snprintf(want, sizeof(want), "configuration file '%s' has 1048577 bytes; the limit is 1048576", conf);
	assert_string_equal(error.text, want);
	file_write(conf, big, 1 << 20);
	assert_int_equal(config_load(conf, &config, &error), 0);
	free(big);

	file_write(conf, "log = { };\n\0\n", 13);
	assert_int_equal(config_load(conf, &config, &error), -EINVAL);
	assert_complaint("2: the file contains a zero byte; expected a text file");
}

/* ---- conf.d ---- */

static void test_conf_d_in_order_of_name(void **state)
{
	(void)state;
	conf_d_write("20-b.conf", "limits = { sessions = 20; }; pools = ( { name = \"b\"; } );");
	conf_d_write(
		"10-a.conf", "limits = { sessions = 10; message_size = \"8KiB\"; }; pools = ( { name = \"a\"; } );");
	conf_d_write("90-off", "limits = { sessions = 90; };");
	conf_d_write(".hidden.conf", "limits = { sessions = 91; };");
	assert_int_equal(
		load("limits = { sessions = 1; }; pools = ( { name = \"first\"; } ); lease = { keep_pages = 5; };"), 0);
	assert_int_equal(config.limits.sessions, 20);
	assert_int_equal(config.limits.message_bytes, 8192);
	assert_int_equal(config.lease.keep_pages, 5);
	assert_int_equal(config.pool_count, 3);
	assert_string_equal(config.pools[0].name, "first");
	assert_string_equal(config.pools[1].name, "a");
	assert_string_equal(config.pools[2].name, "b");
}

static void test_conf_d_complaints_name_their_file(void **state)
{
	char want[600];

	(void)state;
	conf_d_write("10-a.conf", "\n\nlimits = { sesions = 10; };");
	assert_int_equal(load(""), -EINVAL);
	snprintf(want, sizeof(want), "%s/10-a.conf:3: unknown key 'limits.sesions'; did you mean 'sessions'?", conf_d);
	assert_string_equal(error.text, want);

	conf_d_write("10-a.conf", "\neviction = { start = 70; };");
	assert_int_equal(load_finish("pools = ( { name = \"a\"; } );"), -EINVAL);
	snprintf(want, sizeof(want), "%s/10-a.conf:2: eviction.stop (80) must be below eviction.start (70)", conf_d);
	assert_string_equal(error.text, want);

	assert_int_equal(chmod(conf_d, 0777), 0);
	assert_int_equal(load(""), -EACCES);
	snprintf(want, sizeof(want), "directory '%s' is writable by all users; run chmod o-w on it", conf_d);
	assert_string_equal(error.text, want);
}

static void test_conf_d_with_too_many_files(void **state)
{
	char name[32], want[600];

	(void)state;
	for (int i = 0; i < CONFIG_SOURCES_MAX - 2; i++) {
		snprintf(name, sizeof(name), "%02d.conf", i);
		conf_d_write(name, "");
	}
	assert_int_equal(load(""), 0);
	conf_d_write("99.conf", "");
	assert_int_equal(load(""), -EINVAL);
	snprintf(want, sizeof(want), "directory '%s': too many configuration files; the limit is %d", conf_d,
		CONFIG_SOURCES_MAX - 2);
	assert_string_equal(error.text, want);
}

/* ---- the command line ---- */

static void test_set(void **state)
{
	(void)state;
	config_defaults(&config);
	assert_int_equal(config_set(&config, "eviction.start=85", &error), 0);
	assert_int_equal(config.eviction.start_percent, 85);
	assert_int_equal(config_set(&config, "pins.timeout=5ms", &error), 0);
	assert_int_equal(config.pins.timeout_ms, 5);
	assert_int_equal(config_set(&config, "runtime_dir=/tmp/a=b", &error), 0);
	assert_string_equal(config.runtime_dir, "/tmp/a=b");
	assert_int_equal(config_set(&config, "group=", &error), 0);
	assert_string_equal(config.group, "");
	assert_int_equal(config.group_id, getegid());
	assert_int_equal(config_set(&config, "access.admins.users=root,1000", &error), 0);
	assert_int_equal(config.access.admin_users.count, 2);
	assert_int_equal(config.access.admin_users.ids[1], 1000);
	assert_int_equal(config_set(&config, "access.admins.users=", &error), 0);
	assert_int_equal(config.access.admin_users.count, 0);
}

static void test_set_complaints(void **state)
{
	static const struct complaint cases[] = {
		{"eviction.start", "--set 'eviction.start': expected KEY=VALUE"},
		{"eviction.strat=1", "--set eviction.strat: unknown key; gpoold --print-config prints all keys"},
		{"eviction.start=0",
			"--set eviction.start: invalid value '0'; expected an integer from 1 to 100 percent"},
		{"eviction.start= 85",
			"--set eviction.start: invalid value ' 85'; expected an integer from 1 to 100 percent"},
		{"eviction.start=0x55",
			"--set eviction.start: invalid value '0x55'; expected an integer from 1 to 100 percent"},
		{"eviction.size=nan", "--set eviction.size: invalid value 'nan'; expected a number from 0 to 1"},
		{"access.admins.users=root,,1", "--set access.admins.users: user '' does not exist"},
		{"access.admins.users=1,", "--set access.admins.users: user '' does not exist"},
		{"pools.gpu0.size=1GiB",
			"--set pools.gpu0.size: pools and tenants must be defined in the configuration file; --pool "
			"can also add a pool"},
	};
	static struct config before;

	(void)state;
	config_defaults(&config);
	before = config;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(config_set(&config, cases[i].text, &error), -EINVAL);
		assert_string_equal(error.text, cases[i].want);
	}
	assert_memory_equal(&before, &config, sizeof(config));
}

static void test_add_pool(void **state)
{
	(void)state;
	config_defaults(&config);
	assert_int_equal(config_add_pool(&config, "name=gpu0,backend=host,size=2GiB,page_size=2MiB", &error), 0);
	assert_int_equal(config_add_pool(&config, "size=128 pages,reserved=0 pages,name=b", &error), 0);
	assert_int_equal(config_finish(&config, &error), 0);
	assert_int_equal(config.pool_count, 2);
	assert_string_equal(config.pools[0].backend, "host");
	assert_int_equal(config.pools[0].size.value, 2ull << 30);
	assert_int_equal(config.pools[0].reserved.value, 64); /* a sixteenth of 1024 pages */
	assert_int_equal(config.pools[1].reserved.value, 0);
}

static void test_add_pool_complaints(void **state)
{
	static const struct complaint cases[] = {
		{"backend=host", "--pool: 'backend=host' has no name; expected name=NAME,size=SIZE,..."},
		{"name=a,size", "--pool: 'size': expected KEY=VALUE"},
		{"name=a,color=red", "--pool: unknown key 'color'; gpoold --print-config prints all keys"},
		{"name=a,", "--pool: '': expected KEY=VALUE"},
		{"name=a,backend=hip", "--pool: backend: invalid value 'hip'; expected one of \"cuda\", \"host\""},
	};

	(void)state;
	config_defaults(&config);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(config_add_pool(&config, cases[i].text, &error), -EINVAL);
		assert_string_equal(error.text, cases[i].want);
		assert_int_equal(config.pool_count, 0);
	}
	for (int i = 0; i < CONFIG_POOLS_MAX; i++)
		assert_int_equal(config_add_pool(&config, "name=a", &error), 0);
	assert_int_equal(config_add_pool(&config, "name=a", &error), -EINVAL);
	assert_string_equal(error.text, "--pool: too many pools; the limit is 32");
}

/* ---- the complete configuration ---- */

#define POOL "pools = ( { name = \"a\"; size = \"100 pages\"; } );\n"

static void test_finish_complaints(void **state)
{
	static const struct complaint cases[] = {
		{POOL "eviction = { stop = 90; };", "2: eviction.stop (90) must be below eviction.start (90)"},
		{POOL "eviction = {\nrecency = 0.5; };",
			"3: the sum of eviction.recency, eviction.size and eviction.priority is 0.9, but must be 1"},
		{POOL "pressure = { medium = 90; };",
			"2: pressure.medium (90), pressure.high (90) and pressure.critical (97) must be in ascending "
			"order"},
		{POOL "pressure = { critical = 90; };",
			"2: pressure.medium (75), pressure.high (90) and pressure.critical (90) must be in ascending "
			"order"},
		{POOL "lease = { batch_pages = 2000; };",
			"2: lease.batch_most (1024) must not be below lease.batch_pages (2000)"},
		{"pools = ( { name = \"a\"; page_size = \"2MiB\"; handle_size = \"1MiB\"; } );",
			"1: pools.a.handle_size of 1048576 bytes is not a multiple of page_size, 2097152 bytes"},
		{"pools = ( { name = \"a\"; backend = \"cuda\"; huge_pages = \"yes\"; } );",
			"1: pools.a.huge_pages requires the back end host"},
		{"pools = ( { name = \"a\"; backend = \"host\"; page_size = \"1MiB\"; huge_pages = \"yes\"; } );",
			"1: pools.a.huge_pages requires a page_size of 2MiB or 4MiB, not 1048576 bytes"},
		{"pools = ( { name = \"a\"; size = \"1MiB\"; } );",
			"1: pools.a.size gives 0 pages of 2097152 bytes in handles of 2097152; expected 1 to 4194304 "
			"pages"},
		{"pools = ( { name = \"a\"; size = \"100TiB\"; } );",
			"1: pools.a.size gives 52428800 pages of 2097152 bytes in handles of 2097152; expected 1 to "
			"4194304 pages"},
		{"pools = ( { name = \"a\"; size = \"100PiB\"; } );",
			"1: pools.a.size gives 53687091200 pages of 2097152 bytes in handles of 2097152; expected 1 to "
			"4194304 pages"},
		{"pools = ( { name = \"a\"; size = \"3 pages\"; handle_size = \"8MiB\"; } );",
			"1: pools.a.size gives 0 pages of 2097152 bytes in handles of 8388608; expected 1 to 4194304 "
			"pages"},
		{"pools = ( { name = \"a\"; size = \"4 pages\"; reserved = \"4 pages\"; } );",
			"1: pools.a.reserved (4 pages) must be less than the size of the pool (4 pages)"},
		{"pools = ( { name = \"a\"; reserved = \"100%\"; } );",
			"1: pools.a.reserved must be less than 100 percent of the pool"},
		{POOL "tenants = ( { name = \"t\"; minimum = \"60 pages\"; users = [ \"1\" ]; },\n"
		      "{ name = \"u\"; minimum = \"40 pages\"; } );",
			"2: the sum of the minima of all tenants is 100 pages; pool 'a' has 100 pages, of which 6 are "
			"reserved"},
		{"pools = ( { name = \"a\"; size = \"90%\"; } );\ntenants = ( { name = \"t\"; minimum = \"60%\"; users "
		 "= [ \"1\" ]; },\n"
		 "{ name = \"u\"; minimum = \"41%\"; } );",
			"2: the sum of the minima of all tenants is 101 percent of a pool; the limit is 100"},
		{POOL "tenants = ( { name = \"t\"; minimum = \"60 pages\"; limit = \"50%\"; } );",
			"2: the minimum of tenant 't', 60 pages, exceeds its limit in pool 'a', 50%"},
		{"pools = ( { name = \"a\"; } );\ntenants = ( { name = \"t\"; minimum = \"60%\"; limit = \"50%\"; } );",
			"2: the minimum of tenant 't', 60%, exceeds its limit in pool 'a', 50%"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(load_finish(cases[i].text), -EINVAL);
		assert_complaint(cases[i].want);
	}
	assert_int_equal(load_finish(""), -EINVAL);
	assert_string_equal(error.text,
		"no pool is configured; define one in the configuration file, or use --pool "
		"name=gpu0,backend=cuda,device=0,size=90%");
}

/* The error of a duplicate names both positions. */
static void test_finish_duplicates(void **state)
{
	static const struct complaint cases[] = {
		{"pools = ( { name = \"a\"; },\n{ name = \"a\"; } );", "2: pool 'a' is already defined at %s:1"},
		{POOL "tenants = ( { name = \"t\"; },\n{ name = \"t\"; users = [ \"1\" ]; } );",
			"3: tenant 't' is already defined at %s:2"},
		{POOL "tenants = ( { name = \"t\"; users = [ \"1\", \"2\" ]; },\n{ name = \"u\"; users = [ \"3\", "
		      "\"2\" ]; } );",
			"3: user 2 is listed in tenant 'u' and, at %s:2, in tenant 't'; list it in one tenant only"},
		{POOL "tenants = ( { name = \"t\"; groups = [ \"7\" ]; },\n{ name = \"u\"; groups = [ \"7\" ]; } );",
			"3: group 7 is listed in tenant 'u' and, at %s:2, in tenant 't'; list it in one tenant only"},
		{POOL "tenants = ( { name = \"t\"; },\n{ name = \"u\"; } );",
			"3: tenant 'u' and, at %s:2, tenant 't' have neither users nor groups; only one tenant "
			"may omit both"},
	};
	char want[300];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *at = strstr(cases[i].want, "%s");

		assert_int_equal(load_finish(cases[i].text), -EINVAL);
		snprintf(want, sizeof(want), "%.*s%s%s", (int)(at - cases[i].want), cases[i].want, conf, at + 2);
		assert_complaint(want);
	}
}

static void test_finish_names_the_command_line(void **state)
{
	(void)state;
	assert_int_equal(load("pools = ( { name = \"a\"; } );"), 0);
	assert_int_equal(config_set(&config, "eviction.start=10", &error), 0);
	assert_int_equal(config_finish(&config, &error), -EINVAL);
	assert_string_equal(error.text, "--set: eviction.stop (80) must be below eviction.start (10)");
	assert_int_equal(config_set(&config, "eviction.start=90", &error), 0);
	assert_int_equal(config_finish(&config, &error), 0);
	assert_int_equal(config_add_pool(&config, "name=a", &error), 0);
	assert_int_equal(config_finish(&config, &error), -EINVAL);
	assert_non_null(strstr(error.text, "--pool: pool 'a' is already defined at "));
}

/* The command line is one source, for any number of settings. */
static void test_many_settings(void **state)
{
	(void)state;
	assert_int_equal(load(POOL), 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(config_set(&config, "eviction.start=10", &error), 0);
	assert_int_equal(config_finish(&config, &error), -EINVAL);
	assert_string_equal(error.text, "--set: eviction.stop (80) must be below eviction.start (10)");
}

static void test_finish_fills_in(void **state)
{
	(void)state;
	assert_int_equal(load_finish(POOL), 0);
	assert_int_equal(config.tenant_count, 1);
	assert_string_equal(config.tenants[0].name, "default");
	assert_int_equal(config.tenants[0].limit.unit, CONFIG_AMOUNT_PERCENT);
	assert_int_equal(config.tenants[0].limit.value, 100);
	assert_int_equal(config.pools[0].reserved.value, 6); /* a sixteenth of 100 */
	assert_int_equal(config_finish(&config, &error), 0); /* a repeated call changes nothing */
	assert_int_equal(config.tenant_count, 1);
	assert_int_equal(config.pools[0].reserved.value, 6);

	assert_int_equal(load_finish("pools = ( { name = \"a\"; size = \"4096 pages\"; } );"), 0);
	assert_int_equal(config.pools[0].reserved.value, 96);
	assert_int_equal(
		load_finish("pools = ( { name = \"a\"; size = \"100 pages\"; reserved = \"50 pages\"; } );"), 0);
	assert_int_equal(config.pools[0].reserved.value, 50); /* an explicit value is kept */
}

static void test_minima_that_just_fit(void **state)
{
	(void)state;
	assert_int_equal(load_finish(POOL "tenants = ( { name = \"t\"; minimum = \"54 pages\"; users = [ \"1\" ]; },\n"
					  "{ name = \"u\"; minimum = \"40%\"; } );"),
		0);
}

/* ---- difference and printing ---- */

static void test_difference(void **state)
{
	static struct config now;

	(void)state;
	assert_int_equal(load_finish("pools = ( { name = \"a\"; }, { name = \"b\"; } );\n"
				     "tenants = ( { name = \"t\"; }, { name = \"gone\"; users = [ \"1\" ]; } );"),
		0);
	now = config;
	assert_string_equal(difference(&now, &config), "|");
	assert_int_equal(
		load_finish("pools = ( { name = \"c\"; }, { name = \"a\"; size = \"50%\"; } );\n"
			    "tenants = ( { name = \"new\"; users = [ \"2\" ]; }, { name = \"t\"; weight = 9; } );\n"
			    "limits = { sessions = 7; }; eviction = { start = 88; recency = 0.5; size = 0.3; };\n"
			    "access = { admins = { users = [ \"5\" ]; }; };"),
		0);
	assert_string_equal(difference(&now, &config),
		"access.admins.users, eviction.start, eviction.recency, eviction.size, tenants.t.weight, tenants.gone, "
		"tenants.new|limits.sessions, pools.a.size, pools.b, pools.c");
}

/* Change the value of one key in `next`, and check that a reload changes it in `now` if the table says so. */
static void assert_reload(
	const struct config_key *key, struct config *now, void *now_of, struct config *next, void *next_of)
{
	char *field = (char *)next_of + key->offset, before[CONFIG_VALUE_BYTES], changed[CONFIG_VALUE_BYTES];
	char after[CONFIG_VALUE_BYTES];

	if (key->kind == CONFIG_KIND_FLOAT)
		*(double *)(void *)field += 0.125;
	else if (key->kind == CONFIG_KIND_AMOUNT)
		((struct config_amount *)(void *)field)->value ^= 1;
	else
		*field ^= 1;
	config_value_format(key, now_of, before, sizeof(before));
	config_value_format(key, next_of, changed, sizeof(changed));
	assert_string_not_equal(before, changed);
	recipe_apply(now, next);
	config_value_format(key, now_of, after, sizeof(after));
	if (strcmp(after, key->reload == CONFIG_RELOAD_APPLIES ? changed : before))
		fail_msg("%s: %s, then %s; the reload leaves %s", key->path, before, changed, after);
}

static void test_a_reload_applies_what_the_table_says(void **state)
{
	static struct config now, next;
	static const struct {
		const struct config_table *table;
		size_t offset;
	} tables[] = {
		{&config_keys, 0},
		{&config_pool_keys, offsetof(struct config, pools)},
		{&config_tenant_keys, offsetof(struct config, tenants)},
	};

	(void)state;
	assert_int_equal(load_finish("pools = ( { name = \"a\"; } ); tenants = ( { name = \"t\"; } );"), 0);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (size_t k = 0; k < tables[i].table->count; k++) {
			now = next = config;
			assert_reload(&tables[i].table->keys[k], &now, (char *)&now + tables[i].offset, &next,
				(char *)&next + tables[i].offset);
		}
}

static void test_difference_in_a_small_buffer(void **state)
{
	static struct config now;
	char applies[20], restart[8];

	(void)state;
	config_defaults(&now);
	config = now;
	config.eviction.start_percent = 50;
	config.eviction.stop_percent = 40;
	config.limits.sessions = 1;
	config_difference(&now, &config, applies, sizeof(applies), restart, sizeof(restart));
	assert_string_equal(applies, "eviction.start...");
	assert_string_equal(restart, "...");
}

static void test_current_configuration_reads_back(void **state)
{
	static struct config now;
	char *text;

	(void)state;
	assert_int_equal(
		load_finish("pools = ( { name = \"a\"; size = \"100 pages\"; handle_size = \"8MiB\"; },\n"
			    "  { name = \"b\"; size = \"3GB\"; reserved = \"7 pages\"; } );\n"
			    "tenants = ( { name = \"t\"; users = [ \"1\", \"2\" ]; groups = [ \"3\" ]; minimum = "
			    "\"1MiB\"; } );\n"
			    "runtime_dir = \"/tmp/x y\"; front_user = \"root\"; log = { target = \"journal\"; };\n"
			    "access = { observers = { users = [ \"4\", \"5\" ]; }; };\n"
			    "lease = { idle = \"1234ms\"; }; limits = { message_size = \"5000B\"; };\n"
			    "eviction = { recency = 0.3333; size = 0.6667; priority = 0; };"),
		0);
	now = config;
	text = print(&now, CONFIG_PRINT_CURRENT);
	assert_int_equal(load_finish(text), 0);
	free(text);
	assert_string_equal(difference(&now, &config), "|");
	assert_false(config.pools[0].reserved_given);
	assert_true(config.pools[1].reserved_given);
	assert_int_equal(config.pools[0].reserved.value, now.pools[0].reserved.value);
}

/* Remove the '#' in front of a key. `group` is omitted, because its default depends on the machine. */
static unsigned uncomment(char *text)
{
	unsigned count = 0;

	for (char *c = text; *c; c++) {
		bool starts = c == text || c[-1] == '\n' || c[-1] == ' ';

		if (starts && *c == '#' && c[1] != ' ' && c[1] != '\n' && strncmp(c, "#group =", 8)) {
			*c = ' ';
			count++;
		}
	}
	return count;
}

static void test_example_has_the_defaults(void **state)
{
	static struct config defaults;
	char *text;

	(void)state;
	config_defaults(&defaults);
	assert_int_equal(config_add_pool(&defaults, "name=gpu0", &error), 0);
	assert_int_equal(config_finish(&defaults, &error), 0);
	text = print(NULL, CONFIG_PRINT_EXAMPLE);
	assert_int_equal(load_finish(text), 0);
	assert_string_equal(difference(&defaults, &config), "|");
	assert_true(uncomment(text) > 35);
	assert_int_equal(load_finish(text), 0);
	assert_string_equal(difference(&defaults, &config), "|");
	assert_int_equal(config.tenants[0].origin != 0, 1); /* it was in the file */
	free(text);
}

static void test_print_reports_a_failed_write(void **state)
{
	int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(config_print(NULL, CONFIG_PRINT_EXAMPLE, fd), -ENOSPC);
	close(fd);
}

#define IN_FOLDER(function) cmocka_unit_test_setup_teardown(function, folder_make, folder_remove)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_empty_file_has_the_defaults),
		cmocka_unit_test(test_default_group_falls_back),
		IN_FOLDER(test_every_key_arrives),
		cmocka_unit_test(test_sizes_in_powers_of_1000_and_1024),
		cmocka_unit_test(test_page_sizes),
		cmocka_unit_test(test_amount_pages),
		IN_FOLDER(test_unknown_keys),
		IN_FOLDER(test_synonyms),
		IN_FOLDER(test_wrong_types),
		IN_FOLDER(test_wrong_units_and_ranges),
		IN_FOLDER(test_unknown_users_and_groups),
		IN_FOLDER(test_text_that_libconfig_would_get_wrong),
		IN_FOLDER(test_comments_and_numbers_in_strings_are_let_be),
		IN_FOLDER(test_too_long_texts),
		IN_FOLDER(test_too_many),
		IN_FOLDER(test_files_that_are_refused),
		IN_FOLDER(test_conf_d_in_order_of_name),
		IN_FOLDER(test_conf_d_complaints_name_their_file),
		IN_FOLDER(test_conf_d_with_too_many_files),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_set_complaints),
		cmocka_unit_test(test_add_pool),
		cmocka_unit_test(test_add_pool_complaints),
		IN_FOLDER(test_finish_complaints),
		IN_FOLDER(test_finish_duplicates),
		IN_FOLDER(test_finish_names_the_command_line),
		IN_FOLDER(test_many_settings),
		IN_FOLDER(test_finish_fills_in),
		IN_FOLDER(test_minima_that_just_fit),
		IN_FOLDER(test_difference),
		IN_FOLDER(test_a_reload_applies_what_the_table_says),
		cmocka_unit_test(test_difference_in_a_small_buffer),
		IN_FOLDER(test_current_configuration_reads_back),
		IN_FOLDER(test_example_has_the_defaults),
		cmocka_unit_test(test_print_reports_a_failed_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
