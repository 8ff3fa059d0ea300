/*
 * stream.c - streams: a thread and a queue each. "Stream Management", "Stream Memory Operations", "Memory Management",
 * "Stream synchronization behavior".
 */
#include "tests/driver/driver.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct stream *streams; /* never freed, so that a stale handle is recognized */
static uint64_t queued;        /* operations of the process */
static bool running;           /* only if settings.late: an operation runs */
static _Thread_local struct {
	struct stream *stream;
	unsigned generation;
} per_thread[DEVICES_MAX];

struct stream *stream_first(void)
{
	return streams;
}

struct stream *stream_make(struct context *context, bool blocking)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->context = context;
	stream->generation = context->generation;
	stream->alive = true;
	stream->blocking = blocking;
	stream->last = &stream->first;
	stream->next = streams;
	streams = stream;
	return stream;
}

static struct stream *legacy_of(struct context *context)
{
	if (!context->legacy)
		context->legacy = stream_make(context, true);
	return context->legacy;
}

/*
 * "Stream synchronization behavior": 0 and CU_STREAM_LEGACY are the context's default stream, CU_STREAM_PER_THREAD is
 * one of the thread's own. Any other value is a stream that was created and not destroyed.
 */
CUresult stream_of(CUstream handle, struct stream **stream)
{
	struct context *context = context_current();

	*stream = NULL;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!handle || handle == CU_STREAM_LEGACY) {
		*stream = legacy_of(context);
	} else if (handle == CU_STREAM_PER_THREAD) {
		if (!per_thread[context->device].stream ||
			per_thread[context->device].generation != context->generation) {
			per_thread[context->device].stream = stream_make(context, true);
			per_thread[context->device].generation = context->generation;
		}
		*stream = per_thread[context->device].stream;
	} else {
		for (struct stream *one = streams; one; one = one->next)
			if ((CUstream)(void *)one == handle && one->alive)
				*stream = one;
		return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	}
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * copy_run() - copy piece by piece, as far as both sides are contiguous. Return false if one may not be accessed. After
 * a fault, the program may unmap them.
 */
static bool copy_run(int device, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const void *staged)
{
	while (bytes && !driver.fault) {
		struct memory *held_to = NULL, *held_from = NULL;
		uint64_t left = bytes;
		void *target = (void *)(uintptr_t)to;
		const void *source = (const void *)(uintptr_t)from;

		if (memory_is_device(to) || !memory_is_registered(target, 1)) {
			void *place = memory_translate(device, to, &left, true, &held_to);

			if (!place && memory_is_device(to))
				return false;
			target = place ? place : target;
		}
		if (staged) {
			source = staged;
		} else if (memory_is_device(from) || !memory_is_registered(source, 1)) {
			void *place = memory_translate(device, from, &left, false, &held_from);

			if (!place && memory_is_device(from)) {
				memory_unhold(held_to);
				return false;
			}
			source = place ? place : source;
		}
		driver.copying++;
		pthread_mutex_unlock(&driver.lock);
		memmove(target, source, left);
		pthread_mutex_lock(&driver.lock);
		driver.copying--;
		if (driver.fault)
			pthread_cond_broadcast(&driver.changed);
		memory_unhold(held_to);
		memory_unhold(held_from);
		to += left;
		from += left;
		staged = staged ? (const char *)staged + left : NULL;
		bytes -= left;
	}
	return true;
}

static bool fill_run(int device, const struct operation *operation)
{
	CUdeviceptr to = operation->to;
	uint64_t bytes = operation->bytes;

	while (bytes && !driver.fault) {
		struct memory *held;
		uint64_t left = bytes;
		unsigned char *at = memory_translate(device, to, &left, true, &held);

		if (!at)
			return false;
		pthread_mutex_unlock(&driver.lock);
		if (operation->element == 1 || operation->value == 0)
			memset(at, (int)operation->value, left);
		else
			for (uint64_t i = 0; i < left / 4; i++)
				((uint32_t *)(void *)at)[i] = (uint32_t)operation->value;
		pthread_mutex_lock(&driver.lock);
		memory_unhold(held);
		to += left;
		bytes -= left;
	}
	return true;
}

