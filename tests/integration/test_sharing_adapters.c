/*
 * test_sharing_adapters.c - the sharing matrix (sharing.h) for LoRA adapters, and for their copies in a pool of host
 * memory.
 *
 * Goal: adapters that no engine has acquired are evicted from the pool, after the work that uses them, and so are
 * their copies from the host pool. Weights that are found again have the same bits. Method: see sharing.h; the test
 * writes four adapters to files.
 *
 * Requirements: U17.
 */
#include "tests/integration/sharing.h"

#include "tests/integration/lora_engine.h"

#include "client/lora/load/lora.h"
#include "cuda/kernels/lora.h"

enum { ADAPTERS = 4, MODULES = 6, RANK = 32, WIDTH = 2048 };

#define SECOND_POOL "name=warm,backend=host,size=32MiB,page_size=512KB,reserved=0"

static const char *const arguments[] = {"--pool", POOL, "--pool", SECOND_POOL, CALM, NULL};

struct adapters {
	struct gpool_lora *lora;
	uint32_t ids[ADAPTERS], pages[ADAPTERS];
	uint64_t hashes[ADAPTERS];
};

static struct adapters *adapters_of(struct owner *owner)
{
	return owner->own;
}

static void adapter_files_make(void)
{
	engine_adapters_begin();
	for (int i = 0; i < ADAPTERS; i++) {
		struct rig_module modules[MODULES];

		for (int layer = 0; layer < MODULES; layer++) {
			modules[layer] =
				(struct rig_module){.rank = RANK, .in = WIDTH, .out = WIDTH, .type = SAFETENSORS_F16};
			snprintf(modules[layer].path, sizeof(modules[layer].path), "model.layers.%d.q", layer);
		}
		engine_adapter_of(modules, MODULES);
	}
}

/* ---- weights ---- */

static uint64_t matrix_hash(const struct gpool_lora_matrix *matrix, uint64_t hash)
{
	struct lora_matrix at;

	static_assert(sizeof(at) == sizeof(*matrix), "what kernels take");
	memcpy(&at, matrix, sizeof(at));
	for (uint32_t tile = 0; tile < WIDTH / LORA_TILE_COLUMNS; tile++) {
		const uint16_t *elements = (const uint16_t *)(uintptr_t)lora_tile_at(&at, RANK, tile);

		for (uint32_t i = 0; i < RANK * LORA_TILE_COLUMNS; i++)
			hash = (hash ^ elements[i]) * UINT64_C(0x100000001b3);
	}
	return hash;
}

/* Return a hash of all weights of an acquired adapter. */
static uint64_t adapter_hash(struct gpool_lora *lora, uint32_t id)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (int layer = 0; layer < MODULES; layer++) {
		struct gpool_lora_weights part;

		assert_int_equal(gpool_lora_weights(lora, id, layer, "model.layers.*.q", &part), 0);
		assert_int_equal(part.rank, RANK);
		hash = matrix_hash(&part.b, matrix_hash(&part.a, hash));
	}
	return hash;
}

/* ---- an engine ---- */

static uint32_t loaded_pages(struct gpool_lora *lora, uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(lora, id, &info), 0);
	return info.pages;
}

static struct gpool_lora_stats stats_of(struct gpool_lora *lora)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_lora_stats(lora, &stats), 0);
	return stats;
}

static void adapters_register(struct owner *owner)
{
	struct adapters *adapters = calloc(1, sizeof(*adapters));
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char path[128], why[GPOOL_LORA_REASON_BYTES];

	assert_non_null(adapters);
	owner->own = adapters;
	options.warm = owner->second;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(owner->pool, &options, &adapters->lora), 0);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		snprintf(path, sizeof(path), "%s/%u", engine_folder, i);
		if (gpool_lora_register(adapters->lora, path, path, &adapters->ids[i], why))
			fail_msg("%s", why);
	}
}

