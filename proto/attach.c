/*
 * attach.c - packets with descriptors over AF_UNIX SOCK_SEQPACKET, and the identity of the peer.
 */
#include "proto/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD /* missing in headers before Linux 6.5 */
#define SO_PEERPIDFD 77
#endif

enum {
	BACKLOG = 128, /* workers that can wait while the agent is busy */
	RETRY_MS = 50, /* interval without inotify */
	/* interval with inotify, which does not report changes on remote file systems */
	RETRY_WATCHED_MS = 1000,
};

/* ---- time ---- */

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Return the end of a wait that starts now. */
static int64_t deadline_of(int timeout_ms)
{
	return timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;
}

/* Return the timeout for poll(): the time until the deadline, at most `most` (-1: no limit). */
static int wait_ms(int64_t deadline, int most)
{
	int64_t left;

	if (deadline == INT64_MAX)
		return most;
	left = deadline - now_ms();
	if (left < 0)
		left = 0;
	if (most >= 0 && left > most)
		left = most;
	return (int)left;
}

/* ---- packets ---- */

/* Control data of one packet; the union aligns it. */
union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(ATTACH_FDS_MAX * sizeof(int))];
};

static int gone(int error)
{
	return error == ECONNRESET || error == ENOTCONN ? -EPIPE : -error;
}

int attach_send(int socket, const void *message, size_t length, const int *fds, size_t fd_count)
{
	struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = length};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	union fd_control control;
	ssize_t sent;

	if (length == 0 || fd_count > ATTACH_FDS_MAX)
		return -EINVAL;
	if (fd_count > 0) {
		struct cmsghdr *entry;

		memset(&control, 0, sizeof(control));
		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		entry = CMSG_FIRSTHDR(&header);
		entry->cmsg_level = SOL_SOCKET;
		entry->cmsg_type = SCM_RIGHTS;
		entry->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(entry), fds, fd_count * sizeof(int));
	}
	do
		sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? gone(errno) : 0;
}

/* Store the descriptors of a packet in fds[ATTACH_FDS_MAX] and return their number. */
static size_t collect_fds(struct msghdr *header, int *fds)
{
	size_t count = 0;

	for (struct cmsghdr *entry = CMSG_FIRSTHDR(header); entry; entry = CMSG_NXTHDR(header, entry)) {
		size_t here;

		if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS)
			continue;
		here = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds + count, CMSG_DATA(entry), here * sizeof(int));
		count += here;
	}
	return count;
}

static void close_all(const int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		close(fds[i]);
}

/* Receive a packet without waiting. */
static int receive_now(int socket, void *buffer, size_t capacity, int *fds, size_t fd_capacity, size_t *fd_count)
{
	struct iovec part = {.iov_base = buffer, .iov_len = capacity};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	union fd_control control;
	int found[ATTACH_FDS_MAX];
	size_t count;
	ssize_t received;

	/*
	 * Provide memory for exactly the wanted descriptors: the kernel discards further ones without opening them
	 * here, and sets MSG_CTRUNC.
	 */
	if (fd_capacity > 0) {
		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_LEN(fd_capacity * sizeof(int));
	}
	/*
	 * The kernel reports ECONNRESET once if the peer closed with unread packets in its queue. Packets that the peer
	 * had sent before are still queued and follow, and then the end of file. Therefore the call is repeated once.
	 */
	for (int resets = 0;;) {
		received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (received >= 0 || (errno != EINTR && (errno != ECONNRESET || resets++)))
			break;
	}
	if (received < 0)
		return gone(errno);

	count = collect_fds(&header, found);
	if (received == 0 || (header.msg_flags & MSG_TRUNC)) {
		close_all(found, count);
		return received == 0 ? -EPIPE : -EMSGSIZE;
	}
	/* Truncated although there was room for more: the kernel reached the limit on open files. */
	if ((header.msg_flags & MSG_CTRUNC) && count < fd_capacity) {
		close_all(found, count);
		return -EMFILE;
	}
	if (fd_capacity > 0)
		memcpy(fds, found, count * sizeof(int));
	if (fd_count)
		*fd_count = count;
	return (int)received;
}

