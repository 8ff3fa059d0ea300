#include "tools/replay/prefix_report.h"

#include "tools/lib/chart.h"
#include "tools/lib/json.h"
#include "tools/lib/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_COLUMNS = 10, VALUE_COLUMNS = 10 };

static const struct prefix_result *result_at(const struct prefix_report *report, int size, int policy)
{
	return &report->results[size * report->policies + policy];
}

/* ---- table ---- */

void prefix_report_print(const struct prefix_report *report)
{
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES], d[TEXT_BYTES];

	printf("trace  %s: %s requests, %s blocks, %s of them different, %s in the longest request\n\n",
		report->trace_name, text_count(a, report->trace->request_count),
		text_count(b, report->trace->block_count), text_count(c, report->trace->node_count),
		text_count(d, report->trace->longest));
	printf("Hit rate, the share of the blocks that were found, by size of the cache:\n\n%*s", SIZE_COLUMNS,
		"blocks");
	for (int policy = 0; policy < report->policies; policy++)
		printf(" %*s", VALUE_COLUMNS, eviction_policy_name(result_at(report, 0, policy)->policy));
	putchar('\n');
	for (int size = 0; size < report->sizes; size++) {
		printf("%*s", SIZE_COLUMNS, text_count(a, result_at(report, size, 0)->capacity));
		for (int policy = 0; policy < report->policies; policy++)
			printf(" %*.4f", VALUE_COLUMNS, prefix_rate(result_at(report, size, policy)));
		putchar('\n');
	}
}

/* ---- JSON ---- */

static void result_json(cJSON *object, const struct prefix_result *result)
{
	json_real(object, "capacity_blocks", result->capacity);
	json_text(object, "policy", eviction_policy_name(result->policy));
	JSON_FIELDS(object, {"hits", result->hits}, {"blocks", result->blocks}, {"hit_rate", prefix_rate(result)},
		{"evictions", result->stats.evictions}, {"returns", result->stats.returns},
		{"duration_ns", result->duration_ns});
}

static void trace_json(cJSON *object, const struct prefix_report *report)
{
	json_text(object, "name", report->trace_name);
	JSON_FIELDS(object, {"requests", report->trace->request_count}, {"blocks", report->trace->block_count},
		{"different_blocks", report->trace->node_count}, {"longest_request_blocks", report->trace->longest});
}

void prefix_report_json(const struct prefix_report *report)
{
	cJSON *object = json_document("replay-kv"), *list;

	trace_json(json_object(object, "trace"), report);
	list = json_array(object, "results");
	for (int i = 0; i < report->sizes * report->policies; i++)
		result_json(json_item(list), &report->results[i]);
	json_write(stdout, object, false);
}

/* ---- the chart ---- */

enum { PANEL_HEIGHT = 200 };

/* All kinds of color vision can distinguish them; the optimum also has dashes. */
static const char style[] =
	".lru{stroke:#e0812e}.adaptive{stroke:#2a6db5}.optimum{stroke:#5c6068;stroke-dasharray:4 3}\n"
	".lru2{stroke:#2f9e63}.gdsf{stroke:#b0418f}.s3fifo{stroke:#8a6d1f}.lfu{stroke:#c23b3b}.fifo{stroke:#3aa0a8}\n"
	"@media(prefers-color-scheme:dark){.lru{stroke:#ec8f43}.adaptive{stroke:#5c9fe6}.optimum{stroke:#a3a7ae}}\n";

static const char *percent(char text[TEXT_BYTES], uint64_t value)
{
	snprintf(text, TEXT_BYTES, "%" PRIu64 " %%", value);
	return text;
}

static double window_percent(const struct prefix_result *result, int window)
{
	return 100.0 * result->window_hits[window] / result->window_blocks[window];
}

static void draw_curve(const struct chart *chart, const struct prefix_result *result)
{
	double x[PREFIX_WINDOWS], y[PREFIX_WINDOWS];
	struct chart_curve curve = {.css_class = eviction_policy_name(result->policy),
		.title = eviction_policy_name(result->policy),
		.x = x,
		.high = y};

	for (int window = 0; window < PREFIX_WINDOWS; window++) {
		if (result->window_blocks[window] == 0)
			continue;
		x[curve.count] = chart->x_most * (window + 0.5) / PREFIX_WINDOWS;
		y[curve.count++] = window_percent(result, window);
	}
	chart_line(chart, &curve);
}

static void draw_panel(const struct prefix_report *report, FILE *out, int size, double most, double top)
{
	const struct prefix_trace *trace = report->trace;
	struct chart chart = {.out = out,
		.width = CHART_PAGE_WIDTH,
		.height = PANEL_HEIGHT,
		.y_most = most,
		.y_text = percent,
		.within = true,
		.x_most = (double)(trace->requests[trace->request_count - 1].time_ms + 1) / 1e3,
		.top = top + CHART_PANEL_HEAD};
	char blocks[TEXT_BYTES];

	fprintf(out, "<text class=\"panel\" x=\"%d\" y=\"%.0f\">%s blocks:", CHART_LEFT, top + 18,
		text_count(blocks, result_at(report, size, 0)->capacity));
	for (int policy = 0; policy < report->policies; policy++)
		fprintf(out, "%s %s %.4f", policy ? "," : "",
			eviction_policy_name(result_at(report, size, policy)->policy),
			prefix_rate(result_at(report, size, policy)));
	fputs("</text>\n", out);
	chart_begin(&chart, "hit rate over time", "share of blocks found");
	for (int policy = 0; policy < report->policies; policy++)
		draw_curve(&chart, result_at(report, size, policy));
	chart_end(&chart, 1);
}

int prefix_report_draw(const void *context, FILE *out)
{
	const struct prefix_report *report = context;
	int panel_height = CHART_PANEL_HEAD + PANEL_HEIGHT + CHART_PANEL_GAP;
	char requests[TEXT_BYTES], blocks[TEXT_BYTES];
	double most = 1, x = CHART_LEFT;

	for (int i = 0; i < report->sizes * report->policies; i++)
		for (int window = 0; window < PREFIX_WINDOWS; window++)
			if (report->results[i].window_blocks[window] &&
				window_percent(&report->results[i], window) > most)
				most = window_percent(&report->results[i], window);
	chart_page_begin(out, CHART_PAGE_WIDTH, CHART_PAGE_HEAD + report->sizes * panel_height, style,
		report->trace_name, ": %s requests with %s blocks", text_count(requests, report->trace->request_count),
		text_count(blocks, report->trace->block_count));
	for (int policy = 0; policy < report->policies; policy++) {
		const char *name = eviction_policy_name(result_at(report, 0, policy)->policy);

		chart_page_key(out, &x, false, name, name);
	}
	for (int size = 0; size < report->sizes; size++)
		draw_panel(report, out, size, most, CHART_PAGE_HEAD + size * panel_height);
	return 0;
}
