/*
 * mover.c - gpoold's own module with a mover that reports its arguments and then waits until it is ended, to test how
 * the keeper handles movers.
 */
#include "agent/front/front.h"
#include "agent/mover/ring.h"
#include "cuda/gpu.h"
#include "tests/modules/module.h"

#include "agent/agent.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int mover(const struct module_start *start)
{
	const struct module_pool *pool = &start->pools[start->pool];
	struct mover_ring *ring = pool->ring;
	uint32_t by_kind[KEEP_CONFIG + 1] = {0};
	char line[300];
	int length;

	for (uint32_t i = 0; i < start->held_count; i++)
		by_kind[start->held[i].kind]++;
	length = snprintf(line, sizeof(line),
		"mover of '%s': start %u, before me %u, %u handles, %u sessions, segment %s, ledger %s, channel %d, "
		"bells %d\n",
		pool->segment.header->name, start->restarts, atomic_load(&ring->serving), by_kind[KEEP_HANDLE],
		by_kind[KEEP_SESSION], pool->segment.writable ? "writable" : "read-only",
		pool->ledger.header ? "mapped" : "not mapped", start->keeper_fd,
		pool->work_bell >= 0 && pool->done_bell >= 0);
	if (write(STDERR_FILENO, line, (size_t)length) != length)
		return 1;
	atomic_store(&ring->serving, (uint32_t)start->restarts + 1);
	for (;;)
		pause();
}

static int front(const struct module_start *start, const void *given)
{
	const struct front_options *options = given;

	(void)start;
	return front_run(options) == 0 ? 0 : 1;
}

static int device(const char *backend, const char *name, struct module_device *answer)
{
	const struct gpu_ops *ops = gpu_backend(backend);
	struct gpu_device_info info;
	struct gpu *gpu;

	memset(answer, 0, sizeof(*answer));
	answer->index = gpu_device_find(ops, name);
	answer->error = ops->device_info(answer->index, &info);
	if (!answer->error)
		answer->error = gpu_open(ops, answer->index, GPU_OPEN_OWNER, &gpu);
	if (answer->error)
		return 1;
	answer->memory_bytes = info.memory_bytes;
	snprintf(answer->uuid, sizeof(answer->uuid), "%s", info.uuid);
	answer->error = gpu_granularity(gpu, &answer->granularity);
	gpu_close(gpu);
	return 0;
}

EXPORTED const struct module gpool_module = {
	.size = sizeof(struct module),
	.abi = MODULE_ABI,
	.layout_version = POOL_LAYOUT_VERSION,
	.version = GPOOL_VERSION,
	.agent = agent_run,
	.mover = mover,
	.front = front,
	.device = device,
	.layout = &layout_own,
};
