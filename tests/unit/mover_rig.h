/*
 * mover_rig.h - a pool on the back end `host`, its ring and its tiers, and the real mover in a forked child; shared by
 * the tests of the mover.
 *
 * The test acts as the agent and the keeper: it starts and kills movers, and inspects pages and tiers, which it has
 * mapped. It starts no thread, so each fork copies a process with one thread.
 */
#ifndef GPOOL_TESTS_MOVER_RIG_H
#define GPOOL_TESTS_MOVER_RIG_H

#include <errno.h>
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
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "agent/config/recipe.h"
#include "agent/mover/mover.h"
#include "agent/spill/mover_queue.h"
#include "cuda/gpu.h"
#include "tests/lib/unwatched.h"

enum {
	PAGE_BYTES = 1 << 20, /* two requests of io_uring per page */
	PAGES = 32,
	PAGES_PER_HANDLE = 2,
	HANDLES = PAGES / PAGES_PER_HANDLE,
	MEMORY_SLOTS = 70, /* more than are locked at the same time */
	FILE_SLOTS = 40,
	PATIENCE_MS = 60000, /* for events that take milliseconds */
	TAGS = 1024,
};

struct rig {
	struct gpu *gpu;
	uint8_t *pages; /* the memory of PAGES pages */
	struct module_pool pool;
	struct recipe recipe;
	struct module_start start;
	struct held held[HANDLES + 2];
	struct mover_ring *ring;
	int memory_fd, file_fd;
	uint8_t *memory;
	struct mover_queue queue;
	pid_t mover;
	void (*child)(void); /* called first in the mover's process */
	uint32_t collected;
	bool have[TAGS];
	int errors[TAGS];
	uint64_t checksums[TAGS];
};

static inline uint8_t *rig_page(struct rig *rig, uint32_t page)
{
	return rig->pages + (size_t)page * PAGE_BYTES;
}

static inline uint8_t *rig_slot(struct rig *rig, uint32_t slot)
{
	return rig->memory + (size_t)slot * PAGE_BYTES;
}

static inline uint64_t pattern_start(uint64_t seed)
{
	return seed * 0x9e3779b97f4a7c15u + 1;
}

static inline uint64_t pattern_next(uint64_t x)
{
	x ^= x << 13;
	x ^= x >> 7;
	return x ^ x << 17;
}

/* Write bytes that differ on every page for every seed. */
UNWATCHED static inline void pattern_write(uint8_t *bytes, uint64_t seed)
{
	uint64_t x = pattern_start(seed);

	for (size_t i = 0; i < PAGE_BYTES / sizeof(x); i++) {
		x = pattern_next(x);
		memcpy(bytes + i * sizeof(x), &x, sizeof(x));
	}
}

static inline uint64_t pattern_checksum(uint64_t seed)
{
	static uint8_t bytes[PAGE_BYTES];

	pattern_write(bytes, seed);
	return XXH3_64bits(bytes, PAGE_BYTES);
}

UNWATCHED static inline bool pattern_is(const uint8_t *bytes, uint64_t seed)
{
	uint64_t x = pattern_start(seed);

	for (size_t i = 0; i < PAGE_BYTES / sizeof(x); i++) {
		x = pattern_next(x);
		if (memcmp(bytes + i * sizeof(x), &x, sizeof(x)) != 0)
			return false;
	}
	return true;
}

static inline bool is_zero(const uint8_t *bytes)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, PAGE_BYTES - 1) == 0;
}

/* ---- the pool ---- */

static inline void rig_hold(struct rig *rig, struct held held)
{
	assert_true(rig->start.held_count < sizeof(rig->held) / sizeof(*rig->held));
	rig->held[rig->start.held_count++] = held;
}

