/*
 * life.h - start and stop a gpoold, send requests to it, and manage processes; shared by test_life, test_reload,
 * test_requests and others.
 *
 * start() runs a gpoold and opens `admin` for requests and events; stop() and clean() are the teardowns. A failure in
 * one of these functions fails the test. Each test program includes this header once and gets its own state.
 */
#ifndef GPOOL_TESTS_LIFE_H
#define GPOOL_TESTS_LIFE_H

#include "client/gpool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, ANSWER_MS = AWAIT_MS, STUCK_SECONDS = 1000, END_MS = AWAIT_MS };

#define POOL "name=p0,backend=host,size=64 pages,page_size=" TEST_PAGE_SIZE ",reserved=0"
#define QUIET "--set", "eviction.start=100", "--set", "eviction.stop=99"

static const char *const quiet[] = {"--pool", POOL, QUIET, NULL};

static struct harness harness;
static struct gpool *admin; /* for requests and events */

/* ---- requests ---- */

static uint8_t reply_bytes[MSG_BYTES_MAX];
static char error_text[512];

/* Send a request. Return 0, or the error of the reply, with its text in error_text. */
#define ASK_FROM(pool, question, request, answer, into) \
	({ \
		uint8_t message_[MSG_LARGEST_##question]; \
		int length_ = msg_encode_##question(request, 0, NULL, message_, sizeof(message_)); \
		length_ = pool_request( \
			pool, message_, (size_t)length_, reply_bytes, sizeof(reply_bytes), ANSWER_MS, error_text); \
		length_ < 0 ? length_ : msg_decode_##answer(into, reply_bytes, (size_t)length_); \
	})
#define ASK(question, request, answer, into) assert_int_equal(ASK_FROM(admin, question, request, answer, into), 0)

static inline const struct msg_status_reply *status(void)
{
	static struct msg_status_reply reply;
	const struct msg_status_request request = {0};

	ASK(status_request, &request, status_reply, &reply);
	return &reply;
}

static inline const struct msg_totals_reply *totals(void)
{
	static struct msg_totals_reply reply;
	const struct msg_totals_request request = {.pool = ""};

	ASK(totals_request, &request, totals_reply, &reply);
	return &reply;
}

static inline const struct msg_tenant_entry *tenant(const char *name)
{
	static struct msg_tenants_reply reply;
	const struct msg_tenants_request request = {.pool = ""};

	ASK(tenants_request, &request, tenants_reply, &reply);
	for (uint32_t i = 0; i < reply.tenants_count; i++)
		if (!strcmp(reply.tenants[i].name, name))
			return &reply.tenants[i];
	return NULL;
}

static inline int try_evict(struct gpool *pool, const char *name, uint32_t pages, uint32_t *taken)
{
	struct msg_evict_request request = {.pages = pages};
	struct msg_done_reply done;
	int error;

	strcpy(request.pool, name);
	error = ASK_FROM(pool, evict_request, &request, done_reply, &done);
	if (!error && taken)
		*taken = (uint32_t)done.value;
	return error;
}

/* ---- fixture ---- */

static inline struct gpool *open_as(uint32_t flags, const char *pool_name, const char *tenant_name)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = NULL;

	options.flags = flags;
	options.pool = pool_name;
	options.tenant = tenant_name;
	options.magazine = 1;
	assert_int_equal(gpool_open(&options, &pool), 0);
	return pool;
}

static inline struct gpool *open_worker(void)
{
	return open_as(0, NULL, NULL);
}

static inline void start(const char *const *arguments)
{
	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
	admin = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
}

static inline void admin_close(void)
{
	gpool_close(admin);
	admin = NULL;
}

static inline int stop(void **state)
{
	uint32_t findings = harness.pid > 0 ? harness_check(&harness) : 0;

	(void)state;
	admin_close();
	alarm(0);
	return harness_stop(&harness) || findings ? -1 : 0;
}

