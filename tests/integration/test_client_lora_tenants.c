/*
 * test_client_lora_tenants.c - adapters of two tenants that can read the same files.
 *
 * Goal: a tenant cannot acquire, open, delete or replace a private adapter of another tenant, neither in the pool nor
 * among the copies in host memory. Tenants with separate trust domains share no adapter, and both can use theirs. A
 * tenant can use neither an adapter that its key `adapters` does not permit, nor one that is restricted to others. A
 * shared page (GPOOL_LORA_SHARE_PAGES) contains adapters of one session.
 *
 * Method: two sessions of a gpoold with two tenants register the same folder, once in one trust domain and once in two.
 * Every weight is checked.
 *
 * Requirements: L11.
 */
#include "client/lora/format/cold_file.h"
#include "client/lora/load/lora.h"
#include "client/object/object.h"
#include "cuda/kernels/lora.h"
#include "tests/integration/lora_engine.h"

#include <errno.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define POOLS \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; },\n" \
	"          { name = \"warm\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
#define TOGETHER "tenants = ( { name = \"red\"; users = [ \"1\" ]; }, { name = \"blue\"; users = [ \"2\" ]; } );\n"
#define APART \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; " \
	"domain = \"blue\"; } );\n"

static struct side {
	struct gpool *pool, *warm;
	struct gpool_lora *lora;
	uint32_t id;
} red, blue;
static uint32_t adapter;

/* ---- fixture ---- */

static struct gpool_lora *lora_opened(const struct side *side, uint32_t flags)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.element = GPOOL_LORA_BF16;
	options.flags = flags;
	options.warm = side->warm;
	assert_int_equal(gpool_lora_create(side->pool, &options, &made), 0);
	return made;
}

static void side_open(struct side *side, const char *tenant_name, uint32_t flags)
{
	char folder[128], why[GPOOL_LORA_REASON_BYTES];

	side->pool = open_as(0, "p0", tenant_name);
	side->warm = open_as(0, "warm", tenant_name);
	side->lora = lora_opened(side, flags);
	snprintf(folder, sizeof(folder), "%s/%u", engine_folder, adapter);
	assert_int_equal(gpool_lora_register(side->lora, "adapter", folder, &side->id, why), 0);
}

static char config_path[128];

static void start_sides(const char *config, uint32_t flags)
{
	const char *arguments[] = {"--config", config_path, NULL};

	engine_adapters_begin();
	snprintf(config_path, sizeof(config_path), "%s/gpoold.conf", engine_folder);
	harness_config_write(config_path, config);
	start(arguments);
	adapter = engine_adapter(24, SAFETENSORS_F16);
	side_open(&red, "red", flags);
	side_open(&blue, "blue", flags);
}

static void side_close(struct side *side)
{
	gpool_lora_destroy(side->lora);
	gpool_close(side->pool);
	gpool_close(side->warm);
	*side = (struct side){NULL};
}

static int stop_sides(void **state)
{
	side_close(&red);
	side_close(&blue);
	return engine_adapters_end() | stop(state);
}

/* ---- access to the objects of another tenant ---- */

static uint64_t wrong_in(const struct side *side)
{
	const struct rig *rig = &engine_rigs[adapter];
	uint64_t wrong = 0;

	for (uint32_t m = 0; m < rig->peft.count; m++) {
		const struct peft_module *module = &rig->peft.modules[m];
		struct gpool_lora_weights part;
		struct lora_matrix at;

		assert_int_equal(
			gpool_lora_weights(side->lora, side->id,
				module->layer == PEFT_NO_LAYER ? -1 : (int32_t)module->layer, module->target, &part),
			0);
		memcpy(&at, &part.a, sizeof(at));
		for (uint32_t k = 0; k < module->rank; k++)
			for (uint32_t i = 0; i < module->in; i++) {
				const uint16_t *tile = (const uint16_t *)(uintptr_t)lora_tile_at(
					&at, part.rank, i / LORA_TILE_COLUMNS);

				wrong += tile[k * LORA_TILE_COLUMNS + i % LORA_TILE_COLUMNS] !=
					bf16_of_float(rig_get(rig, &module->a, (uint64_t)k * module->in + i));
			}
	}
	return wrong;
}

