/*
 * test_client_vpmm_random.c - the stream-ordered allocator compared with a simple model.
 *
 * The model knows the allocations. Each allocation gets a distinct value. Its stream writes the value, and copies it to
 * a witness before the free, so memory that was reused too early or allocated twice is detected in the witness. First
 * one thread runs, with checks of the sets around each call and periodic checks of all invariants. Then four threads
 * run on eight streams, and meet for the checks.
 *
 * Gates delay streams from time to time, so that freed memory has unfinished work and old addresses stay mapped. Both
 * addresses of a page must then have the same content. The strict back end refuses to unmap memory that queued work
 * uses, and counts such calls; see detach(). Free regions are offered often, because errors are likely where another
 * thread is about to use such a region.
 *
 * Requirements: M3.
 */
#include "tests/integration/vpmm.h"
#include "tests/lib/scale.h"

#include <errno.h>
#include <time.h>

enum {
	RANDOM_STREAMS = 8,
	THREADS = 4,
	LIVE_MAX = 50, /* per thread */
	PAGES_MAX = 16,
	WITNESSES = 4096, /* per thread between two checks */
	MODEL_PAGES = 1 << 16,
	STEPS_ALONE = 200000,
	STEPS_TOGETHER = 800000,
	FULL_CHECKS = 100, /* per part of the test */
};

static uint64_t seed;
static double scale = 1;

/* ---- the model ---- */

struct allocation {
	uint64_t address;
	uint32_t pages;  /* 0: a small allocation */
	uint32_t stream; /* index of the stream */
	uint32_t value;
	bool written;
};

struct actor {
	uint64_t random;
	uint32_t number;
	uint32_t live_count;
	uint64_t live_pages;
	struct allocation live[LIVE_MAX];
	uint64_t witness; /* address of the witness */
	uint32_t witness_count;
	uint32_t expected[WITNESSES];
	uint64_t steps, refused;
};

static struct actor actors[THREADS];
static _Atomic uint32_t model[MODEL_PAGES]; /* value of the allocation that has this page of the space, or 0 */
static _Atomic uint32_t values;
static uint32_t random_streams[RANDOM_STREAMS];
static pthread_rwlock_t stream_locks[RANDOM_STREAMS]; /* write-locked by the thread that closes the stream */
/*
 * Read-locked by a thread that delays a stream, and by streams that wait for it. Write-locked by a thread that closes a
 * stream, because a close waits for all work of the stream. Acquired before the other locks.
 */
static pthread_rwlock_t gates = PTHREAD_RWLOCK_INITIALIZER;
static uint32_t gate_stream;

static uint32_t any(struct actor *actor, uint32_t below)
{
	actor->random ^= actor->random << 13;
	actor->random ^= actor->random >> 7;
	actor->random ^= actor->random << 17;
	return (uint32_t)(actor->random >> 11) % below;
}

static void model_mark(const struct allocation *allocation, uint32_t from, uint32_t to)
{
	uint64_t base = pool->vpmm->chunks->space.base, first = (allocation->address - base) / PAGE_BYTES;

	if (allocation->address < base || first + allocation->pages > MODEL_PAGES)
		fail_msg("an address outside of the first reservation");
	for (uint64_t page = first; page < first + allocation->pages; page++) {
		uint32_t was = from;

		if (!atomic_compare_exchange_strong(&model[page], &was, to))
			fail_msg("page %d of the space is %u's, not %u's", (int)page, was, from);
	}
}

/* ---- contents ---- */

static uint64_t last_word(const struct allocation *allocation)
{
	return allocation->address + (allocation->pages ? (uint64_t)allocation->pages * PAGE_BYTES : 256) - 4;
}

static void content_write(struct allocation *allocation)
{
	uint32_t stream = random_streams[allocation->stream];

	assert_int_equal(gpool_fill(pool, stream, allocation->address, allocation->value, 4), 0);
	assert_int_equal(gpool_fill(pool, stream, last_word(allocation), allocation->value, 4), 0);
	allocation->written = true;
}

