/*
 * spill_slots.h - the places of spilled pages: free slots of the ledger, chains of used ones, and the two tiers.
 *
 * A slot is the place of a page in a tier: in host memory, which is used first, or in a file. The slots of one block
 * are a chain; see struct ledger_slot. Only the ledger determines which slots are used, so a restarted agent finds the
 * same; the stacks here are an index.
 */
#ifndef GPOOL_AGENT_SPILL_SLOTS_H
#define GPOOL_AGENT_SPILL_SLOTS_H

#include "agent/base/ledger.h"
#include "agent/mover/ring.h"

/* One tier. */
struct spill_tier {
	int fd;                /* -1: none */
	bool punch;            /* the space of free slots is returned to the system after some time */
	uint32_t first, count; /* slots */
	uint32_t *free;        /* [free_count] the most recent on top, whose memory is still allocated */
	uint32_t free_count;
	uint32_t dirty;   /* free slots whose space is not returned yet */
	uint64_t rest_ms; /* not written before this time: the disk was full, or failed */
};

struct spill_slots {
	const struct ledger *ledger;
	uint64_t page_bytes;
	struct spill_tier tiers[MOVER_TIERS];
	uint8_t *dirty; /* [slot_count] */
};

/* The identity of a block, in its slots. */
struct spill_name {
	uint64_t tag;
	uint64_t owner_id;
	uint32_t session;
};

/* A page to be saved. */
struct spill_source {
	uint32_t page;
	uint64_t generation;
};

/*
 * slots_open() - build the index of the slots that are free in the ledger. The caller owns the descriptors. 0, -ENOMEM.
 */
int slots_open(struct spill_slots *slots, const struct ledger *ledger, uint64_t page_bytes);
void slots_close(struct spill_slots *slots);

/* slots_room() - return the number of pages that could be saved now. */
uint32_t slots_room(const struct spill_slots *slots, uint64_t now_ms);

/*
 * slots_take() - create a chain for `pages` pages, memory first, in state SLOT_SAVING, and store it in chain[pages]. If
 * the agent dies, the ledger has the whole chain, or a part without its head, which is not a chain. Return: 0, or
 * -ENOSPC, and nothing is taken.
 */
int slots_take(struct spill_slots *slots, const struct spill_name *name, const struct spill_source *sources,
	uint32_t pages, uint64_t now_ms, uint32_t *chain);

/*
 * slots_take_file() - create a chain in the file for the content of the chain `from`, with its checksums, in state
 * SLOT_SINKING. Its slots refer to no pages.
 */
int slots_take_file(struct spill_slots *slots, const struct spill_name *name, const uint32_t *from, uint32_t pages,
	uint64_t now_ms, uint32_t *chain);

/* slots_put() - free a chain that no job uses: its head first, so that the rest is not a chain. */
void slots_put(struct spill_slots *slots, const uint32_t *chain, uint32_t pages);

/* slots_chain() - return the chain that begins in slot `head`. False: none begins there, or it is incomplete. */
bool slots_chain(const struct ledger *ledger, uint32_t head, uint32_t *chain);

/* slots_tier() - return the tier of a slot, and its place there. */
enum mover_tier slots_tier(const struct spill_slots *slots, uint32_t slot, uint32_t *place);

/* slots_used() - return the number of used slots of a tier. */
static inline uint32_t slots_used(const struct spill_slots *slots, enum mover_tier tier)
{
	return slots->tiers[tier].count - slots->tiers[tier].free_count;
}

/* slots_soil() - mark all free slots as dirty: after a restart it is unknown which have allocated space. */
void slots_soil(struct spill_slots *slots);

/* slots_tidy() - return the space of some free slots to the system. Return: true if more are left. */
bool slots_tidy(struct spill_slots *slots);

#endif
