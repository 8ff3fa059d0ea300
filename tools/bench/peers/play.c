/*
 * play.c - play one workload on the allocator that this program is linked with, and print the results as one JSON
 * object.
 *
 * usage: PROGRAM WORK      WORK: a name from works[]
 *
 * peers.py starts it, with the environment that the subject needs, and counts the driver's calls.
 */
#include "tools/bench/peers/subject.h"
#include "tools/lib/malloc_make.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

enum { BATCHES = 256, PAIRS = 256, LIVE = 64, BLOCKS = 512 };

/* The memory of the device in `churn`; peers.py sets it. */
static const uint64_t device_bytes = 19 * GIB;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- time outside of the calls of the double of the driver ---- */

struct spent {
	uint64_t calls, ns;
};

static void (*double_spent)(uint64_t *calls, uint64_t *ns);

/* Return the calls of this thread so far, and the time so far without that in these calls. */
static struct spent spent(void)
{
	struct spent now = {0, 0};

	if (double_spent)
		double_spent(&now.calls, &now.ns);
	now.ns = now_ns() - now.ns;
	return now;
}

static void double_find(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	if (driver)
		*(void **)&double_spent = dlsym(driver, "gpuDoubleSpent");
}

static int compare(const void *first, const void *second)
{
	double a = *(const double *)first, b = *(const double *)second;

	return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), compare);
	return values[count / 2];
}

static void must(bool done, const char *what)
{
	if (done)
		return;
	fprintf(stderr, "play: %s failed\n", what);
	exit(1);
}

/* ---- a steady state: free one of 64 allocations and allocate the same size again ---- */

static uint64_t steady_bytes(unsigned i)
{
	return (1 + i * 37 % LIVE) * 2 * MIB; /* all sizes differ, so that the fit must be found */
}

static void steady(void)
{
	static double ns[BATCHES];
	uint64_t calls = 0;

	for (unsigned i = 0; i < LIVE; i++)
		must(subject_malloc(i, steady_bytes(i)), "an allocation");
	for (unsigned round = 0; round < 2; round++) /* the first one warms up */
		for (unsigned batch = 0; batch < BATCHES; batch++) {
			struct spent begin = spent(), end;

			for (unsigned i = 0; i < PAIRS; i++) {
				subject_free(i % LIVE);
				must(subject_malloc(i % LIVE, steady_bytes(i % LIVE)), "an allocation");
			}
			end = spent();
			ns[batch] = (double)(end.ns - begin.ns) / PAIRS;
			calls += round ? end.calls - begin.calls : 0;
		}
	printf("\"ns\": %.1f, \"steady_calls\": %.0f", median(ns, BATCHES), 1000.0 * (double)calls / (BATCHES * PAIRS));
}

/* ---- blocks of one size, all allocated and then all freed ---- */

static void blocks(uint64_t bytes)
{
	static double first[BATCHES], second[BATCHES];

	for (unsigned round = 0; round < 2; round++)
		for (unsigned batch = 0; batch < BATCHES; batch++) {
			uint64_t begin = now_ns(), middle;

			for (uint32_t i = 0; i < BLOCKS; i++)
				must(subject_malloc(i, bytes), "an allocation");
			middle = now_ns();
			for (uint32_t i = 0; i < BLOCKS; i++)
				subject_free(i);
			first[batch] = (double)(middle - begin) / BLOCKS;
			second[batch] = (double)(now_ns() - middle) / BLOCKS;
		}
	printf("\"ns\": %.1f", median(first, BATCHES) + median(second, BATCHES));
}

/* ---- a trace ---- */

/* Free every other allocation, and find the largest request that succeeds, as a share of the free memory. */
static double largest_request(const struct malloc_trace *trace, const bool *live)
{
	static const double shares[] = {1, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05};
	uint64_t free_bytes = device_bytes, seen = 0;

	for (uint32_t i = 0; i < trace->count; i++)
		if (live[i] && seen++ % 2)
			subject_free(i);
		else if (live[i])
			free_bytes -= (trace->events[i].bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
	for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++)
		if (subject_malloc(trace->count, (uint64_t)(shares[i] * (double)free_bytes) / (2 * MIB) * (2 * MIB)))
			return shares[i];
	return 0;
}

static void trace_play(bool churn, const struct malloc_trace *trace)
{
	bool *live = calloc(trace->count, sizeof(*live));
	uint32_t failed = 0;
	struct spent begin, end;

	must(live, "an allocation");
	begin = spent();
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct malloc_event *event = &trace->events[i];

		if (event->op == MALLOC_OP_FREE) {
			if (live[event->twin])
				subject_free(event->twin);
			live[event->twin] = false;
			continue;
		}
		live[i] = subject_malloc(i, event->bytes);
		failed += !live[i];
		subject_note();
	}
	end = spent();
	printf("\"ns\": %.1f, \"failed\": %u", (double)(end.ns - begin.ns) / trace->count, failed);
	if (churn)
		printf(", \"largest\": %.2f", largest_request(trace, live));
	if (subject_peak())
		printf(", \"peak_mib\": %llu", (unsigned long long)(subject_peak() / MIB));
	free(live);
}

static const struct work {
	const char *name;
	uint64_t bytes;              /* blocks of one size; 0: none */
	struct malloc_recipe recipe; /* a trace, if `chance` is not 0 */
	bool churn;
} works[] = {
	{.name = "steady"},
#define RANDOM(text, most_) \
	{ \
		.name = text, .recipe = { \
			.allocations = 10000, \
			.least = 1, \
			.most = most_, \
			.cap = 8000 * MIB, \
			.chance = 73, \
			.threads = 1, \
			.streams = 1, \
			.seed = 1 \
		} \
	}
	RANDOM("random-1m", MIB),
	RANDOM("random-4m", 4 * MIB),
	RANDOM("random-64m", 64 * MIB),
	RANDOM("random-256m", 256 * MIB),
	RANDOM("random-1g", GIB),
	{.name = "churn",
		.recipe = {.through = 75 * GIB,
			.least = 1,
			.most = 256 * MIB,
			.cap = 17510 * MIB,
			.chance = 73,
			.threads = 1,
			.streams = 1,
			.seed = 1},
		.churn = true},
	{.name = "pages", .bytes = 512 * KIB},
	{.name = "spans", .bytes = 4 * KIB},
	{.name = "mixed",
		.recipe = {.allocations = 100000,
			.least = 1,
			.most = 64 * KIB,
			.cap = 256 * MIB,
			.chance = 73,
			.threads = 1,
			.streams = 1,
			.seed = 1}},
};

static void play(const struct work *work)
{
	struct malloc_trace trace = {0};

	if (work->recipe.chance)
		must(malloc_make(&work->recipe, &trace) == 0, "making the trace");
	printf("{\"version\": \"%s\", ", subject_open(work->recipe.chance ? trace.count + 1 : BLOCKS));
	double_find();
	if (work->recipe.chance)
		trace_play(work->churn, &trace);
	else if (work->bytes)
		blocks(work->bytes);
	else
		steady();
	puts("}");
	malloc_trace_free(&trace);
}

int main(int count, char **arguments)
{
	for (size_t i = 0; count == 2 && i < sizeof(works) / sizeof(*works); i++)
		if (strcmp(works[i].name, arguments[1]) == 0) {
			play(&works[i]);
			return 0;
		}
	fprintf(stderr, "usage: %s WORK\nworks:", arguments[0]);
	for (size_t i = 0; i < sizeof(works) / sizeof(*works); i++)
		fprintf(stderr, " %s", works[i].name);
	fputc('\n', stderr);
	return 2;
}
