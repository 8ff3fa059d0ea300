/*
 * vpmm_small.c - allocations smaller than a VPMM page: spans (span.h) and blocks, kept in stream order; or buffers of
 * the driver's own pool. See vpmm.h.
 *
 * A block is used for more than half a page of the pool. VPMM pages can be much larger, because a driver handle may
 * have many pages, and because the program chooses them.
 *
 * A freed buffer waits in the list of its stream and size, from which the same stream can reuse it immediately. When
 * its fence is signaled, it returns to its page and is available to all streams. This is checked whenever a stream
 * finds its own list empty, and when no call was made for some time. If the buffer was freed without a fence, because
 * only one stream was in use, a fence is recorded first. As with regions, a buffer that a stream reuses earlier keeps
 * the fence as its guard.
 *
 * The driver's pool keeps the stream order itself, so none of its buffers waits here. It needs a stream to queue on, so
 * allocations without a stream use spans and blocks. A free without a stream uses a stream of the library, because all
 * work on the buffer is then done.
 *
 * The lock protects lists and the hash table. While it is held, no other lock may be acquired, including that of
 * vpmm.h, and vice versa.
 */
#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "client/core/span.h"
#include "client/core/stream.h"
#include "client/vm/vpmm.h"
#include "shm/plural.h"
#include "shm/timeline.h"

#include <stdlib.h>

/* uthash allocates memory only here. Report a failure instead of ending the program. */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
/* The default hash function falls through switch labels, about which clang warns. */
#define HASH_FUNCTION(key, bytes, value) HASH_FNV(key, bytes, value)
#include <uthash.h>

enum {
	BLOCK_CLASSES = 64,     /* numbers of pages of blocks that have a class of their own */
	SETTLE_NS = 1000000000, /* chosen: longer than a step of an engine. Longest wait for freed memory */
};

enum small_kind {
	SMALL_SPAN,
	SMALL_BLOCK, /* only block and address in `span` are used */
	SMALL_DRIVER /* from the driver's pool: only the address in `span` is used */
};

struct small {
	UT_hash_handle hh; /* hashed by address */
	struct gpool_span span;
	enum small_kind kind;
	uint64_t bytes, held, id; /* requested and occupied size */
	uint64_t order;           /* waiting: position in the order of frees */
	uint64_t fence;           /* fence of a waiting buffer, or of the guard; 0: none is recorded */
	uint64_t then_fence;
	uint32_t guard; /* stream in whose order the buffer was reused; 0: none */
	/*
	 * waiting for its guard: the stream in which it was freed, with the fence then_fence; 0: it waits only for
	 * `fence`
	 */
	uint32_t then;
	uint32_t class;
	bool waiting;
	bool lost;                   /* could not be added to the hash table for lack of memory */
	TAILQ_ENTRY(small) by_class; /* waiting: latest first */
	TAILQ_ENTRY(small) by_age;   /* waiting: oldest first; also links spare buffers and those being returned */
};
TAILQ_HEAD(small_list, small);

struct small_stream {
	uint32_t number; /* number of the stream that last used the slot */
	struct small_list classes[SPAN_CLASSES + BLOCK_CLASSES];
	struct small_list ages;
};

struct vpmm_small {
	pthread_mutex_t lock;
	struct small *all; /* hash table of the buffers that are allocated or waiting */
	struct small_list spares;
	struct small_stream *streams[SESSION_TIMELINES]; /* created on first use */
	uint64_t orders, ids;
	uint64_t live_bytes, allocations, frees;
	_Atomic uint32_t waiting;
	pthread_mutex_t driver_lock; /* protects `driver`; a leaf too, held during a driver call */
	struct gpu_stream *driver;   /* for frees without a stream to the driver's pool; NULL: that pool is not used */
};

/* ---- sizes ---- */

/* Return the size of the largest span. */
static uint64_t span_bytes_most(const struct vpmm *vpmm)
{
	return vpmm->pool->page_bytes / 2;
}

