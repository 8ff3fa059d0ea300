/* picture.c - see picture.h. Unused address ranges between regions are omitted and marked by a thin line. */
#include "tools/replay/picture.h"

#include "tools/lib/chart.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	WIDTH = 1100,
	MAP_HEIGHT = 380,
	LINES_HEIGHT = 130,
	ROWS = MAP_HEIGHT - CHART_TOP - CHART_BOTTOM, /* one row per unit of height */
	BREAK_ROWS = 4,                               /* height of the mark of omitted addresses */
	AREAS_MAX = ROWS / BREAK_ROWS / 4,
	EMPTY = REGION_KINDS,
};

/*
 * Two hues that can be distinguished with all kinds of color vision. CSS variables are avoided because some SVG
 * viewers do not support them.
 */
static const char style[] =
	".allocated{fill:#2a6db5}.free{fill:#b9d3ec}.pending_unmap{fill:#e0812e}.hole{fill:#e2e2da}\n"
	".gap{stroke:#5c6068;stroke-width:1;stroke-dasharray:2 3}.area.mapped{fill:#b9d3ec}.area.live{fill:#2a6db5}\n"
	"@media(prefers-color-scheme:dark){.gap{stroke:#a3a7ae}\n"
	".allocated{fill:#5c9fe6}.free{fill:#254463}.pending_unmap{fill:#ec8f43}.hole{fill:#2b2d32}\n"
	".area.mapped{fill:#254463}.area.live{fill:#5c9fe6}}\n";

static const char *const kind_names[REGION_KINDS] = {"allocated", "free", "pending_unmap", "hole"};
static const char *const kind_texts[REGION_KINDS] = {"allocated", "free, available for allocations",
	"pending unmap, its pages were mapped elsewhere", "hole, no memory is mapped"};

/* A drawn range of addresses, and its first row. */
struct area {
	uint64_t begin, end;
	double row;
};

/* Columns [first, last) and rows [low, high) of one kind. */
struct patch {
	uint16_t first, last, low, high;
	uint8_t kind;
};

struct map {
	const struct samples *samples;
	struct area areas[AREAS_MAX];
	size_t area_count;
	uint64_t bytes; /* of all areas */
	double row_bytes;
	struct patch *patches;
	size_t patch_count;
};

/* ---- selecting addresses ---- */

static int compare_areas(const void *a, const void *b)
{
	const struct area *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

/*
 * Collect the regions of all samples, sorted, and merged if adjacent. Return: the number of areas, with *areas to be
 * freed, or -ENOMEM.
 */
static int64_t areas_collect(const struct samples *samples, struct area **areas)
{
	struct area *all = malloc((samples->region_count + 1) * sizeof(*all));
	size_t count = 0;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < samples->region_count; i++) {
		const struct sample_region *region = &samples->regions[i];

		all[i] = (struct area){.begin = region->address, .end = region->address + (region->bytes_kind >> 2)};
	}
	qsort(all, samples->region_count, sizeof(*all), compare_areas);
	for (size_t i = 0; i < samples->region_count; i++) {
		if (count && all[i].begin <= all[count - 1].end) {
			if (all[i].end > all[count - 1].end)
				all[count - 1].end = all[i].end;
		} else {
			all[count++] = all[i];
		}
	}
	*areas = all;
	return (int64_t)count;
}

/*
 * Merge areas that are separated by less than `gap`; the gap is then drawn as unused addresses. Return: the number of
 * areas.
 */
static size_t areas_join(struct area *areas, size_t count, uint64_t gap)
{
	size_t kept = 0;

	for (size_t i = 0; i < count; i++) {
		if (kept && areas[i].begin - areas[kept - 1].end < gap)
			areas[kept - 1].end = areas[i].end;
		else
			areas[kept++] = areas[i];
	}
	return kept;
}

static int map_scale(struct map *map)
{
	struct area *areas;
	int64_t collected = areas_collect(map->samples, &areas);
	size_t count = (size_t)collected;
	uint64_t bytes = 0;
	double row = 0;

	if (collected < 0)
		return (int)collected;
	for (size_t i = 0; i < count; i++)
		bytes += areas[i].end - areas[i].begin;
	/* Omit only large gaps; if there are too many, only the largest ones. */
	for (uint64_t gap = bytes / 64 + 1; count > AREAS_MAX || gap == bytes / 64 + 1; gap *= 2)
		count = areas_join(areas, count, gap);
	map->area_count = count;
	for (size_t i = 0; i < count; i++)
		map->bytes += areas[i].end - areas[i].begin;
	map->row_bytes = count ? (double)map->bytes / (double)(ROWS - BREAK_ROWS * (count - 1)) : 1;
	for (size_t i = 0; i < count; i++) {
		map->areas[i] = areas[i];
		map->areas[i].row = row;
		row += (double)(areas[i].end - areas[i].begin) / map->row_bytes + BREAK_ROWS;
	}
	free(areas);
	return 0;
}

