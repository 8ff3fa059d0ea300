/*
 * recipe.h - where the configuration comes from: a file and what the command line adds. Kept for the reload.
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

/* recipe_load() - the whole configuration; a value on the command line replaces the file's. As config_load(). */
int recipe_load(const struct recipe *recipe, struct config *config, struct config_error *error);

/*
 * recipe_tenants_follow() - whether the tenants of `next` begin with those of `now`: only so they can change while
 * sessions run.
 */
bool recipe_tenants_follow(const struct config *now, const struct config *next);

/* recipe_apply() - take over from `next` what can change without a restart; the rest of `now` stays. */
void recipe_apply(struct config *now, const struct config *next);

#endif
