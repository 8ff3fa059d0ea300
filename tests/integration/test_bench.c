/*
 * test_bench.c - gpool-bench as a program, and its results for gpool_malloc_async() that hold on any machine, even a
 * slow one.
 *
 * Goal: the steady state makes no driver call. 300 GB are allocated and freed in 80 GB without a failure, and then one
 * request gets at least 90 % of the free memory. Random allocations use little more than the live memory, and if they
 * are large, less than a caching allocator. Adapters of mixed sizes are loaded and evicted without a failure, a wrong
 * weight or unusable memory. The names of the benchmarks match the manual.
 *
 * Method: one run of the real program for each benchmark; times are not checked. The program is linked with jemalloc,
 * which no sanitizer supports.
 */
#include "tests/integration/tool_process.h"

#include <stdbool.h>

/* Return the median ("median") or maximum ("max") of a figure in the output, which has one object per line. */
static double figure_of(const char *name, const char *which)
{
	char wanted[96];
	const char *line;

	snprintf(wanted, sizeof wanted, "{\"bench\": \"%s\",", name);
	line = strstr(read_text(tool.out), wanted);
	if (!line)
		fail_msg("there is no '%s'; it said: %s", name, read_text(tool.error));
	line = strstr(line, which);
	assert_non_null(line);
	return strtod(strchr(line, ' '), NULL);
}

static double figure(const char *name)
{
	return figure_of(name, "\"median\": ");
}

static double figure_most(const char *name)
{
	return figure_of(name, "\"max\": ");
}

static int lines(const char *text)
{
	int count = 0;

	for (; *text; text++)
		count += *text == '\n';
	return count;
}

/* Requirements: P11. */
static void test_steady_state_calls_no_driver(void **state)
{
	(void)state;
	/*
	 * Use the minimum: a process that gets no core for a second returns pages (idle_ms) and maps them again with
	 * driver calls. A run of many allocations without a call shows that none is necessary.
	 */
	assert_int_equal(RUN("-o", "json", "--runs", "5", "malloc_async_steady_calls"), 0);
	assert_int_equal(lines(read_text(tool.out)), 1);
	assert_true(figure_of("malloc_async_steady_calls", "\"min\": ") == 0);
}

static void test_churn_ends_with_one_large_request(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "malloc_async_churn"), 0);
	assert_int_equal(lines(read_text(tool.out)), 8);
	assert_true(figure("malloc_async_churn_failed") == 0);
	assert_true(figure("malloc_async_churn_largest") >= 0.9);
	assert_true(figure("malloc_async_churn_calls") > 0);
}

static void test_allocations_by_chance_hold_little(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "malloc_async_random_1k"), 0);
	assert_int_equal(lines(read_text(tool.out)), 5 * 10);
	for (int i = 0; i < 5; i++) {
		static const char *const sizes[] = {"1", "4", "64", "256", "1024"};
		char name[64];

		snprintf(name, sizeof name, "malloc_async_random_1k_%s_failed", sizes[i]);
		assert_true(figure(name) == 0);
		snprintf(name, sizeof name, "peer_fit_1k_%s_failed", sizes[i]);
		assert_true(figure(name) == 0);
	}
	/*
	 * At most 16,000 MiB are live. Rounding to pages of 2 MiB costs half a page for each allocation. The slack is
	 * 20 %.
	 */
	assert_true(figure("malloc_async_random_1k_1024_peak") < 1.2 * 16100);
	assert_true(figure("malloc_async_random_1k_1024_peak") < figure("peer_fit_1k_1024_peak"));
	assert_true(figure("malloc_async_random_1k_256_peak") < figure("peer_fit_1k_256_peak"));
	assert_true(figure("malloc_async_random_1k_256_unmaps") == 0);
}

