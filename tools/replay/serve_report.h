/*
 * serve_report.h - the results of runs with engines: a table, JSON, and a chart of pages over time as a self-contained
 * SVG.
 */
#ifndef GPOOL_REPLAY_SERVE_REPORT_H
#define GPOOL_REPLAY_SERVE_REPORT_H

#include "tools/replay/serve.h"

#include <stdio.h>

enum serve_model { SERVE_MODEL_LRU, SERVE_MODEL_ADAPTIVE, SERVE_MODEL_OPTIMUM, SERVE_MODELS };

struct serve_report {
	const char *trace_name;
	const struct serve_setup *setups; /* [count] */
	const struct serve_result *results;
	const struct serve_result *one_engine; /* [count] results of the same setups with one engine; NULL: not run */
	int count;
	/*
	 * The hits of a simulated cache that uses the whole pool, in blocks of the trace; 0 blocks: the trace has none.
	 */
	uint32_t model_blocks;
	double model_rates[SERVE_MODELS];
};

void serve_report_print(const struct serve_report *report);
void serve_report_json(const struct serve_report *report);
/* serve_report_draw() - draw a struct serve_report; for chart_file(). */
int serve_report_draw(const void *report, FILE *out);

#endif
