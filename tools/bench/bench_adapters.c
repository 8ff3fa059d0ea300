/*
 * bench_adapters.c - adapters of 16 MB for engines: registered, acquired while resident, opened as objects of another
 * engine, and loaded from PEFT's files and from copies. Files are in the page cache. Pages are 2 MiB on the host back
 * end, in huge pages. Loads from memory are also measured with small pages.
 */
#include "tools/bench/bench.h"
#include "tools/lib/adapter_make.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	POOL_PAGES = 192,
	SMALL_PAGES = 768,
	LAYERS = 6,
	RANK = 16,
	REGISTERED = 10000,
	HOT = 100000,
	WAIT_MS = 60000,
	AT_ONCE = 32,
	DEEP_LAYERS = 32,
	DEEP_ONES = 64, /* registered in succession */
};

struct engines {
	struct gpool *one, *other;
	struct gpool_lora *plain, *plain_of_other, *kept, *int8; /* without copies; with a folder for copies; with
								  * int8 copies */
	struct gpool_lora *many, *warm, *warm_int8; /* with copies in host memory, which here is also the memory of
						     * the pool */
	char peft[512], deep[512], exact[512], small[512];
};

/* ---- files ---- */

static int files_make(const char *folder, uint32_t layers, uint32_t rank)
{
	char path[600];
	int config, weights, error;

	if (mkdir(folder, 0700))
		return -errno;
	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	config = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	weights = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	error = adapter_make(config, weights, layers, rank);
	close(config);
	close(weights);
	return error;
}

static int lora_open(struct gpool *pool, struct gpool *warm, const char *kept, uint32_t flags, struct gpool_lora **lora)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	options.element = GPOOL_LORA_BF16;
	options.warm = warm;
	options.cache_dir = kept;
	options.flags = flags;
	options.rebalance_ms = UINT32_MAX; /* no background work during measurements */
	return gpool_lora_create(pool, &options, lora);
}

static int engines_open(struct bench *bench, struct engines *engines)
{
	int error;

	snprintf(engines->peft, sizeof(engines->peft), "%s/peft", bench->folder);
	snprintf(engines->deep, sizeof(engines->deep), "%s/deep", bench->folder);
	snprintf(engines->exact, sizeof(engines->exact), "%s/exact", bench->folder);
	snprintf(engines->small, sizeof(engines->small), "%s/int8", bench->folder);
	error = files_make(engines->peft, LAYERS, RANK);
	if (!error)
		error = files_make(engines->deep, DEEP_LAYERS, 1);
	if (!error && (mkdir(engines->exact, 0700) || mkdir(engines->small, 0700)))
		error = -errno;
	if (!error)
		error = daemon_open(bench, 0, &engines->one);
	if (!error)
		error = daemon_open(bench, 0, &engines->other);
	if (!error)
		error = lora_open(engines->one, NULL, NULL, 0, &engines->plain);
	if (!error)
		error = lora_open(engines->other, NULL, NULL, 0, &engines->plain_of_other);
	if (!error)
		error = lora_open(engines->one, NULL, engines->exact, 0, &engines->kept);
	if (!error)
		error = lora_open(engines->one, NULL, engines->small, GPOOL_LORA_INT8, &engines->int8);
	if (!error)
		error = lora_open(engines->one, engines->other, NULL, 0, &engines->warm);
	if (!error)
		error = lora_open(engines->one, engines->other, NULL, 0, &engines->many);
	return error ? error : lora_open(engines->one, engines->other, NULL, GPOOL_LORA_INT8, &engines->warm_int8);
}

static void engines_close(struct engines *engines)
{
	gpool_lora_destroy(engines->plain);
	gpool_lora_destroy(engines->plain_of_other);
	gpool_lora_destroy(engines->kept);
	gpool_lora_destroy(engines->int8);
	gpool_lora_destroy(engines->warm);
	gpool_lora_destroy(engines->many);
	gpool_lora_destroy(engines->warm_int8);
	gpool_close(engines->one);
	gpool_close(engines->other);
}

/* ---- measurements ---- */