static uint64_t block_pages(const struct vpmm *vpmm, uint64_t bytes)
{
	return bytes / vpmm->pool->page_bytes + (bytes % vpmm->pool->page_bytes != 0);
}

/* Return the class of the spans or blocks for this size. Those of the last class have different sizes. */
static uint32_t class_of(const struct vpmm *vpmm, uint64_t bytes)
{
	uint64_t pages;

	if (bytes <= span_bytes_most(vpmm))
		return span_class_of(vpmm->pool, (uint32_t)bytes);
	pages = block_pages(vpmm, bytes);
	return SPAN_CLASSES + (pages < BLOCK_CLASSES ? (uint32_t)pages : BLOCK_CLASSES) - 1;
}

/* ---- open and close ---- */

int vpmm_small_open(struct vpmm *vpmm)
{
	struct vpmm_small *small;

	if (vpmm->options.small == GPOOL_VM_SMALL_PAGES && !vpmm->off)
		return 0;
	small = calloc(1, sizeof(*small));
	if (!small)
		return -ENOMEM;
	pthread_mutex_init(&small->lock, NULL);
	pthread_mutex_init(&small->driver_lock, NULL);
	TAILQ_INIT(&small->spares);
	vpmm->small = small;
	/* A VPMM page that is a page of the pool is as good as a block of one page, and is mapped already. */
	vpmm->small_bytes = vpmm->off ? UINT64_MAX
		: vpmm->page_bytes > vpmm->pool->page_bytes || vpmm->options.small == GPOOL_VM_SMALL_DRIVER
		? vpmm->page_bytes - 1
		: span_bytes_most(vpmm);
	if (vpmm->options.small != GPOOL_VM_SMALL_DRIVER && !vpmm->off)
		return 0;
	if (vpmm->pool->capabilities & GPU_CAP_POOL)
		return gpu_stream_create(vpmm->pool->gpu, &small->driver);
	return vpmm->off ? 0 : fail(-EOPNOTSUPP, "the driver has no memory pool, which GPOOL_VM_SMALL_DRIVER requires");
}

void vpmm_small_close(struct vpmm *vpmm)
{
	struct vpmm_small *small = vpmm->small;
	struct small *at, *next;

	if (!small)
		return;
	/* The pages of the spans end with the session. */
	HASH_ITER(hh, small->all, at, next)
	{
		HASH_DEL(small->all, at);
		if (at->kind == SMALL_DRIVER)
			gpu_pool_free(vpmm->pool->gpu, at->span.address, small->driver);
		free(at);
	}
	if (small->driver)
		gpu_stream_destroy(vpmm->pool->gpu, small->driver);
	while ((at = TAILQ_FIRST(&small->spares))) {
		TAILQ_REMOVE(&small->spares, at, by_age);
		free(at);
	}
	for (int slot = 0; slot < SESSION_TIMELINES; slot++)
		free(small->streams[slot]);
	pthread_mutex_destroy(&small->lock);
	pthread_mutex_destroy(&small->driver_lock);
	free(small);
	vpmm->small = NULL;
	vpmm->small_bytes = 0;
}

bool vpmm_small_has(const struct vpmm *vpmm, uint64_t address)
{
	const struct gpool *pool = vpmm->pool;
	struct vpmm_small *small = vpmm->small;
	const struct small *at;

	if (!small)
		return false;
	if (address - pool->window_base < pool->page_count * pool->page_bytes)
		return true;
	if (likely(!small->driver && vpmm->small_bytes <= span_bytes_most(vpmm)))
		return false;
	/* The address may be anywhere, because the driver's pool chooses it, or because the block is scattered. */
	pthread_mutex_lock(&small->lock);
	HASH_FIND(hh, small->all, &address, sizeof(address), at);
	pthread_mutex_unlock(&small->lock);
	return at != NULL;
}

