/*
 * spill.h - blocks whose content is saved when they are evicted. The mover saves a block page by page and restores it
 * to other pages of its worker.
 *
 *   in the pool --evicted--> SAVING --all pages written--> SAVED --restore--> LOADING --answered--> in the pool
 *        ^----- error: it stays -----'           ^--- cancelled, or error -----'
 *
 * A single store in the ledger makes a block SAVED. Before it, the pages contain the valid content; after it, the slots
 * do. While a page is being saved or loaded, its word is MOVING: the page is not taken, and pins wait. If the checksum
 * is wrong at a restore for a pin, the block is deleted after the answer. The table in docs/internals/agent.md,
 * "Spill", lists the result of each step that an agent leaves incomplete when it dies.
 */
#ifndef GPOOL_AGENT_SPILL_H
#define GPOOL_AGENT_SPILL_H

#include "agent/spill/jobs.h"
#include "agent/spill/spill_slots.h"

#include <sys/queue.h>

struct lease_request;
struct pool;
struct session;

/* The request of a session to spill a block, answered when the block is saved or the save has failed. */
struct spill_asker {
	int32_t slot;
	uint32_t word; /* state of the slot when it was read */
};

enum { SPILL_TIDY_TICK_MS = 20 }; /* delay until the first look at freed slots (slots_tidy()) */

enum spill_phase { SPILL_SAVING, SPILL_SAVED, SPILL_LOADING, SPILL_SINKING };

/* A block that is saved, or is being saved or loaded. Its state is in the ledger only. */
struct spill_block {
	LIST_ENTRY(spill_block) of_session;
	TAILQ_ENTRY(spill_block) working; /* SAVING, LOADING, SINKING */
	TAILQ_ENTRY(spill_block) aged;    /* SAVED and completely in memory: candidates for sinking */
	bool is_aged;
	struct spill_block *sunk;  /* SAVED: the chain in the file to which it is being copied; NULL: none */
	struct spill_block *rises; /* SINKING: the block that it is copied from; NULL: that block was freed */
	struct session *session;   /* NULL: the session has ended, and the block is freed after its last job */
	uint32_t owner;            /* id of the session */
	enum spill_phase phase;
	uint64_t tag; /* without BLOCK_SCATTERED, which depends on the current pages */
	uint32_t pages;
	uint32_t begun, finished; /* numbers of jobs that have begun and finished */
	uint32_t next;            /* index of the first page whose job has not begun */
	int error;                /* error of the first failed job */
	uint64_t begun_ns;        /* time at which the jobs began */
	int32_t request;          /* slot of the session's request for this block; -1: none */
	uint32_t request_word;    /* state of that slot, serial number included */
	bool lent;                /* LOADING: the agent owns the pages until the request is answered (LEASE_RESTORE) */
	uint32_t chain[];         /* [pages], slots */
};
TAILQ_HEAD(spill_list, spill_block);

/* The block of each slot, whether a job for the slot was submitted, and whether its result has arrived. */
struct spill_place {
	struct spill_block *block;
	bool begun, done;
	bool again; /* a failed load was submitted a second time */
};

struct spill {
	struct spill_slots slots;
	struct spill_place *places;   /* [slot_count] */
	struct spill_source *sources; /* [page_count], scratch memory */
	/* [page_count] time before which the block at this page is not spilled, after a failure */
	uint32_t *rest_ms;
	void *blocks; /* tree of tsearch(3), by session and tag */
	struct spill_list working;
	struct spill_list aged;      /* oldest first */
	struct spill_block *sinking; /* at most one block at a time */
	uint32_t lost_blocks;        /* blocks whose content could not be read */
};

/*
 * spill_open() - open the tiers, or use those that the keeper holds. ledger_fd: see slots_open(). Return: 0, or the
 * error of their creation, which was logged.
 */
int spill_open(struct pool *pool, const struct module_start *start, int ledger_fd);
void spill_close(struct pool *pool);

/*
 * spill_recover_ends(), spill_recover() - recover spilled blocks after a restart, the former before the sessions are
 * restored and the latter afterwards. Call them before any request is served.
 */
void spill_recover_ends(struct pool *pool);
void spill_recover(struct pool *pool);

/*
 * possible() - return true if the block of `pages` pages at `head` can be saved now.
 *
 * begin() - save the block at `head`, which is marked EVICTING and was found unpinned, with its fence signaled. If
 * begin() succeeds, the pages are MOVING, and later free; if a job fails, they belong to the session again. `asker`:
 * the request that is then answered; NULL: none.
 *
 * Return: 0, -EOPNOTSUPP, -EIO (no mover serves), -ENOSPC (no slots), -EBUSY (already being saved), -EAGAIN (the entry
 * has changed), -ENOMEM. After an error, nothing is changed, except that obsolete saved content of the block may have
 * been freed.
 *
 * request() - serve a LEASE_QUERY, LEASE_RESTORE_INTO, LEASE_DISCARD or LEASE_SPILL. The answer may follow later. `ask`
 * is the caller's copy of the request.
 *
 * restorable() - return whether a block of the session can be restored now: 0, -ESTALE (not spilled), -EBUSY (being
 * moved), -EINVAL (another number of pages), -EIO (no mover serves).
 *
 * restore() - load the block into the pages of a grant, and end the journal entry of the grant. The request is answered
 * later. Return: as restorable(); nothing is changed after an error.
 */
extern const struct content_saver spill_saver;

/*
 * ending() deletes the spilled blocks of a session. Pages that the mover may still write to stay retired until it has
 * finished.
 */
extern const struct session_part spill_session_part;

/*
 * The jobs of saves and loads. go_on() also causes waiting requests for pages to be served. give_up() ends blocks that
 * are being saved or loaded, in the state that they have reached.
 */
extern const struct job_user spill_job_user;

void spill_tick(struct pool *pool);

uint64_t spill_used(const struct pool *pool, enum mover_tier tier);

#endif
