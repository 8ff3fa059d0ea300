/*
 * eviction.c - the tree and its candidates; see eviction.h.
 */
#include "shm/policy/eviction_policy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct eviction_policy *const eviction_policies[] = {&eviction_lru, &eviction_adaptive, NULL};

const struct eviction_policy *eviction_policy_named(const char *name)
{
	for (size_t i = 0; eviction_policies[i]; i++)
		if (!strcmp(eviction_policies[i]->name, name))
			return eviction_policies[i];
	return NULL;
}

const char *eviction_policy_name(const struct eviction_policy *policy)
{
	return policy->name;
}

int eviction_create(const struct eviction_policy *policy, uint32_t nodes, struct eviction **out)
{
	struct eviction *eviction;

	if (!policy || nodes == 0 || nodes > EVICTION_NODES_MAX)
		return -EINVAL;
	eviction = calloc(1, sizeof(*eviction));
	if (!eviction)
		return -ENOMEM;
	eviction->policy = policy;
	eviction->node_count = nodes;
	eviction->unused = EVICTION_NONE;
	eviction->nodes = calloc(nodes, sizeof(*eviction->nodes));
	if (!eviction->nodes || policy->init(eviction)) {
		eviction_destroy(eviction);
		return -ENOMEM;
	}
	*out = eviction;
	return 0;
}

void eviction_destroy(struct eviction *eviction)
{
	if (!eviction)
		return;
	eviction->policy->fini(eviction);
	free(eviction->nodes);
	free(eviction);
}

/* ---- candidates ---- */

static struct eviction_node *node_of(const struct eviction *eviction, uint32_t number)
{
	assert(number < eviction->node_count && eviction->nodes[number].kept);
	return &eviction->nodes[number];
}

static void offer(struct eviction *eviction, uint32_t number)
{
	eviction->stats.candidates++;
	eviction->policy->offered(eviction, number);
}

static void withdraw(struct eviction *eviction, uint32_t number)
{
	eviction->policy->withdrawn(eviction, number);
	eviction->stats.candidates--;
}

static void child_add(struct eviction *eviction, uint32_t parent, uint32_t child)
{
	struct eviction_node *node;

	if (parent == EVICTION_NONE)
		return;
	node = node_of(eviction, parent);
	if (node_is_candidate(node))
		withdraw(eviction, parent);
	node->children++;
	node->child_sum ^= child;
}

static void child_drop(struct eviction *eviction, uint32_t parent, uint32_t child)
{
	struct eviction_node *node;

	if (parent == EVICTION_NONE)
		return;
	node = node_of(eviction, parent);
	node->children--;
	node->child_sum ^= child;
	if (node_is_candidate(node))
		offer(eviction, parent);
}

/* ---- insertion and removal ---- */

int eviction_insert(struct eviction *eviction, uint32_t parent, uint64_t key, uint32_t *out)
{
	uint32_t number = eviction->unused;

	if (eviction->stats.kept == eviction->node_count)
		return -ENOSPC;
	if (number == EVICTION_NONE)
		number = eviction->entered++;
	else
		eviction->unused = eviction->nodes[number].parent;
	eviction->nodes[number] =
		(struct eviction_node){.key = key, .touched = ++eviction->clock, .parent = parent, .kept = true};
	eviction->stats.kept++;
	eviction->stats.insertions++;
	child_add(eviction, parent, number);
	if (eviction->policy->inserted)
		eviction->policy->inserted(eviction, number);
	offer(eviction, number);
	*out = number;
	return 0;
}

void eviction_touch(struct eviction *eviction, uint32_t number)
{
	struct eviction_node *node = node_of(eviction, number);
	bool candidate = node_is_candidate(node);
	uint64_t before = node->touched;

	if (candidate)
		withdraw(eviction, number);
	node->touched = ++eviction->clock;
	eviction->stats.touches++;
	if (eviction->policy->touched)
		eviction->policy->touched(eviction, number, before);
	if (candidate)
		offer(eviction, number);
}

