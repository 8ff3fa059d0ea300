/*
 * ring.h - what the agent has its mover do: jobs of one page each, in shared memory that these two processes alone share.
 *
 * A job is a slot. The agent fills it, stores QUEUED and rings `work`; the mover stores TAKEN, then DONE with the result, and rings
 * `done`; the agent reads the result and stores IDLE. A result shows only after the bytes are where they belong. Every job may be
 * done twice: when a mover dies, its successor begins with every slot that is QUEUED or TAKEN, in the order of their numbers.
 *
 * Writers: the agent all fields of an IDLE slot, the mover state and results of the others. Neither believes an index of the other:
 * the agent knows by itself which slot stands for what.
 */
#ifndef GPOOL_AGENT_MOVER_RING_H
#define GPOOL_AGENT_MOVER_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MOVER_JOBS = 256 };

enum mover_job_state { MOVER_IDLE, MOVER_QUEUED, MOVER_TAKEN, MOVER_DONE };

enum mover_job_kind {
	MOVER_COPY = 1, /* page -> to */
	MOVER_SCRUB,    /* zeros into page */
	MOVER_SPILL,    /* page -> slot `to` of the tier; checksum is a result */
	MOVER_LOAD,     /* slot `to` -> page; checksum is given; -EBADMSG: the bytes are not those */
};

enum mover_tier { MOVER_TIER_MEMORY, MOVER_TIER_FILE };

struct mover_job {
	_Atomic uint32_t state; /* enum mover_job_state */
	uint32_t kind;          /* enum mover_job_kind */
	uint32_t page;
	uint32_t to;            /* MOVER_COPY: page; MOVER_SPILL, MOVER_LOAD: slot within its tier, of page_bytes each */
	uint32_t tier;          /* enum mover_tier */
	int32_t error;          /* result: 0, -EBADMSG, -ENOSPC (disk full), -EIO, -EINVAL (a field that cannot be) */
	uint64_t number;        /* goes up with every job; what a successor orders by */
	uint64_t checksum;      /* XXH3 64 of the page's bytes */
	uint64_t tag;           /* the agent's own */
	uint64_t reserved[2];
};
static_assert(sizeof(struct mover_job) == 64, "one cache line each");

struct mover_ring {
	_Alignas(64) struct mover_job jobs[MOVER_JOBS];
	_Alignas(64) _Atomic uint64_t jobs_done;  /* by all movers of this ring */
	_Atomic uint64_t bytes_moved;
	_Atomic uint32_t serving;                 /* pid of the mover that has begun to serve; 0: none yet */
	_Atomic uint32_t uring;                   /* 1: files go by io_uring, 2: by threads */
	_Atomic int32_t uring_error;              /* why by threads */
};

#endif
