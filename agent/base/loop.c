#include "agent/agent.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

int agent_watch(struct agent *agent, struct event_source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	return epoll_ctl(agent->epoll, EPOLL_CTL_ADD, source->fd, &event) < 0 ? -errno : 0;
}

void agent_unwatch(struct agent *agent, struct event_source *source)
{
	if (source->fd >= 0)
		epoll_ctl(agent->epoll, EPOLL_CTL_DEL, source->fd, NULL);
}

void agent_need_tick(struct agent *agent, uint32_t ms)
{
	struct itimerspec when = {.it_value = {ms / 1000, (long)(ms % 1000) * 1000000}};

	if (agent->timer_ms && agent->timer_ms <= ms)
		return;
	if (timerfd_settime(agent->timer.fd, 0, &when, NULL) == 0)
		agent->timer_ms = ms;
}
