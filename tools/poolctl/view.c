/* view.c - names and lists for the views of poolctl. */
#include "tools/poolctl/view.h"

#include "client/gpool.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *usage_name(uint32_t usage)
{
	static const char *const names[GPOOL_USAGE_COUNT] = {
		[GPOOL_USAGE_KV_CACHE] = "KV_CACHE",
		[GPOOL_USAGE_LORA_WEIGHT] = "LORA_WEIGHT",
		[GPOOL_USAGE_TEMP_BUFFER] = "TEMP_BUFFER",
		[GPOOL_USAGE_ACTIVATION] = "ACTIVATION",
		[GPOOL_USAGE_GRADIENT] = "GRADIENT",
	};

	return usage < GPOOL_USAGE_COUNT ? names[usage] : "?";
}

const char *session_kind_name(uint32_t kind)
{
	static const char *const names[] = {"worker", "observer", "admin"};

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

const char *object_class_name(uint32_t memory_class)
{
	static const char *const names[] = {"immutable", "mutable", "ephemeral", "pinnable"};

	return memory_class < sizeof(names) / sizeof(names[0]) ? names[memory_class] : "?";
}

const char *object_state_name(uint32_t state)
{
	static const char *const names[OBJECT_STATES] = {
		"none", "publishing", "current", "old", "deleted", "leaving", "ending"};

	return state < OBJECT_STATES ? names[state] : "?";
}

/* Copy a text that may lack its NUL and might not be valid text. */
static void record_text(char *to, size_t size, const char *from)
{
	char raw[POOL_OBJECT_NAME_BYTES + 1] = "";

	memcpy(raw, from, size);
	msg_text_copy(to, size, raw);
}

static void pool_add(struct objects_view *view, const char *name, const struct pool_header *header)
{
	struct adapter_pool *to;

	view->pools = list_grow(view->pools, view->pool_count, &view->pool_capacity, sizeof(*view->pools));
	to = &view->pools[view->pool_count++];
	*to = (struct adapter_pool){
		.bytes = header->page_count * header->page_bytes,
		.adapter_evictions =
			atomic_load_explicit(&header->counters[POOL_COUNT_ADAPTER_EVICTIONS], memory_order_relaxed),
		.copy_evictions =
			atomic_load_explicit(&header->counters[POOL_COUNT_COPY_EVICTIONS], memory_order_relaxed),
	};
	snprintf(to->name, sizeof(to->name), "%s", name);
}

void objects_add(struct objects_view *view, const char *pool, const struct pool_segment *segment)
{
	pool_add(view, pool, segment->header);
	for (uint32_t number = 1; number < pool_object_end(segment); number++) {
		const struct object_record *record = &segment->objects[number];
		uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
		struct object_view *to;

		if (state == OBJECT_NONE)
			continue;
		view->objects = list_grow(view->objects, view->count, &view->capacity, sizeof(*view->objects));
		to = &view->objects[view->count++];
		*to = (struct object_view){
			.page_bytes = segment->header->page_bytes,
			.number = number,
			.state = state,
			.memory_class = record->class,
			.pages = record->pages,
			.allocations = record->allocations,
			.readers = atomic_load_explicit(&record->readers, memory_order_relaxed),
			.writer = atomic_load_explicit(&record->writer, memory_order_relaxed),
			.uid = record->uid,
			.pid = record->pid,
			.version = record->version,
			.layout_hash = record->layout_hash,
			.metadata_bytes = record->manifest_bytes,
			.published_ms = record->published_ms,
			.flags = record->flags,
			.cost_us = record->cost_us,
			.follows = record->follows,
			.follows_version = record->follows_version,
			.domain = record->domain,
			.used_ms = atomic_load_explicit(&record->used_ms, memory_order_relaxed),
			.uses = atomic_load_explicit(&record->uses, memory_order_relaxed),
		};
		snprintf(to->pool, sizeof(to->pool), "%s", pool);
		record_text(to->name, sizeof(to->name), record->name);
		record_text(to->label, sizeof(to->label), record->label);
		record_text(to->tenant, sizeof(to->tenant), record->tenant);
		record_text(to->role, sizeof(to->role), record->role);
	}
}

static int by_pool_and_number(const void *left, const void *right)
{
	const struct object_view *a = left, *b = right;
	int order = strcmp(a->pool, b->pool);

	return order ? order : a->number < b->number ? -1 : a->number > b->number;
}

void objects_pins(struct objects_view *view, const struct pins_view *pins)
{
	if (view->count)
		qsort(view->objects, view->count, sizeof(*view->objects), by_pool_and_number);
	for (uint32_t i = 0; view->count && i < pins->count; i++) {
		const struct pin_view *pin = &pins->pins[i];
		struct object_view key = {.number = pin->pin.object}, *found = NULL;

		snprintf(key.pool, sizeof(key.pool), "%s", pin->pool);
		if (key.number)
			found = bsearch(&key, view->objects, view->count, sizeof(key), by_pool_and_number);
		if (found)
			found->pins += pin->pin.pins;
	}
}

void pins_add(struct pins_view *view, const char *pool, uint64_t page_bytes, const struct msg_pin_entry *pin)
{
	struct pin_view *to;

	view->pins = list_grow(view->pins, view->count, &view->capacity, sizeof(*view->pins));
	to = &view->pins[view->count++];
	snprintf(to->pool, sizeof(to->pool), "%s", pool);
	to->page_bytes = page_bytes;
	to->pin = *pin;
}

void *list_grow(void *list, uint32_t count, uint32_t *capacity, size_t item)
{
	if (count < *capacity)
		return list;
	*capacity = *capacity ? *capacity * 2 : 64;
	return memory_or_exit(realloc(list, *capacity * item));
}