static bool value_reached(uint64_t now, const struct operation *operation)
{
	switch (operation->flags & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ: return (int64_t)(now - operation->value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ: return now == operation->value;
	case CU_STREAM_WAIT_VALUE_AND: return now & operation->value;
	default: return ~(now | operation->value);
	}
}

/* word_run() - write a word, or wait until it has been reached. Return false if it may not be accessed. */
static bool word_run(int device, const struct operation *operation)
{
	unsigned round = 0;

	for (;;) {
		struct memory *held;
		uint64_t bytes = sizeof(uint64_t);
		_Atomic uint64_t *word =
			memory_translate(device, operation->to, &bytes, operation->kind == OP_WRITE, &held);
		bool done = true;

		if (!word)
			return false;
		if (operation->kind == OP_WRITE)
			atomic_store(word, operation->value); /* after all earlier work, as the default flags demand */
		else
			done = value_reached(atomic_load(word), operation);
		memory_unhold(held);
		if (done || driver.fault)
			return true;
		driver_poll(&round);
	}
}

/* "Data types used by CUDA driver", CUDA_ERROR_ILLEGAL_ADDRESS: work accesses memory that the device may not access. */
static void operation_run(const struct stream *stream, const struct operation *operation)
{
	int device = stream->context->device;
	unsigned round = 0;
	bool fine = true;

	switch (operation->kind) {
	case OP_COPY:
		fine = copy_run(device, operation->to, operation->from, operation->bytes, operation->staged);
		break;
	case OP_FILL: fine = fill_run(device, operation); break;
	case OP_WRITE:
	case OP_WAIT_VALUE: fine = word_run(device, operation); break;
	case OP_RECORD: event_record_end(operation->event, operation->record); break;
	case OP_WAIT_EVENT:
		while (!event_reached(operation->event, operation->record) && !driver.fault)
			driver_poll(&round);
		break;
	case OP_LAUNCH: kernel_run(device, operation); break;
	case OP_FREE: pool_freed(operation->pool, operation->to); break;
	case OP_HOST:
		pthread_mutex_unlock(&driver.lock);
		operation->function(operation->staged);
		pthread_mutex_lock(&driver.lock);
		break;
	}
	if (!fine)
		driver_fault(CUDA_ERROR_ILLEGAL_ADDRESS, "operation %d on %#llx and %#llx, %llu bytes", operation->kind,
			(unsigned long long)operation->to, (unsigned long long)operation->from,
			(unsigned long long)operation->bytes);
}

static bool may_begin(const struct operation *operation)
{
	for (unsigned i = 0; i < operation->after_count; i++)
		if (operation->after[i].stream->done < operation->after[i].number)
			return false;
	return !operation->launched.stream || operation->launched.stream->done >= operation->launched.number;
}

/*
 * "Stream Memory Operations", cuStreamWaitValue64: tasks that are ordered by it must also be ordered by dependencies
 * that CUDA can see, such as events; otherwise the scheduler may serialize them in an improper order. With the setting
 * `late`, the device runs one operation at a time: of those that seem ready, the one that was queued last. A wait for
 * an event seems ready after the record. A wait for a word seems ready, and blocks the device, as soon as the write is
 * queued. If no write is queued, as for words that the CPU or another process writes, it waits without effect on
 * others; this is a choice.
 */
static bool seems_ready(const struct stream *stream, const struct operation *operation)
{
	struct memory *held = NULL;
	uint64_t bytes = sizeof(uint64_t);
	_Atomic uint64_t *word;
	bool ready;

	if (!may_begin(operation))
		return false;
	if (operation->kind == OP_WAIT_EVENT)
		return event_reached(operation->event, operation->record);
	if (operation->kind != OP_WAIT_VALUE)
		return true;
	for (struct stream *other = streams; other; other = other->next)
		for (const struct operation *write = other->first; write; write = write->next)
			if (write->kind == OP_WRITE && write->to == operation->to)
				return true;
	word = memory_translate(stream->context->device, operation->to, &bytes, false, &held);
	ready = !word || value_reached(atomic_load(word), operation);
	memory_unhold(held);
	return ready;
}

static bool is_next(const struct stream *stream, const struct operation *operation)
{
	if (running || !seems_ready(stream, operation))
		return false;
	for (struct stream *other = streams; other; other = other->next)
		if (other->first && other->first->order > operation->order && seems_ready(other, other->first))
			return false;
	return true;
}

static void turn_wait(const struct stream *stream, const struct operation *operation)
{
	unsigned round = 0;

	while (!may_begin(operation) && !driver.fault)
		pthread_cond_wait(&driver.changed, &driver.lock);
	while (settings.late && !is_next(stream, operation) && !driver.fault)
		driver_poll(&round); /* another process may have changed an event */
}

static void *stream_main(void *argument)
{
	struct stream *stream = argument;
	struct operation *operation;

	pthread_mutex_lock(&driver.lock);
	for (;;) {
		while (!stream->first && stream->alive)
			pthread_cond_wait(&driver.changed, &driver.lock);
		operation = stream->first;
		if (!operation)
			break; /* destroyed, and its work has ended */
		turn_wait(stream, operation);
		running = true;
		driver_fault_chance();
		if (!driver.fault) /* after a fault, work is dropped */
			operation_run(stream, operation);
		running = false;
		stream->first = operation->next;
		if (!stream->first)
			stream->last = &stream->first;
		stream->done = operation->number;
		pthread_cond_broadcast(&driver.changed);
		if (operation->kind == OP_COPY || operation->kind == OP_LAUNCH)
			free(operation->staged);
		free(operation->after);
		free(operation);
	}
	pthread_mutex_unlock(&driver.lock);
	return NULL;
}

static bool stream_start(struct stream *stream)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	int rc;

	if (stream->started)
		return true;
	sigfillset(&all); /* the program's signals are its own threads' */
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&stream->thread, &attributes, stream_main, stream);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	stream->started = rc == 0;
	return stream->started;
}

