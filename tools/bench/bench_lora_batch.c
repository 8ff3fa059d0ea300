/*
 * bench_lora_batch.c - the cost per step of setting the adapter of each token: a model of 32 layers with 7 targets
 * each, 256 tokens, 32 or 128 adapters, a real agent and the host back end. All adapters are one object in the pool;
 * each has its own mapping and description.
 */
#include "tools/bench/bench.h"
#include "tools/lib/adapter_make.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POOL_PAGES = 128, LAYERS = 32, TARGETS = 7, TOKENS = 256, ADAPTERS_MOST = 128, WAIT_MS = 60000 };

static const struct gpool_lora_target targets[TARGETS] = {
	{"model.layers.*.q_proj", 4096, 4096},
	{"model.layers.*.k_proj", 4096, 1024},
	{"model.layers.*.v_proj", 4096, 1024},
	{"model.layers.*.o_proj", 4096, 4096},
	{"model.layers.*.gate_proj", 4096, 14336},
	{"model.layers.*.up_proj", 4096, 14336},
	{"model.layers.*.down_proj", 14336, 4096},
};

struct engine {
	struct gpool *pool;
	struct gpool_lora *lora;
	uint32_t stream;
	uint32_t ids[2 * ADAPTERS_MOST]; /* acquired */
};

static int files_make(const char *folder)
{
	char path[600];
	int config, weights, error;

	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	config = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	weights = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	error = adapter_make(config, weights, LAYERS, 1);
	close(config);
	close(weights);
	return error;
}

static int engine_open(struct bench *bench, struct engine *engine)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char name[32];
	int error = files_make(bench->folder);

	options.element = GPOOL_LORA_BF16;
	if (!error)
		error = daemon_open(bench, 0, &engine->pool);
	if (!error)
		error = gpool_lora_create(engine->pool, &options, &engine->lora);
	if (!error)
		error = gpool_stream_open(engine->pool, NULL, 0, &engine->stream);
	for (int i = 0; i < 2 * ADAPTERS_MOST && !error; i++) {
		snprintf(name, sizeof(name), "%d", i);
		error = gpool_lora_register(engine->lora, name, bench->folder, &engine->ids[i], NULL);
		if (!error)
			error = gpool_lora_acquire(engine->lora, engine->ids[i], WAIT_MS);
	}
	return error;
}

static int batch_open(const struct engine *engine, uint32_t adapters, struct gpool_lora_batch **batch)
{
	struct gpool_lora_batch_options options = GPOOL_LORA_BATCH_OPTIONS_INIT;

	options.stream = engine->stream;
	options.element = GPOOL_LORA_BF16;
	options.tokens_max = TOKENS;
	options.adapters_max = adapters;
	options.rank_max = 16;
	options.layers = LAYERS;
	options.targets = targets;
	options.target_count = TARGETS;
	return gpool_lora_batch_create(engine->lora, &options, batch);
}

static int stream_wait(const struct engine *engine)
{
	struct gpool_fence fence;
	int error = gpool_fence_record(engine->pool, engine->stream, &fence);

	return error ? error : gpool_fence_wait(engine->pool, fence, -1);
}

/* Set a batch with these adapters in turn. Measure the time in us and the number of driver calls. */
static int set_time(const struct engine *engine, struct gpool_lora_batch *batch, const uint32_t *ids, uint32_t count,
	double *us, double *calls)
{
	struct gpool_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	uint32_t tokens[TOKENS];
	uint64_t begin;
	int error = stream_wait(engine);

	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = ids[i % count];
	gpool_stats(engine->pool, &before);
	begin = own_time_ns();
	if (!error)
		error = gpool_lora_batch_set(batch, tokens, TOKENS, NULL);
	*us = (double)(own_time_ns() - begin) / 1e3;
	gpool_stats(engine->pool, &after);
	*calls = (double)(after.driver_calls - before.driver_calls);
	return error;
}

/* Set all adapters as new ones, then set the same adapters again. */
static int set_sample(struct bench *bench, const struct engine *engine, uint32_t count, enum figure fresh,
	enum figure same, enum figure calls_of)
{
	struct gpool_lora_batch *batch;
	double us, calls;
	int error = batch_open(engine, count, &batch);

	if (error)
		return error;
	/* The first steps allocate the pages of the staging buffer; they are not measured. */
	for (int turn = 0; turn < 4 && !error; turn++) {
		error = set_time(engine, batch, engine->ids + turn % 2 * count, count, &us, &calls);
		if (turn < 2 || error)
			continue;
		bench_sample(bench, fresh, us);
		bench_sample(bench, calls_of, calls);
		error = set_time(engine, batch, engine->ids + turn % 2 * count, count, &us, &calls);
		bench_sample(bench, same, us);
	}
	gpool_lora_batch_destroy(batch);
	return error;
}

/* Queue all layers and targets. There are no tokens, so the C references do no work. */
static int apply_sample(struct bench *bench, const struct engine *engine)
{
	struct gpool_lora_batch *batch;
	struct gpool_block block;
	uint64_t begin, address;
	int error = batch_open(engine, 32, &batch);

	if (error)
		return error;
	error = gpool_alloc(engine->pool, 1, NULL, &block);
	if (!error)
		error = gpool_address(engine->pool, &block, &address);
	begin = own_time_ns();
	for (int32_t i = 0; i < LAYERS * TARGETS && !error; i++)
		error = gpool_lora_batch_apply(
			batch, i / TARGETS, (uint32_t)(i % TARGETS), address, 14336, address, 14336, engine->stream);
	bench_sample(bench, FIGURE_lora_batch_apply, (double)(own_time_ns() - begin) / LAYERS / TARGETS);
	gpool_lora_batch_destroy(batch);
	return error;
}

int bench_lora_batch(struct bench *bench)
{
	struct engine engine = {.pool = NULL};
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = engine_open(bench, &engine);
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = set_sample(bench, &engine, 32, FIGURE_lora_batch_new_32, FIGURE_lora_batch_set_32,
			FIGURE_lora_batch_calls_32);
		if (!error)
			error = set_sample(bench, &engine, 128, FIGURE_lora_batch_new_128, FIGURE_lora_batch_set_128,
				FIGURE_lora_batch_calls_128);
		if (!error)
			error = apply_sample(bench, &engine);
	}
	if (error)
		bench_complain(bench, error, "cannot set and apply a batch");
	gpool_close(engine.pool);
	daemon_stop(bench);
	return error;
}