/* Create handles as the agent holds them: one descriptor for all, as `host` has it, or one for each, as CUDA does. */
static inline void rig_handles(struct rig *rig, bool each)
{
	uint64_t base, handles[HANDLES], bytes = (uint64_t)PAGES_PER_HANDLE * PAGE_BYTES;

	assert_int_equal(gpu_reserve(rig->gpu, (uint64_t)PAGES * PAGE_BYTES, 0, &base), 0);
	/* All handles are created before the first export, which seals the file that they share. */
	for (uint32_t i = 0; i < HANDLES; i++)
		assert_int_equal(gpu_create(rig->gpu, bytes, &handles[i]), 0);
	for (uint32_t i = 0; i < HANDLES; i++) {
		struct gpu_export export;

		assert_int_equal(gpu_map(rig->gpu, base + i * bytes, bytes, handles[i]), 0);
		assert_int_equal(gpu_export(rig->gpu, handles[i], &export), 0);
		if (each || i == 0)
			rig_hold(rig, (struct held){KEEP_HANDLE, 0, i, 1, {export.fd}, export.offset, export.length});
		else
			close(export.fd);
	}
	assert_int_equal(gpu_access(rig->gpu, base, (uint64_t)PAGES * PAGE_BYTES, GPU_ACCESS_READ_WRITE), 0);
	rig->pages = (uint8_t *)(uintptr_t)base;
	for (uint32_t page = 0; page < PAGES; page++)
		pattern_write(rig_page(rig, page), page);
}

static inline void rig_tiers(struct rig *rig)
{
	const char *folder = getenv("TMPDIR");
	char path[256];

	rig->memory_fd = memfd_create("gpool-test-tier", MFD_CLOEXEC);
	assert_true(rig->memory_fd >= 0);
	assert_int_equal(ftruncate(rig->memory_fd, (off_t)MEMORY_SLOTS * PAGE_BYTES), 0);
	rig->memory =
		mmap(NULL, (size_t)MEMORY_SLOTS * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, rig->memory_fd, 0);
	assert_true(rig->memory != MAP_FAILED);
	rig_hold(rig, (struct held){KEEP_TIER, 0, 0, 1, {rig->memory_fd}, 0, 0});

	snprintf(path, sizeof(path), "%.200s/gpool-mover-XXXXXX", folder && *folder ? folder : "/tmp");
	rig->file_fd = mkostemp(path, O_CLOEXEC);
	assert_true(rig->file_fd >= 0);
	unlink(path);
	rig_hold(rig, (struct held){KEEP_TIER, 0, 1, 1, {rig->file_fd}, FILE_SLOTS, 0});
}

