/*
 * test_mover.c - the mover moves bytes to their place, and reports success only then.
 *
 * Goal: each kind of job works on both tiers, by io_uring and by threads. An error in a job, its bytes or the disk is
 * reported for that job and affects no other job. Method: the real mover_run() in a forked child over a real pool of
 * the back end `host` (mover_rig.h). The results are checked in the pages and tiers themselves.
 */
#include "tests/unit/mover_rig.h"

#include <sys/resource.h>

enum {
	GUARD_BYTES = 4096,
	/* the first slot of the ring in its second guarded part; the mover reads slots in the order of their indices */
	GUARDED_SLOT = GUARD_BYTES / sizeof(struct mover_job),
};

static void *guarded;

static int setup(void **state)
{
	struct rig *rig = rig_new(false, true);

	rig_start(rig);
	*state = rig;
	return 0;
}

static int setup_threads(void **state)
{
	struct rig *rig = rig_new(false, true);

	setenv("GPOOL_NO_URING", "1", 1);
	rig_start(rig);
	*state = rig;
	return 0;
}

static int setup_only(void **state)
{
	*state = rig_new(false, true);
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

static void test_copy(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_COPY, 3, 0, 31, 0), 0);
	assert_true(pattern_is(rig_page(rig, 31), 3));
	assert_true(pattern_is(rig_page(rig, 3), 3));
	assert_true(pattern_is(rig_page(rig, 30), 30));
	assert_int_equal(atomic_load(&rig->ring->jobs_done), 1);
	assert_int_equal(atomic_load(&rig->ring->bytes_moved), PAGE_BYTES);
}

static void test_scrub(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_SCRUB, 5, 0, 0, 0), 0);
	assert_true(is_zero(rig_page(rig, 5)));
	assert_true(pattern_is(rig_page(rig, 4), 4));
	assert_true(pattern_is(rig_page(rig, 6), 6));
}

/* Save each page to a slot and load it into another page. The slots include the first and the last of the tier. */
static void there_and_back(struct rig *rig, enum mover_tier tier, uint32_t slots)
{
	static const uint32_t pages[] = {0, 1, 17, 30};
	const uint32_t to[] = {0, slots - 1, 7, slots / 2};

	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(rig_do(rig, MOVER_SPILL, pages[i], tier, to[i], 0), 0);
		assert_true(rig->checksums[0] == pattern_checksum(pages[i]));
	}
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(rig_do(rig, MOVER_LOAD, PAGES - 4 + i, tier, to[i], pattern_checksum(pages[i])), 0);
		assert_true(pattern_is(rig_page(rig, PAGES - 4 + i), pages[i]));
	}
}

static void test_memory(void **state)
{
	struct rig *rig = *state;

	there_and_back(rig, MOVER_TIER_MEMORY, MEMORY_SLOTS);
	assert_true(pattern_is(rig_slot(rig, 0), 0));
	assert_true(pattern_is(rig_slot(rig, MEMORY_SLOTS - 1), 1));
}

static void file_checked(struct rig *rig)
{
	static uint8_t bytes[PAGE_BYTES];

	there_and_back(rig, MOVER_TIER_FILE, FILE_SLOTS);
	assert_int_equal(pread(rig->file_fd, bytes, PAGE_BYTES, (off_t)(FILE_SLOTS - 1) * PAGE_BYTES), PAGE_BYTES);
	assert_true(pattern_is(bytes, 1));
}

/* Requirements: C5. */
static void test_file(void **state)
{
	struct rig *rig = *state;

	file_checked(rig);
	if (atomic_load(&rig->ring->uring) != MOVER_FILE_URING) {
		assert_int_equal(atomic_load(&rig->ring->uring), MOVER_FILE_THREADS);
		assert_true(atomic_load(&rig->ring->uring_error) < 0);
		print_message(
			"io_uring is refused here (%s): by threads\n", strerror(-atomic_load(&rig->ring->uring_error)));
		skip();
	}
	assert_int_equal(atomic_load(&rig->ring->uring_error), 0);
}

