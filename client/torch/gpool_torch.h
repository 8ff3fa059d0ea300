/*
 * gpool_torch.h - PyTorch's memory out of a gpool: what torch.cuda.memory.CUDAPluggableAllocator asks for, over
 * gpool_malloc_async().
 *
 *	allocator = torch.cuda.memory.CUDAPluggableAllocator("libgpool_torch.so", "gpool_torch_malloc",
 *	"gpool_torch_free") with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
 *		...
 *
 * Each device has a pool of its own, which is attached at the first call for it and stays so until the process ends;
 * then the agent takes everything back. Which pool: $GPOOL_TORCH_POOLS, their names with commas between them, one for
 * each device from 0 on. Without it device 0 is the first pool of $GPOOL_DIR, and others are refused. What the pools
 * shall hold back, how large a page is and so on is said as for every program: gpool_vm_configure() in gpool(3) names
 * the variables.
 *
 * Any thread may call. Nothing here may be called in a child after fork(): allocations are refused there.
 */
#ifndef GPOOL_TORCH_H
#define GPOOL_TORCH_H

#include <gpool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * gpool_torch_malloc() - `size` bytes on a device, for work that is queued on this stream.
 *
 * @stream: a cudaStream_t, which is a CUstream; NULL: the legacy default stream. At most 255 different ones for each
 * device
 *
 * Return: a device address; NULL: there is none. The first failure of each kind is told on stderr, with what can be
 * done about it.
 * Cost: gpool_malloc_async(), and a look into a list of streams.
 */
GPOOL_API void *gpool_torch_malloc(ssize_t size, int device, void *stream);

/* gpool_torch_free() - what gpool_torch_malloc() returned, behind what is queued on this stream. NULL is fine. */
GPOOL_API void gpool_torch_free(void *address, ssize_t size, int device, void *stream);

/*
 * gpool_torch_pool() - the pool behind a device, to look at or to trim (gpool_vm_stats(), gpool_trim_to()). NULL: it
 * cannot be attached.
 */
GPOOL_API struct gpool *gpool_torch_pool(int device);

#ifdef __cplusplus
}
#endif

#endif
