/*
 * test_rights_objects.c - the rights to named objects that docs/rights.md states.
 *
 * Goal: a tenant replaces and deletes the objects of its own sessions, and those of another tenant only if the owner
 * permits it. A version that no session has open is kept, and its owner keeps its rights. A name belongs to a trust
 * domain, and is invisible in others.
 *
 * Method: a real gpoold with tenants `red`, `blue` and `rose`. Red is the victim, and each case is one attack.
 */
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include "client/object/object.h"

#include <errno.h>

enum { RED_BYTE = 0xad, BLUE_BYTE = 0x5b, SIZE = 2 };

#define POOLS \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
#define TOGETHER \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; }, { name = \"blue\"; users = [ \"2\" ]; }, { name = " \
	"\"rose\"; } );\n"

#define APART \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; " \
	"domain = \"blue\"; },\n" \
	"            { name = \"rose\"; domain = \"red\"; } );\n"

static char config_path[64];
static struct gpool *red, *blue, *rose;

/* ---- fixture ---- */

static void start_config(const char *text)
{
	const char *arguments[] = {"--config", config_path, NULL};
	FILE *file;

	snprintf(config_path, sizeof(config_path), "%s/gpool-rights-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(config_path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	rose = open_as(0, NULL, "rose");
}

static int start_together(void **state)
{
	(void)state;
	start_config(POOLS TOGETHER);
	return 0;
}

static int start_apart(void **state)
{
	(void)state;
	start_config(POOLS APART);
	return 0;
}

static int stop_config(void **state)
{
	int result;

	gpool_close(red);
	gpool_close(blue);
	gpool_close(rose);
	red = blue = rose = NULL;
	result = stop(state);
	unlink(config_path);
	return result;
}

/* ---- objects ---- */

static struct gpool_object *built(
	struct gpool *pool, const char *name, const struct gpool_object_options *options, int byte)
{
	struct gpool_object_options own = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t address, bytes;
	uint32_t index;

	/* gpool_object_create() refuses reserved names. Check that the agent refuses them as well. */
	own = options ? *options : own;
	own.flags |= OBJECT_CREATE_OWN;
	assert_int_equal(gpool_object_create(pool, name, &own, &object), 0);
	object->of_library = false;
	assert_int_equal(gpool_object_alloc(object, SIZE, NULL, &index), 0);
	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	memset((void *)(uintptr_t)address, byte, bytes);
	return object;
}

/* Publish the object and close it. Return the result; on success *version is set. */
static int publish_with(
	struct gpool *pool, const char *name, const struct gpool_object_options *options, int byte, uint64_t *version)
{
	struct gpool_object *object = built(pool, name, options, byte);
	int error = gpool_object_publish(object, version);

	assert_int_equal(gpool_object_close(object), 0);
	return error;
}

static int publish(struct gpool *pool, const char *name, uint32_t flags, int byte, uint64_t *version)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;

	options.flags = flags;
	return publish_with(pool, name, &options, byte, version);
}

/* Check that a session of the pool can open the object, and that every byte has this value. */
static void is_read(struct gpool *pool, const char *name, uint64_t version, int byte)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *object;
	uint64_t address, bytes;

	assert_int_equal(gpool_object_open(pool, name, NULL, &object), 0);
	assert_int_equal(gpool_object_info(object, &info), 0);
	assert_int_equal(info.version, version);
	assert_int_equal(gpool_object_address(object, 0, &address, &bytes), 0);
	for (uint64_t i = 0; i < bytes; i++)
		if (((const uint8_t *)(uintptr_t)address)[i] != byte)
			fail_msg("byte %llu of '%s' is 0x%02x", (unsigned long long)i, name,
				((const uint8_t *)(uintptr_t)address)[i]);
	assert_int_equal(gpool_object_close(object), 0);
}

/* Return the number of current objects of this name that gpool_object_next() shows. */
static uint32_t listed(struct gpool *pool, const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		count += info.state == GPOOL_OBJECT_CURRENT && !strcmp(info.name, name);
	return count;
}

/* ---- tenants of one domain ---- */

