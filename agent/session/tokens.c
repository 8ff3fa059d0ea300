#include "agent/session/tokens.h"

#include "agent/front/front.h"
#include "agent/pages/event.h"

#include <errno.h>
#include <sys/epoll.h>

static void front_watch(struct agent *agent, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = &agent->front};

	epoll_ctl(agent->epoll, EPOLL_CTL_MOD, agent->front.fd, &event);
}

void tokens_continue(struct agent *agent)
{
	static const uint8_t none[16];

	for (; agent->token_pool < agent->pool_count; agent->token_pool++, agent->token_session = 1)
		for (; agent->token_session < POOL_SESSIONS; agent->token_session++) {
			const struct session *session = agent->pools[agent->token_pool]->sessions[agent->token_session];

			if (session && event_token(agent, session->token, 1) == -EAGAIN) {
				front_watch(agent, EPOLLIN | EPOLLOUT);
				return;
			}
		}
	if (event_token(agent, none, FRONT_TOKENS_TOLD) == -EAGAIN)
		front_watch(agent, EPOLLIN | EPOLLOUT);
	else
		front_watch(agent, EPOLLIN);
}

void tokens_announce_all(struct agent *agent)
{
	agent->token_pool = 0;
	agent->token_session = 1;
	tokens_continue(agent);
}

void token_announce(struct agent *agent, const struct session *session)
{
	if (event_token(agent, session->token, 1) != -EAGAIN)
		return;
	/* Announce all tokens again, since announcing a token twice is harmless. */
	agent->token_pool = 0;
	agent->token_session = 1;
	front_watch(agent, EPOLLIN | EPOLLOUT);
}
