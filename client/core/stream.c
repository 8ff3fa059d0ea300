/* stream.c - streams and fences; see stream.h. */
#include "client/core/stream.h"

#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/thread_cache.h"
#include "shm/doorbell.h"
#include "shm/timeline.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
	SLOT_BITS = 8, /* bits of the slot in a stream's number; SESSION_TIMELINES slots */
	WAIT_SPINS = 256,
	/* a GPU's write to a timeline wakes no thread: the host polls at growing intervals */
	WAIT_FIRST_NS = 20000,
	WAIT_LARGEST_NS = 1000000,
	QUERY_NS = 1000000, /* interval of queries whether the device has failed, while a fence is not signaled */
	MARKS = 4,          /* chosen: number of a stream's last fences for which it keeps events */
};

/* An event that was recorded directly after a fence, for waits of other streams of the session. */
struct mark {
	struct gpu_event *event;
	uint64_t value; /* of the fence; 0: none */
};

struct stream {
	pthread_mutex_t lock;
	struct gpu_stream *gpu; /* NULL: host-signaled, or closed. Of a thread's default stream: see stream_select() */
	/* of a thread's default stream: the handles for its thread and for other threads; otherwise NULL */
	struct gpu_stream *own, *others;
	_Atomic(const struct thread_cache *) thread; /* its thread; NULL: the thread has ended */
	_Atomic bool of_thread;                      /* the stream is a thread's default stream */
	bool open;
	bool host_signaled;
	bool adopted; /* created by the program, which also destroys it */
	uint32_t generation;
	/* 0: closed. `number` and `waits` are written under the lock, and read without it */
	_Atomic uint32_t number;
	_Atomic bool waits;         /* the stream is a GPU stream, so it can wait */
	_Atomic uint64_t recorded;  /* highest value of a recorded fence */
	uint64_t shared;            /* highest value that is queued for the published page */
	uint64_t exported;          /* highest value of an exported fence */
	bool owed;                  /* the write of `recorded` must be queued when a capture has ended */
	_Atomic bool mirror;        /* the slot is used as a mirror and has no stream: see stream.h */
	bool lost;                  /* closed after a device failure: the slot is not reused */
	_Atomic uint64_t query_ns;  /* time of the last query */
	pthread_mutex_t marks_lock; /* protects marks[]; acquired after the lock of any stream */
	struct mark marks[MARKS];   /* [value % MARKS] */
};

struct streams {
	pthread_mutex_t lock;               /* serializes the opening of streams */
	bool registered;                    /* the timeline is registered with the back end */
	struct timeline_page *_Atomic page; /* published progress, for other sessions; NULL: not requested yet */
	pthread_mutex_t joins_lock;         /* protects the session's joint fences; no lock is acquired under it */
	uint32_t join_cursor;
	_Atomic uint32_t gpu_streams; /* number of open GPU streams */
	_Atomic uint32_t orphans;     /* number of open default streams of threads that have ended */
	_Atomic uint32_t held;        /* number of open host-signaled timelines that have an unsignaled fence */
	const struct stream_mirrors *mirrors;
	struct stream slots[SESSION_TIMELINES];
};

int stream_open_all(struct gpool *pool)
{
	struct streams *streams = calloc(1, sizeof(*streams));

	if (!streams)
		return -ENOMEM;
	pthread_mutex_init(&streams->lock, NULL);
	pthread_mutex_init(&streams->joins_lock, NULL);
	for (int i = 0; i < SESSION_TIMELINES; i++) {
		pthread_mutex_init(&streams->slots[i].lock, NULL);
		pthread_mutex_init(&streams->slots[i].marks_lock, NULL);
	}
	pool->streams = streams;
	return 0;
}

/*
 * Select the driver's stream for the calling thread. The driver's handle of a thread's default stream denotes a
 * different stream in each thread. Other threads therefore use the legacy default stream, which waits for the threads'
 * streams, and for which they wait. The caller has locked the stream.
 */
static void stream_select(const struct gpool *pool, struct stream *stream)
{
	const struct thread_slot *slot = &thread_slots[pool->slot];

	if (likely(!stream->own))
		return;
	stream->gpu =
		slot->epoch == pool->epoch && slot->cache == atomic_load_explicit(&stream->thread, memory_order_relaxed)
		? stream->own
		: stream->others;
}

/* Wait for the work of a GPU stream. The caller has locked the stream. */
static int stream_sync(struct gpool *pool, uint32_t slot)
{
	struct stream *stream = &pool->streams->slots[slot];
	int error = 0;

	stream_select(pool, stream);
	/* Only an operation of the legacy stream is documented to wait for the threads' streams. */
	if (stream->own && stream->gpu != stream->own)
		error = gpu_timeline_write(pool->gpu, stream->gpu, (uint64_t *)&pool->session.timeline[slot],
			atomic_load_explicit(&stream->recorded, memory_order_relaxed));
	return error ? error : gpu_stream_sync(pool->gpu, stream->gpu);
}

/* Return true if the program must still signal a fence of this timeline. The caller holds the stream's lock. */
static bool is_held(const struct gpool *pool, uint32_t slot)
{
	const struct stream *stream = &pool->streams->slots[slot];

	return stream->host_signaled &&
		atomic_load_explicit(&pool->session.timeline[slot], memory_order_relaxed) <
		atomic_load_explicit(&stream->recorded, memory_order_relaxed);
}

/*
 * Signal a fence by the CPU, for this session and other sessions. Must not be used for a stream to which a GPU may
 * still write. The caller holds the stream's lock.
 */
