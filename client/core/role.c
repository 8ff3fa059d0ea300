/*
 * role.c - leadership roles. The state of a role is stored in its record of the pool segment, which only the agent
 * writes; see shm/pool_segment.h and agent/session/roles.h.
 *
 * The agent knows sessions, not threads. A thread therefore claims the name in this process before it sends a request
 * to the agent. Otherwise two threads of a process could both be granted the role, or one could withdraw the request of
 * the other.
 *
 * If the agent does not answer a request in time, it may still read the request later. The session would then become a
 * standby or the holder, without the knowledge of this process. This process therefore also sends a message that
 * cancels the request, and does not wait for its reply; the agent reads the two in order. Since the agent may also die
 * while it handles that message, the name stays claimed as doubtful, and the message is sent again after the next
 * answered request.
 */
#include "client/core/role.h"

#include "client/core/attach_call.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/doorbell.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>

enum {
	LOOK_MS = 500, /* interval at which a standby checks that its session exists */
};

enum { VERB_TAKE, VERB_WAIT, VERB_WITHDRAW, VERB_RELEASE, VERB_FORGET };
enum { STANDING_NEITHER, STANDING_HOLDER, STANDING_STANDBY };

struct role_claim {
	struct role_claim *next;
	uint64_t token; /* 0: the claim waits for the role */
	uint32_t index;
	bool doubtful; /* no thread uses the claim: the agent did not report the result in time */
	char name[POOL_NAME_BYTES];
};

/* ---- claims ---- */

/* Check the fields of a role that a caller passes. */
static int role_read(const struct gpool_role *role)
{
	return role->size < offsetof(struct gpool_role, session) ? fail_size(role->size) : 0;
}

static struct role_claim **claim_find(struct gpool *pool, const char *name)
{
	struct role_claim **at = &pool->roles;

	while (*at && strcmp((*at)->name, name))
		at = &(*at)->next;
	return at;
}

static COLD int fail_held(const struct gpool_role *role)
{
	return fail(-ESTALE, "the session does not hold a role with index %u and token %llu", role->index,
		(unsigned long long)role->token);
}

static int claim_add(struct gpool *pool, const char *name)
{
	struct role_claim *claim = calloc(1, sizeof(*claim)), **at;
	int error = 0;

	if (!claim)
		return -ENOMEM;
	strcpy(claim->name, name);
	pthread_mutex_lock(&pool->roles_lock);
	at = claim_find(pool, name);
	if (*at && !(*at)->doubtful) {
		error = fail(-EALREADY, "this session already holds role '%s' or waits for it", name);
	} else if (*at) {
		/* This thread takes over the claim. The answer to its request also settles the earlier one. */
		(*at)->doubtful = false;
	} else {
		*at = claim;
		claim = NULL;
	}
	pthread_mutex_unlock(&pool->roles_lock);
	free(claim);
	return error;
}

static void claim_settle(struct gpool *pool, const char *name, const struct gpool_role *role)
{
	struct role_claim **at;

	pthread_mutex_lock(&pool->roles_lock);
	at = claim_find(pool, name);
	(*at)->index = role->index;
	(*at)->token = role->token;
	pthread_mutex_unlock(&pool->roles_lock);
}

static void claim_drop(struct gpool *pool, const char *name)
{
	struct role_claim **at, *claim;

	pthread_mutex_lock(&pool->roles_lock);
	at = claim_find(pool, name);
	claim = *at;
	*at = claim->next;
	pthread_mutex_unlock(&pool->roles_lock);
	free(claim);
}

/*
 * Clear the token of the role's claim, so that only one of several threads can release it. The name stays claimed until
 * the agent has answered.
 */
static int claim_unsettle(struct gpool *pool, const struct gpool_role *role, char name[POOL_NAME_BYTES])
{
	int error = -ESTALE;

	pthread_mutex_lock(&pool->roles_lock);
	for (struct role_claim *claim = pool->roles; claim && error; claim = claim->next)
		if (claim->token && claim->token == role->token && claim->index == role->index) {
			strcpy(name, claim->name);
			claim->token = 0;
			error = 0;
		}
	pthread_mutex_unlock(&pool->roles_lock);
	return error ? fail_held(role) : 0;
}

/* Cancel requests about this name. The caller holds roles_lock, so that no new request about it is sent first. */
static int forget_send(const struct gpool *pool, const char *name)
{
	struct msg_role_request request = {.verb = VERB_FORGET};
	uint8_t bytes[MSG_LARGEST_role_request];
	int length;

	strcpy(request.name, name);
	/* No request has the number 0, so no waiting thread takes the reply for its own. */
	length = msg_encode_role_request(&request, 0, pool->token, bytes, sizeof(bytes));
	return length < 0 ? length : attach_send(pool->socket, bytes, (size_t)length, NULL, 0);
}

