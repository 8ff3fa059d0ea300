/*
 * bench_hot.c - operations of a worker that do not involve the agent: allocate, free, pin, unpin.
 *
 * The lease is large enough for all operations, as in an engine that has been running for some time. The count of
 * refills proves that no operation needed the agent.
 */
#include "tools/bench/bench.h"

#include <errno.h>

enum {
	POOL_PAGES = 4096,
	SINGLES = 512, /* blocks of one page in a batch */
	HUNDREDS = 8,  /* blocks of 100 pages in a batch */
	PINNED = 256,  /* blocks pinned in succession */
	PINS = 4,      /* pins of each block in a batch */
	PAIRS = 512,   /* pairs of allocation and free in a batch */
	SPANS = 512,   /* spans in a batch; they fill four pages */
	SPAN_BYTES = 4096,
	SINGLE_BATCHES = 256,
	HUNDRED_BATCHES = 2048,
	PIN_BATCHES = 256,
	PAIR_BATCHES = 256,
	SPAN_BATCHES = 256,
	BATCHES_MAX = 2048,
};

/* Prevent the agent from reclaiming idle pages of this worker between batches. */
static const char *const settings[] = {"lease.keep_pages=4096", "lease.initial_pages=64", NULL};

static int allocate_all(struct gpool *pool, uint32_t pages, struct gpool_block *blocks, unsigned count)
{
	int error = 0;

	for (unsigned i = 0; i < count && !error; i++)
		error = gpool_alloc(pool, pages, NULL, &blocks[i]);
	return error;
}

static int free_all(struct gpool *pool, const struct gpool_block *blocks, unsigned count)
{
	int error = 0;

	for (unsigned i = 0; i < count; i++)
		error |= gpool_free(pool, &blocks[i]);
	return error ? -EIO : 0;
}

/*
 * Times of all batches of a run. The sample is their median, so that batches in which the thread was preempted do not
 * affect it.
 */
static double first_ns[BATCHES_MAX], second_ns[BATCHES_MAX];

static int batches(
	struct gpool *pool, uint32_t pages, unsigned count, unsigned rounds, double *alloc_ns, double *free_ns)
{
	struct gpool_block blocks[SINGLES];
	int error;

	for (unsigned i = 0; i < rounds; i++) {
		uint64_t begin = monotonic_ns(), middle;

		error = allocate_all(pool, pages, blocks, count);
		if (error)
			return error;
		middle = monotonic_ns();
		error = free_all(pool, blocks, count);
		if (error)
			return error;
		first_ns[i] = (double)(middle - begin) / count;
		second_ns[i] = (double)(monotonic_ns() - middle) / count;
	}
	*alloc_ns = median(first_ns, rounds);
	*free_ns = median(second_ns, rounds);
	return 0;
}

static int sample_batches(struct bench *bench, struct gpool *pool)
{
	double alloc_ns, free_ns;
	int error;

	error = batches(pool, 1, SINGLES, SINGLE_BATCHES, &alloc_ns, &free_ns);
	if (error)
		return error;
	bench_sample(bench, FIGURE_alloc1, alloc_ns);
	bench_sample(bench, FIGURE_free1, free_ns);
	error = batches(pool, 100, HUNDREDS, HUNDRED_BATCHES, &alloc_ns, &free_ns);
	if (error)
		return error;
	bench_sample(bench, FIGURE_alloc100, alloc_ns);
	bench_sample(bench, FIGURE_free100, free_ns);
	return 0;
}

static int sample_pairs(struct bench *bench, struct gpool *pool)
{
	struct gpool_block block;
	int error = 0;

	for (unsigned batch = 0; batch < PAIR_BATCHES; batch++) {
		uint64_t begin = monotonic_ns();

		for (unsigned i = 0; i < PAIRS && !error; i++) {
			error = gpool_alloc(pool, 1, NULL, &block);
			if (!error)
				error = gpool_free(pool, &block);
		}
		first_ns[batch] = (double)(monotonic_ns() - begin) / PAIRS;
	}
	if (!error)
		bench_sample(bench, FIGURE_alloc1_free1, median(first_ns, PAIR_BATCHES));
	return error;
}

