/*
 * test_client_lora.c - adapters of real processes on a real agent.
 *
 * Goal: the weights that kernels find through gpool_lora_weights() are equal to those in the files. This holds for each
 * engine that loaded them, and for PEFT files and converted files. Acquired adapters remain resident; others are
 * evicted and loaded again. A refusal reports its reason. A process that dies during a load leaves no pages behind.
 *
 * Method: generated adapters, and a gpoold on host memory. Every element of every matrix is compared.
 */
#include "client/lora/load/lora.h"
#include "client/object/object.h"
#include "cuda/gpu_private.h"
#include "shm/pins.h"
#include "tests/integration/life.h"
#include "tests/integration/lora_weights.h"
#include "tests/lib/scale.h"
#include "tests/lib/unwatched.h"
#include "tests/unit/adapter_rig.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>

enum {
	ADAPTERS_MAX = 80,
	MODULES = 9,
	TABLES = 1 /* pages per engine for tables of runs; one more may be idle */
};

#define WARM_POOL "name=warm,backend=host,size=80MiB,page_size=1MiB,reserved=0"
enum { WARM_PAGES = 80 };

static const char *const calm[] = {"--pool", POOL, "--pool", WARM_POOL, QUIET, "--set", "lease.initial_pages=0",
	"--set", "lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static char folder[64];
static struct rig rigs[ADAPTERS_MAX];
static uint32_t rig_count;
static struct gpool *one, *other, *warm, *warm_of_other;
static struct gpool_lora *lora, *lora_of_other;

/* ---- adapters ---- */

static void copy_to(int fd, const char *path)
{
	char buffer[65536];
	off_t at = 0;
	ssize_t length;
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(to >= 0);
	while ((length = pread(fd, buffer, sizeof(buffer), at)) > 0) {
		assert_int_equal(write(to, buffer, (size_t)length), length);
		at += length;
	}
	close(to);
}

static const char *path_of(uint32_t adapter, const char *file)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%u%s%s", folder, adapter, *file ? "/" : "", file);
	return path;
}

/* Write an adapter of this rank for three layers and a head. It has about 1.3 MB for each 16 ranks. */
static uint32_t adapter_make(uint32_t rank)
{
	struct rig_module modules[MODULES];
	struct rig *rig = &rigs[rig_count];
	uint32_t count = 0;

	for (int layer = 0; layer < 4; layer++) {
		modules[count] = (struct rig_module){.rank = rank, .in = 2048, .out = 2048, .type = SAFETENSORS_F16};
		snprintf(modules[count++].path, 64, "model.layers.%d.q", layer);
		modules[count] =
			(struct rig_module){.rank = rank / 2 + 1, .in = 2048, .out = 900, .type = SAFETENSORS_BF16};
		snprintf(modules[count++].path, 64, "model.layers.%d.v", layer);
	}
	modules[count++] = (struct rig_module){"lm_head", 3, 2048, 5000, SAFETENSORS_F32};
	rig_make(rig, modules, count);
	rig_fill(rig, rig_normal);
	assert_int_equal(mkdir(path_of(rig_count, ""), 0700), 0);
	copy_to(rig->config, path_of(rig_count, "adapter_config.json"));
	copy_to(rig->weights, path_of(rig_count, "adapter_model.safetensors"));
	return rig_count++;
}

static uint32_t registered(struct gpool_lora *in, uint32_t adapter)
{
	char name[16], why[GPOOL_LORA_REASON_BYTES];
	uint32_t id;

	snprintf(name, sizeof(name), "a%u", adapter);
	if (gpool_lora_register(in, name, path_of(adapter, ""), &id, why))
		fail_msg("%s: %s", name, why);
	return id;
}

/* Return the number of elements that differ from the file. */
static uint64_t wrong_in(struct gpool_lora *in, uint32_t id, uint32_t adapter)
{
	return lora_wrong(in, id, &rigs[adapter]);
}

static struct gpool_lora_info info_of(struct gpool_lora *in, uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(in, id, &info), 0);
	return info;
}

/* ---- fixture ---- */

static struct gpool_lora *lora_opened(struct gpool *pool, const char *cache_dir)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.cache_dir = cache_dir;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	return made;
}

static void engines_start(void)
{
	start(calm);
	snprintf(folder, sizeof(folder), "%s/gpool-lora-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(folder));
	rig_count = 0;
	one = open_worker();
	other = open_worker();
	warm = open_as(0, "warm", NULL);
	warm_of_other = open_as(0, "warm", NULL);
	lora = lora_opened(one, NULL);
	lora_of_other = lora_opened(other, NULL);
}

static int engines_stop(void **state)
{
	char command[128];
	int error = gpool_lora_destroy(lora);

	error |= gpool_lora_destroy(lora_of_other);
	lora = lora_of_other = NULL;
	gpool_close(one);
	gpool_close(other);
	gpool_close(warm);
	gpool_close(warm_of_other);
	while (rig_count)
		rig_end(&rigs[--rig_count]);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	error |= system(command);
	return error | stop(state);
}

/* ---- one and two engines ---- */

/* Requirements: L1. */
static void test_loaded_once(void **state)
{
	uint32_t adapter, id, shared;
	uint64_t calls;

	(void)state;
	engines_start();
	adapter = adapter_make(24);
	id = registered(lora, adapter);
	shared = registered(lora_of_other, adapter);
	assert_int_equal(info_of(lora, id).state, GPOOL_LORA_COLD);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(wrong_in(lora, id, adapter), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), 0);
	assert_int_equal(wrong_in(lora_of_other, shared, adapter), 0);
	assert_int_equal(info_of(lora, id).loads, 1);
	assert_int_equal(info_of(lora_of_other, shared).loads, 0);
	assert_int_equal(info_of(lora_of_other, shared).shared, 1);
	assert_int_equal(PAGES - harness_free_pages(&harness), info_of(lora, id).pages + 2 * TABLES);
	/* Acquire the adapter again, without a load and without a driver call. */
	calls = gpu_thread_calls_total();
	assert_int_equal(gpool_lora_acquire(lora, id, 0), 0);
	assert_int_equal(gpu_thread_calls_total(), calls);
	assert_int_equal(info_of(lora, id).hits, 1);
	assert_int_equal(totals()->adapter_hits, 1);
	assert_int_equal(totals()->adapter_misses, 2);
	assert_int_equal(info_of(lora, id).acquired, 2);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, shared, GPOOL_FENCE_NONE), 0);
}

/* An acquired adapter stays valid when the engine that loaded it ends. */
static void test_its_loader_ends(void **state)
{
	uint32_t adapter, id, shared;

	(void)state;
	engines_start();
	adapter = adapter_make(24);
	id = registered(lora, adapter);
	shared = registered(lora_of_other, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	gpool_close(one);
	assert_int_equal(wrong_in(lora_of_other, shared, adapter), 0);
	one = open_worker();
	lora = lora_opened(one, NULL);
	id = registered(lora, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(info_of(lora, id).shared, 1);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, shared, GPOOL_FENCE_NONE), 0);
}

static void test_salts_keep_apart(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *apart;
	uint32_t adapter, id, its;

	(void)state;
	engines_start();
	adapter = adapter_make(8);
	id = registered(lora, adapter);
	options.salt[1] = 1;
	assert_int_equal(gpool_lora_create(other, &options, &apart), 0);
	its = registered(apart, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_acquire(apart, its, -1), 0);
	assert_int_equal(info_of(apart, its).loads, 1);
	assert_int_equal(gpool_lora_release(apart, its, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(apart), 0);
	/* The same holds for adapters that are private to a tenant. */
	options.salt[1] = 0;
	options.flags = GPOOL_LORA_PRIVATE;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(gpool_lora_create(i ? one : other, &options, &apart), 0);
		its = registered(apart, adapter);
		assert_int_equal(gpool_lora_acquire(apart, its, -1), 0);
		assert_int_equal(info_of(apart, its).loads, i ? 0 : 1);
		assert_int_equal(info_of(apart, its).shared, i ? 1 : 0);
		assert_int_equal(gpool_lora_release(apart, its, GPOOL_FENCE_NONE), 0);
		assert_int_equal(gpool_lora_destroy(apart), 0);
	}
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
}

/* ---- eviction and unloading ---- */

/* Requirements: L1. */
static void test_evicted_and_loaded_again(void **state)
{
	uint32_t adapter, id;
	struct gpool_block block;

	(void)state;
	engines_start();
	adapter = adapter_make(24);
	id = registered(lora, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_alloc(other, PAGES, NULL, &block), -ENOSPC);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	block = alloc(other, PAGES - TABLES);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -ENOSPC);
	assert_int_equal(gpool_free(other, &block), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(wrong_in(lora, id, adapter), 0);
	assert_int_equal(info_of(lora, id).lost, 1);
	assert_int_equal(info_of(lora, id).loads, 2);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
}

