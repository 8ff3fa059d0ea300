#include "tools/demo/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t plan_idle_from_us(const struct plan *plan, uint32_t engine)
{
	return plan->idle_from_us + engine * plan->idle_us;
}

uint64_t plan_arrival_us(const struct plan *plan, uint32_t engine, uint64_t trace_us)
{
	uint64_t at_us = (uint64_t)((double)trace_us / plan->speed);

	if (at_us < plan->idle_from_us || at_us >= plan->idle_from_us + 2 * plan->idle_us)
		return at_us;
	return plan_idle_from_us(plan, !engine) + (at_us - plan->idle_from_us) / 2;
}

void run_error(struct run *run, const char *format, ...)
{
	va_list arguments;

	if (run->errors++ > 0)
		return;
	va_start(arguments, format);
	vsnprintf(run->error_text, sizeof run->error_text, format, arguments);
	va_end(arguments);
}

/*
 * Make room for one more element of `bytes` bytes. Return: the array, or NULL if out of memory; the old array is then
 * unchanged.
 */
static void *grow(void *array, uint32_t count, uint32_t *capacity, size_t bytes)
{
	uint32_t more = *capacity ? *capacity * 2 : 256;
	void *grown;

	if (count < *capacity)
		return array;
	grown = realloc(array, more * bytes);
	if (grown)
		*capacity = more;
	return grown;
}

void run_add_sample(struct run *run, const struct run_sample *sample)
{
	struct run_sample *samples = grow(run->samples, run->sample_count, &run->sample_capacity, sizeof *samples);

	if (!samples) {
		run_error(run, "not enough memory for the samples");
		return;
	}
	run->samples = samples;
	samples[run->sample_count++] = *sample;
}

void run_add_kill(struct run *run, const struct run_kill *kill)
{
	struct run_kill *kills = grow(run->kills, run->kill_count, &run->kill_capacity, sizeof *kills);

	if (!kills) {
		run_error(run, "not enough memory for the list of kills");
		return;
	}
	run->kills = kills;
	kills[run->kill_count++] = *kill;
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x, y;

	memcpy(&x, a, sizeof x);
	memcpy(&y, b, sizeof y);
	return x < y ? -1 : x > y;
}

/* Sort the values and return the 99th percentile by nearest rank; 0 if there are none. */
static uint64_t percentile_99(uint64_t *values, size_t count)
{
	if (count == 0)
		return 0;
	qsort(values, count, sizeof values[0], compare_u64);
	return values[(count * 99 + 99) / 100 - 1];
}

static void score_marks(struct run_score *score, const struct board *board, uint32_t first, uint32_t count)
{
	uint64_t *waits = calloc(count ? count : 1, sizeof *waits);
	uint64_t *first_tokens = calloc(count ? count : 1, sizeof *first_tokens);
	size_t finished = 0;

	for (uint32_t i = first; i < first + count; i++) {
		const struct board_request *request = &board->requests[i];
		struct board_mark *mark = &board->marks[i];
		uint32_t state = atomic_load(&mark->state);
		uint64_t to_first = atomic_load(&mark->first_token_us) - request->arrival_us;

		score->requests++;
		score->wait_us += atomic_load(&mark->wait_us);
		if (state < BOARD_DONE)
			continue;
		score->failed += state == BOARD_FAILED;
		score->finished++;
		score->tokens += (uint64_t)request->context_tokens + request->generated_tokens;
		score->first_token_us += to_first;
		if (waits && first_tokens) {
			waits[finished] = atomic_load(&mark->wait_us);
			first_tokens[finished++] = to_first;
		}
	}
	if (score->finished > 0)
		score->first_token_us /= score->finished;
	if (waits && first_tokens) {
		score->wait_p99_us = percentile_99(waits, finished);
		score->first_token_p99_us = percentile_99(first_tokens, finished);
	}
	free(waits);
	free(first_tokens);
}

static void score_counters(struct run_score *score, const struct board_engine *engine)
{
	score->waits += atomic_load(&engine->waits);
	score->preemptions += atomic_load(&engine->preemptions);
	score->recomputed_tokens += atomic_load(&engine->recomputed_tokens);
	score->prefix_hits += atomic_load(&engine->prefix_hits);
	score->prefix_hit_tokens += atomic_load(&engine->prefix_hit_tokens);
	score->prefix_losses += atomic_load(&engine->prefix_losses);
	score->bytes_written += atomic_load(&engine->bytes_written);
	score->bytes_verified += atomic_load(&engine->bytes_verified);
	score->errors += atomic_load(&engine->errors);
}

static uint32_t sample_pages(const struct run_sample *sample, int engine)
{
	return sample->engines[engine].needed_pages + sample->engines[engine].offered_pages +
		sample->engines[engine].idle_pages;
}

/* Count the pages that an engine leases beyond half of the pool as given by the other one. */
static void add_up_given(struct run *run, const struct plan *plan)
{
	uint32_t half = plan->page_count / BOARD_ENGINES;

	for (uint32_t i = 0; i < run->sample_count; i++)
		for (int idle = 0; idle < BOARD_ENGINES; idle++) {
			uint64_t from_us = plan_idle_from_us(plan, (uint32_t)idle), at_us = run->samples[i].time_us;
			uint32_t pages = sample_pages(&run->samples[i], !idle);

			if (at_us >= from_us && at_us < from_us + plan->idle_us && pages > half + run->gave_pages[idle])
				run->gave_pages[idle] = pages - half;
		}
}

/* Each sample counts for the time until the next one. */
static void add_up_samples(struct run *run)
{
	double pages = 0, needed = 0, time = 0;

	for (uint32_t i = 0; i < run->sample_count; i++) {
		const struct run_sample *sample = &run->samples[i];
		uint32_t needed_now = 0, pages_now = 0;
		double share = i + 1 < run->sample_count ? (double)(sample[1].time_us - sample->time_us) : 0;

		for (int e = 0; e < BOARD_ENGINES; e++) {
			needed_now += sample->engines[e].needed_pages;
			pages_now += sample_pages(sample, e);
		}
		if (pages_now > run->peak_pages)
			run->peak_pages = pages_now;
		if (needed_now > run->peak_needed_pages)
			run->peak_needed_pages = needed_now;
		pages += pages_now * share;
		needed += needed_now * share;
		time += share;
	}
	if (time > 0) {
		run->mean_pages = pages / time;
		run->mean_needed_pages = needed / time;
	}
}

void run_add_up(struct run *run, const struct plan *plan, const struct board *board)
{
	const struct board_header *header = board->header;

	for (int e = 0; e < BOARD_ENGINES; e++) {
		const struct board_engine *engine = &header->engines[e];

		score_marks(&run->engines[e], board, engine->first_request, engine->request_count);
		score_counters(&run->engines[e], engine);
		score_counters(&run->total, engine);
		run->total.restarted += run->engines[e].restarted;
	}
	score_marks(&run->total, board, 0, header->request_count);
	add_up_samples(run);
	add_up_given(run, plan);
	run->complete = run->total.finished == run->total.requests && run->total.requests == header->request_count;
}

void run_destroy(struct run *run)
{
	free(run->samples);
	free(run->kills);
	run->samples = NULL;
	run->kills = NULL;
	run->sample_count = run->kill_count = 0;
}
