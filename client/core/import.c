/* import.c - see import.h. import_source.h reads the progress of other processes. */
#include "client/core/import.h"

#include "client/core/export.h"
#include "client/core/import_source.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "shm/timeline.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/queue.h>

enum {
	/*
	 * polling interval: a GPU that writes a number wakes no thread. Chosen: polling makes a wait longer by at most
	 * an eighth, or by the minimum
	 */
	STEP_LEAST_NS = 20000,
	STEP_MOST_NS = 1000000,
	STEP_SHARE = 8,
	/* chosen: a failure of a GPU is rare, and its detection may take some time */
	WATCH_NS = 100000000,
	GONE_LOOK_NS = 500000000, /* interval of checks whether the agent, which reports deaths, still exists */
};

/*
 * An imported fence: its number in the other process's stream (theirs) and in the mirror (ours). Both numbers increase
 * along the list.
 */
struct import_fence {
	TAILQ_ENTRY(import_fence) link;
	uint64_t theirs, ours;
	uint32_t refs;
	struct import_event *event; /* NULL: the number in the timeline page */
};
TAILQ_HEAD(import_fences, import_fence);

/* A stream of another session, and its mirror. */
struct import {
	LIST_ENTRY(import) link;
	uint64_t key;
	uint32_t stream;          /* slot in the other session */
	uint32_t slot;            /* slot in this session */
	struct import_view *view; /* NULL: the import uses only events */
	struct import_fences fences;
	uint64_t signaled; /* highest signaled number of the mirror */
	uint32_t refs;     /* sum of the references to its fences */
	/* a stream or a block of this process may wait for one of the numbers, even if all of its fences are closed */
	bool held;
	int error; /* error of the fences that will never be signaled */
	/* -EIO, but work of the other process may still be running: blocks wait until the process has ended */
	bool failed;
};

struct imports {
	struct gpool *pool;
	pthread_mutex_t turn; /* serializes imports; held during requests to the agent */
	pthread_mutex_t lock; /* protects all fields below */
	pthread_cond_t work;
	struct import_sources sources;
	LIST_HEAD(, import) all;
	uint64_t news_ns; /* time of the last import or progress */
	uint64_t gone_ns; /* time of the last check whether the agent exists */
	pthread_t thread;
	bool running, ending;
	bool watch; /* call stream_watch() */
	uint64_t watched_ns;
};

/* ---- progress; the caller holds the lock ---- */

static bool is_open(const struct import *import)
{
	const struct import_fence *last = TAILQ_LAST(&import->fences, import_fences);

	return last && last->ours > import->signaled && !import->error;
}

static int fence_signaled_there(struct gpool *pool, const struct import *import, const struct import_fence *fence)
{
	int state = fence->event ? event_reached(pool, fence->event) : 0;

	if (state || !import->view)
		return state;
	state = view_reached(pool, import->view, import->stream, fence->theirs);
	/* The event may have been signaled before the end that the page reports. */
	return state < 0 && fence->event && event_reached(pool, fence->event) > 0 ? 1 : state;
}

static void fence_free(struct gpool *pool, struct import *import, struct import_fence *fence)
{
	TAILQ_REMOVE(&import->fences, fence, link);
	if (fence->event)
		event_put(pool, &pool->imports->sources, fence->event);
	free(fence);
}

/* Free the fences that the program has closed, unless an operation may wait for them. */
static void fences_sweep(struct gpool *pool, struct import *import)
{
	struct import_fence *fence, *next;

	if (!is_open(import) && !import->failed)
		import->held = false;
	for (fence = TAILQ_FIRST(&import->fences); fence; fence = next) {
		next = TAILQ_NEXT(fence, link);
		if (!fence->refs && (!import->held || fence->ours <= import->signaled))
			fence_free(pool, import, fence);
	}
}

/* End all waits and record the error: the remaining numbers will never be signaled. */
static void import_break(struct gpool *pool, struct import *import, int error)
{
	import->error = error;
	import->failed = error == -EIO;
	if (import->failed)
		stream_mirror_release(pool, import->slot);
	else
		stream_mirror_reach(pool, import->slot, UINT64_MAX);
}

/* Signal the mirror of a failed import when the other process has ended. Return true if it has. */
static bool import_settle(struct gpool *pool, struct import *import)
{
	if (!import->view || !view_is_dead(pool, import->view))
		return false;
	import->failed = false;
	stream_mirror_reach(pool, import->slot, UINT64_MAX);
	fences_sweep(pool, import);
	return true;
}

