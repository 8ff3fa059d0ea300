/*
 * spill_sink.h - move spilled blocks from memory to the file to make room in memory. For spill*.c only.
 *
 * A block that sinks stays SAVED in its memory slots. The mover copies it to a second chain of slots in the file, with
 * state SLOT_SINKING. A single store makes that chain SAVED, then the memory slots are freed. If the block is requested
 * before that store, it is served from memory, and the second chain is freed after its last job.
 */
#ifndef GPOOL_AGENT_SPILL_SINK_H
#define GPOOL_AGENT_SPILL_SINK_H

#include "agent/spill/spill_block.h"

/* sink jobs in the ring at a time: one per lane, to limit the delay of requested jobs */
enum { SINK_JOBS = 4 };

/*
 * spill_sink_some() - begin to sink the block that was saved first, if memory is short, the file has room, and no block
 * is sinking.
 */
void spill_sink_some(struct pool *pool);

/* spill_sink_end() - complete a sink after its last job. */
void spill_sink_end(struct pool *pool, struct spill_block *block);

/*
 * spill_sink_recover() - free an unneeded chain of a block that was sinking or had just sunk. busy: the ring has a job
 * for it.
 */
void spill_sink_recover(struct pool *pool, struct spill_block *block, bool busy);

#endif
