/*
 * map.h - a pool's pages as a picture of letters: one cell for a number of pages, which shows what most of them are.
 */
#ifndef GPOOL_TOOLS_POOLCTL_MAP_H
#define GPOOL_TOOLS_POOLCTL_MAP_H

#include "tools/poolctl/output.h"

#include "client/gpool.h"
#include "proto/messages.h"

#include <stdint.h>

/* What a page is. Pages in blocks are MAP_BLOCK + 2 * content, one more when the block is pinned. */
enum map_kind {
	MAP_FREE,
	MAP_RESERVED,
	MAP_IDLE,   /* in its worker, in no block */
	MAP_MOVING, /* EVICTING or MOVING, or lent and on its way into a block or out of it */
	MAP_OBJECT,
	MAP_QUARANTINED,
	MAP_RETIRED,
	MAP_HIDDEN, /* not asked for */
	MAP_BLOCK,
	MAP_KINDS = MAP_BLOCK + 2 * GPOOL_USAGE_COUNT
};

char map_mark(uint32_t kind);
enum color map_color(uint32_t kind);
/* map_name() - for a legend. */
struct text map_name(uint32_t kind);

uint32_t map_kind_of(const struct msg_page_entry *page);
/* map_kind_of_number() - page_kind.kind as the agent says it. */
uint32_t map_kind_of_number(uint32_t number);

/* map_per_cell() - pages for each cell, so that `pages` need at most `cells`. */
uint32_t map_per_cell(uint32_t pages, uint32_t cells);
/*
 * map_cell() - the kind that most of these pages have, 1..count of them; the first one of several such. Cost: a look at
 * each.
 */
uint32_t map_cell(const uint8_t *kinds, uint32_t count);

/* map_print.c: map_print(), map_json() - kinds [view->count] of the pages of a view. */
struct pages_view;
void map_print(const struct command *command, const struct pages_view *view, const uint8_t *kinds);
void map_json(const struct command *command, const struct pages_view *view, const uint8_t *kinds);

#endif
