/*
 * export.h - fences of ours that other processes may wait for. Internal to libgpool.
 *
 * By timeline: the first export makes a page of shared memory that we alone can write, and gives the agent a descriptor
 * of it for others of our trust domain. From then on the streams of exported fences write there too. By event: one of
 * the driver's events for each fence, out of a ring; one is recorded anew when its work is done and EXPORT_EVENTS - 1
 * others were exported after it.
 */
#ifndef GPOOL_CLIENT_EXPORT_H
#define GPOOL_CLIENT_EXPORT_H

#include "client/core/pool.h"

/* chosen: four times the fences that two engines have between them, and far below what drivers bear */
enum { EXPORT_EVENTS = 256 };

int export_open(struct gpool *pool);
/* export_close() - all streams are closed. */
void export_close(struct gpool *pool);

/* export_key() - ours in tickets; 0: nothing was exported. */
uint64_t export_key(struct gpool *pool);

#endif
