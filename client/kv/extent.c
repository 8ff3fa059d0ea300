#include "client/kv/extent.h"

#include "client/core/stream.h"
#include "client/kv/offload_int8.h"

uint64_t extent_room(const struct gpool_kv *kv, uint32_t flags, uint64_t bytes)
{
	return flags & GPOOL_KV_OFFLOAD_INT8 ? int8_room(kv, bytes) : bytes;
}

/* Return how many bytes of the content, beginning at `offset`, are contiguous in memory; at most `most`. */
static uint64_t run_of(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint64_t offset, uint64_t most,
	uint64_t *address)
{
	uint32_t index = (uint32_t)(offset / kv->block_bytes);
	uint64_t begin = memory_address(kv, kv_entry(kv, sequence, index)), bytes = kv->block_bytes;
	uint64_t skipped = offset % kv->block_bytes;

	while (bytes - skipped < most && memory_address(kv, kv_entry(kv, sequence, ++index)) == begin + bytes)
		bytes += kv->block_bytes;
	*address = begin + skipped;
	return bytes - skipped < most ? bytes - skipped : most;
}

/* Copy between the address `block` and offset `done` of the part. out: to the part; otherwise from it. */
static int run_copy(struct gpool_kv *kv, const struct kv_saved *saved, const struct kv_extent *part, uint64_t done,
	uint64_t block, uint64_t bytes, bool out)
{
	uint64_t place = part->address + done;

	if (saved->flags & GPOOL_KV_OFFLOAD_INT8)
		return int8_copy(
			kv, part, done / kv->shape.dtype_bytes / kv->shape.head_size, block, bytes, saved->sums, out);
	return gpool_copy(kv->pool, kv->stream, out ? place : block, out ? block : place, bytes);
}

int64_t extent_copy(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved, uint64_t offset,
	const struct kv_extent *extent, bool out)
{
	uint64_t begin = offset, room = extent_room(kv, saved->flags, extent->bytes), bytes;
	uint64_t end = saved->bytes - offset < room ? saved->bytes : offset + room;
	bool lossy = out && saved->flags & GPOOL_KV_OFFLOAD_INT8;
	int error = 0;

	if (lossy && !offset) {
		saved->sums = extent->address;
		error = int8_sums_begin(kv, saved->sums);
	}
	for (; offset < end && !error; offset += bytes) {
		uint64_t block;

		bytes = run_of(kv, sequence, offset, end - offset, &block);
		error = run_copy(kv, saved, extent, offset - begin, block, bytes, out);
	}
	if (!error && lossy && offset == saved->bytes)
		error = int8_sums_end(kv, sequence, saved->sums);
	return error ? error : (int64_t)offset;
}

struct gpool_fence offload_behind(struct gpool_kv *kv)
{
	return release_fence_or_wait(kv->pool, kv->stream);
}
