/*
 * eviction_policy.h - interface between the tree (eviction.c), which determines the candidates, and the policies, which
 * order them. Internal to these files.
 */
#ifndef GPOOL_POLICY_EVICTION_POLICY_H
#define GPOOL_POLICY_EVICTION_POLICY_H

#include "shm/policy/eviction.h"

struct eviction_node {
	uint64_t key;
	uint64_t touched;   /* clock of its insertion or its last touch; no two nodes have the same */
	uint32_t parent;    /* EVICTION_NONE: at the top. Of an unused number: the next unused one */
	uint32_t children;  /* kept ones */
	uint32_t child_sum; /* their numbers, each exclusive-or'ed: the only child's, when there is one */
	uint32_t pins;
	bool kept;
};

struct eviction {
	const struct eviction_policy *policy;
	void *state;                 /* the policy's */
	struct eviction_node *nodes; /* [node_count] */
	uint32_t node_count;
	uint32_t unused;  /* the first unused number among those that were used before; EVICTION_NONE: none */
	uint32_t entered; /* numbers from here on have never been used */
	uint64_t clock;
	struct eviction_stats stats;
};

/* Calls come in this order over a node's life: inserted, (offered, withdrawn, touched)..., offered, withdrawn, left. */
struct eviction_policy {
	const char *name;
	int (*init)(struct eviction *eviction);  /* sets state: 0, -ENOMEM */
	void (*fini)(struct eviction *eviction); /* takes a NULL state, and one half made */
	/* It is in the tree, its parent has it as a child already, and it is no candidate yet. May be NULL. */
	void (*inserted)(struct eviction *eviction, uint32_t node);
	/* Not a candidate at that moment; `touched` is new, `before` what it was. May be NULL. */
	void (*touched)(struct eviction *eviction, uint32_t node, uint64_t before);
	/* With a pin; `touched` is about to be new. May be NULL. */
	void (*used)(struct eviction *eviction, uint32_t node);
	/* It is a candidate now; it is none any more. */
	void (*offered)(struct eviction *eviction, uint32_t node);
	void (*withdrawn)(struct eviction *eviction, uint32_t node);
	uint32_t (*victim)(struct eviction *eviction); /* there is a candidate */
	/* It is about to go, and is no candidate any more; its parent has it still. May be NULL. */
	void (*left)(struct eviction *eviction, uint32_t node, bool evicted);
	float (*worth)(const struct eviction *eviction, uint32_t node);
};

extern const struct eviction_policy eviction_lru, eviction_adaptive;

static inline bool node_is_candidate(const struct eviction_node *node)
{
	return node->kept && node->children == 0 && node->pins == 0;
}

#endif
