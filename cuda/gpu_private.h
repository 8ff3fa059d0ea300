/* gpu_private.h - the part of a device that all back ends share. Include it only in cuda/gpu*.c. */
#ifndef GPOOL_CUDA_GPU_PRIVATE_H
#define GPOOL_CUDA_GPU_PRIVATE_H

#include "cuda/gpu.h"

#include <stdatomic.h>

/*
 * The first member of every back end's device. gpu_open() sets it after the back end's function for opening, so a back
 * end may read it in all functions except those for opening and closing.
 *
 * fault_at[] is the number of the call that fails; calls[] has each number only once.
 */
struct gpu {
	const struct gpu_ops *ops;
	uint32_t flags; /* GPU_OPEN_* */
	int index;
	_Atomic uint64_t calls[GPU_CALL_KINDS];
	_Atomic uint64_t fault_at[GPU_CALL_KINDS]; /* 0: none */
	_Atomic int fault_error[GPU_CALL_KINDS];
	_Atomic int failed; /* error of a device failure that `host` emulates; most calls return it. 0: none */
};

/* gpu_fail() - store this thread's error text. Return: `error`. */
__attribute__((format(printf, 2, 3))) int gpu_fail(int error, const char *format, ...);

#endif