/* Use more adapters than fit. Unused ones are evicted; if all are acquired, the call reports that. Requirements: L3. */
static void test_more_than_fit(void **state)
{
	uint32_t ids[ADAPTERS_MAX], count = 0, pages, held = 0;
	char why[GPOOL_LORA_REASON_BYTES];
	int error = 0;

	(void)state;
	engines_start();
	for (; count < 16; count++)
		ids[count] = registered(lora, adapter_make(40 + count));
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t i = 0; i < count; i++) {
			assert_int_equal(gpool_lora_acquire(lora, ids[i], -1), 0);
			assert_int_equal(wrong_in(lora, ids[i], i), 0);
			assert_int_equal(gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE), 0);
		}
	pages = info_of(lora, ids[count - 1]).pages;
	assert_true(pages * count > PAGES);
	while (held < count && !(error = gpool_lora_acquire(lora, ids[held], -1)))
		held++;
	assert_int_equal(error, -ENOSPC);
	assert_true(held >= PAGES / (pages + 1) - 1 && held < count);
	assert_int_equal(gpool_lora_last_error(lora, ids[held], why), 0);
	assert_non_null(strstr(why, "pool: the adapter needs"));
	assert_non_null(strstr(why, "release adapters"));
	for (uint32_t i = 0; i < held; i++)
		assert_int_equal(wrong_in(lora, ids[i], i), 0);
	assert_int_equal(gpool_lora_release(lora, ids[0], GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(lora, ids[1], GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_acquire(lora, ids[held], -1), 0);
	assert_int_equal(wrong_in(lora, ids[held], held), 0);
	assert_int_equal(gpool_lora_last_error(lora, ids[held], why), 0);
	assert_string_equal(why, "");
	for (uint32_t i = 2; i <= held; i++)
		assert_int_equal(gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE), 0);
}

/* Requirements: L2. */
static void test_unloaded(void **state)
{
	uint32_t adapter, id, shared;

	(void)state;
	engines_start();
	adapter = adapter_make(24);
	id = registered(lora, adapter);
	shared = registered(lora_of_other, adapter);
	assert_int_equal(gpool_lora_unload(lora, id), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), 0);
	assert_int_equal(gpool_lora_unload(lora, id), -EBUSY);
	assert_int_equal(gpool_lora_unregister(lora, id), -EBUSY);
	assert_int_equal(gpool_lora_destroy(lora), -EBUSY);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	/*
	 * The other engine still uses the adapter. It is freed with its last use, and cannot be acquired again before
	 * that.
	 */
	assert_int_equal(gpool_lora_unload(lora, id), 0);
	assert_int_equal(wrong_in(lora_of_other, shared, adapter), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), -EBUSY);
	assert_int_equal(gpool_lora_release(lora_of_other, shared, GPOOL_FENCE_NONE), 0);
	AWAIT(harness_free_pages(&harness) >= PAGES - 4 * TABLES);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, shared, GPOOL_FENCE_NONE), 0);
	/* The adapter is unused, so its pages are freed at once. */
	assert_int_equal(gpool_lora_unload(lora_of_other, shared), 0);
	assert_true(harness_free_pages(&harness) >= PAGES - 4 * TABLES);
	assert_int_equal(gpool_lora_unregister(lora, id), 0);
	assert_int_equal(gpool_lora_unregister(lora, id), -ENOENT);
	assert_int_equal(gpool_lora_acquire(lora, id, 0), -ENOENT);
	assert_int_equal(registered(lora, adapter), id);
}

/*
 * A load has ended, and its pin is held until the waiting thread wakes. Before that, another engine unloads the adapter
 * and a third thread of this process acquires it.
 */
static void test_unloaded_under_a_waiter(void **state)
{
	uint32_t adapter, id, shared, pins = 0;
	struct lora_entry *entry;

	(void)state;
	engines_start();
	adapter = adapter_make(24);
	id = registered(lora, adapter);
	shared = registered(lora_of_other, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), 0);
	/* Simulate that the pin is handed to a waiting thread. */
	entry = lora->entries[id];
	entry->acquired = 0;
	entry->load_state = LOAD_HELD;
	entry->waiting = 1;
	assert_int_equal(gpool_lora_release(lora_of_other, shared, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(lora_of_other, shared), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(info_of(lora, id).loads, 2);
	assert_int_equal(wrong_in(lora, id, adapter), 0);
	/* The waiting thread wakes and finds that the adapter is held again. */
	entry->waiting = 0;
	entry->load_state = LOAD_RESIDENT;
	entry->acquired++;
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	lora = NULL;
	for (uint32_t page = 0; page < PAGES; page++)
		pins += pin_count(&one->session, page);
	assert_int_equal(pins, 0);
}

/* ---- waiting ---- */

/* Requirements: L1, L2. */
static void test_in_the_background(void **state)
{
	uint32_t ids[4];
	int error;

	(void)state;
	engines_start();
	for (uint32_t i = 0; i < 4; i++)
		ids[i] = registered(lora, adapter_make(30));
	assert_int_equal(gpool_lora_acquire(lora, ids[0], 0), -EAGAIN);
	assert_int_equal(gpool_lora_prefetch(lora, ids[1]), 0);
	AWAIT(info_of(lora, ids[0]).state == GPOOL_LORA_RESIDENT && info_of(lora, ids[1]).state == GPOOL_LORA_RESIDENT);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(gpool_lora_acquire(lora, ids[i], 0), 0);
		assert_int_equal(info_of(lora, ids[i]).hits, 1);
		assert_int_equal(gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE), 0);
	}
	/* Wait once with a timeout that is too short, and once with one that is long enough. */
	error = gpool_lora_acquire(lora, ids[2], 1);
	assert_true(error == -ETIMEDOUT || error == 0);
	if (error)
		assert_int_equal(gpool_lora_acquire(lora, ids[2], ANSWER_MS), 0);
	assert_int_equal(wrong_in(lora, ids[2], 2), 0);
	assert_int_equal(gpool_lora_release(lora, ids[2], GPOOL_FENCE_NONE), 0);
	/* Close the engine during the load. */
	assert_int_equal(gpool_lora_prefetch(lora, ids[3]), 0);
	assert_int_equal(gpool_lora_prefetch(lora, 99), -ENOENT);
}

/*
 * Run the maximum number of loads at a time, with more adapters than fit. Each is loaded after earlier ones were
 * evicted.
 */
static void test_all_at_once(void **state)
{
	enum { COUNT = 33 };
	uint32_t ids[COUNT];
	char why[GPOOL_LORA_REASON_BYTES];

	(void)state;
	engines_start();
	for (uint32_t i = 0; i < COUNT; i++)
		ids[i] = registered(lora, adapter_make(40));
	assert_true(COUNT * 4 > PAGES);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_int_equal(gpool_lora_prefetch(lora, ids[i]), 0);
	for (uint32_t i = 0; i < COUNT; i++) {
		AWAIT(info_of(lora, ids[i]).state != GPOOL_LORA_LOADING);
		assert_int_equal(gpool_lora_last_error(lora, ids[i], why), 0);
		assert_string_equal(why, "");
		assert_int_equal(info_of(lora, ids[i]).loads, 1);
	}
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(gpool_lora_acquire(lora, ids[i], -1), 0);
		assert_int_equal(wrong_in(lora, ids[i], i), 0);
		assert_int_equal(gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE), 0);
	}
}

/* With one thread, a small adapter that is acquired after a large one is ready while the large one is still loading. */
/* Requirements: L6. */
static void test_small_before_large(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	uint32_t large, small, before = 0;
	struct gpool_lora *single;

	(void)state;
	engines_start();
	options.load_threads = 1;
	assert_int_equal(gpool_lora_create(one, &options, &single), 0);
	large = registered(single, adapter_make(128));
	small = registered(single, adapter_make(4));
	/* The waiting thread may run late, but not each time. */
	for (int i = 0; i < 50 && !before; i++) {
		assert_int_equal(gpool_lora_prefetch(single, large), 0);
		assert_int_equal(gpool_lora_acquire(single, small, -1), 0);
		before += info_of(single, large).state == GPOOL_LORA_LOADING;
		assert_int_equal(gpool_lora_release(single, small, GPOOL_FENCE_NONE), 0);
		assert_int_equal(gpool_lora_acquire(single, large, -1), 0);
		assert_int_equal(gpool_lora_release(single, large, GPOOL_FENCE_NONE), 0);
		assert_int_equal(gpool_lora_unload(single, large), 0);
		assert_int_equal(gpool_lora_unload(single, small), 0);
	}
	assert_true(before > 0);
	assert_int_equal(gpool_lora_destroy(single), 0);
}

struct asker {
	pthread_t thread;
	uint32_t begin, rounds, wrong, errors;
};

