/* harness.c - see harness.h. */
#include "tests/lib/harness.h"

#include "client/core/request.h"
#include "cuda/gpu.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "tests/lib/temporary.h"
#include "tools/lib/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	START_TRIES = 300, /* of 200 ms each; with a sanitizer on a busy machine, a start takes seconds */
	START_SLICE_MS = 200,
	STOP_MS = AWAIT_MS,
	ANSWER_MS = AWAIT_MS,
	ARGUMENTS_MAX = 64,
	POOL_TEXT_MAX = 512,
	CONFIG_MAX = 16384,
	STARTED_MAX = 64,
	LOG_LINES = 40,
};

/* ---- the back end ---- */

const char *harness_backend(void)
{
	const char *named = getenv("GPOOL_TEST_BACKEND");

	return named && *named ? named : "host";
}

/*
 * Copy `text`, and replace the last word of each `pattern`, "host", by harness_backend(), except after `warm`: a pool
 * of warm copies of adapters is in host memory (gpool_lora_options.warm).
 */
static void backend_replace(char *to, size_t size, const char *text, const char *pattern, const char *warm)
{
	const char *found, *begin = text;
	size_t used = 0;

	while ((found = strstr(text, pattern)) && used < size) {
		size_t before = strlen(warm);
		bool is_warm = (size_t)(found - begin) >= before && !strncmp(found - before, warm, before);

		found += strlen(pattern);
		used += (size_t)snprintf(to + used, size - used, "%.*s%s", (int)(found - text) - (int)strlen("host"),
			text, is_warm ? "host" : harness_backend());
		text = found;
	}
	if (used + strlen(text) >= size) {
		fprintf(stderr, "a pool's text or a configuration has %zu bytes or more\n", size);
		exit(1);
	}
	strcpy(to + used, text);
}

/* Write this back end to a configuration file. */
static void config_apply(const char *path)
{
	static char text[CONFIG_MAX], replaced[CONFIG_MAX];
	FILE *file = fopen(path, "re");

	if (!file)
		return; /* gpoold reports it */
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	backend_replace(replaced, sizeof(replaced), text, "backend = \"host", "name = \"warm\"; ");
	file = strcmp(text, replaced) ? fopen(path, "we") : NULL;
	if (file && (fputs(replaced, file) < 0 || fclose(file))) {
		fprintf(stderr, "cannot write '%s'\n", path);
		exit(1);
	}
}

void harness_config_write(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	if (!file || fputs(text, file) < 0 || fclose(file)) {
		fprintf(stderr, "cannot write '%s'\n", path);
		exit(1);
	}
	config_apply(path);
}

const char *harness_argument(const char *before, const char *argument)
{
	char *text;

	if (!strcmp(before, "--config"))
		config_apply(argument);
	if (strcmp(before, "--pool"))
		return argument;
	text = malloc(POOL_TEXT_MAX);
	if (!text)
		abort();
	backend_replace(text, POOL_TEXT_MAX, argument, "backend=host", "name=warm,");
	return text;
}

/* ---- start and stop ---- */

/* The started gpoolds of this process, by their folders. A program that ends early must not leave them behind. */
static struct started {
	pid_t owner; /* 0: unused */
	pid_t pid;
	char base[64];
} started[STARTED_MAX];

/* Print the last lines of a log, after which tests/run looks for the cause of a failure. */
static void log_print(const char *path)
{
	char lines[LOG_LINES][512];
	unsigned count = 0;
	FILE *log = fopen(path, "re");

	if (!log)
		return;
	while (fgets(lines[count % LOG_LINES], sizeof(lines[0]), log))
		count++;
	fclose(log);
	if (count > LOG_LINES)
		fprintf(stderr, "    gpoold: (%u earlier lines)\n", count - LOG_LINES);
	for (unsigned i = count > LOG_LINES ? count - LOG_LINES : 0; i < count; i++)
		fprintf(stderr, "    gpoold: %s", lines[i % LOG_LINES]);
}

static bool are_printed; /* the logs, at a case that failed */

void harness_logs_print(void)
{
	char path[sizeof(started[0].base) + 8];

	for (int i = 0; i < STARTED_MAX; i++) {
		if (started[i].owner != getpid())
			continue;
		snprintf(path, sizeof(path), "%s/log", started[i].base);
		log_print(path);
		are_printed = true;
	}
}

static void started_end(int status, void *unused)
{
	(void)unused;
	if (status && !are_printed)
		harness_logs_print();
	for (int i = 0; i < STARTED_MAX; i++) {
		if (started[i].owner != getpid()) /* of a parent */
			continue;
		if (started[i].pid > 0 && waitpid(started[i].pid, NULL, WNOHANG) == 0) {
			kill(-started[i].pid, SIGKILL);
			waitpid(started[i].pid, NULL, 0);
		}
		folder_remove(started[i].base);
	}
}

