/*
 * channel.h - messages between keeper and agent on a private SOCK_SEQPACKET pair: one struct per packet, with up to
 * four descriptors.
 *
 * If the keeper shuts down its writing side, the agent stops: it ends all sessions and frees the memory. Keeper and
 * agent may have different versions, so fields and numbers may be added, but existing ones must not be changed.
 */
#ifndef GPOOL_AGENT_KEEPER_CHANNEL_H
#define GPOOL_AGENT_KEEPER_CHANNEL_H

#include <stdint.h>
#include <unistd.h>

enum { KEEP_FDS_MAX = 4, KEEP_TEXT_BYTES = 240 };

enum keep_what {
	KEEP_READY = 1, /* agent -> keeper: the agent serves, so movers may start */
	KEEP_HOLD,      /* agent -> keeper, with descriptors: hold them until KEEP_DROP, even if the agent dies */
	KEEP_DROP,      /* agent -> keeper */
	/* keeper -> agent, with the channel of a new front: id is its pid, pool its number of restarts */
	KEEP_FRONT,
	/* keeper -> agent: the mover of pool has started; id is its pid, kind the number of movers that have ended */
	KEEP_MOVER,
	KEEP_UPGRADE, /* agent -> keeper: load the module again if it is compatible */
	/*
	 * keeper -> agent, reply to KEEP_UPGRADE. id: 0 if the module is compatible (KEEP_LEAVE follows), otherwise an
	 * errno; text: the version that was loaded, or the reason
	 */
	KEEP_VERDICT,
	KEEP_LEAVE, /* keeper -> agent: exit at once and change nothing, since a successor takes over */
	/*
	 * keeper -> agent: pool has no mover now. id: pid of the mover that ended, or 0 if no process can be started;
	 * kind: as in KEEP_MOVER; text: the reason
	 */
	KEEP_MOVER_END,
};

/* The kinds of held items, with the descriptors of each in order. */
enum keep_kind {
	KEEP_HANDLE = 1, /* physical memory: one export; `value` is its offset, value2 its length */
	KEEP_SESSION,    /* segment, attach socket, pidfd, doorbell */
	KEEP_OBJECT,     /* manifest of an object */
	KEEP_TIER,       /* spilled pages; id 0: memory, id 1: file */
	KEEP_CONFIG,     /* the current configuration, as text */
	KEEP_TIMELINE,   /* timeline page of a session, which other sessions map (shm/timeline_page.h) */
};

struct keep_message {
	uint32_t what; /* enum keep_what */
	uint32_t kind; /* enum keep_kind */
	uint32_t pool;
	uint32_t id; /* number of a handle, session or object */
	uint64_t value, value2;
	char text[KEEP_TEXT_BYTES];
};

/*
 * An item that the keeper holds. A new agent inherits all items, and a mover the handles and tiers of its pool and the
 * configuration.
 */
struct held {
	uint32_t kind, pool, id;
	uint32_t fd_count;
	int fds[KEEP_FDS_MAX];
	uint64_t value, value2;
};

/* held_close() - close this process's copies of an item's descriptors. */
static inline void held_close(const struct held *item)
{
	for (uint32_t i = 0; i < item->fd_count; i++)
		if (item->fds[i] >= 0)
			close(item->fds[i]);
}

#endif