/* Requirements: C5. */
static void test_file_by_threads(void **state)
{
	struct rig *rig = *state;

	file_checked(rig);
	assert_int_equal(atomic_load(&rig->ring->uring), MOVER_FILE_THREADS);
	assert_int_equal(atomic_load(&rig->ring->uring_error), 0);
}

static void test_corrupted_memory(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_SPILL, 2, MOVER_TIER_MEMORY, 9, 0), 0);
	rig_slot(rig, 9)[PAGE_BYTES - 1] ^= 1;
	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_MEMORY, 9, pattern_checksum(2)), -EBADMSG);
	assert_true(pattern_is(rig_page(rig, 8), 8));
	rig_slot(rig, 9)[PAGE_BYTES - 1] ^= 1;
	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_MEMORY, 9, pattern_checksum(2)), 0);
	assert_true(pattern_is(rig_page(rig, 8), 2));
}

/* Sink content from memory to the file, after earlier writes to memory and before later ones. */
static void test_sinking(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_SPILL, 2, MOVER_TIER_MEMORY, 9, 0), 0);
	assert_int_equal(rig_do(rig, MOVER_SINK, 9, MOVER_TIER_FILE, 5, pattern_checksum(2)), 0);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 3, MOVER_TIER_MEMORY, 9, 0), 0);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_FILE, 5, pattern_checksum(2)), 0);
	assert_true(pattern_is(rig_page(rig, 8), 2));
	/* The bytes are not the expected ones, so the file is not changed. */
	assert_int_equal(rig_do(rig, MOVER_SINK, 9, MOVER_TIER_FILE, 5, pattern_checksum(2)), -EBADMSG);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 7, MOVER_TIER_FILE, 5, pattern_checksum(2)), 0);
	assert_int_equal(rig_do(rig, MOVER_SINK, UINT32_MAX, MOVER_TIER_FILE, 5, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_SINK, 9, MOVER_TIER_FILE, UINT32_MAX, 0), -EINVAL);
}

static void test_corrupted_file(void **state)
{
	struct rig *rig = *state;
	uint8_t byte;

	assert_int_equal(rig_do(rig, MOVER_SPILL, 2, MOVER_TIER_FILE, 9, 0), 0);
	assert_int_equal(pread(rig->file_fd, &byte, 1, 9 * PAGE_BYTES + 4711), 1);
	byte ^= 0x80;
	assert_int_equal(pwrite(rig->file_fd, &byte, 1, 9 * PAGE_BYTES + 4711), 1);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_FILE, 9, pattern_checksum(2)), -EBADMSG);
	assert_true(pattern_is(rig_page(rig, 8), 8));
}

/*
 * Use a slot beyond the end of the file, and one in which the file ends, at an offset that O_DIRECT does not support.
 */
static void test_file_ends_early(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_FILE, 20, 1), -EBADMSG);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 2, MOVER_TIER_FILE, 3, 0), 0);
	assert_int_equal(ftruncate(rig->file_fd, 3 * PAGE_BYTES + 1001), 0);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_FILE, 3, pattern_checksum(2)), -EBADMSG);
	assert_true(pattern_is(rig_page(rig, 8), 8));
}

/* Limit the file size within a slot: writes are short, then fail as on a full disk. */
static void limit_file_size(void)
{
	struct rlimit limit = {4 * PAGE_BYTES + 4096 * 3 + 100, 4 * PAGE_BYTES + 4096 * 3 + 100};

	setrlimit(RLIMIT_FSIZE, &limit);
}

static void disk_full(struct rig *rig)
{
	rig->child = limit_file_size;
	rig_start(rig);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 1, MOVER_TIER_FILE, 3, 0), 0);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 2, MOVER_TIER_FILE, 4, 0), -ENOSPC);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 2, MOVER_TIER_FILE, 9, 0), -ENOSPC);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 5, MOVER_TIER_FILE, 3, pattern_checksum(1)), 0);
	assert_true(pattern_is(rig_page(rig, 5), 1));
}

/* Requirements: S12. */
static void test_disk_full(void **state)
{
	disk_full(*state);
}

