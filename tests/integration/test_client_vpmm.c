/*
 * test_client_vpmm.c - placement by the stream-ordered allocator, with a real agent.
 *
 * The test compares the regions with the output of gpool_vm_dump(), and checks all invariants with vpmm_check() at each
 * step. Host-signaled timelines represent unfinished GPU work. Memory freed in such a timeline cannot be reused by
 * other streams until the test signals its fence; work that a back end stream queued after a wait for it runs only
 * then.
 */
#include "tests/integration/vpmm.h"

#include "cuda/gpu_private.h"

#include <errno.h>

/* ---- the walk-through: +10, +1, -10, +4, +11 ---- */

static void walk(uint32_t initial, uint32_t pages_after, bool four_at_start, const char *const *pictures)
{
	uint64_t ten, one, four;
	uint32_t s = streams[0];

	configure(initial);
	ten = take(10, s);
	assert_string_equal(dump(), pictures[0]);
	one = take(1, s);
	assert_string_equal(dump(), pictures[1]);
	give(ten, s);
	assert_string_equal(dump(), pictures[2]);
	four = take(4, s);
	assert_string_equal(dump(), pictures[3]);
	assert_int_equal(four, four_at_start ? ten : one + PAGE_BYTES);
	take(11, s);
	assert_string_equal(dump(), pictures[4]);
	assert_int_equal(pool_pages(), pages_after);
}

/* Requirements: M6, M13. */
static void test_walk_a(void **state)
{
	static const char *const pictures[] = {
		"[+10][-12]", "[10][+1][-11]", "[-10][1][-11]", "[+4][-6][1][-11]", "[4][-6][1][+11]"};

	(void)state;
	walk(22, 22, true, pictures);
}

/* Requirements: M6, M13. */
static void test_walk_b(void **state)
{
	static const char *const pictures[] = {
		"[+10][-8]", "[10][+1][-7]", "[-10][1][-7]", "[-10][1][+4][-3]", "[*8][-2][1][4][+11]"};

	(void)state;
	walk(18, 18, false, pictures);
}

/* Requirements: M6, M13. */
static void test_walk_c(void **state)
{
	static const char *const pictures[] = {
		"[+10][-5]", "[10][+1][-4]", "[-10][1][-4]", "[-10][1][+4]", "[*10][1][4][+11]"};

	(void)state;
	walk(15, 16, false, pictures);
}

/* Requirements: M6, M13. */
static void test_walk_d(void **state)
{
	static const char *const pictures[] = {
		"[+10][-2]", "[10][+1][-1]", "[-10][1][-1]", "[+4][-6][1][-1]", "[4][*6][1][+11]"};

	(void)state;
	walk(12, 16, true, pictures);
}

/* ---- slack: new pages before free ones ---- */

static void configure_slack(int32_t percent)
{
	struct gpool_vm_options options = vm_options(0);

	options.slack_percent = percent;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
}

/* Requirements: M14. */
static void test_slack(void **state)
{
	uint64_t ten, unmaps = gpu_thread_calls(GPU_CALL_UNMAP);
	uint32_t s = streams[0];

	(void)state;
	configure_slack(100);
	ten = take(10, s);
	take(1, s);
	give(ten, s);
	/* With 12 pages live, 24 may be held. */
	take(11, s);
	assert_string_equal(dump(), "[-10][1][+11]");
	assert_int_equal(totals().slack_percent, 100);
	assert_int_equal(totals().slack_taken_bytes, 10 * PAGE_BYTES); /* one page was missing */
	assert_int_equal(totals().live_peak_bytes, 12 * PAGE_BYTES);
	assert_int_equal(totals().remaps, 0);
	assert_int_equal(gpu_thread_calls(GPU_CALL_UNMAP), unmaps);
}

/* At most 23 pages are live, so 25 may be held: two new pages, and ten free ones. Requirements: M14. */
static void test_slack_for_a_part(void **state)
{
	uint64_t ten, eleven;
	uint32_t s = streams[0];

	(void)state;
	configure_slack(10);
	ten = take(10, s);
	take(1, s);
	eleven = take(11, s);
	take(1, s);
	give(ten, s);
	give(eleven, s);
	take(12, s);
	assert_string_equal(dump(), "[*10][1][-11][1][+12]");
	assert_int_equal(pool_pages(), 25);
	assert_int_equal(totals().slack_taken_bytes, 2 * PAGE_BYTES);
	assert_int_equal(totals().remapped_bytes, 10 * PAGE_BYTES);
}

/* The session has reached its quota, so that only free pages can be used. Requirements: M14. */
static void test_slack_at_the_quota(void **state)
{
	uint64_t ten, one, eleven;
	uint32_t s;

	(void)state;
	attach_anew(12);
	s = streams[0];
	configure_slack(100);
	ten = take(10, s);
	one = take(1, s);
	give(ten, s);
	eleven = take(11, s);
	assert_string_equal(dump(), "[*10][1][+11]");
	assert_int_equal(totals().slack_taken_bytes, 0);
	give(eleven, s);
	give(one, s);
	take(12, s);
	assert_int_equal(pool_pages(), 12);
}

