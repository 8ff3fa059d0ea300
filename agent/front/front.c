/*
 * front.c - check requests from nanomsg, forward them to the agent, and send the agent's answers and events.
 *
 * One loop serves two descriptors; nanomsg has its own thread for its sockets. Each input is read once and checked
 * before it is used. All sizes are fixed, except that of the table of tokens, which only the agent fills.
 */
#include "agent/front/front.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <nanomsg/nn.h>
#include <nanomsg/pubsub.h>
#include <nanomsg/reqrep.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/front/sandbox.h"
#include "proto/codec.h"
#include "shm/monotonic.h"
#include "shm/plural.h"

enum {
	BATCH = 64, /* requests that are read before the agent is served */
	/* standard descriptors, those of nanomsg, and the one to the agent: 11 in total at the time of writing */
	DESCRIPTORS_OWN = 64,
	DESCRIPTORS_CHECK_MS = 500, /* interval at which descriptors are counted */
	/* consecutive counts; together twice the time (1 s) that nanomsg waits for the greeting of a connection */
	LEAKED_CHECKS = 4,
	ROUTE_BYTES_MAX = 128, /* return route of nanomsg: 48 bytes for a direct peer, 4 per hop */
	/* part of NN_RCVMAXSIZE for the header that REQ puts before a message: 4 bytes without hops */
	SP_HEADER_BYTES = 64,
	TOKEN_BUCKETS = 4096,  /* a power of two; sufficient for thousands of sessions */
	FLIGHT_MS_MAX = 60000, /* a request is dropped if the agent has not answered it after this time */
	/* time for the agent to announce all tokens; after it, requests with known tokens are served in any case */
	GRACE_MS = 1000,
	SOCKETS = 2, /* control and events */
	/* consecutive counts in which connections waited and none was accepted; nanomsg needs less than 1 ms */
	DEAF_CHECKS = 3,
};
#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

/* The return route of an answer: the unchanged control data that nanomsg returned with the request. */
struct route {
	size_t bytes;
	union {
		struct nn_cmsghdr align;
		uint8_t data[ROUTE_BYTES_MAX];
	};
};

struct flight {
	uint64_t id; /* serial << 8 | index of this flight; 0: unused */
	uint64_t since_ns;
	struct route route;
};
static_assert(FRONT_FLIGHTS_MAX <= 256, "the low byte of an id is the index of its flight");

/* A rate limit. Elapsed time is added as credit, up to one second, and each request costs its share of a second. */
struct allowance {
	uint64_t credit_ns;
	uint64_t since_ns;
};

struct token {
	struct token *next;
	uint8_t bytes[MSG_TOKEN_BYTES];
	struct allowance allowance;
};

struct front {
	size_t message_bytes_max;
	uint32_t requests_per_second;
	int agent_socket;
	int control; /* numbers of nanomsg sockets, not descriptors */
	int events;
	int control_fd; /* readable when control has a request */
	uint64_t started_ns;
	bool told;                  /* the agent has announced all tokens */
	struct pollfd *descriptors; /* [descriptors_max], for count_descriptors() */
	uint32_t descriptors_max;   /* RLIMIT_NOFILE */
	int descriptors_base;       /* number of open descriptors without connections */
	uint64_t descriptors_checked_ns;
	uint64_t beat_ns;  /* time of the last empty message */
	int leaked_checks; /* consecutive counts with leaked descriptors */
	int listeners[SOCKETS];
	int listener_count;
	uint64_t accepted; /* connections accepted until the last count */
	int deaf_checks;   /* consecutive counts in which connections waited and none was accepted */
	uint64_t next_serial;
	struct allowance strangers; /* shared by all requests with unknown tokens */
	struct token *tokens[TOKEN_BUCKETS];
	struct flight flights[FRONT_FLIGHTS_MAX];
	uint8_t packet[FRONT_ID_BYTES + MSG_BYTES_MAX];
};

/* Write a log line with write(): stdio calls fstat() on a stream, which the seccomp filter refuses. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[512] = "gpoold front: ";
	size_t used = strlen(line);
	va_list arguments;
	ssize_t written;
	int length;

	va_start(arguments, format);
	length = vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	used = strlen(line);
	line[used] = '\n';
	written = write(STDERR_FILENO, line, used + 1);
	(void)written; /* an error of the log itself cannot be reported */
}

