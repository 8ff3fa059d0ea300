/*
 * group.c - sequences that extend over several caches, of this process or others, each of which has a range of the
 * tokens. An operation applies to all caches or to none.
 *
 * A sequence of a group consists of one sequence in the first cache and in each other cache that has tokens, or blocks
 * allocated in advance, of it. It has the number of its sequence in the first cache. An append first allocates new
 * sequences, which are freed if a later step fails. It then performs the only append to a cache that may fail, and
 * finally the others, for which blocks are available.
 *
 * A call for a cache is an order (struct gpool_kv_order), which gpool_kv_execute() executes in the cache's process. If
 * an order for a cache of another process could not be delivered, it is not known whether it was executed, and no
 * further order is sent there.
 */
#include "client/kv/group.h"

#include "client/core/last_error.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES_MAX = 65536 };

/* ---- orders ---- */

/* Return the slot of a token; 0: the sequence does not have it. */
static uint64_t slot_of(struct gpool_kv *kv, uint64_t sequence, uint32_t token)
{
	const int32_t *blocks;
	uint32_t count, tokens = kv->shape.block_tokens;

	if (gpool_kv_table(kv, sequence, &blocks, &count) || token / tokens >= count)
		return 0;
	return (uint64_t)(uint32_t)blocks[token / tokens] * tokens + token % tokens;
}

/* Check that a sequence of `tokens` tokens would fit if the cache had no other. Return: 0, -EFBIG. */
static int fits(struct gpool_kv *kv, uint32_t tokens)
{
	int error;

	pthread_mutex_lock(&kv->lock);
	error = kv_fits(kv, kv_blocks_for(kv, tokens));
	pthread_mutex_unlock(&kv->lock);
	return error;
}

static int order_do(struct gpool_kv *kv, struct gpool_kv_order *order)
{
	switch (order->verb) {
	case GPOOL_KV_ORDER_DESCRIBE:
		order->tokens = kv->columns << kv->token_shift;
		order->block_tokens = kv->shape.block_tokens;
		order->max_sequences = kv->max_sequences;
		return 0;
	case GPOOL_KV_ORDER_CAN_ALLOCATE: return gpool_kv_can_allocate(kv, order->tokens, &order->need);
	case GPOOL_KV_ORDER_OOM_INFO: return gpool_kv_oom_info(kv, &order->need);
	case GPOOL_KV_ORDER_ALLOCATE: return gpool_kv_allocate(kv, &order->request, &order->sequence);
	case GPOOL_KV_ORDER_APPEND: return gpool_kv_append(kv, order->sequence, order->tokens, &order->slot);
	case GPOOL_KV_ORDER_SLOT: order->slot = slot_of(kv, order->sequence, order->tokens); return 0;
	case GPOOL_KV_ORDER_FORK: return gpool_kv_fork(kv, order->sequence, &order->sequence);
	case GPOOL_KV_ORDER_FREE: return gpool_kv_free(kv, order->sequence);
	case GPOOL_KV_ORDER_PREEMPT: return gpool_kv_preempt(kv, order->sequence, &order->sequence);
	case GPOOL_KV_ORDER_RESUME: return gpool_kv_resume(kv, order->sequence);
	case GPOOL_KV_ORDER_FITS: return fits(kv, order->tokens);
	case GPOOL_KV_ORDER_INFO: return gpool_kv_sequence_info(kv, order->sequence, &order->info);
	default: return fail(-EINVAL, "the order has the unknown verb %u", order->verb);
	}
}

int gpool_kv_execute(struct gpool_kv *kv, struct gpool_kv_order *order)
{
	if (!kv->pool->alive)
		return -ECHILD;
	if (order->size != sizeof(*order))
		return fail(-EPROTO, "the order has %u byte%s; this version of the library has orders of %zu bytes",
			order->size, plural(order->size), sizeof(*order));
	order->request.size = sizeof(order->request);
	order->need.size = sizeof(order->need);
	order->info.size = sizeof(order->info);
	order->result = order_do(kv, order);
	return 0;
}

