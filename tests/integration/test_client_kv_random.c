/*
 * test_client_kv_random.c - paged KV caches against a model, and by several threads.
 *
 * Goal: whatever is done in whatever order, sequences have the tokens that they were given, each with its content, through forks, copies and
 * preemptions; blocks in use are those of running sequences; what is refused changes nothing and could not be had; the right one is
 * preempted and resumed. Threads that append to one sequence get different places. Method: random steps, of which GPOOL_TEST_SCALE makes
 * more, on a cache that is larger than what a neighbour leaves of the pool; every sequence's tokens as an array. The seed is printed, and
 * GPOOL_TEST_SEED= takes it back.
 */
#include "tests/integration/kv_view.h"

#include <pthread.h>

enum { MODELS = 24, TOKENS_MAX = 200, MODEL_BLOCKS = 320, WATERMARK = 6 };

struct model {
	uint64_t number; /* 0: none */
	uint32_t tokens, priority;
	uint64_t arrival; /* of forks the same */
	bool running;
	uint32_t contents[TOKENS_MAX];
};

static struct model models[MODELS];
static uint64_t seed, arrivals;
static uint32_t contents; /* the last that was written */
static struct gpool *neighbour;
static struct gpool_block taken[PAGES];
static uint32_t taken_count;

static uint32_t any(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16) % below;
}

static uint32_t scaled(uint32_t steps)
{
	const char *given_seed = getenv("GPOOL_TEST_SEED"), *given_scale = getenv("GPOOL_TEST_SCALE");
	double scale = given_scale ? atof(given_scale) : 1;

	seed = given_seed ? strtoull(given_seed, NULL, 0) : (uint64_t)(uintptr_t)&given_seed ^ 0x9e3779b97f4a7c15;
	printf("seed %llu\n", (unsigned long long)seed);
	return (uint32_t)(steps * scale) + 1;
}

/* ---- the model ---- */

static struct model *model_any(bool used)
{
	struct model *model = &models[any(MODELS)];

	return (model->number != 0) == used ? model : NULL;
}

static void write_content(const struct model *model, uint32_t token)
{
	*token_at(model->number, token) = model->contents[token];
}

static void contents_check(const struct model *model)
{
	for (uint32_t i = 0; model->running && i < model->tokens; i++)
		assert_int_equal(*token_at(model->number, i), model->contents[i]);
}

static void model_check(const struct model *model)
{
	struct gpool_kv_sequence info = info_of(model->number);

	assert_int_equal(info.tokens, model->tokens);
	assert_int_equal(info.priority, model->priority);
	assert_int_equal(info.state, model->running ? GPOOL_KV_RUNNING : GPOOL_KV_PREEMPTED);
	assert_true(info.blocks * BLOCK_TOKENS >= model->tokens);
}

/* Blocks in use are those in tables, and the shared ones those in more than one. */
static void blocks_check(void)
{
	uint8_t seen[MODEL_BLOCKS] = {0};
	struct gpool_kv_statistics found = statistics();
	uint32_t used = 0, shared = 0, running = 0;

	for (int i = 0; i < MODELS; i++) {
		uint32_t count = 0;
		const int32_t *blocks = models[i].number ? table_of(models[i].number, &count) : NULL;

		running += models[i].number && models[i].running;
		for (uint32_t j = 0; j < count; j++) {
			used += seen[blocks[j]] == 0;
			shared += seen[blocks[j]]++ == 1;
		}
	}
	assert_int_equal(found.used_blocks, used);
	assert_int_equal(found.shared_blocks, shared);
	assert_int_equal(found.running, running);
	for (uint32_t chunk = 0; chunk < MODEL_BLOCKS / CHUNK_BLOCKS; chunk++)
		assert_int_equal(bitmap_has(&kv->blocks.holes, chunk), kv->blocks.used[chunk] == 0);
}

static void all_check(void)
{
	settle();
	for (int i = 0; i < MODELS; i++)
		if (models[i].number) {
			model_check(&models[i]);
			contents_check(&models[i]);
		}
	blocks_check();
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	for (int i = 0; i < MODELS; i++)
		if (models[i].number && models[i].running)
			assert_true(device_agrees(models[i].number));
}

/* In the order in which they are preempted. */
static bool before(const struct model *a, const struct model *b)
{
	return a->priority != b->priority ? a->priority < b->priority : a->arrival > b->arrival;
}

