/*
 * test_objects.c - named objects between real processes: the version that a name refers to at any time, the right to
 * write, and lifetimes.
 *
 * One gpoold serves a pool of 4,096 pages of 512 KB. Writers and readers are separate processes where that matters, and
 * report their progress through a pipe. After each test the agent checks the invariants of the pool, and all pages must
 * be free again.
 *
 * Requirements: S5.
 */
#include "client/core/pool.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/manifest.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 4096, PAGE_BYTES = 512 * 1024, WAIT_MS = AWAIT_MS };

static struct harness harness;
static struct gpool *pool;

/* ---- fixture ---- */

static int attach(void **state)
{
	(void)state;
	alarm(1000);
	pool = harness_open_calm(&harness);
	return 0;
}

/* Wait until the agent has noticed the end of a process and freed its pages. */
static bool await_free(uint32_t pages)
{
	for (int i = 0; i < AWAIT_TRIES; i++) {
		if (harness_free_pages(&harness) == pages)
			return true;
		poll(NULL, 0, AWAIT_STEP_MS);
	}
	fprintf(stderr, "%u pages are free\n", harness_free_pages(&harness));
	return false;
}

static int detach(void **state)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t findings, cursor = 0;

	(void)state;
	while (gpool_object_next(pool, &cursor, &info) == 0)
		if (info.state == GPOOL_OBJECT_CURRENT)
			gpool_object_delete(pool, info.name, 0);
	findings = harness_check(&harness);
	gpool_close(pool);
	pool = NULL;
	findings += harness_check(&harness);
	alarm(0);
	return findings || !await_free(PAGES) ? -1 : 0;
}

/* ---- objects ---- */

static struct gpool_object *create_as(struct gpool *in, const char *name, uint32_t memory_class)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object = NULL;

	options.memory_class = memory_class;
	assert_int_equal(gpool_object_create(in, name, &options, &object), 0);
	return object;
}

static volatile uint64_t *words_of(struct gpool_object *object, uint32_t index, uint64_t *count)
{
	uint64_t address = 0, bytes = 0;

	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	*count = bytes / 8;
	return (volatile uint64_t *)(uintptr_t)address;
}

/* Write the first and the last word of each page. */
static void fill(struct gpool_object *object, uint32_t index, uint64_t value)
{
	uint64_t count;
	volatile uint64_t *at = words_of(object, index, &count);

	for (uint64_t i = 0; i < count; i += PAGE_BYTES / 8) {
		at[i] = value + i;
		at[i + PAGE_BYTES / 8 - 1] = ~(value + i);
	}
}

static bool filled(struct gpool_object *object, uint32_t index, uint64_t value)
{
	uint64_t count;
	volatile uint64_t *at = words_of(object, index, &count);

	for (uint64_t i = 0; i < count; i += PAGE_BYTES / 8)
		if (at[i] != value + i || at[i + PAGE_BYTES / 8 - 1] != ~(value + i))
			return false;
	return true;
}

static uint32_t add(struct gpool_object *object, uint32_t pages, uint64_t value)
{
	uint32_t index = UINT32_MAX;

	assert_int_equal(gpool_object_alloc(object, pages, NULL, &index), 0);
	fill(object, index, value);
	return index;
}

/* Publish one allocation with this content. The caller owns the handle. */
static struct gpool_object *publish_as(
	struct gpool *in, const char *name, uint32_t memory_class, uint32_t pages, uint64_t value)
{
	struct gpool_object *object = create_as(in, name, memory_class);
	uint64_t version = 0;

	add(object, pages, value);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_true(version > 0);
	return object;
}

static uint64_t publish_and_close(
	struct gpool *in, const char *name, uint32_t memory_class, uint32_t pages, uint64_t value)
{
	struct gpool_object *object = publish_as(in, name, memory_class, pages, value);
	struct gpool_object_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_object_info(object, &info), 0);
	assert_int_equal(gpool_object_close(object), 0);
	return info.version;
}

static struct gpool_object *open_named(struct gpool *in, const char *name)
{
	struct gpool_object *object = NULL;

	assert_int_equal(gpool_object_open(in, name, NULL, &object), 0);
	return object;
}

static int try_open(const char *name, uint64_t version, uint64_t hash)
{
	struct gpool_object_open_options options = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object;
	int error;

	options.version = version;
	options.layout_hash = hash;
	error = gpool_object_open(pool, name, &options, &object);
	if (!error)
		assert_int_equal(gpool_object_close(object), 0);
	return error;
}

static uint32_t versions_of(const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		count += !strcmp(info.name, name);
	return count;
}

/* ---- processes ---- */

struct process {
	pid_t pid;
	int say, hear; /* a pipe to the process, a pipe from it */
};

static void tell(int fd)
{
	if (write(fd, "", 1) != 1)
		_exit(99);
}

static void await(int fd)
{
	struct pollfd look = {.fd = fd, .events = POLLIN};
	char byte;

	if (poll(&look, 1, WAIT_MS) != 1 || read(fd, &byte, 1) != 1)
		_exit(98);
}

/* Start a worker process, which ends when `run` returns. */
static struct process spawn(void (*run)(struct gpool *own, int hear, int say))
{
	int to[2], from[2];
	pid_t parent = getpid(), pid;

	assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(97);
		/* A failed assertion ends this process, so that it does not continue with the parent's tests. */
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		signal(SIGSEGV, SIG_DFL);
		close(to[1]);
		close(from[0]);
		run(harness_open(&harness), to[0], from[1]);
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	return (struct process){pid, to[1], from[0]};
}