/* ---- tokens and rates ---- */

static struct allowance full_allowance(void)
{
	return (struct allowance){.credit_ns = NS_PER_S, .since_ns = monotonic_ns()};
}

/* Take one request from an allowance of `rate` per second. Return false if the limit is exceeded. */
static bool allowance_take(struct allowance *allowance, uint32_t rate)
{
	uint64_t now = monotonic_ns();
	uint64_t cost;

	if (rate == 0)
		return true;
	cost = NS_PER_S / rate;
	/* Both terms are less than a century, so the sum does not wrap. */
	allowance->credit_ns += now - allowance->since_ns;
	if (allowance->credit_ns > NS_PER_S)
		allowance->credit_ns = NS_PER_S;
	allowance->since_ns = now;
	if (allowance->credit_ns < cost)
		return false;
	allowance->credit_ns -= cost;
	return true;
}

/*
 * Return the bucket of a token. The first bytes serve as the hash, because tokens are random and only the agent adds
 * them.
 */
static struct token **token_bucket(struct front *front, const uint8_t *bytes)
{
	return &front->tokens[(bytes[0] | (unsigned)bytes[1] << 8) & (TOKEN_BUCKETS - 1)];
}

/* Compare two tokens in constant time. */
static bool token_equal(const uint8_t *one, const uint8_t *other)
{
	uint8_t difference = 0;

	for (size_t i = 0; i < MSG_TOKEN_BYTES; i++)
		difference |= (uint8_t)(one[i] ^ other[i]);
	return difference == 0;
}

static struct token *token_find(struct front *front, const uint8_t *bytes)
{
	struct token *token = *token_bucket(front, bytes);

	while (token && !token_equal(token->bytes, bytes))
		token = token->next;
	return token;
}

static int token_add(struct front *front, const uint8_t *bytes)
{
	struct token **bucket = token_bucket(front, bytes);
	struct token *token;

	if (token_find(front, bytes))
		return 0;
	token = malloc(sizeof(*token));
	if (!token)
		return -ENOMEM;
	memcpy(token->bytes, bytes, MSG_TOKEN_BYTES);
	token->allowance = full_allowance();
	token->next = *bucket;
	*bucket = token;
	return 0;
}

static void token_remove(struct front *front, const uint8_t *bytes)
{
	for (struct token **at = token_bucket(front, bytes); *at; at = &(*at)->next) {
		struct token *token = *at;

		if (token_equal(token->bytes, bytes)) {
			*at = token->next;
			free(token);
			return;
		}
	}
}

/* ---- flights: requests that the agent has not answered ---- */

static struct flight *flight_new(struct front *front)
{
	uint64_t now = monotonic_ns();

	for (size_t i = 0; i < FRONT_FLIGHTS_MAX; i++) {
		struct flight *flight = &front->flights[i];

		if (flight->id != 0 && now - flight->since_ns < FLIGHT_MS_MAX * NS_PER_MS)
			continue;
		flight->id = ++front->next_serial << 8 | i;
		flight->since_ns = now;
		return flight;
	}
	return NULL;
}

static struct flight *flight_find(struct front *front, uint64_t id)
{
	struct flight *flight = &front->flights[id & 0xff];

	return id != 0 && flight->id == id ? flight : NULL;
}

/* ---- answers ---- */

/*
 * Send an answer. nanomsg drops it if the peer has disconnected or does not read; the client then repeats the request.
 */
static void answer(struct front *front, struct route *route, void *message, size_t length)
{
	struct nn_iovec part = {.iov_base = message, .iov_len = length};
	struct nn_msghdr header = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = route->data, .msg_controllen = route->bytes};

	if (nn_sendmsg(front->control, &header, NN_DONTWAIT) < 0 && nn_errno() != EAGAIN)
		say("cannot send a reply of %zu byte%s: %s; dropping it", length, plural(length),
			nn_strerror(nn_errno()));
}

static void answer_error(struct front *front, struct route *route, uint64_t sequence, int error, const char *text)
{
	static struct msg_error_reply reply;
	uint8_t message[MSG_LARGEST_error_reply];
	int length;

	reply.error = error;
	msg_text_copy(reply.text, sizeof(reply.text), text);
	length = msg_encode_error_reply(&reply, sequence, NULL, message, sizeof(message));
	assert(length > 0);
	answer(front, route, message, (size_t)length);
}

