#include "agent/spill/jobs.h"

#include "agent/pages/event.h"
#include "agent/base/log.h"
#include "agent/pages/pool.h"
#include "proto/codec.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Return the part that submitted a job, or NULL: only a defective mover or ring yields such a tag. */
static const struct job_user *user_of(const struct pool *pool, const struct mover_order *order)
{
	uint64_t owner = order->tag >> JOB_OWNER_SHIFT;

	return owner < JOB_OWNERS ? pool->jobs->users[owner] : NULL;
}

static void job_done(void *context, const struct mover_result *result)
{
	struct pool *pool = context;
	const struct job_user *user = user_of(pool, &result->order);

	if (user)
		user->done(pool, result);
}

void jobs_register(struct pool *pool, enum job_owner owner, const struct job_user *user)
{
	if (jobs_possible(pool->jobs))
		pool->jobs->users[owner] = user;
}

/* ---- no mover ---- */

uint32_t jobs_mover(const struct jobs *jobs)
{
	return !jobs->gone && mover_serves(&jobs->queue, jobs->ended)
		? atomic_load_explicit(&jobs->queue.ring->serving, memory_order_relaxed)
		: 0;
}

/*
 * Record why the pool has no mover: the end of the process, reported by the keeper, and the cause that the mover may
 * have reported itself. The latter is untrusted text, and its length is limited.
 */
static void why_note(struct jobs *jobs, const struct keep_message *message)
{
	char words[MOVER_WHY_BYTES + 1] = "", all[KEEP_TEXT_BYTES + sizeof(words) + 2];

	if (message->what == KEEP_MOVER_END) {
		if (message->id)
			memcpy(words, jobs->queue.ring->why, MOVER_WHY_BYTES);
		snprintf(all, sizeof(all), "%.*s%s%s", KEEP_TEXT_BYTES - 1, message->text, words[0] ? ": " : "", words);
		msg_text_copy(jobs->why, sizeof(jobs->why), all);
	} else if (!jobs->why[0]) {
		snprintf(jobs->why, sizeof(jobs->why), "process %u was started but does not serve yet", message->id);
	}
}

static void gone_tell(struct pool *pool)
{
	const char *why = pool->jobs->why;

	log_error("no mover has served pool '%s' for %llu ms: %s; until a mover serves, blocks cannot be spilled or "
		  "restored, and pages cannot move to other trust domains; poolctl doctor lists possible causes",
		pool->config->name, (unsigned long long)(clock_ms() - pool->jobs->since_ms), why);
	event_publish(pool->agent, EVENT_MOVER, pool, 0, 0, "no mover serves: %s", why);
}

static void back_tell(struct pool *pool)
{
	log_info("pool '%s': a mover serves again after %llu ms", pool->config->name,
		(unsigned long long)(clock_ms() - pool->jobs->since_ms));
	event_publish(pool->agent, EVENT_MOVER, pool, 0, 1, "a mover serves again");
}

/* Return the remaining time in which a dead mover's GPU may still write; 0: none. */
static uint64_t grace_left(const struct pool *pool)
{
	uint64_t grace = pool->agent->config.trust.death_grace_ms, since = clock_ms() - pool->jobs->died_ms;

	return pool->jobs->died_ms && since < grace ? grace - since : 0;
}

/*
 * Take back jobs while no mover is alive and none may enter. Jobs that no mover has begun are taken back at once,
 * others when the GPU of the last mover has certainly finished.
 */
static void jobs_take_back(struct pool *pool)
{
	struct jobs *jobs = pool->jobs;
	uint64_t grace_ms = grace_left(pool);

	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++) {
		const struct mover_order *order = mover_order_of(&jobs->queue, slot);
		const struct job_user *user = order ? user_of(pool, order) : NULL;
		struct mover_result given_up;

		if (!user || !user->give_up || (grace_ms && mover_begun(&jobs->queue, slot)))
			continue;
		given_up = (struct mover_result){*order, JOB_GIVEN_UP};
		mover_withdraw(&jobs->queue, slot);
		job_done(pool, &given_up);
	}
	for (int owner = 0; owner < JOB_OWNERS; owner++)
		if (jobs->users[owner] && jobs->users[owner]->give_up)
			jobs->users[owner]->give_up(pool);
	if (grace_ms) {
		agent_need_tick(pool->agent, (uint32_t)grace_ms);
		return;
	}
	jobs->shut = false;
	mover_let_in(&jobs->queue);
}

static void jobs_give_up(struct pool *pool)
{
	struct jobs *jobs = pool->jobs;

	if (!jobs->shut) {
		/* A mover has just entered. */
		if (!mover_shut(&jobs->queue, jobs->ended))
			return;
		jobs->shut = true;
		jobs->gone = true;
		/* Blocks that must be spilled can no longer be evicted. */
		evict_queue_drop(pool);
		gone_tell(pool);
		/* Read the last results of the dead mover. */
		mover_collect(&jobs->queue, job_done, pool);
	}
	jobs_take_back(pool);
}

