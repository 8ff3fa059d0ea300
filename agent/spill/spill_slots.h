/*
 * spill_slots.h - the slots of spilled pages: free slots of the ledger, chains of used slots, and the two tiers.
 *
 * A slot holds one page in a tier: host memory, which is used first, or a file. The slots of a block form a chain; see
 * struct ledger_slot. The ledger alone determines which slots are used, so a restarted agent finds the same ones; the
 * stacks in this file are an index. Time and memory depend on the number of slots that have been used, because
 * spill_memory and spill_file may be much larger than what is ever spilled.
 */
#ifndef GPOOL_AGENT_SPILL_SLOTS_H
#define GPOOL_AGENT_SPILL_SLOTS_H

#include "agent/base/ledger.h"
#include "agent/mover/ring.h"

struct spill_tier {
	int fd;                /* -1: none */
	bool punch;            /* return the space of free slots to the system after some time */
	uint32_t first, count; /* range of slots */
	uint32_t begun; /* the first slots, which may have been used; the others are free, and not on the stack */
	uint32_t *free; /* [stacked] stack: the slots freed last, whose memory is still allocated, on top */
	uint32_t stacked;
	uint32_t free_count; /* free slots, on the stack or not */
	uint32_t dirty;      /* free slots whose space has not been returned */
	uint64_t rest_ms;    /* time before which nothing is written, after the disk was full or failed */
};

struct spill_slots {
	const struct ledger *ledger;
	uint64_t page_bytes;
	struct spill_tier tiers[MOVER_TIERS];
	uint8_t *dirty;   /* [slot_count] 0: not free, or its space was returned; otherwise it decreases with time */
	uint64_t aged_ms; /* time when `dirty` was last decreased */
};

/* The identity of a block, as stored in its slots. */
struct spill_name {
	uint64_t tag;
	uint64_t owner_id;
	uint32_t session;
};

struct spill_source {
	uint32_t page;
	uint64_t generation;
};

/*
 * slots_open() - build the index of free slots from the ledger. ledger_fd: the file of the ledger, whose allocated
 * parts show which slots may have been used. The caller owns the descriptors. Return: 0, -ENOMEM.
 */
int slots_open(struct spill_slots *slots, const struct ledger *ledger, int ledger_fd, uint64_t page_bytes);
void slots_close(struct spill_slots *slots);

/*
 * slots_begun() - return the first slot from `slot` on that may have been used; the number of slots of the ledger if
 * there is none. All others are free.
 */
uint32_t slots_begun(const struct spill_slots *slots, uint32_t slot);

/*
 * slots_array() - return a zeroed array with an entry of `bytes` bytes for each slot, of which only written parts use
 * memory; NULL: out of memory. slots_array_free() accepts NULL.
 */
void *slots_array(uint32_t slot_count, size_t bytes);
void slots_array_free(void *array, uint32_t slot_count, size_t bytes);

/* slots_room() - return the number of pages that can be saved now. */
uint32_t slots_room(const struct spill_slots *slots, uint64_t now_ms);

/*
 * slots_take() - create a chain for `pages` pages with state SLOT_SAVING, using memory first, and store it in
 * chain[pages]. If the agent dies, the ledger contains either the whole chain or a part without the head, which does
 * not count as a chain. Return: 0, or -ENOSPC with nothing taken.
 */
int slots_take(struct spill_slots *slots, const struct spill_name *name, const struct spill_source *sources,
	uint32_t pages, uint64_t now_ms, uint32_t *chain);

/*
 * slots_take_file() - create a chain in the file with state SLOT_SINKING, for the content of the chain `from`, with the
 * same checksums. Its slots refer to no pages.
 */
int slots_take_file(struct spill_slots *slots, const struct spill_name *name, const uint32_t *from, uint32_t pages,
	uint64_t now_ms, uint32_t *chain);

/* slots_put() - free a chain that no job uses. The head is freed first, so that the rest does not count as a chain. */
void slots_put(struct spill_slots *slots, const uint32_t *chain, uint32_t pages);

/*
 * slots_chain() - return in `chain` the chain that begins in slot `head`. Return: false if none begins there, or if it
 * is incomplete.
 */
bool slots_chain(const struct ledger *ledger, uint32_t head, uint32_t *chain);

/* slots_tier() - return the tier of a slot; *place receives its index there. */
enum mover_tier slots_tier(const struct spill_slots *slots, uint32_t slot, uint32_t *place);

static inline uint32_t slots_used(const struct spill_slots *slots, enum mover_tier tier)
{
	return slots->tiers[tier].count - slots->tiers[tier].free_count;
}

/*
 * slots_soil() - mark all free slots that may have been used as dirty, because after a restart it is unknown which ones
 * have allocated space.
 */
void slots_soil(struct spill_slots *slots);

/*
 * slots_tidy() - return the space of some slots that have been free for one to two seconds to the system. Return: the
 * number of milliseconds after which another call is needed; 0: no further call is needed.
 */
uint32_t slots_tidy(struct spill_slots *slots, uint64_t now_ms);

#endif
