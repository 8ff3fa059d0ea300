/*
 * test_life.c - starts and ends: of gpoold and its processes, of sessions, of a configuration, of a request.
 *
 * Goal: two gpoolds do not share a directory; an end in order leaves nothing and one by force leaves nothing that hurts; pages
 * come back when, and only when, nobody can touch them any more; a wrong configuration starts nothing and a reload changes what
 * it says; a request takes effect once however often it arrives, also when the front dies over it; who may not, cannot. Method:
 * real processes. What belongs to a gpoold is found by its process group, its memory by inode, in /proc. Requests that must be
 * the same byte for byte are sent over the control socket by a few lines that speak nanomsg's framing.
 */
#include "client/gpool.h"
#include "client/pool.h"
#include "client/request.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "tests/lib/harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, ANSWER_MS = 20000, STUCK_SECONDS = 90, TRIES = 4000, TRY_MS = 5, END_MS = 20000 };

#define POOL "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0"
#define QUIET "--set", "eviction.start=100", "--set", "eviction.stop=99"

/* Until it holds, for as long as a slow machine may need. */
#define AWAIT(condition) \
	for (int tries_ = 0; !(condition); tries_++) { \
		assert_true(tries_ < TRIES); \
		poll(NULL, 0, TRY_MS); \
	}

static const char *const quiet[] = {"--pool", POOL, QUIET, NULL};

static struct harness harness;
static struct gpool *admin; /* to ask and to listen */

/* ---- questions ---- */

static uint8_t reply_bytes[MSG_BYTES_MAX];
static char error_text[512];

/* 0, or the error that came back, with its text in error_text. */
#define ASK_FROM(pool, question, request, answer, into) \
	({ \
		uint8_t message_[MSG_LARGEST_##question]; \
		int length_ = msg_encode_##question(request, 0, NULL, message_, sizeof(message_)); \
		length_ = \
			pool_request(pool, message_, (size_t)length_, reply_bytes, sizeof(reply_bytes), ANSWER_MS, error_text); \
		length_ < 0 ? length_ : msg_decode_##answer(into, reply_bytes, (size_t)length_); \
	})
#define ASK(question, request, answer, into) assert_int_equal(ASK_FROM(admin, question, request, answer, into), 0)

static const struct msg_status_reply *status(void)
{
	static struct msg_status_reply reply;
	const struct msg_status_request request = {0};

	ASK(status_request, &request, status_reply, &reply);
	return &reply;
}

static const struct msg_client_entry *client(uint32_t session)
{
	static struct msg_clients_reply reply;
	const struct msg_clients_request request = {.pool = ""};

	ASK(clients_request, &request, clients_reply, &reply);
	for (uint32_t i = 0; i < reply.clients_count; i++)
		if (reply.clients[i].session == session)
			return &reply.clients[i];
	return NULL;
}

static const struct msg_tenant_entry *tenant(const char *name)
{
	static struct msg_tenants_reply reply;
	const struct msg_tenants_request request = {.pool = ""};

	ASK(tenants_request, &request, tenants_reply, &reply);
	for (uint32_t i = 0; i < reply.tenants_count; i++)
		if (!strcmp(reply.tenants[i].name, name))
			return &reply.tenants[i];
	return NULL;
}

static int try_evict(struct gpool *pool, const char *name, uint32_t pages, uint32_t *taken)
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

static struct gpool *open_as(uint32_t flags, const char *pool_name, const char *tenant_name)
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

static struct gpool *open_worker(void)
{
	return open_as(0, NULL, NULL);
}

static void start(const char *const *arguments)
{
	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
	admin = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
}

static void admin_close(void)
{
	gpool_close(admin);
	admin = NULL;
}

static int stop(void **state)
{
	uint32_t findings = harness.pid > 0 ? harness_check(&harness) : 0;

	(void)state;
	admin_close();
	alarm(0);
	return harness_stop(&harness) || findings ? -1 : 0;
}

/* For tests after which no gpoold is there. */
static int clean(void **state)
{
	(void)state;
	if (admin)
		admin_close();
	harness_kill(&harness);
	alarm(0);
	return 0;
}

static struct gpool_block alloc(struct gpool *pool, uint32_t page_count)
{
	struct gpool_block block = {0};

	assert_int_equal(gpool_alloc(pool, page_count, NULL, &block), 0);
	return block;
}

static void alloc_unpinned(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		blocks[i] = alloc(pool, 1);
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
}

static uint32_t count_there(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	uint64_t address;
	uint32_t found = 0;

	for (uint32_t i = 0; i < count; i++)
		found += gpool_address(pool, &blocks[i], &address) == 0;
	return found;
}

/* ---- processes ---- */

static void program_path(char *path, size_t size)
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

/* A second gpoold, beside the harness's: in a process group of its own, what it says in `log`. */
static pid_t gpoold_spawn(const char *log, const char *const *arguments)
{
	const char *all[32] = {"gpoold"};
	pid_t parent = getpid(), pid;
	char path[512];
	int count = 1, fd;

	program_path(path, sizeof(path));
	while (*arguments && count < 31)
		all[count++] = *arguments++;
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
	fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	execv(path, (char *const *)(uintptr_t)all);
	_exit(127);
}

static int pidfd_of(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	assert_true(fd >= 0);
	return fd;
}

/* Of any process, also of one that is not our child. */
static void await_end(int pidfd)
{
	struct pollfd look = {.fd = pidfd, .events = POLLIN};

	assert_int_equal(poll(&look, 1, END_MS), 1);
	close(pidfd);
}

static int status_of(pid_t pid)
{
	int exit_status = -1;

	await_end(pidfd_of(pid));
	assert_int_equal(waitpid(pid, &exit_status, 0), pid);
	return exit_status;
}

static void file_read(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "re");
	size_t length = file ? fread(text, 1, size - 1, file) : 0;

	text[length] = '\0';
	if (file)
		fclose(file);
}

