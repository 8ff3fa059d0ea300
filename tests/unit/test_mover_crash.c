/*
 * test_mover_crash.c - the death of a mover or an agent during its work does no harm.
 *
 * Goal: whichever process is killed at whatever time, every job is done, once or twice, in an order that leaves the
 * right bytes. Results are neither lost nor reported before their bytes are written. A mover keeps no resources of the
 * keeper that it does not need.
 *
 * Method: streams of jobs that depend on and revert each other. Processes are killed with SIGKILL after a random number
 * of results, many times (mover_rig.h).
 *
 * Requirements: S3.
 */
#include "tests/lib/scale.h"
#include "tests/unit/mover_rig.h"

#include <dirent.h>
#include <time.h>

static uint64_t random_state;

static uint32_t random_below(uint32_t bound)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 32) % bound;
}

static void random_seed(void)
{
	const char *seed = getenv("GPOOL_TEST_SEED");

	random_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
	print_message("seed %llu\n", (unsigned long long)random_state);
	random_state |= 1;
}

static int rounds(int count)
{
	return (int)test_scaled((uint32_t)count);
}

static int setup(void **state)
{
	*state = rig_new(false, true);
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

/*
 * Submit a spill, a scrub and a load of each page, several times. A load succeeds only if exactly the scrubs before it
 * were done.
 */
static void stream_submit(struct rig *rig)
{
	uint64_t tag = 0;

	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t page = 0; page < PAGES; page++) {
			enum mover_tier tier = (page + round) % 2 ? MOVER_TIER_MEMORY : MOVER_TIER_FILE;

			rig_submit(rig, MOVER_SPILL, page, tier, page, 0, tag++);
			rig_submit(rig, MOVER_SCRUB, page, 0, 0, 0, tag++);
			rig_submit(rig, MOVER_LOAD, page, tier, page, pattern_checksum(page), tag++);
		}
	}
}

static void stream_check(struct rig *rig, uint32_t jobs)
{
	for (uint32_t i = 0; i < jobs; i++) {
		assert_true(rig->have[i]);
		assert_int_equal(rig->errors[i], 0);
		if (i % 3 != 1)
			assert_true(rig->checksums[i] == pattern_checksum(i / 3 % PAGES));
	}
	for (uint32_t page = 0; page < PAGES; page++)
		assert_true(pattern_is(rig_page(rig, page), page));
}

/* Simulate the agent's death: its private state is lost, and the next agent uses the ring. */
static void agent_restart(struct rig *rig)
{
	uint32_t in_flight = rig->queue.in_flight;

	mover_queue_init(&rig->queue, rig->ring, rig->pool.work_bell, rig->pool.done_bell);
	assert_int_equal(mover_rescan(&rig->queue), in_flight);
}

static void killed_many_times(struct rig *rig)
{
	enum { JOBS = 2 * 3 * PAGES };
	uint32_t kills = 0;

	for (int round = rounds(3); round; round--) {
		memset(rig->have, 0, sizeof(rig->have));
		rig->collected = 0;
		stream_submit(rig);
		while (rig->collected < JOBS) {
			uint32_t left;

			rig_start(rig);
			left = JOBS - rig->collected;
			if (left)
				rig_collect(rig, random_below(left < 12 ? left + 1 : 12));
			rig_stop(rig, SIGKILL);
			kills++;
			if (random_below(4) == 0)
				agent_restart(rig);
		}
		stream_check(rig, JOBS);
	}
	print_message("%u movers killed\n", kills);
}

static void test_killed_in_the_middle(void **state)
{
	killed_many_times(*state);
}

static void test_killed_in_the_middle_by_threads(void **state)
{
	setenv("GPOOL_NO_URING", "1", 1);
	killed_many_times(*state);
}

static void test_killed_at_its_start(void **state)
{
	struct rig *rig = *state;

	stream_submit(rig);
	for (int i = rounds(30); i; i--) {
		rig_fork(rig);
		for (uint32_t spin = random_below(3000000); spin; spin--)
			__asm__ volatile("" ::: "memory");
		rig_stop(rig, SIGKILL);
	}
	rig_start(rig);
	if (rig->collected < 2 * 3 * PAGES)
		rig_collect(rig, 2 * 3 * PAGES - rig->collected);
	stream_check(rig, 2 * 3 * PAGES);
}

static void test_done_is_not_repeated(void **state)
{
	struct rig *rig = *state;

	rig_start(rig);
	rig_submit(rig, MOVER_SPILL, 3, MOVER_TIER_MEMORY, 5, 0, 1);
	while (atomic_load(&rig->ring->jobs[0].state) != MOVER_DONE) {
		uint64_t rung;

		rig_wait_bell(rig);
		if (read(rig->pool.done_bell, &rung, sizeof(rung)) < 0)
			assert_int_equal(errno, EAGAIN);
	}
	rig_stop(rig, SIGKILL);
	pattern_write(rig_page(rig, 3), 99);
	rig_start(rig);
	if (!rig->have[1])
		rig_collect(rig, 1);
	assert_int_equal(rig->errors[1], 0);
	assert_true(rig->checksums[1] == pattern_checksum(3));
	assert_int_equal(rig_do(rig, MOVER_SCRUB, 9, 0, 0, 0), 0);
	assert_true(pattern_is(rig_slot(rig, 5), 3));
}

