/*
 * background.h - one thread for each pool handle, for work that callers must not wait for. Internal to libgpool.
 *
 * It starts with the first task and ends in gpool_close(); it receives no signals and does not survive a fork. Tasks
 * run one after another, so a task must not wait for long: it requests pages with a timeout of 0.
 */
#ifndef GPOOL_CLIENT_VM_BACKGROUND_H
#define GPOOL_CLIENT_VM_BACKGROUND_H

#include "client/core/pool.h"

/* Stored in the owner's memory. The owner sets run and period_ms before background_add(). */
struct background_task {
	void (*run)(struct background_task *task);
	uint32_t period_ms; /* also run without a wake, this time after the last run; 0: only after a wake */
	bool due;
	uint64_t run_ns; /* end of the last run */
	struct background_task *next, **link;
};

/* background_add() - add a task: 0, -ENOMEM, -EAGAIN (no thread can be created). */
int background_add(struct gpool *pool, struct background_task *task);

/*
 * background_remove() - remove a task; it is not running any more when this returns. Must not be called by a task.
 * Ignores a task that was never added.
 */
void background_remove(struct gpool *pool, struct background_task *task);

/*
 * background_wake() - run the task soon, or once more if it is running. May be called under any lock that no task
 * acquires.
 */
void background_wake(struct gpool *pool, struct background_task *task);

/*
 * background_open() - initialize, without a thread: 0, -ENOMEM. background_close() - free the state, after
 * background_stop().
 */
int background_open(struct gpool *pool);
void background_close(struct gpool *pool);

/* background_stop() - end the thread after its current task; no further task can be added. */
void background_stop(struct gpool *pool);

#endif
