/* stream.c - streams and fences; see stream.h. */
#include "client/stream.h"

#include "client/deferred.h"
#include "shm/doorbell.h"
#include "shm/timeline.h"

#include <limits.h>
#include <stdlib.h>

enum {
	SLOT_BITS = 8, /* of a stream's number; SESSION_TIMELINES slots */
	TIMELINE_BYTES = 4096, /* the layout gives it pages of its own, and drivers register whole ones */
	WAIT_SPINS = 256,
	WAIT_FIRST_NS = 20000, /* a GPU that writes a timeline wakes nobody: waiting on the host is looking, in growing steps */
	WAIT_LARGEST_NS = 1000000,
};

static_assert(SESSION_TIMELINES * sizeof(uint64_t) <= TIMELINE_BYTES, "all slots");

struct stream {
	pthread_mutex_t lock;
	struct gpu_stream *gpu; /* NULL: manual, or closed */
	bool open;
	bool manual;
	bool adopted; /* the program's own: not ours to destroy */
	uint32_t generation;
	_Atomic uint64_t recorded; /* highest value of a fence */
};

struct streams {
	pthread_mutex_t lock; /* opening */
	bool registered;      /* the timeline is known to the back end */
	struct stream slots[SESSION_TIMELINES];
};

int stream_open_all(struct gpool *pool)
{
	struct streams *streams = calloc(1, sizeof(*streams));

	if (!streams)
		return -ENOMEM;
	pthread_mutex_init(&streams->lock, NULL);
	for (int i = 0; i < SESSION_TIMELINES; i++)
		pthread_mutex_init(&streams->slots[i].lock, NULL);
	pool->streams = streams;
	return 0;
}

/* Caller holds the stream's lock. */
static void stream_end(struct gpool *pool, uint32_t slot)
{
	struct stream *stream = &pool->streams->slots[slot];
	_Atomic uint64_t *reached = &pool->session.timeline[slot];
	uint64_t recorded = atomic_load_explicit(&stream->recorded, memory_order_relaxed);

	if (stream->gpu) {
		gpu_stream_sync(pool->gpu, stream->gpu);
		if (!stream->adopted)
			gpu_stream_destroy(pool->gpu, stream->gpu);
		stream->gpu = NULL;
	}
	/* Nobody can reach the fences of a closed manual stream any more, nor those of work that failed: they are reached. */
	if (atomic_load_explicit(reached, memory_order_relaxed) < recorded)
		atomic_store_explicit(reached, recorded, memory_order_release);
	stream->open = false;
}

void stream_close_all(struct gpool *pool)
{
	struct streams *streams = pool->streams;

	if (!streams)
		return;
	/* Manual ones first: others may wait for their fences. */
	for (int manual = 1; manual >= 0; manual--)
		for (uint32_t i = 1; i < SESSION_TIMELINES; i++)
			if (streams->slots[i].open && streams->slots[i].manual == manual)
				stream_end(pool, i);
	if (streams->registered)
		gpu_host_unregister(pool->gpu, (void *)pool->session.timeline);
	for (int i = 0; i < SESSION_TIMELINES; i++)
		pthread_mutex_destroy(&streams->slots[i].lock);
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
			result = gpu_stream_sync(pool->gpu, stream->gpu);
		pthread_mutex_unlock(&stream->lock);
		if (result)
			error = result;
	}
	return error;
}

/* ---- numbers ---- */

int stream_slot_of(struct gpool *pool, uint32_t stream, uint32_t *slot)
{
	uint32_t index = stream & (SESSION_TIMELINES - 1);
	struct stream *found = &pool->streams->slots[index];
	bool open;

	pthread_mutex_lock(&found->lock);
	open = found->open && found->generation == stream >> SLOT_BITS;
	pthread_mutex_unlock(&found->lock);
	if (!open)
		return -EINVAL;
	*slot = index;
	return 0;
}

/* The stream of that number, locked; NULL: there is none. */
static struct stream *stream_lock(struct gpool *pool, uint32_t number, uint32_t *slot)
{
	struct stream *stream;