static void reach(struct gpool *pool, uint32_t slot, uint64_t value)
{
	struct timeline_page *page = atomic_load_explicit(&pool->streams->page, memory_order_acquire);
	bool held = is_held(pool, slot);

	if (atomic_load_explicit(&pool->session.timeline[slot], memory_order_relaxed) < value)
		atomic_store_explicit(&pool->session.timeline[slot], value, memory_order_release);
	if (page && atomic_load_explicit(&page->signaled[slot], memory_order_relaxed) < value)
		atomic_store_explicit(&page->signaled[slot], value, memory_order_release);
	if (held && !is_held(pool, slot))
		atomic_fetch_sub_explicit(&pool->streams->held, 1, memory_order_relaxed);
}

/*
 * Complete deferred frees, unless the program must still signal a fence. A free may unmap memory, and the driver may
 * then wait for all queued work of the process, including work that waits for that fence.
 */
static void fence_sweep(struct gpool *pool)
{
	if (!atomic_load_explicit(&pool->streams->held, memory_order_relaxed))
		pool_sweep(pool);
}

/* ---- device failure ---- */

static COLD int fail_gpu(void)
{
	return fail(-EIO,
		"the GPU has failed: work that this process has queued is no longer executed; restart the process");
}

static COLD void gpu_fail_all(struct gpool *pool)
{
	struct timeline_page *page;

	if (atomic_exchange(&pool->gpu_failed, true))
		return;
	/* stream_share() publishes the page before it reads gpu_failed. */
	page = atomic_load(&pool->streams->page);
	for (uint32_t slot = 1; page && slot < SESSION_TIMELINES; slot++)
		if (atomic_load(&pool->streams->slots[slot].number) && atomic_load(&pool->streams->slots[slot].waits))
			timeline_page_fail(page, slot);
	pool_log(pool, POOL_LOG_ERROR,
		"the GPU has failed, and work that this process has queued is no longer executed: %s; "
		"restart the process",
		gpu_error_text());
}

/* Query whether the device has failed. The caller holds the stream's lock. */
static bool stream_query(struct gpool *pool, const struct stream *stream)
{
	if (!pool_gpu_failed(pool) && stream->gpu && gpu_stream_query(pool->gpu, stream->gpu) == -EIO)
		gpu_fail_all(pool);
	return pool_gpu_failed(pool);
}

/* Query whether the device has failed, for the stream of an unsignaled fence; at most once per QUERY_NS. */
static COLD void slot_query(struct gpool *pool, uint32_t slot)
{
	struct stream *stream = &pool->streams->slots[slot];
	uint64_t now = monotonic_ns(), last = atomic_load_explicit(&stream->query_ns, memory_order_relaxed);

	if (now - last < QUERY_NS || !atomic_compare_exchange_strong(&stream->query_ns, &last, now) ||
		pthread_mutex_trylock(&stream->lock))
		return;
	stream_select(pool, stream);
	stream_query(pool, stream);
	pthread_mutex_unlock(&stream->lock);
}

/* Unlock a stream after a call of the back end. Return: `error`; -EIO if the device has failed. */
static int stream_unlock(struct gpool *pool, struct stream *stream, int error)
{
	if (unlikely(error == -EBUSY))
		fail(error, "%s", gpu_error_text());
	else if (unlikely(error) && error != -EINVAL && stream_query(pool, stream))
		error = fail_gpu();
	pthread_mutex_unlock(&stream->lock);
	return error;
}

/* ---- order that the driver can see ---- */

/*
 * Record an event after a fence. The driver cannot see that a stream waits for a word that another stream writes. Its
 * documentation requires that tasks which are ordered by such a wait are also ordered by events, since it may execute
 * them in another order otherwise. If there is no event, the order depends on the word alone: for fences that were
 * recorded when no other GPU stream was open, and if the back end refuses an event. The caller holds the stream's lock.
 */
static void mark_record(struct gpool *pool, struct stream *stream, uint64_t value)
{
	struct mark *mark = &stream->marks[value % MARKS];

	if (atomic_load_explicit(&pool->streams->gpu_streams, memory_order_relaxed) < 2)
		return;
	pthread_mutex_lock(&stream->marks_lock);
	mark->value = 0;
	if ((mark->event || !gpu_event_create(pool->gpu, 0, &mark->event)) &&
		!gpu_event_record(pool->gpu, mark->event, stream->gpu))
		mark->value = value;
	pthread_mutex_unlock(&stream->marks_lock);
}

/* Make a stream wait for the event of a fence, if there is one; it waits for the word in any case. */
static void mark_wait(struct gpool *pool, struct gpu_stream *waiter, struct gpool_fence fence)
{
	struct stream *stream = &pool->streams->slots[fence_slot(fence.value)];
	uint64_t value = fence.value & FENCE_VALUE_MASK;
	struct mark *mark = &stream->marks[value % MARKS];

	pthread_mutex_lock(&stream->marks_lock);
	if (value && mark->value == value)
		gpu_event_wait(pool->gpu, waiter, mark->event);
	pthread_mutex_unlock(&stream->marks_lock);
}

static void marks_end(struct gpool *pool, struct stream *stream)
{
	pthread_mutex_lock(&stream->marks_lock);
	for (int i = 0; i < MARKS; i++)
		gpu_event_destroy(pool->gpu, stream->marks[i].event);
	memset(stream->marks, 0, sizeof(stream->marks));
	pthread_mutex_unlock(&stream->marks_lock);
}

