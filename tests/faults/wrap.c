/*
 * wrap.c - count the calls of each call site, and make the first call of one site fail (fault_file.h); linked into
 * programs with --wrap for each CALL() of calls.def.
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
	__attribute__((weak)) long __real_##name(long, long, long, long, long, long, long, long);
#define NEVER(name, reason)
#include "tests/faults/calls.def"
#undef CALL
#undef NEVER

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("GPOOL_FAULT_FILE");
	long fd = path ? (int)__real_open((long)path, O_RDWR | O_CLOEXEC, 0, 0, 0, 0, 0, 0) : -1;
	void *base;

	if (fd < 0)
		return;
	base = (void *)__real_mmap(0, FAULT_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, 0, 0);
	if (base == MAP_FAILED)
		abort();
	file = base;
	sites = file->sites;
	for (int module = 0; module < FAULT_MODULE; module++)
		sites += file->counts[module];
}

/* Return the current trial if it lets a call with this return address fail. */
static struct fault_trial *trial_at(uint32_t offset)
{
	struct fault_trial *trial = &file->trial_of[atomic_load(&file->trial) % FAULT_TRIALS_MAX];

	if (!file->trials || trial->module != FAULT_MODULE)
		return NULL;
	for (uint32_t i = 0; i < trial->copies; i++)
		if (trial->offsets[i] == offset)
			return trial;
	return NULL;
}

static bool fails(const void *from)
{
	uint32_t offset = (uint32_t)((uintptr_t)from - (uintptr_t)__ehdr_start), low = 0, high, none = 0;
	struct fault_trial *trial;

	if (!file)
		return false;
	for (high = file->counts[FAULT_MODULE]; low < high;) {
		uint32_t middle = (low + high) / 2;

		if (sites[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == file->counts[FAULT_MODULE] || sites[low].offset != offset)
		return false;
	atomic_fetch_add(&sites[low].calls, 1);
	trial = trial_at(offset);
	return trial && atomic_compare_exchange_strong(&trial->failed, &none, 1);
}

#define FAIL_ERRNO(error) (errno = (error), -1)
#define FAIL_NULLS(error) (errno = (error), 0)
#define FAIL_NEGATIVE(error) (-(error))
#define FAIL_POSITIVE(error) (error)
#define CALL(name, result, error) \
	long __wrap_##name(long a, long b, long c, long d, long e, long f, long g, long h); \
	long __wrap_##name(long a, long b, long c, long d, long e, long f, long g, long h) \
	{ \
		return fails(__builtin_return_address(0)) ? FAIL_##result(error) \
							  : __real_##name(a, b, c, d, e, f, g, h); \
	}
#define NEVER(name, reason)
#include "tests/faults/calls.def"
