/*
 * test_driver_refusals.c - each entry point of the double of the driver returns each of its errors.
 *
 * Method: each case runs in a process of its own, with settings of its own, and breaks rules one after the other.
 * `sources` checks that the programs test_driver_*.c provoke each error.
 *
 * Requirements: D1.
 */
#include "cuda/kernels/block_copy.h"
#include "tests/driver/rules.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>

enum { FABRIC_2 = 36 | 2 << 24 }; /* the version of nvmlGpuFabricInfo_v2_t, which has 36 bytes */

static CUstream stream_new(void)
{
	CUstream stream;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static CUevent event_new(unsigned flags)
{
	CUevent event;

	OK(cuEventCreate(&event, flags | CU_EVENT_DISABLE_TIMING));
	return event;
}

static void *page_registered(CUdeviceptr *device)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	OK(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(device, page, 0));
	return page;
}

/* A handle that was valid once. */
static CUstream stream_gone(void)
{
	CUstream stream = stream_new();

	OK(cuStreamDestroy(stream));
	return stream;
}

static CUevent event_gone(void)
{
	CUevent event = event_new(0);

	OK(cuEventDestroy(event));
	return event;
}

static CUcontext context_gone(void)
{
	CUcontext gone;

	OK(cuDevicePrimaryCtxRetain(&gone, 1));
	OK(cuDevicePrimaryCtxRelease(1));
	return gone;
}

/* ---- the driver, devices and contexts ---- */

static void before_the_start(void)
{
	const char *text = "";
	int count;

	REFUSED(NOT_INITIALIZED, cuDeviceGetCount(&count));
	REFUSED(NOT_INITIALIZED, cuDevicePrimaryCtxRetain(&context, 0));
	REFUSED(INVALID_VALUE, cuInit(1));
	REFUSED(NOT_INITIALIZED, cuDeviceGetCount(&count));
	OK(cuDriverGetVersion(&count)); /* works before cuInit() */
	assert_int_equal(count, CUDA_VERSION);
	REFUSED(INVALID_VALUE, cuDriverGetVersion(NULL));
	REFUSED(INVALID_VALUE, cuGetErrorName(CUDA_ERROR_UNKNOWN, NULL));
	REFUSED(INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
	assert_null(text);
	REFUSED(INVALID_VALUE, cuGetErrorString((CUresult)12345, &text));
	OK(cuGetErrorName(CUDA_ERROR_NOT_FOUND, &text));
	assert_string_equal(text, "CUDA_ERROR_NOT_FOUND");
	REFUSED(INVALID_VALUE, cuGetProcAddress(NULL, (void **)&text, CUDA_VERSION, 0, NULL));
	REFUSED(INVALID_VALUE, cuGetProcAddress("cuInit", NULL, CUDA_VERSION, 0, NULL));
}

static void without_devices(void)
{
	REFUSED(NO_DEVICE, cuInit(0));
}

static int init_refused(void)
{
	REFUSED(NOT_INITIALIZED, cuInit(0));
	return 0;
}

static void after_a_fork(void)
{
	OK(cuInit(0));
	assert_int_equal(status_of(init_refused), 0);
}

static void without_a_context(void)
{
	CUdeviceptr at;
	CUdevice device;
	CUstream stream;
	CUevent event;
	size_t bytes;

	OK(cuInit(0));
	REFUSED(INVALID_CONTEXT, cuCtxPopCurrent(&context));
	REFUSED(INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
	REFUSED(INVALID_CONTEXT, cuCtxGetDevice(&device));
	REFUSED(INVALID_CONTEXT, cuCtxSynchronize());
	REFUSED(INVALID_CONTEXT, cuStreamCreate(&stream, 0));
	REFUSED(INVALID_CONTEXT, cuStreamSynchronize(NULL));
	REFUSED(INVALID_CONTEXT, cuEventCreate(&event, 0));
	REFUSED(INVALID_CONTEXT, cuMemAlloc(&at, PAGE));
	REFUSED(INVALID_CONTEXT, cuMemGetInfo(&bytes, &bytes));
	OK(cuCtxGetCurrent(&context));
	assert_null(context);
	OK(cuCtxSetCurrent(NULL));
}

static void devices(void)
{
	CUdevice_attribute known = CU_DEVICE_ATTRIBUTE_WARP_SIZE;
	CUdevice device;
	CUuuid uuid;
	size_t bytes;
	char name[64];
	int value;

	OK(cuInit(0));
	REFUSED(INVALID_VALUE, cuDeviceGetCount(NULL));
	REFUSED(INVALID_VALUE, cuDeviceGet(NULL, 0));
	REFUSED(INVALID_DEVICE, cuDeviceGet(&device, -1));
	REFUSED(INVALID_DEVICE, cuDeviceGet(&device, 2));
	REFUSED(INVALID_VALUE, cuDeviceGetName(NULL, sizeof(name), 0));
	REFUSED(INVALID_VALUE, cuDeviceGetName(name, 0, 0));
	REFUSED(INVALID_DEVICE, cuDeviceGetName(name, sizeof(name), 2));
	OK(cuDeviceGetName(name, 7, 0));
	assert_string_equal(name, "driver");
	REFUSED(INVALID_VALUE, cuDeviceGetUuid(NULL, 0));
	REFUSED(INVALID_DEVICE, cuDeviceGetUuid(&uuid, 2));
	REFUSED(INVALID_VALUE, cuDeviceTotalMem(NULL, 0));
	REFUSED(INVALID_DEVICE, cuDeviceTotalMem(&bytes, 2));
	REFUSED(INVALID_VALUE, cuDeviceGetAttribute(NULL, known, 0));
	REFUSED(INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)0, 0));
	REFUSED(INVALID_VALUE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0));
	REFUSED(INVALID_DEVICE, cuDeviceGetAttribute(&value, known, 2));
	REFUSED(INVALID_VALUE, cuDeviceCanAccessPeer(NULL, 0, 1));
	REFUSED(INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 2, 0));
	REFUSED(INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 0, 2));
	OK(cuDeviceCanAccessPeer(&value, 0, 1));
	assert_int_equal(value, 1);
	OK(cuDeviceCanAccessPeer(&value, 1, 1));
	assert_int_equal(value, 0);
}

