/*
 * test_client_lora_int8.c - adapters in int8 whose pages the CPU cannot write, so that a kernel expands them.
 *
 * Goal: the pages are equal, byte for byte, to those that the CPU expands, whatever the source of the load. Each page
 * is expanded by one launch. If a launch fails, or no page of device memory is free for the forms, the CPU expands
 * the pages; the former is logged once. Damaged copies are refused. A device failure ends the load with an error.
 * A failed load ends after its copies.
 *
 * Method: on `host`, loads go through a stage, as on `cuda`. Launches are counted by the GPU interface. Before each
 * load, free pages are overwritten; after it, all bytes of all pages are compared.
 *
 * Requirements: L5.
 */
#include "client/core/block.h"
#include "client/core/pool.h"
#include "client/lora/load/load.h"
#include "client/object/object.h"
#include "cuda/gpu_private.h"
#include "tests/integration/lora_engine.h"
#include "tests/lib/unwatched.h"

enum {
	RANK = 48,
};

static const char *const arguments[] = {"--pool", POOL, "--pool",
	"name=warm,backend=host,size=32MiB,page_size=1MiB,reserved=0", QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static struct gpool *worker, *warm;
static uint8_t *expected; /* the pages that the CPU has expanded */
static uint64_t expected_bytes;
static _Atomic uint32_t logged;
static uint32_t capabilities;

static void on_log(void *context, int level, const char *text)
{
	(void)context;
	(void)level;
	atomic_fetch_add(&logged, strstr(text, "the CPU expands adapters in int8") != NULL);
}

/* ---- adapters ---- */

/* Write an adapter with a layer of more pages than a stage, in which no matrix is divided. */
static uint32_t large_adapter_make(void)
{
	struct rig_module modules[20];

	for (uint32_t i = 0; i < 20; i++) {
		modules[i] = (struct rig_module){.rank = 64, .in = 1024, .out = 1024, .type = SAFETENSORS_BF16};
		snprintf(modules[i].path, sizeof(modules[i].path), "model.layers.0.t%u", i);
	}
	return engine_adapter_of(modules, 20);
}

/* Write an adapter of several parts and pages, the last of which is not full. */
static void adapter_make(void)
{
	static const struct rig_module modules[] = {
		{"model.layers.0.q", RANK, 4096, 4096, SAFETENSORS_BF16},
		{"model.layers.1.q", RANK, 4096, 4096, SAFETENSORS_BF16},
		{"lm_head", 5, 2048, 640, SAFETENSORS_F32},
	};

	engine_adapter_of(modules, 3);
}

static void worker_open(void)
{
	struct gpool_options options = harness_options(&harness);

	options.pool = "p0";
	options.magazine = 1;
	options.log = on_log;
	assert_int_equal(gpool_open(&options, &worker), 0);
	/* Loads that the waiting thread makes would write directly to pages. */
	capabilities = worker->capabilities;
	worker->capabilities &= ~(uint32_t)GPU_CAP_HOST_POINTER;
}

static void worker_close(void)
{
	worker->capabilities = capabilities;
	gpool_close(worker);
	worker = NULL;
}

static struct gpool_lora *opened_with(
	struct gpool *its_warm, const char *cache_dir, uint32_t threads, uint32_t more_flags)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.element = GPOOL_LORA_BF16;
	options.warm = its_warm;
	options.cache_dir = cache_dir;
	options.flags = GPOOL_LORA_INT8 | more_flags;
	options.load_threads = threads;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(worker, &options, &made), 0);
	return made;
}

static struct gpool_lora *opened(struct gpool *its_warm, const char *cache_dir)
{
	return opened_with(its_warm, cache_dir, 2, 0);
}

static uint32_t registered_adapter(struct gpool_lora *in, uint32_t adapter)
{
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t id;

	snprintf(path, sizeof(path), "%s/%u", engine_folder, adapter);
	if (gpool_lora_register(in, "a", path, &id, why))
		fail_msg("%s", why);
	return id;
}

static uint32_t registered(struct gpool_lora *in)
{
	return registered_adapter(in, 0);
}

static struct gpool_lora_info info_of(struct gpool_lora *in, uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(in, id, &info), 0);
	return info;
}

static struct gpool_lora_stats stats_of(struct gpool_lora *in)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_lora_stats(in, &stats), 0);
	return stats;
}

