/*
 * module.c - the symbols that gpoold-agent.so exports; see module.h.
 */
#include "agent/base/module.h"

#include "agent/agent.h"
#include "agent/front/front.h"
#include "agent/base/layout.h"
#include "agent/mover/mover.h"
#include "cuda/gpu.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Run the front with the options that both the keeper and this module know; options unknown to the keeper are zero. */
static int front(const struct module_start *start, const void *given)
{
	struct front_options options = {0};
	uint32_t size;

	(void)start;
	memcpy(&size, given, sizeof(size));
	memcpy(&options, given, size < sizeof(options) ? size : sizeof(options));
	return front_run(&options) == 0 ? 0 : 1;
}

/* Replace the names in answer->peers by UUIDs, and check that these devices can access the memory of `gpu`. */
static int peers_find(struct gpu *gpu, struct module_device *answer)
{
	char names[sizeof(answer->peers)], *rest = NULL;
	const struct gpu_ops *ops = gpu_ops_of(gpu);
	struct gpu_device_info info;
	int devices[GPU_PEERS_MAX + 1], error = 0;
	uint32_t count = 0;
	size_t length = 0;

	memcpy(names, answer->peers, sizeof(names));
	answer->peers[0] = '\0';
	for (char *name = strtok_r(names, " ", &rest); name && count <= GPU_PEERS_MAX;
		name = strtok_r(NULL, " ", &rest)) {
		devices[count] = gpu_device_find(ops, name);
		error = devices[count] < 0 ? devices[count] : ops->device_info(devices[count], &info);
		if (error)
			return error;
		if (count++ < GPU_PEERS_MAX)
			length += (size_t)snprintf(answer->peers + length, sizeof(answer->peers) - length, "%s%s",
				length ? " " : "", info.uuid);
	}
	return gpu_peers_set(gpu, devices, count);
}

static int device(const char *backend, const char *name, struct module_device *answer)
{
	const struct gpu_ops *ops = gpu_backend(backend);
	struct gpu_device_info info;
	struct gpu *gpu = NULL;

	memset(answer, 0, offsetof(struct module_device, peers));
	answer->error = ops ? gpu_device_find(ops, name) : -EINVAL;
	if (answer->error >= 0) {
		answer->index = answer->error;
		answer->error = ops->device_info(answer->index, &info);
	}
	if (!answer->error)
		answer->error = gpu_open(ops, answer->index, GPU_OPEN_OWNER, &gpu);
	if (!answer->error) {
		answer->memory_bytes = info.memory_bytes;
		snprintf(answer->uuid, sizeof(answer->uuid), "%s", info.uuid);
		answer->error = gpu_granularity(gpu, &answer->granularity);
	}
	if (!answer->error)
		answer->error = peers_find(gpu, answer);
	snprintf(answer->text, sizeof(answer->text), "%s", gpu_error_text());
	if (gpu)
		gpu_close(gpu);
	return answer->error ? 1 : 0;
}

__attribute__((visibility("default"))) const struct module gpool_module = {
	.size = sizeof(struct module),
	.abi = MODULE_ABI,
	.layout_version = POOL_LAYOUT_VERSION,
	.version = GPOOL_VERSION,
	.agent = agent_run,
	.mover = mover_run,
	.front = front,
	.device = device,
	.layout = &layout_own,
};
