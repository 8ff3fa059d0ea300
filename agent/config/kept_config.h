/*
 * kept_config.h - the configuration in effect, as text that the keeper holds. Every agent starts with it rather than
 * with a file that may have been changed or damaged in the meantime. The keeper writes the first text, and each reload
 * replaces it.
 */
#ifndef GPOOL_AGENT_KEPT_CONFIG_H
#define GPOOL_AGENT_KEPT_CONFIG_H

#include "agent/config/config.h"
#include "agent/base/module.h"

/* kept_config_write() - write the text to a new descriptor. Return: the descriptor, or a negative errno. */
int kept_config_write(const struct config *config);

/*
 * kept_config_load() - load the configuration that the keeper holds. Return: 0; -ENOENT: the keeper holds none;
 * otherwise an error with error->text set.
 */
int kept_config_load(const struct module_start *start, struct config *config, struct config_error *error);

#endif