static void *asker_run(void *argument)
{
	struct asker *asker = argument;
	uint32_t at = asker->begin;

	for (uint32_t i = 0; i < asker->rounds; i++, at = (at * 5 + 3) % rig_count) {
		if (gpool_lora_acquire(i % 2 ? lora : lora_of_other, at, -1)) {
			asker->errors++;
			continue;
		}
		asker->wrong += wrong_in(i % 2 ? lora : lora_of_other, at, at) != 0;
		gpool_lora_release(i % 2 ? lora : lora_of_other, at, GPOOL_FENCE_NONE);
	}
	return NULL;
}

/* Threads of two engines use adapters that are loaded and evicted all the time. Requirements: L6. */
static void test_many_at_once(void **state)
{
	struct asker askers[6];
	uint32_t loads = 0;

	(void)state;
	engines_start();
	for (uint32_t i = 0; i < 16; i++) {
		uint32_t adapter = adapter_make(20 + i);

		assert_int_equal(registered(lora, adapter), i);
		assert_int_equal(registered(lora_of_other, adapter), i);
	}
	for (uint32_t i = 0; i < 6; i++) {
		askers[i] = (struct asker){.begin = i * 3, .rounds = 2 + test_scaled(10)};
		assert_int_equal(pthread_create(&askers[i].thread, NULL, asker_run, &askers[i]), 0);
	}
	for (int i = 0; i < 6; i++) {
		pthread_join(askers[i].thread, NULL);
		assert_int_equal(askers[i].wrong, 0);
		/* Six acquired adapters and four simultaneous loads fit into the pool. */
		assert_int_equal(askers[i].errors, 0);
	}
	for (uint32_t i = 0; i < 16; i++)
		loads += (uint32_t)(info_of(lora, i).loads + info_of(lora_of_other, i).loads);
	print_message("%u loads\n", loads);
}

/* ---- use of layers during the load ---- */

/* Return true if all other pages can be allocated. Idle pages of processes are reclaimed for this. */
static bool uses_at_most(uint32_t pages)
{
	struct gpool_block block;

	if (gpool_alloc(other, PAGES - pages, NULL, &block))
		return false;
	assert_int_equal(gpool_free(other, &block), 0);
	return true;
}

/* Return the number of elements of one layer's matrices A that differ from the file. */
static uint64_t wrong_in_layer(struct gpool_lora *in, uint32_t id, uint32_t adapter, int32_t layer)
{
	const struct rig *rig = &rigs[adapter];
	uint64_t wrong = 0;

	for (uint32_t m = 0; m < rig->peft.count; m++) {
		const struct peft_module *module = &rig->peft.modules[m];
		struct gpool_lora_weights part;

		if (module->layer != (uint32_t)layer)
			continue;
		assert_int_equal(gpool_lora_weights(in, id, layer, module->target, &part), 0);
		for (uint32_t k = 0; k < module->rank; k++)
			for (uint32_t i = 0; i < module->in; i++)
				wrong += lora_element(&part.a, part.rank, k, i) !=
					bf16_of_float(rig_get(rig, &module->a, (uint64_t)k * module->in + i));
	}
	return wrong;
}

static bool is_published(struct gpool *pool)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	return !gpool_object_next(pool, &cursor, &info);
}

/* Requirements: L6. */
static void test_layer_by_layer(void **state)
{
	struct gpool_lora_weights part;
	uint32_t adapter, id, its;
	uint64_t address;

	(void)state;
	engines_start();
	adapter = adapter_make(100);
	id = registered(lora, adapter);
	its = registered(lora_of_other, adapter);
	assert_int_equal(gpool_lora_wait_layer(lora, id, 0, -1), -EINVAL);
	assert_int_equal(gpool_lora_wait_layer(lora, id + 1, 0, -1), -ENOENT);
	assert_int_equal(gpool_lora_acquire_async(lora, id, -1), 0);
	for (int32_t layer = 0; layer < 4; layer++) {
		int error = gpool_lora_weights(lora, id, layer, "model.layers.*.q", &part);

		assert_true(error == 0 || error == -EAGAIN);
		assert_int_equal(gpool_lora_wait_layer(lora, id, layer, -1), 0);
		assert_int_equal(gpool_lora_weights(lora, id, layer, "model.layers.*.q", &part), 0);
		assert_int_equal(wrong_in_layer(lora, id, adapter, layer), 0);
	}
	address = part.a.first;
	assert_int_equal(gpool_lora_wait_layer(lora, id, 999, ANSWER_MS), 0);
	assert_int_equal(gpool_lora_wait_layer(lora, id, -1, -1), 0);
	assert_int_equal(wrong_in(lora, id, adapter), 0);
	/* The load is complete, but the adapter stays private while it is used. It can be acquired here. */
	AWAIT(info_of(lora, id).state == GPOOL_LORA_RESIDENT);
	assert_int_equal(gpool_lora_acquire(lora, id, 0), 0);
	assert_int_equal(gpool_lora_weights(lora, id, 3, "model.layers.*.q", &part), 0);
	assert_true(part.a.first == address);
	assert_int_equal(info_of(lora, id).loads, 1);
	assert_false(is_published(other));
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(lora, id), -EBUSY);
	assert_int_equal(gpool_lora_unregister(lora, id), -EBUSY);
	assert_int_equal(gpool_lora_destroy(lora), -EBUSY);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	/* When it is no longer used, the adapter is published and available to all engines. */
	AWAIT(is_published(other));
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, its, -1), 0);
	assert_int_equal(info_of(lora_of_other, its).shared, 1);
	assert_int_equal(wrong_in(lora_of_other, its, adapter), 0);
	/* For a resident adapter, acquire_async is equivalent to acquire. */
	assert_int_equal(gpool_lora_acquire_async(lora, id, 0), 0);
	assert_int_equal(gpool_lora_wait_layer(lora, id, -1, 0), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, its, GPOOL_FENCE_NONE), 0);
	assert_int_equal(info_of(lora, id).loads, 1);
}

/* Release the adapter before it is loaded, and while work is queued on it. It is published after that. */
static void test_begun_and_released(void **state)
{
	uint32_t adapter, id, its, manual;
	struct gpool_fence fence;

	(void)state;
	engines_start();
	adapter = adapter_make(100);
	id = registered(lora, adapter);
	its = registered(lora_of_other, adapter);
	assert_int_equal(gpool_stream_open(one, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_fence_record(one, manual, &fence), 0);
	assert_int_equal(gpool_lora_acquire_async(lora, id, -1), 0);
	assert_int_equal(gpool_lora_release(lora, id, fence), 0);
	AWAIT(info_of(lora, id).state == GPOOL_LORA_RESIDENT);
	assert_int_equal(gpool_lora_destroy(lora), -EBUSY);
	/*
	 * Meanwhile another engine publishes the adapter. This engine switches to the published copy once its own copy
	 * is unused.
	 */
	assert_int_equal(gpool_lora_acquire(lora_of_other, its, -1), 0);
	assert_int_equal(info_of(lora_of_other, its).loads, 1);
	assert_int_equal(gpool_lora_acquire(lora, id, 0), 0);
	assert_int_equal(wrong_in(lora, id, adapter), 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_fence_signal(one, fence), 0);
	AWAIT(uses_at_most(info_of(lora_of_other, its).pages + 3 * TABLES));
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(wrong_in(lora, id, adapter), 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, its, GPOOL_FENCE_NONE), 0);
	gpool_stream_close(one, manual);
}

/* The file is invalid in its third layer. The first two layers can be used, and a wait for more reports the error. */
static void test_fails_in_the_middle(void **state)
{
	char why[GPOOL_LORA_REASON_BYTES];
	struct gpool_lora_weights part;
	uint32_t adapter, id, bad = 0;

	(void)state;
	engines_start();
	adapter = adapter_make(128);
	while (rigs[adapter].peft.modules[bad].layer < 2)
		bad++;
	rig_put(&rigs[adapter], &rigs[adapter].peft.modules[bad].b, 17, NAN);
	copy_to(rigs[adapter].weights, path_of(adapter, "adapter_model.safetensors"));
	id = registered(lora, adapter);
	assert_int_equal(gpool_lora_acquire_async(lora, id, -1), 0);
	assert_int_equal(gpool_lora_wait_layer(lora, id, 0, -1), 0);
	assert_int_equal(wrong_in_layer(lora, id, adapter, 0), 0);
	assert_int_equal(gpool_lora_wait_layer(lora, id, 3, -1), -EINVAL);
	assert_int_equal(gpool_lora_last_error(lora, id, why), 0);
	assert_non_null(strstr(why, rigs[adapter].peft.modules[bad].path));
	assert_int_equal(gpool_lora_wait_layer(lora, id, 0, 0), 0);
	assert_int_equal(wrong_in_layer(lora, id, adapter, 0), 0);
	assert_int_equal(gpool_lora_weights(lora, id, 3, "model.layers.*.q", &part), -EAGAIN);
	/* The adapter cannot be loaded again before it is released. */
	assert_int_equal(gpool_lora_acquire_async(lora, id, -1), -EINVAL);
	assert_int_equal(gpool_lora_acquire(lora, id, 0), -EINVAL);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	AWAIT(info_of(lora, id).state == GPOOL_LORA_COLD);
	AWAIT(uses_at_most(2 * TABLES));
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -EINVAL);
	assert_int_equal(gpool_lora_unregister(lora, id), 0);
}

