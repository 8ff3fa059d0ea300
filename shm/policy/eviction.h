/*
 * eviction.h - select the node of a prefix tree to evict when room is needed. The code works on numbers only. It
 * accesses neither a pool nor blocks, and its clock counts insertions and touches.
 *
 * A node represents a kept item, such as a KV block of a prefix. A node is a small number, which the caller may use as
 * an index. Its key, such as a chained hash, identifies the whole prefix up to the node. The key is used only to
 * recognize evicted nodes, so two nodes with the same key do no harm.
 *
 * Invariants:
 *   a candidate is a kept node without kept children and without pins; only candidates are evicted
 *   kept = pinned + unpinned with children + candidates
 *   at most EVICTION_GHOSTS evicted nodes are remembered per node that can be kept
 *
 * Threads: the caller provides locking.
 * Memory:  allocated by eviction_create() and touched as it is used: 56 bytes per node with `lru`, about 250 bytes per
 *          node and 60 KiB with `adaptive`.
 */
#ifndef GPOOL_POLICY_EVICTION_H
#define GPOOL_POLICY_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#define EVICTION_NONE UINT32_MAX
#define EVICTION_NODES_MAX (UINT32_C(1) << 24)

enum {
	/* `adaptive` only: enough to recognize nodes long after their eviction from a cache of this size */
	EVICTION_GHOSTS = 8,
};

struct eviction;
struct eviction_policy;

struct eviction_stats {
	uint32_t kept, pinned, candidates; /* current nodes; pinned ones may have children */
	uint32_t ghosts;                   /* remembered evicted nodes */
	uint64_t insertions, touches, evictions, removals;
	uint64_t returns; /* insertions of nodes that were remembered as evicted */
};

/*
 * eviction_policy_named() - return the policy "lru" or "adaptive"; NULL: unknown name. eviction_policies: all policies,
 * terminated by NULL.
 */
const struct eviction_policy *eviction_policy_named(const char *name);
const char *eviction_policy_name(const struct eviction_policy *policy);
extern const struct eviction_policy *const eviction_policies[];

/*
 * eviction_create() - create an empty tree. eviction_destroy() - destroy it; NULL is allowed.
 *
 * @nodes: maximum number of nodes, 1..EVICTION_NODES_MAX; node numbers are below it. If the caller has room for fewer
 *         nodes, `adaptive` takes the number of nodes at an eviction as the size of the cache
 *
 * Return: 0, -EINVAL, -ENOMEM.
 */
int eviction_create(const struct eviction_policy *policy, uint32_t nodes, struct eviction **out);
void eviction_destroy(struct eviction *eviction);

/*
 * eviction_insert() - insert an unpinned node below `parent`, or at the top if `parent` is EVICTION_NONE.
 *
 * Return: 0; -ENOSPC: the tree has the maximum number of nodes, so one must be evicted first.
 *
 * Cost: `lru`: logarithmic. `adaptive`: constant on average, including the computation of densities (measured by the
 * cases evict and evict_adaptive of gpool-bench).
 */
int eviction_insert(struct eviction *eviction, uint32_t parent, uint64_t key, uint32_t *node);

/*
 * eviction_touch() - record a use of a node. Touch the nodes of a prefix from the top down. Cost: as eviction_insert().
 */
void eviction_touch(struct eviction *eviction, uint32_t node);

/* eviction_used() - record that a pinned node was in use until now. Its age starts again, without counting a touch. */
void eviction_used(struct eviction *eviction, uint32_t node);

/*
 * eviction_pin() - protect a node from eviction until it is unpinned. Pins nest, up to UINT32_MAX. A pinned node also
 * protects its parents.
 */
void eviction_pin(struct eviction *eviction, uint32_t node);
void eviction_unpin(struct eviction *eviction, uint32_t node);

/* eviction_victim() - return the candidate to evict next, without changing the tree; EVICTION_NONE: no candidate. */
uint32_t eviction_victim(struct eviction *eviction);

/*
 * eviction_worth() - return the worth of a kept node. Nodes with a lower worth are evicted first. Values are comparable
 * if they were obtained at the same time. They serve callers that choose among a subset of the nodes.
 */
float eviction_worth(const struct eviction *eviction, uint32_t node);

/*
 * eviction_evict() - evict a candidate to make room; the node is remembered. eviction_remove() - remove a candidate
 * that is no longer valid; the node is not remembered. Both accept any candidate, not only the victim. The number may
 * be reused at once.
 */
void eviction_evict(struct eviction *eviction, uint32_t node);
void eviction_remove(struct eviction *eviction, uint32_t node);

/*
 * eviction_forget() - remove any kept node, pinned or not, without remembering it; its children become children of its
 * parent. eviction_clear() - remove all nodes. Cost: proportional to the number of nodes.
 */
void eviction_forget(struct eviction *eviction, uint32_t node);
void eviction_clear(struct eviction *eviction);

/* Return a property of a kept node. */
uint32_t eviction_parent(const struct eviction *eviction, uint32_t node);
uint32_t eviction_children(const struct eviction *eviction, uint32_t node);
uint64_t eviction_key(const struct eviction *eviction, uint32_t node);
bool eviction_is_candidate(const struct eviction *eviction, uint32_t node);

void eviction_get_stats(const struct eviction *eviction, struct eviction_stats *stats);

#endif
