/*
 * control.h - requests of poolctl and other tools: one handler each, in a table.
 */
#ifndef GPOOL_AGENT_CONTROL_H
#define GPOOL_AGENT_CONTROL_H

#include "agent/agent.h"

#include <stddef.h>

/* control_packet() - one packet from the front: its id and a request that passed the front's checks. Answers it. */
void control_packet(struct agent *agent, const uint8_t *packet, size_t length);

/*
 * control_reload() - read the configuration again. Text for people in `text`; 0 or negative errno, then nothing has
 * changed.
 */
int control_reload(struct agent *agent, char *text, size_t text_bytes);

/* control_recover() - a request that an agent died in gets its answer, for when it is repeated. */
void control_recover(struct pool *pool);

#endif
