/*
 * grow.c - append to a sequence, and preempt others while blocks are missing.
 *
 * The memory of preempted sequences stays committed until the end of the call (memory_park()), so that the append gets
 * it without a request to the agent. A policy of the caller runs without the lock.
 */
#include "client/kv/grow.h"

#include "client/kv/offload.h"
#include "client/kv/preempt.h"
#include "client/core/last_error.h"

#include <string.h>

struct growing {
	struct gpool_kv_growth growth;
	uint64_t sequence;
	uint32_t tokens;
	uint64_t *victims;
	uint32_t count; /* number of preempted sequences */
};

int growth_read(struct gpool_kv_growth *read, const struct gpool_kv_growth *growth, uint64_t *victims)
{
	int error = growth ? options_read(read, sizeof(*read), growth) : 0;

	if (error)
		return error;
	if (victims)
		memset(victims, 0, read->most * sizeof(*victims));
	if (read->flags & ~(uint32_t)GPOOL_KV_GROW_OFFLOAD)
		return fail(-EINVAL, "flags are 0x%x; the only known flag is GPOOL_KV_GROW_OFFLOAD", read->flags);
	if (victims && !read->most)
		return fail(-EINVAL, "victims is set, but most, its number of elements, is 0");
	return 0;
}

int growth_ask(const struct gpool_kv_growth *growth, uint64_t sequence, uint64_t *chosen)
{
	int error;

	*chosen = 0;
	error = growth->choose ? growth->choose(growth->context, sequence, chosen) : 0;
	if (error > 0)
		return fail(-EINVAL, "the policy returned %d; it must return 0 or a negative code", error);
	return error ? fail(error, "the policy refused the growth with the error %d", error) : 0;
}

int fail_choice(uint64_t chosen)
{
	return fail(-EINVAL, "the policy chose sequence 0x%llx, which is not running", (unsigned long long)chosen);
}

/* Find the sequence again after the lock was released. Return: 0, -EAGAIN (preempted), or as kv_find(). */
static int sequence_find(const struct gpool_kv *kv, const struct growing *growing, struct kv_sequence **sequence)
{
	int error = kv_find(kv, growing->sequence, sequence);

	return !error && (*sequence)->state != GPOOL_KV_RUNNING ? fail_preempted(kv, *sequence) : error;
}

/*
 * Check that the cache would have enough blocks if all other sequences were preempted. Return: 0, -EFBIG, or as
 * sequence_find().
 */
static int fits_ever(struct gpool_kv *kv, const struct growing *growing)
{
	struct kv_sequence *sequence;
	uint32_t blocks;
	int error = sequence_find(kv, growing, &sequence);

	if (error)
		return error;
	blocks = kv_blocks_for(
		kv, cursor_tokens(atomic_load_explicit(&sequence->cursor, memory_order_relaxed)) + growing->tokens);
	error = kv_fits(kv, blocks);
	kv->refusals -= error != 0; /* of the append */
	return error;
}

/*
 * Ask the policy, without the lock. *victim is the sequence itself if none is to be preempted. Return: 0, the code of
 * the policy, -EINVAL (it chose a sequence that is not running), -ENOENT (none is running).
 */
static int victim_choose(struct gpool_kv *kv, const struct growing *growing, struct kv_sequence **victim)
{
	uint64_t chosen = 0;
	int error = 0;

	if (growing->growth.choose) {
		pthread_mutex_unlock(&kv->lock);
		error = growth_ask(&growing->growth, growing->sequence, &chosen);
		pthread_mutex_lock(&kv->lock);
	}
	if (error)
		return error;
	error = kv_victim(kv, chosen, victim);
	/* -EAGAIN and -ESTALE would be errors of the sequence that grows. */
	return error == -EAGAIN || error == -ESTALE ? fail_choice(chosen) : error;
}

static int victim_preempt(struct gpool_kv *kv, struct growing *growing, struct kv_sequence *victim)
{
	const struct gpool_kv_growth *growth = &growing->growth;
	uint64_t number = kv_number(kv, victim);
	int result = -ENOSPC;

	if (growth->flags & GPOOL_KV_GROW_OFFLOAD) {
		result = offload_check(kv, growth->offload_flags);
		if (!result)
			result = offload_preempt(kv, victim, growth->offload_flags);
	}
	if (is_shortage(result))
		result = kv_preempt(kv, victim);
	if (result < 0)
		return result;
	if (growing->victims)
		growing->victims[growing->count] = number;
	growing->count++;
	return 0;
}

/*
 * Preempt one sequence and repeat the append, until it succeeds or no further sequence is to be preempted. The first
 * append has failed with `shortage`. The caller holds the lock.
 */
static int grow(struct gpool_kv *kv, struct growing *growing, int shortage, uint64_t *slot)
{
	struct kv_sequence *sequence, *victim;
	int error = fits_ever(kv, growing);

	while (!error && is_shortage(shortage)) {
		if (growing->growth.most && growing->count == growing->growth.most)
			return shortage;
		error = victim_choose(kv, growing, &victim);
		if (!error)
			error = sequence_find(kv, growing, &sequence);
		if (!error && victim == sequence)
			return shortage;
		if (!error)
			error = victim_preempt(kv, growing, victim);
		if (error)
			return error;
		kv->refusals--; /* the call has not been refused yet */
		shortage = sequence_append(kv, growing->sequence, growing->tokens, slot);
	}
	return error ? error : shortage;
}

int gpool_kv_grow(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens, const struct gpool_kv_growth *growth,
	uint64_t *slot, uint64_t *victims)
{
	struct growing growing = {
		.growth = GPOOL_KV_GROWTH_INIT, .sequence = sequence, .tokens = tokens, .victims = victims};
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	error = growth_read(&growing.growth, growth, victims);
	if (!error)
		error = gpool_kv_append(kv, sequence, tokens, slot);
	if (!is_shortage(error))
		return error;
	pthread_mutex_lock(&kv->lock);
	error = grow(kv, &growing, error, slot);
	memory_park(kv);
	pthread_mutex_unlock(&kv->lock);
	return error ? error : (int)growing.count;
}
