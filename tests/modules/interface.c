/* interface.c - a module for another keeper: the keeper must not call any of its functions. */
#include "tests/modules/module.h"

#include <stdlib.h>

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

EXPORTED const struct module gpool_module = {
	.size = sizeof(struct module),
	.abi = MODULE_ABI + 1,
	.layout_version = POOL_LAYOUT_VERSION,
	.version = "9.9.9",
	.agent = agent,
	.front = front,
	.device = device,
};
