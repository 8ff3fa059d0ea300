/*
 * ring.h - jobs for the mover, of one page each, in memory that only the agent and the mover share.
 *
 * A job is a slot. The agent fills it, stores QUEUED and rings `work`; the mover stores TAKEN, then DONE with the
 * result, and rings `done`; the agent reads the result and stores IDLE. A result becomes visible only after the bytes
 * are in place.
 *
 * Order: jobs that name the same page, or the same slot of a tier, are executed in the order of their numbers; a job
 * starts when the earlier one is DONE. A spill, a scrub and a load of one page may therefore be in the ring together.
 * Other jobs run concurrently.
 *
 * Crash rule: every job may be executed twice, and a mover may die at any instruction. Its successor executes every
 * slot that is QUEUED or TAKEN, in the order of their numbers, and leaves DONE ones alone; by the order above it
 * repeats no job after a later job of the same page. It rings `done` at its start, since its predecessor may have died
 * before it rang for its last results; for the same reason an agent rings `work` at its start. An agent that dies
 * between reading a result and storing IDLE has a successor that reads the result again.
 *
 * The gate determines which process handles the jobs. A mover enters by a compare-and-swap that stores its number in
 * the gate, before it reads any job. If no mover runs, the agent shuts the gate and takes back the jobs that no mover
 * will execute (docs/internals/agent.md, "No mover"). A mover that starts meanwhile waits for the bell. Only the agent
 * that shut the gate, or its successor, opens it.
 *
 * The objects that a job names must not change from QUEUED until the result is read: a page that is spilled twice must
 * have the same content twice. The memory tier must not be punched or truncated while a mover runs: a GPU would write
 * to pages that it has locked and that no longer belong to the file.
 *
 * Writers: the agent writes all fields of an IDLE slot, the mover state and results of the others. Neither trusts an
 * index from the other: the agent remembers the purpose of each slot (mover_queue.h), and the mover checks all fields.
 */
#ifndef GPOOL_AGENT_MOVER_RING_H
#define GPOOL_AGENT_MOVER_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MOVER_JOBS = 256 };

enum mover_job_state { MOVER_IDLE, MOVER_QUEUED, MOVER_TAKEN, MOVER_DONE };

enum mover_job_kind {
	MOVER_COPY = 1, /* page -> `to`, another page */
	MOVER_SCRUB,    /* zeros -> page */
	MOVER_SPILL,    /* page -> slot `to` of the tier; checksum is a result */
	/* slot `to` -> page; checksum is given; -EBADMSG: the checksum differs, and the page is unchanged */
	MOVER_LOAD,
	MOVER_SINK, /* slot `page` of the memory -> slot `to` of the file; checksum is given, as above */
};

enum mover_tier { MOVER_TIER_MEMORY, MOVER_TIER_FILE, MOVER_TIERS };

struct mover_job {
	_Atomic uint32_t state; /* enum mover_job_state */
	uint32_t kind;          /* enum mover_job_kind */
	uint32_t page;
	/* MOVER_COPY: page; MOVER_SPILL, MOVER_LOAD, MOVER_SINK: slot within its tier, of page_bytes each */
	uint32_t to;
	uint32_t tier;     /* enum mover_tier */
	int32_t error;     /* result: 0, -EBADMSG, -ENOSPC (disk full), -EIO, -EINVAL (a field is out of range) */
	uint64_t number;   /* increases with every job; orders jobs of one page, and the repetition by a successor */
	uint64_t checksum; /* XXH3 64 of the page's bytes */
	uint64_t tag;      /* private to the agent */
	uint64_t reserved[2];
};
static_assert(sizeof(struct mover_job) == 64, "one cache line each");

enum mover_file_way { MOVER_FILE_NONE, MOVER_FILE_URING, MOVER_FILE_THREADS };

/* Values of the gate: no mover, the number of the mover that entered last (the first is 1), or shut. */
enum { MOVER_NOBODY = 0, MOVER_SHUT = UINT32_MAX };

enum { MOVER_WHY_BYTES = 160 };

struct mover_ring {
	_Alignas(64) struct mover_job jobs[MOVER_JOBS];
	_Alignas(64) _Atomic uint64_t jobs_done; /* by all movers of this ring; a repeated job may count twice */
	_Atomic uint64_t bytes_moved;
	_Atomic uint32_t serving; /* pid of the mover that serves; 0: none yet */
	/* enum mover_file_way; MOVER_FILE_NONE: no file */
	_Atomic uint32_t uring;
	/* why threads are used; 0 with MOVER_FILE_THREADS: requested by GPOOL_NO_URING */
	_Atomic int32_t uring_error;
	_Atomic uint32_t gate; /* which process may handle the jobs */
	/* why the mover that ended last could not serve, as text; empty: not recorded */
	char why[MOVER_WHY_BYTES];
};

#endif
