/* prefix_report.c - see prefix_report.h. */
#include "tools/replay/prefix_report.h"

#include "tools/lib/chart.h"
#include "tools/lib/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_COLUMNS = 10, VALUE_COLUMNS = 10 };

static const struct prefix_result *result_at(const struct prefix_report *report, int size, int policy)
{
	return &report->results[size * report->policies + policy];
}

/* ---- for people ---- */

void prefix_report_print(const struct prefix_report *report)
{
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES], d[TEXT_BYTES];

	printf("trace  %s: %s requests, %s blocks, %s of them different, %s in the longest request\n\n",
		report->trace_name, text_count(a, report->trace->request_count),
		text_count(b, report->trace->block_count), text_count(c, report->trace->node_count),
		text_count(d, report->trace->longest));
	printf("Share of the blocks that were found, by the size of the cache:\n\n%*s", SIZE_COLUMNS, "blocks");
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

/* ---- for programs ---- */

static cJSON *result_json(const struct prefix_result *result)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "capacity_blocks", result->capacity);
	cJSON_AddStringToObject(object, "policy", eviction_policy_name(result->policy));
	cJSON_AddNumberToObject(object, "hits", (double)result->hits);
	cJSON_AddNumberToObject(object, "blocks", (double)result->blocks);
	cJSON_AddNumberToObject(object, "hit_rate", prefix_rate(result));
	cJSON_AddNumberToObject(object, "evictions", (double)result->stats.evictions);
	cJSON_AddNumberToObject(object, "returns", (double)result->stats.returns);
	cJSON_AddNumberToObject(object, "duration_ns", (double)result->duration_ns);
	return object;
}

static cJSON *trace_json(const struct prefix_report *report)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "name", report->trace_name);
	cJSON_AddNumberToObject(object, "requests", report->trace->request_count);
	cJSON_AddNumberToObject(object, "blocks", report->trace->block_count);
	cJSON_AddNumberToObject(object, "different_blocks", report->trace->node_count);
	cJSON_AddNumberToObject(object, "longest_request_blocks", report->trace->longest);
	return object;
}

int prefix_report_json(const struct prefix_report *report)
{
	cJSON *object = cJSON_CreateObject(), *list;
	char *text;

	cJSON_AddNumberToObject(object, "version", 1);
	cJSON_AddStringToObject(object, "kind", "replay-kv");
	cJSON_AddItemToObject(object, "trace", trace_json(report));
	list = cJSON_AddArrayToObject(object, "results");
	for (int i = 0; i < report->sizes * report->policies; i++)
		cJSON_AddItemToArray(list, result_json(&report->results[i]));
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

/* Told apart by people with any kind of colour vision, and the optimum by its dashes, too. */
static const char style[] =
	"text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#5c6068}\n"
	".title{font-size:17px;font-weight:600;fill:#1c1d20}.panel{font-size:14px;font-weight:600;fill:#1c1d20}\n"
	".page{fill:#fcfcfb}.grid{stroke:#dcdcd6;stroke-width:1}.axis{stroke:#5c6068;stroke-width:1}\n"
	".line{fill:none;stroke-width:2}.lru{stroke:#e0812e}.adaptive{stroke:#2a6db5}.optimum{stroke:#5c6068;stroke-"
	"dasharray:4 "
	"3}\n"
	"@media(prefers-color-scheme:dark){text{fill:#a3a7ae}.title,.panel{fill:#e8e8e4}\n"
	".page{fill:#17181b}.grid{stroke:#34363b}.axis{stroke:#a3a7ae}\n"
	".lru{stroke:#ec8f43}.adaptive{stroke:#5c9fe6}.optimum{stroke:#a3a7ae}}\n";

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
		.width = WIDTH,
		.height = PANEL_HEIGHT,
		.y_most = most,
		.y_text = percent,
		.within = true,
		.x_most = (double)(trace->requests[trace->request_count - 1].time_ms + 1) / 1e3,
		.top = top + PANEL_HEAD};
	char blocks[TEXT_BYTES];

	fprintf(out, "<text class=\"panel\" x=\"%d\" y=\"%.0f\">%s blocks:", CHART_LEFT, top + 18,
		text_count(blocks, result_at(report, size, 0)->capacity));
	for (int policy = 0; policy < report->policies; policy++)
		fprintf(out, "%s %s %.4f", policy ? "," : "",
			eviction_policy_name(result_at(report, size, policy)->policy),
			prefix_rate(result_at(report, size, policy)));
	fputs("</text>\n", out);
	chart_begin(&chart, "hit rate over time", "blocks that were found");
	for (int policy = 0; policy < report->policies; policy++)
		draw_curve(&chart, result_at(report, size, policy));
	chart_end(&chart, 1);
}

static void draw_head(const struct prefix_report *report, FILE *out, double height)
{
	char requests[TEXT_BYTES], blocks[TEXT_BYTES];
	const char *slash = strrchr(report->trace_name, '/');
	double x = CHART_LEFT;

	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" "
		"role=\"img\">\n<style>%s</style>\n"
		"<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n<text class=\"title\" x=\"%d\" y=\"28\">",
		WIDTH, height, WIDTH, height, style, CHART_LEFT);
	chart_escape(out, slash ? slash + 1 : report->trace_name);
	fprintf(out, ": %s requests with %s blocks</text>\n", text_count(requests, report->trace->request_count),
		text_count(blocks, report->trace->block_count));
	for (int policy = 0; policy < report->policies; policy++) {
		const char *name = eviction_policy_name(result_at(report, 0, policy)->policy);

		fprintf(out,
			"<line class=\"line %s\" x1=\"%.0f\" x2=\"%.0f\" y1=\"53\" y2=\"53\"/><text x=\"%.0f\" "
			"y=\"57\">%s</text>\n",
			name, x, x + 24, x + 30, name);
		x += 60 + 7 * (double)strlen(name);
	}
}

int prefix_report_draw(const struct prefix_report *report, FILE *out)
{
	int panel_height = PANEL_HEAD + PANEL_HEIGHT + 8;
	double most = 1;

	for (int i = 0; i < report->sizes * report->policies; i++)
		for (int window = 0; window < PREFIX_WINDOWS; window++)
			if (report->results[i].window_blocks[window] &&
				window_percent(&report->results[i], window) > most)
				most = window_percent(&report->results[i], window);
	draw_head(report, out, HEAD + report->sizes * panel_height);
	for (int size = 0; size < report->sizes; size++)
		draw_panel(report, out, size, most, HEAD + size * panel_height);
	fputs("</svg>\n", out);
	return fflush(out) || ferror(out) ? -EIO : 0;
}
