/* lora_report.c - see lora_report.h. */
#include "tools/replay/lora_report.h"

#include "tools/lib/chart.h"
#include "tools/lib/cli.h"
#include "tools/lib/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
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

static double patience(const struct lora_report *report)
{
	return (double)report->plan->options.patience_us / 1e6;
}

/* ---- for people ---- */

enum { HEAD_COLUMNS = 10, WORD_COLUMNS = 13 };

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
	printf("adapters  %s, %s of them asked for, by ", text_count(a, workload->adapter_count),
		text_count(b, workload->used_adapters));
	print_popularity(report->recipe);
	printf("; of %" PRIu32 " tenants\n", workload->tenant_count);
	printf("memory    %s of adapters (largest %s); room for %s hot, and %s of warm copies\n",
		text_bytes(a, workload->adapter_bytes), text_bytes(b, workload->largest_bytes),
		text_bytes(c, report->plan->limits.hot_bytes), text_bytes(d, report->plan->limits.warm_bytes));
	snprintf(text, sizeof(text),
		"step %g us, prefill %g us a token, decode %g us a request and step, adapter %g us a MiB and step; "
		"load %g us and disk %g GB/s, bus %g GB/s of warm copies, save %g GB/s",
		costs->step_us, costs->prefill_us, costs->decode_us, costs->adapter_us, costs->load_us, costs->disk,
		costs->bus, costs->save);
	fputs("costs     ", stdout);
	help_wrap(text, HEAD_COLUMNS, HEAD_COLUMNS);
	printf("bound     no request is bypassed for more than %g s\n", patience(report));
	printf("fixed     %s loads, if those with the most requests for their bytes stayed for ever, and each other "
	       "request were "
	       "one\n",
		text_count(a, report->fixed_loads));
}

static double change_percent(double now, double before)
{
	return before > 0 ? 100 * (now / before - 1) : 0;
}

