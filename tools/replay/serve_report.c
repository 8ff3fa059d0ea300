#include "tools/replay/serve_report.h"

#include "tools/lib/chart.h"
#include "tools/lib/json.h"
#include "tools/lib/machine.h"
#include "tools/lib/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * goal for the hit rate of a run in which one engine is idle part of the time, divided by the hit rate of one engine
 * with the whole pool
 */
#define GOAL_RATIO 0.98

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static double hit_rate(const uint64_t *counts)
{
	return ratio(counts[SERVE_hit_blocks], counts[SERVE_hit_blocks] + counts[SERVE_missed_blocks]);
}

/* Return the share of a run's time in which the last engine had no requests, including the time after its last one. */
static double idle_share(const struct serve_setup *setup, const struct serve_result *result)
{
	const struct serve_engine_result *engine = &result->engines[setup->engines - 1];

	return ratio(engine->counts[SERVE_idle_us] + result->duration_us - engine->clock_us, result->duration_us);
}

/* Return the ratio of a run's hit rate to that of one engine with the whole pool; 0 if that engine had no hits. */
static double rate_ratio(const struct serve_report *report, int run)
{
	double one = hit_rate(report->one_engine[run].counts);

	return one > 0 ? hit_rate(report->results[run].counts) / one : 0;
}

static uint64_t moved_bytes(const uint64_t *counts)
{
	return counts[SERVE_copied_bytes] + counts[SERVE_saved_bytes] + counts[SERVE_loaded_bytes];
}

static uint64_t trace_tokens(const struct prefix_trace *trace, bool answers)
{
	uint64_t tokens = 0;

	for (uint32_t i = 0; i < trace->request_count; i++)
		tokens += answers ? trace->requests[i].output_tokens : trace->requests[i].input_tokens;
	return tokens;
}

/* ---- table ---- */

static void head_print(const struct serve_report *report)
{
	const struct serve_setup *setup = report->setups;
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES], d[TEXT_BYTES], e[TEXT_BYTES];

	printf("trace    %s: %s requests, %s prompt tokens and %s answer tokens\n", report->trace_name,
		text_count(a, setup->trace->request_count), text_count(b, trace_tokens(setup->trace, false)),
		text_count(c, trace_tokens(setup->trace, true)));
	printf("engines  %" PRIu32 "%s on a pool of %s, %s pages of %s, for %s tokens\n", setup->engines,
		setup->engines > 1 ? setup->apart ? ", which share no blocks," : ", which share blocks," : "",
		text_bytes(a, setup->pool_bytes), text_count(b, report->results->pool_pages),
		text_bytes(c, setup->page_bytes), text_count(d, setup->pool_bytes / SERVE_TOKEN_BYTES));
	if (setup->host_bytes)
		printf("         host memory for preempted sequences: %s each\n", text_bytes(e, setup->host_bytes));
	printf("\n%-11s %5s %9s %-8s %6s %6s %9s %9s %6s %8s %6s %6s %10s %10s %8s %8s\n", "growth", "block",
		"watermark", "policy", "found", "others", "preempted", "offloaded", "waits", "wait", "pages", "mean",
		"recomputed", "moved", "first", "all");
	printf("%-11s %5s %9s %-8s %6s %6s %9s %9s %6s %8s %6s %6s %10s %10s %8s %8s\n", "", "", "", "", "", "", "", "",
		"", "s", "peak", "", "tokens", "", "token s", "s");
}

static void run_print(const struct serve_setup *setup, const struct serve_result *result)
{
	const uint64_t *counts = result->counts;
	char watermark[TEXT_BYTES], waits[TEXT_BYTES], recomputed[TEXT_BYTES], moved[TEXT_BYTES];

	snprintf(watermark, sizeof(watermark), "%" PRIu32 " %%", setup->watermark_percent);
	printf("%-11s %5" PRIu32 " %9s %-8s %6.4f %6.4f %9" PRIu64 " %9" PRIu64 " %6s %8.2f %6" PRIu32
	       " %6.0f %10s %10s %8.2f %8.0f\n",
		serve_growths[setup->growth], setup->block_tokens, watermark, serve_policies[setup->adaptive],
		hit_rate(counts),
		ratio(counts[SERVE_hit_blocks_of_others], counts[SERVE_hit_blocks] + counts[SERVE_missed_blocks]),
		counts[SERVE_preempted], counts[SERVE_offloaded], text_count(waits, counts[SERVE_waits]),
		ratio(counts[SERVE_wait_us], counts[SERVE_waits]) / 1e6, result->peak_pages, result->mean_pages,
		text_count(recomputed, counts[SERVE_recomputed_tokens]), text_bytes(moved, moved_bytes(counts)),
		ratio(counts[SERVE_first_token_us], counts[SERVE_first_tokens]) / 1e6,
		(double)result->duration_us / 1e6);
}

