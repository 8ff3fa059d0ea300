/* kv.c - create and destroy paged KV caches. See kv.h. */
#include "client/kv/kv.h"

#include "client/kv/offer.h"
#include "client/kv/offload.h"
#include "client/kv/pooled.h"
#include "client/kv/prefix.h"
#include "client/kv/resident.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "client/vm/elastic.h"
#include "client/vm/range.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	BLOCK_TOKENS_DEFAULT = 16,
	BLOCK_TOKENS_MAX = 1024,
	SEQUENCES_DEFAULT = 256,
	SEQUENCES_MAX = 65536,
	SEQUENCE_TOKENS_DEFAULT = 131072,
	WATERMARK_SHARE = 100, /* 1 % */
};

/* ---- options ---- */

/* Return the name of an option that is set and that only caches with prefixes have, or NULL. */
static const char *option_of_prefixes(const struct gpool_kv_options *options)
{
	static const uint8_t none[sizeof(options->model)];

	return options->pool_blocks                               ? "pool_blocks"
		: options->cached_blocks                          ? "cached_blocks"
		: options->flags & GPOOL_KV_ADAPTIVE              ? "GPOOL_KV_ADAPTIVE"
		: memcmp(options->model, none, sizeof(none)) != 0 ? "model"
								  : NULL;
}

static int options_check(struct gpool *pool, struct gpool_kv_options *options)
{
	const uint32_t known =
		GPOOL_KV_KEEP | GPOOL_KV_PREFIXES | GPOOL_KV_ADAPTIVE | GPOOL_KV_BF16 | GPOOL_KV_ZERO | GPOOL_KV_INT8;
	struct gpool_kv_shape *shape = &options->shape;

	shape->block_tokens = shape->block_tokens ? shape->block_tokens : BLOCK_TOKENS_DEFAULT;
	options->max_sequences = options->max_sequences ? options->max_sequences : SEQUENCES_DEFAULT;
	options->max_sequence_tokens =
		options->max_sequence_tokens ? options->max_sequence_tokens : SEQUENCE_TOKENS_DEFAULT;
	if (options->flags & ~known)
		return fail(
			-EINVAL, "flags are 0x%x, of which 0x%x are unknown", options->flags, options->flags & ~known);
	if (!(options->flags & GPOOL_KV_PREFIXES) && option_of_prefixes(options))
		return fail(-EINVAL, "%s requires GPOOL_KV_PREFIXES", option_of_prefixes(options));
	if (shape->block_tokens > BLOCK_TOKENS_MAX || shape->block_tokens & (shape->block_tokens - 1))
		return fail(-EINVAL, "block_tokens is %u; it must be a power of two up to %d", shape->block_tokens,
			BLOCK_TOKENS_MAX);
	if (shape->dtype_bytes > 8 || shape->dtype_bytes & (shape->dtype_bytes - 1))
		return fail(-EINVAL, "dtype_bytes is %u; it must be 1, 2, 4 or 8", shape->dtype_bytes);
	if (options->max_sequences > SEQUENCES_MAX)
		return fail(-EINVAL, "max_sequences is %u; the maximum is %d", options->max_sequences, SEQUENCES_MAX);
	if (options->max_blocks > BITMAP_BITS_MAX || options->pool_blocks > BITMAP_BITS_MAX)
		return fail(-EINVAL, "max_blocks is %u and pool_blocks is %u; the maximum of each is %d",
			options->max_blocks, options->pool_blocks, BITMAP_BITS_MAX);
	if (options->max_sequence_tokens > KV_TOKENS_MAX + 1 - shape->block_tokens)
		return fail(-EINVAL, "max_sequence_tokens is %u; the maximum is %u", options->max_sequence_tokens,
			(uint32_t)(KV_TOKENS_MAX + 1 - shape->block_tokens));
	if (options->flags & GPOOL_KV_INT8 && resident_check(options))
		return -EINVAL;
	return stream_check(pool, options->stream);
}

/* Return the number of chunks of other processes that the cache can map at the same time. */
static uint32_t places_of(const struct gpool_kv_options *options, uint32_t chunk_blocks)
{
	return (options->pool_blocks + chunk_blocks - 1) / chunk_blocks;
}

/* Compute sizes from the options, after memory_shape(). Return: 0, -EINVAL. */
static int sizes_read(
	struct gpool_kv *kv, const struct gpool_kv_options *options, uint32_t chunk_blocks, uint32_t *chunks)
{
	uint64_t count = options->max_blocks ? ((uint64_t)options->max_blocks + chunk_blocks - 1) / chunk_blocks
					     : kv->pool->unreserved / kv->chunk_pages;
	uint64_t most = BITMAP_BITS_MAX / chunk_blocks;