/* Load adapters of mixed sizes 500 times, and register 10,000 adapters. Requirements: L2, L13. */
static void test_adapters_are_loaded_and_evicted(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "adapter_cycles", "adapter_registered"), 0);
	assert_int_equal(lines(read_text(tool.out)), 12);
	assert_true(figure_most("adapter_cycles_failed") == 0);
	assert_true(figure_most("adapter_cycles_wrong") == 0);
	assert_true(figure_most("adapter_cycles_external") == 0);
	assert_true(figure_most("adapter_cycles_internal") < 1);
	assert_true(figure("adapter_cycles_small_tails") > 0);
	assert_true(figure("adapter_cycles_small_tails") < figure("adapter_cycles_small_2mib"));
	assert_true(figure("peer_fit_cycles_failed") > 0);
	assert_true(figure("peer_fit_cycles_external") > 0);
	assert_true(figure("adapter_registered_engine") + figure("adapter_registered_agent") < 1024);
}

/* Load adapters that share pages. Requirements: L18. */
static void test_adapters_share_pages(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "adapter_tails"), 0);
	assert_int_equal(lines(read_text(tool.out)), 10);
	assert_true(figure("adapter_tails_shared_held") > 0);
	assert_true(figure("adapter_tails_plain_held") > 0);
	assert_true(figure("adapter_tails_plain") > 0);
	assert_true(figure("adapter_tails_shared") > 0);
	assert_true(figure("adapter_tails_large") < figure("adapter_tails_plain"));
}

static void test_names(void **state)
{
	(void)state;
	assert_int_equal(RUN("nothing"), 2);
	assert_non_null(strstr(read_text(tool.error), "there is no figure 'nothing'"));
	assert_int_equal(RUN("malloc_async_random_1"), 2); /* a prefix of another name */
	assert_int_equal(RUN("--list"), 0);
	assert_non_null(
		strstr(read_text(tool.out), "malloc_async_random_100k_1024_time ms     * time of 100,000 allocations"));
	assert_non_null(
		strstr(read_text(tool.out), "malloc_async_random_10k_64_time ms       time of 10,000 allocations"));
}

/* Return true if this path exists in the tool's folder. */
static bool there_is(const char *below)
{
	DIR *directory = opendir(tool.temporary);
	const struct dirent *entry;
	bool found = false;

	assert_non_null(directory);
	while (!found && (entry = readdir(directory)) != NULL) {
		char path[512];

		snprintf(path, sizeof path, "%s/%s/%s", tool.temporary, entry->d_name, below);
		found = entry->d_name[0] != '.' && access(path, F_OK) == 0;
	}
	closedir(directory);
	return found;
}

static void ends_clean_by(int signal_number, const char *when_there)
{
	static const char *const arguments[] = {"--runs", "1000", "malloc_async_churn", NULL};
	pid_t child = tool_start(arguments, -1);

	while (!there_is(when_there))
		assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
	assert_int_equal(kill(child, signal_number), 0);
	assert_int_equal(tool_wait(child), 128 + signal_number);
	assert_nothing_left();
}

static void test_a_signal_leaves_nothing(void **state)
{
	(void)state;
	ends_clean_by(SIGHUP, "malloc_async_churn/run/attach");
	ends_clean_by(SIGHUP, "");
	ends_clean_by(SIGTERM, "malloc_async_churn");
	ends_clean_by(SIGINT, "");
	ends_clean_by(SIGQUIT, "");
	ends_clean_by(SIGALRM, "malloc_async_churn");
	ends_clean_by(SIGPIPE, "malloc_async_churn/run/attach");
}

/* timeout(1) sends SIGTERM to the program and to its group. A second signal does not stop the cleanup. */
static void test_repeated_signals_leave_nothing(void **state)
{
	static const char *const arguments[] = {"--runs", "1000", "malloc_async_churn", NULL};
	pid_t child = tool_start(arguments, -1);
	siginfo_t info = {.si_pid = 0};

	(void)state;
	while (!there_is("malloc_async_churn/run/attach"))
		assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
	do
		assert_int_equal(kill(child, SIGTERM), 0);
	while (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid);
	assert_int_equal(tool_wait(child), 128 + SIGTERM);
	assert_nothing_left();
}