/* ---- growth in place ---- */

/* Let the stream wait for a gate that the test opens, so that work queued after it is not executed before. */
static struct gpool_fence gate_before(uint32_t stream, uint32_t manual)
{
	struct gpool_fence gate = record(manual);

	assert_int_equal(gpool_stream_wait(pool, stream, gate), 0);
	return gate;
}

static void test_grows_in_place(void **state)
{
	uint64_t six, four, seven, nine, maps, unmaps = gpu_thread_calls(GPU_CALL_UNMAP);
	uint32_t s = streams[0];

	(void)state;
	configure(0);
	six = take(6, s);
	take(1, s);
	four = take(4, s);
	fill(s, four, 4, 0x44);
	give(four, s);
	/* Upwards, with new pages. */
	maps = gpu_thread_calls(GPU_CALL_MAP);
	seven = take(7, s);
	assert_int_equal(seven, four);
	assert_string_equal(dump(), "[6][1][+7]");
	assert_int_equal(gpu_thread_calls(GPU_CALL_MAP), maps + 3);
	finish(s);
	expect_content(seven, 4, 0x44);
	assert_int_equal(totals().remaps, 0);
	/* With free pages of another place. */
	give(seven, s);
	give(six, s);
	nine = take(9, s);
	assert_int_equal(nine, seven);
	assert_string_equal(dump(), "[*2][-4][1][+9]");
	assert_int_equal(gpu_thread_calls(GPU_CALL_MAP), maps + 5);
	assert_int_equal(gpu_thread_calls(GPU_CALL_UNMAP), unmaps);
	fill(s, nine, 9, 0x99);
	finish(s);
	expect_content(nine, 9, 0x99);
	/* Downwards, into the hole that is left. */
	assert_int_equal(take(5, s), six + PAGE_BYTES);
	assert_string_equal(dump(), "[*1][+5][1][9]");
	assert_int_equal(pool_pages(), 15);
}

/* Unfinished memory of another stream is not part of a place. The guard of the new place is the stream's own work. */
static void test_grows_with_its_own_unfinished_pages(void **state)
{
	uint32_t s = streams[0], t = streams[1], manual = manual_stream();
	struct gpool_fence gate;
	uint64_t a, b;

	(void)state;
	configure(0);
	take(1, t);
	a = take(4, s);
	gate = gate_before(s, manual);
	fill(s, a, 4, 0xaaaa);
	give(a, s);
	take(6, t);
	assert_string_equal(dump(), "[1][-4][+6]");
	gpool_free_async(pool, a + 4 * PAGE_BYTES, 0);
	b = take(8, s);
	assert_int_equal(b, a);
	assert_string_equal(dump(), "[1][+8][-2]");
	/* Another stream waits for the guard. */
	give(b, t);
	assert_string_equal(dump(), "[1][-8][-2]");
	assert_null(region_best_ready(&pool->vpmm->set, 3));
	signal_fence(gate);
	finish(s);
	finish(t);
	assert_int_equal(take(8, t), a);
	gpool_stream_close(pool, manual);
}

/* ---- joins ---- */

/* Requirements: M5. */
static void test_joins(void **state)
{
	uint64_t at[5];
	uint32_t s = streams[0], t = streams[1];

	(void)state;
	configure(10);
	for (int i = 0; i < 5; i++)
		at[i] = take(2, s);
	assert_string_equal(dump(), "[2][2][2][2][+2]");
	give(at[0], s);
	give(at[1], s); /* joined with its left neighbor */
	assert_string_equal(dump(), "[-4][2][2][2]");
	give(at[4], s);
	give(at[3], s); /* joined with its right neighbor */
	assert_string_equal(dump(), "[-4][2][-4]");
	give(at[2], s); /* joined with both neighbors */
	assert_string_equal(dump(), "[-10]");
	/* Regions of different streams are not joined, whether or not their work is done. */
	gpool_trim_to(pool, 10 * PAGE_BYTES);
	finish(s);
	gpool_trim_to(pool, 10 * PAGE_BYTES); /* no region is reclaimable, and the GPU work is known to be done */
	for (int i = 0; i < 5; i++)
		at[i] = take(2, s);
	give(at[0], s);
	give(at[1], t);
	give(at[2], t);
	give(at[3], 0);
	give(at[4], s);
	assert_string_equal(dump(), "[-2][-4][-2][-2]");
	finish(s);
	finish(t);
	assert_string_equal(dump(), "[-2][-4][-2][-2]");
	/* Without a stream, all regions can be joined. */
	gpool_stream_close(pool, t);
	assert_string_equal(dump(), "[-2][-6][-2]");
	gpool_stream_close(pool, s);
	assert_string_equal(dump(), "[-10]");
	take(10, streams[2]);
	assert_string_equal(dump(), "[+10]");
}

