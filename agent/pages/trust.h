/*
 * trust.h - trust domains: a page that moves from the tenants of one to those of another is cleared first, and not
 * before nobody of the old one may have it mapped.
 *
 * A handle is the unit, since it is what a process maps: all its pages are in one domain, whose bytes may be in them.
 * What nobody has used, or what was cleared, is in none (0) and open to all. What a driver gives without saying what is
 * in it is at first in a domain that nobody is of (LEDGER_DOMAIN_FRESH), so that it goes the same way before it is
 * lent. The way from one to another:
 *
 *   free, of domain A --wanted by B--> WAITS for A's sessions that may have it --none has--> SCRUBS --done--> free, of
 *   no domain
 *
 * Meanwhile the pages are QUARANTINED without an owner. Sessions learn of it by a number in the pool's header
 * (release_serial) and by the page words; they unmap and say so, or die. Who has done neither after RELEASE_PATIENCE_MS
 * is silent: the pages that wait for it are RETIRED, out of use and shown with its name, and no more are asked of it
 * before it says something. They come back when it does, or dies; or go to its own domain, which may use them as they
 * are.
 *
 * What a session may have is a row of bits in the ledger, set before a descriptor leaves. With one domain there is
 * nothing of all this: pool->trust is NULL, no bit is set, no job made.
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

/* What one domain may be lent at once: its own pages and those of none. */
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
	/* The last session that might have had the handle has it no longer. */
	void (*unheld)(struct pool *pool, uint32_t handle);
};

struct trust {
	const struct trust_transfers *transfers;
	uint32_t handle_count, per_handle, words;    /* words: of a bit for each handle */
	struct trust_view views[LEDGER_DOMAINS + 1]; /* by domain; [0] is unused */
	uint16_t *holders;                           /* [handle_count] sessions that may have it */
	uint32_t *since_ms;                          /* [handle_count] of its transfer */
	uint64_t *moving;                            /* handles on their way */
	uint64_t *stuck;                             /* handles that a silent session may have */
	uint8_t *scrubs;                             /* [page_count] */
	uint32_t cleaning;                           /* pages on their way that are not RETIRED */
	uint32_t retired;
	uint32_t in_ring;  /* scrubs */
	uint32_t hand;     /* where the search for the next handle begins */
	uint64_t rest_ms;  /* no scrub is begun before: one failed */
	uint64_t ahead_ms; /* nothing is made ready ahead before */
	bool told;         /* that scrubs fail */
};

/* trust_wanted() - whether this pool tells domains apart. One that did once does so for good. */
bool trust_wanted(const struct pool *pool, const struct ledger *ledger);
/* trust_open() - pool->trust, when it is wanted; `transfers` moves its handles. 0, -ENOMEM, -EACCES. */
int trust_open(struct pool *pool, const struct module_pool *start, const struct trust_transfers *transfers);
void trust_close(struct pool *pool);
/* trust_domain() - the number of a domain; 0: domains are not told apart, or there is no room for another name. */
uint32_t trust_domain(struct pool *pool, const char *name);
const char *trust_domain_name(const struct pool *pool, uint32_t domain);

/*
 * trust_put() - pages that have come free, and are in the pool's own index already. trust_withdraw() - they leave all
 * views.
 */
void trust_put(struct pool *pool, uint32_t first, uint32_t count);
void trust_withdraw(struct pool *pool, uint32_t first, uint32_t count);
/*
 * trust_taken() - a run that was taken out of a domain's view, and is about to be lent to it: leaves index and other
 * views.
 */
void trust_taken(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);

/* trust_of_page() - whose bytes may be in it: a domain, LEDGER_DOMAIN_FRESH, or 0. */
uint32_t trust_of_page(const struct pool *pool, uint32_t page);

/* trust_hand_out() - before a descriptor of the handle is sent to the session. */
void trust_hand_out(struct session *session, uint32_t handle);
/* trust_let_go() - the session says that it has [first, first + count) no more; believed as the configuration says. */
void trust_let_go(struct session *session, uint32_t first, uint32_t count);
/* trust_session_begin() - an id is about to be used. _end() - the process is dead, or has detached. */
void trust_session_begin(struct pool *pool, uint32_t id);
void trust_session_end(struct session *session);
/*
 * trust_holds() - whether a session that is about to detach may have anything, and its word for the opposite does not
 * count.
 */
bool trust_holds(const struct session *session);

/* What a domain wants: so many pages more than it may be lent now. */
struct trust_wish {
	uint32_t domain;
	uint32_t pages;
	bool reserved; /* also those for critical work */
	bool ahead;    /* nobody waits: only what nobody has to be asked for */
};

/* trust_reach() - pages of other domains that could be had. trust_begin() - starts them on their way; how many. */
uint32_t trust_reach(const struct pool *pool, const struct trust_wish *wish);
uint32_t trust_begin(struct pool *pool, const struct trust_wish *wish);
/*
 * trust_begin_range() - those of [first, first + count). trust_reachable() - whether a free page is, or is the domain's
 * already.
 */
void trust_begin_range(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count);
bool trust_reachable(const struct pool *pool, uint32_t domain, uint32_t page);
/* trust_cancel() - retired pages of the domain itself come back to it as they are; how many. */
uint32_t trust_cancel(struct pool *pool, uint32_t domain, uint32_t pages);
/*
 * trust_useful() - whether taking pages from a session would help this domain: not those of another one that is silent.
 */
bool trust_useful(const struct pool *pool, uint32_t domain, const struct session *session);

static inline uint32_t trust_cleaning(const struct trust *trust)
{
	return trust ? trust->cleaning : 0;
}

/* trust_coming() - of those that are being cleared, the ones that it is worth to wait for: none while nobody clears. */
uint32_t trust_coming(const struct pool *pool);

/* ---- for agent/trust ---- */

/* trust_note() - what the ledger says of a handle. */
struct ledger_page *trust_note(const struct pool *pool, uint32_t handle);

static inline bool trust_bit(const uint64_t *bits, uint32_t index)
{
	return bits[index / 64] >> (index % 64) & 1;
}

/*
 * trust_call() - those who may have pages that are wanted back are told by one number for all: each looks at the words.
 */
void trust_call(struct pool *pool);
bool trust_is_held(const struct pool *pool, uint32_t session, uint32_t handle);
/* trust_handle_free() - all of its pages are free. */
bool trust_handle_free(const struct pool *pool, uint32_t handle);
/* trust_stuck_update() - sessions have become silent, or speak again. */
void trust_stuck_update(struct pool *pool);

#endif