static uint64_t launches(void)
{
	return gpu_calls(worker->gpu, GPU_CALL_LAUNCH);
}

/* Compare the pages of an acquired adapter with the expected ones; with the first adapter, store them. */
UNWATCHED static bool is_expected(struct gpool_lora *in, uint32_t id)
{
	const uint8_t *pages = (const uint8_t *)(uintptr_t)in->entries[id]->base;

	if (!expected) {
		expected_bytes = info_of(in, id).pages * gpool_page_bytes(worker);
		expected = malloc(expected_bytes);
		assert_non_null(expected);
		memcpy(expected, pages, expected_bytes);
	}
	return info_of(in, id).pages * gpool_page_bytes(worker) == expected_bytes &&
		!memcmp(pages, expected, expected_bytes);
}

/* Return the number of blocks that the worker has allocated and not freed. */
static uint64_t blocks_held(void)
{
	struct gpool_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_stats(worker, &stats), 0);
	return stats.allocations - stats.frees;
}

/* Overwrite the free pages, so that a load cannot find its content in them. Another session thus uses them. */
static void pages_spoil(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool *other = open_as(0, "p0", NULL);
	struct gpool_block block;
	uint64_t address;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	while (!gpool_alloc(other, 1, &options, &block)) {
		assert_int_equal(gpool_address(other, &block, &address), 0);
		spoil(address, gpool_page_bytes(other));
	}
	gpool_close(other);
}

/*
 * Load the adapter into pages with other content, compare it, and unload it. The pages for its forms have been freed.
 * Return the error of the load.
 */