static void hear(const struct process *process)
{
	struct pollfd look = {.fd = process->hear, .events = POLLIN};
	char byte;

	assert_int_equal(poll(&look, 1, WAIT_MS), 1);
	assert_int_equal(read(process->hear, &byte, 1), 1);
}

static int end_of(const struct process *process)
{
	int status = -1;

	assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
	close(process->say);
	close(process->hear);
	return status;
}

static void kill_it(const struct process *process)
{
	assert_true(process->pid > 0);
	kill(process->pid, SIGKILL);
	end_of(process);
}

/* ---- lifetime of published objects ---- */

static void model_writer(struct gpool *own, int in, int out)
{
	struct gpool_object *object = create_as(own, "model", GPOOL_OBJECT_IMMUTABLE);
	uint64_t version;

	add(object, 1, 100);
	add(object, 7, 200);
	add(object, 2, 300);
	assert_int_equal(gpool_object_set(object, "shape", "old", 3), 0);
	assert_int_equal(gpool_object_set(object, "layers", &(uint32_t){48}, 4), 0);
	assert_int_equal(gpool_object_set(object, "shape", "4096x11008", 10), 0);
	assert_int_equal(gpool_object_set(object, "empty", NULL, 0), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	tell(out);
	await(in);
}

static void test_outlives_its_writer(void **state)
{
	struct process writer = spawn(model_writer);
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *object;
	const void *value;
	const char *key;
	uint64_t address, bytes;
	size_t length;

	(void)state;
	hear(&writer);
	assert_int_equal(versions_of("model"), 1);
	kill_it(&writer);
	object = open_named(pool, "model");
	assert_true(filled(object, 0, 100) && filled(object, 1, 200) && filled(object, 2, 300));
	assert_int_equal(gpool_object_address(object, 1, &address, &bytes), 0);
	assert_int_equal(bytes, 7 * PAGE_BYTES);
	assert_int_equal(gpool_object_address(object, 3, &address, &bytes), -EINVAL);
	assert_int_equal(gpool_object_get(object, "shape", &value, &length), 0);
	assert_int_equal(length, 10);
	assert_memory_equal(value, "4096x11008", 10);
	assert_int_equal(gpool_object_get(object, "shap", &value, &length), -ENOENT);
	assert_int_equal(gpool_object_entry(object, 0, &key, &value, &length), 0);
	assert_string_equal(key, "empty");
	assert_int_equal(length, 0);
	assert_int_equal(gpool_object_entry(object, 3, &key, &value, &length), -ENOENT);
	assert_int_equal(gpool_object_info(object, &info), 0);
	assert_int_equal(info.pages, 10);
	assert_int_equal(info.allocations, 3);
	assert_int_equal(info.pid, writer.pid);
	assert_int_equal(info.writer, 0);
	assert_string_equal(info.name, "model");
	assert_int_equal(try_open("model", info.version, info.layout_hash), 0);
	assert_int_equal(try_open("model", info.version, info.layout_hash ^ 1), -EPROTO);
	assert_int_equal(try_open("model", info.version + 1, 0), -ENOENT);
	assert_int_equal(try_open("other", 0, 0), -ENOENT);
	AWAIT(gpool_object_info(object, &info) == 0 && info.readers == 1);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(gpool_object_delete(pool, "model", 0), 0);
	assert_int_equal(gpool_object_delete(pool, "model", 0), -ENOENT);
	assert_int_equal(versions_of("model"), 0);
}

/* Metadata in another order and on other pages has the same layout hash. Another size or value changes the hash. */
static void test_layout_hash(void **state)
{
	static const char *const orders[2][2] = {{"a", "b"}, {"b", "a"}};
	struct gpool_object_info info = {.size = sizeof(info)};
	uint64_t hashes[4], version;

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct gpool_object *object = create_as(pool, "hashed", GPOOL_OBJECT_IMMUTABLE);

		add(object, i == 2 ? 3 : 2, (uint64_t)i);
		assert_int_equal(gpool_object_set(object, orders[i % 2][0], orders[i % 2][0], 1), 0);
		assert_int_equal(gpool_object_set(object, orders[i % 2][1], i == 3 ? "x" : orders[i % 2][1], 1), 0);
		assert_int_equal(gpool_object_publish(object, &version), 0);
		assert_int_equal(gpool_object_info(object, &info), 0);
		hashes[i] = info.layout_hash;
		assert_int_equal(gpool_object_close(object), 0);
	}
	assert_true(
		hashes[0] == hashes[1] && hashes[0] != hashes[2] && hashes[0] != hashes[3] && hashes[2] != hashes[3]);
	assert_int_equal(versions_of("hashed"), 1);
}

static void rewriter(struct gpool *own, int in, int out)
{
	await(in);
	for (uint64_t i = 1; i <= 20; i++)
		publish_and_close(own, "weights", GPOOL_OBJECT_IMMUTABLE, 4, i * 1000000);
	tell(out);
	await(in);
}

