/*
 * spill_block.h - a block that is being saved or loaded: its slots, pages and request. spill.c begins and ends saving
 * and loading; spill_recover.c completes or undoes them after the death of an agent.
 */
#ifndef GPOOL_AGENT_SPILL_BLOCK_H
#define GPOOL_AGENT_SPILL_BLOCK_H

#include "agent/spill/spill.h"

/* ---- blocks ---- */

/*
 * spill_block_new() - create a block. session NULL: the session has ended, and had the id `owner`. Return: NULL if out
 * of memory.
 */
struct spill_block *spill_block_new(
	struct pool *pool, struct session *session, uint32_t owner, uint64_t tag, uint32_t pages);
/*
 * spill_block_free() - free the block. spill_block_drop() - also free its slots. spill_block_forget() - only remove the
 * block from its session, because the mover has jobs for it.
 */
void spill_block_free(struct pool *pool, struct spill_block *block);
void spill_block_drop(struct pool *pool, struct spill_block *block);
void spill_block_forget(struct pool *pool, struct spill_block *block);
struct spill_block *spill_block_find(const struct pool *pool, uint32_t owner, uint64_t tag);

/* spill_block_rest() - mark a block as SAVED. If all of it is in memory, it becomes the last candidate for sinking. */
void spill_block_rest(struct pool *pool, struct spill_block *block);
/* spill_block_stay() - remove a block from the candidates for sinking. */
void spill_block_stay(struct pool *pool, struct spill_block *block);

/* spill_block_begin() - record that the jobs of a block begin. spill_block_end() - record that they have finished. */
void spill_block_begin(struct pool *pool, struct spill_block *block, enum spill_phase phase);
void spill_block_end(struct pool *pool, struct spill_block *block);
/* spill_saving_count() - add `pages` to the counts of pages being saved of the pool, session and tenant. */
void spill_saving_count(struct pool *pool, const struct spill_block *block, int64_t pages);

/*
 * spill_block_answer() - answer the request for a block. Return: true if the requester was still waiting; false: the
 * caller must give the request back with spill_block_answered().
 */
bool spill_block_answer(const struct spill_block *block, int error);
void spill_block_answered(struct spill_block *block);

/* ---- slots ---- */

struct ledger_slot *spill_slot(const struct pool *pool, const struct spill_block *block, uint32_t index);
/*
 * spill_state() - set the state of a block in its first slot. This single store determines how the block is recovered.
 */
void spill_state(const struct pool *pool, const struct spill_block *block, enum ledger_slot_state state);

/* ---- pages ---- */

/*
 * spill_sources_read() - read the pages of a block from its untrusted entry into spill->sources. Return: false unless
 * there are exactly `pages` pages, each once, all leased to the session (`head` may be EVICTING).
 */
bool spill_sources_read(struct session *session, uint32_t head, uint64_t tag, uint32_t pages);
void spill_pages_move(struct pool *pool, const struct spill_block *block);
/*
 * spill_pages_hold() - change to MOVING the pages that are still as recorded in the slots. Return: false unless all of
 * them are.
 */
bool spill_pages_hold(struct pool *pool, const struct spill_block *block);
/* spill_pages_give_back() - change the pages of a block from MOVING to LEASED. */
void spill_pages_give_back(struct pool *pool, const struct spill_block *block);
/*
 * spill_pages_take() - free the pages from which a block was saved, except those that the previous agent has already
 * freed.
 */
void spill_pages_take(struct pool *pool, struct spill_block *block);
/*
 * spill_load_leave() - end a load that was not completed: free pages that were lent for it; the others become LEASED.
 */
void spill_load_leave(struct pool *pool, struct spill_block *block);
/*
 * spill_pages_forget() - clear the generations in the slots of a block. They must not refer to pages that are no longer
 * MOVING and may be reused. 0 is not the generation of any page.
 */
void spill_pages_forget(const struct pool *pool, const struct spill_block *block);

#endif
