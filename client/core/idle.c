#include "client/core/idle.h"

#include "client/core/pool.h"

#include <assert.h>

void idle_register(struct gpool *pool, uint32_t when, bool (*run)(struct gpool *pool))
{
	struct idle_callbacks *idle = &pool->idle;

	assert(idle->count < IDLE_MAX);
	idle->callbacks[idle->count].when = when;
	idle->callbacks[idle->count++].run = run;
}

bool idle_run(struct gpool *pool, enum idle_when when)
{
	const struct idle_callbacks *idle = &pool->idle;
	bool left = false;

	for (uint32_t i = 0; i < idle->count; i++)
		if (idle->callbacks[i].when & when && idle->callbacks[i].run(pool))
			left = true;
	return left;
}
