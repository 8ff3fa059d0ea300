/*
 * test_faults.c - system calls and driver calls that fail in each process.
 *
 * Goal: every system call of start, attach, lease, spill, roles, exported fences, objects, control and death may fail,
 * in keeper, agent, front, mover or worker. No process may crash. The error must be one that the call documents, no
 * page may be lost, and the next attempt must succeed.
 *
 * Method: strace lets the n-th call of a kind fail in a real gpoold or a real worker. Driver calls fail through the
 * back end's fault plan. After each fault a new worker runs the whole round, and the pool is checked. All pages must be
 * free, no slot of spilled pages may be in use, and gpoold must end normally, with nothing left behind. Each process of
 * gpoold counts its own calls.
 *
 * Most of the time is spent waiting. Several faults are therefore tried at once, each by a separate process: this
 * program, with the fault as arguments. GPOOL_TEST_SCALE below 1 tries fewer of them.
 *
 * Requirements: S11.
 */
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "cuda/gpu.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"
#include "tests/lib/await.h"
#include "tests/lib/scale.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, WAIT_MS = AWAIT_MS, AT_ONCE = 4, SPILLED = 3, SPILLED_PAGES = 4 };

/* The exit status of the process that tries one fault. */
enum { TRIED_SERVED = 10, TRIED_SERVED_WITHOUT_CHECK, TRIED_ENDED };

struct fault {
	const char *call;
	const char *error;
	int from, to; /* the first and the last call that fails, in turn */
	int step;
	const char *environment; /* name of a variable that is set to 1; NULL: none */
};

static char self[512], gpoold[512], base[64], directory[128];
static char now_testing[160] = "no fault";
static int looks, looks_without_check, served, ended, failed;

/* Return true if a public call may return this error when a system call fails. */
static int documented(int error)
{
	static const int codes[] = {0, -ENOSPC, -EDQUOT, -ENOMEM, -EPIPE, -ENOENT, -ETIMEDOUT, -EACCES, -ENXIO, -EUSERS,
		-EPROTO, -ENODEV, -EMFILE, -ESTALE, -EIO};

	for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
		if (codes[i] == error)
			return 1;
	return 0;
}

/* ---- the calls of a worker ---- */

static int verify(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	uint64_t address;
	const uint64_t *words;
	size_t count = block->page_count * gpool_page_bytes(pool) / sizeof(*words);
	int error = gpool_address(pool, block, &address);

	if (error)
		return error;
	words = (const uint64_t *)(uintptr_t)address;
	for (size_t i = 0; i < count; i += 512)
		if (words[i] != seed + i)
			return -EBADMSG;
	return 0;
}

static int fill_and_verify(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	uint64_t address, *words;
	size_t count = block->page_count * gpool_page_bytes(pool) / sizeof(*words);
	int error = gpool_address(pool, block, &address);

	if (error)
		return error;
	words = (uint64_t *)(uintptr_t)address;
	for (size_t i = 0; i < count; i += 512)
		words[i] = seed + i;
	return verify(pool, block, seed);
}

/*
 * Allocate blocks that may be spilled, and evict them by allocating the whole pool. Restored blocks must have their
 * content.
 */
