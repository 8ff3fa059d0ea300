/*
 * lease_bitmap.h - a worker's idle pages, one bit each. The thread that clears a bit owns the page.
 *
 * Writers: every thread of the worker, and the agent. All changes are atomic read-modify-writes of one 64-bit word. A
 * run that crosses words is claimed word by word and returned if a bit of it was lost meanwhile. There is no lock, so a
 * dead process cannot hold one, and no pointer, so there is no ABA problem.
 */
#ifndef GPOOL_SHM_LEASE_BITMAP_H
#define GPOOL_SHM_LEASE_BITMAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* lease_put() - set the bits of pages [first, first + count), which become idle. Release. */
void lease_put(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/* lease_take() - clear exactly this run. Returns false, with nothing changed, if one of its bits was clear. */
bool lease_take(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/*
 * lease_summary_*() - one bit for each word of a bitmap, clear only if the word was seen empty, so that a search may
 * skip it. A summary is private to a process, whose threads all put pages through lease_put_summed(); pages that
 * another process (the agent) puts are seen after lease_summary_all(). Missing a page that is being put costs one
 * request to the agent and nothing else.
 */
static inline uint32_t lease_summary_words(uint32_t page_count)
{
	return (page_count + 4095) / 4096;
}

void lease_summary_all(_Atomic uint64_t *summary, uint32_t page_count);
void lease_put_summed(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t first, uint32_t count);

/*
 * lease_take_run() - claim `count` adjacent pages: the shortest run that has enough (first_fit: the lowest). Returns
 * false if there is none. `summary` may be NULL. Cost: one pass over those of the page_count / 64 words that are not
 * known to be empty, plus one atomic for each word of the run.
 */
bool lease_take_run(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t page_count, uint32_t count,
	bool first_fit, uint32_t *first);

/*
 * lease_take_some() - claim up to `most` single pages, starting at word `*hint`, which is set to where the search
 * stopped.
 * Return: the number of pages stored in pages[].
 */
uint32_t lease_take_some(_Atomic uint64_t *bits, uint32_t page_count, uint32_t *hint, uint32_t *pages, uint32_t most);

/*
 * lease_take_word() - clear the bits of `mask` in one word. Return: the bits that were set, which the caller now owns.
 */
static inline uint64_t lease_take_word(_Atomic uint64_t *bits, uint32_t word, uint64_t mask)
{
	return atomic_fetch_and_explicit(&bits[word], ~mask, memory_order_acq_rel) & mask;
}

/* lease_mask() - return the bits of word `word` that belong to pages [first, first + count). */
static inline uint64_t lease_mask(uint32_t word, uint32_t first, uint32_t count)
{
	uint64_t low = (uint64_t)word * 64, begin = first > low ? first - low : 0, end = (uint64_t)first + count - low;

	if (end > 64)
		end = 64;
	return (end == 64 ? ~UINT64_C(0) : (UINT64_C(1) << end) - 1) & ~((UINT64_C(1) << begin) - 1);
}

#endif
