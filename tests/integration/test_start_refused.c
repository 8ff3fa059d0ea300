/*
 * test_start_refused.c - starts of gpoold that cannot succeed.
 *
 * Goal: each start is refused at once, with a message that names the value, the limit and the remedy. --check-config
 * refuses the same configurations. Method: the real program, with an unusable configuration, descriptor limit or
 * runtime directory.
 */
#include "tests/integration/tool_process.h"

#include "client/gpool.h"
#include "proto/attach.h"

#include <linux/capability.h>
#include <pwd.h>
#include <stdbool.h>
#include <sys/resource.h>

#define POOL "name=p0,backend=host,size=8MiB,page_size=512KB,reserved=0"

static char directory[96];

/* ---- both ways ---- */

/* Root could raise the limit again, so this process permanently drops the capability to do so. */
static void limit_descriptors(rlim_t limit)
{
	struct rlimit wanted = {limit, limit};

	prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &wanted), 0);
}

/* Return the exit status under this limit. A child sets the limit, because it cannot be raised again. */
static int run_limited(rlim_t limit, const char *const *arguments)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		limit_descriptors(limit);
		_exit(tool_run(arguments));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/*
 * The start and --check-config refuse the arguments with the same words, which contain `text`. limit: of descriptors;
 * 0: that of this process.
 */
static void refused(rlim_t limit, const char *const *arguments, const char *text)
{
	const char *checking[TOOL_ARGUMENTS_MAX] = {"--check-config"};
	char words[1024], *end;
	size_t count = 0;

	while ((checking[count + 1] = arguments[count]))
		count++;
	assert_int_equal(limit ? run_limited(limit, checking) : tool_run(checking), 2);
	snprintf(words, sizeof(words), "%s", read_text(tool.error));
	end = strrchr(words, '\n');
	if (strncmp(words, "gpoold: ", 8) || !strstr(words, text) || !end)
		fail_msg("expected '%s', not '%s'", text, words);
	*end = '\0';
	assert_int_equal(limit ? run_limited(limit, arguments) : tool_run(arguments), 1);
	if (!strstr(read_text(tool.error), words + 8))
		fail_msg("--check-config reports '%s', the start '%s'", words, read_text(tool.error));
}
#define REFUSED(text, ...) refused(0, (const char *const[]){__VA_ARGS__, NULL}, text)

/* ---- sizes ---- */

