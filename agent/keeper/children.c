/*
 * children.c - start and reap the agent, the front and the movers.
 */
#include "agent/front/front.h"
#include "agent/keeper/pools.h"
#include "agent/keeper/state.h"
#include "agent/base/log.h"
#include "proto/attach.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- in a child ---- */

static void close_if_open(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Load the module that this child runs, and close the descriptors that were needed to load it. */
static const struct module *child_module(struct keeper *keeper, const char *name)
{
	const struct module *module;

	log_setup(name, keeper->config->log_level, keeper->config->log_target == CONFIG_LOG_JOURNAL);
	module = loader_load(&keeper->loader);
	loader_close(&keeper->loader);
	loader_close(&keeper->before);
	if (keeper->probe.pid) {
		close_if_open(&keeper->probe.answer);
		loader_close(&keeper->probe.loader);
	}
	return module;
}

/* ---- the front ---- */

/* Return the maximum number of connections: one for control requests and one for events per session, and 64 others. */
static uint32_t front_connections(const struct config *config)
{
	uint32_t wanted = 2 * config->limits.sessions * config->pool_count + 64;

	return wanted < FRONT_CONNECTIONS_MOST ? wanted : FRONT_CONNECTIONS_MOST;
}

static _Noreturn void front_child(struct keeper *keeper, int socket)
{
	const struct config *config = keeper->config;
	const struct module *module;
	bool root = geteuid() == 0;
	struct front_options options = {
		.size = sizeof(options),
		.control_url = keeper->directory.control_url,
		.events_url = keeper->directory.events_url,
		.agent_socket = 3,
		.parent = getppid(),
		.uid = root ? config->front_uid : (uid_t)-1,
		.gid = root ? config->front_gid : (gid_t)-1,
		.message_bytes_max = config->limits.message_bytes,
		.requests_per_second = config->limits.requests_per_second,
		.connections_max = front_connections(config),
		.seccomp = true,
	};

	/* Only the agent may write to the pool segments, so the front must not have them mapped. */
	for (uint32_t i = 0; i < keeper->start.pool_count; i++)
		pool_unmake(&keeper->start.pools[i]);
	/* Load the module before the child gives up its rights. */
	module = child_module(keeper, "front");
	if (!module || dup2(socket, 3) < 0 || close_range(4, ~0U, 0) < 0)
		_exit(1);
	_exit(module->front(&keeper->start, &options));
}

static int front_start(struct keeper *keeper)
{
	struct keep_message message = {.what = KEEP_FRONT, .pool = keeper->front.restarts};
	int pair[2], error;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	pid = child_fork(&keeper->shed, "gpoold-front");
	if (pid == 0) {
		close(pair[0]);
		front_child(keeper, pair[1]);
	}
	close(pair[1]);
	if (pid < 0) {
		close(pair[0]);
		return pid;
	}
	child_born(&keeper->front, pid);
	message.id = (uint32_t)pid;
	error = attach_send(keeper->channel, &message, sizeof(message), &pair[0], 1);
	close(pair[0]);
	/* The new front sees its channel close, and ends. */
	if (error)
		log_warning("cannot report the new front to the agent: %s", strerror(-error));
	return 0;
}

static bool agent_hung_up(const struct keeper *keeper)
{
	struct pollfd look = {keeper->channel, 0, 0};

	return keeper->channel < 0 || (poll(&look, 1, 0) == 1 && look.revents & POLLHUP);
}

static void front_died(struct keeper *keeper, int status)
{
	uint32_t pause;

	/* The agent is also dying, and its death will be reported next. */
	if (agent_hung_up(keeper)) {
		child_replaced(&keeper->front);
		keeper->front.due_ms = 0;
		return;
	}
	pause = child_died(&keeper->front, false);
	if (!keeper->stopping)
		log_warning("front ended (%s); restarting it%s", child_end_text(status), pause ? " after a pause" : "");
}

/*
 * Retire the front of a dead agent. It is given some time, because it ends after it has forwarded the agent's last
 * messages. Its successor starts afterwards: if both created the sockets, those of the old front could remain.
 */
static void front_retire(struct keeper *keeper)
{
	if (!keeper->front.pid)
		return;
	keeper->old_front = keeper->front.pid;
	keeper->old_front_ms = keeper_ms() + FRONT_PATIENCE_MS;
	child_replaced(&keeper->front);
}

enum { KILL_AGAIN_MS = 1000 };

/*
 * The front has another user, so without CAP_KILL the keeper cannot kill it. Waiting for such a child would block the
 * keeper.
 */
static void kill_failed(const char *name, pid_t pid)
{
	log_error("cannot kill %s (pid %d): %s", name, pid, strerror(errno));
}

static void old_front_hurry(struct keeper *keeper)
{
	if (keeper->old_front <= 0 || keeper_ms() < keeper->old_front_ms)
		return;
	if (kill(keeper->old_front, SIGKILL)) {
		kill_failed("the front of the previous agent", keeper->old_front);
		keeper->old_front_ms = keeper_ms() + KILL_AGAIN_MS;
		return;
	}
	child_wait(keeper->old_front, NULL, 0);
	keeper->old_front = 0;
}

/* ---- movers ---- */

/*
 * Keep only the held items that a mover needs: memory and tiers of its pool, and the configuration. Return their
 * number.
 */
static uint32_t mover_sort_held(struct keeper *keeper, uint32_t pool)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < keeper->held.count; i++) {
		const struct held *item = &keeper->held.list[i];
		bool mine = item->pool == pool && (item->kind == KEEP_HANDLE || item->kind == KEEP_TIER);

		if (mine || item->kind == KEEP_CONFIG)
			keeper->held.list[kept++] = *item;
		else
			held_close(item);
	}
	return kept;
}

