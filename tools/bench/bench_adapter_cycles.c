/*
 * bench_adapter_cycles.c - load and evict adapters of mixed sizes, in a pool for a part of them: 20 runs of 500 loads.
 *
 * Each load is a gpool_lora_acquire() from PEFT's files, which evicts the least recently used adapters. The checksum of
 * every page is compared with the files. The peer is a best-fit allocator with the same number of bytes, which stores
 * each adapter contiguously. It loads the same adapters in the same order. It, too, evicts until enough bytes are free
 * for the next adapter, and continues to evict if the adapter still does not fit.
 */
#include "tools/bench/bench.h"

#include "client/lora/format/convert.h"
#include "client/lora/format/pack.h"
#include "client/lora/format/peft.h"
#include "tools/lib/adapter_make.h"
#include "tools/lib/allocator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	POOL_PAGES = 112, /* of 512 KiB; all adapters need 255, the largest 80 */
	PAGE_BYTES = 512 << 10,
	PAGE_BYTES_LARGE = 2 << 20,
	SMALL_PAGES = 4, /* a small adapter has at most this number of pages of PAGE_BYTES_LARGE; chosen */
	LAYERS_MAX = 2,
	ADAPTERS = 12,
	CYCLES = 500, /* per run */
	WAIT_MS = 60000,
};

static const uint32_t ranks[ADAPTERS / LAYERS_MAX] = {8, 16, 24, 32, 64, 128};

struct subject {
	char folder[600];
	uint32_t layers, id;
	uint64_t weights, digest; /* bytes of the weights; checksum of the page images */
	uint32_t pages, pages_large;
	double pages_tails;            /* pages_large, if adapters like this one shared their last pages */
	uint64_t loads, address, used; /* in the compared cache: number of loads; address, 0: none; time of last use */
};

struct cycles {
	struct bench *bench;
	struct gpool *pool;
	struct gpool_lora *lora;
	struct allocator *fit;
	struct subject subjects[ADAPTERS];
	uint64_t random, look_random, fit_random, fit_clock;
};

/* ---- files ---- */

/* Write floats to some positions, different for each adapter. */
static int stamp(int fd, uint32_t adapter)
{
	struct stat status;
	int error = fstat(fd, &status) ? -errno : 0;

	for (off_t at = status.st_size - 4; at > 65536 && !error; at -= 16384) {
		float value = (float)(adapter + 1) * 0x1p-10f + (float)(at >> 14) * 0x1p-20f;

		error = pwrite(fd, &value, sizeof(value), at) == sizeof(value) ? 0 : -EIO;
	}
	return error;
}

static int plan(const struct peft *peft, uint32_t page_bytes, struct adapter_layout *layout, uint32_t *pages)
{
	struct reason reason;
	int error = pack_make(peft, page_bytes, ADAPTER_BF16, layout, &reason);

	if (!error)
		*pages = layout->header->pages;
	return error;
}

static int digest_make(const struct peft *peft, int weights, struct subject *subject)
{
	struct adapter_layout layout = {NULL};
	struct convert convert;
	struct reason reason;
	uint8_t *image = malloc(PAGE_BYTES);
	int error = image ? plan(peft, PAGE_BYTES, &layout, &subject->pages) : -ENOMEM;

	if (!error)
		subject->weights = pack_use_of(&layout).weights;
	if (!error)
		error = convert_open(peft, &layout, weights, &convert, &reason);
	if (!error) {
		for (uint32_t page = 0; page < subject->pages && !error; page++) {
			error = convert_page(&convert, page, image, &reason);
			subject->digest = XXH3_64bits_withSeed(image, PAGE_BYTES, subject->digest);
		}
		convert_close(&convert);
	}
	pack_free(&layout);
	free(image);
	return error;
}

