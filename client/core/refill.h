/* refill.h - request pages from the agent: a request in the session segment and a doorbell. Internal to libgpool. */
#ifndef GPOOL_CLIENT_REFILL_H
#define GPOOL_CLIENT_REFILL_H

#include "client/core/thread_cache.h"

/*
 * refill_take() - get `need` pages, and possibly more as free bits. flags: LEASE_*. *first: the first run; the entries
 * have its length and the next run, and together the runs have `need` pages.
 * Return: 0, -ENOSPC, -EDQUOT, -EPERM (the agent refuses; the thread's shortage has the cause), -EPIPE (no agent).
 */
int refill_take(struct gpool *pool, struct thread_cache *cache, uint32_t need, uint32_t flags, int32_t timeout_ms,
	uint32_t *first);

/*
 * lease_ask() - send a request about one block (LEASE_RESTORE and later): kind, need, flags, timeout_ms, first_page and
 * tag are sent; LEASE_RESTORE returns first_page as refill_take() does. Waits without a limit. Return: 0, the agent's
 * error, -EINTR (LEASE_RESTORE), or -EPIPE: the agent has ended, and may have started the work.
 */
int lease_ask(struct gpool *pool, struct lease_request *ask);

/* A request that is under way, one of SESSION_REQUESTS. */
struct lease_ticket {
	int slot;
	uint32_t word;
};

/*
 * The same in two steps. lease_begin() - send the request, waiting only for a free request slot: 0, -EPIPE. lease_end()
 * - return the answer, once; without `wait` it may return -EAGAIN: not yet.
 */
int lease_begin(struct gpool *pool, const struct lease_request *ask, struct lease_ticket *ticket);
int lease_end(struct gpool *pool, const struct lease_ticket *ticket, bool wait, struct lease_request *ask);

#endif
