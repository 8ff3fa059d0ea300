/* sink.c - write the images of a part to its pages, and let the GPU expand forms in int8. */
#include "client/lora/load/sink.h"

#include "client/core/alloc.h"
#include "client/core/stream.h"
#include "client/lora/format/int8_form.h"

#include <stdlib.h>
#include <string.h>

static struct gpool *pool_of(const struct sink *sink)
{
	return sink->loader->lora->pool;
}

struct sink sink_begin(struct lora_loader *loader, const struct lora_load *load)
{
	return (struct sink){
		.loader = loader, .load = load, .base = load->base, .page_bytes = loader->lora->pool->page_bytes};
}

/* ---- the stage ---- */

static uint8_t *stage_page(const struct sink *sink)
{
	return sink->loader->stage + sink->count % LORA_STAGE_PAGES * sink->page_bytes;
}

/* Return the next page of the stage when its last copy has ended, or NULL if the GPU failed. */
static void *stage_next(const struct sink *sink)
{
	if (sink->count >= LORA_STAGE_PAGES &&
		gpool_fence_wait(pool_of(sink), sink->fences[sink->count % LORA_STAGE_PAGES], -1))
		return NULL;
	return stage_page(sink);
}

/* Record a fence after the work that reads this page of the stage. */
static int stage_used(struct sink *sink)
{
	int error =
		gpool_fence_record(pool_of(sink), sink->loader->stream, &sink->fences[sink->count % LORA_STAGE_PAGES]);

	sink->unfenced = error != 0;
	sink->count += !error;
	return error;
}

/* ---- images that the CPU makes ---- */

/* Return true if the page is stored as a tail. */
static bool is_tail(const struct sink *sink, uint32_t page)
{
	return sink->load->tail.count && page == sink->load->adapter->layout.header->pages - 1;
}

/* Copy the runs from the image of the last page to their places. */
static int tail_put(const struct sink *sink, const uint8_t *image)
{
	const struct tail *tail = &sink->load->tail;
	int error = 0;

	for (const struct tail_piece *piece = tail->pieces; piece < tail->pieces + tail_runs(tail) && !error; piece++)
		if (sink->loader->stage)
			error = gpool_copy(pool_of(sink), sink->loader->stream, piece->address,
				(uintptr_t)image + piece->offset, piece->bytes);
		else
			memcpy((void *)(uintptr_t)piece->address, image + piece->offset, piece->bytes);
	return error;
}

void *sink_image(struct sink *sink, uint32_t page)
{
	if (is_tail(sink, page) && !sink->loader->stage) {
		if (!sink->tail)
			sink->tail = malloc(sink->page_bytes);
		return sink->tail;
	}
	return sink->loader->stage ? stage_next(sink) : (void *)(uintptr_t)(sink->base + page * sink->page_bytes);
}

int sink_put(struct sink *sink, uint32_t page)
{
	int error, used;

	if (!sink->loader->stage)
		return is_tail(sink, page) ? tail_put(sink, sink->tail) : 0;
	if (!is_tail(sink, page)) {
		error = gpool_copy(pool_of(sink), sink->loader->stream, sink->base + page * sink->page_bytes,
			(uintptr_t)stage_page(sink), sink->page_bytes);
		return error ? error : stage_used(sink);
	}
	error = tail_put(sink, stage_page(sink));
	/* Some pieces may have been queued. */
	used = stage_used(sink);
	return error ? error : used;
}

/* ---- forms that the GPU expands ---- */

static void cpu_expands(struct gpool_lora *lora, const char *why)
{
	if (!atomic_exchange(&lora->cpu_expands, true))
		pool_log(lora->pool, POOL_LOG_WARNING, "the CPU expands adapters in int8, not the GPU: %s", why);
}

/*
 * Allocate the page for forms. One page is enough, because the stream executes the copies and kernels in order. The
 * page is freed with the part, so that loads that wait for their turn hold none.
 */
static bool room_alloc(struct sink *sink)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool *pool = pool_of(sink);

	options.usage = GPOOL_USAGE_TEMP_BUFFER;
	options.flags = alloc_flags(sink->load);
	/* The address of a block that is pinned is known. */
	sink->no_room = alloc_own(pool, 1, &options, BLOCK_RANGE, &sink->room) ||
		gpool_address(pool, &sink->room, &sink->room_address);
	return !sink->no_room;
}

bool sink_expands(struct sink *sink, uint32_t page)
{
	struct gpool_lora *lora = sink->loader->lora;

	if (!sink->loader->stage || is_tail(sink, page) || sink->no_room || atomic_load(&lora->cpu_expands))
		return false;
	if (!(lora->pool->capabilities & GPU_CAP_KERNELS)) {
		cpu_expands(lora, "gpool was built without GPU kernels");
		return false;
	}
	return sink->room_address || room_alloc(sink);
}

void *sink_form(struct sink *sink)
{
	return stage_next(sink);
}

int sink_expand(struct sink *sink, uint32_t page)
{
	const struct adapter_layout *layout = &sink->load->adapter->layout;
	uint64_t used = cold_page_bytes(layout, COLD_PLAIN, page), to = sink->base + page * sink->page_bytes;
	uint32_t stream = sink->loader->stream, rows = (uint32_t)(used / ADAPTER_ROW_BYTES);
	const struct quantise_args args = {
		.values = to,
		.codes = sink->room_address,
		.scales = sink->room_address + (uint64_t)rows * ADAPTER_TILE_COLUMNS,
		.rows = rows,
		.columns = ADAPTER_TILE_COLUMNS,
		.element = layout->header->element,
	};
	struct gpool *pool = pool_of(sink);
	int error, launched, fenced;

	error = gpool_copy(pool, stream, sink->room_address, (uintptr_t)stage_page(sink), int8_form_bytes(rows));
	if (error)
		return error;
	launched = stream_kernel(pool, stream, STREAM_DEQUANTISE, &args);
	if (launched && !pool_gpu_failed(pool))
		cpu_expands(sink->loader->lora, gpool_last_error(launched));
	if (!launched && used < sink->page_bytes)
		error = gpool_fill(pool, stream, to + used, 0, sink->page_bytes - used);
	/* The stage is read even if the kernel was not launched. */
	fenced = stage_used(sink);
	return error ? error : fenced ? fenced : launched != 0;
}

/* ---- the end ---- */

int sink_end(struct sink *sink, int error)
{
	struct gpool *pool = pool_of(sink);
	int late = sink->unfenced ? stage_used(sink) : 0;

	if (!late && sink->count)
		late = gpool_fence_wait(pool, sink->fences[(sink->count - 1) % LORA_STAGE_PAGES], -1);
	/* After a failed wait, queued work may still use the page. It is freed when the process ends. */
	if (sink->room_address && !late)
		gpool_free(pool, &sink->room);
	free(sink->tail);
	return error ? error : late;
}
