/*
 * test_client_kv_offload_pool.c - save preempted sequences in blocks of the pool, which the mover spills to host memory
 * and a file.
 *
 * Goal: sequences are restored exactly from the pool, host memory or the file, under pressure, and after the agent, the
 * mover or an engine was killed. A prefetched sequence is in the pool before it is resumed. A sequence whose content
 * cannot be saved continues to run. A loss is reported once, and no memory is left behind.
 *
 * Method: each token has distinct content. Counters of the pool and the use of the tiers show moves. The pool has 64
 * pages.
 *
 * Requirements: K11.
 */
#include "tests/integration/kv_view.h"
#include "tests/integration/spill_view.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"
#include "tests/lib/temporary.h"

#include <pthread.h>
#include <sched.h>

enum { BLOCKS = 256, TOKENS = 200 * BLOCK_TOKENS, BLOCK_PAGES = 25, MODELS = 12, TOKENS_MAX = 320, STEPS = 3000 };

#define POOL_OF(memory) POOL ",spill_memory=" memory

static const char *const in_memory[] = {"--pool", POOL_OF("64MiB"), CALM, NULL};
static const char *const no_tier[] = {"--pool", POOL_OF("0MiB"), CALM, NULL};

/* Start with 4 pages of host memory, and a file. */
static void start_with_file(void)
{
	char text[256];

	snprintf(text, sizeof(text), POOL_OF("2MiB") ",spill_directory=%s,spill_file=64MiB", temporary_folder());
	kv_start((const char *const[]){"--pool", text, CALM, NULL}, BLOCKS);
}

static struct gpool_kv_offload_info offloaded(void)
{
	struct gpool_kv_offload_info found = {.size = sizeof(found)};

	assert_int_equal(gpool_kv_offload_info(kv, &found), 0);
	return found;
}

static uint64_t restored(void)
{
	return counter(POOL_COUNT_RESTORED_PAGES);
}

static uint64_t made(uint32_t tokens, uint64_t content)
{
	uint64_t sequence = allocated(tokens, 0, 0);

	write_tokens(sequence, 0, tokens, content);
	return sequence;
}

static int offload(uint64_t sequence)
{
	return gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_POOL, NULL);
}

static void evict_all(uint64_t pages)
{
	uint64_t before = spilled();

	AWAIT(spilled() - before >= pages ||
		(harness_evict(&harness, gpool_session(worker), PAGES), spilled() - before >= pages));
	AWAIT(moving() == 0);
}

static void resumed(uint64_t sequence, uint32_t tokens, uint64_t content)
{
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	assert_int_equal(wrong_tokens(sequence, 0, tokens, content), 0);
}

/* ---- save and restore ---- */

static void test_out_of_the_pool_itself(void **state)
{
	uint64_t sequence, other;

	(void)state;
	kv_start(in_memory, BLOCKS);
	sequence = made(TOKENS - 3, 7);
	assert_int_equal(offload(sequence), 200);
	assert_int_equal(offloaded().pool_pages, BLOCK_PAGES);
	assert_int_equal(offloaded().sequences, 1);
	assert_int_equal(offloaded().content_bytes, 200 * BLOCK_BYTES);
	assert_int_equal(statistics().used_blocks, 0);
	assert_int_equal(offload(sequence), -EAGAIN);
	settle();
	other = made(BLOCKS * BLOCK_TOKENS, 0xbad);
	assert_int_equal(gpool_kv_free(kv, other), 0);
	assert_int_equal(gpool_kv_prefetch(kv, sequence), 0);
	resumed(sequence, TOKENS - 3, 7);
	assert_int_equal(spilled(), 0);
	assert_int_equal(offloaded().pool_pages, 0);
	assert_int_equal(offloaded().loads, 1);
	assert_int_equal(gpool_kv_prefetch(kv, sequence), -EALREADY);
	/* A sequence without tokens has no content to save, and its end leaves nothing behind. */
	other = allocated(0, 8, 0);
	assert_true(offload(other) >= 0);
	assert_int_equal(gpool_kv_resume(kv, other), 0);
	assert_int_equal(offload(sequence), 200);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(offloaded().pool_pages, 0);
	settle();
	assert_int_equal(gpool_kv_destroy(kv), 0);
	kv = NULL;
	gpool_close(worker);
	worker = NULL;
	AWAIT(harness_free_pages(&harness) == PAGES);
}

