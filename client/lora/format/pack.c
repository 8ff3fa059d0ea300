/* pack.c - assign tiles to pages, and create the layout. */
#include "client/lora/format/pack.h"

#include "shm/plural.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)PEFT_NO_LAYER == (int)ADAPTER_NO_LAYER && (int)PEFT_RANK_MAX == (int)ADAPTER_RANK_MAX &&
		(int)PEFT_FEATURES_MAX == (int)ADAPTER_FEATURES_MAX &&
		(int)PEFT_MODULES_MAX == (int)ADAPTER_MODULES_MAX,
	"what is read can be packed");

/* The maximum number of remembered gaps at the ends of pages. Chosen: more than a layer leaves. */
enum { GAPS_MAX = 64 };

/* A matrix that is being assigned. */
struct item {
	uint32_t module;
	uint32_t is_b;
	uint32_t tiles, tile_bytes;
};

struct plan {
	uint32_t page_bytes;
	uint32_t page, at; /* position of the next tile; page_bytes: the next tile begins a new page */
	struct adapter_run gaps[GAPS_MAX];
	uint32_t gap_count;
	struct adapter_run *runs; /* in the order in which they were assigned */
	uint32_t run_count, run_room;
	struct adapter_matrix (*matrices)[2]; /* of each module: A and B */
	struct adapter_layer *layers;
	uint32_t layer_count;
	const char **targets; /* sorted */
	uint32_t target_count;
	uint64_t names_bytes;
};

/* ---- gaps and pages ---- */

static uint32_t gap_bytes(const struct plan *plan, const struct adapter_run *gap)
{
	return plan->page_bytes - gap->offset;
}

/* Remember the rest of a page as a gap. If too many gaps exist, drop the smallest one. */
static void gap_add(struct plan *plan, uint32_t page, uint32_t offset)
{
	struct adapter_run *least = plan->gaps;

	if (offset == plan->page_bytes)
		return;
	if (plan->gap_count < GAPS_MAX) {
		plan->gaps[plan->gap_count++] = (struct adapter_run){page, offset};
		return;
	}
	for (uint32_t i = 1; i < GAPS_MAX; i++)
		if (gap_bytes(plan, &plan->gaps[i]) < gap_bytes(plan, least))
			least = &plan->gaps[i];
	if (least->offset > offset)
		*least = (struct adapter_run){page, offset};
}

/* Return the gap of which the matrix leaves the smallest rest, or NULL. */
static struct adapter_run *gap_find(struct plan *plan, const struct item *item)
{
	struct adapter_run *best = NULL;
	uint32_t best_left = UINT32_MAX;

	for (uint32_t i = 0; i < plan->gap_count; i++) {
		uint32_t bytes = gap_bytes(plan, &plan->gaps[i]), tiles = bytes / item->tile_bytes, left;

		left = bytes - (tiles < item->tiles ? tiles : item->tiles) * item->tile_bytes;
		if (tiles && left < best_left) {
			best = &plan->gaps[i];
			best_left = left;
		}
	}
	return best;
}

static int run_add(struct plan *plan, struct adapter_run run)
{
	if (plan->run_count == plan->run_room) {
		uint32_t room = plan->run_room ? plan->run_room * 2 : 256;
		struct adapter_run *runs = realloc(plan->runs, room * sizeof(*runs));

		if (!runs)
			return -ENOMEM;
		plan->runs = runs;
		plan->run_room = room;
	}
	plan->runs[plan->run_count++] = run;
	return 0;
}

/* Assign as many of the tiles as fit in a gap, or in the open page. Return: their number, or -ENOMEM. */
static int64_t gap_take(struct plan *plan, struct adapter_run *gap, const struct item *item, uint32_t tiles)
{
	uint32_t most = gap_bytes(plan, gap) / item->tile_bytes, some = tiles < most ? tiles : most;
	struct adapter_run run = *gap;

	gap->offset += some * item->tile_bytes;
	if (gap->offset == plan->page_bytes)
		*gap = plan->gaps[--plan->gap_count];
	return run_add(plan, run) ? -ENOMEM : (int64_t)some;
}

