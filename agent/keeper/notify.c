#include "agent/keeper/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	SEND_SECONDS = 5,
	FIRST = 3,   /* SD_LISTEN_FDS_START */
	MOST = 1024, /* far above the number of descriptors that a manager stores for one service */
};

bool notify_there(void)
{
	const char *place = getenv("NOTIFY_SOCKET");

	return place && place[0];
}

static int address_of(struct sockaddr_un *address, socklen_t *bytes)
{
	const char *place = getenv("NOTIFY_SOCKET");
	size_t length = place ? strlen(place) : 0;

	if (!length)
		return -ENOENT;
	if (length >= sizeof(address->sun_path) || (place[0] != '/' && place[0] != '@'))
		return -EINVAL;
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, place, length);
	if (place[0] == '@')
		address->sun_path[0] = '\0';
	*bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (place[0] == '/'));
	return 0;
}

int notify_send(const char *text, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec part = {(void *)(uintptr_t)text, strlen(text)};
	struct sockaddr_un address;
	struct msghdr message = {.msg_name = &address, .msg_iov = &part, .msg_iovlen = 1};
	const struct timeval patience = {.tv_sec = SEND_SECONDS};
	int error = address_of(&address, &message.msg_namelen), socket_fd;
	ssize_t sent;

	if (error)
		return error;
	if (fd >= 0) {
		struct cmsghdr *entry;

		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		entry = CMSG_FIRSTHDR(&message);
		entry->cmsg_level = SOL_SOCKET;
		entry->cmsg_type = SCM_RIGHTS;
		entry->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(entry), &fd, sizeof(int));
	}
	socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (socket_fd < 0)
		return -errno;
	/* Do not block on a manager that hangs. */
	setsockopt(socket_fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	do
		sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	error = sent < 0 ? -errno : 0;
	close(socket_fd);
	return error;
}

int notify_barrier(int timeout_ms)
{
	struct pollfd look;
	int ends[2], error;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	error = notify_send("BARRIER=1", ends[1]);
	close(ends[1]);
	/* The manager receives messages in order, and closes this end after it has received this one. */
	look = (struct pollfd){ends[0], 0, 0};
	if (!error && poll(&look, 1, timeout_ms) != 1)
		error = -ETIMEDOUT;
	close(ends[0]);
	return error;
}

int notify_watchdog_ms(void)
{
	const char *pid = getenv("WATCHDOG_PID"), *given = getenv("WATCHDOG_USEC");
	unsigned long long us = given ? strtoull(given, NULL, 10) : 0;

	if (!us || (pid && atoi(pid) != (int)getpid()))
		return 0;
	return us / 2000 > INT_MAX ? INT_MAX : us < 2000 ? 1 : (int)(us / 2000);
}

int notify_listen_fds(const char *name, int *fds, int most)
{
	const char *pid = getenv("LISTEN_PID"), *given = getenv("LISTEN_FDS"), *names = getenv("LISTEN_FDNAMES");
	int count = given ? atoi(given) : 0, found = 0;
	size_t length = strlen(name);

	if (!pid || atoi(pid) != (int)getpid() || count < 0 || count > MOST)
		count = 0;
	for (int fd = FIRST; fd < FIRST + count; fd++) {
		size_t here = names ? strcspn(names, ":") : 0;

		if (names && here == length && !strncmp(names, name, length) && found < most) {
			fcntl(fd, F_SETFD, FD_CLOEXEC);
			fds[found++] = fd;
		} else {
			close(fd);
		}
		names = names && names[here] == ':' ? names + here + 1 : NULL;
	}
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	return found;
}
