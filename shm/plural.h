/*
 * plural.h - the endings of words after a number, in texts for people:
 *
 *     fail(-ENOSPC, "%u page%s %s pinned", count, plural(count), be(count));
 *
 * `make lint` finds texts that print "1 pages".
 */
#ifndef GPOOL_SHM_PLURAL_H
#define GPOOL_SHM_PLURAL_H

static inline const char *plural(unsigned long long count)
{
	return count == 1 ? "" : "s";
}

static inline const char *be(unsigned long long count)
{
	return count == 1 ? "is" : "are";
}

#endif
