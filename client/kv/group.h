/*
 * group.h - the state of a group of caches. Internal to libgpool. See group.c.
 */
#ifndef GPOOL_CLIENT_KV_GROUP_H
#define GPOOL_CLIENT_KV_GROUP_H

#include "client/kv/kv.h"

struct group_row {
	uint64_t members[GPOOL_KV_GROUP_CACHES_MAX]; /* [caches] 0: none */
	uint64_t owner_id;
	uint64_t arrival;
	uint32_t priority;
	uint32_t tokens;
	bool preempted;
	bool torn; /* a process was lost when some caches had already appended: the sequence can only be freed */
};

struct group_member {
	struct gpool_kv *cache; /* NULL: in another process */
	int (*send)(void *context, struct gpool_kv_order *order);
	void *context;
	uint32_t block_tokens;
	uint32_t max_tokens;
	int broken; /* the code of send() when an order was lost; protected by the group's lock */
};

struct gpool_kv_group {
	struct group_member members[GPOOL_KV_GROUP_CACHES_MAX];
	uint32_t count;
	uint32_t range_tokens;
	uint32_t max_sequences; /* of the first cache */
	pthread_mutex_t lock;   /* protects all fields below; acquired before the locks of the caches */
	uint32_t refused;       /* index of the cache that caused the last failure */
	uint64_t arrivals;
	struct group_row *rows; /* [max_sequences] */
};

/* group_alive() - return false after fork(), unless all caches are in other processes. */
bool group_alive(const struct gpool_kv_group *group);

/*
 * The callers of all functions below hold the lock.
 *
 * group_find() - find a sequence by its number. Return: 0, -EINVAL, -ESTALE.
 * group_running() - return 0 if a sequence can be used; -EAGAIN: it is preempted; -ECONNRESET: a part of it is lost.
 * group_share() - return how many of the first `tokens` tokens of a sequence are in a cache.
 * group_order() - execute an order in a cache. Return its result, or the code of send().
 * group_refuse() - record the cache that caused a failure. Return `error`.
 * group_append() - gpool_kv_group_append().
 * group_preempt() - gpool_kv_group_preempt().
 */
int group_find(const struct gpool_kv_group *group, uint64_t sequence, struct group_row **row);
int group_running(const struct group_row *row);
uint32_t group_share(const struct gpool_kv_group *group, uint32_t tokens, uint32_t member);
int group_order(struct gpool_kv_group *group, uint32_t member, struct gpool_kv_order *order);
int group_refuse(struct gpool_kv_group *group, uint32_t member, int error);
int group_append(struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot);
int group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim);

#endif
