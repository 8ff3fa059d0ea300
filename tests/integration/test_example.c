/*
 * test_example.c - the program, the configuration and the examples in the README work.
 *
 * Goal: the program in README.md equals client/examples/first.c byte for byte, compiles without a warning, and works as
 * described, both if its block is still resident and if it was evicted. gpoold accepts the configuration in README.md.
 * client/examples/lora.c serves all of its requests with correct results.
 *
 * Method: the test extracts the code blocks from README.md and compiles programs against this build's library. The
 * first program runs on its own terminal, because it waits for Enter; an admin session requests the eviction during
 * that wait. The lora example itself compares its results with float64.
 */
#include "tests/lib/harness.h"
#include "client/core/last_error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	FILE_MOST = 1 << 20,
	OUTPUT_MOST = 4096,
	PAGES = 4, /* pages of the example's block */
	WAIT_MS = AWAIT_MS,
	EVICT_TRIES = 60000, /* milliseconds until the example's own work on the block is done */
};

static struct harness harness;
static char root[400];  /* root folder of the repository */
static char build[512]; /* folder of this build's programs */
static char program[128];

/* ---- files ---- */

/* The program is .../build/CONFIG/tests/test_example, so the build folder is .../build/CONFIG, and so on. */
static void find_folders(void)
{
	char path[400];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

	assert_true(length > 0);
	path[length] = '\0';
	for (int up = 0; up < 2; up++)
		*strrchr(path, '/') = '\0';
	snprintf(build, sizeof(build), "%s", path);
	for (int up = 0; up < 2; up++)
		*strrchr(path, '/') = '\0';
	snprintf(root, sizeof(root), "%s", path);
}

static char *file_read(const char *name)
{
	char path[512], *text = malloc(FILE_MOST);
	size_t length;
	FILE *file;

	assert_non_null(text);
	snprintf(path, sizeof(path), "%s/%s", root, name);
	file = fopen(path, "re");
	if (!file)
		fail_msg("cannot open '%s'", path);
	length = fread(text, 1, FILE_MOST - 1, file);
	fclose(file);
	text[length] = '\0';
	return text;
}

/* Return the only code block of README.md in this language. */
static char *readme_block(const char *language)
{
	char *text = file_read("README.md"), mark[32], *begin, *end, *block;

	snprintf(mark, sizeof(mark), "\n```%s\n", language);
	begin = strstr(text, mark);
	if (!begin)
		fail_msg("README.md has no block of '%s'", language);
	begin += strlen(mark);
	assert_null(strstr(begin, mark));
	end = strstr(begin, "\n```\n");
	assert_non_null(end);
	block = strndup(begin, (size_t)(end + 1 - begin));
	free(text);
	return block;
}

/* ---- running the example ---- */

/* Start the example on a new terminal, with the harness's agent. */
static pid_t example_start(int *terminal)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;
	pid_t child;

	assert_true(master >= 0);
	assert_int_equal(grantpt(master), 0);
	assert_int_equal(unlockpt(master), 0);
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		setenv("GPOOL_DIR", harness.directory, 1);
		if (dup2(slave, 0) < 0 || dup2(slave, 1) < 0 || dup2(slave, 2) < 0)
			_exit(126);
		execl(program, "first", (char *)NULL);
		_exit(127);
	}
	close(slave);
	*terminal = master;
	return child;
}

/* Append its output until `word` occurs. Return false if the program ended before. */
static bool output_until(int terminal, char output[OUTPUT_MOST], const char *word)
{
	struct pollfd more = {.fd = terminal, .events = POLLIN};
	size_t used = strlen(output);

	while (!word || !strstr(output, word)) {
		ssize_t length;

		if (poll(&more, 1, WAIT_MS) != 1)
			fail_msg("the example hangs after: %s", output);
		length = read(terminal, output + used, OUTPUT_MOST - 1 - used);
		if (length <= 0)
			return false; /* EIO: the other end is closed */
		used += (size_t)length;
		output[used] = '\0';
	}
	return true;
}

/* Start the example and wait for its question. */
static pid_t example_ask(int *terminal, char output[OUTPUT_MOST])
{
	pid_t child = example_start(terminal);

	output[0] = '\0';
	if (!output_until(*terminal, output, "Enter"))
		fail_msg("the example ended early: %s", output);
	return child;
}

/* Press Enter and read the rest of the output. */
static void example_answer(pid_t child, int terminal, char output[OUTPUT_MOST])
{
	int status;

	assert_int_equal(write(terminal, "\n", 1), 1);
	output_until(terminal, output, NULL);
	close(terminal);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (status)
		fail_msg("the example ended with status 0x%x: %s", (unsigned)status, output);
}

/* ---- tests ---- */

static void test_readme_has_the_example(void **state)
{
	char *shown = readme_block("c"), *file = file_read("client/examples/first.c");

	(void)state;
	assert_string_equal(shown, file);
	free(shown);
	free(file);
}

