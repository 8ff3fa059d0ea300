/*
 * offload_int8.h - convert the content of preempted sequences to int8, and measure the error. Internal to libgpool. The
 * callers hold the cache's lock.
 *
 * A part consists of the error sums, the scales and the codes:
 *
 *   struct quantise_error | bf16 [vectors] | int8 [vectors][head_size]
 *
 * A vector is head_size adjacent elements of a block. The errors of all parts are added up in the first part.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_INT8_H
#define GPOOL_CLIENT_KV_OFFLOAD_INT8_H

#include "client/kv/extent.h"

/*
 * int8_open() - allocate the memory for the errors of the sequences. Return: 0, -ENOMEM, -EIO; -EOPNOTSUPP: the
 * elements cannot be converted to int8.
 */
int int8_open(struct gpool_kv *kv);
void int8_close(struct gpool_kv *kv);

/* int8_room() - return how many bytes of content fit into a part of `bytes` bytes. */
uint64_t int8_room(const struct gpool_kv *kv, uint64_t bytes);

/*
 * int8_copy() - queue the conversion of whole vectors at `block`, in the cache's memory. The first of them is vector
 * `index` of the part. out: convert to int8 and add the errors to the sums at `sums`; otherwise convert back.
 * Return: 0, or as gpu_launch().
 */
int int8_copy(struct gpool_kv *kv, const struct kv_extent *part, uint64_t index, uint64_t block, uint64_t bytes,
	uint64_t sums, bool out);

/*
 * int8_sums_begin() - queue an operation that clears the sums.
 * int8_sums_end() - queue a copy of the sums to the sequence's error.
 * Return: 0, -EIO, -EINVAL.
 */
int int8_sums_begin(struct gpool_kv *kv, uint64_t sums);
int int8_sums_end(struct gpool_kv *kv, const struct kv_sequence *sequence, uint64_t sums);

/*
 * int8_wait() - wait for the error. Return: 0; -ENODATA: the content had an infinity or a NaN, which int8 cannot
 * represent; or as gpool_fence_wait().
 */
int int8_wait(struct gpool_kv *kv, const struct kv_sequence *sequence);

#endif
