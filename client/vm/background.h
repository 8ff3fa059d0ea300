/*
 * background.h - a background thread for each pool handle. It does work for which callers must not wait. Internal to
 * libgpool.
 *
 * The thread starts with the first task and ends in gpool_close(). It receives no signals and does not exist after
 * fork(). Tasks run one after another, so a task must not wait for long; it requests pages with a timeout of 0.
 */
#ifndef GPOOL_CLIENT_VM_BACKGROUND_H
#define GPOOL_CLIENT_VM_BACKGROUND_H

#include "client/core/pool.h"

/*
 * A task, in the owner's memory. The owner sets run and period_ms before background_add(); afterwards only the task
 * itself may change period_ms.
 */
struct background_task {
	void (*run)(struct background_task *task);
	uint32_t period_ms; /* also run the task this time after its last run; 0: run it only after a wake */
	bool due;
	uint64_t run_ns; /* end of the last run */
	struct background_task *next, **link;
};

/* background_add() - add a task. Return: 0, -ENOMEM, -EAGAIN (no thread can be created). */
int background_add(struct gpool *pool, struct background_task *task);

/*
 * background_remove() - remove a task, after its current run has finished. Must not be called by a task. Ignores a task
 * that was never added.
 */
void background_remove(struct gpool *pool, struct background_task *task);

/*
 * background_wake() - run the task soon, or once more if it is running. The caller may hold locks, except those that a
 * task acquires.
 */
void background_wake(struct gpool *pool, struct background_task *task);

/*
 * background_open() - initialize the state, without a thread. Return: 0, -ENOMEM. background_close() - free the state,
 * after background_stop().
 */
int background_open(struct gpool *pool);
void background_close(struct gpool *pool);

/* background_stop() - end the thread after its current task. No further task can be added. */
void background_stop(struct gpool *pool);

#endif
