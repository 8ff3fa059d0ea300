/*
 * probe_worker.h - the process that executes the calls of probe.c. Each message is one call of gpu.h; the answer
 * contains the result and the duration.
 *
 * Handles and addresses are sent as plain numbers, which the coordinator returns unchanged. A worker ends when its
 * socket is closed, and all its resources end with it.
 */
#ifndef GPOOL_TESTS_GPU_PROBE_WORKER_H
#define GPOOL_TESTS_GPU_PROBE_WORKER_H

#include "cuda/gpu.h"
#include "tests/gpu/peer.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	WORDS_BYTES = 65536, /* a multiple of the page size on every machine with a GPU */
	CLOSE_LIMIT_S = 30,  /* a waiting stream must not block a worker, and its coordinator, forever */
};

enum probe_call {
	PROBE_OPEN,        /* a flags */
	PROBE_MEMORY,      /* -> a free, b total */
	PROBE_GRANULARITY, /* -> a */
	PROBE_CREATE,      /* a bytes -> a handle */
	PROBE_RELEASE,     /* a handle */
	PROBE_EXPORT,      /* a handle -> descriptor, b offset, c length */
	PROBE_IMPORT,      /* descriptor, b offset, c length -> a handle */
	PROBE_RESERVE,     /* a bytes -> a address */
	PROBE_UNRESERVE,   /* a address, b bytes */
	PROBE_MAP,         /* a address, b bytes, c handle */
	PROBE_UNMAP,       /* a address, b bytes */
	PROBE_ACCESS,      /* a address, b bytes, c enum gpu_access */
	PROBE_FILL,        /* a address, b bytes, c value; waits until done */
	PROBE_READ,        /* a address -> a value */
	PROBE_WORDS,       /* descriptor: shared words to register */
	PROBE_WRITE,       /* a index of a word, b value; queued */
	PROBE_WAIT,        /* a index of a word, b value; queued */
	PROBE_SYNC,
	PROBE_EVENT_CREATE, /* -> a event */
	PROBE_EVENT_EXPORT, /* a event -> ipc */
	PROBE_EVENT_IMPORT, /* ipc -> a event */
	PROBE_EVENT_RECORD, /* a event */
	PROBE_EVENT_QUERY,  /* a event */
	PROBE_CALLS
};

struct probe_message {
	int32_t call;
	int32_t rc;
	uint64_t a, b, c, d;
	uint64_t nanoseconds; /* duration of only the call of gpu.h */
	uint8_t ipc[GPU_IPC_BYTES];
	char text[256]; /* gpu_error_text() of a failure */
};

struct probe_worker {
	const struct gpu_ops *ops;
	int index;
	struct gpu *gpu;
	struct gpu_stream *stream;
	uint64_t *scratch; /* registered; used by this worker only */
	uint64_t *words;   /* registered; shared with other workers */
};

static inline uint64_t probe_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline int probe_open(struct probe_worker *w, uint32_t flags)
{
	int rc = gpu_open(w->ops, w->index, flags, &w->gpu);

	if (rc < 0 || (flags & GPU_OPEN_OWNER))
		return rc;
	w->scratch = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->scratch == MAP_FAILED)
		return -ENOMEM;
	rc = gpu_host_register(w->gpu, w->scratch, WORDS_BYTES);
	return rc < 0 ? rc : gpu_stream_create(w->gpu, &w->stream);
}

static inline int probe_words(struct probe_worker *w, int fd)
{
	w->words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (w->words == MAP_FAILED)
		return -errno;
	return gpu_host_register(w->gpu, w->words, WORDS_BYTES);
}

static inline int probe_fill(struct probe_worker *w, const struct probe_message *m)
{
	int rc = gpu_fill(w->gpu, m->a, (uint32_t)m->c, m->b, w->stream);

	return rc < 0 ? rc : gpu_stream_sync(w->gpu, w->stream);
}

static inline int probe_read(struct probe_worker *w, struct probe_message *m)
{
	int rc = gpu_copy(w->gpu, (uintptr_t)w->scratch, m->a, sizeof(uint32_t), w->stream);

	if (rc == 0)
		rc = gpu_stream_sync(w->gpu, w->stream);
	m->a = *(uint32_t *)w->scratch;
	return rc;
}

static inline int probe_export(struct probe_worker *w, struct probe_message *m, int *fd)
{
	struct gpu_export exported;
	int rc = gpu_export(w->gpu, m->a, &exported);

	if (rc < 0)
		return rc;
	*fd = exported.fd;
	m->b = exported.offset;
	m->c = exported.length;
	return 0;
}

