/*
 * test_client_kv_random.c - compare paged KV caches with a model, and use them from several threads.
 *
 * Goal: after random steps, including forks, copies and preemptions, each sequence has the tokens that it was given,
 * with their content. Blocks in use are those of running sequences. A refused call changes nothing and could not have
 * succeeded. The right sequence is preempted and resumed.
 *
 * Published blocks are found by exactly the tokens that they were published with. They are kept when unreferenced, and
 * are evicted in order, no more of them than needed. If the allocations of a neighbor take offered chunks, exactly the
 * blocks of these chunks and all blocks that follow them are removed. Occasional failures of driver calls do not change
 * this. Threads that append to one sequence get different slots.
 *
 * Method: a million random steps, scaled by GPOOL_TEST_SCALE, on a cache that is larger than the part of the pool that
 * the neighbor leaves. The model has an array of each sequence's tokens and the key of each published block.
 */
#include "tests/integration/kv_view.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

#include <pthread.h>

enum { MODELS = 24, TOKENS_MAX = 200, MODEL_BLOCKS = 320, WATERMARK = 6, CACHED_MOST = 120 };

struct model {
	uint64_t number; /* 0: none */
	uint32_t tokens, priority;
	uint64_t arrival; /* shared by a sequence and its forks */
	bool running;
	uint64_t salt;
	uint32_t ids[TOKENS_MAX];
	uint64_t contents[TOKENS_MAX]; /* the content of a token identifies the salt and all ids up to it */
};

/* The key with which a block is published. */
struct node {
	uint64_t content; /* content of its last token; 0: not published */
	uint64_t parent;  /* content of the last token of the preceding block; 0: first block */
	uint64_t stamp;   /* time at which it became cached; 0: in use */
};

static struct model models[MODELS];
static struct node nodes[MODEL_BLOCKS];
static bool adaptive, faults;
static enum gpu_call failing; /* a kind of which one call may fail in this step; GPU_CALL_KINDS: none */
static uint64_t failures;
/* wanted: number of evictions since a sequence last needed memory */
static uint64_t arrivals, salts, stamps, evicted, lost, wanted;
static struct gpool *neighbor;
static struct gpool_block taken[PAGES];
static uint32_t taken_count;

static uint32_t scaled(uint32_t steps)
{
	double scale = test_scale();

	seed_begin();
#ifdef __SANITIZE_THREAD__
	steps /= 10; /* steps take ten times as long, and only one thread runs */
#endif
	return (uint32_t)(steps * scale) + 1;
}

/* ---- the model ---- */

static struct model *model_any(bool used)
{
	struct model *model = &models[any(MODELS)];

	return (model->number != 0) == used ? model : NULL;
}

/* Invent another token. Only a few ids are used, so that texts have common beginnings. */
static void token_invent(struct model *model, uint32_t token)
{
	uint64_t before = token ? model->contents[token - 1] : model->salt * 0xd6e8feb86659fd93;

	model->ids[token] = any(12) ? 1 : any(3);
	before = (before ^ model->ids[token]) * 0x9e3779b97f4a7c15 + 1;
	model->contents[token] = before ^ before >> 29;
}

static struct gpool_kv_prefix prefix_of_model(const struct model *model, uint32_t tokens)
{
	struct gpool_kv_prefix prefix = prefix_of(model->ids, tokens);

	prefix.salt[0] = model->salt;
	return prefix;
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
	struct gpool_kv_sequence_info info = info_of(model->number);

	assert_int_equal(info.tokens, model->tokens);
	assert_int_equal(info.priority, model->priority);
	assert_int_equal(info.state, model->running ? GPOOL_KV_RUNNING : GPOOL_KV_PREEMPTED);
	assert_true(info.blocks * BLOCK_TOKENS >= model->tokens);
}

/* ---- published blocks ---- */

static uint64_t content_of_block(const struct model *model, uint32_t index)
{
	return model->contents[index * BLOCK_TOKENS + BLOCK_TOKENS - 1];
}

/* Return the block that was published with that content, or -1. */
static int32_t node_block(uint64_t content)
{
	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].content == content)
			return block;
	return -1;
}