/* Requirements: M5. */
static void test_holes_join(void **state)
{
	uint64_t a, b, c;
	uint32_t s = streams[0];

	(void)state;
	configure(7);
	a = take(2, s);
	b = take(2, s);
	c = take(2, s);
	take(1, s);
	give(a, s);
	give(c, s);
	take(4, s);
	assert_string_equal(dump(), "[*2][2][*2][1][+4]");
	finish(s);
	/* The next call starts in phase 0. The regions in between are freed, and are remapped too. */
	take(1, s);
	assert_string_equal(dump(), "[+1][*1][2][*2][1][4]");
	give(b, s);
	take(6, s);
	assert_string_equal(dump(), "[1][*1][*2][*2][1][4][+6]");
	finish(s);
	take(1, s);
	assert_string_equal(dump(), "[1][+1][*4][1][4][6]");
}

/* ---- addresses ---- */

/* Requirements: M2. */
static void test_small_reservations(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	uint32_t s = streams[0];
	uint64_t at[4];

	(void)state;
	options.address_bytes = 8 * PAGE_BYTES;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	for (int i = 0; i < 4; i++) {
		at[i] = take(3, s);
		fill(s, at[i], 3, (uint32_t)i);
	}
	/* Each reservation contains two allocations. None crosses a boundary, even if reservations are adjacent. */
	assert_int_equal(pool_pages(), 12);
	assert_int_equal(totals().reserved_bytes, 16 * PAGE_BYTES);
	assert_int_equal(totals().hole_regions, 2);
	finish(s);
	for (int i = 0; i < 4; i++)
		expect_content(at[i], 3, (uint32_t)i);
	/* A request that exceeds the size of a reservation gets a larger one. */
	give(at[0], s);
	give(at[1], s);
	take(20, s);
	assert_int_equal(pool_pages(), 26);
	assert_int_equal(totals().reserved_bytes, 40 * PAGE_BYTES);
	assert_int_equal(totals().remapped_bytes, 6 * PAGE_BYTES);
	dump();
}

static void test_wrong_addresses(void **state)
{
	uint32_t s = streams[0];
	uint64_t address, other, block_address;
	struct gpool_block block;

	(void)state;
	assert_int_equal(gpool_free_async(pool, 4096, s), -EINVAL); /* no memory was ever allocated there */
	configure(0);
	address = take(4, s);
	other = take(1, s);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &block_address), 0);
	assert_int_equal(gpool_free_async(pool, block_address, s), -ESTALE);
	assert_int_equal(gpool_free_async(pool, 0, s), -EINVAL);
	assert_int_equal(gpool_free_async(pool, UINT64_MAX, s), -EINVAL);
	assert_int_equal(gpool_free_async(pool, address + 1, s), -EINVAL);
	assert_int_equal(gpool_free_async(pool, address + PAGE_BYTES, s), -ESTALE);
	assert_int_equal(gpool_free_async(pool, address + (uint64_t)ADDRESS_PAGES * PAGE_BYTES, s), -EINVAL);
	assert_int_equal(gpool_free_async(pool, address, s + 256), -EINVAL); /* a stream that never existed */
	assert_int_equal(gpool_free_async(pool, address, 77), -EINVAL);
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, s + 256, &address), -EINVAL);
	assert_int_equal(gpool_malloc_async(pool, 0, s, &address), -EINVAL);
	assert_string_equal(dump(), "[4][+1]");
	give(address, s);
	assert_int_equal(gpool_free_async(pool, address, s), -ESTALE);
	give(other, s);
	assert_int_equal(gpool_free_async(pool, other, s), -ESTALE); /* joined with the region below it */
	assert_int_equal(gpool_free(pool, &block), 0);
}

/* ---- out of memory ---- */

static void test_after_out_of_memory(void **state)
{
	uint64_t half, rest, never = 42;
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	uint32_t s = streams[0];
	char before[256];

	(void)state;
	configure(0);
	half = take(PAGES / 2, s);
	rest = take(PAGES / 2 - 10, s);
	fill(s, half, PAGES / 2, 0x11);
	strcpy(before, dump());
	assert_int_equal(gpool_malloc_async(pool, 11 * PAGE_BYTES, s, &never), -ENOSPC);
	gpool_oom_info(pool, &shortage);
	assert_int_equal(shortage.needed, 11);
	assert_int_equal(gpool_malloc_async(pool, (uint64_t)(PAGES + 1) * PAGE_BYTES, s, &never), -ENOSPC);
	assert_int_equal(gpool_malloc_async(pool, UINT64_MAX, s, &never), -ENOSPC);
	assert_int_equal(never, 42);
	/* The last allocation remains the last. */
	assert_string_equal(dump(), before);
	take(10, s);
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, s, &never), -ENOSPC);
	give(rest, s);
	/* The free memory is insufficient, so no page is remapped. */
	assert_int_equal(gpool_malloc_async(pool, (uint64_t)(PAGES / 2) * PAGE_BYTES, s, &never), -ENOSPC);
	assert_string_equal(dump(), "[256][-246][10]");
	rest = take(PAGES / 2 - 10, s);
	finish(s);
	expect_content(half, PAGES / 2, 0x11);
	give(rest, s);
	give(half, s);
	take(PAGES - 10, s);
	dump();
}

