/*
 * vpmm_dump.c - print regions of the stream-ordered allocator and the steps of a call as text; check its invariants.
 * See vpmm.h.
 */
#include "client/vm/vpmm.h"
#include "client/core/last_error.h"
#include "shm/plural.h"
#include "shm/timeline.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- regions: copied under the lock, printed without it ---- */

struct line {
	uint64_t address, bytes, id, fence;
	uint32_t count, stream;
	uint8_t kind;
	bool moving, captured, guarded, reclaimable, ready, newest, ends_chunk;
};

struct lines {
	struct line *lines;
	size_t count;
	uint32_t slack_percent;
	uint64_t held, most; /* pages that are held, and up to which new pages are preferred */
};

static void line_fill(const struct vpmm *vpmm, const struct vm_region *region, struct line *line)
{
	*line = (struct line){
		.address = region_address(&vpmm->set, region),
		.count = region->count,
		.kind = region->kind,
		.moving = region->moving,
		.ends_chunk = !region->after,
	};
	if (region->kind == VM_HOLE)
		return;
	line->bytes = region->kind == VM_ALLOCATED ? region->bytes : 0;
	line->id = region->id;
	line->fence = region->fence;
	line->captured = region->captured;
	line->guarded = region->guarded;
	line->newest = region->kind == VM_ALLOCATED && region->id == vpmm->set.newest;
	line->ready = region->ready == VM_READY;
	line->reclaimable = region->kind == VM_FREE && region->slot == VM_RECLAIMABLE;
	if (region->kind == VM_ALLOCATED)
		line->stream = region->stream;
	else if (is_stream_slot(region->slot))
		line->stream = vpmm->numbers[region->slot];
}

static int lines_take(struct vpmm *vpmm, struct lines *lines)
{
	const struct region_set *set = &vpmm->set;
	uint64_t count = 0;

	*lines = (struct lines){.count = 0};
	for (;;) {
		vpmm_lock(vpmm);
		count = 0;
		for (int kind = 0; kind < VM_KINDS; kind++)
			count += set->counts[kind];
		if (count <= lines->count)
			break;
		vpmm_unlock(vpmm);
		free(lines->lines);
		/* Allocate more lines than needed, since other threads may add regions before the copy. */
		lines->count = count + count / 8 + 16;
		lines->lines = malloc(lines->count * sizeof(*lines->lines));
		if (!lines->lines)
			return -ENOMEM;
	}
	lines->count = 0;
	for (const struct region_chunk *chunk = region_chunk_next(set, NULL); chunk;
		chunk = region_chunk_next(set, chunk))
		for (const struct vm_region *region = chunk->lowest; region; region = region->after)
			line_fill(vpmm, region, &lines->lines[lines->count++]);
	lines->slack_percent = vpmm_slack_percent(vpmm);
	lines->most = vpmm_slack_most(vpmm, lines->slack_percent, set->pages[VM_ALLOCATED]);
	lines->held = vpmm_held(vpmm);
	vpmm_unlock(vpmm);
	return 0;
}

/* Return the sign of a region. The signs are those of VPMM, the allocator from which this one is derived. */
static const char *sign(const struct line *line)
{
	if (line->newest)
		return "+";
	switch (line->kind) {
	case VM_FREE: return "-";
	case VM_HOLE: return line->moving ? "#" : "*"; /* a call maps pages in the holes that it has taken out */
	case VM_PENDING_UNMAP: return "*";
	default: return "";
	}
}

static int short_tell(const struct lines *lines, void (*line)(void *context, const char *text), void *context)
{
	char *text = NULL;
	size_t length = 0;

	for (size_t i = 0; i < lines->count;) {
		FILE *stream = open_memstream(&text, &length);
		bool whole;

		if (!stream)
			return -ENOMEM;
		do
			fprintf(stream, "[%s%u]", sign(&lines->lines[i]), lines->lines[i].count);
		while (!lines->lines[i++].ends_chunk);
		whole = !ferror(stream);
		whole &= !fclose(stream);
		if (whole)
			line(context, text);
		free(text);
		if (!whole)
			return -ENOMEM;
	}
	return 0;
}

static void long_format(const struct line *line, char *text, size_t text_bytes)
{
	static const char *const kinds[VM_KINDS] = {"hole", "free", "allocated", "pending_unmap"};
	size_t length = (size_t)snprintf(text, text_bytes, "%#llx %u page%s %s", (unsigned long long)line->address,
		line->count, plural(line->count), line->reclaimable ? "reclaimable" : kinds[line->kind]);

	if (line->kind == VM_ALLOCATED)
		length += (size_t)snprintf(text + length, text_bytes - length, " %llu byte%s",
			(unsigned long long)line->bytes, plural(line->bytes));
	if (line->stream)
		length += (size_t)snprintf(text + length, text_bytes - length, " stream %u", line->stream);
	if (line->id)
		length +=
			(size_t)snprintf(text + length, text_bytes - length, " id %llu", (unsigned long long)line->id);
	if (line->fence)
		length += (size_t)snprintf(text + length, text_bytes - length, " fence %u:%llu%s",
			fence_slot(line->fence), (unsigned long long)(line->fence & FENCE_VALUE_MASK),
			line->ready ? " signaled" : "");
	else if (!line->ready)
		length += (size_t)snprintf(text + length, text_bytes - length, " unfenced");
	snprintf(text + length, text_bytes - length, "%s%s%s", line->captured ? " captured" : "",
		line->guarded ? " guarded" : "", line->moving ? " moving" : "");
}

