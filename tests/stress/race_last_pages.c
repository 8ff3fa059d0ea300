/*
 * race_last_pages.c - six engines compete for the last pages of a small pool.
 *
 * Goal: two engines never hold the same page, all engines together never hold more pages than the pool has, every
 * refusal is an out-of-memory error, and no engine crashes. Method: each engine (a process) allocates pinned blocks of
 * one to four pages and frees them, while the pool is always almost full. After an allocation, it swaps its stamp into
 * a word of each page, and the word must have been empty; before a free, it empties the word. A shared count, increased
 * after an allocation and decreased before a free, must never exceed the size of the pool.
 *
 * With --broken, an engine occasionally omits the stamp of a page, as if it had freed a page that it still uses. That
 * must be detected.
 *
 * Without arguments, the test makes a million requests; with SECONDS, as many as possible in that time; with
 * --requests, that number.
 *
 * usage: race_last_pages [SECONDS [SEED]] [--workers N] [--requests N] [--broken]
 *
 * Requirements: U12.
 */
#include "client/gpool.h"
#include "tests/stress/stress.h"
#include "tests/stress/stress_agent.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	PAGES = 48,
	BLOCK_MOST = 4,
	HELD_MOST = 12, /* pages per engine; six engines want 1.5 times the pool */
	ENGINES_MAX = 32,
	TEXTS = 8,
};

struct stage {
	_Atomic uint64_t requests; /* number of requests still to be made */
	uint64_t end_ns;           /* 0: run until no requests are left */
	_Atomic uint32_t held, held_most;
	_Atomic uint64_t allocations, refusals, late_refusals;
	_Atomic uint32_t wrong;
	char texts[TEXTS][192];
};

static struct stage *stage;

struct engine {
	struct gpool *pool;
	uint32_t number; /* from 1 */
	uint64_t random, page_bytes, made;
	struct gpool_block blocks[HELD_MOST];
	uint32_t block_count, pages;
	bool broken;
};

static void __attribute__((format(printf, 1, 2))) violation(const char *format, ...)
{
	uint32_t at = atomic_fetch_add(&stage->wrong, 1);
	va_list arguments;

	if (at >= TEXTS)
		return;
	va_start(arguments, format);
	vsnprintf(stage->texts[at], sizeof(stage->texts[at]), format, arguments);
	va_end(arguments);
}

/* Replace the stamp in each page of a block, and check that the old stamp was `from`. */
static void stamp(const struct engine *engine, const struct gpool_block *block, uint64_t from, uint64_t to)
{
	uint64_t address, was;
	int error = gpool_address(engine->pool, block, &address);

	if (error) {
		violation("engine %u: gpool_address() answers %d: %s", engine->number, error, gpool_strerror(error));
		return;
	}
	for (uint32_t page = 0; page < block->page_count; page++) {
		was = atomic_exchange((_Atomic uint64_t *)(uintptr_t)(address + page * engine->page_bytes), to);
		if (was != from)
			violation("engine %u: page %u of a block of %u at page %u bears stamp %" PRIx64
				  " instead of %" PRIx64,
				engine->number, page, block->page_count, block->page, was, from);
	}
}

static uint64_t stamp_of(const struct engine *engine, const struct gpool_block *block)
{
	return (uint64_t)engine->number << 56 | (block->tag & ((UINT64_C(1) << 56) - 1));
}

static void take(struct engine *engine)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t pages = 1 + chance_below(&engine->random, BLOCK_MOST), held;
	struct gpool_block block;
	int error;

	/* One request in eight waits for a short time. If it is refused, the error must be the same. */
	options.timeout_ms = chance_below(&engine->random, 8) ? 0 : 2;
	error = gpool_alloc(engine->pool, pages, &options, &block);
	if (error) {
		if (error != -ENOSPC)
			violation("engine %u: gpool_alloc() answers %d: %s", engine->number, error,
				gpool_strerror(error));
		atomic_fetch_add(options.timeout_ms ? &stage->late_refusals : &stage->refusals, 1);
		return;
	}
	held = atomic_fetch_add(&stage->held, pages) + pages;
	if (held > PAGES)
		violation("engine %u: %u pages are held of %d", engine->number, held, PAGES);
	for (uint32_t most = atomic_load(&stage->held_most);
		most < held && !atomic_compare_exchange_weak(&stage->held_most, &most, held);)
		;
	stamp(engine, &block, 0, stamp_of(engine, &block));
	atomic_fetch_add(&stage->allocations, 1);
	engine->blocks[engine->block_count++] = block;
	engine->pages += pages;
}

static void give(struct engine *engine)
{
	uint32_t at = chance_below(&engine->random, engine->block_count);
	struct gpool_block block = engine->blocks[at];
	bool forget = engine->broken && chance_below(&engine->random, 64) == 0;
	int error;

	engine->blocks[at] = engine->blocks[--engine->block_count];
	engine->pages -= block.page_count;
	if (!forget)
		stamp(engine, &block, stamp_of(engine, &block), 0);
	atomic_fetch_sub(&stage->held, block.page_count);
	error = gpool_free(engine->pool, &block);
	if (error)
		violation("engine %u: gpool_free() answers %d: %s", engine->number, error, gpool_strerror(error));
}

