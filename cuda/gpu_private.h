/*
 * gpu_private.h - the part of a device that is the same for all back ends, shared by gpu.c and them. Only cuda/gpu*.c
 * includes this.
 */
#ifndef GPOOL_CUDA_GPU_PRIVATE_H
#define GPOOL_CUDA_GPU_PRIVATE_H

#include "cuda/gpu.h"

#include <stdatomic.h>

/*
 * Every back end's device begins with this. gpu_open() fills it after the back end's open, so a back end may read it in
 * every call but open and close.
 *
 * A fault needs no other state: fault_at is the number of the call that fails, and calls[] has each number once.
 */
struct gpu {
	const struct gpu_ops *ops;
	uint32_t flags; /* GPU_OPEN_* */
	int index;
	_Atomic uint64_t calls[GPU_CALL_KINDS];
	_Atomic uint64_t fault_at[GPU_CALL_KINDS]; /* 0: none */
	_Atomic int fault_error[GPU_CALL_KINDS];
};

/* gpu_fail() - store a description as this thread's error text. Return: `error`, so that a refusal is one line. */
__attribute__((format(printf, 2, 3))) int gpu_fail(int error, const char *format, ...);

#endif