static int loaded(struct gpool_lora *in, uint32_t id)
{
	uint64_t held = blocks_held();
	int error;

	pages_spoil();
	error = gpool_lora_acquire(in, id, -1);
	if (error)
		return error;
	assert_true(is_expected(in, id));
	assert_int_equal(gpool_lora_release(in, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(in, id), 0);
	/* The object's pages are returned with it. */
	assert_int_equal(blocks_held() - held, 1);
	return 0;
}

/* ---- fixture ---- */

static bool started;

static int engine_stop(void **state)
{
	if (!started) /* skipped */
		return 0;
	started = false;
	free(expected);
	expected = NULL;
	if (worker)
		worker_close();
	gpool_close(warm);
	warm = NULL;
	return engine_adapters_end() | stop(state);
}

/* Return the path of a folder for cold files. */
static const char *folder(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", engine_folder, name);
	mkdir(path, 0700);
	return path;
}

/* Start with the pages that the CPU expands. */
static void engine_start(void)
{
	struct gpool_lora *lora;
	uint32_t id;

	start(arguments);
	started = true;
	atomic_store(&logged, 0);
	engine_adapters_begin();
	adapter_make();
	warm = open_as(0, "warm", NULL);
	worker_open();
	if (!(worker->capabilities & GPU_CAP_KERNELS)) {
		printf("the build has no GPU kernels\n");
		engine_stop(NULL);
		skip();
	}
	worker->capabilities &= ~(uint32_t)GPU_CAP_KERNELS;
	lora = opened(NULL, folder("by_cpu"));
	id = registered(lora);
	assert_int_equal(loaded(lora, id), 0);
	assert_int_equal(loaded(lora, id), 0);
	assert_int_equal(launches(), 0);
	assert_int_equal(atomic_exchange(&logged, 0), 1);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	worker->capabilities |= GPU_CAP_KERNELS;
}

/* ---- sources ---- */

static void test_every_source(void **state)
{
	struct gpool_lora *in_memory, *on_disk;
	uint64_t before;
	uint32_t ids[2], pages;

	(void)state;
	engine_start();
	in_memory = opened(warm, NULL);
	on_disk = opened(NULL, folder("kept"));
	ids[0] = registered(in_memory);
	ids[1] = registered(on_disk);
	before = launches();
	assert_int_equal(loaded(in_memory, ids[0]), 0);
	pages = (uint32_t)(expected_bytes / gpool_page_bytes(worker));
	assert_true(pages >= 4);
	assert_int_equal(launches() - before, pages);
	AWAIT(stats_of(in_memory).warm_made == 1);
	assert_int_equal(loaded(in_memory, ids[0]), 0);
	assert_int_equal(info_of(in_memory, ids[0]).from_warm, 1);
	assert_int_equal(launches() - before, 2 * pages);
	assert_int_equal(loaded(on_disk, ids[1]), 0);
	AWAIT(stats_of(on_disk).cold_bytes > 0);
	assert_int_equal(loaded(on_disk, ids[1]), 0);
	assert_int_equal(info_of(on_disk, ids[1]).from_cold, 1);
	assert_int_equal(launches() - before, 4 * pages);
	assert_int_equal(atomic_load(&logged), 0);
	assert_int_equal(stats_of(in_memory).refused + stats_of(on_disk).refused, 0);
	assert_int_equal(gpool_lora_destroy(on_disk), 0);
	assert_int_equal(gpool_lora_destroy(in_memory), 0);
}

/* Compare the pages before the last one, and the pieces of the last one, with the expected pages. */
UNWATCHED static bool is_expected_in_pieces(struct gpool_lora *in, uint32_t id)
{
	const struct lora_entry *entry = in->entries[id];
	uint64_t bytes = expected_bytes - gpool_page_bytes(worker);
	bool same = !memcmp((const void *)(uintptr_t)entry->base, expected, bytes);

	for (const struct tail_piece *piece = entry->tail.pieces; piece < entry->tail.pieces + tail_runs(&entry->tail);
		piece++)
		same &= !memcmp(
			(const void *)(uintptr_t)piece->address, expected + bytes + piece->offset, piece->bytes);
	return same;
}

/* The last page of an adapter in several pieces is expanded by the CPU. */
static void test_a_tail(void **state)
{
	struct gpool_lora *lora;
	uint64_t before;
	uint32_t id;

	(void)state;
	engine_start();
	lora = opened_with(NULL, folder("kept"), 1, GPOOL_LORA_SHARE_PAGES);
	id = registered(lora);
	before = launches();
	pages_spoil();
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_true(lora->entries[id]->tail.count > 0);
	assert_true(is_expected_in_pieces(lora, id));
	assert_int_equal(launches() - before, expected_bytes / gpool_page_bytes(worker) - 1);
	assert_int_equal(atomic_load(&logged), 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

/* ---- damaged copies ---- */

enum forgery { FORGED_CODE, FORGED_SCALE, FORGED_CHECKSUM, WITHOUT_CHECKSUMS };

/* Read the copy, change it, and publish it in place of the original. */
static void forge(enum forgery forgery)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool *publisher = open_as(0, "warm", NULL);
	struct gpool_object *object, *forged;
	uint64_t from, bytes, to, length, version;
	uint32_t cursor = 0, index;
	const char *key;
	const void *value;
	size_t value_bytes;

	assert_int_equal(gpool_object_next(publisher, &cursor, &info), 0);
	assert_int_equal(gpool_object_open(publisher, info.name, NULL, &object), 0);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_address(object, 0, &from, &bytes), 0);
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.flags |= OBJECT_CREATE_OWN;
	assert_int_equal(gpool_object_create(publisher, info.name, &options, &forged), 0);
	assert_int_equal(gpool_object_alloc(forged, (uint32_t)(bytes / gpool_page_bytes(publisher)), NULL, &index), 0);
	assert_int_equal(gpool_object_address(forged, index, &to, &length), 0);
	memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, length);
	if (forgery == FORGED_CODE)
		((uint8_t *)(uintptr_t)to)[1000] ^= 1;
	if (forgery == FORGED_SCALE) /* of the first row of the first page */
		((uint8_t *)(uintptr_t)to)[gpool_page_bytes(worker) / 2] ^= 1;
	for (uint32_t i = 0; !gpool_object_entry(object, i, &key, &value, &value_bytes); i++) {
		uint8_t *changed = malloc(value_bytes);
		bool is_checksums = !strcmp(key, "form_checksums");

		memcpy(changed, value, value_bytes);
		changed[value_bytes / 2] ^= is_checksums && forgery == FORGED_CHECKSUM;
		if (!is_checksums || forgery != WITHOUT_CHECKSUMS)
			assert_int_equal(gpool_object_set(forged, key, changed, value_bytes), 0);
		free(changed);
	}
	assert_int_equal(gpool_object_publish(forged, &version), 0);
	gpool_object_unpin(object);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(forged), 0);
	gpool_close(publisher);
}