/* Return the largest result that the call of an order can have. */
static int32_t most_of(const struct gpool_kv_order *order)
{
	return order->verb == GPOOL_KV_ORDER_PREEMPT         ? INT32_MAX
		: order->verb == GPOOL_KV_ORDER_CAN_ALLOCATE ? GPOOL_KV_NEVER
							     : 0;
}

int group_order(struct gpool_kv_group *group, uint32_t member, struct gpool_kv_order *order)
{
	struct group_member *to = &group->members[member];
	int32_t most = most_of(order);
	int error;

	order->size = sizeof(*order);
	if (to->broken)
		return fail(to->broken, "cache %u of the group can no longer be reached", member);
	error = to->cache ? gpool_kv_execute(to->cache, order) : to->send(to->context, order);
	if (!error && !to->cache && order->result < 0)
		return fail(order->result, "cache %u of the group, in another process, returned this error: %s", member,
			gpool_strerror(order->result));
	if (!error && order->result <= most)
		return order->result;
	error = !error ? -EPROTO : error < 0 ? error : -ECONNRESET;
	if (to->cache)
		return error;
	to->broken = error;
	return error == -EPROTO
		? fail(error, "cache %u of the group returned %d, which is not an answer to the order", member,
			  order->result)
		: fail(error, "cache %u of the group cannot be reached: its function send() returned %d", member,
			  error);
}

static int member_order(struct gpool_kv_group *group, uint32_t member, enum gpool_kv_verb verb, uint64_t sequence)
{
	struct gpool_kv_order order = {.verb = verb, .sequence = sequence};

	return group_order(group, member, &order);
}

/*
 * Read the number of a new sequence from an order. A process may send any number; those of the first cache have the
 * index of a row.
 */
static int number_read(
	struct gpool_kv_group *group, uint32_t member, const struct gpool_kv_order *order, uint64_t *number)
{
	if (!(order->sequence >> 32) || (!member && (uint32_t)order->sequence >= group->max_sequences)) {
		group->members[member].broken = -EPROTO;
		return fail(-EPROTO, "cache %u returned 0x%llx, which is not a sequence", member,
			(unsigned long long)order->sequence);
	}
	*number = order->sequence;
	return 0;
}

/* An error leaves *number unchanged. */
static int member_allocate(
	struct gpool_kv_group *group, uint32_t member, const struct gpool_kv_request *request, uint64_t *number)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_ALLOCATE, .request = *request};
	int error = group_order(group, member, &order);

	return error ? error : number_read(group, member, &order, number);
}

static int member_fork(struct gpool_kv_group *group, uint32_t member, uint64_t sequence, uint64_t *number)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_FORK, .sequence = sequence};
	int error = group_order(group, member, &order);

	return error ? error : number_read(group, member, &order, number);
}

static int member_info(
	struct gpool_kv_group *group, uint32_t member, uint64_t sequence, struct gpool_kv_sequence_info *info)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_INFO, .sequence = sequence};
	int error = group_order(group, member, &order);

	if (!error)
		*info = order.info;
	return error;
}

/* ---- token ranges ---- */

/* Return how many of a sequence's tokens are in this cache. The range of the last cache has no end. */
uint32_t group_share(const struct gpool_kv_group *group, uint32_t tokens, uint32_t member)
{
	uint64_t first = (uint64_t)member * group->range_tokens, left = tokens > first ? tokens - first : 0;

	return (uint32_t)(member + 1 < group->count && left > group->range_tokens ? group->range_tokens : left);
}

