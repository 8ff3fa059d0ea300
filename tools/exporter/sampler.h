/*
 * sampler.h - the state of the agent's pools, requested on demand.
 *
 * The sampler attaches to each pool as an observer, and attaches again after a restart of gpoold. If only the agent
 * restarts, it waits. Concurrent callers share an answer, and an answer younger than SAMPLE_MS is returned again. The
 * agent therefore receives the requests of at most 1000 / SAMPLE_MS samples per second, for any number of viewers.
 */
#ifndef GPOOL_TOOLS_EXPORTER_SAMPLER_H
#define GPOOL_TOOLS_EXPORTER_SAMPLER_H

#include "proto/codec.h"
#include "shm/pool_segment.h"

#include <stdbool.h>
#include <stdint.h>

enum { SAMPLE_MS = 50, KINDS_MS = 50, SAMPLE_POOLS = 32, SAMPLE_TENANTS = 256 };

/* Counts of versions of named objects. */
struct object_sample {
	uint32_t versions, pages;
};

struct pool_sample {
	const struct msg_pool_status *status;
	struct msg_totals_reply totals;
	uint64_t counters[POOL_COUNTERS];
	uint32_t state_pages[PAGE_STATES];
	struct object_sample objects[OBJECT_CLASSES];
	struct object_sample adapters; /* the pinnable objects that are adapters, recognized by their names */
};

struct sample {
	bool up;       /* the agent has answered; otherwise only `why`, `seconds` and `taken` are valid */
	char why[640]; /* the reason why it has not answered */
	struct msg_status_reply status;
	struct msg_tenants_reply tenants;
	struct msg_tenant_totals_reply usages[SAMPLE_TENANTS][BLOCK_USAGES]; /* [tenants.tenants_count] */
	struct pool_sample pools[SAMPLE_POOLS];                              /* [status.pools_count] */
	double seconds;                                                      /* duration of taking the sample */
	uint64_t taken;                                                      /* number of samples so far */
};

struct sampler;

/*
 * sampler_create() - create a sampler. It sends no request.
 *
 * @directory:  folder of the agent's sockets; must stay valid
 * @timeout_ms: longest wait for one answer
 * @changed:    called at the first sample, and when the agent starts or stops answering; may be NULL
 */
struct sampler *sampler_create(const char *directory, int timeout_ms, void (*changed)(const struct sample *sample));
void sampler_destroy(struct sampler *sampler);

/*
 * sampler_look() - return a current sample. The caller has exclusive access until sampler_done(); other callers wait.
 *
 * Threads: any. Cost: the agent scans all pages twice; the cost in the sampler depends only on the number of named
 * objects.
 */
const struct sample *sampler_look(struct sampler *sampler);
void sampler_done(struct sampler *sampler);
/* sampler_hold() - begin exclusive access, until sampler_done(), without taking a new sample. */
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
 * sampler_kinds() - return the state of each page of a pool, at most KINDS_MS old. Call it between sampler_look() or
 * sampler_hold() and sampler_done(). NULL: no such pool, or the agent does not answer. Cost: two replies of the agent
 * for 40,960 pages, for the first caller only.
 */
const struct page_kinds *sampler_kinds(struct sampler *sampler, const char *pool);

/*
 * sampler_page() - return all data about one page. Call it between sampler_look() and sampler_done(). Return: 0,
 * -ENOENT (no such pool, or the last sample failed), -EINVAL (no such page), or the error of the request.
 */
int sampler_page(struct sampler *sampler, const char *pool, uint32_t page, struct msg_page_entry *entry);

/* sampler_pool() - return the sample of the pool with that name; NULL: none. */
const struct pool_sample *sampler_pool(const struct sample *sample, const char *name);

#endif
