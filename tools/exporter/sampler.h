/*
 * sampler.h - the agent's state of its pools, requested when a caller needs it.
 *
 * Attaches as an observer to each pool, and again when gpoold was restarted; an agent that restarts under the same
 * gpoold is waited for. Concurrent callers get the same answer, and answers younger than SAMPLE_MS are given
 * again: however many people look, the agent is asked 1000 / SAMPLE_MS times a second at most.
 */
#ifndef GPOOL_TOOLS_EXPORTER_SAMPLER_H
#define GPOOL_TOOLS_EXPORTER_SAMPLER_H

#include "proto/codec.h"
#include "shm/pool_segment.h"

#include <stdbool.h>
#include <stdint.h>

enum { SAMPLE_MS = 50, KINDS_MS = 50, SAMPLE_POOLS = 32 };

/* Versions of named objects. */
struct object_sample {
	uint32_t versions, pages;
};

struct pool_sample {
	const struct msg_pool_status *status;
	struct msg_totals_reply totals;
	uint64_t counters[POOL_COUNTERS];
	uint32_t state_pages[PAGE_STATES];
	struct object_sample objects[OBJECT_CLASSES];
	struct object_sample adapters; /* of the pinnable ones, by their names */
};

struct sample {
	bool up;       /* the agent has answered; without that only `why` has a meaning */
	char why[640]; /* it has not */
	struct msg_status_reply status;
	struct msg_tenants_reply tenants;
	struct pool_sample pools[SAMPLE_POOLS]; /* [status.pools_count] */
	double seconds;                         /* it took */
	uint64_t taken;                         /* samples so far */
};

struct sampler;

/*
 * sampler_create() - nothing is asked yet.
 * @directory:  of the agent's sockets; stays the caller's
 * @timeout_ms: longest wait for one answer
 * @changed:    called when the agent begins or stops to answer, and at the first sample; may be NULL
 */
struct sampler *sampler_create(const char *directory, int timeout_ms, void (*changed)(const struct sample *sample));
void sampler_destroy(struct sampler *sampler);

/*
 * sampler_look() - a sample of now. The caller has it for himself up to sampler_done(), and others wait.
 * Threads: any. Cost: the agent walks all pages twice; nothing here depends on their number, only on that of named
 * objects.
 */
const struct sample *sampler_look(struct sampler *sampler);
void sampler_done(struct sampler *sampler);
/* sampler_hold() - instead of sampler_look() for callers that need no new sample: return the last one. */
void sampler_hold(struct sampler *sampler);

/* What a page is now: struct msg_page_kind, as the agent gives it. */
enum { PAGES_MAX = UINT16_MAX };
struct page_kinds {
	char pool[64];
	uint32_t count;
	uint64_t taken_ms; /* 0: never */
	struct msg_page_kind pages[PAGES_MAX];
};

/*
 * sampler_kinds() - what each page of a pool is, between sampler_look() and sampler_done(); not older than KINDS_MS.
 * NULL: there is no such pool, or the agent does not answer. Cost: for those who ask first two answers of the agent for
 * 40,960 pages.
 */
const struct page_kinds *sampler_kinds(struct sampler *sampler, const char *pool);

/*
 * sampler_page() - all about one page, likewise: 0, -ENOENT (no such pool), -EINVAL (no such page), or why the agent
 * does not answer.
 */
int sampler_page(struct sampler *sampler, const char *pool, uint32_t page, struct msg_page_entry *entry);

/* sampler_pool() - the sample of the pool of that name; NULL: there is none. */
const struct pool_sample *sampler_pool(const struct sample *sample, const char *name);

#endif
