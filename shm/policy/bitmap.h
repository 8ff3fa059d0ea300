/*
 * bitmap.h - a set of small numbers with fast access to the lowest member.
 *
 * The lowest level has one bit per number. Each level above has one bit per word of the level below, set if that word
 * is not 0. A search for the lowest member, or for the lowest member that is at least a given number, reads one or two
 * words of each of at most four levels. The caller provides locking.
 */
#ifndef GPOOL_POLICY_BITMAP_H
#define GPOOL_POLICY_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

enum { BITMAP_LEVELS = 4 };

#define BITMAP_BITS_MAX (UINT32_C(1) << 24) /* 64 to the power of BITMAP_LEVELS */
#define BITMAP_NONE UINT32_MAX

struct bitmap {
	/* level[0] has the bits of the numbers; all levels share one allocation */
	uint64_t *level[BITMAP_LEVELS];
	uint32_t levels;
	uint32_t count; /* number of members */
};

/*
 * bitmap_init() - initialize an empty set of numbers below `bits`, 1..BITMAP_BITS_MAX. Return: 0, -ENOMEM.
 * bitmap_fini() - free it; accepts a zeroed struct.
 */
int bitmap_init(struct bitmap *bitmap, uint32_t bits);
void bitmap_fini(struct bitmap *bitmap);

static inline bool bitmap_has(const struct bitmap *bitmap, uint32_t bit)
{
	return bitmap->level[0][bit / 64] >> (bit % 64) & 1;
}

/*
 * bitmap_add() - add a number that is not a member.
 * bitmap_remove() - remove a member.
 */
void bitmap_add(struct bitmap *bitmap, uint32_t bit);
void bitmap_remove(struct bitmap *bitmap, uint32_t bit);

/*
 * bitmap_lowest() - return the lowest member.
 * bitmap_next() - return the lowest member that is at least `bit`.
 * Both return BITMAP_NONE if no such member exists.
 */
uint32_t bitmap_lowest(const struct bitmap *bitmap);
uint32_t bitmap_next(const struct bitmap *bitmap, uint32_t bit);

#endif