static void print_result(const struct lora_report *report, const struct lora_result *result)
{
	printf("%-9s %9.3f %9.3f %9.3f %7" PRIu64 " %8.4f %7" PRIu64 " %7" PRIu64 " %9.2f %9.2f %7.2f\n",
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
		printf("\nCompute alone %.0f %% busy: requests %.2f times as fast as they came, %.2f a second\n",
			100 * alone->busy, load->speed, requests_rate(report, alone));
	else
		printf("\nRequests as they came, %.2f a second; compute alone %.0f %% busy\n",
			requests_rate(report, alone), 100 * alone->busy);
	printf("\n%-9s %9s %9s %9s %7s %8s %7s %7s %9s %9s %7s\n", "", "TTFT mean", "P50", "P99", "cold", "hit rate",
		"loads", "least", "requests", "longest", "passed");
	printf("%-9s %9s %9s %9s %7s %8s %7s %7s %9s %9s %7s\n", "strategy", "s", "s", "s", "starts", "", "", "loads",
		"a second", "wait, s", "over, s");
	printf("%-9s %9.3f %9.3f %9.3f %7s %8s %7s %7s %9.2f %9.2f\n", "(alone)", alone->first_mean, alone->first_p50,
		alone->first_p99, "", "", "", "", requests_rate(report, alone),
		(double)alone->scheduler.longest_wait_us / 1e6);
	for (int i = 0; i < report->strategy_count; i++)
		print_result(report, &load->results[i]);
	putchar('\n');
	for (int i = 1; i < report->strategy_count; i++)
		print_change(&load->results[i], &load->results[0]);
	if (report->strategy_count > 1)
		printf("with every adapter there: P99 %+.0f %%\n",
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
	explain("(alone)", "every adapter is there, always");
	for (int i = 0; i < report->strategy_count; i++)
		explain(report->loads[0].results[i].strategy->name, report->loads[0].results[i].strategy->text);
	putchar('\n');
	explain("TTFT", "time from arrival to the first token, queueing included");
	explain("cold starts", "requests whose turn it was, in order of arrival, and whose adapter was not there");
	explain("loads", "of adapters, those ahead of need included");
	explain("least loads",
		"nobody can do with fewer, who knows all requests beforehand and serves them in any order, as long as "
		"each is over when it was here, or within the bound");
	explain("passed over",
		"longest time from when a later request was first started before one to when the last such one was");
}

/* ---- for programs ---- */

static cJSON *result_json(const struct lora_report *report, const struct lora_result *result)
{
	const struct {
		const char *name;
		double value;
	} members[] = {
		{"ttft_mean_s", result->first_mean},
		{"ttft_p50_s", result->first_p50},
		{"ttft_p99_s", result->first_p99},
		{"ttft_p99_worst_tenant_s", result->first_p99_worst},
		{"requests", (double)result->scheduler.started},
		{"cold_starts", (double)result->scheduler.cold_starts},
		{"hit_rate", hit_rate(result)},
		{"loads", (double)loads_of(result)},
		{"loads_warm", (double)result->residency.loads_warm},
		{"loads_cold", (double)result->residency.loads_cold},
		{"least_loads", (double)result->least_loads},
		{"prefetches", (double)result->residency.prefetches},
		{"prefetches_used", (double)result->residency.prefetches_used},
		{"moves", (double)result->residency.moves},
		{"evictions", (double)result->residency.evictions},
		{"resident", (double)result->residency.resident},
		{"loading", (double)result->residency.loading},
		{"generated_tokens", (double)result->tokens},
		{"requests_per_s", requests_rate(report, result)},
		{"tokens_per_s", (double)result->tokens / result->seconds},
		{"longest_wait_s", (double)result->scheduler.longest_wait_us / 1e6},
		{"longest_passed_over_s", (double)result->scheduler.longest_bypass_us / 1e6},
		{"bypassed", (double)result->scheduler.bypassed},
		{"overdue", (double)result->scheduler.overdue},
		{"busy", result->busy},
		{"duration_s", result->seconds},
		{"steps", (double)result->steps},
		{"adapters_per_step", result->adapters_mean},
	};
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "strategy", result->strategy ? result->strategy->name : "alone");
	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
		cJSON_AddNumberToObject(object, members[i].name, members[i].value);
	return object;
}

static cJSON *workload_json(const struct lora_report *report)
{
	const struct lora_workload *workload = report->plan->workload;
	cJSON *object = cJSON_CreateObject();

	if (report->trace_name)
		cJSON_AddStringToObject(object, "trace", report->trace_name);
	cJSON_AddNumberToObject(object, "requests", workload->count);
	cJSON_AddNumberToObject(object, "tokens", (double)workload->tokens);
	cJSON_AddNumberToObject(object, "adapters", workload->adapter_count);
	cJSON_AddNumberToObject(object, "adapters_used", workload->used_adapters);
	cJSON_AddNumberToObject(object, "tenants", workload->tenant_count);
	cJSON_AddNumberToObject(object, "fixed_loads", (double)report->fixed_loads);
	cJSON_AddStringToObject(object, "popularity", report->recipe->zipf ? "zipf" : "power");
	cJSON_AddNumberToObject(object, "exponent", report->recipe->exponent);
	cJSON_AddNumberToObject(object, "seed", (double)report->recipe->seed);
	return object;
}

static cJSON *model_json(const struct lora_report *report)
{
	const struct lora_plan *plan = report->plan;
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "step_us", plan->costs.step_us);
	cJSON_AddNumberToObject(object, "prefill_us_per_token", plan->costs.prefill_us);
	cJSON_AddNumberToObject(object, "decode_us_per_request", plan->costs.decode_us);
	cJSON_AddNumberToObject(object, "adapter_us_per_mib", plan->costs.adapter_us);
	cJSON_AddNumberToObject(object, "load_us", plan->costs.load_us);
	cJSON_AddNumberToObject(object, "disk_gb_per_s", plan->costs.disk);
	cJSON_AddNumberToObject(object, "bus_gb_per_s", plan->costs.bus);
	cJSON_AddNumberToObject(object, "save_gb_per_s", plan->costs.save);
	cJSON_AddNumberToObject(object, "hot_bytes", (double)plan->limits.hot_bytes);
	cJSON_AddNumberToObject(object, "warm_bytes", (double)plan->limits.warm_bytes);
	cJSON_AddNumberToObject(object, "patience_s", patience(report));
	cJSON_AddNumberToObject(object, "look_ahead", plan->options.look_ahead);
	cJSON_AddNumberToObject(object, "batch_adapters", plan->options.batch_adapters);
	cJSON_AddNumberToObject(object, "batch_requests", plan->options.batch_requests);
	cJSON_AddNumberToObject(object, "batch_tokens", plan->options.batch_tokens);
	return object;
}

static cJSON *load_json(const struct lora_report *report, const struct lora_load *load)
{
	cJSON *object = cJSON_CreateObject(), *list;

	cJSON_AddNumberToObject(object, "busy_percent", load->busy_percent);
	cJSON_AddNumberToObject(object, "speed", load->speed);
	cJSON_AddItemToObject(object, "alone", result_json(report, &load->alone));
	list = cJSON_AddArrayToObject(object, "results");
	for (int i = 0; i < report->strategy_count; i++)
		cJSON_AddItemToArray(list, result_json(report, &load->results[i]));
	return object;
}

