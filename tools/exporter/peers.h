/*
 * peers.h - the connections of the server: how many there may be, also from one address, and how long each may take to
 * ask.
 *
 * A peer waits from its connect, and from the end of each answer, until the head of its next request is complete. One
 * that waits for longer than `head_ms` is disconnected, however many bytes it sends meanwhile, and so is one that has
 * not taken an answer of known length after `answer_ms`. Where there are too many connections the one that has waited
 * longest makes room for a new one; a new one is refused only where all are being served.
 *
 * An address is an IPv4 address, all of 127.0.0.0/8, or a /64 of IPv6: what one machine has as a rule.
 */
#ifndef GPOOL_TOOLS_EXPORTER_PEERS_H
#define GPOOL_TOOLS_EXPORTER_PEERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct peer_limits {
	uint32_t connections; /* at a time */
	uint32_t per_address; /* of them */
	uint32_t head_ms, answer_ms;
};

struct peers;
struct peer;

/* peers_create() - start the thread that watches the deadlines. NULL: out of memory or threads. */
struct peers *peers_create(const struct peer_limits *limits);
/* peers_destroy() - stop it. All peers have been closed. NULL is fine. */
void peers_destroy(struct peers *peers);

/*
 * peers_admit() - whether a connection from this address may be accepted; may disconnect one that waits. Threads: the
 * accepting one.
 */
bool peers_admit(struct peers *peers, const struct sockaddr *address);

/*
 * peer_open() - a new connection, which waits. `fd` stays valid until peer_close(). NULL: out of memory; the other
 * functions then do nothing.
 */
struct peer *peer_open(struct peers *peers, int fd, const struct sockaddr *address);
void peer_close(struct peers *peers, struct peer *peer);

/*
 * peer_asked() - the head of its request is complete. peer_answers() - an answer of known length is queued.
 * peer_waits() - it is sent.
 */
void peer_asked(struct peers *peers, struct peer *peer);
void peer_answers(struct peers *peers, struct peer *peer);
void peer_waits(struct peers *peers, struct peer *peer);

#endif
