/*
 * lease_bitmap.h - a worker's idle pages, one bit each. The thread that clears a bit owns the page.
 *
 * Writers: every thread of the worker, and the agent. Every change is an atomic read-modify-write of one 64-bit word. A
 * run that crosses words is claimed word by word; if another thread has taken one of its bits, the claimed bits are set
 * again. A dead process cannot block the others, because no lock exists, and the ABA problem cannot occur, because no
 * pointers are stored.
 */
#ifndef GPOOL_SHM_LEASE_BITMAP_H
#define GPOOL_SHM_LEASE_BITMAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* lease_put() - set the bits of pages [first, first + count), which become idle. Memory order: release. */
void lease_put(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/*
 * lease_take() - clear the bits of exactly this run. Return: false, with nothing changed, if one of its bits was clear.
 */
bool lease_take(_Atomic uint64_t *bits, uint32_t first, uint32_t count);

/*
 * lease_summary_*() - maintain a summary with one bit per word of a bitmap. A bit is clear only if its word was seen
 * empty, so a search can skip that word. Each process has its own summary, and all its threads must put pages with
 * lease_put_summed(). Pages that another process (the agent) puts become visible after lease_summary_all(). If a search
 * misses a page that is being put, the only cost is one request to the agent.
 */
static inline uint32_t lease_summary_words(uint32_t page_count)
{
	return (page_count + 4095) / 4096;
}

void lease_summary_all(_Atomic uint64_t *summary, uint32_t page_count);
void lease_put_summed(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t first, uint32_t count);

/*
 * lease_take_run() - claim `count` adjacent pages: the start of the shortest sufficient run, or of the lowest one if
 * first_fit is set. Return: false if no run is long enough. `summary` may be NULL. Cost: one pass over the words that
 * are not known to be empty, at most page_count / 64, and one atomic operation per word of the run.
 */
bool lease_take_run(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t page_count, uint32_t count,
	bool first_fit, uint32_t *first);

/*
 * lease_take_some() - claim up to `most` single pages. The search starts at word `*hint`, and stores the word at which
 * it stopped.
 */
uint32_t lease_take_some(_Atomic uint64_t *bits, uint32_t page_count, uint32_t *hint, uint32_t *pages, uint32_t most);

/*
 * lease_take_word() - clear the bits of `mask` in one word. Return: those that were set; the caller now owns their
 * pages.
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