/* The caller holds the stream's lock. */
static void stream_end(struct gpool *pool, uint32_t slot)
{
	struct stream *stream = &pool->streams->slots[slot];
	int error;

	stream->open = false;
	if (stream->gpu) {
		error = stream_sync(pool, slot);
		/* During a capture, the end of the work is not known either. */
		stream->lost = (error && stream_query(pool, stream)) || pool_gpu_failed(pool) || error == -EBUSY;
		marks_end(pool, stream);
		if (!stream->adopted)
			gpu_stream_destroy(pool->gpu, stream->gpu);
		if (stream->own && !atomic_exchange(&stream->thread, NULL))
			atomic_fetch_sub(&pool->streams->orphans, 1);
		atomic_store(&stream->of_thread, false);
		stream->gpu = stream->own = stream->others = NULL;
		atomic_fetch_sub_explicit(&pool->streams->gpu_streams, 1, memory_order_relaxed);
	}
	if (stream->lost)
		return;
	/* The fences of a closed host-signaled timeline would never be signaled. Signal them now. */
	reach(pool, slot, atomic_load_explicit(&stream->recorded, memory_order_relaxed));
	atomic_store_explicit(&stream->number, 0, memory_order_release);
}

void stream_close_all(struct gpool *pool)
{
	struct streams *streams = pool->streams;

	if (!streams)
		return;
	/* Close host-signaled timelines first, since other streams may wait for their fences. */
	for (int host_signaled = 1; host_signaled >= 0; host_signaled--)
		for (uint32_t i = 1; i < SESSION_TIMELINES; i++)
			if (streams->slots[i].open && streams->slots[i].host_signaled == host_signaled)
				stream_end(pool, i);
	if (streams->registered)
		gpu_host_unregister(pool->gpu, (void *)pool->session.timeline);
	for (int i = 0; i < SESSION_TIMELINES; i++) {
		pthread_mutex_destroy(&streams->slots[i].lock);
		pthread_mutex_destroy(&streams->slots[i].marks_lock);
	}
	pthread_mutex_destroy(&streams->joins_lock);
	pthread_mutex_destroy(&streams->lock);
	free(streams);
	pool->streams = NULL;
}

int stream_sync_all(struct gpool *pool)
{
	int error = 0;

	for (uint32_t i = 1; i < SESSION_TIMELINES; i++) {
		struct stream *stream = &pool->streams->slots[i];
		int result = 0;

		pthread_mutex_lock(&stream->lock);
		if (stream->open && stream->gpu)
			result = stream_sync(pool, i);
		result = stream_unlock(pool, stream, result);
		if (result)
			error = result;
	}
	return pool_gpu_failed(pool) ? fail_gpu() : error;
}

/* Record a fence on a GPU stream. Return false if the stream is closed, or if stream_sync_result() reports an error. */
static bool stream_mark(struct gpool *pool, uint32_t slot, struct gpool_fence *fence)
{
	const struct stream *stream = &pool->streams->slots[slot];
	uint32_t number = atomic_load_explicit(&stream->number, memory_order_acquire);

	return number && atomic_load_explicit(&stream->waits, memory_order_relaxed) &&
		!gpool_fence_record(pool, number, fence);
}

/* Return the error of the work that stream_await_all() has waited for, as stream_sync() does, but do not wait. */
static int stream_sync_result(struct gpool *pool, uint32_t slot)
{
	struct stream *stream = &pool->streams->slots[slot];
	int error = 0;

	pthread_mutex_lock(&stream->lock);
	if (stream->open && stream->gpu) {
		stream_select(pool, stream);
		error = gpu_stream_query(pool->gpu, stream->gpu);
		if (error == -EAGAIN)
			error = 0; /* work that was queued later */
		else if (!error && (!stream->own || stream->gpu == stream->own))
			error = gpu_stream_sync(pool->gpu, stream->gpu);
	}
	return stream_unlock(pool, stream, error);
}

int stream_await_all(struct gpool *pool, int most_ms)
{
	uint64_t start = monotonic_ns();
	struct gpool_fence fences[SESSION_TIMELINES];
	int error = 0;

	if (most_ms < 0 && !wait_checked())
		return stream_sync_all(pool);
	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++)
		if (!stream_mark(pool, slot, &fences[slot]))
			fences[slot] = GPOOL_FENCE_NONE;
	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++) {
		int64_t left = most_ms - (int64_t)((monotonic_ns() - start) / 1000000);
		int result = 0;

		if (fences[slot].value)
			result = gpool_fence_wait(pool, fences[slot], most_ms < 0 ? -1 : left > 0 ? (int)left : 0);
		if (result == -EINTR || result == -ETIMEDOUT)
			return result;
	}
	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++) {
		int result = stream_sync_result(pool, slot);

		if (result)
			error = result;
	}
	return pool_gpu_failed(pool) ? fail_gpu() : error;
}

void stream_on_close(struct gpool *pool, void (*callback)(struct gpool *pool, uint32_t stream))
{
	pool->stream_closed = callback;
}

/* ---- stream numbers ---- */

/* Find and lock the stream with this number. Return NULL if no such stream is open. */
static struct stream *stream_lock(struct gpool *pool, uint32_t number, uint32_t *slot)
{
	struct stream *stream;

