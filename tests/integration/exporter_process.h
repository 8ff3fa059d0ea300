/*
 * exporter_process.h - run gpool-exporter on a free port and send requests to it; shared by test_exporter and
 * test_prometheus.
 *
 * Each test program includes this header once, after life.h.
 */
#ifndef GPOOL_TESTS_EXPORTER_PROCESS_H
#define GPOOL_TESTS_EXPORTER_PROCESS_H

#include "tests/integration/life.h"

#include <arpa/inet.h>
#include <grp.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { TEXT_MAX = 1 << 20, OTHER_USER = 65534, NOGROUP = 65534 };

struct process {
	pid_t pid;
	FILE *said; /* its standard error */
};

/* ---- processes ---- */

static inline const char *beside_gpoold(const char *name)
{
	static char path[512];

	program_path(path, sizeof(path));
	sprintf(strrchr(path, '/') + 1, "%s", name);
	return path;
}

/*
 * Start a program. arguments[0] is its path or name; NULL ends the list. If uid is 0, the program runs as the user of
 * this process, otherwise as user `uid` with the group nogroup only. Its standard output is discarded. The executable
 * is opened before the change of user, because the new user may have no access to its folder.
 */
static inline struct process process_start_as(const char *const *arguments, uid_t uid)
{
	struct process process;
	pid_t parent = getpid();
	int ends[2], program;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	fflush(stdout);
	process.pid = fork();
	assert_true(process.pid >= 0);
	if (!process.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(127);
		dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		if (!uid) {
			execvp(arguments[0], (char *const *)(uintptr_t)arguments);
			_exit(127);
		}
		program = open(arguments[0], O_PATH | O_CLOEXEC);
		if (!setgroups(0, NULL) && !setgid(NOGROUP) && !setuid(uid))
			fexecve(program, (char *const *)(uintptr_t)arguments, environ);
		_exit(127);
	}
	close(ends[1]);
	process.said = fdopen(ends[0], "r");
	assert_non_null(process.said);
	return process;
}

static inline struct process process_start(const char *const *arguments)
{
	return process_start_as(arguments, 0);
}

/* End the process. Return its wait status and the rest of its output. */
static inline int process_end(struct process *process, char *said, size_t size)
{
	size_t length = fread(said, 1, size - 1, process->said);
	int exit_status;

	said[length] = '\0';
	fclose(process->said);
	assert_int_equal(waitpid(process->pid, &exit_status, 0), process->pid);
	process->pid = 0;
	return exit_status;
}

/* ---- the exporter ---- */

static struct process exporter;
static uint16_t exporter_port;

static inline void exporter_start(const char *directory, const char *timeout)
{
	const char *const arguments[] = {
		beside_gpoold("gpool-exporter"), "--dir", directory, "--port", "0", "--timeout", timeout, NULL};
	char line[512];
	unsigned port;

	exporter = process_start(arguments);
	assert_non_null(fgets(line, sizeof(line), exporter.said));
	assert_int_equal(sscanf(line, "gpool-exporter: serving http://127.0.0.1:%u/", &port), 1);
	exporter_port = (uint16_t)port;
}

static inline void exporter_stop(void)
{
	char said[16384];

	assert_int_equal(kill(exporter.pid, SIGTERM), 0);
	if (process_end(&exporter, said, sizeof(said)))
		fail_msg("it did not end well, and said: %s", said);
}

/* Send a request for a path to a server on this machine. Return the status; *body is valid until the next call. */
static inline int http_get(uint16_t port, const char *path, const char **body)
{
	static char answer[TEXT_MAX];
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status = 0;
	size_t length = 0;
	ssize_t got;

	assert_true(fd >= 0);
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		dprintf(fd, "GET %s HTTP/1.0\r\n\r\n", path);
		while (length < sizeof(answer) - 1 &&
			(got = recv(fd, answer + length, sizeof(answer) - 1 - length, 0)) > 0)
			length += (size_t)got;
	}
	close(fd);
	answer[length] = '\0';
	sscanf(answer, "HTTP/%*s %d", &status);
	*body = strstr(answer, "\r\n\r\n");
	*body = *body ? *body + 4 : "";
	return status;
}

static inline const char *scrape(void)
{
	const char *text;

	assert_int_equal(http_get(exporter_port, "/metrics", &text), 200);
	return text;
}

/* Return the value of the line that begins with this text, or NAN if no line does. */
static inline double metric_in(const char *text, const char *line)
{
	const char *found = text;
	size_t length = strlen(line);

	while ((found = strstr(found, line)) && (found[-1] != '\n' || found[length] != ' '))
		found++;
	return found ? strtod(found + length, NULL) : (double)__builtin_nanf("");
}

/*
 * Return the name of a metric with its labels: a pool on the first device and `more`, which is empty or begins with a
 * comma. The text is valid until the next call.
 */
static inline const char *metric_line(const char *name, const char *pool, const char *more)
{
	static char line[256];

	snprintf(line, sizeof(line), "%s{pool=\"%s\",UUID=\"%s\"%s}", name, pool,
		strcmp(harness_backend(), "host") ? "GPU-d0d0d0d0-d0d0-d0d0-d0d0-d0d0d0d0d000"
						  : "HOST-00000000-0000-0000-0000-000000000000",
		more);
	return line;
}

/* Scrape the exporter and return the value of a metric of the first pool. */
static inline double metric(const char *name)
{
	return metric_in(scrape(), metric_line(name, "p0", ""));
}

static inline double metric_plain(const char *name)
{
	return metric_in(scrape(), name);
}

#endif
