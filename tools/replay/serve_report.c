/* serve_report.c - see serve_report.h. */
#include "tools/replay/serve_report.h"

#include "tools/lib/chart.h"
#include "tools/lib/machine.h"
#include "tools/lib/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GOAL_RATIO 0.98 /* of hit rates: a run with an idle engine, to one engine with the whole pool */

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static double hit_rate(const uint64_t *counts)
{
	return ratio(counts[SERVE_hit_blocks], counts[SERVE_hit_blocks] + counts[SERVE_missed_blocks]);
}

/* The share of a run's time in which the last engine had no request, also after its last one. */
static double idle_share(const struct serve_setup *setup, const struct serve_result *result)
{
	const struct serve_engine_result *engine = &result->engines[setup->engines - 1];

	return ratio(engine->counts[SERVE_idle_us] + result->duration_us - engine->clock_us, result->duration_us);
}

/* The hit rate of a run by that of one engine with the whole pool; 0: that engine found nothing. */
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

/* ---- for people ---- */

static void head_print(const struct serve_report *report)
{
	const struct serve_setup *setup = report->setups;
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES], d[TEXT_BYTES], e[TEXT_BYTES];

	printf("trace    %s: %s requests, %s tokens of prompts and %s of answers\n", report->trace_name,
		text_count(a, setup->trace->request_count), text_count(b, trace_tokens(setup->trace, false)),
		text_count(c, trace_tokens(setup->trace, true)));
	printf("engines  %" PRIu32 "%s on a pool of %s, which is %s pages of %s or %s tokens\n", setup->engines,
		setup->engines > 1 ? setup->apart ? ", each for itself," : ", which share blocks," : "",
		text_bytes(a, setup->pool_bytes), text_count(b, report->results->pool_pages),
		text_bytes(c, setup->page_bytes), text_count(d, setup->pool_bytes / SERVE_TOKEN_BYTES));
	if (setup->host_bytes)
		printf("         host memory for what is preempted: %s each\n", text_bytes(e, setup->host_bytes));
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

/* One line for each run. The goal: the other engines use what an idle engine does not need like memory of their own. */
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

/* What is the same of all runs, if nothing went wrong. */
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
		printf("\nA cache that had all of the pool would find lru %.4f, adaptive %.4f, with foresight %.4f (in "
		       "%s blocks of the trace).\n",
			report->model_rates[SERVE_MODEL_LRU], report->model_rates[SERVE_MODEL_ADAPTIVE],
			report->model_rates[SERVE_MODEL_OPTIMUM], text_count(a, report->model_blocks));
	printf("\n%s of %s requests finished", text_count(a, finished), text_count(b, requests));
	if (refused)
		printf(", %s did not fit in the pool", text_count(c, refused));
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

/* ---- for programs ---- */

static void counts_json(cJSON *object, const uint64_t *counts)
{
	for (int i = 0; i < SERVE_COUNT_END; i++)
		cJSON_AddNumberToObject(object, serve_count_names[i], (double)counts[i]);
	cJSON_AddNumberToObject(object, "hit_rate", hit_rate(counts));
}

static cJSON *engine_json(const struct serve_engine_result *engine)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "process", engine->pid);
	cJSON_AddNumberToObject(object, "peak_pages", engine->peak_pages);
	cJSON_AddNumberToObject(
		object, "mean_pages", engine->clock_us ? engine->page_us / (double)engine->clock_us : 0);
	counts_json(object, engine->counts);
	if (engine->failed)
		cJSON_AddStringToObject(object, "failed", engine->text);
	return object;
}