	*slot = number & (SESSION_TIMELINES - 1);
	stream = &pool->streams->slots[*slot];
	pthread_mutex_lock(&stream->lock);
	if (stream->open && stream->generation == number >> SLOT_BITS)
		return stream;
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

int fence_check(struct gpool *pool, struct gpool_fence fence)
{
	uint32_t slot = fence_slot(fence.value);

	if (slot >= SESSION_TIMELINES || (slot == 0 && fence.value) ||
		(fence.value & FENCE_VALUE_MASK) >
			atomic_load_explicit(&pool->streams->slots[slot].recorded, memory_order_acquire))
		return -EINVAL;
	return 0;
}

/* ---- streams ---- */

static int stream_start(struct gpool *pool, struct stream *stream, void *native)
{
	struct streams *streams = pool->streams;
	int error;

	if (!(pool->capabilities & GPU_CAP_TIMELINE))
		return -EOPNOTSUPP;
	if (!streams->registered) {
		error = gpu_host_register(pool->gpu, (void *)pool->session.timeline, TIMELINE_BYTES);
		if (error)
			return error;
		streams->registered = true;
	}
	stream->adopted = native != NULL;
	return native ? gpu_stream_adopt(pool->gpu, native, &stream->gpu) : gpu_stream_create(pool->gpu, &stream->gpu);
}

/* A closed one, locked; NULL: there is none. One that is locked by somebody else is in use, or just closing. */
static struct stream *stream_find_closed(struct streams *streams, uint32_t *slot)
{
	for (*slot = 1; *slot < SESSION_TIMELINES; ++*slot) {
		struct stream *stream = &streams->slots[*slot];

		if (pthread_mutex_trylock(&stream->lock))
			continue;
		if (!stream->open)
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
	if (flags & ~(uint32_t)GPOOL_STREAM_MANUAL || (native && flags))
		return -EINVAL;
	if (pool->role)
		return -EOPNOTSUPP; /* an observer has no device */
	pthread_mutex_lock(&pool->streams->lock);
	opened = stream_find_closed(pool->streams, &slot);
	if (opened) {
		if (!(flags & GPOOL_STREAM_MANUAL))
			error = stream_start(pool, opened, native);
		if (!error) {
			opened->manual = flags & GPOOL_STREAM_MANUAL;
			opened->generation = (opened->generation + 1) & (UINT32_MAX >> SLOT_BITS);
			opened->open = true;
			*stream = opened->generation << SLOT_BITS | slot;
		}
		pthread_mutex_unlock(&opened->lock);
	}
	pthread_mutex_unlock(&pool->streams->lock);
	return opened ? error : -EUSERS;
}

void gpool_stream_close(struct gpool *pool, uint32_t stream)
{
	struct stream *found;
	uint32_t slot;

	if (!pool->alive)
		return;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return;
	stream_end(pool, slot);
	pthread_mutex_unlock(&found->lock);
	deferred_sweep(pool);
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
		return -EINVAL;
	error = found->gpu ? gpu_copy(pool->gpu, to, from, bytes, found->gpu) : -EINVAL;
	pthread_mutex_unlock(&found->lock);
	return error;
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
		return -EINVAL;
	error = found->gpu && bytes % 4 == 0 ? gpu_fill(pool->gpu, to, value, bytes, found->gpu) : -EINVAL;
	pthread_mutex_unlock(&found->lock);
	return error;
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
		return -EINVAL;
	value = atomic_load_explicit(&found->recorded, memory_order_relaxed) + 1;
	if (found->gpu)
		error = gpu_timeline_write(pool->gpu, found->gpu, (uint64_t *)&pool->session.timeline[slot], value);
	if (!error) {
		atomic_store_explicit(&found->recorded, value, memory_order_release);
		fence->value = fence_make(slot, value);
	}
	pthread_mutex_unlock(&found->lock);
	return error;
}

int gpool_fence_done(struct gpool *pool, struct gpool_fence fence)
{
	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(fence_check(pool, fence)))
		return -EINVAL;
	if (!fence_reached(&pool->session, fence.value))
		return 0;
	/* Whoever asks is likely to be quiet after that: what was freed behind the fence ends here. */
	deferred_sweep(pool);
	return 1;
}

/* The half of a timeline word that changes at each step, to sleep on; gpool_fence_signal() wakes it. */
static const _Atomic uint32_t *timeline_low(const struct gpool *pool, uint32_t slot)
{
	return (const _Atomic uint32_t *)(const void *)&pool->session.timeline[slot] + (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__);
}

int gpool_fence_wait(struct gpool *pool, struct gpool_fence fence, int timeout_ms)
{
	uint32_t slot = fence_slot(fence.value);
	uint64_t start, limit, step = WAIT_FIRST_NS;
	int error;

	if (!pool->alive)
		return -ECHILD;
	error = fence_check(pool, fence);
	if (error || timeout_ms < -1)
		return -EINVAL;
	for (int spins = 0; spins < WAIT_SPINS; spins++) {
		if (fence_reached(&pool->session, fence.value)) {
			deferred_sweep(pool);
			return 0;
		}
		cpu_relax();
	}
	start = monotonic_ns();
	limit = timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000;
	for (;;) {
		uint64_t reached = atomic_load_explicit(&pool->session.timeline[slot], memory_order_acquire);
		uint64_t gone = monotonic_ns() - start;

		if (reached >= (fence.value & FENCE_VALUE_MASK)) {
			deferred_sweep(pool);
			return 0;
		}
		if (gone >= limit)
			return -ETIMEDOUT;
		if (step > limit - gone)
			step = limit - gone;
		futex_wait(timeline_low(pool, slot), (uint32_t)reached, (int64_t)step);
		step = step * 2 < WAIT_LARGEST_NS ? step * 2 : WAIT_LARGEST_NS;
	}
}

int gpool_stream_wait(struct gpool *pool, uint32_t stream, struct gpool_fence fence)
{
	struct stream *found;
	uint32_t slot;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (fence_check(pool, fence))
		return -EINVAL;
	found = stream_lock(pool, stream, &slot);
	if (!found)
		return -EINVAL;
	if (!found->gpu)
		error = -EINVAL; /* a manual stream has nothing that could wait */
	else if (!fence_reached(&pool->session, fence.value))
		error = gpu_timeline_wait(pool->gpu, found->gpu,
			(const uint64_t *)&pool->session.timeline[fence_slot(fence.value)], fence.value & FENCE_VALUE_MASK);
	pthread_mutex_unlock(&found->lock);
	return error;
}

int gpool_fence_signal(struct gpool *pool, struct gpool_fence fence)
{
	uint32_t slot = fence_slot(fence.value);
	uint64_t value = fence.value & FENCE_VALUE_MASK;
	struct stream *stream;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (slot == 0 || fence_check(pool, fence))
		return -EINVAL;
	stream = &pool->streams->slots[slot];
	pthread_mutex_lock(&stream->lock);
	if (!stream->open || !stream->manual)
		error = -EINVAL;
	else if (atomic_load_explicit(&pool->session.timeline[slot], memory_order_relaxed) < value)
		atomic_store_explicit(&pool->session.timeline[slot], value, memory_order_release);
	pthread_mutex_unlock(&stream->lock);
	if (error)
		return error;
	futex_wake(timeline_low(pool, slot), INT_MAX);
	deferred_sweep(pool);
	pool_wake_waiters(pool);
	return 0;
}