/*
 * "Stream synchronization behavior": work in the legacy stream begins after all earlier work of the context's blocking
 * streams, and work in these after all earlier work of the legacy stream.
 */
static CUresult dependencies_add(const struct stream *stream, struct operation *operation)
{
	struct context *context = stream->context;
	unsigned count = 0;

	if (!stream->blocking)
		return CUDA_SUCCESS;
	for (struct stream *other = streams; other; other = other->next)
		count++;
	operation->after = calloc(count, sizeof(*operation->after));
	if (!operation->after)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (struct stream *other = streams; other; other = other->next) {
		if (other == stream || other->context != context || !other->blocking || other->done == other->issued)
			continue;
		if (stream == context->legacy || other == context->legacy)
			operation->after[operation->after_count++] = (struct dependency){other, other->issued};
	}
	return CUDA_SUCCESS;
}

CUresult stream_queue(struct stream *stream, const struct operation *given)
{
	struct operation *operation = malloc(sizeof(*operation));
	CUresult result;

	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*operation = *given;
	operation->next = NULL;
	operation->after = NULL;
	operation->after_count = 0;
	result = stream_start(stream) ? dependencies_add(stream, operation) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		free(operation);
		return result;
	}
	operation->number = ++stream->issued;
	operation->order = ++queued;
	*stream->last = operation;
	stream->last = &operation->next;
	pthread_cond_broadcast(&driver.changed);
	return CUDA_SUCCESS;
}