static void pages_write(uint64_t address, uint32_t pages, uint32_t value)
{
	for (uint32_t i = 0; i < pages; i++) {
		volatile uint32_t *words = (volatile uint32_t *)(uintptr_t)(address + (uint64_t)i * PAGE_BYTES);

		words[0] = words[PAGE_BYTES / 4 - 1] = value;
	}
}

/* All pages are free, in a hundred places. One allocation gets them all. */
static void test_everything_in_one_piece(void **state)
{
	uint32_t s = streams[0], manual = manual_stream();
	uint64_t at[PAGES / 2], whole;
	struct gpool_fence gate;

	(void)state;
	configure(0);
	for (int i = 0; i < PAGES / 2; i++)
		at[i] = take(2, s);
	gate = gate_before(s, manual);
	for (int i = 0; i < PAGES / 2; i += 2)
		give(at[i], s);
	whole = take(PAGES / 2, s);
	assert_int_equal(pool_pages(), PAGES);
	assert_int_equal(totals().pending_unmap_bytes, PAGES / 2 * PAGE_BYTES);
	/* While the stream's work is not done, the old addresses stay mapped and refer to the same memory. */
	pages_write(whole, PAGES / 2, 0x77);
	for (int i = 0; i < PAGES / 2; i += 2)
		expect_content(at[i], 2, 0x77);
	signal_fence(gate);
	finish(s);
	expect_content(whole, PAGES / 2, 0x77);
	give(whole, s);
	take(1, s);
	/* The pool was full, so the library's background thread may be removing pending unmaps too. */
	AWAIT(totals().pending_unmap_bytes == 0);
	gpool_stream_close(pool, manual);
}

/* ---- several streams ---- */

static void test_one_stream_calls_no_driver(void **state)
{
	uint32_t s = streams[0];
	uint64_t calls, all, at[8];

	(void)state;
	configure(40);
	at[0] = take(1, s);
	give(at[0], s);
	calls = driver_calls();
	all = gpu_calls_total(pool->gpu);
	for (int round = 0; round < 100; round++) {
		for (uint32_t i = 0; i < 8; i++)
			at[i] = take(1 + i % 5, s);
		for (uint32_t i = 0; i < 8; i++)
			give(at[i * 3 % 8], s);
	}
	assert_int_equal(driver_calls(), calls);
	assert_string_equal(dump(), "[-40]");
	/*
	 * When another stream allocates, one fence is recorded for all free regions, so that it can reuse them soon,
	 * unless the background thread has recorded one.
	 */
	at[0] = take(3, streams[1]);
	dump();
	assert_true(gpu_calls_total(pool->gpu) > all);
	give(at[0], streams[1]);
}

/* Memory that other streams have freed is reused in place if their work is done. Requirements: M4. */
static void test_finished_regions_of_others(void **state)
{
	uint32_t s = streams[0], t = streams[1];
	uint64_t a, b, c, calls, again;

	(void)state;
	configure(9);
	a = take(5, s);
	b = take(3, s);
	c = take(1, t);
	fill(s, a, 5, 1);
	give(a, s);
	give(b, s);
	finish(s);
	assert_string_equal(dump(), "[-8][1]");
	again = take(2, t);
	assert_int_equal(again, a);
	assert_string_equal(dump(), "[+2][-6][1]");
	calls = gpu_thread_calls(GPU_CALL_TIMELINE_WRITE);
	give(again, t);
	/* Two streams are in use, so a fence is recorded. */
	assert_int_equal(gpu_thread_calls(GPU_CALL_TIMELINE_WRITE), calls + 1);
	/* The stream's own region is used first, even if the other one fits as well. */
	finish(t);
	assert_int_equal(take(1, t), a);
	give(c, t);
	assert_int_equal(totals().remaps, 0);
	assert_int_equal(pool_pages(), 9);
}

