/*
 * test_driver_rules.c - the double of the driver refuses what breaks a rule, and does what NVIDIA documents.
 *
 * Method: this program uses the driver API directly, with the double as its libcuda.so.1. Each case breaks the rules of
 * one call, one after the other, and then observes them. A fault is sticky for a process, so its case is the last.
 *
 * Requirements: D1.
 */
#include "cuda/kernels/block_copy.h"
#include "tests/driver/rules.h"

#include <sched.h>
#include <signal.h>
#include <sys/stat.h>

enum { COPIED = 32 }; /* pages of a copy that is interrupted */

/* in_child() - run a case in a forked child. Return its exit status, or -1 if a signal killed it. */
static int in_child(void (*run)(void))
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		run();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_memory_is_created_in_whole_granules(void **state)
{
	CUmemAllocationProp wanted = properties(0), elsewhere = properties(2), untyped = properties(0);
	CUmemGenericAllocationHandle handle;

	(void)state;
	untyped.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	REFUSED(INVALID_VALUE, cuMemCreate(&handle, 0, &wanted, 0));
	REFUSED(INVALID_VALUE, cuMemCreate(&handle, PAGE + 4096, &wanted, 0));
	REFUSED(INVALID_VALUE, cuMemCreate(&handle, PAGE, &wanted, 1));
	REFUSED(INVALID_VALUE, cuMemCreate(&handle, PAGE, &elsewhere, 0));
	REFUSED(INVALID_VALUE, cuMemCreate(&handle, PAGE, &untyped, 0));
	REFUSED(OUT_OF_MEMORY, cuMemCreate(&handle, 16ull << 30, &wanted, 0));
	OK(cuMemCreate(&handle, PAGE, &wanted, 0));
	OK(cuMemRelease(handle));
}

static void test_memory_is_mapped_whole_and_once(void **state)
{
	CUmemGenericAllocationHandle handle = create(2 * PAGE), other = create(PAGE);
	CUdeviceptr at;

	(void)state;
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, 4 * PAGE, 3, 0, 0));
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, 4 * PAGE + 1, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, 4 * PAGE, 0, (4ull << 40) + 512, 0));
	OK(cuMemAddressReserve(&at, 4 * PAGE, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuMemMap(at, PAGE, 0, handle, 0));    /* a part */
	REFUSED(INVALID_VALUE, cuMemMap(at, PAGE, PAGE, handle, 0)); /* an offset */
	REFUSED(INVALID_VALUE, cuMemMap(at + 4096, 2 * PAGE, 0, handle, 0));
	REFUSED(INVALID_VALUE, cuMemMap(at + 3 * PAGE, 2 * PAGE, 0, handle, 0)); /* beyond the reservation */
	REFUSED(INVALID_VALUE, cuMemMap(at, 2 * PAGE, 0, handle, 1));
	REFUSED(INVALID_VALUE, cuMemMap(PAGE, 2 * PAGE, 0, handle, 0));
	OK(cuMemMap(at, 2 * PAGE, 0, handle, 0));
	REFUSED(INVALID_VALUE, cuMemMap(at + PAGE, PAGE, 0, other, 0)); /* mapped already */
	REFUSED(INVALID_VALUE, cuMemUnmap(at, PAGE));                   /* a part */
	REFUSED(INVALID_VALUE, cuMemUnmap(at, 3 * PAGE));               /* a hole */
	REFUSED(INVALID_VALUE, cuMemAddressFree(at, 4 * PAGE));         /* still mapped */
	OK(cuMemMap(at + 2 * PAGE, PAGE, 0, other, 0));
	OK(cuMemUnmap(at, 3 * PAGE)); /* several mappings */
	REFUSED(INVALID_VALUE, cuMemAddressFree(at, PAGE));
	REFUSED(INVALID_VALUE, cuMemAddressFree(at + PAGE, 4 * PAGE));
	OK(cuMemAddressFree(at, 4 * PAGE));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(other));
}

