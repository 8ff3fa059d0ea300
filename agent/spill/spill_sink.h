/*
 * spill_sink.h - spilled blocks that go from the memory tier down to the file, so that what is spilled next finds
 * memory. Internal to spill*.c.
 *
 * A block that sinks is SAVED all the time, in its slots of memory. Another chain of slots, in the file, in state
 * SLOT_SINKING, is filled from them by the mover. One store makes that SAVED; then the slots of memory are freed. Who
 * wants the block before that has it out of memory, as if nothing were going on, and the other chain is freed when its
 * last job is done.
 */
#ifndef GPOOL_AGENT_SPILL_SINK_H
#define GPOOL_AGENT_SPILL_SINK_H

#include "agent/spill/spill_block.h"

/* in the ring at a time: one for each lane, so that what somebody waits for is never far behind */
enum { SINK_JOBS = 4 };

/*
 * spill_sink_some() - begin to sink the block that was saved first, if memory is short, the file has room, and none is
 * sinking.
 */
void spill_sink_some(struct pool *pool);

/* spill_sink_end() - the last job is done. */
void spill_sink_end(struct pool *pool, struct spill_block *block);

/*
 * spill_sink_recover() - a chain that nobody needs, of a block that sank or had just sunk. busy: a job of it is in the
 * ring.
 */
void spill_sink_recover(struct pool *pool, struct spill_block *block, bool busy);

#endif
