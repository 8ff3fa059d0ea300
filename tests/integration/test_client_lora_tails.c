/*
 * test_client_lora_tails.c - adapters whose last pages are stored together (GPOOL_LORA_SHARE_PAGES).
 *
 * Goal: every matrix has the weights of the files, whatever has happened to the shared pages: other adapters were
 * placed in them or removed, they were evicted, or another engine has published the object. Runs of different adapters
 * do not overlap. When no adapter is left, no page is left.
 *
 * Method: generated adapters of different sizes, and a gpoold on host memory.
 */
#include "client/core/span.h"
#include "client/lora/load/tails_pack.h"
#include "client/object/object.h"
#include "tests/integration/lora_sets.h"
#include "tests/lib/scale.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#define WARM_POOL "name=warm,backend=host,size=80MiB,page_size=1MiB,reserved=0"

static const char *const calm[] = {"--pool", POOL, "--pool", WARM_POOL, QUIET, "--set", "lease.initial_pages=0",
	"--set", "lease.batch_pages=1", "--set", "lease.batch_most=1", "--set", "pins.timeout=60s", NULL};
static const char *const impatient[] = {
	"--pool", POOL, "--pool", WARM_POOL, QUIET, "--set", "pins.timeout=200ms", NULL};

/* ---- fixture ---- */

/* Write an adapter of 1.1 to 3.9 pages of 512 KiB. */
static void adapter_make(uint32_t adapter)
{
	uint32_t rank = 5 + adapter % 4 * 3, layers = 8 + adapter / 4 * 4;
	struct rig_module modules[32];
	uint32_t count = 0;

	for (uint32_t layer = 0; layer < layers; layer++) {
		modules[count] = (struct rig_module){.rank = rank, .in = 2048, .out = 2048, .type = SAFETENSORS_BF16};
		snprintf(modules[count++].path, 64, "model.layers.%u.q", layer);
		modules[count] = (struct rig_module){.rank = rank + 1, .in = 2048, .out = 300, .type = SAFETENSORS_F32};
		snprintf(modules[count++].path, 64, "model.layers.%u.v", layer);
	}
	engine_adapter_of(modules, count);
}

static int adapters_write(void **state)
{
	(void)state;
	engine_adapters_begin();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		adapter_make(i);
	return 0;
}

static int adapters_remove(void **state)
{
	(void)state;
	return engine_adapters_end();
}

static void begin_as(const char *const *arguments)
{
	start(arguments);
	warm = open_as(0, "warm", NULL);
}

static void begin(void)
{
	begin_as(calm);
}

static void begin_with_engine(void)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	begin();
	set_open(0, &options);
}

/* Return the pages of the objects of resident adapters. */
static uint32_t object_pages(uint32_t engine)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t pages = 0;

	pthread_mutex_lock(&loras[engine]->lock);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (entry_at(engine, i)->object && !gpool_object_info(entry_at(engine, i)->object, &info))
			pages += info.pages;
	pthread_mutex_unlock(&loras[engine]->lock);
	return pages;
}

/* ---- tests ---- */

/* No byte belongs to two runs. Requirements: L18. */
static void test_less_is_lost(void **state)
{
	static uint8_t used[PAGES * (512 << 10) / 256];
	uint64_t bytes = 0, room;
	uint32_t pages = 0, object;

	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		acquire(0, i);
		pages += info_of(0, i).pages;
	}
	memset(used, 0, sizeof(used));
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		const struct adapter_layout_header *layout = entry_at(0, i)->adapter->layout.header;
		const struct tail *tail = &entry_at(0, i)->tail;

		check(0, i);
		assert_true(layout->pages > 1 && tail->count > 0);
		bytes += (uint64_t)(layout->pages - 1) * layout->page_bytes;
		for (uint32_t p = 0; p < tail->count; p++) {
			const struct tail_piece *piece = &tail->pieces[p];

			bytes += piece->bytes;
			assert_true(piece->at + (uint64_t)piece->bytes <= layout->page_bytes);
			for (uint32_t q = 0; q < i; q++)
				for (uint32_t r = 0; r < entry_at(0, q)->tail.count; r++) {
					const struct tail_piece *other = &entry_at(0, q)->tail.pieces[r];

					assert_true(piece->address + piece->bytes <= other->address ||
						other->address + other->bytes <= piece->address);
				}
		}
	}
	object = object_pages(0);
	room = (uint64_t)(object + shared_pages(0)) * (512 << 10);
	print_message("%u pages instead of %u; %.1f %% of them unused instead of %.1f %%\n", object + shared_pages(0),
		pages, 100 * (1 - (double)bytes / (double)room),
		100 * (1 - (double)bytes / ((double)pages * (512 << 10))));
	assert_int_equal(object, pages - ADAPTERS);
	/* The rest is mainly the end of one page. */
	assert_true(room - bytes < 2 * (512 << 10));
	for (uint32_t i = 0; i < ADAPTERS; i++)
		release(0, i);
}