static void test_private_is_not_replaced(void **state)
{
	uint64_t version, never;

	(void)state;
	assert_int_equal(publish(red, "weights", GPOOL_OBJECT_PRIVATE, RED_BYTE, &version), 0);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &never), -EPERM);
	assert_string_equal(gpool_last_error(-EPERM),
		"object 'weights': it belongs to tenant 'red', and only that tenant may replace it");
	is_read(red, "weights", version, RED_BYTE);
}

/* The attacker gives the exact version, as an engine does that replaces only a known version. */
static void test_known_version_is_not_replaced(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t version, never;

	(void)state;
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &version), 0);
	options.expect_version = version;
	assert_int_equal(publish_with(blue, "weights", &options, BLUE_BYTE, &never), -EPERM);
	is_read(blue, "weights", version, RED_BYTE);
}

/* No session has the object open: a replacement would have freed it at once. */
static void test_unread_version_stays(void **state)
{
	uint64_t version, never;
	uint32_t shared_pages;

	(void)state;
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &version), 0);
	assert_int_equal(publish(blue, "other", 0, BLUE_BYTE, &never), 0);
	assert_int_equal(gpool_object_delete(blue, "other", 0), 0);
	shared_pages = atomic_load(&pool_view(admin)->header->state_pages[PAGE_SHARED]);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &never), -EPERM);
	assert_int_equal(atomic_load(&pool_view(admin)->header->state_pages[PAGE_SHARED]), shared_pages);
	is_read(red, "weights", version, RED_BYTE);
}

static void test_owner_is_not_locked_out(void **state)
{
	uint64_t version, never;

	(void)state;
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &version), 0);
	assert_int_equal(publish(blue, "weights", GPOOL_OBJECT_PRIVATE, BLUE_BYTE, &never), -EPERM);
	assert_int_equal(publish(red, "weights", 0, RED_BYTE + 1, &version), 0);
	is_read(red, "weights", version, RED_BYTE + 1);
	assert_int_equal(gpool_object_delete(red, "weights", 0), 0);
}

static void test_sleeper_wakes(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range;
	uint64_t address, never;

	(void)state;
	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	options.name = "weights";
	assert_int_equal(gpool_range_create(red, SIZE, &options, &range), 0);
	assert_int_equal(gpool_range_address(range, &address), 0);
	memset((void *)(uintptr_t)address, RED_BYTE, SIZE * gpool_page_bytes(red));
	assert_int_equal(gpool_sleep(red, 0), 0);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &never), -EPERM);
	assert_int_equal(gpool_wake(red, ANSWER_MS), 0);
	assert_int_equal(*(const uint8_t *)(uintptr_t)address, RED_BYTE);
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_find_counts_what_can_be_opened(void **state)
{
	static const char *const names[] = {"open", "private", "absent", "open"};
	uint64_t version;

	(void)state;
	assert_int_equal(publish(red, "open", 0, RED_BYTE, &version), 0);
	assert_int_equal(publish(red, "private", GPOOL_OBJECT_PRIVATE, RED_BYTE, &version), 0);
	assert_int_equal(gpool_object_find(red, names, 4), 2);
	assert_int_equal(gpool_object_find(blue, names, 4), 1);
	assert_int_equal(gpool_object_find(blue, names, 0), 0);
	assert_int_equal(gpool_object_find(blue, (const char *const[]){"open", NULL}, 2), -EINVAL);
}

static void test_engines_of_one_tenant_share(void **state)
{
	struct gpool *engine = open_as(0, NULL, "red");
	uint64_t version;

	(void)state;
	assert_int_equal(publish(red, "weights", GPOOL_OBJECT_PRIVATE, RED_BYTE, &version), 0);
	is_read(engine, "weights", version, RED_BYTE);
	assert_int_equal(publish(engine, "weights", GPOOL_OBJECT_PRIVATE, RED_BYTE + 1, &version), 0);
	is_read(red, "weights", version, RED_BYTE + 1);
	assert_int_equal(gpool_object_delete(engine, "weights", 0), 0);
	gpool_close(engine);
}

/* Any session may use a name that is free again, even if an admin has freed it. */
static void test_freed_name(void **state)
{
	uint64_t version;

	(void)state;
	assert_int_equal(publish(red, "weights", GPOOL_OBJECT_PRIVATE, RED_BYTE, &version), 0);
	assert_int_equal(gpool_object_delete(blue, "weights", 0), -EPERM);
	assert_string_equal(gpool_last_error(-EPERM),
		"object 'weights': it belongs to tenant 'red', and only that tenant and admins may delete it");
	assert_int_equal(gpool_object_delete(admin, "weights", 0), 0);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &version), 0);
	is_read(red, "weights", version, BLUE_BYTE);
}