static void contexts(void)
{
	CUcontext gone, top;
	unsigned flags;
	int active;

	setup(NULL);
	gone = context_gone();
	REFUSED(INVALID_VALUE, cuDevicePrimaryCtxRetain(NULL, 0));
	REFUSED(INVALID_DEVICE, cuDevicePrimaryCtxRetain(&top, 2));
	REFUSED(INVALID_DEVICE, cuDevicePrimaryCtxRelease(2));
	REFUSED(INVALID_CONTEXT, cuDevicePrimaryCtxRelease(1));
	REFUSED(INVALID_DEVICE, cuDevicePrimaryCtxSetFlags(2, 0));
	REFUSED(INVALID_VALUE, cuDevicePrimaryCtxSetFlags(0, 1 << 20));
	REFUSED(INVALID_VALUE, cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_BLOCKING_SYNC));
	REFUSED(INVALID_DEVICE, cuDevicePrimaryCtxGetState(2, &flags, &active));
	REFUSED(INVALID_VALUE, cuDevicePrimaryCtxGetState(0, NULL, &active));
	REFUSED(INVALID_VALUE, cuDevicePrimaryCtxGetState(0, &flags, NULL));
	OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	assert_int_equal(active, 0);
	REFUSED(INVALID_CONTEXT, cuCtxPushCurrent(gone));
	REFUSED(INVALID_CONTEXT, cuCtxPushCurrent(NULL));
	REFUSED(INVALID_CONTEXT, cuCtxSetCurrent(gone));
	REFUSED(INVALID_VALUE, cuCtxGetCurrent(NULL));
	REFUSED(INVALID_VALUE, cuCtxGetDevice(NULL));
	OK(cuDevicePrimaryCtxRetain(&top, 1)); /* a new context, with a new handle */
	assert_ptr_not_equal(top, gone);
	OK(cuCtxPushCurrent(top));
	OK(cuDevicePrimaryCtxRelease(1));
	REFUSED(INVALID_CONTEXT, cuCtxSynchronize()); /* the current context has been destroyed */
	OK(cuCtxPopCurrent(NULL));
	OK(cuCtxPopCurrent(&top));
	assert_ptr_equal(top, context);
	REFUSED(INVALID_CONTEXT, cuCtxPopCurrent(NULL));
}

/* ---- memory ---- */

