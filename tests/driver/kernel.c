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
	struct gpu_shape shape = {.block = operation->block, .shared_bytes = operation->shared_bytes};
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
 * "Execution Control", cuLaunchKernel: arguments are copied; `extra` instead of them is not modeled, and refused. The
 * errors for dimensions that the device does not support (at least one thread and at most 1024 in a block), and for
 * more than 48 KiB of dynamic shared memory without the attribute of the function that allows it, are choices.
 */
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
	unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void **parameters, void **extra)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct operation operation = {.kind = OP_LAUNCH, .grid = {grid_x, grid_y, grid_z}, .block = block_x};
	uint64_t kernel = ((uintptr_t)function - (uintptr_t)kernels) / sizeof(*kernels);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_of(handle, &stream);
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	if ((uintptr_t)function < (uintptr_t)kernels || kernel >= GPU_KERNEL_KINDS ||
		stream->context != context_current())
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!grid_x || !grid_y || !grid_z || !block_x || block_y != 1 || block_z != 1 || block_x > 1024 ||
		grid_y > 65535 || grid_z > 65535 || shared_bytes > 48 << 10 || !parameters || extra)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	operation.kernel = (int)kernel;
	operation.shared_bytes = shared_bytes;
	operation.bytes = kernels[kernel].args_bytes;
	operation.staged = malloc(operation.bytes);
	if (!operation.staged)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(operation.staged, parameters[0], operation.bytes);
	result = stream_issue(stream, &operation);
	if (result != CUDA_SUCCESS)
		free(operation.staged);
	return call_leave(result);
}

void kernels_forget(void)
{
	pthread_mutex_init(&emulator, NULL);
}
