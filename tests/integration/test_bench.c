/*
 * test_bench.c - gpool-bench as people run it, and what it must find of gpool_malloc() on any machine, however slow.
 *
 * Goal: the steady state makes no driver call; 300 GB go through 80 GB without a failure, and then one request gets at least 90 % of what is
 * free; allocations by chance hold little more than what is live, and less than a caching allocator where these are large; names mean
 * what the manual says. Method: the real program, one run of each; times are not looked at. It is linked with jemalloc, which no sanitizer
 * bears.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { STUCK_SECONDS = 110, ARGUMENTS_MAX = 16, TEXT_MAX = 1 << 18 };

static char bench[4096 + 32];
static char folder[] = "/tmp/test_bench.XXXXXX";
static char out_path[64], error_path[64];

/* Exit status of gpool-bench with these arguments, up to NULL. */
static int bench_run(const char *const *arguments)
{
	const char *all[ARGUMENTS_MAX] = {bench};
	pid_t child;
	int status;

	for (size_t i = 0; arguments[i]; i++) {
		assert_true(i + 2 < ARGUMENTS_MAX);
		all[i + 1] = arguments[i];
	}
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		if (dup2(open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), 1) < 0 ||
			dup2(open(error_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), 2) < 0)
			_exit(99);
		execv(bench, (char *const *)(uintptr_t)all);
		_exit(98);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}
#define RUN(...) bench_run((const char *const[]){__VA_ARGS__, NULL})

static const char *read_text(const char *path)
{
	static char text[TEXT_MAX];
	FILE *file = fopen(path, "r");
	size_t length;

	assert_non_null(file);
	length = fread(text, 1, sizeof text - 1, file);
	text[length] = '\0';
	fclose(file);
	return text;
}

/* The median of a figure in what was printed, one object a line. */
static double figure(const char *name)
{
	char wanted[96];
	const char *line;

	snprintf(wanted, sizeof wanted, "{\"bench\": \"%s\",", name);
	line = strstr(read_text(out_path), wanted);
	if (!line)
		fail_msg("there is no '%s'; it said: %s", name, read_text(error_path));
	return strtod(strstr(line, "\"median\": ") + 10, NULL);
}

static int lines(const char *text)
{
	int count = 0;

	for (; *text; text++)
		count += *text == '\n';
	return count;
}

static void test_steady_state_calls_no_driver(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "vpmm_steady_calls"), 0);
	assert_int_equal(lines(read_text(out_path)), 1);
	assert_true(figure("vpmm_steady_calls") == 0);
}

static void test_churn_ends_with_one_large_request(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "vpmm_churn"), 0);
	assert_int_equal(lines(read_text(out_path)), 8);
	assert_true(figure("vpmm_churn_failed") == 0);
	assert_true(figure("vpmm_churn_largest") >= 0.9);
	assert_true(figure("vpmm_churn_calls") > 0);
}

static void test_allocations_by_chance_hold_little(void **state)
{
	(void)state;
	assert_int_equal(RUN("-o", "json", "--runs", "1", "vpmm_random_1k"), 0);
	assert_int_equal(lines(read_text(out_path)), 5 * 8);
	for (int i = 0; i < 5; i++) {
		static const char *const sizes[] = {"1", "4", "64", "256", "1024"};
		char name[64];

		snprintf(name, sizeof name, "vpmm_random_1k_%s_failed", sizes[i]);
		assert_true(figure(name) == 0);
		snprintf(name, sizeof name, "peer_fit_1k_%s_failed", sizes[i]);
		assert_true(figure(name) == 0);
	}
	/* 16,000 MiB live at most; rounding to pages of 2 MiB is half a page an allocation. */
	assert_true(figure("vpmm_random_1k_1024_peak") < 16100);
	assert_true(figure("vpmm_random_1k_1024_peak") < figure("peer_fit_1k_1024_peak"));
	assert_true(figure("vpmm_random_1k_256_peak") < figure("peer_fit_1k_256_peak"));
}

static void test_names(void **state)
{
	(void)state;
	assert_int_equal(RUN("nothing"), 2);
	assert_non_null(strstr(read_text(error_path), "there is no bench 'nothing'"));
	assert_int_equal(RUN("vpmm_random_1"), 2); /* not up to an underscore */
	assert_int_equal(RUN("--list"), 0);
	assert_non_null(strstr(read_text(out_path), "vpmm_random_100k_1024_time   ms     * time of 100,000 allocations up to 1,024 MiB"));
	assert_non_null(strstr(read_text(out_path), "vpmm_random_10k_64_time      ms       time of 10,000 allocations up to 64 MiB"));
}

static int prepare(void **state)
{
	char *slash;
	ssize_t length = readlink("/proc/self/exe", bench, sizeof bench - 32);

	(void)state;
	if (length < 0)
		return -1;
	/* This is build/CONFIG/tests/test_bench, and the program build/CONFIG/gpool-bench. */
	bench[length] = '\0';
	slash = strrchr(bench, '/');
	strcpy(slash, "/../gpool-bench");
	/* The agent's front may run as another user, who must be able to reach its sockets. */
	if (!mkdtemp(folder) || chmod(folder, 0711) != 0)
		return -1;
	snprintf(out_path, sizeof out_path, "%s/out", folder);
	snprintf(error_path, sizeof error_path, "%s/error", folder);
	alarm(STUCK_SECONDS);
	return 0;
}

static int clean_up(void **state)
{
	(void)state;
	unlink(out_path);
	unlink(error_path);
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_steady_state_calls_no_driver),
		cmocka_unit_test(test_churn_ends_with_one_large_request),
		cmocka_unit_test(test_allocations_by_chance_hold_little),
	};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	puts("gpool-bench is linked with jemalloc, which does not go together with a sanitizer's own malloc()");
	return 77;
#endif
	return cmocka_run_group_tests(tests, prepare, clean_up);
}
