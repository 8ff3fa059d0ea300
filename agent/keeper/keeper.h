/*
 * keeper.h - the first process of gpoold: makes and seals the segments, holds every descriptor that must outlive the
 * agent, starts the others without exec, again when they end, and stops them in order. Single-threaded, no policy, and
 * never a call to a GPU driver, so that fork stays safe. The others' code is not even in this program: a child loads it
 * (loader.h).
 */
#ifndef GPOOL_AGENT_KEEPER_KEEPER_H
#define GPOOL_AGENT_KEEPER_KEEPER_H

#include "agent/config/config.h"
#include "agent/config/recipe.h"

/*
 * keeper_run() - serve until SIGTERM or SIGINT. `module` is the file of the others' code, NULL: where it belongs.
 * Returns the exit status: 0 stopped on purpose, 1 could not start.
 */
int keeper_run(const struct recipe *recipe, const struct config *config, const char *module);

#endif
