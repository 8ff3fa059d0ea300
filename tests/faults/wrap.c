/*
 * wrap.c - count the calls of each call site, and make calls fail as fault_file.h describes; linked into programs with
 * --wrap for each CALL() of calls.def.
 */
#include "tests/faults/fault_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

static struct fault_file *file;
static struct fault_site *sites;

/*
 * Arguments that the caller did not pass are read from its stack, and passed on without being used. A program does not
 * have the functions that it does not call.
 */
#define CALL(name, result, error) \
	__attribute__((weak)) long __real_##name(long, long, long, long, long, long, long, long, long);
#define NEVER(name, reason)
#define PLAIN(patterns, reason)
#include "tests/faults/calls.def"
#undef CALL
#undef NEVER
#undef PLAIN

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("GPOOL_FAULT_FILE");
	long fd = path ? (int)__real_open((long)path, O_RDWR | O_CLOEXEC, 0, 0, 0, 0, 0, 0, 0) : -1;
	void *base;

	if (fd < 0)
		return;
	base = (void *)__real_mmap(0, FAULT_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, 0, 0, 0);
	if (base == MAP_FAILED)
		abort();
	file = base;
	sites = file->sites;
	for (int module = 0; module < FAULT_MODULE; module++)
		sites += file->counts[module];
}

enum { ERROR_USUAL = -1 }; /* the error that calls.def names */

static bool is_at(const struct fault_place *place, uint32_t offset)
{
	if (place->module != FAULT_MODULE)
		return false;
	for (uint32_t i = 0; i < place->copies; i++)
		if (place->offsets[i] == offset)
			return true;
	return false;
}

/* Return the error with which a call with this return address fails; 0: it does not fail. */
static int trial_error(uint32_t offset)
{
	struct fault_trial *trial = &file->trial_of[atomic_load(&file->trial) % FAULT_TRIALS_MAX];
	uint32_t none = 0;

	if (!file->trials)
		return 0;
	if (is_at(&trial->site, offset))
		return atomic_compare_exchange_strong(&trial->failed, &none, 1) ? ERROR_USUAL : 0;
	for (int i = 0; i < FAULT_CAUSES && !atomic_load(&trial->failed) && !atomic_load(&file->waiting); i++)
		if (is_at(&trial->causes[i].site, offset))
			return trial->causes[i].error ? (int)trial->causes[i].error : ERROR_USUAL;
	return 0;
}

static int error_at(const void *from)
{
	uint32_t offset = (uint32_t)((uintptr_t)from - (uintptr_t)__ehdr_start), low = 0, high;

	if (!file)
		return 0;
	for (high = file->counts[FAULT_MODULE]; low < high;) {
		uint32_t middle = (low + high) / 2;

		if (sites[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == file->counts[FAULT_MODULE] || sites[low].offset != offset)
		return 0;
	atomic_fetch_add(&sites[low].calls, 1);
	return trial_error(offset);
}

#define FAIL_ERRNO(error) (errno = (error), -1)
#define FAIL_NULLS(error) (errno = (error), 0)
#define FAIL_NEGATIVE(error) (-(error))
#define FAIL_POSITIVE(error) (error)
#define CALL(name, result, error) \
	long __wrap_##name(long a, long b, long c, long d, long e, long f, long g, long h, long i); \
	long __wrap_##name(long a, long b, long c, long d, long e, long f, long g, long h, long i) \
	{ \
		int found = error_at(__builtin_return_address(0)); \
\
		return found ? FAIL_##result(found == ERROR_USUAL ? (error) : found) \
			     : __real_##name(a, b, c, d, e, f, g, h, i); \
	}
#define NEVER(name, reason)
#define PLAIN(patterns, reason)
#include "tests/faults/calls.def"
