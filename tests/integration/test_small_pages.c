/*
 * test_small_pages.c - requests in pools with several pages in each driver handle.
 *
 * Goal: a request succeeds whenever the free pages can be mapped side by side, although handles are mapped as a whole:
 * the pages behind a used page of a handle, whole handles, and the pages before a used page of another one. Otherwise
 * it is refused, with the reason. Eviction frees whole handles.
 *
 * Method: a pool of 64 pages with 4 pages in each handle, on which each test makes a pattern of used and free pages.
 * The contents of all blocks are verified after each step.
 *
 * Requirements: U10.
 */
#include "tests/integration/spill_view.h"
#include "tests/lib/temporary.h"

#include <errno.h>

enum { PAGE_BYTES = TEST_PAGE_BYTES, PER_HANDLE = 4, HANDLES = PAGES / PER_HANDLE };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const fours[] = {"--pool", POOL ",handle_size=" TEST_SIZE_4_PAGES, CALM, NULL};
static const char *const fours_spilling[] = {
	"--pool", POOL ",handle_size=" TEST_SIZE_4_PAGES ",spill_memory=" TEST_SIZE_64_PAGES, CALM, NULL};

static struct gpool *pool, *other;

static volatile uint64_t *words_of(const struct gpool_block *block)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (volatile uint64_t *)(uintptr_t)address;
}

/* Write the first and the last word of each page. */
static void fill_at(volatile uint64_t *words, uint32_t pages, uint64_t content)
{
	for (uint64_t page = 0; page < pages; page++)
		words[page * PAGE_BYTES / 8] = words[(page + 1) * PAGE_BYTES / 8 - 1] = content << 32 | page;
}

static uint32_t wrong_at(const volatile uint64_t *words, uint32_t pages, uint64_t content)
{
	uint32_t found = 0;

	for (uint64_t page = 0; page < pages; page++)
		found += words[page * PAGE_BYTES / 8] != (content << 32 | page) ||
			words[(page + 1) * PAGE_BYTES / 8 - 1] != (content << 32 | page);
	return found;
}

static struct gpool_block filled(uint32_t pages, uint64_t content)
{
	struct gpool_block block = alloc(pool, pages);

	fill_at(words_of(&block), pages, content);
	return block;
}

static uint32_t free_pages(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_FREE]);
}

/* ---- a pattern of used pages ---- */

static struct gpool_block singles[PAGES]; /* by page; page_count 0: not used */

/* Allocate all pages as blocks of one page, then free those whose character is '.'; each character is a page. */
static void pattern(const char *handles[HANDLES])
{
	for (uint32_t i = 0; i < PAGES; i++) {
		struct gpool_block block = filled(1, 0);

		singles[block.page] = block;
	}
	for (uint32_t page = 0; page < PAGES; page++) {
		const char *handle = handles[page / PER_HANDLE] ? handles[page / PER_HANDLE] : "####";

		fill_at(words_of(&singles[page]), 1, 1000 + page);
		if (handle[page % PER_HANDLE] == '.') {
			assert_int_equal(gpool_free(pool, &singles[page]), 0);
			singles[page].page_count = 0;
		}
	}
}

static void verify_singles(void)
{
	for (uint32_t page = 0; page < PAGES; page++)
		if (singles[page].page_count)
			assert_int_equal(wrong_at(words_of(&singles[page]), 1, 1000 + page), 0);
}

static int begin(void **state)
{
	start(*state ? *state : fours);
	pool = open_worker();
	other = open_worker();
	memset(singles, 0, sizeof(singles));
	return 0;
}

static int end(void **state)
{
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
	return stop(state);
}

/* ---- blocks ---- */

static void expect_pages(const struct gpool_block *block, const uint32_t *pages, uint32_t count)
{
	uint32_t run = block->page, at = 0;

	for (;;) {
		const struct block_entry *entry = block_entry(pool, run);

		for (uint32_t i = 0; i < entry->page_count; i++)
			assert_true(at < count && pages[at++] == run + i);
		if (!entry->next)
			break;
		run = entry->next - 1;
	}
	assert_int_equal(at, count);
}

