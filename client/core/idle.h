/*
 * idle.h - idle callbacks: deferred work of several parts of the library, which any waiting thread can do. Internal to
 * libgpool.
 *
 * Deferred work releases pages: those of blocks whose frees are deferred, and those of handles that another trust
 * domain needs. A thread of this process or of another session may be waiting for exactly these pages. Each part
 * registers a callback when it is opened. A waiting thread runs all callbacks, without knowing their purpose.
 */
#ifndef GPOOL_CLIENT_IDLE_H
#define GPOOL_CLIENT_IDLE_H

#include <stdbool.h>
#include <stdint.h>

struct gpool;

enum { IDLE_MAX = 4 }; /* callbacks of a pool: at most one for each part of the library that has deferred work */

/* Events that run callbacks. */
enum idle_when {
	/* a thread waits, or is in a call and holds no lock */
	IDLE_WAIT = 1,
	/* pages became idle while sessions wait for pages; the thread may hold deferred->lock */
	IDLE_FREED = 2,
};

struct idle_callbacks {
	uint32_t count;
	struct {
		uint32_t when; /* set of enum idle_when */
		/*
		 * Do the work that is possible now, without waiting. Several threads call it often. Return true if some
		 * work is left and is likely to become possible within a millisecond.
		 */
		bool (*run)(struct gpool *pool);
	} callbacks[IDLE_MAX];
};

/*
 * idle_register() - add a callback, before any other thread uses the pool. Callbacks run in the order of registration.
 */
void idle_register(struct gpool *pool, uint32_t when, bool (*run)(struct gpool *pool));

/* idle_run() - run the callbacks that are registered for the event `when`. Return true if one of them has work left. */
bool idle_run(struct gpool *pool, enum idle_when when) __attribute__((noinline, cold));

#endif