static void test_memory_then_file(void **state)
{
	uint64_t sequence;

	(void)state;
	start_with_file();
	sequence = made(TOKENS, 8);
	assert_int_equal(offload(sequence), 200);
	settle();
	evict_all(BLOCK_PAGES);
	assert_int_equal(status()->pools[0].spill_memory_bytes, 4 * PAGE_BYTES);
	assert_int_equal(status()->pools[0].spill_file_bytes, (BLOCK_PAGES - 4) * PAGE_BYTES);
	resumed(sequence, TOKENS, 8);
	AWAIT(restored() == BLOCK_PAGES);
	assert_int_equal(kept_bytes(), 0);
	/* End the sequence while it is spilled. */
	assert_int_equal(offload(sequence), 200);
	settle();
	evict_all(BLOCK_PAGES);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	AWAIT(kept_bytes() == 0);
	/* Destroy the whole cache while the pool stays open. */
	sequence = made(TOKENS, 8);
	assert_int_equal(offload(sequence), 200);
	settle();
	evict_all(BLOCK_PAGES);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	AWAIT(kept_bytes() == 0);
}

/* Another session takes all pages, which evicts the content, and then frees them. */
static void test_pressure(void **state)
{
	struct gpool_block taken[PAGES];
	struct gpool *other;
	uint64_t sequence;
	uint32_t count = 0;

	(void)state;
	kv_start(in_memory, BLOCKS);
	other = open_worker();
	sequence = made(TOKENS, 9);
	assert_int_equal(offload(sequence), 200);
	settle();
	for (; count < PAGES - 1; count++)
		AWAIT(gpool_alloc(other, 1, NULL, &taken[count]) == 0);
	assert_true(spilled() > 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), -ENOSPC);
	assert_int_equal(gpool_kv_prefetch(kv, sequence), -ENOSPC);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_PREEMPTED);
	/* Free enough pages for the blocks and for one piece at a time. */
	for (uint32_t i = 0; i < BLOCK_PAGES + 8; i++)
		assert_int_equal(gpool_free(other, &taken[i]), 0);
	resumed(sequence, TOKENS, 9);
	gpool_close(other);
}

static void test_content_that_cannot_be_kept(void **state)
{
	struct gpool_block taken[PAGES];
	struct gpool *other;
	uint64_t sequence;
	uint32_t count = 0;

	(void)state;
	kv_start(in_memory, BLOCKS);
	other = open_worker();
	sequence = made(TOKENS, 10);
	while (count < PAGES && !gpool_alloc(other, 1, NULL, &taken[count]))
		count++;
	/* The second round has room for a part of the content. */
	for (int round = 0; round < 2; round++) {
		assert_int_equal(offload(sequence), -ENOSPC);
		assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
		assert_int_equal(offloaded().pool_pages, 0);
		assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL) == 0, round == 1);
		for (int i = 0; i < 10; i++)
			assert_int_equal(gpool_free(other, &taken[--count]), 0);
	}
	assert_int_equal(wrong_tokens(sequence, 0, TOKENS, 10), 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, 1u << 31, NULL), -EINVAL);
	assert_int_equal(gpool_kv_offload(kv, sequence, 0, NULL), -EOPNOTSUPP);
	gpool_close(other);
	AWAIT(offload(sequence) > 0);
	resumed(sequence, TOKENS, 10);
}

static void test_no_tier(void **state)
{
	uint64_t sequence;

	(void)state;
	kv_start(no_tier, BLOCKS);
	sequence = made(TOKENS, 11);
	assert_int_equal(offload(sequence), -EOPNOTSUPP);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
	assert_int_equal(wrong_tokens(sequence, 0, TOKENS, 11), 0);
}

/* ---- prefetch ---- */

static void test_prefetched(void **state)
{
	uint64_t sequence;

	(void)state;
	start_with_file();
	sequence = made(TOKENS, 12);
	assert_int_equal(offload(sequence), 200);
	settle();
	evict_all(BLOCK_PAGES);
	AWAIT(gpool_kv_prefetch(kv, sequence) == 0);
	/* All content is in the pool, and the sequence is not resumed yet. */
	AWAIT(restored() == BLOCK_PAGES);
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_PREEMPTED);
	/* Prefetched content may be evicted, and is loaded again. */
	evict_all(BLOCK_PAGES);
	assert_true(gpool_kv_prefetch(kv, sequence) > 0);
	resumed(sequence, TOKENS, 12);
	AWAIT(restored() == 2 * BLOCK_PAGES);
	/* End the sequence during the restore. */
	assert_int_equal(offload(sequence), 200);
	settle();
	evict_all(BLOCK_PAGES);
	assert_true(gpool_kv_prefetch(kv, sequence) > 0);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	AWAIT(kept_bytes() == 0);
	assert_int_equal(gpool_kv_prefetch(kv, sequence), -ESTALE);
	assert_int_equal(offloaded().pool_pages, 0);
}