/* Memory with unfinished work is mapped to other addresses at once, and the stream waits on the GPU. */
/* Requirements: M4. */
static void test_unfinished_regions_of_others(void **state)
{
	uint32_t s, t, manual;
	struct gpool_fence gate, filled;
	uint64_t a, b;

	(void)state;
	attach_anew(8);
	s = streams[0];
	t = streams[1];
	manual = manual_stream();
	configure(8);
	take(2, t);
	a = take(6, s);
	gate = gate_before(s, manual);
	fill(s, a, 6, 0xaaaa);
	give(a, s);
	b = take(4, t);
	assert_int_not_equal(b, a);
	assert_int_equal(pool_pages(), 8);
	assert_int_equal(totals().waits, 1);
	/* The remaining part keeps its stream and its fence. */
	assert_string_equal(dump(), "[2][*4][-2][+4]");
	assert_null(region_best_ready(&pool->vpmm->set, 1));
	assert_non_null(region_best(&pool->vpmm->set, s & 255, 2));
	fill(t, b, 4, 0xbbbb);
	filled = record(t);
	assert_int_equal(gpool_fence_wait(pool, filled, 20), -ETIMEDOUT);
	/* No mapping may be removed yet. */
	give(take(1, s), s);
	assert_int_equal(totals().pending_unmap_bytes, 4 * PAGE_BYTES);
	signal_fence(gate);
	assert_int_equal(gpool_fence_wait(pool, filled, SOON_MS), 0);
	expect_content(b, 4, 0xbbbb);
	expect_content(a, 4, 0xbbbb); /* the same pages at their old addresses */
	expect_content(a + 4 * PAGE_BYTES, 2, 0xaaaa);
	finish(s);
	take(1, t);
	assert_string_equal(dump(), "[2][*4][+1][-1][4]");
	gpool_stream_close(pool, manual);
}

/* A stream waits for unfinished work of another stream only if neither new nor reclaimable pages are available. */
/* Requirements: M4. */
static void test_waits_only_when_it_must(void **state)
{
	uint32_t s = streams[0], t = streams[1], u = streams[2], manual = manual_stream();
	struct gpool_fence gate;
	uint64_t a, b, c, calls;

	(void)state;
	configure(12);
	a = take(4, s);
	b = take(4, u);
	c = take(4, t);
	gate = gate_before(s, manual);
	give(a, s); /* older, and unfinished */
	give(b, u);
	finish(u);
	take(3, t);
	assert_string_equal(dump(), "[-4][+3][-1][4]");
	give(c, t);
	calls = gpu_thread_calls(GPU_CALL_MAP);
	take(5, t);
	/* Finished pages of one stream and pages of the other are adjacent, so no page is mapped. */
	assert_string_equal(dump(), "[-4][3][+5]");
	assert_int_equal(gpu_thread_calls(GPU_CALL_MAP), calls);
	assert_int_equal(totals().waits, 0);
	signal_fence(gate);
	gpool_stream_close(pool, manual);
}

/* A caller without a stream, or with one that cannot wait, gets memory whose work is done, or waits on the host. */
static void *signal_later(void *fence)
{
	signal_fence(*(struct gpool_fence *)fence);
	return NULL;
}

static void test_without_a_stream(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	uint32_t manual = manual_stream(), other = manual_stream();
	struct gpool_fence freed;
	uint64_t a, b, c;
	pthread_t thread;

	(void)state;
	options.timeout_ms = SOON_MS;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take(4, manual);
	b = take(1, other);
	give(a, manual);
	/* New pages are preferred to a wait. */
	c = take(4, 0);
	assert_string_equal(dump(), "[-4][1][+4]");
	give(c, 0);
	c = take(2, other);
	assert_string_equal(dump(), "[-4][1][+2][-2]");
	assert_int_equal(totals().waits, 0);
	freed = record(manual);
	/* All pages of the pool are needed, so the call waits for the host-signaled timeline. */
	assert_int_equal(pthread_create(&thread, NULL, signal_later, &freed), 0);
	take(PAGES - 3, 0);
	pthread_join(thread, NULL);
	dump();
	/*
	 * The 4 pages of the host-signaled timeline may have been offered and leased again as new pages: their old
	 * addresses are not examined yet.
	 */
	assert_in_range(pool_pages(), PAGES, PAGES + 4);
	give(b, other);
	give(c, other);
}