static struct started *started_find(const char *base)
{
	for (int i = 0; i < STARTED_MAX; i++)
		if (base ? started[i].owner && !strcmp(started[i].base, base) : !started[i].owner)
			return &started[i];
	return NULL;
}

static void started_add(const struct harness *harness)
{
	struct started *entry = started_find(NULL);

	if (!entry)
		return;
	entry->owner = getpid();
	entry->pid = 0;
	strcpy(entry->base, harness->base);
}

static void __attribute__((noreturn, format(printf, 2, 3))) give_up(struct harness *harness, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	log_print(harness->log);
	harness_kill(harness);
	exit(1);
}

static void program_path(char *path, size_t size)
{
	const char *named = getenv("GPOOLD");
	ssize_t length;

	if (named) {
		snprintf(path, size, "%s", named);
		return;
	}
	length = readlink("/proc/self/exe", path, size - 16);
	path[length > 0 ? length : 0] = '\0';
	/* .../tests/test_name -> .../gpoold */
	for (int up = 0; up < 2 && strrchr(path, '/'); up++)
		*strrchr(path, '/') = '\0';
	strcat(path, "/gpoold");
}

/* Undo the permissions of tests/driver that only the test itself needs. */
static void driver_restrict(void)
{
	const char *settings = getenv("GPU_DOUBLE");
	char strict[512];

	if (!settings)
		return;
	snprintf(strict, sizeof(strict), "%s cpu_access=0 fork=0", settings);
	setenv("GPU_DOUBLE", strict, 1);
}

static void __attribute__((noreturn))
run_program(const struct harness *harness, const char *const *arguments, pid_t parent)
{
	const char *all[ARGUMENTS_MAX] = {"gpoold", "--foreground", "--dir", harness->directory};
	char path[512];
	int count = 4, log;

	/*
	 * Tests read gpoold's descriptors, which requires core_dumps if the user is not root. A test may set the key
	 * itself.
	 */
	if (geteuid() != 0) {
		all[count++] = "--set";
		all[count++] = "core_dumps=yes";
	}
	/* gpoold ends when the test dies. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	setpgid(0, 0);
	for (; *arguments && count < ARGUMENTS_MAX - 1; arguments++, count++)
		all[count] = harness_argument(all[count - 1], *arguments);
	driver_restrict();
	log = open(harness->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	program_path(path, sizeof(path));
	execv(path, (char *const *)(uintptr_t)all);
	fprintf(stderr, "cannot run '%s': %s\n", path, strerror(errno));
	_exit(127);
}

void harness_start(struct harness *harness, const char *const *arguments)
{
	pid_t parent = getpid();
	static bool once;
	char path[128];
	int status, socket = -ENOENT;

	if (!once) {
		pthread_atfork(NULL, NULL, gpu_driver_forget);
		on_exit(started_end, NULL);
	}
	once = true;
	memset(harness, 0, sizeof(*harness));
	snprintf(harness->base, sizeof(harness->base), "%s/gpool-test-XXXXXX", temporary_folder());
	if (!mkdtemp(harness->base) || chmod(harness->base, 0755)) {
		fprintf(stderr, "cannot make '%s': %s\n", harness->base, strerror(errno));
		exit(1);
	}
	started_add(harness);
	snprintf(harness->directory, sizeof(harness->directory), "%s/run", harness->base);
	snprintf(harness->log, sizeof(harness->log), "%s/log", harness->base);
	harness->pid = fork();
	if (harness->pid == 0)
		run_program(harness, arguments, parent);
	if (harness->pid < 0)
		give_up(harness, "cannot fork: %s", strerror(errno));
	setpgid(harness->pid, harness->pid);
	if (started_find(harness->base))
		started_find(harness->base)->pid = harness->pid;

	snprintf(path, sizeof(path), "%s/attach", harness->directory);
	for (int tries = 0; socket < 0 && tries < START_TRIES; tries++) {
		if (waitpid(harness->pid, &status, WNOHANG) == harness->pid) {
			harness->pid = 0;
			give_up(harness, "gpoold ended with status 0x%x at its start", status);
		}
		socket = attach_connect(path, START_SLICE_MS);
	}
	if (socket < 0)
		give_up(harness, "gpoold does not start: %s", strerror(-socket));
	close(socket);
}

static int folder_leftovers(const char *path)
{
	DIR *folder = opendir(path);
	struct dirent *entry;
	int count = 0;

	if (!folder)
		return 0;
	while ((entry = readdir(folder))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		fprintf(stderr, "gpoold left '%s/%s' behind\n", path, entry->d_name);
		count++;
	}
	closedir(folder);
	return count;
}

static int wait_for_end(pid_t pid, int timeout_ms, int *status)
{
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	int ready = end.fd < 0 ? -1 : poll(&end, 1, timeout_ms);

	if (end.fd >= 0)
		close(end.fd);
	return ready == 1 && waitpid(pid, status, 0) == pid ? 0 : -1;
}

int harness_stop(struct harness *harness)
{
	int status = -1, result = 0;

	if (harness->pid <= 0)
		return -1; /* it has been killed, or was never started */
	gpool_close(harness->admin);
	harness->admin = NULL;
	kill(harness->pid, SIGTERM);
	if (wait_for_end(harness->pid, STOP_MS, &status)) {
		fprintf(stderr, "gpoold does not end after SIGTERM\n");
		result = -1;
	} else if (status) {
		fprintf(stderr, "gpoold ended with status 0x%x\n", status);
		harness->pid = 0;
		result = -1;
	} else {
		harness->pid = 0;
	}
	if (result == 0 && folder_leftovers(harness->directory))
		result = -1;
	if (result)
		log_print(harness->log);
	harness_kill(harness);
	return result;
}