static void test_tail_handles_and_front(void **state)
{
	const char *handles[HANDLES] = {[1] = "##..", [3] = "....", [6] = ".#..", [7] = "...#", [9] = "...."};
	const uint32_t pages[] = {6, 7, 12, 13, 14, 15, 36, 37, 38, 39, 28, 29, 30};
	struct gpool_block block;
	uint64_t address;

	(void)state;
	pattern(handles);
	block = filled(13, 1);
	expect_pages(&block, pages, 13);
	verify_singles();
	assert_int_equal(wrong_at(words_of(&block), 13, 1), 0);
	/* The block keeps its addresses and content without a pin. */
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(wrong_at(words_of(&block), 13, 1), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), -ESTALE);
	verify_singles();
}

/* The end and the start of the same handle, which is mapped twice. */
static void test_one_handle_twice(void **state)
{
	const char *handles[HANDLES] = {[5] = ".#.."};
	const uint32_t pages[] = {22, 23, 20};
	struct gpool_block block;

	(void)state;
	pattern(handles);
	block = filled(3, 1);
	expect_pages(&block, pages, 3);
	fill_at(words_of(&singles[21]), 1, 1021);
	assert_int_equal(wrong_at(words_of(&block), 3, 1), 0);
	verify_singles();
	assert_int_equal(gpool_free(pool, &block), 0);
}

static void test_whole_handles(void **state)
{
	const char *handles[HANDLES] = {[0] = "....", [2] = "....", [4] = "....", [6] = "....", [8] = "...."};
	struct gpool_block block, more;

	(void)state;
	pattern(handles);
	block = filled(17, 1);
	verify_singles();
	more = filled(3, 2);
	assert_int_equal(wrong_at(words_of(&block), 17, 1), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	block = filled(16, 3);
	assert_int_equal(wrong_at(words_of(&more), 3, 2), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &more), 0);
	verify_singles();
}

/* What the driver does not permit: the free pages are between used ones. Single pages are available. */
static void test_refusal(void **state)
{
	const char *handles[HANDLES] = {[1] = "#.##", [3] = "##.#", [6] = "#.##", [7] = "#..#"};
	struct gpool_oom_info info = {.size = sizeof(info)};
	struct gpool_block block;
	const char *text;

	(void)state;
	pattern(handles);
	assert_int_equal(gpool_alloc(pool, 3, NULL, &block), -ENOSPC);
	text = gpool_last_error(-ENOSPC);
	assert_non_null(strstr(text, "3 needed, 5 free, 59 pinned"));
	assert_non_null(strstr(text, "handles of 4 pages"));
	assert_int_equal(gpool_oom_info(pool, &info), 0);
	assert_int_equal(info.free, 5);
	assert_int_equal(gpool_alloc(pool, 2, NULL, &block), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), -ENOSPC);
	assert_null(strstr(gpool_last_error(-ENOSPC), "handles of 4 pages"));
	verify_singles();
}

/* Idle pages of another session: it keeps the pages that it has freed in its lease. */
static void test_idle_pages_of_another_session(void **state)
{
	const char *handles[HANDLES] = {[1] = "##..", [3] = "....", [6] = "...#"};
	struct gpool *first = pool;
	struct gpool_block block;

	(void)state;
	pattern(handles);
	pool = other;
	block = filled(9, 1);
	assert_int_equal(wrong_at(words_of(&block), 9, 1), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	pool = first;
	verify_singles();
}

/* ---- ranges ---- */

static void test_ranges(void **state)
{
	const char *handles[HANDLES] = {[1] = "....", [3] = "....", [6] = "...#", [9] = "...."};
	struct gpool_range *range, *elastic;
	uint64_t address;

	(void)state;
	pattern(handles);
	assert_int_equal(gpool_range_create(pool, 11, NULL, &range), 0);
	assert_int_equal(gpool_range_address(range, &address), 0);
	fill_at((volatile uint64_t *)(uintptr_t)address, 11, 1);
	verify_singles();
	assert_int_equal(wrong_at((volatile uint64_t *)(uintptr_t)address, 11, 1), 0);
	/* One whole handle is left. */
	assert_int_equal(gpool_range_reserve(pool, PAGES, NULL, &elastic), 0);
	assert_int_equal(gpool_range_commit(elastic, 0, 8, 0), -ENOSPC);
	assert_int_equal(gpool_range_commit(elastic, 8, 4, 0), 0);
	assert_int_equal(gpool_range_commit(elastic, 4, 4, 0), -ENOSPC);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_range_commit(elastic, 0, 8, 0), 0);
	assert_int_equal(gpool_range_destroy(elastic), 0);
	verify_singles();
}

