/*
 * test_client.c - attach, detach, fork, inspection, events and requests with a real agent.
 *
 * One gpoold serves two pools. The second pool, p1, has reserved pages and uses the second device of the back end
 * `host`.
 */
#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "tests/lib/harness.h"

#include <poll.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 512, PAGE_BYTES = TEST_PAGE_BYTES };

#define SECOND_POOL "name=p1,backend=host,device=1,size=64 pages,page_size=" TEST_PAGE_SIZE ",reserved=4 pages"

static struct harness harness;

static int all_is_free(void **state)
{
	(void)state;
	return harness_check(&harness) || harness_free_pages(&harness) != PAGES ? -1 : 0;
}

static int open_with(struct gpool_options options)
{
	struct gpool *pool = (struct gpool *)&harness;
	int error = gpool_open(&options, &pool);

	if (error)
		assert_ptr_equal(pool, &harness); /* unchanged */
	else
		gpool_close(pool);
	return error;
}

/* ---- open ---- */

static void test_open_defaults(void **state)
{
	struct gpool *pool, *again;

	(void)state;
	setenv("GPOOL_DIR", harness.directory, 1);
	assert_int_equal(gpool_open(NULL, &pool), 0);
	assert_int_equal(gpool_page_bytes(pool), PAGE_BYTES);
	assert_int_equal(gpool_page_count(pool), PAGES);
	assert_true(gpool_session(pool) >= 1);
	assert_int_equal(gpool_pressure(pool), GPOOL_PRESSURE_LOW);
	assert_int_equal(gpool_open(NULL, &again), 0);
	assert_true(gpool_session(again) != gpool_session(pool));
	gpool_close(again);
	gpool_close(pool);
	gpool_close(NULL);
	unsetenv("GPOOL_DIR");
}

static void test_open_by_name(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	options.pool = "p1";
	options.name =
		"a name that is much longer than the sixty-three bytes which the protocol has room for, \xff with dirt";
	options.tenant = "default";
	options.magazine = 64;
	assert_int_equal(gpool_open(&options, &pool), 0);
	assert_int_equal(gpool_page_count(pool), 64);
	/* Four pages are reserved for critical requests. */
	assert_int_equal(gpool_alloc(pool, 61, NULL, &block), -ENOSPC);
	assert_int_equal(gpool_alloc(pool, 60, NULL, &block), 0);
	gpool_close(pool);
}

/* Requirements: U11. */
static void test_reserved_pages(void **state)
{
	struct gpool_alloc_options critical = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_options options = harness_options(&harness);
	struct gpool_block all, block;
	struct gpool *pool;

	(void)state;
	options.pool = "p1";
	assert_int_equal(gpool_open(&options, &pool), 0);
	critical.flags = GPOOL_ALLOC_CRITICAL;
	/* This test runs as the agent's own user, which may make critical requests. */
	assert_int_equal(gpool_alloc(pool, 60, NULL, &all), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), -ENOSPC);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(gpool_alloc(pool, 4, &critical, &block), 0);
		assert_int_equal(block.page, 60);
		assert_int_equal(gpool_free(pool, &block), 0);
		/* Freed reserved pages are not available to ordinary allocations. */
		assert_int_equal(gpool_alloc(pool, 4, NULL, &block), -ENOSPC);
		assert_int_equal(gpool_alloc(pool, 1, NULL, &block), -ENOSPC);
	}
	gpool_close(pool);
}

