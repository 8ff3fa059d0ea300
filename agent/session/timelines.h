/*
 * timelines.h - timeline pages, with which sessions share the progress of their streams (shm/timeline_page.h).
 *
 * The agent has a descriptor of each page and sends it to sessions of the same trust domain on request. The keeper
 * holds a duplicate for the agent's successors. The agent neither maps nor reads the pages. A session has at most one
 * timeline page, until it ends.
 */
#ifndef GPOOL_AGENT_TIMELINES_H
#define GPOOL_AGENT_TIMELINES_H

#include "agent/session/session.h"

/*
 * timelines_request() - serve a request of the attach socket, and take over the descriptor that came with it (-1:
 * none). Return: NULL, or the description of a malformed field, which the caller counts as damage.
 */
const char *timelines_request(
	struct session *session, const struct msg_envelope *envelope, const uint8_t *packet, size_t length, int fd);
/* timelines_session_end() - stop sending the session's page. Sessions that have received it keep it. */
void timelines_session_end(struct session *session);
/* timelines_recover() - take over the pages that the keeper holds. Call it after all sessions were restored. */
void timelines_recover(struct pool *pool);

#endif