int group_find(const struct gpool_kv_group *group, uint64_t sequence, struct group_row **row)
{
	uint32_t index = (uint32_t)sequence;

	if (!(sequence >> 32) || index >= group->max_sequences)
		return fail(-EINVAL, "0x%llx is not a sequence of this group", (unsigned long long)sequence);
	*row = &group->rows[index];
	return (*row)->members[0] == sequence
		? 0
		: fail(-ESTALE, "sequence 0x%llx of the group has ended", (unsigned long long)sequence);
}

static int fail_torn(uint64_t sequence)
{
	return fail(-ECONNRESET, "a part of sequence 0x%llx of the group was lost with its process; free the sequence",
		(unsigned long long)sequence);
}

int group_running(const struct group_row *row)
{
	if (row->torn)
		return fail_torn(row->members[0]);
	return row->preempted ? fail(-EAGAIN, "sequence 0x%llx of the group is preempted; resume it first",
					(unsigned long long)row->members[0])
			      : 0;
}

/* A group without a cache of this process cannot know that it is used after fork(). */
bool group_alive(const struct gpool_kv_group *group)
{
	for (uint32_t i = 0; i < group->count; i++)
		if (group->members[i].cache)
			return group->members[i].cache->pool->alive;
	return true;
}

/* ---- create and destroy ---- */

static int count_check(uint32_t count)
{
	return count && count <= GPOOL_KV_GROUP_CACHES_MAX
		? 0
		: fail(-EINVAL, "count is %u; a group must have 1 to %d caches", count, GPOOL_KV_GROUP_CACHES_MAX);
}

/* Read the description of a cache. Return: 0, -EINVAL, or the code of send(). */
static int member_open(struct gpool_kv_group *group, uint32_t member, const struct gpool_kv_member *given)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_DESCRIBE};
	struct group_member *made = &group->members[member];
	int error;

	if (given->size != sizeof(*given))
		return fail_size(given->size);
	if (!given->cache == !given->send)
		return fail(
			-EINVAL, "cache %u is NULL%s", member, given->send ? ", or has both an address and send" : "");
	*made = (struct group_member){.cache = given->cache, .send = given->send, .context = given->context};
	error = group_order(group, member, &order);
	if (error)
		return error;
	made->block_tokens = order.block_tokens;
	made->max_tokens = order.tokens;
	if (!member)
		group->max_sequences = order.max_sequences;
	for (uint32_t other = 0; other < member && given->cache; other++)
		if (group->members[other].cache == given->cache)
			return fail(-EINVAL, "caches %u and %u are the same", other, member);
	return !order.block_tokens || !order.max_sequences || order.max_sequences > SEQUENCES_MAX
		? fail(-EPROTO, "cache %u has %u sequence%s of blocks of %u token%s, which no cache has", member,
			  order.max_sequences, plural(order.max_sequences), order.block_tokens,
			  plural(order.block_tokens))
		: 0;
}

static int range_check(const struct gpool_kv_group *group)
{
	for (uint32_t i = 0; i < group->count; i++) {
		const struct group_member *member = &group->members[i];

		if (!group->range_tokens || group->range_tokens % member->block_tokens)
			return fail(-EINVAL,
				"range_tokens is %u; it must be a multiple of %u, the tokens of a block of cache %u",
				group->range_tokens, member->block_tokens, i);
		if (i + 1 < group->count && group->range_tokens > member->max_tokens)
			return fail(-EINVAL, "range_tokens is %u; a sequence of cache %u can have at most %u token%s",
				group->range_tokens, i, member->max_tokens, plural(member->max_tokens));
	}
	return 0;
}

int gpool_kv_group_create_members(
	const struct gpool_kv_member *members, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group)
{
	struct gpool_kv_group *made;
	int error = count_check(count);

	if (error)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->count = count;
	made->range_tokens = range_tokens;
	for (uint32_t i = 0; i < count && !error; i++)
		error = member_open(made, i, &members[i]);
	if (!error)
		error = range_check(made);
	if (!error)
		made->rows = calloc(made->max_sequences, sizeof(*made->rows));
	if (error || !made->rows) {
		free(made);
		return error ? error : -ENOMEM;
	}
	pthread_mutex_init(&made->lock, NULL);
	*group = made;
	return 0;
}

