#include "client/core/export.h"

#include "client/core/attach_call.h"
#include "client/core/fence_ticket.h"
#include "client/core/import.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "proto/codec.h"
#include "shm/timeline.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct exports {
	pthread_mutex_t lock;
	struct timeline_page *page; /* NULL: no fence has been exported */
	int fd;                     /* descriptor, until it is sent to the agent; then -1 */
	bool registered;            /* registered with the back end, so that streams can write to it */
	struct gpu_event *events[EXPORT_EVENTS];
	uint32_t event_count, event_next;
};

int export_open(struct gpool *pool)
{
	struct exports *exports = calloc(1, sizeof(*exports));

	if (!exports)
		return -ENOMEM;
	pthread_mutex_init(&exports->lock, NULL);
	exports->fd = -1;
	pool->exports = exports;
	return 0;
}

void export_close(struct gpool *pool)
{
	struct exports *exports = pool->exports;

	if (!exports)
		return;
	for (uint32_t i = 0; i < exports->event_count; i++)
		gpu_event_destroy(pool->gpu, exports->events[i]);
	if (exports->registered)
		gpu_host_unregister(pool->gpu, exports->page);
	timeline_page_close(exports->page);
	if (exports->fd >= 0)
		close(exports->fd);
	pthread_mutex_destroy(&exports->lock);
	free(exports);
	pool->exports = NULL;
}

uint64_t export_key(struct gpool *pool)
{
	struct exports *exports = pool->exports;
	uint64_t key;

	pthread_mutex_lock(&exports->lock);
	key = exports->page ? exports->page->key : 0;
	pthread_mutex_unlock(&exports->lock);
	return key;
}

/* ---- the timeline page; the caller holds the lock ---- */

/*
 * Create the timeline page. Exports by event need it too, because importers identify an exporter by the key of its
 * page.
 */
static int page_make(struct gpool *pool)
{
	struct exports *exports = pool->exports;
	int error;

	if (exports->page)
		return 0;
	error = timeline_page_create(pool->id, &exports->page, &exports->fd);
	if (error)
		return error == -ENFILE || error == -EMFILE ? -EMFILE : -ENOMEM;
	/*
	 * Exclude the page from forked children, like the session segment: a child could write through a pointer that
	 * it kept.
	 */
	madvise(exports->page, timeline_page_bytes(), MADV_DONTFORK);
	stream_publish(pool, exports->page);
	return 0;
}

static int page_register(struct gpool *pool)
{
	struct exports *exports = pool->exports;
	int error;

	if (exports->registered)
		return 0;
	error = gpu_host_register(pool->gpu, exports->page, timeline_page_bytes());
	if (error)
		return error;
	exports->registered = true;
	return 0;
}

/* Send the page to the agent. If the request is repeated, the agent gives the same reply. */
static int page_share(struct gpool *pool)
{
	const struct msg_timeline_share_request request = {0};
	struct exports *exports = pool->exports;
	struct msg_timeline_reply reply;
	uint8_t question[MSG_LARGEST_timeline_share_request], answer[MSG_LARGEST_timeline_reply];
	struct attach_call call = {
		.request = question,
		.length = msg_encode_timeline_share_request(&request, 0, NULL, question, sizeof(question)),
		.fd = exports->fd,
		.answer = answer,
		.capacity = sizeof(answer),
		.timeout_ms = pool->answer_ms,
	};
	int length;

	if (exports->fd < 0)
		return 0;
	length = attach_call(pool, &call);
	if (length < 0)
		return length == -EMFILE ? length : fail_silent(pool, pool->answer_ms);
	if (msg_decode_timeline_reply(&reply, answer, (size_t)length))
		return -EPROTO;
	if (reply.error) {
		pool_log(pool, POOL_LOG_WARNING, "the agent did not share the timeline of this session: %s",
			gpool_strerror(reply.error));
		return reply.error == -EMFILE || reply.error == -ENOMEM ? reply.error : -EPROTO;
	}
	close(exports->fd);
	exports->fd = -1;
	return 0;
}

/* ---- the two handle types: return 0, 1 (the fence is signaled), or an error; the caller holds the lock ---- */

static int by_timeline(struct gpool *pool, struct gpool_fence fence)
{
	int error = page_make(pool);

	if (!error)
		error = page_register(pool);
	if (!error)
		error = page_share(pool);
	return error ? error : stream_share(pool, fence);
}

