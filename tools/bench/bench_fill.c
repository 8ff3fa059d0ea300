/* bench_fill.c - utilization of a pool when the first allocation fails, with mixed sizes and fragmented free runs. */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdlib.h>

enum { POOL_PAGES = 4096, LARGEST = 64 };

struct filling {
	struct gpool *pool;
	uint64_t random;
	struct gpool_block blocks[POOL_PAGES];
	uint32_t count, pages;
};

static int fill_add(struct filling *filling)
{
	uint32_t pages = 1 + random_next(&filling->random) % LARGEST;
	int error;

	error = gpool_alloc(filling->pool, pages, NULL, &filling->blocks[filling->count]);
	if (error)
		return error;
	filling->count++;
	filling->pages += pages;
	return 0;
}

static int fill_remove(struct filling *filling, uint32_t at)
{
	struct gpool_block block = filling->blocks[at];

	filling->blocks[at] = filling->blocks[--filling->count];
	filling->pages -= block.page_count;
	return gpool_free(filling->pool, &block);
}

/*
 * Fill most of the pool, and free every other block. Then repeat three allocations and one free until an allocation
 * fails.
 */
static int fill_until_full(struct filling *filling)
{
	int error = 0;

	while (!error && filling->pages < POOL_PAGES * 7 / 10)
		error = fill_add(filling);
	for (uint32_t left = filling->count / 2; !error && left; left--)
		error = fill_remove(filling, random_next(&filling->random) % filling->count);
	while (!error)
		error = random_next(&filling->random) % 4 == 0
			? fill_remove(filling, random_next(&filling->random) % filling->count)
			: fill_add(filling);
	return error == -ENOSPC ? 0 : error;
}

static int sample_fill(struct bench *bench, struct filling *filling)
{
	int error = fill_until_full(filling);

	if (!error)
		bench_sample(bench, FIGURE_fill_mixed, (double)filling->pages / POOL_PAGES);
	while (!error && filling->count)
		error = fill_remove(filling, filling->count - 1);
	return error;
}

int bench_fill(struct bench *bench)
{
	struct filling *filling = calloc(1, sizeof(*filling));
	int error;

	if (!filling)
		return bench_complain(bench, -ENOMEM, "out of memory");
	filling->random = 88172645463325252u;
	error = daemon_start(bench, POOL_PAGES, NULL);
	if (error)
		goto free_filling;
	error = daemon_open(bench, 0, &filling->pool);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_fill(bench, filling);
	if (error)
		bench_complain(bench, error, "a call failed");
	gpool_close(filling->pool);
	daemon_stop(bench);
free_filling:
	free(filling);
	return error;
}
