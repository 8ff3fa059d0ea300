/*
 * prefix_key.h - keys of blocks, computed from their content. Internal to libgpool.
 *
 * A key is the XXH3-128 hash of the predecessor's key and the token ids of one full block. The predecessor of the first
 * block is a root: the hash of everything else that determines keys and values, namely model, shape, adapter, and the
 * salt that separates tenants. Two blocks therefore have the same key only if all tokens up to their ends are the same,
 * in the same order.
 *
 * The hash protects only against accidental collisions. A user with free choice of token ids and knowledge of the salt
 * might find two texts with the same key, and so corrupt the answers of other users with the same salt.
 */
#ifndef GPOOL_CLIENT_KV_PREFIX_KEY_H
#define GPOOL_CLIENT_KV_PREFIX_KEY_H

#include <stdbool.h>
#include <stdint.h>

enum { PREFIX_MODEL_BYTES = 32, PREFIX_BLOCK_TOKENS_MAX = 1024 };

struct prefix_key {
	uint64_t low, high;
};

/* The input of a root. It has no padding, because it is hashed as it is stored. */
struct prefix_identity {
	uint8_t model[PREFIX_MODEL_BYTES];
	uint32_t layers, kv_heads, head_size, dtype_bytes, block_tokens;
	uint32_t int8; /* 1: elements are codes, and vectors have scales */
	uint64_t adapter_id;
	uint64_t salt[2];
};
_Static_assert(sizeof(struct prefix_identity) == 80, "it is hashed as stored");

static inline bool prefix_key_same(struct prefix_key a, struct prefix_key b)
{
	return a.low == b.low && a.high == b.high;
}

struct prefix_key prefix_key_root(const struct prefix_identity *identity);

/*
 * prefix_key_next() - return the key of a block with `tokens` ids (1..PREFIX_BLOCK_TOKENS_MAX) that follows the block
 * with key `before`.
 */
struct prefix_key prefix_key_next(struct prefix_key before, const uint32_t *ids, uint32_t tokens);

#endif
