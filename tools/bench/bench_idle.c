/* bench_idle.c - the cost of gpoold without requests: CPU time of its processes, and private memory of the agent. */
#include "tools/bench/bench.h"

#include "proto/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { POOL_PAGES = 40960, WATCH_MS = 10000 };

static int agent_find(struct bench *bench, pid_t *agent)
{
	static struct msg_status_request request;
	static struct msg_status_reply status;
	static uint8_t reply[MSG_BYTES_MAX];
	uint8_t message[MSG_LARGEST_status_request];
	char text[512] = "";
	int length;

	length = msg_encode_status_request(&request, 0, NULL, message, sizeof(message));
	if (length > 0)
		length = pool_request(bench->control, message, (size_t)length, reply, sizeof(reply), 10000, text);
	if (length < 0)
		return bench_complain(bench, length, "cannot request the status: %s", text);
	if (msg_decode_status_reply(&status, reply, (size_t)length))
		return bench_complain(bench, -EBADMSG, "cannot decode the status");
	*agent = (pid_t)status.agent_pid;
	return 0;
}

/* Return the private memory of a process in bytes. This is RssAnon, because shared tables count as RssShmem. */
static int private_memory(pid_t pid, uint64_t *bytes)
{
	char path[32], line[256];
	int error = -ENOENT;
	uint64_t kib;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	while (error && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssAnon: %" SCNu64 " kB", &kib) == 1) {
			*bytes = kib * 1024;
			error = 0;
		}
	fclose(file);
	return error;
}

static int sample_idle(struct bench *bench, pid_t agent)
{
	uint64_t before, after, begin, end, bytes = 0;
	int error;

	error = daemon_time(bench, &before);
	if (error)
		return error;
	begin = monotonic_ns();
	poll(NULL, 0, WATCH_MS);
	end = monotonic_ns();
	error = daemon_time(bench, &after);
	if (!error)
		error = private_memory(agent, &bytes);
	if (error)
		return error;
	bench_sample(bench, FIGURE_agent_idle_cpu, 100 * (double)(after - before) / (double)(end - begin));
	bench_sample(bench, FIGURE_agent_rss, (double)bytes / 1e6);
	return 0;
}

int bench_idle(struct bench *bench)
{
	struct gpool *pool = NULL;
	struct gpool_block block;
	pid_t agent;
	int error;

	error = daemon_start(bench, POOL_PAGES, NULL);
	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = gpool_alloc(pool, 1, NULL, &block);
	if (!error)
		error = gpool_unpin(pool, &block);
	if (!error)
		error = agent_find(bench, &agent);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_idle(bench, agent);
	if (error)
		bench_complain(bench, error, "a call failed");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
