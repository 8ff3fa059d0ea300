/*
 * channel.h - what keeper and agent say to each other: a private SOCK_SEQPACKET pair, one struct a packet, with up to
 * four descriptors.
 *
 * When the agent reads its end, it is to stop: sessions end, memory is given back.
 *
 * It outlives versions of the agent: fields and numbers are added, never changed.
 */
#ifndef GPOOL_AGENT_KEEPER_CHANNEL_H
#define GPOOL_AGENT_KEEPER_CHANNEL_H

#include <stdint.h>
#include <unistd.h>

enum { KEEP_FDS_MAX = 4, KEEP_TEXT_BYTES = 240 };

enum keep_what {
	KEEP_READY = 1, /* agent -> keeper: serving; movers may start */
	KEEP_HOLD,      /* agent -> keeper, with descriptors: keep them until DROP; they outlive the agent */
	KEEP_DROP,      /* agent -> keeper */
	/* keeper -> agent, with a descriptor: a new front; id is its pid, pool the number of restarts */
	KEEP_FRONT,
	/*
	 * keeper -> agent: pool's mover has started; id is its pid, kind the number of restarts, which is that of those
	 * that ended
	 */
	KEEP_MOVER,
	KEEP_UPGRADE, /* agent -> keeper: load the module anew, if it fits */
	/*
	 * keeper -> agent: of UPGRADE; id 0: it fits, and LEAVE follows; else errno. text says what was loaded, or why
	 * not
	 */
	KEEP_VERDICT,
	KEEP_LEAVE, /* keeper -> agent: exit at once and leave everything as it is: a successor takes over */
	/*
	 * keeper -> agent: pool has no mover now. id: pid of the one that ended, 0: none could be started; kind as in
	 * MOVER; text: how
	 */
	KEEP_MOVER_END,
};

/* What is held, and the descriptors of each in order. */
enum keep_kind {
	KEEP_HANDLE = 1, /* physical memory: one export; `value` is its offset, value2 its length */
	KEEP_SESSION,    /* segment, attach socket, pidfd, doorbell */
	KEEP_OBJECT,     /* an object's manifest */
	KEEP_TIER,       /* id 0: spilled pages in memory; 1: the file */
	KEEP_CONFIG,     /* the last configuration that was good, as text */
	KEEP_TIMELINE,   /* a session's page for others (shm/timeline_page.h) */
};

struct keep_message {
	uint32_t what; /* enum keep_what */
	uint32_t kind; /* enum keep_kind */
	uint32_t pool;
	uint32_t id; /* handle, session, object */
	uint64_t value, value2;
	char text[KEEP_TEXT_BYTES];
};

/* What the keeper holds, as an agent or a mover finds it at its start: inherited, not received. */
struct held {
	uint32_t kind, pool, id;
	uint32_t fd_count;
	int fds[KEEP_FDS_MAX];
	uint64_t value, value2;
};

/* held_close() - this process's duplicates of it. */
static inline void held_close(const struct held *item)
{
	for (uint32_t i = 0; i < item->fd_count; i++)
		if (item->fds[i] >= 0)
			close(item->fds[i]);
}

#endif
