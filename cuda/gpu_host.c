/*
 * gpu_host.c - the back end without a GPU: the same rules, implemented with memfd, mmap and threads.
 *
 * It implements the whole interface, for tests and development, and is never selected as a silent fallback. Environment
 * variables set its properties. They are read by gpu_open() and when devices are listed:
 *
 *   GPOOL_HOST_DEVICES      number of devices, 1..64; default 8
 *   GPOOL_HOST_GRANULARITY  smallest handle, a power of two from the system's page to 1GiB; default 512KiB, the
 *                           smallest page of a pool (with 2MiB, as on A100 and H100, several smaller pages share a
 *                           handle)
 *   GPOOL_HOST_MEMORY       bytes of each device; default: the machine's physical memory
 *   GPOOL_HOST_LACKS        capabilities that the devices lack: "events" between processes; "zeros" in fresh memory,
 *                           which then contains other bytes; or both, separated by a comma
 *   GPOOL_HOST_FAULTS       "sticky": a fault of queued work is a device failure (gpu.h); default: the next sync
 *                           reports it, and the stream continues
 *
 * Sizes have a suffix: K, M, G or T, each with or without "iB" (all powers of two).
 */
#include "cuda/gpu_host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_DEVICES_DEFAULT = 8 };
static const uint64_t granularity_default = 512u << 10;
static const uint64_t granularity_max = 1u << 30;

/*
 * Bytes that this process has allocated on each device. A GPU counts the memory of all processes; this count is exact
 * only if one process owns the memory.
 */
static _Atomic uint64_t device_used[HOST_DEVICES_MAX];

/* suffix_shift() - return the binary logarithm of a size's suffix, or -1. */
static int suffix_shift(const char *suffix)
{
	static const char units[] = "KMGT";
	const char *unit;

	if (!*suffix)
		return 0;
	unit = strchr(units, *suffix);
	if (!unit || (suffix[1] && strcmp(suffix + 1, "iB") != 0))
		return -1;
	return (int)(unit - units + 1) * 10;
}

/* setting_bytes() - return the size in environment variable `name`, or `otherwise` if the variable is not set. */
static int setting_bytes(const char *name, uint64_t otherwise, uint64_t *bytes)
{
	const char *text = getenv(name);
	unsigned long long number;
	char *end;
	int shift;

	if (!text) {
		*bytes = otherwise;
		return 0;
	}
	errno = 0;
	number = strtoull(text, &end, 10);
	shift = suffix_shift(end);
	if (*text < '0' || *text > '9' || errno || shift < 0 || number > (UINT64_MAX >> shift))
		return gpu_fail(-EINVAL, "%s is '%s', which is not a size such as 64KiB, 2MiB or 16GiB", name, text);
	*bytes = (uint64_t)number << shift;
	return 0;
}

static int host_device_count(void)
{
	uint64_t count;
	int rc = setting_bytes("GPOOL_HOST_DEVICES", HOST_DEVICES_DEFAULT, &count);

	if (rc < 0)
		return rc;
	if (count < 1 || count > HOST_DEVICES_MAX)
		return gpu_fail(-EINVAL, "GPOOL_HOST_DEVICES is %llu; it must be 1 to %d", (unsigned long long)count,
			HOST_DEVICES_MAX);
	return (int)count;
}

static int device_memory_bytes(uint64_t *bytes)
{
	uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	return setting_bytes("GPOOL_HOST_MEMORY", physical, bytes);
}

/* Return the capabilities of a device, without those that GPOOL_HOST_LACKS removes. */
static int device_capabilities(uint32_t *capabilities)
{
	static const struct {
		const char *name;
		uint32_t capability;
	} words[] = {{"events", GPU_CAP_IPC_EVENT}, {"zeros", GPU_CAP_ZEROED}};
	uint32_t has = GPU_CAP_IPC_EVENT | GPU_CAP_TIMELINE | GPU_CAP_EXPORT_OFFSET | GPU_CAP_HOST_POINTER |
		GPU_CAP_ZEROED | GPU_CAP_KERNELS;
	const char *text = getenv("GPOOL_HOST_LACKS");

	while (text && *text) {
		size_t length = strcspn(text, ","), i = 0;

		while (i < sizeof(words) / sizeof(*words) &&
			(strlen(words[i].name) != length || strncmp(words[i].name, text, length)))
			i++;
		if (i == sizeof(words) / sizeof(*words))
			return gpu_fail(-EINVAL,
				"GPOOL_HOST_LACKS contains '%.*s'; the permitted words are events and zeros",
				(int)length, text);
		has &= ~words[i].capability;
		text += length + (text[length] == ',');
	}
	*capabilities = has;
	return 0;
}