static void example_compile(const char *name, const char *libraries)
{
	/* the sanitizer that the library was built with must be in the program too */
	const char *config = strrchr(build, '/') + 1, *compiler = getenv("CC"), *sanitizer = "";
	char command[8192];

	if (!strcmp(config, "asan"))
		sanitizer = "-fsanitize=address,undefined";
	else if (!strcmp(config, "ubsan"))
		sanitizer = "-fsanitize=undefined";
	else if (!strcmp(config, "tsan"))
		sanitizer = "-fsanitize=thread";
	snprintf(program, sizeof(program), "%s/%s", harness.base, name);
	snprintf(command, sizeof(command),
		"%s -std=c11 -Wall -Wextra -Wpedantic -Werror %s -I'%s/client' -o '%s' '%s/client/examples/%s.c' "
		"'%s/libgpool.a' %s -ldl -pthread",
		compiler && *compiler ? compiler : "cc", sanitizer, root, program, root, name, build, libraries);
	assert_int_equal(system(command), 0);
}

static void test_example_compiles(void **state)
{
	(void)state;
	example_compile("first", "-lnanomsg");
}

static void test_example_finds_its_block_again(void **state)
{
	char output[OUTPUT_MOST];
	int terminal;
	pid_t child = example_ask(&terminal, output);

	(void)state;
	example_answer(child, terminal, output);
	assert_non_null(strstr(output, "still there"));
	assert_int_equal(harness_check(&harness), 0);
}

static void test_example_notices_the_eviction(void **state)
{
	char output[OUTPUT_MOST];
	int terminal;
	pid_t child = example_ask(&terminal, output);
	uint32_t taken = 0;

	(void)state;
	for (int tries = 0; !taken && tries < EVICT_TRIES; tries++) {
		taken = harness_evict(&harness, 0, PAGES);
		if (!taken)
			poll(NULL, 0, 1);
	}
	assert_int_equal(taken, PAGES);
	example_answer(child, terminal, output);
	assert_non_null(strstr(output, "evicted"));
	assert_int_equal(harness_check(&harness), 0);
}

/* The example itself compares its results, to one hundredth. */
static void test_lora_example(void **state)
{
	char command[4096], output[OUTPUT_MOST] = "";
	FILE *said;
	size_t length;

	(void)state;
	/* gpool-lora.pc and gpool.pc list the libraries that a static link needs. */
	snprintf(command, sizeof(command),
		"'%s/libgpool_lora.a' '%s/libgpool.a' $(sed -n 's/^Libs.private: //p' '%s/gpool-lora.pc' "
		"'%s/gpool.pc')",
		build, build, build, build);
	example_compile("lora", command);
	snprintf(command, sizeof(command), "mkdir '%s/adapters' && GPOOL_DIR='%s' '%s' '%s/adapters' 2>&1",
		harness.base, harness.directory, program, harness.base);
	said = popen(command, "r");
	assert_non_null(said);
	length = fread(output, 1, sizeof(output) - 1, said);
	output[length] = '\0';
	if (pclose(said) || !strstr(output, "40 requests"))
		fail_msg("the example says: %s", output);
	assert_int_equal(harness_check(&harness), 0);
}

/* The other examples that end by themselves, each with a line of its output. */
static void test_other_examples(void **state)
{
	static const char *const examples[][2] = {
		{"blocks", "table: 1 of 2 entries"}, {"kv", "cache 1: 26 tokens from 64"}};
	char command[1024], output[OUTPUT_MOST], libraries[1024];

	(void)state;
	snprintf(libraries, sizeof(libraries), "$(sed -n 's/^Libs.private: //p' '%s/gpool.pc')", build);
	for (size_t i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
		FILE *said;

		example_compile(examples[i][0], libraries);
		snprintf(command, sizeof(command), "GPOOL_DIR='%s' '%s' 2>&1", harness.directory, program);
		said = popen(command, "r");
		assert_non_null(said);
		output[fread(output, 1, sizeof(output) - 1, said)] = '\0';
		if (pclose(said) || !strstr(output, examples[i][1]) || !strstr(output, "\ndone\n"))
			fail_msg("the example %s prints: %s", examples[i][0], output);
		assert_int_equal(harness_check(&harness), 0);
	}
}

static void test_readme_has_a_good_configuration(void **state)
{
	char *block = readme_block("libconfig"), path[128], command[1024];
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/gpoold.conf", harness.base);
	file = fopen(path, "wxe");
	assert_non_null(file);
	assert_int_equal(fchmod(fileno(file), 0600), 0);
	assert_true(fputs(block, file) >= 0);
	assert_int_equal(fclose(file), 0);
	free(block);
	snprintf(command, sizeof(command), "'%s/gpoold' --check-config --config '%s' --dir '%s/other'", build, path,
		harness.base);
	assert_int_equal(system(command), 0);
}

static int start(void **state)
{
	const char *const arguments[] = {"--pool", HARNESS_POOL, NULL};

	(void)state;
	find_folders();
	harness_start(&harness, arguments);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	return harness_stop(&harness);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_readme_has_the_example),
		cmocka_unit_test(test_readme_has_a_good_configuration),
		cmocka_unit_test(test_example_compiles),
		cmocka_unit_test(test_example_finds_its_block_again),
		cmocka_unit_test(test_example_notices_the_eviction),
		cmocka_unit_test(test_lora_example),
		cmocka_unit_test(test_other_examples),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
