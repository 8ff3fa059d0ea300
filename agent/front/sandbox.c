/*
 * sandbox.c - drop the privileges of the front process, and load its seccomp filter.
 */
#include "agent/front/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- privileges ---- */

static int drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3];

	memset(none, 0, sizeof(none));
	if (syscall(SYS_capset, &header, none) < 0)
		return -errno;
	return 0;
}

int sandbox_drop(uid_t uid, gid_t gid, pid_t parent)
{
	int result;

	/* A process without the right to change groups only has the groups of its user, so they need not be dropped. */
	if (setgroups(0, NULL) < 0 && (errno != EPERM || uid != (uid_t)-1 || gid != (gid_t)-1))
		return -errno;
	if (gid != (gid_t)-1 && setresgid(gid, gid, gid) < 0)
		return -errno;
	if (uid != (uid_t)-1 && setresuid(uid, uid, uid) < 0)
		return -errno;
	result = drop_capabilities();
	if (result < 0)
		return result;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	/*
	 * Prevent other processes of the new user from reading the memory of this process. A change of user has the
	 * same effect, unless fs.suid_dumpable is set.
	 */
	if (uid != (uid_t)-1 && prctl(PR_SET_DUMPABLE, 0) < 0)
		return -errno;
	/* Set this after the change of user, which clears it. Then check whether the parent has died in between. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return -errno;
	if (parent != 0 && getppid() != parent)
		return -ESRCH;
	return 0;
}

/* ---- system calls ---- */

/*
 * The calls that strace showed in a front that served, lost and accepted connections; calls that malloc, abort and
 * nanomsg need in rare cases; and newer forms of poll() and epoll_wait(), for machines that have only those. None of
 * them opens a file, creates a socket, a process or a thread, or refers to another process.
 */
static const int plain_calls[] = {
	/* the loops of the front and of nanomsg's worker thread */
	SCMP_SYS(poll),
	SCMP_SYS(ppoll),
	SCMP_SYS(epoll_wait),
	SCMP_SYS(epoll_pwait),
	SCMP_SYS(epoll_ctl),
	SCMP_SYS(restart_syscall),
	SCMP_SYS(futex),
	/* existing and accepted sockets */
	SCMP_SYS(accept4),
	SCMP_SYS(recvmsg),
	SCMP_SYS(recvfrom),
	SCMP_SYS(sendmsg),
	SCMP_SYS(getsockopt),
	SCMP_SYS(setsockopt),
	SCMP_SYS(read),
	SCMP_SYS(write),
	SCMP_SYS(writev),
	SCMP_SYS(close),
	/* the start of nanomsg's thread, which may run after the filter was loaded */
	SCMP_SYS(set_robust_list),
	SCMP_SYS(rseq),
	/* memory */
	SCMP_SYS(brk),
	SCMP_SYS(munmap),
	SCMP_SYS(mremap),
	SCMP_SYS(madvise),
	SCMP_SYS(getrandom),
	/* time; reading a clock needs a system call only without a vDSO */
	SCMP_SYS(clock_gettime),
	SCMP_SYS(gettimeofday),
	SCMP_SYS(nanosleep),
	SCMP_SYS(clock_nanosleep),
	/* the end of the process */
	SCMP_SYS(exit),
	SCMP_SYS(exit_group),
	SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigreturn),
	SCMP_SYS(getpid),
	SCMP_SYS(gettid),
#if SANITIZED
	/* the run-time libraries of the sanitizers: shadow memory, ends of threads, reports with symbols */
	SCMP_SYS(sigaltstack),
	SCMP_SYS(rt_sigaction),
	SCMP_SYS(sched_yield),
	SCMP_SYS(sched_getaffinity),
	SCMP_SYS(prctl),
	SCMP_SYS(getrlimit),
	SCMP_SYS(prlimit64),
	SCMP_SYS(openat),
	SCMP_SYS(lseek),
	SCMP_SYS(fstat),
	SCMP_SYS(newfstatat),
	SCMP_SYS(readlink),
	SCMP_SYS(readlinkat),
	SCMP_SYS(getuid),
#endif
};

#if !SANITIZED
/*
 * Calls that fail with an error instead of killing the process. When nanomsg aborts, it prints its assertion and a
 * backtrace, for which the C library tries to load libgcc and calls fstat() on stderr. It continues without them, and
 * the assertion is logged.
 */
static const int denied_calls[] = {SCMP_SYS(openat), SCMP_SYS(newfstatat), SCMP_SYS(fstat)};
#endif

static const int fcntl_commands[] = {F_GETFD, F_SETFD, F_GETFL, F_SETFL};

static int add_rules(scmp_filter_ctx filter)
{
	int result = 0;

	for (size_t i = 0; i < sizeof(plain_calls) / sizeof(plain_calls[0]) && result == 0; i++)
		result = seccomp_rule_add(filter, SCMP_ACT_ALLOW, plain_calls[i], 0);
#if !SANITIZED
	for (size_t i = 0; i < sizeof(denied_calls) / sizeof(denied_calls[0]) && result == 0; i++)
		result = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EACCES), denied_calls[i], 0);
#endif
	for (size_t i = 0; i < sizeof(fcntl_commands) / sizeof(fcntl_commands[0]) && result == 0; i++)
		result = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
			SCMP_A1(SCMP_CMP_EQ, (scmp_datum_t)fcntl_commands[i], 0));
	/* Permit mmap() of memory that is not executable. */
	if (result == 0)
		result = seccomp_rule_add(
			filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	if (result == 0)
		result = seccomp_rule_add(
			filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	/* Permit abort() to end this process with SIGABRT, which is more informative than SIGSYS. */
	if (result == 0)
		result = seccomp_rule_add(
			filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
	return result;
}

int sandbox_filter(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
	int result;

	if (!filter)
		return -ENOMEM;
	/* nanomsg has started its thread, so apply the filter to all threads or to none. */
	result = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	if (result == 0)
		result = add_rules(filter);
	if (result == 0)
		result = seccomp_load(filter);
	seccomp_release(filter);
	return result;
}