	if (count > most)
		count = most;
	if (count == 0)
		count = 1;
	if ((count + places_of(options, chunk_blocks)) * kv->chunk_pages > UINT32_MAX)
		return fail(-EINVAL, "the pages of the cache would be %llu; the maximum is %u",
			(unsigned long long)(count + places_of(options, chunk_blocks)) * kv->chunk_pages, UINT32_MAX);
	if (options->pool_blocks && kv->chunk_pages / handle_pages(kv->pool) > KV_CHUNK_HANDLES_MAX)
		return fail(-EINVAL, "a block has %llu byte%s; shared blocks (pool_blocks) can have at most %llu",
			(unsigned long long)kv->block_bytes, plural(kv->block_bytes),
			(unsigned long long)KV_CHUNK_HANDLES_MAX * handle_pages(kv->pool) * kv->pool->page_bytes);
	if (kv->zero && kv->block_bytes % sizeof(uint32_t))
		return fail(-EINVAL, "a block has %llu byte%s; with GPOOL_KV_ZERO it must have a multiple of 4",
			(unsigned long long)kv->block_bytes, plural(kv->block_bytes));
	*chunks = (uint32_t)count;
	kv->columns = kv_blocks_for(kv, options->max_sequence_tokens);
	kv->max_sequences = options->max_sequences;
	kv->watermark = options->watermark_blocks == GPOOL_KV_NO_WATERMARK ? 0
		: options->watermark_blocks                                ? options->watermark_blocks
									   : *chunks * chunk_blocks / WATERMARK_SHARE;
	return kv->watermark < *chunks * chunk_blocks
		? 0
		: fail(-EINVAL, "watermark_blocks is %u; it must be less than %u, the blocks of the cache",
			  kv->watermark, *chunks * chunk_blocks);
}

/* ---- parts of a cache ---- */

static void *memory_map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static void memory_unmap(void *memory, size_t bytes)
{
	if (memory)
		munmap(memory, bytes);
}

static size_t tables_bytes(const struct gpool_kv *kv)
{
	return (size_t)kv->max_sequences * kv->columns * sizeof(int32_t);
}

static int ranges_reserve(struct gpool_kv *kv, const struct gpool_kv_options *options)
{
	struct gpool_range_options range = GPOOL_RANGE_OPTIONS_INIT;
	uint64_t table_pages = (tables_bytes(kv) + kv->pool->page_bytes - 1) / kv->pool->page_bytes;
	int error;

	range.memory_class = options->flags & GPOOL_KV_KEEP ? GPOOL_OBJECT_MUTABLE : GPOOL_OBJECT_EPHEMERAL;
	range.usage = GPOOL_USAGE_KV_CACHE;
	range.owner_id = options->owner_id;
	if (table_pages > UINT32_MAX)
		return fail(-EINVAL, "the pages of the tables would be %llu; the maximum is %u",
			(unsigned long long)table_pages, UINT32_MAX);
	error = gpool_range_reserve(
		kv->pool, kv_block_count(kv) / kv->blocks.chunk_blocks * kv->chunk_pages, &range, &kv->range);
	if (!error)
		error = gpool_range_reserve(kv->pool, (uint32_t)table_pages, &range, &kv->table_range);
	if (error)
		return error;
	kv->range->elastic->own_last = options->flags & GPOOL_KV_PREFIXES;
	gpool_range_address(kv->range, &kv->address);
	gpool_range_address(kv->table_range, &kv->table_address);
	return 0;
}

/* Allocate host memory from which streams may copy. */
static int staging_open(struct gpool_kv *kv)
{
	size_t bytes = KV_STAGE_ENTRIES * sizeof(int32_t);
	char *memory;
	int error;

	kv->staging_bytes = KV_STAGES * bytes;
	memory = memory_map(kv->staging_bytes);
	if (!memory)
		return -ENOMEM;
	for (uint32_t i = 0; i < KV_STAGES; i++)
		kv->stages[i].entries = (int32_t *)(void *)(memory + i * bytes);
	/*
	 * Exclude the memory from forked children: otherwise, after a fork(), this process would write to a copy while
	 * the GPU reads the original.
	 */
	madvise(memory, kv->staging_bytes, MADV_DONTFORK);
	error = gpu_host_register(kv->pool->gpu, memory, kv->staging_bytes);
	if (error)
		return error == -ENOMEM ? -ENOMEM : -EIO;
	kv->registered = true;
	return 0;
}

static int parts_open(
	struct gpool_kv *kv, const struct gpool_kv_options *options, uint32_t chunks, uint32_t chunk_blocks)
{
	if (block_pool_init(&kv->blocks, chunks, chunk_blocks) || pooled_open(kv, places_of(options, chunk_blocks)) ||
		prefix_open(kv, options) || offer_open(kv) || bitmap_init(&kv->rows, kv->max_sequences))
		return -ENOMEM;
	for (uint32_t row = 0; row < kv->max_sequences; row++)
		bitmap_add(&kv->rows, row);
	kv->tables = memory_map(tables_bytes(kv));
	kv->sequences = memory_map(kv->max_sequences * sizeof(*kv->sequences));
	if (!kv->tables || !kv->sequences)
		return -ENOMEM;
	return ranges_reserve(kv, options);
}

