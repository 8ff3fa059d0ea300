/*
 * extent.h - parts of a sequence's content, and the memory to which they are copied. Internal to libgpool. The callers
 * hold the cache's lock.
 */
#ifndef GPOOL_CLIENT_KV_EXTENT_H
#define GPOOL_CLIENT_KV_EXTENT_H

#include "client/kv/kv.h"

struct kv_piece;

/* The saved content of a sequence. */
struct kv_saved {
	uint32_t flags;          /* GPOOL_KV_OFFLOAD_* */
	uint32_t count;          /* number of slots or pieces */
	uint64_t bytes;          /* size of the content */
	uint64_t sums;           /* GPOOL_KV_OFFLOAD_INT8, during the save: address of the error sums */
	uint32_t *slots;         /* [count] slots of host memory, or NULL */
	struct kv_piece *pieces; /* [count] blocks of the pool, or NULL */
	bool refused;            /* a restore got no pages: start no further one before those in progress have ended */
};

/* The memory in which a part is stored. */
struct kv_extent {
	uint64_t address, bytes;
};

/* extent_room() - return how many bytes of content fit into a part of `bytes` bytes. */
uint64_t extent_room(const struct gpool_kv *kv, uint32_t flags, uint64_t bytes);

/*
 * extent_copy() - queue copies between the sequence's blocks and the extent, for as much of the content from `offset`
 * on as fits into the extent. out: from the blocks to the extent; otherwise back. Return: the offset of the next part,
 * or -EIO, -EINVAL (the stream is closed), or as gpu_launch().
 */
int64_t extent_copy(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved, uint64_t offset,
	const struct kv_extent *extent, bool out);

/*
 * offload_behind() - return a fence recorded after all queued copies. If none can be recorded, wait for all queued work
 * instead. After a device failure, the fence is never signaled.
 */
struct gpool_fence offload_behind(struct gpool_kv *kv);

#endif