/* Load once from the given source, then evict the adapter from the pool. */
static int load_sample(struct bench *bench, struct gpool_lora *lora, uint32_t id, enum figure figure)
{
	/* Without a timeout, this thread itself begins and publishes a load from host memory. */
	int timeout_ms = figure == FIGURE_adapter_warm_acquire_16mb ? -1 : WAIT_MS;
	uint64_t begin = monotonic_ns();
	int error = gpool_lora_acquire(lora, id, timeout_ms);

	if (error)
		return error;
	bench_sample(bench, figure, (double)(monotonic_ns() - begin) / 1e6);
	error = gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
	return error ? error : gpool_lora_unload(lora, id);
}

static int hot_sample(struct bench *bench, struct engines *engines, uint32_t id, uint32_t its)
{
	uint64_t begin;
	int error = gpool_lora_acquire(engines->plain, id, WAIT_MS);

	if (error)
		return error;
	begin = monotonic_ns();
	error = gpool_lora_acquire(engines->plain_of_other, its, WAIT_MS);
	bench_sample(bench, FIGURE_adapter_shared_16mb, (double)(monotonic_ns() - begin) / 1e6);
	begin = own_time_ns();
	for (int i = 0; i < HOT && !error; i++) {
		error = gpool_lora_acquire(engines->plain, id, 0);
		if (!error)
			error = gpool_lora_release(engines->plain, id, GPOOL_FENCE_NONE);
	}
	bench_sample(bench, FIGURE_adapter_acquire, (double)(own_time_ns() - begin) / HOT);
	if (!error)
		error = gpool_lora_release(engines->plain, id, GPOOL_FENCE_NONE);
	if (!error)
		error = gpool_lora_release(engines->plain_of_other, its, GPOOL_FENCE_NONE);
	return error ? error : gpool_lora_unload(engines->plain, id);
}

/* Register one folder `count` times under different names; *ns receives the time. */
static int register_many(struct engines *engines, const char *folder, int count, uint64_t *ns)
{
	struct gpool_lora *many;
	uint64_t begin;
	uint32_t id;
	char name[32];
	int error = lora_open(engines->one, NULL, NULL, 0, &many);

	if (error)
		return error;
	begin = monotonic_ns();
	for (int i = 0; i < count && !error; i++) {
		snprintf(name, sizeof(name), "adapter-%d", i);
		error = gpool_lora_register(many, name, folder, &id, NULL);
	}
	*ns = monotonic_ns() - begin;
	gpool_lora_destroy(many);
	return error;
}

static int register_sample(struct bench *bench, struct engines *engines)
{
	uint64_t ns;
	int error = register_many(engines, engines->peft, REGISTERED, &ns);

	if (error)
		return error;
	bench_sample(bench, FIGURE_adapter_register_10000, (double)ns / 1e9);
	error = register_many(engines, engines->deep, DEEP_ONES, &ns);
	if (!error)
		bench_sample(bench, FIGURE_adapter_register_32_layers, (double)ns / 1e6 / DEEP_ONES);
	return error;
}

/* Measure the time to the first layer. Then complete the load and evict the adapter from the pool. */
static int begun_sample(struct bench *bench, struct gpool_lora *lora, uint32_t id, enum figure figure)
{
	uint64_t begin = monotonic_ns();
	int error = gpool_lora_acquire_async(lora, id, -1);

	if (!error)
		error = gpool_lora_wait_layer(lora, id, 0, WAIT_MS);
	if (error)
		return error;
	if (figure == FIGURE_adapter_warm_16mb)
		bench_sample(bench, FIGURE_adapter_layer_16mb, (double)(monotonic_ns() - begin) / 1e6);
	error = gpool_lora_wait_layer(lora, id, -1, WAIT_MS);
	if (!error)
		bench_sample(bench, figure, (double)(monotonic_ns() - begin) / 1e6);
	if (!error)
		error = gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
	/* Another thread publishes the adapter after its release. */
	while (!error && (error = gpool_lora_unload(lora, id)) == -EBUSY &&
		monotonic_ns() - begin < WAIT_MS * UINT64_C(1000000)) {
		usleep(100);
		error = 0;
	}
	return error;
}

/* ---- concurrent loads ---- */