static void test_disk_full_by_threads(void **state)
{
	setenv("GPOOL_NO_URING", "1", 1);
	disk_full(*state);
}

static void test_impossible_jobs(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_COPY, PAGES, 0, 1, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_COPY, 1, 0, PAGES, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_COPY, 1, 0, 1, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_SCRUB, UINT32_MAX, 0, 0, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 1, MOVER_TIER_MEMORY, MEMORY_SLOTS, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 1, MOVER_TIER_FILE, FILE_SLOTS, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 1, MOVER_TIER_MEMORY, UINT32_MAX, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 1, MOVER_TIER_FILE, UINT32_MAX, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_LOAD, PAGES, MOVER_TIER_FILE, 0, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 1, MOVER_TIERS, 0, 0), -EINVAL);
	assert_int_equal(rig_do(rig, 0, 1, 0, 0, 0), -EINVAL);
	assert_int_equal(rig_do(rig, 99, 1, 0, 0, 0), -EINVAL);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_true(pattern_is(rig_page(rig, page), page));
}

static void test_tiers_that_are_not_there(void **state)
{
	struct rig *rig = rig_new(false, false);

	*state = rig;
	rig_start(rig);
	assert_int_equal(rig_do(rig, MOVER_SPILL, 1, MOVER_TIER_MEMORY, 0, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_LOAD, 1, MOVER_TIER_FILE, 0, 0), -EINVAL);
	assert_int_equal(rig_do(rig, MOVER_COPY, 1, 0, 2, 0), 0);
	assert_int_equal(atomic_load(&rig->ring->uring), MOVER_FILE_NONE);
}

static void test_a_descriptor_for_each_handle(void **state)
{
	struct rig *rig = rig_new(true, true);

	*state = rig;
	assert_int_equal(rig->start.held_count, HANDLES + 2);
	rig_start(rig);
	for (uint32_t page = 0; page < PAGES / 2; page++)
		assert_int_equal(rig_do(rig, MOVER_COPY, page, 0, PAGES - 1 - page, 0), 0);
	for (uint32_t page = 0; page < PAGES / 2; page++)
		assert_true(pattern_is(rig_page(rig, PAGES - 1 - page), page));
}

static void test_all_slots_at_once(void **state)
{
	struct rig *rig = *state;
	struct mover_order one_more = {.kind = MOVER_SCRUB, .page = 0};

	/* No mover is running yet, so all jobs wait in the ring. */
	assert_int_equal(rig->mover, 0);
	for (uint32_t i = 0; i < MOVER_JOBS; i++)
		rig_submit(
			rig, MOVER_SPILL, i % PAGES, i % 2 ? MOVER_TIER_MEMORY : MOVER_TIER_FILE, i % FILE_SLOTS, 0, i);
	assert_int_equal(mover_submit(&rig->queue, &one_more), -EAGAIN);
	rig_start(rig);
	rig_collect(rig, MOVER_JOBS - rig->collected);
	for (uint32_t i = 0; i < MOVER_JOBS; i++) {
		assert_int_equal(rig->errors[i], 0);
		assert_true(rig->checksums[i] == pattern_checksum(i % PAGES));
	}
	assert_int_equal(rig->queue.in_flight, 0);
	assert_int_equal(mover_submit(&rig->queue, &one_more), 0);
	rig_collect(rig, 1);
}

static void fork_and_wait(struct rig *rig)
{
	rig_fork(rig);
	while (atomic_load(&rig->ring->serving) != (uint32_t)rig->mover)
		poll(NULL, 0, 1);
}

