/*
 * export.h - export fences of this process, so that other processes can wait for them. Internal to libgpool.
 *
 * Export by timeline: the first such export creates a page of shared memory that only this process can write. The agent
 * gets a descriptor of the page, for other sessions of the trust domain. After that, the streams of exported fences
 * also write their progress to this page.
 *
 * Export by event: each exported fence uses a driver event from a ring. An event is reused when its work is done and
 * EXPORT_EVENTS - 1 other fences have been exported after it.
 */
#ifndef GPOOL_CLIENT_EXPORT_H
#define GPOOL_CLIENT_EXPORT_H

#include "client/core/pool.h"

/* chosen: four times the number of fences that two engines exchange, and far below the limits of drivers */
enum { EXPORT_EVENTS = 256 };

int export_open(struct gpool *pool);
/* export_close() - free the exports. All streams must be closed. */
void export_close(struct gpool *pool);

/* export_key() - return the key of this session in tickets, or 0 if no fence has been exported. */
uint64_t export_key(struct gpool *pool);

#endif
