/* output.c - tables with aligned columns, units, and JSON through cJSON. */
#include "tools/poolctl/output.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { TABLE_COLUMNS_MAX = 24, CELL_BYTES_MAX = 512 };

struct cell {
	char *text;
	enum color color;
};

struct table {
	uint32_t columns;
	bool right[TABLE_COLUMNS_MAX];
	struct cell *cells; /* the first row has the headings */
	size_t cell_count, cell_capacity;
};

void print(const struct command *command, const char *format, ...)
{
	va_list arguments;

	if (command->quiet)
		return;
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
}

const char *color_code(const struct command *command, enum color color)
{
	static const char *const codes[COLOR_COUNT] = {
		[COLOR_NONE] = "\033[0m",
		[COLOR_GREEN] = "\033[32m",
		[COLOR_YELLOW] = "\033[33m",
		[COLOR_RED] = "\033[31m",
		[COLOR_DIM] = "\033[2m",
		[COLOR_BOLD] = "\033[1m",
	};

	return command->color ? codes[color] : "";
}

uint32_t terminal_columns(void)
{
	struct winsize size;

	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

/* Count characters, not bytes: names may be any UTF-8 text; the codec has checked that they are valid. */
static uint32_t text_width(const char *text)
{
	uint32_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static void cell_add(struct table *table, enum color color, const char *text)
{
	if (table->cell_count == table->cell_capacity) {
		table->cell_capacity = table->cell_capacity ? table->cell_capacity * 2 : 256;
		table->cells = memory_or_exit(realloc(table->cells, table->cell_capacity * sizeof(*table->cells)));
	}
	table->cells[table->cell_count++] = (struct cell){.text = memory_or_exit(strdup(text)), .color = color};
}

struct table *table_create(const char *columns)
{
	struct table *table = memory_or_exit(calloc(1, sizeof(*table)));
	char *headings = memory_or_exit(strdup(columns)), *rest = headings;

	for (char *heading = strsep(&rest, "|"); heading && table->columns < TABLE_COLUMNS_MAX;
		heading = strsep(&rest, "|")) {
		table->right[table->columns++] = heading[0] == '>';
		cell_add(table, COLOR_DIM, heading[0] == '>' ? heading + 1 : heading);
	}
	free(headings);
	return table;
}

void table_destroy(struct table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->cell_count; i++)
		free(table->cells[i].text);
	free(table->cells);
	free(table);
}

void table_cell(struct table *table, const char *format, ...)
{
	char text[CELL_BYTES_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	cell_add(table, COLOR_NONE, text);
}

void table_cell_color(struct table *table, enum color color, const char *format, ...)
{
	char text[CELL_BYTES_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	cell_add(table, color, text);
}

static void row_print(
	const struct command *command, const struct table *table, const struct cell *cells, const uint32_t *widths)
{
	for (uint32_t column = 0; column < table->columns; column++) {
		uint32_t pad = widths[column] - text_width(cells[column].text);
		bool last = column + 1 == table->columns;

		if (table->right[column])
			printf("%*s", (int)pad, "");
		if (cells[column].color)
			fputs(color_code(command, cells[column].color), stdout);
		fputs(cells[column].text, stdout);
		if (cells[column].color)
			fputs(color_code(command, COLOR_NONE), stdout);
		if (!table->right[column] && !last)
			printf("%*s", (int)pad, "");
		fputs(last ? "\n" : "  ", stdout);
	}
}

void domain_cell(struct table *table, uint32_t domain, const char *name)
{
	if (name[0])
		table_cell(table, "%s", name);
	else if (domain)
		table_cell(table, "#%" PRIu32, domain);
	else
		table_cell(table, "-");
}

void table_print(const struct command *command, const struct table *table)
{
	uint32_t widths[TABLE_COLUMNS_MAX] = {0};

	if (command->quiet)
		return;
	for (size_t i = 0; i < table->cell_count; i++) {
		uint32_t width = text_width(table->cells[i].text);

		if (width > widths[i % table->columns])
			widths[i % table->columns] = width;
	}
	for (size_t i = 0; i + table->columns <= table->cell_count; i += table->columns)
		row_print(command, table, &table->cells[i], widths);
}

static struct text __attribute__((format(printf, 1, 2))) text_make(const char *format, ...)
{
	struct text text;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text.text, sizeof(text.text), format, arguments);
	va_end(arguments);
	return text;
}

struct text bytes_text(uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	uint32_t unit = 0;
	double value = (double)bytes;

	while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1024;
		unit++;
	}
	/* print one decimal if it is significant */
	if (value >= 100 || value == (double)(uint64_t)value)
		return text_make("%.0f %s", value, units[unit]);
	return text_make("%.1f %s", value, units[unit]);
}

struct text age_text(uint64_t ms)
{
	uint64_t seconds = ms / 1000;

	if (ms < 1000)
		return text_make("%" PRIu64 " ms", ms);
	if (seconds < 60)
		return text_make("%" PRIu64 ".%" PRIu64 " s", seconds, ms % 1000 / 100);
	if (seconds < 3600)
		return text_make("%" PRIu64 " m %" PRIu64 " s", seconds / 60, seconds % 60);
	if (seconds < 86400)
		return text_make("%" PRIu64 " h %" PRIu64 " m", seconds / 3600, seconds / 60 % 60);
	return text_make("%" PRIu64 " d %" PRIu64 " h", seconds / 86400, seconds / 3600 % 24);
}

struct text nanoseconds_text(uint64_t ns)
{
	if (ns < 10000)
		return text_make("%" PRIu64 " ns", ns);
	if (ns < 10000000)
		return text_make("%" PRIu64 " us", ns / 1000);
	return text_make("%" PRIu64 " ms", ns / 1000000);
}

struct text percent_text(uint64_t part, uint64_t whole)
{
	if (!whole)
		return text_make("-");
	return text_make("%.1f %%", 100.0 * (double)part / (double)whole);
}

struct text time_text(uint64_t time_ms)
{
	time_t seconds = (time_t)(time_ms / 1000);
	char text[40];
	struct tm tm;

	if (!localtime_r(&seconds, &tm) || !strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm))
		return text_make("%" PRIu64 " ms", time_ms);
	return text_make("%s.%03u", text, (unsigned)(time_ms % 1000));
}

void json_domain(cJSON *object, uint32_t domain, const char *name)
{
	if (name[0])
		json_text(object, "domain", name);
	else
		cJSON_AddNullToObject(object, "domain");
	json_number(object, "domain_number", domain);
}

void json_print(const struct command *command, cJSON *document, bool line)
{
	if (command->quiet)
		cJSON_Delete(document);
	else
		json_write(stdout, document, line);
	if (line)
		output_flush();
}

void print_done(const struct command *command, const char *verb, const char *text)
{
	cJSON *document;

	if (!command->json) {
		print(command, "%s\n", text);
		return;
	}
	document = json_document(verb);
	json_text(document, "text", text);
	json_print(command, document, false);
}