/* A request for several handles that waits gets handles that are not adjacent. */
static void test_wait(void **state)
{
	const char *handles[HANDLES] = {[1] = "....", [3] = "...."};
	struct gpool_range *range;

	(void)state;
	pattern(handles);
	assert_int_equal(gpool_range_reserve(other, PAGES, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 8, -1), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	verify_singles();
}

/* ---- content ---- */

/* Eviction frees whole handles, among them handles of scattered blocks. */
static void test_eviction(void **state)
{
	const char *handles[HANDLES] = {
		[1] = "....", [3] = "....", [6] = "....", [9] = "##..", [11] = "....", [13] = "...."};
	struct gpool_block scattered, small, block;
	uint64_t address;

	(void)state;
	pattern(handles);
	scattered = filled(12, 1);
	small = filled(8, 2);
	assert_int_equal(gpool_unpin(pool, &small), 0);
	/* The smallest loss that suffices: 4 pages of the unpinned block, not of the pinned one. */
	block = filled(4, 3);
	assert_int_equal(gpool_address(pool, &small, &address), -ESTALE);
	assert_int_equal(wrong_at(words_of(&scattered), 12, 1), 0);
	assert_int_equal(gpool_unpin(pool, &scattered), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	/* Both the free handles and those of the scattered block are needed. */
	block = filled(20, 4);
	assert_int_equal(gpool_address(pool, &scattered, &address), -ESTALE);
	assert_int_equal(wrong_at(words_of(&block), 20, 4), 0);
	verify_singles();
	assert_int_equal(gpool_free(pool, &block), 0);
}

static void test_spill_and_restore(void **state)
{
	const char *handles[HANDLES] = {[1] = "##..", [3] = "....", [6] = "...#", [9] = "...."};
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	(void)state;
	options.flags = GPOOL_ALLOC_SPILL;
	assert_int_equal(gpool_alloc(pool, 13, &options, &block), 0);
	fill_at(words_of(&block), 13, 7);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(spill_now(pool, &block), 0);
	pattern(handles);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(wrong_at(words_of(&block), 13, 7), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(spill_now(pool, &block), 0);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(wrong_at(words_of(&block), 13, 7), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	verify_singles();
}

static void test_objects(void **state)
{
	const char *handles[HANDLES] = {[1] = "##..", [3] = "....", [6] = "...#", [9] = "....", [11] = "..##"};
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object, *opened;
	uint64_t version, address, bytes;
	uint32_t index;

	(void)state;
	pattern(handles);
	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	assert_int_equal(gpool_object_create(pool, "weights", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 13, NULL, &index), 0);
	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	assert_int_equal(bytes, 13 * PAGE_BYTES);
	fill_at((volatile uint64_t *)(uintptr_t)address, 13, 5);
	assert_int_equal(gpool_object_alloc(object, 2, NULL, &index), 0);
	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	fill_at((volatile uint64_t *)(uintptr_t)address, 2, 6);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	verify_singles();
	assert_int_equal(gpool_object_open(other, "weights", NULL, &opened), 0);
	assert_int_equal(gpool_object_address(opened, 0, &address, &bytes), 0);
	assert_int_equal(wrong_at((volatile uint64_t *)(uintptr_t)address, 13, 5), 0);
	assert_int_equal(gpool_object_address(opened, 1, &address, &bytes), 0);
	assert_int_equal(wrong_at((volatile uint64_t *)(uintptr_t)address, 2, 6), 0);
	assert_int_equal(gpool_object_close(opened), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_delete(pool, "weights", version), 0);
	/* The pages beside those of the object are still writable. */
	for (uint32_t page = 0; page < PAGES; page++)
		if (singles[page].page_count)
			fill_at(words_of(&singles[page]), 1, 1000 + page);
	verify_singles();
}

static void test_sleep_and_wake(void **state)
{
	const char *handles[HANDLES] = {[1] = "....", [3] = "....", [6] = "...#", [9] = "...."};
	struct gpool_range *ranges[2];
	volatile uint64_t *at[2];
	uint64_t address;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(gpool_range_create(other, i ? 3 : 6, NULL, &ranges[i]), 0);
		assert_int_equal(gpool_range_address(ranges[i], &address), 0);
		at[i] = (volatile uint64_t *)(uintptr_t)address;
		fill_at(at[i], i ? 3 : 6, 20 + i);
	}
	assert_int_equal(gpool_sleep(other, 0), 0);
	pattern(handles);
	assert_int_equal(gpool_wake(other, ANSWER_MS), 0);
	assert_int_equal(wrong_at(at[0], 6, 20), 0);
	assert_int_equal(wrong_at(at[1], 3, 21), 0);
	fill_at(at[0], 6, 22);
	fill_at(at[1], 3, 23);
	assert_int_equal(wrong_at(at[0], 6, 22), 0);
	verify_singles();
}

/* ---- tenants ---- */

/* The tenant `rest` has `pool`, and `sure`, whose minimum is 8 pages, has `other`. */
static int begin_tenants(void **state)
{
	char path[64];
	const char *arguments[] = {"--config", path, CALM, NULL};
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(
		fputs("pools = ( { name = \"p0\"; backend = \"host\"; size = \"64 pages\"; page_size = "
		      "\"" TEST_PAGE_SIZE "\"; handle_size = \"" TEST_SIZE_4_PAGES "\"; reserved = \"0 pages\"; } );\n"
		      "tenants = ( { name = \"sure\"; users = [ \"1\" ]; minimum = \"8 pages\"; }, { name = "
		      "\"rest\"; priority = 90; } );\n",
			file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	unlink(path);
	pool = open_as(0, NULL, "rest");
	other = open_as(0, NULL, "sure");
	memset(singles, 0, sizeof(singles));
	return 0;
}

/*
 * The oldest content, which is in the first handle, is a block of 4 pages of a tenant that may lose only 3. Another
 * handle is evicted.
 */
static void test_a_block_that_its_tenant_keeps(void **state)
{
	struct gpool_block kept, own, block;
	uint64_t address;

	(void)state;
	kept = alloc(other, 4);
	assert_int_equal(kept.page, 0);
	for (int i = 0; i < 7; i++)
		alloc(other, 1);
	assert_int_equal(gpool_unpin(other, &kept), 0);
	alloc(pool, 1);
	own = alloc(pool, 4);
	assert_int_equal(own.page, 12);
	alloc(pool, PAGES - 16);
	assert_int_equal(gpool_unpin(pool, &own), 0);
	assert_int_equal(gpool_alloc(pool, 4, NULL, &block), 0);
	assert_int_equal(block.page, 12);
	assert_int_equal(gpool_address(pool, &own, &address), -ESTALE);
	assert_int_equal(gpool_address(other, &kept, &address), 0);
}

/* One page more would complete the three handles, but 8 pages are kept for the other tenant. */
static void test_a_refused_request_evicts_nothing(void **state)
{
	struct gpool_block block;

	(void)state;
	for (uint32_t page = 0; page < PAGES - 8; page++) {
		singles[page] = filled(1, 1000 + page);
		assert_int_equal(singles[page].page, page);
	}
	for (uint32_t page = 4; page < 7; page++) {
		assert_int_equal(gpool_free(pool, &singles[page]), 0);
		singles[page].page_count = 0;
	}
	assert_int_equal(gpool_unpin(pool, &singles[7]), 0);
	assert_int_equal(gpool_alloc(pool, 12, NULL, &block), -ENOSPC);
	assert_int_equal(gpool_pin(pool, &singles[7]), 0);
	for (uint32_t page = 0; page < PAGES - 8; page++)
		if (singles[page].page_count)
			assert_int_equal(wrong_at(words_of(&singles[page]), 1, 1000 + page), 0);
}

/* ---- random requests ---- */

/* Return the number of handles whose pages are all free, according to the blocks. */
static uint32_t handles_unused(const struct gpool_block *blocks, uint32_t count)
{
	bool used[PAGES] = {false};
	uint32_t found = 0;

	for (uint32_t i = 0; i < count; i++)
		for (uint32_t run = blocks[i].page + 1; run;) {
			const struct block_entry *entry = block_entry(pool, run - 1);

			for (uint32_t page = run - 1; page < run - 1 + entry->page_count; page++) {
				assert_false(used[page]);
				used[page] = true;
			}
			run = blocks[i].tag & BLOCK_SCATTERED ? entry->next : 0;
		}
	for (uint32_t handle = 0; handle < HANDLES; handle++)
		found += !used[handle * 4] && !used[handle * 4 + 1] && !used[handle * 4 + 2] && !used[handle * 4 + 3];
	return found;
}

static void test_random_requests(void **state)
{
	struct gpool_block blocks[PAGES];
	uint64_t contents[PAGES], content = 1;
	uint32_t count = 0;

	(void)state;
	srandom(17);
	for (int step = 0; step < 3000; step++) {
		uint32_t pages = 1 + (uint32_t)random() % (step % 7 ? 6 : 24);
		struct gpool_block block;
		int error;

		if (random() % 2 && count) {
			uint32_t at = (uint32_t)random() % count;

			assert_int_equal(wrong_at(words_of(&blocks[at]), blocks[at].page_count, contents[at]), 0);
			assert_int_equal(gpool_free(pool, &blocks[at]), 0);
			blocks[at] = blocks[--count];
			contents[at] = contents[count];
			continue;
		}
		error = gpool_alloc(pool, pages, NULL, &block);
		if (error) {
			assert_int_equal(error, -ENOSPC);
			assert_true(handles_unused(blocks, count) < (pages + PER_HANDLE - 1) / PER_HANDLE);
			continue;
		}
		fill_at(words_of(&block), pages, content);
		blocks[count] = block;
		contents[count++] = content++;
	}
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(wrong_at(words_of(&blocks[i]), blocks[i].page_count, contents[i]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_tail_handles_and_front, begin, end),
		cmocka_unit_test_setup_teardown(test_one_handle_twice, begin, end),
		cmocka_unit_test_setup_teardown(test_whole_handles, begin, end),
		cmocka_unit_test_setup_teardown(test_refusal, begin, end),
		cmocka_unit_test_setup_teardown(test_idle_pages_of_another_session, begin, end),
		cmocka_unit_test_setup_teardown(test_ranges, begin, end),
		cmocka_unit_test_setup_teardown(test_wait, begin, end),
		cmocka_unit_test_setup_teardown(test_eviction, begin, end),
		{"test_spill_and_restore", test_spill_and_restore, begin, end, (void *)(uintptr_t)fours_spilling},
		cmocka_unit_test_setup_teardown(test_objects, begin, end),
		{"test_sleep_and_wake", test_sleep_and_wake, begin, end, (void *)(uintptr_t)fours_spilling},
		cmocka_unit_test_setup_teardown(test_a_block_that_its_tenant_keeps, begin_tenants, end),
		cmocka_unit_test_setup_teardown(test_a_refused_request_evicts_nothing, begin_tenants, end),
		cmocka_unit_test_setup_teardown(test_random_requests, begin, end),
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
