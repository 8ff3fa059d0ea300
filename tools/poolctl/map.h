/*
 * map.h - a pool's pages as a map of letters. Each cell is a number of pages, and shows the kind that most of them
 * have.
 */
#ifndef GPOOL_TOOLS_POOLCTL_MAP_H
#define GPOOL_TOOLS_POOLCTL_MAP_H

#include "tools/poolctl/output.h"

#include "client/gpool.h"
#include "proto/messages.h"

#include <stdint.h>

/* The kind of a page. Pages in blocks are MAP_BLOCK + 2 * usage, plus one if the block is pinned. */
enum map_kind {
	MAP_FREE,
	MAP_RESERVED,
	MAP_IDLE,   /* leased to a worker, but in no block */
	MAP_MOVING, /* EVICTING or MOVING, or leased and in transit */
	MAP_OBJECT,
	MAP_RESERVATION, /* in a reservation of a session, for other sessions of its tenant */
	MAP_QUARANTINED,
	MAP_RETIRED,
	MAP_HIDDEN, /* not selected */
	MAP_BLOCK,
	MAP_KINDS = MAP_BLOCK + 2 * GPOOL_USAGE_COUNT
};

char map_mark(uint32_t kind);
enum color map_color(uint32_t kind);
/* map_name() - return the name of a kind for the legend. */
struct text map_name(uint32_t kind);

uint32_t map_kind_of(const struct msg_page_entry *page);
/* map_kind_of_number() - convert page_kind.kind of the agent's reply to a kind. */
uint32_t map_kind_of_number(uint32_t number);

/* map_per_cell() - return the number of pages per cell, so that `pages` pages need at most `cells` cells. */
uint32_t map_per_cell(uint32_t pages, uint32_t cells);
/*
 * map_cell() - return the most frequent kind of `count` pages, at least 1; of equally frequent ones, the first. Cost:
 * reads every page's kind.
 */
uint32_t map_cell(const uint8_t *kinds, uint32_t count);

/* map_print.c: map_print(), map_json() - print kinds[view->count] of the pages of a view. */
struct pages_view;
void map_print(const struct command *command, const struct pages_view *view, const uint8_t *kinds);
void map_json(const struct command *command, const struct pages_view *view, const uint8_t *kinds);

#endif
