/*
 * prefix_report.h - the results of prefix traces: a table, JSON, and a chart of hit rates over time as a self-contained
 * SVG.
 */
#ifndef GPOOL_REPLAY_PREFIX_REPORT_H
#define GPOOL_REPLAY_PREFIX_REPORT_H

#include "tools/replay/prefix_play.h"

#include <stdio.h>

/* Results are in rows, one row of `policies` results for each size. */
struct prefix_report {
	const char *trace_name;
	const struct prefix_trace *trace;
	const struct prefix_result *results; /* [sizes * policies] */
	int sizes, policies;
};

void prefix_report_print(const struct prefix_report *report);
void prefix_report_json(const struct prefix_report *report);
/* prefix_report_draw() - draw a struct prefix_report; for chart_file(). */
int prefix_report_draw(const void *report, FILE *out);

#endif
