/*
 * ring.h - what the agent has its mover do: jobs of one page each, in shared memory that these two processes alone
 * share.
 *
 * A job is a slot. The agent fills it, stores QUEUED and rings `work`; the mover stores TAKEN, then DONE with the
 * result, and rings `done`; the agent reads the result and stores IDLE. A result shows only after the bytes are where
 * they belong.
 *
 * Order: jobs that name the same page, or the same slot of a tier, are done in the order of their numbers, the later
 * one begun when the earlier one is DONE. So a spill, a scrub and a load of one page may be in the ring together.
 * Others are done several at a time.
 *
 * Crash rule: every job may be done twice, and a mover may die at any instruction. Its successor begins with every slot
 * that is QUEUED or TAKEN, in the order of their numbers, and leaves DONE ones alone; by the order above it repeats no
 * job after one that came behind it on the same page. It rings `done` at its start, since the bell of the last results
 * may have died with its predecessor, as the agent rings `work` at its own. An agent that dies between reading a result
 * and storing IDLE reads it again.
 *
 * The gate says who does the jobs. A mover comes in by a compare-and-swap that puts its number there, before it looks
 * at any job. The agent shuts it when no mover lives, and then takes back what none will do (docs/internals/agent.md,
 * "No mover"): who comes meanwhile waits for the bell. A shut gate is opened by who has shut it, or by the agent after
 * that one.
 *
 * What a job names must stay as it is from QUEUED until the result is read: a page that is spilled twice must say the
 * same twice. And the memory tier is neither punched nor truncated while a mover lives: a GPU would go on writing to
 * pages that it has locked and that are no longer the file's.
 *
 * Writers: the agent all fields of an IDLE slot, the mover state and results of the others. Neither believes an index
 * of the other: the agent knows by itself which slot stands for what (mover_queue.h), and the mover checks all that it
 * reads.
 */
#ifndef GPOOL_AGENT_MOVER_RING_H
#define GPOOL_AGENT_MOVER_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MOVER_JOBS = 256 };

enum mover_job_state { MOVER_IDLE, MOVER_QUEUED, MOVER_TAKEN, MOVER_DONE };

enum mover_job_kind {
	MOVER_COPY = 1, /* page -> to, another page */
	MOVER_SCRUB,    /* zeros into page */
	MOVER_SPILL,    /* page -> slot `to` of the tier; checksum is a result */
	/* slot `to` -> page; checksum is given; -EBADMSG: the bytes are not those, and the page is untouched */
	MOVER_LOAD,
	MOVER_SINK, /* slot `page` of the memory -> slot `to` of the file; checksum likewise */
};

enum mover_tier { MOVER_TIER_MEMORY, MOVER_TIER_FILE, MOVER_TIERS };

struct mover_job {
	_Atomic uint32_t state; /* enum mover_job_state */
	uint32_t kind;          /* enum mover_job_kind */
	uint32_t page;
	/* MOVER_COPY: page; MOVER_SPILL, MOVER_LOAD, MOVER_SINK: slot within its tier, of page_bytes each */
	uint32_t to;
	uint32_t tier;     /* enum mover_tier */
	int32_t error;     /* result: 0, -EBADMSG, -ENOSPC (disk full), -EIO, -EINVAL (a field that cannot be) */
	uint64_t number;   /* goes up with every job; what jobs of one page, and a successor, go by */
	uint64_t checksum; /* XXH3 64 of the page's bytes */
	uint64_t tag;      /* the agent's own */
	uint64_t reserved[2];
};
static_assert(sizeof(struct mover_job) == 64, "one cache line each");

enum mover_file_way { MOVER_FILE_NONE, MOVER_FILE_URING, MOVER_FILE_THREADS };

/* What is in the gate: nobody's number, the number of the mover that came in last (the first one is 1), or: */
enum { MOVER_NOBODY = 0, MOVER_SHUT = UINT32_MAX };

enum { MOVER_WHY_BYTES = 160 };

struct mover_ring {
	_Alignas(64) struct mover_job jobs[MOVER_JOBS];
	_Alignas(64) _Atomic uint64_t jobs_done; /* by all movers of this ring; a repeated job may count twice */
	_Atomic uint64_t bytes_moved;
	_Atomic uint32_t serving;    /* pid of the mover that has begun to serve; 0: none yet */
	_Atomic uint32_t uring;      /* enum mover_file_way; MOVER_FILE_NONE: there is no file */
	_Atomic int32_t uring_error; /* why by threads; 0 with MOVER_FILE_THREADS: GPOOL_NO_URING said so */
	_Atomic uint32_t gate;       /* who may look at the jobs */
	/* why the mover that ended last could not serve, as text; empty: it has not said */
	char why[MOVER_WHY_BYTES];
};

#endif