	*slot = number & (SESSION_TIMELINES - 1);
	stream = &pool->streams->slots[*slot];
	pthread_mutex_lock(&stream->lock);
	if (stream->open && stream->generation == number >> SLOT_BITS) {
		stream_select(pool, stream);
		return stream;
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

/* Describe why stream_lock() has found no stream. The work of a stream that was closed might not be done. */
static COLD int fail_closed(struct gpool *pool, uint32_t number)
{
	uint32_t slot;

	if (stream_slot_of(pool, number, &slot))
		return fail_stream(number);
	return pool_gpu_failed(pool) ? fail_gpu()
				     : fail(-EBUSY, "stream %u was closed while a graph was captured from it", number);
}

static __attribute__((noinline, cold)) int fail_host_signaled(uint32_t stream)
{
	return fail(-EINVAL, "stream %u is host-signaled and cannot execute work", stream);
}

int stream_slot_of(struct gpool *pool, uint32_t stream, uint32_t *slot)
{
	uint32_t index = stream & (SESSION_TIMELINES - 1);

	if (!stream || atomic_load_explicit(&pool->streams->slots[index].number, memory_order_acquire) != stream)
		return -EINVAL;
	*slot = index;
	return 0;
}

int stream_was(struct gpool *pool, uint32_t stream)
{
	struct stream *found = &pool->streams->slots[stream & (SESSION_TIMELINES - 1)];
	uint32_t generation = stream >> SLOT_BITS;
	bool was;

	pthread_mutex_lock(&found->lock);
	was = generation && generation <= found->generation;
	pthread_mutex_unlock(&found->lock);
	return was ? 0 : -EINVAL;
}

bool stream_can_wait(struct gpool *pool, uint32_t stream)
{
	uint32_t slot;

	return !stream_slot_of(pool, stream, &slot) &&
		atomic_load_explicit(&pool->streams->slots[slot].waits, memory_order_relaxed);
}

int stream_check(struct gpool *pool, uint32_t stream)
{
	uint32_t slot;

	if (likely(stream_can_wait(pool, stream)))
		return 0;
	return stream_slot_of(pool, stream, &slot) ? fail_stream(stream) : fail_host_signaled(stream);
}

int fence_check(struct gpool *pool, struct gpool_fence fence)
{
	uint32_t slot = fence_slot(fence.value);

	if (slot >= SESSION_TIMELINES || (slot == 0 && fence.value) ||
		(fence.value & FENCE_VALUE_MASK) >
			atomic_load_explicit(&pool->streams->slots[slot].recorded, memory_order_acquire))
		return fail(-EINVAL, "fence 0x%llx was not recorded by this session", (unsigned long long)fence.value);
	return 0;
}

bool fence_pending(struct gpool *pool, struct gpool_fence fence)
{
	if (fence_signaled(&pool->session, fence.value))
		return false;
	if (unlikely(stream_is_mirror(pool, fence_slot(fence.value))))
		pool->streams->mirrors->hold(pool, fence);
	return true;
}

/* ---- streams ---- */

/* The caller holds streams->lock. */
static int timeline_register(struct gpool *pool)
{
	int error = pool->streams->registered
		? 0
		: gpu_host_register(pool->gpu, (void *)pool->session.timeline, system_pages(SESSION_TIMELINE_BYTES));

	if (!error)
		pool->streams->registered = true;
	return error;
}

/* Use the default stream of the calling thread. On a back end without one, create a stream for the thread. */
static int thread_stream_start(struct gpool *pool, struct stream *stream)
{
	struct gpu_stream *own, *others;
	int error = gpu_stream_adopt(pool->gpu, GPU_STREAM_PER_THREAD, &own);

	stream->adopted = error != -EOPNOTSUPP;
	if (stream->adopted) {
		error = error ? error : gpu_stream_adopt(pool->gpu, GPU_STREAM_LEGACY, &others);
	} else {
		error = gpu_stream_create(pool->gpu, &own);
		others = own;
	}
	if (error)
		return error;
	stream->gpu = stream->own = own;
	stream->others = others;
	atomic_store(&stream->thread, thread_slots[pool->slot].cache);
	atomic_store(&stream->of_thread, true);
	return 0;
}

bool stream_is_threads(const struct gpool *pool, uint32_t stream)
{
	return atomic_load_explicit(
		&pool->streams->slots[stream & (SESSION_TIMELINES - 1)].of_thread, memory_order_relaxed);
}

void stream_thread_ends(struct gpool *pool, const struct thread_cache *thread)
{
	struct streams *streams = pool->streams;

	for (uint32_t slot = 1; streams && slot < SESSION_TIMELINES; slot++) {
		const struct thread_cache *expected = thread;

		if (atomic_load_explicit(&streams->slots[slot].thread, memory_order_relaxed) == thread &&
			atomic_compare_exchange_strong(&streams->slots[slot].thread, &expected, NULL))
			atomic_fetch_add(&streams->orphans, 1);
	}
}

/* Close the default streams of threads that have ended. Return: 0, -EINTR (during the wait for their work). */
static COLD int orphans_close(struct gpool *pool)
{
	struct gpool_fence fence;

	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++) {
		const struct stream *stream = &pool->streams->slots[slot];
		/* Read the number first, because another thread may close the stream and open one for itself. */
		uint32_t number = atomic_load(&stream->number);

		if (!number || !atomic_load(&stream->of_thread) || atomic_load(&stream->thread))
			continue;
		if (wait_checked() && !gpool_fence_record(pool, number, &fence) &&
			gpool_fence_wait(pool, fence, -1) == -EINTR)
			return -EINTR;
		gpool_stream_close(pool, number);
	}
	return 0;
}

/* Return the number of the calling thread's default stream; 0: it is not open. */
static uint32_t thread_stream_find(struct gpool *pool)
{
	const struct thread_cache *thread = thread_slots[pool->slot].cache;

	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++)
		if (atomic_load_explicit(&pool->streams->slots[slot].thread, memory_order_relaxed) == thread)
			return atomic_load_explicit(&pool->streams->slots[slot].number, memory_order_relaxed);
	return 0;
}