/* ---- files ---- */

/* Append a blank, which does not change the meaning. */
static void config_append(const char *path)
{
	FILE *file = fopen(path, "ae");

	assert_non_null(file);
	assert_int_equal(fputc(' ', file), ' ');
	assert_int_equal(fclose(file), 0);
}

static void test_wrong_files(void **state)
{
	char why[GPOOL_LORA_REASON_BYTES];
	uint32_t adapter, id;

	(void)state;
	engines_start();
	adapter = adapter_make(8);
	assert_int_equal(gpool_lora_register(lora, "x", "/nowhere", &id, why), -ENOENT);
	assert_non_null(strstr(why, "cannot open /nowhere/adapter_config.json"));
	id = registered(lora, adapter);
	assert_int_equal(gpool_lora_register(lora, "a0", path_of(adapter, ""), &id, why), -EEXIST);
	assert_int_equal(gpool_lora_find(lora, "a0", &id), 0);
	assert_int_equal(gpool_lora_find(lora, "a1", &id), -ENOENT);
	/* The name now refers to another file. */
	assert_int_equal(unlink(path_of(adapter, "adapter_model.safetensors")), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -ENOENT);
	copy_to(rigs[adapter].weights, path_of(adapter, "adapter_model.safetensors"));
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -EINVAL);
	assert_int_equal(gpool_lora_last_error(lora, id, why), 0);
	assert_non_null(strstr(why, "adapter_model.safetensors in '"));
	assert_int_equal(gpool_lora_unregister(lora, id), 0);
	/* Only the configuration changes. */
	id = registered(lora, adapter);
	config_append(path_of(adapter, "adapter_config.json"));
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -EINVAL);
	assert_int_equal(gpool_lora_last_error(lora, id, why), 0);
	assert_non_null(strstr(why, "adapter_config.json in '"));
	assert_int_equal(gpool_lora_unregister(lora, id), 0);
	/* The file contains a weight that is not a number. */
	rig_put(&rigs[adapter], &rigs[adapter].peft.modules[3].b, 17, NAN);
	copy_to(rigs[adapter].weights, path_of(adapter, "adapter_model.safetensors"));
	id = registered(lora, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -EINVAL);
	assert_int_equal(gpool_lora_last_error(lora, id, why), 0);
	assert_non_null(strstr(why, rigs[adapter].peft.modules[3].path));
	assert_true(harness_free_pages(&harness) >= PAGES - 4 * TABLES);
}

/* ---- cold files ---- */

static const char *kept_path(void)
{
	static char path[256];
	char pattern[128];
	DIR *kept;
	struct dirent *entry;

	snprintf(pattern, sizeof(pattern), "%s/kept", folder);
	kept = opendir(pattern);
	assert_non_null(kept);
	path[0] = '\0';
	while ((entry = readdir(kept)))
		if (strstr(entry->d_name, ".cold") && !strstr(entry->d_name, ".new"))
			snprintf(path, sizeof(path), "%s/%.100s", pattern, entry->d_name);
	closedir(kept);
	return path;
}

/* Change one byte of a file without changing its times. */
static void byte_flip(const char *path, off_t at)
{
	struct stat status;
	char byte;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	assert_int_equal(futimens(fd, (struct timespec[]){status.st_atim, status.st_mtim}), 0);
	close(fd);
}

static const char *dirname_of(const char *path)
{
	static char name[256];

	snprintf(name, sizeof(name), "%.*s", (int)(strrchr(path, '/') - path), path);
	return name;
}

static struct gpool_lora *keeper_of(struct gpool *pool, uint32_t flags)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char path[128];
	struct gpool_lora *made;

	snprintf(path, sizeof(path), "%s/kept", folder);
	mkdir(path, 0700);
	options.cache_dir = path;
	options.flags = flags;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	return made;
}

/* Requirements: L5. */
static void test_kept_on_disk(void **state)
{
	struct gpool_lora *keeper;
	uint32_t adapter, id;
	struct stat before, after;

	(void)state;
	engines_start();
	keeper = keeper_of(one, 0);
	adapter = adapter_make(24);
	id = registered(keeper, adapter);
	assert_int_equal(gpool_lora_acquire(keeper, id, -1), 0);
	assert_int_equal(wrong_in(keeper, id, adapter), 0);
	assert_int_equal(gpool_lora_release(keeper, id, GPOOL_FENCE_NONE), 0);
	AWAIT(*kept_path());
	/* The source files have changed, and are not read. */
	byte_flip(path_of(adapter, "adapter_model.safetensors"), (off_t)rigs[adapter].peft.modules[0].a.offset + 100);
	assert_int_equal(gpool_lora_unload(keeper, id), 0);
	assert_int_equal(gpool_lora_acquire(keeper, id, -1), 0);
	assert_int_equal(info_of(keeper, id).loads, 2);
	assert_int_equal(wrong_in(keeper, id, adapter), 0);
	assert_int_equal(gpool_lora_release(keeper, id, GPOOL_FENCE_NONE), 0);
	byte_flip(path_of(adapter, "adapter_model.safetensors"), (off_t)rigs[adapter].peft.modules[0].a.offset + 100);
	/* A damaged cold file is not used, and is written again. */
	assert_int_equal(stat(kept_path(), &before), 0);
	byte_flip(kept_path(), before.st_size - 5000);
	assert_int_equal(gpool_lora_unload(keeper, id), 0);
	assert_int_equal(gpool_lora_acquire(keeper, id, -1), 0);
	assert_int_equal(wrong_in(keeper, id, adapter), 0);
	assert_int_equal(gpool_lora_release(keeper, id, GPOOL_FENCE_NONE), 0);
	AWAIT(stat(kept_path(), &after) == 0 && after.st_ino != before.st_ino);
	assert_int_equal(gpool_lora_destroy(keeper), 0);
}

/* Return a hash of the content of the adapter's pages. */
static uint64_t digest_of(struct gpool_lora *in, uint32_t id, uint32_t adapter)
{
	const struct rig *rig = &rigs[adapter];
	uint64_t digest = 1;

	for (uint32_t m = 0; m < rig->peft.count; m++) {
		const struct peft_module *module = &rig->peft.modules[m];
		struct gpool_lora_weights part;

		assert_int_equal(
			gpool_lora_weights(in, id, module->layer == PEFT_NO_LAYER ? -1 : (int32_t)module->layer,
				module->target, &part),
			0);
		for (uint32_t k = 0; k < module->rank; k++)
			for (uint32_t i = 0; i < module->out; i++)
				digest =
					digest * UINT64_C(6364136223846793005) + lora_element(&part.b, part.rank, k, i);
	}
	return digest;
}

/* As int8, the weights differ slightly from the files, and are the same from the first load on. Requirements: L5. */
static void test_in_int8(void **state)
{
	struct gpool_lora *keeper;
	struct gpool_lora_weights part;
	const struct peft_module *module;
	uint32_t adapter, id;
	uint64_t first;
	double error = 0, norm = 0;

	(void)state;
	engines_start();
	keeper = keeper_of(one, GPOOL_LORA_INT8);
	adapter = adapter_make(24);
	id = registered(keeper, adapter);
	assert_int_equal(gpool_lora_acquire(keeper, id, -1), 0);
	AWAIT(*kept_path());
	assert_true(wrong_in(keeper, id, adapter) > 0);
	module = &rigs[adapter].peft.modules[0];
	assert_int_equal(gpool_lora_weights(keeper, id, (int32_t)module->layer, module->target, &part), 0);
	for (uint32_t k = 0; k < module->rank; k++)
		for (uint32_t i = 0; i < module->in; i++) {
			double value = (double)rig_get(&rigs[adapter], &module->a, (uint64_t)k * module->in + i);
			double difference = (double)float_of_bf16(lora_element(&part.a, part.rank, k, i)) - value;

			error += difference * difference;
			norm += value * value;
		}
	assert_true(sqrt(error / norm) < 0.015);
	first = digest_of(keeper, id, adapter);
	assert_int_equal(gpool_lora_release(keeper, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(keeper, id), 0);
	assert_int_equal(gpool_lora_acquire(keeper, id, -1), 0);
	assert_int_equal(info_of(keeper, id).loads, 2);
	assert_true(digest_of(keeper, id, adapter) == first);
	assert_int_equal(gpool_lora_release(keeper, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(keeper), 0);
}

/* ---- copies in host memory ---- */

static struct gpool_lora *warmed(struct gpool *pool, struct gpool *its_warm, const char *cache_dir, uint32_t flags)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.warm = its_warm;
	options.cache_dir = cache_dir;
	options.flags = flags;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	return made;
}

static struct gpool_lora_stats stats_of(struct gpool_lora *in)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_lora_stats(in, &stats), 0);
	return stats;
}

