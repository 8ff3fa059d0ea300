/* lora_report.c - see lora_report.h. */
#include "tools/replay/lora_report.h"

#include "tools/lib/chart.h"
#include "tools/lib/json.h"
#include "tools/lib/cli.h"
#include "tools/lib/text.h"
#include "shm/plural.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t loads_of(const struct lora_result *result)
{
	return result->residency.loads_warm + result->residency.loads_cold;
}

static double hit_rate(const struct lora_result *result)
{
	return 1 - (double)result->scheduler.cold_starts / (double)result->scheduler.started;
}

static double requests_rate(const struct lora_report *report, const struct lora_result *result)
{
	return report->plan->workload->count / result->seconds;
}

static double max_bypass_s(const struct lora_report *report)
{
	return (double)report->plan->options.max_bypass_us / 1e6;
}

/* ---- table ---- */

enum { HEAD_COLUMNS = 10, WORD_COLUMNS = 15 };

static void print_popularity(const struct lora_recipe *recipe)
{
	if (recipe->zipf)
		printf("Zipf with exponent %g", recipe->exponent);
	else
		printf("power law %g (the first share x of the adapters has x^%g of the requests)", recipe->exponent,
			recipe->exponent);
}

static void print_head(const struct lora_report *report)
{
	const struct lora_workload *workload = report->plan->workload;
	const struct lora_costs *costs = &report->plan->costs;
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES], d[TEXT_BYTES], text[256];

	printf("requests  %s: %s, %s tokens\n", report->trace_name ? report->trace_name : "random",
		text_count(a, workload->count), text_count(b, workload->tokens));
	printf("adapters  %s, %s of them requested; popularity: ", text_count(a, workload->adapter_count),
		text_count(b, workload->used_adapters));
	print_popularity(report->recipe);
	printf("; %" PRIu32 " tenant%s\n", workload->tenant_count, plural(workload->tenant_count));
	printf("memory    %s of adapters (largest %s); room for %s hot, and %s of warm copies\n",
		text_bytes(a, workload->adapter_bytes), text_bytes(b, workload->largest_bytes),
		text_bytes(c, report->plan->limits.hot_bytes), text_bytes(d, report->plan->limits.warm_bytes));
	snprintf(text, sizeof(text),
		"step %g us, prefill %g us per token, decode %g us per request and step, adapter %g us per MiB and "
		"step; load %g us and disk %g GB/s, bus %g GB/s of warm copies, save %g GB/s",
		costs->step_us, costs->prefill_us, costs->decode_us, costs->adapter_us, costs->load_us, costs->disk,
		costs->bus, costs->save);
	fputs("costs     ", stdout);
	help_wrap(text, HEAD_COLUMNS, HEAD_COLUMNS);
	printf("bound     no request is bypassed for more than %g s\n", max_bypass_s(report));
	printf("fixed     %s loads, if the adapters with the most requests per byte always stayed, and each other "
	       "request caused a load\n",
		text_count(a, report->fixed_loads));
}

static double change_percent(double now, double before)
{
	return before > 0 ? 100 * (now / before - 1) : 0;
}

static void print_result(const struct lora_report *report, const struct lora_result *result)
{
	printf("%-9s %9.3f %9.3f %9.3f %7" PRIu64 " %8.4f %7" PRIu64 " %7" PRIu64 " %9.2f %9.2f %9.2f\n",
		result->strategy->name, result->first_mean, result->first_p50, result->first_p99,
		result->scheduler.cold_starts, hit_rate(result), loads_of(result), result->least_loads,
		requests_rate(report, result), (double)result->scheduler.longest_wait_us / 1e6,
		(double)result->scheduler.longest_bypass_us / 1e6);
}

static void print_change(const struct lora_result *result, const struct lora_result *first)
{
	printf("%s against %s: cold starts %+.0f %%, loads %+.0f %%, P99 %+.0f %%\n", result->strategy->name,
		first->strategy->name,
		change_percent((double)result->scheduler.cold_starts, (double)first->scheduler.cold_starts),
		change_percent((double)loads_of(result), (double)loads_of(first)),
		change_percent(result->first_p99, first->first_p99));
}

