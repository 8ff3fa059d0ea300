/*
 * control.h - requests of poolctl and other tools: a table with one handler per request.
 */
#ifndef GPOOL_AGENT_CONTROL_H
#define GPOOL_AGENT_CONTROL_H

#include "agent/agent.h"

#include <stddef.h>

/*
 * control_packet() - answer one packet from the front: an id that the front has assigned, and a request that has passed
 * its checks.
 */
void control_packet(struct agent *agent, const uint8_t *packet, size_t length);

/*
 * control_reload() - read the configuration again, and describe the result in `text`. Return: 0, or a negative errno;
 * the configuration is then unchanged.
 */
int control_reload(struct agent *agent, char *text, size_t text_bytes);

/*
 * control_recover() - store the answer to an evict request during which the previous agent died, so that a repetition
 * returns it.
 */
void control_recover(struct pool *pool);

#endif
