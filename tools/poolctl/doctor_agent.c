/* doctor_agent.c - checks of the socket folder, and of the gpoold that uses it. */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "shm/monotonic.h"
#include "tools/poolctl/doctor.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/pieces.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *group_name(gid_t gid)
{
	const struct group *group = getgrgid(gid);

	return group ? group->gr_name : "?";
}

/* Apply gpoold's rules (it rejects a folder that others can write to), and list the users that have access. */
static void folder_check(struct doctor *doctor, const char *path)
{
	static const char thing[] = "socket directory";
	struct stat stat;

	if (lstat(path, &stat) < 0) {
		if (errno == ENOENT) {
			doctor_add(doctor, DOCTOR_INFO, thing, "'%s' does not exist; gpoold creates it when it starts",
				path);
			return;
		}
		doctor_add(doctor, DOCTOR_FAIL, thing, "'%s': %s", path, strerror(errno));
		doctor_advise(doctor, "make the path accessible, or use another directory with --dir");
		return;
	}
	if (!S_ISDIR(stat.st_mode)) {
		doctor_add(doctor, DOCTOR_FAIL, thing, "'%s' is not a directory", path);
		doctor_advise(doctor, "remove it, or set runtime_dir of gpoold.conf to another path");
		return;
	}
	if (stat.st_mode & S_IWOTH) {
		doctor_add(doctor, DOCTOR_FAIL, thing, "'%s' is writable by all users, and gpoold refuses to use it",
			path);
		doctor_advise(doctor, "chmod 0750 '%s'", path);
	} else if (access(path, X_OK) < 0) {
		doctor_add(doctor, DOCTOR_FAIL, thing, "you have no search permission for '%s': mode %04o, group %s",
			path, stat.st_mode & 07777, group_name(stat.st_gid));
		doctor_advise(doctor, "ask an administrator to add you to group %s, then log in again",
			group_name(stat.st_gid));
	} else {
		doctor_add(doctor, DOCTOR_OK, thing, "'%s': mode %04o, group %s", path, stat.st_mode & 07777,
			group_name(stat.st_gid));
	}
}

/* Only the group may reach these sockets: a malformed header terminates a process that uses nanomsg. */
static void sockets_check(struct doctor *doctor, const char *directory)
{
	static const char *const names[] = {"attach", "nn"};
	char path[PATH_MAX];
	struct stat stat;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
		if (lstat(path, &stat) < 0 || !(stat.st_mode & (S_IWOTH | (S_ISDIR(stat.st_mode) ? S_IXOTH : 0))))
			continue;
		doctor_add(doctor, DOCTOR_WARN, "sockets", "all users can reach '%s': mode %04o", path,
			stat.st_mode & 07777);
		doctor_advise(
			doctor, "chmod o-rwx '%s': an invalid message of any user could terminate the front", path);
	}
}

static void group_check(struct doctor *doctor)
{
	if (getgrnam("gpool")) {
		doctor_add(doctor, DOCTOR_OK, "group gpool", "exists");
		return;
	}
	doctor_add(doctor, DOCTOR_INFO, "group gpool", "does not exist: the sockets belong to gpoold's own group");
	doctor_advise(doctor,
		"groupadd --system gpool, and add the users of the workers to the group, unless all of them run as "
		"root");
}

static void needs_learn(struct doctor *doctor, const struct msg_status_reply *status)
{
	for (uint32_t i = 0; i < status->pools_count; i++) {
		const struct msg_pool_status *pool = &status->pools[i];

		if (strcmp(pool->backend, "host")) {
			doctor->handles += pool->page_count;
			continue;
		}
		doctor->handles++;
		doctor->host_bytes += pool->page_count * pool->page_size;
		if (pool->page_count > doctor->host_pages)
			doctor->host_pages = pool->page_count;
	}
}

static void front_check(struct doctor *doctor, const struct msg_status_reply *status)
{
	if (status->front_restarts == 0) {
		doctor_add(doctor, DOCTOR_OK, "front", "process %" PRIu32 " receives requests", status->front_pid);
		return;
	}
	doctor_add(doctor, DOCTOR_WARN, "front",
		"process %" PRIu32 " receives requests; the front was restarted %" PRIu32 " time%s", status->front_pid,
		status->front_restarts, plural(status->front_restarts));
	doctor_advise(doctor,
		"an upgrade and a restart of the agent restart it, too; for other causes, such as invalid messages, "
		"see the log of gpoold");
}

