/* event.c - events, also between processes: "Event Management" and the events of "Memory Management" (cuIpc...). */
#include "tests/driver/driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct event *events; /* never freed, so that a stale handle is recognized */

struct wire { /* in a CUipcEventHandle */
	char magic[8];
	uint32_t index, generation;
	int32_t maker, device;
};

static struct event *event_of(CUevent handle)
{
	for (struct event *event = events; event; event = event->next)
		if ((CUevent)(void *)event == handle && event->alive)
			return event;
	return NULL;
}

static _Atomic uint64_t *record_word(const struct event *event, uint64_t record)
{
	return &event->state->pending[record % RECORDS_PENDING / 64];
}

static uint64_t record_bit(uint64_t record)
{
	return 1ull << record % 64;
}

/*
 * record_begin() - number a new record, which is pending until event_record_end(). The call waits while too many
 * records have not been executed, as with a driver whose queue is full.
 */
static uint64_t record_begin(struct event *event)
{
	uint64_t record = atomic_load(&event->state->recorded) + 1;

	while (atomic_load(record_word(event, record)) & record_bit(record) && !driver.fault)
		pthread_cond_wait(&driver.changed, &driver.lock);
	atomic_fetch_or(record_word(event, record), record_bit(record));
	atomic_fetch_add(&event->state->recorded, 1);
	return record;
}

void event_record_end(struct event *event, uint64_t record)
{
	atomic_fetch_and(record_word(event, record), ~record_bit(record));
}

bool event_reached(const struct event *event, uint64_t record)
{
	return !record || atomic_load(&event->state->recorded) - record >= RECORDS_PENDING ||
		!(atomic_load(record_word(event, record)) & record_bit(record));
}

/* event_gone() - return true for an imported event whose maker has died or destroyed it. */
static bool event_gone(const struct event *event)
{
	return event->imported && !machine_event_alive(event->state, event->generation);
}

static struct event *event_add(struct context *context)
{
	struct event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	event->context = context;
	event->alive = true;
	event->state = &event->own;
	event->next = events;
	events = event;
	return event;
}

static void event_end(struct event *event)
{
	event->alive = false;
	if (event->state != &event->own && !event->imported)
		machine_event_give(event->state);
}

void events_end(struct context *context)
{
	for (struct event *event = events; event; event = event->next)
		if (event->alive && event->context == context)
			event_end(event);
}

/* "Event Management", cuEventCreate: known flags; CU_EVENT_INTERPROCESS only with CU_EVENT_DISABLE_TIMING. */
CUresult cuEventCreate(CUevent *handle, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct event *event;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS) ||
		(flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	event = event_add(context_current());
	if (!event)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	event->flags = flags;
	if (flags & CU_EVENT_INTERPROCESS) {
		event->state = machine_event_take(&event->index);
		if (!event->state) {
			event->state = &event->own;
			event->alive = false;
			return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
		}
		event->generation = atomic_load(&event->state->generation);
	}
	*handle = (CUevent)(void *)event;
	return call_leave(CUDA_SUCCESS);
}

/* "Event Management", cuEventDestroy: also before the event has been reached. */
CUresult cuEventDestroy(CUevent handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_AFTER_FAULT);
	struct event *event;

	if (result != CUDA_SUCCESS)
		return result;
	event = event_of(handle);
	if (!event)
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	event_end(event);
	return call_leave(CUDA_SUCCESS);
}

/*
 * "Event Management", cuEventRecord: event and stream belong to the same context, else CUDA_ERROR_INVALID_HANDLE. A
 * later record replaces the earlier one.
 */
CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct operation operation = {.kind = OP_RECORD};
	struct stream *stream;
	struct event *event;

	if (result != CUDA_SUCCESS)
		return result;
	event = event_of(handle);
	result = event ? stream_of(stream_handle, &stream) : CUDA_ERROR_INVALID_HANDLE;
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	if (event->context != stream->context || event_gone(event))
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	if (stream->capture) {
		capture_record(stream, event);
		return call_leave(CUDA_SUCCESS);
	}
	event->capture = NULL;
	operation.event = event;
	operation.record = record_begin(event);
	return call_leave(stream_issue(stream, &operation));
}

