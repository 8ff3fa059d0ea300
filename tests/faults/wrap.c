/*
 * wrap.c - count the calls of each call site, and make one of them fail; linked into programs with --wrap for each
 * CALL() of calls.def.
 *
 * $GPOOL_FAULT_FILE names a file that all processes map (struct fault_file), and that tests/faults/sites writes. It
 * contains the return addresses of the call sites of this program, relative to its beginning. The n-th call of the site
 * that is armed fails, counted over all processes, and only this one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MODULES = 4, ARMED_MAX = 56, FILE_BYTES = 1 << 18 };

struct fault_site {
	uint32_t offset; /* of the return address */
	_Atomic uint32_t calls;
};

struct fault_file {
	_Atomic uint32_t failed;                /* calls that were made to fail */
	_Atomic uint32_t seen;                  /* calls of the armed site */
	uint32_t nth;                           /* the call that fails; 0: none */
	uint32_t module;                        /* the program with the armed site */
	uint32_t armed_count, armed[ARMED_MAX]; /* its offsets: the compiler may copy a site */
	uint32_t counts[MODULES];               /* sites of each program */
	struct fault_site sites[];
};

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
	base = (void *)__real_mmap(0, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, 0, 0);
	if (base == MAP_FAILED)
		abort();
	file = base;
	sites = file->sites;
	for (int module = 0; module < FAULT_MODULE; module++)
		sites += file->counts[module];
}

static bool is_armed(uint32_t offset)
{
	if (!file->nth || file->module != FAULT_MODULE)
		return false;
	for (uint32_t i = 0; i < file->armed_count; i++)
		if (file->armed[i] == offset)
			return true;
	return false;
}

static bool fails(const void *from)
{
	uint32_t offset = (uint32_t)((uintptr_t)from - (uintptr_t)__ehdr_start), low = 0, high;

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
	if (!is_armed(offset) || atomic_fetch_add(&file->seen, 1) + 1 != file->nth)
		return false;
	atomic_fetch_add(&file->failed, 1);
	return true;
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