/* What a call that was refused needed is not there. */
static void refused_check(int error, bool admission)
{
	struct gpool_kv_need need = shortage();
	uint32_t watermark = admission ? WATERMARK : 0;

	assert_int_equal(error, -ENOSPC);
	assert_true(need.needed_blocks + watermark > need.free_blocks || need.needed_blocks > need.available_blocks);
}

/* ---- steps ---- */

static void step_allocate(void)
{
	struct model *model = model_any(false);
	uint32_t tokens = any(60), estimated = any(3) ? 0 : any(120), priority = any(4);
	int error;

	if (!model)
		return;
	error = try_allocate(tokens, estimated, priority, &model->number);
	if (error) {
		refused_check(error, true);
		return;
	}
	model->tokens = tokens;
	model->priority = priority;
	model->arrival = ++arrivals;
	model->running = true;
	for (uint32_t i = 0; i < tokens; i++) {
		model->contents[i] = ++contents;
		write_content(model, i);
	}
}

static void step_append(void)
{
	struct model *model = model_any(true);
	uint32_t tokens = any(8) ? 1 : 1 + any(20);
	uint64_t slot;
	bool shared;
	int error;

	if (!model || model->tokens + tokens > TOKENS_MAX)
		return;
	shared = model->running && !info_of(model->number).room;
	error = gpool_kv_append(kv, model->number, tokens, &slot);
	if (!model->running) {
		assert_int_equal(error, -EAGAIN);
		return;
	}
	if (error) {
		refused_check(error, false);
		return;
	}
	/* A copy may be on its way. */
	if (shared && model->tokens % BLOCK_TOKENS)
		settle();
	assert_ptr_equal(word_at(slot), token_at(model->number, model->tokens));
	while (tokens--) {
		model->contents[model->tokens] = ++contents;
		write_content(model, model->tokens++);
	}
}

static void step_fork(void)
{
	struct model *parent = model_any(true), *child = model_any(false);
	uint64_t number;

	if (!parent || !child)
		return;
	if (!parent->running) {
		assert_int_equal(gpool_kv_fork(kv, parent->number, &number), -EAGAIN);
		return;
	}
	number = forked(parent->number);
	*child = *parent;
	child->number = number;
}

static void step_free(void)
{
	struct model *model = model_any(true);

	if (!model)
		return;
	contents_check(model);
	assert_int_equal(gpool_kv_free(kv, model->number), 0);
	assert_int_equal(gpool_kv_free(kv, model->number), -ESTALE);
	model->number = 0;
}

static struct model *model_of(uint64_t number)
{
	for (int i = 0; i < MODELS; i++)
		if (models[i].number == number)
			return &models[i];
	return NULL;
}

static void step_preempt(void)
{
	struct model *chosen = any(2) ? model_any(true) : NULL, *model;
	uint64_t victim = 0;
	int freed = gpool_kv_preempt(kv, chosen ? chosen->number : 0, &victim);

	if (chosen && !chosen->running) {
		assert_int_equal(freed, -EAGAIN);
		return;
	}
	if (freed == -ENOENT) {
		assert_int_equal(statistics().running, 0);
		return;
	}
	assert_true(freed >= 0);
	model = model_of(victim);
	assert_non_null(model);
	for (int i = 0; !chosen && i < MODELS; i++)
		assert_false(models[i].number && models[i].running && before(&models[i], model));
	model->running = false;
}

static void step_resume(void)
{
	struct model *model;
	uint64_t number;
	int error = gpool_kv_waiting(kv, &number);

	if (error) {
		assert_int_equal(statistics().preempted, 0);
		return;
	}
	model = model_of(number);
	assert_non_null(model);
	for (int i = 0; i < MODELS; i++)
		assert_false(models[i].number && !models[i].running && before(model, &models[i]));
	error = gpool_kv_resume(kv, number);
	if (error) {
		refused_check(error, statistics().running > 0);
		return;
	}
	model->running = true;
	for (uint32_t i = 0; i < model->tokens; i++)
		write_content(model, i);
}

static void step_neighbour(void)
{
	if (any(2) && taken_count < PAGES / 2) {
		taken_count += gpool_alloc(neighbour, 1 + any(4), NULL, &taken[taken_count]) == 0;
	} else if (taken_count) {
		uint32_t which = any(taken_count);

		assert_int_equal(gpool_free(neighbour, &taken[which]), 0);
		taken[which] = taken[--taken_count];
	}
}

