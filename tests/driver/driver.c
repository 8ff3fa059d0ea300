/* driver.c - start, settings, the frame of every entry point, injected errors, costs, names of errors. */
#include "tests/driver/driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct settings settings = {
	.devices = 1,
	.memory_bytes = 8ull << 30,
	.granularity = 2 << 20,
	.context_bytes = 256 << 20,
	.peers = true,
	.timeline = true,
	.ipc_event = true,
	.pools = true,
	.early = true,
	.rdma = true,
	.vmm = true,
	.descriptors = true,
	.host_alias = true,
	.aligned = true,
};

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum { KINDS_MAX = 256 };

/* Calls by name, in the order of their first use. */
static struct {
	char name[COST_MAX];
	uint64_t count, modeled_us, spent_ns;
	uint64_t fail_at; /* the call that fails; 0: none */
	CUresult fail_with;
} calls[KINDS_MAX];
static unsigned call_kinds;

static _Thread_local uint64_t thread_calls[KINDS_MAX];
/* The call of this thread that is in progress, for spent_ns. Timed only with the setting `counts`. */
static _Thread_local unsigned call_now;
static _Thread_local uint64_t call_began, timed_calls, thread_ns;

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * The costs that have been published, in microseconds: measurements on an A100 of a page of 2 MiB (kvcached). Other
 * calls cost nothing here.
 */
static const struct {
	const char *name;
	unsigned us;
} costs[] = {{"cuMemCreate", 193}, {"cuMemMap", 2}, {"cuMemSetAccess", 36}, {"cuMemUnmap", 26}};

/* call_find() - return the index of a name; an entry point's version, as in cuMemAlloc_v2, is not part of it. */
static unsigned call_find(const char *name)
{
	size_t length = strlen(name);
	unsigned i;

	if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v')
		length -= 3;
	for (i = 0; i < call_kinds; i++)
		if (strlen(calls[i].name) == length && strncmp(calls[i].name, name, length) == 0)
			return i;
	if (call_kinds == KINDS_MAX || length >= COST_MAX)
		driver_undefined("too many names of calls: %s", name);
	memcpy(calls[i].name, name, length);
	return call_kinds++;
}

uint64_t call_count(const char *name)
{
	return calls[call_find(name)].count;
}

