/*
 * pool.h - one GPU's pages: who has them, which are free, how full it is. The sole writer of the page words.
 */
#ifndef GPOOL_AGENT_POOL_H
#define GPOOL_AGENT_POOL_H

#include "agent/agent.h"
#include "agent/pages/evict.h"
#include "agent/pages/free_runs.h"
#include "agent/pages/page_step.h"
#include "agent/pages/physical.h"
#include "shm/invariant.h"
#include "shm/pool_check.h"

#include <sys/queue.h>

enum { REFILL_SAMPLES = 4096 };

/* A tenant's standing in one pool. */
struct tenant {
	const struct config_tenant *config; /* in agent->config */
	uint32_t minimum, limit;            /* pages; limit as poolctl may have changed it */
	uint32_t leased;
	uint32_t domain; /* trust domain, 0: they are not told apart */
	uint32_t saving; /* of them, on their way to be spilled */
	/* of its objects that may go: ephemeral ones that nobody has open, pinnable ones that nobody pins */
	uint32_t idle_pages;
	uint32_t sessions;
	uint64_t refusals, evicted_pages;
	uint64_t barren_ns; /* when a scan for its sake last found nothing to evict; see evict.c */
};

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
	const struct config_pool *config; /* in agent->config */
	struct pool_segment segment;
	int segment_fd; /* read-only duplicate for workers */
	uint32_t page_count;
	struct physical physical;
	struct free_runs free;     /* pages [0, reserved_first) */
	struct free_runs reserved; /* the rest, for critical work */
	struct trust *trust;       /* what of them is for whom; NULL: all of it is for everybody */
	struct session *sessions[POOL_SESSIONS];
	uint32_t session_count;
	const struct session_part *const *session_parts; /* of other rooms; ends with NULL */
	uint32_t timeline_count;                         /* sessions that show others a page of theirs */
	uint32_t session_next; /* where to look for a free id, so that ids are not reused at once */
	struct tenant tenants[CONFIG_TENANTS_MAX];
	uint32_t tenant_count;
	struct waiter_list waiters;
	bool pages_freed;       /* since the waiting requests were last served */
	uint32_t waiter_count;  /* all */
	uint32_t short_waiters; /* those that wait for the pool's pages, not at a limit of their own */
	uint32_t leased;
	uint32_t saving_pages;  /* of blocks that are being saved (agent/spill): they will be free */
	uint32_t claimed_pages; /* of those and of pages being cleared, what waiting requests count on already */
	struct ledger ledger;
	struct page_run *runs; /* the ledger's: [page_count] of the step at hand */
	struct evict_state evict;
	struct objects *objects;
	uint32_t object_count; /* records of objects that are not NONE */
	struct jobs *jobs;
	struct spill *spill;
	const struct content_saver *saver;
	uint64_t refill_ns[REFILL_SAMPLES]; /* ring of the latest */
	uint64_t refill_count;
	uint64_t leak_scan_ms;
	uint32_t leaks_told;        /* in the look at hand */
	uint64_t tick_ms, awake_ms; /* last housekeeping; since when it has come regularly */
	uint64_t shortage_took_ns;
	uint64_t shortage_ns; /* when the figures for refusals were made */
	uint32_t shortage_pinned, shortage_holder, shortage_holder_pages;
	uint32_t shortage_object, shortage_object_holder, shortage_object_pins;
	uint32_t evicted_unannounced, reclaimed_unannounced; /* pages since the last event */
	uint64_t evict_rest_ms;                              /* no watermark eviction before */
	bool evicting;                                       /* between the watermarks: started, not yet at the stop */
};

/* pool_mark_freed() - have the loop serve the waiting requests at the end of this pass. */
static inline void pool_mark_freed(struct pool *pool)
{
	pool->pages_freed = true;
}

/* pool_count_words() - fill the counts and the indexes of free pages from the page words. */
void pool_count_words(struct pool *pool);

static inline uint64_t pool_word(const struct pool *pool, uint32_t page)
{
	return atomic_load_explicit(&pool->segment.pages[page], memory_order_relaxed);
}

