/* keep.h - messages to the keeper, which holds duplicates of the descriptors that must survive the agent. */
#ifndef GPOOL_AGENT_KEEP_H
#define GPOOL_AGENT_KEEP_H

#include <stdint.h>

struct agent;
struct held;
struct keep_message;

/* agent_tell_keeper() - send a message with descriptors. Return: 0, or a negative errno, which was logged. */
int agent_tell_keeper(struct agent *agent, const struct keep_message *message, const int *fds, uint32_t fd_count);

/*
 * agent_hold() - make the keeper hold duplicates of item->fds. Return: 0, or a negative errno, which was logged.
 * agent_drop() - make the keeper close them.
 */
int agent_hold(struct agent *agent, const struct held *item);
void agent_drop(struct agent *agent, uint32_t kind, uint32_t pool, uint32_t id);

#endif