static void test_check_and_start_agree(void **state)
{
	static const struct {
		const char *pool, *text;
		int checked; /* exit status of --check-config */
	} cases[] = {
		{"name=a,backend=host,page_size=512KB,size=4194305 pages",
			"invalid value '4194305 pages'; a pool has at most 4194304 pages", 2},
		{"name=a,backend=host,page_size=512KB,size=4294967295 pages",
			"invalid value '4294967295 pages'; a pool has at most 4194304 pages", 2},
		{"name=a,backend=host,page_size=512KB,size=4TiB", "size gives 8388608 pages of 524288 bytes", 2},
		{"name=a,backend=host,page_size=512KB,size=100KiB", "expected 1 to 4194304 pages", 2},
		{"name=a,backend=host,page_size=512KB,size=3 pages,handle_size=2MiB",
			"size gives 0 pages of 524288 bytes in handles of 2097152", 2},
		{"name=a,backend=host,page_size=512KB,size=5 pages,handle_size=2MiB,reserved=4 pages",
			"reserved (4 pages) must be less than the size of the pool (4 pages)", 2},
		{"name=a,backend=host,page_size=512KB,size=8 pages", NULL, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *checked;

		assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", cases[i].pool), cases[i].checked);
		if (!cases[i].text)
			continue;
		checked = strdup(read_text(tool.error));
		assert_non_null(checked);
		if (!strstr(checked, cases[i].text))
			fail_msg("expected '%s', not '%s'", cases[i].text, checked);
		assert_int_equal(RUN("--dir", directory, "--pool", cases[i].pool), cases[i].checked);
		assert_string_equal(read_text(tool.error), checked);
		free(checked);
	}
}

/* ---- this machine ---- */

/* The configuration is refused for this machine, with `text`, by the start and by --check-config, but is valid. */
static void unfit(const char *first, const char *second, const char *text)
{
	char *checked;

	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", first, "--pool", second), 2);
	checked = strdup(read_text(tool.error));
	assert_non_null(checked);
	if (!strstr(checked, text))
		fail_msg("expected '%s', not '%s'", text, checked);
	assert_int_equal(RUN("--dir", directory, "--pool", first, "--pool", second), 2);
	assert_string_equal(read_text(tool.error), checked);
	free(checked);
	assert_int_equal(RUN("--check-config=file", "--pool", first, "--pool", second), 0);
}

static void test_a_machine_that_cannot_serve(void **state)
{
	char text[256], path[64];

	(void)state;
	unfit("name=a,backend=host,size=8MiB,spill_directory=/nowhere", POOL,
		"--pool: pools.a.spill_directory: cannot create a file in '/nowhere': No such file or directory; "
		"create a directory there");
	unfit(POOL, "name=a,backend=host,size=8MiB,spill_directory=/proc",
		geteuid() ? "spill_directory: cannot create a file in '/proc': Permission denied"
			  : "spill_directory: cannot create a file in '/proc': the file system does not support");
	write_text(tool_path(path, "text"), "");
	snprintf(text, sizeof(text), "name=a,backend=host,size=8MiB,spill_directory=%s", path);
	unfit(text, POOL, "Not a directory");
	snprintf(text, sizeof(text), "name=a,backend=host,size=8MiB,spill_directory=%s", tool.folder);
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", text), 0);
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool",
				 "name=a,backend=host,size=8MiB,spill_directory=/nowhere,spill_file=0B"),
		0);

	unfit("name=a,backend=host,size=16TiB,page_size=4MB", POOL,
		"--pool: pools.a.size: the pools up to this one on device '0' of the back end host have 16777216 MiB, "
		"but the device has ");
	setenv("GPOOL_HOST_MEMORY", "64MiB", 1);
	unfit("name=a,backend=host,size=40MiB", "name=b,backend=host,size=26MiB",
		"pools.b.size: the pools up to this one on device '0' of the back end host have 66 MiB, but the device "
		"has 64 MiB");
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", "name=a,backend=host,size=40MiB", "--pool",
				 "name=b,backend=host,size=24MiB"),
		0);
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", "name=a,backend=host,size=40MiB", "--pool",
				 "name=b,backend=host,size=40MiB,device=1", "--pool", "name=c,backend=cuda,size=1TiB"),
		0);
	unsetenv("GPOOL_HOST_MEMORY");
}

static void test_what_is_checked(void **state)
{
	(void)state;
	assert_int_equal(RUN("--nope"), 2);
	assert_non_null(strstr(read_text(tool.error), "see gpoold --help"));
	assert_int_equal(RUN("--check-config=/etc/gpoold.conf", "--pool", POOL), 2);
	assert_string_equal(read_text(tool.error),
		"gpoold: --check-config=/etc/gpoold.conf: the only permitted value is 'file'; --config FILE selects "
		"the "
		"file to check\n");
	/* The checks leave nothing behind. */
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", POOL), 0);
	assert_int_equal(access(directory, F_OK), -1);
	/* GPUs are not checked. */
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", "name=a,backend=cuda,device=99"), 0);
}

static void test_a_device_that_does_not_exist(void **state)
{
	(void)state;
	REFUSED("pool 'a': cannot use device '99' of back end 'host' with the peers 'none': no device '99'; the number "
		"of devices of back end 'host' is 8",
		"--dir", directory, "--pool", "name=a,backend=host,size=8MiB,device=99");
	REFUSED("no device '99'", "--dir", directory, "--pool", "name=a,backend=host,size=8MiB,peers=1 99");
	REFUSED("cannot open '/nowhere': No such file or directory", "--dir", directory, "--module", "/nowhere",
		"--pool", POOL);
	assert_int_equal(access(directory, F_OK), -1);
}

/*
 * Start gpoold in a child, with this limit of descriptors unless it is 0, attach a session, allocate a page, and stop
 * gpoold.
 */
