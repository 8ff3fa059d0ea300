/*
 * doctor_limits.c - descriptors, locked memory, processes, mappings, memory: this machine's limits, compared with the
 * needs of gpool.
 */
#include "shm/plural.h"
#include "tools/poolctl/doctor.h"
#include "tools/poolctl/output.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
	SESSIONS = 256,          /* the default of limits.sessions */
	SESSION_DESCRIPTORS = 4, /* connection, pidfd, segment, doorbell */
	OTHER_DESCRIPTORS = 256, /* sockets, segments, log, and a reserve */
	PROCESSES = 64,          /* gpoold needs a few; a worker has two threads of nanomsg */
	EXPORT_SLOTS = 524288,   /* limit of the GPU driver for the whole machine */
	OTHER_MAPPINGS = 2048,   /* a large program has several hundred libraries */
};

static struct text limit_text(rlim_t limit)
{
	struct text text;

	if (limit == RLIM_INFINITY)
		strcpy(text.text, "unlimited");
	else
		snprintf(text.text, sizeof(text.text), "%" PRIu64, (uint64_t)limit);
	return text;
}

static struct text bytes_limit_text(rlim_t limit)
{
	return limit == RLIM_INFINITY ? limit_text(limit) : bytes_text(limit);
}

/* Return a limit of the running gpoold, if it can be read, otherwise of this process. */
static const char *limit_get(const struct doctor *doctor, int resource, struct rlimit *limit)
{
	if (doctor->keeper && prlimit(doctor->keeper, (__rlimit_resource_t)resource, NULL, limit) == 0)
		return "gpoold";
	getrlimit((__rlimit_resource_t)resource, limit);
	return "this process";
}

/* gpoold raises the soft limit itself; as root, it also raises the hard limit. */
static void descriptors_check(struct doctor *doctor)
{
	uint64_t needed = doctor->handles + SESSIONS * SESSION_DESCRIPTORS + OTHER_DESCRIPTORS;
	struct rlimit limit;
	const char *whose = limit_get(doctor, RLIMIT_NOFILE, &limit);

	if (limit.rlim_max >= needed || (geteuid() == 0 && !doctor->keeper)) {
		doctor_add(doctor, DOCTOR_OK, "RLIMIT_NOFILE", "%s: soft %s, hard %s; needed %" PRIu64, whose,
			limit_text(limit.rlim_cur).text, limit_text(limit.rlim_max).text, needed);
	} else {
		doctor_add(doctor, DOCTOR_FAIL, "RLIMIT_NOFILE",
			"%s: hard limit %s, needed %" PRIu64 " for %" PRIu64 " handle%s and %d sessions", whose,
			limit_text(limit.rlim_max).text, needed, doctor->handles, plural(doctor->handles), SESSIONS);
		doctor_advise(doctor,
			"set LimitNOFILE=%" PRIu64
			" in the unit of gpoold, raise ulimit -n, or choose a larger handle_size",
			needed);
	}
	if (doctor->handles > EXPORT_SLOTS) {
		doctor_add(doctor, DOCTOR_FAIL, "export table",
			"%" PRIu64 " handle%s; the driver has %d slots for the whole machine", doctor->handles,
			plural(doctor->handles), EXPORT_SLOTS);
		doctor_advise(doctor, "raise handle_size of the pools, so that they have fewer handles in total");
	}
}

static void locked_check(struct doctor *doctor)
{
	const rlim_t needed = (rlim_t)64 << 20;
	struct rlimit limit;
	const char *whose = limit_get(doctor, RLIMIT_MEMLOCK, &limit);

	if (limit.rlim_cur >= needed || geteuid() == 0) {
		doctor_add(doctor, DOCTOR_OK, "RLIMIT_MEMLOCK", "%s: %s%s", whose,
			bytes_limit_text(limit.rlim_cur).text, geteuid() == 0 ? "; root is exempt" : "");
		return;
	}
	doctor_add(doctor, DOCTOR_WARN, "RLIMIT_MEMLOCK", "%s: %s; needed %s for registered buffers", whose,
		bytes_limit_text(limit.rlim_cur).text, bytes_text(needed).text);
	doctor_advise(doctor,
		"set LimitMEMLOCK=infinity in the unit, or raise ulimit -l; otherwise buffers are copied one more "
		"time");
}

static void processes_check(struct doctor *doctor)
{
	struct rlimit limit;
	const char *whose = limit_get(doctor, RLIMIT_NPROC, &limit);

	if (limit.rlim_cur >= PROCESSES || geteuid() == 0) {
		doctor_add(doctor, DOCTOR_OK, "RLIMIT_NPROC", "%s: %s; needed %d", whose,
			limit_text(limit.rlim_cur).text, PROCESSES);
		return;
	}
	doctor_add(doctor, DOCTOR_FAIL, "RLIMIT_NPROC", "%s: %s; needed %d for threads and the processes of gpoold",
		whose, limit_text(limit.rlim_cur).text, PROCESSES);
	doctor_advise(doctor, "raise ulimit -u to at least %d, or TasksMax= in the unit", PROCESSES);
}

