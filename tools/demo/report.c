#include "tools/demo/report.h"

#include "shm/plural.h"
#include "tools/lib/chart.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 1000, POOL_HEIGHT = 330, WAIT_HEIGHT = 190, MARGINS = 50, MANY_KILLS = 12 };

/* The file style.css, as a string. */
__asm__(".pushsection .rodata\n"
	".global demo_style\n"
	"demo_style:\n"
	".incbin \"tools/demo/style.css\"\n"
	".byte 0\n"
	".popsection\n");
extern const char demo_style[];

static void escape(FILE *out, const char *text)
{
	for (; *text; text++)
		switch (*text) {
		case '&': fputs("&amp;", out); break;
		case '<': fputs("&lt;", out); break;
		case '>': fputs("&gt;", out); break;
		case '"': fputs("&quot;", out); break;
		default: fputc(*text, out);
		}
}

/* ---- curves ---- */

/* The kinds of leased pages, from bottom to top. */
enum band { BAND_NEEDED, BAND_OFFERED, BAND_IDLE, BANDS };
static const char *const band_names[BANDS] = {"needed", "offered", "idle"};

/* The samples of a run at the resolution of a drawing: each point is the mean of several samples. */
struct curves {
	double x[CHART_POINTS_MAX];
	double bands[BANDS][BOARD_ENGINES][CHART_POINTS_MAX];
	double waiting[CHART_POINTS_MAX];
	size_t count;
};

static void curves_make(struct curves *curves, const struct run *run)
{
	uint32_t group = (run->sample_count + CHART_POINTS_MAX - 1) / CHART_POINTS_MAX;

	memset(curves, 0, sizeof *curves);
	for (uint32_t first = 0; first < run->sample_count; first += group) {
		uint32_t count = run->sample_count - first < group ? run->sample_count - first : group;
		size_t at = curves->count++;

		for (uint32_t i = first; i < first + count; i++) {
			const struct run_sample *sample = &run->samples[i];

			curves->x[at] += (double)sample->time_us / 1e6 / count;
			for (int e = 0; e < BOARD_ENGINES; e++) {
				curves->bands[BAND_NEEDED][e][at] += (double)sample->engines[e].needed_pages / count;
				curves->bands[BAND_OFFERED][e][at] += (double)sample->engines[e].offered_pages / count;
				curves->bands[BAND_IDLE][e][at] += (double)sample->engines[e].idle_pages / count;
				curves->waiting[at] += (double)sample->engines[e].waiting / count;
			}
		}
	}
}

/* Stack `values` on `base`: copy `base` to `low`, and add the values to `base`. */
static void stack(double *low, double *base, const double *values, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		low[i] = base[i];
		base[i] += values[i];
	}
}

static void draw_layer(const struct chart *chart, const struct plan *plan, const struct curves *curves, int engine,
	enum band band, double *base)
{
	double low[CHART_POINTS_MAX];
	char title[96], css_class[24];
	struct chart_curve curve = {.css_class = css_class,
		.title = title,
		.x = curves->x,
		.low = low,
		.high = base,
		.count = curves->count};

	snprintf(title, sizeof title, "%s: %s", plan->traces[engine].name, band_names[band]);
	snprintf(css_class, sizeof css_class, "e%d %s", engine, band_names[band]);
	stack(low, base, curves->bands[band][engine], curves->count);
	chart_area(chart, &curve);
}

/* On a narrow screen, the drawing can be scrolled. */
static void drawing_begin(const struct chart *chart, const char *label, const char *y_name)
{
	fputs("<div class=\"scroll\">", chart->out);
	chart_begin(chart, label, y_name);
}

static void drawing_end(const struct chart *chart, bool with_time)
{
	chart_end(chart, with_time);
	fputs("</div>\n", chart->out);
}

