#include "agent/base/descriptors.h"

#include "agent/object/objects.h"
#include "agent/pages/pool.h"

#include <sys/resource.h>

uint32_t descriptors_most(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > UINT32_MAX)
		return UINT32_MAX;
	return (uint32_t)limit.rlim_cur;
}

bool descriptors_left(const struct agent *agent, uint32_t wanted)
{
	uint64_t used = DESCRIPTORS_OWN;

	for (uint32_t i = 0; i < agent->pool_count; i++)
		used += DESCRIPTORS_OF_POOL + agent->pools[i]->objects->live + agent->pools[i]->physical.exported + agent->pools[i]->timeline_count +
			(uint64_t)DESCRIPTORS_OF_SESSION * agent->pools[i]->session_count;
	return used + wanted <= descriptors_most();
}
