/*
 * keeper.h - the first process of gpoold: makes and seals the segments, holds every descriptor that must outlive the agent, starts
 * the others without exec, and stops them in order. Single-threaded, no policy, and never a call to a GPU driver, so that fork
 * stays safe.
 */
#ifndef GPOOL_AGENT_KEEPER_KEEPER_H
#define GPOOL_AGENT_KEEPER_KEEPER_H

#include "agent/config.h"
#include "agent/recipe.h"

/* keeper_run() - serve until SIGTERM or SIGINT. Returns the exit status: 0 stopped on purpose, 1 could not start or go on. */
int keeper_run(const struct recipe *recipe, const struct config *config);

#endif
