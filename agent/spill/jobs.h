/*
 * jobs.h - what a pool has its mover do, who is told when it is done, and what becomes of it when nobody does it.
 *
 * One ring serves all rooms that move, clear or save pages. The upper byte of a job's tag names the room, the rest is
 * the room's own.
 *
 * Jobs wait for a mover, since the next one is mostly there within milliseconds. Where none has served for
 * mover.patience, or each dies over the same jobs for so long, the pool is without one (`gone`): what was to be saved
 * or loaded is given up and nothing of that kind is begun, until a mover serves again. What was to be cleared goes on
 * waiting, since nobody may have it as it is. docs/internals/agent.md, "No mover", says why that may be done, and what
 * an agent that dies in it leaves.
 */
#ifndef GPOOL_AGENT_JOBS_H
#define GPOOL_AGENT_JOBS_H

#include "agent/agent.h"
#include "agent/keeper/channel.h"
#include "agent/spill/mover_queue.h"

#include <errno.h>

struct pool;

/* Numbers are never changed: jobs in the ring outlive the agent. */
enum job_owner { JOB_OF_SPILL = 1, JOB_OF_TRUST, JOB_OWNERS };
enum { JOB_OWNER_SHIFT = 56 };

/* The result of a job that was taken back: no mover has said it, and none will do the job. */
enum { JOB_GIVEN_UP = -EOWNERDEAD };

/* A room that submits jobs. pool_create() registers them, in the order in which go_on() is called. */
struct job_user {
	/* Handle the result of one of its jobs. */
	void (*done)(struct pool *pool, const struct mover_result *result);
	/* End what has finished, and submit jobs that had to wait for a slot of the ring. */
	void (*go_on)(struct pool *pool);
	/*
	 * No mover serves: called after done() with JOB_GIVEN_UP for each of its jobs that could be taken back. NULL:
	 * its jobs wait for the next mover.
	 */
	void (*give_up)(struct pool *pool);
};

struct jobs {
	struct pool *pool;
	const struct job_user *users[JOB_OWNERS];
	struct mover_queue queue;
	struct event_source done;

	/* Who does them. */
	bool told;      /* the keeper has spoken: before that nobody knows who lives */
	uint32_t ended; /* so many of this pool's movers are dead */
	/* when the keeper said so of the last one that may have begun something; 0: there was none */
	uint64_t died_ms;
	/* no mover serves, or jobs of before are not done, and the oldest one waits; 0: all is well */
	uint64_t since_ms;
	uint64_t before; /* the number of the last job of before */
	uint64_t oldest; /* of the first one in flight */
	bool shut;       /* no mover is let in: jobs are being taken back */
	bool gone;       /* beyond mover.patience */
	char why[KEEP_TEXT_BYTES];
};

static inline uint64_t job_tag(enum job_owner owner, uint64_t own)
{
	return (uint64_t)owner << JOB_OWNER_SHIFT | own;
}

/*
 * jobs_open() - allocate pool->jobs, which stays NULL for a pool without a mover, and take over the jobs that an
 * earlier agent has left in the ring. Return: 0, -ENOMEM, or the error of epoll.
 */
int jobs_open(struct pool *pool, const struct module_pool *start);
/* jobs_register() - set the functions of a room; before jobs_resume(), which calls them. */
void jobs_register(struct pool *pool, enum job_owner owner, const struct job_user *user);
/* jobs_resume() - after a restart: results that nobody has looked at, and jobs that were not submitted. */
void jobs_resume(struct pool *pool);
void jobs_close(struct pool *pool);

/* jobs_hear() - KEEP_MOVER or KEEP_MOVER_END. */
void jobs_hear(struct pool *pool, const struct keep_message *message);
/* jobs_tick() - by the clock. */
void jobs_tick(struct pool *pool);

/* jobs_possible() - whether the pool has a ring at all. jobs_served() - and somebody serves it, or is waited for. */
static inline bool jobs_possible(const struct jobs *jobs)
{
	return jobs != NULL;
}

static inline bool jobs_served(const struct jobs *jobs)
{
	return jobs_possible(jobs) && !jobs->gone;
}

/* jobs_mover() - pid of the mover that serves; 0: none does, or it has yet to show that it can. */
uint32_t jobs_mover(const struct jobs *jobs);

#endif
