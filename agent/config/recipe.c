#include "agent/config/recipe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int recipe_load(const struct recipe *recipe, struct config *config, struct config_error *error)
{
	int status = 0;

	config_defaults(config);
	if (recipe->file)
		status = config_load(recipe->file, config, error);
	if (!status && recipe->directory) {
		char assignment[CONFIG_PATH_BYTES + 16];

		if (strlen(recipe->directory) >= CONFIG_PATH_BYTES) {
			snprintf(error->text, sizeof(error->text),
				"--dir: the path is longer than %d bytes; choose a shorter path",
				CONFIG_PATH_BYTES - 1);
			return -EINVAL;
		}
		snprintf(assignment, sizeof(assignment), "runtime_dir=%s", recipe->directory);
		status = config_set(config, assignment, error);
	}
	for (uint32_t i = 0; !status && i < recipe->set_count; i++)
		status = config_set(config, recipe->sets[i], error);
	for (uint32_t i = 0; !status && i < recipe->pool_count; i++)
		status = config_add_pool(config, recipe->pools[i], error);
	return status ? status : config_finish(config, error);
}

/*
 * Tenants are identified by their position in the list. New ones may be added at the end, and all values except names
 * and trust domains may change. The first additional domain needs a restart, because owners of pages are not recorded
 * while all tenants are in one domain.
 */
bool recipe_tenants_follow(const struct config *now, const struct config *next)
{
	if (now->tenant_count > next->tenant_count)
		return false;
	for (uint32_t i = 0; i < now->tenant_count; i++)
		if (strcmp(now->tenants[i].name, next->tenants[i].name) ||
			strcmp(now->tenants[i].domain, next->tenants[i].domain))
			return false;
	return config_domains(now) > 1 || config_domains(next) == 1;
}

void recipe_apply(struct config *now, const struct config *next)
{
	now->log_level = next->log_level;
	now->access = next->access;
	/* The other limits need a restart. */
	now->limits.kept_sessions = next->limits.kept_sessions;
	now->limits.tenant_percent = next->limits.tenant_percent;
	now->limits.user_percent = next->limits.user_percent;
	now->lease = next->lease;
	now->eviction = next->eviction;
	now->pressure = next->pressure;
	now->pins = next->pins;
	now->adapters = next->adapters;
	now->flight = next->flight;
	now->trust = next->trust;
	now->mover = next->mover;
	if (recipe_tenants_follow(now, next)) {
		now->tenant_count = next->tenant_count;
		memcpy(now->tenants, next->tenants, sizeof(now->tenants));
	}
}
