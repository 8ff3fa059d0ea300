/*
 * child.h - a process that the keeper restarts when it ends: immediately, or after a delay if it died shortly after its
 * start several times in succession.
 */
#ifndef GPOOL_AGENT_KEEPER_CHILD_H
#define GPOOL_AGENT_KEEPER_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CHILD_YOUNG_MS = 1000, /* a process that dies at a lower age counts as a quick death */
	/* after this number of consecutive quick deaths, restarts are delayed */
	CHILD_QUICK_DEATHS = 20,
	CHILD_PAUSE_MS = 100, /* first delay; each further quick death doubles it */
	CHILD_DOUBLINGS = 4,
};

/* Resources of the keeper that a child must not keep. */
struct child_shed {
	int signals;
	/* flock() locks belong to the open file description, so a child could keep the lock after the keeper's death */
	int lock_fd;
	sigset_t mask; /* signals that were blocked before the keeper blocked its own */
};

/*
 * child_fork() - fork a child with a process name and default signal handling. The child dies with the keeper and has
 * closed `shed`.
 */
pid_t child_fork(const struct child_shed *shed, const char *name);

struct child {
	pid_t pid;         /* 0: not running. Never -1, which means all processes to kill() */
	uint32_t restarts; /* number of ended predecessors */
	uint32_t quick_deaths;
	uint64_t born_ms;
	uint64_t due_ms; /* time of the planned start; 0: none is planned */
	/* Recorded only for children whose absence is reported. */
	pid_t last; /* pid of the last process that ended */
	int end;    /* its wait(2) status; a negative errno if the next one could not be started */
};

void child_born(struct child *child, pid_t pid);

/*
 * child_died() - record that the child was reaped, and plan its next start. `young`: count it as a quick death at any
 * age, as for an agent that never served.
 *
 * Return: the delay of the next start, in milliseconds.
 */
uint32_t child_died(struct child *child, bool young);

/*
 * child_replaced() - record the end of a child that was asked to end. Its successor starts immediately, and the end
 * does not count as a quick death.
 */
void child_replaced(struct child *child);

/*
 * child_failed() - record that the child could not be started (for lack of processes or descriptors), and plan another
 * attempt.
 */
void child_failed(struct child *child, int error);

bool child_due(const struct child *child);

/* child_wait_ms() - return the smaller one of `ms` (-1: infinite) and the time until the planned start. */
int child_wait_ms(const struct child *child, int ms);

/* child_wait() - call waitpid(), repeatedly if it is interrupted by a signal: the kernel reports a death only once. */
pid_t child_wait(pid_t pid, int *status, int options);

/* child_end_text() - return a text such as "signal 9" or "status 1", for the log. */
const char *child_end_text(int status);
/* child_absence_text() - print "process 7 ended (signal 9)", or the reason why no process can be started. */
void child_absence_text(const struct child *child, char *text, size_t text_bytes);

uint64_t keeper_ms(void); /* CLOCK_MONOTONIC in milliseconds */

#endif
