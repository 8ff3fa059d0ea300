/* lora_tables.c - see lora_tables.h. */
#include "tools/replay/lora_tables.h"

#include "tools/lib/cli.h"
#include "tools/lib/json.h"
#include "tools/lib/text.h"

#include <inttypes.h>

static uint64_t loads_of(const struct lora_result *result)
{
	return result->residency.loads_warm + result->residency.loads_cold;
}

static double rate_of(const struct lora_law *law, const struct lora_result *result)
{
	return law->requests / result->seconds;
}

static double cold_rate_of(const struct lora_result *result)
{
	return (double)result->scheduler.cold_starts / result->seconds;
}

/* ---- tables ---- */

enum { NOTE_COLUMNS = 2 };

static void note(const char *text)
{
	fputs("  ", stdout);
	help_wrap(text, NOTE_COLUMNS, NOTE_COLUMNS);
}

static void strategies_print(const struct lora_tables *tables)
{
	printf("Strategies, with arrivals that keep the engine busy for %" PRIu32 " %% of the time\n\n",
		tables->laws[0].load.busy_percent);
	printf("%-10s %-10s %10s %10s %10s %10s %8s %8s\n", "popularity", "strategy", "requests/s", "TTFT P50 s",
		"TTFT P99 s", "cold/s", "loads", "bound");
	for (int i = 0; i < tables->law_count; i++) {
		const struct lora_law *law = &tables->laws[i];

		for (int s = 0; s < tables->strategy_count; s++) {
			const struct lora_result *result = &law->load.results[s];

			printf("%-10s %-10s %10.3f %10.3f %10.3f %10.4f %8" PRIu64 " %8" PRIu64 "\n", law->text,
				result->strategy->name, rate_of(law, result), result->first_p50, result->first_p99,
				cold_rate_of(result), loads_of(result), result->least_loads);
		}
		printf("%-10s %-10s %10.3f %10.3f %10.3f %10.4f %8d\n", law->text, "(bound)",
			rate_of(law, &law->load.alone), law->load.alone.first_p50, law->load.alone.first_p99, 0.0, 0);
	}
	putchar('\n');
	note("(bound): the scheduler with every adapter resident, so that no request waits for one. bound of loads: "
	     "no scheduler that ends each request as early needs fewer loads, even one that knows all requests in "
	     "advance. cold: requests whose adapter was not resident when it was their turn.");
}

static void floods_print(const struct lora_tables *tables)
{
	puts("\nThroughput if all requests wait from the beginning\n");
	printf("%-10s %12s %12s %8s %12s\n", "popularity", "batch req/s", "single req/s", "ratio", "bound req/s");
	for (int i = 0; i < tables->law_count; i++) {
		const struct lora_law *law = &tables->laws[i];
		double batch = rate_of(law, &law->floods[LORA_FLOOD_BATCH]),
		       single = rate_of(law, &law->floods[LORA_FLOOD_SINGLE]);

		printf("%-10s %12.3f %12.3f %8.2f %12.3f\n", law->text, batch, single, batch / single,
			rate_of(law, &law->floods[LORA_FLOOD_ALONE]));
	}
	putchar('\n');
	note("batch: requests of any adapters run together. single: only requests of one adapter run at a time. bound: "
	     "as "
	     "batch, with every adapter resident.");
}

static void held_print(const struct lora_tables *tables)
{
	char memory[TEXT_BYTES];

	printf("\nAdapters held at once in %s, while it is full\n\n", text_bytes(memory, tables->laws[0].hot_bytes));
	printf("%-10s %10s %10s %10s %12s %12s %10s %10s\n", "popularity", "paged", "contiguous", "bound", "paged idle",
		"contig. idle", "loads", "contig.");
	for (int i = 0; i < tables->law_count; i++) {
		const struct lora_law *law = &tables->laws[i];

		printf("%-10s %10.1f %10.1f %10.1f %10.2f %% %10.2f %% %10" PRIu64 " %10" PRIu64 "\n", law->text,
			law->paged.adapters, law->contiguous.adapters,
			(double)law->hot_bytes * law->adapters / (double)law->adapter_bytes, 100 * law->paged.idle,
			100 * law->contiguous.idle, law->paged.loads, law->contiguous.loads);
	}
	putchar('\n');
	note("The least recently used adapter is evicted. bound: the memory divided by the average size of all "
	     "adapters; "
	     "popular adapters may be smaller. idle: memory without weights. loads: for the same requests.");
}

static const char *const sources[LORA_SOURCES] = {
	[LORA_SOURCE_FILES] = "files", [LORA_SOURCE_DISK] = "disk", [LORA_SOURCE_MEMORY] = "memory"};

