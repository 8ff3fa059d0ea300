/*
 * gpu_host_stream.c - streams of the host back end: a queue, and a thread that executes its operations in order. A
 * thread that synchronizes with the stream executes them too, because a switch to another thread takes longer than many
 * of them.
 *
 * When an operation is queued, the checks of a driver are made (an address must be reserved or registered), and its
 * addresses are marked as used. When it is executed, the checks of the hardware are made in this back end's tables (an
 * address must be mapped with access). An invalid operation therefore causes an error at the next sync and not a
 * signal. Only the addresses of kernels are neither checked nor marked. After an error, the stream continues with the
 * next operation, so that tests can continue; a GPU would end the whole context. With GPOOL_HOST_FAULTS=sticky, a fault
 * drops all queued operations of the device, and further calls return its error.
 *
 * The event or timeline for which a stream waits may depend on another process, which cannot wake this one. After a
 * short spin, the thread therefore sleeps in increasing steps of at most wait_step_max_ns. Operations of this process
 * and the closing of the device wake it at once.
 */
#include "cuda/gpu_host.h"
#include "cuda/kernels/kernel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const long wait_step_min_ns = 10 * 1000;
static const long wait_step_max_ns = 1000 * 1000; /* short compared to a step of an engine */
enum { WAIT_SPINS = 200 };                        /* some microseconds, less than a sleep and a wake-up take */

enum operation_kind {
	OPERATION_COPY,
	OPERATION_FILL,
	OPERATION_LAUNCH,
	OPERATION_RECORD,
	OPERATION_EVENT_WAIT,
	OPERATION_WRITE,
	OPERATION_WAIT
};

static const char *const operation_names[] = {
	[OPERATION_COPY] = "copy",
	[OPERATION_FILL] = "fill",
	[OPERATION_LAUNCH] = "launch",
	[OPERATION_RECORD] = "event record",
	[OPERATION_EVENT_WAIT] = "event wait",
	[OPERATION_WRITE] = "timeline write",
	[OPERATION_WAIT] = "timeline wait",
};

struct operation {
	struct operation *next;
	enum operation_kind kind;
	struct host_use to;   /* also the word of a timeline */
	struct host_use from; /* of a copy */
	uint64_t value;       /* of a fill, write or wait; for events, the number of the record */
	struct gpu_event *event;
	const struct kernel *kernel;
	void *args; /* a copy, because the caller may free its arguments */
};

struct gpu_stream {
	struct gpu_host *host;
	struct gpu_stream *next, **link; /* in host->streams */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t work; /* an operation was queued, or `stop` was set */
	pthread_cond_t done; /* an operation was finished */
	struct operation *first, **last;
	uint64_t queued;
	uint64_t finished;
	bool running; /* a thread executes an operation, so no other thread may begin the next one */
	bool stop;    /* finish the queue, then end */
	int error;    /* the first error since the last sync */
	char error_text[160];
};

bool host_stream_is_of(const struct gpu_stream *stream, const struct gpu_host *host)
{
	return stream->host == host;
}

void host_progress_wake(struct gpu_host *host)
{
	/* With the lock held, no thread can check the condition before the change and sleep after the broadcast. */
	pthread_mutex_lock(&host->progress_lock);
	pthread_cond_broadcast(&host->progress);
	pthread_mutex_unlock(&host->progress_lock);
}

static struct timespec after_now(long nanoseconds)
{
	struct timespec when;

	clock_gettime(CLOCK_MONOTONIC, &when);
	when.tv_nsec += nanoseconds;
	if (when.tv_nsec >= 1000000000) {
		when.tv_nsec -= 1000000000;
		when.tv_sec++;
	}
	return when;
}

/*
 * wait_reached() - return 1 if the operation's wait has ended, 0 if it has not, or a negative errno if it can never
 * end.
 */
static int wait_reached(const struct operation *operation)
{
	if (operation->kind == OPERATION_EVENT_WAIT)
		return host_event_reached(operation->event, operation->value);
	return __atomic_load_n((const uint64_t *)operation->to.va, __ATOMIC_ACQUIRE) >= operation->value;
}

static bool is_failed(struct gpu_host *host)
{
	return atomic_load_explicit(&host->gpu.failed, memory_order_acquire) != 0;
}

