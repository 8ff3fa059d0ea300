#include "client/kv/copies.h"

#include "client/core/stream.h"

void copies_begin(struct copies *copies, struct gpool_kv *kv)
{
	copies->kv = kv;
	copies->list.count = copies->list.reserved = 0;
	copies->list.bytes_max = 0;
}

static int copies_start(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	return block_copy_queue(gpu, args, stream);
}

int copies_end(struct copies *copies)
{
	struct gpool_kv *kv = copies->kv;
	struct block_copy_args *list = &copies->list;
	uint32_t count = list->count;
	int error = 0;

	if (count > 1 && kv->pool->capabilities & GPU_CAP_KERNELS)
		error = stream_launch(kv->pool, kv->stream, copies_start, list);
	if (count == 1 || !(kv->pool->capabilities & GPU_CAP_KERNELS) || error == -EOPNOTSUPP) {
		error = 0;
		for (uint32_t i = 0; i < count && !error; i++)
			error = gpool_copy(
				kv->pool, kv->stream, list->items[i].to, list->items[i].from, list->items[i].bytes);
	}
	list->count = 0;
	list->bytes_max = 0;
	return error;
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

/* Return true if a copy must be executed after one of the list. The copies of a launch have no order. */
static bool depends(const struct copies *copies, const struct block_copy_item *next)
{
	for (uint32_t i = 0; i < copies->list.count; i++) {
		const struct block_copy_item *item = &copies->list.items[i];

		if (overlap(item->to, item->bytes, next->from, next->bytes) ||
			overlap(item->to, item->bytes, next->to, next->bytes) ||
			overlap(item->from, item->bytes, next->to, next->bytes))
			return true;
	}
	return false;
}

int copies_add(struct copies *copies, uint32_t to, uint32_t from)
{
	struct gpool_kv *kv = copies->kv;
	struct block_copy_args *list = &copies->list;
	const struct block_copy_item next = {memory_address(kv, to), memory_address(kv, from), kv->block_bytes};
	struct block_copy_item *last;
	int error = depends(copies, &next) ? copies_end(copies) : 0;

	if (error)
		return error;
	last = list->count ? &list->items[list->count - 1] : NULL;
	if (last && last->to + last->bytes == next.to && last->from + last->bytes == next.from) {
		last->bytes += next.bytes;
	} else {
		if (list->count == BLOCK_COPY_ITEMS_MAX)
			error = copies_end(copies);
		if (error)
			return error;
		last = &list->items[list->count++];
		*last = next;
	}
	if (last->bytes > list->bytes_max)
		list->bytes_max = last->bytes;
	return 0;
}
