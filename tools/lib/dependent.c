#include "tools/lib/dependent.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

pid_t dependent_fork(int signal_number)
{
	pid_t parent = getpid(), child;
	sigset_t mask, before;

	/* A handler of this process must not receive the signal in the child. */
	sigemptyset(&mask);
	sigaddset(&mask, signal_number);
	sigprocmask(SIG_BLOCK, &mask, &before);
	child = fork();
	if (child == 0) {
		signal(signal_number, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, signal_number);
		/* The kernel sends the signal only if the parent ends after prctl(). */
		if (getppid() != parent)
			_exit(127);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return child;
}

void child_prepare(int keep)
{
	static const int defaults[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGPIPE, SIGCHLD};
	sigset_t none;

	for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
		signal(defaults[i], SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	if (keep >= 0)
		fcntl(keep, F_SETFD, 0);
}
