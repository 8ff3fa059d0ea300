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

void report_begin(bool json)
{
	if (json)
		return;
	printf("gpool-bench %s on %s\n\n", gpool_version(), machine());
	printf("%-22s %9s %9s %9s  %-5s %6s %5s  %s\n", "bench", "median", "min", "max", "unit", "goal", "runs",
		"description");
}

void report_figure(bool json, enum figure figure, struct figure_values *values)
{
	const struct figure_text *text = &figure_texts[figure];
	char middle[32], low[32], high[32], goal[32] = "-";
	double of_all = median(values->values, values->count); /* sorts */

	number(of_all, middle);
	number(values->values[0], low);
	number(values->values[values->count - 1], high);
	if (text->goal > 0)
		snprintf(goal, sizeof(goal), "%g", text->goal);
	if (!json) {
		printf("%-28s %9s %9s %9s  %-6s %6s %5zu  %s\n", text->name, middle, low, high, text->unit, goal,
			values->count, text->text);
		return;
	}
	printf("{\"bench\": \"%s\", \"unit\": \"%s\", \"median\": %s, \"min\": %s, \"max\": %s, \"runs\": %zu",
		text->name, text->unit, middle, low, high, values->count);
	if (text->goal > 0)
		printf(", \"goal\": %s", goal);
	printf(", \"machine\": \"%s\"}\n", machine());
}

void report_name(enum figure figure, bool asked)
{
	const struct figure_text *text = &figure_texts[figure];

	printf("%-28s %-6s %s%s\n", text->name, text->unit, asked ? "* " : "  ", text->text);
}