static void physical_memory(void)
{
	CUmemAllocationProp wanted = properties(0), fabric = wanted, host = wanted, unexported = wanted;
	CUmemAllocationGranularity_flags minimum = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
	CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CUmemGenericAllocationHandle handle;
	size_t bytes;
	int fd = open("/dev/null", O_RDONLY), pair[2];
	char forged[88] = {0}; /* as long as a message of the double */

	setup(NULL);
	fabric.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	host.location.type = CU_MEM_LOCATION_TYPE_HOST;
	unexported.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	REFUSED(INVALID_VALUE, cuMemGetAllocationGranularity(NULL, &wanted, minimum));
	REFUSED(INVALID_VALUE, cuMemGetAllocationGranularity(&bytes, NULL, minimum));
	REFUSED(INVALID_VALUE, cuMemGetAllocationGranularity(&bytes, &fabric, minimum));
	REFUSED(INVALID_VALUE, cuMemGetAllocationGranularity(&bytes, &host, minimum));
	REFUSED(INVALID_VALUE, cuMemGetAllocationGranularity(&bytes, &wanted, (CUmemAllocationGranularity_flags)2));
	REFUSED(INVALID_VALUE, cuMemCreate(NULL, PAGE, &wanted, 0));
	REFUSED(INVALID_VALUE, cuMemCreate(&handle, PAGE, NULL, 0));
	wanted.allocFlags.gpuDirectRDMACapable = 1;
	REFUSED(NOT_SUPPORTED, cuMemCreate(&handle, PAGE, &wanted, 0));
	OK(cuMemCreate(&handle, PAGE, &unexported, 0));
	REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, type, 0));
	OK(cuMemRelease(handle));
	handle = create(PAGE);
	REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(NULL, handle, type, 0));
	REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, type, 1));
	REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle + 1, type, 0));
	REFUSED(INVALID_VALUE, cuMemImportFromShareableHandle(NULL, (void *)(intptr_t)fd, type));
	REFUSED(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, type));
	REFUSED(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1, type));
	REFUSED(INVALID_VALUE,
		cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_FABRIC));
	/* A socket that is not the driver's. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	assert_int_equal(write(pair[1], forged, sizeof(forged)), sizeof(forged));
	REFUSED(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)pair[0], type));
	REFUSED(INVALID_VALUE, cuMemGetInfo(NULL, &bytes));
	REFUSED(INVALID_VALUE, cuMemGetInfo(&bytes, NULL));
}

static void addresses_and_access(void)
{
	CUmemAccessDesc access = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READ), peer = access_of(1, access.flags);
	CUmemAccessDesc write_only = access_of(0, (CUmemAccess_flags)2), unknown = access_of(0, (CUmemAccess_flags)4);
	CUmemAccessDesc below = access_of(-1, access.flags);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at, hole, page;
	unsigned long long flags;

	setup(NULL);
	page = mapped();
	REFUSED(INVALID_VALUE, cuMemAddressReserve(NULL, PAGE, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, 0, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, PAGE, 0, 0, 1));
	OK(cuMemAddressReserve(&hole, PAGE, 0, 0, 0));
	handle = create(PAGE);
	REFUSED(INVALID_VALUE, cuMemAddressFree(PAGE, PAGE)); /* not reserved */
	REFUSED(INVALID_VALUE, cuMemMap(hole, PAGE, 0, handle + 1, 0));
	REFUSED(INVALID_VALUE, cuMemUnmap(PAGE, PAGE));
	REFUSED(INVALID_VALUE, cuMemUnmap(page, PAGE / 2));
	REFUSED(INVALID_VALUE, cuMemUnmap(page, 0));
	REFUSED(INVALID_VALUE, cuMemUnmap(page + 4096, PAGE));
	REFUSED(INVALID_VALUE, cuMemUnmap(hole, PAGE));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page, 0, &access, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page, PAGE, NULL, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(PAGE, PAGE, &access, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page + 4096, PAGE, &access, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page, PAGE / 2, &access, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page, PAGE, &below, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page, PAGE, &write_only, 1));
	REFUSED(INVALID_VALUE, cuMemSetAccess(page, PAGE, &unknown, 1));
	REFUSED(INVALID_DEVICE, cuMemSetAccess(page, PAGE, &peer, 1)); /* no peer */
	REFUSED(INVALID_VALUE, cuMemGetAccess(NULL, &access.location, page));
	REFUSED(INVALID_VALUE, cuMemGetAccess(&flags, NULL, page));
	REFUSED(INVALID_VALUE, cuMemGetAccess(&flags, &access.location, PAGE));
	REFUSED(INVALID_VALUE, cuMemGetAccess(&flags, &access.location, hole));
	access.location.id = 2;
	REFUSED(INVALID_VALUE, cuMemGetAccess(&flags, &access.location, page));
	/* Memory of cuMemAlloc() is no reservation of the caller. */
	OK(cuMemAlloc(&at, PAGE));
	REFUSED(INVALID_VALUE, cuMemUnmap(at, PAGE));
	REFUSED(INVALID_VALUE, cuMemAddressFree(at, PAGE));
	REFUSED(INVALID_VALUE, cuMemMap(at, PAGE, 0, handle, 0));
	REFUSED(INVALID_VALUE, cuMemFree(at + 4096));
	REFUSED(INVALID_VALUE, cuMemFree(page));
	OK(cuMemFree(at));
	REFUSED(INVALID_VALUE, cuMemFree(at));
	REFUSED(INVALID_VALUE, cuMemAlloc(NULL, PAGE));
}

static void host_memory(void)
{
	CUdeviceptr device;
	char *page, *undevised = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	setup(NULL);
	page = page_registered(&device);
	REFUSED(INVALID_VALUE, cuMemHostRegister(NULL, 4096, 0));
	REFUSED(INVALID_VALUE, cuMemHostRegister(undevised, 0, 0));
	REFUSED(INVALID_VALUE, cuMemHostRegister(undevised, 4096, 1 << 20));
	REFUSED(INVALID_VALUE, cuMemHostRegister((void *)(uintptr_t)mapped(), 4096, 0));
	REFUSED(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(page + 4095, 1, 0));
	REFUSED(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(page + 1));
	REFUSED(INVALID_VALUE, cuMemHostGetDevicePointer(NULL, page, 0));
	REFUSED(INVALID_VALUE, cuMemHostGetDevicePointer(&device, page, 1));
	REFUSED(INVALID_VALUE, cuMemHostGetDevicePointer(&device, undevised, 0));
	OK(cuMemHostRegister(undevised, 4096, 0));
	REFUSED(INVALID_VALUE, cuMemHostGetDevicePointer(&device, undevised, 0)); /* without DEVICEMAP */
	OK(cuMemHostUnregister(page));
	REFUSED(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(page));
}

static CUmemPoolProps pool_properties(void)
{
	CUmemPoolProps made = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};

	made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return made;
}

