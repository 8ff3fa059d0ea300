/*
 * idle.h - idle callbacks: pending work of several parts of the library, which any waiting thread can do. Internal to
 * libgpool.
 *
 * Blocks whose frees are deferred, and handles that another trust domain needs, may hold exactly the pages that a
 * thread of this process or of another session waits for. Each part registers a callback when it opens. The code that
 * waits runs all of them and knows none.
 */
#ifndef GPOOL_CLIENT_IDLE_H
#define GPOOL_CLIENT_IDLE_H

#include <stdbool.h>
#include <stdint.h>

struct gpool;

enum { IDLE_MAX = 4 }; /* callbacks of a pool: one for each part that needs one */

/* Events after which a callback runs. */
enum idle_when {
	/* a thread waits, or is in a call and holds no lock */
	IDLE_WAIT = 1,
	/* pages became idle while sessions wait for pages; the thread may hold deferred->lock */
	IDLE_FREED = 2,
};

struct idle_callbacks {
	uint32_t count;
	struct {
		uint32_t when; /* events of enum idle_when, or-ed */
		/*
		 * Do what can be done now, without waiting: it is called often, and by several threads. True: some
		 * work is left, and is likely to become possible within a millisecond.
		 */
		bool (*run)(struct gpool *pool);
	} callbacks[IDLE_MAX];
};

/* idle_register() - add a callback, before any other thread uses the pool. They run in the order of registration. */
void idle_register(struct gpool *pool, uint32_t when, bool (*run)(struct gpool *pool));

/* idle_run() - run the callbacks that were registered for the event `when`. Return whether one has work left. */
bool idle_run(struct gpool *pool, enum idle_when when) __attribute__((noinline, cold));

#endif
