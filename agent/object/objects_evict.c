/*
 * objects_evict.c - objects as a source of eviction: the objects that a request may evict, their scores compared to
 * those of blocks, and their eviction. objects_order.c contains the order within each kind.
 */
#include "agent/object/objects.h"
#include "shm/plural.h"

#include "agent/pages/event.h"
#include "agent/pages/evict.h"

#include <float.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/*
 * Return the usage of an object, by the prefix of its name. Without a known prefix, it counts as an activation: its
 * publisher can create it again.
 */
static uint8_t usage_of(const char *name)
{
	static const struct {
		const char *prefix;
		uint8_t usage;
	} kinds[] = {{"kv-prefix/", EVICT_KV_CACHE}, {"lora/", EVICT_LORA_WEIGHT}, {"warm/", EVICT_LORA_WEIGHT}};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strncmp(name, kinds[i].prefix, strlen(kinds[i].prefix)))
			return kinds[i].usage;
	return EVICT_ACTIVATION;
}

/* Return the time since the last use, as reported by workers. A time in the future counts as now. */
static uint32_t idle_ms(const struct pool *pool, uint32_t number, uint32_t now_ms)
{
	uint32_t idle = now_ms - pool->objects->of[number].touched_ms;

	return idle > INT32_MAX ? 0 : idle;
}

static uint64_t tag_of(const struct pool *pool, uint32_t number)
{
	return object_record(pool, number)->version << BLOCK_SEQUENCE_SHIFT;
}

static struct evict_candidate candidate_of(const struct pool *pool, uint32_t number, uint32_t now_ms)
{
	return (struct evict_candidate){
		.tag = tag_of(pool, number),
		.page = object_page(pool, number),
		.pages = object_record(pool, number)->pages,
		.object = number,
		.idle_ms = idle_ms(pool, number, now_ms),
		.cost = object_cost(pool, number),
		.usage = usage_of(object_record(pool, number)->name),
	};
}

/* Return false if the request is only for blocks of some usages or of one session. */
static bool asks_for_objects(const struct evict_request *request)
{
	return !request->only && !request->usages && !request->cached_only;
}

/*
 * Return true if request and tenant rules permit the eviction, given what the tenant has already lost to this request.
 */
static bool may_have(const struct pool *pool, uint32_t number, const struct evict_request *request)
{
	const struct object *object = &pool->objects->of[number];

	if (!asks_for_objects(request) || !object->in_order || object->open)
		return false;
	if (request->spare_offered && object_record(pool, number)->flags & OBJECT_BY_PINS)
		return false;
	if (request->by_operator)
		return true;
	if (request->within)
		return object->tenant == request->for_tenant;
	return !object->tenant ||
		evict_tenant_may_lose(object->tenant, request->for_tenant, object_record(pool, number)->pages);
}

/* Return the number of pages that a tenant may still lose after `lost` pages. */
static uint32_t evictable_of(const struct tenant *victim, const struct evict_request *request, uint32_t lost)
{
	uint32_t above = victim->leased - victim->saving, keeps = victim->minimum + lost;

	if (request->by_operator || victim == request->for_tenant)
		return victim->idle_pages;
	if (request->within || !victim->idle_pages || !evict_tenant_may_lose(victim, request->for_tenant, lost + 1))
		return 0;
	above = above > keeps ? above - keeps : 0;
	return victim->idle_pages < above ? victim->idle_pages : above;
}

static uint32_t evictable(const struct pool *pool, const struct evict_request *request, const uint32_t *lost)
{
	uint32_t pages;

	if (!asks_for_objects(request))
		return 0;
	pages = request->within ? 0 : object_order_idle_pages(pool);
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		pages += evictable_of(&pool->tenants[i], request, lost[i]);
	return pages;
}

static uint32_t before(
	const struct pool *pool, const struct evict_request *request, const struct evict_candidate *limit)
{
	uint32_t pages = 0;

	for (uint32_t i = 1; i < object_end_of(pool); i++) {
		const struct object *object = &pool->objects->of[i];

		if (object->in_order && object->scanned == pool->evict.scan_count && may_have(pool, i, request) &&
			evict_order(&object->candidate, limit) < 0)
			pages += object->candidate.pages;
	}
	return pages;
}

static bool is_in_order(const struct pool *pool, uint32_t number)
{
	return pool->objects->of[number].in_order;
}

/* Count an eviction of an adapter for its tier. */
static void adapter_evicted(struct pool *pool, const struct object_record *record)
{
	enum object_adapter_tier tier = object_adapter_tier(record);

	if (tier != OBJECT_ADAPTER_TIERS)
		pool_count(
			pool, tier == OBJECT_ADAPTER_HOT ? POOL_COUNT_ADAPTER_EVICTIONS : POOL_COUNT_COPY_EVICTIONS, 1);
}