static int many_make(struct bench *bench, struct gpool_lora *lora, uint32_t ids[AT_ONCE])
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	uint64_t begin = monotonic_ns();
	int error = 0;

	for (int i = 0; i < AT_ONCE && !error; i++) {
		char folder[512], name[32];

		snprintf(folder, sizeof(folder), "%s/small-%d", bench->folder, i);
		snprintf(name, sizeof(name), "small-%d", i);
		error = files_make(folder, 1, RANK);
		if (!error)
			error = gpool_lora_register(lora, name, folder, &ids[i], NULL);
		if (!error)
			error = gpool_lora_acquire(lora, ids[i], WAIT_MS);
		if (!error)
			error = gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE);
		if (!error)
			error = gpool_lora_unload(lora, ids[i]);
	}
	while (!error && stats.warm_made < AT_ONCE) {
		usleep(1000);
		error = monotonic_ns() - begin > WAIT_MS * UINT64_C(1000000) ? -ETIMEDOUT
									     : gpool_lora_stats(lora, &stats);
	}
	return error;
}

struct one_of_many {
	pthread_t thread;
	struct gpool_lora *lora;
	uint32_t id;
	uint64_t end;
	int error;
};

static void *one_run(void *argument)
{
	struct one_of_many *one = argument;

	one->error = gpool_lora_acquire(one->lora, one->id, WAIT_MS);
	one->end = monotonic_ns();
	return NULL;
}

/* Begin all loads in one thread; then wait in as many threads as there are loads. */
static int many_load(struct bench *bench, struct gpool_lora *lora, const uint32_t ids[AT_ONCE])
{
	struct one_of_many all[AT_ONCE];
	double sum = 0, longest = 0;
	uint64_t begin = monotonic_ns();
	int error = 0, started;

	for (int i = 0; i < AT_ONCE; i++)
		gpool_lora_prefetch(lora, ids[i]);
	for (started = 0; started < AT_ONCE && !error; started += !error) {
		all[started] = (struct one_of_many){.lora = lora, .id = ids[started]};
		error = -pthread_create(&all[started].thread, NULL, one_run, &all[started]);
	}
	for (int i = 0; i < started; i++) {
		double ms;

		pthread_join(all[i].thread, NULL);
		error = error ? error : all[i].error;
		ms = (double)(all[i].end - begin) / 1e6;
		sum += ms;
		longest = ms > longest ? ms : longest;
	}
	if (!error) {
		bench_sample(bench, FIGURE_adapter_loads_32, sum / AT_ONCE);
		bench_sample(bench, FIGURE_adapter_loads_32_longest, longest);
	}
	for (int i = 0; i < started; i++) {
		error = error ? error : gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE);
		error = error ? error : gpool_lora_unload(lora, ids[i]);
	}
	return error;
}

static int many_sample(struct bench *bench, struct gpool_lora *lora)
{
	uint32_t ids[AT_ONCE];
	int error = many_make(bench, lora, ids);

	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = load_sample(bench, lora, ids[0], FIGURE_adapter_loads_1);
		if (!error)
			error = many_load(bench, lora, ids);
	}
	return error;
}

/* Measure the lower bounds for the same bytes: a copy in memory, and a read of a file. */
static int peer_sample(struct bench *bench, struct engines *engines)
{
	uint64_t bytes = 16 << 20, begin;
	char path[600], *from = malloc(bytes), *to = malloc(bytes);
	int fd, error = 0;

	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", engines->peft);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (!from || !to || fd < 0) {
		error = -ENOMEM;
	} else {
		memset(from, 1, bytes);
		memset(to, 2, bytes);
		begin = monotonic_ns();
		memcpy(to, from, bytes);
		bench_sample(bench, FIGURE_peer_memcpy_16mb, (double)(monotonic_ns() - begin) / 1e6);
		begin = monotonic_ns();
		if (pread(fd, to, bytes, 0) != (ssize_t)bytes)
			error = -EIO;
		bench_sample(bench, FIGURE_peer_pread_16mb, (double)(monotonic_ns() - begin) / 1e6);
	}
	if (fd >= 0)
		close(fd);
	free(from);
	free(to);
	return error;
}

