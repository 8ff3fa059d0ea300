#include "shm/policy/bitmap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int bitmap_init(struct bitmap *bitmap, uint32_t bits)
{
	/* Each level has an additional word, because bitmap_next() may be called with the number after the last one. */
	uint32_t words[BITMAP_LEVELS], total = 0;
	uint64_t *memory;

	assert(bits && bits <= BITMAP_BITS_MAX);
	bitmap->levels = 0;
	bitmap->count = 0;
	do {
		bits = (bits + 63) / 64;
		words[bitmap->levels] = bits + 1;
		total += words[bitmap->levels++];
	} while (bits > 1);
	memory = calloc(total, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	for (uint32_t i = 0; i < bitmap->levels; i++) {
		bitmap->level[i] = memory;
		memory += words[i];
	}
	return 0;
}

void bitmap_fini(struct bitmap *bitmap)
{
	free(bitmap->level[0]);
	bitmap->level[0] = NULL;
}

void bitmap_add(struct bitmap *bitmap, uint32_t bit)
{
	assert(!bitmap_has(bitmap, bit));
	bitmap->count++;
	for (uint32_t i = 0; i < bitmap->levels; i++, bit /= 64) {
		uint64_t *word = &bitmap->level[i][bit / 64];
		uint64_t was = *word;

		*word |= UINT64_C(1) << (bit % 64);
		if (was)
			return;
	}
}

void bitmap_remove(struct bitmap *bitmap, uint32_t bit)
{
	assert(bitmap_has(bitmap, bit));
	bitmap->count--;
	for (uint32_t i = 0; i < bitmap->levels; i++, bit /= 64) {
		uint64_t *word = &bitmap->level[i][bit / 64];

		*word &= ~(UINT64_C(1) << (bit % 64));
		if (*word)
			return;
	}
}

/* Return the lowest member of the subtree of this bit, which must be set. */
static uint32_t descend(const struct bitmap *bitmap, uint32_t level, uint32_t bit)
{
	while (level--)
		bit = bit * 64 + (uint32_t)__builtin_ctzll(bitmap->level[level][bit]);
	return bit;
}

uint32_t bitmap_lowest(const struct bitmap *bitmap)
{
	uint32_t top = bitmap->levels - 1;
	uint64_t word = bitmap->level[top][0];

	return word ? descend(bitmap, top, (uint32_t)__builtin_ctzll(word)) : BITMAP_NONE;
}

uint32_t bitmap_next(const struct bitmap *bitmap, uint32_t bit)
{
	for (uint32_t i = 0; i < bitmap->levels; i++) {
		uint64_t word = bitmap->level[i][bit / 64] & UINT64_MAX << (bit % 64);

		if (word)
			return descend(bitmap, i, bit / 64 * 64 + (uint32_t)__builtin_ctzll(word));
		bit = bit / 64 + 1;
	}
	return BITMAP_NONE;
}
