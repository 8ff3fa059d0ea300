/*
 * pools.h - create the resources of a pool: segment, ledger, mover ring. They are created from the configuration and
 * the properties of the device, or from memory that an earlier run has kept (store.h).
 */
#ifndef GPOOL_AGENT_KEEPER_POOLS_H
#define GPOOL_AGENT_KEEPER_POOLS_H

#include "agent/config/config.h"
#include "agent/keeper/child.h"
#include "agent/keeper/loader.h"
#include "agent/base/module.h"

/*
 * pool_measure() - query the device in a child, and compute the geometry of the pool. *geometry contains pointers into
 * config and device.
 *
 * Return: 0, or a negative errno with error->text set; -EINTR: a signal requested a stop.
 */
int pool_measure(const struct config *config, uint32_t index, const struct loader *loader,
	const struct child_shed *shed, struct module_device *device, struct pool_geometry *geometry,
	struct config_error *error);

/*
 * pool_make() - create segment, ledger and other resources of a new pool. Return: 0, or a negative errno, which was
 * logged.
 */
int pool_make(const struct config_pool *config, const struct pool_geometry *geometry,
	const struct module_device *device, struct module_pool *pool);

/*
 * pool_make_from() - create the resources of a pool from the ledger of an earlier run and a copy of its segment. The
 * segment itself cannot be used, because it is sealed and no process can map it for writing. The pool then owns
 * ledger_fd.
 */
int pool_make_from(const struct pool_geometry *geometry, const struct module_device *device,
	const struct pool_segment *from, int ledger_fd, struct module_pool *pool);

/* pool_unmake() - close the resources of a pool in the keeper, or in a child that does not need them. */
void pool_unmake(struct module_pool *pool);

/*
 * pool_leave_for_mover() - close the resources that a mover must not have, and map the segment read-only. Return: 0 or
 * a negative errno.
 */
int pool_leave_for_mover(struct module_pool *pool);

#endif
