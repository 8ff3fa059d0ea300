/*
 * group.c - sequences that extend over several caches, each of which has a range of the tokens. An operation applies to
 * all caches or to none.
 *
 * A sequence of a group consists of one sequence in the first cache and in each other cache that has tokens, or blocks
 * allocated in advance, of it. It has the number of its sequence in the first cache. An append first allocates new
 * sequences, which are freed if a later step fails. It then performs the only append to a cache that may fail, and
 * finally the others, for which blocks are available.
 */
#include "client/kv/kv.h"

#include "client/core/last_error.h"

#include <stdlib.h>
#include <string.h>

enum { MEMBERS_MAX = GPOOL_KV_GROUP_CACHES_MAX };

struct group_row {
	uint64_t members[MEMBERS_MAX]; /* [caches] 0: none */
	uint64_t owner_id;
	uint32_t priority;
	uint32_t tokens;
	bool preempted;
};

struct gpool_kv_group {
	struct gpool_kv *caches[MEMBERS_MAX];
	uint32_t count;
	uint32_t range_tokens;
	pthread_mutex_t lock;   /* protects all fields below; acquired before the locks of the caches */
	uint32_t refused;       /* index of the cache that caused the last failure */
	struct group_row *rows; /* [max_sequences of the first cache] */
};

/* ---- token ranges ---- */

/* Return how many of a sequence's tokens are in this cache. The range of the last cache has no end. */
static uint32_t share(const struct gpool_kv_group *group, uint32_t tokens, uint32_t member)
{
	uint64_t first = (uint64_t)member * group->range_tokens, left = tokens > first ? tokens - first : 0;

	return (uint32_t)(member + 1 < group->count && left > group->range_tokens ? group->range_tokens : left);
}

static int row_find(const struct gpool_kv_group *group, uint64_t sequence, struct group_row **row)
{
	uint32_t index = (uint32_t)sequence;

	if (!(sequence >> 32) || index >= group->caches[0]->max_sequences)
		return fail(-EINVAL, "0x%llx is not a sequence of this group", (unsigned long long)sequence);
	*row = &group->rows[index];
	return (*row)->members[0] == sequence
		? 0
		: fail(-ESTALE, "sequence 0x%llx of the group has ended", (unsigned long long)sequence);
}

static bool alive(const struct gpool_kv_group *group)
{
	return group->caches[0]->pool->alive;
}

/* ---- create and destroy ---- */

static int caches_check(struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens)
{
	if (!count || count > MEMBERS_MAX)
		return fail(-EINVAL, "count is %u; a group must have 1 to %d caches", count, MEMBERS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		if (!caches[i])
			return fail(-EINVAL, "cache %u is NULL", i);
		if (!range_tokens || range_tokens % caches[i]->shape.block_tokens)
			return fail(-EINVAL,
				"range_tokens is %u; it must be a multiple of %u, the tokens of a block of cache %u",
				range_tokens, caches[i]->shape.block_tokens, i);
		if (i + 1 < count && range_tokens > (uint64_t)caches[i]->columns << caches[i]->token_shift)
			return fail(-EINVAL, "range_tokens is %u; a sequence of cache %u can have at most %u tokens",
				range_tokens, i, caches[i]->columns << caches[i]->token_shift);
		for (uint32_t other = 0; other < i; other++)
			if (caches[other] == caches[i])
				return fail(-EINVAL, "caches %u and %u are the same", other, i);
	}
	return 0;
}

int gpool_kv_group_create(
	struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group)
{
	struct gpool_kv_group *made;
	int error = caches_check(caches, count, range_tokens);

	if (error)
		return error;
	if (!caches[0]->pool->alive)
		return -ECHILD;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->rows = calloc(caches[0]->max_sequences, sizeof(*made->rows));
	if (!made->rows) {
		free(made);
		return -ENOMEM;
	}
	memcpy(made->caches, caches, count * sizeof(*caches));
	made->count = count;
	made->range_tokens = range_tokens;
	pthread_mutex_init(&made->lock, NULL);
	*group = made;
	return 0;
}

