/*
 * timelines.h - pages on which sessions show others how far their streams are (shm/timeline_page.h).
 *
 * The agent keeps a descriptor of each, so does the keeper for the agent's successors, and gives it to sessions of the
 * same trust domain that ask for it. It neither maps one nor reads a word of it. A session has one such page, and has
 * it until it ends.
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
/* timelines_session_end() - nobody gets the session's page any more; who has it keeps it. */
void timelines_session_end(struct session *session);
/* timelines_recover() - a new agent, all sessions restored: the pages that the keeper has held. */
void timelines_recover(struct pool *pool);

#endif