static int subject_read(int config, int weights, struct subject *subject)
{
	struct adapter_layout large = {NULL};
	struct reason reason;
	struct peft peft;
	int error = peft_read(config, weights, &peft, &reason);

	if (error)
		return error;
	error = plan(&peft, PAGE_BYTES_LARGE, &large, &subject->pages_large);
	if (!error) {
		uint32_t sharers = PAGE_BYTES_LARGE / large.header->last_bytes;

		subject->pages_tails = subject->pages_large - 1 + 1.0 / sharers;
	}
	pack_free(&large);
	if (!error)
		error = digest_make(&peft, weights, subject);
	peft_free(&peft);
	return error;
}

static int subject_make(const struct bench *bench, uint32_t adapter, struct subject *subject)
{
	char path[640];
	int config, weights, error;

	snprintf(subject->folder, sizeof(subject->folder), "%s/%u", bench->folder, adapter);
	if (mkdir(subject->folder, 0700))
		return -errno;
	snprintf(path, sizeof(path), "%s/adapter_config.json", subject->folder);
	config = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", subject->folder);
	weights = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	subject->layers = 1 + adapter % LAYERS_MAX;
	error = config < 0 || weights < 0 ? -EIO
					  : adapter_make(config, weights, subject->layers, ranks[adapter / LAYERS_MAX]);
	if (!error)
		error = stamp(weights, adapter);
	if (!error)
		error = subject_read(config, weights, subject);
	close(config);
	close(weights);
	return error;
}

/* ---- content of the pool ---- */

/* Return the address of the adapter's pages, which is the address of its first tile. */
static int base_of(struct cycles *cycles, const struct subject *subject, uint64_t *base)
{
	static const char *const targets[] = {
		"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
	struct gpool_lora_weights part;

	*base = UINT64_MAX;
	for (size_t i = 0; i < sizeof(targets) / sizeof(*targets); i++) {
		char name[64];

		snprintf(name, sizeof(name), "model.layers.*.%s", targets[i]);
		if (gpool_lora_weights(cycles->lora, subject->id, 0, name, &part))
			continue;
		*base = part.a.first < *base ? part.a.first : *base;
		*base = part.b.first < *base ? part.b.first : *base;
	}
	return *base == UINT64_MAX ? -ENOENT : 0;
}

static int is_right(struct cycles *cycles, const struct subject *subject, bool *right)
{
	uint64_t base, digest = 0;
	int error = base_of(cycles, subject, &base);

	for (uint32_t page = 0; page < subject->pages && !error; page++)
		digest = XXH3_64bits_withSeed(
			(const void *)(uintptr_t)(base + (uint64_t)page * PAGE_BYTES), PAGE_BYTES, digest);
	*right = digest == subject->digest;
	return error;
}

/* Evict an adapter, and compute the percentage of the free memory that no adapter could use. */
static int unusable(struct cycles *cycles, double *percent)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_oom_info shortage = {.size = offsetof(struct gpool_oom_info, holder_count)};
	struct gpool_block block;
	uint32_t largest = POOL_PAGES;
	int error = gpool_lora_unload(cycles->lora, cycles->subjects[random_next(&cycles->look_random) % ADAPTERS].id);

	if (error)
		return error;
	options.flags = GPOOL_ALLOC_NO_EVICT;
	while ((error = gpool_alloc(cycles->pool, largest, &options, &block)) == -ENOSPC) {
		/* Queried each time, because the agent may take pages back in the meantime. */
		gpool_oom_info(cycles->pool, &shortage);
		largest = largest > shortage.free ? shortage.free : largest - 1;
		if (!largest)
			break;
	}
	*percent = shortage.free ? 100.0 * (shortage.free - largest) / shortage.free : 0;
	return !largest ? 0 : error ? error : gpool_free(cycles->pool, &block);
}

/* ---- runs ---- */

struct tally {
	uint64_t loads, failed, wrong, looks;
	uint64_t bytes, small_bytes; /* weights of the loaded adapters, and of the small ones among them */
	/* their pages: of PAGE_BYTES; of PAGE_BYTES_LARGE, of the small ones, and of these with shared last pages */
	double pages, pages_large, small_pages, small_tails;
	double external;
};

