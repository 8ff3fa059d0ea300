/*
 * top_draw.c - draw, from top to bottom, the agent, the pools, the selected pool in detail, its tenants, its clients,
 * its pages. The lists get a part of the screen and the map gets the rest. Lines that do not fit are omitted, so any
 * size works.
 */
#include "shm/plural.h"
#include "tools/poolctl/top.h"

#include "tools/poolctl/map.h"
#include "tools/poolctl/screen.h"
#include "tools/poolctl/shares.h"

#include "shm/pool_segment.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	LINE_BYTES = 512,
	NAME_COLUMNS = 20,
	MAP_LEAST = 3 /* lines of the map with its heading; with fewer lines, the map is omitted */
};

struct drawing {
	const struct top *top;
	const struct msg_pool_status *pool;
	uint32_t rows, columns;
	uint32_t row; /* the next row */
};

static void __attribute__((format(printf, 3, 4))) line(struct drawing *to, enum color color, const char *format, ...)
{
	char text[LINE_BYTES];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	screen_put(to->row++, 0, color, text, LINE_BYTES);
}

struct name {
	char text[NAME_COLUMNS * 5 + 1];
};

/* Return a name of any length in NAME_COLUMNS characters of up to 4 bytes each, padded with blanks. */
static struct name name_text(const char *name)
{
	struct name text;
	size_t bytes = 0;
	uint32_t columns = 0;

	while (name[bytes] && bytes < NAME_COLUMNS * 4) {
		bool begins = ((unsigned char)name[bytes] & 0xc0) != 0x80;

		if (begins && columns == NAME_COLUMNS)
			break;
		columns += begins;
		text.text[bytes] = name[bytes];
		bytes++;
	}
	for (; columns < NAME_COLUMNS; columns++)
		text.text[bytes++] = ' ';
	text.text[bytes] = '\0';
	return text;
}

static void heading_draw(struct drawing *to)
{
	const struct msg_status_reply *status = &to->top->status;
	time_t now = time(NULL);
	char clock[16] = "";
	struct tm tm;

	if (localtime_r(&now, &tm))
		strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	line(to, COLOR_DIM, "gpool  agent %" PRIu32 ", up %s  %s", status->agent_pid, age_text(status->uptime_ms).text,
		clock);
}

static void pools_draw(struct drawing *to)
{
	uint32_t column = 0;

	if (to->top->status.pools_count < 2)
		return;
	for (uint32_t i = 0; i < to->top->status.pools_count; i++) {
		const struct msg_pool_status *pool = &to->top->status.pools[i];

		screen_reverse(i == to->top->chosen);
		column = screen_put(to->row, column, pressure_color(pool->pressure), " ", 1);
		column = screen_put(to->row, column, pressure_color(pool->pressure), pool->name, LINE_BYTES);
		column = screen_put(to->row, column, pressure_color(pool->pressure), " ", 1);
		screen_reverse(false);
		column = screen_put(to->row, column, COLOR_NONE, " ", 1);
	}
	to->row++;
}

static void bar_draw(struct drawing *to, const struct share *shares)
{
	uint32_t cells = to->columns > 24 ? to->columns - 18 : 8, column;

	column = screen_put(to->row, 0, COLOR_NONE, "[", 1);
	for (uint32_t cell = 0; cell < cells; cell++) {
		const struct share *share = shares_at(shares, to->pool->page_count, cell, cells);

		column = screen_put(to->row, column, share->color, &share->mark, 1);
	}
	column = screen_put(to->row, column, COLOR_NONE, "] ", 2);
	column = screen_put(
		to->row, column, COLOR_NONE, percent_text(to->pool->leased_pages, to->pool->page_count).text, 16);
	screen_put(to->row++, column, COLOR_NONE, " leased", 7);
}

static void numbers_draw(struct drawing *to)
{
	const struct msg_pool_status *pool = to->pool;
	const struct top_rates *rates = &to->top->rates;
	struct share shares[SHARES];
	uint32_t column = 0;

	shares_fill(pool, shares);
	line(to, COLOR_BOLD, "pool '%s': %" PRIu32 " page%s of %s on %s", pool->name, pool->page_count,
		plural(pool->page_count), bytes_text(pool->page_size).text, pool->backend);
	line(to, pressure_color(pool->pressure), "pressure %s%s%s", pool_pressure_name(pool->pressure),
		pool->draining ? ", OUT OF SERVICE" : "", pool->mover_gone_ms ? ", NO MOVER" : "");
	bar_draw(to, shares);
	for (int i = 0; i < SHARES; i++) {
		char text[64];

		if (!shares[i].pages)
			continue;
		snprintf(text, sizeof(text), "%c %s %" PRIu32 "  ", shares[i].mark, shares[i].name, shares[i].pages);
		column = screen_put(to->row, column, shares[i].color, text, LINE_BYTES);
	}
	to->row++;
	line(to, COLOR_NONE,
		"per second: %.0f allocations, %.0f pages lent, %.0f evicted, %.0f refusals; requests waiting %" PRIu32,
		rates->allocations, rates->grants, rates->evicted_pages, rates->refusals, pool->waiters);
}

