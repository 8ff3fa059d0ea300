/* daemon.c - a gpoold for gpool-bench, in the group's folder. */
#include "tools/bench/bench.h"

#include "proto/codec.h"
#include "shm/pool_segment.h"
#include "tools/lib/dependent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	SETTINGS_MAX = 8,
	START_PATIENCE_MS = 30000,
	REQUEST_PATIENCE_MS = 30000,
	PROCESSES = 4, /* of gpoold with one pool: keeper, agent, front, mover */
};

int program_beside(const char *name, char path[PATH_MAX])
{
	ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - strlen(name) - 1);
	char *slash;

	if (length < 0)
		return -errno;
	path[length] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
	return access(path, X_OK) == 0 ? 0 : -errno;
}

static int gpoold_find(char path[PATH_MAX])
{
	const char *given = getenv("GPOOLD");

	if (!given || !*given)
		return program_beside("gpoold", path);
	snprintf(path, PATH_MAX, "%s", given);
	return 0;
}

void socket_folder(const struct bench *bench, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/run", bench->folder);
}

/* The device of the pool. */
struct device {
	uint64_t bytes, page_bytes;
	const char *more; /* additional keys of the pool, ",key=value" */
};

/* In the child: become gpoold, with its log in the folder. It ends when the parent ends. */
static _Noreturn void program_become(
	const struct bench *bench, const char *program, const struct device *device, const char *const *settings)
{
	char folder[PATH_MAX], log[PATH_MAX + 16], pool[128 + PATH_MAX + 64];
	const char *arguments[8 + 2 * SETTINGS_MAX];
	int count = 0, fd;

	socket_folder(bench, folder);
	snprintf(log, sizeof(log), "%s/gpoold.log", bench->folder);
	snprintf(pool, sizeof(pool), "name=bench,backend=%s,size=%" PRIu64 "KiB,page_size=%" PRIu64 "KB,reserved=0%s",
		bench->backend, device->bytes / 1024, device->page_bytes / 1024, device->more);
	arguments[count++] = program;
	arguments[count++] = "--foreground";
	arguments[count++] = "--dir";
	arguments[count++] = folder;
	arguments[count++] = "--pool";
	arguments[count++] = pool;
	for (int i = 0; settings && settings[i] && i < SETTINGS_MAX; i++) {
		arguments[count++] = "--set";
		arguments[count++] = settings[i];
	}
	arguments[count] = NULL;
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
	}
	execv(program, (char *const *)arguments);
	_exit(127);
}

static void log_show(const struct bench *bench)
{
	char path[PATH_MAX + 16], line[512];
	FILE *log;

	snprintf(path, sizeof(path), "%s/gpoold.log", bench->folder);
	log = fopen(path, "re");
	while (log && fgets(line, sizeof(line), log))
		fprintf(stderr, "gpoold: %s", line);
	if (log)
		fclose(log);
}

int daemon_open(const struct bench *bench, uint32_t flags, struct gpool **pool)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	char folder[PATH_MAX];

	socket_folder(bench, folder);
	options.directory = folder;
	options.flags = flags;
	options.name = "gpool-bench";
	options.timeout_ms = START_PATIENCE_MS;
	return gpool_open(&options, pool);
}

/* Open the control session with short timeouts, so that the end of gpoold is detected quickly. */
static int daemon_await(struct bench *bench)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	uint64_t deadline = monotonic_ns() + START_PATIENCE_MS * UINT64_C(1000000);
	char folder[PATH_MAX];
	int error;

	socket_folder(bench, folder);
	options.directory = folder;
	options.flags = GPOOL_OPEN_ADMIN;
	options.name = "gpool-bench";
	options.timeout_ms = 250;
	do {
		error = gpool_open(&options, &bench->control);
		if (!error)
			return 0;
		if (waitpid(bench->agent, NULL, WNOHANG) == bench->agent) {
			bench->agent = 0;
			return -EPIPE;
		}
	} while ((error == -ENOENT || error == -ETIMEDOUT) && monotonic_ns() < deadline);
	return error;
}

