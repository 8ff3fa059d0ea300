#include "agent/keeper/pools.h"

#include "agent/config/config_value.h"
#include "agent/base/log.h"
#include "agent/mover/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the device is queried in a child, since the keeper never calls a driver ---- */

/*
 * Wait for the result of the child or a stop signal, since a driver may hang. The signal remains pending. Return 0,
 * -EINTR after a stop signal, or another error.
 */
static int answer_await(int answer, int signals)
{
	bool signaled = false;

	for (;;) {
		struct pollfd look[] = {{answer, POLLIN, 0}, {signals, POLLIN, 0}};
		sigset_t pending;

		/* A pending SIGCHLD, which remains pending, would end each poll at once. */
		if (poll(look, signaled ? 1 : 2, signaled ? 10 : -1) < 0 && errno != EINTR)
			return -errno;
		if (look[0].revents)
			return 0;
		if (sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT)))
			return -EINTR;
		signaled = true;
	}
}

static int device_ask(const struct config_pool *config, const struct loader *loader, const struct child_shed *shed,
	struct module_device *device)
{
	ssize_t length = 0;
	int ends[2], error;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	child = child_fork(shed, "gpoold-device");
	if (child == 0) {
		const struct module *module = loader_load(loader);

		if (!module)
			_exit(1);
		module->device(config->backend, config->device, device);
		_exit(write(ends[1], device, sizeof(*device)) == (ssize_t)sizeof(*device) ? 0 : 1);
	}
	close(ends[1]);
	error = child < 0 ? child : answer_await(ends[0], shed->signals);
	if (!error)
		length = read(ends[0], device, sizeof(*device));
	close(ends[0]);
	if (child > 0) {
		if (error)
			kill(child, SIGKILL);
		child_wait(child, NULL, 0);
	}
	if (error)
		return error;
	if (length != (ssize_t)sizeof(*device))
		return -EIO;
	device->uuid[sizeof(device->uuid) - 1] = '\0';
	device->text[sizeof(device->text) - 1] = '\0';
	device->peers[sizeof(device->peers) - 1] = '\0';
	return device->error;
}

static int geometry_of(const struct config *config, uint32_t index, const struct module_device *device,
	struct pool_geometry *geometry, struct config_error *why)
{
	const struct config_device known = {.granularity = device->granularity, .memory_bytes = device->memory_bytes};
	const struct config_pool *pool = &config->pools[index];
	struct config_measure measure;
	int error = config_pool_measure(config, pool, &known, &measure, why);

	if (!error && !measure.pages)
		error = config_fail(why, -ERANGE,
			"pool '%s': the device does not report the size of its memory; configure the size of the pool "
			"in bytes",
			pool->name);
	if (error)
		return error;
	*geometry = (struct pool_geometry){
		.name = pool->name,
		.backend = pool->backend,
		.device = device->uuid,
		.peers = device->peers,
		.index = index,
		.page_bytes = pool->page_bytes,
		.page_count = measure.pages,
		.pages_per_handle = (uint32_t)(measure.handle_bytes / pool->page_bytes),
		.reserved_pages = measure.reserved,
		.objects = pool->objects,
		.flight_records = pool->flight_records,
	};
	return 0;
}

int pool_measure(const struct config *config, uint32_t index, const struct loader *loader,
	const struct child_shed *shed, struct module_device *device, struct pool_geometry *geometry,
	struct config_error *why)
{
	const struct config_pool *pool = &config->pools[index];
	int error;

	memset(device, 0, sizeof(*device));
	if (strcmp(pool->peers, "none"))
		snprintf(device->peers, sizeof(device->peers), "%s", pool->peers);
	error = device_ask(pool, loader, shed, device);
	if (error == -EINTR)
		return error;
	if (error)
		return config_fail(why, error,
			"pool '%s': cannot use device '%s' of back end '%s' with the peers '%.80s': %s; poolctl doctor "
			"lists the devices",
			pool->name, pool->device, pool->backend, pool->peers,
			device->text[0] ? device->text : strerror(-error));
	return geometry_of(config, index, device, geometry, why);
}

/* ---- segments ---- */

