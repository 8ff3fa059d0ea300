/* kv.c - a paged KV cache, and a group of two caches for sequences that are too long for one cache. */
#include <gpool.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_TOKENS = 16, RANGE_TOKENS = 64 };

static void must(int result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, gpool_last_error(result));
	exit(1);
}

static struct gpool_kv *cache(struct gpool *pool, uint32_t stream)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *kv;

	options.shape = (struct gpool_kv_shape){
		.layers = 2, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2, .block_tokens = BLOCK_TOKENS};
	options.stream = stream;
	options.max_blocks = 64;
	options.max_sequence_tokens = 512;
	must(gpool_kv_create(pool, &options, &kv), "create a cache");
	return kv;
}

/* Count the waiting prompts that fit before a sequence is started. */
static void admit(struct gpool_kv *kv)
{
	const uint32_t prompts[] = {100, 200, 100000};
	struct gpool_kv_need need = {.size = sizeof(need)};
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence;
	int fit = gpool_kv_can_batch(kv, prompts, 3, NULL, &need);

	must(fit, "count the requests");
	printf("admission: %d of 3 requests fit, with %u blocks\n", fit, need.needed_blocks);
	request.tokens = prompts[2];
	if (gpool_kv_allocate(kv, &request, &sequence) == -EFBIG) {
		must(gpool_kv_oom_info(kv, &need), "info");
		printf("the third needs %u blocks\n", need.needed_blocks);
	}
}

/* Preempt a sequence, and resume it with its content. */
static void offload(struct gpool_kv *kv)
{
	struct gpool_kv_offload_info info = {.size = sizeof(info)};
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	struct gpool_kv_pair pair;
	const struct gpool_kv_shape shape = {2, 2, 64, 2, BLOCK_TOKENS};
	const int32_t *blocks;
	uint64_t sequence;
	uint32_t count;

	must(gpool_kv_layout(kv, &layout), "layout");
	must(gpool_kv_host_reserve(kv, 16 * layout.block_bytes), "reserve host memory");
	request.tokens = 2 * BLOCK_TOKENS;
	must(gpool_kv_allocate(kv, &request, &sequence), "allocate a sequence");
	must(gpool_kv_table(kv, sequence, &blocks, &count), "table");
	must(gpool_kv_validate(kv, sequence, blocks[0], &shape), "validate");
	pair = (struct gpool_kv_pair){.from = blocks[0], .to = blocks[1]};
	must(gpool_kv_copy_blocks(kv, &pair, 1), "copy a block");
	must(gpool_kv_offload(kv, sequence, 0, NULL), "offload");
	must(gpool_kv_offload_info(kv, &info), "info");
	printf("offloaded: %u sequence, %u of %u host blocks free\n", info.sequences, info.host_free_blocks,
		info.host_blocks);
	must(gpool_kv_resume(kv, sequence), "resume");
	must(gpool_kv_compact(kv, 64), "compact");
	must(gpool_kv_free(kv, sequence), "free");
}

/* The first RANGE_TOKENS tokens are in the first cache, all others in the second. */
static void group(struct gpool_kv *const caches[2])
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_span span = {.size = sizeof(span)};
	struct gpool_kv_need need = {.size = sizeof(need)};
	struct gpool_kv_group *both;
	uint64_t sequence, child, slot;
	uint32_t member;

	must(gpool_kv_group_create(caches, 2, RANGE_TOKENS, &both), "create a group");
	must(gpool_kv_group_can_allocate(both, 60, &member, &need), "admission");
	request.tokens = 60;
	must(gpool_kv_group_allocate(both, &request, &sequence), "allocate a sequence");
	must(gpool_kv_group_append(both, sequence, 30, &member, &slot), "append");
	must(gpool_kv_group_fork(both, sequence, &child), "fork");
	for (member = 0; member < 2; member++) {
		must(gpool_kv_group_span(both, sequence, member, &span), "span");
		printf("cache %u: %u tokens from %u\n", member, span.tokens, span.first_token);
	}
	must(gpool_kv_group_free(both, child), "free");
	must(gpool_kv_group_preempt(both, sequence, NULL), "preempt");
	must(gpool_kv_group_resume(both, sequence), "resume");
	request.tokens = 100000;
	if (gpool_kv_group_allocate(both, &request, &child) < 0) {
		must(gpool_kv_group_oom_info(both, &member, &need), "info");
		printf("too long for cache %u\n", member);
	}
	gpool_kv_group_destroy(both);
}

int main(void)
{
	struct gpool_kv *caches[2];
	struct gpool *pool;
	uint32_t stream;

	must(gpool_open(NULL, &pool), "open");
	must(gpool_stream_open(pool, NULL, 0, &stream), "stream");
	caches[0] = cache(pool, stream);
	caches[1] = cache(pool, stream);
	admit(caches[0]);
	offload(caches[0]);
	group(caches);
	must(gpool_kv_destroy(caches[1]), "destroy");
	must(gpool_kv_destroy(caches[0]), "destroy");
	gpool_stream_close(pool, stream);
	gpool_close(pool);
	puts("done");
	return 0;
}
