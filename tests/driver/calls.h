/*
 * calls.h - assert the driver calls that a public call makes. The rows CALLS() and NEVER() of the programs that include
 * this header are the table of docs/driver_calls.md (tests/docs/driver_calls).
 *
 * Method: the driver's double counts the calls of each thread, so calls of other threads have no effect.
 */
#ifndef GPOOL_TESTS_CALLS_H
#define GPOOL_TESTS_CALLS_H

#include "tests/integration/kv_view.h"

#include <dlfcn.h>

enum { KINDS = 256 };

static const char *(*double_calls)(unsigned kind, uint64_t *count); /* of the calls that a row counts */
static const char *(*thread_calls)(unsigned kind, uint64_t *count), *(*process_calls)(unsigned kind, uint64_t *count);
static void (*driver_fail)(const char *name, uint64_t n, int error);
static uint64_t calls_before[KINDS];
static int calls_wrong;

static inline void double_open(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	*(void **)&thread_calls = driver ? dlsym(driver, "gpuDoubleThreadCalls") : NULL;
	*(void **)&process_calls = driver ? dlsym(driver, "gpuDoubleCalls") : NULL;
	*(void **)&driver_fail = driver ? dlsym(driver, "gpuDoubleFail") : NULL;
	assert_true(thread_calls && process_calls && driver_fail);
}

/* Make the next call of this function of the driver fail, with CUDA_ERROR_UNKNOWN. */
static inline void call_fails(const char *name)
{
	if (!driver_fail)
		double_open();
	driver_fail(name, 1, 999);
}

/* Return the number of calls of a kind that this thread has made since `before`. */
static inline uint64_t calls_of(const uint64_t *before, const char *wanted)
{
	const char *name;
	uint64_t count;

	for (unsigned kind = 0; (name = double_calls(kind, &count)); kind++)
		if (!strcmp(name, wanted))
			return count - before[kind];
	return 0;
}

/* all: count the calls of all threads, which must have made their calls when the public call returns. */
static inline void calls_begin(bool all)
{
	uint64_t count;

	if (!thread_calls)
		double_open();
	double_calls = all ? process_calls : thread_calls;
	memset(calls_before, 0, sizeof(calls_before));
	for (unsigned kind = 0; double_calls(kind, &count); kind++) {
		assert_true(kind < KINDS);
		calls_before[kind] = count;
	}
}

static inline int calls_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Return the number of a name in a text of calls_end(); 0: the text does not contain the name. */
static inline uint64_t calls_expected(const char *text, const char *name)
{
	size_t length = strlen(name);

	while (*text) {
		if (!strncmp(text, name, length) && strchr(", ", text[length]))
			return text[length] == ' ' ? strtoull(text + length, NULL, 10) : 1;
		text += strcspn(text, ",");
		text += strspn(text, ", ");
	}
	return 0;
}

/*
 * Return the value of a count such as "3", "n", "2n" or "n + 1", which ends before `end`. An empty count is 1. *end
 * receives the first character after it.
 */
static inline uint64_t count_value(const char *count, uint64_t n, const char **end)
{
	uint64_t sum = 0;

	for (;;) {
		char *after;
		uint64_t factor = strtoull(count, &after, 10);

		if (*after == 'n')
			sum += (after == count ? 1 : factor) * n;
		else
			sum += after == count ? 1 : factor;
		count = after + (*after == 'n');
		if (strncmp(count, " + ", 3) != 0)
			break;
		count += 3;
	}
	*end = count;
	return sum;
}

/* Return a text in which the counts are formulas of n, with their values, in the form that calls_end() expects. */
static inline const char *calls_filled(const char *text, uint64_t n)
{
	static char filled[1024];
	char *to = filled;

	*to = '\0';
	while (*text) {
		size_t name = strncmp(text, "cu", 2) ? 0 : strcspn(text, ", ");
		const char *end = text + name + (name && text[name] == ' ');
		uint64_t count = count_value(end, n, &end);
		const char *before = to > filled ? ", " : "";

		if (!count)
			;
		else if (!name)
			to += sprintf(to, "%s%llu frame%s", before, (unsigned long long)count, count > 1 ? "s" : "");
		else if (count == 1)
			to += sprintf(to, "%s%.*s", before, (int)name, text);
		else
			to += sprintf(to, "%s%.*s %llu", before, (int)name, text, (unsigned long long)count);
		assert_true(to < filled + sizeof(filled) - 100);
		text = end + strcspn(end, ",");
		text += strspn(text, ", ");
	}
	return filled;
}

/*
 * Compare the calls since calls_begin() with `expected`: names and counts above 1, in alphabetical order, and the
 * number of frames. most: each count may be less. A frame is the four calls with which the back end enters and leaves
 * its context. The queries of a call that waits for a stream depend on the time, so they are omitted unless the text
 * names them.
 */