/* Check the mover of each pool, and how it accesses the spill file. */
static void movers_check(struct doctor *doctor, const struct msg_status_reply *status)
{
	for (uint32_t i = 0; i < status->pools_count; i++) {
		const struct msg_pool_status *pool = &status->pools[i];

		if (pool->mover_gone_ms) {
			doctor_add(doctor, DOCTOR_FAIL, "mover",
				"no mover has served pool '%s' for %s: %s; nothing is spilled, restored or cleared",
				pool->name, age_text(pool->mover_gone_ms).text, pool->mover_why);
			doctor_advise(doctor,
				"see the log of gpoold, which continues to start movers; check the limits of processes "
				"and threads (ulimit -u, TasksMax= of the unit) and of locked memory (ulimit -l), the "
				"free memory of the GPU, and its driver");
		} else if (!pool->mover_pid) {
			doctor_add(doctor, DOCTOR_WARN, "mover",
				"the mover of pool '%s' is starting; spills, restores and transfers wait for it",
				pool->name);
			doctor_advise(doctor, "run doctor again: by then the mover serves, or a failure is reported");
		} else if (pool->mover_file_way == 2 && pool->mover_file_error) {
			doctor_add(doctor, DOCTOR_WARN, "mover",
				"process %" PRIu32
				" of pool '%s' accesses the spill file with threads, without io_uring: %s",
				pool->mover_pid, pool->name, strerror(-pool->mover_file_error));
			doctor_advise(doctor,
				"this works but is slower; check the sysctl kernel.io_uring_disabled and the seccomp "
				"profile of the container");
		} else {
			doctor_add(doctor, DOCTOR_OK, "mover", "process %" PRIu32 " of pool '%s'%s", pool->mover_pid,
				pool->name,
				pool->mover_file_way == 1 ? ", spill file with io_uring"
					: pool->mover_file_way == 2
					? ", spill file with threads, because GPOOL_NO_URING is set"
					: ", no spill file");
		}
		if (pool->spill_lost_blocks) {
			doctor_add(doctor, DOCTOR_FAIL, "spill",
				"pool '%s' could not restore %" PRIu32 " spilled block%s", pool->name,
				pool->spill_lost_blocks, plural(pool->spill_lost_blocks));
			doctor_advise(doctor,
				"check the disk of spill_directory, or the memory: the log of gpoold states the cause");
		}
	}
}

static void agent_ask_status(
	struct doctor *doctor, const struct command *command, struct gpool *pool, uint64_t attach_us)
{
	static struct msg_status_reply status;
	uint64_t begin = monotonic_us();

	if (agent_status(command, pool, &status)) {
		doctor_add(doctor, DOCTOR_FAIL, "front", "the agent attaches sessions but does not answer requests");
		doctor_advise(doctor,
			"see the log of gpoold: its front process receives the requests, and is restarted when it "
			"ends");
		return;
	}
	doctor->agent_answers = true;
	doctor_add(doctor, DOCTOR_OK, "agent",
		"process %" PRIu32 ", up %s, %" PRIu32 " pool%s; attached in %" PRIu64 " us, answered in %" PRIu64
		" us",
		status.agent_pid, age_text(status.uptime_ms).text, status.pools_count, plural(status.pools_count),
		attach_us, monotonic_us() - begin);
	front_check(doctor, &status);
	movers_check(doctor, &status);
	needs_learn(doctor, &status);
}

static void agent_check(struct doctor *doctor, const struct command *command)
{
	struct gpool *pool;
	uint64_t begin = monotonic_us();
	char why[256];
	int error = agent_try(command, GPOOL_OPEN_OBSERVER, &pool, why, sizeof(why));

	if (!error) {
		agent_ask_status(doctor, command, pool, monotonic_us() - begin);
		gpool_close(pool);
		return;
	}
	if (error == -ENOENT && doctor->keeper <= 0) {
		doctor_add(doctor, DOCTOR_INFO, "agent", "no agent runs in '%s'", command->directory);
		return;
	}
	doctor_add(doctor, error == -EACCES ? DOCTOR_WARN : DOCTOR_FAIL, "agent", "in '%s': %s%s%s", command->directory,
		gpool_strerror(error), why[0] ? ": " : "", why);
	if (error == -EACCES)
		doctor_advise(
			doctor, "run doctor as root, or name your user or group in access.observers of gpoold.conf");
	else if (doctor->keeper > 0)
		doctor_advise(doctor,
			"process %d exists and may be stopped or hung: read its tables as root with 'poolctl status "
			"--offline', then restart gpoold",
			(int)doctor->keeper);
	else
		doctor_advise(doctor, "start gpoold; it replaces the files that the previous gpoold left");
}

void doctor_agent(struct doctor *doctor, const struct command *command)
{
	pid_t keeper = keeper_pid(command->directory);

	doctor->keeper = keeper > 0 ? keeper : 0;
	folder_check(doctor, command->directory);
	sockets_check(doctor, command->directory);
	group_check(doctor);
	if (keeper == -ESRCH) {
		doctor_add(doctor, DOCTOR_WARN, "gpoold.pid",
			"its process does not exist, or is in another pid namespace");
		doctor_advise(doctor,
			"start gpoold again; it replaces the file. In a container with a pid namespace of its own, no "
			"action is required");
	}
	agent_check(doctor, command);
}