static _Noreturn void mover_child(struct keeper *keeper, uint32_t pool)
{
	struct module_start *start = &keeper->start;
	const struct module *module;

	close_if_open(&keeper->channel);
	close_if_open(&start->listen_fd);
	for (uint32_t i = 0; i < start->pool_count; i++)
		if (i != pool)
			pool_unmake(&start->pools[i]);
	start->held_count = mover_sort_held(keeper, pool);
	start->held = keeper->held.list;
	start->pool = pool;
	start->restarts = keeper->movers[pool].restarts;
	start->keeper_fd = -1;
	module = child_module(keeper, "mover");
	if (pool_leave_for_mover(&start->pools[pool]) || !module || !module->mover)
		_exit(1);
	_exit(module->mover(start));
}

static void mover_tell(struct keeper *keeper, uint32_t pool)
{
	struct keep_message message = {.what = KEEP_MOVER,
		.pool = pool,
		.id = (uint32_t)keeper->movers[pool].pid,
		.kind = keeper->movers[pool].restarts};
	int error = attach_send(keeper->channel, &message, sizeof(message), NULL, 0);

	if (error)
		log_warning("cannot report the new mover to the agent: %s", strerror(-error));
}

/*
 * Report the end of a mover to the agent, which then stops waiting for the mover. A lost report is repeated after the
 * next attempt to start a mover.
 */
static void mover_tell_end(struct keeper *keeper, uint32_t pool)
{
	const struct child *mover = &keeper->movers[pool];
	struct keep_message message = {.what = KEEP_MOVER_END,
		.pool = pool,
		.id = mover->end < 0 ? 0 : (uint32_t)mover->last,
		.kind = mover->restarts};
	int error;

	if (!keeper->ready || keeper->stopping)
		return;
	child_absence_text(mover, message.text, sizeof(message.text));
	error = attach_send(keeper->channel, &message, sizeof(message), NULL, 0);
	if (error)
		log_warning("cannot report the end of a mover to the agent: %s", strerror(-error));
}

static int mover_start(struct keeper *keeper, uint32_t pool)
{
	pid_t pid = child_fork(&keeper->shed, "gpoold-mover");

	if (pid == 0)
		mover_child(keeper, pool);
	if (pid < 0)
		return pid;
	child_born(&keeper->movers[pool], pid);
	mover_tell(keeper, pool);
	return 0;
}

static bool movers_are_old(const struct keeper *keeper)
{
	for (uint32_t i = 0; i < keeper->start.pool_count; i++)
		if (keeper->old_movers[i])
			return true;
	return false;
}

void movers_begin(struct keeper *keeper)
{
	for (uint32_t i = 0; i < keeper->start.pool_count; i++) {
		struct child *mover = &keeper->movers[i];

		if (keeper->old_movers[i])
			kill(keeper->old_movers[i], SIGTERM);
		else if (mover->pid)
			mover_tell(keeper, i);
		else if (keeper->loader.facts.has_mover && !mover->due_ms)
			mover->due_ms = keeper_ms();
		if (!mover->pid && (mover->last || mover->end))
			mover_tell_end(keeper, i);
	}
	if (movers_are_old(keeper))
		keeper->stop_deadline_ms = keeper_ms() + STOP_PATIENCE_MS;
}

static void mover_died(struct keeper *keeper, uint32_t pool, int status)
{
	struct child *mover = &keeper->movers[pool];
	uint32_t pause;

	mover->last = mover->pid;
	mover->end = status;
	if (keeper->old_movers[pool] && keeper->ready) {
		keeper->old_movers[pool] = 0;
		child_replaced(mover);
		/* The upgrade is finished when the last mover with the previous code has ended. */
		if (!movers_are_old(keeper))
			keeper->stop_deadline_ms = 0;
	} else {
		keeper->old_movers[pool] = 0;
		pause = child_died(mover, false);
		if (!keeper->stopping)
			log_warning("mover of pool '%s' ended (%s); restarting it%s", keeper->config->pools[pool].name,
				child_end_text(status), pause ? " after a pause" : "");
	}
	if (!keeper->loader.facts.has_mover)
		mover->due_ms = 0;
	mover_tell_end(keeper, pool);
}

