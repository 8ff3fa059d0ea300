/*
 * recipe.c - a module for another definition of struct recipe, which the keeper passes to it: the keeper must not call
 * any of its functions.
 */
#include "tests/modules/module.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 200 };

static int agent(const struct module_start *start)
{
	(void)start;
	abort();
}

static int front(const struct module_start *start, const void *options)
{
	(void)start;
	(void)options;
	abort();
}

static int device(const char *backend, const char *name, struct module_device *answer)
{
	(void)backend;
	(void)name;
	(void)answer;
	abort();
}

static const struct layout_field *recipe_fields(uint32_t *count)
{
	static const struct layout_field fields[] = {{"directory", 0, 8}};

	*count = 1;
	return fields;
}

static struct layout_part parts[PARTS_MAX];
static struct layout layout;

__attribute__((constructor)) static void describe(void)
{
	if (layout_own.part_count > PARTS_MAX)
		abort();
	memcpy(parts, layout_own.parts, layout_own.part_count * sizeof(*parts));
	for (uint32_t i = 0; i < layout_own.part_count; i++)
		if (!strcmp(parts[i].name, "recipe"))
			parts[i].fields = recipe_fields;
	layout = (struct layout){layout_own.part_count, 0, parts};
}

EXPORTED const struct module gpool_module = {
	.size = sizeof(struct module),
	.abi = MODULE_ABI,
	.layout_version = POOL_LAYOUT_VERSION,
	.version = "9.9.9",
	.agent = agent,
	.front = front,
	.device = device,
	.layout = &layout,
};
