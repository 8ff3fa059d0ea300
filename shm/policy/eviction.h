/*
 * eviction.h - which node of a prefix tree goes when room is needed. Numbers only: no pool, no memory of blocks, no
 * clock but its own, which counts insertions and touches.
 *
 * A node stands for something kept (a block of a prefix) and is a small number that its owner may use as an index. Its
 * key is the identity of the whole prefix up to it, such as a chained hash; it serves to know a node again that was
 * evicted, and for nothing else, so that two nodes of one key do no harm.
 *
 * Invariants:
 *   a candidate is a kept node without kept children and without pins; nothing else is ever a victim
 *   kept = pinned + with children (and no pin) + candidates
 *   what is remembered of evicted nodes is at most EVICTION_GHOSTS for each node that may be kept
 *
 * Threads: none of its own and no lock; its owner has one.
 * Memory:  all of it from eviction_create() on, touched as it is used: 56 bytes for each node with `lru`, about 250
 *          with `adaptive`, and 60 KiB.
 */
#ifndef GPOOL_POLICY_EVICTION_H
#define GPOOL_POLICY_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#define EVICTION_NONE UINT32_MAX
#define EVICTION_NODES_MAX (UINT32_C(1) << 24)

enum {
	/* `adaptive` only. Chosen: it must see nodes come back that a cache of this size loses long before. */
	EVICTION_GHOSTS = 8,
};

struct eviction;
struct eviction_policy;

struct eviction_stats {
	uint32_t kept, pinned, candidates; /* nodes now; pinned: with a pin, whether it has children or not */
	uint32_t ghosts;                   /* evicted ones that are remembered */
	uint64_t insertions, touches, evictions, removals;
	uint64_t returns; /* insertions of what was remembered */
};

/* eviction_policy_named() - "lru" or "adaptive"; NULL: another word. eviction_policies: all of them, ended by NULL. */
const struct eviction_policy *eviction_policy_named(const char *name);
const char *eviction_policy_name(const struct eviction_policy *policy);
extern const struct eviction_policy *const eviction_policies[];

/*
 * eviction_create() - without a node.
 * @nodes: most that are kept at once, 1..EVICTION_NODES_MAX; node numbers are below it. Room may be for fewer of them:
 * what is kept
 *         when one has to go counts as the size of the cache
 * Return: 0, -EINVAL, -ENOMEM. eviction_destroy() takes NULL, too.
 */
int eviction_create(const struct eviction_policy *policy, uint32_t nodes, struct eviction **out);
void eviction_destroy(struct eviction *eviction);

/*
 * eviction_insert() - a node below `parent`, which is kept, or EVICTION_NONE for one at the top. It has no pin.
 * Return: 0; -ENOSPC: as many nodes are kept as there may be, so one has to go first.
 * Cost: with `lru` logarithmic; with `adaptive` constant on average, the calculation of the densities included
 * (gpool-bench evict_adaptive beside evict).
 */
int eviction_insert(struct eviction *eviction, uint32_t parent, uint64_t key, uint32_t *node);

/* eviction_touch() - somebody found it. A prefix is touched from its top down. Cost: as insert. */
void eviction_touch(struct eviction *eviction, uint32_t node);

/* eviction_used() - of one with a pin: it was in use until now. Its age begins anew, and it counts as no touch. */
void eviction_used(struct eviction *eviction, uint32_t node);

/* eviction_pin() - it stays until it is unpinned as often; at most UINT32_MAX pins. Its parents stay since it does. */
void eviction_pin(struct eviction *eviction, uint32_t node);
void eviction_unpin(struct eviction *eviction, uint32_t node);

/*
 * eviction_victim() - the candidate that should go next, and changes nothing; EVICTION_NONE: all are pinned, or there
 * is none.
 */
uint32_t eviction_victim(struct eviction *eviction);

/*
 * eviction_worth() - of a kept node: those with less go first. It is what is known now, and comparable among all nodes
 * now; for owners who choose among some of them.
 */
float eviction_worth(const struct eviction *eviction, uint32_t node);

/*
 * eviction_evict() - for want of room: a candidate is kept no longer, and remembered. eviction_remove() - for another
 * reason (it is no longer valid): forgotten. Both need a candidate, not just the victim. The number may be given out
 * again at once.
 */
void eviction_evict(struct eviction *eviction, uint32_t node);
void eviction_remove(struct eviction *eviction, uint32_t node);

/*
 * eviction_forget() - any kept node is kept no longer, and not remembered, whoever has pinned it; its children go to
 * its parent. eviction_clear() - all of them. Cost: a look at each node.
 */
void eviction_forget(struct eviction *eviction, uint32_t node);
void eviction_clear(struct eviction *eviction);

/* Of a kept node. */
uint32_t eviction_parent(const struct eviction *eviction, uint32_t node);
uint32_t eviction_children(const struct eviction *eviction, uint32_t node);
uint64_t eviction_key(const struct eviction *eviction, uint32_t node);
bool eviction_is_candidate(const struct eviction *eviction, uint32_t node);

void eviction_get_stats(const struct eviction *eviction, struct eviction_stats *stats);

#endif
