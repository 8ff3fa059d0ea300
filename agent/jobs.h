/*
 * jobs.h - what a pool has its mover do, and who is told when it is done.
 *
 * One ring for all who move, clear or save pages. The upper byte of a job's tag says whose it is, the rest is his own.
 */
#ifndef GPOOL_AGENT_JOBS_H
#define GPOOL_AGENT_JOBS_H

#include "agent/agent.h"
#include "agent/mover/mover_queue.h"

struct pool;

enum job_owner { JOB_OF_SPILL = 1, JOB_OF_TRUST };
enum { JOB_OWNER_SHIFT = 56 };

struct jobs {
	struct mover_queue queue;
	struct event_source done; /* .fd -1: this pool has no mover */
};

static inline uint64_t job_tag(enum job_owner owner, uint64_t own)
{
	return (uint64_t)owner << JOB_OWNER_SHIFT | own;
}

/* jobs_open() - takes over what an earlier agent has left in the ring. 0, or what epoll said. */
int jobs_open(struct pool *pool, const struct module_pool *start);
/* jobs_resume() - after a restart: results that nobody has looked at, and jobs that were not submitted. */
void jobs_resume(struct pool *pool);
void jobs_close(struct pool *pool);

static inline bool jobs_possible(const struct jobs *jobs)
{
	return jobs->done.fd >= 0;
}

#endif