/* A stream may reuse its memory before the GPU is done with it. Other streams may not, whichever thread frees it. */
static void test_guards(void **state)
{
	uint32_t s, t, u, manual;
	struct gpool_fence gate, later;
	uint64_t a, b, c, d;

	(void)state;
	attach_anew(9);
	s = streams[0];
	t = streams[1];
	u = streams[2];
	manual = manual_stream();
	configure(4);
	a = take(4, s);
	take(1, t);
	d = take(4, u);
	gate = gate_before(s, manual);
	fill(s, a, 4, 0xaaaa);
	give(a, s);
	b = take(4, s);
	assert_int_equal(b, a);
	/* The stream queued no work that uses the region, so its work is done. */
	give(b, 0);
	assert_string_equal(dump(), "[-4][1][4]");
	c = take(4, t);
	assert_string_equal(dump(), "[*4][1][4][+4]");
	assert_int_equal(totals().waits, 1);
	fill(t, c, 4, 0xbbbb);
	/* The memory was freed by a stream that has not reached its wait for the memory. A third stream waits too. */
	give(c, 0);
	c = take(4, u);
	fill(u, c, 4, 0xcccc);
	later = record(u);
	assert_int_equal(gpool_fence_wait(pool, later, 10), -ETIMEDOUT);
	signal_fence(gate);
	assert_int_equal(gpool_fence_wait(pool, later, SOON_MS), 0);
	expect_content(c, 4, 0xcccc);
	give(c, u);
	give(d, u);
	gpool_stream_close(pool, manual);
	dump();
}

static void test_guarded_for_another_stream(void **state)
{
	uint32_t s = streams[0], t = streams[1], manual = manual_stream();
	struct gpool_fence gate;
	uint64_t a, b, c;

	(void)state;
	configure(4);
	c = take(4, s);
	give(c, s);
	a = take(2, s);
	gate = gate_before(s, manual);
	fill(s, a, 2, 0xaaaa);
	give(a, s);
	a = take(2, s);
	b = take(2, s);
	give(a, t);
	/* The region belongs to stream t. Neither t nor s may reuse it yet. */
	assert_string_equal(dump(), "[-2][2]");
	take(2, t);
	take(2, s);
	assert_int_equal(pool_pages(), 8);
	assert_string_equal(dump(), "[-2][2][2][+2]");
	give(b, 0);
	assert_string_equal(dump(), "[-2][-2][2][2]");
	signal_fence(gate);
	finish(s);
	finish(t);
	/*
	 * The stream gets its own region, or the one without a stream if the background thread has examined that one
	 * first.
	 */
	c = take(2, t);
	assert_true(c == a || c == b);
	assert_int_equal(pool_pages(), 8);
	/* The guard ends with the stream. */
	give(c, t);
	gate = gate_before(s, manual);
	b = take(2, s);
	give(b, s);
	assert_int_equal(take(2, s), b);
	give(b, t);
	signal_fence(gate);
	gpool_stream_close(pool, s);
	finish(t);
	dump();
	gpool_stream_close(pool, t);
	gpool_stream_close(pool, manual);
	assert_int_equal(pool->vpmm->set.guarded, 0);
}

static void test_closed_streams(void **state)
{
	uint32_t s = streams[0], t = streams[1], again;
	uint64_t a, b, c, calls;

	(void)state;
	configure(9);
	a = take(3, s);
	b = take(3, s);
	c = take(3, t);
	give(a, s);
	gpool_stream_close(pool, s);
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, s, &calls), -EINVAL);
	/* The memory was freed in a closed stream, whose work is done. */
	give(b, s);
	assert_string_equal(dump(), "[-6][3]");
	calls = driver_calls();
	assert_int_equal(take(6, t), a);
	assert_int_equal(driver_calls(), calls);
	give(a, t);
	/* Another stream, with another number, reuses the slot. */
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &again), 0);
	assert_int_equal(again & 255, s & 255);
	assert_int_not_equal(again, s);
	give(c, again);
	assert_string_equal(dump(), "[-6][-3]");
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, s, &calls), -EINVAL);
	streams[0] = again;
}

/* ---- captured memory ---- */

static void test_captured(void **state)
{
	uint32_t s = streams[0];
	uint64_t a, b, c;

	(void)state;
	configure(6);
	a = take(2, s);
	b = take(2, s);
	c = take(2, s);
	assert_int_equal(gpool_vm_capture(pool, a, 2), -EINVAL);
	assert_int_equal(gpool_vm_capture(pool, a + 1, 1), -EINVAL);
	assert_int_equal(gpool_vm_capture(pool, a + PAGE_BYTES, 1), -ESTALE);
	assert_int_equal(gpool_vm_capture(pool, a, 1), 0);
	assert_int_equal(gpool_vm_capture(pool, b, 1), 0);
	fill(s, a, 2, 5);
	give(a, s);
	assert_int_equal(gpool_free_async(pool, a, s), -ESTALE);
	give(c, s);
	/* The region is not reused, and its pages are not freed. */
	take(4, s);
	assert_string_equal(dump(), "[2][2][+4]");
	assert_int_equal(pool_pages(), 8);
	assert_int_equal(gpool_trim_to(pool, 0), 0);
	finish(s);
	expect_content(a, 2, 5);
	/* Memory freed before the capture is free when the capture ends. */
	assert_int_equal(gpool_vm_capture(pool, a, 1), -ESTALE);
	assert_int_equal(gpool_vm_capture(pool, a, 0), 0);
	assert_int_equal(gpool_vm_capture(pool, a, 0), -ESTALE);
	assert_int_equal(gpool_vm_capture(pool, b, 0), 0);
	assert_string_equal(dump(), "[-2][2][4]");
	give(b, s);
	assert_string_equal(dump(), "[-4][4]");
}

