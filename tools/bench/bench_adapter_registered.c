/*
 * bench_adapter_registered.c - memory use of 10,000 registered adapters in an engine and in gpoold, which does not know
 * them.
 */
#include "tools/bench/bench.h"
#include "tools/lib/adapter_make.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
enum { POOL_PAGES = 64, REGISTERED = 10000 };

/* Return the private memory of a process. The pool's memory is shared, so it does not count. */
static int64_t anonymous_bytes(pid_t pid)
{
	char path[64], line[256];
	int64_t kib = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssAnon: %" SCNd64, &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024;
}

static int64_t agent_bytes(pid_t keeper)
{
	int64_t bytes = anonymous_bytes(keeper);
	char path[64];
	FILE *list;
	int child;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)keeper, (int)keeper);
	list = fopen(path, "re");
	while (list && fscanf(list, "%d", &child) == 1)
		bytes += anonymous_bytes(child);
	if (list)
		fclose(list);
	return bytes;
}

static int files_make(const struct bench *bench)
{
	char path[600];
	int config, weights, error;

	snprintf(path, sizeof(path), "%s/adapter_config.json", bench->folder);
	config = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", bench->folder);
	weights = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	error = config < 0 || weights < 0 ? -EIO : adapter_make(config, weights, 1, 8);
	close(config);
	close(weights);
	return error;
}

static int registered_sample(struct bench *bench, struct gpool *pool)
{
	int64_t before = anonymous_bytes(getpid());
	struct gpool_lora *many;
	char name[32];
	uint32_t id;
	int error = gpool_lora_create(pool, NULL, &many);

	if (error)
		return error;
	for (int i = 0; i < REGISTERED && !error; i++) {
		snprintf(name, sizeof(name), "adapter-%d", i);
		error = gpool_lora_register(many, name, bench->folder, &id, NULL);
	}
	bench_sample(
		bench, FIGURE_adapter_registered_engine, (double)(anonymous_bytes(getpid()) - before) / (double)MIB);
	bench_sample(bench, FIGURE_adapter_registered_agent, (double)agent_bytes(bench->agent) / (double)MIB);
	gpool_lora_destroy(many);
	return error;
}

int bench_adapter_registered(struct bench *bench)
{
	struct gpool *pool = NULL;
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = files_make(bench);
	if (!error)
		error = daemon_open(bench, 0, &pool);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = registered_sample(bench, pool);
	if (error)
		bench_complain(bench, error, "cannot register adapters");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
