/*
 * test_client_lora_fill.c - the unused part of pages of 2 MiB with many adapters (GPOOL_LORA_SHARE_PAGES).
 *
 * Goal: less than 1 % is unused with 76 and with 1,000 adapters of common shapes. With fewer adapters, the rest is
 * mainly the ends of two shared pages: one for tails, and one for adapters that are smaller than a page. The same holds
 * after adapters have been replaced many times, if shared pages are packed.
 *
 * Method: layouts of adapters for the shapes of Llama, of random ranks (seeded). Only the tails are placed, in pages
 * that are never written, so that 1,000 adapters need no memory.
 *
 * Requirements: L18.
 */
#include "client/lora/format/pack.h"
#include "client/lora/load/lora.h"
#include "tests/integration/life.h"

enum { PAGE_BYTES = 2 << 20, MODULES = 7 * 32, RANKS = 5, ADAPTERS = 1000, HELD = 76 };

static const char *const calm[] = {"--pool", "name=p0,backend=host,size=1024 pages,page_size=2MiB,reserved=0", QUIET,
	"--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

struct shape {
	const char *name;
	uint32_t layers, ranks[RANKS];
	struct {
		uint32_t in, out;
	} targets[7];
};

static const struct shape shapes[] = {
	{"1B, q_proj and v_proj, ranks 4 to 64", 16, {4, 8, 16, 32, 64}, {{2048, 2048}, {2048, 512}}},
	{"8B, q_proj and v_proj, ranks 4 to 64", 32, {4, 8, 16, 32, 64}, {{4096, 4096}, {4096, 1024}}},
	{"8B, q_proj and v_proj, ranks 6 to 24", 32, {6, 10, 12, 20, 24}, {{4096, 4096}, {4096, 1024}}},
	{"8B, all linear layers, ranks 8 to 64", 32, {8, 16, 32, 64, 64},
		{{4096, 4096}, {4096, 1024}, {4096, 1024}, {4096, 4096}, {4096, 14336}, {4096, 14336}, {14336, 4096}}},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static struct gpool *pool;
static struct adapter_layout layouts[RANKS];
static struct tails tails;
static uint64_t seed;

/* The adapters that are in the pool. */
static struct held {
	const struct adapter_layout *layout; /* NULL: none */
	struct tail tail;
} held[ADAPTERS];

/* The use of the pages of all adapters that are in the pool. */
struct use {
	uint64_t weights, ends; /* bytes: of weights; at the ends of pages of the objects, and between tiles */
	uint64_t plain, pages;  /* pages without and with the flag */
	uint64_t pieces_pages;  /* sum of the shared pages of each tail */
	uint32_t tails;
};

static uint32_t random_below(uint32_t below)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((seed >> 33) % below);
}

static void layouts_make(const struct shape *shape)
{
	static const char *const names[7] = {"a", "b", "c", "d", "e", "f", "g"};
	static struct peft_module modules[MODULES];
	struct reason reason;

	for (uint32_t r = 0; r < RANKS; r++) {
		struct peft peft = {.modules = modules, .layers = shape->layers, .rank_max = shape->ranks[r]};

		for (uint32_t layer = 0; layer < shape->layers; layer++)
			for (uint32_t target = 0; target < 7 && shape->targets[target].in; target++)
				modules[peft.count++] = (struct peft_module){.target = names[target],
					.layer = layer,
					.rank = shape->ranks[r],
					.in = shape->targets[target].in,
					.out = shape->targets[target].out};
		assert_int_equal(pack_make(&peft, PAGE_BYTES, ADAPTER_BF16, &layouts[r], &reason), 0);
	}
}

static bool has_tail(const struct adapter_layout *layout)
{
	static const struct gpool_lora set = {.shares_pages = true};
	const struct adapter adapter = {.layout = *layout};

	return adapter_has_tail(&set, &adapter);
}

static void load(struct held *adapter)
{
	adapter->layout = &layouts[random_below(RANKS)];
	if (!has_tail(adapter->layout))
		return;
	assert_int_equal(tail_make(&tails, pool, adapter->layout, 0, &adapter->tail), 0);
	tail_unpin(pool, &adapter->tail, GPOOL_FENCE_NONE);
}

static void evict(struct held *adapter)
{
	tail_free(&tails, pool, &adapter->tail, NULL);
	adapter->layout = NULL;
}

static struct use use_of(void)
{
	struct use use = {.pages = tails_page_count(&tails)};

	for (const struct held *adapter = held; adapter < held + ADAPTERS; adapter++) {
		struct pack_use its;
		uint32_t pages, object;

		if (!adapter->layout)
			continue;
		its = pack_use_of(adapter->layout);
		pages = adapter->layout->header->pages;
		object = pages - has_tail(adapter->layout);
		use.weights += its.weights;
		use.ends += its.ends + its.columns + (object == pages ? its.last : 0);
		use.plain += pages;
		use.pages += object;
		use.tails += adapter->tail.count > 0;
		use.pieces_pages += adapter->tail.page_count;
	}
	return use;
}

static double unused(const struct use *use, uint64_t pages)
{
	return 100 * (1 - (double)use->weights / ((double)pages * PAGE_BYTES));
}

static void use_print(const char *what, uint32_t adapters, const struct use *use)
{
	print_message("%-38s %5u %7llu %6.2f %% %7llu %6.2f %% %6.1f\n", what, adapters, (unsigned long long)use->plain,
		unused(use, use->plain), (unsigned long long)use->pages, unused(use, use->pages),
		use->tails ? (double)use->pieces_pages / use->tails : 0);
}

static void header_print(void)
{
	print_message("%-38s %5s %7s %8s %7s %8s %6s\n", "adapters", "", "pages", "unused", "shared", "unused", "tail");
}

static void all_evict(void)
{
	for (struct held *adapter = held; adapter < held + ADAPTERS; adapter++)
		evict(adapter);
	assert_int_equal(tails_page_count(&tails), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		pack_free(&layouts[r]);
}

static void begin(void)
{
	start(calm);
	pool = open_worker();
	tails_begin(&tails);
	seed = 1;
	header_print();
}

static int end(void **state)
{
	tails_end(&tails);
	gpool_close(pool);
	return stop(state);
}

static void test_filled(void **state)
{
	static const uint32_t counts[] = {12, HELD, ADAPTERS};

	(void)state;
	begin();
	for (const struct shape *shape = shapes; shape < shapes + SHAPES; shape++)
		for (uint32_t i = 0; i < 3; i++) {
			struct use use;

			layouts_make(shape);
			for (uint32_t j = 0; j < counts[i]; j++)
				load(&held[j]);
			use = use_of();
			use_print(shape->name, counts[i], &use);
			/* The ends of two shared pages, and holes that are too small for any piece */
			assert_true(use.pages * PAGE_BYTES - use.weights - use.ends <
				2 * PAGE_BYTES + use.pages * PAGE_BYTES / 200);
			if (counts[i] >= HELD)
				assert_true(unused(&use, use.pages) < 1);
			all_evict();
		}
}

/* Move all tails out of the emptiest page. Return: false if the page has stayed. */
static bool pack(void)
{
	struct tail_page *page = tails_choose(&tails, pool);
	struct tail to;
	bool room = page != NULL;

	if (!page)
		return false;
	for (struct held *adapter = held; adapter < held + ADAPTERS && room; adapter++) {
		if (!tail_has(&adapter->tail, page))
			continue;
		assert_int_equal(tail_pin(&tails, pool, &adapter->tail), 0);
		room = !tail_move(&tails, pool, &adapter->tail, page, &to);
		tail_unpin(pool, &adapter->tail, GPOOL_FENCE_NONE);
		if (!room)
			continue;
		tail_unpin(pool, &to, GPOOL_FENCE_NONE);
		tail_free(&tails, pool, &adapter->tail, &to);
		adapter->tail = to;
	}
	return tails_choose_end(&tails, pool, page);
}

/* Replace random adapters. Return the mean of the unused part, in percent. */
static double replace(uint32_t times, bool packs, double *freed)
{
	double sum = 0;

	*freed = 0;
	for (uint32_t i = 0; i < times; i++) {
		struct held *adapter = &held[random_below(HELD)];
		uint32_t before = tails_page_count(&tails);
		struct use use;

		evict(adapter);
		while (packs && pack())
			;
		*freed += before - tails_page_count(&tails);
		load(adapter);
		use = use_of();
		sum += unused(&use, use.pages);
	}
	*freed /= times;
	return sum / times;
}

static void test_replaced(void **state)
{
	(void)state;
	begin();
	for (const struct shape *shape = shapes; shape < shapes + SHAPES; shape++)
		for (int packs = 0; packs < 2; packs++) {
			double mean, freed;
			struct use use;

			layouts_make(shape);
			for (uint32_t i = 0; i < HELD; i++)
				load(&held[i]);
			mean = replace(1000, packs, &freed);
			use = use_of();
			use_print(shape->name, HELD, &use);
			print_message("  %s: mean unused %.2f %%; an eviction frees %.2f shared pages\n",
				packs ? "packed" : "not packed", mean, freed);
			if (packs)
				assert_true(mean < 1);
			all_evict();
		}
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, end)
	const struct CMUnitTest tests[] = {
		TEST(filled),
		TEST(replaced),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