static struct subject *next_subject(struct cycles *cycles, uint64_t *random)
{
	return &cycles->subjects[random_next(random) % ADAPTERS];
}

static void tally_sizes(struct tally *tally, const struct subject *subject, uint32_t pages)
{
	tally->bytes += subject->weights;
	tally->pages += pages;
	tally->pages_large += subject->pages_large;
	if (subject->pages_large > SMALL_PAGES)
		return;
	tally->small_bytes += subject->weights;
	tally->small_pages += subject->pages_large;
	tally->small_tails += subject->pages_tails;
}

static int cycle(struct cycles *cycles, struct tally *tally)
{
	struct gpool_lora_info info = {.size = sizeof(info)};
	struct subject *subject = next_subject(cycles, &cycles->random);
	double external = 0;
	bool right = true;
	int error = gpool_lora_acquire(cycles->lora, subject->id, WAIT_MS);

	if (error == -ENOSPC) {
		tally->loads++;
		tally->failed++;
		return 0;
	}
	if (!error)
		error = gpool_lora_info(cycles->lora, subject->id, &info);
	if (!error && info.loads != subject->loads) {
		subject->loads = info.loads;
		error = is_right(cycles, subject, &right);
		tally->loads++;
		tally->wrong += !right;
		tally_sizes(tally, subject, info.pages);
	}
	if (!error)
		error = gpool_lora_release(cycles->lora, subject->id, GPOOL_FENCE_NONE);
	if (error || tally->loads < tally->looks * 10)
		return error;
	tally->looks++;
	error = unusable(cycles, &external);
	tally->external = external > tally->external ? external : tally->external;
	return error;
}

static double unused(uint64_t bytes, double pages, uint32_t page_bytes)
{
	return 100 * (1 - (double)bytes / (pages * page_bytes));
}

static int cycles_sample(struct cycles *cycles)
{
	struct bench *bench = cycles->bench;
	struct tally tally = {.loads = 0};
	uint64_t begin = own_time_ns();
	int error = 0;

	while (tally.loads < CYCLES && !error)
		error = cycle(cycles, &tally);
	if (error)
		return error;
	bench_sample(bench, FIGURE_adapter_cycles_time, (double)(own_time_ns() - begin) / 1e6 / CYCLES);
	bench_sample(bench, FIGURE_adapter_cycles_failed, (double)tally.failed);
	bench_sample(bench, FIGURE_adapter_cycles_wrong, (double)tally.wrong);
	bench_sample(bench, FIGURE_adapter_cycles_external, tally.external);
	bench_sample(bench, FIGURE_adapter_cycles_internal, unused(tally.bytes, tally.pages, PAGE_BYTES));
	bench_sample(
		bench, FIGURE_adapter_cycles_internal_2mib, unused(tally.bytes, tally.pages_large, PAGE_BYTES_LARGE));
	bench_sample(bench, FIGURE_adapter_cycles_small_2mib,
		unused(tally.small_bytes, tally.small_pages, PAGE_BYTES_LARGE));
	bench_sample(bench, FIGURE_adapter_cycles_small_tails,
		unused(tally.small_bytes, tally.small_tails, PAGE_BYTES_LARGE));
	return 0;
}

/* ---- the peer ---- */

static void fit_evict(struct cycles *cycles)
{
	struct subject *oldest = NULL;

	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (cycles->subjects[i].address && (!oldest || cycles->subjects[i].used < oldest->used))
			oldest = &cycles->subjects[i];
	if (!oldest)
		return;
	best_fit_ops.free(cycles->fit, oldest->address, 0);
	oldest->address = 0;
}

