/*
 * test_attach_flood.c - a user that opens many silent connections does not prevent other users from attaching.
 *
 * The test runs as root. A child becomes an unprivileged user and opens more silent connections than one user may have,
 * on a socket that is open to all users. The agent must refuse some of them, and a worker of root must attach at once.
 * Without root the test is skipped, because it needs a second user.
 */
#include "proto/attach.h"
#include "tests/lib/harness.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 200, WAIT_MS = AWAIT_MS, OTHER_USER = 65534 };

/* Open all connections, report in one byte how many the agent closed, and run until the pipe closes. */
static int silent_user(const char *path, int ready, int end)
{
	static int sockets[CONNECTIONS];
	struct pollfd look;
	uint8_t turned_away = 0;
	char byte;

	if (setgid(OTHER_USER) < 0 || setuid(OTHER_USER) < 0)
		return 1;
	for (int i = 0; i < CONNECTIONS; i++) {
		sockets[i] = attach_connect(path, WAIT_MS);
		if (sockets[i] < 0)
			return 1;
	}
	/* The agent accepts connections in order: once it has decided on the last one, it has decided on all. */
	look = (struct pollfd){sockets[CONNECTIONS - 1], POLLIN, 0};
	if (poll(&look, 1, WAIT_MS) != 1)
		return 1;
	for (int i = 0; i < CONNECTIONS; i++) {
		look.fd = sockets[i];
		turned_away += poll(&look, 1, 0) == 1 && turned_away < 255;
	}
	if (write(ready, &turned_away, 1) != 1)
		return 1;
	return read(end, &byte, 1) == 0 ? 0 : 1;
}

int main(void)
{
	static const char *const arguments[] = {"--pool", HARNESS_POOL, NULL};
	struct gpool_options options;
	struct harness harness;
	struct gpool *pool;
	int ready[2], end[2], status = 1, error;
	uint8_t turned_away = 0;
	char path[160];
	pid_t child;

	if (geteuid() != 0) {
		puts("needs root, to be two users");
		return 77;
	}
	harness_start(&harness, arguments);
	snprintf(path, sizeof(path), "%s/attach", harness.directory);
	if (chmod(harness.base, 0755) < 0 || chmod(path, 0666) < 0 || pipe(ready) < 0 || pipe(end) < 0)
		return 1;
	child = fork();
	if (child == 0) {
		close(end[1]);
		_exit(silent_user(path, ready[1], end[0]));
	}
	close(ready[1]);
	close(end[0]);
	if (child < 0 || read(ready[0], &turned_away, 1) != 1) {
		fprintf(stderr, "the silent user failed\n");
		harness_stop(&harness);
		return 1;
	}
	printf("%u of %d silent connections were turned away\n", turned_away, CONNECTIONS);
	options = harness_options(&harness);
	error = gpool_open(&options, &pool);
	if (error)
		fprintf(stderr, "another user cannot attach: %s\n", gpool_strerror(error));
	else
		gpool_close(pool);
	close(end[1]);
	waitpid(child, &status, 0);
	if (harness_stop(&harness) || error || status || turned_away < CONNECTIONS - 128)
		return 1;
	return 0;
}