int gpool_kv_group_create(
	struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group)
{
	struct gpool_kv_member members[GPOOL_KV_GROUP_CACHES_MAX];
	int error = count_check(count);

	if (error)
		return error;
	for (uint32_t i = 0; i < count; i++)
		members[i] = (struct gpool_kv_member){.size = sizeof(*members), .cache = caches[i]};
	return gpool_kv_group_create_members(members, count, range_tokens, group);
}

void gpool_kv_group_destroy(struct gpool_kv_group *group)
{
	if (!group)
		return;
	if (group_alive(group))
		for (uint32_t row = 0; row < group->max_sequences; row++)
			for (uint32_t i = 0; i < group->count; i++)
				if (group->rows[row].members[i])
					member_order(group, i, GPOOL_KV_ORDER_FREE, group->rows[row].members[i]);
	pthread_mutex_destroy(&group->lock);
	free(group->rows);
	free(group);
}

/* ---- admission ---- */

int gpool_kv_group_can_allocate(
	struct gpool_kv_group *group, uint32_t tokens, uint32_t *member, struct gpool_kv_need *need)
{
	struct gpool_kv_need found = {.needed_blocks = 0};
	int worst = -1, error = 0;

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	for (uint32_t i = 0; i < group->count && (!i || group_share(group, tokens, i)) && !error; i++) {
		struct gpool_kv_order order = {
			.verb = GPOOL_KV_ORDER_CAN_ALLOCATE, .tokens = group_share(group, tokens, i)};
		int result = group_order(group, i, &order);

		error = result < 0 ? result : 0;
		if (error || result <= worst)
			continue;
		worst = result;
		found = order.need;
		if (member)
			*member = i;
	}
	pthread_mutex_unlock(&group->lock);
	if (!error && need)
		error = copy_struct(need, &found, sizeof(found));
	return error ? error : worst;
}

int gpool_kv_group_oom_info(struct gpool_kv_group *group, uint32_t *member, struct gpool_kv_need *need)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_OOM_INFO};
	int error;

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	if (member)
		*member = group->refused;
	error = group_order(group, group->refused, &order);
	pthread_mutex_unlock(&group->lock);
	return error ? error : copy_struct(need, &order.need, sizeof(order.need));
}

/* ---- all or none; the callers hold the lock ---- */

int group_refuse(struct gpool_kv_group *group, uint32_t member, int error)
{
	group->refused = member;
	return error;
}

static void members_free(struct gpool_kv_group *group, const uint64_t *members)
{
	for (uint32_t i = 0; i < group->count; i++)
		if (members[i])
			member_order(group, i, GPOOL_KV_ORDER_FREE, members[i]);
}

static int allocate(struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *members)
{
	for (uint32_t i = 0; i < group->count; i++) {
		struct gpool_kv_request part = *request;
		int error;

		part.tokens = group_share(group, request->tokens, i);
		part.estimated_tokens = group_share(group, request->estimated_tokens, i);
		if (i && !part.tokens && !part.estimated_tokens)
			continue;
		error = member_allocate(group, i, &part, &members[i]);
		if (error) {
			members[i] = 0;
			members_free(group, members);
			return group_refuse(group, i, error);
		}
	}
	return 0;
}

