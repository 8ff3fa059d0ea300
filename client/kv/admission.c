/* admission.c - compare the need of a request with the available blocks. */
#include "client/kv/kv.h"
#include "shm/plural.h"

#include "client/kv/offer.h"
#include "client/core/last_error.h"

#include <string.h>

int copy_struct(void *to, const void *from, uint32_t known)
{
	uint32_t size;

	memcpy(&size, to, sizeof(size));
	if (size < sizeof(size))
		return fail_size(size);
	memcpy(to, from, size < known ? size : known);
	if (size > known)
		memset((char *)to + known, 0, size - known);
	memcpy(to, &size, sizeof(size));
	return 0;
}

/* Compute the need of a sequence with `blocks` blocks. The caller holds the lock. */
static struct gpool_kv_need kv_need(const struct gpool_kv *kv, uint32_t blocks)
{
	return (struct gpool_kv_need){
		.needed_blocks = blocks,
		.available_blocks = memory_blocks(kv),
		.free_blocks = kv->blocks.blocks - kv->blocks.used_blocks,
		.watermark_blocks = kv->watermark,
	};
}

static void refusal_tell(const struct gpool_kv *kv, uint32_t blocks, int error)
{
	struct gpool_kv_need need = kv_need(kv, blocks);

	if (error == -EUSERS)
		fail(error, "the cache has %u sequence%s, the limit (max_sequences)", kv->max_sequences,
			plural(kv->max_sequences));
	else if (error == -EFBIG && blocks > kv->columns)
		fail(error, "%u block%s needed; a sequence can have at most %u block%s (max_sequence_tokens)", blocks,
			plural(blocks), kv->columns, plural(kv->columns));
	else
		fail(error,
			"%u block%s needed; the cache has %u block%s, of which %u are not in use, %u are available, "
			"and %u must stay free (watermark_blocks)",
			blocks, plural(blocks), kv->blocks.blocks, plural(kv->blocks.blocks), need.free_blocks,
			need.available_blocks, need.watermark_blocks);
}

int kv_refuse(struct gpool_kv *kv, uint32_t blocks, int error)
{
	if (error == -ENOSPC || error == -EDQUOT || error == -EFBIG)
		kv->shortage = kv_need(kv, blocks);
	if (error == -ENOSPC || error == -EDQUOT || error == -EFBIG || error == -EUSERS)
		kv->refusals++;
	if (error == -ENOSPC || error == -EFBIG || error == -EUSERS)
		refusal_tell(kv, blocks, error);
	return error;
}

int kv_admit(const struct gpool_kv *kv, uint32_t blocks, uint32_t borrowed, uint32_t watermark)
{
	uint64_t all = (uint64_t)blocks + watermark;

	if (blocks > kv->columns || all > memory_limit(kv))
		return -EFBIG;
	return all - borrowed > kv->blocks.blocks - kv->blocks.used_blocks ? -ENOSPC : 0;
}

int kv_fits(struct gpool_kv *kv, uint32_t blocks)
{
	return kv_admit(kv, blocks, 0, 0) == -EFBIG ? kv_refuse(kv, blocks, -EFBIG) : 0;
}

int gpool_kv_can_allocate(struct gpool_kv *kv, uint32_t tokens, struct gpool_kv_need *need)
{
	struct gpool_kv_need found;
	uint32_t blocks;
	int error = 0;
	bool never;

	if (!kv->pool->alive)
		return -ECHILD;
	blocks = kv_blocks_for(kv, tokens);
	pthread_mutex_lock(&kv->lock);
	offer_look(kv);
	found = kv_need(kv, blocks);
	never = kv_admit(kv, blocks, 0, kv->watermark) == -EFBIG;
	pthread_mutex_unlock(&kv->lock);
	if (need)
		error = copy_struct(need, &found, sizeof(found));
	if (error)
		return error;
	if (never)
		return GPOOL_KV_NEVER;
	return (uint64_t)blocks + found.watermark_blocks <= found.available_blocks ? GPOOL_KV_OK : GPOOL_KV_LATER;
}

/* Return the number of further sequences that the limit and the free rows permit. */
static uint32_t sequences_left(const struct gpool_kv *kv, const struct gpool_kv_batch *limits)
{
	uint32_t left = kv->rows.count, allowed;

	if (!limits->max_sequences)
		return left;
	allowed = limits->max_sequences > kv->running_count ? limits->max_sequences - kv->running_count : 0;
	return allowed < left ? allowed : left;
}

/*
 * Return how many requests fit, counted from the first, and set *blocks to the number of blocks that they need. The
 * caller holds the lock.
 */
static uint32_t batch_count(const struct gpool_kv *kv, const uint32_t *tokens, uint32_t count,
	const struct gpool_kv_batch *limits, uint32_t *blocks)
{
	uint32_t left = sequences_left(kv, limits), available = memory_blocks(kv), fit = 0;
	uint64_t all_tokens = 0, all_blocks = 0;

	for (; fit < count && fit < left; fit++) {
		uint32_t wanted = kv_blocks_for(kv, tokens[fit]);

		if (kv_admit(kv, wanted, 0, kv->watermark) == -EFBIG ||
			all_blocks + wanted + kv->watermark > available ||
			(limits->max_tokens && all_tokens + tokens[fit] > limits->max_tokens))
			break;
		all_blocks += wanted;
		all_tokens += tokens[fit];
	}
	*blocks = (uint32_t)all_blocks;
	return fit;
}

int gpool_kv_can_batch(struct gpool_kv *kv, const uint32_t *tokens, uint32_t count, const struct gpool_kv_batch *limits,
	struct gpool_kv_need *need)
{
	struct gpool_kv_batch read = GPOOL_KV_BATCH_INIT;
	struct gpool_kv_need found;
	uint32_t fit, blocks;
	int error = 0;

	if (!kv->pool->alive)
		return -ECHILD;
	if (limits)
		error = options_read(&read, sizeof(read), limits);
	if (error)
		return error;
	pthread_mutex_lock(&kv->lock);
	offer_look(kv);
	fit = batch_count(kv, tokens, count < INT32_MAX ? count : INT32_MAX, &read, &blocks);
	found = kv_need(kv, blocks);
	pthread_mutex_unlock(&kv->lock);
	if (need)
		error = copy_struct(need, &found, sizeof(found));
	return error ? error : (int)fit;
}

int gpool_kv_oom_info(struct gpool_kv *kv, struct gpool_kv_need *need)
{
	struct gpool_kv_need last;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	last = kv->shortage;
	pthread_mutex_unlock(&kv->lock);
	return copy_struct(need, &last, sizeof(last));
}
