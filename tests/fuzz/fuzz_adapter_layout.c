/*
 * fuzz_adapter_layout.c - arbitrary bytes as the layout of an adapter, which engines read with its named object.
 *
 * Method: the input is copied to an allocation of its exact size, to detect overruns. It is checked twice: unchanged,
 * and with its counts adjusted to its length, to reach later checks. Checked: the tiles of an accepted layout are all
 * within its pages, and no two tiles overlap.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/adapter_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
	if (!condition)
		abort();
}

struct span {
	uint64_t begin, end;
};

static int by_begin(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

static uint64_t matrix_walk(const struct adapter_layout *layout, const struct adapter_matrix *matrix, uint32_t rank,
	uint32_t columns, struct span *spans)
{
	uint32_t tiles = adapter_tiles(columns), runs = adapter_matrix_runs(matrix, tiles), sum = 0;

	for (uint32_t i = 0; i < runs; i++) {
		const struct adapter_run *run = &layout->runs[matrix->first + i];
		uint64_t begin = (uint64_t)run->page * layout->header->page_bytes + run->offset;
		uint64_t bytes = (uint64_t)adapter_run_tiles(matrix, tiles, i) * adapter_tile_bytes(rank);

		demand(adapter_run_begin(matrix, i) == sum && bytes > 0);
		sum += adapter_run_tiles(matrix, tiles, i);
		demand(run->page < layout->header->pages && run->offset + bytes <= layout->header->page_bytes);
		spans[i] = (struct span){begin, begin + bytes};
	}
	demand(sum == tiles);
	return runs;
}

static void walk(const struct adapter_layout *layout)
{
	const struct adapter_layout_header *header = layout->header;
	struct span *spans = calloc(header->runs, sizeof(*spans));
	uint64_t count = 0;

	demand(spans != NULL);
	for (uint32_t i = 0; i < header->modules; i++) {
		const struct adapter_module *module = &layout->modules[i];
		const struct adapter_target *target = &layout->targets[module->target];

		demand(strlen(layout->names + target->offset) == target->bytes);
		count += matrix_walk(layout, &module->a, module->rank, module->in, spans + count);
		count += matrix_walk(layout, &module->b, module->rank, module->out, spans + count);
	}
	demand(count == header->runs);
	qsort(spans, count, sizeof(*spans), by_begin);
	for (uint64_t i = 1; i < count; i++)
		demand(spans[i - 1].end <= spans[i].begin);
	demand(spans[count - 1].end == (uint64_t)(header->pages - 1) * header->page_bytes + header->last_bytes);
	free(spans);
}

static void check(const uint8_t *bytes, size_t size)
{
	struct adapter_layout layout;
	int error = adapter_layout_check(bytes, size, &layout);

	demand(error == 0 || error == -EBADMSG || error == -EPROTO);
	if (!error)
		walk(&layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = malloc(size ? size : 1);
	struct adapter_layout_header *header = (struct adapter_layout_header *)(void *)bytes;

	demand(bytes != NULL);
	if (size)
		memcpy(bytes, data, size);
	check(bytes, size);
	if (size >= sizeof(*header)) {
		header->magic = ADAPTER_LAYOUT_MAGIC;
		header->version = ADAPTER_LAYOUT_VERSION;
		header->header_bytes = sizeof(*header);
		header->bytes = (uint32_t)size;
		header->page_bytes = ADAPTER_PAGE_BYTES_MIN << header->page_bytes % 4;
		header->modules = header->modules % 4 + 1;
		header->layers = header->layers % header->modules + 1;
		header->targets = header->targets % header->modules + 1;
		header->runs = 2 * header->modules + header->runs % 4;
		header->names_bytes = 0;
		if (adapter_layout_bytes(header) <= size)
			header->names_bytes = (uint32_t)(size - adapter_layout_bytes(header));
		check(bytes, size);
	}
	free(bytes);
	return 0;
}
