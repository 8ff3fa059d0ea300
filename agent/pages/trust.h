/*
 * trust.h - trust domains. A page that moves between tenants of different domains is cleared, after all processes of
 * the former domain have unmapped it or ended.
 *
 * Domains are assigned to driver handles, because a process maps whole handles. All pages of a handle belong to the
 * domain of its content. A handle that was cleared or never used belongs to no domain (0) and may be leased to any. New
 * memory of a back end without GPU_CAP_ZEROED belongs to a domain without members (LEDGER_DOMAIN_FRESH), so that it is
 * cleared before its first lease. The transfer of a handle:
 *
 *   free, of domain A --wanted by B--> WAITS for sessions of A that may have it --none left--> SCRUBS --done-->
 *   free, of no domain
 *
 * During a transfer, the pages are QUARANTINED without an owner. Sessions detect this by release_serial in the pool's
 * header and by the page words. They unmap the pages and report this to the agent. A worker that has not reported after
 * RELEASE_PATIENCE_MS is silent; with trust.release = "death", at once. The pages that wait for it are RETIRED and
 * listed under its name, and no further transfer of its pages begins until it reports. The transfer continues when it
 * reports or dies. Until then, its own domain may use the pages again without clearing.
 *
 * The ledger has a row of bits for each session, with the handles that the session may have mapped. A bit is set before
 * the descriptor is sent. If the pool does not separate domains (trust_wanted()), pool->trust is NULL, no bits are set,
 * and no jobs are submitted.
 *
 * This file contains domains, holders, and the index of free pages of each domain. agent/trust transfers handles; it
 * registers struct trust_transfers.
 */
#ifndef GPOOL_AGENT_TRUST_H
#define GPOOL_AGENT_TRUST_H

#include "agent/pages/free_runs.h"
#include "agent/base/ledger.h"

#include <stdbool.h>
#include <stdint.h>

struct module_pool;
struct pool;
struct session;

/* The free pages that may be leased to one domain: those of the domain and those of no domain. */
struct trust_view {
	bool made;
	struct free_runs normal, reserved;
};

struct trust_wish;

/* The functions that transfer handles between domains. See trust_reach() to trust_coming(). */
struct trust_transfers {
	uint32_t (*reach)(const struct pool *pool, const struct trust_wish *wish);
	uint32_t (*begin)(struct pool *pool, const struct trust_wish *wish);
	void (*begin_range)(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);
	bool (*reachable)(const struct pool *pool, uint32_t domain, uint32_t page);
	uint32_t (*cancel)(struct pool *pool, uint32_t domain, uint32_t pages);
	uint32_t (*coming)(const struct pool *pool);
	/* Continue the transfer of a handle after its last holder has unmapped it. */
	void (*unheld)(struct pool *pool, uint32_t handle);
};

struct trust {
	const struct trust_transfers *transfers;
	uint32_t handle_count, per_handle, words;    /* words: number of 64-bit words with one bit per handle */
	struct trust_view views[LEDGER_DOMAINS + 1]; /* indexed by domain; [0] is unused */
	uint16_t *holders;                           /* [handle_count] number of sessions that may have the handle */
	uint32_t *since_ms;                          /* [handle_count] start of the transfer */
	uint64_t *moving;                            /* bitmap of handles being transferred */
	uint64_t *stuck;                             /* bitmap of handles that a silent session may have */
	uint8_t *scrubs;                             /* [page_count] enum trust_scrub */
	uint32_t cleaning;                           /* pages being transferred, without RETIRED ones */
	uint32_t retired;
	uint32_t in_ring;  /* scrub jobs in the mover's ring */
	uint32_t hand;     /* handle at which the next search starts */
	uint64_t rest_ms;  /* after a failure: time before which no scrub is submitted */
	uint64_t ahead_ms; /* time before which no pages are transferred in advance */
	bool told;         /* a failure of scrubs was logged */
};

/*
 * trust_wanted() - return true if this pool separates trust domains. A pool that has separated them once continues to
 * separate them.
 */
bool trust_wanted(const struct pool *pool, const struct ledger *ledger);
/*
 * trust_open() - create pool->trust if it is wanted. `transfers` will transfer the handles. Return: 0, -ENOMEM,
 * -EACCES.
 */