static struct gpool_lora_info info_of(const struct side *side)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(side->lora, side->id, &info), 0);
	return info;
}

/* Return the object that this tenant has published. */
static struct gpool_object_info published(struct gpool *pool, const char *tenant_name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		if (!strcmp(info.tenant, tenant_name))
			return info;
	fail_msg("tenant '%s' has published nothing", tenant_name);
	return info;
}

static bool is_published(struct gpool *pool, const char *tenant_name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		if (!strcmp(info.tenant, tenant_name))
			return true;
	return false;
}

static void acquire(const struct side *side)
{
	char why[GPOOL_LORA_REASON_BYTES];
	int error = gpool_lora_acquire(side->lora, side->id, ANSWER_MS);

	gpool_lora_last_error(side->lora, side->id, why);
	if (error)
		fail_msg("it cannot be acquired: %s: %s", gpool_strerror(error), why);
	assert_int_equal(wrong_in(side), 0);
}

static void release(const struct side *side)
{
	assert_int_equal(gpool_lora_release(side->lora, side->id, GPOOL_FENCE_NONE), 0);
}

/* Blue uses the name of red's object in this pool. From another trust domain it gets -ENOENT. */
static void cannot_touch(struct gpool *of_red, struct gpool *of_blue, bool apart)
{
	struct gpool_object_info info = published(of_red, "red");
	struct gpool_object *object;

	assert_int_equal(is_published(of_blue, "red"), !apart);
	assert_int_equal(gpool_object_open(of_blue, info.name, NULL, &object), apart ? -ENOENT : -EACCES);
	assert_int_equal(gpool_object_delete(of_blue, info.name, 0), apart ? -ENOENT : -EPERM);
}

static void both_have_their_own(bool apart)
{
	acquire(&red);
	AWAIT(is_published(red.warm, "red"));
	cannot_touch(red.pool, blue.pool, apart);
	cannot_touch(red.warm, blue.warm, apart);
	acquire(&blue);
	assert_int_equal(info_of(&blue).shared, 0);
	assert_int_equal(info_of(&blue).loads, 1);
	assert_int_equal(info_of(&blue).from_warm, 0);
	release(&blue);
	assert_int_equal(gpool_lora_unload(blue.lora, blue.id), 0);
	assert_int_equal(wrong_in(&red), 0);
	acquire(&blue);
	release(&blue);
	release(&red);
}

static void test_private(void **state)
{
	(void)state;
	start_sides(POOLS TOGETHER, GPOOL_LORA_PRIVATE);
	both_have_their_own(false);
}

static void test_in_domains_of_their_own(void **state)
{
	(void)state;
	start_sides(POOLS APART, 0);
	both_have_their_own(true);
}

static void test_private_in_domains_of_their_own(void **state)
{
	(void)state;
	start_sides(POOLS APART, GPOOL_LORA_PRIVATE);
	both_have_their_own(true);
}

/* ---- names of another tenant ---- */

enum { WRONG = 0x11 };

struct value {
	char key[16];
	_Alignas(8) uint8_t bytes[16384];
	size_t length;
};

/* Return the metadata of red's object, without its weights: blue has the files, and could compute the metadata. */
static uint32_t values_of(struct gpool *pool, const char *name, struct value *values, uint32_t room, uint64_t *pages)
{
	struct gpool_object *object;
	const char *key;
	const void *value;
	size_t bytes;
	uint64_t address, length;
	uint32_t count = 0;

	assert_int_equal(gpool_object_open(pool, name, NULL, &object), 0);
	while (count < room && gpool_object_entry(object, count, &key, &value, &bytes) == 0) {
		assert_true(bytes <= sizeof(values->bytes));
		snprintf(values[count].key, sizeof(values->key), "%s", key);
		memcpy(values[count].bytes, value, bytes);
		values[count++].length = bytes;
	}
	assert_int_equal(gpool_object_address(object, 0, &address, &length), 0);
	*pages = length / gpool_page_bytes(pool);
	assert_int_equal(gpool_object_close(object), 0);
	return count;
}

