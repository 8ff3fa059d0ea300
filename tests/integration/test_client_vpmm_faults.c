/*
 * test_client_vpmm_faults.c - make each driver call of the stream-ordered allocator fail in turn, and check that
 * nothing changes.
 *
 * A remapping uses free pages of its own stream, finished pages of a second stream, unfinished pages of a third, and
 * new pages. It maps all pages at a new place, or completes a place that is mapped in part. For each kind of call and
 * each number, the test builds the same state, makes the call fail, and compares regions and contents with the earlier
 * ones. Then it repeats the call, which must succeed as if no failure had happened. It does the same for the other
 * calls of the allocator.
 *
 * Requirements: M8, S11.
 */
#include "tests/integration/vpmm.h"

#include "client/core/stream.h"
#include "tests/lib/scale.h"

#include <errno.h>

enum { LIVE = 3, BUILT_PAGES = 24, NEW_PAGES = 20, LAST_PAGES = 3, CALLS_MAX = 64 };

static char regions_text[1 << 16];

static void region_line(void *context, const char *text)
{
	(void)context;
	strncat(regions_text, text, sizeof(regions_text) - strlen(regions_text) - 2);
	strcat(regions_text, "\n");
}

/* Return all regions with ids, streams and fences. */
static const char *regions(void)
{
	char text[256] = "";

	if (atomic_load(&pool->vpmm->started) && vpmm_check(pool, text, sizeof(text)))
		fail_msg("%s", text);
	*regions_text = '\0';
	assert_true(gpool_vm_dump(pool, region_line, NULL) >= 0);
	return regions_text;
}

/* ---- the remapping ---- */

static uint64_t live[LIVE], freed[3];
static uint32_t gate_stream;
static struct gpool_fence gate;
static bool grows; /* the last region is free, so that a place can begin there */

static void build(void)
{
	uint64_t last = 0;

	attach_anew(BUILT_PAGES + 6);
	configure(0);
	gate_stream = manual_stream();
	for (uint32_t i = 0; i < LIVE; i++) {
		freed[i] = take(4 + i, streams[i]);
		live[i] = take(2 + i, streams[i]);
		fill(streams[i], freed[i], 4 + i, 0x100 + i);
		fill(streams[i], live[i], 2 + i, 0x200 + i);
	}
	if (grows)
		last = take(LAST_PAGES, streams[0]);
	for (int i = 0; i < LIVE; i++)
		finish(streams[i]);
	if (grows)
		give(last, streams[0]);
	give(freed[0], streams[0]);
	give(freed[1], streams[1]);
	/* One or both fences are signaled between two checks. */
	finish(streams[0]);
	finish(streams[1]);
	gate = record(gate_stream);
	assert_int_equal(gpool_stream_wait(pool, streams[2], gate), 0);
	give(freed[2], streams[2]);
	/* Detect the signaled fences now. */
	vpmm_lock(pool->vpmm);
	region_sweep(&pool->vpmm->set);
	vpmm_unlock(pool->vpmm);
}

static void contents_look(void)
{
	for (uint32_t i = 0; i < LIVE; i++)
		expect_content(live[i], 2 + i, 0x200 + i);
}

static void build_up_again(void **state)
{
	assert_int_equal(detach(state), 0);
	attach(state);
	build();
}

/* Make the n-th call of this kind fail. Return false if there were fewer calls. */
static bool remap_with_fault(enum gpu_call call, uint64_t nth, const char *as_it_ends)
{
	char before[4096], after[4096];
	uint64_t address = 0, calls = gpu_calls(pool->gpu, call);
	int error;

	assert_true(strlen(regions()) < sizeof(before));
	strcpy(before, regions());
	gpu_fault_set(pool->gpu, call, nth, -EIO);
	error = gpool_malloc_async(pool, NEW_PAGES * PAGE_BYTES, streams[0], &address);
	gpu_fault_set(pool->gpu, call, 0, 0);
	if (error) {
		assert_true(error == -ENOMEM || error == -EIO);
		assert_int_equal(address, 0);
		strcpy(after, regions());
		if (strcmp(before, after))
			fail_msg("%s, call %d: before\n%safter\n%s", gpu_call_name(call), (int)nth, before, after);
		contents_look();
		for (uint32_t i = 0; i < LIVE; i++)
			expect_content(freed[i], 4 + i, 0x100 + i);
		calls = 0;
		address = take(NEW_PAGES, streams[0]);
	} else if (gpu_calls(pool->gpu, call) - calls >= nth) {
		print_message("%s, call %d: went well all the same\n", gpu_call_name(call), (int)nth);
	}
	assert_string_equal(dump(), as_it_ends);
	fill(streams[0], address, NEW_PAGES, 0x300);
	signal_fence(gate);
	for (int i = 0; i < LIVE; i++)
		finish(streams[i]);
	expect_content(address, NEW_PAGES, 0x300);
	contents_look();
	return error != 0;
}

