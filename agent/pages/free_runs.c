#include "agent/pages/free_runs.h"

#include "shm/invariant.h"
#include "shm/plural.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * Return the class of a length, which increases with the length: one class for each length up to 64, then eight classes
 * for each power of two.
 */
static uint32_t class_of(uint32_t length)
{
	uint32_t octave, step;

	if (length <= FREE_RUNS_EXACT)
		return length - 1;
	octave = 31 - (uint32_t)__builtin_clz(length); /* at least 6 */
	step = (length >> (octave - 3)) & 7;
	return FREE_RUNS_EXACT + (octave - 6) * 8 + step;
}

int free_runs_init(struct free_runs *runs, uint32_t low, uint32_t pages)
{
	size_t cells = pages ? pages : 1;

	memset(runs, 0, sizeof(*runs));
	runs->low = low;
	runs->pages = pages;
	runs->length = calloc(cells, sizeof(*runs->length));
	runs->next = calloc(cells, sizeof(*runs->next));
	runs->previous = calloc(cells, sizeof(*runs->previous));
	runs->starts = calloc((cells + 63) / 64, sizeof(*runs->starts));
	if (runs->length && runs->next && runs->previous && runs->starts)
		return 0;
	free_runs_fini(runs);
	return -ENOMEM;
}

void free_runs_fini(struct free_runs *runs)
{
	free(runs->length);
	free(runs->next);
	free(runs->previous);
	free(runs->starts);
	memset(runs, 0, sizeof(*runs));
}

/* In the following functions, `at` is relative to runs->low. */

static bool is_start(const struct free_runs *runs, uint32_t at)
{
	return runs->starts[at / 64] >> (at % 64) & 1;
}

/* Return true if the neighbors in the list, or its head, point to the run. */
static bool is_linked(const struct free_runs *runs, uint32_t at)
{
	uint32_t class = class_of(runs->length[at]), next = runs->next[at], previous = runs->previous[at];

	return (previous ? runs->next[previous - 1] : runs->heads[class]) == at + 1 &&
		(!next || runs->previous[next - 1] == at + 1) && runs->filled[class / 64] >> (class % 64) & 1;
}

/*
 * Check the invariants of a run: its length is stored at both ends, it is in the list of its class, and no other run is
 * adjacent.
 */
static void run_check(const struct free_runs *runs, uint32_t at)
{
	uint32_t length = runs->length[at], end = at + length;

	GPOOL_INVARIANT(is_start(runs, at) && length >= 1 && length <= runs->pages - at,
		"run of %u page%s at page %u of %u", length, plural(length), at, runs->pages);
	GPOOL_INVARIANT(runs->length[end - 1] == length, "run of %u page%s at page %u: %u at its last page", length,
		plural(length), at, runs->length[end - 1]);
	GPOOL_INVARIANT(is_linked(runs, at), "run of %u page%s at page %u", length, plural(length), at);
	GPOOL_INVARIANT(at == 0 || runs->length[at - 1] == 0, "run at page %u after one of %u page%s", at,
		runs->length[at - 1], plural(runs->length[at - 1]));
	GPOOL_INVARIANT(end == runs->pages || !is_start(runs, end), "run of %u page%s at page %u before another",
		length, plural(length), at);
	GPOOL_INVARIANT(length <= runs->total && runs->total <= runs->pages, "run of %u page%s; %u of %u free", length,
		plural(length), runs->total, runs->pages);
}

/* Return the last run that begins at page `at` or before it, as page + 1; 0: none. */
static uint32_t run_before(const struct free_runs *runs, uint32_t at)
{
	uint32_t word = at / 64;
	uint64_t starts = runs->starts[word] & (~UINT64_C(0) >> (63 - at % 64));

	while (!starts && word)
		starts = runs->starts[--word];
	return starts ? word * 64 + 64 - (uint32_t)__builtin_clzll(starts) : 0;
}

static bool overlaps(const struct free_runs *runs, uint32_t at, uint32_t count)
{
	uint32_t run = run_before(runs, at + count - 1);

	return run && run - 1 + runs->length[run - 1] > at;
}

static void run_link(struct free_runs *runs, uint32_t at, uint32_t length)
{
	uint32_t class = class_of(length), head = runs->heads[class];

	runs->length[at] = runs->length[at + length - 1] = length;
	runs->next[at] = head;
	runs->previous[at] = 0;
	if (head)
		runs->previous[head - 1] = at + 1;
	runs->heads[class] = at + 1;
	runs->filled[class / 64] |= UINT64_C(1) << (class % 64);
	runs->starts[at / 64] |= UINT64_C(1) << (at % 64);
	runs->total += length;
	run_check(runs, at);
}

static void run_unlink(struct free_runs *runs, uint32_t at)
{
	uint32_t length = runs->length[at], class = class_of(length);
	uint32_t next = runs->next[at], previous = runs->previous[at];

	run_check(runs, at);
	if (next)
		runs->previous[next - 1] = previous;
	if (previous)
		runs->next[previous - 1] = next;
	else
		runs->heads[class] = next;
	if (!runs->heads[class])
		runs->filled[class / 64] &= ~(UINT64_C(1) << (class % 64));
	runs->starts[at / 64] &= ~(UINT64_C(1) << (at % 64));
	runs->length[at] = runs->length[at + length - 1] = 0;
	runs->total -= length;
}

