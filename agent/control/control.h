/*
 * control.h - requests of poolctl and other tools: a table with one handler per request.
 */
#ifndef GPOOL_AGENT_CONTROL_H
#define GPOOL_AGENT_CONTROL_H

#include "agent/agent.h"

#include <stddef.h>

/*
 * control_packet() - answer one packet from the front: the front's id, then a request that passed the front's checks.
 */
void control_packet(struct agent *agent, const uint8_t *packet, size_t length);

/*
 * control_reload() - read the configuration again. Return: 0, or a negative errno with nothing changed; `text`
 * describes the result.
 */
int control_reload(struct agent *agent, char *text, size_t text_bytes);

/* control_recover() - store the answer to a request during which an agent died, for a repetition of the request. */
void control_recover(struct pool *pool);

#endif