static void times_print(const struct lora_times *times)
{
	char bytes[TEXT_BYTES];

	printf("\nTime to load an adapter of %s, measured in this run\n\n", text_bytes(bytes, times->adapter_bytes));
	printf("%-10s %10s %10s %10s %12s %10s %10s\n", "source", "paged ms", "least", "most", "one piece ms", "ratio",
		"read");
	for (int i = 0; i < LORA_SOURCES; i++) {
		const struct lora_time *time = &times->of[i];

		printf("%-10s %10.2f %10.2f %10.2f %12.2f %10.2f %10s\n", sources[i], time->paged_ms, time->paged_least,
			time->paged_most, time->piece_ms, time->paged_ms / time->piece_ms,
			text_bytes(bytes, time->bytes));
	}
	putchar('\n');
	note("paged: gpool_lora_acquire() until the adapter is published, with conversion and checksums, on an agent "
	     "with host memory; medians. one piece: pread() or memcpy() of the bytes of the source. files: PEFT's "
	     "files, in 32 bits. disk: the file in cache_dir. memory: the copy in the warm pool. Files are in the page "
	     "cache.");
}

void lora_tables_print(const struct lora_tables *tables)
{
	const struct lora_law *law = &tables->laws[0];
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES];

	printf("requests  %s: %s\n", tables->trace_name ? tables->trace_name : "random", text_count(a, law->requests));
	printf("adapters  %s, %s in total; room for %s\n\n", text_count(a, law->adapters),
		text_bytes(b, law->adapter_bytes), text_bytes(c, law->hot_bytes));
	strategies_print(tables);
	floods_print(tables);
	held_print(tables);
	times_print(&tables->times);
}

/* ---- JSON ---- */

static void result_json(cJSON *object, const struct lora_law *law, const struct lora_result *result)
{
	json_text(object, "strategy", result->strategy ? result->strategy->name : "bound");
	JSON_FIELDS(object, {"requests_per_s", rate_of(law, result)}, {"ttft_p50_s", result->first_p50},
		{"ttft_p99_s", result->first_p99}, {"cold_starts_per_s", cold_rate_of(result)},
		{"loads", loads_of(result)}, {"least_loads", result->least_loads});
}

static void held_json(cJSON *object, const struct lora_held *held)
{
	JSON_FIELDS(object, {"adapters", held->adapters}, {"idle", held->idle}, {"loads", held->loads});
}

static void law_json(cJSON *object, const struct lora_tables *tables, const struct lora_law *law)
{
	static const char *const floods[LORA_FLOODS] = {"batch", "single", "bound"};
	cJSON *list, *held;

	json_text(object, "popularity", law->text);
	JSON_FIELDS(object, {"adapters_used", law->used_adapters}, {"fixed_loads", law->fixed_loads},
		{"busy_percent", law->load.busy_percent}, {"speed", law->load.speed});
	list = json_array(object, "strategies");
	for (int i = 0; i < tables->strategy_count; i++)
		result_json(json_item(list), law, &law->load.results[i]);
	result_json(json_object(object, "bound"), law, &law->load.alone);
	list = json_object(object, "throughput");
	for (int i = 0; i < LORA_FLOODS; i++)
		JSON_FIELDS(list, {floods[i], rate_of(law, &law->floods[i])});
	held = json_object(object, "held");
	held_json(json_object(held, "paged"), &law->paged);
	held_json(json_object(held, "contiguous"), &law->contiguous);
	JSON_FIELDS(held, {"bound", (double)law->hot_bytes * law->adapters / (double)law->adapter_bytes});
}

static void times_json(cJSON *object, const struct lora_times *times)
{
	JSON_FIELDS(object, {"adapter_bytes", times->adapter_bytes});
	for (int i = 0; i < LORA_SOURCES; i++) {
		const struct lora_time *time = &times->of[i];

		JSON_FIELDS(json_object(object, sources[i]), {"bytes", time->bytes}, {"paged_ms", time->paged_ms},
			{"paged_least_ms", time->paged_least}, {"paged_most_ms", time->paged_most},
			{"one_piece_ms", time->piece_ms});
	}
}

void lora_tables_json(const struct lora_tables *tables)
{
	cJSON *object = json_document("replay-lora-tables"), *list;

	if (tables->trace_name)
		json_text(object, "trace", tables->trace_name);
	JSON_FIELDS(object, {"requests", tables->laws[0].requests}, {"adapters", tables->laws[0].adapters},
		{"hot_bytes", tables->laws[0].hot_bytes});
	list = json_array(object, "popularities");
	for (int i = 0; i < tables->law_count; i++)
		law_json(json_item(list), tables, &tables->laws[i]);
	times_json(json_object(object, "load_times"), &tables->times);
	json_write(stdout, object, false);
}
