/*
 * test_client_kv_group.c - sequences that extend over several KV caches.
 *
 * Goal: each cache contains its range of a sequence's tokens, with their content, across forks, preemptions, and
 * appends that cross the boundary between ranges. A call that one cache refuses changes nothing in any cache. Invalid
 * arguments are refused.
 *
 * Method: three pools with caches of different sizes, so that each cache refuses calls at times. The tests are
 * examples, and random steps that are compared with arrays of tokens.
 *
 * Requirements: K9, K16.
 */
#include "tests/integration/kv_view.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

enum { CACHES = 3, RANGE = 40, MODELS = 10, TOKENS_MAX = 160, STEPS = 20000 };

#define POOL_NAMED(name) "name=" name ",backend=host,size=32MiB,page_size=512KB,reserved=0"

struct model {
	uint64_t number; /* 0: none */
	uint32_t tokens;
	bool running;
	uint32_t contents[TOKENS_MAX];
};

static struct gpool *pools[CACHES];
static uint32_t streams[CACHES];
static struct gpool_kv *caches[CACHES];
static struct gpool_kv_group *group;
static struct model models[MODELS];
static int group_start(void **state)
{
	static const char *const arguments[] = {
		"--pool", POOL_NAMED("p0"), "--pool", POOL_NAMED("p1"), "--pool", POOL_NAMED("p2"), CALM, NULL};
	static const uint32_t blocks[CACHES] = {64, 24, 120};

	(void)state;
	start(arguments);
	for (int i = 0; i < CACHES; i++) {
		struct gpool_kv_options options = small_options(blocks[i]);
		char name[] = "p0";

		name[1] = (char)('0' + i);
		pools[i] = open_as(0, name, NULL);
		assert_int_equal(gpool_stream_open(pools[i], NULL, 0, &streams[i]), 0);
		options.stream = streams[i];
		options.watermark_blocks = i == 1 ? 2 : GPOOL_KV_NO_WATERMARK;
		assert_int_equal(gpool_kv_create(pools[i], &options, &caches[i]), 0);
	}
	assert_int_equal(gpool_kv_group_create(caches, CACHES, RANGE, &group), 0);
	memset(models, 0, sizeof(models));
	return 0;
}

static int group_stop(void **state)
{
	gpool_kv_group_destroy(group);
	for (int i = 0; i < CACHES; i++)
		gpool_close(pools[i]);
	return stop(state);
}

static struct gpool_kv_stats counts(int cache)
{
	struct gpool_kv_stats found = {.size = sizeof(found)};

	assert_int_equal(gpool_kv_stats(caches[cache], &found), 0);
	return found;
}

static struct gpool_kv_span span_of(uint64_t sequence, uint32_t member)
{
	struct gpool_kv_span span = {.size = sizeof(span)};

	assert_int_equal(gpool_kv_group_span(group, sequence, member, &span), 0);
	return span;
}

static int try_group(uint32_t tokens, uint32_t estimated, uint32_t priority, uint64_t *sequence)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

	request.tokens = tokens;
	request.estimated_tokens = estimated;
	request.priority = priority;
	return gpool_kv_group_allocate(group, &request, sequence);
}

static uint32_t share(uint32_t tokens, uint32_t member)
{
	uint32_t left = tokens > member * RANGE ? tokens - member * RANGE : 0;

	return member < CACHES - 1 && left > RANGE ? RANGE : left;
}

/* ---- contents ---- */

static void settle_all(void)
{
	for (int i = 0; i < CACHES; i++) {
		struct gpool_fence fence;

		assert_int_equal(gpool_fence_record(pools[i], streams[i], &fence), 0);
		assert_int_equal(gpool_fence_wait(pools[i], fence, ANSWER_MS), 0);
	}
}