static void pools(void)
{
	CUmemPoolProps wanted = pool_properties(), exported = wanted, untyped = wanted, host = wanted,
		       elsewhere = wanted;
	CUmemPool_attribute threshold = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, other = CU_MEMPOOL_ATTR_USED_MEM_HIGH;
	CUmemoryPool pool, gone;
	CUgraph graph;
	CUstream stream;
	CUdeviceptr at, unpooled;
	cuuint64_t value = 0;

	setup(NULL);
	stream = stream_new();
	exported.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	untyped.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
	host.location.type = CU_MEM_LOCATION_TYPE_HOST;
	elsewhere.location.id = 1;
	REFUSED(INVALID_VALUE, cuMemPoolCreate(NULL, &wanted));
	REFUSED(INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
	REFUSED(INVALID_VALUE, cuMemPoolCreate(&pool, &exported));
	REFUSED(INVALID_VALUE, cuMemPoolCreate(&pool, &untyped));
	REFUSED(INVALID_VALUE, cuMemPoolCreate(&pool, &host));
	REFUSED(INVALID_VALUE, cuMemPoolCreate(&pool, &elsewhere));
	OK(cuMemPoolCreate(&gone, &wanted));
	OK(cuMemPoolDestroy(gone));
	OK(cuMemPoolCreate(&pool, &wanted));
	REFUSED(INVALID_VALUE, cuMemPoolDestroy(gone));
	REFUSED(INVALID_VALUE, cuMemPoolSetAttribute(gone, threshold, &value));
	REFUSED(INVALID_VALUE, cuMemPoolSetAttribute(pool, threshold, NULL));
	REFUSED(INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
	REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(gone, threshold, &value));
	REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(pool, threshold, NULL));
	REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(pool, other, &value));
	REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(NULL, PAGE, pool, stream));
	REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(&at, 0, pool, stream));
	REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(&at, PAGE, gone, stream));
	REFUSED(INVALID_HANDLE, cuMemAllocFromPoolAsync(&at, PAGE, pool, stream_gone()));
	REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&at, 16ull << 30, pool, stream));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	REFUSED(NOT_SUPPORTED, cuMemAllocFromPoolAsync(&at, PAGE, pool, stream));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuMemAlloc(&unpooled, PAGE));
	REFUSED(INVALID_VALUE, cuMemFreeAsync(unpooled, stream));
	OK(cuMemAllocFromPoolAsync(&at, PAGE, pool, stream));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
	assert_int_equal(value, PAGE);
	REFUSED(INVALID_HANDLE, cuMemFreeAsync(at, stream_gone()));
	OK(cuMemFreeAsync(at, stream));
	REFUSED(INVALID_VALUE, cuMemFreeAsync(at, stream)); /* twice */
}

static void without_pools(void)
{
	CUmemPoolProps wanted = pool_properties();
	CUmemoryPool pool;

	setup(NULL);
	REFUSED(NOT_SUPPORTED, cuMemPoolCreate(&pool, &wanted));
}

/* ---- streams and events ---- */

static void host_function(void *data)
{
	*(int *)data = 1;
}