void gpool_kv_group_destroy(struct gpool_kv_group *group)
{
	if (!group)
		return;
	if (alive(group))
		for (uint32_t row = 0; row < group->caches[0]->max_sequences; row++)
			for (uint32_t i = 0; i < group->count; i++)
				if (group->rows[row].members[i])
					gpool_kv_free(group->caches[i], group->rows[row].members[i]);
	pthread_mutex_destroy(&group->lock);
	free(group->rows);
	free(group);
}

/* ---- admission ---- */

int gpool_kv_group_can_allocate(
	struct gpool_kv_group *group, uint32_t tokens, uint32_t *member, struct gpool_kv_need *need)
{
	int worst = -1;

	for (uint32_t i = 0; i < group->count && (!i || share(group, tokens, i)); i++) {
		struct gpool_kv_need found = {.size = sizeof(found)};
		int result, error;

		result = gpool_kv_can_allocate(group->caches[i], share(group, tokens, i), &found);
		if (result < 0)
			return result;
		if (result <= worst)
			continue;
		worst = result;
		error = need ? copy_struct(need, &found, sizeof(found)) : 0;
		if (error)
			return error;
		if (member)
			*member = i;
	}
	return worst;
}

int gpool_kv_group_oom_info(struct gpool_kv_group *group, uint32_t *member, struct gpool_kv_need *need)
{
	uint32_t refused;

	if (!alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	refused = group->refused;
	pthread_mutex_unlock(&group->lock);
	if (member)
		*member = refused;
	return gpool_kv_oom_info(group->caches[refused], need);
}

/* ---- all or none; the callers hold the lock ---- */

static int refuse(struct gpool_kv_group *group, uint32_t member, int error)
{
	group->refused = member;
	return error;
}

static void members_free(struct gpool_kv_group *group, const uint64_t *members)
{
	for (uint32_t i = 0; i < group->count; i++)
		if (members[i])
			gpool_kv_free(group->caches[i], members[i]);
}

static int allocate(struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *members)
{
	for (uint32_t i = 0; i < group->count; i++) {
		struct gpool_kv_request part = *request;
		int error;

		part.tokens = share(group, request->tokens, i);
		part.estimated_tokens = share(group, request->estimated_tokens, i);
		if (i && !part.tokens && !part.estimated_tokens)
			continue;
		error = gpool_kv_allocate(group->caches[i], &part, &members[i]);
		if (error) {
			members[i] = 0;
			members_free(group, members);
			return refuse(group, i, error);
		}
	}
	return 0;
}

static int fork_all(struct gpool_kv_group *group, const struct group_row *row, uint64_t *members)
{
	for (uint32_t i = 0; i < group->count; i++) {
		int error = row->members[i] ? gpool_kv_fork(group->caches[i], row->members[i], &members[i]) : 0;

		if (error) {
			members[i] = 0;
			members_free(group, members);
			return refuse(group, i, error);
		}
	}
	return 0;
}

/*
 * Return true if the sequence already has tokens in this cache. Appending more tokens to them is the only step that may
 * fail and cannot be undone.
 */
static bool is_continued(const struct gpool_kv_group *group, const struct group_row *row, uint32_t member)
{
	return !member || share(group, row->tokens, member);
}

/* Return true if the sequence has a member in this cache with blocks for the tokens, allocated in advance. */
static bool has_room(const struct gpool_kv_group *group, const struct group_row *row, uint32_t member, uint32_t tokens)
{
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};

	return row->members[member] &&
		gpool_kv_sequence_info(group->caches[member], row->members[member], &info) == 0 && info.room >= tokens;
}