static void test_access_is_set_on_whole_allocations(void **state)
{
	CUmemAccessDesc access = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), nowhere = access_of(2, access.flags);
	CUmemGenericAllocationHandle handle = create(2 * PAGE);
	unsigned long long flags;
	CUdeviceptr at;

	(void)state;
	OK(cuMemAddressReserve(&at, 4 * PAGE, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuMemSetAccess(at, 2 * PAGE, &access, 1)); /* not mapped */
	OK(cuMemMap(at, 2 * PAGE, 0, handle, 0));
	OK(cuMemGetAccess(&flags, &access.location, at));
	assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	REFUSED(INVALID_VALUE, cuMemSetAccess(at, PAGE, &access, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(at + PAGE, PAGE, &access, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(at, 3 * PAGE, &access, 1)); /* a hole */
	REFUSED(INVALID_VALUE, cuMemSetAccess(at, 2 * PAGE, &nowhere, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(at, 2 * PAGE, &access, 0));
	OK(cuMemSetAccess(at, 2 * PAGE, &access, 1));
	OK(cuMemGetAccess(&flags, &access.location, at + PAGE));
	assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemUnmap(at, 2 * PAGE));
	OK(cuMemAddressFree(at, 4 * PAGE));
	OK(cuMemRelease(handle));
}

static void test_a_descriptor_is_no_file_and_keeps_the_memory(void **state)
{
	CUmemGenericAllocationHandle handle = create(PAGE), imported;
	size_t before, after, total;
	struct stat status;
	int fd, pair[2];

	(void)state;
	assert_int_equal(pipe(pair), 0);
	REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
	REFUSED(INVALID_VALUE, cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)pair[0], 1));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	assert_int_equal(fstat(fd, &status), 0);
	assert_false(S_ISREG(status.st_mode));
	OK(cuMemGetInfo(&before, &total));
	OK(cuMemRelease(handle));
	OK(cuMemGetInfo(&after, &total));
	assert_int_equal(before, after);
	OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cuMemRelease(imported));
	OK(cuMemGetInfo(&after, &total));
	assert_int_equal(after, before + PAGE);
	close(pair[0]);
	close(pair[1]);
}

/* The setting `fail` can name cuInit(), too. Run in a child that has not called cuInit(). */
static int init_fails_once(void)
{
	setenv("GPU_DOUBLE", "fail=cuInit:1:802", 1);
	return cuInit(0) == CUDA_ERROR_SYSTEM_NOT_READY && cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}

/* Queue a fill until the device has failed. Return 0 if all calls then return the error of the failure. */
static int fills_until_failure(void)
{
	CUdeviceptr at = mapped();
	CUstream stream;
	CUresult error;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	do {
		OK(cuMemsetD32Async(at, 0, 4, stream));
		error = cuStreamSynchronize(stream);
	} while (error == CUDA_SUCCESS);
	return gpuDoubleFailed() == (int)error && cuStreamQuery(stream) == error &&
			cuMemsetD32Async(at, 0, 4, stream) == error
		? 0
		: 1;
}

static int fails_by_chance(void)
{
	setenv("GPU_DOUBLE", "faults=3 seed=1", 1);
	setup(NULL);
	return gpuDoubleFailed() || fills_until_failure();
}

static int fails_on_demand(void)
{
	CUstream stream;

	setup(NULL);
	if (cuStreamCreate(&stream, 0) != CUDA_SUCCESS || gpuDoubleFailed())
		return 1;
	gpuDoubleFault();
	return cuStreamCreate(&stream, 0) == CUDA_ERROR_ILLEGAL_ADDRESS &&
			gpuDoubleFailed() == CUDA_ERROR_ILLEGAL_ADDRESS
		? 0
		: 1;
}

/* Unmap the memory of a copy that runs while the device fails. The CPU must not continue the copy. */
static int fails_during_a_copy(void)
{
	uint64_t before, now, total;
	CUdeviceptr from, to;
	CUstream stream;

	setenv("GPU_DOUBLE", "cpu_access=1", 1);
	setup(NULL);
	gpuDoubleMemory(0, &before, &total);
	from = pages_mapped(COPIED);
	to = pages_mapped(COPIED);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemsetD32Async(from, 1, COPIED * PAGE / 4, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyAsync(to, from, COPIED * PAGE, stream));
	while (!*(volatile uint32_t *)(uintptr_t)to)
		sched_yield();
	gpuDoubleFault();
	pages_unmap(from, COPIED);
	pages_unmap(to, COPIED);
	/* The copy keeps the memory of its current piece until it ends this piece. */
	do
		gpuDoubleMemory(0, &now, &total);
	while (now != before);
	for (int i = 0; i < 1000; i++)
		sched_yield();
	return 0;
}