static int64_t page_take(struct plan *plan, const struct item *item, uint32_t tiles)
{
	uint32_t most, some;
	struct adapter_run run;

	if (plan->page_bytes - plan->at < item->tile_bytes) {
		gap_add(plan, plan->page++, plan->at);
		plan->at = 0;
	}
	most = (plan->page_bytes - plan->at) / item->tile_bytes;
	some = tiles < most ? tiles : most;
	run = (struct adapter_run){plan->page, plan->at};
	plan->at += some * item->tile_bytes;
	return run_add(plan, run) ? -ENOMEM : (int64_t)some;
}

/*
 * Return the gap for a part of the matrix, or NULL. All runs after the first one must have the same length, except the
 * last. If the first run is in a gap, there may therefore be at most two more, of any length: in the open page and in
 * the next page, without complete pages between them.
 */
static struct adapter_run *gap_for(struct plan *plan, const struct item *item)
{
	uint32_t open = (plan->page_bytes - plan->at) / item->tile_bytes, page = plan->page_bytes / item->tile_bytes,
		 some;
	struct adapter_run *gap = gap_find(plan, item);

	if (!gap)
		return NULL;
	some = gap_bytes(plan, gap) / item->tile_bytes;
	return item->tiles <= some || item->tiles - some <= open + page ? gap : NULL;
}

static int item_place(struct plan *plan, const struct item *item)
{
	struct adapter_matrix *matrix = &plan->matrices[item->module][item->is_b];
	struct adapter_run *gap = gap_for(plan, item);
	uint32_t left = item->tiles, runs = 0;
	int64_t some, before = 0;

	*matrix = (struct adapter_matrix){.first = plan->run_count};
	for (; left; left -= (uint32_t)some, runs++) {
		some = gap && !runs ? gap_take(plan, gap, item, left) : page_take(plan, item, left);
		if (some < 0)
			return (int)some;
		if (runs == 0)
			matrix->head_tiles = (uint32_t)some;
		else if (runs == 1)
			matrix->run_tiles = (uint32_t)some;
		else if (some > before) { /* after a run in a gap: the longer of the other two runs must be first */
			struct adapter_run shorter = plan->runs[plan->run_count - 2];

			plan->runs[plan->run_count - 2] = plan->runs[plan->run_count - 1];
			plan->runs[plan->run_count - 1] = shorter;
			matrix->run_tiles = (uint32_t)some;
		}
		before = some;
	}
	return 0;
}

/* ---- layers ---- */

static int by_tile(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->tile_bytes != y->tile_bytes)
		return x->tile_bytes > y->tile_bytes ? -1 : 1;
	if (x->module != y->module)
		return x->module < y->module ? -1 : 1;
	return (x->is_b > y->is_b) - (x->is_b < y->is_b);
}

/* Place the matrices of one layer, whose modules begin with `first`. Return: 0, -ENOMEM. */
static int layer_place(struct plan *plan, const struct peft *peft, uint32_t first, struct item *items)
{
	struct adapter_layer *layer = &plan->layers[plan->layer_count++];
	uint32_t count = 0, placed = plan->run_count;
	int error = 0;

	*layer = (struct adapter_layer){
		.layer = peft->modules[first].layer, .pages = plan->layer_count > 1 ? layer[-1].pages : 1};
	for (uint32_t i = first; i < peft->count && peft->modules[i].layer == layer->layer; i++) {
		const struct peft_module *module = &peft->modules[i];
		uint32_t tile_bytes = adapter_tile_bytes(module->rank);

		items[count++] = (struct item){i, 0, adapter_tiles(module->in), tile_bytes};
		items[count++] = (struct item){i, 1, adapter_tiles(module->out), tile_bytes};
	}
	layer->modules = count / 2;
	qsort(items, count, sizeof(*items), by_tile);
	for (uint32_t i = 0; i < count && !error; i++)
		error = item_place(plan, &items[i]);
	for (; placed < plan->run_count; placed++)
		if (plan->runs[placed].page >= layer->pages)
			layer->pages = plan->runs[placed].page + 1;
	return error;
}

