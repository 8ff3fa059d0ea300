/*
 * lora_sets.h - sets of adapters whose last pages are stored together (GPOOL_LORA_SHARE_PAGES), one in each of several
 * sessions of a pool.
 *
 * The program writes its ADAPTERS adapters once, with engine_adapter_of() (lora_engine.h), because that takes longer
 * than most tests. Each test has its own gpoold and its own sets.
 */
#ifndef GPOOL_TESTS_LORA_SETS_H
#define GPOOL_TESTS_LORA_SETS_H

#include "client/lora/load/lora.h"
#include "tests/integration/lora_engine.h"
#include "tests/integration/lora_weights.h"

enum { ENGINES = 2, PAGE_BYTES = 512 << 10 };
#ifdef __SANITIZE_THREAD__ /* loads take much longer, and the largest adapters add no interleaving */
enum { ADAPTERS = 8 };
#else
enum { ADAPTERS = 12 };
#endif

static struct gpool *pools[ENGINES], *warm;
static struct gpool_lora *loras[ENGINES];
static uint32_t ids[ENGINES][ADAPTERS];

static inline void set_open(uint32_t engine, struct gpool_lora_options *options)
{
	char name[16], path[128], why[GPOOL_LORA_REASON_BYTES];

	options->flags |= GPOOL_LORA_SHARE_PAGES;
	if (!options->rebalance_ms)
		options->rebalance_ms = UINT32_MAX;
	pools[engine] = open_worker();
	assert_int_equal(gpool_lora_create(pools[engine], options, &loras[engine]), 0);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		snprintf(name, sizeof(name), "a%u", i);
		snprintf(path, sizeof(path), "%s/%u", engine_folder, i);
		if (gpool_lora_register(loras[engine], name, path, &ids[engine][i], why))
			fail_msg("%s: %s", name, why);
	}
}

static inline void set_close(uint32_t engine)
{
	assert_int_equal(gpool_lora_destroy(loras[engine]), 0);
	loras[engine] = NULL;
	gpool_close(pools[engine]);
	pools[engine] = NULL;
}

/* ---- an adapter that cannot be loaded ---- */

static bool first_is_damaged;

/* Write the end of the first adapter's weights. */
static inline void first_write(const void *end)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/0/adapter_model.safetensors", engine_folder);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0 && lseek(fd, -8, SEEK_END) > 0);
	assert_int_equal(write(fd, end, 8), 8);
	close(fd);
}

/* Let the first adapter end with a NaN, until sets_end(). */
static inline void first_damage(void)
{
	const uint64_t not_a_number = UINT64_MAX;

	first_write(&not_a_number);
	first_is_damaged = true;
}

static inline int sets_end(void **state)
{
	const struct rig *first = &engine_rigs[0];
	int error = 0;

	for (uint32_t i = 0; i < ENGINES; i++) {
		error |= gpool_lora_destroy(loras[i]);
		loras[i] = NULL;
		gpool_close(pools[i]);
		pools[i] = NULL;
	}
	gpool_close(warm);
	warm = NULL;
	if (first_is_damaged)
		first_write(first->file + first->header_bytes + first->bytes); /* after the 8 bytes of its length */
	first_is_damaged = false;
	return error | stop(state);
}

/* ---- calls ---- */

static inline void acquire(uint32_t engine, uint32_t adapter)
{
	int error = gpool_lora_acquire(loras[engine], ids[engine][adapter], -1);
	char why[GPOOL_LORA_REASON_BYTES];

	gpool_lora_last_error(loras[engine], ids[engine][adapter], why);
	if (error)
		fail_msg("adapter %u is not acquired: %s: %s", adapter, gpool_strerror(error), why);
}

static inline void release(uint32_t engine, uint32_t adapter)
{
	assert_int_equal(gpool_lora_release(loras[engine], ids[engine][adapter], GPOOL_FENCE_NONE), 0);
}

static inline void check(uint32_t engine, uint32_t adapter)
{
	assert_int_equal(lora_wrong(loras[engine], ids[engine][adapter], &engine_rigs[adapter]), 0);
}

/* Load an adapter, check it, and release it. */
static inline void use(uint32_t engine, uint32_t adapter)
{
	acquire(engine, adapter);
	check(engine, adapter);
	release(engine, adapter);
}

static inline struct gpool_lora_info info_of(uint32_t engine, uint32_t adapter)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(loras[engine], ids[engine][adapter], &info), 0);
	return info;
}

static inline struct gpool_lora_stats stats_of(uint32_t engine)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_lora_stats(loras[engine], &stats), 0);
	return stats;
}

static inline const struct lora_entry *entry_at(uint32_t engine, uint32_t adapter)
{
	return loras[engine]->entries[ids[engine][adapter]];
}

static inline uint32_t shared_pages(uint32_t engine)
{
	return tails_page_count(&loras[engine]->tails);
}

/* Evict everything that is not pinned. */
static inline void evict_all(void)
{
	AWAIT(try_evict(admin, "p0", PAGES, NULL) == 0);
}

#endif