/* Update the mirror. Return true if it has advanced or ended. */
static bool import_refresh(struct gpool *pool, struct import *import)
{
	uint64_t before = import->signaled;
	int state = 1;

	for (struct import_fence *fence = TAILQ_FIRST(&import->fences); fence && state > 0 && !import->error;
		fence = TAILQ_NEXT(fence, link)) {
		if (fence->ours <= import->signaled)
			continue;
		state = fence_signaled_there(pool, import, fence);
		if (state > 0)
			import->signaled = fence->ours;
	}
	if (import->signaled != before)
		stream_mirror_reach(pool, import->slot, import->signaled);
	if (state < 0)
		import_break(pool, import, state);
	fences_sweep(pool, import);
	return import->signaled != before || state < 0;
}

static bool is_needed(const struct import *import)
{
	return import->refs || (import->held && (is_open(import) || import->failed));
}

static void import_end(struct gpool *pool, struct import *import)
{
	struct imports *imports = pool->imports;

	while (!TAILQ_EMPTY(&import->fences))
		fence_free(pool, import, TAILQ_FIRST(&import->fences));
	if (import->view)
		view_put(&imports->sources, import->view);
	stream_mirror_close(pool, import->slot);
	LIST_REMOVE(import, link);
	free(import);
}

static struct import *import_of_slot(const struct imports *imports, uint32_t slot)
{
	struct import *import;

	LIST_FOREACH(import, &imports->all, link)
	if (import->slot == slot)
		break;
	return import;
}

/* ---- the polling thread ---- */

/* Check whether the agent exists, because only the agent would report the death of an exporter. */
static void look_for_agent(struct imports *imports)
{
	uint64_t now = monotonic_ns();
	struct import *import;

	if (now - imports->gone_ns < GONE_LOOK_NS)
		return;
	imports->gone_ns = now;
	if (!pool_gone(imports->pool))
		return;
	LIST_FOREACH(import, &imports->all, link)
	if (is_open(import))
		import_break(imports->pool, import, -EPIPE);
}

/*
 * Update all imports. Return true if any is still open. *progress: true if any has advanced; *failed: true if any waits
 * for the end of its process.
 */
static bool imports_refresh(struct imports *imports, bool *progress, bool *failed)
{
	struct import *import, *next;
	bool open = false;

	*progress = *failed = false;
	for (import = LIST_FIRST(&imports->all); import; import = next) {
		next = LIST_NEXT(import, link);
		if (is_open(import))
			*progress |= import_refresh(imports->pool, import);
		else if (import->failed)
			*progress |= import_settle(imports->pool, import);
		open |= is_open(import);
		*failed |= import->failed;
		if (!is_needed(import))
			import_end(imports->pool, import);
	}
	if (open)
		look_for_agent(imports);
	return open;
}

/* Sleep for this time, or until the next import. */
static void sleep_step(struct imports *imports, uint64_t step)
{
	uint64_t until = monotonic_ns() + step;
	struct timespec limit;

	limit = (struct timespec){.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
	pthread_cond_timedwait(&imports->work, &imports->lock, &limit);
}

/* Return the time until the next poll of open imports, which depends on the time without progress. */
static uint64_t poll_step(uint64_t quiet_ns)
{
	uint64_t step = quiet_ns / STEP_SHARE;

	return step < STEP_LEAST_NS ? STEP_LEAST_NS : step > STEP_MOST_NS ? STEP_MOST_NS : step;
}

/* Call stream_watch() at intervals. The lock is released temporarily. */
static void watch(struct imports *imports)
{
	uint64_t now = monotonic_ns();
	bool again;

	if (!imports->watch || now - imports->watched_ns < WATCH_NS)
		return;
	imports->watched_ns = now;
	imports->watch = false;
	pthread_mutex_unlock(&imports->lock);
	again = stream_watch(imports->pool);
	pthread_mutex_lock(&imports->lock);
	imports->watch |= again;
}

static void *imports_main(void *argument)
{
	struct imports *imports = argument;
	bool progress, failed, open;

	pthread_mutex_lock(&imports->lock);
	while (!imports->ending) {
		watch(imports);
		open = imports_refresh(imports, &progress, &failed);
		if (progress)
			imports->news_ns = monotonic_ns();
		if (imports->ending)
			break;
		if (open)
			sleep_step(imports, poll_step(monotonic_ns() - imports->news_ns));
		else if (failed || imports->watch)
			sleep_step(imports, WATCH_NS);
		else
			pthread_cond_wait(&imports->work, &imports->lock);
	}
	pthread_mutex_unlock(&imports->lock);
	return NULL;
}

/* Start the thread with all signals blocked, so that the program's threads handle them. The caller holds the lock. */
static int thread_start(struct imports *imports)
{
	sigset_t all, before;
	int error;

	if (imports->running)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&imports->thread, NULL, imports_main, imports);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	imports->running = !error;
	return error ? -ENOMEM : 0;
}

