/*
 * rules.h - what the tests of the double's rules share: calls that must succeed or be refused, and mapped memory.
 *
 * These programs use the driver API directly, with the double as their libcuda.so.1.
 */
#ifndef GPOOL_TESTS_RULES_H
#define GPOOL_TESTS_RULES_H

#include <cuda.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) assert_int_equal(call, CUDA_SUCCESS)
#define REFUSED(error, call) assert_int_equal(call, CUDA_ERROR_##error)

void gpuDoubleFault(void);
int gpuDoubleFailed(void);
void gpuDoubleFail(const char *name, uint64_t n, int error);
const char *gpuDoubleThreadCalls(unsigned kind, uint64_t *count);
uint64_t gpuDoubleModeled(void);
int gpuDoubleMemory(int device, uint64_t *free_bytes, uint64_t *total);

static const size_t PAGE = 2 << 20;
static CUcontext context;

static inline CUmemAllocationProp properties(int device)
{
	CUmemAllocationProp made = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

	made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	made.location.id = device;
	return made;
}

static inline CUmemAccessDesc access_of(int device, CUmemAccess_flags flags)
{
	CUmemAccessDesc made = {.flags = flags};

	made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	made.location.id = device;
	return made;
}

static inline CUmemGenericAllocationHandle create(size_t bytes)
{
	CUmemAllocationProp wanted = properties(0);
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, bytes, &wanted, 0));
	return handle;
}

/* pages_mapped() - pages with access. Their handles are released: the mappings keep the memory. */
static inline CUdeviceptr pages_mapped(size_t count)
{
	CUmemAccessDesc access = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CUdeviceptr at;

	OK(cuMemAddressReserve(&at, count * PAGE, 0, 0, 0));
	for (size_t i = 0; i < count; i++) {
		CUmemGenericAllocationHandle handle = create(PAGE);

		OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
		OK(cuMemRelease(handle));
	}
	OK(cuMemSetAccess(at, count * PAGE, &access, 1));
	return at;
}

static inline CUdeviceptr mapped(void)
{
	return pages_mapped(1);
}

static inline void pages_unmap(CUdeviceptr at, size_t count)
{
	OK(cuMemUnmap(at, count * PAGE));
	OK(cuMemAddressFree(at, count * PAGE));
}

static inline int setup(void **state)
{
	(void)state;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return 0;
}

/* Run a function in a child, which has not called cuInit(). Return the child's wait status. */
static inline int status_of(int (*function)(void))
{
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(function());
	return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

#endif
