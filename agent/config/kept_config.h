/*
 * kept_config.h - the configuration in effect, as text held by the keeper: every agent starts with it, and not with a
 * file that may have been changed or damaged meanwhile. The keeper writes the first one, and each reload replaces it.
 */
#ifndef GPOOL_AGENT_KEPT_CONFIG_H
#define GPOOL_AGENT_KEPT_CONFIG_H

#include "agent/config/config.h"
#include "agent/base/module.h"

/* kept_config_write() - return a descriptor of the text, or negative errno. */
int kept_config_write(const struct config *config);

/* kept_config_load() - load the configuration that the keeper holds. 0; -ENOENT: none; else see error->text. */
int kept_config_load(const struct module_start *start, struct config *config, struct config_error *error);

#endif
