/*
 * import.h - fences of other processes, as fences of this process. Internal to libgpool.
 *
 * Each stream of another process of which a fence is imported gets a slot of this session's timeline, a mirror. Its
 * fences have numbers there, in their order. So everything that depends on a fence (a GPU stream, a block that waits to
 * be freed, the agent that would evict it) reads a word of this session's segment, which only this process and its
 * streams write. The word is updated by each query, and by a thread of its own for all other waiters: while a fence is
 * open the thread polls after an eighth of the time since the last progress, at least 20 us and at most 1 ms; otherwise
 * it sleeps without a timeout.
 *
 * If a GPU waited for the other process's word directly, it would wait for ever when that process dies, together with
 * everything queued behind. The thread learns of the death from the agent (the session's record) or from the driver (an
 * event), and ends the waits. The fence then reports -ESRCH for as long as it is open, so that incomplete data is not
 * taken for complete.
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

#endif