/* ---- the agent ---- */

static void handle_notice(struct front *front, uint8_t *message, size_t length)
{
	struct msg_envelope envelope;
	struct msg_front_token notice;

	if (msg_envelope_read(&envelope, message, length) < 0) {
		say("dropped an invalid message of %zu byte%s from the agent", length, plural(length));
	} else if (envelope.type == MSG_TYPE_event) {
		/* PUB drops messages to a slow subscriber whose queue is full. */
		if (nn_send(front->events, message, length, NN_DONTWAIT) < 0)
			say("cannot publish an event of %zu byte%s: %s; dropping it", length, plural(length),
				nn_strerror(nn_errno()));
	} else if (msg_decode_front_token(&notice, message, length) == 0) {
		if (notice.valid == FRONT_TOKENS_TOLD || notice.valid == FRONT_TOKENS_FOLLOW)
			front->told = notice.valid == FRONT_TOKENS_TOLD;
		else if (!notice.valid)
			token_remove(front, notice.token);
		else if (token_add(front, notice.token) < 0)
			say("out of memory for the token of a session; the session cannot send requests");
	} else {
		say("dropped an unexpected '%s' from the agent", msg_name(envelope.type));
	}
}

/*
 * Process all waiting messages of the agent. There is no limit, because the agent is trusted not to send without end.
 * Return -EPIPE if the agent closed its end.
 */
static int serve_agent(struct front *front)
{
	for (;;) {
		/*
		 * With MSG_TRUNC, recv() returns the full length of the packet, so packets that are too long are
		 * detected.
		 */
		ssize_t received =
			recv(front->agent_socket, front->packet, sizeof(front->packet), MSG_DONTWAIT | MSG_TRUNC);
		uint8_t *message = front->packet + FRONT_ID_BYTES;
		struct flight *flight;
		uint64_t id = 0;
		size_t length;

		if (received < 0 && errno == EINTR)
			continue;
		if (received < 0 && errno == EAGAIN)
			return 0;
		if (received <= 0)
			return -EPIPE;
		if (received <= FRONT_ID_BYTES || (size_t)received > sizeof(front->packet)) {
			say("dropped a packet of invalid length from the agent, %zd byte%s", received,
				plural(received));
			continue;
		}
		length = (size_t)received - FRONT_ID_BYTES;
		for (size_t b = 0; b < FRONT_ID_BYTES; b++)
			id |= (uint64_t)front->packet[b] << (8 * b);
		if (id == 0) {
			handle_notice(front, message, length);
			continue;
		}
		flight = flight_find(front, id);
		if (flight) {
			answer(front, &flight->route, message, length);
			flight->id = 0;
		}
	}
}

/* ---- requests ---- */

/*
 * Send a request to the agent as one packet. Return -EAGAIN if the socket is full, or -EPIPE if the agent closed its
 * end.
 */
static int forward(struct front *front, uint64_t id, const void *message, size_t length)
{
	uint8_t head[FRONT_ID_BYTES];
	struct iovec parts[2] = {{.iov_base = head, .iov_len = sizeof(head)},
		{.iov_base = (void *)(uintptr_t)message, .iov_len = length}};
	struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2};
	ssize_t sent;

	for (size_t i = 0; i < FRONT_ID_BYTES; i++)
		head[i] = (uint8_t)(id >> (8 * i));
	do
		sent = sendmsg(front->agent_socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return 0;
	return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? -EAGAIN : -EPIPE;
}

/*
 * Refuse a request with an unknown token. If the front does not have all tokens yet, it does not answer and the client
 * repeats the request; otherwise a live session could receive -EACCES.
 */
static void refuse_stranger(struct front *front, struct route *route, uint64_t sequence)
{
	if (!front->told)
		return;
	if (allowance_take(&front->strangers, front->requests_per_second))
		answer_error(front, route, sequence, -EACCES,
			"the token does not belong to a session; attach first, or attach again if the session has "
			"ended");
}

/* Check one request, then forward or refuse it. Return -EPIPE if the agent closed its end. */
static int handle_request(struct front *front, struct route *route, const void *message, size_t length)
{
	struct msg_envelope envelope;
	struct flight *flight;
	struct token *token;
	char text[128];
	int result;

	if (length > front->message_bytes_max || msg_envelope_read(&envelope, message, length) < 0)
		return 0;
	/*
	 * The agent announces a token before the client receives it, and withdraws it before the client learns of the
	 * end of the session, so the messages that apply to this request are already in the agent's socket.
	 */
	result = serve_agent(front);
	if (result < 0)
		return result;
	token = token_find(front, envelope.token);
	if (!token) {
		refuse_stranger(front, route, envelope.sequence);
		return 0;
	}
	if (!allowance_take(&token->allowance, front->requests_per_second)) {
		snprintf(text, sizeof(text),
			"the session sent more than %" PRIu32
			" request%s per second; send fewer, or raise limits.requests_per_second",
			front->requests_per_second, plural(front->requests_per_second));
		answer_error(front, route, envelope.sequence, -EBUSY, text);
		return 0;
	}
	if (!msg_is_control_request(envelope.type)) {
		snprintf(text, sizeof(text), "message type %u (%s) is not a control request in this version",
			envelope.type, msg_name(envelope.type));
		answer_error(front, route, envelope.sequence, -EOPNOTSUPP, text);
		return 0;
	}
	flight = flight_new(front);
	if (!flight) {
		snprintf(text, sizeof(text),
			"%d requests are already waiting for the agent, the limit; repeat the request later",
			FRONT_FLIGHTS_MAX);
		answer_error(front, route, envelope.sequence, -EBUSY, text);
		return 0;
	}
	flight->route = *route;
	result = forward(front, flight->id, message, length);
	if (result < 0)
		flight->id = 0;
	if (result == -EAGAIN) {
		answer_error(
			front, route, envelope.sequence, -EBUSY, "the agent is overloaded; repeat the request later");
		result = 0;
	}
	return result;
}

/* Process at most BATCH requests. Return -EPIPE if the agent closed its end. */
static int serve_clients(struct front *front)
{
	for (int i = 0; i < BATCH; i++) {
		struct route route;
		void *message = NULL;
		struct nn_iovec part = {.iov_base = &message, .iov_len = NN_MSG};
		struct nn_msghdr header = {.msg_iov = &part,
			.msg_iovlen = 1,
			.msg_control = route.data,
			.msg_controllen = sizeof(route.data)};
		int length;
		int result = 0;

		/* nanomsg does not store a route that does not fit, so initialize it with zeros. */
		memset(&route, 0, sizeof(route));
		length = nn_recvmsg(front->control, &header, NN_DONTWAIT);
		if (length < 0)
			/* no request is left, or this one has no route; poll() then reports further requests */
			return 0;
		route.bytes = route.align.cmsg_len;
		if (route.bytes > 0 && route.bytes <= sizeof(route.data))
			result = handle_request(front, &route, message, (size_t)length);
		nn_freemsg(message);
		if (result < 0)
			return result;
	}
	return 0;
}

/* ---- descriptors ---- */

/*
 * Count the open descriptors with one poll() of all numbers, which reports those that are not open. /proc is not
 * accessible in this process.
 */
static int count_descriptors(const struct front *front)
{
	int count = 0;

	for (uint32_t i = 0; i < front->descriptors_max; i++)
		front->descriptors[i] = (struct pollfd){.fd = (int)i};
	for (int i = 0; i < front->listener_count; i++)
		front->descriptors[front->listeners[i]].events = POLLIN;
	if (poll(front->descriptors, front->descriptors_max, 0) < 0)
		return -errno;
	for (uint32_t i = 0; i < front->descriptors_max; i++)
		count += !(front->descriptors[i].revents & POLLNVAL);
	return count;
}

/*
 * Return true if nanomsg has stopped accepting connections. Its worker thread reports no error when it lacks a
 * resource; the sockets exist, but connections are not accepted. This is detected if connections have waited for
 * several counts and none was accepted. Call it after count_descriptors().
 */
static bool is_deaf(struct front *front)
{
	uint64_t accepted = nn_get_statistic(front->control, NN_STAT_ACCEPTED_CONNECTIONS) +
		nn_get_statistic(front->events, NN_STAT_ACCEPTED_CONNECTIONS);
	bool waiting = false;

	for (int i = 0; i < front->listener_count; i++)
		waiting |= front->descriptors[front->listeners[i]].revents & POLLIN;
	front->deaf_checks = waiting && accepted == front->accepted ? front->deaf_checks + 1 : 0;
	front->accepted = accepted;
	return front->deaf_checks >= DEAF_CHECKS;
}

/*
 * Check the number of open descriptors. nanomsg keeps descriptors that a peer attaches to its messages, and at the
 * descriptor limit it retries accept() without a pause. The number may exceed the counted connections for a short time
 * without an attack, because nanomsg counts a connection only after its greeting.
 *
 * Return: 0; -EMFILE if, in several consecutive counts, all descriptors were open or more than the connections explain;
 * -EAGAIN if nanomsg accepts no connections.
 */
static int check_descriptors(struct front *front)
{
	uint64_t connections = nn_get_statistic(front->control, NN_STAT_CURRENT_CONNECTIONS) +
		nn_get_statistic(front->events, NN_STAT_CURRENT_CONNECTIONS);
	int open = count_descriptors(front);
	bool leaked = open - front->descriptors_base - (int64_t)connections > FRONT_LEAKED_MAX;

	if (!leaked && open < (int)front->descriptors_max) {
		front->leaked_checks = 0;
		if (!is_deaf(front))
			return 0;
		say("nanomsg does not accept connections; restarting the front");
		return -EAGAIN;
	}
	if (++front->leaked_checks < LEAKED_CHECKS)
		return 0;
	say("%d of %" PRIu32 " descriptor%s %s open, %" PRIu64 " of them for connections; %s; restarting the front",
		open, front->descriptors_max, plural(front->descriptors_max), be(front->descriptors_max), connections,
		leaked ? "a client sends descriptors with its messages"
		       : "the number of connections exceeds the limit");
	return -EMFILE;
}

/*
 * Publish an empty message, by which subscribers detect that they are connected. PUB drops it for subscribers that do
 * not read.
 */
static void beat(struct front *front, uint64_t now)
{
	if (now - front->beat_ns < MSG_BEAT_MS * NS_PER_MS)
		return;
	front->beat_ns = now;
	if (nn_send(front->events, "", 0, NN_DONTWAIT) < 0 && nn_errno() != EAGAIN)
		say("cannot publish: %s", nn_strerror(nn_errno()));
}

/* ---- start ---- */

/* Remove the socket file that an earlier front left at this URL. */
static int unlink_stale(const char *url)
{
	const char *scheme = "ipc://";
	const char *path = url + strlen(scheme);
	struct stat status;

	if (strncmp(url, scheme, strlen(scheme)) != 0 || path[0] == '\0')
		return -EINVAL;
	if (strlen(path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path) || strlen(url) >= NN_SOCKADDR_MAX)
		return -ENAMETOOLONG;
	if (lstat(path, &status) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(status.st_mode))
		return -EADDRINUSE;
	return unlink(path) < 0 ? -errno : 0;
}

/*
 * Open a nanomsg socket that listens at url. Nothing is closed after an error, because the process then ends.
 *
 * Return the number of the socket, or a negative errno.
 */
static int open_socket(int domain, int protocol, const char *url, int receive_bytes_max)
{
	int socket;
	int result = unlink_stale(url);

	if (result < 0)
		return result;
	socket = nn_socket(domain, protocol);
	if (socket < 0)
		return -nn_errno();
	if (nn_setsockopt(socket, NN_SOL_SOCKET, NN_RCVMAXSIZE, &receive_bytes_max, sizeof(receive_bytes_max)) < 0)
		return -nn_errno();
	if (nn_bind(socket, url) < 0)
		return -nn_errno();
	return socket;
}

static int open_sockets(struct front *front, const struct front_options *options)
{
	size_t size = sizeof(front->control_fd);

	umask(007);
	front->control =
		open_socket(AF_SP_RAW, NN_REP, options->control_url, (int)front->message_bytes_max + SP_HEADER_BYTES);
	if (front->control < 0) {
		say("cannot listen at '%s': %s", options->control_url, nn_strerror(-front->control));
		return front->control;
	}
	/* Subscribers send nothing to the publisher, so accept a header only. */
	front->events = open_socket(AF_SP, NN_PUB, options->events_url, SP_HEADER_BYTES);
	if (front->events < 0) {
		say("cannot listen at '%s': %s", options->events_url, nn_strerror(-front->events));
		return front->events;
	}
	if (nn_getsockopt(front->control, NN_SOL_SOCKET, NN_RCVFD, &front->control_fd, &size) < 0)
		return -nn_errno();
	return 0;
}

