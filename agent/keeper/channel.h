/*
 * channel.h - messages between keeper and agent, on a private SOCK_SEQPACKET pair: one struct per packet, with up to
 * four descriptors.
 *
 * If the keeper shuts down its writing side, the agent stops: it ends all sessions and frees the memory. Keeper and
 * agent may have different versions: add fields and numbers, and never change existing ones.
 */
#ifndef GPOOL_AGENT_KEEPER_CHANNEL_H
#define GPOOL_AGENT_KEEPER_CHANNEL_H

#include <stdint.h>
#include <unistd.h>

enum { KEEP_FDS_MAX = 4, KEEP_TEXT_BYTES = 240 };

enum keep_what {
	KEEP_READY = 1, /* agent -> keeper: the agent serves; movers may start */
	KEEP_HOLD,      /* agent -> keeper, with descriptors: keep them until DROP; they survive the agent */
	KEEP_DROP,      /* agent -> keeper */
	/* keeper -> agent, with a descriptor: new front; id is its pid, pool the number of restarts */
	KEEP_FRONT,
	/* keeper -> agent: the pool's mover has started; id is its pid, kind the number of movers that have ended */
	KEEP_MOVER,
	KEEP_UPGRADE, /* agent -> keeper: load the module again, if it is compatible */
	/*
	 * keeper -> agent: reply to UPGRADE; id 0: the module is compatible, and LEAVE follows; else errno. text: the
	 * version that was loaded, or the reason
	 */
	KEEP_VERDICT,
	KEEP_LEAVE, /* keeper -> agent: exit at once and change nothing: a successor takes over */
	/*
	 * keeper -> agent: pool has no mover now. id: pid of the mover that ended, 0: no process can be started; kind:
	 * as in MOVER; text: the reason
	 */
	KEEP_MOVER_END,
};

/* Kinds of held items, and the descriptors of each in order. */
enum keep_kind {
	KEEP_HANDLE = 1, /* physical memory: one export; `value` is its offset, value2 its length */
	KEEP_SESSION,    /* segment, attach socket, pidfd, doorbell */
	KEEP_OBJECT,     /* an object's manifest */
	KEEP_TIER,       /* id 0: spilled pages in memory; 1: the file */
	KEEP_CONFIG,     /* the last valid configuration, as text */
	KEEP_TIMELINE,   /* a session's timeline page, which other sessions map (shm/timeline_page.h) */
};

struct keep_message {
	uint32_t what; /* enum keep_what */
	uint32_t kind; /* enum keep_kind */
	uint32_t pool;
	uint32_t id; /* handle, session, object */
	uint64_t value, value2;
	char text[KEEP_TEXT_BYTES];
};

/* An item that the keeper holds. A new agent or mover inherits the list from the keeper. */
struct held {
	uint32_t kind, pool, id;
	uint32_t fd_count;
	int fds[KEEP_FDS_MAX];
	uint64_t value, value2;
};

/* held_close() - close this process's duplicates of an item's descriptors. */
static inline void held_close(const struct held *item)
{
	for (uint32_t i = 0; i < item->fd_count; i++)
		if (item->fds[i] >= 0)
			close(item->fds[i]);
}

#endif
