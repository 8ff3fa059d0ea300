/*
 * recipe.h - the sources of the configuration (a file and values of the command line), stored for a reload.
 */
#ifndef GPOOL_AGENT_RECIPE_H
#define GPOOL_AGENT_RECIPE_H

#include "agent/config/config.h"

#include <stdbool.h>

enum { RECIPE_ITEMS_MAX = 128 };

struct recipe {
	const char *file; /* NULL: none */
	const char *directory;
	const char *pools[CONFIG_POOLS_MAX];
	uint32_t pool_count;
	const char *sets[RECIPE_ITEMS_MAX];
	uint32_t set_count;
};

/*
 * recipe_load() - load the configuration. Values of the command line replace those of the file. Return: as
 * config_load().
 */
int recipe_load(const struct recipe *recipe, struct config *config, struct config_error *error);

/*
 * recipe_tenants_follow() - return true if the tenants of `next` begin with those of `now`, in the same trust domains,
 * and a second domain is not added. Otherwise a reload keeps the tenants.
 */
bool recipe_tenants_follow(const struct config *now, const struct config *next);

/* recipe_apply() - copy the values of `next` that can change without a restart. */
void recipe_apply(struct config *now, const struct config *next);

#endif