/* A prefetch does not use the pages that the blocks themselves need, and evicts no other content. */
static void test_prefetch_leaves_room(void **state)
{
	struct gpool_block taken[PAGES], theirs;
	struct gpool *other;
	uint64_t sequence, evictions;
	int left = -1;

	(void)state;
	kv_start(in_memory, BLOCKS);
	other = open_worker();
	sequence = made(TOKENS, 13);
	assert_int_equal(offload(sequence), 200);
	settle();
	evict_all(BLOCK_PAGES);
	theirs = alloc(other, 1);
	assert_int_equal(gpool_unpin(other, &theirs), 0);
	for (uint32_t i = 0; i < PAGES - 2 - BLOCK_PAGES - 8; i++)
		taken[i] = alloc(other, 1);
	evictions = counter(POOL_COUNT_EVICTIONS);
	AWAIT((left = gpool_kv_prefetch(kv, sequence)) < 0);
	assert_int_equal(left, -ENOSPC);
	AWAIT(restored() > 0);
	assert_true(restored() <= 9);
	assert_int_equal(counter(POOL_COUNT_EVICTIONS), evictions);
	assert_int_equal(gpool_pin(other, &theirs), 0);
	resumed(sequence, TOKENS, 13);
	(void)taken;
	gpool_close(other);
}

/* ---- deaths ---- */

static void killed(const char *victim)
{
	uint64_t sequences[2];

	start_with_file();
	for (uint64_t i = 0; i < 2; i++)
		sequences[i] = made(40 * BLOCK_TOKENS, 20 + i);
	for (int round = 0; round < 6; round++) {
		pid_t pid;

		for (int i = 0; i < 2; i++)
			AWAIT(offload(sequences[i]) > 0);
		settle();
		if (round % 2 == 0)
			evict_all(10);
		else
			harness_evict(&harness, gpool_session(worker), 8);
		/* In the first rounds no content is moving; in the later ones a restore is under way. */
		if (round > 2)
			gpool_kv_prefetch(kv, sequences[0]);
		AWAIT((pid = process_of(victim)) > 0);
		kill(pid, SIGKILL);
		for (uint64_t i = 0; i < 2; i++) {
			AWAIT(gpool_kv_resume(kv, sequences[i]) == 0);
			settle();
			assert_int_equal(wrong_tokens(sequences[i], 0, 40 * BLOCK_TOKENS, 20 + i), 0);
		}
	}
	AWAIT(kept_bytes() == 0);
}

static void test_agent_killed(void **state)
{
	(void)state;
	killed("gpoold-agent");
}

static void test_mover_killed(void **state)
{
	(void)state;
	killed("gpoold-mover");
}

