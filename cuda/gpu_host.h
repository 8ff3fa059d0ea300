/*
 * gpu_host.h - the host back end's device, shared by cuda/gpu_host*.c only.
 *
 *   gpu_host.c         the table, the devices, open and close
 *   gpu_host_memory.c  physical memory: files, handles, export and import
 *   gpu_host_range.c   address ranges: reserve, map, access, registered host memory, and their users
 *   gpu_host_stream.c  streams: queue, thread, copies, fills, kernels, timelines
 *   gpu_host_event.c   events, also between processes
 *
 * Locks, none of which is acquired while another one is held:
 *   host->lock       handles, files, reservations, registrations, and the lists of streams and events
 *   host->progress   the condition for which waiting streams sleep; held only to sleep and to wake
 *   stream->lock     one stream's queue
 *   registered.lock  the table of all registered memory of the process
 */
#ifndef CUDA_GPU_HOST_H
#define CUDA_GPU_HOST_H

#include "cuda/gpu_private.h"

#include <pthread.h>
#include <sys/types.h>

enum {
	HOST_DEVICES_MAX = 64,
	HOST_FILE_BUCKETS = 1024,
};

/* A memfd that this process has open: its own arena, the file of one handle, or the file of imported handles. */
struct host_file {
	struct host_file *next; /* in the same bucket */
	int fd;
	dev_t device;
	ino_t inode;
	uint64_t refs; /* slices in use, plus one for the device's own arena */
	bool sealed;   /* sealed against growing, because other processes may have a descriptor */
};

/*
 * A slice of a file, which represents physical memory. `refs` counts one reference for the handle until its release,
 * and one for each mapping; the memory is freed with the last reference. A handle is (generation << 32 | slot + 1), so
 * that stale handles are rejected.
 */
struct host_memory {
	struct host_file *file; /* NULL: the slot is free */
	uint64_t offset;
	uint64_t bytes;
	uint32_t refs;
	uint32_t generation;
	uint32_t next_free;
	bool released;
	bool owned;    /* created by this process: removed from the file with the last reference, unless `exported` */
	bool exported; /* another process may have it mapped */
};

/* One granule of a reservation. */
struct host_granule {
	uint32_t memory; /* slot + 1 of the memory mapped here; 0: none */
	uint32_t uses;   /* queued operations that use it */
	uint8_t access;  /* enum gpu_access */
	bool first;      /* a mapping begins here */
	bool populated;  /* host_use_populate() has mapped all of it for writing */
};

struct host_range {
	uint64_t va;
	uint64_t bytes;
	uint64_t mapped; /* granules */
	uint64_t uses;   /* queued operations that use a part of it */
	struct host_granule *granules;
};

struct host_registration {
	uint64_t va;
	uint64_t bytes;
	uint64_t uses;
};

/* A sorted table of pointers to struct host_range or host_registration, both of which begin with va and bytes. */
struct host_table {
	void **entries;
	size_t count;
	size_t capacity;
};

struct gpu_host {
	struct gpu gpu;
	int index;
	uint64_t granularity;
	uint64_t page;         /* page size of the system */
	uint64_t memory_bytes; /* size of the device's memory */
	uint32_t capabilities;
	bool sticky; /* a fault of queued work is a device failure */

	pthread_mutex_t lock;
	struct host_file *files[HOST_FILE_BUCKETS]; /* by inode */
	bool separate;                              /* GPU_OPEN_SEPARATE: no arena */
	/* the file of the next handles; NULL: the next handle creates one */
	struct host_file *arena;
	uint64_t arena_bytes;
	uint64_t charged_bytes; /* bytes of the device's memory in use; see host_memory_charge() */
	struct host_memory *memories;
	uint32_t memory_count;
	uint32_t memory_capacity;
	uint32_t memory_free; /* slot + 1, a list through next_free */
	struct host_table ranges;
	struct host_table registrations;
	struct gpu_stream *streams;
	struct gpu_event *events;

	pthread_mutex_t progress_lock;
	pthread_cond_t progress;
	bool closing; /* under progress_lock */
};

static inline struct gpu_host *host_of(struct gpu *gpu)
{
	return (struct gpu_host *)gpu; /* struct gpu is its first member */
}

