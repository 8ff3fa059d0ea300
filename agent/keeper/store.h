/*
 * store.h - everything that makes up the pools, put where it outlives gpoold: into a socket that nobody reads, whose
 * reading end the service manager keeps for us. So it is there as a whole or not at all, and takes one place in the
 * manager's store.
 *
 *   first packet   struct store_head, with a memfd of struct store_item[item_count] and, of each pool, segment and
 *   ledger the others     the items' descriptors in order, STORE_BATCH at a time
 *
 * Looking at the first packet takes nothing out. Sessions are kept as segment and pidfd: their connections end with us,
 * and so do they.
 */
#ifndef GPOOL_AGENT_KEEPER_STORE_H
#define GPOOL_AGENT_KEEPER_STORE_H

#include "agent/keeper/held.h"
#include "agent/base/module.h"

#include <stdbool.h>

#define STORE_NAME "gpool" /* in the manager's store */

struct store_head {
	uint64_t magic;
	uint32_t head_bytes, item_bytes;
	uint32_t layout_version;
	uint32_t pool_count, item_count, fd_count;
	uint64_t incarnation;
	uint32_t layout_sum; /* layout.h, LAYOUT_SHARED */
	uint32_t reserved;
};

struct store_item {
	uint32_t kind, pool, id;
	uint32_t fds; /* bit i: there is a descriptor at place i */
	uint64_t value, value2;
};

/* What the first packet shows. */
struct store {
	int socket; /* -1: nothing was kept */
	struct store_head head;
	const struct store_item *items; /* mapped */
	int items_fd;
	struct {
		int segment_fd, ledger_fd;
		struct pool_segment segment; /* read-only */
	} pools[MODULE_POOLS_MAX];
};

/*
 * store_write() - put pools and held into a new socket. Returns its reading end, or negative errno with the reason in
 * text: -ETOOMANYREFS (more descriptors than may be in flight), -EAGAIN (no room in the socket) and others.
 */
int store_write(const struct module_start *start, const struct held_table *held, char *text, size_t text_bytes);

/*
 * store_look() - open what was kept, and take nothing. The socket is the store's. 0, also for one that is empty or used
 * up, then store->socket is -1; or negative errno with the reason in text: -EPROTO (another layout, or a head of
 * another size), -EBADMSG (not what we write).
 */
int store_look(int socket, struct store *store, char *text, size_t text_bytes);

/*
 * store_fits() - whether pool `index` of the configuration is what was kept there. False: the reason is in text.
 */
bool store_fits(
	const struct store *store, uint32_t index, const struct pool_geometry *geometry, char *text, size_t text_bytes);

/*
 * store_take() - the items, into held. 0, or negative errno with the reason in text: before anything was taken out, or
 * -EIO after.
 */
int store_take(struct store *store, struct held_table *held, char *text, size_t text_bytes);

/* store_close() - all that is still the store's. */
void store_close(struct store *store);

#endif
