/*
 * measure.c - sending samples, time, and order statistics.
 */
#include "tools/bench/bench.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Return the time of all driver calls of this process in ms, by the cost model of the tests' double; otherwise -1. */
static double driver_ms(void)
{
	static uint64_t (*modeled_us)(void);
	void *driver = modeled_us ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	if (driver)
		*(void **)&modeled_us = dlsym(driver, "gpuDoubleModeled");
	return modeled_us ? (double)modeled_us() / 1000 : -1;
}

/* A sample is small enough (PIPE_BUF) to be written to the pipe as a whole. */
void bench_sample(struct bench *bench, enum figure figure, double value)
{
	static struct {
		uint64_t ns;
		double driver_ms;
	} last[FIGURES + 1];
	double driver = driver_ms();
	uint64_t now = monotonic_ns();
	struct bench_result result = {.figure = figure,
		.value = value,
		.run_ms = (double)(now - (last[figure].ns ? last[figure].ns : bench->begin_ns)) / 1e6,
		.driver_ms = driver < 0 ? -1 : driver - last[figure].driver_ms};

	last[figure].ns = now;
	last[figure].driver_ms = driver < 0 ? 0 : driver;
	while (write(bench->results, &result, sizeof(result)) < 0 && errno == EINTR)
		;
}

void bench_progress(struct bench *bench, uint64_t done, uint64_t all)
{
	static uint64_t last_ns;
	uint64_t now = monotonic_ns();

	if (now - last_ns < UINT64_C(250000000))
		return;
	last_ns = now;
	bench_sample(bench, FIGURE_PROGRESS, 100 * (double)done / (double)all);
}

int bench_complain(const struct bench *bench, int error, const char *format, ...)
{
	va_list arguments;
	char text[256];

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "gpool-bench: %s: %s: %s\n", bench->group, text, gpool_strerror(error));
	return error;
}

uint64_t own_time_ns(void)
{
	uint64_t ran, waited = 0;
	FILE *file = fopen("/proc/thread-self/schedstat", "re");

	if (file && fscanf(file, "%" SCNu64 " %" SCNu64, &ran, &waited) != 2)
		waited = 0;
	if (file)
		fclose(file);
	return monotonic_ns() - waited;
}

int process_time(pid_t pid, uint64_t *ns)
{
	struct timespec used;
	clockid_t clock;
	int error = clock_getcpuclockid(pid, &clock);

	if (error)
		return -error;
	if (clock_gettime(clock, &used))
		return -errno;
	*ns += (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), compare);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double percentile(double *values, size_t count, double share)
{
	size_t at = (size_t)(share * (double)count);

	qsort(values, count, sizeof(*values), compare);
	return values[at < count ? at : count - 1];
}

uint32_t random_next(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*state = x;
	return (uint32_t)(x >> 32);
}
