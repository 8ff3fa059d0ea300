#include "client/kv/offload_int8.h"

#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "cuda/kernels/quantise.h"
#include "shm/plural.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUMS_BYTES = 32, CODES_ALIGN = 16 };
static_assert(sizeof(struct quantise_error) <= SUMS_BYTES, "they begin a part");

/* ---- int8 layout ---- */

static uint32_t vector_bytes(const struct gpool_kv *kv)
{
	return kv->shape.head_size * kv->shape.dtype_bytes;
}

static uint32_t element_of(const struct gpool_kv *kv)
{
	return kv->shape.dtype_bytes == 4 ? ELEMENT_F32 : kv->bf16 ? ELEMENT_BF16 : ELEMENT_F16;
}

static uint64_t vectors_in(const struct gpool_kv *kv, uint64_t bytes)
{
	uint64_t fixed = SUMS_BYTES + CODES_ALIGN;

	return bytes > fixed ? (bytes - fixed) / (sizeof(uint16_t) + kv->shape.head_size) : 0;
}

static int codes_make(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	return quantise_queue(gpu, args, stream);
}

static int codes_expand(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	return dequantise_queue(gpu, args, stream);
}

uint64_t int8_room(const struct gpool_kv *kv, uint64_t bytes)
{
	return vectors_in(kv, bytes) * vector_bytes(kv);
}

int int8_copy(struct gpool_kv *kv, const struct kv_extent *part, uint64_t index, uint64_t block, uint64_t bytes,
	uint64_t sums, bool out)
{
	uint64_t scales = part->address + SUMS_BYTES, scales_bytes = vectors_in(kv, part->bytes) * sizeof(uint16_t);
	uint64_t codes = scales + (scales_bytes + CODES_ALIGN - 1) / CODES_ALIGN * CODES_ALIGN;
	const struct quantise_args args = {
		.values = block,
		.codes = codes + index * kv->shape.head_size,
		.scales = scales + index * sizeof(uint16_t),
		.error = out ? sums : 0,
		.rows = bytes / vector_bytes(kv),
		.columns = kv->shape.head_size,
		.element = element_of(kv),
	};

	return stream_launch(kv->pool, kv->stream, out ? codes_make : codes_expand, &args);
}

/* ---- conversion errors ---- */

/* Return the size of kv->losses: one error for each row, and one that stays zero, from which sums are cleared. */
static size_t losses_bytes(const struct gpool_kv *kv)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (kv->max_sequences + 1) * sizeof(*kv->losses);

	return (bytes + page - 1) / page * page;
}

int int8_open(struct gpool_kv *kv)
{
	void *memory;
	int error;

	if (kv->shape.dtype_bytes > 4 || !int8_room(kv, kv->block_bytes) || !int8_room(kv, kv->pool->page_bytes))
		return fail(-EOPNOTSUPP,
			"GPOOL_KV_OFFLOAD_INT8 does not support elements of %u byte%s in blocks of %llu byte%s",
			kv->shape.dtype_bytes, plural(kv->shape.dtype_bytes), (unsigned long long)kv->block_bytes,
			plural(kv->block_bytes));
	if (kv->losses)
		return 0;
	memory = mmap(NULL, losses_bytes(kv), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	madvise(memory, losses_bytes(kv), MADV_DONTFORK);
	error = gpu_host_register(kv->pool->gpu, memory, losses_bytes(kv));
	if (error) {
		munmap(memory, losses_bytes(kv));
		return error == -ENOMEM ? error : -EIO;
	}
	kv->losses = memory;
	return 0;
}

void int8_close(struct gpool_kv *kv)
{
	if (!kv->losses)
		return;
	gpu_host_unregister(kv->pool->gpu, kv->losses);
	munmap(kv->losses, losses_bytes(kv));
	kv->losses = NULL;
}

static uint64_t loss_address(const struct gpool_kv *kv, uint32_t row)
{
	return (uint64_t)(uintptr_t)&kv->losses[row];
}

int int8_sums_begin(struct gpool_kv *kv, uint64_t sums)
{
	return gpool_copy(kv->pool, kv->stream, sums, loss_address(kv, kv->max_sequences), sizeof(*kv->losses));
}

int int8_sums_end(struct gpool_kv *kv, const struct kv_sequence *sequence, uint64_t sums)
{
	return gpool_copy(kv->pool, kv->stream, loss_address(kv, kv_row(kv, sequence)), sums, sizeof(*kv->losses));
}

int int8_wait(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	int error = gpool_fence_wait(kv->pool, sequence->loss_known, -1);

	if (error)
		return error;
	return isinf(kv->losses[kv_row(kv, sequence)].max_error) ? -ENODATA : 0;
}