static void content_witness(struct actor *actor, const struct allocation *allocation)
{
	uint32_t stream = random_streams[allocation->stream];

	if (!allocation->written || actor->witness_count + 2 > WITNESSES)
		return;
	for (int i = 0; i < 2; i++) {
		uint64_t to = actor->witness + 4 * (uint64_t)actor->witness_count;

		assert_int_equal(gpool_copy(pool, stream, to, i ? last_word(allocation) : allocation->address, 4), 0);
		actor->expected[actor->witness_count++] = allocation->value;
	}
}

/* Check the witnesses. All streams are finished. */
static void witnesses_look(struct actor *actor)
{
	const volatile uint32_t *words = (const volatile uint32_t *)(uintptr_t)actor->witness;

	for (uint32_t i = 0; i < actor->witness_count; i++)
		if (words[i] != actor->expected[i])
			fail_msg("actor %u: witness %u is %u, not %u", actor->number, i, words[i], actor->expected[i]);
	for (uint32_t i = 0; i < actor->live_count; i++) {
		const struct allocation *allocation = &actor->live[i];

		if (allocation->written &&
			(*(volatile uint32_t *)(uintptr_t)allocation->address != allocation->value ||
				*(volatile uint32_t *)(uintptr_t)last_word(allocation) != allocation->value))
			fail_msg("actor %u: allocation %u has lost its content", actor->number, allocation->value);
	}
	actor->witness_count = 0;
}

/*
 * Check that each old address that is still mapped refers to the page that is in use at its new address. No thread is
 * in a call, and all streams are finished.
 */
static void old_places_look(void)
{
	static uint64_t new_place[PAGES];
	struct vpmm *vpmm = pool->vpmm;
	const struct region_chunk *chunk = region_chunk_next(&vpmm->set, NULL);
	const struct vm_region *region;
	uint32_t wrong = 0;

	memset(new_place, 0, sizeof(new_place));
	vpmm_lock(vpmm);
	for (int pending = 0; pending <= 1; pending++)
		for (region = chunk->lowest; region; region = region->after) {
			const struct vm_space *space = vpmm_space(region);

			if (region->moving ||
				(pending ? region->kind != VM_PENDING_UNMAP : region->kind != VM_ALLOCATED))
				continue;
			for (uint32_t slot = region->first; slot < region->first + region->count; slot++) {
				uint32_t page = space->pages[slot] - 1;

				if (!pending)
					new_place[page] = vm_address(space, slot);
				else if (new_place[page])
					wrong += memcmp((void *)(uintptr_t)new_place[page],
							 (void *)(uintptr_t)vm_address(space, slot), 64) != 0;
			}
		}
	vpmm_unlock(vpmm);
	assert_int_equal(wrong, 0);
}

static void all_look(void)
{
	char text[256] = "";
	uint64_t live = 0;

	for (int i = 0; i < RANDOM_STREAMS; i++)
		finish(random_streams[i]);
	old_places_look();
	for (int i = 0; i < THREADS; i++) {
		if (actors[i].witness)
			witnesses_look(&actors[i]);
		live += actors[i].live_pages + (actors[i].witness != 0);
	}
	if (vpmm_check(pool, text, sizeof(text)))
		fail_msg("%s", text);
	assert_int_equal(totals().live_bytes, live * PAGE_BYTES);
}

/* ---- steps ---- */

static void near_check(uint64_t address)
{
	struct vpmm *vpmm = pool->vpmm;
	struct vm_region *region;
	char text[256] = "";
	uint32_t findings = 1;

	vpmm_lock(vpmm);
	if (!region_find(&vpmm->set, address, &region))
		findings = region_check_near(&vpmm->set, region, text, sizeof(text));
	vpmm_unlock(vpmm);
	if (findings)
		fail_msg("%#llx: %s", (unsigned long long)address, text);
}

