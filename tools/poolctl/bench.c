/*
 * bench.c - a quick measurement of the running agent, with a few pages, while others use the pool.
 *
 * Each figure is a median over several tenths of a second. No pages are evicted, and the pages used are returned when
 * the sessions end. gpool-bench measures more precisely, with its own agent.
 */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "shm/monotonic.h"
#include "tools/poolctl/output.h"

#include "shm/pool_segment.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* attached one after the other; each session is one sample of attaching and of refilling a lease */
	SESSIONS = 15,
	BATCH = 16, /* blocks of one page, allocated together */
	BATCHES = 2001,
	COPIES = 101,
	PAGES_SHARE = 8, /* at most 1/PAGES_SHARE of the free pages is requested */
};

enum figure { FIGURE_ATTACH, FIGURE_REFILL, FIGURE_ALLOC, FIGURE_PIN, FIGURE_UNPIN, FIGURE_COPY, FIGURES };

/* Return the goal of the gpool-bench figure with the same name. */
static double goal_of(const char *name)
{
	static const struct {
		const char *name;
		double goal;
	} goals[] = {
#define FIGURE(group, name, unit, goal, text) {#name, goal},
#include "tools/bench/figures.def"
	};

	for (size_t i = 0; i < sizeof(goals) / sizeof(goals[0]); i++)
		if (!strcmp(goals[i].name, name))
			return goals[i].goal;
	return 0;
}

static const struct {
	const char *name, *unit, *goal_name, *text;
} figures[FIGURES] = {
	[FIGURE_ATTACH] = {"attach", "ms", "attach_40960", "attach and allocate the first page"},
	[FIGURE_REFILL] = {"refill", "us", "refill_p99",
		"allocate more pages than the lease contains: one request to the agent"},
	[FIGURE_ALLOC] = {"allocate", "ns", "alloc1", "allocate one page from the lease"},
	[FIGURE_PIN] = {"pin", "ns", "pin", "pin a block"},
	[FIGURE_UNPIN] = {"unpin", "ns", "unpin", "unpin a block"},
	[FIGURE_COPY] = {"copy", "GB/s", "", "copy a page to another one and wait for the copy"},
};

/* Samples of one figure. */
struct samples {
	double values[BATCHES];
	uint32_t count;
};

static void sample(struct samples *samples, double value)
{
	if (samples->count < BATCHES)
		samples->values[samples->count++] = value;
}

static int compare(const void *left, const void *right)
{
	const double *a = left, *b = right;

	return *a < *b ? -1 : *a > *b;
}

static double median(struct samples *samples)
{
	qsort(samples->values, samples->count, sizeof(samples->values[0]), compare);
	return samples->values[samples->count / 2];
}

static int block_alloc(struct gpool *pool, uint32_t pages, struct gpool_block *block)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	options.usage = GPOOL_USAGE_TEMP_BUFFER;
	return gpool_alloc(pool, pages, &options, block);
}

/* ---- measurements: each function returns 0 or an error of the library ---- */

/*
 * Allocate one page more than the leased pages that are not in blocks, which needs a request to the agent. Skip this if
 * it would be too many pages.
 */
static int measure_refill(struct gpool *pool, uint32_t most, struct samples *samples)
{
	struct gpool_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	struct gpool_block block;
	uint64_t begin, end;
	int error = gpool_stats(pool, &before);

	if (error || before.leased_pages + 1 > most)
		return error;
	begin = monotonic_ns();
	error = block_alloc(pool, before.leased_pages + 1, &block);
	end = monotonic_ns();
	if (error)
		return error;
	error = gpool_stats(pool, &after);
	if (!error && after.refills == before.refills + 1)
		sample(samples, (double)(end - begin) / 1e3);
	return error ? error : gpool_free(pool, &block);
}

static int measure_session(const struct command *command, uint32_t most, struct samples *samples)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_block block;
	struct gpool *pool;
	uint64_t begin = monotonic_ns();
	int error;

	options.directory = command->directory;
	options.pool = command->pool;
	options.name = "poolctl bench";
	options.timeout_ms = command->timeout_ms;
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	error = block_alloc(pool, 1, &block);
	if (!error) {
		sample(&samples[FIGURE_ATTACH], (double)(monotonic_ns() - begin) / 1e6);
		error = gpool_free(pool, &block);
	}
	if (!error)
		error = measure_refill(pool, most, &samples[FIGURE_REFILL]);
	gpool_close(pool);
	return error;
}

static int measure_batch(struct gpool *pool, struct samples *samples)
{
	struct gpool_block blocks[BATCH];
	uint64_t at[4];
	int error = 0, done = 0;

	at[0] = monotonic_ns();
	while (done < BATCH && !(error = block_alloc(pool, 1, &blocks[done])))
		done++;
	at[1] = monotonic_ns();
	for (int i = 0; i < done && !error; i++)
		error = gpool_pin(pool, &blocks[i]);
	at[2] = monotonic_ns();
	for (int i = 0; i < done && !error; i++)
		error = gpool_unpin(pool, &blocks[i]);
	at[3] = monotonic_ns();
	for (int i = 0; i < done; i++)
		gpool_free(pool, &blocks[i]);
	for (int i = 0; i < 3 && !error; i++)
		sample(&samples[FIGURE_ALLOC + i], (double)(at[i + 1] - at[i]) / BATCH);
	return error;
}

