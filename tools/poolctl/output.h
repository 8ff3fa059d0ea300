/*
 * output.h - output as tables or as JSON. A table is filled cell by cell and printed at the end, when the widths of all
 * columns are known.
 */
#ifndef GPOOL_TOOLS_POOLCTL_OUTPUT_H
#define GPOOL_TOOLS_POOLCTL_OUTPUT_H

#include "tools/lib/json.h"
#include "tools/poolctl/poolctl.h"

#include <stddef.h>

enum color { COLOR_NONE, COLOR_GREEN, COLOR_YELLOW, COLOR_RED, COLOR_DIM, COLOR_BOLD, COLOR_COUNT };

/* ---- tables ---- */

struct table;

/*
 * table_create() - create a table. columns: headings separated by '|'; '>' before a heading aligns its column to the
 * right: "PAGES|>SIZE".
 */
struct table *table_create(const char *columns);
void table_destroy(struct table *table);
/* table_cell() - add a cell. Rows are filled from left to right; a full row is followed by a new one. */
void __attribute__((format(printf, 2, 3))) table_cell(struct table *table, const char *format, ...);
void __attribute__((format(printf, 3, 4)))
table_cell_color(struct table *table, enum color color, const char *format, ...);
/* domain_cell() - add a cell with the name of a trust domain, with its number if the name is empty, or with "-". */
void domain_cell(struct table *table, uint32_t domain, const char *name);
void table_print(const struct command *command, const struct table *table);

/* print() - print to standard output, unless --quiet. */
void __attribute__((format(printf, 2, 3))) print(const struct command *command, const char *format, ...);
/* color_code() - return the escape sequence that starts a color, or for COLOR_NONE ends it; "" if colors are off. */
const char *color_code(const struct command *command, enum color color);

/* terminal_columns() - return the width of standard output; 80 if it is not a terminal. */
uint32_t terminal_columns(void);

/* ---- units ---- */

struct text {
	char text[64];
};

struct text bytes_text(uint64_t bytes);    /* "1.5 GiB" */
struct text age_text(uint64_t ms);         /* "3 h 12 m" */
struct text nanoseconds_text(uint64_t ns); /* "12 us" */
struct text percent_text(uint64_t part, uint64_t whole);
struct text time_text(uint64_t time_ms); /* local wall clock, "2026-01-31 12:00:00.000" */

/* ---- JSON ---- */

/* json_domain() - add the name of a trust domain, or null if it is empty, and the domain's number. */
void json_domain(cJSON *object, uint32_t domain, const char *name);
/* json_print() - print the document indented, or with `line` on one line and flushed, and free it. */
void json_print(const struct command *command, cJSON *document, bool line);
/* print_done() - print the result of a command whose answer is a text, as text or JSON. */
void print_done(const struct command *command, const char *verb, const char *text);

#endif
