/* place.c - the addresses of an open adapter's tiles in this process. */
#include "client/lora/load/tails_pack.h"
#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "client/core/span.h"
#include "client/core/stream.h"
#include "client/object/object.h"
#include "cuda/kernels/lora.h"
#include "shm/timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table of runs ---- */

static uint64_t run_at(const struct adapter_layout *layout, uint64_t base, const struct tail *tail, uint32_t run)
{
	const struct adapter_run *at = &layout->runs[run];
	const struct tail_piece *piece = tail_piece_of(tail, run);

	return piece ? piece->address : base + (uint64_t)at->page * layout->header->page_bytes + at->offset;
}

static int table_alloc(struct gpool *pool, uint64_t bytes, uint32_t flags, struct lora_runs *runs)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	int error;

	runs->is_span = bytes <= pool->page_bytes / 2;
	if (runs->is_span) {
		error = span_alloc(pool, bytes, GPOOL_USAGE_LORA_WEIGHT, flags, &runs->span);
		runs->address = error ? 0 : runs->span.address;
		return error;
	}
	options.usage = GPOOL_USAGE_LORA_WEIGHT;
	options.flags = flags;
	error = alloc_own(pool, (uint32_t)((bytes + pool->page_bytes - 1) / pool->page_bytes), &options, BLOCK_RANGE,
		&runs->block);
	if (!error)
		error = gpool_address(pool, &runs->block, &runs->address);
	return error;
}

static void table_fill(const struct adapter_layout *layout, uint64_t base, const struct tail *tail, uint32_t begin,
	uint32_t count, uint64_t *to)
{
	for (uint32_t i = 0; i < count; i++)
		to[i] = run_at(layout, base, tail, begin + i);
}

/* Copy the table to the device through the stage, piece by piece. */
static int table_write(struct lora_loader *loader, const struct adapter_layout *layout, uint64_t base,
	const struct tail *tail, uint64_t table)
{
	struct gpool *pool = loader->lora->pool;
	uint32_t count = layout->header->runs,
		 room = (uint32_t)(LORA_STAGE_PAGES * pool->page_bytes / sizeof(uint64_t));
	int error = 0;

	if (!loader->stage) {
		table_fill(layout, base, tail, 0, count, (uint64_t *)(uintptr_t)table);
		return 0;
	}
	for (uint32_t begin = 0; begin < count && !error; begin += room) {
		uint32_t part = count - begin < room ? count - begin : room;
		struct gpool_fence fence;
		int late;

		table_fill(layout, base, tail, begin, part, (uint64_t *)(void *)loader->stage);
		error = gpool_copy(pool, loader->stream, table + begin * sizeof(uint64_t), (uintptr_t)loader->stage,
			part * sizeof(uint64_t));
		if (error)
			break;
		/* The copy must end before the stage or the table is used again, even if it is to be dropped. */
		error = gpool_fence_record(pool, loader->stream, &fence);
		late = error ? gpool_fence_record(pool, loader->stream, &fence) : 0;
		if (!late)
			late = gpool_fence_wait(pool, fence, -1);
		error = error ? error : late;
	}
	return error;
}

int runs_make(struct lora_loader *loader, const struct adapter_layout *layout, uint64_t base, const struct tail *tail,
	uint32_t flags, struct lora_runs *runs)
{
	const struct tail_piece *table = tail_table(tail);
	int error = 0;

	if (!tail_table_bytes(layout))
		return 0;
	if (table)
		*runs = (struct lora_runs){.address = table->address, .in_tail = true};
	else
		error = table_alloc(loader->lora->pool, tail_table_bytes(layout), flags, runs);
	if (!error)
		error = table_write(loader, layout, base, tail, runs->address);
	if (error && !pool_gpu_failed(loader->lora->pool)) /* otherwise queued copies may still write to it */
		runs_free(loader->lora, runs);
	return error;
}

void runs_free(struct gpool_lora *lora, struct lora_runs *runs)
{
	if (!runs->address)
		return;
	if (runs->is_span)
		gpool_span_free(lora->pool, &runs->span);
	else if (!runs->in_tail)
		gpool_free(lora->pool, &runs->block);
	*runs = (struct lora_runs){0};
}

/* ---- GPU work that uses an adapter ---- */

int entry_use(struct gpool_lora *lora, struct lora_entry *entry, struct gpool_fence fence)
{
	struct lora_use *use = entry->uses;
	int error = fence_check(lora->pool, fence);

	if (error)
		return error;
	/* Of the fences of a stream, keep only the latest. */
	while (use && fence_slot(use->fence.value) != fence_slot(fence.value))
		use = use->next;
	if (!use) {
		use = malloc(sizeof(*use));
		if (!use)
			return -ENOMEM;
		*use = (struct lora_use){.next = entry->uses};
		entry->uses = use;
	}
	if (fence.value > use->fence.value)
		use->fence = fence;
	return 0;
}

