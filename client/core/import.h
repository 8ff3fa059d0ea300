/*
 * import.h - fences of other processes, as fences of ours. Internal to libgpool.
 *
 * Each stream of another process of which a fence is imported gets a slot of our own timeline, a mirror. Its fences
 * have numbers of ours there, in their order. So whatever goes by a fence, a GPU stream, a block that waits to be
 * freed, the agent that would evict it, goes by a word of our own segment, which nobody but us and our streams writes.
 * Somebody has to bring it up to date: whoever asks does, and a thread of ours for the others: while a fence is open it
 * looks again after an eighth of the time that nothing has come, at least 20 us and at most 1 ms, and else it sleeps
 * for good.
 *
 * A GPU that waited for the other process's word itself would wait for ever when that process dies, and with it
 * whatever else is queued there. The thread hears of the death from the agent (the session's record), or from the
 * driver (an event), and lets go of those that wait: the fence then says -ESRCH for as long as it is open, so that
 * nobody takes for written what may not be.
 */
#ifndef GPOOL_CLIENT_IMPORT_H
#define GPOOL_CLIENT_IMPORT_H

#include "client/core/pool.h"

enum {
	IMPORT_EVENTS = 256, /* of the driver, open at a time */
	IMPORT_VIEWS = 64,   /* timelines of others that are kept mapped although no fence of theirs is open */
};

int import_open(struct gpool *pool);
/* import_close() - before the streams are: whatever waits for another process goes on. */
void import_close(struct gpool *pool);

/* import_look() - of a fence in a mirror: 1 reached, 0 not yet, -ESRCH, -EPIPE. */
int import_look(struct gpool *pool, struct gpool_fence fence);

/* import_hold() - a block of ours waits for a fence in a mirror, also when it is closed. */
void import_hold(struct gpool *pool, struct gpool_fence fence);

/* import_stream_wait() - make a stream of ours wait for a fence in a mirror. The caller holds the stream's lock. */
int import_stream_wait(struct gpool *pool, struct gpu_stream *stream, struct gpool_fence fence);

#endif
