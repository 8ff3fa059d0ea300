/* flight.c - write a worker's flight records; see flight.h. */
#include "client/core/flight.h"

#include "client/core/block.h"

void flight_tell(const struct gpool *pool, const struct flight_entry *entry, uint64_t begun_ns)
{
	struct flight_entry told = *entry;

	if (!pool->header->flight_records)
		return;
	told.session = (uint16_t)pool->id;
	told.duration_ns = begun_ns ? monotonic_ns() - begun_ns : 0;
	told.time_ns = flight_now();
	flight_write(&pool->session.flight, &told, NULL);
}

void flight_tell_block(
	const struct gpool *pool, enum flight_kind kind, const struct gpool_block *block, uint64_t begun_ns)
{
	uint32_t sampling = atomic_load_explicit(&pool->header->flight_sampling, memory_order_relaxed);

	/* The rate is a power of two, but another process wrote it, so it is not used as a divisor. */
	if (!sampling || block->tag >> BLOCK_SEQUENCE_SHIFT & (sampling - 1))
		return;
	flight_tell(pool,
		&(struct flight_entry){
			.kind = kind,
			.page = block->page,
			.pages = block->page_count,
			.tag = block->tag,
			.value = atomic_load_explicit(&block_entry(pool, block->page)->owner_id, memory_order_relaxed),
		},
		begun_ns);
}
