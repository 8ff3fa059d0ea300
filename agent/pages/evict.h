/*
 * evict.h - taking unpinned blocks and whole objects in one order: the mechanism, and the interface that policies fill.
 *
 * The mechanism is the protocol of shm/pins.h: mark the page word, look at the pins, put the word back or take the
 * pages. The agent never waits for a pin. A policy only orders candidates; it never decides what may be taken.
 */
#ifndef GPOOL_AGENT_EVICT_H
#define GPOOL_AGENT_EVICT_H

#include <stdbool.h>
#include <stdint.h>

struct pool;
struct spill_asker;
struct session;
struct tenant;
struct config;

/* Content types as the agent tells them apart: those of enum gpool_usage, which a block's tag carries. */
enum { EVICT_KV_CACHE = 0, EVICT_LORA_WEIGHT = 1, EVICT_ACTIVATION = 3 };

/*
 * A candidate for eviction: a block or cached run that was unpinned, with its fence signaled, at the scan; or an object
 * that may be evicted. For an object, `page` is its first page, at which no block begins, and `tag` is derived from its
 * version.
 */
struct evict_candidate {
	uint64_t tag;
	uint32_t page;
	uint32_t pages;   /* all extents */
	uint32_t session; /* 0: an object */
	uint32_t object;  /* its number; 0: a block */
	uint32_t idle_ms; /* since its last use */
	float cost;       /* to have it again, for each byte: a block counts 1, as what is read from a disk */
	uint8_t usage;
	uint8_t priority;
	bool cached; /* in a thread's magazine, or freed behind a fence: no content to lose */
	float score; /* lowest goes first; of the same, lower priority, then longer idle */
};

/* A block or an object that stands in the pool at a scan, whether it may be taken or not. */
struct evict_sight {
	uint64_t key; /* what it is to its worker: the same one for what takes its place after an eviction */
	uint64_t tag;
	uint32_t page;
	uint32_t session;
	uint32_t idle_ms; /* since its last use */
	uint32_t touched; /* time stamp of that, as its worker wrote it */
};

typedef void evict_holder_found(void *context, uint32_t number, struct session *session, uint32_t pins);

struct evict_request;
struct lease_request;

/* A policy. Calls come from the agent's one thread. */
struct evict_policy {
	const char *name;
	const char *objects; /* the one of shm/policy/eviction.h by which ephemeral objects go */
	int (*create)(uint32_t page_count, void **state); /* 0, -ENOMEM */
	void (*destroy)(void *state);
	/* weights and thresholds from the configuration; at start and at each reload. May be NULL */
	void (*configure)(void *state, const struct config *config);
	/* all blocks and objects that there are, no two at one page; once a scan. May be NULL */
	void (*see)(void *state, const struct evict_sight *sights, uint32_t count);
	/* set the score of each of candidates[count], which were seen just now; cached ones are not shown */
	void (*score)(void *state, struct evict_candidate *candidates, uint32_t count);
	/* a block or an object was evicted; a policy that keeps ghosts remembers it. May be NULL */
	void (*evicted)(void *state, const struct evict_candidate *candidate);
};

extern const struct evict_policy evict_lru_size_aware, evict_adaptive;
const struct evict_policy *evict_policy_named(const char *name);

/*
 * evict_usage_value() - below 1: what a loss of this content and priority counts, more for what is dearer to make
 * again.
 */
double evict_usage_value(const struct evict_candidate *candidate);
/* evict_order() - for sorting: below 0 where the left one goes first. No two are the same. */
int evict_order(const struct evict_candidate *left, const struct evict_candidate *right);

/*
 * What saves the content of blocks that are evicted: agent/spill registers it as pool->saver. Its functions are
 * described in agent/spill/spill.h.
 */
struct content_saver {
	bool (*possible)(const struct pool *pool, uint32_t head, uint32_t pages);
	/* Return how many pages could be saved now. */
	uint32_t (*room)(const struct pool *pool);
	int (*begin)(
		struct session *session, uint32_t head, uint64_t tag, uint32_t pages, const struct spill_asker *asker);
	void (*request)(struct session *session, uint32_t slot, const struct lease_request *ask);
};

/*
 * Content beside blocks that may be evicted: agent/object registers it as pool->evict.source. In all of it a request
 * may have what struct evict_request and the tenant rules say.
 */
struct evict_source {
	/* Order all content by the policy in pool->evict; 0, -ENOMEM: nothing has changed. */
	int (*order)(struct pool *pool);
	/* List all content as sights; return how many. */
	uint32_t (*see)(const struct pool *pool, struct evict_sight *sights, uint32_t now_ms);
	/* List what this request may have, for its scores, which scored() returns. Cost: a look at each piece. */
	uint32_t (*candidates)(struct pool *pool, const struct evict_request *request,
		struct evict_candidate *candidates, uint32_t now_ms);
	void (*scored)(struct pool *pool, const struct evict_candidate *candidates, uint32_t count);
	/* Return the pages that the request may have beside lost[] of each tenant. Cost: a look at each tenant. */
	uint32_t (*evictable)(const struct pool *pool, const struct evict_request *request, const uint32_t *lost);
	/* Return the pages that the request may have and that precede a candidate. Cost: a look at each piece. */
	uint32_t (*before)(
		const struct pool *pool, const struct evict_request *request, const struct evict_candidate *limit);
	/* Return the next piece in order, or NULL. take() evicts it: its pages, 0 if it was pinned just now. */
	const struct evict_candidate *(*next)(struct pool *pool, const struct evict_request *request);
	uint32_t (*take)(struct pool *pool, uint32_t number);
	/* End a walk by next(), before another scan. */
	void (*back)(struct pool *pool);
	/*
	 * Find what this request may have, with all that follows it; window_has(), whether a page with this word is of
	 * that, score(), of such a page, and evict_at(), all that has a page in [first, first + count).
	 */
	void (*window)(struct pool *pool, const struct evict_request *request);
	bool (*window_has)(const struct pool *pool, uint64_t word);
	float (*score)(const struct pool *pool, uint64_t word);
	float (*highest_score)(const struct pool *pool);
	void (*evict_at)(struct pool *pool, uint32_t first, uint32_t count);
	/* Return the pages that can be evicted without loss to the work of any tenant. */
	uint32_t (*offered)(const struct pool *pool);
	/* Call `found` for each session that pins a piece. */
	void (*holders)(const struct pool *pool, evict_holder_found *found, void *context);
};