void free_runs_put(struct free_runs *runs, uint32_t first, uint32_t count)
{
	uint32_t at = first - runs->low;

	assert(first >= runs->low && count >= 1 && count <= runs->pages - at);
	GPOOL_INVARIANT(
		!overlaps(runs, at, count), "%u page%s at page %u: one is free already", count, plural(count), first);
	if (at > 0 && runs->length[at - 1]) {
		uint32_t left = runs->length[at - 1];

		run_unlink(runs, at - left);
		at -= left;
		count += left;
	}
	if (at + count < runs->pages && is_start(runs, at + count)) {
		uint32_t right = runs->length[at + count];

		run_unlink(runs, at + count);
		count += right;
	}
	run_link(runs, at, count);
}

static uint32_t run_take(struct free_runs *runs, uint32_t at, uint32_t count)
{
	uint32_t length = runs->length[at];

	run_unlink(runs, at);
	if (length > count)
		run_link(runs, at + count, length - count);
	return runs->low + at;
}

/* Return the lowest nonempty class >= class, or FREE_RUNS_CLASSES. */
static uint32_t class_from(const struct free_runs *runs, uint32_t class)
{
	for (uint32_t word = class / 64; word < FREE_RUNS_CLASSES / 64; word++) {
		uint64_t filled = runs->filled[word];

		if (word == class / 64)
			filled &= ~UINT64_C(0) << (class % 64);
		if (filled)
			return word * 64 + (uint32_t)__builtin_ctzll(filled);
	}
	return FREE_RUNS_CLASSES;
}

/* Return the shortest run of a class that has at least `count` pages, as page + 1; 0: none. */
static uint32_t class_best(const struct free_runs *runs, uint32_t class, uint32_t count)
{
	uint32_t best = 0, best_length = UINT32_MAX;

	for (uint32_t run = runs->heads[class]; run; run = runs->next[run - 1]) {
		uint32_t length = runs->length[run - 1];

		if (length < count || length >= best_length)
			continue;
		best = run;
		best_length = length;
		if (length == count || class < FREE_RUNS_EXACT)
			break;
	}
	return best;
}

static bool take_lowest(struct free_runs *runs, uint32_t count, uint32_t *first)
{
	for (uint32_t word = 0; word < (runs->pages + 63) / 64; word++)
		for (uint64_t starts = runs->starts[word]; starts; starts &= starts - 1) {
			uint32_t at = word * 64 + (uint32_t)__builtin_ctzll(starts);

			if (runs->length[at] < count)
				continue;
			*first = run_take(runs, at, count);
			return true;
		}
	return false;
}

bool free_runs_take(struct free_runs *runs, uint32_t count, bool first_fit, uint32_t *first)
{
	if (count == 0 || count > runs->total)
		return false;
	if (first_fit)
		return take_lowest(runs, count, first);
	for (uint32_t class = class_from(runs, class_of(count)); class < FREE_RUNS_CLASSES;
		class = class_from(runs, class + 1)) {
		uint32_t run = class_best(runs, class, count);

		if (run) {
			*first = run_take(runs, run - 1, count);
			return true;
		}
	}
	return false;
}

static uint32_t longest_at(const struct free_runs *runs)
{
	for (uint32_t word = FREE_RUNS_CLASSES / 64; word-- > 0;) {
		uint32_t best = 0;

		if (!runs->filled[word])
			continue;
		for (uint32_t run = runs->heads[word * 64 + 63 - (uint32_t)__builtin_clzll(runs->filled[word])]; run;
			run = runs->next[run - 1])
			if (!best || runs->length[run - 1] > runs->length[best - 1])
				best = run;
		return best;
	}
	return 0;
}

uint32_t free_runs_take_longest(struct free_runs *runs, uint32_t most, uint32_t *first)
{
	uint32_t run = longest_at(runs), length;

	if (!run || !most)
		return 0;
	length = runs->length[run - 1] < most ? runs->length[run - 1] : most;
	*first = run_take(runs, run - 1, length);
	return length;
}

void free_runs_remove(struct free_runs *runs, uint32_t first, uint32_t count)
{
	uint32_t at = first - runs->low, start = run_before(runs, at) - 1, length = runs->length[start];

	assert(count >= 1 && at + count <= start + length);
	run_unlink(runs, start);
	if (at > start)
		run_link(runs, start, at - start);
	if (start + length > at + count)
		run_link(runs, at + count, start + length - (at + count));
}

uint32_t free_runs_longest(const struct free_runs *runs)
{
	uint32_t run = longest_at(runs);

	return run ? runs->length[run - 1] : 0;
}

bool free_runs_next(const struct free_runs *runs, uint32_t from, uint32_t *first, uint32_t *count)
{
	uint32_t at = from > runs->low ? from - runs->low : 0;

	for (uint32_t word = at / 64; word < (runs->pages + 63) / 64; word++) {
		uint64_t starts = runs->starts[word];

		if (word == at / 64)
			starts &= ~UINT64_C(0) << (at % 64);
		if (!starts)
			continue;
		at = word * 64 + (uint32_t)__builtin_ctzll(starts);
		*first = runs->low + at;
		*count = runs->length[at];
		return true;
	}
	return false;
}
