/*
 * test_cuda_kernel.c - launches of the CUDA back end: its calls of the driver, and its handling of the results.
 *
 * Goal: an image is loaded once and a kernel looked up once, and its arguments and shape are passed to the driver.
 * Failures change nothing and have the right errno. The context is left as it was.
 *
 * Method: a device whose driver is this test: a table of functions that record their calls. The test is skipped without
 * the toolkit's headers or without built kernels.
 */
#include <stdint.h>
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"
#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The calls of the driver, and the results that it returns. */
static struct {
	CUresult load, lookup, launch;
	uint32_t loads, unloads, lookups, launches, early_launches;
	int version, ptx;
	int contexts; /* number of pushed minus popped contexts */
	const void *image;
	char name[64];
	unsigned grid[3], block, shared_bytes;
	CUstream stream;
	struct block_copy_args args;
	CUstreamCaptureMode capture;
} driver;

static CUresult push(CUcontext context)
{
	(void)context;
	driver.contexts++;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	(void)context;
	driver.contexts--;
	return CUDA_SUCCESS;
}

static CUresult error_name(CUresult result, const char **name)
{
	(void)result;
	*name = "CUDA_ERROR_OF_THIS_TEST";
	return CUDA_SUCCESS;
}

static CUresult capture_exchange(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = driver.capture;

	driver.capture = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static CUresult module_load(CUmodule *module, const void *image)
{
	driver.loads++;
	*module = (CUmodule)(uintptr_t)image;
	return driver.load;
}

static CUresult module_unload(CUmodule module)
{
	assert_non_null(module);
	driver.unloads++;
	return CUDA_SUCCESS;
}

static CUresult module_lookup(CUfunction *function, CUmodule module, const char *name)
{
	driver.lookups++;
	driver.image = module;
	snprintf(driver.name, sizeof(driver.name), "%s", name);
	*function = (CUfunction)(uintptr_t)&driver;
	return driver.lookup;
}

static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
	unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra)
{
	driver.launches++;
	assert_ptr_equal(function, &driver);
	assert_true(driver.contexts == 1 && block_y == 1 && block_z == 1 && !extra);
	driver.grid[0] = x;
	driver.grid[1] = y;
	driver.grid[2] = z;
	driver.block = block_x;
	driver.shared_bytes = shared_bytes;
	driver.stream = stream;
	if (!strcmp(driver.name, "block_copy"))
		memcpy(&driver.args, parameters[0], sizeof(driver.args));
	return driver.launch;
}

static CUresult version_get(int *version)
{
	*version = driver.version;
	return CUDA_SUCCESS;
}

static CUresult attribute_get(int *value, CUfunction_attribute attribute, CUfunction function)
{
	assert_ptr_equal(function, &driver);
	assert_int_equal(attribute, CU_FUNC_ATTRIBUTE_PTX_VERSION);
	*value = driver.ptx;
	return CUDA_SUCCESS;
}

static CUresult launch_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	driver.early_launches++;
	assert_int_equal(config->numAttrs, 1);
	assert_int_equal(config->attrs[0].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
	assert_int_equal(config->attrs[0].value.programmaticStreamSerializationAllowed, 1);
	return launch(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
		config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, parameters, extra);
}

static const struct cuda_driver calls = {
	.cuDriverGetVersion = version_get,
	.cuFuncGetAttribute = attribute_get,
	.cuLaunchKernelEx = launch_ex,
	.cuGetErrorName = error_name,
	.cuCtxPushCurrent = push,
	.cuCtxPopCurrent = pop,
	.cuThreadExchangeStreamCaptureMode = capture_exchange,
	.cuModuleLoadData = module_load,
	.cuModuleUnload = module_unload,
	.cuModuleGetFunction = module_lookup,
	.cuLaunchKernel = launch,
};

static struct gpu_cuda device;
static struct gpu_stream *const stream = (struct gpu_stream *)&device; /* any address */

static int setup(void **state)
{
	memset(&driver, 0, sizeof(driver));
	memset(&device, 0, sizeof(device));
	device.gpu.ops = &gpu_cuda_ops;
	device.driver = &calls;
	device.context = (CUcontext)(uintptr_t)&driver;
	pthread_mutex_init(&device.lock, NULL);
	*state = &device.gpu;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cuda_kernels_fini(&device);
	assert_int_equal(driver.contexts, 0);
	pthread_mutex_destroy(&device.lock);
	return 0;
}

static int copy_something(struct gpu *gpu)
{
	const struct block_copy_args args = {.bytes_max = 100000, .count = 7, .items = {{0x1000, 0x2000, 16}}};

	return block_copy_queue(gpu, &args, stream);
}

static void test_loads_and_looks_up_once(void **state)
{
	struct gpu *gpu = *state;
	const struct quantise_args args = {0x1000, 0x2000, 0x3000, 0, 10, 128, 128, ELEMENT_F16};

	assert_int_equal(copy_something(gpu), 0);
	assert_ptr_equal(driver.image, gpu_kernel_images[KERNEL_IMAGE_block_copy]);
	assert_string_equal(driver.name, "block_copy");
	assert_true(driver.grid[0] == 7 && driver.grid[1] > 1 && driver.grid[2] == 1 && driver.block == 256);
	assert_true(driver.args.items[0].to == 0x1000 && driver.args.bytes_max == 100000 && driver.args.count == 7);
	assert_ptr_equal(driver.stream, stream);
	assert_int_equal(copy_something(gpu), 0);
	assert_true(driver.loads == 1 && driver.lookups == 1 && driver.launches == 2);

	/* Both kernels are in one image. */
	assert_int_equal(quantise_queue(gpu, &args, stream), 0);
	assert_int_equal(dequantise_queue(gpu, &args, stream), 0);
	assert_string_equal(driver.name, "dequantise");
	assert_true(driver.loads == 2 && driver.lookups == 3 && driver.launches == 4);
	cuda_kernels_fini(&device);
	assert_int_equal(driver.unloads, 2);
	setup(state);
}

