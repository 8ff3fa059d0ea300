/* torch.c - see gpool_torch.h. It uses only gpool.h, as other programs do. */
#include "client/torch/gpool_torch.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	DEVICES_MAX = 16, /* maximum number of pools that one process may attach */
	STREAMS_MAX = 256,
	NAME_MAX_BYTES = 64,
	ERRORS = 256, /* errno values below this are counted separately */
};

/* The driver's handles of the default stream, used for NULL, and of the calling thread's default stream. */
#define LEGACY_STREAM ((void *)1)
#define PER_THREAD_STREAM ((void *)2)

struct stream {
	void *native;
	uint32_t number;
};

struct device {
	pthread_mutex_t lock;
	struct gpool *_Atomic pool;
	int error; /* result of the attach, which is not repeated */
	/*
	 * Entries never change, and the count is increased only after a new entry is written, so searches need no lock.
	 */
	struct stream streams[STREAMS_MAX];
	_Atomic uint32_t stream_count;
	_Atomic bool told[ERRORS];
};

/* The number of the calling thread's default stream on each device; 0: not opened. */
static _Thread_local uint32_t thread_streams[DEVICES_MAX];

static struct device devices[DEVICES_MAX] = {[0 ... DEVICES_MAX - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* Report each kind of failure once, so that repeated failures do not fill a log. */
static void __attribute__((format(printf, 3, 4))) tell(struct device *device, int error, const char *format, ...)
{
	char text[512];
	va_list arguments;

	if (atomic_exchange(&device->told[-error % ERRORS], true))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "gpool: %s\n", text);
}

/* ---- pools ---- */

/*
 * Copy the name with this index in $GPOOL_TORCH_POOLS. Return: 0; -ENXIO: it has fewer names; -ENAMETOOLONG. An empty
 * name means the first pool.
 */
static int pool_name(int index, char name[NAME_MAX_BYTES])
{
	const char *names = getenv("GPOOL_TORCH_POOLS");
	size_t length;

	*name = '\0';
	if (!names || !*names)
		return index ? -ENXIO : 0;
	for (; index > 0; index--) {
		names = strchr(names, ',');
		if (!names)
			return -ENXIO;
		names++;
	}
	length = strcspn(names, ",");
	if (length >= NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	memcpy(name, names, length);
	name[length] = '\0';
	return length ? 0 : -ENXIO;
}

static void log_errors(void *context, int level, const char *text)
{
	(void)context;
	if (level == 0)
		fprintf(stderr, "gpool: %s\n", text);
}

static int pool_attach(struct device *device, int index)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	char name[NAME_MAX_BYTES];
	struct gpool *pool;
	int error = pool_name(index, name);

	if (error) {
		tell(device, error,
			"no pool for device %d; list a pool for each device in GPOOL_TORCH_POOLS, such as "
			"\"gpu0,gpu1\"",
			index);
		return error;
	}
	options.pool = *name ? name : NULL;
	options.log = log_errors;
	error = gpool_open(&options, &pool);
	if (error) {
		tell(device, error,
			"cannot attach to pool '%s' for device %d: %s; check that gpoold is running, and GPOOL_DIR",
			*name ? name : "(the first)", index, gpool_last_error(error));
		return error;
	}
	atomic_store(&device->pool, pool);
	return 0;
}

static struct device *device_of(int index)
{
	struct device *device;

	if (index < 0 || index >= DEVICES_MAX) {
		tell(&devices[0], -ENODEV, "device %d cannot have a pool; only devices 0 to %d can", index,
			DEVICES_MAX - 1);
		return NULL;
	}
	device = &devices[index];
	if (atomic_load(&device->pool))
		return device;
	pthread_mutex_lock(&device->lock);
	if (!atomic_load(&device->pool) && !device->error)
		device->error = pool_attach(device, index);
	pthread_mutex_unlock(&device->lock);
	return device->error ? NULL : device;
}

struct gpool *gpool_torch_pool(int index)
{
	struct device *device = device_of(index);

