/*
 * nvml.c - the double's libnvidia-ml.so.1: the functions of the management library that gpool uses. The header is a
 * package of its own, so its types are declared here, as in cuda/gpu_cuda_nvml.c. Source: "NVML API Reference", "Device
 * Queries".
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NOT_FOUND = 6,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_ARGUMENT_VERSION_MISMATCH = 25
};

struct nvml_memory {
	unsigned long long total, free, used;
};

#define ENTRY __attribute__((visibility("default")))
ENTRY int nvmlInit_v2(void);
ENTRY int nvmlShutdown(void);
ENTRY int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
ENTRY int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory);
ENTRY const char *nvmlErrorString(int result);

static int (*memory_of)(int device, uint64_t *free_bytes, uint64_t *total);

/*
 * "Initialization and Cleanup", nvmlInit_v2: NVML_ERROR_DRIVER_NOT_LOADED without a driver. The documented count of the
 * initializations is not modeled: nvmlShutdown() has no effect.
 */
int nvmlInit_v2(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (driver)
		*(void **)&memory_of = dlsym(driver, "gpuDoubleMemory");
	return memory_of ? NVML_SUCCESS : NVML_DRIVER_NOT_LOADED;
}

/* "Initialization and Cleanup", nvmlShutdown: NVML_ERROR_UNINITIALIZED before nvmlInit_v2(). */
int nvmlShutdown(void)
{
	return memory_of ? NVML_SUCCESS : NVML_UNINITIALIZED;
}

/* "Device Queries", nvmlDeviceGetHandleByUUID: NVML_ERROR_NOT_FOUND if no device has it. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	uint64_t free_bytes, total;
	char name[64];

	if (!memory_of)
		return NVML_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_INVALID_ARGUMENT;
	for (int i = 0; memory_of(i, &free_bytes, &total) == 0; i++) {
		snprintf(name, sizeof(name), "GPU-d0d0d0d0-d0d0-d0d0-d0d0-d0d0d0d0d0%02x", (unsigned)i);
		if (strcmp(name, uuid) == 0) {
			*device = (void *)(uintptr_t)(i + 1);
			return NVML_SUCCESS;
		}
	}
	return NVML_NOT_FOUND;
}

/* "Device Queries", nvmlDeviceGetMemoryInfo: total, free and used bytes. */
int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
	uint64_t free_bytes, total;

	if (!memory_of)
		return NVML_UNINITIALIZED;
	if (!device || !memory || memory_of((int)(uintptr_t)device - 1, &free_bytes, &total) != 0)
		return NVML_INVALID_ARGUMENT;
	*memory = (struct nvml_memory){total, free_bytes, total - free_bytes};
	return NVML_SUCCESS;
}

/* "Error Reporting", nvmlErrorString: a text for any number. */
const char *nvmlErrorString(int result)
{
	return result == NVML_SUCCESS ? "Success" : result == NVML_NOT_FOUND ? "Not Found" : "Error";
}

/* The bus of a device is its number, as in runtime/runtime.c. */
ENTRY int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
	uint64_t free_bytes, total;
	unsigned domain, bus, number, function;

	/*
	 * "Device Queries": domain:bus:device.function, domain:bus:device or bus:device.function; a device that is not
	 * there is not found.
	 */
	if (!memory_of)
		return NVML_UNINITIALIZED;
	if (!id || !device)
		return NVML_INVALID_ARGUMENT;
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &number) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x.%x", &bus, &number, &function) != 3)
			return NVML_INVALID_ARGUMENT;
	}
	if (domain || number || memory_of((int)bus, &free_bytes, &total) != 0)
		return NVML_NOT_FOUND;
	*device = (void *)(uintptr_t)(bus + 1);
	return NVML_SUCCESS;
}

/* nvmlGpuFabricInfoV_t: its versions 2, with the health, and 3, with its summary, begin with these fields. */
struct nvml_fabric {
	unsigned version; /* the size of the struct, and its number in the highest byte */
	unsigned char cluster[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
};
enum { FABRIC_2 = sizeof(struct nvml_fabric) | 2 << 24, FABRIC_3 = (sizeof(struct nvml_fabric) + 4) | 3 << 24 };
ENTRY int nvmlDeviceGetGpuFabricInfoV(void *device, struct nvml_fabric *fabric);

int nvmlDeviceGetGpuFabricInfoV(void *device, struct nvml_fabric *fabric)
{
	/*
	 * "Device Queries": the caller sets the version. The documentation does not name the error for another one. For
	 * a device without a fabric, it has an error and a state; here it is the state, without which PyTorch's
	 * allocator fails.
	 */
	if (!memory_of)
		return NVML_UNINITIALIZED;
	if (!device || !fabric)
		return NVML_INVALID_ARGUMENT;
	if (fabric->version != FABRIC_2 && fabric->version != FABRIC_3)
		return NVML_ARGUMENT_VERSION_MISMATCH;
	fabric->state = 0; /* NVML_GPU_FABRIC_STATE_NOT_SUPPORTED */
	return NVML_SUCCESS;
}

/* The double does not know which processes use a device, and lists none. */
ENTRY int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes);

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes)
{
	/* "Device Queries": the number of processes is returned in the count. */
	(void)processes;
	if (!memory_of)
		return NVML_UNINITIALIZED;
	if (!device || !count)
		return NVML_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* PyTorch's allocator looks these up before its first expandable segment. */
#define UNSUPPORTED(name) \
	ENTRY int name(void); \
	int name(void) \
	{ \
		return NVML_NOT_SUPPORTED; \
	}
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlSystemGetCudaDriverVersion_v2)
