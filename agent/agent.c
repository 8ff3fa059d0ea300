#include "agent/agent.h"

#include "agent/config/kept_config.h"
#include "agent/control/control.h"
#include "agent/control/upgrade.h"
#include "agent/pages/event.h"
#include "agent/front/front.h"
#include "agent/control/housekeeping.h"
#include "agent/spill/jobs.h"
#include "agent/keeper/channel.h"
#include "agent/base/log.h"
#include "agent/control/pool_start.h"
#include "agent/control/recover.h"
#include "agent/pages/requests.h"
#include "agent/session/session.h"
#include "agent/session/tokens.h"
#include "shm/plural.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
	CONNECTIONS_MAX = 128,        /* limit of accepted connections that have not sent a message */
	CONNECTIONS_OF_USER = 32,     /* per user, so that one user cannot lock out others; root is exempt */
	CONNECTION_SILENCE_MS = 5000, /* such a connection is closed after this time */
	TICK_MS = 100,                /* period of the coarse clock while sessions are attached */
	ACCEPT_BATCH = 16,
};

/* An accepted connection; its first message determines its purpose. */
struct connection {
	struct event_source socket;
	struct agent *agent;
	struct connection *next;
	uid_t uid;
	uint64_t since_ms;
	bool over;
};

#define owner_of(source, type, member) ((type *)(void *)((char *)(source)-offsetof(type, member)))

static void front_ready(struct event_source *source, uint32_t events)
{
	struct agent *agent = owner_of(source, struct agent, front);
	static uint8_t packet[FRONT_ID_BYTES + MSG_BYTES_MAX];

	if (events & EPOLLOUT)
		tokens_continue(agent);
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int length = attach_receive(source->fd, packet, sizeof(packet), NULL, 0, NULL, 0);

		if (length == -EAGAIN)
			return;
		if (length < 0) {
			/* The keeper also notices the death of the front, and sends the channel of a new one. */
			agent_unwatch(agent, source);
			close(source->fd);
			source->fd = -1;
			return;
		}
		control_packet(agent, packet, (size_t)length);
	}
}

static void front_take(struct agent *agent, int fd, pid_t pid, uint32_t restarts)
{
	int error;

	if (agent->front.fd >= 0) {
		agent_unwatch(agent, &agent->front);
		close(agent->front.fd);
	}
	agent->front.fd = fd;
	agent->front.ready = front_ready;
	agent->front_pid = pid;
	agent->front_restarts = restarts;
	error = agent_watch(agent, &agent->front, EPOLLIN);
	if (error) {
		log_error("cannot watch the channel of the front: %s; restarting the front", strerror(-error));
		close(fd);
		agent->front.fd = -1;
		return;
	}
	tokens_announce_all(agent);
	if (restarts)
		event_publish(agent, EVENT_FRONT_RESTART, NULL, 0, restarts, "front restarted, pid %d", (int)pid);
}

static void keeper_ready(struct event_source *source, uint32_t events)
{
	struct agent *agent = owner_of(source, struct agent, keeper);
	struct keep_message message;
	size_t fd_count = 0;
	int fd = -1, length;

	(void)events;
	length = attach_receive(source->fd, &message, sizeof(message), &fd, 1, &fd_count, 0);
	if (length == -EAGAIN)
		return;
	if (length == -EPIPE || length == -ECONNRESET) {
		agent->stopping = true; /* requested by the keeper, or the keeper is dead */
		return;
	}
	if (length < 0) {
		/*
		 * The lost message may have contained the channel of a front. That front sees its channel close and
		 * exits, and the keeper sends the channel of a new one.
		 */
		log_warning("cannot receive a message from the keeper: %s", strerror(-length));
		return;
	}
	if (length == sizeof(message) && message.what == KEEP_FRONT && fd_count == 1)
		front_take(agent, fd, (pid_t)message.id, message.pool);
	else if (fd_count)
		close(fd);
	else if (length == sizeof(message) && message.what == KEEP_VERDICT)
		upgrade_answer(agent, &message);
	else if (length == sizeof(message) && (message.what == KEEP_MOVER || message.what == KEEP_MOVER_END) &&
		message.pool < agent->pool_count)
		jobs_hear(agent->pools[message.pool], &message);
	else if (length == sizeof(message) && message.what == KEEP_LEAVE)
		_exit(0); /* a successor takes over the state unchanged */
}

static void signals_ready(struct event_source *source, uint32_t events)
{
	struct agent *agent = owner_of(source, struct agent, signals);
	struct signalfd_siginfo info;
	char text[1024];

	(void)events;
	while (read(source->fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_signo == SIGHUP)
			control_reload(agent, text, sizeof(text));
		/*
		 * Terminals and service managers send stop signals to all processes. The keeper handles them and then
		 * stops the agent.
		 */
	}
}