/* Return the address of a token's content, given the token's position in the whole sequence. */
static volatile uint64_t *place_of(uint64_t sequence, uint32_t token)
{
	uint32_t member = token / RANGE < CACHES ? token / RANGE : CACHES - 1, at = token - member * RANGE, count;
	struct gpool_kv_span span = span_of(sequence, member);
	const int32_t *blocks;
	uint64_t address;

	assert_int_equal(span.first_token, member * RANGE);
	assert_int_equal(gpool_kv_table(caches[member], span.sequence, &blocks, &count), 0);
	assert_true(at / BLOCK_TOKENS < count);
	assert_int_equal(gpool_kv_address(caches[member], (uint32_t)blocks[at / BLOCK_TOKENS], &address), 0);
	return (volatile uint64_t *)(uintptr_t)(address + at % BLOCK_TOKENS * TOKEN_BYTES);
}

static void write_model(struct model *model, uint32_t first)
{
	settle_all();
	for (uint32_t i = first; i < model->tokens; i++)
		*place_of(model->number, i) = model->contents[i] = any(UINT32_MAX);
}

static void check_model(const struct model *model)
{
	for (uint32_t i = 0; i < CACHES; i++) {
		struct gpool_kv_span span = span_of(model->number, i);

		assert_int_equal(span.tokens, share(model->tokens, i));
		assert_true(i == 0 ? span.sequence == model->number : span.sequence || !span.tokens);
		if (model->running)
			assert_true((uint64_t)span.blocks * BLOCK_TOKENS >= span.tokens);
	}
	for (uint32_t i = 0; model->running && i < model->tokens; i++)
		assert_int_equal(*place_of(model->number, i), model->contents[i]);
}

/* ---- examples ---- */