static void remap_with_faults(void **state)
{
	static const enum gpu_call kinds[] = {
		GPU_CALL_IMPORT, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_TIMELINE_WRITE, GPU_CALL_TIMELINE_WAIT};
	char as_it_ends[256];
	uint32_t failures = 0, maps = grows ? NEW_PAGES - LAST_PAGES : NEW_PAGES;

	build();
	take(NEW_PAGES, streams[0]);
	strcpy(as_it_ends, dump());
	signal_fence(gate);
	assert_string_equal(as_it_ends, "[*4][2][*5][3][*6][4][+20]");
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		for (uint64_t nth = 1;; nth++) {
			bool failed;

			build_up_again(state);
			failed = remap_with_fault(kinds[i], nth, as_it_ends);
			failures += failed;
			if (!failed)
				break;
		}
	/* A remapping makes a map call for each page, imports of new pages, and one call of each other kind. */
	assert_true(failures >= maps + 2);
	/* Check the same if the agent grants no page: then no driver call was made. */
	build_up_again(state);
	strcpy(as_it_ends, dump());
	assert_int_equal(gpool_malloc_async(pool, (PAGES - 8) * (uint64_t)PAGE_BYTES, streams[0], &live[0]), -ENOSPC);
	assert_string_equal(dump(), as_it_ends);
	signal_fence(gate);
}

static void test_remapping(void **state)
{
	grows = false;
	remap_with_faults(state);
}

static void test_growing(void **state)
{
	grows = true;
	remap_with_faults(state);
	grows = false;
}

/* A mapping whose removal fails after another failure is not lost. */
static void test_two_failures(void **state)
{
	char before[256];
	uint64_t address;

	(void)state;
	build();
	strcpy(before, dump());
	gpu_fault_set(pool->gpu, GPU_CALL_TIMELINE_WAIT, 1, -EIO);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 1, -EIO);
	assert_int_equal(gpool_malloc_async(pool, NEW_PAGES * PAGE_BYTES, streams[0], &address), -EIO);
	/* The failure leaves a pending unmap instead of a hole. The next call unmaps it. */
	assert_string_equal(dump(), "[-4][2][-5][3][-6][4][*20]");
	take(1, streams[0]);
	assert_string_equal(dump(), "[+1][-3][2][-5][3][-6][4]");
	gpu_fault_set(pool->gpu, GPU_CALL_ACCESS, 1, -EIO);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 1, -EIO);
	assert_int_equal(gpool_malloc_async(pool, NEW_PAGES * PAGE_BYTES, streams[0], &address), -ENOMEM);
	/* The unmap is repeated at once. */
	assert_string_equal(dump(), "[+1][-3][2][-5][3][-6][4]");
	address = take(NEW_PAGES, streams[0]);
	fill(streams[0], address, NEW_PAGES, 0x400);
	signal_fence(gate);
	finish(streams[0]);
	expect_content(address, NEW_PAGES, 0x400);
	contents_look();
}

/* ---- the other calls ---- */

static void test_zombies(void **state)
{
	uint64_t a;
	uint32_t s = streams[0];

	(void)state;
	configure(4);
	a = take(4, s);
	take(1, s);
	give(a, s);
	take(5, s);
	assert_string_equal(dump(), "[*4][1][+5]");
	finish(s);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 1, -EIO);
	a = take(1, s);
	assert_string_equal(dump(), "[*4][1][5][+1]");
	assert_int_equal(pool->vpmm->unmaps_refused, 1);
	pool->vpmm->unmaps_refused = 0;
	give(a, s);
	take(1, s);
	assert_string_equal(dump(), "[*4][1][5][+1]");
}

