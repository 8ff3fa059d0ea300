/*
 * jobs.h - the jobs of a pool for its mover, their results, and their end if the pool has no mover.
 *
 * All parts of the agent that move, clear or save pages share one ring. The upper byte of a job's tag identifies the
 * part; the rest of the tag is private to it.
 *
 * Jobs wait for a mover, because a new mover usually serves within milliseconds. A pool is without a mover (`gone`) if
 * none has served for mover.patience, or if movers have died repeatedly with the same jobs for that time. Saves and
 * loads then fail, and no new ones are begun until a mover serves. Pages to be cleared keep waiting, since they must
 * not be leased uncleared. docs/internals/agent.md, "No mover", explains why this is safe, and the state that an agent
 * leaves when it dies in the meantime.
 */
#ifndef GPOOL_AGENT_JOBS_H
#define GPOOL_AGENT_JOBS_H

#include "agent/agent.h"
#include "agent/keeper/channel.h"
#include "agent/spill/mover_queue.h"

#include <errno.h>

struct pool;

/* The numbers must not change: jobs in the ring survive the agent. */
enum job_owner { JOB_OF_SPILL = 1, JOB_OF_TRUST, JOB_OWNERS };
enum { JOB_OWNER_SHIFT = 56 };

/* The result of a job that was taken back: no mover will execute it, but a dead one may have begun it. */
enum { JOB_GIVEN_UP = -EOWNERDEAD };

/*
 * A part of the agent that submits jobs. pool_create() registers the parts in the order in which their go_on() is
 * called.
 */
struct job_user {
	/* Process the result of one of the part's jobs. */
	void (*done)(struct pool *pool, const struct mover_result *result);
	/* Complete finished work, and submit jobs that waited for a slot of the ring. */
	void (*go_on)(struct pool *pool);
	/*
	 * Continue without a mover. Called if the pool has none, after done() was called with JOB_GIVEN_UP for each job
	 * that could be withdrawn. NULL: the jobs of this part wait for the next mover.
	 */
	void (*give_up)(struct pool *pool);
};

struct jobs {
	struct pool *pool;
	const struct job_user *users[JOB_OWNERS];
	struct mover_queue queue;
	struct event_source done;

	/* The state of the movers. */
	bool told;      /* the keeper has reported the movers; before that, it is unknown which are alive */
	uint32_t ended; /* number of movers of this pool that have died */
	/* time of the report about the last mover that may have begun a job; 0: none */
	uint64_t died_ms;
	/* time since which no mover has served, or earlier jobs have not finished; 0: neither */
	uint64_t since_ms;
	uint64_t before; /* number of the last job submitted before since_ms */
	uint64_t oldest; /* number of the oldest job in flight */
	bool shut;       /* the gate is shut, because jobs are being taken back */
	bool gone;       /* without a mover for longer than mover.patience */
	char why[KEEP_TEXT_BYTES];
};

static inline uint64_t job_tag(enum job_owner owner, uint64_t own)
{
	return (uint64_t)owner << JOB_OWNER_SHIFT | own;
}

/*
 * jobs_open() - allocate pool->jobs and take over the jobs that an earlier agent has left in the ring. If the pool has
 * no ring, pool->jobs stays NULL. Return: 0, -ENOMEM, or the error of epoll.
 */
int jobs_open(struct pool *pool, const struct module_pool *start);
/* jobs_register() - set the functions of a part. Call it before jobs_resume(), which calls them. */
void jobs_register(struct pool *pool, enum job_owner owner, const struct job_user *user);
/* jobs_resume() - after a restart, process unread results and let all parts submit their jobs. */
void jobs_resume(struct pool *pool);
void jobs_close(struct pool *pool);

/* jobs_hear() - process KEEP_MOVER or KEEP_MOVER_END. */
void jobs_hear(struct pool *pool, const struct keep_message *message);
/* jobs_tick() - check the movers; called periodically. */
void jobs_tick(struct pool *pool);

/*
 * jobs_possible() - return true if the pool has a ring. jobs_served() - return true if, in addition, a mover serves it
 * or is expected.
 */
static inline bool jobs_possible(const struct jobs *jobs)
{
	return jobs != NULL;
}

static inline bool jobs_served(const struct jobs *jobs)
{
	return jobs_possible(jobs) && !jobs->gone;
}

/* jobs_mover() - return the pid of the mover that serves the ring; 0: no mover serves it yet. */
uint32_t jobs_mover(const struct jobs *jobs);

#endif
