/*
 * offload_int8.h - contents of preempted sequences as int8, and what that loses. Internal to libgpool; the callers hold
 * the cache's lock.
 *
 * A part of memory holds sums of errors, scales, and codes:
 *
 *   struct quantise_error | bf16 [vectors] | int8 [vectors][head_size]
 *
 * where a vector is head_size elements that follow each other in a block. The errors of all parts are summed up in the
 * first one.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_INT8_H
#define GPOOL_CLIENT_KV_OFFLOAD_INT8_H

#include "client/kv/extent.h"

/*
 * int8_open() - there is a place for each sequence's loss: 0, -ENOMEM, -EIO; -EOPNOTSUPP: there is no such form of the
 * elements.
 */
int int8_open(struct gpool_kv *kv);
void int8_close(struct gpool_kv *kv);

/* int8_room() - how many bytes of content have room in a part of so many. */
uint64_t int8_room(const struct gpool_kv *kv, uint64_t bytes);

/*
 * int8_copy() - queue the conversion of whole vectors at `block`, in the cache's memory, the first of which is the
 * index-th of the part: out, adding to the sums at `sums`, or back in. 0, or as gpu_launch().
 */
int int8_copy(struct gpool_kv *kv, const struct kv_extent *part, uint64_t index, uint64_t block, uint64_t bytes,
	uint64_t sums, bool out);

/*
 * int8_sums_begin() - they are zero from here on in the stream. int8_sums_end() - from here on they are the sequence's
 * loss. 0, -EIO, -EINVAL.
 */
int int8_sums_begin(struct gpool_kv *kv, uint64_t sums);
int int8_sums_end(struct gpool_kv *kv, const struct kv_sequence *sequence, uint64_t sums);

/*
 * int8_lost() - waits for the loss, and says whether some of the content was infinite or no number: then it has no int8
 * form.
 */
bool int8_lost(struct gpool_kv *kv, const struct kv_sequence *sequence);

#endif
