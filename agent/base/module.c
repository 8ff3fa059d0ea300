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

static int device(const char *backend, const char *name, struct module_device *answer)
{
	const struct gpu_ops *ops = gpu_backend(backend);
	struct gpu_device_info info;
	struct gpu *gpu = NULL;

	memset(answer, 0, sizeof(*answer));
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