static cJSON *run_json(const struct serve_setup *setup, const struct serve_result *result)
{
	cJSON *object = cJSON_CreateObject(), *engines;

	cJSON_AddStringToObject(object, "growth", serve_growths[setup->growth]);
	cJSON_AddNumberToObject(object, "block_tokens", setup->block_tokens);
	cJSON_AddNumberToObject(object, "watermark_percent", setup->watermark_percent);
	cJSON_AddStringToObject(object, "policy", serve_policies[setup->adaptive]);
	cJSON_AddNumberToObject(object, "duration_us", (double)result->duration_us);
	cJSON_AddNumberToObject(object, "real_ns", (double)result->real_ns);
	cJSON_AddNumberToObject(object, "peak_pages", result->peak_pages);
	cJSON_AddNumberToObject(object, "mean_pages", result->mean_pages);
	cJSON_AddNumberToObject(object, "peak_lent_pages", result->peak_lent_pages);
	counts_json(object, result->counts);
	engines = cJSON_AddArrayToObject(object, "engines");
	for (uint32_t i = 0; i < setup->engines; i++)
		cJSON_AddItemToArray(engines, engine_json(&result->engines[i]));
	return object;
}

static void comparison_json(cJSON *run, const struct serve_report *report, int index)
{
	struct serve_setup setup = report->setups[index];

	cJSON_AddNumberToObject(run, "idle_share", idle_share(&setup, &report->results[index]));
	cJSON_AddNumberToObject(run, "rate_ratio", rate_ratio(report, index));
	cJSON_AddNumberToObject(run, "goal_ratio", GOAL_RATIO);
	setup.engines = 1;
	cJSON_AddItemToObject(run, "one_engine", run_json(&setup, &report->one_engine[index]));
}

static cJSON *trace_json(const struct serve_report *report)
{
	const struct prefix_trace *trace = report->setups->trace;
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "name", report->trace_name);
	cJSON_AddNumberToObject(object, "requests", trace->request_count);
	cJSON_AddNumberToObject(object, "prompt_tokens", (double)trace_tokens(trace, false));
	cJSON_AddNumberToObject(object, "answer_tokens", (double)trace_tokens(trace, true));
	return object;
}

static cJSON *model_json(const struct serve_report *report)
{
	static const char *const names[SERVE_MODELS] = {"lru", "adaptive", "optimum"};
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "capacity_blocks", report->model_blocks);
	for (int i = 0; i < SERVE_MODELS; i++)
		cJSON_AddNumberToObject(object, names[i], report->model_rates[i]);
	return object;
}

int serve_report_json(const struct serve_report *report)
{
	const struct serve_setup *setup = report->setups;
	cJSON *object = cJSON_CreateObject(), *runs;
	char machine[256], *text;

	machine_describe(machine, sizeof(machine));
	cJSON_AddNumberToObject(object, "version", 1);
	cJSON_AddStringToObject(object, "kind", "replay-kv-engines");
	cJSON_AddStringToObject(object, "machine", machine);
	cJSON_AddItemToObject(object, "trace", trace_json(report));
	cJSON_AddNumberToObject(object, "engines", setup->engines);
	cJSON_AddBoolToObject(object, "apart", setup->apart);
	cJSON_AddNumberToObject(object, "idle_s", (double)setup->idle_ms / 1000);
	cJSON_AddNumberToObject(object, "pool_bytes", (double)setup->pool_bytes);
	cJSON_AddNumberToObject(object, "pool_pages", report->results->pool_pages);
	cJSON_AddNumberToObject(object, "page_bytes", (double)setup->page_bytes);
	cJSON_AddNumberToObject(object, "token_bytes", SERVE_TOKEN_BYTES);
	cJSON_AddNumberToObject(object, "offload_bytes", (double)setup->host_bytes);
	cJSON_AddNumberToObject(object, "speed", setup->speed);
	if (report->model_blocks)
		cJSON_AddItemToObject(object, "model", model_json(report));
	runs = cJSON_AddArrayToObject(object, "runs");
	for (int i = 0; i < report->count; i++) {
		cJSON *run = run_json(&report->setups[i], &report->results[i]);

		if (report->one_engine)
			comparison_json(run, report, i);
		cJSON_AddItemToArray(runs, run);
	}
	text = cJSON_Print(object);
	cJSON_Delete(object);
	if (!text)
		return -ENOMEM;
	puts(text);
	cJSON_free(text);
	return 0;
}

/* ---- the chart ---- */

enum { WIDTH = 1000, HEAD = 74, PANEL_HEAD = 30, PANEL_HEIGHT = 180, COLOURS = 4 };

