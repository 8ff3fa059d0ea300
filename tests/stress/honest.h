/*
 * honest.h - well-behaved workers, for tests with a hostile process. They allocate, write, verify under a pin, and
 * free.
 *
 * They share a page with the test, which contains their findings, their progress, and the orders to pause and to end.
 */
#ifndef GPOOL_TESTS_STRESS_HONEST_H
#define GPOOL_TESTS_STRESS_HONEST_H

#include "client/gpool.h"
#include "shm/doorbell.h"
#include "tests/stress/stress.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HONEST_MOST = 8, HONEST_HANDLES = 64, HONEST_TEXTS = 8, HONEST_PATIENCE_MS = AWAIT_MS };
enum honest_order { HONEST_WORK, HONEST_STAND_STILL, HONEST_LEAVE };

struct honest_stage {
	_Atomic uint32_t order;
	_Atomic uint32_t standing; /* number of paused workers */
	_Atomic uint32_t working;  /* number of workers that have started */
	_Atomic uint32_t wrong;
	char texts[HONEST_TEXTS][256];
	_Atomic uint64_t allocations, refusals, verified, stale;
	_Atomic uint64_t rounds[HONEST_MOST]; /* of each worker */
	_Atomic uint64_t slowest_ns;          /* the longest duration of a pin and unpin */
	_Atomic uint64_t more[8];             /* counters of the test */
};

struct honest_crew {
	struct honest_stage *stage;
	uint32_t count;
	pid_t pids[HONEST_MOST];
};

static inline void __attribute__((format(printf, 2, 3)))
honest_wrong(struct honest_stage *stage, const char *format, ...)
{
	uint32_t at = atomic_fetch_add(&stage->wrong, 1);
	va_list arguments;

	if (at >= HONEST_TEXTS)
		return;
	va_start(arguments, format);
	vsnprintf(stage->texts[at], sizeof(stage->texts[at]), format, arguments);
	va_end(arguments);
}

struct honest_worker {
	struct honest_stage *stage;
	struct gpool *pool;
	uint32_t number, budget, pages;
	uint64_t random, key;
	struct gpool_block blocks[HONEST_HANDLES];
	uint32_t block_count;
};

static inline void honest_forget(struct honest_worker *worker, uint32_t at)
{
	worker->pages -= worker->blocks[at].page_count;
	worker->blocks[at] = worker->blocks[--worker->block_count];
}

static inline void honest_allocate(struct honest_worker *worker)
{
	struct gpool_block *block = &worker->blocks[worker->block_count];
	uint32_t pages = 1 + chance_below(&worker->random, 4);
	uint64_t address;
	int error = gpool_alloc(worker->pool, pages, NULL, block);

	if (error == -ENOSPC) {
		atomic_fetch_add(&worker->stage->refusals, 1);
		return;
	}
	if (!error)
		error = gpool_address(worker->pool, block, &address);
	if (!error) {
		content_write(address, gpool_page_bytes(worker->pool), pages, worker->key ^ block->tag);
		error = gpool_unpin(worker->pool, block);
	}
	if (error)
		honest_wrong(worker->stage, "honest worker %u: cannot allocate: %d, %s", worker->number, error,
			gpool_strerror(error));
	worker->block_count++;
	worker->pages += pages;
	atomic_fetch_add(&worker->stage->allocations, 1);
}

static inline void honest_note_time(struct honest_stage *stage, uint64_t ns)
{
	uint64_t slowest = atomic_load_explicit(&stage->slowest_ns, memory_order_relaxed);

	while (ns > slowest && !atomic_compare_exchange_weak(&stage->slowest_ns, &slowest, ns))
		;
}

static inline void honest_verify(struct honest_worker *worker, uint32_t at, bool ends)
{
	struct gpool_block block = worker->blocks[at];
	uint64_t address = 0, begin = clock_ns(), pinned;
	int64_t page;
	int error = gpool_pin(worker->pool, &block);

	pinned = clock_ns() - begin;
	if (error == -ESTALE) {
		atomic_fetch_add(&worker->stage->stale, 1);
		honest_forget(worker, at);
		return;
	}
	if (!error)
		error = gpool_address(worker->pool, &block, &address);
	page = error
		? -1
		: content_check(address, gpool_page_bytes(worker->pool), block.page_count, worker->key ^ block.tag);
	if (page >= 0)
		honest_wrong(worker->stage,
			"honest worker %u: wrong content in page %" PRId64 " of a block of %u at page %u",
			worker->number, page, block.page_count, block.page);
	if (!error)
		error = ends ? gpool_free(worker->pool, &block) : gpool_unpin(worker->pool, &block);
	if (error)
		honest_wrong(worker->stage, "honest worker %u: cannot %s: %d, %s", worker->number,
			ends ? "free" : "pin", error, gpool_strerror(error));
	if (ends)
		honest_forget(worker, at);
	atomic_fetch_add_explicit(&worker->stage->verified, 1, memory_order_relaxed);
	honest_note_time(worker->stage, pinned);
}

