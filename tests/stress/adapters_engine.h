/*
 * adapters_engine.h - the engines of adapters.c, and the memory that they share with the test.
 *
 * An engine is this program, executed again, with two threads that use one set of adapters. It knows the shape and the
 * checksum of each adapter, and the results that the documentation permits. Most adapters are registered once for both
 * threads. Each thread also has one entry of its own, which it registers again as another adapter.
 */
#ifndef GPOOL_TESTS_STRESS_ADAPTERS_ENGINE_H
#define GPOOL_TESTS_STRESS_ADAPTERS_ENGINE_H

#include "client/gpool.h"
#include "client/core/pool.h"
#include "cuda/kernels/lora.h"
#include "tests/unit/adapter_rig.h"

#include <pthread.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ADAPTERS = 16, LAYERS = 3, MODULES = 2 * LAYERS, RANK_MAX = 128 };

struct counters {
	_Atomic uint64_t acquired, hot, again, late, refusals, busy, verified, fences, unloaded, renewed, denied,
		from_warm, from_cold;
	/* Written before the first engine starts. */
	char folder[64];
	uint64_t digests[ADAPTERS];
};

#include "tests/stress/tormentor.h"

enum {
	HELD = 2,    /* adapters that a thread has acquired */
	PENDING = 2, /* adapters released with a fence that is not signaled */
	PRESS_PAGES = 8,
};

#define CONFIG "{\"peft_type\":\"LORA\",\"lora_alpha\":16}"

static const char *const tenant_names[2] = {"red", "blue"};

/* ---- adapters ---- */

/* In the order of peft_read(). The columns are not a multiple of a tile, and the ranks do not fill a page. */
static struct rig_module module_of(uint32_t adapter, uint32_t index)
{
	static const uint32_t ranks[] = {8, 16, 24, 32, 64, 128, 100, 8};
	uint32_t rank = ranks[adapter % 8];
	struct rig_module module = {.rank = index % 2 ? rank / 2 : rank, .in = 1024, .out = index % 2 ? 300 : 1024};

	snprintf(module.path, sizeof(module.path), "model.layers.%u.%c", index / 2, "qv"[index % 2]);
	return module;
}

/* An adapter at its addresses, which are valid while it is pinned. */
struct use {
	uint32_t adapter, id;
	struct gpool_lora_weights parts[MODULES];
};

static uint64_t digest_of_matrix(
	const struct gpool_lora_matrix *matrix, uint32_t rank, uint32_t columns, uint64_t digest)
{
	struct lora_matrix at;

	memcpy(&at, matrix, sizeof(at));
	for (uint32_t tile = 0; tile < lora_tiles(columns); tile++)
		digest = XXH3_64bits_withSeed(
			(const void *)(uintptr_t)lora_tile_at(&at, rank, tile), lora_tile_bytes(rank), digest);
	return digest;
}

static uint64_t digest_of(const struct use *use)
{
	uint64_t digest = 0;

	for (uint32_t i = 0; i < MODULES; i++) {
		struct rig_module module = module_of(use->adapter, i);

		digest = digest_of_matrix(&use->parts[i].a, module.rank, module.in, digest);
		digest = digest_of_matrix(&use->parts[i].b, module.rank, module.out, digest);
	}
	return digest;
}

/* ---- an engine ---- */

struct engine;

struct thread {
	struct engine *engine;
	uint64_t random;
	uint32_t stream;
	uint32_t own, own_id; /* adapter of the thread's own entry, and the id of the entry */
	struct use held[HELD];
	uint32_t held_count;
	struct {
		struct use use;
		struct gpool_fence fence;
	} pending[PENDING];
	uint32_t pending_count;
};

struct engine {
	uint32_t slot;
	uint64_t random;
	const char *tenant;
	struct gpool *pool, *warm;
	struct gpool_lora *lora;
	uint32_t ids[ADAPTERS];
	struct thread threads[THREADS];
};

/* Report a result that the documentation does not permit, which is a violation. */
static void refuse_answer(const struct engine *engine, const char *call, uint32_t adapter, int error)
{
	violation("engine %u: %s of adapter %u answers %d: %s", engine->slot, call, adapter, error,
		gpool_last_error(error));
}

