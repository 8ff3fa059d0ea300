/*
 * cuda.h - the parts of CUDA that cuda/kernels/ uses, for a C++ compiler that generates CPU code. Included before the
 * .cu file.
 *
 * Each thread of a block is a fiber (emulator.h), so the cooperation of lanes and of threads in a block is emulated
 * faithfully. Under ThreadSanitizer, blocks run concurrently, and only barriers, warp operations and fences order
 * accesses.
 */
#ifndef TESTS_EMULATED_CUDA_H
#define TESTS_EMULATED_CUDA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __shared__ EMULATED_PER_THREAD
#define __noinline__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

/* Under ThreadSanitizer, several CPU threads run blocks at the same time. */
#ifdef __SANITIZE_THREAD__
#define EMULATED_PER_THREAD __thread
#else
#define EMULATED_PER_THREAD
#endif

struct emulated_index {
	uint32_t x, y, z;
};

struct alignas(16) uint4 {
	uint32_t x, y, z, w;
};

struct alignas(8) uint2 {
	uint32_t x, y;
};

struct alignas(8) float2 {
	float x, y;
};

extern "C" {
extern EMULATED_PER_THREAD struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
void emulated_sync_block(void);
void emulated_fence(void);
/*
 * Pass each lane's values to all lanes of the warp. which: name of the operation, to detect lanes with different
 * operations.
 */
const void *emulated_share(const char *which, const void *given, size_t bytes);
enum { EMULATED_SHARE_BYTES = 48 }; /* per lane, in the result of emulated_share() */
/* See cuda/kernels/async_copy.h. The copies are made by the wait, as late as on a GPU. */
void emulated_copy(void *to, const void *from, uint32_t bytes);
void emulated_copies_end(void);
void emulated_copies_wait(uint32_t left);
/* See cuda/kernels/overlap.h. */
void emulated_kernel_wait(void);
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return {x, y, z, w};
}

static inline void async_copy(uint4 *to, const void *from, uint32_t bytes)
{
	emulated_copy(to, from, bytes);
}

static inline void async_copies_end()
{
	emulated_copies_end();
}

template <int left> static inline void async_copies_wait()
{
	emulated_copies_wait(left);
}

static inline void kernel_release()
{
}

static inline void kernel_wait()
{
	emulated_kernel_wait();
}

/* Read each part, so that one that does not exist is detected. */
static inline void cache_ahead(uint64_t from, uint32_t bytes, uint32_t lane)
{
	if (from % 16 || bytes % 16)
		__builtin_trap();
	for (uint32_t at = lane * 16; at < bytes; at += 32 * 16)
		(void)*(const volatile uint8_t *)(uintptr_t)(from + at);
}

static inline float2 make_float2(float x, float y)
{
	return {x, y};
}

static inline uint32_t min(uint32_t one, uint32_t two)
{
	return one < two ? one : two;
}

static inline void __syncthreads()
{
	emulated_sync_block();
}

static inline void __threadfence()
{
	emulated_fence();
}

template <typename T> static inline T __shfl_xor_sync(uint32_t, T value, int mask)
{
	const char *all = (const char *)emulated_share("shuffle", &value, sizeof(value));
	T other;

	memcpy(&other, all + (threadIdx.x % 32 ^ mask) * EMULATED_SHARE_BYTES, sizeof(other));
	return other;
}

static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
	uint64_t bytes = (uint64_t)y << 32 | x;
	uint32_t result = 0;

	for (int i = 0; i < 4; i++)
		result |= (uint32_t)(bytes >> (selector >> i * 4 & 7) * 8 & 0xff) << i * 8;
	return result;
}

/* Trap if the vector is misaligned, which is a fault on a GPU. */
template <typename T> static inline T __ldg(const T *place)
{
	if ((uintptr_t)place % alignof(T))
		__builtin_trap();
	return *place;
}

template <typename T> static inline T __ldcg(const T *place)
{
	return __ldg(place);
}

/* emulated_change() - apply a function atomically, without an order for other accesses, as on a GPU. */
template <typename T, typename F> static inline T emulated_change(T *place, F change)
{
	T before, after;

	__atomic_load(place, &before, __ATOMIC_RELAXED);
	do
		after = change(before);
	while (!__atomic_compare_exchange(place, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return before;
}

template <typename T> static inline T atomicAdd(T *place, T value)
{
	return emulated_change(place, [=](T before) { return before + value; });
}

static inline uint32_t atomicAdd(uint32_t *place, int value)
{
	return atomicAdd(place, (uint32_t)value);
}

static inline uint32_t atomicExch(uint32_t *place, uint32_t value)
{
	return emulated_change(place, [=](uint32_t) { return value; });
}

static inline int atomicMax(int *place, int value)
{
	return emulated_change(place, [=](int before) { return value > before ? value : before; });
}

static inline int __float_as_int(float value)
{
	int bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

#include "cuda/kernels/element.h"

/* A lane's fragments as defined in the PTX ISA (see cuda/kernels/mma.h), as float32. */
struct emulated_fragments {
	float a[8], b[4];
};
static_assert(sizeof(struct emulated_fragments) == EMULATED_SHARE_BYTES, "the largest values that lanes share");

template <uint32_t element> static inline float emulated_half(uint32_t word, uint32_t k)
{
	uint16_t bits = (uint16_t)(word >> k % 2 * 16);

	return element == ELEMENT_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

struct emulated_sums {
	float d[4];
};

/*
 * Add the products of a lane. The loops are unrolled, so that all places are constants. ThreadSanitizer need not check
 * these reads: the fragments are in memory of the emulator, and emulated_share() has ordered them.
 */
static __attribute__((noinline, no_sanitize("thread"))) struct emulated_sums emulated_products(
	const struct emulated_fragments *all, uint32_t lane, struct emulated_sums sums)
{
	const struct emulated_fragments *rows = all + lane / 4 * 4, *columns = all + lane % 4 * 8;

#pragma GCC unroll 16
	for (uint32_t k = 0; k < 16; k++)
#pragma GCC unroll 4
		for (uint32_t i = 0; i < 4; i++)
			sums.d[i] += rows[k % 8 / 2].a[(i / 2 + k / 8 * 2) * 2 + k % 2] *
				columns[i % 2 * 4 + k % 8 / 2].b[k / 8 * 2 + k % 2];
	return sums;
}

template <uint32_t element> static inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	const uint32_t b[2] = {b0, b1};
	struct emulated_sums sums;
	struct emulated_fragments mine;
	const struct emulated_fragments *all;

	for (uint32_t i = 0; i < 8; i++)
		mine.a[i] = emulated_half<element>(a[i / 2], i);
	for (uint32_t i = 0; i < 4; i++)
		mine.b[i] = emulated_half<element>(b[i / 2], i);
	all = (const struct emulated_fragments *)emulated_share("mma", &mine, sizeof(mine));
	sums = emulated_products(all, threadIdx.x % 32, {{d[0], d[1], d[2], d[3]}});
	for (uint32_t i = 0; i < 4; i++)
		d[i] = sums.d[i];
}

#endif
