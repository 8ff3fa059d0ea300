/*
 * flight.h - the records that a worker writes to its ring of the flight recorder (shm/flight.h). Internal to libgpool.
 *
 * Slow paths record what they waited for. Allocations and frees are recorded for at most one block in 256, chosen by
 * the tag's sequence, so that both the begin and the end of a block's life are recorded: the allocation of such a block
 * is out of line in any case, to be timed, and a free checks bits of the tag that it has in a register.
 */
#ifndef GPOOL_CLIENT_FLIGHT_H
#define GPOOL_CLIENT_FLIGHT_H

#include "client/core/pool.h"

/*
 * flight_tell() - record an event of this session, at the present time. begun_ns: monotonic_ns() when it began; 0: an
 * instant. Any thread may call it.
 */
void flight_tell(const struct gpool *pool, const struct flight_entry *entry, uint64_t begun_ns) COLD;

/* flight_tell_block() - record FLIGHT_ALLOCATE or FLIGHT_FREE if the block is one of those that are sampled. */
void flight_tell_block(
	const struct gpool *pool, enum flight_kind kind, const struct gpool_block *block, uint64_t begun_ns) COLD;

/* flight_may_tell() - return false if the block is certainly not sampled. */
static inline bool flight_may_tell(uint64_t tag)
{
	return (tag >> BLOCK_SEQUENCE_SHIFT & (FLIGHT_SAMPLING_LEAST - 1)) == 0;
}

#endif