/* Compute a checksum for each page of blue's weights, which are those of red's copy. */
static void checksums_make(struct value *values, uint32_t count)
{
	struct adapter_layout layout;
	uint64_t *sums = NULL;
	uint8_t *image;

	for (uint32_t i = 0; i < count; i++)
		if (!strcmp(values[i].key, "checksums"))
			sums = (uint64_t *)(void *)values[i].bytes;
	for (uint32_t i = 0; i < count && sums; i++) {
		if (strcmp(values[i].key, "layout") != 0)
			continue;
		assert_int_equal(adapter_layout_check(values[i].bytes, values[i].length, &layout), 0);
		image = malloc(layout.header->page_bytes);
		assert_non_null(image);
		for (uint32_t page = 0; page < layout.header->pages; page++) {
			uint64_t used = cold_page_bytes(&layout, COLD_PLAIN, page);

			memset(image, WRONG, used);
			memset(image + used, 0, layout.header->page_bytes - used);
			sums[page] = XXH3_64bits(image, layout.header->page_bytes);
		}
		free(image);
	}
}

/* Delete red's adapter from this pool and let blue publish other content under its name. Return the result. */
static int name_take(struct gpool *of_red, struct gpool *of_blue)
{
	static struct value values[4];
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_info info = published(of_red, "red");
	struct gpool_object *object;
	uint64_t pages, address, bytes, version;
	uint32_t index, count = values_of(of_red, info.name, values, 4, &pages);
	int error;

	assert_int_equal(gpool_object_delete(of_red, info.name, 0), 0);
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(of_blue, info.name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, (uint32_t)pages, NULL, &index), 0);
	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	memset((void *)(uintptr_t)address, WRONG, bytes);
	checksums_make(values, count);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(gpool_object_set(object, values[i].key, values[i].bytes, values[i].length), 0);
	assert_int_equal(gpool_object_publish(object, &version), -EPERM);
	object->of_library = true;
	error = gpool_object_publish(object, &version);
	assert_int_equal(gpool_object_close(object), 0);
	return error;
}

static void test_a_private_name_is_not_taken(void **state)
{
	(void)state;
	start_sides(POOLS TOGETHER, GPOOL_LORA_PRIVATE);
	acquire(&red);
	release(&red);
	assert_int_equal(name_take(red.pool, blue.pool), -EPERM);
	acquire(&red);
	release(&red);
}

static void test_a_private_copys_name_is_not_taken(void **state)
{
	(void)state;
	start_sides(POOLS TOGETHER, GPOOL_LORA_PRIVATE);
	acquire(&red);
	release(&red);
	AWAIT(is_published(red.warm, "red"));
	assert_int_equal(name_take(red.warm, blue.warm), -EPERM);
	assert_int_equal(gpool_lora_unload(red.lora, red.id), 0);
	acquire(&red);
	assert_int_equal(info_of(&red).from_warm, 0);
	release(&red);
}

/* ---- adapters that a tenant may use ---- */

#define RULES(patterns) \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; }, { name = \"blue\"; users = [ \"2\" ]; adapters = " \
	"\"" patterns "\"; } );\n"

/* Blue is refused with this error and text. */
static void blue_is_refused(int error, const char *text)
{
	char why[GPOOL_LORA_REASON_BYTES];

	assert_int_equal(gpool_lora_acquire(blue.lora, blue.id, ANSWER_MS), error);
	assert_int_equal(gpool_lora_last_error(blue.lora, blue.id, why), 0);
	if (!strstr(why, text))
		fail_msg("'%s' instead of '%s'", why, text);
	assert_int_equal(info_of(&blue).state, GPOOL_LORA_COLD);
}

/* Requirements: L15. */
static void test_patterns(void **state)
{
	char folder[128], why[GPOOL_LORA_REASON_BYTES];
	struct gpool_object_info info;
	struct gpool_object *object;

	(void)state;
	start_sides(POOLS RULES("public/* adapter-?"), 0);
	/* Another tenant has published it. */
	acquire(&red);
	release(&red);
	AWAIT(is_published(red.warm, "red"));
	blue_is_refused(-EACCES, "tenant 'blue' may not use adapter 'adapter'");
	info = published(red.pool, "red");
	assert_int_equal(gpool_object_open(blue.pool, info.name, NULL, &object), -EACCES);
	info = published(red.warm, "red");
	assert_int_equal(gpool_object_open(blue.warm, info.name, NULL, &object), -EACCES);
	/* It is not in the pool, so blue would publish it. */
	assert_int_equal(gpool_lora_unload(red.lora, red.id), 0);
	blue_is_refused(-EPERM, "tenant 'blue' may not use adapter 'adapter'");
	assert_false(is_published(red.pool, "blue"));
	/* The agent does not rely on the library. */
	assert_int_equal(gpool_lora_acquire_async(blue.lora, blue.id, ANSWER_MS), 0);
	assert_int_equal(gpool_lora_wait_layer(blue.lora, blue.id, -1, ANSWER_MS), 0);
	release(&blue);
	AWAIT(info_of(&blue).state == GPOOL_LORA_COLD);
	assert_false(is_published(red.pool, "blue"));
	/* Permitted names. */
	snprintf(folder, sizeof(folder), "%s/%u", engine_folder, adapter);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(gpool_lora_unregister(blue.lora, blue.id), 0);
		assert_int_equal(
			gpool_lora_register(blue.lora, i ? "public/a/b" : "adapter-1", folder, &blue.id, why), 0);
		acquire(&blue);
		release(&blue);
		assert_int_equal(info_of(&blue).loads, 1);
		assert_int_equal(gpool_lora_unload(blue.lora, blue.id), 0);
	}
}

/* The agent that is started after a death has the same rules and names. Requirements: L15. */
static void test_patterns_after_a_restart(void **state)
{
	uint64_t before;

	(void)state;
	start_sides(POOLS RULES("public/*"), 0);
	acquire(&red);
	release(&red);
	blue_is_refused(-EACCES, "tenant 'blue' may not use adapter 'adapter'");
	before = atomic_load(&red.pool->header->incarnation);
	assert_int_equal(kill((pid_t)status()->agent_pid, SIGKILL), 0);
	AWAIT(atomic_load(&red.pool->header->incarnation) != before);
	blue_is_refused(-EACCES, "tenant 'blue' may not use adapter 'adapter'");
	acquire(&red);
	release(&red);
}

static void reload(const char *config)
{
	const struct msg_reload_request request = {0};
	struct msg_done_reply done;

	harness_config_write(config_path, config);
	ASK(reload_request, &request, done_reply, &done);
	if (!strstr(done.text, "tenants.blue.adapters"))
		fail_msg("the reload reports: %s", done.text);
}

/* A reload permits an adapter, and forbids it again. Requirements: L15. */
static void test_patterns_after_a_reload(void **state)
{
	(void)state;
	start_sides(POOLS RULES("public/*"), 0);
	acquire(&red);
	blue_is_refused(-EACCES, "tenant 'blue' may not use adapter 'adapter'");
	reload(POOLS RULES("public/* adapter"));
	acquire(&blue);
	assert_int_equal(info_of(&blue).shared, 1);
	release(&blue);
	side_close(&blue);
	reload(POOLS RULES("public/*"));
	side_open(&blue, "blue", 0);
	blue_is_refused(-EACCES, "tenant 'blue' may not use adapter 'adapter'");
	assert_int_equal(wrong_in(&red), 0);
	release(&red);
}

/*
 * The rules apply to adapters in shared pages, too, of which no object is published: the agent is asked before each
 * load. Requirements: L15.
 */
