/*
 * torture_ranges.h - steps of torture.c's workers with elastic ranges and gpool_malloc_async(): commit pages, offer
 * them at once or with a fence, reclaim them, decommit them; allocate and free on a stream. Each thread has its own
 * range and knows the content of each page. Pages that a reclaim reports as kept must have their content. Pages that
 * wait for a fence must have it until the fence is signaled. Single pages are also published under names that all
 * workers share, mapped, pinned, unmapped and deleted. A page that a thread has pinned must have the content of its
 * name.
 */
#ifndef GPOOL_TESTS_STRESS_TORTURE_RANGES_H
#define GPOOL_TESTS_STRESS_TORTURE_RANGES_H

#include "tests/stress/torture_worker.h"

enum { RANGE_PAGES = 24, RANGE_RUN = 6, MALLOCS = 4, MALLOC_PAGES = 4 };

enum { OBJECT_NAMES = 12 };

enum range_page { PAGE_NONE, PAGE_HELD, PAGE_OFFERED, PAGE_FENCED, PAGE_OBJECT };

struct ranges_state {
	struct gpool_range *range;
	uint32_t stream; /* host-signaled, and used only by the range, so its fences are signaled in order */
	uint64_t address;
	uint64_t contents; /* number of contents written so far */
	uint64_t content[RANGE_PAGES];
	enum range_page page[RANGE_PAGES];
	struct gpool_object *objects[RANGE_PAGES]; /* OBJECT */
	uint32_t names[RANGE_PAGES];
	bool pinned[RANGE_PAGES];
	struct gpool_fence fence; /* of the FENCED pages, which are one run */
	uint32_t fenced_first, fenced_count;
	bool fenced_offer; /* pages are offered with the fence; otherwise decommitted */
	uint64_t mallocs[MALLOCS], malloc_content[MALLOCS];
	uint32_t malloc_pages[MALLOCS];
};

static void range_verify(struct thread *thread, struct ranges_state *state, uint32_t page, const char *when)
{
	const struct worker *worker = thread->worker;

	if (content_check(state->address + page * worker->page_bytes, worker->page_bytes, 1,
		    worker->key ^ state->content[page]) >= 0)
		violation("worker %u: wrong content in page %u of a range, %s", worker->slot, page, when);
	COUNT(verified, 1);
	COUNT(verified_bytes, CONTENT_WORDS * 8);
}

/* End the work by signaling the host-signaled timeline, without a call for the range. */
static void range_fence_reach(struct thread *thread, struct ranges_state *state)
{
	for (uint32_t i = 0; i < state->fenced_count; i++) {
		uint32_t page = state->fenced_first + i;

		range_verify(thread, state, page, "before its fence");
		state->page[page] = state->fenced_offer ? PAGE_OFFERED : PAGE_NONE;
	}
	state->fenced_count = 0;
	if (gpool_fence_signal(thread->worker->pool, state->fence))
		call_refuse(thread->worker, "gpool_fence_signal()", -EINVAL);
	COUNT(fences, 1);
}

static void range_commit(struct thread *thread, struct ranges_state *state, uint32_t first, uint32_t count)
{
	int error = gpool_range_commit(state->range, first, count, (int)chance_below(&thread->random, 10));

	if (error == -ENOSPC) {
		COUNT(refusals, 1);
		return;
	}
	if (error) {
		call_refuse(thread->worker, "gpool_range_commit()", error);
		return;
	}
	for (uint32_t page = first; page < first + count; page++) {
		if (state->page[page] == PAGE_HELD)
			range_verify(thread, state, page, "committed again");
		state->content[page] = ++state->contents * UINT64_C(0x9e3779b97f4a7c15) + page;
		state->page[page] = PAGE_HELD;
		content_write(state->address + page * thread->worker->page_bytes, thread->worker->page_bytes, 1,
			thread->worker->key ^ state->content[page]);
	}
}

static void range_offer(
	struct thread *thread, struct ranges_state *state, uint32_t first, uint32_t count, bool decommit)
{
	bool fenced = chance_below(&thread->random, 2) && !state->fenced_count;
	struct gpool_fence fence = {0};
	int error;

	for (uint32_t page = first; page < first + count; page++)
		if (state->page[page] != PAGE_HELD)
			return;
	error = fenced ? gpool_fence_record(thread->worker->pool, state->stream, &fence) : 0;
	if (!error)
		error = decommit ? gpool_range_decommit(state->range, first, count, fence)
				 : gpool_range_offer(state->range, first, count, fence);
	if (error)
		call_refuse(thread->worker, decommit ? "gpool_range_decommit()" : "gpool_range_offer()", error);
	for (uint32_t page = first; page < first + count; page++)
		state->page[page] = fenced ? PAGE_FENCED : decommit ? PAGE_NONE : PAGE_OFFERED;
	if (fenced) {
		state->fence = fence;
		state->fenced_first = first;
		state->fenced_count = count;
		state->fenced_offer = !decommit;
	}
	COUNT(offers, !decommit);
}

