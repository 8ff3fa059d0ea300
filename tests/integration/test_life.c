/*
 * test_life.c - starts and ends of gpoold, its processes, and sessions.
 *
 * Goal: two gpoolds do not share a directory. A stop leaves nothing behind, and a kill leaves nothing that does harm.
 * Pages are freed when, and only when, no process can access them anymore, and return to their owner.
 *
 * Method: real processes, including workers, are ended in each way. The processes of a gpoold are found in /proc by its
 * process group, and its memory by inode.
 *
 * Requirements: S1.
 */
#include "client/gpool.h"
#include "client/core/pool.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "tests/integration/life.h"
#include "tests/lib/harness.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

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

/* ---- memory, by inode ---- */

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

/*
 * Add the memory files that a process has open. If `only` is not NULL, count those of `only` that the process has open.
 */
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

/* Return the number of these memory files that any process of this machine has open. */
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

/* ---- a worker in its own process ---- */

enum worker_kind {
	WORKER_PLAIN,
	WORKER_WITH_CHILD, /* with a child that keeps all inherited descriptors */
	WORKER_CLOSED,     /* disconnects and continues to run */
};

struct worker {
	pid_t pid, child;
	uint32_t session;
	int channel; /* closing it lets the process at the other end exit */
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
	if (page_count == 0)
		options.flags = GPOOL_OPEN_OBSERVER; /* otherwise the agent may lend pages to it */
	if (gpool_open(&options, &pool) || (page_count && gpool_alloc(pool, page_count, &how, &block)))
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

/* ---- gpoold starts and ends ---- */

static void test_a_second_gpoold_is_refused(void **state)
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

/* Stop gpoold while one worker is attached and another one has detached. The connection of the first must end. */
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
	AWAIT(group_count(keeper) == 4); /* keeper, agent, front, mover */
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "%d",
			i == 0           ? (int)keeper
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
	/* The kill has left files behind. */
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
	/* The child is still running, and gpoold does not wait for it. */
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
	struct worker worker, empty;
	struct gpool *pool;
	uint32_t leased;
	char log[4096];

	(void)state;
	start(quiet);
	empty = worker_start(WORKER_CLOSED, 0, 0);
	AWAIT((entry = client(empty.session)) && entry->state == 1);
	worker = worker_start(WORKER_CLOSED, 24, 0);
	AWAIT((entry = client(worker.session)) && entry->state == 1);
	leased = entry->leased_pages;
	assert_true(leased >= 24);
	AWAIT(status()->pools[0].quarantined_pages == leased);
	assert_int_equal(pages_in_state(PAGE_QUARANTINED), leased);
	assert_int_equal(status()->pools[0].deaths, 0);
	/* The session that was closed before is not logged, since it has no pages. */
	file_read(harness.log, log, sizeof(log));
	assert_non_null(strstr(log, "disconnected but is still running: "));
	assert_null(strstr(log, "disconnected but is still running: 0 pages"));
	worker_kill(&empty);
	close(empty.channel);
	/* The pages of the session are available neither to a request nor by eviction. */
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

/* Requirements: U11. */
static void test_reserved_pages_are_reserved_again(void **state)
{
	struct gpool_alloc_options critical = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, more;
	struct worker worker;
	struct gpool *pool;

	(void)state;
	start(with_reserved);
	critical.flags = GPOOL_ALLOC_CRITICAL;
	/* Return reserved pages by the death of the worker. The block has reserved and unreserved pages. */
	worker = worker_start(WORKER_PLAIN, PAGES, GPOOL_ALLOC_CRITICAL);
	assert_int_equal(status()->pools[0].reserved_pages, 0);
	worker_kill(&worker);
	close(worker.channel);
	AWAIT(!client(worker.session));
	assert_int_equal(status()->pools[0].reserved_pages, 8);
	assert_int_equal(status()->pools[0].free_pages, PAGES - 8);

	/* Return them by eviction. */
	pool = open_worker();
	assert_int_equal(gpool_alloc(pool, PAGES, &critical, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(pool), 1), PAGES);
	assert_int_equal(status()->pools[0].reserved_pages, 8);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &more), -ENOSPC);

	/* Return them by a free and a detach. */
	assert_int_equal(gpool_alloc(pool, PAGES, &critical, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
	assert_int_equal(status()->pools[0].reserved_pages, 8);
	assert_int_equal(status()->pools[0].free_pages, PAGES - 8);
}

/* Requirements: C7. */
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
	/* One pool is full and under pressure; the other is not affected. */
	assert_int_equal(gpool_alloc(small, 1, NULL, &more), -ENOSPC);
	AWAIT(gpool_pressure(small) == GPOOL_PRESSURE_CRITICAL);
	assert_int_equal(gpool_pressure(large), GPOOL_PRESSURE_LOW);
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

/* ---- the largest page size ---- */

enum { LARGE_PAGES = 16, LARGE_BYTES = 4 << 20 };

/* Return the first word of a page of a block, or its last one. */
static volatile uint64_t *word_of(struct gpool *pool, const struct gpool_block *block, uint32_t page, bool last)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	address += page * (uint64_t)LARGE_BYTES + (last ? LARGE_BYTES - sizeof(uint64_t) : 0);
	return (volatile uint64_t *)(uintptr_t)address;
}