static uint32_t nodes_found(const struct model *model, uint32_t tokens)
{
	uint32_t found = 0;

	while (found < tokens / BLOCK_TOKENS && node_block(content_of_block(model, found)) >= 0)
		found++;
	return found;
}

/* Set held[i] for each block i that is in a table. */
static void held_blocks(bool *held)
{
	memset(held, 0, MODEL_BLOCKS * sizeof(*held));
	for (int i = 0; i < MODELS; i++) {
		uint32_t count = 0;
		const int32_t *blocks = models[i].number ? table_of(models[i].number, &count) : NULL;

		for (uint32_t j = 0; j < count; j++)
			held[blocks[j]] = true;
	}
}

/* Record that a sequence has released these blocks, the last one first. */
static void blocks_left(const int32_t *blocks, uint32_t count)
{
	bool held[MODEL_BLOCKS];

	held_blocks(held);
	while (count-- > 0)
		if (nodes[blocks[count]].content && !held[blocks[count]])
			nodes[blocks[count]].stamp = ++stamps;
}

static bool node_has_children(const struct node *node)
{
	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].content && nodes[block].parent == node->content)
			return true;
	return false;
}

/*
 * Return true if a cached block is evicted before another one, because it is older. With the adaptive policy, return
 * true if the cache has evicted the block and no block follows it.
 */
static bool goes_before(const struct node *node, const struct node *other)
{
	if (adaptive)
		return !prefix_table_has(&kv->prefixes, (uint32_t)(node - nodes)) && !node_has_children(node);
	return !other || node->stamp < other->stamp;
}

static void node_evict(void)
{
	struct node *oldest = NULL;

	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].stamp && goes_before(&nodes[block], oldest))
			oldest = &nodes[block];
	assert_non_null(oldest);
	assert_false(node_has_children(oldest));
	*oldest = (struct node){0};
}

/* Remove this number of cached blocks without a key. No kept block may follow one of them. */
static void nodes_lose(uint64_t count)
{
	uint64_t gone = 0;

	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].stamp && !prefix_table_has(&kv->prefixes, (uint32_t)block)) {
			nodes[block] = (struct node){0};
			gone++;
		}
	assert_int_equal(gone, count);
	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].parent)
			assert_true(node_block(nodes[block].parent) >= 0);
}

/*
 * Check after each step that blocks in use are not cached and that the evicted blocks were the oldest. If the agent
 * took chunks in this step, the order of the other blocks is unknown.
 */
static void nodes_follow(void)
{
	struct gpool_kv_stats found = {.size = sizeof(found)};
	uint32_t cached = 0;
	bool held[MODEL_BLOCKS];

	/* An evicted block may be in use again, without a key. */
	held_blocks(held);
	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].stamp && prefix_table_has(&kv->prefixes, (uint32_t)block) && held[block])
			nodes[block].stamp = 0;
	assert_int_equal(gpool_kv_stats(kv, &found), 0);
	if (lost < found.prefix_lost) {
		nodes_lose(found.prefix_lost - lost + found.prefix_evicted - evicted);
		lost = found.prefix_lost;
		evicted = found.prefix_evicted;
	}
	for (; evicted < found.prefix_evicted; evicted++)
		node_evict();
	for (int32_t block = 0; block < MODEL_BLOCKS; block++) {
		assert_int_equal(prefix_table_has(&kv->prefixes, (uint32_t)block), nodes[block].content != 0);
		cached += nodes[block].stamp != 0;
	}
	assert_int_equal(found.cached_blocks, cached);
	assert_true(cached <= CACHED_MOST);
}

static void nodes_check(void)
{
	for (int32_t block = 0; block < MODEL_BLOCKS; block++)
		if (nodes[block].content)
			assert_int_equal(
				*word_at((uint64_t)block * BLOCK_TOKENS + BLOCK_TOKENS - 1), nodes[block].content);
	for (int i = 0; i < MODELS; i++) {
		struct gpool_kv_prefix prefix = prefix_of_model(&models[i], models[i].tokens);

		if (models[i].number)
			assert_int_equal(found_of(&prefix).blocks, nodes_found(&models[i], models[i].tokens));
	}
}

