/*
 * lora_report.h - what came of requests with adapters: a table for people, JSON for programs, a chart of times to the
 * first token as one SVG that needs nothing else.
 */
#ifndef GPOOL_REPLAY_LORA_REPORT_H
#define GPOOL_REPLAY_LORA_REPORT_H

#include "tools/replay/lora.h"

#include <stdio.h>

enum { LORA_LOADS_MAX = 16 };

/* One rate of arrivals. */
struct lora_load {
	uint32_t busy_percent;    /* as asked for; 0: as they came */
	double speed;             /* requests come so much faster than they came */
	struct lora_result alone; /* with every adapter there */
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
