/*
 * test_spill_slots.c - slots of spilled pages.
 *
 * Goal: slots are taken from memory before the file, for a whole chain or not at all. A chain is complete or absent,
 * whatever the ledger contains. The ledger determines the free slots. The space of freed slots is returned to the
 * system. Slots that were never used need no memory. Method: a ledger of a few slots, and two real files; and one of as
 * many slots as a configuration permits.
 */
#include "agent/spill/spill_slots.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMORY = 4, ALL = 10, PAGES = 32, PAGE_BYTES = 64 << 10, NOW = 5000 };

static struct ledger ledger;
static int ledger_fd;
static struct spill_slots slots;
static struct spill_source sources[PAGES];
static const struct spill_name name = {.tag = 0x70000, .owner_id = 99, .session = 3};

static int setup(void **state)
{
	(void)state;
	assert_int_equal(ledger_create(PAGES, POOL_OBJECTS_LEAST, MEMORY, ALL, &ledger, &ledger_fd), 0);
	memset(&slots, 0, sizeof(slots));
	assert_int_equal(slots_open(&slots, &ledger, ledger_fd, PAGE_BYTES), 0);
	for (int i = 0; i < MOVER_TIERS; i++) {
		slots.tiers[i].fd = memfd_create("tier", MFD_CLOEXEC);
		assert_int_equal(ftruncate(slots.tiers[i].fd, slots.tiers[i].count * (off_t)PAGE_BYTES), 0);
		slots.tiers[i].punch = true;
	}
	for (uint32_t i = 0; i < PAGES; i++)
		sources[i] = (struct spill_source){.page = i, .generation = 1000 + i};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < MOVER_TIERS; i++)
		close(slots.tiers[i].fd);
	slots_close(&slots);
	ledger_close(&ledger);
	close(ledger_fd);
	return 0;
}

static int take(uint32_t pages, uint32_t *chain)
{
	return slots_take(&slots, &name, sources, pages, NOW, chain);
}

static void test_memory_first_then_file(void **state)
{
	uint32_t chain[ALL], place;

	(void)state;
	assert_int_equal(slots_room(&slots, NOW), ALL);
	assert_int_equal(take(6, chain), 0);
	for (uint32_t i = 0; i < 6; i++) {
		const struct ledger_slot *slot = &ledger.slots[chain[i]];

		assert_int_equal(
			slots_tier(&slots, chain[i], &place), i < MEMORY ? MOVER_TIER_MEMORY : MOVER_TIER_FILE);
		assert_int_equal(place, i < MEMORY ? i : i - MEMORY);
		assert_int_equal(slot->index, i);
		assert_int_equal(slot->pages, 6);
		assert_int_equal(slot->page, i);
		assert_int_equal(slot->generation, 1000 + i);
		assert_int_equal(slot->owner_id, 99);
		assert_int_equal(slot->session, 3);
	}
	assert_int_equal(slots_used(&slots, MOVER_TIER_MEMORY), 4);
	assert_int_equal(slots_used(&slots, MOVER_TIER_FILE), 2);
	slots_put(&slots, chain, 6);
	assert_int_equal(slots_room(&slots, NOW), ALL);
}

static void test_all_or_nothing(void **state)
{
	uint32_t chain[ALL + 1], more[ALL];

	(void)state;
	assert_int_equal(take(ALL + 1, chain), -ENOSPC);
	assert_int_equal(take(8, chain), 0);
	assert_int_equal(take(3, more), -ENOSPC);
	assert_int_equal(slots_room(&slots, NOW), 2);
	assert_int_equal(take(2, more), 0);
	assert_int_equal(take(1, more), -ENOSPC);
}

static void test_a_tier_rests(void **state)
{
	uint32_t chain[ALL], place;

	(void)state;
	slots.tiers[MOVER_TIER_MEMORY].rest_ms = NOW + 1;
	assert_int_equal(slots_room(&slots, NOW), ALL - MEMORY);
	assert_int_equal(slots_room(&slots, NOW + 1), ALL);
	assert_int_equal(take(ALL - MEMORY + 1, chain), -ENOSPC);
	assert_int_equal(take(1, chain), 0);
	assert_int_equal(slots_tier(&slots, chain[0], &place), MOVER_TIER_FILE);
}

static void test_chains_are_whole_or_none(void **state)
{
	uint32_t chain[ALL], found[PAGES];
	struct ledger_slot *slot;

	(void)state;
	assert_int_equal(take(5, chain), 0);
	for (uint32_t head = 0; head < ALL; head++)
		assert_int_equal(slots_chain(&ledger, head, found), head == chain[0]);
	assert_true(slots_chain(&ledger, chain[0], found));
	assert_memory_equal(chain, found, 5 * sizeof(*chain));
	slot = &ledger.slots[chain[2]];
	for (int broken = 0; broken < 6; broken++) {
		struct ledger_slot was = *slot;

		if (broken == 0)
			slot->tag = 0;
		else if (broken == 1)
			slot->next = 0;
		else if (broken == 2)
			slot->next = ALL + 1;
		else if (broken == 3)
			slot->index = 1;
		else if (broken == 4)
			slot->pages = 4;
		else
			slot->next = chain[0] + 1; /* a cycle */
		assert_false(slots_chain(&ledger, chain[0], found));
		*slot = was;
	}
	ledger.slots[chain[0]].pages = 0;
	assert_false(slots_chain(&ledger, chain[0], found));
	ledger.slots[chain[0]].pages = PAGES + 1;
	assert_false(slots_chain(&ledger, chain[0], found));
}