static int layers_place(struct plan *plan, const struct peft *peft)
{
	struct item *items = calloc(peft->count, 2 * sizeof(*items));
	int error = items ? 0 : -ENOMEM;

	for (uint32_t first = 0; first < peft->count && !error; first += plan->layers[plan->layer_count - 1].modules)
		error = layer_place(plan, peft, first, items);
	free(items);
	return error;
}

/* ---- the layout ---- */

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Collect the different targets, sorted. */
static void targets_collect(struct plan *plan, const struct peft *peft)
{
	for (uint32_t i = 0; i < peft->count; i++)
		plan->targets[i] = peft->modules[i].target;
	qsort(plan->targets, peft->count, sizeof(*plan->targets), by_text);
	for (uint32_t i = 0; i < peft->count; i++)
		if (!i || strcmp(plan->targets[i], plan->targets[plan->target_count - 1]) != 0)
			plan->targets[plan->target_count++] = plan->targets[i];
	for (uint32_t i = 0; i < plan->target_count; i++)
		plan->names_bytes += strlen(plan->targets[i]) + 1;
}

static uint32_t target_index(const struct plan *plan, const char *name)
{
	const char **found = bsearch(&name, plan->targets, plan->target_count, sizeof(*plan->targets), by_text);

	return (uint32_t)(found - plan->targets);
}

/* Copy the runs of a matrix to their position in the layout. */
static struct adapter_matrix matrix_write(
	const struct plan *plan, struct adapter_matrix matrix, uint32_t tiles, struct adapter_run *runs, uint32_t *next)
{
	uint32_t count = adapter_matrix_runs(&matrix, tiles);

	memcpy(runs + *next, plan->runs + matrix.first, count * sizeof(*runs));
	matrix.first = *next;
	*next += count;
	return matrix;
}

static void modules_write(
	const struct plan *plan, const struct peft *peft, struct adapter_module *modules, struct adapter_run *runs)
{
	uint32_t next = 0;

	for (uint32_t i = 0; i < peft->count; i++) {
		const struct peft_module *from = &peft->modules[i];

		modules[i] = (struct adapter_module){.layer = from->layer,
			.target = target_index(plan, from->target),
			.rank = from->rank,
			.in = from->in,
			.out = from->out,
			.scale = (float)from->scale};
		modules[i].a = matrix_write(plan, plan->matrices[i][0], adapter_tiles(from->in), runs, &next);
		modules[i].b = matrix_write(plan, plan->matrices[i][1], adapter_tiles(from->out), runs, &next);
	}
}

static void targets_write(const struct plan *plan, struct adapter_target *targets, char *names)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < plan->target_count; i++) {
		targets[i] = (struct adapter_target){at, (uint32_t)strlen(plan->targets[i])};
		memcpy(names + at, plan->targets[i], targets[i].bytes + 1);
		at += targets[i].bytes + 1;
	}
}

static int size_check(uint64_t bytes, struct reason *reason)
{
	if (bytes > ADAPTER_BYTES_MAX)
		return refuse(reason, "adapter: the pages have %" PRIu64 " byte%s; the limit is %" PRIu64, bytes,
			plural(bytes), ADAPTER_BYTES_MAX);
	return 0;
}