int import_watch(struct gpool *pool)
{
	struct imports *imports = pool->imports;
	int error;

	pthread_mutex_lock(&imports->lock);
	error = thread_start(imports);
	if (!error && !imports->watch) {
		imports->watch = true;
		imports->watched_ns = monotonic_ns();
		pthread_cond_signal(&imports->work);
	}
	pthread_mutex_unlock(&imports->lock);
	return error;
}

void import_close(struct gpool *pool)
{
	struct imports *imports = pool->imports;

	if (!imports)
		return;
	pthread_mutex_lock(&imports->lock);
	imports->ending = true;
	pthread_cond_signal(&imports->work);
	pthread_mutex_unlock(&imports->lock);
	if (imports->running)
		pthread_join(imports->thread, NULL);
	while (!LIST_EMPTY(&imports->all))
		import_end(pool, LIST_FIRST(&imports->all));
	sources_close(pool, &imports->sources);
	pthread_cond_destroy(&imports->work);
	pthread_mutex_destroy(&imports->lock);
	pthread_mutex_destroy(&imports->turn);
	free(imports);
	pool->imports = NULL;
}

/* ---- query and wait ---- */

/* Find an imported fence by its number in this session. Return NULL if it does not exist. The caller holds the lock. */
static struct import_fence *fence_find(const struct import *import, uint64_t ours)
{
	struct import_fence *fence;

	TAILQ_FOREACH(fence, &import->fences, link)
	if (fence->ours == ours)
		break;
	return fence;
}

static int import_look(struct gpool *pool, struct gpool_fence fence)
{
	struct imports *imports = pool->imports;
	uint64_t ours = fence.value & FENCE_VALUE_MASK;
	struct import *import;
	int state = 1;

	pthread_mutex_lock(&imports->lock);
	import = import_of_slot(imports, fence_slot(fence.value));
	if (import) {
		if (ours > import->signaled && !import->error)
			import_refresh(pool, import);
		state = ours <= import->signaled ? 1 : import->error;
		if (state == -EPIPE)
			fail(state,
				"gpoold was found not running, so the end of the process that exported fence 0x%llx "
				"would not be noticed; close the fence",
				(unsigned long long)fence.value);
		if (state == -EIO || state == -ESRCH)
			fail(state, "the %s that exported fence 0x%llx has %s",
				state == -EIO ? "GPU of the process" : "process", (unsigned long long)fence.value,
				state == -EIO ? "failed" : "died or detached before the fence was signaled");
	}
	pthread_mutex_unlock(&imports->lock);
	return state;
}

static void import_hold(struct gpool *pool, struct gpool_fence fence)
{
	struct imports *imports = pool->imports;
	struct import *import;

	pthread_mutex_lock(&imports->lock);
	import = import_of_slot(imports, fence_slot(fence.value));
	if (import)
		import->held = true;
	pthread_mutex_unlock(&imports->lock);
}

static int import_stream_wait(struct gpool *pool, struct gpu_stream *stream, struct gpool_fence fence)
{
	struct imports *imports = pool->imports;
	struct import *import;
	const struct import_fence *found;
	int error;

	pthread_mutex_lock(&imports->lock);
	import = import_of_slot(imports, fence_slot(fence.value));
	found = import ? fence_find(import, fence.value & FENCE_VALUE_MASK) : NULL;
	/* The GPU waits for an event directly, which is faster than a signal by this process. */
	if (found && found->event)
		error = gpu_event_wait(pool->gpu, stream, found->event->event);
	else
		error = stream_wait_word(pool, stream, fence);
	if (import)
		import->held = true;
	pthread_mutex_unlock(&imports->lock);
	return error == -ENODEV ? -ESRCH : error;
}

/* ---- open and close ---- */

static const struct stream_mirrors mirrors = {
	.look = import_look, .hold = import_hold, .stream_wait = import_stream_wait, .watch = import_watch};

int import_open(struct gpool *pool)
{
	struct imports *imports = calloc(1, sizeof(*imports));
	pthread_condattr_t attributes;

	if (!imports)
		return -ENOMEM;
	imports->pool = pool;
	pthread_mutex_init(&imports->turn, NULL);
	pthread_mutex_init(&imports->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&imports->work, &attributes);
	pthread_condattr_destroy(&attributes);
	sources_open(&imports->sources);
	LIST_INIT(&imports->all);
	pool->imports = imports;
	stream_mirrors_register(pool, &mirrors);
	return 0;
}

