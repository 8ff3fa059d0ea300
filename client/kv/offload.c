/* offload.c - preempt sequences and keep their content. See offload.h. */
#include "client/kv/offload.h"

#include "client/kv/offload_host.h"
#include "client/kv/offload_int8.h"
#include "client/kv/offload_pool.h"
#include "client/kv/preempt.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "client/vm/range.h"

#include <stdlib.h>

/* ---- saved content ---- */

/*
 * Convert an error of saved content. A stale block has been evicted and lost its content, because only this cache can
 * free it.
 */
static int kept_error(const struct gpool_kv *kv, const struct kv_sequence *sequence, int error)
{
	return error == -ESTALE || error == -EBADMSG
		? fail(-ENODATA, "the saved content of sequence 0x%llx was evicted, or its checksum is wrong",
			  (unsigned long long)kv_number(kv, sequence))
		: error;
}

static int save_to(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved)
{
	int error = saved->flags & GPOOL_KV_OFFLOAD_INT8 ? int8_open(kv) : 0;

	if (error)
		return error;
	return saved->flags & GPOOL_KV_OFFLOAD_POOL ? pieces_save(kv, sequence, saved) : host_save(kv, sequence, saved);
}

static int save(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t tokens, uint32_t flags)
{
	struct kv_saved *saved;
	int error;

	/* The conversion would save nothing, or there is no content. */
	if (kv->shape.dtype_bytes == 1 || !tokens)
		flags &= ~(uint32_t)GPOOL_KV_OFFLOAD_INT8;
	saved = calloc(1, sizeof(*saved));
	if (!saved)
		return -ENOMEM;
	saved->flags = flags;
	saved->bytes = kv_blocks_for(kv, tokens) * kv->block_bytes;
	error = ranges_enter(kv->pool->ranges);
	if (!error) {
		error = save_to(kv, sequence, saved);
		ranges_leave(kv->pool->ranges);
	}
	if (error) {
		free(saved);
		return error;
	}
	sequence->saved = saved;
	sequence->lossy = flags & GPOOL_KV_OFFLOAD_INT8;
	if (sequence->lossy)
		sequence->loss_known = offload_behind(kv);
	kv->offload_saves++;
	return 0;
}

static int load_from(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	int error = sequence->lossy ? int8_wait(kv, sequence) : 0;

	if (error)
		return error;
	return sequence->saved->pieces ? pieces_load(kv, sequence) : host_load(kv, sequence);
}

int offload_load(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	int error;

	if (!sequence->saved)
		return 0;
	error = ranges_enter(kv->pool->ranges);
	if (error)
		return error;
	error = kept_error(kv, sequence, load_from(kv, sequence));
	ranges_leave(kv->pool->ranges);
	if (!error)
		kv->offload_loads++;
	if (!error || error == -ENODATA)
		offload_forget(kv, sequence);
	return error;
}

void offload_forget(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	struct kv_saved *saved = sequence->saved;

	if (!saved)
		return;
	if (saved->pieces)
		pieces_forget(kv, saved);
	else
		host_forget(kv, saved);
	free(saved);
	sequence->saved = NULL;
}

int offload_check(const struct gpool_kv *kv, uint32_t flags)
{
	if (flags & ~(uint32_t)(GPOOL_KV_OFFLOAD_POOL | GPOOL_KV_OFFLOAD_INT8))
		return fail(-EINVAL,
			"flags are 0x%x; the known flags are GPOOL_KV_OFFLOAD_POOL and GPOOL_KV_OFFLOAD_INT8", flags);
	return kv->host || flags & GPOOL_KV_OFFLOAD_POOL
		? 0
		: fail(-EOPNOTSUPP,
			  "the cache has no host memory; call gpool_kv_host_reserve(), or use GPOOL_KV_OFFLOAD_POOL");
}

int offload_preempt(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t flags)
{
	uint32_t tokens = cursor_stop(sequence);
	int error = save(kv, sequence, tokens, flags);

	if (!error)
		return kv_preempt(kv, sequence);
	cursor_go(kv, sequence, tokens);
	return error;
}

/* ---- create and destroy ---- */

void offload_end(struct gpool_kv *kv)
{
	for (uint32_t row = 0; row < kv->max_sequences; row++)
		offload_forget(kv, &kv->sequences[row]);
}

void offload_close(struct gpool_kv *kv)
{
	for (uint32_t row = 0; kv->sequences && row < kv->max_sequences; row++) {
		struct kv_saved *saved = kv->sequences[row].saved;

		if (saved) {
			free(saved->slots);
			free(saved->pieces);
			free(saved);
		}
	}
	host_close(kv);
	int8_close(kv);
}

/* ---- public functions ---- */

int gpool_kv_offload(struct gpool_kv *kv, uint64_t sequence, uint32_t flags, uint64_t *victim)
{
	struct kv_sequence *found;
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	result = offload_check(kv, flags);
	if (!result)
		result = kv_victim(kv, sequence, &found);
	if (!result) {
		result = offload_preempt(kv, found, flags);
		memory_park(kv);
		if (result >= 0 && victim)
			*victim = kv_number(kv, found);
	}
	pthread_mutex_unlock(&kv->lock);
	return result;
}

int gpool_kv_prefetch(struct gpool_kv *kv, uint64_t sequence)
{
	struct kv_sequence *found;
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	result = kv_find(kv, sequence, &found);
	if (!result && found->state == GPOOL_KV_RUNNING)
		result = fail(-EALREADY, "sequence 0x%llx is running", (unsigned long long)sequence);
	else if (!result && found->saved && found->saved->pieces)
		result = kept_error(kv, found, pieces_fetch(kv, found));
	pthread_mutex_unlock(&kv->lock);
	return result;
}

/* Count the preempted sequences that have saved content. */
static void kept_count(struct gpool_kv *kv, struct gpool_kv_offload_info *found)
{
	struct kv_sequence *sequence;

	RB_FOREACH(sequence, kv_order, &kv->preempted)
	{
		const struct kv_saved *saved = sequence->saved;

		if (!saved)
			continue;
		found->sequences++;
		found->content_bytes += saved->bytes;
		for (uint32_t i = 0; saved->pieces && i < saved->count; i++)
			found->pool_pages += saved->pieces[i].block.page_count;
	}
}

int gpool_kv_offload_info(struct gpool_kv *kv, struct gpool_kv_offload_info *offloaded)
{
	struct gpool_kv_offload_info found = {.size = sizeof(found)};

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	if (kv->host) {
		found.host_blocks = kv->host->slots;
		found.host_free_blocks = kv->host->free.count;
		found.host_bytes = kv->host->bytes;
	}
	kept_count(kv, &found);
	found.saves = kv->offload_saves;
	found.loads = kv->offload_loads;
	pthread_mutex_unlock(&kv->lock);
	return copy_struct(offloaded, &found, sizeof(found));
}
