/*
 * bench_kv.c - a paged KV cache as an engine's scheduler uses it: tokens appended one by one; forks; a prompt of 128k
 * tokens; a preempted and resumed sequence; a published text of 64k tokens that is found again, directly or after its
 * memory was offered; a text of 16k tokens that is shared with another engine.
 *
 * Blocks are 32 KiB, sixteen per page. Memory is already mapped, or reclaimable, except in figures called cold. On
 * `host`, a mapping is a system call; its cost on a GPU must be measured on a GPU.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdbool.h>

enum {
	POOL_PAGES = 2048,
	SEQUENCES = 64,     /* decoded together */
	STEPS = 512,        /* tokens per sequence */
	FORK_TOKENS = 2000, /* 125 blocks, the last one full */
	FORKS = 64,
	LONG_TOKENS = 131072, /* 8,192 blocks, 512 pages */
	PREEMPTED_TOKENS = 4096,
	PREFIX_TOKENS = 65536, /* 4,096 blocks */
	LOOKS = 16,
	SHARED_TOKENS = 16384, /* 1,024 blocks in 64 chunks of one page */
};

static int allocate(struct gpool_kv *kv, uint32_t tokens, uint32_t estimated, uint64_t *sequence)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

	request.tokens = tokens;
	request.estimated_tokens = estimated;
	return gpool_kv_allocate(kv, &request, sequence);
}

static int free_all(struct gpool_kv *kv, const uint64_t *sequences, uint32_t count)
{
	int error = 0;

	for (uint32_t i = 0; i < count; i++)
		error |= gpool_kv_free(kv, sequences[i]);
	return error ? -EIO : 0;
}

/* Append one token to each sequence in turn, as in decoding. bulk: allocate the blocks for all tokens at the start. */
static int append(struct bench *bench, struct gpool_kv *kv, bool bulk)
{
	uint64_t sequences[SEQUENCES], slot, begin;
	int error = 0;

	for (uint32_t i = 0; i < SEQUENCES && !error; i++)
		error = allocate(kv, 1, bulk ? STEPS + 1 : 0, &sequences[i]);
	if (error)
		return error;
	begin = own_time_ns();
	for (uint32_t step = 0; step < STEPS; step++)
		for (uint32_t i = 0; i < SEQUENCES; i++)
			error |= gpool_kv_append(kv, sequences[i], 1, &slot);
	bench_sample(bench, bulk ? FIGURE_kv_append_bulk : FIGURE_kv_append,
		(double)(own_time_ns() - begin) / (STEPS * SEQUENCES));
	return error ? -EIO : free_all(kv, sequences, SEQUENCES);
}

static int forks(struct bench *bench, struct gpool_kv *kv)
{
	uint64_t parent, children[FORKS], begin;
	int error = allocate(kv, FORK_TOKENS, 0, &parent);

	if (error)
		return error;
	begin = own_time_ns();
	for (uint32_t i = 0; i < FORKS; i++)
		error |= gpool_kv_fork(kv, parent, &children[i]);
	bench_sample(bench, FIGURE_kv_fork, (double)(own_time_ns() - begin) / FORKS / 1e3);
	return error ? -EIO : free_all(kv, children, FORKS) || gpool_kv_free(kv, parent) ? -EIO : 0;
}

static int long_prompt(struct bench *bench, struct gpool_kv *kv, enum figure figure)
{
	uint64_t sequence, begin = own_time_ns();
	int error = allocate(kv, LONG_TOKENS, 0, &sequence);

	bench_sample(bench, figure, (double)(own_time_ns() - begin) / 1e6);
	return error ? error : gpool_kv_free(kv, sequence);
}

static int preempt_resume(struct bench *bench, struct gpool_kv *kv)
{
	uint64_t sequence, begin;
	int error = allocate(kv, PREEMPTED_TOKENS, 0, &sequence), freed;

	if (error)
		return error;
	begin = own_time_ns();
	freed = gpool_kv_preempt(kv, 0, NULL);
	error = freed < 0 ? freed : gpool_kv_resume(kv, sequence);
	bench_sample(bench, FIGURE_kv_preempt_resume, (double)(own_time_ns() - begin) / 1e3);
	return error ? error : gpool_kv_free(kv, sequence);
}

/* Start a sequence with a text whose memory is offered, and end it, which offers the memory again. */
static int offer_hit(struct bench *bench, struct gpool_kv *kv, const struct gpool_kv_prefix *text)
{
	const uint32_t chunks = PREFIX_TOKENS / 16 / 16;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence, begin, hit_ns = 0, free_ns = 0;
	uint32_t found = 0;
	int error = 0;

	request.tokens = PREFIX_TOKENS;
	for (uint32_t i = 0; i < LOOKS && !error; i++) {
		begin = own_time_ns();
		error = gpool_kv_prefix_allocate(kv, &request, text, &sequence, &found);
		hit_ns += own_time_ns() - begin;
		begin = own_time_ns();
		if (!error)
			error = found == PREFIX_TOKENS ? gpool_kv_free(kv, sequence) : -EIO;
		free_ns += own_time_ns() - begin;
	}
	bench_sample(bench, FIGURE_kv_offer_hit, (double)hit_ns / (chunks * LOOKS));
	bench_sample(bench, FIGURE_kv_offer, (double)free_ns / (chunks * LOOKS));
	return error;
}