static void streams(void)
{
	CUstream stream, gone, other;
	CUdeviceptr page, word;
	CUcontext of;
	int ran = 0;

	setup(NULL);
	stream = stream_new();
	gone = stream_gone();
	page = mapped();
	page_registered(&word);
	REFUSED(INVALID_VALUE, cuStreamCreate(NULL, 0));
	REFUSED(INVALID_VALUE, cuStreamCreate(&other, 2));
	REFUSED(INVALID_VALUE, cuStreamCreateWithPriority(&other, 2, 0));
	OK(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -100));
	REFUSED(INVALID_HANDLE, cuStreamDestroy(NULL));
	REFUSED(INVALID_HANDLE, cuStreamDestroy(CU_STREAM_LEGACY));
	REFUSED(INVALID_HANDLE, cuStreamDestroy(CU_STREAM_PER_THREAD));
	REFUSED(INVALID_HANDLE, cuStreamDestroy(gone));
	REFUSED(INVALID_HANDLE, cuStreamSynchronize(gone));
	REFUSED(INVALID_HANDLE, cuStreamQuery(gone));
	REFUSED(INVALID_HANDLE, cuStreamGetCtx(gone, &of));
	REFUSED(INVALID_VALUE, cuStreamGetCtx(stream, NULL));
	OK(cuStreamGetCtx(stream, &of));
	assert_ptr_equal(of, context);
	REFUSED(INVALID_VALUE, cuLaunchHostFunc(stream, NULL, &ran));
	REFUSED(INVALID_HANDLE, cuLaunchHostFunc(gone, host_function, &ran));
	REFUSED(INVALID_HANDLE, cuMemcpyAsync(page, page, 8, gone));
	REFUSED(INVALID_VALUE, cuMemcpyAsync(0, page, 8, stream));
	REFUSED(INVALID_VALUE, cuMemcpyAsync(page, 0, 8, stream));
	REFUSED(INVALID_VALUE, cuMemcpyHtoD(0, &ran, sizeof(ran)));
	REFUSED(INVALID_VALUE, cuMemcpyDtoH(NULL, page, 8));
	OK(cuMemcpyAsync(page, 0, 0, stream)); /* no byte */
	REFUSED(INVALID_HANDLE, cuMemsetD32Async(page, 0, 1, gone));
	REFUSED(INVALID_VALUE, cuMemsetD32Async(0, 0, 1, stream));
	REFUSED(INVALID_VALUE, cuMemsetD32Async(page + 2, 0, 1, stream));
	REFUSED(INVALID_VALUE, cuMemsetD8Async(0, 0, 1, stream));
	OK(cuMemsetD8Async(page + 1, 0, 1, stream));
	REFUSED(INVALID_HANDLE, cuStreamWriteValue64(gone, word, 1, 0));
	REFUSED(INVALID_VALUE, cuStreamWriteValue64(stream, 0, 1, 0));
	REFUSED(INVALID_VALUE, cuStreamWaitValue64(stream, word, 1, 1 << 20));
	REFUSED(INVALID_VALUE, cuStreamWaitValue64(stream, word + 4, 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamWaitValue64(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuLaunchHostFunc(stream, host_function, &ran));
	REFUSED(NOT_READY, cuStreamQuery(stream));
	assert_int_equal(ran, 0);
	OK(cuStreamWriteValue64(other, word, 1, 0));
	OK(cuStreamSynchronize(stream));
	assert_int_equal(ran, 1);
}

static void without_words(void)
{
	CUdeviceptr word;

	setup(NULL);
	page_registered(&word);
	REFUSED(NOT_SUPPORTED, cuStreamWriteValue64(NULL, word, 1, 0));
	REFUSED(NOT_SUPPORTED, cuStreamWaitValue64(NULL, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static void events(void)
{
	CUevent event, gone, elsewhere;
	CUstream stream, other;
	CUdeviceptr word;
	CUcontext second;

	setup(NULL);
	event = event_new(0);
	gone = event_gone();
	stream = stream_new();
	other = stream_new();
	page_registered(&word);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	elsewhere = event_new(0);
	OK(cuCtxPopCurrent(NULL));
	REFUSED(INVALID_VALUE, cuEventCreate(NULL, 0));
	REFUSED(INVALID_HANDLE, cuEventDestroy(gone));
	REFUSED(INVALID_HANDLE, cuEventRecord(gone, stream));
	REFUSED(INVALID_HANDLE, cuEventRecord(elsewhere, stream)); /* of another context */
	REFUSED(INVALID_HANDLE, cuEventSynchronize(gone));
	REFUSED(INVALID_HANDLE, cuStreamWaitEvent(stream, gone, 0));
	REFUSED(INVALID_HANDLE, cuStreamWaitEvent(stream_gone(), event, 0));
	REFUSED(INVALID_VALUE, cuStreamWaitEvent(stream, event, 2));
	OK(cuStreamWaitEvent(stream, elsewhere, 0)); /* may be of another context */
	OK(cuStreamWaitValue64(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuEventRecord(event, stream));
	REFUSED(NOT_READY, cuEventQuery(event));
	OK(cuStreamWriteValue64(other, word, 1, 0));
	OK(cuEventSynchronize(event));
	OK(cuEventQuery(event));
}

static int maker_says[2], maker_hears[2];

/* Make an event, write its handle, and end when the other process closes its pipe. */
static int event_maker(void)
{
	CUipcEventHandle ipc;

	setup(NULL);
	close(maker_hears[1]);
	OK(cuIpcGetEventHandle(&ipc, event_new(CU_EVENT_INTERPROCESS)));
	return write(maker_says[1], &ipc, sizeof(ipc)) != sizeof(ipc) || read(maker_hears[0], &ipc, 1) != 0;
}

static void events_between_processes(void)
{
	CUipcEventHandle ipc, other, forged = {{0}};
	CUevent event, imported;
	pid_t maker;
	int status;

	assert_int_equal(pipe(maker_says), 0);
	assert_int_equal(pipe(maker_hears), 0);
	maker = fork();
	if (maker == 0)
		_exit(event_maker());
	assert_int_equal(read(maker_says[0], &ipc, sizeof(ipc)), sizeof(ipc));
	setup(NULL);
	REFUSED(INVALID_VALUE, cuIpcOpenEventHandle(NULL, ipc));
	REFUSED(INVALID_HANDLE, cuIpcOpenEventHandle(&event, forged));
	OK(cuIpcOpenEventHandle(&imported, ipc));
	REFUSED(INVALID_HANDLE, cuIpcGetEventHandle(&other, imported));
	OK(cuEventQuery(imported));
	close(maker_hears[1]);
	assert_int_equal(waitpid(maker, &status, 0), maker);
	assert_int_equal(status, 0);
	/* An event ends with its maker. */
	REFUSED(INVALID_HANDLE, cuEventQuery(imported));
	REFUSED(INVALID_HANDLE, cuEventSynchronize(imported));
	REFUSED(INVALID_HANDLE, cuEventRecord(imported, NULL));
	REFUSED(INVALID_HANDLE, cuStreamWaitEvent(NULL, imported, 0));
	REFUSED(INVALID_HANDLE, cuIpcOpenEventHandle(&event, ipc));
	event = event_new(CU_EVENT_INTERPROCESS);
	REFUSED(INVALID_VALUE, cuIpcGetEventHandle(NULL, event));
	OK(cuIpcGetEventHandle(&ipc, event));
	REFUSED(INVALID_CONTEXT, cuIpcOpenEventHandle(&event, ipc)); /* in its own process */
	REFUSED(INVALID_HANDLE, cuIpcGetEventHandle(&ipc, event_gone()));
}

/* ---- captures and graphs ---- */

static CUstream captured;

static void *end_refused(void *unused)
{
	CUgraph graph;

	OK(cuCtxSetCurrent(context));
	REFUSED(STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(captured, &graph));
	return unused;
}

static void *end_accepted(void *unused)
{
	CUgraph graph;

	OK(cuCtxSetCurrent(context));
	OK(cuStreamEndCapture(captured, &graph));
	return unused;
}

static void in_another_thread(void *(*run)(void *))
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void captures(void)
{
	CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL, mode = (CUstreamCaptureMode)3;
	CUstreamCaptureStatus status;
	CUstream other, third;
	CUdeviceptr page;
	CUgraph graph;
	CUevent inside, outside;
	char unregistered[8];

	setup(NULL);
	captured = stream_new();
	other = stream_new();
	third = stream_new();
	inside = event_new(0);
	outside = event_new(0);
	page = mapped();
	REFUSED(INVALID_VALUE, cuThreadExchangeStreamCaptureMode(NULL));
	REFUSED(INVALID_VALUE, cuThreadExchangeStreamCaptureMode(&mode));
	REFUSED(INVALID_VALUE, cuStreamBeginCapture(captured, mode));
	REFUSED(INVALID_HANDLE, cuStreamBeginCapture(stream_gone(), global));
	REFUSED(INVALID_VALUE, cuStreamIsCapturing(captured, NULL));
	REFUSED(INVALID_HANDLE, cuStreamIsCapturing(stream_gone(), &status));
	REFUSED(INVALID_VALUE, cuStreamEndCapture(captured, NULL));
	REFUSED(ILLEGAL_STATE, cuStreamEndCapture(captured, &graph));
	OK(cuStreamBeginCapture(captured, global));
	in_another_thread(end_refused);
	OK(cuEventRecord(inside, captured));
	REFUSED(CAPTURED_EVENT, cuEventSynchronize(inside));
	REFUSED(STREAM_CAPTURE_IMPLICIT, cuStreamWaitEvent(NULL, inside, 0)); /* the legacy stream would join */
	OK(cuStreamWaitEvent(other, inside, 0));
	REFUSED(STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuMemsetD32Async(page, 0, 1, other));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamWaitEvent(third, inside, 0));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
	OK(cuStreamBeginCapture(captured, global));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(captured));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
	OK(cuStreamBeginCapture(captured, global));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuMemcpyAsync(page, (uintptr_t)unregistered, 8, captured));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
	/* A capture depends on no work outside of it. */
	OK(cuEventRecord(outside, third));
	OK(cuStreamBeginCapture(captured, global));
	REFUSED(STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(captured, outside, 0));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
	/* Two captures are not merged, and an event of a capture that has ended is not used in another one. */
	OK(cuStreamBeginCapture(captured, global));
	OK(cuEventRecord(inside, captured));
	OK(cuStreamBeginCapture(other, global));
	REFUSED(STREAM_CAPTURE_MERGE, cuStreamWaitEvent(other, inside, 0));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other, &graph));
	OK(cuStreamEndCapture(captured, &graph));
	OK(cuGraphDestroy(graph));
	OK(cuStreamBeginCapture(other, global));
	REFUSED(CAPTURED_EVENT, cuStreamWaitEvent(other, inside, 0));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other, &graph));
	/* Another thread may end a capture in relaxed mode. */
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	in_another_thread(end_accepted);
}

