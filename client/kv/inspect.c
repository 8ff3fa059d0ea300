/* inspect.c - query a cache, validate blocks that other engines pass, and copy blocks. */
#include "client/kv/kv.h"
#include "shm/plural.h"

#include "client/kv/copies.h"
#include "client/kv/offer.h"
#include "client/kv/pooled.h"
#include "client/kv/resident.h"
#include "client/core/last_error.h"
#include "cuda/kernels/quantise.h"

#include <math.h>
#include <stdio.h>

int gpool_kv_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout)
{
	struct gpool_kv_layout found = {
		.block_tokens = kv->shape.block_tokens,
		.block_bytes = kv->block_bytes,
		.chunk_bytes = kv->chunk_bytes,
		.chunk_blocks = kv->blocks.chunk_blocks,
		.max_blocks = kv->blocks.blocks,
		.address = kv->address,
		.table_address = kv->table_address,
		.table_columns = kv->columns,
		.max_sequences = kv->max_sequences,
		.pool_blocks = kv_block_count(kv) - kv->blocks.blocks,
	};

	if (!kv->pool->alive)
		return -ECHILD;
	resident_layout(kv, &found);
	return copy_struct(layout, &found, sizeof(found));
}

int gpool_kv_address(const struct gpool_kv *kv, uint32_t block, uint64_t *address)
{
	if (!kv->pool->alive)
		return -ECHILD;
	if (block >= kv_block_count(kv))
		return fail(-EINVAL, "block is %u; the cache has %u block%s", block, kv_block_count(kv),
			plural(kv_block_count(kv)));
	*address = memory_address(kv, block);
	return 0;
}

/* ---- sequences ---- */

int gpool_kv_table(struct gpool_kv *kv, uint64_t sequence, const int32_t **blocks, uint32_t *count)
{
	struct kv_sequence *found;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &found);
	if (!error) {
		*blocks = kv_table(kv, found);
		*count = found->state == GPOOL_KV_RUNNING ? found->blocks : 0;
	}
	pthread_mutex_unlock(&kv->lock);
	return error;
}

/* Return the number of blocks of a running sequence that other sequences share. */
static uint32_t shared_blocks(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	uint32_t shared = 0;

	for (uint32_t i = 0; i < sequence->blocks; i++)
		shared += kv_refs(kv, kv_entry(kv, sequence, i)) > 1;
	return shared;
}

static struct gpool_kv_sequence_info sequence_describe(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	uint64_t cursor = atomic_load_explicit(&sequence->cursor, memory_order_relaxed);

	return (struct gpool_kv_sequence_info){
		.state = sequence->state,
		.tokens = cursor_tokens(cursor),
		.blocks = sequence->blocks,
		.shared_blocks = sequence->state == GPOOL_KV_RUNNING ? shared_blocks(kv, sequence) : 0,
		.room = cursor_limit(cursor) - cursor_tokens(cursor),
		.row = kv_row(kv, sequence),
		.priority = sequence->priority,
		.arrival = sequence->arrival,
		.owner_id = sequence->owner_id,
	};
}

int gpool_kv_sequence_info(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_sequence_info *info)
{
	struct gpool_kv_sequence_info filled;
	struct kv_sequence *found;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &found);
	if (!error)
		filled = sequence_describe(kv, found);
	pthread_mutex_unlock(&kv->lock);
	return error ? error : copy_struct(info, &filled, sizeof(filled));
}

/* ---- statistics ---- */

/*
 * Return the number of blocks that are needed to append one token to each running sequence. Each sequence without room
 * needs one, for its next tokens or for a copy of its shared last block.
 */
static uint32_t step_blocks(struct gpool_kv *kv)
{
	struct kv_sequence *sequence;
	uint32_t blocks = 0;

	RB_FOREACH(sequence, kv_order, &kv->running)
	{
		uint64_t cursor = atomic_load_explicit(&sequence->cursor, memory_order_relaxed);

		blocks += cursor_limit(cursor) == cursor_tokens(cursor);
	}
	return blocks;
}

static struct gpool_kv_stats statistics_of(struct gpool_kv *kv)
{
	const struct block_pool *blocks = &kv->blocks;
	struct kv_sequence *victim = RB_MIN(kv_order, &kv->running);
	uint32_t committed = blocks->chunks - blocks->holes.count;

