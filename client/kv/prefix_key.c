#include "client/kv/prefix_key.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* The seed of roots, which separates the hashes of roots from those of blocks. */
#define ROOT_SEED UINT64_C(0x676b762d726f6f74)

static struct prefix_key key_of(XXH128_hash_t hash)
{
	return (struct prefix_key){.low = hash.low64, .high = hash.high64};
}

struct prefix_key prefix_key_root(const struct prefix_identity *identity)
{
	return key_of(XXH3_128bits_withSeed(identity, sizeof(*identity), ROOT_SEED));
}

struct prefix_key prefix_key_next(struct prefix_key before, const uint32_t *ids, uint32_t tokens)
{
	struct {
		struct prefix_key before;
		uint32_t ids[PREFIX_BLOCK_TOKENS_MAX];
	} message;

	message.before = before;
	memcpy(message.ids, ids, tokens * sizeof(*ids));
	return key_of(XXH3_128bits(&message, sizeof(message.before) + tokens * sizeof(*ids)));
}
