/*
 * prefixes.c - show the prefixes of KV caches that processes share, as a tree.
 *
 * Each is a named object with the blocks of one chunk, and names the object with the blocks before it. An object is
 * newer than the one that it follows, so there are no cycles, even in damaged memory.
 */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include "shm/object_names.h"
#include "shm/pool_segment.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct node {
	const struct object_view *object;
	uint32_t parent;      /* index, or NONE */
	uint32_t first, next; /* indexes of the first child and of the next sibling, or NONE */
	uint32_t children, depth;
};

struct tree {
	struct node *nodes;
	uint32_t *order; /* parents first, and the descendants of a node before its next sibling */
	uint32_t count;
};

#define NONE UINT32_MAX

static bool is_prefix(const struct object_view *object)
{
	static const char *const names[] = {KV_PREFIX, KV_VLLM_PREFIX};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(object->name, names[i], strlen(names[i])))
			return true;
	return false;
}

/* Sort by pool and number, to find the object that another one follows. */
static int by_pool_and_number(const void *left, const void *right)
{
	const struct object_view *a = ((const struct node *)left)->object, *b = ((const struct node *)right)->object;
	int order = strcmp(a->pool, b->pool);

	return order ? order : a->number < b->number ? -1 : a->number > b->number;
}

static uint32_t parent_find(const struct tree *tree, const struct object_view *object)
{
	struct object_view wanted = {.number = object->follows};
	const struct node key = {.object = &wanted}, *found;

	memcpy(wanted.pool, object->pool, sizeof(wanted.pool));
	found = bsearch(&key, tree->nodes, tree->count, sizeof(*tree->nodes), by_pool_and_number);
	return found && object->follows && found->object->version == object->follows_version &&
			object->follows_version < object->version
		? (uint32_t)(found - tree->nodes)
		: NONE;
}

/* Insert each node at the beginning of its parent's list, from the last to the first, so the lists are in order. */
static uint32_t nodes_link(struct tree *tree)
{
	uint32_t first = NONE;

	for (uint32_t i = tree->count; i-- > 0;) {
		struct node *node = &tree->nodes[i];
		uint32_t *list = node->parent == NONE ? &first : &tree->nodes[node->parent].first;

		node->next = *list;
		*list = i;
		if (node->parent != NONE)
			tree->nodes[node->parent].children++;
	}
	return first;
}

static void order_make(struct tree *tree, uint32_t first)
{
	uint32_t at = first, count = 0;

	while (at != NONE) {
		struct node *node = &tree->nodes[at];

		node->depth = node->parent == NONE ? 0 : tree->nodes[node->parent].depth + 1;
		tree->order[count++] = at;
		at = node->first;
		while (at == NONE && node) {
			at = node->next;
			node = node->parent == NONE ? NULL : &tree->nodes[node->parent];
		}
	}
	tree->count = count;
}

static void tree_make(struct tree *tree, const struct objects_view *view)
{
	tree->nodes = memory_or_exit(calloc(view->count + 1, sizeof(*tree->nodes)));
	tree->order = memory_or_exit(calloc(view->count + 1, sizeof(*tree->order)));
	tree->count = 0;
	for (uint32_t i = 0; i < view->count; i++)
		if (is_prefix(&view->objects[i]))
			tree->nodes[tree->count++] =
				(struct node){.object = &view->objects[i], .first = NONE, .next = NONE};
	qsort(tree->nodes, tree->count, sizeof(*tree->nodes), by_pool_and_number);
	for (uint32_t i = 0; i < tree->count; i++)
		tree->nodes[i].parent = parent_find(tree, tree->nodes[i].object);
	order_make(tree, nodes_link(tree));
}

static void tree_free(struct tree *tree)
{
	free(tree->nodes);
	free(tree->order);
}

/* ---- output ---- */

/* Return the last part of the name, the hash of the tokens. */
static const char *hash_of(const struct object_view *object)
{
	return strrchr(object->name, '/') + 1;
}

static void prefixes_table(const struct command *command, const struct objects_view *view)
{
	enum { INDENT = 2, INDENT_MOST = 40, HASH = 16 };
	struct table *table = table_create(
		"POOL|PREFIX|>DEPTH|>FOLLOWERS|STATE|>PAGES|>SIZE|>READERS|>PINS|LAST USE|ACCESS|TENANT|>NUMBER");
	struct tree tree;

	tree_make(&tree, view);
	for (uint32_t i = 0; i < tree.count; i++) {
		const struct node *node = &tree.nodes[tree.order[i]];
		const struct object_view *object = node->object;
		uint32_t indent = node->depth * INDENT;

		table_cell(table, "%s", object->pool);
		table_cell(table, "%*s%.*s", (int)(indent < INDENT_MOST ? indent : INDENT_MOST), "", HASH,
			hash_of(object));
		table_cell(table, "%" PRIu32, node->depth);
		table_cell(table, "%" PRIu32, node->children);
		table_cell_color(table, object->state == OBJECT_CURRENT ? COLOR_GREEN : COLOR_DIM, "%s",
			object_state_name(object->state));
		table_cell(table, "%" PRIu32, object->pages);
		table_cell(table, "%s", bytes_text(object->pages * object->page_bytes).text);
		table_cell(table, "%" PRIu32, object->readers);
		table_cell_color(table, object->pins ? COLOR_RED : COLOR_NONE, "%" PRIu32, object->pins);
		table_cell(table, "%s", object->used_ms ? time_text(object->used_ms).text : "-");
		table_cell(table, "%s", object->flags & OBJECT_PRIVATE ? "tenant" : "all");
		table_cell(table, "%s", object->tenant);
		table_cell(table, "%" PRIu32, object->number);
	}
	table_print(command, table);
	table_destroy(table);
	tree_free(&tree);
}

static void prefixes_json(const struct command *command, const struct objects_view *view)
{
	cJSON *document = json_document("prefixes"), *list;
	struct tree tree;

	tree_make(&tree, view);
	json_bool(document, "offline", command->offline);
	list = json_array(document, "prefixes");
	for (uint32_t i = 0; i < tree.count; i++) {
		const struct node *node = &tree.nodes[tree.order[i]];
		const struct object_view *object = node->object;
		cJSON *to = json_item(list);

		json_text(to, "pool", object->pool);
		json_text(to, "object", object->name);
		json_number(to, "number", object->number);
		json_number(to, "version", object->version);
		json_number(to, "follows", node->parent == NONE ? 0 : tree.nodes[node->parent].object->number);
		json_number(to, "depth", node->depth);
		json_number(to, "followers", node->children);
		json_text(to, "state", object_state_name(object->state));
		json_number(to, "page_bytes", object->page_bytes);
		json_number(to, "pages", object->pages);
		json_number(to, "readers", object->readers);
		json_number(to, "pins", object->pins);
		json_number(to, "used_ms", object->used_ms);
		json_bool(to, "private", object->flags & OBJECT_PRIVATE);
		json_text(to, "tenant", object->tenant);
		json_number(to, "published_ms", object->published_ms);
	}
	tree_free(&tree);
	json_print(command, document, false);
}

int prefixes_run(const struct command *command)
{
	return objects_show(command, prefixes_table, prefixes_json);
}