/* Print one line per run. The goal is that the other engines use the memory of an idle engine like their own. */
static void comparison_print(const struct serve_report *report)
{
	printf("\nHit rates, with engine %" PRIu32 " idle in every second window of %" PRIu64
	       " s of the trace, and of one engine with the whole pool:\n",
		report->setups->engines - 1, report->setups->idle_ms / 1000);
	for (int i = 0; i < report->count; i++) {
		const struct serve_setup *setup = &report->setups[i];
		const struct serve_result *result = &report->results[i];

		printf("%-11s %5" PRIu32 " %7" PRIu32 " %% %-8s %" PRIu32
		       " engines / one engine = %.4f / %.4f = %.3f, goal %.2f; engine %" PRIu32
		       " idle for %.0f %% of the time\n",
			serve_growths[setup->growth], setup->block_tokens, setup->watermark_percent,
			serve_policies[setup->adaptive], setup->engines, hit_rate(result->counts),
			hit_rate(report->one_engine[i].counts), rate_ratio(report, i), GOAL_RATIO, setup->engines - 1,
			100 * idle_share(setup, result));
	}
}

/* Print the values that are the same for all runs, if there was no error. */
static void foot_print(const struct serve_report *report)
{
	uint64_t finished = 0, requests = 0, refused = 0, verified = 0, wrong = 0;
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES];

	for (int i = 0; i < report->count; i++) {
		const uint64_t *counts = report->results[i].counts;

		requests += counts[SERVE_requests];
		finished += counts[SERVE_finished];
		refused += counts[SERVE_refused];
		verified += counts[SERVE_verified_blocks];
		wrong += counts[SERVE_wrong_blocks];
	}
	if (report->model_blocks)
		printf("\nHit rates of a single cache of the size of the pool: lru %.4f, adaptive %.4f, optimum %.4f "
		       "(%s blocks of the trace).\n",
			report->model_rates[SERVE_MODEL_LRU], report->model_rates[SERVE_MODEL_ADAPTIVE],
			report->model_rates[SERVE_MODEL_OPTIMUM], text_count(a, report->model_blocks));
	printf("\n%s of %s requests finished", text_count(a, finished), text_count(b, requests));
	if (refused)
		printf(", %s did not fit into the pool", text_count(c, refused));
	printf("; contents of %s blocks verified, %s wrong.\n", text_count(a, verified), text_count(b, wrong));
}

void serve_report_print(const struct serve_report *report)
{
	head_print(report);
	for (int i = 0; i < report->count; i++)
		run_print(&report->setups[i], &report->results[i]);
	if (report->one_engine)
		comparison_print(report);
	foot_print(report);
}

/* ---- JSON ---- */

static void counts_json(cJSON *object, const uint64_t *counts)
{
	for (int i = 0; i < SERVE_COUNT_END; i++)
		json_real(object, serve_count_names[i], (double)counts[i]);
	json_real(object, "hit_rate", hit_rate(counts));
}

static void engine_json(cJSON *object, const struct serve_engine_result *engine)
{
	JSON_FIELDS(object, {"process", engine->pid}, {"peak_pages", engine->peak_pages});
	json_real(object, "mean_pages", engine->clock_us ? engine->page_us / (double)engine->clock_us : 0);
	counts_json(object, engine->counts);
	if (engine->failed)
		json_text(object, "failed", engine->text);
}

static void run_json(cJSON *object, const struct serve_setup *setup, const struct serve_result *result)
{
	cJSON *engines;

	json_text(object, "growth", serve_growths[setup->growth]);
	JSON_FIELDS(object, {"block_tokens", setup->block_tokens}, {"watermark_percent", setup->watermark_percent});
	json_text(object, "policy", serve_policies[setup->adaptive]);
	JSON_FIELDS(object, {"duration_us", result->duration_us}, {"real_ns", result->real_ns},
		{"peak_pages", result->peak_pages}, {"mean_pages", result->mean_pages},
		{"peak_lent_pages", result->peak_lent_pages});
	counts_json(object, result->counts);
	engines = json_array(object, "engines");
	for (uint32_t i = 0; i < setup->engines; i++)
		engine_json(json_item(engines), &result->engines[i]);
}

static void comparison_json(cJSON *run, const struct serve_report *report, int index)
{
	struct serve_setup setup = report->setups[index];

	JSON_FIELDS(run, {"idle_share", idle_share(&setup, &report->results[index])},
		{"rate_ratio", rate_ratio(report, index)}, {"goal_ratio", GOAL_RATIO});
	setup.engines = 1;
	run_json(json_object(run, "one_engine"), &setup, &report->one_engine[index]);
}

static void trace_json(cJSON *object, const struct serve_report *report)
{
	const struct prefix_trace *trace = report->setups->trace;
	json_text(object, "name", report->trace_name);
	JSON_FIELDS(object, {"requests", trace->request_count}, {"prompt_tokens", (double)trace_tokens(trace, false)},
		{"answer_tokens", (double)trace_tokens(trace, true)});
}

