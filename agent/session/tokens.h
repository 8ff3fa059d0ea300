/*
 * tokens.h - announce the tokens of sessions to the front, which refuses requests with other tokens.
 *
 * A token is announced before the attach_reply that contains it. A new front has no tokens and receives those of all
 * live sessions. These may fill its socket; agent->token_pool and token_session record the position at which to
 * continue when the socket is writable again. Until then, the front does not answer requests with unknown tokens.
 */
#ifndef GPOOL_AGENT_SESSION_TOKENS_H
#define GPOOL_AGENT_SESSION_TOKENS_H

#include "agent/pages/session_state.h"

/* token_announce() - announce the token of a new session, immediately or when the front's socket is writable. */
void token_announce(struct agent *agent, const struct session *session);
/* tokens_announce_all() - announce the tokens of all live sessions to a new front. */
void tokens_announce_all(struct agent *agent);
/* tokens_continue() - announce the remaining tokens. Call it when the front's socket is writable again. */
void tokens_continue(struct agent *agent);

#endif