/* ---- default streams of threads ---- */

static pthread_barrier_t inside, outside;

struct own_stream {
	uint32_t stream, gate;
	uint64_t address;
	struct gpool_fence hold;
};

static uint32_t thread_stream(void)
{
	uint32_t stream = 0, again = 0;

	assert_int_equal(gpool_stream_open(pool, GPU_STREAM_PER_THREAD, 0, &stream), 0);
	assert_int_equal(gpool_stream_open(pool, GPU_STREAM_PER_THREAD, 0, &again), 0);
	assert_int_equal(again, stream);
	return stream;
}

static void *allocates_in_its_own_stream(void *argument)
{
	struct own_stream *own = argument;

	own->stream = thread_stream();
	own->address = take(4, own->stream);
	fill(own->stream, own->address, 4, 0xbbbb);
	finish(own->stream);
	return NULL;
}

/*
 * The driver has one handle for the default streams of all threads. Memory that one thread has freed, and that its
 * stream still uses, must not be allocated by another thread.
 * Requirements: M11.
 */
static void test_default_streams_of_two_threads(void **state)
{
	struct own_stream other = {0};
	uint32_t s, next, manual = manual_stream();
	struct gpool_fence gate, fence;
	pthread_t thread;
	uint64_t a;

	(void)state;
	configure(8);
	s = thread_stream();
	a = take(4, s);
	gate = gate_before(s, manual);
	fill(s, a, 4, 0xaaaa);
	give(a, s);
	/* In the order of its own stream, it can be used again at once. */
	assert_int_equal(take(4, s), a);
	give(a, s);
	assert_int_equal(pthread_create(&thread, NULL, allocates_in_its_own_stream, &other), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_not_equal(other.stream, s);
	assert_int_not_equal(other.address, a);
	expect_content(other.address, 4, 0xbbbb);
	signal_fence(gate);
	finish(s);
	expect_content(a, 4, 0xaaaa);
	expect_content(other.address, 4, 0xbbbb);
	/* The stream of the thread that has ended is closed, and its number not used again. */
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &next), 0);
	assert_int_equal(gpool_fence_record(pool, other.stream, &fence), -EINVAL);
	assert_int_equal(atomic_load(&pool->vpmm->streams_used), 1);
	give(other.address, other.stream);
	gpool_stream_close(pool, s);
	assert_int_not_equal(thread_stream(), s);
	gpool_stream_close(pool, manual);
}

static void *works_in_its_own_stream(void *argument)
{
	struct own_stream *own = argument;

	own->stream = thread_stream();
	own->address = take(2, own->stream);
	assert_int_equal(gpool_stream_wait(pool, own->stream, own->hold), 0);
	fill(own->stream, own->address, 2, 0xcccc);
	pthread_barrier_wait(&inside);
	pthread_barrier_wait(&outside);
	return NULL;
}

/* Calls of other threads with the number of a thread's default stream keep its order. Requirements: M11. */
static void test_default_stream_of_another_thread(void **state)
{
	struct own_stream other = {.gate = manual_stream()};
	struct gpool_fence fence, copied;
	pthread_t thread;
	void *native = NULL;
	uint64_t b;

	(void)state;
	configure(8);
	other.hold = record(other.gate);
	pthread_barrier_init(&inside, NULL, 2);
	pthread_barrier_init(&outside, NULL, 2);
	assert_int_equal(pthread_create(&thread, NULL, works_in_its_own_stream, &other), 0);
	pthread_barrier_wait(&inside);
	fence = record(other.stream);
	assert_int_equal(gpool_fence_done(pool, fence), 0);
	b = take(2, streams[0]);
	assert_int_equal(gpool_copy(pool, other.stream, b, other.address, 2 * PAGE_BYTES), 0);
	copied = record(other.stream);
	assert_int_equal(gpool_fence_done(pool, copied), 0);
	assert_int_equal(gpool_stream_native(pool, other.stream, &native), 0);
	assert_ptr_not_equal(native, GPU_STREAM_PER_THREAD);
	signal_fence(other.hold);
	assert_int_equal(gpool_fence_wait(pool, fence, SOON_MS), 0);
	expect_content(other.address, 2, 0xcccc);
	assert_int_equal(gpool_fence_wait(pool, copied, SOON_MS), 0);
	expect_content(b, 2, 0xcccc);
	/* The close waits for the work of the stream, even if it is called by another thread. */
	gpool_stream_close(pool, other.stream);
	pthread_barrier_wait(&outside);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pthread_barrier_destroy(&inside);
	pthread_barrier_destroy(&outside);
	gpool_stream_close(pool, other.gate);
}

