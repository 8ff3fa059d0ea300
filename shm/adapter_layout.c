/*
 * adapter_layout.c - compute the parts of a layout, and check a layout.
 */
#include "shm/adapter_layout.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

uint64_t adapter_layout_bytes(const struct adapter_layout_header *header)
{
	return sizeof(*header) + header->layers * (uint64_t)sizeof(struct adapter_layer) +
		header->modules * (uint64_t)sizeof(struct adapter_module) +
		header->runs * (uint64_t)sizeof(struct adapter_run) +
		header->targets * (uint64_t)sizeof(struct adapter_target) + header->names_bytes;
}

struct adapter_layout adapter_layout_at(const void *base)
{
	struct adapter_layout layout = {.header = base};

	layout.layers = (const void *)(layout.header + 1);
	layout.modules = (const void *)(layout.layers + layout.header->layers);
	layout.runs = (const void *)(layout.modules + layout.header->modules);
	layout.targets = (const void *)(layout.runs + layout.header->runs);
	layout.names = (const void *)(layout.targets + layout.header->targets);
	return layout;
}

static bool header_holds(const struct adapter_layout_header *header, size_t bytes)
{
	uint32_t page_bytes = header->page_bytes;

	return header->bytes == bytes && header->element < ADAPTER_ELEMENTS && page_bytes >= ADAPTER_PAGE_BYTES_MIN &&
		page_bytes <= ADAPTER_PAGE_BYTES_MAX && !(page_bytes & (page_bytes - 1)) && header->pages >= 1 &&
		header->pages <= ADAPTER_BYTES_MAX / page_bytes && header->last_bytes >= 1 &&
		header->last_bytes <= page_bytes && header->layers >= 1 && header->layers <= ADAPTER_LAYERS_MAX + 1 &&
		header->modules >= header->layers && header->modules <= ADAPTER_MODULES_MAX && header->targets >= 1 &&
		header->targets <= header->modules && header->runs >= 2 * header->modules &&
		adapter_layout_bytes(header) == bytes;
}

static bool targets_hold(const struct adapter_layout *layout)
{
	const char *last = NULL;
	uint64_t at = 0;

	for (uint32_t i = 0; i < layout->header->targets; i++) {
		const struct adapter_target *target = &layout->targets[i];
		const char *name = layout->names + at;

		if (target->offset != at || target->bytes < 1 || target->bytes > ADAPTER_TARGET_BYTES_MAX ||
			at + target->bytes >= layout->header->names_bytes || name[target->bytes] ||
			memchr(name, 0, target->bytes) || (last && strcmp(last, name) >= 0))
			return false;
		last = name;
		at += target->bytes + 1;
	}
	return at == layout->header->names_bytes;
}

static bool module_holds(const struct adapter_module *module, uint32_t targets)
{
	return module->layer <= ADAPTER_NO_LAYER && module->target < targets && module->rank >= 1 &&
		module->rank <= ADAPTER_RANK_MAX && module->in >= 1 && module->in <= ADAPTER_FEATURES_MAX &&
		module->out >= 1 && module->out <= ADAPTER_FEATURES_MAX && isfinite(module->scale);
}

/* Check that each module belongs to a layer, and that layers and modules are sorted. */
static bool modules_hold(const struct adapter_layout *layout)
{
	const struct adapter_layout_header *header = layout->header;
	uint32_t next = 0, pages = 1;

	for (uint32_t i = 0; i < header->layers; i++) {
		const struct adapter_layer *layer = &layout->layers[i];

		if (layer->modules < 1 || layer->modules > header->modules - next || layer->pages < pages ||
			layer->pages > header->pages || layer->reserved || (i && layer->layer <= layer[-1].layer))
			return false;
		pages = layer->pages;
		for (uint32_t end = next + layer->modules, first = next; next < end; next++) {
			const struct adapter_module *module = &layout->modules[next];

			if (!module_holds(module, header->targets) || module->layer != layer->layer ||
				(next > first && module->target <= module[-1].target))
				return false;
		}
	}
	return next == header->modules && pages == header->pages;
}