/* Clean up after a test that ends without a gpoold. */
static inline int clean(void **state)
{
	(void)state;
	if (admin)
		admin_close();
	harness_kill(&harness);
	alarm(0);
	return 0;
}

static inline struct gpool_block alloc(struct gpool *pool, uint32_t page_count)
{
	struct gpool_block block = {0};

	assert_int_equal(gpool_alloc(pool, page_count, NULL, &block), 0);
	return block;
}

static inline void alloc_unpinned(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		blocks[i] = alloc(pool, 1);
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
}

static inline uint32_t count_there(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	uint64_t address;
	uint32_t found = 0;

	for (uint32_t i = 0; i < count; i++)
		found += gpool_address(pool, &blocks[i], &address) == 0;
	return found;
}

/* ---- processes ---- */

static inline void program_path(char *path, size_t size)
{
	const char *named = getenv("GPOOLD");
	ssize_t length;

	if (named) {
		snprintf(path, size, "%s", named);
		return;
	}
	length = readlink("/proc/self/exe", path, size - 16);
	assert_true(length > 0);
	path[length] = '\0';
	for (int up = 0; up < 2; up++)
		*strrchr(path, '/') = '\0';
	strcat(path, "/gpoold");
}

/* Start a second gpoold in addition to the harness's, in its own process group and with its output in `log`. */
static inline pid_t gpoold_spawn(const char *log, const char *const *arguments)
{
	const char *all[32] = {"gpoold"};
	pid_t parent = getpid(), pid;
	char path[512];
	int count = 1, fd;

	program_path(path, sizeof(path));
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid) {
		setpgid(pid, pid);
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	setpgid(0, 0);
	for (; *arguments && count < 31; arguments++, count++)
		all[count] = harness_argument(all[count - 1], *arguments);
	fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	execv(path, (char *const *)(uintptr_t)all);
	_exit(127);
}

static inline int pidfd_of(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	assert_true(fd >= 0);
	return fd;
}

/* Wait for the end of a process, which need not be a child. */
static inline void await_end(int pidfd)
{
	struct pollfd look = {.fd = pidfd, .events = POLLIN};

	assert_int_equal(poll(&look, 1, END_MS), 1);
	close(pidfd);
}

static inline int status_of(pid_t pid)
{
	int exit_status = -1;

	await_end(pidfd_of(pid));
	assert_int_equal(waitpid(pid, &exit_status, 0), pid);
	return exit_status;
}

static inline void file_read(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "re");
	size_t length = file ? fread(text, 1, size - 1, file) : 0;

	text[length] = '\0';
	if (file)
		fclose(file);
}

/* Return the number of running processes of a group. Zombies do not count, because this process cannot reap them. */
static inline int group_count(pid_t group)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int count = 0;

	assert_non_null(proc);
	while ((entry = readdir(proc))) {
		char path[300], text[512], *end, kind;
		int parent, of;

		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		file_read(path, text, sizeof(text));
		end = strrchr(text, ')');
		if (end && sscanf(end + 1, " %c %d %d", &kind, &parent, &of) == 3 && of == group && kind != 'Z' &&
			kind != 'X')
			count++;
	}
	closedir(proc);
	return count;
}

/* Return the pid of the gpoold process that has this name. */
static inline pid_t process_of(const char *name)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	assert_non_null(proc);
	while ((entry = readdir(proc)) && !found) {
		char path[300], text[512], *end, kind;
		int parent, group;

		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		file_read(path, text, sizeof(text));
		end = strrchr(text, ')');
		if (end && sscanf(end + 1, " %c %d %d", &kind, &parent, &group) == 3 && group == harness.pid &&
			kind != 'Z' && kind != 'X' && !strncmp(strchr(text, '(') + 1, name, strlen(name)))
			found = (pid_t)atoi(entry->d_name);
	}
	closedir(proc);
	return found;
}

#endif
