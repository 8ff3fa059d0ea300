/*
 * bench_restart.c - the death of the agent of a pool of 40,960 pages. A worker has half of the pages, in blocks of one
 * page.
 */
#include "tools/bench/bench.h"

#include "proto/codec.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { POOL_PAGES = 40960, HELD = POOL_PAGES / 2, ASKED = 256, ANSWER_MS = 30000 };

static int ask_status(const struct bench *bench, uint32_t *agent_pid)
{
	static struct msg_status_reply status;
	static uint8_t reply[MSG_BYTES_MAX];
	struct msg_status_request request = {0};
	uint8_t message[MSG_LARGEST_status_request];
	char text[512];
	int length = msg_encode_status_request(&request, 0, NULL, message, sizeof(message));

	length = pool_request(bench->control, message, (size_t)length, reply, sizeof(reply), ANSWER_MS, text);
	if (length < 0)
		return length;
	length = msg_decode_status_reply(&status, reply, (size_t)length);
	*agent_pid = status.agent_pid;
	return length;
}

/* Allocate more adjacent pages than the lease can have, so that the agent is needed. */
static int sample_restart(struct bench *bench, struct gpool *pool)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	uint32_t before, after;
	struct pollfd ended = {.events = POLLIN};
	uint64_t killed, served, answered;
	int error = ask_status(bench, &before);

	if (error || before <= 1)
		return error ? error : -ESRCH;
	ended.fd = (int)syscall(SYS_pidfd_open, (pid_t)before, 0);
	if (ended.fd < 0)
		return -errno;
	options.flags = GPOOL_ALLOC_CONTIGUOUS;
	killed = monotonic_ns();
	kill((pid_t)before, SIGKILL);
	/* Wait until the process has ended; before that, it could answer the request. */
	error = poll(&ended, 1, ANSWER_MS) == 1 ? 0 : -ETIMEDOUT;
	close(ended.fd);
	/*
	 * Keep the block: if it were freed, its pages would be in the lease, and the next allocation would not need the
	 * agent.
	 */
	if (!error)
		error = gpool_alloc(pool, ASKED, &options, &block);
	served = monotonic_ns();
	if (!error)
		error = ask_status(bench, &after);
	answered = monotonic_ns();
	if (!error && after == before)
		error = -EAGAIN;
	if (error)
		return error;
	bench_sample(bench, FIGURE_agent_restart_40960, (double)(served - killed) / 1e6);
	bench_sample(bench, FIGURE_agent_restart_control, (double)(answered - killed) / 1e6);
	return 0;
}

int bench_restart(struct bench *bench)
{
	static const char *const settings[] = {"lease.idle=1h", "lease.batch_most=64", NULL};
	struct gpool *pool = NULL;
	int error = daemon_start(bench, POOL_PAGES, settings);

	if (error)
		return error;
	error = daemon_open(bench, 0, &pool);
	for (uint32_t i = 0; i < HELD && !error; i++) {
		struct gpool_block block;

		error = gpool_alloc(pool, 1, NULL, &block);
	}
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_restart(bench, pool);
	if (error)
		bench_complain(bench, error, "the agent was not restarted");
	gpool_close(pool);
	daemon_stop(bench);
	return error;
}
