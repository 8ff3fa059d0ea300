/*
 * attach.h - the attach socket: AF_UNIX SOCK_SEQPACKET, the only way in and the only channel that carries descriptors.
 *
 * The kernel keeps packets apart and says who calls. What a packet holds is the codec's business; here are bytes,
 * descriptors and peers. Everything received is hostile: a packet is refused as a whole when a part of it or of its
 * descriptors is missing, and no descriptor stays open that was not handed to the caller.
 * Errors: 0 or a count, else negative errno. Threads: no state; one socket by one thread at a time and direction.
 */
#ifndef GPOOL_PROTO_ATTACH_H
#define GPOOL_PROTO_ATTACH_H

#include <stddef.h>
#include <sys/types.h>

enum {
	ATTACH_FDS_MAX = 253,     /* the kernel's SCM_MAX_FD */
	ATTACH_GROUPS_MAX = 1024, /* chosen: far above what people have; the kernel's limit is 65,536 */
};

/*
 * attach_send() - send one packet with fd_count descriptors; never waits.
 *
 * The descriptors stay the caller's: close them after the call, the packet has its own references.
 *
 * Return: 0, or
 *   -EINVAL        no bytes, or more than ATTACH_FDS_MAX descriptors
 *   -EAGAIN        the peer does not read: its queue is full
 *   -EMSGSIZE      longer than the socket's send buffer
 *   -EPIPE         the peer is gone
 *   -ETOOMANYREFS  too many descriptors of this user are in flight
 *   -EBADF         one of fds is not open
 */
int attach_send(int socket, const void *message, size_t length, const int *fds, size_t fd_count);

/*
 * attach_receive() - receive one packet and its descriptors.
 *
 * @fds:        [fd_capacity] receives descriptors, close-on-exec and owned by the caller; those beyond are closed
 *              unseen
 * @fd_count:   receives how many; may be NULL when fd_capacity is 0
 * @timeout_ms: longest wait for a packet; 0: do not wait, -1: no limit
 *
 * Return: bytes received (at least 1), or (no descriptor is kept; *fd_count is as it was)
 *   -EAGAIN     no packet, and timeout_ms was 0
 *   -ETIMEDOUT  no packet in time
 *   -EPIPE      the peer is gone, or sent an empty packet, which looks the same
 *   -EMSGSIZE   longer than capacity; the packet is lost
 *   -EMFILE     not all wanted descriptors could be opened here (RLIMIT_NOFILE); the packet is lost
 *   -EINVAL     fd_capacity above ATTACH_FDS_MAX
 */
int attach_receive(
	int socket, void *buffer, size_t capacity, int *fds, size_t fd_capacity, size_t *fd_count, int timeout_ms);

/*
 * attach_listen() - make a listening socket at path, which nobody can see before it is ready; a stale one is replaced.
 *
 * The socket is non-blocking, close-on-exec and has exactly this mode, whatever the umask. The directory must be one
 * where nobody else may write.
 *
 * Return: the socket, or -EADDRINUSE (something listens there), -ENOTSOCK (path exists and is not a socket),
 * -ENAMETOOLONG (more than 106 bytes), or what socket(2), bind(2), chmod(2) and rename(2) say.
 */
int attach_listen(const char *path, mode_t mode);

/*
 * attach_connect() - connect to path; waits for a listener that is not there yet.
 *
 * While the path or its directory does not exist the wait sleeps on inotify, with a look every second; where a socket
 * exists that does not answer, or inotify is out of watches, it tries every 50 ms.
 *
 * @timeout_ms: longest wait; 0: try once, -1: no limit
 *
 * Return: a blocking, close-on-exec socket, or
 *   -ETIMEDOUT  nobody listened in time (timeout_ms above 0)
 *   -ENOENT, -ECONNREFUSED, -EAGAIN  nothing there, stale, or its queue is full (timeout_ms 0)
 *   -EACCES     not permitted; -ENAMETOOLONG, -ENOTDIR and others of connect(2): at once, waiting would not help
 */
int attach_connect(const char *path, int timeout_ms);

/* Who is at the other end: as of its connect(2), not of now. */
struct attach_peer {
	pid_t pid; /* 0: in a pid namespace that is not seen from here */
	uid_t uid;
	gid_t gid;
	size_t group_count;
	gid_t groups[ATTACH_GROUPS_MAX]; /* supplementary groups */
	int pidfd;                       /* readable when the process is dead; the caller closes it */
};

/*
 * attach_peer() - ask the kernel who connected.
 *
 * The pidfd comes from SO_PEERPIDFD (Linux 6.5), which names the process for certain, else from attach_pidfd_open().
 *
 * Return: 0, or (*peer is as it was)
 *   -ESRCH       the process that connected is gone
 *   -E2BIG       it has more than ATTACH_GROUPS_MAX groups
 *   -EOPNOTSUPP  no pidfd to be had: it is in another pid namespace, and the kernel is older than 6.5
 *   -EMFILE and others of getsockopt(2) and pidfd_open(2)
 */
int attach_peer(int socket, struct attach_peer *peer);

/*
 * attach_pidfd_open() - a pidfd for the peer by its number, for kernels without SO_PEERPIDFD.
 *
 * A number may have been reused since connect(2). So this opens the pidfd first and then looks: the process behind it
 * lives and runs as uid, and the connection is still open. A process closes its descriptors before its number is free,
 * so an open connection means that the number was never reused, but for one race: the peer died, something else holds
 * its end open (a forked child, or a receiver of the descriptor), and a new process of the same user got the number.
 * Then the session waits for the death of the wrong process: pages of that user come back later than they could, and
 * nobody else is harmed.
 *
 * Return: the pidfd, or -ESRCH as above, or what pidfd_open(2) says.
 */
int attach_pidfd_open(int socket, pid_t pid, uid_t uid);

#endif
