#include "tools/exporter/peers.h"

#include "shm/monotonic.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

enum peer_state { PEER_WAITS, PEER_ASKED, PEER_ANSWERS, PEER_DROPPED };

struct peer {
	TAILQ_ENTRY(peer) link;
	enum peer_state state;
	int fd;
	uint64_t origin;
	uint64_t deadline_ms; /* time by which the request, or the end of the answer, is due */
};

struct peers {
	struct peer_limits limits;
	pthread_t thread;
	pthread_mutex_t lock; /* of the following fields */
	pthread_cond_t changed;
	bool ending;
	TAILQ_HEAD(, peer) list;
};

/*
 * Return the network of an address. IPv6 networks in use do not begin with 64 zero bits, so they differ from all IPv4
 * networks.
 */
static uint64_t origin_of(const struct sockaddr *address)
{
	uint64_t origin = 0;
	uint32_t v4 = 0;

	if (address->sa_family == AF_INET) {
		v4 = ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
	} else if (address->sa_family == AF_INET6) {
		const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;

		if (!IN6_IS_ADDR_V4MAPPED(v6)) {
			memcpy(&origin, v6, sizeof(origin));
			return origin;
		}
		memcpy(&v4, &v6->s6_addr[12], sizeof(v4));
		v4 = ntohl(v4);
	}
	return v4 >> 24 == 127 ? UINT32_C(127) << 24 : v4;
}

/* Disconnect a peer. Its thread detects the end of the connection and closes it. */
static void drop(struct peer *peer)
{
	shutdown(peer->fd, SHUT_RDWR);
	peer->state = PEER_DROPPED;
}

static void set_state(struct peers *peers, struct peer *peer, enum peer_state state, uint32_t deadline_ms)
{
	if (!peer)
		return;
	pthread_mutex_lock(&peers->lock);
	if (peer->state != PEER_DROPPED) {
		peer->state = state;
		peer->deadline_ms = monotonic_ms() + deadline_ms;
		pthread_cond_signal(&peers->changed);
	}
	pthread_mutex_unlock(&peers->lock);
}

/* Disconnect peers whose deadline has passed. Return: the next deadline; UINT64_MAX: none. */
static uint64_t drop_late(struct peers *peers)
{
	uint64_t now = monotonic_ms(), next = UINT64_MAX;
	struct peer *peer;

	TAILQ_FOREACH(peer, &peers->list, link)
	{
		if (peer->state != PEER_WAITS && peer->state != PEER_ANSWERS)
			continue;
		if (peer->deadline_ms <= now)
			drop(peer);
		else if (peer->deadline_ms < next)
			next = peer->deadline_ms;
	}
	return next;
}

static void *watch(void *context)
{
	struct peers *peers = context;

	pthread_mutex_lock(&peers->lock);
	while (!peers->ending) {
		uint64_t next = drop_late(peers);
		struct timespec until = {.tv_sec = (time_t)(next / 1000), .tv_nsec = (long)(next % 1000) * 1000000};

		if (next == UINT64_MAX)
			pthread_cond_wait(&peers->changed, &peers->lock);
		else
			pthread_cond_timedwait(&peers->changed, &peers->lock, &until);
	}
	pthread_mutex_unlock(&peers->lock);
	return NULL;
}

struct peers *peers_create(const struct peer_limits *limits)
{
	struct peers *peers = calloc(1, sizeof(*peers));
	pthread_condattr_t attributes;

	if (!peers)
		return NULL;
	peers->limits = *limits;
	TAILQ_INIT(&peers->list);
	pthread_mutex_init(&peers->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&peers->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (!pthread_create(&peers->thread, NULL, watch, peers))
		return peers;
	pthread_cond_destroy(&peers->changed);
	pthread_mutex_destroy(&peers->lock);
	free(peers);
	return NULL;
}

void peers_destroy(struct peers *peers)
{
	if (!peers)
		return;
	pthread_mutex_lock(&peers->lock);
	peers->ending = true;
	pthread_cond_signal(&peers->changed);
	pthread_mutex_unlock(&peers->lock);
	pthread_join(peers->thread, NULL);
	pthread_cond_destroy(&peers->changed);
	pthread_mutex_destroy(&peers->lock);
	free(peers);
}

/*
 * Return true if there is room for one more peer from this address (NULL: in total). A waiting peer is disconnected if
 * necessary.
 */
static bool room_for(struct peers *peers, const uint64_t *origin, uint32_t limit)
{
	struct peer *peer, *longest = NULL;
	uint32_t count = 0;

	TAILQ_FOREACH(peer, &peers->list, link)
	{
		if (peer->state == PEER_DROPPED || (origin && peer->origin != *origin))
			continue;
		count++;
		if (peer->state == PEER_WAITS && (!longest || peer->deadline_ms < longest->deadline_ms))
			longest = peer;
	}
	if (count < limit)
		return true;
	if (longest)
		drop(longest);
	return longest;
}

bool peers_admit(struct peers *peers, const struct sockaddr *address)
{
	uint64_t origin = origin_of(address);
	bool admitted;

	pthread_mutex_lock(&peers->lock);
	admitted =
		room_for(peers, &origin, peers->limits.per_address) && room_for(peers, NULL, peers->limits.connections);
	pthread_mutex_unlock(&peers->lock);
	return admitted;
}

struct peer *peer_open(struct peers *peers, int fd, const struct sockaddr *address)
{
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer) {
		shutdown(fd, SHUT_RDWR);
		return NULL;
	}
	peer->fd = fd;
	peer->origin = origin_of(address);
	peer->deadline_ms = monotonic_ms() + peers->limits.head_ms;
	pthread_mutex_lock(&peers->lock);
	TAILQ_INSERT_TAIL(&peers->list, peer, link);
	pthread_cond_signal(&peers->changed);
	pthread_mutex_unlock(&peers->lock);
	return peer;
}

void peer_close(struct peers *peers, struct peer *peer)
{
	if (!peer)
		return;
	pthread_mutex_lock(&peers->lock);
	TAILQ_REMOVE(&peers->list, peer, link);
	pthread_mutex_unlock(&peers->lock);
	free(peer);
}

void peer_asked(struct peers *peers, struct peer *peer)
{
	set_state(peers, peer, PEER_ASKED, 0);
}

void peer_answers(struct peers *peers, struct peer *peer)
{
	set_state(peers, peer, PEER_ANSWERS, peers->limits.answer_ms);
}

void peer_waits(struct peers *peers, struct peer *peer)
{
	set_state(peers, peer, PEER_WAITS, peers->limits.head_ms);
}