/* Evict an object and return the number of freed pages. 0: a session has just pinned it. */
static uint32_t evict_one_object(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	struct tenant *tenant = pool->objects->of[number].tenant;
	uint32_t pages = record->pages;

	if (object_kept_by_pins(record) && !object_leave(pool, number)) {
		object_order_open(pool, number, true);
		return 0;
	}
	if (tenant)
		tenant_evicted(tenant, usage_of(record->name), pages);
	pool_count(pool, POOL_COUNT_EVICTIONS, 1);
	pool_count(pool, POOL_COUNT_EVICTED_PAGES, pages);
	adapter_evicted(pool, record);
	if (record->class == OBJECT_PINNABLE)
		object_worth_evicted(pool, number);
	pool->evicted_unannounced += pages;
	if (pool->evict.policy->evicted) {
		struct evict_candidate candidate = candidate_of(pool, number, (uint32_t)clock_ms());

		pool->evict.policy->evicted(pool->evict.policy_state, &candidate);
	}
	event_publish(pool->agent, EVENT_OBJECT_EVICTED, pool, 0, record->version,
		"object '%s' version %llu evicted, %u page%s", record->name, (unsigned long long)record->version, pages,
		plural(pages));
	object_order_evicted(pool, number);
	object_end(pool, number);
	return pages;
}

static uint32_t take(struct pool *pool, uint32_t number)
{
	uint32_t pages = evict_one_object(pool, number);

	if (pages && pool->evict.queue_objects)
		pool->evict.queue_objects--;
	return pages;
}

static uint32_t next_ephemeral(struct pool *pool, const struct evict_request *request)
{
	uint32_t number;

	while ((number = object_order_next_ephemeral(pool))) {
		if (object_kept_by_pins(object_record(pool, number)))
			object_order_look_at_pins(pool, number);
		if (object_order_next_ephemeral(pool) != number)
			continue;
		if (may_have(pool, number, request))
			break;
		object_order_aside(pool, number);
	}
	return number;
}

/*
 * Check the pins of each candidate: an unrecorded use may make another object the next one, and a pin may protect this
 * one.
 */
static uint32_t next_pinnable(struct pool *pool, const struct evict_request *request)
{
	uint32_t number;

	while ((number = object_order_next_pinnable(pool))) {
		object_order_look_at_pins(pool, number);
		if (object_order_next_pinnable(pool) != number)
			continue;
		if (may_have(pool, number, request))
			break;
		object_order_aside(pool, number);
	}
	return number;
}

/*
 * Return the candidate of an object. An object that the last scan did not see, or that was used since, is evicted last.
 */
static const struct evict_candidate *scored_now(struct pool *pool, uint32_t number)
{
	struct object *object = &pool->objects->of[number];

	if (number && object->scanned != pool->evict.scan_count) {
		object->candidate = candidate_of(pool, number, (uint32_t)clock_ms());
		object->candidate.score = FLT_MAX;
		object->scanned = pool->evict.scan_count;
	}
	return number ? &object->candidate : NULL;
}

static const struct evict_candidate *next_object(struct pool *pool, const struct evict_request *request)
{
	const struct evict_candidate *ephemeral, *pinnable;

	if (!asks_for_objects(request))
		return NULL;
	ephemeral = scored_now(pool, next_ephemeral(pool, request));
	pinnable = scored_now(pool, next_pinnable(pool, request));
	if (!ephemeral || !pinnable)
		return ephemeral ? ephemeral : pinnable;
	return evict_order(ephemeral, pinnable) < 0 ? ephemeral : pinnable;
}

static bool too_many_pinnables(const struct pool *pool)
{
	uint32_t most = pool->config->pinnable_objects;

	return most && object_order_pinnables(pool) > most;
}

static bool too_many_adapters(const struct pool *pool, enum object_adapter_tier tier)
{
	uint32_t most = tier == OBJECT_ADAPTER_HOT ? pool->agent->config.adapters.hot_budget
						   : pool->agent->config.adapters.warm_budget;

	return most && object_order_adapters(pool, tier) > most;
}

static bool any_too_many(const struct pool *pool)
{
	return too_many_pinnables(pool) || too_many_adapters(pool, OBJECT_ADAPTER_HOT) ||
		too_many_adapters(pool, OBJECT_ADAPTER_WARM);
}

/* Return true if the eviction of a pinnable object reduces a number that is too large. */
static bool one_too_many(const struct pool *pool, uint32_t number)
{
	enum object_adapter_tier tier = object_adapter_tier(object_record(pool, number));

	return too_many_pinnables(pool) || (tier != OBJECT_ADAPTER_TIERS && too_many_adapters(pool, tier));
}

