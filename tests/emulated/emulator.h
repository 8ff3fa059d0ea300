/*
 * emulator.h - runs the CUDA code of cuda/kernels/ on the CPU, so that it is tested where there is no GPU.
 *
 * The .cu files are compiled as C++ with tests/emulated/cuda.h. Each thread of a block is a fiber; blocks run one after
 * the other, in an order that emulator_seed() shuffles. Found are: wrong results, memory out of bounds (under ASan,
 * with allocations of the exact size), vectors that are not aligned, shared memory that was not written or is too
 * small, and threads that do not come together where all must. Not found are races, and whatever the hardware does
 * otherwise than the manual says.
 */
#ifndef TESTS_EMULATED_EMULATOR_H
#define TESTS_EMULATED_EMULATOR_H

#include "cuda/gpu.h"

/* emulator_ops() - the host back end, but for launches, which wait for the stream and then run the CUDA code. */
const struct gpu_ops *emulator_ops(void);
/* emulator_seed() - the order of blocks from now on; 0: by number. */
void emulator_seed(uint64_t seed);

#endif
