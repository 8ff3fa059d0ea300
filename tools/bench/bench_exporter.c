/*
 * bench_exporter.c - the cost of gpool-exporter while Prometheus scrapes it: its CPU time and memory, and the CPU time
 * of gpoold.
 *
 * The gpool-exporter in the folder of this program is started on a free port. Each scrape uses a new connection and is
 * answered completely before the next pause.
 */
#include "tools/bench/bench.h"

#include "tools/lib/dependent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL_PAGES = 40960, WATCH_MS = 10000, SECOND_MS = 1000, PATIENCE_S = 10 };

struct exporter {
	pid_t pid; /* 0: none */
	struct sockaddr_in address;
};

static _Noreturn void exporter_become(const struct bench *bench, const char *program, int error_output)
{
	char folder[PATH_MAX];

	socket_folder(bench, folder);
	dup2(error_output, STDERR_FILENO);
	execl(program, program, "--dir", folder, "--port", "0", (char *)NULL);
	_exit(127);
}

/* Read the port from the first line of the program's output. */
static int port_read(int from, uint16_t *port)
{
	FILE *text = fdopen(from, "r");
	char line[512];
	unsigned number;
	int error = -EPROTO;

	if (!text) {
		close(from);
		return -ENOMEM;
	}
	if (fgets(line, sizeof(line), text) &&
		sscanf(line, "gpool-exporter: serving http://127.0.0.1:%u/", &number) == 1 && number <= UINT16_MAX) {
		*port = (uint16_t)number;
		error = 0;
	}
	fclose(text);
	return error;
}

static int exporter_start(struct bench *bench, struct exporter *exporter)
{
	char program[PATH_MAX];
	int ends[2], error = program_beside("gpool-exporter", program);
	uint16_t port = 0;

	if (error)
		return bench_complain(bench, error, "cannot find gpool-exporter in the directory of this program");
	if (pipe2(ends, O_CLOEXEC))
		return bench_complain(bench, -errno, "cannot create a pipe");
	exporter->pid = dependent_fork(SIGTERM);
	if (exporter->pid == 0)
		exporter_become(bench, program, ends[1]);
	close(ends[1]);
	if (exporter->pid < 0) {
		error = -errno;
		exporter->pid = 0;
		close(ends[0]);
	} else {
		error = port_read(ends[0], &port);
	}
	if (error)
		return bench_complain(bench, error, "cannot start '%s'", program);
	exporter->address = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return 0;
}

static void exporter_stop(struct exporter *exporter)
{
	if (!exporter->pid)
		return;
	kill(exporter->pid, SIGTERM);
	waitpid(exporter->pid, NULL, 0);
	exporter->pid = 0;
}

/* *resident_mb receives the memory that the exporter reports. */
static int metrics_read(const struct exporter *exporter, double *resident_mb)
{
	static const char question[] = "GET /metrics HTTP/1.0\r\n\r\n", name[] = "\nprocess_resident_memory_bytes ";
	static char answer[1 << 20];
	struct timeval patience = {.tv_sec = PATIENCE_S};
	size_t length = 0;
	const char *found;
	double bytes;
	ssize_t got;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) ||
		connect(fd, (const struct sockaddr *)&exporter->address, sizeof(exporter->address)) ||
		write(fd, question, sizeof(question) - 1) != sizeof(question) - 1) {
		close(fd);
		return -EIO;
	}
	while (length < sizeof(answer) - 1 && (got = recv(fd, answer + length, sizeof(answer) - 1 - length, 0)) > 0)
		length += (size_t)got;
	close(fd);
	answer[length] = '\0';
	found = strstr(answer, name);
	if (!strstr(answer, "\ngpool_up 1\n") || !found || sscanf(found + sizeof(name) - 1, "%lf", &bytes) != 1)
		return -EPROTO;
	*resident_mb = bytes / 1e6;
	return 0;
}

struct usage {
	uint64_t clock, exporter, agent; /* ns */
};

static int usage_take(const struct bench *bench, const struct exporter *exporter, struct usage *usage)
{
	int error = daemon_time(bench, &usage->agent);

	usage->clock = monotonic_ns();
	usage->exporter = 0;
	return error ? error : process_time(exporter->pid, &usage->exporter);
}

/* Return the percentage of a core used during WATCH_MS, with a scrape every pause_ms. */
static int watch(const struct bench *bench, const struct exporter *exporter, int pause_ms, double *exporter_cpu,
	double *agent_cpu, double *resident_mb)
{
	struct usage begin, end;
	int error = usage_take(bench, exporter, &begin);

	for (int i = 0; i < WATCH_MS / pause_ms && !error; i++) {
		poll(NULL, 0, pause_ms);
		error = metrics_read(exporter, resident_mb);
	}
	if (!error)
		error = usage_take(bench, exporter, &end);
	if (error)
		return error;
	*exporter_cpu = 100 * (double)(end.exporter - begin.exporter) / (double)(end.clock - begin.clock);
	*agent_cpu = 100 * (double)(end.agent - begin.agent) / (double)(end.clock - begin.clock);
	return 0;
}

static int sample_exporter(struct bench *bench, const struct exporter *exporter)
{
	double exporter_cpu, agent_cpu, resident_mb;
	int error = watch(bench, exporter, SECOND_MS, &exporter_cpu, &agent_cpu, &resident_mb);

	if (error)
		return error;
	bench_sample(bench, FIGURE_exporter_cpu, exporter_cpu);
	bench_sample(bench, FIGURE_exporter_agent_cpu, agent_cpu);
	error = watch(bench, exporter, SECOND_MS / 10, &exporter_cpu, &agent_cpu, &resident_mb);
	if (error)
		return error;
	bench_sample(bench, FIGURE_exporter_cpu_10, exporter_cpu);
	bench_sample(bench, FIGURE_exporter_rss, resident_mb);
	return 0;
}

int bench_exporter(struct bench *bench)
{
	struct exporter exporter = {.pid = 0};
	struct gpool *pool = NULL;
	struct gpool_block block;
	double unused;
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = gpool_alloc(pool, POOL_PAGES / 2, NULL, &block);
	if (!error)
		error = exporter_start(bench, &exporter);
	if (!error)
		error = metrics_read(&exporter, &unused); /* makes the exporter attach */
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_exporter(bench, &exporter);
	if (error)
		bench_complain(bench, error, "a call failed");
	exporter_stop(&exporter);
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
