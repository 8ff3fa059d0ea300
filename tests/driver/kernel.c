/*
 * kernel.c - modules and launches: "Module Management" and "Execution Control". A kernel is found by its name and run
 * by tests/emulated, on device addresses, which the CPU may access only while the kernel runs.
 */
#undef _FORTIFY_SOURCE /* its longjmp() does not accept the emulation's stacks */
#include "tests/driver/driver.h"

#include "cuda/kernels/attention.h"
#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"
#include "tests/emulated/emulator.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	size_t args_bytes;
} kernels[GPU_KERNEL_KINDS] = {
#define KERNEL(id, name, file, args) [GPU_KERNEL_##id] = {#name, sizeof(struct args)},
#include "cuda/kernels/kernels.def"
};

struct module {
	struct module *next;
	bool loaded;
};

static struct module *modules; /* never freed, so that a stale handle is recognized */

static pthread_mutex_t emulator = PTHREAD_MUTEX_INITIALIZER; /* it runs one kernel at a time */
static struct sigaction before[2];
static _Thread_local volatile sig_atomic_t in_kernel;
static _Thread_local sigjmp_buf out;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	const struct sigaction *old = &before[signal == SIGBUS];

	if (in_kernel)
		siglongjmp(out, 1);
	if (old->sa_flags & SA_SIGINFO) {
		old->sa_sigaction(signal, info, context);
		return;
	}
	sigaction(signal, old, NULL); /* the instruction is executed again, and fails as without this handler */
}

static void handlers_install(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};

	sigaction(SIGSEGV, &action, &before[0]);
	sigaction(SIGBUS, &action, &before[1]);
}

/* Return the size of the arguments that a kernel reads: the items after the last one of a list are not initialized. */
static uint64_t arguments_bytes(const struct operation *operation)
{
	const struct block_copy_args *list = (const void *)operation->staged;

	if (operation->kernel != GPU_KERNEL_BLOCK_COPY || list->count > BLOCK_COPY_ITEMS_MAX)
		return operation->bytes;
	return offsetof(struct block_copy_args, items) + list->count * sizeof(*list->items);
}

/*
 * Convert each argument that may be an address, if it refers to registered host memory; return false if the device
 * cannot access it there. Addresses that a kernel reads from memory are not seen.
 */
static bool arguments_convert(const struct operation *operation)
{
	uint64_t *values = (void *)operation->staged;

	for (uint64_t i = 0; i < arguments_bytes(operation) / sizeof(*values); i++)
		if (!memory_for_kernel(&values[i]))
			return false;
	return true;
}

/* "Data types used by CUDA driver", CUDA_ERROR_ILLEGAL_ADDRESS: for accesses without the right to access. */
void kernel_run(int device, const struct operation *operation)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct gpu_shape shape = {
		.block = operation->block, .shared_bytes = operation->shared_bytes, .early = operation->early};
	volatile bool fine = true;

	if (!arguments_convert(operation)) {
		driver_fault(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel %s: an argument is an address of the host",
			kernels[operation->kernel].name);
		return;
	}
	memcpy(shape.grid, operation->grid, sizeof(operation->grid));
	pthread_once(&once, handlers_install);
	pthread_mutex_unlock(&driver.lock);
	pthread_mutex_lock(&emulator);
	pthread_mutex_lock(&driver.lock);
	memory_open(device);
	pthread_mutex_unlock(&driver.lock);
	if (sigsetjmp(out, 1) == 0) {
		in_kernel = 1;
		emulator_run((enum gpu_kernel)operation->kernel, &shape, operation->staged);
	} else {
		fine = false;
	}
	in_kernel = 0;
	pthread_mutex_lock(&driver.lock);
	memory_close();
	pthread_mutex_unlock(&emulator);
	if (!fine)
		driver_fault(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel %s", kernels[operation->kernel].name);
}

/* "Module Management", cuModuleLoadData: an image; here, a fat binary, which begins with its magic number. */
CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_UNSAFE);
	struct module *made;
	uint32_t magic;

	if (result != CUDA_SUCCESS)
		return result;
	if (!module || !image)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&magic, image, sizeof(magic));
	if (magic != 0xba55ed50)
		return call_leave(CUDA_ERROR_INVALID_IMAGE);
	made = calloc(1, sizeof(*made));
	if (!made)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	made->loaded = true;
	made->next = modules;
	modules = made;
	*module = (CUmodule)(void *)made;
	return call_leave(CUDA_SUCCESS);
}

/* module_of() - check a handle. "Module Management", cuModuleUnload: its later use is undefined. */
static struct module *module_of(CUmodule handle)
{
	for (struct module *module = modules; module; module = module->next)
		if ((CUmodule)(void *)module == handle && module->loaded)
			return module;
	driver_undefined("a module that is not loaded is used");
}

