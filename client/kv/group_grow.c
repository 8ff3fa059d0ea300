/*
 * group_grow.c - append to a sequence of a group, and preempt others while blocks are missing.
 *
 * A victim is preempted in all of its caches, and the append is repeated, which takes effect in all caches or in none.
 * The order of the victims is that of a cache (struct kv_order), of all sequences of the group that have blocks in the
 * cache that refused. A policy of the caller runs without the lock.
 */
#include "client/kv/group.h"

#include "client/kv/grow.h"
#include "client/core/last_error.h"

struct growing {
	struct gpool_kv_growth growth;
	uint64_t sequence;
	uint32_t tokens;
	uint64_t *victims;
	uint32_t count; /* number of preempted sequences */
};

/* Check that each cache would have enough blocks for its part if it had no other. Return: 0, -EFBIG. */
static int fits_ever(struct gpool_kv_group *group, const struct growing *growing)
{
	struct group_row *row;
	int error = group_find(group, growing->sequence, &row);

	for (uint32_t i = 0; i < group->count && !error; i++) {
		uint32_t tokens = group_share(group, row->tokens + growing->tokens, i);
		struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_FITS, .tokens = tokens};

		if (tokens != group_share(group, row->tokens, i))
			error = group_order(group, i, &order);
		if (error)
			group_refuse(group, i, error);
	}
	return error;
}

/* Return true if `a` is preempted before `b`. */
static bool precedes(const struct group_row *a, const struct group_row *b)
{
	return a->priority != b->priority ? a->priority < b->priority : a->arrival > b->arrival;
}

/*
 * Return the number of the sequence to preempt next to free blocks of the cache `refused`. The sequence that grows is
 * always a candidate, so that no sequence is preempted for one that comes after it.
 */
static uint64_t victim_next(const struct gpool_kv_group *group, uint64_t sequence, uint32_t refused)
{
	const struct group_row *best = NULL;

	for (uint32_t i = 0; i < group->max_sequences; i++) {
		const struct group_row *row = &group->rows[i];

		if (!row->members[0] || row->preempted || row->torn)
			continue;
		if ((row->members[refused] || row->members[0] == sequence) && (!best || precedes(row, best)))
			best = row;
	}
	return best ? best->members[0] : sequence;
}

/*
 * Ask the policy, without the lock. *victim is the sequence itself if none is to be preempted. Return: 0, an error of
 * the policy or its choice, or of the sequence, which may have ended in the meantime.
 */
static int victim_choose(struct gpool_kv_group *group, const struct growing *growing, uint64_t *victim)
{
	uint32_t refused = group->refused;
	struct group_row *row;
	int error = 0;

	*victim = 0;
	if (growing->growth.choose) {
		pthread_mutex_unlock(&group->lock);
		error = growth_ask(&growing->growth, growing->sequence, victim);
		pthread_mutex_lock(&group->lock);
	}
	if (!error)
		error = group_find(group, growing->sequence, &row);
	if (!error)
		error = group_running(row);
	if (error)
		return error;
	if (!*victim)
		*victim = victim_next(group, growing->sequence, refused);
	if (*victim == growing->sequence)
		return 0;
	/* -EAGAIN, -ESTALE and -ECONNRESET would be errors of the sequence that grows. */
	return group_find(group, *victim, &row) || group_running(row) ? fail_choice(*victim) : 0;
}

/* Preempt one sequence and repeat the append, as grow() of grow.c. The caller holds the lock. */
static int grow(struct gpool_kv_group *group, struct growing *growing, int shortage, uint32_t *member, uint64_t *slot)
{
	int error = fits_ever(group, growing);

	while (!error && is_shortage(shortage)) {
		uint64_t victim;

		if (growing->growth.most && growing->count == growing->growth.most)
			return shortage;
		error = victim_choose(group, growing, &victim);
		if (error || victim == growing->sequence)
			return error ? error : shortage;
		error = group_preempt(group, victim, NULL);
		if (error < 0)
			return error;
		error = 0;
		if (growing->victims)
			growing->victims[growing->count] = victim;
		growing->count++;
		shortage = group_append(group, growing->sequence, growing->tokens, member, slot);
	}
	return error ? error : shortage;
}

int gpool_kv_group_grow(struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens,
	const struct gpool_kv_growth *growth, uint32_t *member, uint64_t *slot, uint64_t *victims)
{
	struct growing growing = {
		.growth = GPOOL_KV_GROWTH_INIT, .sequence = sequence, .tokens = tokens, .victims = victims};
	int error;

	if (!group_alive(group))
		return -ECHILD;
	error = growth_read(&growing.growth, growth, victims);
	if (!error && growing.growth.flags & GPOOL_KV_GROW_OFFLOAD)
		error = fail(-EOPNOTSUPP,
			"a group discards the content of preempted sequences, so it does not support "
			"GPOOL_KV_GROW_OFFLOAD");
	if (error)
		return error;
	pthread_mutex_lock(&group->lock);
	error = group_append(group, sequence, tokens, member, slot);
	if (is_shortage(error))
		error = grow(group, &growing, error, member, slot);
	pthread_mutex_unlock(&group->lock);
	return error ? error : (int)growing.count;
}