/* Load once, which makes copies in the background. When the copies exist, evict the adapter from the pool. */
static int copies_await(struct gpool_lora *lora, uint32_t id)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	uint64_t begin = monotonic_ns();
	int error = gpool_lora_acquire(lora, id, WAIT_MS);

	if (!error)
		error = gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
	while (!error && !stats.cold_bytes && !stats.warm_made) {
		usleep(1000);
		error = monotonic_ns() - begin > WAIT_MS * UINT64_C(1000000) ? -ETIMEDOUT
									     : gpool_lora_stats(lora, &stats);
	}
	return error ? error : gpool_lora_unload(lora, id);
}

/* The variants of one adapter, each with its own cost. */
enum { PLAIN, SHARED, KEPT, INT8, WARM, WARM_INT8, WAYS };

static int ids_make(struct engines *engines, uint32_t ids[WAYS])
{
	struct gpool_lora *const all[WAYS] = {engines->plain, engines->plain_of_other, engines->kept, engines->int8,
		engines->warm, engines->warm_int8};
	int error = 0;

	for (int i = 0; i < WAYS && !error; i++)
		error = gpool_lora_register(all[i], "adapter", engines->peft, &ids[i], NULL);
	for (int i = KEPT; i < WAYS && !error; i++)
		error = copies_await(all[i], ids[i]);
	return error;
}

static int samples_take(struct bench *bench, struct engines *engines, const uint32_t ids[WAYS])
{
	int error = hot_sample(bench, engines, ids[PLAIN], ids[SHARED]);

	if (!error)
		error = load_sample(bench, engines->plain, ids[PLAIN], FIGURE_adapter_peft_16mb);
	if (!error)
		error = load_sample(bench, engines->warm, ids[WARM], FIGURE_adapter_warm_acquire_16mb);
	if (!error)
		error = begun_sample(bench, engines->warm, ids[WARM], FIGURE_adapter_warm_16mb);
	if (!error)
		error = begun_sample(bench, engines->warm_int8, ids[WARM_INT8], FIGURE_adapter_warm_int8_16mb);
	if (!error)
		error = load_sample(bench, engines->kept, ids[KEPT], FIGURE_adapter_cold_16mb);
	if (!error)
		error = load_sample(bench, engines->int8, ids[INT8], FIGURE_adapter_cold_int8_16mb);
	if (!error)
		error = peer_sample(bench, engines);
	return error ? error : register_sample(bench, engines);
}

/* Write to all pages, so that no load is the first to use one. Huge pages are allocated at startup. */
static int pages_touch(struct gpool *pool, uint32_t pages)
{
	struct gpool_block block;
	uint64_t address;
	int error = gpool_alloc(pool, pages, NULL, &block);

	if (error)
		return error;
	error = gpool_address(pool, &block, &address);
	if (!error)
		memset((void *)(uintptr_t)address, 1, pages * gpool_page_bytes(pool));
	return error ? error : gpool_free(pool, &block);
}

/* Repeat with pages of 512 KiB, in normal pages of the kernel. */
static int small_pages(struct bench *bench, const char *peft)
{
	struct gpool *one = NULL, *other = NULL;
	struct gpool_lora *warm = NULL;
	uint32_t id;
	int error = daemon_start(bench, SMALL_PAGES, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &one);
	if (!error)
		error = pages_touch(one, SMALL_PAGES - 1);
	if (!error)
		error = daemon_open(bench, 0, &other);
	if (!error)
		error = lora_open(one, other, NULL, 0, &warm);
	if (!error)
		error = gpool_lora_register(warm, "adapter", peft, &id, NULL);
	if (!error)
		error = copies_await(warm, id);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = begun_sample(bench, warm, id, FIGURE_adapter_warm_small_16mb);
	gpool_lora_destroy(warm);
	gpool_close(one);
	gpool_close(other);
	daemon_stop(bench);
	return error;
}

int bench_adapters(struct bench *bench)
{
	struct engines engines = {.one = NULL};
	uint32_t ids[WAYS];
	int error = daemon_start_huge(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = engines_open(bench, &engines);
	if (!error)
		error = ids_make(&engines, ids);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = samples_take(bench, &engines, ids);
	if (!error)
		error = many_sample(bench, engines.many);
	engines_close(&engines);
	daemon_stop(bench);
	if (!error)
		error = small_pages(bench, engines.peft);
	if (error)
		bench_complain(bench, error, "cannot load adapters");
	return error;
}
