/*
 * eviction.h - select the node of a prefix tree to evict when room is needed. It works on numbers only and accesses
 * neither a pool nor blocks. Its clock counts insertions and touches.
 *
 * A node is a small number, which represents a kept item such as a KV block of a prefix. Its key, such as a chained
 * hash, identifies the whole prefix up to the node. The key is used only to recognize evicted nodes, so two nodes may
 * have the same key.
 *
 * Invariants:
 *   a candidate is a kept node without kept children and without pins; only candidates are evicted
 *   kept = pinned + unpinned with children + candidates
 *   for each node that can be kept, at most EVICTION_GHOSTS evicted nodes are remembered
 *
 * Threads: the caller provides locking.
 * Memory:  56 bytes per node with `lru`; about 250 bytes per node and 130 KiB with `adaptive`. Allocated by
 *          eviction_create(), but not accessed before it is needed.
 */
#ifndef GPOOL_POLICY_EVICTION_H
#define GPOOL_POLICY_EVICTION_H

#include <stdbool.h>
#include <stdint.h>

#define EVICTION_NONE UINT32_MAX
#define EVICTION_NODES_MAX (UINT32_C(1) << 24)

enum {
	/* ghosts of `adaptive` per node: enough to recognize nodes long after their eviction */
	EVICTION_GHOSTS = 8,
};

struct eviction;
struct eviction_policy;

struct eviction_stats {
	uint32_t kept, pinned, candidates; /* current nodes; pinned ones may have children */
	uint32_t ghosts;                   /* remembered evicted nodes */
	uint64_t insertions, touches, evictions, removals;
	uint64_t returns; /* insertions of nodes that were remembered as evicted */
	uint64_t visits;  /* of nodes and ghosts by insertions and touches, which determine their cost */
};

/*
 * eviction_policy_named() - return the policy "lru" or "adaptive", or NULL if the name is unknown.
 * eviction_policies - all policies, terminated by NULL.
 */
const struct eviction_policy *eviction_policy_named(const char *name);
const char *eviction_policy_name(const struct eviction_policy *policy);
extern const struct eviction_policy *const eviction_policies[];

/*
 * eviction_create() - create an empty tree.
 * eviction_destroy() - destroy it; accepts NULL.
 *
 * @nodes: maximum number of nodes, 1..EVICTION_NODES_MAX; node numbers are below it. For `adaptive`, the size of the
 *         cache is the number of nodes at an eviction, which may be lower
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
 * Cost: logarithmic with `lru`, and constant on average with `adaptive`, including the computation of densities (cases
 * evict and evict_adaptive of gpool-bench).
 */
int eviction_insert(struct eviction *eviction, uint32_t parent, uint64_t key, uint32_t *node);

/*
 * eviction_touch() - record a use of a node. The nodes of a prefix must be touched from the top down.
 * Cost: as eviction_insert().
 */
void eviction_touch(struct eviction *eviction, uint32_t node);

/* eviction_used() - record that a pinned node was in use until now. Its age starts again, but no touch is counted. */
void eviction_used(struct eviction *eviction, uint32_t node);

/*
 * eviction_pin() - protect a node from eviction until it is unpinned. Pins nest, up to UINT32_MAX. A pinned node also
 * protects its ancestors.
 */
void eviction_pin(struct eviction *eviction, uint32_t node);
void eviction_unpin(struct eviction *eviction, uint32_t node);

/* eviction_victim() - return the candidate to evict next, without changing the tree; EVICTION_NONE: no candidate. */
uint32_t eviction_victim(struct eviction *eviction);

/*
 * eviction_worth() - return the worth of a kept node. Nodes with a lower worth are evicted first. Values are comparable
 * if no node was inserted or touched in between. With them, a caller can choose a victim among some of the nodes.
 */
float eviction_worth(const struct eviction *eviction, uint32_t node);

/*
 * eviction_evict() - evict a candidate to make room; its key is remembered.
 * eviction_remove() - remove a candidate that has become invalid; its key is not remembered.
 * Both accept any candidate, not only the victim. The node's number may be reused at once.
 */
void eviction_evict(struct eviction *eviction, uint32_t node);
void eviction_remove(struct eviction *eviction, uint32_t node);

/*
 * eviction_forget() - remove a kept node, which may be pinned and have children, without remembering its key. Its
 * children become children of its parent.
 * eviction_clear() - remove all nodes.
 * Cost: proportional to the number of nodes.
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