static int round_of_spilling(struct gpool *pool, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[SPILLED], pressing[PAGES];
	uint32_t count = 0, made = 0;
	int error = 0;

	options.flags = GPOOL_ALLOC_SPILL;
	while (made < SPILLED && !error)
		error = gpool_alloc(pool, SPILLED_PAGES, &options, &blocks[made++]);
	for (uint32_t i = 0; i < SPILLED && !error; i++) {
		error = fill_and_verify(pool, &blocks[i], 100 * i);
		if (!error)
			error = gpool_unpin(pool, &blocks[i]);
	}
	if (error)
		return error;
	options.flags = 0;
	options.timeout_ms = (uint32_t)timeout_ms;
	while (count < PAGES && !error) {
		error = gpool_alloc(pool, 1, &options, &pressing[count]);
		count += !error;
		options.timeout_ms = count < PAGES - SPILLED * SPILLED_PAGES ? (uint32_t)timeout_ms : 100;
	}
	/* If a tier fails, its blocks stay resident, so the pool may have been too small. */
	error = error == -ENOSPC ? 0 : error;
	while (count && !error)
		error = gpool_free(pool, &pressing[--count]);
	for (uint32_t i = 0; i < SPILLED && !error; i++) {
		error = gpool_pin(pool, &blocks[i]);
		if (!error)
			error = verify(pool, &blocks[i], 100 * i);
		if (!error)
			error = gpool_free(pool, &blocks[i]);
		/* Content that could not be restored is reported as lost. */
		error = error == -EIO ? 0 : error;
	}
	return error;
}

/* Grow a sliced range while its background thread works, and shrink it. Its committed pages must keep their content. */
static int round_of_growth(struct gpool *pool, int timeout_ms)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range_info info = {.size = sizeof(info)};
	struct gpool_sliced_range *sliced;
	volatile uint64_t *words;
	int error;

	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	options.read_ahead = 2;
	error = gpool_sliced_range_create(pool, 3, 8, 1, &options, &sliced);
	if (error)
		return error;
	error = gpool_sliced_range_info(sliced, &info);
	words = (volatile uint64_t *)(uintptr_t)info.address;
	for (uint32_t blocks = 1; blocks <= 5 && !error; blocks += 2) {
		error = gpool_sliced_range_grow(sliced, blocks, timeout_ms);
		if (!error)
			words[0] = blocks;
	}
	if (!error && words[0] != 5)
		error = -EBADMSG;
	if (!error)
		error = gpool_sliced_range_shrink(sliced, 2, GPOOL_FENCE_NONE);
	if (!error)
		error = gpool_sliced_range_grow(sliced, 8, timeout_ms);
	if (!error && words[0] != 5)
		error = -EBADMSG;
	return error ? error : gpool_sliced_range_destroy(sliced);
}

static int round_of_fences(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence, imported;
	struct gpool *other;
	uint32_t stream;
	int error = gpool_open(options, &other);

	if (error)
		return error;
	error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream);
	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	if (!error)
		error = gpool_fence_export(pool, fence, 0, &handle);
	if (!error)
		error = gpool_fence_import(other, &handle, &imported);
	if (!error && gpool_fence_done(other, imported) != 0)
		error = -EBADMSG;
	if (!error)
		error = gpool_fence_signal(pool, fence);
	if (!error)
		error = gpool_fence_wait(other, imported, WAIT_MS);
	if (!error)
		error = gpool_fence_close(other, imported);
	gpool_close(other);
	return error;
}

static int object_publish(struct gpool *pool, struct gpool_object **object)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t address, bytes, version;
	uint32_t index;
	int error;

	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	error = gpool_object_create(pool, "weights", &options, object);
	if (error)
		return error;
	error = gpool_object_alloc(*object, 3, NULL, &index);
	if (!error)
		error = gpool_object_address(*object, index, &address, &bytes);
	if (!error)
		*(volatile uint64_t *)(uintptr_t)address = bytes;
	if (!error)
		error = gpool_object_set(*object, "shape", "3", 1);
	if (!error)
		error = gpool_object_publish(*object, &version);
	if (error)
		gpool_object_abort(*object);
	return error;
}

/*
 * Publish an object in one session of this process, read it in another, and delete it. Objects of earlier rounds are
 * deleted first.
 */
