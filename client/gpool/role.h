/* role.h - roles, for leader election. */
#ifndef GPOOL_ROLE_H
#define GPOOL_ROLE_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A role is a name that at most one session of a trust domain holds at a time, for example the engine that serves while
 * others are on standby. The agent grants roles. A session holds a role until gpool_role_release(), gpool_close(), or
 * the death of its process, which the kernel reports to the agent; no heartbeat is involved, and no timeout except
 * trust.death_grace (gpoold.conf(5)). A holder that is stopped, or has lost its connection, keeps the role until its
 * process has ended. Therefore no code of a dead holder is running on this machine or its GPUs when the role is granted
 * to a standby.
 *
 * Requests that the old holder has sent elsewhere, to a server or a file, may still take effect later. Therefore send
 * the token with each request. The receiver must reject tokens that are lower than the highest token that it has
 * received for this role. Tokens start again when gpoold is stopped and started; an update of gpoold preserves them.
 *
 * Names belong to trust domains (gpoold.conf(5)): two domains may use the same name for different roles.
 */
struct gpool_role {
	uint32_t size;    /* sizeof(struct gpool_role), set by the caller; GPOOL_ROLE_INIT sets it */
	uint32_t index;   /* index in the pool's table of roles */
	uint64_t token;   /* fencing token: higher than the token of every earlier grant of this name */
	uint32_t session; /* the holder, as gpool_session() returns it */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_role, 24);
#define GPOOL_ROLE_INIT \
	{ \
		sizeof(struct gpool_role), 0, 0, 0, 0 \
	}

/*
 * gpool_role_acquire() - acquire a role; while another session holds it, wait in order of arrival.
 *
 * @name:       1 to 63 bytes of printable UTF-8
 * @timeout_ms: longest wait, milliseconds; 0: do not wait, -1: no limit
 * @role:       receives the token; the caller sets its size
 *
 * The first acquisition creates the role for the tenant of the caller, in its trust domain. A pool has 64 entries for
 * roles, which its tenants and users share as they share sessions (limits.tenant_sessions and limits.user_sessions in
 * gpoold.conf(5)). A role keeps its entry while no session holds it; "poolctl roles remove NAME" frees the entry. A
 * restart of the agent preserves the queue and its order.
 *
 * Return: 0, or
 *   -ETIMEDOUT  another session holds the role; the caller has left the queue
 *   -EALREADY   this process holds the role, or another of its threads waits for it
 *   -EACCES     the role belongs to another tenant of the trust domain
 *   -EPERM      the session is an observer or admin
 *   -ENOSPC     the role does not exist, and 64 roles exist, or the tenant or the user has its share of them
 *   -EINVAL     the name is empty, too long or not printable UTF-8; timeout_ms below -1; size
 *   -EPIPE      the agent has ended this session, or does not answer within 10 s. When the agent is running again, this
 *               process neither waits for the role nor holds it
 *   -EINTR      gpool_wait_check() ended the wait
 *   -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: one round trip to the agent; during the wait a sleep in the kernel.
 */
GPOOL_API int gpool_role_acquire(struct gpool *pool, const char *name, int timeout_ms, struct gpool_role *role);

/*
 * gpool_role_check() - check whether this process holds a role under this token.
 *
 * The result describes the time of the call. A role is never taken from a process that neither releases it nor closes
 * the pool.
 *
 * Return: 0, -ESTALE (released, or granted to another session), -EINVAL (size, not a role), -ECHILD. Cost: two loads.
 */
GPOOL_API int gpool_role_check(const struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_release() - release a role. When the call returns 0, the first session in the queue holds it.
 *
 * gpool_close() also releases all roles; with trust.release = "death" (gpoold.conf(5)), possibly only at the end of the
 * process. Wait for the GPU work that the role protects before the release.
 *
 * Return: 0, -ESTALE (not held under this token), -EINVAL (size), -EPIPE (no answer within 10 s; the role is released
 * when the agent is running again), -EPROTO, -ECHILD. Cost: one round trip to the agent.
 */
GPOOL_API int gpool_role_release(struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_info() - return the holder of a role in the trust domain of this session's tenant. Sessions of all kinds
 * may call it.
 *
 * @session: receives the holder; 0: the role is free. May be NULL
 * @token:   receives the token of the holder, or of the last holder if the role is free. May be NULL
 *
 * Return: 0, -ENOENT (no role of that name), -EINVAL (the name is empty or too long), -ECHILD. Cost: a search of the
 * pool's table of roles; no system call.
 */
GPOOL_API int gpool_role_info(const struct gpool *pool, const char *name, uint32_t *session, uint64_t *token);

#ifdef __cplusplus
}
#endif

#endif
