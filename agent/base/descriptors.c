#include "agent/base/descriptors.h"

#include <sys/resource.h>

uint32_t descriptors_most(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > UINT32_MAX)
		return UINT32_MAX;
	return (uint32_t)limit.rlim_cur;
}
