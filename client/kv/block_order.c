#include "client/kv/block_order.h"

#include "shm/policy/eviction.h"

#include <errno.h>
#include <stdlib.h>

int block_order_init(struct block_order *order, uint32_t blocks, bool adaptive)
{
	if (!adaptive)
		return block_lru_init(&order->lru, blocks);
	order->nodes = malloc(blocks * sizeof(*order->nodes));
	order->owners = malloc(blocks * sizeof(*order->owners));
	return order->nodes && order->owners
		? eviction_create(eviction_policy_named("adaptive"), blocks, &order->eviction)
		: -ENOMEM;
}

void block_order_fini(struct block_order *order)
{
	block_lru_fini(&order->lru);
	eviction_destroy(order->eviction);
	free(order->nodes);
	free(order->owners);
	*order = (struct block_order){.eviction = NULL};
}

void block_order_key(struct block_order *order, uint32_t block, uint32_t parent, uint64_t key)
{
	uint32_t node;

	if (!order->eviction)
		return;
	/* The tree has room for as many nodes as blocks exist, so this cannot fail. */
	eviction_insert(order->eviction, parent == BLOCK_ORDER_NONE ? EVICTION_NONE : order->nodes[parent], key, &node);
	eviction_pin(order->eviction, node);
	order->nodes[block] = node;
	order->owners[node] = block;
}

void block_order_found(struct block_order *order, uint32_t block)
{
	if (order->eviction)
		eviction_touch(order->eviction, order->nodes[block]);
}

void block_order_cache(struct block_order *order, uint32_t block)
{
	if (order->eviction)
		eviction_unpin(order->eviction, order->nodes[block]);
	else
		block_lru_add(&order->lru, block);
}

void block_order_use(struct block_order *order, uint32_t block)
{
	if (order->eviction)
		eviction_pin(order->eviction, order->nodes[block]);
	else
		block_lru_remove(&order->lru, block);
}

uint32_t block_order_next(struct block_order *order)
{
	uint32_t node;

	if (!order->eviction)
		return block_lru_first(&order->lru);
	node = eviction_victim(order->eviction);
	return node == EVICTION_NONE ? BLOCK_ORDER_NONE : order->owners[node];
}

void block_order_evict(struct block_order *order, uint32_t block)
{
	if (order->eviction)
		eviction_evict(order->eviction, order->nodes[block]);
	else
		block_lru_remove(&order->lru, block);
}

void block_order_leave(struct block_order *order, uint32_t block)
{
	if (order->eviction)
		eviction_forget(order->eviction, order->nodes[block]);
}

void block_order_move(struct block_order *order, uint32_t from, uint32_t to, bool cached)
{
	if (order->eviction) {
		order->nodes[to] = order->nodes[from];
		order->owners[order->nodes[to]] = to;
	} else if (cached) {
		block_lru_move(&order->lru, from, to);
	}
}

void block_order_clear(struct block_order *order)
{
	if (order->eviction)
		eviction_clear(order->eviction);
}