static inline _Noreturn void honest_main(
	struct honest_stage *stage, const char *directory, uint32_t number, uint32_t budget, uint64_t seed)
{
	struct honest_worker worker = {
		.stage = stage, .number = number, .budget = budget, .random = seed, .key = seed * 2 + 1};
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	int error;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.directory = directory;
	options.timeout_ms = HONEST_PATIENCE_MS;
	options.name = "honest";
	error = gpool_open(&options, &worker.pool);
	if (error) {
		honest_wrong(stage, "honest worker %u: cannot attach: %d, %s", number, error, gpool_strerror(error));
		_exit(1);
	}
	atomic_fetch_add(&stage->working, 1);
	futex_wake(&stage->working, 1);
	while (atomic_load_explicit(&stage->order, memory_order_relaxed) == HONEST_WORK) {
		if (worker.block_count < HONEST_HANDLES && worker.pages < budget)
			honest_allocate(&worker);
		if (worker.block_count)
			honest_verify(&worker, chance_below(&worker.random, worker.block_count),
				chance_below(&worker.random, 4) == 0);
		atomic_fetch_add_explicit(&stage->rounds[number], 1, memory_order_relaxed);
	}
	atomic_fetch_add(&stage->standing, 1);
	futex_wake(&stage->standing, 1);
	while (atomic_load(&stage->order) != HONEST_LEAVE)
		futex_wait(&stage->order, HONEST_STAND_STILL, -1);
	gpool_close(worker.pool);
	_exit(0);
}

/* Wait until *word is at least `count`. Return false if that does not happen in time. */
static inline bool honest_await(const _Atomic uint32_t *word, uint32_t count)
{
	uint32_t seen;

	while ((seen = atomic_load(word)) < count)
		if (futex_wait(word, seen, HONEST_PATIENCE_MS * INT64_C(1000000)) == -ETIMEDOUT)
			return false;
	return true;
}

/* Map a stage, which forked children inherit. Other programs can map it with the descriptor. */
static inline struct honest_stage *honest_stage_map(int fd)
{
	void *stage = fd < 0 ? MAP_FAILED
			     : mmap(NULL, sizeof(struct honest_stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return stage == MAP_FAILED ? NULL : stage;
}

static inline int honest_stage_create(void)
{
	int fd = memfd_create("stage", 0);

	return fd >= 0 && ftruncate(fd, sizeof(struct honest_stage)) == 0 ? fd : -1;
}

/* Start `count` workers with a budget of about `budget` pages each. Return true when all have started. */
static inline bool honest_start(
	struct honest_crew *crew, const char *directory, uint32_t count, uint32_t budget, uint64_t *random)
{
	fflush(stdout);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t seed = chance(random);

		crew->pids[i] = fork();
		if (crew->pids[i] == 0)
			honest_main(crew->stage, directory, i, budget, seed);
		if (crew->pids[i] < 0)
			return false;
		crew->count++;
	}
	return honest_await(&crew->stage->working, count);
}

static inline bool honest_stand_still(struct honest_crew *crew)
{
	atomic_store(&crew->stage->order, HONEST_STAND_STILL);
	return honest_await(&crew->stage->standing, crew->count);
}

/* Let all workers end, and print their findings. Return true if there were none. */
static inline bool honest_end(struct honest_crew *crew)
{
	struct honest_stage *stage = crew->stage;
	bool well = true;
	int status;

	atomic_store(&stage->order, HONEST_LEAVE);
	futex_wake(&stage->order, INT32_MAX);
	for (uint32_t i = 0; i < crew->count; i++)
		if (waitpid(crew->pids[i], &status, 0) != crew->pids[i] || status) {
			printf("honest worker %u ended with status %x\n", i, (unsigned)status);
			well = false;
		}
	for (uint32_t i = 0; i < crew->count; i++)
		if (!atomic_load(&stage->rounds[i])) {
			printf("honest worker %u came to nothing\n", i);
			well = false;
		}
	for (uint32_t i = 0; i < HONEST_TEXTS && i < atomic_load(&stage->wrong); i++)
		printf("violation: %s\n", stage->texts[i]);
	return well && !atomic_load(&stage->wrong);
}

#endif