/* ---- import and close fences ---- */

/* Find the import of a stream and add a reference, so that the thread does not end it. Return NULL if none exists. */
static struct import *import_find(
	struct imports *imports, const struct fence_ticket *ticket, const struct import_view *view)
{
	struct import *import;

	pthread_mutex_lock(&imports->lock);
	LIST_FOREACH(import, &imports->all, link)
	if (import->key == ticket->key && import->stream == ticket->slot && import->view == view && !import->error)
		break;
	if (import)
		import->refs++;
	pthread_mutex_unlock(&imports->lock);
	return import;
}

/*
 * Create an import that is in no list yet. The caller holds imports->turn. It need not hold imports->lock, because
 * streams have their own locks.
 */
static int import_new(
	struct gpool *pool, const struct fence_ticket *ticket, struct import_view *view, struct import **import)
{
	struct import *made = calloc(1, sizeof(*made));
	int error;

	if (!made)
		return -ENOMEM;
	error = stream_mirror_open(pool, &made->slot);
	if (error) {
		free(made);
		return error;
	}
	TAILQ_INIT(&made->fences);
	made->key = ticket->key;
	made->stream = ticket->slot;
	made->view = view;
	made->refs = 1;
	*import = made;
	return 0;
}

/*
 * Insert the fence into the list of its stream. If a later fence is already in the list, an earlier one shares its
 * number, because it is signaled no later. The caller holds the lock.
 */
static int fence_add(struct gpool *pool, struct import *import, const struct fence_ticket *ticket,
	struct import_event *event, struct gpool_fence *fence)
{
	struct import_fence *added;

	TAILQ_FOREACH(added, &import->fences, link)
	if (added->theirs >= ticket->value)
		break;
	if (added) {
		added->refs++;
		fence->value = fence_make(import->slot, added->ours);
		if (event)
			event_put(pool, &pool->imports->sources, event);
		return 0;
	}
	added = calloc(1, sizeof(*added));
	if (!added)
		return -ENOMEM;
	*fence = stream_mirror_next(pool, import->slot);
	added->theirs = ticket->value;
	added->ours = fence->value & FENCE_VALUE_MASK;
	added->refs = 1;
	added->event = event;
	TAILQ_INSERT_TAIL(&import->fences, added, link);
	return 0;
}

/* Import an unsignaled fence. On success the import owns the view or the event. */
static int fence_import(struct imports *imports, const struct fence_ticket *ticket, struct import_view *view,
	struct import_event *event, struct gpool_fence *fence)
{
	struct import *found = import_find(imports, ticket, view), *import = found;
	struct gpool *pool = imports->pool;
	int error = found ? 0 : import_new(pool, ticket, view, &import);

	if (error)
		return error;
	pthread_mutex_lock(&imports->lock);
	error = thread_start(imports);
	if (!error)
		error = fence_add(pool, import, ticket, event, fence);
	if (error && found) {
		found->refs--;
	} else if (error) {
		stream_mirror_close(pool, import->slot);
		free(import);
	} else if (!found) {
		LIST_INSERT_HEAD(&imports->all, import, link);
	} else if (view) {
		view_put(&imports->sources, view); /* the import already has a view */
	}
	imports->news_ns = monotonic_ns();
	pthread_cond_signal(&imports->work);
	pthread_mutex_unlock(&imports->lock);
	return error;
}

static int import_by_timeline(struct imports *imports, const struct fence_ticket *ticket, struct gpool_fence *fence)
{
	struct import_view *view;
	int error = view_get(imports->pool, &imports->sources, ticket, &view), state;

	if (error)
		return error;
	state = view_reached(imports->pool, view, ticket->slot, ticket->value);
	if (state > 0)
		*fence = GPOOL_FENCE_NONE;
	error = state == 0 ? fence_import(imports, ticket, view, NULL, fence) : state < 0 ? state : 0;
	if (state || error)
		view_put(&imports->sources, view);
	return error;
}