static int stream_start(struct gpool *pool, struct stream *stream, void *native)
{
	int error;

	if (!(pool->capabilities & GPU_CAP_TIMELINE))
		return fail(-EOPNOTSUPP,
			"the device cannot write to memory from a stream; open the stream with "
			"GPOOL_STREAM_HOST_SIGNALED");
	error = timeline_register(pool);
	if (error)
		return error;
	if (native == GPU_STREAM_PER_THREAD)
		return thread_stream_start(pool, stream);
	stream->adopted = native != NULL;
	return native ? gpu_stream_adopt(pool->gpu, native, &stream->gpu) : gpu_stream_create(pool->gpu, &stream->gpu);
}

/*
 * Find and lock a closed stream. Return NULL if none is found. A stream that another thread has locked is in use, or is
 * being closed.
 */
static struct stream *stream_find_closed(struct streams *streams, uint32_t *slot)
{
	for (*slot = 1; *slot < SESSION_TIMELINES; ++*slot) {
		struct stream *stream = &streams->slots[*slot];

		if (pthread_mutex_trylock(&stream->lock))
			continue;
		if (!stream->open && !stream->lost && !atomic_load_explicit(&stream->mirror, memory_order_acquire))
			return stream;
		pthread_mutex_unlock(&stream->lock);
	}
	return NULL;
}

int gpool_stream_open(struct gpool *pool, void *native, uint32_t flags, uint32_t *stream)
{
	struct stream *opened;
	uint32_t slot;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (flags & ~(uint32_t)GPOOL_STREAM_HOST_SIGNALED || (native && flags))
		return fail(-EINVAL,
			"flags are 0x%x; the only known flag is GPOOL_STREAM_HOST_SIGNALED, which excludes a native "
			"stream",
			flags);
	if (pool->session_kind)
		return fail(-EOPNOTSUPP, "a session of an observer or admin has no device");
	if (unlikely(atomic_load(&pool->streams->orphans)))
		error = orphans_close(pool);
	if (error)
		return error;
	if (native == GPU_STREAM_PER_THREAD) {
		if (!thread_cache_of(pool))
			return -ENOMEM;
		*stream = thread_stream_find(pool);
		if (*stream)
			return 0;
	}
	pthread_mutex_lock(&pool->streams->lock);
	opened = stream_find_closed(pool->streams, &slot);
	if (opened) {
		if (!(flags & GPOOL_STREAM_HOST_SIGNALED))
			error = stream_start(pool, opened, native);
		if (error == -EINVAL && native)
			fail(error, "%p is not a stream of the back end '%s'", native, pool->header->backend);
		if (!error) {
			opened->host_signaled = flags & GPOOL_STREAM_HOST_SIGNALED;
			opened->generation = (opened->generation + 1) & (UINT32_MAX >> SLOT_BITS);
			opened->open = true;
			if (opened->gpu)
				atomic_fetch_add_explicit(&pool->streams->gpu_streams, 1, memory_order_relaxed);
			*stream = opened->generation << SLOT_BITS | slot;
			atomic_store_explicit(&opened->waits, opened->gpu != NULL, memory_order_relaxed);
			atomic_store_explicit(&opened->number, *stream, memory_order_release);
		}
		pthread_mutex_unlock(&opened->lock);
	}
	pthread_mutex_unlock(&pool->streams->lock);
	return opened ? error
		      : fail(-EUSERS, "the session has %d open streams and imported ones, the limit; close one",
				SESSION_TIMELINES - 1);
}

int gpool_stream_native(struct gpool *pool, uint32_t stream, void **native)
{
	struct stream *found;
	uint32_t slot;
	int error;

	if (!pool->alive)
		return -ECHILD;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	error = found->gpu ? 0 : fail(-EINVAL, "stream %u is host-signaled and has no native stream", stream);
	if (!error)
		*native = found->gpu; /* the argument that gpu_stream_adopt() expects */
	return stream_unlock(pool, found, error);
}

void gpool_stream_close(struct gpool *pool, uint32_t stream)
{
	struct stream *found;
	uint32_t slot;
	bool lost;

	if (!pool->alive)
		return;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return;
	stream_end(pool, slot);
	lost = found->lost;
	pthread_mutex_unlock(&found->lock);
	/* After a device failure, the work of the stream is not known to be done. */
	if (pool->stream_closed && !lost)
		pool->stream_closed(pool, stream);
	pool_sweep(pool);
}

/* Describe addresses that the back end has rejected. */
static int work_queued(int error)
{
	return unlikely(error == -EINVAL) ? fail(error, "%s", gpu_error_text()) : error;
}

int gpool_copy(struct gpool *pool, uint32_t stream, uint64_t to, uint64_t from, uint64_t bytes)
{
	struct stream *found;
	uint32_t slot;
	int error;

	if (!pool->alive)
		return -ECHILD;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	error = found->gpu ? work_queued(gpu_copy(pool->gpu, to, from, bytes, found->gpu)) : fail_host_signaled(stream);
	return stream_unlock(pool, found, error);
}

int gpool_fill(struct gpool *pool, uint32_t stream, uint64_t to, uint32_t value, uint64_t bytes)
{
	struct stream *found;
	uint32_t slot;
	int error;

	if (!pool->alive)
		return -ECHILD;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	if (bytes % 4)
		error = fail(-EINVAL, "bytes is %llu, which is not a multiple of 4", (unsigned long long)bytes);
	else if (to % 4)
		error = fail(-EINVAL, "to is 0x%llx, which is not a multiple of 4", (unsigned long long)to);
	else
		error = found->gpu ? work_queued(gpu_fill(pool->gpu, to, value, bytes, found->gpu))
				   : fail_host_signaled(stream);
	return stream_unlock(pool, found, error);
}

