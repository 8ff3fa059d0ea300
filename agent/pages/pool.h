/* pool.h - the pages of one pool: owners, free pages, utilization. Only these functions write page words. */
#ifndef GPOOL_AGENT_POOL_H
#define GPOOL_AGENT_POOL_H

#include "agent/agent.h"
#include "agent/pages/evict.h"
#include "agent/pages/free_runs.h"
#include "agent/pages/page_step.h"
#include "agent/pages/physical.h"
#include "shm/invariant.h"
#include "shm/pool_check.h"
#include "shm/session_totals.h"

#include <sys/queue.h>

enum { REFILL_SAMPLES = 4096 };

struct tenant {
	const struct config_tenant *config; /* points into agent->config */
	uint32_t minimum, limit;            /* in pages, as configured or as set by poolctl */
	uint32_t leased;
	uint32_t domain; /* trust domain; 0: the pool does not separate domains */
	uint32_t saving; /* leased pages that are being spilled */
	/* pages of its evictable objects, see agent/object/objects_order.c */
	uint32_t idle_pages;
	uint32_t sessions;
	uint64_t refusals, evicted_pages;
	struct tenant_usage {
		uint64_t refusals, evicted_pages;
	} usages[BLOCK_USAGES];
	/*
	 * counters of the sessions that have ended since the start of this agent, minus the counts that attached
	 * sessions had before that start; tenant_usage_totals() adds the counters of the attached sessions
	 */
	struct usage_totals ended;
	uint64_t barren_ns; /* time of the last scan for this tenant that found nothing to evict; see evict.c */
};

/* tenant_evicted() - count evicted pages of a tenant. A usage that is not valid counts for the tenant only. */
static inline void tenant_evicted(struct tenant *tenant, uint32_t usage, uint32_t pages)
{
	tenant->evicted_pages += pages;
	if (usage < BLOCK_USAGES)
		tenant->usages[usage].evicted_pages += pages;
}

struct jobs;
struct objects;
struct session_part;
struct spill;
struct trust;
struct waiter;
TAILQ_HEAD(waiter_list, waiter);

struct pool {
	struct agent *agent;
	uint32_t index;
	const struct config_pool *config; /* points into agent->config */
	struct pool_segment segment;
	int segment_fd; /* read-only duplicate, sent to workers */
	uint32_t page_count;
	struct physical physical;
	struct free_runs free;     /* pages [0, reserved_first) */
	struct free_runs reserved; /* other free pages, for critical requests */
	struct trust *trust;       /* free pages of each trust domain; NULL: the pool does not separate domains */
	struct session *sessions[POOL_SESSIONS];
	uint32_t session_count;
	const struct session_part *const *session_parts; /* functions of other parts; ends with NULL */
	uint32_t timeline_count;                         /* sessions with a timeline page */
	uint32_t session_next; /* start of the search for a free id, so that ids are not reused immediately */
	struct tenant tenants[CONFIG_TENANTS_MAX];
	uint32_t tenant_count;
	struct waiter_list waiters;
	bool pages_freed;       /* pages were freed since waiting requests were last served */
	uint32_t waiter_count;  /* number of waiting requests */
	uint32_t short_waiters; /* waiting requests, without those that wait because of a limit or for a scan */
	uint32_t leased;
	uint32_t saving_pages;  /* pages of blocks that are being saved (agent/spill) and then become free */
	uint32_t claimed_pages; /* pages being saved or cleared that waiting requests have claimed */
	struct ledger ledger;
	struct page_run *runs; /* [page_count] runs of the current step; in the ledger */
	struct evict_state evict;
	struct objects *objects;
	uint32_t object_count; /* number of records that are not NONE */
	struct jobs *jobs;
	struct spill *spill;
	const struct content_saver *saver;
	uint64_t refill_ns[REFILL_SAMPLES]; /* ring of the durations of the last refills */
	uint64_t refill_count;
	uint64_t leak_scan_ms;
	uint32_t leaks_told;        /* leaked pins reported in the current pass */
	uint64_t tick_ms, awake_ms; /* time of the last housekeeping, and the time from which on it has run regularly */
	uint64_t shortage_took_ns;
	uint64_t shortage_ns; /* time at which the figures for refusals were computed */
	uint32_t shortage_pinned, shortage_holder, shortage_holder_pages;
	uint32_t shortage_object, shortage_object_holder, shortage_object_pins;
	uint32_t evicted_unannounced, reclaimed_unannounced; /* pages since the last event */
	/* time until which watermarks cause no eviction */
	uint64_t evict_rest_ms;
	/* eviction began at the upper watermark and has not reached the lower one */
	bool evicting;
};

/*
 * pool_mark_freed() - record that pages were freed, so that the waiting requests are served at the end of this pass of
 * the loop.
 */
static inline void pool_mark_freed(struct pool *pool)
{
	pool->pages_freed = true;
}

