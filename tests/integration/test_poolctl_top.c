/*
 * test_poolctl_top.c - poolctl top on a terminal.
 *
 * Goal: poolctl top draws the state of the pool in every size, with and without colors. Keys work as documented. It
 * reports when no agent replies. However it ends, it restores the terminal.
 *
 * Method: the program of this build runs with a real agent on a pty whose screen the test keeps.
 *
 * Requirements: O1.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/integration/terminal.h"
#include "tests/lib/harness.h"

#include <signal.h>

static struct harness harness;
static struct gpool *worker;

static int start(void **state)
{
	static const char *const arguments[] = {
		"--pool",
		HARNESS_POOL,
		"--pool",
		"name=second,backend=host,size=32MiB,page_size=2MB,reserved=0",
		NULL,
	};
	struct gpool_options options;
	struct gpool_block block;

	(void)state;
	harness_start(&harness, arguments);
	options = harness_options(&harness);
	options.name = "engine";
	assert_int_equal(gpool_open(&options, &worker), 0);
	assert_int_equal(gpool_alloc(worker, 100, NULL, &block), 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	gpool_close(worker);
	return harness_stop(&harness);
}

static void top_start(struct terminal *terminal, const char *option, const char *term, int rows, int columns)
{
	const char *line[] = {"poolctl", "top", "-d", harness.directory, "--interval", "0.1", option, NULL};

	terminal_start(terminal, poolctl_path(), (char *const *)(uintptr_t)line, term, rows, columns);
}

/* Check that the program exits with status 0 and restores the terminal. */
static void expect_restored(struct terminal *terminal, const struct termios *before)
{
	struct termios after;
	int status;

	while (terminal_read(terminal))
		;
	assert_int_equal(tcgetattr(terminal->own, &after), 0);
	assert_int_equal(after.c_lflag, before->c_lflag);
	assert_int_equal(after.c_iflag, before->c_iflag);
	assert_int_equal(after.c_oflag, before->c_oflag);
	assert_false(terminal->other);
	assert_false(terminal->hidden);
	status = terminal_finish(terminal);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), OK);
}

static void test_content_of_the_screen(void **state)
{
	struct terminal terminal;
	struct termios before;
	char title[64];

	(void)state;
	top_start(&terminal, NULL, "xterm", 24, 80);
	assert_int_equal(tcgetattr(terminal.own, &before), 0);
	terminal_await(&terminal, "q: quit");
	assert_true(terminal.other);
	snprintf(title, sizeof(title), "pool 'p0': 512 pages of 512 KiB on %s", harness_backend());
	terminal_await(&terminal, title);
	terminal_await(&terminal, "pressure low");
	terminal_await(&terminal, "% leased");
	terminal_await(&terminal, "# needed 100");
	terminal_await(&terminal, "TENANT ");
	terminal_await(&terminal, "default ");
	terminal_await(&terminal, "CLIENT by leased");
	terminal_await(&terminal, "engine ");
	terminal_await(&terminal, "PAGES PER LETTER");
	terminal_await(&terminal, "KKKKKKKKKK"); /* the map of pages */
	terminal_await(&terminal, "..........");
	terminal_type(&terminal, "s");
	terminal_await(&terminal, "CLIENT by needed");
	terminal_type(&terminal, "\t");
	terminal_await(&terminal, "pool 'second': 16 pages of 2 MiB");
	terminal_type(&terminal, "\033OD"); /* the left key, as an application keypad sends it */
	terminal_await(&terminal, "pool 'p0'");
	terminal_type(&terminal, "h");
	terminal_await(&terminal, "change the order of the clients");
	terminal_await(&terminal, "k  KV_CACHE; K if pinned");
	terminal_type(&terminal, "h");
	terminal_await(&terminal, "CLIENT by");
	terminal_type(&terminal, "q");
	expect_restored(&terminal, &before);
}