static int round_of_objects(struct gpool *pool, const struct gpool_options *options)
{
	struct gpool_object *written, *read;
	uint64_t address, bytes;
	struct gpool *reader;
	int error = gpool_object_delete(pool, "weights", 0);

	if (error == 0 || error == -ENOENT)
		error = gpool_open(options, &reader);
	if (error)
		return error;
	error = object_publish(pool, &written);
	if (!error) {
		error = gpool_object_open(reader, "weights", NULL, &read);
		if (!error) {
			error = gpool_object_address(read, 0, &address, &bytes);
			if (!error && *(volatile const uint64_t *)(uintptr_t)address != bytes)
				error = -EBADMSG;
			gpool_object_close(read);
		}
		gpool_object_close(written);
	}
	if (!error)
		error = gpool_object_delete(pool, "weights", 0);
	gpool_close(reader);
	return error;
}

/*
 * Make all calls of a round: allocate with requests to the agent, including a scattered block; pin, unpin, free; then a
 * sliced range, spill, a role, a fence and an object. Return the first error.
 */
static int round_of_work(const char *where, int timeout_ms)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], large;
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool *pool;
	uint32_t count = 0;
	int error;

	options.directory = where;
	options.timeout_ms = timeout_ms;
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	while (count < PAGES && !(error = gpool_alloc(pool, 1, NULL, &blocks[count])))
		count++;
	for (uint32_t i = 0; i < count && !error; i++)
		error = fill_and_verify(pool, &blocks[i], i);
	/* Free every second page, so that a long block must be scattered. */
	for (uint32_t i = 0; i < count && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	if (!error)
		error = gpool_alloc(pool, PAGES / 4, NULL, &large);
	if (!error)
		error = fill_and_verify(pool, &large, 1000);
	if (!error)
		error = gpool_unpin(pool, &large);
	if (!error)
		error = gpool_pin(pool, &large);
	if (!error)
		error = gpool_free(pool, &large);
	for (uint32_t i = 1; i < count && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	if (!error)
		error = round_of_growth(pool, timeout_ms);
	if (!error)
		error = round_of_spilling(pool, timeout_ms);
	if (!error)
		error = gpool_role_acquire(pool, "main", timeout_ms, &role);
	if (!error)
		error = gpool_role_release(pool, &role);
	if (!error)
		error = round_of_fences(pool, &options);
	if (!error)
		error = round_of_objects(pool, &options);
	gpool_close(pool);
	return error;
}

/* ---- gpoold, with or without strace ---- */

static pid_t spawn(char *const argv[])
{
	pid_t child = fork();

	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);

		dup2(null, STDERR_FILENO);
		dup2(null, STDOUT_FILENO);
		execvp(argv[0], argv);
		_exit(127);
	}
	assert_true(child > 0);
	return child;
}

static void inject_text(char *text, size_t bytes, const struct fault *fault, int nth)
{
	snprintf(text, bytes, "inject=%s:error=%s:when=%d", fault->call, fault->error, nth);
}

static pid_t running; /* process left by a failed test */

static pid_t gpoold_start(const struct fault *fault, int nth)
{
	char trace[64], inject[128], pool[192];
	char *plain[] = {gpoold, "--dir", directory, "--pool", pool, NULL};
	char *traced[] = {"strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e", inject, gpoold, "--dir",
		directory, "--pool", pool, "--set", "mover.patience=500ms", NULL};

	/* Use a new folder: pids are reused, and the files of an earlier test that was killed may still exist. */
	strcpy(base, "/tmp/gpool-faults-XXXXXX");
	assert_non_null(mkdtemp(base));
	assert_int_equal(chmod(base, 0755), 0);
	snprintf(directory, sizeof(directory), "%s/run", base);
	snprintf(pool, sizeof(pool),
		"name=p0,backend=host,size=%d "
		"pages,page_size=512KB,reserved=0,spill_memory=2MiB,spill_file=8MiB,spill_directory=/tmp",
		PAGES);
	if (fault) {
		if (fault->environment)
			setenv(fault->environment, "1", 1);
		snprintf(trace, sizeof(trace), "trace=%s", fault->call);
		inject_text(inject, sizeof(inject), fault, nth);
	}
	return running = spawn(fault ? traced : plain);
}