int attach_receive(
	int socket, void *buffer, size_t capacity, int *fds, size_t fd_capacity, size_t *fd_count, int timeout_ms)
{
	int64_t deadline;
	int result;

	if (fd_capacity > ATTACH_FDS_MAX || capacity > INT_MAX)
		return -EINVAL;
	deadline = deadline_of(timeout_ms);
	for (;;) {
		struct pollfd wait = {.fd = socket, .events = POLLIN};

		result = receive_now(socket, buffer, capacity, fds, fd_capacity, fd_count);
		if (result != -EAGAIN || timeout_ms == 0)
			return result;
		if (deadline != INT64_MAX && now_ms() >= deadline)
			return -ETIMEDOUT;
		if (poll(&wait, 1, wait_ms(deadline, -1)) < 0 && errno != EINTR)
			return -errno;
	}
}

/* ---- listen and connect ---- */

static int address_of(struct sockaddr_un *address, const char *path, const char *suffix)
{
	int length;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	length = snprintf(address->sun_path, sizeof(address->sun_path), "%s%s", path, suffix);
	if (length <= 0 || path[0] == '\0')
		return -ENOENT;
	return (size_t)length < sizeof(address->sun_path) ? 0 : -ENAMETOOLONG;
}

/* Make one attempt and return a blocking socket. */
static int connect_now(const struct sockaddr_un *address)
{
	int result;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	do
		result = connect(fd, (const struct sockaddr *)address, sizeof(*address));
	while (result < 0 && errno == EINTR);
	if (result == 0)
		result = fcntl(fd, F_SETFL, 0);
	if (result < 0) {
		result = -errno;
		close(fd);
		return result;
	}
	return fd;
}

/* Return true if path may be replaced: it does not exist, or it is a socket without a listener. */
static int path_is_free(const struct sockaddr_un *address)
{
	struct stat status;
	int fd;

	if (lstat(address->sun_path, &status) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(status.st_mode))
		return -ENOTSOCK;
	fd = connect_now(address);
	if (fd >= 0) {
		close(fd);
		return -EADDRINUSE;
	}
	return fd == -ECONNREFUSED || fd == -ENOENT ? 0 : -EADDRINUSE;
}

int attach_listen(const char *path, mode_t mode)
{
	struct sockaddr_un address;
	struct sockaddr_un draft;
	int result;
	int fd;

	result = address_of(&address, path, "");
	if (result == 0)
		result = address_of(&draft, path, "~");
	if (result == 0)
		result = path_is_free(&address);
	if (result < 0)
		return result;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;

	/*
	 * Create the socket under another name and rename it when it is complete. A worker that waits for this path
	 * then never finds a socket whose mode is not set or that does not listen yet.
	 */
	if (unlink(draft.sun_path) < 0 && errno != ENOENT) {
		result = -errno;
		goto close_socket;
	}
	if (bind(fd, (const struct sockaddr *)&draft, sizeof(draft)) < 0) {
		result = -errno;
		goto close_socket;
	}
	if (chmod(draft.sun_path, mode) < 0 || listen(fd, BACKLOG) < 0 ||
		rename(draft.sun_path, address.sun_path) < 0) {
		result = -errno;
		goto unlink_draft;
	}
	return fd;

unlink_draft:
	unlink(draft.sun_path);
close_socket:
	close(fd);
	return result;
}