static void test_reader_keeps_its_version(void **state)
{
	struct process writer = spawn(rewriter);
	struct gpool_object_info old = {.size = sizeof(old)}, new = {.size = sizeof(new)};
	struct gpool_object *kept, *now;

	(void)state;
	publish_and_close(pool, "weights", GPOOL_OBJECT_IMMUTABLE, 4, 1000000);
	kept = open_named(pool, "weights");
	assert_int_equal(gpool_object_info(kept, &old), 0);
	tell(writer.say);
	/* Versions that are opened during the publications are complete: all content belongs to one version. */
	for (struct pollfd look = {.fd = writer.hear, .events = POLLIN}; !poll(&look, 1, 0);) {
		uint64_t count, value;

		now = open_named(pool, "weights");
		value = words_of(now, 0, &count)[0];
		assert_true(value % 1000000 == 0 && filled(now, 0, value));
		assert_true(filled(kept, 0, 1000000));
		assert_int_equal(gpool_object_close(now), 0);
	}
	hear(&writer);
	now = open_named(pool, "weights");
	assert_true(filled(now, 0, 20000000));
	assert_true(filled(kept, 0, 1000000));
	assert_int_equal(gpool_object_info(now, &new), 0);
	assert_int_equal(new.version, old.version + 20);
	assert_int_equal(gpool_object_info(kept, &old), 0);
	assert_int_equal(old.state, GPOOL_OBJECT_OLD);
	assert_int_equal(versions_of("weights"), 2);
	/* An old version may be opened by its number while it is in use. */
	assert_int_equal(try_open("weights", old.version, 0), 0);
	assert_int_equal(gpool_object_close(kept), 0);
	assert_int_equal(versions_of("weights"), 1);
	assert_int_equal(try_open("weights", old.version, 0), -ENOENT);
	assert_int_equal(gpool_object_close(now), 0);
	kill_it(&writer);
}

/* ---- deaths ---- */

static void builder(struct gpool *own, int in, int out)
{
	struct gpool_object *object = create_as(own, "never", GPOOL_OBJECT_IMMUTABLE);

	for (uint64_t i = 0; i < 50; i++)
		add(object, 3, i);
	tell(out);
	await(in);
}

static void test_unpublished_work_vanishes(void **state)
{
	struct process writer = spawn(builder);
	uint32_t before;

	(void)state;
	hear(&writer);
	assert_int_equal(versions_of("never"), 0);
	assert_int_equal(harness_check(&harness), 0);
	before = harness_free_pages(&harness);
	kill_it(&writer);
	AWAIT(harness_free_pages(&harness) >= before + 150);
	assert_int_equal(try_open("never", 0, 0), -ENOENT);
}

static void publisher(struct gpool *own, int in, int out)
{
	struct gpool_object *object = create_as(own, "maybe", GPOOL_OBJECT_IMMUTABLE);
	uint64_t version;

	for (uint64_t i = 0; i < 100; i++)
		add(object, 2, i);
	tell(out);
	await(in);
	gpool_object_publish(object, &version);
	tell(out);
	await(in);
}

/* Kill a writer at any instruction around a publication. The object must be complete, or not exist. */
static void test_killed_around_publish(void **state)
{
	uint32_t published = 0, vanished = 0;

	(void)state;
	for (int round = 0; round < 60; round++) {
		struct process writer = spawn(publisher);
		struct gpool_object *object;

		hear(&writer);
		tell(writer.say);
		/* The writer is killed at times from before its first instruction until after the reply. */
		if (round % 20 == 19)
			hear(&writer);
		else
			for (volatile int spin = 0; spin < round * 20000; spin++)
				;
		kill_it(&writer);
		if (gpool_object_open(pool, "maybe", NULL, &object)) {
			vanished++;
		} else {
			published++;
			for (uint32_t i = 0; i < 100; i++)
				assert_true(filled(object, i, i));
			assert_int_equal(gpool_object_close(object), 0);
			assert_int_equal(gpool_object_delete(pool, "maybe", 0), 0);
		}
		assert_int_equal(harness_check(&harness), 0);
	}
	print_message("published %u times, vanished %u times\n", published, vanished);
	assert_true(published >= 3);
}

static void reader(struct gpool *own, int in, int out)
{
	struct gpool_object *object = open_named(own, "read");

	if (!filled(object, 0, 5))
		_exit(1);
	tell(out);
	await(in);
}

static void test_objects_of_dead_readers_are_closed(void **state)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct process readers[3];
	uint32_t cursor;

	(void)state;
	publish_and_close(pool, "read", GPOOL_OBJECT_IMMUTABLE, 8, 5);
	for (int i = 0; i < 3; i++) {
		readers[i] = spawn(reader);
		hear(&readers[i]);
	}
	cursor = 0;
	assert_int_equal(gpool_object_next(pool, &cursor, &info), 0);
	assert_int_equal(info.readers, 3);
	assert_int_equal(gpool_object_delete(pool, "read", 0), 0);
	assert_int_equal(try_open("read", 0, 0), -ENOENT);
	assert_int_equal(versions_of("read"), 1);
	for (int i = 0; i < 3; i++)
		kill_it(&readers[i]);
	AWAIT(versions_of("read") == 0);
}

static void test_deleted_while_mapped(void **state)
{
	struct gpool_object *object;
	uint32_t before;

	(void)state;
	publish_and_close(pool, "gone", GPOOL_OBJECT_IMMUTABLE, 16, 77);
	object = open_named(pool, "gone");
	assert_int_equal(gpool_object_delete(pool, "gone", 12345), -ESTALE);
	assert_int_equal(gpool_object_delete(pool, "gone", 0), 0);
	assert_int_equal(try_open("gone", 0, 0), -ENOENT);
	/* The name can be used again while the old object is still read. */
	publish_and_close(pool, "gone", GPOOL_OBJECT_IMMUTABLE, 1, 78);
	assert_true(filled(object, 0, 77));
	before = harness_free_pages(&harness);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(harness_free_pages(&harness), before + 16);
	assert_int_equal(try_open("gone", 0, 0), 0);
}

/* ---- versions ---- */

static int try_publish(struct gpool *in, uint64_t expect, uint64_t *version)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	int error;

	options.expect_version = expect;
	assert_int_equal(gpool_object_create(in, "expected", &options, &object), 0);
	add(object, 2, 9);
	error = gpool_object_publish(object, version);
	/* A refused publication changes nothing: the pages are writable. */
	if (error)
		fill(object, 0, 10);
	assert_int_equal(gpool_object_close(object), 0);
	return error;
}