static void test_open_refuses_bad_options(void **state)
{
	struct gpool_options options = harness_options(&harness);
	char name[70];

	(void)state;
	memset(name, 'x', sizeof(name));
	name[64] = '\0';
	options.flags = 1u << 2;
	assert_int_equal(open_with(options), -EINVAL);
	options.flags = GPOOL_OPEN_OBSERVER | GPOOL_OPEN_ADMIN;
	assert_int_equal(open_with(options), -EINVAL);
	options = harness_options(&harness);
	options.magazine = 65;
	assert_int_equal(open_with(options), -EINVAL);
	options = harness_options(&harness);
	options.timeout_ms = -2;
	assert_int_equal(open_with(options), -EINVAL);
	options = harness_options(&harness);
	options.pool = name;
	assert_int_equal(open_with(options), -EINVAL);
	options.pool = "p9";
	assert_int_equal(open_with(options), -ENXIO);
	options = harness_options(&harness);
	options.tenant = "no-such-tenant";
	assert_int_equal(open_with(options), -ENXIO);
	options = harness_options(&harness);
	name[64] = 'x';
	name[69] = '\0';
	options.tenant = name;
	assert_int_equal(open_with(options), -EINVAL);
}

static int accept_next(int listener)
{
	struct pollfd wait = {.fd = listener, .events = POLLIN};

	poll(&wait, 1, -1);
	return accept(listener, NULL, NULL);
}

/* Send a malformed reply, and close the connection at the second request. */
static void *answer_nonsense(void *argument)
{
	const int *listener = argument;
	int first = accept_next(*listener), second;

	attach_send(first, "hello", 5, NULL, 0);
	second = accept_next(*listener);
	close(second);
	close(first);
	return NULL;
}

static void test_open_without_an_agent(void **state)
{
	struct gpool_options options = harness_options(&harness);
	pthread_t thread;
	char path[200];
	int listener;

	(void)state;
	options.timeout_ms = 0;
	options.directory = "/nonexistent-folder-of-gpool-tests";
	assert_int_equal(open_with(options), -ENOENT);
	options.timeout_ms = 30;
	assert_int_equal(open_with(options), -ENOENT);
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	options.directory = path;
	assert_int_equal(open_with(options), -EINVAL);

	/* Create a socket file that no process listens on. */
	snprintf(path, sizeof(path), "%s/attach", harness.base);
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	close(listener);
	options.directory = harness.base;
	options.timeout_ms = 0;
	assert_int_equal(open_with(options), -ENOENT);
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	assert_int_equal(pthread_create(&thread, NULL, answer_nonsense, &listener), 0);
	assert_int_equal(open_with(options), -EPROTO);
	assert_int_equal(open_with(options), -ETIMEDOUT);
	pthread_join(thread, NULL);
	close(listener);
	unlink(path);
}

static void test_open_without_the_device(void **state)
{
	struct gpool_options options = harness_options(&harness);

	(void)state;
	options.pool = "p1";
	setenv("GPOOL_HOST_DEVICES", "1", 1);
	assert_int_equal(open_with(options), -ENODEV);
	unsetenv("GPOOL_HOST_DEVICES");
	assert_int_equal(open_with(options), 0);
}

static void remember(void *context, int level, const char *text)
{
	char *kept = context;

	if (level == POOL_LOG_ERROR)
		snprintf(kept, 256, "%s", text);
}

/*
 * Make the opening of the device and the creation of the window fail in turn. gpool_open() must return an error with
 * its text, and no session must remain.
 */
static void test_open_when_the_back_end_fails(void **state)
{
	struct gpool_options options = harness_options(&harness);
	char text[256] = "";

	(void)state;
	options.log = remember;
	options.log_context = text;
	gpu_fault_set(NULL, GPU_CALL_OPEN, 1, -EIO);
	assert_int_equal(open_with(options), -ENODEV);
	assert_non_null(strstr(text, "cannot open device"));
	gpu_fault_set(NULL, GPU_CALL_RESERVE, 1, -ENOMEM);
	assert_int_equal(open_with(options), -ENOMEM);
	assert_non_null(strstr(text, "cannot reserve"));
	options.pool = "p7";
	assert_int_equal(open_with(options), -ENXIO);
	assert_non_null(strstr(text, "no pool 'p7'"));
}

