/*
 * emulator.h - run the CUDA code of cuda/kernels/ on the CPU, so that it can be tested without a GPU.
 *
 * The .cu files are compiled as C++ with tests/emulated/cuda.h. Each thread of a block is a fiber; blocks run one after
 * another, in an order that emulator_seed() shuffles. The emulator detects wrong results, misaligned vectors, shared
 * memory that was not written or is too small, and threads that do not reach a common barrier. Under ASan, with
 * allocations of the exact size, it also detects accesses out of bounds. It does not detect hardware that differs from
 * the manual.
 *
 * Under ThreadSanitizer, three CPU threads run blocks at the same time. Only barriers, operations of warps and fences
 * order the accesses of fibers, so races within a block and between blocks are reported. Two blocks that the same CPU
 * thread runs are ordered.
 */
#ifndef TESTS_EMULATED_EMULATOR_H
#define TESTS_EMULATED_EMULATOR_H

#include "cuda/gpu.h"

/*
 * emulator_ops() - return the host back end with another launch function, which waits for the stream and then runs the
 * CUDA code.
 */
const struct gpu_ops *emulator_ops(void);
/* emulator_run() - run a kernel now. One at a time: its state is global. */
void emulator_run(enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args);
/* emulator_plant_missing_fences() - a planted bug for a test: from now on, fences do not order accesses. */
void emulator_plant_missing_fences(void);
/*
 * emulator_hide() - make memory inaccessible to each thread block of an early kernel (struct gpu_shape) until its first
 * thread waits for the kernel before it. Whole pages. No effect under ThreadSanitizer, where blocks run concurrently.
 * emulator_plant_missing_wait() - a planted bug: from now on, such a kernel does not wait.
 */
void emulator_hide(void *memory, uint64_t bytes);
void emulator_plant_missing_wait(void);
/* emulator_seed() - shuffle the order of blocks from now on; 0: by block number. */
void emulator_seed(uint64_t seed);

#endif