static void test_expected_version(void **state)
{
	uint64_t first = 0, second = 0, none = 0;

	(void)state;
	assert_int_equal(try_publish(pool, 1234, &none), -ESTALE);
	assert_int_equal(try_publish(pool, GPOOL_OBJECT_NONE, &first), 0);
	assert_int_equal(try_publish(pool, GPOOL_OBJECT_NONE, &none), -ESTALE);
	assert_int_equal(try_publish(pool, first, &second), 0);
	assert_int_equal(try_publish(pool, first, &none), -ESTALE);
	assert_true(second > first && !none);
	assert_int_equal(versions_of("expected"), 1);
}

static void second_writer(struct gpool *own, int in, int out)
{
	struct gpool_object *object = create_as(own, "two", GPOOL_OBJECT_IMMUTABLE);
	uint64_t version;

	add(object, 3, 2222);
	tell(out);
	await(in);
	if (gpool_object_publish(object, &version))
		_exit(1);
	tell(out);
	await(in);
}

static void test_two_writers(void **state)
{
	struct process other = spawn(second_writer);
	struct gpool_object *mine = create_as(pool, "two", GPOOL_OBJECT_IMMUTABLE), *object;
	uint64_t version;

	(void)state;
	add(mine, 3, 1111);
	hear(&other);
	assert_int_equal(gpool_object_publish(mine, &version), 0);
	object = open_named(pool, "two");
	assert_true(filled(object, 0, 1111));
	assert_int_equal(gpool_object_close(object), 0);
	tell(other.say);
	hear(&other);
	object = open_named(pool, "two");
	assert_true(filled(object, 0, 2222) && filled(mine, 0, 1111));
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(mine), 0);
	kill_it(&other);
}

/* ---- access ---- */

/* If handles have four pages, the object fills some of its handles, and not others. */
static void write_published(struct gpool *own, int in, int out)
{
	struct gpool_object *object = publish_as(own, "sealed", GPOOL_OBJECT_IMMUTABLE, 10, 1);

	(void)in;
	tell(out);
	if (filled(object, 0, 1))
		fill(object, 0, 2);
}

static void write_opened(struct gpool *own, int in, int out)
{
	struct gpool_object *object = open_named(own, "sealed");

	(void)in;
	tell(out);
	if (filled(object, 0, 1))
		fill(object, 0, 2);
}

static void test_read_only(void **state)
{
	struct process writer = spawn(write_published), other;
	int status;

	(void)state;
	hear(&writer);
	status = end_of(&writer);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	other = spawn(write_opened);
	hear(&other);
	status = end_of(&other);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* Pages of a published and deleted object become ordinary pages, which are writable even where they were read-only. */
static void test_freed_pages_are_writable(void **state)
{
	struct gpool_object *object = create_as(pool, "back", GPOOL_OBJECT_IMMUTABLE);
	struct gpool_block block;
	uint64_t version, address;

	(void)state;
	for (uint32_t i = 0; i < 64; i++)
		add(object, 1 + i % 3, i);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_delete(pool, "back", version), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		*(volatile uint64_t *)(uintptr_t)(address + i * (uint64_t)PAGE_BYTES) = i;
	assert_int_equal(gpool_free(pool, &block), 0);
}

/* GPU work that writes to an object must finish before the object is published. */
static void test_busy(void **state)
{
	struct gpool_object *object = create_as(pool, "busy", GPOOL_OBJECT_IMMUTABLE);
	uint64_t address, bytes, version;
	struct gpool_fence gate, done;
	uint32_t manual, stream;

	(void)state;
	add(object, 8, 3);
	assert_int_equal(gpool_object_address(object, 0, &address, &bytes), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_fence_record(pool, manual, &gate), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, gate), 0);
	assert_int_equal(gpool_fill(pool, stream, address, 7, bytes), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &done), 0);
	assert_int_equal(gpool_object_publish(object, &version), -EBUSY);
	assert_int_equal(gpool_fence_signal(pool, gate), 0);
	assert_int_equal(gpool_fence_wait(pool, done, WAIT_MS), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(*(volatile uint32_t *)(uintptr_t)address, 7);
	assert_int_equal(gpool_object_close(object), 0);
	gpool_stream_close(pool, stream);
	gpool_stream_close(pool, manual);
}

static void mutable_reader(struct gpool *own, int in, int out)
{
	struct gpool_object *object = open_named(own, "state");

	tell(out);
	await(in);
	if (!filled(object, 0, 2))
		_exit(1);
	tell(out);
	await(in);
	fill(object, 0, 3); /* the view ends here */
}

static void test_mutable(void **state)
{
	struct gpool_object_open_options adopt = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object = publish_as(pool, "state", GPOOL_OBJECT_MUTABLE, 4, 1), *other;
	struct gpool_object_info info = {.size = sizeof(info)};
	struct process reading = spawn(mutable_reader);
	int status;

	(void)state;
	assert_int_equal(gpool_object_info(object, &info), 0);
	assert_int_equal(info.writer, gpool_session(pool));
	hear(&reading);
	fill(object, 0, 2);
	tell(reading.say);
	hear(&reading);
	tell(reading.say);
	status = end_of(&reading);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	assert_true(filled(object, 0, 2));
	/* A session without the role cannot adopt. */
	adopt.flags = GPOOL_OBJECT_ADOPT;
	assert_int_equal(gpool_object_open(pool, "state", &adopt, &other), -EINVAL);
	adopt.role = "trainer";
	assert_int_equal(gpool_object_open(pool, "state", &adopt, &other), -ESTALE);
	assert_int_equal(gpool_object_close(object), 0);
	other = open_named(pool, "state");
	assert_true(filled(other, 0, 2));
	assert_int_equal(gpool_object_info(other, &info), 0);
	assert_int_equal(info.writer, 0);
	assert_int_equal(gpool_object_close(other), 0);
}