/* Load one adapter. If that fails although enough memory is free, count a failure and record the unusable memory. */
static int fit_load(struct cycles *cycles, struct subject *subject, struct tally *tally)
{
	struct allocator_totals totals;
	bool failed = false;
	int error;

	for (;;) {
		best_fit_ops.totals(cycles->fit, &totals);
		if (totals.free < subject->weights) {
			fit_evict(cycles);
			continue;
		}
		error = best_fit_ops.malloc(cycles->fit, subject->weights, 0, &subject->address);
		if (error != -ENOSPC)
			break;
		failed = true;
		fit_evict(cycles);
	}
	tally->loads++;
	tally->failed += failed;
	best_fit_ops.totals(cycles->fit, &totals);
	tally->external += totals.free ? 100 * (1 - (double)totals.largest_free / (double)totals.free) : 0;
	return error;
}

static int fit_sample(struct cycles *cycles)
{
	struct tally tally = {.loads = 0};
	int error = 0;

	while (tally.loads < CYCLES && !error) {
		struct subject *subject = next_subject(cycles, &cycles->fit_random);

		if (!subject->address)
			error = fit_load(cycles, subject, &tally);
		subject->used = ++cycles->fit_clock;
	}
	if (error)
		return error;
	bench_sample(cycles->bench, FIGURE_peer_fit_cycles_failed, (double)tally.failed);
	bench_sample(cycles->bench, FIGURE_peer_fit_cycles_external, tally.external / (double)tally.loads);
	return 0;
}

/* Allocate all of the peer's memory as one block. */
static int fit_open(struct cycles *cycles)
{
	uint64_t address;
	int error = best_fit_ops.open(cycles->pool, &cycles->fit);

	if (!error)
		error = best_fit_ops.malloc(cycles->fit, POOL_PAGES * (uint64_t)PAGE_BYTES, 0, &address);
	return error ? error : best_fit_ops.free(cycles->fit, address, 0);
}

/* ---- the group ---- */

static int cycles_open(struct cycles *cycles)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char name[16];
	int error = 0;

	for (uint32_t i = 0; i < ADAPTERS && !error; i++)
		error = subject_make(cycles->bench, i, &cycles->subjects[i]);
	if (!error)
		error = daemon_open(cycles->bench, 0, &cycles->pool);
	options.element = GPOOL_LORA_BF16;
	if (!error)
		error = gpool_lora_create(cycles->pool, &options, &cycles->lora);
	for (uint32_t i = 0; i < ADAPTERS && !error; i++) {
		snprintf(name, sizeof(name), "%u", i);
		error = gpool_lora_register(
			cycles->lora, name, cycles->subjects[i].folder, &cycles->subjects[i].id, NULL);
	}
	return error;
}

/* Measure the peer with the whole pool, after all adapters have been removed. */
static int peer_measure(struct cycles *cycles)
{
	int error = gpool_lora_destroy(cycles->lora);

	cycles->lora = NULL;
	gpool_close(cycles->pool);
	cycles->pool = NULL;
	if (!error)
		error = daemon_evict(cycles->bench, POOL_PAGES) < 0 ? -EIO : daemon_wait_free(cycles->bench, NULL);
	if (!error)
		error = daemon_open(cycles->bench, 0, &cycles->pool);
	if (!error)
		error = fit_open(cycles);
	for (unsigned run = 0; run < cycles->bench->runs && !error; run++)
		error = fit_sample(cycles);
	return error;
}

int bench_adapter_cycles(struct bench *bench)
{
	static const char *const calm[] = {"lease.initial_pages=0", "lease.batch_pages=1", "lease.batch_most=1", NULL};
	static struct cycles cycles;
	int error = daemon_start(bench, POOL_PAGES, calm);

	if (error)
		return error;
	cycles.bench = bench;
	cycles.random = cycles.look_random = cycles.fit_random = 1;
	error = cycles_open(&cycles);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = cycles_sample(&cycles);
	if (!error)
		error = peer_measure(&cycles);
	if (error)
		bench_complain(bench, error, "cannot load adapters");
	if (cycles.fit)
		best_fit_ops.close(cycles.fit);
	gpool_lora_destroy(cycles.lora);
	gpool_close(cycles.pool);
	daemon_stop(bench);
	return error;
}