static void test_the_ledger_determines_free_slots(void **state)
{
	uint32_t chain[ALL];

	(void)state;
	assert_int_equal(take(6, chain), 0);
	slots_close(&slots);
	assert_int_equal(slots_open(&slots, &ledger, ledger_fd, PAGE_BYTES), 0);
	assert_int_equal(slots_used(&slots, MOVER_TIER_MEMORY), 4);
	assert_int_equal(slots_used(&slots, MOVER_TIER_FILE), 2);
}

/* Return the memory that the ledger uses, in KiB. */
static long ledger_kib(void)
{
	struct stat stat;

	assert_int_equal(fstat(ledger_fd, &stat), 0);
	return stat.st_blocks / 2;
}

/* Each tier has 64 TiB in the smallest pages, whose slots fill 8 GiB of the ledger. */
static void test_unused_slots_need_no_memory(void **state)
{
	enum { HUGE = 1 << 27, SOME = PAGES };
	uint32_t chain[SOME], more[SOME], place, count = 0;
	long before;

	(void)state;
	assert_int_equal(ledger_create(PAGES, POOL_OBJECTS_LEAST, HUGE, 2 * HUGE, &ledger, &ledger_fd), 0);
	memset(&slots, 0, sizeof(slots));
	before = ledger_kib();
	for (int round = 0; round < 3; round++) {
		assert_int_equal(slots_open(&slots, &ledger, ledger_fd, 512 << 10), 0);
		slots.tiers[MOVER_TIER_FILE].rest_ms = 0;
		assert_int_equal(slots_used(&slots, MOVER_TIER_MEMORY), round * SOME);
		assert_int_equal(slots_used(&slots, MOVER_TIER_FILE), round * SOME);
		assert_int_equal(slots_room(&slots, NOW), 2 * (HUGE - round * SOME));
		for (uint32_t slot = slots_begun(&slots, 0); slot < 2 * HUGE; slot = slots_begun(&slots, slot + 1))
			count++;
		assert_int_equal(take(SOME, chain), 0);
		assert_int_equal(slots_take_file(&slots, &name, chain, SOME, NOW, more), 0);
		for (uint32_t i = 0; i < SOME; i++) {
			assert_int_equal(slots_tier(&slots, chain[i], &place), MOVER_TIER_MEMORY);
			assert_int_equal(slots_tier(&slots, more[i], &place), MOVER_TIER_FILE);
			assert_int_equal(place, (uint32_t)round * SOME + i);
		}
		slots_close(&slots);
	}
	/* A huge page of the ledger has 32,768 slots. */
	assert_true(count <= 2 * 2 * 32768);
	assert_true(ledger_kib() - before <= 4 * 2048);
	ledger_close(&ledger);
	close(ledger_fd);
}

static blkcnt_t blocks_of(enum mover_tier tier)
{
	struct stat stat;

	assert_int_equal(fstat(slots.tiers[tier].fd, &stat), 0);
	return stat.st_blocks;
}

/* Tidy at the times that slots_tidy() returns, until nothing is left. Return the time that has passed. */
static uint64_t tidy(uint64_t *now)
{
	uint64_t begin = *now;
	uint32_t again;

	while ((again = slots_tidy(&slots, *now)))
		*now += again;
	return *now - begin;
}

static void test_space_is_freed(void **state)
{
	static char bytes[PAGE_BYTES];
	uint32_t chain[ALL], again[1], place;
	uint64_t now = NOW, took;

	(void)state;
	memset(bytes, 1, sizeof(bytes));
	assert_int_equal(take(ALL, chain), 0);
	for (uint32_t i = 0; i < ALL; i++) {
		enum mover_tier tier = slots_tier(&slots, chain[i], &place);

		assert_int_equal(
			pwrite(slots.tiers[tier].fd, bytes, PAGE_BYTES, place * (off_t)PAGE_BYTES), PAGE_BYTES);
	}
	slots_put(&slots, chain, ALL);
	/* A slot is used again before its space is freed. */
	assert_int_equal(take(1, again), 0);
	took = tidy(&now);
	assert_in_range(took, 1000, 2000);
	assert_int_equal(blocks_of(MOVER_TIER_MEMORY), PAGE_BYTES / 512);
	assert_int_equal(blocks_of(MOVER_TIER_FILE), 0);
	slots_put(&slots, again, 1);
	assert_in_range(tidy(&now), 1000, 2000);
	assert_int_equal(blocks_of(MOVER_TIER_MEMORY), 0);
	/* A slot that is used at least once per second keeps its space. */
	for (int i = 0; i < 10; i++, now += 900) {
		assert_int_equal(take(1, again), 0);
		assert_int_equal(pwrite(slots.tiers[MOVER_TIER_MEMORY].fd, bytes, PAGE_BYTES, again[0] * PAGE_BYTES),
			PAGE_BYTES);
		slots_put(&slots, again, 1);
		assert_int_not_equal(slots_tidy(&slots, now), 0);
		assert_int_equal(blocks_of(MOVER_TIER_MEMORY), PAGE_BYTES / 512);
	}
	tidy(&now);
	assert_int_equal(blocks_of(MOVER_TIER_MEMORY), 0);
	/* After a restart the state of free slots is unknown, so all of them are examined. */
	assert_int_equal(pwrite(slots.tiers[MOVER_TIER_FILE].fd, bytes, PAGE_BYTES, 0), PAGE_BYTES);
	slots_soil(&slots);
	tidy(&now);
	assert_int_equal(blocks_of(MOVER_TIER_FILE), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_memory_first_then_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_or_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_tier_rests, setup, teardown),
		cmocka_unit_test_setup_teardown(test_chains_are_whole_or_none, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_ledger_determines_free_slots, setup, teardown),
		cmocka_unit_test(test_unused_slots_need_no_memory),
		cmocka_unit_test_setup_teardown(test_space_is_freed, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