static void trainer(struct gpool *own, int in, int out)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	struct gpool_role role = GPOOL_ROLE_INIT;
	uint64_t version;

	if (gpool_role_acquire(own, "trainer", 0, &role))
		_exit(1);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.role = "trainer";
	options.role_token = role.token;
	assert_int_equal(gpool_object_create(own, "trained", &options, &object), 0);
	add(object, 3, 1);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	tell(out);
	await(in);
}

/*
 * The successor in a dead writer's role may continue to write. No other session may, and there are never two writers.
 */
static void test_adopted_by_its_role(void **state)
{
	struct gpool_object_open_options adopt = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object_info info = {.size = sizeof(info)};
	struct process writer = spawn(trainer);
	struct gpool *other = harness_open(&harness);
	struct gpool_object *object, *again;
	struct gpool_role role = GPOOL_ROLE_INIT, unrelated = GPOOL_ROLE_INIT;

	(void)state;
	hear(&writer);
	assert_int_equal(gpool_role_acquire(other, "unrelated", 0, &unrelated), 0);
	adopt.flags = GPOOL_OBJECT_ADOPT;
	adopt.role = "unrelated";
	adopt.role_token = unrelated.token;
	assert_int_equal(gpool_object_open(other, "trained", &adopt, &object), -EPERM);
	kill_it(&writer);
	assert_int_equal(gpool_role_acquire(pool, "trainer", WAIT_MS, &role), 0);
	adopt.role = "trainer";
	adopt.role_token = role.token - 1;
	assert_int_equal(gpool_object_open(pool, "trained", &adopt, &object), -ESTALE);
	adopt.role_token = role.token;
	assert_int_equal(gpool_object_open(other, "trained", &adopt, &object), -ESTALE);
	assert_int_equal(gpool_object_open(pool, "trained", &adopt, &object), 0);
	assert_true(filled(object, 0, 1));
	fill(object, 0, 2);
	assert_int_equal(gpool_object_info(object, &info), 0);
	assert_int_equal(info.writer, gpool_session(pool));
	/* The role may be passed on. The writer stays the writer until it closes the object. */
	assert_int_equal(gpool_role_release(pool, &role), 0);
	assert_int_equal(gpool_role_acquire(other, "trainer", 0, &role), 0);
	adopt.role_token = role.token;
	assert_int_equal(gpool_object_open(other, "trained", &adopt, &again), -EBUSY);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_open(other, "trained", &adopt, &again), 0);
	assert_true(filled(again, 0, 2));
	fill(again, 0, 3);
	gpool_close(other);
}

static void test_stale_role(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;

	(void)state;
	options.role = "engine";
	options.role_token = 1;
	assert_int_equal(gpool_object_create(pool, "fenced", &options, &object), 0);
	add(object, 1, 1);
	assert_int_equal(gpool_object_publish(object, &version), -ESTALE);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- eviction ---- */

static void test_ephemeral_is_evicted(void **state)
{
	struct gpool_object *open;
	struct gpool_block block;

	(void)state;
	publish_and_close(pool, "cache-1", GPOOL_OBJECT_EPHEMERAL, 100, 1);
	publish_and_close(pool, "cache-2", GPOOL_OBJECT_EPHEMERAL, 100, 2);
	publish_and_close(pool, "cache-3", GPOOL_OBJECT_EPHEMERAL, 100, 3);
	publish_and_close(pool, "kept", GPOOL_OBJECT_IMMUTABLE, 100, 4);
	open = open_named(pool, "cache-1");
	/* The request exceeds the pages that an eviction of all objects could free, so no object is evicted. */
	assert_int_equal(gpool_alloc(pool, PAGES - 199, NULL, &block), -ENOSPC);
	assert_int_equal(versions_of("cache-2") + versions_of("cache-3"), 2);
	/*
	 * One eviction is sufficient: that of the least recently used object. One page stays free, because a full pool
	 * would start an eviction by its watermarks.
	 */
	assert_int_equal(gpool_alloc(pool, PAGES - 301, NULL, &block), 0);
	assert_int_equal(versions_of("cache-2"), 0);
	assert_int_equal(versions_of("cache-3"), 1);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_alloc(pool, PAGES - 201, NULL, &block), 0);
	assert_int_equal(versions_of("cache-3"), 0);
	assert_int_equal(versions_of("cache-1") + versions_of("kept"), 2);
	assert_true(filled(open, 0, 1));
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_object_close(open), 0);
}

/* For adjacent pages, the agent evicts objects where the fewest are affected. */
static void test_ephemeral_makes_room_in_a_row(void **state)
{
	struct gpool_alloc_options row = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	char name[16];
	uint32_t left = 0;

	(void)state;
	for (int i = 0; i < 36; i++) {
		snprintf(name, sizeof(name), "row-%d", i);
		publish_and_close(pool, name, GPOOL_OBJECT_EPHEMERAL, 100, (uint64_t)i);
	}
	row.flags = GPOOL_ALLOC_CONTIGUOUS;
	assert_int_equal(gpool_alloc(pool, 700, &row, &block), 0);
	for (int i = 0; i < 36; i++) {
		snprintf(name, sizeof(name), "row-%d", i);
		left += versions_of(name);
	}
	print_message("%u of 36 are left\n", left);
	assert_true(left >= 28 && left < 36);
	assert_int_equal(gpool_free(pool, &block), 0);
	row.flags |= GPOOL_ALLOC_NO_EVICT;
	assert_int_equal(gpool_alloc(pool, 1000, &row, &block), -ENOSPC);
}

