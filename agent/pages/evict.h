/*
 * evict.h - eviction of unpinned blocks and objects in one order: the mechanism, and the interface of policies. The
 * mechanism is the protocol of shm/pins.h: mark the page word, read the pins, then restore the word or take the pages.
 * The agent never waits for a pin. A policy only orders candidates; it does not determine which content may be evicted.
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

/* Usages that the agent treats differently: values of enum gpool_usage, stored in a block's tag. */
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
	uint32_t idle_ms; /* time since its last use */
	float cost;       /* reload cost per byte, relative to reading from a disk; 1 for a block */
	uint8_t usage;
	uint8_t priority;
	bool cached; /* in a thread's magazine, or freed behind a fence: it has no content */
	float score; /* lowest first; with equal scores, lower priority, then longer idle */
};

/* A block or an object that exists at the time of a scan, whether it may be evicted or not. */
struct evict_sight {
	/* identifies the content for its worker: equal for content that is loaded again after an eviction */
	uint64_t key;
	uint64_t tag;
	uint32_t page;
	uint32_t session;
	uint32_t idle_ms; /* time since its last use */
	uint32_t touched; /* the worker's time stamp of that use */
};

typedef void evict_holder_found(void *context, uint32_t number, struct session *session, uint32_t pins);

struct evict_request;
struct lease_grant;
struct lease_request;
struct lease_want;

/* A policy. Calls come from the agent's one thread. */
struct evict_policy {
	const char *name;
	const char *objects; /* the policy of shm/policy/eviction.h for ephemeral objects */
	int (*create)(uint32_t page_count, void **state); /* 0, -ENOMEM */
	void (*destroy)(void *state);
	/* set weights and thresholds from the configuration; at start and at each reload. May be NULL */
	void (*configure)(void *state, const struct config *config);
	/* see all blocks and objects, at most one per page; once per scan. May be NULL */
	void (*see)(void *state, const struct evict_sight *sights, uint32_t count);
	/* set the score of each of candidates[count], which `see` has just received; cached ones are not passed */
	void (*score)(void *state, struct evict_candidate *candidates, uint32_t count);
	/* a block or an object was evicted; a policy with ghosts records it. May be NULL */
	void (*evicted)(void *state, const struct evict_candidate *candidate);
};

extern const struct evict_policy evict_lru_size_aware, evict_adaptive;
const struct evict_policy *evict_policy_named(const char *name);

/*
 * evict_usage_value() - return a weight, below 1, of content of this usage and priority; higher for content with a
 * higher reload cost.
 */
double evict_usage_value(const struct evict_candidate *candidate);
/* evict_order() - compare for sorting: negative if the left one is evicted first. No two candidates are equal. */
int evict_order(const struct evict_candidate *left, const struct evict_candidate *right);

/*
 * Saves the content of evicted blocks: agent/spill registers it as pool->saver. agent/spill/spill.h describes its
 * functions.
 */
struct content_saver {
	bool (*possible)(const struct pool *pool, uint32_t head, uint32_t pages);
	/* Return the number of pages that could be saved now. */
	uint32_t (*room)(const struct pool *pool);
	int (*begin)(
		struct session *session, uint32_t head, uint64_t tag, uint32_t pages, const struct spill_asker *asker);
	void (*request)(struct session *session, uint32_t slot, const struct lease_request *ask);
	int (*restorable)(const struct session *session, uint64_t tag, uint32_t pages);
	int (*restore)(
		struct session *session, const struct lease_want *want, uint64_t tag, const struct lease_grant *grant);
};

/*
 * Evictable content other than blocks: agent/object registers it as pool->evict.source. struct evict_request and the
 * tenant rules determine the content that a request may evict.
 */
struct evict_source {
	/* Order all content by the policy in pool->evict; 0, -ENOMEM: nothing has changed. */
	int (*order)(struct pool *pool);
	/* List all content as sights; return their number. */
	uint32_t (*see)(const struct pool *pool, struct evict_sight *sights, uint32_t now_ms);
	/*
	 * List the content that this request may evict, as candidates; scored() receives their scores. Cost: a check of
	 * each object.
	 */
	uint32_t (*candidates)(struct pool *pool, const struct evict_request *request,
		struct evict_candidate *candidates, uint32_t now_ms);
	void (*scored)(struct pool *pool, const struct evict_candidate *candidates, uint32_t count);
	/*
	 * Return the number of pages that the request may evict in addition to lost[] of each tenant. Cost: a check of
	 * each tenant.
	 */
	uint32_t (*evictable)(const struct pool *pool, const struct evict_request *request, const uint32_t *lost);
	/* Return the number of pages that the request may evict before a candidate. Cost: a check of each object. */
	uint32_t (*before)(
		const struct pool *pool, const struct evict_request *request, const struct evict_candidate *limit);
	/* Return the next object in order, or NULL. take() evicts it and returns its pages; 0: it was just pinned. */
	const struct evict_candidate *(*next)(struct pool *pool, const struct evict_request *request);
	uint32_t (*take)(struct pool *pool, uint32_t number);
	/* End an iteration by next(), before another scan. */
	void (*back)(struct pool *pool);
	/*
	 * window() finds the objects that this request may evict, with all that follow them. window_has() returns
	 * whether a page with this word belongs to one of them, score() its score; evict_at() evicts all that have a
	 * page in [first, first + count).
	 */
	void (*window)(struct pool *pool, const struct evict_request *request);
	bool (*window_has)(const struct pool *pool, uint64_t word);
	float (*score)(const struct pool *pool, uint64_t word);
	float (*highest_score)(const struct pool *pool);
	void (*evict_at)(struct pool *pool, uint32_t first, uint32_t count);
	/* Return the number of pages that can be evicted without affecting the work of any tenant. */
	uint32_t (*offered)(const struct pool *pool);
	/* Call `found` for each session that pins an object. */
	void (*holders)(const struct pool *pool, evict_holder_found *found, void *context);
};