static int releases_twice(void)
{
	CUmemGenericAllocationHandle handle;

	setup(NULL);
	handle = create(PAGE);
	OK(cuMemRelease(handle));
	cuMemRelease(handle);
	return 0;
}

static int unloads_twice(void)
{
	static const uint32_t image = 0xba55ed50;
	CUmodule module;

	setup(NULL);
	OK(cuModuleLoadData(&module, &image));
	OK(cuModuleUnload(module));
	cuModuleUnload(module);
	return 0;
}

/* Let a kernel copy 8 bytes. Return the result of the wait for it. */
static CUresult kernel_copies(CUdeviceptr to, CUdeviceptr from)
{
	struct block_copy_args args = {.bytes_max = 8, .count = 1, .items = {{to, from, 8}}};
	static const uint32_t image = 0xba55ed50;
	void *parameters[] = {&args};
	CUfunction function;
	CUmodule module;

	OK(cuModuleLoadData(&module, &image));
	OK(cuModuleGetFunction(&function, module, "block_copy"));
	OK(cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
	return cuStreamSynchronize(NULL);
}

/*
 * Use registered host memory by its address on the device, for reading and for writing, and then by its address in the
 * process. Return the result of the last launch, or -1.
 */
static int uses_registered_memory(const char *settings, bool same)
{
	uint64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr page, device;
	int value;

	setenv("GPU_DOUBLE", settings, 1);
	setup(NULL);
	page = mapped();
	OK(cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&device, words, 0));
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0));
	if (value != same || (device == (uintptr_t)words) != same)
		return -1;
	words[1] = 7;
	OK(kernel_copies(page, device + 8));
	OK(kernel_copies(device + 16, page));
	OK(cuMemcpyAsync((uintptr_t)&words[3], page, 8, NULL)); /* copies accept both addresses */
	OK(cuStreamSynchronize(NULL));
	return words[2] == 7 && words[3] == 7 ? (int)kernel_copies(page, (uintptr_t)words) : -1;
}

static int kernel_uses_host_address(void)
{
	return uses_registered_memory("", false) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static int kernel_uses_same_address(void)
{
	return uses_registered_memory("host_alias=0", true) == CUDA_SUCCESS ? 0 : 1;
}

/* of children that run before the first case */
static int init_status, chance_status, demand_status, copy_status, release_status, unload_status;
static int host_address_status, same_address_status;

static void test_a_kernel_uses_the_address_on_the_device(void **state)
{
	(void)state;
	assert_int_equal(host_address_status, 0);
	assert_int_equal(same_address_status, 0);
}

static void test_undefined_use_ends_the_program(void **state)
{
	(void)state;
	assert_true(WIFSIGNALED(release_status) && WTERMSIG(release_status) == SIGABRT);
	assert_true(WIFSIGNALED(unload_status) && WTERMSIG(unload_status) == SIGABRT);
}

static void test_init_fails_if_asked_for(void **state)
{
	(void)state;
	assert_int_equal(init_status, 0);
}

static void test_a_device_fails_by_chance(void **state)
{
	(void)state;
	assert_int_equal(chance_status, 0);
}

static void test_a_device_fails_on_demand(void **state)
{
	(void)state;
	assert_int_equal(demand_status, 0);
}

static void test_a_copy_ends_with_the_device(void **state)
{
	(void)state;
	assert_int_equal(copy_status, 0);
}

static CUdeviceptr touched;

static void touch(void)
{
	signal(SIGSEGV, SIG_DFL); /* instead of cmocka's */
	*(volatile char *)(uintptr_t)touched = 1;
}

static void test_the_cpu_cannot_access_device_memory(void **state)
{
	(void)state;
	touched = mapped();
	assert_int_equal(in_child(touch), -1);
	OK(cuMemUnmap(touched, PAGE));
	OK(cuMemAddressFree(touched, PAGE));
}

static void use_after_fork(void)
{
	int count;

	_exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 7 : 1);
}

static void test_no_call_after_fork(void **state)
{
	(void)state;
	assert_int_equal(in_child(use_after_fork), 7);
}

