/*
 * stream.h - streams whose progress stands in the session's timeline. Internal to libgpool.
 *
 * The number that programs get is slot | times the slot was opened << 8, so that a closed stream's number is refused. The values
 * of a slot go on where its last stream left off: a fence of a stream that is closed is reached for good.
 */
#ifndef GPOOL_CLIENT_STREAM_H
#define GPOOL_CLIENT_STREAM_H

#include "client/pool.h"

int stream_open_all(struct gpool *pool);
/* stream_close_all() - waits for all queued work. */
void stream_close_all(struct gpool *pool);

/* stream_sync_all() - wait for all work queued so far on streams that are not manual: 0, or what the back end said. */
int stream_sync_all(struct gpool *pool);

/* stream_slot_of() - of an open stream: 0, -EINVAL. */
int stream_slot_of(struct gpool *pool, uint32_t stream, uint32_t *slot);

/* fence_check() - 0, or -EINVAL: no stream has recorded such a fence. */
int fence_check(struct gpool *pool, struct gpool_fence fence);

#endif
