/*
 * loop.h - the descriptors watched by the event loop, and its timer.
 */
#ifndef GPOOL_AGENT_LOOP_H
#define GPOOL_AGENT_LOOP_H

#include <stdint.h>

struct agent;

/* Embed it in the struct that owns the descriptor. */
struct event_source {
	int fd;
	void (*ready)(struct event_source *source, uint32_t events);
};

/*
 * agent_watch() - have source->ready() called on these epoll events. Return: 0, or a negative errno. agent_unwatch() -
 * stop watching.
 */
int agent_watch(struct agent *agent, struct event_source *source, uint32_t events);
void agent_unwatch(struct agent *agent, struct event_source *source);

/* agent_need_tick() - have the periodic work run within `ms` milliseconds. */
void agent_need_tick(struct agent *agent, uint32_t ms);

#endif
