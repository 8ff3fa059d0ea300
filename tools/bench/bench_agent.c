/*
 * bench_agent.c - operations of the agent on request: evicting blocks, refilling an empty lease. The caller measures
 * the whole request, which includes wake-ups and messages.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>

enum {
	POOL_PAGES = 4096,
	NEED = 64,   /* pages per refill */
	CYCLES = 50, /* per run: each fills the pool and evicts */
	FILLS = 48,  /* refills per cycle: three quarters of the pool, so there is never pressure */
};

/* ---- evict ---- */

/* With these settings, pages are evicted only on request. */
static const char *const evict_settings[] = {"eviction.start=100", "eviction.stop=99", NULL};
static const char *const adaptive_settings[] = {
	"eviction.start=100", "eviction.stop=99", "eviction.policy=adaptive", NULL};

/* Allocate unpinned blocks of one page until no page is free. Return: the number of blocks, or negative errno. */
static int fill_unpinned(struct gpool *pool)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	int error, count = 0;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	options.usage = GPOOL_USAGE_TEMP_BUFFER;
	while ((error = gpool_alloc(pool, 1, &options, &block)) == 0) {
		error = gpool_unpin(pool, &block);
		if (error)
			return error;
		count++;
	}
	return error == -ENOSPC ? count : error;
}

static int sample_evict(struct bench *bench, struct gpool *pool, enum figure figure)
{
	int filled = fill_unpinned(pool);
	uint64_t begin;
	int64_t evicted;

	if (filled < 0)
		return filled;
	begin = monotonic_ns();
	evicted = daemon_evict(bench, (uint32_t)filled);
	if (evicted < 0)
		return (int)evicted;
	if (evicted * 2 < filled)
		return bench_complain(bench, -EAGAIN, "only %lld of %d pages were evicted", (long long)evicted, filled);
	bench_sample(bench, figure, (double)(monotonic_ns() - begin) / (double)evicted);
	return 0;
}

static int evict_by(struct bench *bench, const char *const *settings, enum figure figure)
{
	struct gpool *pool = NULL;
	int error;

	error = daemon_start(bench, POOL_PAGES, settings);
	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_evict(bench, pool, figure);
	if (error)
		bench_complain(bench, error, "a call failed");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}

int bench_evict(struct bench *bench)
{
	int error = evict_by(bench, evict_settings, FIGURE_evict);

	return error ? error : evict_by(bench, adaptive_settings, FIGURE_evict_adaptive);
}

/* ---- refill ---- */

/* A refill returns only the requested pages, so the next request finds the lease empty again. */
static const char *const refill_settings[] = {"lease.initial_pages=0", "lease.batch_pages=1", "lease.batch_most=1",
	"eviction.start=100", "eviction.stop=99", NULL};

static uint64_t refills(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	return gpool_stats(pool, &statistics) ? 0 : statistics.refills;
}

/*
 * Fill three quarters of the pool, and evict all of it. The times of the refills are added to times[], and *count is
 * increased.
 */
static int refill_cycle(struct bench *bench, struct gpool *pool, double *times, size_t *count)
{
	struct gpool_block block;
	int64_t evicted;
	int error;

	for (unsigned i = 0; i < FILLS; i++) {
		uint64_t before = refills(pool), begin = monotonic_ns(), end;

		error = gpool_alloc(pool, NEED, NULL, &block);
		if (error)
			return error;
		end = monotonic_ns();
		if (refills(pool) == before + 1)
			times[(*count)++] = (double)(end - begin) / 1000;
		error = gpool_unpin(pool, &block);
		if (error)
			return error;
	}
	evicted = daemon_evict(bench, POOL_PAGES);
	return evicted < 0 ? (int)evicted : 0;
}

static int sample_refills(struct bench *bench, struct gpool *pool, double *times)
{
	size_t count = 0;
	int error = 0;

	for (unsigned cycle = 0; cycle < CYCLES && !error; cycle++)
		error = refill_cycle(bench, pool, times, &count);
	if (error)
		return error;
	if (count < CYCLES * FILLS / 2)
		return bench_complain(bench, -EAGAIN, "only %zu of %d allocations sent a request to the agent", count,
			CYCLES * FILLS);
	bench_sample(bench, FIGURE_refill_p50, percentile(times, count, 0.50));
	bench_sample(bench, FIGURE_refill_p99, percentile(times, count, 0.99));
	return 0;
}

int bench_refill(struct bench *bench)
{
	double *times = malloc(CYCLES * FILLS * sizeof(*times));
	struct gpool *pool = NULL;
	size_t unused = 0;
	int error;

	if (!times)
		return bench_complain(bench, -ENOMEM, "out of memory");
	error = daemon_start(bench, POOL_PAGES, refill_settings);
	if (error)
		goto free_times;
	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = refill_cycle(bench, pool, times, &unused); /* maps the pages once */
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_refills(bench, pool, times);
	if (error)
		bench_complain(bench, error, "a call failed");
	gpool_close(pool);
	daemon_stop(bench);
free_times:
	free(times);
	return error;
}
