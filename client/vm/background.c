#include "client/vm/background.h"

#include <signal.h>
#include <stdlib.h>

struct background {
	pthread_mutex_t lock;
	pthread_cond_t work; /* signaled when a task is due, or the thread must end */
	pthread_cond_t done; /* signaled when a task has finished a run */
	pthread_t thread;
	bool started, ending;
	struct background_task *tasks;
	struct background_task *running;
};

int background_open(struct gpool *pool)
{
	struct background *background = calloc(1, sizeof(*background));
	pthread_condattr_t attributes;

	if (!background)
		return -ENOMEM;
	pthread_mutex_init(&background->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&background->work, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_cond_init(&background->done, NULL);
	pool->background = background;
	return 0;
}

/* ---- the thread ---- */

/* Return the time at which the task is due. 0: now; UINT64_MAX: only after a wake. */
static uint64_t task_time(const struct background_task *task)
{
	if (task->due)
		return 0;
	return task->period_ms ? task->run_ns + task->period_ms * UINT64_C(1000000) : UINT64_MAX;
}

/* Return the due task that has waited longest, or NULL. If none is due, *until is the time of the next one. */
static struct background_task *task_next(const struct background *background, uint64_t *until)
{
	struct background_task *next = NULL;
	uint64_t now = monotonic_ns();

	*until = UINT64_MAX;
	for (struct background_task *task = background->tasks; task; task = task->next) {
		uint64_t time = task_time(task);

		if (time <= now && (!next || task->run_ns < next->run_ns))
			next = task;
		if (time < *until)
			*until = time;
	}
	return next;
}

static void wait_until(struct background *background, uint64_t until)
{
	struct timespec limit = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};

	if (until == UINT64_MAX)
		pthread_cond_wait(&background->work, &background->lock);
	else
		pthread_cond_timedwait(&background->work, &background->lock, &limit);
}

static void *background_main(void *argument)
{
	struct background *background = argument;

	pthread_mutex_lock(&background->lock);
	while (!background->ending) {
		uint64_t until;
		struct background_task *task = task_next(background, &until);

		if (!task) {
			wait_until(background, until);
			continue;
		}
		task->due = false;
		background->running = task;
		pthread_mutex_unlock(&background->lock);
		task->run(task);
		pthread_mutex_lock(&background->lock);
		task->run_ns = monotonic_ns();
		background->running = NULL;
		pthread_cond_broadcast(&background->done);
	}
	pthread_mutex_unlock(&background->lock);
	return NULL;
}

/* Start the thread with all signals blocked. The caller holds the lock. */
static int thread_start(struct background *background)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&background->thread, NULL, background_main, background);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	background->started = !error;
	return -error;
}

/* ---- tasks ---- */

int background_add(struct gpool *pool, struct background_task *task)
{
	struct background *background = pool->background;
	int error = 0;

	pthread_mutex_lock(&background->lock);
	if (!background->started)
		error = thread_start(background);
	if (!error) {
		task->due = false;
		task->run_ns = monotonic_ns();
		task->next = background->tasks;
		task->link = &background->tasks;
		if (task->next)
			task->next->link = &task->next;
		background->tasks = task;
		pthread_cond_signal(&background->work);
	}
	pthread_mutex_unlock(&background->lock);
	return error;
}

void background_remove(struct gpool *pool, struct background_task *task)
{
	struct background *background = pool->background;

	if (!task->link)
		return;
	pthread_mutex_lock(&background->lock);
	*task->link = task->next;
	if (task->next)
		task->next->link = task->link;
	task->link = NULL;
	while (background->running == task)
		pthread_cond_wait(&background->done, &background->lock);
	pthread_mutex_unlock(&background->lock);
}

void background_wake(struct gpool *pool, struct background_task *task)
{
	struct background *background = pool->background;

	pthread_mutex_lock(&background->lock);
	if (!task->due) {
		task->due = true;
		pthread_cond_signal(&background->work);
	}
	pthread_mutex_unlock(&background->lock);
}

void background_stop(struct gpool *pool)
{
	struct background *background = pool->background;
	bool started;

	if (!background)
		return;
	pthread_mutex_lock(&background->lock);
	background->ending = true;
	started = background->started;
	background->started = false;
	pthread_cond_signal(&background->work);
	pthread_mutex_unlock(&background->lock);
	if (started)
		pthread_join(background->thread, NULL);
}

void background_close(struct gpool *pool)
{
	struct background *background = pool->background;

	if (!background)
		return;
	pthread_mutex_destroy(&background->lock);
	pthread_cond_destroy(&background->work);
	pthread_cond_destroy(&background->done);
	free(background);
	pool->background = NULL;
}