static void serves(rlim_t limit, const char *const *arguments)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_block block;
	struct gpool *pool;
	int error, status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		int log = open(tool.error, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

		dup2(log, STDERR_FILENO);
		if (limit)
			limit_descriptors(limit);
		execv(tool.program, (char *const *)(uintptr_t)arguments);
		_exit(98);
	}
	options.directory = directory;
	options.pool = "p0";
	options.timeout_ms = 1000;
	do {
		error = gpool_open(&options, &pool);
		assert_int_equal(waitpid(child, &status, WNOHANG), 0);
	} while (error == -ENOENT || error == -ETIMEDOUT);
	if (error)
		fail_msg("limit %u: %s; %s", (unsigned)limit, gpool_last_error(error), read_text(tool.error));
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
	assert_int_equal(kill(child, SIGTERM), 0);
	assert_int_equal(tool_wait(child), 0);
}

/* Space that is not used costs nothing, so a configuration may permit any amount. */
static void test_more_spilled_memory_than_exists(void **state)
{
	char pool[256];
	const char *const arguments[] = {"gpoold", "--dir", directory, "--pool", pool, NULL};

	(void)state;
	snprintf(pool, sizeof(pool), "%s,spill_memory=64TiB", POOL);
	assert_int_equal(RUN("--check-config", "--dir", directory, "--pool", pool), 0);
	serves(0, arguments);
	/* A file system may limit the size of a file. */
	snprintf(pool, sizeof(pool), "%s,spill_memory=64TiB,spill_directory=%s,spill_file=64TiB", POOL, tool.temporary);
	if (RUN("--check-config", "--dir", directory, "--pool", pool))
		unfit(pool, "name=other,backend=host,size=8MiB",
			"spill_file: cannot create a file of 70368744177664 bytes in '");
	else
		serves(0, arguments);
}

/* ---- descriptors ---- */

/* Requirements: S12. */
static void test_too_few_descriptors(void **state)
{
	static const rlim_t limits[] = {20, 30, 64, 74};
	const char *const one[] = {"--dir", directory, "--pool", POOL, NULL};
	/* Each trust domain has its own handles: 16 files of 512 KiB. */
	char config[64];
	const char *const separate[] = {"--config", tool_path(config, "separate.conf"), "--dir", directory, NULL};

	(void)state;
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		char text[64];

		snprintf(text, sizeof(text), "RLIMIT_NOFILE is %u: these pools and one session need 7",
			(unsigned)limits[i]);
		refused(limits[i], one, text);
	}
	write_text(config,
		"pools = ( { name = \"p0\"; backend = \"host\"; size = \"8MiB\"; page_size = \"512KB\"; reserved = \"0 "
		"pages\"; } );\n"
		"tenants = ( { name = \"a\"; domain = \"x\"; users = [ \"1\" ]; }, { name = \"b\"; domain = \"y\"; } "
		");\n");
	refused(80, separate, "RLIMIT_NOFILE is 80: these pools and one session need 90 descriptors");
}

#define HOST(name, keys) "{ name = \"" name "\"; backend = \"host\"; reserved = \"0 pages\"; " keys " }"
#define SMALL "size = \"8MiB\"; page_size = \"512KB\";"
#define LARGE "size = \"8MiB\"; page_size = \"1MB\";"

/*
 * The number of descriptors in the message is sufficient, and one less is not, whatever determines it: pools, trust
 * domains, pages and handles.
 */
static void test_the_number_of_descriptors_is_sufficient(void **state)
{
	static const struct {
		const char *pools;
		bool domains;
		unsigned needed;
	} cases[] = {
		{HOST("p0", SMALL), false, 75},
		{HOST("p0", SMALL), true, 90},
		{HOST("p0", LARGE), true, 82},
		{HOST("p0", "size = \"300MiB\"; page_size = \"1MB\";"), true, 374},
		{HOST("p0", "size = \"64MiB\"; page_size = \"512KB\"; handle_size = \"4MB\";"), true, 90},
		{HOST("p0", SMALL) ", " HOST("p1", LARGE), true, 104},
		{HOST("p0", SMALL) ", " HOST("p1", LARGE), false, 82},
	};
	char config[64], text[1024];
	const char *const arguments[] = {
		"gpoold", "--config", tool_path(config, "limits.conf"), "--dir", directory, NULL};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(text, sizeof(text), "pools = ( %s );\n%s", cases[i].pools,
			cases[i].domains ? "tenants = ( { name = \"a\"; domain = \"x\"; users = [ \"1\" ]; }, { name = "
					   "\"b\"; domain = \"y\"; } );\n"
					 : "");
		write_text(config, text);
		snprintf(text, sizeof(text), "RLIMIT_NOFILE is %u: these pools and one session need %u descriptors",
			cases[i].needed - 1, cases[i].needed);
		refused(cases[i].needed - 1, arguments + 1, text);
		serves(cases[i].needed, arguments);
	}
}

