/*
 * kernel.h - the table of kernels, for gpu_launch() and the back ends. A caller of one kernel includes the kernel's own
 * header.
 */
#ifndef CUDA_KERNELS_KERNEL_H
#define CUDA_KERNELS_KERNEL_H

#include "cuda/gpu.h"

enum kernel_image {
#define IMAGE(file) KERNEL_IMAGE_##file,
#include "cuda/kernels/kernels.def"
	KERNEL_IMAGES
};

struct kernel {
	const char *name; /* of its entry in the image */
	enum kernel_image image;
	size_t args_bytes;
	/* the same work in C, on the thread of a stream; addresses are the process's own */
	void (*host)(const void *args);
};

extern const struct kernel gpu_kernels[GPU_KERNEL_KINDS];

/* What the driver loads, by enum kernel_image; NULL where nvcc was not there at build time. */
extern __attribute__((visibility("hidden"))) const void *const gpu_kernel_images[KERNEL_IMAGES];

#endif