static void timer_ready(struct event_source *source, uint32_t events)
{
	struct agent *agent = owner_of(source, struct agent, timer);
	uint64_t expirations;
	bool attached = false;

	(void)events;
	if (read(source->fd, &expirations, sizeof(expirations)) < 0)
		return;
	agent->timer_ms = 0;
	if (agent->listener_rests && agent_watch(agent, &agent->listener, EPOLLIN) == 0)
		agent->listener_rests = false;
	for (uint32_t i = 0; i < agent->pool_count; i++) {
		housekeeping(agent->pools[i]);
		attached |= agent->pools[i]->session_count != 0;
	}
	/* Without sessions and connections, no clock is needed and the agent sleeps. */
	if (attached || agent->connections || agent->listener_rests)
		agent_need_tick(agent, TICK_MS);
}

static void connection_close(struct connection *connection, bool keep_socket)
{
	/* A kept socket belongs to a session, which already watches it. */
	if (!keep_socket) {
		agent_unwatch(connection->agent, &connection->socket);
		close(connection->socket.fd);
	}
	connection->socket.fd = -1;
	connection->over = true;
}

static void connections_sweep(struct agent *agent)
{
	struct connection **at = &agent->connections;

	while (*at) {
		struct connection *connection = *at;

		if (!connection->over && clock_ms() - connection->since_ms > CONNECTION_SILENCE_MS)
			connection_close(connection, false);
		if (!connection->over) {
			at = &connection->next;
			continue;
		}
		*at = connection->next;
		agent->connection_count--;
		free(connection);
	}
}

static void connection_ready(struct event_source *source, uint32_t events)
{
	struct connection *connection = owner_of(source, struct connection, socket);
	static struct attach_peer peer;
	struct msg_attach_request request;
	uint8_t buffer[1024];
	int length, error;

	(void)events;
	if (connection->over)
		return;
	length = attach_receive(source->fd, buffer, sizeof(buffer), NULL, 0, NULL, 0);
	if (length == -EAGAIN)
		return;
	if (length < 0 || msg_decode_attach_request(&request, buffer, (size_t)length)) {
		connection_close(connection, false);
		return;
	}
	error = attach_peer(source->fd, &peer);
	if (error) {
		log_info("attach refused: cannot identify the caller: %s", strerror(-error));
		connection_close(connection, false);
		return;
	}
	agent_unwatch(connection->agent, source);
	error = session_admit(connection->agent, source->fd, &peer, &request);
	if (error)
		close(peer.pidfd);
	connection_close(connection, !error);
}

/* Return a new connection, or NULL: out of memory, or too many connections in total or of this user. */
static struct connection *connection_new(struct agent *agent, int fd)
{
	struct ucred caller = {.uid = (uid_t)-1};
	socklen_t bytes = sizeof(caller);
	struct connection *connection;
	uint32_t same = 0;

	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &caller, &bytes);
	for (connection = agent->connections; connection; connection = connection->next)
		same += connection->uid == caller.uid && !connection->over;
	if (agent->connection_count >= CONNECTIONS_MAX || (caller.uid && same >= CONNECTIONS_OF_USER))
		return NULL;
	connection = calloc(1, sizeof(*connection));
	if (!connection)
		return NULL;
	connection->agent = agent;
	connection->uid = caller.uid;
	connection->since_ms = clock_ms();
	connection->socket.fd = fd;
	connection->socket.ready = connection_ready;
	return connection;
}

static void listener_ready(struct event_source *source, uint32_t events)
{
	struct agent *agent = owner_of(source, struct agent, listener);

	(void)events;
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct connection *connection;

		if (fd < 0) {
			/*
			 * Without descriptors or memory, the listener would remain ready and keep this loop busy. The
			 * next tick watches it again.
			 */
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
				log_warning("cannot accept a connection: %s", strerror(errno));
				agent_unwatch(agent, source);
				agent->listener_rests = true;
				agent_need_tick(agent, TICK_MS);
			}
			return;
		}
		connection = connection_new(agent, fd);
		if (!connection) {
			if (clock_ms() - agent->refused_ms > 1000)
				log_warning("connections are refused: %u connections have not sent a message yet",
					agent->connection_count);
			agent->refused_ms = clock_ms();
			close(fd);
			continue;
		}
		if (agent_watch(agent, &connection->socket, EPOLLIN)) {
			close(fd);
			free(connection);
			continue;
		}
		connection->next = agent->connections;
		agent->connections = connection;
		agent->connection_count++;
		agent_need_tick(agent, TICK_MS);
	}
}

static int agent_setup(struct agent *agent, const struct module_start *start)
{
	sigset_t mask;
	int error = 0;

	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	signal(SIGPIPE, SIG_IGN);
	agent->epoll = epoll_create1(EPOLL_CLOEXEC);
	agent->signals = (struct event_source){signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK), signals_ready};
	agent->timer = (struct event_source){timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), timer_ready};
	if (agent->epoll < 0 || agent->signals.fd < 0 || agent->timer.fd < 0)
		return -errno;
	agent->listener = (struct event_source){start->listen_fd, listener_ready};
	agent->keeper = (struct event_source){start->keeper_fd, keeper_ready};
	agent->front.fd = -1;
	error = agent_watch(agent, &agent->signals, EPOLLIN);
	if (!error)
		error = agent_watch(agent, &agent->timer, EPOLLIN);
	if (!error)
		error = agent_watch(agent, &agent->keeper, EPOLLIN);
	return error;
}