/* pool_count_words() - compute the counts and the indexes of free pages from the page words. */
void pool_count_words(struct pool *pool);

static inline uint64_t pool_word(const struct pool *pool, uint32_t page)
{
	return atomic_load_explicit(&pool->segment.pages[page], memory_order_relaxed);
}

/*
 * pool_word_set() - store a page word. Every change of a page word must be made by this function, as a step of
 * page_step.h.
 */
static inline void pool_word_set(const struct pool *pool, uint32_t page, enum page_step step, uint64_t word)
{
	GPOOL_INVARIANT(page < pool->page_count && page_step_allowed(step, pool_word(pool, page), word),
		"page %u: step '%s' from 0x%016llx (%s) to 0x%016llx (%s)", page, page_steps[step].name,
		(unsigned long long)pool_word(pool, page), page_state_name(page_word_state(pool_word(pool, page))),
		(unsigned long long)word, page_state_name(page_word_state(word)));
	atomic_store_explicit(&pool->segment.pages[page], word, memory_order_seq_cst);
}

/*
 * pool_lend() - lease [first, first + count), which the caller has removed from the index, to `owner`. Only the page
 * words and the counts change.
 */
void pool_lend(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner);

/* pool_share() - make leased pages part of a named object, with a new generation. */
void pool_share(struct pool *pool, uint32_t first, uint32_t count, uint32_t object);

/* pool_unshare() - return the pages to their owner when a publication is rolled back. */
void pool_unshare(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner);

/* pool_pass() - lease pages of a reservation to another session, with a new generation. */
void pool_pass(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner);

/*
 * pool_take_back() - make pages in any other state FREE or RESERVED, with a new generation, and add them to the index.
 */
void pool_take_back(struct pool *pool, uint32_t first, uint32_t count);

/* pool_take_back_word() - call pool_take_back() for the runs of `mask` in the 64-page word `word`. */
void pool_take_back_word(struct pool *pool, uint32_t word, uint64_t mask);

/*
 * pool_move() - change a LEASED or EVICTING page to MOVING, or a MOVING page to LEASED, with the same owner and
 * generation. A MOVING page is not taken, and pins wait.
 */
void pool_move(struct pool *pool, uint32_t page, enum page_state state);

/* pool_set_aside() - retire a page of an ended session to which the mover may still write, with a new generation. */
void pool_set_aside(struct pool *pool, uint32_t page);

/*
 * pool_put_aside() - make a page that is free, or was put aside, QUARANTINED or RETIRED. It has no owner, and the
 * caller has removed it from the index.
 */
void pool_put_aside(struct pool *pool, uint32_t page, enum page_state state);

/*
 * pool_quarantine_of() - quarantine all pages leased to a session whose process may still use them.
 */
void pool_quarantine_of(struct pool *pool, uint32_t owner);
/* pool_take_back_of() - take back all pages leased to a session. Return: the number of pages. */
uint32_t pool_take_back_of(struct pool *pool, uint32_t owner);

static inline void pool_count(struct pool *pool, enum pool_counter counter, uint64_t more)
{
	_Atomic uint64_t *cell = &pool->segment.header->counters[counter];

	atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + more, memory_order_relaxed);
}

/* pool_idle() - return the number of idle pages of all sessions according to their free bits, which are untrusted. */
uint32_t pool_idle(const struct pool *pool);
/*
 * pool_idle_owned() - count the idle pages, excluding free bits that a session has set for pages that are not leased to
 * it. Decisions use this number, because free bits are untrusted.
 * Cost: a pass over the pages.
 */
uint32_t pool_idle_owned(const struct pool *pool);
/*
 * pool_utilization() - return the percentage of the unreserved pages that are neither free nor idle nor offered
 * (pool_offered()).
 */
uint32_t pool_utilization(const struct pool *pool);
void pool_update_pressure(struct pool *pool);
/* pool_configure() - apply the changes of a reload: minima and limits of tenants, policy, timeouts. */
void pool_configure(struct pool *pool);

/*
 * pool_limits_note() - record a limit set by poolctl for the next agent.
 * pool_limits_forget() - delete these records, at a reload.
 */
void pool_limits_note(struct pool *pool, const struct tenant *tenant);
void pool_limits_forget(struct pool *pool);

/*
 * pools_minima_fit() - check that the minima of a new configuration fit the running pools. New minima apply at once,
 * but a new size of a pool only after a restart, so the check needs the pools.
 * Return: 0, -ERANGE (`text` receives the reason).
 */
int pools_minima_fit(const struct agent *agent, const struct config *next, char *text, size_t text_bytes);

/*
 * pool_check_sessions() - list all sessions in the form required by pool_check() and page_map_fill(). The caller frees
 * the list. Return: the number of sessions, or -ENOMEM.
 */
int pool_check_sessions(const struct pool *pool, struct pool_check_session **sessions);

struct tenant *pool_tenant(struct pool *pool, const char *name);

#endif