static void test_random(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_statistics found;
	uint32_t steps = scaled(100000);

	(void)state;
	worker_open(calm);
	neighbour = open_worker();
	options = small_options(MODEL_BLOCKS);
	options.watermark_blocks = WATERMARK;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	for (uint32_t step = 0; step < steps; step++) {
		uint32_t which = any(100);

		if (which < 8)
			step_allocate();
		else if (which < 78)
			step_append();
		else if (which < 84)
			step_fork();
		else if (which < 90)
			step_free();
		else if (which < 93)
			step_preempt();
		else if (which < 97)
			step_resume();
		else
			step_neighbour();
		if (step % 64 == 0)
			all_check();
	}
	all_check();
	assert_int_equal(harness_check(&harness), 0);
	found = statistics();
	printf("%llu refusals, %llu copies, %llu preemptions, %llu resumes\n", (unsigned long long)found.refusals,
		(unsigned long long)found.block_copies, (unsigned long long)found.preemptions, (unsigned long long)found.resumes);
	/* It is a test of these too, once it is long enough. */
	if (steps > 10000)
		assert_true(found.refusals && found.block_copies && found.preemptions && found.resumes);
	gpool_close(neighbour);
}

/* ---- threads ---- */

enum { THREADS = 4, ONE_TOKENS = 1000 };

struct hand {
	pthread_t thread;
	uint64_t sequence; /* that all append to */
	uint32_t index, rounds, errors;
	uint8_t *slots;    /* that it got */
};

/* Its own sequences come and go beside one that all append to and fork. */
static void *hand_run(void *argument)
{
	struct hand *hand = argument;
	struct gpool_fence fence;

	for (uint32_t i = 0; i < hand->rounds; i++) {
		uint64_t own, child, slot;

		if (try_allocate(5, 0, hand->index, &own)) {
			hand->errors++;
			break;
		}
		for (uint32_t j = 0; j < 20; j++) {
			hand->errors += gpool_kv_append(kv, own, 1, &slot) != 0;
			*word_at(slot) = (uint64_t)hand->index << 32 | (5 + j);
		}
		hand->errors += wrong_tokens(own, 5, 20, hand->index);
		if (i < ONE_TOKENS / THREADS) {
			if (gpool_kv_append(kv, hand->sequence, 1, &slot))
				hand->errors++;
			else
				hand->slots[slot]++;
		}
		hand->errors += gpool_kv_fork(kv, own, &child) || gpool_kv_append(kv, child, 3, NULL) || gpool_kv_sync(kv);
		/* The copy is done before others, who write without a stream, get its blocks. */
		hand->errors += gpool_fence_record(worker, stream, &fence) || gpool_fence_wait(worker, fence, ANSWER_MS);
		hand->errors += gpool_kv_preempt(kv, own, NULL) < 0 || gpool_kv_resume(kv, own) || gpool_kv_free(kv, child);
		hand->errors += gpool_kv_append(kv, own, 1, NULL) || gpool_kv_free(kv, own);
	}
	return NULL;
}

static void test_threads(void **state)
{
	enum { SLOTS = 512 * BLOCK_TOKENS };
	struct hand hands[THREADS] = {{0}};
	uint32_t rounds = scaled(2000), all = 0;
	uint64_t sequence;

	(void)state;
	kv_start(calm, 0);
	sequence = allocated(0, 0, 9);
	for (uint32_t i = 0; i < THREADS; i++) {
		hands[i] = (struct hand){.sequence = sequence, .index = i, .rounds = rounds, .slots = calloc(SLOTS, 1)};
		assert_non_null(hands[i].slots);
		assert_int_equal(pthread_create(&hands[i].thread, NULL, hand_run, &hands[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(hands[i].thread, NULL);
		assert_int_equal(hands[i].errors, 0);
	}
	/* Each place once, and only those of the sequence. */
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		uint32_t times = 0;

		for (uint32_t i = 0; i < THREADS; i++)
			times += hands[i].slots[slot];
		assert_true(times <= 1);
		all += times;
	}
	for (uint32_t i = 0; i < THREADS; i++)
		free(hands[i].slots);
	assert_int_equal(info_of(sequence).tokens, all);
	assert_int_equal(statistics().used_blocks, (all + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_random, kv_stop),
		cmocka_unit_test_teardown(test_threads, kv_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