bool vpmm_small_waits(const struct vpmm *vpmm)
{
	return vpmm->small && atomic_load(&vpmm->small->waiting);
}

void vpmm_small_totals(struct vpmm *vpmm, struct gpool_vm_stats *totals)
{
	struct vpmm_small *small = vpmm->small;

	if (!small)
		return;
	pthread_mutex_lock(&small->lock);
	totals->small_bytes = small->live_bytes;
	totals->allocations += small->allocations;
	totals->frees += small->frees;
	pthread_mutex_unlock(&small->lock);
}

/* ---- waiting lists: the caller holds the lock ---- */

/* Return the lists of a stream, or NULL if it has none. */
static struct small_stream *stream_of(struct vpmm_small *small, uint32_t number)
{
	struct small_stream *stream = number ? small->streams[number & (SESSION_TIMELINES - 1)] : NULL;

	return stream && stream->number == number ? stream : NULL;
}

/*
 * Append a buffer to the lists. If `then` is set, the buffer only waits for its guard, and this stream cannot reuse it.
 */
static void waiting_add(struct vpmm_small *small, struct small_stream *stream, struct small *at)
{
	at->order = ++small->orders;
	at->waiting = true;
	if (!at->then)
		TAILQ_INSERT_HEAD(&stream->classes[at->class], at, by_class);
	TAILQ_INSERT_TAIL(&stream->ages, at, by_age);
	atomic_fetch_add(&small->waiting, 1);
}

static void waiting_remove(struct vpmm_small *small, struct small_stream *stream, struct small *at)
{
	if (!at->then)
		TAILQ_REMOVE(&stream->classes[at->class], at, by_class);
	TAILQ_REMOVE(&stream->ages, at, by_age);
	at->waiting = false;
	atomic_fetch_sub_explicit(&small->waiting, 1, memory_order_relaxed);
}

/*
 * Continue after the wait of a buffer has ended. If it has another stream to wait for, move it to the lists of that
 * stream; otherwise move it to `back`, from which its span is freed without the lock.
 */
static void detach(struct vpmm_small *small, struct small *at, struct small_list *back)
{
	struct small_stream *then = stream_of(small, at->then);

	at->then = 0;
	if (then) {
		at->fence = at->then_fence;
		waiting_add(small, then, at);
		return;
	}
	HASH_DEL(small->all, at);
	TAILQ_INSERT_TAIL(back, at, by_age);
}

/* Detach all buffers that wait in the lists of a stream whose work is done. */
static void stream_drain(struct vpmm_small *small, struct small_stream *stream, struct small_list *back)
{
	struct small *at;

	while ((at = TAILQ_FIRST(&stream->ages))) {
		waiting_remove(small, stream, at);
		detach(small, at, back);
	}
}

static void stream_sweep(struct vpmm *vpmm, struct small_stream *stream, struct small_list *back)
{
	struct small *at;

	while ((at = TAILQ_FIRST(&stream->ages)) && at->fence && fence_signaled(&vpmm->pool->session, at->fence)) {
		waiting_remove(vpmm->small, stream, at);
		detach(vpmm->small, at, back);
	}
}

/* ---- return to the pages ---- */

static void source_return(struct vpmm *vpmm, enum small_kind kind, struct gpool_span *span)
{
	if (kind == SMALL_SPAN)
		gpool_span_free(vpmm->pool, span);
	else
		gpool_free(vpmm->pool, &span->block);
}

/* Free the spans and blocks of these buffers. The caller does not hold the lock. */
static void spans_give_back(struct vpmm *vpmm, struct small_list *back)
{
	struct vpmm_small *small = vpmm->small;
	struct small *at;

	if (TAILQ_EMPTY(back))
		return;
	TAILQ_FOREACH(at, back, by_age)
	source_return(vpmm, at->kind, &at->span);
	pthread_mutex_lock(&small->lock);
	while ((at = TAILQ_FIRST(back))) {
		TAILQ_REMOVE(back, at, by_age);
		TAILQ_INSERT_HEAD(&small->spares, at, by_age);
	}
	pthread_mutex_unlock(&small->lock);
}

