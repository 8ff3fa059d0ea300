/*
 * gpu_cuda_nvml.c - free memory of a device from the management library (NVML), for a device without a context.
 *
 * The library is part of the driver package and is opened at run time. Its header has a package of its own, so the four
 * functions that are used are declared here.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

struct nvml_device; /* nvmlDevice_t points to one */
struct nvml_memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

static struct {
	pthread_once_t once;
	int error;
	int (*init)(void);
	int (*device_by_uuid)(const char *uuid, struct nvml_device **device);
	int (*memory_info)(struct nvml_device *device, struct nvml_memory *memory);
	const char *(*error_string)(int result);
} nvml = {.once = PTHREAD_ONCE_INIT};

static void nvml_load_once(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	nvml.error = -EOPNOTSUPP;
	if (!library)
		return;
	*(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
	*(void **)&nvml.device_by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
	*(void **)&nvml.memory_info = dlsym(library, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml.error_string = dlsym(library, "nvmlErrorString");
	if (nvml.init && nvml.device_by_uuid && nvml.memory_info && nvml.error_string && nvml.init() == 0)
		nvml.error = 0;
	else
		dlclose(library);
}

/* device_find() - find a device by its UUID; a MIG slice has the same UUID with another prefix. */
static int device_find(const char *uuid, struct nvml_device **device)
{
	char slice[GPU_UUID_MAX];
	int result = nvml.device_by_uuid(uuid, device);

	if (result == 0)
		return 0;
	memcpy(slice, uuid, sizeof(slice));
	memcpy(slice, "MIG", 3);
	return nvml.device_by_uuid(slice, device) == 0 ? 0 : result;
}

int cuda_nvml_memory_info(const char *uuid, uint64_t *free_bytes, uint64_t *total_bytes)
{
	struct nvml_device *device;
	struct nvml_memory memory;
	int result;

	pthread_once(&nvml.once, nvml_load_once);
	if (nvml.error)
		return gpu_fail(nvml.error,
			"cannot query the memory of '%s' without a context: libnvidia-ml.so.1 was not found", uuid);
	result = device_find(uuid, &device);
	if (result == 0)
		result = nvml.memory_info(device, &memory);
	if (result != 0)
		return gpu_fail(-EIO, "cannot query the memory of '%s': %s", uuid, nvml.error_string(result));
	*free_bytes = memory.free;
	*total_bytes = memory.total;
	return 0;
}

#endif