/* ---- the attach socket ---- */

static void attach_path(char path[128])
{
	mkdir(directory, 0711);
	snprintf(path, 128, "%s/attach", directory);
}

/* A name in the runtime directory is used for something else, which stays as it is. */
static void name_taken(const char *name, bool is_directory, const char *text)
{
	char path[192];

	mkdir(directory, 0711);
	snprintf(path, sizeof(path), "%s/nn", directory);
	if (strchr(name, '/'))
		assert_int_equal(mkdir(path, 0777), 0);
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	if (is_directory)
		assert_int_equal(mkdir(path, 0700), 0);
	else
		write_text(path, "mine");
	REFUSED(text, "--dir", directory, "--pool", POOL);
	if (is_directory) {
		assert_int_equal(rmdir(path), 0);
	} else {
		assert_string_equal(read_text(path), "mine");
		assert_int_equal(unlink(path), 0);
	}
	snprintf(path, sizeof(path), "%s/nn", directory);
	rmdir(path);
	assert_int_equal(rmdir(directory), 0); /* no leftovers */
}

static void test_a_name_that_is_taken(void **state)
{
	static const char socket[] = "it exists and is not a socket; remove it or choose another runtime_dir";

	(void)state;
	name_taken("attach", true, socket);
	name_taken("attach", false, socket);
	name_taken("nn/control", true, socket);
	name_taken("nn/control", false, socket);
	name_taken("nn/events", true, socket);
	name_taken("nn", false, "nn': it exists and is not a directory; remove it or choose another runtime_dir");
	name_taken("gpoold.pid", true, "gpoold.pid': it exists and is not a regular file; remove it");
}

static void test_a_directory_that_cannot_be_created(void **state)
{
	char path[128], text[64];

	(void)state;
	snprintf(path, sizeof(path), "%s/missing/run", tool.folder);
	REFUSED("missing/run': No such file or directory; create it so that it belongs to this user and is not "
		"writable by others, or choose another runtime_dir",
		"--dir", path, "--pool", POOL);
	write_text(tool_path(text, "text"), "");
	snprintf(path, sizeof(path), "%s/run", text);
	REFUSED("text/run': Not a directory", "--dir", path, "--pool", POOL);
	REFUSED("text': Not a directory", "--dir", text, "--pool", POOL);
	/* Root has write permission for /proc, whose file system creates no files. */
	REFUSED(geteuid() ? "'/proc/run': Permission denied" : "'/proc/run': No such file or directory", "--dir",
		"/proc/run", "--pool", POOL);
	REFUSED(geteuid() ? "cannot use directory '/proc': Permission denied"
			  : "cannot use directory '/proc': its file system does not support new files",
		"--dir", "/proc", "--pool", POOL);
	assert_int_equal(mkdir(directory, 0700), 0);
	assert_int_equal(chmod(directory, 0777), 0);
	REFUSED("run': its mode is 0777, so every user can write to it; run chmod o-w on it", "--dir", directory,
		"--pool", POOL);
	assert_int_equal(rmdir(directory), 0);
	if (geteuid() == 0)
		return; /* root may write to every directory */
	assert_int_equal(mkdir(directory, 0500), 0);
	REFUSED("run': Permission denied", "--dir", directory, "--pool", POOL);
	snprintf(path, sizeof(path), "%s/run", directory);
	REFUSED("run/run': Permission denied", "--dir", path, "--pool", POOL);
	assert_int_equal(rmdir(directory), 0);
}

