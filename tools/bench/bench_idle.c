/* bench_idle.c - what gpoold costs when nobody asks for anything: time of its four processes, private memory of the agent. */
#include "tools/bench/bench.h"

#include "proto/codec.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { POOL_PAGES = 40960, WATCH_MS = 10000, PROCESSES = 4 };

/* The child of the keeper that is none of those known already. */
static int find_mover(pid_t pids[PROCESSES])
{
	char path[64];
	FILE *children;
	long pid;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pids[0], (int)pids[0]);
	children = fopen(path, "re");
	pids[3] = 0;
	while (children && fscanf(children, "%ld", &pid) == 1)
		if (pid != pids[1] && pid != pids[2])
			pids[3] = (pid_t)pid;
	if (children)
		fclose(children);
	return pids[3] ? 0 : -ESRCH;
}

static int find_processes(struct bench *bench, pid_t pids[PROCESSES])
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
		return bench_complain(bench, length, "cannot ask for the status: %s", text);
	if (msg_decode_status_reply(&status, reply, (size_t)length))
		return bench_complain(bench, -EBADMSG, "cannot read the status");
	pids[0] = bench->agent;
	pids[1] = (pid_t)status.agent_pid;
	pids[2] = (pid_t)status.front_pid;
	return find_mover(pids);
}

/* Time on a core of one thread, ns: the first number of its schedstat; that of /proc/PID/stat counts in steps of 10 ms. */
static int thread_time(pid_t pid, const char *thread, uint64_t *ns)
{
	char path[64];
	uint64_t ran;
	FILE *file;
	int fields;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/schedstat", (int)pid, thread);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	fields = fscanf(file, "%" SCNu64, &ran);
	fclose(file);
	if (fields != 1)
		return -EIO;
	*ns += ran;
	return 0;
}

static int process_time(pid_t pid, uint64_t *ns)
{
	struct dirent *entry;
	char path[32];
	DIR *threads;
	int error = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	threads = opendir(path);
	if (!threads)
		return -errno;
	while ((entry = readdir(threads)) && !error)
		if (entry->d_name[0] != '.')
			error = thread_time(pid, entry->d_name, ns);
	closedir(threads);
	return error;
}

static int all_time(const pid_t pids[PROCESSES], uint64_t *ns)
{
	int error = 0;

	*ns = 0;
	for (int i = 0; i < PROCESSES && !error; i++)
		error = process_time(pids[i], ns);
	return error;
}

/* Private memory of a process, bytes: RssAnon, as the shared tables count as RssShmem. */
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

static int sample_idle(struct bench *bench, const pid_t pids[PROCESSES])
{
	uint64_t before, after, begin, end, bytes = 0;
	int error;

	error = all_time(pids, &before);
	if (error)
		return error;
	begin = now_ns();
	poll(NULL, 0, WATCH_MS);
	end = now_ns();
	error = all_time(pids, &after);
	if (!error)
		error = private_memory(pids[1], &bytes);
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
	pid_t pids[PROCESSES];
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
		error = find_processes(bench, pids);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_idle(bench, pids);
	if (error)
		bench_complain(bench, error, "cannot go on");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