/* A mover that finds the gate closed does no work, even if jobs are queued, and runs when the gate opens. */
static void test_shut_gate(void **state)
{
	struct rig *rig = *state;
	uint32_t first = 0;

	assert_int_equal(rig->mover, 0);
	rig_submit(rig, MOVER_SCRUB, 0, 0, 0, 0, 0);
	rig_submit(rig, MOVER_SCRUB, 1, 0, 0, 0, 1);
	assert_int_equal(mover_oldest(&rig->queue), 1);
	assert_true(mover_shut(&rig->queue, 0));
	fork_and_wait(rig);
	while (rig->queue.numbers[first] != 1)
		first++;
	assert_false(mover_begun(&rig->queue, first));
	mover_withdraw(&rig->queue, first);
	assert_int_equal(mover_oldest(&rig->queue), 2);
	assert_false(mover_serves(&rig->queue, 0));
	mover_let_in(&rig->queue);
	rig_collect(rig, 1);
	assert_true(rig->have[1] && !rig->have[0]);
	assert_true(is_zero(rig_page(rig, 1)));
	assert_true(pattern_is(rig_page(rig, 0), 0));
	/* The mover has passed the gate, and counts as running until it is known to be dead. */
	assert_true(mover_serves(&rig->queue, 0));
	assert_false(mover_shut(&rig->queue, 0));
	rig_stop(rig, SIGKILL);
	assert_true(mover_shut(&rig->queue, 1));
	/* A mover that waits at the gate can be terminated. */
	fork_and_wait(rig);
	assert_int_equal(rig_stop(rig, SIGTERM), 0);
	mover_let_in(&rig->queue);
	assert_int_equal(rig->queue.in_flight, 0);
}

/*
 * The ring contains ten jobs for each of two pages at the same time. Each job destroys the content that the earlier
 * ones need.
 */
static void test_jobs_of_one_page_keep_their_order(void **state)
{
	struct rig *rig = *state;

	for (uint32_t page = 0; page < PAGES; page += 2) {
		enum mover_tier tier = page % 4 ? MOVER_TIER_MEMORY : MOVER_TIER_FILE;
		uint64_t sum = pattern_checksum(page), tag = page * 8;

		rig_submit(rig, MOVER_SPILL, page, tier, page, 0, tag++);
		rig_submit(rig, MOVER_SCRUB, page, 0, 0, 0, tag++);
		rig_submit(rig, MOVER_LOAD, page, tier, page, sum, tag++);
		rig_submit(rig, MOVER_COPY, page, 0, page + 1, 0, tag++);
		rig_submit(rig, MOVER_SCRUB, page, 0, 0, 0, tag++);
		rig_submit(rig, MOVER_COPY, page + 1, 0, page, 0, tag++);
		rig_submit(rig, MOVER_SCRUB, page + 1, 0, 0, 0, tag++);
		rig_submit(rig, MOVER_SPILL, page, tier, page, 0, tag++);
		rig_submit(rig, MOVER_SCRUB, page, 0, 0, 0, tag++);
		rig_submit(rig, MOVER_LOAD, page + 1, tier, page, sum, tag++);
	}
	rig_collect(rig, PAGES / 2 * 10);
	for (uint32_t i = 0; i < TAGS; i++)
		assert_int_equal(rig->errors[i], 0);
	for (uint32_t page = 0; page < PAGES; page += 2) {
		assert_true(is_zero(rig_page(rig, page)));
		assert_true(pattern_is(rig_page(rig, page + 1), page));
	}
}

/* Stop the mover where it has read the slots before GUARDED_SLOT, and continue after SIGCONT. */
static void stop_between_slots(int signal)
{
	(void)signal;
	mprotect(guarded, GUARD_BYTES, PROT_READ | PROT_WRITE);
	raise(SIGSTOP);
}

static void guard_slots(void)
{
	signal(SIGSEGV, stop_between_slots);
	mprotect(guarded, GUARD_BYTES, PROT_NONE);
}

/*
 * While the mover reads the ring, two jobs for one page are added: the first in a slot that the mover has read, the
 * second in the next slot. The bell rings later, so that nothing makes the mover read the first slot again.
 */
