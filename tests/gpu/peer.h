/*
 * peer.h - run a second process for a GPU test: this program, executed again, which exchanges messages and descriptors
 * with this process.
 *
 * The driver does not survive fork(). In addition, a forked child would hold all descriptors of its parent, and
 * descriptors determine the lifetime of memory. A peer is therefore executed, and inherits only its socket, as
 * PEER_SOCKET.
 */
#ifndef GPOOL_TESTS_GPU_PEER_H
#define GPOOL_TESTS_GPU_PEER_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEER_SOCKET = 3 };

union peer_control {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

/* peer_send() - send one message, with a descriptor unless fd < 0. Return: 0 or a negative errno. */
static inline int peer_send(int socket, const void *data, size_t bytes, int fd)
{
	union peer_control control = {{0}};
	struct iovec part = {(void *)data, bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct cmsghdr *header;

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	}
	return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -errno;
}

/*
 * peer_receive() - receive one message of exactly `bytes`; *fd receives a descriptor of this process, or -1. Return:
 * -EPIPE if the peer has ended.
 */
static inline int peer_receive(int socket, void *data, size_t bytes, int *fd)
{
	union peer_control control;
	struct iovec part = {data, bytes};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header;
	ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);

	*fd = -1;
	if (length < 0)
		return -errno;
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(header), sizeof(*fd));
	return length == (ssize_t)bytes ? 0 : -EPIPE;
}

/*
 * peer_start() - run this program with `arguments`, and its socket in PEER_SOCKET; it dies with this process. Return:
 * its pid or -errno.
 */
static inline pid_t peer_start(char *const arguments[], int *socket)
{
	int ends[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (ends[1] == PEER_SOCKET ? fcntl(PEER_SOCKET, F_SETFD, 0) >= 0 : dup2(ends[1], PEER_SOCKET) >= 0)
			execv("/proc/self/exe", arguments);
		_exit(127);
	}
	close(ends[1]);
	if (pid < 0)
		close(ends[0]);
	else
		*socket = ends[0];
	return pid < 0 ? -errno : pid;
}

#endif
