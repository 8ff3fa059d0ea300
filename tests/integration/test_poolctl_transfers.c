/*
 * test_poolctl_transfers.c - poolctl's report of pages in transfer between trust domains, and of names of objects and
 * roles that exist in two of them.
 *
 * Goal: retired pages are shown with the sessions that delay them, even if they exceed one reply. The list is empty
 * when the pages are free again. The offline report agrees with the agent's.
 *
 * Method: a real gpoold with the tenants `red` and `blue`. Red frees every second page of the pool without unmapping
 * any, and blue requests some of them.
 *
 * Requirements: S8.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include "client/core/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>

/*
 * Each needed page has neighbors that are not needed. The pages therefore form more runs than two replies of the agent
 * hold.
 */
enum { PAGES = 1024, WANTED = 300, PART = 128 };

static const char config_text[] =
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"512MiB\"; page_size = \"512KB\"; reserved = \"0 "
	"pages\"; } );\n"
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; batch_most = 1; };\n"
	"tenants = ( { name = \"red\"; domain = \"red\"; }, { name = \"blue\"; users = [ \"1\" ]; domain = \"blue\"; } "
	");\n";

static char config_path[64];
static struct harness harness;
static struct gpool *red, *blue;

static struct gpool *open_as(const char *tenant)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = NULL;

	options.tenant = tenant;
	options.name = tenant;
	options.magazine = 1;
	assert_int_equal(gpool_open(&options, &pool), 0);
	return pool;
}

static int setup(void **state)
{
	const char *arguments[] = {"--config", config_path, NULL};

	(void)state;
	alarm(STUCK_SECONDS);
	snprintf(config_path, sizeof(config_path), "%s/gpool-transfers-%d.conf", temporary_folder(), (int)getpid());
	file_write(config_path, config_text, sizeof(config_text) - 1);
	harness_start(&harness, arguments);
	red = open_as("red");
	blue = open_as("blue");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	gpool_close(red);
	gpool_close(blue);
	unlink(config_path);
	alarm(0);
	return harness_stop(&harness);
}

static uint32_t retired(void)
{
	return atomic_load(&red->header->state_pages[PAGE_RETIRED]);
}

static void await_retired(uint32_t pages)
{
	for (int tries = 0; retired() != pages; tries++) {
		assert_true(tries < 12000);
		poll(NULL, 0, 5);
	}
}

/* Let red allocate the whole pool, and free every second page. The freed pages are still mapped by red. */
static void red_gives_up_half(void)
{
	static struct gpool_block blocks[PAGES];

	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_alloc(red, 1, NULL, &blocks[i]), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		if (blocks[i].page % 2)
			assert_int_equal(gpool_free(red, &blocks[i]), 0);
}

#define TRANSFERS(...) poolctl("transfers", "-d", harness.directory, __VA_ARGS__, NULL)

static void pages_are_shown(const struct result *result, bool offline)
{
	int count = 0, last = -1;
	const cJSON *entry;

	cJSON_ArrayForEach(entry, list(result, "transfers"))
	{
		assert_string_equal(string(entry, "pool"), "p0");
		assert_string_equal(string(entry, "state"), "retired");
		assert_int_equal(number(entry, "page_count"), 1);
		assert_int_equal((int)number(entry, "page") % 2, 1);
		assert_true((int)number(entry, "page") > last);
		last = (int)number(entry, "page");
		count++;
		if (offline) {
			assert_true(cJSON_IsNull(cJSON_GetObjectItem(entry, "session")));
			continue;
		}
		assert_string_equal(string(entry, "domain"), "red");
		assert_string_equal(string(entry, "name"), "red");
		assert_int_equal(number(entry, "holders"), 1);
		assert_int_equal(number(entry, "session"), gpool_session(red));
		assert_int_equal(number(entry, "pid"), getpid());
	}
	assert_int_equal(count, WANTED);
}

static void await_no_transfers(void)
{
	int count = 1;

	for (int tries = 0; count; tries++) {
		struct result result = TRANSFERS("-o", "json");

		expect(&result, OK);
		expect_document(&result, "transfers");
		count = cJSON_GetArraySize(list(&result, "transfers"));
		result_free(&result);
		assert_true(tries < AWAIT_TRIES);
		poll(NULL, 0, AWAIT_STEP_MS);
	}
}

static void test_sessions_that_delay_transfers(void **state)
{
	struct gpool_block block;
	struct result result;
	char pid[32];

	(void)state;
	await_no_transfers(); /* pages of `cuda` are cleared before their first use */
	red_gives_up_half();
	assert_int_equal(gpool_alloc(blue, WANTED, NULL, &block), -ENOSPC);
	await_retired(WANTED);
	result = TRANSFERS("-o", "json");
	expect(&result, OK);
	assert_true(WANTED > 2 * PART);
	pages_are_shown(&result, false);
	result_free(&result);
	result = TRANSFERS("-p", "p0");
	expect(&result, OK);
	snprintf(pid, sizeof(pid), " %d  red\n", (int)getpid());
	expect_text(result.out, "retired  red");
	expect_text(result.out, pid);
	result_free(&result);
	result = TRANSFERS("-p", "elsewhere");
	expect(&result, USAGE);
	result_free(&result);

	/* An agent that does not reply does not change the report of the pages. */
	assert_int_equal(kill(-harness.pid, SIGSTOP), 0);
	result = TRANSFERS("-o", "json", "--offline");
	assert_int_equal(kill(-harness.pid, SIGCONT), 0);
	expect(&result, OK);
	pages_are_shown(&result, true);
	result_free(&result);

	assert_int_equal(gpool_release_unused(red), WANTED);
	await_retired(0);
	await_no_transfers();
}

