/*
 * ring.h - jobs for the mover, each for one page, in memory that only the agent and the mover share.
 *
 * Each job occupies a slot. The agent fills the slot, stores QUEUED and rings the bell `work`. The mover stores TAKEN,
 * executes the job, stores the result and DONE, and rings the bell `done`. The agent reads the result and stores IDLE.
 * A result becomes visible only after the page contents are complete.
 *
 * Jobs for the same page, or for the same slot of a tier, are executed in the order of their numbers: a job starts when
 * the earlier one is DONE. A spill, a scrub and a load of one page may therefore be in the ring at the same time. Other
 * jobs run concurrently.
 *
 * A mover may die at any instruction, so every job must be safe to execute twice. The next mover executes all QUEUED
 * and TAKEN slots in the order of their numbers, and ignores DONE ones. Because of this order, it repeats no job after
 * a later job for the same page. At its start, it rings `done`, because its predecessor may have died before it rang
 * for its last results. For the same reason, an agent rings `work` at its start. If an agent dies between reading a
 * result and storing IDLE, the next agent reads the result again.
 *
 * The gate determines which process may handle jobs. Before a mover reads any job, it enters by a compare-and-swap that
 * stores its number in the gate. If no mover has served for mover.patience, the agent shuts the gate and takes back the
 * jobs that no mover will execute (docs/internals/agent.md, "No mover"). A mover that starts in the meantime waits for
 * the bell `work`. Only the agent that shut the gate, or its successor, opens it.
 *
 * The page and slots of a job must not be changed by others from QUEUED until the result is read: a page that is
 * spilled twice must have the same content both times. While a mover runs, no hole may be punched in the file of the
 * memory tier, and the file must not be truncated. Otherwise the GPU would write to locked pages that no longer belong
 * to the file.
 *
 * The agent writes all fields of an IDLE slot; the mover writes state and results of other slots. Neither side trusts
 * an index that the other has written: the agent remembers the purpose of each slot (mover_queue.h), and the mover
 * checks all fields.
 */
#ifndef GPOOL_AGENT_MOVER_RING_H
#define GPOOL_AGENT_MOVER_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MOVER_JOBS = 256 };

enum mover_job_state { MOVER_IDLE, MOVER_QUEUED, MOVER_TAKEN, MOVER_DONE };

enum mover_job_kind {
	MOVER_COPY = 1, /* page `page` -> page `to` */
	MOVER_SCRUB,    /* zeros -> page */
	MOVER_SPILL,    /* page -> slot `to` of the tier; checksum is an output */
	/* slot `to` of the tier -> page; checksum is an input. -EBADMSG: it differs, and the page is unchanged */
	MOVER_LOAD,
	MOVER_SINK, /* slot `page` in memory -> slot `to` in the file; checksum is an input, as above */
};

enum mover_tier { MOVER_TIER_MEMORY, MOVER_TIER_FILE, MOVER_TIERS };

struct mover_job {
	_Atomic uint32_t state; /* enum mover_job_state */
	uint32_t kind;          /* enum mover_job_kind */
	uint32_t page;
	/* MOVER_COPY: page; MOVER_SPILL, MOVER_LOAD, MOVER_SINK: slot of the tier, page_bytes each */
	uint32_t to;
	uint32_t tier;     /* enum mover_tier */
	int32_t error;     /* result: 0, -EBADMSG, -ENOSPC (disk full), -EIO, -EINVAL (an invalid field) */
	uint64_t number;   /* increases with each job; determines the order of jobs for one page, even when repeated */
	uint64_t checksum; /* XXH3 64 of the page */
	uint64_t tag;      /* private to the agent */
	uint64_t reserved[2];
};
static_assert(sizeof(struct mover_job) == 64, "one cache line each");

enum mover_file_way { MOVER_FILE_NONE, MOVER_FILE_URING, MOVER_FILE_THREADS };

/* Values of the gate: no mover, or shut. Other values: the number of the mover that entered last, from 1. */
enum { MOVER_NOBODY = 0, MOVER_SHUT = UINT32_MAX };

enum { MOVER_WHY_BYTES = 160 };

struct mover_ring {
	_Alignas(64) struct mover_job jobs[MOVER_JOBS];
	_Alignas(64) _Atomic uint64_t jobs_done; /* by all movers of this ring; repeated jobs may be counted twice */
	_Atomic uint64_t bytes_moved;
	_Atomic uint32_t serving; /* pid of the mover that serves; 0: none yet */
	/* enum mover_file_way; MOVER_FILE_NONE: no file tier */
	_Atomic uint32_t uring;
	/* the reason for MOVER_FILE_THREADS, as an errno; 0: requested with GPOOL_NO_URING */
	_Atomic int32_t uring_error;
	_Atomic uint32_t gate; /* which process may process jobs, see above */
	/* the reason why the last mover could not serve, as text; empty: not recorded */
	char why[MOVER_WHY_BYTES];
};

#endif
