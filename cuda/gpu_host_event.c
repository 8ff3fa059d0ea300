/*
 * gpu_host_event.c - events of the host back end, in one process and between processes.
 *
 * An event is a ring of numbers: the n-th record has number n, and the stream that executes it stores n in slot n %
 * EVENT_SLOTS. A thread waits for a number, so the wait does not end early if the event is recorded again. The ring of
 * an interprocess event is a page of a memfd. The exported data are its process, descriptor and cookie.
 *
 * As in CUDA, an imported event comes from another process and dies with it. The importer reads /proc/PID/fd, so both
 * processes need the same user or the right to trace, and the same pid namespace.
 *
 * The page is shared and untrusted. A process with access can make the event appear finished too early or too late, or
 * busy, but cannot affect the reader in any other way.
 */
#include "cuda/gpu_host.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EVENT_SLOTS = 128 }; /* maximum number of unfinished records of an event; more return -EBUSY */

struct event_ring {
	uint64_t cookie;           /* identifies an interprocess event; never changes */
	_Atomic uint64_t recorded; /* number of the last record, 0: none yet */
	_Atomic uint64_t finished[EVENT_SLOTS];
};

struct gpu_event {
	struct gpu_host *host;
	struct gpu_event *next, **link; /* in host->events */
	_Atomic uint32_t refs;
	struct event_ring *ring;
	uint64_t ring_bytes; /* of the mapping; 0: allocated memory */
	int fd;              /* the descriptor that an importer opens; -1: not interprocess, or imported */
	int pidfd;           /* of the exporter; -1: created by this process */
};

/* The output of gpu_event_export(). */
struct event_ipc {
	uint32_t magic;
	int32_t pid;
	int32_t fd;
	uint32_t zero;
	uint64_t cookie;
};
static const uint32_t event_ipc_magic = 0x45504748; /* "HGPE" */

_Static_assert(sizeof(struct event_ipc) <= GPU_IPC_BYTES, "an exported event must fit");

/* exporter_is_gone() - return true if the exporting process has ended: its pidfd is readable. */
static bool exporter_is_gone(const struct gpu_event *event)
{
	struct pollfd ended = {.fd = event->pidfd, .events = POLLIN};

	return event->pidfd >= 0 && poll(&ended, 1, 0) != 0;
}

int host_event_reached(const struct gpu_event *event, uint64_t sequence)
{
	const struct event_ring *ring = event->ring;

	if (atomic_load_explicit(&ring->finished[sequence % EVENT_SLOTS], memory_order_acquire) >= sequence)
		return 1;
	return exporter_is_gone(event) ? -ENODEV : 0;
}

void host_event_finish(struct gpu_event *event, uint64_t sequence)
{
	atomic_store_explicit(&event->ring->finished[sequence % EVENT_SLOTS], sequence, memory_order_release);
}

void host_event_ref(struct gpu_event *event)
{
	atomic_fetch_add_explicit(&event->refs, 1, memory_order_relaxed);
}

void host_event_unref(struct gpu_event *event)
{
	if (atomic_fetch_sub_explicit(&event->refs, 1, memory_order_acq_rel) > 1)
		return;
	if (event->ring_bytes)
		munmap(event->ring, event->ring_bytes);
	else
		free(event->ring);
	if (event->fd >= 0)
		close(event->fd);
	if (event->pidfd >= 0)
		close(event->pidfd);
	free(event);
}

/* event_new() - create an event that has no ring and is in no list. */
static struct gpu_event *event_new(struct gpu_host *host)
{
	struct gpu_event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	event->host = host;
	event->refs = 1;
	event->fd = -1;
	event->pidfd = -1;
	return event;
}

static void event_link(struct gpu_host *host, struct gpu_event *event)
{
	pthread_mutex_lock(&host->lock);
	event->next = host->events;
	event->link = &host->events;
	if (event->next)
		event->next->link = &event->next;
	host->events = event;
	pthread_mutex_unlock(&host->lock);
}

static uint64_t ring_file_bytes(const struct gpu_host *host)
{
	return (sizeof(struct event_ring) + host->page - 1) & ~(host->page - 1);
}

