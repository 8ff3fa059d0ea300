/*
 * trust.h - trust domains: a page that moves from the tenants of one domain to those of another is cleared first, and
 * not before all processes of the former domain have unmapped it.
 *
 * The unit is a handle, since a process maps whole handles: all its pages belong to one domain, that of the bytes in
 * them. Handles that were never used, or were cleared, belong to no domain (0) and may be leased to any. Memory from a
 * driver whose content is undefined belongs at first to a domain without members (LEDGER_DOMAIN_FRESH), so that it is
 * cleared before its first lease. The transfer of a handle:
 *
 *   free, of domain A --wanted by B--> WAITS for sessions of A that may have it --none has--> SCRUBS --done--> free, of
 *   no domain
 *
 * Meanwhile the pages are QUARANTINED without an owner. Sessions detect that by a number in the pool's header
 * (release_serial) and by the page words; they unmap the pages and report it, or die. A session that has done neither
 * after RELEASE_PATIENCE_MS is silent: the pages that wait for it are RETIRED, out of use and listed under its name,
 * and no more of its pages are wanted until it reports again. The pages return when it reports or dies; its own domain
 * may use them again at once, uncleared.
 *
 * The handles that a session may have are a row of bits in the ledger, set before a descriptor is sent. A pool with a
 * single domain has none of this: pool->trust is NULL, no bit is set, no job is submitted.
 *
 * This file has domains, holders, and the index of free pages of each domain. The transfers of handles are in
 * agent/trust, which registers struct trust_transfers.
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

/* The free pages that may be leased to one domain: its own, and those of no domain. */
struct trust_view {
	bool made;
	struct free_runs normal, reserved;
};

struct trust_wish;

/* The transfers of handles between domains, described at the functions trust_reach() to trust_coming(). */
struct trust_transfers {
	uint32_t (*reach)(const struct pool *pool, const struct trust_wish *wish);
	uint32_t (*begin)(struct pool *pool, const struct trust_wish *wish);
	void (*begin_range)(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);
	bool (*reachable)(const struct pool *pool, uint32_t domain, uint32_t page);
	uint32_t (*cancel)(struct pool *pool, uint32_t domain, uint32_t pages);
	uint32_t (*coming)(const struct pool *pool);
	/* Continue the transfer of a handle that no session may have any more. */
	void (*unheld)(struct pool *pool, uint32_t handle);
};

struct trust {
	const struct trust_transfers *transfers;
	uint32_t handle_count, per_handle, words;    /* words: number of 64-bit words with a bit for each handle */
	struct trust_view views[LEDGER_DOMAINS + 1]; /* by domain; [0] is unused */
	uint16_t *holders;                           /* [handle_count] number of sessions that may have it */
	uint32_t *since_ms;                          /* [handle_count] start of its transfer */
	uint64_t *moving;                            /* handles being transferred */
	uint64_t *stuck;                             /* handles that a silent session may have */
	uint8_t *scrubs;                             /* [page_count] enum trust_scrub */
	uint32_t cleaning;                           /* pages being transferred that are not RETIRED */
	uint32_t retired;
	uint32_t in_ring;  /* scrubs in the mover's ring */
	uint32_t hand;     /* start of the search for the next handle */
	uint64_t rest_ms;  /* no scrub is submitted before this time, after a failure */
	uint64_t ahead_ms; /* no pages are transferred in advance before this time */
	bool told;         /* the failure of scrubs was logged */
};

/* trust_wanted() - return true if this pool has several domains. A pool that once had several stays that way. */
bool trust_wanted(const struct pool *pool, const struct ledger *ledger);
/* trust_open() - create pool->trust, if it is wanted; `transfers` transfers its handles. 0, -ENOMEM, -EACCES. */
int trust_open(struct pool *pool, const struct module_pool *start, const struct trust_transfers *transfers);
void trust_close(struct pool *pool);
/* trust_domain() - return the number of a domain; 0: the pool has a single domain, or no room for another name. */
uint32_t trust_domain(struct pool *pool, const char *name);
const char *trust_domain_name(const struct pool *pool, uint32_t domain);

