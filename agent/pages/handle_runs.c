#include "agent/pages/handle_runs.h"

/*
 * The available pages. A front is the first part of a handle, and is mapped after other runs. A tail is the last part
 * of a handle, and is mapped before them. Of the handles that are not available as a whole, the longest front and the
 * longest tail are used.
 */
struct available {
	struct page_run one; /* the shortest run that contains all wanted pages; no pages: none */
	uint32_t handles;    /* whole handles */
	struct page_run front, tail;
};

static uint32_t round_up(uint32_t page, uint32_t per_handle)
{
	return (page + per_handle - 1) / per_handle * per_handle;
}

static void longer(struct page_run *best, uint32_t first, uint32_t end)
{
	if (end > first && end - first > best->count)
		*best = (struct page_run){first, end - first};
}

static void look(const struct run_want *want, const struct page_run *run, struct available *found)
{
	uint32_t end = run->first + run->count, begin = round_up(run->first, want->per_handle);
	uint32_t last = end / want->per_handle * want->per_handle, first = want->aligned ? begin : run->first;

	if (first < end && end - first >= want->need && (!found->one.count || end - first < found->one.count))
		found->one = (struct page_run){first, end - first};
	if (begin <= last) {
		found->handles += (last - begin) / want->per_handle;
		longer(&found->front, last, end);
		if (!want->aligned)
			longer(&found->tail, run->first, begin);
	}
}

/* Take up to `most` pages of the whole handles of a run. */
static uint32_t handles_of(
	const struct run_want *want, const struct page_run *run, uint32_t most, struct page_run *taken)
{
	uint32_t begin = round_up(run->first, want->per_handle),
		 last = (run->first + run->count) / want->per_handle * want->per_handle,
		 count = last > begin ? last - begin : 0;

	*taken = (struct page_run){begin, count < most ? count : most};
	return taken->count;
}

uint32_t handle_runs_choose(const struct run_source *source, const struct run_want *want, struct page_run *runs)
{
	uint32_t handles = want->need / want->per_handle, rest = want->need % want->per_handle, count = 0;
	struct available found = {.handles = 0};
	struct page_run run = {0, 0}, part;

	while (source->next(source->context, run.first + run.count, &run))
		look(want, &run, &found);
	if (found.one.count) {
		runs[0] = (struct page_run){found.one.first, want->need};
		return 1;
	}
	if (want->contiguous)
		return 0;
	/* One whole handle less suffices if the tail and the front have enough pages to replace it. */
	if (found.handles < handles && handles) {
		handles--;
		rest += want->per_handle;
	}
	if (found.handles < handles)
		return 0;
	if (found.tail.count > rest)
		found.tail = (struct page_run){found.tail.first + found.tail.count - rest, rest};
	if (found.tail.count + found.front.count < rest) {
		/* The rest is taken from the start of a further whole handle, which follows the others. */
		if (found.handles < handles + 1)
			return 0;
		found.tail.count = found.front.count = 0;
	} else {
		found.front.count = rest - found.tail.count;
	}
	rest = want->need - found.tail.count - found.front.count;
	if (found.tail.count)
		runs[count++] = found.tail;
	for (run = (struct page_run){0, 0}; rest && source->next(source->context, run.first + run.count, &run);)
		if (handles_of(want, &run, rest, &part)) {
			runs[count++] = part;
			rest -= part.count;
		}
	if (found.front.count)
		runs[count++] = found.front;
	return count;
}
