#include "agent/jobs.h"

#include "agent/pool.h"
#include "agent/spill.h"
#include "agent/trust.h"

#include <stddef.h>
#include <sys/epoll.h>

static void job_done(void *context, const struct mover_result *result)
{
	struct pool *pool = context;

	switch (result->order.tag >> JOB_OWNER_SHIFT) {
	case JOB_OF_SPILL:
		spill_job_done(pool, result);
		break;
	case JOB_OF_TRUST:
		trust_job_done(pool, result);
		break;
	}
}

static void done_ready(struct event_source *source, uint32_t events)
{
	struct pool *pool = (struct pool *)(void *)((char *)source - offsetof(struct pool, jobs.done));

	(void)events;
	mover_collect(&pool->jobs.queue, job_done, pool);
	/* Now that slots of the ring are free and pages too: what waits for either. */
	spill_go_on(pool);
	trust_go_on(pool);
}

void jobs_resume(struct pool *pool)
{
	if (jobs_possible(&pool->jobs))
		done_ready(&pool->jobs.done, EPOLLIN);
}

int jobs_open(struct pool *pool, const struct module_pool *start)
{
	pool->jobs.done.fd = -1;
	if (!start->ring)
		return 0;
	mover_queue_init(&pool->jobs.queue, start->ring, start->work_bell, start->done_bell);
	mover_rescan(&pool->jobs.queue);
	pool->jobs.done.fd = start->done_bell;
	pool->jobs.done.ready = done_ready;
	return agent_watch(pool->agent, &pool->jobs.done, EPOLLIN);
}

void jobs_close(struct pool *pool)
{
	if (jobs_possible(&pool->jobs))
		agent_unwatch(pool->agent, &pool->jobs.done);
	pool->jobs.done.fd = -1;
}
