/*
 * peers.h - limits of the server's connections: their number, in total and per address, and the time in which each must
 * send a request.
 *
 * A peer waits from its connect, and from the end of each answer, until the head of its next request is complete. A
 * peer that waits for longer than `head_ms` is disconnected, even if it has sent a part of the head. A peer that has
 * not received an answer of known length within `answer_ms` is also disconnected. At a limit of connections, a new
 * connection replaces the one that has waited longest; it is refused only if all of them are being served.
 *
 * An address is an IPv4 address, all of 127.0.0.0/8, or a /64 of IPv6, which usually is one machine.
 */
#ifndef GPOOL_TOOLS_EXPORTER_PEERS_H
#define GPOOL_TOOLS_EXPORTER_PEERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct peer_limits {
	uint32_t connections; /* maximum, concurrent */
	uint32_t per_address; /* maximum per address */
	uint32_t head_ms, answer_ms;
};

struct peers;
struct peer;

/* peers_create() - start the thread that watches the deadlines. NULL: out of memory or threads. */
struct peers *peers_create(const struct peer_limits *limits);
/* peers_destroy() - stop the thread. All peers must have been closed. NULL is permitted. */
void peers_destroy(struct peers *peers);

/*
 * peers_admit() - return true if a connection from this address may be accepted. A waiting peer may be disconnected for
 * it. Threads: the accepting one.
 */
bool peers_admit(struct peers *peers, const struct sockaddr *address);

/*
 * peer_open() - add a new connection, as a waiting peer. `fd` must be valid until peer_close(). Return NULL if out of
 * memory, after shutting down the connection. peer_close() and the three functions below ignore a peer that is NULL.
 */
struct peer *peer_open(struct peers *peers, int fd, const struct sockaddr *address);
void peer_close(struct peers *peers, struct peer *peer);

/*
 * peer_asked() - record that the head of the peer's request is complete.
 * peer_answers() - record that an answer of known length is queued.
 * peer_waits() - record that the answer was sent.
 */
void peer_asked(struct peers *peers, struct peer *peer);
void peer_answers(struct peers *peers, struct peer *peer);
void peer_waits(struct peers *peers, struct peer *peer);

#endif
