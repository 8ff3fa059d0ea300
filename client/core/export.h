/*
 * export.h - fences of this process for which other processes may wait. Internal to libgpool.
 *
 * By timeline: the first export creates a page of shared memory that only this process can write, and sends the agent a
 * descriptor of it for other sessions of the trust domain. From then on the streams of exported fences write to it,
 * too. By event: each fence uses one of a ring of driver events; an event is recorded again when its work is done and
 * EXPORT_EVENTS - 1 other fences were exported after it.
 */
#ifndef GPOOL_CLIENT_EXPORT_H
#define GPOOL_CLIENT_EXPORT_H

#include "client/core/pool.h"

/* chosen: four times the fences that two engines exchange, and far below the limits of drivers */
enum { EXPORT_EVENTS = 256 };

int export_open(struct gpool *pool);
/* export_close() - free the exports; all streams are closed. */
void export_close(struct gpool *pool);

/* export_key() - return this session's key in tickets; 0: no fence was exported. */
uint64_t export_key(struct gpool *pool);

#endif