void driver_undefined(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("driver double: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	abort();
}

void driver_fault(CUresult error, const char *format, ...)
{
	va_list arguments;

	if (driver.fault)
		return;
	driver.fault = error;
	if (getenv("GPU_DOUBLE_VERBOSE")) {
		va_start(arguments, format);
		fputs("driver double: fault: ", stderr);
		vfprintf(stderr, format, arguments);
		fputc('\n', stderr);
		va_end(arguments);
	}
	pthread_cond_broadcast(&driver.changed);
}

CUresult driver_failed(void)
{
	while (driver.fault && driver.copying)
		pthread_cond_wait(&driver.changed, &driver.lock);
	return driver.fault;
}

/*
 * The error is one of those after which no work of the process runs: "Data types used by CUDA driver", CUresult. For
 * CUDA_ERROR_ECC_UNCORRECTABLE, this is assumed and not documented. Each process has its own random numbers.
 */
void driver_fault_chance(void)
{
	static const CUresult errors[] = {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS,
		CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ECC_UNCORRECTABLE};
	static uint64_t state;
	uint64_t z;

	if (!settings.faults)
		return;
	if (!state)
		state = (settings.seed + 1) * UINT64_C(0xd1342543de82ef95) + (uint64_t)getpid();
	z = state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	z ^= z >> 31;
	if (z % settings.faults == 0)
		driver_fault(errors[(z >> 32) % (sizeof(errors) / sizeof(*errors))], "setting faults");
}

/*
 * For tests: gpuDoubleFault() - make the device of this process fail. gpuDoubleFailed() - return the error with which
 * it has failed, or 0. gpuDoubleFail() - make the n-th later call of this function fail with this CUresult, once.
 */
__attribute__((visibility("default"))) void gpuDoubleFault(void);
__attribute__((visibility("default"))) int gpuDoubleFailed(void);
__attribute__((visibility("default"))) void gpuDoubleFail(const char *name, uint64_t n, int error);

void gpuDoubleFault(void)
{
	pthread_mutex_lock(&driver.lock);
	driver_fault(CUDA_ERROR_ILLEGAL_ADDRESS, "on demand");
	pthread_mutex_unlock(&driver.lock);
}

int gpuDoubleFailed(void)
{
	CUresult fault;

	pthread_mutex_lock(&driver.lock);
	fault = driver.fault;
	pthread_mutex_unlock(&driver.lock);
	return (int)fault;
}

void gpuDoubleFail(const char *name, uint64_t n, int error)
{
	unsigned call;

	pthread_mutex_lock(&driver.lock);
	call = call_find(name);
	calls[call].fail_at = calls[call].count + n;
	calls[call].fail_with = (CUresult)error;
	pthread_mutex_unlock(&driver.lock);
}

/*
 * For tests: gpuDoubleThreadCalls() - return the name of the kind of call with this number (from 0), or NULL if there
 * is no such kind; *count receives the number of such calls that the calling thread has made. gpuDoubleCalls() - the
 * same for all threads of the process. gpuDoubleModeled() - return the time of all calls of the process in the cost
 * model, in microseconds.
 */
__attribute__((visibility("default"))) const char *gpuDoubleThreadCalls(unsigned kind, uint64_t *count);
__attribute__((visibility("default"))) const char *gpuDoubleCalls(unsigned kind, uint64_t *count);
__attribute__((visibility("default"))) uint64_t gpuDoubleModeled(void);

const char *gpuDoubleThreadCalls(unsigned kind, uint64_t *count)
{
	const char *name;

	pthread_mutex_lock(&driver.lock);
	name = kind < call_kinds ? calls[kind].name : NULL;
	pthread_mutex_unlock(&driver.lock);
	if (name)
		*count = thread_calls[kind];
	return name;
}

const char *gpuDoubleCalls(unsigned kind, uint64_t *count)
{
	const char *name;

	pthread_mutex_lock(&driver.lock);
	name = kind < call_kinds ? calls[kind].name : NULL;
	if (name)
		*count = calls[kind].count;
	pthread_mutex_unlock(&driver.lock);
	return name;
}

uint64_t gpuDoubleModeled(void)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&driver.lock);
	for (unsigned i = 0; i < call_kinds; i++)
		sum += calls[i].modeled_us;
	pthread_mutex_unlock(&driver.lock);
	return sum;
}

/* gpuDoubleSpent() - return the number of calls of this thread and their time, with the setting `counts`. */
__attribute__((visibility("default"))) void gpuDoubleSpent(uint64_t *number, uint64_t *ns);

void gpuDoubleSpent(uint64_t *number, uint64_t *ns)
{
	*number = timed_calls;
	*ns = thread_ns;
}

void driver_poll(unsigned *round)
{
	struct timespec wait = {.tv_nsec = *round < 50 ? 20000 : 500000};

	++*round;
	pthread_mutex_unlock(&driver.lock);
	nanosleep(&wait, NULL);
	pthread_mutex_lock(&driver.lock);
}

static uint64_t setting_bytes(const char *value)
{
	char *end;
	uint64_t bytes = strtoull(value, &end, 0);

	if (strcmp(end, "k") == 0)
		bytes <<= 10;
	else if (strcmp(end, "m") == 0)
		bytes <<= 20;
	else if (strcmp(end, "g") == 0)
		bytes <<= 30;
	else if (*end)
		driver_undefined("'%s' is no number in GPU_DOUBLE", value);
	return bytes;
}

/* setting_fail() - "CALL:N" or "CALL:N:ERROR": the n-th call fails, by default for lack of memory. */
static void setting_fail(const char *value)
{
	char name[COST_MAX];
	unsigned error = CUDA_ERROR_OUT_OF_MEMORY;
	unsigned long long at;

	if (sscanf(value, "%63[^:]:%llu:%u", name, &at, &error) < 2)
		driver_undefined("fail=%s in GPU_DOUBLE is not CALL:NUMBER", value);
	calls[call_find(name)].fail_at = at;
	calls[call_find(name)].fail_with = (CUresult)error;
}

