/*
 * test_http.c - the exporter's HTTP server.
 *
 * Goal: the server answers valid requests and refuses others: other methods, heads without an end, bytes that are not
 * HTTP, and more connections than it has threads for. A stream continues until it ends, its client disconnects, or the
 * server ends. Method: a server in this process on a free port, and sockets.
 */
#include "tests/lib/await.h"
#include "tools/exporter/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static struct http *http;
static uint16_t port;
static sem_t stream_ended;
static struct peer_limits limits;

/* ---- served content ---- */

static void say_word(void *context, const struct http_request *request, struct http_answer *answer)
{
	const char *who = http_argument(request, "who");

	http_text(answer, 200, "%s %s\n", (const char *)context, who ? who : "nobody");
}

/* Count while the client reads. */
static ssize_t count_next(void *stream, char *to, size_t room)
{
	unsigned *count = stream;

	if (*count == 0)
		return -1;
	return snprintf(to, room, "%u\n", (*count)++);
}

static ssize_t three_next(void *stream, char *to, size_t room)
{
	unsigned *count = stream;

	return *count > 3 ? -1 : count_next(stream, to, room);
}

static void count_end(void *stream)
{
	free(stream);
	sem_post(&stream_ended);
}

static void count_up(void *context, const struct http_request *request, struct http_answer *answer)
{
	unsigned *count = malloc(sizeof(*count));

	(void)request;
	assert_non_null(count);
	*count = 1;
	answer->next = context ? three_next : count_next;
	answer->end = count_end;
	answer->stream = count;
}

static const struct http_route routes[] = {
	{"/word", say_word, "hello"},
	{"/three", count_up, "three"},
	{"/endless", count_up, NULL},
};

static int start(void **state)
{
	int fd;

	(void)state;
	port = 0;
	fd = http_listen("127.0.0.1", &port);
	assert_true(fd >= 0);
	assert_int_not_equal(port, 0);
	assert_int_equal(sem_init(&stream_ended, 0, 0), 0);
	return http_start(fd, routes, sizeof(routes) / sizeof(*routes), &limits, &http);
}

static int setup(void **state)
{
	static const struct peer_limits usual = HTTP_LIMITS;

	limits = usual;
	return start(state);
}

static int setup_impatient(void **state)
{
	limits = (struct peer_limits){.connections = 8, .per_address = 8, .head_ms = 300, .answer_ms = AWAIT_MS};
	return start(state);
}

static int teardown(void **state)
{
	(void)state;
	http_stop(http);
	http = NULL;
	return 0;
}

/* ---- identity of the client ---- */

