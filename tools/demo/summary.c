/* summary.c - see summary.h. */
#include "tools/demo/summary.h"

#include "tools/lib/json.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifndef GPOOL_VERSION
#define GPOOL_VERSION "unknown"
#endif

/* ---- rows ---- */

struct builder {
	const struct run *runs[2]; /* [1] may be NULL */
	struct summary_row *rows;
	size_t count;
};

typedef void (*value_text)(char *text, size_t bytes, const struct run *run);
typedef double (*value_number)(const struct run *run);

/* One row; `number` gives the ratio of the two runs, NULL: none. */
static void row_add(struct builder *builder, const char *label, value_text text, value_number number)
{
	struct summary_row *row = &builder->rows[builder->count++];
	const struct run *split = builder->runs[1];

	memset(row, 0, sizeof *row);
	snprintf(row->label, sizeof row->label, "%s", label);
	text(row->shared, sizeof row->shared, builder->runs[0]);
	if (!split)
		return;
	text(row->split, sizeof row->split, split);
	if (number && number(builder->runs[0]) > 0)
		snprintf(row->ratio, sizeof row->ratio, "%.2f", number(split) / number(builder->runs[0]));
}

static double tokens_per_second(const struct run *run)
{
	return run->seconds > 0 ? (double)run->total.tokens / run->seconds : 0;
}

static double mean_wait_us(const struct run *run)
{
	return run->total.finished ? (double)run->total.wait_us / (double)run->total.finished : 0;
}

static void requests_text(char *text, size_t bytes, const struct run *run)
{
	char a[TEXT_BYTES], b[TEXT_BYTES];

	snprintf(text, bytes, "%s of %s", text_count(a, run->total.finished), text_count(b, run->total.requests));
}

static void pair_text(char *text, size_t bytes, uint64_t first, const char *between, uint64_t second)
{
	char a[TEXT_BYTES], b[TEXT_BYTES];

	snprintf(text, bytes, "%s%s%s", text_count(a, first), between, text_count(b, second));
}

static void peak_text(char *text, size_t bytes, const struct run *run)
{
	pair_text(text, bytes, run->peak_pages, " / ", run->peak_needed_pages);
}

static void mean_text(char *text, size_t bytes, const struct run *run)
{
	pair_text(text, bytes, (uint64_t)(run->mean_pages + 0.5), " / ", (uint64_t)(run->mean_needed_pages + 0.5));
}

static void gave_text(char *text, size_t bytes, const struct run *run)
{
	pair_text(text, bytes, run->gave_pages[0], " / ", run->gave_pages[1]);
}

static void prefix_text(char *text, size_t bytes, const struct run *run)
{
	pair_text(text, bytes, run->total.prefix_hits, " / ", run->total.prefix_losses);
}

static void eviction_text(char *text, size_t bytes, const struct run *run)
{
	pair_text(text, bytes, run->agent.evictions, " / ", run->agent.evicted_pages);
}

static void kill_text(char *text, size_t bytes, const struct run *run)
{
	pair_text(text, bytes, run->kill_count, " / ", run->total.restarted);
}

static void check_text(char *text, size_t bytes, const struct run *run)
{
	char a[TEXT_BYTES];

	snprintf(text, bytes, "%s pages, %llu found", text_count(a, run->agent.pages_checked),
		(unsigned long long)run->agent.findings);
}

static void rate_text(char *text, size_t bytes, const struct run *run)
{
	char a[TEXT_BYTES];

	snprintf(text, bytes, "%s", text_rate(a, tokens_per_second(run)));
}

static void duration_text(char *text, size_t bytes, const struct run *run)
{
	snprintf(text, bytes, "%.1f s", run->seconds);
}

static void wall_text(char *text, size_t bytes, const struct run *run)
{
	snprintf(text, bytes, "%.1f s", run->wall_seconds);
}

static double duration_number(const struct run *run)
{
	return run->seconds;
}

