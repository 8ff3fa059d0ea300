/*
 * spill.h - blocks whose content is saved when they are evicted: the mover saves them page by page, and restores them
 * to other pages of their worker.
 *
 *   in the pool --evicted--> SAVING --all pages written--> SAVED --restore--> LOADING --answered--> in the pool
 *        ^----- an error: it stays -----'        ^- the worker gave up, an error -'
 *
 * SAVED is one store in the ledger: before it, the pages have the content; after it, the slots. While a page is saved
 * or loaded, its word is MOVING: it is not taken, and pins wait. docs/internals/agent.md, "Spill", has a table of the
 * results of each incomplete step when the agent dies.
 */
#ifndef GPOOL_AGENT_SPILL_H
#define GPOOL_AGENT_SPILL_H

#include "agent/spill/jobs.h"
#include "agent/spill/spill_slots.h"

#include <sys/queue.h>

struct lease_request;
struct pool;
struct session;

/* The request of a session for a spill. */
struct spill_asker {
	int32_t slot;
	uint32_t word; /* its state, as it was read */
};

enum { SPILL_TIDY_TICK_MS = 20 }; /* delay after which the space of freed slots is returned to the system */

enum spill_phase { SPILL_SAVING, SPILL_SAVED, SPILL_LOADING, SPILL_SINKING };

/* A block that is saved, or being saved or loaded. The state in the ledger is not repeated here. */
struct spill_block {
	LIST_ENTRY(spill_block) of_session;
	TAILQ_ENTRY(spill_block) working; /* SAVING, LOADING, SINKING */
	TAILQ_ENTRY(spill_block) aged;    /* SAVED, all of it in memory: candidates for sinking */
	bool is_aged;
	struct spill_block *sunk;  /* SAVED: its future chain in the file; NULL: none */
	struct spill_block *rises; /* SINKING: the block that it is copied from; NULL: that one has been freed */
	struct session *session;   /* NULL: it has ended, and the block is freed after its last job */
	uint32_t owner;            /* the session's id */
	enum spill_phase phase;
	uint64_t tag; /* without BLOCK_SCATTERED, which depends on the pages */
	uint32_t pages;
	uint32_t begun, finished; /* numbers of jobs */
	uint32_t next;            /* jobs of the pages before this one have begun */
	int error;                /* of the first failed job */
	uint64_t begun_ns;        /* time at which its jobs began */
	int32_t request;          /* slot of the session's request for it; -1: none */
	uint32_t request_word;    /* its state, serial number included */
	bool lent;                /* LOADING: its pages are the agent's until the request is answered (LEASE_RESTORE) */
	uint32_t chain[];         /* [pages] */
};
TAILQ_HEAD(spill_list, spill_block);

/* By slot: its block, whether a job for it was submitted, and whether the result has arrived. */
struct spill_place {
	struct spill_block *block;
	bool begun, done;
	bool again; /* a failed load was submitted once more */
};

struct spill {
	struct spill_slots slots;
	struct spill_place *places;   /* [slot_count] */
	struct spill_source *sources; /* [page_count], scratch */
	/* [page_count] the block that starts there could not be saved: not before this time */
	uint32_t *rest_ms;
	void *blocks; /* tsearch(3), by session and tag */
	struct spill_list working;
	struct spill_list aged;      /* in order of saving */
	struct spill_block *sinking; /* at most one */
	uint32_t loading_pages;
	uint32_t lost_blocks; /* blocks whose content could not be read */
};

/*
 * spill_open() - open the tiers, those of the keeper if it holds some. Return: 0 or the error of their creation,
 * logged.
 */
int spill_open(struct pool *pool, const struct module_start *start);
void spill_close(struct pool *pool);

/*
 * spill_recover_ends(), spill_recover() - recover spilled blocks after a restart, before and after the sessions are
 * restored; before any request is served.
 */
void spill_recover_ends(struct pool *pool);
void spill_recover(struct pool *pool);

/*
 * possible() - return true if the block of `pages` pages at `head` could be saved now.
 *
 * begin() - save the block at `head`, which is marked EVICTING and was found unpinned, with its fence signaled. If it
 * succeeds, its pages are MOVING, and finally free, or the session's again if a job fails. `asker`: the request that is
 * answered then; NULL: none.
 *
 * Return: 0, or -EOPNOTSUPP, -EIO (no mover serves), -ENOSPC (no slots), -EBUSY (already being saved), -EAGAIN (the
 * entry has changed), -ENOMEM; nothing changed.
 *
 * request() - serve a LEASE_QUERY, LEASE_RESTORE_INTO, LEASE_DISCARD or LEASE_SPILL; answered now or later. `ask` is
 * the caller's copy.
 *
 * restorable() - whether a block of the session can be restored now: 0, -ESTALE (not spilled), -EBUSY (being moved),
 * -EINVAL (another number of pages), -EIO (no mover serves). restore() - load it into the pages of a grant, whose
 * journal entry is ended; the request is answered later. Return: as restorable(), and nothing changed.
 */
extern const struct content_saver spill_saver;

/* ending() deletes the spilled blocks of a session. Pages that a mover may still write to are retired until it ends. */
extern const struct session_part spill_session_part;

/*
 * Jobs of saves and loads. go_on() also has waiting requests for pages served. give_up() ends blocks that are being
 * saved or loaded with the work done so far.
 */
extern const struct job_user spill_job_user;

void spill_tick(struct pool *pool);

/* spill_used() - return the number of bytes stored in a tier. */
uint64_t spill_used(const struct pool *pool, enum mover_tier tier);

#endif
