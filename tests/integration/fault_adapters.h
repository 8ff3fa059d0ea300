/*
 * fault_adapters.h - rounds with LoRA adapters, from files and from memory, and with batches; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_ADAPTERS_H
#define GPOOL_TESTS_FAULT_ADAPTERS_H

#include "client/lora/load/lora.h"
#include "tests/integration/fault_trial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/*
 * Wait for the copy on disk and, with `warm`, for the one in host memory. After a fault they might never be made, so
 * the wait is then short.
 */
static void copies_await(struct gpool_lora *lora, bool warm)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	for (int i = 0; i < AWAIT_TRIES; i++) {
		if (gpool_lora_stats(lora, &stats) || ((stats.warm_bytes || !warm) && stats.cold_bytes))
			return;
		if (i * AWAIT_STEP_MS > 300 && fault_has_happened())
			return;
		poll(NULL, 0, AWAIT_STEP_MS);
	}
}

static int adapter_use(struct gpool_lora *lora, uint32_t id, int timeout_ms)
{
	int error = gpool_lora_acquire(lora, id, timeout_ms);

	return error ? error : gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
}

/* The folder of an adapter, seen from the folder of this program or of a copy of it in a folder below. */
static void adapter_folder(const char *name, char *path, size_t bytes)
{
	char program[512] = "";
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

	if (length < 0 || !strstr(program, "/build/"))
		return;
	*strstr(program, "/build/") = '\0';
	snprintf(path, bytes, "%s/tests/fixtures/adapters/%s", program, name);
}

/* Destroy a set whose loads are ending. An error of the round comes first. */
static int set_end(struct gpool_lora *lora, int error)
{
	int destroyed;

	for (int i = 0; (destroyed = gpool_lora_destroy(lora)) == -EBUSY && i < AWAIT_TRIES; i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	return error == -EBUSY ? -ETIMEDOUT : error ? error : destroyed;
}

/*
 * Load the adapter and use it, until it is unloaded. If copies are made, use it again: 1: on disk, 2: also in host
 * memory. The set is destroyed in any case.
 */
static int adapters_load(struct gpool_lora *lora, const char *name, int copies, int timeout_ms)
{
	char folder[600] = "";
	uint32_t id;
	int error;

	adapter_folder(name, folder, sizeof(folder));
	error = gpool_lora_register(lora, "adapter", folder, &id, NULL);
	if (!error)
		error = adapter_use(lora, id, timeout_ms);
	if (!error && copies)
		copies_await(lora, copies > 1);
	if (!error)
		error = gpool_lora_unload(lora, id);
	if (!error && copies)
		error = adapter_use(lora, id, timeout_ms);
	if (!error && copies)
		error = gpool_lora_unload(lora, id);
	return set_end(lora, error);
}

/* Open the pools of adapters and of their copies, and use them. The copies of another round are not used. */
static int in_two_pools(const char *where, int timeout_ms, int (*use)(struct gpool *, struct gpool_lora_options *))
{
	struct gpool_lora_options adapters = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool *pool, *warm;
	char cache[160];
	int error;

	snprintf(cache, sizeof(cache), "%s/../cache-%d", where, (int)getpid());
	mkdir(cache, 0700);
	options.pool = "p0";
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	options.pool = "warm";
	error = gpool_open(&options, &warm);
	if (!error) {
		adapters.element = GPOOL_LORA_BF16;
		adapters.cache_dir = cache;
		adapters.salt[0] = (uint64_t)getpid();
		adapters.rebalance_ms = UINT32_MAX;
		adapters.warm = warm;
		error = use(pool, &adapters);
		gpool_close(warm);
	}
	gpool_close(pool);
	return error;
}

static int adapters_use(struct gpool *pool, struct gpool_lora_options *options)
{
	struct gpool_lora *lora;
	int error = gpool_lora_create(pool, options, &lora);

	if (!error)
		error = adapters_load(lora, "plain", 2, WAIT_MS);
	/* Without the copy in host memory, the one on disk is read. */
	options->warm = NULL;
	if (!error)
		error = gpool_lora_create(pool, options, &lora);
	return error ? error : adapters_load(lora, "plain", 0, WAIT_MS);
}

static int round_of_adapters(const char *where, int timeout_ms)
{
	return in_two_pools(where, timeout_ms, adapters_use);
}

static int file_read(const char *folder, const char *name, char *bytes, size_t capacity)
{
	char path[700];
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, bytes, capacity);
	if (fd >= 0)
		close(fd);
	return length < 0 ? -ENOENT : (int)length;
}

static int memory_register(struct gpool_lora *lora, uint32_t *id)
{
	static char config[4096], weights[1 << 16];
	char folder[600] = "";
	int length;

	adapter_folder("plain", folder, sizeof(folder));
	length = file_read(folder, "adapter_config.json", config, sizeof(config) - 1);
	if (length >= 0) {
		config[length] = '\0';
		length = file_read(folder, "adapter_model.safetensors", weights, sizeof(weights));
	}
	return length < 0 ? length
			  : gpool_lora_register_buffer(lora, "adapter", config, weights, (uint64_t)length, id, NULL);
}