	return device ? atomic_load(&device->pool) : NULL;
}

/* ---- streams ---- */

static bool stream_known(struct device *device, void *native, uint32_t *number)
{
	uint32_t count = atomic_load_explicit(&device->stream_count, memory_order_acquire);

	for (uint32_t i = 0; i < count; i++)
		if (device->streams[i].native == native) {
			*number = device->streams[i].number;
			return true;
		}
	return false;
}

/* Open a stream number for a native stream. The caller holds the lock. */
static int stream_add(struct device *device, void *native, uint32_t *number)
{
	uint32_t count = atomic_load(&device->stream_count);
	int error = count < STREAMS_MAX
		? gpool_stream_open(atomic_load(&device->pool), native ? native : LEGACY_STREAM, 0, number)
		: -EUSERS;

	/* A device without a driver has no default stream. A call without a stream then queues no work. */
	if (error == -EINVAL && !native) {
		*number = 0;
		error = 0;
	}
	if (error)
		return error;
	device->streams[count] = (struct stream){native, *number};
	atomic_store_explicit(&device->stream_count, count + 1, memory_order_release);
	return 0;
}

static int stream_of(struct device *device, void *native, uint32_t *number)
{
	uint32_t *own = &thread_streams[device - devices];
	int error = 0;

	if (native == PER_THREAD_STREAM) {
		if (!*own)
			error = gpool_stream_open(atomic_load(&device->pool), native, 0, own);
		*number = *own;
		goto end;
	}
	if (stream_known(device, native, number))
		return 0;
	pthread_mutex_lock(&device->lock);
	if (!stream_known(device, native, number))
		error = stream_add(device, native, number);
	pthread_mutex_unlock(&device->lock);
end:
	if (error)
		tell(device, error, "cannot use stream %p: %s", native, gpool_last_error(error));
	return error;
}

/* ---- the allocator ---- */

static void tell_shortage(struct device *device, struct gpool *pool, ssize_t size, int index)
{
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	char holders[320] = "";
	size_t at = 0;

	gpool_oom_info(pool, &shortage);
	for (uint32_t i = 0; i < shortage.holder_count && at < sizeof(holders); i++) {
		const struct gpool_holder *holder = &shortage.holders[i];

		at += (size_t)snprintf(holders + at, sizeof(holders) - at,
			"%s session %u '%s' %u needed, %u offered, %u idle", i ? ";" : ", leased:", holder->session,
			holder->name, holder->needed_pages, holder->offered_pages, holder->idle_pages);
	}
	tell(device, -ENOSPC,
		"cannot allocate %zd bytes on device %d: %u page%s needed, %u free, %u pinned%s; see 'poolctl pins' "
		"and 'poolctl regions'",
		size, index, shortage.needed, shortage.needed == 1 ? "" : "s", shortage.free, shortage.pinned, holders);
}

void *gpool_torch_malloc(ssize_t size, int index, void *native)
{
	struct device *device = device_of(index);
	struct gpool *pool;
	uint64_t address;
	uint32_t stream;
	int error;

	if (!device || size <= 0 || stream_of(device, native, &stream))
		return NULL;
	pool = atomic_load(&device->pool);
	error = gpool_malloc_async(pool, (uint64_t)size, stream, &address);
	if (!error)
		return (void *)(uintptr_t)address;
	if (error == -ENOSPC)
		tell_shortage(device, pool, size, index);
	else
		tell(device, error, "cannot allocate %zd bytes on device %d: %s", size, index, gpool_last_error(error));
	return NULL;
}

void gpool_torch_free(void *address, ssize_t size, int index, void *native)
{
	struct device *device = address ? device_of(index) : NULL;
	uint32_t stream;
	int error;

	(void)size;
	if (!device || stream_of(device, native, &stream))
		return;
	error = gpool_free_async(atomic_load(&device->pool), (uint64_t)(uintptr_t)address, stream);
	if (error)
		tell(device, error, "cannot free %p on device %d: %s", address, index, gpool_last_error(error));
}