/* Allocate sequences in the caches that get their first tokens, unless blocks were allocated in advance. */
static int extend(struct gpool_kv_group *group, const struct group_row *row, uint32_t tokens, uint64_t *fresh)
{
	for (uint32_t i = 0; i < group->count; i++) {
		struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
		int error;

		request.flags = GPOOL_KV_CONTINUES;
		request.tokens = share(group, row->tokens + tokens, i) - share(group, row->tokens, i);
		request.priority = row->priority;
		request.owner_id = row->owner_id;
		if (!request.tokens || is_continued(group, row, i) || has_room(group, row, i, request.tokens))
			continue;
		error = gpool_kv_allocate(group->caches[i], &request, &fresh[i]);
		if (error) {
			fresh[i] = 0;
			members_free(group, fresh);
			return refuse(group, i, error);
		}
	}
	return 0;
}

static uint64_t slot_of(const struct gpool_kv *kv, uint64_t sequence, uint32_t token)
{
	const int32_t *blocks;
	uint32_t count, tokens = kv->shape.block_tokens;

	if (gpool_kv_table((struct gpool_kv *)(uintptr_t)kv, sequence, &blocks, &count) || token / tokens >= count)
		return 0;
	return (uint64_t)(uint32_t)blocks[token / tokens] * tokens + token % tokens;
}

static int append(struct gpool_kv_group *group, struct group_row *row, uint32_t tokens)
{
	uint64_t fresh[MEMBERS_MAX] = {0};
	int error = extend(group, row, tokens, fresh);

	/*
	 * Append to a continued sequence first, since only this append may fail. There is at most one: of the sequences
	 * that have tokens, only the last can receive more.
	 */
	for (int sure = 0; sure < 2 && !error; sure++)
		for (uint32_t i = 0; i < group->count && !error; i++) {
			uint32_t more = share(group, row->tokens + tokens, i) - share(group, row->tokens, i);

			if (!more || fresh[i] || is_continued(group, row, i) == (sure == 1))
				continue;
			error = gpool_kv_append(group->caches[i], row->members[i], more, NULL);
			if (error) {
				members_free(group, fresh);
				refuse(group, i, error);
			}
		}
	if (error)
		return error;
	for (uint32_t i = 0; i < group->count; i++) {
		if (!fresh[i])
			continue;
		if (row->members[i])
			gpool_kv_free(group->caches[i], row->members[i]);
		row->members[i] = fresh[i];
	}
	row->tokens += tokens;
	return 0;
}

/* ---- sequences ---- */

int gpool_kv_group_allocate(struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *sequence)
{
	uint64_t members[MEMBERS_MAX] = {0};
	struct gpool_kv_request read;
	int error;

	if (!alive(group))
		return -ECHILD;
	error = options_read(&read, sizeof(read), request);
	if (error)
		return error;
	pthread_mutex_lock(&group->lock);
	error = allocate(group, &read, members);
	if (!error) {
		struct group_row *row = &group->rows[(uint32_t)members[0]];

		*row = (struct group_row){.owner_id = read.owner_id, .priority = read.priority, .tokens = read.tokens};
		memcpy(row->members, members, sizeof(members));
		*sequence = members[0];
	}
	pthread_mutex_unlock(&group->lock);
	return error;
}