static int sample_pins(struct bench *bench, struct gpool *pool, const struct gpool_block *blocks)
{
	int error = 0;

	for (unsigned batch = 0; batch < PIN_BATCHES; batch++) {
		uint64_t begin = monotonic_ns(), middle;

		for (unsigned i = 0; i < PINNED * PINS; i++)
			error |= gpool_pin(pool, &blocks[i % PINNED]);
		middle = monotonic_ns();
		for (unsigned i = 0; i < PINNED * PINS; i++)
			error |= gpool_unpin(pool, &blocks[i % PINNED]);
		first_ns[batch] = (double)(middle - begin) / (PINNED * PINS);
		second_ns[batch] = (double)(monotonic_ns() - middle) / (PINNED * PINS);
	}
	if (error)
		return -EIO;
	bench_sample(bench, FIGURE_pin, median(first_ns, PIN_BATCHES));
	bench_sample(bench, FIGURE_unpin, median(second_ns, PIN_BATCHES));
	return 0;
}

static int span_batch(struct gpool *pool, double *alloc_ns, double *free_ns)
{
	static struct gpool_span spans[SPANS];
	uint64_t begin = monotonic_ns(), middle;
	int error = 0;

	for (unsigned i = 0; i < SPANS && !error; i++)
		error = gpool_span_alloc(pool, SPAN_BYTES, GPOOL_USAGE_TEMP_BUFFER, &spans[i]);
	if (error)
		return error;
	middle = monotonic_ns();
	for (unsigned i = 0; i < SPANS; i++)
		error |= gpool_span_free(pool, &spans[i]);
	*alloc_ns = (double)(middle - begin) / SPANS;
	*free_ns = (double)(monotonic_ns() - middle) / SPANS;
	return error ? -EIO : 0;
}

static int sample_spans(struct bench *bench, struct gpool *pool)
{
	int error = 0;

	for (unsigned batch = 0; batch < SPAN_BATCHES && !error; batch++)
		error = span_batch(pool, &first_ns[batch], &second_ns[batch]);
	if (error)
		return error;
	bench_sample(bench, FIGURE_span_alloc, median(first_ns, SPAN_BATCHES));
	bench_sample(bench, FIGURE_span_free, median(second_ns, SPAN_BATCHES));
	return 0;
}

static uint64_t refills(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	return gpool_stats(pool, &statistics) ? 0 : statistics.refills;
}

static int sample_all(struct bench *bench, struct gpool *pool)
{
	struct gpool_block blocks[PINNED];
	int error;

	error = sample_batches(bench, pool);
	if (!error)
		error = sample_pairs(bench, pool);
	if (!error)
		error = sample_spans(bench, pool);
	if (!error)
		error = allocate_all(pool, 1, blocks, PINNED);
	if (error)
		return error;
	error = sample_pins(bench, pool, blocks);
	return error ? error : free_all(pool, blocks, PINNED);
}

int bench_hot(struct bench *bench)
{
	struct gpool *pool = NULL;
	double unused;
	uint64_t before;
	int error;

	error = daemon_start(bench, POOL_PAGES, settings);
	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	if (error) {
		bench_complain(bench, error, "cannot attach");
		goto stop;
	}
	/* Warm up: lease and map all pages that the measurement uses. */
	error = batches(pool, 100, HUNDREDS, 16, &unused, &unused);
	if (!error)
		error = batches(pool, 1, SINGLES, 16, &unused, &unused);
	before = refills(pool);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_all(bench, pool);
	if (error)
		bench_complain(bench, error, "a call failed");
	else if (refills(pool) != before)
		error = bench_complain(bench, -EAGAIN,
			"%llu calls sent a request to the agent, so the figures are not those of the hot path",
			(unsigned long long)(refills(pool) - before));
	gpool_close(pool);
stop:
	daemon_stop(bench);
	return error;
}
