/*
 * gpu_private.h - what gpu.c shares with the back ends: the part of a device that is the same for all of them.
 *
 * Only cuda/gpu*.c includes this.
 */
#ifndef GPOOL_CUDA_GPU_PRIVATE_H
#define GPOOL_CUDA_GPU_PRIVATE_H

#include "cuda/gpu.h"

#include <stdatomic.h>

/*
 * Every back end's device begins with this. gpu_open() fills it after the back end's open, so a back end may read it in
 * every call but open and close.
 *
 * A fault needs no state of its own: fault_at is the number of the call that is to fail, and calls[] passes each number
 * once.
 */
struct gpu {
	const struct gpu_ops *ops;
	uint32_t flags; /* GPU_OPEN_* */
	int index;
	_Atomic uint64_t calls[GPU_CALL_KINDS];
	_Atomic uint64_t fault_at[GPU_CALL_KINDS]; /* 0: none */
	_Atomic int fault_error[GPU_CALL_KINDS];
};

/* gpu_fail() - note what went wrong as this thread's error text. Returns `error`, so that a refusal is one line. */
__attribute__((format(printf, 2, 3))) int gpu_fail(int error, const char *format, ...);

#endif