/* Processes of a group that still run; zombies are not ours to reap. */
static int group_count(pid_t group)
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
		if (end && sscanf(end + 1, " %c %d %d", &kind, &parent, &of) == 3 && of == group && kind != 'Z' && kind != 'X')
			count++;
	}
	closedir(proc);
	return count;
}

enum { MEMFDS_MAX = 32 };
struct memfds {
	ino_t inodes[MEMFDS_MAX];
	uint32_t count;
};

static bool memfds_have(const struct memfds *memfds, ino_t inode)
{
	for (uint32_t i = 0; i < memfds->count; i++)
		if (memfds->inodes[i] == inode)
			return true;
	return false;
}

/* Adds those that a process has open; `only` not NULL: counts those of them that are open there. */
static uint32_t memfds_of(const char *pid, struct memfds *memfds, const struct memfds *only)
{
	char folder[300], path[600], target[64];
	struct dirent *entry;
	uint32_t found = 0;
	DIR *fds;

	snprintf(folder, sizeof(folder), "/proc/%s/fd", pid);
	fds = opendir(folder);
	while (fds && (entry = readdir(fds))) {
		struct stat stat_of;
		ssize_t length;

		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		if (length < 7 || memcmp(target, "/memfd:", 7) != 0 || stat(path, &stat_of) < 0)
			continue;
		if (only)
			found += memfds_have(only, stat_of.st_ino);
		else if (!memfds_have(memfds, stat_of.st_ino) && memfds->count < MEMFDS_MAX)
			memfds->inodes[memfds->count++] = stat_of.st_ino;
	}
	if (fds)
		closedir(fds);
	return found;
}

/* Anywhere on this machine. */
static uint32_t memfds_open(const struct memfds *memfds)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	uint32_t found = 0;

	assert_non_null(proc);
	while ((entry = readdir(proc)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
			found += memfds_of(entry->d_name, NULL, memfds);
	closedir(proc);
	return found;
}

/* ---- a worker in a process of its own ---- */

enum worker_kind {
	WORKER_PLAIN,
	WORKER_WITH_CHILD, /* which keeps all that it inherits */
	WORKER_CLOSED,     /* closes its connection and lives on */
};

struct worker {
	pid_t pid, child;
	uint32_t session;
	int channel; /* closed: whoever reads from its other end leaves */
};

static _Noreturn void worker_main(int channel, enum worker_kind kind, uint32_t page_count, uint32_t flags)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_alloc_options how = GPOOL_ALLOC_OPTIONS_INIT;
	struct worker self = {.child = 0};
	struct gpool_block block;
	struct gpool *pool;
	char byte;

	how.flags = flags;
	options.magazine = 1;
	if (gpool_open(&options, &pool) || gpool_alloc(pool, page_count, &how, &block))
		_exit(1);
	self.session = gpool_session(pool);
	if (kind == WORKER_WITH_CHILD) {
		self.child = fork();
		if (self.child == 0) {
			while (read(channel, &byte, 1) > 0)
				;
			_exit(0);
		}
	}
	if (kind == WORKER_CLOSED)
		close(pool->socket);
	if (write(channel, &self, sizeof(self)) != sizeof(self))
		_exit(1);
	while (read(channel, &byte, 1) > 0)
		;
	_exit(0);
}

static struct worker worker_start(enum worker_kind kind, uint32_t page_count, uint32_t flags)
{
	struct worker worker = {0};
	int ends[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(ends[0]);
		worker_main(ends[1], kind, page_count, flags);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &worker, sizeof(worker)), sizeof(worker));
	worker.pid = pid;
	worker.channel = ends[0];
	return worker;
}

static void worker_kill(struct worker *worker)
{
	assert_true(worker->pid > 1);
	assert_int_equal(kill(worker->pid, SIGKILL), 0);
	assert_int_equal(waitpid(worker->pid, NULL, 0), worker->pid);
}

/* ---- the control socket, by hand ---- */

