/* map_print.c - print the page table as a map that fits the terminal, with a legend. */
#include "shm/plural.h"
#include "tools/poolctl/map.h"
#include "tools/poolctl/view.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
	LINES_MOST = 32, /* fits on a screen together with the legend */
	MARGIN = 10,     /* the number of the line's first page, and blanks */
	CELLS_STEP = 8,  /* the number of cells per line is a multiple of this */
};

struct layout {
	uint32_t cells; /* per line */
	uint32_t per_cell;
};

static struct layout layout_make(const struct pages_view *view)
{
	uint32_t columns = terminal_columns(), room = columns > MARGIN + CELLS_STEP ? columns - MARGIN : CELLS_STEP;
	struct layout layout = {.cells = room / CELLS_STEP * CELLS_STEP};

	layout.per_cell = map_per_cell(view->count, layout.cells * LINES_MOST);
	return layout;
}

/* Return the kind of the cell whose first page is this page of the view. */
static uint32_t cell_kind(const struct pages_view *view, const uint8_t *kinds, const struct layout *layout, uint32_t at)
{
	return map_cell(&kinds[at], view->count - at < layout->per_cell ? view->count - at : layout->per_cell);
}

static void kinds_count(const struct pages_view *view, const uint8_t *kinds, uint32_t counts[MAP_KINDS])
{
	for (uint32_t kind = 0; kind < MAP_KINDS; kind++)
		counts[kind] = 0;
	for (uint32_t i = 0; i < view->count; i++)
		counts[kinds[i]]++;
}

static void legend_print(const struct command *command, const struct pages_view *view, const uint8_t *kinds)
{
	struct table *table = table_create(" |>PAGES|>SIZE|>SHARE|KIND");
	uint32_t counts[MAP_KINDS];

	kinds_count(view, kinds, counts);
	for (uint32_t kind = 0; kind < MAP_KINDS; kind++) {
		if (!counts[kind])
			continue;
		table_cell_color(table, map_color(kind), "%c", map_mark(kind));
		table_cell(table, "%" PRIu32, counts[kind]);
		table_cell(table, "%s", bytes_text(counts[kind] * view->page_bytes).text);
		table_cell(table, "%s", percent_text(counts[kind], view->count).text);
		table_cell(table, "%s", map_name(kind).text);
	}
	table_print(command, table);
	table_destroy(table);
}

void map_print(const struct command *command, const struct pages_view *view, const uint8_t *kinds)
{
	struct layout layout = layout_make(view);

	print(command,
		"pool '%s': pages %" PRIu32 "-%" PRIu32 " of %" PRIu32 ", %s each; a letter represents %" PRIu32
		" page%s\n\n",
		view->pool, view->first, view->first + view->count - 1, view->page_count,
		bytes_text(view->page_bytes).text, layout.per_cell, plural(layout.per_cell));
	for (uint32_t at = 0; at < view->count;) {
		print(command, "%8" PRIu32 "  ", view->first + at);
		for (uint32_t cell = 0; cell < layout.cells && at < view->count; cell++, at += layout.per_cell) {
			uint32_t kind = cell_kind(view, kinds, &layout, at);

			print(command, "%s%c%s", color_code(command, map_color(kind)), map_mark(kind),
				map_color(kind) ? color_code(command, COLOR_NONE) : "");
		}
		print(command, "\n");
	}
	print(command, "\n");
	legend_print(command, view, kinds);
}

void map_json(const struct command *command, const struct pages_view *view, const uint8_t *kinds)
{
	cJSON *document = json_document("map"), *legend;
	struct layout layout = layout_make(view);
	char *cells = memory_or_exit(calloc(view->count / layout.per_cell + 2, 1));
	uint32_t counts[MAP_KINDS];

	for (uint32_t at = 0, cell = 0; at < view->count; at += layout.per_cell)
		cells[cell++] = map_mark(cell_kind(view, kinds, &layout, at));
	json_bool(document, "offline", command->offline);
	json_text(document, "pool", view->pool);
	json_number(document, "page_bytes", view->page_bytes);
	json_number(document, "page_count", view->page_count);
	json_number(document, "first", view->first);
	json_number(document, "count", view->count);
	json_number(document, "pages_per_cell", layout.per_cell);
	json_text(document, "cells", cells);
	legend = json_array(document, "legend");
	kinds_count(view, kinds, counts);
	for (uint32_t kind = 0; kind < MAP_KINDS; kind++) {
		char mark[] = {map_mark(kind), '\0'};
		cJSON *to;

		if (!counts[kind])
			continue;
		to = json_item(legend);
		json_text(to, "mark", mark);
		json_text(to, "name", map_name(kind).text);
		json_number(to, "pages", counts[kind]);
	}
	json_print(command, document, false);
	free(cells);
}
