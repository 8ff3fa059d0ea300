/* lora_times.c - see lora_times.h. */
#include "tools/replay/lora_times.h"

#include "client/gpool.h"
#include "shm/monotonic.h"
#include "tools/lib/adapter_make.h"
#include "tools/lib/cli.h"
#include "tools/replay/pool.h"
#include "tools/replay/replay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	LAYERS = 6,
	RANK = 16,
	PAGE_BYTES = 2 << 20,
	POOL_PAGES = 96,
	WAIT_MS = 60000,
	POLL_US = 1000,
	ROOM_BYTES = 64 << 20
};

struct loading {
	struct replay_pool pool;
	struct gpool *engine, *host; /* sessions; host: for the copies in host memory */
	char folder[128], cache[160];
	char *from, *to; /* [ROOM_BYTES] */
};

/* ---- files ---- */

static int file_make(const char *folder, const char *name)
{
	char path[192];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static int files_make(struct loading *loading)
{
	int config, weights, error;

	snprintf(loading->folder, sizeof(loading->folder), "%s/adapter", loading->pool.agent.root);
	snprintf(loading->cache, sizeof(loading->cache), "%s/cache", loading->folder);
	if (mkdir(loading->folder, 0700) || mkdir(loading->cache, 0700))
		return -errno;
	config = file_make(loading->folder, "adapter_config.json");
	weights = file_make(loading->folder, "adapter_model.safetensors");
	error = config < 0 ? config : weights < 0 ? weights : adapter_make(config, weights, LAYERS, RANK);
	if (config >= 0)
		close(config);
	if (weights >= 0)
		close(weights);
	return error;
}

/* Open the file that a load reads: the weights, or the only file in the cache. */
static int source_open(const struct loading *loading, enum lora_source source)
{
	char path[512];
	const struct dirent *file;
	DIR *cache;
	int fd = -1;

	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", loading->folder);
	if (source == LORA_SOURCE_FILES)
		return open(path, O_RDONLY | O_CLOEXEC);
	cache = opendir(loading->cache);
	while (cache && fd < 0 && (file = readdir(cache))) {
		snprintf(path, sizeof(path), "%s/%s", loading->cache, file->d_name);
		if (file->d_name[0] != '.')
			fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	if (cache)
		closedir(cache);
	return fd;
}

/* ---- loads ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double since_ms(uint64_t begin)
{
	return (double)(monotonic_ns() - begin) / 1e6;
}

/* Return the size of the pages of an adapter, which must be acquired. */
static uint64_t bytes_of(struct gpool_lora *lora, uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	return gpool_lora_info(lora, id, &info) ? 0 : (uint64_t)info.pages * PAGE_BYTES;
}

/* Load the adapter, and evict it again. */
static int load(struct gpool_lora *lora, uint32_t id, double *ms, uint64_t *bytes)
{
	uint64_t begin = monotonic_ns();
	int error = interrupted ? -EINTR : gpool_lora_acquire(lora, id, -1);

	*ms = since_ms(begin);
	*bytes = bytes_of(lora, id);
	if (!error)
		error = gpool_lora_release(lora, id, GPOOL_FENCE_NONE);
	return error ? error : gpool_lora_unload(lora, id);
}

/* Load once from the files; the library then makes the copy from which all later loads read. */
static int copy_await(struct gpool_lora *lora, uint32_t id)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	uint64_t begin = monotonic_ns();
	uint64_t bytes;
	double ms;
	int error = load(lora, id, &ms, &bytes);

	while (!error && !stats.cold_bytes && !stats.warm_made) {
		usleep(POLL_US);
		error = interrupted ? -EINTR : since_ms(begin) > WAIT_MS ? -ETIMEDOUT : gpool_lora_stats(lora, &stats);
	}
	return error;
}

/* Return: true if the library has loaded the adapter from this source, after the load that made the copy. */
static bool is_from(struct gpool_lora *lora, uint32_t id, enum lora_source source)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	return !gpool_lora_info(lora, id, &info) &&
		info.from_cold == (source == LORA_SOURCE_DISK ? LORA_TIME_RUNS : 0) &&
		info.from_warm == (source == LORA_SOURCE_MEMORY ? LORA_TIME_RUNS : 0) &&
		info.loads == LORA_TIME_RUNS + (source != LORA_SOURCE_FILES);
}