static int wait_execute(struct gpu_host *host, const struct operation *operation)
{
	long step_ns = wait_step_min_ns;
	struct timespec until;
	int rc = 0;

	for (int i = 0; i < WAIT_SPINS && rc == 0; i++)
		rc = wait_reached(operation);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	pthread_mutex_lock(&host->progress_lock);
	while ((rc = wait_reached(operation)) == 0 && !is_failed(host)) {
		if (host->closing) {
			rc = -ECANCELED;
			break;
		}
		until = after_now(step_ns);
		pthread_cond_timedwait(&host->progress, &host->progress_lock, &until);
		step_ns = step_ns * 2 < wait_step_max_ns ? step_ns * 2 : wait_step_max_ns;
	}
	pthread_mutex_unlock(&host->progress_lock);
	return rc < 0 ? rc : 0;
}

static int copy_execute(struct gpu_host *host, const struct operation *operation)
{
	uint64_t from = operation->from.va, to = operation->to.va, bytes = operation->to.bytes;
	int rc = host_use_check(host, &operation->from, GPU_ACCESS_READ);

	if (rc == 0)
		rc = host_use_check(host, &operation->to, GPU_ACCESS_READ_WRITE);
	if (rc < 0)
		return rc;
	host_use_populate(host, &operation->to);
	/* AddressSanitizer's memmove() copies single bytes */
	if (to - from < bytes || from - to < bytes)
		memmove((void *)to, (const void *)from, bytes);
	else
		memcpy((void *)to, (const void *)from, bytes);
	return 0;
}

static int fill_execute(struct gpu_host *host, const struct operation *operation)
{
	uint32_t *words = (uint32_t *)operation->to.va;
	int rc = host_use_check(host, &operation->to, GPU_ACCESS_READ_WRITE);

	if (rc < 0)
		return rc;
	host_use_populate(host, &operation->to);
	if (!operation->value) /* several times faster */
		memset(words, 0, operation->to.bytes);
	for (uint64_t i = 0; operation->value && i < operation->to.bytes / sizeof(*words); i++)
		words[i] = (uint32_t)operation->value;
	return 0;
}

static int operation_execute(struct gpu_host *host, const struct operation *operation)
{
	switch (operation->kind) {
	case OPERATION_COPY: return copy_execute(host, operation);
	case OPERATION_FILL: return fill_execute(host, operation);
	case OPERATION_LAUNCH: operation->kernel->host(operation->args); return 0;
	case OPERATION_RECORD:
		host_event_finish(operation->event, operation->value);
		host_progress_wake(host);
		return 0;
	case OPERATION_WRITE:
		__atomic_store_n((uint64_t *)operation->to.va, operation->value, __ATOMIC_RELEASE);
		host_progress_wake(host);
		return 0;
	case OPERATION_EVENT_WAIT:
	case OPERATION_WAIT: return wait_execute(host, operation);
	}
	return -EINVAL;
}

static void operation_destroy(struct gpu_host *host, struct operation *operation)
{
	host_use_end(host, &operation->to);
	host_use_end(host, &operation->from);
	if (operation->event)
		host_event_unref(operation->event);
	free(operation->args);
	free(operation);
}

/* error_note() - store the first error for the next sync. The caller holds stream->lock. */
static void error_note(struct gpu_stream *stream, int error, enum operation_kind kind, uint64_t va, uint64_t bytes)
{
	if (stream->error)
		return;
	stream->error = error;
	snprintf(stream->error_text, sizeof(stream->error_text), "queued %s of %llu bytes at 0x%llx: %s",
		operation_names[kind], (unsigned long long)bytes, (unsigned long long)va, strerror(-error));
}

static bool is_closing(struct gpu_host *host)
{
	bool closing;

	pthread_mutex_lock(&host->progress_lock);
	closing = host->closing;
	pthread_mutex_unlock(&host->progress_lock);
	return closing;
}

/* operation_run() - execute the first operation. The caller holds stream->lock, which is released temporarily. */
static void operation_run(struct gpu_stream *stream)
{
	struct operation *operation = stream->first;
	enum operation_kind kind = operation->kind;
	uint64_t va = operation->to.va, bytes = operation->to.bytes;
	int rc;

	stream->first = operation->next;
	if (!stream->first)
		stream->last = &stream->first;
	stream->running = true;
	pthread_mutex_unlock(&stream->lock);

	rc = is_closing(stream->host)     ? -ECANCELED
		: is_failed(stream->host) ? 0
					  : operation_execute(stream->host, operation);
	if (rc == -EIO && stream->host->sticky) {
		atomic_store_explicit(&stream->host->gpu.failed, rc, memory_order_release);
		host_progress_wake(stream->host);
	}
	/* destroy the operation before it counts as finished, because an unmap may follow a sync */
	operation_destroy(stream->host, operation);

	pthread_mutex_lock(&stream->lock);
	if (rc < 0)
		error_note(stream, rc, kind, va, bytes);
	stream->running = false;
	stream->finished++;
	pthread_cond_broadcast(&stream->done);
}

