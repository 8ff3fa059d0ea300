/*
 * bench_elastic.c - elastic ranges and sliced ranges. For ranges, the figures are the costs of committing pages for the
 * first time, of decommitting pages, and of committing pages that are still reclaimable. For sliced ranges, the figure
 * is the caller's cost of growing a range whose blocks have been prepared. On `host`, a mapping is a system call. Its
 * cost on a GPU must be measured on a GPU, so driver calls are figures, too.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>

enum {
	POOL_PAGES = 40960,
	RANGE_PAGES = 4096,
	SLICES = 160, /* 80 layers, each with K and V */
	AHEAD = 4,
	GROWTHS = 32, /* one block each */
	READY_MS = 10000,
};

static const struct gpool_fence done_fence = {0};

static uint64_t driver_calls(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	return gpool_stats(pool, &statistics) ? 0 : statistics.driver_calls;
}

/* ---- ranges ---- */

/* Return nanoseconds per page, or negative errno. */
static int timed(
	struct bench *bench, enum figure figure, int (*call)(struct gpool_range *range), struct gpool_range *range)
{
	uint64_t begin = monotonic_ns();
	int error = call(range);

	if (!error)
		bench_sample(bench, figure, (double)(monotonic_ns() - begin) / RANGE_PAGES);
	return error;
}

static int back(struct gpool_range *range)
{
	return gpool_range_commit(range, 0, RANGE_PAGES, 0);
}

static int decommit(struct gpool_range *range)
{
	return gpool_range_decommit(range, 0, RANGE_PAGES, done_fence);
}

static int offer(struct gpool_range *range)
{
	return gpool_range_offer(range, 0, RANGE_PAGES, done_fence);
}

static int reclaim(struct gpool_range *range)
{
	int lost = gpool_range_reclaim(range, 0, RANGE_PAGES, NULL);

	return lost > 0 ? -ENODATA : lost;
}

static int offer_singly(struct gpool_range *range)
{
	int error = 0;

	for (uint32_t page = 0; page < RANGE_PAGES && !error; page++)
		error = gpool_range_offer(range, page, 1, done_fence);
	return error;
}

static int reclaim_singly(struct gpool_range *range)
{
	int lost = 0;

	for (uint32_t page = 0; page < RANGE_PAGES && !lost; page++)
		lost = gpool_range_reclaim(range, page, 1, NULL);
	return lost > 0 ? -ENODATA : lost;
}

static int sample_offers(struct bench *bench, struct gpool *pool, struct gpool_range *range)
{
	uint64_t calls = driver_calls(pool);
	int error = timed(bench, FIGURE_range_offer, offer, range);

	if (!error)
		error = timed(bench, FIGURE_range_reclaim, reclaim, range);
	if (!error)
		error = timed(bench, FIGURE_range_offer_one, offer_singly, range);
	if (!error)
		error = timed(bench, FIGURE_range_reclaim_one, reclaim_singly, range);
	if (!error)
		bench_sample(bench, FIGURE_range_offer_calls, (double)(driver_calls(pool) - calls));
	return error;
}

static int sample_range(struct bench *bench, struct gpool *pool)
{
	struct gpool_range *range;
	uint64_t calls;
	int error = gpool_range_reserve(pool, RANGE_PAGES, NULL, &range);

	if (error)
		return error;
	error = timed(bench, FIGURE_range_commit_new, back, range);
	if (!error)
		error = timed(bench, FIGURE_range_decommit, decommit, range);
	calls = driver_calls(pool);
	if (!error)
		error = timed(bench, FIGURE_range_commit_reclaimable, back, range);
	if (!error)
		bench_sample(bench, FIGURE_range_commit_reclaimable_calls, (double)(driver_calls(pool) - calls));
	if (!error)
		error = sample_offers(bench, pool, range);
	return error ? error : gpool_range_destroy(range);
}

/* ---- sliced_ranges ---- */

static uint32_t ready(struct gpool_sliced_range *sliced)
{
	struct gpool_sliced_range_info info = {.size = sizeof(info)};

	return gpool_sliced_range_info(sliced, &info) ? 0 : info.ready;
}

/* Wait until the blocks after the first `committed` blocks are prepared. A real engine computes during this time. */
static bool ready_await(struct gpool_sliced_range *sliced, uint32_t committed)
{
	for (int waited = 0; ready(sliced) < committed + AHEAD && waited < READY_MS; waited++)
		poll(NULL, 0, 1);
	return ready(sliced) >= committed + AHEAD;
}

static int sample_sliced(struct bench *bench, struct gpool *pool, bool ahead)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	double times[GROWTHS];
	struct gpool_sliced_range *sliced;
	int error;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.read_ahead = ahead ? AHEAD : 0;
	error = gpool_sliced_range_create(pool, SLICES, GROWTHS + AHEAD, 1, &options, &sliced);
	if (error)
		return error;
	for (uint32_t i = 0; i < GROWTHS && !error; i++) {
		uint64_t begin;

		if (ahead && !ready_await(sliced, i))
			error = -EBUSY;
		begin = monotonic_ns();
		if (!error)
			error = gpool_sliced_range_grow(sliced, i + 1, 0);
		times[i] = (double)(monotonic_ns() - begin) / 1000;
	}
	if (error)
		return error;
	bench_sample(bench, ahead ? FIGURE_sliced_range_grow_ahead : FIGURE_sliced_range_grow, median(times, GROWTHS));
	return gpool_sliced_range_destroy(sliced);
}

int bench_elastic(struct bench *bench)
{
	struct gpool *pool = NULL;
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = sample_range(bench, pool);
		if (!error)
			error = sample_sliced(bench, pool, false);
		if (!error)
			error = sample_sliced(bench, pool, true);
	}
	if (error)
		bench_complain(bench, error, "cannot commit pages or grow slices");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
