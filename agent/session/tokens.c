#include "agent/session/tokens.h"

#include "agent/base/log.h"
#include "agent/front/front.h"
#include "agent/pages/event.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

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
	if (event_token(agent, none, FRONT_TOKENS_TOLD) == -EAGAIN) {
		front_watch(agent, EPOLLIN | EPOLLOUT);
		return;
	}
	agent->tokens_follow = false;
	front_watch(agent, EPOLLIN);
}

void tokens_announce_all(struct agent *agent)
{
	agent->token_pool = 0;
	agent->token_session = 1;
	agent->tokens_follow = true; /* a new front expects all tokens */
	tokens_continue(agent);
}

/*
 * Report to a front with a full socket that tokens follow. Otherwise it would refuse a live session. The packet needs
 * room that no other packet can take, so the socket's buffer is larger during this call.
 */
static void tokens_follow(struct agent *agent)
{
	static const uint8_t none[16];
	int usual = 0, larger;
	socklen_t length = sizeof(usual);

	if (agent->tokens_follow || getsockopt(agent->front.fd, SOL_SOCKET, SO_SNDBUF, &usual, &length) < 0)
		return;
	/* The kernel doubles the size that a program sets, and returns the doubled size. */
	larger = usual;
	usual /= 2;
	setsockopt(agent->front.fd, SOL_SOCKET, SO_SNDBUF, &larger, sizeof(larger));
	agent->tokens_follow = event_token(agent, none, FRONT_TOKENS_FOLLOW) == 0;
	setsockopt(agent->front.fd, SOL_SOCKET, SO_SNDBUF, &usual, sizeof(usual));
	if (!agent->tokens_follow)
		log_warning(
			"the front does not read its socket, and may refuse requests of new sessions until it does");
}

void token_announce(struct agent *agent, const struct session *session)
{
	if (event_token(agent, session->token, 1) != -EAGAIN)
		return;
	tokens_follow(agent);
	/* Announce all tokens again, since announcing a token twice is harmless. */
	agent->token_pool = 0;
	agent->token_session = 1;
	front_watch(agent, EPOLLIN | EPOLLOUT);
}
