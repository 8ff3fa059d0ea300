/*
 * bench_malloc_async.c - gpool_malloc_async() on a pool of 80 GB, compared with a caching allocator without remapping
 * on the same pool. Memory is written only by streams that need work to do, so the 80 GB are mostly addresses only.
 */
#include "tools/bench/bench.h"

#include "client/core/request.h"
#include "cuda/gpu.h"
#include "tools/lib/allocator.h"
#include "tools/lib/malloc_make.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static const uint64_t device_bytes = 80 * GIB, page_bytes = 2 * MIB;

/* A session and its allocator. */
struct subject {
	struct bench *bench;
	struct gpool *pool;
	struct allocator *allocator;
	uint32_t stream;
};

static int subject_open(struct bench *bench, const struct allocator_ops *ops, struct subject *subject)
{
	int error;

	*subject = (struct subject){.bench = bench};
	error = daemon_open(bench, 0, &subject->pool);
	if (!error)
		error = gpool_stream_open(subject->pool, NULL, 0, &subject->stream);
	if (!error)
		error = ops->open(subject->pool, &subject->allocator);
	return error;
}

static void subject_close(struct subject *subject)
{
	if (subject->allocator)
		subject->allocator->ops->close(subject->allocator);
	gpool_close(subject->pool);
}

static int subject_malloc(struct subject *subject, uint64_t bytes, uint64_t *address)
{
	return subject->allocator->ops->malloc(subject->allocator, bytes, subject->stream, address);
}

static int subject_free(struct subject *subject, uint64_t address)
{
	return subject->allocator->ops->free(subject->allocator, address, subject->stream);
}

static uint64_t subject_calls(const struct subject *subject)
{
	return gpu_calls_total(pool_gpu(subject->pool));
}

/* Call `measure` for gpool_malloc_async() and for the peer, each with its own sessions. */
static int measure_both(struct bench *bench,
	int (*measure)(struct bench *bench, const struct allocator_ops *ops, void *context), void *context)
{
	int error = daemon_start_device(bench, device_bytes, page_bytes, NULL);

	if (error)
		return error;
	error = measure(bench, &gpool_ops, context);
	if (!error)
		error = measure(bench, &best_fit_ops, context);
	if (error)
		bench_complain(bench, error, "a call failed");
	daemon_stop(bench);
	return error;
}

/* ---- the steady state ---- */

enum { LIVE = 64, PAIRS = 256, BATCHES = 256 };

/* All sizes differ, so an exact fit exists and must be found. */
static uint64_t steady_bytes(unsigned i)
{
	return (1 + i * 37 % LIVE) * page_bytes;
}

static int steady_batch(struct subject *subject, uint64_t addresses[LIVE])
{
	int error = 0;

	for (unsigned i = 0; i < PAIRS && !error; i++) {
		error = subject_free(subject, addresses[i % LIVE]);
		if (!error)
			error = subject_malloc(subject, steady_bytes(i % LIVE), &addresses[i % LIVE]);
	}
	return error;
}

static int steady_sample(struct subject *subject, uint64_t addresses[LIVE], double *ns, double *calls)
{
	static double times[BATCHES];
	uint64_t before = subject_calls(subject);
	int error = 0;

	for (unsigned batch = 0; batch < BATCHES && !error; batch++) {
		uint64_t begin = monotonic_ns();

		error = steady_batch(subject, addresses);
		times[batch] = (double)(monotonic_ns() - begin) / PAIRS;
	}
	*ns = median(times, BATCHES);
	*calls = 1000 * (double)(subject_calls(subject) - before) / (BATCHES * PAIRS);
	return error;
}

/* Make a second stream known to the allocator, by a free on it. */
static int another_stream(struct subject *subject)
{
	uint32_t stream;
	uint64_t address;
	int error = gpool_stream_open(subject->pool, NULL, 0, &stream);

	if (!error)
		error = subject->allocator->ops->malloc(subject->allocator, page_bytes, stream, &address);
	return error ? error : subject->allocator->ops->free(subject->allocator, address, stream);
}

