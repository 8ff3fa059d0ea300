/*
 * preempt.c - preempt and resume sequences.
 *
 * One tree contains the running sequences and another one the preempted sequences. Both are ordered by priority and
 * then by arrival. The first running sequence is preempted first; the last preempted sequence is resumed first. A
 * preempted sequence has no blocks, but keeps its row, its tokens and its number of blocks.
 */
#include "client/kv/preempt.h"

#include "client/kv/offload.h"
#include "client/core/last_error.h"

void order_enter(struct gpool_kv *kv, struct kv_sequence *sequence, enum gpool_kv_state state)
{
	sequence->state = state;
	if (state == GPOOL_KV_RUNNING) {
		RB_INSERT(kv_order, &kv->running, sequence);
		kv->running_count++;
	} else {
		RB_INSERT(kv_order, &kv->preempted, sequence);
		kv->preempted_count++;
	}
}

void order_leave(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	if (sequence->state == GPOOL_KV_RUNNING) {
		RB_REMOVE(kv_order, &kv->running, sequence);
		kv->running_count--;
	} else {
		RB_REMOVE(kv_order, &kv->preempted, sequence);
		kv->preempted_count--;
	}
}

int kv_preempt(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	uint32_t tokens = cursor_stop(sequence), freed = kv_shrink(kv, sequence);

	order_leave(kv, sequence);
	order_enter(kv, sequence, GPOOL_KV_PREEMPTED);
	cursor_go(kv, sequence, tokens);
	kv->preemptions++;
	return (int)freed;
}

int kv_victim(struct gpool_kv *kv, uint64_t number, struct kv_sequence **sequence)
{
	int error = number ? kv_find(kv, number, sequence) : 0;

	if (error)
		return error;
	if (!number)
		*sequence = RB_MIN(kv_order, &kv->running);
	if (!*sequence)
		return fail(-ENOENT, "no sequence of the cache is running");
	return (*sequence)->state == GPOOL_KV_RUNNING ? 0 : fail_preempted(kv, *sequence);
}

int gpool_kv_preempt(struct gpool_kv *kv, uint64_t sequence, uint64_t *victim)
{
	struct kv_sequence *found;
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	result = kv_victim(kv, sequence, &found);
	if (!result) {
		result = kv_preempt(kv, found);
		memory_park(kv);
		if (victim)
			*victim = kv_number(kv, found);
	}
	pthread_mutex_unlock(&kv->lock);
	return result;
}

int gpool_kv_waiting(struct gpool_kv *kv, uint64_t *sequence)
{
	struct kv_sequence *first;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	first = RB_MAX(kv_order, &kv->preempted);
	if (first)
		*sequence = kv_number(kv, first);
	pthread_mutex_unlock(&kv->lock);
	return first ? 0 : fail(-ENOENT, "no sequence of the cache is preempted");
}

static int resume(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	/*
	 * The sequence may have grown into the watermark, which is reserved for running sequences. If no sequence is
	 * running, the resumed sequence may use the whole cache.
	 */
	uint32_t tokens, blocks = sequence->blocks, watermark = kv->running_count ? kv->watermark : 0;
	int error = kv_admit(kv, blocks, 0, watermark) ? -ENOSPC : 0;

	if (!error)
		error = memory_get(kv, blocks);
	if (error)
		return kv_refuse(kv, blocks, error);
	tokens = cursor_stop(sequence);
	sequence->blocks = 0;
	kv_grow(kv, sequence, blocks);
	memory_settle(kv);
	/* Saved content fills the blocks that have tokens. */
	error = kv_zero(kv, sequence, sequence->saved ? kv_blocks_for(kv, tokens) : 0);
	if (!error)
		error = offload_load(kv, sequence);
	if (error) {
		kv_shrink(kv, sequence);
		cursor_go(kv, sequence, tokens);
		memory_park(kv);
		return error;
	}
	order_leave(kv, sequence);
	order_enter(kv, sequence, GPOOL_KV_RUNNING);
	cursor_go(kv, sequence, tokens);
	kv->resumes++;
	return 0;
}

int gpool_kv_resume(struct gpool_kv *kv, uint64_t sequence)
{
	struct kv_sequence *found;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &found);
	if (!error)
		error = found->state == GPOOL_KV_RUNNING
			? fail(-EALREADY, "sequence 0x%llx is running", (unsigned long long)sequence)
			: resume(kv, found);
	pthread_mutex_unlock(&kv->lock);
	return error;
}