static int control_open_raw(void)
{
	static const uint8_t ours[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0}; /* REQ */
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
	uint8_t theirs[8];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/nn/control", harness.directory);
	AWAIT(connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	assert_int_equal(write(fd, ours, sizeof(ours)), sizeof(ours));
	assert_int_equal(recv(fd, theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
	assert_memory_equal(theirs, ours, 4);
	return fd;
}

static void control_send_raw(int fd, uint32_t id, const uint8_t *message, size_t length)
{
	uint8_t frame[1024] = {1};
	uint64_t size = htobe64(length + 4);
	uint32_t header = htonl(id | 0x80000000);

	assert_true(length <= sizeof(frame) - 13);
	memcpy(frame + 1, &size, 8);
	memcpy(frame + 9, &header, 4);
	memcpy(frame + 13, message, length);
	assert_int_equal(write(fd, frame, length + 13), length + 13);
}

/* The next answer: its length; whose it is in *id. */
static size_t control_receive_raw(int fd, uint32_t *id, uint8_t *reply, size_t capacity)
{
	uint8_t head[13];
	uint64_t size;
	uint32_t header;

	assert_int_equal(recv(fd, head, sizeof(head), MSG_WAITALL), sizeof(head));
	memcpy(&size, head + 1, 8);
	memcpy(&header, head + 9, 4);
	size = be64toh(size) - 4;
	assert_true(size <= capacity);
	assert_int_equal(recv(fd, reply, size, MSG_WAITALL), size);
	*id = ntohl(header) & 0x7fffffff;
	return (size_t)size;
}

static size_t control_call_raw(int fd, uint32_t id, const uint8_t *message, size_t length, uint8_t *reply)
{
	uint32_t answered;

	control_send_raw(fd, id, message, length);
	length = control_receive_raw(fd, &answered, reply, MSG_BYTES_MAX);
	assert_int_equal(answered, id);
	return length;
}

/* ---- gpoold starts and ends ---- */

static void test_a_second_one_is_refused(void **state)
{
	const char *const second[] = {"--foreground", "--dir", harness.directory, "--pool", POOL, NULL};
	char log[128], text[2048], pid_file[128], before[32], after[32];
	struct gpool_block block;
	uint32_t front;
	struct gpool *pool;
	pid_t pid;

	(void)state;
	start(quiet);
	pool = open_worker();
	block = alloc(pool, 4);
	front = status()->front_pid;
	snprintf(pid_file, sizeof(pid_file), "%s/gpoold.pid", harness.directory);
	file_read(pid_file, before, sizeof(before));
	assert_int_equal(atoi(before), harness.pid);

	snprintf(log, sizeof(log), "%s/second", harness.base);
	pid = gpoold_spawn(log, second);
	assert_int_equal(status_of(pid), 1 << 8);
	assert_int_equal(group_count(pid), 0);
	file_read(log, text, sizeof(text));
	assert_non_null(strstr(text, "another gpoold"));
	assert_non_null(strstr(text, harness.directory));

	file_read(pid_file, after, sizeof(after));
	assert_string_equal(after, before);
	assert_int_equal(status()->front_pid, front);
	assert_int_equal(status()->front_restarts, 0);
	gpool_close(open_worker());
	assert_int_equal(gpool_free(pool, &block), 0);
	block = alloc(pool, PAGES);
	gpool_close(pool);
}

/* With a worker attached, whose connection ends, and one that came and went. */
static void ends_clean_by(int signal_number)
{
	struct memfds memfds = {.count = 0};
	struct stat stat_of;
	struct worker worker;
	char name[16];
	pid_t keeper;

	start(quiet);
	keeper = harness.pid;
	worker = worker_start(WORKER_PLAIN, 8, 0);
	gpool_close(open_worker());
	assert_int_equal(group_count(keeper), 3);
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "%d",
			i == 0   ? (int)keeper
			: i == 1 ? (int)status()->agent_pid
				 : (int)status()->front_pid);
		memfds_of(name, &memfds, NULL);
	}
	/* The pool's segment, its memory, and a segment for each session. */
	assert_true(memfds.count >= 4);
	assert_true(memfds_open(&memfds) >= 4);
	worker_kill(&worker);
	close(worker.channel);
	admin_close();

	assert_int_equal(kill(keeper, signal_number), 0);
	assert_int_equal(status_of(keeper), 0);
	harness.pid = 0;
	assert_int_equal(group_count(keeper), 0);
	assert_int_equal(memfds_open(&memfds), 0);
	assert_int_equal(stat(harness.directory, &stat_of), -1);
	assert_int_equal(errno, ENOENT);
}

static void test_sigterm_leaves_nothing(void **state)
{
	(void)state;
	ends_clean_by(SIGTERM);
}

static void test_sigint_leaves_nothing(void **state)
{
	(void)state;
	ends_clean_by(SIGINT);
}

static void test_a_worker_that_is_attached_does_not_hold_up_the_end(void **state)
{
	struct worker worker;
	struct stat stat_of;

	(void)state;
	start(quiet);
	worker = worker_start(WORKER_PLAIN, 8, 0);
	admin_close();
	assert_int_equal(kill(harness.pid, SIGTERM), 0);
	assert_int_equal(status_of(harness.pid), 0);
	assert_int_equal(group_count(harness.pid), 0);
	harness.pid = 0;
	assert_int_equal(stat(harness.directory, &stat_of), -1);
	worker_kill(&worker);
	close(worker.channel);
}

static void incarnation_of(uint64_t *incarnation)
{
	const struct msg_version_request request = {0};
	struct msg_version_reply reply;

	ASK(version_request, &request, version_reply, &reply);
	assert_int_equal(reply.incarnation, status()->incarnation);
	*incarnation = reply.incarnation;
}

static void test_a_killed_keeper_takes_all_along_and_another_starts(void **state)
{
	const char *const again[] = {"--foreground", "--dir", harness.directory, "--pool", POOL, QUIET, NULL};
	uint64_t first, second;
	struct memfds memfds = {.count = 0};
	char path[128], name[16];
	int agent, front, socket;
	struct gpool *pool;
	pid_t keeper;

	(void)state;
	start(quiet);
	keeper = harness.pid;
	incarnation_of(&first);
	pool = open_worker();
	alloc(pool, 8);
	gpool_close(pool);
	snprintf(name, sizeof(name), "%d", (int)keeper);
	memfds_of(name, &memfds, NULL);
	agent = pidfd_of((pid_t)status()->agent_pid);
	front = pidfd_of((pid_t)status()->front_pid);
	admin_close();

	assert_int_equal(kill(keeper, SIGKILL), 0);
	assert_int_equal(waitpid(keeper, NULL, 0), keeper);
	harness.pid = 0;
	await_end(agent);
	await_end(front);
	AWAIT(group_count(keeper) == 0);
	AWAIT(memfds_open(&memfds) == 0);
	/* Nobody tidied up. */
	snprintf(path, sizeof(path), "%s/attach", harness.directory);
	assert_int_equal(access(path, F_OK), 0);

	harness.pid = gpoold_spawn(harness.log, again);
	socket = attach_connect(path, END_MS);
	assert_true(socket >= 0);
	close(socket);
	admin = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
	incarnation_of(&second);
	assert_true(second > first);
	pool = open_worker();
	alloc(pool, PAGES);
	gpool_close(pool);
}

/* ---- sessions end ---- */

static void test_a_death_counts_although_a_child_holds_the_socket(void **state)
{
	struct worker worker;
	int child;

	(void)state;
	start(quiet);
	worker = worker_start(WORKER_WITH_CHILD, 24, 0);
	assert_true(worker.child > 1);
	child = pidfd_of(worker.child);
	assert_true(client(worker.session)->leased_pages >= 24);
	worker_kill(&worker);
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_null(client(worker.session));
	assert_int_equal(status()->pools[0].deaths, 1);
	/* It still lives, and nothing waits for it. */
	assert_int_equal(kill(worker.child, 0), 0);
	close(worker.channel);
	await_end(child);
}

static uint32_t pages_in_state(unsigned page_state)
{
	static struct msg_pages_reply reply;
	const struct msg_pages_request request = {.count = PAGES};
	uint32_t count = 0;

	ASK(pages_request, &request, pages_reply, &reply);
	for (uint32_t i = 0; i < reply.pages_count; i++)
		count += reply.pages[i].state == page_state;
	return count;
}

static void test_a_closed_connection_quarantines(void **state)
{
	const struct msg_client_entry *entry;
	struct gpool_block block;
	struct worker worker;
	struct gpool *pool;
	uint32_t leased;

	(void)state;
	start(quiet);
	worker = worker_start(WORKER_CLOSED, 24, 0);
	AWAIT((entry = client(worker.session)) && entry->state == 1);
	leased = entry->leased_pages;
	assert_true(leased >= 24);
	AWAIT(status()->pools[0].quarantined_pages == leased);
	assert_int_equal(pages_in_state(PAGE_QUARANTINED), leased);
	assert_int_equal(status()->pools[0].deaths, 0);
	/* Nobody gets them: not who asks, not by eviction. */
	pool = open_worker();
	assert_int_equal(gpool_alloc(pool, PAGES - leased + 1, NULL, &block), -ENOSPC);
	block = alloc(pool, PAGES - leased);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(harness_evict(&harness, worker.session, PAGES), 0);
	assert_int_equal(pages_in_state(PAGE_QUARANTINED), leased);
	worker_kill(&worker);
	AWAIT(status()->pools[0].quarantined_pages == 0);
	alloc(pool, PAGES);
	assert_null(client(worker.session));
	close(worker.channel);
	gpool_close(pool);
}

static void test_a_detach_frees_at_once(void **state)
{
	struct gpool *pool;

	(void)state;
	start(quiet);
	for (int i = 0; i < 20; i++) {
		pool = open_worker();
		alloc(pool, PAGES);
		assert_int_equal(harness_free_pages(&harness), 0);
		gpool_close(pool);
		assert_int_equal(harness_free_pages(&harness), PAGES);
	}
	assert_int_equal(status()->pools[0].deaths, 0);
}

static const char *const with_reserved[] = {
	"--pool", "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=8 pages", QUIET, NULL};

static void test_reserved_pages_are_reserved_again(void **state)
{
	struct gpool_alloc_options critical = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, more;
	struct worker worker;
	struct gpool *pool;

	(void)state;
	start(with_reserved);
	critical.flags = GPOOL_ALLOC_CRITICAL;
	/* By a death; the block takes pages of both kinds. */
	worker = worker_start(WORKER_PLAIN, PAGES, GPOOL_ALLOC_CRITICAL);
	assert_int_equal(status()->pools[0].reserved_pages, 0);
	worker_kill(&worker);
	close(worker.channel);
	AWAIT(!client(worker.session));
	assert_int_equal(status()->pools[0].reserved_pages, 8);
	assert_int_equal(status()->pools[0].free_pages, PAGES - 8);

	/* By eviction. */
	pool = open_worker();
	assert_int_equal(gpool_alloc(pool, PAGES, &critical, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(pool), 1), PAGES);
	assert_int_equal(status()->pools[0].reserved_pages, 8);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &more), -ENOSPC);

	/* By a free and a detach. */
	assert_int_equal(gpool_alloc(pool, PAGES, &critical, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
	assert_int_equal(status()->pools[0].reserved_pages, 8);
	assert_int_equal(status()->pools[0].free_pages, PAGES - 8);
}

static void test_pools_are_independent(void **state)
{
	static const char *const arguments[] = {
		"--pool", POOL, "--pool", "name=large,backend=host,size=64MiB,page_size=2MB,reserved=0", QUIET, NULL};
	struct gpool *small, *large;
	struct gpool_block all, blocks[8], more;
	uint32_t taken;

	(void)state;
	start(arguments);
	small = open_as(0, "p0", NULL);
	large = open_as(0, "large", NULL);
	assert_int_equal(gpool_page_bytes(small), 512 << 10);
	assert_int_equal(gpool_page_bytes(large), 2 << 20);
	assert_int_equal(gpool_page_count(small), PAGES);
	assert_int_equal(gpool_page_count(large), 32);
	all = alloc(small, PAGES);
	alloc_unpinned(large, blocks, 8);
	/* One is full and presses, the other does not notice. */
	assert_int_equal(gpool_alloc(small, 1, NULL, &more), -ENOSPC);
	AWAIT(gpool_pressure(small) == GPOOL_CRITICAL);
	assert_int_equal(gpool_pressure(large), GPOOL_LOW);
	assert_int_equal(count_there(large, blocks, 8), 8);
	assert_int_equal(try_evict(admin, "p0", PAGES, &taken), 0);
	assert_int_equal(taken, 0);
	assert_int_equal(try_evict(admin, "large", 3, &taken), 0);
	assert_int_equal(taken, 3);
	assert_int_equal(count_there(large, blocks, 8), 5);
	more = alloc(large, 24);
	gpool_close(large);
	assert_int_equal(status()->pools[0].free_pages, 0);
	assert_int_equal(status()->pools[1].free_pages, 32);
	assert_int_equal(gpool_free(small, &all), 0);
	gpool_close(small);
}

/* ---- configuration ---- */

static char config_path[64];

static void config_write(const char *text)
{
	FILE *file = fopen(config_path, "we");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

#define POOLS_OF(size) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"" size \
	"\"; page_size = \"512KB\"; reserved = \"0 pages\"; } );\n"

static void test_a_wrong_configuration_starts_nothing(void **state)
{
	static const struct {
		const char *text;
		int line;
	} wrongs[] = {
		{POOLS_OF("32MiB") "eviction = { start = 90; stop = 80; begin = 3; };\n", 2},
		{POOLS_OF("32MiB") "\nlease = {\n	idle = \"2 parsecs\";\n};\n", 4},
		{POOLS_OF("32MiB") "eviction = {\n	start = 101;\n};\n", 3},
		{POOLS_OF("32MiB") "access = { admins = {\n	users = [ \"nobody-of-that-name\" ]; }; };\n", 3},
	};
	char base[] = "/tmp/gpool-test-XXXXXX", directory[64], log[64], place[96], text[2048];
	struct stat stat_of;

	(void)state;
	alarm(STUCK_SECONDS);
	assert_non_null(mkdtemp(base));
	snprintf(directory, sizeof(directory), "%s/run", base);
	snprintf(log, sizeof(log), "%s/log", base);
	snprintf(config_path, sizeof(config_path), "%s/conf", base);
	for (size_t i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
		const char *const arguments[] = {"--config", config_path, "--dir", directory, NULL};
		pid_t pid;

		config_write(wrongs[i].text);
		pid = gpoold_spawn(log, arguments);
		assert_int_equal(status_of(pid), 2 << 8);
		assert_int_equal(group_count(pid), 0);
		assert_int_equal(stat(directory, &stat_of), -1);
		file_read(log, text, sizeof(text));
		snprintf(place, sizeof(place), "%s:%d", config_path, wrongs[i].line);
		if (!strstr(text, place))
			print_message("expected '%s' in: %s\n", place, text);
		assert_non_null(strstr(text, place));
	}
	unlink(config_path);
	unlink(log);
	assert_int_equal(rmdir(base), 0);
}

static void start_config(const char *text)
{
	const char *arguments[] = {"--config", config_path, NULL};

	snprintf(config_path, sizeof(config_path), "/tmp/gpool-test-%d.conf", (int)getpid());
	config_write(text);
	start(arguments);
}

static int stop_config(void **state)
{
	unlink(config_path);
	return stop(state);
}

static int reload(char *text)
{
	const struct msg_reload_request request = {0};
	struct msg_done_reply done;
	int error = ASK_FROM(admin, reload_request, &request, done_reply, &done);

	strcpy(text, error ? error_text : done.text);
	return error;
}

/* Somebody who listens before anything happens: something happens until it is heard. */
static void events_listen(void)
{
	struct gpool_event event;

	do
		gpool_close(harness_open(&harness));
	while (gpool_event_next(admin, 20, &event));
}

static void await_reload_event(char *text)
{
	struct gpool_event event;

	do
		assert_int_equal(gpool_event_next(admin, ANSWER_MS, &event), 0);
	while (event.kind != GPOOL_EVENT_RELOAD);
	strcpy(text, event.text);
}

#define CALM "eviction = { start = 100; stop = 99; };\n"
#define EAGER "eviction = { start = 50; stop = 25; };\n"
#define ONE "{ name = \"one\"; users = [ \"1\" ]; limit = \"40 pages\"; }"
#define TWO "{ name = \"two\"; users = [ \"2\" ]; }"
#define OTHERS "{ name = \"others\"; }"

static void test_a_reload_changes_what_it_can(void **state)
{
	struct gpool_block blocks[40];
	struct gpool *pool, *joined;
	char text[1024];
	pid_t agent;

	(void)state;
	start_config(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	agent = (pid_t)status()->agent_pid;
	events_listen();
	pool = open_as(0, NULL, "others");
	alloc_unpinned(pool, blocks, 40);
	assert_int_equal(status()->pools[0].evicted_pages, 0);

	/* By signal: the watermarks, a limit and a new tenant apply, the size does not. */
	config_write(POOLS_OF("64MiB") EAGER "tenants = ( { name = \"one\"; users = [ \"1\" ]; limit = \"30 pages\"; }, " OTHERS
					     ", " TWO " );\n");
	assert_int_equal(kill(harness.pid, SIGHUP), 0);
	await_reload_event(text);
	assert_non_null(strstr(text, "eviction.start"));
	assert_non_null(strstr(text, "tenants.one.limit"));
	assert_non_null(strstr(text, "tenants.two"));
	assert_non_null(strstr(text, "needs a restart: pools.p0.size"));
	assert_int_equal(status()->pools[0].page_count, PAGES);
	assert_int_equal(tenant("one")->limit_pages, 30);
	assert_non_null(tenant("two"));
	joined = open_as(0, NULL, "two");
	gpool_close(joined);
	AWAIT(status()->pools[0].evicted_pages > 0);
	assert_true(count_there(pool, blocks, 40) < 40);

	/* By request: nothing new, and tenants in another order stay as they are and are named. */
	config_write(POOLS_OF("32MiB") EAGER "tenants = ( " OTHERS
					     ", { name = \"one\"; users = [ \"1\" ]; limit = \"20 pages\"; } );\n");
	assert_int_equal(reload(text), 0);
	assert_non_null(strstr(strstr(text, "needs a restart"), "tenants"));
	assert_int_equal(tenant("one")->limit_pages, 30);
	assert_non_null(tenant("two"));
	assert_int_equal(status()->agent_pid, agent);
	gpool_close(pool);
}

static void test_a_broken_file_changes_nothing(void **state)
{
	char text[1024], place[96], log[16384];

	(void)state;
	start_config(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	config_write(POOLS_OF("32MiB") "tenants = ( { name = \"one\"; users = [ \"1\" ]; limit = \"20 pages\"; }, " OTHERS " );\n"
				       "eviction = { start = \"often\"; };\n");
	assert_int_not_equal(reload(text), 0);
	snprintf(place, sizeof(place), "%s:3", config_path);
	assert_non_null(strstr(text, place));
	assert_int_equal(tenant("one")->limit_pages, 40);
	/* By signal it is the log that says so. */
	assert_int_equal(truncate(harness.log, 0), 0);
	assert_int_equal(kill(harness.pid, SIGHUP), 0);
	do {
		file_read(harness.log, log, sizeof(log));
		poll(NULL, 0, TRY_MS);
	} while (!strstr(log, "the configuration stays as it was"));
	assert_non_null(strstr(log, place));
	assert_int_equal(tenant("one")->limit_pages, 40);
	/* A file that is not there is no configuration either. */
	unlink(config_path);
	assert_int_not_equal(reload(text), 0);
	assert_int_equal(tenant("one")->limit_pages, 40);
	config_write(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	assert_int_equal(reload(text), 0);
}

/* What needs a restart is not there yet, so nothing may be measured by it: these minima fit the next start's pool alone. */
static void test_minima_are_measured_by_the_pool_that_runs(void **state)
{
	uint32_t minima;
	struct gpool_block block;
	struct gpool *pool;
	char text[1024];

	(void)state;
	start_config(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	config_write(POOLS_OF("64MiB") CALM "tenants = ( { name = \"one\"; users = [ \"1\" ]; minimum = \"100 pages\"; }, " OTHERS
					    " );\n");
	reload(text);
	minima = tenant("one")->minimum_pages;
	minima += tenant("others")->minimum_pages;
	assert_true(minima <= PAGES);
	pool = open_as(0, NULL, "others");
	block = alloc(pool, 1);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
}

/* Tenants say who leases pages. Who only looks and steers leases none, and is not shut out where all of them name their users. */
static void test_an_admin_needs_no_tenant(void **state)
{
	const char *const arguments[] = {"--config", config_path, NULL};
	struct gpool_options options;
	struct gpool *pool = NULL;

	(void)state;
	alarm(STUCK_SECONDS);
	snprintf(config_path, sizeof(config_path), "/tmp/gpool-test-%d.conf", (int)getpid());
	config_write(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " TWO " );\n");
	harness_start(&harness, arguments);
	unlink(config_path);
	options = harness_options(&harness);
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &pool), 0);
	gpool_close(pool);
	options.flags = GPOOL_OPEN_ADMIN;
	assert_int_equal(gpool_open(&options, &pool), 0);
	gpool_close(pool);
}

/* ---- requests ---- */

static void test_who_may_not_steer(void **state)
{
	const struct msg_limit_request limit = {.tenant = "default", .limit_pages = 1, .minimum_pages = UINT32_MAX};
	const struct msg_reload_request again = {0};
	const struct msg_status_request look = {0};
	static struct msg_status_reply seen;
	struct gpool_block block;
	struct msg_done_reply done;
	struct gpool *sessions[2];
	uint32_t taken;

	(void)state;
	start(quiet);
	sessions[0] = open_as(GPOOL_OPEN_OBSERVER, NULL, NULL);
	sessions[1] = open_worker();
	alloc_unpinned(sessions[1], &block, 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(try_evict(sessions[i], "", 1, NULL), -EPERM);
		assert_non_null(strstr(error_text, "access.admins"));
		assert_int_equal(ASK_FROM(sessions[i], limit_request, &limit, done_reply, &done), -EPERM);
		assert_int_equal(ASK_FROM(sessions[i], reload_request, &again, done_reply, &done), -EPERM);
		assert_int_equal(ASK_FROM(sessions[i], status_request, &look, status_reply, &seen), 0);
		assert_int_equal(seen.pools[0].evicted_pages, 0);
	}
	assert_int_equal(tenant("default")->limit_pages, PAGES);
	assert_int_equal(try_evict(admin, "", 1, &taken), 0);
	assert_int_equal(taken, 1);
	gpool_close(sessions[0]);
	gpool_close(sessions[1]);
}

static void test_the_token_of_an_ended_session_is_eacces(void **state)
{
	const struct msg_evict_request request = {.pages = 1};
	uint8_t message[MSG_LARGEST_evict_request], token[MSG_TOKEN_BYTES];
	struct pollfd look = {.events = POLLIN};
	struct msg_error_reply error;
	struct msg_done_reply done;
	struct gpool_block blocks[4];
	struct gpool *ended, *worker;
	uint32_t id = 1, answered;
	size_t length;
	int size;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 4);
	ended = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
	memcpy(token, ended->token, sizeof(token));
	look.fd = control_open_raw();
	size = msg_encode_evict_request(&request, 1, token, message, sizeof(message));
	length = control_call_raw(look.fd, id++, message, (size_t)size, reply_bytes);
	assert_int_equal(msg_decode_done_reply(&done, reply_bytes, length), 0);
	assert_int_equal(done.value, 1);
	gpool_close(ended);
	/* The same again, which it would have been answered, and another. A front that has just started does not answer
	 * strangers. */
	for (uint64_t sequence = 1; sequence <= 2; sequence++) {
		size = msg_encode_evict_request(&request, sequence, token, message, sizeof(message));
		do
			control_send_raw(look.fd, id++, message, (size_t)size);
		while (poll(&look, 1, 200) == 0);
		length = control_receive_raw(look.fd, &answered, reply_bytes, sizeof(reply_bytes));
		assert_int_equal(msg_decode_error_reply(&error, reply_bytes, length), 0);
		assert_int_equal(error.error, -EACCES);
	}
	assert_int_equal(count_there(worker, blocks, 4), 3);
	close(look.fd);
	gpool_close(worker);
}

static void test_a_repeated_request_is_answered_and_not_done_again(void **state)
{
	const struct msg_evict_request request = {.pages = 2};
	const struct msg_limit_request limit = {.tenant = "default", .limit_pages = 30, .minimum_pages = UINT32_MAX};
	const struct msg_limit_request wider = {.tenant = "default", .limit_pages = 50, .minimum_pages = UINT32_MAX};
	uint8_t message[MSG_LARGEST_limit_request], first[512], second[MSG_BYTES_MAX];
	uint64_t sequence = 1000;
	struct gpool_block blocks[8];
	struct msg_done_reply done;
	struct gpool *worker;
	size_t length;
	int fd, other, size;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 8);
	fd = control_open_raw();
	other = control_open_raw();
	size = msg_encode_evict_request(&request, sequence, admin->token, message, sizeof(message));
	length = control_call_raw(fd, 1, message, (size_t)size, reply_bytes);
	assert_true(length <= sizeof(first));
	memcpy(first, reply_bytes, length);
	assert_int_equal(msg_decode_done_reply(&done, first, length), 0);
	assert_int_equal(done.value, 2);
	assert_int_equal(count_there(worker, blocks, 8), 6);
	/* On the same way and on another. */
	for (int i = 0; i < 4; i++) {
		assert_int_equal(control_call_raw(i % 2 ? other : fd, (uint32_t)(10 + i), message, (size_t)size, second), length);
		assert_memory_equal(second, first, length);
	}
	assert_int_equal(count_there(worker, blocks, 8), 6);
	assert_int_equal(status()->pools[0].evicted_pages, 2);
	/* Another number is another request. */
	size = msg_encode_evict_request(&request, sequence + 1, admin->token, message, sizeof(message));
	length = control_call_raw(other, 20, message, (size_t)size, second);
	assert_int_equal(msg_decode_done_reply(&done, second, length), 0);
	assert_int_equal(done.value, 2);
	assert_int_equal(count_there(worker, blocks, 8), 4);

	/* A limit that came late does not undo the one after it. */
	size = msg_encode_limit_request(&limit, sequence + 2, admin->token, message, sizeof(message));
	control_call_raw(fd, 30, message, (size_t)size, second);
	size = msg_encode_limit_request(&wider, sequence + 3, admin->token, message, sizeof(message));
	control_call_raw(fd, 31, message, (size_t)size, second);
	size = msg_encode_limit_request(&limit, sequence + 2, admin->token, message, sizeof(message));
	length = control_call_raw(fd, 32, message, (size_t)size, second);
	assert_int_equal(msg_decode_done_reply(&done, second, length), 0);
	assert_int_equal(done.value, 30);
	assert_int_equal(tenant("default")->limit_pages, 50);
	close(fd);
	close(other);
	gpool_close(worker);
}

struct call {
	struct gpool *pool;
	uint32_t pages, taken;
	int error;
	pthread_t thread;
};

/* With buffers of its own: the test goes on asking. */
static void *call_evict(void *argument)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct call *call = argument;
	const struct msg_evict_request request = {.pages = call->pages};
	uint8_t message[MSG_LARGEST_evict_request];
	struct msg_done_reply done;
	int length = msg_encode_evict_request(&request, 0, NULL, message, sizeof(message));

	length = pool_request(call->pool, message, (size_t)length, reply, sizeof(reply), ANSWER_MS, NULL);
	call->error = length < 0 ? length : msg_decode_done_reply(&done, reply, (size_t)length);
	call->taken = call->error ? 0 : (uint32_t)done.value;
	return NULL;
}

/* The front dies with a request unread: the client asks again, by itself. */
static void test_a_request_survives_the_front(void **state)
{
	struct gpool_block blocks[8];
	struct call call = {.pages = 2};
	struct gpool *worker;
	pid_t agent, front;
	int exit_front;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 8);
	agent = (pid_t)status()->agent_pid;
	front = (pid_t)status()->front_pid;
	assert_true(agent > 1 && front > 1);
	call.pool = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
	/* Connected, so that the next one goes straight to a front that does not read. */
	assert_int_equal(try_evict(call.pool, "nowhere", 1, NULL), -ENXIO);
	exit_front = pidfd_of(front);
	assert_int_equal(kill(front, SIGSTOP), 0);
	assert_int_equal(pthread_create(&call.thread, NULL, call_evict, &call), 0);
	assert_int_equal(kill(front, SIGKILL), 0);
	await_end(exit_front);
	pthread_join(call.thread, NULL);
	assert_int_equal(call.error, 0);
	assert_int_equal(call.taken, 2);
	assert_int_equal(count_there(worker, blocks, 8), 6);
	assert_int_equal(status()->agent_pid, agent);
	assert_int_not_equal(status()->front_pid, front);
	assert_int_equal(status()->front_restarts, 1);
	assert_int_equal(kill(harness.pid, 0), 0);
	gpool_close(call.pool);
	gpool_close(worker);
}

