/*
 * roofline.cu - the kernels once for each class of ranks, tokens and elements, so that roofline.py can read the
 * instructions of one class. Each has the code that the real kernel has for the class, compiled in the same way.
 */
#include "cuda/kernels/async_copy.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/mma.h"
#include "cuda/kernels/quantise.h"

/* Each file has its own names. */
namespace lora
{
#include "cuda/kernels/lora.cu"
}
namespace int8
{
#include "cuda/kernels/quantise.cu"
}
#define ATTENTION_FORMS_ONLY /* the others would take most of the time of the compiler */
namespace attention_of
{
#include "cuda/kernels/attention.cu"
}
#include "cuda/kernels/block_copy.cu"

#define LORA(name, condition, call) \
	extern "C" __global__ void __launch_bounds__(lora::THREADS, 4) \
		name(const __grid_constant__ struct lora_args args) \
	{ \
		extern __shared__ uint4 block_memory[]; \
		struct lora::job job; \
\
		if (condition) \
			lora::call(args, job, block_memory); \
	}
#define SHRINK(tokens, ranks) \
	LORA(shrink_##tokens##_##ranks, lora::shrink_job_get(args, job), shrink<tokens / 8 LORA_COMMA ranks / 8>)
#define EXPAND(ranks) \
	LORA(expand_##ranks, lora::job_get(args, blockIdx.x, true, job), expand<ELEMENT_F16 LORA_COMMA ranks>)
#define LORA_COMMA ,

SHRINK(8, 8)
SHRINK(8, 16)
SHRINK(8, 32)
SHRINK(64, 8)
SHRINK(64, 16)
SHRINK(64, 32)
EXPAND(8)
EXPAND(16)
EXPAND(32)
EXPAND(64)
EXPAND(128)

extern "C" __global__ void __launch_bounds__(256, 2) quantise_f16(const struct quantise_args args)
{
	struct int8::errors errors = {args.error != 0, 0, 0, 0};

	int8::short_quantise<ELEMENT_F16, 8>(args, int8::groups_get(args), 16, errors);
	if (errors.wanted)
		*(struct int8::errors *)args.error = errors;
}

extern "C" __global__ void __launch_bounds__(256, 2) kv_write_f16(const struct kv_write_args args)
{
	struct int8::errors errors = {false, 0, 0, 0};

	int8::heads_write<ELEMENT_F16>(args, 16, errors);
}

extern "C" __global__ void __launch_bounds__(256) dequantise_f16(const struct quantise_args args)
{
	int8::vectors_dequantise<ELEMENT_F16>(args, int8::groups_get(args));
}

#define ATTENTION_FORM(name, kind, codes, size, is_decode, threads, blocks) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		name(const __grid_constant__ struct attention_args args) \
	{ \
		extern __shared__ uint4 block_memory[]; \
\
		attention_of::kind<attention_of::form<ELEMENT_F16, codes, size, is_decode>, ELEMENT_F16, codes>( \
			args, block_memory); \
	}

ATTENTION_FORM(decode_64_f16, decode, false, 64, true, 128, 3)
ATTENTION_FORM(decode_128_f16, decode, false, 128, true, 128, 3)
ATTENTION_FORM(decode_256_f16, decode, false, 256, true, 64, 4)
ATTENTION_FORM(decode_64_int8, decode, true, 64, true, 128, 3)
ATTENTION_FORM(decode_128_int8, decode, true, 128, true, 128, 3)
ATTENTION_FORM(decode_256_int8, decode, true, 256, true, 64, 4)
ATTENTION_FORM(prefill_64_f16, prefill, false, 64, false, 128, 3)
ATTENTION_FORM(prefill_128_f16, prefill, false, 128, false, 128, 2)
ATTENTION_FORM(prefill_256_f16, prefill, false, 256, false, 64, 4)