static void verify(const struct thread *thread, const struct use *use, const char *when)
{
	if (digest_of(use) != stage->counters.digests[use->adapter])
		violation("engine %u of %s: wrong weights in adapter %u, %s", thread->engine->slot,
			thread->engine->tenant, use->adapter, when);
	COUNT(verified, 1);
}

static void parts_get(const struct engine *engine, struct use *use)
{
	for (uint32_t i = 0; i < MODULES; i++) {
		const char *target = i % 2 ? "model.layers.*.v" : "model.layers.*.q";
		int error = gpool_lora_weights(engine->lora, use->id, (int32_t)i / 2, target, &use->parts[i]);

		if (error || use->parts[i].rank != module_of(use->adapter, i).rank)
			refuse_answer(engine, "gpool_lora_weights()", use->adapter, error);
	}
}

static struct use any_adapter(struct thread *thread)
{
	struct use use = {.adapter = thread->own, .id = thread->own_id};

	if (chance_below(&thread->random, 8)) {
		use.adapter = chance_below(&thread->random, ADAPTERS);
		use.id = thread->engine->ids[use.adapter];
	}
	return use;
}

/* ---- steps ---- */

static void acquire_refused(const struct thread *thread, uint32_t adapter, int timeout_ms, int error)
{
	if (error == -EAGAIN && timeout_ms == 0)
		COUNT(again, 1);
	else if (error == -ETIMEDOUT && timeout_ms < PATIENCE_MS)
		COUNT(late, 1);
	else if (error == -ENOSPC)
		COUNT(refusals, 1);
	else if (error == -EBUSY)
		COUNT(busy, 1);
	else
		refuse_answer(thread->engine, "gpool_lora_acquire()", adapter, error);
}

/* Acquire at once, or layer by layer; in the latter case, the adapter is private until it is released. */
static int acquire_somehow(struct thread *thread, uint32_t id, int timeout_ms)
{
	struct gpool_lora *lora = thread->engine->lora;
	int error;

	if (chance_below(&thread->random, 3))
		return gpool_lora_acquire(lora, id, timeout_ms);
	error = gpool_lora_acquire_async(lora, id, timeout_ms);
	if (error)
		return error;
	error = gpool_lora_wait_layer(lora, id, -1, PATIENCE_MS);
	if (error && gpool_lora_release(lora, id, GPOOL_FENCE_NONE))
		refuse_answer(thread->engine, "gpool_lora_release()", id, error);
	return error;
}

static bool acquire(struct thread *thread, struct use *use, int timeout_ms)
{
	int error = acquire_somehow(thread, use->id, timeout_ms);

	if (error) {
		acquire_refused(thread, use->adapter, timeout_ms, error);
		return false;
	}
	COUNT(acquired, 1);
	COUNT(hot, timeout_ms == 0);
	parts_get(thread->engine, use);
	return true;
}

static void do_acquire(struct thread *thread)
{
	uint32_t patience = chance_below(&thread->random, 3);
	struct use *use = &thread->held[thread->held_count];

	*use = any_adapter(thread);
	if (!acquire(thread, use,
		    patience == 0           ? 0
			    : patience == 1 ? (int)chance_below(&thread->random, 20)
					    : PATIENCE_MS))
		return;
	verify(thread, use, "just acquired");
	thread->held_count++;
}

/* Signal the oldest fence. Until now the weights had to be kept. */
static void reach_fence(struct thread *thread)
{
	struct gpool_fence fence = thread->pending[0].fence;
	int error;

	verify(thread, &thread->pending[0].use, "released, before its fence");
	thread->pending_count--;
	memmove(thread->pending, thread->pending + 1, thread->pending_count * sizeof(*thread->pending));
	error = gpool_fence_signal(thread->engine->pool, fence);
	if (error)
		refuse_answer(thread->engine, "gpool_fence_signal()", 0, error);
	COUNT(fences, 1);
}

static void do_release(struct thread *thread, uint32_t at)
{
	const struct engine *engine = thread->engine;
	struct use use = thread->held[at];
	bool fenced = chance_below(&thread->random, 3) == 0;
	struct gpool_fence fence;
	int error = 0;

	if (fenced && thread->pending_count == PENDING)
		reach_fence(thread);
	verify(thread, &use, "acquired");
	if (fenced)
		error = gpool_fence_record(engine->pool, thread->stream, &fence);
	if (!error)
		error = gpool_lora_release(engine->lora, use.id, fenced ? fence : GPOOL_FENCE_NONE);
	if (error)
		refuse_answer(engine, "gpool_lora_release()", use.adapter, error);
	thread->held[at] = thread->held[--thread->held_count];
	if (fenced && !error) {
		thread->pending[thread->pending_count].use = use;
		thread->pending[thread->pending_count++].fence = fence;
	}
}