static void *allocate_refused(void *unused)
{
	CUdeviceptr at;

	OK(cuCtxSetCurrent(context));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&at, PAGE));
	return unused;
}

static CUstreamCaptureMode thread_mode;

static void *allocate_accepted(void *unused)
{
	CUstreamCaptureMode mode = thread_mode;
	CUdeviceptr at;

	OK(cuCtxSetCurrent(context));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuMemAlloc(&at, PAGE));
	return unused;
}

static void capture_modes(void)
{
	CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr at;
	CUgraph graph;

	setup(NULL);
	captured = stream_new();
	/*
	 * While a thread captures in global mode, other threads may allocate only if their own mode is not the global
	 * one.
	 */
	OK(cuStreamBeginCapture(captured, global));
	thread_mode = local;
	in_another_thread(allocate_accepted);
	thread_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	in_another_thread(allocate_accepted);
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	assert_int_equal(mode, global);
	OK(cuMemAlloc(&at, PAGE)); /* in relaxed mode */
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	in_another_thread(allocate_refused);
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
	/* While a thread captures in thread-local mode, other threads may allocate, but the thread itself may not. */
	OK(cuStreamBeginCapture(captured, local));
	thread_mode = global;
	in_another_thread(allocate_accepted);
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&at, PAGE));
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
	/* While a capture is in relaxed mode, all threads may allocate. */
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuMemAlloc(&at, PAGE));
	OK(cuStreamEndCapture(captured, &graph));
}

static void graphs(void)
{
	CUgraphExec exec;
	CUstream stream;
	CUgraph graph;

	setup(NULL);
	stream = stream_new();
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamEndCapture(stream, &graph));
	REFUSED(INVALID_VALUE, cuGraphInstantiateWithFlags(NULL, graph, 0));
	REFUSED(INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, NULL, 0));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	REFUSED(INVALID_VALUE, cuGraphDestroy(NULL));
	REFUSED(INVALID_VALUE, cuGraphExecDestroy(NULL));
	REFUSED(INVALID_VALUE, cuGraphLaunch(NULL, stream));
	REFUSED(INVALID_HANDLE, cuGraphLaunch(exec, stream_gone()));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuGraphLaunch(exec, stream)); /* child graphs are not modeled */
	REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
}

/* ---- kernels ---- */

static CUfunction function_of(const char *name)
{
	static const uint32_t image = 0xba55ed50;
	CUfunction function;
	CUmodule module;

	OK(cuModuleLoadData(&module, &image));
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* Launch block_copy in one dimension, or with grid[1] and grid[2], and block[1] and block[2]. */
static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared)
{
	struct block_copy_args args = {.bytes_max = 8};
	void *parameters[] = {&args};

	return cuLaunchKernel(
		function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, NULL, parameters, NULL);
}