static double row_of(const struct map *map, uint64_t address)
{
	size_t i = map->area_count - 1;

	while (i > 0 && address < map->areas[i].begin)
		i--;
	return map->areas[i].row + (double)(address - map->areas[i].begin) / map->row_bytes;
}

/* ---- columns ---- */

struct column {
	float shares[ROWS][REGION_KINDS]; /* shares of the kinds in each row */
	uint8_t kinds[ROWS];
};

static void column_add(struct column *column, double low, double high, enum region_kind kind)
{
	int first = (int)low, last = (int)high;

	for (int row = first; row <= last && row < ROWS; row++) {
		double from = row > low ? row : low, to = row + 1 < high ? row + 1 : high;

		if (to > from)
			column->shares[row][kind] += (float)(to - from);
	}
}

/* Assign to each row the kind of most of its bytes. */
static void column_settle(struct column *column)
{
	for (int row = 0; row < ROWS; row++) {
		float most = 0.02f; /* smaller shares are rounding errors of a neighbor */

		column->kinds[row] = EMPTY;
		for (uint8_t kind = 0; kind < REGION_KINDS; kind++)
			if (column->shares[row][kind] > most) {
				most = column->shares[row][kind];
				column->kinds[row] = kind;
			}
	}
}

static void column_make(const struct map *map, const struct sample *sample, struct column *column)
{
	memset(column->shares, 0, sizeof(column->shares));
	for (size_t i = 0; i < sample->count; i++) {
		const struct sample_region *region = &map->samples->regions[sample->first + i];
		double low = row_of(map, region->address);

		column_add(column, low, low + (double)(region->bytes_kind >> 2) / map->row_bytes,
			(enum region_kind)(region->bytes_kind & 3));
	}
	column_settle(column);
}

/*
 * Merge rows of one kind into patches, and extend equal patches of the previous column. open[row]: the patch that
 * begins at this row, plus 1.
 */
static void column_patch(struct map *map, const struct column *column, uint16_t at, uint32_t open[ROWS])
{
	for (uint16_t low = 0, high; low < ROWS; low = high) {
		struct patch *before = open[low] ? &map->patches[open[low] - 1] : NULL;
		uint8_t kind = column->kinds[low];

		for (high = low + 1; high < ROWS && column->kinds[high] == kind; high++)
			open[high] = 0;
		if (kind == EMPTY) {
			open[low] = 0;
		} else if (before && before->last == at && before->high == high && before->kind == kind) {
			before->last++;
		} else {
			map->patches[map->patch_count++] = (struct patch){at, at + 1, low, high, kind};
			open[low] = (uint32_t)map->patch_count;
		}
	}
}

static int map_make(struct map *map)
{
	struct column *column = malloc(sizeof(*column));
	uint32_t open[ROWS] = {0};
	int error;

	/* In the worst case, a patch begins in every second row of every column. */
	map->patches = malloc(map->samples->count * ROWS * sizeof(*map->patches));
	error = !column || !map->patches ? -ENOMEM : map_scale(map);
	for (size_t i = 0; i < map->samples->count && !error; i++) {
		column_make(map, &map->samples->list[i], column);
		column_patch(map, column, (uint16_t)i, open);
	}
	free(column);
	return error;
}

/* ---- drawing ---- */

/*
 * Return a column's position, in tenths as printed, so that neighbors meet. A sample is valid until the next one, and
 * the last one until the end.
 */
static long column_tenths(const struct chart *chart, const struct samples *samples, size_t column)
{
	double seconds = column < samples->count ? (double)samples->list[column].time_ns / 1e9 : chart->x_most;

	return lround(10 * chart_x(chart, seconds));
}

static void draw_patches(const struct chart *chart, const struct map *map, uint8_t kind)
{
	double bottom = chart->height - CHART_BOTTOM;
	bool any = false;

	for (size_t i = 0; i < map->patch_count; i++) {
		const struct patch *patch = &map->patches[i];
		long x = column_tenths(chart, map->samples, patch->first);
		long width = column_tenths(chart, map->samples, patch->last) - x;

		if (patch->kind != kind || width <= 0)
			continue;
		if (!any)
			fprintf(chart->out, "<path class=\"%s\" shape-rendering=\"crispEdges\" d=\"", kind_names[kind]);
		fprintf(chart->out, "M%.1f %.0fv-%dh%.1fv%dz", (double)x / 10, bottom - patch->low,
			patch->high - patch->low, (double)width / 10, patch->high - patch->low);
		any = true;
	}
	if (any)
		fprintf(chart->out, "\"><title>%s</title></path>\n", kind_texts[kind]);
}

/* Return a power of two, about a quarter of `most`. */
static double binary_step(double most)
{
	double step = 1;

	while (step * 5 < most)
		step *= 2;
	return step;
}