static void test_ranges(void **state)
{
	uint64_t sequence, slot, child, address;
	uint32_t member;

	(void)state;
	assert_int_equal(try_group(RANGE + 5, 0, 0, &sequence), 0);
	assert_int_equal(span_of(sequence, 0).tokens, RANGE);
	assert_int_equal(span_of(sequence, 1).tokens, 5);
	assert_int_equal(span_of(sequence, 1).blocks, 2);
	assert_true(span_of(sequence, 2).sequence == 0);
	/* Append across the next boundary and by more than a range into the last cache. */
	assert_int_equal(gpool_kv_group_append(group, sequence, 2 * RANGE + 30, &member, &slot), 0);
	assert_int_equal(member, 1);
	assert_int_equal(span_of(sequence, 1).tokens, RANGE);
	assert_int_equal(span_of(sequence, 2).tokens, RANGE + 35);
	settle_all();
	*place_of(sequence, RANGE + 5) = 77;
	assert_int_equal(gpool_kv_address(caches[1], (uint32_t)(slot / BLOCK_TOKENS), &address), 0);
	assert_int_equal(*(volatile uint64_t *)(uintptr_t)(address + slot % BLOCK_TOKENS * TOKEN_BYTES), 77);
	assert_int_equal(gpool_kv_group_fork(group, sequence, &child), 0);
	assert_true(child != sequence);
	assert_int_equal(counts(2).shared_blocks, (RANGE + 35 + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
	assert_int_equal(gpool_kv_group_append(group, child, 1, &member, NULL), 0);
	assert_int_equal(member, 2);
	assert_int_equal(span_of(sequence, 2).tokens, RANGE + 35);
	assert_int_equal(span_of(child, 2).tokens, RANGE + 36);
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	assert_int_equal(gpool_kv_group_free(group, sequence), -ESTALE);
	assert_int_equal(gpool_kv_group_free(group, child), 0);
	for (int i = 0; i < CACHES; i++)
		assert_int_equal(counts(i).used_blocks, 0);
}

/* Blocks that were allocated in advance are used without a request. */
static void test_estimated(void **state)
{
	uint64_t sequence, ahead;

	(void)state;
	assert_int_equal(try_group(RANGE - 1, 2 * RANGE + 8, 0, &sequence), 0);
	ahead = span_of(sequence, 1).sequence;
	assert_true(ahead != 0);
	assert_int_equal(span_of(sequence, 1).tokens, 0);
	assert_int_equal(span_of(sequence, 1).blocks, RANGE / BLOCK_TOKENS);
	assert_int_equal(counts(2).used_blocks, 2);
	assert_int_equal(gpool_kv_group_append(group, sequence, RANGE + 9, NULL, NULL), 0);
	assert_true(span_of(sequence, 1).sequence == ahead);
	assert_int_equal(span_of(sequence, 2).tokens, 8);
	assert_int_equal(counts(2).used_blocks, 2);
	/* The sequence has more tokens than were estimated, so it is allocated again in that cache. */
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	assert_int_equal(try_group(RANGE, RANGE + 4, 0, &sequence), 0);
	ahead = span_of(sequence, 1).sequence;
	assert_int_equal(gpool_kv_group_append(group, sequence, 9, NULL, NULL), 0);
	assert_true(span_of(sequence, 1).sequence != ahead);
	assert_int_equal(gpool_kv_free(caches[1], ahead), -ESTALE);
	assert_int_equal(counts(1).used_blocks, 3);
}

static void test_all_or_nothing(void **state)
{
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint64_t first, second, other;
	uint32_t member;

	(void)state;
	/*
	 * The second cache has 24 blocks, of which admission keeps 2. A whole range of 10 blocks is admitted twice, but
	 * not three times.
	 */
	assert_int_equal(try_group(2 * RANGE, 0, 0, &first), 0);
	assert_int_equal(try_group(2 * RANGE + 4, 0, 0, &second), 0);
	assert_int_equal(gpool_kv_group_can_allocate(group, 2 * RANGE, &member, &need), GPOOL_KV_LATER);
	assert_int_equal(member, 1);
	assert_int_equal(need.needed_blocks, 10);
	assert_int_equal(try_group(2 * RANGE + 8, 0, 0, &other), -ENOSPC);
	assert_int_equal(gpool_kv_group_oom_info(group, &member, &need), 0);
	assert_int_equal(member, 1);
	assert_int_equal(need.needed_blocks, 10);
	assert_int_equal(counts(0).used_blocks, 20);
	assert_int_equal(counts(2).used_blocks, 1);
	/* A running sequence may use the blocks of the watermark too, up to the last block of the cache. */
	assert_int_equal(try_group(RANGE, 0, 0, &other), 0);
	assert_int_equal(gpool_kv_group_append(group, other, 17, NULL, NULL), -ENOSPC);
	assert_int_equal(span_of(other, 0).tokens, RANGE);
	assert_int_equal(gpool_kv_group_append(group, other, 16, NULL, NULL), 0);
	assert_int_equal(counts(1).free_blocks, 0);
	/* Append across two boundaries at once: the second cache has no room, so the third cache gets no tokens. */
	assert_int_equal(gpool_kv_group_append(group, other, 2 * RANGE, NULL, NULL), -ENOSPC);
	assert_int_equal(counts(2).used_blocks, 1);
	assert_true(span_of(other, 2).sequence == 0);
	/* A preempted sequence is resumed in all caches or in none. */
	assert_int_equal(gpool_kv_group_preempt(group, second, NULL), 21);
	assert_int_equal(gpool_kv_group_append(group, second, 1, NULL, NULL), -EAGAIN);
	assert_int_equal(try_group(RANGE + 4, 0, 0, &second), 0);
	assert_int_equal(gpool_kv_waiting(caches[0], &second), 0);
	assert_int_equal(gpool_kv_group_resume(group, second), -ENOSPC);
	assert_int_equal(gpool_kv_group_oom_info(group, &member, &need), 0);
	assert_int_equal(member, 1);
	for (int i = 0; i < CACHES; i++)
		assert_int_equal(counts(i).preempted, 1);
	assert_int_equal(gpool_kv_group_free(group, first), 0);
	assert_int_equal(gpool_kv_group_resume(group, second), 0);
	assert_int_equal(gpool_kv_group_resume(group, second), -EALREADY);
	assert_int_equal(counts(2).used_blocks, 1);
}

static void test_wrong_arguments(void **state)
{
	struct gpool_kv *twice[] = {caches[0], caches[1], caches[0]};
	struct gpool_kv_group *made;
	struct gpool_kv_span span = {.size = sizeof(span)};
	uint64_t sequence;

	(void)state;
	assert_int_equal(gpool_kv_group_create(caches, 0, RANGE, &made), -EINVAL);
	assert_int_equal(gpool_kv_group_create(caches, 17, RANGE, &made), -EINVAL);
	assert_int_equal(gpool_kv_group_create(caches, CACHES, 0, &made), -EINVAL);
	assert_int_equal(gpool_kv_group_create(caches, CACHES, RANGE + 1, &made), -EINVAL);
	assert_int_equal(gpool_kv_group_create(caches, CACHES, 2048, &made), -EINVAL);
	assert_int_equal(gpool_kv_group_create(twice, CACHES, RANGE, &made), -EINVAL);
	assert_int_equal(gpool_kv_group_create((struct gpool_kv *const[]){caches[0], NULL}, 2, RANGE, &made), -EINVAL);
	assert_int_equal(try_group(3000, 0, 0, &sequence), -EFBIG);
	assert_int_equal(try_group(3, 0, 0, &sequence), 0);
	assert_int_equal(gpool_kv_group_append(group, sequence, 0, NULL, NULL), -EINVAL);
	assert_int_equal(gpool_kv_group_append(group, sequence, UINT32_MAX, NULL, NULL), -EFBIG);
	assert_int_equal(gpool_kv_group_append(group, 0, 1, NULL, NULL), -EINVAL);
	assert_int_equal(gpool_kv_group_append(group, sequence + 1, 1, NULL, NULL), -ESTALE);
	assert_int_equal(gpool_kv_group_append(group, sequence | UINT32_MAX, 1, NULL, NULL), -EINVAL);
	assert_int_equal(gpool_kv_group_span(group, sequence, CACHES, &span), -EINVAL);
	assert_int_equal(gpool_kv_group_preempt(group, sequence ^ (UINT64_C(1) << 40), NULL), -ESTALE);
	gpool_kv_group_destroy(NULL);
}

/* ---- random ---- */

static struct gpool_kv_stats before[CACHES];

static void note(void)
{
	for (int i = 0; i < CACHES; i++)
		before[i] = counts(i);
}

static void nothing_has_changed(void)
{
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint32_t member = CACHES;

	for (int i = 0; i < CACHES; i++) {
		struct gpool_kv_stats now = counts(i);

		assert_int_equal(now.used_blocks, before[i].used_blocks);
		assert_int_equal(now.running, before[i].running);
		assert_int_equal(now.preempted, before[i].preempted);
		assert_int_equal(now.shared_blocks, before[i].shared_blocks);
	}
	assert_int_equal(gpool_kv_group_oom_info(group, &member, &need), 0);
	assert_true(member < CACHES);
	assert_true(need.needed_blocks + need.watermark_blocks > need.free_blocks);
}

static void allocate_any(struct model *model)
{
	uint32_t tokens = any(TOKENS_MAX), estimated = any(3) ? 0 : any(TOKENS_MAX);
	int error = try_group(tokens, estimated, any(3), &model->number);

	if (error) {
		assert_int_equal(error, -ENOSPC);
		model->number = 0;
		nothing_has_changed();
		return;
	}
	model->tokens = tokens;
	model->running = true;
	write_model(model, 0);
}

static void append_any(struct model *model)
{
	uint32_t more = 1 + any(any(4) ? 6 : 100), first = model->tokens;
	int error;

	if (first + more > TOKENS_MAX)
		return;
	error = gpool_kv_group_append(group, model->number, more, NULL, NULL);
	if (!model->running) {
		assert_int_equal(error, -EAGAIN);
	} else if (error) {
		assert_int_equal(error, -ENOSPC);
		nothing_has_changed();
	} else {
		model->tokens += more;
		write_model(model, first);
	}
}

static void fork_any(struct model *model)
{
	struct model *child = &models[any(MODELS)];
	uint64_t number;
	int error;

	if (child->number)
		return;
	error = gpool_kv_group_fork(group, model->number, &number);
	if (!model->running) {
		assert_int_equal(error, -EAGAIN);
		return;
	}
	assert_int_equal(error, 0);
	*child = *model;
	child->number = number;
}

static void preempt_any(struct model *model)
{
	uint64_t victim;
	bool chosen = any(2);
	int result = gpool_kv_group_preempt(group, chosen ? model->number : 0, &victim);

	if (chosen && !model->running) {
		assert_int_equal(result, -EAGAIN);
		return;
	}
	if (!chosen && result == -ENOENT)
		return;
	assert_true(result >= 0);
	for (int i = 0; i < MODELS; i++)
		if (models[i].number == victim)
			models[i].running = false;
}

static void resume_any(struct model *model)
{
	int error = gpool_kv_group_resume(group, model->number);

	if (model->running) {
		assert_int_equal(error, -EALREADY);
	} else if (error) {
		assert_int_equal(error, -ENOSPC);
		nothing_has_changed();
	} else {
		model->running = true;
		write_model(model, 0);
	}
}

/* Grow, and preempt others for it, even if the growth then fails. */
static void grow_any(struct model *model)
{
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;
	uint32_t more = 1 + any(40), first = model->tokens, count = 0;
	uint64_t victims[MODELS];
	int result;

	if (first + more > TOKENS_MAX)
		return;
	growth.most = 1 + any(MODELS);
	result = gpool_kv_group_grow(group, model->number, more, &growth, NULL, NULL, victims);
	if (!model->running) {
		assert_int_equal(result, -EAGAIN);
		assert_int_equal(victims[0], 0);
		return;
	}
	for (; count < growth.most && victims[count]; count++) {
		struct model *victim = models;

		while (victim < models + MODELS && victim->number != victims[count])
			victim++;
		assert_true(victim < models + MODELS && victim != model && victim->running);
		victim->running = false;
	}
	if (result < 0) {
		assert_int_equal(result, -ENOSPC);
		return;
	}
	assert_int_equal(result, count);
	model->tokens += more;
	write_model(model, first);
}

static void step(void)
{
	struct model *model = &models[any(MODELS)];

	note();
	if (!model->number) {
		allocate_any(model);
		return;
	}
	switch (any(9)) {
	case 0:
		assert_int_equal(gpool_kv_group_free(group, model->number), 0);
		model->number = 0;
		break;
	case 1: fork_any(model); break;
	case 2: preempt_any(model); break;
	case 3: resume_any(model); break;
	case 4: grow_any(model); break;
	default: append_any(model);
	}
	if (model->number)
		check_model(model);
}

/* Return the number of caches that have refused blocks. */
static int caches_refused(void)
{
	int refused = 0;

	for (int i = 0; i < CACHES; i++)
		refused += counts(i).refusals > 0;
	return refused;
}

/* A shortened run continues until two caches have refused blocks. */
static void test_by_chance(void **state)
{
	uint32_t steps = test_scaled(STEPS);

	(void)state;
	seed_begin();
	for (uint32_t i = 0; i < steps || caches_refused() < 2; i++) {
		alarm(STUCK_SECONDS);
		assert_true(i < steps + STEPS);
		step();
		for (int m = 0; i % 64 == 0 && m < MODELS; m++)
			if (models[m].number)
				check_model(&models[m]);
	}
	for (int m = 0; m < MODELS; m++)
		if (models[m].number)
			assert_int_equal(gpool_kv_group_free(group, models[m].number), 0);
	for (int i = 0; i < CACHES; i++) {
		assert_int_equal(counts(i).used_blocks, 0);
		assert_int_equal(counts(i).running + counts(i).preempted, 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ranges, group_start, group_stop),
		cmocka_unit_test_setup_teardown(test_estimated, group_start, group_stop),
		cmocka_unit_test_setup_teardown(test_all_or_nothing, group_start, group_stop),
		cmocka_unit_test_setup_teardown(test_wrong_arguments, group_start, group_stop),
		cmocka_unit_test_setup_teardown(test_by_chance, group_start, group_stop),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