static int ring_map(struct gpu_event *event, int fd)
{
	uint64_t bytes = ring_file_bytes(event->host);
	void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (place == MAP_FAILED)
		return gpu_fail(-errno, "cannot map an event: %s", strerror(errno));
	event->ring = place;
	event->ring_bytes = bytes;
	return 0;
}

/* ring_create_shared() - create the ring of an interprocess event, in a separate memfd. */
static int ring_create_shared(struct gpu_event *event)
{
	int rc;

	event->fd = host_file_create("gpool-event");
	if (event->fd < 0)
		return event->fd;
	if (ftruncate(event->fd, (off_t)ring_file_bytes(event->host)) < 0)
		return gpu_fail(-errno, "cannot create an event: %s", strerror(errno));
	rc = host_file_seal(event->fd);
	if (rc == 0)
		rc = ring_map(event, event->fd);
	if (rc < 0)
		return rc;
	if (getrandom(&event->ring->cookie, sizeof(event->ring->cookie), 0) != sizeof(event->ring->cookie))
		return gpu_fail(-EIO, "cannot create an event: cannot get a random number: %s", strerror(errno));
	return 0;
}

int host_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event)
{
	struct gpu_host *host = host_of(gpu);
	struct gpu_event *created = event_new(host);
	int rc = 0;

	if (!created)
		return gpu_fail(-ENOMEM, "cannot create an event: out of memory");
	if (flags & GPU_EVENT_INTERPROCESS) {
		rc = ring_create_shared(created);
	} else {
		created->ring = calloc(1, sizeof(*created->ring));
		if (!created->ring)
			rc = gpu_fail(-ENOMEM, "cannot create an event: out of memory");
	}
	if (rc < 0) {
		host_event_unref(created);
		return rc;
	}
	event_link(host, created);
	*event = created;
	return 0;
}

void host_event_destroy(struct gpu *gpu, struct gpu_event *event)
{
	struct gpu_host *host = host_of(gpu);

	pthread_mutex_lock(&host->lock);
	*event->link = event->next;
	if (event->next)
		event->next->link = event->link;
	pthread_mutex_unlock(&host->lock);
	host_event_unref(event);
}

void host_event_fini(struct gpu_host *host)
{
	struct gpu_event *event;

	while ((event = host->events)) {
		host->events = event->next;
		host_event_unref(event);
	}
}

/*
 * event_check() - check, before a record, query or wait, that the event belongs to this device and its process is
 * alive.
 */
static int event_check(const struct gpu_host *host, const struct gpu_event *event, const struct gpu_stream *stream)
{
	if (event->host != host || (stream && !host_stream_is_of(stream, host)))
		return gpu_fail(-EINVAL, "the event or the stream belongs to another device");
	if (exporter_is_gone(event))
		return gpu_fail(-ENODEV, "the process that exported the event has ended");
	return 0;
}

/* host_event_number() - take the next number, unless its slot belongs to an unfinished record. */
int host_event_number(struct gpu_event *event, uint64_t *number)
{
	struct event_ring *ring = event->ring;
	uint64_t before, last = atomic_load_explicit(&ring->recorded, memory_order_relaxed);

	do {
		before = last + 1 > EVENT_SLOTS ? last + 1 - EVENT_SLOTS : 0;
		if (atomic_load_explicit(&ring->finished[(last + 1) % EVENT_SLOTS], memory_order_acquire) != before)
			return gpu_fail(
				-EBUSY, "cannot record an event: its last %d records have not completed", EVENT_SLOTS);
	} while (!atomic_compare_exchange_weak_explicit(
		&ring->recorded, &last, last + 1, memory_order_acq_rel, memory_order_relaxed));
	*number = last + 1;
	return 0;
}

int host_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream)
{
	int rc = event_check(host_of(gpu), event, stream);

	return rc < 0 ? rc : host_stream_queue_record(stream, event);
}

int host_event_query(struct gpu *gpu, struct gpu_event *event)
{
	int rc = event_check(host_of(gpu), event, NULL);

	if (rc < 0)
		return rc;
	rc = host_event_reached(event, atomic_load_explicit(&event->ring->recorded, memory_order_acquire));
	return rc == 0 ? -EAGAIN : rc < 0 ? rc : 0;
}

int host_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event)
{
	int rc = event_check(host_of(gpu), event, stream);

	if (rc < 0)
		return rc;
	return host_stream_queue_wait(
		stream, event, atomic_load_explicit(&event->ring->recorded, memory_order_acquire));
}