/* Draw all kills, or those of one engine. */
static void draw_kills(const struct chart *chart, const struct plan *plan, const struct run *run, int engine)
{
	for (uint32_t i = 0; i < run->kill_count; i++) {
		const struct run_kill *kill = &run->kills[i];
		char title[96];

		if (engine >= 0 && kill->engine != (uint32_t)engine)
			continue;
		snprintf(title, sizeof title, "engine %s killed at %.1f s", plan->traces[kill->engine].name,
			(double)kill->time_us / 1e6);
		chart_event(chart, (double)kill->time_us / 1e6, run->kill_count > MANY_KILLS ? "many" : "few", title);
	}
}

/* Mark the start of each idle time of an engine, or of all engines (-1). */
static void draw_turns(const struct chart *chart, const struct plan *plan, int engine)
{
	for (int e = 0; plan->idle_us > 0 && e < BOARD_ENGINES; e++) {
		double from_s = (double)plan_idle_from_us(plan, (uint32_t)e) / 1e6;
		char title[128];

		if (engine >= 0 && e != engine)
			continue;
		snprintf(title, sizeof title, "no requests arrive for %s from %.1f s to %.1f s", plan->traces[e].name,
			from_s, from_s + (double)plan->idle_us / 1e6);
		chart_event(chart, from_s, "turn", title);
	}
}

static void draw_shared(FILE *out, const struct plan *plan, const struct run *run, double seconds)
{
	struct chart chart = {.out = out,
		.width = WIDTH,
		.height = POOL_HEIGHT,
		.x_most = seconds,
		.y_most = plan->page_count,
		.y_step = plan->page_count / 4.0};
	static struct curves curves;
	double base[CHART_POINTS_MAX] = {0};

	curves_make(&curves, run);
	drawing_begin(&chart, "pages of both engines in the shared pool over time", "pages of both engines");
	for (enum band band = 0; band < BANDS; band++)
		for (int e = 0; e < BOARD_ENGINES; e++)
			draw_layer(&chart, plan, &curves, e, band, base);
	chart_level(&chart, plan->page_count, "pool size");
	draw_kills(&chart, plan, run, -1);
	draw_turns(&chart, plan, -1);
	drawing_end(&chart, 1);
}

static void draw_half(FILE *out, const struct plan *plan, const struct run *run, int engine, double seconds)
{
	/* Draw a page as high as in the drawing of the shared pool. */
	struct chart chart = {.out = out,
		.width = WIDTH,
		.height = (POOL_HEIGHT - MARGINS) / 2.0 + MARGINS,
		.x_most = seconds,
		.y_most = plan->page_count / 2.0,
		.y_step = plan->page_count / 4.0};
	static struct curves curves;
	double base[CHART_POINTS_MAX] = {0};
	char label[96], name[96];

	curves_make(&curves, run);
	snprintf(label, sizeof label, "pages of engine %s in its half over time", plan->traces[engine].name);
	snprintf(name, sizeof name, "pages of %s", plan->traces[engine].name);
	drawing_begin(&chart, label, name);
	for (enum band band = 0; band < BANDS; band++)
		draw_layer(&chart, plan, &curves, engine, band, base);
	chart_level(&chart, plan->page_count / 2.0, "half of the pool");
	draw_kills(&chart, plan, run, engine);
	draw_turns(&chart, plan, engine);
	drawing_end(&chart, engine == BOARD_ENGINES - 1);
}

static double most_waiting(const struct run *run)
{
	double most = 0;

	for (uint32_t i = 0; run && i < run->sample_count; i++) {
		double now = 0;

		for (int e = 0; e < BOARD_ENGINES; e++)
			now += run->samples[i].engines[e].waiting;
		most = now > most ? now : most;
	}
	return most;
}

static void draw_waiting(FILE *out, const struct run *shared, const struct run *split, double seconds)
{
	double most = most_waiting(shared), other = most_waiting(split);
	struct chart chart = {.out = out,
		.width = WIDTH,
		.height = WAIT_HEIGHT,
		.x_most = seconds,
		.y_most = (most > other ? most : other) > 4 ? (most > other ? most : other) : 4};
	static struct curves curves;
	struct chart_curve curve = {.x = curves.x, .high = curves.waiting};

	drawing_begin(&chart, "requests waiting over time", "waiting requests");
	if (split) {
		curves_make(&curves, split);
		curve.count = curves.count;
		curve.css_class = "split";
		curve.title = "two halves";
		chart_line(&chart, &curve);
	}
	curves_make(&curves, shared);
	curve.count = curves.count;
	curve.css_class = "shared";
	curve.title = "shared pool";
	chart_line(&chart, &curve);
	drawing_end(&chart, 1);
}

