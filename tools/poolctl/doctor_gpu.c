/* doctor_gpu.c - checks of the GPU driver and its devices, and of the host back end. */
#include "shm/plural.h"
#include "tools/poolctl/doctor.h"
#include "tools/poolctl/output.h"

#include "cuda/gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Load the kernels, which needs a context, and report if the driver cannot. Return "yes", "no" or "unknown". */
static const char *kernels_check(struct doctor *doctor, const struct gpu_ops *cuda, int index, uint32_t capabilities)
{
	struct gpu *gpu;
	bool loaded;

	if (!(capabilities & GPU_CAP_KERNELS))
		return "no: built without nvcc";
	if (gpu_open(cuda, index, 0, &gpu))
		return "unknown: no context";
	loaded = gpu_capabilities(gpu) & GPU_CAP_KERNELS;
	if (!loaded) {
		doctor_add(doctor, DOCTOR_FAIL, "GPU kernels", "the driver cannot load the kernels on device %d: %s",
			index, gpu_error_text());
		doctor_advise(doctor,
			"install a driver for the CUDA version with which gpool was built, or a later one; without the "
			"kernels, LoRA batches and int8 offload fail");
	}
	gpu_close(gpu);
	return loaded ? "yes" : "no";
}

static void device_check(struct doctor *doctor, const struct gpu_ops *cuda, int index)
{
	struct gpu_device_info info;
	struct gpu *gpu;
	uint64_t granularity;
	bool timeline;
	int error = cuda->device_info(index, &info);

	if (!error)
		error = gpu_open(cuda, index, GPU_OPEN_OWNER, &gpu);
	if (error) {
		doctor_add(doctor, DOCTOR_FAIL, "GPU", "cannot open device %d: %s; %s", index, strerror(-error),
			gpu_error_text());
		doctor_advise(doctor, "%s",
			error == -EOPNOTSUPP
				? "gpool needs a GPU and a driver with virtual memory management and shareable "
				  "handles: Pascal or later, CUDA 10.2 or later; not all vGPUs have them"
				: "check the device with nvidia-smi, and the permissions of /dev/nvidia*");
		return;
	}
	gpu_granularity(gpu, &granularity); /* of an open device, it cannot fail */
	timeline = info.capabilities & GPU_CAP_TIMELINE;
	doctor_add(doctor, timeline ? DOCTOR_OK : DOCTOR_FAIL, "GPU",
		"device %d, %s, %s, granularity %s, timeline %s, kernels %s", index, info.name,
		bytes_text(info.memory_bytes).text, bytes_text(granularity).text, timeline ? "yes" : "no",
		kernels_check(doctor, cuda, index, info.capabilities));
	if (!timeline)
		doctor_advise(doctor,
			"gpoold refuses this device: its streams cannot write and wait for 64-bit words; install a "
			"later driver, "
			"or use another GPU");
	if (!doctor->agent_answers)
		doctor->handles += info.memory_bytes / granularity;
	gpu_close(gpu);
}

static void driver_check(struct doctor *doctor)
{
	const struct gpu_ops *cuda = gpu_backend("cuda");
	int count = cuda ? cuda->device_count() : -ENODEV;
	char version[256];

	if (count <= 0) {
		bool absent = count == 0 || count == -ENODEV;

		doctor_add(doctor, absent ? DOCTOR_INFO : DOCTOR_FAIL, "NVIDIA driver", "%s",
			count < 0 ? gpu_error_text() : "driver without a device");
		doctor_advise(doctor, "%s",
			absent ? "to use GPUs, install the driver (libcuda.so.1), or start the container with the "
				 "NVIDIA runtime; the back end \"host\" needs no driver"
			       : "install a driver of CUDA 10.2 or later, and check it with nvidia-smi");
		return;
	}
	if (!doctor_read("/proc/driver/nvidia/version", version, sizeof(version)))
		strcpy(version, "version unknown");
	doctor_add(doctor, DOCTOR_OK, "NVIDIA driver", "%d device%s; %s", count, plural(count), version);
	for (int i = 0; i < count; i++)
		device_check(doctor, cuda, i);
}

/* Create memory, map it, write to it on a stream and read it back, as a worker does. */
static int host_try(struct gpu *gpu, const char **step)
{
	uint64_t bytes, handle = 0, va = 0;
	struct gpu_stream *stream = NULL;
	bool mapped = false;
	int error;

	*step = "granularity";
	error = gpu_granularity(gpu, &bytes);
	if (error)
		return error;
	*step = "create";
	error = gpu_create(gpu, bytes, &handle);
	if (error)
		return error;
	*step = "reserve";
	error = gpu_reserve(gpu, bytes, 0, &va);
	if (error)
		goto release;
	*step = "map";
	error = gpu_map(gpu, va, bytes, handle);
	if (error)
		goto unreserve;
	mapped = true;
	*step = "access";
	error = gpu_access(gpu, va, bytes, GPU_ACCESS_READ_WRITE);
	if (error)
		goto unreserve;
	*step = "stream";
	error = gpu_stream_create(gpu, &stream);
	if (error)
		goto unreserve;
	*step = "fill";
	error = gpu_fill(gpu, va, 0x67706f6f, bytes, stream);
	if (!error)
		error = gpu_stream_sync(gpu, stream);
	if (!error && *(const volatile uint32_t *)(uintptr_t)(va + bytes - 4) != 0x67706f6f)
		error = -EIO;
	gpu_stream_destroy(gpu, stream);
unreserve:
	if (mapped)
		gpu_unmap(gpu, va, bytes);
	gpu_unreserve(gpu, va, bytes);
release:
	gpu_release(gpu, handle);
	return error;
}

static void host_check(struct doctor *doctor)
{
	const char *step = "open";
	struct gpu *gpu;
	int error = gpu_open(gpu_backend("host"), 0, 0, &gpu);

	if (!error) {
		error = host_try(gpu, &step);
		gpu_close(gpu);
	}
	if (!error) {
		doctor_add(doctor, DOCTOR_OK, "host back end", "can create, map, write and read memory");
		return;
	}
	doctor_add(doctor, DOCTOR_FAIL, "host back end", "step '%s' failed: %s; %s", step, strerror(-error),
		gpu_error_text());
	doctor_advise(doctor, "free memory, raise the memory limit of this container, or allow memfd_create(2)");
}

void doctor_gpu(struct doctor *doctor)
{
	driver_check(doctor);
	host_check(doctor);
}