static void test_owner_allows_writing(void **state)
{
	const struct gpool_object_options wrong = {
		sizeof(wrong), GPOOL_OBJECT_PRIVATE | GPOOL_OBJECT_DOMAIN_WRITE, 0, 0, NULL, 0, 0};
	struct gpool_object *object;
	uint64_t version;

	(void)state;
	assert_int_equal(gpool_object_create(red, "weights", &wrong, &object), -EINVAL);
	assert_non_null(strstr(gpool_last_error(-EINVAL), "both GPOOL_OBJECT_PRIVATE and GPOOL_OBJECT_DOMAIN_WRITE"));
	assert_int_equal(publish(red, "weights", GPOOL_OBJECT_DOMAIN_WRITE, RED_BYTE, &version), 0);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &version), 0);
	is_read(red, "weights", version, BLUE_BYTE);
	/* The version is blue's now, which permits no other tenant to replace it. */
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &version), -EPERM);
	assert_int_equal(publish(blue, "weights", GPOOL_OBJECT_DOMAIN_WRITE, BLUE_BYTE, &version), 0);
	assert_int_equal(gpool_object_delete(red, "weights", 0), 0);
}

/* ---- names reserved for the library ---- */

/* Publish with the flag of the library's own calls, which the agent cannot verify. */
static int publish_as_library(struct gpool *pool, const char *name, int byte, uint64_t *version)
{
	struct gpool_object *object = built(pool, name, NULL, byte);
	int error;

	object->of_library = true;
	error = gpool_object_publish(object, version);
	assert_int_equal(gpool_object_close(object), 0);
	return error;
}

static void test_programs_do_not_publish_library_names(void **state)
{
	static const char *const names[] = {"lora/0123", "warm/0123", "kv-prefix/0123", "kv/0123"};
	uint64_t version;
	char text[160];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		assert_int_equal(publish(red, names[i], 0, RED_BYTE, &version), -EPERM);
		snprintf(text, sizeof(text),
			"object '%s': names that begin with lora/, warm/, kv-prefix/ or kv/ are reserved for the "
			"library",
			names[i]);
		assert_string_equal(gpool_last_error(-EPERM), text);
		assert_int_equal(publish_as_library(red, names[i], RED_BYTE, &version), 0);
		assert_int_equal(publish_as_library(blue, names[i], BLUE_BYTE, &version), -EPERM);
		assert_int_equal(publish_as_library(red, names[i], RED_BYTE + 1, &version), 0);
		is_read(red, names[i], version, RED_BYTE + 1);
	}
	assert_int_equal(publish(red, "lora", 0, RED_BYTE, &version), 0);
}

static void test_private_library_names_are_their_tenants(void **state)
{
	uint64_t version;

	(void)state;
	assert_int_equal(publish_as_library(blue, "lora/0123@red", BLUE_BYTE, &version), -EPERM);
	assert_int_equal(publish_as_library(blue, "lora/0123@", BLUE_BYTE, &version), -EPERM);
	assert_int_equal(publish_as_library(red, "lora/0123@red", RED_BYTE, &version), 0);
	is_read(red, "lora/0123@red", version, RED_BYTE);
	assert_int_equal(publish(blue, "weights@red", 0, BLUE_BYTE, &version), 0);
}

/* ---- tenants of two domains ---- */

static void test_other_domains_names_are_not_listed(void **state)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint64_t version;

	(void)state;
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &version), 0);
	assert_int_equal(listed(blue, "weights"), 0);
	assert_false(object_look_up(blue, "weights", &info));
	assert_int_equal(listed(red, "weights"), 1);
	assert_int_equal(listed(rose, "weights"), 1);
	assert_true(object_look_up(rose, "weights", &info));
	assert_int_equal(listed(admin, "weights"), 1);
}