static void test_forged_copies(void **state)
{
	struct gpool_lora *lora;
	uint64_t before;
	uint32_t id, made = 0;

	(void)state;
	engine_start();
	lora = opened(warm, NULL);
	id = registered(lora);
	assert_int_equal(loaded(lora, id), 0);
	for (int forgery = FORGED_CODE; forgery <= FORGED_CHECKSUM; forgery++) {
		AWAIT(stats_of(lora).warm_made == made + 1);
		made++;
		forge((enum forgery)forgery);
		assert_int_equal(loaded(lora, id), 0);
		assert_int_equal(stats_of(lora).refused, made);
		assert_int_equal(info_of(lora, id).from_warm, 0);
	}
	AWAIT(stats_of(lora).warm_made == made + 1);
	/* A copy of an earlier version: its forms can be checked only by expanding them. */
	forge(WITHOUT_CHECKSUMS);
	before = launches();
	assert_int_equal(loaded(lora, id), 0);
	assert_int_equal(info_of(lora, id).from_warm, 1);
	assert_int_equal(launches() - before, 0);
	assert_int_equal(stats_of(lora).refused, made);
	assert_int_equal(atomic_load(&logged), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

/* ---- failures ---- */

/* The CPU expands the pages after the first launch that fails. */
static void test_launches_fail(void **state)
{
	static const int errors[] = {-EOPNOTSUPP, -ENOMEM, -EIO};
	struct gpool_lora *lora;
	uint64_t before;
	uint32_t id;

	(void)state;
	engine_start();
	for (uint32_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		lora = opened(NULL, folder("kept"));
		id = registered(lora);
		gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 1 + i, errors[i]);
		assert_int_equal(loaded(lora, id), 0);
		assert_int_equal(atomic_load(&logged), i + 1);
		gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 0, 0);
		before = launches();
		assert_int_equal(loaded(lora, id), 0);
		assert_int_equal(launches(), before);
		assert_int_equal(atomic_load(&logged), i + 1);
		assert_int_equal(stats_of(lora).refused, 0);
		assert_int_equal(gpool_lora_destroy(lora), 0);
	}
}

/*
 * Each call of the GPU interface fails once during the first load of a process, in which the GPU or the CPU expands the
 * pages. The load then fails, or its pages are right; a later load succeeds. Among these calls are those that map the
 * page for the forms.
 */
static void calls_fail(bool by_gpu)
{
	static const enum gpu_call kinds[] = {GPU_CALL_IMPORT, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_COPY,
		GPU_CALL_FILL, GPU_CALL_LAUNCH, GPU_CALL_TIMELINE_WRITE};
	uint32_t by_cpu = 0, failed = 0;

	engine_start();
	worker_close();
	for (uint32_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		bool hit = true;

		for (uint64_t nth = 1; hit; nth++) {
			struct gpool_lora *lora;
			uint32_t id;
			int error;

			worker_open();
			if (!by_gpu)
				worker->capabilities &= ~(uint32_t)GPU_CAP_KERNELS;
			lora = opened(NULL, folder("kept"));
			id = registered(lora);
			uint64_t before = gpu_calls(worker->gpu, kinds[i]);
			gpu_fault_set(worker->gpu, kinds[i], nth, -EIO);
			error = loaded(lora, id);
			hit = gpu_calls(worker->gpu, kinds[i]) - before >= nth;
			by_cpu += i < 3 && !error && launches() < expected_bytes / gpool_page_bytes(worker);
			failed += error != 0;
			gpu_fault_set(worker->gpu, kinds[i], 0, 0);
			if (error)
				assert_int_equal(loaded(lora, id), 0);
			assert_int_equal(gpool_lora_destroy(lora), 0);
			worker_close();
		}
	}
	assert_true(by_cpu > 0 && failed > 0);
	worker_open();
}

static void test_calls_fail(void **state)
{
	(void)state;
	calls_fail(true);
}

static void test_calls_fail_for_the_cpu(void **state)
{
	(void)state;
	calls_fail(false);
}

static uint32_t gate;