/* Create everything except the memory of the pool. */
static inline struct rig *rig_pool(const char *backend)
{
	struct pool_geometry geometry = {
		.name = "gpu0",
		.backend = backend,
		.device = "0",
		.page_bytes = PAGE_BYTES,
		.page_count = PAGES,
		.pages_per_handle = PAGES_PER_HANDLE,
	};
	struct rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	unsetenv("GPOOL_NO_URING");
	rig->memory_fd = rig->file_fd = -1;
	assert_int_equal(pool_segment_create(&geometry, &rig->pool.segment, &rig->pool.segment_fd), 0);
	assert_int_equal(ledger_create(PAGES, POOL_OBJECTS_LEAST, 0, 0, &rig->pool.ledger, &rig->pool.ledger_fd), 0);
	rig->pool.handle_bytes = (uint64_t)PAGES_PER_HANDLE * PAGE_BYTES;
	rig->pool.ring_bytes = sizeof(struct mover_ring);
	rig->ring = mmap(NULL, rig->pool.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(rig->ring != MAP_FAILED);
	rig->pool.ring = rig->ring;
	rig->pool.work_bell = eventfd(0, EFD_CLOEXEC);
	rig->pool.done_bell = eventfd(0, EFD_CLOEXEC);
	assert_true(rig->pool.work_bell >= 0 && rig->pool.done_bell >= 0);
	rig->recipe = (struct recipe){.pools = {"name=gpu0,backend=host,size=32MiB"},
		.pool_count = 1,
		.sets = {"log.level=error"},
		.set_count = 1};
	rig->start = (struct module_start){.size = sizeof(rig->start),
		.recipe = &rig->recipe,
		.pools = &rig->pool,
		.pool_count = 1,
		.held = rig->held,
		.listen_fd = -1,
		.keeper_fd = -1,
		.parent = getpid()};
	mover_queue_init(&rig->queue, rig->ring, rig->pool.work_bell, rig->pool.done_bell);
	return rig;
}

static inline struct rig *rig_new(bool each_handle, bool tiers)
{
	struct rig *rig = rig_pool("host");

	setenv("GPOOL_HOST_GRANULARITY", "64KiB", 1);
	setenv("GPOOL_HOST_MEMORY", "1GiB", 1);
	assert_int_equal(gpu_open(gpu_backend("host"), 0, 0, &rig->gpu), 0);
	rig_handles(rig, each_handle);
	if (tiers)
		rig_tiers(rig);
	return rig;
}

/* ---- movers ---- */

static inline void rig_wait_bell(struct rig *rig)
{
	struct pollfd look = {rig->pool.done_bell, POLLIN, 0};

	assert_int_equal(poll(&look, 1, PATIENCE_MS), 1);
}

static inline void rig_result(void *context, const struct mover_result *result)
{
	struct rig *rig = context;

	assert_true(result->order.tag < TAGS);
	rig->have[result->order.tag] = true;
	rig->errors[result->order.tag] = result->error;
	rig->checksums[result->order.tag] = result->order.checksum;
	rig->collected++;
}

static inline void rig_collect(struct rig *rig, uint32_t at_least)
{
	uint32_t end = rig->collected + at_least;

	while (rig->collected < end) {
		rig_wait_bell(rig);
		mover_collect(&rig->queue, rig_result, rig);
	}
}

static inline void rig_fork(struct rig *rig)
{
	assert_int_equal(rig->mover, 0);
	rig->mover = fork();
	assert_true(rig->mover >= 0);
	if (rig->mover == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (rig->child)
			rig->child();
		_exit(mover_run(&rig->start));
	}
}

static inline void rig_start(struct rig *rig)
{
	rig_fork(rig);
	while (atomic_load(&rig->ring->serving) != (uint32_t)rig->mover) {
		rig_wait_bell(rig);
		mover_collect(&rig->queue, rig_result, rig);
	}
}

/* Stop the mover. Return its status, as from waitpid(). */
static inline int rig_stop(struct rig *rig, int signal)
{
	int status;

	assert_true(rig->mover > 0);
	kill(rig->mover, signal);
	assert_int_equal(waitpid(rig->mover, &status, 0), rig->mover);
	rig->mover = 0;
	return status;
}

static inline void rig_free(struct rig *rig)
{
	if (rig->mover)
		assert_int_equal(rig_stop(rig, SIGTERM), 0);
	gpu_close(rig->gpu); /* NULL if the rig does not own it */
	for (uint32_t i = 0; i < rig->start.held_count; i++)
		close(rig->held[i].fds[0]);
	if (rig->memory)
		munmap(rig->memory, (size_t)MEMORY_SLOTS * PAGE_BYTES);
	pool_segment_close(&rig->pool.segment);
	ledger_close(&rig->pool.ledger);
	munmap(rig->ring, rig->pool.ring_bytes);
	close(rig->pool.segment_fd);
	close(rig->pool.ledger_fd);
	close(rig->pool.work_bell);
	close(rig->pool.done_bell);
	free(rig);
}

/* ---- jobs ---- */

static inline void rig_submit(struct rig *rig, enum mover_job_kind kind, uint32_t page, enum mover_tier tier,
	uint32_t to, uint64_t checksum, uint64_t tag)
{
	struct mover_order order = {kind, tier, page, to, checksum, tag};

	assert_int_equal(mover_submit(&rig->queue, &order), 0);
}

/* Execute one job. Return its error. */
static inline int rig_do(
	struct rig *rig, enum mover_job_kind kind, uint32_t page, enum mover_tier tier, uint32_t to, uint64_t checksum)
{
	rig_submit(rig, kind, page, tier, to, checksum, 0);
	rig_collect(rig, 1);
	return rig->errors[0];
}

#endif
