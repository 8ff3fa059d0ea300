/*
 * spill_block.h - a block being saved or loaded: its slots, its pages, and its request. spill.c makes the decisions
 * about blocks, and spill_recover.c recovers them after the death of an agent.
 */
#ifndef GPOOL_AGENT_SPILL_BLOCK_H
#define GPOOL_AGENT_SPILL_BLOCK_H

#include "agent/spill/spill.h"

/* ---- blocks ---- */

/* spill_block_new() - create a block. session NULL: it has ended, and had the id `owner`. NULL: out of memory. */
struct spill_block *spill_block_new(
	struct pool *pool, struct session *session, uint32_t owner, uint64_t tag, uint32_t pages);
/*
 * spill_block_free() - free the block. spill_block_drop() - also free its slots. spill_block_forget() - only remove it
 * from its session, since the mover has jobs of it.
 */
void spill_block_free(struct pool *pool, struct spill_block *block);
void spill_block_drop(struct pool *pool, struct spill_block *block);
void spill_block_forget(struct pool *pool, struct spill_block *block);
struct spill_block *spill_block_find(const struct pool *pool, uint32_t owner, uint64_t tag);

/* spill_block_rest() - mark a block as SAVED, the last candidate for sinking if all of it is in memory. */
void spill_block_rest(struct pool *pool, struct spill_block *block);
/* spill_block_stay() - remove it from the candidates for sinking. */
void spill_block_stay(struct pool *pool, struct spill_block *block);

/* spill_block_begin() - record that its jobs begin. spill_block_end() - record that they are finished. */
void spill_block_begin(struct pool *pool, struct spill_block *block, enum spill_phase phase);
void spill_block_end(struct pool *pool, struct spill_block *block);
/* spill_saving_count() - add to the counts of pages being saved, of its session and tenant. */
void spill_saving_count(struct pool *pool, const struct spill_block *block, int64_t pages);

/*
 * spill_block_answer() - answer its request. True: the requester was still waiting; false: spill_block_answered() must
 * give the request back.
 */
bool spill_block_answer(const struct spill_block *block, int error);
void spill_block_answered(struct spill_block *block);

/* ---- its slots ---- */

struct ledger_slot *spill_slot(const struct pool *pool, const struct spill_block *block, uint32_t index);
/* spill_state() - set the state of the block in its first slot: one store, which determines its recovery. */
void spill_state(const struct pool *pool, const struct spill_block *block, enum ledger_slot_state state);

/* ---- its pages ---- */

/*
 * spill_sources_read() - read the pages of a block from its untrusted entry into spill->sources: exactly `pages`, each
 * once, all leased to the session; `head` may be EVICTING. False: they are invalid.
 */
bool spill_sources_read(struct session *session, uint32_t head, uint64_t tag, uint32_t pages);
void spill_pages_move(struct pool *pool, const struct spill_block *block);
/* spill_pages_hold() - make the pages that are as recorded in the slots MOVING. False: not all of them are. */
bool spill_pages_hold(struct pool *pool, const struct spill_block *block);
/* spill_pages_give_back() - change its pages from MOVING to LEASED. */
void spill_pages_give_back(struct pool *pool, const struct spill_block *block);
/* spill_pages_take() - free the pages from which it was saved, except those that the last agent has freed. */
void spill_pages_take(struct pool *pool, struct spill_block *block);
/* spill_load_leave() - after a load that was not completed: free pages that were lent for it; others are LEASED. */
void spill_load_leave(struct pool *pool, struct spill_block *block);
/*
 * spill_pages_forget() - clear the generations in its slots, so that they do not refer to pages that are not MOVING and
 * may be used otherwise. 0 is no page's generation.
 */
void spill_pages_forget(const struct pool *pool, const struct spill_block *block);

#endif