void eviction_used(struct eviction *eviction, uint32_t number)
{
	struct eviction_node *node = node_of(eviction, number);

	assert(node->pins);
	if (eviction->policy->used)
		eviction->policy->used(eviction, number);
	node->touched = ++eviction->clock;
}

static void leave(struct eviction *eviction, uint32_t number, bool evicted)
{
	struct eviction_node *node = node_of(eviction, number);
	uint32_t parent = node->parent;

	assert(node_is_candidate(node));
	withdraw(eviction, number);
	if (eviction->policy->left)
		eviction->policy->left(eviction, number, evicted);
	node->kept = false;
	node->parent = eviction->unused;
	eviction->unused = number;
	eviction->stats.kept--;
	child_drop(eviction, parent, number);
}

void eviction_evict(struct eviction *eviction, uint32_t node)
{
	leave(eviction, node, true);
	eviction->stats.evictions++;
}

void eviction_remove(struct eviction *eviction, uint32_t node)
{
	leave(eviction, node, false);
	eviction->stats.removals++;
}

/* Set the numbers of a node's children and pins to 0, and make it a candidate if it is none yet. */
static void bare(struct eviction *eviction, uint32_t number)
{
	struct eviction_node *node = node_of(eviction, number);
	bool candidate = node_is_candidate(node);

	eviction->stats.pinned -= node->pins != 0;
	node->pins = node->children = node->child_sum = 0;
	if (!candidate)
		offer(eviction, number);
}

void eviction_forget(struct eviction *eviction, uint32_t number)
{
	struct eviction_node *node = node_of(eviction, number);

	for (uint32_t child = 0; node->children && child < eviction->entered; child++) {
		if (!eviction->nodes[child].kept || eviction->nodes[child].parent != number)
			continue;
		eviction->nodes[child].parent = node->parent;
		child_add(eviction, node->parent, child);
		/* bare() subtracts the last child, because the parent must not be a candidate until then. */
		if (node->children == 1)
			break;
		node->children--;
	}
	bare(eviction, number);
	eviction_remove(eviction, number);
}

void eviction_clear(struct eviction *eviction)
{
	for (uint32_t number = 0; number < eviction->entered; number++)
		if (eviction->nodes[number].kept) {
			bare(eviction, number);
			eviction->nodes[number].parent = EVICTION_NONE;
		}
	for (uint32_t number = 0; number < eviction->entered; number++)
		if (eviction->nodes[number].kept)
			eviction_remove(eviction, number);
}

uint32_t eviction_victim(struct eviction *eviction)
{
	return eviction->stats.candidates ? eviction->policy->victim(eviction) : EVICTION_NONE;
}

float eviction_worth(const struct eviction *eviction, uint32_t number)
{
	node_of(eviction, number);
	return eviction->policy->worth(eviction, number);
}

/* ---- pins ---- */

void eviction_pin(struct eviction *eviction, uint32_t number)
{
	struct eviction_node *node = node_of(eviction, number);

	assert(node->pins < UINT32_MAX);
	if (node_is_candidate(node))
		withdraw(eviction, number);
	if (node->pins++ == 0)
		eviction->stats.pinned++;
}

void eviction_unpin(struct eviction *eviction, uint32_t number)
{
	struct eviction_node *node = node_of(eviction, number);

	assert(node->pins);
	if (--node->pins)
		return;
	eviction->stats.pinned--;
	if (node_is_candidate(node))
		offer(eviction, number);
}

/* ---- inspection ---- */

uint32_t eviction_parent(const struct eviction *eviction, uint32_t node)
{
	return node_of(eviction, node)->parent;
}

uint32_t eviction_children(const struct eviction *eviction, uint32_t node)
{
	return node_of(eviction, node)->children;
}

uint64_t eviction_key(const struct eviction *eviction, uint32_t node)
{
	return node_of(eviction, node)->key;
}

bool eviction_is_candidate(const struct eviction *eviction, uint32_t node)
{
	return node_is_candidate(node_of(eviction, node));
}

void eviction_get_stats(const struct eviction *eviction, struct eviction_stats *stats)
{
	*stats = eviction->stats;
}
