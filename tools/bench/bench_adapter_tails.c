/*
 * bench_adapter_tails.c - adapters of 0.2 to 6 pages of 2 MiB in a pool for two thirds of them, with and without shared
 * pages (GPOOL_LORA_SHARE_PAGES); and four times as many in a pool of four times the size, with shared pages.
 *
 * All sets get random acquisitions (seeded); the first two get the same ones. The agent evicts adapters, or pages with
 * several tails, when a load needs pages. The unused part includes everything in pages with content that is not a
 * weight of an adapter that is completely resident: ends of pages, holes in shared pages, tables of runs, tails without
 * their adapter, adapters without their tail.
 */
#include "tools/bench/bench.h"

#include "shm/pool_segment.h"
#include "tools/lib/adapter_make.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	PAGE_BYTES = 2 << 20,
	RANKS = 8,
	LAYERS = 3,
	SIZES = RANKS * LAYERS,
	OF_EACH_MAX = 16, /* adapters of each size */
	ADAPTERS_MAX = SIZES * OF_EACH_MAX,
	RANK_BYTES = 160 << 10, /* of a layer of adapter_make(), in 16 bits */
	LOADS = 100,            /* per run */
	PAUSE_MS = 25, /* between acquisitions: the agent uses an order of eviction for 20 ms (EVICT_QUEUE_NS) */
	PAUSE_BELOW_PAGES = 10, /* fill the pool without pauses down to this number of pages without content */
	LOOK_EACH = 10,         /* acquisitions between two samples of the pool */
	WAIT_MS = 60000,
	HEADER_BYTES = 64 << 10, /* more than the header of a file of weights */
};

static const uint32_t ranks[RANKS] = {2, 4, 6, 8, 10, 12, 16, 24};

struct tails {
	struct bench *bench;
	struct gpool *pool;
	struct gpool_lora *lora;
	uint32_t pages, adapters; /* of the pool; used by the set */
	uint64_t bytes[ADAPTERS_MAX];
	uint32_t ids[ADAPTERS_MAX];
	uint64_t random;
};

/* The figures of a set; FIGURES: not measured. */
struct figures {
	enum figure unused, held, loads, parts, time;
};

/* ---- files ---- */

static void folder_of(const struct bench *bench, uint32_t adapter, char path[600])
{
	snprintf(path, 600, "%s/%u", bench->folder, adapter);
}

/* Write an adapter. Its weights become zeros that take no memory, if the file system can do this. */
static int adapter_write(struct tails *tails, uint32_t adapter)
{
	uint32_t layers = 1 + adapter % LAYERS, rank = ranks[adapter / LAYERS % RANKS];
	char folder[600], path[640];
	struct stat status;
	int config, weights, error;

	folder_of(tails->bench, adapter, folder);
	if (mkdir(folder, 0700))
		return -errno;
	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	config = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	weights = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	error = config < 0 || weights < 0 ? -EIO : adapter_make(config, weights, layers, rank);
	if (!error && !fstat(weights, &status))
		fallocate(weights, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, HEADER_BYTES,
			status.st_size - HEADER_BYTES);
	close(config);
	close(weights);
	tails->bytes[adapter] = (uint64_t)layers * rank * RANK_BYTES;
	return error;
}

/* ---- the pool ---- */

/* Return the number of pages without content: free, or idle in the session, which other sessions can take. */
static uint32_t empty_pages(const struct tails *tails)
{
	const struct pool_header *header = pool_view(tails->bench->control)->header;
	struct gpool_oom_info now = {.size = sizeof(now)};
	uint32_t pages = atomic_load(&header->state_pages[PAGE_FREE]);

	gpool_oom_info(tails->pool, &now);
	for (uint32_t i = 0; i < now.holder_count; i++)
		pages += now.holders[i].idle_pages;
	return pages;
}

/* Add a sample of the pool: its unused part, in percent, and the number of resident adapters. */
static int pool_look(const struct tails *tails, double *unused, double *held)
{
	uint64_t bytes = 0;
	int error = 0;

	for (uint32_t i = 0; i < tails->adapters && !error; i++) {
		struct gpool_lora_info info = {.size = sizeof(info)};

		error = gpool_lora_info(tails->lora, tails->ids[i], &info);
		if (info.tier != GPOOL_LORA_TIER_HOT)
			continue;
		bytes += tails->bytes[i];
		*held += 1;
	}
	*unused += 100 * (1 - (double)bytes / ((double)(tails->pages - empty_pages(tails)) * PAGE_BYTES));
	return error;
}

/* Count loads, and add those of which only the last page was missing to *parts, which may be NULL. */
static uint64_t loads_of(const struct tails *tails, uint64_t *parts)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	if (gpool_lora_stats(tails->lora, &stats))
		return 0;
	if (parts)
		*parts = stats.shared;
	return stats.loads + stats.shared;
}

/* ---- runs ---- */