static void setting_apply(const char *key, const char *value)
{
	const struct {
		const char *key;
		bool *flag;
	} flags[] = {{"peers", &settings.peers}, {"timeline", &settings.timeline}, {"ipc_event", &settings.ipc_event},
		{"early", &settings.early}, {"pools", &settings.pools}, {"rdma", &settings.rdma},
		{"vmm", &settings.vmm}, {"descriptors", &settings.descriptors}, {"host_alias", &settings.host_alias},
		{"cpu_access", &settings.cpu_access}, {"aligned", &settings.aligned},
		{"unmap_waits", &settings.unmap_waits}, {"fork", &settings.fork}, {"delay", &settings.delay},
		{"late", &settings.late}, {"partial", &settings.partial}};

	for (unsigned i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		if (strcmp(key, flags[i].key) == 0) {
			*flags[i].flag = strcmp(value, "0") != 0;
			return;
		}
	if (strcmp(key, "devices") == 0)
		settings.devices = (unsigned)setting_bytes(value);
	else if (strcmp(key, "memory") == 0)
		settings.memory_bytes = setting_bytes(value);
	else if (strcmp(key, "granularity") == 0)
		settings.granularity = setting_bytes(value);
	else if (strcmp(key, "context") == 0)
		settings.context_bytes = setting_bytes(value);
	else if (strcmp(key, "fail") == 0)
		setting_fail(value);
	else if (strcmp(key, "faults") == 0)
		settings.faults = setting_bytes(value);
	else if (strcmp(key, "seed") == 0)
		settings.seed = setting_bytes(value);
	else if (strcmp(key, "counts") == 0)
		snprintf(settings.counts, sizeof(settings.counts), "%s", value);
	else
		driver_undefined("there is no setting '%s' in GPU_DOUBLE", key);
}

static void settings_read(void)
{
	static bool done;
	const char *given = getenv("GPU_DOUBLE");
	char *text, *word, *rest = NULL, *value;

	if (done)
		return;
	done = true;
	if (!given)
		return;
	text = strdup(given);
	if (!text)
		driver_undefined("no memory for the settings");
	for (word = strtok_r(text, " ,", &rest); word; word = strtok_r(NULL, " ,", &rest)) {
		value = strchr(word, '=');
		if (!value)
			driver_undefined("'%s' in GPU_DOUBLE is not KEY=VALUE", word);
		*value++ = '\0';
		setting_apply(word, value);
	}
	free(text);
	if (settings.devices > DEVICES_MAX)
		driver_undefined("there can be %d devices, not %u", DEVICES_MAX, settings.devices);
	if (settings.granularity < 4096 || settings.granularity & (settings.granularity - 1))
		driver_undefined("the granularity must be a power of two of at least 4096");
}

__attribute__((destructor)) static void counts_write(void)
{
	FILE *file;

	if (!settings.counts[0] || driver.pid != getpid())
		return;
	file = fopen(settings.counts, "a");
	if (!file)
		return;
	for (unsigned i = 0; i < call_kinds; i++)
		if (calls[i].count)
			fprintf(file, "%s %llu %llu %llu\n", calls[i].name, (unsigned long long)calls[i].count,
				(unsigned long long)calls[i].modeled_us, (unsigned long long)calls[i].spent_ns / 1000);
	fclose(file);
}

static unsigned cost_us(const char *name)
{
	for (unsigned i = 0; i < sizeof(costs) / sizeof(*costs); i++)
		if (strcmp(costs[i].name, name) == 0)
			return costs[i].us;
	return 0;
}

CUresult call_enter(const char *name, unsigned needs)
{
	struct timespec wait;
	CUresult result = CUDA_SUCCESS;
	unsigned call, us;
	uint64_t began = settings.counts[0] ? clock_ns() : 0;

	pthread_mutex_lock(&driver.lock);
	settings_read();
	call = call_find(name);
	calls[call].count++;
	us = cost_us(calls[call].name);
	calls[call].modeled_us += us;
	thread_calls[call]++;
	call_now = call;
	call_began = began;
	/* The lock is held during the wait: the driver's own calls exclude each other as well. */
	if (settings.delay && us) {
		wait = (struct timespec){.tv_nsec = us * 1000};
		nanosleep(&wait, NULL);
	}
	/* "Initialization", cuInit: until it is called, any other function returns CUDA_ERROR_NOT_INITIALIZED. That
	 * cuInit also fails in a child of fork() is a choice: the driver's threads and descriptors belong to the
	 * parent. */
	if (!(needs & CALL_BEFORE_INIT) && driver.pid != getpid())
		result = CUDA_ERROR_NOT_INITIALIZED;
	else if (calls[call].fail_at && calls[call].count == calls[call].fail_at)
		result = calls[call].fail_with;
	/* "Data types used by CUDA driver", CUDA_ERROR_ILLEGAL_ADDRESS: any further work of the process returns the
	 * same error, until the process ends. */
	else if (driver.fault && !(needs & (CALL_AFTER_FAULT | CALL_BEFORE_INIT)))
		result = driver_failed();
	else if (needs & CALL_CONTEXT && !context_current())
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (needs & CALL_UNSAFE)
		result = capture_forbids(true);
	return result == CUDA_SUCCESS ? result : call_leave(result);
}

CUresult call_leave(CUresult result)
{
	uint64_t began = call_began;

	call_began = 0;
	if (began)
		calls[call_now].spent_ns += clock_ns() - began;
	pthread_mutex_unlock(&driver.lock);
	if (began) {
		thread_ns += clock_ns() - began;
		timed_calls++;
	}
	return result;
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&driver.lock);
}