	return (struct gpool_kv_stats){
		.used_blocks = blocks->used_blocks,
		.free_blocks = blocks->blocks - blocks->used_blocks,
		.available_blocks = memory_blocks(kv),
		.watermark_blocks = kv->watermark,
		.reclaimable_blocks = victim ? victim->blocks - shared_blocks(kv, victim) : 0,
		.step_blocks = step_blocks(kv),
		.shared_blocks = blocks->shared_blocks,
		.cached_blocks = blocks->cached_blocks,
		.running = kv->running_count,
		.preempted = kv->preempted_count,
		.committed_chunks = committed,
		.committed_bytes = committed * kv->chunk_bytes,
		.allocations = kv->allocations,
		.forks = kv->forks,
		.frees = kv->frees,
		.preemptions = kv->preemptions,
		.resumes = kv->resumes,
		.refusals = kv->refusals,
		.block_copies = kv->block_copies,
		.table_bytes = kv->table_bytes,
		.prefix_hits = kv->prefix_hits,
		.prefix_misses = kv->prefix_misses,
		.prefix_published = kv->prefix_published,
		.prefix_switched = kv->prefix_switched,
		.prefix_evicted = kv->prefix_evicted,
		.pool_shared = kv->pool_shared,
		.pool_found = kv->pool_found,
		.pool_blocks = kv->pooled ? kv->pooled->used * blocks->chunk_blocks : 0,
		.prefix_lost = kv->prefix_lost,
		.offered_chunks = blocks->offered.count,
	};
}

int gpool_kv_stats(struct gpool_kv *kv, struct gpool_kv_stats *statistics)
{
	struct gpool_kv_stats filled;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	offer_look(kv);
	filled = statistics_of(kv);
	pthread_mutex_unlock(&kv->lock);
	return copy_struct(statistics, &filled, sizeof(filled));
}

/* ---- validation and copies ---- */

static bool same_shape(const struct gpool_kv *kv, const struct gpool_kv_shape *shape)
{
	const struct gpool_kv_shape *own = &kv->shape;

	return shape->layers == own->layers && shape->kv_heads == own->kv_heads && shape->head_size == own->head_size &&
		shape->dtype_bytes == own->dtype_bytes &&
		(shape->block_tokens ? shape->block_tokens : 16) == own->block_tokens;
}

/* Check that the block belongs to a running sequence. Return: 0, -EACCES. */
static int block_of(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t block)
{
	for (uint32_t i = 0; sequence->state == GPOOL_KV_RUNNING && i < sequence->blocks; i++)
		if (kv_entry(kv, sequence, i) == block)
			return 0;
	return fail(-EACCES, "block %u does not belong to sequence 0x%llx, or the sequence is not running", block,
		(unsigned long long)kv_number(kv, sequence));
}

int gpool_kv_validate(struct gpool_kv *kv, uint64_t sequence, int32_t block, const struct gpool_kv_shape *shape)
{
	struct kv_sequence *found;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	if (block < 0 || (uint32_t)block >= kv_block_count(kv))
		return fail(-EINVAL, "block is %d; the cache has %u block%s", block, kv_block_count(kv),
			plural(kv_block_count(kv)));
	if (!same_shape(kv, shape))
		return fail(-EPROTO,
			"the shape differs from that of the cache: %u layer%s, %u head%s of %u element%s of %u "
			"byte%s, blocks of %u token%s",
			kv->shape.layers, plural(kv->shape.layers), kv->shape.kv_heads, plural(kv->shape.kv_heads),
			kv->shape.head_size, plural(kv->shape.head_size), kv->shape.dtype_bytes,
			plural(kv->shape.dtype_bytes), kv->shape.block_tokens, plural(kv->shape.block_tokens));
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &found);
	if (!error)
		error = kv_refs(kv, (uint32_t)block) ? block_of(kv, found, (uint32_t)block)
						     : fail(-ESTALE, "block %d is free", block);
	pthread_mutex_unlock(&kv->lock);
	return error;
}