void objects_thin(struct pool *pool, struct tenant *taker, uint32_t spared)
{
	const struct evict_request request = {.for_tenant = taker};
	uint32_t number;

	if (!any_too_many(pool))
		return;
	objects_order_look_at_pins(pool);
	while (any_too_many(pool) && (number = object_order_next_pinnable(pool)))
		if (number != spared && one_too_many(pool, number) && may_have(pool, number, &request))
			evict_one_object(pool, number);
		else
			object_order_aside(pool, number);
	object_order_back(pool);
}

static void window(struct pool *pool, const struct evict_request *request)
{
	bool *stays = pool->objects->stays;
	uint32_t end = object_end_of(pool);

	memset(stays, 0, end * sizeof(*stays));
	for (uint32_t i = 1; i < end; i++)
		if (is_in_order(pool, i) && !may_have(pool, i, request))
			for (uint32_t above = i; above && !stays[above]; above = object_followed(pool, above))
				stays[above] = true;
}

static bool window_has(const struct pool *pool, uint64_t word)
{
	uint32_t number = page_word_owner(word);

	return page_word_state(word) == PAGE_SHARED && number < object_end_of(pool) && is_in_order(pool, number) &&
		!pool->objects->stays[number];
}

static float score(const struct pool *pool, uint64_t word)
{
	return pool->objects->of[page_word_owner(word)].candidate.score;
}

static float highest_score(const struct pool *pool)
{
	float highest = 0;

	for (uint32_t i = 1; i < object_end_of(pool); i++) {
		const struct object *object = &pool->objects->of[i];

		if (object->in_order && object->scanned == pool->evict.scan_count && object->candidate.score > highest)
			highest = object->candidate.score;
	}
	return highest;
}

static uint32_t see(const struct pool *pool, struct evict_sight *sights, uint32_t now_ms)
{
	uint32_t count = 0;

	for (uint32_t i = 1; i < object_end_of(pool); i++) {
		const struct object *object = &pool->objects->of[i];
		const char *name = object_record(pool, i)->name;

		if (!object->in_order || !object_page_stands(object))
			continue;
		sights[count++] = (struct evict_sight){
			.key = XXH3_64bits(name, strnlen(name, POOL_OBJECT_NAME_BYTES)),
			.tag = tag_of(pool, i),
			.page = object_page(pool, i),
			.idle_ms = idle_ms(pool, i, now_ms),
			.touched = object->touched_ms,
		};
	}
	return count;
}

static uint32_t candidates_list(
	struct pool *pool, const struct evict_request *request, struct evict_candidate *candidates, uint32_t now_ms)
{
	uint32_t count = 0;

	/*
	 * Do this for requests without objects too, because each scan shows the policy all content. A use that is found
	 * only by the next scan would count as newer than all content of this one.
	 */
	objects_order_look_at_pins(pool);
	if (!asks_for_objects(request))
		return 0;
	window(pool, request);
	for (uint32_t i = 1; i < object_end_of(pool); i++)
		if (is_in_order(pool, i) && !pool->objects->stays[i] && object_page_stands(&pool->objects->of[i]))
			candidates[count++] = candidate_of(pool, i, now_ms);
	return count;
}

static void scored(struct pool *pool, const struct evict_candidate *candidates, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		pool->objects->of[candidates[i].object].candidate = candidates[i];
		pool->objects->of[candidates[i].object].scanned = pool->evict.scan_count;
	}
}

static void mark(struct pool *pool, uint32_t first, uint32_t count)
{
	for (uint32_t page = first; page < first + count; page++)
		if (window_has(pool, pool_word(pool, page)))
			pool->objects->goes[page_word_owner(pool_word(pool, page))] = true;
}

static void evict_marked(struct pool *pool)
{
	const uint32_t *sorted = pool->objects->sorted;
	bool *goes = pool->objects->goes;
	uint32_t end = object_end_of(pool), count_sorted = objects_sort(pool, is_in_order);

	for (uint32_t i = 0; i < count_sorted; i++)
		if (goes[object_followed(pool, sorted[i])])
			goes[sorted[i]] = true;
	while (count_sorted--)
		if (goes[sorted[count_sorted]])
			evict_one_object(pool, sorted[count_sorted]);
	memset(goes, 0, end * sizeof(*goes));
}

const struct evict_source objects_evict_source = {
	.order = objects_order_begin,
	.see = see,
	.candidates = candidates_list,
	.scored = scored,
	.evictable = evictable,
	.before = before,
	.next = next_object,
	.take = take,
	.back = object_order_back,
	.window = window,
	.window_has = window_has,
	.score = score,
	.highest_score = highest_score,
	.mark = mark,
	.evict_marked = evict_marked,
	.offered = object_order_offered_pages,
	.holders = objects_holders,
};
