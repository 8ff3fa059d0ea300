/*
 * background.h - one thread for each pool handle, for what callers shall not wait for. Internal to libgpool.
 *
 * It starts with the first task and ends in gpool_close(); it takes no signals and does not survive a fork. Tasks run
 * one after the other, so one that waits for long keeps the others: a task asks for pages with a time-out of 0.
 */
#ifndef GPOOL_CLIENT_VM_BACKGROUND_H
#define GPOOL_CLIENT_VM_BACKGROUND_H

#include "client/core/pool.h"

/* In the owner's memory. The owner sets run and period_ms before background_add(). */
struct background_task {
	void (*run)(struct background_task *task);
	uint32_t period_ms; /* also without being woken, this long after its last run; 0: only when it is woken */
	bool due;
	uint64_t run_ns; /* when it last ended */
	struct background_task *next, **link;
};

/* background_add() - 0, -ENOMEM, -EAGAIN (no thread to be had). */
int background_add(struct gpool *pool, struct background_task *task);

/*
 * background_remove() - it does not run any more when this returns; not out of a task. One that was never added:
 * nothing happens.
 */
void background_remove(struct gpool *pool, struct background_task *task);

/*
 * background_wake() - run it soon, once more if it runs right now. May be called with any lock held that no task waits
 * for under it.
 */
void background_wake(struct gpool *pool, struct background_task *task);

/* background_open() - no thread yet: 0, -ENOMEM. background_close() - after background_stop(). */
int background_open(struct gpool *pool);
void background_close(struct gpool *pool);

/* background_stop() - the thread ends, after the task that it runs; no task is added any more. */
void background_stop(struct gpool *pool);

#endif