static void adapters_acquire(struct owner *owner)
{
	struct adapters *adapters;

	adapters_register(owner);
	adapters = adapters_of(owner);
	owner->pages = 0;
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		assert_int_equal(gpool_lora_acquire(adapters->lora, adapters->ids[i], -1), 0);
		adapters->hashes[i] = adapter_hash(adapters->lora, adapters->ids[i]);
		adapters->pages[i] = loaded_pages(adapters->lora, adapters->ids[i]);
		owner->pages += adapters->pages[i];
	}
}

static void adapters_release(struct owner *owner)
{
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_int_equal(
			gpool_lora_release(adapters_of(owner)->lora, adapters_of(owner)->ids[i], GPOOL_FENCE_NONE), 0);
}

static void adapters_release_after(struct owner *owner)
{
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_int_equal(
			gpool_lora_release(adapters_of(owner)->lora, adapters_of(owner)->ids[i], owner->fence), 0);
}

static uint32_t second_pages(struct owner *owner)
{
	return PAGES - atomic_load(&pool_view(owner->second)->header->state_pages[PAGE_FREE]);
}

/* Wait until all adapters have a copy in the second pool. */
static void adapters_copy(struct owner *owner)
{
	owner->second = open_as(0, second_pool, NULL);
	adapters_acquire(owner);
	adapters_release(owner);
	AWAIT(stats_of(adapters_of(owner)->lora).warm_made == ADAPTERS);
	owner->pages = (uint32_t)(stats_of(adapters_of(owner)->lora).warm_bytes / PAGE_BYTES);
	assert_in_range(owner->pages, 1, second_pages(owner));
}

/*
 * First check the adapters that an acquire returns immediately. A load of the others needs pages, and would evict them.
 */
static void adapters_look(struct owner *owner, struct found *found)
{
	struct adapters *adapters = adapters_of(owner);

	for (uint32_t i = 0; i < ADAPTERS; i++) {
		uint32_t *count = &found->lost;

		if (gpool_lora_acquire(adapters->lora, adapters->ids[i], 0) == 0)
			count = adapter_hash(adapters->lora, adapters->ids[i]) == adapters->hashes[i] ? &found->kept
												      : &found->wrong;
		*count += adapters->pages[i];
	}
}

/* Count the remaining copies, and check adapters that are loaded from them or from the file. */
static void copies_look(struct owner *owner, struct found *found)
{
	struct adapters *adapters = adapters_of(owner);

	found->kept = (uint32_t)(stats_of(adapters->lora).warm_bytes / PAGE_BYTES);
	found->lost = owner->pages - found->kept;
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		assert_int_equal(gpool_lora_unload(adapters->lora, adapters->ids[i]), 0);
		assert_int_equal(gpool_lora_acquire(adapters->lora, adapters->ids[i], -1), 0);
		found->wrong += adapter_hash(adapters->lora, adapters->ids[i]) != adapters->hashes[i];
	}
}

/* ---- the table ---- */

static const struct kind kinds[] = {
	{.name = "adapters, acquired",
		.gets = HELD,
		.content = NEEDED,
		.prepare = adapters_acquire,
		.look = adapters_look},
	{.name = "adapters, released",
		.gets = AT_ONCE,
		.content = KEPT,
		.needs_room = true,
		.prepare = adapters_acquire,
		.let_go = adapters_release,
		.look = adapters_look},
	{.name = "adapters, released behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.needs_room = true,
		.prepare = adapters_acquire,
		.let_go = adapters_release_after,
		.look = adapters_look},
	{.name = "copies of adapters in host memory",
		.gets = AT_ONCE,
		.content = KEPT,
		.work_later = true,
		.in_second_pool = true,
		.prepare = adapters_copy,
		.look = copies_look},
};

int main(int argc, char **argv)
{
	int result;

	if (argc > 1 && !strcmp(argv[1], "--table"))
		return sharing_main(argc, argv, arguments, kinds, sizeof(kinds) / sizeof(*kinds));
	adapter_files_make();
	result = sharing_main(argc, argv, arguments, kinds, sizeof(kinds) / sizeof(*kinds));
	return engine_adapters_end() || result;
}