/* Take one of the remaining requests. Return false if there is none. */
static bool request_left(void)
{
	uint64_t left = atomic_load_explicit(&stage->requests, memory_order_relaxed);

	if (stage->end_ns && clock_ns() >= stage->end_ns)
		return false;
	while (left && !atomic_compare_exchange_weak(&stage->requests, &left, left - 1))
		;
	return left != 0;
}

static _Noreturn void engine_main(const struct stress_agent *agent, uint32_t number, uint64_t seed, bool broken)
{
	struct engine engine = {.number = number, .random = seed, .broken = broken};
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	int error;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.directory = agent->directory;
	options.timeout_ms = AWAIT_MS;
	error = gpool_open(&options, &engine.pool);
	if (error) {
		violation("engine %u: gpool_open() answers %d: %s", number, error, gpool_strerror(error));
		_exit(1);
	}
	engine.page_bytes = gpool_page_bytes(engine.pool);
	while (!atomic_load_explicit(&stage->wrong, memory_order_relaxed)) {
		if (engine.block_count &&
			(engine.pages + BLOCK_MOST > HELD_MOST || chance_below(&engine.random, 3) == 0)) {
			give(&engine);
		} else if (request_left()) {
			take(&engine);
			engine.made++;
		} else {
			break;
		}
	}
	while (engine.block_count)
		give(&engine);
	gpool_close(engine.pool);
	_exit(engine.made ? 0 : 1);
}

static bool engines_run(const struct stress_agent *agent, const struct stress_arguments *arguments)
{
	uint64_t random = arguments->seed;
	pid_t pids[ENGINES_MAX];
	bool all = true;
	int status;

	fflush(stdout);
	for (uint32_t i = 0; i < arguments->workers; i++) {
		uint64_t seed = chance(&random);

		pids[i] = fork();
		if (pids[i] == 0)
			engine_main(agent, i + 1, seed, arguments->broken);
		all = all && pids[i] > 0;
	}
	for (uint32_t i = 0; i < arguments->workers; i++)
		if (pids[i] > 0 && waitpid(pids[i], &status, 0) == pids[i] && status) {
			printf("engine %u ended with status %x\n", i + 1, (unsigned)status);
			all = false;
		}
	return all;
}

int main(int argc, char **argv)
{
	struct stress_arguments arguments = {
		.count = 1000000, .workers = 6, .usage = "[SECONDS [SEED]] [--workers N] [--requests N] [--broken]"};
	/* Use small batches, so that no engine leases idle pages. No block is evicted, since all are pinned. */
	static const char *const settings[] = {
		"lease.initial_pages=1", "lease.batch_pages=1", "lease.batch_most=4", NULL};
	struct stress_agent agent;
	uint64_t begin;
	bool clean;

	if (!stress_arguments_read(argc, argv, &arguments) || arguments.workers > ENGINES_MAX)
		return 2;
	stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (stage == MAP_FAILED || !stress_agent_start(&agent, PAGES, settings))
		return 1;
	begin = clock_ns();
	if (!arguments.count)
		arguments.count = UINT64_MAX;
	if (arguments.seconds > 0)
		stage->end_ns = begin + (uint64_t)(arguments.seconds * 1e9);
	atomic_store(&stage->requests, arguments.count);
	clean = engines_run(&agent, &arguments);
	printf("%" PRIu64 " requests in %.1f s: %" PRIu64 " served, %" PRIu64 " refused at once, %" PRIu64
	       " after a wait; at most %u of %d pages held; %u violations\n",
		arguments.count - atomic_load(&stage->requests), (double)(clock_ns() - begin) / 1e9,
		atomic_load(&stage->allocations), atomic_load(&stage->refusals), atomic_load(&stage->late_refusals),
		atomic_load(&stage->held_most), PAGES, atomic_load(&stage->wrong));
	for (uint32_t i = 0; i < TEXTS && i < atomic_load(&stage->wrong); i++)
		printf("violation: %s\n", stage->texts[i]);
	if (arguments.broken) {
		stress_agent_stop(&agent, true);
		return atomic_load(&stage->wrong) ? 0 : 1;
	}
	clean = stress_agent_wait_free(&agent) && clean;
	clean = stress_agent_check(&agent, true) && clean;
	clean = stress_agent_same(&agent) && clean;
	clean = stress_agent_stop(&agent, clean);
	if (!atomic_load(&stage->refusals) || !atomic_load(&stage->allocations)) {
		printf("no request was refused, or none was served: this was no race\n");
		clean = false;
	}
	return clean && !atomic_load(&stage->wrong) ? 0 : 1;
}
