#include "tools/exporter/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct http {
	struct MHD_Daemon *daemon;
	const struct http_route *routes;
	size_t count;
	struct peers *peers;
};

struct http_request {
	struct MHD_Connection *connection;
};

static atomic_bool stopping;

bool http_stopping(void)
{
	return atomic_load_explicit(&stopping, memory_order_relaxed);
}

const char *http_argument(const struct http_request *request, const char *name)
{
	return MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

void http_text(struct http_answer *answer, unsigned status, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vasprintf(&answer->body, format, arguments);
	va_end(arguments);
	answer->status = status;
	answer->type = "text/plain; charset=utf-8";
	if (length < 0)
		answer->body = NULL;
	answer->bytes = length < 0 ? 0 : (size_t)length;
}

/* ---- answering ---- */

static ssize_t stream_next(void *context, uint64_t at, char *to, size_t room)
{
	const struct http_answer *answer = context;
	ssize_t length;

	(void)at;
	length = http_stopping() ? -1 : answer->next(answer->stream, to, room);
	return length < 0 ? MHD_CONTENT_READER_END_OF_STREAM : length;
}

static void stream_end(void *context)
{
	struct http_answer *answer = context;

	if (answer->end)
		answer->end(answer->stream);
	free(answer);
}

static struct MHD_Response *response_of(const struct http_answer *answer)
{
	struct MHD_Response *response;
	struct http_answer *kept;

	if (!answer->next) {
		response = MHD_create_response_from_buffer(answer->bytes, answer->body, MHD_RESPMEM_MUST_FREE);
		if (!response)
			free(answer->body);
		return response;
	}
	kept = malloc(sizeof(*kept));
	if (kept) {
		*kept = *answer;
		response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, stream_next, kept, stream_end);
		if (response)
			return response;
	}
	free(kept);
	if (answer->end)
		answer->end(answer->stream);
	return NULL;
}

static const struct http_route *route_of(const struct http *http, const char *path)
{
	for (size_t i = 0; i < http->count; i++)
		if (!strcmp(http->routes[i].path, path))
			return &http->routes[i];
	return NULL;
}

static void no_such_path(const struct http *http, struct http_answer *answer)
{
	char paths[512] = "";
	size_t used = 0;

	for (size_t i = 0; i < http->count && used < sizeof(paths); i++)
		used += (size_t)snprintf(paths + used, sizeof(paths) - used, " %s", http->routes[i].path);
	http_text(answer, MHD_HTTP_NOT_FOUND, "not found; available paths:%s\n", paths);
}

static struct peer *peer_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Bodies are never read: a request with a body is answered at once, and its connection is closed. */
static enum MHD_Result answer_request(void *context, struct MHD_Connection *connection, const char *path,
	const char *method, const char *version, const char *upload, size_t *upload_bytes, void **request_context)
{
	const struct http *http = context;
	const struct http_route *route = route_of(http, path);
	struct http_request request = {connection};
	struct http_answer answer = {.status = MHD_HTTP_OK, .type = "text/plain; charset=utf-8"};
	bool reads = !strcmp(method, MHD_HTTP_METHOD_GET) || !strcmp(method, MHD_HTTP_METHOD_HEAD);
	struct MHD_Response *response;
	enum MHD_Result result;

	(void)version, (void)upload, (void)upload_bytes, (void)request_context;
	peer_asked(http->peers, peer_of(connection));
	if (!reads)
		http_text(&answer, MHD_HTTP_METHOD_NOT_ALLOWED, "method not allowed; use GET or HEAD\n");
	else if (!route)
		no_such_path(http, &answer);
	else
		route->handler(route->context, &request, &answer);
	response = response_of(&answer);
	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	if (!reads)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	if (!answer.next)
		peer_answers(http->peers, peer_of(connection));
	result = MHD_queue_response(connection, answer.status, response);
	MHD_destroy_response(response);
	return result;
}

static void request_completed(
	void *context, struct MHD_Connection *connection, void **request_context, enum MHD_RequestTerminationCode how)
{
	const struct http *http = context;

	(void)request_context, (void)how;
	peer_waits(http->peers, peer_of(connection));
}

/* ---- connections ---- */

static enum MHD_Result connection_accept(void *context, const struct sockaddr *address, socklen_t length)
{
	const struct http *http = context;

	(void)length;
	return peers_admit(http->peers, address) ? MHD_YES : MHD_NO;
}

static void connection_changed(
	void *context, struct MHD_Connection *connection, void **peer, enum MHD_ConnectionNotificationCode what)
{
	const struct http *http = context;

	if (what == MHD_CONNECTION_NOTIFY_CLOSED)
		peer_close(http->peers, *peer);
	else
		*peer = peer_open(http->peers,
			MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
			MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
}

/* ---- the socket and the server ---- */

static int listen_at(const struct addrinfo *info)
{
	int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol), error;

	if (fd < 0)
		return -errno;
	/* The address may be in use by closed connections of an earlier exporter, but not by a running exporter. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (!bind(fd, info->ai_addr, info->ai_addrlen) && !listen(fd, HTTP_CONNECTIONS_MAX))
		return fd;
	error = -errno;
	close(fd);
	return error;
}

static void port_of(int fd, uint16_t *port)
{
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char text[NI_MAXSERV];

	if (!getsockname(fd, (struct sockaddr *)&bound, &length) &&
		!getnameinfo((struct sockaddr *)&bound, length, NULL, 0, text, sizeof(text), NI_NUMERICSERV))
		*port = (uint16_t)strtoul(text, NULL, 10);
}

int http_listen(const char *address, uint16_t *port)
{
	struct addrinfo wanted = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found;
	int fd = -EADDRNOTAVAIL;
	char text[8];

	snprintf(text, sizeof(text), "%u", *port);
	if (getaddrinfo(address, text, &wanted, &found))
		return -EINVAL;
	for (const struct addrinfo *info = found; info && fd < 0; info = info->ai_next)
		fd = listen_at(info);
	freeaddrinfo(found);
	if (fd >= 0)
		port_of(fd, port);
	return fd;
}

/* The daemon's limit is twice our limit, because replaced connections might not have ended yet. */
static struct MHD_Daemon *daemon_start(struct http *http, int socket)
{
	return MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0,
		connection_accept, http, answer_request, http, MHD_OPTION_LISTEN_SOCKET, socket,
		MHD_OPTION_CONNECTION_LIMIT, 2 * (unsigned)HTTP_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
		(unsigned)HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_HEAD_BYTES,
		MHD_OPTION_NOTIFY_CONNECTION, connection_changed, http, MHD_OPTION_NOTIFY_COMPLETED, request_completed,
		http, MHD_OPTION_END);
}

int http_start(
	int socket, const struct http_route *routes, size_t count, const struct peer_limits *limits, struct http **http)
{
	struct http *made = calloc(1, sizeof(*made));

	if (made) {
		made->routes = routes;
		made->count = count;
		made->peers = peers_create(limits);
	}
	atomic_store_explicit(&stopping, false, memory_order_relaxed);
	if (made && made->peers)
		made->daemon = daemon_start(made, socket);
	if (made && made->daemon) {
		*http = made;
		return 0;
	}
	close(socket);
	if (made)
		peers_destroy(made->peers);
	free(made);
	return -ENOMEM;
}

void http_stop(struct http *http)
{
	if (!http)
		return;
	atomic_store_explicit(&stopping, true, memory_order_relaxed);
	MHD_stop_daemon(http->daemon);
	peers_destroy(http->peers);
	free(http);
}