/* Wait at most WAIT_MS for a child's end. */
static int wait_end(pid_t child)
{
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0), status = 0;
	struct pollfd look = {pidfd, POLLIN, 0};

	if (poll(&look, 1, WAIT_MS) != 1) {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		close(pidfd);
		fail_msg("%s: a child did not end within %d ms", now_testing, WAIT_MS);
	}
	close(pidfd);
	waitpid(child, &status, 0);
	return status;
}

/* The keeper's pid is in its file. strace may be the keeper's parent. */
static void gpoold_stop(pid_t child)
{
	char path[160], text[32] = "";
	pid_t keeper = child;
	int fd, status;

	snprintf(path, sizeof(path), "%s/gpoold.pid", directory);
	fd = open(path, O_RDONLY);
	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) > 0)
			keeper = atoi(text) > 1 ? (pid_t)atoi(text) : child; /* not written yet: the child */
		close(fd);
	}
	kill(keeper, SIGTERM);
	status = wait_end(child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
		fail_msg("%s: gpoold ended with status 0x%x", now_testing, status);
	if (access(directory, F_OK) == 0)
		fail_msg("%s: gpoold left '%s' behind", now_testing, directory);
	rmdir(base);
}

/* A failed test must not affect the next one. */
static int clean_up(void **state)
{
	(void)state;
	/* strace does not terminate the processes that it traces when it ends itself, so both are terminated. */
	if (running && kill(running, 0) == 0) {
		char command[400];

		kill(running, SIGKILL);
		waitpid(running, NULL, 0);
		snprintf(command, sizeof(command), "kill -KILL $(cat %s/gpoold.pid 2>/dev/null) 2>/dev/null; rm -rf %s",
			directory, base);
		if (system(command) < 0)
			return 0;
	}
	running = 0;
	return 0;
}

/* All workers have ended, so no content is kept. Some of it may still be moving. */
static int look_for_spilled(struct gpool *pool)
{
	static uint8_t request[256], reply[MSG_BYTES_MAX];
	static struct msg_status_reply status;
	uint64_t kept = 1;

	for (int tries = 0; tries < 6000 && kept; tries++) {
		int length =
			msg_encode_status_request(&(struct msg_status_request){0}, 0, NULL, request, sizeof(request));

		length = pool_request(pool, request, (size_t)length, reply, sizeof(reply), 2000, NULL);
		if (length <= 0 || msg_decode_status_reply(&status, reply, (size_t)length))
			return -EAGAIN;
		kept = status.pools[0].spill_memory_bytes + status.pools[0].spill_file_bytes +
			status.pools[0].moving_pages;
		if (kept)
			poll(NULL, 0, 10);
	}
	if (kept)
		fail_msg("%s: %llu bytes are kept for blocks without an owner", now_testing, (unsigned long long)kept);
	return 0;
}

/* Let the agent check itself, then wait until all pages are free. Return 0, or the error that prevented the check. */
static int look_whether_whole(void)
{
	static uint8_t request[256], reply[MSG_BYTES_MAX];
	static struct msg_check_reply check;
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool *pool;
	int length, tries = 0, error;

	options.directory = directory;
	options.flags = GPOOL_OPEN_OBSERVER;
	options.timeout_ms = WAIT_MS;
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	length = msg_encode_check_request(&(struct msg_check_request){0}, 0, NULL, request, sizeof(request));
	length = pool_request(pool, request, (size_t)length, reply, sizeof(reply), 2000, NULL);
	if (length > 0 && !msg_decode_check_reply(&check, reply, (size_t)length)) {
		if (check.found)
			fail_msg("%s: %u findings: %s", now_testing, check.found, check.findings[0].text);
		error = 0;
	} else {
		error = -EAGAIN;
	}
	if (!error)
		error = look_for_spilled(pool);
	/* The agent frees the pages of a worker that ended without a detach when it detects its death. */
	for (tries = 0; tries < 6000 && atomic_load(&pool_view(pool)->header->state_pages[PAGE_FREE]) != PAGES; tries++)
		poll(NULL, 0, 10);
	if (tries == 6000)
		fail_msg("%s: %u of %d pages are free", now_testing,
			atomic_load(&pool_view(pool)->header->state_pages[PAGE_FREE]), PAGES);
	gpool_close(pool);
	return error;
}

