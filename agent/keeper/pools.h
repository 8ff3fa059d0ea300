/*
 * pools.h - what the keeper makes for each pool: its segment, its ledger, its mover's ring; out of the configuration
 * and of what the device says, or out of what an earlier run has left (store.h).
 */
#ifndef GPOOL_AGENT_KEEPER_POOLS_H
#define GPOOL_AGENT_KEEPER_POOLS_H

#include "agent/config/config.h"
#include "agent/keeper/child.h"
#include "agent/keeper/loader.h"
#include "agent/base/module.h"

/*
 * pool_measure() - ask the device, in a child, and say what the pool will look like. *geometry points into config and
 * into device, which is the answer. 0, or negative errno, which is logged; -EINTR: a signal to stop came first.
 */
int pool_measure(const struct config *config, uint32_t index, const struct loader *loader,
	const struct child_shed *shed, struct module_device *device, struct pool_geometry *geometry);

/* pool_make() - a new pool's segment and ledger, and all else that it needs. 0, or negative errno, which is logged. */
int pool_make(const struct config_pool *config, const struct pool_geometry *geometry,
	const struct module_device *device, struct module_pool *pool);

/*
 * pool_make_from() - the same around the ledger of an earlier run, and with a copy of its segment: the old one, sealed,
 * can be mapped for writing by nobody any more. ledger_fd becomes the pool's.
 */
int pool_make_from(const struct pool_geometry *geometry, const struct module_device *device,
	const struct pool_segment *from, int ledger_fd, struct module_pool *pool);

/* pool_unmake() - in the keeper, and in a child that has no business with it. */
void pool_unmake(struct module_pool *pool);

/*
 * pool_leave_for_mover() - in a mover: only what is not its own; the segment becomes a read-only one. 0 or negative
 * errno.
 */
int pool_leave_for_mover(struct module_pool *pool);

#endif
