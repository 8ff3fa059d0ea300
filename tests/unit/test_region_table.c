/*
 * test_region_table.c - the table of regions that a worker writes and others read without a lock.
 *
 * Goal: a reader without a lock gets regions as they were at one moment, or an error. No reader waits for a writer that
 * has died. No impossible region is returned, whatever the table contains.
 *
 * Method: write and read back, fill the table beyond its end, and stop a writer during a change. One thread writes
 * continuously while another reads; each region's fields are derived from one number, and all regions together cover a
 * space. Random and chosen wrong values are read.
 */
#include "shm/session_segment.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE_BYTES (UINT64_C(2) << 20)
#define BASE (UINT64_C(0x7f0000000000))

static struct region_table *table;
static struct region_writer *writer;
static _Atomic uint32_t clock_ms;

static int setup(void **state)
{
	(void)state;
	table = aligned_alloc(64, sizeof(*table));
	writer = malloc(sizeof(*writer));
	assert_non_null(table);
	assert_non_null(writer);
	memset(table, 0, sizeof(*table));
	atomic_store(&clock_ms, 1234);
	region_writer_init(writer, table, &clock_ms, PAGE_BYTES);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(table);
	free(writer);
	return 0;
}

/* Make a region whose fields are all derived from two numbers. */
static struct region_row region_of(uint32_t first, uint32_t pages)
{
	return (struct region_row){
		.address = BASE + first * PAGE_BYTES,
		.id = UINT64_C(1000000) + first,
		.fence = UINT64_C(3) << 48 | (first * 5 + pages),
		.pages = pages,
		.stream = first ^ pages << 8,
		.state = 1 + (first + pages) % (REGION_ROW_STATES - 1),
		.flags = (first ^ pages) & REGION_ROW_FLAGS,
	};
}

static bool region_fits(const struct region_row *region)
{
	struct region_row same = region_of((uint32_t)((region->address - BASE) / PAGE_BYTES), region->pages);

	same.changed_ms = region->changed_ms;
	return same.address == region->address && same.id == region->id && same.fence == region->fence &&
		same.stream == region->stream && same.state == region->state && same.flags == region->flags;
}

static void set(uint16_t *number, const struct region_row *region)
{
	region_table_begin(writer);
	region_table_set(writer, number, region);
	region_table_end(writer);
}

static void clear(uint16_t *number)
{
	region_table_begin(writer);
	region_table_clear(writer, number);
	region_table_end(writer);
}

static void test_regions_read_as_written(void **state)
{
	uint16_t first = REGION_ROW_NEW, second = REGION_ROW_NEW;
	struct region_row region = region_of(7, 3), read;
	struct region_look look;

	(void)state;
	set(&first, &region);
	region = region_of(10, 1);
	set(&second, &region);
	assert_int_equal(first, 0);
	assert_int_equal(second, 1);
	region_table_look(table, &look);
	assert_false(look.damaged);
	assert_false(look.totals_changing);
	assert_int_equal(look.used, 2);
	assert_int_equal(look.unlisted, 0);
	assert_int_equal(look.page_bytes, PAGE_BYTES);
	assert_int_equal(region_table_read(table, &look, first, &read), REGION_READ_WHOLE);
	assert_int_equal(read.address, BASE + 7 * PAGE_BYTES);
	assert_int_equal(read.pages, 3);
	assert_int_equal(read.changed_ms, 1234);
	assert_true(region_fits(&read));
	assert_true(region_table_stands(table, &look));
	region = region_of(8, 2);
	set(&first, &region);
	assert_false(region_table_stands(table, &look));
	assert_int_equal(region_table_read(table, &look, first, &read), REGION_READ_WHOLE);
	assert_int_equal(read.pages, 2);
	/* a freed number is used next, and `used` does not grow */
	clear(&first);
	assert_int_equal(first, REGION_ROW_NEW);
	assert_int_equal(region_table_read(table, &look, 0, &read), REGION_READ_NONE);
	set(&first, &region);
	assert_int_equal(first, 0);
	region_table_look(table, &look);
	assert_int_equal(look.used, 2);
}

static void test_totals(void **state)
{
	struct region_totals totals = {.reserved = 100,
		.mapped = 60,
		.live = 30,
		.reusable = 20,
		.reclaimable = 5,
		.pending_unmap = 10,
		.holes = 40,
		.last_id = 9,
		.live_regions = 3,
		.reusable_regions = 2,
		.pending_unmap_regions = 1,
		.hole_regions = 4};
	struct region_look look;

	(void)state;
	region_table_begin(writer);
	region_table_totals(writer, &totals);
	region_table_end(writer);
	region_table_look(table, &look);
	assert_false(look.totals_changing);
	assert_memory_equal(&look.totals, &totals, sizeof(totals));
}

