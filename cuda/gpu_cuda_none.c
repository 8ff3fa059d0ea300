/*
 * gpu_cuda_none.c - the CUDA back end of a build without the toolkit's headers: it reports no devices, with the reason.
 */
#if !__has_include(<cuda.h>) || defined(GPOOL_WITHOUT_CUDA)

#include "cuda/gpu_private.h"

#include <errno.h>

static int none(int error)
{
	return gpu_fail(error, "this gpool was built without the CUDA headers, so it has no 'cuda' back end");
}

static int none_device_count(void)
{
	return none(-ENODEV);
}

static int none_device_info(int index, struct gpu_device_info *info)
{
	(void)index;
	(void)info;
	return none(-ENODEV);
}

static int none_open(int index, uint32_t flags, struct gpu **gpu)
{
	(void)index;
	(void)flags;
	(void)gpu;
	return none(-ENODEV);
}

static void none_close(struct gpu *gpu)
{
	(void)gpu;
}

static uint32_t none_capabilities(struct gpu *gpu)
{
	(void)gpu;
	return 0;
}

static int none_peers_set(struct gpu *gpu, const int *devices, uint32_t count)
{
	(void)gpu;
	(void)devices;
	(void)count;
	return none(-EOPNOTSUPP);
}

static int none_granularity(struct gpu *gpu, uint64_t *bytes)
{
	(void)gpu;
	(void)bytes;
	return none(-EOPNOTSUPP);
}

static int none_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes)
{
	(void)gpu;
	(void)free_bytes;
	(void)total_bytes;
	return none(-EOPNOTSUPP);
}

static int none_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle)
{
	(void)gpu;
	(void)bytes;
	(void)handle;
	return none(-EOPNOTSUPP);
}

static void none_release(struct gpu *gpu, uint64_t handle)
{
	(void)gpu;
	(void)handle;
}

static int none_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out)
{
	(void)gpu;
	(void)handle;
	(void)out;
	return none(-EOPNOTSUPP);
}

static int none_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle)
{
	(void)gpu;
	(void)from;
	(void)handle;
	return none(-EOPNOTSUPP);
}

static int none_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va)
{
	(void)gpu;
	(void)bytes;
	(void)align;
	(void)va;
	return none(-EOPNOTSUPP);
}

static int none_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	(void)gpu;
	(void)va;
	(void)bytes;
	return none(-EOPNOTSUPP);
}

static int none_map(
	struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped)
{
	(void)gpu;
	(void)va;
	(void)bytes;
	(void)handles;
	(void)count;
	*mapped = 0;
	return none(-EOPNOTSUPP);
}

static int none_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	(void)gpu;
	(void)va;
	(void)bytes;
	return none(-EOPNOTSUPP);
}

static int none_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access)
{
	(void)gpu;
	(void)va;
	(void)bytes;
	(void)access;
	return none(-EOPNOTSUPP);
}

static int none_stream_create(struct gpu *gpu, struct gpu_stream **stream)
{
	(void)gpu;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream)
{
	(void)gpu;
	(void)native;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static void none_stream_destroy(struct gpu *gpu, struct gpu_stream *stream)
{
	(void)gpu;
	(void)stream;
}

static int none_stream_sync(struct gpu *gpu, struct gpu_stream *stream)
{
	(void)gpu;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_stream_query(struct gpu *gpu, struct gpu_stream *stream)
{
	(void)gpu;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream)
{
	(void)gpu;
	(void)to;
	(void)from;
	(void)bytes;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream)
{
	(void)gpu;
	(void)to;
	(void)value;
	(void)bytes;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream)
{
	(void)gpu;
	(void)kernel;
	(void)shape;
	(void)args;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event)
{
	(void)gpu;
	(void)flags;
	(void)event;
	return none(-EOPNOTSUPP);
}

static void none_event_destroy(struct gpu *gpu, struct gpu_event *event)
{
	(void)gpu;
	(void)event;
}

static int none_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream)
{
	(void)gpu;
	(void)event;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_event_query(struct gpu *gpu, struct gpu_event *event)
{
	(void)gpu;
	(void)event;
	return none(-EOPNOTSUPP);
}

static int none_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event)
{
	(void)gpu;
	(void)stream;
	(void)event;
	return none(-EOPNOTSUPP);
}

static int none_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES])
{
	(void)gpu;
	(void)event;
	(void)ipc;
	return none(-EOPNOTSUPP);
}

static int none_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event)
{
	(void)gpu;
	(void)ipc;
	(void)event;
	return none(-EOPNOTSUPP);
}

static int none_host_register(struct gpu *gpu, void *memory, uint64_t bytes)
{
	(void)gpu;
	(void)memory;
	(void)bytes;
	return none(-EOPNOTSUPP);
}

static int none_host_unregister(struct gpu *gpu, void *memory)
{
	(void)gpu;
	(void)memory;
	return none(-EOPNOTSUPP);
}

static int none_host_address(struct gpu *gpu, const void *memory, uint64_t *va)
{
	(void)gpu;
	(void)memory;
	(void)va;
	return none(-EOPNOTSUPP);
}

static int none_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value)
{
	(void)gpu;
	(void)stream;
	(void)word;
	(void)value;
	return none(-EOPNOTSUPP);
}

static int none_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value)
{
	(void)gpu;
	(void)stream;
	(void)word;
	(void)value;
	return none(-EOPNOTSUPP);
}

static int none_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va)
{
	(void)gpu;
	(void)bytes;
	(void)stream;
	(void)va;
	return none(-EOPNOTSUPP);
}

static int none_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream)
{
	(void)gpu;
	(void)va;
	(void)stream;
	return none(-EOPNOTSUPP);
}

static int none_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes)
{
	(void)gpu;
	(void)held_bytes;
	(void)used_bytes;
	return none(-EOPNOTSUPP);
}

const struct gpu_ops gpu_cuda_ops = {
	.name = "cuda",
	.device_count = none_device_count,
	.device_info = none_device_info,
	.open = none_open,
	.close = none_close,
	.capabilities = none_capabilities,
	.peers_set = none_peers_set,
	.granularity = none_granularity,
	.memory_info = none_memory_info,
	.create = none_create,
	.release = none_release,
	.export = none_export,
	.import = none_import,
	.reserve = none_reserve,
	.unreserve = none_unreserve,
	.map = none_map,
	.unmap = none_unmap,
	.access = none_access,
	.stream_create = none_stream_create,
	.stream_adopt = none_stream_adopt,
	.stream_destroy = none_stream_destroy,
	.stream_sync = none_stream_sync,
	.stream_query = none_stream_query,
	.copy = none_copy,
	.fill = none_fill,
	.launch = none_launch,
	.event_create = none_event_create,
	.event_destroy = none_event_destroy,
	.event_record = none_event_record,
	.event_query = none_event_query,
	.event_wait = none_event_wait,
	.event_export = none_event_export,
	.event_import = none_event_import,
	.host_register = none_host_register,
	.host_unregister = none_host_unregister,
	.host_address = none_host_address,
	.timeline_write = none_timeline_write,
	.timeline_wait = none_timeline_wait,
	.pool_alloc = none_pool_alloc,
	.pool_free = none_pool_free,
	.pool_info = none_pool_info,
};

void gpu_driver_forget(void)
{
}

#endif