static void *stream_main(void *argument)
{
	struct gpu_stream *stream = argument;

	pthread_mutex_lock(&stream->lock);
	while (!stream->stop || stream->first || stream->running) {
		if (stream->running)
			pthread_cond_wait(&stream->done, &stream->lock);
		else if (!stream->first)
			pthread_cond_wait(&stream->work, &stream->lock);
		else
			operation_run(stream);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

/* thread_start() - start the thread with all signals blocked, so that the program's handlers never run in it. */
static int thread_start(struct gpu_stream *stream)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&stream->thread, NULL, stream_main, stream);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

int host_stream_create(struct gpu *gpu, struct gpu_stream **stream)
{
	struct gpu_host *host = host_of(gpu);
	struct gpu_stream *created = calloc(1, sizeof(*created));
	int rc;

	if (!created)
		return gpu_fail(-ENOMEM, "cannot create a stream: out of memory");
	created->host = host;
	created->last = &created->first;
	pthread_mutex_init(&created->lock, NULL);
	pthread_cond_init(&created->work, NULL);
	pthread_cond_init(&created->done, NULL);
	rc = thread_start(created);
	if (rc < 0) {
		free(created);
		/* pthread_create(3) returns EAGAIN at the limit of threads; a retry would not succeed. */
		return gpu_fail(rc == -EAGAIN ? -ENOMEM : rc, "cannot create a stream: cannot create a thread: %s",
			strerror(-rc));
	}
	pthread_mutex_lock(&host->lock);
	created->next = host->streams;
	created->link = &host->streams;
	if (created->next)
		created->next->link = &created->next;
	host->streams = created;
	pthread_mutex_unlock(&host->lock);
	*stream = created;
	return 0;
}

int host_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream)
{
	struct gpu_host *host = host_of(gpu);
	struct gpu_stream *found;

	if (native == GPU_STREAM_PER_THREAD)
		return gpu_fail(-EOPNOTSUPP, "threads have no default stream");
	pthread_mutex_lock(&host->lock);
	for (found = host->streams; found && found != native; found = found->next)
		;
	pthread_mutex_unlock(&host->lock);
	if (!found)
		return gpu_fail(-EINVAL, "cannot adopt %p: not a stream of this device", native);
	*stream = found;
	return 0;
}

/* stream_join() - let the thread empty its queue and end, and free the stream, which the caller has unlinked. */
static void stream_join(struct gpu_stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	stream->stop = true;
	pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&stream->lock);
	pthread_join(stream->thread, NULL);
	pthread_cond_destroy(&stream->work);
	pthread_cond_destroy(&stream->done);
	pthread_mutex_destroy(&stream->lock);
	free(stream);
}

void host_stream_destroy(struct gpu *gpu, struct gpu_stream *stream)
{
	struct gpu_host *host = host_of(gpu);

	pthread_mutex_lock(&host->lock);
	*stream->link = stream->next;
	if (stream->next)
		stream->next->link = stream->link;
	pthread_mutex_unlock(&host->lock);
	stream_join(stream);
}

/* host_stream_fini() - cancel the queued operations of all streams and end the streams; part of gpu_close(). */
void host_stream_fini(struct gpu_host *host)
{
	struct gpu_stream *stream;

	pthread_mutex_lock(&host->progress_lock);
	host->closing = true;
	pthread_cond_broadcast(&host->progress);
	pthread_mutex_unlock(&host->progress_lock);
	while ((stream = host->streams)) {
		host->streams = stream->next;
		stream_join(stream);
	}
}

int host_stream_sync(struct gpu *gpu, struct gpu_stream *stream)
{
	uint64_t target;
	int rc;

	if (!host_stream_is_of(stream, host_of(gpu)))
		return gpu_fail(-EINVAL, "cannot synchronize with a stream of another device");
	pthread_mutex_lock(&stream->lock);
	target = stream->queued;
	while (stream->finished < target) {
		/* Results of a kernel could depend on this thread's rounding mode. */
		if (stream->running || stream->first->kind == OPERATION_LAUNCH)
			pthread_cond_wait(&stream->done, &stream->lock);
		else
			operation_run(stream);
	}
	rc = stream->error;
	if (rc == 0 && is_failed(stream->host))
		rc = gpu_fail(-EIO, "work on another stream has failed, and ended all work of the device");
	else if (rc < 0)
		gpu_fail(rc, "%s", stream->error_text);
	stream->error = 0;
	pthread_mutex_unlock(&stream->lock);
	return rc;
}

