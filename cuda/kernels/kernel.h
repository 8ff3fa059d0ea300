/*
 * kernel.h - the table of kernels, for gpu_launch() and the back ends. Callers of a kernel include the kernel's own
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
	const char *name; /* of the kernel in the image */
	enum kernel_image image;
	size_t args_bytes;
	/* the C reference, run by the stream's thread on addresses of the process */
	void (*host)(const void *args);
};

extern const struct kernel gpu_kernels[GPU_KERNEL_KINDS];

/* Images for the driver, by enum kernel_image; NULL if gpool was built without nvcc. */
extern __attribute__((visibility("hidden"))) const void *const gpu_kernel_images[KERNEL_IMAGES];

#endif