/* Assert that the table of runs of an adapter is a piece of its tail. Return: 0: the adapter has no table. */
static uint64_t table_address(uint32_t engine, uint32_t adapter)
{
	const struct lora_entry *entry = entry_at(engine, adapter);
	const struct tail_piece *table;
	uint64_t address;

	pthread_mutex_lock(&loras[engine]->lock);
	address = entry->runs.address;
	table = tail_table(&entry->tail);
	assert_int_equal(table ? table->address : 0, address);
	assert_int_equal(address != 0, tail_table_bytes(&entry->adapter->layout) != 0);
	assert_true(!table || table->bytes >= tail_table_bytes(&entry->adapter->layout));
	pthread_mutex_unlock(&loras[engine]->lock);
	return address;
}

/* Keep loader threads from moving tails, or let them begin. */
static void packing_set(uint32_t engine, bool packing)
{
	pthread_mutex_lock(&loras[engine]->lock);
	loras[engine]->packing = packing;
	tails_freed(loras[engine]);
	pthread_mutex_unlock(&loras[engine]->lock);
}

static bool is_packed(uint32_t engine)
{
	bool packed;

	pthread_mutex_lock(&loras[engine]->lock);
	packed = !loras[engine]->unpacked && !loras[engine]->packing;
	pthread_mutex_unlock(&loras[engine]->lock);
	return packed;
}

/*
 * Move the runs of an adapter that are in `page`, and undo it. The table must get another place in any case, because an
 * acquisition during the copy uses the old one. Return: false if no page has room.
 */
static bool move_and_return(uint32_t engine, uint32_t adapter, const struct tail_page *page)
{
	struct tails *tails = &loras[engine]->tails;
	const struct tail *from = &entry_at(engine, adapter)->tail;
	struct tail to;
	int error;

	assert_int_equal(tail_pin(tails, pools[engine], from), 0);
	error = tail_move(tails, pools[engine], from, page, &to);
	assert_true(!error || error == -ENOSPC);
	if (!error) {
		assert_int_not_equal(tail_table(&to)->address, tail_table(from)->address);
		tail_unpin(pools[engine], &to, GPOOL_FENCE_NONE);
		tail_free(tails, pools[engine], &to, from);
	}
	tail_unpin(pools[engine], from, GPOOL_FENCE_NONE);
	return !error;
}

/* The tables of runs need no pages of their own, and move with the tails. Requirements: L18. */
static void test_tables(void **state)
{
	uint32_t tables = 0, moved = 0, returned = 0;
	uint64_t before[ADAPTERS];

	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(0, i);
		before[i] = table_address(0, i);
		tables += before[i] != 0;
	}
	assert_true(tables > 1);
	assert_int_equal(span_pages(pools[0]), 0);
	AWAIT(is_packed(0));
	packing_set(0, true);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (i % 3 != 2)
			assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
	for (uint32_t i = 2; i < ADAPTERS; i += 3)
		for (uint32_t p = 0; before[i] && p < entry_at(0, i)->tail.page_count; p++)
			returned += move_and_return(0, i, entry_at(0, i)->tail.pages[p]);
	assert_true(returned > 0);
	packing_set(0, false);
	AWAIT(is_packed(0));
	for (uint32_t i = 2; i < ADAPTERS; i += 3) {
		moved += table_address(0, i) != before[i];
		use(0, i);
		assert_int_equal(info_of(0, i).loads, 1);
	}
	assert_true(moved > 0);
	assert_int_equal(span_pages(pools[0]), 0);
}

