/*
 * stress_agent.h - run a real gpoold for a stress test, on the host back end, with an observer session for requests.
 *
 * Functions that check a condition print the violations and return false.
 */
#ifndef GPOOL_TESTS_STRESS_AGENT_H
#define GPOOL_TESTS_STRESS_AGENT_H

#include "client/gpool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "shm/doorbell.h"
#include "shm/pool_segment.h"
#include "tests/lib/harness.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { STRESS_SETTINGS_MAX = 8, STRESS_MORE_MAX = 8, STRESS_PATIENCE_MS = AWAIT_MS };

struct stress_agent {
	struct harness harness;
	const char *directory;
	struct gpool *observer;
	const struct pool_header *header;
	pid_t keeper, pid, front;
};

/* Send one request in the observer session. The answer is stored in `reply`. */
static inline bool stress_ask(
	struct stress_agent *agent, const char *what, uint8_t *request, int length, uint8_t *reply, int *got)
{
	char text[512] = "";

	*got = length < 0 ? length
			  : pool_request(agent->observer, request, (size_t)length, reply, MSG_BYTES_MAX,
				    STRESS_PATIENCE_MS, text);
	if (*got < 0)
		printf("%s: %s %s\n", what, gpool_strerror(*got), text);
	return *got >= 0;
}

static inline bool stress_agent_status(struct stress_agent *agent, struct msg_status_reply *status)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct msg_status_request request = {0};
	uint8_t message[MSG_LARGEST_status_request];
	int length = msg_encode_status_request(&request, 0, NULL, message, sizeof(message));

	return stress_ask(agent, "status", message, length, reply, &length) &&
		!msg_decode_status_reply(status, reply, (size_t)length);
}

/* Check that the agent is the one that was started. The front may have been restarted. */
static inline bool stress_agent_same(struct stress_agent *agent)
{
	static struct msg_status_reply status;

	if (!stress_agent_status(agent, &status))
		return false;
	if (status.agent_pid != (uint32_t)agent->pid)
		printf("the agent was process %d and is %u: it has died\n", (int)agent->pid, status.agent_pid);
	return status.agent_pid == (uint32_t)agent->pid;
}

static inline bool stress_agent_front(struct stress_agent *agent, pid_t *pid, uint32_t *restarts)
{
	static struct msg_status_reply status;

	if (!stress_agent_status(agent, &status))
		return false;
	*pid = (pid_t)status.front_pid;
	*restarts = status.front_restarts;
	return true;
}

static pid_t stress_program;

/*
 * If standard output is closed, such as by `| head`, continue without output, so that gpoold is stopped and its folder
 * removed. Forked workers still end at this signal: libgpool must not raise it.
 */
static inline void stress_output_closed(int number)
{
	if (getpid() == stress_program)
		return;
	signal(number, SIG_DFL);
	raise(number);
}

/*
 * stress_agent_start() - start gpoold with one pool of `pages` pages of 512 KiB, none reserved. settings: key=value,
 * terminated by NULL; or NULL. The caller may then fork workers, which open their own sessions. Since this process has
 * used nanomsg, they can send control requests only after executing another program. stress_agent_start_with() - the
 * same with further arguments, terminated by NULL; or NULL.
 */
static inline bool stress_agent_start_with(
	struct stress_agent *agent, uint32_t pages, const char *const *settings, const char *const *more)
{
	static struct msg_status_reply status;
	const char *arguments[8 + 2 * STRESS_SETTINGS_MAX + STRESS_MORE_MAX];
	struct gpool_options options;
	char pool[128];
	int count = 0, error;

	memset(agent, 0, sizeof(*agent));
	snprintf(pool, sizeof(pool), "name=stress,backend=host,size=%uKiB,page_size=512KB,reserved=0", pages * 512);
	arguments[count++] = "--pool";
	arguments[count++] = pool;
	arguments[count++] = "--set";
	arguments[count++] = getenv("STRESS_LOG") ? getenv("STRESS_LOG") : "log.level=warning";
	for (int i = 0; settings && settings[i] && i < STRESS_SETTINGS_MAX; i++) {
		arguments[count++] = "--set";
		arguments[count++] = settings[i];
	}
	for (int i = 0; more && more[i] && i < STRESS_MORE_MAX; i++)
		arguments[count++] = more[i];
	arguments[count] = NULL;
	fflush(stdout);
	stress_program = getpid();
	signal(SIGPIPE, stress_output_closed);
	harness_start(&agent->harness, arguments);
	agent->directory = agent->harness.directory;
	agent->keeper = agent->harness.pid;
	options = harness_options(&agent->harness);
	options.flags = GPOOL_OPEN_OBSERVER;
	options.timeout_ms = STRESS_PATIENCE_MS;
	error = gpool_open(&options, &agent->observer);
	if (error) {
		printf("an observer cannot attach: %s\n", gpool_strerror(error));
		return false;
	}
	agent->header = pool_view(agent->observer)->header;
	if (!stress_agent_status(agent, &status))
		return false;
	agent->pid = (pid_t)status.agent_pid;
	agent->front = (pid_t)status.front_pid;
	return true;
}

static inline bool stress_agent_start(struct stress_agent *agent, uint32_t pages, const char *const *settings)
{
	return stress_agent_start_with(agent, pages, settings, NULL);
}

/*
 * Let the agent check the invariants. Findings about session `except` (0: none) are ignored. still: no operation is in
 * progress, so no page may be in an intermediate state.
 */