static void range_reclaim(struct thread *thread, struct ranges_state *state, uint32_t first, uint32_t count)
{
	uint8_t kept[RANGE_PAGES];
	int lost = gpool_range_reclaim(state->range, first, count, kept);

	if (lost < 0) {
		call_refuse(thread->worker, "gpool_range_reclaim()", lost);
		return;
	}
	for (uint32_t page = first; page < first + count; page++) {
		enum range_page was = state->page[page];

		if (kept[page - first] && was == PAGE_NONE)
			violation("worker %u: a page that was not committed is kept", thread->worker->slot);
		if (!kept[page - first] && was == PAGE_HELD)
			violation("worker %u: a held page is lost", thread->worker->slot);
		if (kept[page - first])
			range_verify(thread, state, page, "reclaimed");
		if (was == PAGE_OFFERED)
			COUNT(reclaimed, kept[page - first]);
		if (was == PAGE_OFFERED && !kept[page - first])
			COUNT(offers_lost, 1);
		state->page[page] = kept[page - first] ? PAGE_HELD : PAGE_NONE;
	}
}

/* ---- published pages ---- */

static const char *shared_name(uint32_t name, char text[static 32])
{
	snprintf(text, 32, "torture/%u", name);
	return text;
}

/* The content of a name is the same in all processes. */
static uint64_t shared_key(uint32_t name)
{
	return (name + 1) * UINT64_C(0xd1342543de82ef95);
}

static void shared_begin(struct ranges_state *state, uint32_t page, struct gpool_object *object, uint32_t name)
{
	state->page[page] = PAGE_OBJECT;
	state->objects[page] = object;
	state->names[page] = name;
	state->pinned[page] = true;
}

static void shared_publish(struct thread *thread, struct ranges_state *state, uint32_t page)
{
	struct worker *worker = thread->worker;
	uint32_t name = chance_below(&thread->random, OBJECT_NAMES);
	struct gpool_object *object;
	char text[32];
	int error;

	content_write(state->address + page * worker->page_bytes, worker->page_bytes, 1, shared_key(name));
	state->content[page] = worker->key ^ shared_key(name);
	error = gpool_range_publish(state->range, page, 1, shared_name(name, text), NULL, &object);
	if (!error) {
		shared_begin(state, page, object, name);
		COUNT(published, 1);
	} else if (error != -ESTALE && error != -EUSERS) {
		call_refuse(thread->worker, "gpool_range_publish()", error);
	}
}

static void shared_map(struct thread *thread, struct ranges_state *state, uint32_t page)
{
	uint32_t name = chance_below(&thread->random, OBJECT_NAMES);
	struct gpool_object *object;
	char text[32];
	int error = gpool_range_map(state->range, page, shared_name(name, text), NULL, &object);

	if (!error) {
		shared_begin(state, page, object, name);
		COUNT(mapped, 1);
	} else if (error != -ENOENT && error != -ESTALE && error != -EBUSY) {
		call_refuse(thread->worker, "gpool_range_map()", error);
	}
}

static void shared_use(struct thread *thread, struct ranges_state *state, uint32_t page)
{
	const struct worker *worker = thread->worker;
	int error = state->pinned[page] ? 0 : gpool_object_pin(state->objects[page]);

	if (!error) {
		if (content_check(state->address + page * worker->page_bytes, worker->page_bytes, 1,
			    shared_key(state->names[page])) >= 0)
			violation("worker %u: wrong content of a pinned object in page %u of a range", worker->slot,
				page);
		state->pinned[page] = chance_below(&thread->random, 2);
		if (!state->pinned[page] && gpool_object_unpin(state->objects[page]))
			call_refuse(thread->worker, "gpool_object_unpin()", -EINVAL);
	} else if (error == -ESTALE) {
		COUNT(unmapped_lost, 1);
	} else if (error != -ETIMEDOUT) {
		call_refuse(thread->worker, "gpool_object_pin()", error);
	}
}

static void shared_unmap(struct thread *thread, struct ranges_state *state, uint32_t page, bool delete)
{
	char text[32];
	int error = state->pinned[page] ? gpool_object_unpin(state->objects[page]) : 0;

	if (!error)
		error = gpool_range_unmap(state->range, state->objects[page]);
	if (error)
		call_refuse(thread->worker, "gpool_range_unmap()", error);
	state->page[page] = PAGE_NONE;
	if (!delete)
		return;
	error = gpool_object_delete(thread->worker->pool, shared_name(state->names[page], text), 0);
	/* -ETIMEDOUT: the agent was killed or stopped in the meantime. */
	if (error && error != -ENOENT && error != -EPERM && error != -ETIMEDOUT)
		call_refuse(thread->worker, "gpool_object_delete()", error);
}

