/*
 * attach.h - the attach socket (AF_UNIX, SOCK_SEQPACKET): the only way to attach to the agent, and the only channel for
 * descriptors.
 *
 * This file handles packets of bytes, descriptors and the identity of the peer; the codec interprets the bytes. All
 * input is untrusted. A packet is refused as a whole if part of it or of its descriptors is missing. Every descriptor
 * that is not passed to the caller is closed.
 *
 * Errors: 0 or a count, otherwise a negative errno. Threads: no state; one thread at a time per socket and direction.
 */
#ifndef GPOOL_PROTO_ATTACH_H
#define GPOOL_PROTO_ATTACH_H

#include <stddef.h>
#include <sys/types.h>

enum {
	ATTACH_FDS_MAX = 253,     /* the kernel's SCM_MAX_FD */
	ATTACH_GROUPS_MAX = 1024, /* far above usual numbers; the kernel's limit is 65,536 */
};

/*
 * attach_send() - send one packet with fd_count descriptors. Never waits.
 *
 * The descriptors still belong to the caller, which may close them after the call, because the packet has its own
 * references.
 *
 * Return: 0, or
 *
 *   -EINVAL        no bytes, or more than ATTACH_FDS_MAX descriptors
 *   -EAGAIN        the peer does not read: its queue is full
 *   -EMSGSIZE      longer than the socket's send buffer
 *   -EPIPE         the peer has closed the connection
 *   -ETOOMANYREFS  too many descriptors of this user are in flight
 *   -EBADF         one of fds is not open
 */
int attach_send(int socket, const void *message, size_t length, const int *fds, size_t fd_count);

/*
 * attach_receive() - receive one packet and its descriptors.
 *
 * @fds: [fd_capacity] receives descriptors, close-on-exec and owned by the caller; further ones are closed
 * @fd_count: receives their number; may be NULL if fd_capacity is 0
 * @timeout_ms: longest wait for a packet; 0: do not wait, -1: no limit
 *
 * Return: bytes received (at least 1), or an error (no descriptor is kept; *fd_count is unchanged)
 *
 *   -EAGAIN     no packet, and timeout_ms was 0
 *   -ETIMEDOUT  no packet in time
 *   -EPIPE      the peer has closed the connection, or sent an empty packet (indistinguishable)
 *   -EMSGSIZE   longer than capacity; the packet is lost
 *   -EMFILE     this process could not open all descriptors (RLIMIT_NOFILE); the packet is lost
 *   -EINVAL     fd_capacity above ATTACH_FDS_MAX
 */
int attach_receive(
	int socket, void *buffer, size_t capacity, int *fds, size_t fd_capacity, size_t *fd_count, int timeout_ms);

/*
 * attach_listen() - create a listening socket at path. It appears there when it is ready, and replaces a stale socket.
 *
 * The socket is non-blocking and close-on-exec. Its mode is `mode`, regardless of the umask. Other users must not be
 * able to write to the directory.
 *
 * Return: the socket, or -EADDRINUSE (another process listens at path), -ENOTSOCK (path exists and is not a socket),
 * -ENAMETOOLONG (more than 106 bytes), or an error of socket(2), bind(2), chmod(2) or rename(2).
 */
int attach_listen(const char *path, mode_t mode);

/*
 * attach_connect() - connect to path; wait for a listener if necessary.
 *
 * While path or its directory does not exist, the call waits with inotify and also tries once per second. While a
 * socket at path does not accept connections, or if no inotify watch is available, it tries every 50 ms.
 *
 * @timeout_ms: longest wait; 0: try once, -1: no limit
 *
 * Return: a blocking, close-on-exec socket, or
 *   -ETIMEDOUT  no process listened in time (timeout_ms above 0)
 *   -ENOENT, -ECONNREFUSED, -EAGAIN  path does not exist, is stale, or its queue is full (timeout_ms 0)
 *   -EACCES     not permitted; -ENAMETOOLONG, -ENOTDIR and others of connect(2): immediately, as waiting would not help
 */
int attach_connect(const char *path, int timeout_ms);

/* The process at the other end, as of its connect(2). */
struct attach_peer {
	pid_t pid; /* 0: it is in a pid namespace that is not visible to this process */
	uid_t uid;
	gid_t gid;
	size_t group_count;
	gid_t groups[ATTACH_GROUPS_MAX]; /* supplementary groups */
	int pidfd;                       /* becomes readable when the process dies; the caller closes it */
};

/*
 * attach_peer() - get the process that connected.
 *
 * The pidfd is obtained with SO_PEERPIDFD (Linux 6.5), which identifies the process reliably, or with
 * attach_pidfd_open() on older kernels.
 *
 * Return: 0, or an error (*peer is unchanged)
 *
 *   -ESRCH       the process that connected is dead
 *   -E2BIG       it has more than ATTACH_GROUPS_MAX groups
 *   -EOPNOTSUPP  no pidfd is available: the process is in another pid namespace, and the kernel is older than 6.5
 *   -EMFILE and others of getsockopt(2) and pidfd_open(2)
 */
int attach_peer(int socket, struct attach_peer *peer);

/*
 * attach_pidfd_open() - open a pidfd for the peer by its pid, on kernels without SO_PEERPIDFD.
 *
 * The pid may have been reused since connect(2). The function therefore opens the pidfd first, then checks that its
 * process runs as uid and that the connection is still open. A process closes its descriptors before its pid is free,
 * so an open connection shows that the pid was not reused. One race remains: the peer died, another process (a forked
 * child, or a receiver of the descriptor) holds its end open, and a new process of the same user got the pid. In this
 * case the session watches the wrong process: pages of that user are freed later than necessary, but other users are
 * not affected.
 *
 * Return: the pidfd, -ESRCH as for attach_peer(), or an error of pidfd_open(2).
 */
int attach_pidfd_open(int socket, pid_t pid, uid_t uid);

#endif