static void test_open_at_the_limits(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pools[POOLS_MAX - 1];
	struct rlimit before, low;

	(void)state;
	assert_int_equal(harness_check(&harness), 0); /* the process was attached to it once before */
	for (int i = 0; i < POOLS_MAX - 1; i++)
		assert_int_equal(gpool_open(&options, &pools[i]), 0);
	assert_int_equal(open_with(options), -EMFILE);
	for (int i = 0; i < POOLS_MAX - 1; i++)
		gpool_close(pools[i]);

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	low = before;
	/*
	 * Start without free descriptors, then permit more of them one by one. gpool_open() must either succeed or
	 * report the cause, and must never leave a partial attach.
	 */
	for (rlim_t more = 0; more < 12; more++) {
		int spare = dup(0), error;

		close(spare);
		low.rlim_cur = (rlim_t)spare + more;
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		error = open_with(options);
		setrlimit(RLIMIT_NOFILE, &before);
		if (error != 0 && error != -EMFILE)
			print_error("with %d descriptors: %s\n", (int)more, gpool_strerror(error));
		assert_true(error == 0 || error == -EMFILE);
	}
	assert_int_equal(open_with(options), 0);
}

/* Requirements: S9. */
static void test_sessions_limit(void **state)
{
	struct harness small;
	struct gpool_options options;
	struct gpool *first;
	int error;

	(void)state;
	harness_start(&small, (const char *const[]){"--pool", HARNESS_POOL, "--set", "limits.sessions=1", NULL});
	options = harness_options(&small);
	assert_int_equal(gpool_open(&options, &first), 0);
	error = open_with(options);
	gpool_close(first);
	assert_int_equal(error, -EUSERS);
	assert_int_equal(harness_stop(&small), 0);
}

/* Attach as another user that shares no group with this process. Needs root. Requirements: S9. */
static void test_open_as_a_stranger(void **state)
{
	struct gpool_options options = harness_options(&harness);
	int status;
	pid_t child;

	(void)state;
	if (getuid()) {
		print_message("only root can become another user\n");
		skip();
	}
	options.timeout_ms = 0;
	child = fork();
	if (child == 0) {
		struct gpool *pool;

		if (setgid(65534) || setuid(65534))
			_exit(1);
		_exit(gpool_open(&options, &pool) == -EACCES ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void test_observer_has_no_pages(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	struct gpool_block block = {.tag = 1 << 16};
	struct gpool_span span;
	struct gpool *pool;
	uint32_t stream;

	(void)state;
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &pool), 0);
	assert_int_equal(gpool_page_count(pool), PAGES);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), -EPERM);
	assert_int_equal(gpool_span_alloc(pool, 1, 0, &span), -EPERM);
	assert_int_equal(gpool_pin(pool, &block), -EINVAL);
	assert_int_equal(gpool_free(pool, &block), -EINVAL);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), -EOPNOTSUPP);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.leased_pages, 0);
	gpool_close(pool);
}

/* ---- close ---- */

static void test_close_returns_everything(void **state)
{
	struct gpool *pool = harness_open(&harness);
	struct gpool_block block;
	struct gpool_span span;
	struct gpool_fence fence;
	uint32_t manual, stream;

	(void)state;
	for (int i = 0; i < 30; i++)
		assert_int_equal(gpool_alloc(pool, 1 + (uint32_t)i % 4, NULL, &block), 0);
	assert_int_equal(gpool_span_alloc(pool, 700, 0, &span), 0);
	assert_int_equal(gpool_prepare(pool, 3, NULL, &block), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_fence_record(pool, manual, &fence), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, fence), 0);
	assert_int_equal(gpool_alloc(pool, 2, NULL, &block), 0);
	assert_int_equal(gpool_free_after(pool, &block, fence), 0);
	assert_int_equal(gpool_alloc(pool, 2, NULL, &block), 0);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool); /* all_is_free() checks it */
}

/*
 * When the agent ends, allocated memory remains usable and leased pages can be allocated. After that, the error states
 * the cause.
 */