void harness_kill(struct harness *harness)
{
	struct started *entry = started_find(harness->base);
	int status;

	if (harness->admin)
		gpool_close(harness->admin);
	harness->admin = NULL;
	if (harness->pid > 0) {
		kill(-harness->pid, SIGKILL);
		wait_for_end(harness->pid, STOP_MS, &status);
		harness->pid = 0;
	}
	folder_remove(harness->base);
	if (entry)
		entry->owner = 0;
}

/* ---- attach ---- */

struct gpool_options harness_options(const struct harness *harness)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;

	options.directory = harness->directory;
	options.timeout_ms = ANSWER_MS;
	return options;
}

static struct gpool *open_as(const struct harness *harness, uint32_t flags)
{
	struct gpool_options options = harness_options(harness);
	struct gpool *pool = NULL;
	int error;

	options.flags = flags;
	error = gpool_open(&options, &pool);
	if (error) {
		fprintf(stderr, "cannot attach: %s\n", gpool_strerror(error));
		exit(1);
	}
	return pool;
}

struct gpool *harness_open(const struct harness *harness)
{
	return open_as(harness, 0);
}

struct gpool *harness_open_calm(const struct harness *harness)
{
	struct gpool *pool = harness_open(harness);

	/* The pressure level is a word in shared memory without a notification, so poll it. */
	for (int tries = 0; gpool_pressure(pool) != GPOOL_PRESSURE_LOW; tries++) {
		if (tries == ANSWER_MS) {
			fprintf(stderr, "the pressure stays above low\n");
			exit(1);
		}
		poll(NULL, 0, 1);
	}
	return pool;
}

/* ---- requests ---- */

static uint8_t reply_bytes[MSG_BYTES_MAX];

/* Send a request. Return the length of the answer in reply_bytes; without an answer, end the program. */
static size_t ask(struct harness *harness, uint8_t *request, int length)
{
	char text[512];

	if (!harness->admin)
		harness->admin = open_as(harness, GPOOL_OPEN_ADMIN);
	length = pool_request(
		harness->admin, request, (size_t)length, reply_bytes, sizeof(reply_bytes), ANSWER_MS, text);
	if (length < 0)
		give_up(harness, "no answer: %s (%s)", gpool_strerror(length), text);
	return (size_t)length;
}

uint32_t harness_evict(struct harness *harness, uint32_t session, uint32_t pages)
{
	const struct msg_evict_request request = {.pages = pages, .session = session};
	struct msg_done_reply done;
	uint8_t buffer[MSG_LARGEST_evict_request];
	int length = msg_encode_evict_request(&request, 0, NULL, buffer, sizeof(buffer));

	if (msg_decode_done_reply(&done, reply_bytes, ask(harness, buffer, length)))
		give_up(harness, "malformed answer to an eviction request");
	return (uint32_t)done.value;
}

uint32_t harness_check(struct harness *harness)
{
	static struct msg_check_reply check;
	const struct msg_check_request request = {.pool = ""};
	uint8_t buffer[MSG_LARGEST_check_request];
	int length = msg_encode_check_request(&request, 0, NULL, buffer, sizeof(buffer));

	if (msg_decode_check_reply(&check, reply_bytes, ask(harness, buffer, length)))
		give_up(harness, "malformed answer to a check request");
	for (uint32_t i = 0; i < check.findings_count; i++)
		fprintf(stderr, "finding: session %u page %u: %s\n", check.findings[i].session, check.findings[i].page,
			check.findings[i].text);
	return check.found;
}

uint32_t harness_free_pages(struct harness *harness)
{
	static struct msg_status_reply status;
	const struct msg_status_request request = {0};
	uint8_t buffer[MSG_LARGEST_status_request];
	int length = msg_encode_status_request(&request, 0, NULL, buffer, sizeof(buffer));

	if (msg_decode_status_reply(&status, reply_bytes, ask(harness, buffer, length)) || !status.pools_count)
		give_up(harness, "malformed answer to a status request");
	return status.pools[0].free_pages;
}

int harness_detach(struct harness *harness, struct gpool **pool, uint32_t pages)
{
	uint32_t findings = harness_check(harness);

	gpool_close(*pool);
	*pool = NULL;
	return findings || harness_free_pages(harness) != pages ? -1 : 0;
}