/* ---- the agent ---- */

static _Noreturn void agent_child(struct keeper *keeper, int socket)
{
	const struct module *module = child_module(keeper, "agent");

	keeper->start.keeper_fd = socket;
	_exit(module ? module->agent(&keeper->start) : 1);
}

int agent_start(struct keeper *keeper)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	keeper->start.held = keeper->held.list;
	keeper->start.held_count = keeper->held.count;
	keeper->start.restarts = keeper->agent.restarts;
	pid = child_fork(&keeper->shed, "gpoold-agent");
	if (pid == 0) {
		close(pair[0]);
		agent_child(keeper, pair[1]);
	}
	close(pair[1]);
	if (pid < 0) {
		close(pair[0]);
		return pid;
	}
	child_born(&keeper->agent, pid);
	keeper->channel = pair[0];
	keeper->front.due_ms = keeper_ms();
	return 0;
}

/*
 * Return to the previous module if the agent of an upgrade does not start. Return false if no previous module is
 * loaded.
 */
static bool upgrade_undo(struct keeper *keeper)
{
	if (keeper->before.fd < 0)
		return false;
	loader_close(&keeper->loader);
	keeper->loader = keeper->before;
	keeper->before.fd = -1;
	memset(keeper->old_movers, 0, sizeof(keeper->old_movers));
	return true;
}

static void agent_died(struct keeper *keeper, int status)
{
	bool served, left = keeper->leaving;
	uint32_t pause;

	channel_drain(keeper);
	served = keeper->ready; /* the drained messages may have included KEEP_READY */
	keeper->ready = keeper->leaving = false;
	probe_cancel(&keeper->probe);
	front_retire(keeper);
	if (keeper->stopping) {
		keeper->agent.pid = 0;
		return;
	}
	if (!keeper->ever_ready) {
		log_error("agent ended (%s) before it served; gpoold stops", child_end_text(status));
		keeper->agent.pid = 0;
		keeper->stopping = true;
		keeper->exit_status = 1;
		return;
	}
	keeper->start.incarnation++;
	keeper->stop_deadline_ms = 0;
	if (left) {
		for (uint32_t i = 0; i < keeper->start.pool_count; i++)
			keeper->old_movers[i] = keeper->movers[i].pid;
		child_replaced(&keeper->agent);
		return;
	}
	pause = child_died(&keeper->agent, !served);
	log_error("agent ended (%s)%s; %s%s", child_end_text(status), served ? "" : " before it served",
		!served && upgrade_undo(keeper) ? "starting the previous module" : "restarting it",
		pause ? " after a pause" : "");
}

/* ---- all of them ---- */

static bool ended(pid_t pid, int *status)
{
	return pid > 0 && child_wait(pid, status, WNOHANG) == pid;
}

/* Reap each child by its pid: probes are reaped by probe_finish() instead. */
void children_reap(struct keeper *keeper)
{
	int status;

	if (ended(keeper->agent.pid, &status))
		agent_died(keeper, status);
	if (ended(keeper->front.pid, &status))
		front_died(keeper, status);
	/* Reap it after the agent, whose death may just have retired this front. */
	if (ended(keeper->old_front, &status))
		keeper->old_front = 0;
	for (uint32_t i = 0; i < keeper->start.pool_count; i++)
		if (ended(keeper->movers[i].pid, &status))
			mover_died(keeper, i, status);
}

/* Plan another attempt if a child could not be started for lack of processes or descriptors. */
static void started_or_later(struct child *child, const char *name, int error)
{
	if (!error)
		return;
	/* Log each cause once, because ten attempts are made per second. */
	if (child->end != error)
		log_warning("cannot start %s: %s; retrying every %d ms", name, strerror(-error), CHILD_PAUSE_MS);
	child_failed(child, error);
}

static void patience_end(struct keeper *keeper)
{
	bool agent = keeper->agent.pid > 0 && (keeper->leaving || keeper->channel < 0);

	log_warning("%s did not end within %d ms; killing it", agent ? "the agent" : "a mover", STOP_PATIENCE_MS);
	keeper->stop_deadline_ms = 0;
	if (agent)
		kill(keeper->agent.pid, SIGKILL);
	for (uint32_t i = 0; i < keeper->start.pool_count && !agent; i++)
		if (keeper->old_movers[i])
			kill(keeper->old_movers[i], SIGKILL);
}