/* ---- parts of the document ---- */

static void tile(FILE *out, const char *css_class, const char *figure, const char *text)
{
	fprintf(out, "<div class=\"tile\"><b class=\"%s\">%s</b><span>%s</span></div>\n", css_class, figure, text);
}

static void write_tiles(FILE *out, const struct run *shared, const struct run *split)
{
	uint64_t errors = shared->errors + (split ? split->errors : 0);
	uint64_t verified = shared->total.bytes_verified + (split ? split->total.bytes_verified : 0);
	uint32_t kills = shared->kill_count + (split ? split->kill_count : 0);
	bool complete = shared->complete && (!split || split->complete);
	char a[TEXT_BYTES], b[TEXT_BYTES], figure[2 * TEXT_BYTES + 8];

	fputs("<div class=\"tiles\">\n", out);
	tile(out, errors ? "bad" : "good", text_count(a, errors), errors == 1 ? "error" : "errors");
	tile(out, "", text_bytes(a, verified), "of KV verified, byte by byte");
	tile(out, complete ? "" : "bad", text_count(a, shared->total.finished),
		complete ? "requests finished: all" : "requests finished: not all");
	tile(out, "", text_count(a, kills), "kills of an engine, followed by a restart");
	if (shared->gave_pages[0] + shared->gave_pages[1] > 0) {
		snprintf(figure, sizeof figure, "%s / %s", text_count(a, shared->gave_pages[0]),
			text_count(b, shared->gave_pages[1]));
		tile(out, "", figure,
			"pages of its half that the first / second engine did not need while it was idle, and the "
			"other used");
	}
	if (split) {
		snprintf(figure, sizeof figure, "%.1f s / %.1f s", shared->seconds, split->seconds);
		tile(out, "", figure, "to finish all requests, on the shared pool / on two halves");
		snprintf(figure, sizeof figure, "%s / %s",
			text_seconds(a, shared->total.finished ? shared->total.wait_us / shared->total.finished : 0),
			text_seconds(b, split->total.finished ? split->total.wait_us / split->total.finished : 0));
		tile(out, "", figure, "mean wait of a request for pages, shared / halves");
	}
	fputs("</div>\n", out);
}

static void write_errors(FILE *out, const struct run *run)
{
	if (!run || run->errors == 0)
		return;
	fprintf(out, "<p class=\"bad\"><b>%llu error%s on %s.</b> The first: ", (unsigned long long)run->errors,
		plural(run->errors), run->split ? "the two halves" : "the shared pool");
	escape(out, run->error_text);
	fputs("</p>\n", out);
}

static void write_legend(FILE *out, const struct plan *plan)
{
	fputs("<ul class=\"legend\">\n", out);
	for (int e = 0; e < BOARD_ENGINES; e++) {
		fprintf(out, "<li><i style=\"background:var(--e%d)\"></i>%s, needed: running requests</li>\n", e,
			plan->traces[e].name);
		fprintf(out,
			"<li><i style=\"background:var(--e%dp)\"></i>%s, offered: cached until the page is "
			"needed</li>\n",
			e, plan->traces[e].name);
		fprintf(out, "<li><i style=\"background:var(--e%di)\"></i>%s, idle: no content</li>\n", e,
			plan->traces[e].name);
	}
	if (plan->idle_us > 0)
		fputs("<li><i class=\"rule\" style=\"border-top-color:var(--ink)\"></i>an engine becomes idle</li>\n",
			out);
	fputs("<li><i class=\"rule\" style=\"border-top-color:var(--kill);border-top-style:dotted\"></i>an engine was "
	      "killed</li></ul>\n",
		out);
}

