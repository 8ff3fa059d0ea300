/*
 * mover_queue.h - the agent's side of a mover's ring: submit jobs and collect results. The queue makes no decisions.
 *
 * The queue has its own copy of the order in each slot. A defective mover can therefore only corrupt page contents and
 * results. After a restart of the agent, the copy is read from the ring; the ledger takes precedence over it.
 *
 * Threads: one.
 */
#ifndef GPOOL_AGENT_SPILL_MOVER_QUEUE_H
#define GPOOL_AGENT_SPILL_MOVER_QUEUE_H

#include "agent/mover/ring.h"

#include <stdbool.h>

struct mover_order {
	enum mover_job_kind kind;
	enum mover_tier tier;
	uint32_t page, to;
	uint64_t checksum; /* expected checksum of a MOVER_LOAD */
	uint64_t tag;      /* private to the submitter; returned with the result */
};

struct mover_result {
	struct mover_order order; /* as submitted; after a successful MOVER_SPILL, with the computed checksum */
	int error;                /* 0, -EBADMSG, -ENOSPC, -EIO, -EINVAL; JOB_GIVEN_UP (jobs.h) */
};

struct mover_queue {
	struct mover_ring *ring;
	int work_bell, done_bell;
	uint64_t number;    /* number of the last job */
	uint32_t in_flight; /* jobs that were submitted and whose result was not collected */
	uint32_t next;      /* slot at which the search for a free slot starts */
	bool used[MOVER_JOBS];
	uint64_t numbers[MOVER_JOBS];
	struct mover_order orders[MOVER_JOBS];
};

/*
 * mover_queue_init() - initialize the queue on the ring and bells of a struct module_pool. The caller owns them, and
 * adds done_bell to its epoll set. If the ring has jobs of an earlier agent, call mover_rescan() next.
 */
void mover_queue_init(struct mover_queue *queue, struct mover_ring *ring, int work_bell, int done_bell);

/*
 * mover_submit() - put a job into the ring and wake the mover. If no mover is running, the next one finds the job.
 *
 * Return: 0, or -EAGAIN: all slots are in use until mover_collect() frees some.
 */
int mover_submit(struct mover_queue *queue, const struct mover_order *order);

/*
 * mover_collect() - call `each` for every available result, in no particular order. Call it when done_bell is readable.
 * `each` may submit jobs. The slot of a result is freed after `each` returns, so the result is found again if the agent
 * dies in `each`.
 *
 * Return: the number of results.
 */
uint32_t mover_collect(
	struct mover_queue *queue, void (*each)(void *context, const struct mover_result *result), void *context);

/*
 * mover_rescan() - take over the jobs in the ring after a restart of the agent, and wake the mover in case the last
 * agent did not. New jobs get numbers above those in the ring. Call mover_collect() next, for available results.
 *
 * Return: the number of jobs in flight. mover_order_of() returns each of them.
 */
uint32_t mover_rescan(struct mover_queue *queue);

/* mover_oldest() - return the lowest number of a job in flight; UINT64_MAX: none. */
uint64_t mover_oldest(const struct mover_queue *queue);

/*
 * mover_serves() - return true if a mover has entered and is not among the first `ended` ones, which are dead by the
 * keeper's report. A mover that is stopped or hangs still serves: it may write to the pages of its jobs.
 */
bool mover_serves(const struct mover_queue *queue, uint32_t ended);

/* mover_shut() - prevent movers from entering. Return: false, with nothing changed, if a mover serves. */
bool mover_shut(struct mover_queue *queue, uint32_t ended);

/* mover_begun() - return true if a mover may have begun the job in a slot. Valid only while the gate is shut. */
bool mover_begun(const struct mover_queue *queue, uint32_t slot);

/*
 * mover_withdraw() - remove a job in flight. Call it only while the gate is shut and after mover_collect(), or for a
 * job with a result, which no mover changes.
 */
void mover_withdraw(struct mover_queue *queue, uint32_t slot);

/*
 * mover_forget() - free the slot of a result that the previous agent has processed, before it died. A job without a
 * result is not changed.
 */
void mover_forget(struct mover_queue *queue, uint32_t slot);

/* mover_let_in() - open the gate if it is shut, possibly by an earlier agent. */
void mover_let_in(struct mover_queue *queue);

/* mover_order_of() - return the order in a slot of [0, MOVER_JOBS), or NULL if it contains no job in flight. */
const struct mover_order *mover_order_of(const struct mover_queue *queue, uint32_t slot);

#endif