int stream_launch(struct gpool *pool, uint32_t stream,
	int (*queue)(struct gpu *gpu, const void *args, struct gpu_stream *stream), const void *args)
{
	struct stream *found;
	uint32_t slot;
	int error;

	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	error = found->gpu ? queue(pool->gpu, args, found->gpu) : fail_host_signaled(stream);
	return stream_unlock(pool, found, error);
}

static int lora_start(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	int error = lora_shrink_queue(gpu, args, stream);

	return error ? error : lora_expand_queue(gpu, args, stream);
}

static int dequantise_start(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	return dequantise_queue(gpu, args, stream);
}

int stream_kernel(struct gpool *pool, uint32_t stream, enum stream_kernel kernel, const void *args)
{
	return stream_launch(pool, stream, kernel == STREAM_LORA ? lora_start : dequantise_start, args);
}

/* ---- the driver's memory pool ---- */

int stream_pool_alloc(struct gpool *pool, uint32_t stream, uint64_t bytes, uint64_t *address)
{
	struct stream *found;
	uint32_t slot;
	int error;

	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	error = found->gpu ? gpu_pool_alloc(pool->gpu, bytes, found->gpu, address) : -EOPNOTSUPP;
	return stream_unlock(pool, found, error);
}

int stream_pool_free(struct gpool *pool, uint32_t stream, uint64_t address)
{
	struct stream *found;
	uint32_t slot;
	int error;

	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	error = found->gpu ? gpu_pool_free(pool->gpu, address, found->gpu) : -EOPNOTSUPP;
	return stream_unlock(pool, found, error);
}

/* ---- fences ---- */

int gpool_fence_record(struct gpool *pool, uint32_t stream, struct gpool_fence *fence)
{
	struct stream *found;
	uint32_t slot;
	uint64_t value;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	value = atomic_load_explicit(&found->recorded, memory_order_relaxed) + 1;
	if (found->gpu)
		error = pool_gpu_failed(pool)
			? fail_gpu()
			: gpu_timeline_write(pool->gpu, found->gpu, (uint64_t *)&pool->session.timeline[slot], value);
	else if (!is_held(pool, slot))
		atomic_fetch_add_explicit(&pool->streams->held, 1, memory_order_relaxed);
	/* After -EBUSY, the value may have been written; see gpu_timeline_write(). */
	if (!error || error == -EBUSY)
		atomic_store_explicit(&found->recorded, value, memory_order_release);
	if (!error) {
		fence->value = fence_make(slot, value);
		found->owed = false;
		if (found->gpu)
			mark_record(pool, found, value);
	}
	return stream_unlock(pool, found, error);
}

int release_fence(struct gpool *pool, uint32_t stream, struct gpool_fence *fence)
{
	int error = gpool_fence_record(pool, stream, fence);
	struct stream *found;
	uint32_t slot;

	if (!(error == -EIO && pool_gpu_failed(pool)) && error != -EBUSY)
		return error;
	if (stream_slot_of(pool, stream, &slot))
		return error;
	found = &pool->streams->slots[slot];
	pthread_mutex_lock(&found->lock);
	fence->value = fence_make(slot, atomic_fetch_add_explicit(&found->recorded, 1, memory_order_release) + 1);
	found->owed = error == -EBUSY;
	pthread_mutex_unlock(&found->lock);
	return error == -EBUSY ? pool->streams->mirrors->watch(pool) : 0;
}

struct gpool_fence release_fence_or_wait(struct gpool *pool, uint32_t stream)
{
	struct gpool_fence fence = GPOOL_FENCE_NONE;

	if (release_fence(pool, stream, &fence) && stream_sync_all(pool))
		release_fence(pool, stream, &fence);
	return fence;
}

uint64_t fence_joined(struct gpool *pool, uint64_t old, uint64_t fence)
{
	uint64_t joined;

	pthread_mutex_lock(&pool->streams->joins_lock);
	joined = fence_join(&pool->session, old, fence, &pool->streams->join_cursor);
	pthread_mutex_unlock(&pool->streams->joins_lock);
	return joined;
}

/* Return 1 (signaled), 0 (not yet), or -EIO (never: the device has failed); for an imported fence as look(). */
static inline int fence_state(struct gpool *pool, struct gpool_fence fence)
{
	uint32_t slot = fence_slot(fence.value);

	if (unlikely(stream_is_mirror(pool, slot)))
		return pool->streams->mirrors->look(pool, fence);
	if (fence_signaled(&pool->session, fence.value))
		return 1;
	if (!pool_gpu_failed(pool) || !atomic_load_explicit(&pool->streams->slots[slot].waits, memory_order_relaxed))
		return 0;
	/* Progress before the failure counts as progress. */
	return fence_signaled(&pool->session, fence.value) ? 1 : fail_gpu();
}

int gpool_fence_done(struct gpool *pool, struct gpool_fence fence)
{
	int state;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(fence_check(pool, fence)))
		return -EINVAL;
	state = fence_state(pool, fence);
	if (!state) {
		slot_query(pool, fence_slot(fence.value));
		state = fence_state(pool, fence);
	}
	if (state <= 0)
		return state;
	/*
	 * A thread that queries a fence is likely to be idle afterwards, so complete the frees that wait for the fence
	 * now.
	 */
	fence_sweep(pool);
	return 1;
}

/*
 * Return the half of a timeline word that changes at each step, as the address of a futex wait. gpool_fence_signal()
 * wakes the waiters.
 */