static void test_engine_killed(void **state)
{
	int ready[2];
	char byte;
	pid_t pid;

	(void)state;
	start(in_memory);
	assert_int_equal(pipe(ready), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct gpool_kv_options options;
		uint64_t sequence = 0;

		worker = harness_open(&harness);
		if (gpool_stream_open(worker, NULL, 0, &stream))
			_exit(1);
		options = small_options(BLOCKS);
		if (gpool_kv_create(worker, &options, &kv) || try_allocate(TOKENS, 0, 0, &sequence) ||
			offload(sequence) < 0 || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			gpool_kv_prefetch(kv, sequence);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	AWAIT((restored() > 10 && kept_bytes() > 0) || (harness_evict(&harness, 0, 7), false));
	kill(pid, SIGKILL);
	status_of(pid);
	AWAIT(harness_free_pages(&harness) == PAGES && kept_bytes() == 0);
	assert_int_equal(moving(), 0);
	close(ready[0]);
	close(ready[1]);
}

static void test_damaged(void **state)
{
	uint64_t sequence, word;
	int fd;

	(void)state;
	kv_start(in_memory, BLOCKS);
	for (int prefetched = 0; prefetched < 2; prefetched++) {
		int result = 0;

		sequence = made(TOKENS, 14);
		assert_int_equal(offload(sequence), 200);
		settle();
		evict_all(BLOCK_PAGES);
		fd = tier_open("memfd:gpool-spill", 64 << 20);
		assert_true(fd >= 0);
		for (off_t page = 0; page < 64 << 20; page += PAGE_BYTES) {
			assert_int_equal(pread(fd, &word, 8, page + 4096), 8);
			word ^= 1 << 20;
			assert_int_equal(pwrite(fd, &word, 8, page + 4096), 8);
		}
		close(fd);
		if (prefetched) {
			AWAIT((result = gpool_kv_prefetch(kv, sequence)) < 0);
			assert_int_equal(result, -ENODATA);
		}
		assert_int_equal(gpool_kv_resume(kv, sequence), -ENODATA);
		assert_int_equal(info_of(sequence).state, GPOOL_KV_PREEMPTED);
		/* The engine has to compute the sequence again. */
		assert_int_equal(offloaded().sequences, 0);
		assert_int_equal(gpool_kv_resume(kv, sequence), 0);
		assert_int_equal(info_of(sequence).tokens, TOKENS);
		assert_int_equal(gpool_kv_free(kv, sequence), 0);
		AWAIT(kept_bytes() == 0);
	}
}

/* ---- calls that fail ---- */

static void test_faults(void **state)
{
	const enum gpu_call kinds[] = {GPU_CALL_COPY, GPU_CALL_TIMELINE_WRITE};
	uint64_t sequence;

	(void)state;
	kv_start(in_memory, BLOCKS);
	sequence = made(TOKENS, 15);
	for (uint32_t kind = 0; kind < 2; kind++) {
		for (uint64_t nth = 1; nth <= 4; nth++) {
			int result;

			gpu_fault_set(worker->gpu, kinds[kind], nth, -EIO);
			result = offload(sequence);
			gpu_fault_set(worker->gpu, kinds[kind], 0, 0);
			if (result < 0) {
				assert_int_equal(result, -EIO);
				assert_int_equal(offloaded().pool_pages, 0);
				assert_int_equal(wrong_tokens(sequence, 0, TOKENS, 15), 0);
				assert_int_equal(offload(sequence), 200);
			}
			settle();
			if (nth % 2)
				evict_all(BLOCK_PAGES);
			gpu_fault_set(worker->gpu, kinds[kind], nth, -EIO);
			result = gpool_kv_resume(kv, sequence);
			gpu_fault_set(worker->gpu, kinds[kind], 0, 0);
			if (result) {
				assert_int_equal(result, -EIO);
				assert_int_equal(statistics().used_blocks, 0);
				assert_int_equal(offloaded().pool_pages, BLOCK_PAGES);
				assert_int_equal(gpool_kv_resume(kv, sequence), 0);
			}
			settle();
			assert_int_equal(wrong_tokens(sequence, 0, TOKENS, 15), 0);
		}
	}
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	kv = NULL;
	gpool_close(worker);
	worker = NULL;
	AWAIT(harness_free_pages(&harness) == PAGES && kept_bytes() == 0);
}

static void test_asleep(void **state)
{
	uint64_t sequence, other;

	(void)state;
	kv_start(in_memory, BLOCKS);
	sequence = made(TOKENS, 16);
	other = made(10, 17);
	assert_int_equal(offload(sequence), 200);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	assert_int_equal(offload(other), -EHOSTDOWN);
	assert_int_equal(gpool_kv_resume(kv, sequence), -EHOSTDOWN);
	assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
	resumed(sequence, TOKENS, 16);
}

/* ---- threads ---- */

struct preempter {
	pthread_t thread;
	uint32_t content;
	uint32_t wrong;
	int error;
};

/* Use a sequence of this thread, with tokens that no other thread has. */
static int preempt_once(struct preempter *preempter, uint32_t round)
{
	uint32_t tokens = 60 + 20 * (round % 3);
	uint64_t sequence;
	int error = try_allocate(tokens, 0, 0, &sequence);

	/* Other threads may hold all pages. */
	if (error)
		return error == -ENOSPC ? 0 : error;
	settle();
	write_tokens(sequence, 0, tokens, preempter->content);
	error = gpool_kv_offload(kv, sequence, round % 4 ? GPOOL_KV_OFFLOAD_POOL : 0, NULL);
	if (error >= 0) {
		for (uint32_t i = 0; i < round % 3; i++)
			gpool_kv_prefetch(kv, sequence);
		while ((error = gpool_kv_resume(kv, sequence)) == -ENOSPC && round % 5)
			sched_yield();
		settle();
		if (!error)
			preempter->wrong += wrong_tokens(sequence, 0, tokens, preempter->content);
	}
	if (error == -ENOSPC)
		error = 0;
	return gpool_kv_free(kv, sequence) ? -EIO : error;
}

static void *preempter_main(void *argument)
{
	struct preempter *preempter = argument;

	for (uint32_t round = 0; round < 60 && !preempter->error; round++)
		preempter->error = preempt_once(preempter, round);
	return NULL;
}

static void test_threads(void **state)
{
	struct preempter preempters[4] = {{0}};

	(void)state;
	start_with_file();
	assert_int_equal(gpool_kv_host_reserve(kv, 20 * BLOCK_BYTES), 0);
	for (uint32_t i = 0; i < 4; i++) {
		preempters[i].content = 100 + i;
		assert_int_equal(pthread_create(&preempters[i].thread, NULL, preempter_main, &preempters[i]), 0);
	}
	for (int i = 0; i < 40; i++)
		harness_evict(&harness, gpool_session(worker), PAGES);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(preempters[i].thread, NULL), 0);
		assert_int_equal(preempters[i].error, 0);
		assert_int_equal(preempters[i].wrong, 0);
	}
	assert_int_equal(offloaded().sequences, 0);
	assert_int_equal(offloaded().pool_pages, 0);
	AWAIT(kept_bytes() == 0);
}

