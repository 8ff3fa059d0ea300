/*
 * fault_adapters.h - rounds with LoRA adapters, from files and from memory, and with batches; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_ADAPTERS_H
#define GPOOL_TESTS_FAULT_ADAPTERS_H

#include "tests/integration/fault_trial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Wait for both copies of the adapter. After a fault they might never be made, so the wait is then short. */
static void copies_await(struct gpool_lora *lora)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	for (int i = 0; i < AWAIT_TRIES; i++) {
		if (gpool_lora_stats(lora, &stats) || (stats.warm_bytes && stats.cold_bytes))
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
static void adapter_folder(char *path, size_t bytes)
{
	char program[512] = "";
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

	if (length < 0 || !strstr(program, "/build/"))
		return;
	*strstr(program, "/build/") = '\0';
	snprintf(path, bytes, "%s/tests/fixtures/adapters/plain", program);
}

/* Load the adapter and use it, until it is unloaded. The set is destroyed in any case. */
static int adapters_load(struct gpool_lora *lora, bool copies, int timeout_ms)
{
	char folder[600] = "";
	uint32_t id;
	int error, destroyed;

	adapter_folder(folder, sizeof(folder));
	error = gpool_lora_register(lora, "adapter", folder, &id, NULL);
	if (!error)
		error = adapter_use(lora, id, timeout_ms);
	if (!error && copies)
		copies_await(lora);
	if (!error)
		error = gpool_lora_unload(lora, id);
	if (!error && copies)
		error = adapter_use(lora, id, timeout_ms);
	if (!error && copies)
		error = gpool_lora_unload(lora, id);
	for (int i = 0; (destroyed = gpool_lora_destroy(lora)) == -EBUSY && i < AWAIT_TRIES; i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	return error == -EBUSY ? -ETIMEDOUT : error ? error : destroyed;
}

static int round_of_adapters(const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool_lora_options adapters = GPOOL_LORA_OPTIONS_INIT;
	struct gpool *pool, *warm;
	struct gpool_lora *lora;
	char cache[160];
	int error;

	/* The copies on disk of another round are not used. */
	snprintf(cache, sizeof(cache), "%s/../cache-%d", where, (int)getpid());
	mkdir(cache, 0700);
	options.pool = "p0";
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	options.pool = "warm";
	error = gpool_open(&options, &warm);
	if (error) {
		gpool_close(pool);
		return error;
	}
	adapters.element = GPOOL_LORA_BF16;
	adapters.cache_dir = cache;
	adapters.rebalance_ms = UINT32_MAX;
	adapters.warm = warm;
	error = gpool_lora_create(pool, &adapters, &lora);
	if (!error)
		error = adapters_load(lora, true, WAIT_MS);
	/* Without the copy in host memory, the one on disk is read. */
	adapters.warm = NULL;
	if (!error)
		error = gpool_lora_create(pool, &adapters, &lora);
	if (!error)
		error = adapters_load(lora, false, WAIT_MS);
	gpool_close(warm);
	gpool_close(pool);
	return error;
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

	adapter_folder(folder, sizeof(folder));
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
	int error, destroyed;

	(void)session;
	adapters.element = GPOOL_LORA_BF16;
	adapters.rebalance_ms = UINT32_MAX;
	error = gpool_lora_create(pool, &adapters, &lora);
	if (error)
		return error;
	error = batch_use(pool, lora, WAIT_MS);
	for (int i = 0; (destroyed = gpool_lora_destroy(lora)) == -EBUSY && i < AWAIT_TRIES; i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	return error == -EBUSY ? -ETIMEDOUT : error ? error : destroyed;
}

#endif