static int fork_all(struct gpool_kv_group *group, const struct group_row *row, uint64_t *members)
{
	for (uint32_t i = 0; i < group->count; i++) {
		int error = row->members[i] ? member_fork(group, i, row->members[i], &members[i]) : 0;

		if (error) {
			members[i] = 0;
			members_free(group, members);
			return group_refuse(group, i, error);
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
	return !member || group_share(group, row->tokens, member);
}

/* Return true if the sequence has a member in this cache with blocks for the tokens, allocated in advance. */
static bool has_room(struct gpool_kv_group *group, const struct group_row *row, uint32_t member, uint32_t tokens)
{
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};

	return row->members[member] && member_info(group, member, row->members[member], &info) == 0 &&
		info.room >= tokens;
}

/* Allocate sequences in the caches that get their first tokens, unless blocks were allocated in advance. */
static int extend(struct gpool_kv_group *group, const struct group_row *row, uint32_t tokens, uint64_t *fresh)
{
	for (uint32_t i = 0; i < group->count; i++) {
		struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
		int error;

		request.flags = GPOOL_KV_CONTINUES;
		request.tokens = group_share(group, row->tokens + tokens, i) - group_share(group, row->tokens, i);
		request.priority = row->priority;
		request.owner_id = row->owner_id;
		if (!request.tokens || is_continued(group, row, i) || has_room(group, row, i, request.tokens))
			continue;
		error = member_allocate(group, i, &request, &fresh[i]);
		if (error) {
			fresh[i] = 0;
			members_free(group, fresh);
			return group_refuse(group, i, error);
		}
	}
	return 0;
}

static int append(struct gpool_kv_group *group, struct group_row *row, uint32_t tokens)
{
	uint64_t fresh[GPOOL_KV_GROUP_CACHES_MAX] = {0};
	struct gpool_kv_order order;
	uint32_t appended = 0;
	int error = extend(group, row, tokens, fresh);

	/*
	 * Append to a continued sequence first, since only this append may fail. There is at most one: of the sequences
	 * that have tokens, only the last can receive more.
	 */
	for (int sure = 0; sure < 2 && !error; sure++)
		for (uint32_t i = 0; i < group->count && !error; i++) {
			uint32_t more =
				group_share(group, row->tokens + tokens, i) - group_share(group, row->tokens, i);

			if (!more || fresh[i] || is_continued(group, row, i) == (sure == 1))
				continue;
			order = (struct gpool_kv_order){
				.verb = GPOOL_KV_ORDER_APPEND, .sequence = row->members[i], .tokens = more};
			error = group_order(group, i, &order);
			appended += !error;
			if (error) {
				members_free(group, fresh);
				group_refuse(group, i, error);
				row->torn = appended;
			}
		}
	if (error)
		return error;
	for (uint32_t i = 0; i < group->count; i++) {
		if (!fresh[i])
			continue;
		if (row->members[i])
			member_order(group, i, GPOOL_KV_ORDER_FREE, row->members[i]);
		row->members[i] = fresh[i];
	}
	row->tokens += tokens;
	return 0;
}

/* ---- sequences ---- */

int gpool_kv_group_allocate(struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *sequence)
{
	uint64_t members[GPOOL_KV_GROUP_CACHES_MAX] = {0};
	struct gpool_kv_request read;
	int error;

	if (!group_alive(group))
		return -ECHILD;
	error = options_read(&read, sizeof(read), request);
	if (error)
		return error;
	pthread_mutex_lock(&group->lock);
	error = allocate(group, &read, members);
	if (!error) {
		struct group_row *row = &group->rows[(uint32_t)members[0]];

		*row = (struct group_row){.owner_id = read.owner_id,
			.arrival = ++group->arrivals,
			.priority = read.priority,
			.tokens = read.tokens};
		memcpy(row->members, members, sizeof(members));
		*sequence = members[0];
	}
	pthread_mutex_unlock(&group->lock);
	return error;
}

int group_append(struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_SLOT};
	struct group_row *row;
	uint32_t first, at;
	int error = tokens ? group_find(group, sequence, &row) : fail(-EINVAL, "tokens is 0; the minimum is 1");

	if (!error)
		error = group_running(row);
	if (!error && tokens > KV_TOKENS_MAX - row->tokens)
		error = fail(-EFBIG, "cannot add %u token%s to %u; the maximum is %u", tokens, plural(tokens),
			row->tokens, (uint32_t)KV_TOKENS_MAX);
	if (error)
		return error;
	first = row->tokens;
	at = first / group->range_tokens < group->count ? first / group->range_tokens : group->count - 1;
	error = append(group, row, tokens);
	if (error)
		return error;
	if (member)
		*member = at;
	if (slot) {
		order.sequence = row->members[at];
		order.tokens = first - at * group->range_tokens;
		*slot = group_order(group, at, &order) ? 0 : order.slot;
	}
	return 0;
}