/* If gpoold runs as root, the front runs as another user, which must have access to the folder of its sockets. */
static void test_a_folder_that_the_front_cannot_pass(void **state)
{
	const struct passwd *front = getpwuid(65534); /* the default of front_user */
	char text[256], path[128];

	(void)state;
	if (geteuid() != 0) {
		print_message("only root runs the front as another user\n");
		skip();
	}
	assert_non_null(front);
	snprintf(text, sizeof(text), "front_user '%s' has no search permission for '%s'", front->pw_name, tool.folder);
	assert_int_equal(chmod(tool.folder, 0700), 0);
	REFUSED(text, "--dir", directory, "--pool", POOL);
	REFUSED("run chmod o+x on it, or choose another runtime_dir", "--dir", directory, "--pool", POOL);
	assert_int_equal(access(directory, F_OK), -1); /* no leftovers */
	assert_int_equal(chmod(tool.folder, 0711), 0);
	assert_int_equal(mkdir(directory, 0700), 0);
	snprintf(text, sizeof(text), "front_user '%s' has no search permission for '%s'", front->pw_name, directory);
	REFUSED(text, "--dir", directory, "--pool", POOL);
	/* The folder of the sockets itself was created by another user. */
	assert_int_equal(chmod(directory, 0711), 0);
	snprintf(path, sizeof(path), "%s/nn", directory);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(text, sizeof(text), "front_user '%s' has no write permission for '%s'", front->pw_name, path);
	REFUSED(text, "--dir", directory, "--pool", POOL);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(directory), 0); /* no leftovers */
}

static void test_a_wait_for_the_address_ends_with_sigterm(void **state)
{
	const char *const arguments[] = {"--dir", directory, "--pool", POOL, NULL};
	char path[128], line[1024] = "";
	int listener, ends[2];
	size_t length = 0;
	pid_t child;

	(void)state;
	attach_path(path);
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	child = tool_start(arguments, ends[1]);
	close(ends[1]);
	while (!strstr(line, "waiting up to")) {
		ssize_t got = read(ends[0], line + length, sizeof(line) - 1 - length);

		assert_true(got > 0);
		length += (size_t)got;
	}
	assert_int_equal(kill(child, SIGTERM), 0);
	assert_int_equal(tool_wait(child), 0);
	while (read(ends[0], line, sizeof(line) - 1) > 0)
		assert_null(strstr(line, "cannot listen")); /* gpoold did not wait for the front to fail */
	close(ends[0]);
	close(listener);
	unlink(path);
	assert_int_equal(rmdir(directory), 0);
}

/* ---- a start that is stopped ---- */

/* strace sends SIGTERM when gpoold has created its directory, or the one of the front in it. */
static void test_a_signal_during_the_start_leaves_nothing(void **state)
{
	static const char *const moments[] = {
		"inject=?mkdir,mkdirat:signal=TERM:when=1", "inject=?mkdir,mkdirat:signal=TERM:when=2"};
	static char gpoold[sizeof(tool.program)];

	(void)state;
	strcpy(gpoold, tool.program);
	strcpy(tool.program, "/usr/bin/env");
	if (RUN("strace", "-qq", "-o", "/dev/null", "-e", "trace=getpid", "true")) {
		strcpy(tool.program, gpoold);
		print_message("strace is missing or may not trace here\n");
		skip();
	}
	for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
		/* Leaks cannot be detected under strace. */
		int status = RUN("ASAN_OPTIONS=detect_leaks=0", "strace", "-qq", "-o", "/dev/null", "-e",
			"trace=?mkdir,mkdirat", "-e", moments[i], gpoold, "--dir", directory, "--pool", POOL);

		if (status)
			fail_msg("exit status %d: %s", status, read_text(tool.error));
		assert_int_equal(access(directory, F_OK), -1);
	}
	strcpy(tool.program, gpoold);
}

static int setup(void **state)
{
	(void)state;
	if (tool_prepare("gpoold", "GPOOLD"))
		return -1;
	snprintf(directory, sizeof(directory), "%s/run", tool.folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return tool_clean_up();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_check_and_start_agree),
		cmocka_unit_test(test_a_machine_that_cannot_serve),
		cmocka_unit_test(test_what_is_checked),
		cmocka_unit_test(test_a_device_that_does_not_exist),
		cmocka_unit_test(test_more_spilled_memory_than_exists),
		cmocka_unit_test(test_too_few_descriptors),
		cmocka_unit_test(test_the_number_of_descriptors_is_sufficient),
		cmocka_unit_test(test_a_name_that_is_taken),
		cmocka_unit_test(test_a_directory_that_cannot_be_created),
		cmocka_unit_test(test_a_folder_that_the_front_cannot_pass),
		cmocka_unit_test(test_a_wait_for_the_address_ends_with_sigterm),
		cmocka_unit_test(test_a_signal_during_the_start_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