static int loads_measure(const struct loading *loading, enum lora_source source, struct lora_times *times)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct lora_time *time = &times->of[source];
	struct gpool_lora *lora;
	double ms[LORA_TIME_RUNS];
	uint32_t id;
	int error;

	options.element = GPOOL_LORA_BF16;
	options.rebalance_ms = UINT32_MAX;
	options.cache_dir = source == LORA_SOURCE_DISK ? loading->cache : NULL;
	options.warm = source == LORA_SOURCE_MEMORY ? loading->host : NULL;
	error = gpool_lora_create(loading->engine, &options, &lora);
	if (error)
		return error;
	error = gpool_lora_register(lora, "adapter", loading->folder, &id, NULL);
	if (!error && source != LORA_SOURCE_FILES)
		error = copy_await(lora, id);
	for (int i = 0; i < LORA_TIME_RUNS && !error; i++)
		error = load(lora, id, &ms[i], &times->adapter_bytes);
	if (!error && !is_from(lora, id, source))
		error = -EIO;
	gpool_lora_destroy(lora);
	if (error)
		return error;
	qsort(ms, LORA_TIME_RUNS, sizeof(*ms), by_value);
	time->paged_least = ms[0];
	time->paged_ms = ms[LORA_TIME_RUNS / 2];
	time->paged_most = ms[LORA_TIME_RUNS - 1];
	return 0;
}

/* ---- reads into one piece of memory ---- */

static int piece_read(const struct loading *loading, int fd, uint64_t bytes)
{
	if (fd < 0)
		memcpy(loading->to, loading->from, bytes);
	else if (pread(fd, loading->to, bytes, 0) != (ssize_t)bytes)
		return -EIO;
	return 0;
}

static int piece_measure(const struct loading *loading, int fd, struct lora_time *time)
{
	double ms[LORA_TIME_RUNS];
	int error = 0;

	for (int i = 0; i < LORA_TIME_RUNS && !error; i++) {
		uint64_t begin = monotonic_ns();

		error = piece_read(loading, fd, time->bytes);
		ms[i] = since_ms(begin);
	}
	if (error)
		return error;
	qsort(ms, LORA_TIME_RUNS, sizeof(*ms), by_value);
	time->piece_ms = ms[LORA_TIME_RUNS / 2];
	return 0;
}

static int source_measure(const struct loading *loading, enum lora_source source, struct lora_times *times)
{
	struct lora_time *time = &times->of[source];
	struct stat status = {.st_size = 0};
	int fd, error = loads_measure(loading, source, times);

	if (error)
		return error;
	if (source == LORA_SOURCE_MEMORY) {
		time->bytes = times->adapter_bytes;
		return piece_measure(loading, -1, time);
	}
	fd = source_open(loading, source);
	error = fd < 0 || fstat(fd, &status) || (uint64_t)status.st_size > ROOM_BYTES ? -EIO : 0;
	time->bytes = (uint64_t)status.st_size;
	if (!error)
		error = piece_measure(loading, fd, time);
	if (fd >= 0)
		close(fd);
	return error;
}

/* ---- the agent ---- */

static int loading_open(struct loading *loading)
{
	int error = replay_pool_open(&loading->pool, &loading->engine);

	if (!error)
		error = replay_pool_open(&loading->pool, &loading->host);
	if (!error)
		error = files_make(loading);
	loading->from = malloc(ROOM_BYTES);
	loading->to = malloc(ROOM_BYTES);
	if (!error && (!loading->from || !loading->to))
		error = -ENOMEM;
	if (error)
		return error;
	/* The first access to each page takes much longer. */
	memset(loading->from, 1, ROOM_BYTES);
	memset(loading->to, 2, ROOM_BYTES);
	return 0;
}

static void loading_close(struct loading *loading)
{
	gpool_close(loading->engine);
	gpool_close(loading->host);
	free(loading->from);
	free(loading->to);
	replay_pool_stop(&loading->pool);
}

int lora_times_measure(struct lora_times *times)
{
	struct loading loading = {
		.pool = {.bytes = (uint64_t)POOL_PAGES * PAGE_BYTES, .page_bytes = PAGE_BYTES, .huge = true}};
	int error = replay_pool_start(&loading.pool);

	if (error)
		return error;
	*times = (struct lora_times){0};
	error = loading_open(&loading);
	for (int source = 0; source < LORA_SOURCES && !error; source++)
		error = source_measure(&loading, (enum lora_source)source, times);
	if (error && !interrupted)
		complain("cannot measure loads of adapters: %s", gpool_strerror(error));
	loading_close(&loading);
	return error;
}