/* Watch the directory of path, or its nearest existing parent, for changes. Return false if that fails. */
static bool watch_nearest(int notify, const char *path)
{
	const uint32_t changes = IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF;
	char folder[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

	if (notify < 0)
		return false;
	snprintf(folder, sizeof(folder), "%s", path);
	for (;;) {
		char *slash = strrchr(folder, '/');

		if (!slash)
			return inotify_add_watch(notify, ".", changes) >= 0;
		if (slash == folder)
			return inotify_add_watch(notify, "/", changes) >= 0;
		*slash = '\0';
		if (inotify_add_watch(notify, folder, changes) >= 0)
			return true;
		if (errno != ENOENT)
			return false;
	}
}

/* Wait for a change, at most timeout_ms. The caller tries again in either case. */
static void wait_for_change(int notify, int timeout_ms)
{
	struct pollfd wait = {.fd = notify, .events = POLLIN};
	char events[4096];

	if (poll(&wait, 1, timeout_ms) <= 0)
		return;
	while (read(notify, events, sizeof(events)) > 0)
		;
}

int attach_connect(const char *path, int timeout_ms)
{
	struct sockaddr_un address;
	int64_t deadline = deadline_of(timeout_ms);
	int notify = -1;
	int result;

	result = address_of(&address, path, "");
	if (result < 0)
		return result;
	result = connect_now(&address);
	if (timeout_ms != 0 && (result == -ENOENT || result == -ECONNREFUSED || result == -EAGAIN))
		notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	while (timeout_ms != 0 && (result == -ENOENT || result == -ECONNREFUSED || result == -EAGAIN)) {
		/* Watch before the attempt, so that a listener that appears in between is noticed. */
		bool watched = watch_nearest(notify, address.sun_path);

		result = connect_now(&address);
		if (result != -ENOENT && result != -ECONNREFUSED && result != -EAGAIN)
			break;
		if (deadline != INT64_MAX && now_ms() >= deadline) {
			result = -ETIMEDOUT;
			break;
		}
		/*
		 * If the socket exists, neither a listen() nor a free place in its queue changes a directory, so
		 * inotify reports nothing.
		 */
		wait_for_change(notify, wait_ms(deadline, watched && result == -ENOENT ? RETRY_WATCHED_MS : RETRY_MS));
	}
	if (notify >= 0)
		close(notify);
	return result;
}

/* ---- peers ---- */

/* Return true if the process has the effective user uid, which is the one that SO_PEERCRED reports. */
static bool process_has_uid(pid_t pid, uid_t uid)
{
	char path[32];
	char line[256];
	FILE *status;
	bool same = false;

	snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
	status = fopen(path, "re");
	if (!status)
		return false;
	while (fgets(line, sizeof(line), status)) {
		unsigned long real;
		unsigned long effective;

		if (sscanf(line, "Uid: %lu %lu", &real, &effective) == 2) {
			same = effective == uid;
			break;
		}
	}
	fclose(status);
	return same;
}

int attach_pidfd_open(int socket, pid_t pid, uid_t uid)
{
	struct pollfd states[2];
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	bool same;

	if (pidfd < 0)
		return -errno;
	same = process_has_uid(pid, uid);
	/*
	 * This check must be the last one: if the connection is open and the process alive now, both were so when the
	 * user was checked.
	 */
	states[0] = (struct pollfd){.fd = socket, .events = 0}; /* POLLHUP is always reported */
	states[1] = (struct pollfd){.fd = pidfd, .events = POLLIN};
	if (!same || poll(states, 2, 0) != 0) {
		close(pidfd);
		return -ESRCH;
	}
	return pidfd;
}

static int peer_pidfd(int socket, const struct ucred *credentials)
{
	int pidfd;
	socklen_t size = sizeof(pidfd);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0)
		return pidfd;
	if (errno == EINVAL) /* from the first kernels with SO_PEERPIDFD, if the peer is dead and reaped */
		return -ESRCH;
	if (errno != ENOPROTOOPT)
		return -errno;
	if (credentials->pid == 0)
		return -EOPNOTSUPP;
	return attach_pidfd_open(socket, credentials->pid, credentials->uid);
}

int attach_peer(int socket, struct attach_peer *peer)
{
	struct ucred credentials;
	gid_t groups[ATTACH_GROUPS_MAX];
	socklen_t size = sizeof(credentials);
	socklen_t groups_size = sizeof(groups);
	int pidfd;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
		return -errno;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups, &groups_size) < 0)
		return errno == ERANGE ? -E2BIG : -errno;
	pidfd = peer_pidfd(socket, &credentials);
	if (pidfd < 0)
		return pidfd;

	peer->pid = credentials.pid;
	peer->uid = credentials.uid;
	peer->gid = credentials.gid;
	peer->group_count = groups_size / sizeof(gid_t);
	memcpy(peer->groups, groups, groups_size);
	peer->pidfd = pidfd;
	return 0;
}