static void test_failures_are_tried_again(void **state)
{
	struct gpu *gpu = *state;

	driver.load = CUDA_ERROR_NO_BINARY_FOR_GPU;
	assert_int_equal(copy_something(gpu), -EOPNOTSUPP);
	driver.load = CUDA_ERROR_UNSUPPORTED_PTX_VERSION; /* a driver older than the toolkit */
	assert_int_equal(copy_something(gpu), -EOPNOTSUPP);
	assert_non_null(strstr(gpu_error_text(), "CUDA_ERROR_OF_THIS_TEST"));
	driver.load = CUDA_SUCCESS;
	driver.lookup = CUDA_ERROR_NOT_FOUND;
	assert_int_equal(copy_something(gpu), -EIO);
	assert_non_null(strstr(gpu_error_text(), "block_copy"));
	driver.lookup = CUDA_SUCCESS;
	driver.launch = CUDA_ERROR_OUT_OF_MEMORY;
	assert_int_equal(copy_something(gpu), -ENOMEM);
	driver.launch = CUDA_SUCCESS;
	assert_int_equal(copy_something(gpu), 0);
	assert_true(driver.loads == 3 && driver.lookups == 2 && driver.launches == 2);
	assert_int_equal(driver.contexts, 0);
}

/* Expand starts early if the driver supports this in graphs, and if its code waits for shrink. */
static void test_expand_starts_early(void **state)
{
	static const struct {
		int version, ptx;
		uint32_t early;
	} cases[] = {{13000, 90, 1}, {12030, 100, 1}, {12020, 90, 0}, {13000, 80, 0}};
	struct lora_args args = {
		.batch = 4096,
		.adapters = 4096,
		.x = 4096,
		.y = 4096,
		.workspace = 4096,
		.adapter_count = 1,
		.tokens_max = 1,
		.rank_max = 8,
		.in = 128,
		.out = 1024,
		.x_stride = 128,
		.y_stride = 1024,
		.element = ELEMENT_F16,
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct gpu *gpu;

		setup(state);
		gpu = *state;
		driver.version = cases[i].version;
		driver.ptx = cases[i].ptx;
		for (uint32_t times = 1; times <= 2; times++) {
			assert_int_equal(lora_shrink_queue(gpu, &args, stream), 0);
			assert_int_equal(driver.early_launches, cases[i].early * (times - 1));
			assert_int_equal(lora_expand_queue(gpu, &args, stream), 0);
			assert_int_equal(driver.early_launches, cases[i].early * times);
			assert_true(driver.grid[0] == 1 && driver.grid[1] == 2 && driver.grid[2] == 1);
			assert_true(driver.block == 128 && driver.shared_bytes &&
				driver.stream == (CUstream)(void *)stream);
		}
		assert_int_equal(driver.launches, 4);
		if (i + 1 < sizeof(cases) / sizeof(*cases))
			teardown(state);
	}
}

static void test_kernels_that_cannot_be_loaded_are_no_capability(void **state)
{
	struct gpu *gpu = *state;

	device.capabilities = GPU_CAP_KERNELS | GPU_CAP_TIMELINE;
	driver.load = CUDA_ERROR_INVALID_IMAGE;
	assert_int_equal(gpu_capabilities(gpu), GPU_CAP_TIMELINE);
	assert_non_null(strstr(gpu_error_text(), "cuModuleLoadData"));
	driver.load = CUDA_ERROR_OUT_OF_MEMORY;
	assert_int_equal(gpu_capabilities(gpu), device.capabilities);
	driver.load = CUDA_SUCCESS;
	driver.loads = 0;
	assert_int_equal(gpu_capabilities(gpu), device.capabilities);
	assert_int_equal(copy_something(gpu), 0);
	assert_int_equal(driver.loads, KERNEL_IMAGES);
}

/*
 * Return true if `name` is in the fat binary. Its header (fatbinary_section.h) begins with a magic number and contains
 * the sizes.
 */
static bool found(const void *image, const char *name)
{
	uint32_t magic;
	uint16_t header_bytes;
	uint64_t bytes;

	memcpy(&magic, image, sizeof(magic));
	memcpy(&header_bytes, (const char *)image + 6, sizeof(header_bytes));
	memcpy(&bytes, (const char *)image + 8, sizeof(bytes));
	assert_true(magic == 0xba55ed50);
	return memmem(image, header_bytes + bytes, name, strlen(name) + 1);
}

static void test_images_have_the_kernels(void **state)
{
	(void)state;
	for (int i = 0; i < GPU_KERNEL_KINDS; i++) {
		assert_true(found(gpu_kernel_images[gpu_kernels[i].image], gpu_kernels[i].name));
		assert_false(found(gpu_kernel_images[gpu_kernels[i].image], "no_such_kernel"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_loads_and_looks_up_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_failures_are_tried_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_expand_starts_early, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kernels_that_cannot_be_loaded_are_no_capability, setup, teardown),
		cmocka_unit_test(test_images_have_the_kernels),
	};

	if (!cuda_kernels_built()) {
		printf("this gpool was built without nvcc\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void)
{
	printf("this gpool was built without the headers of CUDA\n");
	return 77;
}
#endif