static void kernels(void)
{
	static const uint32_t image = 0xba55ed50, no_image = 0x464c457f;
	static const unsigned one[3] = {1, 1, 1}, warp[3] = {32, 1, 1};
	static const unsigned grids[][3] = {{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1, 65536, 1}, {1, 1, 65536}};
	static const unsigned blocks[][3] = {{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1025, 1, 1}};
	struct block_copy_args args = {.bytes_max = 8};
	void *parameters[] = {&args};
	CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
	CUlaunchConfig config = {.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 32,
		.blockDimY = 1,
		.blockDimZ = 1,
		.numAttrs = 1};
	CUfunction function;
	CUstream elsewhere;
	int value;
	CUcontext second;
	CUmodule module;

	setup(NULL);
	function = function_of("block_copy");
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	elsewhere = stream_new();
	OK(cuCtxPopCurrent(NULL));
	REFUSED(INVALID_VALUE, cuModuleLoadData(NULL, &image));
	REFUSED(INVALID_VALUE, cuModuleLoadData(&module, NULL));
	REFUSED(INVALID_IMAGE, cuModuleLoadData(&module, &no_image));
	OK(cuModuleLoadData(&module, &image));
	REFUSED(INVALID_VALUE, cuModuleGetFunction(NULL, module, "block_copy"));
	REFUSED(INVALID_VALUE, cuModuleGetFunction(&function, module, NULL));
	REFUSED(NOT_FOUND, cuModuleGetFunction(&function, module, "no_kernel"));
	REFUSED(INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	REFUSED(INVALID_HANDLE, cuLaunchKernel((CUfunction)-64, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	REFUSED(INVALID_HANDLE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, elsewhere, parameters, NULL));
	REFUSED(INVALID_HANDLE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream_gone(), parameters, NULL));
	REFUSED(INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	REFUSED(INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, parameters));
	REFUSED(INVALID_VALUE, cuFuncGetAttribute(NULL, CU_FUNC_ATTRIBUTE_PTX_VERSION, function));
	REFUSED(INVALID_VALUE, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, function));
	REFUSED(INVALID_HANDLE, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, (CUfunction)-64));
	REFUSED(INVALID_VALUE, cuLaunchKernelEx(NULL, function, parameters, NULL));
	REFUSED(INVALID_VALUE, cuLaunchKernelEx(&config, function, parameters, NULL)); /* no attributes */
	config.attrs = &attribute;
	REFUSED(INVALID_HANDLE, cuLaunchKernelEx(&config, NULL, parameters, NULL));
	OK(cuLaunchKernelEx(&config, function, parameters, NULL));
	attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE; /* not modeled */
	REFUSED(INVALID_VALUE, cuLaunchKernelEx(&config, function, parameters, NULL));
	for (size_t i = 0; i < sizeof(grids) / sizeof(*grids); i++)
		REFUSED(INVALID_VALUE, launch(function, grids[i], one, 0));
	for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++)
		REFUSED(INVALID_VALUE, launch(function, one, blocks[i], 0));
	REFUSED(INVALID_VALUE, launch(function, one, one, (48 << 10) + 1));
	OK(launch(function, one, warp, 48 << 10));
	OK(cuCtxSynchronize());
}

/* ---- faults: each ends the device of its process ---- */

static CUdeviceptr read_only(void)
{
	CUmemAccessDesc access = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	CUdeviceptr at = mapped();

	OK(cuMemSetAccess(at, PAGE, &access, 1));
	return at;
}