struct evict_state {
	const struct evict_source *source; /* NULL: blocks are all that there is */
	const struct evict_policy *policy;
	void *policy_state;
	struct evict_candidate *queue; /* [page_count], ordered, of the last scan */
	struct evict_sight *sights;    /* [page_count] */
	uint32_t queue_head, queue_count;
	uint32_t queue_objects;       /* objects that were scored with it and may still be there */
	uint64_t queue_ns;            /* when it was scanned */
	uint64_t scan_count, scan_ns; /* how many, and the CPU time of the last one */
	bool queue_general;           /* holds every block and object of the pool, not one request's choice */
	uint64_t barren_ns;           /* when a scan last found nothing; see evict.c */
	/* when an object last was let go of: a scan before that may have found too little */
	uint64_t released_ns;
	uint64_t *seen; /* [page_count] the last look that came by this page */
	uint64_t look;
};

int evict_init(struct pool *pool);
void evict_fini(struct pool *pool);

/*
 * evict_look_begin(), evict_look_first() - extents that a hostile segment lays over each other must not be taken for
 * more pages than they have: whether this look comes by the page for the first time.
 */
static inline void evict_look_begin(struct evict_state *evict)
{
	evict->look++;
}

static inline bool evict_look_first(struct evict_state *evict, uint32_t page)
{
	bool first = evict->seen[page] != evict->look;

	evict->seen[page] = evict->look;
	return first;
}

void evict_configure(struct pool *pool);
/* evict_queue_drop() - what was scanned holds no more: a session has ended, or blocks that could be spilled cannot. */
void evict_queue_drop(struct pool *pool);

/*
 * evict_pages() - take blocks and objects in one order until at least `pages` pages came free, or no candidate is
 * left. Returns pages taken; those of blocks that are spilled count, although they come free later
 * (pool->saving_pages).
 * @for_tenant:  who needs them: decides whose content may go (see tenant rules in docs/internals/agent.md); NULL: all
 *               above their minimum
 * @only:        only this session's blocks, and no objects; NULL: all
 * @within:      only what is on the books of for_tenant itself (it is at its limit)
 * @contents:    bit i: blocks of usage i may go, and no objects; 0: all
 * @cached_only: only magazine pages, which hold no content
 * @whole:       `pages` or nothing: no content is lost for a request that fails all the same
 * @hysteresis:  for `pages` as far as they had content, so much more beside them, in whole pages: what is next in the
 *               order, if it is there, may go and is no larger. None is looked for
 * @by_operator: also what a tenant's minimum protects
 * @spare_offered: not what is offered until it is needed: pages of ranges and KV caches, prefixes that engines share
 * @own_last:    no content of this session's, and nothing that would go after some of it; NULL: no limit
 */
struct evict_request {
	struct tenant *for_tenant;
	struct session *only;
	const struct session *own_last;
	bool within;
	bool cached_only;
	bool whole;
	bool by_operator;
	bool spare_offered;
	uint32_t usages;
	uint32_t pages;
	double hysteresis;
};
uint32_t evict_pages(struct pool *pool, const struct evict_request *request);
/*
 * evict_window() - make `need` pages in a row takeable with the least loss of content: finds the place where they are
 * free, idle or in blocks or objects that may go, and evicts those. A page counts as its score says. Free and idle
 * pages there are left to the caller. False: there is no such place, and nothing was lost. Cost: a scan, and a pass
 * over the pages.
 */
bool evict_window(struct pool *pool, const struct evict_request *request, uint32_t need, uint32_t *first);
/*
 * evict_tenant_may_lose() - the tenant rules of docs/internals/agent.md: may `victim` lose so many pages, all that it
 * loses for this request, so that `taker` (NULL: the pool at large) gets its pages? Its own always; a guaranteed
 * minimum never.
 */
bool evict_tenant_may_lose(const struct tenant *victim, const struct tenant *taker, uint32_t pages);
/*
 * evict_to_spill() - one block by name, at its worker's own wish: see spill_begin(). Return: 0, also -ESTALE (not
 * there), -EBUSY (pinned, or behind a fence).
 */
int evict_to_spill(struct session *session, uint32_t page, uint64_t tag, const struct spill_asker *asker);
/* evict_possible() - whether request->pages could be had so, at this moment. Nothing is taken. Cost: a scan. */
bool evict_possible(struct pool *pool, const struct evict_request *request);

#endif
