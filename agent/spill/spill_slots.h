/*
 * spill_slots.h - where spilled pages lie: which slots of the ledger are free, chains of those that are not, and the
 * two tiers behind them.
 *
 * A slot is a page's place in a tier: in host memory, which is used first, or in a file. The slots of one block are a
 * chain; see struct ledger_slot. The ledger alone decides what is taken, so a restarted agent finds the same; the
 * stacks here are an index.
 */
#ifndef GPOOL_AGENT_SPILL_SLOTS_H
#define GPOOL_AGENT_SPILL_SLOTS_H

#include "agent/base/ledger.h"
#include "agent/mover/ring.h"

/* The budget of one tier. */
struct spill_tier {
	int fd;                /* -1: there is none */
	bool punch;            /* what a slot held goes back to the system some time after it is free */
	uint32_t first, count; /* slots */
	uint32_t *free;        /* [free_count] the latest on top: its memory is still there */
	uint32_t free_count;
	uint32_t dirty;   /* free slots that may still hold something */
	uint64_t rest_ms; /* not written to before: the disk was full, or failed */
};

struct spill_slots {
	const struct ledger *ledger;
	uint64_t page_bytes;
	struct spill_tier tiers[MOVER_TIERS];
	uint8_t *dirty; /* [slot_count] */
};

/* What a block is known by, in its slots. */
struct spill_name {
	uint64_t tag;
	uint64_t owner_id;
	uint32_t session;
};

/* A page that is saved: where from. */
struct spill_source {
	uint32_t page;
	uint64_t generation;
};

/*
 * slots_open() - the free ones are those that the ledger says are free. The descriptors stay the caller's. 0, -ENOMEM.
 */
int slots_open(struct spill_slots *slots, const struct ledger *ledger, uint64_t page_bytes);
void slots_close(struct spill_slots *slots);

/* slots_room() - how many pages could be saved now. */
uint32_t slots_room(const struct spill_slots *slots, uint64_t now_ms);

/*
 * slots_take() - a chain for `pages` pages, memory first, in state SLOT_SAVING; chain[pages] receives it. The ledger
 * shows the chain or a part without its end, which is none. Return: 0, or -ENOSPC, and nothing is taken.
 */
int slots_take(struct spill_slots *slots, const struct spill_name *name, const struct spill_source *sources,
	uint32_t pages, uint64_t now_ms, uint32_t *chain);

/*
 * slots_take_file() - likewise, but in the file, for what is in the chain `from`, with its checksums, in state
 * SLOT_SINKING; they name no pages.
 */
int slots_take_file(struct spill_slots *slots, const struct spill_name *name, const uint32_t *from, uint32_t pages,
	uint64_t now_ms, uint32_t *chain);

/* slots_put() - a chain that no job uses any more is free: its head first, so that what is left of it is no chain. */
void slots_put(struct spill_slots *slots, const uint32_t *chain, uint32_t pages);

/* slots_chain() - the chain that begins in slot `head`. False: none begins there, or it is not whole. */
bool slots_chain(const struct ledger *ledger, uint32_t head, uint32_t *chain);

/* slots_tier() - which tier a slot is in, and its place there. */
enum mover_tier slots_tier(const struct spill_slots *slots, uint32_t slot, uint32_t *place);

/* slots_used() - of one tier. */
static inline uint32_t slots_used(const struct spill_slots *slots, enum mover_tier tier)
{
	return slots->tiers[tier].count - slots->tiers[tier].free_count;
}

/* slots_soil() - after a restart nobody knows which free slots hold something. */
void slots_soil(struct spill_slots *slots);

/* slots_tidy() - give what some free slots held back to the system. Returns whether more of them are left. */
bool slots_tidy(struct spill_slots *slots);

#endif