/* Return an event whose work is done, the least recently used first; or create one while the ring is not full. */
static int event_take(struct gpool *pool, struct gpu_event **event)
{
	struct exports *exports = pool->exports;
	int error = fail(-EUSERS, "all %d events for exported fences have unfinished work, the limit; wait for a fence",
		EXPORT_EVENTS);

	if (exports->event_count < EXPORT_EVENTS) {
		error = gpu_event_create(pool->gpu, GPU_EVENT_INTERPROCESS, &exports->events[exports->event_count]);
		if (!error) {
			*event = exports->events[exports->event_count++];
			return 0;
		}
	}
	for (uint32_t i = 0; i < exports->event_count; i++) {
		uint32_t at = (exports->event_next + i) % exports->event_count;

		if (gpu_event_query(pool->gpu, exports->events[at]))
			continue;
		*event = exports->events[at];
		exports->event_next = at + 1;
		return 0;
	}
	return error;
}

static int by_event(struct gpool *pool, struct gpool_fence fence, struct fence_ticket *ticket)
{
	struct gpu_event *event = NULL;
	int error;

	if (!(pool->capabilities & GPU_CAP_IPC_EVENT))
		return fail(-EOPNOTSUPP, "events of this device cannot be shared between processes");
	error = page_make(pool);
	/* Importers of this pool learn from the page that the GPU has failed. The export also works without it. */
	if (!error)
		page_share(pool);
	if (!error)
		error = event_take(pool, &event);
	if (!error)
		error = stream_event(pool, fence, event);
	return error ? error : gpu_event_export(pool->gpu, event, ticket->ipc);
}

/* If the first handle type fails for any reason except an invalid fence or a capture, try the second one. */
static int fence_export(struct gpool *pool, struct gpool_fence fence, uint32_t flags, struct fence_ticket *ticket)
{
	int error = -EOPNOTSUPP, second;

	ticket->handle_type = GPOOL_FENCE_HANDLE_TIMELINE;
	if (!(flags & GPOOL_FENCE_EXPORT_EVENT))
		error = by_timeline(pool, fence);
	if (error >= 0 || error == -EINVAL || error == -EBUSY)
		return error;
	ticket->handle_type = GPOOL_FENCE_HANDLE_EVENT;
	second = by_event(pool, fence, ticket);
	return second < 0 && !(flags & GPOOL_FENCE_EXPORT_EVENT) ? error : second;
}

static int error_known(int error)
{
	switch (error) {
	case -EINVAL:
	case -EBUSY:
	case -EUSERS:
	case -EMFILE:
	case -ENOMEM:
	case -EOPNOTSUPP:
	case -EPIPE:
	case -EPROTO: return error;
	default: return -EIO;
	}
}

int gpool_fence_export(struct gpool *pool, struct gpool_fence fence, uint32_t flags, struct gpool_fence_handle *handle)
{
	struct fence_ticket ticket = {
		.handle_type = GPOOL_FENCE_HANDLE_SIGNALED,
		.magic = FENCE_TICKET_MAGIC,
		.version = FENCE_TICKET_VERSION,
		.session = pool->id,
		.value = fence.value & FENCE_VALUE_MASK,
		.slot = fence_slot(fence.value),
	};
	int result;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	if (flags & ~(uint32_t)GPOOL_FENCE_EXPORT_EVENT)
		return fail(-EINVAL, "flags are 0x%x; the only known flag is GPOOL_FENCE_EXPORT_EVENT", flags);
	if (fence_check(pool, fence))
		return -EINVAL;
	if (stream_is_mirror(pool, fence_slot(fence.value)))
		return fail(
			-EINVAL, "fence 0x%llx was imported and cannot be exported", (unsigned long long)fence.value);
	if (!fence_signaled(&pool->session, fence.value)) {
		pthread_mutex_lock(&pool->exports->lock);
		result = fence_export(pool, fence, flags, &ticket);
		if (pool->exports->page)
			ticket.key = pool->exports->page->key;
		pthread_mutex_unlock(&pool->exports->lock);
		if (result == 0)
			result = import_watch(pool);
		if (result < 0)
			return error_known(result);
		if (result > 0)
			ticket.handle_type = GPOOL_FENCE_HANDLE_SIGNALED;
	}
	if (ticket.handle_type == GPOOL_FENCE_HANDLE_SIGNALED)
		memset(ticket.ipc, 0, sizeof(ticket.ipc));
	memcpy(handle, &ticket, sizeof(ticket));
	return 0;
}