static int device_faults(bool *sticky)
{
	const char *text = getenv("GPOOL_HOST_FAULTS");

	*sticky = text && *text;
	return *sticky && strcmp(text, "sticky")
		? gpu_fail(-EINVAL, "GPOOL_HOST_FAULTS is '%s'; the permitted word is sticky", text)
		: 0;
}

static int device_check(int index)
{
	int count = host_device_count();

	if (count < 0)
		return count;
	if (index < 0 || index >= count)
		return gpu_fail(-ENODEV, "no host device %d; the number of host devices is %d", index, count);
	return 0;
}

static int host_device_info(int index, struct gpu_device_info *info)
{
	struct gpu_device_info filled = {.memory_bytes = 0};
	int rc = device_check(index);

	if (rc == 0)
		rc = device_memory_bytes(&filled.memory_bytes);
	if (rc == 0)
		rc = device_capabilities(&filled.capabilities);
	if (rc < 0)
		return rc;
	snprintf(filled.uuid, sizeof(filled.uuid), "HOST-00000000-0000-0000-0000-%012x", (unsigned)index);
	snprintf(filled.name, sizeof(filled.name), "gpool host device %d", index);
	*info = filled;
	return 0;
}

/* granularity_setting() - return the configured granularity, if mmap supports it. */
static int granularity_setting(uint64_t page, uint64_t *granularity)
{
	uint64_t bytes;
	int rc = setting_bytes("GPOOL_HOST_GRANULARITY", granularity_default, &bytes);

	if (rc < 0)
		return rc;
	if (bytes < page || bytes > granularity_max || (bytes & (bytes - 1)))
		return gpu_fail(-EINVAL,
			"GPOOL_HOST_GRANULARITY is %llu bytes; it must be a power of two from %llu to %llu",
			(unsigned long long)bytes, (unsigned long long)page, (unsigned long long)granularity_max);
	*granularity = bytes;
	return 0;
}

static int progress_init(struct gpu_host *host)
{
	pthread_condattr_t attributes;
	int error = pthread_condattr_init(&attributes);

	if (error)
		return gpu_fail(-error, "cannot create a condition variable: %s", strerror(error));
	/* With CLOCK_MONOTONIC, a change of the system time does not affect waits. */
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	error = pthread_cond_init(&host->progress, &attributes);
	pthread_condattr_destroy(&attributes);
	return error ? gpu_fail(-error, "cannot create a condition variable: %s", strerror(error)) : 0;
}

static int host_open(int index, uint32_t flags, struct gpu **gpu)
{
	struct gpu_host *host;
	int rc = device_check(index);

	if (rc < 0)
		return rc;
	host = calloc(1, sizeof(*host));
	if (!host)
		return gpu_fail(-ENOMEM, "cannot open host device %d: out of memory", index);
	host->index = index;
	/* GPU_OPEN_OWNER has no effect here; gpu.c restricts the calls */
	host->separate = flags & GPU_OPEN_SEPARATE;
	host->page = (uint64_t)sysconf(_SC_PAGESIZE);
	rc = granularity_setting(host->page, &host->granularity);
	if (rc == 0)
		rc = device_memory_bytes(&host->memory_bytes);
	if (rc == 0)
		rc = device_capabilities(&host->capabilities);
	if (rc == 0)
		rc = device_faults(&host->sticky);
	if (rc == 0)
		rc = progress_init(host);
	if (rc < 0) {
		free(host);
		return rc;
	}
	pthread_mutex_init(&host->lock, NULL);
	pthread_mutex_init(&host->progress_lock, NULL);
	*gpu = &host->gpu;
	return 0;
}