/* Find the listening descriptors of nanomsg, which does not report them. */
static void find_listeners(struct front *front)
{
	for (int fd = STDERR_FILENO + 1; fd < (int)front->descriptors_max; fd++) {
		int listens = 0;
		socklen_t bytes = sizeof(listens);

		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens &&
			front->listener_count < SOCKETS)
			front->listeners[front->listener_count++] = fd;
	}
}

/* Reset the signal handlers and the signal mask that were inherited from the keeper. */
static void reset_signals(void)
{
	sigset_t none;

	for (int number = 1; number < NSIG; number++)
		signal(number, number == SIGPIPE ? SIG_IGN : SIG_DFL); /* fails for signals that cannot be handled */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int start(struct front *front, const struct front_options *options)
{
	struct rlimit limit;
	int result;

	reset_signals();
	/* A low limit, so that attached descriptors cannot accumulate; at most the hard limit of the process. */
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -errno;
	if (front->descriptors_max > limit.rlim_max)
		front->descriptors_max = (uint32_t)limit.rlim_max;
	limit.rlim_cur = limit.rlim_max = front->descriptors_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0) {
		result = -errno;
		say("cannot limit descriptors to %" PRIu32 ": %s", front->descriptors_max, strerror(-result));
		return result;
	}
	result = sandbox_drop(options->uid, options->gid, options->parent);
	if (result < 0) {
		say("cannot drop privileges: %s", strerror(-result));
		return result;
	}
	result = open_sockets(front, options);
	if (result < 0)
		return result;
	find_listeners(front);
	if (options->seccomp) {
		result = sandbox_filter();
		if (result < 0) {
			say("cannot load the seccomp filter: %s", strerror(-result));
			return result;
		}
	}
	front->descriptors_base = count_descriptors(front);
	front->started_ns = front->descriptors_checked_ns = front->beat_ns = monotonic_ns();
	return front->descriptors_base < 0 ? front->descriptors_base : 0;
}

/* Serve until an error occurs: -EPIPE (the agent closed its end) or -EMFILE. */
static int serve(struct front *front)
{
	for (;;) {
		/*
		 * Requests wait until all tokens are known. A client that repeats its request after a restart of the
		 * front then gets an answer immediately.
		 */
		bool known = front->told || monotonic_ns() - front->started_ns >= GRACE_MS * NS_PER_MS;
		struct pollfd polls[2] = {{.fd = front->agent_socket, .events = POLLIN},
			{.fd = known ? front->control_fd : -1, .events = POLLIN}};
		int result = 0;
		uint64_t now;

		if (poll(polls, 2, DESCRIPTORS_CHECK_MS) < 0 && errno != EINTR)
			return -errno;
		if (polls[0].revents)
			result = serve_agent(front);
		if (result == 0 && (polls[1].revents & POLLIN))
			result = serve_clients(front);
		now = monotonic_ns();
		if (result == 0 && now - front->descriptors_checked_ns >= DESCRIPTORS_CHECK_MS * NS_PER_MS) {
			front->descriptors_checked_ns = now;
			result = check_descriptors(front);
			beat(front, now);
		}
		if (result < 0)
			return result;
	}
}

int front_run(const struct front_options *options)
{
	struct front *front;
	int result;

	if (!options->control_url || !options->events_url || options->message_bytes_max > MSG_BYTES_MAX ||
		options->connections_max > FRONT_CONNECTIONS_MOST)
		return -EINVAL;
	front = calloc(1, sizeof(*front));
	if (!front)
		return -ENOMEM;
	front->descriptors_max = DESCRIPTORS_OWN + FRONT_LEAKED_MAX +
		(options->connections_max ? options->connections_max : (uint32_t)FRONT_CONNECTIONS_MAX);
	front->descriptors = calloc(front->descriptors_max, sizeof(*front->descriptors));
	if (!front->descriptors)
		return -ENOMEM; /* the process ends, which frees the rest */
	front->message_bytes_max = options->message_bytes_max ? options->message_bytes_max : MSG_BYTES_MAX;
	front->requests_per_second = options->requests_per_second;
	front->agent_socket = options->agent_socket;
	front->strangers = full_allowance();
	result = start(front, options);
	if (result == 0)
		result = serve(front);
	/* Nothing is closed, because nanomsg's thread runs until the process ends. */
	return result == -EPIPE ? 0 : result;
}