/*
 * The front dies when it has passed a request on, and before the answer: the agent may do it from what it was sent, and the
 * client sends it again all the same. It is done once. That it was passed on shows a later request of the same connection, which
 * the front answers by itself.
 */
static void test_a_request_that_was_passed_on_is_done_once(void **state)
{
	const struct msg_evict_request request = {.pages = 2};
	const struct msg_detach_request strange = {0};
	uint8_t message[MSG_LARGEST_evict_request], other[MSG_LARGEST_detach_request];
	struct gpool_block blocks[8];
	struct msg_error_reply error;
	struct msg_done_reply done;
	struct gpool *worker;
	pid_t agent, front;
	uint32_t id;
	size_t length;
	int fd, size, other_size, exit_front;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 8);
	agent = (pid_t)status()->agent_pid;
	front = (pid_t)status()->front_pid;
	assert_true(agent > 1 && front > 1);
	fd = control_open_raw();
	size = msg_encode_evict_request(&request, 5000, admin->token, message, sizeof(message));
	other_size = msg_encode_detach_request(&strange, 5001, admin->token, other, sizeof(other));
	exit_front = pidfd_of(front);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	control_send_raw(fd, 1, message, (size_t)size);
	control_send_raw(fd, 2, other, (size_t)other_size);
	length = control_receive_raw(fd, &id, reply_bytes, sizeof(reply_bytes));
	kill(front, SIGKILL);
	kill(agent, SIGCONT);
	assert_int_equal(id, 2);
	assert_int_equal(msg_decode_error_reply(&error, reply_bytes, length), 0);
	assert_int_equal(error.error, -EOPNOTSUPP);
	await_end(exit_front);
	close(fd);
	AWAIT(status()->front_restarts == 1);
	fd = control_open_raw();
	length = control_call_raw(fd, 1, message, (size_t)size, reply_bytes);
	assert_int_equal(msg_decode_done_reply(&done, reply_bytes, length), 0);
	assert_int_equal(done.value, 2);
	assert_int_equal(count_there(worker, blocks, 8), 6);
	assert_int_equal(status()->pools[0].evicted_pages, 2);
	assert_int_equal(status()->agent_pid, agent);
	close(fd);
	gpool_close(worker);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_a_second_one_is_refused, stop),
		cmocka_unit_test_teardown(test_sigterm_leaves_nothing, clean),
		cmocka_unit_test_teardown(test_sigint_leaves_nothing, clean),
		cmocka_unit_test_teardown(test_a_worker_that_is_attached_does_not_hold_up_the_end, clean),
		cmocka_unit_test_teardown(test_a_killed_keeper_takes_all_along_and_another_starts, stop),
		cmocka_unit_test_teardown(test_a_death_counts_although_a_child_holds_the_socket, stop),
		cmocka_unit_test_teardown(test_a_closed_connection_quarantines, stop),
		cmocka_unit_test_teardown(test_a_detach_frees_at_once, stop),
		cmocka_unit_test_teardown(test_reserved_pages_are_reserved_again, stop),
		cmocka_unit_test_teardown(test_pools_are_independent, stop),
		cmocka_unit_test(test_a_wrong_configuration_starts_nothing),
		cmocka_unit_test_teardown(test_a_reload_changes_what_it_can, stop_config),
		cmocka_unit_test_teardown(test_a_broken_file_changes_nothing, stop_config),
		cmocka_unit_test_teardown(test_minima_are_measured_by_the_pool_that_runs, stop_config),
		cmocka_unit_test_teardown(test_an_admin_needs_no_tenant, clean),
		cmocka_unit_test_teardown(test_who_may_not_steer, stop),
		cmocka_unit_test_teardown(test_the_token_of_an_ended_session_is_eacces, stop),
		cmocka_unit_test_teardown(test_a_repeated_request_is_answered_and_not_done_again, stop),
		cmocka_unit_test_teardown(test_a_request_survives_the_front, stop),
		cmocka_unit_test_teardown(test_a_request_that_was_passed_on_is_done_once, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
