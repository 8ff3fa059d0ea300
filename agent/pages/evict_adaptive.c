/*
 * evict_adaptive.c - the policy `adaptive`: score = expected uses (shm/policy/eviction.h) x reload cost per byte x a
 * weight of usage and priority. Blocks and objects are nodes without a parent, so that one clock measures the uses of
 * both. (Ephemeral objects depend on each other; a separate tree contains their order.)
 *
 * The policy sees content only when the agent scans. Content that is new in a scan was allocated. A changed time stamp
 * counts as one use, even if the content was used several times. Content that has disappeared without an eviction is
 * forgotten. Evicted content that is loaded again is recognized by its key.
 *
 * Keys and time stamps are reported by workers and are not trusted. A session can claim at most one use per scan for
 * each of its own blocks. The number of ghosts is limited to EVICTION_GHOSTS per page; the oldest are replaced.
 */
#include "agent/config/config.h"
#include "agent/pages/evict.h"
#include "shm/policy/eviction.h"
#include "shm/session_segment.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* The block or object that started at a page in the last scan. */
struct known {
	uint64_t sequence; /* sequence of the tag */
	uint64_t key;
	uint32_t session, touched;
	uint32_t node; /* node plus 1; 0: nothing starts at this page */
	uint32_t scan;
};

struct adaptive {
	struct eviction *eviction;
	struct known *known;         /* [page_count] */
	struct evict_sight *changed; /* [page_count] temporary: new and used content */
	uint32_t page_count;
	uint32_t scan;
	double priority; /* weight of usage and priority */
};

static void adaptive_destroy(void *state)
{
	struct adaptive *adaptive = state;

	if (!adaptive)
		return;
	eviction_destroy(adaptive->eviction);
	free(adaptive->known);
	free(adaptive->changed);
	free(adaptive);
}

static int adaptive_create(uint32_t page_count, void **state)
{
	struct adaptive *adaptive = calloc(1, sizeof(*adaptive));

	if (!adaptive)
		return -ENOMEM;
	adaptive->page_count = page_count;
	adaptive->known = calloc(page_count, sizeof(*adaptive->known));
	adaptive->changed = calloc(page_count, sizeof(*adaptive->changed));
	if (adaptive->known && adaptive->changed &&
		!eviction_create(eviction_policy_named("adaptive"), page_count, &adaptive->eviction)) {
		*state = adaptive;
		return 0;
	}
	adaptive_destroy(adaptive);
	return -ENOMEM;
}

static void adaptive_configure(void *state, const struct config *config)
{
	struct adaptive *adaptive = state;

	adaptive->priority = config->eviction.priority;
}

/* Return true if the content is the same; its attributes may have changed. */
static bool is_same(const struct known *known, uint64_t tag, uint32_t session)
{
	return known->sequence == tag >> BLOCK_SEQUENCE_SHIFT && known->session == session;
}

static void forget(struct adaptive *adaptive, struct known *known)
{
	eviction_remove(adaptive->eviction, known->node - 1);
	known->node = 0;
}

/* Sort by idle time, longest first, so that uses are recorded in the order in which they happened. */
static int by_idle(const void *left, const void *right)
{
	const struct evict_sight *a = left, *b = right;

	if (a->idle_ms != b->idle_ms)
		return a->idle_ms > b->idle_ms ? -1 : 1;
	return a->page < b->page ? -1 : a->page > b->page;
}

static void used(struct adaptive *adaptive, const struct evict_sight *sight)
{
	struct known *known = &adaptive->known[sight->page];
	uint32_t node;

	known->touched = sight->touched;
	if (known->node) {
		eviction_touch(adaptive->eviction, known->node - 1);
		return;
	}
	/* This cannot fail, because the tree has one node per page. */
	eviction_insert(adaptive->eviction, EVICTION_NONE, sight->key, &node);
	known->node = node + 1;
	known->sequence = sight->tag >> BLOCK_SEQUENCE_SHIFT;
	known->session = sight->session;
	known->key = sight->key;
}

static void adaptive_see(void *state, const struct evict_sight *sights, uint32_t count)
{
	struct adaptive *adaptive = state;
	uint32_t changed = 0;

	adaptive->scan++;
	for (uint32_t i = 0; i < count; i++) {
		struct known *known = &adaptive->known[sights[i].page];

		/* Another key means other content: a KV cache reuses the block of a chunk. */
		if (known->node && (!is_same(known, sights[i].tag, sights[i].session) || known->key != sights[i].key))
			forget(adaptive, known);
		known->scan = adaptive->scan;
		if (!known->node || known->touched != sights[i].touched)
			adaptive->changed[changed++] = sights[i];
	}
	for (uint32_t page = 0; page < adaptive->page_count; page++)
		if (adaptive->known[page].node && adaptive->known[page].scan != adaptive->scan)
			forget(adaptive, &adaptive->known[page]);
	qsort(adaptive->changed, changed, sizeof(*adaptive->changed), by_idle);
	for (uint32_t i = 0; i < changed; i++)
		used(adaptive, &adaptive->changed[i]);
}

static void adaptive_score(void *state, struct evict_candidate *candidates, uint32_t count)
{
	const struct adaptive *adaptive = state;

	for (uint32_t i = 0; i < count; i++) {
		const struct known *known = &adaptive->known[candidates[i].page];
		/*
		 * Content that was allocated after the scan visited its page has the lowest worth until the next scan.
		 */
		float uses = known->node ? eviction_worth(adaptive->eviction, known->node - 1) : 0;

		candidates[i].score =
			uses * candidates[i].cost * (float)(1 + adaptive->priority * evict_usage_value(&candidates[i]));
	}
}

static void adaptive_evicted(void *state, const struct evict_candidate *candidate)
{
	struct adaptive *adaptive = state;
	struct known *known = &adaptive->known[candidate->page];

	if (!known->node || !is_same(known, candidate->tag, candidate->session))
		return;
	eviction_evict(adaptive->eviction, known->node - 1);
	known->node = 0;
}

const struct evict_policy evict_adaptive = {
	.name = "adaptive",
	.objects = "adaptive",
	.create = adaptive_create,
	.destroy = adaptive_destroy,
	.configure = adaptive_configure,
	.see = adaptive_see,
	.score = adaptive_score,
	.evicted = adaptive_evicted,
};