int gpool_kv_group_append(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot)
{
	struct group_row *row;
	uint32_t first = 0, at = 0;
	int error;

	if (!alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = tokens ? row_find(group, sequence, &row) : fail(-EINVAL, "tokens is 0");
	if (!error && row->preempted)
		error = fail(-EAGAIN, "sequence 0x%llx of the group is preempted", (unsigned long long)sequence);
	if (!error && tokens > KV_TOKENS_MAX - row->tokens)
		error = fail(-EFBIG, "cannot add %u tokens to %u; the maximum is %u", tokens, row->tokens,
			(uint32_t)KV_TOKENS_MAX);
	if (!error) {
		first = row->tokens;
		at = first / group->range_tokens < group->count ? first / group->range_tokens : group->count - 1;
		error = append(group, row, tokens);
	}
	if (!error && member)
		*member = at;
	if (!error && slot)
		*slot = slot_of(group->caches[at], row->members[at], first - at * group->range_tokens);
	pthread_mutex_unlock(&group->lock);
	return error;
}

int gpool_kv_group_fork(struct gpool_kv_group *group, uint64_t sequence, uint64_t *child)
{
	uint64_t members[MEMBERS_MAX] = {0};
	struct group_row *row;
	int error;

	if (!alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = row_find(group, sequence, &row);
	if (!error)
		error = fork_all(group, row, members);
	if (!error) {
		struct group_row *made = &group->rows[(uint32_t)members[0]];

		*made = *row;
		memcpy(made->members, members, sizeof(members));
		*child = members[0];
	}
	pthread_mutex_unlock(&group->lock);
	return error;
}

int gpool_kv_group_free(struct gpool_kv_group *group, uint64_t sequence)
{
	struct group_row *row;
	int error;

	if (!alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = row_find(group, sequence, &row);
	if (!error) {
		members_free(group, row->members);
		*row = (struct group_row){.tokens = 0};
	}
	pthread_mutex_unlock(&group->lock);
	return error;
}

/* ---- preemption ---- */

/* Preempt the members of the sequence in the caches 1 to `end` - 1. */
static int members_preempt(const struct gpool_kv_group *group, const struct group_row *row, uint32_t end)
{
	int freed = 0;

	for (uint32_t i = 1; i < end; i++) {
		int result = row->members[i] ? gpool_kv_preempt(group->caches[i], row->members[i], NULL) : 0;

		freed += result > 0 ? result : 0;
	}
	return freed;
}

int gpool_kv_group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim)
{
	struct group_row *row;
	int result;

	if (!alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	result = sequence ? row_find(group, sequence, &row) : 0;
	if (!result)
		result = gpool_kv_preempt(group->caches[0], sequence, &sequence);
	if (result >= 0) {
		/* A sequence that was not allocated through the group has blocks only in the first cache. */
		if (!row_find(group, sequence, &row)) {
			result += members_preempt(group, row, group->count);
			row->preempted = true;
		}
		if (victim)
			*victim = sequence;
	}
	pthread_mutex_unlock(&group->lock);
	return result;
}

int gpool_kv_group_resume(struct gpool_kv_group *group, uint64_t sequence)
{
	struct group_row *row;
	int error;

	if (!alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = row_find(group, sequence, &row);
	for (uint32_t i = 0; i < group->count && !error; i++) {
		error = row->members[i] ? gpool_kv_resume(group->caches[i], row->members[i]) : 0;
		if (!error)
			continue;
		refuse(group, i, error);
		if (i) {
			gpool_kv_preempt(group->caches[0], sequence, NULL);
			members_preempt(group, row, i);
		}
	}
	if (!error)
		row->preempted = false;
	pthread_mutex_unlock(&group->lock);
	return error;
}

/* ---- inspect ---- */

int gpool_kv_group_span(struct gpool_kv_group *group, uint64_t sequence, uint32_t member, struct gpool_kv_span *span)
{
	struct gpool_kv_span found = {.first_token = 0};
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};
	struct group_row *row;
	int error;

	if (!alive(group))
		return -ECHILD;
	if (member >= group->count)
		return fail(-EINVAL, "member is %u; the group has %u caches", member, group->count);
	pthread_mutex_lock(&group->lock);
	error = row_find(group, sequence, &row);
	if (!error) {
		found.sequence = row->members[member];
		found.first_token = member * group->range_tokens;
		if (found.sequence)
			error = gpool_kv_sequence_info(group->caches[member], found.sequence, &info);
		found.tokens = info.tokens;
		found.blocks = info.blocks;
	}
	pthread_mutex_unlock(&group->lock);
	return error ? error : copy_struct(span, &found, sizeof(found));
}
