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

static double tokens_per_second(const struct run *run)
{
	return run->seconds > 0 ? (double)run->total.tokens / run->seconds : 0;
}

static double mean_wait_us(const struct run *run)
{
	return run->total.finished ? (double)run->total.wait_us / (double)run->total.finished : 0;
}

/*
 * Add a row: for each `run`, a text in printf format; and the ratio of the numbers `compared`. The texts may use the
 * buffers a and b.
 */
#define ROW(name, compared, ...) \
	do { \
		struct summary_row *row = &rows[count++]; \
		double numbers[2] = {0, 0}; \
\
		memset(row, 0, sizeof *row); \
		snprintf(row->label, sizeof row->label, "%s", name); \
		for (int i = 0; i < 2 && runs[i]; i++) { \
			const struct run *run = runs[i]; \
\
			numbers[i] = (double)(compared); \
			snprintf(i ? row->split : row->shared, sizeof row->shared, __VA_ARGS__); \
		} \
		if (runs[1] && numbers[0] > 0) \
			snprintf(row->ratio, sizeof row->ratio, "%.2f", numbers[1] / numbers[0]); \
	} while (0)
#define NOT_COMPARED ((void)run, 0)
/* Add a row of one number, with the ratio, or of two numbers, without it. */
#define ROW_OF(name, format, number) ROW(name, number, "%s", format(a, (uint64_t)(number)))
#define ROW_PAIR(name, compared, first, second) \
	ROW(name, compared, "%s / %s", text_count(a, (uint64_t)(first)), text_count(b, (uint64_t)(second)))

size_t summary_rows(const struct run *shared, const struct run *split, struct summary_row rows[SUMMARY_ROWS_MAX])
{
	const struct run *runs[2] = {shared, split};
	char a[TEXT_BYTES], b[TEXT_BYTES];
	size_t count = 0;

	ROW("requests finished", NOT_COMPARED, "%s of %s", text_count(a, run->total.finished),
		text_count(b, run->total.requests));
	ROW("tokens", NOT_COMPARED, "%s", text_count(a, run->total.tokens));
	ROW("time of the run, counted in steps", run->seconds, "%.1f s", run->seconds);
	ROW("wall-clock time", NOT_COMPARED, "%.1f s", run->wall_seconds);
	ROW("tokens per second", tokens_per_second(run), "%s", text_rate(a, tokens_per_second(run)));
	ROW_PAIR("pages at the peak: leased / needed", run->peak_pages, run->peak_pages, run->peak_needed_pages);
	ROW_PAIR("mean pages: leased / needed", run->mean_needed_pages, run->mean_pages + 0.5,
		run->mean_needed_pages + 0.5);
	ROW_PAIR("pages lent while idle: first / second", NOT_COMPARED, run->gave_pages[0], run->gave_pages[1]);
	ROW_OF("times a request waited for pages", text_count, run->total.waits);
	ROW_OF("wait for pages, mean of all requests", text_seconds, mean_wait_us(run));
	ROW_OF("wait for pages, 99th percentile", text_seconds, run->total.wait_p99_us);
	ROW_OF("time to the first token, mean", text_seconds, run->total.first_token_us);
	ROW_OF("time to the first token, 99th percentile", text_seconds, run->total.first_token_p99_us);
	ROW_OF("preemptions", text_count, run->total.preemptions);
	ROW_OF("tokens recomputed", text_count, run->total.recomputed_tokens);
	ROW_PAIR("cached prefixes: reused / evicted", NOT_COMPARED, run->total.prefix_hits, run->total.prefix_losses);
	ROW_PAIR(
		"evictions by the agent: blocks / pages", NOT_COMPARED, run->agent.evictions, run->agent.evicted_pages);
	ROW_PAIR("engines killed / requests restarted", NOT_COMPARED, run->kill_count, run->total.restarted);
	ROW_OF("KV written", text_bytes, run->total.bytes_written);
	ROW_OF("KV verified", text_bytes, run->total.bytes_verified);
	ROW("invariants checked at the end", NOT_COMPARED, "%s pages, %llu found",
		text_count(a, run->agent.pages_checked), (unsigned long long)run->agent.findings);
	ROW_OF("errors", text_count, run->errors);
	return count;
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
	/* Print the seed as text: a double cannot represent every 64-bit number. */
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