/* pool_word_set() - store a page word. Each change of a word is made here, as a step that page_step.h allows. */
static inline void pool_word_set(const struct pool *pool, uint32_t page, enum page_step step, uint64_t word)
{
	GPOOL_INVARIANT(page < pool->page_count && page_step_allowed(step, pool_word(pool, page), word),
		"page %u: step '%s' from 0x%016llx (%s) to 0x%016llx (%s)", page, page_steps[step].name,
		(unsigned long long)pool_word(pool, page), page_state_name(page_word_state(pool_word(pool, page))),
		(unsigned long long)word, page_state_name(page_word_state(word)));
	atomic_store_explicit(&pool->segment.pages[page], word, memory_order_seq_cst);
}

/*
 * pool_lend() - [first, first + count), out of the index already, to `owner`: words first, then the caller sets free
 * bits.
 */
void pool_lend(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner);

/* pool_share() - pages that are leased become those of a named object, with a new generation. */
void pool_share(struct pool *pool, uint32_t first, uint32_t count, uint32_t object);

/* pool_unshare() - the other way, where a publication is rolled back. */
void pool_unshare(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner);

/* pool_take_back() - pages of whatever state become FREE (or RESERVED), with a new generation, and go to the index. */
void pool_take_back(struct pool *pool, uint32_t first, uint32_t count);

/* pool_take_back_word() - the same for the bits of `mask` in 64-page word `word`, in runs. */
void pool_take_back_word(struct pool *pool, uint32_t word, uint64_t mask);

/* pool_move() - a leased page to MOVING and back: same owner and generation, so that nobody takes it and pins wait. */
void pool_move(struct pool *pool, uint32_t page, enum page_state state);

/*
 * pool_set_aside() - a page of an ended session becomes RETIRED, of the next generation, for as long as somebody may
 * still write to it.
 */
void pool_set_aside(struct pool *pool, uint32_t page);

/*
 * pool_put_aside() - a page that is free, or was put aside, is QUARANTINED or RETIRED without an owner; it is in no
 * index.
 */
void pool_put_aside(struct pool *pool, uint32_t page, enum page_state state);

/* pool_quarantine_of() - all pages that are leased to a session whose connection closed while its process lives. */
void pool_quarantine_of(struct pool *pool, uint32_t owner);
/* pool_take_back_of() - all pages that are leased to a session. Returns how many. */
uint32_t pool_take_back_of(struct pool *pool, uint32_t owner);

static inline void pool_count(struct pool *pool, enum pool_counter counter, uint64_t more)
{
	_Atomic uint64_t *cell = &pool->segment.header->counters[counter];

	atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + more, memory_order_relaxed);
}

/* Pages idle in all sessions, by their free bits; an estimate, since workers change them. */
uint32_t pool_idle(const struct pool *pool);
/*
 * Those of them that are really their sessions': a decision must not believe what a liar's bits say. Cost: a pass over
 * the pages.
 */
uint32_t pool_idle_owned(const struct pool *pool);
/* Percent of the unreserved pages that are neither free nor idle. */
uint32_t pool_utilization(const struct pool *pool);
void pool_update_pressure(struct pool *pool);
/* Apply what a reload changed: tenants' minima and limits, policy, timeouts. */
void pool_configure(struct pool *pool);

/* What poolctl limit said holds until a reload: note it for the next agent, or forget all of it. */
void pool_limits_note(struct pool *pool, const struct tenant *tenant);
void pool_limits_forget(struct pool *pool);

/*
 * pools_minima_fit() - whether the minima of a configuration fit the pools as they run: a size in percent is known only
 * then, and a changed one waits for a restart while minima apply at once. 0, or -ERANGE with the reason in text.
 */
int pools_minima_fit(const struct agent *agent, const struct config *next, char *text, size_t text_bytes);

/* All live sessions as pool_check() and page_map_fill() want them; free() it. Count, or -ENOMEM. */
int pool_check_sessions(const struct pool *pool, struct pool_check_session **sessions);

struct tenant *pool_tenant(struct pool *pool, const char *name);

#endif