static void loaded_and_left(struct gpool_lora *in, uint32_t id, uint32_t adapter)
{
	char why[GPOOL_LORA_REASON_BYTES] = "";
	int error = gpool_lora_acquire(in, id, -1);

	if (error) {
		gpool_lora_last_error(in, id, why);
		fail_msg("gpool_lora_acquire() returned %d: %s; %s", error, gpool_last_error(error), why);
	}
	assert_int_equal(wrong_in(in, id, adapter), 0);
	assert_int_equal(gpool_lora_release(in, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(in, id), 0);
}

static uint64_t calls_of(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	assert_int_equal(gpool_stats(pool, &statistics), 0);
	return statistics.driver_calls;
}

/*
 * A repeated load finds the copy and its own pages still mapped. It maps nothing, and makes read-only pages writable
 * with one call for each run. A copy that was evicted in the meantime is not used, although it is mapped.
 */
static void test_warm_copies_stay_mapped(void **state)
{
	enum { AGAIN = 4 };
	struct gpool_lora *engine;
	uint64_t of_warm, of_pool;
	uint32_t adapter, id, pages;

	(void)state;
	engines_start();
	engine = warmed(one, warm, NULL, 0);
	adapter = adapter_make(24);
	id = registered(engine, adapter);
	loaded_and_left(engine, id, adapter);
	AWAIT(stats_of(engine).warm_made == 1);
	loaded_and_left(engine, id, adapter);
	of_warm = calls_of(warm);
	of_pool = calls_of(one);
	for (int i = 0; i < AGAIN; i++) {
		assert_int_equal(gpool_lora_acquire(engine, id, -1), 0);
		pages = info_of(engine, id).pages;
		assert_int_equal(wrong_in(engine, id, adapter), 0);
		assert_int_equal(gpool_lora_release(engine, id, GPOOL_FENCE_NONE), 0);
		assert_int_equal(gpool_lora_unload(engine, id), 0);
	}
	assert_int_equal(info_of(engine, id).from_warm, 1 + AGAIN);
	assert_int_equal(calls_of(warm), of_warm);
	assert_true(pages > 2);
	/* On `cuda`, each page is copied. */
	if (!strcmp(harness_backend(), "host"))
		assert_true(calls_of(one) - of_pool <= 2 * AGAIN);
	AWAIT(try_evict(admin, "warm", WARM_PAGES, NULL) == 0 && stats_of(engine).warm_bytes == 0);
	loaded_and_left(engine, id, adapter);
	assert_int_equal(info_of(engine, id).from_warm, 1 + AGAIN);
	assert_int_equal(gpool_lora_destroy(engine), 0);
}

/* ---- waiting threads help ---- */

static _Atomic bool frozen, thawed;

static void freeze(int signal)
{
	(void)signal;
	atomic_store(&frozen, true);
	while (!atomic_load(&thawed))
		poll(NULL, 0, 1);
	atomic_store(&frozen, false);
}

/* Stop the loader threads. This function holds the lock, so that a stopped loader does not hold it. */
static void loader_freeze(struct gpool_lora *in)
{
	struct sigaction action = {.sa_handler = freeze};

	assert_int_equal(sigaction(SIGUSR2, &action, NULL), 0);
	AWAIT(!atomic_load(&frozen)); /* the end of the stop before */
	atomic_store(&thawed, false);
	pthread_mutex_lock(&in->lock);
	assert_int_equal(pthread_kill(in->loaders[0].thread, SIGUSR2), 0);
	AWAIT(atomic_load(&frozen));
	pthread_mutex_unlock(&in->lock);
}

static uint64_t refills_of(struct gpool *pool)
{
	struct gpool_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_stats(pool, &stats), 0);
	return stats.refills;
}

/*
 * If its timeout permits, the waiting thread itself loads a copy in host memory. It loads neither from files nor with a
 * short timeout. With any timeout, it leaves the steps after the last part to the loader.
 */
static void test_a_waiting_thread_helps(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *engine;
	uint32_t warm_one, cold_one, id, its, shared;
	uint64_t messages, refills;

	(void)state;
	engines_start();
	options.warm = warm;
	options.load_threads = 1;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(one, &options, &engine), 0);
	warm_one = adapter_make(24);
	id = registered(engine, warm_one);
	loaded_and_left(engine, id, warm_one);
	AWAIT(stats_of(engine).warm_made == 1);
	loader_freeze(engine);
	assert_int_equal(gpool_lora_acquire_async(engine, id, -1), 0);
	for (int32_t layer = 0; layer >= -1; layer--) {
		assert_int_equal(gpool_lora_wait_layer(engine, id, layer, END_MS), 0);
		assert_int_equal(wrong_in_layer(engine, id, warm_one, 0), 0);
	}
	assert_int_equal(info_of(engine, id).loads, 1); /* the loader counts the load when it has ended */
	assert_int_equal(gpool_lora_release(engine, id, GPOOL_FENCE_NONE), 0);
	/* The adapter is published as a whole, and only by a loader. */
	assert_int_equal(gpool_lora_acquire(engine, id, 1), -ETIMEDOUT);
	atomic_store(&thawed, true);
	assert_int_equal(gpool_lora_acquire(engine, id, END_MS), 0);
	assert_int_equal(wrong_in(engine, id, warm_one), 0);
	assert_int_equal(info_of(engine, id).from_warm, 1);
	assert_int_equal(gpool_lora_release(engine, id, GPOOL_FENCE_NONE), 0);
	AWAIT(gpool_lora_unload(engine, id) == 0);
	/*
	 * A call without a timeout loads and publishes it, without the loader. It waits for the agent twice: for pages,
	 * unless the lease has enough, and for the publication.
	 */
	loader_freeze(engine);
	messages = one->attach_sequence;
	refills = refills_of(one);
	assert_int_equal(gpool_lora_acquire(engine, id, -1), 0);
	assert_int_equal(one->attach_sequence - messages, 1);
	assert_true(refills_of(one) - refills <= 1);
	assert_int_equal(wrong_in(engine, id, warm_one), 0);
	assert_int_equal(info_of(engine, id).loads, 3);
	shared = registered(lora_of_other, warm_one);
	assert_int_equal(gpool_lora_acquire(lora_of_other, shared, -1), 0);
	assert_int_equal(info_of(lora_of_other, shared).shared, 1);
	assert_int_equal(gpool_lora_release(lora_of_other, shared, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(engine, id, GPOOL_FENCE_NONE), 0);
	atomic_store(&thawed, true);
	AWAIT(gpool_lora_unload(engine, id) == 0);
	/* A call with a timeout does not start the load itself. */
	loader_freeze(engine);
	assert_int_equal(gpool_lora_acquire_async(engine, id, 20), -ETIMEDOUT);
	atomic_store(&thawed, true);
	assert_int_equal(gpool_lora_acquire_async(engine, id, END_MS), 0);
	assert_int_equal(gpool_lora_wait_layer(engine, id, -1, END_MS), 0);
	assert_int_equal(gpool_lora_release(engine, id, GPOOL_FENCE_NONE), 0);
	AWAIT(gpool_lora_unload(engine, id) == 0);
	/* Without a copy in memory the adapter has its pages, and the rest of the load is left to the loader. */
	cold_one = adapter_make(8);
	its = registered(engine, cold_one);
	loaded_and_left(engine, its, cold_one);
	AWAIT(stats_of(engine).warm_made == 2);
	AWAIT(try_evict(admin, "warm", WARM_PAGES, NULL) == 0 && stats_of(engine).warm_bytes == 0);
	loader_freeze(engine);
	assert_int_equal(gpool_lora_acquire_async(engine, its, -1), 0);
	assert_int_equal(gpool_lora_wait_layer(engine, its, 0, 1), -ETIMEDOUT);
	atomic_store(&thawed, true);
	assert_int_equal(gpool_lora_wait_layer(engine, its, -1, END_MS), 0);
	assert_int_equal(wrong_in_layer(engine, its, cold_one, 0), 0);
	assert_int_equal(gpool_lora_release(engine, its, GPOOL_FENCE_NONE), 0);
	AWAIT(gpool_lora_unload(engine, its) == 0);
	assert_int_equal(info_of(engine, its).from_warm, 0);
	assert_int_equal(gpool_lora_destroy(engine), 0);
}