/*
 * The fault may hit the check itself, once in the agent and once in the front. A front that dies of it is restarted,
 * and strace injects the fault into each new front. As expected, no request is then answered, and only the free pages
 * are checked.
 */
static void pool_is_whole(void)
{
	int error = look_whether_whole();
	if (error && error != -EAGAIN)
		error = look_whether_whole();
	looks++;
	looks_without_check += error == -EAGAIN;
	if (error && error != -EAGAIN)
		fail_msg("%s: cannot look: %d (%s)", now_testing, error, gpool_strerror(error));
}

/* ---- faults in gpoold ---- */

/*
 * Run a round in its own process, because a session whose connection breaks keeps its pages until its process has died.
 * Return 0, or -1 if the round failed with a documented error.
 */
static int round_in_child(void)
{
	char *argv[] = {self, "--round", directory, NULL};
	int status = wait_end(spawn(argv));

	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
		fail_msg("%s: a worker ended with status 0x%x", now_testing, status);
	return WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* Return true if the child has ended, without reaping it. */
static int has_ended(pid_t child)
{
	siginfo_t info = {0};

	return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

static void agent_fault(const struct fault *fault, int nth)
{
	pid_t child = gpoold_start(fault, nth);
	int again, status;

	snprintf(now_testing, sizeof(now_testing), "agent: %s %s at call %d", fault->call, fault->error, nth);
	round_in_child();
	/* Each process counts its own calls, so the fault may hit a second round, but not a third. */
	again = has_ended(child) ? -1 : round_in_child();
	if (again)
		again = has_ended(child) ? -1 : round_in_child();
	if (again) {
		/*
		 * gpoold has refused to start, or stopped. It must end by itself, log the cause, and leave nothing
		 * behind.
		 */
		status = wait_end(child);
		running = 0;
		/* 127: the failed call was the loader's */
		if (!WIFEXITED(status) || (WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 127))
			fail_msg("%s: later rounds fail, and gpoold ends with status 0x%x", now_testing, status);
		if (access(directory, F_OK) == 0)
			fail_msg("%s: gpoold left '%s' behind", now_testing, directory);
		rmdir(base);
		ended++;
		return;
	}
	served++;
	pool_is_whole();
	gpoold_stop(child);
}

/* Inject one fault into the process for which it is meant. */
static const struct fault *the_fault;
static int the_nth;

static void test_one_fault(void **state)
{
	(void)state;
	agent_fault(the_fault, the_nth);
}

static int one_fault(char **arguments)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_one_fault, clean_up)};
	const struct fault fault = {arguments[0], arguments[1], 0, 0, 1, *arguments[3] ? arguments[3] : NULL};

	the_fault = &fault;
	the_nth = atoi(arguments[2]);
	if (cmocka_run_group_tests(tests, NULL, NULL))
		return 1;
	return ended ? TRIED_ENDED : looks_without_check ? TRIED_SERVED_WITHOUT_CHECK : TRIED_SERVED;
}

struct trial {
	pid_t child;
	int output;
	char name[96];
};

static void trial_start(struct trial *trial, const struct fault *fault, int nth)
{
	char number[16];
	char *argv[] = {self, "--fault", (char *)fault->call, (char *)fault->error, number,
		(char *)(fault->environment ? fault->environment : ""), NULL};

	snprintf(number, sizeof(number), "%d", nth);
	snprintf(trial->name, sizeof(trial->name), "%s %s at call %d", fault->call, fault->error, nth);
	trial->output = memfd_create("output", MFD_CLOEXEC);
	assert_true(trial->output >= 0);
	trial->child = fork();
	if (trial->child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(trial->output, STDOUT_FILENO);
		dup2(trial->output, STDERR_FILENO);
		execv(self, argv);
		_exit(127);
	}
	assert_true(trial->child > 0);
}

