#include "tools/lib/agent_process.h"

#include "tools/lib/dependent.h"
#include "tools/lib/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STOP_TIMEOUT_MS = 10 * 1000, POOLS_MAX = 4 };

int agent_process_program(char *path, size_t path_bytes)
{
	static const char *const places[] = {"gpoold", "../sbin/gpoold"};
	const char *given = getenv("GPOOLD");
	char self[4096];
	ssize_t length;

	if (given && *given) {
		snprintf(path, path_bytes, "%s", given);
		return access(path, X_OK) == 0 ? 0 : -ENOENT;
	}
	length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (length < 0)
		return -errno;
	self[length] = '\0';
	*(strrchr(self, '/') + 1) = '\0';
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		int needed = snprintf(path, path_bytes, "%s%s", self, places[i]);

		if (needed > 0 && (size_t)needed < path_bytes && access(path, X_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

static void agent_exec(const struct agent_process *agent, const char *gpoold, const char *const *pools, size_t count,
	const char *setting)
{
	const char *arguments[8 + 2 * POOLS_MAX + 2];
	size_t n = 0;
	int fd;

	/* The calling program handles the terminal's signals, and then ends all processes in order. */
	setsid();
	fd = open(agent->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
		_exit(127);
	close(0);
	open("/dev/null", O_RDONLY);
	arguments[n++] = gpoold;
	arguments[n++] = "--foreground";
	arguments[n++] = "--dir";
	arguments[n++] = agent->directory;
	for (size_t i = 0; i < count; i++) {
		arguments[n++] = "--pool";
		arguments[n++] = pools[i];
	}
	if (setting) {
		arguments[n++] = "--set";
		arguments[n++] = setting;
	}
	arguments[n] = NULL;
	child_prepare(-1);
	execv(gpoold, (char *const *)(uintptr_t)arguments);
	dprintf(2, "cannot run '%s': %s\n", gpoold, strerror(errno));
	_exit(127);
}

int agent_process_start(struct agent_process *agent, const char *name, const char *gpoold, const char *const *pools,
	size_t count, const char *setting, bool detached)
{
	int error;

	memset(agent, 0, sizeof *agent);
	if (count > POOLS_MAX)
		return -EINVAL;
	snprintf(agent->root, sizeof agent->root, "%s/%.16s.XXXXXX", folder_temporary(), name);
	if (!mkdtemp(agent->root)) {
		error = -errno;
		agent->root[0] = '\0';
		return error;
	}
	/*
	 * The agent's front may run as another user and must reach its sockets; the agent sets the mode of their
	 * folder.
	 */
	chmod(agent->root, 0711);
	snprintf(agent->directory, sizeof agent->directory, "%s/run", agent->root);
	snprintf(agent->log, sizeof agent->log, "%s/log", agent->root);
	agent->pid = detached ? fork() : dependent_fork(SIGTERM);
	if (agent->pid == 0)
		agent_exec(agent, gpoold, pools, count, setting);
	if (agent->pid < 0) {
		error = -errno;
		agent->pid = 0;
		rmdir(agent->root);
		agent->root[0] = '\0';
		return error;
	}
	return 0;
}

bool agent_process_ended(struct agent_process *agent, int *status)
{
	if (agent->pid == 0 || waitpid(agent->pid, status, WNOHANG) != agent->pid)
		return false;
	agent->pid = 0;
	return true;
}

void agent_process_log_tail(const struct agent_process *agent, char *text, size_t text_bytes)
{
	FILE *file = fopen(agent->log, "re");
	size_t length;

	text[0] = '\0';
	if (!file)
		return;
	if (fseek(file, -(long)(text_bytes - 1), SEEK_END) != 0)
		rewind(file);
	length = fread(text, 1, text_bytes - 1, file);
	text[length] = '\0';
	fclose(file);
}

/* Report a file that an ended agent left in its folder: it should leave none. */
static void leftovers_report(const char *path, char *complaint, size_t complaint_bytes)
{
	DIR *directory = opendir(path);
	const struct dirent *entry;

	if (!directory)
		return;
	while ((entry = readdir(directory)) != NULL)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			snprintf(complaint, complaint_bytes, "gpoold did not remove '%s'", entry->d_name);
	closedir(directory);
}

static void wait_for_end(struct agent_process *agent, char *complaint, size_t complaint_bytes)
{
	const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
	int status = 0;

	kill(agent->pid, SIGTERM);
	for (int waited_ms = 0; waited_ms < STOP_TIMEOUT_MS; waited_ms += 5) {
		if (agent_process_ended(agent, &status)) {
			if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
				snprintf(complaint, complaint_bytes, "gpoold ended with %s %d after SIGTERM",
					WIFEXITED(status) ? "status" : "signal",
					WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
			return;
		}
		nanosleep(&pause, NULL);
	}
	snprintf(complaint, complaint_bytes, "gpoold did not end within %d ms of SIGTERM", STOP_TIMEOUT_MS);
	kill(agent->pid, SIGKILL);
	waitpid(agent->pid, &status, 0);
	agent->pid = 0;
}

void agent_process_stop(struct agent_process *agent, char *complaint, size_t complaint_bytes)
{
	int error;

	if (complaint_bytes > 0)
		complaint[0] = '\0';
	if (agent->pid != 0)
		wait_for_end(agent, complaint, complaint_bytes);
	if (agent->root[0] == '\0')
		return;
	leftovers_report(agent->directory, complaint, complaint_bytes);
	error = folder_remove(agent->root);
	if (error)
		snprintf(complaint, complaint_bytes, "cannot remove '%s': %s", agent->root, strerror(-error));
	agent->root[0] = '\0';
}