CUresult stream_issue(struct stream *stream, const struct operation *operation)
{
	CUresult result;

	if (stream->capture)
		return capture_add(stream, operation);
	if (stream == stream->context->legacy) {
		result = capture_implicit(stream->context);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return stream_queue(stream, operation);
}

CUresult stream_wait(struct stream *stream, uint64_t number)
{
	while (stream->done < number && !driver.fault)
		pthread_cond_wait(&driver.changed, &driver.lock);
	return driver_failed();
}

CUresult context_wait(struct context *context)
{
	for (struct stream *stream = streams; stream; stream = stream->next)
		if (stream->context == context && stream->generation == context->generation)
			stream_wait(stream, stream->issued);
	return driver_failed();
}

void streams_end(struct context *context)
{
	context_wait(context);
	for (struct stream *stream = streams; stream; stream = stream->next)
		if (stream->context == context)
			stream->alive = false;
	pthread_cond_broadcast(&driver.changed);
}

/* "Stream Management", cuStreamCreate: unknown flags are CUDA_ERROR_INVALID_VALUE. */
static CUresult create(CUstream *handle, unsigned flags)
{
	struct stream *stream;

	if (!handle || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	stream = stream_make(context_current(), !(flags & CU_STREAM_NON_BLOCKING));
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = (CUstream)(void *)stream;
	return CUDA_SUCCESS;
}

/* "Stream Management", cuStreamCreate: flags are CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING. */
CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	return result != CUDA_SUCCESS ? result : call_leave(create(handle, flags));
}

/* "Stream Management", cuStreamCreateWithPriority: priorities are hints, and have no effect here. */
CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	(void)priority; /* "Stream Management": clamped to what the device has; here that is one */
	return result != CUDA_SUCCESS ? result : call_leave(create(handle, flags));
}

/*
 * "Stream Management", cuStreamDestroy: returns at once, while queued work continues; default streams cannot be
 * destroyed.
 */
CUresult cuStreamDestroy(CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_AFTER_FAULT);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	result = stream_of(handle, &stream);
	if (result == CUDA_SUCCESS) {
		stream->alive = false;
		pthread_cond_broadcast(&driver.changed);
	}
	return call_leave(result);
}

/*
 * "Stream Management", cuStreamSynchronize: not while the stream is captured, which then becomes invalid (CUDA
 * programming guide, stream capture).
 */
CUresult cuStreamSynchronize(CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_of(handle, &stream);
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	if (stream->capture)
		return call_leave(capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
	if (stream == stream->context->legacy) {
		result = capture_implicit(stream->context);
		return call_leave(result != CUDA_SUCCESS ? result : context_wait(stream->context));
	}
	return call_leave(stream_wait(stream, stream->issued));
}

/*
 * "Stream Management", cuStreamQuery: CUDA_ERROR_NOT_READY while work is left; not while the stream is captured, as
 * cuStreamSynchronize().
 */
CUresult cuStreamQuery(CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_of(handle, &stream);
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	if (stream->capture)
		return call_leave(capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
	if (stream == stream->context->legacy)
		result = capture_implicit(stream->context);
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	return call_leave(stream->done < stream->issued ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

/* "Stream Management", cuStreamGetCtx: of a default stream, the current context. An invalid stream is undefined use. */
CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = context ? stream_of(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*context = context_handle(stream->context);
	return call_leave(result);
}

/*
 * "Data types used by CUDA driver", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: what a captured stream does not permit. That
 * copies of pageable memory belong to it is a choice: they would wait.
 */
static CUresult copy_pageable(struct stream *stream, struct operation *operation, bool from_host, bool to_host)
{
	CUresult result;

	if (stream->capture)
		return capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (from_host) {
		operation->staged = malloc(operation->bytes);
		if (!operation->staged)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(operation->staged, (const void *)(uintptr_t)operation->from, operation->bytes);
	}
	result = stream_issue(stream, operation);
	if (result == CUDA_SUCCESS && to_host)
		result = stream_wait(stream, stream->issued);
	return result;
}

/*
 * "API synchronization behavior", asynchronous copies: pageable host memory is staged before the call returns; a copy
 * to pageable host memory returns only once it is complete. With registered memory, the copy is fully asynchronous.
 */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, struct stream *stream)
{
	struct operation operation = {.kind = OP_COPY, .to = to, .from = from, .bytes = bytes};
	struct memory *held;
	uint64_t one = 1;
	bool from_host = !memory_is_device(from) && !memory_is_registered((void *)(uintptr_t)from, bytes) &&
		!memory_translate(stream->context->device, from, &one, false, &held);
	bool to_host = !memory_is_device(to) && !memory_is_registered((void *)(uintptr_t)to, bytes) &&
		!memory_translate(stream->context->device, to, &one, false, &held);

	if (!bytes)
		return CUDA_SUCCESS;
	if (!to || !from)
		return CUDA_ERROR_INVALID_VALUE;
	return from_host || to_host ? copy_pageable(stream, &operation, from_host, to_host)
				    : stream_issue(stream, &operation);
}

/* "Memory Management", cuMemcpyAsync: the addresses tell host and devices apart (unified addressing). */
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_of(handle, &stream);
	return call_leave(result != CUDA_SUCCESS ? result : copy(to, from, bytes, stream));
}

static CUresult copy_now(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
	struct stream *stream;
	CUresult result = stream_of(NULL, &stream);

	if (result == CUDA_SUCCESS)
		result = copy(to, from, bytes, stream);
	return result == CUDA_SUCCESS ? stream_wait(stream, stream->issued) : result;
}

/*
 * "Memory Management", cuMemcpyHtoD, and "API synchronization behavior": in the default stream. Here it is complete at
 * the return, also from pageable memory, where the documentation permits that only the staging is.
 */
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	return result != CUDA_SUCCESS ? result : call_leave(copy_now(to, (uintptr_t)from, bytes));
}

/*
 * "Memory Management", cuMemcpyDtoH, and "API synchronization behavior": in the default stream, complete at the return.
 */
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	return result != CUDA_SUCCESS ? result : call_leave(copy_now((uintptr_t)to, from, bytes));
}

