/*
 * lora_report.h - the results of requests with adapters: a table, JSON, and a chart of times to the first token as a
 * self-contained SVG.
 */
#ifndef GPOOL_REPLAY_LORA_REPORT_H
#define GPOOL_REPLAY_LORA_REPORT_H

#include "tools/replay/lora.h"

#include <stdio.h>

/* The results for one rate of arrivals. */
struct lora_load {
	uint32_t busy_percent;    /* requested load; 0: the rate of the trace */
	double speed;             /* factor by which arrivals are faster */
	struct lora_result alone; /* result with all adapters resident */
	struct lora_result results[LORA_STRATEGIES];
};

struct lora_report {
	const char *trace_name; /* NULL: none */
	const struct lora_recipe *recipe;
	const struct lora_plan *plan;
	const struct lora_load *loads; /* [load_count] */
	int load_count, strategy_count;
	uint64_t fixed_loads;
};

void lora_report_print(const struct lora_report *report);
void lora_report_json(const struct lora_report *report);
/* lora_report_draw() - draw the struct lora_report; for chart_file(). */
int lora_report_draw(const void *report, FILE *out);

#endif
