/*
 * tokens.h - announce the tokens of sessions to the front, which refuses requests with other tokens.
 *
 * A token is announced before the attach_reply that contains it is sent. A new front knows no token and receives those
 * of all live sessions. That may fill its socket: agent->token_pool and token_session record where to continue when the
 * socket can be written again.
 */
#ifndef GPOOL_AGENT_SESSION_TOKENS_H
#define GPOOL_AGENT_SESSION_TOKENS_H

#include "agent/pages/session_state.h"

/* token_announce() - send the token of a new session, now or when the front reads again. */
void token_announce(struct agent *agent, const struct session *session);
/* tokens_announce_all() - send the tokens of all live sessions, to a new front. */
void tokens_announce_all(struct agent *agent);
/* tokens_continue() - the front's socket can be written again: send the remaining tokens. */
void tokens_continue(struct agent *agent);

#endif
