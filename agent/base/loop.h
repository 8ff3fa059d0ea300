/*
 * loop.h - the descriptors that the event loop waits for, and its timer.
 */
#ifndef GPOOL_AGENT_LOOP_H
#define GPOOL_AGENT_LOOP_H

#include <stdint.h>

struct agent;

/* Embedded in the struct that owns the descriptor. */
struct event_source {
	int fd;
	void (*ready)(struct event_source *source, uint32_t events);
};

/* agent_watch() - call source->ready() on these events of epoll. 0 or a negative errno. agent_unwatch() - stop that. */
int agent_watch(struct agent *agent, struct event_source *source, uint32_t events);
void agent_unwatch(struct agent *agent, struct event_source *source);

/* agent_need_tick() - run the periodic work within `ms` milliseconds. */
void agent_need_tick(struct agent *agent, uint32_t ms);

#endif
