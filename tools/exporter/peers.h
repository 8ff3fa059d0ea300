/*
 * peers.h - the connections of the server: their number, also per address, and the time in which each must send a
 * request.
 *
 * A peer waits from its connect, and from the end of each answer, until the head of its next request is complete. A
 * peer that waits for longer than `head_ms` is disconnected, even if it sends bytes meanwhile, and so is one that has
 * not received an answer of known length within `answer_ms`. At the limit of connections, a new one replaces the one
 * that has waited longest; it is refused only if all are being served.
 *
 * An address is an IPv4 address, all of 127.0.0.0/8, or a /64 of IPv6: usually those of one machine.
 */
#ifndef GPOOL_TOOLS_EXPORTER_PEERS_H
#define GPOOL_TOOLS_EXPORTER_PEERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct peer_limits {
	uint32_t connections; /* concurrent */
	uint32_t per_address; /* of them */
	uint32_t head_ms, answer_ms;
};

struct peers;
struct peer;

/* peers_create() - start the thread that watches the deadlines. NULL: out of memory or threads. */
struct peers *peers_create(const struct peer_limits *limits);
/* peers_destroy() - stop the thread, after all peers were closed. NULL is permitted. */
void peers_destroy(struct peers *peers);

/*
 * peers_admit() - return true if a connection from this address may be accepted; this may disconnect a waiting one.
 * Threads: the accepting one.
 */
bool peers_admit(struct peers *peers, const struct sockaddr *address);

/*
 * peer_open() - add a new connection, which waits. `fd` stays valid until peer_close(). NULL: out of memory; the other
 * functions then do nothing.
 */
struct peer *peer_open(struct peers *peers, int fd, const struct sockaddr *address);
void peer_close(struct peers *peers, struct peer *peer);

/*
 * peer_asked() - record that the head of its request is complete. peer_answers() - that an answer of known length is
 * queued. peer_waits() - that the answer was sent.
 */
void peer_asked(struct peers *peers, struct peer *peer);
void peer_answers(struct peers *peers, struct peer *peer);
void peer_waits(struct peers *peers, struct peer *peer);

#endif