static CUresult fill(CUdeviceptr to, uint64_t value, uint32_t element, uint64_t count, CUstream handle)
{
	struct operation operation = {
		.kind = OP_FILL, .to = to, .value = value, .element = element, .bytes = count * element};
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	/* "Memory Management", cuMemsetD32Async: the address is a multiple of the element. */
	if (to % element || !to)
		return CUDA_ERROR_INVALID_VALUE;
	return stream_issue(stream, &operation);
}

/* "Memory Management", cuMemsetD32Async: `count` elements of four bytes. */
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	return result != CUDA_SUCCESS ? result : call_leave(fill(to, value, 4, count, handle));
}

/* "Memory Management", cuMemsetD8Async: `count` bytes. */
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	return result != CUDA_SUCCESS ? result : call_leave(fill(to, value, 1, count, handle));
}

static CUresult word(enum operation_kind kind, CUstream handle, CUdeviceptr at, uint64_t value, unsigned flags)
{
	struct operation operation = {.kind = kind, .to = at, .value = value, .flags = flags, .bytes = 8};
	struct stream *stream;
	CUresult result = stream_of(handle, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	/* "Stream Memory Operations": supported if the device has the attribute. */
	if (!settings.timeline)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!at || at % 8)
		return CUDA_ERROR_INVALID_VALUE;
	return stream_issue(stream, &operation);
}

/*
 * "Stream Memory Operations", cuStreamWriteValue64: this version of the function does not support the flag that omits
 * the barrier, which is the only other one. The documentation does not name the error.
 */
CUresult cuStreamWriteValue64(CUstream handle, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags != CU_STREAM_WRITE_VALUE_DEFAULT)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	return call_leave(word(OP_WRITE, handle, at, value, flags));
}

/* "Stream Memory Operations", cuStreamWaitValue64: a comparison; GEQ is cyclic, by the sign of the difference. */
CUresult cuStreamWaitValue64(CUstream handle, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags & ~(unsigned)CU_STREAM_WAIT_VALUE_NOR)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	return call_leave(word(OP_WAIT_VALUE, handle, at, value, flags));
}

/* "Stream Management", cuLaunchHostFunc: the function runs after earlier work, and not after a fault. */
CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct operation operation = {.kind = OP_HOST, .function = function, .staged = data};
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = function ? stream_of(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	return call_leave(result != CUDA_SUCCESS ? result : stream_issue(stream, &operation));
}

void streams_forget(void)
{
	streams = NULL;
}
