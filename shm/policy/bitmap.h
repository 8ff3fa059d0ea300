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
	uint64_t *level[BITMAP_LEVELS]; /* the first one is the numbers'; all in one piece of memory */
	uint32_t levels;
	uint32_t count; /* members */
};

/*
 * bitmap_init() - without a member, for numbers below `bits`, 1..BITMAP_BITS_MAX: 0, -ENOMEM. bitmap_fini() - takes an
 * all-zero one, too.
 */
int bitmap_init(struct bitmap *bitmap, uint32_t bits);
void bitmap_fini(struct bitmap *bitmap);

static inline bool bitmap_has(const struct bitmap *bitmap, uint32_t bit)
{
	return bitmap->level[0][bit / 64] >> (bit % 64) & 1;
}

/* bitmap_add() - one that is none; bitmap_remove() - one that is. */
void bitmap_add(struct bitmap *bitmap, uint32_t bit);
void bitmap_remove(struct bitmap *bitmap, uint32_t bit);

/* bitmap_lowest() - the lowest member; bitmap_next() - the lowest from `bit` on. BITMAP_NONE: there is none. */
uint32_t bitmap_lowest(const struct bitmap *bitmap);
uint32_t bitmap_next(const struct bitmap *bitmap, uint32_t bit);

#endif