/* On the host back end a page needs at most one mapping; adjacent pages may share one. */
static void mappings_check(struct doctor *doctor)
{
	uint64_t most, needed = doctor->host_pages + OTHER_MAPPINGS;
	char text[32];

	if (!doctor_read("/proc/sys/vm/max_map_count", text, sizeof(text)) ||
		!number_parse(text, 1, UINT64_MAX, &most)) {
		doctor_add(doctor, DOCTOR_INFO, "vm.max_map_count", "cannot be read");
		return;
	}
	if (!doctor->host_pages) {
		doctor_add(doctor, DOCTOR_INFO, "vm.max_map_count",
			"%" PRIu64 ": enough for a host pool of %" PRIu64 " page%s", most,
			most > OTHER_MAPPINGS ? most - OTHER_MAPPINGS : 0,
			plural(most > OTHER_MAPPINGS ? most - OTHER_MAPPINGS : 0));
		return;
	}
	doctor_add(doctor, most >= needed ? DOCTOR_OK : DOCTOR_WARN, "vm.max_map_count",
		"%" PRIu64 "; needed %" PRIu64 " in the worst case", most, needed);
	if (most < needed)
		doctor_advise(doctor,
			"set sysctl vm.max_map_count=%" PRIu64 ", or choose a larger handle_size for the host pool",
			needed * 2);
}

/* Return the value of a line "Name: 1234 kB" of /proc/meminfo in bytes; 0: no such line. */
static uint64_t meminfo(const char *name)
{
	FILE *file = fopen("/proc/meminfo", "re");
	uint64_t kib = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			kib = strtoull(line + strlen(name) + 1, NULL, 10);
	if (file)
		fclose(file);
	return kib << 10;
}

static void memory_check(struct doctor *doctor)
{
	uint64_t total = meminfo("MemTotal"), available = meminfo("MemAvailable");

	doctor_add(doctor, total && doctor->host_bytes > total ? DOCTOR_WARN : DOCTOR_OK, "memory",
		"%s, of which %s are available%s%s", bytes_text(total).text, bytes_text(available).text,
		doctor->host_bytes ? "; size of the host pools: " : "",
		doctor->host_bytes ? bytes_text(doctor->host_bytes).text : "");
	if (total && doctor->host_bytes > total)
		doctor_advise(doctor, "reduce the size of the host pools: the kernel kills workers that fill them");
}

/* CUDA's IPC events need /dev/shm, shared between containers. gpool's own tables are memfds and do not. */
static void dev_shm_check(struct doctor *doctor)
{
	struct statvfs space;
	struct statfs system;

	if (statfs("/dev/shm", &system) < 0 || system.f_type != TMPFS_MAGIC || statvfs("/dev/shm", &space) < 0) {
		doctor_add(doctor, DOCTOR_WARN, "/dev/shm", "is not a tmpfs");
		doctor_advise(doctor,
			"mount a tmpfs there: CUDA needs it for events between processes; the tables of gpool do not "
			"use it");
		return;
	}
	doctor_add(doctor, DOCTOR_OK, "/dev/shm", "%s, of which %s are free",
		bytes_text((uint64_t)space.f_blocks * space.f_frsize).text,
		bytes_text((uint64_t)space.f_bavail * space.f_frsize).text);
}

/* Return the lowest memory.max of this process's cgroup and its ancestors; UINT64_MAX: none. */
static uint64_t cgroup_limit(void)
{
	char line[512], path[768], text[32];
	FILE *file = fopen("/proc/self/cgroup", "re");
	uint64_t least = UINT64_MAX, value;
	char *group = NULL;

	while (file && !group && fgets(line, sizeof(line), file))
		if (!strncmp(line, "0::", 3))
			group = line + 3;
	if (file)
		fclose(file);
	if (!group) {
		/* cgroup version 1, as a container sees it */
		if (doctor_read("/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof(text)) &&
			number_parse(text, 0, UINT64_C(1) << 60, &value))
			least = value;
		return least;
	}
	group[strcspn(group, "\n")] = '\0';
	for (;;) {
		char *slash = strrchr(group, '/');

		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
		if (doctor_read(path, text, sizeof(text)) && number_parse(text, 0, UINT64_MAX, &value) && value < least)
			least = value;
		if (!slash)
			return least;
		*slash = '\0';
	}
}

static void cgroup_check(struct doctor *doctor)
{
	uint64_t limit = cgroup_limit();

	if (limit == UINT64_MAX) {
		doctor_add(doctor, DOCTOR_OK, "cgroup memory limit", "none");
		return;
	}
	doctor_add(doctor, limit < doctor->host_bytes ? DOCTOR_WARN : DOCTOR_INFO, "cgroup memory limit", "%s",
		bytes_text(limit).text);
	if (limit < doctor->host_bytes)
		doctor_advise(doctor, "the host pools have a size of %s: raise the limit, or reduce their size",
			bytes_text(doctor->host_bytes).text);
}

void doctor_limits(struct doctor *doctor)
{
	descriptors_check(doctor);
	locked_check(doctor);
	processes_check(doctor);
	mappings_check(doctor);
	memory_check(doctor);
	dev_shm_check(doctor);
	cgroup_check(doctor);
}
