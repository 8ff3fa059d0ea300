/*
 * child.h - a process that the keeper starts again whenever it ends: at once, and with a pause when it keeps dying young.
 */
#ifndef GPOOL_AGENT_KEEPER_CHILD_H
#define GPOOL_AGENT_KEEPER_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CHILD_YOUNG_MS = 1000,  /* one that dies younger counts as a quick death */
	CHILD_QUICK_DEATHS = 20, /* so many in a row are answered at once: somebody may be killing it, and it is needed */
	CHILD_PAUSE_MS = 100,   /* further ones after this, doubled each time */
	CHILD_DOUBLINGS = 4,
};

/* What no child may keep of the keeper's. */
struct child_shed {
	int signals;
	int lock_fd; /* flock belongs to the open description: a child that kept it would hold the lock after the keeper's death */
	sigset_t mask; /* signals blocked before the keeper blocked its own */
};

/* child_fork() - fork(); the child has a name and default signals, dies with the keeper, and has let go of `shed`. */
pid_t child_fork(const struct child_shed *shed, const char *name);

struct child {
	pid_t pid; /* 0: does not run. Never -1, which would be everybody to kill() */
	uint32_t restarts;
	uint32_t quick_deaths;
	uint64_t born_ms;
	uint64_t due_ms; /* 0: nothing is planned; else when it is started */
};

/* child_born() - it runs now. */
void child_born(struct child *child, pid_t pid);

/*
 * child_died() - it has been reaped; plans its next start, one restart more. `young`: a quick death whatever its age, such as of one
 * that never came to serve. Returns in how many milliseconds it is due.
 */
uint32_t child_died(struct child *child, bool young);

/* child_replaced() - the same for one that ended because it was asked to: its successor is due at once, and nothing is held against it. */
void child_replaced(struct child *child);

/* child_failed() - it could not even be started (no process, no descriptor): another try soon. */
void child_failed(struct child *child);

/* child_due() - whether its time has come. */
bool child_due(const struct child *child);

/* child_wait_ms() - the smaller of `ms` (-1: for ever) and the time until this one is due. */
int child_wait_ms(const struct child *child, int ms);

/* "signal 9" or "status 1", for the log. */
const char *child_end_text(int status);

uint64_t keeper_ms(void); /* CLOCK_MONOTONIC */

#endif