static int steady(struct bench *bench, const struct allocator_ops *ops, void *context)
{
	bool ours = ops == &gpool_ops;
	uint64_t addresses[LIVE];
	struct subject subject;
	double ns, calls;
	int error = subject_open(bench, ops, &subject);

	(void)context;
	for (unsigned i = 0; i < LIVE && !error; i++)
		error = subject_malloc(&subject, steady_bytes(i), &addresses[i]);
	for (int streams = 1; streams <= 2; streams++) {
		if (streams == 2 && !error)
			error = another_stream(&subject);
		if (!error)
			error = steady_sample(&subject, addresses, &ns, &calls); /* warms up */
		for (unsigned run = 0; run < bench->runs && !error; run++) {
			error = steady_sample(&subject, addresses, &ns, &calls);
			if (!error && streams == 1)
				bench_sample(bench,
					ours ? FIGURE_malloc_async_steady_pair : FIGURE_peer_fit_steady_pair, ns);
			else if (!error)
				bench_sample(bench,
					ours ? FIGURE_malloc_async_steady_two_streams
					     : FIGURE_peer_fit_steady_two_streams,
					ns);
			if (!error && streams == 1 && ours)
				bench_sample(bench, FIGURE_malloc_async_steady_calls, calls);
		}
	}
	subject_close(&subject);
	return error;
}

int bench_malloc_async_steady(struct bench *bench)
{
	return measure_both(bench, steady, NULL);
}

/* ---- a trace ---- */

struct played {
	double ms;
	uint64_t calls, maps, unmaps, failed, peak;
};

/* Play every event of a trace in order. addresses: [trace->count]; 0: the allocation failed or has been freed. */
static int trace_play(
	struct subject *subject, const struct malloc_trace *trace, uint64_t *addresses, struct played *played)
{
	uint64_t begin = monotonic_ns(), calls = subject_calls(subject);
	const struct gpu *gpu = pool_gpu(subject->pool);
	uint64_t maps = gpu_calls(gpu, GPU_CALL_MAP), unmaps = gpu_calls(gpu, GPU_CALL_UNMAP);
	int error = 0;

	*played = (struct played){0};
	for (uint32_t i = 0; i < trace->count && !error; i++) {
		const struct malloc_event *event = &trace->events[i];
		uint64_t held;

		bench_progress(subject->bench, i, trace->count);
		if (event->op == MALLOC_OP_FREE) {
			if (addresses[event->twin])
				error = subject_free(subject, addresses[event->twin]);
			addresses[event->twin] = 0;
			continue;
		}
		addresses[i] = 0;
		error = subject_malloc(subject, event->bytes, &addresses[i]);
		if (error == -ENOSPC || error == -ENOMEM) {
			played->failed++;
			error = 0;
		}
		held = subject->allocator->ops->mapped(subject->allocator);
		if (held > played->peak)
			played->peak = held;
	}
	played->ms = (double)(monotonic_ns() - begin) / 1e6;
	played->calls = subject_calls(subject) - calls;
	played->maps = gpu_calls(gpu, GPU_CALL_MAP) - maps;
	played->unmaps = gpu_calls(gpu, GPU_CALL_UNMAP) - unmaps;
	return error;
}

struct trace_plan {
	struct malloc_recipe recipe;
	struct malloc_trace trace;
	uint64_t *addresses;
	/* Called after each trace, with the remaining allocations; may be NULL. */
	int (*finish)(struct subject *subject, struct trace_plan *plan);
	double finished; /* the result of finish() */
	/* Figures of gpool and of the peer; FIGURE_PROGRESS: none. */
	enum figure ms[2], peak[2], calls[2], maps[2], unmaps[2], failed[2], finish_figure[2];
};

static void trace_sample(struct bench *bench, enum figure figure, double value)
{
	if (figure != FIGURE_PROGRESS)
		bench_sample(bench, figure, value);
}

