/* inspect.c - report the state of a pool. */
#include "client/core/last_error.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "client/core/thread_cache.h"
#include "proto/codec.h"

#include <string.h>

#ifndef GPOOL_VERSION
#define GPOOL_VERSION "0.2.0"
#endif

const char *gpool_version(void)
{
	return GPOOL_VERSION;
}

uint64_t gpool_page_bytes(const struct gpool *pool)
{
	return pool->page_bytes; /* 0 in a forked child, as are the results of the functions below */
}

uint32_t gpool_page_count(const struct gpool *pool)
{
	return pool->alive ? pool->header->page_count : 0;
}

uint32_t gpool_session(const struct gpool *pool)
{
	return pool->id;
}

int gpool_pressure(const struct gpool *pool)
{
	return pool->alive ? (int)atomic_load_explicit(&pool->header->pressure, memory_order_relaxed) : -ECHILD;
}

static void count_pages(const struct gpool *pool, struct gpool_stats *statistics)
{
	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_relaxed);

		if (page_word_owner(word) == pool->id &&
			(page_word_state(word) == PAGE_LEASED || page_word_in_motion(word)))
			statistics->leased_pages++;
	}
	for (uint32_t word = 0; word < (pool->page_count + 63) / 64; word++)
		statistics->idle_pages += (uint32_t)__builtin_popcountll(
			atomic_load_explicit(&pool->session.free_bits[word], memory_order_relaxed));
}

static void count_threads(const struct session_stats *stats, struct gpool_stats *statistics)
{
	for (int i = 0; i < SESSION_STAT_SLOTS; i++) {
		const struct thread_stats *thread = &stats->threads[i];

		statistics->allocations += atomic_load_explicit(&thread->allocations, memory_order_relaxed);
		statistics->frees += atomic_load_explicit(&thread->frees, memory_order_relaxed);
		statistics->pins += atomic_load_explicit(&thread->pins, memory_order_relaxed);
		statistics->unpins += atomic_load_explicit(&thread->unpins, memory_order_relaxed);
		statistics->stale_pins += atomic_load_explicit(&thread->stale_pins, memory_order_relaxed);
		statistics->contended_pins += atomic_load_explicit(&thread->contended_pins, memory_order_relaxed);
		statistics->magazine_hits += atomic_load_explicit(&thread->magazine_hits, memory_order_relaxed);
		statistics->scattered += atomic_load_explicit(&thread->scattered, memory_order_relaxed);
		statistics->refills += atomic_load_explicit(&thread->refills, memory_order_relaxed);
		statistics->refusals += atomic_load_explicit(&thread->refusals, memory_order_relaxed);
	}
	static_assert(sizeof(statistics->allocation_ns) == SESSION_HISTOGRAM * sizeof(uint64_t), "same buckets");
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		for (int usage = 0; usage < BLOCK_USAGES; usage++)
			statistics->allocation_ns[i] +=
				atomic_load_explicit(&stats->allocation_ns[usage][i], memory_order_relaxed);
		statistics->refill_ns[i] = atomic_load_explicit(&stats->refill_ns[i], memory_order_relaxed);
	}
}

int gpool_stats(struct gpool *pool, struct gpool_stats *statistics)
{
	struct gpool_stats filled = {.size = statistics->size};

	if (!pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	count_pages(pool, &filled);
	count_threads(pool->session.stats, &filled);
	filled.deferred_blocks = atomic_load_explicit(&pool->deferred_count, memory_order_relaxed);
	if (pool->gpu)
		filled.driver_calls = gpu_calls_total(pool->gpu) - pool->calls_at_open;
	struct_answer(statistics, filled.size, &filled, sizeof(filled));
	return 0;
}

int gpool_device_info(const struct gpool *pool, struct gpool_device_info *device)
{
	struct gpool_device_info filled = {.size = device->size, .ordinal = pool->device};

	if (!pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	if (pool->capabilities & GPU_CAP_HOST_POINTER)
		filled.flags |= GPOOL_DEVICE_HOST_POINTER;
	/* Strings in the agent's segment may be unterminated. The copies are terminated. */
	memcpy(filled.pool, pool->header->name, sizeof(filled.pool) - 1);
	memcpy(filled.backend, pool->header->backend, sizeof(filled.backend) - 1);
	memcpy(filled.uuid, pool->device_uuid, sizeof(filled.uuid));
	struct_answer(device, filled.size, &filled, sizeof(filled));
	return 0;
}

enum { SHORTAGE_ANSWER_MS = 1000 }; /* chosen: an agent that is restarting replies within this time */

/* Request the list of holders. If the agent does not reply, the list is empty. */
static void holders_ask(struct gpool *pool, struct gpool_oom_info *shortage)
{
	const struct msg_shortage_request request = {0};
	struct msg_shortage_reply reply;
	uint8_t message[MSG_LARGEST_shortage_request], bytes[MSG_LARGEST_error_reply + MSG_LARGEST_shortage_reply];
	int length = msg_encode_shortage_request(&request, 0, NULL, message, sizeof(message));

	length = pool_request(pool, message, (size_t)length, bytes, sizeof(bytes), SHORTAGE_ANSWER_MS, NULL);
	if (length < 0 || msg_decode_shortage_reply(&reply, bytes, (size_t)length))
		return;
	static_assert(
		sizeof(reply.holders) / sizeof(*reply.holders) == GPOOL_HOLDERS_MAX, "as many as there is room for");
	static_assert(sizeof(reply.holders[0].name) == sizeof(shortage->holders[0].name), "same text");
	shortage->holder_count = reply.holders_count;
	for (uint32_t i = 0; i < reply.holders_count; i++) {
		const struct msg_holder_entry *from = &reply.holders[i];
		struct gpool_holder *to = &shortage->holders[i];

		to->session = from->session;
		to->usage = from->usage < GPOOL_USAGE_COUNT ? from->usage : GPOOL_USAGE_COUNT;
		to->needed_pages = from->needed_pages;
		to->offered_pages = from->offered_pages;
		to->idle_pages = from->idle_pages;
		memcpy(to->name, from->name, sizeof(to->name));
	}
}

int gpool_oom_info(struct gpool *pool, struct gpool_oom_info *shortage)
{
	struct gpool_oom_info filled = {.size = 0};
	const struct thread_cache *cache;
	uint32_t size = shortage->size;

	if (!pool->alive)
		return -ECHILD;
	if (size < sizeof(size))
		return fail_size(size);
	cache = thread_cache_of(pool);
	if (cache)
		filled = cache->shortage;
	filled.size = size;
	if (size > offsetof(struct gpool_oom_info, holder_count))
		holders_ask(pool, &filled);
	struct_answer(shortage, size, &filled, sizeof(filled));
	return 0;
}

int gpool_oom_object(struct gpool *pool, struct gpool_oom_object *object)
{
	struct gpool_oom_object filled;
	const struct thread_cache *cache;
	uint32_t size = object->size;

	if (!pool->alive)
		return -ECHILD;
	if (size < sizeof(size))
		return fail_size(size);
	cache = thread_cache_of(pool);
	if (!cache || !cache->shortage_object.pages)
		return fail(-ENOENT, "no object prevented the last failed allocation of this thread");
	filled = cache->shortage_object;
	filled.size = size;
	struct_answer(object, size, &filled, sizeof(filled));
	return 0;
}
