#include "agent/keeper/child.h"

#include "shm/monotonic.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t child_fork(const struct child_shed *shed, const char *name)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		return -errno;
	if (pid)
		return pid;
	prctl(PR_SET_NAME, name);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1); /* the keeper died before prctl() */
	close(shed->signals);
	close(shed->lock_fd);
	sigprocmask(SIG_SETMASK, &shed->mask, NULL);
	return 0;
}

uint64_t keeper_ms(void)
{
	return monotonic_ms();
}

void child_born(struct child *child, pid_t pid)
{
	child->pid = pid;
	child->born_ms = keeper_ms();
	child->due_ms = 0;
	child->end = 0;
}

uint32_t child_died(struct child *child, bool young)
{
	uint64_t now = keeper_ms();
	uint32_t doublings, pause = 0;

	child->pid = 0;
	child->restarts++;
	child->quick_deaths = young || now - child->born_ms < CHILD_YOUNG_MS ? child->quick_deaths + 1 : 0;
	if (child->quick_deaths > CHILD_QUICK_DEATHS) {
		doublings = child->quick_deaths - CHILD_QUICK_DEATHS - 1;
		pause = CHILD_PAUSE_MS << (doublings < CHILD_DOUBLINGS ? doublings : CHILD_DOUBLINGS);
	}
	child->due_ms = now + pause;
	return pause;
}

void child_replaced(struct child *child)
{
	child->pid = 0;
	child->restarts++;
	child->due_ms = keeper_ms();
}

void child_failed(struct child *child, int error)
{
	child->pid = 0;
	child->end = error;
	child->due_ms = keeper_ms() + CHILD_PAUSE_MS;
}

bool child_due(const struct child *child)
{
	return !child->pid && child->due_ms && keeper_ms() >= child->due_ms;
}

int child_wait_ms(const struct child *child, int ms)
{
	uint64_t now = keeper_ms();
	int left;

	if (child->pid || !child->due_ms)
		return ms;
	left = child->due_ms > now ? (int)(child->due_ms - now) : 0;
	return ms < 0 || left < ms ? left : ms;
}

pid_t child_wait(pid_t pid, int *status, int options)
{
	pid_t ended;

	do
		ended = waitpid(pid, status, options);
	while (ended < 0 && errno == EINTR);
	return ended;
}

const char *child_end_text(int status)
{
	static char text[32];

	if (WIFSIGNALED(status))
		snprintf(text, sizeof(text), "signal %d", WTERMSIG(status));
	else
		snprintf(text, sizeof(text), "status %d", WEXITSTATUS(status));
	return text;
}

void child_absence_text(const struct child *child, char *text, size_t text_bytes)
{
	if (child->end < 0)
		snprintf(text, text_bytes, "cannot start a process: %s", strerror(-child->end));
	else
		snprintf(text, text_bytes, "process %d ended (%s)", (int)child->last, child_end_text(child->end));
}