static void test_every_size(void **state)
{
	static const int sizes[][2] = {{1, 1}, {2, 10}, {5, 20}, {9, 40}, {13, 79}, {24, 80}, {50, 200}};
	struct terminal terminal;
	struct termios before;

	(void)state;
	top_start(&terminal, NULL, "xterm", 24, 80);
	assert_int_equal(tcgetattr(terminal.own, &before), 0);
	terminal_await(&terminal, "q: quit");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		terminal_clear(&terminal);
		terminal_size(&terminal, sizes[i][0], sizes[i][1]);
		/* the last line is drawn at its new position */
		while (terminal.cells[sizes[i][0] - 1][0] != 'q')
			assert_true(terminal_read(&terminal));
	}
	terminal_await(&terminal, "PAGES PER LETTER 1");
	terminal_type(&terminal, "q");
	expect_restored(&terminal, &before);
}

static void test_signals_restore_the_terminal(void **state)
{
	static const int signals[] = {SIGTERM, SIGHUP, SIGQUIT, SIGINT, 0};
	struct terminal terminal;
	struct termios before;

	(void)state;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		top_start(&terminal, NULL, "xterm", 24, 80);
		assert_int_equal(tcgetattr(terminal.own, &before), 0);
		terminal_await(&terminal, "q: quit");
		if (signals[i])
			assert_int_equal(kill(terminal.pid, signals[i]), 0);
		else
			terminal_type(&terminal, "\003");
		expect_restored(&terminal, &before);
	}
}

/* The terminal vt100 has no alternate screen, and no sequence that selects one. */
static void test_without_colors(void **state)
{
	struct terminal terminal;
	struct termios before;

	(void)state;
	for (int i = 0; i < 2; i++) {
		top_start(&terminal, i ? "--no-color" : NULL, i ? "xterm" : "vt100", 24, 80);
		assert_int_equal(tcgetattr(terminal.own, &before), 0);
		terminal_await(&terminal, "q: quit");
		terminal_await(&terminal, "# needed 100");
		terminal_type(&terminal, "q");
		expect_restored(&terminal, &before);
	}
}

static void test_where_it_cannot_be(void **state)
{
	struct result result = poolctl("-d", harness.directory, "top", NULL);
	struct terminal terminal;
	int status;

	(void)state;
	expect(&result, FAILED);
	expect_text(result.err, "poolctl status");
	result_free(&result);
	result = poolctl("-d", harness.directory, "top", "-o", "json", NULL);
	expect(&result, USAGE);
	expect_text(result.err, "poolctl status -o json");
	result_free(&result);
	top_start(&terminal, NULL, "no-such-terminal", 24, 80);
	terminal_await(&terminal, "does not know the terminal type 'no-such-terminal'");
	status = terminal_finish(&terminal);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), FAILED);
}

/* While no agent replies, the program reports that, shows the last state, and handles keys. */
static void test_it_outlives_gpoold(void **state)
{
	struct terminal terminal;
	struct termios before;

	(void)state;
	top_start(&terminal, NULL, "xterm", 24, 100);
	assert_int_equal(tcgetattr(terminal.own, &before), 0);
	terminal_await(&terminal, "# needed 100");
	gpool_close(worker);
	worker = NULL;
	assert_int_equal(harness_stop(&harness), 0);
	terminal_await(&terminal, "no agent answers in");
	terminal_type(&terminal, "q");
	expect_restored(&terminal, &before);
	start(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_content_of_the_screen),
		cmocka_unit_test(test_every_size),
		cmocka_unit_test(test_signals_restore_the_terminal),
		cmocka_unit_test(test_without_colors),
		cmocka_unit_test(test_where_it_cannot_be),
		cmocka_unit_test(test_it_outlives_gpoold),
	};

	unsetenv("NO_COLOR");
	unsetenv("LINES");
	unsetenv("COLUMNS");
	return cmocka_run_group_tests(tests, start, stop);
}