static void model_json(cJSON *object, const struct serve_report *report)
{
	static const char *const names[SERVE_MODELS] = {"lru", "adaptive", "optimum"};
	json_real(object, "capacity_blocks", report->model_blocks);
	for (int i = 0; i < SERVE_MODELS; i++)
		json_real(object, names[i], report->model_rates[i]);
}

void serve_report_json(const struct serve_report *report)
{
	const struct serve_setup *setup = report->setups;
	cJSON *object = json_document("replay-kv-engines"), *runs;
	char machine[256];

	machine_describe(machine, sizeof(machine));

	json_text(object, "machine", machine);
	trace_json(json_object(object, "trace"), report);
	json_real(object, "engines", setup->engines);
	json_bool(object, "apart", setup->apart);
	JSON_FIELDS(object, {"idle_s", (double)setup->idle_ms / 1000}, {"pool_bytes", setup->pool_bytes},
		{"pool_pages", report->results->pool_pages}, {"page_bytes", setup->page_bytes},
		{"token_bytes", SERVE_TOKEN_BYTES}, {"offload_bytes", setup->host_bytes}, {"speed", setup->speed});
	if (report->model_blocks)
		model_json(json_object(object, "model"), report);
	runs = json_array(object, "runs");
	for (int i = 0; i < report->count; i++) {
		cJSON *run = json_item(runs);

		run_json(run, &report->setups[i], &report->results[i]);
		if (report->one_engine)
			comparison_json(run, report, i);
	}
	json_write(stdout, object, false);
}

/* ---- the chart ---- */

enum { PANEL_HEIGHT = 180, COLORS = 4 };

/* From the fifth on, engines have the same colors as the first four; their titles distinguish them. */
static const char style[] =
	".engine0{stroke:#2a6db5}.engine1{stroke:#e0812e}.engine2{stroke:#3f8f5b}.engine3{stroke:#8a5fb0}\n"
	"@media(prefers-color-scheme:dark){\n"
	".engine0{stroke:#5c9fe6}.engine1{stroke:#ec8f43}.engine2{stroke:#66b884}.engine3{stroke:#b28fd6}}\n";

static void panel_draw(const struct serve_report *report, FILE *out, int run, double top)
{
	const struct serve_setup *setup = &report->setups[run];
	const struct serve_result *result = &report->results[run];
	struct chart chart = {.out = out,
		.width = CHART_PAGE_WIDTH,
		.height = PANEL_HEIGHT,
		.x_most = result->duration_us ? (double)result->duration_us / 1e6 : 1,
		.y_most = result->pool_pages,
		.within = true,
		.top = top + CHART_PANEL_HEAD};

	chart_page_panel(out, top,
		"%s, blocks of %" PRIu32 " tokens, watermark %" PRIu32 " %%, %s: found %.4f, %" PRIu64 " preempted",
		serve_growths[setup->growth], setup->block_tokens, setup->watermark_percent,
		serve_policies[setup->adaptive], hit_rate(result->counts),
		result->counts[SERVE_preempted] + result->counts[SERVE_offloaded]);
	chart_begin(&chart, "pages over time", "pages in use");
	for (uint32_t i = 0; i < setup->engines; i++) {
		const struct serve_curve *curve = &result->engines[i].curve;
		char css_class[16], title[32];

		snprintf(css_class, sizeof(css_class), "engine%" PRIu32, i % COLORS);
		snprintf(title, sizeof(title), "engine %" PRIu32, i);
		chart_line(&chart,
			&(struct chart_curve){.css_class = css_class,
				.title = title,
				.x = curve->x,
				.high = curve->y,
				.count = curve->count});
	}
	chart_end(&chart, 1);
}

int serve_report_draw(const void *context, FILE *out)
{
	const struct serve_report *report = context;
	int panel_height = CHART_PANEL_HEAD + PANEL_HEIGHT + CHART_PANEL_GAP;
	char pool[TEXT_BYTES];
	double x = CHART_LEFT;

	chart_page_begin(out, CHART_PAGE_WIDTH, CHART_PAGE_HEAD + report->count * panel_height, style,
		report->trace_name, ": pages in use by each engine, of a pool of %s",
		text_bytes(pool, report->setups->pool_bytes));
	for (uint32_t i = 0; i < report->setups->engines; i++) {
		char css_class[16], title[16];

		snprintf(css_class, sizeof(css_class), "engine%" PRIu32, i % COLORS);
		snprintf(title, sizeof(title), "%" PRIu32, i);
		chart_page_key(out, &x, false, css_class, title);
	}
	for (int i = 0; i < report->count; i++)
		panel_draw(report, out, i, CHART_PAGE_HEAD + i * panel_height);
	return 0;
}
