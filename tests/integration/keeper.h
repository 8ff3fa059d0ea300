/*
 * keeper.h - inspect the processes of a gpoold and find test modules; shared by test_keeper, test_upgrade and
 * test_keep_over_restart.
 *
 * Each test program includes this header once, after poolctl_process.h.
 */
#ifndef GPOOL_TESTS_KEEPER_H
#define GPOOL_TESTS_KEEPER_H

#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0"
enum { PAGES = 64, END_MS = AWAIT_MS };

static struct harness harness;

struct agent_seen {
	pid_t pid;
	uint64_t incarnation;
};

/* Attach as a new tool does. The call succeeds once the successor of a killed agent accepts sessions. */
static inline struct agent_seen agent_seen(void)
{
	struct result result = poolctl("--dir", harness.directory, "--timeout", "20", "version", NULL);
	struct agent_seen seen = {0};
	unsigned long long incarnation;
	const char *line;
	int pid;

	expect(&result, OK);
	line = strstr(result.out, "process ");
	assert_non_null(line);
	assert_int_equal(sscanf(line, "process %d, incarnation %llu", &pid, &incarnation), 2);
	seen.pid = (pid_t)pid;
	seen.incarnation = incarnation;
	assert_true(seen.pid > 1);
	result_free(&result);
	return seen;
}

/* Check the number of free pages, and check that the agent finds no inconsistency in its tables. */
static inline void pool_is_whole(uint32_t free_pages)
{
	struct result result = poolctl("--dir", harness.directory, "--timeout", "20", "check", NULL);

	expect(&result, OK);
	result_free(&result);
	result = poolctl("--dir", harness.directory, "--timeout", "20", "-o", "json", "status", NULL);
	expect(&result, OK);
	assert_int_equal(number(cJSON_GetArrayItem(list(&result, "pools"), 0), "free_pages"), free_pages);
	result_free(&result);
}

/* Return the child of a process that has this name, or 0. */
static inline pid_t child_named(pid_t parent, const char *name)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	assert_non_null(proc);
	while (!found && (entry = readdir(proc))) {
		char path[300], text[512], *end, kind;
		int of;
		FILE *file;
		size_t length;

		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		length = fread(text, 1, sizeof(text) - 1, file);
		fclose(file);
		text[length] = '\0';
		end = strrchr(text, ')');
		if (!end || sscanf(end + 1, " %c %d", &kind, &of) != 2 || of != parent || kind == 'Z' || kind == 'X')
			continue;
		*end = '\0';
		if (!strcmp(strchr(text, '(') + 1, name))
			found = (pid_t)atoi(text);
	}
	closedir(proc);
	return found;
}

/* Wait until the process exists. Its start sends no event, so this function polls. */
static inline pid_t child_awaited(pid_t parent, const char *name)
{
	pid_t child = 0;

	for (int tries = 0; !(child = child_named(parent, name)); tries++) {
		assert_true(tries < END_MS / 5);
		poll(NULL, 0, 5);
	}
	return child;
}

static inline void kill_and_await(pid_t pid, int signal_number)
{
	int fd;

	assert_true(pid > 1);
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(fd >= 0);
	assert_int_equal(kill(pid, signal_number), 0);
	assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, END_MS), 1);
	close(fd);
}

/* Return the number of descriptors of a process that refer to files whose names begin with `prefix`. */
static inline uint32_t fds_of(pid_t pid, const char *prefix)
{
	char folder[64], path[400], target[200];
	struct dirent *entry;
	uint32_t count = 0;
	DIR *fds;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)pid);
	fds = opendir(folder);
	assert_non_null(fds);
	while ((entry = readdir(fds))) {
		ssize_t length;

		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		count += !strncmp(target, prefix, strlen(prefix));
	}
	closedir(fds);
	return count;
}

static inline bool log_has(const char *text)
{
	char *log = file_read(harness.log, NULL);
	bool has = strstr(log, text) != NULL;

	free(log);
	return has;
}

static inline void log_await(const char *text)
{
	for (int tries = 0; !log_has(text); tries++) {
		if (tries == END_MS / 5)
			fail_msg("'%s' is missing in the log:\n%s", text, file_read(harness.log, NULL));
		poll(NULL, 0, 5);
	}
}

/* Return the path of a file relative to this program's folder, such as "../gpoold-agent.so" or "modules/layout.so". */
static inline const char *beside(const char *name)
{
	static char path[700];
	ssize_t length = readlink("/proc/self/exe", path, 512);

	assert_true(length > 0);
	path[length] = '\0';
	strcpy(strrchr(path, '/') + 1, name);
	return path;
}

/* Replace `path` atomically with the file `name` from this program's folder, as an installation does. */
static inline void install(const char *name, const char *path)
{
	size_t bytes;
	char *content = file_read(beside(name), &bytes), draft[200];

	snprintf(draft, sizeof(draft), "%s~", path);
	file_write(draft, content, bytes);
	assert_int_equal(rename(draft, path), 0);
	free(content);
}

static inline int stop(void **state)
{
	(void)state;
	alarm(0);
	return harness_stop(&harness);
}

#endif
