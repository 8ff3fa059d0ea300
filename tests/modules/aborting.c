/* aborting.c - a shared object whose initialization aborts when it is loaded. */
#include "tests/modules/module.h"

#include <signal.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void)
{
	signal(SIGABRT, SIG_DFL);
	abort();
}

EXPORTED const struct module gpool_module = {.size = sizeof(struct module), .abi = MODULE_ABI};