static int trace_runs(struct bench *bench, const struct allocator_ops *ops, void *context)
{
	struct trace_plan *plan = context;
	int peer = ops != &gpool_ops, error = 0;

	for (unsigned run = 0; run < bench->runs && !error; run++) {
		struct subject subject;
		struct played played = {0};

		error = subject_open(bench, ops, &subject);
		if (!error)
			error = trace_play(&subject, &plan->trace, plan->addresses, &played);
		if (!error && plan->finish)
			error = plan->finish(&subject, plan);
		subject_close(&subject);
		if (error)
			break;
		trace_sample(bench, plan->ms[peer], played.ms);
		trace_sample(bench, plan->peak[peer], (double)played.peak / (double)MIB);
		trace_sample(bench, plan->calls[peer], (double)played.calls);
		trace_sample(bench, plan->maps[peer], (double)played.maps);
		trace_sample(bench, plan->unmaps[peer], (double)played.unmaps);
		trace_sample(bench, plan->failed[peer], (double)played.failed);
		trace_sample(bench, plan->finish_figure[peer], plan->finished);
	}
	return error;
}

static int trace_bench(struct bench *bench, struct trace_plan *plan)
{
	int error = malloc_make(&plan->recipe, &plan->trace);

	if (!error)
		plan->addresses = calloc(plan->trace.count, sizeof(*plan->addresses));
	if (!error && !plan->addresses)
		error = -ENOMEM;
	if (error)
		bench_complain(bench, error, "cannot generate the trace");
	else
		error = measure_both(bench, trace_runs, plan);
	free(plan->addresses);
	malloc_trace_free(&plan->trace);
	return error;
}

/* ---- random ---- */

static int random_bench(struct bench *bench, uint32_t allocations, uint64_t most, const enum figure figures[10])
{
	struct trace_plan plan = {
		.recipe = {.allocations = allocations,
			.least = 1,
			.most = most,
			.cap = 16000 * MIB,
			.chance = 73,
			.threads = 1,
			.streams = 1,
			.seed = 1},
		.ms = {figures[0], figures[6]},
		.peak = {figures[1], figures[7]},
		.calls = {figures[2], figures[8]},
		.maps = {figures[3], FIGURE_PROGRESS},
		.unmaps = {figures[4], FIGURE_PROGRESS},
		.failed = {figures[5], figures[9]},
		.finish_figure = {FIGURE_PROGRESS, FIGURE_PROGRESS},
	};

	return trace_bench(bench, &plan);
}

#define RANDOM_CELL(when, cell, runs, count, mib, allocations, bytes) \
	int bench_malloc_async_random_##cell(struct bench *bench) \
	{ \
		static const enum figure figures[10] = {FIGURE_malloc_async_random_##cell##_time, \
			FIGURE_malloc_async_random_##cell##_peak, FIGURE_malloc_async_random_##cell##_calls, \
			FIGURE_malloc_async_random_##cell##_maps, FIGURE_malloc_async_random_##cell##_unmaps, \
			FIGURE_malloc_async_random_##cell##_failed, FIGURE_peer_fit_##cell##_time, \
			FIGURE_peer_fit_##cell##_peak, FIGURE_peer_fit_##cell##_calls, \
			FIGURE_peer_fit_##cell##_failed}; \
\
		return random_bench(bench, allocations, bytes, figures); \
	}
#include "tools/bench/figures.def"

/* ---- churn ---- */

/*
 * Free half of the live allocations. Return the size of the largest request that succeeds, as a share of the free
 * memory.
 */
static int largest_request(struct subject *subject, struct trace_plan *plan)
{
	static const double shares[] = {1, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01};
	struct allocator_totals totals;
	uint64_t address, seen = 0;
	int error = 0;

	for (uint32_t i = 0; i < plan->trace.count && !error; i++)
		if (plan->addresses[i] && seen++ % 2) {
			error = subject_free(subject, plan->addresses[i]);
			plan->addresses[i] = 0;
		}
	subject->allocator->ops->totals(subject->allocator, &totals);
	plan->finished = 0;
	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]) && !error; i++) {
		uint64_t bytes = (uint64_t)(shares[i] * (double)(device_bytes - totals.live)) / page_bytes * page_bytes;

		error = subject_malloc(subject, bytes, &address);
		if (!error) {
			plan->finished = shares[i];
			return 0;
		}
		if (error == -ENOSPC || error == -ENOMEM)
			error = 0;
	}
	return error;
}