static void print_load(const struct lora_report *report, const struct lora_load *load)
{
	const struct lora_result *alone = &load->alone;

	if (load->busy_percent)
		printf("\nBusy for %.0f %% of the time without loads: arrivals %.2f times as fast as given, %.2f "
		       "requests per second\n",
			100 * alone->busy, load->speed, requests_rate(report, alone));
	else
		printf("\nArrivals not scaled, %.2f requests per second; busy for %.0f %% of the time without loads\n",
			requests_rate(report, alone), 100 * alone->busy);
	printf("\n%-9s %9s %9s %9s %7s %8s %7s %7s %9s %9s %9s\n", "", "TTFT mean", "P50", "P99", "cold", "hit rate",
		"loads", "least", "requests", "longest", "longest");
	printf("%-9s %9s %9s %9s %7s %8s %7s %7s %9s %9s %9s\n", "strategy", "s", "s", "s", "starts", "", "", "loads",
		"per s", "wait, s", "bypass, s");
	printf("%-9s %9.3f %9.3f %9.3f %7s %8s %7s %7s %9.2f %9.2f\n", "(alone)", alone->first_mean, alone->first_p50,
		alone->first_p99, "", "", "", "", requests_rate(report, alone),
		(double)alone->scheduler.longest_wait_us / 1e6);
	for (int i = 0; i < report->strategy_count; i++)
		print_result(report, &load->results[i]);
	putchar('\n');
	for (int i = 1; i < report->strategy_count; i++)
		print_change(&load->results[i], &load->results[0]);
	if (report->strategy_count > 1)
		printf("with all adapters resident: P99 %+.0f %%\n",
			change_percent(alone->first_p99, load->results[0].first_p99));
}

static void explain(const char *word, const char *text)
{
	printf("%-*s", WORD_COLUMNS, word);
	help_wrap(text, WORD_COLUMNS, WORD_COLUMNS);
}

void lora_report_print(const struct lora_report *report)
{
	print_head(report);
	for (int i = 0; i < report->load_count; i++)
		print_load(report, &report->loads[i]);
	putchar('\n');
	explain("(alone)", "all adapters are always resident");
	for (int i = 0; i < report->strategy_count; i++)
		explain(report->loads[0].results[i].strategy->name, report->loads[0].results[i].strategy->text);
	putchar('\n');
	explain("TTFT", "time from arrival to the first token, including queueing");
	explain("cold starts", "requests whose adapter was not resident when it was their turn in order of arrival");
	explain("loads", "loads of adapters, including those ahead of need");
	explain("least loads",
		"a lower bound for a scheduler that knows all requests in advance and may serve them in any order, if "
		"each finishes no later than in this run, or within the bound");
	explain("longest bypass",
		"longest time from the first to the last start of a later request before an earlier one");
}

/* ---- JSON ---- */

static void result_json(cJSON *object, const struct lora_report *report, const struct lora_result *result)
{
	json_text(object, "strategy", result->strategy ? result->strategy->name : "alone");
	JSON_FIELDS(object, {"ttft_mean_s", result->first_mean}, {"ttft_p50_s", result->first_p50},
		{"ttft_p99_s", result->first_p99}, {"ttft_p99_worst_tenant_s", result->first_p99_worst},
		{"requests", result->scheduler.started}, {"cold_starts", result->scheduler.cold_starts},
		{"hit_rate", hit_rate(result)}, {"loads", loads_of(result)},
		{"loads_warm", result->residency.loads_warm}, {"loads_cold", result->residency.loads_cold},
		{"least_loads", result->least_loads}, {"prefetches", result->residency.prefetches},
		{"prefetches_used", result->residency.prefetches_used}, {"moves", result->residency.moves},
		{"evictions", result->residency.evictions}, {"resident", result->residency.resident},
		{"loading", result->residency.loading}, {"generated_tokens", result->tokens},
		{"requests_per_s", requests_rate(report, result)},
		{"tokens_per_s", (double)result->tokens / result->seconds},
		{"longest_wait_s", result->scheduler.longest_wait_us / 1e6},
		{"longest_bypass_s", result->scheduler.longest_bypass_us / 1e6},
		{"bypassed", result->scheduler.bypassed}, {"overdue", result->scheduler.overdue},
		{"busy", result->busy}, {"duration_s", result->seconds}, {"steps", result->steps},
		{"adapters_per_step", result->adapters_mean});
}

static void workload_json(cJSON *object, const struct lora_report *report)
{
	const struct lora_workload *workload = report->plan->workload;
	if (report->trace_name)
		json_text(object, "trace", report->trace_name);
	JSON_FIELDS(object, {"requests", workload->count}, {"tokens", workload->tokens},
		{"adapters", workload->adapter_count}, {"adapters_used", workload->used_adapters},
		{"tenants", workload->tenant_count}, {"fixed_loads", report->fixed_loads});
	json_text(object, "popularity", report->recipe->zipf ? "zipf" : "power");
	JSON_FIELDS(object, {"exponent", report->recipe->exponent}, {"seed", report->recipe->seed});
}

static void model_json(cJSON *object, const struct lora_report *report)
{
	const struct lora_plan *plan = report->plan;
	JSON_FIELDS(object, {"step_us", plan->costs.step_us}, {"prefill_us_per_token", plan->costs.prefill_us},
		{"decode_us_per_request", plan->costs.decode_us}, {"adapter_us_per_mib", plan->costs.adapter_us},
		{"load_us", plan->costs.load_us}, {"disk_gb_per_s", plan->costs.disk},
		{"bus_gb_per_s", plan->costs.bus}, {"save_gb_per_s", plan->costs.save},
		{"hot_bytes", plan->limits.hot_bytes}, {"warm_bytes", plan->limits.warm_bytes},
		{"max_bypass_s", max_bypass_s(report)}, {"look_ahead", plan->options.look_ahead},
		{"batch_adapters", plan->options.batch_adapters}, {"batch_requests", plan->options.batch_requests},
		{"batch_tokens", plan->options.batch_tokens});
}