static void draw_map(FILE *out, const struct map *map, double seconds, double top)
{
	struct chart chart = {.out = out,
		.width = WIDTH,
		.height = MAP_HEIGHT,
		.x_most = seconds,
		.y_most = map->row_bytes * ROWS,
		.y_step = binary_step(map->row_bytes * ROWS),
		.y_text = text_bytes,
		.within = true,
		.top = top};
	char name[96], bytes[TEXT_BYTES];

	if (map->area_count)
		snprintf(name, sizeof(name), "addresses: %s from %#" PRIx64 " on%s", text_bytes(bytes, map->bytes),
			map->areas[0].begin, map->area_count > 1 ? ", wide gaps omitted" : "");
	else
		snprintf(name, sizeof(name), "addresses: none used");
	chart_begin(&chart, "use of addresses over time", name);
	for (uint8_t kind = REGION_KINDS; kind-- > 0;)
		draw_patches(&chart, map, kind);
	for (size_t i = 1; i < map->area_count; i++) {
		double y = chart.height - CHART_BOTTOM - map->areas[i].row + BREAK_ROWS / 2.0;

		fprintf(out, "<line class=\"gap\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", CHART_LEFT,
			chart.width - CHART_RIGHT, y, y);
	}
	chart_end(&chart, 0);
}

static void draw_lines(FILE *out, const struct samples *samples, double seconds, double most, double top)
{
	struct chart chart = {.out = out,
		.width = WIDTH,
		.height = LINES_HEIGHT,
		.x_most = seconds,
		.y_most = most,
		.y_step = binary_step(most * 2),
		.y_text = text_bytes,
		.within = true,
		.top = top};
	double x[2 * SAMPLES_MAX], mapped[2 * SAMPLES_MAX], live[2 * SAMPLES_MAX];
	struct chart_curve curve = {
		.css_class = "mapped", .title = "memory that the allocator has mapped", .x = x, .high = mapped};

	for (size_t i = 0; i < samples->count; i++) {
		/* Draw steps: a sample is valid until the next one. */
		x[2 * i] = (double)samples->list[i].time_ns / 1e9;
		x[2 * i + 1] = i + 1 < samples->count ? (double)samples->list[i + 1].time_ns / 1e9 : seconds;
		mapped[2 * i] = mapped[2 * i + 1] = (double)samples->list[i].mapped;
		live[2 * i] = live[2 * i + 1] = (double)samples->list[i].live;
	}
	curve.count = 2 * samples->count;
	chart_begin(&chart, "live and mapped bytes over time", "bytes: live and mapped");
	chart_area(&chart, &curve);
	curve.css_class = "live";
	curve.title = "live allocations";
	curve.high = live;
	chart_area(&chart, &curve);
	chart_end(&chart, 1);
}

static void draw_panel(
	FILE *out, const struct picture_panel *panel, const struct map *map, double seconds, double most, double top)
{
	chart_page_panel(out, top, "%s: %s", panel->allocator->name, panel->allocator->text);
	draw_map(out, map, seconds, top + CHART_PANEL_HEAD);
	draw_lines(out, panel->samples, seconds, most, top + CHART_PANEL_HEAD + MAP_HEIGHT - CHART_BOTTOM + 8);
}

int picture_draw(const void *context, FILE *out)
{
	const struct picture *picture = context;
	const struct result_frame *frame = picture->frame;
	double seconds = frame->trace->span_ns ? (double)frame->trace->span_ns / 1e9 : 1e-9, most = 1, x = CHART_LEFT;
	int panel_height = CHART_PANEL_HEAD + MAP_HEIGHT - CHART_BOTTOM + 8 + LINES_HEIGHT + 16, error = 0;
	char count[TEXT_BYTES], peak[TEXT_BYTES], pool[TEXT_BYTES], page[TEXT_BYTES];

	for (int i = 0; i < picture->count; i++) {
		const struct samples *samples = picture->panels[i].samples;

		if (samples->error)
			return samples->error;
		for (size_t s = 0; s < samples->count; s++)
			most = (double)samples->list[s].mapped > most ? (double)samples->list[s].mapped : most;
	}
	chart_page_begin(out, WIDTH, CHART_PAGE_HEAD + picture->count * panel_height, style, frame->trace_name,
		": %s allocations, at most %s live, in a pool of %s with pages of %s",
		text_count(count, frame->trace->mallocs), text_bytes(peak, frame->trace->peak_bytes),
		text_bytes(pool, frame->pool_bytes), text_bytes(page, frame->page_bytes));
	for (int kind = 0; kind < REGION_KINDS; kind++)
		chart_page_key(out, &x, true, kind_names[kind], kind_texts[kind]);
	for (int i = 0; i < picture->count && !error; i++) {
		struct map map = {.samples = picture->panels[i].samples};

		error = map_make(&map);
		if (!error)
			draw_panel(out, &picture->panels[i], &map, seconds, most, CHART_PAGE_HEAD + i * panel_height);
		free(map.patches);
	}
	return error;
}