/* Use more copies than stay mapped. */
static void test_warm_copies_stay_mapped_for_a_while(void **state)
{
	enum { MANY = 70 };
	struct gpool_lora *engine;
	uint32_t ids[MANY], adapter;

	(void)state;
	engines_start();
	engine = warmed(one, warm, NULL, 0);
	for (uint32_t i = 0; i < MANY; i++) {
		adapter = adapter_make(1);
		ids[i] = registered(engine, adapter);
	}
	for (int round = 0; round < 3; round++)
		for (uint32_t i = 0; i < MANY; i++)
			loaded_and_left(engine, ids[i], i);
	AWAIT(stats_of(engine).warm_made > 0);
	assert_int_equal(stats_of(engine).refused, 0);
	assert_int_equal(gpool_lora_destroy(engine), 0);
}

/* Requirements: L5, L12. */
static void test_warm_copies(void **state)
{
	struct gpool_lora *first, *second;
	struct gpool_lora_stats stats;
	uint32_t adapter, id, its;
	off_t at;

	(void)state;
	engines_start();
	first = warmed(one, warm, NULL, 0);
	second = warmed(other, warm_of_other, NULL, 0);
	adapter = adapter_make(24);
	id = registered(first, adapter);
	its = registered(second, adapter);
	loaded_and_left(first, id, adapter);
	AWAIT(stats_of(first).warm_made == 1);
	/* The source files have changed, and neither engine reads them. */
	at = (off_t)rigs[adapter].peft.modules[0].a.offset + 100;
	byte_flip(path_of(adapter, "adapter_model.safetensors"), at);
	loaded_and_left(first, id, adapter);
	loaded_and_left(second, its, adapter);
	assert_int_equal(info_of(first, id).loads, 2);
	assert_int_equal(info_of(first, id).from_warm, 1);
	assert_int_equal(info_of(second, its).from_warm, 1);
	/* The copy is evicted like any object. Then the adapter is loaded and copied again. */
	byte_flip(path_of(adapter, "adapter_model.safetensors"), at);
	AWAIT(try_evict(admin, "warm", WARM_PAGES, NULL) == 0 && stats_of(first).warm_bytes == 0);
	loaded_and_left(second, its, adapter);
	assert_int_equal(info_of(second, its).from_warm, 1);
	AWAIT(stats_of(second).warm_made == 1);
	assert_int_equal(gpool_lora_acquire(second, its, -1), 0);
	stats = stats_of(second);
	assert_int_equal(stats.registered, 1);
	assert_int_equal(stats.resident, 1);
	assert_int_equal(stats.active, 1);
	assert_int_equal(stats.loads, 3);
	assert_int_equal(stats.from_warm, 2);
	assert_int_equal(stats.hot_bytes, info_of(second, its).pages * gpool_page_bytes(other));
	assert_true(stats.warm_bytes > 0 && stats.warm_bytes % gpool_page_bytes(warm) == 0);
	assert_int_equal(stats.cold_bytes, 0);
	assert_int_equal(gpool_lora_release(second, its, GPOOL_FENCE_NONE), 0);
	/* The counts of unregistered adapters are kept. */
	assert_int_equal(gpool_lora_unregister(second, its), 0);
	assert_int_equal(stats_of(second).registered, 0);
	assert_int_equal(stats_of(second).loads, 3);
	assert_int_equal(gpool_lora_destroy(first), 0);
	assert_int_equal(gpool_lora_destroy(second), 0);
}

enum forgery {
	FORGED_WEIGHT,
	FORGED_CHECKSUM,
	FORGED_LAYOUT,
	FORGED_FORM,
	FORGED_SHORT,
	FORGED_EMPTY,
	FORGED_CLASS,
	FORGERIES
};

/* Read the copy, change it, and publish it in place of the original. */
static void forge(struct gpool *pool, enum forgery forgery)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *object, *forged;
	uint64_t from, bytes, to, length, version;
	uint32_t cursor = 0, index;
	const char *key;
	const void *value;
	size_t value_bytes;

	assert_int_equal(gpool_object_next(pool, &cursor, &info), 0);
	assert_int_equal(gpool_object_open(pool, info.name, NULL, &object), 0);
	if (info.memory_class == GPOOL_OBJECT_PINNABLE)
		assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_address(object, 0, &from, &bytes), 0);
	options.memory_class = forgery == FORGED_CLASS ? GPOOL_OBJECT_EPHEMERAL : GPOOL_OBJECT_PINNABLE;
	options.flags |= OBJECT_CREATE_OWN;
	assert_int_equal(gpool_object_create(pool, info.name, &options, &forged), 0);
	assert_int_equal(
		gpool_object_alloc(
			forged, forgery == FORGED_SHORT ? 1 : (uint32_t)(bytes / gpool_page_bytes(pool)), NULL, &index),
		0);
	assert_int_equal(gpool_object_address(forged, index, &to, &length), 0);
	memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, length);
	if (forgery == FORGED_WEIGHT)
		((uint8_t *)(uintptr_t)to)[700001] ^= 1;
	for (uint32_t i = 0; forgery != FORGED_EMPTY && !gpool_object_entry(object, i, &key, &value, &value_bytes);
		i++) {
		uint8_t *changed = malloc(value_bytes);

		memcpy(changed, value, value_bytes);
		changed[value_bytes / 2] ^= (forgery == FORGED_CHECKSUM && !strcmp(key, "checksums")) ||
			(forgery == FORGED_LAYOUT && !strcmp(key, "layout"));
		/* int8 was not requested. */
		changed[0] ^= forgery == FORGED_FORM && !strcmp(key, "form");
		assert_int_equal(gpool_object_set(forged, key, changed, value_bytes), 0);
		free(changed);
	}
	assert_int_equal(gpool_object_publish(forged, &version), 0);
	if (info.memory_class == GPOOL_OBJECT_PINNABLE)
		gpool_object_unpin(object);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(forged), 0);
}

/*
 * A session with the right to publish stores other content under that name. That copy must not be used, and must be
 * replaced.
 */
static void test_forged_copies(void **state)
{
	struct gpool_lora *keeper;
	uint32_t adapter, id;

	(void)state;
	engines_start();
	keeper = warmed(one, warm, NULL, 0);
	adapter = adapter_make(24);
	id = registered(keeper, adapter);
	loaded_and_left(keeper, id, adapter);
	AWAIT(stats_of(keeper).warm_made == 1);
	for (uint32_t forgery = 0; forgery < FORGERIES; forgery++) {
		forge(warm_of_other, (enum forgery)forgery);
		loaded_and_left(keeper, id, adapter);
		assert_int_equal(stats_of(keeper).refused, forgery + 1);
		assert_int_equal(info_of(keeper, id).from_warm, forgery);
		AWAIT(stats_of(keeper).warm_made == forgery + 2);
		loaded_and_left(keeper, id, adapter);
		assert_int_equal(info_of(keeper, id).from_warm, forgery + 1);
	}
	assert_int_equal(gpool_lora_destroy(keeper), 0);
}

/* A device that does not execute the copy of a page, and what follows it in the stream, until the test lets it. */
static struct {
	const struct gpu_ops *ops;
	struct gpu_ops held;
	const uint64_t *word; /* whose signal lets the device continue */
	uint64_t page_bytes;
	_Atomic uint32_t copies, queries;
} device;

static int held_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream)
{
	if (bytes == device.page_bytes && !atomic_fetch_add(&device.copies, 1))
		assert_int_equal(gpu_timeline_wait(gpu, stream, device.word, 1), 0);
	return device.ops->copy(gpu, to, from, bytes, stream);
}

static int held_query(struct gpu *gpu, struct gpu_stream *stream)
{
	atomic_fetch_add(&device.queries, atomic_load(&device.copies) > 0);
	return device.ops->stream_query(gpu, stream);
}

