/* kernel.c - the table of kernels, from kernels.def. */
#include "cuda/kernels/kernel.h"

#include "cuda/kernels/attention.h"
#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"

/* Define one wrapper per kernel, so that the C reference has a parameter of its own struct type. */
#define KERNEL(id, name, file, args) \
	static void run_##name(const void *given) \
	{ \
		name##_host((const struct args *)given); \
	}
#include "cuda/kernels/kernels.def"

const struct kernel gpu_kernels[GPU_KERNEL_KINDS] = {
#define KERNEL(id, name, file, args) [GPU_KERNEL_##id] = {#name, KERNEL_IMAGE_##file, sizeof(struct args), run_##name},
#include "cuda/kernels/kernels.def"
};