static void fork_in_parent(void)
{
	pthread_mutex_unlock(&driver.lock);
}

static void fork_in_child(void)
{
	pthread_mutex_init(&driver.lock, NULL);
	pthread_cond_init(&driver.changed, NULL);
	driver.pid = 0;
	driver.fault = CUDA_SUCCESS;
	driver.copying = 0;
	for (unsigned device = 0; device < DEVICES_MAX; device++) {
		driver.contexts[device].active = false;
		driver.contexts[device].retained = 0;
		driver.contexts[device].legacy = NULL;
	}
	memory_forget();
	streams_forget();
	events_forget();
	captures_forget();
	pools_forget();
	kernels_forget();
}

/* "Initialization", cuInit: Flags must be 0. */
CUresult cuInit(unsigned flags)
{
	static bool forks;
	CUresult result = call_enter(__func__, CALL_BEFORE_INIT);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (driver.pid == getpid())
		return call_leave(CUDA_SUCCESS);
	if (driver.pid)
		return call_leave(CUDA_ERROR_NOT_INITIALIZED); /* after fork() */
	if (!settings.devices)
		return call_leave(CUDA_ERROR_NO_DEVICE);
	result = machine_open();
	if (result == CUDA_SUCCESS) {
		driver.pid = getpid();
		if (settings.fork && !forks)
			pthread_atfork(fork_prepare, fork_in_parent, fork_in_child);
		forks = settings.fork;
	}
	return call_leave(result);
}

/* gpuDoubleMemory() - for the double's NVML: a device's memory, without cuInit(). Return: 0, or -1: no such device. */
__attribute__((visibility("default"))) int gpuDoubleMemory(int device, uint64_t *free_bytes, uint64_t *total);