/* "Module Management", cuModuleUnload. */
CUresult cuModuleUnload(CUmodule handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	if (result != CUDA_SUCCESS)
		return result;
	module_of(handle)->loaded = false;
	return call_leave(CUDA_SUCCESS);
}

/* function_find() - return the number of a kernel, or GPU_KERNEL_KINDS if the handle is invalid. */
static uint64_t function_find(CUfunction function)
{
	uint64_t kernel = ((uintptr_t)function - (uintptr_t)kernels) / sizeof(*kernels);

	return (uintptr_t)function < (uintptr_t)kernels || kernel > GPU_KERNEL_KINDS ? GPU_KERNEL_KINDS : kernel;
}

/* "Module Management", cuModuleGetFunction: CUDA_ERROR_NOT_FOUND if the module has no such function. */
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!function || !name)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	module_of(module);
	for (int i = 0; i < GPU_KERNEL_KINDS; i++)
		if (strcmp(kernels[i].name, name) == 0) {
			*function = (CUfunction)(uintptr_t)&kernels[i];
			return call_leave(CUDA_SUCCESS);
		}
	return call_leave(CUDA_ERROR_NOT_FOUND);
}

/*
 * "Execution Control", cuFuncGetAttribute: the version of PTX for which the function was compiled; other attributes are
 * 0. An attribute outside of the enumeration is CUDA_ERROR_INVALID_VALUE.
 */
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || (int)attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (function_find(function) == GPU_KERNEL_KINDS)
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	*value = attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION ? settings.early ? 90 : 80 : 0;
	return call_leave(CUDA_SUCCESS);
}

/*
 * "Execution Control", cuLaunchKernel: arguments are copied; `extra` instead of them is not modeled, and refused. The
 * errors for dimensions that the device does not support (at least one thread and at most 1024 in a block), and for
 * more than 48 KiB of dynamic shared memory without the attribute of the function that allows it, are choices.
 */
static CUresult launch_issue(
	const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, bool early)
{
	struct operation operation = {.kind = OP_LAUNCH,
		.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
		.block = config->blockDimX,
		.early = early};
	uint64_t kernel = function_find(function);
	struct stream *stream;
	CUresult result = stream_of(config->hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (kernel == GPU_KERNEL_KINDS || stream->context != context_current())
		return CUDA_ERROR_INVALID_HANDLE;
	if (!config->gridDimX || !config->gridDimY || !config->gridDimZ || !config->blockDimX ||
		config->blockDimY != 1 || config->blockDimZ != 1 || config->blockDimX > 1024 ||
		config->gridDimY > 65535 || config->gridDimZ > 65535 || config->sharedMemBytes > 48 << 10 ||
		!parameters || extra)
		return CUDA_ERROR_INVALID_VALUE;
	operation.kernel = (int)kernel;
	operation.shared_bytes = config->sharedMemBytes;
	operation.bytes = kernels[kernel].args_bytes;
	operation.staged = malloc(operation.bytes);
	if (!operation.staged)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(operation.staged, parameters[0], operation.bytes);
	result = stream_issue(stream, &operation);
	if (result != CUDA_SUCCESS)
		free(operation.staged);
	return result;
}

/* "Execution Control", cuLaunchKernel: see launch_issue(). */
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
	unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void **parameters, void **extra)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	const CUlaunchConfig config = {
		.gridDimX = grid_x,
		.gridDimY = grid_y,
		.gridDimZ = grid_z,
		.blockDimX = block_x,
		.blockDimY = block_y,
		.blockDimZ = block_z,
		.sharedMemBytes = shared_bytes,
		.hStream = handle,
	};

	return result == CUDA_SUCCESS ? call_leave(launch_issue(&config, function, parameters, extra, false)) : result;
}

/*
 * "Execution Control", cuLaunchKernelEx: like cuLaunchKernel, with attributes, of which only
 * CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is modeled; others are refused. It permits the driver to start
 * the kernel before the end of the one before it, which the double never does. The emulation checks that each thread
 * of the kernel waits. "Graph Management", cuGraphAddKernelNode: the kernel can be captured, too; its edge is then
 * programmatic.
 */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	bool early = false;

	if (result != CUDA_SUCCESS)
		return result;
	if (!config || (config->numAttrs && !config->attrs))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	for (unsigned i = 0; i < config->numAttrs; i++) {
		if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			return call_leave(CUDA_ERROR_INVALID_VALUE);
		early = config->attrs[i].value.programmaticStreamSerializationAllowed;
	}
	return call_leave(launch_issue(config, function, parameters, extra, early));
}

void kernels_forget(void)
{
	pthread_mutex_init(&emulator, NULL);
}