/* The room of removed adapters is used for others, and pages without adapters are freed. */
static void test_room_is_used_again(void **state)
{
	uint32_t most = 0;

	(void)state;
	begin_with_engine();
	for (int round = 0; round < (int)test_scaled(20); round++)
		for (uint32_t i = 0; i < ADAPTERS; i++) {
			use(0, i);
			if (i % 3 == (uint32_t)round % 3)
				assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
			if (!round)
				most = shared_pages(0);
			AWAIT(shared_pages(0) <= most + 2);
		}
	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (info_of(0, i).state == GPOOL_LORA_RESIDENT)
			assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
	/* A loader thread frees the tail that it is moving when the adapter is unloaded. */
	AWAIT(shared_pages(0) == 0);
	evict_all();
	AWAIT(harness_check(&harness) == 0);
}

static uint64_t tail_bytes(uint32_t engine)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&loras[engine]->lock);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		for (uint32_t p = 0; p < entry_at(engine, i)->tail.count; p++)
			bytes += entry_at(engine, i)->tail.pieces[p].bytes;
	pthread_mutex_unlock(&loras[engine]->lock);
	return bytes;
}

static uint64_t tail_address(uint32_t engine, uint32_t adapter)
{
	uint64_t address;

	pthread_mutex_lock(&loras[engine]->lock);
	address = entry_at(engine, adapter)->tail.pieces[0].address;
	pthread_mutex_unlock(&loras[engine]->lock);
	return address;
}

/*
 * If adapters are removed, the tails of the others are moved together. An adapter that is acquired does not move, and
 * one that has moved need not be loaded again. Requirements: L18.
 */
static void test_packed(void **state)
{
	uint32_t before, needed, most;
	uint64_t address, pack;

	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	before = shared_pages(0);
	acquire(0, 2);
	address = tail_address(0, 2);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (i % 3 != 2)
			assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
	pack = tail_bytes(0);
	needed = (uint32_t)((pack + (512 << 10) - 1) / (512 << 10));
	print_message("%u shared pages; at least %u after two thirds have been removed\n", before, needed);
	/* The pages of the acquired adapter cannot be emptied. */
	most = entry_at(0, 2)->tail.page_count > needed ? entry_at(0, 2)->tail.page_count : needed;
	assert_true(before > most + 1);
	AWAIT(shared_pages(0) <= most + 1);
	assert_int_equal(tail_address(0, 2), address);
	check(0, 2);
	release(0, 2);
	for (uint32_t i = 2; i < ADAPTERS; i += 3) {
		use(0, i);
		assert_int_equal(info_of(0, i).loads, 1);
	}
}

/* Evict the objects of some adapters, but not the pages that they share. */
static void evict_objects(uint32_t engine, uint32_t count)
{
	struct tail tails[ADAPTERS];

	for (uint32_t i = 0; i < count; i++) {
		tails[i] = entry_at(engine, i)->tail;
		assert_int_equal(tail_pin(&loras[engine]->tails, pools[engine], &tails[i]), 0);
	}
	evict_all();
	for (uint32_t i = 0; i < count; i++)
		tail_unpin(pools[engine], &tails[i], GPOOL_FENCE_NONE);
}

/*
 * The tails of adapters that the agent has evicted are freed, although these adapters are not acquired again. Method:
 * load half of the adapters, evict their objects, and load the other half.
 */
static void test_tails_of_evicted_adapters(void **state)
{
	uint64_t bytes;
	uint32_t needed;

	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS / 2; i++)
		use(0, i);
	evict_objects(0, ADAPTERS / 2);
	for (uint32_t i = ADAPTERS / 2; i < ADAPTERS; i++)
		acquire(0, i);
	bytes = 0;
	for (uint32_t i = ADAPTERS / 2; i < ADAPTERS; i++)
		for (uint32_t p = 0; p < entry_at(0, i)->tail.count; p++)
			bytes += entry_at(0, i)->tail.pieces[p].bytes;
	AWAIT(tail_bytes(0) == bytes);
	for (uint32_t i = ADAPTERS / 2; i < ADAPTERS; i++)
		release(0, i);
	needed = (uint32_t)((bytes + (512 << 10) - 1) / (512 << 10));
	for (uint32_t i = 0; i < ADAPTERS / 2; i++)
		assert_int_equal(info_of(0, i).lost, 1);
	print_message("%u shared pages, at least %u\n", shared_pages(0), needed);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
}