static void step_take(struct actor *actor, bool alone)
{
	struct allocation *allocation = &actor->live[actor->live_count];
	uint64_t bytes;
	int error;

	*allocation = (struct allocation){
		.pages = any(actor, 8) ? 1 + any(actor, any(actor, 4) ? 4 : PAGES_MAX) : 0,
		.stream = any(actor, RANDOM_STREAMS),
		.value = atomic_fetch_add(&values, 1) + 1,
	};
	bytes = allocation->pages ? (uint64_t)allocation->pages * PAGE_BYTES - any(actor, 2) * 4096 : 256;
	pthread_rwlock_rdlock(&stream_locks[allocation->stream]);
	error = gpool_malloc_async(pool, bytes, random_streams[allocation->stream], &allocation->address);
	if (error) {
		assert_int_equal(error, -ENOSPC);
		/*
		 * Each small allocation needs one page, the witness needs one, and the thread's magazine holds some.
		 * All other pages must be available.
		 */
		if (alone && actor->live_pages + allocation->pages + LIVE_MAX < PAGES)
			fail_msg("%u pages refused with %d live", allocation->pages, (int)actor->live_pages);
		actor->refused++;
	} else {
		if (allocation->pages)
			model_mark(allocation, 0, allocation->value);
		if (alone && allocation->pages)
			near_check(allocation->address);
		if (any(actor, 4) == 0)
			content_write(allocation);
		actor->live_pages += allocation->pages;
		actor->live_count++;
	}
	pthread_rwlock_unlock(&stream_locks[allocation->stream]);
}

/* Free in a different stream than that of the allocation, or in none. Memory without queued work needs no wait. */
static void give_elsewhere(struct actor *actor, const struct allocation *allocation)
{
	uint32_t stream = any(actor, RANDOM_STREAMS + 1);

	if (stream == RANDOM_STREAMS && !allocation->written) {
		assert_int_equal(gpool_free_async(pool, allocation->address, 0), 0);
		return;
	}
	/*
	 * Another thread is closing the stream, so a free in it would wait. Free in the stream of the allocation, whose
	 * lock is held.
	 */
	if (stream == RANDOM_STREAMS || pthread_rwlock_tryrdlock(&stream_locks[stream])) {
		assert_int_equal(gpool_free_async(pool, allocation->address, random_streams[allocation->stream]), 0);
		return;
	}
	if (allocation->written)
		assert_int_equal(
			gpool_stream_wait(pool, random_streams[stream], record(random_streams[allocation->stream])), 0);
	assert_int_equal(gpool_free_async(pool, allocation->address, random_streams[stream]), 0);
	pthread_rwlock_unlock(&stream_locks[stream]);
}

static void step_give(struct actor *actor)
{
	uint32_t which = any(actor, actor->live_count);
	struct allocation allocation = actor->live[which];

	pthread_rwlock_rdlock(&stream_locks[allocation.stream]);
	content_witness(actor, &allocation);
	if (allocation.pages)
		model_mark(&allocation, allocation.value, 0);
	if (any(actor, 8) == 0)
		give_elsewhere(actor, &allocation);
	else
		assert_int_equal(gpool_free_async(pool, allocation.address, random_streams[allocation.stream]), 0);
	pthread_rwlock_unlock(&stream_locks[allocation.stream]);
	actor->live[which] = actor->live[--actor->live_count];
	actor->live_pages -= allocation.pages;
}

/* Delay a stream for some time. Memory that is freed during the delay has unfinished work. */
static void step_gate(struct actor *actor)
{
	uint32_t stream = any(actor, RANDOM_STREAMS);
	struct gpool_fence gate = {0};

	pthread_rwlock_rdlock(&gates);
	pthread_rwlock_rdlock(&stream_locks[stream]);
	assert_int_equal(gpool_fence_record(pool, gate_stream, &gate), 0);
	assert_int_equal(gpool_stream_wait(pool, random_streams[stream], gate), 0);
	pthread_rwlock_unlock(&stream_locks[stream]);
	for (int i = 0; i < 4; i++) {
		if (actor->live_count && any(actor, 2))
			step_give(actor);
		if (actor->live_count < LIVE_MAX)
			step_take(actor, false);
	}
	signal_fence(gate);
	pthread_rwlock_unlock(&gates);
}

static void step_close(struct actor *actor)
{
	uint32_t stream = any(actor, RANDOM_STREAMS);

	pthread_rwlock_wrlock(&gates);
	pthread_rwlock_wrlock(&stream_locks[stream]);
	gpool_stream_close(pool, random_streams[stream]);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &random_streams[stream]), 0);
	pthread_rwlock_unlock(&stream_locks[stream]);
	pthread_rwlock_unlock(&gates);
}

/* Offer the free regions, as the background thread does, but more often. */
static void step_offer(void)
{
	struct vpmm *vpmm = pool->vpmm;

	vpmm_lock(vpmm);
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	vpmm_offer(vpmm);
	vpmm_unlock(vpmm);
}