static void trial_end(struct trial *trial, int status)
{
	char text[4096] = "";
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;

	served += code == TRIED_SERVED || code == TRIED_SERVED_WITHOUT_CHECK;
	looks += code == TRIED_SERVED || code == TRIED_SERVED_WITHOUT_CHECK;
	looks_without_check += code == TRIED_SERVED_WITHOUT_CHECK;
	ended += code == TRIED_ENDED;
	if (code < TRIED_SERVED || code > TRIED_ENDED) {
		if (pread(trial->output, text, sizeof(text) - 1, 0) < 0)
			text[0] = '\0';
		print_message("%s:\n%s\n", trial->name, text);
		failed++;
	}
	close(trial->output);
	trial->child = 0;
}

static void trials_wait(struct trial *trials)
{
	int status;
	pid_t child = waitpid(-1, &status, 0);

	assert_true(child > 0);
	for (int i = 0; i < AT_ONCE; i++)
		if (trials[i].child == child)
			trial_end(&trials[i], status);
}

static struct trial *trial_free(struct trial *trials)
{
	for (int i = 0; i < AT_ONCE; i++)
		if (!trials[i].child)
			return &trials[i];
	return NULL;
}

/* Return the stride: only every n-th fault is tried. */
static int thinned(void)
{
	return test_scale() < 1 ? (int)(1 / test_scale() + 0.5) : 1;
}

static void run_agent_faults(const struct fault *faults, size_t count)
{
	struct trial trials[AT_ONCE] = {0}, *trial;
	int number = 0;

	served = ended = failed = 0;
	for (size_t i = 0; i < count; i++)
		for (int nth = faults[i].from; nth <= faults[i].to; nth += faults[i].step) {
			if (number++ % thinned())
				continue;
			while (!(trial = trial_free(trials)))
				trials_wait(trials);
			trial_start(trial, &faults[i], nth);
		}
	for (int i = 0; i < AT_ONCE; i++)
		while (trials[i].child)
			trials_wait(trials);
	print_message("%d faults survived, %d ended gpoold in order\n", served, ended);
	assert_int_equal(failed, 0);
	assert_true(served > ended / 2);
}