static void test_same_name_in_two_domains(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t of_red, of_blue;

	(void)state;
	options.expect_version = GPOOL_OBJECT_NONE;
	assert_int_equal(publish_with(red, "weights", &options, RED_BYTE, &of_red), 0);
	assert_int_equal(publish_with(blue, "weights", &options, BLUE_BYTE, &of_blue), 0);
	is_read(red, "weights", of_red, RED_BYTE);
	is_read(rose, "weights", of_red, RED_BYTE);
	is_read(blue, "weights", of_blue, BLUE_BYTE);
	assert_int_equal(gpool_object_delete(blue, "weights", of_red), -ESTALE);
	assert_int_equal(gpool_object_delete(blue, "weights", 0), 0);
	assert_int_equal(gpool_object_delete(blue, "weights", 0), -ENOENT);
	is_read(red, "weights", of_red, RED_BYTE);
}

/* A private object of another domain does not block the name, and does not exclude its owner. */
static void test_private_of_another_domain(void **state)
{
	struct gpool_object *object;
	uint64_t of_red, of_blue;

	(void)state;
	assert_int_equal(publish(red, "weights", GPOOL_OBJECT_PRIVATE, RED_BYTE, &of_red), 0);
	assert_int_equal(gpool_object_open(blue, "weights", NULL, &object), -ENOENT);
	assert_int_equal(publish(blue, "weights", GPOOL_OBJECT_PRIVATE, BLUE_BYTE, &of_blue), 0);
	is_read(red, "weights", of_red, RED_BYTE);
	assert_int_equal(gpool_object_delete(red, "weights", 0), 0);
	is_read(blue, "weights", of_blue, BLUE_BYTE);
}

/* For an admin, a name that exists in several domains is ambiguous. A version belongs to one domain. */
static void test_admin_deletes_in_any_domain(void **state)
{
	uint64_t of_red, of_blue;

	(void)state;
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &of_red), 0);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &of_blue), 0);
	assert_int_equal(listed(admin, "weights"), 2);
	assert_int_equal(gpool_object_delete(admin, "weights", 0), -EINVAL);
	assert_int_equal(gpool_object_delete(admin, "weights", of_red), 0);
	assert_int_equal(listed(red, "weights"), 0);
	is_read(blue, "weights", of_blue, BLUE_BYTE);
	assert_int_equal(gpool_object_delete(admin, "weights", 0), 0);
	assert_int_equal(gpool_object_delete(admin, "weights", 0), -ENOENT);
}

static void test_names_outlive_an_agent(void **state)
{
	uint64_t of_red, of_blue, incarnation = atomic_load(&pool_view(admin)->header->incarnation);

	(void)state;
	assert_int_equal(publish(red, "weights", 0, RED_BYTE, &of_red), 0);
	assert_int_equal(publish(blue, "weights", 0, BLUE_BYTE, &of_blue), 0);
	assert_int_equal(kill(process_of("gpoold-agent"), SIGKILL), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->incarnation) != incarnation);
	is_read(red, "weights", of_red, RED_BYTE);
	is_read(blue, "weights", of_blue, BLUE_BYTE);
	assert_int_equal(listed(blue, "weights"), 1);
}

int main(int argc, char **argv)
{
#define TOGETHER_TEST(name) cmocka_unit_test_setup_teardown(test_##name, start_together, stop_config)
#define APART_TEST(name) cmocka_unit_test_setup_teardown(test_##name, start_apart, stop_config)
	const struct CMUnitTest tests[] = {
		TOGETHER_TEST(private_is_not_replaced),
		TOGETHER_TEST(known_version_is_not_replaced),
		TOGETHER_TEST(unread_version_stays),
		TOGETHER_TEST(owner_is_not_locked_out),
		TOGETHER_TEST(sleeper_wakes),
		TOGETHER_TEST(find_counts_what_can_be_opened),
		TOGETHER_TEST(engines_of_one_tenant_share),
		TOGETHER_TEST(freed_name),
		TOGETHER_TEST(owner_allows_writing),
		TOGETHER_TEST(programs_do_not_publish_library_names),
		TOGETHER_TEST(private_library_names_are_their_tenants),
		APART_TEST(other_domains_names_are_not_listed),
		APART_TEST(same_name_in_two_domains),
		APART_TEST(private_of_another_domain),
		APART_TEST(admin_deletes_in_any_domain),
		APART_TEST(names_outlive_an_agent),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
