/*
 * lease_bitmap.h - a worker's idle pages, one bit each. The thread that clears a bit owns the page.
 *
 * Writers: every thread of the worker, and the agent. Every change is an atomic read-modify-write of one 64-bit word. A
 * run that crosses words is claimed word by word. If another thread has taken one of its bits, the bits that were
 * already claimed are set again. A process that dies cannot block the others, because there is no lock.
 */
#ifndef GPOOL_SHM_LEASE_BITMAP_H
#define GPOOL_SHM_LEASE_BITMAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* lease_put() - set the bits of pages [first, first + count), which become idle. Memory order: release. */
void lease_put(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/*
 * lease_take() - clear the bits of exactly this run. If one of them was clear, set the others again and return false.
 */
bool lease_take(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/*
 * lease_summary_*() - maintain a summary with one bit per word of a bitmap. A bit is clear only if its word was found
 * empty, so a search can skip this word. Each process has its own summary, and all its threads must put pages with
 * lease_put_summed(). Searches find pages that the agent puts only after lease_summary_all(). A search that misses a
 * page because it is being put costs one request to the agent.
 */
static inline uint32_t lease_summary_words(uint32_t page_count)
{
	return (page_count + 4095) / 4096;
}

void lease_summary_all(_Atomic uint64_t *summary, uint32_t page_count);
void lease_put_summed(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t first, uint32_t count);

/*
 * lease_take_run() - claim `count` adjacent pages: the first pages of the shortest sufficient run or, if first_fit is
 * set, of the lowest one. `summary` may be NULL. Return false if no run is long enough.
 * Cost: one pass over the words that are not known to be empty, at most page_count / 64, and one atomic operation for
 * each word of the run.
 */
bool lease_take_run(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t page_count, uint32_t count,
	bool first_fit, uint32_t *first);

/*
 * lease_take_some() - claim up to `most` single pages, and return their number. The search starts at word *hint and
 * sets *hint to the word in which it found the last page.
 */
uint32_t lease_take_some(_Atomic uint64_t *bits, uint32_t page_count, uint32_t *hint, uint32_t *pages, uint32_t most);

/* lease_take_word() - clear the bits of `mask` in one word. Return those that were set; the caller owns their pages. */
static inline uint64_t lease_take_word(_Atomic uint64_t *bits, uint32_t word, uint64_t mask)
{
	return atomic_fetch_and_explicit(&bits[word], ~mask, memory_order_acq_rel) & mask;
}

/*
 * lease_mask() - return the bits of word `word` that belong to pages [first, first + count). At least one of these
 * pages must be in the word.
 */
static inline uint64_t lease_mask(uint32_t word, uint32_t first, uint32_t count)
{
	uint64_t low = (uint64_t)word * 64, begin = first > low ? first - low : 0, end = (uint64_t)first + count - low;

	if (end > 64)
		end = 64;
	return (end == 64 ? ~UINT64_C(0) : (UINT64_C(1) << end) - 1) & ~((UINT64_C(1) << begin) - 1);
}

#endif