/* ---- checks of the whole cache ---- */

/* Blocks in use are those in tables. Shared blocks are those in more than one table. */
static void blocks_check(void)
{
	uint8_t seen[MODEL_BLOCKS] = {0};
	struct gpool_kv_stats found = statistics();
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
		assert_int_equal(bitmap_has(&kv->blocks.holes, chunk) || bitmap_has(&kv->blocks.empty, chunk) ||
				bitmap_has(&kv->blocks.spent, chunk),
			kv->blocks.kept[chunk] == 0);
	/* If no fence could be recorded for a decommit, the memory is decommitted with the next free. */
	assert_true(
		faults || (kv->blocks.empty.count == 0 && kv->blocks.unused.count == 0 && kv->blocks.spent.count == 0));
}

static void all_check(void)
{
	settle();
	for (int i = 0; i < MODELS; i++)
		if (models[i].number) {
			model_check(&models[i]);
			contents_check(&models[i]);
		}
	nodes_check();
	blocks_check();
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	for (int i = 0; i < MODELS; i++)
		if (models[i].number && models[i].running)
			assert_true(device_agrees(models[i].number));
}

/* Return true if `a` is preempted before `b`. */
static bool before(const struct model *a, const struct model *b)
{
	return a->priority != b->priority ? a->priority < b->priority : a->arrival > b->arrival;
}

/* Check that the blocks that a refused call needed were not available. */
static void refused_check(int error, bool admission)
{
	struct gpool_kv_need need = shortage();
	uint32_t watermark = admission ? WATERMARK : 0;

	if ((error == -EIO || error == -ENOMEM) && failing != GPU_CALL_KINDS) {
		failures++;
		return;
	}
	assert_int_equal(error, -ENOSPC);
	assert_true(need.needed_blocks + watermark > need.free_blocks || need.needed_blocks > need.available_blocks);
}

/* Return true if enough block numbers were free: the pool was short of pages, or a driver call failed. */
static bool refused_late(int error)
{
	struct gpool_kv_need need = shortage();

	return error == -EIO || error == -ENOMEM ||
		(error == -ENOSPC && need.needed_blocks + WATERMARK <= need.free_blocks);
}

/* Record that the first blocks of a sequence were acquired and released again. */
static void found_again(const struct model *model, uint32_t found)
{
	int32_t blocks[TOKENS_MAX / BLOCK_TOKENS];

	for (uint32_t i = 0; i < found; i++)
		blocks[i] = node_block(content_of_block(model, i));
	blocks_left(blocks, found);
}

/* ---- faults ---- */

/* Make one of the next driver calls fail, of a kind that commits and copies make. */
static void fault_arm(void)
{
	static const enum gpu_call kinds[] = {GPU_CALL_IMPORT, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_COPY,
		GPU_CALL_LAUNCH, GPU_CALL_TIMELINE_WRITE};

	failing = faults && any(4) ? kinds[any(sizeof(kinds) / sizeof(*kinds))] : GPU_CALL_KINDS;
	if (failing != GPU_CALL_KINDS)
		gpu_fault_set(worker->gpu, failing, 1 + !any(4), -EIO);
}

static void fault_disarm(void)
{
	if (failing != GPU_CALL_KINDS)
		gpu_fault_set(worker->gpu, failing, 0, 0);
	failing = GPU_CALL_KINDS;
}

/* ---- steps ---- */