/* Use a random adapter. */
static int use(struct tails *tails)
{
	uint32_t adapter = random_next(&tails->random) % tails->adapters;
	int error = gpool_lora_acquire(tails->lora, tails->ids[adapter], WAIT_MS);

	return error ? error : gpool_lora_release(tails->lora, tails->ids[adapter], GPOOL_FENCE_NONE);
}

static void sample(const struct tails *tails, enum figure figure, double value)
{
	if (figure != FIGURES)
		bench_sample(tails->bench, figure, value);
}

static int run(struct tails *tails, const struct figures *figures)
{
	uint64_t parts = 0, parts_before = 0, first = loads_of(tails, &parts_before), begin_ns, spent_ns = 0;
	double unused = 0, held = 0;
	uint32_t looks = 0, uses;
	int error = 0;

	for (uses = 0; loads_of(tails, NULL) - first < LOADS && !error; uses++) {
		begin_ns = own_time_ns();
		error = use(tails);
		spent_ns += own_time_ns() - begin_ns;
		poll(NULL, 0, PAUSE_MS);
		if (error || uses % LOOK_EACH)
			continue;
		error = pool_look(tails, &unused, &held);
		looks++;
	}
	if (error)
		return error;
	loads_of(tails, &parts);
	parts -= parts_before;
	sample(tails, figures->unused, unused / looks);
	sample(tails, figures->held, held / looks);
	sample(tails, figures->loads, 100.0 * (double)(LOADS - parts) / uses);
	sample(tails, figures->parts, 100.0 * (double)parts / uses);
	sample(tails, figures->time, (double)spent_ns / 1e3 / uses);
	return 0;
}

static int set_measure(struct tails *tails, uint32_t flags, const struct figures *figures)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char name[16], folder[600];
	int error;

	options.flags = flags;
	options.element = GPOOL_LORA_BF16;
	options.rebalance_ms = UINT32_MAX;
	tails->random = 1;
	error = gpool_lora_create(tails->pool, &options, &tails->lora);
	for (uint32_t i = 0; i < tails->adapters && !error; i++) {
		snprintf(name, sizeof(name), "%u", i);
		folder_of(tails->bench, i, folder);
		error = gpool_lora_register(tails->lora, name, folder, &tails->ids[i], NULL);
	}
	/* Fill the pool. */
	for (uint32_t i = 0; i < 2 * tails->adapters && !error; i++) {
		error = use(tails);
		if (empty_pages(tails) < PAUSE_BELOW_PAGES)
			poll(NULL, 0, PAUSE_MS);
	}
	for (unsigned i = 0; i < tails->bench->runs && !error; i++)
		error = run(tails, figures);
	if (!error)
		error = gpool_lora_destroy(tails->lora);
	else
		gpool_lora_destroy(tails->lora);
	return error;
}

/* Start a pool in which `of_each` adapters of each size have too little room. */
static int pool_begin(struct tails *tails, uint32_t pages, uint32_t of_each)
{
	static const char *const calm[] = {"lease.initial_pages=0", "lease.batch_pages=1", "lease.batch_most=1",
		"eviction.start=100", "eviction.stop=99", NULL};
	int error = daemon_start_device(tails->bench, (uint64_t)pages * PAGE_BYTES, PAGE_BYTES, calm);

	tails->pages = pages;
	tails->adapters = of_each * SIZES;
	return error ? error : daemon_open(tails->bench, 0, &tails->pool);
}

static void pool_end(struct tails *tails)
{
	gpool_close(tails->pool);
	tails->pool = NULL;
	daemon_stop(tails->bench);
}

int bench_adapter_tails(struct bench *bench)
{
	static const struct figures plain = {FIGURE_adapter_tails_plain, FIGURE_adapter_tails_plain_held,
					    FIGURE_adapter_tails_plain_loads, FIGURES, FIGURE_adapter_tails_plain_time},
				    shared = {FIGURE_adapter_tails_shared, FIGURE_adapter_tails_shared_held,
					    FIGURE_adapter_tails_shared_loads, FIGURE_adapter_tails_shared_parts,
					    FIGURE_adapter_tails_shared_time},
				    large = {FIGURE_adapter_tails_large, FIGURES, FIGURES, FIGURES, FIGURES};
	static struct tails tails;
	int error = 0;

	tails.bench = bench;
	for (uint32_t i = 0; i < ADAPTERS_MAX && !error; i++)
		error = adapter_write(&tails, i);
	if (!error)
		error = pool_begin(&tails, 100, 4);
	if (!error)
		error = set_measure(&tails, 0, &plain);
	if (!error)
		error = daemon_evict(bench, tails.pages) < 0 ? -EIO : 0;
	if (!error)
		error = set_measure(&tails, GPOOL_LORA_SHARE_PAGES, &shared);
	pool_end(&tails);
	if (!error)
		error = pool_begin(&tails, 400, OF_EACH_MAX);
	if (!error)
		error = set_measure(&tails, GPOOL_LORA_SHARE_PAGES, &large);
	if (error)
		bench_complain(bench, error, "cannot load adapters");
	pool_end(&tails);
	return error;
}
