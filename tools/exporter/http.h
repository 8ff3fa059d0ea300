/*
 * http.h - a small server: paths, each with a function that answers. It knows nothing of what it serves.
 *
 * Only GET and HEAD. Each connection has a thread of its own, so that a handler may wait. Connections are limited, also
 * from one address, and so is the time for the head of a request (peers.h). One that sends nothing for HTTP_IDLE_S is
 * closed. A request whose head is longer than HTTP_HEAD_BYTES is refused. No TLS and no passwords: that is for a proxy
 * in front of it.
 */
#ifndef GPOOL_TOOLS_EXPORTER_HTTP_H
#define GPOOL_TOOLS_EXPORTER_HTTP_H

#include "tools/exporter/peers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { HTTP_CONNECTIONS_MAX = 64, HTTP_IDLE_S = 15, HTTP_HEAD_BYTES = 16 << 10 };

/* Of one address: the viewers of the live page behind one proxy, and some scrapes. */
#define HTTP_LIMITS \
	{ \
		.connections = HTTP_CONNECTIONS_MAX, .per_address = 24, .head_ms = HTTP_IDLE_S * 1000, \
		.answer_ms = 60000 \
	}

struct http;
struct http_request;

/* http_argument() - of the query, "?name=value": NULL without it. Valid until the handler returns. */
const char *http_argument(const struct http_request *request, const char *name);

/*
 * What a handler answers. Either bytes, or, with `next` set, a stream of unknown length.
 *
 * next() puts up to `room` bytes into `to` and returns how many, or -1: the end. It may wait, and then looks at
 * http_stopping() at least once a second. end() is called once, also when the peer has gone away.
 */
struct http_answer {
	unsigned status;  /* 200 where the handler sets nothing */
	const char *type; /* Content-Type, a literal */
	char *body;       /* malloc()ed; the server frees it */
	size_t bytes;
	ssize_t (*next)(void *stream, char *to, size_t room);
	void (*end)(void *stream);
	void *stream;
};

struct http_route {
	const char *path; /* the whole of it, "/metrics" */
	void (*handler)(void *context, const struct http_request *request, struct http_answer *answer);
	void *context;
};

/* http_text() - a short answer in plain text. */
void http_text(struct http_answer *answer, unsigned status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * http_listen() - a socket that listens at a host or numeric address. Port 0: any free one, which is stored in `port`.
 * Return: a descriptor, or negative errno; -EADDRNOTAVAIL also where the name has no address.
 */
int http_listen(const char *address, uint16_t *port);

/*
 * http_start() - serve these routes, which stay the caller's and do not change, on a listening socket, which is the
 * server's from now on. limits->connections is at most HTTP_CONNECTIONS_MAX. Return: 0, or -ENOMEM.
 */
int http_start(int socket, const struct http_route *routes, size_t count, const struct peer_limits *limits,
	struct http **http);

/* http_stop() - take no more requests, wait for handlers and streams that are under way, and end. */
void http_stop(struct http *http);

/* http_stopping() - whether it ends. Handlers that wait ask now and then. */
bool http_stopping(void);

#endif