/* Every write to a closed pipe raises SIGPIPE, also those after the first. */
static void test_a_closed_output_leaves_nothing(void **state)
{
	static const char *const arguments[] = {"--runs", "1", "shared_count", NULL};
	int ends[2];
	pid_t child;

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	close(ends[0]);
	child = tool_start_to(arguments, ends[1], -1);
	close(ends[1]);
	assert_int_equal(tool_wait(child), 128 + SIGPIPE);
	assert_nothing_left();
}

/* The path of a socket in such a folder would be too long. */
static void test_a_long_temporary_folder_is_not_used(void **state)
{
	int status;

	(void)state;
	setenv("TMPDIR", "/a/folder/whose/name/is/longer/than/that/of/a/socket", 1);
	status = RUN("-o", "json", "--runs", "1", "shared_count");
	setenv("TMPDIR", tool.temporary, 1);
	assert_int_equal(status, 0);
	assert_int_equal(lines(read_text(tool.out)), 2);
}

/* A build is compared with itself: each figure has one ratio per round. */
static void test_against_a_build(void **state)
{
	char folder[sizeof(tool.program)];

	(void)state;
	snprintf(folder, sizeof(folder), "%s", tool.program);
	*strrchr(folder, '/') = '\0';
	assert_int_equal(RUN("-o", "json", "--against", folder, "--rounds", "2", "--runs", "1", "shared_count"), 0);
	assert_int_equal(lines(read_text(tool.out)), 2);
	assert_true(figure_of("peer_cas_pin_unpin", "\"older\": ") > 0);
	assert_true(figure_of("peer_cas_pin_unpin", "\"newer\": ") > 0);
	assert_true(figure_of("peer_cas_pin_unpin", "\"min\": ") <= figure_of("peer_cas_pin_unpin", "\"ratio\": "));
	assert_true(figure_of("peer_add_pin_unpin", "\"rounds\": ") == 2);
	/* The figure is 0 in both builds, so it has no ratio. */
	assert_int_equal(
		RUN("-o", "json", "--against", folder, "--rounds", "1", "--runs", "1", "range_offer_calls"), 0);
	assert_non_null(strstr(read_text(tool.out), "\"older\": 0.0000, \"newer\": 0.0000, \"ratio\": null"));
	/* There is no build. */
	assert_int_equal(RUN("--against", "/nowhere", "shared_count"), 2);
	assert_non_null(strstr(read_text(tool.error), "cannot run '/nowhere/gpool-bench --list'"));
	assert_int_equal(RUN("--rounds", "2", "shared_count"), 2);
	assert_non_null(strstr(read_text(tool.error), "--rounds needs --against"));
}

static int prepare(void **state)
{
	(void)state;
	return tool_prepare("gpool-bench", "GPOOL_BENCH");
}

static int clean_up(void **state)
{
	(void)state;
	return tool_clean_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_a_signal_leaves_nothing),
		cmocka_unit_test(test_repeated_signals_leave_nothing),
		cmocka_unit_test(test_a_closed_output_leaves_nothing),
		cmocka_unit_test(test_a_long_temporary_folder_is_not_used),
		cmocka_unit_test(test_against_a_build),
		cmocka_unit_test(test_steady_state_calls_no_driver),
		cmocka_unit_test(test_churn_ends_with_one_large_request),
		cmocka_unit_test(test_allocations_by_chance_hold_little),
		cmocka_unit_test(test_adapters_are_loaded_and_evicted),
		cmocka_unit_test(test_adapters_share_pages),
	};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	puts("gpool-bench is linked with jemalloc, which does not go together with a sanitizer's own malloc()");
	return 77;
#endif
	return cmocka_run_group_tests(tests, prepare, clean_up);
}