static void step(struct actor *actor, bool alone)
{
	uint32_t what = any(actor, 2048);

	actor->steps++;
	if (what == 0)
		step_close(actor);
	else if (what == 1)
		gpool_trim_to(pool, any(actor, 100) * (uint64_t)PAGE_BYTES);
	else if (what < 10)
		step_gate(actor);
	else if (what < 100)
		step_offer();
	else if (what < 120)
		gpool_trim_to(pool, 0);
	else if (actor->live_count == LIVE_MAX || (actor->live_count && what % 2))
		step_give(actor);
	else
		step_take(actor, alone);
}

/* ---- runs ---- */

static void actor_begin(struct actor *actor, uint32_t number)
{
	*actor = (struct actor){.number = number, .random = (seed + number + 1) * UINT64_C(0x9e3779b97f4a7c15)};
	actor->witness = take(1, 0);
}

static void actor_end(struct actor *actor)
{
	while (actor->live_count)
		step_give(actor);
	give(actor->witness, 0);
	actor->witness = 0;
}

static int random_attach(void **state)
{
	struct gpool_vm_options options = vm_options(0);

	attach(state);
	for (int i = 0; i < STREAMS; i++)
		gpool_stream_close(pool, streams[i]);
	for (int i = 0; i < RANDOM_STREAMS; i++) {
		assert_int_equal(gpool_stream_open(pool, NULL, 0, &random_streams[i]), 0);
		pthread_rwlock_init(&stream_locks[i], NULL);
	}
	gate_stream = manual_stream();
	options.address_bytes = (uint64_t)MODEL_PAGES * PAGE_BYTES;
	options.slack_percent = seed % 2 ? 0 : -1;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	memset(actors, 0, sizeof(actors));
	return 0;
}

static void test_random_alone(void **state)
{
	uint32_t steps = (uint32_t)(STEPS_ALONE * scale), each = steps / FULL_CHECKS + 1;

	(void)state;
	actor_begin(&actors[0], 0);
	for (uint32_t i = 1; i <= steps; i++) {
		step(&actors[0], true);
		if (i % each == 0)
			all_look();
	}
	all_look();
	actor_end(&actors[0]);
	printf("%d steps, %d refused, %d remaps of %d MB, %d waits\n", (int)actors[0].steps, (int)actors[0].refused,
		(int)totals().remaps, (int)(totals().remapped_bytes >> 20), (int)totals().waits);
	assert_true(totals().remaps > 0);
}

static pthread_barrier_t barrier;

static void *actor_run(void *argument)
{
	struct actor *actor = argument;
	uint32_t steps = (uint32_t)(STEPS_TOGETHER * scale / THREADS), each = steps / FULL_CHECKS + 1;

	for (uint32_t i = 1; i <= steps; i++) {
		step(actor, false);
		if (i % each)
			continue;
		if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
			all_look();
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void test_random_together(void **state)
{
	pthread_t threads[THREADS];
	uint64_t steps = 0, refused = 0;

	(void)state;
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (uint32_t i = 0; i < THREADS; i++)
		actor_begin(&actors[i], i);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, actor_run, &actors[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	all_look();
	for (int i = 0; i < THREADS; i++) {
		steps += actors[i].steps;
		refused += actors[i].refused;
		actor_end(&actors[i]);
	}
	printf("%d steps, %d refused, %d remaps of %d MB, %d waits\n", (int)steps, (int)refused, (int)totals().remaps,
		(int)(totals().remapped_bytes >> 20), (int)totals().waits);
	pthread_barrier_destroy(&barrier);
}

int main(void)
{
	const char *given_seed = getenv("GPOOL_TEST_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_random_alone, random_attach, detach),
		cmocka_unit_test_setup_teardown(test_random_together, random_attach, detach),
	};

	seed = given_seed ? strtoull(given_seed, NULL, 0) : (uint64_t)time(NULL);
	scale = test_scale();
#ifdef __SANITIZE_THREAD__
	scale /= 3; /* the sanitizer slows each step several times, but finds more in it */
#endif
	printf("seed %llu\n", (unsigned long long)seed);
	return run_vpmm_tests(tests, sizeof(tests) / sizeof(*tests));
}
