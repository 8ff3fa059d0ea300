/*
 * bench_sleep.c - sleep and wake of ranges in a pool of 40,960 pages. The content of a range of 35,000 pages is
 * discarded. The content of a smaller range is spilled and restored.
 *
 * On `host`, a mapping is a system call. Its cost on a GPU must be measured on a GPU, so the driver calls of a wake are
 * a figure, too.
 */
#include "tools/bench/bench.h"

#include <stdbool.h>
#include <string.h>

enum { POOL_PAGES = 40960, RANGE_PAGES = 35000, CONTENT_PAGES = 512 };

static uint64_t driver_calls(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	return gpool_stats(pool, &statistics) ? 0 : statistics.driver_calls;
}

static int sample(struct bench *bench, struct gpool *pool, bool content)
{
	uint64_t begin = monotonic_ns(), calls;
	int error = gpool_sleep(pool, 0);

	if (error)
		return error;
	bench_sample(bench, content ? FIGURE_sleep_512_content : FIGURE_sleep_35000_pages,
		(double)(monotonic_ns() - begin) / 1e6);
	calls = driver_calls(pool);
	begin = monotonic_ns();
	error = gpool_wake(pool, 0);
	if (error)
		return error;
	bench_sample(bench, content ? FIGURE_wake_512_content : FIGURE_wake_35000_pages,
		(double)(monotonic_ns() - begin) / 1e6);
	if (!content)
		bench_sample(bench, FIGURE_wake_35000_calls, (double)(driver_calls(pool) - calls));
	return 0;
}

static int series(struct bench *bench, struct gpool *pool, bool content)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range;
	uint64_t address;
	int error;

	options.memory_class = content ? GPOOL_OBJECT_MUTABLE : GPOOL_OBJECT_EPHEMERAL;
	error = gpool_range_create(pool, content ? CONTENT_PAGES : RANGE_PAGES, &options, &range);
	if (error)
		return error;
	error = gpool_range_address(range, &address);
	if (!error && content)
		memset((void *)(uintptr_t)address, 0x5a, CONTENT_PAGES * (size_t)gpool_page_bytes(pool));
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample(bench, pool, content);
	return error ? error : gpool_range_destroy(range);
}

int bench_sleep(struct bench *bench)
{
	struct gpool *pool = NULL;
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = series(bench, pool, false);
	if (!error)
		error = series(bench, pool, true);
	if (error)
		bench_complain(bench, error, "cannot put ranges to sleep and wake them");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