int gpool_kv_group_append(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot)
{
	int error;

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = group_append(group, sequence, tokens, member, slot);
	pthread_mutex_unlock(&group->lock);
	return error;
}

int gpool_kv_group_fork(struct gpool_kv_group *group, uint64_t sequence, uint64_t *child)
{
	uint64_t members[GPOOL_KV_GROUP_CACHES_MAX] = {0};
	struct group_row *row;
	int error;

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = group_find(group, sequence, &row);
	if (!error && row->torn)
		error = fail_torn(sequence);
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

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = group_find(group, sequence, &row);
	if (!error) {
		members_free(group, row->members);
		*row = (struct group_row){.tokens = 0};
	}
	pthread_mutex_unlock(&group->lock);
	return error;
}

/* ---- preemption ---- */

/* Preempt the members of the sequence in the caches 1 to `end` - 1. */
static int members_preempt(struct gpool_kv_group *group, const struct group_row *row, uint32_t end)
{
	int freed = 0;

	for (uint32_t i = 1; i < end; i++) {
		int result = row->members[i] ? member_order(group, i, GPOOL_KV_ORDER_PREEMPT, row->members[i]) : 0;

		freed += result > 0 ? result : 0;
	}
	return freed;
}

int group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim)
{
	struct gpool_kv_order order = {.verb = GPOOL_KV_ORDER_PREEMPT, .sequence = sequence};
	struct group_row *row;
	int result = sequence ? group_find(group, sequence, &row) : 0;

	if (!result)
		result = group_order(group, 0, &order);
	if (result < 0)
		return result;
	/* A sequence that was not allocated through the group has blocks only in the first cache. */
	if (!group_find(group, order.sequence, &row)) {
		result += members_preempt(group, row, group->count);
		row->preempted = true;
	}
	if (victim)
		*victim = order.sequence;
	return result;
}

int gpool_kv_group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim)
{
	int result;

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	result = group_preempt(group, sequence, victim);
	pthread_mutex_unlock(&group->lock);
	return result;
}

int gpool_kv_group_resume(struct gpool_kv_group *group, uint64_t sequence)
{
	struct group_row *row;
	int error;

	if (!group_alive(group))
		return -ECHILD;
	pthread_mutex_lock(&group->lock);
	error = group_find(group, sequence, &row);
	for (uint32_t i = 0; i < group->count && !error; i++) {
		error = row->members[i] ? member_order(group, i, GPOOL_KV_ORDER_RESUME, row->members[i]) : 0;
		if (!error)
			continue;
		group_refuse(group, i, error);
		if (i) {
			member_order(group, 0, GPOOL_KV_ORDER_PREEMPT, sequence);
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

	if (!group_alive(group))
		return -ECHILD;
	if (member >= group->count)
		return fail(
			-EINVAL, "member is %u; the group has %u cache%s", member, group->count, plural(group->count));
	pthread_mutex_lock(&group->lock);
	error = group_find(group, sequence, &row);
	if (!error) {
		found.sequence = row->members[member];
		found.first_token = member * group->range_tokens;
		if (found.sequence)
			error = member_info(group, member, found.sequence, &info);
		found.tokens = info.tokens;
		found.blocks = info.blocks;
	}
	pthread_mutex_unlock(&group->lock);
	return error ? error : copy_struct(span, &found, sizeof(found));
}
