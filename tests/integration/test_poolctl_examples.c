/*
 * test_poolctl_examples.c - the example of every verb, as its --help shows it.
 *
 * Goal: examples have the described effect in both output formats, and the exit codes of every verb are those of the
 * manual. Method: extract the words of each example from --help and pass them to the program, without an agent and with
 * an agent that has the objects that the examples name.
 *
 * Requirements: O1.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include <stdbool.h>

enum { GIBIBYTE_PAGES = 256 /* pages of 4 MiB */ };

/* Split the example of a verb in its --help into arguments, which are stored in `room`. */
static int example_arguments(const char *verb, const char **arguments, char room[256])
{
	struct result result = poolctl(verb, "--help", NULL);
	const char *begin = strstr(result.out, "\nExample: poolctl "), *end;
	int count = 0;

	if (!begin)
		fail_msg("'%s --help' has no example: %s", verb, result.out);
	begin += strlen("\nExample: poolctl ");
	end = strchr(begin, '\n');
	snprintf(room, 256, "%.*s", (int)(end - begin), begin);
	for (char *word = strtok(room, " "); word; word = strtok(NULL, " "))
		arguments[count++] = word;
	assert_string_equal(arguments[0], verb);
	result_free(&result);
	return count;
}

/* Run the verb's example with additional arguments, which end with NULL. */
static struct result example_run(const char *verb, const char *first, ...)
{
	const char *arguments[ARGUMENTS_MAX + 1] = {"poolctl"};
	char room[256];
	int count = 1 + example_arguments(verb, arguments + 1, room);
	va_list rest;

	va_start(rest, first);
	for (const char *argument = first; argument; argument = va_arg(rest, const char *)) {
		assert_true(count < ARGUMENTS_MAX);
		arguments[count++] = argument;
	}
	va_end(rest);
	arguments[count] = NULL;
	return poolctl_finish(poolctl_start((char *const *)(uintptr_t)arguments));
}

/* Test each verb with an unknown option, with an argument too many, and without an agent. */
static void test_exit_codes_of_every_verb(void **state)
{
	static const char *const at_home[] = {"doctor", "help"};
	char names[32][16];
	int count = verb_names(names);

	(void)state;
	for (int i = 0; i < count; i++) {
		struct result option = example_run(names[i], "--frobnicate", NULL);
		struct result arguments = example_run(names[i], "a", "b", "c", NULL);
		struct result alone = example_run(names[i], "-d", "/nonexistent", NULL);
		bool needs_agent = true;

		for (size_t k = 0; k < sizeof(at_home) / sizeof(at_home[0]); k++)
			needs_agent = needs_agent && strcmp(names[i], at_home[k]) != 0;
		expect(&option, USAGE);
		expect(&arguments, USAGE);
		if (needs_agent)
			expect(&alone, NO_AGENT);
		else
			assert_true(alone.code == OK || alone.code == FOUND);
		result_free(&option);
		result_free(&arguments);
		result_free(&alone);
	}
}

/* ---- with an agent ---- */

static struct harness harness;
static char folder[TEMPORARY_PATH_BYTES]; /* for the files that the examples write */
static struct gpool *worker;

static void worker_open(void)
{
	struct gpool_options options = harness_options(&harness);

	options.name = "engine";
	assert_int_equal(gpool_open(&options, &worker), 0);
}

/* Start pool p0, tenant batch, and a worker with the name engine. */
static int start(void **state)
{
	static const char config[] =
		"pools = ( { name = \"p0\"; backend = \"host\"; size = \"3GiB\"; page_size = \"4MB\"; reserved = \"0 "
		"pages\"; } );\n"
		"tenants = ( { name = \"interactive\"; users = [ \"0\" ]; }, { name = \"batch\"; } );\n";
	char config_path[64];
	const char *arguments[] = {"--config", config_path, NULL};

	(void)state;
	assert_non_null(mkdtemp(temporary_path(folder, "gpool-examples-XXXXXX")));
	assert_int_equal(chdir(folder), 0);
	snprintf(config_path, sizeof(config_path), "%s/gpoold.conf", folder);
	file_write(config_path, config, sizeof(config) - 1);
	harness_start(&harness, arguments);
	worker_open();
	return 0;
}

static int stop(void **state)
{
	(void)state;
	gpool_close(worker);
	unlink("gpoold.conf");
	rmdir(folder);
	return harness_stop(&harness);
}

/*
 * Allocate one gibibyte of unpinned KV cache blocks, and prepare an object `weights` and a role `main` without a
 * holder.
 */
static void prepare(void)
{
	struct gpool_alloc_options alloc = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_object *object;
	struct gpool_block block;
	struct gpool_role role = GPOOL_ROLE_INIT;
	uint64_t version;
	uint32_t index;

	alloc.usage = GPOOL_USAGE_KV_CACHE;
	for (int i = 0; i < GIBIBYTE_PAGES; i++) {
		assert_int_equal(gpool_alloc(worker, 1, &alloc, &block), 0);
		assert_int_equal(gpool_unpin(worker, &block), 0);
	}
	assert_int_equal(gpool_object_create(worker, "weights", NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_role_acquire(worker, "main", 0, &role), 0);
	assert_int_equal(gpool_role_release(worker, &role), 0);
}

static void run_both(const char *name)
{
	static const char *const forms[] = {"table", "json"};

	for (int form = 0; form < 2; form++) {
		bool drains = !strcmp(name, "drain"), looks_at_machine = !strcmp(name, "doctor");
		struct result result;

		prepare();
		/* the verb waits for the last worker */
		if (drains)
			gpool_close(worker);
		result = example_run(name, "-d", harness.directory, "--timeout", "20", "-o", forms[form], NULL);
		if (looks_at_machine)
			assert_true(result.code == OK || result.code == FOUND);
		else
			expect(&result, OK);
		if (!looks_at_machine)
			assert_true(result.out[0] != '\0');
		if (form && !looks_at_machine && !result.json)
			fail_msg("'%s' as json: %s", name, result.out);
		result_free(&result);
		if (!drains)
			harness_evict(&harness, gpool_session(worker), GIBIBYTE_PAGES);
		if (drains) {
			result = poolctl("drain", "--off", "-d", harness.directory, NULL);
			expect(&result, OK);
			result_free(&result);
			worker_open();
		}
	}
}

/* Test all verbs except top, which draws, and help, which needs no agent. */
static void test_examples_in_both_forms(void **state)
{
	char names[32][16];
	int count = verb_names(names);

	(void)state;
	for (int i = 0; i < count; i++)
		if (strcmp(names[i], "top") != 0 && strcmp(names[i], "help") != 0)
			run_both(names[i]);
	assert_int_equal(unlink("snapshot"), 0);
	assert_int_equal(unlink("trace.json"), 0);
}

int main(void)
{
	const struct CMUnitTest alone[] = {
		cmocka_unit_test(test_exit_codes_of_every_verb),
	};
	const struct CMUnitTest with_agent[] = {
		cmocka_unit_test(test_examples_in_both_forms),
	};
	int failed;

	unsetenv("NO_COLOR");
	failed = cmocka_run_group_tests(alone, NULL, NULL);
	return failed + cmocka_run_group_tests(with_agent, start, stop);
}
