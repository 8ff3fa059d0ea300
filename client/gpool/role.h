/* role.h - leadership roles. */
#ifndef GPOOL_ROLE_H
#define GPOOL_ROLE_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A role is a name that one session of a pool holds at a time: the engine that serves, while others stand by. The agent
 * grants it; the kernel tells the agent of the holder's death, and nothing less than that, a release or a close takes a
 * role away: no time-out, no missed heartbeat. So a holder that is stopped, or has lost its connection, keeps the role
 * until its process has ended, and when a standby has it, nothing of the old holder runs any more, on this machine or
 * its GPUs.
 *
 * What the holder does elsewhere (a request to a server, a file) may arrive late all the same: send the token along,
 * and let the other side refuse one that is lower than it has seen.
 */
struct gpool_role {
	uint32_t size;    /* sizeof(struct gpool_role), set by the caller; GPOOL_ROLE_INIT sets it */
	uint32_t index;   /* the role's place in the pool's table */
	uint64_t token;   /* fencing token: each grant has a higher one than all before in this pool */
	uint32_t session; /* holder: gpool_session() */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_role, 24);
#define GPOOL_ROLE_INIT \
	{ \
		sizeof(struct gpool_role), 0, 0, 0, 0 \
	}

/*
 * gpool_role_acquire() - hold a role; wait for it while another session does, in order of arrival.
 *
 * A role exists from its first acquisition on and belongs to the tenant of who made that. It keeps its place, one of 64
 * in each pool, when nobody holds it ('poolctl roles remove NAME' frees the place).
 *
 * @name:       1 to 63 bytes of printable UTF-8
 * @timeout_ms: longest wait, milliseconds; 0: do not wait, -1: no limit
 * @role:       receives the token
 *
 * Return: 0, or
 *   -ETIMEDOUT  another session holds it, and the time is over; this one waits no longer
 *   -EALREADY   this process has the role, or another thread of it waits for it
 *   -EACCES     the role is another tenant's
 *   -EPERM      a session that only reads
 *   -ENOSPC     64 roles have names
 *   -EINVAL     a name that cannot be, timeout_ms below -1
 *   -EPIPE      the agent has ended this session, or does not answer within 10 s: then this process neither waits for
 *               the role nor gets it, once the agent is back
 *   -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: a round trip to the agent; while waiting a sleep in the kernel. An agent that restarts meanwhile keeps who
 * waits, in order.
 */
GPOOL_API int gpool_role_acquire(struct gpool *pool, const char *name, int timeout_ms, struct gpool_role *role);

/*
 * gpool_role_check() - whether this process holds the role by this token. 0, -ESTALE (given back, or taken over),
 * -EINVAL, -ECHILD. Two loads. What it says was true when it looked; a role does not go away from a process that
 * neither releases nor closes.
 */
GPOOL_API int gpool_role_check(const struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_release() - give it back; the first standby has it when this returns. gpool_close() does the same. What
 * GPU work of the holder still runs is the holder's to wait for. Return: 0, -ESTALE (not ours), -EPIPE (no answer
 * within 10 s: it is given back once the agent is there), -EPROTO, -ECHILD.
 */
GPOOL_API int gpool_role_release(struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_info() - who holds a role: any session may look. *session 0: nobody, and *token is the last holder's.
 * Either may be NULL.
 * Return: 0, -ENOENT (no role of that name), -EINVAL, -ECHILD. No system call.
 */
GPOOL_API int gpool_role_info(const struct gpool *pool, const char *name, uint32_t *session, uint64_t *token);

#ifdef __cplusplus
}
#endif

#endif