struct evict_state {
	const struct evict_source *source; /* NULL: only blocks */
	const struct evict_policy *policy;
	void *policy_state;
	struct evict_candidate *queue; /* [page_count], ordered, of the last scan */
	struct evict_sight *sights;    /* [page_count] */
	uint32_t queue_head, queue_count;
	uint32_t queue_objects; /* scored objects that may still exist */
	uint64_t queue_ns;      /* time of the scan */
	/* number of scans, and the CPU time of the last one */
	uint64_t scan_count, scan_ns;
	/* it contains every block and object of the pool, and not the selection of one request */
	bool queue_general;
	uint64_t barren_ns; /* time of the last scan that found nothing; see evict.c */
	/* time at which an object was last closed: an earlier scan may have found too little */
	uint64_t released_ns;
	uint64_t *seen; /* [page_count] number of the last pass that visited this page */
	uint64_t look;
};

int evict_init(struct pool *pool);
void evict_fini(struct pool *pool);

/*
 * evict_look_begin() - begin a pass over pages. evict_look_first() - return true if this pass visits the page for the
 * first time: overlapping extents in a damaged segment must not be counted twice.
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
/* evict_queue_drop() - discard the queue: a session has ended, or blocks can no longer be spilled. */
void evict_queue_drop(struct pool *pool);

/*
 * evict_pages() - evict blocks and objects in one order until at least `pages` pages are free, or no candidate is left.
 *
 * @for_tenant: the tenant that needs the pages, which determines the content that may be evicted (see tenant rules in
 *                 docs/internals/agent.md); NULL: content of all tenants above their minimum
 * @only: only this session's blocks, and no objects; NULL: all @within: only pages leased to for_tenant itself (it is
 * at its limit) @contents: bit i: blocks of usage i may be evicted, and no objects; 0: all @cached_only: only pages in
 * magazines, which have no content @whole: `pages` or nothing: no content is lost for a request that would fail
 * @hysteresis: the part of `pages` with content that is evicted in addition, in whole pages: the next content in the
 *                 order, if there is some that may be evicted and is not larger. No scan is made for it
 * @by_operator: also content within a tenant's minimum @spare_offered: not content that is offered until it is needed:
 * pages of ranges and KV caches, shared prefixes @own_last: no content of this session, nor content that would be
 * evicted after it; NULL: no limit
 *
 * Return: the number of pages taken, including those of blocks that are being spilled and become free later
 * (pool->saving_pages).
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
 * evict_window() - make `need` adjacent pages available with the least loss of content: find a place where they are
 * free, idle, or in blocks or objects that may be evicted, and evict those. The cost of a page is its score. The caller
 * takes the free and idle pages. False: there is no such place, and nothing was evicted. Cost: a scan, and a pass over
 * the pages.
 */
bool evict_window(struct pool *pool, const struct evict_request *request, uint32_t need, uint32_t *first);
/*
 * evict_tenant_may_lose() - apply the tenant rules of docs/internals/agent.md: return true if `victim` may lose this
 * number of pages, in all, for a request of `taker` (NULL: of the pool). A tenant may always lose pages to itself, and
 * never its guaranteed minimum to another one.
 */
bool evict_tenant_may_lose(const struct tenant *victim, const struct tenant *taker, uint32_t pages);
/*
 * evict_to_spill() - spill one block on request of its worker: see spill_begin(). Return: as spill_begin(), also
 * -ESTALE (no such block), -EBUSY (pinned, or behind a fence).
 */
int evict_to_spill(struct session *session, uint32_t page, uint64_t tag, const struct spill_asker *asker);
/* evict_possible() - return true if request->pages could be evicted at this moment. Cost: a scan. */
bool evict_possible(struct pool *pool, const struct evict_request *request);

#endif