static void tenants_draw(struct drawing *to, uint32_t most)
{
	const struct msg_tenants_reply *tenants = &to->top->tenants;

	line(to, COLOR_DIM,
		"TENANT                  LEASED   NEEDED  OFFERED     IDLE  MINIMUM    LIMIT SESSIONS REFUSALS");
	for (uint32_t i = 0; i < tenants->tenants_count && i < most; i++) {
		const struct msg_tenant_entry *tenant = &tenants->tenants[i];

		line(to, COLOR_NONE,
			"%s  %8" PRIu32 " %8" PRIu32 " %8" PRIu32 " %8" PRIu32 " %8" PRIu32 " %8" PRIu32 " %8" PRIu32
			" %8" PRIu64,
			name_text(tenant->name).text, tenant->leased_pages, tenant->needed_pages, tenant->offered_pages,
			tenant->idle_pages, tenant->minimum_pages, tenant->limit_pages, tenant->sessions,
			tenant->refusals);
	}
}

static void clients_draw(struct drawing *to, uint32_t most)
{
	const struct clients_view *clients = &to->top->clients;

	line(to, COLOR_DIM, "CLIENT by %-7s       LEASED   NEEDED  OFFERED     IDLE      PID  TENANT",
		top_order_names[to->top->order]);
	for (uint32_t i = to->top->scrolled; i < clients->count && i - to->top->scrolled < most; i++) {
		const struct msg_client_entry *client = &clients->clients[i];

		line(to,
			client->state          ? COLOR_RED
				: client->kind ? COLOR_DIM
					       : COLOR_NONE,
			"%s  %8" PRIu32 " %8" PRIu32 " %8" PRIu32 " %8" PRIu32 " %8" PRIu32 "  %s",
			name_text(client->name[0] ? client->name : session_kind_name(client->kind)).text,
			client->leased_pages, client->needed_pages, client->offered_pages, client->idle_pages,
			client->pid, client->tenant);
	}
}

static void map_draw(struct drawing *to, uint32_t lines)
{
	const struct top *top = to->top;
	uint32_t per_cell = map_per_cell(top->kind_count, to->columns * lines);

	line(to, COLOR_DIM, "PAGES PER LETTER %" PRIu32, per_cell);
	for (uint32_t at = 0, column = 0; at < top->kind_count; at += per_cell) {
		uint32_t kind =
			map_cell(&top->kinds[at], top->kind_count - at < per_cell ? top->kind_count - at : per_cell);
		char mark = map_mark(kind);

		screen_put(to->row, column, map_color(kind), &mark, 1);
		if (++column == to->columns) {
			column = 0;
			to->row++;
		}
	}
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The tenants get at most a quarter of the space below the numbers, and the clients half of the rest. */
static void lists_draw(struct drawing *to)
{
	uint32_t end = to->rows - 1, room = end > to->row ? end - to->row : 0;
	uint32_t tenants = least(to->top->tenants.tenants_count, room / 4), clients;

	if (room < 2)
		return;
	tenants_draw(to, tenants ? tenants : 1);
	room = end > to->row ? end - to->row : 0;
	clients = least(to->top->clients.count - to->top->scrolled, room / 2);
	if (room < 2)
		return;
	clients_draw(to, clients ? clients : 1);
	room = end > to->row ? end - to->row : 0;
	if (room >= MAP_LEAST)
		map_draw(to, room - 1);
}

static void help_draw(struct drawing *to)
{
	static const char *const keys[] = {
		"left, right, Tab   select the pool",
		"s                  change the order of the clients",
		"up, down           scroll the clients",
		"r                  refresh the display",
		"h                  show or hide this help",
		"q                  quit",
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		line(to, COLOR_NONE, "%s", keys[i]);
	to->row++;
	for (uint32_t kind = 0; kind < MAP_HIDDEN; kind++)
		line(to, map_color(kind), "%c  %s", map_mark(kind), map_name(kind).text);
	for (uint32_t usage = 0; usage < GPOOL_USAGE_COUNT; usage++)
		line(to, COLOR_YELLOW, "%c  %s; %c if pinned", map_mark(MAP_BLOCK + 2 * usage), usage_name(usage),
			map_mark(MAP_BLOCK + 2 * usage + 1));
}

void top_draw(const struct top *top)
{
	struct drawing to = {.top = top, .pool = &top->status.pools[top->chosen]};

	screen_clear();
	screen_size(&to.rows, &to.columns);
	heading_draw(&to);
	if (top->help) {
		help_draw(&to);
	} else {
		pools_draw(&to);
		numbers_draw(&to);
		lists_draw(&to);
	}
	/* the last line; on a small screen it overwrites other content */
	to.row = to.rows - 1;
	screen_reverse(top->trouble[0]);
	if (top->trouble[0])
		line(&to, COLOR_RED, "%s", top->trouble);
	else
		line(&to, COLOR_DIM, "q: quit, h: help, s: sort%s",
			top->status.pools_count > 1 ? ", Tab: next pool" : "");
	screen_reverse(false);
	screen_show();
}