/* Let the streams of the loader threads wait. Return the fence that ends this. */
static struct gpool_fence loaders_hold(struct gpool_lora *in)
{
	struct gpool_fence held;

	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate), 0);
	assert_int_equal(gpool_fence_record(worker, gate, &held), 0);
	for (uint32_t i = 0; i < in->loader_count; i++)
		assert_int_equal(gpool_stream_wait(worker, in->loaders[i].stream, held), 0);
	return held;
}

/*
 * A load that fails ends only when its copies have ended, since they read the stage and write to pages. Method: some
 * calls fail while the loader's stream waits. The loader queries the stream when a call fails, and repeatedly when it
 * waits for a fence.
 */
static void failed_load_waits(uint32_t adapter, bool launch)
{
	struct gpool_lora *lora;
	struct gpool_fence held;
	uint64_t queries;
	uint32_t id;

	lora = opened_with(NULL, folder("kept"), 1, 0);
	id = registered_adapter(lora, adapter);
	held = loaders_hold(lora);
	queries = gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY);
	if (launch) {
		gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 1, -EIO);
		gpu_fault_set(worker->gpu, GPU_CALL_COPY, 2, -EIO);
	} else {
		gpu_fault_set(worker->gpu, GPU_CALL_TIMELINE_WRITE, 1, -EIO);
	}
	assert_int_equal(gpool_lora_prefetch(lora, id), 0);
	AWAIT(gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY) >= queries + 4 ||
		info_of(lora, id).state != GPOOL_LORA_LOADING);
	assert_int_equal(info_of(lora, id).state, GPOOL_LORA_LOADING);
	assert_int_equal(gpool_fence_signal(worker, held), 0);
	AWAIT(info_of(lora, id).state == GPOOL_LORA_COLD);
	gpu_fault_set(worker->gpu, GPU_CALL_TIMELINE_WRITE, 0, 0);
	gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 0, 0);
	gpu_fault_set(worker->gpu, GPU_CALL_COPY, 0, 0);
	assert_int_equal(loaded(lora, id), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	gpool_stream_close(worker, gate);
}

/* The fence of the table of runs cannot be recorded. */
static void test_a_failed_table_waits_for_its_copy(void **state)
{
	(void)state;
	engine_start();
	failed_load_waits(0, false);
}

/* Without a table, the first copies are those of the first page. */
static uint32_t without_a_table(void)
{
	uint32_t adapter = large_adapter_make();

	free(expected);
	expected = NULL;
	return adapter;
}

/* The fence of a page of the stage cannot be recorded. */
static void test_a_failed_load_waits_for_its_copies(void **state)
{
	(void)state;
	engine_start();
	failed_load_waits(without_a_table(), false);
}

/* A form was copied, but the GPU does not expand it, and the CPU's image cannot be copied. */
static void test_a_failed_load_waits_for_its_form(void **state)
{
	(void)state;
	engine_start();
	failed_load_waits(without_a_table(), true);
}

/* Return true if the page for forms is a block of its usage that never counts as leaked. */
static bool room_is_marked(void)
{
	for (uint32_t page = 0; page < worker->page_count; page++) {
		uint64_t tag = atomic_load(&block_entry(worker, page)->tag);

		if (block_tag_is_block(tag) && (tag & BLOCK_TYPE_MASK) == GPOOL_USAGE_TEMP_BUFFER)
			return tag & BLOCK_RANGE;
	}
	return false;
}

/*
 * A page of the stage is written again only when its last copy has ended. While the loader's stream waits, the loader
 * therefore stops after the pages of the stage: it queries the stream when it waits for a fence.
 */
static void test_a_full_stage(void **state)
{
	struct gpool_lora *lora;
	struct gpool_fence held;
	uint64_t copies, queries, launched;
	uint32_t id;

	(void)state;
	engine_start();
	lora = opened_with(NULL, folder("kept"), 1, 0);
	id = registered_adapter(lora, without_a_table());
	assert_int_equal(loaded(lora, id), 0);
	assert_true(expected_bytes > LORA_STAGE_PAGES * gpool_page_bytes(worker));
	AWAIT(stats_of(lora).cold_bytes > 0);
	pages_spoil();
	held = loaders_hold(lora);
	copies = gpu_calls(worker->gpu, GPU_CALL_COPY);
	queries = gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY);
	launched = launches();
	assert_int_equal(gpool_lora_prefetch(lora, id), 0);
	AWAIT(gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY) > queries);
	assert_int_equal(gpu_calls(worker->gpu, GPU_CALL_COPY) - copies, LORA_STAGE_PAGES);
	assert_int_equal(launches() - launched, LORA_STAGE_PAGES);
	assert_true(room_is_marked());
	assert_int_equal(gpool_fence_signal(worker, held), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_true(is_expected(lora, id));
	assert_int_equal(info_of(lora, id).from_cold, 1);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	gpool_stream_close(worker, gate);
}

