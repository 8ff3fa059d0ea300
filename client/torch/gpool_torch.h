/*
 * gpool_torch.h - allocate PyTorch's memory from a pool: the functions that torch.cuda.memory.CUDAPluggableAllocator
 * needs, based on gpool_malloc_async().
 *
 * 	allocator = torch.cuda.memory.CUDAPluggableAllocator(
 * 		"libgpool_torch.so", "gpool_torch_malloc", "gpool_torch_free")
 * 	with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
 * 		...
 *
 * Each device has its own pool. It is attached at the first call for the device and stays attached until the process
 * ends, when the agent reclaims all memory. $GPOOL_TORCH_POOLS lists the names of the pools for devices 0, 1 and so on,
 * separated by commas. If it is not set, device 0 uses the first pool of $GPOOL_DIR, and allocations on other devices
 * fail. The environment variables of gpool_vm_configure() in gpool(3) apply, for example to set the page size.
 *
 * Any thread may call these functions. Do not call them in a forked child: allocations fail there.
 */
#ifndef GPOOL_TORCH_H
#define GPOOL_TORCH_H

#include <gpool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * gpool_torch_malloc() - allocate `size` bytes on a device, for work that is queued on this stream.
 *
 * @stream: a cudaStream_t, which is a CUstream; NULL: the legacy default stream; cudaStreamPerThread: the default
 * stream of the calling thread. At most 255 different streams per device
 *
 * Return: a device address; NULL: no memory is available. The first failure of each kind is reported on stderr, with
 * its cause and a remedy.
 * Cost: that of gpool_malloc_async(), and a search in a list of streams.
 */
GPOOL_API void *gpool_torch_malloc(ssize_t size, int device, void *stream);

/*
 * gpool_torch_free() - free an address that gpool_torch_malloc() returned, after the work that is queued on this
 * stream. Does nothing if the address is NULL.
 */
GPOOL_API void gpool_torch_free(void *address, ssize_t size, int device, void *stream);

/*
 * gpool_torch_pool() - return the pool of a device, for gpool_vm_stats() and gpool_trim_to(), or NULL if it cannot be
 * attached.
 */
GPOOL_API struct gpool *gpool_torch_pool(int device);

#ifdef __cplusplus
}
#endif

#endif
