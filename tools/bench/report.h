/* report.h - printing figures, as a table or as one JSON object per line. */
#ifndef GPOOL_BENCH_REPORT_H
#define GPOOL_BENCH_REPORT_H

#include "tools/bench/bench.h"

#include <stdbool.h>

enum group {
#define GROUP(name, runs, text) GROUP_##name,
#include "tools/bench/figures.def"
	GROUPS
};

struct figure_text {
	enum group group; /* the group that measures it */
	const char *name, *unit, *text;
	double goal; /* 0: none */
};
extern const struct figure_text figure_texts[FIGURES];

extern const char *const group_names[GROUPS];

/* All samples of one figure. */
struct figure_values {
	double *values;
	size_t count, capacity;
};

int values_add(struct figure_values *values, double value);

/* run: times of a run in ms. driver: the driver's part of them, or no values. */
struct figure_samples {
	struct figure_values values, run, driver;
};

/* report_begin() - driver: the table has columns for the times of a run. */
void report_begin(bool json, bool driver);
void report_figure(bool json, bool driver, enum figure figure, struct figure_samples *samples);
/* report_ratios_begin(), report_ratio() - print a figure of this build relative to an older one; see against.h. */
void report_ratios_begin(bool json, const char *folder);
void report_ratio(bool json, enum figure figure, struct figure_values *older, struct figure_values *newer,
	struct figure_values *ratios);
/* report_name() - print a line of --list. */
void report_name(enum figure figure, bool asked);

#endif
