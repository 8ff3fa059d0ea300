/*
 * resident.h - keys and values that are int8 while resident (GPOOL_KV_INT8). Internal to libgpool.
 *
 * Layers follow each other in a block. A layer has, for `block_tokens` tokens and `kv_heads` heads,
 *
 *   int8 keys [tokens][heads][head_size] | int8 values [tokens][heads][head_size] |
 *   bf16 scales of keys [tokens][heads] | bf16 scales of values [tokens][heads]
 *
 * The rest of the cache handles a block as bytes, so only its size and the identity of its content (prefix_key.h)
 * depend on this form.
 */
#ifndef GPOOL_CLIENT_KV_RESIDENT_H
#define GPOOL_CLIENT_KV_RESIDENT_H

#include "client/kv/kv.h"

enum { RESIDENT_SCALE_BYTES = 2 };

/* resident_check() - check that a cache with GPOOL_KV_INT8 can have these options. Return: 0, -EINVAL. */
int resident_check(const struct gpool_kv_options *options);
/* resident_layout() - fill in the layout of a block of a cache with GPOOL_KV_INT8; that of others is zero. */
void resident_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout);

#endif