/*
 * Record a fence for the oldest buffers that a stream has freed without one. If the stream was closed, its work is
 * done. Lock held; released temporarily.
 */
static void stream_fence(struct vpmm *vpmm, struct small_stream *stream, struct small_list *back)
{
	struct vpmm_small *small = vpmm->small;
	struct gpool_fence fence = {0};
	const struct small *oldest;
	uint64_t last = small->orders;
	uint32_t number = stream->number, slot;
	struct small *at;

	oldest = TAILQ_FIRST(&stream->ages);
	if (!oldest || oldest->fence)
		return;
	pthread_mutex_unlock(&small->lock);
	gpool_fence_record(vpmm->pool, number, &fence);
	pthread_mutex_lock(&small->lock);
	if (!fence.value && stream->number == number && stream_slot_of(vpmm->pool, number, &slot))
		stream_drain(small, stream, back);
	/* Stop at buffers that were freed since then; another stream may have freed them in this slot. */
	TAILQ_FOREACH(at, &stream->ages, by_age)
	{
		if (at->fence || at->order > last)
			break;
		at->fence = fence.value;
	}
}

void vpmm_small_return(struct vpmm *vpmm, bool all)
{
	struct small_list back = TAILQ_HEAD_INITIALIZER(back);
	struct vpmm_small *small = vpmm->small;

	if (!vpmm_small_waits(vpmm))
		return;
	pthread_mutex_lock(&small->lock);
	for (int slot = 1; slot < SESSION_TIMELINES; slot++) {
		struct small_stream *stream = small->streams[slot];

		if (!stream)
			continue;
		stream_sweep(vpmm, stream, &back);
		if (all)
			stream_fence(vpmm, stream, &back);
	}
	pthread_mutex_unlock(&small->lock);
	spans_give_back(vpmm, &back);
}

/* Return the fence of the buffer that has waited longest among those with a fence; 0: none. */
static uint64_t oldest_fence(struct vpmm_small *small)
{
	uint64_t fence = 0, order = UINT64_MAX;

	pthread_mutex_lock(&small->lock);
	for (int slot = 1; slot < SESSION_TIMELINES; slot++) {
		const struct small *at = small->streams[slot] ? TAILQ_FIRST(&small->streams[slot]->ages) : NULL;

		if (at && at->fence && at->order < order) {
			fence = at->fence;
			order = at->order;
		}
	}
	pthread_mutex_unlock(&small->lock);
	return fence;
}

bool vpmm_small_wait(struct vpmm *vpmm, uint64_t *limit_ns)
{
	struct gpool_fence fence;
	uint64_t now;

	/* Spans are too small to be waited for. */
	if (vpmm->small_bytes <= vpmm->pool->page_bytes || !vpmm_small_waits(vpmm))
		return false;
	now = monotonic_ns();
	if (!*limit_ns)
		*limit_ns = now + SETTLE_NS;
	vpmm_small_return(vpmm, true);
	if (!vpmm_small_waits(vpmm))
		return true;
	fence.value = oldest_fence(vpmm->small);
	if (!fence.value || now >= *limit_ns ||
		gpool_fence_wait(vpmm->pool, fence, (int)((*limit_ns - now) / 1000000) + 1))
		return false;
	vpmm_small_return(vpmm, false);
	return true;
}

void vpmm_small_stream_closed(struct vpmm *vpmm, uint32_t stream)
{
	struct small_list back = TAILQ_HEAD_INITIALIZER(back);
	struct vpmm_small *small = vpmm->small;
	uint32_t slot = stream & (SESSION_TIMELINES - 1);

	if (!small)
		return;
	pthread_mutex_lock(&small->lock);
	if (small->streams[slot] && small->streams[slot]->number == stream)
		stream_drain(small, small->streams[slot], &back);
	pthread_mutex_unlock(&small->lock);
	spans_give_back(vpmm, &back);
}