static void do_prefetch(struct thread *thread)
{
	struct use use = any_adapter(thread);
	int error = gpool_lora_prefetch(thread->engine->lora, use.id);

	if (error)
		refuse_answer(thread->engine, "gpool_lora_prefetch()", use.adapter, error);
}

static void do_unload(struct thread *thread)
{
	struct use use = any_adapter(thread);
	int error = gpool_lora_unload(thread->engine->lora, use.id);

	if (!error)
		COUNT(unloaded, 1);
	else if (error != -EBUSY)
		refuse_answer(thread->engine, "gpool_lora_unload()", use.adapter, error);
}

static int adapter_register(struct engine *engine, const char *name, uint32_t adapter, uint32_t *id)
{
	char folder[128], why[GPOOL_LORA_REASON_BYTES];
	int error;

	snprintf(folder, sizeof(folder), "%s/%u", stage->counters.folder, adapter);
	error = gpool_lora_register(engine->lora, name, folder, id, why);
	if (error)
		violation("engine %u: adapter %u is not registered: %s: %s", engine->slot, adapter,
			gpool_strerror(error), why);
	return error;
}

static void own_register(struct thread *thread)
{
	char name[16];

	snprintf(name, sizeof(name), "own-%d", thread != thread->engine->threads);
	thread->own = chance_below(&thread->random, ADAPTERS);
	adapter_register(thread->engine, name, thread->own, &thread->own_id);
}

static void do_renew(struct thread *thread)
{
	int error = gpool_lora_unregister(thread->engine->lora, thread->own_id);

	if (!error) {
		own_register(thread);
		COUNT(renewed, 1);
	} else if (error != -EBUSY) {
		refuse_answer(thread->engine, "gpool_lora_unregister()", thread->own, error);
	}
}

static void do_press(struct thread *thread)
{
	struct gpool *pool = thread->engine->pool;
	struct gpool_block block;
	uint64_t address;
	int error = gpool_alloc(pool, 1 + chance_below(&thread->random, PRESS_PAGES), NULL, &block);

	if (error) {
		if (error != -ENOSPC)
			refuse_answer(thread->engine, "gpool_alloc()", 0, error);
		return;
	}
	if (!gpool_address(pool, &block, &address))
		memset((void *)(uintptr_t)address, 0xa5, block.page_count * gpool_page_bytes(pool));
	error = gpool_free(pool, &block);
	if (error)
		refuse_answer(thread->engine, "gpool_free()", 0, error);
}

/* Check that the object of the other tenant, whose name is visible, cannot be opened. */
static void do_steal(struct thread *thread, struct gpool *pool)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *object;
	uint32_t cursor = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0) {
		int error;

		if (!strcmp(info.tenant, thread->engine->tenant))
			continue;
		error = gpool_object_open(pool, info.name, NULL, &object);
		if (!error) {
			violation("engine %u of %s opens an adapter of %s", thread->engine->slot,
				thread->engine->tenant, info.tenant);
			gpool_object_close(object);
		} else if (error != -EACCES && error != -ENOENT) {
			refuse_answer(thread->engine, "gpool_object_open()", 0, error);
		}
		COUNT(denied, error == -EACCES);
	}
}

/* With --broken: read an adapter that is not acquired, whose weights may be wrong. */
static void do_peek(struct thread *thread)
{
	struct use use = any_adapter(thread);

	if (!acquire(thread, &use, PATIENCE_MS))
		return;
	gpool_lora_release(thread->engine->lora, use.id, GPOOL_FENCE_NONE);
	do_press(thread);
	poll(NULL, 0, 1);
	verify(thread, &use, "released");
}

