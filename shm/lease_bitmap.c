#include "shm/lease_bitmap.h"

void lease_put(_Atomic uint64_t *bits, uint32_t first, uint32_t count)
{
	for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++)
		atomic_fetch_or_explicit(&bits[word], lease_mask(word, first, count), memory_order_release);
}

bool lease_take(_Atomic uint64_t *bits, uint32_t first, uint32_t count)
{
	for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++) {
		uint64_t mask = lease_mask(word, first, count);
		uint64_t got = lease_take_word(bits, word, mask);

		if (got == mask)
			continue;
		/*
		 * Another thread has taken a bit of the run. Return the bits claimed in this word and in the words
		 * before.
		 */
		if (got)
			atomic_fetch_or_explicit(&bits[word], got, memory_order_release);
		if (word > first / 64)
			lease_put(bits, first, word * 64 - first);
		return false;
	}
	return true;
}

void lease_summary_all(_Atomic uint64_t *summary, uint32_t page_count)
{
	for (uint32_t i = 0; i < lease_summary_words(page_count); i++)
		atomic_store_explicit(&summary[i], ~UINT64_C(0), memory_order_relaxed);
}

void lease_put_summed(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t first, uint32_t count)
{
	lease_put(bits, first, count);
	/* Set the summary after the bits, because a search that clears a summary bit then checks the word again. */
	for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++)
		if (!(atomic_load_explicit(&summary[word / 64], memory_order_seq_cst) >> (word % 64) & 1))
			atomic_fetch_or_explicit(&summary[word / 64], UINT64_C(1) << (word % 64), memory_order_seq_cst);
}

/* Clear the summary bit of an empty word, unless bits of the word have been set since. */
static void summary_clear(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t word)
{
	atomic_fetch_and_explicit(&summary[word / 64], ~(UINT64_C(1) << (word % 64)), memory_order_seq_cst);
	if (atomic_load_explicit(&bits[word], memory_order_seq_cst))
		atomic_fetch_or_explicit(&summary[word / 64], UINT64_C(1) << (word % 64), memory_order_seq_cst);
}

/* Return the first word >= `word` whose summary bit is set, or `words`. */
static uint32_t summary_next(const _Atomic uint64_t *summary, uint32_t word, uint32_t words)
{
	while (word < words) {
		uint64_t rest = atomic_load_explicit(&summary[word / 64], memory_order_relaxed) >> (word % 64);

		if (rest) {
			word += (uint32_t)__builtin_ctzll(rest);
			return word < words ? word : words;
		}
		word = (word / 64 + 1) * 64;
	}
	return words;
}

struct run_search {
	uint32_t count;
	bool first_fit;
	uint32_t best_first, best_length; /* length 0: none yet */
};

/* Record the end of a maximal run. Return true if the search may stop. */
static bool run_ended(struct run_search *search, uint32_t first, uint32_t length)
{
	if (length < search->count || (search->best_length && length >= search->best_length))
		return false;
	search->best_first = first;
	search->best_length = length;
	return search->first_fit || length == search->count;
}

/* Find a run. The bits may change at the same time, so lease_take() may still fail for the result. */
static bool run_find(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t page_count, struct run_search *search)
{
	uint32_t words = (page_count + 63) / 64, first = 0, length = 0;

	search->best_length = 0;
	for (uint32_t word = 0; word < words; word++) {
		uint64_t value;
		uint32_t at = 0;

		if (summary) {
			uint32_t next = summary_next(summary, word, words);

			/* The skipped words are empty, so they end a run. */
			if (next > word && length && run_ended(search, first, length))
				return true;
			if (next > word)
				length = 0;
			if (next == words)
				break;
			word = next;
		}
		value = atomic_load_explicit(&bits[word], memory_order_relaxed);
		if (!value && summary)
			summary_clear(bits, summary, word);

		if (value == ~UINT64_C(0)) {
			if (!length)
				first = word * 64;
			length += 64;
			continue;
		}
		while (at < 64) {
			uint64_t rest = value >> at;
			uint32_t ones = (uint32_t)__builtin_ctzll(~rest); /* value is not all ones, so ~rest is not 0 */

			if (ones) {
				if (!length)
					first = word * 64 + at;
				length += ones;
				at += ones;
				if (at == 64)
					break;
			}
			if (length && run_ended(search, first, length))
				return true;
			length = 0;
			rest = value >> at;
			if (!rest)
				break;
			at += (uint32_t)__builtin_ctzll(rest);
		}
	}
	if (length)
		run_ended(search, first, length);
	return search->best_length != 0;
}

bool lease_take_run(_Atomic uint64_t *bits, _Atomic uint64_t *summary, uint32_t page_count, uint32_t count,
	bool first_fit, uint32_t *first)
{
	struct run_search search = {.count = count, .first_fit = first_fit};

	/* Every failed claim means that another thread made progress, so this loop is lock-free. */
	while (run_find(bits, summary, page_count, &search)) {
		if (lease_take(bits, search.best_first, count)) {
			*first = search.best_first;
			return true;
		}
		/*
		 * Set the summary, because another search may have found the returned bits clear. An unneeded summary
		 * bit is harmless.
		 */
		for (uint32_t word = search.best_first / 64; summary && word <= (search.best_first + count - 1) / 64;
			word++)
			atomic_fetch_or_explicit(&summary[word / 64], UINT64_C(1) << (word % 64), memory_order_seq_cst);
	}
	return false;
}

uint32_t lease_take_some(_Atomic uint64_t *bits, uint32_t page_count, uint32_t *hint, uint32_t *pages, uint32_t most)
{
	uint32_t words = (page_count + 63) / 64, got = 0, word = *hint < words ? *hint : 0;

	for (uint32_t step = 0; step < words && got < most; step++, word = word + 1 == words ? 0 : word + 1) {
		uint64_t value = atomic_load_explicit(&bits[word], memory_order_relaxed), wanted = 0;

		for (uint32_t left = most - got; value && left; left--) {
			wanted |= value & -value;
			value &= value - 1;
		}
		if (!wanted)
			continue;
		for (uint64_t taken = lease_take_word(bits, word, wanted); taken; taken &= taken - 1)
			pages[got++] = word * 64 + (uint32_t)__builtin_ctzll(taken);
		*hint = word;
	}
	return got;
}
