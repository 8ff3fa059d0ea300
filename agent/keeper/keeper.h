/*
 * keeper.h - the first process of gpoold. It creates and seals the segments, and holds every descriptor that must
 * survive the agent. It starts the other processes without exec, restarts them, and stops them in order. The keeper is
 * single-threaded, makes no policy decisions and never calls a GPU driver, so that fork() stays safe. The code of the
 * other processes is not linked into this program; each child loads it (loader.h).
 */
#ifndef GPOOL_AGENT_KEEPER_KEEPER_H
#define GPOOL_AGENT_KEEPER_KEEPER_H

#include "agent/config/config.h"
#include "agent/config/recipe.h"

/*
 * keeper_check() - make the checks of the start that depend on this machine, without changing anything. Devices of the
 * back end cuda are not checked. Return: 0, or a negative errno with error->text set.
 */
int keeper_check(const struct config *config, const char *module, struct config_error *error);

/*
 * keeper_run() - serve until SIGTERM or SIGINT. `module`: the file with the code of the other processes; NULL: the
 * installed one.
 *
 * Return: the exit status: 0 after a requested stop, 1 if the start failed.
 */
int keeper_run(const struct recipe *recipe, const struct config *config, const char *module);

#endif