/* A part that fails waits for the copies that it has queued, before another source replaces its images. */
static void test_a_failed_part_waits_for_its_copies(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	uint32_t adapter, id, manual, host_pointer;
	struct gpool_lora *staged;
	struct gpool_fence gate;
	uint64_t refused;

	(void)state;
	engines_start();
	host_pointer = one->capabilities & GPU_CAP_HOST_POINTER;
	options.warm = warm;
	options.load_threads = 1;
	options.rebalance_ms = UINT32_MAX;
	one->capabilities &= ~(uint32_t)GPU_CAP_HOST_POINTER;
	assert_int_equal(gpool_lora_create(one, &options, &staged), 0);
	one->capabilities |= host_pointer;
	adapter = adapter_make(24);
	id = registered(staged, adapter);
	loaded_and_left(staged, id, adapter);
	AWAIT(stats_of(staged).warm_made == 1);
	forge(warm_of_other, FORGED_WEIGHT); /* in the second page of the first part */
	assert_int_equal(gpool_stream_open(one, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_fence_record(one, manual, &gate), 0);
	device.ops = one->gpu->ops;
	device.held = *device.ops;
	device.held.copy = held_copy;
	device.held.stream_query = held_query;
	device.word = (const uint64_t *)&one->session.timeline[manual & 255];
	device.page_bytes = gpool_page_bytes(one);
	one->gpu->ops = &device.held;
	assert_int_equal(gpool_lora_acquire_async(staged, id, -1), 0);
	AWAIT(atomic_load(&device.queries)); /* the thread waits, and asks whether the stream has failed */
	refused = stats_of(staged).refused;
	assert_int_equal(gpool_fence_signal(one, gate), 0);
	assert_int_equal(refused, 0);
	assert_int_equal(gpool_lora_wait_layer(staged, id, -1, END_MS), 0);
	assert_int_equal(stats_of(staged).refused, 1);
	assert_int_equal(wrong_in_layer(staged, id, adapter, 0), 0);
	assert_int_equal(gpool_lora_release(staged, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(staged), 0);
	one->gpu->ops = device.ops;
	gpool_stream_close(one, manual);
}

static void test_no_room_for_copies(void **state)
{
	struct gpool_lora *keeper;
	struct gpool_block block;
	uint32_t adapter, id;

	(void)state;
	engines_start();
	keeper = warmed(one, warm, NULL, 0);
	adapter = adapter_make(24);
	id = registered(keeper, adapter);
	block = alloc(warm_of_other, WARM_PAGES);
	loaded_and_left(keeper, id, adapter);
	AWAIT(stats_of(keeper).warm_full == 1);
	assert_int_equal(stats_of(keeper).warm_made, 0);
	assert_int_equal(gpool_free(warm_of_other, &block), 0);
	loaded_and_left(keeper, id, adapter);
	AWAIT(stats_of(keeper).warm_made == 1);
	assert_int_equal(stats_of(keeper).refused, 0);
	assert_int_equal(gpool_lora_destroy(keeper), 0);
}

/*
 * On devices whose pages the CPU cannot write, each thread has a stage. Copy more pages than the stage has, from all
 * sources.
 */
static void test_through_the_stage(void **state)
{
	struct gpool_lora *staged, *keeper;
	uint32_t adapter, ids[2], host_pointer;
	char folder_of_it[128];

	(void)state;
	engines_start();
	host_pointer = one->capabilities & GPU_CAP_HOST_POINTER;
	snprintf(folder_of_it, sizeof(folder_of_it), "%s/kept", folder);
	assert_int_equal(mkdir(folder_of_it, 0700), 0);
	one->capabilities &= ~(uint32_t)GPU_CAP_HOST_POINTER;
	staged = warmed(one, warm, NULL, 0);
	keeper = warmed(one, NULL, folder_of_it, 0);
	one->capabilities |= host_pointer;
	assert_non_null(staged->loaders[0].stage);
	adapter = adapter_make(128);
	ids[0] = registered(staged, adapter);
	ids[1] = registered(keeper, adapter);
	loaded_and_left(staged, ids[0], adapter);
	AWAIT(stats_of(staged).warm_made == 1);
	loaded_and_left(staged, ids[0], adapter);
	assert_int_equal(stats_of(staged).from_warm, 1);
	loaded_and_left(keeper, ids[1], adapter);
	AWAIT(stats_of(keeper).cold_bytes > 0);
	loaded_and_left(keeper, ids[1], adapter);
	assert_int_equal(stats_of(keeper).from_cold, 1);
	assert_int_equal(gpool_lora_destroy(keeper), 0);
	assert_int_equal(gpool_lora_destroy(staged), 0);
}

static uint64_t digest_and_left(struct gpool_lora *in, uint32_t id, uint32_t adapter)
{
	uint64_t digest;

	assert_int_equal(gpool_lora_acquire(in, id, -1), 0);
	digest = digest_of(in, id, adapter);
	assert_int_equal(gpool_lora_release(in, id, GPOOL_FENCE_NONE), 0);
	return digest;
}

/*
 * Loads from PEFT files, a cold file, a copy and another engine yield the same bits. The same holds for a copy of a
 * cold file, and for a cold file of a copy.
 */
static void test_int8_is_the_same(void **state)
{
	struct gpool_lora *on_disk, *in_memory, *both;
	uint32_t adapter, ids[3];
	uint64_t digest;

	(void)state;
	engines_start();
	on_disk = keeper_of(one, GPOOL_LORA_INT8);
	in_memory = warmed(other, warm_of_other, NULL, GPOOL_LORA_INT8);
	adapter = adapter_make(24);
	ids[0] = registered(on_disk, adapter);
	ids[1] = registered(in_memory, adapter);
	digest = digest_and_left(on_disk, ids[0], adapter);
	assert_true(digest_and_left(in_memory, ids[1], adapter) == digest);
	assert_int_equal(info_of(in_memory, ids[1]).shared, 1);
	AWAIT(*kept_path());
	assert_int_equal(gpool_lora_unload(in_memory, ids[1]), 0);
	assert_true(digest_and_left(on_disk, ids[0], adapter) == digest);
	assert_int_equal(info_of(on_disk, ids[0]).from_cold, 1);
	assert_int_equal(gpool_lora_unload(on_disk, ids[0]), 0);
	assert_true(digest_and_left(in_memory, ids[1], adapter) == digest);
	assert_int_equal(info_of(in_memory, ids[1]).loads, 1);
	assert_int_equal(info_of(in_memory, ids[1]).from_warm, 0);
	AWAIT(stats_of(in_memory).warm_made == 1);
	assert_int_equal(gpool_lora_unload(in_memory, ids[1]), 0);
	assert_true(digest_and_left(in_memory, ids[1], adapter) == digest);
	assert_int_equal(info_of(in_memory, ids[1]).from_warm, 1);
	assert_int_equal(gpool_lora_unload(in_memory, ids[1]), 0);
	/* A copy is made of the cold file. */
	AWAIT(try_evict(admin, "warm", WARM_PAGES, NULL) == 0 && stats_of(in_memory).warm_bytes == 0);
	both = warmed(one, warm, dirname_of(kept_path()), GPOOL_LORA_INT8);
	ids[2] = registered(both, adapter);
	assert_true(digest_and_left(both, ids[2], adapter) == digest);
	assert_int_equal(info_of(both, ids[2]).from_cold, 1);
	AWAIT(stats_of(both).warm_made == 1);
	assert_true(stats_of(both).cold_bytes > 0 && stats_of(both).cold_bytes < stats_of(both).hot_bytes);
	assert_int_equal(gpool_lora_unload(both, ids[2]), 0);
	assert_true(digest_and_left(both, ids[2], adapter) == digest);
	assert_int_equal(info_of(both, ids[2]).from_warm, 1);
	assert_int_equal(gpool_lora_destroy(both), 0);
	assert_int_equal(gpool_lora_destroy(in_memory), 0);
	assert_int_equal(gpool_lora_destroy(on_disk), 0);
}

/* ---- deaths ---- */

#ifndef __SANITIZE_THREAD__ /* a child of a process with threads cannot have threads under the sanitizer */
/*
 * Kill an engine repeatedly during loads and while it makes copies. Its pages must be free again, and the content of
 * other engines correct.
 * Requirements: S1.
 */
static void test_killed_in_loads(void **state)
{
	struct gpool_lora *survivor;
	uint32_t ids[6];

	(void)state;
	engines_start();
	survivor = warmed(other, warm_of_other, NULL, 0);
	for (uint32_t i = 0; i < 6; i++)
		ids[i] = registered(survivor, adapter_make(24 + i));
	for (int round = 0; round < 8; round++) {
		int pair[2];
		char byte;
		pid_t pid;

		assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
		fflush(NULL);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			struct gpool_lora *own;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			setenv("CMOCKA_TEST_ABORT", "1", 1);
			own = warmed(open_worker(), open_as(0, "warm", NULL), NULL, 0);
			for (uint32_t i = 0; i < 6; i++)
				gpool_lora_prefetch(own, registered(own, i));
			/* Make that number of loads first. */
			for (int i = 0; i < round && i < 6; i++)
				gpool_lora_acquire(own, (uint32_t)i, -1);
			assert_int_equal(write(pair[1], "", 1), 1);
			for (;;)
				pause();
		}
		close(pair[1]);
		assert_int_equal(read(pair[0], &byte, 1), 1);
		close(pair[0]);
		assert_int_equal(kill(pid, SIGKILL), 0);
		status_of(pid);
		for (uint32_t i = 0; i < 6; i++) {
			assert_int_equal(gpool_lora_acquire(survivor, ids[i], -1), 0);
			assert_int_equal(wrong_in(survivor, ids[i], i), 0);
			assert_int_equal(gpool_lora_release(survivor, ids[i], GPOOL_FENCE_NONE), 0);
			if (round % 2)
				assert_int_equal(gpool_lora_unload(survivor, ids[i]), 0);
		}
		if (round % 2)
			AWAIT(harness_free_pages(&harness) >= PAGES - 4 * TABLES);
		/* In every second round copies exist and are loaded; in the other rounds they are made again. */
		if (round % 4 == 3)
			AWAIT(try_evict(admin, "warm", WARM_PAGES, NULL) == 0 && stats_of(survivor).warm_bytes == 0);
	}
	/* Incomplete copies of dead processes do no harm. */
	for (uint32_t i = 0; i < 6; i++)
		AWAIT((loaded_and_left(survivor, ids[i], i), info_of(survivor, ids[i]).from_warm > 0));
	assert_int_equal(stats_of(survivor).refused, 0);
	assert_int_equal(gpool_lora_destroy(survivor), 0);
}
#endif

/* ---- the kernels ---- */

/* Compare a batch of two adapters, and tokens without an adapter, with float64, through pages of the pool. */
static void test_a_batch(void **state)
{
	enum { TOKENS = 7, IN = 2048, OUT = 900, RANK_MAX = 64 };
	static const int32_t which[TOKENS] = {0, 1, -1, 1, 0, 0, -1};
	const char *target = "model.layers.*.v";
	_Alignas(64) static uint16_t x[TOKENS][IN], y[TOKENS][OUT + 4];
	_Alignas(64) static struct lora_adapter parts[2];
	_Alignas(64) static uint8_t batch[4096];
	static uint8_t *work;
	struct lora_args args = {.adapter_count = 2,
		.tokens_max = TOKENS,
		.rank_max = RANK_MAX,
		.in = IN,
		.out = OUT,
		.x_stride = IN,
		.y_stride = OUT + 4,
		.element = ELEMENT_BF16};
	struct gpu_stream *stream;
	uint32_t ids[2];

	(void)state;
	engines_start();
	static_assert(sizeof(parts[0]) == sizeof(struct gpool_lora_weights), "what kernels take");
	for (uint32_t i = 0; i < 2; i++) {
		ids[i] = registered(lora, adapter_make(20 + 30 * i));
		assert_int_equal(gpool_lora_acquire(lora, ids[i], -1), 0);
		assert_int_equal(
			gpool_lora_weights(lora, ids[i], 2, target, (struct gpool_lora_weights *)(void *)&parts[i]), 0);
	}
	for (uint32_t t = 0; t < TOKENS; t++) {
		for (uint32_t i = 0; i < IN; i++)
			x[t][i] = bf16_of_float(rig_normal());
		memset(y[t], 0, sizeof(y[t]));
	}
	assert_true(lora_batch_bytes(TOKENS, 2) <= sizeof(batch));
	assert_true(lora_batch_build((struct lora_batch *)(void *)batch, TOKENS, which, TOKENS, 2) > 0);
	assert_int_equal(posix_memalign((void **)&work, 64, lora_workspace_bytes(TOKENS, RANK_MAX, IN)), 0);
	memset(work, 0, lora_workspace_bytes(TOKENS, RANK_MAX, IN));
	args.batch = (uintptr_t)batch;
	args.adapters = (uintptr_t)parts;
	args.x = (uintptr_t)x;
	args.y = (uintptr_t)y;
	args.workspace = (uintptr_t)work;
	assert_int_equal(gpu_stream_create(one->gpu, &stream), 0);
	assert_int_equal(lora_shrink_queue(one->gpu, &args, stream), 0);
	assert_int_equal(lora_expand_queue(one->gpu, &args, stream), 0);
	assert_int_equal(gpu_stream_sync(one->gpu, stream), 0);
	for (uint32_t t = 0; t < TOKENS; t++) {
		const struct rig *rig = which[t] < 0 ? NULL : &rigs[which[t]];
		const struct peft_module *module = NULL;
		double sums[RANK_MAX] = {0}, error = 0, norm = 0;

		for (uint32_t m = 0; rig && m < rig->peft.count; m++)
			if (rig->peft.modules[m].layer == 2 && !strcmp(rig->peft.modules[m].target, target))
				module = &rig->peft.modules[m];
		for (uint32_t k = 0; module && k < module->rank; k++)
			for (uint32_t i = 0; i < IN; i++)
				sums[k] += (double)float_of_bf16(x[t][i]) *
					(double)float_of_bf16(
						bf16_of_float(rig_get(rig, &module->a, (uint64_t)k * IN + i)));
		for (uint32_t o = 0; o < OUT; o++) {
			double sum = 0, got = (double)float_of_bf16(y[t][o]);

			for (uint32_t k = 0; module && k < module->rank; k++)
				sum += sums[k] *
					(double)float_of_bf16(bf16_of_float(
						rig_get(rig, &module->b, (uint64_t)o * module->rank + k)));
			sum *= module ? module->scale : 0;
			error += (got - sum) * (got - sum);
			norm += sum * sum;
		}
		assert_true(module ? sqrt(error / norm) < 1e-2 : error == 0);
	}
	gpu_stream_destroy(one->gpu, stream);
	free(work);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(lora, ids[i], GPOOL_FENCE_NONE), 0);
}

