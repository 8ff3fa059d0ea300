/* machine.h - check a configuration against this machine: directories, and the memory of the back end host. */
#ifndef GPOOL_AGENT_KEEPER_MACHINE_H
#define GPOOL_AGENT_KEEPER_MACHINE_H

#include "agent/config/config.h"

/*
 * machine_check() - check that the file of spilled pages can be created, and that the pools of each host device fit
 * into its memory. A configuration that is refused here could not serve on this machine. GPUs are not checked, and no
 * driver is called. Return: 0, or a negative errno with error->text set.
 */
int machine_check(const struct config *config, struct config_error *error);

#endif
