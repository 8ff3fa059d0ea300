/*
 * flashinfer_pages.cpp - FlashInfer's paged cache and its kernels that append to it, compiled for the CPU: each thread
 * of a kernel is a call. These kernels use no shared memory and no barrier. For test_flashinfer.py.
 */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

/* What nvcc declares for kernels. Kernels that use the functions without a body are not instantiated. */
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
using std::isfinite;
using std::max;
using std::min;
unsigned int __byte_perm(unsigned int, unsigned int, unsigned int);
float __frcp_rn(float);
template <typename T> static T __ldg(const T *address)
{
	return *address;
}

#include <flashinfer/page.cuh>

using flashinfer::paged_kv_t;

struct pages {
	uint32_t heads, page_tokens, size, batch;
	uint32_t heads_first; /* 0: NHD, 1: HND */
	uint32_t element;     /* 0: fp16, 1: bf16, 2: fp8 */
	void *keys, *values;
	/* of a page and of the dimensions that heads_first orders, in elements; 0: as FlashInfer computes them */
	int64_t strides[3];
	int32_t *indices, *indptr, *last_tokens;
};

template <typename T> static paged_kv_t<T, int32_t> cache_of(const pages *p)
{
	auto layout = p->heads_first ? flashinfer::QKVLayout::kHND : flashinfer::QKVLayout::kNHD;

	if (!p->strides[0])
		return paged_kv_t<T, int32_t>(p->heads, p->page_tokens, p->size, p->batch, layout, (T *)p->keys,
			(T *)p->values, p->indices, p->indptr, p->last_tokens);
	return paged_kv_t<T, int32_t>(p->heads, p->page_tokens, p->size, p->batch, layout, (T *)p->keys, (T *)p->values,
		p->strides, p->indices, p->indptr, p->last_tokens);
}

/* Call a function with a value of the element's type. */
template <typename F> static auto with_element(const pages *p, F f)
{
	return p->element == 0 ? f(__half()) : p->element == 1 ? f(__nv_bfloat16()) : f(__nv_fp8_e4m3());
}

/* Call each thread of a grid. */
template <typename F> static void launch(uint32_t blocks, uint32_t x, uint32_t y, F kernel)
{
	gridDim = dim3(blocks);
	blockDim = dim3(x, y);
	for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
		for (threadIdx.y = 0; threadIdx.y < y; threadIdx.y++)
			for (threadIdx.x = 0; threadIdx.x < x; threadIdx.x++)
				kernel();
}

template <uint32_t SIZE, typename T>
static void append(const pages *p, T *keys, T *values, int32_t *sequences, int32_t *positions, uint32_t tokens)
{
	constexpr uint32_t vector = std::max<uint32_t>(16 / sizeof(T), SIZE / 32);
	size_t token_stride = (size_t)p->heads * SIZE;
	paged_kv_t<T, int32_t> cache = cache_of<T>(p);

	if (sequences)
		launch(tokens, SIZE / vector, p->heads, [&] {
			flashinfer::AppendPagedKVCacheKernel<SIZE, vector, T, int32_t>(cache, keys, values, sequences,
				positions, tokens, token_stride, SIZE, token_stride, SIZE);
		});
	else
		launch(p->batch, SIZE / vector, p->heads, [&] {
			flashinfer::AppendPagedKVCacheDecodeKernel<SIZE, vector, T, int32_t>(cache, keys, values);
		});
}

extern "C" {

/* Elements from `keys` or `values` to an element. */
size_t pages_offset(const pages *p, bool value, uint32_t page, uint32_t head, uint32_t token, uint32_t element)
{
	return with_element(p, [=](auto type) {
		auto cache = cache_of<decltype(type)>(p);

		return value ? cache.get_v_elem_offset(page, head, token, element)
			     : cache.get_elem_offset(page, head, token, element);
	});
}

/* The same with the number of a page in `indices`; 0 for a number that is not below `end`. */
size_t pages_protected_offset(
	const pages *p, bool value, uint32_t number, uint32_t head, uint32_t token, uint32_t element, uint32_t end)
{
	return with_element(p, [=](auto type) {
		auto cache = cache_of<decltype(type)>(p);

		return value ? cache.protective_get_v_offset(number, head, token, element, end)
			     : cache.protective_get_k_offset(number, head, token, element, end);
	});
}

uint32_t pages_length(const pages *p, uint32_t sequence)
{
	return with_element(p, [=](auto type) { return cache_of<decltype(type)>(p).get_length(sequence); });
}

/*
 * Append tokens at positions of sequences, or the last token of each sequence if `sequences` is NULL. Return false for
 * a size of heads without a kernel.
 */
bool pages_append(const pages *p, void *keys, void *values, int32_t *sequences, int32_t *positions, uint32_t tokens)
{
	return with_element(p, [=](auto type) {
		using T = decltype(type);

		if (p->size == 64)
			append<64>(p, (T *)keys, (T *)values, sequences, positions, tokens);
		else if (p->size == 128)
			append<128>(p, (T *)keys, (T *)values, sequences, positions, tokens);
		else if (p->size == 256)
			append<256>(p, (T *)keys, (T *)values, sequences, positions, tokens);
		else
			return false;
		return true;
	});
}
}