int host_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES])
{
	struct event_ipc exported = {.magic = event_ipc_magic, .pid = getpid(), .fd = event->fd};

	if (!(host_of(gpu)->capabilities & GPU_CAP_IPC_EVENT))
		return gpu_fail(-EOPNOTSUPP, "this device does not support events between processes");
	if (event->host != host_of(gpu) || event->fd < 0)
		return gpu_fail(
			-EINVAL, "cannot export an event that was not created for other processes on this device");
	exported.cookie = event->ring->cookie;
	memset(ipc, 0, GPU_IPC_BYTES);
	memcpy(ipc, &exported, sizeof(exported));
	return 0;
}

/* open_error() - convert the error of opening another process's descriptor, which may be closed or not accessible. */
static int open_error(int error)
{
	return error == ENOENT ? -ENODEV : error == EACCES ? -EPERM : -error;
}

/*
 * ring_open() - open descriptor `number` of process `pid` if it can be an event. Opening a device or a pipe has side
 * effects, so the file is checked through O_PATH first.
 */
static int ring_open(const struct gpu_host *host, int pid, int number)
{
	char path[64];
	uint64_t size_bytes;
	struct stat status;
	dev_t device;
	ino_t inode;
	int looked, fd, rc;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, number);
	looked = open(path, O_PATH | O_CLOEXEC);
	if (looked < 0)
		return gpu_fail(open_error(errno), "cannot import an event of process %d: %s", pid, strerror(errno));
	if (fstat(looked, &status) < 0 || !S_ISREG(status.st_mode) ||
		(uint64_t)status.st_size != ring_file_bytes(host)) {
		close(looked);
		return gpu_fail(-ENODEV, "cannot import an event of process %d: its descriptor %d is not an event", pid,
			number);
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", looked);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	rc = fd < 0 ? gpu_fail(open_error(errno), "cannot import an event of process %d: %s", pid, strerror(errno)) : 0;
	close(looked);
	if (rc < 0)
		return rc;
	if (host_file_check(fd, &size_bytes, &device, &inode) < 0) {
		close(fd);
		return gpu_fail(-ENODEV, "cannot import an event of process %d: its descriptor %d is not an event", pid,
			number);
	}
	return fd;
}

static int import_into(struct gpu_event *event, const struct event_ipc *from)
{
	int fd, rc;

	/*
	 * Open the pidfd before the cookie is checked: if the pid already belongs to another process, the cookie
	 * differs.
	 */
	event->pidfd = (int)syscall(SYS_pidfd_open, from->pid, 0);
	if (event->pidfd < 0) {
		/* Kernels return EINVAL or ENOENT for the id of a thread that is not a process. */
		rc = errno == EINVAL || errno == ENOENT ? -ESRCH : -errno;
		return gpu_fail(rc, "cannot import an event of process %d: %s", from->pid, strerror(-rc));
	}
	fd = ring_open(event->host, from->pid, from->fd);
	if (fd < 0)
		return fd;
	rc = ring_map(event, fd);
	close(fd);
	if (rc < 0)
		return rc;
	if (event->ring->cookie != from->cookie || exporter_is_gone(event))
		return gpu_fail(-ENODEV, "cannot import an event of process %d: the event no longer exists", from->pid);
	return 0;
}

int host_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event)
{
	struct gpu_host *host = host_of(gpu);
	struct gpu_event *created;
	struct event_ipc from;
	int rc;

	memcpy(&from, ipc, sizeof(from));
	if (!(host->capabilities & GPU_CAP_IPC_EVENT))
		return gpu_fail(-EOPNOTSUPP, "this device does not support events between processes");
	if (from.magic != event_ipc_magic || from.pid <= 0 || from.fd < 0 || from.zero)
		return gpu_fail(-EINVAL, "cannot import an event: invalid handle");
	if (from.pid == getpid())
		return gpu_fail(-EINVAL, "cannot import an event in the process that created it");
	created = event_new(host);
	if (!created)
		return gpu_fail(-ENOMEM, "cannot import an event: out of memory");
	rc = import_into(created, &from);
	if (rc < 0) {
		host_event_unref(created);
		return rc;
	}
	event_link(host, created);
	*event = created;
	return 0;
}
