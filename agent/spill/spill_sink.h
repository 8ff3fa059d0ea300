/*
 * spill_sink.h - moving spilled blocks from memory to the file, so that there is memory for the next ones. Internal to
 * spill*.c.
 *
 * A block that sinks stays SAVED in its slots of memory. The mover copies it to a second chain of slots, in the file,
 * in state SLOT_SINKING. One store makes that chain SAVED; then the slots of memory are freed. A request for the block
 * before that is served from memory, and the second chain is freed when its last job has finished.
 */
#ifndef GPOOL_AGENT_SPILL_SINK_H
#define GPOOL_AGENT_SPILL_SINK_H

#include "agent/spill/spill_block.h"

/* in the ring at a time: one per lane, so that jobs for which a request waits are not delayed much */
enum { SINK_JOBS = 4 };

/*
 * spill_sink_some() - begin to sink the block that was saved first, if memory is short, the file has room, and no other
 * block is sinking.
 */
void spill_sink_some(struct pool *pool);

/* spill_sink_end() - complete a sink after its last job. */
void spill_sink_end(struct pool *pool, struct spill_block *block);

/*
 * spill_sink_recover() - free a chain that is not needed, of a block that was sinking or had just sunk. busy: a job of
 * it is in the ring.
 */
void spill_sink_recover(struct pool *pool, struct spill_block *block, bool busy);

#endif