static void host_close(struct gpu *gpu)
{
	struct gpu_host *host = host_of(gpu);

	/* End the streams first, because their threads use everything else. */
	host_stream_fini(host);
	host_event_fini(host);
	host_range_fini(host);
	host_memory_fini(host);
	host_memory_discharge(host, host->charged_bytes);
	pthread_cond_destroy(&host->progress);
	pthread_mutex_destroy(&host->progress_lock);
	pthread_mutex_destroy(&host->lock);
	free(host);
}

static uint32_t host_capabilities(struct gpu *gpu)
{
	return host_of(gpu)->capabilities;
}

/* All processes can access all host memory, so nothing is stored. */
static int host_peers_set(struct gpu *gpu, const int *devices, uint32_t count)
{
	int rc = 0;

	(void)gpu;
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = device_check(devices[i]);
	return rc;
}

static int host_granularity(struct gpu *gpu, uint64_t *bytes)
{
	*bytes = host_of(gpu)->granularity;
	return 0;
}

static int host_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes)
{
	const struct gpu_host *host = host_of(gpu);
	uint64_t used = atomic_load_explicit(&device_used[host->index], memory_order_relaxed);

	*total_bytes = host->memory_bytes;
	*free_bytes = used < host->memory_bytes ? host->memory_bytes - used : 0;
	return 0;
}

/* host_memory_charge() - account for bytes of the device's memory. The caller holds host->lock. */
int host_memory_charge(struct gpu_host *host, uint64_t bytes)
{
	_Atomic uint64_t *used = &device_used[host->index];
	uint64_t total = host->memory_bytes, before = atomic_load_explicit(used, memory_order_relaxed);

	do {
		if (before > total || bytes > total - before)
			return gpu_fail(-ENOMEM,
				"cannot create %llu bytes on host device %d: %llu of %llu bytes are in use",
				(unsigned long long)bytes, host->index, (unsigned long long)before,
				(unsigned long long)total);
	} while (!atomic_compare_exchange_weak_explicit(
		used, &before, before + bytes, memory_order_relaxed, memory_order_relaxed));
	host->charged_bytes += bytes;
	return 0;
}

void host_memory_discharge(struct gpu_host *host, uint64_t bytes)
{
	atomic_fetch_sub_explicit(&device_used[host->index], bytes, memory_order_relaxed);
	host->charged_bytes -= bytes;
}

/* This back end does not wrap the allocator of a driver. */
static int no_pool(void)
{
	return gpu_fail(
		-EOPNOTSUPP, "the back end host does not support stream-ordered memory pools, which require a GPU");
}

static int host_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va)
{
	(void)gpu, (void)bytes, (void)stream, (void)va;
	return no_pool();
}

static int host_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream)
{
	(void)gpu, (void)va, (void)stream;
	return no_pool();
}

static int host_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes)
{
	(void)gpu, (void)held_bytes, (void)used_bytes;
	return no_pool();
}

const struct gpu_ops gpu_host_ops = {
	.name = "host",
	.device_count = host_device_count,
	.device_info = host_device_info,
	.open = host_open,
	.close = host_close,
	.capabilities = host_capabilities,
	.peers_set = host_peers_set,
	.granularity = host_granularity,
	.memory_info = host_memory_info,
	.create = host_create,
	.release = host_release,
	.export = host_export,
	.import = host_import,
	.reserve = host_reserve,
	.unreserve = host_unreserve,
	.map = host_map,
	.unmap = host_unmap,
	.access = host_access,
	.stream_create = host_stream_create,
	.stream_adopt = host_stream_adopt,
	.stream_destroy = host_stream_destroy,
	.stream_sync = host_stream_sync,
	.stream_query = host_stream_query,
	.copy = host_copy,
	.fill = host_fill,
	.launch = host_launch,
	.event_create = host_event_create,
	.event_destroy = host_event_destroy,
	.event_record = host_event_record,
	.event_query = host_event_query,
	.event_wait = host_event_wait,
	.event_export = host_event_export,
	.event_import = host_event_import,
	.host_register = host_register,
	.host_unregister = host_unregister,
	.host_address = host_address,
	.timeline_write = host_timeline_write,
	.timeline_wait = host_timeline_wait,
	.pool_alloc = host_pool_alloc,
	.pool_free = host_pool_free,
	.pool_info = host_pool_info,
};
