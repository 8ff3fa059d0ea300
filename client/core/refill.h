/*
 * refill.h - request pages from the agent, by a request in the session segment and the doorbell. Internal to libgpool.
 */
#ifndef GPOOL_CLIENT_REFILL_H
#define GPOOL_CLIENT_REFILL_H

#include "client/core/thread_cache.h"

/*
 * refill_take() - get `need` pages; the agent may grant more, which become idle. flags: LEASE_*. *first: the first page
 * of a chain of runs with `need` pages; the entry of each run has its length and the next run. If the thread uses a
 * reservation, the pages are taken over from it. Return: 0, -ENOSPC, -EDQUOT, -EPERM (the agent refuses; the cause is
 * stored in the thread's `shortage`), -ENOENT (the reservation has too few pages), -EPIPE (no agent), -EINTR
 * (gpool_wait_check()).
 */
int refill_take(struct gpool *pool, struct thread_cache *cache, uint32_t need, uint32_t flags, int32_t timeout_ms,
	uint32_t *first);

/*
 * lease_ask() - send a request about one block or reservation (LEASE_RESTORE and later), and wait as long as the agent
 * exists. The fields kind, need, extra, flags, timeout_ms, first_page and tag are sent, and first_page is received;
 * LEASE_RESTORE returns it as refill_take() does. Return: 0, the agent's error, -EINTR (gpool_wait_check(), during the
 * wait for a slot, for LEASE_RESTORE or for LEASE_RESERVE), or -EPIPE: the agent has ended, and may have started the
 * work.
 */
int lease_ask(struct gpool *pool, struct lease_request *ask);

/* A request in progress, one of SESSION_REQUESTS. */
struct lease_ticket {
	int slot;
	uint32_t word;
};

/*
 * lease_ask() in two steps. lease_begin() - send the request, after waiting only for a free slot. Return: 0, -EPIPE,
 * -EINTR.
 * lease_end() - wait for the answer and return it, once. Without `wait`, return -EAGAIN if it has not arrived.
 */
int lease_begin(struct gpool *pool, const struct lease_request *ask, struct lease_ticket *ticket);
int lease_end(struct gpool *pool, const struct lease_ticket *ticket, bool wait, struct lease_request *ask);

#endif