static void fill_without_the_right(void)
{
	setup(NULL);
	OK(cuMemsetD32Async(read_only(), 0, 1, NULL));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

static void copy_to_without_the_right(void)
{
	CUdeviceptr page;

	setup(NULL);
	page = mapped();
	OK(cuMemcpyAsync(read_only(), page, 8, NULL));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

static void copy_from_without_the_right(void)
{
	CUmemAccessDesc none = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	CUdeviceptr page, from;

	setup(NULL);
	page = mapped();
	from = mapped();
	OK(cuMemSetAccess(from, PAGE, &none, 1));
	OK(cuMemcpyAsync(page, from, 8, NULL));
	REFUSED(ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static void write_without_the_right(void)
{
	setup(NULL);
	OK(cuStreamWriteValue64(NULL, read_only(), 1, 0));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

static void wait_for_unmapped_memory(void)
{
	CUdeviceptr hole;

	setup(NULL);
	OK(cuMemAddressReserve(&hole, PAGE, 0, 0, 0));
	OK(cuStreamWaitValue64(NULL, hole, 1, CU_STREAM_WAIT_VALUE_GEQ));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

static void unmap_under_queued_work(void)
{
	CUdeviceptr page, word;
	CUstream stream;

	setup(NULL);
	page = mapped();
	page_registered(&word);
	stream = stream_new();
	OK(cuStreamWaitValue64(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuMemsetD32Async(page, 0, 1, stream));
	pages_unmap(page, 1);
	OK(cuStreamWriteValue64(stream_new(), word, 1, 0));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

static void kernel_without_the_right(void)
{
	struct block_copy_args args = {.bytes_max = 8, .count = 1};
	void *parameters[] = {&args};

	setup(NULL);
	args.items[0] = (struct block_copy_item){read_only(), mapped(), 8};
	OK(cuLaunchKernel(function_of("block_copy"), 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
	REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

/* ---- the management library ---- */

/* Names of errors as in nvml.h, which is a header of its own package. */
enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, ARGUMENT_VERSION_MISMATCH = 25 };
#define NVML_REFUSED(error, call) assert_int_equal(call, error)

static void management_library(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
	int (*nvmlInit_v2)(void), (*nvmlShutdown)(void), (*nvmlDeviceGetHandleByUUID)(const char *, void **);
	int (*nvmlDeviceGetHandleByPciBusId_v2)(const char *, void **), (*nvmlDeviceGetMemoryInfo)(void *, void *);
	int (*nvmlDeviceGetGpuFabricInfoV)(void *, void *);
	int (*nvmlDeviceGetComputeRunningProcesses)(void *, unsigned *, void *);
	unsigned long long memory[3];
	unsigned fabric[16] = {0}, count = 1;

	assert_non_null(library);
#define FUNCTION(name) \
	do { \
		*(void **)&name = dlsym(library, #name); \
		assert_true(name); \
	} while (0)
	FUNCTION(nvmlInit_v2);
	FUNCTION(nvmlShutdown);
	FUNCTION(nvmlDeviceGetHandleByUUID);
	FUNCTION(nvmlDeviceGetHandleByPciBusId_v2);
	FUNCTION(nvmlDeviceGetMemoryInfo);
	FUNCTION(nvmlDeviceGetGpuFabricInfoV);
	FUNCTION(nvmlDeviceGetComputeRunningProcesses);
#undef FUNCTION
	NVML_REFUSED(UNINITIALIZED, nvmlShutdown());
	NVML_REFUSED(UNINITIALIZED, nvmlDeviceGetHandleByUUID("GPU-", &device));
	NVML_REFUSED(UNINITIALIZED, nvmlDeviceGetHandleByPciBusId_v2("0:0:0.0", &device));
	NVML_REFUSED(UNINITIALIZED, nvmlDeviceGetMemoryInfo(memory, memory));
	NVML_REFUSED(UNINITIALIZED, nvmlDeviceGetGpuFabricInfoV(memory, fabric));
	NVML_REFUSED(UNINITIALIZED, nvmlDeviceGetComputeRunningProcesses(memory, &count, NULL));
	assert_int_equal(nvmlInit_v2(), 0);
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(NULL, &device));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID("GPU-", NULL));
	NVML_REFUSED(NOT_FOUND, nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000", &device));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2(NULL, &device));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2("0:0:0.0", NULL));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2("bus", &device));
	NVML_REFUSED(NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2("0:7:0.0", &device));
	NVML_REFUSED(NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2("1:0:0", &device));
	assert_int_equal(nvmlDeviceGetHandleByUUID("GPU-d0d0d0d0-d0d0-d0d0-d0d0-d0d0d0d0d000", &device), 0);
	assert_int_equal(nvmlDeviceGetHandleByPciBusId_v2("00:00.0", &device), 0);
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo((char *)device + 64, memory));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(NULL, memory));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(device, NULL));
	assert_int_equal(nvmlDeviceGetMemoryInfo(device, memory), 0);
	assert_true(memory[1] <= memory[0] && memory[2] == memory[0] - memory[1]);
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetGpuFabricInfoV(NULL, fabric));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetGpuFabricInfoV(device, NULL));
	NVML_REFUSED(ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetGpuFabricInfoV(device, fabric)); /* not set */
	fabric[0] = FABRIC_2;
	assert_int_equal(nvmlDeviceGetGpuFabricInfoV(device, fabric), 0);
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses(NULL, &count, NULL));
	NVML_REFUSED(INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses(device, NULL, NULL));
	assert_int_equal(nvmlDeviceGetComputeRunningProcesses(device, &count, NULL), 0);
	assert_int_equal(count, 0);
	assert_int_equal(nvmlShutdown(), 0);
}

static const struct {
	const char *name, *settings;
	void (*run)(void);
} cases[] = {
	{"before_the_start", "", before_the_start},
	{"without_devices", "devices=0", without_devices},
	{"after_a_fork", "", after_a_fork},
	{"without_a_context", "", without_a_context},
	{"devices", "devices=2", devices},
	{"contexts", "devices=2", contexts},
	{"physical_memory", "rdma=0", physical_memory},
	{"addresses_and_access", "devices=2 peers=0", addresses_and_access},
	{"host_memory", "", host_memory},
	{"pools", "", pools},
	{"without_pools", "pools=0", without_pools},
	{"streams", "", streams},
	{"without_words", "timeline=0", without_words},
	{"events", "devices=2", events},
	{"events_between_processes", "", events_between_processes},
	{"captures", "", captures},
	{"capture_modes", "", capture_modes},
	{"graphs", "", graphs},
	{"kernels", "devices=2", kernels},
	{"fill_without_the_right", "", fill_without_the_right},
	{"copy_to_without_the_right", "", copy_to_without_the_right},
	{"copy_from_without_the_right", "", copy_from_without_the_right},
	{"write_without_the_right", "", write_without_the_right},
	{"wait_for_unmapped_memory", "", wait_for_unmapped_memory},
	{"unmap_under_queued_work", "", unmap_under_queued_work},
	{"kernel_without_the_right", "", kernel_without_the_right},
	{"management_library", "", management_library},
};

static int chosen; /* index in cases[] */

/* An assertion that fails outside of cmocka's tests prints its place and ends the process. */
static int run_case(void)
{
	setenv("GPU_DOUBLE", cases[chosen].settings, 1);
	cases[chosen].run();
	return 0;
}

int main(void)
{
	char folder[] = "/dev/shm/gpu-double-test-XXXXXX", command[64];
	int failed = 0;

	if (!mkdtemp(folder))
		return 1;
	setenv("GPU_DOUBLE_DIR", folder, 1);
	for (chosen = 0; chosen < (int)(sizeof(cases) / sizeof(*cases)); chosen++) {
		int status;

		fflush(stdout);
		status = status_of(run_case);
		printf("%s %s\n", status ? "FAIL" : "ok", cases[chosen].name);
		failed |= status;
	}
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command) || failed;
}