static int import_by_event(struct imports *imports, const struct fence_ticket *ticket, struct gpool_fence *fence)
{
	struct import_view *view = NULL;
	struct import_event *event;
	int error = event_get(imports->pool, &imports->sources, ticket, &event), state;

	if (error)
		return error;
	/* The page reports the end of a process of this pool, and the failure of its GPU. */
	if (view_get(imports->pool, &imports->sources, ticket, &view))
		view = NULL;
	state = event_reached(imports->pool, event);
	if (state > 0)
		*fence = GPOOL_FENCE_NONE;
	error = state == 0 ? fence_import(imports, ticket, view, event, fence) : state < 0 ? state : 0;
	if ((state || error) && view)
		view_put(&imports->sources, view);
	if (state || error)
		event_put(imports->pool, &imports->sources, event);
	return error;
}

/* Describe a fence that cannot be imported; the log has the driver's reason for an event. */
static COLD void fail_import(const struct fence_ticket *ticket, int error)
{
	if (error == -EACCES)
		fail(error, "session %u, which exported the fence, belongs to another trust domain or user",
			ticket->session);
	else
		fail(error, "session %u, which exported the fence, has ended or belongs to another pool",
			ticket->session);
}

/* Describe the first field of a handle that gpool_fence_export() would not have written. */
static COLD int fail_ticket(const struct fence_ticket *ticket)
{
	const char *bound = "the handle was not created by gpool_fence_export(), or was changed";

	if (!fence_ticket_type_known(ticket))
		return fail(-EINVAL, "%s: its handle_type is %u; it must be %d to %d", bound, ticket->handle_type,
			GPOOL_FENCE_HANDLE_SIGNALED, GPOOL_FENCE_HANDLE_EVENT);
	if (ticket->magic != FENCE_TICKET_MAGIC)
		return fail(-EINVAL, "%s: bytes 4 to 7 are 0x%08x; they must be 0x%08x", bound, ticket->magic,
			FENCE_TICKET_MAGIC);
	if (ticket->version != FENCE_TICKET_VERSION)
		return fail(-EINVAL, "%s: its version is %u; this library has version %d", bound, ticket->version,
			FENCE_TICKET_VERSION);
	if (!fence_ticket_zeros(ticket))
		return fail(-EINVAL, "%s: bytes that must be 0 are not; pass all %zu bytes unchanged", bound,
			sizeof(struct gpool_fence_handle));
	return fail(-EINVAL, "%s: session %u, stream slot %u and fence number %llu are not those of a fence", bound,
		ticket->session, ticket->slot, (unsigned long long)ticket->value);
}

int gpool_fence_import(struct gpool *pool, const struct gpool_fence_handle *handle, struct gpool_fence *fence)
{
	struct gpool_fence imported = {0};
	struct fence_ticket ticket;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	/* Fences of this session are not imported, and a driver refuses its own events. */
	if (fence_ticket_read(handle, &ticket))
		return fail_ticket(&ticket);
	if (ticket.handle_type != GPOOL_FENCE_HANDLE_SIGNALED && ticket.key == export_key(pool))
		return fail(-EINVAL, "the fence was exported by this session and cannot be imported in it");
	pthread_mutex_lock(&pool->imports->turn);
	if (ticket.handle_type == GPOOL_FENCE_HANDLE_TIMELINE)
		error = import_by_timeline(pool->imports, &ticket, &imported);
	else if (ticket.handle_type == GPOOL_FENCE_HANDLE_EVENT)
		error = import_by_event(pool->imports, &ticket, &imported);
	pthread_mutex_unlock(&pool->imports->turn);
	if (!error)
		*fence = imported;
	else if (error == -ESRCH || error == -EACCES)
		fail_import(&ticket, error);
	return error;
}

int gpool_fence_close(struct gpool *pool, struct gpool_fence fence)
{
	struct imports *imports = pool->imports;
	struct import_fence *found = NULL;
	struct import *import;

	if (!pool->alive)
		return -ECHILD;
	if (!fence.value)
		return 0; /* the fence was signaled before the import */
	if (pool->session_kind)
		return fail(-EINVAL, "fence 0x%llx was not imported by this session", (unsigned long long)fence.value);
	pthread_mutex_lock(&imports->lock);
	import = import_of_slot(imports, fence_slot(fence.value));
	if (import)
		found = fence_find(import, fence.value & FENCE_VALUE_MASK);
	if (found && found->refs) {
		found->refs--;
		import->refs--;
		fences_sweep(pool, import);
		/* If an operation still waits for the import, the thread keeps updating it. */
		if (!is_needed(import))
			import_end(pool, import);
	} else {
		found = NULL;
	}
	pthread_mutex_unlock(&imports->lock);
	return found ? 0
		     : fail(-EINVAL, "fence 0x%llx was not imported by this session, or is already closed",
			       (unsigned long long)fence.value);
}