/* A tenant at its limit loses its own objects first. */
static void test_ephemeral_of_a_full_tenant(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *other;
	struct gpool_block block;

	(void)state;
	options.tenant = "other";
	assert_int_equal(gpool_open(&options, &other), 0);
	publish_and_close(pool, "of-another", GPOOL_OBJECT_EPHEMERAL, 200, 1);
	publish_and_close(other, "own", GPOOL_OBJECT_EPHEMERAL, 200, 1);
	publish_and_close(other, "own-kept", GPOOL_OBJECT_IMMUTABLE, 50, 1);
	assert_int_equal(gpool_alloc(other, 251, NULL, &block), -EDQUOT);
	assert_int_equal(versions_of("own"), 1);
	assert_int_equal(gpool_alloc(other, 250, NULL, &block), 0);
	assert_int_equal(versions_of("own"), 0);
	assert_int_equal(versions_of("of-another") + versions_of("own-kept"), 2);
	/* Published objects still count for the tenant when its session ends. */
	gpool_close(other);
	assert_int_equal(gpool_open(&options, &other), 0);
	assert_int_equal(gpool_alloc(other, 251, NULL, &block), -EDQUOT);
	assert_int_equal(gpool_object_delete(other, "own-kept", 0), 0);
	assert_int_equal(gpool_alloc(other, 300, NULL, &block), 0);
	gpool_close(other);
}

/* ---- size ---- */

enum { MANY_ALLOCATIONS = 3500, MANY_ENTRIES = 100000, MANY_REQUESTS = 40 };

static void many_writer(struct gpool *own, int in, int out)
{
	struct gpool_object *object = create_as(own, "many", GPOOL_OBJECT_IMMUTABLE);
	struct gpool_stats before = {.size = sizeof(before)};
	char key[32], value[64];
	uint64_t version;

	for (uint32_t i = 0; i < MANY_ALLOCATIONS; i++)
		add(object, 1, i);
	for (uint32_t i = 0; i < MANY_ENTRIES; i++) {
		snprintf(key, sizeof(key), "tensor.%u", (i * 7919u) % MANY_ENTRIES);
		snprintf(value, sizeof(value), "entry %u", (i * 7919u) % MANY_ENTRIES);
		if (gpool_object_set(object, key, value, strlen(value) + 1))
			_exit(1);
	}
	if (gpool_object_publish(object, &version))
		_exit(1);
	tell(out);
	await(in);
}

static void test_many(void **state)
{
	struct process writer = spawn(many_writer);
	struct gpool_object *object;
	const void *value;
	uint64_t asked;
	size_t length;
	char key[32], expected[64];

	(void)state;
	hear(&writer);
	kill_it(&writer);
	asked = pool->attach_sequence;
	object = open_named(pool, "many");
	/*
	 * On `host`, the number of requests does not depend on the number of allocations: one for the object, and one
	 * for the memory of all pages. On `cuda`, each page has a descriptor.
	 */
	print_message("%llu requests\n", (unsigned long long)(pool->attach_sequence - asked));
	assert_true(pool->attach_sequence - asked <= (strcmp(harness_backend(), "host") ? MANY_REQUESTS : 2));
	for (uint32_t i = 0; i < MANY_ALLOCATIONS; i++)
		assert_true(filled(object, i, i));
	for (uint32_t i = 0; i < MANY_ENTRIES; i += 13) {
		snprintf(key, sizeof(key), "tensor.%u", i);
		snprintf(expected, sizeof(expected), "entry %u", i);
		assert_int_equal(gpool_object_get(object, key, &value, &length), 0);
		assert_string_equal(value, expected);
	}
	assert_int_equal(gpool_object_close(object), 0);
}

/* The pages are not adjacent, but the addresses are contiguous for writer and reader. */
static void test_scattered(void **state)
{
	static struct gpool_block blocks[PAGES];
	struct gpool_object *object, *other;
	uint64_t version;

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_alloc(pool, 1, NULL, &blocks[i]), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		if (blocks[i].page % 2)
			assert_int_equal(gpool_free(pool, &blocks[i]), 0);
	object = create_as(pool, "pieces", GPOOL_OBJECT_IMMUTABLE);
	add(object, 5, 500);
	add(object, 300, 600);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_true(filled(object, 0, 500) && filled(object, 1, 600));
	other = open_named(pool, "pieces");
	assert_true(filled(other, 0, 500) && filled(other, 1, 600));
	assert_int_equal(gpool_object_close(object), 0);
	assert_true(filled(other, 1, 600));
	assert_int_equal(gpool_object_delete(pool, "pieces", 0), 0);
	assert_int_equal(gpool_object_close(other), 0);
	/* After a refusal and an abort, the scattered block is a block again, and then idle. */
	object = create_as(pool, "pieces", GPOOL_OBJECT_IMMUTABLE);
	object = (gpool_object_abort(object), create_as(pool, "pieces", GPOOL_OBJECT_IMMUTABLE));
	add(object, 5, 500);
	gpool_object_abort(object);
	for (uint32_t i = 0; i < PAGES; i++)
		if (blocks[i].page % 2 == 0)
			assert_int_equal(gpool_free(pool, &blocks[i]), 0);
}

/* ---- rights ---- */

