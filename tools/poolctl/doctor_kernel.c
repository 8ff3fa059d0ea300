/* doctor_kernel.c - checks of kernel features that gpool needs. They are tried, not derived from the kernel version. */
#include "tools/poolctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* since Linux 6.5; many C libraries do not define it yet */
#endif

static void version_note(struct doctor *doctor)
{
	struct utsname name;

	if (uname(&name) == 0)
		doctor_add(doctor, DOCTOR_INFO, "kernel", "%s %s, %s", name.sysname, name.release, name.machine);
}

/*
 * The kernel must refuse a second writable mapping of a sealed memfd: workers must not be able to write to the pool
 * segment.
 */
static int seals_try(int fd)
{
	void *first, *second;
	int error = 0;

	if (ftruncate(fd, 4096) < 0)
		return -errno;
	first = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (first == MAP_FAILED)
		return -errno;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
		error = -errno;
	second = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (second != MAP_FAILED) {
		munmap(second, 4096);
		if (!error)
			error = -ENOTSUP;
	}
	munmap(first, 4096);
	return error;
}

static void seals_check(struct doctor *doctor)
{
	int fd = memfd_create("doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int error = fd < 0 ? -errno : seals_try(fd);

	if (fd >= 0)
		close(fd);
	if (!error) {
		doctor_add(doctor, DOCTOR_OK, "sealed memory", "memfd with F_SEAL_FUTURE_WRITE");
		return;
	}
	doctor_add(doctor, DOCTOR_FAIL, "sealed memory", "memfd with F_SEAL_FUTURE_WRITE: %s", strerror(-error));
	doctor_advise(doctor, "use Linux 5.1 or later, and allow memfd_create(2) in the container");
}

static void pidfd_check(struct doctor *doctor)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	if (fd >= 0) {
		close(fd);
		doctor_add(doctor, DOCTOR_OK, "pidfd", "the death of a worker is detected reliably");
		return;
	}
	doctor_add(doctor, DOCTOR_FAIL, "pidfd", "pidfd_open: %s", strerror(errno));
	doctor_advise(doctor, "use Linux 5.3 or later, and allow pidfd_open(2) in the container");
}

static void peer_pidfd_check(struct doctor *doctor)
{
	int pair[2], pidfd = -1, error = 0;
	socklen_t length = sizeof(pidfd);

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		doctor_add(doctor, DOCTOR_FAIL, "peer pidfd", "socketpair: %s", strerror(errno));
		return;
	}
	if (getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) < 0)
		error = -errno;
	else
		close(pidfd);
	close(pair[0]);
	close(pair[1]);
	if (!error) {
		doctor_add(doctor, DOCTOR_OK, "peer pidfd", "SO_PEERPIDFD: workers in other pid namespaces can attach");
		return;
	}
	doctor_add(doctor, DOCTOR_WARN, "peer pidfd",
		"no SO_PEERPIDFD (%s): workers in other pid namespaces cannot attach", strerror(-error));
	doctor_advise(doctor, "use Linux 6.5 or later, or run workers in the pid namespace of gpoold (hostPID)");
}

static const char *io_uring_advice(int error, const char *disabled)
{
	if (error == ENOSYS)
		return "use a kernel with io_uring";
	if (error == ENOMEM)
		return "set ulimit -l to unlimited, or LimitMEMLOCK=infinity in the unit";
	if (disabled[0] && disabled[0] != '0')
		return "set sysctl kernel.io_uring_disabled to 0";
	return "allow io_uring in the container's seccomp profile (Docker's default profile denies it)";
}

static void io_uring_check(struct doctor *doctor)
{
	struct io_uring_params parameters;
	char disabled[16] = "";
	int fd, error;

	memset(&parameters, 0, sizeof(parameters));
	fd = (int)syscall(SYS_io_uring_setup, 1, &parameters);
	if (fd >= 0) {
		close(fd);
		doctor_add(doctor, DOCTOR_OK, "io_uring", "allowed");
		return;
	}
	error = errno;
	doctor_read("/proc/sys/kernel/io_uring_disabled", disabled, sizeof(disabled));
	doctor_add(doctor, DOCTOR_WARN, "io_uring", "refused: %s%s%s", strerror(error),
		disabled[0] ? ", kernel.io_uring_disabled is " : "", disabled);
	doctor_advise(doctor, "%s; until then, threads read the files, which takes more CPU time",
		io_uring_advice(error, disabled));
}