/* ---- random ---- */

struct model {
	uint64_t number; /* 0: none */
	uint32_t tokens, content;
	bool running;
};

static struct model models[MODELS];
static void step(struct model *model)
{
	int result;

	switch (any(8)) {
	case 0:
		assert_int_equal(gpool_kv_free(kv, model->number), 0);
		model->number = 0;
		break;
	case 1:
	case 2:
		if (!model->running)
			break;
		result = gpool_kv_offload(kv, model->number, any(3) ? GPOOL_KV_OFFLOAD_POOL : 0, NULL);
		assert_true(result >= 0 || result == -ENOSPC);
		model->running = result < 0;
		break;
	case 3: harness_evict(&harness, gpool_session(worker), 1 + any(PAGES)); break;
	case 4:
		result = gpool_kv_prefetch(kv, model->number);
		assert_true(model->running ? result == -EALREADY : result >= 0 || result == -ENOSPC);
		break;
	default:
		if (!model->running && gpool_kv_resume(kv, model->number) == 0)
			model->running = true;
	}
}

static void test_by_chance(void **state)
{
	uint32_t steps = test_scaled(STEPS);

	(void)state;
	seed_begin();
	start_with_file();
	assert_int_equal(gpool_kv_host_reserve(kv, 20 * BLOCK_BYTES), 0);
	for (uint32_t i = 0; i < steps; i++) {
		struct model *model = &models[any(MODELS)];

		alarm(STUCK_SECONDS);
		if (model->number) {
			step(model);
		} else {
			*model = (struct model){
				.tokens = 1 + any(TOKENS_MAX), .content = 1 + any(UINT16_MAX), .running = true};
			if (try_allocate(model->tokens, 0, any(3), &model->number)) {
				model->number = 0;
				continue;
			}
			settle();
			write_tokens(model->number, 0, model->tokens, model->content);
		}
		if (!model->number || !model->running)
			continue;
		settle();
		assert_int_equal(wrong_tokens(model->number, 0, model->tokens, model->content), 0);
	}
	assert_true(offloaded().loads > 0);
	for (int m = 0; m < MODELS; m++)
		if (models[m].number)
			assert_int_equal(gpool_kv_free(kv, models[m].number), 0);
	AWAIT(kept_bytes() == 0);
	assert_int_equal(offloaded().sequences, 0);
	assert_int_equal(offloaded().host_free_blocks, 20);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_out_of_the_pool_itself, kv_stop),
		cmocka_unit_test_teardown(test_memory_then_file, kv_stop),
		cmocka_unit_test_teardown(test_pressure, kv_stop),
		cmocka_unit_test_teardown(test_content_that_cannot_be_kept, kv_stop),
		cmocka_unit_test_teardown(test_no_tier, kv_stop),
		cmocka_unit_test_teardown(test_prefetched, kv_stop),
		cmocka_unit_test_teardown(test_prefetch_leaves_room, kv_stop),
		cmocka_unit_test_teardown(test_agent_killed, kv_stop),
		cmocka_unit_test_teardown(test_mover_killed, kv_stop),
		cmocka_unit_test_teardown(test_engine_killed, kv_stop),
		cmocka_unit_test_teardown(test_damaged, kv_stop),
		cmocka_unit_test_teardown(test_faults, kv_stop),
		cmocka_unit_test_teardown(test_asleep, kv_stop),
		cmocka_unit_test_teardown(test_threads, kv_stop),
		cmocka_unit_test_teardown(test_by_chance, kv_stop),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
