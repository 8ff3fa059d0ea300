#include "tools/bench/report.h"

#include "tools/lib/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct figure_text figure_texts[FIGURES] = {
#define FIGURE(group, name, unit, goal, text) {GROUP_##group, #name, unit, text, goal},
#include "tools/bench/figures.def"
};

const char *const group_names[GROUPS] = {
#define GROUP(name, runs, text) #name,
#include "tools/bench/figures.def"
};

int values_add(struct figure_values *values, double value)
{
	if (values->count == values->capacity) {
		size_t capacity = values->capacity ? 2 * values->capacity : 32;
		double *grown = realloc(values->values, capacity * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		values->values = grown;
		values->capacity = capacity;
	}
	values->values[values->count++] = value;
	return 0;
}

/* Return a description of the machine that is valid in a JSON string: printable, without quotes or backslashes. */
static const char *machine(void)
{
	static char text[384];

	if (text[0])
		return text;
	machine_describe(text, sizeof(text));
	for (char *at = text; *at; at++)
		if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
			*at = '?';
	return text;
}

static const char *number(double value, char text[32])
{
	int decimals = value < 0.1 ? 4 : value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;

	snprintf(text, 32, "%.*f", decimals, value);
	return text;
}

void report_begin(bool json, bool driver)
{
	if (json)
		return;
	printf("gpool-bench %s on %s\n\n", gpool_version(), machine());
	printf("%-28s %9s %9s %9s  %-6s %6s %5s  ", "bench", "median", "min", "max", "unit", "goal", "runs");
	if (driver)
		printf("%9s %9s  ", "run ms", "driver ms");
	puts("description");
}

void report_figure(bool json, bool driver, enum figure figure, struct figure_samples *samples)
{
	const struct figure_text *text = &figure_texts[figure];
	struct figure_values *values = &samples->values;
	char middle[32], low[32], high[32], goal[32] = "-", run[32] = "-", calls[32] = "-";
	double of_all = median(values->values, values->count); /* sorts */

	number(of_all, middle);
	number(values->values[0], low);
	number(values->values[values->count - 1], high);
	if (text->goal > 0)
		snprintf(goal, sizeof(goal), "%g", text->goal);
	if (driver) {
		number(median(samples->run.values, samples->run.count), run);
		if (samples->driver.count)
			number(median(samples->driver.values, samples->driver.count), calls);
	}
	if (!json) {
		printf("%-28s %9s %9s %9s  %-6s %6s %5zu  ", text->name, middle, low, high, text->unit, goal,
			values->count);
		if (driver)
			printf("%9s %9s  ", run, calls);
		puts(text->text);
		return;
	}
	printf("{\"bench\": \"%s\", \"unit\": \"%s\", \"median\": %s, \"min\": %s, \"max\": %s, \"runs\": %zu",
		text->name, text->unit, middle, low, high, values->count);
	if (text->goal > 0)
		printf(", \"goal\": %s", goal);
	if (driver && samples->driver.count)
		printf(", \"run_ms\": %s, \"driver_ms\": %s", run, calls);
	printf(", \"machine\": \"%s\"}\n", machine());
}

void report_ratios_begin(bool json, const char *folder)
{
	if (json)
		return;
	printf("gpool-bench %s relative to the build in %s, on %s\n\n", gpool_version(), folder, machine());
	printf("%-28s %9s %9s  %-6s %7s %7s %7s %6s\n", "bench", "older", "newer", "unit", "ratio", "min", "max",
		"rounds");
}

void report_ratio(bool json, enum figure figure, struct figure_values *older, struct figure_values *newer,
	struct figure_values *ratios)
{
	static const char *const keys[] = {"ratio", "min", "max"};
	const struct figure_text *text = &figure_texts[figure];
	char before[32], now[32];
	double shown[3] = {0};

	if (ratios->count) {
		shown[0] = median(ratios->values, ratios->count); /* sorts */
		shown[1] = ratios->values[0];
		shown[2] = ratios->values[ratios->count - 1];
	}
	number(median(older->values, older->count), before);
	number(median(newer->values, newer->count), now);
	if (json)
		printf("{\"bench\": \"%s\", \"unit\": \"%s\", \"older\": %s, \"newer\": %s", text->name, text->unit,
			before, now);
	else
		printf("%-28s %9s %9s  %-6s", text->name, before, now, text->unit);
	for (int i = 0; i < 3; i++) {
		if (json)
			printf(", \"%s\": ", keys[i]);
		if (ratios->count)
			printf(json ? "%.3f" : " %7.3f", shown[i]);
		else
			fputs(json ? "null" : "       -", stdout);
	}
	if (json)
		printf(", \"rounds\": %zu, \"machine\": \"%s\"}\n", newer->count, machine());
	else
		printf(" %6zu\n", newer->count);
}

void report_name(enum figure figure, bool asked)
{
	const struct figure_text *text = &figure_texts[figure];

	printf("%-28s %-6s %s%s\n", text->name, text->unit, asked ? "* " : "  ", text->text);
}