static void wipe_check(struct doctor *doctor)
{
	void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error = memory == MAP_FAILED || madvise(memory, 4096, MADV_WIPEONFORK) < 0 ? -errno : 0;

	if (memory != MAP_FAILED)
		munmap(memory, 4096);
	if (!error) {
		doctor_add(doctor, DOCTOR_OK, "wipe on fork", "MADV_WIPEONFORK: forked children are detected");
		return;
	}
	doctor_add(doctor, DOCTOR_FAIL, "wipe on fork", "MADV_WIPEONFORK: %s", strerror(-error));
	doctor_advise(doctor, "use Linux 4.14 or later");
}

static void seccomp_check(struct doctor *doctor)
{
	uint32_t action = SECCOMP_RET_KILL_PROCESS;

	if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) {
		doctor_add(doctor, DOCTOR_OK, "seccomp", "the front process can be confined");
		return;
	}
	doctor_add(doctor, DOCTOR_FAIL, "seccomp", "no filters: %s", strerror(errno));
	doctor_advise(doctor,
		"use a kernel with CONFIG_SECCOMP_FILTER: the front reads untrusted messages and therefore runs in a "
		"sandbox");
}

/* Check that the clock needs no system call: gpool reads it before waits and in measurements. */
static void clock_check(struct doctor *doctor)
{
	static const char *const fast[] = {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"};
	char name[64];

	if (!doctor_read("/sys/devices/system/clocksource/clocksource0/current_clocksource", name, sizeof(name))) {
		doctor_add(doctor, DOCTOR_INFO, "clock source", "cannot be read");
		return;
	}
	for (size_t i = 0; i < sizeof(fast) / sizeof(fast[0]); i++) {
		if (!strcmp(name, fast[i])) {
			doctor_add(doctor, DOCTOR_OK, "clock source", "%s", name);
			return;
		}
	}
	doctor_add(doctor, DOCTOR_WARN, "clock source", "%s: each reading of the time is a system call", name);
	doctor_advise(doctor,
		"boot with clocksource=tsc if the CPU's counter is stable; the kernel log states why it was not "
		"selected");
}

static void cpus_check(struct doctor *doctor)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0) {
		/* the machine has more than 1,024 CPUs */
		doctor_add(doctor, DOCTOR_OK, "CPUs", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
		return;
	}
	if (CPU_COUNT(&set) > 1) {
		doctor_add(doctor, DOCTOR_OK, "CPUs", "this process may use %d of %ld", CPU_COUNT(&set),
			sysconf(_SC_NPROCESSORS_ONLN));
		return;
	}
	doctor_add(doctor, DOCTOR_WARN, "CPUs", "one, shared by the agent and the workers");
	doctor_advise(doctor, "provide a second CPU: a lease refill waits until the agent is scheduled");
}

static void huge_pages_note(struct doctor *doctor)
{
	char enabled[128] = "?", shared[128] = "?";

	doctor_read("/sys/kernel/mm/transparent_hugepage/enabled", enabled, sizeof(enabled));
	doctor_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared, sizeof(shared));
	doctor_add(doctor, DOCTOR_INFO, "huge pages", "transparent: %s; for shared memory: %s", enabled, shared);
}

void doctor_kernel(struct doctor *doctor)
{
	version_note(doctor);
	seals_check(doctor);
	pidfd_check(doctor);
	peer_pidfd_check(doctor);
	io_uring_check(doctor);
	wipe_check(doctor);
	seccomp_check(doctor);
	clock_check(doctor);
	cpus_check(doctor);
	huge_pages_note(doctor);
}
