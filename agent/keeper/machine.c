#include "agent/keeper/machine.h"

#include "agent/config/config_value.h"
#include "shm/plural.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Create a file in the same way as the agent (spill_tier.c). It has no name, so nothing is left. */
static int spill_check(const struct config *config, const struct config_pool *pool, struct config_error *error)
{
	uint64_t bytes = pool->spill_file_bytes / pool->page_bytes * pool->page_bytes;
	char where[160];
	int fd, code;

	if (!pool->spill_directory[0] || !bytes)
		return 0;
	fd = open(pool->spill_directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
	if (fd >= 0) {
		code = ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
		close(fd);
		if (!code)
			return 0;
		return config_fail(error, code,
			"%s: pools.%s.spill_file: cannot create a file of %" PRIu64
			" byte%s in '%s': %s; choose a smaller spill_file, or another spill_directory",
			config_origin(config, pool->origin, where, sizeof(where)), pool->name, bytes, plural(bytes),
			pool->spill_directory, strerror(-code));
	}
	code = -errno;
	return config_fail(error, code,
		"%s: pools.%s.spill_directory: cannot create a file in '%s': %s; create a directory there that this "
		"user can write to, choose another one, or remove the key",
		config_origin(config, pool->origin, where, sizeof(where)), pool->name, pool->spill_directory,
		code == -EOPNOTSUPP ? "the file system does not support unnamed files (O_TMPFILE)" : strerror(-code));
}

/*
 * Return the bytes that the back end host may allocate on each device (gpu_host.c), or UINT64_MAX if the environment
 * has no valid size, which the back end reports. Memory of a pool is allocated when it is used, so neither free memory
 * nor a container's limit is a reason to refuse the start; poolctl doctor shows them.
 */
static uint64_t host_memory_bytes(void)
{
	static const char units[] = "KMGT";
	const char *text = getenv("GPOOL_HOST_MEMORY"), *unit;
	unsigned long long bytes;
	char *end;

	if (!text)
		return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	bytes = strtoull(text, &end, 10);
	if (!*end)
		return bytes;
	unit = strchr(units, *end);
	if (!unit || (end[1] && strcmp(end + 1, "iB") != 0) ||
		__builtin_mul_overflow(bytes, UINT64_C(1) << 10 * (unit - units + 1), &bytes))
		return UINT64_MAX;
	return bytes;
}

static int memory_check(const struct config *config, uint32_t index, uint64_t memory_bytes, struct config_error *error)
{
	const struct config_device device = {.memory_bytes = memory_bytes};
	const struct config_pool *pool = &config->pools[index];
	struct config_measure measure;
	uint64_t bytes = 0;
	char where[160];

	if (strcmp(pool->backend, "host") || memory_bytes == UINT64_MAX)
		return 0;
	for (uint32_t i = 0; i <= index; i++) {
		const struct config_pool *other = &config->pools[i];
		int rc = strcmp(other->backend, "host") || strcmp(other->device, pool->device)
			? -ENODEV
			: config_pool_measure(config, other, &device, &measure, error);

		if (rc && rc != -ENODEV)
			return rc;
		bytes += rc ? 0 : measure.pages * other->page_bytes;
	}
	if (bytes <= memory_bytes)
		return 0;
	return config_fail(error, -ENOMEM,
		"%s: pools.%s.size: the pools up to this one on device '%s' of the back end host have %" PRIu64
		" MiB, but the device has %" PRIu64
		" MiB, the memory of the machine unless GPOOL_HOST_MEMORY is set; choose a smaller size",
		config_origin(config, pool->origin, where, sizeof(where)), pool->name, pool->device, bytes >> 20,
		memory_bytes >> 20);
}

int machine_check(const struct config *config, struct config_error *error)
{
	uint64_t memory_bytes = host_memory_bytes();
	int rc = 0;

	for (uint32_t i = 0; !rc && i < config->pool_count; i++) {
		rc = spill_check(config, &config->pools[i], error);
		if (!rc)
			rc = memory_check(config, i, memory_bytes, error);
	}
	return rc;
}