int host_stream_query(struct gpu *gpu, struct gpu_stream *stream)
{
	bool finished;

	if (!host_stream_is_of(stream, host_of(gpu)))
		return gpu_fail(-EINVAL, "cannot query a stream of another device");
	pthread_mutex_lock(&stream->lock);
	finished = stream->finished == stream->queued;
	pthread_mutex_unlock(&stream->lock);
	return finished ? 0 : -EAGAIN;
}

/* operation_new() - create an operation for this stream; NULL: the error is in *rc. */
static struct operation *operation_new(struct gpu *gpu, struct gpu_stream *stream, enum operation_kind kind, int *rc)
{
	struct operation *operation;

	if (gpu && !host_stream_is_of(stream, host_of(gpu))) {
		*rc = gpu_fail(
			-EINVAL, "cannot queue a %s: the stream belongs to another device", operation_names[kind]);
		return NULL;
	}
	operation = calloc(1, sizeof(*operation));
	if (!operation)
		*rc = gpu_fail(-ENOMEM, "cannot queue a %s: out of memory", operation_names[kind]);
	else
		operation->kind = kind;
	return operation;
}

static void operation_queue(struct gpu_stream *stream, struct operation *operation)
{
	pthread_mutex_lock(&stream->lock);
	*stream->last = operation;
	stream->last = &operation->next;
	stream->queued++;
	pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&stream->lock);
}

int host_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream)
{
	struct gpu_host *host = host_of(gpu);
	int rc = 0;
	struct operation *operation = operation_new(gpu, stream, OPERATION_COPY, &rc);

	if (!operation)
		return rc;
	rc = host_use_begin(host, to, bytes, &operation->to);
	if (rc == 0)
		rc = host_use_begin(host, from, bytes, &operation->from);
	if (rc < 0)
		operation_destroy(host, operation);
	else
		operation_queue(stream, operation);
	return rc;
}

int host_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream)
{
	struct gpu_host *host = host_of(gpu);
	int rc = 0;
	struct operation *operation = operation_new(gpu, stream, OPERATION_FILL, &rc);

	if (!operation)
		return rc;
	operation->value = value;
	rc = host_use_begin(host, to, bytes, &operation->to);
	if (rc < 0)
		operation_destroy(host, operation);
	else
		operation_queue(stream, operation);
	return rc;
}

/* The C reference executes the whole grid, so the shape is not used. */
int host_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream)
{
	const struct kernel *found = &gpu_kernels[kernel];
	int rc = 0;
	struct operation *operation = operation_new(gpu, stream, OPERATION_LAUNCH, &rc);

	(void)shape;
	if (!operation)
		return rc;
	operation->kernel = found;
	operation->args = malloc(found->args_bytes);
	if (!operation->args) {
		operation_destroy(host_of(gpu), operation);
		return gpu_fail(-ENOMEM, "cannot queue kernel %s: out of memory", found->name);
	}
	memcpy(operation->args, args, found->args_bytes);
	operation_queue(stream, operation);
	return 0;
}

static int queue_timeline(
	struct gpu *gpu, struct gpu_stream *stream, enum operation_kind kind, const uint64_t *word, uint64_t value)
{
	struct gpu_host *host = host_of(gpu);
	int rc = 0;
	struct operation *operation = operation_new(gpu, stream, kind, &rc);

	if (!operation)
		return rc;
	operation->value = value;
	rc = host_use_begin_registered(host, (uintptr_t)word, sizeof(*word), &operation->to);
	if (rc < 0)
		operation_destroy(host, operation);
	else
		operation_queue(stream, operation);
	return rc;
}

int host_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value)
{
	return queue_timeline(gpu, stream, OPERATION_WRITE, word, value);
}

int host_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value)
{
	return queue_timeline(gpu, stream, OPERATION_WAIT, word, value);
}

int host_stream_queue_record(struct gpu_stream *stream, struct gpu_event *event)
{
	int rc = 0;
	struct operation *operation = operation_new(NULL, stream, OPERATION_RECORD, &rc);

	if (!operation)
		return rc;
	/*
	 * Take the number after all steps that can fail, because a number that is never finished would block the event.
	 */
	rc = host_event_number(event, &operation->value);
	if (rc < 0) {
		operation_destroy(stream->host, operation);
		return rc;
	}
	host_event_ref(event);
	operation->event = event;
	operation_queue(stream, operation);
	return 0;
}

int host_stream_queue_wait(struct gpu_stream *stream, struct gpu_event *event, uint64_t sequence)
{
	int rc = 0;
	struct operation *operation = operation_new(NULL, stream, OPERATION_EVENT_WAIT, &rc);

	if (!operation)
		return rc;
	host_event_ref(event);
	operation->event = event;
	operation->value = sequence;
	operation_queue(stream, operation);
	return 0;
}
