/*
 * eviction_policy.h - interface between the tree (eviction.c), which determines the candidates, and the policies, which
 * order them. Internal to these files.
 */
#ifndef GPOOL_POLICY_EVICTION_POLICY_H
#define GPOOL_POLICY_EVICTION_POLICY_H

#include "shm/policy/eviction.h"

struct eviction_node {
	uint64_t key;
	uint64_t touched;   /* clock at its insertion or last touch; unique */
	uint32_t parent;    /* EVICTION_NONE: at the top. In an unused node: the next unused one */
	uint32_t children;  /* number of children */
	uint32_t child_sum; /* XOR of the children's numbers: the child's number, if there is one */
	uint32_t pins;
	bool kept;
};

struct eviction {
	const struct eviction_policy *policy;
	void *state;                 /* of the policy */
	struct eviction_node *nodes; /* [node_count] */
	uint32_t node_count;
	uint32_t unused;  /* the first unused node among those that were used before; EVICTION_NONE: none */
	uint32_t entered; /* nodes from here on were never used */
	uint64_t clock;
	struct eviction_stats stats;
};

/*
 * Calls during the life of a node are in this order: inserted, (offered, withdrawn, touched)..., offered, withdrawn,
 * left.
 */
struct eviction_policy {
	const char *name;
	int (*init)(struct eviction *eviction);  /* set `state`: 0, -ENOMEM */
	void (*fini)(struct eviction *eviction); /* accept a NULL state, and an incomplete one */
	/* The node is in the tree and a child of its parent, but not a candidate yet. May be NULL. */
	void (*inserted)(struct eviction *eviction, uint32_t node);
	/*
	 * The node was touched and is not a candidate at this moment; `before` is the previous `touched`. May be NULL.
	 */
	void (*touched)(struct eviction *eviction, uint32_t node, uint64_t before);
	/* The node was used and has a pin; `touched` is about to change. May be NULL. */
	void (*used)(struct eviction *eviction, uint32_t node);
	/* The node has become a candidate; it is no longer one. */
	void (*offered)(struct eviction *eviction, uint32_t node);
	void (*withdrawn)(struct eviction *eviction, uint32_t node);
	uint32_t (*victim)(struct eviction *eviction); /* return the candidate to evict; there is one */
	/*
	 * The node is about to be removed and is no longer a candidate, but still a child of its parent. May be NULL.
	 */
	void (*left)(struct eviction *eviction, uint32_t node, bool evicted);
	float (*worth)(const struct eviction *eviction, uint32_t node);
};

extern const struct eviction_policy eviction_lru, eviction_adaptive;

static inline bool node_is_candidate(const struct eviction_node *node)
{
	return node->kept && node->children == 0 && node->pins == 0;
}

#endif
