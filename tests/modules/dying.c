/* dying.c - a compatible module whose agent ends before it serves. */
#include "tests/modules/module.h"

#include <stddef.h>

#ifndef MODULE_BYTES
#define MODULE_BYTES sizeof(struct module)
#endif

static int agent(const struct module_start *start)
{
	(void)start;
	return 5;
}

static int front(const struct module_start *start, const void *options)
{
	(void)start;
	(void)options;
	return 5;
}

static int device(const char *backend, const char *name, struct module_device *answer)
{
	(void)backend;
	(void)name;
	answer->error = -1;
	return 5;
}

EXPORTED const struct module gpool_module = {
	.size = MODULE_BYTES,
	.abi = MODULE_ABI,
	.layout_version = POOL_LAYOUT_VERSION,
	.version = "9.9.9",
	.agent = agent,
	.front = front,
	.device = device,
	.layout = &layout_own,
};
