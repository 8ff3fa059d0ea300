/*
 * evict.h - eviction of unpinned blocks and objects in one order, and the interface of eviction policies. Eviction
 * follows the protocol of shm/pins.h: the agent marks the page word, reads the pins, and then restores the word or
 * takes the pages. It never waits for a pin. A policy only orders candidates; it does not determine which content may
 * be evicted.
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

/* The usages that the agent distinguishes. They are values of enum gpool_usage, stored in a block's tag. */
enum { EVICT_KV_CACHE = 0, EVICT_LORA_WEIGHT = 1, EVICT_ACTIVATION = 3 };

/*
 * A candidate for eviction: an evictable object, or a block or cached run that was unpinned and had a signaled fence at
 * the time of the scan. For an object, `page` is its first page, at which no block begins, and `tag` is derived from
 * its version.
 */
struct evict_candidate {
	uint64_t tag;
	uint32_t page;
	uint32_t pages;   /* all extents of a block included */
	uint32_t session; /* 0 for an object */
	uint32_t object;  /* number of the object; 0 for a block */
	uint32_t idle_ms; /* time since the last use */
	float cost;       /* reload cost per byte, relative to reading from a disk; 1 for a block */
	uint8_t usage;
	uint8_t priority;
	bool cached; /* without content: in a thread's magazine, or freed and not collected yet */
	float score; /* the lowest is evicted first; if equal: lower priority, then longer idle time */
};

/* A block or an object that exists at the time of a scan, evictable or not. */
struct evict_sight {
	/* identifies the content, even after its worker has loaded it again */
	uint64_t key;
	uint64_t tag;
	uint32_t page;
	uint32_t session;
	uint32_t idle_ms; /* time since the last use */
	uint32_t touched; /* the worker's time stamp of the last use */
};

typedef void evict_holder_found(void *context, uint32_t number, struct session *session, uint32_t pins);

struct evict_request;
struct lease_grant;
struct lease_request;
struct lease_want;

/* An eviction policy. Only the thread of the agent calls it. */
struct evict_policy {
	const char *name;
	const char *objects;                              /* policy of shm/policy/eviction.h for ephemeral objects */
	int (*create)(uint32_t page_count, void **state); /* return 0 or -ENOMEM */
	void (*destroy)(void *state);
	/* set weights and thresholds from the configuration, at the start and at each reload. May be NULL */
	void (*configure)(void *state, const struct config *config);
	/* record all blocks and objects, at most one per page; called once per scan. May be NULL */
	void (*see)(void *state, const struct evict_sight *sights, uint32_t count);
	/*
	 * set the score of each candidate, all of which were passed to `see` before. Cached candidates are not passed
	 */
	void (*score)(void *state, struct evict_candidate *candidates, uint32_t count);
	/* record the eviction of a block or object, if the policy keeps ghosts. May be NULL */
	void (*evicted)(void *state, const struct evict_candidate *candidate);
};

extern const struct evict_policy evict_lru_size_aware, evict_adaptive;

/*
 * evict_usage_value() - return a weight below 1 for content of this usage and priority. Content with a higher reload
 * cost has a higher weight.
 */
double evict_usage_value(const struct evict_candidate *candidate);
/*
 * evict_order() - compare two candidates for sorting. Return a negative number if `left` is evicted first, otherwise a
 * positive one.
 */
int evict_order(const struct evict_candidate *left, const struct evict_candidate *right);

/*
 * The functions that save the content of evicted blocks, described in agent/spill/spill.h. agent/spill registers them
 * as pool->saver.
 */
struct content_saver {
	bool (*possible)(const struct pool *pool, uint32_t head, uint32_t pages);
	/* Return the number of pages that can be saved now. */
	uint32_t (*room)(const struct pool *pool);
	int (*begin)(
		struct session *session, uint32_t head, uint64_t tag, uint32_t pages, const struct spill_asker *asker);
	void (*request)(struct session *session, uint32_t slot, const struct lease_request *ask);
	int (*restorable)(const struct session *session, uint64_t tag, uint32_t pages);
	int (*restore)(
		struct session *session, const struct lease_want *want, uint64_t tag, const struct lease_grant *grant);
};

/*
 * Functions for evictable content other than blocks. agent/object registers them as pool->evict.source. struct
 * evict_request and the tenant rules determine the content that a request may evict.
 */