static void test_agent_disappears(void **state)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	struct gpool_block held, block;
	struct harness mortal;
	struct gpool *pool;
	uint64_t address;
	uint32_t got = 0;
	int error;

	(void)state;
	harness_start(&mortal, (const char *const[]){"--pool", HARNESS_POOL, NULL});
	pool = harness_open(&mortal);
	assert_int_equal(gpool_alloc(pool, 2, NULL, &held), 0);
	assert_int_equal(gpool_address(pool, &held, &address), 0);
	harness_kill(&mortal);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	while ((error = gpool_alloc(pool, 1, NULL, &block)) == 0)
		got++;
	assert_int_equal(error, -EPIPE);
	assert_non_null(strstr(gpool_last_error(EPIPE), "gpoold is not running: the connection of session "));
	assert_true(got <= statistics.idle_pages + MAGAZINE_DEFAULT);
	*(volatile uint64_t *)(uintptr_t)address = 1;
	assert_int_equal(gpool_pin(pool, &held), 0);
	assert_int_equal(gpool_unpin(pool, &held), 0);
	assert_int_equal(gpool_free(pool, &held), 0);
	assert_int_equal(gpool_alloc(pool, 2, NULL, &held), 0);
	gpool_close(pool);
}

/* ---- fork ---- */

/* Run in the child: every call must be refused without any effect. Return the number of the first call that is not. */
static int calls_in_child(struct gpool *pool, struct gpool_block *block, struct gpool_scope *scope, uint32_t stream)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	struct gpool_options options = harness_options(&harness);
	struct gpool_scope other = GPOOL_SCOPE_INIT;
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct gpool_fence fence = {0};
	struct gpool_span span = {.block = *block};
	struct gpool *own;
	uint8_t request[MSG_ENVELOPE_BYTES];
	uint64_t address;
	const int answers[] = {
		gpool_alloc(pool, 1, NULL, block),
		gpool_free(pool, block),
		gpool_discard(pool, block),
		gpool_pin(pool, block),
		gpool_unpin(pool, block),
		gpool_touch(pool, block),
		gpool_address(pool, block, &address),
		gpool_span_alloc(pool, 1, 0, &span),
		gpool_span_free(pool, &span),
		gpool_stream_open(pool, NULL, 0, &stream),
		gpool_copy(pool, stream, 0, 0, 4),
		gpool_fill(pool, stream, 0, 0, 4),
		gpool_fence_record(pool, stream, &fence),
		gpool_fence_done(pool, fence),
		gpool_fence_wait(pool, fence, 0),
		gpool_stream_wait(pool, stream, fence),
		gpool_fence_signal(pool, fence),
		gpool_free_after(pool, block, fence),
		gpool_unpin_after(pool, block, fence),
		gpool_scope_begin(pool, 0, 0, &other),
		gpool_scope_alloc(scope, 1, NULL, block),
		gpool_scope_end(scope, GPOOL_FENCE_NONE),
		gpool_prepare(pool, 1, NULL, block),
		gpool_commit(pool, block, NULL),
		gpool_rollback(pool, block),
		gpool_event_next(pool, 0, &event),
		gpool_pressure(pool),
		gpool_stats(pool, &statistics),
		pool_request(pool, request, sizeof(request), request, sizeof(request), 0, NULL),
	};

	for (int i = 0; i < (int)(sizeof(answers) / sizeof(answers[0])); i++)
		if (answers[i] != -ECHILD)
			return i + 1;
	gpool_stream_close(pool, stream);
	gpool_close(pool);
	if (gpool_page_bytes(pool) || gpool_page_count(pool) || gpool_session(pool))
		return 100;
	/* A pool that the child opens itself works. */
	if (gpool_open(&options, &own) || gpool_alloc(own, 1, NULL, block) || gpool_free(own, block))
		return 101;
	gpool_close(own);
	return 0;
}

static void test_fork(void **state)
{
	struct gpool *pool = harness_open(&harness);
	struct gpool_block block, second;
	struct gpool_scope scope = GPOOL_SCOPE_INIT;
	uint64_t address;
	uint32_t stream;
	pid_t child;
	int status;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 2, NULL, &block), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &second), 0);
	assert_int_equal(gpool_free(pool, &second), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_scope_begin(pool, 0, 0, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &second), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	*(volatile uint64_t *)(uintptr_t)address = 4711;
	child = fork();
	if (child == 0)
		_exit(calls_in_child(pool, &block, &scope, stream));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(*(volatile uint64_t *)(uintptr_t)address, 4711);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
	gpool_close(pool);
}

