/*
 * prefix_key.h - keys of blocks by what is in them. Internal to libgpool.
 *
 * A key is XXH3-128 over its predecessor's key and the token ids of one full block; the first block's predecessor is a
 * root, the same hash over everything else that decides about keys and values: model, shape, adapter, and the salt that
 * keeps tenants apart. So two blocks have one key only if all tokens up to their ends are the same, in the same order.
 * It is a hash against accident: who chooses token ids at will and knows the salt might find two texts with one key,
 * and spoils by that the answers of those who share the salt.
 */
#ifndef GPOOL_CLIENT_KV_PREFIX_KEY_H
#define GPOOL_CLIENT_KV_PREFIX_KEY_H

#include <stdbool.h>
#include <stdint.h>

enum { PREFIX_MODEL_BYTES = 32, PREFIX_BLOCK_TOKENS_MAX = 1024 };

struct prefix_key {
	uint64_t low, high;
};

/* What a root is made of. No padding: it is hashed as it lies there. */
struct prefix_identity {
	uint8_t model[PREFIX_MODEL_BYTES];
	uint32_t layers, kv_heads, head_size, dtype_bytes, block_tokens;
	uint32_t zero;
	uint64_t adapter_id;
	uint64_t salt[2];
};
_Static_assert(sizeof(struct prefix_identity) == 80, "it is hashed as it lies there");

static inline bool prefix_key_same(struct prefix_key a, struct prefix_key b)
{
	return a.low == b.low && a.high == b.high;
}

struct prefix_key prefix_key_root(const struct prefix_identity *identity);

/*
 * prefix_key_next() - of the block with these `tokens` ids, 1..PREFIX_BLOCK_TOKENS_MAX, behind the one with key
 * `before`.
 */
struct prefix_key prefix_key_next(struct prefix_key before, const uint32_t *ids, uint32_t tokens);

#endif