static int device_start(struct bench *bench, const struct device *device, const char *const *settings)
{
	char program[PATH_MAX];
	int error;

	error = gpoold_find(program);
	if (error)
		return bench_complain(
			bench, error, "cannot find gpoold in the directory of this program; set $GPOOLD to its path");
	bench->agent = dependent_fork(SIGTERM);
	if (bench->agent == 0)
		program_become(bench, program, device, settings);
	if (bench->agent < 0) {
		error = -errno;
		bench->agent = 0;
		return bench_complain(bench, error, "cannot start '%s'", program);
	}
	error = daemon_await(bench);
	if (!error)
		return 0;
	bench_complain(bench, error, "'%s' has not started to serve", program);
	log_show(bench);
	daemon_stop(bench);
	return error;
}

int daemon_start_with(struct bench *bench, uint32_t pages, const char *more, const char *const *settings)
{
	struct device device = {.bytes = (uint64_t)pages << 19, .page_bytes = 1 << 19, .more = more};

	return device_start(bench, &device, settings);
}

int daemon_start_huge(struct bench *bench, uint32_t pages, const char *const *settings)
{
	struct device device = {.bytes = (uint64_t)pages << 21, .page_bytes = 2 << 20, .more = ",huge_pages=yes"};

	return device_start(bench, &device, settings);
}

int daemon_start(struct bench *bench, uint32_t pages, const char *const *settings)
{
	return daemon_start_with(bench, pages, "", settings);
}

int daemon_start_device(struct bench *bench, uint64_t bytes, uint64_t page_bytes, const char *const *settings)
{
	struct device device = {.bytes = bytes, .page_bytes = page_bytes, .more = ""};
	char text[32];

	/* The sessions of this process open the same device and need the same setting. */
	snprintf(text, sizeof(text), "%" PRIu64, bytes);
	setenv("GPOOL_HOST_MEMORY", text, 1);
	return device_start(bench, &device, settings);
}

void daemon_stop(struct bench *bench)
{
	gpool_close(bench->control);
	bench->control = NULL;
	if (!bench->agent)
		return;
	kill(bench->agent, SIGTERM);
	waitpid(bench->agent, NULL, 0);
	bench->agent = 0;
}

int daemon_time(const struct bench *bench, uint64_t *ns)
{
	int error, pid, processes = 1;
	char path[64];
	FILE *children;

	*ns = 0;
	error = process_time(bench->agent, ns);
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)bench->agent, (int)bench->agent);
	children = fopen(path, "re");
	while (children && !error && fscanf(children, "%d", &pid) == 1) {
		error = process_time(pid, ns);
		processes++;
	}
	if (children)
		fclose(children);
	return error ? error : processes == PROCESSES ? 0 : -ESRCH;
}

int64_t daemon_evict(const struct bench *bench, uint32_t pages)
{
	static struct msg_evict_request request;
	static struct msg_done_reply done;
	static uint8_t reply[MSG_BYTES_MAX];
	uint8_t message[MSG_LARGEST_evict_request];
	char text[512] = "";
	int length;

	request.pages = pages;
	length = msg_encode_evict_request(&request, 0, NULL, message, sizeof(message));
	if (length < 0)
		return length;
	length = pool_request(bench->control, message, (size_t)length, reply, sizeof(reply), REQUEST_PATIENCE_MS, text);
	if (length < 0)
		return bench_complain(bench, length, "cannot evict: %s", text);
	if (msg_decode_done_reply(&done, reply, (size_t)length))
		return bench_complain(bench, -EBADMSG, "cannot decode the reply to evict_request");
	return (int64_t)done.value;
}

int daemon_wait_free(const struct bench *bench, uint64_t *when)
{
	const struct pool_header *header = pool_view(bench->control)->header;
	uint64_t deadline = monotonic_ns() + UINT64_C(30000000000), now;

	/* Observers are not notified of this change, so poll, and yield the core between polls. */
	while (atomic_load(&header->state_pages[PAGE_FREE]) != header->page_count) {
		if (monotonic_ns() > deadline)
			return bench_complain(bench, -ETIMEDOUT, "%u of %u pages are free after 30 s",
				atomic_load(&header->state_pages[PAGE_FREE]), header->page_count);
		sched_yield();
	}
	now = monotonic_ns();
	if (when)
		*when = now;
	return 0;
}
