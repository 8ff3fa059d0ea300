/*
 * front.h - the front process. It has the nanomsg sockets, and no state that must survive it.
 *
 * nanomsg 1.1.5 aborts the listening process when a peer sends a single invalid header, and keeps descriptors that a
 * peer attaches to a message. The sockets are therefore in a separate process, without privileges and with a seccomp
 * filter. The keeper restarts the front when it ends, and clients repeat their requests. The only state of the front is
 * the set of valid session tokens, which the agent can send again. The front checks size, envelope, type, token and
 * rate of every request before it forwards the request to the agent.
 *
 * Front and agent communicate over a connected SOCK_SEQPACKET pair, without passing descriptors. Each packet consists
 * of a little-endian request id of FRONT_ID_BYTES and one message:
 *
 *   front -> agent   id != 0: a control request that passed the checks; the id only serves to identify its answer
 *   agent -> front   id != 0: the answer to that request, any message; dropped if the id is unknown or expired
 *                    id == 0: an `event`, which the front publishes unchanged, or a `front_token`
 *
 * A new front has no tokens. On each new socket, the agent first announces all tokens. It announces a new token before
 * it sends the attach_reply with that token, so the front knows a token before the first request that uses it. During
 * its first second, the front does not answer requests with unknown tokens, because the agent might not have announced
 * all of them. Thousands of tokens fill the socket; the agent then continues when it is writable again. If events fill
 * the socket, a new token cannot be announced before the attach_reply. The agent then sends FRONT_TOKENS_FOLLOW, for
 * which it enlarges the socket's buffer, and the front does not answer requests with unknown tokens until it receives
 * FRONT_TOKENS_TOLD.
 *
 * The answers of the front itself are error_reply messages with the sequence of the request and a zero token:
 *
 *   -EACCES      unknown token              -EOPNOTSUPP  no such request in this version
 *   -EBUSY       over the token's rate, FRONT_FLIGHTS_MAX requests in flight, or the agent does not read
 *
 * The front does not answer input that is not a message, nor requests with unknown tokens above the rate of one
 * session.
 */
#ifndef GPOOL_AGENT_FRONT_FRONT_H
#define GPOOL_AGENT_FRONT_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	FRONT_ID_BYTES = 8,
	FRONT_FLIGHTS_MAX = 256,        /* requests that the agent has not answered yet */
	FRONT_CONNECTIONS_MAX = 512,    /* default for both sockets together */
	FRONT_CONNECTIONS_MOST = 65536, /* maximum of connections_max; the kernel's limits are usually lower */
	FRONT_LEAKED_MAX = 64,          /* the front ends when more descriptors than this are unexplained */
};

/* Further values of front_token.valid: all tokens were announced; tokens of live sessions are missing. */
enum { FRONT_TOKENS_TOLD = 2, FRONT_TOKENS_FOLLOW = 3 };

struct front_options {
	uint32_t size;                /* sizeof(struct front_options) in the caller; fields are only added at the end */
	const char *control_url;      /* "ipc:///path" of the REP socket */
	const char *events_url;       /* "ipc:///path" of the PUB socket */
	int agent_socket;             /* SOCK_SEQPACKET to the agent; the front ends when the agent closes it */
	pid_t parent;                 /* the keeper; 0: do not check that it is alive */
	uid_t uid;                    /* user to change to; (uid_t)-1: do not change */
	gid_t gid;                    /* group to change to, which then owns the sockets; (gid_t)-1: do not change */
	size_t message_bytes_max;     /* maximum size of a request; 0: MSG_BYTES_MAX */
	uint32_t requests_per_second; /* limit per token, with a burst of one second; 0: no limit */
	uint32_t connections_max;     /* of both sockets together; 0: FRONT_CONNECTIONS_MAX */
	bool seccomp;                 /* may be false for debugging only */
};

/*
 * front_run() - run the front until the agent closes its socket.
 *
 * Call it in a single-threaded child that the keeper forked without exec, with no descriptors except agent_socket and
 * the standard ones. The keeper itself must never call nanomsg, because the library starts a thread and does not
 * survive fork(). Privileges are dropped before the sockets are created. Therefore uid or gid needs write permission on
 * their directory; other users should not have it. Existing socket files are replaced; new ones have mode 0770. Signals
 * are reset to their defaults.
 *
 * Return: one of the following; the caller must then call _exit():
 *
 *   0           the agent closed its end
 *   -EMFILE     descriptors were leaked, or too many connections are open; restart the front
 *   -EAGAIN     nanomsg accepts no connections; restart the front
 *   -EINVAL     an option is out of range
 *   -ENAMETOOLONG, -EADDRINUSE, -EACCES and others: a socket could not be bound
 *   -EPERM, -ESRCH and others: privileges could not be dropped, or the keeper is dead
 */
int front_run(const struct front_options *options);

#endif
