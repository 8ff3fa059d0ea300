/*
 * eviction_policy.h - the interface between the tree (eviction.c), which determines the candidates, and the policies,
 * which order them. Used only by these files.
 */
#ifndef GPOOL_POLICY_EVICTION_POLICY_H
#define GPOOL_POLICY_EVICTION_POLICY_H

#include "shm/policy/eviction.h"

struct eviction_node {
	uint64_t key;
	uint64_t touched; /* clock at insertion or at the last touch; unique */
	uint32_t parent;  /* EVICTION_NONE: the node is at the top. For an unused node: the next unused node */
	uint32_t children;
	uint32_t child_sum; /* XOR of the children's numbers; yields the number of an only child */
	uint32_t pins;
	bool kept;
};

struct eviction {
	const struct eviction_policy *policy;
	void *state;                 /* private state of the policy */
	struct eviction_node *nodes; /* [node_count] */
	uint32_t node_count;
	uint32_t unused;  /* first unused node below `entered`; EVICTION_NONE: none */
	uint32_t entered; /* this node and all further ones have never been used */
	uint64_t clock;
	struct eviction_stats stats;
};

/*
 * The callbacks for a node are called in this order: inserted, (offered, withdrawn, touched)..., offered, withdrawn,
 * left.
 */
struct eviction_policy {
	const char *name;
	int (*init)(struct eviction *eviction);  /* set `state`; return 0 or -ENOMEM */
	void (*fini)(struct eviction *eviction); /* accept a NULL or incomplete state */
	/* The node was added to the tree and is not a candidate yet. May be NULL. */
	void (*inserted)(struct eviction *eviction, uint32_t node);
	/*
	 * The node was touched and is temporarily not a candidate. before: the previous value of `touched`. May be
	 * NULL.
	 */
	void (*touched)(struct eviction *eviction, uint32_t node, uint64_t before);
	/* The pinned node was used; `touched` is about to change. May be NULL. */
	void (*used)(struct eviction *eviction, uint32_t node);
	/* The node has become a candidate (offered), or has ceased to be one (withdrawn). */
	void (*offered)(struct eviction *eviction, uint32_t node);
	void (*withdrawn)(struct eviction *eviction, uint32_t node);
	uint32_t (*victim)(struct eviction *eviction); /* return the candidate to evict; at least one exists */
	/* The node is about to be removed; it is not a candidate, but still a child of its parent. May be NULL. */
	void (*left)(struct eviction *eviction, uint32_t node, bool evicted);
	float (*worth)(const struct eviction *eviction, uint32_t node);
};

extern const struct eviction_policy eviction_lru, eviction_adaptive;

static inline bool node_is_candidate(const struct eviction_node *node)
{
	return node->kept && node->children == 0 && node->pins == 0;
}

#endif