int gpuDoubleMemory(int device, uint64_t *free_bytes, uint64_t *total)
{
	int rc = -1;

	pthread_mutex_lock(&driver.lock);
	settings_read();
	if (device >= 0 && (unsigned)device < settings.devices && machine_open() == CUDA_SUCCESS) {
		*free_bytes = machine_free_bytes(device);
		*total = settings.memory_bytes;
		rc = 0;
	}
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

/* "Version Management", cuDriverGetVersion: works before cuInit(); NULL is CUDA_ERROR_INVALID_VALUE. */
CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

/* clang-format off: it would put several names in a line, and differently each time */
#define ERRORS(X) \
	X(SUCCESS) \
	X(ERROR_INVALID_VALUE) \
	X(ERROR_OUT_OF_MEMORY) \
	X(ERROR_NOT_INITIALIZED) \
	X(ERROR_DEINITIALIZED) \
	X(ERROR_NO_DEVICE) \
	X(ERROR_INVALID_DEVICE) \
	X(ERROR_INVALID_IMAGE) \
	X(ERROR_INVALID_CONTEXT) \
	X(ERROR_MAP_FAILED) \
	X(ERROR_ECC_UNCORRECTABLE) \
	X(ERROR_NO_BINARY_FOR_GPU) \
	X(ERROR_PEER_ACCESS_UNSUPPORTED) \
	X(ERROR_OPERATING_SYSTEM) \
	X(ERROR_INVALID_HANDLE) \
	X(ERROR_ILLEGAL_STATE) \
	X(ERROR_NOT_FOUND) \
	X(ERROR_NOT_READY) \
	X(ERROR_ILLEGAL_ADDRESS) \
	X(ERROR_LAUNCH_OUT_OF_RESOURCES) \
	X(ERROR_PEER_ACCESS_ALREADY_ENABLED) \
	X(ERROR_PEER_ACCESS_NOT_ENABLED) \
	X(ERROR_PRIMARY_CONTEXT_ACTIVE) \
	X(ERROR_CONTEXT_IS_DESTROYED) \
	X(ERROR_HOST_MEMORY_ALREADY_REGISTERED) \
	X(ERROR_HOST_MEMORY_NOT_REGISTERED) \
	X(ERROR_MISALIGNED_ADDRESS) \
	X(ERROR_LAUNCH_FAILED) \
	X(ERROR_NOT_PERMITTED) \
	X(ERROR_NOT_SUPPORTED) \
	X(ERROR_MPS_CLIENT_TERMINATED) \
	X(ERROR_STREAM_CAPTURE_UNSUPPORTED) \
	X(ERROR_STREAM_CAPTURE_INVALIDATED) \
	X(ERROR_STREAM_CAPTURE_MERGE) \
	X(ERROR_STREAM_CAPTURE_UNMATCHED) \
	X(ERROR_STREAM_CAPTURE_UNJOINED) \
	X(ERROR_STREAM_CAPTURE_ISOLATION) \
	X(ERROR_STREAM_CAPTURE_IMPLICIT) \
	X(ERROR_CAPTURED_EVENT) \
	X(ERROR_STREAM_CAPTURE_WRONG_THREAD) \
	X(ERROR_EXTERNAL_DEVICE) \
	X(ERROR_UNKNOWN)
/* clang-format on */

/* "Error Handling", cuGetErrorName: *pStr is NULL and the result CUDA_ERROR_INVALID_VALUE for an unknown error. */
CUresult cuGetErrorName(CUresult error, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	switch (error) {
#define NAME(suffix) \
	case CUDA_##suffix: *name = "CUDA_" #suffix; return CUDA_SUCCESS;
		ERRORS(NAME)
#undef NAME
	default: *name = NULL; return CUDA_ERROR_INVALID_VALUE;
	}
}

/* "Error Handling", cuGetErrorString: as cuGetErrorName. */
CUresult cuGetErrorString(CUresult error, const char **text)
{
	return cuGetErrorName(error, text); /* the wording is the driver's own; no test may depend on it */
}

/*
 * "Driver Entry Point Access", cuGetProcAddress: the newest version of a function that the caller's CUDA version knows.
 * There is one version of each here, that of the headers. For an unknown function the result is success, and NULL.
 */
CUresult cuGetProcAddress(
	const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	static const char *const suffixes[] = {"", "_v2", "_v3"};
	static void *self;
	char name[128];

	if (!self)
		self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	(void)version;
	(void)flags;
	if (!symbol || !function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	for (unsigned i = 0; i < 3 && !*function; i++) {
		snprintf(name, sizeof(name), "%s%s", symbol, suffixes[i]);
		*function = dlsym(self, name);
	}
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}
