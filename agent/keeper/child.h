/*
 * child.h - a process that the keeper restarts when it ends: immediately, or after a pause if it died young several
 * times in succession.
 */
#ifndef GPOOL_AGENT_KEEPER_CHILD_H
#define GPOOL_AGENT_KEEPER_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CHILD_YOUNG_MS = 1000, /* a process that dies younger counts as a quick death */
	/* number of consecutive quick deaths after which restarts are delayed */
	CHILD_QUICK_DEATHS = 20,
	CHILD_PAUSE_MS = 100, /* first delay; each further quick death doubles it */
	CHILD_DOUBLINGS = 4,
};

/* Resources of the keeper that a child must not inherit. */
struct child_shed {
	int signals;
	/*
	 * flock belongs to the open file description: a child that kept it would hold the lock after the keeper's death
	 */
	int lock_fd;
	sigset_t mask; /* signals blocked before the keeper blocked its own */
};

/*
 * child_fork() - fork a child with a process name and default signals, which dies with the keeper and has closed
 * `shed`.
 */
pid_t child_fork(const struct child_shed *shed, const char *name);

struct child {
	pid_t pid;         /* 0: not running. Never -1, which kill() would take as all processes */
	uint32_t restarts; /* number of its predecessors that have ended */
	uint32_t quick_deaths;
	uint64_t born_ms;
	uint64_t due_ms; /* time of the next start; 0: no start is planned */
	/* Recorded only for children whose absence is reported: */
	pid_t last; /* the last process that ended */
	int end;    /* its wait(2) status; negative errno: its successor could not be started */
};

/* child_born() - record that the child runs now. */
void child_born(struct child *child, pid_t pid);

/*
 * child_died() - record that the child was reaped, and plan its next start. `young` makes it a quick death whatever its
 * age, as for an agent that never served.
 *
 * Return: the delay of the next start, in milliseconds.
 */
uint32_t child_died(struct child *child, bool young);

/*
 * child_replaced() - record the end of a child that was asked to end: its successor starts at once, and the end does
 * not count as a quick death.
 */
void child_replaced(struct child *child);

/* child_failed() - record that the child could not be started (no process, no descriptor), and plan another attempt. */
void child_failed(struct child *child, int error);

/* child_due() - return true if the planned start is due. */
bool child_due(const struct child *child);

/* child_wait_ms() - return the smaller of `ms` (-1: infinite) and the time until the planned start. */
int child_wait_ms(const struct child *child, int ms);

/* child_wait() - call waitpid() again when a signal interrupts it: the kernel reports a death only once. */
pid_t child_wait(pid_t pid, int *status, int options);

/* child_end_text() - return "signal 9" or "status 1", for the log. */
const char *child_end_text(int status);
/* child_absence_text() - print "process 7 ended (signal 9)", or why no process can be started. */
void child_absence_text(const struct child *child, char *text, size_t text_bytes);

uint64_t keeper_ms(void); /* CLOCK_MONOTONIC */

#endif