static void test_events_keep_their_rules(void **state)
{
	CUipcEventHandle ipc;
	CUevent event, shared;
	CUstream stream;

	(void)state;
	REFUSED(INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS)); /* with timing */
	REFUSED(INVALID_VALUE, cuEventCreate(&event, 64));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventQuery(event)); /* never recorded */
	REFUSED(INVALID_HANDLE, cuIpcGetEventHandle(&ipc, event));
	OK(cuEventCreate(&shared, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	OK(cuIpcGetEventHandle(&ipc, shared));
	assert_int_not_equal(cuIpcOpenEventHandle(&shared, ipc), CUDA_SUCCESS); /* in its own process */
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventRecord(event, stream));
	OK(cuEventSynchronize(event));
	OK(cuStreamDestroy(stream));
	REFUSED(INVALID_HANDLE, cuEventRecord(event, stream));
	OK(cuEventDestroy(event));
	REFUSED(INVALID_HANDLE, cuEventQuery(event));
}

/* A replay repeats a captured write with its old number. */
static void test_a_replay_writes_the_old_number(void **state)
{
	CUdeviceptr at = mapped();
	uint64_t value = 0;
	CUgraphExec exec;
	CUstream stream;
	CUgraph graph, none;

	(void)state;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	REFUSED(ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamWriteValue64(stream, at, 5, 0));
	OK(cuStreamEndCapture(stream, &graph));
	REFUSED(ILLEGAL_STATE, cuStreamEndCapture(stream, &none));
	OK(cuStreamWriteValue64(stream, at, 9, 0));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(&value, at, sizeof(value)));
	assert_int_equal(value, 9);
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(&value, at, sizeof(value)));
	assert_int_equal(value, 5);
	OK(cuGraphExecDestroy(exec));
	OK(cuStreamDestroy(stream));
	OK(cuMemUnmap(at, PAGE));
	OK(cuMemAddressFree(at, PAGE));
}

static void test_a_capture_refuses_what_would_wait(void **state)
{
	CUstreamCaptureStatus status;
	CUstream stream, other;
	CUdeviceptr at, page = mapped();
	CUevent event;
	CUgraph graph;

	(void)state;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
	OK(cuStreamIsCapturing(stream, &status));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&at, PAGE)); /* potentially unsafe */
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(event, stream));
	REFUSED(CAPTURED_EVENT, cuEventQuery(event));
	OK(cuStreamWaitEvent(other, event, 0)); /* joins the capture */
	OK(cuStreamIsCapturing(other, &status));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuMemsetD32Async(page, 0, 4, other));
	REFUSED(STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
	OK(cuStreamIsCapturing(other, &status));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
	REFUSED(CAPTURED_EVENT, cuStreamWaitEvent(other, event, 0)); /* the capture has ended */
	OK(cuStreamIsCapturing(other, &status));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuEventRecord(event, stream));
	REFUSED(INVALID_VALUE, cuStreamWaitEvent(other, event, CU_EVENT_WAIT_EXTERNAL)); /* not in a capture */
	OK(cuStreamWaitEvent(other, event, 0));
	OK(cuMemUnmap(page, PAGE));
	OK(cuMemAddressFree(page, PAGE));
	OK(cuStreamDestroy(other));
	OK(cuStreamDestroy(stream));
}

/* The legacy stream would wait for blocking streams, so it cannot be used while one is captured, in whatever mode. */
static void test_the_legacy_stream_waits_for_no_capture(void **state)
{
	CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED};
	CUstreamCaptureStatus status;
	CUdeviceptr page = mapped();
	CUstream blocking, other;
	CUgraph graph;

	(void)state;
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 2; i++) {
		OK(cuStreamBeginCapture(other, modes[i]));
		OK(cuMemsetD32Async(page, 0, 4, CU_STREAM_LEGACY));
		OK(cuStreamQuery(CU_STREAM_PER_THREAD));
		OK(cuStreamEndCapture(other, &graph));
		OK(cuGraphDestroy(graph));
		OK(cuStreamBeginCapture(blocking, modes[i]));
		REFUSED(STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(CU_STREAM_LEGACY, &status));
		OK(cuStreamIsCapturing(blocking, &status));
		assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE); /* the query has no effect */
		REFUSED(STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(page, 0, 4, CU_STREAM_LEGACY));
		REFUSED(STREAM_CAPTURE_IMPLICIT, cuStreamQuery(CU_STREAM_LEGACY));
		REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
	}
	OK(cuStreamSynchronize(CU_STREAM_LEGACY));
	OK(cuStreamDestroy(other));
	OK(cuStreamDestroy(blocking));
	pages_unmap(page, 1);
}

