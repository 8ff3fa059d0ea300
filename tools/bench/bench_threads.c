/*
 * bench_threads.c - 1 to 64 threads of one process: allocation, pins of one block, and gpool_malloc_async().
 *
 * A figure is the wall time of all threads divided by the number of all operations. With ideal scaling it falls until
 * each processor has a thread, and then stays constant.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { BATCH = 16, OPERATIONS = 1 << 17, SHORT_OPERATIONS = 1 << 20, THREADS_MOST = 64 };
static const uint64_t device_bytes = UINT64_C(32) << 30, page_bytes = 2 << 20;

struct crowd {
	struct bench *bench;
	struct gpool *pool;
	struct gpool_block shared; /* pinned by all threads */
	unsigned steps;            /* of each thread */
	pthread_barrier_t ready;
};

struct thread {
	struct crowd *crowd;
	int (*step)(struct thread *thread);
	uint32_t stream; /* of this thread */
	uint64_t seed;
	int error;
	pthread_t handle;
};

/* Each step makes BATCH operations. */
static int step_alloc(struct thread *thread)
{
	struct gpool_block blocks[BATCH];
	unsigned count = 0;
	int error = 0;

	while (count < BATCH && !error) {
		error = gpool_alloc(thread->crowd->pool, 1, NULL, &blocks[count]);
		count += !error;
	}
	for (unsigned i = 0; i < count; i++)
		error |= gpool_free(thread->crowd->pool, &blocks[i]);
	return error;
}

static int step_pin(struct thread *thread)
{
	struct crowd *crowd = thread->crowd;
	int error = 0;

	for (unsigned i = 0; i < BATCH && !error; i++) {
		error = gpool_pin(crowd->pool, &crowd->shared);
		if (!error)
			error = gpool_unpin(crowd->pool, &crowd->shared);
	}
	return error;
}

static int step_malloc(struct thread *thread)
{
	struct gpool *pool = thread->crowd->pool;
	uint64_t addresses[BATCH];
	unsigned count = 0;
	int error = 0;

	while (count < BATCH && !error) {
		uint64_t bytes = (1 + random_next(&thread->seed) % 4) * page_bytes;

		error = gpool_malloc_async(pool, bytes, thread->stream, &addresses[count]);
		count += !error;
	}
	for (unsigned i = 0; i < count; i++)
		error |= gpool_free_async(pool, addresses[i], thread->stream);
	return error;
}

static void *thread_main(void *context)
{
	struct thread *thread = context;
	struct crowd *crowd = thread->crowd;

	/* The first steps lease and map pages. */
	for (int i = 0; i < 8 && !thread->error; i++)
		thread->error = thread->step(thread);
	pthread_barrier_wait(&crowd->ready);
	pthread_barrier_wait(&crowd->ready);
	for (unsigned i = 0; i < crowd->steps && !thread->error; i++)
		thread->error = thread->step(thread);
	/* A thread that ends returns its pages, which is not measured. */
	pthread_barrier_wait(&crowd->ready);
	return NULL;
}

/* Use a second stream, so that frees record fences even with a single thread. */
static int crowd_stream(struct crowd *crowd)
{
	struct thread other = {.crowd = crowd, .seed = THREADS_MOST + 1};
	int error = gpool_stream_open(crowd->pool, NULL, 0, &other.stream);

	return error ? error : step_malloc(&other);
}

/* Return nanoseconds per operation of `count` threads, or a negative errno. */
static double crowd_run(struct crowd *crowd, unsigned count, unsigned operations, int (*step)(struct thread *thread))
{
	struct thread threads[THREADS_MOST] = {{0}};
	unsigned streams = 0, started = 0;
	uint64_t begin, took = 0;
	int error = 0;

	crowd->steps = operations / BATCH / count;
	for (; streams < count && !error; streams++) {
		threads[streams] = (struct thread){.crowd = crowd, .step = step, .seed = streams + 1};
		error = gpool_stream_open(crowd->pool, NULL, 0, &threads[streams].stream);
		if (error)
			break;
	}
	pthread_barrier_init(&crowd->ready, NULL, count + 1);
	for (; started < count && !error; started++)
		if (pthread_create(&threads[started].handle, NULL, thread_main, &threads[started]))
			abort(); /* the threads that exist wait at the barrier */
	if (started) {
		pthread_barrier_wait(&crowd->ready);
		begin = monotonic_ns();
		pthread_barrier_wait(&crowd->ready);
		pthread_barrier_wait(&crowd->ready);
		took = monotonic_ns() - begin;
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(threads[i].handle, NULL);
		error = error ? error : threads[i].error;
	}
	pthread_barrier_destroy(&crowd->ready);
	for (unsigned i = 0; i < streams; i++)
		gpool_stream_close(crowd->pool, threads[i].stream);
	return error ? error : (double)took / (crowd->steps * count * BATCH);
}

static int crowd_sample(struct crowd *crowd, unsigned count, int (*step)(struct thread *thread), enum figure figure)
{
	/*
	 * Short operations are repeated more often, so that the scheduling of many threads is a small part of the time.
	 */
	double ns = crowd_run(crowd, count, step == step_malloc ? OPERATIONS : SHORT_OPERATIONS, step);

	if (ns < 0)
		return bench_complain(crowd->bench, (int)ns, "%u threads", count);
	bench_sample(crowd->bench, figure, ns);
	return 0;
}

static int crowd_samples(struct crowd *crowd)
{
	int error = 0;

#define THREADS_CELL(count) \
	if (!error) \
		error = crowd_sample(crowd, count, step_alloc, FIGURE_threads_alloc_##count); \
	if (!error) \
		error = crowd_sample(crowd, count, step_pin, FIGURE_threads_pin_##count); \
	if (!error) \
		error = crowd_sample(crowd, count, step_malloc, FIGURE_threads_malloc_##count);
#include "tools/bench/figures.def"
	return error;
}

int bench_threads(struct bench *bench)
{
	struct crowd crowd = {.bench = bench};
	int error = daemon_start_device(bench, device_bytes, page_bytes, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &crowd.pool);
	if (!error)
		error = gpool_alloc(crowd.pool, 1, NULL, &crowd.shared);
	if (!error)
		error = crowd_stream(&crowd);
	if (error)
		bench_complain(bench, error, "cannot attach and allocate");
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = crowd_samples(&crowd);
	gpool_close(crowd.pool);
	daemon_stop(bench);
	return error;
}