static void step_allocate(void)
{
	struct model *model = model_any(false);
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix prefix;
	uint32_t tokens = any(60), found = 0, expected;
	int error;

	if (!model)
		return;
	model->salt = any(3) ? 1 + any(2) : 100 + ++salts;
	for (uint32_t i = 0; i < tokens; i++)
		token_invent(model, i);
	request.tokens = tokens;
	request.estimated_tokens = any(3) ? 0 : any(120);
	request.priority = any(4);
	prefix = prefix_of_model(model, any(4) ? tokens : any(tokens + 1));
	expected = nodes_found(model, prefix.count);
	if (any(4)) {
		error = gpool_kv_prefix_allocate(kv, &request, &prefix, &model->number, &found);
		if (!error)
			assert_int_equal(found, expected * BLOCK_TOKENS);
		else if (refused_late(error))
			found_again(model, expected);
	} else {
		error = gpool_kv_allocate(kv, &request, &model->number);
	}
	if (error) {
		model->number = 0;
		refused_check(error, true);
		return;
	}
	model->tokens = tokens;
	model->priority = request.priority;
	model->arrival = ++arrivals;
	model->running = true;
	for (uint32_t i = found; i < tokens; i++)
		write_content(model, i);
}

static void step_publish(void)
{
	struct model *model = model_any(true);
	struct gpool_kv_prefix prefix;
	uint32_t blocks;
	int result;

	if (!model)
		return;
	prefix = prefix_of_model(model, any(3) ? model->tokens : any(model->tokens + 1));
	blocks = prefix.count / BLOCK_TOKENS;
	result = gpool_kv_prefix_publish(kv, model->number, &prefix);
	if (!model->running) {
		assert_int_equal(result, -EAGAIN);
		return;
	}
	assert_in_range(result, blocks, model->tokens / BLOCK_TOKENS);
	for (uint32_t i = 0; i < blocks; i++) {
		int32_t block = node_block(content_of_block(model, i));

		if (block < 0) {
			block = block_at(model->number, i);
			assert_int_equal(nodes[block].content, 0);
			nodes[block] = (struct node){.content = content_of_block(model, i),
				.parent = i ? content_of_block(model, i - 1) : 0};
		}
		assert_int_equal(block_at(model->number, i), block);
		nodes[block].stamp = 0;
	}
}

