/*
 * mover_queue.h - the agent's side of a mover's ring: puts jobs in, takes results out, decides nothing.
 *
 * It keeps its own copy of what each slot stands for, so that a mover that went mad can spoil bytes (which checksums
 * find) and answers, and nothing else. After a restart of the agent that copy comes from the ring; the agent's ledger
 * goes before it.
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
	uint64_t tag;      /* the caller's own, given back with the result */
};

struct mover_result {
	struct mover_order order; /* as submitted; of a MOVER_SPILL that went well, checksum is what was computed */
	int error;                /* 0, -EBADMSG, -ENOSPC, -EIO, -EINVAL */
};

struct mover_queue {
	struct mover_ring *ring;
	int work_bell, done_bell;
	uint64_t number;    /* of the last job */
	uint32_t in_flight; /* submitted, result not yet collected */
	uint32_t next;      /* where the search for a free slot begins */
	bool used[MOVER_JOBS];
	uint64_t numbers[MOVER_JOBS];
	struct mover_order orders[MOVER_JOBS];
};

/*
 * mover_queue_init() - over the ring and bells of a struct module_pool, which stay the caller's; done_bell goes into
 * its epoll set. With jobs of an earlier agent in the ring, mover_rescan() follows.
 */
void mover_queue_init(struct mover_queue *queue, struct mover_ring *ring, int work_bell, int done_bell);

/*
 * mover_submit() - put a job into the ring and wake the mover. Also while there is none: its successor finds the job.
 * Return: 0, or -EAGAIN: all slots are in use, and mover_collect() will free some.
 */
int mover_submit(struct mover_queue *queue, const struct mover_order *order);

/*
 * mover_collect() - when done_bell is readable: call `each` for every result that is there, in no particular order.
 * `each` may submit; the slot of its own result is free only after it returns, so that a result is seen again if the
 * agent dies in `each`.
 * Return: how many.
 */
uint32_t mover_collect(
	struct mover_queue *queue, void (*each)(void *context, const struct mover_result *result), void *context);

/*
 * mover_rescan() - after a restart of the agent: take over what is in the ring, go on behind its highest number, wake
 * the mover in case the last agent did not come to it. Results that wait are for mover_collect(), which should be
 * called next.
 * Return: how many jobs are in flight; mover_order_of() tells each.
 */
uint32_t mover_rescan(struct mover_queue *queue);

/* mover_oldest() - the lowest number of the jobs in flight; UINT64_MAX: there are none. */
uint64_t mover_oldest(const struct mover_queue *queue);

/*
 * mover_serves() - whether a mover has come in. The first `ended` ones are dead, says the keeper. A mover that is
 * stopped, or that hangs, serves: it may still write to what its jobs name.
 */
bool mover_serves(const struct mover_queue *queue, uint32_t ended);

/* mover_shut() - no mover is let in from now on. False: one serves, and nothing has changed. */
bool mover_shut(struct mover_queue *queue, uint32_t ended);

/* mover_begun() - whether a mover may have begun the job in a slot. Of use only while the gate is shut. */
bool mover_begun(const struct mover_queue *queue, uint32_t slot);

/*
 * mover_withdraw() - a job that is in flight is none any more. Only while the gate is shut, and after mover_collect().
 */
void mover_withdraw(struct mover_queue *queue, uint32_t slot);

/* mover_let_in() - open the gate. Also when an earlier agent has shut it; else it does nothing. */
void mover_let_in(struct mover_queue *queue);

/* mover_order_of() - what slot [0, MOVER_JOBS) was submitted as, or NULL when nothing is in flight there. */
const struct mover_order *mover_order_of(const struct mover_queue *queue, uint32_t slot);

#endif
