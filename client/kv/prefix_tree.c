/* prefix_tree.c - describe the published blocks as a radix tree. */
#include "client/kv/prefix.h"

#include "client/core/last_error.h"
#include "client/kv/offer.h"
#include "client/kv/pooled.h"

#include <stdlib.h>

/* The blocks with a key, sorted by their depth: a block follows its parent. */
struct tree {
	uint32_t *order;   /* [prefixes.count] */
	uint32_t *node_of; /* [kv_block_count()] */
	uint32_t *begins;  /* [prefixes.count + 1] for each depth, the first index in `order` */
};

/* Sort by counting: the depth of a block is less than the number of blocks with keys. */
static void order_make(const struct gpool_kv *kv, struct tree *tree)
{
	const struct prefix_table *table = &kv->prefixes;

	for (uint32_t block = 0; block < table->blocks; block++) {
		tree->node_of[block] = PREFIX_NONE;
		if (prefix_table_has(table, block))
			tree->begins[table->entries[block].depth + 1]++;
	}
	for (uint32_t depth = 1; depth <= table->count; depth++)
		tree->begins[depth] += tree->begins[depth - 1];
	for (uint32_t block = 0; block < table->blocks; block++)
		if (prefix_table_has(table, block))
			tree->order[tree->begins[table->entries[block].depth]++] = block;
}

/* Return true if a block belongs to the node of its parent. Sequences that have a block also have its parent. */
static bool continues(const struct gpool_kv *kv, uint32_t block)
{
	uint32_t parent = kv->prefixes.entries[block].parent;

	return parent != PREFIX_NONE && kv->prefixes.entries[parent].children == 1 &&
		kv_refs(kv, parent) == kv_refs(kv, block) && is_pooled(kv, parent) == is_pooled(kv, block);
}

static void node_extend(const struct gpool_kv *kv, struct gpool_kv_prefix_node *node, uint32_t block)
{
	const struct prefix_entry *entry = &kv->prefixes.entries[block];

	node->blocks++;
	node->last_block = (int32_t)block;
	node->key[0] = entry->key.low;
	node->key[1] = entry->key.high;
}

static uint32_t tree_fill(
	const struct gpool_kv *kv, struct tree *tree, struct gpool_kv_prefix_node *nodes, uint32_t most)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < kv->prefixes.count; i++) {
		uint32_t block = tree->order[i], parent = kv->prefixes.entries[block].parent;
		bool begins = !continues(kv, block);
		uint32_t node = begins ? count++ : tree->node_of[parent];

		tree->node_of[block] = node;
		if (node >= most)
			continue;
		if (begins) {
			nodes[node] = (struct gpool_kv_prefix_node){
				.parent = parent == PREFIX_NONE ? UINT32_MAX : tree->node_of[parent],
				.first_token = kv->prefixes.entries[block].depth << kv->token_shift,
				.sequences = kv_refs(kv, block),
				.pooled = is_pooled(kv, block),
			};
			if (parent != PREFIX_NONE)
				nodes[nodes[node].parent].children++;
		}
		node_extend(kv, &nodes[node], block);
	}
	return count;
}

static int tree_of(struct gpool_kv *kv, struct gpool_kv_prefix_node *nodes, uint32_t most, uint32_t *node_of)
{
	uint32_t keyed = kv->prefixes.count;
	struct tree tree = {
		.order = malloc((keyed + 1) * sizeof(*tree.order)),
		.begins = calloc((size_t)keyed + 2, sizeof(*tree.begins)),
		.node_of = node_of ? node_of : malloc(kv_block_count(kv) * sizeof(*tree.node_of)),
	};
	int result = -ENOMEM;

	if (tree.order && tree.begins && tree.node_of) {
		order_make(kv, &tree);
		result = (int)tree_fill(kv, &tree, nodes, most);
	}
	if (!node_of)
		free(tree.node_of);
	free(tree.begins);
	free(tree.order);
	return result;
}

int gpool_kv_prefix_tree(struct gpool_kv *kv, struct gpool_kv_prefix_node *nodes, uint32_t most, uint32_t *node_of)
{
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	if (!kv->prefixes.entries)
		return fail_no_prefixes();
	if (most && !nodes)
		return fail(-EINVAL, "most is %u, but nodes is NULL", most);
	pthread_mutex_lock(&kv->lock);
	losses_follow(kv);
	offer_look(kv);
	result = tree_of(kv, nodes, most, node_of);
	pthread_mutex_unlock(&kv->lock);
	return result;
}