static void test_patterns_without_objects(void **state)
{
	static const char *const one[] = {"red"};
	char folder[128], why[GPOOL_LORA_REASON_BYTES];

	(void)state;
	start_sides(POOLS RULES("public/* adapter-?"), GPOOL_LORA_SHARE_PAGES);
	acquire(&red);
	assert_false(is_published(red.pool, "red"));
	blue_is_refused(-EPERM, "tenant 'blue' may not use adapter 'adapter'");
	assert_int_equal(gpool_lora_acquire_async(blue.lora, blue.id, ANSWER_MS), -EPERM);
	snprintf(folder, sizeof(folder), "%s/%u", engine_folder, adapter);
	assert_int_equal(gpool_lora_unregister(blue.lora, blue.id), 0);
	assert_int_equal(gpool_lora_register(blue.lora, "public/a", folder, &blue.id, why), 0);
	acquire(&blue);
	release(&blue);
	release(&red);
	/* The agent does not rely on the library. */
	assert_int_equal(object_adapter_ask(blue.pool, "lora/x", "public/b"), 0);
	assert_int_equal(object_adapter_ask(blue.pool, "lora/x", "adapter"), -EPERM);
	assert_int_equal(object_adapter_ask(blue.pool, "lora/x@red", "public/b"), -EPERM);
	assert_int_equal(object_adapter_ask(blue.pool, "lora/x@blue,red", "public/b"), 0);
	assert_int_equal(object_adapter_ask(red.pool, "lora/x@blue,red", "adapter"), 0);
	assert_int_equal(gpool_lora_unload(red.lora, red.id), 0);
	assert_int_equal(gpool_lora_unregister(red.lora, red.id), 0);
	assert_int_equal(gpool_lora_register(red.lora, "adapter", folder, &red.id, why), 0);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, one, 1), 0);
	acquire(&red);
	release(&red);
}

/* Return the page of a piece of the tail, which the session must lease. */
static uint64_t page_of(const struct side *side, uint32_t piece)
{
	const struct tail *tail = &side->lora->entries[side->id]->tail;
	uint64_t page = (tail->pieces[piece].address - side->pool->window_base) / side->pool->page_bytes;

	assert_true(page < side->pool->page_count);
	assert_int_equal(page_word_owner(atomic_load(&side->pool->pages[page])), side->pool->id);
	return page;
}

/* Tails of two tenants are never in one page, whether the tenants trust each other or not. Requirements: L18. */
static void pages_are_apart(const char *config, uint32_t flags)
{
	start_sides(config, GPOOL_LORA_SHARE_PAGES | flags);
	for (int round = 0; round < 3; round++) {
		acquire(&red);
		acquire(&blue);
		for (uint32_t i = 0; i < red.lora->entries[red.id]->tail.count; i++)
			for (uint32_t j = 0; j < blue.lora->entries[blue.id]->tail.count; j++)
				assert_true(page_of(&red, i) != page_of(&blue, j));
		release(&red);
		release(&blue);
		/* The next loads get the other's pages. */
		assert_int_equal(gpool_lora_unload(red.lora, red.id), 0);
		assert_int_equal(gpool_lora_unload(blue.lora, blue.id), 0);
	}
}

static void test_shared_pages_together(void **state)
{
	(void)state;
	pages_are_apart(POOLS TOGETHER, 0);
}

static void test_shared_pages_private(void **state)
{
	(void)state;
	pages_are_apart(POOLS TOGETHER, GPOOL_LORA_PRIVATE);
}

static void test_shared_pages_apart(void **state)
{
	(void)state;
	pages_are_apart(POOLS APART, 0);
}

