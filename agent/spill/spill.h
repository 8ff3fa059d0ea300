/*
 * spill.h - blocks whose content is kept when they leave the pool: saved by the mover, page by page, and read back into
 * whatever pages their worker has then.
 *
 *   in the pool --evicted--> SAVING --all pages written--> SAVED --restore--> LOADING --answered--> in the pool
 *        ^----- an error: it stays -----'        ^----- the worker gave up -----'
 *
 * SAVED is the moment of truth, one store in the ledger: before it the pages hold the block and the slots are nothing,
 * after it the slots hold it. While a page is saved or loaded its word is MOVING: nobody takes it, pins wait.
 * docs/internals/agent.md, "Spill", has the table of what each half-done step becomes when the agent dies.
 */
#ifndef GPOOL_AGENT_SPILL_H
#define GPOOL_AGENT_SPILL_H

#include "agent/spill/jobs.h"
#include "agent/spill/spill_slots.h"

#include <sys/queue.h>

struct lease_request;
struct pool;
struct session;

/* A request of the session's own. */
struct spill_asker {
	int32_t slot;
	uint32_t word; /* its state, as it was read */
};

enum { SPILL_TIDY_TICK_MS = 20 }; /* so soon after slots came free their space is given back */

enum spill_phase { SPILL_SAVING, SPILL_SAVED, SPILL_LOADING, SPILL_SINKING };

/* A block in the slots, or on its way there or back. What the ledger says of it is not repeated here. */
struct spill_block {
	LIST_ENTRY(spill_block) of_session;
	TAILQ_ENTRY(spill_block) working; /* SAVING, LOADING, SINKING */
	TAILQ_ENTRY(spill_block) aged;    /* SAVED, all of it in memory: may sink */
	bool is_aged;
	struct spill_block *sunk;  /* SAVED: what is to hold it in the file; NULL: nothing */
	struct spill_block *rises; /* SINKING: what it is made of; NULL: that has left its slots */
	struct session *session;   /* NULL: it has ended, and so does this with its last job */
	uint32_t owner;            /* the session's id */
	enum spill_phase phase;
	uint64_t tag; /* without BLOCK_SCATTERED, which is a matter of the place */
	uint32_t pages;
	uint32_t begun, finished; /* jobs */
	uint32_t next;            /* pages before this one are begun */
	int error;                /* of the first job that failed */
	uint64_t begun_ns;        /* when its jobs began */
	int32_t request;          /* slot of the session's request that this is for; -1: none */
	uint32_t request_word;    /* its state, serial number included */
	bool keep;                /* LOADING, and it stays when it cannot be read (LEASE_KEEP) */
	uint32_t chain[];         /* [pages] */
};
TAILQ_HEAD(spill_list, spill_block);

/* By slot: whose, whether a job for it was submitted, and whether its result has come. */
struct spill_place {
	struct spill_block *block;
	bool begun, done;
	bool again; /* a load that failed was submitted once more */
};

struct spill {
	struct spill_slots slots;
	struct spill_place *places;   /* [slot_count] */
	struct spill_source *sources; /* [page_count], scratch */
	/* [page_count] the block that starts there could not be saved: not tried before */
	uint32_t *rest_ms;
	void *blocks; /* tsearch(3), by session and tag */
	struct spill_list working;
	struct spill_list aged;      /* saved first, first */
	struct spill_block *sinking; /* one at a time */
	uint32_t loading_pages;
	uint32_t lost_blocks; /* content that could not be read back */
};

/* spill_open() - the tiers, from the keeper when it holds some. Return: 0 or what making them said, which is logged. */
int spill_open(struct pool *pool, const struct module_start *start);
void spill_close(struct pool *pool);

/*
 * spill_recover_ends(), spill_recover() - after a restart, before sessions are restored, and when they are; before
 * anybody is served.
 */
void spill_recover_ends(struct pool *pool);
void spill_recover(struct pool *pool);

/*
 * possible() - whether the block of so many pages that starts at `head` could be saved now.
 *
 * begin() - save the block at `head`, which is marked EVICTING and was seen unpinned, its fence reached. On success its
 * pages are MOVING, and in the end free or, when it fails, the session's again. `asker`: whose request it is, answered
 * then; NULL: no session's.
 * Return: 0, or -EOPNOTSUPP, -EIO (no mover serves), -ENOSPC (no slots), -EBUSY (on its way already), -EAGAIN (the
 * entry has changed), -ENOMEM; nothing changed.
 *
 * request() - serve a LEASE_RESTORE, LEASE_DISCARD or LEASE_SPILL; answered now or later. `ask` is the caller's copy.
 */
extern const struct content_saver spill_saver;

/* ending() deletes the spilled blocks of a session. Pages that a mover may still write to are retired until it ends. */
extern const struct session_part spill_session_part;

/*
 * Jobs of spills and restores. go_on() also has the requests served that waited for pages. give_up() ends blocks that
 * are being saved or loaded with what has been done so far.
 */
extern const struct job_user spill_job_user;

void spill_tick(struct pool *pool);

/* spill_used() - bytes kept in a tier. */
uint64_t spill_used(const struct pool *pool, enum mover_tier tier);

#endif
