/* lora_tables.h - strategies at several popularities of adapters, with the bounds of each figure: tables and JSON. */
#ifndef GPOOL_REPLAY_LORA_TABLES_H
#define GPOOL_REPLAY_LORA_TABLES_H

#include "tools/replay/lora_report.h"
#include "tools/replay/lora_times.h"

enum { LORA_LAWS_MAX = 8, LORA_LAW_BYTES = 32 };

/* Requests that all wait from the beginning, so that only the engine limits the throughput. */
enum lora_flood { LORA_FLOOD_BATCH, LORA_FLOOD_SINGLE, LORA_FLOOD_ALONE, LORA_FLOODS };

/* The results for one popularity of adapters. */
struct lora_law {
	char text[LORA_LAW_BYTES]; /* as in --popularity */
	uint32_t requests, adapters, used_adapters;
	uint64_t hot_bytes, adapter_bytes;
	uint64_t fixed_loads;
	struct lora_load load;
	struct lora_result floods[LORA_FLOODS];
	struct lora_held paged, contiguous;
};

struct lora_tables {
	const char *trace_name; /* NULL: none */
	const struct lora_law *laws;
	int law_count, strategy_count;
	struct lora_times times;
};

void lora_tables_print(const struct lora_tables *tables);
void lora_tables_json(const struct lora_tables *tables);

#endif
