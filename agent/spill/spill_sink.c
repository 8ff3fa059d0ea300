#include "agent/spill/spill_sink.h"

#include "agent/base/crash_point.h"
#include "agent/pages/pool.h"
#include "agent/pages/session_state.h"

#include <errno.h>
#include <string.h>

enum { SINK_SHARE = 8 }; /* one eighth of the memory tier is kept free for the next spills */

static bool memory_is_short(const struct spill_slots *slots)
{
	const struct spill_tier *memory = &slots->tiers[MOVER_TIER_MEMORY];

	return memory->free_count < memory->count / SINK_SHARE;
}

void spill_sink_some(struct pool *pool)
{
	struct spill *spill = pool->spill;
	struct spill_block *above = TAILQ_FIRST(&spill->aged), *below;
	struct spill_name name;

	if (spill->sinking || !above || !memory_is_short(&spill->slots) || !jobs_served(pool->jobs))
		return;
	name = (struct spill_name){
		.tag = above->tag, .session = above->owner, .owner_id = spill_slot(pool, above, 0)->owner_id};
	below = spill_block_new(pool, NULL, above->owner, above->tag, above->pages);
	if (!below)
		return;
	if (slots_take_file(&spill->slots, &name, above->chain, above->pages, clock_ms(), below->chain)) {
		spill_block_free(pool, below);
		return;
	}
	spill_block_begin(pool, below, SPILL_SINKING);
	below->rises = above;
	above->sunk = below;
	spill->sinking = below;
}

/* Free a chain that is not needed. */
static void sink_undo(struct pool *pool, struct spill_block *below)
{
	spill_block_end(pool, below);
	slots_put(&pool->spill->slots, below->chain, below->pages);
	spill_block_free(pool, below);
	agent_need_tick(pool->agent, SPILL_TIDY_TICK_MS);
}

/* Make the chain in the file the chain of the block, with a single store. */
static void sink_commit(struct pool *pool, struct spill_block *below, struct spill_block *above)
{
	spill_state(pool, below, SLOT_SAVED);
	spill_block_end(pool, below);
	spill_block_stay(pool, above);
	slots_put(&pool->spill->slots, above->chain, above->pages);
	memcpy(above->chain, below->chain, above->pages * sizeof(*above->chain));
	spill_block_free(pool, below);
	agent_need_tick(pool->agent, SPILL_TIDY_TICK_MS);
}

void spill_sink_end(struct pool *pool, struct spill_block *below)
{
	struct spill_block *above = below->rises;

	if (pool->spill->sinking == below)
		pool->spill->sinking = NULL;
	if (above && !below->error) {
		sink_commit(pool, below, above);
		return;
	}
	/*
	 * A damaged block stays in memory until it is requested and the damage reported. A block that could not be
	 * written becomes the last candidate.
	 */
	if (above && below->error == -EBADMSG)
		spill_block_stay(pool, above);
	else if (above)
		spill_block_rest(pool, above);
	sink_undo(pool, below);
}

void spill_sink_recover(struct pool *pool, struct spill_block *below, bool busy)
{
	if (!busy) {
		slots_put(&pool->spill->slots, below->chain, below->pages);
		spill_block_free(pool, below);
		return;
	}
	/* The id of the session may soon be assigned to another one. */
	for (uint32_t i = below->pages; i-- > 0;)
		spill_slot(pool, below, i)->session = 0;
	crash_point();
	spill_block_begin(pool, below, SPILL_SINKING);
}
