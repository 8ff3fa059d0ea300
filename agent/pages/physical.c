#include "agent/pages/physical.h"

#include "agent/pages/huge_pages.h"
#include "agent/base/log.h"
#include "shm/plural.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Return true if the second export is in the same file, at the expected offset. */
static bool same_arena(const struct gpu_export *first, const struct gpu_export *other, uint64_t distance)
{
	struct stat a, b;

	return fstat(first->fd, &a) == 0 && fstat(other->fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
		other->offset == first->offset + distance && other->length == first->length;
}

/* Release a handle after its export, which keeps the memory. Otherwise a handle may need a second descriptor. */
static void handle_release(struct physical *physical, uint32_t handle)
{
	gpu_release(physical->gpu, physical->handles[handle]);
	physical->handles[handle] = 0;
}

static int handle_export(struct physical *physical, uint32_t handle)
{
	int error = gpu_export(physical->gpu, physical->handles[handle], &physical->exports[handle]);

	if (error)
		return error;
	handle_release(physical, handle);
	physical->exported++;
	return 0;
}

/* Export handles that may be in one file. Such a file can only grow before its first export. */
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
		if (i == 1) {
			physical->arena =
				same_arena(&physical->exports[0], &physical->exports[1], physical->handle_bytes);
			if (!physical->arena)
				handle_release(physical, 0);
		}
		if (physical->arena) {
			bool same =
				same_arena(&physical->exports[0], &physical->exports[i], i * physical->handle_bytes);

			close(physical->exports[i].fd);
			if (!same)
				return -EIO;
			/* It is sufficient to compare the second and the last handle with the first one. */
			if (i == 1 && physical->handle_count > 2)
				i = physical->handle_count - 2;
			continue;
		}
		physical->exported = i + 1;
		handle_release(physical, i);
	}
	if (physical->handle_count == 1)
		physical->arena = true;
	return 0;
}

static int handle_create(struct physical *physical, uint32_t handle, const char *pool)
{
	int error = gpu_create(physical->gpu, physical->handle_bytes, &physical->handles[handle]);

	if (error)
		log_error("cannot create handle %u of %u (%llu bytes each) for pool '%s': %s; choose a smaller size",
			handle, physical->handle_count, (unsigned long long)physical->handle_bytes, pool,
			gpu_error_text());
	return error;
}

static int physical_begin(struct physical *physical, const struct physical_plan *plan)
{
	memset(physical, 0, sizeof(*physical));
	physical->handle_bytes = plan->handle_bytes;
	physical->handle_count = plan->handle_count;
	physical->handles = calloc(plan->handle_count, sizeof(*physical->handles));
	physical->exports = calloc(plan->handle_count, sizeof(*physical->exports));
	return physical->handles && physical->exports ? 0 : -ENOMEM;
}

static int device_open(struct physical *physical, const struct physical_plan *plan)
{
	return gpu_open(
		plan->ops, plan->device, GPU_OPEN_OWNER | (plan->separate ? GPU_OPEN_SEPARATE : 0), &physical->gpu);
}

int physical_create(struct physical *physical, const struct physical_plan *plan)
{
	int error;

	error = physical_begin(physical, plan);
	if (error)
		goto destroy;
	error = device_open(physical, plan);
	if (error) {
		log_error("cannot open device %d of back end '%s' for pool '%s': %s", plan->device, plan->ops->name,
			plan->pool, gpu_error_text());
		goto destroy;
	}
	for (uint32_t i = 0; i < plan->handle_count; i++) {
		error = handle_create(physical, i, plan->pool);
		if (error)
			goto destroy;
		physical->created = i + 1;
		error = plan->separate ? handle_export(physical, i) : 0;
		if (error)
			goto complain;
		if ((i + 1) % 8192 == 0)
			log_info("pool '%s': %u of %u handle%s created", plan->pool, i + 1, plan->handle_count,
				plural(plan->handle_count));
	}
	error = plan->separate ? 0 : export_all(physical);
	if (error)
		goto complain;
	if (plan->huge)
		error = huge_pages_make(physical, plan);
	if (error)
		goto destroy;
	return 0;
complain:
	log_error(
		"cannot export the memory of pool '%s', which needs %u descriptor%s: %s; raise RLIMIT_NOFILE or choose "
		"a larger handle_size",
		plan->pool, physical->arena ? 1 : plan->handle_count, plural(physical->arena ? 1 : plan->handle_count),
		gpu_error_text());
destroy:
	physical_destroy(physical);
	return error;
}