/* ---- malloc ---- */

static struct small_stream *stream_create(void)
{
	struct small_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	TAILQ_INIT(&stream->ages);
	for (int class = 0; class < SPAN_CLASSES + BLOCK_CLASSES; class ++)
		TAILQ_INIT(&stream->classes[class]);
	return stream;
}

/* Add a stream to those in use. Return the buffers that wait for the former stream of its slot. */
static COLD int stream_enter(struct vpmm *vpmm, uint32_t number)
{
	struct small_list back = TAILQ_HEAD_INITIALIZER(back);
	struct vpmm_small *small = vpmm->small;
	struct small_stream *stream;
	uint32_t slot;
	int error;

	vpmm_lock(vpmm);
	error = vpmm_slot(vpmm, number, &slot);
	vpmm_unlock(vpmm);
	if (error)
		return error;
	pthread_mutex_lock(&small->lock);
	stream = small->streams[slot];
	if (!stream)
		stream = small->streams[slot] = stream_create();
	if (stream) {
		stream_drain(small, stream, &back);
		stream->number = number;
	}
	pthread_mutex_unlock(&small->lock);
	spans_give_back(vpmm, &back);
	return stream ? 0 : -ENOMEM;
}

static int source_alloc(struct vpmm *vpmm, uint64_t bytes, int32_t timeout_ms, struct gpool_span *span)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct alloc_request request;
	uint64_t pages = block_pages(vpmm, bytes);
	int error;

	if (bytes <= span_bytes_most(vpmm))
		return gpool_span_alloc(vpmm->pool, bytes, vpmm->options.usage, span);
	if (pages > vpmm->pool->page_count)
		return vpmm_too_much(vpmm->pool, pages);
	options.usage = vpmm->options.usage;
	options.timeout_ms = timeout_ms;
	/* Like the pins of VPMM pages, this one lasts as long as the program needs the memory, and is not a leak. */
	error = alloc_request_read(vpmm->pool, &options, BLOCK_RANGE, &request);
	if (!error)
		error = alloc_block(vpmm->pool, (uint32_t)pages, &request, &span->block);
	if (error)
		return error;
	error = gpool_address(vpmm->pool, &span->block, &span->address);
	if (error)
		gpool_free(vpmm->pool, &span->block);
	return error;
}

/* Allocate a span or a block. If no VPMM page can be used instead, wait for pages. */
static int source_take(struct vpmm *vpmm, uint64_t bytes, struct gpool_span *span)
{
	int error = source_alloc(vpmm, bytes, 0, span);

	if (error != -ENOSPC && error != -EDQUOT)
		return error;
	/* Park free pages, because small allocations can only use idle ones. */
	vpmm_small_return(vpmm, true);
	vpmm_lock(vpmm);
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	vpmm_park(vpmm, 0);
	vpmm_unlock(vpmm);
	return source_alloc(vpmm, bytes, vpmm->off ? vpmm->options.timeout_ms : 0, span);
}

static void small_begin(struct vpmm_small *small, struct small *at, uint64_t bytes)
{
	at->bytes = bytes;
	/* The id is odd; the ids of whole pages are even. */
	at->id = 2 * ++small->ids + 1;
	small->live_bytes += at->held;
	small->allocations++;
}

/* Add a buffer to the hash table. Return NULL if no memory is available. */
static struct small *small_know(
	struct vpmm *vpmm, const struct gpool_span *span, uint64_t bytes, uint64_t held, enum small_kind kind)
{
	struct vpmm_small *small = vpmm->small;
	struct small *at;