static void test_more_regions_than_entries(void **state)
{
	enum { MORE = 5 };
	static uint16_t numbers[REGION_TABLE_ENTRIES + MORE];
	struct region_look look;
	struct region_row read;

	(void)state;
	for (uint32_t i = 0; i < REGION_TABLE_ENTRIES + MORE; i++) {
		struct region_row region = region_of(i, 1);

		numbers[i] = REGION_ROW_NEW;
		set(&numbers[i], &region);
		assert_int_equal(numbers[i], i < REGION_TABLE_ENTRIES ? i : REGION_ROW_UNLISTED);
	}
	region_table_look(table, &look);
	assert_int_equal(look.used, REGION_TABLE_ENTRIES);
	assert_int_equal(look.unlisted, MORE);
	/*
	 * a region without an entry gets one when an entry is free and the region changes; until then it is counted
	 * once
	 */
	struct region_row region = region_of(70000, 2);

	set(&numbers[REGION_TABLE_ENTRIES], &region);
	region_table_look(table, &look);
	assert_int_equal(look.unlisted, MORE);
	clear(&numbers[33]);
	set(&numbers[REGION_TABLE_ENTRIES], &region);
	assert_int_equal(numbers[REGION_TABLE_ENTRIES], 33);
	region_table_look(table, &look);
	assert_int_equal(look.unlisted, MORE - 1);
	assert_int_equal(region_table_read(table, &look, 33, &read), REGION_READ_WHOLE);
	assert_int_equal(read.pages, 2);
	/* a region that ends without ever having had an entry */
	clear(&numbers[REGION_TABLE_ENTRIES + 1]);
	assert_int_equal(numbers[REGION_TABLE_ENTRIES + 1], REGION_ROW_NEW);
	clear(&numbers[REGION_TABLE_ENTRIES + 1]); /* and one that was never entered */
	region_table_look(table, &look);
	assert_int_equal(look.unlisted, MORE - 2);
	for (uint32_t i = 0; i < REGION_TABLE_ENTRIES + MORE; i++)
		clear(&numbers[i]);
	region_table_look(table, &look);
	assert_int_equal(look.unlisted, 0);
	for (uint32_t i = 0; i < look.used; i++)
		assert_int_equal(region_table_read(table, &look, i, &read), REGION_READ_NONE);
	/* all of them can be read again */
	for (uint32_t i = 0; i < REGION_TABLE_ENTRIES; i++)
		set(&numbers[i], &region);
	region_table_look(table, &look);
	assert_int_equal(look.unlisted, 0);
}

/* One writer died within an entry, another one between two entries. */
static void test_dead_writer(void **state)
{
	uint16_t number = REGION_ROW_NEW;
	struct region_row region = region_of(7, 3), read = {.pages = 0};
	struct region_look look;

	(void)state;
	set(&number, &region);
	region_serial_begin(&table->entries[number].serial);
	atomic_store(&table->entries[number].pages, 4);
	region_table_look(table, &look);
	assert_int_equal(region_table_read(table, &look, number, &read), REGION_READ_CHANGING);
	assert_int_equal(read.pages, 4);
	/* if the writer were still alive, its next change would be complete */
	set(&number, &region);
	assert_int_equal(region_table_read(table, &look, number, &read), REGION_READ_WHOLE);
	region_table_begin(writer);
	region_table_look(table, &look);
	assert_true(look.totals_changing);
	assert_false(region_table_stands(table, &look));
	region_table_end(writer);
	region_table_look(table, &look);
	assert_false(look.totals_changing);
	assert_true(region_table_stands(table, &look));
}

/* ---- one thread writes, one reads ---- */

enum { REGIONS = 40, SPACE = 4000 };

static uint32_t firsts[REGIONS + 1]; /* the beginning of each region; the last is SPACE */
static uint16_t numbers[REGIONS];
static _Atomic uint32_t wholes;
static _Atomic bool stop;

/* Set the totals to the lowest region's pages, so that a reader can check that totals and regions match. */
static void space_totals(void)
{
	uint64_t pages = firsts[1];
	struct region_totals totals = {.reserved = pages, .mapped = pages * 3, .holes = pages * 7};

	region_table_totals(writer, &totals);
}

static void region_write(uint32_t index)
{
	struct region_row region = region_of(firsts[index], firsts[index + 1] - firsts[index]);

	region_table_set(writer, &numbers[index], &region);
}

/* Move the boundary between two regions. Occasionally end one and let it begin again. */
static void space_change(uint64_t *random)
{
	uint32_t border, room;

	*random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
	border = 1 + (uint32_t)(*random >> 33) % (REGIONS - 1);
	room = firsts[border + 1] - firsts[border - 1] - 1;
	region_table_begin(writer);
	firsts[border] = firsts[border - 1] + 1 + (uint32_t)(*random >> 40) % room;
	if (!(*random >> 60))
		region_table_clear(writer, &numbers[border]);
	region_write(border - 1);
	region_write(border);
	space_totals();
	region_table_end(writer);
}