int lora_report_json(const struct lora_report *report)
{
	cJSON *object = cJSON_CreateObject(), *list;
	char *text;

	cJSON_AddNumberToObject(object, "version", 1);
	cJSON_AddStringToObject(object, "kind", "replay-lora");
	cJSON_AddItemToObject(object, "workload", workload_json(report));
	cJSON_AddItemToObject(object, "model", model_json(report));
	list = cJSON_AddArrayToObject(object, "loads");
	for (int i = 0; i < report->load_count; i++)
		cJSON_AddItemToArray(list, load_json(report, &report->loads[i]));
	text = cJSON_Print(object);
	cJSON_Delete(object);
	if (!text)
		return -ENOMEM;
	puts(text);
	cJSON_free(text);
	return 0;
}

/* ---- the chart ---- */

enum { WIDTH = 1000, HEAD = 74, PANEL_HEAD = 30, PANEL_HEIGHT = 200 };

/* Told apart by people with any kind of colour vision; the orders of arrival by their dashes, too. */
static const char style[] =
	"text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#5c6068}\n"
	".title{font-size:17px;font-weight:600;fill:#1c1d20}.panel{font-size:14px;font-weight:600;fill:#1c1d20}\n"
	".page{fill:#fcfcfb}.grid{stroke:#dcdcd6;stroke-width:1}.axis{stroke:#5c6068;stroke-width:1}\n"
	".line{fill:none;stroke-width:2}.fifo{stroke:#5c6068;stroke-dasharray:4 "
	"3}.around{stroke:#9a6bb5;stroke-dasharray:4 3}\n"
	".resident{stroke:#e0812e}.prefetch{stroke:#2a6db5}.limit{stroke:#2f8f5b}\n"
	"@media(prefers-color-scheme:dark){text{fill:#a3a7ae}.title,.panel{fill:#e8e8e4}\n"
	".page{fill:#17181b}.grid{stroke:#34363b}.axis{stroke:#a3a7ae}\n"
	".fifo{stroke:#a3a7ae}.around{stroke:#b892d0}.resident{stroke:#ec8f43}.prefetch{stroke:#5c9fe6}.limit{stroke:#"
	"58b987}}\n";

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
		.width = WIDTH,
		.height = PANEL_HEIGHT,
		.y_most = most_of(report, load),
		.y_text = milliseconds,
		.within = true,
		.x_most = (double)(workload->requests[workload->count - 1].arrival_us + 1) / load->speed / 1e6,
		.top = top + PANEL_HEAD};

	fprintf(out,
		"<text class=\"panel\" x=\"%d\" y=\"%.0f\">compute alone %.0f %% busy, %.2f requests a second</text>\n",
		CHART_LEFT, top + 18, 100 * load->alone.busy, requests_rate(report, &load->alone));
	chart_begin(&chart, "time to the first token over time", "mean time to the first token");
	for (int i = 0; i < report->strategy_count; i++)
		draw_curve(&chart, &load->results[i]);
	chart_end(&chart, 1);
}

static void draw_head(const struct lora_report *report, FILE *out, double height)
{
	const char *slash = report->trace_name ? strrchr(report->trace_name, '/') : NULL;
	char requests[TEXT_BYTES], adapters[TEXT_BYTES];
	double x = CHART_LEFT;

	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" "
		"role=\"img\">\n<style>%s</style>\n"
		"<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n<text class=\"title\" x=\"%d\" y=\"28\">",
		WIDTH, height, WIDTH, height, style, CHART_LEFT);
	chart_escape(out, slash ? slash + 1 : report->trace_name ? report->trace_name : "random");
	fprintf(out, ": %s requests with %s adapters</text>\n", text_count(requests, report->plan->workload->count),
		text_count(adapters, report->plan->workload->adapter_count));
	for (int i = 0; i < report->strategy_count; i++) {
		const char *name = report->loads[0].results[i].strategy->name;

		fprintf(out,
			"<line class=\"line %s\" x1=\"%.0f\" x2=\"%.0f\" y1=\"53\" y2=\"53\"/><text x=\"%.0f\" "
			"y=\"57\">%s</text>\n",
			name, x, x + 24, x + 30, name);
		x += 60 + 7 * (double)strlen(name);
	}
}

int lora_report_draw(const struct lora_report *report, FILE *out)
{
	int panel_height = PANEL_HEAD + PANEL_HEIGHT + 8;

	draw_head(report, out, HEAD + report->load_count * panel_height);
	for (int i = 0; i < report->load_count; i++)
		draw_panel(report, out, &report->loads[i], HEAD + i * panel_height);
	fputs("</svg>\n", out);
	return fflush(out) || ferror(out) ? -EIO : 0;
}