/* A range that a queued operation uses, from queueing until the operation has finished. */
struct host_use {
	struct host_range *range; /* exactly one of the two is set */
	struct host_registration *registration;
	uint64_t va;
	uint64_t bytes;
};

/* gpu_host.c */
int host_memory_charge(struct gpu_host *host, uint64_t bytes);
void host_memory_discharge(struct gpu_host *host, uint64_t bytes);

/* gpu_host_memory.c. Callers of the host_memory_*() functions hold host->lock. */
int host_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle);
void host_release(struct gpu *gpu, uint64_t handle);
int host_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out);
int host_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle);
struct host_memory *host_memory_find(struct gpu_host *host, uint64_t handle);
uint32_t host_memory_slot(const struct gpu_host *host, const struct host_memory *memory);
void host_memory_unref(struct gpu_host *host, struct host_memory *memory);
void host_memory_fini(struct gpu_host *host);
int host_file_check(int fd, uint64_t *size_bytes, dev_t *device, ino_t *inode);
int host_file_create(const char *name);
int host_file_seal(int fd);

/* gpu_host_range.c */
int host_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va);
int host_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes);
int host_map(struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped);
int host_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes);
int host_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access);
int host_register(struct gpu *gpu, void *memory, uint64_t bytes);
int host_unregister(struct gpu *gpu, void *memory);
int host_address(struct gpu *gpu, const void *memory, uint64_t *va);
void host_range_fini(struct gpu_host *host);
/*
 * host_use_begin() - mark [va, va + bytes) as used by a queued operation; -EINVAL: it is neither reserved nor
 * registered.
 * host_use_check() - check that the operation may access it now; -EIO: it may not. The result is valid until
 * host_use_end().
 * host_use_populate() - prepare whole granules, which the operation is about to overwrite, with one system call instead
 * of a page fault for each 4 KiB. Call it after host_use_check().
 */
int host_use_begin(struct gpu_host *host, uint64_t va, uint64_t bytes, struct host_use *use);
int host_use_begin_registered(struct gpu_host *host, uint64_t va, uint64_t bytes, struct host_use *use);
int host_use_check(struct gpu_host *host, const struct host_use *use, enum gpu_access access);
void host_use_populate(struct gpu_host *host, const struct host_use *use);
void host_use_end(struct gpu_host *host, struct host_use *use);

/* gpu_host_stream.c. host_stream_queue_*() queue the stream's part of event_record() and event_wait(). */
int host_stream_create(struct gpu *gpu, struct gpu_stream **stream);
int host_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream);
void host_stream_destroy(struct gpu *gpu, struct gpu_stream *stream);
int host_stream_sync(struct gpu *gpu, struct gpu_stream *stream);
int host_stream_query(struct gpu *gpu, struct gpu_stream *stream);
int host_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream);
int host_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream);
int host_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream);
int host_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value);
int host_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value);
int host_stream_queue_record(struct gpu_stream *stream, struct gpu_event *event);
int host_stream_queue_wait(struct gpu_stream *stream, struct gpu_event *event, uint64_t sequence);
bool host_stream_is_of(const struct gpu_stream *stream, const struct gpu_host *host);
void host_stream_fini(struct gpu_host *host);
void host_progress_wake(struct gpu_host *host);

/*
 * gpu_host_event.c. A queued record or wait holds a reference, so the event may be destroyed earlier.
 * host_event_reached() returns 1 if record `sequence` has finished, 0 if not yet, and -ENODEV if the event's process is
 * dead.
 */
int host_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event);
void host_event_destroy(struct gpu *gpu, struct gpu_event *event);
int host_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream);
int host_event_query(struct gpu *gpu, struct gpu_event *event);
int host_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event);
int host_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES]);
int host_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event);
void host_event_ref(struct gpu_event *event);
void host_event_unref(struct gpu_event *event);
int host_event_number(struct gpu_event *event, uint64_t *number);
void host_event_finish(struct gpu_event *event, uint64_t sequence);
int host_event_reached(const struct gpu_event *event, uint64_t sequence);
void host_event_fini(struct gpu_host *host);

#endif