/* Mark the claim as doubtful, because a request about the name was not answered. */
static void claim_doubt(struct gpool *pool, const char *name)
{
	struct role_claim *claim;

	pthread_mutex_lock(&pool->roles_lock);
	claim = *claim_find(pool, name);
	claim->doubtful = true;
	claim->token = 0;
	forget_send(pool, name);
	pthread_mutex_unlock(&pool->roles_lock);
	pool_log(pool, POOL_LOG_WARNING,
		"no reply about role '%s'; the request will be withdrawn when the agent replies again", name);
}

/* Repeat the cancellations of doubtful names; called when the agent answers again. */
static void doubts_end(struct gpool *pool)
{
	struct role_claim **at = &pool->roles, *claim;

	pthread_mutex_lock(&pool->roles_lock);
	while ((claim = *at)) {
		if (!claim->doubtful || forget_send(pool, claim->name)) {
			at = &claim->next;
			continue;
		}
		*at = claim->next;
		free(claim);
	}
	pthread_mutex_unlock(&pool->roles_lock);
}

void role_close(struct gpool *pool)
{
	while (pool->roles) {
		struct role_claim *claim = pool->roles;

		pool->roles = claim->next;
		free(claim);
	}
}

/* ---- requests ---- */

/* Return: 0, the agent's error, -EPIPE, -EPROTO, or -EAGAIN: gpool_wait_check() ended the wait for the reply. */
static int role_ask(struct gpool *pool, uint32_t verb, const char *name, uint64_t token, struct msg_role_reply *reply)
{
	struct msg_role_request request = {.verb = verb, .token = token};
	uint8_t bytes[MSG_LARGEST_role_request], answer[MSG_LARGEST_role_reply];
	struct attach_call call = {.request = bytes,
		.fd = -1,
		.answer = answer,
		.capacity = sizeof(answer),
		.timeout_ms = pool->answer_ms,
		.may_interrupt = verb != VERB_RELEASE};
	int length;

	strcpy(request.name, name);
	call.length = msg_encode_role_request(&request, 0, NULL, bytes, sizeof(bytes));
	if (call.length < 0)
		return fail(-EINVAL, "the name of the role has bytes that are not printable UTF-8");
	length = attach_call(pool, &call);
	if (length < 0)
		return length == -EINTR ? -EAGAIN : fail_silent(pool, pool->answer_ms);
	doubts_end(pool);
	if (msg_decode_role_reply(reply, answer, (size_t)length) || reply->index >= POOL_ROLES)
		return -EPROTO;
	if (reply->error)
		pool_log(pool, POOL_LOG_DEBUG, "role '%s': %s", name, reply->text);
	switch (reply->error) {
	case 0:
	case -EACCES:
	case -ENOENT:
	case -ENOSPC:
	case -EPERM:
	case -ESTALE: return reply->error ? fail(reply->error, "role '%s': %s", name, reply->text) : 0;
	default: return -EPROTO;
	}
}

/* Wait until this session holds the role. Return: 0, -ETIMEDOUT, -EPIPE, -EINTR. */
static int role_wait(const struct gpool *pool, const struct role_record *record, int timeout_ms, uint64_t start)
{
	for (;;) {
		uint32_t holder = atomic_load_explicit(&record->holder, memory_order_acquire);
		int64_t slice = LOOK_MS * INT64_C(1000000);

		if (holder == pool->id)
			return 0;
		if (pool_gone(pool))
			return fail_gone(pool);
		if (timeout_ms >= 0) {
			uint64_t waited = monotonic_ns() - start, limit = (uint64_t)timeout_ms * 1000000;

			if (waited >= limit)
				return -ETIMEDOUT;
			if (limit - waited < (uint64_t)slice)
				slice = (int64_t)(limit - waited);
		}
		if (wait_interrupted())
			return -EINTR;
		futex_wait(&record->holder, holder, wait_slice(slice));
	}
}

static int role_take(struct gpool *pool, const char *name, int timeout_ms, struct gpool_role *role)
{
	const struct role_record *record;
	uint64_t start = monotonic_ns();
	struct msg_role_reply reply;
	int late = -ETIMEDOUT, error = role_ask(pool, timeout_ms ? VERB_WAIT : VERB_TAKE, name, 0, &reply);

	if (error)
		return error;
	if (reply.state == STANDING_STANDBY) {
		record = &pool->segment.roles[reply.index];
		error = role_wait(pool, record, timeout_ms, start);
		if (error == -EPIPE)
			return error;
		if (!error) {
			reply.state = STANDING_HOLDER;
			reply.token = atomic_load_explicit(&record->token, memory_order_acquire);
		} else {
			/*
			 * The agent may have granted the role just as the timeout expired. In this case it replies that
			 * this session holds the role.
			 */
			late = error;
			error = role_ask(pool, VERB_WITHDRAW, name, 0, &reply);
			if (error)
				return error;
		}
	}
	if (reply.state != STANDING_HOLDER)
		return late == -ETIMEDOUT
			? fail(late, "session %u holds role '%s' and has not released it within %d ms",
				  atomic_load_explicit(&pool->segment.roles[reply.index].holder, memory_order_relaxed),
				  name, timeout_ms)
			: late;
	*role = (struct gpool_role){
		.size = sizeof(*role), .token = reply.token, .index = reply.index, .session = pool->id};
	return 0;
}

