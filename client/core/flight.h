/*
 * flight.h - the records that a worker writes to its ring of the flight recorder (shm/flight.h). Internal to libgpool.
 *
 * Slow paths record the cause of their wait. Allocations and frees are recorded for at most one block in 256. The
 * sequence in the tag selects the block, so both its allocation and its free are recorded. The cost is low: the
 * allocation of such a block is measured in any case, out of line, and a free tests bits of the tag that it already has
 * in a register.
 */
#ifndef GPOOL_CLIENT_FLIGHT_H
#define GPOOL_CLIENT_FLIGHT_H

#include "client/core/pool.h"

/*
 * flight_tell() - record an event of this session that ends now. begun_ns: monotonic_ns() at its start; 0: the event
 * has no duration. Any thread may call it.
 */
void flight_tell(const struct gpool *pool, const struct flight_entry *entry, uint64_t begun_ns) COLD;

/* flight_tell_block() - record FLIGHT_ALLOCATE or FLIGHT_FREE if the block is sampled. */
void flight_tell_block(
	const struct gpool *pool, enum flight_kind kind, const struct gpool_block *block, uint64_t begun_ns) COLD;

/* flight_may_tell() - return false if the block is certainly not sampled. */
static inline bool flight_may_tell(uint64_t tag)
{
	return (tag >> BLOCK_SEQUENCE_SHIFT & (FLIGHT_SAMPLING_LEAST - 1)) == 0;
}

#endif
