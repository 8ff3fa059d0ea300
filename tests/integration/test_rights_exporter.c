/*
 * test_rights_exporter.c - clients cannot prevent others from using gpool-exporter.
 *
 * Goal: connections from one address that send requests slowly do not prevent a scrape, even at and beyond the maximum
 * number of connections. Method: an exporter without an agent, 128 connections that have sent one byte each, and
 * requests for /health in between.
 */
#include "tests/integration/exporter_process.h"

#include <poll.h>

enum { CONNECTIONS = 128 };

static int slow_open(void)
{
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(exporter_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(send(fd, "G", 1, MSG_NOSIGNAL), 1);
	return fd;
}

static void test_slow_requests_do_not_block_others(void **state)
{
	int slow[CONNECTIONS];
	const char *text;

	(void)state;
	alarm(STUCK_SECONDS);
	exporter_start("/nonexistent", "1");
	for (int i = 0; i < CONNECTIONS; i++) {
		slow[i] = slow_open();
		assert_int_equal(http_get(exporter_port, "/health", &text), 200);
	}
	/* Each connection sends the next byte, which must not extend its time limit. */
	for (int i = 0; i < CONNECTIONS; i++)
		send(slow[i], "E", 1, MSG_NOSIGNAL);
	assert_int_equal(http_get(exporter_port, "/metrics", &text), 200);
	assert_non_null(strstr(text, "gpool_up 0"));
	for (int i = 0; i < CONNECTIONS; i++)
		close(slow[i]);
	exporter_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slow_requests_do_not_block_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