static void agent_loop(struct agent *agent)
{
	struct epoll_event events[64];

	while (!agent->stopping) {
		int count = epoll_wait(agent->epoll, events, 64, -1);

		for (int i = 0; i < count; i++) {
			struct event_source *source = events[i].data.ptr;

			source->ready(source, events[i].events);
		}
		for (uint32_t i = 0; i < agent->pool_count; i++)
			requests_pass(agent->pools[i]);
		/* `events` may refer to objects that ended in this pass, so they must not be freed earlier. */
		connections_sweep(agent);
		sessions_free_dead(agent);
	}
}

static void agent_teardown(struct agent *agent)
{
	for (uint32_t i = 0; i < agent->pool_count; i++)
		pool_destroy(agent->pools[i]);
	sessions_free_dead(agent);
	for (struct connection *connection = agent->connections; connection; connection = connection->next)
		if (!connection->over)
			connection_close(connection, false);
	connections_sweep(agent);
	if (agent->front.fd >= 0)
		close(agent->front.fd);
	close(agent->timer.fd);
	close(agent->signals.fd);
	close(agent->epoll);
	close(agent->keeper.fd);
	close(agent->listener.fd);
}

/* Check that the configuration has the pools that the keeper created. Changes of pools require a restart of gpoold. */
static bool config_fits(const struct config *config, const struct module_start *start)
{
	if (config->pool_count != start->pool_count)
		return false;
	for (uint32_t i = 0; i < start->pool_count; i++)
		if (strcmp(config->pools[i].name, start->pools[i].segment.header->name))
			return false;
	return true;
}

/*
 * Load the configuration that the keeper holds: the one that the keeper read, or the current one of the previous agent.
 */
static int config_read(struct agent *agent)
{
	struct config_error mistake;
	int error = kept_config_load(agent->start, &agent->config, &mistake);

	if (error && error != -ENOENT)
		log_warning("%s; reading the configuration files", mistake.text);
	if (error)
		error = recipe_load(agent->start->recipe, &agent->config, &mistake);
	if (error) {
		log_error("%s", mistake.text);
	} else if (!config_fits(&agent->config, agent->start)) {
		log_error("the configured pools differ from those with which gpoold was started; restart gpoold");
		error = -EINVAL;
	}
	return error;
}

static int pools_open(struct agent *agent)
{
	const struct module_start *start = agent->start;
	char text[512];
	int error;

	for (uint32_t i = 0; i < start->pool_count; i++) {
		const struct pool_header *header = start->pools[i].segment.header;

		error = pool_create(agent, i, &start->pools[i], &agent->pools[i]);
		if (error) {
			log_error("cannot create pool '%s': %s", header->name, strerror(-error));
			return error;
		}
		agent->pool_count++;
		log_info("pool '%s': %u page%s of %llu bytes on %s %s, %u reserved", header->name, header->page_count,
			plural(header->page_count), (unsigned long long)header->page_bytes, header->backend,
			header->device, header->page_count - header->reserved_first);
	}
	error = pools_minima_fit(agent, &agent->config, text, sizeof(text));
	if (error)
		log_error("%s", text);
	return error;
}

/*
 * Clean up after a failed first start. After a restart everything is left unchanged: the pool has users, and the next
 * agent continues.
 */
static int agent_give_up(struct agent *agent)
{
	if (agent->start->restarts || agent->start->adopted)
		return 1;
	agent_teardown(agent);
	free(agent);
	return 1;
}

int agent_run(const struct module_start *start)
{
	struct agent *agent = calloc(1, sizeof(*agent));
	int error;

	if (!agent)
		return 1;
	agent->start = start;
	agent->recipe = start->recipe;
	agent->incarnation = start->incarnation;
	agent->start_ms = clock_ms();
	error = config_read(agent);
	if (error) {
		free(agent);
		return 1;
	}
	log_setup("agent", agent->config.log_level, agent->config.log_target == CONFIG_LOG_JOURNAL);
	error = agent_setup(agent, start);
	if (error) {
		log_error("cannot start: %s", strerror(-error));
		free(agent);
		return 1;
	}
	error = pools_open(agent);
	if (!error)
		error = agent_watch(agent, &agent->listener, EPOLLIN);
	if (error) {
		log_error("cannot serve: %s", strerror(-error));
		return agent_give_up(agent);
	}
	agent_tell_keeper(agent, &(struct keep_message){.what = KEEP_READY}, NULL, 0);
	for (uint32_t i = 0; i < agent->pool_count; i++)
		recover_resume(agent->pools[i]);
	event_publish(agent, EVENT_AGENT_START, NULL, 0, agent->incarnation, "agent started, incarnation %llu",
		(unsigned long long)agent->incarnation);
	agent_loop(agent);
	log_debug("stopping");
	agent_teardown(agent);
	free(agent);
	return 0;
}