static void *writer_thread(void *argument)
{
	uint64_t random = 1;

	(void)argument;
	while (!atomic_load(&stop)) {
		uint32_t before = atomic_load(&wholes);

		for (int i = 0; i < 200; i++)
			space_change(&random);
		/* pause until the reader has read a complete state, which it cannot do at this speed */
		while (atomic_load(&wholes) == before && !atomic_load(&stop))
			sched_yield();
	}
	return NULL;
}

/* Return true if the table did not change during the read. The regions must then cover the space. */
static bool space_read(void)
{
	uint32_t pages = 0, count = 0, lowest = 0;
	struct region_look look;
	struct region_row region;

	region_table_look(table, &look);
	assert_false(look.damaged);
	if (!look.totals_changing) {
		assert_int_equal(look.totals.mapped, look.totals.reserved * 3);
		assert_int_equal(look.totals.holes, look.totals.reserved * 7);
	}
	for (uint32_t number = 0; number < look.used; number++) {
		enum region_read read = region_table_read(table, &look, number, &region);

		assert_int_not_equal(read, REGION_READ_DAMAGED);
		if (read == REGION_READ_WHOLE && !region_fits(&region))
			fail_msg("entry %u: pages %u at %llx do not belong together", number, region.pages,
				(unsigned long long)region.address);
		if (read == REGION_READ_WHOLE) {
			pages += region.pages;
			count++;
			lowest = region.address == BASE ? region.pages : lowest;
		}
	}
	if (!region_table_stands(table, &look))
		return false;
	assert_false(look.totals_changing);
	assert_int_equal(look.totals.reserved, lowest);
	assert_int_equal(count, REGIONS);
	assert_int_equal(pages, SPACE);
	return true;
}

static void test_reader_against_writer(void **state)
{
	enum { WHOLES = 1000, CHANGED = 100 };
	uint32_t changed = 0;
	pthread_t thread;

	(void)state;
	atomic_store(&stop, false);
	atomic_store(&wholes, 0);
	for (uint32_t i = 0; i < REGIONS; i++) {
		firsts[i] = i * (SPACE / REGIONS);
		numbers[i] = REGION_ROW_NEW;
	}
	firsts[REGIONS] = SPACE;
	region_table_begin(writer);
	for (uint32_t i = 0; i < REGIONS; i++)
		region_write(i);
	space_totals();
	region_table_end(writer);
	assert_int_equal(pthread_create(&thread, NULL, writer_thread, NULL), 0);
	while (atomic_load(&wholes) < WHOLES || changed < CHANGED) {
		if (space_read())
			atomic_fetch_add(&wholes, 1);
		else
			changed++;
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
}

/* ---- wrong values ---- */

static void entry_lie(uint32_t what, uint32_t pages, uint64_t address)
{
	atomic_store(&table->entries[0].what, what);
	atomic_store(&table->entries[0].pages, pages);
	atomic_store(&table->entries[0].address, address);
}

static void test_entries_that_cannot_be(void **state)
{
	static const struct {
		uint32_t what, pages;
		uint64_t address;
		enum region_read read;
	} cases[] = {
		{REGION_ROW_FREE, 1, BASE, REGION_READ_WHOLE},
		{REGION_ROW_FREE | REGION_ROW_FLAGS << 8, 1, 0, REGION_READ_WHOLE},
		{REGION_ROW_HOLE, 1, UINT64_MAX - 4095 - PAGE_BYTES, REGION_READ_WHOLE},
		{REGION_ROW_NONE, UINT32_MAX, 1, REGION_READ_NONE},
		{REGION_ROW_NONE | REGION_ROW_RECLAIMABLE << 8, 1, BASE, REGION_READ_DAMAGED},
		{REGION_ROW_STATES, 1, BASE, REGION_READ_DAMAGED},
		{0xff, 1, BASE, REGION_READ_DAMAGED},
		{REGION_ROW_FREE | (REGION_ROW_FLAGS + 1) << 8, 1, BASE, REGION_READ_DAMAGED},
		{REGION_ROW_FREE | 1u << 31, 1, BASE, REGION_READ_DAMAGED},
		{REGION_ROW_FREE, 0, BASE, REGION_READ_DAMAGED},
		{REGION_ROW_FREE, 1, BASE + 1, REGION_READ_DAMAGED},
		{REGION_ROW_FREE, 1, UINT64_MAX - 4095, REGION_READ_DAMAGED},
		{REGION_ROW_FREE, UINT32_MAX, UINT64_MAX - 4095, REGION_READ_DAMAGED},
	};
	struct region_look look;
	struct region_row region;

	(void)state;
	atomic_store(&table->used, 1);
	region_table_look(table, &look);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		entry_lie(cases[i].what, cases[i].pages, cases[i].address);
		if (region_table_read(table, &look, 0, &region) != cases[i].read)
			fail_msg("case %zu: not %d", i, cases[i].read);
	}
}

