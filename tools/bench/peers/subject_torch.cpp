/* subject_torch.cpp - PyTorch's CUDACachingAllocator, of the wheel's libc10_cuda.so. PYTORCH_ALLOC_CONF configures it. */
#include "tools/bench/peers/subject.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <torch/headeronly/version.h>

#include <vector>

namespace cca = c10::cuda::CUDACachingAllocator;

static std::vector<void *> held;

const char *subject_open(uint32_t slots)
{
	held.resize(slots);
	c10::cuda::detail::init_p2p_access_cache(1); /* as torch does when it initializes CUDA */
	cca::init(1);
	return "PyTorch " TORCH_VERSION;
}

bool subject_malloc(uint32_t slot, uint64_t bytes)
{
	try {
		held[slot] = cca::raw_alloc(bytes);
		return true;
	} catch (const c10::OutOfMemoryError &) {
		return false;
	}
}

void subject_free(uint32_t slot)
{
	cca::raw_delete(held[slot]);
}

void subject_note(void)
{
}

uint64_t subject_peak(void)
{
	return static_cast<uint64_t>(cca::getDeviceStats(0).reserved_bytes[0].peak);
}
