/* stranger.c - a shared object that is not a module. */
#include "tests/modules/module.h"

EXPORTED int gpool_stranger(void);
EXPORTED int gpool_stranger(void)
{
	return 1;
}