static inline bool stress_agent_check_pool(struct stress_agent *agent, const char *pool, bool still, uint32_t except)
{
	static uint8_t reply[MSG_BYTES_MAX];
	static struct msg_check_reply check;
	struct msg_check_request request = {.pool = ""};
	uint8_t message[MSG_LARGEST_check_request];
	uint32_t others = 0;
	int length;

	snprintf(request.pool, sizeof(request.pool), "%s", pool);
	length = msg_encode_check_request(&request, 0, NULL, message, sizeof(message));
	if (!stress_ask(agent, "check", message, length, reply, &length))
		return false;
	if (msg_decode_check_reply(&check, reply, (size_t)length)) {
		printf("the answer to check_request cannot be read\n");
		return false;
	}
	for (uint32_t i = 0; i < check.findings_count; i++)
		if (!except || check.findings[i].session != except) {
			printf("finding: session %u, page %u: %s\n", check.findings[i].session, check.findings[i].page,
				check.findings[i].text);
			others++;
		}
	if (check.found > check.findings_count && !except)
		others++;
	if (still && check.in_transit)
		printf("%u leased pages are in no block, not idle and not cached\n", check.in_transit);
	return !others && !(still && check.in_transit);
}

static inline bool stress_agent_check(struct stress_agent *agent, bool still)
{
	return stress_agent_check_pool(agent, "", still, 0);
}

static inline bool stress_agent_check_except(struct stress_agent *agent, uint32_t session)
{
	return stress_agent_check_pool(agent, "", false, session);
}

static inline bool stress_pool_wait_free(const struct pool_header *header)
{
	uint32_t free_pages = 0;

	/* An observer is not notified of this, so poll every millisecond. */
	for (int tries = 0; tries < STRESS_PATIENCE_MS; tries++) {
		free_pages = atomic_load(&header->state_pages[PAGE_FREE]);
		if (free_pages == header->page_count)
			return true;
		poll(NULL, 0, 1);
	}
	printf("%u of %u pages are free when all workers are gone:", free_pages, header->page_count);
	for (int state = 0; state < PAGE_STATES; state++)
		printf(" %s %u", page_state_name((enum page_state)state), atomic_load(&header->state_pages[state]));
	printf("\n");
	return false;
}

/* Wait until every page is FREE, which must happen after the end of the last worker. */
static inline bool stress_agent_wait_free(struct stress_agent *agent)
{
	return stress_pool_wait_free(agent->header);
}

/* Print the last part of gpoold's log. */
static inline void stress_log_show(const struct stress_agent *agent)
{
	/* less than the part of a failed test's output that is shown, so that the verdict remains visible */
	char text[1500];
	size_t length;
	FILE *log = fopen(agent->harness.log, "re");

	if (!log)
		return;
	if (fseek(log, -(long)sizeof(text), SEEK_END) < 0)
		rewind(log);
	length = fread(text, 1, sizeof(text), log);
	if (length)
		printf("gpoold said:\n%.*s", (int)length, text);
	fclose(log);
}

/* Return false if an agent or a mover has crashed. A front may: nanomsg aborts if a packet is invalid. */
static inline bool stress_none_crashed(const struct stress_agent *agent)
{
	FILE *log = fopen(agent->harness.log, "re");
	bool none = true;
	char line[512];

	while (log && fgets(line, sizeof(line), log))
		if (!strstr(line, " front ended") &&
			(strstr(line, "ended (signal 11)") || strstr(line, "ended (signal 7)") ||
				strstr(line, "ended (signal 6)"))) {
			printf("%s", line);
			none = false;
		}
	if (log)
		fclose(log);
	return none;
}

/*
 * stress_agent_stop() - stop gpoold; if `clean` is false or a process has crashed, print its log. Return: true if
 * `clean` is true, no agent or mover has crashed, gpoold exited with status 0, and it left no files behind.
 */
static inline bool stress_agent_stop(struct stress_agent *agent, bool clean)
{
	clean = stress_none_crashed(agent) && clean;
	if (!clean)
		stress_log_show(agent);
	gpool_close(agent->observer);
	return harness_stop(&agent->harness) == 0 && clean;
}

/* Return the number of open descriptors of a process, or a negative number if it has ended. */
static inline int stress_descriptors(pid_t pid)
{
	char path[64];
	int count = 0;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	folder = opendir(path);
	if (!folder)
		return -1;
	while (readdir(folder))
		count++;
	closedir(folder);
	return count - 2;
}

static inline uint32_t stress_sessions_held(pid_t pid)
{
	char path[64], link[64];
	uint32_t count = 0;
	struct dirent *entry;
	ssize_t length;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	folder = opendir(path);
	while (folder && (entry = readdir(folder))) {
		length = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);
		link[length < 0 ? 0 : length] = '\0';
		count += strstr(link, "gpool-session-") != NULL;
	}
	if (folder)
		closedir(folder);
	return count;
}

/*
 * stress_keeper_descriptors() - wait until the keeper holds `sessions` sessions, and return its stress_descriptors().
 * The keeper receives a session's descriptors in a message, some time after the worker receives them. Return: -1 if the
 * keeper does not hold them in time.
 */
static inline int stress_keeper_descriptors(const struct stress_agent *agent, uint32_t sessions)
{
	int count, before = -1;

	for (int tries = 0; tries < STRESS_PATIENCE_MS; tries++) {
		count = stress_descriptors(agent->keeper);
		if (count == before && stress_sessions_held(agent->keeper) == sessions)
			return count;
		before = count;
		poll(NULL, 0, 1);
	}
	printf("the keeper holds %u sessions and not %u\n", stress_sessions_held(agent->keeper), sessions);
	return -1;
}

#endif
