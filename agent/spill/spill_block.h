/*
 * spill_block.h - one block on its way out of the pool or back: its slots, its pages, and the request that it is moved
 * for. What is decided about blocks stands in spill.c, and what becomes of them after a death in spill_recover.c.
 */
#ifndef GPOOL_AGENT_SPILL_BLOCK_H
#define GPOOL_AGENT_SPILL_BLOCK_H

#include "agent/spill/spill.h"

/* ---- blocks ---- */

/* session NULL: it has ended, and had the id `owner`. NULL: no memory. */
struct spill_block *spill_block_new(
	struct pool *pool, struct session *session, uint32_t owner, uint64_t tag, uint32_t pages);
/*
 * spill_block_free() - what is known of it; spill_block_drop() - and its slots; spill_block_forget() - only whose it
 * is: the mover has it.
 */
void spill_block_free(struct pool *pool, struct spill_block *block);
void spill_block_drop(struct pool *pool, struct spill_block *block);
void spill_block_forget(struct pool *pool, struct spill_block *block);
struct spill_block *spill_block_find(const struct pool *pool, uint32_t owner, uint64_t tag);

/* spill_block_rest() - it is SAVED, and of those that may sink the last one, if it is all in memory. */
void spill_block_rest(struct pool *pool, struct spill_block *block);
/* spill_block_stay() - it shall not sink, or no more. */
void spill_block_stay(struct pool *pool, struct spill_block *block);

/*
 * spill_block_begin() - its jobs begin. spill_block_end() - they are done: it stands in the slots, or is about to go.
 */
void spill_block_begin(struct pool *pool, struct spill_block *block, enum spill_phase phase);
void spill_block_end(struct pool *pool, struct spill_block *block);
/* Pages of its session and tenant that are being saved: so many more. */
void spill_saving_count(struct pool *pool, const struct spill_block *block, int64_t pages);

/* spill_block_answer() - true: the asker had not given up; false: spill_block_answered() must give the request back. */
bool spill_block_answer(const struct spill_block *block, int error);
void spill_block_answered(struct spill_block *block);

/* ---- its slots ---- */

struct ledger_slot *spill_slot(const struct pool *pool, const struct spill_block *block, uint32_t index);
/* What the first slot says of the block: one store, by which a successor goes. */
void spill_state(const struct pool *pool, const struct spill_block *block, enum ledger_slot_state state);

/* ---- its pages ---- */

/*
 * spill_sources_read() - the pages of a block, by its hostile entry, into spill->sources: exactly so many, each once,
 * all of them the session's and LEASED; `head` may be EVICTING. False: they are not.
 */
bool spill_sources_read(struct session *session, uint32_t head, uint64_t tag, uint32_t pages);
void spill_pages_move(struct pool *pool, const struct spill_block *block);
/* Those that are MOVING are LEASED again. */
void spill_pages_give_back(struct pool *pool, const struct spill_block *block);
/* Those that it was saved from go to the pool. What went already, before the last agent died, is passed over. */
void spill_pages_take(struct pool *pool, struct spill_block *block);
/*
 * Those that are not MOVING may be anything from now on, and MOVING for something else: no slot names them any more. 0
 * is no page's generation.
 */
void spill_pages_forget(const struct pool *pool, const struct spill_block *block);

#endif