/* Check that both blocks are in use, and that the target belongs to a single sequence and has no key. */
static bool pair_check(const struct gpool_kv *kv, const struct gpool_kv_pair *pair)
{
	return pair->from >= 0 && pair->to >= 0 && pair->from != pair->to &&
		(uint32_t)pair->from < kv_block_count(kv) && (uint32_t)pair->to < kv->blocks.blocks &&
		kv_refs(kv, (uint32_t)pair->from) && kv->blocks.refs[pair->to] == 1 &&
		!prefix_table_has(&kv->prefixes, (uint32_t)pair->to);
}

/* Describe why a pair does not pass pair_check(). Return: -EINVAL. */
static COLD int pair_refuse(const struct gpool_kv *kv, size_t number, const struct gpool_kv_pair *pair)
{
	uint32_t blocks = kv_block_count(kv), own = kv->blocks.blocks;
	char why[96] = "the blocks must differ";

	if (pair->from < 0 || (uint32_t)pair->from >= blocks)
		snprintf(why, sizeof(why), "the source must be 0 to %u, a block of the cache", blocks - 1);
	else if (pair->to < 0 || (uint32_t)pair->to >= own)
		snprintf(why, sizeof(why), "the target must be 0 to %u, a block of the cache%s", own - 1,
			own < blocks ? " that is not of the pool" : "");
	else if (!kv_refs(kv, (uint32_t)pair->from) || !kv->blocks.refs[pair->to])
		snprintf(why, sizeof(why), "block %d is not in use; both blocks must belong to a sequence",
			kv_refs(kv, (uint32_t)pair->from) ? pair->to : pair->from);
	else if (kv->blocks.refs[pair->to] > 1)
		snprintf(why, sizeof(why), "%u sequence%s share the target; it must belong to one only",
			kv->blocks.refs[pair->to], plural(kv->blocks.refs[pair->to]));
	else if (prefix_table_has(&kv->prefixes, (uint32_t)pair->to))
		snprintf(why, sizeof(why), "the target is published, so its content must not change");
	return fail(-EINVAL, "pair %zu, from block %d to %d: %s", number, pair->from, pair->to, why);
}

int gpool_kv_copy_blocks(struct gpool_kv *kv, const struct gpool_kv_pair *pairs, size_t count)
{
	struct copies copies;
	int error = 0;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	for (size_t i = 0; i < count && !error; i++)
		error = pair_check(kv, &pairs[i]) ? 0 : pair_refuse(kv, i, &pairs[i]);
	copies_begin(&copies, kv);
	for (size_t i = 0; i < count && !error; i++)
		error = copies_add(&copies, (uint32_t)pairs[i].to, (uint32_t)pairs[i].from);
	if (!error)
		error = copies_end(&copies);
	kv->block_copies += error ? 0 : count;
	pthread_mutex_unlock(&kv->lock);
	return error;
}

/* ---- conversion errors ---- */

enum { ROOT_STEPS = 64 }; /* enough for ratios down to 1e-32 */

/* Compute a square root by Newton's method. sqrt() would force every program that links libgpool.a to link libm. */
static double root(double square)
{
	double root = 1;

	for (int steps = 0; square > 0 && steps < ROOT_STEPS; steps++)
		root = (root + square / root) / 2;
	return square > 0 ? root : 0;
}

static double relative(const struct quantise_error *loss)
{
	return loss->squares > 0 ? root(loss->error_squares / loss->squares) : 0;
}

int gpool_kv_quant_error(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_quant_error *loss)
{
	struct gpool_kv_quant_error found = {.size = sizeof(found)};
	struct kv_sequence *of;
	int error, known = 0;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &of);
	if (!error && !of->lossy)
		error = fail(-ENODATA, "sequence 0x%llx was not offloaded with GPOOL_KV_OFFLOAD_INT8",
			(unsigned long long)sequence);
	else if (!error)
		known = gpool_fence_done(kv->pool, of->loss_known);
	if (!error && known <= 0)
		error = known ? known
			      : fail(-EAGAIN,
					"stream %u has not yet converted sequence 0x%llx to int8; wait for the stream "
					"and call again",
					kv->stream, (unsigned long long)sequence);
	if (!error) {
		found.max_error = kv->losses[kv_row(kv, of)].max_error;
		found.relative_error = isinf(found.max_error) ? INFINITY : relative(&kv->losses[kv_row(kv, of)]);
	}
	pthread_mutex_unlock(&kv->lock);
	return error ? error : copy_struct(loss, &found, sizeof(found));
}