static void work(struct thread *thread)
{
	uint32_t what = chance_below(&thread->random, 64);

	if (stage->broken)
		do_peek(thread);
	else if (what < 28 && thread->held_count < HELD)
		do_acquire(thread);
	else if (what < 46 && thread->held_count)
		do_release(thread, chance_below(&thread->random, thread->held_count));
	else if (what < 50 && thread->pending_count)
		reach_fence(thread);
	else if (what < 54)
		do_prefetch(thread);
	else if (what < 56)
		do_unload(thread);
	else if (what < 58)
		do_renew(thread);
	else if (what < 62)
		do_press(thread);
	else if (what == 63)
		do_steal(thread, chance_below(&thread->random, 2) ? thread->engine->pool : thread->engine->warm);
}

/* ---- the process ---- */

/* Count the sources of this engine's loads; other engines may have been killed. */
static void loads_count(const struct engine *engine)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	if (gpool_lora_stats(engine->lora, &stats))
		return;
	COUNT(from_warm, stats.from_warm);
	COUNT(from_cold, stats.from_cold);
}

static void *thread_main(void *argument)
{
	struct thread *thread = argument;

	/* With --broken, only the first thread works: a second one could remove the mapping while it reads. */
	while (told_to_run() && !(stage->broken && thread != thread->engine->threads))
		work(thread);
	while (thread->held_count)
		do_release(thread, 0);
	while (thread->pending_count)
		reach_fence(thread);
	return NULL;
}

static int lora_open(struct engine *engine, uint32_t way)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char kept[128];

	snprintf(kept, sizeof(kept), "%s/%s", stage->counters.folder, engine->tenant);
	options.flags = GPOOL_LORA_PRIVATE | (way & 4 ? GPOOL_LORA_SHARE_PAGES : 0);
	options.element = GPOOL_LORA_BF16;
	options.load_threads = 2;
	/* Use neither kind of copies, one, or both. */
	if (way & 1)
		options.cache_dir = kept;
	if (way & 2)
		options.warm = engine->warm;
	return gpool_lora_create(engine->pool, &options, &engine->lora);
}

static int engine_open(struct engine *engine, const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	int error;

	options.directory = directory;
	options.tenant = engine->tenant;
	options.timeout_ms = PATIENCE_MS;
	options.pool = "stress";
	error = gpool_open(&options, &engine->pool);
	options.pool = "warm";
	if (!error)
		error = gpool_open(&options, &engine->warm);
	if (!error) {
		/* On a busy machine, the agent may get no CPU time for longer than 10 s. */
		engine->pool->answer_ms = engine->warm->answer_ms = PATIENCE_MS;
		error = lora_open(engine, chance_below(&engine->random, 8));
	}
	for (uint32_t i = 0; i < THREADS && !error; i++)
		error = gpool_stream_open(engine->pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &engine->threads[i].stream);
	if (error)
		refuse_answer(engine, "opening", 0, error);
	return error;
}

/* End loads and copies before the pause, so that no page is in an intermediate state. */
static int engine_close(struct engine *engine)
{
	int error;

	loads_count(engine);
	error = gpool_lora_destroy(engine->lora);
	if (error)
		refuse_answer(engine, "gpool_lora_destroy()", 0, error);
	stand(engine->slot, THREADS);
	for (uint32_t i = 0; i < THREADS; i++)
		gpool_stream_close(engine->pool, engine->threads[i].stream);
	gpool_close(engine->pool);
	gpool_close(engine->warm);
	return error;
}

/* NAME --worker SLOT FD DIRECTORY SEED: run as one of the engines. */
static int engine_main(char **arguments)
{
	static struct engine engine;
	pthread_t other;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!stage_map(atoi(arguments[1])))
		return 1;
	engine.slot = (uint32_t)atoi(arguments[0]);
	engine.tenant = tenant_names[engine.slot % 2];
	engine.random = strtoull(arguments[3], NULL, 0);
	if (engine_open(&engine, arguments[2]))
		return 1;
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "%u", i);
		if (adapter_register(&engine, name, i, &engine.ids[i]))
			return 1;
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		engine.threads[i].engine = &engine;
		engine.threads[i].random = engine.random + i * UINT64_C(0x5851f42d4c957f2d);
		own_register(&engine.threads[i]);
	}
	if (pthread_create(&other, NULL, thread_main, &engine.threads[1]))
		return 1;
	thread_main(&engine.threads[0]);
	pthread_join(other, NULL);
	return engine_close(&engine) ? 1 : 0;
}

#endif
