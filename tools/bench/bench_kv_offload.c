/*
 * bench_kv_offload.c - preemption of sequences whose content is kept.
 *
 * The content is saved to the cache's host memory, unchanged or as int8, or to blocks of the pool. It is restored from
 * host memory; or the blocks are spilled to the agent's host memory and then restored, with a wait or a prefetch. The
 * sequence has 64 MiB in blocks of 32 KiB. Each figure ends when the stream has finished its copies.
 *
 * On `host`, one thread executes copies and conversions, so no figure can exceed the memcpy of the peer.
 */
#include "tools/bench/bench.h"

#include "shm/pool_segment.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

enum { POOL_PAGES = 512, BLOCKS = 2048, BLOCK_TOKENS = 16 };
static const uint64_t PATIENCE_NS = UINT64_C(60000000000);

struct offload {
	struct gpool *pool;
	struct gpool_kv *kv;
	const struct pool_header *header;
	uint64_t sequence, bytes;
	uint32_t stream;
};

static double gbps(const struct offload *offload, uint64_t begin)
{
	return (double)offload->bytes / (double)(monotonic_ns() - begin);
}

static int settle(const struct offload *offload)
{
	struct gpool_fence fence;
	int error = gpool_fence_record(offload->pool, offload->stream, &fence);

	return error ? error : gpool_fence_wait(offload->pool, fence, -1);
}

static int sample_out(struct bench *bench, const struct offload *offload, uint32_t flags, enum figure figure)
{
	uint64_t begin = monotonic_ns();
	int result = gpool_kv_offload(offload->kv, offload->sequence, flags, NULL),
	    error = result < 0 ? result : settle(offload);

	if (!error)
		bench_sample(bench, figure, gbps(offload, begin));
	return error;
}

static int sample_back(struct bench *bench, const struct offload *offload, enum figure figure)
{
	uint64_t begin = monotonic_ns();
	int error = gpool_kv_resume(offload->kv, offload->sequence);

	if (!error)
		error = settle(offload);
	if (!error)
		bench_sample(bench, figure, gbps(offload, begin));
	return error;
}

/* Let the mover spill all content. */
static int leave(struct bench *bench, const struct offload *offload)
{
	uint64_t pages = offload->bytes / gpool_page_bytes(offload->pool), end = monotonic_ns() + PATIENCE_NS;
	uint64_t before = atomic_load(&offload->header->counters[POOL_COUNT_SPILLED_PAGES]);
	int64_t taken = daemon_evict(bench, POOL_PAGES);

	while (taken >= 0 && atomic_load(&offload->header->counters[POOL_COUNT_SPILLED_PAGES]) - before < pages) {
		if (monotonic_ns() > end)
			return -ETIMEDOUT;
		sched_yield();
	}
	return taken < 0 ? (int)taken : 0;
}

static int sample_prefetch(struct bench *bench, const struct offload *offload)
{
	uint64_t begin = monotonic_ns();
	int left;

	while ((left = gpool_kv_prefetch(offload->kv, offload->sequence)) > 0)
		sched_yield();
	if (!left)
		bench_sample(bench, FIGURE_kv_prefetch, gbps(offload, begin));
	return left;
}

static int sample_peer(struct bench *bench, const struct offload *offload)
{
	uint8_t *memory = mmap(
		NULL, 2 * offload->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	uint64_t begin;

	if (memory == MAP_FAILED)
		return -errno;
	memset(memory, 1, 2 * offload->bytes);
	begin = monotonic_ns();
	memcpy(memory + offload->bytes, memory, offload->bytes);
	bench_sample(bench, FIGURE_kv_peer_memcpy, gbps(offload, begin));
	munmap(memory, 2 * offload->bytes);
	return 0;
}

static int run(struct bench *bench, const struct offload *offload)
{
	int error = sample_out(bench, offload, 0, FIGURE_kv_offload_host);

	if (!error)
		error = sample_back(bench, offload, FIGURE_kv_resume_host);
	if (!error)
		error = sample_out(bench, offload, GPOOL_KV_OFFLOAD_INT8, FIGURE_kv_offload_int8);
	if (!error)
		error = sample_back(bench, offload, FIGURE_kv_resume_int8);
	if (!error)
		error = sample_out(bench, offload, GPOOL_KV_OFFLOAD_POOL, FIGURE_kv_offload_pool);
	if (!error)
		error = sample_back(bench, offload, FIGURE_kv_resume_pool);
	for (int prefetched = 0; prefetched < 2 && !error; prefetched++) {
		int freed = gpool_kv_offload(offload->kv, offload->sequence, GPOOL_KV_OFFLOAD_POOL, NULL);

		error = freed < 0 ? freed : settle(offload);
		if (!error)
			error = leave(bench, offload);
		if (!error && prefetched)
			error = sample_prefetch(bench, offload);
		if (!error)
			error = sample_back(
				bench, offload, prefetched ? FIGURE_kv_resume_prefetched : FIGURE_kv_resume_spilled);
	}
	return error ? error : sample_peer(bench, offload);
}

static int offload_open(struct bench *bench, struct offload *offload)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	int error = daemon_open(bench, 0, &offload->pool);

	if (!error)
		error = gpool_stream_open(offload->pool, NULL, 0, &offload->stream);
	options.shape = (struct gpool_kv_shape){
		.layers = 4, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2, .block_tokens = BLOCK_TOKENS};
	options.stream = offload->stream;
	options.max_blocks = BLOCKS;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	request.tokens = BLOCKS * BLOCK_TOKENS;
	if (!error)
		error = gpool_kv_create(offload->pool, &options, &offload->kv);
	if (!error)
		error = gpool_kv_layout(offload->kv, &layout);
	offload->bytes = BLOCKS * layout.block_bytes;
	if (!error)
		error = gpool_kv_host_reserve(offload->kv, offload->bytes);
	if (!error)
		error = gpool_kv_allocate(offload->kv, &request, &offload->sequence);
	/* Fill with elements that are each 0.5. */
	if (!error)
		error = gpool_fill(offload->pool, offload->stream, layout.address, 0x38003800, offload->bytes);
	offload->header = pool_view(bench->control)->header;
	return error;
}

int bench_kv_offload(struct bench *bench)
{
	struct offload offload = {.pool = NULL};
	int error = daemon_start_with(bench, POOL_PAGES, ",spill_memory=256MiB", NULL);

	if (error)
		return error;
	error = offload_open(bench, &offload);
	for (unsigned i = 0; i < bench->runs && !error; i++)
		error = run(bench, &offload);
	if (error)
		bench_complain(bench, error, "cannot offload and resume a sequence");
	gpool_close(offload.pool);
	daemon_stop(bench);
	return error;
}