/* Wait until later uses have later times. */
static void await_tick(void)
{
	uint32_t now = pool_clock(pools[0]);

	AWAIT(pool_clock(pools[0]) != now);
}

/*
 * While an engine loads adapters, the agent evicts objects before shared pages, because the eviction of a page leaves
 * several objects without use. Method: use the objects after the tails, load another adapter, and evict as many pages
 * as the older objects have. The object of the other adapter may be used later than the tails, because its load uses
 * the tails before it ends.
 */
static void test_objects_are_evicted_first(void **state)
{
	uint32_t pages, taken = 0, loaded_again = 0;

	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS - 1; i++)
		use(0, i);
	await_tick();
	for (uint32_t i = 0; i < ADAPTERS - 1; i++) {
		assert_int_equal(gpool_object_pin(entry_at(0, i)->object), 0);
		assert_int_equal(gpool_object_unpin(entry_at(0, i)->object), 0);
	}
	await_tick();
	pages = object_pages(0);
	use(0, ADAPTERS - 1);
	await_tick();
	AWAIT(try_evict(admin, "p0", pages, &taken) == 0);
	assert_true(taken >= pages);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_false(tail_is_gone(pools[0], &entry_at(0, i)->tail));
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(0, i);
		if (info_of(0, i).loads == 2)
			loaded_again += info_of(0, i).pages - 1; /* the last page is a tail */
	}
	assert_int_equal(loaded_again, taken);
}

/*
 * Objects are evicted before shared pages even if the pages were used slightly earlier, as when the engine is preempted
 * in a load. Method: a page that was not used for long makes the difference between later uses small.
 */
static void test_pages_outlast_objects(void **state)
{
	enum { LONG_MS = 1000000 };
	struct gpool_block block;
	uint32_t pages, taken = 0;

	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	assert_int_equal(gpool_alloc(pools[0], 1, NULL, &block), 0);
	assert_int_equal(gpool_unpin(pools[0], &block), 0);
	atomic_store(&pools[0]->session.touch[block.page], pool_clock(pools[0]) - LONG_MS);
	await_tick();
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		assert_int_equal(gpool_object_pin(entry_at(0, i)->object), 0);
		assert_int_equal(gpool_object_unpin(entry_at(0, i)->object), 0);
	}
	await_tick();
	pages = object_pages(0) + 1;
	AWAIT(try_evict(admin, "p0", pages, &taken) == 0);
	assert_int_equal(taken, pages);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_false(tail_is_gone(pools[0], &entry_at(0, i)->tail));
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
}

/* Evicted adapters, or only tails, are loaded again. A pinned adapter keeps its tail, and other tails beside it. */
static void test_evicted(void **state)
{
	(void)state;
	begin_with_engine();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	acquire(0, 0);
	evict_all();
	check(0, 0);
	for (uint32_t i = 1; i < ADAPTERS; i++)
		use(0, i);
	check(0, 0);
	release(0, 0);
	evict_all();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	assert_true(info_of(0, 1).loads == 3 && info_of(0, 0).loads == 2);
}

/* If only the shared page is evicted, the rest of the adapter stays. */
static void test_only_tails_evicted(void **state)
{
	(void)state;
	begin_with_engine();
	use(0, 0);
	/* A pin of the object, without its tail */
	assert_int_equal(gpool_object_pin(entry_at(0, 0)->object), 0);
	evict_all();
	gpool_object_unpin(entry_at(0, 0)->object);
	use(0, 0);
	assert_int_equal(info_of(0, 0).loads, 1);
	assert_int_equal(info_of(0, 0).shared, 1);
	assert_int_equal(info_of(0, 0).lost, 1);
}

/* Another engine shares the object, and makes the tail from each source. */
static void test_two_engines(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char cold[128];
	uint32_t objects;

	(void)state;
	begin();
	snprintf(cold, sizeof(cold), "%s/cold", engine_folder);
	assert_int_equal(mkdir(cold, 0700), 0);
	options.cache_dir = cold;
	set_open(0, &options);
	set_open(1, &options);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	objects = object_pages(0);
	AWAIT(!faccessat(loras[0]->cold_fd, entry_at(0, ADAPTERS - 1)->adapter->file_name, F_OK, 0));
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		assert_int_equal(gpool_lora_acquire_async(loras[1], ids[1][i], -1), 0);
		assert_int_equal(gpool_lora_wait_layer(loras[1], ids[1][i], -1, -1), 0);
		check(1, i);
		release(1, i);
		use(1, i);
		assert_int_equal(info_of(1, i).loads, 0);
		assert_int_equal(info_of(1, i).shared, 1);
		use(0, i);
	}
	AWAIT(object_pages(1) == objects); /* a loader thread may still be finishing the load */
	/* The tail of an engine does not depend on those of another. */
	assert_int_equal(gpool_lora_destroy(loras[0]), 0);
	loras[0] = NULL;
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(1, i);
}