struct evict_source {
	/* Order all content by the policy in pool->evict. Return: 0, or -ENOMEM with nothing changed. */
	int (*order)(struct pool *pool);
	/* List all content as sights and return their number. */
	uint32_t (*see)(const struct pool *pool, struct evict_sight *sights, uint32_t now_ms);
	/*
	 * List the content that this request may evict, as candidates, after an update of the last use of all content.
	 * scored() receives the candidates with their scores. Cost: a check of each object.
	 */
	uint32_t (*candidates)(struct pool *pool, const struct evict_request *request,
		struct evict_candidate *candidates, uint32_t now_ms);
	void (*scored)(struct pool *pool, const struct evict_candidate *candidates, uint32_t count);
	/*
	 * Return the number of pages that the request may evict, if each tenant has already lost lost[] pages. Cost: a
	 * check of each tenant.
	 */
	uint32_t (*evictable)(const struct pool *pool, const struct evict_request *request, const uint32_t *lost);
	/*
	 * Return the number of pages that the request may evict before the candidate `limit`. Cost: a check of each
	 * object.
	 */
	uint32_t (*before)(
		const struct pool *pool, const struct evict_request *request, const struct evict_candidate *limit);
	/*
	 * next() returns the next object in order, or NULL. take() evicts it and returns the number of its pages; 0 if
	 * it has been pinned.
	 */
	const struct evict_candidate *(*next)(struct pool *pool, const struct evict_request *request);
	uint32_t (*take)(struct pool *pool, uint32_t number);
	/* End an iteration with next(). Required before another scan. */
	void (*back)(struct pool *pool);
	/*
	 * window() determines the objects that this request may evict, each with all objects that follow it.
	 * window_has() returns true if a page with this word belongs to one of them, and score() returns its score.
	 * mark() marks those that have a page in [first, first + count), and evict_marked() evicts the marked ones with
	 * all objects that follow them. Cost of evict_marked(): a sort of all objects.
	 */
	void (*window)(struct pool *pool, const struct evict_request *request);
	bool (*window_has)(const struct pool *pool, uint64_t word);
	float (*score)(const struct pool *pool, uint64_t word);
	float (*highest_score)(const struct pool *pool);
	void (*mark)(struct pool *pool, uint32_t first, uint32_t count);
	void (*evict_marked)(struct pool *pool);
	/* Return the number of pages that can be evicted without an effect on the work of any tenant. */
	uint32_t (*offered)(const struct pool *pool);
	/* Call `found` for each session that pins an object. */
	void (*holders)(const struct pool *pool, evict_holder_found *found, void *context);
};

struct evict_state {
	const struct evict_source *source; /* NULL: only blocks exist */
	const struct evict_policy *policy;
	void *policy_state;
	struct evict_candidate *queue; /* [page_count] result of the last scan, in order */
	struct evict_sight *sights;    /* [page_count] */
	uint32_t queue_head, queue_count;
	uint32_t queue_objects; /* number of scored objects; some may have been evicted or deleted after the scan */
	uint64_t queue_ns;      /* time of the scan */
	/* number of scans, and CPU time of the last scan */
	uint64_t scan_count, scan_ns;
	/* the queue contains every block and object, not only those that one request may evict */
	bool queue_general;
	uint64_t barren_ns; /* time of the last scan that found nothing to evict; see evict.c */
	bool put_off;       /* set by evict_pages() if the next scan must wait; the caller clears it */
	/* time at which an object was last closed, which makes it evictable */
	uint64_t released_ns;
	uint64_t *seen; /* [page_count] number of the last pass that visited the page */
	uint64_t look;
};

int evict_init(struct pool *pool);
void evict_fini(struct pool *pool);

/*
 * evict_look_begin() - begin a pass over pages.
 * evict_look_first() - return true if this pass visits the page for the first time. Overlapping extents of a damaged
 * segment are therefore counted once.
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
/* evict_queue_drop() - discard the queue. Call it when a session has ended, or when blocks can no longer be spilled. */
void evict_queue_drop(struct pool *pool);

/*
 * evict_pages() - evict blocks and objects in one order until at least `pages` pages are free, or no candidate is left.
 *
 * @for_tenant:    tenant that needs the pages; determines the content that may be evicted (tenant rules in
 *                 docs/internals/agent.md). NULL: content of all tenants above their minimum
 * @only:          evict only this session's blocks, and no objects; NULL: no restriction
 * @own_last:      evict no content of this session, nor content that follows it in the order; NULL: no restriction
 * @within:        evict only pages leased to for_tenant, which is at its limit
 * @cached_only:   evict only pages without content: in magazines, and of freed blocks
 * @whole:         evict `pages` or nothing, so that no content is lost for a request that would fail
 * @by_operator:   also evict content within a tenant's minimum
 * @spare_offered: do not evict offered pages of ranges and KV caches, and shared prefixes
 * @usages:        bit i: evict blocks of usage i, and no objects; 0: no restriction
 * @hysteresis:    share of `pages`, less those without content, that is evicted in addition, in whole pages. The next
 *                 content in the order is evicted if it is allowed and not larger; no scan is made for it
 *
 * Return: the number of pages taken, including pages of blocks that are being spilled and become free later
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
 * evict_window() - make `need` adjacent pages available with the least loss of content. It finds a place where all
 * pages are free, idle, or part of content that may be evicted, and evicts this content. The caller takes the free and
 * idle pages. Return true and set *first; content at that place may have been pinned in the meantime, or its spill may
 * be in progress. Return false, without an eviction, if no such place exists or memory is short.
 * Cost: a scan, and a pass over the pages.
 */
bool evict_window(struct pool *pool, const struct evict_request *request, uint32_t need, uint32_t *first);
/*
 * evict_handles() - make `count` handles available with the least loss of content, like evict_window(). They need not
 * be adjacent. chosen: a bit for each handle, all clear; receives the chosen handles.
 */
bool evict_handles(struct pool *pool, const struct evict_request *request, uint32_t count, uint64_t *chosen);
/*
 * evict_tenant_may_lose() - apply the tenant rules of docs/internals/agent.md: return true if `victim` may lose `pages`
 * pages in total for a request of `taker` (NULL: of the pool). A tenant may always lose pages to itself, but never
 * pages of its guaranteed minimum to another tenant.
 */
bool evict_tenant_may_lose(const struct tenant *victim, const struct tenant *taker, uint32_t pages);
/*
 * evict_to_spill() - spill one block on request of its worker. Return: as spill_begin(), and -ESTALE (no such block),
 * -EBUSY (pinned, or its fence is not signaled).
 */
int evict_to_spill(struct session *session, uint32_t page, uint64_t tag, const struct spill_asker *asker);
/* evict_possible() - return true if request->pages can be evicted now. Cost: a scan. */
bool evict_possible(struct pool *pool, const struct evict_request *request);

#endif