static int measure_copy(struct gpool *pool, uint32_t stream, const uint64_t addresses[2], struct samples *samples)
{
	uint64_t bytes = gpool_page_bytes(pool), begin = monotonic_ns();
	struct gpool_fence fence;
	int error = gpool_copy(pool, stream, addresses[1], addresses[0], bytes);

	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	if (!error)
		error = gpool_fence_wait(pool, fence, 5000);
	if (!error)
		sample(samples, (double)bytes / (double)(monotonic_ns() - begin));
	return error;
}

static int measure_copies(struct gpool *pool, struct samples *samples)
{
	struct gpool_block block;
	uint64_t addresses[2];
	uint32_t stream;
	int error = block_alloc(pool, 2, &block);

	if (error)
		return error;
	error = gpool_address(pool, &block, &addresses[0]);
	addresses[1] = addresses[0] + gpool_page_bytes(pool);
	if (!error)
		error = gpool_stream_open(pool, NULL, 0, &stream);
	if (!error) {
		for (int i = 0; i < COPIES && !error; i++)
			error = measure_copy(pool, stream, addresses, samples);
		gpool_stream_close(pool, stream);
	}
	gpool_free(pool, &block);
	return error;
}

static int measure(const struct command *command, struct gpool *pool, uint32_t most, struct samples *samples)
{
	int error = 0;

	for (int i = 0; i < SESSIONS && !error; i++)
		error = measure_session(command, most, samples);
	for (int i = 0; i < BATCHES && !error; i++)
		error = measure_batch(pool, samples);
	return error ? error : measure_copies(pool, &samples[FIGURE_COPY]);
}

/* ---- output ---- */

static void figures_table(const struct command *command, const char *name, struct samples *samples)
{
	struct table *table = table_create("FIGURE|>MEDIAN|UNIT|>GOAL|>SAMPLES|OPERATION");

	print(command,
		"pool '%s', measured with a few pages while other sessions use it; gpool-bench measures more, with an "
		"agent of its own\n\n",
		name);
	for (int i = 0; i < FIGURES; i++) {
		double goal = goal_of(figures[i].goal_name);

		table_cell(table, "%s", figures[i].name);
		if (samples[i].count)
			table_cell(table, "%.3g", median(&samples[i]));
		else
			table_cell(table, "-");
		table_cell(table, "%s", figures[i].unit);
		if (goal > 0)
			table_cell(table, "%g", goal);
		else
			table_cell(table, "-");
		table_cell(table, "%" PRIu32, samples[i].count);
		table_cell(table, "%s", figures[i].text);
	}
	table_print(command, table);
	table_destroy(table);
}

static void figures_json(const struct command *command, const char *name, struct samples *samples)
{
	cJSON *document = json_document("bench"), *list;

	json_text(document, "pool", name);
	list = json_array(document, "figures");
	for (int i = 0; i < FIGURES; i++) {
		double goal = goal_of(figures[i].goal_name);
		cJSON *to = json_item(list);

		json_text(to, "name", figures[i].name);
		json_text(to, "unit", figures[i].unit);
		if (samples[i].count)
			cJSON_AddNumberToObject(to, "median", median(&samples[i]));
		else
			json_null(to, "median");
		if (goal > 0)
			cJSON_AddNumberToObject(to, "goal", goal);
		else
			json_null(to, "goal");
		json_number(to, "samples", samples[i].count);
		json_text(to, "what", figures[i].text);
	}
	json_print(command, document, false);
}

/* Refuse to run if the pool has too few free pages. *most: number of pages that may be requested at once. */
static int room_check(const struct command *command, struct gpool *pool, const char *name, uint32_t *most)
{
	static struct msg_status_reply status;
	struct command one = *command;
	int code;

	one.pool = name;
	code = agent_status(&one, pool, &status);
	if (code)
		return code;
	*most = status.pools[0].free_pages / PAGES_SHARE;
	if (status.pools[0].pressure >= POOL_PRESSURE_HIGH || *most < 2 * BATCH) {
		complain("cannot measure in pool '%s': %" PRIu32
			 " page%s %s free and the pressure is %s; at least %d free pages and a pressure below high are "
			 "required; try again later",
			name, status.pools[0].free_pages, plural(status.pools[0].free_pages),
			be(status.pools[0].free_pages), pool_pressure_name(status.pools[0].pressure),
			2 * BATCH * PAGES_SHARE);
		return CODE_FAILED;
	}
	return CODE_OK;
}

int bench_run(const struct command *command)
{
	static struct samples samples[FIGURES];
	struct command own = *command;
	struct gpool *pool;
	char name[64];
	uint32_t most;
	int error, code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	agent_pool_name(pool, name);
	code = room_check(command, pool, name, &most);
	gpool_close(pool);
	if (code)
		return code;
	own.pool = name;
	code = agent_open(&own, 0, &pool);
	if (code)
		return code;
	error = measure(&own, pool, most, samples);
	gpool_close(pool);
	if (error) {
		complain("cannot measure in pool '%s': %s", name, gpool_last_error(error));
		return CODE_FAILED;
	}
	if (command->json)
		figures_json(command, name, samples);
	else
		figures_table(command, name, samples);
	return CODE_OK;
}