static void test_agent_segments_and_descriptors(void **state)
{
	static const struct fault faults[] = {
		{"memfd_create", "ENFILE", 1, 12, 1, NULL},
		{"ftruncate", "ENOSPC", 1, 5, 1, NULL},
		{"eventfd2", "EMFILE", 1, 4, 1, NULL},
		{"fchmod", "EPERM", 1, 3, 1, NULL},
		{"openat", "EMFILE", 8, 80, 9, NULL},
		{"fcntl", "EINVAL", 1, 10, 3, NULL},
		{"mmap", "ENOMEM", 34, 70, 4, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_agent_sockets(void **state)
{
	static const struct fault faults[] = {
		{"accept4", "EMFILE", 1, 2, 1, NULL},
		{"getsockopt", "ENOMEM", 1, 4, 1, NULL},
		{"sendmsg", "ENOBUFS", 1, 31, 2, NULL},
		{"recvmsg", "ECONNRESET", 1, 25, 2, NULL},
		{"socketpair", "EMFILE", 1, 2, 1, NULL},
		{"bind", "EACCES", 1, 2, 1, NULL},
		{"listen", "EADDRINUSE", 1, 2, 1, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_agent_events_and_processes(void **state)
{
	static const struct fault faults[] = {
		{"epoll_ctl", "ENOMEM", 1, 15, 2, NULL},
		{"epoll_create1", "EMFILE", 1, 1, 1, NULL},
		{"epoll_wait", "EINTR", 1, 5, 2, NULL},
		{"timerfd_settime", "EINVAL", 1, 3, 1, NULL},
		{"signalfd4", "EMFILE", 1, 2, 1, NULL},
		{"pipe2", "EMFILE", 1, 2, 1, NULL},
		{"clone", "EAGAIN", 1, 6, 1, NULL},
		{"wait4", "EINTR", 1, 5, 2, NULL},
		{"poll", "EINTR", 1, 9, 2, NULL},
		{"prctl", "EPERM", 1, 3, 1, NULL},
		{"seccomp", "EINVAL", 1, 3, 1, NULL},
		{"close_range", "ENOSYS", 1, 1, 1, NULL},
		{"mkdir", "EACCES", 1, 2, 1, NULL},
		{"flock", "EINTR", 1, 1, 1, NULL},
		{"getrandom", "EAGAIN", 1, 3, 1, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_mover_and_tiers(void **state)
{
	static const struct fault faults[] = {
		{"io_uring_setup", "EPERM", 1, 2, 1, NULL},
		{"io_uring_register", "ENOMEM", 1, 3, 1, NULL},
		{"io_uring_enter", "EAGAIN", 1, 3, 1, NULL},
		{"fallocate", "EOPNOTSUPP", 1, 2, 1, NULL},
		{"pwrite64", "ENOSPC", 1, 4, 1, "GPOOL_NO_URING"},
		{"pwrite64", "EIO", 1, 1, 1, "GPOOL_NO_URING"},
		{"pread64", "EIO", 1, 4, 1, "GPOOL_NO_URING"},
		/*
		 * The stream and the thread of the first lane are the 1st and the 5th call. Without them no mover ever
		 * serves.
		 */
		{"clone3", "EAGAIN", 1, 4, 1, NULL},
		{"clone3", "EAGAIN", 5, 8, 1, "GPOOL_NO_URING"},
		{"mlock", "ENOMEM", 1, 1, 1, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

/* ---- faults in the worker ---- */

static void worker_fault(const struct fault *fault, int nth)
{
	char trace[64], inject[128];
	char *traced[] = {
		"strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e", inject, self, "--round", directory, NULL};
	int status;

	snprintf(now_testing, sizeof(now_testing), "worker: %s %s at call %d", fault->call, fault->error, nth);
	snprintf(trace, sizeof(trace), "trace=%s", fault->call);
	inject_text(inject, sizeof(inject), fault, nth);
	status = wait_end(spawn(traced));
	/* 0: the round succeeded; 3: a documented error; 127 and others: the loader could not start the worker */
	if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 4))
		fail_msg("%s: the worker ended with status 0x%x", now_testing, status);
}

static void test_worker_faults(void **state)
{
	static const struct fault faults[] = {
		{"socket", "EMFILE", 1, 2, 1, NULL},
		{"connect", "ECONNREFUSED", 1, 2, 1, NULL},
		{"sendmsg", "ENOBUFS", 1, 14, 1, NULL},
		{"recvmsg", "ECONNRESET", 1, 14, 1, NULL},
		{"fcntl", "ENOMEM", 1, 8, 1, NULL},
		{"mmap", "ENOMEM", 30, 90, 4, NULL},
		{"mprotect", "ENOMEM", 8, 30, 2, NULL},
		{"madvise", "EINVAL", 1, 6, 1, NULL},
		{"munmap", "EINVAL", 1, 8, 2, NULL},
		{"write", "EAGAIN", 1, 3, 1, NULL},
		{"memfd_create", "EMFILE", 1, 1, 1, NULL},
		{"fchmod", "EPERM", 1, 1, 1, NULL},
		{"getrandom", "EAGAIN", 1, 2, 1, NULL},
		{"clone3", "EAGAIN", 1, 3, 1, NULL},
	};
	pid_t child = gpoold_start(NULL, 0);

	(void)state;
	assert_int_equal(round_in_child(), 0);
	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		for (int nth = faults[i].from; nth <= faults[i].to; nth += faults[i].step * thinned())
			worker_fault(&faults[i], nth);
		assert_int_equal(round_in_child(), 0);
		pool_is_whole();
	}
	gpoold_stop(child);
	/* Most checks must have been complete: a front that never answers must not pass. */
	assert_true(looks_without_check * 2 < looks);
}

/* Each kind of driver call fails at its first and at later uses, in an attached worker, or during the attach. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call kinds[] = {
		GPU_CALL_IMPORT, GPU_CALL_RESERVE, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_UNMAP, GPU_CALL_UNRESERVE};
	pid_t child = gpoold_start(NULL, 0);

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		for (uint64_t nth = 1; nth <= 20; nth += nth < 4 ? 1 : 5) {
			struct gpool_options options = GPOOL_OPTIONS_INIT;
			struct gpool_block block;
			struct gpool *pool;
			int error;

			options.directory = directory;
			options.timeout_ms = WAIT_MS;
			error = gpool_open(&options, &pool);
			assert_int_equal(error, 0);
			gpu_fault_set(pool->gpu, kinds[i], nth, -ENOMEM);
			for (int tries = 0; tries < 40; tries++) {
				error = gpool_alloc(pool, 1 + (uint32_t)tries % 9, NULL, &block);
				if (error && error != -ENOMEM && error != -ENOSPC)
					fail_msg("driver call %s, use %d: gpool_alloc() says %d",
						gpu_call_name(kinds[i]), (int)nth, error);
				if (!error)
					assert_int_equal(fill_and_verify(pool, &block, nth), 0);
				if (!error && tries % 3 == 0)
					assert_int_equal(gpool_free(pool, &block), 0);
			}
			gpool_close(pool);
			pool_is_whole();
		}
	/* Let gpool_open() itself fail, at the next device that this process opens. */
	for (int nth = 1; nth <= 2; nth++) {
		gpu_fault_set(NULL, GPU_CALL_OPEN, 1, -ENODEV);
		assert_int_equal(round_of_work(directory, 3000), -ENODEV);
		assert_int_equal(round_of_work(directory, 3000), 0);
	}
	pool_is_whole();
	gpoold_stop(child);
}

static int have_strace(void)
{
	char *argv[] = {"strace", "-qq", "-o", "/dev/null", "-e", "trace=getpid", "true", NULL};
	int status = wait_end(spawn(argv));

	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_driver_faults, clean_up),
		cmocka_unit_test_teardown(test_agent_segments_and_descriptors, clean_up),
		cmocka_unit_test_teardown(test_agent_sockets, clean_up),
		cmocka_unit_test_teardown(test_agent_events_and_processes, clean_up),
		cmocka_unit_test_teardown(test_mover_and_tiers, clean_up),
		cmocka_unit_test_teardown(test_worker_faults, clean_up),
	};
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (length < 0)
		return 1;
	self[length] = '\0';
	if (argc == 3 && !strcmp(argv[1], "--round")) {
		int error = round_of_work(argv[2], 1500);

		if (!documented(error))
			fprintf(stderr, "the worker got %d (%s)\n", error, gpool_strerror(error));
		return error == 0 ? 0 : documented(error) ? 3 : 4;
	}
	snprintf(gpoold, sizeof(gpoold), "%s", self);
	slash = strrchr(gpoold, '/');
	snprintf(slash, sizeof(gpoold) - (size_t)(slash - gpoold), "/../gpoold");
	if (getenv("GPOOLD"))
		snprintf(gpoold, sizeof(gpoold), "%s", getenv("GPOOLD"));
	if (argc == 6 && !strcmp(argv[1], "--fault"))
		return one_fault(argv + 2);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	puts("the sanitizers' own system calls would be made to fail, and leaks cannot be looked for under strace");
	return 77;
#endif
	if (!have_strace()) {
		puts("strace is missing or may not trace here");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