	pthread_mutex_lock(&small->lock);
	at = TAILQ_FIRST(&small->spares);
	if (at)
		TAILQ_REMOVE(&small->spares, at, by_age);
	else
		at = malloc(sizeof(*at));
	if (at) {
		*at = (struct small){.span = *span, .class = class_of(vpmm, bytes), .held = held, .kind = kind};
		HASH_ADD(hh, small->all, span.address, sizeof(at->span.address), at);
		if (at->lost) {
			free(at);
			at = NULL;
		} else {
			small_begin(small, at, bytes);
		}
	}
	pthread_mutex_unlock(&small->lock);
	return at;
}

static COLD int small_make(struct vpmm *vpmm, uint64_t bytes, struct small **made)
{
	enum small_kind kind = bytes <= span_bytes_most(vpmm) ? SMALL_SPAN : SMALL_BLOCK;
	struct gpool_span span = {.bytes = 0};
	int error;

	vpmm_small_return(vpmm, false);
	error = source_take(vpmm, bytes, &span);
	if (error)
		return error;
	*made = small_know(vpmm, &span, bytes,
		kind == SMALL_SPAN ? span.bytes : span.block.page_count * vpmm->pool->page_bytes, kind);
	if (*made)
		return 0;
	source_return(vpmm, kind, &span);
	return -ENOMEM;
}

/* Allocate from the driver's pool. Return -EOPNOTSUPP if the pool does not support the stream in its current state. */
static int driver_make(struct vpmm *vpmm, uint64_t bytes, uint32_t stream, struct small **made)
{
	struct gpool_span span = {.bytes = 0};
	int error;

	if (!stream_can_wait(vpmm->pool, stream))
		return -EOPNOTSUPP;
	error = stream_pool_alloc(vpmm->pool, stream, bytes, &span.address);
	if (error)
		return error == -EBUSY ? -EOPNOTSUPP : error; /* -EBUSY: a graph is being captured */
	*made = small_know(vpmm, &span, bytes, bytes, SMALL_DRIVER);
	if (*made)
		return 0;
	stream_pool_free(vpmm->pool, stream, span.address);
	return -ENOMEM;
}

int vpmm_small_malloc(struct vpmm *vpmm, uint64_t bytes, uint32_t stream, uint64_t *address, uint64_t *id)
{
	struct vpmm_small *small = vpmm->small;
	struct small_stream *lists;
	struct small *at = NULL;
	uint32_t slot;
	int error = 0;

	if (stream && stream_slot_of(vpmm->pool, stream, &slot))
		return fail_stream(stream);
	if (unlikely(small->driver)) {
		error = driver_make(vpmm, bytes, stream, &at);
		if (error != -EOPNOTSUPP)
			goto out;
		error = 0;
	}
	pthread_mutex_lock(&small->lock);
	lists = stream_of(small, stream);
	at = lists ? TAILQ_FIRST(&lists->classes[class_of(vpmm, bytes)]) : NULL;
	if (at && at->kind == SMALL_BLOCK && at->span.block.page_count != block_pages(vpmm, bytes))
		at = NULL;
	if (at) {
		waiting_remove(small, lists, at);
		at->guard = stream;
		small_begin(small, at, bytes);
	}
	pthread_mutex_unlock(&small->lock);
	if (!at && stream && !lists)
		error = stream_enter(vpmm, stream);
	if (!error && !at)
		error = small_make(vpmm, bytes, &at);
out:
	if (error)
		return error;
	*address = at->span.address;
	*id = at->id;
	return 0;
}

/* ---- free ---- */

/*
 * Free a buffer on the library's own stream: after the progress of a host-signaled timeline or the end of a capture, or
 * immediately.
 */
static int driver_free_here(struct vpmm *vpmm, uint64_t address, uint32_t stream)
{
	struct vpmm_small *small = vpmm->small;
	struct gpool *pool = vpmm->pool;
	struct gpool_fence fence = {0};
	int error = 0;

	if (stream)
		release_fence(pool, stream, &fence); /* no fence: the stream was closed, so its work is done */
	pthread_mutex_lock(&small->driver_lock);
	if (fence.value)
		error = gpu_timeline_wait(pool->gpu, small->driver,
			(const uint64_t *)&pool->session.timeline[fence_slot(fence.value)],
			fence.value & FENCE_VALUE_MASK);
	if (!error)
		error = gpu_pool_free(pool->gpu, address, small->driver);
	pthread_mutex_unlock(&small->driver_lock);
	return error;
}