void children_start_due(struct keeper *keeper)
{
	if (keeper->stop_deadline_ms && keeper_ms() >= keeper->stop_deadline_ms)
		patience_end(keeper);
	if (child_due(&keeper->agent))
		started_or_later(&keeper->agent, "the agent", agent_start(keeper));
	if (keeper->channel < 0)
		return;
	old_front_hurry(keeper);
	if (!keeper->old_front && child_due(&keeper->front))
		started_or_later(&keeper->front, "the front", front_start(keeper));
	for (uint32_t i = 0; i < keeper->start.pool_count && keeper->ready; i++) {
		if (!child_due(&keeper->movers[i]))
			continue;
		started_or_later(&keeper->movers[i], "a mover", mover_start(keeper, i));
		if (!keeper->movers[i].pid)
			mover_tell_end(keeper, i);
	}
}

int children_wait_ms(const struct keeper *keeper)
{
	uint64_t now = keeper_ms(), end = keeper->probe.pid ? keeper->probe.end_ms : keeper->stop_deadline_ms;
	int ms = end ? (end > now ? (int)(end - now) : 0) : -1;

	if (keeper->probe.pid && keeper->stop_deadline_ms && keeper->stop_deadline_ms < end)
		ms = keeper->stop_deadline_ms > now ? (int)(keeper->stop_deadline_ms - now) : 0;
	ms = child_wait_ms(&keeper->agent, ms);
	if (keeper->channel < 0)
		return ms;
	if (!keeper->old_front)
		ms = child_wait_ms(&keeper->front, ms);
	else if (ms < 0 || ms > FRONT_PATIENCE_MS)
		ms = FRONT_PATIENCE_MS;
	for (uint32_t i = 0; i < keeper->start.pool_count && keeper->ready; i++)
		ms = child_wait_ms(&keeper->movers[i], ms);
	return ms;
}

/* Wait for the death of a child, and meanwhile process the agent's messages. Kill the child after STOP_PATIENCE_MS. */
static void child_await(struct keeper *keeper, pid_t *pid, const char *name)
{
	uint64_t end = keeper_ms() + STOP_PATIENCE_MS;
	int status;

	while (*pid > 0) {
		struct pollfd look[] = {{keeper->shed.signals, POLLIN, 0}, {keeper->channel, POLLIN, 0}};
		struct signalfd_siginfo info;
		uint64_t now = keeper_ms();

		if (ended(*pid, &status)) {
			*pid = 0;
			return;
		}
		if (now >= end) {
			log_warning("%s did not end within %d ms; killing it", name, STOP_PATIENCE_MS);
			if (kill(*pid, SIGKILL))
				kill_failed(name, *pid);
			else
				child_wait(*pid, &status, 0);
			*pid = 0;
			return;
		}
		if (poll(look, 2, (int)(end - now)) <= 0)
			continue;
		if (look[1].revents && channel_read(keeper) == -EPIPE)
			close_if_open(&keeper->channel);
		if (look[0].revents && read(keeper->shed.signals, &info, sizeof(info)) < 0)
			continue;
	}
}

static void child_stop(struct keeper *keeper, pid_t *pid, const char *name)
{
	if (*pid > 0)
		kill(*pid, SIGTERM);
	child_await(keeper, pid, name);
}

/*
 * Stop the agent by shutting down the channel, not by a signal. Terminals and service managers send stop signals to all
 * processes, and identical pending signals are merged, so the agent could not identify the sender.
 */
static void agent_stop(struct keeper *keeper, bool leave)
{
	struct keep_message message = {.what = KEEP_LEAVE};

	if (keeper->channel < 0 || (leave && attach_send(keeper->channel, &message, sizeof(message), NULL, 0))) {
		if (keeper->agent.pid > 0)
			kill(keeper->agent.pid, SIGKILL);
	} else if (!leave) {
		shutdown(keeper->channel, SHUT_WR);
	}
	child_await(keeper, &keeper->agent.pid, "agent");
	channel_drain(keeper);
}

void children_stop(struct keeper *keeper, bool leave)
{

	keeper->stopping = true;
	probe_cancel(&keeper->probe);
	/*
	 * Stop the agent first, so that no new request is accepted. The front ends when the agent's end of its channel
	 * closes.
	 */
	agent_stop(keeper, leave);
	for (uint32_t i = 0; i < keeper->start.pool_count; i++)
		if (keeper->movers[i].pid > 0)
			kill(keeper->movers[i].pid, SIGTERM);
	for (uint32_t i = 0; i < keeper->start.pool_count; i++)
		child_await(keeper, &keeper->movers[i].pid, "mover");
	child_stop(keeper, &keeper->front.pid, "front");
	child_stop(keeper, &keeper->old_front, "front");
}