/* Copies in host memory and in int8 contain the last page; an engine without the flag uses the same copies. */
static void test_copies(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	(void)state;
	begin();
	options.warm = warm;
	set_open(0, &options);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	AWAIT(stats_of(0).warm_made == ADAPTERS);
	evict_all();
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(0, i);
		assert_int_equal(info_of(0, i).from_warm, 1);
	}
	set_open(1, &options);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(1, i);
		assert_int_equal(info_of(1, i).shared, 1);
	}
}

/* Engines with and without the flag do not open each other's objects. */
static void test_flags_differ(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *plain;
	char path[128];
	uint32_t id;

	(void)state;
	begin_with_engine();
	use(0, 0);
	assert_int_equal(gpool_lora_create(pools[0], &options, &plain), 0);
	snprintf(path, sizeof(path), "%s/0", engine_folder);
	assert_int_equal(gpool_lora_register(plain, "a", path, &id, NULL), 0);
	assert_int_equal(gpool_lora_acquire(plain, id, -1), 0);
	assert_int_equal(lora_wrong(plain, id, &engine_rigs[0]), 0);
	assert_int_equal(plain->entries[id]->tail.count, 0);
	assert_int_equal(gpool_lora_release(plain, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(plain), 0);
	use(0, 0);
}

/* ---- two threads ---- */

struct maker {
	pthread_t thread;
	struct tail tail;
	uint32_t adapter;
	int error;
};

static void *make_tail(void *argument)
{
	struct maker *maker = argument;
	struct gpool_lora *lora = loras[0];

	maker->error = tail_make(
		&lora->tails, lora->pool, &lora->entries[ids[0][maker->adapter]]->adapter->layout, 0, &maker->tail);
	return NULL;
}

static bool tail_is_on(const struct tail *tail, const struct tail_page *page)
{
	for (uint32_t i = 0; i < tail->count; i++)
		if (tail->pieces[i].page == page)
			return true;
	return false;
}

/* Load all adapters, and return the one with the smallest tail, of which a page has room for two. */
static uint32_t smallest_tail(void)
{
	uint32_t best = 0;
	uint64_t best_bytes = UINT64_MAX;

	for (uint32_t i = 0; i < ADAPTERS; i++) {
		uint64_t bytes;

		use(0, i);
		bytes = tail_bytes(0);
		assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
		if (bytes < best_bytes) {
			best = i;
			best_bytes = bytes;
		}
	}
	assert_true(2 * best_bytes <= 512 << 10);
	return best;
}

static int request_count(struct gpool *pool)
{
	int count;

	pthread_mutex_lock(&pool->request_lock);
	count = __builtin_popcountll(pool->requests_used);
	pthread_mutex_unlock(&pool->request_lock);
	return count;
}

static int count_calls(void *argument)
{
	++*(int *)argument;
	return 1;
}

/*
 * If two loads need a new page at the same time, each page of a tail still contains a piece of it. Method: the agent is
 * stopped until both have requested a page, because this process has no free ones.
 */
static void test_two_new_pages(void **state)
{
	struct gpool_block blocks[PAGES];
	struct maker makers[2];
	uint32_t adapter, count = 0;
	int calls = 0, error;
	pid_t agent;

	(void)state;
	begin_with_engine();
	adapter = smallest_tail();
	assert_int_equal(shared_pages(0), 0);
	agent = (pid_t)status()->agent_pid;
	assert_true(agent > 1);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	gpool_wait_check(count_calls, &calls);
	while (!(error = gpool_alloc(pools[0], 1, NULL, &blocks[count])))
		count++;
	gpool_wait_check(NULL, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		makers[i] = (struct maker){.adapter = adapter};
		assert_int_equal(pthread_create(&makers[i].thread, NULL, make_tail, &makers[i]), 0);
	}
	for (int tries = 0; request_count(pools[0]) < 2 && tries < AWAIT_TRIES; tries++)
		poll(NULL, 0, AWAIT_STEP_MS);
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(error, -EINTR);
	for (uint32_t i = 0; i < 2; i++) {
		pthread_join(makers[i].thread, NULL);
		assert_int_equal(makers[i].error, 0);
	}
	while (count)
		assert_int_equal(gpool_free(pools[0], &blocks[--count]), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct tail *tail = &makers[i].tail;

		for (uint32_t p = 0; p < tail->page_count; p++)
			assert_true(tail_is_on(tail, tail->pages[p]));
		tail_unpin(pools[0], tail, GPOOL_FENCE_NONE);
		tail_free(&loras[0]->tails, pools[0], tail, NULL);
	}
	assert_int_equal(shared_pages(0), 0);
}

static sem_t ending;

/* Under the lock: report that a load with a tail is about to fail. */
static void report_end(struct gpool_lora *lora, struct lora_entry *entry)
{
	(void)lora;
	if (entry->load_state == LOAD_ENDING && entry->tail.count)
		sem_post(&ending);
}

static void *fail_often(void *unused)
{
	uint32_t failed = 0;

	(void)unused;
	for (uint32_t i = 0; i < test_scaled(200); i++)
		failed += gpool_lora_acquire(loras[0], ids[0][0], -1) == -EINVAL;
	return failed == test_scaled(200) ? &ending : NULL;
}

/*
 * The tail of a failed load is not freed while its entry contains it. Method: hold the lock while such a load ends, as
 * the thread that packs tails does. A correct load cannot continue meanwhile, so the test waits only a short time for
 * an incorrect one.
 */
static void test_failed_load(void **state)
{
	enum { LOOKS = 100 };
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	const struct lora_entry *entry;
	uint32_t seen = 0, lost = 0;
	pthread_t thread;
	void *failed;

	(void)state;
	begin();
	first_damage();
	set_open(0, &options);
	entry = entry_at(0, 0);
	sem_init(&ending, 0, 0);
	loras[0]->follow = report_end;
	assert_int_equal(pthread_create(&thread, NULL, fail_often, NULL), 0);
	for (uint32_t i = 0; i < test_scaled(200); i++) {
		while (sem_wait(&ending))
			;
		pthread_mutex_lock(&loras[0]->lock);
		if (entry->load_state == LOAD_ENDING && entry->tail.count) {
			seen++;
			for (int look = 0; look < LOOKS && !lost; look++) {
				lost = !shared_pages(0);
				sched_yield();
			}
		}
		pthread_mutex_unlock(&loras[0]->lock);
	}
	pthread_join(thread, &failed);
	assert_int_equal(lost, 0);
	assert_non_null(failed);
	print_message("%u loads were seen while they failed\n", seen);
	assert_int_equal(shared_pages(0), 0);
	sem_destroy(&ending);
}

/* The program's check function is not called while the set is locked: here, while a pin of a tail waits. */
static void test_pin_is_not_interrupted(void **state)
{
	static _Atomic uint64_t copy[PAGES];
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	_Atomic uint64_t *pages;
	uint64_t page, word;
	int calls = 0, error;

	(void)state;
	begin_as(impatient);
	set_open(0, &options);
	use(0, 0);
	pages = pools[0]->pages;
	page = (entry_at(0, 0)->tail.pieces[0].address - pools[0]->window_base) / pools[0]->page_bytes;
	/* As if the agent were evicting the page */
	for (uint32_t i = 0; i < PAGES; i++)
		atomic_init(&copy[i], atomic_load(&pages[i]));
	word = atomic_load(&pages[page]);
	atomic_store(&copy[page], page_word_make(PAGE_EVICTING, page_word_owner(word), page_word_generation(word)));
	pools[0]->pages = copy;
	gpool_wait_check(count_calls, &calls);
	error = gpool_lora_acquire(loras[0], ids[0][0], ANSWER_MS);
	gpool_wait_check(NULL, NULL);
	pools[0]->pages = pages;
	assert_int_equal(calls, 0);
	assert_int_equal(error, -ETIMEDOUT);
	use(0, 0);
}

/* ---- many threads ---- */

struct user {
	pthread_t thread;
	uint64_t random, wrong, errors;
	uint32_t engine;
};

UNWATCHED static uint32_t user_random(struct user *user, uint32_t below)
{
	user->random = user->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((user->random >> 33) % below);
}

/* Return: true if the first and last row of each matrix are those of the file. */
UNWATCHED static bool rows_right(struct gpool_lora *lora, uint32_t id, const struct rig *rig)
{
	for (uint32_t m = 0; m < rig->peft.count; m++) {
		const struct peft_module *module = &rig->peft.modules[m];
		struct gpool_lora_weights part;

		if (gpool_lora_weights(lora, id, (int32_t)module->layer, module->target, &part))
			return false;
		for (uint32_t i = 0; i < module->in; i += 97)
			if (lora_element(&part.a, part.rank, 0, i) != bf16_of_float(rig_get(rig, &module->a, i)))
				return false;
		for (uint32_t i = 0; i < module->out; i += 97)
			if (lora_element(&part.b, part.rank, 0, i) !=
				bf16_of_float(rig_get(rig, &module->b, (uint64_t)i * module->rank)))
				return false;
	}
	return true;
}

static void *use_many(void *argument)
{
	struct user *user = argument;
	struct gpool_lora *lora = loras[user->engine];

	for (int i = 0; i < (int)test_scaled(200); i++) {
		uint32_t adapter = user_random(user, ADAPTERS), id = ids[user->engine][adapter];
		int error = gpool_lora_acquire(lora, id, user_random(user, 2) ? -1 : ANSWER_MS);

		if (error) {
			/* unloaded by another thread while this engine has it acquired */
			user->errors += error != -EBUSY;
			continue;
		}
		user->wrong += !rows_right(lora, id, &engine_rigs[adapter]);
		user->errors += gpool_lora_release(lora, id, GPOOL_FENCE_NONE) != 0;
		if (!user_random(user, 4))
			gpool_lora_unload(lora, id);
	}
	return NULL;
}

static void test_many_threads(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct user users[4];

	(void)state;
	begin();
	set_open(0, &options);
	set_open(1, &options);
	for (uint32_t i = 0; i < 4; i++) {
		users[i] = (struct user){.random = i, .engine = i % ENGINES};
		assert_int_equal(pthread_create(&users[i].thread, NULL, use_many, &users[i]), 0);
	}
	for (uint32_t i = 0; i < test_scaled(50); i++)
		try_evict(admin, "p0", 8, NULL);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(users[i].thread, NULL), 0);
		assert_int_equal(users[i].wrong, 0);
		assert_int_equal(users[i].errors, 0);
	}
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
}