/*
 * A child may attach itself. Calls that nanomsg does not support in a child are refused, and the child's close does
 * not block.
 */
static void test_child_with_a_pool_of_its_own(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = harness_open(&harness);
	struct gpool_event event = GPOOL_EVENT_INIT;
	int status, result;
	pid_t child;

	(void)state;
	/* The threads of nanomsg run from here on. The end of the previous test's session may be reported late. */
	result = gpool_event_next(pool, 0, &event);
	assert_true(result == 0 || result == -ETIMEDOUT);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct gpool_block block;
		struct gpool *own;

		alarm(1000);
		if (gpool_open(&options, &own) || gpool_alloc(own, 1, NULL, &block))
			_exit(1);
		if (gpool_event_next(own, 0, &event) != -EOPNOTSUPP)
			_exit(2);
		gpool_close(own);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	gpool_close(pool);
}

/* A program that a worker starts must not inherit the pool's memory or the worker's segments. */
static void test_descriptors_close_on_exec(void **state)
{
	struct gpool *pool = harness_open(&harness);
	struct gpool_block block;
	uint32_t stream;
	char target[128], path[64];
	int looked = 0;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 100, NULL, &block), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	for (int fd = 3; fd < 256; fd++) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, target, sizeof(target) - 1);
		if (length < 0)
			continue;
		target[length] = '\0';
		if (strncmp(target, "/memfd:", 7))
			continue;
		looked++;
		if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC))
			fail_msg("descriptor %d (%s) survives exec", fd, target);
	}
	assert_true(looked >= 1);
	gpool_close(pool);
}

/* ---- inspection ---- */

static void test_strerror_and_version(void **state)
{
	static const int codes[] = {0, E2BIG, EACCES, EAGAIN, EBADMSG, EBUSY, ECHILD, EDQUOT, EEXIST, EINVAL, EIO,
		EMFILE, EMSGSIZE, ENODEV, ENOENT, ENOMEM, ENOSPC, ENOTDIR, ENXIO, EOPNOTSUPP, EPERM, EPIPE, EPROTO,
		ESRCH, ESTALE, ETIMEDOUT, EUSERS};
	char version[32];

	(void)state;
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		assert_string_equal(gpool_strerror(codes[i]), gpool_strerror(-codes[i]));
		assert_string_not_equal(gpool_strerror(codes[i]), gpool_strerror(99999));
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(gpool_strerror(codes[i]), gpool_strerror(codes[j]));
	}
	snprintf(version, sizeof(version), "%d.%d.%d", GPOOL_VERSION_MAJOR, GPOOL_VERSION_MINOR, GPOOL_VERSION_PATCH);
	assert_string_equal(gpool_version(), version);
}

static void test_statistics(void **state)
{
	struct gpool *pool = harness_open_calm(&harness);
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	struct gpool_block blocks[300];
	uint64_t timed = 0, refills = 0;

	(void)state;
	for (int i = 0; i < 300; i++)
		assert_int_equal(gpool_alloc(pool, 1, NULL, &blocks[i]), 0);
	assert_int_equal(gpool_pin(pool, &blocks[0]), 0);
	assert_int_equal(gpool_unpin(pool, &blocks[0]), 0);
	assert_int_equal(gpool_free(pool, &blocks[299]), 0);
	assert_int_equal(gpool_pin(pool, &blocks[299]), -ESTALE);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.allocations, 300);
	assert_int_equal(statistics.frees, 1);
	assert_int_equal(statistics.pins, 1);
	assert_int_equal(statistics.unpins, 1);
	assert_int_equal(statistics.stale_pins, 1);
	assert_true(statistics.leased_pages >= 300 && statistics.leased_pages <= PAGES);
	assert_true(statistics.idle_pages <= statistics.leased_pages - 299);
	assert_true(statistics.refills >= 1);
	assert_true(statistics.magazine_hits >= 200);
	for (int i = 0; i < 32; i++) {
		timed += statistics.allocation_ns[i];
		refills += statistics.refill_ns[i];
	}
	assert_int_equal(timed, 2); /* the first and the 257th allocation */
	assert_int_equal(refills, statistics.refills);
	gpool_close(pool);
}

