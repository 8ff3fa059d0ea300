/* map.c - the letter for the kind of a page, and the kind shown for a cell of several pages. */
#include "tools/poolctl/map.h"

#include "tools/poolctl/view.h"

#include "shm/page_map.h"

#include <stdio.h>

static const struct {
	char mark;
	enum color color;
	const char *name;
} kinds_alone[MAP_BLOCK] = {
	[MAP_FREE] = {'.', COLOR_NONE, "free"},
	[MAP_RESERVED] = {'R', COLOR_DIM, "reserved"},
	[MAP_IDLE] = {'-', COLOR_GREEN, "idle"},
	[MAP_MOVING] = {'~', COLOR_GREEN, "in transit"},
	[MAP_OBJECT] = {'o', COLOR_YELLOW, "named objects"},
	[MAP_RESERVATION] = {'+', COLOR_YELLOW, "in reservations"},
	[MAP_QUARANTINED] = {'q', COLOR_RED, "quarantined"},
	[MAP_RETIRED] = {'x', COLOR_DIM, "retired"},
	[MAP_HIDDEN] = {' ', COLOR_NONE, "not selected"},
};

/* The first letter of each usage; upper case if the block is pinned. */
static const char content_marks[GPOOL_USAGE_COUNT] = {'k', 'l', 't', 'a', 'g'};

char map_mark(uint32_t kind)
{
	if (kind < MAP_BLOCK)
		return kinds_alone[kind].mark;
	return (char)(content_marks[(kind - MAP_BLOCK) / 2] - ((kind - MAP_BLOCK) % 2 ? 'a' - 'A' : 0));
}

enum color map_color(uint32_t kind)
{
	if (kind < MAP_BLOCK)
		return kinds_alone[kind].color;
	return (kind - MAP_BLOCK) % 2 ? COLOR_RED : COLOR_YELLOW;
}

struct text map_name(uint32_t kind)
{
	struct text text;

	if (kind < MAP_BLOCK)
		snprintf(text.text, sizeof(text.text), "%s", kinds_alone[kind].name);
	else
		snprintf(text.text, sizeof(text.text), "%s, %s", usage_name((kind - MAP_BLOCK) / 2),
			(kind - MAP_BLOCK) % 2 ? "pinned" : "unpinned");
	return text;
}

/* Return the kind of a block. A newer agent may report an unknown usage. */
static uint32_t block_kind(uint32_t usage, bool pinned)
{
	return usage < GPOOL_USAGE_COUNT ? MAP_BLOCK + 2 * usage + pinned : MAP_MOVING;
}

uint32_t map_kind_of(const struct msg_page_entry *page)
{
	static const uint8_t kinds[PAGE_STATES] = {
		[PAGE_FREE] = MAP_FREE,
		[PAGE_LEASED] = MAP_MOVING,
		[PAGE_SHARED] = MAP_OBJECT,
		[PAGE_EVICTING] = MAP_MOVING,
		[PAGE_MOVING] = MAP_MOVING,
		[PAGE_QUARANTINED] = MAP_QUARANTINED,
		[PAGE_RESERVED] = MAP_RESERVED,
		[PAGE_RETIRED] = MAP_RETIRED,
	};

	if (page->state == PAGE_LEASED && (page->use == PAGE_USE_HEAD || page->use == PAGE_USE_INSIDE))
		return block_kind(page->usage, page->pins != 0);
	if (page->state == PAGE_LEASED && page->use == PAGE_USE_RESERVATION)
		return MAP_RESERVATION;
	if (page->state == PAGE_LEASED && page->use != PAGE_USE_NONE)
		return MAP_IDLE;
	return page->state < PAGE_STATES ? kinds[page->state] : MAP_RETIRED;
}

uint32_t map_kind_of_number(uint32_t number)
{
	/* in the order of proto/messages.def */
	static const uint8_t kinds[] = {MAP_FREE, MAP_RESERVED, MAP_IDLE, MAP_QUARANTINED, MAP_MOVING, MAP_RETIRED,
		MAP_OBJECT, MAP_OBJECT, MAP_RESERVATION};
	enum { BLOCKS = 16 };

	if (number >= BLOCKS)
		return block_kind((number - BLOCKS) / 2, number % 2);
	return number < sizeof(kinds) ? kinds[number] : MAP_MOVING;
}

uint32_t map_per_cell(uint32_t pages, uint32_t cells)
{
	return cells && pages > cells ? (pages + cells - 1) / cells : 1;
}

uint32_t map_cell(const uint8_t *kinds, uint32_t count)
{
	uint32_t counts[MAP_KINDS] = {0}, most = kinds[0];

	for (uint32_t i = 0; i < count; i++)
		counts[kinds[i]]++;
	for (uint32_t kind = 0; kind < MAP_KINDS; kind++)
		if (counts[kind] > counts[most])
			most = kind;
	return most;
}