/* The state of a check: the rows of the pages that are in use, one bit each, and the progress. */
struct taken {
	uint64_t *rows;
	uint32_t next_run; /* first run of the next matrix */
	uint32_t last_end; /* end of the used part of the last page */
};

/* Set `count` bits, beginning with `first`. Return false if one of them is already set. */
static bool rows_take(uint64_t *bits, uint64_t first, uint64_t count)
{
	while (count) {
		uint64_t shift = first % 64, some = count < 64 - shift ? count : 64 - shift;
		uint64_t mask = (some == 64 ? ~UINT64_C(0) : (UINT64_C(1) << some) - 1) << shift;

		if (bits[first / 64] & mask)
			return false;
		bits[first / 64] |= mask;
		first += some;
		count -= some;
	}
	return true;
}

/* Check that all tiles of a matrix are in pages below `pages`, and that no tile overlaps another one. */
static bool matrix_holds(const struct adapter_layout *layout, const struct adapter_matrix *matrix, uint32_t rank,
	uint32_t columns, uint32_t pages, struct taken *taken)
{
	const uint32_t tiles = adapter_tiles(columns), tile_bytes = adapter_tile_bytes(rank);
	const uint32_t page_bytes = layout->header->page_bytes;
	uint32_t runs;

	if (matrix->head_tiles < 1 || matrix->head_tiles > tiles || matrix->reserved ||
		matrix->first != taken->next_run || matrix->run_tiles > tiles - matrix->head_tiles ||
		(matrix->head_tiles < tiles && matrix->run_tiles < 1))
		return false;
	runs = adapter_matrix_runs(matrix, tiles);
	if (runs > layout->header->runs - taken->next_run)
		return false;
	for (uint32_t i = 0; i < runs; i++) {
		const struct adapter_run *run = &layout->runs[matrix->first + i];
		uint64_t bytes = (uint64_t)adapter_run_tiles(matrix, tiles, i) * tile_bytes;
		uint64_t row = ((uint64_t)run->page * page_bytes + run->offset) / ADAPTER_ROW_BYTES;

		if (run->page >= pages || run->offset % ADAPTER_ROW_BYTES || run->offset >= page_bytes ||
			bytes > page_bytes - run->offset || !rows_take(taken->rows, row, bytes / ADAPTER_ROW_BYTES))
			return false;
		if (run->page == layout->header->pages - 1 && run->offset + bytes > taken->last_end)
			taken->last_end = (uint32_t)(run->offset + bytes);
	}
	taken->next_run += runs;
	return true;
}

static int places_check(const struct adapter_layout *layout)
{
	const struct adapter_layout_header *header = layout->header;
	struct taken taken = {.rows = calloc(header->pages, header->page_bytes / ADAPTER_ROW_BYTES / 8)};
	const struct adapter_module *module = layout->modules;
	bool holds = true;

	if (!taken.rows)
		return -ENOMEM;
	for (uint32_t i = 0; i < header->layers && holds; i++)
		for (const struct adapter_module *end = module + layout->layers[i].modules; module < end && holds;
			module++)
			holds = matrix_holds(layout, &module->a, module->rank, module->in, layout->layers[i].pages,
					&taken) &&
				matrix_holds(
					layout, &module->b, module->rank, module->out, layout->layers[i].pages, &taken);
	free(taken.rows);
	return holds && taken.next_run == header->runs && taken.last_end == header->last_bytes ? 0 : -EBADMSG;
}

int adapter_layout_check(const void *base, size_t bytes, struct adapter_layout *layout)
{
	const struct adapter_layout_header *header = base;
	struct adapter_layout parts;
	int error;

	if (bytes < sizeof(*header) || bytes > ADAPTER_LAYOUT_BYTES_MAX || header->magic != ADAPTER_LAYOUT_MAGIC)
		return -EBADMSG;
	if (header->version != ADAPTER_LAYOUT_VERSION || header->header_bytes != sizeof(*header))
		return -EPROTO;
	if (!header_holds(header, bytes))
		return -EBADMSG;
	parts = adapter_layout_at(base);
	if (!targets_hold(&parts) || !modules_hold(&parts))
		return -EBADMSG;
	error = places_check(&parts);
	if (!error)
		*layout = parts;
	return error;
}
