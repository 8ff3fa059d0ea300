#include "client/core/import_source.h"

#include "client/core/attach_call.h"
#include "client/core/import.h"
#include "client/core/last_error.h"
#include "proto/codec.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- timelines ---- */

bool view_is_dead(const struct gpool *pool, const struct import_view *view)
{
	const struct session_record *record = &pool->segment.sessions[view->session];

	return atomic_load_explicit(&record->state, memory_order_acquire) == SESSION_RECORD_NONE ||
		record->pid != view->pid || record->attached_ms != view->attached_ms;
}

int view_reached(const struct gpool *pool, const struct import_view *view, uint32_t slot, uint64_t value)
{
	/* Test for the end first: progress before it counts as progress. */
	bool dead = view_is_dead(pool, view), failed = timeline_page_failed(view->page, slot);

	if (atomic_load_explicit(&view->page->signaled[slot], memory_order_acquire) >= value)
		return 1;
	return dead ? -ESRCH : failed ? -EIO : 0;
}

static int page_ask(struct gpool *pool, uint32_t session, int *fd)
{
	const struct msg_timeline_open_request request = {.session = session};
	struct msg_timeline_reply reply;
	uint8_t question[MSG_LARGEST_timeline_open_request], answer[MSG_LARGEST_timeline_reply];
	struct attach_call call = {
		.request = question,
		.length = msg_encode_timeline_open_request(&request, 0, NULL, question, sizeof(question)),
		.fd = -1,
		.answer = answer,
		.capacity = sizeof(answer),
		.fds = fd,
		.fd_capacity = 1,
		.timeout_ms = pool->answer_ms,
	};
	int length = attach_call(pool, &call);

	if (length < 0)
		return length == -EMFILE ? length : fail_silent(pool, pool->answer_ms);
	if (msg_decode_timeline_reply(&reply, answer, (size_t)length) || (call.fd_count != 0) != (reply.error == 0)) {
		for (size_t i = 0; i < call.fd_count; i++)
			close(*fd);
		return -EPROTO;
	}
	return reply.error == 0 || reply.error == -ESRCH || reply.error == -EACCES ? reply.error : -EPROTO;
}

/*
 * Open the timeline page of the exporter. If its session has ended since the ticket was written, and the session number
 * was reused, the key differs.
 */
static int page_open(struct gpool *pool, const struct fence_ticket *ticket, const struct timeline_page **page)
{
	int fd, error = page_ask(pool, ticket->session, &fd);

	if (error)
		return error;
	error = timeline_page_open(fd, page);
	close(fd);
	if (error)
		return error == -ENOMEM ? error : -EPROTO;
	if ((*page)->key == ticket->key && (*page)->session == ticket->session)
		return 0;
	timeline_page_close(*page);
	return -ESRCH;
}

static void view_free(struct import_view **at)
{
	struct import_view *view = *at;

	*at = view->next;
	timeline_page_close(view->page);
	free(view);
}

/*
 * Free unused views: all those of ended sessions, and the oldest of the others above the limit. The caller holds the
 * lock.
 */
static void views_sweep(const struct gpool *pool, struct import_sources *sources)
{
	struct import_view **at = &sources->views;
	uint32_t unused = 0;

	while (*at) {
		struct import_view *view = *at;

		if (!view->refs && (view_is_dead(pool, view) || ++unused > IMPORT_VIEWS))
			view_free(at);
		else
			at = &view->next;
	}
}

static struct import_view *view_find(
	const struct gpool *pool, struct import_sources *sources, const struct fence_ticket *ticket)
{
	struct import_view *view;

	pthread_mutex_lock(&sources->lock);
	views_sweep(pool, sources);
	for (view = sources->views; view; view = view->next)
		if (view->session == ticket->session && view->page->key == ticket->key)
			break;
	if (view)
		view->refs++;
	pthread_mutex_unlock(&sources->lock);
	return view;
}

int view_get(struct gpool *pool, struct import_sources *sources, const struct fence_ticket *ticket,
	struct import_view **view)
{
	/*
	 * This record belongs to the current owner of the session number. If that is not the exporter, the key differs.
	 */
	const struct session_record *record = &pool->segment.sessions[ticket->session];
	struct import_view *made;
	int error;

	*view = view_find(pool, sources, ticket);
	if (*view)
		return 0;
	if (atomic_load_explicit(&record->state, memory_order_acquire) == SESSION_RECORD_NONE)
		return -ESRCH;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	*made = (struct import_view){
		.session = ticket->session, .pid = record->pid, .attached_ms = record->attached_ms, .refs = 1};
	error = page_open(pool, ticket, &made->page);
	if (error) {
		free(made);
		return error;
	}
	pthread_mutex_lock(&sources->lock);
	made->next = sources->views;
	sources->views = made;
	pthread_mutex_unlock(&sources->lock);
	*view = made;
	return 0;
}

