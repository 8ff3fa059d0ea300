/*
 * sampler.h - the agent's state of its pools, requested when a caller needs it.
 *
 * The sampler attaches as an observer to each pool, and again when gpoold was restarted; it waits for an agent that
 * restarts under the same gpoold. Concurrent callers get the same answer, and answers younger than SAMPLE_MS are
 * returned again: for any number of viewers, the agent gets at most 1000 / SAMPLE_MS requests a second.
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
	struct object_sample adapters; /* of the pinnable ones, selected by their names */
};

struct sample {
	bool up;       /* the agent has answered; otherwise only `why` is valid */
	char why[640]; /* why it has not */
	struct msg_status_reply status;
	struct msg_tenants_reply tenants;
	struct pool_sample pools[SAMPLE_POOLS]; /* [status.pools_count] */
	double seconds;                         /* duration of the sample */
	uint64_t taken;                         /* number of samples so far */
};

struct sampler;

/*
 * sampler_create() - create a sampler, without a request.
 *
 * @directory: of the agent's sockets; must stay valid @timeout_ms: longest wait for one answer @changed: called when
 * the agent starts or stops to answer, and at the first sample; may be NULL
 */
struct sampler *sampler_create(const char *directory, int timeout_ms, void (*changed)(const struct sample *sample));
void sampler_destroy(struct sampler *sampler);

/*
 * sampler_look() - return a current sample. The caller has exclusive access until sampler_done(); others wait.
 *
 * Threads: any. Cost: the agent scans all pages twice; in the sampler, only the number of named objects matters.
 */
const struct sample *sampler_look(struct sampler *sampler);
void sampler_done(struct sampler *sampler);
/* sampler_hold() - return the last sample, for callers that need no new one. */
void sampler_hold(struct sampler *sampler);

/* The state of a page: struct msg_page_kind, as in the agent's reply. */
enum { PAGES_MAX = UINT16_MAX };
struct page_kinds {
	char pool[64];
	uint32_t count;
	uint64_t taken_ms; /* 0: never */
	struct msg_page_kind pages[PAGES_MAX];
};

/*
 * sampler_kinds() - return the state of each page of a pool, between sampler_look() and sampler_done(); at most
 * KINDS_MS old. NULL: no such pool, or the agent does not answer. Cost: for the first caller two replies of the agent
 * for 40,960 pages.
 */
const struct page_kinds *sampler_kinds(struct sampler *sampler, const char *pool);

/*
 * sampler_page() - return all data about one page, also between these calls: 0, -ENOENT (no such pool), -EINVAL (no
 * such page), or why the agent does not answer.
 */
int sampler_page(struct sampler *sampler, const char *pool, uint32_t page, struct msg_page_entry *entry);

/* sampler_pool() - return the sample of the pool of that name; NULL: none. */
const struct pool_sample *sampler_pool(const struct sample *sample, const char *name);

#endif