static void test_tables_that_cannot_be(void **state)
{
	static const struct {
		uint32_t used;
		uint64_t page_bytes;
		bool damaged;
	} cases[] = {
		{0, 0, false},
		{REGION_TABLE_ENTRIES, PAGE_BYTES, false},
		{REGION_TABLE_ENTRIES + 1, PAGE_BYTES, true},
		{UINT32_MAX, PAGE_BYTES, true},
		{1, 0, true},
		{1, 4097, true},
		{1, UINT64_C(1) << 41, true},
		{1, UINT64_C(1) << 63, true},
	};
	struct region_look look;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		atomic_store(&table->used, cases[i].used);
		atomic_store(&table->page_bytes, cases[i].page_bytes);
		region_table_look(table, &look);
		if (look.damaged != cases[i].damaged || look.used != (cases[i].damaged ? 0 : cases[i].used))
			fail_msg("case %zu: damaged %d, used %u", i, look.damaged, look.used);
	}
}

static void test_random_bytes(void **state)
{
	uint64_t random = 42, *words = (uint64_t *)(void *)table, good = 0;
	struct region_look look;
	struct region_row region;

	(void)state;
	for (int round = 0; round < 50; round++) {
		for (size_t i = 0; i < sizeof(*table) / sizeof(*words); i++) {
			random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
			words[i] = random >> 60 & 1 ? random >> (random >> 56 & 63) : 0;
		}
		if (round % 2) {
			atomic_store(&table->used, (uint32_t)(random >> 40) % (REGION_TABLE_ENTRIES + 1));
			atomic_store(&table->page_bytes, PAGE_BYTES);
		}
		region_table_look(table, &look);
		assert_true(look.used <= REGION_TABLE_ENTRIES);
		for (uint32_t number = 0; number < look.used; number++) {
			enum region_read read = region_table_read(table, &look, number, &region);

			if (read != REGION_READ_WHOLE && read != REGION_READ_CHANGING)
				continue;
			good++;
			assert_true(region.state > REGION_ROW_NONE && region.state < REGION_ROW_STATES);
			assert_true(region.pages && region.flags <= REGION_ROW_FLAGS);
			assert_true(region.address + (region.pages - 1) * look.page_bytes >= region.address);
		}
	}
	assert_true(good > 0);
}

/* ---- memory ---- */

static uint64_t file_blocks(int fd)
{
	struct stat stat;

	assert_int_equal(fstat(fd, &stat), 0);
	return (uint64_t)stat.st_blocks * 512;
}

/* Unused parts take no memory, even if they are read. */
static void test_unused_costs_nothing(void **state)
{
	struct session_segment segment, reader;
	uint16_t number = REGION_ROW_NEW;
	struct region_row region = region_of(1, 1);
	struct region_look look;
	uint64_t before;
	int fd;

	(void)state;
	assert_int_equal(session_segment_create(1000, 0, 5, 42, &segment, &fd), 0);
	assert_int_equal(session_segment_open(fd, 1000, false, &reader), 0);
	before = file_blocks(fd);
	region_table_look(reader.regions, &look);
	assert_int_equal(look.used, 0);
	assert_int_equal(look.page_bytes, 0);
	assert_int_equal(file_blocks(fd), before + 4096);
	region_writer_init(writer, segment.regions, &clock_ms, PAGE_BYTES);
	set(&number, &region);
	region_table_look(reader.regions, &look);
	assert_int_equal(look.used, 1);
	assert_int_equal(region_table_read(reader.regions, &look, 0, &region), REGION_READ_WHOLE);
	assert_int_equal(file_blocks(fd), before + 4096);
	session_segment_close(&reader);
	session_segment_close(&segment);
	close(fd);
	assert_int_equal(session_segment_create(0, 0, 5, 42, &segment, &fd), 0);
	assert_null(segment.regions);
	session_segment_close(&segment);
	close(fd);
}

#define WITH_TABLE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_TABLE(test_regions_read_as_written),
		WITH_TABLE(test_totals),
		WITH_TABLE(test_more_regions_than_entries),
		WITH_TABLE(test_dead_writer),
		WITH_TABLE(test_reader_against_writer),
		WITH_TABLE(test_entries_that_cannot_be),
		WITH_TABLE(test_tables_that_cannot_be),
		WITH_TABLE(test_random_bytes),
		WITH_TABLE(test_unused_costs_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