bool entry_is_used(struct gpool_lora *lora, struct lora_entry *entry)
{
	while (entry->uses) {
		struct lora_use *use = entry->uses;
		int done = gpool_fence_done(lora->pool, use->fence);

		/* -EIO: the GPU that executes the work has failed, and may still use the adapter */
		if (!done || done == -EIO)
			return true;
		entry->uses = use->next;
		free(use);
	}
	return false;
}

int entry_pin(struct gpool_lora *lora, const struct lora_entry *entry)
{
	int error = likely(entry->object != NULL) ? gpool_object_pin(entry->object) : 0;

	if (error || likely(!entry->tail.count))
		return error;
	error = tail_pin(&lora->tails, lora->pool, &entry->tail);
	if (error && entry->object)
		gpool_object_unpin(entry->object);
	return error;
}

int entry_unpin(struct gpool_lora *lora, const struct lora_entry *entry, struct gpool_fence fence)
{
	int error = 0;

	if (likely(entry->object != NULL))
		error = fence.value ? gpool_object_unpin_after(entry->object, fence)
				    : gpool_object_unpin(entry->object);
	if (!error)
		tail_unpin(lora->pool, &entry->tail, fence);
	return error;
}

/* Free the tail, or leave this to the thread that is moving it. */
static void tail_close(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (!entry->tail.count)
		return;
	if (lora->moving == entry) {
		lora->moving = NULL;
		entry->tail = (struct tail){0};
	} else {
		tail_free(&lora->tails, lora->pool, &entry->tail, NULL);
	}
	tails_freed(lora);
}

bool entry_is_gone(const struct gpool_lora *lora, const struct lora_entry *entry)
{
	return (entry->object && object_is_gone(entry->object)) || tail_is_gone(lora->pool, &entry->tail);
}

int entry_close(struct gpool_lora *lora, struct lora_entry *entry)
{
	int error = entry_is_used(lora, entry) ? -EBUSY : gpool_object_close(entry->object);

	if (error)
		return error;
	entry->object = NULL;
	tail_close(lora, entry);
	runs_free(lora, &entry->runs);
	if (entry->load_state != LOAD_COLD)
		load_set_state(lora, entry, LOAD_COLD);
	return 0;
}

/* ---- targets, modules and layers ---- */

int target_find(const struct adapter_layout *layout, const char *target)
{
	uint32_t low = 0, high = layout->header->targets;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(target, layout->names + layout->targets[middle].offset);

		if (!order)
			return (int)middle;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return -1;
}

const struct adapter_module *module_find(const struct adapter_layout *layout, uint32_t layer, int target)
{
	uint32_t low = 0, high = layout->header->modules;

	while (target >= 0 && low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct adapter_module *module = &layout->modules[middle];

		if (module->layer == layer && module->target == (uint32_t)target)
			return module;
		if (layer < module->layer || (layer == module->layer && (uint32_t)target < module->target))
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

static struct gpool_lora_matrix matrix_of(
	const struct lora_entry *entry, const struct adapter_matrix *matrix, uint32_t columns)
{
	bool more = adapter_matrix_runs(matrix, adapter_tiles(columns)) > 1;

	return (struct gpool_lora_matrix){
		.first = run_at(&entry->adapter->layout, entry->base, &entry->tail, matrix->first),
		.more = more ? entry->runs.address + (matrix->first + 1) * sizeof(uint64_t) : 0,
		.head_tiles = matrix->head_tiles,
		.run_tiles = matrix->run_tiles,
	};
}

struct gpool_lora_weights part_of(const struct lora_entry *entry, const struct adapter_module *module)
{
	return (struct gpool_lora_weights){
		.a = matrix_of(entry, &module->a, module->in),
		.b = matrix_of(entry, &module->b, module->out),
		.rank = module->rank,
		.scale = module->scale,
	};
}

static_assert(sizeof(struct gpool_lora_matrix) == sizeof(struct lora_matrix) &&
		sizeof(struct gpool_lora_weights) == sizeof(struct lora_adapter) &&
		offsetof(struct gpool_lora_matrix, head_tiles) == offsetof(struct lora_matrix, head_tiles) &&
		offsetof(struct gpool_lora_weights, scale) == offsetof(struct lora_adapter, scale),
	"what the kernels take");

/* Pages are packed in the order of the layers, so a layer needs the pages up to a certain one. */
uint32_t layer_pages(const struct adapter_layout *layout, int32_t layer)
{
	uint32_t low = 0, high = layout->header->layers;

	if (layer < 0)
		return layout->header->pages;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (layout->layers[middle].layer <= (uint32_t)layer)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? layout->layers[low - 1].pages : 0;
}

bool layer_is_here(const struct lora_entry *entry, int32_t layer)
{
	return entry->state == GPOOL_LORA_RESIDENT ||
		(entry->load && layer_pages(&entry->adapter->layout, layer) <= entry->ready);
}
