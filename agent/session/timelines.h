/*
 * timelines.h - timeline pages, by which sessions show the progress of their streams to others (shm/timeline_page.h).
 *
 * The agent keeps a descriptor of each page, as does the keeper for the agent's successors, and sends it to sessions of
 * the same trust domain on request. It neither maps nor reads a page. A session has one such page, until it ends.
 */
#ifndef GPOOL_AGENT_TIMELINES_H
#define GPOOL_AGENT_TIMELINES_H

#include "agent/session/session.h"

/*
 * timelines_request() - serve a request on the attach socket, and take over the descriptor that came with it, or -1.
 * Return NULL, or the description of a malformed field, which the caller counts as damage.
 */
const char *timelines_request(
	struct session *session, const struct msg_envelope *envelope, const uint8_t *packet, size_t length, int fd);
/* timelines_session_end() - stop sending the session's page. Sessions that have it already keep it. */
void timelines_session_end(struct session *session);
/* timelines_recover() - take over the pages that the keeper holds, after all sessions are restored. */
void timelines_recover(struct pool *pool);

#endif