/*
 * Free everything except the ranges, which are destroyed separately or closed with the pool. Accepts an incomplete
 * cache.
 */
static void kv_release(struct gpool_kv *kv)
{
	offload_close(kv);
	if (kv->registered)
		gpu_host_unregister(kv->pool->gpu, kv->stages[0].entries);
	memory_unmap(kv->stages[0].entries, kv->staging_bytes);
	memory_unmap(kv->sequences, kv->max_sequences * sizeof(*kv->sequences));
	memory_unmap(kv->tables, tables_bytes(kv));
	bitmap_fini(&kv->rows);
	pooled_close(kv);
	offer_close(kv);
	prefix_close(kv);
	block_pool_fini(&kv->blocks);
	pthread_mutex_destroy(&kv->lock);
	pthread_mutex_destroy(&kv->sync_lock);
	free(kv);
}

/* ---- the pool's list of caches ---- */

void kv_close_all(struct gpool *pool)
{
	while (pool->kvs) {
		struct gpool_kv *kv = pool->kvs;

		pool->kvs = kv->next;
		kv_release(kv);
	}
}

static void kv_link(struct gpool_kv *kv)
{
	struct gpool *pool = kv->pool;

	pthread_mutex_lock(&pool->kvs_lock);
	kv->next = pool->kvs;
	kv->link = &pool->kvs;
	if (kv->next)
		kv->next->link = &kv->next;
	pool->kvs = kv;
	pthread_mutex_unlock(&pool->kvs_lock);
}

static void kv_unlink(struct gpool_kv *kv)
{
	pthread_mutex_lock(&kv->pool->kvs_lock);
	*kv->link = kv->next;
	if (kv->next)
		kv->next->link = kv->link;
	pthread_mutex_unlock(&kv->pool->kvs_lock);
}

/* ---- create and destroy ---- */

static struct gpool_kv *kv_new(struct gpool *pool, const struct gpool_kv_options *options)
{
	struct gpool_kv *kv = calloc(1, sizeof(*kv));

	if (!kv)
		return NULL;
	kv->pool = pool;
	kv->shape = options->shape;
	kv->stream = options->stream;
	kv->bf16 = options->flags & GPOOL_KV_BF16;
	kv->zero = options->flags & GPOOL_KV_ZERO;
	kv->int8 = options->flags & GPOOL_KV_INT8;
	kv->token_shift = (uint32_t)__builtin_ctz(options->shape.block_tokens);
	pthread_mutex_init(&kv->lock, NULL);
	pthread_mutex_init(&kv->sync_lock, NULL);
	RB_INIT(&kv->running);
	RB_INIT(&kv->preempted);
	TAILQ_INIT(&kv->dirty);
	return kv;
}

/* Destroy a range of a cache that is no longer complete: the check function of the thread must not prevent this. */
static int range_close(struct gpool_range *range)
{
	int error;

	do
		error = gpool_range_destroy(range);
	while (error == -EINTR);
	return error;
}

int gpool_kv_create(struct gpool *pool, const struct gpool_kv_options *options, struct gpool_kv **kv)
{
	struct gpool_kv_options read;
	uint32_t chunk_blocks, chunks = 0;
	struct gpool_kv *made;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	error = options_read(&read, sizeof(read), options);
	if (!error)
		error = options_check(pool, &read);
	if (error)
		return error;
	made = kv_new(pool, &read);
	if (!made)
		return -ENOMEM;
	error = memory_shape(made, &chunk_blocks);
	if (!error)
		budget_init(&made->packing, read.compact_bytes_per_s, made->chunk_bytes, monotonic_ns());
	if (!error)
		error = sizes_read(made, &read, chunk_blocks, &chunks);
	if (!error)
		error = parts_open(made, &read, chunks, chunk_blocks);
	if (!error)
		error = staging_open(made);
	if (error) {
		range_close(made->table_range);
		range_close(made->range);
		kv_release(made);
		return error;
	}
	kv_link(made);
	*kv = made;
	return 0;
}

int gpool_kv_destroy(struct gpool_kv *kv)
{
	int error;

	if (!kv)
		return 0;
	if (!kv->pool->alive)
		return -ECHILD;
	/* The check function of the thread may end this wait: the cache is still complete. */
	error = kv->pooled ? stream_await_all(kv->pool, -1) : 0;
	if (!error)
		error = pooled_end(kv);
	if (!error)
		error = kv->pooled ? range_close(kv->range) : gpool_range_destroy(kv->range);
	if (error)
		return error;
	kv->range = NULL;
	error = range_close(kv->table_range);
	if (error)
		return error;
	offload_end(kv);
	kv_unlink(kv);
	kv_release(kv);
	return 0;
}