/* Publish a long text, and look up all of it. */
static int prefix(struct bench *bench, struct gpool_kv *kv)
{
	static uint32_t ids[PREFIX_TOKENS];
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv_prefix text = GPOOL_KV_PREFIX_INIT;
	const uint32_t blocks = PREFIX_TOKENS / 16;
	uint64_t sequence, begin;
	int error;

	for (uint32_t i = 0; i < PREFIX_TOKENS; i++)
		ids[i] = i * 2654435761u % 128000;
	text.ids = ids;
	text.count = PREFIX_TOKENS;
	error = allocate(kv, PREFIX_TOKENS, 0, &sequence);
	if (error)
		return error;
	begin = own_time_ns();
	error = gpool_kv_prefix_publish(kv, sequence, &text) == (int)blocks ? 0 : -EIO;
	bench_sample(bench, FIGURE_kv_publish, (double)(own_time_ns() - begin) / blocks);
	begin = own_time_ns();
	for (uint32_t i = 0; i < LOOKS && !error; i++)
		error = gpool_kv_prefix_find(kv, &text, &found);
	bench_sample(bench, FIGURE_kv_lookup, (double)(own_time_ns() - begin) / (blocks * LOOKS));
	if (error || found.blocks != blocks || gpool_kv_free(kv, sequence) || offer_hit(bench, kv, &text))
		return -EIO;
	begin = own_time_ns();
	error = gpool_kv_prefix_evict(kv, UINT32_MAX) == (int)blocks ? 0 : -EIO;
	bench_sample(bench, FIGURE_kv_evict, (double)(own_time_ns() - begin) / blocks);
	return error;
}

/*
 * Share blocks from one engine, and start a sequence of another engine with them. Both are sessions of this process,
 * which does not affect the result.
 */
static int share_find(struct bench *bench, struct gpool_kv *first, struct gpool_kv *second)
{
	static uint32_t ids[SHARED_TOKENS];
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix text = GPOOL_KV_PREFIX_INIT;
	const uint32_t chunks = SHARED_TOKENS / 16 / 16;
	uint64_t sequence, other, begin;
	uint32_t found = 0;
	int error;

	for (uint32_t i = 0; i < SHARED_TOKENS; i++)
		ids[i] = i * 2654435761u % 128000;
	text.ids = ids;
	text.count = request.tokens = SHARED_TOKENS;
	error = gpool_kv_prefix_allocate(first, &request, &text, &sequence, NULL);
	if (error)
		return error;
	begin = own_time_ns();
	if (gpool_kv_prefix_publish(first, sequence, &text) < 0 ||
		gpool_kv_prefix_share(first, sequence, -1) != SHARED_TOKENS / 16)
		return -EIO;
	bench_sample(bench, FIGURE_kv_share, (double)(own_time_ns() - begin) / chunks / 1e3);
	begin = own_time_ns();
	error = gpool_kv_prefix_allocate(second, &request, &text, &other, &found);
	bench_sample(bench, FIGURE_kv_share_find, (double)(own_time_ns() - begin) / chunks / 1e3);
	if (error || found != SHARED_TOKENS || gpool_kv_free(second, other) || gpool_kv_free(first, sequence))
		return -EIO;
	return 0;
}

/* Delete the shared blocks before the next run: they outlive the caches. */
static void shared_delete(struct gpool *pool)
{
	struct gpool_object_info info = {.size = sizeof(info)};

	for (uint32_t cursor = 0; gpool_object_next(pool, &cursor, &info) == 0;)
		gpool_object_delete(pool, info.name, 0);
}

static int shared(struct bench *bench, struct gpool *const *pools, const uint32_t *streams)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *caches[2] = {NULL, NULL};
	int error = 0;

	options.shape = (struct gpool_kv_shape){.layers = 4, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2};
	options.flags = GPOOL_KV_PREFIXES;
	options.pool_blocks = SHARED_TOKENS / 16;
	for (int i = 0; i < 2 && !error; i++) {
		options.stream = streams[i];
		error = gpool_kv_create(pools[i], &options, &caches[i]);
	}
	if (!error)
		error = share_find(bench, caches[0], caches[1]);
	for (int i = 0; i < 2; i++)
		if (gpool_kv_destroy(caches[i]) && !error)
			error = -EIO;
	shared_delete(pools[0]);
	return error;
}

/* The first prompt of a new cache maps its memory; later ones find it reclaimable. */
static int run(struct bench *bench, struct gpool *pool, uint32_t stream)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *kv;
	int error;

	options.shape = (struct gpool_kv_shape){.layers = 4, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2};
	options.stream = stream;
	options.flags = GPOOL_KV_PREFIXES;
	error = gpool_kv_create(pool, &options, &kv);
	if (error)
		return error;
	error = long_prompt(bench, kv, FIGURE_kv_alloc_128k_cold);
	if (!error)
		error = long_prompt(bench, kv, FIGURE_kv_alloc_128k);
	if (!error)
		error = append(bench, kv, false);
	if (!error)
		error = append(bench, kv, true);
	if (!error)
		error = forks(bench, kv);
	if (!error)
		error = preempt_resume(bench, kv);
	if (!error)
		error = prefix(bench, kv);
	return error ? error : gpool_kv_destroy(kv);
}

int bench_kv(struct bench *bench)
{
	struct gpool *pools[2] = {NULL, NULL};
	uint32_t streams[2];
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	for (int i = 0; i < 2 && !error; i++) {
		error = daemon_open(bench, 0, &pools[i]);
		if (!error)
			error = gpool_stream_open(pools[i], NULL, 0, &streams[i]);
	}
	for (unsigned i = 0; i < bench->runs && !error; i++) {
		error = run(bench, pools[0], streams[0]);
		if (!error)
			error = shared(bench, pools, streams);
	}
	if (error)
		bench_complain(bench, error, "cannot use a KV cache");
	gpool_close(pools[0]);
	gpool_close(pools[1]);
	daemon_stop(bench);
	return error;
}
