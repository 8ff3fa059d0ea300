/* subject_rmm.cpp - RMM's pool_memory_resource on cuda_memory_resource. The pool is empty at first and grows. */
#include "tools/bench/peers/subject.h"

#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

#include <vector>

namespace {
struct slot {
	void *at;
	uint64_t bytes;
};
using pool_resource = rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>;
std::vector<slot> held;
rmm::mr::cuda_memory_resource upstream;
pool_resource *pool;
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *subject_open(uint32_t slots)
{
	held.resize(slots);
	pool = new pool_resource(&upstream, 0);
	return "RMM " TEXT(RMM_VERSION_MAJOR) "." TEXT(RMM_VERSION_MINOR) "." TEXT(RMM_VERSION_PATCH);
}

bool subject_malloc(uint32_t slot, uint64_t bytes)
{
	try {
		held[slot] = {pool->allocate(rmm::cuda_stream_legacy, bytes), bytes};
		return true;
	} catch (const rmm::bad_alloc &) {
		return false;
	}
}

void subject_free(uint32_t slot)
{
	pool->deallocate(rmm::cuda_stream_legacy, held[slot].at, held[slot].bytes);
}

void subject_note(void)
{
}

uint64_t subject_peak(void)
{
	return pool->pool_size(); /* it returns nothing to the device */
}