/* Set physical->arena if one export contains all handles, because its file is as long as all of them together. */
static int arena_find(struct physical *physical, const struct held *first)
{
	uint64_t end = first->value + physical->handle_count * physical->handle_bytes;
	struct stat stat;

	/* If this is unknown, the other handles must not be created again, because processes have mapped them. */
	if (fstat(first->fds[0], &stat))
		return -errno;
	physical->arena = S_ISREG(stat.st_mode) && (uint64_t)stat.st_size >= end;
	return 0;
}

/*
 * Warn about a memfd of an older gpoold, which cannot be sealed against growth (F_SEAL_SEAL). It is used nevertheless,
 * so that its content is not lost. An export of a driver is not a memfd and has no seals.
 */
static void warn_of_unsealed(const struct physical *physical, const char *pool)
{
	for (uint32_t i = 0; i < physical->handle_count; i++) {
		int seals = physical->exports[i].length ? fcntl(physical->exports[i].fd, F_GET_SEALS) : -1;

		if (seals < 0 || seals & F_SEAL_GROW)
			continue;
		log_warning("pool '%s': the memory was created by an older gpoold and is not sealed, so workers can "
			    "allocate host memory without limit; restart gpoold once with keep_over_restart = \"no\"",
			pool);
		return;
	}
}

static int adopt_all(struct physical *physical, uint32_t pool_index, const struct held *held, uint32_t held_count)
{
	for (uint32_t i = 0; i < held_count; i++) {
		const struct held *item = &held[i];
		int error;

		if (item->kind != KEEP_HANDLE || item->pool != pool_index)
			continue;
		if (item->id >= physical->handle_count || item->fd_count != 1 || item->value2 != physical->handle_bytes)
			return -EBADMSG;
		physical->exports[item->id] = (struct gpu_export){item->fds[0], item->value, item->value2};
		physical->exported++;
		error = item->id == 0 ? arena_find(physical, item) : 0;
		if (error)
			return error;
	}
	return physical->arena && physical->exported != 1 ? -EBADMSG : 0;
}

/* Create the handles that are missing in exports[], where their length is 0. */
static int adopt_complete(struct physical *physical, const struct physical_plan *plan)
{
	uint32_t missing = physical->handle_count - physical->exported;
	int error = device_open(physical, plan);

	if (error)
		return error;
	log_warning("pool '%s': %u of %u handle%s %s missing; creating them", plan->pool, missing,
		physical->handle_count, plural(physical->handle_count), be(physical->handle_count));
	for (uint32_t i = 0; i < physical->handle_count && !error; i++) {
		if (physical->exports[i].length)
			continue;
		error = handle_create(physical, i, plan->pool);
		physical->created = i + 1;
		if (!error)
			error = handle_export(physical, i);
	}
	return error;
}

int physical_adopt(struct physical *physical, const struct physical_plan *plan, uint32_t pool_index,
	const struct held *held, uint32_t held_count)
{
	int error = physical_begin(physical, plan);

	if (!error)
		error = adopt_all(physical, pool_index, held, held_count);
	if (!error && plan->separate && physical->arena && physical->handle_count > 1)
		error = -EACCES;
	if (!error && plan->separate)
		physical->arena = false;
	if (!error && !physical->arena && physical->exported < plan->handle_count)
		error = adopt_complete(physical, plan);
	if (!error) {
		warn_of_unsealed(physical, plan->pool);
		return 0;
	}
	log_error("cannot take over the memory of pool '%s': %s%s", plan->pool, strerror(-error),
		error == -EACCES ? "; it was created for one trust domain, and processes may have mapped all of it"
				 : "");
	/* The keeper still holds the descriptors, for another attempt. */
	physical->exported = 0;
	physical_destroy(physical);
	return error;
}

void physical_destroy(struct physical *physical)
{
	for (uint32_t i = 0; i < physical->exported; i++)
		close(physical->exports[i].fd);
	for (uint32_t i = 0; i < physical->created; i++)
		if (physical->handles[i])
			gpu_release(physical->gpu, physical->handles[i]);
	if (physical->gpu)
		gpu_close(physical->gpu);
	free(physical->handles);
	free(physical->exports);
	memset(physical, 0, sizeof(*physical));
}