static const _Atomic uint32_t *timeline_low(const struct gpool *pool, uint32_t slot)
{
	return (const _Atomic uint32_t *)(const void *)&pool->session.timeline[slot] +
		(__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__);
}

static int wait_ended(struct gpool *pool, int state)
{
	if (state < 0)
		return state;
	fence_sweep(pool);
	return 0;
}

int gpool_fence_wait(struct gpool *pool, struct gpool_fence fence, int timeout_ms)
{
	uint32_t slot = fence_slot(fence.value);
	uint64_t start, limit, step = WAIT_FIRST_NS;
	int state;

	if (!pool->alive)
		return -ECHILD;
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	if (fence_check(pool, fence))
		return -EINVAL;
	for (int spins = 0; spins < WAIT_SPINS; spins++) {
		state = fence_state(pool, fence);
		if (state)
			return wait_ended(pool, state);
		cpu_relax();
	}
	start = monotonic_ns();
	limit = timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000;
	for (;;) {
		uint64_t signaled = atomic_load_explicit(&pool->session.timeline[slot], memory_order_acquire);
		uint64_t gone = monotonic_ns() - start;

		if (gone >= QUERY_NS)
			slot_query(pool, slot);
		state = fence_state(pool, fence);
		if (state)
			return wait_ended(pool, state);
		if (gone >= limit)
			return fail(-ETIMEDOUT, "fence 0x%llx was not signaled within %d ms",
				(unsigned long long)fence.value, timeout_ms);
		if (wait_interrupted())
			return -EINTR;
		if (step > limit - gone)
			step = limit - gone;
		futex_wait(timeline_low(pool, slot), (uint32_t)signaled, (int64_t)step);
		step = step * 2 < WAIT_LARGEST_NS ? step * 2 : WAIT_LARGEST_NS;
	}
}

/* Return the word of a mirror for which GPU streams wait. */
static _Atomic uint64_t *mirror_gate(const struct gpool *pool, uint32_t slot)
{
	return &pool->session.timeline[SESSION_TIMELINES + slot];
}

int stream_wait_word(struct gpool *pool, struct gpu_stream *stream, struct gpool_fence fence)
{
	uint32_t slot = fence_slot(fence.value);
	const _Atomic uint64_t *word =
		stream_is_mirror(pool, slot) ? mirror_gate(pool, slot) : &pool->session.timeline[slot];

	return gpu_timeline_wait(pool->gpu, stream, (const uint64_t *)word, fence.value & FENCE_VALUE_MASK);
}

int gpool_stream_wait(struct gpool *pool, uint32_t stream, struct gpool_fence fence)
{
	struct stream *found;
	uint32_t slot;
	int error, state;

	if (!pool->alive)
		return -ECHILD;
	if (fence_check(pool, fence))
		return -EINVAL;
	state = fence_state(pool, fence);
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return fail_closed(pool, stream);
	if (!found->gpu) {
		error = fail_host_signaled(stream);
	} else if (state) {
		error = state < 0 ? state : 0;
	} else if (stream_is_mirror(pool, fence_slot(fence.value))) {
		error = pool->streams->mirrors->stream_wait(pool, found->gpu, fence);
	} else {
		mark_wait(pool, found->gpu, fence);
		error = stream_wait_word(pool, found->gpu, fence);
	}
	return stream_unlock(pool, found, error);
}

int gpool_fence_signal(struct gpool *pool, struct gpool_fence fence)
{
	uint32_t slot = fence_slot(fence.value);
	struct stream *stream;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (slot == 0)
		return fail(-EINVAL, "fence 0 does not belong to a stream");
	if (fence_check(pool, fence))
		return -EINVAL;
	stream = &pool->streams->slots[slot];
	pthread_mutex_lock(&stream->lock);
	if (!stream->open || !stream->host_signaled)
		error = fail(-EINVAL, "fence 0x%llx does not belong to an open host-signaled timeline",
			(unsigned long long)fence.value);
	else
		reach(pool, slot, fence.value & FENCE_VALUE_MASK);
	pthread_mutex_unlock(&stream->lock);
	if (error)
		return error;
	futex_wake(timeline_low(pool, slot), INT_MAX);
	fence_sweep(pool);
	/* Sessions that wait for pages may get those of blocks that waited for the fence. */
	if (unlikely(atomic_load_explicit(&pool->header->waiters, memory_order_relaxed)))
		doorbell_ring(pool->doorbell);
	return 0;
}

/* ---- export fences ---- */

void stream_publish(struct gpool *pool, struct timeline_page *page)
{
	atomic_store(&pool->streams->page, page);
}

/*
 * Lock the stream of a fence. Return: 0; 1 (the fence is signaled, or its stream is closed, which is equivalent);
 * -EINVAL (not a fence of this session).
 */
static int stream_lock_of(struct gpool *pool, struct gpool_fence fence, struct stream **stream)
{
	uint32_t slot = fence_slot(fence.value);

	if (fence_check(pool, fence))
		return -EINVAL;
	if (stream_is_mirror(pool, slot))
		return fail(
			-EINVAL, "fence 0x%llx was imported and cannot be exported", (unsigned long long)fence.value);
	*stream = &pool->streams->slots[slot];
	pthread_mutex_lock(&(*stream)->lock);
	if (!fence_signaled(&pool->session, fence.value) && (*stream)->open) {
		stream_select(pool, *stream);
		return 0;
	}
	pthread_mutex_unlock(&(*stream)->lock);
	return 1;
}

