/*
 * mover_queue.h - the agent's side of a mover's ring: submit jobs and collect results. It makes no decisions.
 *
 * It keeps its own copy of the order in each slot, so that a defective mover can only corrupt bytes (which checksums
 * detect) and results. After a restart of the agent the copy is read from the ring; the agent's ledger takes
 * precedence.
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
	uint64_t checksum; /* of a MOVER_LOAD */
	uint64_t tag;      /* private to the caller, returned with the result */
};

struct mover_result {
	struct mover_order order; /* as submitted; for a successful MOVER_SPILL, checksum is the computed one */
	int error;                /* 0, -EBADMSG, -ENOSPC, -EIO, -EINVAL */
};

struct mover_queue {
	struct mover_ring *ring;
	int work_bell, done_bell;
	uint64_t number;    /* of the last job */
	uint32_t in_flight; /* submitted, result not collected yet */
	uint32_t next;      /* start of the search for a free slot */
	bool used[MOVER_JOBS];
	uint64_t numbers[MOVER_JOBS];
	struct mover_order orders[MOVER_JOBS];
};

/*
 * mover_queue_init() - initialize the queue on the ring and bells of a struct module_pool, which the caller owns;
 * done_bell belongs into its epoll set. Call mover_rescan() next if the ring has jobs of an earlier agent.
 */
void mover_queue_init(struct mover_queue *queue, struct mover_ring *ring, int work_bell, int done_bell);

/*
 * mover_submit() - put a job into the ring and wake the mover. Without a mover, its successor finds the job.
 *
 * Return: 0, or -EAGAIN: all slots are in use, and mover_collect() will free some.
 */
int mover_submit(struct mover_queue *queue, const struct mover_order *order);

/*
 * mover_collect() - call `each` for every available result, in no particular order, when done_bell is readable. `each`
 * may submit jobs; the slot of its own result is freed only after it returns, so that the result is found again if the
 * agent dies in `each`.
 *
 * Return: the number of results.
 */
uint32_t mover_collect(
	struct mover_queue *queue, void (*each)(void *context, const struct mover_result *result), void *context);

/*
 * mover_rescan() - take over the jobs in the ring after a restart of the agent, continue after their highest number,
 * and wake the mover in case the last agent did not. mover_collect() should be called next, for available results.
 *
 * Return: the number of jobs in flight; mover_order_of() returns each.
 */
uint32_t mover_rescan(struct mover_queue *queue);

/* mover_oldest() - return the lowest number of the jobs in flight; UINT64_MAX: none. */
uint64_t mover_oldest(const struct mover_queue *queue);

/*
 * mover_serves() - return true if a mover has entered; by the keeper's report, the first `ended` ones are dead. A mover
 * that is stopped, or hangs, serves: it may still write to the pages of its jobs.
 */
bool mover_serves(const struct mover_queue *queue, uint32_t ended);

/* mover_shut() - prevent movers from entering. False: one serves, and nothing has changed. */
bool mover_shut(struct mover_queue *queue, uint32_t ended);

/* mover_begun() - return true if a mover may have begun the job in a slot. Valid only while the gate is shut. */
bool mover_begun(const struct mover_queue *queue, uint32_t slot);

/* mover_withdraw() - remove a job in flight, only while the gate is shut, and after mover_collect(). */
void mover_withdraw(struct mover_queue *queue, uint32_t slot);

/* mover_let_in() - open the gate, also if an earlier agent has shut it; otherwise do nothing. */
void mover_let_in(struct mover_queue *queue);

/* mover_order_of() - return the order in slot [0, MOVER_JOBS), or NULL if no job is in flight there. */
const struct mover_order *mover_order_of(const struct mover_queue *queue, uint32_t slot);

#endif
