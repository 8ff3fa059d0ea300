/*
 * extent.h - parts of a sequence's content, and memory of a place that they are copied to. Internal to libgpool; the
 * callers hold the cache's lock.
 */
#ifndef GPOOL_CLIENT_KV_EXTENT_H
#define GPOOL_CLIENT_KV_EXTENT_H

#include "client/kv/kv.h"

struct kv_piece;

/* What is kept of a sequence. */
struct kv_saved {
	uint32_t flags;          /* GPOOL_KV_OFFLOAD_* */
	uint32_t count;          /* of its slots, or of its pieces */
	uint64_t bytes;          /* of its content */
	uint64_t sums;           /* GPOOL_KV_OFFLOAD_INT8, while it is saved: address of the errors' sums */
	uint32_t *slots;         /* [count] of host memory, or NULL */
	struct kv_piece *pieces; /* [count] of the pool, or NULL */
};

/* Memory of a part. */
struct kv_extent {
	uint64_t address, bytes;
};

/* extent_room() - how many bytes of content there is room for. */
uint64_t extent_room(const struct gpool_kv *kv, uint32_t flags, uint64_t bytes);

/*
 * extent_copy() - queue the copies of the sequence's content from `offset` on, as much as there is room for, out of its
 * blocks or back into them; returns where the next part begins, or -EIO, -EINVAL (the stream is closed), or as
 * gpu_launch().
 */
int64_t extent_copy(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved, uint64_t offset,
	const struct kv_extent *extent, bool out);

/*
 * offload_behind() - a fence behind all copies that are queued. Where there is none to be had, all work is waited for.
 */
struct gpool_fence offload_behind(struct gpool_kv *kv);

#endif