static void test_event_of_an_eviction(void **state)
{
	struct gpool *pool = harness_open(&harness);
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct gpool_block block;
	int error = -ETIMEDOUT;

	(void)state;
	assert_int_equal(gpool_event_next(pool, -2, &event), -EINVAL);
	/* The subscription takes effect with a delay and misses earlier events: evict until an event arrives. */
	for (int tries = 0; tries < 600 && error; tries++) {
		assert_int_equal(gpool_alloc(pool, 3, NULL, &block), 0);
		assert_int_equal(gpool_unpin(pool, &block), 0);
		assert_true(harness_evict(&harness, gpool_session(pool), 1000) >= 3);
		do
			error = gpool_event_next(pool, 100, &event);
		while (!error && event.kind != GPOOL_EVENT_EVICTION);
	}
	assert_int_equal(error, 0);
	assert_string_equal(event.pool, "p0");
	assert_true(event.value >= 3);
	assert_true(event.time_ms > UINT64_C(1577836800000));
	gpool_close(pool);
}

static void test_requests_and_their_errors(void **state)
{
	struct gpool_options options = harness_options(&harness);
	const struct msg_evict_request evict = {.pages = 1};
	const struct msg_version_request version = {0};
	struct msg_version_reply reply;
	static uint8_t buffer[MSG_BYTES_MAX], answer[MSG_BYTES_MAX];
	char text[512];
	struct gpool *pool;
	int length;

	(void)state;
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &pool), 0);
	length = msg_encode_version_request(&version, 0, NULL, buffer, sizeof(buffer));
	length = pool_request(pool, buffer, (size_t)length, answer, sizeof(answer), AWAIT_MS, text);
	assert_true(length > 0);
	assert_int_equal(msg_decode_version_reply(&reply, answer, (size_t)length), 0);
	assert_int_equal(reply.layout_version, POOL_LAYOUT_VERSION);
	/* An observer may not evict. */
	length = msg_encode_evict_request(&evict, 0, NULL, buffer, sizeof(buffer));
	length = pool_request(pool, buffer, (size_t)length, answer, sizeof(answer), AWAIT_MS, text);
	assert_true(length == -EPERM || length == -EACCES);
	assert_true(text[0] != '\0');
	length = msg_encode_version_request(&version, 0, NULL, buffer, sizeof(buffer));
	assert_int_equal(pool_request(pool, buffer, (size_t)length, answer, 8, AWAIT_MS, NULL), -EMSGSIZE);
	assert_ptr_equal(pool_view(pool)->header->magic, POOL_MAGIC);
	gpool_close(pool);
}

#define TEST(name) cmocka_unit_test_teardown(name, all_is_free)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_open_defaults),
		TEST(test_open_by_name),
		TEST(test_reserved_pages),
		TEST(test_open_refuses_bad_options),
		TEST(test_open_without_an_agent),
		TEST(test_open_without_the_device),
		TEST(test_open_when_the_back_end_fails),
		TEST(test_open_at_the_limits),
		TEST(test_sessions_limit),
		TEST(test_open_as_a_stranger),
		TEST(test_observer_has_no_pages),
		TEST(test_close_returns_everything),
		TEST(test_agent_disappears),
		TEST(test_fork),
		TEST(test_child_with_a_pool_of_its_own),
		TEST(test_descriptors_close_on_exec),
		TEST(test_strerror_and_version),
		TEST(test_statistics),
		TEST(test_event_of_an_eviction),
		TEST(test_requests_and_their_errors),
	};
	int failed;

	harness_start(&harness, (const char *const[]){"--pool", HARNESS_POOL, "--pool", SECOND_POOL, NULL});
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed;
}
