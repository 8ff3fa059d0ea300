/*
 * eviction.h - select the node of a prefix tree to evict when room is needed. It works on numbers only: no pool, no
 * memory of blocks, and no clock but its own, which counts insertions and touches.
 *
 * A node represents something kept (a block of a prefix). It is a small number that the owner may use as an index. Its
 * key identifies the whole prefix up to it, such as a chained hash. The key serves only to recognize an evicted node,
 * so two nodes with the same key do no harm.
 *
 * Invariants:
 *   a candidate is a kept node without kept children and without pins; only candidates are victims
 *   kept = pinned + with children (and no pin) + candidates
 *   at most EVICTION_GHOSTS evicted nodes are remembered for each node that may be kept
 *
 * Threads: none of its own, and no lock; its owner has one.
 * Memory:  all of it allocated by eviction_create(), touched as it is used: 56 bytes per node with `lru`, about 250
 *          with `adaptive`, and 60 KiB.
 */
#ifndef GPOOL_POLICY_EVICTION_H
#define GPOOL_POLICY_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#define EVICTION_NONE UINT32_MAX
#define EVICTION_NODES_MAX (UINT32_C(1) << 24)

enum {
	/* `adaptive` only: enough to recognize nodes long after a cache of this size has evicted them */
	EVICTION_GHOSTS = 8,
};

struct eviction;
struct eviction_policy;

struct eviction_stats {
	uint32_t kept, pinned, candidates; /* nodes now; pinned: with a pin, with or without children */
	uint32_t ghosts;                   /* remembered evicted nodes */
	uint64_t insertions, touches, evictions, removals;
	uint64_t returns; /* insertions of remembered nodes */
};

/*
 * eviction_policy_named() - return "lru" or "adaptive"; NULL: unknown. eviction_policies: all of them, ended by NULL.
 */
const struct eviction_policy *eviction_policy_named(const char *name);
const char *eviction_policy_name(const struct eviction_policy *policy);
extern const struct eviction_policy *const eviction_policies[];

/*
 * eviction_create() - create a tree without nodes.
 *
 * @nodes: maximum of nodes, 1..EVICTION_NODES_MAX; node numbers are below it. If there is room for fewer of them, the
 * number
 *         of nodes at an eviction counts as the size of the cache
 *
 * Return: 0, -EINVAL, -ENOMEM. eviction_destroy() accepts NULL.
 */
int eviction_create(const struct eviction_policy *policy, uint32_t nodes, struct eviction **out);
void eviction_destroy(struct eviction *eviction);

/*
 * eviction_insert() - insert a node below `parent`, or EVICTION_NONE for one at the top. It has no pin.
 *
 * Return: 0; -ENOSPC: the maximum of nodes exists, so one has to be evicted first.
 *
 * Cost: with `lru` logarithmic; with `adaptive` constant on average, including the computation of densities
 * (gpool-bench evict_adaptive beside evict).
 */
int eviction_insert(struct eviction *eviction, uint32_t parent, uint64_t key, uint32_t *node);

/* eviction_touch() - record a use of a node. A prefix is touched from its top down. Cost: as insert. */
void eviction_touch(struct eviction *eviction, uint32_t node);

/* eviction_used() - restart the age of a pinned node, which was in use until now. It does not count as a touch. */
void eviction_used(struct eviction *eviction, uint32_t node);

/* eviction_pin() - keep a node until it is unpinned. Pins nest, up to UINT32_MAX. Pinning a node keeps its parents. */
void eviction_pin(struct eviction *eviction, uint32_t node);
void eviction_unpin(struct eviction *eviction, uint32_t node);

/*
 * eviction_victim() - return the candidate to evict next, without changing anything; EVICTION_NONE: all are pinned, or
 * there is none.
 */
uint32_t eviction_victim(struct eviction *eviction);

/*
 * eviction_worth() - return the worth of a kept node: nodes with less are evicted first. It reflects current knowledge
 * and is comparable among all nodes at this time, for owners that choose among some of them.
 */
float eviction_worth(const struct eviction *eviction, uint32_t node);

/*
 * eviction_evict() - evict a candidate for want of room; it is remembered. eviction_remove() - remove a candidate for
 * another reason (it is no longer valid); it is forgotten. Any candidate may be passed, not only the victim. The number
 * may be reused at once.
 */
void eviction_evict(struct eviction *eviction, uint32_t node);
void eviction_remove(struct eviction *eviction, uint32_t node);

/*
 * eviction_forget() - remove any kept node, pinned or not, without remembering it; its children move to its parent.
 * eviction_clear() - remove all nodes. Cost: proportional to the nodes.
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
