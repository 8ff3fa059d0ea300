/*
 * lease_bitmap.h - a worker's idle pages, one bit each: who clears a bit owns the page.
 *
 * Writers: every thread of the worker and the agent. All changes are atomic read-modify-writes of one 64-bit word; a
 * run that crosses words is claimed word by word and given back when one of them lost a bit meanwhile. No lock, so none
 * that a dead process could hold; no pointer, so no ABA.
 */
#ifndef GPOOL_SHM_LEASE_BITMAP_H
#define GPOOL_SHM_LEASE_BITMAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* lease_put() - set the bits of pages [first, first + count): they are idle again. Release. */
void lease_put(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/* lease_take() - clear exactly this run; false, and nothing changed, when a bit of it was clear. */
bool lease_take(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/*
 * lease_summary_*() - one bit for each word of a bitmap, clear only where the word was seen empty: what a search may
 * skip. Private to a process, whose threads all put through lease_put_summed(); what another process (the agent) puts
 * is seen after lease_summary_all(). Missing a page that is just being put costs one question to the agent, nothing
 * else.
 */
static inline uint32_t lease_summary_words(uint32_t page_count)
{
	return (page_count + 4095) / 4096;
}

void lease_summary_all(_Atomic uint64_t *summary, uint32_t page_count);
void lease_put_summed(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t first, uint32_t count);

/*
 * lease_take_run() - claim `count` pages in a row: the shortest run that holds them (first_fit: the lowest). False:
 * there is none. `summary` may be NULL. Cost: one pass over the page_count / 64 words that are not known to be empty,
 * plus one atomic for each word of the run.
 */
bool lease_take_run(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t page_count, uint32_t count,
	bool first_fit, uint32_t *first);

/*
 * lease_take_some() - claim up to `most` single pages, from the word `*hint` on (moved to where it stopped).
 * Return: how many stand in pages[].
 */
uint32_t lease_take_some(_Atomic uint64_t *bits, uint32_t page_count, uint32_t *hint, uint32_t *pages, uint32_t most);

/* lease_take_word() - clear those of `mask` in one word; returns the bits that were set and are now the caller's. */
static inline uint64_t lease_take_word(_Atomic uint64_t *bits, uint32_t word, uint64_t mask)
{
	return atomic_fetch_and_explicit(&bits[word], ~mask, memory_order_acq_rel) & mask;
}

/* The bits of word `word` that belong to pages [first, first + count). */
static inline uint64_t lease_mask(uint32_t word, uint32_t first, uint32_t count)
{
	uint64_t low = (uint64_t)word * 64, begin = first > low ? first - low : 0, end = (uint64_t)first + count - low;

	if (end > 64)
		end = 64;
	return (end == 64 ? ~UINT64_C(0) : (UINT64_C(1) << end) - 1) & ~((UINT64_C(1) << begin) - 1);
}

#endif