static void test_jobs_that_are_added_during_a_scan_keep_their_order(void **state)
{
	struct rig *rig = *state;
	uint64_t rung;
	int status;

	guarded = &rig->ring->jobs[GUARDED_SLOT];
	rig->child = guard_slots;
	rig_fork(rig);
	assert_int_equal(waitpid(rig->mover, &status, WUNTRACED), rig->mover);
	assert_true(WIFSTOPPED(status));
	rig->queue.next = GUARDED_SLOT - 1;
	rig_submit(rig, MOVER_SPILL, 3, MOVER_TIER_MEMORY, 0, 0, 0);
	rig_submit(rig, MOVER_SCRUB, 3, 0, 0, 0, 1);
	assert_int_equal(read(rig->pool.work_bell, &rung, sizeof(rung)), sizeof(rung));
	kill(rig->mover, SIGCONT);
	while (!rig->have[1])
		rig_collect(rig, 1);
	assert_true(rig->have[0]);
	assert_int_equal(rig->errors[0], 0);
	assert_true(rig->checksums[0] == pattern_checksum(3));
	assert_true(is_zero(rig_page(rig, 3)));
}

/* Registrations 1 to 4 are the lanes' buffers, 5 is the first piece of the tier. */
static void refuse_to_lock_the_tier(void)
{
	gpu_fault_set(NULL, GPU_CALL_HOST_REGISTER, 5, -ENOMEM);
}

/* Requirements: S12. */
static void test_memory_that_cannot_be_locked(void **state)
{
	struct rig *rig = *state;

	rig->child = refuse_to_lock_the_tier;
	rig_start(rig);
	there_and_back(rig, MOVER_TIER_MEMORY, MEMORY_SLOTS);
	rig_slot(rig, 0)[77] ^= 1;
	assert_int_equal(rig_do(rig, MOVER_LOAD, 8, MOVER_TIER_MEMORY, 0, pattern_checksum(0)), -EBADMSG);
	assert_true(pattern_is(rig_page(rig, 8), 8));
}

static void fail_second_copy(void)
{
	gpu_fault_set(NULL, GPU_CALL_COPY, 2, -EIO);
}

static void test_gpu_error_is_one_jobs(void **state)
{
	struct rig *rig = *state;

	rig->child = fail_second_copy;
	rig_start(rig);
	assert_int_equal(rig_do(rig, MOVER_COPY, 1, 0, 2, 0), 0);
	assert_int_equal(rig_do(rig, MOVER_COPY, 3, 0, 4, 0), -EIO);
	assert_true(pattern_is(rig_page(rig, 4), 4));
	assert_int_equal(rig_do(rig, MOVER_COPY, 3, 0, 4, 0), 0);
	assert_true(pattern_is(rig_page(rig, 4), 3));
}

static void fail_first_import(void)
{
	gpu_fault_set(NULL, GPU_CALL_IMPORT, 1, -EMFILE);
}

static void test_handle_that_cannot_be_mapped(void **state)
{
	struct rig *rig = *state;

	rig->child = fail_first_import;
	rig_start(rig);
	assert_int_equal(rig_do(rig, MOVER_SCRUB, 1, 0, 0, 0), -EIO);
	assert_int_equal(rig_do(rig, MOVER_SCRUB, 1, 0, 0, 0), 0);
	assert_true(is_zero(rig_page(rig, 1)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_copy, setup, teardown),
		cmocka_unit_test_setup_teardown(test_scrub, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_file_by_threads, setup_threads, teardown),
		cmocka_unit_test_setup_teardown(test_sinking, setup, teardown),
		cmocka_unit_test_setup_teardown(test_corrupted_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_corrupted_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_file_ends_early, setup, teardown),
		cmocka_unit_test_setup_teardown(test_disk_full, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_disk_full_by_threads, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_impossible_jobs, setup, teardown),
		cmocka_unit_test_teardown(test_tiers_that_are_not_there, teardown),
		cmocka_unit_test_teardown(test_a_descriptor_for_each_handle, teardown),
		cmocka_unit_test_setup_teardown(test_all_slots_at_once, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_shut_gate, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_jobs_of_one_page_keep_their_order, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_jobs_that_are_added_during_a_scan_keep_their_order, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_memory_that_cannot_be_locked, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_gpu_error_is_one_jobs, setup_only, teardown),
		cmocka_unit_test_setup_teardown(test_handle_that_cannot_be_mapped, setup_only, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
