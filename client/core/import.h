/*
 * import.h - fences of other processes, as fences of this process. Internal to libgpool.
 *
 * Each stream of another process of which a fence is imported gets a slot of this session's timeline, a mirror. Its
 * fences have numbers there, in their order. Everything that depends on a fence (a GPU stream, a block that waits to be
 * freed, the agent that would evict it) therefore reads a word of this session's segment, which only this process and
 * its streams write. The word is updated by each query, and by a separate thread for all other waiters: while a fence
 * is open the thread polls after an eighth of the time since the last progress, at least 20 us and at most 1 ms;
 * otherwise it sleeps without a timeout.
 *
 * If a GPU waited for the other process's word directly, the death of that process would block the GPU, and all work
 * queued behind, forever. The thread detects the death through the agent (the session's record) or the driver (an
 * event), and ends the waits. The fence then reports -ESRCH for as long as it is open, so that incomplete data is not
 * taken for complete.
 */
#ifndef GPOOL_CLIENT_IMPORT_H
#define GPOOL_CLIENT_IMPORT_H

#include "client/core/pool.h"

enum {
	IMPORT_EVENTS = 256, /* open events of the driver */
	IMPORT_VIEWS = 64,   /* timelines of other sessions that stay mapped without an open fence */
};

int import_open(struct gpool *pool);
/* import_close() - end all waits for other processes, before the streams are closed. */
void import_close(struct gpool *pool);

#endif