static void step_evict(void)
{
	uint32_t cached = statistics().cached_blocks, blocks = any(10);

	assert_int_equal(gpool_kv_prefix_evict(kv, blocks), blocks < cached ? blocks : cached);
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
	fault_disarm();
	/* A copy may be under way. */
	if (shared && model->tokens % BLOCK_TOKENS)
		settle();
	assert_ptr_equal(word_at(slot), token_at(model->number, model->tokens));
	while (tokens--) {
		token_invent(model, model->tokens);
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

static uint32_t table_copy(uint64_t number, int32_t *blocks)
{
	uint32_t count;
	const int32_t *table = table_of(number, &count);

	memcpy(blocks, table, count * sizeof(*blocks));
	return count;
}

static void step_free(void)
{
	struct model *model = model_any(true);
	int32_t blocks[MODEL_BLOCKS];
	uint32_t count;

	if (!model)
		return;
	contents_check(model);
	count = table_copy(model->number, blocks);
	assert_int_equal(gpool_kv_free(kv, model->number), 0);
	assert_int_equal(gpool_kv_free(kv, model->number), -ESTALE);
	model->number = 0;
	blocks_left(blocks, count);
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
	static int32_t tables[MODELS][MODEL_BLOCKS];
	uint32_t counts[MODELS] = {0};
	uint64_t victim = 0;
	int freed;

	for (int i = 0; i < MODELS; i++)
		counts[i] = models[i].number ? table_copy(models[i].number, tables[i]) : 0;
	freed = gpool_kv_preempt(kv, chosen ? chosen->number : 0, &victim);

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
	blocks_left(tables[model - models], counts[model - models]);
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

static void step_neighbor(void)
{
	if (any(2) && taken_count < PAGES / 2) {
		taken_count += gpool_alloc(neighbor, 1 + any(4), NULL, &taken[taken_count]) == 0;
	} else if (taken_count) {
		uint32_t which = any(taken_count);

		assert_int_equal(gpool_free(neighbor, &taken[which]), 0);
		taken[which] = taken[--taken_count];
	}
}

static void random_steps(uint32_t steps)
{
	struct gpool_kv_options options;
	struct gpool_kv_stats found;

	memset(models, 0, sizeof(models));
	memset(nodes, 0, sizeof(nodes));
	arrivals = evicted = lost = wanted = taken_count = failures = 0;
	worker_open(calm);
	neighbor = open_worker();
	options = small_options(MODEL_BLOCKS);
	options.watermark_blocks = WATERMARK;
	options.flags = GPOOL_KV_PREFIXES | (adaptive ? GPOOL_KV_ADAPTIVE : 0);
	options.cached_blocks = CACHED_MOST;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	for (uint32_t step = 0; step < steps; step++) {
		uint32_t which = any(100);
		uint64_t before = evicted;

		fault_arm();
		if (which < 9)
			step_allocate();
		else if (which < 70)
			step_append();
		else if (which < 77)
			step_publish();
		else if (which < 78)
			step_evict();
		else if (which < 84)
			step_fork();
		else if (which < 90)
			step_free();
		else if (which < 93)
			step_preempt();
		else if (which < 97)
			step_resume();
		else
			step_neighbor();
		fault_disarm();
		nodes_follow();
		wanted += which < 70 || (which >= 93 && which < 97) ? evicted - before : 0;
		if (step % 64 == 0) {
			alarm(STUCK_SECONDS);
			all_check();
		}
	}
	all_check();
	assert_int_equal(harness_check(&harness), 0);
	found = statistics();
	printf("%u steps: %llu refusals, %llu copies, %llu preemptions, %llu resumes, %llu calls failed\n", steps,
		(unsigned long long)found.refusals, (unsigned long long)found.block_copies,
		(unsigned long long)found.preemptions, (unsigned long long)found.resumes, (unsigned long long)failures);
	printf("%llu blocks found, %llu not, %llu published, %llu given up for others, %llu evicted, %llu of them for "
	       "memory, %llu lost\n",
		(unsigned long long)found.prefix_hits, (unsigned long long)found.prefix_misses,
		(unsigned long long)found.prefix_published, (unsigned long long)found.prefix_switched,
		(unsigned long long)found.prefix_evicted, (unsigned long long)wanted,
		(unsigned long long)found.prefix_lost);
	/* A long test must have covered these cases too. */
	if (steps > 50000) {
		assert_true(found.refusals && found.block_copies && found.preemptions && found.resumes);
		assert_int_equal(failures != 0, faults);
		assert_true(found.prefix_hits && found.prefix_misses && found.prefix_switched && wanted &&
			wanted < found.prefix_evicted);
		assert_true(found.prefix_lost);
	}
	gpool_close(neighbor);
}

static void test_random(void **state)
{
	(void)state;
	adaptive = faults = false;
	random_steps(scaled(400000));
}

static void test_random_adaptive(void **state)
{
	(void)state;
	adaptive = true;
	faults = false;
	random_steps(scaled(200000));
}

static void test_random_faults(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		adaptive = i != 0;
		faults = true;
		random_steps(scaled(200000));
		if (i == 0)
			kv_stop(state);
	}
}

/* ---- threads ---- */

enum { THREADS = 4, ONE_TOKENS = 1000 };

struct hand {
	pthread_t thread;
	uint64_t sequence; /* the sequence to which all threads append */
	uint32_t index, rounds, errors;
	uint8_t *slots; /* the slots that the thread got */
};

/* Allocate and free sequences of this thread. All threads also append to and fork one common sequence. */
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
		hand->errors +=
			gpool_kv_fork(kv, own, &child) || gpool_kv_append(kv, child, 3, NULL) || gpool_kv_sync(kv);
		/* Wait for the copy before other threads use its blocks, because they write without a stream. */
		hand->errors +=
			gpool_fence_record(worker, stream, &fence) || gpool_fence_wait(worker, fence, ANSWER_MS);
		hand->errors +=
			gpool_kv_preempt(kv, own, NULL) < 0 || gpool_kv_resume(kv, own) || gpool_kv_free(kv, child);
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
	/* Each slot occurs once, and all slots belong to the sequence. */
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
		cmocka_unit_test_teardown(test_random_adaptive, kv_stop),
		cmocka_unit_test_teardown(test_random_faults, kv_stop),
		cmocka_unit_test_teardown(test_threads, kv_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