/* Engines beyond the fourth have the colours of the first ones again, and are told apart by their titles. */
static const char style[] =
	"text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#5c6068}\n"
	".title{font-size:17px;font-weight:600;fill:#1c1d20}.panel{font-size:14px;font-weight:600;fill:#1c1d20}\n"
	".page{fill:#fcfcfb}.grid{stroke:#dcdcd6;stroke-width:1}.axis{stroke:#5c6068;stroke-width:1}\n"
	".line{fill:none;stroke-width:1.5}.level{stroke:#5c6068;stroke-dasharray:4 3}\n"
	".engine0{stroke:#2a6db5}.engine1{stroke:#e0812e}.engine2{stroke:#3f8f5b}.engine3{stroke:#8a5fb0}\n"
	"@media(prefers-color-scheme:dark){text{fill:#a3a7ae}.title,.panel{fill:#e8e8e4}\n"
	".page{fill:#17181b}.grid{stroke:#34363b}.axis,.level{stroke:#a3a7ae}\n"
	".engine0{stroke:#5c9fe6}.engine1{stroke:#ec8f43}.engine2{stroke:#66b884}.engine3{stroke:#b28fd6}}\n";

static void panel_draw(const struct serve_report *report, FILE *out, int run, double top)
{
	const struct serve_setup *setup = &report->setups[run];
	const struct serve_result *result = &report->results[run];
	struct chart chart = {.out = out,
		.width = WIDTH,
		.height = PANEL_HEIGHT,
		.x_most = result->duration_us ? (double)result->duration_us / 1e6 : 1,
		.y_most = result->pool_pages,
		.within = true,
		.top = top + PANEL_HEAD};

	fprintf(out,
		"<text class=\"panel\" x=\"%d\" y=\"%.0f\">%s, blocks of %" PRIu32 " tokens, watermark %" PRIu32
		" %%, %s: found %.4f, %" PRIu64 " preempted</text>\n",
		CHART_LEFT, top + 18, serve_growths[setup->growth], setup->block_tokens, setup->watermark_percent,
		serve_policies[setup->adaptive], hit_rate(result->counts),
		result->counts[SERVE_preempted] + result->counts[SERVE_offloaded]);
	chart_begin(&chart, "pages over time", "pages in use");
	for (uint32_t i = 0; i < setup->engines; i++) {
		const struct serve_curve *curve = &result->engines[i].curve;
		char css_class[16], title[32];

		snprintf(css_class, sizeof(css_class), "engine%" PRIu32, i % COLOURS);
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

int serve_report_draw(const struct serve_report *report, FILE *out)
{
	int panel_height = PANEL_HEAD + PANEL_HEIGHT + 8, height = HEAD + report->count * panel_height;
	const char *slash = strrchr(report->trace_name, '/');
	char pool[TEXT_BYTES];

	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
		"role=\"img\">\n<style>%s</style>\n"
		"<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n<text class=\"title\" x=\"%d\" y=\"28\">",
		WIDTH, height, WIDTH, height, style, CHART_LEFT);
	chart_escape(out, slash ? slash + 1 : report->trace_name);
	fprintf(out, ": pages in use by each engine, of a pool of %s</text>\n",
		text_bytes(pool, report->setups->pool_bytes));
	for (uint32_t i = 0; i < report->setups->engines; i++)
		fprintf(out,
			"<line class=\"line engine%" PRIu32 "\" x1=\"%" PRIu32 "\" x2=\"%" PRIu32
			"\" y1=\"53\" y2=\"53\"/><text x=\"%" PRIu32 "\" y=\"57\">%" PRIu32 "</text>\n",
			i % COLOURS, CHART_LEFT + i * 56, CHART_LEFT + i * 56 + 24, CHART_LEFT + i * 56 + 30, i);
	for (int i = 0; i < report->count; i++)
		panel_draw(report, out, i, HEAD + i * panel_height);
	fputs("</svg>\n", out);
	return fflush(out) || ferror(out) ? -EIO : 0;
}