static inline void calls_end(int line, const char *what, const char *expected, bool most)
{
	static const char *const frame[] = {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"};
	uint64_t frames, queries = calls_of(calls_before, "cuStreamQuery"), count;
	const char *name, *names[KINDS];
	char found[1024] = "", *end = found;
	bool less = true;
	unsigned kinds = 0;

	frames = calls_of(calls_before, frame[0]);
	assert_int_equal(calls_of(calls_before, frame[1]), frames);
	assert_int_equal(calls_of(calls_before, frame[2]), 2 * frames);
	if (strstr(expected, "cuStreamQuery"))
		queries = 0;
	for (unsigned kind = 0; (name = double_calls(kind, &count)); kind++)
		if (count > calls_before[kind] && strcmp(name, frame[0]) && strcmp(name, frame[1]) &&
			strcmp(name, frame[2]))
			names[kinds++] = name;
	qsort(names, kinds, sizeof(*names), calls_compare);
	for (unsigned i = 0; i < kinds; i++) {
		count = calls_of(calls_before, names[i]);
		if (!strcmp(names[i], "cuStreamQuery") || !strcmp(names[i], "cuStreamIsCapturing"))
			count -= queries;
		less = less && count <= calls_expected(expected, names[i]);
		if (count)
			end += snprintf(end, sizeof(found) - (size_t)(end - found), count > 1 ? "%s%s %llu" : "%s%s",
				end > found ? ", " : "", names[i], (unsigned long long)count);
		assert_true(end < found + sizeof(found) - 100);
	}
	frames -= queries;
	if (frames)
		sprintf(end, "%s%llu frame%s", end > found ? ", " : "", (unsigned long long)frames,
			frames > 1 ? "s" : "");
	if (most ? !less : strcmp(found, expected) != 0) {
		printf("line %d: calls of the driver: '%s'\n    instead of %s'%s'\n    by %s\n", line, found,
			most ? "at most " : "", expected, what);
		calls_wrong++;
	}
}

/*
 * CALLS() - make a call, which must succeed, and compare the driver calls that it makes with a text. The situation is
 * "steady", "always" (also the worst case), or describes a case in which there are more driver calls. ": WHAT" may
 * follow "steady" and "always". The other macros do the same, with these differences.
 */
#define CALLS(call, situation, text) CALLS_RETURN(call, >= 0, text, false, false)
/* CALLS_MOST() - the number of driver calls depends on the time or on other threads; the text has the maximum. */
#define CALLS_MOST(call, situation, text) CALLS_RETURN(call, >= 0, text, true, false)
/* CALLS_ERROR() - the call must return this error. */
#define CALLS_ERROR(call, error, situation, text) CALLS_RETURN(call, == error, text, false, false)
/* CALLS_MOST_ERROR() - the call must return this error, and the text has the maximum. */
#define CALLS_MOST_ERROR(call, error, situation, text) CALLS_RETURN(call, == error, text, true, false)
/*
 * CALLS_N() - the counts in the text may be formulas of a variable n, such as "n", "2n" and "n + 1". A test makes the
 * call with several values of n.
 */
#define CALLS_N(n, call, situation, text) CALLS_RETURN(call, >= 0, calls_filled(text, n), false, false)
#define CALLS_N_MOST(n, call, situation, text) CALLS_RETURN(call, >= 0, calls_filled(text, n), true, false)
#define CALLS_N_ERROR(n, call, error, situation, text) CALLS_RETURN(call, == error, calls_filled(text, n), false, false)
#define CALLS_N_VOID(n, call, situation, text) CALLS_VOID(call, situation, calls_filled(text, n))
/* CALLS_ALL() - the driver calls of all threads are compared. Other threads must make none after the call returns. */
#define CALLS_ALL(call, situation, text) CALLS_RETURN(call, >= 0, text, false, true)
/* CALLS_VOID() - the call has no result. */
#define CALLS_VOID(call, situation, text) \
	do { \
		calls_begin(false); \
		call; \
		calls_end(__LINE__, #call, text, false); \
	} while (0)
#define CALLS_RETURN(call, condition, text, most, all) \
	do { \
		int64_t result_; \
		calls_begin(all); \
		result_ = (int64_t)(call); \
		calls_end(__LINE__, #call, text, most); \
		if (!(result_ condition)) \
			fail_msg("line %d: %s: %lld, %s", __LINE__, #call, (long long)result_, \
				gpool_last_error((int)result_)); \
	} while (0)
/*
 * NEVER() - make a call that, according to its source, uses the driver in no situation, except in idle callbacks
 * (client/core/idle.h).
 */
#define NEVER(call) CALLS_VOID((void)(call), "", "")
/* A pool of 64 pages, each a handle. A lease grows by single pages, and keeps all pages that it has had. */
static const char *const steady[] = {
	"--pool", POOL, CALM, "--set", "lease.idle=1h", "--set", "lease.keep_pages=64", NULL};

static uint32_t gate_stream;
static struct gpool_fence gate;

/* Let a stream wait for a fence that the test signals with gate_open(). */
static inline void gate_close(uint32_t blocked)
{
	if (!gate_stream)
		assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate_stream), 0);
	assert_int_equal(gpool_fence_record(worker, gate_stream, &gate), 0);
	assert_int_equal(gpool_stream_wait(worker, blocked, gate), 0);
}

/* Let the stream continue, and wait until its work is done. */
static inline void gate_open(uint32_t blocked)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	assert_int_equal(gpool_fence_record(worker, blocked, &fence), 0);
	assert_int_equal(gpool_fence_wait(worker, fence, -1), 0);
}

/* Call this when the session is closed. */
static inline void gate_forget(void)
{
	gate_stream = 0;
}

static inline int calls_result(int failed)
{
	if (calls_wrong)
		printf("FAIL %d rows differ from the calls that were made\n", calls_wrong);
	return failed || calls_wrong;
}

#endif