/*
 * Update the time since which no progress has been made. A mover begins the oldest job in flight first. If successive
 * movers die for a reason other than a job, the oldest job is a different one each time, which counts as progress.
 */
static void since_note(struct jobs *jobs, bool serves)
{
	uint64_t oldest = mover_oldest(&jobs->queue);

	if (!jobs->since_ms && !serves) {
		jobs->since_ms = clock_ms();
		jobs->before = jobs->queue.number;
	} else if (jobs->since_ms && !jobs->gone && oldest > jobs->oldest) {
		jobs->since_ms = clock_ms();
	}
	jobs->oldest = oldest;
}

/* Check whether a mover serves, and since when none has. Return true if the caller must call go_on() of all parts. */
static bool mover_look(struct pool *pool)
{
	struct jobs *jobs = pool->jobs;
	bool serves = mover_serves(&jobs->queue, jobs->ended);
	uint64_t now = clock_ms(), end;

	since_note(jobs, serves);
	if (!jobs->since_ms)
		return false;
	end = jobs->since_ms + pool->agent->config.mover.patience_ms;
	if (serves) {
		/* A mover that has not finished the jobs over which its predecessor died may die, too. */
		if (jobs->oldest <= jobs->before)
			return false;
		if (jobs->gone)
			back_tell(pool);
		jobs->gone = jobs->shut = false;
		jobs->since_ms = 0;
		jobs->why[0] = '\0';
		return true;
	}
	/* Before the keeper's report, a mover with older code, which does not use the gate, may be alive. */
	if (!jobs->told)
		return false;
	if (now < end && !jobs->shut) {
		agent_need_tick(pool->agent, (uint32_t)(end - now));
		return false;
	}
	if (jobs->gone && !jobs->shut)
		return false;
	jobs_give_up(pool);
	return true;
}

/* Call go_on() of all parts: slots of the ring and perhaps pages are free, or no mover is expected. */
static void jobs_go_on(struct pool *pool)
{
	for (int owner = 0; owner < JOB_OWNERS; owner++)
		if (pool->jobs->users[owner])
			pool->jobs->users[owner]->go_on(pool);
}

void jobs_hear(struct pool *pool, const struct keep_message *message)
{
	struct jobs *jobs = pool->jobs;

	if (!jobs_possible(jobs))
		return;
	/*
	 * Numbers only increase. It is unknown whether movers of an earlier agent's time had begun a job, so assume
	 * that they had.
	 */
	if (message->kind > jobs->ended) {
		if (!jobs->told || mover_serves(&jobs->queue, jobs->ended))
			jobs->died_ms = clock_ms();
		jobs->ended = message->kind;
	}
	jobs->told = true;
	why_note(jobs, message);
	if (mover_look(pool))
		jobs_go_on(pool);
}

void jobs_tick(struct pool *pool)
{
	if (jobs_possible(pool->jobs) && pool->jobs->since_ms && mover_look(pool))
		jobs_go_on(pool);
}

/* ---- open, resume, close ---- */

static void done_ready(struct event_source *source, uint32_t events)
{
	struct jobs *jobs = (struct jobs *)(void *)((char *)source - offsetof(struct jobs, done));
	struct pool *pool = jobs->pool;

	(void)events;
	mover_collect(&jobs->queue, job_done, pool);
	mover_look(pool);
	jobs_go_on(pool);
}

void jobs_resume(struct pool *pool)
{
	if (!jobs_possible(pool->jobs))
		return;
	/*
	 * Open the gate if the previous agent died with the gate shut. The jobs that it had taken back without ending
	 * them were taken over again.
	 */
	mover_let_in(&pool->jobs->queue);
	done_ready(&pool->jobs->done, EPOLLIN);
}

int jobs_open(struct pool *pool, const struct module_pool *start)
{
	struct jobs *jobs;
	int error;

	if (!start->ring)
		return 0;
	jobs = calloc(1, sizeof(*jobs));
	if (!jobs)
		return -ENOMEM;
	jobs->pool = pool;
	mover_queue_init(&jobs->queue, start->ring, start->work_bell, start->done_bell);
	mover_rescan(&jobs->queue);
	jobs->done.fd = start->done_bell;
	jobs->done.ready = done_ready;
	error = agent_watch(pool->agent, &jobs->done, EPOLLIN);
	if (error) {
		free(jobs);
		return error;
	}
	pool->jobs = jobs;
	return 0;
}

void jobs_close(struct pool *pool)
{
	if (!jobs_possible(pool->jobs))
		return;
	agent_unwatch(pool->agent, &pool->jobs->done);
	free(pool->jobs);
	pool->jobs = NULL;
}