/* ---- a name in two domains ---- */

static void publish(struct gpool *pool, const char *name)
{
	/* On the back end cuda, the mover clears new memory for a trust domain. It may still be starting. */
	const struct gpool_alloc_options patient = {.size = sizeof(patient), .timeout_ms = AWAIT_MS};
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	assert_int_equal(gpool_object_create(pool, name, NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, &patient, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

static void test_name_in_two_domains_is_not_deleted(void **state)
{
	struct result result;

	(void)state;
	publish(red, "weights");
	publish(blue, "weights");
	result = poolctl("object", "delete", "weights", "-d", harness.directory, NULL);
	expect(&result, USAGE);
	assert_string_equal(result.err,
		"poolctl: cannot delete 'weights': object 'weights': several trust domains have an object of this "
		"name; specify its version (--object-version)\n");
	result_free(&result);
}

/* Objects of the same name are listed with the domains to which their names belong. */
static void test_objects_have_domains(void **state)
{
	static const char *const domains[] = {"red", "blue"};
	struct result result;
	const cJSON *entry, *other;
	int numbers[2], i = 0;

	(void)state;
	publish(red, "weights");
	publish(blue, "weights");
	result = poolctl("objects", "-d", harness.directory, "-o", "json", NULL);
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "objects")), 2);
	cJSON_ArrayForEach(entry, list(&result, "objects"))
	{
		assert_string_equal(string(entry, "name"), "weights");
		assert_string_equal(string(entry, "domain"), string(entry, "tenant"));
		numbers[i++] = (int)number(entry, "domain_number");
	}
	assert_true(numbers[0] > 0 && numbers[0] < numbers[1]);
	result_free(&result);
	result = poolctl("objects", "-d", harness.directory, NULL);
	expect(&result, OK);
	expect_text(result.out, "DOMAIN");
	for (i = 0; i < 2; i++)
		expect_text(result.out, domains[i]);
	result_free(&result);
	result = poolctl("objects", "-d", harness.directory, "--offline", "-o", "json", NULL);
	expect(&result, OK);
	entry = list(&result, "objects")->child;
	other = entry->next;
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(entry, "domain")));
	assert_int_equal(number(entry, "domain_number"), numbers[0]);
	assert_int_equal(number(other, "domain_number"), numbers[1]);
	result_free(&result);
}

/* Roles of the same name are listed with their domains, and removed by domain. */
static void test_roles_have_domains(void **state)
{
	struct gpool_role roles[2] = {GPOOL_ROLE_INIT, GPOOL_ROLE_INIT};
	struct result result;
	const cJSON *entry;
	int numbers[2], i = 0;

	(void)state;
	assert_int_equal(gpool_role_acquire(red, "main", 0, &roles[0]), 0);
	assert_int_equal(gpool_role_acquire(blue, "main", 0, &roles[1]), 0);
	result = poolctl("roles", "-d", harness.directory, "-o", "json", NULL);
	expect(&result, OK);
	assert_int_equal(cJSON_GetArraySize(list(&result, "roles")), 2);
	cJSON_ArrayForEach(entry, list(&result, "roles"))
	{
		assert_string_equal(string(entry, "name"), "main");
		assert_string_equal(string(entry, "domain"), string(entry, "tenant"));
		numbers[i++] = (int)number(entry, "domain_number");
	}
	assert_true(numbers[0] > 0 && numbers[0] < numbers[1]);
	result_free(&result);
	result = poolctl("roles", "-d", harness.directory, NULL);
	expect(&result, OK);
	expect_text(result.out, "DOMAIN");
	expect_text(result.out, "blue");
	result_free(&result);
	result = poolctl("roles", "-d", harness.directory, "--offline", "-o", "json", NULL);
	expect(&result, OK);
	entry = list(&result, "roles")->child;
	assert_true(cJSON_IsNull(cJSON_GetObjectItem(entry, "domain")));
	assert_int_equal(number(entry, "domain_number"), numbers[0]);
	assert_int_equal(number(entry->next, "domain_number"), numbers[1]);
	result_free(&result);

	assert_int_equal(gpool_role_release(blue, &roles[1]), 0);
	result = poolctl("roles", "remove", "main", "-d", harness.directory, NULL);
	expect(&result, FAILED);
	expect_text(result.err, "several trust domains have a role 'main'; specify the domain (--domain)");
	result_free(&result);
	result = poolctl("roles", "remove", "main", "--domain", "green", "-d", harness.directory, NULL);
	expect(&result, USAGE);
	expect_text(result.err, "no role 'main' in domain 'green' of pool 'p0'");
	result_free(&result);
	result = poolctl("roles", "remove", "main", "--domain", "blue", "-d", harness.directory, NULL);
	expect(&result, OK);
	result_free(&result);
	assert_int_equal(gpool_role_info(blue, "main", NULL, NULL), -ENOENT);
	assert_int_equal(gpool_role_check(red, &roles[0]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sessions_that_delay_transfers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_name_in_two_domains_is_not_deleted, setup, teardown),
		cmocka_unit_test_setup_teardown(test_objects_have_domains, setup, teardown),
		cmocka_unit_test_setup_teardown(test_roles_have_domains, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