/*
 * trust_put() - add pages that have become free, and are already in the pool's own index, to the views.
 * trust_withdraw() - remove pages from all views.
 */
void trust_put(struct pool *pool, uint32_t first, uint32_t count);
void trust_withdraw(struct pool *pool, uint32_t first, uint32_t count);
/*
 * trust_taken() - remove a run that was taken from a domain's view, and is about to be leased to it, from the index and
 * the other views.
 */
void trust_taken(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);

/* trust_of_page() - return the domain of the bytes in a page: a domain, LEDGER_DOMAIN_FRESH, or 0. */
uint32_t trust_of_page(const struct pool *pool, uint32_t page);

/* trust_hand_out() - record that a descriptor of the handle is about to be sent to the session. */
void trust_hand_out(struct session *session, uint32_t handle);
/*
 * trust_let_go() - handle the session's report that it has unmapped [first, first + count). The configuration
 * determines whether the report is trusted.
 */
void trust_let_go(struct session *session, uint32_t first, uint32_t count);
/*
 * trust_session_begin() - clear the row of an id that is about to be used. trust_session_end() - clear it when the
 * process has died or detached.
 */
void trust_session_begin(struct pool *pool, uint32_t id);
void trust_session_end(struct session *session);
/*
 * trust_holds() - return true if a session that is about to detach may still have pages, and its own report does not
 * count.
 */
bool trust_holds(const struct session *session);

/* The pages that a domain needs in addition to those that it may lease now. */
struct trust_wish {
	uint32_t domain;
	uint32_t pages;
	bool reserved; /* including pages for critical work */
	bool ahead;    /* in advance: only pages that no session may have mapped */
};

/*
 * trust_reach() - count the pages of other domains that could be transferred. trust_begin() - begin their transfer;
 * return their number.
 */
uint32_t trust_reach(const struct pool *pool, const struct trust_wish *wish);
uint32_t trust_begin(struct pool *pool, const struct trust_wish *wish);
/*
 * trust_begin_range() - begin the transfer of the pages in [first, first + count). trust_reachable() - return true if a
 * free page can be transferred to the domain, or belongs to it already.
 */
void trust_begin_range(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);
bool trust_reachable(const struct pool *pool, uint32_t domain, uint32_t page);
/* trust_cancel() - return retired pages of the domain itself to it, uncleared; return their number. */
uint32_t trust_cancel(struct pool *pool, uint32_t domain, uint32_t pages);
/*
 * trust_useful() - return true if pages of a session would help this domain: not if it is silent and of another domain.
 */
bool trust_useful(const struct pool *pool, uint32_t domain, const struct session *session);

static inline uint32_t trust_cleaning(const struct trust *trust)
{
	return trust ? trust->cleaning : 0;
}

/* trust_coming() - return the number of pages being cleared that are worth waiting for: 0 if no mover clears. */
uint32_t trust_coming(const struct pool *pool);

/* ---- for agent/trust ---- */

/* trust_note() - return the ledger's record of a handle. */
struct ledger_page *trust_note(const struct pool *pool, uint32_t handle);

static inline bool trust_bit(const uint64_t *bits, uint32_t index)
{
	return bits[index / 64] >> (index % 64) & 1;
}

/* trust_call() - ask sessions to unmap wanted pages, by one number for all: each session checks the page words. */
void trust_call(struct pool *pool);
bool trust_is_held(const struct pool *pool, uint32_t session, uint32_t handle);
/* trust_handle_free() - return true if all pages of a handle are free. */
bool trust_handle_free(const struct pool *pool, uint32_t handle);
/* trust_stuck_update() - update `stuck` when sessions become silent or report again. */
void trust_stuck_update(struct pool *pool);

#endif
