/*
 * child.h - a process that the keeper starts again whenever it ends: at once, and with a pause when it keeps dying
 * young.
 */
#ifndef GPOOL_AGENT_KEEPER_CHILD_H
#define GPOOL_AGENT_KEEPER_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CHILD_YOUNG_MS = 1000, /* one that dies younger counts as a quick death */
	/* so many in a row are answered at once: somebody may be killing it, and it is needed */
	CHILD_QUICK_DEATHS = 20,
	CHILD_PAUSE_MS = 100, /* further ones after this, doubled each time */
	CHILD_DOUBLINGS = 4,
};

/* What no child may keep of the keeper's. */
struct child_shed {
	int signals;
	/* flock belongs to the open description: a child that kept it would hold the lock after the keeper's death */
	int lock_fd;
	sigset_t mask; /* signals blocked before the keeper blocked its own */
};

/* child_fork() - fork(); the child has a name and default signals, dies with the keeper, and has let go of `shed`. */
pid_t child_fork(const struct child_shed *shed, const char *name);

struct child {
	pid_t pid;         /* 0: does not run. Never -1, which would be everybody to kill() */
	uint32_t restarts; /* so many of it have ended */
	uint32_t quick_deaths;
	uint64_t born_ms;
	uint64_t due_ms; /* 0: nothing is planned; else when it is started */
	/* Of children whose absence is told, kept by who reaps them: */
	pid_t last; /* the one that ended last */
	int end;    /* how, as wait(2) says; negative errno: its successor could not be started */
};

/* child_born() - it runs now. */
void child_born(struct child *child, pid_t pid);

/*
 * child_died() - it has been reaped; plans its next start, one restart more. `young`: a quick death whatever its age,
 * such as of one that never came to serve. Returns in how many milliseconds it is due.
 */
uint32_t child_died(struct child *child, bool young);

/*
 * child_replaced() - the same for one that ended because it was asked to: its successor is due at once, and nothing is
 * held against it.
 */
void child_replaced(struct child *child);

/* child_failed() - it could not even be started (no process, no descriptor): another try soon. */
void child_failed(struct child *child, int error);

/* child_due() - whether its time has come. */
bool child_due(const struct child *child);

/* child_wait_ms() - the smaller of `ms` (-1: for ever) and the time until this one is due. */
int child_wait_ms(const struct child *child, int ms);

/* child_wait() - waitpid(), also when a signal comes between: a death is told once, and must not be lost over that. */
pid_t child_wait(pid_t pid, int *status, int options);

/* "signal 9" or "status 1", for the log. */
const char *child_end_text(int status);
/* child_absence_text() - "process 7 ended (signal 9)", or why none can be started. */
void child_absence_text(const struct child *child, char *text, size_t text_bytes);

uint64_t keeper_ms(void); /* CLOCK_MONOTONIC */

#endif