/* A fence that cannot be recorded now is recorded when it is first needed. */
static void test_frees(void **state)
{
	uint32_t s = streams[0], t = streams[1];
	uint64_t a, b;

	(void)state;
	configure(0);
	a = take(4, s);
	b = take(1, t);
	gpu_fault_set(pool->gpu, GPU_CALL_TIMELINE_WRITE, 1, -EIO);
	give(a, s);
	assert_non_null(strstr(regions(), "unfenced"));
	/* The memory cannot be returned then either, because without a fence no other stream may use it. */
	gpu_fault_set(pool->gpu, GPU_CALL_TIMELINE_WRITE, 1, -EIO);
	assert_int_equal(gpool_trim_to(pool, 0), 0);
	assert_non_null(strstr(regions(), "unfenced"));
	/* Now the fence can be recorded, and is signaled soon. */
	for (int64_t given = 0; !given;) {
		given = gpool_trim_to(pool, 0);
		assert_true(given == 0 || given == 4 * PAGE_BYTES);
		finish(s);
	}
	assert_int_equal(take(4, t), a);
	give(b, t);
	dump();
}

/* In a series of calls with occasional failures no memory is lost, whichever call fails. */
static void test_faults_here_and_there(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_RESERVE, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_UNMAP,
		GPU_CALL_TIMELINE_WRITE, GPU_CALL_TIMELINE_WAIT, GPU_CALL_IMPORT};
	struct gpool_vm_options options = vm_options(0);
	uint32_t rounds = test_scaled(4000);
	uint64_t at[16] = {0};
	uint32_t value[16] = {0}, pages[16] = {0}, failed = 0;

	(void)state;
	options.address_bytes = 64 * PAGE_BYTES;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t which = i * 7 % 16, stream = streams[i * 5 % 3];

		if (i % 3 == 0)
			gpu_fault_set(pool->gpu, kinds[i / 3 % (sizeof(kinds) / sizeof(*kinds))], 1 + i % 5, -EIO);
		if (at[which]) {
			assert_int_equal(stream_sync_all(pool), 0);
			expect_content(at[which], pages[which], value[which]);
			assert_int_equal(gpool_free_async(pool, at[which], stream), 0);
			at[which] = 0;
			continue;
		}
		pages[which] = 1 + i * 11 % 13;
		value[which] = i;
		if (gpool_malloc_async(pool, pages[which] * (uint64_t)PAGE_BYTES, stream, &at[which])) {
			failed++;
			at[which] = 0;
		} else {
			/*
			 * The CPU writes the content, because this test does not cover the order of streams, whose
			 * calls may fail too.
			 */
			for (uint32_t page = 0; page < pages[which]; page++) {
				volatile uint32_t *words =
					(volatile uint32_t *)(uintptr_t)(at[which] + page * (uint64_t)PAGE_BYTES);

				words[0] = words[PAGE_BYTES / 4 - 1] = i;
			}
		}
		if (i % 50 == 0)
			regions();
	}
	for (int kind = 0; kind < GPU_CALL_KINDS; kind++)
		gpu_fault_set(pool->gpu, (enum gpu_call)kind, 0, 0);
	assert_true(failed > 0);
	printf("%u failures, %u refused unmaps\n", failed, (unsigned)pool->vpmm->unmaps_refused);
	pool->vpmm->unmaps_refused = 0;
	regions();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_remapping, attach, detach),
		cmocka_unit_test_setup_teardown(test_growing, attach, detach),
		cmocka_unit_test_setup_teardown(test_two_failures, attach, detach),
		cmocka_unit_test_setup_teardown(test_zombies, attach, detach),
		cmocka_unit_test_setup_teardown(test_frees, attach, detach),
		cmocka_unit_test_setup_teardown(test_faults_here_and_there, attach, detach),
	};

	return run_vpmm_tests(tests, sizeof(tests) / sizeof(*tests));
}
