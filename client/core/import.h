/*
 * import.h - import fences of other processes as fences of this process. Internal to libgpool.
 *
 * Each imported stream of another process gets a slot of this session's timeline, its mirror. The mirror numbers the
 * imported fences of the stream in order. All users of such a fence therefore read a word of this session's segment,
 * which only this process and its streams write. Users are GPU streams, blocks that wait to be freed, and the agent
 * when it evicts such a block.
 *
 * A query updates the word. For all other users, a separate thread updates it. While an unsignaled fence is open, this
 * thread polls; the interval is an eighth of the time since the last import or progress, at least 20 us and at most 1
 * ms. It checks every 100 ms whether the process of a failed GPU has ended, and whether this process's device has
 * failed while exported fences are not signaled. Otherwise the thread sleeps without a timeout.
 *
 * If a GPU waited for the other process's word directly, the death of that process would block the GPU, and all work
 * that is queued after the wait, forever. The thread detects such a death through the agent (the record of the session)
 * or the driver (an event), and ends the waits. The fence then reports -ESRCH until it is closed, so that incomplete
 * data is not taken for complete. If the agent is gone, which would report deaths, the waits end with -EPIPE.
 *
 * If the GPU of the other process has failed, its timeline page contains a mark, and the fence reports -EIO. Work of
 * that process may still be running, so blocks continue to wait until the process has ended; only the waits of threads
 * and GPU streams end.
 */
#ifndef GPOOL_CLIENT_IMPORT_H
#define GPOOL_CLIENT_IMPORT_H

#include "client/core/pool.h"

enum {
	IMPORT_EVENTS = 256, /* open events of the driver */
	IMPORT_VIEWS = 64,   /* maximum number of timelines of other sessions that stay mapped without an open fence */
};

int import_open(struct gpool *pool);
/* import_watch() - let the thread call stream_watch() until it returns false. Return: 0, -ENOMEM. */
int import_watch(struct gpool *pool);
/* import_close() - end all waits for other processes, before the streams are closed. */
void import_close(struct gpool *pool);

#endif
