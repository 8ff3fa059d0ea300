/* emulator_ops.c - the emulation as a back end. */
#include "tests/emulated/emulator.h"

static int emulated_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream)
{
	int rc = gpu_host_ops.stream_sync(gpu, stream);

	if (rc == 0)
		emulator_run(kernel, shape, args);
	return rc;
}

const struct gpu_ops *emulator_ops(void)
{
	static struct gpu_ops ops;

	ops = gpu_host_ops;
	ops.launch = emulated_launch;
	return &ops;
}
