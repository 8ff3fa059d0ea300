/* allocator.c - the table of allocators. */
#include "tools/lib/allocator.h"

#include <stddef.h>
#include <string.h>

const struct allocator_ops *const allocators[] = {&gpool_ops, &best_fit_ops, &driver_ops, NULL};

const struct allocator_ops *allocator_find(const char *name)
{
	for (size_t i = 0; allocators[i]; i++)
		if (!strcmp(allocators[i]->name, name))
			return allocators[i];
	return NULL;
}
