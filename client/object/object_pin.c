/*
 * object_pin.c - objects whose eviction only pins prevent. The pins are counted at the object's first page, at which
 * this session cannot have a block while the object exists. object_pin_try() documents the protocol.
 */
#include "client/core/deferred.h"
#include "client/core/last_error.h"
#include "client/object/object.h"
#include "client/core/stream.h"
#include "shm/doorbell.h"
#include "shm/pins.h"

enum {
	PIN_SPINS = 64,         /* attempts before the thread sleeps; the agent decides within a few instructions */
	PIN_SLICE_NS = 1000000, /* limits each sleep, because an agent that has died wakes no threads */
};

static const struct object_record *record_of(const struct gpool_object *object)
{
	return &object->pool->segment.objects[object->number];
}

static uint32_t page_of(const struct gpool_object *object)
{
	return object->manifest.runs[0].first;
}

/* Record a use, then pin, as block_pin() does. If the object is gone, a block may be at its page. */
static int pin_once(const struct gpool_object *object)
{
	const struct gpool *pool = object->pool;

	if (likely(!object_is_gone(object)))
		atomic_store_explicit(&pool->session.touch[page_of(object)], pool_clock(pool), memory_order_relaxed);
	return object_pin_try(&pool->session, record_of(object), object->version, page_of(object));
}

/* Wait while the agent decides. If the agent has died, the state is LEAVING until the next agent has recovered. */
static COLD int pin_wait(const struct gpool_object *object)
{
	const struct gpool *pool = object->pool;
	uint64_t limit = (uint64_t)atomic_load_explicit(&pool->header->pin_timeout_ms, memory_order_relaxed) * 1000000,
		 start = monotonic_ns();
	int error = -EAGAIN;

	for (uint32_t looks = 0; error == -EAGAIN; looks++) {
		if (looks < PIN_SPINS)
			cpu_relax();
		else if (monotonic_ns() - start >= limit)
			return -ETIMEDOUT;
		else
			futex_wait((_Atomic uint32_t *)&record_of(object)->state, OBJECT_LEAVING, PIN_SLICE_NS);
		error = pin_once(object);
	}
	return error;
}

static bool is_by_pins(const struct gpool_object *object)
{
	return object->number && object->by_pins;
}

static int fail_class(const struct gpool_object *object)
{
	return fail(-EINVAL, "object '%s' is not published with the class PINNABLE or by gpool_range_publish()",
		object->name);
}

int object_fail_gone(const struct gpool_object *object)
{
	return fail(-ESTALE,
		"version %llu of object '%s' was evicted or deleted; close it, and open or publish it again",
		(unsigned long long)object->version, object->name);
}

/* Count a use. The number is an estimate, because concurrent threads may lose counts. */
static void used(const struct gpool_object *object)
{
	_Atomic uint64_t *uses = &block_entry(object->pool, page_of(object))->owner_id;

	atomic_store_explicit(uses, atomic_load_explicit(uses, memory_order_relaxed) + 1, memory_order_relaxed);
}

int object_pin(struct gpool_object *object)
{
	struct gpool *pool = object->pool;
	int error;

	error = pin_once(object);
	if (unlikely(error == -EAGAIN))
		error = pin_wait(object);
	if (unlikely(error)) {
		/*
		 * The page may belong to a block again, and the failed pin was counted at this block for a moment. If
		 * the block was freed during that moment, its free must be completed.
		 */
		pool_sweep(pool);
		return error;
	}
	used(object);
	return 0;
}

int gpool_object_pin(struct gpool_object *object)
{
	int error;

	if (unlikely(!object->pool->alive))
		return -ECHILD;
	error = likely(is_by_pins(object)) ? object_pin(object) : fail_class(object);
	if (unlikely(error == -ESTALE))
		return object_fail_gone(object);
	if (unlikely(error == -ETIMEDOUT))
		fail(error, "the agent examined object '%s' for longer than %u ms (pins.timeout); try again",
			object->name,
			atomic_load_explicit(&object->pool->header->pin_timeout_ms, memory_order_relaxed));
	return error;
}

/*
 * Check that the object may be unpinned. A version is not evicted while it is pinned, so an evicted version was not
 * pinned, or the agent has ended its pins as leaked.
 */
static int unpin_check(const struct gpool_object *object)
{
	if (unlikely(object_is_gone(object)))
		return object_fail_gone(object);
	return unlikely(!pin_count(&object->pool->session, page_of(object)))
		? fail(-EINVAL, "object '%s' is not pinned", object->name)
		: 0;
}

static void unpin(struct gpool_object *object)
{
	pin_drop(&object->pool->session, page_of(object));
	pool_wake_waiters(object->pool);
}

int gpool_object_unpin(struct gpool_object *object)
{
	int error;

	if (unlikely(!object->pool->alive))
		return -ECHILD;
	error = likely(is_by_pins(object)) ? unpin_check(object) : fail_class(object);
	if (likely(!error))
		unpin(object);
	return error;
}

int object_unpin(struct gpool_object *object, struct gpool_fence fence)
{
	struct gpool *pool = object->pool;
	int error = unpin_check(object);

	if (!error)
		error = fence_check(pool, fence);
	if (error)
		return error;
	/* The page has no block, so the deferred pin has tag 0. */
	if (fence_pending(pool, fence) && !entry_fence_raise(pool, block_entry(pool, page_of(object)), fence.value))
		return deferred_unpin(pool, &(struct gpool_block){.page = page_of(object)}, fence.value);
	unpin(object);
	return 0;
}

int gpool_object_unpin_after(struct gpool_object *object, struct gpool_fence fence)
{
	if (unlikely(!object->pool->alive))
		return -ECHILD;
	return is_by_pins(object) ? object_unpin(object, fence) : fail_class(object);
}

void object_pin_raise(struct gpool_object *object)
{
	struct gpool *pool = object->pool;

	atomic_store_explicit(&pool->session.touch[page_of(object)], pool_clock(pool), memory_order_relaxed);
	atomic_fetch_add_explicit(&pool->session.pins[page_of(object)], 1, memory_order_seq_cst);
}

bool object_is_gone(const struct gpool_object *object)
{
	const struct object_record *record = record_of(object);
	uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);

	return state < OBJECT_CURRENT || state > OBJECT_LEAVING || record->version != object->version;
}

/* ---- mappings of evicted objects ---- */

void object_mapped_at(struct gpool_object *object, uint64_t at, uint64_t bytes)
{
	pthread_mutex_lock(&object->pool->objects_lock);
	object->mapping = at;
	object->mapping_bytes = bytes;
	pthread_mutex_unlock(&object->pool->objects_lock);
}

/* The caller holds pool->objects_lock. */
static int mapping_unmap(struct gpool_object *object)
{
	int error = object->mapping_bytes ? gpu_unmap(object->pool->gpu, object->mapping, object->mapping_bytes) : 0;

	if (!error)
		object->mapping_bytes = 0;
	return error;
}

int object_mapping_unmap(struct gpool_object *object)
{
	int error;

	pthread_mutex_lock(&object->pool->objects_lock);
	error = mapping_unmap(object);
	pthread_mutex_unlock(&object->pool->objects_lock);
	return error;
}

bool objects_sweep(struct gpool *pool)
{
	bool all = true;

	pthread_mutex_lock(&pool->objects_lock);
	for (struct gpool_object *object = pool->objects; object; object = object->next)
		if (is_by_pins(object) && object_is_gone(object))
			all &= !object_parts_unmap(object) && !object_unmap(object) && !mapping_unmap(object);
	pthread_mutex_unlock(&pool->objects_lock);
	return all;
}
