/*
 * config_kept.h - the configuration that an agent works with, kept by the keeper as text: what the keeper itself has read at first, then
 * what each agent has made of it at a reload. So a restarted agent goes on with it also when the file is wrong by then, and takes over
 * what has changed in the file as a reload does.
 */
#ifndef GPOOL_AGENT_CONFIG_KEPT_H
#define GPOOL_AGENT_CONFIG_KEPT_H

#include "agent/agent.h"

/* config_to_memfd() - as text: a descriptor, or negative errno. */
int config_to_memfd(const struct config *config);

/* config_keep() - hand agent->config to the keeper. A failure is logged. */
void config_keep(struct agent *agent);

/* config_kept() - what an agent before this one has kept: 0, -ENOENT (nothing), or as config_load(). */
int config_kept(const struct module_start *start, struct config *config, struct config_error *error);

#endif