static void test_ended_on_request(void **state)
{
	struct rig *rig = *state;

	rig_start(rig);
	assert_int_equal(rig_stop(rig, SIGTERM), 0); /* while idle */
	stream_submit(rig);
	for (int i = 0; i < 5; i++) {
		rig_start(rig);
		assert_int_equal(rig_stop(rig, SIGTERM), 0); /* while working */
		for (uint32_t slot = 0; slot < MOVER_JOBS; slot++)
			assert_int_not_equal(atomic_load(&rig->ring->jobs[slot].state), MOVER_TAKEN);
	}
	rig_start(rig);
	if (rig->collected < 2 * 3 * PAGES)
		rig_collect(rig, 2 * 3 * PAGES - rig->collected);
	stream_check(rig, 2 * 3 * PAGES);
}

static void collect_and_order(void *context, const struct mover_result *result)
{
	struct rig *rig = context;
	struct mover_order next = result->order;

	rig_result(rig, result);
	next.kind = next.kind == MOVER_SPILL ? MOVER_LOAD : MOVER_SPILL;
	next.tag++;
	if (next.tag < 400)
		assert_int_equal(mover_submit(&rig->queue, &next), 0);
}

/* A result's callback may submit the next job. */
static void test_orders_from_results(void **state)
{
	struct rig *rig = *state;

	rig_start(rig);
	for (uint64_t chain = 0; chain < 4; chain++)
		rig_submit(rig, MOVER_SPILL, (uint32_t)chain, chain % 2, (uint32_t)chain, 0, chain * 100);
	while (!rig->have[399] || rig->queue.in_flight) {
		rig_wait_bell(rig);
		mover_collect(&rig->queue, collect_and_order, rig);
	}
	for (uint32_t tag = 300; tag < 400; tag++)
		assert_int_equal(rig->errors[tag], 0);
}

static bool mover_has_open(struct rig *rig, const char *what)
{
	char folder[64], path[384], target[256];
	bool found = false;
	struct dirent *entry;
	DIR *dir;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", rig->mover);
	dir = opendir(folder);
	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		ssize_t length;

		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		target[length < 0 ? 0 : length] = '\0';
		found |= strstr(target, what) != NULL;
	}
	closedir(dir);
	return found;
}

static bool mover_has_mapped(struct rig *rig, const char *what)
{
	char path[64], line[512];
	bool found = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/maps", rig->mover);
	file = fopen(path, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		found |= strstr(line, what) != NULL;
	fclose(file);
	return found;
}

static void test_drops_foreign_jobs(void **state)
{
	struct rig *rig = *state;
	int stranger = memfd_create("gpool-test-stranger", 0);

	assert_true(stranger >= 0);
	rig_start(rig);
	close(stranger);
	assert_false(mover_has_open(rig, "gpool-test-stranger"));
	assert_false(mover_has_open(rig, "gpool-pool"));
	assert_false(mover_has_open(rig, "gpool-ledger"));
	assert_false(mover_has_mapped(rig, "gpool-pool"));
	assert_false(mover_has_mapped(rig, "gpool-ledger"));
	assert_true(mover_has_mapped(rig, "gpool-test-tier"));
}

static void test_wild_ring(void **state)
{
	struct rig *rig = *state;

	/* Slots in invalid states, or in states that the agent has not set, do not affect the other jobs. */
	atomic_store(&rig->ring->jobs[200].state, 77);
	atomic_store(&rig->ring->jobs[201].state, MOVER_DONE);
	rig_start(rig);
	assert_int_equal(rig_do(rig, MOVER_COPY, 1, 0, 2, 0), 0);
	assert_int_equal(rig->collected, 1);
	assert_true(pattern_is(rig_page(rig, 2), 1));
	/* A faulty mover returns an invalid result for a job that was not submitted. */
	rig_stop(rig, SIGKILL);
	rig_submit(rig, MOVER_SCRUB, 1, 0, 0, 0, 5);
	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++) {
		if (!mover_order_of(&rig->queue, slot))
			continue;
		rig->ring->jobs[slot].error = 12345;
		rig->ring->jobs[slot].page = 9999;
		atomic_store(&rig->ring->jobs[slot].state, MOVER_DONE);
	}
	mover_collect(&rig->queue, rig_result, rig);
	assert_true(rig->have[5]);
	assert_int_equal(rig->errors[5], -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_killed_in_the_middle, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_in_the_middle_by_threads, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_at_its_start, setup, teardown),
		cmocka_unit_test_setup_teardown(test_done_is_not_repeated, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ended_on_request, setup, teardown),
		cmocka_unit_test_setup_teardown(test_orders_from_results, setup, teardown),
		cmocka_unit_test_setup_teardown(test_drops_foreign_jobs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wild_ring, setup, teardown),
	};

	random_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