/* Requirements: L15. */
static void test_restricted(void **state)
{
	static const char *const both[] = {"red", "blue", "red"}, *const turned[] = {"blue", "red"},
				 *const one[] = {"red"};
	char folder[128], why[GPOOL_LORA_REASON_BYTES];
	struct gpool_object_info info;
	struct gpool_object *object;

	(void)state;
	start_sides(POOLS TOGETHER, 0);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, both, 3), 0);
	assert_int_equal(gpool_lora_restrict(blue.lora, blue.id, turned, 2), 0);
	acquire(&red);
	acquire(&blue);
	assert_int_equal(info_of(&blue).shared, 1);
	release(&red);
	release(&blue);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, one, 1), -EBUSY);
	assert_int_equal(gpool_lora_unload(red.lora, red.id), 0);
	/* Only for red: blue has its own copy, and cannot open red's. */
	assert_int_equal(gpool_lora_unregister(red.lora, red.id), 0);
	snprintf(folder, sizeof(folder), "%s/%u", engine_folder, adapter);
	assert_int_equal(gpool_lora_register(red.lora, "adapter", folder, &red.id, why), 0);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, one, 1), 0);
	acquire(&red);
	info = published(red.pool, "red");
	assert_non_null(strstr(info.name, "@red"));
	assert_int_equal(gpool_object_open(blue.pool, info.name, NULL, &object), -EACCES);
	assert_int_equal(name_take(red.pool, blue.pool), -EPERM);
	acquire(&blue);
	assert_int_equal(info_of(&blue).loads + info_of(&blue).shared, 2);
	release(&red);
	release(&blue);
}

/* Requirements: L15. */
static void test_wrong_restrictions(void **state)
{
	static const char *const names[] = {"red", "a,b", "", "@", "green"}, *many[100];
	char longest[LORA_TENANTS_BYTES + 1];
	const char *pair[] = {"red", longest};
	struct gpool_lora *private;
	uint32_t id;

	(void)state;
	start_sides(POOLS TOGETHER, 0);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, NULL, 1), -EINVAL);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, names, 0), -EINVAL);
	for (uint32_t i = 1; i < 4; i++)
		assert_int_equal(
			gpool_lora_restrict(red.lora, red.id, (const char *const[]){"red", names[i]}, 2), -EINVAL);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, names + 4, 1), -EPERM);
	assert_int_equal(gpool_lora_restrict(red.lora, red.id + 1, names, 1), -ENOENT);
	for (uint32_t i = 0; i < 100; i++)
		many[i] = "red";
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, many, 100), -EINVAL);
	/* The longest list of names that a name of an object can contain, and one byte more. */
	memset(longest, 'z', sizeof(longest));
	longest[LORA_TENANTS_BYTES - 1 - strlen("red,") + 1] = '\0';
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, pair, 2), -EINVAL);
	longest[LORA_TENANTS_BYTES - 1 - strlen("red,")] = '\0';
	assert_int_equal(gpool_lora_restrict(red.lora, red.id, pair, 2), 0);
	acquire(&red);
	assert_int_equal(strlen(published(red.pool, "red").name), POOL_OBJECT_NAME_BYTES - 1);
	release(&red);
	private = lora_opened(&red, GPOOL_LORA_PRIVATE);
	assert_int_equal(
		gpool_lora_register_buffer(private, "adapter", "{\"peft_type\":\"LORA\"}", engine_rigs[adapter].file,
			8 + engine_rigs[adapter].header_bytes + engine_rigs[adapter].bytes, &id, NULL),
		0);
	assert_int_equal(gpool_lora_restrict(private, id, names, 1), -EINVAL);
	assert_int_equal(gpool_lora_destroy(private), 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, stop_sides)
	const struct CMUnitTest tests[] = {
		TEST(private),
		TEST(in_domains_of_their_own),
		TEST(private_in_domains_of_their_own),
		TEST(a_private_name_is_not_taken),
		TEST(a_private_copys_name_is_not_taken),
		TEST(patterns),
		TEST(patterns_after_a_restart),
		TEST(patterns_after_a_reload),
		TEST(patterns_without_objects),
		TEST(shared_pages_together),
		TEST(shared_pages_private),
		TEST(shared_pages_apart),
		TEST(restricted),
		TEST(wrong_restrictions),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