/* ---- threads ---- */

/* The map call of one thread stops in the driver until the other thread is done. */
static struct gpu_ops stopping;
static const struct gpu_ops *real;
static pthread_t stopped_thread;
static _Atomic bool stop_once;

static int stopping_map(
	struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped)
{
	if (pthread_equal(pthread_self(), stopped_thread) && atomic_exchange(&stop_once, false)) {
		pthread_barrier_wait(&inside);
		pthread_barrier_wait(&outside);
	}
	return real->map(gpu, va, bytes, handles, count, mapped);
}

static void *stopped_call(void *address)
{
	stopped_thread = pthread_self();
	atomic_store(&stop_once, true);
	*(uint64_t *)address = take(8, streams[0]);
	return NULL;
}

/* Requirements: M13. */
static void test_streams_do_not_wait_for_each_others_driver_calls(void **state)
{
	uint64_t a, b, moved = 0, at[10];
	pthread_t thread;

	(void)state;
	configure(20);
	a = take(4, streams[0]);
	b = take(4, streams[1]);
	take(8, streams[0]);
	at[0] = take(4, streams[0]);
	give(a, streams[0]);
	give(at[0], streams[0]);
	pthread_barrier_init(&inside, NULL, 2);
	pthread_barrier_init(&outside, NULL, 2);
	real = pool->gpu->ops;
	stopping = *real;
	stopping.map = stopping_map;
	pool->gpu->ops = &stopping;
	assert_int_equal(pthread_create(&thread, NULL, stopped_call, &moved), 0);
	pthread_barrier_wait(&inside);
	/* During a remapping its new region, of a free region and a hole, is visible, but no allocation uses it. */
	assert_string_equal(dump(), "[-4][4][8][-4][#4]");
	for (int round = 0; round < 1000; round++) {
		give(b, streams[1]);
		b = take(4, streams[1]);
	}
	for (uint32_t i = 0; i < 10; i++)
		at[i] = take(1 + i % 3, streams[1]); /* with its own driver calls */
	for (int i = 0; i < 10; i++)
		give(at[i], streams[1]);
	pthread_barrier_wait(&outside);
	pthread_join(thread, NULL);
	pool->gpu->ops = real;
	pthread_barrier_destroy(&inside);
	pthread_barrier_destroy(&outside);
	fill(streams[0], moved, 8, 3);
	finish(streams[0]);
	expect_content(moved, 8, 3);
	dump();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_walk_a, attach, detach),
		cmocka_unit_test_setup_teardown(test_walk_b, attach, detach),
		cmocka_unit_test_setup_teardown(test_walk_c, attach, detach),
		cmocka_unit_test_setup_teardown(test_walk_d, attach, detach),
		cmocka_unit_test_setup_teardown(test_slack, attach, detach),
		cmocka_unit_test_setup_teardown(test_slack_for_a_part, attach, detach),
		cmocka_unit_test_setup_teardown(test_slack_at_the_quota, attach, detach),
		cmocka_unit_test_setup_teardown(test_grows_in_place, attach, detach),
		cmocka_unit_test_setup_teardown(test_grows_with_its_own_unfinished_pages, attach, detach),
		cmocka_unit_test_setup_teardown(test_joins, attach, detach),
		cmocka_unit_test_setup_teardown(test_holes_join, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_reservations, attach, detach),
		cmocka_unit_test_setup_teardown(test_wrong_addresses, attach, detach),
		cmocka_unit_test_setup_teardown(test_after_out_of_memory, attach, detach),
		cmocka_unit_test_setup_teardown(test_everything_in_one_piece, attach, detach),
		cmocka_unit_test_setup_teardown(test_one_stream_calls_no_driver, attach, detach),
		cmocka_unit_test_setup_teardown(test_finished_regions_of_others, attach, detach),
		cmocka_unit_test_setup_teardown(test_unfinished_regions_of_others, attach, detach),
		cmocka_unit_test_setup_teardown(test_waits_only_when_it_must, attach, detach),
		cmocka_unit_test_setup_teardown(test_without_a_stream, attach, detach),
		cmocka_unit_test_setup_teardown(test_guards, attach, detach),
		cmocka_unit_test_setup_teardown(test_guarded_for_another_stream, attach, detach),
		cmocka_unit_test_setup_teardown(test_closed_streams, attach, detach),
		cmocka_unit_test_setup_teardown(test_default_streams_of_two_threads, attach, detach),
		cmocka_unit_test_setup_teardown(test_default_stream_of_another_thread, attach, detach),
		cmocka_unit_test_setup_teardown(test_captured, attach, detach),
		cmocka_unit_test_setup_teardown(test_streams_do_not_wait_for_each_others_driver_calls, attach, detach),
	};

	return run_vpmm_tests(tests, sizeof(tests) / sizeof(*tests));
}