int trust_open(struct pool *pool, const struct module_pool *start, const struct trust_transfers *transfers);
void trust_close(struct pool *pool);
/*
 * trust_domain() - return the number of a domain. 0: the pool does not separate domains, there is no room for another
 * name, or no memory.
 */
uint32_t trust_domain(struct pool *pool, const char *name);
const char *trust_domain_name(const struct pool *pool, uint32_t domain);

/*
 * trust_put() - add free pages to the views. They are already in the pool's own index.
 * trust_withdraw() - remove pages from all views.
 */
void trust_put(struct pool *pool, uint32_t first, uint32_t count);
void trust_withdraw(struct pool *pool, uint32_t first, uint32_t count);
/*
 * trust_taken() - remove a run that is about to be leased to `domain` from the index and the views of other domains. It
 * was already taken from the view of `domain`.
 */
void trust_taken(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);

/* trust_of_page() - return the domain of the content of a page: a domain, LEDGER_DOMAIN_FRESH, or 0. */
uint32_t trust_of_page(const struct pool *pool, uint32_t page);

/* trust_hand_out() - record that a descriptor of the handle is about to be sent to the session. */
void trust_hand_out(struct session *session, uint32_t handle);
/*
 * trust_let_go() - process the session's report that it has unmapped [first, first + count). trust.release determines
 * whether the report is trusted.
 */
void trust_let_go(struct session *session, uint32_t first, uint32_t count);
/*
 * trust_session_begin() - clear the row of an id before it is used.
 * trust_session_end() - clear it after the process has died or detached.
 */
void trust_session_begin(struct pool *pool, uint32_t id);
void trust_session_end(struct session *session);
/*
 * trust_holds() - return true if a session that detaches must be assumed to have pages mapped until its process ends.
 * Always false if the pool trusts the releases that its sessions report.
 */
bool trust_holds(const struct session *session);

/* The pages that a domain needs in addition to those that can be leased to it now. */
struct trust_wish {
	uint32_t domain;
	uint32_t pages;
	bool reserved; /* includes reserved pages */
	bool ahead;    /* transfer in advance: only pages that no session may have mapped */
};

/*
 * trust_reach() - return the number of pages of other domains that can be transferred; 0 without a mover.
 * trust_begin() - begin their transfer, and return the number of pages.
 */
uint32_t trust_reach(const struct pool *pool, const struct trust_wish *wish);
uint32_t trust_begin(struct pool *pool, const struct trust_wish *wish);
/*
 * trust_begin_range() - begin the transfer of the pages in [first, first + count).
 * trust_reachable() - return true if a free page belongs to the domain or can be transferred to it.
 */
void trust_begin_range(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);
bool trust_reachable(const struct pool *pool, uint32_t domain, uint32_t page);
/* trust_cancel() - return retired pages of the domain itself to it without clearing. Return: the number of pages. */
uint32_t trust_cancel(struct pool *pool, uint32_t domain, uint32_t pages);
/*
 * trust_useful() - return true if pages taken from a session could be leased to this domain, that is, unless it is a
 * silent session of another domain.
 */
bool trust_useful(const struct pool *pool, uint32_t domain, const struct session *session);

static inline uint32_t trust_cleaning(const struct trust *trust)
{
	return trust ? trust->cleaning : 0;
}

/*
 * trust_coming() - return the number of pages being transferred for which a request should wait; 0 if no mover is
 * running.
 */
uint32_t trust_coming(const struct pool *pool);

/* ---- for agent/trust ---- */

struct ledger_page *trust_note(const struct pool *pool, uint32_t handle);

static inline bool trust_bit(const uint64_t *bits, uint32_t index)
{
	return bits[index / 64] >> (index % 64) & 1;
}

/*
 * trust_call() - ask sessions to unmap wanted pages, by raising release_serial. Each session then checks the page
 * words.
 */
void trust_call(struct pool *pool);
bool trust_is_held(const struct pool *pool, uint32_t session, uint32_t handle);
bool trust_handle_free(const struct pool *pool, uint32_t handle);
/* trust_stuck_update() - update `stuck`. Call it after sessions have become silent or have reported again. */
void trust_stuck_update(struct pool *pool);

#endif