/* Free a buffer of the driver's pool, which is no longer in the hash table. */
static void driver_free(struct vpmm *vpmm, struct small *at, uint32_t stream)
{
	struct vpmm_small *small = vpmm->small;
	bool waits = stream_can_wait(vpmm->pool, stream);
	int error = waits ? stream_pool_free(vpmm->pool, stream, at->span.address) : -EBUSY;

	if (error == -EBUSY)
		error = driver_free_here(vpmm, at->span.address, stream);
	if (error)
		pool_log(vpmm->pool, POOL_LOG_ERROR,
			"cannot free %llu byte%s of the driver's memory pool: %s; they are lost",
			(unsigned long long)at->bytes, plural(at->bytes), gpu_error_text());
	pthread_mutex_lock(&small->lock);
	TAILQ_INSERT_HEAD(&small->spares, at, by_age);
	pthread_mutex_unlock(&small->lock);
}

/* Return the lists in which the buffer must wait first, or NULL. Lock held. */
static struct small_stream *small_release(struct vpmm *vpmm, struct small *at, uint32_t stream, uint64_t fence)
{
	struct vpmm_small *small = vpmm->small;
	struct small_stream *guard = at->guard != stream ? stream_of(small, at->guard) : NULL;
	uint32_t slot;

	if (guard && !stream_slot_of(vpmm->pool, at->guard, &slot) &&
		!(at->fence && fence_signaled(&vpmm->pool->session, at->fence))) {
		/* If it is freed without a stream, the guard's stream can reuse it. */
		at->then = stream;
		at->then_fence = fence;
		return guard;
	}
	at->fence = fence;
	return stream_of(small, stream);
}

/* Wake the background task, which sleeps while no buffer waits. The caller does not hold the lock. */
static COLD void background_needed(struct vpmm *vpmm)
{
	vpmm_lock(vpmm);
	vpmm_idle_touch(vpmm);
	vpmm_unlock(vpmm);
}

int vpmm_small_free(struct vpmm *vpmm, uint64_t address, uint32_t stream, uint64_t *bytes, uint64_t *id)
{
	uint64_t fence = vpmm->small->driver ? 0 : vpmm_fence_now(vpmm, stream);
	struct small_list back = TAILQ_HEAD_INITIALIZER(back);
	struct vpmm_small *small = vpmm->small;
	struct small_stream *lists;
	struct small *at;

	pthread_mutex_lock(&small->lock);
	if (stream && !stream_of(small, stream)) {
		int error;

		pthread_mutex_unlock(&small->lock);
		error = stream_enter(vpmm, stream);
		if (error == -ENOMEM)
			return error;
		pthread_mutex_lock(&small->lock);
	}
	HASH_FIND(hh, small->all, &address, sizeof(address), at);
	if (!at || at->waiting) {
		pthread_mutex_unlock(&small->lock);
		return -ESTALE;
	}
	*bytes = at->bytes;
	*id = at->id;
	small->live_bytes -= at->held;
	small->frees++;
	if (at->kind == SMALL_DRIVER) {
		HASH_DEL(small->all, at);
		pthread_mutex_unlock(&small->lock);
		driver_free(vpmm, at, stream);
		return 0;
	}
	lists = small_release(vpmm, at, stream, fence);
	at->guard = 0;
	if (lists)
		waiting_add(small, lists, at);
	else
		detach(small, at, &back);
	pthread_mutex_unlock(&small->lock);
	if (unlikely(lists && atomic_load(&vpmm->asleep)))
		background_needed(vpmm);
	spans_give_back(vpmm, &back);
	return 0;
}