/* One step with a page that is HELD, NONE or OBJECT. */
static void range_share(struct thread *thread, struct ranges_state *state, uint32_t page)
{
	if (state->page[page] == PAGE_HELD)
		shared_publish(thread, state, page);
	else if (state->page[page] == PAGE_NONE)
		shared_map(thread, state, page);
	else if (state->page[page] == PAGE_OBJECT && chance_below(&thread->random, 3))
		shared_use(thread, state, page);
	else if (state->page[page] == PAGE_OBJECT)
		shared_unmap(thread, state, page, chance_below(&thread->random, 4) == 0);
}

/* ---- allocations ---- */

static void range_malloc(struct thread *thread, struct ranges_state *state)
{
	uint32_t at = chance_below(&thread->random, MALLOCS), pages = state->malloc_pages[at];
	struct worker *worker = thread->worker;
	int error;

	if (state->mallocs[at]) {
		if (content_check(state->mallocs[at], worker->page_bytes, pages,
			    worker->key ^ state->malloc_content[at]) >= 0)
			violation("worker %u: wrong content in an allocation of %u pages", worker->slot, pages);
		error = gpool_free_async(worker->pool, state->mallocs[at], 0);
		state->mallocs[at] = 0;
	} else {
		pages = state->malloc_pages[at] = 1 + chance_below(&thread->random, MALLOC_PAGES);
		error = gpool_malloc_async(worker->pool, pages * worker->page_bytes, 0, &state->mallocs[at]);
		if (!error) {
			state->malloc_content[at] = chance(&thread->random);
			content_write(
				state->mallocs[at], worker->page_bytes, pages, worker->key ^ state->malloc_content[at]);
		} else {
			state->mallocs[at] = 0;
		}
	}
	if (error && error != -ENOSPC)
		call_refuse(thread->worker, "gpool_malloc_async() or gpool_free_async()", error);
	COUNT(mallocs, 1);
}

static void do_range(struct thread *thread)
{
	struct ranges_state *state = thread->ranges;
	uint32_t first = chance_below(&thread->random, RANGE_PAGES), most = RANGE_PAGES - first;
	uint32_t count = 1 + chance_below(&thread->random, most < RANGE_RUN ? most : RANGE_RUN);
	uint32_t what = chance_below(&thread->random, 20);

	if (state->fenced_count && what < 4) {
		range_fence_reach(thread, state);
		return;
	}
	/* Skip pages that wait for a fence: the result would not be predictable. */
	if (state->fenced_count && first < state->fenced_first + state->fenced_count &&
		state->fenced_first < first + count)
		return;
	if (what >= 16) {
		range_share(thread, state, first);
		return;
	}
	/* The other steps expect pages that are not OBJECT. */
	for (uint32_t page = first; page < first + count && what < 14; page++)
		if (state->page[page] == PAGE_OBJECT)
			return;
	if (what < 7)
		range_commit(thread, state, first, count);
	else if (what < 10)
		range_offer(thread, state, first, count, false);
	else if (what < 11)
		range_offer(thread, state, first, count, true);
	else if (what < 14)
		range_reclaim(thread, state, first, count);
	else
		range_malloc(thread, state);
}

static int ranges_begin(struct thread *thread)
{
	int error;

	thread->ranges = calloc(1, sizeof(*thread->ranges));
	if (!thread->ranges)
		return -ENOMEM;
	error = gpool_stream_open(thread->worker->pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &thread->ranges->stream);
	if (!error)
		error = gpool_range_reserve(thread->worker->pool, RANGE_PAGES, NULL, &thread->ranges->range);
	return error ? error : gpool_range_address(thread->ranges->range, &thread->ranges->address);
}

/* Delete the objects that the workers have left; return false if that is not possible. */
static bool objects_delete(struct stress_agent *agent)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_options options = harness_options(&agent->harness);
	struct gpool *admin;
	uint32_t cursor = 0;
	int error;

	options.flags = GPOOL_OPEN_ADMIN;
	options.timeout_ms = STRESS_PATIENCE_MS;
	error = gpool_open(&options, &admin);
	while (!error && !gpool_object_next(admin, &cursor, &info))
		error = info.state == GPOOL_OBJECT_CURRENT ? gpool_object_delete(admin, info.name, info.version) : 0;
	if (error)
		printf("cannot delete the objects that remain: %s\n", gpool_strerror(error));
	else
		gpool_close(admin);
	return !error;
}

static void ranges_end(struct thread *thread)
{
	if (thread->ranges->fenced_count)
		range_fence_reach(thread, thread->ranges);
	for (uint32_t page = 0; page < RANGE_PAGES; page++)
		if (thread->ranges->page[page] == PAGE_OBJECT)
			shared_unmap(thread, thread->ranges, page, false);
	free(thread->ranges);
}

#endif
