/*
 * fault_adapters.h - rounds with LoRA adapters; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_ADAPTERS_H
#define GPOOL_TESTS_FAULT_ADAPTERS_H

#include "tests/integration/fault_trial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Wait for both copies of the adapter. After a fault they may not be made, and the wait is short. */
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

#endif