int gpool_vm_dump(struct gpool *pool, void (*line)(void *context, const char *text), void *context)
{
	struct vpmm *vpmm;
	struct lines lines;
	char text[256];
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	vpmm = pool->vpmm;
	if (!atomic_load_explicit(&vpmm->started, memory_order_acquire))
		return 0;
	error = lines_take(vpmm, &lines);
	if (!error)
		error = short_tell(&lines, line, context);
	for (size_t i = 0; !error && i < lines.count; i++) {
		long_format(&lines.lines[i], text, sizeof(text));
		line(context, text);
	}
	if (!error) {
		snprintf(text, sizeof(text), "%llu page%s held; slack %u %%: new pages are preferred up to %llu",
			(unsigned long long)lines.held, plural(lines.held), lines.slack_percent,
			(unsigned long long)lines.most);
		line(context, text);
	}
	free(lines.lines);
	return error ? error : (int)lines.count;
}

/* ---- trace ---- */

void vpmm_trace(struct vpmm_call *call, const char *format, ...)
{
	size_t room = sizeof(call->trace) - call->traced;
	va_list arguments;
	int length;

	if (likely(!call->vpmm->options.trace) || room < 3)
		return;
	if (call->traced) {
		memcpy(call->trace + call->traced, "; ", 3);
		call->traced += 2;
		room -= 2;
	}
	va_start(arguments, format);
	length = vsnprintf(call->trace + call->traced, room, format, arguments);
	va_end(arguments);
	call->traced += (size_t)length < room ? (size_t)length : room - 1;
}

static void dump_log(void *context, const char *text)
{
	/* Log only the beginning of a long trace, since the length of log lines is limited. */
	pool_log(context, POOL_LOG_DEBUG, "vpmm: %.480s", text);
}

void vpmm_trace_end(struct vpmm_call *call, const char *what, int error, uint64_t address)
{
	struct vpmm *vpmm = call->vpmm;
	uint64_t calls = gpu_calls_total(vpmm->pool->gpu) - call->driver_calls;
	struct lines lines;

	if (vpmm->options.trace < 2 && !calls && !error)
		return;
	call->trace[call->traced] = '\0';
	pool_log(vpmm->pool, POOL_LOG_DEBUG,
		"vpmm: %s of %llu byte%s at %#llx in stream %u: %s%s%.300s; %llu driver call%s", what,
		(unsigned long long)call->bytes, plural(call->bytes), (unsigned long long)address, call->stream,
		error ? gpool_strerror(error) : "done", call->traced ? ": " : "", call->trace,
		(unsigned long long)calls, plural(calls));
	if (vpmm->options.trace < 3 || lines_take(vpmm, &lines))
		return;
	short_tell(&lines, dump_log, vpmm->pool);
	free(lines.lines);
}

/* ---- check ---- */

/* Check the mappings of a region that does not move. */
static bool mappings_fit(const struct vpmm *vpmm, const struct vm_region *region, uint8_t *seen)
{
	const struct vm_space *space = vpmm_space(region);
	uint32_t first = vpmm_region_slot(vpmm, region);

	if (region->moving || region->kind == VM_PENDING_UNMAP)
		return true;
	/* Check only the slots of a hole that were ever used. */
	for (uint32_t slot = first; slot < first + vpmm_region_slots(vpmm, region); slot++) {
		uint32_t page = space->pages[slot];

		if (region->kind == VM_HOLE && slot >= atomic_load_explicit(&space->slots_end, memory_order_relaxed))
			return true;
		if ((page == 0) != (region->kind == VM_HOLE))
			return false;
		/*
		 * A held handle must not be mapped elsewhere. Reclaimable or released handles are exempt: the agent may
		 * have taken them and leased their pages to this process again.
		 */
		if (region->kind != VM_HOLE && region->slot != VM_RECLAIMABLE && !vpmm_chunk_of(region)->tags[slot] &&
			seen[page - 1]++)
			return false;
	}
	return true;
}

uint32_t vpmm_check(struct gpool *pool, char *text, size_t text_bytes)
{
	struct vpmm *vpmm = pool->vpmm;
	const struct region_set *set = &vpmm->set;
	uint8_t *seen = calloc(pool->page_count, 1);
	uint32_t findings;

	if (!seen)
		return 0;
	vpmm_lock(vpmm);
	findings = region_check(set, text, text_bytes);
	for (const struct region_chunk *chunk = region_chunk_next(set, NULL); chunk;
		chunk = region_chunk_next(set, chunk))
		for (const struct vm_region *region = chunk->lowest; region; region = region->after)
			if (!mappings_fit(vpmm, region, seen) && !findings++)
				snprintf(text, text_bytes, "region %llu of %u page%s at page %u: wrong mappings",
					(unsigned long long)region->id, region->count, plural(region->count),
					region->first);
	vpmm_unlock(vpmm);
	free(seen);
	return findings;
}