static int layout_write(const struct plan *plan, const struct peft *peft, enum adapter_element element,
	struct adapter_layout *layout, struct reason *reason)
{
	struct adapter_layout_header header = {.magic = ADAPTER_LAYOUT_MAGIC,
		.version = ADAPTER_LAYOUT_VERSION,
		.header_bytes = sizeof(header),
		.element = element,
		.page_bytes = plan->page_bytes,
		.pages = plan->page + 1,
		.last_bytes = plan->at,
		.layers = plan->layer_count,
		.modules = peft->count,
		.runs = plan->run_count,
		.targets = plan->target_count,
		.names_bytes = (uint32_t)plan->names_bytes};
	uint64_t bytes = adapter_layout_bytes(&header);
	struct adapter_layout_header *made;
	int error = size_check((uint64_t)header.pages * header.page_bytes, reason);

	if (error)
		return error;
	if (bytes > ADAPTER_LAYOUT_BYTES_MAX)
		return refuse(reason,
			"adapter: the layout of %u module%s in %u place%s has %" PRIu64 " byte%s; the limit is %d",
			peft->count, plural(peft->count), plan->run_count, plural(plan->run_count), bytes,
			plural(bytes), ADAPTER_LAYOUT_BYTES_MAX);
	header.bytes = (uint32_t)bytes;
	made = malloc(bytes);
	if (!made)
		return -ENOMEM;
	*made = header;
	*layout = adapter_layout_at(made);
	memcpy((void *)(uintptr_t)layout->layers, plan->layers, plan->layer_count * sizeof(*plan->layers));
	modules_write(plan, peft, (void *)(uintptr_t)layout->modules, (void *)(uintptr_t)layout->runs);
	targets_write(plan, (void *)(uintptr_t)layout->targets, (char *)(uintptr_t)layout->names);
	return 0;
}

int pack_make(const struct peft *peft, uint32_t page_bytes, enum adapter_element element, struct adapter_layout *layout,
	struct reason *reason)
{
	struct plan plan = {.page_bytes = page_bytes};
	uint64_t bytes = 0;
	int error;

	for (const struct peft_module *module = peft->modules; module < peft->modules + peft->count; module++)
		bytes += (uint64_t)adapter_tile_bytes(module->rank) *
			(adapter_tiles(module->in) + adapter_tiles(module->out));
	error = size_check(bytes, reason);
	if (error)
		return error;
	plan.matrices = calloc(peft->count, sizeof(*plan.matrices));
	plan.layers = calloc(peft->count, sizeof(*plan.layers));
	plan.targets = calloc(peft->count, sizeof(*plan.targets));
	error = plan.matrices && plan.layers && plan.targets ? layers_place(&plan, peft) : -ENOMEM;
	if (!error) {
		targets_collect(&plan, peft);
		error = layout_write(&plan, peft, element, layout, reason);
	}
	free(plan.runs);
	free(plan.matrices);
	free(plan.layers);
	free(plan.targets);
	return error;
}

void pack_free(struct adapter_layout *layout)
{
	free((void *)(uintptr_t)layout->header);
	*layout = (struct adapter_layout){0};
}

enum adapter_element pack_element(const struct peft *peft)
{
	for (uint32_t i = 0; i < peft->count; i++)
		if (peft->modules[i].a.type != SAFETENSORS_F16 || peft->modules[i].b.type != SAFETENSORS_F16)
			return ADAPTER_BF16;
	return ADAPTER_F16;
}

struct pack_use pack_use_of(const struct adapter_layout *layout)
{
	const struct adapter_layout_header *header = layout->header;
	struct pack_use use = {.last = header->page_bytes - header->last_bytes};
	uint64_t tiles = 0;

	for (const struct adapter_module *module = layout->modules; module < layout->modules + header->modules;
		module++) {
		use.weights += 2 * (uint64_t)module->rank * ((uint64_t)module->in + module->out);
		tiles += (uint64_t)adapter_tile_bytes(module->rank) *
			(adapter_tiles(module->in) + adapter_tiles(module->out));
	}
	use.columns = tiles - use.weights;
	use.ends = (uint64_t)header->pages * header->page_bytes - tiles - use.last;
	return use;
}
