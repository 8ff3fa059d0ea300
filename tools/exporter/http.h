/*
 * http.h - a small HTTP server: a table of paths, each with a handler.
 *
 * Only GET and HEAD are supported. Each connection has its own thread, so a handler may wait. The number of connections
 * is limited, in total and per address, and so is the time to receive the head of a request (peers.h). A connection
 * that neither sends nor receives anything for HTTP_IDLE_S is closed. A request whose head exceeds HTTP_HEAD_BYTES is
 * rejected. For TLS and passwords, use a proxy.
 */
#ifndef GPOOL_TOOLS_EXPORTER_HTTP_H
#define GPOOL_TOOLS_EXPORTER_HTTP_H

#include "tools/exporter/peers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { HTTP_CONNECTIONS_MAX = 64, HTTP_IDLE_S = 15, HTTP_HEAD_BYTES = 16 << 10 };

/* The limit per address is enough for the viewers of the live page behind one proxy, and some scrapes. */
#define HTTP_LIMITS \
	{ \
		.connections = HTTP_CONNECTIONS_MAX, .per_address = 24, .head_ms = HTTP_IDLE_S * 1000, \
		.answer_ms = 60000 \
	}

struct http;
struct http_request;

/*
 * http_argument() - return an argument of the query, "?name=value"; NULL: not given. The result is valid until the
 * handler returns.
 */
const char *http_argument(const struct http_request *request, const char *name);

/*
 * The answer of a handler: bytes, or, if `next` is set, a stream of unknown length.
 *
 * next() stores up to `room` bytes in `to`. It returns their number, or -1 at the end. It may wait if it checks
 * http_stopping() at least once per second. end() is called exactly once, even if the peer has closed the connection.
 */
struct http_answer {
	unsigned status;  /* 200 unless the handler sets it */
	const char *type; /* Content-Type, a string literal */
	char *body;       /* allocated with malloc(3); the server frees it */
	size_t bytes;
	ssize_t (*next)(void *stream, char *to, size_t room);
	void (*end)(void *stream);
	void *stream;
};

struct http_route {
	const char *path; /* the whole path, such as "/metrics" */
	void (*handler)(void *context, const struct http_request *request, struct http_answer *answer);
	void *context;
};

/* http_text() - set a short plain text answer. */
void http_text(struct http_answer *answer, unsigned status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * http_listen() - create a socket that listens on a host name or numeric address. Port 0 selects a free port, which is
 * stored in `port`.
 *
 * Return: a descriptor, or negative errno; -EINVAL if the name has no address.
 */
int http_listen(const char *address, uint16_t *port);

/*
 * http_start() - serve routes on a listening socket, which then belongs to the server. The routes belong to the caller
 * and must not change. limits->connections is at most HTTP_CONNECTIONS_MAX. Return: 0 or -ENOMEM.
 */
int http_start(int socket, const struct http_route *routes, size_t count, const struct peer_limits *limits,
	struct http **http);

/* http_stop() - stop accepting requests, wait for the handlers and streams in progress, and free the server. */
void http_stop(struct http *http);

/* http_stopping() - return true if the server is stopping. A handler that waits must check it regularly. */
bool http_stopping(void);

#endif