/* ---- invalid calls ---- */

static void test_wrong_arguments(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_weights part;
	struct gpool_fence fence = {.value = UINT64_MAX};
	struct gpool_lora *made;
	uint32_t id;
	char name[200];

	(void)state;
	engines_start();
	options.flags = 1u << 31;
	assert_int_equal(gpool_lora_create(one, &options, &made), -EINVAL);
	options.flags = GPOOL_LORA_INT8;
	assert_int_equal(gpool_lora_create(one, &options, &made), -EINVAL);
	options.flags = 0;
	options.warm = admin;
	assert_int_equal(gpool_lora_create(one, &options, &made), -EINVAL);
	options.warm = NULL;
	options.element = 3;
	assert_int_equal(gpool_lora_create(one, &options, &made), -EINVAL);
	options.element = 0;
	options.load_threads = 65;
	assert_int_equal(gpool_lora_create(one, &options, &made), -EINVAL);
	options.load_threads = 1;
	options.cache_dir = "/nowhere";
	assert_int_equal(gpool_lora_create(one, &options, &made), -ENOENT);
	assert_int_equal(gpool_lora_create(admin, NULL, &made), -EPERM);
	assert_int_equal(gpool_lora_destroy(NULL), 0);
	memset(name, 'n', sizeof(name));
	name[128] = '\0';
	assert_int_equal(gpool_lora_register(lora, name, folder, &id, NULL), -EINVAL);
	assert_int_equal(gpool_lora_register(lora, "", folder, &id, NULL), -EINVAL);
	id = registered(lora, adapter_make(8));
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), -EINVAL);
	assert_int_equal(gpool_lora_weights(lora, id, 0, "q", &part), -EINVAL);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_weights(lora, id, 0, "q", &part), -ENOENT);
	assert_int_equal(gpool_lora_weights(lora, id, 4, "model.layers.*.q", &part), -ENOENT);
	assert_int_equal(gpool_lora_weights(lora, id, -1, "model.layers.*.q", &part), -ENOENT);
	assert_int_equal(gpool_lora_weights(lora, id, -1, "lm_head", &part), 0);
	assert_int_equal(gpool_lora_release(lora, id, fence), -EINVAL);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_release(lora, id + 1, GPOOL_FENCE_NONE), -ENOENT);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, engines_stop)
	const struct CMUnitTest tests[] = {
		TEST(loaded_once),
		TEST(its_loader_ends),
		TEST(salts_keep_apart),
		TEST(evicted_and_loaded_again),
		TEST(more_than_fit),
		TEST(unloaded),
		TEST(unloaded_under_a_waiter),
		TEST(in_the_background),
		TEST(all_at_once),
		TEST(small_before_large),
		TEST(many_at_once),
		TEST(layer_by_layer),
		TEST(begun_and_released),
		TEST(fails_in_the_middle),
		TEST(wrong_files),
		TEST(kept_on_disk),
		TEST(in_int8),
		TEST(warm_copies),
		TEST(warm_copies_stay_mapped),
		TEST(a_waiting_thread_helps),
		TEST(warm_copies_stay_mapped_for_a_while),
		TEST(forged_copies),
		TEST(a_failed_part_waits_for_its_copies),
		TEST(no_room_for_copies),
		TEST(through_the_stage),
		TEST(int8_is_the_same),
#ifndef __SANITIZE_THREAD__
		TEST(killed_in_loads),
#endif
		TEST(a_batch),
		TEST(wrong_arguments),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
