/*
 * kept_config.h - the configuration that is in force, as text in the keeper's hands: every agent begins with it, and
 * not with a file that somebody has changed meanwhile, or broken. The keeper writes the first, and each reload another.
 */
#ifndef GPOOL_AGENT_KEPT_CONFIG_H
#define GPOOL_AGENT_KEPT_CONFIG_H

#include "agent/config/config.h"
#include "agent/base/module.h"

/* kept_config_write() - a descriptor of the text, or negative errno. */
int kept_config_write(const struct config *config);

/* kept_config_load() - what the keeper holds. 0; -ENOENT: nothing; else error->text says why it cannot be used. */
int kept_config_load(const struct module_start *start, struct config *config, struct config_error *error);

#endif
