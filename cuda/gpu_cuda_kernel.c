/*
 * gpu_cuda_kernel.c - kernels on the driver: the first launch loads the image and looks the kernel up.
 *
 * Images are fat binaries. The driver uses the code for its device or compiles the PTX, which takes seconds once; the
 * result is stored in the driver's cache.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <errno.h>

bool cuda_kernels_built(void)
{
	return gpu_kernel_images[0];
}

/*
 * module_get() - return the image's module, and load it on first use. The lock is not held during driver calls: if two
 * threads load the module concurrently, one module is discarded. The device's context is current.
 */
static int module_get(struct gpu_cuda *cuda, enum kernel_image image, CUmodule *module)
{
	CUmodule made = NULL;
	CUresult result;

	pthread_mutex_lock(&cuda->lock);
	*module = cuda->modules[image];
	pthread_mutex_unlock(&cuda->lock);
	if (*module)
		return 0;
	result = cuda->driver->cuModuleLoadData(&made, gpu_kernel_images[image]);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuModuleLoadData of kernel image %d", (int)image);
	pthread_mutex_lock(&cuda->lock);
	if (!cuda->modules[image]) {
		cuda->modules[image] = made;
		made = NULL;
	}
	*module = cuda->modules[image];
	pthread_mutex_unlock(&cuda->lock);
	if (made)
		cuda->driver->cuModuleUnload(made);
	return 0;
}

int cuda_kernels_load(struct gpu_cuda *cuda)
{
	CUmodule module;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	for (int image = 0; image < KERNEL_IMAGES && rc == 0; image++)
		rc = module_get(cuda, (enum kernel_image)image, &module);
	cuda_context_pop(cuda);
	return rc;
}

/*
 * EARLY_VERSION: the first version of CUDA whose graphs have edges for early starts, so that a launch can be captured.
 * EARLY_PTX: the first architecture for which cuda/kernels/overlap.h has instructions. Code that the driver compiled
 * from PTX for an older one does not wait.
 */
enum { EARLY_VERSION = 12030, EARLY_PTX = 90 };

static bool early_possible(const struct cuda_driver *driver, CUfunction function)
{
	int version, ptx;

	return driver->cuDriverGetVersion && driver->cuFuncGetAttribute && driver->cuLaunchKernelEx &&
		driver->cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= EARLY_VERSION &&
		driver->cuFuncGetAttribute(&ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION, function) == CUDA_SUCCESS &&
		ptx >= EARLY_PTX;
}

/* function_get() - return the kernel's function. early: whether a launch with shape->early may start early. */
static int function_get(
	struct gpu_cuda *cuda, enum gpu_kernel kernel, const struct gpu_shape *shape, CUfunction *function, bool *early)
{
	CUmodule module;
	CUresult result;
	int rc;

	pthread_mutex_lock(&cuda->lock);
	*function = cuda->functions[kernel];
	*early = shape->early && cuda->early[kernel];
	pthread_mutex_unlock(&cuda->lock);
	if (*function)
		return 0;
	rc = module_get(cuda, gpu_kernels[kernel].image, &module);
	if (rc < 0)
		return rc;
	result = cuda->driver->cuModuleGetFunction(function, module, gpu_kernels[kernel].name);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuModuleGetFunction of %s", gpu_kernels[kernel].name);
	*early = shape->early && early_possible(cuda->driver, *function);
	pthread_mutex_lock(&cuda->lock);
	cuda->functions[kernel] = *function;
	cuda->early[kernel] = *early;
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

static CUresult early_launch(const struct cuda_driver *driver, CUfunction function, const struct gpu_shape *shape,
	void **parameters, struct gpu_stream *stream)
{
	CUlaunchAttribute attribute = {
		.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		.value = {.programmaticStreamSerializationAllowed = 1},
	};
	const CUlaunchConfig config = {
		.gridDimX = shape->grid[0],
		.gridDimY = shape->grid[1],
		.gridDimZ = shape->grid[2],
		.blockDimX = shape->block,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = shape->shared_bytes,
		.hStream = (CUstream)(void *)stream,
		.attrs = &attribute,
		.numAttrs = 1,
	};

	return driver->cuLaunchKernelEx(&config, function, parameters, NULL);
}

int cuda_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	/* one argument, by value; the driver copies it before it returns */
	void *parameters[] = {(void *)(uintptr_t)args};
	CUfunction function;
	CUresult result;
	bool early;
	int rc;

	if (!cuda_kernels_built())
		return gpu_fail(-EOPNOTSUPP,
			"cannot launch kernel %s: gpool was built without nvcc, so it has no GPU kernels",
			gpu_kernels[kernel].name);
	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	rc = function_get(cuda, kernel, shape, &function, &early);
	if (rc == 0) {
		result = early
			? early_launch(cuda->driver, function, shape, parameters, stream)
			: cuda->driver->cuLaunchKernel(function, shape->grid[0], shape->grid[1], shape->grid[2],
				  shape->block, 1, 1, shape->shared_bytes, (CUstream)(void *)stream, parameters, NULL);
		if (result != CUDA_SUCCESS)
			rc = cuda_fail(cuda->driver, result, "launch of %s", gpu_kernels[kernel].name);
	}
	cuda_context_pop(cuda);
	return rc;
}

void cuda_kernels_fini(struct gpu_cuda *cuda)
{
	if (cuda_context_push(cuda) < 0)
		return;
	for (int image = 0; image < KERNEL_IMAGES; image++)
		if (cuda->modules[image])
			cuda->driver->cuModuleUnload(cuda->modules[image]);
	cuda_context_pop(cuda);
}

#endif