static void test_right_to_delete(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *stranger, *admin;

	(void)state;
	publish_and_close(pool, "ours", GPOOL_OBJECT_IMMUTABLE, 1, 1);
	options.tenant = "other";
	assert_int_equal(gpool_open(&options, &stranger), 0);
	assert_int_equal(gpool_object_delete(stranger, "ours", 0), -EPERM);
	gpool_close(stranger);
	options.tenant = NULL;
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &admin), 0);
	assert_int_equal(gpool_object_delete(admin, "ours", 0), -EPERM);
	gpool_close(admin);
	options.flags = GPOOL_OPEN_ADMIN;
	assert_int_equal(gpool_open(&options, &admin), 0);
	assert_int_equal(gpool_object_delete(admin, "ours", 0), 0);
	gpool_close(admin);
}

/* All sessions see the name of a private object. Only sessions of its tenant can open it. */
static void test_private(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_object_options private = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object, *other;
	struct gpool *stranger;
	uint64_t version;

	(void)state;
	private.flags = GPOOL_OBJECT_PRIVATE;
	assert_int_equal(gpool_object_create(pool, "ours", &private, &object), 0);
	add(object, 1, 7);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	publish_and_close(pool, "everybody's", GPOOL_OBJECT_IMMUTABLE, 1, 1);
	options.tenant = "other";
	assert_int_equal(gpool_open(&options, &stranger), 0);
	assert_int_equal(gpool_object_open(stranger, "ours", NULL, &other), -EACCES);
	assert_int_equal(gpool_object_open(stranger, "everybody's", NULL, &other), 0);
	assert_int_equal(gpool_object_close(other), 0);
	gpool_close(stranger);
	options.tenant = NULL;
	assert_int_equal(gpool_open(&options, &stranger), 0);
	assert_int_equal(gpool_object_open(stranger, "ours", NULL, &other), 0);
	assert_true(filled(other, 0, 7));
	assert_int_equal(gpool_object_close(other), 0);
	gpool_close(stranger);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- repeated and false messages, sent on the socket itself ---- */

static int packet_ask(uint8_t *question, int length, int fd, uint8_t *answer, size_t capacity, int *got)
{
	size_t count = 0;

	assert_true(length > 0);
	assert_int_equal(attach_send(pool->socket, question, (size_t)length, &fd, fd >= 0), 0);
	return attach_receive(pool->socket, answer, capacity, got, got ? 1 : 0, &count, WAIT_MS);
}

/* A request that is sent twice gets two replies and is executed once. */
static void test_repeats(void **state)
{
	struct msg_object_open_request open = {.name = "again"};
	struct msg_object_change_request change = {.verb = 2, .name = "again"};
	struct gpool_object_info info = {.size = sizeof(info)};
	uint8_t question[512], first[512], second[512];
	uint32_t cursor = 0;
	int length, fds[2] = {-1, -1};

	(void)state;
	publish_and_close(pool, "again", GPOOL_OBJECT_IMMUTABLE, 1, 1);
	length =
		msg_encode_object_open_request(&open, ++pool->attach_sequence, pool->token, question, sizeof(question));
	for (int i = 0; i < 2; i++)
		assert_true(packet_ask(question, length, -1, i ? second : first, 512, &fds[i]) > 0);
	assert_memory_equal(first, second, MSG_ENVELOPE_BYTES + 16);
	assert_true(fds[0] >= 0 && fds[1] >= 0);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(gpool_object_next(pool, &cursor, &info), 0);
	assert_int_equal(info.readers, 1);
	length = msg_encode_object_change_request(
		&change, ++pool->attach_sequence, pool->token, question, sizeof(question));
	assert_true(packet_ask(question, length, -1, first, sizeof(first), NULL) > 0);
	publish_as(pool, "again", GPOOL_OBJECT_IMMUTABLE, 1, 2);
	/* The request is older than the last one. Nothing waits for its reply, and the new object is kept. */
	assert_int_equal(attach_send(pool->socket, question, (size_t)length, NULL, 0), 0);
	assert_int_equal(try_open("again", 0, 0), 0);
	/*
	 * Repeat the last request, although another object was published under the name in between. The delete applied
	 * to the other version.
	 */
	length = msg_encode_object_change_request(
		&change, ++pool->attach_sequence, pool->token, question, sizeof(question));
	assert_true(packet_ask(question, length, -1, first, sizeof(first), NULL) > 0);
	assert_true(packet_ask(question, length, -1, second, sizeof(second), NULL) > 0);
	assert_memory_equal(first, second, MSG_ENVELOPE_BYTES + 16);
	assert_int_equal(try_open("again", 0, 0), -ENOENT);
}

static int publish_raw(int fd)
{
	struct msg_object_publish_request request = {.name = "lie"};
	struct msg_object_publish_reply reply;
	uint8_t question[512], answer[512];
	int length = msg_encode_object_publish_request(
		&request, ++pool->attach_sequence, pool->token, question, sizeof(question));

	length = packet_ask(question, length, fd, answer, sizeof(answer), NULL);
	assert_true(length > 0);
	assert_int_equal(msg_decode_object_publish_reply(&reply, answer, (size_t)length), 0);
	return reply.error;
}

/* Return a manifest of one page that is correct except for the page's owner. */
static int manifest_of(uint32_t page, uint64_t generation, bool sealed)
{
	struct {
		struct manifest_header header;
		struct manifest_run run;
		uint32_t run_count, fill, size, fill2;
	} m = {
		.header = {.magic = MANIFEST_MAGIC,
			.version = MANIFEST_VERSION,
			.header_bytes = sizeof(m.header),
			.bytes = sizeof(m),
			.page_bytes = PAGE_BYTES,
			.pages = 1,
			.runs = 1,
			.allocations = 1},
		.run = {page, 1, generation},
		.run_count = 1,
		.size = 1,
	};
	struct manifest_layout layout = manifest_layout_of(1, 1, 0);
	int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	m.header.layout_hash = manifest_hash(&m, &layout, sizeof(m), PAGE_BYTES);
	assert_int_equal(write(fd, &m, sizeof(m)), sizeof(m));
	if (sealed)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
	return fd;
}

static void test_false_messages(void **state)
{
	struct gpool *victim = harness_open(&harness);
	struct gpool_block theirs, ours;
	int fd;

	(void)state;
	assert_int_equal(gpool_alloc(victim, 1, NULL, &theirs), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &ours), 0);
	assert_int_equal(publish_raw(-1), -EPROTO);
	fd = manifest_of(theirs.page, page_word_generation(theirs.generation), true);
	assert_int_equal(publish_raw(fd), -ESTALE);
	close(fd);
	fd = manifest_of(ours.page, page_word_generation(ours.generation), false);
	assert_int_equal(publish_raw(fd), -EPROTO);
	close(fd);
	fd = manifest_of(ours.page, page_word_generation(ours.generation) - 1, true);
	assert_int_equal(publish_raw(fd), -ESTALE);
	close(fd);
	fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(publish_raw(fd), -EPROTO);
	close(fd);
	assert_int_equal(gpool_unpin(victim, &theirs), 0);
	assert_int_equal(versions_of("lie"), 0);
	publish_and_close(pool, "lie", GPOOL_OBJECT_IMMUTABLE, 1, 1);
	gpool_close(victim);
}