static void load_json(cJSON *object, const struct lora_report *report, const struct lora_load *load)
{
	cJSON *list;

	JSON_FIELDS(object, {"busy_percent", load->busy_percent}, {"speed", load->speed});
	result_json(json_object(object, "alone"), report, &load->alone);
	list = json_array(object, "results");
	for (int i = 0; i < report->strategy_count; i++)
		result_json(json_item(list), report, &load->results[i]);
}

void lora_report_json(const struct lora_report *report)
{
	cJSON *object = json_document("replay-lora"), *list;

	workload_json(json_object(object, "workload"), report);
	model_json(json_object(object, "model"), report);
	list = json_array(object, "loads");
	for (int i = 0; i < report->load_count; i++)
		load_json(json_item(list), report, &report->loads[i]);
	json_write(stdout, object, false);
}

/* ---- the chart ---- */

enum { PANEL_HEIGHT = 200 };

/* All kinds of color vision can distinguish them; the strategies in order of arrival also have dashes. */
static const char style[] = ".fifo{stroke:#5c6068;stroke-dasharray:4 3}.around{stroke:#9a6bb5;stroke-dasharray:4 3}\n"
			    ".resident{stroke:#e0812e}.prefetch{stroke:#2a6db5}.limit{stroke:#2f8f5b}\n"
			    ".single{stroke:#b0413e;stroke-dasharray:1 3}\n"
			    "@media(prefers-color-scheme:dark){.fifo{stroke:#a3a7ae}.around{stroke:#b892d0}\n"
			    ".resident{stroke:#ec8f43}.prefetch{stroke:#5c9fe6}.limit{stroke:#58b987}}\n";

static const char *milliseconds(char text[TEXT_BYTES], uint64_t value)
{
	return text_seconds(text, value * 1000);
}

static double most_of(const struct lora_report *report, const struct lora_load *load)
{
	double most = 1;

	for (int i = 0; i < report->strategy_count; i++)
		for (int window = 0; window < LORA_WINDOWS; window++)
			if (1e3 * load->results[i].window_first[window] > most)
				most = 1e3 * load->results[i].window_first[window];
	return most;
}

static void draw_curve(const struct chart *chart, const struct lora_result *result)
{
	double x[LORA_WINDOWS], y[LORA_WINDOWS];
	struct chart_curve curve = {
		.css_class = result->strategy->name, .title = result->strategy->name, .x = x, .high = y};

	for (int window = 0; window < LORA_WINDOWS; window++) {
		if (result->window_first[window] < 0)
			continue;
		x[curve.count] = chart->x_most * (window + 0.5) / LORA_WINDOWS;
		y[curve.count++] = 1e3 * result->window_first[window];
	}
	chart_line(chart, &curve);
}

static void draw_panel(const struct lora_report *report, FILE *out, const struct lora_load *load, double top)
{
	const struct lora_workload *workload = report->plan->workload;
	struct chart chart = {.out = out,
		.width = CHART_PAGE_WIDTH,
		.height = PANEL_HEIGHT,
		.y_most = most_of(report, load),
		.y_text = milliseconds,
		.within = true,
		.x_most = (double)(workload->requests[workload->count - 1].arrival_us + 1) / load->speed / 1e6,
		.top = top + CHART_PANEL_HEAD};

	chart_page_panel(out, top, "busy for %.0f %% of the time without loads, %.2f requests per second",
		100 * load->alone.busy, requests_rate(report, &load->alone));
	chart_begin(&chart, "time to the first token over time", "mean time to the first token");
	for (int i = 0; i < report->strategy_count; i++)
		draw_curve(&chart, &load->results[i]);
	chart_end(&chart, 1);
}

int lora_report_draw(const void *context, FILE *out)
{
	const struct lora_report *report = context;
	int panel_height = CHART_PANEL_HEAD + PANEL_HEIGHT + CHART_PANEL_GAP;
	char requests[TEXT_BYTES], adapters[TEXT_BYTES];
	double x = CHART_LEFT;

	chart_page_begin(out, CHART_PAGE_WIDTH, CHART_PAGE_HEAD + report->load_count * panel_height, style,
		report->trace_name ? report->trace_name : "random", ": %s requests with %s adapters",
		text_count(requests, report->plan->workload->count),
		text_count(adapters, report->plan->workload->adapter_count));
	for (int i = 0; i < report->strategy_count; i++) {
		const char *name = report->loads[0].results[i].strategy->name;

		chart_page_key(out, &x, false, name, name);
	}
	for (int i = 0; i < report->load_count; i++)
		draw_panel(report, out, &report->loads[i], CHART_PAGE_HEAD + i * panel_height);
	return 0;
}