/* ---- loads that no caller has requested ---- */

/* Load the adapter as rebalance.c does. Return true if it is resident. */
static bool loaded_unasked(struct gpool_lora *in, uint32_t id)
{
	pthread_mutex_lock(&in->lock);
	load_set_state(in, in->entries[id], LOAD_QUEUED_UNASKED);
	pthread_mutex_unlock(&in->lock);
	AWAIT(info_of(in, id).state != GPOOL_LORA_LOADING);
	return info_of(in, id).state == GPOOL_LORA_RESIDENT;
}

/*
 * A load that no caller has requested evicts no content: it fails if there is no page for its table of runs, and lets
 * the CPU expand the pages if there is none for its forms. Method: in addition to the pages of the adapter, the pool
 * has at first no free page, and then one. A block of another session can be evicted. The session of the adapter has
 * no idle pages.
 */
static void test_unasked_load_evicts_nothing(void **state)
{
	struct gpool_block kept, one;
	struct gpool_lora *lora;
	struct gpool *other;
	uint64_t before;
	uint32_t id, pages;

	(void)state;
	engine_start();
	worker_close();
	worker_open();
	pages_spoil();
	pages = (uint32_t)(expected_bytes / gpool_page_bytes(worker));
	lora = opened(NULL, folder("kept"));
	id = registered(lora);
	other = open_as(0, "p0", NULL);
	kept = alloc(other, 1);
	assert_int_equal(gpool_unpin(other, &kept), 0);
	AWAIT(harness_free_pages(&harness) == PAGES - 1);
	one = alloc(other, 1);
	alloc(other, PAGES - 2 - pages);
	assert_false(loaded_unasked(lora, id));
	assert_int_equal(gpool_pin(other, &kept), 0);
	assert_int_equal(gpool_unpin(other, &kept), 0);
	assert_int_equal(gpool_free(other, &one), 0);
	before = launches();
	assert_true(loaded_unasked(lora, id));
	assert_int_equal(launches(), before);
	assert_int_equal(gpool_pin(other, &kept), 0);
	assert_int_equal(info_of(lora, id).rebalanced, 1);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_true(is_expected(lora, id));
	assert_int_equal(atomic_load(&logged), 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	gpool_close(other);
}

/* ---- device failures ---- */

/* The first launch comes after work that makes the device fail, which it notices or not. */
static struct {
	const struct gpu_ops *ops;
	struct gpu_ops failing;
	uint64_t hole; /* nothing is mapped there */
	bool notices;
} device;

static int failing_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream)
{
	device.ops->fill(gpu, device.hole, 1, 4, stream);
	if (device.notices)
		return device.ops->stream_sync(gpu, stream);
	return device.ops->launch(gpu, kernel, shape, args, stream);
}

/* Open the session again, on a device that can fail. */
static void worker_reopen(void)
{
	uint64_t bytes;

	worker_close();
	setenv("GPOOL_HOST_FAULTS", "sticky", 1);
	worker_open();
	unsetenv("GPOOL_HOST_FAULTS");
	assert_int_equal(gpu_granularity(worker->gpu, &bytes), 0);
	assert_int_equal(gpu_reserve(worker->gpu, bytes, 0, &device.hole), 0);
}

static void launches_fail_the_device(bool notices)
{
	device.notices = notices;
	device.ops = worker->gpu->ops;
	device.failing = *device.ops;
	device.failing.launch = failing_launch;
	worker->gpu->ops = &device.failing;
}

static void device_fails(bool notices)
{
	struct gpool_lora *lora;
	uint32_t id;

	engine_start();
	worker_reopen();
	lora = opened(NULL, folder("kept"));
	id = registered(lora);
	launches_fail_the_device(notices);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), -EIO);
	assert_int_equal(atomic_load(&logged), 0);
	assert_true(gpool_lora_acquire(lora, id, -1) < 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	worker->gpu->ops = device.ops;
}