/* Load an adapter from memory, and use it in a batch. */
static int batch_use(struct gpool *pool, struct gpool_lora *lora, int timeout_ms)
{
	static const struct gpool_lora_target targets[] = {
		{"model.layers.*.self_attn.q_proj", 96, 96}, {"model.layers.*.self_attn.v_proj", 96, 32}};
	struct gpool_lora_batch_options options = GPOOL_LORA_BATCH_OPTIONS_INIT;
	struct gpool_lora_batch *batch;
	uint32_t id;
	int error = memory_register(lora, &id), destroyed;

	if (!error)
		error = gpool_lora_acquire(lora, id, timeout_ms);
	if (error)
		return error;
	error = gpool_stream_open(pool, NULL, 0, &options.stream);
	options.element = GPOOL_LORA_BF16;
	options.tokens_max = 4;
	options.layers = 2;
	options.targets = targets;
	options.target_count = 2;
	if (!error) {
		error = gpool_lora_batch_create(lora, &options, &batch);
		if (!error) {
			error = gpool_lora_batch_set(batch, &id, 1, NULL);
			destroyed = gpool_lora_batch_destroy(batch);
			error = error ? error : destroyed;
		}
	}
	destroyed = gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
	error = error ? error : destroyed;
	destroyed = gpool_lora_unload(lora, id);
	return error ? error : destroyed;
}

static int round_of_batches(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_lora_options adapters = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *lora;
	int error;

	(void)session;
	adapters.element = GPOOL_LORA_BF16;
	adapters.rebalance_ms = UINT32_MAX;
	error = gpool_lora_create(pool, &adapters, &lora);
	if (error)
		return error;
	return set_end(lora, batch_use(pool, lora, WAIT_MS));
}

/* Schedule a request for an adapter. Its work ends with a fence that is not signaled when the adapter is released. */
static int request_schedule(struct gpool *pool, struct gpool_lora *lora, uint32_t id)
{
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};
	struct gpool_lora_scheduler *scheduler;
	struct gpool_fence fence;
	uint32_t stream, request;
	int error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), ended;

	if (!error)
		error = gpool_fence_record(pool, stream, &fence);
	if (!error)
		error = gpool_lora_scheduler_create(lora, NULL, &scheduler);
	if (error)
		return error;
	error = gpool_lora_scheduler_add(scheduler, id, 4, &request);
	if (!error)
		error = error_of(gpool_lora_scheduler_schedule(scheduler, SOON_MS, &schedule));
	if (!error && schedule.start_count == 1)
		error = gpool_lora_scheduler_finish(scheduler, request, fence);
	else if (!error)
		error = schedule.failed_count ? schedule.errors[0] : -ETIMEDOUT;
	ended = gpool_fence_signal(pool, fence);
	error = error ? error : ended;
	ended = gpool_lora_scheduler_destroy(scheduler);
	return error ? error : ended;
}

enum { ARRAY_RANK = 64, ARRAY_COLUMNS = 800 }; /* two such adapters fit into a page */

static int array_register(struct gpool_lora *lora, int number, uint32_t *id)
{
	static const char config[] = "{\"peft_type\": \"LORA\", \"r\": 64, \"lora_alpha\": 8, "
				     "\"rank_pattern\": {\"q_proj\": 64}, \"target_modules\": [\"q_proj\"]}";
	static float values[ARRAY_RANK * ARRAY_COLUMNS];
	const struct gpool_lora_array arrays[] = {
		{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", values, ARRAY_COLUMNS, 1, ARRAY_RANK,
			ARRAY_COLUMNS, GPOOL_LORA_F32, 0},
		{"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", values, 1, ARRAY_COLUMNS,
			ARRAY_COLUMNS, ARRAY_RANK, GPOOL_LORA_F32, 0},
	};
	char name[16];

	for (int i = 0; i < ARRAY_RANK * ARRAY_COLUMNS; i++)
		values[i] = (float)(i % 7 - number);
	snprintf(name, sizeof(name), "arrays%d", number);
	return gpool_lora_register_arrays(lora, name, config, arrays, 2, id, NULL);
}

/* Unload one of two adapters in each of two pages. A loader thread then moves the others into one page. */
static int arrays_pack(struct gpool_lora *lora)
{
	uint32_t ids[4];
	int error = 0;

	for (int i = 0; i < 4 && !error; i++) {
		error = array_register(lora, i + 1, &ids[i]);
		if (!error)
			error = adapter_use(lora, ids[i], WAIT_MS);
	}
	for (int i = 0; i < 4 && !error; i += 2)
		error = gpool_lora_unload(lora, ids[i]);
	for (int i = 0; i < AWAIT_TRIES && !error && tails_page_count(&lora->tails) > 1 && !fault_has_happened(); i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	for (int i = 1; i < 4 && !error; i += 2)
		error = gpool_lora_unload(lora, ids[i]);
	return error;
}

/* Register matrices in memory, and use them by a scheduler and in shared pages. */
static int arrays_use(struct gpool *pool, struct gpool_lora *lora)
{
	uint32_t id;
	int error = array_register(lora, 0, &id);

	if (!error)
		error = request_schedule(pool, lora, id);
	if (!error)
		error = gpool_lora_unload(lora, id);
	return error ? error : arrays_pack(lora);
}

/* Adapters in int8, in shared pages, from arrays, with limits. */
static int sets_use(struct gpool *pool, struct gpool_lora_options *options)
{
	struct gpool_lora *lora;
	int error;

	options->flags = GPOOL_LORA_INT8;
	options->hot_adapters = 4;
	error = gpool_lora_create(pool, options, &lora);
	if (!error)
		error = adapters_load(lora, "mixed", 2, WAIT_MS);
	options->flags = GPOOL_LORA_SHARE_PAGES;
	options->cache_dir = NULL;
	options->warm = NULL;
	if (!error)
		error = gpool_lora_create(pool, options, &lora);
	return error ? error : set_end(lora, arrays_use(pool, lora));
}

static int round_of_sets(const char *where, int timeout_ms)
{
	return in_two_pools(where, timeout_ms, sets_use);
}

#endif