int bench_malloc_async_churn(struct bench *bench)
{
	struct trace_plan plan = {
		.recipe = {.through = 300 * GIB,
			.least = 1,
			.most = GIB,
			.cap = 72 * GIB,
			.chance = 73,
			.threads = 1,
			.streams = 1,
			.seed = 1},
		.finish = largest_request,
		.ms = {FIGURE_malloc_async_churn_time, FIGURE_peer_fit_churn_time},
		.peak = {FIGURE_PROGRESS, FIGURE_PROGRESS},
		.maps = {FIGURE_PROGRESS, FIGURE_PROGRESS},
		.unmaps = {FIGURE_PROGRESS, FIGURE_PROGRESS},
		.calls = {FIGURE_malloc_async_churn_calls, FIGURE_peer_fit_churn_calls},
		.failed = {FIGURE_malloc_async_churn_failed, FIGURE_peer_fit_churn_failed},
		.finish_figure = {FIGURE_malloc_async_churn_largest, FIGURE_peer_fit_churn_largest},
	};

	return trace_bench(bench, &plan);
}

/* ---- several streams ---- */

enum { THREADS = 4, THREAD_LIVE = 32, THREAD_STEPS = 20000, WORK_BYTES = 16384 };

struct thread {
	struct subject *subject; /* the allocator; each thread has its own stream */
	uint32_t stream;
	uint64_t seed;
	uint64_t calls;
	int error;
	pthread_t handle;
};

static void *thread_main(void *context)
{
	struct thread *thread = context;
	struct allocator *allocator = thread->subject->allocator;
	uint64_t addresses[THREAD_LIVE] = {0};

	for (unsigned step = 0; step < THREAD_STEPS && !thread->error; step++) {
		uint64_t *address = &addresses[random_step(&thread->seed) % THREAD_LIVE];

		thread->calls++;
		if (*address) {
			thread->error = allocator->ops->free(allocator, *address, thread->stream);
			*address = 0;
			continue;
		}
		thread->error = allocator->ops->malloc(
			allocator, (1 + random_step(&thread->seed) % 32) * page_bytes, thread->stream, address);
		if (!thread->error)
			thread->error = gpool_fill(allocator->pool, thread->stream, *address, step, WORK_BYTES);
	}
	return NULL;
}

static int streams_run(struct subject *subject, struct thread threads[THREADS], uint64_t *calls)
{
	int error = 0, started = 0;

	for (; started < THREADS && !error; started++) {
		struct thread *thread = &threads[started];

		*thread = (struct thread){.subject = subject, .seed = (uint64_t)started + 1};
		error = gpool_stream_open(subject->pool, NULL, 0, &thread->stream);
		if (!error)
			error = -pthread_create(&thread->handle, NULL, thread_main, thread);
		if (error)
			break;
	}
	*calls = 0;
	for (int i = 0; i < started; i++) {
		pthread_join(threads[i].handle, NULL);
		*calls += threads[i].calls;
		error = error ? error : threads[i].error;
	}
	return error;
}

static int streams(struct bench *bench, const struct allocator_ops *ops, void *context)
{
	bool ours = ops == &gpool_ops;
	int error = 0;

	(void)context;
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		struct thread threads[THREADS];
		struct subject subject;
		uint64_t begin, calls, waits;

		error = subject_open(bench, ops, &subject);
		begin = monotonic_ns();
		if (!error)
			error = streams_run(&subject, threads, &calls);
		if (!error) {
			const struct gpu *gpu = pool_gpu(subject.pool);

			waits = gpu_calls(gpu, GPU_CALL_TIMELINE_WAIT) + gpu_calls(gpu, GPU_CALL_EVENT_WAIT);
			bench_sample(bench,
				ours ? FIGURE_malloc_async_multi_stream_call : FIGURE_peer_fit_multi_stream_call,
				(double)(monotonic_ns() - begin) * THREADS / (double)calls);
			if (ours)
				bench_sample(bench, FIGURE_malloc_async_multi_stream_waits,
					100000 * (double)waits / (double)calls);
		}
		subject_close(&subject);
	}
	return error;
}

int bench_malloc_async_multi_stream(struct bench *bench)
{
	return measure_both(bench, streams, NULL);
}