static void write_table(FILE *out, const struct run *shared, const struct run *split)
{
	struct summary_row rows[SUMMARY_ROWS_MAX];
	size_t count = summary_rows(shared, split, rows);

	fprintf(out, "<div class=\"scroll\"><table><thead><tr><th></th><th>shared pool</th>%s</tr></thead><tbody>\n",
		split ? "<th>two halves</th><th>halves / shared</th>" : "");
	for (size_t i = 0; i < count; i++) {
		fprintf(out, "<tr><td>%s</td><td>%s</td>", rows[i].label, rows[i].shared);
		if (split)
			fprintf(out, "<td>%s</td><td>%s</td>", rows[i].split, rows[i].ratio);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

static void write_explanation(FILE *out, const struct plan *plan)
{
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES];

	fprintf(out,
		"<h2>What was run</h2>\n<p>Two engine processes, <b>%s</b> and <b>%s</b>, replayed the request traces "
		"of two services at the same time. A gpool agent leased them pages of one pool, on the back end "
		"<code>%s</code>. A request allocated pages for its context, and another page whenever its generated "
		"tokens had filled the last one. It wrote a unique pattern into every byte of these pages, verified "
		"every byte when it ended, and then released the pages. The context of a finished request remained in "
		"memory for %.3g s, unpinned; every fourth request began with such a context as its prefix, if it had "
		"not been evicted. A request for which no pages were available waited. If a running request could not "
		"grow, the youngest request released its pages and started over.</p>\n",
		plan->traces[0].name, plan->traces[1].name, plan->backend, PLAN_CACHE_S / plan->speed);
	if (plan->idle_us > 0)
		fprintf(out,
			"<p>For %.3g s, no requests arrived for <b>%s</b>, and afterwards none for <b>%s</b>. "
			"Meanwhile, twice as many arrived for the other engine, which then needed more than its "
			"half.</p>\n",
			(double)plan->idle_us / 1e6, plan->traces[0].name, plan->traces[1].name);
	fprintf(out,
		"<p>Requests arrived %.3g times as fast as in the traces. One step, which generates a token for each "
		"running request, took %s, instead of %d ms at the original rate, so that %.3g times as many requests "
		"were in flight as at that rate. No model was run: a step only writes and compares memory. All times "
		"are counted in steps, so a busy machine prolongs the run but hardly changes the figures. On the "
		"shared pool, each engine could use all %s pages; on the halves, %s pages. Requests and seed were the "
		"same in both runs. A killed engine served its unfinished requests again from the beginning.</p>\n",
		plan->speed, text_seconds(a, plan->step_us), PLAN_STEP_US / 1000, plan->load,
		text_count(b, plan->page_count), text_count(c, plan->page_count / 2));
}

static void write_facts(FILE *out, const struct summary_frame *frame)
{
	const struct plan *plan = frame->plan;
	char a[TEXT_BYTES], b[TEXT_BYTES];

	fputs("<dl>\n<dt>command</dt><dd><code>", out);
	escape(out, frame->command);
	fprintf(out, "</code></dd>\n<dt>seed</dt><dd>%llu</dd>\n<dt>date</dt><dd>%s</dd>\n<dt>machine</dt><dd>",
		(unsigned long long)plan->seed, frame->date);
	escape(out, frame->machine);
	fputs("</dd>\n<dt>traces</dt><dd>", out);
	escape(out, plan->trace_source);
	fprintf(out,
		": %s %u request%s, %s %u request%s. Azure Public Dataset, &ldquo;Azure LLM inference trace "
		"2023&rdquo; "
		"(Patel et al., Splitwise, ISCA 2024), CC-BY 4.0, unless other traces were specified</dd>\n",
		plan->traces[0].name, plan->traces[0].count, plural(plan->traces[0].count), plan->traces[1].name,
		plan->traces[1].count, plural(plan->traces[1].count));
	fprintf(out,
		"<dt>model</dt><dd>%s: %u layer%s, %u KV heads of %u, %s: %s bytes of KV per token, %u token%s per "
		"page</dd>\n",
		plan->model.name, plan->model.layers, plural(plan->model.layers), plan->model.kv_heads,
		plan->model.head_dim, plan->model.dtype, text_count(a, plan->model.token_bytes), plan->tokens_per_page,
		plural(plan->tokens_per_page));
	fprintf(out, "<dt>pool</dt><dd>%u page%s of %s, ", plan->page_count, plural(plan->page_count),
		text_bytes(a, plan->page_bytes));
	fprintf(out, "%s</dd>\n</dl>\n", text_bytes(b, plan->page_count * plan->page_bytes));
}

static void write_charts(FILE *out, const struct plan *plan, const struct run *shared, const struct run *split)
{
	double seconds = split && split->seconds > shared->seconds ? split->seconds : shared->seconds;

	fputs("<h2>One shared pool</h2>\n<p class=\"soft\">Pages of both engines over time, stacked. Pages that one "
	      "engine does not need are used by the other.</p>\n",
		out);
	draw_shared(out, plan, shared, seconds);
	write_legend(out, plan);
	if (split) {
		fputs("<h2>Two fixed halves</h2>\n<p class=\"soft\">The same requests, with half of the memory for "
		      "each engine, drawn at the same scale.</p>\n",
			out);
		for (int e = 0; e < BOARD_ENGINES; e++)
			draw_half(out, plan, split, e, seconds);
	}
	fputs("<h2>Requests waiting</h2>\n<p class=\"soft\">Requests of both engines that have arrived and have no "
	      "pages yet.</p>\n",
		out);
	draw_waiting(out, shared, split, seconds);
	fputs("<ul class=\"legend\"><li><i class=\"rule\" style=\"border-top-color:var(--shared)\"></i>shared "
	      "pool</li>",
		out);
	if (split)
		fputs("<li><i class=\"rule\" style=\"border-top-color:var(--split);border-top-style:dashed\"></i>two "
		      "halves</li>",
			out);
	fputs("</ul>\n", out);
}

static void write_page(FILE *out, const struct summary_frame *frame, const struct run *shared, const struct run *split)
{
	const struct plan *plan = frame->plan;

	fprintf(out,
		"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
		"content=\"width=device-width,initial-scale=1\"><title>gpool: two engines, one "
		"pool</title>\n<style>\n%s</style></head>\n<body><main>\n",
		demo_style);
	fprintf(out,
		"<h1>Two engines, one pool of GPU memory</h1>\n<p class=\"soft\">%s and %s, %u request%s of real "
		"traces, on gpool%s<br>%s</p>\n",
		plan->traces[0].name, plan->traces[1].name, plan->traces[0].count + plan->traces[1].count,
		plural(plan->traces[0].count + plan->traces[1].count), split ? " and on a fixed split" : "",
		frame->date);
	write_tiles(out, shared, split);
	write_errors(out, shared);
	write_errors(out, split);
	write_charts(out, plan, shared, split);
	fputs("<h2>Figures</h2>\n", out);
	write_table(out, shared, split);
	write_explanation(out, plan);
	fputs("<h2>Parameters</h2>\n", out);
	write_facts(out, frame);
	fputs("</main></body></html>\n", out);
}

int report_write(const struct summary_frame *frame, const struct run *shared, const struct run *split)
{
	char path[4096 + 16];
	FILE *out;
	int error = 0, length = snprintf(path, sizeof path, "%s.%d", frame->report, (int)getpid());

	if (length < 0 || (size_t)length >= sizeof path)
		return -ENAMETOOLONG;
	out = fopen(path, "wxe");
	if (!out)
		return -errno;
	write_page(out, frame, shared, split);
	if (ferror(out))
		error = -EIO;
	if (fclose(out) != 0 && !error)
		error = -errno;
	if (!error && rename(path, frame->report) != 0)
		error = -errno;
	if (error)
		unlink(path);
	return error;
}
