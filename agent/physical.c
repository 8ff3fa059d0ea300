#include "agent/physical.h"

#include "agent/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a second export lies where an arena says it must. */
static bool same_arena(const struct gpu_export *first, const struct gpu_export *other, uint64_t distance)
{
	struct stat a, b;

	return fstat(first->fd, &a) == 0 && fstat(other->fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
		other->offset == first->offset + distance && other->length == first->length;
}

static int export_all(struct physical *physical)
{
	int error = gpu_export(physical->gpu, physical->handles[0], &physical->exports[0]);

	if (error)
		return error;
	physical->exported = 1;
	for (uint32_t i = 1; i < physical->handle_count; i++) {
		error = gpu_export(physical->gpu, physical->handles[i], &physical->exports[i]);
		if (error)
			return error;
		if (i == 1)
			physical->arena = same_arena(&physical->exports[0], &physical->exports[1], physical->handle_bytes);
		if (physical->arena) {
			bool same = same_arena(&physical->exports[0], &physical->exports[i], i * physical->handle_bytes);

			close(physical->exports[i].fd);
			if (!same)
				return -EIO;
			/* One look at each end is enough. */
			if (i == 1 && physical->handle_count > 2)
				i = physical->handle_count - 2;
			continue;
		}
		physical->exported = i + 1;
	}
	if (physical->handle_count == 1)
		physical->arena = true;
	return 0;
}

int physical_create(struct physical *physical, const struct gpu_ops *ops, int device, uint64_t handle_bytes, uint32_t handle_count,
	const char *pool)
{
	int error;

	memset(physical, 0, sizeof(*physical));
	physical->handle_bytes = handle_bytes;
	physical->handle_count = handle_count;
	physical->handles = calloc(handle_count, sizeof(*physical->handles));
	physical->exports = calloc(handle_count, sizeof(*physical->exports));
	if (!physical->handles || !physical->exports) {
		error = -ENOMEM;
		goto destroy;
	}
	error = gpu_open(ops, device, GPU_OPEN_OWNER, &physical->gpu);
	if (error) {
		log_error("cannot open device %d of back end '%s' for pool '%s': %s", device, ops->name, pool, gpu_error_text());
		goto destroy;
	}
	for (uint32_t i = 0; i < handle_count; i++) {
		error = gpu_create(physical->gpu, handle_bytes, &physical->handles[i]);
		if (error) {
			log_error("cannot create handle %u of %u (%llu bytes each) for pool '%s': %s; choose a smaller size", i, handle_count,
				(unsigned long long)handle_bytes, pool, gpu_error_text());
			goto destroy;
		}
		physical->created = i + 1;
		if ((i + 1) % 8192 == 0)
			log_info("pool '%s': %u of %u handles created", pool, i + 1, handle_count);
	}
	error = export_all(physical);
	if (error) {
		log_error("cannot export the memory of pool '%s': %s; raise RLIMIT_NOFILE or choose a larger handle_size", pool,
			gpu_error_text());
		goto destroy;
	}
	return 0;
destroy:
	physical_destroy(physical);
	return error;
}

void physical_destroy(struct physical *physical)
{
	for (uint32_t i = 0; i < physical->exported; i++)
		close(physical->exports[i].fd);
	for (uint32_t i = 0; i < physical->created; i++)
		gpu_release(physical->gpu, physical->handles[i]);
	if (physical->gpu)
		gpu_close(physical->gpu);
	free(physical->handles);
	free(physical->exports);
	memset(physical, 0, sizeof(*physical));
}