static void large_fill(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	for (uint32_t page = 0; page < block->page_count; page++) {
		*word_of(pool, block, page, false) = seed + 2 * page;
		*word_of(pool, block, page, true) = seed + 2 * page + 1;
	}
}

static void large_expect(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	for (uint32_t page = 0; page < block->page_count; page++) {
		assert_true(*word_of(pool, block, page, false) == seed + 2 * page);
		assert_true(*word_of(pool, block, page, true) == seed + 2 * page + 1);
	}
}

/* Single, scattered, evicted and spilled blocks. Requirements: U1. */
static void test_pages_of_4_mb(void **state)
{
	static const char *const arguments[] = {
		"--pool", "name=p0,backend=host,size=64MiB,page_size=4MB,reserved=0,spill_memory=64MiB", QUIET, NULL};
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block single[LARGE_PAGES], scattered, saved, other;
	struct gpool *pool, *second;

	(void)state;
	start(arguments);
	pool = open_worker();
	second = open_worker();
	assert_int_equal(gpool_page_bytes(pool), LARGE_BYTES);
	assert_int_equal(gpool_page_count(pool), LARGE_PAGES);
	for (uint32_t i = 0; i < LARGE_PAGES; i++) {
		single[i] = alloc(pool, 1);
		large_fill(pool, &single[i], 100 * i);
	}
	for (uint32_t i = 0; i < LARGE_PAGES; i += 2)
		assert_int_equal(gpool_free(pool, &single[i]), 0);
	scattered = alloc(pool, LARGE_PAGES / 2);
	large_fill(pool, &scattered, 5000);
	for (uint32_t i = 1; i < LARGE_PAGES; i += 2) {
		large_expect(pool, &single[i], 100 * i);
		assert_int_equal(gpool_free(pool, &single[i]), 0);
	}
	large_expect(pool, &scattered, 5000);
	options.flags = GPOOL_ALLOC_SPILL;
	assert_int_equal(gpool_alloc(pool, LARGE_PAGES / 2, &options, &saved), 0);
	large_fill(pool, &saved, 9000);
	assert_int_equal(gpool_unpin(pool, &scattered), 0);
	assert_int_equal(gpool_unpin(pool, &saved), 0);
	options.flags = 0;
	options.timeout_ms = AWAIT_MS;
	assert_int_equal(gpool_alloc(second, LARGE_PAGES, &options, &other), 0);
	large_fill(second, &other, 1);
	assert_int_equal(gpool_pin(pool, &scattered), -ESTALE);
	assert_int_equal(gpool_free(second, &other), 0);
	assert_int_equal(gpool_pin(pool, &saved), 0);
	large_expect(pool, &saved, 9000);
	gpool_close(second);
	gpool_close(pool);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_a_second_gpoold_is_refused, stop),
		cmocka_unit_test_teardown(test_sigterm_leaves_nothing, clean),
		cmocka_unit_test_teardown(test_sigint_leaves_nothing, clean),
		cmocka_unit_test_teardown(test_a_worker_that_is_attached_does_not_hold_up_the_end, clean),
		cmocka_unit_test_teardown(test_a_killed_keeper_takes_all_along_and_another_starts, stop),
		cmocka_unit_test_teardown(test_a_death_counts_although_a_child_holds_the_socket, stop),
		cmocka_unit_test_teardown(test_a_closed_connection_quarantines, stop),
		cmocka_unit_test_teardown(test_a_detach_frees_at_once, stop),
		cmocka_unit_test_teardown(test_reserved_pages_are_reserved_again, stop),
		cmocka_unit_test_teardown(test_pools_are_independent, stop),
		cmocka_unit_test_teardown(test_pages_of_4_mb, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
