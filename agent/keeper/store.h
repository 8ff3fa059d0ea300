/*
 * store.h - a store for the resources of all pools that survives gpoold: a socket with one packet per group of
 * descriptors. The service manager keeps the reading end of the socket. The store is therefore kept as a whole or not
 * at all, and uses a single entry of the manager's descriptor store.
 *
 *   first packet   struct store_head, with a memfd of struct store_item[item_count] and each pool's segment and ledger
 *   other packets  the items' descriptors in order, STORE_BATCH at a time
 *
 * The first packet can be read with MSG_PEEK without removing it. Only the segment and the pidfd of each session are
 * stored, because the session and its connection end with gpoold.
 */
#ifndef GPOOL_AGENT_KEEPER_STORE_H
#define GPOOL_AGENT_KEEPER_STORE_H

#include "agent/keeper/held.h"
#include "agent/base/module.h"

#include <stdbool.h>

#define STORE_NAME "gpool" /* name in the manager's descriptor store */

struct store_head {
	uint64_t magic;
	uint32_t head_bytes, item_bytes;
	uint32_t layout_version;
	uint32_t pool_count, item_count, fd_count;
	uint64_t incarnation;
	uint32_t layout_sum; /* checksum of LAYOUT_SHARED, see layout.h */
	uint32_t reserved;
};

struct store_item {
	uint32_t kind, pool, id;
	uint32_t fds; /* bit i: the item has a descriptor at position i */
	uint64_t value, value2;
};

/* The content of the first packet. */
struct store {
	int socket; /* -1: the store is empty */
	struct store_head head;
	const struct store_item *items; /* mapped */
	int items_fd;
	struct {
		int segment_fd, ledger_fd;
		struct pool_segment segment; /* read-only */
	} pools[MODULE_POOLS_MAX];
};

/*
 * store_write() - write the pools and the held items to a new socket.
 *
 * Return: the reading end, or a negative errno with the reason in text: -ETOOMANYREFS (more descriptors in flight than
 * permitted), -EAGAIN (the socket is full) and others.
 */
int store_write(const struct module_start *start, const struct held_table *held, char *text, size_t text_bytes);

/*
 * store_look() - read the first packet and leave it in the socket. The store then owns the socket.
 *
 * Return: 0, or a negative errno with the reason in text: -EPROTO (another layout, or a head of another size), -EBADMSG
 * (not a store). If the store is empty, the socket is closed and store->socket is -1.
 */
int store_look(int socket, struct store *store, char *text, size_t text_bytes);

/*
 * store_fits() - return true if pool `index` of the configuration equals the stored one. Otherwise text contains the
 * reason.
 */
bool store_fits(
	const struct store *store, uint32_t index, const struct pool_geometry *geometry, char *text, size_t text_bytes);

/*
 * store_take() - move the items to `held`. Return: 0, or a negative errno with the reason in text: -EIO if some items
 * were already removed from the store, other errors if none was.
 */
int store_take(struct store *store, struct held_table *held, char *text, size_t text_bytes);

void store_close(struct store *store);

#endif