/* End a claim whose request failed: drop it, or mark it as doubtful if the agent cannot be reached. */
static void claim_end(struct gpool *pool, const char *name, int error)
{
	if ((error == -EPIPE || error == -EAGAIN) && !pool_gone(pool))
		claim_doubt(pool, name);
	else
		claim_drop(pool, name);
}

static int name_check(const char *name)
{
	if (!name || !*name)
		return fail(-EINVAL, "the name of the role is empty");
	return strlen(name) < POOL_NAME_BYTES ? 0
					      : fail(-EINVAL, "the name of the role has %zu byte%s; the maximum is %d",
							strlen(name), plural(strlen(name)), POOL_NAME_BYTES - 1);
}

int gpool_role_acquire(struct gpool *pool, const char *name, int timeout_ms, struct gpool_role *role)
{
	struct gpool_role taken;
	uint32_t size = role->size;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (size < sizeof(size))
		return fail_size(size);
	error = name_check(name);
	if (error)
		return error;
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	if (pool->session_kind)
		return fail_kind(pool);
	error = claim_add(pool, name);
	if (error)
		return error;
	error = role_take(pool, name, timeout_ms, &taken);
	if (error) {
		claim_end(pool, name, error);
		return error == -EAGAIN ? -EINTR : error;
	}
	claim_settle(pool, name, &taken);
	taken.size = size;
	struct_answer(role, size, &taken, sizeof(taken));
	return 0;
}

int gpool_role_check(const struct gpool *pool, const struct gpool_role *role)
{
	const struct role_record *record;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(role_read(role)))
		return -EINVAL;
	if (unlikely(role->index >= POOL_ROLES || !role->token))
		return fail(-EINVAL, "the role was not returned by gpool_role_acquire(): index %u, token %llu",
			role->index, (unsigned long long)role->token);
	record = &pool->segment.roles[role->index];
	/*
	 * Read the holder before the token: while a token is valid, the role has at most one holder. A session that
	 * reads itself as the holder, and then its own token, was therefore the holder at the first read.
	 */
	if (atomic_load_explicit(&record->holder, memory_order_seq_cst) != pool->id ||
		atomic_load_explicit(&record->token, memory_order_seq_cst) != role->token)
		return fail_held(role);
	return 0;
}

int gpool_role_release(struct gpool *pool, const struct gpool_role *role)
{
	char name[POOL_NAME_BYTES];
	struct msg_role_reply reply;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	error = role_read(role);
	if (error)
		return error;
	error = claim_unsettle(pool, role, name);
	if (error)
		return error;
	error = role_ask(pool, VERB_RELEASE, name, role->token, &reply);
	claim_end(pool, name, error);
	/*
	 * This session held the role until now, so the agent has released it but died before it replied; the request
	 * was repeated.
	 */
	return error == -ESTALE ? 0 : error;
}

int gpool_role_info(const struct gpool *pool, const char *name, uint32_t *session, uint64_t *token)
{
	if (unlikely(!pool->alive))
		return -ECHILD;
	if (name_check(name))
		return -EINVAL;
	for (uint32_t index = 0; index < POOL_ROLES; index++) {
		const struct role_record *record = &pool->segment.roles[index];
		uint64_t before, after;
		uint32_t holder;
		bool found;

		/*
		 * The record is read without a lock. Name and holder match if the token is the same before and after.
		 */
		do {
			before = atomic_load_explicit(&record->token, memory_order_seq_cst);
			found = atomic_load_explicit(&record->state, memory_order_seq_cst) == ROLE_NAMED &&
				record->domain == pool_domain(pool) && !strncmp(record->name, name, POOL_NAME_BYTES);
			holder = atomic_load_explicit(&record->holder, memory_order_seq_cst);
			after = atomic_load_explicit(&record->token, memory_order_seq_cst);
		} while (before != after);
		if (!found)
			continue;
		if (session)
			*session = holder;
		if (token)
			*token = after;
		return 0;
	}
	return fail(-ENOENT, "role '%s' was never acquired", name);
}