static void test_arguments(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	char name[129];
	uint64_t version, address, bytes;
	uint32_t index;

	(void)state;
	memset(name, 'n', sizeof(name));
	name[128] = '\0';
	assert_int_equal(gpool_object_create(pool, name, NULL, &object), -EINVAL);
	assert_int_equal(gpool_object_create(pool, "", NULL, &object), -EINVAL);
	assert_int_equal(gpool_object_create(pool, "a\nb", NULL, &object), -EINVAL);
	options.memory_class = 4;
	assert_int_equal(gpool_object_create(pool, "x", &options, &object), -EINVAL);
	options.memory_class = 0;
	options.flags = 1;
	assert_int_equal(gpool_object_create(pool, "x", &options, &object), -EINVAL);
	name[127] = '\0';
	assert_int_equal(gpool_object_create(pool, name, NULL, &object), 0);
	assert_int_equal(gpool_object_publish(object, &version), -EINVAL);
	assert_int_equal(gpool_object_alloc(object, 0, NULL, &index), -EINVAL);
	assert_int_equal(gpool_object_alloc(object, PAGES + 1, NULL, &index), -EINVAL);
	assert_int_equal(gpool_object_address(object, 0, &address, &bytes), -EINVAL);
	assert_int_equal(gpool_object_set(object, "", "x", 1), -EINVAL);
	assert_int_equal(gpool_object_set(object, "k", name, 65 << 20), -EFBIG);
	add(object, 1, 1);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_publish(object, &version), -EINVAL);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), -EINVAL);
	assert_int_equal(gpool_object_set(object, "k", "v", 1), -EINVAL);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(NULL), 0);
	gpool_object_abort(NULL);
}

/* A session joins the second tenant only by name. */
static const char config_text[] =
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"2GiB\"; page_size = \"512KB\"; reserved = \"0 "
	"pages\"; handle_size = \"%s\"; } );\n"
	"tenants = ( { name = \"rest\"; }, { name = \"other\"; users = [ \"1\" ]; limit = \"300 pages\"; } );\n"
	"eviction = { start = 100; stop = 99; };\n";

/*
 * Run the tests once with handles of one page, and once with handles of four pages, which pages of several owners
 * share.
 */
static int run_with(const char *handle_size, const struct CMUnitTest *tests, size_t count)
{
	char path[64];
	const char *const arguments[] = {"--config", path, NULL};
	FILE *file;
	int failed;

	snprintf(path, sizeof(path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(path, "we");
	if (!file || fprintf(file, config_text, handle_size) < 0 || fclose(file))
		return 1;
	harness_start(&harness, arguments);
	failed = _cmocka_run_group_tests(handle_size, tests, count, NULL, NULL);
	if (harness_stop(&harness))
		failed++;
	unlink(path);
	return failed;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, attach, detach)
	const struct CMUnitTest tests[] = {
		TEST(arguments),
		TEST(outlives_its_writer),
		TEST(layout_hash),
		TEST(reader_keeps_its_version),
		TEST(unpublished_work_vanishes),
		TEST(killed_around_publish),
		TEST(objects_of_dead_readers_are_closed),
		TEST(deleted_while_mapped),
		TEST(expected_version),
		TEST(two_writers),
		TEST(read_only),
		TEST(freed_pages_are_writable),
		TEST(busy),
		TEST(mutable),
		TEST(adopted_by_its_role),
		TEST(stale_role),
		TEST(ephemeral_makes_room_in_a_row),
		TEST(ephemeral_of_a_full_tenant),
		TEST(many),
		TEST(right_to_delete),
		TEST(private),
		TEST(repeats),
		TEST(false_messages),
		TEST(scattered),
		TEST(ephemeral_is_evicted),
	};
	size_t count = sizeof(tests) / sizeof(tests[0]);
	int failed = run_with("auto", tests, count);

	/*
	 * Run all but the last two tests. If handles are larger than pages, blocks are not scattered, so a request
	 * needs adjacent pages.
	 */
	return failed + run_with("2MB", tests, count - 2);
}