/* Plain figures: how it reads and what is compared. */
#define FIGURE(name, format, expression) \
	static double name##_number(const struct run *run) \
	{ \
		return (double)(expression); \
	} \
	static void name##_text(char *text, size_t bytes, const struct run *run) \
	{ \
		char a[TEXT_BYTES]; \
		snprintf(text, bytes, "%s", format(a, (uint64_t)name##_number(run))); \
	}

FIGURE(tokens, text_count, run->total.tokens)
FIGURE(waits, text_count, run->total.waits)
FIGURE(wait_mean, text_seconds, mean_wait_us(run))
FIGURE(wait_p99, text_seconds, run->total.wait_p99_us)
FIGURE(first_mean, text_seconds, run->total.first_token_us)
FIGURE(first_p99, text_seconds, run->total.first_token_p99_us)
FIGURE(preemptions, text_count, run->total.preemptions)
FIGURE(recomputed, text_count, run->total.recomputed_tokens)
FIGURE(written, text_bytes, run->total.bytes_written)
FIGURE(verified, text_bytes, run->total.bytes_verified)
FIGURE(errors, text_count, run->errors)

static double peak_number(const struct run *run)
{
	return run->peak_pages;
}

static double mean_number(const struct run *run)
{
	return run->mean_needed_pages;
}

size_t summary_rows(const struct run *shared, const struct run *split, struct summary_row rows[SUMMARY_ROWS_MAX])
{
	struct builder builder = {.runs = {shared, split}, .rows = rows};

	row_add(&builder, "requests finished", requests_text, NULL);
	row_add(&builder, "tokens", tokens_text, NULL);
	row_add(&builder, "time of the run, in steps of the engines", duration_text, duration_number);
	row_add(&builder, "time on the clock", wall_text, NULL);
	row_add(&builder, "tokens a second", rate_text, tokens_per_second);
	row_add(&builder, "pages at the peak: leased / needed", peak_text, peak_number);
	row_add(&builder, "pages on average: leased / needed", mean_text, mean_number);
	row_add(&builder, "pages given way while idle: first / second", gave_text, NULL);
	row_add(&builder, "times a request waited for pages", waits_text, waits_number);
	row_add(&builder, "wait for pages, mean of all requests", wait_mean_text, wait_mean_number);
	row_add(&builder, "wait for pages, 99th percentile", wait_p99_text, wait_p99_number);
	row_add(&builder, "time to the first token, mean", first_mean_text, first_mean_number);
	row_add(&builder, "time to the first token, 99th percentile", first_p99_text, first_p99_number);
	row_add(&builder, "preemptions", preemptions_text, preemptions_number);
	row_add(&builder, "tokens computed again", recomputed_text, recomputed_number);
	row_add(&builder, "cached prefixes: used again / evicted", prefix_text, NULL);
	row_add(&builder, "evictions by the agent: blocks / pages", eviction_text, NULL);
	row_add(&builder, "engines killed / requests begun anew", kill_text, NULL);
	row_add(&builder, "KV written", written_text, written_number);
	row_add(&builder, "KV verified", verified_text, verified_number);
	row_add(&builder, "invariants checked at the end", check_text, NULL);
	row_add(&builder, "errors", errors_text, NULL);
	return builder.count;
}

void summary_print(FILE *out, const struct run *shared, const struct run *split)
{
	struct summary_row rows[SUMMARY_ROWS_MAX];
	size_t count = summary_rows(shared, split, rows);

	fprintf(out, "%-46s %18s", "", split ? "shared pool" : "one shared pool");
	if (split)
		fprintf(out, " %18s %16s", "two halves", "halves / shared");
	fputc('\n', out);
	for (size_t i = 0; i < count; i++) {
		fprintf(out, "%-46s %18s", rows[i].label, rows[i].shared);
		if (split)
			fprintf(out, " %18s %16s", rows[i].split, rows[i].ratio);
		fputc('\n', out);
	}
}

/* ---- JSON ---- */

static void json_score(cJSON *to, const struct run_score *score)
{
	JSON_FIELDS(to, {"requests", score->requests}, {"finished", score->finished}, {"failed", score->failed},
		{"restarted", score->restarted}, {"tokens", score->tokens}, {"waits", score->waits},
		{"wait_us", score->wait_us}, {"wait_p99_us", score->wait_p99_us},
		{"first_token_mean_us", score->first_token_us}, {"first_token_p99_us", score->first_token_p99_us},
		{"preemptions", score->preemptions}, {"recomputed_tokens", score->recomputed_tokens},
		{"prefix_hits", score->prefix_hits}, {"prefix_hit_tokens", score->prefix_hit_tokens},
		{"prefix_losses", score->prefix_losses}, {"bytes_written", score->bytes_written},
		{"bytes_verified", score->bytes_verified});
}

static void json_agent(cJSON *to, const struct run_agent *agent)
{
	cJSON *object = json_object(to, "agent");

	JSON_FIELDS(object, {"evictions", agent->evictions}, {"evicted_pages", agent->evicted_pages},
		{"granted_pages", agent->grants}, {"reclaimed_pages", agent->reclaims}, {"refusals", agent->refusals},
		{"deaths", agent->deaths}, {"pages_left", agent->left_pages}, {"pages_checked", agent->pages_checked},
		{"findings", agent->findings});
}

static void json_run(cJSON *runs, const struct plan *plan, const struct run *run)
{
	cJSON *object = json_item(runs), *engines;

	json_text(object, "mode", run->split ? "split" : "shared");
	json_bool(object, "complete", run->complete);
	json_real(object, "errors", (double)run->errors);
	if (run->errors)
		json_text(object, "error", run->error_text);
	JSON_FIELDS(object, {"seconds", run->seconds}, {"wall_seconds", run->wall_seconds},
		{"tokens_per_second", tokens_per_second(run)}, {"peak_pages", run->peak_pages},
		{"peak_pinned_pages", run->peak_needed_pages}, {"peak_needed_pages", run->peak_needed_pages},
		{"mean_pages", run->mean_pages}, {"mean_pinned_pages", run->mean_needed_pages},
		{"mean_needed_pages", run->mean_needed_pages}, {"kills", run->kill_count},
		{"samples", run->sample_count}, {"missed_samples", run->missed_samples});
	json_score(object, &run->total);
	json_agent(object, &run->agent);
	engines = json_array(object, "engines");
	for (int i = 0; i < BOARD_ENGINES; i++) {
		cJSON *engine = json_item(engines);

		json_text(engine, "name", plan->traces[i].name);
		JSON_FIELDS(engine, {"idle_from_s", (double)plan_idle_from_us(plan, (uint32_t)i) / 1e6},
			{"gave_pages", run->gave_pages[i]});
		json_score(engine, &run->engines[i]);
	}
}

static void json_plan(cJSON *root, const struct plan *plan)
{
	cJSON *model = json_object(root, "model"), *pool = json_object(root, "pool");
	char seed[24];

	json_text(model, "name", plan->model.name);
	JSON_FIELDS(model, {"layers", plan->model.layers}, {"kv_heads", plan->model.kv_heads},
		{"head_dim", plan->model.head_dim});
	json_text(model, "dtype", plan->model.dtype);
	JSON_FIELDS(model, {"token_bytes", plan->model.token_bytes});
	JSON_FIELDS(pool, {"page_bytes", plan->page_bytes}, {"page_count", plan->page_count},
		{"tokens_per_page", plan->tokens_per_page});
	json_text(root, "traces", plan->trace_source);
	JSON_FIELDS(root, {"speed", plan->speed}, {"load", plan->load}, {"step_us", plan->step_us},
		{"idle_s", (double)plan->idle_us / 1e6}, {"kill_every_s", plan->kill_every_s});
	/* As text: a double cannot hold every 64-bit number. */
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)plan->seed);
	json_text(root, "seed", seed);
}

void summary_json(FILE *out, const struct summary_frame *frame, const struct run *shared, const struct run *split)
{
	cJSON *root = json_document("demo"), *runs;

	json_text(root, "program", "gpool-demo " GPOOL_VERSION);
	json_text(root, "date", frame->date);
	json_text(root, "machine", frame->machine);
	json_text(root, "command", frame->command);
	json_plan(root, frame->plan);
	runs = json_array(root, "runs");
	json_run(runs, frame->plan, shared);
	if (split)
		json_run(runs, frame->plan, split);
	json_real(root, "errors", (double)(shared->errors + (split ? split->errors : 0)));
	json_text(root, "report", frame->report);
	json_write(out, root, false);
}