void view_put(struct import_sources *sources, struct import_view *view)
{
	pthread_mutex_lock(&sources->lock);
	view->refs--;
	pthread_mutex_unlock(&sources->lock);
}

/* ---- events ---- */

/* Convert a back end's error for an event to one of gpool_fence_import(). */
static int event_error(int error)
{
	switch (error) {
	case -ENODEV: return -ESRCH;
	case -EPERM: return -EACCES;
	case -ENFILE: return -EMFILE;
	case -EINVAL:
	case -ESRCH:
	case -EMFILE:
	case -ENOMEM:
	case -EOPNOTSUPP: return error;
	default: return -EIO;
	}
}

static void event_free(struct gpool *pool, struct import_sources *sources, struct import_event **at)
{
	struct import_event *event = *at;

	*at = event->next;
	sources->event_count--;
	gpu_event_destroy(pool->gpu, event->event);
	free(event);
}

/*
 * If the limit of open events is reached, close the oldest unused one. Return false if all are in use. The caller holds
 * the lock.
 */
static bool event_make_room(struct gpool *pool, struct import_sources *sources)
{
	struct import_event **oldest = NULL;

	if (sources->event_count < IMPORT_EVENTS)
		return true;
	for (struct import_event **at = &sources->events; *at; at = &(*at)->next)
		if (!(*at)->refs)
			oldest = at;
	if (oldest)
		event_free(pool, sources, oldest);
	return oldest != NULL;
}

/*
 * Find an open event, because exporters reuse their events and opening one is slow. If *event is NULL on return, the
 * caller opens the event.
 */
static int event_find(struct gpool *pool, struct import_sources *sources, const struct fence_ticket *ticket,
	struct import_event **event)
{
	struct import_event *found;
	int error = 0;

	pthread_mutex_lock(&sources->lock);
	for (found = sources->events; found; found = found->next)
		if (found->key == ticket->key && !found->dead && !memcmp(found->ipc, ticket->ipc, sizeof(found->ipc)))
			break;
	if (found)
		found->refs++;
	else if (!event_make_room(pool, sources))
		error = fail(-EUSERS, "%d imported events are in use, the limit; close their fences", IMPORT_EVENTS);
	pthread_mutex_unlock(&sources->lock);
	*event = found;
	return error;
}

int event_get(struct gpool *pool, struct import_sources *sources, const struct fence_ticket *ticket,
	struct import_event **event)
{
	struct import_event *made;
	int error;

	if (!(pool->capabilities & GPU_CAP_IPC_EVENT))
		return fail(-EOPNOTSUPP, "events of this device cannot be shared between processes");
	error = event_find(pool, sources, ticket, event);
	if (error || *event)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	error = gpu_event_import(pool->gpu, ticket->ipc, &made->event);
	if (error) {
		pool_log(pool, POOL_LOG_INFO, "a fence of session %u cannot be imported: %s", ticket->session,
			gpu_error_text());
		free(made);
		return event_error(error);
	}
	made->key = ticket->key;
	memcpy(made->ipc, ticket->ipc, sizeof(made->ipc));
	made->refs = 1;
	pthread_mutex_lock(&sources->lock);
	made->next = sources->events;
	sources->events = made;
	sources->event_count++;
	pthread_mutex_unlock(&sources->lock);
	*event = made;
	return 0;
}

void event_put(struct gpool *pool, struct import_sources *sources, struct import_event *event)
{
	struct import_event **at = &sources->events;

	pthread_mutex_lock(&sources->lock);
	if (!--event->refs && event->dead) {
		while (*at != event)
			at = &(*at)->next;
		event_free(pool, sources, at);
	}
	pthread_mutex_unlock(&sources->lock);
}

int event_reached(struct gpool *pool, struct import_event *event)
{
	int error = event->dead ? -ENODEV : gpu_event_query(pool->gpu, event->event);

	if (error == -EAGAIN)
		return 0;
	/* The device of this process has failed. The event may still be signaled. */
	if (error == -EIO)
		return -EIO;
	if (error)
		event->dead = true;
	return error ? -ESRCH : 1;
}

/* ---- open and close ---- */

void sources_open(struct import_sources *sources)
{
	pthread_mutex_init(&sources->lock, NULL);
}

void sources_close(struct gpool *pool, struct import_sources *sources)
{
	while (sources->views)
		view_free(&sources->views);
	while (sources->events)
		event_free(pool, sources, &sources->events);
	pthread_mutex_destroy(&sources->lock);
}