/* An executable graph runs once at a time, in whatever streams it is launched. */
static void test_launches_of_a_graph_are_ordered(void **state)
{
	uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr page = mapped(), device;
	CUstream first, second;
	CUgraphExec exec;
	CUgraph graph;

	(void)state;
	OK(cuMemHostRegister(word, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&device, word, 0));
	OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemsetD32Async(page, 0, 4, first));
	OK(cuStreamEndCapture(first, &graph));
	REFUSED(INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, graph, 1 << 20));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuStreamWaitValue64(first, device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuGraphLaunch(exec, first));
	OK(cuGraphLaunch(exec, second));
	for (int i = 0; i < 1000; i++) {
		REFUSED(NOT_READY, cuStreamQuery(second));
		sched_yield();
	}
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	OK(cuStreamSynchronize(second));
	OK(cuStreamQuery(first));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy(first));
	OK(cuStreamDestroy(second));
	OK(cuMemHostUnregister(word));
	munmap(word, 4096);
	pages_unmap(page, 1);
}

static void test_an_unknown_function_has_no_address(void **state)
{
	CUdriverProcAddressQueryResult found;
	void *function = &found;

	(void)state;
	OK(cuGetProcAddress("cuMemCreate", &function, CUDA_VERSION, 0, &found));
	assert_true(function && found == CU_GET_PROC_ADDRESS_SUCCESS);
	OK(cuGetProcAddress("cuMemNothing", &function, CUDA_VERSION, 0, &found));
	assert_true(!function && found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

static void test_host_memory_is_writable(void **state)
{
	char *memory = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned mapped_too = CU_MEMHOSTREGISTER_DEVICEMAP;

	(void)state;
	mprotect(memory + 4096, 4096, PROT_READ);
	REFUSED(INVALID_VALUE, cuMemHostRegister(memory, 3 * 4096, mapped_too));
	REFUSED(INVALID_VALUE, cuMemHostRegister(memory + 4096, 4096, mapped_too));
	munmap(memory + 4096, 4096);
	REFUSED(INVALID_VALUE, cuMemHostRegister(memory, 3 * 4096, mapped_too));
	OK(cuMemHostRegister(memory, 4096, mapped_too));
	OK(cuMemHostUnregister(memory));
	munmap(memory, 3 * 4096);
}

/* After a fault, queued writes never run. This test is the last one, since a fault cannot be cleared. */
static void test_a_fault_is_sticky_and_drops_work(void **state)
{
	CUdeviceptr at = mapped(), hole;
	CUstream stream, other;
	uint64_t value = 0;
	uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr device;

	(void)state;
	OK(cuMemHostRegister(word, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	REFUSED(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(word, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	REFUSED(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(word + 1));
	OK(cuMemHostGetDevicePointer(&device, word, 0));
	OK(cuMemAddressReserve(&hole, PAGE, 0, 0, 0));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	REFUSED(INVALID_VALUE, cuStreamWriteValue64(stream, device + 4, 1, 0));
	REFUSED(INVALID_VALUE, cuStreamWriteValue64(stream, device, 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
	OK(cuStreamWriteValue64(stream, device, 1, 0));
	OK(cuStreamSynchronize(stream));
	assert_int_equal(*word, 1);
	OK(cuStreamWaitValue64(other, device, 2, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuMemsetD32Async(hole, 0, 4, stream));
	cuStreamWriteValue64(stream, device, 2, 0);
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(other));
	REFUSED(ILLEGAL_ADDRESS, cuMemcpyDtoH(&value, at, sizeof(value)));
	REFUSED(ILLEGAL_ADDRESS, cuStreamQuery(stream));
	assert_int_equal(*word, 1); /* for ever */
}

/* Return how often this thread has made a call. */
static uint64_t thread_calls(const char *wanted)
{
	const char *name;
	uint64_t count;

	for (unsigned kind = 0; (name = gpuDoubleThreadCalls(kind, &count)); kind++)
		if (strcmp(name, wanted) == 0)
			return count;
	return 0;
}

static void *other_thread(void *result)
{
	CUmemGenericAllocationHandle handle = create(PAGE);

	OK(cuMemRelease(handle));
	*(uint64_t *)result = thread_calls("cuMemCreate");
	return NULL;
}

/* A version, as in cuMemAlloc_v2, is not part of a name. Refused calls count. */
static void test_calls_are_counted_for_each_thread(void **state)
{
	uint64_t creates = thread_calls("cuMemCreate"), allocs = thread_calls("cuMemAlloc");
	uint64_t modeled = gpuDoubleModeled(), found;
	CUdeviceptr at;
	pthread_t other;

	(void)state;
	assert_int_equal(pthread_create(&other, NULL, other_thread, &found), 0);
	assert_int_equal(pthread_join(other, NULL), 0);
	assert_int_equal(found, 1);
	assert_int_equal(thread_calls("cuMemCreate"), creates);
	OK(cuMemRelease(create(PAGE)));
	OK(cuMemAlloc(&at, PAGE));
	OK(cuMemFree(at));
	REFUSED(INVALID_VALUE, cuMemAlloc(&at, 0));
	assert_int_equal(thread_calls("cuMemCreate"), creates + 1);
	assert_int_equal(thread_calls("cuMemAlloc"), allocs + 2);
	assert_int_equal(thread_calls("cuMemAlloc_v2"), 0);
	assert_int_equal(gpuDoubleModeled(), modeled + 2 * 193);
}

/* gpuDoubleFail() makes one later call fail, which has no other effect. */
static void test_a_later_call_fails(void **state)
{
	(void)state;
	gpuDoubleFail("cuMemCreate", 2, CUDA_ERROR_UNKNOWN);
	OK(cuMemRelease(create(PAGE)));
	{
		CUmemAllocationProp properties_of = properties(0);
		CUmemGenericAllocationHandle handle;

		REFUSED(UNKNOWN, cuMemCreate(&handle, PAGE, &properties_of, 0));
	}
	OK(cuMemRelease(create(PAGE)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_init_fails_if_asked_for),
		cmocka_unit_test(test_a_device_fails_by_chance),
		cmocka_unit_test(test_a_device_fails_on_demand),
		cmocka_unit_test(test_a_copy_ends_with_the_device),
		cmocka_unit_test(test_a_kernel_uses_the_address_on_the_device),
		cmocka_unit_test(test_undefined_use_ends_the_program),
		cmocka_unit_test(test_memory_is_created_in_whole_granules),
		cmocka_unit_test(test_memory_is_mapped_whole_and_once),
		cmocka_unit_test(test_access_is_set_on_whole_allocations),
		cmocka_unit_test(test_a_descriptor_is_no_file_and_keeps_the_memory),
		cmocka_unit_test(test_the_cpu_cannot_access_device_memory),
		cmocka_unit_test(test_no_call_after_fork),
		cmocka_unit_test(test_events_keep_their_rules),
		cmocka_unit_test(test_a_replay_writes_the_old_number),
		cmocka_unit_test(test_a_capture_refuses_what_would_wait),
		cmocka_unit_test(test_the_legacy_stream_waits_for_no_capture),
		cmocka_unit_test(test_launches_of_a_graph_are_ordered),
		cmocka_unit_test(test_an_unknown_function_has_no_address),
		cmocka_unit_test(test_host_memory_is_writable),
		cmocka_unit_test(test_calls_are_counted_for_each_thread),
		cmocka_unit_test(test_a_later_call_fails),
		cmocka_unit_test(test_a_fault_is_sticky_and_drops_work),
	};
	char folder[] = "/dev/shm/gpu-double-test-XXXXXX", command[64];
	int failed;

	if (!mkdtemp(folder))
		return 1;
	setenv("GPU_DOUBLE_DIR", folder, 1);
	init_status = status_of(init_fails_once);
	chance_status = status_of(fails_by_chance);
	demand_status = status_of(fails_on_demand);
	copy_status = status_of(fails_during_a_copy);
	release_status = status_of(releases_twice);
	unload_status = status_of(unloads_twice);
	host_address_status = status_of(kernel_uses_host_address);
	same_address_status = status_of(kernel_uses_same_address);
	failed = cmocka_run_group_tests(tests, setup, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command) || failed;
}
