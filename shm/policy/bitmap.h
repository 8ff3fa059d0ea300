/*
 * bitmap.h - a set of small numbers with fast access to the lowest member.
 *
 * There is a bit for each number, and above that levels of summaries: a bit for each word below that is not 0. Finding
 * the lowest member, or the next one from a number on, reads one or two words of each of at most four levels. There are
 * no locks: the owner has one.
 */
#ifndef GPOOL_POLICY_BITMAP_H
#define GPOOL_POLICY_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

enum { BITMAP_LEVELS = 4 };

#define BITMAP_BITS_MAX (UINT32_C(1) << 24) /* 64 to the power of the levels */
#define BITMAP_NONE UINT32_MAX

struct bitmap {
	/* the first level has the bits of the numbers; all levels are in one allocation */
	uint64_t *level[BITMAP_LEVELS];
	uint32_t levels;
	uint32_t count; /* number of members */
};

/*
 * bitmap_init() - initialize an empty set for numbers below `bits`, 1..BITMAP_BITS_MAX: 0, -ENOMEM. bitmap_fini() -
 * free it; an all-zero struct is permitted.
 */
int bitmap_init(struct bitmap *bitmap, uint32_t bits);
void bitmap_fini(struct bitmap *bitmap);

static inline bool bitmap_has(const struct bitmap *bitmap, uint32_t bit)
{
	return bitmap->level[0][bit / 64] >> (bit % 64) & 1;
}

/* bitmap_add() - add a number that is not a member. bitmap_remove() - remove a member. */
void bitmap_add(struct bitmap *bitmap, uint32_t bit);
void bitmap_remove(struct bitmap *bitmap, uint32_t bit);

/*
 * bitmap_lowest() - return the lowest member. bitmap_next() - return the lowest one from `bit` on. BITMAP_NONE: none.
 */
uint32_t bitmap_lowest(const struct bitmap *bitmap);
uint32_t bitmap_next(const struct bitmap *bitmap, uint32_t bit);

#endif