/* "Event Management", cuEventQuery: done if never recorded; not for an event that was recorded in a capture. */
CUresult cuEventQuery(CUevent handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct event *event;

	if (result != CUDA_SUCCESS)
		return result;
	event = event_of(handle);
	if (!event || event_gone(event))
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	if (event->capture)
		return call_leave(CUDA_ERROR_CAPTURED_EVENT);
	return call_leave(
		event_reached(event, atomic_load(&event->state->recorded)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

/* "Event Management", cuEventSynchronize: waits for the last record, or not at all if there is none. */
CUresult cuEventSynchronize(CUevent handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct event *event;
	unsigned round = 0;
	uint64_t record;

	if (result != CUDA_SUCCESS)
		return result;
	event = event_of(handle);
	if (!event || event_gone(event))
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	if (event->capture)
		return call_leave(CUDA_ERROR_CAPTURED_EVENT);
	record = atomic_load(&event->state->recorded);
	while (!event_reached(event, record) && !driver.fault)
		driver_poll(&round);
	return call_leave(driver_failed());
}

/*
 * "Stream Management", cuStreamWaitEvent: for the most recent record at the time of the call; the stream may belong to
 * another context. An event that was recorded in a capture makes the stream part of that capture. The flag for external
 * events is only for captures; such a wait is not modeled, and refused.
 */
CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct operation operation = {.kind = OP_WAIT_EVENT};
	struct stream *stream;
	struct event *event;

	if (result != CUDA_SUCCESS)
		return result;
	event = event_of(handle);
	result = event ? stream_of(stream_handle, &stream) : CUDA_ERROR_INVALID_HANDLE;
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	if (flags & ~1u || (flags & CU_EVENT_WAIT_EXTERNAL && !stream->capture))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (event_gone(event))
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	if (event->capture)
		return call_leave(capture_join(stream, event));
	/* "Stream Management", cuStreamBeginCapture: a capture must not depend on work outside it. */
	if (stream->capture)
		return call_leave(capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
	operation.event = event;
	operation.record = atomic_load(&event->state->recorded);
	return call_leave(stream_issue(stream, &operation));
}

/* "Memory Management", cuIpcGetEventHandle: the event was created with CU_EVENT_INTERPROCESS. */
CUresult cuIpcGetEventHandle(CUipcEventHandle *ipc, CUevent handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct wire wire = {.magic = "gpudbl1"};
	struct event *event;

	if (result != CUDA_SUCCESS)
		return result;
	event = event_of(handle);
	if (!ipc)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!event || event->imported || !(event->flags & CU_EVENT_INTERPROCESS))
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	wire.index = event->index;
	wire.generation = event->generation;
	wire.maker = getpid();
	wire.device = event->context->device;
	memset(ipc, 0, sizeof(*ipc));
	memcpy(ipc, &wire, sizeof(wire));
	return call_leave(CUDA_SUCCESS);
}

/*
 * "Memory Management", cuIpcOpenEventHandle: a handle of another process whose event exists. In its own process it
 * fails; the documentation does not name the error.
 */
CUresult cuIpcOpenEventHandle(CUevent *handle, CUipcEventHandle ipc)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct shared_event *state;
	struct event *event;
	struct wire wire;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&wire, &ipc, sizeof(wire));
	state = machine_event_at(wire.index);
	if (memcmp(wire.magic, "gpudbl1", 8) != 0 || !state || !machine_event_alive(state, wire.generation))
		return call_leave(CUDA_ERROR_INVALID_HANDLE);
	if (wire.maker == getpid())
		return call_leave(CUDA_ERROR_INVALID_CONTEXT);
	event = event_add(context_current());
	if (!event)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	event->imported = true;
	event->state = state;
	event->index = wire.index;
	event->generation = wire.generation;
	*handle = (CUevent)(void *)event;
	return call_leave(CUDA_SUCCESS);
}

void events_forget(void)
{
	events = NULL;
}