static void test_device_fails(void **state)
{
	(void)state;
	device_fails(false);
}

static void test_device_fails_before_a_launch(void **state)
{
	(void)state;
	device_fails(true);
}

/*
 * If the device fails in the work of the last page, the load ends with an error, although all calls have succeeded.
 * Method: the loader's stream waits until the loader waits for this work.
 */
static void test_device_fails_in_the_last_page(void **state)
{
	static const struct rig_module module = {"model.layers.0.q", RANK, 1024, 1024, SAFETENSORS_BF16};
	struct gpool_lora *lora;
	struct gpool_fence held;
	uint64_t queries, launched;
	uint32_t id, adapter;

	(void)state;
	engine_start();
	adapter = engine_adapter_of(&module, 1);
	worker_reopen();
	lora = opened_with(NULL, folder("kept"), 1, 0);
	id = registered_adapter(lora, adapter);
	held = loaders_hold(lora);
	queries = gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY);
	launched = launches();
	launches_fail_the_device(false);
	assert_int_equal(gpool_lora_prefetch(lora, id), 0);
	AWAIT(gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY) > queries);
	assert_int_equal(launches() - launched, 1);
	assert_int_equal(gpool_fence_signal(worker, held), 0);
	AWAIT(info_of(lora, id).state != GPOOL_LORA_LOADING);
	assert_int_equal(info_of(lora, id).state, GPOOL_LORA_COLD);
	assert_int_equal(lora->entries[id]->error, -EIO);
	assert_true(room_is_marked()); /* queued work may still use it */
	assert_int_equal(gpool_lora_destroy(lora), 0);
	worker->gpu->ops = device.ops;
}

/*
 * If the device fails while the loader waits for a page of the stage, the load ends with an error. No further page is
 * queued, and the copy on disk, which is being read, does not count as invalid.
 */
static void test_device_fails_with_a_full_stage(void **state)
{
	struct gpu_stream *failing;
	struct gpool_lora *lora;
	uint64_t copies, queries;
	uint32_t id, adapter;

	(void)state;
	engine_start();
	adapter = large_adapter_make();
	lora = opened_with(NULL, folder("kept"), 1, 0);
	id = registered_adapter(lora, adapter);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	AWAIT(stats_of(lora).cold_bytes > 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(lora, id), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	worker_reopen();
	assert_int_equal(gpu_stream_create(worker->gpu, &failing), 0);
	lora = opened_with(NULL, folder("kept"), 1, 0);
	id = registered_adapter(lora, adapter);
	loaders_hold(lora);
	copies = gpu_calls(worker->gpu, GPU_CALL_COPY);
	queries = gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY);
	assert_int_equal(gpool_lora_prefetch(lora, id), 0);
	AWAIT(gpu_calls(worker->gpu, GPU_CALL_STREAM_QUERY) > queries);
	assert_int_equal(gpu_calls(worker->gpu, GPU_CALL_COPY) - copies, LORA_STAGE_PAGES);
	worker->gpu->ops->fill(worker->gpu, device.hole, 1, 4, failing);
	AWAIT(info_of(lora, id).state == GPOOL_LORA_COLD);
	assert_int_equal(lora->entries[id]->error, -EIO);
	assert_int_equal(gpu_calls(worker->gpu, GPU_CALL_COPY) - copies, LORA_STAGE_PAGES);
	assert_int_equal(stats_of(lora).refused, 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	gpu_stream_destroy(worker->gpu, failing);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, engine_stop)
	const struct CMUnitTest tests[] = {
		TEST(every_source),
		TEST(a_tail),
		TEST(forged_copies),
		TEST(launches_fail),
		TEST(calls_fail),
		TEST(calls_fail_for_the_cpu),
		TEST(a_failed_table_waits_for_its_copy),
		TEST(a_failed_load_waits_for_its_copies),
		TEST(a_failed_load_waits_for_its_form),
		TEST(a_full_stage),
		TEST(unasked_load_evicts_nothing),
		TEST(device_fails),
		TEST(device_fails_before_a_launch),
		TEST(device_fails_with_a_full_stage),
		TEST(device_fails_in_the_last_page),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