static inline int probe_import(struct probe_worker *w, struct probe_message *m, int fd)
{
	struct gpu_export from = {.fd = fd, .offset = m->b, .length = m->c};

	return gpu_import(w->gpu, &from, &m->a);
}

static inline int probe_event_create(struct probe_worker *w, struct probe_message *m)
{
	struct gpu_event *event;
	int rc = gpu_event_create(w->gpu, GPU_EVENT_INTERPROCESS, &event);

	m->a = rc == 0 ? (uintptr_t)event : 0;
	return rc;
}

static inline int probe_event_import(struct probe_worker *w, struct probe_message *m)
{
	struct gpu_event *event;
	int rc = gpu_event_import(w->gpu, m->ipc, &event);

	m->a = rc == 0 ? (uintptr_t)event : 0;
	return rc;
}

/*
 * probe_call() - execute the call of a message and write the results to the message. in: a received descriptor or -1;
 * *out: a descriptor to send or -1.
 */
static inline int probe_call(struct probe_worker *w, struct probe_message *m, int in, int *out)
{
	if (m->call != PROBE_OPEN && !w->gpu)
		return -ENODEV;
	switch ((enum probe_call)m->call) {
	case PROBE_OPEN: return probe_open(w, (uint32_t)m->a);
	case PROBE_MEMORY: return gpu_memory_info(w->gpu, &m->a, &m->b);
	case PROBE_GRANULARITY: return gpu_granularity(w->gpu, &m->a);
	case PROBE_CREATE: return gpu_create(w->gpu, m->a, &m->a);
	case PROBE_RELEASE: gpu_release(w->gpu, m->a); return 0;
	case PROBE_EXPORT: return probe_export(w, m, out);
	case PROBE_IMPORT: return probe_import(w, m, in);
	case PROBE_RESERVE: return gpu_reserve(w->gpu, m->a, 0, &m->a);
	case PROBE_UNRESERVE: return gpu_unreserve(w->gpu, m->a, m->b);
	case PROBE_MAP: return gpu_map(w->gpu, m->a, m->b, m->c);
	case PROBE_UNMAP: return gpu_unmap(w->gpu, m->a, m->b);
	case PROBE_ACCESS: return gpu_access(w->gpu, m->a, m->b, (enum gpu_access)m->c);
	case PROBE_FILL: return probe_fill(w, m);
	case PROBE_READ: return probe_read(w, m);
	case PROBE_WORDS: return probe_words(w, in);
	case PROBE_WRITE: return gpu_timeline_write(w->gpu, w->stream, &w->words[m->a], m->b);
	case PROBE_WAIT: return gpu_timeline_wait(w->gpu, w->stream, &w->words[m->a], m->b);
	case PROBE_SYNC: return gpu_stream_sync(w->gpu, w->stream);
	case PROBE_EVENT_CREATE: return probe_event_create(w, m);
	case PROBE_EVENT_EXPORT: return gpu_event_export(w->gpu, (struct gpu_event *)(uintptr_t)m->a, m->ipc);
	case PROBE_EVENT_IMPORT: return probe_event_import(w, m);
	case PROBE_EVENT_RECORD: return gpu_event_record(w->gpu, (struct gpu_event *)(uintptr_t)m->a, w->stream);
	case PROBE_EVENT_QUERY: return gpu_event_query(w->gpu, (struct gpu_event *)(uintptr_t)m->a);
	case PROBE_CALLS: break;
	}
	return -EINVAL;
}

/* probe_worker_main() - execute calls until the coordinator closes the socket. */
static inline int probe_worker_main(const char *backend, const char *device)
{
	struct probe_worker w = {.ops = gpu_backend(backend)};
	struct probe_message m;
	uint64_t begin;
	int in, out;

	while (peer_receive(PEER_SOCKET, &m, sizeof(m), &in) == 0) {
		out = -1;
		if (m.call == PROBE_OPEN)
			w.index = gpu_device_find(w.ops, device);
		begin = probe_now();
		m.rc = w.index < 0 ? w.index : probe_call(&w, &m, in, &out);
		m.nanoseconds = probe_now() - begin;
		m.text[0] = '\0';
		if (m.rc < 0)
			snprintf(m.text, sizeof(m.text), "%s", gpu_error_text());
		if (peer_send(PEER_SOCKET, &m, sizeof(m), out) < 0)
			break;
		if (in >= 0)
			close(in);
		if (out >= 0)
			close(out);
	}
	alarm(CLOSE_LIMIT_S);
	gpu_close(w.gpu);
	return 0;
}

#endif