int stream_share(struct gpool *pool, struct gpool_fence fence)
{
	struct timeline_page *page = atomic_load_explicit(&pool->streams->page, memory_order_acquire);
	uint64_t value = fence.value & FENCE_VALUE_MASK, recorded;
	uint32_t slot = fence_slot(fence.value);
	struct stream *stream;
	int error = stream_lock_of(pool, fence, &stream);

	if (error)
		return error;
	/* For a host-signaled timeline, gpool_fence_signal() stores the value in the page. */
	stream->exported = value > stream->exported ? value : stream->exported;
	if (stream->gpu && atomic_load(&pool->gpu_failed)) {
		error = fail_gpu();
	} else if (stream->gpu && stream->shared < value) {
		recorded = atomic_load_explicit(&stream->recorded, memory_order_relaxed);
		error = gpu_timeline_write(pool->gpu, stream->gpu, (uint64_t *)&page->signaled[slot], recorded);
		if (!error)
			stream->shared = recorded;
	}
	return stream_unlock(pool, stream, error);
}

/*
 * Queue the write of fences that were recorded during a capture. After any error it is tried again, because memory that
 * waits for these fences would otherwise never be free. The caller holds the stream's lock.
 */
static void owed_write(struct gpool *pool, uint32_t slot)
{
	struct stream *stream = &pool->streams->slots[slot];

	stream->owed = stream->gpu &&
		gpu_timeline_write(pool->gpu, stream->gpu, (uint64_t *)&pool->session.timeline[slot],
			atomic_load_explicit(&stream->recorded, memory_order_relaxed));
}

bool stream_watch(struct gpool *pool)
{
	bool pending = false;

	for (uint32_t slot = 1; slot < SESSION_TIMELINES; slot++) {
		struct stream *stream = &pool->streams->slots[slot];

		if (!atomic_load_explicit(&stream->number, memory_order_relaxed))
			continue;
		if (pthread_mutex_trylock(&stream->lock)) {
			pending = true;
			continue;
		}
		stream_select(pool, stream);
		if (stream->gpu && !fence_signaled(&pool->session, fence_make(slot, stream->exported)))
			pending |= !stream_query(pool, stream);
		if (stream->owed)
			owed_write(pool, slot);
		pending |= stream->owed;
		pthread_mutex_unlock(&stream->lock);
	}
	return pending && !pool_gpu_failed(pool);
}

int stream_event(struct gpool *pool, struct gpool_fence fence, struct gpu_event *event)
{
	struct stream *stream;
	int error = stream_lock_of(pool, fence, &stream);

	if (error)
		return error;
	if ((fence.value & FENCE_VALUE_MASK) > stream->exported)
		stream->exported = fence.value & FENCE_VALUE_MASK;
	error = !stream->gpu
		? fail(-EINVAL, "fence 0x%llx is of a host-signaled timeline and cannot be exported as an event",
			  (unsigned long long)fence.value)
		: pool_gpu_failed(pool) ? fail_gpu()
					: gpu_event_record(pool->gpu, event, stream->gpu);
	return stream_unlock(pool, stream, error);
}

/* ---- import fences ---- */

void stream_mirrors_register(struct gpool *pool, const struct stream_mirrors *mirrors)
{
	pool->streams->mirrors = mirrors;
}

bool stream_is_mirror(const struct gpool *pool, uint32_t slot)
{
	return slot < SESSION_TIMELINES &&
		atomic_load_explicit(&pool->streams->slots[slot].mirror, memory_order_acquire);
}

int stream_mirror_open(struct gpool *pool, uint32_t *slot)
{
	struct stream *stream;
	int error = 0;

	/* Register the timeline, because streams that wait for the mirror read it too. */
	pthread_mutex_lock(&pool->streams->lock);
	if (pool->capabilities & GPU_CAP_TIMELINE)
		error = timeline_register(pool);
	stream = error ? NULL : stream_find_closed(pool->streams, slot);
	if (stream) {
		atomic_store_explicit(&stream->mirror, true, memory_order_release);
		pthread_mutex_unlock(&stream->lock);
	}
	pthread_mutex_unlock(&pool->streams->lock);
	return error     ? error
		: stream ? 0
			 : fail(-EUSERS, "the session has %d open streams and imported ones, the limit; close one",
				   SESSION_TIMELINES - 1);
}

struct gpool_fence stream_mirror_next(struct gpool *pool, uint32_t slot)
{
	uint64_t value = atomic_fetch_add_explicit(&pool->streams->slots[slot].recorded, 1, memory_order_release) + 1;

	return (struct gpool_fence){fence_make(slot, value)};
}

void stream_mirror_reach(struct gpool *pool, uint32_t slot, uint64_t value)
{
	_Atomic uint64_t *signaled = &pool->session.timeline[slot];

	if (value == UINT64_MAX)
		value = atomic_load_explicit(&pool->streams->slots[slot].recorded, memory_order_relaxed);
	if (atomic_load_explicit(mirror_gate(pool, slot), memory_order_relaxed) < value)
		atomic_store_explicit(mirror_gate(pool, slot), value, memory_order_release);
	if (atomic_load_explicit(signaled, memory_order_relaxed) >= value)
		return;
	atomic_store_explicit(signaled, value, memory_order_release);
	futex_wake(timeline_low(pool, slot), INT_MAX);
}

void stream_mirror_release(struct gpool *pool, uint32_t slot)
{
	atomic_store_explicit(mirror_gate(pool, slot),
		atomic_load_explicit(&pool->streams->slots[slot].recorded, memory_order_relaxed), memory_order_release);
}

void stream_mirror_close(struct gpool *pool, uint32_t slot)
{
	stream_mirror_reach(pool, slot, UINT64_MAX);
	atomic_store_explicit(&pool->streams->slots[slot].mirror, false, memory_order_release);
}