static int connected(void)
{
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* Read until the other side closes the connection. A reset counts as an end. */
static const char *asked(const char *request, size_t bytes)
{
	static char answer[65536];
	size_t length = 0;
	ssize_t got;
	int fd = connected();

	while (bytes && (got = send(fd, request, bytes, MSG_NOSIGNAL)) > 0)
		request += got, bytes -= (size_t)got;
	shutdown(fd, SHUT_WR);
	while (length < sizeof(answer) - 1 && (got = recv(fd, answer + length, sizeof(answer) - 1 - length, 0)) > 0)
		length += (size_t)got;
	answer[length] = '\0';
	close(fd);
	return answer;
}

static void expect(const char *request, const char *first, const char *within)
{
	const char *answer = asked(request, strlen(request));

	if (strncmp(answer, first, strlen(first)) || !strstr(answer, within))
		fail_msg("asked '%.60s', answered '%s'", request, answer);
}
#define ASK(path) path " HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"

/* ---- tests ---- */

static void test_paths(void **state)
{
	(void)state;
	expect(ASK("GET /word"), "HTTP/1.1 200", "\r\n\r\nhello nobody\n");
	expect(ASK("GET /word?who=you"), "HTTP/1.1 200", "\r\n\r\nhello you\n");
	expect(ASK("GET /word/"), "HTTP/1.1 404", "/word /three /endless");
	expect(ASK("GET /"), "HTTP/1.1 404", "");
	expect(ASK("POST /word"), "HTTP/1.1 405", "Allow: GET, HEAD");
	expect("DELETE /word HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 405", "");
	expect(ASK("HEAD /word"), "HTTP/1.1 200", "Content-Length: 13");
	assert_null(strstr(asked(ASK("HEAD /word"), strlen(ASK("HEAD /word"))), "hello"));
}

static void test_hostile_heads(void **state)
{
	enum { LONG = 4 * HTTP_HEAD_BYTES };
	char *request = malloc(LONG + 64);

	(void)state;
	assert_non_null(request);
	memset(request, 'a', LONG);
	memcpy(request, "GET /", 5);
	strcpy(request + LONG, " HTTP/1.1\r\nHost: here\r\n\r\n");
	assert_null(strstr(asked(request, strlen(request)), "HTTP/1.1 200"));
	memset(request, 'a', LONG);
	memcpy(request, "GET /word HTTP/1.1\r\nHost: ", 26);
	assert_null(strstr(asked(request, LONG), "HTTP/1.1 200"));
	memset(request, 0, LONG);
	assert_null(strstr(asked(request, LONG), "HTTP/1.1 200"));
	memset(request, 0xff, LONG);
	assert_null(strstr(asked(request, LONG), "HTTP/1.1 200"));
	expect(ASK("GET /word"), "HTTP/1.1 200", "hello");
	free(request);
}

/* Connections being served are kept. A new one is refused at once, and accepted when one of them has ended. */
static void test_more_connections_than_there_are(void **state)
{
	static const char request[] = ASK("GET /endless");
	int held[HTTP_CONNECTIONS_MAX];
	const char *answer;
	char some[64];

	(void)state;
	for (uint32_t i = 0; i < limits.per_address; i++) {
		held[i] = connected();
		assert_int_equal(send(held[i], request, strlen(request), 0), strlen(request));
		assert_true(recv(held[i], some, sizeof(some), 0) > 0);
	}
	answer = asked(ASK("GET /word"), strlen(ASK("GET /word")));
	assert_string_equal(answer, "");
	for (uint32_t i = 0; i < limits.per_address; i++)
		close(held[i]);
	do
		answer = asked(ASK("GET /word"), strlen(ASK("GET /word")));
	while (!answer[0]);
	assert_non_null(strstr(answer, "hello"));
}

static void test_waiting_connections_make_room(void **state)
{
	int held[HTTP_CONNECTIONS_MAX];
	char byte;

	(void)state;
	for (int i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
		held[i] = connected();
		if (i % 2)
			assert_int_equal(send(held[i], "GET /", 5, MSG_NOSIGNAL), 5);
	}
	for (int i = 0; i < 100; i++)
		expect(ASK("GET /word"), "HTTP/1.1 200", "hello");
	/* The oldest connection is closed first. */
	assert_true(recv(held[0], &byte, 1, 0) <= 0);
	for (int i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		close(held[i]);
}

/* Send until the server disconnects. If it does not, the time limit of the test ends the loop. */
static void send_slowly(int fd, const char *text, size_t bytes)
{
	struct pollfd look = {fd, POLLIN, 0};

	for (size_t i = 0; poll(&look, 1, 20) == 0; i++)
		send(fd, &text[i < bytes ? i : bytes - 1], 1, MSG_NOSIGNAL);
}

static void test_a_head_has_a_deadline(void **state)
{
	static const char request[] = "GET /word HTTP/1.1\r\nHost: hhhhh",
			  whole[] = "GET /word HTTP/1.1\r\nHost: here\r\n\r\n";
	char some[512];
	ssize_t got;
	int fd;

	(void)state;
	fd = connected();
	send_slowly(fd, request, strlen(request));
	close(fd);
	/* The same deadline applies to a second request on a connection. */
	fd = connected();
	assert_int_equal(send(fd, whole, strlen(whole), 0), strlen(whole));
	got = recv(fd, some, sizeof(some) - 1, 0);
	assert_true(got > 0);
	some[got] = '\0';
	assert_non_null(strstr(some, "HTTP/1.1 200"));
	while (!strstr(some, "hello") && (got = recv(fd, some, sizeof(some) - 1, 0)) > 0)
		some[got] = '\0';
	send_slowly(fd, request, strlen(request));
	close(fd);
}

static void test_streams_end(void **state)
{
	static const char request[] = ASK("GET /endless");
	char some[4096];
	int fd;

	(void)state;
	expect(ASK("GET /three"), "HTTP/1.1 200", "3\n");
	sem_wait(&stream_ended);
	/* the client disconnects */
	fd = connected();
	assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
	assert_true(recv(fd, some, sizeof(some), 0) > 0);
	close(fd);
	sem_wait(&stream_ended);
	/* the server ends */
	fd = connected();
	assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
	assert_true(recv(fd, some, sizeof(some), 0) > 0);
	http_stop(http);
	sem_wait(&stream_ended);
	close(fd);
	http = NULL;
}

static void test_addresses(void **state)
{
	uint16_t same = port, any = 0;
	struct addrinfo *found;
	int fd;

	(void)state;
	assert_int_equal(http_listen("127.0.0.1", &same), -EADDRINUSE);
	assert_int_equal(http_listen("192.0.2.1", &any), -EADDRNOTAVAIL);
	assert_int_equal(http_listen("no such host", &any), -EINVAL);
	fd = http_listen("localhost", &any);
	if (getaddrinfo(
		    "localhost", NULL, &(struct addrinfo){.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, &found)) {
		assert_int_equal(fd, -EADDRNOTAVAIL); /* a system without /etc/hosts */
	} else {
		freeaddrinfo(found);
		assert_true(fd >= 0);
		close(fd);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_paths, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_heads, setup, teardown),
		cmocka_unit_test_setup_teardown(test_more_connections_than_there_are, setup, teardown),
		cmocka_unit_test_setup_teardown(test_waiting_connections_make_room, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_head_has_a_deadline, setup_impatient, teardown),
		cmocka_unit_test_setup_teardown(test_streams_end, setup, teardown),
		cmocka_unit_test_setup_teardown(test_addresses, setup, teardown),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