static int ring_make(struct module_pool *pool)
{
	pool->ring_bytes = (sizeof(struct mover_ring) + 4095) / 4096 * 4096;
	pool->ring = mmap(NULL, pool->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (pool->ring == MAP_FAILED) {
		pool->ring = NULL;
		return -errno;
	}
	pool->work_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pool->done_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return pool->work_bell < 0 || pool->done_bell < 0 ? -errno : 0;
}

static void pool_clear(struct module_pool *pool)
{
	memset(pool, 0, sizeof(*pool));
	pool->segment_fd = pool->ledger_fd = pool->work_bell = pool->done_bell = -1;
}

static int pool_begin(
	const struct pool_geometry *geometry, const struct module_device *device, struct module_pool *pool)
{
	int error;

	pool_clear(pool);
	pool->device = device->index;
	pool->handle_bytes = geometry->page_bytes * geometry->pages_per_handle;
	error = pool_segment_create(geometry, &pool->segment, &pool->segment_fd);
	if (error) {
		pool->segment_fd = -1;
		log_error("pool '%s': cannot create the pool segment: %s", geometry->name, strerror(-error));
		return error;
	}
	error = ring_make(pool);
	if (error)
		log_error("pool '%s': cannot create the ring of the mover: %s", geometry->name, strerror(-error));
	return error;
}

int pool_make(const struct config_pool *config, const struct pool_geometry *geometry,
	const struct module_device *device, struct module_pool *pool)
{
	int error = pool_begin(geometry, device, pool);
	uint32_t memory_slots, slots = config_spill_slots(config, &memory_slots);

	if (!error) {
		error = ledger_create(geometry->page_count, pool->segment.header->object_count, memory_slots, slots,
			&pool->ledger, &pool->ledger_fd);
		if (error) {
			pool->ledger_fd = -1;
			log_error("pool '%s': cannot create the ledger: %s", geometry->name, strerror(-error));
		}
	}
	if (error)
		pool_unmake(pool);
	return error;
}

/* Copy the fields that the agent writes. The fields that the keeper writes were compared and are equal. */
static void segment_copy(const struct pool_segment *from, struct pool_segment *to)
{
	const size_t written = offsetof(struct pool_header, clock_ms);

	memcpy((char *)to->header + written, (const char *)from->header + written, sizeof(*to->header) - written);
	for (uint32_t page = 0; page < to->header->page_count; page++)
		atomic_store_explicit(&to->pages[page], atomic_load_explicit(&from->pages[page], memory_order_relaxed),
			memory_order_relaxed);
	memcpy(to->sessions, from->sessions, POOL_SESSIONS * sizeof(*to->sessions));
	/* The hash table of object names is not copied: the agent rebuilds it. */
	memcpy(to->objects, from->objects, pool_object_end(from) * sizeof(*to->objects));
	memcpy(to->roles, from->roles, POOL_ROLES * sizeof(*to->roles));
	flight_copy(&from->flight, &to->flight);
	flight_copy(&from->events, &to->events);
}

int pool_make_from(const struct pool_geometry *geometry, const struct module_device *device,
	const struct pool_segment *from, int ledger_fd, struct module_pool *pool)
{
	int error = pool_begin(geometry, device, pool);

	if (!error) {
		pool->ledger_fd = ledger_fd;
		error = ledger_open(ledger_fd, &pool->ledger);
		if (!error &&
			(pool->ledger.header->page_count != geometry->page_count ||
				pool->ledger.header->object_count != from->header->object_count))
			error = -EBADMSG;
		if (error)
			log_error("pool '%s': cannot use the ledger kept by an earlier run: %s", geometry->name,
				strerror(-error));
	}
	if (error) {
		pool->ledger_fd = -1; /* still owned by the caller */
		pool_unmake(pool);
		return error;
	}
	segment_copy(from, &pool->segment);
	return 0;
}

static void close_if_open(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void pool_unmake(struct module_pool *pool)
{
	pool_segment_close(&pool->segment);
	ledger_close(&pool->ledger);
	if (pool->ring)
		munmap(pool->ring, pool->ring_bytes);
	pool->ring = NULL;
	close_if_open(&pool->segment_fd);
	close_if_open(&pool->ledger_fd);
	close_if_open(&pool->work_bell);
	close_if_open(&pool->done_bell);
}

int pool_leave_for_mover(struct module_pool *pool)
{
	pool_segment_close(&pool->segment);
	ledger_close(&pool->ledger);
	close_if_open(&pool->ledger_fd);
	return pool_segment_open(pool->segment_fd, &pool->segment);
}