/* ---- death ---- */

#ifndef __SANITIZE_THREAD__ /* a child of a process with threads cannot have threads under the sanitizer */
/* Shared pages of a dead engine are free, and the objects that it has published stay. */
static void test_killed(void **state)
{
	int ready[2];
	char byte;
	pid_t child;

	(void)state;
	begin();
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (!child) {
		struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

		admin = NULL;
		set_open(0, &options);
		for (uint32_t i = 0; i < ADAPTERS; i++)
			acquire(0, i);
		if (write(ready[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	assert_true(child > 0);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(ready[0]);
	close(ready[1]);
	set_open(0, &(struct gpool_lora_options)GPOOL_LORA_OPTIONS_INIT);
	AWAIT(harness_check(&harness) == 0);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(0, i);
		assert_int_equal(info_of(0, i).shared, 1);
	}
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
	set_close(0);
	AWAIT(harness_free_pages(&harness) == PAGES);
}
#endif

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, sets_end)
	const struct CMUnitTest tests[] = {
		TEST(less_is_lost),
		TEST(tables),
		TEST(room_is_used_again),
		TEST(packed),
		TEST(tails_of_evicted_adapters),
		TEST(objects_are_evicted_first),
		TEST(pages_outlast_objects),
		TEST(evicted),
		TEST(only_tails_evicted),
		TEST(two_engines),
		TEST(copies),
		TEST(flags_differ),
		TEST(two_new_pages),
		TEST(failed_load),
		TEST(pin_is_not_interrupted),
		TEST(many_threads),
#ifndef __SANITIZE_THREAD__
		TEST(killed),
#endif
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, adapters_write, adapters_remove);
}
